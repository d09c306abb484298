/* neondot.h - kernels for Arm processors with sdot. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_NEONDOT_NEONDOT_H
#define NB_KERN_NEONDOT_NEONDOT_H

#include "kern/kern.h"

extern const nb_kern nb_kern_neondot;

void nb_gemm_q4_neondot(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_a8_neondot(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_neondot(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_a8_neondot(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);

#endif
