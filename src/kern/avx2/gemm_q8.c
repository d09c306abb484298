/* gemm_q8.c - 8-bit weights times A16 activations with vpmaddubsw, which saturates with bytes above 128: codes are taken a
 * nibble at a time, as 4-bit weights are.
 *
 * With codes q = 16 qh + ql and values v = 256 xh + xl,
 *
 *   sum of q*v = ((16 sum(qh*xh) + sum(ql*xh)) * 16 + sum(qh*xl)) * 16 + sum(ql*xl)
 *
 * so four passes share one set of sums, shifted by 4 bits between them, and end in the exact int32 of the formula of
 * scalar/gemm_q4.c. Source: spec kernels 2, 7. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

enum { CHUNK = 64 }; /* tokens that share one pass over a strip; their sums fill 16 KB */

/* acc[i] += n quads of one plane of mr tokens, g bytes apart, times one nibble of the codes of eight outputs. n <= 8 keeps the
 * sums in 16 bits. */
NB_INLINE void quads(__m256i acc[4], const unsigned char *b, size_t g, const int8_t *x, const int mr, const int n, const bool high)
{
    const __m256i mask = _mm256_set1_epi8(0x0f);
    __m256i sum[4];

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i] = _mm256_setzero_si256();
    NB_UNROLL
    for (int t = 0; t < n; t++) {
        const __m256i q = nb_load32(b + 256 * t), c = _mm256_and_si256(high ? _mm256_srli_epi16(q, 4) : q, mask);

        NB_UNROLL
        for (int i = 0; i < mr; i++)
            sum[i] = nb_dot2(sum[i], c, nb_quad(x + i * g + 4 * t));
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++)
        acc[i] = _mm256_add_epi32(acc[i], nb_widen(sum[i]));
}

/* acc[i] = 16 acc[i] + the whole block. */
NB_INLINE void pass(__m256i acc[4], const unsigned char *b, size_t g, const int8_t *x, const int mr, const bool high)
{
    size_t k = 0;

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        acc[i] = _mm256_slli_epi32(acc[i], 4);
    for (; k + 32 <= g; k += 32)
        quads(acc, b + 64 * k, g, x + k, mr, 8, high);
    for (; k < g; k += 8)
        quads(acc, b + 64 * k, g, x + k, mr, 2, high);
}

/* mr tokens from index `at` of the activation arrays, one block: t[i][0..63] gets the group's part. */
NB_INLINE void tile(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, const int mr)
{
    const size_t g = w->g;
    const unsigned char *scales = b + nb_q4_scales_at(w), *zeros = b + nb_q4_zeros_at(w);
    const int8_t *xh = a->hi + at * g, *xl = a->lo + at * g;

    for (size_t off = 0; off < w->block_bytes; off += 64) /* the next block */
        _mm_prefetch((const char *)b + w->block_bytes + off, _MM_HINT_T0);
    for (int j = 0; j < 8; j++) {
        const __m256 s = nb_scales8(scales, w->wide, j);
        const __m256i z = nb_zeros8(zeros, j);
        __m256i acc[4];

        NB_UNROLL
        for (int i = 0; i < mr; i++)
            acc[i] = _mm256_setzero_si256();
        pass(acc, b + 32 * j, g, xh, mr, true);
        pass(acc, b + 32 * j, g, xh, mr, false);
        pass(acc, b + 32 * j, g, xl, mr, true);
        pass(acc, b + 32 * j, g, xl, mr, false);
        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            float *out = t + i * NB_STRIP + 8 * j;
            _mm256_store_ps(out, nb_finish8(acc[i], z, a->sum[at + i], s, a->step[at + i], _mm256_load_ps(out)));
        }
    }
}

/* Real functions, so that each tile has the registers to itself. */
typedef void tile_fn(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t);

static void tile1(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 1);
}

static void tile2(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 2);
}

static void tile3(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 3);
}

static void tile4(const nb_q8 *w, const unsigned char *b, const nb_act *a, size_t at, float *t)
{
    tile(w, b, a, at, t, 4);
}

static tile_fn *const tiles[4] = { tile1, tile2, tile3, tile4 }; /* [tokens - 1] */

void nb_gemm_q8_avx2(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1)
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
