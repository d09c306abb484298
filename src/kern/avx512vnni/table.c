/* table.c - the table for AVX-512 with VNNI. */
#include "base/cpu.h"
#include "kern/avx2/avx2.h" /* the packer */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/scalar/scalar.h"

const nb_kern nb_kern_avx512vnni = {
    .name = "avx512-vnni",
    .need = NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C | NB_CPU_AVX512 | NB_CPU_AVX512_VNNI,
    .pack_q4 = nb_pack_q4_avx2,
    .act_a16 = nb_act_a16_avx512vnni,
    .gemm_q4 = nb_gemm_q4_avx512vnni,
    .act_a8 = nb_act_a8_avx512vnni,
    .gemm_q4_a8 = nb_gemm_q4_a8_avx512vnni,
    .gemm_q4_f32 = nb_gemm_q4_f32_avx512vnni,
    .pack_q8 = nb_pack_q8_scalar,
    .gemm_q8 = nb_gemm_q8_avx512vnni,
    .gemm_q8_a8 = nb_gemm_q8_a8_avx512vnni,
    .gemm_q8_f32 = nb_gemm_q8_f32_avx512vnni,
    .pack_dense = nb_pack_dense_scalar,
    .gemm_dense = nb_gemm_dense_avx512vnni,
    .row_dense = nb_row_dense_scalar,
    .kv_put = nb_kv_put_avx512vnni,
    .attn = nb_attn_avx512vnni,
    .attn_part = nb_attn_part_avx512vnni,
    .attn_merge = nb_attn_merge_avx512vnni,
    .rmsnorm = nb_rmsnorm_avx512vnni,
    .layernorm = nb_layernorm_avx512vnni,
    .rope_half = nb_rope_half_avx512vnni,
    .rope_pair = nb_rope_pair_avx512vnni,
    .silu_mul = nb_silu_mul_avx512vnni,
    .gelu_tanh_mul = nb_gelu_tanh_mul_avx512vnni,
    .gelu_erf_mul = nb_gelu_erf_mul_avx512vnni,
    .add = nb_add_avx512vnni,
    .axpy = nb_axpy_avx512vnni,
    .softcap = nb_softcap_avx512vnni,
    .row_max = nb_row_max_avx512vnni,
    .exp_sum = nb_exp_sum_avx512vnni,
    .read_probe = nb_read_probe_avx512vnni,
};
