/* gemm_q8.c - 8-bit weights times A16 activations with vpdpbusd, which takes the bytes as they lie.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 2, 5, 6. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

enum {
    CHUNK = 64,  /* tokens that share one pass over a strip; their sums fill 16 KB */
    AHEAD = 2560 /* prefetch this far ahead: 0.90 to 0.98 of read speed for one token, against 0.63 to 0.84 with 4096 */
};

/* One or two tokens, one block: both planes in registers, so that each line is read once. acc[i] is the high, acc[2 + i] the
 * low plane; the sum ends in acc[i]. */
NB_INLINE void dots_narrow(__m512i acc[4][4], const unsigned char *b, size_t g, const int8_t *xh, const int8_t *xl, const int mr)
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

/* acc[i][j] += codes of the block times one plane of mr tokens, g bytes apart. */
NB_INLINE void plane(__m512i acc[4][4], const unsigned char *b, size_t g, const int8_t *x, const int mr, const bool first)
{
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
            const __m512i v = nb_quad(x + i * g + k);
            NB_UNROLL
            for (int j = 0; j < 4; j++)
                acc[i][j] = nb_dot4(acc[i][j], c[j], v);
        }
    }
}

/* Three or four tokens, one block: one set of sums for both planes. */
NB_INLINE void dots_wide(__m512i acc[4][4], const unsigned char *b, size_t g, const int8_t *xh, const int8_t *xl, const int mr)
{
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_setzero_si512();
    }
    plane(acc, b, g, xh, mr, true);
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            acc[i][j] = _mm512_slli_epi32(acc[i][j], 8);
    }
    plane(acc, b, g, xl, mr, false);
}

/* mr tokens from index `at` of the activation arrays: t[i][0..63] gets the group's part of the sum. */
NB_INLINE void tile(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr)
{
    const unsigned char *scales = b + nb_q4_scales_at(w), *zeros = b + nb_q4_zeros_at(w);
    const int8_t *xh = a->hi + at * w->g, *xl = a->lo + at * w->g;
    __m512i acc[4][4];

    if (mr <= 2)
        dots_narrow(acc, b, w->g, xh, xl, mr);
    else
        dots_wide(acc, b, w->g, xh, xl, mr);
    NB_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512 s = nb_scales16(scales, w->wide, j);
        const __m512i z = nb_zeros16(zeros, j);

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            float *out = t + i * NB_STRIP + 16 * j;
            _mm512_store_ps(out, nb_finish16(acc[i][j], z, a->sum[at + i], s, a->step[at + i], _mm512_load_ps(out)));
        }
    }
}

/* Real functions, so that each tile has the registers to itself. */
typedef void tile_fn(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t);

static __attribute__((noinline)) void tile1(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 1);
}

static __attribute__((noinline)) void tile2(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 2);
}

static __attribute__((noinline)) void tile3(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 3);
}

static __attribute__((noinline)) void tile4(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 4);
}

static tile_fn *const tiles[4] = { tile1, tile2, tile3, tile4 }; /* [tokens - 1] */

void nb_gemm_q8_avx512vnni(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1)
{
    _Alignas(64) float t[CHUNK * NB_STRIP];

    assert(w->k == a->k && w->g == a->g);
    for (size_t s = s0; s < s1; s++)
        for (size_t i0 = 0; i0 < a->m; i0 += CHUNK) {
            const size_t n = a->m - i0 < CHUNK ? a->m - i0 : CHUNK;

            memset(t, 0, n * NB_STRIP * sizeof *t);
            for (size_t grp = 0; grp < w->n_groups; grp++) {
                const unsigned char *b = nb_q4_block(w, s, grp);

                for (size_t i = 0; i < n; i += 4)
                    tiles[n - i < 4 ? n - i - 1 : 3](w, b, a, grp * a->m + i0 + i, t + i * NB_STRIP);
            }
            for (size_t i = 0; i < n; i++)
                memcpy(y + (i0 + i) * ldy + s * NB_STRIP, t + i * NB_STRIP, NB_STRIP * sizeof *t);
        }
}
