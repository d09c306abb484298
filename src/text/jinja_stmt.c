/* jinja_stmt.c - statements to nodes, and the template handle. Spec chat-templates 3-4. */
#include "text/jinja.h"

#include <string.h>

#include "text/utf8.h"

static jnode *parse_body(jparse *p, const char *const ends[]);

static void end_tag(jparse *p)
{
    char esc[NB_ESC_CAP];

    if (p->tok.kind != T_STMT_END)
        nb_j_syntax(p, &p->tok, "the end of the statement expected, found \"%s\"", nb_esc(esc, sizeof esc, p->tok.s, p->tok.n));
    nb_j_next(p);
}

/* The body behind the rest of this tag, up to {% end %}, whose name is the current token afterwards and skipped. */
static jnode *body_to(jparse *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    jnode *n;

    end_tag(p);
    n = parse_body(p, ends);
    nb_j_next(p);
    return n;
}

/* What is parsed between enter and leave is a scope of its own: it compiles even when it never runs. */
typedef struct inner {
    bool soft;
    int loops;
    uint8_t *mentions;
} inner;

static inner enter(jparse *p)
{
    const inner i = { p->soft, p->loops, p->mentions };

    p->soft = false;
    return i;
}

static void leave(jparse *p, inner i)
{
    p->soft = i.soft;
    p->loops = i.loops;
    p->mentions = i.mentions;
}

static bool can_assign(const jnode *n)
{
    if (n->kind == N_NAME)
        return true;
    if (n->kind != N_TUPLE && n->kind != N_LIST)
        return false;
    for (uint32_t i = 0; i < n->n; i++)
        if (!can_assign(n->u.v[i]))
            return false;
    return true;
}

static jnode *check_target(jparse *p, jnode *n)
{
    if (!can_assign(n))
        nb_j_syntax(p, &p->tok, "this cannot be assigned to");
    return n;
}

/* Targets with commas up to "in", "=", a bar or the end of the tag. */
static jnode *parse_targets(jparse *p)
{
    const size_t mark = p->n_stack;
    bool tuple = false;
    jnode *n;

    for (;;) {
        if (p->n_stack > mark) {
            if (!nb_j_skip_op(p, ','))
                break;
            tuple = true;
        }
        if (p->tok.kind == T_STMT_END || nb_j_is_op(p, ')') || nb_j_is_name(p, "in"))
            break;
        nb_j_push(p, nb_j_parse_primary(p));
    }
    if (!tuple && p->n_stack > mark)
        return check_target(p, p->stack[--p->n_stack]);
    n = J_NODE(p, N_TUPLE, u.v);
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    if (!n->n)
        nb_j_syntax(p, &p->tok, "a name to assign to is missing");
    return check_target(p, n);
}

static uint32_t plain_name(jparse *p, const char *what)
{
    uint32_t id;
    jnode *n;

    if (p->tok.kind != T_NAME)
        nb_j_syntax(p, &p->tok, "%s expected", what);
    n = nb_j_parse_primary(p);
    check_target(p, n);
    id = n->id;
    return id;
}

static jnode *parse_set(jparse *p)
{
    jnode *n, *target;

    if (p->tok.kind == T_NAME && nb_j_look(p)->kind == T_OP && nb_j_look(p)->op == '.') {
        target = nb_j_node(p, N_NSATTR, offsetof(jnode, u));
        target->id = nb_j_intern(p, p->tok.s, p->tok.n);
        nb_j_next(p);
        nb_j_next(p);
        if (p->tok.kind != T_NAME)
            nb_j_syntax(p, &p->tok, "the name of an attribute expected");
        target->n = nb_j_intern(p, p->tok.s, p->tok.n);
        nb_j_next(p);
    } else {
        target = parse_targets(p);
    }
    if (nb_j_skip_op(p, '=')) {
        n = J_NODE(p, N_SET, u.b);
        n->u.a = target;
        n->u.b = nb_j_parse_tuple(p, true);
        return n;
    }
    n = J_NODE(p, N_SETBLOCK, u.c);
    n->u.a = target;
    n->u.b = nb_j_parse_filters(p, false);
    const inner i = enter(p);
    n->u.c = body_to(p, "endset");
    leave(p, i);
    return n;
}

