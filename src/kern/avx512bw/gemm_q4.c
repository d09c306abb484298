/* gemm_q4.c - products of 4-bit weights with vpmaddubsw on 64-byte registers. */
#include "kern/avx512bw/avx512bw.h"

#define GEMM_A16 nb_gemm_q4_avx512bw
#define GEMM_A8  nb_gemm_q4_a8_avx512bw
#include "kern/avx512vnni/gemm_q4_body.inc"
