/* engine.h - requests in, token events out. One model, one queue, page numbers; token ids only, no strings, no threads inside.
 *
 * All calls from one thread. kv.c hands out pages, sampler.c turns logits into ids (seeded per request), engine.c steps. */
#ifndef NB_ENGINE_ENGINE_H
#define NB_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "model/exec.h"

typedef struct nb_sampling {
    float temperature;        /* 0: greedy                         */
    int top_k;                /* 0: off                            */
    float top_p, min_p;       /* 1 and 0: off                      */
    float repetition_penalty; /* 1: off                            */
    uint64_t seed;
} nb_sampling;

typedef struct nb_request {
    const int32_t *ids;       /* prompt, copied                    */
    size_t n_ids;
    size_t max_tokens;
    nb_sampling sampling;
    const int32_t *stop_ids;  /* end-of-sequence ids, copied       */
    size_t n_stop_ids;
} nb_request;

typedef enum nb_event_kind { NB_EV_TOKEN, NB_EV_DONE } nb_event_kind;
typedef enum nb_finish { NB_FINISH_NONE, NB_FINISH_STOP, NB_FINISH_LENGTH, NB_FINISH_CANCEL } nb_finish;
typedef struct nb_event {
    nb_event_kind kind;
    uint64_t request;
    int32_t id;
    nb_finish finish;
} nb_event;

typedef struct nb_engine nb_engine;
typedef struct nb_engine_opts {
    nb_pool *pool;
    size_t context;     /* longest prompt + answer; 0: the model's, at most what memory allows */
    size_t max_batch;   /* sequences decoding together, 0: 1 */
    size_t chunk;       /* prompt tokens per step, 0: 512    */
    nb_dtype kv_dtype;  /* NONE: F16 */
    bool exact_fp32;
} nb_engine_opts;

nb_status nb_engine_open(nb_model *m, const nb_engine_opts *o, nb_engine **out, nb_err *err);
void nb_engine_close(nb_engine *e);
nb_status nb_engine_add(nb_engine *e, const nb_request *r, uint64_t *id, nb_err *err); /* NB_ELIMIT when it cannot ever fit */
void nb_engine_cancel(nb_engine *e, uint64_t id);
/* One step: at most one event per running request. *n 0 and nb_engine_idle(): nothing to do. */
nb_status nb_engine_step(nb_engine *e, nb_event *ev, size_t cap, size_t *n, nb_err *err);
bool nb_engine_idle(const nb_engine *e);
uint64_t nb_engine_kv_bytes(const nb_engine *e);

/* sampler.c: one id from logits[v]. history: ids seen so far (repetition penalty). step: index of this token in its answer;
 * (seed, step) fix the random number. logits may be changed. */
int32_t nb_sample(float *logits, size_t v, const nb_sampling *s, const int32_t *history, size_t n_history, uint64_t step);
/* Index of the largest value, the first of equals. */
int32_t nb_argmax(const float *logits, size_t v);

#endif
