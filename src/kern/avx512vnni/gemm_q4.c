/* gemm_q4.c - 4-bit weights times A16 or A8 activations with vpdpbusd: one token at memory speed, more in tiles of 4 x 64.
 *
 * Both forms compute the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 5, 6. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

enum {
    CHUNK = 64,   /* tokens that share one pass over a strip; their sums fill 16 KB      */
    AHEAD = 4096, /* prefetch at least this far ahead, in whole blocks; one token: to L2, */
    NEAR = 1024   /* and this far ahead from there to L1                                  */
};

/* Distance of prefetch: a block of 128, several smaller ones. The slack of nb_q4 covers it. */
static size_t ahead(const nb_q4 *w)
{
    return (AHEAD + w->block_bytes - 1) / w->block_bytes * w->block_bytes;
}

/* Weights are asked for twice: on Emerald Rapids that reaches 0.98 of the read from memory, L1 alone 0.88, L2 alone 0.95.
 *
 * One token, one block: total[4] = sum of q*v. Not inlined, so that all registers are free for its chains: 16, or 8 for A8. High
 * nibbles stay in place (worth 16q), which saves a shift and gives twice as many chains; `next` is where this block's place is
 * found one step ahead in memory. */
NB_INLINE void block_one(const unsigned char *b, const unsigned char *next, size_t g, const int8_t *xh, const int8_t *xl, __m512i total[4],
                         const bool a8)
{
    const __m512i mlo = _mm512_set1_epi8(0x0f), mhi = _mm512_set1_epi8((char)0xf0);
    __m512i h0[4], h1[4], l0[4], l1[4];

    NB_UNROLL
    for (int j = 0; j < 4; j++)
        h0[j] = h1[j] = l0[j] = l1[j] = _mm512_setzero_si512();
    for (size_t k = 0; k < g; k += 8, b += 256, next += 256) {
        const __m512i xh0 = nb_quad(xh + k), xh1 = nb_quad(xh + k + 4);
        const __m512i xl0 = a8 ? xh0 : nb_quad(xl + k), xl1 = a8 ? xh1 : nb_quad(xl + k + 4);

        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512i q = _mm512_load_si512(b + 64 * j);
            const __m512i lo = _mm512_and_si512(q, mlo), hi = _mm512_and_si512(q, mhi);

            _mm_prefetch(next + 64 * j, _MM_HINT_T1);
            _mm_prefetch(b + NEAR + 64 * j, _MM_HINT_T0);
            h0[j] = nb_dot4(h0[j], lo, xh0);
            h1[j] = nb_dot4(h1[j], hi, xh1);
            if (a8)
                continue;
            l0[j] = nb_dot4(l0[j], lo, xl0);
            l1[j] = nb_dot4(l1[j], hi, xl1);
        }
    }
    NB_UNROLL
    for (int j = 0; j < 4; j++) { /* h1 and l1 are multiples of 16: shifts are exact */
        if (a8) {
            total[j] = _mm512_add_epi32(h0[j], _mm512_srai_epi32(h1[j], 4));
            continue;
        }
        const __m512i h = _mm512_add_epi32(_mm512_slli_epi32(h0[j], 8), _mm512_slli_epi32(h1[j], 4));
        const __m512i l = _mm512_add_epi32(l0[j], _mm512_srai_epi32(l1[j], 4));

        total[j] = _mm512_add_epi32(h, l);
    }
}

static __attribute__((noinline)) void block_one_a16(const unsigned char *b, const unsigned char *next, size_t g, const int8_t *xh,
                                                    const int8_t *xl, __m512i total[4])
{
    block_one(b, next, g, xh, xl, total, false);
}

static __attribute__((noinline)) void block_one_a8(const unsigned char *b, const unsigned char *next, size_t g, const int8_t *xh,
                                                   __m512i total[4])
{
    block_one(b, next, g, xh, NULL, total, true);
}

NB_INLINE void one_token(const nb_q4 *w, const nb_act *a, float *y, size_t s0, size_t s1, const bool a8)
{
    const size_t g = w->g, dist = ahead(w), scales = nb_q4_scales_at(w), zeros = nb_q4_zeros_at(w);
    const unsigned char *b = nb_q4_block(w, s0, 0);

    for (size_t s = s0; s < s1; s++) {
        __m512 sum[4];

        NB_UNROLL
        for (int j = 0; j < 4; j++)
            sum[j] = _mm512_setzero_ps();
        for (size_t grp = 0; grp < w->n_groups; grp++, b += w->block_bytes) {
            __m512i total[4];

            if (a8)
                block_one_a8(b, b + dist, g, a->hi + grp * g, total);
            else
                block_one_a16(b, b + dist, g, a->hi + grp * g, a->lo + grp * g, total);
            for (size_t off = scales; off < w->block_bytes; off += 64)
                _mm_prefetch(b + dist + off, _MM_HINT_T1);
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                sum[j] =
                    nb_finish16(total[j], nb_zeros16(b + zeros, j), a->sum[grp], nb_scales16(b + scales, w->wide, j), a->step[grp], sum[j]);
        }
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(y + s * NB_STRIP + 16 * j, sum[j]);
    }
}

