/* answer.h - one prompt to its answer: the engine driven to the end, ids turned into whole characters, stop strings cut.
 *
 * What `nibble run` and nibble_generate share. Text is handed out as it comes, except for an end that may still become a
 * stop string. All calls from the engine's thread. Source: spec serving 5 and 6. */
#ifndef NB_JOB_ANSWER_H
#define NB_JOB_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "io/io.h"
#include "model/config.h"
#include "text/tokenizer.h"

enum { NB_ANSWER_STOP_IDS = 32 };

/* What a model says about answers when the user does not (generation_config.json, SMP-1). */
typedef struct nb_answer_defaults {
    nb_sampling sampling;                 /* the plain distribution where the file is silent; greedy when do_sample is false; seed 0 */
    int32_t stop_ids[NB_ANSWER_STOP_IDS]; /* end-of-sequence ids of both files */
    size_t n_stop_ids;
    char ignored[160]; /* values out of range, such as "top_p -3, temperature nan", which do not count (CF-24); "" */
} nb_answer_defaults;

/* Read them. A missing file is fine; a malformed one is NB_EFORMAT. */
nb_status nb_answer_defaults_read(nb_hfdir *dir, const nb_config *c, nb_answer_defaults *out, nb_err *err);

typedef struct nb_answer_opts {
    const int32_t *ids; /* prompt */
    size_t n_ids;
    size_t max_tokens; /* 0: what the context holds */
    nb_sampling sampling;
    const int32_t *stop_ids;
    size_t n_stop_ids;
    const char *const *stop; /* strings, none empty: the answer ends before the one that is complete first */
    size_t n_stop;
    int (*piece)(void *user, const char *text, size_t n); /* whole characters; not 0: stop. May be NULL */
    void *user;
    const nb_host *host; /* cancelled: the answer ends with NB_ECANCELED */
} nb_answer_opts;

typedef struct nb_answer {
    nb_buf text;     /* the whole answer; the caller clears it */
    size_t n_tokens; /* ids of the answer, the end-of-sequence id not counted */
    nb_finish finish;
    double prompt_s, answer_s; /* until the first token, from there to the end */
} nb_answer;

/* Answer one prompt with an idle engine. *out is set in every case. Errors: those of nb_engine_add (the engine stays good);
 * NB_ECANCELED (it is idle again); anything else while stepping, after which the engine can only be closed. *engine_lost
 * (may be NULL) says which. */
nb_status nb_answer_run(nb_engine *e, const nb_tokenizer *t, const nb_answer_opts *o, nb_answer *out, bool *engine_lost, nb_err *err);

#endif
