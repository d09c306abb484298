/* solve_refine.h - coordinate descent on the codes of a linear that is already quantized.
 *
 * The error of an output with weights w and stored weights v on inputs with second moments H is (w - v) H (w - v)ᵀ. One code
 * at a time moves to where that is least, all others held; scales and zero points stay. Every move lowers the error of exactly what
 * is written. Source: spec quantizers 8 (in place of GSQ); Behdin et al., "QuantEase" (2023). Outputs are independent
 * and split over the pool; nothing depends on the thread count. */
#ifndef NB_SOLVE_SOLVE_REFINE_H
#define NB_SOLVE_SOLVE_REFINE_H

#include <stddef.h>

#include "base/err.h"
#include "base/pool.h"
#include "tensor/qlin.h"

typedef struct nb_refine_result {
    double before, after; /* Σ (w - v) H (w - v)ᵀ over all outputs */
    size_t moved;         /* codes that changed, those that changed again counted again */
} nb_refine_result;

/* At most `sweeps` sweeps over each output, fewer where nothing moves any more.
 *   h  [k][k] second moments, symmetric, with the damping they were solved with: without it the codes fit the samples too closely
 *   w  [n][k] what q should come close to
 * Inputs without moments keep their codes, and so does an output whose errors are not finite. NB_ENOMEM is the only failure. */
nb_status nb_refine(nb_pool *pool, unsigned sweeps, const float *h, const float *w, nb_qlin *q, nb_refine_result *res, nb_err *err);

#endif
