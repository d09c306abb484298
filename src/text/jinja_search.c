/* jinja_search.c - text routines that methods and filters share: search, strip, replace, pad, lines. All are linear, and
 * charge steps by the bytes they look at. */
#include "text/jinja.h"

#include <string.h>

#include "text/utf8.h"

const jstr *nb_j_need_str(jrun *r, jval v, const char *what)
{
    if (v.t != J_STR)
        nb_j_fail(r, "%s wants a text, not a %s", what, nb_j_type_name(v));
    return v.u.s;
}

int64_t nb_j_need_int(jrun *r, jval v, const char *what)
{
    int64_t i;

    if (!nb_j_as_int(v, &i))
        nb_j_fail(r, "%s wants an integer, not a %s", what, nb_j_type_name(v));
    return i;
}

/* ---- search, strip, replace, pad ---- */

size_t nb_j_find(jrun *r, const jstr *s, size_t from, const jstr *what)
{
    const size_t n = s->n, m = what->n;
    size_t *fail;

    if (m > n || from > n - m)
        return SIZE_MAX;
    if (m == 0)
        return from;
    nb_j_charge(r, 1 + m / 16);
    if (m <= 16) { /* short ones by hand: at most 16 comparisons a byte */
        for (size_t i = from; i <= n - m; i++) {
            const char *hit = memchr(s->s + i, what->s[0], n - m - i + 1);
            nb_j_charge(r, hit ? ((size_t)(hit - s->s) - i) / 64 + ((size_t)(hit - s->s) % 4 == 0) : (n - i) / 64);
            if (!hit)
                return SIZE_MAX;
            i = (size_t)(hit - s->s);
            if (memcmp(hit, what->s, m) == 0)
                return i;
        }
        return SIZE_MAX;
    }
    fail = nb_j_alloc(r, m * sizeof *fail); /* Knuth, Morris, Pratt */
    fail[0] = 0;
    for (size_t i = 1, k = 0; i < m; fail[i++] = k) {
        while (k && what->s[i] != what->s[k])
            k = fail[k - 1];
        k += what->s[i] == what->s[k];
    }
    for (size_t i = from, k = 0; i < n; i++) {
        while (k && s->s[i] != what->s[k])
            k = fail[k - 1];
        k += s->s[i] == what->s[k];
        if (k == m) {
            nb_j_charge(r, (i - from) / 16);
            return i + 1 - m;
        }
    }
    nb_j_charge(r, (n - from) / 16);
    return SIZE_MAX;
}

size_t nb_j_find_last(jrun *r, const jstr *s, size_t end, const jstr *what)
{
    const size_t begin = end >= what->n ? end - what->n + 1 : 0;

    for (size_t i = begin; i-- > 0;) {
        const bool maybe = what->n == 0 || s->s[i] == what->s[0];
        if (maybe)
            nb_j_charge(r, 1 + what->n / 64);
        if (maybe && (what->n == 0 || memcmp(s->s + i, what->s, what->n) == 0)) {
            nb_j_charge(r, (begin - i) / 16);
            return i;
        }
    }
    nb_j_charge(r, begin / 16);
    return SIZE_MAX;
}

static bool in_set(const jstr *set, const char *c, size_t k)
{
    for (size_t i = 0; i + k <= set->n; i++)
        if (memcmp(set->s + i, c, k) == 0)
            return true;
    return false;
}

jval nb_j_strip(jrun *r, jval v, jval chars, int ends)
{
    const jstr *set = nb_j_given(chars) ? nb_j_need_str(r, chars, "strip") : NULL;
    const jstr *s = v.u.s;
    size_t a = 0, b = s->n;
    uint32_t cp;
    jval out;

    while ((ends & 1) && a < b) {
        const size_t k = (size_t)nb_u8_next(s->s + a, b - a, &cp, NULL);
        nb_j_charge(r, set ? set->n / 16 : 0);
        if (!(set ? in_set(set, s->s + a, k) : nb_j_space(cp)))
            break;
        a += k;
    }
    while ((ends & 2) && b > a) {
        const size_t k = nb_u8_prev(s->s, b, &cp);
        nb_j_charge(r, set ? set->n / 16 : 0);
        if (!(set ? in_set(set, s->s + b - k, k) : nb_j_space(cp)))
            break;
        b -= k;
    }
    nb_j_charge(r, (s->n - (b - a)) / 64);
    if (b - a == s->n)
        return v;
    out = nb_j_view(r, s->s + a, b - a);
    out.safe = v.safe;
    return out;
}

jval nb_j_replace(jrun *r, const jstr *s, const jstr *a, const jstr *b, int64_t most)
{
    const size_t mark = nb_j_mark(r);
    size_t at = 0;

    for (int64_t k = 0; most < 0 || k < most; k++) {
        size_t hit;
        if (a->n == 0) { /* before every character, and at the end */
            nb_j_charge(r, 1);
            nb_j_put(r, b->s, b->n);
            if (at == s->n)
                break;
            for (hit = at + 1; hit < s->n && ((unsigned char)s->s[hit] & 0xC0) == 0x80;)
                hit++;
            nb_j_put(r, s->s + at, hit - at);
            at = hit;
            if (most >= 0 && k + 1 == most)
                break;
            continue;
        }
        hit = nb_j_find(r, s, at, a);
        if (hit == SIZE_MAX)
            break;
        nb_j_put(r, s->s + at, hit - at);
        nb_j_put(r, b->s, b->n);
        at = hit + a->n;
    }
    nb_j_put(r, s->s + at, s->n - at);
    return nb_j_take(r, mark);
}

jval nb_j_pad(jrun *r, const jstr *s, int64_t width, int where, uint32_t fill)
{
    const size_t mark = nb_j_mark(r);
    const size_t all = width > 0 && (uint64_t)width > s->chars ? (size_t)width - s->chars : 0;
    const size_t odd = all & (size_t)width & 1; /* Python's str.center puts the odd blank left when the width is odd */
    const size_t left = where < 0 ? 0 : where > 0 ? all : all / 2 + odd;
    char f[4];
    const size_t k = nb_u8_put(f, fill);

    nb_j_room(r, all);
    for (size_t i = 0; i < left; i++)
        nb_j_put(r, f, k);
    nb_j_put(r, s->s, s->n);
    for (size_t i = left; i < all; i++)
        nb_j_put(r, f, k);
    return nb_j_take(r, mark);
}

jval *nb_j_lines(jrun *r, const jstr *s, bool keep_ends, size_t *n)
{
    jval out = nb_j_list(r, 0);
    size_t from = 0;

    nb_j_charge(r, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        size_t k = (size_t)nb_u8_next(s->s + i, s->n - i, &cp, NULL);
        if (!((cp >= '\n' && cp <= '\r') || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029)) {
            i += k;
            continue;
        }
        if (cp == '\r' && i + 1 < s->n && s->s[i + 1] == '\n')
            k = 2;
        nb_j_append(r, out.u.l, nb_j_view(r, s->s + from, i - from + (keep_ends ? k : 0)));
        i += k;
        from = i;
    }
    if (from < s->n)
        nb_j_append(r, out.u.l, nb_j_view(r, s->s + from, s->n - from));
    *n = out.u.l->n;
    return out.u.l->v;
}
