/* gemm_q4_f32.c - 4-bit and 8-bit weights times f32 activations, inputs in ascending order: lanes are outputs. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

/* Sixteen outputs of mr tokens, rows 16j .. 16j+15 of strip s. */
NB_INLINE void rows16(const nb_q4 *w, const float *x, size_t ldx, float *y, size_t ldy, size_t s, size_t j, const int mr, const int bits)
{
    const uint32x4_t mask = vdupq_n_u32((1u << bits) - 1);
    float32x4_t sum[4][4];

    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int v = 0; v < 4; v++)
            sum[i][v] = vdupq_n_f32(0);
    }
    for (size_t k = 0; k < w->k; k += w->g) {
        const unsigned char *b = nb_q4_block(w, s, k / w->g);
        const size_t n = nb_q4_valid(w->k, w->g, k / w->g);
        float32x4_t scale[4];
        int32x4_t zero[4];

        NB_UNROLL
        for (size_t v = 0; v < 4; v++) {
            scale[v] = nb_scales4(b + nb_q4_scales_at(w), w->wide, 4 * j + v);
            zero[v] = nb_zeros4(b + nb_q4_zeros_at(w), 4 * j + v, 0);
        }
        for (size_t c = 0; c < n; c++) {
            const unsigned char *p = b + c * (size_t)bits / 32 * 256 + 64 * j;
            const int32x4_t shift = vdupq_n_s32(-(int)(bits == 8 ? c % 4 * 8 : c % 4 * 8 + c % 8 / 4 * 4));
            const size_t in = w->perm ? w->perm[k + c] : k + c;

            NB_UNROLL
            for (int v = 0; v < 4; v++) {
                const uint32x4_t word = vreinterpretq_u32_u8(vld1q_u8(p + 16 * v));
                const int32x4_t q = vreinterpretq_s32_u32(vandq_u32(vshlq_u32(word, shift), mask));
                const float32x4_t f = vmulq_f32(vcvtq_f32_s32(vsubq_s32(q, zero[v])), scale[v]);
                NB_UNROLL
                for (int i = 0; i < mr; i++)
                    sum[i][v] = vfmaq_n_f32(sum[i][v], f, x[(size_t)i * ldx + in]);
            }
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int v = 0; v < 4; v++)
            vst1q_f32(y + (size_t)i * ldy + s * NB_STRIP + 16 * j + 4 * (size_t)v, sum[i][v]);
    }
}

NB_INLINE void gemm_f32(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1, const int bits)
{
    for (size_t s = s0; s < s1; s++)
        for (size_t j = 0; j < 4; j++) {
            size_t i = 0;

            for (; i + 4 <= m; i += 4)
                rows16(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 4, bits);
            for (; i < m; i++)
                rows16(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 1, bits);
        }
}

void nb_gemm_q4_f32_neon(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 4);
}

void nb_gemm_q8_f32_neon(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 8);
}
