/* awq_priv.h - what the parts of the AWQ block share: awq_block.c (sizes, final weights), awq_search.c, awq_fold.c. */
#ifndef NB_JOB_AWQ_PRIV_H
#define NB_JOB_AWQ_PRIV_H

#include "job/awq_block.h"

enum { NB_AWQ_TEST_ROWS = 2 };

struct nb_awq_block {
    nb_block base;
    nb_awq_opts o;
    nb_qmods own; /* when the options bring none */
    nb_scale_groups layout;
    nb_awq_group *groups; /* [layout.n] of the layer */
    size_t n_groups;
    nb_arena mem;                /* theirs */
    int32_t *as_input, *as_pred; /* by linear: the group that scales its inputs, its rows; -1: none */
    size_t n_ids;
    uint32_t expert;  /* whose inputs the base block has */
    float *ref, *out; /* outputs of the inspected spans: all tokens; one chunk */
    nb_spill ref_mem;
    bool sums[NB_BLOCK_MAX_OPS];    /* second moments of its input are wanted */
    bool divided[NB_BLOCK_MAX_OPS]; /* scales are divided out of the second moments of its input, since they are folded */
    double *part;                   /* [tokens]                                             */
    float *test[2];                 /* [NB_AWQ_TEST_ROWS * len][width]                      */
};

/* Where a linear stands in as_input and as_pred. */
size_t nb_awq_id(const nb_awq_block *b, nb_mod mod);
/* What becomes of a linear of the layer; NULL: a router or the like. */
const nb_qmod *nb_awq_mod(const nb_awq_block *b, nb_mod mod);
bool nb_awq_quantized(const nb_awq_block *b, nb_mod mod);

/* Are the losses of a group quadratic forms of the second moments of its input? */
bool nb_awq_by_moments(const nb_awq_opts *o, const nb_scale_group *g);

/* w *= scales of its inputs, rows /= scales of the group it precedes; or the other way round. */
void nb_awq_fold_weights(const nb_awq_block *b, nb_mod mod, float *w, bool undo);
/* Put all of the layer that any group touches into the model: as the groups that are on now demand. */
nb_status nb_awq_apply(nb_awq_block *b, nb_err *err);

#endif
