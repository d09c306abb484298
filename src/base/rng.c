/* rng.c - Philox4x32-10. */
#include "base/rng.h"

#include <math.h>

void nb_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static double unit(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

double nb_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t w[4];

    nb_philox(seed, stream, counter, w);
    return unit(w[0], w[1]);
}

double nb_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t w[4];

    nb_philox(seed, stream, counter, w);
    return sqrt(-2.0 * log(1.0 - unit(w[0], w[1]))) * cos(6.283185307179586477 * unit(w[2], w[3]));
}
