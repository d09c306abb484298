/* scalar.h - the scalar kernels, which define every bit. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_SCALAR_SCALAR_H
#define NB_KERN_SCALAR_SCALAR_H

#include "kern/kern.h"

extern const nb_kern nb_kern_scalar;

/* 4-bit matrices: pack_q4.c, act.c, gemm_q4.c, probe.c */
void nb_pack_q4_scalar(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm);
void nb_act_a16_scalar(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm);
void nb_gemm_q4_scalar(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_f32_scalar(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
uint64_t nb_read_probe_scalar(const void *p, size_t bytes);

#endif
