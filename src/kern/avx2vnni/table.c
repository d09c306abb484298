/* table.c - the table for AVX2 with AVX-VNNI. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h"
#include "kern/avx2vnni/avx2vnni.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_avx2vnni
#define SHOWN      "avx2-vnni"
#define NEED       (NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C | NB_CPU_AVX_VNNI)
#define GEMM_Q4    nb_gemm_q4_avx2vnni
#define GEMM_Q4_A8 nb_gemm_q4_a8_avx2vnni
#define GEMM_Q8    nb_gemm_q8_avx2vnni
#define GEMM_Q8_A8 nb_gemm_q8_a8_avx2vnni
#include "kern/avx2/table.inc"
