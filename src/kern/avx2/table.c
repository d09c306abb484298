/* table.c - the table for AVX2 with FMA and F16C. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_avx2
#define SHOWN      "avx2"
#define NEED       (NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C)
#define GEMM_Q4    nb_gemm_q4_avx2
#define GEMM_Q4_A8 nb_gemm_q4_a8_avx2
#define GEMM_Q8    nb_gemm_q8_avx2
#define GEMM_Q8_A8 nb_gemm_q8_a8_avx2
#include "kern/avx2/table.inc"
