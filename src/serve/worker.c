/* worker.c - queues between the threads, and the loop of the engine's. */
#include "serve/worker.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sha256.h"
#include "base/thread.h"
#include "serve/linger.h"
#include "serve/response.h"

enum { MAX_PREPARE = 4, MAX_RESETS = 16, MAX_JOBS = 64 };

/* Work for a preparing thread that is no request for text. */
typedef struct job {
    void (*run)(void *user, nb_http_req *r);
    void *user;
    nb_http_req *r;
} job;

/* Where the events of an engine request go. */
typedef struct owner {
    uint64_t id;
    nb_gen *g;
    size_t p; /* its prompt */
} owner;

typedef struct queue {
    nb_gen *head, **tail;
} queue;

struct nb_worker {
    nb_worker_opts o;
    pthread_t engine_thread, prepare[MAX_PREPARE];
    unsigned n_prepare;
    bool engine_runs;

    pthread_mutex_t lock; /* down to the next blank line */
    pthread_cond_t to_prepare, to_engine;
    queue raw, ready;
    size_t n_raw, n_pending; /* requests that the engine does not know yet; all there are */
    nb_gen *all;
    nb_http_req *resets[MAX_RESETS];
    size_t n_resets;
    job jobs[MAX_JOBS]; /* last in, first out */
    size_t n_jobs;
    nb_engine_stats stats;
    nb_linger linger;
    double beat, drain_s;
    bool busy, cancels, quit, broken;

    nb_gen *running; /* the engine thread's */
    owner *owners;   /* by rising id        */
    size_t n_owners, cap_owners;
};

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

static void finish(nb_worker *w, nb_gen *g)
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

/* Answer a request that the engine does not have. */
static void refuse(nb_worker *w, nb_gen *g)
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
    finish(w, g);
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
                refuse(w, g);
            else
                finish(w, g);
            continue;
        }
        pthread_mutex_lock(&w->lock);
        push(&w->ready, g);
        nb_linger_came(&w->linger, nb_now());
        wake_engine(w);
        pthread_mutex_unlock(&w->lock);
    }
}

/* ---- the engine thread ---- */

static bool remember(nb_worker *w, uint64_t id, nb_gen *g, size_t p)
{
    if (w->n_owners == w->cap_owners) {
        const size_t cap = w->cap_owners ? 2 * w->cap_owners : 64;
        owner *more = nb_realloc(w->owners, cap * sizeof *more);

        if (!more)
            return false;
        w->owners = more;
        w->cap_owners = cap;
    }
    w->owners[w->n_owners++] = (owner){ id, g, p };
    return true;
}

