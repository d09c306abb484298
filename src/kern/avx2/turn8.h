/* turn8.h - 8 x 8 floats transposed on 256-bit registers, and what kern/attn_body.inc asks its tier for: also what wider tiers use. */
#ifndef NB_KERN_AVX2_TURN8_H
#define NB_KERN_AVX2_TURN8_H

#include <immintrin.h>

#include "kern/kern.h"

static inline __attribute__((always_inline)) __m256 eight(const unsigned char *p, const nb_dtype type)
{
    return type == NB_DT_F32 ? _mm256_loadu_ps((const float *)(const void *)p)
                             : _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* 8 x 8 floats: element j of a[i] and element i of a[j] change places. */
static inline __attribute__((always_inline)) void nb_turn8(__m256 a[8])
{
    __m256 b[8];

    for (size_t i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4)
        for (size_t j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xEE);
        }
    for (size_t i = 0; i < 4; i++) {
        b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
    for (size_t i = 0; i < 8; i++)
        a[i] = b[i];
}

/* 8 x 8 elements: to[j*NB_PAGE + i] = element j of the row at from + i*row_bytes. */
static inline __attribute__((always_inline)) void v_turn8(const nb_dtype type, float *to, const unsigned char *from, size_t row_bytes)
{
    __m256 a[8];

    for (size_t i = 0; i < 8; i++)
        a[i] = eight(from + i * row_bytes, type);
    nb_turn8(a);
    for (size_t i = 0; i < 8; i++)
        _mm256_storeu_ps(to + i * NB_PAGE, a[i]);
}

#endif
