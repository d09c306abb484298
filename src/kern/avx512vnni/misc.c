/* misc.c - norms, rotations and activations compiled for AVX-512. */
#include "kern/avx512vnni/avx512vnni.h"

#define nb_rmsnorm       nb_rmsnorm_avx512vnni
#define nb_layernorm     nb_layernorm_avx512vnni
#define nb_rope_half     nb_rope_half_avx512vnni
#define nb_rope_pair     nb_rope_pair_avx512vnni
#define nb_silu_mul      nb_silu_mul_avx512vnni
#define nb_gelu_tanh_mul nb_gelu_tanh_mul_avx512vnni
#define nb_gelu_erf_mul  nb_gelu_erf_mul_avx512vnni
#define nb_add           nb_add_avx512vnni
#define nb_axpy          nb_axpy_avx512vnni
#define nb_softcap       nb_softcap_avx512vnni
#define nb_row_max       nb_row_max_avx512vnni
#define nb_exp_sum       nb_exp_sum_avx512vnni

#include "kern/misc_body.inc"
