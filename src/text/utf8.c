#include "text/utf8.h"

#include <string.h>

size_t nb_u8_prev(const char *s, size_t n, uint32_t *cp)
{
    size_t len = 1;

    while (len < n && len < 4 && ((unsigned char)s[n - len] & 0xC0) == 0x80)
        len++;
    (void)nb_u8_next(s + n - len, len, cp, NULL);
    return len;
}

size_t nb_u8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

void nb_u8_append(nb_buf *b, uint32_t cp)
{
    char t[4];

    nb_buf_put(b, t, nb_u8_put(t, cp));
}

nb_status nb_u8_text(const char *s, size_t n, const char *way, nb_err *err)
{
    const char *p = n ? memchr(s, 0, n) : NULL;
    const size_t zero = p ? (size_t)(p - s) : n, bad = nb_u8_check(s, n);

    if (bad < zero)
        return nb_fail(err, NB_EFORMAT, "tok.utf8", "", "the text is not valid UTF-8 at byte %zu; %s", bad, way);
    if (zero < n)
        return nb_fail(err, NB_EFORMAT, "tok.utf8", "", "the text has a zero byte at offset %zu; %s", zero, way);
    return NB_OK;
}

void nb_u8_repair(nb_buf *out, const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        const size_t good = nb_u8_check(s + i, n - i);
        uint32_t cp;

        nb_buf_put(out, s + i, good);
        i += good;
        if (i < n) {
            i += (size_t)-nb_u8_next(s + i, n - i, &cp, NULL);
            nb_buf_puts(out, NB_FFFD);
        }
    }
}

void nb_u8_feed(nb_u8_stream *st, const char *s, size_t n, nb_buf *out)
{
    while (st->n_held > 0 && n > 0) { /* a byte at a time until the held character is decided */
        uint32_t cp;
        bool cut;
        int k;

        st->held[st->n_held++] = *s++;
        n--;
        k = nb_u8_next(st->held, st->n_held, &cp, &cut);
        if (cut)
            continue;
        if (k > 0) {
            nb_buf_put(out, st->held, (size_t)k);
        } else { /* the part before the new byte is ill-formed; the byte starts afresh */
            nb_buf_puts(out, NB_FFFD);
            s--;
            n++;
        }
        st->n_held = 0;
    }
    while (n > 0) {
        const size_t good = nb_u8_check(s, n);
        uint32_t cp;
        bool cut;
        int k;

        nb_buf_put(out, s, good);
        s += good;
        n -= good;
        if (n == 0)
            break;
        k = nb_u8_next(s, n, &cp, &cut);
        if (cut) {
            memcpy(st->held, s, n);
            st->n_held = n;
            break;
        }
        nb_buf_puts(out, NB_FFFD);
        s += -k;
        n -= (size_t)-k;
    }
}

void nb_u8_flush(nb_u8_stream *st, nb_buf *out)
{
    if (st->n_held > 0)
        nb_buf_puts(out, NB_FFFD);
    st->n_held = 0;
}

static bool is_plain(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* The 68 bytes that are not plain, in order: 00-20, 7F-A0, AD; they map to U+0100, U+0101, ... */
uint32_t nb_byte_char(unsigned char b)
{
    if (is_plain(b))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    if (b <= 0xA0)
        return 0x100u + 33u + (b - 0x7Fu);
    return 0x143u;
}

int nb_char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return is_plain(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

bool nb_standin_bytes(nb_buf *out, const char *s, size_t n)
{
    const size_t before = out->n;
    size_t i = 0;

    while (i < n) {
        uint32_t cp;
        const int k = nb_u8_next(s + i, n - i, &cp, NULL);
        const int b = k < 0 ? -1 : nb_char_byte(cp);

        if (b < 0) {
            out->n = before;
            return false;
        }
        nb_buf_putc(out, (char)b);
        i += (size_t)k;
    }
    return true;
}

nb_status nb_needle_init(nb_needle *d, const char *s, size_t n, nb_err *err)
{
    d->s = nb_strndup(s, n);
    d->n = n;
    d->fail = nb_alloc_array(n + 1, sizeof *d->fail);
    if (!d->s || !d->fail)
        return nb_enomem(err, "a search pattern");
    d->fail[0] = 0;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && s[i] != s[k])
            k = d->fail[k - 1];
        if (s[i] == s[k])
            k++;
        d->fail[i] = k;
    }
    return NB_OK;
}

void nb_needle_clear(nb_needle *d)
{
    nb_free(d->s);
    nb_free(d->fail);
    memset(d, 0, sizeof *d);
}

size_t nb_needle_find(const nb_needle *d, const char *text, size_t n, size_t from)
{
    size_t k = 0;

    if (d->n == 0)
        return n;
    for (size_t i = from; i < n; i++) {
        if (k == 0) {
            const char *p = memchr(text + i, d->s[0], n - i);
            if (!p)
                return n;
            i = (size_t)(p - text);
        }
        while (k > 0 && text[i] != d->s[k])
            k = d->fail[k - 1];
        if (text[i] == d->s[k])
            k++;
        if (k == d->n)
            return i + 1 - k;
    }
    return n;
}

nb_status nb_spans_push(nb_spans *l, size_t off, size_t n, nb_err *err)
{
    if (l->n == l->cap) {
        const size_t cap = l->cap ? l->cap * 2 : 64;
        size_t bytes;
        nb_span *v;

        if (!nb_mul_size(cap, sizeof *v, &bytes) || !(v = nb_realloc(l->v, bytes)))
            return nb_enomem(err, "the pieces of a text");
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n].off = off;
    l->v[l->n++].n = n;
    return NB_OK;
}

void nb_spans_clear(nb_spans *l)
{
    nb_free(l->v);
    memset(l, 0, sizeof *l);
}

nb_buf *nb_flip_next(nb_flip *f)
{
    f->cur ^= 1;
    f->b[f->cur].n = 0;
    return &f->b[f->cur];
}

void nb_flip_clear(nb_flip *f)
{
    nb_buf_clear(&f->b[0]);
    nb_buf_clear(&f->b[1]);
    f->cur = 0;
}
