/* awq_block.c - AWQ on one decoder block. */
#include "job/awq_block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"

enum { CHUNK_TOKENS = 2048, EXEC_ROWS = 512, TEST_ROWS = 2, MAX_OPS = 64 };

struct nb_awq_block {
    nb_model *model;
    const nb_plan *plan;
    nb_store *store;
    nb_exec *exec;
    const nb_calib *calib;
    nb_pool *pool;
    const nb_host *host;
    nb_awq_opts o;
    nb_rows rows;
    nb_capture cap;
    size_t layer, d, tokens;
    nb_awq_group groups[NB_MAX_GROUPS];
    size_t n_groups;
    float *h, *h_next; /* [tokens][d]; h_next only with replay_original          */
    float *run;        /* [chunk][d] outputs of a chunk                         */
    float *w, *tmp;    /* weights of one group; of one linear                   */
    float *ref, *out;  /* outputs of the inspected span: all tokens; one chunk  */
    double *part;      /* [tokens] */
    float *test[2];    /* [TEST_ROWS * len][d] */
};

nb_grid nb_awq_grid(const nb_awq_opts *o, size_t k)
{
    return (nb_grid){ .g = o->group_size < 0 ? k : (size_t)o->group_size, .bits = o->bits, .sym = o->sym, .stored = o->scale_dtype };
}

/* ---- sizes ---- */

typedef struct sizes {
    size_t d, chunk_rows, chunk, group, linear, span;
    bool full[MAX_OPS], gram[MAX_OPS]; /* by op */
} sizes;

static void find_sizes(const nb_plan *p, const nb_scale_group *g, size_t n_groups, size_t rows, size_t len, sizes *z)
{
    memset(z, 0, sizeof *z);
    z->d = p->cfg->d_model;
    z->chunk_rows = len < CHUNK_TOKENS ? CHUNK_TOKENS / len : 1;
    z->chunk_rows = z->chunk_rows < rows ? z->chunk_rows : rows;
    z->chunk = z->chunk_rows * len;
    for (size_t i = 0; i < n_groups; i++) {
        const size_t width = p->slot_len[p->ops[g[i].end - 1].out], n = g[i].n * g[i].k;
        z->group = n > z->group ? n : z->group;
        z->full[g[i].op] = g[i].from_norm;
        z->gram[g[i].op] = !g[i].from_norm;
        if (g[i].from_norm && width > z->span)
            z->span = width;
    }
    for (int r = 0; r < NB_ROLE_COUNT; r++)
        if (p->has_role[r]) {
            size_t n, k;
            nb_plan_linear_size(p, (nb_role)r, &n, &k);
            z->linear = n * k > z->linear ? n * k : z->linear;
        }
    z->group = z->linear > z->group ? z->linear : z->group;
}

void nb_awq_block_cost(const nb_plan *p, const nb_awq_opts *o, size_t rows, size_t len, uint64_t *bytes, double *macs)
{
    nb_scale_group g[NB_MAX_GROUPS];
    const size_t n_groups = nb_scale_groups(p, g);
    const double t = (double)rows * (double)len;
    const double attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2; /* both products, at about half the speed */
    double layer = attn, weights = 0;
    sizes z;

    find_sizes(p, g, n_groups, rows, len, &z);
    *bytes = nb_capture_bytes(p, rows * len, z.chunk, z.full, z.gram);
    *bytes += 4 * ((uint64_t)rows * len * (z.d * (o->replay_original ? 2 : 1) + z.span + 2) + (uint64_t)z.chunk * (z.d + z.span));
    *bytes += 4 * ((uint64_t)z.group + z.linear) + 8 * (uint64_t)TEST_ROWS * len * z.d;
    for (int i = 0; i < NB_SLOT_COUNT; i++) /* rows inside the executor, keys and values of a chunk */
        *bytes += 4 * (uint64_t)p->slot_width[i] * (i == NB_SLOT_QKV ? EXEC_ROWS + z.chunk : EXEC_ROWS);
    for (int r = 0; r < NB_ROLE_COUNT; r++)
        if (p->has_role[r]) {
            size_t n, k;
            nb_plan_linear_size(p, (nb_role)r, &n, &k);
            layer += (double)n * (double)k;
            weights += (double)n * (double)k * (nb_role_clips((nb_role)r) ? (double)o->clip * (double)nb_awq_grid(o, k).g : 0.0);
        }
    *macs = 2 * t * layer + weights + 3 * 512 * layer;
    for (size_t i = 0; i < n_groups; i++) {
        double span = 0;
        if (!g[i].from_norm) {
            *bytes += 4 * (uint64_t)g[i].k * g[i].k;
            *macs += t * (double)g[i].k * (double)g[i].k / 2 + NB_AWQ_RATIOS * (double)g[i].n * (double)g[i].k * (double)g[i].k;
            continue;
        }
        for (size_t op = g[i].op; op < g[i].end; op++) {
            for (size_t r = 0; p->ops[op].kind == NB_OP_LINEAR && r < 3 && p->ops[op].roles[r] != NB_ROLE_NONE; r++) {
                size_t n, k;
                nb_plan_linear_size(p, p->ops[op].roles[r], &n, &k);
                span += (double)n * (double)k;
            }
            span += p->ops[op].kind == NB_OP_ATTN ? attn : 0;
        }
        *macs += (NB_AWQ_RATIOS + 1) * t * span;
    }
}

