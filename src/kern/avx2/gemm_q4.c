/* gemm_q4.c - products of 4-bit weights with vpmaddubsw and 16-bit partial sums. */
#include "kern/avx2/avx2.h"

#define GEMM_A16 nb_gemm_q4_avx2
#define GEMM_A8  nb_gemm_q4_a8_avx2
#include "kern/avx2/gemm_q4_body.inc"
