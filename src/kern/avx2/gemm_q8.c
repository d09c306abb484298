/* gemm_q8.c - products of 8-bit weights with vpmaddwd. */
#include "kern/avx2/avx2.h"

#define GEMM_A16 nb_gemm_q8_avx2
#define GEMM_A8  nb_gemm_q8_a8_avx2
#include "kern/avx2/gemm_q8_body.inc"
