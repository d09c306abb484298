/* vec.h - the few vector operations that kern/tile.inc and kern/attn_body.inc are written in, on two registers of 4 lanes, and
 * their tile sizes. */
#ifndef NB_KERN_NEON_VEC_H
#define NB_KERN_NEON_VEC_H

#include <arm_neon.h>

#include "kern/kern.h"

#define NB_FORCE static inline __attribute__((always_inline))
#define NB_APART __attribute__((noinline)) /* its loops need every register */

enum {
    VL = 8,       /* floats of a pair of registers                                      */
    DENSE_MR = 6, /* dense tile: 6 tokens x 16 outputs, 24 of the 32 registers          */
    DENSE_NV = 2,
    DENSE_NV1 = 8, /* pairs of one token: a whole strip                                 */
    ATT_MR = 6,    /* attention tile: 6 query rows x 16 positions or values             */
    ATT_NV = 2,
    ATT_FEW = 2, /* rows that take 2 * ATT_NV pairs each */
    PANEL_MR = 4 /* panels: 4 rows x 2 pairs, 16 of the 32 registers */
};
typedef struct vf {
    float32x4_t a, b;
} vf;

NB_FORCE vf v_zero(void)
{
    return (vf){ vdupq_n_f32(0), vdupq_n_f32(0) };
}

NB_FORCE vf v_set1(const float *p)
{
    const float32x4_t v = vld1q_dup_f32(p);

    return (vf){ v, v };
}

NB_FORCE vf v_load(const float *p)
{
    return (vf){ vld1q_f32(p), vld1q_f32(p + 4) };
}

NB_FORCE void v_store(float *p, vf v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}

NB_FORCE vf v_add(vf x, vf y)
{
    return (vf){ vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b) };
}

NB_FORCE vf v_fma(vf x, vf y, vf z)
{
    return (vf){ vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b) };
}

/* The line of p into L1, or only into L2. */
NB_FORCE void v_prefetch(const void *p, const bool near)
{
    if (near)
        __builtin_prefetch(p, 0, 3);
    else
        __builtin_prefetch(p, 0, 2);
}

/* VL elements of type t, as f32. */
NB_FORCE vf v_widen(const unsigned char *p, const nb_dtype t)
{
    if (t == NB_DT_F32)
        return v_load((const float *)(const void *)p);
    const uint16x8_t half = vreinterpretq_u16_u8(vld1q_u8(p));
    if (t == NB_DT_F16)
        return (vf){ vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(half))), vcvt_high_f32_f16(vreinterpretq_f16_u16(half)) };
    return (vf){ vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(half, 16)) };
}

/* VL floats to f16, round to nearest even. */
NB_FORCE void v_store_f16(uint16_t *p, vf v)
{
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b)));
}

/* 8 x 8 elements: to[j*NB_PAGE + i] = element j of the row at from + i*row_bytes. */
NB_FORCE void v_turn8(const nb_dtype type, float *to, const unsigned char *from, size_t row_bytes)
{
    for (size_t i = 0; i < 8; i += 4) {
        vf r[4];
        for (size_t x = 0; x < 4; x++)
            r[x] = v_widen(from + (i + x) * row_bytes, type);
        for (size_t half = 0; half < 2; half++) {
            const float32x4_t r0 = half ? r[0].b : r[0].a, r1 = half ? r[1].b : r[1].a;
            const float32x4_t r2 = half ? r[2].b : r[2].a, r3 = half ? r[3].b : r[3].a;
            const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)), odd01 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
            const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)), odd23 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
            float *out = to + 4 * half * NB_PAGE + i;
            vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(even01, even23)));
            vst1q_f32(out + NB_PAGE, vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23)));
            vst1q_f32(out + 2 * NB_PAGE, vreinterpretq_f32_f64(vtrn2q_f64(even01, even23)));
            vst1q_f32(out + 3 * NB_PAGE, vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23)));
        }
    }
}

/* Doubles, half as many: for panels. */
typedef struct vd {
    float64x2_t a, b;
} vd;

NB_FORCE vd vd_zero(void)
{
    return (vd){ vdupq_n_f64(0), vdupq_n_f64(0) };
}

NB_FORCE vd vd_set1(const double *p)
{
    const float64x2_t v = vld1q_dup_f64(p);

    return (vd){ v, v };
}

NB_FORCE vd vd_load(const double *p)
{
    return (vd){ vld1q_f64(p), vld1q_f64(p + 2) };
}

NB_FORCE void vd_store(double *p, vd v)
{
    vst1q_f64(p, v.a);
    vst1q_f64(p + 2, v.b);
}

NB_FORCE vd vd_fma(vd x, vd y, vd z)
{
    return (vd){ vfmaq_f64(z.a, x.a, y.a), vfmaq_f64(z.b, x.b, y.b) };
}

#endif
