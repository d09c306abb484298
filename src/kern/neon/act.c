/* act.c - A16 and A8 activations, 8 inputs at a time. Defined by scalar/act.c: one division, one multiply, round to even. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

/* Inputs k .. k+7 of which n (>= 1) exist, others 0. */
NB_INLINE void load8(float32x4_t v[2], const float *x, const uint32_t *perm, size_t k, size_t n)
{
    float copy[8] = { 0 };
    const float *from = x + k;

    if (perm || n < 8) {
        for (size_t i = 0; i < n && i < 8; i++)
            copy[i] = x[perm ? perm[k + i] : k + i];
        from = copy;
    }
    v[0] = vld1q_f32(from);
    v[1] = vld1q_f32(from + 4);
}

/* The low byte of every lane, in order. */
NB_INLINE void store_bytes(int8_t *out, int32x4_t a, int32x4_t b)
{
    vst1_s8(out, vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))));
}

NB_INLINE void quantize(nb_act *a, size_t i, size_t grp, const float *x, const uint32_t *perm, const bool a8)
{
    const float most = a8 ? 127.0f : 32512.0f;
    const size_t g = a->g, k0 = grp * g, n = nb_q4_valid(a->k, g, grp), at = grp * a->m + i;
    int8_t *hi = a->hi + at * g, *lo = a8 ? NULL : a->lo + at * g;
    uint32x4_t top = vdupq_n_u32(0);
    int32x4_t sum = vdupq_n_s32(0);
    float32x4_t v[2];

    for (size_t j = 0; j < n; j += 8) {
        load8(v, x, perm, k0 + j, n - j);
        for (int h = 0; h < 2; h++)
            top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(v[h]), vdupq_n_u32(0x7fffffffu)));
    }
    const uint32_t bits = vmaxvq_u32(top);
    const float max = nb_f32_from_bits(bits), inv = most / max;
    const bool finite = bits < 0x7f800000u, zero = !finite || inv > 3.4028235e38f;

    for (size_t j = 0; j < g; j += 8) {
        int32x4_t q[2] = { vdupq_n_s32(0), vdupq_n_s32(0) }, h[2];

        if (j < n && !zero) {
            load8(v, x, perm, k0 + j, n - j);
            q[0] = vcvtnq_s32_f32(vmulq_n_f32(v[0], inv));
            q[1] = vcvtnq_s32_f32(vmulq_n_f32(v[1], inv));
        }
        for (int e = 0; e < 2; e++) {
            h[e] = a8 ? q[e] : vshrq_n_s32(vaddq_s32(q[e], vdupq_n_s32(128)), 8);
            sum = vaddq_s32(sum, q[e]);
        }
        store_bytes(hi + j, h[0], h[1]);
        if (!a8)
            store_bytes(lo + j, q[0], q[1]); /* v - 256*hi is the low byte, signed */
    }
    a->step[at] = !finite ? nb_f32_from_bits(0x7fc00000u) : zero ? 0.0f : max / most;
    a->sum[at] = vaddvq_s32(sum);
}

void nb_act_a16_neon(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, false);
}

void nb_act_a8_neon(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, true);
}
