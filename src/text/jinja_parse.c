/* jinja_parse.c - expressions to nodes. Spec chat-templates 4; the order of precedence is that of Jinja's own parser.
 *
 * Chains of one level (a + b + c, a ~ b ~ c, a and b, comparisons) become one flat node. Everything that nests, also a
 * chain of filters or attributes, counts against J_NEST_MOST, so neither parsing nor rendering can exhaust the stack. */
#include "text/jinja.h"

#include <string.h>

/* ---- primaries ---- */

static jnode *name_node(jparse *p, uint32_t id)
{
    jnode *n = nb_j_node(p, N_NAME, offsetof(jnode, u));

    n->id = id;
    return n;
}

static jval text_value(jparse *p, const char *s, size_t n)
{
    jstr *t = nb_j_keep(p, sizeof *t);
    jval v = { .t = J_STR };

    *t = (jstr){ s, n, 0 };
    for (size_t i = 0; i < n; i++)
        t->chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    v.u.s = t;
    return v;
}

static jnode *constant(jparse *p, jval v)
{
    jnode *n = J_NODE(p, N_CONST, u.val);

    n->u.val = v;
    return n;
}

/* "'a' 'b'" is one text. */
static jnode *parse_strings(jparse *p)
{
    const jtoken first = p->tok;
    const size_t mark = p->text.n;
    char *all;
    size_t n;

    nb_j_next(p);
    if (p->tok.kind != T_STR)
        return constant(p, text_value(p, first.s, first.n));
    nb_buf_put(&p->text, first.s, first.n);
    for (; p->tok.kind == T_STR; nb_j_next(p))
        nb_buf_put(&p->text, p->tok.s, p->tok.n);
    n = p->text.n - mark;
    all = nb_j_keep(p, n + 1);
    if (p->text.failed) {
        nb_enomem(p->err, "the template");
        nb_j_parse_stop(p);
    }
    if (n)
        memcpy(all, p->text.p + mark, n);
    p->text.n = mark;
    return constant(p, text_value(p, all, n));
}

/* Digits without underscores and base prefix, at most 64: longer ones are kept only when decimal. */
static jnode *parse_int(jparse *p)
{
    const jtoken t = p->tok;
    const char c = t.n > 1 ? (char)(t.s[1] | 0x20) : '\0';
    const unsigned base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    char *digits = nb_j_keep(p, t.n + 1);
    uint64_t v = 0;
    size_t n = 0;
    bool over = false;

    for (size_t i = base == 10 ? 0 : 2; i < t.n; i++) {
        const char ch = t.s[i];
        const unsigned d = (unsigned)(ch <= '9' ? ch - '0' : (ch | 0x20) - 'a' + 10);
        if (ch == '_')
            continue;
        over = over || v > (UINT64_MAX - d) / base;
        v = over ? v : v * base + d;
        digits[n++] = ch;
    }
    over = over || v > INT64_MAX;
    nb_j_next(p);
    if (!over)
        return constant(p, nb_j_int((int64_t)v));
    if (base != 10 || n > 4300)
        nb_j_syntax(p, &t, "an integer that is too large");
    jval big = text_value(p, digits, n);
    big.t = J_BIG;
    return constant(p, big);
}

static jnode *parse_float(jparse *p)
{
    char *digits = nb_j_keep(p, p->tok.n + 1);
    size_t n = 0;
    double f = 0;

    for (size_t i = 0; i < p->tok.n; i++)
        if (p->tok.s[i] != '_')
            digits[n++] = p->tok.s[i];
    digits[n] = '\0';
    if (!nb_j_read_double(digits, n, &f))
        nb_j_syntax(p, &p->tok, "not a number");
    nb_j_next(p);
    return constant(p, nb_j_float(f));
}

static jnode *list_node(jparse *p, jkind kind, size_t mark)
{
    jnode *n = J_NODE(p, kind, u.v);

    n->u.v = nb_j_pop_all(p, mark, &n->n);
    return n;
}

static jnode *parse_list(jparse *p)
{
    const size_t mark = p->n_stack;

    nb_j_next(p);
    while (!nb_j_is_op(p, ']')) {
        if (p->n_stack > mark)
            nb_j_expect_op(p, ',', "\",\" or \"]\"");
        if (nb_j_is_op(p, ']'))
            break;
        nb_j_push(p, nb_j_parse_expr(p, true));
    }
    nb_j_next(p);
    return list_node(p, N_LIST, mark);
}

