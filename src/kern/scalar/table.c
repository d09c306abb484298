/* table.c - the scalar table: runs everywhere, defines every bit. */
#include "kern/scalar/scalar.h"

const nb_kern nb_kern_scalar = {
    .name = "scalar",
    .need = 0,
    .pack_q4 = nb_pack_q4_scalar,
    .act_a16 = nb_act_a16_scalar,
    .gemm_q4 = nb_gemm_q4_scalar,
    .gemm_q4_f32 = nb_gemm_q4_f32_scalar,
    .read_probe = nb_read_probe_scalar,
};
