/* jinja_eval.c - expressions of one render. Spec chat-templates 4-5. */
#include "text/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- failures ---- */

_Noreturn void nb_j_stop(jrun *r, nb_status code, const char *cls, const char *what)
{
    nb_fail(r->err, code, cls, "", "line %u: %s", r->line, what);
    longjmp(r->stop, 1);
}

_Noreturn void nb_j_fail(jrun *r, const char *fmt, ...)
{
    char what[700];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    nb_j_stop(r, NB_EFORMAT, "tmpl.eval", what);
}

_Noreturn void nb_j_limit(jrun *r, const char *cls, const char *fmt, ...)
{
    char what[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    nb_j_stop(r, NB_ELIMIT, cls, what);
}

static _Noreturn void no_such(jrun *r, const jnode *n, const char *what)
{
    char esc[NB_ESC_CAP], text[NB_ESC_CAP + 40];
    const jstr *s = &r->t->names[n->id];

    snprintf(text, sizeof text, "no %s is called \"%s\"", what, nb_esc(esc, sizeof esc, s->s, s->n));
    nb_j_stop(r, NB_EUNSUPPORTED, "tmpl.unsupported", text);
}

/* ---- calls ---- */

const jkw *nb_j_kw(const jcall *c, const char *name)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (c->kw[i].name->n == strlen(name) && memcmp(c->kw[i].name->s, name, c->kw[i].name->n) == 0)
            return &c->kw[i];
    return NULL;
}

static void star_args(jrun *r, const jnode *star, jval **pos, jcall *c)
{
    size_t n;
    jval *more = nb_j_items(r, nb_j_eval(r, star), &n), *all;

    if (!n)
        return;
    if (n > J_LIST_MOST - c->n)
        nb_j_limit(r, "limit.template", "a call with %zu arguments", n);
    all = nb_j_alloc(r, (c->n + n) * sizeof *all);
    if (c->n)
        memcpy(all, *pos, c->n * sizeof *all);
    memcpy(all + c->n, more, n * sizeof *all);
    *pos = all;
    c->n += n;
}

static void dstar_args(jrun *r, const jnode *dstar, jkw **kw, jcall *c)
{
    const jval d = nb_j_eval(r, dstar);
    jkw *all;

    if (d.t != J_DICT)
        nb_j_fail(r, "** wants a dict, not a %s", nb_j_type_name(d));
    all = nb_j_alloc(r, (c->n_kw + d.u.d->n) * sizeof *all);
    if (c->n_kw)
        memcpy(all, *kw, c->n_kw * sizeof *all);
    for (size_t i = 0; i < d.u.d->n; i++) {
        if (d.u.d->p[i].k.t != J_STR)
            nb_j_fail(r, "names of arguments are texts, not a %s", nb_j_type_name(d.u.d->p[i].k));
        all[c->n_kw + i] = (jkw){ d.u.d->p[i].k.u.s, d.u.d->p[i].v };
    }
    *kw = all;
    c->n_kw += d.u.d->n;
}

void nb_j_eval_args(jrun *r, const jargs *a, jcall *c)
{
    jval *pos = NULL;
    jkw *kw = NULL;

    memset(c, 0, sizeof *c);
    if (!a)
        return;
    if (a->n_pos)
        pos = nb_j_alloc(r, a->n_pos * sizeof *pos);
    for (; c->n < a->n_pos; c->n++)
        pos[c->n] = nb_j_eval(r, a->pos[c->n]);
    if (a->star)
        star_args(r, a->star, &pos, c);
    if (a->n_kw)
        kw = nb_j_alloc(r, a->n_kw * sizeof *kw);
    for (; c->n_kw < a->n_kw; c->n_kw++)
        kw[c->n_kw] = (jkw){ &r->t->names[a->kw_name[c->n_kw]], nb_j_eval(r, a->kw[c->n_kw]) };
    if (a->dstar)
        dstar_args(r, a->dstar, &kw, c);
    c->arg = pos;
    c->kw = kw;
}

