/* tensor.c - sizes of shapes and their spelling. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"

bool nb_shape_count(const uint64_t *shape, unsigned rank, uint64_t *n)
{
    uint64_t c = 1;
    bool zero = false;

    /* A zero dimension makes the product 0, but must not hide an overflow of the others: strides need them. */
    for (unsigned i = 0; i < rank; i++) {
        if (shape[i] == 0)
            zero = true;
        else if (!nb_mul_u64(c, shape[i], &c) || c > INT64_MAX)
            return false;
    }
    *n = zero ? 0 : c;
    return true;
}

bool nb_dtype_bytes(nb_dtype t, uint64_t n, uint64_t *bytes)
{
    uint64_t bits;

    if (!nb_mul_u64(n, nb_dtype_info(t)->bits, &bits) || bits % 8 != 0)
        return false;
    *bytes = bits / 8;
    return true;
}

const char *nb_shape_str(char *out, size_t cap, const uint64_t *shape, unsigned rank)
{
    size_t o = 0;

    if (cap == 0)
        return out;
    o = (size_t)snprintf(out, cap, "[");
    for (unsigned i = 0; i < rank && o < cap; i++)
        o += (size_t)snprintf(out + o, cap - o, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (o < cap)
        snprintf(out + o, cap - o, "]");
    return out;
}
