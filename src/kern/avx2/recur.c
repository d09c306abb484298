/* recur.c - recurrences for AVX2 and FMA. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/vec.h"

#define NB_RECUR_VEC

NB_FORCE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

#define nb_delta  nb_delta_avx2
#define nb_linrec nb_linrec_avx2
#define nb_ssm1   nb_ssm1_avx2
#define nb_conv   nb_conv_avx2
#define nb_gate   nb_gate_avx2

#include "kern/recur_body.inc"
