/* gemm_q8.c - 8-bit weights times A16 or A8 activations with vpmaddwd: vpmaddubsw saturates with bytes above 128, so codes are widened to
 * 16 bits, and the values, whose planes are put together again, take part whole.
 *
 * A register of codes holds quads q0 q1 q2 q3 of eight outputs. Its even bytes make 16-bit pairs (q0, q2), its odd bytes (q1, q3); the
 * values lie as pairs in the same order. Every product and sum fits int32 (spec kernels 3), so the result is the exact integer of the
 * formula of scalar/gemm_q4.c. Source: spec kernels 2, 7. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

enum {
    CHUNK = 64,  /* tokens that share one pass over a strip; their sums fill 16 KB */
    AHEAD = 2560 /* prefetch of one token */
};

static size_t ahead(const nb_q8 *w)
{
    return w->block_bytes;
}

/* The values of a token, by quad: (v0, v2) and (v1, v3). */
typedef struct pairs {
    _Alignas(32) int16_t even[NB_MAX_G / 2], odd[NB_MAX_G / 2];
} pairs;

NB_INLINE void pair_up(pairs *v, const int8_t *xh, const int8_t *xl, size_t g, const bool a8)
{
    size_t k = 0;

    for (; k + 32 <= g; k += 32) {
        const __m256i l = nb_load32((a8 ? xh : xl) + k);
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(l, 8), 8), odd = _mm256_srai_epi16(l, 8);

        if (!a8) {
            const __m256i h = nb_load32(xh + k);
            even = _mm256_add_epi16(even, _mm256_slli_epi16(h, 8));
            odd = _mm256_add_epi16(odd, _mm256_and_si256(h, _mm256_set1_epi16((short)0xff00)));
        }
        _mm256_store_si256((void *)(v->even + k / 2), even);
        _mm256_store_si256((void *)(v->odd + k / 2), odd);
    }
    for (; k < g; k += 2) {
        v->even[k / 2] = (int16_t)(a8 ? xh[k] : 256 * xh[k] + xl[k]);
        v->odd[k / 2] = (int16_t)(a8 ? xh[k + 1] : 256 * xh[k + 1] + xl[k + 1]);
    }
}

NB_INLINE __m256i quad_pair(const int16_t *v, size_t k)
{
    return nb_quad((const int8_t *)(v + k / 2));
}

/* One token, one block, in the order of memory: all 64 outputs in eight registers. */
NB_INLINE void one(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const pairs *v)
{
    const unsigned char *p = b;
    __m256i acc[8];

    NB_UNROLL
    for (int j = 0; j < 8; j++)
        acc[j] = _mm256_setzero_si256();
    for (size_t k = 0; k < w->g; k += 4, p += 256) {
        const __m256i even = quad_pair(v->even, k), odd = quad_pair(v->odd, k), mask = _mm256_set1_epi16(0x00ff);

        NB_UNROLL
        for (int j = 0; j < 8; j++) {
            const __m256i q = nb_load32(p + 32 * j);

            if (j % 2 == 0)
                _mm_prefetch((const char *)p + AHEAD + 32 * j, _MM_HINT_T0);
            acc[j] = nb_dot2w(acc[j], _mm256_and_si256(q, mask), even);
            acc[j] = nb_dot2w(acc[j], _mm256_srli_epi16(q, 8), odd);
        }
    }
    for (size_t off = 64 * w->g; off < w->block_bytes; off += 64)
        _mm_prefetch((const char *)b + AHEAD + off, _MM_HINT_T0);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i pair[4][2] = { { acc[2 * j], acc[2 * j + 1] } };
        nb_finish_pair(w, b, a, at, t, pair, 1, j);
    }
}

/* More tokens: 16 outputs at a time. The block dist ahead is prefetched first. */
NB_INLINE void several(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                       size_t dist, const pairs *v)
{
    const __m256i mask = _mm256_set1_epi16(0x00ff);

    for (size_t off = 0; first && off < w->block_bytes; off += 64)
        _mm_prefetch((const char *)b + dist + off, _MM_HINT_T0);
    for (int p = 0; p < 4; p++) {
        const unsigned char *from = b + 64 * p;
        __m256i acc[4][2];

        NB_UNROLL
        for (int i = 0; i < mr; i++)
            acc[i][0] = acc[i][1] = _mm256_setzero_si256();
        for (size_t k = 0; k < w->g; k += 4, from += 256) {
            NB_UNROLL
            for (int half = 0; half < 2; half++) {
                __m256i c[2];

                NB_UNROLL
                for (int j = 0; j < 2; j++) {
                    c[j] = nb_load32(from + 32 * j);
                    c[j] = half ? _mm256_srli_epi16(c[j], 8) : _mm256_and_si256(c[j], mask);
                }
                NB_UNROLL
                for (int i = 0; i < mr; i++) {
                    const __m256i x = quad_pair(half ? v[i].odd : v[i].even, k);

                    acc[i][0] = nb_dot2w(acc[i][0], c[0], x);
                    acc[i][1] = nb_dot2w(acc[i][1], c[1], x);
                }
            }
        }
        nb_finish_pair(w, b, a, at, t, acc, mr, p);
    }
}

/* mr tokens from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. */
NB_INLINE void tile(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                    size_t dist, const bool a8)
{
    pairs v[4];

    for (int i = 0; i < mr; i++)
        pair_up(&v[i], a->hi + (at + i) * w->g, a8 ? NULL : a->lo + (at + i) * w->g, w->g, a8);
    if (mr == 1)
        one(w, b, a, at, t, v);
    else
        several(w, b, a, at, t, mr, first, dist, v);
}

#define GEMM                                  nb_gemm_q8_avx2
#define NAME(x)                               x##_a16
#define TILE(w, b, a, at, t, mr, first, dist) tile(w, b, a, at, t, mr, first, dist, false)
#include "kern/gemm_body.inc"

#define GEMM                                  nb_gemm_q8_a8_avx2
#define NAME(x)                               x##_a8
#define TILE(w, b, a, at, t, mr, first, dist) tile(w, b, a, at, t, mr, first, dist, true)
#include "kern/gemm_body.inc"
