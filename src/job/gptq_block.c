/* gptq_block.c - GPTQ on one decoder block. */
#include "job/gptq_block.h"

#include <string.h>

#include "base/mem.h"
#include "job/gptq_walk.h"
#include "solve/solve_refine.h"
#include "solve/solve_rtn.h"

static const double eight_bits = NB_BLOCK_CODES;

struct nb_gptq_block {
    nb_block own, *base; /* base: own, or that of another method */
    nb_gptq_read_fn *read;
    void *user;
    nb_gptq_opts o;
    nb_gptq_extra x;
    nb_gptq_factor f;
    bool routed; /* the inputs of the experts are captured */
    bool walks;
    nb_gptq_walk walk;
    float *h;              /* [k][k] damped second moments, when codes are refined */
    nb_cross cross, resid; /* to the original model; sums are NULL where there is none */
    nb_input head;         /* what the head reads */
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

/* A chunk of inputs turned, and what they or the outputs lack; gone before the factor is made. */
static uint64_t turned_bytes(const nb_plan *p, size_t k, size_t chunk, bool paired, bool adds)
{
    const size_t d = p->cfg->d_model, most = chunk < NB_MOMENTS_TOKENS ? chunk : NB_MOMENTS_TOKENS;

    return nb_turned_bytes(k, most, true) + (paired ? nb_turned_bytes(adds ? d : k, most, false) : 0) +
           (paired && adds ? 4 * (uint64_t)chunk * (d + k) : 0);
}

/* Moments, factor, moments with the original model: of inputs, or of inputs and what outputs lack. The moments to refine against take
 * the place of those in float64. */
static uint64_t linear_bytes(const nb_plan *p, size_t op, size_t k, size_t chunk, bool walks, bool paired)
{
    const bool adds = nb_gptq_walk_adds(p, op) && p->ops[op].roles[1] == NB_ROLE_NONE;
    const uint64_t square = (uint64_t)k * k, turned = walks ? turned_bytes(p, k, chunk, paired, adds) : 0, factor = square * sizeof(float);

    return square * sizeof(double) + (factor > turned ? factor : turned) + (paired ? 4 * (uint64_t)(adds ? p->cfg->d_model : k) * k : 0);
}

/* Moments of an input of a plan that is walked, and what its outputs lack. */
static double walk_macs(const nb_plan *p, size_t op, double t, size_t k, size_t weights, bool paired, double codes)
{
    const bool adds = nb_gptq_walk_adds(p, op) && p->ops[op].roles[1] == NB_ROLE_NONE;
    const double kk = (double)k, moments = kk * kk / 2 + (paired ? kk * (double)(adds ? p->cfg->d_model : k) : 0);

    return t * (eight_bits * moments + (paired && adds ? codes * (double)weights : 0));
}

nb_block_cost nb_gptq_block_cost(const nb_plan *p, const nb_gptq_extra *x, size_t rows, size_t len, bool replay_original, bool own,
                                 int threads)
{
    const bool walks = nb_gptq_walk_can(p), paired = walks && x->share > 0;
    const double t = (double)rows * (double)len, attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2;
    const double codes = own ? eight_bits : 1; /* the model runs in codes */
    double before = 0;                         /* multiply-adds per token of the ops so far */
    uint64_t most = 0, biggest = 0, solving;
    nb_block_need need;
    nb_block_cost c;

    nb_block_sizes(p, rows, len, &need);
    c = nb_block_bytes(p, &need, rows, len, replay_original);
    c.spill += 4 * (uint64_t)rows * len * nb_gptq_walk_floats(p, paired);
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
        if (walks)
            c.macs += walk_macs(p, op, t, k, weights, paired, codes);
        else
            c.macs += t * before + t * (double)k * (double)k / 2;         /* up to here once more; moments in float32 */
        c.macs += 2 * (double)k * (double)k * (double)k;                  /* two factorisations in float64 */
        c.macs += (double)weights * ((double)k / 2 + 8 * NB_BLOCK_JUDGE); /* corrections; both errors, the grids */
        c.macs += (double)weights * (double)k * ((x->sweeps > 0 ? 1.5 : 0) + (paired ? 1.5 : 0));
        before += (double)weights;
        if (linear_bytes(p, op, k, need.chunk, walks, paired) > most)
            most = linear_bytes(p, op, k, need.chunk, walks, paired);
        biggest = k > biggest ? k : biggest;
    }
    c.macs += t * before * (paired ? 2 : 1) * (walks ? codes : 1);
    /* while a linear is solved the moments are half of what they were; weights come then, and what they are shifted to */
    solving = 4 * (uint64_t)need.linear * ((own ? 2 : 0) + (paired ? 1 : 0));
    c.bytes += most + (solving > 4 * biggest * biggest ? solving - 4 * biggest * biggest : 0);
    c.bytes += 4 * (uint64_t)need.linear / 8 * (uint64_t)threads;
    if (own)
        c.bytes -= 4 * (uint64_t)(need.w + need.linear);
    if (own && walks && !replay_original) /* inputs are summed up where they come out, not captured first */
        for (size_t op = 0; op < p->n_ops; op++)
            c.bytes -= p->ops[op].kind == NB_OP_LINEAR ? 4 * (uint64_t)need.chunk * p->slot_len[p->ops[op].in] : 0;
    return c;
}

