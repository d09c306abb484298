/* awq_priv.h - what the parts of the AWQ block share: awq_block.c (sizes, final weights), awq_search.c, awq_fold.c. */
#ifndef NB_JOB_AWQ_PRIV_H
#define NB_JOB_AWQ_PRIV_H

#include "job/awq_block.h"

enum { NB_AWQ_TEST_ROWS = 2 };

struct nb_awq_block {
    nb_block base;
    nb_awq_opts o;
    nb_awq_group groups[NB_MAX_GROUPS];
    size_t n_groups;
    float *ref, *out; /* outputs of the inspected span: all tokens; one chunk */
    nb_spill ref_mem;
    double *part;   /* [tokens]                                             */
    float *test[2]; /* [NB_AWQ_TEST_ROWS * len][d]                          */
};

/* w *= scales of its inputs, rows /= scales of the group it precedes; or the other way round. */
void nb_awq_fold_weights(const nb_awq_block *b, nb_mod mod, float *w, bool undo);

#endif
