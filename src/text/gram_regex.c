/* gram_regex.c - regular expressions as parts of a grammar: alternatives, groups, classes, repeats, anchors at the ends of
 * the whole. What needs memory or a look around (back-references, assertions) is refused by name. */
#include <string.h>

#include "text/gram.h"
#include "text/utf8.h"

typedef struct reader {
    nb_gbuild *b;
    const char *s;
    size_t n, at;
    int depth;
    nb_gjson *json; /* NULL: plain text */
    bool search;    /* an alternative of the whole may stand anywhere */
} reader;

static nb_gpart bad(reader *r, const char *what)
{
    return nb_g_fail(r->b, NB_EARG, "grammar.invalid", "the regular expression at byte %zu: %s", r->at, what);
}

static nb_gpart lacking(reader *r, const char *what)
{
    return nb_g_fail(r->b, NB_EUNSUPPORTED, "grammar.unsupported", "the regular expression at byte %zu has %s, which is not supported",
                     r->at, what);
}

static bool ahead(const reader *r, const char *text)
{
    const size_t k = strlen(text);

    return r->n - r->at >= k && memcmp(r->s + r->at, text, k) == 0;
}

static bool eat(reader *r, char c)
{
    if (r->at >= r->n || r->s[r->at] != c)
        return false;
    r->at++;
    return true;
}

static int peek(const reader *r)
{
    return r->at < r->n ? (unsigned char)r->s[r->at] : -1;
}

/* ---- classes ---- */

static bool add_named(nb_gset *out, char c)
{
    static const uint32_t digits[] = { '0', '9' }, word[] = { '0', '9', 'A', 'Z', '_', '_', 'a', 'z' };
    static const uint32_t space[] = { 9,      13,     ' ',    ' ',    0xA0,   0xA0,   0x1680, 0x1680, 0x2000, 0x200A,
                                      0x2028, 0x2029, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF };
    const char low = c | 0x20;
    const uint32_t *v = low == 'd' ? digits : low == 'w' ? word : space;
    const size_t n = low == 'd' ? NB_LEN(digits) : low == 'w' ? NB_LEN(word) : NB_LEN(space);
    nb_gset s = { 0 };
    bool ok = true;

    for (size_t i = 0; ok && i < n; i += 2)
        ok = nb_gset_add(&s, v[i], v[i + 1]);
    if (ok && c != low)
        ok = nb_gset_invert(&s);
    for (size_t i = 0; ok && i < s.v.n; i += 2)
        ok = nb_gset_add(out, s.v.v[i], s.v.v[i + 1]);
    nb_gvec_clear(&s.v);
    return ok;
}

static bool hex(reader *r, size_t least, size_t most, uint32_t *out)
{
    size_t k = 0;

    *out = 0;
    for (; k < most && r->at < r->n; k++, r->at++) {
        const char c = r->s[r->at];
        const int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            break;
        *out = *out * 16 + (uint32_t)d;
    }
    return k >= least;
}

/* What stands behind a backslash: one character in *cp, or a class added to set (*cp is UINT32_MAX then). */
static bool escape(reader *r, nb_gset *set, bool in_class, uint32_t *cp)
{
    static const char *const from = "nrtfv", *const to = "\n\r\t\f\v";
    const int c = peek(r);
    const char *p;
    bool ok;

    *cp = UINT32_MAX;
    if (c <= 0)
        return bad(r, c ? "a backslash at the end" : "the character NUL");
    r->at++;
    if (strchr("dDwWsS", c))
        return add_named(set, (char)c) ? true : nb_g_oom(r->b);
    if ((p = strchr(from, c))) {
        *cp = (unsigned char)to[p - from];
        return true;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        if (c == 'u' && eat(r, '{'))
            ok = hex(r, 1, 6, cp) && eat(r, '}');
        else
            ok = hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, c == 'x' ? 2 : c == 'u' ? 4 : 8, cp);
        if (ok && *cp >= 0xD800 && *cp < 0xDC00 && ahead(r, "\\u")) { /* a pair of surrogates */
            uint32_t low;
            r->at += 2;
            ok = hex(r, 4, 4, &low) && low >= 0xDC00 && low <= 0xDFFF;
            *cp = 0x10000 + ((*cp & 0x3FF) << 10) + (low & 0x3FF);
        }
        if (!ok || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF))
            return bad(r, "an escape of a character that is none");
        return *cp ? true : bad(r, "the character NUL");
    }
    if (c == 'b' && in_class) {
        *cp = 8;
        return true;
    }
    r->at--;
    if (c == '0')
        return bad(r, "the character NUL");
    if (c >= '1' && c <= '9')
        return lacking(r, "a back-reference");
    if (c == 'k')
        return lacking(r, "a back-reference");
    if (strchr("bBAzZG", c))
        return lacking(r, "an assertion");
    if (c == 'p' || c == 'P')
        return lacking(r, "a class of character properties");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return bad(r, "an unknown escape");
    r->at += (size_t)nb_u8_next(r->s + r->at, r->n - r->at, cp, NULL);
    return true;
}

