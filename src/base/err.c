/* err.c - the error record and the escaping of untrusted text. */
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at s (n bytes left) with its code point, or 0 when it is not one. */
static size_t utf8_at(const unsigned char *s, size_t n, uint32_t *cp)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    const size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    uint32_t v;

    if (len == 0 || len > n)
        return 0;
    v = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3fu);
    }
    if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return 0;
    *cp = v;
    return len;
}

/* Code points that may reorder or break a line of a terminal. */
static bool is_unsafe(uint32_t cp)
{
    return (cp >= 0x80 && cp < 0xa0) || cp == 0x061c || (cp >= 0x200e && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

/* nb_esc with the cut as an argument. */
static const char *esc_cut(char *out, size_t cap, const char *s, size_t n, size_t cut)
{
    const unsigned char *p = (const unsigned char *)s;
    const size_t end = n < cut ? n : cut;
    size_t o = 0, i = 0;
    char tail[32] = "";
    size_t tail_n;

    if (cap == 0)
        return out;
    if (n > cut)
        snprintf(tail, sizeof tail, "...(%zu bytes)", n);
    tail_n = strlen(tail);
    if (tail_n >= cap) { /* no room for it */
        tail[0] = 0;
        tail_n = 0;
    }
    while (i < end) {
        char one[16];
        uint32_t cp = 0;
        size_t len = utf8_at(p + i, n - i, &cp), w;

        if (len > end - i) /* a good character crosses the cut: leave it out */
            break;
        if (len == 0) {
            w = (size_t)snprintf(one, sizeof one, "\\x%02x", p[i]);
            len = 1;
        } else if (cp < 0x20 || cp == 0x7f) {
            w = (size_t)snprintf(one, sizeof one, "\\x%02x", (unsigned)cp);
        } else if (is_unsafe(cp)) {
            w = (size_t)snprintf(one, sizeof one, "\\u{%x}", (unsigned)cp);
        } else {
            memcpy(one, p + i, len);
            w = len;
        }
        if (w >= cap - tail_n - o)
            break;
        memcpy(out + o, one, w);
        o += w;
        i += len;
    }
    memcpy(out + o, tail, tail_n + 1);
    return out;
}

const char *nb_esc(char *out, size_t cap, const char *s, size_t n)
{
    return esc_cut(out, cap, s, n, 120);
}

static void copy_cut(char *out, size_t cap, const char *s)
{
    const size_t n = s ? strlen(s) : 0;
    const size_t m = n < cap - 1 ? n : cap - 1;

    if (m)
        memcpy(out, s, m);
    out[m] = 0;
}

/* vsnprintf may cut inside a character; take the broken rest off. */
static void trim_utf8(char *s)
{
    const size_t n = strlen(s);
    size_t i = n;
    uint32_t cp;

    while (i > 0 && n - i < 4 && ((unsigned char)s[i - 1] & 0xc0) == 0x80)
        i--;
    if (i > 0 && (unsigned char)s[i - 1] >= 0xc0 && utf8_at((unsigned char *)s + i - 1, n - i + 1, &cp) == 0)
        s[i - 1] = 0;
}

nb_status nb_vfail(nb_err *err, nb_status code, const char *cls, const char *rule, const char *fmt, va_list ap)
{
    int w;

    if (code == NB_OK)
        code = NB_EINTERNAL;
    if (!err || err->code != NB_OK)
        return code;
    err->code = code;
    copy_cut(err->cls, sizeof err->cls, cls && cls[0] ? cls : "internal");
    copy_cut(err->rule, sizeof err->rule, rule);
    w = vsnprintf(err->what, sizeof err->what, fmt, ap);
    if (w < 0)
        copy_cut(err->what, sizeof err->what, "(message could not be formatted)");
    else if ((size_t)w >= sizeof err->what)
        trim_utf8(err->what);
    return code;
}

nb_status nb_fail(nb_err *err, nb_status code, const char *cls, const char *rule, const char *fmt, ...)
{
    va_list ap;
    nb_status rc;

    va_start(ap, fmt);
    rc = nb_vfail(err, code, cls, rule, fmt, ap);
    va_end(ap);
    return rc;
}

void nb_err_at(nb_err *err, const char *file, const char *subject)
{
    if (!err || err->code == NB_OK)
        return;
    if (file && !err->file[0])
        esc_cut(err->file, sizeof err->file, file, strlen(file), sizeof err->file - 32);
    if (subject && !err->subject[0])
        nb_esc(err->subject, sizeof err->subject, subject, strlen(subject));
}

void nb_err_clear(nb_err *err)
{
    if (err)
        memset(err, 0, sizeof *err);
}

void nb_err_format(const nb_err *err, char *out, size_t cap)
{
    if (cap == 0)
        return;
    snprintf(out, cap, "%s%s%s%s: %s%s%s%s%s", err->cls, err->rule[0] ? " [" : "", err->rule, err->rule[0] ? "]" : "", err->file,
             err->file[0] ? ": " : "", err->subject, err->subject[0] ? ": " : "", err->what);
    trim_utf8(out);
}
