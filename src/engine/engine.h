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
    const int32_t *ids; /* prompt, copied                    */
    size_t n_ids;
    size_t max_tokens;
    nb_sampling sampling;
    const int32_t *stop_ids; /* end-of-sequence ids, copied       */
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
    size_t context;    /* longest prompt + answer; 0: the model's, cut to what memory allows; never above the model's */
    size_t max_batch;  /* sequences decoding together, 0: 1 */
    size_t chunk;      /* prompt tokens per step, 0: 512    */
    nb_dtype kv_dtype; /* NONE: F16 */
    bool exact_fp32;
} nb_engine_opts;

nb_status nb_engine_open(nb_model *m, const nb_engine_opts *o, nb_engine **out, nb_err *err);
/* The same over any executor with n_pages pages and room for max_batch + chunk rows; the engine owns x from here on, also on
 * failure. */
nb_status nb_engine_open_exec(nb_exec *x, size_t vocab, size_t context, size_t n_pages, const nb_engine_opts *o, nb_engine **out,
                              nb_err *err);
void nb_engine_close(nb_engine *e);
nb_status nb_engine_add(nb_engine *e, const nb_request *r, uint64_t *id, nb_err *err); /* NB_ELIMIT when it cannot ever fit */
void nb_engine_cancel(nb_engine *e, uint64_t id);
size_t nb_engine_context(const nb_engine *e); /* longest prompt + answer of this engine */
/* One step: at most two events (a token, the end) per running request, so cap must be at least 2 * max_batch. *n may be 0
 * while a prompt is being read. nb_engine_idle(): nothing left to do. After an error the
 * engine can only be closed. */
nb_status nb_engine_step(nb_engine *e, nb_event *ev, size_t cap, size_t *n, nb_err *err);
bool nb_engine_idle(const nb_engine *e);
uint64_t nb_engine_kv_bytes(const nb_engine *e);
size_t nb_engine_free_pages(const nb_engine *e); /* pages nobody holds */

/* sampler.c: logits -> id. The order of steps is vLLM's (spec serving 5.2): repetition penalty, greedy or temperature,
 * min_p, top_k, top_p, draw. The draw is Philox with key = seed, counter = index of the token in its answer (SMP-6), so it
 * depends on nothing else. One owner at a time. */
typedef struct nb_sampler nb_sampler;
nb_status nb_sampler_open(size_t vocab, nb_sampler **out, nb_err *err);
void nb_sampler_close(nb_sampler *s);
/* logits[vocab] may be changed. history: ids of prompt and answer so far. NB_ENUMERIC "sample.numeric" when a logit is NaN or
 * all are -inf; NB_EARG for values outside spec serving 5.1. */
nb_status nb_sampler_pick(nb_sampler *s, float *logits, const nb_sampling *p, const int32_t *history, size_t n_history, uint64_t index,
                          int32_t *out, nb_err *err);
nb_status nb_sampling_check(const nb_sampling *p, nb_err *err);
/* Index of the largest value, the first of equals; NaN never wins. */
int32_t nb_argmax(const float *logits, size_t v);

#endif
