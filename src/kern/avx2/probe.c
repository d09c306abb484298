/* probe.c - read a buffer with 32-byte loads. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

uint64_t nb_read_probe_avx2(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    __m256i sum[4];
    uint64_t lanes[4], rest;
    size_t i = 0;

    NB_UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_si256();
    for (; i + 128 <= bytes; i += 128) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_add_epi64(sum[j], nb_load32(b + i + 32 * j));
    }
    _mm256_storeu_si256((void *)lanes, _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3])));
    rest = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    for (; i + 8 <= bytes; i += 8)
        rest += nb_le64(b + i);
    return rest;
}
