/* recur.c - recurrences for NEON. */
#include "kern/neon/neon.h"
#include "kern/neon/vec.h"

#define NB_RECUR_VEC

NB_FORCE vf v_mul(vf x, vf y)
{
    return (vf){ vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b) };
}

#define nb_delta  nb_delta_neon
#define nb_linrec nb_linrec_neon
#define nb_ssm1   nb_ssm1_neon
#define nb_conv   nb_conv_neon
#define nb_gate   nb_gate_neon

#include "kern/recur_body.inc"
