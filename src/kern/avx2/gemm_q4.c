/* gemm_q4.c - 4-bit weights times A16 or A8 activations with vpmaddubsw and 16-bit partial sums.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 5 - 7. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

enum {
    CHUNK = 64,  /* tokens that share one pass over a strip; their sums fill 16 KB */
    AHEAD = 4096 /* prefetch at least this far ahead, in whole blocks */
};

/* Distance of prefetch: a block of 128, several smaller ones. The slack of nb_q4 covers it. */
static size_t ahead(const nb_q4 *w)
{
    return (AHEAD + w->block_bytes - 1) / w->block_bytes * w->block_bytes;
}

/* One token, n steps of 8 inputs, all 64 outputs, in the order of memory: total += sum of q*v. n <= 4 keeps the sums in
 * 16 bits. */
NB_INLINE void steps_one(__m256i total[8], const unsigned char *b, size_t dist, const int8_t *xh, const int8_t *xl, const int n,
                         const bool a8)
{
    const __m256i mask = _mm256_set1_epi8(0x0f);

    for (int j = 0; j < 8; j += 2) { /* a cache line of every step */
        __m256i h[2], l[2];

        NB_UNROLL
        for (int i = 0; i < 2; i++)
            h[i] = l[i] = _mm256_setzero_si256();
        NB_UNROLL
        for (int t = 0; t < n; t++) {
            const unsigned char *p = b + 256 * t + 32 * j;

            _mm_prefetch((const char *)p + dist, _MM_HINT_T0);
            NB_UNROLL
            for (int i = 0; i < 2; i++) {
                const __m256i q = nb_load32(p + 32 * i);
                const __m256i lo = _mm256_and_si256(q, mask), hi = _mm256_and_si256(_mm256_srli_epi16(q, 4), mask);

                h[i] = nb_dot2(nb_dot2(h[i], lo, nb_quad(xh + 8 * t)), hi, nb_quad(xh + 8 * t + 4));
                if (!a8)
                    l[i] = nb_dot2(nb_dot2(l[i], lo, nb_quad(xl + 8 * t)), hi, nb_quad(xl + 8 * t + 4));
            }
        }
        NB_UNROLL
        for (int i = 0; i < 2; i++) {
            const __m256i v = a8 ? nb_widen(h[i], 1) : _mm256_add_epi32(nb_widen(h[i], 256), nb_widen(l[i], 1));
            total[j + i] = _mm256_add_epi32(total[j + i], v);
        }
    }
}

NB_INLINE void one_token(const nb_q4 *w, const nb_act *a, float *y, size_t s0, size_t s1, const bool a8)
{
    const size_t g = w->g, dist = ahead(w), scales = nb_q4_scales_at(w), zeros = nb_q4_zeros_at(w);
    const unsigned char *b = nb_q4_block(w, s0, 0);

    for (size_t s = s0; s < s1; s++) {
        _Alignas(32) float sum[NB_STRIP] = { 0 };

        for (size_t grp = 0; grp < w->n_groups; grp++, b += w->block_bytes) {
            const int8_t *xh = a->hi + grp * g, *xl = a8 ? xh : a->lo + grp * g;
            __m256i total[8];
            size_t k = 0;

            memset(total, 0, sizeof total);
            for (; k + 32 <= g; k += 32)
                steps_one(total, b + 32 * k, dist, xh + k, xl + k, 4, a8);
            for (; k < g; k += 8)
                steps_one(total, b + 32 * k, dist, xh + k, xl + k, 1, a8);
            for (size_t off = scales; off < w->block_bytes; off += 64)
                _mm_prefetch((const char *)b + dist + off, _MM_HINT_T0);
            for (int j = 0; j < 8; j++) {
                float *out = sum + 8 * j;
                _mm256_store_ps(out, nb_finish8(total[j], nb_zeros8(b + zeros, j), a->sum[grp], nb_scales8(b + scales, w->wide, j),
                                                a->step[grp], _mm256_load_ps(out)));
            }
        }
        memcpy(y + s * NB_STRIP, sum, sizeof sum);
    }
}

/* acc[i][2] += weight times n steps of 8 inputs of one plane of mr tokens, g bytes apart, times the codes of 16 outputs. */
NB_INLINE void steps(__m256i acc[4][2], const unsigned char *b, size_t g, const int8_t *x, const int mr, const int n, const short weight)
{
    const __m256i mask = _mm256_set1_epi8(0x0f);
    __m256i sum[4][2];

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    NB_UNROLL
    for (int t = 0; t < n; t++) {
        NB_UNROLL
        for (int half = 0; half < 2; half++) {
            __m256i c[2];

            NB_UNROLL
            for (int j = 0; j < 2; j++) {
                c[j] = nb_load32(b + 256 * t + 32 * j);
                c[j] = _mm256_and_si256(half ? _mm256_srli_epi16(c[j], 4) : c[j], mask);
            }
            NB_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i v = nb_quad(x + i * g + 8 * t + 4 * half);

                sum[i][0] = nb_dot2(sum[i][0], c[0], v);
                sum[i][1] = nb_dot2(sum[i][1], c[1], v);
            }
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        acc[i][0] = _mm256_add_epi32(acc[i][0], nb_widen(sum[i][0], weight));
        acc[i][1] = _mm256_add_epi32(acc[i][1], nb_widen(sum[i][1], weight));
    }
}

/* The same of all planes. n <= 4 keeps the sums in 16 bits. */
NB_INLINE void planes(__m256i acc[4][2], const unsigned char *b, size_t g, const int8_t *xh, const int8_t *xl, const int mr, const int n,
                      const bool a8)
{
    steps(acc, b, g, xh, mr, n, a8 ? 1 : 256);
    if (!a8)
        steps(acc, b, g, xl, mr, n, 1);
}

/* mr tokens from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. The sums of 32 inputs of 16 outputs
 * are in registers; between such pieces they lie in memory. The block dist ahead is prefetched first. */
NB_INLINE void tile(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                    size_t dist, const bool a8)
{
    const size_t g = w->g;
    const int8_t *xh = a->hi + at * g, *xl = a8 ? xh : a->lo + at * g;

    for (size_t off = 0; first && off < w->block_bytes; off += 64)
        _mm_prefetch((const char *)b + dist + off, _MM_HINT_T0);
    for (int p = 0; p < 4; p++) {
        __m256i acc[4][2];
        size_t k = 0;

        for (int i = 0; i < mr; i++)
            acc[i][0] = acc[i][1] = _mm256_setzero_si256();
        for (; k + 32 <= g; k += 32)
            planes(acc, b + 64 * p + 32 * k, g, xh + k, xl + k, mr, 4, a8);
        for (; k < g; k += 8)
            planes(acc, b + 64 * p + 32 * k, g, xh + k, xl + k, mr, 1, a8);
        nb_finish_pair(w, b, a, at, t, acc, mr, p);
    }
}

#define GEMM                                  nb_gemm_q4_avx2
#define NAME(x)                               x##_a16
#define TILE(w, b, a, at, t, mr, first, dist) tile(w, b, a, at, t, mr, first, dist, false)
#define ONE_TOKEN(w, a, y, s0, s1)            one_token(w, a, y, s0, s1, false)
#include "kern/gemm_body.inc"

#define GEMM                                  nb_gemm_q4_a8_avx2
#define NAME(x)                               x##_a8
#define TILE(w, b, a, at, t, mr, first, dist) tile(w, b, a, at, t, mr, first, dist, true)
#define ONE_TOKEN(w, a, y, s0, s1)            one_token(w, a, y, s0, s1, true)
#include "kern/gemm_body.inc"
