#include "text/onig.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "text/utf8.h"

/* White_Space without U+180E, which PCRE2's \s has; Oniguruma's \w. Written as the inside of a class. */
#define SPACE "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

#define MAX_OUT   (1u << 20) /* bytes of the translation */
#define MAX_DEPTH 64         /* of groups and of nested sets: real patterns have three */

typedef struct rewriter {
    const char *s;
    size_t n, i;
    nb_buf *out;
    size_t atom;             /* where the last atom begins in out; SIZE_MAX: none to repeat */
    size_t group[MAX_DEPTH]; /* where the open groups begin */
    size_t depth;
    nb_err *err;
} rewriter;

static nb_status refuse(const rewriter *r, size_t at, const char *what)
{
    char esc[NB_ESC_CAP];

    return nb_fail(r->err, NB_EUNSUPPORTED, "tok.regex", "", "regular expression \"%s\": offset %zu: %s",
                   nb_esc(esc, sizeof esc, r->s, r->n), at, what);
}

/* Names of \p{} and [: :] that mean something else in PCRE2, as the inside of a class. */
static const struct {
    const char *name, *cls;
} posix[] = {
    { "alnum", "\\p{Alphabetic}\\p{Nd}" },
    { "alpha", "\\p{Alphabetic}" },
    { "ascii", "\\x00-\\x7f" },
    { "blank", "\\p{Zs}\\t" },
    { "cntrl", "\\p{Cc}" },
    { "digit", "\\p{Nd}" },
    { "lower", "\\p{Lowercase}" },
    { "punct", "\\p{P}$+<=>\\^`|~" }, /* the library's version counts these nine symbols too */
    { "space", SPACE },
    { "upper", "\\p{Uppercase}" },
    { "word", WORD },
    { "xdigit", "0-9A-Fa-f" },
};
/* Properties that PCRE2 knows under the same name and that are not scripts. */
static const char *const binary[] = { "any",
                                      "alphabetic",
                                      "lowercase",
                                      "uppercase",
                                      "white_space",
                                      "emoji",
                                      "math",
                                      "ideographic",
                                      "emoji_presentation",
                                      "emoji_modifier",
                                      "emoji_modifier_base",
                                      "emoji_component",
                                      "extended_pictographic",
                                      "dash",
                                      "hex_digit",
                                      "id_start",
                                      "id_continue",
                                      "xid_start",
                                      "xid_continue",
                                      "diacritic",
                                      "extender",
                                      "variation_selector" };

static bool same_name(const char *name, const char *s, size_t n)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + 32) : s[i];
        if (c != name[i])
            return false;
    }
    return true;
}

static const char *posix_class(const char *s, size_t n)
{
    for (size_t i = 0; i < NB_LEN(posix); i++) {
        if (same_name(posix[i].name, s, n))
            return posix[i].cls;
    }
    return NULL;
}

static void put_member(nb_buf *out, const char *cls, bool negated, bool in_class);

/* \p{Name}, \P{Name}, \p{^Name} at r->i (on the brace). */
static nb_status property(rewriter *r, nb_buf *out, bool negated, bool in_class, nb_buf *odd)
{
    const size_t at = r->i;
    const char *s, *cls;
    size_t n = 0;
    bool known;

    if (r->i >= r->n || r->s[r->i] != '{')
        return refuse(r, at, "\\p needs a name in braces");
    s = r->s + ++r->i;
    while (r->i < r->n && r->s[r->i] != '}') {
        r->i++;
        n++;
    }
    if (r->i >= r->n)
        return refuse(r, at, "the name after \\p has no closing brace");
    r->i++;
    if (n > 0 && s[0] == '^') {
        negated = !negated;
        s++;
        n--;
    }
    cls = posix_class(s, n);
    if (cls) {
        if (in_class && negated) {
            put_member(odd, cls, true, false);
            return NB_OK;
        }
        put_member(out, cls, negated, in_class);
        return NB_OK;
    }
    known = n <= 2 || memchr(s, ':', n) || memchr(s, '=', n);
    for (size_t i = 0; i < NB_LEN(binary); i++)
        known = known || same_name(binary[i], s, n);
    nb_buf_puts(out, negated ? "\\P{" : "\\p{");
    nb_buf_puts(out, known ? "" : "sc:"); /* a script, not its extensions */
    nb_buf_put(out, s, n);
    nb_buf_putc(out, '}');
    return NB_OK;
}

