/* round.h - the three small roundings every grid is made of. All inline, all keep NaN. */
#ifndef NB_SOLVE_ROUND_H
#define NB_SOLVE_ROUND_H

#include <stddef.h>

#include "base/bits.h"
#include "tensor/dtype.h"

/* A loop compiled for wider vectors too, chosen when the program is loaded. Same bits: no sum is reordered, nothing is contracted.
 * Not where the loader or a sanitizer cannot choose that early. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define NB_WIDE
#endif
#endif
#if !defined(NB_WIDE) && defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define NB_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#ifndef NB_WIDE
#define NB_WIDE
#endif

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
