/* jinja_tests.c - what stands behind "is", and the operators as tests. Spec chat-templates 7. */
#include "text/jinja.h"

#include <string.h>

static jval t_type(jrun *r, jval v, const jcall *c)
{
    const char *name = c->sig->name;
    size_t n;
    bool yes = false;

    (void)r;
    if (strcmp(name, "defined") == 0)
        yes = v.t != J_UNDEF;
    else if (strcmp(name, "undefined") == 0)
        yes = v.t == J_UNDEF;
    else if (strcmp(name, "none") == 0)
        yes = v.t == J_NONE;
    else if (strcmp(name, "boolean") == 0)
        yes = v.t == J_BOOL;
    else if (strcmp(name, "true") == 0)
        yes = v.t == J_BOOL && v.u.b;
    else if (strcmp(name, "false") == 0)
        yes = v.t == J_BOOL && !v.u.b;
    else if (strcmp(name, "integer") == 0)
        yes = v.t == J_INT || v.t == J_BIG;
    else if (strcmp(name, "float") == 0)
        yes = v.t == J_FLOAT;
    else if (strcmp(name, "number") == 0)
        yes = nb_j_is_num(v);
    else if (strcmp(name, "string") == 0)
        yes = v.t == J_STR;
    else if (strcmp(name, "mapping") == 0)
        yes = v.t == J_DICT;
    else if (strcmp(name, "sequence") == 0)
        yes = nb_j_length(v, &n) && v.t != J_VIEW && v.t != J_LOOP;
    else if (strcmp(name, "iterable") == 0)
        yes = nb_j_iterable(v);
    else if (strcmp(name, "callable") == 0)
        yes = v.t == J_MACRO || v.t == J_FUNC || v.t == J_METHOD || v.t == J_LOOP || v.t == J_JOINER || v.t == J_UNDEF;
    else if (strcmp(name, "escaped") == 0)
        yes = v.t == J_STR && v.safe;
    return nb_j_bool(yes);
}

static jval t_parity(jrun *r, jval v, const jcall *c)
{
    const jval rest = nb_j_arith(r, O_MOD, v, nb_j_int(2));

    return nb_j_bool(nb_j_equal(r, rest, nb_j_int(c->sig->name[0] == 'o')));
}

static jval t_divisible(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(nb_j_equal(r, nb_j_arith(r, O_MOD, v, c->arg[0]), nb_j_int(0)));
}

static jval t_case(jrun *r, jval v, const jcall *c)
{
    v = nb_j_to_str(r, v);
    nb_j_charge(r, v.u.s->n / 16);
    return nb_j_bool(nb_j_str_is(v.u.s, c->sig->name));
}

static jval t_in(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(nb_j_contains(r, c->arg[0], v));
}

static jval t_sameas(jrun *r, jval v, const jcall *c)
{
    const jval b = c->arg[0];

    (void)r;
    if (v.t != b.t)
        return nb_j_bool(false);
    if (v.t == J_BOOL)
        return nb_j_bool(v.u.b == b.u.b);
    if (v.t == J_INT)
        return nb_j_bool(v.u.i == b.u.i);
    if (v.t == J_STR)
        return nb_j_bool(nb_j_equal(r, v, b));
    return nb_j_bool(v.t == J_NONE || v.t == J_UNDEF || (v.t != J_FLOAT && v.u.s == b.u.s));
}

static jval t_eq(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(nb_j_equal(r, v, c->arg[0]));
}

static jval t_ne(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(!nb_j_equal(r, v, c->arg[0]));
}

static int order(jrun *r, jval v, const jcall *c)
{
    return nb_j_order(r, v, c->arg[0]);
}

static jval t_lt(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(order(r, v, c) < 0);
}

static jval t_le(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(order(r, v, c) <= 0);
}

static jval t_gt(jrun *r, jval v, const jcall *c)
{
    return nb_j_bool(order(r, v, c) == 1);
}

static jval t_ge(jrun *r, jval v, const jcall *c)
{
    const int o = order(r, v, c);

    return nb_j_bool(o == 0 || o == 1);
}

static jval t_known(jrun *r, jval v, const jcall *c)
{
    const jstr *s = nb_j_need_str(r, v, c->sig->name);
    const jsig *hit = c->sig->name[0] == 'f' ? nb_j_find_filter(s->s, s->n) : nb_j_find_test(s->s, s->n);

    return nb_j_bool(hit != NULL);
}

#define ARG .par = { "other" }, .min = 1, .max = 1
static const jsig tests[] = {
    { .name = "defined", .fn = t_type },        { .name = "undefined", .fn = t_type },
    { .name = "none", .fn = t_type },           { .name = "boolean", .fn = t_type },
    { .name = "true", .fn = t_type },           { .name = "false", .fn = t_type },
    { .name = "integer", .fn = t_type },        { .name = "float", .fn = t_type },
    { .name = "number", .fn = t_type },         { .name = "string", .fn = t_type },
    { .name = "mapping", .fn = t_type },        { .name = "sequence", .fn = t_type },
    { .name = "iterable", .fn = t_type },       { .name = "callable", .fn = t_type },
    { .name = "escaped", .fn = t_type },        { .name = "even", .fn = t_parity },
    { .name = "odd", .fn = t_parity },          { .name = "divisibleby", .fn = t_divisible, ARG },
    { .name = "lower", .fn = t_case },          { .name = "upper", .fn = t_case },
    { .name = "in", .fn = t_in, ARG },          { .name = "sameas", .fn = t_sameas, ARG },
    { .name = "eq", .fn = t_eq, ARG },          { .name = "==", .fn = t_eq, ARG },
    { .name = "equalto", .fn = t_eq, ARG },     { .name = "ne", .fn = t_ne, ARG },
    { .name = "!=", .fn = t_ne, ARG },          { .name = "lt", .fn = t_lt, ARG },
    { .name = "<", .fn = t_lt, ARG },           { .name = "lessthan", .fn = t_lt, ARG },
    { .name = "le", .fn = t_le, ARG },          { .name = "<=", .fn = t_le, ARG },
    { .name = "gt", .fn = t_gt, ARG },          { .name = ">", .fn = t_gt, ARG },
    { .name = "greaterthan", .fn = t_gt, ARG }, { .name = "ge", .fn = t_ge, ARG },
    { .name = ">=", .fn = t_ge, ARG },          { .name = "filter", .fn = t_known },
    { .name = "test", .fn = t_known },          { .name = NULL },
};

const jsig *nb_j_find_test(const char *s, size_t n)
{
    return nb_j_find_in(tests, s, n);
}
