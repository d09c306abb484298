/* gemm_q4.c - 4-bit weights times A16 or A8 activations with sdot: codes are valid signed bytes, and one register of 16 activations
 * serves four quads by its lanes.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 5 - 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neondot/neondot.h"

/* acc[token][plane][row register] += quad `lane` of x times codes c. The lane is part of the instruction. */
#define DOTS(c, lane)                                                                                                                      \
    NB_UNROLL                                                                                                                              \
    for (int i = 0; i < mr; i++) {                                                                                                         \
        NB_UNROLL                                                                                                                          \
        for (int p = 0; p < np; p++) {                                                                                                     \
            NB_UNROLL                                                                                                                      \
            for (int j = 0; j < nr; j++)                                                                                                   \
                acc[i][p][j] = vdotq_laneq_s32(acc[i][p][j], (c)[j], x[i][p], (lane));                                                     \
        }                                                                                                                                  \
    }

/* 4 * nr rows of mr tokens: one set of sums for each plane. */
NB_INLINE void rows(const unsigned char *b, size_t g, const int8_t *hi, const int8_t *lo, int32x4_t out[4][8], const int mr, const int np,
                    const int nr)
{
    int32x4_t acc[4][2][8];
    int8x16_t x[4][2];

    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int p = 0; p < np; p++) {
            NB_UNROLL
            for (int j = 0; j < nr; j++)
                acc[i][p][j] = vdupq_n_s32(0);
        }
    }
    for (size_t k = 0; k < g; k += 16, b += 512) {
        int8x16_t low[8], high[8];

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            NB_UNROLL
            for (int p = 0; p < np; p++)
                x[i][p] = nb_16(p ? lo : hi, (size_t)i * g + k, g - k);
        }
        NB_UNROLL
        for (int j = 0; j < nr; j++) {
            const uint8x16_t q = vld1q_u8(b + 16 * j);
            low[j] = nb_low(q);
            high[j] = nb_high(q);
        }
        DOTS(low, 0)
        DOTS(high, 1)
        if (g - k < 16)
            break;
        NB_UNROLL
        for (int j = 0; j < nr; j++) {
            const uint8x16_t q = vld1q_u8(b + 256 + 16 * j);
            low[j] = nb_low(q);
            high[j] = nb_high(q);
        }
        DOTS(low, 2)
        DOTS(high, 3)
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < nr; j++)
            out[i][j] = np == 2 ? nb_planes(acc[i][0][j], acc[i][1][j]) : acc[i][0][j];
    }
}

/* mr tokens of np planes from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. The block dist
 * ahead is prefetched. Rows at a time: as many as 16 sums hold. */
NB_INLINE void tile_of(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const int np,
                       size_t dist)
{
    const int nr = mr == 1 ? 8 : mr == 2 ? 4 : 2;
    const size_t g = w->g;

    for (size_t off = 0; dist && off < w->block_bytes; off += 64)
        __builtin_prefetch(b + dist + off);
    for (size_t j0 = 0; j0 < NB_STRIP / 4; j0 += (size_t)nr) {
        int32x4_t sum[4][8];

        rows(b + 16 * j0, g, a->hi + at * g, np == 2 ? a->lo + at * g : NULL, sum, mr, np, nr);
        NB_UNROLL
        for (int j = 0; j < nr; j++) {
            NB_UNROLL
            for (int i = 0; i < mr; i++)
                nb_finish4(t + i * NB_STRIP, sum[i][j], w, b, j0 + (size_t)j, a->sum[at + (size_t)i], a->step[at + (size_t)i], 0);
        }
    }
}

#define GEMM_A16 nb_gemm_q4_neondot
#define GEMM_A8  nb_gemm_q4_a8_neondot
#include "kern/neon/gemm_neon.inc"
