/* jinja_tokens.c - what both parsers stand on: current and next token, errors with their place, nodes, names. */
#include "text/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- memory and errors ---- */

_Noreturn void nb_j_parse_stop(jparse *p)
{
    longjmp(p->out, 1);
}

_Noreturn void nb_j_syntax(jparse *p, const jtoken *at, const char *fmt, ...)
{
    char what[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    nb_fail(p->err, NB_EFORMAT, "tmpl.syntax", "JT-01", "line %u, column %u: %s", at->line, at->col, what);
    nb_j_parse_stop(p);
}

_Noreturn void nb_j_unexpected(jparse *p, const char *wanted)
{
    char esc[NB_ESC_CAP];
    const jtoken *t = &p->tok;

    if (t->kind == T_OUT_END || t->kind == T_STMT_END)
        nb_j_syntax(p, t, "%s expected, found the end of the tag", wanted);
    nb_j_syntax(p, t, "%s expected, found \"%s\"", wanted, nb_esc(esc, sizeof esc, t->s, t->n));
}

void *nb_j_keep(jparse *p, size_t bytes)
{
    void *m = nb_arena_alloc(&p->t->arena, bytes);

    if (!m) {
        nb_enomem(p->err, "the template");
        nb_j_parse_stop(p);
    }
    return m;
}

jnode *nb_j_node(jparse *p, jkind kind, size_t bytes)
{
    jnode *n = nb_j_keep(p, bytes);

    memset(n, 0, bytes);
    n->kind = (uint8_t)kind;
    n->line = p->tok.line;
    n->col = (uint16_t)(p->tok.col < UINT16_MAX ? p->tok.col : UINT16_MAX);
    return n;
}

void nb_j_deeper(jparse *p)
{
    if (++p->depth <= J_NEST_MOST)
        return;
    nb_fail(p->err, NB_ELIMIT, "tmpl.depth", "JT-07", "line %u, column %u: blocks and expressions nest deeper than %d levels", p->tok.line,
            p->tok.col, J_NEST_MOST);
    nb_j_parse_stop(p);
}

void nb_j_push(jparse *p, jnode *n)
{
    if (p->n_stack == p->cap_stack) {
        const size_t cap = p->cap_stack ? 2 * p->cap_stack : 64;
        jnode **v = nb_realloc(p->stack, cap * sizeof *v);
        if (!v) {
            nb_enomem(p->err, "the template");
            nb_j_parse_stop(p);
        }
        p->stack = v;
        p->cap_stack = cap;
    }
    p->stack[p->n_stack++] = n;
}

jnode **nb_j_pop_all(jparse *p, size_t mark, uint32_t *n)
{
    const size_t count = p->n_stack - mark;
    jnode **v = nb_j_keep(p, count * sizeof *v);

    if (count)
        memcpy(v, p->stack + mark, count * sizeof *v);
    p->n_stack = mark;
    *n = (uint32_t)count;
    return v;
}

uint32_t nb_j_intern(jparse *p, const char *s, size_t n)
{
    nb_template *t = p->t;
    uint64_t id;

    if (nb_strmap_get(t->ids, s, n, &id))
        return (uint32_t)id;
    if (t->n_names == t->cap_names) {
        const size_t cap = t->cap_names ? 2 * t->cap_names : 32;
        jstr *v = nb_realloc(t->names, cap * sizeof *v);
        if (v)
            t->names = v, t->cap_names = cap;
    }
    if (t->n_names == t->cap_names || nb_strmap_put(t->ids, s, n, t->n_names, NULL) != NB_OK) {
        nb_enomem(p->err, "the template");
        nb_j_parse_stop(p);
    }
    t->names[t->n_names] = (jstr){ s, n, 0 };
    for (size_t i = 0; i < n; i++)
        t->names[t->n_names].chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return (uint32_t)t->n_names++;
}

/* ---- tokens ---- */

void nb_j_next(jparse *p)
{
    p->tok = p->has_ahead ? p->ahead : nb_j_lex_next(p);
    p->has_ahead = false;
}

const jtoken *nb_j_look(jparse *p)
{
    if (!p->has_ahead)
        p->ahead = nb_j_lex_next(p);
    p->has_ahead = true;
    return &p->ahead;
}

bool nb_j_is_op(const jparse *p, uint16_t op)
{
    return p->tok.kind == T_OP && p->tok.op == op;
}

bool nb_j_token_is(const jtoken *t, const char *name)
{
    return t->kind == T_NAME && t->n == strlen(name) && memcmp(t->s, name, t->n) == 0;
}

bool nb_j_is_name(const jparse *p, const char *name)
{
    return nb_j_token_is(&p->tok, name);
}

bool nb_j_skip_op(jparse *p, uint16_t op)
{
    const bool hit = nb_j_is_op(p, op);

    if (hit)
        nb_j_next(p);
    return hit;
}

bool nb_j_skip_name(jparse *p, const char *name)
{
    const bool hit = nb_j_is_name(p, name);

    if (hit)
        nb_j_next(p);
    return hit;
}

void nb_j_expect_op(jparse *p, uint16_t op, const char *what)
{
    if (!nb_j_skip_op(p, op))
        nb_j_unexpected(p, what);
}

void nb_j_expect_name(jparse *p, const char *name)
{
    if (!nb_j_skip_name(p, name))
        nb_j_unexpected(p, name);
}