/* acc[i][j] += codes of the block times one plane of mr tokens, g bytes apart. */
NB_INLINE void tile_plane(__m512i acc[4][4], const unsigned char *b, size_t g, const int8_t *x, const int mr, const bool first, size_t dist)
{
    const __m512i mask = _mm512_set1_epi8(0x0f);

    for (size_t k = 0; k < g; k += 8, b += 256, x += 8) {
        __m512i q[4], c[4];

        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            q[j] = _mm512_load_si512(b + 64 * j);
            c[j] = _mm512_and_si512(q[j], mask);
            if (first)
                _mm_prefetch(b + dist + 64 * j, _MM_HINT_T0);
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512i v = nb_quad(x + i * g);
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                acc[i][j] = nb_dot4(acc[i][j], c[j], v);
        }
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            c[j] = _mm512_and_si512(_mm512_srli_epi16(q[j], 4), mask);
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512i v = nb_quad(x + i * g + 4);
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                acc[i][j] = nb_dot4(acc[i][j], c[j], v);
        }
    }
}

/* t[i][0..63] of mr tokens from index `at` of the activation arrays gets the group's part of the sum. */
NB_INLINE void finish(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, __m512i acc[4][4], const int mr,
                      const bool a8)
{
    const int32_t *sum = a->sum + at;
    const float *step = a->step + at;
    const unsigned char *scales = b + nb_q4_scales_at(w), *zeros = b + nb_q4_zeros_at(w);

    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512 s = nb_scales16(scales, w->wide, j);
        const __m512i z = nb_zeros16(zeros, j);

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            float *out = t + i * NB_STRIP + 16 * j;
            if (a8)
                _mm512_store_ps(out, nb_scaled16(nb_less(acc[i][j], z, sum[i]), s, step[i], _mm512_load_ps(out)));
            else
                _mm512_store_ps(out, nb_finish16(acc[i][j], z, sum[i], s, step[i], _mm512_load_ps(out)));
        }
    }
}

/* Up to four tokens, one block: one set of accumulators serves both planes. The first pass prefetches dist ahead,
 * which costs nothing when the line is there. */
NB_INLINE void tile(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                    size_t dist, const bool a8)
{
    const size_t g = w->g;
    __m512i acc[4][4];

    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_setzero_si512();
    }
    tile_plane(acc, b, g, a->hi + at * g, mr, first, dist);
    if (!a8) {
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                acc[i][j] = _mm512_slli_epi32(acc[i][j], 8);
        }
        tile_plane(acc, b, g, a->lo + at * g, mr, false, 0);
    }
    finish(w, b, a, at, t, acc, mr, a8);
}

/* One or two tokens of A16: registers for both planes, so codes are unpacked once. acc[i] is the high, acc[2+i] the low plane. */
NB_INLINE void narrow_tile(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                           size_t dist)
{
    const __m512i mask = _mm512_set1_epi8(0x0f);
    const size_t g = w->g;
    const int8_t *xh = a->hi + at * g, *xl = a->lo + at * g;
    const unsigned char *p = b;
    __m512i acc[4][4];

    NB_UNROLL
    for (int i = 0; i < 4; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_setzero_si512();
    }
    for (size_t k = 0; k < g; k += 8, p += 256, xh += 8, xl += 8) {
        NB_UNROLL
        for (int half = 0; half < 2; half++) {
            __m512i c[4];

            NB_UNROLL
            for (int j = 0; j < 4; j++) {
                const __m512i q = _mm512_load_si512(p + 64 * j);
                c[j] = _mm512_and_si512(half ? _mm512_srli_epi16(q, 4) : q, mask);
                if (!half && first)
                    _mm_prefetch(p + dist + 64 * j, _MM_HINT_T0);
            }
            NB_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m512i h = nb_quad(xh + i * g + 4 * half), l = nb_quad(xl + i * g + 4 * half);
                NB_UNROLL
                for (int j = 0; j < 4; j++) {
                    acc[i][j] = nb_dot4(acc[i][j], c[j], h);
                    acc[2 + i][j] = nb_dot4(acc[2 + i][j], c[j], l);
                }
            }
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_add_epi32(_mm512_slli_epi32(acc[i][j], 8), acc[2 + i][j]);
    }
    finish(w, b, a, at, t, acc, mr, false);
}

#define GEMM    nb_gemm_q4_avx512vnni
#define NAME(x) x##_a16
#define TILE(w, b, a, at, t, mr, first, dist)                                                                                              \
    mr > 2 ? tile(w, b, a, at, t, mr, first, dist, false) : narrow_tile(w, b, a, at, t, mr, first, dist)
#define ONE_TOKEN(w, a, y, s0, s1) one_token(w, a, y, s0, s1, false)
#include "kern/gemm_body.inc"

#define GEMM                                  nb_gemm_q4_a8_avx512vnni
#define NAME(x)                               x##_a8
#define TILE(w, b, a, at, t, mr, first, dist) tile(w, b, a, at, t, mr, first, dist, true)
#define ONE_TOKEN(w, a, y, s0, s1)            one_token(w, a, y, s0, s1, true)
#include "kern/gemm_body.inc"
