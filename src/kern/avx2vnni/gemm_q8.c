/* gemm_q8.c - products of 8-bit weights with vpdpwssd on 32-byte registers. */
#include "kern/avx2vnni/avx2vnni.h"

#define GEMM_A16 nb_gemm_q8_avx2vnni
#define GEMM_A8  nb_gemm_q8_a8_avx2vnni
#include "kern/avx2/gemm_q8_body.inc"
