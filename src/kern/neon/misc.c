/* misc.c - norms, rotations and activations compiled for NEON. */
#include "kern/neon/neon.h"

#define nb_rmsnorm       nb_rmsnorm_neon
#define nb_layernorm     nb_layernorm_neon
#define nb_rope_half     nb_rope_half_neon
#define nb_rope_pair     nb_rope_pair_neon
#define nb_silu_mul      nb_silu_mul_neon
#define nb_gelu_tanh_mul nb_gelu_tanh_mul_neon
#define nb_gelu_erf_mul  nb_gelu_erf_mul_neon
#define nb_add           nb_add_neon
#define nb_axpy          nb_axpy_neon
#define nb_softcap       nb_softcap_neon
#define nb_row_max       nb_row_max_neon
#define nb_exp_sum       nb_exp_sum_neon

#include "kern/misc_body.inc"
