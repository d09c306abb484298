/* gram_build.c - parts of a grammar: made bottom up, numbered, in one array. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "text/gram.h"
#include "text/utf8.h"

#define DEFAULT_NODES   400000
#define DEFAULT_SECONDS 2.0
#define DEFAULT_CACHE   ((size_t)16 << 20)
#define TRIE_DEPTH      100 /* branchings of a list of texts, then plain alternatives */

bool nb_gvec_push(nb_gvec *v, uint32_t x)
{
    if (v->n == v->cap) {
        const size_t cap = v->cap ? v->cap * 2 : 16;
        size_t bytes;
        uint32_t *p;
        if (!nb_mul_size(cap, sizeof *p, &bytes) || !(p = nb_realloc(v->v, bytes)))
            return false;
        v->v = p;
        v->cap = cap;
    }
    v->v[v->n++] = x;
    return true;
}

void nb_gvec_clear(nb_gvec *v)
{
    nb_free(v->v);
    memset(v, 0, sizeof *v);
}

/* ---- builder ---- */

void nb_gbuild_init(nb_gbuild *b, const nb_glimits *lim, size_t source, int depth, nb_err *err)
{
    memset(b, 0, sizeof *b);
    if (lim)
        b->lim = *lim;
    if (!b->lim.source)
        b->lim.source = source;
    if (!b->lim.depth)
        b->lim.depth = depth;
    if (!b->lim.nodes)
        b->lim.nodes = DEFAULT_NODES;
    if (!(b->lim.seconds > 0))
        b->lim.seconds = DEFAULT_SECONDS;
    if (!b->lim.cache)
        b->lim.cache = DEFAULT_CACHE;
    b->deadline = nb_now() + b->lim.seconds;
    b->err = err;
}

void nb_gbuild_clear(nb_gbuild *b)
{
    nb_free(b->node);
    nb_gvec_clear(&b->list);
    nb_gvec_clear(&b->rules);
    nb_buf_clear(&b->text);
    memset(b, 0, sizeof *b);
}

nb_gpart nb_g_fail(nb_gbuild *b, nb_status code, const char *cls, const char *fmt, ...)
{
    va_list ap;

    if (b->rc != NB_OK)
        return 0;
    va_start(ap, fmt);
    b->rc = nb_vfail(b->err, code, cls, "", fmt, ap);
    va_end(ap);
    return 0;
}

nb_gpart nb_g_oom(nb_gbuild *b)
{
    if (b->rc == NB_OK)
        b->rc = nb_enomem(b->err, "a grammar");
    return 0;
}

nb_gpart nb_g_invalid(nb_gbuild *b, size_t at, const char *what)
{
    return nb_g_fail(b, NB_EARG, "grammar.invalid", "at byte %zu: %s", at, what);
}

static nb_gpart add(nb_gbuild *b, const nb_gnode *x)
{
    if (b->rc != NB_OK)
        return 0;
    if (b->n >= b->lim.nodes)
        return nb_g_fail(b, NB_ELIMIT, "grammar.too_complex", "the constraint has more than %zu parts", b->lim.nodes);
    if ((++b->ticks & 255) == 0 && nb_now() > b->deadline)
        return nb_g_fail(b, NB_ELIMIT, "grammar.too_complex", "the constraint takes more than %g s to compile", b->lim.seconds);
    if (b->n == b->cap) {
        const size_t cap = b->cap ? b->cap * 2 : 64;
        size_t bytes;
        nb_gnode *p;
        if (!nb_mul_size(cap, sizeof *p, &bytes) || !(p = nb_realloc(b->node, bytes)))
            return nb_g_oom(b);
        b->node = p;
        b->cap = cap;
        if (b->n == 0)
            memset(&b->node[b->n++], 0, sizeof *b->node);
    }
    b->node[b->n++] = *x;
    return (nb_gpart)(b->n - 1);
}

nb_gpart nb_g_empty(nb_gbuild *b)
{
    return add(b, &(nb_gnode){ .kind = NB_GP_EMPTY });
}

nb_gpart nb_g_never(nb_gbuild *b)
{
    return add(b, &(nb_gnode){ .kind = NB_GP_FAIL });
}

nb_gpart nb_g_range(nb_gbuild *b, unsigned lo, unsigned hi)
{
    return add(b, &(nb_gnode){ .kind = NB_GP_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi });
}