static nb_gpart chars(reader *r, nb_gset *set)
{
    const nb_gpart p = r->b->rc == NB_OK ? nb_g_chars(r->b, set, r->json != NULL) : 0;

    nb_gvec_clear(&set->v);
    return p;
}

/* One member of a class: a character, or a named class (UINT32_MAX). */
static bool member(reader *r, nb_gset *set, uint32_t *cp)
{
    if (eat(r, '\\'))
        return escape(r, set, true, cp);
    if (ahead(r, "[:"))
        return lacking(r, "a named class");
    r->at += (size_t)nb_u8_next(r->s + r->at, r->n - r->at, cp, NULL);
    return true;
}

static nb_gpart class_of(reader *r)
{
    nb_gset set = { 0 };
    const bool invert = eat(r, '^');
    bool first = true, ok = true;

    while (ok && r->b->rc == NB_OK) {
        uint32_t lo, hi;
        if (r->at >= r->n) {
            bad(r, "a class without its closing bracket");
            break;
        }
        if (peek(r) == ']' && !first) {
            r->at++;
            break;
        }
        first = false;
        if (!member(r, &set, &lo))
            break;
        hi = lo;
        if (lo != UINT32_MAX && peek(r) == '-' && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            if (!member(r, &set, &hi))
                break;
            if (hi == UINT32_MAX || hi < lo) {
                bad(r, "a range of a class that is none");
                break;
            }
        }
        if (lo != UINT32_MAX)
            ok = nb_gset_add(&set, lo, hi);
    }
    ok = ok && (!invert || nb_gset_invert(&set));
    if (!ok)
        nb_g_oom(r->b);
    return chars(r, &set);
}

static nb_gpart one(reader *r, uint32_t cp)
{
    nb_gset set = { 0 };

    if (cp == 0)
        return bad(r, "the character NUL");
    if (!nb_gset_add(&set, cp, cp))
        return nb_g_oom(r->b);
    return chars(r, &set);
}

static nb_gpart dot(reader *r)
{
    nb_gset set = { 0 };

    if (!nb_gset_add(&set, '\n', '\n') || (r->json && (!nb_gset_add(&set, '\r', '\r') || !nb_gset_add(&set, 0x2028, 0x2029))) ||
        !nb_gset_invert(&set))
        nb_g_oom(r->b);
    return chars(r, &set);
}

/* ---- structure ---- */

static nb_gpart alternatives(reader *r, bool top);

static nb_gpart group(reader *r)
{
    nb_gpart p;

    if (eat(r, '?')) {
        if (eat(r, 'P') && !ahead(r, "<"))
            return lacking(r, "a back-reference");
        if (ahead(r, "=") || ahead(r, "!") || ahead(r, "<=") || ahead(r, "<!"))
            return lacking(r, "a look around");
        if (eat(r, '<')) {
            while (r->at < r->n && r->s[r->at] != '>')
                r->at++;
            if (!eat(r, '>'))
                return bad(r, "a name of a group without its end");
        } else if (!eat(r, ':')) {
            return lacking(r, "a special kind of group");
        }
    }
    if (++r->depth > r->b->lim.depth)
        return nb_g_fail(r->b, NB_ELIMIT, "grammar.too_complex", "the regular expression is nested deeper than %d", r->b->lim.depth);
    p = alternatives(r, false);
    r->depth--;
    if (r->b->rc == NB_OK && !eat(r, ')'))
        return bad(r, "a group without its closing parenthesis");
    return p;
}

static nb_gpart atom(reader *r)
{
    nb_gset set = { 0 };
    uint32_t cp;

    switch (peek(r)) {
    case '(':
        r->at++;
        return group(r);
    case '[':
        r->at++;
        return class_of(r);
    case '.':
        r->at++;
        return dot(r);
    case '\\':
        r->at++;
        if (!escape(r, &set, false, &cp)) {
            nb_gvec_clear(&set.v);
            return 0;
        }
        return cp == UINT32_MAX ? chars(r, &set) : one(r, cp);
    case '*':
    case '+':
    case '?':
        return bad(r, "nothing stands before a repeat");
    case '^':
    case '$':
        return lacking(r, "an anchor inside");
    default:
        r->at += (size_t)nb_u8_next(r->s + r->at, r->n - r->at, &cp, NULL);
        return one(r, cp);
    }
}

