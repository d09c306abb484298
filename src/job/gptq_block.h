/* gptq_block.h - GPTQ on one decoder block: per input, run the block as quantized so far, factor the second moments, solve the
 * linears that read it: shift their weights towards what the original model computes, round, refine.
 *
 * Calls per layer: bind, then for each input in order prepare and solve the linears that read it, then replay. Later inputs so
 * see what earlier linears were rounded to (true_sequential). Source: spec quantizers 9. One owner; work is split inside by the pool. */
#ifndef NB_JOB_GPTQ_BLOCK_H
#define NB_JOB_GPTQ_BLOCK_H

#include "job/block.h"
#include "solve/solve_gptq.h"

typedef struct nb_gptq_block nb_gptq_block;

/* Beyond GPTQ. */
typedef struct nb_gptq_extra {
    double share;    /* of the step towards the original model, solve_shift.h; 0: none. Needs a plan that nb_gptq_walk_can walk */
    unsigned sweeps; /* of the refinement of codes, solve_refine.h; 0: none */
} nb_gptq_extra;

/* What a block will take, for the plan; own: not over another method's. */
nb_block_cost nb_gptq_block_cost(const nb_plan *p, const nb_gptq_extra *x, size_t rows, size_t len, bool replay_original, bool own,
                                 int threads);

/* Original weights of a linear of the bound layer into w[n][k]. */
typedef nb_status nb_gptq_read_fn(void *user, nb_mod mod, float *w, nb_err *err);

/* o->g is set from each linear. */
nb_status nb_gptq_block_open(nb_gptq_block **out, const nb_block_in *in, const nb_gptq_opts *o, const nb_gptq_extra *x, nb_err *err);
/* On a block that belongs to another method, which binds layers, changes the weights and says what they are now. It keeps no
 * second moments while linears are solved. Per layer: reach before the bind, start when the weights are changed. */
nb_status nb_gptq_block_over(nb_gptq_block **out, nb_block *base, nb_gptq_read_fn *read, void *user, const nb_gptq_opts *o,
                             const nb_gptq_extra *x, nb_err *err);
nb_status nb_gptq_block_reach(nb_gptq_block *b, size_t layer, nb_err *err);
nb_status nb_gptq_block_start(nb_gptq_block *b, nb_err *err);
void nb_gptq_block_close(nb_gptq_block *b);
nb_block *nb_gptq_block_base(nb_gptq_block *b);

/* Reach, bind and start at once, on a block of its own. */
nb_status nb_gptq_block_bind(nb_gptq_block *b, size_t layer, nb_err *err);
/* How the next linears are rounded; the order counts for the next prepare. */
void nb_gptq_block_as(nb_gptq_block *b, bool sym, nb_gptq_order order);
/* Capture the input of `mod` and factor its second moments; groups of g inputs, the grid as sym says. An expert that fewer than
 * `least` tokens reach gets no correction: *few. */
nb_status nb_gptq_block_prepare(nb_gptq_block *b, nb_mod mod, size_t g, bool sym, size_t least, bool *few, nb_err *err);
const nb_gptq_factor *nb_gptq_block_factor(const nb_gptq_block *b); /* as prepared last; the address never changes */
size_t nb_gptq_block_tokens(const nb_gptq_block *b, nb_mod mod);    /* that the input was made of */
/* Solve one linear that reads that input into q (initialised, scale_dtype set) and put it into the model.
 *   before, after  relative output error of plain rounding, of the result */
nb_status nb_gptq_block_solve(nb_gptq_block *b, nb_mod mod, nb_qlin *q, nb_gptq_result *res, double *before, double *after, nb_err *err);
nb_status nb_gptq_block_replay(nb_gptq_block *b, nb_err *err);

#endif
