/* gram_ebnf.c - grammar texts in the form of llama.cpp (GBNF): name ::= alternatives, "text", [class], ., ( ), * + ? {m,n}. */
#include <string.h>

#include "text/gram_names.h"
#include "text/utf8.h"

/* ---- what the grammar texts share (gram_names.h) ---- */

bool nb_gt_init(nb_gtext *t, nb_gbuild *b, const char *s, size_t n)
{
    memset(t, 0, sizeof *t);
    t->b = b;
    t->s = s;
    t->n = n;
    if ((t->at = nb_u8_check(s, n)) < n)
        return nb_gt_bad(t, "not valid UTF-8");
    t->at = 0;
    if (n && memchr(s, 0, n))
        return nb_gt_bad(t, "the character NUL");
    t->names = nb_strmap_new(16);
    return t->names ? true : nb_g_oom(b);
}

void nb_gt_clear(nb_gtext *t)
{
    nb_strmap_free(t->names);
    nb_free(t->name);
}

nb_gpart nb_gt_bad(nb_gtext *t, const char *what)
{
    size_t line = 1;

    for (size_t i = 0; i < t->at && i < t->n; i++)
        line += t->s[i] == '\n';
    return nb_g_fail(t->b, NB_EARG, "grammar.invalid", "the grammar in line %zu (byte %zu): %s", line, t->at, what);
}

int nb_gt_peek(const nb_gtext *t)
{
    return t->at < t->n ? (unsigned char)t->s[t->at] : -1;
}

bool nb_gt_eat(nb_gtext *t, const char *text)
{
    const size_t k = strlen(text);

    if (t->n - t->at < k || memcmp(t->s + t->at, text, k) != 0)
        return false;
    t->at += k;
    return true;
}

struct nb_gname *nb_gt_name(nb_gtext *t, size_t at, size_t n)
{
    uint64_t i = t->n_names;
    bool had = false;

    if (nb_strmap_put(t->names, t->s + at, n, i, &had) != NB_OK) {
        nb_g_oom(t->b);
        return NULL;
    }
    if (had) {
        nb_strmap_get(t->names, t->s + at, n, &i);
        return &t->name[i];
    }
    if (t->n_names == t->cap_names) {
        const size_t cap = t->cap_names ? t->cap_names * 2 : 16;
        void *p = nb_realloc(t->name, cap * sizeof *t->name);
        if (!p) {
            nb_g_oom(t->b);
            return NULL;
        }
        t->name = p;
        t->cap_names = cap;
    }
    t->name[i] = (struct nb_gname){ .rule = nb_g_rule_new(t->b), .at = at, .n = n };
    t->n_names++;
    return t->name[i].rule ? &t->name[i] : NULL;
}

bool nb_gt_define(nb_gtext *t, size_t at, size_t n, nb_gpart p)
{
    struct nb_gname *x = p ? nb_gt_name(t, at, n) : NULL;

    if (!x)
        return false;
    if (x->defined) {
        t->at = at;
        return nb_gt_bad(t, "this rule is there already");
    }
    x->defined = true;
    t->b->rules.v[x->rule - 1] = p;
    return true;
}

nb_gpart nb_gt_finish(nb_gtext *t, const char *start)
{
    char esc[NB_ESC_CAP];
    uint64_t i;

    if (t->b->rc != NB_OK)
        return 0;
    for (size_t k = 0; k < t->n_names; k++) {
        if (!t->name[k].defined)
            return nb_g_fail(t->b, NB_EARG, "grammar.invalid", "the grammar names the rule \"%s\" (byte %zu), which is not defined",
                             nb_esc(esc, sizeof esc, t->s + t->name[k].at, t->name[k].n), t->name[k].at);
    }
    if (!nb_strmap_get(t->names, start, strlen(start), &i))
        return nb_g_fail(t->b, NB_EARG, "grammar.invalid", "the grammar has no rule \"%s\"", start);
    return nb_g_call(t->b, t->name[i].rule);
}

bool nb_gt_count(nb_gtext *t, uint32_t *out)
{
    const size_t from = t->at;
    uint64_t v = 0;

    for (; t->at < t->n && t->s[t->at] >= '0' && t->s[t->at] <= '9'; t->at++)
        v = v < NB_G_INF ? v * 10 + (uint64_t)(t->s[t->at] - '0') : v;
    *out = v < NB_G_INF ? (uint32_t)v : NB_G_INF - 1;
    return t->at > from;
}