static jnode *parse_if(jparse *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    const size_t mark = p->n_stack;
    const bool soft = p->soft;
    jnode *n = J_NODE(p, N_IF, u.v);

    p->soft = true;
    do {
        nb_j_push(p, nb_j_parse_tuple(p, false));
        end_tag(p);
        nb_j_push(p, parse_body(p, ends));
    } while (nb_j_skip_name(p, "elif"));
    if (nb_j_skip_name(p, "else")) {
        end_tag(p);
        nb_j_push(p, NULL);
        nb_j_push(p, parse_body(p, last));
    }
    nb_j_next(p);
    p->soft = soft;
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    return n;
}

static jnode *parse_for(jparse *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    static const char *const last[] = { "endfor", NULL };
    jnode *n = J_NODE(p, N_FOR, u.v), **v = nb_j_keep(p, 5 * sizeof *v);
    const inner i = enter(p);

    memset(v, 0, 5 * sizeof *v);
    n->u.v = v;
    n->n = 5;
    v[0] = parse_targets(p);
    nb_j_expect_name(p, "in");
    v[1] = nb_j_parse_tuple(p, false);
    if (nb_j_skip_name(p, "if"))
        v[2] = nb_j_parse_expr(p, true);
    if (nb_j_skip_name(p, "recursive"))
        n->flags |= F_RECURSIVE;
    end_tag(p);
    p->loops++;
    v[3] = parse_body(p, ends);
    p->loops--;
    if (nb_j_skip_name(p, "else")) {
        end_tag(p);
        v[4] = parse_body(p, last);
    }
    nb_j_next(p);
    leave(p, i);
    return n;
}

/* "(a, b=1)": pushes names, then defaults, NULL where there is none. Returns the number of names. */
static uint32_t parse_signature(jparse *p)
{
    const size_t mark = p->n_stack;
    jnode *defaults[64];
    uint32_t n = 0;

    nb_j_expect_op(p, '(', "\"(\"");
    while (!nb_j_is_op(p, ')')) {
        jnode *name = nb_j_node(p, N_NAME, offsetof(jnode, u));
        if (n)
            nb_j_expect_op(p, ',', "\",\" or \")\"");
        if (n == NB_LEN(defaults))
            nb_j_syntax(p, &p->tok, "more than %zu parameters", NB_LEN(defaults));
        name->id = plain_name(p, "the name of a parameter");
        nb_j_push(p, name);
        defaults[n] = NULL;
        if (nb_j_skip_op(p, '='))
            defaults[n] = nb_j_parse_expr(p, true);
        else if (n && defaults[n - 1])
            nb_j_syntax(p, &p->tok, "a parameter without default behind one with");
        n++;
    }
    nb_j_next(p);
    for (uint32_t i = 0; i < n; i++)
        nb_j_push(p, defaults[i]);
    if (p->n_stack != mark + 2 * n)
        nb_j_syntax(p, &p->tok, "a broken parameter list");
    return n;
}

/* The rest of a macro or call block from its parameters on. */
static void parse_macro_body(jparse *p, jnode *n, size_t mark, const char *end)
{
    const inner i = enter(p);
    uint32_t n_kids;

    p->loops = 0;
    p->mentions = &n->flags;
    nb_j_push(p, body_to(p, end));
    leave(p, i);
    n->u.v = nb_j_pop_all(p, mark, &n_kids);
}

static jnode *parse_macro(jparse *p)
{
    const size_t mark = p->n_stack;
    jnode *n = J_NODE(p, N_MACRO, u.v);
    const inner i = enter(p);

    n->id = plain_name(p, "the name of the macro");
    p->mentions = &n->flags;
    n->n = parse_signature(p);
    leave(p, i);
    parse_macro_body(p, n, mark, "endmacro");
    return n;
}

static jnode *parse_call_block(jparse *p)
{
    const size_t mark = p->n_stack;
    jnode *n = J_NODE(p, N_CALLBLOCK, u.b);

    n->id = nb_j_intern(p, "caller", 6);
    n->n = nb_j_is_op(p, '(') ? parse_signature(p) : 0;
    n->u.b = nb_j_parse_expr(p, true);
    if (n->u.b->kind != N_CALL)
        nb_j_syntax(p, &p->tok, "a call expected");
    parse_macro_body(p, n, mark, "endcall");
    return n;
}

