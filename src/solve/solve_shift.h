/* solve_shift.h - weights moved so that, on the inputs of the model as quantized so far, they come close to what the original model
 * computes on its own inputs. The correction of GPTAQ, all of it before the first code is chosen.
 *
 *   x: inputs as quantized so far, x' those of the original model; y' - y: what the residual already lacks, where the outputs
 *   are added to it. The w that minimises |w' x' + (y' - y) - w x|² is  w' + (w' D + R) H⁻¹
 *   with  D = mean (x' - x) xᵀ,  R = mean (y' - y) xᵀ,  H = mean x xᵀ, damped.
 *
 * Only a share of the step is taken: D and R are known from the calibration rows alone. Source: spec quantizers 9.8 (there the
 * step is taken column by column); Li et al., "GPTAQ" (2025). Nothing depends on the thread count. */
#ifndef NB_SOLVE_SOLVE_SHIFT_H
#define NB_SOLVE_SOLVE_SHIFT_H

#include <stddef.h>

#include "base/err.h"
#include "base/pool.h"
#include "solve/solve_gptq.h"

/* Sums of a bᵀ over tokens. */
typedef struct nb_cross {
    size_t n, k, tokens;
    float *sum; /* [n][k] */
} nb_cross;
nb_status nb_cross_init(nb_cross *c, size_t n, size_t k, nb_err *err);
void nb_cross_clear(nb_cross *c); /* a zeroed one is fine */
/* Add m tokens: (a - b) xᵀ with a, b [m][n], x [m][k]. Products of NB_GRAM_CHUNK tokens, added in the order given. */
nb_status nb_cross_add(nb_cross *c, nb_pool *pool, const float *a, const float *b, const float *x, size_t m, nb_err *err);

/* The sums become those times H⁻¹, once for all linears that read the input. f has not failed. NB_ENOMEM is the only failure. */
nb_status nb_cross_solve(nb_cross *c, nb_pool *pool, const nb_gptq_factor *f, nb_err *err);

/* out[n][k] = w + share (w D + R) H⁻¹ with d of k x k, r of n x k, either NULL, both already times H⁻¹ (nb_cross_solve). Where R holds
 * w (x' - x) too, D is not needed. out is not w. Inputs that were always 0 keep their weights. */
void nb_shift(nb_pool *pool, const nb_gptq_factor *f, double share, const nb_cross *d, const nb_cross *r, const float *w, size_t n,
              float *out);

#endif