static jnode *parse_dict(jparse *p)
{
    const size_t mark = p->n_stack;

    nb_j_next(p);
    while (!nb_j_is_op(p, '}')) {
        if (p->n_stack > mark)
            nb_j_expect_op(p, ',', "\",\" or \"}\"");
        if (nb_j_is_op(p, '}'))
            break;
        nb_j_push(p, nb_j_parse_expr(p, true));
        nb_j_expect_op(p, ':', "\":\"");
        nb_j_push(p, nb_j_parse_expr(p, true));
    }
    nb_j_next(p);
    return list_node(p, N_DICT, mark);
}

/* Expressions with commas; stops before `)`, the end of the tag, and "recursive". `paren`: an empty one is allowed. */
static jnode *parse_items(jparse *p, bool with_cond, bool paren)
{
    const size_t mark = p->n_stack;
    bool tuple = false;

    for (;;) {
        if (p->n_stack > mark) {
            if (!nb_j_is_op(p, ','))
                break;
            nb_j_next(p);
            tuple = true;
        }
        if (p->tok.kind == T_OUT_END || p->tok.kind == T_STMT_END || nb_j_is_op(p, ')') || nb_j_is_name(p, "recursive"))
            break;
        nb_j_push(p, nb_j_parse_expr(p, with_cond));
    }
    if (tuple)
        return list_node(p, N_TUPLE, mark);
    if (p->n_stack > mark)
        return p->stack[--p->n_stack];
    if (!paren)
        nb_j_unexpected(p, "an expression");
    return list_node(p, N_TUPLE, mark);
}

jnode *nb_j_parse_tuple(jparse *p, bool with_cond)
{
    return parse_items(p, with_cond, false);
}

jnode *nb_j_parse_primary(jparse *p)
{
    static const char *const words[] = { "true", "True", "false", "False", "none", "None" };
    jnode *n;

    switch (p->tok.kind) {
    case T_NAME:
        for (size_t i = 0; i < NB_LEN(words); i++)
            if (nb_j_is_name(p, words[i])) {
                nb_j_next(p);
                return constant(p, i < 4 ? nb_j_bool(i < 2) : nb_j_of(J_NONE));
            }
        n = name_node(p, nb_j_intern(p, p->tok.s, p->tok.n));
        if (p->mentions)
            *p->mentions |= nb_j_is_name(p, "varargs")  ? M_VARARGS
                            : nb_j_is_name(p, "kwargs") ? M_KWARGS
                            : nb_j_is_name(p, "caller") ? M_CALLER
                                                        : 0;
        nb_j_next(p);
        return n;
    case T_STR:
        return parse_strings(p);
    case T_INT:
        return parse_int(p);
    case T_FLOAT:
        return parse_float(p);
    case T_OP:
        if (nb_j_is_op(p, '['))
            return parse_list(p);
        if (nb_j_is_op(p, '{'))
            return parse_dict(p);
        if (nb_j_skip_op(p, '(')) {
            n = parse_items(p, true, true);
            nb_j_expect_op(p, ')', "\")\"");
            return n;
        }
        break;
    default:
        break;
    }
    nb_j_unexpected(p, "an expression");
}

/* ---- calls, subscripts, filters, tests ---- */

static const jargs *parse_args(jparse *p)
{
    jargs *a = nb_j_keep(p, sizeof *a);
    const size_t mark = p->n_stack;
    uint32_t names[64];
    bool first = true;

    memset(a, 0, sizeof *a);
    nb_j_expect_op(p, '(', "\"(\"");
    for (; !nb_j_is_op(p, ')'); first = false) {
        if (!first)
            nb_j_expect_op(p, ',', "\",\" or \")\"");
        if (nb_j_is_op(p, ')'))
            break;
        if (nb_j_is_op(p, '*') && !a->star && !a->dstar) {
            nb_j_next(p);
            a->star = nb_j_parse_expr(p, true);
        } else if (nb_j_is_op(p, J_OP2('*', '*')) && !a->dstar) {
            nb_j_next(p);
            a->dstar = nb_j_parse_expr(p, true);
        } else if (p->tok.kind == T_NAME && nb_j_look(p)->kind == T_OP && nb_j_look(p)->op == '=') {
            if (a->dstar || a->n_kw == NB_LEN(names))
                nb_j_unexpected(p, a->dstar ? "\")\"" : "fewer than 64 keyword arguments");
            if (!a->n_kw)
                a->pos = nb_j_pop_all(p, mark, &a->n_pos);
            names[a->n_kw++] = nb_j_intern(p, p->tok.s, p->tok.n);
            nb_j_next(p);
            nb_j_next(p);
            nb_j_push(p, nb_j_parse_expr(p, true));
        } else {
            if (a->n_kw || a->star || a->dstar)
                nb_j_syntax(p, &p->tok, "a positional argument behind keyword or starred ones");
            nb_j_push(p, nb_j_parse_expr(p, true));
        }
    }
    nb_j_next(p);
    if (a->n_kw) {
        uint32_t *keep = nb_j_keep(p, a->n_kw * sizeof *keep);
        memcpy(keep, names, a->n_kw * sizeof *keep);
        a->kw_name = keep;
        a->kw = nb_j_pop_all(p, mark, &a->n_kw);
    } else {
        a->pos = nb_j_pop_all(p, mark, &a->n_pos);
    }
    return a;
}

