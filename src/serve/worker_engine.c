/* worker_engine.c - the loop of the engine's thread: requests in, steps, events to texts. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/sha256.h"
#include "serve/response.h"
#include "serve/worker_priv.h"

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
        nb_worker_refuse(w, g);
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
            nb_worker_finish(w, g);
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
        nb_worker_finish(w, g);
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

void *nb_worker_engine_main(void *arg)
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
                nb_worker_refuse(w, fresh);
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
