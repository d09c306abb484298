/* dot_avx512vnni.h - the byte dot product, with VNNI or without, and the loads around it. */
#ifndef NB_KERN_AVX512VNNI_DOT_H
#define NB_KERN_AVX512VNNI_DOT_H

#include <immintrin.h>
#include <string.h>

#include "kern/q4.h"

/* Unroll the next loop completely: an accumulator that is not indexed by constants lives in memory. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("unroll")
#else
#define NB_UNROLL _Pragma("GCC unroll 16")
#endif
#define NB_INLINE static inline __attribute__((always_inline))

#ifdef __AVX512VNNI__

#define NB_HIGH_IN_PLACE 1 /* a code may be worth 16 times itself */

/* acc[i] += sum of four products, unsigned bytes of w times signed bytes of x. gcc 12 copies and spills the accumulator
 * of the intrinsic; an in/out operand leaves it where it is. */
NB_INLINE __m512i nb_dot4(__m512i acc, __m512i w, __m512i x)
{
#if defined(__clang__)
    return _mm512_dpbusd_epi32(acc, w, x);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
#endif
}

/* Forms of a zero (at most 255) and of a sum of activations whose product is one instruction: with -sum = 128 u + v, 0 <= v < 128, it is
 * z*v + 128z*u, and all four fit 16 bits, since |sum| <= 32512*128. */
NB_INLINE __m512i nb_zero_form(__m512i z)
{
    return _mm512_or_si512(z, _mm512_slli_epi32(z, 16 + 7));
}

NB_INLINE int32_t nb_sum_form(int32_t sum)
{
    return (int32_t)((uint32_t)(-sum >> 7) << 16 | (uint32_t)(-sum & 127));
}

/* acc - z*sum in every lane. */
NB_INLINE __m512i nb_less(__m512i acc, __m512i z_form, int32_t sum_form)
{
    return _mm512_dpwssd_epi32(acc, z_form, _mm512_set1_epi32(sum_form));
}

#else

#define NB_HIGH_IN_PLACE 0

/* The same for codes of at most 15: two products stay below 2*15*128 = 3840, so that the 16-bit sums of vpmaddubsw do not saturate. gcc
 * reorders the additions of intrinsics and then spills accumulators. */
NB_INLINE __m512i nb_dot4(__m512i acc, __m512i w, __m512i x)
{
    const __m512i ones = _mm512_set1_epi16(1);
#if defined(__clang__)
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), ones));
#else
    __m512i t;

    __asm__("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" : "+v"(acc), "=&v"(t) : "v"(w), "v"(x), "v"(ones));
    return acc;
#endif
}

/* acc - z*sum in every lane; both are taken as they are. */
NB_INLINE __m512i nb_zero_form(__m512i z)
{
    return z;
}

NB_INLINE int32_t nb_sum_form(int32_t sum)
{
    return sum;
}

NB_INLINE __m512i nb_less(__m512i acc, __m512i z_form, int32_t sum_form)
{
    return _mm512_sub_epi32(acc, _mm512_mullo_epi32(z_form, _mm512_set1_epi32(sum_form)));
}

#endif

/* Four activation bytes in every lane. */
NB_INLINE __m512i nb_quad(const int8_t *p)
{
    int32_t v;

    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Scales 16j .. 16j+15 of a block. */
NB_INLINE __m512 nb_scales16(const unsigned char *scales, bool wide, int j)
{
    return wide ? _mm512_loadu_ps(scales + 64 * j) : _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scales + 32 * j)));
}

/* Zeros 16j .. 16j+15 of a block. */
NB_INLINE __m512i nb_zeros16(const unsigned char *zeros, int j)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(zeros + 16 * j)));
}

/* The last line of the formula: fma(float(d), s*step, y), d = acc - z*sum. */
NB_INLINE __m512 nb_scaled16(__m512i d, __m512 s, float step, __m512 y)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(s, _mm512_set1_ps(step)), y);
}

#endif
