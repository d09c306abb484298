/* awq_search.c - the scale search of one block: each group on the unscaled weights, its inspected span or its second moments. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"

static bool has_bias(const nb_awq_block *b, nb_role role)
{
    char name[256];

    nb_plan_linear(b->base.plan, b->base.layer, role, name, sizeof name - 8);
    strcat(name, ".bias");
    return nb_store_find(b->base.store, name) != NULL;
}

typedef struct search {
    nb_awq_block *b;
    nb_awq_group *g;
    const nb_input *in;
    const float *gram; /* [k][k] when the linear is inspected alone */
    bool is_ref;       /* the chunk's outputs are the reference */
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

/* Outputs of the inspected span for every token, into ref or compared with it. */
static nb_status run_span(search *q, double *loss, nb_err *err)
{
    nb_awq_block *b = q->b;
    const nb_scale_group *g = &q->g->g;
    const size_t width = b->base.plan->slot_len[b->base.plan->ops[g->end - 1].out], len = b->base.calib->len;

    for (size_t r = 0; r < b->base.calib->rows; r += b->base.rows.max_rows) {
        const size_t n = b->base.calib->rows - r < b->base.rows.max_rows ? b->base.calib->rows - r : b->base.rows.max_rows, at = r * len;
        const nb_batch batch = nb_rows_batch(&b->base.rows, b->base.calib->ids + at, n);
        float *out = q->is_ref ? b->ref + at * width : b->out;
        nb_status rc;

        if (nb_cancelled(b->base.host))
            return nb_block_stopped(err);
        rc = nb_exec_span(b->base.exec, &batch, b->base.layer, g->op, g->end, q->in->full + at * g->k, out, err);
        if (rc != NB_OK)
            return rc;
        if (!q->is_ref) {
            struct diff_ctx c = { .a = b->ref + at * width, .b = out, .width = width, .part = b->part + at };
            nb_parallel_for(b->base.pool, batch.m, 16, diff_rows, &c);
        }
        nb_spill_settle(&b->ref_mem);
        nb_block_settle(&b->base);
    }
    if (!q->is_ref) {
        *loss = 0;
        for (size_t t = 0; t < b->base.tokens; t++)
            *loss += b->part[t];
        *loss /= (double)b->base.tokens * (double)width;
    }
    return NB_OK;
}

/* The weights of the group, one linear after another in b->base.w, go into the model: rounded under scales s, or as they are. */
static nb_status set_group(search *q, const float *s, bool rounded, nb_err *err)
{
    nb_awq_block *b = q->b;
    const nb_grid grid = nb_awq_grid(&b->o, q->g->g.k);
    float *w = b->base.w;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < q->g->g.n_roles; i++) {
        size_t n, k;
        nb_plan_linear_size(b->base.plan, q->g->g.roles[i], &n, &k);
        if (rounded)
            nb_rtn_pseudo(b->base.pool, &grid, w, s, n, k, b->base.tmp);
        rc = nb_model_set_linear(b->base.model, b->base.layer, q->g->g.roles[i], rounded ? b->base.tmp : w, err);
        w += n * k;
    }
    return rc;
}

static nb_status eval_span(void *user, const float *s, double *loss, nb_err *err)
{
    search *q = user;
    nb_status rc = set_group(q, s, true, err);

    return rc == NB_OK ? run_span(q, loss, err) : rc;
}

static nb_status eval_gram(void *user, const float *s, double *loss, nb_err *err)
{
    search *q = user;
    const nb_grid grid = nb_awq_grid(&q->b->o, q->g->g.k);

    if (nb_cancelled(q->b->base.host))
        return nb_block_stopped(err);
    return nb_awq_gram_loss(q->b->base.pool, &grid, q->b->base.w, s, q->g->g.n, q->g->g.k, q->gram, loss, err);
}

static nb_status read_group(search *q, double *wsum, nb_err *err)
{
    nb_awq_block *b = q->b;
    const nb_grid grid = nb_awq_grid(&b->o, q->g->g.k);
    float *w = b->base.w;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < q->g->g.n_roles; i++) {
        size_t n, k;
        nb_plan_linear_size(b->base.plan, q->g->g.roles[i], &n, &k);
        rc = nb_block_read(&b->base, q->g->g.roles[i], w, err);
        if (rc == NB_OK)
            nb_awq_wsum(b->base.pool, &grid, w, n, k, wsum);
        w += n * k;
    }
    return rc;
}

static nb_status search_group(nb_awq_block *b, nb_awq_group *g, nb_err *err)
{
    const size_t k = g->g.k;
    search q = { .b = b, .g = g, .in = nb_capture_of(&b->base.cap, g->g.op) };
    double *wsum = nb_calloc(k, sizeof *wsum);
    float *means = nb_alloc_array(k, 2 * sizeof *means);
    float *gram = g->g.from_norm ? NULL : nb_alloc_array(k, k * sizeof *gram);
    nb_status rc;

    if (!wsum || !means || (!g->g.from_norm && !gram)) {
        rc = nb_enomem(err, "the scale search");
        goto done;
    }
    rc = read_group(&q, wsum, err);
    if (rc != NB_OK)
        goto done;
    for (size_t i = 0; i < k; i++) {
        means[i] = (float)(q.in->xsum[i] / (double)b->base.tokens);
        means[k + i] = (float)(wsum[i] / (double)g->g.n);
    }
    if (gram) {
        nb_gram_mean(&q.in->gram, gram);
        q.gram = gram;
    } else {
        q.is_ref = true;
        rc = run_span(&q, NULL, err);
        q.is_ref = false;
    }
    if (rc == NB_OK)
        rc = nb_awq_search(means, means + k, k, !b->o.plain, gram ? eval_gram : eval_span, &q, &g->best, g->s, err);
    if (rc == NB_OK && !gram)
        rc = set_group(&q, NULL, false, err);
    if (rc == NB_OK)
        g->state = g->best.index < 0 ? NB_FOLD_NO_LOSS : !g->g.from_norm && has_bias(b, g->g.pred) ? NB_FOLD_BIAS : NB_FOLD_ON;
done:
    nb_free(gram);
    nb_free(means);
    nb_free(wsum);
    return rc;
}

nb_status nb_awq_block_search(nb_awq_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        const double t0 = nb_now();
        if (!nb_plan_runs(b->base.plan, &b->base.plan->ops[b->groups[i].g.op], b->base.layer)) {
            b->groups[i].state = NB_FOLD_NO_LOSS;
            continue;
        }
        rc = search_group(b, &b->groups[i], err);
        b->groups[i].seconds = nb_now() - t0;
    }
    return rc;
}
