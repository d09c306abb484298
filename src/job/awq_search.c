/* awq_search.c - the scale search of one block: each group on the unscaled weights, its inspected span or its second moments. */
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"

typedef struct search {
    nb_awq_block *b;
    nb_awq_group *g;
    nb_input *in;
    bool by_moments;   /* losses are made of second moments: */
    const float *gram; /* [k][k] these                       */
    size_t n;          /* outputs in w that such a loss looks at    */
    float *tied;       /* [k] scales that inputs of one row share   */
    double *rows;      /* [outputs of pred][2] for that             */
    bool is_ref;       /* the chunk's outputs are the reference     */
    bool kept;         /* the weights of the group lie in b->base.w: those that losses look at */
} search;

struct diff_ctx {
    const float *a, *b;
    size_t width;
    double *part;
};

static void diff_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct diff_ctx *c = user;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const float *a = c->a + r * c->width, *b = c->b + r * c->width;
        double s[8] = { 0 };
        size_t i = 0;
        for (; i + 8 <= c->width; i += 8)
            for (int j = 0; j < 8; j++) {
                const double d = (double)(a[i + j] - b[i + j]);
                s[j] += d * d;
            }
        for (; i < c->width; i++) {
            const double d = (double)(a[i] - b[i]);
            s[i & 7] += d * d;
        }
        c->part[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

/* Outputs of one inspected span for every token, into ref or compared with it. *loss gains its mean squared difference. */
static nb_status run_span(search *q, const nb_span *span, float *ref, double *loss, nb_err *err)
{
    nb_awq_block *b = q->b;
    const size_t width = b->base.plan->slot_len[b->base.plan->ops[span->end - 1].out], len = b->base.calib->len;
    double sum = 0;

    for (size_t r = 0; r < b->base.calib->rows; r += b->base.rows.max_rows) {
        const size_t n = b->base.calib->rows - r < b->base.rows.max_rows ? b->base.calib->rows - r : b->base.rows.max_rows, at = r * len;
        const nb_batch batch = nb_rows_batch(&b->base.rows, b->base.calib->ids + at, n);
        float *out = q->is_ref ? ref + at * width : b->out;
        nb_status rc;

        if (nb_cancelled(b->base.host))
            return nb_block_stopped(err);
        nb_exec_beside(b->base.exec, b->base.h + at * b->base.width);
        rc = nb_exec_span(b->base.exec, &batch, b->base.layer, span->op, span->end, q->in->full + at * q->g->g->k, out, err);
        if (rc != NB_OK)
            return rc;
        if (!q->is_ref) {
            struct diff_ctx c = { .a = ref + at * width, .b = out, .width = width, .part = b->part + at };
            nb_parallel_for(b->base.pool, batch.m, 16, diff_rows, &c);
        }
        nb_spill_settle(&b->ref_mem);
        nb_block_settle(&b->base);
    }
    for (size_t t = 0; !q->is_ref && t < b->base.tokens; t++)
        sum += b->part[t];
    *loss += sum / (double)b->base.tokens / (double)width;
    return NB_OK;
}

/* All spans: what they add to the residual stream. */
static nb_status run_spans(search *q, double *loss, nb_err *err)
{
    const nb_scale_group *g = q->g->g;
    float *ref = q->b->ref;
    nb_status rc = NB_OK;

    *loss = 0;
    for (size_t i = 0; i < g->n_spans && rc == NB_OK; i++) {
        rc = run_span(q, &g->spans[i], ref, loss, err);
        ref += q->b->base.tokens * q->b->base.plan->slot_len[q->b->base.plan->ops[g->spans[i].end - 1].out];
    }
    return rc;
}

/* The quantized linears of the group go into the model: rounded under scales s, or as they are. */
static nb_status set_group(search *q, const float *s, bool rounded, nb_err *err)
{
    nb_awq_block *b = q->b;
    float *w = b->base.w;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < q->g->g->n_mods; i++) {
        const nb_mod mod = q->g->g->mods[i];
        size_t n, k;

        if (!nb_awq_quantized(b, mod))
            continue;
        nb_mod_size(b->base.plan, b->base.layer, mod, &n, &k);
        if (!q->kept)
            rc = nb_block_read(&b->base, mod, w, err);
        if (rc == NB_OK && rounded)
            nb_rtn_pseudo(b->base.pool, &q->g->grid, w, s, n, k, b->base.tmp);
        if (rc == NB_OK)
            rc = nb_model_set_linear(b->base.model, b->base.layer, mod, rounded ? b->base.tmp : w, err);
        w += q->kept ? n * k : 0;
    }
    return rc;
}

