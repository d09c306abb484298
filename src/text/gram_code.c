/* gram_code.c - parts of a grammar to instructions of the automaton. */
#include <string.h>

#include "base/log.h"
#include "text/gram.h"

#define COPIES 48 /* instructions that a repeat may be unrolled to; larger ones count */

typedef struct coder {
    nb_gbuild *b;
    nb_gcode *c;
    bool *nullable; /* by rule */
} coder;

void nb_gcode_clear(nb_gcode *c)
{
    nb_free(c->ins);
    nb_free(c->rep);
    nb_free(c->entry);
    memset(c, 0, sizeof *c);
}

/* ---- what can be empty ---- */

static bool is_nullable(const coder *k, nb_gpart p)
{
    const nb_gnode *x = &k->b->node[p];

    switch ((nb_gkind_part)x->kind) {
    case NB_GP_EMPTY:
        return true;
    case NB_GP_SEQ:
        for (uint32_t i = 0; i < x->b; i++)
            if (!is_nullable(k, k->b->list.v[x->a + i]))
                return false;
        return true;
    case NB_GP_ALT:
        for (uint32_t i = 0; i < x->b; i++)
            if (is_nullable(k, k->b->list.v[x->a + i]))
                return true;
        return false;
    case NB_GP_REP:
        return x->b == 0 || is_nullable(k, x->a);
    case NB_GP_RULE:
        return k->nullable[x->a];
    default:
        return false;
    }
}

/* Can the part match anything, given what is known of rules? */
static bool is_possible(const coder *k, nb_gpart p, const bool *possible)
{
    const nb_gnode *x = &k->b->node[p];
    bool any = false;

    switch ((nb_gkind_part)x->kind) {
    case NB_GP_FAIL:
    case NB_GP_NONE:
        return false;
    case NB_GP_SEQ:
        for (uint32_t i = 0; i < x->b; i++)
            if (!is_possible(k, k->b->list.v[x->a + i], possible))
                return false;
        return true;
    case NB_GP_ALT:
        for (uint32_t i = 0; i < x->b && !any; i++)
            any = is_possible(k, k->b->list.v[x->a + i], possible);
        return any;
    case NB_GP_REP:
        return x->b == 0 || is_possible(k, x->a, possible);
    case NB_GP_RULE:
        return possible[x->a];
    default:
        return true;
    }
}

/* Rules that a part may call before any byte. */
static bool first_calls(const coder *k, nb_gpart p, nb_gvec *out)
{
    const nb_gnode *x = &k->b->node[p];
    bool ok = true;

    switch ((nb_gkind_part)x->kind) {
    case NB_GP_SEQ:
        for (uint32_t i = 0; ok && i < x->b; i++) {
            ok = first_calls(k, k->b->list.v[x->a + i], out);
            if (!is_nullable(k, k->b->list.v[x->a + i]))
                break;
        }
        return ok;
    case NB_GP_ALT:
        for (uint32_t i = 0; ok && i < x->b; i++)
            ok = first_calls(k, k->b->list.v[x->a + i], out);
        return ok;
    case NB_GP_REP:
        return first_calls(k, x->a, out);
    case NB_GP_RULE:
        return nb_gvec_push(out, x->a);
    default:
        return true;
    }
}

/* Depth-first search for a rule that comes back to itself before any byte, without recursion. */
static nb_status find_left_recursion(const coder *k, nb_err *err)
{
    const size_t n = k->b->rules.n;
    unsigned char *mark = nb_calloc(n + 1, 1); /* 1: on the path, 2: done */
    nb_gvec calls = { 0 }, path = { 0 };       /* path: rule, end of its calls, next of them */
    nb_status rc = mark ? NB_OK : nb_enomem(err, "a grammar");

    for (size_t root = 0; rc == NB_OK && root < n; root++) {
        uint32_t rule = (uint32_t)root;
        while (rc == NB_OK) {
            if (!mark[rule]) {
                const uint32_t from = (uint32_t)calls.n;
                mark[rule] = 1;
                if (!first_calls(k, k->b->rules.v[rule], &calls) || !nb_gvec_push(&path, rule) || !nb_gvec_push(&path, from) ||
                    !nb_gvec_push(&path, from))
                    rc = nb_enomem(err, "a grammar");
            } else if (mark[rule] == 1) {
                rc = nb_fail(err, NB_EARG, "grammar.invalid", "",
                             "the constraint refers to itself without taking any text (left recursion, or a circle of references)");
            }
            if (rc != NB_OK || path.n == 0)
                break;
            uint32_t *top = &path.v[path.n - 3];
            while (path.n && top[2] >= calls.n) { /* all calls of the top are done */
                mark[top[0]] = 2;
                calls.n = top[1];
                path.n -= 3;
                top = path.n ? &path.v[path.n - 3] : NULL;
            }
            if (!path.n)
                break;
            rule = calls.v[top[2]++];
        }
        path.n = calls.n = 0;
    }
    nb_free(mark);
    nb_gvec_clear(&calls);
    nb_gvec_clear(&path);
    return rc;
}

