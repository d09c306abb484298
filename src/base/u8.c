#include "base/u8.h"

/* Allowed range of the second byte and the length by first byte (Unicode table 3-7). */
static int lead(unsigned char c, unsigned *lo, unsigned *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c >= 0xC2 && c <= 0xDF)
        return 2;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0)
            *lo = 0x90;
        if (c == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

int nb_u8_next(const char *s, size_t n, uint32_t *cp, bool *cut)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned lo, hi;
    uint32_t v;
    int len;

    if (cut)
        *cut = false;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    *cp = 0xFFFD;
    len = lead(p[0], &lo, &hi);
    if (len == 0)
        return -1;
    v = p[0] & (0xFFu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) {
            if (cut)
                *cut = true;
            return -i;
        }
        if (p[i] < lo || p[i] > hi)
            return -i;
        v = v << 6 | (p[i] & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp = v;
    return len;
}

size_t nb_u8_check(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;

    while (i < n) {
        int k;

        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        k = nb_u8_next(s + i, n - i, &cp, NULL);
        if (k < 0)
            return i;
        i += (size_t)k;
    }
    return n;
}
