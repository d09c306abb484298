/* num.c - numbers in text. */
#include "base/num.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int digit_of(char c)
{
    const char low = (char)(c | 32);

    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 16;
}

static const char *read_digits(const char *s, unsigned base, uint64_t most, uint64_t *out)
{
    const char *p = s;
    uint64_t v = 0;

    for (unsigned d; (d = (unsigned)digit_of(*p)) < base; p++) {
        if (d > most || v > (most - d) / base)
            return NULL;
        v = v * base + d;
    }
    if (p == s)
        return NULL;
    *out = v;
    return p;
}

const char *nb_num_u64(const char *s, uint64_t most, uint64_t *out)
{
    return read_digits(s, 10, most, out);
}

const char *nb_num_hex(const char *s, uint64_t most, uint64_t *out)
{
    return read_digits(s, 16, most, out);
}

const char *nb_num_i64(const char *s, int64_t *out)
{
    const bool minus = *s == '-';
    uint64_t v;
    const char *end = read_digits(s + minus, 10, (uint64_t)INT64_MAX + minus, &v);

    if (end)
        *out = minus ? -(int64_t)(v - (v > INT64_MAX)) - (v > INT64_MAX) : (int64_t)v;
    return end;
}

static const char *skip_digits(const char *p)
{
    return p + strspn(p, "0123456789");
}

const char *nb_num_real(const char *s, double *out)
{
    enum { LONGEST = 400 };
    const char *whole = s + (*s == '-'), *dot = skip_digits(whole), *end = *dot == '.' ? skip_digits(dot + 1) : dot;
    char copy[LONGEST + 1];
    size_t n;
    double v;

    if (end - whole <= (*dot == '.')) /* no digit on either side */
        return NULL;
    if (*end == 'e' || *end == 'E') {
        const char *exponent = end + 1 + (end[1] == '-' || end[1] == '+'), *behind = skip_digits(exponent);
        end = behind > exponent ? behind : end;
    }
    n = (size_t)(end - s);
    if (n > LONGEST)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    if (*dot == '.')
        copy[dot - s] = *localeconv()->decimal_point;
    v = strtod(copy, NULL);
    if (!isfinite(v))
        return NULL;
    *out = v;
    return end;
}
