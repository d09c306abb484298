/* avx512bw.h - kernels for AVX-512 without VNNI: products of 4-bit weights; the rest is what other tiers have. Contracts: the fields of
 * nb_kern in kern/kern.h. */
#ifndef NB_KERN_AVX512BW_AVX512BW_H
#define NB_KERN_AVX512BW_AVX512BW_H

#include "kern/kern.h"

extern const nb_kern nb_kern_avx512bw;

void nb_gemm_q4_avx512bw(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_a8_avx512bw(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);

#endif
