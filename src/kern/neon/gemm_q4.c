/* gemm_q4.c - 4-bit weights times A16 or A8 activations with smlal and 16-bit partial sums.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Products of codes and activation bytes
 * are at most 15*128, so 16 of them (8 steps) stay below 30720 and fit 16 bits. Source: spec kernels 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

/* Four rows, steps of 8 inputs: acc[token][plane][rows 0-1, rows 2-3] in pairs of inputs. */
typedef int32x4_t sums[4][2][2];

NB_INLINE void steps(sums acc, const unsigned char *b, size_t g, const int8_t *const plane[2], const int mr, const int np, size_t n)
{
    int16x8_t s[4][2][2];

    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int p = 0; p < np; p++)
            s[i][p][0] = s[i][p][1] = vdupq_n_s16(0);
    }
    for (size_t t = 0; t < n; t++) {
        const uint8x16_t q = vld1q_u8(b + 256 * t);
        const int8x16_t lo = nb_low(q), hi = nb_high(q);

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            NB_UNROLL
            for (int p = 0; p < np; p++) {
                const int8x16_t x0 = nb_quad(plane[p] + (size_t)i * g + 8 * t), x1 = nb_quad(plane[p] + (size_t)i * g + 8 * t + 4);
                s[i][p][0] = vmlal_s8(vmlal_s8(s[i][p][0], vget_low_s8(lo), vget_low_s8(x0)), vget_low_s8(hi), vget_low_s8(x1));
                s[i][p][1] = vmlal_high_s8(vmlal_high_s8(s[i][p][1], lo, x0), hi, x1);
            }
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int p = 0; p < np; p++) {
            acc[i][p][0] = vpadalq_s16(acc[i][p][0], s[i][p][0]);
            acc[i][p][1] = vpadalq_s16(acc[i][p][1], s[i][p][1]);
        }
    }
}

/* mr tokens of np planes from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. The block dist ahead is
 * prefetched. */
NB_INLINE void tile_of(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const int np,
                       size_t dist)
{
    const size_t g = w->g;

    for (size_t off = 0; dist && off < w->block_bytes; off += 64)
        __builtin_prefetch(b + dist + off);
    for (size_t j = 0; j < NB_STRIP / 4; j++) {
        sums acc;

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            NB_UNROLL
            for (int p = 0; p < np; p++)
                acc[i][p][0] = acc[i][p][1] = vdupq_n_s32(0);
        }
        for (size_t k = 0; k < g; k += 64) {
            const int8_t *const plane[2] = { a->hi + at * g + k, np == 2 ? a->lo + at * g + k : NULL };
            steps(acc, b + 32 * k + 16 * j, g, plane, mr, np, (g - k < 64 ? g - k : 64) / 8);
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            int32x4_t v = vpaddq_s32(acc[i][0][0], acc[i][0][1]);
            if (np == 2)
                v = nb_planes(v, vpaddq_s32(acc[i][1][0], acc[i][1][1]));
            nb_finish4(t + i * NB_STRIP, v, w, b, j, a->sum[at + (size_t)i], a->step[at + (size_t)i], 0);
        }
    }
}

#define GEMM_A16 nb_gemm_q4_neon
#define GEMM_A8  nb_gemm_q4_a8_neon
#include "kern/neon/gemm_neon.inc"
