/* crc32.h - CRC-32 of zlib, bit by bit with a small table, for comparing with recorded checksums. */
#ifndef NB_TEST_QUANT_CRC32_H
#define NB_TEST_QUANT_CRC32_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t test_crc32_more(uint32_t crc, const void *data, size_t n)
{
    static uint32_t table[256];
    const unsigned char *p = data;

    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int b = 0; b < 8; b++)
                c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
            table[i] = c;
        }
    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        crc = crc >> 8 ^ table[(crc ^ p[i]) & 0xff];
    return ~crc;
}

static inline uint32_t test_crc32(const void *data, size_t n)
{
    return test_crc32_more(0, data, n);
}

#endif
