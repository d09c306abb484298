/* gemm_q4.c - products of 4-bit weights with vpdpbusd on 32-byte registers. */
#include "kern/avx2vnni/avx2vnni.h"

#define GEMM_A16 nb_gemm_q4_avx2vnni
#define GEMM_A8  nb_gemm_q4_a8_avx2vnni
#include "kern/avx2/gemm_q4_body.inc"
