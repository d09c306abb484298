/* linalg.h - the few matrix products of the solvers, row-major.
 *
 * Every call runs in the calling thread; the solvers split outputs with nb_parallel_for. An element's bits depend on its row and column
 * alone, not on the instruction set or how the rest is split. Pointers of one call must not overlap. Any thread may call. */
#ifndef NB_SOLVE_LINALG_H
#define NB_SOLVE_LINALG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"

/* c[m][n] = a[m][k] b[k][n]; ld* are row lengths in floats. */
void nb_gemm_nn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc);
/* c[m][n] = a[m][k] b[n][k]ᵀ */
void nb_gemm_nt(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc);
/* c[m][n] = a[k][m]ᵀ b[k][n] */
void nb_gemm_tn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc);

/* c[m][n] -= a[k][m]ᵀ b[k][n]; then a[m][k] b[k][n] in float64; the last one with b[n][k]ᵀ. */
void nb_gemm_sub_tn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc);
void nb_dgemm_sub_nn(size_t m, size_t n, size_t k, const double *a, size_t lda, const double *b, size_t ldb, double *c, size_t ldc);
void nb_dgemm_sub_nt(size_t m, size_t n, size_t k, const double *a, size_t lda, const double *b, size_t ldb, double *c, size_t ldc);

/* Sum of a[i] * b[i] in float64, in a fixed order of eight lanes. */
double nb_dot64(const float *a, const float *b, size_t n);

/* Relative output error of weights v[n][k] against w[n][k] on tokens x[t][ldx]: sum of ((v - w) x)² over sum of (w x)²; on
 * the weights themselves when x is NULL. 0 when both sums are 0. norm: the latter sum, found here when it is below 0 and to be given again
 * with the same w and x; NULL: not kept. */
nb_status nb_output_error(nb_pool *pool, const float *w, const float *v, size_t n, size_t k, const float *x, size_t ldx, size_t t,
                          double *norm, double *e, nb_err *err);

/* Second moments of inputs: sum over tokens of x xᵀ. Products of NB_GRAM_CHUNK tokens in float32, chunks added in
 * float64 in the order given, so that the result does not depend on the thread count. The struct is the caller's. */
enum { NB_GRAM_CHUNK = 256, NB_GRAM_STRIPE = 192 };
typedef struct nb_gram {
    size_t k, tokens;
    double *sum;                                                 /* [k][k], all of it; or what nb_gram_init_half takes */
    bool half;                                                   /* only what is on and above the diagonal, in stripes of rows */
    enum { NB_GRAM_SUMS, NB_GRAM_TAKEN, NB_GRAM_SHELVED } state; /* of half a one: what is in sum */
} nb_gram;
nb_status nb_gram_init(nb_gram *g, size_t k, nb_err *err);
/* Half the memory: for nb_gram_take alone. */
nb_status nb_gram_init_half(nb_gram *g, size_t k, nb_err *err);
uint64_t nb_gram_half_bytes(size_t k);
/* Zeros again, now of k inputs, no more than it was made for. */
void nb_gram_reset(nb_gram *g, size_t k);
void nb_gram_clear(nb_gram *g); /* a zeroed one is fine */
/* Add m rows x[m][ldx]. Chunks are counted from the first row of each call: give multiples of the chunk but for the last. */
nb_status nb_gram_add(nb_gram *g, nb_pool *pool, const float *x, size_t ldx, size_t m, nb_err *err);
/* Where the sum of row i and column j is; the same column of the next row is *ld further, while i + 1 is no multiple of NB_GRAM_STRIPE. Of half
 * a one j is not before the stripe of i. */
double *nb_gram_at(const nb_gram *g, size_t i, size_t j, size_t *ld);
/* sum / tokens of half a one as float [k][k], in the place of the sums; owned by g, the caller may change it symmetrically. No more
 * rows can be added. NULL: no memory. */
float *nb_gram_take(nb_gram *g);
/* Until it is taken again: a quarter of [k][k] doubles, if it was taken before. */
void nb_gram_shelve(nb_gram *g);
/* The same of a whole one, in float64; g->sum is then the mean. */
void nb_gram_finish(nb_gram *g);

#endif
