/* gemm_q8.c - 8-bit weights times A16 or A8 activations with smull and sadalp: the sum of two products may not fit 16 bits.
 *
 * Codes are taken less 128, as signed bytes, and zeros likewise, which leaves every difference of the formula of
 * scalar/gemm_q4.c what it is. Source: spec kernels 2, 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

/* mr tokens of np planes from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. */
NB_INLINE void tile_of(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const int np,
                       size_t dist)
{
    const size_t g = w->g;
    const int8_t *const plane[2] = { a->hi + at * g, np == 2 ? a->lo + at * g : NULL };

    for (size_t off = 0; dist && off < w->block_bytes; off += 64)
        __builtin_prefetch(b + dist + off);
    for (size_t j = 0; j < NB_STRIP / 4; j++) {
        int32x4_t acc[4][2][2];

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            NB_UNROLL
            for (int p = 0; p < np; p++)
                acc[i][p][0] = acc[i][p][1] = vdupq_n_s32(0);
        }
        for (size_t k = 0; k < g; k += 4) {
            const int8x16_t c = nb_less_128(vld1q_u8(b + 64 * k + 16 * j));

            NB_UNROLL
            for (int i = 0; i < mr; i++) {
                NB_UNROLL
                for (int p = 0; p < np; p++) {
                    const int8x16_t x = nb_quad(plane[p] + (size_t)i * g + k);
                    acc[i][p][0] = vpadalq_s16(acc[i][p][0], vmull_s8(vget_low_s8(c), vget_low_s8(x)));
                    acc[i][p][1] = vpadalq_s16(acc[i][p][1], vmull_high_s8(c, x));
                }
            }
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            int32x4_t v = vpaddq_s32(acc[i][0][0], acc[i][0][1]);
            if (np == 2)
                v = nb_planes(v, vpaddq_s32(acc[i][1][0], acc[i][1][1]));
            nb_finish4(t + i * NB_STRIP, v, w, b, j, a->sum[at + (size_t)i], a->step[at + (size_t)i], 128);
        }
    }
}

#define GEMM_A16 nb_gemm_q8_neon
#define GEMM_A8  nb_gemm_q8_a8_neon
#include "kern/neon/gemm_neon.inc"
