/* awq_block.h - AWQ on one decoder block of a lazily bound f32 model: capture inputs, search scales on the unscaled weights,
 * fold and prove the fold, hand out each linear ready for its final rounding, replay the block.
 *
 * Calls per layer, in this order: capture, search, fold, then for each linear take + put, then replay. Numbers never stop
 * it: a group without a finite loss, or whose fold changes the block, falls back to plain rounding and says so.
 * Source: spec quantizers 3.2 - 3.9, 4 (self-test). One owner; work is split inside by the pool. */
#ifndef NB_JOB_AWQ_BLOCK_H
#define NB_JOB_AWQ_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "job/block.h"
#include "job/groups.h"
#include "solve/solve_awq.h"

enum { NB_AWQ_LOSS_ROWS = 256 }; /* outputs that a loss from second moments looks at, at least, where there are as many */
#define NB_AWQ_REFINE_DAMP 0.05  /* share of the mean diagonal, as for GPTQ */

typedef struct nb_awq_opts {
    const nb_qmods *mods; /* of the model, must outlive the block; NULL: all linears as the next three say */
    unsigned bits;
    int64_t group_size; /* -1: per channel */
    bool sym, plain;
    bool shared_v;        /* v -> o also where heads share rows of v         */
    bool inspect;         /* losses of dense groups from the inspected modules, run for every candidate as the references do */
    unsigned clip;        /* candidates of the clip search, 0: none          */
    unsigned refine;      /* sweeps of coordinate descent over the codes, 0: none */
    bool replay_original; /* next block sees the outputs of unquantized ones */
    bool a8;              /* the model holds codes (nb_model_opts.codes) and runs on 8-bit activations */
    bool all_experts;
    bool to_head;        /* nb_block_in */
    size_t least_tokens; /* experts that fewer tokens reach are rounded plainly */
    nb_dtype scale_dtype;
    nb_dtype norm_dtype; /* folded norms are stored in this type            */
} nb_awq_opts;

typedef enum nb_fold_state {
    NB_FOLD_ON,
    NB_FOLD_NO_LOSS, /* no candidate gave a finite loss                   */
    NB_FOLD_CHANGES, /* the block would compute something else            */
    NB_FOLD_FEW,     /* an expert that too few tokens reach               */
    NB_FOLD_OFF      /* nothing to gain: none of its linears is quantized */
} nb_fold_state;

/* One scaling group of the current layer. */
typedef struct nb_awq_group {
    const nb_scale_group *g;
    nb_grid grid;
    nb_awq_best best;
    float *s;             /* [k] scales that are applied: those found, corrected for the rounding of the norm       */
    float *norm, *beta;   /* [k] weight and bias of the norm before them as they will be stored; beta not rounded   */
    float *norm0, *beta0; /* [k] as the model had them; NULL: no norm, no bias                                      */
    nb_fold_state state;
    double seconds; /* of the search */
} nb_awq_group;

typedef struct nb_awq_block nb_awq_block;

/* Calibration tokens that reached a linear, as of its take; whether they are too few. */
size_t nb_awq_block_tokens(const nb_awq_block *b, nb_mod mod);
bool nb_awq_block_few(const nb_awq_block *b, nb_mod mod);

/* What a block will take besides the packed weights; for the plan. NB_ENOMEM, or what nb_awq_writes says. */
nb_status nb_awq_block_cost(const nb_plan *p, const nb_store *s, const nb_awq_opts *o, size_t rows, size_t len, nb_block_cost *out,
                            nb_err *err);
/* All that will be written anew because scales may fold into it. NB_EARG "quantize.dynamic": linears that are scaled together
 * differ in bits, group size or grid. */
nb_status nb_awq_writes(const nb_plan *p, const nb_store *s, const nb_awq_opts *o, nb_qwrites *out, nb_err *err);

/* The model is lazy and f32; it, the store and calib must outlive the block. Runs the embedding. */
nb_status nb_awq_block_open(nb_awq_block **out, nb_model *m, nb_store *s, const nb_calib *c, const nb_awq_opts *o, nb_pool *pool,
                            const nb_host *host, nb_err *err);
void nb_awq_block_close(nb_awq_block *b);
nb_block *nb_awq_block_base(nb_awq_block *b);

/* Bind `layer`, run it on all rows, keep statistics. */
nb_status nb_awq_block_capture(nb_awq_block *b, size_t layer, nb_err *err);
nb_status nb_awq_block_search(nb_awq_block *b, nb_err *err);
/* Fold all groups that are on; drop those whose fold changes the block's output by more than 1e-3 of its largest value; what goes
 * to the next layers beside the residual counts as output. */
nb_status nb_awq_block_fold(nb_awq_block *b, nb_err *err);
/* After that: values of one thing that is written anew, n of them (n * k of a linear), owned by b until the next call. */
nb_status nb_awq_block_written(nb_awq_block *b, const nb_qwrite *w, const float **v, nb_err *err);
size_t nb_awq_block_groups(const nb_awq_block *b, const nb_awq_group **groups);
/* The group that scales the inputs of `mod`; NULL when none is on for it. Why none is on: its state, NB_FOLD_ON when there is none. */
nb_fold_state nb_awq_block_state(const nb_awq_block *b, nb_mod mod);
const nb_awq_group *nb_awq_block_group_of(const nb_awq_block *b, nb_mod mod);

/* Weights of one linear, folded and clipped: w[n][k], owned by b until the next take. *before: relative output error of
 * plain rounding of the original weights. */
nb_status nb_awq_block_take(nb_awq_block *b, nb_mod mod, float **w, double *before, nb_err *err);
/* The weights of one linear as folded, neither clipped nor rounded: w[n][k]. */
nb_status nb_awq_block_folded(nb_awq_block *b, nb_mod mod, float *w, nb_err *err);
/* After its final rounding: codes of q move one at a time to where the error against the unclipped weights is least. */
nb_status nb_awq_block_refine(nb_awq_block *b, nb_mod mod, nb_qlin *q, nb_err *err);
/* Its codes, and the same dequantized, w[n][k] (changed on return), go into the model; q NULL: w as it is. *after: relative output
 * error against the original. */
nb_status nb_awq_block_put(nb_awq_block *b, nb_mod mod, const nb_qlin *q, float *w, double *after, nb_err *err);

/* Outputs of the block as quantized become the next inputs (or those of the original block), then unbind. */
nb_status nb_awq_block_replay(nb_awq_block *b, nb_err *err);

#endif
