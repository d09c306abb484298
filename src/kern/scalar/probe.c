/* probe.c - read every 64-bit word of a buffer: the yardstick of memory bandwidth. */
#include <string.h>

#include "kern/scalar/scalar.h"

uint64_t nb_read_probe_scalar(const void *p, size_t bytes)
{
    const unsigned char *b = p;
    uint64_t sum = 0;

    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, b + i, 8);
        sum += word;
    }
    return sum;
}
