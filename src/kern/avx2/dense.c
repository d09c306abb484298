/* dense.c - products with packed 16- and 32-bit matrices for AVX2 and FMA. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/vec.h"

#define nb_gemm_dense nb_gemm_dense_avx2

#include "kern/dense_body.inc"
