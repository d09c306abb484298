/* dense.h - what the dense kernels of all tiers share. The order of summation: scalar/dense.c. */
#ifndef NB_KERN_DENSE_H
#define NB_KERN_DENSE_H

#include "kern/kern.h"

enum { NB_DENSE_BLOCK = 256 }; /* inputs per fma chain */

/* Bytes of one element. */
static inline size_t nb_dense_size(const nb_dense *w)
{
    return w->dtype == NB_DT_F32 ? 4 : 2;
}

#endif