nb_gpart nb_g_lit(nb_gbuild *b, const char *s, size_t n)
{
    const size_t at = b->text.n;

    if (n == 0)
        return nb_g_empty(b);
    nb_buf_put(&b->text, s, n);
    if (b->text.failed || b->text.n > UINT32_MAX)
        return nb_g_oom(b);
    return add(b, &(nb_gnode){ .kind = NB_GP_LIT, .a = (uint32_t)at, .b = (uint32_t)n });
}

nb_gpart nb_g_text(nb_gbuild *b, const char *s)
{
    return nb_g_lit(b, s, strlen(s));
}

static nb_gpart add_list(nb_gbuild *b, uint8_t kind, const nb_gpart *v, size_t n)
{
    const size_t at = b->list.n;

    for (size_t i = 0; i < n; i++) {
        if (!v[i])
            return 0;
        if (!nb_gvec_push(&b->list, v[i]))
            return nb_g_oom(b);
    }
    if (n == 1)
        return v[0];
    return add(b, &(nb_gnode){ .kind = kind, .a = (uint32_t)at, .b = (uint32_t)n });
}

nb_gpart nb_g_seq(nb_gbuild *b, const nb_gpart *v, size_t n)
{
    return n ? add_list(b, NB_GP_SEQ, v, n) : nb_g_empty(b);
}

nb_gpart nb_g_alt(nb_gbuild *b, const nb_gpart *v, size_t n)
{
    return n ? add_list(b, NB_GP_ALT, v, n) : nb_g_never(b);
}

nb_gpart nb_g_seq2(nb_gbuild *b, nb_gpart x, nb_gpart y)
{
    return nb_g_seq(b, (const nb_gpart[]){ x, y }, 2);
}

nb_gpart nb_g_alt2(nb_gbuild *b, nb_gpart x, nb_gpart y)
{
    return nb_g_alt(b, (const nb_gpart[]){ x, y }, 2);
}

nb_gpart nb_g_rep(nb_gbuild *b, nb_gpart x, uint32_t least, uint32_t most)
{
    if (!x)
        return 0;
    if (most == 0)
        return nb_g_empty(b);
    if (least == 1 && most == 1)
        return x;
    return add(b, &(nb_gnode){ .kind = NB_GP_REP, .a = x, .b = least, .c = most });
}

nb_gpart nb_g_opt(nb_gbuild *b, nb_gpart x)
{
    return nb_g_rep(b, x, 0, 1);
}

uint32_t nb_g_rule_new(nb_gbuild *b)
{
    if (b->rc != NB_OK)
        return 0;
    if (b->rules.n >= b->lim.nodes)
        return nb_g_fail(b, NB_ELIMIT, "grammar.too_complex", "the constraint has more than %zu rules", b->lim.nodes);
    return nb_gvec_push(&b->rules, 0) ? (uint32_t)b->rules.n : nb_g_oom(b);
}

nb_gpart nb_g_call(nb_gbuild *b, uint32_t rule)
{
    return rule ? add(b, &(nb_gnode){ .kind = NB_GP_RULE, .a = rule - 1 }) : 0;
}

nb_gpart nb_g_shared(nb_gbuild *b, nb_gpart x)
{
    const uint32_t rule = x ? nb_g_rule_new(b) : 0;

    if (rule)
        b->rules.v[rule - 1] = x;
    return nb_g_call(b, rule);
}

/* ---- lists of texts ---- */

typedef struct text_view {
    const char *p;
    size_t n;
} text_view;

static int by_bytes(const void *x, const void *y)
{
    const text_view *a = x, *b = y;
    const size_t n = a->n < b->n ? a->n : b->n;
    const int c = n ? memcmp(a->p, b->p, n) : 0;

    return c ? c : (a->n > b->n) - (a->n < b->n);
}