static nb_status check(coder *k, nb_gpart root, nb_err *err)
{
    const size_t n = k->b->rules.n;
    bool *possible = nb_calloc(n + 1, sizeof *possible), more = true;
    nb_status rc = NB_OK;

    k->nullable = nb_calloc(n + 1, sizeof *k->nullable);
    if (!possible || !k->nullable)
        rc = nb_enomem(err, "a grammar");
    for (bool up = true; rc == NB_OK && more; up = !up) { /* to and fro: chains of rules run either way */
        more = false;
        for (size_t step = 0; step < n; step++) {
            const size_t i = up ? step : n - 1 - step;
            if (!k->nullable[i] && is_nullable(k, k->b->rules.v[i]))
                k->nullable[i] = more = true;
            if (!possible[i] && is_possible(k, k->b->rules.v[i], possible))
                possible[i] = more = true;
        }
        if (nb_now() > k->b->deadline)
            rc = nb_fail(err, NB_ELIMIT, "grammar.too_complex", "", "the constraint takes more than %g s to compile", k->b->lim.seconds);
    }
    if (rc == NB_OK)
        rc = find_left_recursion(k, err);
    if (rc == NB_OK && !is_possible(k, root, possible))
        rc = nb_fail(err, NB_EARG, "grammar.empty", "", "no text can satisfy the constraint");
    nb_free(possible);
    return rc;
}

/* ---- instructions ---- */

static uint32_t emit(coder *k, nb_gop op, unsigned lo, unsigned hi, uint32_t x, uint32_t y)
{
    nb_gcode *c = k->c;

    if (k->b->rc != NB_OK)
        return 0;
    if (c->n >= k->b->lim.nodes)
        return nb_g_fail(k->b, NB_ELIMIT, "grammar.too_complex", "the constraint has more than %zu states", k->b->lim.nodes);
    if (c->n == c->cap) {
        const size_t cap = c->cap ? c->cap * 2 : 256;
        size_t bytes;
        nb_gins *p;
        if (!nb_mul_size(cap, sizeof *p, &bytes) || !(p = nb_realloc(c->ins, bytes)))
            return nb_g_oom(k->b);
        c->ins = p;
        c->cap = cap;
    }
    c->ins[c->n] = (nb_gins){ .op = (uint8_t)op, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .x = x, .y = y };
    return (uint32_t)c->n++;
}

/* Instructions that a part needs, about; stops counting at `most`. */
static uint64_t size_of(const coder *k, nb_gpart p, uint64_t most)
{
    const nb_gnode *x = &k->b->node[p];
    uint64_t n = 0, rounds;

    switch ((nb_gkind_part)x->kind) {
    case NB_GP_LIT:
        return x->b;
    case NB_GP_SEQ:
    case NB_GP_ALT:
        for (uint32_t i = 0; i < x->b && n <= most; i++)
            n += 1 + size_of(k, k->b->list.v[x->a + i], most);
        return n;
    case NB_GP_REP:
        n = size_of(k, x->a, most) + 1;
        rounds = x->c != NB_G_INF ? x->c : (uint64_t)x->b + 1;
        return n * rounds <= COPIES ? n * rounds : n + 2;
    default:
        return 1;
    }
}

static uint32_t code(coder *k, nb_gpart p, uint32_t next);

