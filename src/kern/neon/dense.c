/* dense.c - products with packed 16- and 32-bit matrices for NEON. */
#include "kern/neon/neon.h"
#include "kern/neon/vec.h"

#define nb_gemm_dense nb_gemm_dense_neon

#include "kern/dense_body.inc"
