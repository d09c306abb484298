/* misc.c - norms, rotations and activations for the baseline of the machine: the definition. */
#include "kern/scalar/scalar.h"

#define nb_rmsnorm       nb_rmsnorm_scalar
#define nb_layernorm     nb_layernorm_scalar
#define nb_rope_half     nb_rope_half_scalar
#define nb_rope_pair     nb_rope_pair_scalar
#define nb_silu_mul      nb_silu_mul_scalar
#define nb_gelu_tanh_mul nb_gelu_tanh_mul_scalar
#define nb_gelu_erf_mul  nb_gelu_erf_mul_scalar
#define nb_add           nb_add_scalar
#define nb_axpy          nb_axpy_scalar
#define nb_softcap       nb_softcap_scalar
#define nb_row_max       nb_row_max_scalar
#define nb_exp_sum       nb_exp_sum_scalar

#include "kern/misc_body.inc"
