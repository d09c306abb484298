/* eval_ppl.c - rows through one or two models, a score for every position, means with intervals. Sums run in the order of the
 * positions whatever the threads did. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/eval.h"
#include "model/exec.h"

enum { PIECE = 256, FEW_ROWS = 8 };

typedef struct side {
    nb_model *model;
    nb_exec *exec;
    float *logits; /* [piece][V] */
} side;

typedef struct eval {
    const nb_eval_opts *o;
    side own, ref;
    size_t vocab, piece, n_pages;
    uint32_t *pages, *pos, *seq;
    uint8_t *want;
    /* of the piece being scored */
    const int32_t *ids;
    size_t base; /* its first position inside the row        */
    size_t row0; /* its first position among all positions   */
    /* per position of all rows */
    double *nll, *ref_nll, *kl, *same;
} eval;

double nb_log_sum_exp(const float *x, size_t v)
{
    float top = x[0];
    double sum = 0;

    for (size_t i = 1; i < v; i++)
        top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < v; i++)
        sum += exp((double)(x[i] - top));
    return (double)top + log(sum);
}

static double spread(const double *v, size_t n, double mean)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (v[i] - mean) * (v[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1) / (double)n) : 0;
}

nb_mean nb_mean_of(const double *v, size_t n, const size_t *row_len, size_t n_rows)
{
    nb_mean m = { 0 };
    double sum = 0, between = 0;
    size_t at = 0;

    if (n == 0)
        return m;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    m.mean = sum / (double)n;
    if (n_rows < FEW_ROWS) {
        m.ci95 = 1.96 * spread(v, n, m.mean);
        return m;
    }
    for (size_t r = 0; r < n_rows; r++) { /* rows weigh what they hold */
        double dev = 0;
        for (size_t i = 0; i < row_len[r]; i++)
            dev += v[at + i] - m.mean;
        between += dev * dev;
        at += row_len[r];
    }
    m.ci95 = 1.96 * sqrt(between * (double)n_rows / (double)(n_rows - 1)) / (double)n;
    return m;
}

/* Positions [begin, end) of the piece. */
static void score(void *ctx, size_t begin, size_t end, int thread)
{
    eval *e = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const float *q = e->own.logits + i * e->vocab;
        const float *p = e->ref.model ? e->ref.logits + i * e->vocab : NULL;
        const size_t at = e->row0 + i;
        const bool scored = e->base + i + 1 < e->o->ids->len;
        const size_t next = scored ? (size_t)e->ids[e->base + i + 1] : 0;
        e->nll[at] = scored ? nb_log_sum_exp(q, e->vocab) - (double)q[next] : 0;
        if (!p)
            continue;
        e->ref_nll[at] = scored ? nb_log_sum_exp(p, e->vocab) - (double)p[next] : 0;
        e->kl[at] = nb_kl_of(p, q, e->vocab);
        size_t a = 0, b = 0;
        for (size_t v = 1; v < e->vocab; v++) {
            a = p[v] > p[a] ? v : a;
            b = q[v] > q[b] ? v : b;
        }
        e->same[at] = a == b;
    }
}

static nb_status run_row(eval *e, size_t row, nb_err *err)
{
    const size_t len = e->o->ids->len;
    const nb_seq_view view = { .pages = e->pages, .n_pages = e->n_pages, .total = len };
    nb_status rc = NB_OK;

    e->ids = e->o->ids->ids + row * len;
    for (e->base = 0; rc == NB_OK && e->base < len; e->base += e->piece) {
        const size_t n = len - e->base < e->piece ? len - e->base : e->piece;
        const nb_batch b = { .m = n, .token = e->ids + e->base, .pos = e->pos, .seq = e->seq, .want = e->want, .seqs = &view, .n_seqs = 1 };
        for (size_t i = 0; i < n; i++)
            e->pos[i] = (uint32_t)(e->base + i);
        rc = nb_exec_run(e->own.exec, &b, e->own.logits, err);
        if (rc == NB_OK && e->ref.model)
            rc = nb_exec_run(e->ref.exec, &b, e->ref.logits, err);
        e->row0 = row * len + e->base;
        if (rc == NB_OK)
            nb_parallel_for(e->o->pool, n, 4, score, e);
    }
    return rc;
}

static nb_status open_side(eval *e, side *s, nb_err *err)
{
    const nb_exec_opts xo = {
        .pool = e->o->pool, .max_m = e->piece, .n_pages = e->n_pages, .kv_dtype = NB_DT_F32, .exact_fp32 = e->o->exact_fp32
    };

    s->logits = nb_alloc_array(e->piece * e->vocab, sizeof *s->logits);
    return s->logits ? nb_exec_cpu_open(s->model, &xo, &s->exec, err) : nb_enomem(err, "the logits");
}

