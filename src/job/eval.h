/* eval.h - perplexity of models on a set of windows, and their distance from a reference model on the same ids.
 *
 * All models and the reference run side by side, a piece of a window at a time: memory is the models, one window of float32 KV
 * cache for each, two blocks of logits of at most 64 MB, and 20 bytes a position and model. Distances: KL(reference || model)
 * in nats, top-1 agreement (same most likely token) and top-5 (the reference's most likely token is among the model's five);
 * ties go to the lower id. Sums are float64 in the order of positions, whatever the threads did.
 * Intervals are 95 %, by a seeded bootstrap over documents (rows or windows where there are none; blocks of 32 positions with
 * fewer than 8 of those): documents are independent, tokens are not. */
#ifndef NB_JOB_EVAL_H
#define NB_JOB_EVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "job/eval_set.h"
#include "job/eval_stat.h"
#include "job/topk.h"
#include "model/model.h"

enum { NB_EVAL_MODELS = 16, NB_EVAL_BINS = 32, NB_EVAL_SHARES = 33 };

typedef struct nb_eval_score {
    size_t scored, positions;         /* ids with a likelihood, positions with a distance */
    nb_mean nll;                      /* nats a token  */
    nb_mean ppl;                      /* exp of nll    */
    nb_mean kl, top1, top5;           /* shares of positions; with a reference only, as all below */
    double kl_sem;                    /* standard error over positions, as the reference script states it */
    nb_mean kl_median, kl_99, kl_999; /* interpolated linearly between order statistics */
    double kl_max;
    nb_mean ppl_ratio;          /* to the reference, from paired draws */
    double word_ppl, byte_bits; /* where the set knows words and bytes, else 0 */
} nb_eval_score;

typedef struct nb_eval_model {
    nb_eval_score all, *part;        /* part[n_parts], NULL when there is only one */
    double kl_at[NB_EVAL_BINS];      /* mean over positions [max_len * i / bins, max_len * (i + 1) / bins) of a window; NaN: none */
    double nll_at[NB_EVAL_BINS];     /* the same of the likelihood */
    double kl_share[NB_EVAL_SHARES]; /* KL below which a share 1 - 2^(-i/3) of positions lies: 0, 0.21, 0.37, 0.5 ... */
} nb_eval_model;

typedef struct nb_eval {
    size_t n_models, n_parts, n_bins, max_len;
    bool has_ref, lower_bound; /* lower_bound: the reference was a top-k file, KL is over its k tokens and the rest as one */
    char drawn[48];            /* what the intervals draw: "64 windows" */
    size_t resamples;
    uint64_t seed;
    nb_eval_model ref; /* likelihoods only */
    nb_eval_model model[NB_EVAL_MODELS];
} nb_eval;

typedef struct nb_eval_opts {
    const nb_evalset *set;
    bool exact_fp32, a8; /* activations of quantized linears: nb_exec_opts */
    size_t resamples;    /* 0: 1000 */
    uint64_t seed;
    nb_pool *pool;
    const nb_host *host;
} nb_eval_opts;

/* Score `m[n]` beside `ref` or the saved `ref_topk` when not NULL. NB_EARG "eval.vocab" when vocabularies differ; NB_EFORMAT "ids.token";
 * NB_EMISMATCH "eval.topk" when the file is of other ids; NB_ENUMERIC "eval.numeric" when a logit is not finite. The caller clears. */
nb_status nb_eval_run(nb_model *const *m, size_t n, nb_model *ref, const nb_topk *ref_topk, const nb_eval_opts *o, nb_eval *out,
                      nb_err *err);
void nb_eval_clear(nb_eval *e);
/* The share of kl_share[i]. */
double nb_eval_share(size_t i);

/* Run `ref` over the set and write its k most likely tokens at every position to `path` (topk.h). A run that was stopped goes on
 * after its last whole window; what is there must be this model's to the bit (NB_EMISMATCH "eval.topk"). */
nb_status nb_eval_save(nb_model *ref, const char *path, size_t k, bool force, const nb_eval_opts *o, nb_err *err);

/* ---- parts, for tests ---- */

/* One position. p, q: logits [v] of the reference (may be NULL) and the model; next: the id that follows, SIZE_MAX: none. */
typedef struct nb_position {
    double nll, ref_nll, kl;
    size_t rank; /* of the reference's most likely token in the model, 0: the same */
} nb_position;
nb_position nb_position_of(const float *p, const float *q, size_t v, size_t next);
/* The same against a record of a top-k file; kl is the lower bound that merges all other tokens. */
nb_position nb_position_topk(const nb_topk_row *p, const float *q, size_t v, size_t next);

#endif
