/* worker.c - queues between the threads, preparing, and the end of requests. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "serve/worker_priv.h"
#include "serve/response.h"

static void push(queue *q, nb_gen *g)
{
    g->next = NULL;
    *q->tail = g;
    q->tail = &g->next;
}

static nb_gen *pop(queue *q)
{
    nb_gen *g = q->head;

    if (!g)
        return NULL;
    q->head = g->next;
    if (!q->head)
        q->tail = &q->head;
    return g;
}

/* With w->lock held: there is work. From now on the engine's thread must show life. */
static void wake_engine(nb_worker *w)
{
    if (!w->busy) {
        w->busy = true;
        w->beat = nb_now();
    }
    pthread_cond_signal(&w->to_engine);
}

/* ---- the end of a request ---- */

static void measure(nb_worker *w, const nb_gen *g)
{
    const nb_times *t = &g->times;
    const double now = nb_now();
    nb_metrics *m = w->o.metrics;
    size_t longest = 0;

    for (size_t i = 0; i < g->n_choices; i++) {
        nb_metrics_finished(m, nb_gen_reason(g, &g->choices[i]));
        longest = g->choices[i].n_output > longest ? g->choices[i].n_output : longest;
    }
    nb_metrics_observe(m, NB_H_E2E, now - g->arrival);
    nb_metrics_observe(m, NB_H_PROMPT_TOKENS, (double)g->n_prompt);
    nb_metrics_observe(m, NB_H_OUTPUT_TOKENS, (double)g->n_output);
    nb_metrics_observe(m, NB_H_MAX_OUTPUT_TOKENS, (double)longest);
    nb_metrics_observe(m, NB_H_PARAM_MAX_TOKENS, (double)g->max_tokens);
    nb_metrics_observe(m, NB_H_PREFILL_TOKENS, (double)(g->n_prompt - (g->n_cached < g->n_prompt ? g->n_cached : g->n_prompt)));
    nb_metrics_observe(m, NB_H_PARAM_N, (double)g->ask.n);
    if (t->scheduled > 0 && t->queued > 0)
        nb_metrics_observe(m, NB_H_QUEUE, t->scheduled - t->queued);
    if (t->first_token > 0 && t->scheduled > 0) {
        nb_metrics_observe(m, NB_H_PREFILL, t->first_token - t->scheduled);
        nb_metrics_observe(m, NB_H_DECODE, t->last_token - t->first_token);
        nb_metrics_observe(m, NB_H_INFERENCE, t->last_token - t->scheduled);
        if (longest > 1)
            nb_metrics_observe(m, NB_H_TPOT, (t->last_token - t->first_token) / (double)(longest - 1));
    }
}

static void log_line(const nb_worker *w, const nb_gen *g)
{
    const int status = g->refusal.status ? g->refusal.status : nb_http_status(g->http);
    const double now = nb_now();

    nb_log(w->o.host, NB_LOG_INFO, "%s key %llu: %d %s, prompt %zu (%zu cached), output %zu, first token %.0f ms, total %.0f ms", g->id,
           (unsigned long long)g->key, status,
           g->refusal.status       ? g->refusal.code
           : nb_http_gone(g->http) ? "client gone"
                                   : nb_gen_reason(g, &g->choices[0]),
           g->n_prompt, g->n_cached, g->n_output, g->times.first_token > 0 ? 1e3 * (g->times.first_token - g->arrival) : 0,
           1e3 * (now - g->arrival));
}

void nb_worker_finish(nb_worker *w, nb_gen *g)
{
    if (g->refusal.status)
        nb_metrics_rejected(w->o.metrics, g->refusal.code);
    if (g->n_done == g->n_choices && g->told)
        measure(w, g);
    log_line(w, g);
    pthread_mutex_lock(&w->lock);
    *g->all_prev = g->all_next;
    if (g->all_next)
        g->all_next->all_prev = g->all_prev;
    w->n_pending--;
    pthread_mutex_unlock(&w->lock);
    nb_gen_close(g);
}

void nb_worker_refuse(nb_worker *w, nb_gen *g)
{
    const nb_refusal *f = &g->refusal;
    char after[16];

    if (f->status == 429 || f->status == 503) {
        const unsigned ms = nb_worker_retry_ms(w);

        snprintf(after, sizeof after, "%u", (ms + 999) / 1000);
        nb_http_add(g->http, "Retry-After", after);
        snprintf(after, sizeof after, "%u", ms);
        nb_http_add(g->http, "retry-after-ms", after);
    }
    nb_http_error(g->http, f->status, f->code, f->param[0] ? f->param : NULL, f->message);
    nb_worker_finish(w, g);
}

