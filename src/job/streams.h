/* streams.h - many requests through the engine at once, without HTTP: what a server could give, and what the engine itself costs.
 *
 * Every prompt has a common prefix and its own rest; `streams` of them run at any time. The load is done twice: cold, with an empty
 * prefix cache, and warm, with other rests. Answers are greedy and never end early. */
#ifndef NB_JOB_STREAMS_H
#define NB_JOB_STREAMS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "model/model.h"

typedef struct nb_streams_opts {
    size_t streams, requests;      /* at a time, in all (of each of the two loads) */
    size_t prefix, prompt, decode; /* tokens: common, own, to be drawn */
    size_t max_batched;            /* rows of a step, 0: 512 */
    double step_ms;                /* 0: no limit */
    nb_dtype kv_dtype;             /* NONE: F16 */
    bool exact_fp32, a8;           /* activations of quantized linears: nb_exec_opts */
    nb_pool *pool;
    const nb_host *host;
} nb_streams_opts;

typedef struct nb_streams_load {
    double seconds, out_tok_s;
    double ttft_p50, ttft_p99, itl_p50, itl_p99; /* seconds */
    double exec_s, engine_s;                     /* inside the model; everything else of the engine */
    double hit_share;                            /* of prompt tokens from the cache */
    uint64_t steps, preemptions;
} nb_streams_load;

typedef struct nb_streams {
    nb_streams_load cold, warm;
    uint64_t kv_bytes; /* caches and work buffers of the executor */
} nb_streams;

/* NB_EARG for sizes of 0 or beyond the model's context. */
nb_status nb_streams_run(nb_model *m, const nb_streams_opts *o, nb_streams *out, nb_err *err);

#endif
