/* amx.h - kernels for AMX with 8-bit integers; the rest of the table is AVX-512's. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_AMX_AMX_H
#define NB_KERN_AMX_AMX_H

#include "kern/kern.h"

extern const nb_kern nb_kern_amx;

void nb_gemm_q4_amx(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_a8_amx(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_amx(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_a8_amx(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);

#endif