static owner *owner_of(nb_worker *w, uint64_t id)
{
    size_t lo = 0, hi = w->n_owners;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (w->owners[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < w->n_owners && w->owners[lo].id == id ? &w->owners[lo] : NULL;
}

static void forget(nb_worker *w, const nb_gen *g)
{
    size_t n = 0;

    for (size_t i = 0; i < w->n_owners; i++)
        if (w->owners[i].g != g)
            w->owners[n++] = w->owners[i];
    w->n_owners = n;
}

static void cancel_in_engine(nb_worker *w, const nb_gen *g)
{
    for (size_t i = 0; i < w->n_owners; i++)
        if (w->owners[i].g == g)
            nb_engine_cancel(w->o.engine, w->owners[i].id);
}

static void refuse_add(nb_gen *g, const nb_err *err)
{
    if (err->code == NB_EBUSY)
        nb_refuse(&g->refusal, 429, "queue_full", NULL, "The queue is full; try again in a moment.");
    else if (err->code == NB_ELIMIT)
        nb_refuse_err(&g->refusal, 400, "context_length_exceeded", g->ask.chat ? "messages" : "prompt", err);
    else
        nb_refuse_err(&g->refusal, err->code == NB_EARG ? 400 : 500, err->code == NB_EARG ? "invalid_value" : "internal_error", NULL, err);
}

/* Whose cached blocks this request may share (KV-14). */
static void set_namespace(const nb_worker *w, nb_gen *g)
{
    const char *salt = g->ask.salt ? g->ask.salt : g->ask.cache_key;
    uint64_t unique = 0;

    if (w->o.scope == NB_SCOPE_REQUEST && !salt) {
        nb_random_bytes(&unique, sizeof unique);
        nb_engine_namespace(w->o.engine, w->o.scope, &unique, sizeof unique, NULL, 0, g->ns);
        return;
    }
    nb_engine_namespace(w->o.engine, w->o.scope, w->o.scope == NB_SCOPE_KEY ? &g->key : NULL,
                        w->o.scope == NB_SCOPE_KEY ? sizeof g->key : 0, salt, salt ? strlen(salt) : 0, g->ns);
}

/* Put a prepared request into the engine's queue, and begin its answer. */
static void start(nb_worker *w, nb_gen *g)
{
    size_t p = 0;

    set_namespace(w, g);
    if (!g->ask.has_seed) {
        nb_random_bytes(&g->ask.sampling.seed, sizeof g->ask.sampling.seed);
        g->ask.sampling.seed &= INT64_MAX; /* what the answer tells can be sent back as it is */
    }
    for (; p < g->n_prompts; p++) {
        nb_err err = { 0 };
        nb_request r;

        nb_gen_request(g, p, &r);
        r.queue_timeout = w->o.queue_timeout;
        r.timeout = w->o.request_timeout;
        if (nb_engine_add(w->o.engine, &r, &g->engine_id[p], &err) != NB_OK) {
            refuse_add(g, &err);
            break;
        }
        if (!remember(w, g->engine_id[p], g, p)) {
            nb_engine_cancel(w->o.engine, g->engine_id[p]); /* its events find no owner */
            nb_refuse_memory(&g->refusal);
            break;
        }
    }
    if (g->refusal.status) {
        cancel_in_engine(w, g);
        forget(w, g); /* what they still report goes nowhere */
        refuse(w, g);
        return;
    }
    g->told = true;
    g->phase = NB_GEN_QUEUED;
    g->next = w->running;
    w->running = g;
    nb_response_begin(g);
}

/* Clients that have left, requests others want ended, and answers that ran out of memory: the engine drops them. */
static void cancel_some(nb_worker *w)
{
    bool cancels;

    nb_http_sweep(w->o.http);
    pthread_mutex_lock(&w->lock);
    cancels = w->cancels;
    w->cancels = false;
    pthread_mutex_unlock(&w->lock);
    for (nb_gen *g = w->running; g; g = g->next) {
        bool cancel = false;

        if (cancels) {
            pthread_mutex_lock(&w->lock);
            cancel = g->cancel;
            g->cancel = false;
            pthread_mutex_unlock(&w->lock);
        }
        if (cancel || nb_http_gone(g->http) || (g->phase == NB_GEN_DONE && g->n_done < g->n_choices))
            cancel_in_engine(w, g);
    }
}

static void on_event(nb_worker *w, const nb_event *ev)
{
    owner *o = owner_of(w, ev->request);
    nb_choice *c;

    if (!o)
        return;
    c = &o->g->choices[o->p * o->g->ask.n + ev->choice];
    if (ev->kind == NB_EV_TOKEN) {
        if (c->last_at > 0)
            nb_metrics_observe(w->o.metrics, NB_H_ITL, ev->times.last_token - c->last_at);
        else if (o->g->times.first_token == 0)
            nb_metrics_observe(w->o.metrics, NB_H_TTFT, ev->times.last_token - o->g->arrival);
        c->last_at = ev->times.last_token;
        o->g->phase = o->g->phase == NB_GEN_QUEUED ? NB_GEN_RUNNING : o->g->phase;
    }
    if (nb_gen_event(o->g, o->p, ev))
        nb_engine_stop(w->o.engine, ev->request, ev->choice);
    o->g->news = true;
}

/* Write what is new, and let go of requests that are over. Returns how many those are. */
static size_t write_some(nb_worker *w)
{
    const double now = nb_now();
    nb_gen **link = &w->running;
    size_t n_ended = 0;

    while (*link) {
        nb_gen *g = *link;

        if (g->news)
            nb_response_progress(g);
        else
            nb_response_keep_alive(g, now);
        g->news = false;
        if (g->n_done == g->n_choices) {
            *link = g->next;
            forget(w, g);
            finish(w, g);
            n_ended++;
        } else {
            link = &g->next;
        }
    }
    return n_ended;
}

/* The engine cannot go on: everybody is told. */
static void fail_all(nb_worker *w, const nb_err *err)
{
    char line[NB_ERR_CAP];

    nb_err_format(err, line, sizeof line);
    nb_log(w->o.host, NB_LOG_ERROR, "%s", line);
    while (w->running) {
        nb_gen *g = w->running;

        w->running = g->next;
        nb_refuse(&g->refusal, 500, "internal_error", NULL, "The engine stopped; the server must be restarted.");
        nb_response_progress(g);
        forget(w, g);
        finish(w, g);
    }
    pthread_mutex_lock(&w->lock);
    w->broken = true;
    pthread_mutex_unlock(&w->lock);
}

static void step(nb_worker *w)
{
    const nb_event *ev;
    nb_err err = { 0 };
    size_t n, n_ended;
    nb_engine_stats s;
    uint64_t steps;

    nb_engine_stats_get(w->o.engine, &s);
    steps = s.steps;
    if (nb_engine_step(w->o.engine, &ev, &n, &err) != NB_OK) {
        fail_all(w, &err);
        return;
    }
    for (size_t i = 0; i < n; i++)
        on_event(w, &ev[i]);
    n_ended = write_some(w);
    nb_engine_stats_get(w->o.engine, &s);
    if (s.steps > steps) {
        nb_metrics_observe(w->o.metrics, NB_H_STEP, s.last_step_s);
        nb_metrics_observe(w->o.metrics, NB_H_STEP_TOKENS, (double)s.last_rows);
    }
    pthread_mutex_lock(&w->lock);
    w->stats = s;
    w->drain_s = nb_engine_drain_s(w->o.engine);
    nb_linger_step(&w->linger, n_ended, s.last_step_s, nb_now());
    pthread_mutex_unlock(&w->lock);
}

static void reset_cache(nb_worker *w, nb_http_req *r)
{
    char body[64];
    const int n = snprintf(body, sizeof body, "{\"dropped\":%zu}", nb_engine_reset_cache(w->o.engine));

    nb_http_reply(r, 200, "application/json", body, (size_t)n);
    nb_http_drop(r);
}

/* With w->lock held: clients that ask again at once come into the next step instead of waiting until it is over. */
static void linger(nb_worker *w)
{
    const double until = nb_linger_until(&w->linger);
    const struct timespec at = { .tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until))) };

    while (nb_linger_until(&w->linger) > 0 && !w->quit && !w->n_resets && !w->cancels &&
           pthread_cond_timedwait(&w->to_engine, &w->lock, &at) == 0)
        ;
}