/* ---- open ---- */

static nb_status take_buffers(nb_awq_block *b, const sizes *z, nb_err *err)
{
    const size_t test = TEST_ROWS * b->calib->len * b->d;

    b->h = nb_alloc_array(b->tokens, b->d * sizeof *b->h);
    b->h_next = b->o.replay_original ? nb_alloc_array(b->tokens, b->d * sizeof *b->h) : NULL;
    b->run = nb_alloc_array(z->chunk, b->d * sizeof *b->run);
    b->w = nb_alloc_array(z->group, sizeof *b->w);
    b->tmp = nb_alloc_array(z->linear, sizeof *b->tmp);
    b->ref = nb_alloc_array(b->tokens, z->span * sizeof *b->ref);
    b->out = nb_alloc_array(z->chunk, z->span * sizeof *b->out);
    b->part = nb_alloc_array(b->tokens, sizeof *b->part);
    b->test[0] = nb_alloc_array(test, sizeof **b->test);
    b->test[1] = nb_alloc_array(test, sizeof **b->test);
    if (!b->h || (b->o.replay_original && !b->h_next) || !b->run || !b->w || !b->tmp || !b->ref || !b->out || !b->part || !b->test[0] ||
        !b->test[1])
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

/* Visit the rows in chunks: fn gets the batch and the index of its first token. */
typedef nb_status chunk_fn(nb_awq_block *b, const nb_batch *batch, size_t at, nb_err *err);

static nb_status each_chunk(nb_awq_block *b, size_t rows, chunk_fn *fn, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t r = 0; rc == NB_OK && r < rows; r += b->rows.max_rows) {
        const size_t n = rows - r < b->rows.max_rows ? rows - r : b->rows.max_rows;
        const nb_batch batch = nb_rows_batch(&b->rows, b->calib->ids + r * b->calib->len, n);
        rc = nb_cancelled(b->host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written") : NB_OK;
        if (rc == NB_OK)
            rc = fn(b, &batch, r * b->calib->len, err);
    }
    return rc;
}

static nb_status embed_chunk(nb_awq_block *b, const nb_batch *batch, size_t at, nb_err *err)
{
    return nb_exec_embed(b->exec, batch, b->h + at * b->d, err);
}

nb_status nb_awq_block_open(nb_awq_block **out, nb_model *m, nb_store *s, const nb_calib *c, const nb_awq_opts *o, nb_pool *pool,
                            const nb_host *host, nb_err *err)
{
    nb_awq_block *b = nb_calloc(1, sizeof *b);
    nb_scale_group g[NB_MAX_GROUPS];
    nb_exec_opts eo = { .pool = pool, .kv_layers = 1, .kv_dtype = NB_DT_F32 };
    nb_status rc;
    sizes z;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the AWQ block");
    b->model = m;
    b->plan = nb_model_plan(m);
    b->store = s;
    b->calib = c;
    b->pool = pool;
    b->host = host;
    b->o = *o;
    b->d = b->plan->cfg->d_model;
    b->tokens = c->rows * c->len;
    b->n_groups = nb_scale_groups(b->plan, g);
    for (size_t i = 0; i < b->n_groups; i++)
        b->groups[i].g = g[i];
    find_sizes(b->plan, g, b->n_groups, c->rows, c->len, &z);
    rc = take_buffers(b, &z, err);
    if (rc == NB_OK)
        rc = nb_rows_init(&b->rows, c->len, z.chunk_rows, err);
    if (rc == NB_OK)
        rc = nb_capture_init(&b->cap, b->plan, b->tokens, z.chunk, z.full, z.gram, err);
    if (rc == NB_OK) {
        eo.max_m = z.chunk < EXEC_ROWS ? z.chunk : EXEC_ROWS;
        eo.n_pages = b->rows.n_pages;
        rc = nb_exec_cpu_open(m, &eo, &b->exec, err);
    }
    if (rc == NB_OK)
        rc = each_chunk(b, c->rows, embed_chunk, err);
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
    nb_exec_close(b->exec);
    nb_capture_clear(&b->cap);
    nb_rows_clear(&b->rows);
    for (size_t i = 0; i < b->n_groups; i++) {
        nb_free(b->groups[i].s);
        nb_free(b->groups[i].norm);
    }
    nb_free(b->h);
    nb_free(b->h_next);
    nb_free(b->run);
    nb_free(b->w);
    nb_free(b->tmp);
    nb_free(b->ref);
    nb_free(b->out);
    nb_free(b->part);
    nb_free(b->test[0]);
    nb_free(b->test[1]);
    nb_free(b);
}

/* ---- capture ---- */

static nb_status capture_chunk(nb_awq_block *b, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_status rc;

    memcpy(b->run, b->h + at * b->d, batch->m * b->d * sizeof *b->run);
    nb_exec_set_tap(b->exec, nb_capture_tap, &b->cap);
    rc = nb_exec_layers(b->exec, batch, b->run, b->layer, b->layer + 1, err);
    nb_exec_set_tap(b->exec, NULL, NULL);
    if (rc == NB_OK && b->h_next)
        memcpy(b->h_next + at * b->d, b->run, batch->m * b->d * sizeof *b->run);
    return rc == NB_OK ? nb_capture_add(&b->cap, b->pool, batch->m, err) : rc;
}

nb_status nb_awq_block_capture(nb_awq_block *b, size_t layer, nb_err *err)
{
    nb_status rc;

    b->layer = layer;
    nb_capture_reset(&b->cap);
    rc = nb_model_bind_layer(b->model, layer, err);
    return rc == NB_OK ? each_chunk(b, b->calib->rows, capture_chunk, err) : rc;
}

/* ---- weights of the current layer ---- */

/* Original weights of one linear as f32 into w; NaN and Inf are refused here (NU-01). */
static nb_status read_weights(nb_awq_block *b, nb_role role, float *w, nb_err *err)
{
    char name[256];
    const nb_tensor *t;
    size_t n, k;
    nb_status rc;

    nb_plan_linear(b->plan, b->layer, role, name, sizeof name - 8);
    strcat(name, ".weight");
    nb_plan_linear_size(b->plan, role, &n, &k);
    t = nb_store_find(b->store, name);
    if (!t)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "tensor \"%s\" disappeared", name);
    rc = nb_store_read_f32(b->store, t, 0, (uint64_t)n * k, w, err);
    if (rc == NB_OK)
        rc = nb_rtn_finite(w, n * k, err);
    nb_err_at(err, t->file, name);
    return rc;
}

