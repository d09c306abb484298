/* streams.c - a closed loop of requests around the engine, and percentiles of what came back. */
#include "job/streams.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

typedef struct load {
    const nb_streams_opts *o;
    nb_engine *e;
    size_t vocab, added, ended, n_itl;
    uint64_t first_id;
    int32_t *ids;
    double *start, *last, *ttft, *itl; /* [requests], [requests], [requests], [requests * decode] */
} load;

static int32_t token(uint64_t stream, size_t i, size_t vocab)
{
    return (int32_t)(nb_rng_uniform(3, stream, i) * (double)vocab);
}

static nb_status add(load *l, uint64_t stream, nb_err *err)
{
    const nb_streams_opts *o = l->o;
    const size_t n = o->prefix + o->prompt;
    const nb_request r = { .ids = l->ids, .n_ids = n, .max_tokens = o->decode, .sampling = { .top_p = 1, .repetition_penalty = 1 } };
    uint64_t id;
    nb_status rc;

    for (size_t i = o->prefix; i < n; i++)
        l->ids[i] = token(stream + l->added, i, l->vocab);
    rc = nb_engine_add(l->e, &r, &id, err);
    if (rc != NB_OK)
        return rc;
    if (l->added == 0)
        l->first_id = id;
    l->start[l->added] = nb_now();
    l->added++;
    return NB_OK;
}

static nb_status take(load *l, const nb_event *ev, nb_err *err)
{
    const size_t i = (size_t)(ev->request - l->first_id);

    if (ev->kind == NB_EV_DONE) {
        if (ev->err) {
            if (err)
                *err = *ev->err;
            return ev->err->code;
        }
        l->ended++;
        return NB_OK;
    }
    if (ev->index == 0)
        l->ttft[i] = ev->times.last_token - l->start[i];
    else
        l->itl[l->n_itl++] = ev->times.last_token - l->last[i];
    l->last[i] = ev->times.last_token;
    return NB_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(double *v, size_t n, size_t p)
{
    qsort(v, n, sizeof *v, ascending);
    return n ? v[(n - 1) * p / 100] : 0;
}

static nb_status run_load(load *l, uint64_t stream, nb_streams_load *out, nb_err *err)
{
    const nb_streams_opts *o = l->o;
    const double t0 = nb_now();
    nb_engine_stats before, after;
    nb_status rc = NB_OK;

    l->added = l->ended = l->n_itl = 0;
    nb_engine_stats_get(l->e, &before);
    while (rc == NB_OK && l->ended < o->requests) {
        const nb_event *ev;
        size_t n = 0;
        while (rc == NB_OK && l->added < o->requests && l->added - l->ended < o->streams)
            rc = add(l, stream, err);
        if (rc == NB_OK && nb_cancelled(o->host))
            rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped after %zu of %zu requests", l->ended, o->requests);
        if (rc == NB_OK)
            rc = nb_engine_step(l->e, &ev, &n, err);
        for (size_t i = 0; rc == NB_OK && i < n; i++)
            rc = take(l, &ev[i], err);
    }
    nb_engine_stats_get(l->e, &after);
    out->seconds = nb_now() - t0;
    out->out_tok_s = (double)(o->requests * o->decode) / out->seconds;
    out->ttft_p50 = percentile(l->ttft, rc == NB_OK ? o->requests : 0, 50);
    out->ttft_p99 = percentile(l->ttft, rc == NB_OK ? o->requests : 0, 99);
    out->itl_p50 = percentile(l->itl, l->n_itl, 50);
    out->itl_p99 = percentile(l->itl, l->n_itl, 99);
    out->exec_s = after.exec_s - before.exec_s;
    out->engine_s = after.engine_s - before.engine_s;
    out->hit_share = (double)(after.hit_tokens - before.hit_tokens) / (double)(o->requests * (o->prefix + o->prompt));
    out->steps = after.steps - before.steps;
    out->preemptions = after.preemptions - before.preemptions;
    return rc;
}

nb_status nb_streams_run(nb_model *m, const nb_streams_opts *o, nb_streams *out, nb_err *err)
{
    const size_t context = o->prefix + o->prompt + o->decode;
    const nb_engine_opts eo = { .pool = o->pool,
                                .context = context,
                                .max_seqs = o->streams,
                                .max_batched = o->max_batched               ? o->max_batched
                                               : o->streams + NB_PAGE > 512 ? o->streams + NB_PAGE
                                                                            : 512,
                                .step_ms = o->step_ms,
                                .kv_dtype = o->kv_dtype,
                                .exact_fp32 = o->exact_fp32,
                                .a8 = o->a8 };
    load l = { .o = o, .vocab = nb_model_config(m)->vocab };
    nb_status rc;

    memset(out, 0, sizeof *out);
    if (o->streams == 0 || o->requests == 0 || o->prefix + o->prompt == 0 || o->decode == 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "streams, requests, prompt and answer must be at least 1");
    rc = nb_engine_open(m, &eo, &l.e, err);
    if (rc != NB_OK)
        return rc;
    l.ids = nb_alloc_array(o->prefix + o->prompt, sizeof *l.ids);
    l.start = nb_calloc(o->requests, sizeof *l.start);
    l.last = nb_calloc(o->requests, sizeof *l.last);
    l.ttft = nb_calloc(o->requests, sizeof *l.ttft);
    l.itl = nb_calloc(o->requests * o->decode, sizeof *l.itl);
    if (!l.ids || !l.start || !l.last || !l.ttft || !l.itl)
        rc = nb_enomem(err, "the times");
    for (size_t i = 0; rc == NB_OK && i < o->prefix; i++)
        l.ids[i] = token(0, i, l.vocab);
    if (rc == NB_OK)
        rc = nb_engine_warm(l.e, err);
    if (rc == NB_OK)
        rc = run_load(&l, 1, &out->cold, err);
    if (rc == NB_OK)
        rc = run_load(&l, 1 + o->requests, &out->warm, err);
    out->kv_bytes = nb_engine_kv_bytes(l.e);
    nb_engine_close(l.e);
    nb_free(l.ids);
    nb_free(l.start);
    nb_free(l.last);
    nb_free(l.ttft);
    nb_free(l.itl);
    return rc;
}