static nb_status prepare(eval *e, nb_err *err)
{
    const size_t len = e->o->ids->len, n = e->o->ids->rows * len;
    nb_status rc;

    e->vocab = nb_model_config(e->own.model)->vocab;
    if (e->ref.model && nb_model_config(e->ref.model)->vocab != e->vocab)
        return nb_fail(err, NB_EARG, "eval.vocab", "", "the model has %zu tokens, the reference %zu; they cannot be compared", e->vocab,
                       nb_model_config(e->ref.model)->vocab);
    if (len < 2)
        return nb_fail(err, NB_EARG, "eval.rows", "", "rows of %zu tokens have nothing to predict", len);
    for (size_t i = 0; i < n; i++)
        if ((size_t)e->o->ids->ids[i] >= e->vocab)
            return nb_fail(err, NB_EFORMAT, "ids.token", "", "id %d at index %zu, the model has %zu tokens", e->o->ids->ids[i], i,
                           e->vocab);
    e->piece = len < PIECE ? len : PIECE;
    e->n_pages = (len + NB_PAGE - 1) / NB_PAGE;
    e->pages = nb_alloc_array(e->n_pages, sizeof *e->pages);
    e->pos = nb_alloc_array(e->piece, sizeof *e->pos);
    e->seq = nb_calloc(e->piece, sizeof *e->seq);
    e->want = nb_alloc_array(e->piece, 1);
    e->nll = nb_calloc(n, sizeof *e->nll);
    e->ref_nll = nb_calloc(n, sizeof *e->ref_nll);
    e->kl = nb_calloc(n, sizeof *e->kl);
    e->same = nb_calloc(n, sizeof *e->same);
    if (!e->pages || !e->pos || !e->seq || !e->want || !e->nll || !e->ref_nll || !e->kl || !e->same)
        return nb_enomem(err, "the scores");
    memset(e->want, 1, e->piece);
    for (size_t i = 0; i < e->n_pages; i++)
        e->pages[i] = (uint32_t)i;
    rc = open_side(e, &e->own, err);
    return rc == NB_OK && e->ref.model ? open_side(e, &e->ref, err) : rc;
}

static void finish(eval *e)
{
    nb_exec_close(e->own.exec);
    nb_exec_close(e->ref.exec);
    nb_free(e->own.logits);
    nb_free(e->ref.logits);
    nb_free(e->pages);
    nb_free(e->pos);
    nb_free(e->seq);
    nb_free(e->want);
    nb_free(e->nll);
    nb_free(e->ref_nll);
    nb_free(e->kl);
    nb_free(e->same);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Drop the last position of each row, which predicts nothing: v[rows][len] -> v[rows][len - 1]. */
static void drop_last(double *v, size_t rows, size_t len)
{
    for (size_t r = 1; r < rows; r++)
        memmove(v + r * (len - 1), v + r * len, (len - 1) * sizeof *v);
}

static nb_status summarize(eval *e, nb_eval *out, nb_err *err)
{
    const size_t rows = e->o->ids->rows, len = e->o->ids->len, n = rows * len;
    size_t *row_len = nb_alloc_array(rows, sizeof *row_len);

    if (!row_len)
        return nb_enomem(err, "the scores");
    out->rows = rows;
    out->len = len;
    out->positions = n;
    out->scored = rows * (len - 1);
    for (size_t r = 0; r < rows; r++)
        row_len[r] = len - 1;
    drop_last(e->nll, rows, len);
    out->nll = nb_mean_of(e->nll, out->scored, row_len, rows);
    out->ppl = exp(out->nll.mean);
    out->ppl_lo = exp(out->nll.mean - out->nll.ci95);
    out->ppl_hi = exp(out->nll.mean + out->nll.ci95);
    out->has_ref = e->ref.model != NULL;
    if (out->has_ref) {
        drop_last(e->ref_nll, rows, len);
        out->ref_ppl = exp(nb_mean_of(e->ref_nll, out->scored, row_len, rows).mean);
        for (size_t r = 0; r < rows; r++)
            row_len[r] = len;
        out->kl = nb_mean_of(e->kl, n, row_len, rows);
        out->top1 = nb_mean_of(e->same, n, row_len, rows);
        out->kl_sem = spread(e->kl, n, out->kl.mean);
        qsort(e->kl, n, sizeof *e->kl, by_value);
        out->kl_999 = nb_quantile(e->kl, n, 0.999);
        out->kl_max = e->kl[n - 1];
    }
    nb_free(row_len);
    if (!isfinite(out->nll.mean) || (out->has_ref && !isfinite(out->kl.mean)))
        return nb_fail(err, NB_ENUMERIC, "eval.numeric", "", "some logits are not finite; run nibble check on the model");
    return NB_OK;
}

nb_status nb_eval_run(nb_model *m, nb_model *ref, const nb_eval_opts *o, nb_eval *out, nb_err *err)
{
    eval e = { .o = o, .own.model = m, .ref.model = ref };
    nb_progress p = { .what = "eval", .unit = "rows", .total = o->ids->rows };
    nb_status rc = prepare(&e, err);

    memset(out, 0, sizeof *out);
    for (size_t row = 0; rc == NB_OK && row < o->ids->rows; row++) {
        p.done = row;
        nb_report_progress(o->host, &p);
        rc = nb_cancelled(o->host) ? NB_ECANCELED : run_row(&e, row, err);
    }
    if (rc == NB_OK)
        rc = summarize(&e, out, err);
    finish(&e);
    return rc;
}