static bool has_bias(const nb_awq_block *b, nb_role role)
{
    char name[256];

    nb_plan_linear(b->plan, b->layer, role, name, sizeof name - 8);
    strcat(name, ".bias");
    return nb_store_find(b->store, name) != NULL;
}

/* ---- scale search ---- */

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
    const size_t width = b->plan->slot_len[b->plan->ops[g->end - 1].out], len = b->calib->len;

    for (size_t r = 0; r < b->calib->rows; r += b->rows.max_rows) {
        const size_t n = b->calib->rows - r < b->rows.max_rows ? b->calib->rows - r : b->rows.max_rows, at = r * len;
        const nb_batch batch = nb_rows_batch(&b->rows, b->calib->ids + at, n);
        float *out = q->is_ref ? b->ref + at * width : b->out;
        nb_status rc;

        if (nb_cancelled(b->host))
            return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
        rc = nb_exec_span(b->exec, &batch, b->layer, g->op, g->end, q->in->full + at * g->k, out, err);
        if (rc != NB_OK)
            return rc;
        if (!q->is_ref) {
            struct diff_ctx c = { .a = b->ref + at * width, .b = out, .width = width, .part = b->part + at };
            nb_parallel_for(b->pool, batch.m, 16, diff_rows, &c);
        }
    }
    if (!q->is_ref) {
        *loss = 0;
        for (size_t t = 0; t < b->tokens; t++)
            *loss += b->part[t];
        *loss /= (double)b->tokens * (double)width;
    }
    return NB_OK;
}

