/* round.h - the three small roundings every grid is made of. All inline, all keep NaN. */
#ifndef NB_SOLVE_ROUND_H
#define NB_SOLVE_ROUND_H

#include <stddef.h>

#include "base/bits.h"
#include "base/wide.h"
#include "tensor/dtype.h"

/* Round half to even without a call: adding 1.5 * 2^23 leaves no fraction bits. The clamp keeps the sum in range; codes
 * are clamped to 0..255 afterwards, so it never shows. */
static inline float nb_rne(float x)
{
    const float lim = 4194304.0f, magic = 12582912.0f;

    x = x < -lim ? -lim : x;
    x = x > lim ? lim : x;
    return (x + magic) - magic;
}

static inline float nb_clampf(float x, float lo, float hi)
{
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

/* The value that comes back after storing v as F16 or BF16; v itself for any other type. */
static inline float nb_stored_f32(float v, nb_dtype t)
{
    if (t == NB_DT_F16)
        return nb_f16_to_f32(nb_f32_to_f16(v));
    return t == NB_DT_BF16 ? nb_bf16_to_f32(nb_f32_to_bf16(v)) : v;
}

#endif