static nb_status read_original(void *user, nb_mod mod, float *w, nb_err *err)
{
    nb_gptq_block *b = user;

    return nb_block_read(b->base, mod, w, err);
}

nb_status nb_gptq_block_over(nb_gptq_block **out, nb_block *base, nb_gptq_read_fn *read, void *user, const nb_gptq_opts *o,
                             const nb_gptq_extra *x, nb_err *err)
{
    nb_gptq_block *b = nb_calloc(1, sizeof *b);

    *out = b;
    if (!b)
        return nb_enomem(err, "the GPTQ block");
    *b = (nb_gptq_block){ .base = base, .read = read, .user = user, .o = *o, .x = *x, .walks = nb_gptq_walk_can(base->plan) };
    return NB_OK;
}

nb_status nb_gptq_block_open(nb_gptq_block **out, const nb_block_in *in, const nb_gptq_opts *o, const nb_gptq_extra *x, nb_err *err)
{
    nb_gptq_block *b = nb_calloc(1, sizeof *b);
    nb_block_need need;
    nb_status rc;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the GPTQ block");
    b->o = *o;
    b->x = *x;
    b->base = &b->own;
    b->read = read_original;
    b->user = b;
    b->walks = nb_gptq_walk_can(nb_model_plan(in->model));
    nb_block_sizes(nb_model_plan(in->model), in->calib->rows, in->calib->len, &need);
    rc = nb_block_open(&b->own, in, &need, err);
    if (rc == NB_OK)
        *out = b;
    else
        nb_gptq_block_close(b);
    return rc;
}

/* The buffers for weights of a block of one's own: not there while second moments are factored. */
static void leave_weights(nb_gptq_block *b)
{
    if (b->base == &b->own)
        nb_block_release(&b->own);
}

/* What belongs to one input. */
static void clear_input(nb_gptq_block *b)
{
    nb_gptq_factor_clear(&b->f);
    nb_cross_clear(&b->cross);
    nb_cross_clear(&b->resid);
    nb_free(b->h);
    b->h = NULL;
}

void nb_gptq_block_close(nb_gptq_block *b)
{
    if (!b)
        return;
    clear_input(b);
    nb_free(b->head.sample);
    nb_gram_clear(&b->head.gram);
    nb_gptq_walk_clear(&b->walk);
    nb_block_clear(&b->own);
    nb_free(b);
}

nb_block *nb_gptq_block_base(nb_gptq_block *b)
{
    return b->base;
}

nb_status nb_gptq_block_reach(nb_gptq_block *b, size_t layer, nb_err *err)
{
    return b->walks ? nb_gptq_walk_reach(&b->walk, b->base, b->x.share > 0, layer, err) : NB_OK;
}

nb_status nb_gptq_block_start(nb_gptq_block *b, nb_err *err)
{
    b->routed = false;
    for (size_t i = 0; b->base != &b->own && i < b->base->cap.n_in; i++)
        nb_gram_clear(&b->base->cap.in[i].gram);
    return b->walks ? nb_gptq_walk_start(&b->walk, err) : NB_OK;
}

