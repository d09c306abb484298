/* dot_avx2.h - the dot products, with AVX-VNNI or without, the loads and the last line of the kernels on 32-byte registers. */
#ifndef NB_KERN_AVX2_DOT_H
#define NB_KERN_AVX2_DOT_H

#include <immintrin.h>
#include <string.h>

#include "kern/q4.h"

/* Unroll the next loop completely: an accumulator that is not indexed by constants lives in memory. Or not at all: what it works on
 * does not fit the registers. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("unroll")
#define NB_ROLLED _Pragma("nounroll")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#define NB_ROLLED _Pragma("GCC unroll 1")
#endif
#define NB_INLINE static inline __attribute__((always_inline))

NB_INLINE __m256i nb_load32(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Four activation bytes in every lane, by the load itself: gcc would load them once, keep them in a general register and take two
 * more instructions, on ports that the products need, for every use. */
NB_INLINE __m256i nb_quad(const int8_t *p)
{
#if defined(__clang__)
    int32_t v;

    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
#else
    __m256i v;

    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*(const int8_t(*)[4])p));
    return v;
#endif
}

#ifdef __AVXVNNI__

/* acc[32-bit lane] += four products, unsigned bytes of w times signed bytes of x. An intrinsic would do, but gcc copies and spills
 * its accumulator; {vex}, since the processors of this tier have no AVX-512. */
NB_INLINE __m256i nb_dot2(__m256i acc, __m256i w, __m256i x)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    return acc;
}

/* nb_dot2 from 0. */
NB_INLINE __m256i nb_dot2_first(__m256i w, __m256i x)
{
    return nb_dot2(_mm256_setzero_si256(), w, x);
}

/* Weight (1 or 256) times the sums of nb_dot2. */
NB_INLINE __m256i nb_widen(__m256i acc, const short weight)
{
    return weight == 256 ? _mm256_slli_epi32(acc, 8) : acc;
}

/* acc[32-bit lane] += two products of 16-bit integers. */
NB_INLINE __m256i nb_dot2w(__m256i acc, __m256i w, __m256i x)
{
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    return acc;
}

#else

/* acc[16-bit lane] += two products, unsigned bytes of w times signed bytes of x. Codes are at most 15, so eight such
 * steps stay below 8*2*15*128 = 30720 and nothing saturates; nb_widen then empties acc into 32-bit sums. gcc reorders
 * the additions of intrinsics and then spills every accumulator. */
NB_INLINE __m256i nb_dot2(__m256i acc, __m256i w, __m256i x)
{
#if defined(__clang__)
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
#else
    __m256i t;

    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(acc), "=&x"(t) : "x"(w), "x"(x));
    return acc;
#endif
}

/* nb_dot2 from 0, without the addition. */
NB_INLINE __m256i nb_dot2_first(__m256i w, __m256i x)
{
    return _mm256_maddubs_epi16(w, x);
}

/* In 32-bit lanes, weight times the sums of nb_dot2. */
NB_INLINE __m256i nb_widen(__m256i acc, const short weight)
{
    return _mm256_madd_epi16(acc, _mm256_set1_epi16(weight));
}

/* acc[32-bit lane] += two products of 16-bit integers. asm as above. */
NB_INLINE __m256i nb_dot2w(__m256i acc, __m256i w, __m256i x)
{
#if defined(__clang__)
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w, x));
#else
    __m256i t;

    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(t) : "x"(w), "x"(x));
    return acc;
#endif
}

#endif

/* Scales 8j .. 8j+7 of a block. */
NB_INLINE __m256 nb_scales8(const unsigned char *scales, bool wide, int j)
{
    return wide ? _mm256_loadu_ps((const void *)(scales + 32 * j)) : _mm256_cvtph_ps(_mm_loadu_si128((const void *)(scales + 16 * j)));
}

/* Zeros 8j .. 8j+7 of a block. */
NB_INLINE __m256i nb_zeros8(const unsigned char *zeros, int j)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(zeros + 8 * j)));
}

/* The last line of the formula: fma(float(acc - z*sum), s*step, y). */
NB_INLINE __m256 nb_finish8(__m256i acc, __m256i z, int32_t sum, __m256 s, float step, __m256 y)
{
    const __m256i d = _mm256_sub_epi32(acc, _mm256_mullo_epi32(z, _mm256_set1_epi32(sum)));

    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(s, _mm256_set1_ps(step)), y);
}

/* Rows 16p .. 16p+15 of mr tokens from index `at` of the activation arrays: t[i][64] gets the group's part, whose sums are acc[i][2]. */
NB_INLINE void nb_finish_pair(const nb_q4 *w, const unsigned char *b, const nb_act *a, size_t at, float *t, __m256i acc[4][2], const int mr,
                              int p)
{
    const unsigned char *scales = b + nb_q4_scales_at(w), *zeros = b + nb_q4_zeros_at(w);

    NB_UNROLL
    for (int j = 0; j < 2; j++) {
        const __m256 s = nb_scales8(scales, w->wide, 2 * p + j);
        const __m256i z = nb_zeros8(zeros, 2 * p + j);

        NB_UNROLL
        for (int i = 0; i < mr; i++) {
            float *out = t + i * NB_STRIP + 16 * p + 8 * j;
            _mm256_store_ps(out, nb_finish8(acc[i][j], z, a->sum[at + i], s, a->step[at + i], _mm256_load_ps(out)));
        }
    }
}

#endif
