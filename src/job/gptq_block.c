/* gptq_block.c - GPTQ on one decoder block. */
#include "job/gptq_block.h"

#include <string.h>

#include "base/mem.h"
#include "solve/solve_rtn.h"

struct nb_gptq_block {
    nb_block base;
    nb_gptq_opts o;
    nb_gptq_factor f;
    bool routed; /* the inputs of the experts are captured */
};

/* Work for all experts of a layer, each with its share of the tokens. */
static void add_experts(const nb_plan *p, double t, double before, double *macs, uint64_t *most)
{
    const nb_moe_cfg *m = &p->cfg->moe;
    const double d = (double)p->cfg->d_model;

    *macs += t * before;
    for (size_t e = 0; e < m->n_experts + (m->shared_ff > 0); e++) {
        const double ff = (double)(e < m->n_experts ? m->ff : m->shared_ff), k = d > ff ? d : ff;
        const double tokens = e < m->n_experts ? t * (double)m->n_active / (double)m->n_experts : t;
        *macs += tokens * (3 * d * ff + (d * d + ff * ff) / 2) + 2 * (d * d * d + ff * ff * ff);
        *macs += 2 * d * ff * (d / 2 + 4 * 512) + d * ff * (ff / 2 + 4 * 512);
        *most = (uint64_t)(k * k * 12) > *most ? (uint64_t)(k * k * 12) : *most;
    }
}

nb_block_cost nb_gptq_block_cost(const nb_plan *p, size_t rows, size_t len, bool replay_original, int threads)
{
    const double t = (double)rows * (double)len, attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2;
    double before = 0; /* multiply-adds per token of the ops so far */
    uint64_t most = 0;
    nb_block_need need;
    nb_block_cost c;

    nb_block_sizes(p, rows, len, &need);
    c = nb_block_bytes(p, &need, rows, len, replay_original);
    for (size_t op = 0; op < p->n_ops; op++) {
        size_t n = 0, k = 0, weights = 0;
        before += p->ops[op].kind == NB_OP_ATTN ? attn : 0;
        if (p->ops[op].kind == NB_OP_MOE)
            add_experts(p, t, before, &c.macs, &most);
        if (p->ops[op].kind != NB_OP_LINEAR)
            continue;
        for (size_t r = 0; r < 3 && p->ops[op].roles[r] != NB_ROLE_NONE; r++) {
            nb_plan_linear_size(p, p->ops[op].roles[r], &n, &k);
            weights += n * k;
        }
        c.macs += t * before + t * (double)k * (double)k / 2;  /* up to here once more, second moments */
        c.macs += 2 * (double)k * (double)k * (double)k;       /* two factorisations in float64        */
        c.macs += (double)weights * ((double)k / 2 + 4 * 512); /* corrections; both errors             */
        before += (double)weights;
        most = (uint64_t)k * k * (sizeof(double) + sizeof(float)) > most ? (uint64_t)k * k * (sizeof(double) + sizeof(float)) : most;
    }
    c.macs += t * before;
    c.bytes += most + 4 * (uint64_t)need.linear / 8 * (uint64_t)threads;
    return c;
}

nb_status nb_gptq_block_open(nb_gptq_block **out, const nb_block_in *in, const nb_gptq_opts *o, nb_err *err)
{
    nb_gptq_block *b = nb_calloc(1, sizeof *b);
    nb_block_need need;
    nb_status rc;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the GPTQ block");
    b->o = *o;
    nb_block_sizes(nb_model_plan(in->model), in->calib->rows, in->calib->len, &need);
    rc = nb_block_open(&b->base, in, &need, err);
    if (rc == NB_OK)
        *out = b;
    else
        nb_free(b);
    return rc;
}

void nb_gptq_block_close(nb_gptq_block *b)
{
    if (!b)
        return;
    nb_gptq_factor_clear(&b->f);
    nb_block_clear(&b->base);
    nb_free(b);
}

nb_block *nb_gptq_block_base(nb_gptq_block *b)
{
    return &b->base;
}