/* Sorted texts v[n], the first `at` bytes of which are done. */
static nb_gpart trie(nb_gbuild *b, const text_view *v, size_t n, size_t at, int depth)
{
    size_t same = v[0].n, i = 0;
    nb_gvec alt = { 0 };
    nb_gpart head, rest;

    for (size_t k = at; k < same; k++) /* of sorted texts the first and the last differ most */
        if (k >= v[n - 1].n || v[0].p[k] != v[n - 1].p[k])
            same = k;
    head = nb_g_lit(b, v[0].p + at, same - at);
    if (v[0].n == same) {
        while (i < n && v[i].n == same)
            i++;
        if (i == n || !head)
            return head;
        if (!nb_gvec_push(&alt, nb_g_empty(b)))
            nb_g_oom(b);
    }
    while (i < n && b->rc == NB_OK) {
        size_t k = i + 1;
        while (depth < TRIE_DEPTH && k < n && v[k].p[same] == v[i].p[same])
            k++;
        rest = depth < TRIE_DEPTH ? trie(b, v + i, k - i, same, depth + 1) : nb_g_lit(b, v[i].p + same, v[i].n - same);
        if (!nb_gvec_push(&alt, rest))
            nb_g_oom(b);
        i = k;
    }
    rest = b->rc == NB_OK ? nb_g_alt(b, alt.v, alt.n) : 0;
    nb_gvec_clear(&alt);
    return nb_g_seq2(b, head, rest);
}

nb_gpart nb_g_choice(nb_gbuild *b, const nb_json *list, bool quote)
{
    const size_t n = nb_json_len(list);
    text_view *v = nb_alloc_array(n ? n : 1, sizeof *v);
    size_t *off = nb_alloc_array(n + 1, sizeof *off);
    nb_buf all = { 0 };
    nb_gpart p = 0;

    for (size_t i = 0; v && off && i < n; i++) {
        const nb_json *s = nb_json_at(list, i);
        off[i] = all.n;
        if (quote)
            nb_json_put_str(&all, nb_json_str(s, ""), nb_json_str_len(s));
        else
            nb_buf_put(&all, nb_json_str(s, ""), nb_json_str_len(s));
        off[i + 1] = all.n;
    }
    if (!v || !off || all.failed) {
        nb_g_oom(b);
    } else if (n == 0) {
        p = nb_g_never(b);
    } else {
        for (size_t i = 0; i < n; i++)
            v[i] = (text_view){ all.p ? all.p + off[i] : "", off[i + 1] - off[i] };
        qsort(v, n, sizeof *v, by_bytes);
        p = trie(b, v, n, 0, 0);
    }
    nb_free(v);
    nb_free(off);
    nb_buf_clear(&all);
    return p;
}

/* ---- sets of characters ---- */

bool nb_gset_add(nb_gset *s, uint32_t lo, uint32_t hi)
{
    return nb_gvec_push(&s->v, lo) && nb_gvec_push(&s->v, hi);
}

static int by_low(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return (a > b) - (a < b);
}

bool nb_gset_norm(nb_gset *s)
{
    uint32_t *v = s->v.v;
    size_t k = 0;

    if (s->v.n == 0)
        return true;
    qsort(v, s->v.n / 2, 2 * sizeof *v, by_low);
    for (size_t i = 2; i < s->v.n; i += 2) {
        if (v[i] <= v[k + 1] || v[i] == v[k + 1] + 1) {
            if (v[i + 1] > v[k + 1])
                v[k + 1] = v[i + 1];
        } else {
            k += 2;
            v[k] = v[i];
            v[k + 1] = v[i + 1];
        }
    }
    s->v.n = k + 2;
    return true;
}

/* Add [lo, hi] without the surrogates. */
static bool add_scalars(nb_gset *s, uint32_t lo, uint32_t hi)
{
    bool ok = true;

    if (lo <= hi && lo < 0xD800)
        ok = nb_gset_add(s, lo, hi < 0xD800 ? hi : 0xD7FF);
    if (ok && lo <= hi && hi > 0xDFFF)
        ok = nb_gset_add(s, lo > 0xDFFF ? lo : 0xE000, hi);
    return ok;
}

bool nb_gset_invert(nb_gset *s)
{
    nb_gset out = { 0 };
    uint32_t from = 0;
    bool ok = nb_gset_norm(s);

    for (size_t i = 0; ok && i < s->v.n; i += 2) {
        if (s->v.v[i] > from)
            ok = add_scalars(&out, from, s->v.v[i] - 1);
        from = s->v.v[i + 1] + 1;
    }
    if (ok && from <= 0x10FFFF)
        ok = add_scalars(&out, from, 0x10FFFF);
    nb_gvec_clear(&s->v);
    *s = out;
    return ok;
}

