/* gram_lark.c - grammar texts in a subset of Lark's form: name: alternatives, "text", "a".."z", /regex/, ( ), [ ], * + ? ~n..m.
 * Terminals and rules are the same here, as there is no lexer; so %ignore is refused, as are templates and priorities that would
 * choose between readings. */
#include <string.h>

#include "text/gram_names.h"
#include "text/utf8.h"

/* ---- what %import common.X brings ---- */

static const struct {
    const char *name, *re;
} common[] = {
    { "DIGIT", "[0-9]" },
    { "HEXDIGIT", "[0-9a-fA-F]" },
    { "INT", "[0-9]+" },
    { "SIGNED_INT", "[+-]?[0-9]+" },
    { "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
    { "FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
    { "NUMBER", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+" },
    { "SIGNED_NUMBER", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+)" },
    { "ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\"" },
    { "LCASE_LETTER", "[a-z]" },
    { "UCASE_LETTER", "[A-Z]" },
    { "LETTER", "[A-Za-z]" },
    { "WORD", "[A-Za-z]+" },
    { "CNAME", "[_A-Za-z][_A-Za-z0-9]*" },
    { "WS_INLINE", "[ \\t]{1,64}" },
    { "WS", "[ \\t\\f\\r\\n]{1,64}" },
    { "CR", "\\r" },
    { "LF", "\\n" },
    { "NEWLINE", "(\\r?\\n){1,8}" },
};

/* ---- reading ---- */

static void comment(nb_gtext *t)
{
    while (t->at < t->n && t->s[t->at] != '\n')
        t->at++;
}

static bool comment_ahead(const nb_gtext *t)
{
    return nb_gt_peek(t) == '#' || (nb_gt_peek(t) == '/' && t->at + 1 < t->n && t->s[t->at + 1] == '/');
}

static void blanks(nb_gtext *t, bool newlines)
{
    for (; t->at < t->n; t->at++) {
        if (comment_ahead(t))
            comment(t);
        if (t->at >= t->n || !strchr(newlines ? " \t\r\n" : " \t\r", t->s[t->at]))
            return;
    }
}

static size_t name_length(const nb_gtext *t, size_t at)
{
    size_t n = 0;

    while (at + n < t->n && t->s[at + n] && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", t->s[at + n]))
        n++;
    return n;
}

/* After the blanks of this line: at a newline behind which an alternative goes on? Then go there. */
static bool goes_on(nb_gtext *t)
{
    nb_gtext look = *t;

    blanks(&look, true);
    if (nb_gt_peek(&look) != '|')
        return false;
    t->at = look.at;
    return true;
}

static nb_gpart lacking(nb_gtext *t, const char *what)
{
    return nb_g_fail(t->b, NB_EUNSUPPORTED, "grammar.unsupported", "the grammar at byte %zu has %s, which is not supported", t->at, what);
}

/* Inside quotes, the opening one taken. */
static bool quoted(nb_gtext *t, nb_buf *out)
{
    while (t->b->rc == NB_OK) {
        uint32_t cp;
        if (nb_gt_peek(t) < 0 || nb_gt_peek(t) == '\n')
            return nb_gt_bad(t, "a text without its closing quote");
        if (nb_gt_eat(t, "\""))
            return out->failed ? nb_g_oom(t->b) : true;
        if (nb_gt_eat(t, "\\")) {
            if (!nb_gt_escape(t, &cp))
                return false;
        } else {
            t->at += (size_t)nb_u8_next(t->s + t->at, t->n - t->at, &cp, NULL);
        }
        nb_u8_append(out, cp);
    }
    return false;
}

/* ASCII letters in either case. */
static nb_gpart any_case(nb_gbuild *b, const char *s, size_t n)
{
    nb_gvec v = { 0 };
    nb_gpart p;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i], low = c | 0x20;
        const nb_gpart x = nb_g_range(b, c, c);
        if (!nb_gvec_push(&v, low >= 'a' && low <= 'z' ? nb_g_alt2(b, x, nb_g_range(b, c ^ 0x20, c ^ 0x20)) : x))
            nb_g_oom(b);
    }
    p = b->rc == NB_OK ? nb_g_seq(b, v.v, v.n) : 0;
    nb_gvec_clear(&v);
    return p;
}

/* The only character of s; UINT32_MAX when there are more. */
static uint32_t single(const char *s, size_t n)
{
    uint32_t cp;

    return n && (size_t)nb_u8_next(s, n, &cp, NULL) == n ? cp : UINT32_MAX;
}

static nb_gpart text_or_range(nb_gtext *t)
{
    nb_buf from = { 0 }, to = { 0 };
    nb_gset set = { 0 };
    nb_gpart p = 0;

    if (!quoted(t, &from))
        goto done;
    if (nb_gt_eat(t, "..")) {
        if (!nb_gt_eat(t, "\"") || !quoted(t, &to)) {
            nb_gt_bad(t, "a range goes from one character to another");
            goto done;
        }
        const uint32_t lo = single(from.p, from.n), hi = single(to.p, to.n);
        if (lo == UINT32_MAX || hi == UINT32_MAX || lo > hi)
            nb_gt_bad(t, "a range goes from one character to another");
        else
            p = nb_gset_add(&set, lo, hi) ? nb_g_chars(t->b, &set, false) : nb_g_oom(t->b);
    } else if (nb_gt_peek(t) == 'i' && name_length(t, t->at) == 1) {
        t->at++;
        p = any_case(t->b, from.p ? from.p : "", from.n);
    } else {
        p = nb_g_lit(t->b, from.p ? from.p : "", from.n);
    }
done:
    nb_gvec_clear(&set.v);
    nb_buf_clear(&from);
    nb_buf_clear(&to);
    return p;
}

static nb_gpart regex(nb_gtext *t)
{
    nb_buf re = { 0 };
    nb_gpart p;

    while (nb_gt_peek(t) >= 0 && nb_gt_peek(t) != '\n' && nb_gt_peek(t) != '/') {
        if (t->s[t->at] == '\\' && t->at + 1 < t->n) {
            if (t->s[t->at + 1] != '/')
                nb_buf_putc(&re, '\\');
            t->at++;
        }
        nb_buf_putc(&re, t->s[t->at++]);
    }
    if (!nb_gt_eat(t, "/"))
        p = nb_gt_bad(t, "a regular expression without its closing slash");
    else if (name_length(t, t->at))
        p = lacking(t, "flags of a regular expression");
    else
        p = re.failed ? nb_g_oom(t->b) : nb_g_regex(t->b, re.p ? re.p : "", re.n, NULL);
    nb_buf_clear(&re);
    return p;
}

static nb_gpart alternatives(nb_gtext *t, bool nested);

static nb_gpart element(nb_gtext *t)
{
    const bool optional = nb_gt_peek(t) == '[';
    const size_t from = t->at;
    struct nb_gname *x;
    nb_gpart p;
    size_t n;

    if (nb_gt_eat(t, "\""))
        return text_or_range(t);
    if (nb_gt_eat(t, "/"))
        return regex(t);
    if (nb_gt_eat(t, "(") || nb_gt_eat(t, "[")) {
        if (++t->depth > t->b->lim.depth)
            return nb_g_fail(t->b, NB_ELIMIT, "grammar.too_complex", "the grammar is nested deeper than %d", t->b->lim.depth);
        p = alternatives(t, true);
        t->depth--;
        if (p && !nb_gt_eat(t, optional ? "]" : ")"))
            return nb_gt_bad(t, "a group without its closing bracket");
        return p && optional ? nb_g_opt(t->b, p) : p;
    }
    n = name_length(t, from);
    if (n == 0)
        return nb_gt_bad(t, "neither a text, a regular expression, a group nor a name");
    t->at += n;
    if (nb_gt_peek(t) == '{')
        return lacking(t, "a template");
    x = nb_gt_name(t, from, n);
    return x ? nb_g_call(t->b, x->rule) : 0;
}

static nb_gpart repeated(nb_gtext *t)
{
    nb_gpart p = element(t);
    uint32_t least = 0, most = NB_G_INF;

    if (!p)
        return 0;
    if (nb_gt_eat(t, "+")) {
        least = 1;
    } else if (nb_gt_eat(t, "?")) {
        most = 1;
    } else if (nb_gt_eat(t, "~")) {
        blanks(t, false);
        if (!nb_gt_count(t, &least))
            return nb_gt_bad(t, "a repeat without its number");
        most = least;
        if (nb_gt_eat(t, "..") && (!nb_gt_count(t, &most) || least > most))
            return nb_gt_bad(t, "a repeat that is none");
    } else if (!nb_gt_eat(t, "*")) {
        return p;
    }
    return nb_g_rep(t->b, p, least, most);
}

static nb_gpart sequence(nb_gtext *t, bool nested)
{
    nb_gvec parts = { 0 };
    nb_gpart p;
    bool ok = true;

    for (;;) {
        blanks(t, nested);
        const int c = nb_gt_peek(t);
        if (!ok || t->b->rc != NB_OK || c < 0 || c == '|' || c == ')' || c == ']' || c == '\n')
            break;
        if (nb_gt_eat(t, "->")) { /* an alias names a branch of the tree, of which there is none */
            blanks(t, false);
            t->at += name_length(t, t->at);
            continue;
        }
        ok = nb_gvec_push(&parts, repeated(t));
    }
    if (!ok)
        nb_g_oom(t->b);
    p = t->b->rc == NB_OK ? nb_g_seq(t->b, parts.v, parts.n) : 0;
    nb_gvec_clear(&parts);
    return p;
}

static nb_gpart alternatives(nb_gtext *t, bool nested)
{
    nb_gvec list = { 0 };
    nb_gpart p;
    bool ok;

    do
        ok = nb_gvec_push(&list, sequence(t, nested));
    while (ok && t->b->rc == NB_OK && (nested || goes_on(t) || nb_gt_peek(t) == '|') && nb_gt_eat(t, "|"));
    if (!ok)
        nb_g_oom(t->b);
    p = t->b->rc == NB_OK ? nb_g_alt(t->b, list.v, list.n) : 0;
    nb_gvec_clear(&list);
    return p;
}

/* %import common.NAME */
static bool import(nb_gtext *t)
{
    size_t at, n;

    blanks(t, false);
    if (!nb_gt_eat(t, "common."))
        return lacking(t, "%import of anything but common terminals");
    at = t->at;
    n = name_length(t, at);
    for (size_t i = 0; i < NB_LEN(common); i++) {
        if (strlen(common[i].name) != n || memcmp(common[i].name, t->s + at, n) != 0)
            continue;
        t->at += n;
        return nb_gt_define(t, at, n, nb_g_regex(t->b, common[i].re, strlen(common[i].re), NULL));
    }
    return lacking(t, "%import of an unknown terminal");
}

static bool one_rule(nb_gtext *t)
{
    size_t at, n;
    uint32_t ignored;

    if (nb_gt_eat(t, "%")) {
        if (nb_gt_eat(t, "import"))
            return import(t);
        return lacking(t, "a directive");
    }
    while (nb_gt_peek(t) == '?' || nb_gt_peek(t) == '!') /* about the tree */
        t->at++;
    at = t->at;
    n = name_length(t, at);
    if (n == 0)
        return nb_gt_bad(t, "a rule begins with its name and a colon");
    t->at += n;
    if (nb_gt_eat(t, ".") && !nb_gt_count(t, &ignored))
        return nb_gt_bad(t, "a priority without its number");
    blanks(t, false);
    if (!nb_gt_eat(t, ":"))
        return nb_gt_bad(t, "a rule begins with its name and a colon");
    goes_on(t);
    nb_gt_eat(t, "|");
    return nb_gt_define(t, at, n, alternatives(t, false));
}

nb_gpart nb_g_lark(nb_gbuild *b, const char *s, size_t n)
{
    nb_gtext t;
    nb_gpart p = 0;

    if (nb_gt_init(&t, b, s, n)) {
        blanks(&t, true);
        while (b->rc == NB_OK && t.at < n) {
            if (!one_rule(&t))
                break;
            if (t.at < n && nb_gt_peek(&t) != '\n')
                nb_gt_bad(&t, "a rule ends with its line");
            blanks(&t, true);
        }
        p = nb_gt_finish(&t, "start");
    }
    nb_gt_clear(&t);
    return p;
}