nb_status nb_gptq_block_bind(nb_gptq_block *b, size_t layer, nb_err *err)
{
    b->routed = false;
    return nb_block_bind(&b->base, layer, err);
}

/* The inputs of the layer's experts, once: behind attention as it was quantized. */
static nb_status route(nb_gptq_block *b, nb_mod mod, nb_err *err)
{
    nb_status rc = NB_OK;

    if (!b->routed)
        rc = nb_block_capture_op(&b->base, nb_mod_op(b->base.plan, mod), err);
    b->routed = rc == NB_OK;
    return rc;
}

/* Moments under which nothing is passed on. */
static void no_moments(nb_gram *g)
{
    memset(g->sum, 0, g->k * g->k * sizeof *g->sum);
    for (size_t i = 0; i < g->k; i++)
        g->sum[i * g->k + i] = 1;
}

static nb_status moments(nb_gptq_block *b, nb_mod mod, nb_input **out, nb_err *err)
{
    const size_t op = nb_mod_op(b->base.plan, mod);
    nb_input *in = nb_capture_at(&b->base.cap, op);
    nb_status rc;

    if (!in)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "op %zu captures no input", op);
    if (nb_mod_expert(mod) != NB_NO_EXPERT) {
        const int which = nb_mod_role(mod) == NB_ROLE_DOWN;
        rc = route(b, mod, err);
        *out = &b->base.expert[which];
        return rc == NB_OK ? nb_block_expert(&b->base, nb_mod_expert(mod), which, NULL, true, err) : rc;
    }
    *out = in;
    rc = nb_gram_init(&in->gram, in->k, err);
    return rc == NB_OK ? nb_block_capture_op(&b->base, op, err) : rc;
}

nb_status nb_gptq_block_prepare(nb_gptq_block *b, nb_mod mod, size_t g, bool sym, size_t least, bool *few, nb_err *err)
{
    nb_input *in = NULL;
    nb_status rc;

    nb_gptq_factor_clear(&b->f);
    b->o.g = g;
    b->o.sym = sym;
    rc = moments(b, mod, &in, err);
    *few = rc == NB_OK && nb_mod_expert(mod) != NB_NO_EXPERT && (in->tokens == 0 || in->tokens < least);
    if (rc == NB_OK) {
        if (*few)
            no_moments(&in->gram);
        else
            nb_gram_finish(&in->gram);
        rc = nb_gptq_factor_make(&b->f, &b->o, in->gram.sum, in->k, b->base.pool, err);
    }
    if (in)
        nb_gram_clear(&in->gram);
    return rc;
}

size_t nb_gptq_block_tokens(const nb_gptq_block *b, nb_mod mod)
{
    return nb_block_input(&b->base, mod)->tokens;
}

const nb_gptq_factor *nb_gptq_block_factor(const nb_gptq_block *b)
{
    return &b->f;
}

nb_status nb_gptq_block_solve(nb_gptq_block *b, nb_mod mod, nb_qlin *q, nb_gptq_result *res, double *before, double *after, nb_err *err)
{
    const nb_grid plain = { .g = q->g, .bits = q->bits, .sym = b->o.sym, .stored = q->scale_dtype };
    nb_block *base = &b->base;
    nb_status rc = nb_block_read(base, mod, base->w, err);

    if (rc != NB_OK)
        return rc;
    nb_rtn_pseudo(base->pool, &plain, base->w, NULL, q->n, q->k, base->tmp);
    b->o.bits = q->bits;
    rc = nb_block_error(base, mod, base->w, base->tmp, before, err);
    if (rc == NB_OK)
        rc = nb_gptq_solve(&b->f, &b->o, base->w, q, res, base->pool, err);
    if (rc != NB_OK)
        return rc;
    nb_qlin_dequant(q, base->tmp);
    rc = nb_block_error(base, mod, base->w, base->tmp, after, err);
    return rc == NB_OK ? nb_model_set_linear(base->model, base->layer, mod, base->tmp, err) : rc;
}

nb_status nb_gptq_block_replay(nb_gptq_block *b, nb_err *err)
{
    return nb_block_replay(&b->base, err);
}
