/* speed.h - how fast a bound model decodes and reads prompts, beside the read bandwidth of the same run.
 *
 * Rounds are interleaved (read, prefill, decode; read, prefill, ...) and medians are reported: the machine may be shared. */
#ifndef NB_JOB_SPEED_H
#define NB_JOB_SPEED_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "model/model.h"

enum { NB_SPEED_MAX = 64 };

typedef struct nb_speed_opts {
    size_t prompt;         /* tokens of the prefill test                                            */
    size_t decode;         /* tokens of each decode test                                            */
    const size_t *depths;  /* [n_depths] tokens already cached when decoding starts                 */
    const size_t *batches; /* [n_batches] sequences that decode together                            */
    size_t n_depths, n_batches;
    int rounds;          /* at least 1; 5 for figures one may quote */
    bool exact_fp32, a8; /* activations of quantized linears: nb_exec_opts */
    nb_dtype kv_dtype;   /* NONE: F16 */
    nb_pool *pool;
    bool tune; /* decode a small model on the threads that serve it best, as run and serve do */
    const nb_host *host;
} nb_speed_opts;

/* A figure over the rounds. */
typedef struct nb_spread {
    double median, min, max;
} nb_spread;

typedef struct nb_speed_row {
    size_t batch, depth;
    nb_spread tok_s;      /* of all sequences together */
    double share_of_read; /* step_bytes * steps/s / read bytes/s */
} nb_speed_row;

typedef struct nb_speed {
    nb_spread read_bytes_s; /* plain reads of 512 MB with every thread, of a round the best of three */
    nb_spread prefill_tok_s;
    nb_speed_row decode[2 * NB_SPEED_MAX]; /* every depth with the first batch, then every other batch at the first depth */
    size_t n_decode;
    uint64_t step_bytes; /* weight bytes of one decode step of one sequence */
    int rounds;
    int few_threads; /* nb_exec_few */
} nb_speed;

/* Token ids are a fixed pseudo-random sequence. Cached tokens beyond the first 512 are copies of those: keys cost the same whatever
 * they hold, and so do recurrent states. The caller owns m, which is used by this call alone. NB_EARG
 * "bench.sizes" for sizes of 0, too many of them, or beyond the model's context. */
nb_status nb_speed_run(nb_model *m, const nb_speed_opts *o, nb_speed *out, nb_err *err);

#endif