static jnode *parse_filter_block(jparse *p)
{
    jnode *n = J_NODE(p, N_FILTERBLOCK, u.c);
    const inner i = enter(p);

    n->u.b = nb_j_parse_filters(p, true);
    n->u.c = body_to(p, "endfilter");
    leave(p, i);
    return n;
}

static jnode *parse_with(jparse *p)
{
    const size_t mark = p->n_stack;
    jnode *n = J_NODE(p, N_WITH, u.v);
    const inner i = enter(p);

    while (p->tok.kind != T_STMT_END) {
        if (p->n_stack > mark)
            nb_j_expect_op(p, ',', "\",\"");
        nb_j_push(p, check_target(p, nb_j_parse_primary(p)));
        nb_j_expect_op(p, '=', "\"=\"");
        nb_j_push(p, nb_j_parse_expr(p, true));
    }
    nb_j_push(p, body_to(p, "endwith"));
    leave(p, i);
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    return n;
}

static jnode *parse_scope(jparse *p, const char *end)
{
    jnode *n = J_NODE(p, N_SCOPE, u.a);
    const inner i = enter(p);

    n->u.a = body_to(p, end);
    leave(p, i);
    return n;
}

static jnode *parse_generation(jparse *p)
{
    return parse_scope(p, "endgeneration");
}

static jnode *parse_block(jparse *p)
{
    const uint32_t id = plain_name(p, "the name of the block");
    jnode *n;

    while (nb_j_skip_name(p, "scoped") || nb_j_skip_name(p, "required")) {
    }
    n = parse_scope(p, "endblock");
    if (p->tok.kind == T_NAME && nb_j_intern(p, p->tok.s, p->tok.n) == id)
        nb_j_next(p);
    return n;
}

static jnode *parse_jump(jparse *p, jkind kind)
{
    if (p->loops <= 0)
        nb_j_syntax(p, &p->tok, "%s outside a loop", kind == N_BREAK ? "break" : "continue");
    return nb_j_node(p, kind, offsetof(jnode, u));
}

static jnode *parse_break(jparse *p)
{
    return parse_jump(p, N_BREAK);
}

static jnode *parse_continue(jparse *p)
{
    return parse_jump(p, N_CONTINUE);
}

static const struct {
    const char *word;
    jnode *(*parse)(jparse *p);
} statements[] = {
    { "if", parse_if },
    { "for", parse_for },
    { "set", parse_set },
    { "macro", parse_macro },
    { "call", parse_call_block },
    { "filter", parse_filter_block },
    { "with", parse_with },
    { "generation", parse_generation },
    { "block", parse_block },
    { "break", parse_break },
    { "continue", parse_continue },
};

/* Words that close or divide a block: elsewhere they are errors of syntax, any other unknown word is a tag we lack. */
static bool is_inner_word(const jparse *p)
{
    return (p->tok.n > 3 && memcmp(p->tok.s, "end", 3) == 0) || nb_j_is_name(p, "else") || nb_j_is_name(p, "elif");
}

static jnode *parse_statement(jparse *p)
{
    char esc[NB_ESC_CAP];
    jnode *n;

    for (size_t i = 0; i < NB_LEN(statements); i++) {
        if (!nb_j_is_name(p, statements[i].word))
            continue;
        nb_j_deeper(p);
        nb_j_next(p);
        n = statements[i].parse(p);
        p->depth--;
        end_tag(p);
        return n;
    }
    nb_esc(esc, sizeof esc, p->tok.s, p->tok.n);
    if (p->tok.kind != T_NAME)
        nb_j_syntax(p, &p->tok, "the name of a statement expected");
    if (is_inner_word(p))
        nb_j_syntax(p, &p->tok, "\"%s\" has no matching statement before it", esc);
    nb_fail(p->err, NB_EUNSUPPORTED, "tmpl.unsupported", "JT-02", "line %u, column %u: no statement is called \"%s\"", p->tok.line,
            p->tok.col, esc);
    nb_j_parse_stop(p);
}

static jnode *text_node(jparse *p)
{
    jnode *n = J_NODE(p, N_TEXT, u.val);
    jstr *s = nb_j_keep(p, sizeof *s);

    *s = (jstr){ p->tok.s, p->tok.n, 0 };
    n->u.val.t = J_STR;
    n->u.val.u.s = s;
    nb_j_next(p);
    return n;
}

