/* probe.c - read a buffer with 64-byte loads. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

uint64_t nb_read_probe_avx512vnni(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    uint64_t lanes[8], rest = 0;
    __m512i sum[4];
    size_t i = 0;

    NB_UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_setzero_si512();
    for (; i + 256 <= bytes; i += 256) {
        NB_UNROLL
        for (int j = 0; j < 4; j++)
            sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(b + i + 64 * j));
    }
    _mm512_storeu_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3])));
    for (int j = 0; j < 8; j++)
        rest += lanes[j];
    for (; i + 8 <= bytes; i += 8)
        rest += nb_le64(b + i);
    return rest;
}
