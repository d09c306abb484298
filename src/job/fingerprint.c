/* fingerprint.c - see convert_priv.h. Four lanes of multiply and fold; a sum over rows makes the order of stripes immaterial. */
#include <string.h>

#include "base/bits.h"
#include "job/convert_priv.h"

#define MUL UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t fold(uint64_t h, uint64_t w)
{
    h = (h ^ w) * MUL;
    return h ^ h >> 29;
}

static uint64_t hash(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h[4] = { seed, seed + 1, seed + 2, seed + 3 }, all = n;

    for (; n >= 32; n -= 32, p += 32)
        for (int i = 0; i < 4; i++)
            h[i] = fold(h[i], nb_le64(p + 8 * i));
    for (; n > 0; n--, p++)
        h[0] = fold(h[0], *p);
    for (int i = 0; i < 4; i++)
        all = fold(all, h[i]);
    return all;
}

uint64_t nb_print_bytes(const void *p, size_t n, uint64_t at)
{
    return hash(p, n, fold(at, 5));
}

uint64_t nb_print_rows(const nb_qlin *q, size_t n0)
{
    const size_t gn = q->n_groups;
    uint64_t sum = 0;

    for (size_t o = 0; o < q->n; o++) {
        uint64_t h = q->codes ? hash(q->codes + o * q->k, q->k, n0 + o) : n0 + o;
        h = fold(h, hash(q->zeros + o * gn, gn, 1));
        sum += fold(h, hash(q->scales + o * gn, gn * sizeof *q->scales, 2));
    }
    for (size_t i = 0; n0 == 0 && i < q->k; i++)
        sum += fold(i, q->g_idx ? q->g_idx[i] : i / q->g);
    return sum;
}