bool nb_gset_has(const nb_gset *s, uint32_t cp)
{
    for (size_t i = 0; i < s->v.n; i += 2) {
        if (cp >= s->v.v[i] && cp <= s->v.v[i + 1])
            return true;
    }
    return false;
}

/* Characters [lo, hi] whose UTF-8 has n bytes, as alternatives of sequences of byte ranges. */
static bool utf8_range(nb_gbuild *b, nb_gvec *alt, uint32_t lo, uint32_t hi)
{
    char x[4], y[4];
    nb_gpart part[4];
    const size_t n = nb_u8_put(x, lo);

    for (size_t i = n - 1; i > 0; i--) { /* split until only whole trailing blocks are left */
        const uint32_t m = ((uint32_t)1 << 6 * i) - 1;
        if ((lo & ~m) == (hi & ~m))
            continue;
        if (lo & m)
            return utf8_range(b, alt, lo, lo | m) && utf8_range(b, alt, (lo | m) + 1, hi);
        if ((hi & m) != m)
            return utf8_range(b, alt, lo, (hi & ~m) - 1) && utf8_range(b, alt, hi & ~m, hi);
    }
    nb_u8_put(x, lo);
    nb_u8_put(y, hi);
    for (size_t i = 0; i < n; i++)
        part[i] = nb_g_range(b, (unsigned char)x[i], (unsigned char)y[i]);
    return nb_gvec_push(alt, nb_g_seq(b, part, n));
}

static bool push_range(nb_gbuild *b, nb_gvec *alt, uint32_t lo, uint32_t hi)
{
    static const uint32_t last[] = { 0x7F, 0x7FF, 0xFFFF, 0x10FFFF };
    bool ok = true;

    for (size_t i = 0; ok && i < NB_LEN(last) && lo <= hi; i++) {
        if (lo > last[i])
            continue;
        const uint32_t end = hi < last[i] ? hi : last[i];
        nb_gset cut = { 0 };
        ok = add_scalars(&cut, lo, end);
        for (size_t k = 0; ok && k < cut.v.n; k += 2)
            ok = utf8_range(b, alt, cut.v.v[k], cut.v.v[k + 1]);
        nb_gvec_clear(&cut.v);
        lo = end + 1;
    }
    return ok;
}

/* The escapes of characters that a JSON string cannot hold plain. */
static bool push_escaped(nb_gbuild *b, nb_gvec *alt, const nb_gset *s)
{
    static const char *const brief = "\"\\\b\f\n\r\t", *const letter = "\"\\bfnrt";
    bool ok = true;

    for (uint32_t c = 0; ok && c < 0x60; c++) {
        const char *p = c ? strchr(brief, (int)c) : NULL;
        char text[8];
        if ((c >= 0x20 && c != '"' && c != '\\') || !nb_gset_has(s, c))
            continue;
        if (p)
            snprintf(text, sizeof text, "\\%c", letter[p - brief]);
        else
            snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        ok = nb_gvec_push(alt, nb_g_text(b, text));
    }
    return ok;
}

nb_gpart nb_g_chars(nb_gbuild *b, nb_gset *s, bool json)
{
    nb_gvec alt = { 0 };
    nb_gpart p;
    bool ok = nb_gset_norm(s);

    for (size_t i = 0; ok && i < s->v.n; i += 2) {
        uint32_t lo = s->v.v[i], hi = s->v.v[i + 1];
        if (json && lo < 0x60) { /* around control characters, the quote and the backslash */
            static const uint32_t plain[][2] = { { 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x5F } };
            for (size_t k = 0; ok && k < NB_LEN(plain); k++) {
                const uint32_t x = lo > plain[k][0] ? lo : plain[k][0], y = hi < plain[k][1] ? hi : plain[k][1];
                if (x <= y)
                    ok = push_range(b, &alt, x, y);
            }
            lo = 0x60;
        }
        ok = ok && push_range(b, &alt, lo, hi);
    }
    if (ok && json)
        ok = push_escaped(b, &alt, s);
    if (!ok)
        nb_g_oom(b);
    p = b->rc == NB_OK ? nb_g_alt(b, alt.v, alt.n) : 0;
    nb_gvec_clear(&alt);
    return p;
}