/* ---- preparing ---- */

static void *prepare_main(void *arg)
{
    nb_worker *w = arg;

    for (;;) {
        nb_gen *g;
        bool cancel;

        pthread_mutex_lock(&w->lock);
        while (!w->raw.head && !w->n_jobs && !w->quit)
            pthread_cond_wait(&w->to_prepare, &w->lock);
        if (w->quit) {
            pthread_mutex_unlock(&w->lock);
            return NULL;
        }
        if (!w->raw.head) {
            const job j = w->jobs[--w->n_jobs];

            pthread_mutex_unlock(&w->lock);
            j.run(j.user, j.r);
            nb_http_drop(j.r);
            continue;
        }
        g = pop(&w->raw);
        cancel = g->cancel;
        pthread_mutex_unlock(&w->lock);
        if (cancel)
            nb_refuse(&g->refusal, 503, "shutting_down", NULL, "The server is going down.");
        if (cancel || nb_http_gone(g->http) || !nb_gen_prepare(g)) {
            pthread_mutex_lock(&w->lock);
            w->n_raw--;
            pthread_mutex_unlock(&w->lock);
            if (g->refusal.status)
                nb_worker_refuse(w, g);
            else
                nb_worker_finish(w, g);
            continue;
        }
        pthread_mutex_lock(&w->lock);
        push(&w->ready, g);
        nb_linger_came(&w->linger, nb_now());
        wake_engine(w);
        pthread_mutex_unlock(&w->lock);
    }
}

/* ---- the other threads' side ---- */

void nb_worker_submit(nb_worker *w, nb_gen *g)
{
    bool full;

    pthread_mutex_lock(&w->lock);
    g->all_next = w->all;
    g->all_prev = &w->all;
    if (w->all)
        w->all->all_prev = &g->all_next;
    w->all = g;
    w->n_pending++;
    full = w->o.max_queued && w->n_raw + w->stats.waiting + g->n_choices > w->o.max_queued && w->n_raw + w->stats.waiting > 0;
    if (!full) {
        w->n_raw++;
        push(&w->raw, g);
        pthread_cond_signal(&w->to_prepare);
    }
    pthread_mutex_unlock(&w->lock);
    if (full) {
        nb_refuse(&g->refusal, 429, "queue_full", NULL, "The queue is full; try again in a moment.");
        nb_worker_refuse(w, g);
    }
}

size_t nb_worker_abort(nb_worker *w, const char *id, uint64_t key)
{
    size_t n = 0;

    pthread_mutex_lock(&w->lock);
    for (nb_gen *g = w->all; g; g = g->all_next)
        if ((!id || strcmp(g->id, id) == 0) && (!key || g->key == key)) {
            g->cancel = true;
            n++;
        }
    w->cancels = true;
    pthread_cond_signal(&w->to_engine);
    pthread_mutex_unlock(&w->lock);
    return n;
}

void nb_worker_reset_cache(nb_worker *w, nb_http_req *r)
{
    bool full;

    nb_http_keep(r);
    pthread_mutex_lock(&w->lock);
    full = w->n_resets == MAX_RESETS || w->broken;
    if (!full)
        w->resets[w->n_resets++] = r;
    wake_engine(w);
    pthread_mutex_unlock(&w->lock);
    if (full) {
        nb_http_error(r, 503, "overloaded", NULL, "Too many of these at once; try again.");
        nb_http_drop(r);
    }
}

void nb_worker_job(nb_worker *w, void (*run)(void *user, nb_http_req *r), void *user, nb_http_req *r)
{
    bool full;

    nb_http_keep(r);
    pthread_mutex_lock(&w->lock);
    full = w->n_jobs == MAX_JOBS;
    if (!full)
        w->jobs[w->n_jobs++] = (job){ run, user, r };
    pthread_cond_signal(&w->to_prepare);
    pthread_mutex_unlock(&w->lock);
    if (full) {
        nb_http_error(r, 503, "overloaded", NULL, "Too many of these at once; try again.");
        nb_http_drop(r);
    }
}

