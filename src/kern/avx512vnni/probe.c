/* probe.c - read a buffer with 64-byte loads. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

uint64_t nb_read_probe_avx512vnni(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    __m512i sum[4];
    size_t i = 0;

    NB_UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_setzero_si512();
    for (; i + 256 <= bytes; i += 256)
        NB_UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(b + i + 64 * j));
    const __m512i all = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    uint64_t rest = (uint64_t)_mm512_reduce_add_epi64(all);

    for (; i + 8 <= bytes; i += 8)
        rest += nb_le64(b + i);
    return rest;
}