jval nb_j_apply(jrun *r, const jsig *s, jval self, const jcall *c)
{
    jval bound[J_PARAMS] = { { 0 } };
    jcall all = { bound, s->max, NULL, 0, s };
    char esc[NB_ESC_CAP];

    nb_j_charge(r, 1);
    if (s->max == J_ANY) {
        all = *c;
        all.sig = s;
        return s->fn(r, self, &all);
    }
    if (c->n > s->max)
        nb_j_fail(r, "%s takes at most %d arguments, %zu given", s->name, s->max, c->n);
    for (size_t i = 0; i < c->n; i++)
        bound[i] = c->arg[i];
    for (size_t i = 0; i < c->n_kw; i++) {
        const jstr *name = c->kw[i].name;
        size_t k = 0;
        while (k < s->max && !(s->par[k] && strlen(s->par[k]) == name->n && memcmp(s->par[k], name->s, name->n) == 0))
            k++;
        if (k == s->max || bound[k].t != J_ABSENT)
            nb_j_fail(r, "%s has %s argument \"%s\"", s->name, k == s->max ? "no" : "two values for the",
                      nb_esc(esc, sizeof esc, name->s, name->n));
        bound[k] = c->kw[i].v;
    }
    for (size_t i = 0; i < s->min; i++)
        if (bound[i].t == J_ABSENT)
            nb_j_fail(r, "%s needs %d argument%s", s->name, s->min, s->min == 1 ? "" : "s");
    return s->fn(r, self, &all);
}

jval nb_j_call(jrun *r, jval f, const jcall *c)
{
    char esc[NB_ESC_CAP];
    jval v;

    switch (f.t) {
    case J_FUNC:
        return nb_j_apply(r, f.u.fn, nb_j_of(J_NONE), c);
    case J_METHOD:
        return nb_j_call_method(r, f.u.me, c);
    case J_MACRO:
        return nb_j_call_macro(r, f.u.m, c);
    case J_LOOP:
        return nb_j_call_loop(r, f.u.loop, c);
    case J_JOINER:
        if (c->n || c->n_kw)
            nb_j_fail(r, "a joiner takes no arguments");
        v = f.u.join->used ? f.u.join->sep : nb_j_cstr(r, "");
        f.u.join->used = true;
        return v;
    case J_UNDEF:
        nb_j_fail(r, "\"%s\" is undefined and cannot be called", f.u.s ? nb_esc(esc, sizeof esc, f.u.s->s, f.u.s->n) : "value");
    default:
        nb_j_fail(r, "a %s cannot be called", nb_j_type_name(f));
    }
}

/* ---- nodes ---- */

jval nb_j_eval_filter(jrun *r, const jnode *n, jval self)
{
    jcall c;

    if (n->u.a)
        self = n->u.a->kind == N_FILTER ? nb_j_eval_filter(r, n->u.a, self) : nb_j_eval(r, n->u.a);
    if (!n->u.sig)
        no_such(r, n, "filter");
    nb_j_eval_args(r, n->u.args, &c);
    return nb_j_apply(r, n->u.sig, self, &c);
}

static jval eval_test(jrun *r, const jnode *n)
{
    const jval self = nb_j_eval(r, n->u.a);
    jcall c;
    jval v;

    if (!n->u.sig)
        no_such(r, n, "test");
    nb_j_eval_args(r, n->u.args, &c);
    v = nb_j_apply(r, n->u.sig, self, &c);
    return n->flags & T_NEG ? nb_j_bool(!nb_j_true(v)) : v;
}

static jval eval_seq(jrun *r, const jnode *n)
{
    jval v = nb_j_list(r, n->n);

    for (uint32_t i = 0; i < n->n; i++)
        nb_j_append(r, v.u.l, nb_j_eval(r, n->u.v[i]));
    if (n->kind == N_TUPLE)
        v.t = J_TUPLE;
    return v;
}

static jval eval_dict(jrun *r, const jnode *n)
{
    jval v = nb_j_dict(r, n->n / 2);

    for (uint32_t i = 0; i < n->n; i += 2) {
        const jval key = nb_j_eval(r, n->u.v[i]);
        nb_j_dict_set(r, v.u.d, key, nb_j_eval(r, n->u.v[i + 1]));
    }
    return v;
}

static jval eval_item(jrun *r, const jnode *n)
{
    const jval v = nb_j_eval(r, n->u.a);
    jval part[3];

    if (n->u.b->kind != N_SLICE)
        return nb_j_getitem(r, v, nb_j_eval(r, n->u.b));
    for (int i = 0; i < 3; i++)
        part[i] = n->u.b->u.v[i] ? nb_j_eval(r, n->u.b->u.v[i]) : nb_j_of(J_ABSENT);
    return nb_j_slice(r, v, part[0], part[1], part[2]);
}

