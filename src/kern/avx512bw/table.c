/* table.c - the table for AVX-512 without VNNI: 8-bit weights go the way of AVX2, which halves a code so that no sum saturates. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h"
#include "kern/avx512bw/avx512bw.h"
#include "kern/avx512vnni/avx512vnni.h" /* what is built without VNNI there */
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_avx512bw
#define SHOWN      "avx512bw"
#define NEED       (NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C | NB_CPU_AVX512)
#define GEMM_Q4    nb_gemm_q4_avx512bw
#define GEMM_Q4_A8 nb_gemm_q4_a8_avx512bw
#define GEMM_Q8    nb_gemm_q8_avx2
#define GEMM_Q8_A8 nb_gemm_q8_a8_avx2
#include "kern/avx512vnni/table.inc"