/* A class given by its inside: bare when already in a class (never negated there), else in brackets. */
static void put_member(nb_buf *out, const char *cls, bool negated, bool in_class)
{
    if (!in_class)
        nb_buf_puts(out, negated ? "[^" : "[");
    nb_buf_puts(out, cls);
    if (!in_class)
        nb_buf_putc(out, ']');
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One escape at r->i (on the backslash) to out. In a class, a member that cannot be written inside brackets goes to
 * `odd` as an expression for one character, after a "|". *range: it may begin or end a range. */
static nb_status escape(rewriter *r, nb_buf *out, bool in_class, nb_buf *odd, bool *range)
{
    const size_t at = r->i++;
    const char c = r->i < r->n ? r->s[r->i] : 0;
    const char *cls = NULL;
    bool negated = false;

    *range = false;
    if (r->i >= r->n)
        return refuse(r, at, "a backslash ends it");
    r->i++;
    switch (c) {
    case 'p':
    case 'P': {
        const size_t before = odd ? odd->n : 0;
        nb_status rc;
        if (odd)
            nb_buf_putc(odd, '|');
        rc = property(r, out, c == 'P', in_class, odd);
        if (odd && odd->n == before + 1)
            odd->n = before;
        return rc;
    }
    case 's':
        cls = SPACE;
        break;
    case 'S':
        cls = SPACE;
        negated = true;
        break;
    case 'w':
        cls = WORD;
        break;
    case 'W':
        cls = WORD;
        negated = true;
        break;
    case 'h':
        cls = "0-9A-Fa-f";
        break;
    case 'H':
        cls = "0-9A-Fa-f";
        negated = true;
        break;
    case 'v':
        cls = "\\x0b";
        break;
    case 'b':
        if (!in_class) {
            nb_buf_puts(out, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
            return NB_OK;
        }
        break;
    case 'B':
        if (!in_class) {
            nb_buf_puts(out, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
            return NB_OK;
        }
        break;
    case 'u': {
        for (size_t k = 0; k < 4; k++) {
            if (r->i + k >= r->n || hex(r->s[r->i + k]) < 0)
                return refuse(r, at, "\\u needs four hexadecimal digits");
        }
        nb_buf_puts(out, "\\x{");
        nb_buf_put(out, r->s + r->i, 4);
        nb_buf_putc(out, '}');
        r->i += 4;
        *range = true;
        return NB_OK;
    }
    default:
        break;
    }
    if (cls && negated && in_class) {
        nb_buf_putc(odd, '|');
        put_member(odd, cls, true, false);
        return NB_OK;
    }
    if (cls) {
        put_member(out, cls, negated, in_class);
        return NB_OK;
    }
    if (c == 'O' || c == 'N' || c == 'y' || c == 'Y' || c == 'K')
        return refuse(r, at, "this escape is not supported");
    nb_buf_putc(out, '\\');
    nb_buf_putc(out, c);
    if (c == 'x' && r->i < r->n && r->s[r->i] == '{') {
        while (r->i < r->n && r->s[r->i] != '}')
            nb_buf_putc(out, r->s[r->i++]);
    }
    *range = c != 'd' && c != 'D' && c != 'R' && c != 'X';
    return NB_OK;
}

static nb_status set(rewriter *r, nb_buf *out, bool *plain, nb_buf *items, size_t depth);

/* Members up to "]" or "&&" (left for the caller): simple ones to items, others to odd as "|expr". */
static nb_status members(rewriter *r, nb_buf *items, nb_buf *odd, size_t depth)
{
    bool range = false, first = true;
    nb_status rc = NB_OK;

    while (rc == NB_OK) {
        const char c = r->i < r->n ? r->s[r->i] : 0;

        if (r->i >= r->n)
            return refuse(r, r->n, "a set has no closing bracket");
        if (items->n + odd->n > MAX_OUT)
            return refuse(r, r->i, "it is too long");
        if ((c == ']' && !first) || (c == '&' && r->i + 1 < r->n && r->s[r->i + 1] == '&'))
            break;
        if (c == '[' && r->i + 1 < r->n && r->s[r->i + 1] == ':') {
            const char *name = r->s + r->i + 2;
            const bool neg = r->i + 2 < r->n && *name == '^';
            const char *end = NULL;
            const char *cls;
            for (size_t k = r->i + 2; k + 1 < r->n && k < r->i + 16 && !end; k++)
                end = r->s[k] == ':' && r->s[k + 1] == ']' ? r->s + k : NULL;
            cls = end ? posix_class(name + neg, (size_t)(end - name) - neg) : NULL;
            if (!cls)
                return refuse(r, r->i, "this POSIX class is not known");
            if (neg)
                nb_buf_putc(odd, '|');
            put_member(neg ? odd : items, cls, neg, !neg);
            r->i = (size_t)(end - r->s) + 2;
            range = false;
        } else if (c == '[') { /* a set inside: union */
            nb_buf one = { 0 }, in = { 0 };
            bool plain = false;
            if (depth >= MAX_DEPTH)
                return refuse(r, r->i, "sets are nested too deeply");
            rc = set(r, &one, &plain, &in, depth + 1);
            if (plain) {
                nb_buf_put(items, in.p, in.n);
            } else {
                nb_buf_putc(odd, '|');
                nb_buf_put(odd, one.p, one.n);
            }
            nb_buf_clear(&one);
            nb_buf_clear(&in);
            range = false;
        } else if (c == '\\') {
            rc = escape(r, items, true, odd, &range);
        } else if (c == '-') {
            const bool last = r->i + 1 >= r->n || r->s[r->i + 1] == ']';
            nb_buf_puts(items, range && !last ? "-" : "\\-");
            range = false;
            r->i++;
        } else {
            if (c == ']' || c == '^')
                nb_buf_putc(items, '\\');
            nb_buf_putc(items, c);
            r->i++;
            range = true;
        }
        first = false;
    }
    return rc;
}

/* One operand of "&&": an expression for one character. *items is its inside when it is plain (no odd members). */
static nb_status operand(rewriter *r, nb_buf *expr, bool *plain, nb_buf *items, size_t depth)
{
    nb_buf odd = { 0 };
    nb_status rc;

    items->n = 0;
    rc = members(r, items, &odd, depth);
    *plain = odd.n == 0 && items->n > 0;
    if (rc == NB_OK && *plain) {
        nb_buf_putc(expr, '[');
        nb_buf_put(expr, items->p, items->n);
        nb_buf_putc(expr, ']');
    } else if (rc == NB_OK) {
        nb_buf_puts(expr, "(?:");
        if (items->n > 0) {
            nb_buf_putc(expr, '[');
            nb_buf_put(expr, items->p, items->n);
            nb_buf_putc(expr, ']');
        } else {
            nb_buf_puts(expr, "(?!)");
        }
        nb_buf_put(expr, odd.p, odd.n);
        nb_buf_putc(expr, ')');
    }
    nb_buf_clear(&odd);
    return rc;
}

/* A set at r->i (on the bracket), with nested sets and intersections, as an expression for one character.
 * *plain with *items: it is [items] and may be inlined into a set around it. */
static nb_status set(rewriter *r, nb_buf *out, bool *plain, nb_buf *items, size_t depth)
{
    nb_buf expr = { 0 }, last = { 0 };
    bool negated = false, one = true;
    nb_status rc;

    r->i++;
    if (r->i < r->n && r->s[r->i] == '^') {
        negated = true;
        r->i++;
    }
    rc = operand(r, &last, plain, items, depth);
    while (rc == NB_OK && r->s[r->i] == '&') {
        nb_buf_puts(&expr, "(?=");
        nb_buf_put(&expr, last.p, last.n);
        nb_buf_putc(&expr, ')');
        last.n = 0;
        r->i += 2;
        one = false;
        rc = operand(r, &last, plain, items, depth);
    }
    *plain = *plain && one;
    if (rc == NB_OK) {
        r->i++; /* the closing bracket */
        if (*plain) {
            nb_buf_puts(out, negated ? "[^" : "[");
            nb_buf_put(out, items->p, items->n);
            nb_buf_putc(out, ']');
            *plain = !negated;
        } else {
            nb_buf_puts(out, negated ? "(?:(?!" : "(?:");
            nb_buf_put(out, expr.p, expr.n);
            nb_buf_put(out, last.p, last.n);
            nb_buf_puts(out, negated ? ")(?s:.))" : ")");
        }
    }
    nb_buf_clear(&expr);
    nb_buf_clear(&last);
    return rc;
}

/* "(" and what belongs to it: flags (Oniguruma's m is PCRE2's s), names and assertions are copied. */
static nb_status group(rewriter *r)
{
    const size_t at = r->i;
    size_t k;

    if (r->depth == MAX_DEPTH)
        return refuse(r, at, "groups are nested too deeply");
    r->group[r->depth] = r->out->n;
    nb_buf_putc(r->out, '(');
    r->i++;
    if (r->i + 1 < r->n && r->s[r->i] == '?') {
        for (k = r->i + 1; k < r->n && (r->s[k] == 'i' || r->s[k] == 'm' || r->s[k] == 'x' || r->s[k] == '-'); k++)
            ;
        if (k < r->n && (r->s[k] == ':' || r->s[k] == ')') && k > r->i + 1) {
            for (; r->i < k; r->i++)
                nb_buf_putc(r->out, r->s[r->i] == 'm' ? 's' : r->s[r->i]);
        } else if (r->s[k] == 's') {
            return refuse(r, k, "flag s is not known, Oniguruma's name for it is m");
        } else if (r->s[k] == '#' || r->s[k] == '~' || r->s[k] == '(') {
            return refuse(r, k, "this kind of group is not supported");
        } else { /* (?: (?= (?! (?> (?<= (?<! (?<name> */
            nb_buf_putc(r->out, r->s[r->i++]);
            nb_buf_putc(r->out, r->s[r->i++]);
        }
    }
    r->depth++;
    r->atom = SIZE_MAX;
    return NB_OK;
}

/* A brace at r->i: an interval {n}, {n,}, {n,m}, {,m} with its suffix, or a literal brace. */
static void interval(rewriter *r)
{
    size_t k = r->i + 1, digits = 0, commas = 0;
    const size_t from = k;
    char suffix;

    for (; k < r->n && r->s[k] != '}'; k++) {
        if (r->s[k] >= '0' && r->s[k] <= '9')
            digits++;
        else if (r->s[k] == ',')
            commas++;
        else
            break;
    }
    if (k >= r->n || r->s[k] != '}' || digits == 0 || commas > 1 || r->atom == SIZE_MAX) {
        r->atom = r->out->n;
        nb_buf_puts(r->out, "\\{");
        r->i++;
        return;
    }
    suffix = k + 1 < r->n ? r->s[k + 1] : 0;
    if (suffix == '+' || (suffix == '?' && commas == 0)) { /* repeats the interval again: (?:X{n,m})+ */
        const size_t tail = r->out->n - r->atom;
        nb_buf_puts(r->out, "(?:"); /* room; then move the atom behind it */
        if (!r->out->failed) {
            memmove(r->out->p + r->atom + 3, r->out->p + r->atom, tail);
            memcpy(r->out->p + r->atom, "(?:", 3);
        }
    }
    nb_buf_puts(r->out, r->s[from] == ',' ? "{0" : "{");
    nb_buf_put(r->out, r->s + from, k + 1 - from);
    r->i = k + 1;
    if (suffix == '+' || (suffix == '?' && commas == 0)) {
        nb_buf_putc(r->out, ')');
        nb_buf_putc(r->out, suffix);
        r->i++;
    }
}

nb_status nb_onig_translate(const char *re, size_t n, nb_buf *out, nb_err *err)
{
    rewriter r = { .s = re, .n = n, .out = out, .atom = SIZE_MAX, .err = err };
    nb_status rc = NB_OK;

    while (rc == NB_OK && r.i < n && out->n <= MAX_OUT) {
        const char c = re[r.i];
        const size_t start = out->n;
        bool range;

        if (c == '[') {
            nb_buf items = { 0 };
            bool plain;
            rc = set(&r, out, &plain, &items, 0);
            nb_buf_clear(&items);
            r.atom = start;
        } else if (c == '\\') {
            rc = escape(&r, out, false, NULL, &range);
            r.atom = start;
        } else if (c == '(') {
            rc = group(&r);
        } else if (c == ')') {
            if (r.depth == 0)
                return refuse(&r, r.i, "a closing parenthesis has no opening one");
            r.atom = r.group[--r.depth];
            nb_buf_putc(out, re[r.i++]);
        } else if (c == '{') {
            interval(&r);
        } else if (c == '*' || c == '+' || c == '?' || c == '|') { /* quantifiers leave the atom: X{2}* is legal */
            if (c == '|')
                r.atom = SIZE_MAX;
            nb_buf_putc(out, re[r.i++]);
        } else {
            uint32_t cp;
            int k = nb_u8_next(re + r.i, n - r.i, &cp, NULL);
            if (k < 0)
                return refuse(&r, r.i, "it is not valid UTF-8");
            r.atom = start;
            nb_buf_put(out, re + r.i, (size_t)k);
            r.i += (size_t)k;
        }
    }
    if (rc == NB_OK && out->n > MAX_OUT)
        rc = refuse(&r, r.i, "it is too long");
    if (rc == NB_OK && r.depth > 0)
        rc = refuse(&r, n, "a group has no closing parenthesis");
    if (rc == NB_OK && out->failed)
        rc = nb_enomem(err, "a regular expression");
    return rc;
}