static jval eval_concat(jrun *r, const jnode *n)
{
    const size_t mark = nb_j_mark(r);

    for (uint32_t i = 0; i < n->n; i++)
        nb_j_put_str(r, nb_j_eval(r, n->u.v[i]));
    return nb_j_take(r, mark);
}

static bool compare(jrun *r, jop op, jval a, jval b)
{
    int c;

    switch (op) {
    case O_EQ:
        return nb_j_equal(r, a, b);
    case O_NE:
        return !nb_j_equal(r, a, b);
    case O_IN:
        return nb_j_contains(r, b, a);
    case O_NOTIN:
        return !nb_j_contains(r, b, a);
    default:
        c = nb_j_order(r, a, b);
        return c != 2 && (op == O_LT ? c < 0 : op == O_LE ? c <= 0 : op == O_GT ? c > 0 : c >= 0);
    }
}

static jval eval_compare(jrun *r, const jnode *n)
{
    jval a = nb_j_eval(r, n->u.v[0]);

    for (uint32_t i = 1; i < n->n; i++) {
        const jval b = nb_j_eval(r, n->u.v[i]);
        if (!compare(r, n->u.op[i - 1], a, b))
            return nb_j_bool(false);
        a = b;
    }
    return nb_j_bool(true);
}

static jval eval_call(jrun *r, const jnode *n)
{
    const jval f = nb_j_eval(r, n->u.a);
    jcall c;

    r->line = n->line;
    nb_j_eval_args(r, n->u.args, &c);
    r->line = n->line;
    return nb_j_call(r, f, &c);
}

static const jstr no_else = { "inline if", 9, 9 };

static jval eval_node(jrun *r, const jnode *n)
{
    jval v;

    switch ((jkind)n->kind) {
    case N_CONST:
        return n->u.val;
    case N_NAME:
        return nb_j_lookup(r, n->id);
    case N_LIST:
    case N_TUPLE:
        return eval_seq(r, n);
    case N_DICT:
        return eval_dict(r, n);
    case N_ATTR:
        return nb_j_getattr(r, nb_j_eval(r, n->u.a), &r->t->names[n->id]);
    case N_ITEM:
        return eval_item(r, n);
    case N_CALL:
        return eval_call(r, n);
    case N_FILTER:
        return nb_j_eval_filter(r, n, nb_j_of(J_NONE));
    case N_TEST:
        return eval_test(r, n);
    case N_ARITH:
        v = nb_j_eval(r, n->u.v[0]);
        for (uint32_t i = 1; i < n->n; i++)
            v = nb_j_arith(r, n->u.op[i - 1], v, nb_j_eval(r, n->u.v[i]));
        return v;
    case N_CONCAT:
        return eval_concat(r, n);
    case N_COMPARE:
        return eval_compare(r, n);
    case N_AND:
    case N_OR:
        v = nb_j_eval(r, n->u.v[0]);
        for (uint32_t i = 1; i < n->n && nb_j_true(v) == (n->kind == N_AND); i++)
            v = nb_j_eval(r, n->u.v[i]);
        return v;
    case N_NOT:
        return nb_j_bool(!nb_j_true(nb_j_eval(r, n->u.a)));
    case N_NEG:
    case N_POS:
        return nb_j_neg(r, nb_j_eval(r, n->u.a), n->kind == N_POS);
    case N_COND:
        if (nb_j_true(nb_j_eval(r, n->u.b)))
            return nb_j_eval(r, n->u.a);
        return n->u.c ? nb_j_eval(r, n->u.c) : nb_j_undef(&no_else);
    case N_SLICE: { /* inside a tuple index, which no value has */
        return nb_j_of(J_NONE);
    }
    default:
        nb_j_stop(r, NB_EINTERNAL, "internal", "a statement stands where an expression belongs");
    }
}

jval nb_j_eval(jrun *r, const jnode *n)
{
    jval v;

    nb_j_charge(r, 1);
    if (++r->eval_depth > J_EVAL_MOST)
        nb_j_limit(r, "limit.template", "expressions and macros nest deeper than %d levels", J_EVAL_MOST);
    v = eval_node(r, n);
    r->eval_depth--;
    return v;
}
