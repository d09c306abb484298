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

typedef struct nb_speed_opts {
    size_t prompt; /* tokens of the prefill test                    */
    size_t decode; /* tokens of the decode test                     */
    size_t depth;  /* tokens already cached when decoding starts    */
    size_t batch;  /* sequences that decode together                */
    int rounds;    /* at least 1; 5 for figures one may quote       */
    bool exact_fp32;
    nb_dtype kv_dtype; /* NONE: F16 */
    nb_pool *pool;
    const nb_host *host;
} nb_speed_opts;

typedef struct nb_speed {
    double read_bytes_s;                /* plain reads of 512 MB with every thread, median        */
    double prefill_tok_s, decode_tok_s; /* medians; decode counts all sequences      */
    double prefill_min, prefill_max, decode_min, decode_max;
    uint64_t step_bytes; /* weight bytes of one decode step                        */
    double decode_share; /* step_bytes * decode steps/s / read_bytes_s             */
    int rounds;
} nb_speed;

/* Token ids are a fixed pseudo-random sequence. NB_EARG for sizes of 0 or beyond the model's context. */
nb_status nb_speed_run(nb_model *m, const nb_speed_opts *o, nb_speed *out, nb_err *err);

#endif