/* Everything up to a statement whose name is in ends (its begin is skipped), or up to the end of the source (ends NULL). */
static jnode *parse_body(jparse *p, const char *const ends[])
{
    const size_t mark = p->n_stack;
    jnode *n = J_NODE(p, N_BODY, u.v);

    for (;;) {
        if (p->tok.kind == T_TEXT) {
            nb_j_push(p, text_node(p));
        } else if (p->tok.kind == T_OUT_BEGIN) {
            jnode *o = J_NODE(p, N_OUT, u.a);
            nb_j_next(p);
            o->u.a = nb_j_parse_tuple(p, true);
            nb_j_push(p, o);
            if (p->tok.kind != T_OUT_END) {
                char esc[NB_ESC_CAP];
                nb_j_syntax(p, &p->tok, "\"}}\" expected, found \"%s\"", nb_esc(esc, sizeof esc, p->tok.s, p->tok.n));
            }
            nb_j_next(p);
        } else if (p->tok.kind == T_STMT_BEGIN) {
            size_t i = 0;
            nb_j_next(p);
            while (ends && ends[i] && !nb_j_is_name(p, ends[i]))
                i++;
            if (ends && ends[i])
                break;
            nb_j_push(p, parse_statement(p));
        } else {
            if (ends)
                nb_j_syntax(p, &p->tok, "the template ends before {%% %s %%}", ends[0]);
            break;
        }
    }
    n->u.v = nb_j_pop_all(p, mark, &n->n);
    return n;
}

/* LF newlines, and one less at the end. */
static char *normalize(const char *src, size_t *n)
{
    char *s = nb_alloc(*n + 1);
    size_t k = 0;

    for (size_t i = 0; s && i < *n; i++) {
        if (src[i] == '\r' && i + 1 < *n && src[i + 1] == '\n')
            continue;
        s[k++] = (char)(src[i] == '\r' ? '\n' : src[i]);
    }
    if (k && s[k - 1] == '\n')
        k--;
    *n = k;
    return s;
}

static void parse_all(jparse *p)
{
    static const char *const names[] = { "loop", "caller", "varargs", "kwargs" }; /* ids 0 .. 3, jinja_exec.c */
    char esc[NB_ESC_CAP];

    if (setjmp(p->out))
        return;
    for (size_t i = 0; i < NB_LEN(names); i++)
        nb_j_intern(p, names[i], strlen(names[i]));
    nb_j_next(p);
    p->t->body = parse_body(p, NULL);
    if (!p->unknown.n)
        return;
    p->t->body = NULL;
    nb_fail(p->err, NB_EUNSUPPORTED, "tmpl.unsupported", "JT-02", "line %u, column %u: no %s is called \"%s\"", p->unknown.line,
            p->unknown.col, p->unknown_test ? "test" : "filter", nb_esc(esc, sizeof esc, p->unknown.s, p->unknown.n));
}

nb_status nb_template_open(const char *src, size_t n, nb_template **out, nb_err *err)
{
    nb_err own = { 0 };
    jparse p = { .err = err ? err : &own };
    char *text;
    size_t bad;

    *out = NULL;
    if (n > J_SOURCE_MOST)
        return nb_fail(err, NB_ELIMIT, "limit.template", "JT-01", "the template has %zu bytes, the limit is %zu", n, J_SOURCE_MOST);
    bad = nb_u8_check(src, n);
    if (bad < n)
        return nb_fail(err, NB_EFORMAT, "tmpl.utf8", "JT-01", "the template is not UTF-8 at byte %zu", bad);
    text = normalize(src, &n);
    p.t = nb_calloc(1, sizeof *p.t);
    if (p.t && text) {
        char *keep = nb_arena_strndup(&p.t->arena, text, n);
        p.t->ids = nb_strmap_new(64);
        if (keep && p.t->ids) {
            nb_j_lex_init(&p.lex, keep, n);
            parse_all(&p);
        } else {
            nb_enomem(p.err, "the template");
        }
    } else {
        nb_enomem(p.err, "the template");
    }
    nb_free(text);
    nb_free(p.stack);
    nb_buf_clear(&p.text);
    if (p.t && p.t->body) {
        *out = p.t;
        return NB_OK;
    }
    nb_template_close(p.t);
    return p.err->code;
}

void nb_template_close(nb_template *t)
{
    if (!t)
        return;
    nb_strmap_free(t->ids);
    nb_free(t->names);
    nb_arena_clear(&t->arena);
    nb_free(t);
}
