/* comm.h - a group of processes that work on one job: rank, size, sum, gather. comm_self.c is the group of one;
 * dist/comm_mpi.c implements the same over MPI. Calls are collective: every rank makes them in the same order. */
#ifndef NB_BASE_COMM_H
#define NB_BASE_COMM_H

#include <stddef.h>

#include "base/err.h"

typedef struct nb_comm nb_comm;
struct nb_comm {
    int rank, size;
    /* buf[n] becomes the sum over ranks, added in rank order (so that the bits do not depend on arrival). */
    nb_status (*sum_f32)(nb_comm *c, float *buf, size_t n, nb_err *err);
    nb_status (*sum_f64)(nb_comm *c, double *buf, size_t n, nb_err *err);
    /* all[size*bytes] = every rank's bytes in rank order. */
    nb_status (*gather)(nb_comm *c, const void *mine, void *all, size_t bytes, nb_err *err);
    nb_status (*barrier)(nb_comm *c, nb_err *err);
};

/* The group of one. Static, immutable, thread safe. */
nb_comm *nb_comm_self(void);

#endif
