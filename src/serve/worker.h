/* worker.h - the thread that owns the engine, and the threads that prepare requests for it.
 *
 * A request goes: I/O thread (nb_worker_submit) -> preparing thread (template, tokenizer, constraint) -> engine thread (queue,
 * steps, text, answer). Only the engine thread touches the engine; the others leave notes in its inbox. Clients that have left are
 * noticed before every step. Source: spec serving 1 (ENG-1), 4.3, hardening 9 (OV). All calls but open and close from any thread. */
#ifndef NB_SERVE_WORKER_H
#define NB_SERVE_WORKER_H

#include "base/log.h"
#include "serve/gen.h"
#include "serve/metrics.h"

typedef struct nb_worker nb_worker;

typedef struct nb_worker_opts {
    nb_engine *engine; /* the worker's from here on, also on failure */
    nb_http *http;
    nb_metrics *metrics;
    unsigned prepare_threads;
    size_t max_queued;                     /* requests not yet running, those being prepared included */
    double queue_timeout, request_timeout; /* seconds, 0: none */
    nb_cache_scope scope;
    const nb_host *host; /* a line per finished request; may be NULL */
} nb_worker_opts;

nb_status nb_worker_open(const nb_worker_opts *o, nb_worker **out, nb_err *err);
/* End every request (finish "abort"), then the threads, then the engine. */
void nb_worker_close(nb_worker *w);

/* Take over g. Refuses it in its HTTP answer when the queue is full. */
void nb_worker_submit(nb_worker *w, nb_gen *g);
/* Run job(user, r) on a preparing thread; r is kept until it returns. */
void nb_worker_job(nb_worker *w, void (*job)(void *user, nb_http_req *r), void *user, nb_http_req *r);
/* End what is running under this id (NULL: everything), of this API key (0: of all). Returns how many requests were told. */
size_t nb_worker_abort(nb_worker *w, const char *id, uint64_t key);
/* Drop the prefix cache at the next step border; r is answered with {"dropped": N}. */
void nb_worker_reset_cache(nb_worker *w, nb_http_req *r);
/* Requests between submit and the end of their answer. */
size_t nb_worker_pending(nb_worker *w);
/* The engine's figures after its last step; *age is the time since the engine thread last showed life, 0 while it has nothing to do. */
void nb_worker_stats(nb_worker *w, nb_engine_stats *s, double *age);
/* Milliseconds after which a refused client should come again, 1,000 to 37,500: what the queue needs, spread by a quarter so that those
 * refused together do not come back together. */
unsigned nb_worker_retry_ms(nb_worker *w);

#endif