static void *engine_main(void *arg)
{
    nb_worker *w = arg;

    for (;;) {
        nb_http_req *resets[MAX_RESETS];
        size_t n_resets;
        nb_gen *fresh, *next;
        size_t n_fresh = 0;
        bool quit, broken;

        pthread_mutex_lock(&w->lock);
        while (!w->ready.head && !w->n_resets && !w->quit && (w->broken || nb_engine_idle(w->o.engine))) {
            w->busy = false;
            pthread_cond_wait(&w->to_engine, &w->lock);
        }
        linger(w);
        w->busy = true;
        w->beat = nb_now();
        fresh = w->ready.head;
        w->ready = (queue){ NULL, &w->ready.head };
        n_resets = w->n_resets;
        memcpy(resets, w->resets, sizeof resets);
        w->n_resets = 0;
        quit = w->quit;
        broken = w->broken;
        pthread_mutex_unlock(&w->lock);

        for (size_t i = 0; i < n_resets; i++)
            reset_cache(w, resets[i]);
        for (; fresh; fresh = next) {
            next = fresh->next;
            n_fresh++;
            if (quit || broken) {
                nb_refuse(&fresh->refusal, 503, "shutting_down", NULL, "The server is going down.");
                refuse(w, fresh);
            } else {
                start(w, fresh);
            }
        }
        if (n_fresh) { /* from here on the engine counts them */
            pthread_mutex_lock(&w->lock);
            w->n_raw -= n_fresh;
            nb_engine_stats_get(w->o.engine, &w->stats);
            pthread_mutex_unlock(&w->lock);
        }
        if (quit) {
            for (const nb_gen *g = w->running; g; g = g->next)
                cancel_in_engine(w, g);
            if (!broken && w->running)
                step(w); /* the cancellations come out as events */
            return NULL;
        }
        cancel_some(w);
        if (!broken && !nb_engine_idle(w->o.engine))
            step(w);
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
        refuse(w, g);
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
    if (rc == NB_OK && nb_thread_start(&w->engine_thread, "nb-engine", engine_main, w) != 0)
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
        refuse(w, g);
    }
    while (w->n_jobs) {
        nb_http_error(w->jobs[--w->n_jobs].r, 503, "shutting_down", NULL, "The server is going down.");
        nb_http_drop(w->jobs[w->n_jobs].r);
    }
    while ((g = w->running)) {
        w->running = g->next;
        nb_refuse(&g->refusal, 503, "shutting_down", NULL, "The server is going down.");
        nb_response_progress(g);
        finish(w, g);
    }
    nb_engine_close(w->o.engine);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->to_prepare);
    pthread_cond_destroy(&w->to_engine);
    nb_free(w->owners);
    nb_free(w);
}
