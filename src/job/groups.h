/* groups.h - linears that share an input and a predecessor into which AWQ scales fold, derived from the plan of a layer.
 *
 *   norm -> everything that reads it   scales divide weight and bias of the norm; inspected: each reader up to the next residual
 *                                      add, experts as a whole. Routers and gates of shared experts take the scales too
 *   up   -> down                       rows of `up` are divided, also where gate and up are one matrix, and in every expert; the
 *                                      gate sits under the activation and cannot carry scales
 *   fc1  -> fc2                        through relu; through its square by the root of the scales
 *   mixer -> its output  the weight of its norm, or the rows of a short convolution's input that multiply what it gives
 *   v    -> o                          every head's rows of v; heads that share them (grouped queries) share scales
 *
 * Source: spec quantizers 3.4, 3.5, 4. No group: a norm whose output is also added, limited activations, anything behind an
 * activation that is not homogeneous. Whether a group changes the block is tested all the same before it is used. */
#ifndef NB_JOB_GROUPS_H
#define NB_JOB_GROUPS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "model/mod.h"

enum { NB_MAX_SPANS = 4 };

typedef struct nb_span {
    size_t op, end; /* ops [op, end) */
} nb_span;

typedef struct nb_scale_group {
    size_t k; /* inputs: one scale each */
    nb_mod *mods;
    size_t n_mods; /* scaled together, routers included */
    nb_vec vec;    /* the norm before them; NONE: a linear is */
    nb_mod pred;
    size_t row0;          /* input i comes from row row0 + i of pred, */
    const uint32_t *rows; /* or from rows[i] */
    bool tied;            /* some rows feed several inputs */
    bool root;            /* squared on the way: rows are divided by the root */
    size_t op;            /* that reads them (the first one) */
    nb_span spans[NB_MAX_SPANS];
    size_t n_spans; /* inspected; 0: the only linear, alone */
} nb_scale_group;

typedef struct nb_scale_groups {
    nb_scale_group *g;
    size_t n;
    nb_arena mem;
} nb_scale_groups;

/* Groups of a layer in the order of their ops. shared_v: also v -> o where heads share rows of v. NB_ENOMEM. */
nb_status nb_scale_groups_find(const nb_plan *p, const nb_store *s, size_t layer, bool shared_v, nb_scale_groups *out, nb_err *err);
void nb_scale_groups_clear(nb_scale_groups *gs); /* a zeroed one is fine */

/* Query and key projections, fused ones included, are never clipped (spec quantizers 3.6). */
bool nb_role_clips(nb_role role);

#endif
