/* q4.h - addresses inside a packed 4-bit or 8-bit matrix, shared by the kernels of every instruction set. Layout: kern.h. */
#ifndef NB_KERN_Q4_H
#define NB_KERN_Q4_H

#include <assert.h>

#include "base/bits.h"
#include "kern/kern.h"

/* Block of strip s, group grp. The blocks of a strip follow one another, and so do the strips. */
static inline unsigned char *nb_q4_block(const nb_q4 *w, size_t s, size_t grp)
{
    return w->base + (s * w->n_groups + grp) * w->block_bytes;
}

/* Offsets inside a block. Scales end where the zeros begin, so this holds for 8 bits too. */
static inline size_t nb_q4_scales_at(const nb_q4 *w)
{
    return w->block_bytes - NB_STRIP - NB_STRIP * (w->wide ? 4u : 2u);
}

static inline size_t nb_q4_zeros_at(const nb_q4 *w)
{
    return w->block_bytes - NB_STRIP;
}

/* Scale of row r (0..63) of a block. */
static inline float nb_q4_scale(const nb_q4 *w, const unsigned char *block, size_t r)
{
    const unsigned char *p = block + nb_q4_scales_at(w);

    return w->wide ? nb_f32_from_bits(nb_le32(p + 4 * r)) : nb_f16_to_f32(nb_le16(p + 2 * r));
}

/* Inputs of group grp that exist; the rest of a short last group is padding. */
static inline size_t nb_q4_valid(size_t k, size_t g, size_t grp)
{
    const size_t left = k - grp * g;

    return left < g ? left : g;
}

#endif
