/* jinja_exec.c - statements of one render: scopes, loops, macros; the entry point. Spec chat-templates 4-5.
 *
 * Scopes are found dynamically: a loop, macro, with, filter, call or block-set body has one, `if` has none. Top-level
 * variables are an array by name id. A scope is used again for the next iteration unless a macro keeps it. */
#include "text/jinja.h"

#include <string.h>

enum { ID_LOOP, ID_CALLER, ID_VARARGS, ID_KWARGS }; /* the order in which nb_template_open interns them */

/* ---- scopes ---- */

static jscope *push_scope(jrun *r, jscope *up)
{
    jscope *s = r->spare;

    if (s)
        r->spare = s->up;
    else {
        s = nb_j_alloc(r, sizeof *s);
        memset(s, 0, sizeof *s);
    }
    s->up = up;
    s->n = 0;
    s->kept = false;
    return r->scope = s;
}

static void pop_scope(jrun *r, jscope *back)
{
    jscope *s = r->scope;

    r->scope = back;
    if (s->kept)
        return;
    s->up = r->spare;
    r->spare = s;
}

/* A macro refers to what is visible here: none of these scopes is used again. */
static void keep_scopes(jscope *s)
{
    for (; s && !s->kept; s = s->up)
        s->kept = true;
}

static void bind_in(jrun *r, jscope *s, uint32_t id, jval v)
{
    if (!s) {
        r->top[id] = v;
        return;
    }
    nb_j_charge(r, s->n / 16);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->b[i].id == id) {
            s->b[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        const uint32_t cap = s->cap ? 2 * s->cap : 8;
        jbind *b = nb_j_alloc(r, cap * sizeof *b);
        if (s->n)
            memcpy(b, s->b, s->n * sizeof *b);
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (jbind){ id, v };
}

static const jval *find(jrun *r, uint32_t id)
{
    for (const jscope *s = r->scope; s; s = s->up) {
        nb_j_charge(r, s->n / 16);
        for (uint32_t i = 0; i < s->n; i++)
            if (s->b[i].id == id)
                return &s->b[i].v;
    }
    return r->top[id].t == J_ABSENT ? NULL : &r->top[id];
}

jval nb_j_lookup(jrun *r, uint32_t id)
{
    const jval *v = find(r, id);
    jval undef = { .t = J_UNDEF };

    if (v)
        return *v;
    undef.u.s = &r->t->names[id];
    return undef;
}

static void assign(jrun *r, const jnode *target, jval v)
{
    size_t n;
    jval *items;

    if (target->kind == N_NAME) {
        bind_in(r, r->scope, target->id, v);
        return;
    }
    if (target->kind == N_NSATTR) {
        const jval ns = nb_j_lookup(r, target->id);
        const jstr *name = &r->t->names[target->n];
        char esc[NB_ESC_CAP];
        jval key = { .t = J_STR };
        if (ns.t != J_NS)
            nb_j_fail(r, "only attributes of a namespace can be set, this is a %s", nb_j_type_name(ns));
        if (name->n && name->s[0] == '_')
            nb_j_fail(r, "an attribute cannot be called \"%s\"", nb_esc(esc, sizeof esc, name->s, name->n));
        key.u.s = name;
        nb_j_dict_set(r, ns.u.d, key, v);
        return;
    }
    if (v.t == J_UNDEF)
        nb_j_fail(r, "an undefined value cannot be unpacked");
    items = nb_j_items(r, v, &n);
    if (n != target->n)
        nb_j_fail(r, "%u names for %zu values", target->n, n);
    for (uint32_t i = 0; i < target->n; i++)
        assign(r, target->u.v[i], items[i]);
}

/* ---- captured output ---- */

static jval capture(jrun *r, const jnode *body)
{
    const size_t mark = r->out.n;
    jval v;

    nb_j_exec(r, body);
    v = nb_j_str(r, r->out.p ? r->out.p + mark : "", r->out.n - mark);
    r->out.n = mark;
    return v;
}

static jval capture_scoped(jrun *r, const jnode *body)
{
    jscope *back = r->scope;
    jval v;

    push_scope(r, back);
    v = capture(r, body);
    pop_scope(r, back);
    return v;
}

/* ---- loops ---- */

/* The elements that pass the filter, which sees the loop's targets. */
static jval *filter_items(jrun *r, const jnode *n, jval *v, size_t *count)
{
    jval *out = nb_j_alloc(r, *count * sizeof *out);
    jscope *back = r->scope;
    size_t k = 0;

    for (size_t i = 0; i < *count; i++) {
        push_scope(r, back);
        assign(r, n->u.v[0], v[i]);
        if (nb_j_true(nb_j_eval(r, n->u.v[2])))
            out[k++] = v[i];
        pop_scope(r, back);
    }
    *count = k;
    return out;
}

static void run_loop(jrun *r, const jnode *n, jscope *up, jval over, uint32_t depth)
{
    jscope *back = r->scope;
    jval self = { .t = J_LOOP };
    jloop *l = nb_j_alloc(r, sizeof *l);
    size_t count;

    *l = (jloop){ .depth = depth, .node = n, .scope = up };
    if (over.t == J_RANGE && !n->u.v[2]) { /* no array for each pass of an inner loop */
        l->range = over.u.r;
        count = over.u.r->n;
    } else {
        l->v = nb_j_items(r, over, &count);
    }
    if (over.t == J_LIST && !over.fixed) { /* a list of the template may change while it is looped over */
        jval *copy = nb_j_alloc(r, count * sizeof *copy);
        if (count)
            memcpy(copy, l->v, count * sizeof *copy);
        l->v = copy;
    }
    r->scope = up;
    if (n->u.v[2])
        l->v = filter_items(r, n, l->v, &count);
    l->n = count;
    self.u.loop = l;
    for (l->i = 0; l->i < count; l->i++) {
        nb_j_charge(r, 1);
        push_scope(r, up);
        bind_in(r, r->scope, ID_LOOP, self);
        assign(r, n->u.v[0], nb_j_loop_item(l, l->i));
        nb_j_exec(r, n->u.v[3]);
        pop_scope(r, up);
        if (r->jump == N_BREAK)
            break;
        r->jump = 0;
    }
    r->jump = 0;
    if (!count && n->u.v[4]) {
        push_scope(r, up);
        nb_j_exec(r, n->u.v[4]);
        pop_scope(r, up);
    }
    r->scope = back;
}

static void call_deeper(jrun *r)
{
    if (++r->call_depth > J_CALL_MOST)
        nb_j_limit(r, "limit.template", "macros call each other deeper than %d levels", J_CALL_MOST);
}

jval nb_j_call_loop(jrun *r, jloop *l, const jcall *c)
{
    const size_t mark = r->out.n;
    const uint8_t jump = r->jump;
    jval v;

    if (!(l->node->flags & F_RECURSIVE))
        nb_j_fail(r, "only a loop marked recursive can be called");
    if (c->n != 1 || c->n_kw)
        nb_j_fail(r, "a recursive loop is called with one list");
    call_deeper(r);
    run_loop(r, l->node, l->scope, c->arg[0], l->depth + 1);
    r->call_depth--;
    r->jump = jump;
    v = nb_j_str(r, r->out.p ? r->out.p + mark : "", r->out.n - mark);
    r->out.n = mark;
    return v;
}

/* ---- macros ---- */

static jval macro_value(jrun *r, const jnode *n)
{
    jval v = { .t = J_MACRO };

    keep_scopes(r->scope);
    v.u.m = nb_j_alloc(r, sizeof *v.u.m);
    *v.u.m = (jmacro){ n, r->scope };
    return v;
}

/* Keyword arguments that name no parameter: caller, or part of kwargs. */
static void extra_keyword(jrun *r, const jnode *n, const jkw *kw, jval kwargs, jval *caller)
{
    char esc[NB_ESC_CAP];

    if ((n->flags & M_CALLER) && kw->name->n == 6 && memcmp(kw->name->s, "caller", 6) == 0) {
        *caller = kw->v;
        return;
    }
    if (!(n->flags & M_KWARGS))
        nb_j_fail(r, "the macro has no parameter \"%s\"", nb_esc(esc, sizeof esc, kw->name->s, kw->name->n));
    jval key = { .t = J_STR };
    key.u.s = kw->name;
    nb_j_dict_set(r, kwargs.u.d, key, kw->v);
}

static void bind_arguments(jrun *r, const jnode *n, jscope *s, const jcall *c)
{
    jval kwargs = nb_j_dict(r, 0), varargs = nb_j_list(r, 0), caller = { .t = J_UNDEF };
    jval *given = nb_j_alloc(r, n->n * sizeof *given);
    char esc[NB_ESC_CAP];

    for (uint32_t i = 0; i < n->n; i++)
        given[i] = i < c->n ? c->arg[i] : nb_j_of(J_ABSENT);
    if (c->n > n->n && !(n->flags & M_VARARGS))
        nb_j_fail(r, "the macro takes %u arguments, %zu given", n->n, c->n);
    for (size_t i = n->n; i < c->n; i++)
        nb_j_append(r, varargs.u.l, c->arg[i]);
    for (size_t i = 0; i < c->n_kw; i++) {
        const jstr *name = c->kw[i].name;
        uint32_t k = 0;
        for (; k < n->n; k++) {
            const jstr *par = &r->t->names[n->u.v[k]->id];
            if (par->n == name->n && memcmp(par->s, name->s, name->n) == 0)
                break;
        }
        if (k == n->n)
            extra_keyword(r, n, &c->kw[i], kwargs, &caller);
        else if (given[k].t != J_ABSENT)
            nb_j_fail(r, "the macro got two values for \"%s\"", nb_esc(esc, sizeof esc, name->s, name->n));
        else
            given[k] = c->kw[i].v;
    }
    varargs.t = J_TUPLE;
    if (n->flags & M_VARARGS)
        bind_in(r, s, ID_VARARGS, varargs);
    if (n->flags & M_KWARGS)
        bind_in(r, s, ID_KWARGS, kwargs);
    if (n->flags & M_CALLER)
        bind_in(r, s, ID_CALLER, caller);
    for (uint32_t i = 0; i < n->n; i++) { /* defaults see the parameters before them */
        const jnode *dflt = n->u.v[n->n + i];
        if (given[i].t == J_ABSENT && dflt) {
            given[i] = nb_j_eval(r, dflt);
        } else if (given[i].t == J_ABSENT) {
            given[i].t = J_UNDEF;
            given[i].u.s = &r->t->names[n->u.v[i]->id];
        }
        bind_in(r, s, n->u.v[i]->id, given[i]);
    }
}

jval nb_j_call_macro(jrun *r, const jmacro *m, const jcall *c)
{
    jscope *back = r->scope;
    const uint32_t line = r->line;
    jval v;

    call_deeper(r);
    push_scope(r, m->scope);
    bind_arguments(r, m->node, r->scope, c);
    v = capture(r, m->node->u.v[2 * m->node->n]);
    pop_scope(r, back);
    r->call_depth--;
    r->line = line;
    return v;
}

static void call_block(jrun *r, const jnode *n)
{
    const jnode *call = n->u.b;
    const jval f = nb_j_eval(r, call->u.a);
    jcall c;
    jkw *kw;

    nb_j_eval_args(r, call->u.args, &c);
    kw = nb_j_alloc(r, (c.n_kw + 1) * sizeof *kw);
    if (c.n_kw)
        memcpy(kw, c.kw, c.n_kw * sizeof *kw);
    kw[c.n_kw++] = (jkw){ &r->t->names[ID_CALLER], macro_value(r, n) };
    c.kw = kw;
    nb_j_print(r, nb_j_call(r, f, &c));
}

/* ---- statements ---- */

static void exec_if(jrun *r, const jnode *n)
{
    for (uint32_t i = 0; i < n->n; i += 2)
        if (!n->u.v[i] || nb_j_true(nb_j_eval(r, n->u.v[i]))) {
            nb_j_exec(r, n->u.v[i + 1]);
            return;
        }
}

static void exec_with(jrun *r, const jnode *n)
{
    jscope *back = r->scope;
    const uint32_t pairs = (n->n - 1) / 2;
    jval *v = nb_j_alloc(r, pairs * sizeof *v);

    for (uint32_t i = 0; i < pairs; i++)
        v[i] = nb_j_eval(r, n->u.v[2 * i + 1]);
    push_scope(r, back);
    for (uint32_t i = 0; i < pairs; i++)
        assign(r, n->u.v[2 * i], v[i]);
    nb_j_exec(r, n->u.v[n->n - 1]);
    pop_scope(r, back);
}

static void exec_node(jrun *r, const jnode *n)
{
    jscope *back = r->scope;
    jval v;

    r->line = n->line;
    switch ((jkind)n->kind) {
    case N_TEXT:
        nb_j_emit(r, n->u.val.u.s->s, n->u.val.u.s->n);
        break;
    case N_OUT:
        nb_j_print(r, nb_j_eval(r, n->u.a));
        break;
    case N_IF:
        exec_if(r, n);
        break;
    case N_FOR:
        run_loop(r, n, r->scope, nb_j_eval(r, n->u.v[1]), 0);
        break;
    case N_SET:
        assign(r, n->u.a, nb_j_eval(r, n->u.b));
        break;
    case N_SETBLOCK:
        v = capture_scoped(r, n->u.c);
        assign(r, n->u.a, n->u.b ? nb_j_eval_filter(r, n->u.b, v) : v);
        break;
    case N_FILTERBLOCK:
        v = capture_scoped(r, n->u.c);
        nb_j_print(r, nb_j_eval_filter(r, n->u.b, v));
        break;
    case N_MACRO:
        bind_in(r, r->scope, n->id, macro_value(r, n));
        break;
    case N_CALLBLOCK:
        call_block(r, n);
        break;
    case N_WITH:
        exec_with(r, n);
        break;
    case N_SCOPE:
        push_scope(r, back);
        nb_j_exec(r, n->u.a);
        pop_scope(r, back);
        break;
    case N_BREAK:
    case N_CONTINUE:
        r->jump = n->kind;
        break;
    default:
        nb_j_stop(r, NB_EINTERNAL, "internal", "an expression stands where a statement belongs");
    }
}

void nb_j_exec(jrun *r, const jnode *n)
{
    if (++r->eval_depth > J_EVAL_MOST)
        nb_j_limit(r, "limit.template", "blocks and macros nest deeper than %d levels", J_EVAL_MOST);
    for (uint32_t i = 0; i < n->n && !r->jump; i++) {
        nb_j_charge(r, 1);
        exec_node(r, n->u.v[i]);
    }
    r->eval_depth--;
}

/* ---- render ---- */

/* Variables that the template names, over the global functions of the same name. */
static void fill_top(jrun *r, const nb_json *vars)
{
    const nb_template *t = r->t;
    const size_t n = nb_json_len(vars);

    r->top = nb_j_alloc(r, t->n_names * sizeof *r->top);
    for (size_t i = 0; i < t->n_names; i++) {
        r->top[i] = nb_j_of(J_ABSENT);
        const jsig *fn = nb_j_find_func(t->names[i].s, t->names[i].n);
        if (fn) {
            r->top[i].t = J_FUNC;
            r->top[i].u.fn = fn;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const char *key;
        const nb_json *v = nb_json_member(vars, i, &key);
        uint64_t id;
        if (key && nb_strmap_get(t->ids, key, strlen(key), &id))
            r->top[id] = nb_j_from_json(r, v);
    }
}

static bool run(jrun *r, const nb_json *vars)
{
    if (setjmp(r->stop))
        return false;
    fill_top(r, vars);
    nb_j_exec(r, r->t->body);
    return true;
}

nb_status nb_j_render(const nb_template *t, const nb_json *vars, const struct tm *now, bool lenient, nb_buf *out, nb_err *err)
{
    nb_err own = { 0 };
    jrun r = { .t = t, .now = now, .lenient = lenient, .err = err ? err : &own, .line = 1 };
    nb_status rc = NB_OK;

    if (vars && nb_json_typeof(vars) != NB_JOBJ)
        return nb_fail(err, NB_EARG, "tmpl.variables", "", "the variables of a template are a JSON object");
    if (run(&r, vars)) {
        nb_buf_put(out, r.out.p ? r.out.p : "", r.out.n);
        if (out->failed)
            rc = nb_enomem(err, "the prompt");
    } else {
        rc = r.err->code;
    }
    nb_buf_clear(&r.out);
    nb_buf_clear(&r.build);
    nb_arena_clear(&r.arena);
    return rc;
}

nb_status nb_template_render(const nb_template *t, const nb_json *vars, const struct tm *now, nb_buf *out, nb_err *err)
{
    return nb_j_render(t, vars, now, false, out, err);
}
