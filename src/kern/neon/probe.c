/* probe.c - read a buffer with 16-byte loads. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

uint64_t nb_read_probe_neon(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    uint64x2_t sum[8];
    size_t i = 0;

    NB_UNROLL
    for (int j = 0; j < 8; j++)
        sum[j] = vdupq_n_u64(0);
    for (; i + 128 <= bytes; i += 128) {
        NB_UNROLL
        for (int j = 0; j < 8; j++)
            sum[j] = vaddq_u64(sum[j], vreinterpretq_u64_u8(vld1q_u8(b + i + 16 * j)));
    }
    NB_UNROLL
    for (int j = 1; j < 8; j++)
        sum[0] = vaddq_u64(sum[0], sum[j]);
    uint64_t rest = vaddvq_u64(sum[0]);
    for (; i + 8 <= bytes; i += 8)
        rest += nb_le64(b + i);
    return rest;
}
