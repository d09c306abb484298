/* groups.c - scaling groups from the plan. */
#include "job/groups.h"

#include "base/mem.h"

/* The op before `at` that wrote the slot `at` reads; n_ops when it comes from outside the layer. */
static size_t writer_of(const nb_plan *p, size_t at, nb_slot slot)
{
    for (size_t i = at; i-- > 0;)
        if (p->ops[i].out == slot)
            return i;
    return p->n_ops;
}

/* How many LINEAR ops read what op `at` wrote. */
static size_t linear_readers(const nb_plan *p, size_t at)
{
    size_t n = 0;

    for (size_t i = at + 1; i < p->n_ops; i++) {
        if (p->ops[i].kind == NB_OP_LINEAR && p->ops[i].in == p->ops[at].out)
            n++;
        if (p->ops[i].out == p->ops[at].out)
            break;
    }
    return n;
}

/* One past the last linear before the next residual add. */
static size_t span_end(const nb_plan *p, size_t op)
{
    size_t end = op + 1;

    for (size_t i = op + 1; i < p->n_ops && p->ops[i].kind != NB_OP_ADD; i++)
        if (p->ops[i].kind == NB_OP_LINEAR)
            end = i + 1;
    return end;
}

/* The linear that can carry the inverse scales of an elementwise product or of attention: the branch that stays linear. */
static nb_role carrier(const nb_plan *p, const nb_op *made)
{
    size_t src = writer_of(p, (size_t)(made - p->ops), made->in);
    nb_role want = made->kind == NB_OP_ACT_MUL ? NB_ROLE_UP : made->kind == NB_OP_ATTN ? NB_ROLE_V : NB_ROLE_NONE;

    while (src < p->n_ops && p->ops[src].kind != NB_OP_LINEAR) { /* rope and norms inside the slot leave v alone */
        if (p->ops[src].kind == NB_OP_CLIP)                      /* limits do not scale */
            return NB_ROLE_NONE;
        src = writer_of(p, src, p->ops[src].in);
    }
    for (size_t i = 0; src < p->n_ops && want != NB_ROLE_NONE && i < 3; i++)
        if (p->ops[src].roles[i] == want)
            return want;
    return NB_ROLE_NONE;
}

/* A norm whose only parameter is its weight; one with a bias would need that scaled too. */
static bool foldable(const nb_plan *p, nb_vec vec)
{
    const nb_norm_kind k = p->cfg->norm;

    return vec != NB_VEC_NONE && (k == NB_NORM_RMS || k == NB_NORM_RMS1 || k == NB_NORM_LN_W);
}

static bool find_pred(const nb_plan *p, nb_scale_group *g)
{
    const size_t src = writer_of(p, g->op, p->ops[g->op].in);
    size_t n, k;

    if (src == p->n_ops || linear_readers(p, src) != 1)
        return false;
    if (p->ops[src].kind == NB_OP_NORM) {
        if (!foldable(p, p->ops[src].vec))
            return false;
        g->from_norm = true;
        g->vec = p->ops[src].vec;
        g->pred = NB_ROLE_NONE;
        g->end = span_end(p, g->op);
        return true;
    }
    g->pred = carrier(p, &p->ops[src]);
    g->end = g->op + 1;
    if (g->pred == NB_ROLE_NONE)
        return false;
    nb_plan_linear_size(p, g->pred, &n, &k);
    return n == g->k; /* row i feeds input i: false for v under grouped queries */
}

size_t nb_scale_groups(const nb_plan *p, nb_scale_group out[NB_MAX_GROUPS])
{
    size_t count = 0;

    for (size_t op = 0; op < p->n_ops && count < NB_MAX_GROUPS; op++) {
        nb_scale_group g = { .op = op };

        if (p->ops[op].kind != NB_OP_LINEAR)
            continue;
        for (; g.n_roles < 3 && p->ops[op].roles[g.n_roles] != NB_ROLE_NONE; g.n_roles++) {
            size_t n;
            g.roles[g.n_roles] = p->ops[op].roles[g.n_roles];
            nb_plan_linear_size(p, g.roles[g.n_roles], &n, &g.k);
            g.n += n;
        }
        if (find_pred(p, &g))
            out[count++] = g;
    }
    return count;
}

bool nb_role_clips(nb_role role)
{
    return role != NB_ROLE_Q && role != NB_ROLE_K && role != NB_ROLE_QKV;
}
