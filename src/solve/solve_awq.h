/* solve_awq.h - activation-aware scales and clipping for one scaling group or one linear; matrices in, matrices out.
 *
 * Activations x[t][k], weights w[n][k], both float32; statistics and losses are summed in float64 in a fixed order, so
 * that no result depends on the thread count. The walk through the model (captures, folding, replay) is job/quantize.c.
 * Source: spec quantizers 3.2, 3.3, 3.6; GPTQModel 7.7.0. */
#ifndef NB_SOLVE_SOLVE_AWQ_H
#define NB_SOLVE_SOLVE_AWQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "solve/solve_rtn.h"

enum { NB_AWQ_RATIOS = 20, NB_AWQ_CLIPS = 10, NB_AWQ_MAX_CLIPS = 100 };

/* sum[k] += |x[t][k]| over m tokens. Divide by the number of tokens for x_mean. */
void nb_awq_xsum(nb_pool *pool, const float *x, size_t ldx, size_t m, size_t k, double *sum);
/* sum[k] += |w[n][k]| / (max |w[n, group of k]| + 1e-6) over n rows. Divide by all rows of the group for w_mean. */
void nb_awq_wsum(nb_pool *pool, const nb_grid *grid, const float *w, size_t n, size_t k, double *sum);

/* Candidate scales for one ratio: duo x^r / (w^(1-r) + 1e-4), plain x^r, normalised by sqrt(max * min); s[k] is 1 where
 * the result is NaN or infinite. */
void nb_awq_scales(const float *x_mean, const float *w_mean, size_t k, double ratio, bool duo, float *s);

/* Mean squared output error of the candidate scales s[k]; NaN or Inf is allowed and never wins. */
typedef nb_status nb_awq_eval_fn(void *user, const float *s, double *loss, nb_err *err);

typedef struct nb_awq_best {
    int index; /* of the ratio index/20, -1 when no loss was finite */
    double loss;
    double losses[NB_AWQ_RATIOS];
} nb_awq_best;

/* Try ratios 0, 0.05 ... 0.95, keep the first minimum; s[k] gets its scales (1 when index is -1). Fails only when eval does. */
nb_status nb_awq_search(const float *x_mean, const float *w_mean, size_t k, bool duo, nb_awq_eval_fn *eval, void *user, nb_awq_best *best,
                        float *s, nb_err *err);

/* Loss of one linear inspected alone, from the second moments c[k][k] of its input (mean over tokens):
 * mean over outputs of d c dᵀ with d = PseudoQuant(w s)/s - w. s NULL: no scaling. Equal to the loss over all tokens. */
nb_status nb_awq_gram_loss(nb_pool *pool, const nb_grid *grid, const float *w, const float *s, size_t n, size_t k, const float *c,
                           double *loss, nb_err *err);

/* Clip search and clamp, in place. Candidate i of `steps` bounds a group by max|w| (1 - i/(2 steps)); the first least mean of
 * (Σ x (w' - w))² over the given tokens wins, group by group. NB_AWQ_CLIPS steps are those of the references.
 *   x      [t][ldx] inputs of this linear; divided by s[k] first unless s is NULL
 *   index  [n][k/g] winning candidate, or NULL;  errors  [steps][n][k/g], or NULL */
nb_status nb_awq_clip(nb_pool *pool, const nb_grid *grid, float *w, size_t n, size_t k, const float *x, size_t ldx, size_t t,
                      const float *s, unsigned steps, uint8_t *index, float *errors, nb_err *err);
/* The same from the second moments c[k][k] of the inputs (mean over tokens), of which groups need their own square. */
nb_status nb_awq_clip_moments(nb_pool *pool, const nb_grid *grid, float *w, size_t n, size_t k, const float *c, const float *s,
                              unsigned steps, uint8_t *index, float *errors, nb_err *err);

#endif