/* The weights of the group, one linear after another in b->w, go into the model: rounded under scales s, or as they are. */
static nb_status set_group(search *q, const float *s, bool rounded, nb_err *err)
{
    nb_awq_block *b = q->b;
    const nb_grid grid = nb_awq_grid(&b->o, q->g->g.k);
    float *w = b->w;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < q->g->g.n_roles; i++) {
        size_t n, k;
        nb_plan_linear_size(b->plan, q->g->g.roles[i], &n, &k);
        if (rounded)
            nb_rtn_pseudo(b->pool, &grid, w, s, n, k, b->tmp);
        rc = nb_model_set_linear(b->model, b->layer, q->g->g.roles[i], rounded ? b->tmp : w, err);
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

    if (nb_cancelled(q->b->host))
        return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
    return nb_awq_gram_loss(q->b->pool, &grid, q->b->w, s, q->g->g.n, q->g->g.k, q->gram, loss, err);
}

static nb_status read_group(search *q, double *wsum, nb_err *err)
{
    nb_awq_block *b = q->b;
    const nb_grid grid = nb_awq_grid(&b->o, q->g->g.k);
    float *w = b->w;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < q->g->g.n_roles; i++) {
        size_t n, k;
        nb_plan_linear_size(b->plan, q->g->g.roles[i], &n, &k);
        rc = read_weights(b, q->g->g.roles[i], w, err);
        if (rc == NB_OK)
            nb_awq_wsum(b->pool, &grid, w, n, k, wsum);
        w += n * k;
    }
    return rc;
}

static nb_status search_group(nb_awq_block *b, nb_awq_group *g, nb_err *err)
{
    const size_t k = g->g.k;
    search q = { .b = b, .g = g, .in = nb_capture_of(&b->cap, g->g.op) };
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
        means[i] = (float)(q.in->xsum[i] / (double)b->tokens);
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
        rc = search_group(b, &b->groups[i], err);
        b->groups[i].seconds = nb_now() - t0;
    }
    return rc;
}

/* ---- fold ---- */

static float stored(float v, nb_dtype t)
{
    if (t == NB_DT_F16)
        return nb_f16_to_f32(nb_f32_to_f16(v));
    return t == NB_DT_BF16 ? nb_bf16_to_f32(nb_f32_to_bf16(v)) : v;
}

/* The norm is stored in few bits, the columns take the exact inverse of what is stored: s becomes norm / stored(norm / s),
 * so that the fold changes nothing but float32 rounding. Norms that count from 1 are folded as 1 + weight. */
static void fold_norm(const nb_awq_block *b, nb_awq_group *g)
{
    size_t n;
    const float *norm = nb_model_vec(b->model, b->layer, g->g.vec, &n);
    const float one = b->plan->cfg->norm == NB_NORM_RMS1 ? 1 : 0;

    for (size_t i = 0; i < g->g.k; i++) {
        const float w = norm[i] + one;
        float v = stored(w / g->s[i] - one, b->o.norm_dtype);
        if (w != 0.0f && (v + one == 0.0f || !isfinite(v)))
            v = stored(norm[i], b->o.norm_dtype);
        if (w != 0.0f && v + one != 0.0f && isfinite(v))
            g->s[i] = w / (v + one);
        g->norm[i] = v;
    }
}

const nb_awq_group *nb_awq_block_group_of(const nb_awq_block *b, nb_role role)
{
    for (size_t i = 0; i < b->n_groups; i++)
        for (size_t j = 0; j < b->groups[i].g.n_roles; j++)
            if (b->groups[i].g.roles[j] == role && b->groups[i].state == NB_FOLD_ON)
                return &b->groups[i];
    return NULL;
}