nb_status nb_gptq_block_bind(nb_gptq_block *b, size_t layer, nb_err *err)
{
    nb_status rc = nb_gptq_block_reach(b, layer, err);

    if (rc == NB_OK)
        rc = nb_block_bind(b->base, layer, err);
    if (rc == NB_OK && b->walks && b->base->h_next)
        rc = nb_block_capture(b->base, err);
    return rc == NB_OK ? nb_gptq_block_start(b, err) : rc;
}

/* The inputs of the layer's experts, once: behind attention as it was quantized. */
static nb_status route(nb_gptq_block *b, nb_mod mod, nb_err *err)
{
    nb_status rc = NB_OK;

    if (!b->routed)
        rc = nb_block_capture_op(b->base, nb_mod_op(b->base->plan, b->base->layer, mod), err);
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

/* The second moments of what a LINEAR op reads, and its moments with what the original model reads there. Where the outputs go to the
 * residual, what they lack is summed up itself: smaller than moments between inputs, which come before the weights are known. */
static nb_status walk_to(nb_gptq_block *b, nb_input *in, nb_err *err)
{
    const nb_plan *p = b->base->plan;
    const bool paired = b->x.share > 0, adds = nb_gptq_walk_adds(p, in->op) && p->ops[in->op].roles[1] == NB_ROLE_NONE;
    const nb_gptq_pair pair = { .d = adds ? NULL : &b->cross, .r = adds ? &b->resid : NULL };
    nb_status rc = NB_OK;

    if (paired)
        rc = adds ? nb_cross_init(&b->resid, b->base->d, in->k, err) : nb_cross_init(&b->cross, in->k, in->k, err);
    return rc == NB_OK ? nb_gptq_walk_to(&b->walk, in, paired ? &pair : NULL, err) : rc;
}

/* Of the head, when all layers are done; a job that was stopped there brings the original model behind them again. */
static nb_status head_moments(nb_gptq_block *b, nb_err *err)
{
    nb_input *in = &b->head;
    const bool paired = b->x.share > 0;
    const nb_gptq_pair pair = { .d = &b->cross };
    nb_status rc;

    in->k = b->base->plan->cfg->embed_dim;
    if (!in->sample)
        in->sample = nb_alloc_array(b->base->cap.n_sample, in->k * sizeof *in->sample);
    rc = in->sample ? nb_gram_init(&in->gram, in->k, err) : nb_enomem(err, "the inputs of the head");
    if (rc == NB_OK && paired)
        rc = nb_cross_init(&b->cross, in->k, in->k, err);
    if (rc == NB_OK)
        rc = nb_gptq_walk_reach(&b->walk, b->base, paired, b->base->plan->cfg->n_layers, err);
    return rc == NB_OK ? nb_gptq_walk_head(&b->walk, in, paired ? &pair : NULL, err) : rc;
}

static nb_status moments(nb_gptq_block *b, nb_mod mod, nb_input **out, nb_err *err)
{
    const size_t op = nb_mod_op(b->base->plan, b->base->layer, mod);
    nb_input *in = nb_capture_at(&b->base->cap, op);
    nb_status rc;

    if (mod == NB_MOD_HEAD) {
        *out = &b->head;
        return head_moments(b, err);
    }
    if (!in)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "op %zu captures no input", op);
    if (nb_mod_expert(mod) != NB_NO_EXPERT) {
        const int which = nb_mod_role(mod) == NB_ROLE_DOWN;
        rc = route(b, mod, err);
        *out = &b->base->expert[which];
        return rc == NB_OK ? nb_block_expert(b->base, nb_mod_expert(mod), which, NULL, nb_gram_init, err) : rc;
    }
    *out = in;
    nb_gram_clear(&in->gram);
    rc = nb_gram_init(&in->gram, in->k, err);
    if (rc == NB_OK)
        rc = b->walks ? walk_to(b, in, err) : nb_block_capture_op(b->base, op, err);
    return rc;
}

/* The moments in float32 from what factoring left of them, damped as they were for the factor; inputs that were always 0 stay without.
 * Takes the memory of g. */
