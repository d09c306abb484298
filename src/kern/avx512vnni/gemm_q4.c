/* gemm_q4.c - products of 4-bit weights with vpdpbusd on 64-byte registers. */
#include "kern/avx512vnni/avx512vnni.h"

#define GEMM_A16 nb_gemm_q4_avx512vnni
#define GEMM_A8  nb_gemm_q4_a8_avx512vnni
#include "kern/avx512vnni/gemm_q4_body.inc"