/* w *= scales of its inputs, rows /= scales of the group it precedes; or the other way round. */
static void fold_weights(const nb_awq_block *b, nb_role role, float *w, bool undo)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, role);
    size_t n, k;

    nb_plan_linear_size(b->plan, role, &n, &k);
    for (size_t r = 0; g && r < n; r++)
        for (size_t i = 0; i < k; i++)
            w[r * k + i] = undo ? w[r * k + i] / g->s[i] : w[r * k + i] * g->s[i];
    for (size_t j = 0; j < b->n_groups; j++) {
        const nb_awq_group *q = &b->groups[j];
        if (q->state != NB_FOLD_ON || q->g.from_norm || q->g.pred != role)
            continue;
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < k; i++)
                w[r * k + i] = undo ? w[r * k + i] * q->s[r] : w[r * k + i] / q->s[r];
    }
}

/* Put all linears and norms into the model as the groups that are on now demand. */
static nb_status apply_fold(nb_awq_block *b, float *const *plain_norm, nb_err *err)
{
    nb_status rc = NB_OK;

    for (int r = 0; rc == NB_OK && r < NB_ROLE_COUNT; r++) {
        if (!b->plan->has_role[r])
            continue;
        rc = read_weights(b, (nb_role)r, b->w, err);
        if (rc != NB_OK)
            break;
        fold_weights(b, (nb_role)r, b->w, false);
        rc = nb_model_set_linear(b->model, b->layer, (nb_role)r, b->w, err);
    }
    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++)
        if (b->groups[i].g.from_norm)
            rc = nb_model_set_vec(b->model, b->layer, b->groups[i].g.vec,
                                  b->groups[i].state == NB_FOLD_ON ? b->groups[i].norm : plain_norm[i], err);
    return rc;
}

static size_t test_rows(const nb_awq_block *b)
{
    const size_t most = b->rows.max_rows < TEST_ROWS ? b->rows.max_rows : TEST_ROWS;

    return b->calib->rows < most ? b->calib->rows : most;
}

/* Outputs of the layer for the first rows. */
static nb_status run_test(nb_awq_block *b, float *out, nb_err *err)
{
    const nb_batch batch = nb_rows_batch(&b->rows, b->calib->ids, test_rows(b));

    memcpy(out, b->h, batch.m * b->d * sizeof *out);
    return nb_exec_layers(b->exec, &batch, out, b->layer, b->layer + 1, err);
}

/* Does the folded block still compute the same? max |difference| <= 1e-3 max |output|; NaN fails. */
static nb_status same_output(nb_awq_block *b, bool *same, nb_err *err)
{
    const size_t n = test_rows(b) * b->calib->len * b->d;
    nb_status rc = run_test(b, b->test[1], err);
    float top = 0, diff = 0;

    *same = true;
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const float a = fabsf(b->test[0][i]), e = fabsf(b->test[0][i] - b->test[1][i]);
        if (!isfinite(a)) /* the original block overflows by itself: nothing can be proven */
            continue;
        top = a > top ? a : top;
        *same = *same && e == e;
        diff = e > diff ? e : diff;
    }
    *same = *same && diff <= 1e-3f * top;
    return rc;
}

/* The whole fold changed the block: find the groups that do so alone, and drop them. */
static nb_status find_culprits(nb_awq_block *b, float *const *plain_norm, nb_err *err)
{
    nb_fold_state was[NB_MAX_GROUPS];
    nb_status rc = NB_OK;

    for (size_t i = 0; i < b->n_groups; i++) {
        was[i] = b->groups[i].state;
        b->groups[i].state = NB_FOLD_CHANGES;
    }
    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        bool same = true;
        if (was[i] != NB_FOLD_ON)
            continue;
        b->groups[i].state = NB_FOLD_ON;
        rc = apply_fold(b, plain_norm, err);
        if (rc == NB_OK)
            rc = same_output(b, &same, err);
        b->groups[i].state = NB_FOLD_CHANGES;
        if (!same)
            was[i] = NB_FOLD_CHANGES;
    }
    for (size_t i = 0; i < b->n_groups; i++)
        b->groups[i].state = was[i];
    return rc == NB_OK ? apply_fold(b, plain_norm, err) : rc;
}

static void drop_all(nb_awq_block *b)
{
    for (size_t i = 0; i < b->n_groups; i++)
        if (b->groups[i].state == NB_FOLD_ON)
            b->groups[i].state = NB_FOLD_CHANGES;
}

