/* attn_size.c - scratch sizes of the attention kernels, the same for every tier. */
#include "kern/attn.h"

size_t nb_kv_head_bytes(size_t d, nb_dtype t)
{
    const size_t scales = t == NB_DT_I8 ? NB_PAGE * sizeof(float) : 0;

    return NB_PAGE * d * (nb_dtype_info(t)->bits / 8) + scales;
}

/* Per row of a block: O of the tile and of the total, S of a sub-tile, max and sum of both. Once: K or V of two pages. */
size_t nb_attn_scratch(size_t m, size_t r, size_t d)
{
    const size_t rows = nb_att_min(m * r, NB_ATT_ROWS);

    return rows * (2 * nb_att_ldo(d) + NB_ATT_SUB + 4) + NB_ATT_SUB * nb_att_ldo(d) + 64;
}

size_t nb_attn_partial(size_t rows, size_t d)
{
    return (rows * (nb_att_ldo(d) + 2) + 15) / 16 * 16;
}
