/* sampler.h - one row of logits to one token id, and log-probabilities.
 *
 * The order of steps is vLLM's (spec serving 5.2): constraint, [log-probabilities are of here], allowed ids, bad words, stop ids
 * before min_tokens, bias, repetition, frequency and presence penalty, greedy; or temperature, min_p, top_k, top_p, typical, draw.
 * The draw is Philox with key = seed, counter = (index, choice, 0, 0) (SMP-6): it depends on nothing else. exp is the project's
 * own, so a draw is the same on every machine. One owner at a time. */
#ifndef NB_ENGINE_SAMPLER_H
#define NB_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { NB_MAX_TOP = 20 };

typedef struct nb_sampling {
    float temperature;        /* below 1e-5: greedy; up to 0.01: taken as 0.01 */
    int top_k;                /* 0, -1: off; ties at the border are kept */
    float top_p, min_p;       /* 1 and 0: off                            */
    float repetition_penalty; /* 1: off; prompt and answer               */
    uint64_t seed;
    float presence_penalty, frequency_penalty; /* 0: off; answer only */
    float typical_p;                           /* 0 and 1: off        */
    bool late_temperature;                     /* llama.cpp's order: top_k, typical, top_p, min_p, and temperature last (SMP-3) */
} nb_sampling;

/* Values outside spec serving 5.1: NB_EARG "sample.NAME". */
nb_status nb_sampling_check(const nb_sampling *p, nb_err *err);

typedef struct nb_bias {
    int32_t id;
    float value; /* clamped to [-100, 100] */
} nb_bias;

/* The last id of a word may not follow the others. */
typedef struct nb_word {
    const int32_t *ids;
    size_t n;
} nb_word;

typedef struct nb_logprob {
    int32_t id;
    float logprob; /* natural log; -9999 for -Inf (SMP-9) */
    uint32_t rank; /* 1: the likeliest; equal ones by id  */
} nb_logprob;

/* What one draw depends on. */
typedef struct nb_draw {
    const nb_sampling *p;
    const int32_t *ids; /* prompt, then answer so far */
    size_t n_prompt, n_ids;
    uint64_t choice;
    const uint32_t *mask;    /* [(vocab + 31) / 32] bit 1: may follow; NULL: all */
    const uint32_t *allowed; /* the same                                          */
    const nb_bias *bias;
    size_t n_bias;
    const nb_word *bad_words;
    size_t n_bad_words;
    const int32_t *stop_ids; /* masked while fewer than min_tokens were drawn */
    size_t n_stop_ids, min_tokens;
    bool logprobs;
    unsigned top;
    const int32_t *named; /* these are told instead of the likeliest when n_named > 0 */
    size_t n_named;
} nb_draw;

typedef struct nb_sampler nb_sampler;
nb_status nb_sampler_open(size_t vocab, nb_sampler **out, nb_err *err);
void nb_sampler_close(nb_sampler *s);
/* logits[vocab] are changed. lp[1 + top] (or 1 + n_named) is filled when d->logprobs: the drawn token, then the others. NB_ENUMERIC
 * "sample.numeric" when a logit is NaN or +Inf, or all are -Inf (SMP-5); NB_EINTERNAL "sample.constraint" when the draw's masks leave
 * none (SO-09); then nothing was drawn. The settings were checked. */
nb_status nb_sampler_pick(nb_sampler *s, float *logits, const nb_draw *d, int32_t *out, nb_logprob *lp, nb_err *err);
/* lp[1 + n]: log-probability of `id` in a row that stays as it is, then those of the n likeliest, or of named[n] where it is not NULL;
 * the likelier first (SMP-8). NB_ENUMERIC as above. */
nb_status nb_sampler_logprobs(nb_sampler *s, const float *logits, int32_t id, const int32_t *named, size_t n, nb_logprob *lp, nb_err *err);
/* Index of the largest value, the first of equals; NaN never wins. */
int32_t nb_argmax(const float *logits, size_t v);

#endif