static nb_status keep_moments(nb_gptq_block *b, nb_gram *g, double *diag, nb_err *err)
{
    const size_t k = g->k;
    double mean = 0;
    nb_status rc;

    for (size_t i = 0; i < k; i++)
        mean += diag[i] / (double)k;
    for (size_t i = 0; i < k; i++)
        if ((float)diag[i] > 0.0f)
            diag[i] = (double)((float)diag[i] + (float)(b->o.damp * mean));
    rc = nb_gptq_moments_back(&b->f, g->sum, diag, b->base->pool, err);
    if (rc != NB_OK)
        return rc;
    b->h = nb_realloc(g->sum, k * k * sizeof *b->h);
    if (!b->h)
        return nb_enomem(err, "the second moments of one input");
    g->sum = NULL;
    return NB_OK;
}

void nb_gptq_block_as(nb_gptq_block *b, bool sym, nb_gptq_order order)
{
    b->o.sym = sym;
    b->o.order = order;
}

nb_status nb_gptq_block_prepare(nb_gptq_block *b, nb_mod mod, size_t g, bool sym, size_t least, bool *few, nb_err *err)
{
    nb_cross *const sums[2] = { &b->cross, &b->resid };
    nb_input *in = NULL;
    double *diag = NULL;
    nb_status rc;

    clear_input(b);
    b->o.g = g;
    b->o.sym = sym;
    rc = nb_block_hold(b->base, err);
    if (rc == NB_OK)
        rc = moments(b, mod, &in, err);
    leave_weights(b);
    *few = rc == NB_OK && nb_mod_expert(mod) != NB_NO_EXPERT && (in->tokens == 0 || in->tokens < least);
    if (rc == NB_OK && *few)
        no_moments(&in->gram);
    else if (rc == NB_OK)
        nb_gram_finish(&in->gram);
    if (rc == NB_OK && !(diag = nb_alloc_array(in->k, sizeof *diag)))
        rc = nb_enomem(err, "the second moments of one input");
    for (size_t i = 0; rc == NB_OK && i < in->k; i++)
        diag[i] = in->gram.sum[i * in->k + i];
    if (rc == NB_OK)
        rc = nb_gptq_factor_make(&b->f, &b->o, in->gram.sum, in->k, b->base->pool, err);
    if (rc == NB_OK && b->x.sweeps > 0 && !*few && !b->f.failed)
        rc = keep_moments(b, &in->gram, diag, err);
    for (int i = 0; rc == NB_OK && !b->f.failed && i < 2; i++)
        if (sums[i]->sum)
            rc = nb_cross_solve(sums[i], b->base->pool, &b->f, err);
    nb_free(diag);
    if (in)
        nb_gram_clear(&in->gram);
    return rc;
}

size_t nb_gptq_block_tokens(const nb_gptq_block *b, nb_mod mod)
{
    return mod == NB_MOD_HEAD ? b->head.tokens : nb_block_input(b->base, mod)->tokens;
}

const nb_gptq_factor *nb_gptq_block_factor(const nb_gptq_block *b)
{
    return &b->f;
}

/* Codes of w into q: shifted first when there is an original model, refined after. */
static nb_status round_weights(nb_gptq_block *b, const float *w, nb_qlin *q, nb_gptq_result *res, nb_err *err)
{
    const bool shift = (b->cross.sum || b->resid.sum) && !b->f.failed;
    float *v = shift ? nb_alloc_array(q->n, q->k * sizeof *v) : NULL;
    nb_refine_result moved;
    nb_status rc;

    if (shift && !v)
        return nb_enomem(err, "a linear");
    if (shift)
        nb_shift(b->base->pool, &b->f, b->x.share, b->cross.sum ? &b->cross : NULL, b->resid.sum ? &b->resid : NULL, w, q->n, v);
    rc = nb_gptq_solve(&b->f, &b->o, shift ? v : w, q, res, b->base->pool, err);
    if (rc == NB_OK && b->h && !res->fallback)
        rc = nb_refine(b->base->pool, b->x.sweeps, b->h, shift ? v : w, q, &moved, err);
    nb_free(v);
    return rc;
}

