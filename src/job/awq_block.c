/* awq_block.c - AWQ on one decoder block: what it takes, and the weights that are left to round. */
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"

nb_grid nb_awq_grid(const nb_awq_opts *o, size_t k)
{
    return (nb_grid){ .g = o->group_size < 0 ? k : (size_t)o->group_size, .bits = o->bits, .sym = o->sym, .stored = o->scale_dtype };
}

/* ---- sizes ---- */

/* w holds a whole group. Returns the width of the widest inspected span. */
static size_t find_sizes(const nb_plan *p, const nb_scale_group *g, size_t n_groups, size_t rows, size_t len, nb_block_need *z)
{
    size_t span = 0;

    nb_block_sizes(p, rows, len, z);
    for (size_t i = 0; i < n_groups; i++) {
        const size_t width = p->slot_len[p->ops[g[i].end - 1].out], n = g[i].n * g[i].k;
        z->w = n > z->w ? n : z->w;
        z->full[g[i].op] = g[i].from_norm;
        z->gram[g[i].op] = !g[i].from_norm;
        if (g[i].from_norm && width > span)
            span = width;
    }
    return span;
}

nb_block_cost nb_awq_block_cost(const nb_plan *p, const nb_awq_opts *o, size_t rows, size_t len)
{
    nb_scale_group g[NB_MAX_GROUPS];
    const size_t n_groups = nb_scale_groups(p, g);
    const double t = (double)rows * (double)len;
    const double attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2; /* both products, at about half the speed */
    double layer = attn, weights = 0;
    nb_block_cost c;
    nb_block_need z;
    size_t span;

    span = find_sizes(p, g, n_groups, rows, len, &z);
    c = nb_block_bytes(p, &z, rows, len, o->replay_original);
    c.spill += 4 * (uint64_t)rows * len * span;
    c.bytes += 8 * (uint64_t)rows * len + 4 * (uint64_t)z.chunk * span + 8 * (uint64_t)NB_AWQ_TEST_ROWS * len * p->cfg->d_model;
    for (int r = 0; r < NB_ROLE_COUNT; r++)
        if (p->has_role[r]) {
            size_t n, k;
            nb_plan_linear_size(p, (nb_role)r, &n, &k);
            layer += (double)n * (double)k;
            weights += (double)n * (double)k * (nb_role_clips((nb_role)r) ? (double)o->clip * (double)nb_awq_grid(o, k).g : 0.0);
        }
    c.macs = 2 * t * layer + weights + 3 * 512 * layer;
    for (size_t i = 0; i < n_groups; i++) {
        double work = 0;
        if (!g[i].from_norm) {
            c.bytes += 4 * (uint64_t)g[i].k * g[i].k;
            c.macs += t * (double)g[i].k * (double)g[i].k / 2 + NB_AWQ_RATIOS * (double)g[i].n * (double)g[i].k * (double)g[i].k;
            continue;
        }
        for (size_t op = g[i].op; op < g[i].end; op++) {
            for (size_t r = 0; p->ops[op].kind == NB_OP_LINEAR && r < 3 && p->ops[op].roles[r] != NB_ROLE_NONE; r++) {
                size_t n, k;
                nb_plan_linear_size(p, p->ops[op].roles[r], &n, &k);
                work += (double)n * (double)k;
            }
            work += p->ops[op].kind == NB_OP_ATTN ? attn : 0;
        }
        c.macs += (NB_AWQ_RATIOS + 1) * t * work;
    }
    return c;
}

/* ---- open ---- */

static nb_status take_buffers(nb_awq_block *b, const nb_block_need *z, size_t span, nb_err *err)
{
    const size_t test = NB_AWQ_TEST_ROWS * b->base.calib->len * b->base.d;

    nb_status rc = nb_spill_open(&b->ref_mem, b->base.calib->spill, b->base.tokens, span, "outputs of a block", err);

    if (rc != NB_OK)
        return rc;
    b->ref = b->ref_mem.p;
    b->out = nb_alloc_array(z->chunk, span * sizeof *b->out);
    b->part = nb_alloc_array(b->base.tokens, sizeof *b->part);
    b->test[0] = nb_alloc_array(test, sizeof **b->test);
    b->test[1] = nb_alloc_array(test, sizeof **b->test);
    if (!b->out || !b->part || !b->test[0] || !b->test[1])
        return nb_enomem(err, "calibration activations; fewer rows need less (--calib-rows)");
    for (size_t i = 0; i < b->n_groups; i++) {
        nb_awq_group *g = &b->groups[i];
        g->s = nb_alloc_array(g->g.k, sizeof *g->s);
        g->norm = nb_alloc_array(g->g.k, sizeof *g->norm);
        if (!g->s || !g->norm)
            return nb_enomem(err, "scales");
    }
    return NB_OK;
}