/* Inside [ ]: an index, a slice, or a tuple of them. */
static jnode *parse_index(jparse *p)
{
    jnode *first = NULL, *n, **part;

    if (!nb_j_is_op(p, ':')) {
        first = nb_j_parse_expr(p, true);
        if (!nb_j_is_op(p, ':'))
            return first;
    }
    part = nb_j_keep(p, 3 * sizeof *part);
    part[0] = first;
    part[1] = part[2] = NULL;
    for (int i = 1; i <= 2 && nb_j_skip_op(p, ':'); i++)
        if (!nb_j_is_op(p, ':') && !nb_j_is_op(p, ']') && !nb_j_is_op(p, ','))
            part[i] = nb_j_parse_expr(p, true);
    n = J_NODE(p, N_SLICE, u.v);
    n->n = 3;
    n->u.v = part;
    return n;
}

static jnode *parse_subscript(jparse *p, jnode *node)
{
    jnode *n;

    if (nb_j_skip_op(p, '.')) {
        if (p->tok.kind == T_NAME) {
            n = J_NODE(p, N_ATTR, u.a);
            n->u.a = node;
            n->id = nb_j_intern(p, p->tok.s, p->tok.n);
            nb_j_next(p);
            return n;
        }
        if (p->tok.kind != T_INT)
            nb_j_unexpected(p, "a name or number");
        n = J_NODE(p, N_ITEM, u.b);
        n->u.a = node;
        n->u.b = parse_int(p);
        return n;
    }
    nb_j_next(p);
    n = J_NODE(p, N_ITEM, u.b);
    n->u.a = node;
    if (nb_j_is_op(p, ']'))
        nb_j_unexpected(p, "an index");
    const size_t mark = p->n_stack;
    nb_j_push(p, parse_index(p));
    while (nb_j_skip_op(p, ','))
        nb_j_push(p, parse_index(p));
    nb_j_expect_op(p, ']', "\"]\"");
    n->u.b = p->n_stack == mark + 1 ? p->stack[--p->n_stack] : list_node(p, N_TUPLE, mark);
    return n;
}

static jnode *parse_call(jparse *p, jnode *node)
{
    jnode *n = J_NODE(p, N_CALL, u.args);

    n->u.a = node;
    n->u.args = parse_args(p);
    return n;
}

/* a.b.c[0](x)...: every link counts as a level; *links tells how many. */
static jnode *parse_postfix(jparse *p, jnode *node, int *links)
{
    for (;; ++*links) {
        const bool call = nb_j_is_op(p, '(');
        if (!call && !nb_j_is_op(p, '.') && !nb_j_is_op(p, '['))
            return node;
        nb_j_deeper(p);
        node = call ? parse_call(p, node) : parse_subscript(p, node);
    }
}

static void dotted_name(jparse *p, jtoken *name, const char *what)
{
    if (p->tok.kind != T_NAME)
        nb_j_unexpected(p, what);
    *name = p->tok;
    nb_j_next(p);
    while (nb_j_is_op(p, '.')) { /* "a.b": no filter of ours has a dot, the name is only for the message */
        nb_j_next(p);
        if (p->tok.kind != T_NAME)
            nb_j_unexpected(p, what);
        name->n = (size_t)(p->tok.s + p->tok.n - name->s);
        nb_j_next(p);
    }
}

static void note_unknown(jparse *p, const jtoken *name, bool test)
{
    if (p->soft || p->unknown.n)
        return;
    p->unknown = *name;
    p->unknown_test = test;
}