static bool count(reader *r, uint32_t *out)
{
    uint64_t v = 0;
    const size_t from = r->at;

    for (; r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        v = v < NB_G_INF ? v * 10 + (uint64_t)(r->s[r->at] - '0') : v;
    *out = v < NB_G_INF ? (uint32_t)v : NB_G_INF - 1;
    return r->at > from;
}

/* {m}, {m,}, {m,n}; false: the brace is a plain character. */
static bool braces(reader *r, uint32_t *least, uint32_t *most)
{
    const size_t from = r->at;
    bool ok = eat(r, '{') && count(r, least);

    *most = *least;
    if (ok && eat(r, ',') && !count(r, most))
        *most = NB_G_INF;
    ok = ok && eat(r, '}');
    if (!ok)
        r->at = from;
    return ok;
}

static bool repeat(reader *r, uint32_t *least, uint32_t *most)
{
    *least = 0;
    *most = NB_G_INF;
    if (eat(r, '*'))
        return true;
    if (eat(r, '+')) {
        *least = 1;
        return true;
    }
    if (eat(r, '?')) {
        *most = 1;
        return true;
    }
    return braces(r, least, most);
}

static nb_gpart repeated(reader *r)
{
    nb_gpart p = atom(r);
    uint32_t least, most, x, y;

    if (!p || !repeat(r, &least, &most))
        return p;
    if (least > most)
        return bad(r, "a repeat with more wanted than allowed");
    if (peek(r) == '+')
        return lacking(r, "a possessive repeat");
    if (!eat(r, '?') && repeat(r, &x, &y)) /* a lazy one matches the same */
        return bad(r, "a repeat of a repeat");
    return nb_g_rep(r->b, p, least, most);
}

/* Up to | or ) or the end. */
static nb_gpart sequence(reader *r, bool top)
{
    const bool from = top && eat(r, '^');
    nb_gvec parts = { 0 };
    bool till = false, ok = true;
    nb_gpart p;

    if (r->search && top && !from)
        ok = nb_gvec_push(&parts, nb_gj_characters(r->json));
    while (ok && r->b->rc == NB_OK && r->at < r->n && peek(r) != '|' && peek(r) != ')') {
        if (top && peek(r) == '$' && (r->at + 1 == r->n || r->s[r->at + 1] == '|')) {
            r->at++;
            till = true;
            break;
        }
        ok = nb_gvec_push(&parts, repeated(r));
    }
    if (ok && r->search && top && !till)
        ok = nb_gvec_push(&parts, nb_gj_characters(r->json));
    if (!ok)
        nb_g_oom(r->b);
    p = r->b->rc == NB_OK ? nb_g_seq(r->b, parts.v, parts.n) : 0;
    nb_gvec_clear(&parts);
    return p;
}

static nb_gpart alternatives(reader *r, bool top)
{
    nb_gvec list = { 0 };
    nb_gpart p;
    bool ok;

    do
        ok = nb_gvec_push(&list, sequence(r, top));
    while (ok && r->b->rc == NB_OK && eat(r, '|'));
    if (!ok)
        nb_g_oom(r->b);
    p = r->b->rc == NB_OK ? nb_g_alt(r->b, list.v, list.n) : 0;
    nb_gvec_clear(&list);
    return p;
}

static nb_gpart whole(reader *r)
{
    const size_t bad_at = nb_u8_check(r->s, r->n);
    nb_gpart p;

    if (bad_at < r->n) {
        r->at = bad_at;
        return bad(r, "not valid UTF-8");
    }
    p = alternatives(r, true);
    if (r->b->rc == NB_OK && r->at < r->n)
        return bad(r, "a closing parenthesis without its opening one");
    return p;
}

nb_gpart nb_g_regex(nb_gbuild *b, const char *re, size_t n, nb_gjson *json)
{
    reader r = { .b = b, .s = re, .n = n, .json = json };

    return whole(&r);
}

nb_gpart nb_g_pattern(nb_gbuild *b, const char *re, size_t n, nb_gjson *json)
{
    reader r = { .b = b, .s = re, .n = n, .json = json, .search = true };

    return whole(&r);
}
