/* worker_priv.h - what worker.c (queues, preparing threads, the end of requests) and worker_engine.c (the engine's thread) share. */
#ifndef NB_SERVE_WORKER_PRIV_H
#define NB_SERVE_WORKER_PRIV_H

#include <pthread.h>

#include "serve/linger.h"
#include "serve/worker.h"

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

/* A request is over: figures, log, memory. */
void nb_worker_finish(nb_worker *w, nb_gen *g);
/* Answer a request that the engine does not have with its refusal; it is over then. */
void nb_worker_refuse(nb_worker *w, nb_gen *g);
/* The engine's thread; arg is the nb_worker. */
void *nb_worker_engine_main(void *arg);

#endif