/* Inputs that come from one row share the mean of their scales. */
static void tie(search *q, const float *s, float *out)
{
    const nb_scale_group *g = q->g->g;
    size_t n, k;

    nb_mod_size(q->b->base.plan, q->b->base.layer, g->pred, &n, &k);
    memset(q->rows, 0, 2 * n * sizeof *q->rows);
    for (size_t i = 0; i < g->k; i++) {
        q->rows[2 * g->rows[i]] += (double)s[i];
        q->rows[2 * g->rows[i] + 1] += 1;
    }
    for (size_t i = 0; i < g->k; i++)
        out[i] = (float)(q->rows[2 * g->rows[i]] / q->rows[2 * g->rows[i] + 1]);
}

static nb_status eval_spans(void *user, const float *s, double *loss, nb_err *err)
{
    search *q = user;
    nb_status rc = set_group(q, s, true, err);

    return rc == NB_OK ? run_spans(q, loss, err) : rc;
}

static nb_status eval_gram(void *user, const float *s, double *loss, nb_err *err)
{
    search *q = user;

    if (nb_cancelled(q->b->base.host))
        return nb_block_stopped(err);
    if (q->tied)
        tie(q, s, q->tied);
    return nb_awq_gram_loss(q->b->base.pool, &q->g->grid, q->b->base.w, q->tied ? q->tied : s, q->n, q->g->g->k, q->gram, loss, err);
}

/* Every so manieth output stands for all in losses of second moments. */
static size_t loss_step(const search *q, size_t rows)
{
    return !q->b->o.inspect && rows / NB_AWQ_LOSS_ROWS > 1 ? rows / NB_AWQ_LOSS_ROWS : 1;
}

/* Outputs of all quantized linears of the group. */
static size_t group_rows(const search *q)
{
    size_t n, k, rows = 0;

    for (size_t i = 0; i < q->g->g->n_mods; i++) {
        nb_mod_size(q->b->base.plan, q->b->base.layer, q->g->g->mods[i], &n, &k);
        rows += nb_awq_quantized(q->b, q->g->g->mods[i]) ? n : 0;
    }
    return rows;
}

/* Rows of a linear, the first of which is output `at` of the group, that losses look at: to the end of those in w. */
static void pick(search *q, const float *from, size_t n, size_t at, size_t step)
{
    const size_t k = q->g->g->k;

    for (size_t r = (step - at % step) % step; r < n; r += step)
        memcpy(q->b->base.w + q->n++ * k, from + r * k, k * sizeof *from);
}

/* Read the quantized linears, into w one after another where that holds them all, and sums of their weights. */
static nb_status read_group(search *q, double *wsum, size_t rows, nb_err *err)
{
    nb_awq_block *b = q->b;
    const size_t step = loss_step(q, rows);
    float *w = b->base.w;
    size_t at = 0;
    nb_status rc = NB_OK;

    q->kept = true;
    for (size_t i = 0; i < q->g->g->n_mods; i++) /* those of experts are read again and again */
        q->kept = q->kept && (nb_mod_expert(q->g->g->mods[i]) == NB_NO_EXPERT || q->g->g->n_mods == 1);
    for (size_t i = 0; rc == NB_OK && i < q->g->g->n_mods; i++) {
        const nb_mod mod = q->g->g->mods[i];
        float *to = q->by_moments ? b->base.tmp : w;
        size_t n, k;

        if (!nb_awq_quantized(b, mod))
            continue;
        nb_mod_size(b->base.plan, b->base.layer, mod, &n, &k);
        rc = nb_block_read(&b->base, mod, to, err);
        if (rc == NB_OK)
            nb_awq_wsum(b->base.pool, &q->g->grid, to, n, k, wsum);
        if (rc == NB_OK && q->by_moments)
            pick(q, to, n, at, step);
        at += n;
        w += q->kept ? n * k : 0;
    }
    return rc;
}

