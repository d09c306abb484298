/* misc_body.h - norms, rotations and activations. Included once by misc.c of every tier, which renames the functions.
 *
 * Plain loops over fixed operations: each tier's compiler vectorises them for its own instruction set, and no rounding
 * changes, because contraction is off, fused operations are written out, and sums have 16 lanes by definition. */
#include <math.h>
#include <stddef.h>

#include "kern/expf.h"

enum { LANES = 16 };

/* Halve the lanes until one is left. */
static double sum_lanes(double *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int a = 0; a < half; a++)
            lane[a] += lane[a + half];
    return lane[0];
}

/* y = x * inv, then the weight and the bias where they exist. inv in f64: sums of squares in f64 cost nothing next to
 * the matrices, and the result is then exact to the last f32 rounding. */
void nb_rmsnorm(float *y, const float *x, const float *w, float offset, float eps, size_t n)
{
    double lane[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t a = 0; a < LANES; a++)
            lane[a] += (double)x[i + a] * (double)x[i + a];
    for (size_t a = 0; i + a < n; a++)
        lane[a] += (double)x[i + a] * (double)x[i + a];
    const float inv = (float)(1.0 / sqrt(sum_lanes(lane) / (double)n + (double)eps));
    if (!w)
        for (i = 0; i < n; i++)
            y[i] = x[i] * inv;
    else
        for (i = 0; i < n; i++)
            y[i] = x[i] * inv * (w[i] + offset);
}

void nb_layernorm(float *y, const float *x, const float *w, const float *b, float eps, size_t n)
{
    double lane[LANES] = { 0 }, square[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t a = 0; a < LANES; a++)
            lane[a] += (double)x[i + a];
    for (size_t a = 0; i + a < n; a++)
        lane[a] += (double)x[i + a];
    const double mean = sum_lanes(lane) / (double)n;
    for (i = 0; i + LANES <= n; i += LANES)
        for (size_t a = 0; a < LANES; a++)
            square[a] += ((double)x[i + a] - mean) * ((double)x[i + a] - mean);
    for (size_t a = 0; i + a < n; a++)
        square[a] += ((double)x[i + a] - mean) * ((double)x[i + a] - mean);
    const float inv = (float)(1.0 / sqrt(sum_lanes(square) / (double)n + (double)eps));
    for (i = 0; i < n; i++)
        y[i] = (float)((double)x[i] - mean) * inv;
    if (w)
        for (i = 0; i < n; i++)
            y[i] *= w[i];
    if (b)
        for (i = 0; i < n; i++)
            y[i] += b[i];
}

void nb_rope_half(float *x, const float *cs, const float *sn, size_t r)
{
    float *hi = x + r / 2;

    for (size_t i = 0; i < r / 2; i++) {
        const float a = x[i], b = hi[i];
        x[i] = fmaf(-b, sn[i], a * cs[i]);
        hi[i] = fmaf(a, sn[i], b * cs[i]);
    }
}

void nb_rope_pair(float *x, const float *cs, const float *sn, size_t r)
{
    for (size_t i = 0; i < r / 2; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = fmaf(-b, sn[i], a * cs[i]);
        x[2 * i + 1] = fmaf(a, sn[i], b * cs[i]);
    }
}

void nb_silu_mul(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + nb_expf(-gate[i])) * up[i];
}

/* x (1 + tanh u) / 2 = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): keeps the digits of negative x. */
void nb_gelu_tanh_mul(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x = gate[i], u = x * fmaf(0.0713548163f * x, x, 1.59576912f);
        y[i] = x / (1.0f + nb_expf(-u)) * up[i];
    }
}

void nb_gelu_erf_mul(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] * nb_normf(gate[i]) * up[i];
}

void nb_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

void nb_axpy(float *y, const float *x, float a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

void nb_softcap(float *x, float cap, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = cap * nb_tanhf(x[i] / cap);
}