bool nb_gt_escape(nb_gtext *t, uint32_t *cp)
{
    static const char *const from = "nrtfv", *const to = "\n\r\t\f\v";
    const int c = nb_gt_peek(t);
    const char *p = c > 0 ? strchr(from, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;

    if (c < 0)
        return nb_gt_bad(t, "a backslash at the end");
    if (p || (c > 0 && strchr("\"\\'/[]-^.", c))) {
        *cp = p ? (unsigned char)to[p - from] : (uint32_t)c;
        t->at++;
        return true;
    }
    if (!digits)
        return nb_gt_bad(t, "an unknown escape");
    t->at++;
    for (*cp = 0; digits > 0; digits--, t->at++) {
        const int d = nb_gt_peek(t), low = d | 0x20;
        if (!((d >= '0' && d <= '9') || (d > 0 && low >= 'a' && low <= 'f')))
            return nb_gt_bad(t, "an escape without its digits");
        *cp = *cp * 16 + (uint32_t)(d <= '9' ? d - '0' : low - 'a' + 10);
    }
    return *cp && *cp <= 0x10FFFF && (*cp < 0xD800 || *cp > 0xDFFF) ? true : nb_gt_bad(t, "an escape of a character that is none");
}

/* ---- GBNF ---- */

static void blanks(nb_gtext *t)
{
    for (; t->at < t->n; t->at++) {
        if (t->s[t->at] == '#')
            while (t->at < t->n && t->s[t->at] != '\n')
                t->at++;
        if (t->at >= t->n || !strchr(" \t\r\n", t->s[t->at]))
            return;
    }
}

static size_t name_length(const nb_gtext *t, size_t at)
{
    size_t n = 0;

    while (at + n < t->n && t->s[at + n] && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", t->s[at + n]))
        n++;
    return n;
}

/* Does a rule begin here: a name and ::= ? */
static bool rule_ahead(const nb_gtext *t)
{
    nb_gtext look = *t;
    const size_t n = name_length(t, t->at);

    look.at += n;
    blanks(&look);
    return n > 0 && nb_gt_eat(&look, "::=");
}

static nb_gpart text_literal(nb_gtext *t)
{
    nb_buf out = { 0 };
    nb_gpart p = 0;

    while (t->b->rc == NB_OK) {
        uint32_t cp;
        const size_t from = t->at;
        if (nb_gt_peek(t) < 0 || nb_gt_peek(t) == '\n') {
            nb_gt_bad(t, "a text without its closing quote");
        } else if (nb_gt_eat(t, "\"")) {
            p = out.failed ? nb_g_oom(t->b) : nb_g_lit(t->b, out.p ? out.p : "", out.n);
            break;
        } else if (nb_gt_eat(t, "\\")) {
            if (nb_gt_escape(t, &cp))
                nb_u8_append(&out, cp);
        } else {
            t->at += (size_t)nb_u8_next(t->s + t->at, t->n - t->at, &cp, NULL);
            nb_buf_put(&out, t->s + from, t->at - from);
        }
    }
    nb_buf_clear(&out);
    return p;
}

static bool class_char(nb_gtext *t, uint32_t *cp)
{
    if (nb_gt_peek(t) < 0 || nb_gt_peek(t) == '\n')
        return nb_gt_bad(t, "a class without its closing bracket");
    if (nb_gt_eat(t, "\\"))
        return nb_gt_escape(t, cp);
    t->at += (size_t)nb_u8_next(t->s + t->at, t->n - t->at, cp, NULL);
    return true;
}

static nb_gpart class_of(nb_gtext *t)
{
    nb_gset set = { 0 };
    const bool invert = nb_gt_eat(t, "^");
    nb_gpart p = 0;
    bool ok = true;

    while (ok && t->b->rc == NB_OK && !nb_gt_eat(t, "]")) {
        uint32_t lo, hi;
        if (!class_char(t, &lo))
            break;
        hi = lo;
        if (nb_gt_peek(t) == '-' && t->at + 1 < t->n && t->s[t->at + 1] != ']') {
            t->at++;
            if (class_char(t, &hi) && hi < lo)
                nb_gt_bad(t, "a range of a class that is none");
        }
        ok = nb_gset_add(&set, lo, hi);
    }
    ok = ok && (!invert || nb_gset_invert(&set));
    if (!ok)
        nb_g_oom(t->b);
    if (t->b->rc == NB_OK)
        p = nb_g_chars(t->b, &set, false);
    nb_gvec_clear(&set.v);
    return p;
}

static nb_gpart any_char(nb_gbuild *b)
{
    nb_gset set = { 0 };
    nb_gpart p;

    if (!nb_gset_add(&set, 1, 0x10FFFF))
        nb_g_oom(b);
    p = nb_g_chars(b, &set, false);
    nb_gvec_clear(&set.v);
    return p;
}

static nb_gpart alternatives(nb_gtext *t);

static nb_gpart element(nb_gtext *t)
{
    const size_t from = t->at;
    struct nb_gname *x;
    nb_gpart p;
    size_t n;

    if (nb_gt_eat(t, "\""))
        return text_literal(t);
    if (nb_gt_eat(t, "["))
        return class_of(t);
    if (nb_gt_eat(t, "."))
        return any_char(t->b);
    if (nb_gt_eat(t, "(")) {
        if (++t->depth > t->b->lim.depth)
            return nb_g_fail(t->b, NB_ELIMIT, "grammar.too_complex", "the grammar is nested deeper than %d", t->b->lim.depth);
        p = alternatives(t);
        t->depth--;
        return !p || nb_gt_eat(t, ")") ? p : nb_gt_bad(t, "a group without its closing parenthesis");
    }
    n = name_length(t, from);
    if (n == 0)
        return nb_gt_bad(t, "neither a text, a class, a group nor a name");
    t->at += n;
    x = nb_gt_name(t, from, n);
    return x ? nb_g_call(t->b, x->rule) : 0;
}

static nb_gpart repeated(nb_gtext *t)
{
    nb_gpart p = element(t);

    while (p) {
        uint32_t least = 0, most = NB_G_INF;
        if (nb_gt_eat(t, "+")) {
            least = 1;
        } else if (nb_gt_eat(t, "?")) {
            most = 1;
        } else if (nb_gt_eat(t, "{")) {
            blanks(t);
            if (!nb_gt_count(t, &least))
                return nb_gt_bad(t, "a repeat without its number");
            most = least;
            blanks(t);
            if (nb_gt_eat(t, ",")) {
                blanks(t);
                if (!nb_gt_count(t, &most))
                    most = NB_G_INF;
                blanks(t);
            }
            if (!nb_gt_eat(t, "}") || least > most)
                return nb_gt_bad(t, "a repeat that is none");
        } else if (!nb_gt_eat(t, "*")) {
            break;
        }
        p = nb_g_rep(t->b, p, least, most);
    }
    return p;
}

static nb_gpart sequence(nb_gtext *t)
{
    nb_gvec parts = { 0 };
    nb_gpart p;
    bool ok = true;

    for (;;) {
        blanks(t);
        const int c = nb_gt_peek(t);
        if (!ok || t->b->rc != NB_OK || c < 0 || c == '|' || c == ')' || rule_ahead(t))
            break;
        ok = nb_gvec_push(&parts, repeated(t));
    }
    if (!ok)
        nb_g_oom(t->b);
    p = t->b->rc == NB_OK ? nb_g_seq(t->b, parts.v, parts.n) : 0;
    nb_gvec_clear(&parts);
    return p;
}

static nb_gpart alternatives(nb_gtext *t)
{
    nb_gvec list = { 0 };
    nb_gpart p;
    bool ok;

    do
        ok = nb_gvec_push(&list, sequence(t));
    while (ok && t->b->rc == NB_OK && nb_gt_eat(t, "|"));
    if (!ok)
        nb_g_oom(t->b);
    p = t->b->rc == NB_OK ? nb_g_alt(t->b, list.v, list.n) : 0;
    nb_gvec_clear(&list);
    return p;
}

nb_gpart nb_g_gbnf(nb_gbuild *b, const char *s, size_t n)
{
    nb_gtext t;
    nb_gpart p = 0;

    if (nb_gt_init(&t, b, s, n)) {
        blanks(&t);
        while (b->rc == NB_OK && t.at < n) {
            const size_t at = t.at, k = name_length(&t, at);
            if (!rule_ahead(&t)) {
                nb_gt_bad(&t, "a rule begins with its name and ::=");
                break;
            }
            t.at += k;
            blanks(&t);
            nb_gt_eat(&t, "::=");
            if (!nb_gt_define(&t, at, k, alternatives(&t)))
                break;
            blanks(&t);
        }
        p = nb_gt_finish(&t, "root");
    }
    nb_gt_clear(&t);
    return p;
}
