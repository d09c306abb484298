#include "text/base64.h"

#include <stdint.h>

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool nb_base64(nb_buf *out, const char *s, size_t n)
{
    size_t pad = 0;

    if (n % 4 != 0)
        return false;
    while (pad < 2 && pad < n && s[n - 1 - pad] == '=')
        pad++;
    for (size_t i = 0; i < n; i += 4) {
        const size_t k = i + 4 == n ? 4 - pad : 4;
        uint32_t v = 0;
        char b[3];
        for (size_t d = 0; d < 4; d++) {
            const int x = d < k ? digit(s[i + d]) : 0;
            if (x < 0)
                return false;
            v = v << 6 | (uint32_t)x;
        }
        b[0] = (char)(v >> 16);
        b[1] = (char)(v >> 8);
        b[2] = (char)v;
        nb_buf_put(out, b, k - 1);
    }
    return !out->failed;
}
