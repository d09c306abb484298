/* misc.c - norms, rotations and activations compiled for AVX2 and FMA. */
#include "kern/avx2/avx2.h"

#define nb_rmsnorm       nb_rmsnorm_avx2
#define nb_layernorm     nb_layernorm_avx2
#define nb_rope_half     nb_rope_half_avx2
#define nb_rope_pair     nb_rope_pair_avx2
#define nb_silu_mul      nb_silu_mul_avx2
#define nb_gelu_tanh_mul nb_gelu_tanh_mul_avx2
#define nb_gelu_erf_mul  nb_gelu_erf_mul_avx2
#define nb_add           nb_add_avx2
#define nb_axpy          nb_axpy_avx2
#define nb_softcap       nb_softcap_avx2
#define nb_row_max       nb_row_max_avx2
#define nb_exp_sum       nb_exp_sum_avx2

#include "kern/misc_body.inc"
