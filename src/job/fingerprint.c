/* fingerprint.c - see convert_priv.h. A sum over rows or pieces makes the order of stripes immaterial. */
#include <string.h>

#include "job/convert_priv.h"

#define MUL UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t fold(uint64_t h, uint64_t w)
{
    h = (h ^ w) * MUL;
    return h ^ h >> 29;
}

/* Per lane the sum of its words and the sum of these sums, which weighs a word by its place: additions only, so that reading back
 * costs what reading costs. */
static uint64_t hash(const void *bytes, size_t n, uint64_t seed)
{
    enum { LANES = 4 };
    const unsigned char *p = bytes;
    uint64_t sum[LANES] = { 0 }, placed[LANES] = { 0 }, w[LANES], all = fold(seed, n);

    for (; n >= sizeof w; n -= sizeof w, p += sizeof w) {
        memcpy(w, p, sizeof w);
        for (int i = 0; i < LANES; i++) {
            sum[i] += w[i];
            placed[i] += sum[i];
        }
    }
    for (; n > 0; n--, p++)
        all = fold(all, *p);
    for (int i = 0; i < LANES; i++)
        all = fold(fold(all, sum[i]), placed[i]);
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
