/* dense_layout.c - sizes of packed 16- and 32-bit matrices. */
#include "base/mem.h"
#include "kern/kern.h"

/* The m = 1 kernel prefetches 4 KB ahead. */
enum { SLACK_BYTES = 4096 };

bool nb_dense_layout(nb_dense *p, size_t n_rows, size_t k, nb_dtype t)
{
    const size_t size = t == NB_DT_F32 ? 4 : 2;
    size_t rows, elements, bytes;

    if (n_rows == 0 || k == 0 || (t != NB_DT_F16 && t != NB_DT_BF16 && t != NB_DT_F32))
        return false;
    if (!nb_add_size(n_rows, NB_STRIP - 1, &rows))
        return false;
    *p = (nb_dense){ .n_strips = rows / NB_STRIP, .k = k, .dtype = t };
    p->n = p->n_strips * NB_STRIP;
    if (!nb_mul_size(p->n, k, &elements) || !nb_mul_size(elements, size, &bytes))
        return false;
    return nb_add_size(bytes, SLACK_BYTES, &p->bytes);
}
