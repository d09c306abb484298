/* solve_gptq.h - GPTQ for one linear: rounding with the error of each input passed on to the inputs still to come.
 *
 *   H = second moments of the inputs (any factor), dead inputs set to 1, damped by a share of its mean diagonal
 *   H⁻¹ = Uᵀ U;  for each input i in order:  q = grid(w_i),  e = (w_i - q) / U_ii,  w_j -= e U_ij for all j > i
 *
 * Two steps, because linears that read one input share the first: nb_gptq_factor_make (order, damping, U) and nb_gptq_solve.
 * Statistics in float64, weights and U in float32. Outputs are independent of each other and split over the pool;
 * nothing depends on the thread count. The grid is not that of solve_rtn.h: it always holds zero, and symmetric grids are
 * max|w| / 7.5 wide. Source: spec quantizers 9; Frantar et al., "GPTQ" (2022); recorded values from GPTQModel 7.7.0. */
#ifndef NB_SOLVE_SOLVE_GPTQ_H
#define NB_SOLVE_SOLVE_GPTQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "tensor/qlin.h"

/* In which order inputs are rounded. */
typedef enum nb_gptq_order {
    NB_GPTQ_NATURAL,
    NB_GPTQ_DESC, /* by falling diagonal of H, groups formed in that order: the result needs g_idx (unless static) */
    NB_GPTQ_GAR   /* the same inside each group, and whole groups by their largest diagonal: natural groups, no g_idx */
} nb_gptq_order;

typedef struct nb_gptq_opts {
    size_t g; /* group size; k itself: one group per output. Need not divide k */
    unsigned bits;
    bool sym;
    nb_gptq_order order;
    bool static_groups; /* grids of all groups from the weights as they were; with NB_GPTQ_DESC no g_idx is needed then */
    double damp;        /* first share of the mean diagonal, 0.05 */
    double mse;         /* exponent of the error that shrinking a grid must lower (2.4); 0: no search */
    bool compat;        /* as the references: blocks of 128, grids blind to corrections inside the block, and a symmetric
                           group without negative weights keeps the narrow grid */
} nb_gptq_opts;

/* What depends on the inputs alone. */
typedef struct nb_gptq_factor {
    size_t k;
    uint32_t *order; /* [k] input processed at step i               */
    uint8_t *dead;   /* [k] inputs that were always 0: their weights become 0 */
    float *u;        /* [k][k] in processing order                 */
    double damp;     /* share that was needed; 1 when failed       */
    bool failed;     /* no damping helps: plain rounding            */
    size_t n_dead;
} nb_gptq_factor;

/* h[k][k]: full symmetric second moments; overwritten. NB_ENOMEM is the only failure. Caller clears f. */
nb_status nb_gptq_factor_make(nb_gptq_factor *f, const nb_gptq_opts *o, double *h, size_t k, nb_pool *pool, nb_err *err);
/* What that left in h as the moments again, as float32 in the first half of the same memory; diag[k]: their diagonal, which is not in h
 * any more. f has not failed. */
nb_status nb_gptq_moments_back(const nb_gptq_factor *f, double *h, const double *diag, nb_pool *pool, nb_err *err);
void nb_gptq_factor_clear(nb_gptq_factor *f); /* a zeroed one is fine */

typedef struct nb_gptq_result {
    double loss;         /* Σ e²/2 over all weights, in units of H          */
    bool fallback;       /* rounded plainly: factor failed, or the errors grew beyond float32 */
    double *column_loss; /* [k] in processing order; NULL: not wanted       */
} nb_gptq_result;

/* Quantize w[q->n][q->k] into q, initialised for o->g and o->bits, scales rounded to q->scale_dtype before they are used
 * (F32: not rounded, as the references). g_idx is allocated where groups do not follow the inputs.
 * NB_ENUMERIC "num.scale_range" when a scale becomes 0 or Inf. */
nb_status nb_gptq_solve(const nb_gptq_factor *f, const nb_gptq_opts *o, const float *w, nb_qlin *q, nb_gptq_result *res, nb_pool *pool,
                        nb_err *err);

#endif
