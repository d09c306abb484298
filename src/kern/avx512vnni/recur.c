/* recur.c - recurrences for AVX-512. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/vec.h"

#define NB_RECUR_VEC

NB_FORCE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

#define nb_delta  nb_delta_avx512vnni
#define nb_linrec nb_linrec_avx512vnni
#define nb_ssm1   nb_ssm1_avx512vnni
#define nb_conv   nb_conv_avx512vnni
#define nb_gate   nb_gate_avx512vnni

#include "kern/recur_body.inc"
