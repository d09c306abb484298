/* gptq_walk.h - calibration rows on their way through a decoder block, each op run once: the model as quantized so far and, beside
 * it, the original one.
 *
 * Stops at every LINEAR op that is to be quantized: what the quantized model feeds it is summed up, then its weights may change.
 * The original model runs one LINEAR op ahead, while its weights are still there. Needs a block whose ops, from each LINEAR op on,
 * read nothing but its input and the residual (no experts, no parallel branches): nb_gptq_walk_can. Large arrays are
 * in files when memory is short (spill.h). One owner; work is split inside by the pool. */
#ifndef NB_JOB_GPTQ_WALK_H
#define NB_JOB_GPTQ_WALK_H

#include "job/block.h"
#include "job/moments.h"
#include "job/spill.h"
#include "solve/solve_shift.h"

/* One model's rows: the residual at op `at`, and its input unless at is 0. */
typedef struct nb_walker {
    size_t at;
    float *h;      /* [tokens][d] */
    float *act;    /* [tokens][inputs of op `at`], in the room */
    nb_spill room; /* for the inputs of one linear and those of the next */
} nb_walker;

typedef struct nb_gptq_walk {
    nb_block *b;
    bool paired;         /* the original model runs, too */
    nb_walker now, orig; /* now.h is the block's own */
    nb_spill orig_mem;
} nb_gptq_walk;

bool nb_gptq_walk_can(const nb_plan *p);
/* Floats per token that a walk keeps besides the block. */
size_t nb_gptq_walk_floats(const nb_plan *p, bool paired);

/* b must outlive it. Before the layer is bound: the original model comes to this layer. After it is bound: start. */
nb_status nb_gptq_walk_reach(nb_gptq_walk *w, nb_block *b, bool paired, size_t layer, nb_err *err);
nb_status nb_gptq_walk_start(nb_gptq_walk *w, nb_err *err);
void nb_gptq_walk_clear(nb_gptq_walk *w); /* a zeroed one is fine */

/* Does op `op` add its outputs to the residual, unchanged? */
bool nb_gptq_walk_adds(const nb_plan *p, size_t op);
/* What a walk sums up of a pair besides second moments; members may be NULL. */
typedef struct nb_gptq_pair {
    nb_cross *d; /* (x' - x) xᵀ */
    nb_cross *r; /* (h' - h + w (x' - x)) xᵀ, for a linear whose outputs are added to the residual */
} nb_gptq_pair;
/* Go to LINEAR op in->op: its samples and second moments (in->gram is initialised) and, of a pair, its moments with the original. */
nb_status nb_gptq_walk_to(nb_gptq_walk *w, nb_input *in, const nb_gptq_pair *pair, nb_err *err);
/* Behind the last layer: what the head reads into the same sums; of a pair, d alone. */
nb_status nb_gptq_walk_head(nb_gptq_walk *w, nb_input *in, const nb_gptq_pair *pair, nb_err *err);
/* To the end of the block: the residuals are the inputs of the next one. Not run when nothing follows. */
nb_status nb_gptq_walk_end(nb_gptq_walk *w, nb_err *err);

#endif
