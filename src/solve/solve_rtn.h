/* solve_rtn.h - rounding to nearest on the AWQ grid: the grid of one group, pseudo-quantization, final quantization.
 *
 *   asym:  s = max(max w - min w, 1e-5) / maxq     z = clamp(-rne(min w / s), 0, maxq)     q = clamp(rne(w / s) + z, 0, maxq)
 *   sym:   s = max(max |w|, 1e-5) / (half - 1)     z = half                                q = clamp(rne(w / s) + z, 0, maxq)
 *
 * w / s is a division, ties go to even, and the asymmetric range is not widened to zero. Source: spec quantizers 3.1; the
 * same in AutoAWQ, llm-awq and GPTQModel. Weights are w[n][k] float32, groups run along k and g divides k. Work is
 * split by rows; nothing depends on the thread count. */
#ifndef NB_SOLVE_SOLVE_RTN_H
#define NB_SOLVE_SOLVE_RTN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/pool.h"
#include "tensor/qlin.h"

typedef struct nb_grid {
    size_t g;      /* group size, divides k (k itself for per channel) */
    unsigned bits; /* 2..8                                             */
    bool sym;
    nb_dtype stored; /* scales are rounded to F16 or BF16 before they are used; anything else: not rounded (as the references) */
    bool shrinks;    /* final quantization: also narrower grids, down to half the range; the least squared error wins */
} nb_grid;

/* The pieces, exposed for the clip search. maxq; smallest and largest of n >= 1 values; scale and zero of a group whose
 * values span [lo, hi]: the zero follows from the scale before it is rounded. */
static inline float nb_grid_max(const nb_grid *grid)
{
    return (float)((1u << grid->bits) - 1u);
}
void nb_grid_range(const float *w, size_t n, float *lo, float *hi);
void nb_grid_fit(const nb_grid *grid, float lo, float hi, float *s, float *z);

/* Σ (out - w)² of the next one, near enough to compare grids. */
double nb_grid_error(const nb_grid *grid, const float *restrict w, size_t n, float s, float z);
/* out[n] = (clamp(rne(w/s) + z) - z) * s. out is not w. NaN stays NaN. */
void nb_grid_round(const nb_grid *grid, const float *restrict w, size_t n, float s, float z, float *restrict out);

/* out[n][k] = PseudoQuant(w * s) / s, column k scaled by s[k]; s NULL: no scaling. out may be w. */
void nb_rtn_pseudo(nb_pool *pool, const nb_grid *grid, const float *w, const float *s, size_t n, size_t k, float *out);

/* Final quantization of w[q->n][q->k] into q (initialised for grid->g and grid->bits, all rows). Scales are rounded to
 * q->scale_dtype before the codes are computed (spec quantizers 1). A search whose grid has the same `stored` type judges
 * exactly these values; that matters after clipping, where both ends of a group sit on the tie of 7.5 steps and the
 * rounding of the scale decides to which side they fall. NB_ENUMERIC "num.scale_range" when a scale becomes 0 or Inf. */
nb_status nb_rtn_quantize(nb_pool *pool, const nb_grid *grid, const float *w, nb_qlin *q, nb_err *err);

/* The same for row r of q alone, from w[q->k]. false: a weight is not finite or a scale out of range; the row is then not usable. */
bool nb_rtn_row(const nb_grid *grid, const float *w, nb_qlin *q, size_t r);

/* NB_ENUMERIC "num.scale_range" naming the first scale that is 0, infinite or NaN. */
nb_status nb_rtn_scales_ok(const nb_qlin *q, nb_err *err);

/* NB_ENUMERIC "num.nonfinite_weight" naming the first NaN or Inf and their count; NB_OK when all n values are finite. */
nb_status nb_rtn_finite(const float *w, size_t n, nb_err *err);

#endif
