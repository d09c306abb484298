/* gemm.c - the matrix products of linalg.h.
 *
 * An element of the result is one chain of fused multiply-adds over each KC of the depth, from 0; blocks are added (or taken off) in
 * ascending order. So its bits depend neither on the instruction set nor on how outputs are split. */
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "base/wide.h"
#include "kern/kern.h"
#include "solve/linalg.h"

/* Rows of a tile; depth of a packed block. Its rows, MC, and columns, COLS, are as many as a stack of 1 MB has room for beside what a
 * sanitizer takes of it. */
enum { MR = NB_TILE_M, KC = 256 };

#define T    float
#define R(x) f32_##x
#define NR   NB_TILE_F32
#define MC   96
#define COLS 128
#define TILE tile_f32
#include "solve/gemm_body.inc"

#define T    double
#define R(x) f64_##x
#define NR   NB_TILE_F64
#define MC   64
#define COLS 64
#define TILE tile_f64
#include "solve/gemm_body.inc"

void nb_gemm_nn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    f32_gemm(m, n, k, a, lda, 1, b, ldb, 1, c, ldc, false);
}

void nb_gemm_nt(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    f32_gemm(m, n, k, a, lda, 1, b, 1, ldb, c, ldc, false);
}

void nb_gemm_tn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    f32_gemm(m, n, k, a, 1, lda, b, ldb, 1, c, ldc, false);
}

void nb_gemm_sub_tn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    f32_gemm(m, n, k, a, 1, lda, b, ldb, 1, c, ldc, true);
}

void nb_dgemm_sub_nn(size_t m, size_t n, size_t k, const double *a, size_t lda, const double *b, size_t ldb, double *c, size_t ldc)
{
    f64_gemm(m, n, k, a, lda, 1, b, ldb, 1, c, ldc, true);
}

void nb_dgemm_sub_nt(size_t m, size_t n, size_t k, const double *a, size_t lda, const double *b, size_t ldb, double *c, size_t ldc)
{
    f64_gemm(m, n, k, a, lda, 1, b, 1, ldb, c, ldc, true);
}
