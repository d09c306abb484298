/* dot_neon.h - the loads and the last line that the integer kernels of the Arm tiers share. */
#ifndef NB_KERN_NEON_DOT_H
#define NB_KERN_NEON_DOT_H

#include <arm_neon.h>
#include <string.h>

#include "kern/q4.h"

/* Unroll the next loop completely: an accumulator that is not indexed by constants lives in memory. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("unroll")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#endif
#define NB_INLINE static inline __attribute__((always_inline))

/* Four activation bytes in every lane. */
NB_INLINE int8x16_t nb_quad(const int8_t *p)
{
    int32_t v;

    memcpy(&v, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

/* Bytes at .. at+15 of a plane, of which `left` belong to the group: 8, the others are 0, or more. */
NB_INLINE int8x16_t nb_16(const int8_t *plane, size_t at, size_t left)
{
    return left >= 16 ? vld1q_s8(plane + at) : vcombine_s8(vld1_s8(plane + at), vdup_n_s8(0));
}

/* Codes of four rows of a 4-bit block: the first quad of a step, and the second. */
NB_INLINE int8x16_t nb_low(uint8x16_t q)
{
    return vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15)));
}

NB_INLINE int8x16_t nb_high(uint8x16_t q)
{
    return vreinterpretq_s8_u8(vshrq_n_u8(q, 4));
}

/* Codes of an 8-bit block less 128, as signed bytes. */
NB_INLINE int8x16_t nb_less_128(uint8x16_t q)
{
    return vreinterpretq_s8_u8(veorq_u8(q, vdupq_n_u8(0x80)));
}

/* Scales 4j .. 4j+3 of a block. */
NB_INLINE float32x4_t nb_scales4(const unsigned char *scales, bool wide, size_t j)
{
    if (wide)
        return vld1q_f32((const float *)(const void *)(scales + 16 * j));
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(scales + 8 * j)));
}

/* Zeros 4j .. 4j+3 of a block, less `base`. */
NB_INLINE int32x4_t nb_zeros4(const unsigned char *zeros, size_t j, int base)
{
    uint32_t v;

    memcpy(&v, zeros + 4 * j, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(v)));
    return vsubq_s32(vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide))), vdupq_n_s32(base));
}

/* The last line of the formula, for outputs 4j .. 4j+3 of a strip: out = fma(float(acc - z*sum), s*step, out). base: what was
 * taken off the codes. */
NB_INLINE void nb_finish4(float *out, int32x4_t acc, const nb_q4 *w, const unsigned char *block, size_t j, int32_t sum, float step,
                          int base)
{
    const int32x4_t d = vmlsq_n_s32(acc, nb_zeros4(block + nb_q4_zeros_at(w), j, base), sum);
    const float32x4_t s = vmulq_n_f32(nb_scales4(block + nb_q4_scales_at(w), w->wide, j), step);

    vst1q_f32(out + 4 * j, vfmaq_f32(vld1q_f32(out + 4 * j), vcvtq_f32_s32(d), s));
}

/* High plane sums and low plane sums to sums of values. */
NB_INLINE int32x4_t nb_planes(int32x4_t high, int32x4_t low)
{
    return vaddq_s32(vshlq_n_s32(high, 8), low);
}

#endif
