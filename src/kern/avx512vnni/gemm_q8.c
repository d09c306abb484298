/* gemm_q8.c - 8-bit weights times A16 or A8 activations with vpdpbusd, which takes the bytes as they lie.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 2, 5, 6. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/tile_bytes.h"

enum {
    CHUNK = 64,  /* tokens that share one pass over a strip; their sums fill 16 KB */
    AHEAD = 2560 /* prefetch this far ahead: 0.90 to 0.98 of read speed for one token, against 0.63 to 0.84 with 4096 */
};

static size_t ahead(const nb_q8 *w)
{
    (void)w;
    return AHEAD;
}

/* One or two tokens of A16, one block: both planes in registers, so that each line is read once. acc[i] is the high, acc[2 + i] the
 * low plane; the sum ends in acc[i]. */
NB_INLINE void dots_narrow(__m512i acc[4][4], const unsigned char *b, size_t g, const int8_t *xh, const int8_t *xl, const int mr,
                           const bool first)
{
    NB_UNROLL
    for (int i = 0; i < 4; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_setzero_si512();
    }
    for (size_t k = 0; k < g; k += 4, b += 256) {
        __m512i c[4];

        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            c[j] = _mm512_load_si512(b + 64 * j);
            if (first)
                _mm_prefetch((const char *)b + AHEAD + 64 * j, _MM_HINT_T0);
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512i h = nb_quad(xh + i * g + k), l = nb_quad(xl + i * g + k);
            NB_UNROLL
            for (int j = 0; j < 4; j++) {
                acc[i][j] = nb_dot4(acc[i][j], c[j], h);
                acc[2 + i][j] = nb_dot4(acc[2 + i][j], c[j], l);
            }
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_add_epi32(_mm512_slli_epi32(acc[i][j], 8), acc[2 + i][j]);
    }
}

/* mr tokens from index `at` of the activation arrays: t[i][0..63] gets the group's part of the sum. */
NB_INLINE void tile(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr, const bool first,
                    const bool a8)
{
    const int8_t *xh = a->hi + at * w->g, *xl = a8 ? NULL : a->lo + at * w->g;
    __m512i acc[NB_TILE_TOKENS][4];

    if (mr <= 2 && !a8)
        dots_narrow(acc, b, w->g, xh, xl, mr, first);
    else
        nb_bytes_tile(acc, b, w->g, xh, xl, mr, first ? AHEAD : 0, a8);
    nb_tile_finish(w, b, a, at, t, acc, mr);
}

#define GEMM                                  nb_gemm_q8_avx512vnni
#define NAME(x)                               x##_a16
#define TILE(w, b, a, at, t, mr, first, dist) ((void)(dist), tile(w, b, a, at, t, mr, first, false))
#include "kern/gemm_body.inc"

#define GEMM                                  nb_gemm_q8_a8_avx512vnni
#define NAME(x)                               x##_a8
#define TILE(w, b, a, at, t, mr, first, dist) ((void)(dist), tile(w, b, a, at, t, mr, first, true))
#include "kern/gemm_body.inc"
