/* neoni8mm.h - kernels for Arm processors with smmla and usmmla. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_NEONI8MM_NEONI8MM_H
#define NB_KERN_NEONI8MM_NEONI8MM_H

#include "kern/kern.h"

extern const nb_kern nb_kern_neoni8mm;

void nb_gemm_q4_neoni8mm(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_a8_neoni8mm(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_neoni8mm(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_a8_neoni8mm(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);

#endif