/* name(args) behind a bar */
static jnode *parse_filter(jparse *p, jnode *node)
{
    jtoken name;
    jnode *n;

    dotted_name(p, &name, "the name of a filter");
    n = J_NODE(p, N_FILTER, u.sig);
    n->u.a = node;
    n->id = nb_j_intern(p, name.s, name.n);
    n->u.sig = nb_j_find_filter(name.s, name.n);
    if (!n->u.sig)
        note_unknown(p, &name, false);
    if (nb_j_is_op(p, '('))
        n->u.args = parse_args(p);
    return n;
}

jnode *nb_j_parse_filters(jparse *p, bool start)
{
    jnode *node = start ? parse_filter(p, NULL) : NULL;
    int links = 0;

    for (; nb_j_skip_op(p, '|'); links++) {
        nb_j_deeper(p);
        node = parse_filter(p, node);
    }
    p->depth -= links;
    return node;
}

/* node "is" [not] name [argument] */
static jnode *parse_test(jparse *p, jnode *node)
{
    jtoken name;
    jnode *n;
    bool neg;

    nb_j_next(p);
    neg = nb_j_skip_name(p, "not");
    dotted_name(p, &name, "the name of a test");
    n = J_NODE(p, N_TEST, u.sig);
    n->flags = neg ? T_NEG : 0;
    n->u.a = node;
    n->id = nb_j_intern(p, name.s, name.n);
    n->u.sig = nb_j_find_test(name.s, name.n);
    if (!n->u.sig)
        note_unknown(p, &name, true);
    if (nb_j_is_op(p, '(')) {
        n->u.args = parse_args(p);
    } else if ((p->tok.kind == T_NAME || p->tok.kind == T_STR || p->tok.kind == T_INT || p->tok.kind == T_FLOAT || nb_j_is_op(p, '[') ||
                nb_j_is_op(p, '{')) &&
               !nb_j_is_name(p, "else") && !nb_j_is_name(p, "or") && !nb_j_is_name(p, "and")) {
        jargs *a = nb_j_keep(p, sizeof *a);
        int links = 0;
        if (nb_j_is_name(p, "is"))
            nb_j_syntax(p, &p->tok, "tests cannot be chained with \"is\"");
        memset(a, 0, sizeof *a);
        a->n_pos = 1;
        a->pos = nb_j_keep(p, sizeof *a->pos);
        a->pos[0] = parse_postfix(p, nb_j_parse_primary(p), &links);
        p->depth -= links;
        n->u.args = a;
    }
    return n;
}

static jnode *parse_filter_expr(jparse *p, jnode *node)
{
    int links = 0;

    for (;; links++) {
        const bool filter = nb_j_is_op(p, '|'), test = nb_j_is_name(p, "is"), call = nb_j_is_op(p, '(');
        if (!filter && !test && !call)
            break;
        nb_j_deeper(p);
        if (filter)
            nb_j_next(p);
        node = filter ? parse_filter(p, node) : test ? parse_test(p, node) : parse_call(p, node);
    }
    p->depth -= links;
    return node;
}

/* ---- operators ---- */

static jnode *parse_unary(jparse *p, bool with_filter)
{
    const bool neg = nb_j_is_op(p, '-');
    jnode *n;
    int links = 0;

    if (neg || nb_j_is_op(p, '+')) {
        n = J_NODE(p, neg ? N_NEG : N_POS, u.a);
        nb_j_deeper(p);
        nb_j_next(p);
        n->u.a = parse_unary(p, false);
        p->depth--;
    } else {
        n = nb_j_parse_primary(p);
    }
    n = parse_postfix(p, n, &links);
    if (with_filter)
        n = parse_filter_expr(p, n);
    p->depth -= links;
    return n;
}

/* Binary operators by level, loosest first; `~` between + and *. */
static const struct {
    uint16_t op;
    uint8_t level;
    jop what;
} binary[] = {
    { J_OP('+'), 0, O_ADD }, { J_OP('-'), 0, O_SUB },        { J_OP('~'), 1, O_ADD }, { J_OP('*'), 2, O_MUL },
    { J_OP('/'), 2, O_DIV }, { J_OP2('/', '/'), 2, O_FDIV }, { J_OP('%'), 2, O_MOD }, { J_OP2('*', '*'), 3, O_POW },
};

static int binary_at(const jparse *p, uint8_t level)
{
    for (size_t i = 0; i < NB_LEN(binary); i++)
        if (binary[i].level == level && nb_j_is_op(p, binary[i].op))
            return (int)i;
    return -1;
}

