/* dense.c - products with packed 16- and 32-bit matrices for AVX-512. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/vec.h"

#define nb_gemm_dense nb_gemm_dense_avx512vnni

#include "kern/dense_body.inc"