static uint32_t code_counted(coder *k, nb_gpart body, uint32_t least, uint32_t most, uint32_t next)
{
    nb_gcode *c = k->c;
    const bool nullable = is_nullable(k, body);
    uint32_t i, start, end;

    if (c->n_rep == c->cap_rep) {
        const size_t cap = c->cap_rep ? c->cap_rep * 2 : 16;
        size_t bytes;
        nb_grep *p;
        if (!nb_mul_size(cap, sizeof *p, &bytes) || !(p = nb_realloc(c->rep, bytes)))
            return nb_g_oom(k->b);
        c->rep = p;
        c->cap_rep = cap;
    }
    i = (uint32_t)c->n_rep++;
    c->rep[i] = (nb_grep){ .least = nullable ? 0 : least, .most = most, .exit = next, .nullable = nullable };
    end = emit(k, NB_GI_NEXT, 0, 0, i, 0);
    start = code(k, body, end);
    c->rep[i].body = start;
    return emit(k, NB_GI_REP, 0, 0, i, 0);
}

static uint32_t code_rep(coder *k, const nb_gnode *x, uint32_t next)
{
    const nb_gpart body = x->a;
    const uint32_t least = x->b, most = x->c;
    const uint64_t size = size_of(k, body, COPIES) + 1;
    uint32_t at = next;

    if (most == NB_G_INF && least * size <= COPIES) {
        const uint32_t loop = emit(k, NB_GI_SPLIT, 0, 0, 0, next);
        const uint32_t start = code(k, body, loop);
        if (k->b->rc != NB_OK)
            return 0;
        k->c->ins[loop].x = start;
        at = loop;
    } else if (most == NB_G_INF || (uint64_t)most * size > COPIES) {
        return code_counted(k, body, least, most, next);
    } else {
        for (uint32_t i = least; i < most; i++)
            at = emit(k, NB_GI_SPLIT, 0, 0, code(k, body, at), next);
    }
    for (uint32_t i = 0; i < least; i++)
        at = code(k, body, at);
    return at;
}

/* Instructions for a part that goes on at `next`; their first. */
static uint32_t code(coder *k, nb_gpart p, uint32_t next)
{
    const nb_gnode x = k->b->node[p];
    uint32_t at = next;

    if (k->b->rc != NB_OK)
        return 0;
    switch ((nb_gkind_part)x.kind) {
    case NB_GP_EMPTY:
        return next;
    case NB_GP_RANGE:
        return emit(k, NB_GI_RANGE, x.lo, x.hi, next, 0);
    case NB_GP_LIT:
        for (uint32_t i = x.b; i-- > 0;) {
            const unsigned char c = (unsigned char)k->b->text.p[x.a + i];
            at = emit(k, NB_GI_RANGE, c, c, at, 0);
        }
        return at;
    case NB_GP_SEQ:
        for (uint32_t i = x.b; i-- > 0;)
            at = code(k, k->b->list.v[x.a + i], at);
        return at;
    case NB_GP_ALT:
        at = code(k, k->b->list.v[x.a + x.b - 1], next);
        for (uint32_t i = x.b - 1; i-- > 0;)
            at = emit(k, NB_GI_SPLIT, 0, 0, code(k, k->b->list.v[x.a + i], next), at);
        return at;
    case NB_GP_REP:
        return code_rep(k, &x, next);
    case NB_GP_RULE:
        if (k->b->rc == NB_OK && k->c->ins[next].op == NB_GI_RET) /* a call at the end needs no stack */
            return emit(k, NB_GI_JUMP, 0, 0, x.a, 0);
        return emit(k, NB_GI_CALL, 0, 0, x.a, next);
    default:
        return emit(k, NB_GI_FAIL, 0, 0, 0, 0);
    }
}

nb_status nb_gcode_make(nb_gbuild *b, nb_gpart root, nb_gcode *out, nb_err *err)
{
    coder k = { .b = b, .c = out };
    const uint32_t whole = root ? nb_g_rule_new(b) : 0;
    nb_status rc = b->rc;

    if (rc == NB_OK && whole) {
        b->rules.v[whole - 1] = root;
        rc = check(&k, root, err);
    }
    if (rc == NB_OK) {
        out->n_rules = b->rules.n;
        out->entry = nb_alloc_array(out->n_rules, sizeof *out->entry);
        if (!out->entry)
            rc = nb_enomem(err, "a grammar");
    }
    for (size_t i = 0; rc == NB_OK && i < out->n_rules; i++) {
        const uint32_t ret = emit(&k, NB_GI_RET, 0, 0, 0, 0);
        out->entry[i] = code(&k, b->rules.v[i], ret);
        rc = b->rc;
    }
    nb_free(k.nullable);
    if (rc != NB_OK)
        nb_gcode_clear(out);
    return rc;
}
