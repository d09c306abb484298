/* eval_layers.c - both models layer by layer over the same residuals. */
#include "job/eval_layers.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/exec.h"

enum { TOKENS = 2048 };

typedef struct layers {
    nb_exec *own, *ref;
    size_t d, width, n_pages, cap; /* width: d, and what goes beside the residual; cap: tokens of a window */
    uint32_t *pages, *pos, *seq;
    float *xr, *xa, *xq, *before;         /* [cap][width]: reference, this layer alone, the model on its own, the input of the layer */
    double *alone, *added, *drift, *size; /* [n] sums of squares */
} layers;

/* Of residuals and their differences. */
static double square_of(const layers *x, const float *a, const float *b, size_t m)
{
    double sum = 0;

    for (size_t r = 0; r < m; r++)
        for (size_t i = r * x->width; i < r * x->width + x->d; i++) {
            const double d = (double)a[i] - (b ? (double)b[i] : 0);
            sum += d * d;
        }
    return sum;
}

static nb_status one_layer(layers *x, const nb_batch *b, size_t l, nb_err *err)
{
    const size_t n = b->m * x->width;
    nb_status rc;

    memcpy(x->before, x->xr, n * sizeof *x->before);
    memcpy(x->xa, x->xr, n * sizeof *x->xa);
    rc = nb_exec_layers(x->ref, b, x->xr, l, l + 1, err);
    if (rc == NB_OK)
        rc = nb_exec_layers(x->own, b, x->xa, l, l + 1, err);
    if (rc == NB_OK) /* the cache of this layer is written anew */
        rc = nb_exec_layers(x->own, b, x->xq, l, l + 1, err);
    if (rc != NB_OK)
        return rc;
    x->alone[l] += square_of(x, x->xa, x->xr, b->m);
    x->added[l] += square_of(x, x->xr, x->before, b->m);
    x->drift[l] += square_of(x, x->xq, x->xr, b->m);
    x->size[l] += square_of(x, x->xr, NULL, b->m);
    return NB_OK;
}

static nb_status one_window(layers *x, const nb_window *w, size_t n_layers, nb_err *err)
{
    const nb_seq_view view = { .pages = x->pages, .n_pages = x->n_pages, .total = w->feed };
    const nb_batch b = { .m = w->feed, .token = w->ids, .pos = x->pos, .seq = x->seq, .seqs = &view, .n_seqs = 1 };
    nb_status rc = nb_exec_embed(x->ref, &b, x->xr, err);

    if (rc == NB_OK)
        rc = nb_exec_embed(x->own, &b, x->xq, err);
    for (size_t l = 0; rc == NB_OK && l < n_layers; l++)
        rc = one_layer(x, &b, l, err);
    return rc;
}

static nb_status prepare(layers *x, nb_model *m, nb_model *ref, const nb_eval_opts *o, size_t n, nb_err *err)
{
    const nb_exec_opts xo = { .pool = o->pool,
                              .max_m = x->cap < 256 ? x->cap : 256,
                              .n_pages = x->n_pages,
                              .kv_dtype = NB_DT_F32,
                              .exact_fp32 = o->exact_fp32,
                              .a8 = o->a8,
                              .carry = true };
    float **const rows[] = { &x->xr, &x->xa, &x->xq, &x->before };
    double **const sums[] = { &x->alone, &x->added, &x->drift, &x->size };
    bool ok = true;

    x->pages = nb_alloc_array(x->n_pages, sizeof *x->pages);
    x->pos = nb_alloc_array(x->cap, sizeof *x->pos);
    x->seq = nb_calloc(x->cap, sizeof *x->seq);
    for (size_t i = 0; i < NB_LEN(rows); i++)
        ok = (*rows[i] = nb_alloc_array(x->cap, x->width * sizeof **rows[i])) && ok;
    for (size_t i = 0; i < NB_LEN(sums); i++)
        ok = (*sums[i] = nb_calloc(n, sizeof **sums[i])) && ok;
    if (!ok || !x->pages || !x->pos || !x->seq)
        return nb_enomem(err, "the layers' outputs");
    for (size_t i = 0; i < x->n_pages; i++)
        x->pages[i] = (uint32_t)i;
    for (size_t i = 0; i < x->cap; i++)
        x->pos[i] = (uint32_t)i;
    const nb_status rc = nb_exec_cpu_open(m, &xo, &x->own, err);
    return rc == NB_OK ? nb_exec_cpu_open(ref, &xo, &x->ref, err) : rc;
}

static void finish(layers *x)
{
    nb_exec_close(x->own);
    nb_exec_close(x->ref);
    nb_free(x->pages);
    nb_free(x->pos);
    nb_free(x->seq);
    nb_free(x->xr);
    nb_free(x->xa);
    nb_free(x->xq);
    nb_free(x->before);
    nb_free(x->alone);
    nb_free(x->added);
    nb_free(x->drift);
    nb_free(x->size);
}

static double relative(double num, double den)
{
    return den > 0 ? sqrt(num / den) : 0;
}

nb_status nb_eval_layers(nb_model *m, nb_model *ref, const nb_eval_opts *o, size_t tokens, nb_layer_errors *out, nb_err *err)
{
    const nb_config *c = nb_model_config(m), *r = nb_model_config(ref);
    layers x = { .d = c->d_model,
                 .width = c->d_model + nb_plan_carry(nb_model_plan(m)),
                 .cap = o->set->max_len,
                 .n_pages = (o->set->max_len + NB_PAGE - 1) / NB_PAGE };
    nb_progress at = { .what = "layers", .unit = "tokens", .total = tokens ? tokens : TOKENS };
    nb_status rc;

    memset(out, 0, sizeof *out);
    if (c->n_layers != r->n_layers || c->d_model != r->d_model || nb_plan_carry(nb_model_plan(ref)) + x.d != x.width)
        return nb_fail(err, NB_EARG, "eval.layers", "", "%zu layers of %zu, the reference has %zu of %zu; layers cannot be compared",
                       c->n_layers, c->d_model, r->n_layers, r->d_model);
    out->n = c->n_layers;
    out->alone = nb_calloc(out->n, sizeof *out->alone);
    out->drift = nb_calloc(out->n, sizeof *out->drift);
    rc = out->alone && out->drift ? prepare(&x, m, ref, o, out->n, err) : nb_enomem(err, "the layers");
    for (size_t i = 0; rc == NB_OK && i < o->set->n_win && out->tokens < at.total; i++) {
        at.done = out->tokens;
        nb_report_progress(o->host, &at);
        rc = nb_cancelled(o->host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at window %zu", i)
                                   : one_window(&x, &o->set->win[i], out->n, err);
        out->tokens += o->set->win[i].feed;
    }
    for (size_t l = 0; rc == NB_OK && l < out->n; l++) {
        out->alone[l] = relative(x.alone[l], x.added[l]);
        out->drift[l] = relative(x.drift[l], x.size[l]);
    }
    finish(&x);
    if (rc != NB_OK)
        nb_layer_errors_clear(out);
    return rc;
}

void nb_layer_errors_clear(nb_layer_errors *e)
{
    nb_free(e->alone);
    nb_free(e->drift);
    memset(e, 0, sizeof *e);
}
