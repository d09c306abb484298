/* table.c - the table for AVX2 with FMA and F16C. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h"
#include "kern/scalar/scalar.h"

const nb_kern nb_kern_avx2 = {
    .name = "avx2",
    .need = NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C,
    .pack_q4 = nb_pack_q4_avx2,
    .act_a16 = nb_act_a16_avx2,
    .gemm_q4 = nb_gemm_q4_avx2,
    .act_a8 = nb_act_a8_avx2,
    .gemm_q4_a8 = nb_gemm_q4_a8_avx2,
    .gemm_q4_f32 = nb_gemm_q4_f32_avx2,
    .pack_q8 = nb_pack_q8_scalar,
    .gemm_q8 = nb_gemm_q8_avx2,
    .gemm_q8_a8 = nb_gemm_q8_a8_avx2,
    .gemm_q8_f32 = nb_gemm_q8_f32_avx2,
    .pack_dense = nb_pack_dense_scalar,
    .gemm_dense = nb_gemm_dense_avx2,
    .row_dense = nb_row_dense_scalar,
    .kv_put = nb_kv_put_avx2,
    .attn = nb_attn_avx2,
    .attn_part = nb_attn_part_avx2,
    .attn_merge = nb_attn_merge_avx2,
    .rmsnorm = nb_rmsnorm_avx2,
    .layernorm = nb_layernorm_avx2,
    .rope_half = nb_rope_half_avx2,
    .rope_pair = nb_rope_pair_avx2,
    .silu_mul = nb_silu_mul_avx2,
    .gelu_tanh_mul = nb_gelu_tanh_mul_avx2,
    .gelu_erf_mul = nb_gelu_erf_mul_avx2,
    .add = nb_add_avx2,
    .axpy = nb_axpy_avx2,
    .softcap = nb_softcap_avx2,
    .row_max = nb_row_max_avx2,
    .exp_sum = nb_exp_sum_avx2,
    .read_probe = nb_read_probe_avx2,
};
