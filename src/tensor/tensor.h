/* tensor.h - a view of one stored tensor. Owns nothing; lives as long as the store that handed it out. */
#ifndef NB_TENSOR_TENSOR_H
#define NB_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"

#define NB_MAX_RANK 64 /* limit of safetensors files (hardening 4) */

typedef struct nb_tensor {
    const char *name; /* terminated UTF-8 without inner zeros               */
    size_t name_len;
    nb_dtype dtype;
    unsigned rank;
    const uint64_t *shape;     /* [rank], outermost first                            */
    const unsigned char *data; /* row-major, little-endian, maybe unaligned; NULL when the store has no plain bytes for
                                * it (GGUF blocks that need widening): use nb_store_read then     */
    uint64_t n_bytes;          /* of the values as `dtype` says, rounded up to bytes  */
    const char *file;          /* where it lies, for messages                        */
    unsigned file_type;        /* GGUF block type number; 0 elsewhere                */
    uint64_t index;            /* the store's own                                    */
} nb_tensor;

/* Product of the dimensions; false on overflow of 63 bits. Rank 0 has one element. */
bool nb_shape_count(const uint64_t *shape, unsigned rank, uint64_t *n);
/* Bytes of n elements of a dtype; false on overflow, or when sub-byte elements do not fill whole bytes. */
bool nb_dtype_bytes(nb_dtype t, uint64_t n, uint64_t *bytes);
/* "[576, 64]" into out. Returns out. */
const char *nb_shape_str(char *out, size_t cap, const uint64_t *shape, unsigned rank);

#endif
