/* moments.h - products of activations over tokens, x xᵀ and a xᵀ, by the 8-bit kernels: four times as fast as in float32.
 *
 * Both sides are turned: a column (one input over 128 tokens) becomes codes of -127..127 with a step of its own, so that no large input
 * coarsens another. Codes are multiplied as whole numbers, groups added up in float32 and tiles in float64 (second moments) or
 * float32 (cross moments), each in the order of the tokens. x xᵀ is that of the codes on both sides: positive semidefinite whatever was
 * rounded off. Rounding adds some 0.02 % to the diagonal of smooth inputs, 0.05 % where one token in 128 is ten times the others.
 * Nothing depends on threads or on the kernel table. Columns with a NaN or Inf make their moments NaN. */
#ifndef NB_JOB_MOMENTS_H
#define NB_JOB_MOMENTS_H

#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "solve/linalg.h"
#include "solve/solve_shift.h"

enum { NB_MOMENTS_TOKENS = 1024 }; /* that are turned at once: fewer would add tiles more often */

/* Up to NB_MOMENTS_TOKENS tokens of k inputs, turned. The struct is the caller's. */
typedef struct nb_turned {
    size_t k, m, n_groups; /* inputs, tokens, groups of 128 tokens of which the last is padded */
    nb_q8 w;               /* as weights: k outputs, tokens in place of inputs; base NULL where only the other side is needed */
    size_t w_bytes, v_bytes;
    int8_t *v;     /* as activations: blocks of 64 inputs, each [group][64][128] */
    float *step;   /* [block][group][64] */
    int32_t *sum;  /* [block][group][64] */
    uint8_t *line; /* [threads][64][128] codes of a block that is not kept as weights */
} nb_turned;

/* For k inputs and at most m tokens at a time; both: also as weights, the right side of a product. */
nb_status nb_turned_open(nb_turned *t, nb_pool *pool, size_t k, size_t m, bool both, nb_err *err);
void nb_turned_as(nb_turned *t, size_t k); /* now for k inputs, no more than it was opened for */
void nb_turned_close(nb_turned *t);        /* a zeroed one is fine */
uint64_t nb_turned_bytes(size_t k, size_t m, bool both);
/* m tokens x[m][k], or x - less when that is not NULL. */
void nb_turned_set(nb_turned *t, nb_pool *pool, const float *x, const float *less, size_t m);

/* Add x xᵀ, of a whole matrix or of half a one, or a xᵀ, of as many tokens as were turned. x was opened with both. */
void nb_moments_gram(nb_gram *g, const nb_kern *kern, nb_pool *pool, const nb_turned *x);
void nb_moments_cross(nb_cross *c, const nb_kern *kern, nb_pool *pool, const nb_turned *a, const nb_turned *x);

#endif
