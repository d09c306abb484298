/* chol.h - Cholesky factor of a symmetric matrix and its inverse, blocked, float64.
 *
 * Work is split over fixed tiles, so that the result does not depend on the thread count. Source: the textbook algorithms
 * (Golub and Van Loan, Matrix Computations, 4.2 and 3.1). */
#ifndef NB_SOLVE_CHOL_H
#define NB_SOLVE_CHOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/pool.h"

/* a[k][k]: the lower triangle, diagonal included, becomes L with a = L Lᵀ; what is above is neither read nor written.
 * false: not positive definite (or not finite); the lower triangle is then of no use. */
bool nb_cholesky(nb_pool *pool, double *a, size_t k);

/* The inverse of L, turned by half a turn: u[k-1-i][k-1-j] = (L⁻¹)[i][j], zero below the diagonal of u. For a matrix whose
 * rows and columns were reversed before it was factorised, u is the upper factor of its inverse: a⁻¹ = uᵀ u, in natural order. */
nb_status nb_chol_inverse_flipped(nb_pool *pool, const double *l, size_t k, float *u, nb_err *err);

#endif
