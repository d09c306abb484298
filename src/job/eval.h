/* eval.h - perplexity of a model on fixed ids, and its distance from a reference model on the same ids.
 *
 * Protocol: every row is an independent sequence from position 0; the negative log likelihood of ids 1..len-1 of each row;
 * KL(reference || model) in nats and top-1 agreement at every position. float32 KV cache; log-softmax in float64.
 * Intervals are 95 % from the spread of the rows' means (rows are independent, tokens are not); with fewer than 8 rows from
 * the spread of the positions. The 99.9th percentile interpolates linearly between order statistics. */
#ifndef NB_JOB_EVAL_H
#define NB_JOB_EVAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "job/ids.h"
#include "model/model.h"

typedef struct nb_mean {
    double mean, ci95; /* half width */
} nb_mean;

typedef struct nb_eval {
    size_t rows, len, scored, positions; /* scored: ids with a likelihood */
    nb_mean nll;                         /* nats a token                  */
    double ppl, ppl_lo, ppl_hi;          /* exp of nll and of its interval */
    bool has_ref;
    double ref_ppl;
    nb_mean kl, top1; /* top1: share of positions      */
    double kl_sem;    /* standard error over positions, as the reference script states it */
    double kl_999, kl_max;
} nb_eval;

typedef struct nb_eval_opts {
    const nb_idrows *ids;
    bool exact_fp32;
    nb_pool *pool;
    const nb_host *host;
} nb_eval_opts;

/* Score `m`, beside `ref` when not NULL (vocabularies must be equal: NB_EARG "eval.vocab"). NB_ENUMERIC "eval.numeric" when a
 * logit is not finite. */
nb_status nb_eval_run(nb_model *m, nb_model *ref, const nb_eval_opts *o, nb_eval *out, nb_err *err);

/* ---- parts, for tests ---- */

/* eval_ppl.c: log of the sum of exp(x[v]), in float64. */
double nb_log_sum_exp(const float *x, size_t v);
nb_mean nb_mean_of(const double *v, size_t n, const size_t *row_len, size_t n_rows); /* v: rows one after another */
/* eval_kl.c: sum of p log(p/q) over v, p and q from logits. Never below -1e-9. */
double nb_kl_of(const float *p, const float *q, size_t v);
double nb_quantile(double *sorted, size_t n, double at); /* sorted ascending */

#endif
