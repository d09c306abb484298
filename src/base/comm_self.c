/* comm_self.c - the group of one process: every sum is its own, every gather a copy. */
#include "base/comm.h"

#include <string.h>

static nb_status sum_f32(nb_comm *c, float *buf, size_t n, nb_err *err)
{
    (void)c, (void)buf, (void)n, (void)err;
    return NB_OK;
}

static nb_status sum_f64(nb_comm *c, double *buf, size_t n, nb_err *err)
{
    (void)c, (void)buf, (void)n, (void)err;
    return NB_OK;
}

static nb_status gather(nb_comm *c, const void *mine, void *all, size_t bytes, nb_err *err)
{
    (void)c, (void)err;
    if (bytes)
        memmove(all, mine, bytes);
    return NB_OK;
}

static nb_status barrier(nb_comm *c, nb_err *err)
{
    (void)c, (void)err;
    return NB_OK;
}

nb_comm *nb_comm_self(void)
{
    static nb_comm self = { 0, 1, sum_f32, sum_f64, gather, barrier };

    return &self;
}
