/* expf.h - exp, tanh and the normal distribution in f32, as fixed sequences of operations.
 *
 * The C library's versions differ between systems and vector widths, so none is used: every tier runs these lines, in
 * scalar or vectorised by its compiler, and gets the same bits. No branches. Coefficients: own minimax fits; errors over
 * the whole range are checked against the C library in double by tests/unit/kern/test_misc.c. NaN gives NaN. */
#ifndef NB_KERN_EXPF_H
#define NB_KERN_EXPF_H

#include <math.h>

#include "base/bits.h"

/* yes ? a : b, as a mask: a branch here would keep some compilers from vectorising. */
static inline float nb_select(int yes, float a, float b)
{
    const uint32_t m = 0u - (uint32_t)yes;

    return nb_f32_from_bits((nb_bits_from_f32(a) & m) | (nb_bits_from_f32(b) & ~m));
}

/* e^x within 1.3e-7 relative. Below -87.33 (where the result would be subnormal) 0; above 88.37 Inf. */
static inline float nb_expf(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, to nearest even, in the low bits */
    const float t = fmaf(x, 1.44269504f, magic);
    const float n = t - magic;
    float r = fmaf(n, -0.693145752f, x); /* ln 2 in two parts: the first has 16 bits, so n times it is exact */
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.381453789e-3f;
    p = fmaf(p, r, 8.368745320e-3f);
    p = fmaf(p, r, 4.166839083e-2f);
    p = fmaf(p, r, 1.666652040e-1f);
    p = fmaf(p, r, 4.999999343e-1f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const float y = p * nb_f32_from_bits((nb_bits_from_f32(t) + 127u) << 23); /* the low bits of t hold n */
    return nb_select(x > 88.37f, INFINITY, nb_select(x < -87.33f, 0.0f, y));
}

/* tanh x within 2e-7 relative. */
static inline float nb_tanhf(float x)
{
    const float a = fabsf(x), s = x * x;
    float p = -5.528624608e-3f;
    p = fmaf(p, s, 2.048330654e-2f);
    p = fmaf(p, s, -5.369296452e-2f);
    p = fmaf(p, s, 1.333089971e-1f);
    p = fmaf(p, s, -3.333326288e-1f);
    const float near = fmaf(x * s, p, x);
    const float far = 1.0f - 2.0f / (nb_expf(a + a) + 1.0f);
    return nb_select(a < 0.625f, near, copysignf(far, x));
}

/* Normal distribution function, (1 + erf(x / sqrt 2)) / 2, within 3e-7 relative for x > -1 and 4e-6 down to -7; 0 below.
 * Near 0 from erf(z) = z*p(z^2), else from erfc(|z|) = exp(h(|z|) - z^2), so that the lower tail keeps its digits. */
static inline float nb_normf(float x)
{
    const float z = x * 0.707106781f, a = fabsf(z), s = z * z;
    float p = 7.889119354e-5f;
    p = fmaf(p, s, -8.020841222e-4f);
    p = fmaf(p, s, 5.189535332e-3f);
    p = fmaf(p, s, -2.685444459e-2f);
    p = fmaf(p, s, 1.128360018e-1f);
    p = fmaf(p, s, -3.761262714e-1f);
    p = fmaf(p, s, 1.128379166f);
    const float near = fmaf(0.5f * z, p, 0.5f);
    float h = -1.081581754e-7f;
    h = fmaf(h, a, 4.047149485e-6f);
    h = fmaf(h, a, -6.935335542e-5f);
    h = fmaf(h, a, 7.247956414e-4f);
    h = fmaf(h, a, -5.199351276e-3f);
    h = fmaf(h, a, 2.739946913e-2f);
    h = fmaf(h, a, -1.114874707e-1f);
    h = fmaf(h, a, 3.694350395e-1f);
    h = fmaf(h, a, -1.130871731f);
    h = fmaf(h, a, 4.591642354e-4f);
    const float e = 0.5f * nb_expf(fmaf(-a, a, h));
    const float tail = nb_select(a > 5.0f, 0.0f, e);
    return nb_select(a < 1.0f, near, nb_select(z < 0.0f, tail, 1.0f - tail));
}

#endif
