/* table.c - the table for AVX-512 with VNNI. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h" /* the packer */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_avx512vnni
#define SHOWN      "avx512-vnni"
#define NEED       (NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C | NB_CPU_AVX512 | NB_CPU_AVX512_VNNI)
#define GEMM_Q4    nb_gemm_q4_avx512vnni
#define GEMM_Q4_A8 nb_gemm_q4_a8_avx512vnni
#define GEMM_Q8    nb_gemm_q8_avx512vnni
#define GEMM_Q8_A8 nb_gemm_q8_a8_avx512vnni
#include "kern/avx512vnni/table.inc"
