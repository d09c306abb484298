/* method_rtn.c - every linear rounded as it is, without calibration, on the grid with the least squared error. */
#include <string.h>

#include "base/mem.h"
#include "job/block.h"
#include "job/quantize_priv.h"
#include "solve/linalg.h"

static const char *layout(const nb_quantize_opts *o)
{
    (void)o;
    return "awq-gemm";
}

enum { EVERY = 16, STRIPE = NB_QOUT_STRIPE };

/* The error of every 16th output stands for that of all. */
static nb_status judge(const nb_qjob *j, float *w, const nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    const size_t n = (q->n + EVERY - 1) / EVERY, k = q->k;
    float *v = nb_alloc_array(n, k * sizeof *v);
    nb_status rc = v ? NB_OK : nb_enomem(err, "a linear");

    for (size_t i = 0; i < n && v; i++) {
        nb_qlin one = *q;
        one.n = 1;
        one.codes += i * EVERY * k;
        one.scales += i * EVERY * q->n_groups;
        one.zeros += i * EVERY * q->n_groups;
        nb_qlin_dequant(&one, v + i * k);
        memmove(w + i * k, w + i * EVERY * k, k * sizeof *w);
    }
    if (rc == NB_OK)
        rc = nb_output_error(j->o->pool, w, v, n, k, NULL, 0, 0, NULL, &row->after, err);
    row->before = row->after;
    nb_free(v);
    return rc;
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    nb_grid grid = nb_qmod_grid(m);
    float *w = nb_alloc_array(q->n, q->k * sizeof *w);
    nb_status rc = w ? nb_read_linear(j->src.store, &j->plan, m->layer, m->mod, w, err) : nb_enomem(err, "a linear");

    grid.shrinks = j->o->mse > 0;
    if (rc == NB_OK)
        rc = nb_rtn_quantize(j->o->pool, &grid, w, q, err);
    if (rc == NB_OK)
        rc = judge(j, w, q, row, err);
    nb_free(w);
    return rc;
}

/* ---- stripe by stripe ---- */

/* Outputs of one linear on their way from the stored weights to packed words, a stripe at a time, all of it in cache. */
struct stream {
    nb_qjob *j;
    nb_grid grid;
    const nb_stored *at;
    size_t n, k, step; /* step: outputs read at once */
    nb_qlin *q;        /* [threads] stripes */
    float *w;          /* [threads][step][k] */
    double *err2;      /* [n / EVERY][2] squares of errors, of weights */
    size_t *zeros;     /* [stripes] groups of nothing but zeros */
    bool *bad;         /* [stripes] */
};

/* Squared error of one output and of its weights. */
static void judge_row(const nb_qlin *q, size_t r, const float *w, double sum[2])
{
    float v[256];
    double num = 0;

    for (size_t i = 0; i < q->k; i += NB_LEN(v)) {
        const size_t n = q->k - i < NB_LEN(v) ? q->k - i : NB_LEN(v);
        for (size_t x = 0; x < n; x++) {
            const size_t at = r * q->n_groups + (i + x) / q->g;
            v[x] = (float)((int)q->codes[r * q->k + i + x] - (int)q->zeros[at]) * q->scales[at] - w[i + x];
        }
        num += nb_dot64(v, v, n);
    }
    sum[0] = num;
    sum[1] = nb_dot64(w, w, q->k);
}

static bool do_stripe(const struct stream *c, size_t t, nb_qlin *q, float *w)
{
    const size_t n0 = t * STRIPE, rows = c->n - n0 < STRIPE ? c->n - n0 : STRIPE;
    nb_err ignored = { 0 };

    for (size_t i = 0; i < rows; i += c->step) {
        const size_t m = rows - i < c->step ? rows - i : c->step;
        const float *at = nb_stored_rows(c->j->src.store, c->at, n0 + i, m, w, &ignored);

        if (!at)
            return false;
        for (size_t r = 0; r < m; r++) {
            if (!nb_rtn_row(&c->grid, at + r * c->k, q, i + r))
                return false;
            if ((n0 + i + r) % EVERY == 0)
                judge_row(q, i + r, at + r * c->k, c->err2 + (n0 + i + r) / EVERY * 2);
        }
    }
    q->n = rows;
    c->zeros[t] = nb_zero_groups(q);
    return nb_qout_pack(c->j->out, q, n0, c->n, &ignored) == NB_OK;
}

static void do_stripes(void *user, size_t begin, size_t end, int thread)
{
    const struct stream *c = user;

    for (size_t t = begin; t < end; t++)
        c->bad[t] = !do_stripe(c, t, &c->q[thread], c->w + (size_t)thread * c->step * c->k);
}

/* Sums over stripes, in their order. */
static bool add_up(const struct stream *c, nb_quantize_row *row)
{
    double num = 0, den = 0;
    bool ok = true;

    row->zeros = 0;
    for (size_t t = 0; t * STRIPE < c->n; t++) {
        ok = ok && !c->bad[t];
        row->zeros += c->zeros[t];
    }
    for (size_t i = 0; i * EVERY < c->n; i++) {
        num += c->err2[2 * i];
        den += c->err2[2 * i + 1];
    }
    row->before = row->after = num > 0 ? num / den : 0;
    return ok;
}

nb_status nb_rtn_stream(nb_qjob *j, const nb_qmod *m, nb_quantize_row *row, bool *done, nb_err *err)
{
    struct stream c = { .j = j, .grid = nb_qmod_grid(m), .at = &m->at, .n = m->at.n, .k = m->at.k };
    const size_t threads = (size_t)nb_pool_threads(j->o->pool), stripes = (c.n + STRIPE - 1) / STRIPE;
    nb_status rc = NB_OK;

    *done = false;
    c.grid.shrinks = j->o->mse > 0;
    c.step = m->at.rs == 0 || m->at.cs == 1 ? 8 : STRIPE; /* a turned one is read best by many rows */
    c.q = nb_calloc(threads, sizeof *c.q);
    c.w = nb_alloc_array(threads * c.step, c.k * sizeof *c.w);
    c.err2 = nb_calloc((c.n + EVERY - 1) / EVERY, 2 * sizeof *c.err2);
    c.zeros = nb_calloc(stripes, sizeof *c.zeros);
    c.bad = nb_calloc(stripes, sizeof *c.bad);
    if (!c.q || !c.w || !c.err2 || !c.zeros || !c.bad)
        rc = nb_enomem(err, "a linear");
    for (size_t t = 0; rc == NB_OK && t < threads; t++) {
        rc = nb_qlin_init(&c.q[t], STRIPE, c.k, c.grid.g, c.grid.bits, err);
        c.q[t].scale_dtype = m->spec.scale_dtype;
    }
    if (rc == NB_OK) {
        nb_qlin whole = c.q[0];
        whole.n = c.n;
        rc = nb_qout_linear_begin(j->out, m, &whole, err);
    }
    if (rc == NB_OK)
        nb_parallel_for(j->o->pool, stripes, 1, do_stripes, &c);
    if (rc == NB_OK && add_up(&c, row)) {
        *done = true;
        rc = nb_qout_linear_end(j->out, m, err);
    }
    for (size_t t = 0; c.q && t < threads; t++)
        nb_qlin_clear(&c.q[t]);
    nb_free(c.q);
    nb_free(c.w);
    nb_free(c.err2);
    nb_free(c.zeros);
    nb_free(c.bad);
    return rc;
}

const nb_qmethod nb_method_rtn = { .name = "rtn", .title = "RTN", .layout = layout, .solve = solve };