/* What the group reads. An expert's own inputs are made now, from its original weights. */
static nb_status find_input(search *q, nb_err *err)
{
    nb_block *base = &q->b->base;
    const uint32_t e = nb_mod_expert(q->g->g->mods[0]);
    nb_status rc = NB_OK;

    if (q->g->g->n_spans == 0 && e != NB_NO_EXPERT) {
        q->in = &base->expert[1];
        rc = nb_block_expert(base, e, 1, NULL, nb_gram_init_half, err);
        if (rc == NB_OK && nb_awq_block_few(q->b, q->g->g->mods[0]))
            q->g->state = NB_FOLD_FEW;
        return rc;
    }
    q->in = nb_capture_at(&base->cap, q->g->g->op);
    return rc;
}

static nb_status run_search(search *q, float *means, double *wsum, nb_err *err)
{
    nb_awq_block *b = q->b;
    const size_t k = q->g->g->k;
    const size_t rows = group_rows(q);
    double none;
    nb_status rc = read_group(q, wsum, rows, err);

    for (size_t i = 0; i < k && rc == NB_OK; i++) {
        means[i] = (float)(q->in->xsum[i] / (double)q->in->tokens);
        means[k + i] = (float)(wsum[i] / (double)rows);
    }
    if (rc == NB_OK && q->by_moments) {
        if (!(q->gram = nb_gram_take(&q->in->gram)))
            rc = nb_enomem(err, "the scale search");
    } else if (rc == NB_OK) {
        q->is_ref = true;
        rc = run_spans(q, &none, err);
        q->is_ref = false;
    }
    if (rc == NB_OK)
        rc = nb_awq_search(means, means + k, k, !b->o.plain, q->by_moments ? eval_gram : eval_spans, q, &q->g->best, q->g->s, err);
    if (rc == NB_OK && !q->by_moments)
        rc = set_group(q, NULL, false, err);
    if (rc == NB_OK && q->g->best.index < 0)
        q->g->state = NB_FOLD_NO_LOSS;
    if (rc == NB_OK && q->tied) {
        tie(q, q->g->s, q->tied);
        memcpy(q->g->s, q->tied, k * sizeof *q->tied);
    }
    return rc;
}

static nb_status search_group(nb_awq_block *b, nb_awq_group *g, nb_err *err)
{
    const size_t k = g->g->k;
    search q = { .b = b, .g = g };
    size_t n = 0, in;
    double *wsum;
    float *means;
    nb_status rc = find_input(&q, err);

    if (rc != NB_OK || g->state != NB_FOLD_ON)
        return rc;
    if (g->g->tied)
        nb_mod_size(b->base.plan, b->base.layer, g->g->pred, &n, &in);
    wsum = nb_calloc(k, sizeof *wsum);
    means = nb_alloc_array(k, 2 * sizeof *means);
    q.by_moments = nb_awq_by_moments(&b->o, g->g);
    q.tied = n ? nb_alloc_array(k, sizeof *q.tied) : NULL;
    q.rows = n ? nb_alloc_array(n, 2 * sizeof *q.rows) : NULL;
    if (!wsum || !means || (n && (!q.tied || !q.rows)))
        rc = nb_enomem(err, "the scale search");
    if (rc == NB_OK)
        rc = run_search(&q, means, wsum, err);
    if (q.in && q.by_moments)
        nb_gram_shelve(&q.in->gram);
    nb_free(q.rows);
    nb_free(q.tied);
    nb_free(means);
    nb_free(wsum);
    return rc;
}

nb_status nb_awq_block_search(nb_awq_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        const double t0 = nb_now();
        if (b->groups[i].state == NB_FOLD_ON)
            rc = search_group(b, &b->groups[i], err);
        b->groups[i].seconds = nb_now() - t0;
    }
    return rc;
}
