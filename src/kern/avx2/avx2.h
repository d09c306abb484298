/* avx2.h - kernels for AVX2, FMA and F16C. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_AVX2_AVX2_H
#define NB_KERN_AVX2_AVX2_H

#include "kern/kern.h"

extern const nb_kern nb_kern_avx2;

/* 4-bit matrices: act.c, gemm_q4.c, gemm_q4_f32.c, probe.c */
void nb_act_a16_avx2(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm);
void nb_gemm_q4_avx2(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_f32_avx2(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
uint64_t nb_read_probe_avx2(const void *p, size_t bytes);

#endif