/* The weights in w: codes into q, what those stand for into tmp, and both errors. */
static nb_status solve_weights(nb_gptq_block *b, const nb_input *in, nb_qlin *q, nb_gptq_result *res, double *norm, double *before,
                               double *after, nb_err *err)
{
    const nb_grid plain = { .g = q->g, .bits = q->bits, .sym = b->o.sym, .stored = q->scale_dtype };
    nb_block *base = b->base;
    nb_status rc;

    nb_rtn_pseudo(base->pool, &plain, base->w, NULL, q->n, q->k, base->tmp);
    b->o.bits = q->bits;
    rc = nb_input_error(base->pool, in, base->w, base->tmp, q->n, norm, before, err);
    if (rc == NB_OK)
        rc = round_weights(b, base->w, q, res, err);
    if (rc != NB_OK)
        return rc;
    nb_qlin_dequant(q, base->tmp);
    return nb_input_error(base->pool, in, base->w, base->tmp, q->n, norm, after, err);
}

/* Outputs [n0, n0 + part->n) of the head. */
static nb_status solve_head_part(nb_gptq_block *b, const nb_stored *at, size_t n0, nb_qlin *part, nb_gptq_result *res, double *norm,
                                 double *before, double *after, nb_err *err)
{
    enum { ROWS = 64 };
    const size_t k = part->k;

    for (size_t r = 0; r < part->n; r += ROWS) {
        const size_t m = part->n - r < ROWS ? part->n - r : ROWS;
        float *to = b->base->w + r * k;
        const float *w = nb_stored_rows(b->base->store, at, n0 + r, m, to, err);
        nb_status rc;

        if (!w)
            return err ? err->code : NB_EREAD;
        if (w != to)
            memcpy(to, w, m * k * sizeof *w);
        rc = nb_rtn_finite(to, m * k, err);
        if (rc != NB_OK)
            return rc;
    }
    return solve_weights(b, &b->head, part, res, norm, before, after, err);
}

/* The head has as many outputs as there are words: some at a time, as many as the buffers hold. */
static nb_status solve_head(nb_gptq_block *b, nb_qlin *q, nb_gptq_result *res, double *before, double *after, nb_err *err)
{
    const size_t most = b->base->need_tmp / q->k;
    double norms = 0;
    nb_stored at;
    nb_status rc = nb_stored_find(b->base->plan, b->base->store, 0, NB_MOD_HEAD, &at, err);

    *before = *after = 0;
    for (size_t n0 = 0; rc == NB_OK && n0 < q->n; n0 += most) {
        nb_qlin part = *q;
        nb_gptq_result one = { 0 };
        double norm = -1, e[2];

        if (nb_cancelled(b->base->host))
            return nb_block_stopped(err);
        part.n = q->n - n0 < most ? q->n - n0 : most;
        part.codes += n0 * q->k;
        part.scales += n0 * q->n_groups;
        part.zeros += n0 * q->n_groups;
        rc = solve_head_part(b, &at, n0, &part, &one, &norm, &e[0], &e[1], err);
        q->g_idx = part.g_idx; /* the same for every part */
        res->loss += one.loss;
        res->fallback = res->fallback || one.fallback;
        norms += norm;
        *before += rc == NB_OK ? norm * e[0] : 0;
        *after += rc == NB_OK ? norm * e[1] : 0;
        nb_store_drop(b->base->store, at.w);
    }
    *before /= norms > 0 ? norms : 1;
    *after /= norms > 0 ? norms : 1;
    return rc;
}

nb_status nb_gptq_block_solve(nb_gptq_block *b, nb_mod mod, nb_qlin *q, nb_gptq_result *res, double *before, double *after, nb_err *err)
{
    nb_block *base = b->base;
    double norm = -1;
    nb_status rc = nb_block_hold(base, err);

    if (rc == NB_OK && mod == NB_MOD_HEAD)
        return solve_head(b, q, res, before, after, err);
    if (rc == NB_OK)
        rc = b->read(b->user, mod, base->w, err);
    if (rc == NB_OK)
        rc = solve_weights(b, nb_block_input(base, mod), q, res, &norm, before, after, err);
    return rc == NB_OK ? nb_model_set_codes(base->model, base->layer, mod, q, base->tmp, err) : rc;
}

nb_status nb_gptq_block_replay(nb_gptq_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    clear_input(b);
    if (b->walks)
        rc = nb_gptq_walk_end(&b->walk, err);
    if (rc != NB_OK || !b->walks || b->base->h_next)
        return rc == NB_OK ? nb_block_replay(b->base, err) : rc;
    nb_model_unbind_layer(b->base->model, b->base->layer);
    return rc;
}
