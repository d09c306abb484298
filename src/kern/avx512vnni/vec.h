/* vec.h - the few vector operations that kern/tile.inc is written in, on 16 lanes, and its tile sizes. */
#ifndef NB_KERN_AVX512VNNI_VEC_H
#define NB_KERN_AVX512VNNI_VEC_H

#include <immintrin.h>

#include "kern/avx2/turn8.h"
#include "kern/kern.h"

#define NB_FORCE static inline __attribute__((always_inline))
#define NB_APART __attribute__((noinline)) /* its loops need every register */

enum {
    VL = 16,      /* floats of a register                                                          */
    DENSE_MR = 6, /* dense tile: 6 tokens x 64 outputs, 24 of the 32 registers                      */
    DENSE_NV = 4,
    DENSE_NV1 = 4, /* registers of one token                                                        */
    ATT_MR = 8,    /* attention tile: 8 query rows x 32 positions or values                         */
    ATT_NV = 2,
    ATT_FEW = 4, /* rows that take 2 * ATT_NV registers each */
    PANEL_MR = 8 /* panels: 8 rows x 2 registers, 16 of the 32 registers */
};
typedef __m512 vf;

NB_FORCE vf v_zero(void)
{
    return _mm512_setzero_ps();
}

NB_FORCE vf v_set1(const float *p)
{
    return _mm512_set1_ps(*p);
}

NB_FORCE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

NB_FORCE void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

NB_FORCE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

NB_FORCE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The line of p into L1, or only into L2. */
NB_FORCE void v_prefetch(const void *p, const bool near)
{
    if (near)
        _mm_prefetch(p, _MM_HINT_T0);
    else
        _mm_prefetch(p, _MM_HINT_T1);
}

/* VL elements of type t, as f32. */
NB_FORCE vf v_widen(const unsigned char *p, const nb_dtype t)
{
    if (t == NB_DT_F32)
        return _mm512_loadu_ps(p);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (t == NB_DT_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* VL floats to f16, round to nearest even. */
NB_FORCE void v_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Doubles, half as many: for panels. */
typedef __m512d vd;

NB_FORCE vd vd_zero(void)
{
    return _mm512_setzero_pd();
}

NB_FORCE vd vd_set1(const double *p)
{
    return _mm512_set1_pd(*p);
}

NB_FORCE vd vd_load(const double *p)
{
    return _mm512_loadu_pd(p);
}

NB_FORCE void vd_store(double *p, vd a)
{
    _mm512_storeu_pd(p, a);
}

NB_FORCE vd vd_fma(vd a, vd b, vd c)
{
    return _mm512_fmadd_pd(a, b, c);
}

#endif