nb_status nb_awq_block_fold(nb_awq_block *b, nb_err *err)
{
    float *plain_norm[NB_MAX_GROUPS] = { NULL };
    bool same = true;
    nb_status rc = run_test(b, b->test[0], err);

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        nb_awq_group *g = &b->groups[i];
        size_t n;
        if (!g->g.from_norm)
            continue;
        plain_norm[i] = nb_alloc_array(g->g.k, sizeof **plain_norm);
        if (!plain_norm[i]) {
            rc = nb_enomem(err, "a norm vector");
            break;
        }
        memcpy(plain_norm[i], nb_model_vec(b->model, b->layer, g->g.vec, &n), g->g.k * sizeof **plain_norm);
        fold_norm(b, g);
    }
    if (rc == NB_OK)
        rc = apply_fold(b, plain_norm, err);
    if (rc == NB_OK)
        rc = same_output(b, &same, err);
    if (rc == NB_OK && !same)
        rc = find_culprits(b, plain_norm, err);
    if (rc == NB_OK && !same)
        rc = same_output(b, &same, err);
    if (rc == NB_OK && !same) {
        drop_all(b);
        rc = apply_fold(b, plain_norm, err);
    }
    for (size_t i = 0; i < b->n_groups; i++)
        nb_free(plain_norm[i]);
    return rc;
}

size_t nb_awq_block_groups(const nb_awq_block *b, const nb_awq_group **groups)
{
    *groups = b->groups;
    return b->n_groups;
}

/* ---- final weights ---- */

/* Relative output error of v against w on the sampled inputs of the op that holds `role`. */
static nb_status output_error(nb_awq_block *b, nb_role role, const float *w, const float *v, double *e, nb_err *err)
{
    const nb_input *in = nb_capture_of(&b->cap, nb_plan_op_of(b->plan, role));
    size_t n, k;

    nb_plan_linear_size(b->plan, role, &n, &k);
    return nb_output_error(b->pool, w, v, n, k, in->sample, in->k, b->cap.n_sample, e, err);
}

/* A member of a group that failed its search is rounded plainly, without clipping (spec quantizers 3.9). */
static bool clips(const nb_awq_block *b, nb_role role)
{
    for (size_t i = 0; i < b->n_groups; i++)
        for (size_t j = 0; j < b->groups[i].g.n_roles; j++)
            if (b->groups[i].g.roles[j] == role && (b->groups[i].state == NB_FOLD_NO_LOSS || b->groups[i].state == NB_FOLD_CHANGES))
                return false;
    return b->o.clip > 0 && nb_role_clips(role);
}

nb_status nb_awq_block_take(nb_awq_block *b, nb_role role, float **w, double *before, nb_err *err)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, role);
    const nb_input *in = nb_capture_of(&b->cap, nb_plan_op_of(b->plan, role));
    nb_grid grid;
    size_t n, k;
    nb_status rc = read_weights(b, role, b->w, err);

    if (rc != NB_OK)
        return rc;
    nb_plan_linear_size(b->plan, role, &n, &k);
    grid = nb_awq_grid(&b->o, k);
    nb_rtn_pseudo(b->pool, &grid, b->w, NULL, n, k, b->tmp);
    rc = output_error(b, role, b->w, b->tmp, before, err);
    if (rc != NB_OK)
        return rc;
    fold_weights(b, role, b->w, false);
    if (clips(b, role))
        rc = nb_awq_clip(b->pool, &grid, b->w, n, k, in->sample, in->k, b->cap.n_sample, g ? g->s : NULL, b->o.clip, NULL, NULL, err);
    *w = b->w;
    return rc;
}

nb_status nb_awq_block_put(nb_awq_block *b, nb_role role, float *w, double *after, nb_err *err)
{
    nb_status rc = nb_model_set_linear(b->model, b->layer, role, w, err);

    if (rc == NB_OK)
        rc = read_weights(b, role, b->tmp, err);
    if (rc != NB_OK)
        return rc;
    fold_weights(b, role, w, true);
    return output_error(b, role, b->tmp, w, after, err);
}

/* ---- replay ---- */

static nb_status replay_chunk(nb_awq_block *b, const nb_batch *batch, size_t at, nb_err *err)
{
    return nb_exec_layers(b->exec, batch, b->h + at * b->d, b->layer, b->layer + 1, err);
}

nb_status nb_awq_block_replay(nb_awq_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    if (b->o.replay_original) {
        float *t = b->h;
        b->h = b->h_next;
        b->h_next = t;
    } else if (b->layer + 1 < b->plan->cfg->n_layers) {
        rc = each_chunk(b, b->calib->rows, replay_chunk, err);
    }
    nb_model_unbind_layer(b->model, b->layer);
    return rc;
}
