/* pack_dense.c - rows of 16-bit floats into strips, 8 rows x 16 inputs at a time. Same bytes as scalar/dense.c. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"
#include "kern/dense.h"
#include "kern/scalar/scalar.h"

enum {
    TILE_K = 64, /* inputs of a row taken at a time: two cache lines */
    AHEAD = 256  /* a row lies some 4 KB behind the one before, which no hardware prefetcher follows: bytes that are asked for early */
};

/* 16 inputs of eight rows `pitch` bytes apart: of input i the eight rows at to + i * 128. */
NB_INLINE void turn(unsigned char *to, const unsigned char *from, size_t pitch)
{
    __m256i a[8], b[8];

    NB_UNROLL
    for (size_t i = 0; i < 8; i++)
        a[i] = nb_load32(from + i * pitch);
    NB_UNROLL
    for (size_t i = 0; i < 4; i++) { /* pairs of rows: inputs 0 .. 3 and 4 .. 7 of each half */
        b[i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[4 + i] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    NB_UNROLL
    for (size_t i = 0; i < 4; i++) { /* four rows: inputs 2i, 2i + 1 */
        const size_t x = i / 2 * 4;
        a[2 * i] = i % 2 ? _mm256_unpackhi_epi32(b[x], b[x + 1]) : _mm256_unpacklo_epi32(b[x], b[x + 1]);
        a[2 * i + 1] = i % 2 ? _mm256_unpackhi_epi32(b[x + 2], b[x + 3]) : _mm256_unpacklo_epi32(b[x + 2], b[x + 3]);
    }
    NB_UNROLL
    for (size_t i = 0; i < 4; i++) {
        const __m256i even = _mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]), odd = _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]);
        unsigned char *at = to + 2 * i * 2 * NB_STRIP;

        _mm_storeu_si128((void *)at, _mm256_castsi256_si128(even));
        _mm_storeu_si128((void *)(at + 2 * NB_STRIP), _mm256_castsi256_si128(odd));
        _mm_storeu_si128((void *)(at + 8 * 2 * NB_STRIP), _mm256_extracti128_si256(even, 1));
        _mm_storeu_si128((void *)(at + 9 * 2 * NB_STRIP), _mm256_extracti128_si256(odd, 1));
    }
}

/* A strip of 64 rows, k a multiple of TILE_K. */
static void pack_strip(unsigned char *to, const unsigned char *from, size_t k)
{
    for (size_t k0 = 0; k0 < k; k0 += TILE_K)
        for (size_t r = 0; r < NB_STRIP; r += 8) {
            const unsigned char *at = from + (r * k + k0) * 2;

            for (size_t i = 0; i < 8; i++)
                for (size_t line = 0; line < 2 * TILE_K; line += 64)
                    _mm_prefetch((const char *)((uintptr_t)at + i * k * 2 + AHEAD + line), _MM_HINT_T0);
            for (size_t i = 0; i < TILE_K; i += 16)
                turn(to + ((k0 + i) * NB_STRIP + r) * 2, at + 2 * i, 2 * k);
        }
}

void nb_pack_dense_avx2(nb_dense *p, size_t row0, const void *src, size_t rows)
{
    const bool fits = nb_dense_size(p) == 2 && p->k % TILE_K == 0;
    const size_t whole = fits ? rows / NB_STRIP * NB_STRIP : 0;
    const unsigned char *from = src;

    for (size_t r = 0; r < whole; r += NB_STRIP)
        pack_strip(p->base + (row0 + r) * p->k * 2, from + r * p->k * 2, p->k);
    if (whole < rows)
        nb_pack_dense_scalar(p, row0 + whole, from + whole * p->k * nb_dense_size(p), rows - whole);
}
