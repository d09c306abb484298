/* tile_bytes.h - a few tokens times one block of codes that lie one byte each, in the order of 8-bit matrices: the tiles of gemm_q8.c, and
 * of gemm_q4_body.inc once it has spread its nibbles. And the end of every tile, whatever the codes were. */
#ifndef NB_KERN_AVX512VNNI_TILE_BYTES_H
#define NB_KERN_AVX512VNNI_TILE_BYTES_H

#include "kern/avx512vnni/dot_avx512vnni.h"

enum { NB_TILE_TOKENS = 4 }; /* times 64 outputs: 16 sums */

/* The codes of a block one byte each, in the order of 8-bit matrices; the line dist ahead is prefetched. */
NB_INLINE void nb_spread(const unsigned char *b, size_t g, unsigned char *to, size_t dist)
{
    const __m512i mask = _mm512_set1_epi8(0x0f);

    for (size_t k = 0; k < g; k += 8, b += 256, to += 512) {
        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512i q = _mm512_load_si512(b + 64 * j);

            _mm_prefetch(b + dist + 64 * j, _MM_HINT_T0);
            _mm512_store_si512(to + 64 * j, _mm512_and_si512(q, mask));
            _mm512_store_si512(to + 256 + 64 * j, _mm512_and_si512(_mm512_srli_epi16(q, 4), mask));
        }
    }
}

/* Asks for n tokens from index `at` of the activation arrays. Those of the next group lie a->m tokens on, where no processor looks by
 * itself. */
NB_INLINE void nb_ask_tokens(const nb_act *a, size_t at, size_t n, const bool a8)
{
    for (size_t off = 0; off < n * a->g; off += 64) {
        _mm_prefetch(a->hi + at * a->g + off, _MM_HINT_T1);
        if (!a8)
            _mm_prefetch(a->lo + at * a->g + off, _MM_HINT_T1);
    }
}

/* acc[i][j] += codes of the block times one plane of mr tokens, g bytes apart; dist > 0: the line that far ahead is prefetched. */
NB_INLINE void nb_bytes_plane(__m512i acc[NB_TILE_TOKENS][4], const unsigned char *b, size_t g, const int8_t *x, const int mr,
                              const size_t dist)
{
    for (size_t k = 0; k < g; k += 4, b += 256) {
        __m512i c[4];

        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            c[j] = _mm512_load_si512(b + 64 * j);
            if (dist > 0)
                _mm_prefetch((const char *)b + dist + 64 * j, _MM_HINT_T0);
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512i v = nb_quad(x + i * g + k);
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                acc[i][j] = nb_dot4(acc[i][j], c[j], v);
        }
    }
}

/* acc[i][j] = sum of q*v of mr tokens: one set of sums for both planes. */
NB_INLINE void nb_bytes_tile(__m512i acc[NB_TILE_TOKENS][4], const unsigned char *b, size_t g, const int8_t *xh, const int8_t *xl,
                             const int mr, const size_t dist, const bool a8)
{
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_setzero_si512();
    }
    nb_bytes_plane(acc, b, g, xh, mr, dist);
    if (a8)
        return;
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_slli_epi32(acc[i][j], 8);
    }
    nb_bytes_plane(acc, b, g, xl, mr, 0);
}

/* The end of a tile: t[i][0..63] of mr tokens from index `at` of the activation arrays gets the part of the group whose sums are acc and
 * whose scales and zeros lie in b. */
NB_INLINE void nb_tile_finish(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, __m512i acc[NB_TILE_TOKENS][4],
                              const int mr)
{
    const unsigned char *scales = b + nb_q4_scales_at(w), *zeros = b + nb_q4_zeros_at(w);
    int32_t sum[NB_TILE_TOKENS];

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i] = nb_sum_form(a->sum[at + i]);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512 s = nb_scales16(scales, w->wide, j);
        const __m512i z = nb_zero_form(nb_zeros16(zeros, j));

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            float *out = t + i * NB_STRIP + 16 * j;
            _mm512_store_ps(out, nb_scaled16(nb_less(acc[i][j], z, sum[i]), s, a->step[at + i], _mm512_load_ps(out)));
        }
    }
}

#endif