static jnode *parse_binary(jparse *p, uint8_t level)
{
    const size_t mark = p->n_stack;
    jnode *first = level == 4 ? parse_unary(p, true) : parse_binary(p, (uint8_t)(level + 1)), *n;
    uint8_t *op = NULL;
    size_t n_op = 0, cap = 0;
    int hit;

    if (level == 4 || binary_at(p, level) < 0)
        return first;
    nb_j_push(p, first);
    while ((hit = binary_at(p, level)) >= 0) {
        if (n_op == cap) { /* arena memory: an error on the way must not leak */
            uint8_t *more = nb_j_keep(p, cap = cap ? 2 * cap : 8);
            if (n_op)
                memcpy(more, op, n_op);
            op = more;
        }
        op[n_op++] = (uint8_t)binary[hit].what;
        nb_j_next(p);
        nb_j_push(p, parse_binary(p, (uint8_t)(level + 1)));
    }
    n = J_NODE(p, level == 1 ? N_CONCAT : N_ARITH, u.op);
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    n->u.op = op;
    return n;
}

static bool compare_at(jparse *p, jop *op)
{
    static const struct {
        uint16_t op;
        jop what;
    } ops[] = { { J_OP2('=', '='), O_EQ }, { J_OP2('!', '='), O_NE }, { J_OP('<'), O_LT },
                { J_OP2('<', '='), O_LE }, { J_OP('>'), O_GT },       { J_OP2('>', '='), O_GE } };

    for (size_t i = 0; i < NB_LEN(ops); i++)
        if (nb_j_is_op(p, ops[i].op)) {
            *op = ops[i].what;
            nb_j_next(p);
            return true;
        }
    if (nb_j_skip_name(p, "in")) {
        *op = O_IN;
        return true;
    }
    if (nb_j_is_name(p, "not") && nb_j_token_is(nb_j_look(p), "in")) {
        *op = O_NOTIN;
        nb_j_next(p);
        nb_j_next(p);
        return true;
    }
    return false;
}

static jnode *parse_compare(jparse *p)
{
    const size_t mark = p->n_stack;
    jnode *first = parse_binary(p, 0), *n;
    uint8_t *ops = NULL;
    size_t n_op = 0, cap = 0;
    jop op;

    if (!compare_at(p, &op))
        return first;
    nb_j_push(p, first);
    do {
        if (n_op == cap) {
            uint8_t *more = nb_j_keep(p, cap = cap ? 2 * cap : 8);
            if (n_op)
                memcpy(more, ops, n_op);
            ops = more;
        }
        ops[n_op++] = (uint8_t)op;
        nb_j_push(p, parse_binary(p, 0));
    } while (compare_at(p, &op));
    n = J_NODE(p, N_COMPARE, u.op);
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    n->u.op = ops;
    return n;
}

static jnode *parse_not(jparse *p)
{
    jnode *n;

    if (!nb_j_is_name(p, "not"))
        return parse_compare(p);
    n = J_NODE(p, N_NOT, u.a);
    nb_j_deeper(p);
    nb_j_next(p);
    n->u.a = parse_not(p);
    p->depth--;
    return n;
}

static jnode *parse_and_or(jparse *p, bool either)
{
    const char *word = either ? "or" : "and";
    const size_t mark = p->n_stack;
    jnode *first = either ? parse_and_or(p, false) : parse_not(p);

    if (!nb_j_is_name(p, word))
        return first;
    nb_j_push(p, first);
    while (nb_j_skip_name(p, word))
        nb_j_push(p, either ? parse_and_or(p, false) : parse_not(p));
    return list_node(p, either ? N_OR : N_AND, mark);
}

/* with_cond false: "a if b" is left alone, as in the iterable of a for statement. */
jnode *nb_j_parse_expr(jparse *p, bool with_cond)
{
    const jtoken unknown = p->unknown;
    const bool unknown_test = p->unknown_test, soft = p->soft;
    jnode *n, *first;
    int links = 1;

    nb_j_deeper(p);
    first = parse_and_or(p, true);
    while (with_cond && nb_j_is_name(p, "if")) {
        p->unknown = unknown; /* what stands in an inline if fails only when it runs */
        p->unknown_test = unknown_test;
        p->soft = true;
        n = J_NODE(p, N_COND, u.c);
        nb_j_deeper(p);
        links++;
        nb_j_next(p);
        n->u.a = first;
        n->u.b = parse_and_or(p, true);
        if (nb_j_skip_name(p, "else"))
            n->u.c = nb_j_parse_expr(p, true);
        first = n;
    }
    p->depth -= links;
    p->soft = soft;
    return first;
}