nb_status nb_awq_block_open(nb_awq_block **out, nb_model *m, nb_store *s, const nb_calib *c, const nb_awq_opts *o, nb_pool *pool,
                            const nb_host *host, nb_err *err)
{
    const nb_block_in in = {
        .model = m, .store = s, .calib = c, .pool = pool, .host = host, .replay_original = o->replay_original, .all_experts = o->all_experts
    };
    const nb_plan *plan = nb_model_plan(m);
    nb_awq_block *b = nb_calloc(1, sizeof *b);
    nb_scale_group g[NB_MAX_GROUPS];
    nb_block_need z;
    nb_status rc;
    size_t span;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the AWQ block");
    b->o = *o;
    b->n_groups = nb_scale_groups(plan, g);
    for (size_t i = 0; i < b->n_groups; i++)
        b->groups[i].g = g[i];
    span = find_sizes(plan, g, b->n_groups, c->rows, c->len, &z);
    rc = nb_block_open(&b->base, &in, &z, err);
    if (rc == NB_OK)
        rc = take_buffers(b, &z, span, err);
    if (rc == NB_OK)
        *out = b;
    else
        nb_awq_block_close(b);
    return rc;
}

void nb_awq_block_close(nb_awq_block *b)
{
    if (!b)
        return;
    nb_block_clear(&b->base);
    for (size_t i = 0; i < b->n_groups; i++) {
        nb_free(b->groups[i].s);
        nb_free(b->groups[i].norm);
    }
    nb_spill_close(&b->ref_mem);
    nb_free(b->out);
    nb_free(b->part);
    nb_free(b->test[0]);
    nb_free(b->test[1]);
    nb_free(b);
}

nb_block *nb_awq_block_base(nb_awq_block *b)
{
    return &b->base;
}

nb_status nb_awq_block_capture(nb_awq_block *b, size_t layer, nb_err *err)
{
    nb_status rc = nb_block_bind(&b->base, layer, err);

    return rc == NB_OK ? nb_block_capture(&b->base, err) : rc;
}

/* ---- final weights ---- */

/* A member of a group that failed its search is rounded plainly, without clipping (spec quantizers 3.9). */
static bool clips(const nb_awq_block *b, nb_mod role)
{
    for (size_t i = 0; i < b->n_groups; i++)
        for (size_t j = 0; j < b->groups[i].g.n_roles; j++)
            if (b->groups[i].g.roles[j] == role && (b->groups[i].state == NB_FOLD_NO_LOSS || b->groups[i].state == NB_FOLD_CHANGES))
                return false;
    return b->o.clip > 0 && nb_role_clips(nb_mod_role(role)) && nb_block_input(&b->base, role)->n_sample > 0;
}

/* The inputs of an expert, both at once, while its weights are still unrounded. */
static nb_status find_inputs(nb_awq_block *b, nb_mod mod, nb_err *err)
{
    const uint32_t e = nb_mod_expert(mod);
    nb_status rc = NB_OK;

    if (e == NB_NO_EXPERT || nb_mod_role(mod) == NB_ROLE_DOWN || nb_mod_role(mod) == NB_ROLE_UP)
        return NB_OK;
    for (int which = 0; which < 2 && rc == NB_OK; which++)
        rc = nb_block_expert(&b->base, e, which, NULL, false, err);
    return rc;
}

size_t nb_awq_block_tokens(const nb_awq_block *b, nb_mod mod)
{
    return nb_block_input(&b->base, mod)->tokens;
}

nb_status nb_awq_block_take(nb_awq_block *b, nb_mod role, float **w, double *before, nb_err *err)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, role);
    const nb_input *in = nb_block_input(&b->base, role);
    nb_grid grid;
    size_t n, k;
    nb_status rc = find_inputs(b, role, err);

    if (rc == NB_OK)
        rc = nb_block_read(&b->base, role, b->base.w, err);
    if (rc != NB_OK)
        return rc;
    nb_mod_size(b->base.plan, role, &n, &k);
    grid = nb_awq_grid(&b->o, k);
    nb_rtn_pseudo(b->base.pool, &grid, b->base.w, NULL, n, k, b->base.tmp);
    rc = nb_block_error(&b->base, role, b->base.w, b->base.tmp, before, err);
    if (rc != NB_OK)
        return rc;
    nb_awq_fold_weights(b, role, b->base.w, false);
    if (clips(b, role))
        rc =
            nb_awq_clip(b->base.pool, &grid, b->base.w, n, k, in->sample, in->k, in->n_sample, g ? g->s : NULL, b->o.clip, NULL, NULL, err);
    *w = b->base.w;
    return rc;
}

nb_status nb_awq_block_put(nb_awq_block *b, nb_mod role, float *w, double *after, nb_err *err)
{
    nb_status rc = nb_model_set_linear(b->base.model, b->base.layer, role, w, err);

    if (rc == NB_OK)
        rc = nb_block_read(&b->base, role, b->base.tmp, err);
    if (rc != NB_OK)
        return rc;
    nb_awq_fold_weights(b, role, w, true);
    return nb_block_error(&b->base, role, b->base.tmp, w, after, err);
}

nb_status nb_awq_block_replay(nb_awq_block *b, nb_err *err)
{
    return nb_block_replay(&b->base, err);
}
