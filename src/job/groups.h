/* groups.h - linears that share an input and a predecessor into which AWQ scales fold, derived from the plan.
 *
 *   norm -> linears            scales divide the norm vector; inspected: everything up to the next residual add
 *   up   -> down               rows of `up` are divided; the gate sits under the activation and cannot carry scales
 *   v    -> o                  only where v has a row for every input of o (no grouped-query attention)
 *
 * Source: spec quantizers 3.4, 3.5, 4. No group: a norm output read by two linear ops (parallel blocks), because every reader
 * would have to be scaled; a norm with a bias; anything behind a limit or an activation; fused q, k, v or gate and up as
 * predecessors. Such linears are rounded without scaling. Constant after the call; nothing is allocated. */
#ifndef NB_JOB_GROUPS_H
#define NB_JOB_GROUPS_H

#include <stdbool.h>
#include <stddef.h>

#include "model/plan.h"

enum { NB_MAX_GROUPS = 8 };

typedef struct nb_scale_group {
    size_t op; /* LINEAR op whose roles are scaled together */
    nb_role roles[3];
    size_t n_roles;
    size_t n, k;    /* outputs of all roles together, inputs */
    bool from_norm; /* predecessor is a norm vector, else a linear */
    nb_vec vec;
    nb_role pred;
    size_t end; /* inspected span: ops [op, end); op + 1 when the linear is inspected alone */
} nb_scale_group;

/* Groups in the order of their ops; at most NB_MAX_GROUPS. Returns how many. */
size_t nb_scale_groups(const nb_plan *p, nb_scale_group out[NB_MAX_GROUPS]);

/* Query and key projections, fused ones included, are never clipped (spec quantizers 3.6). */
bool nb_role_clips(nb_role role);

#endif