size_t nb_worker_pending(nb_worker *w)
{
    size_t n;

    pthread_mutex_lock(&w->lock);
    n = w->n_pending;
    pthread_mutex_unlock(&w->lock);
    return n;
}

void nb_worker_stats(nb_worker *w, nb_engine_stats *s, double *age)
{
    pthread_mutex_lock(&w->lock);
    *s = w->stats;
    s->waiting += w->n_raw;
    *age = w->broken ? (double)INFINITY : w->busy ? nb_now() - w->beat : 0;
    pthread_mutex_unlock(&w->lock);
}

unsigned nb_worker_retry_ms(nb_worker *w)
{
    uint16_t random = 0;
    double s;

    pthread_mutex_lock(&w->lock);
    s = w->drain_s;
    pthread_mutex_unlock(&w->lock);
    nb_random_bytes(&random, sizeof random);
    s = s > 30 ? 30 : s > 1 ? s : 1;
    return (unsigned)(1000 * s * (1 + random / 262144.0));
}

nb_status nb_worker_open(const nb_worker_opts *o, nb_worker **out, nb_err *err)
{
    nb_worker *w = nb_calloc(1, sizeof *w);
    const unsigned n = o->prepare_threads < 1 ? 1 : o->prepare_threads > MAX_PREPARE ? MAX_PREPARE : o->prepare_threads;
    pthread_condattr_t clock;
    nb_status rc;

    *out = NULL;
    if (!w) {
        nb_engine_close(o->engine);
        return nb_enomem(err, "the engine's thread");
    }
    w->o = *o;
    nb_linger_init(&w->linger);
    w->raw.tail = &w->raw.head;
    w->ready.tail = &w->ready.head;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->to_prepare, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* nb_now() */
    pthread_cond_init(&w->to_engine, &clock);
    pthread_condattr_destroy(&clock);
    rc = nb_engine_warm(o->engine, err);
    nb_engine_stats_get(o->engine, &w->stats);
    if (rc == NB_OK && nb_thread_start(&w->engine_thread, "nb-engine", nb_worker_engine_main, w) != 0)
        rc = nb_fail(err, NB_ENOMEM, "serve.thread", "", "cannot start the engine's thread");
    w->engine_runs = rc == NB_OK;
    for (unsigned i = 0; rc == NB_OK && i < n; i++) {
        if (nb_thread_start(&w->prepare[i], "nb-prepare", prepare_main, w) != 0)
            rc = nb_fail(err, NB_ENOMEM, "serve.thread", "", "cannot start a preparing thread");
        else
            w->n_prepare++;
    }
    if (rc != NB_OK) {
        nb_worker_close(w);
        return rc;
    }
    *out = w;
    return NB_OK;
}

/* A cache that cannot be kept is no failure. */
static void save_cache(nb_worker *w)
{
    nb_err err = { 0 };
    char line[640];

    if (w->broken || nb_engine_save_cache(w->o.engine, &err) == NB_OK)
        return;
    nb_err_format(&err, line, sizeof line);
    nb_log(w->o.host, NB_LOG_WARN, "the prefix cache is not kept: %s", line);
}

void nb_worker_close(nb_worker *w)
{
    nb_gen *g;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->to_prepare);
    pthread_cond_broadcast(&w->to_engine);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_prepare; i++)
        pthread_join(w->prepare[i], NULL);
    if (w->engine_runs)
        pthread_join(w->engine_thread, NULL);
    while ((g = pop(&w->raw)) || (g = pop(&w->ready))) {
        nb_refuse(&g->refusal, 503, "shutting_down", NULL, "The server is going down.");
        nb_worker_refuse(w, g);
    }
    while (w->n_jobs) {
        nb_http_error(w->jobs[--w->n_jobs].r, 503, "shutting_down", NULL, "The server is going down.");
        nb_http_drop(w->jobs[w->n_jobs].r);
    }
    while ((g = w->running)) {
        w->running = g->next;
        nb_refuse(&g->refusal, 503, "shutting_down", NULL, "The server is going down.");
        nb_response_progress(g);
        nb_worker_finish(w, g);
    }
    save_cache(w);
    nb_engine_close(w->o.engine);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->to_prepare);
    pthread_cond_destroy(&w->to_engine);
    nb_free(w->owners);
    nb_free(w);
}
