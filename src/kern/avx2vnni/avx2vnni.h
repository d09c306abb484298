/* avx2vnni.h - products of quantized weights for processors with AVX-VNNI and without AVX-512; the rest is that of avx2.h. */
#ifndef NB_KERN_AVX2VNNI_AVX2VNNI_H
#define NB_KERN_AVX2VNNI_AVX2VNNI_H

#include "kern/kern.h"

extern const nb_kern nb_kern_avx2vnni;

void nb_gemm_q4_avx2vnni(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_a8_avx2vnni(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_avx2vnni(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_a8_avx2vnni(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);

#endif
