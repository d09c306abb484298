/* act.c - A16 activations: per token and group, v = rint(x * (32512/a)), a = max|x|, in two int8 planes. A8: 127 in place of
 * 32512, in one plane.
 *
 * A group whose largest value is so small that 32512/a (127/a) overflows counts as zero; one with a NaN or Inf
 * gets step = NaN, so that every output of that token is NaN. Source: spec kernels 3. */
#include <math.h>

#include "kern/q4.h"
#include "kern/scalar/scalar.h"

/* Token i, group grp: n inputs of x (through perm when not NULL), the rest of the group is zero. */
static void quantize(nb_act *a, size_t i, size_t grp, const float *x, const uint32_t *perm)
{
    const float most = a->lo ? 32512.0f : 127.0f;
    const size_t g = a->g, k0 = grp * g, n = nb_q4_valid(a->k, g, grp), at = grp * a->m + i;
    int8_t *hi = a->hi + at * g, *lo = a->lo ? a->lo + at * g : NULL;
    uint32_t top = 0; /* bits of max|x|: magnitudes order like integers, NaN above Inf above all */
    int32_t sum = 0;

    for (size_t j = 0; j < n; j++) {
        const uint32_t u = nb_bits_from_f32(x[perm ? perm[k0 + j] : k0 + j]) & 0x7fffffffu;
        top = u > top ? u : top;
    }
    const float max = nb_f32_from_bits(top), inv = most / max;
    const bool finite = top < 0x7f800000u, zero = !finite || inv > 3.4028235e38f; /* max = 0 gives Inf as well */

    for (size_t j = 0; j < g; j++) {
        const int32_t v = zero || j >= n ? 0 : (int32_t)lrintf(x[perm ? perm[k0 + j] : k0 + j] * inv);
        const int32_t h = lo ? (v + 128) >> 8 : v;

        hi[j] = (int8_t)h;
        if (lo)
            lo[j] = (int8_t)(v - 256 * h);
        sum += v;
    }
    a->step[at] = !finite ? nb_f32_from_bits(0x7fc00000u) : zero ? 0.0f : max / most;
    a->sum[at] = sum;
}

void nb_act_scalar(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm);
}
