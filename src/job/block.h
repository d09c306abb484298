/* block.h - one decoder block under quantization: calibration rows in, inputs of its linears captured, weights read and
 * replaced, the block run again for the next one. Experts see the tokens that the router sends them, or all. What AWQ and GPTQ share; each embeds the struct.
 *
 * The model is lazily bound and f32; it, the store and the calibration rows must outlive the block. One owner; work is split
 * inside by the pool. Source: spec quantizers 2, 3.8. */
#ifndef NB_JOB_BLOCK_H
#define NB_JOB_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "job/calib.h"
#include "job/qmods.h"
#include "model/exec.h"

#define NB_BLOCK_CODES (1.0 / 3) /* time of a multiply-add in 8-bit codes, of one in float32 */
enum { NB_BLOCK_CHUNK = 1024, NB_BLOCK_EXEC_ROWS = 512, NB_BLOCK_MAX_OPS = 64, NB_BLOCK_SAMPLE = 512, NB_BLOCK_JUDGE = 64 };

/* What to take from where. */
typedef struct nb_block_in {
    nb_model *model;
    nb_store *store;
    const nb_calib *calib;
    nb_pool *pool;
    const nb_host *host;
    bool replay_original; /* the next block sees the outputs of the unquantized one */
    bool a8;              /* linears run on 8-bit activations: 0.7 % of noise, for less of the time */
    bool all_experts;     /* every expert is calibrated with all tokens, whatever the router says */
    bool to_head;         /* the last layer is run on, too: the head is solved behind it */
} nb_block_in;

/* Sizes that follow from the plan, and what to keep of each LINEAR op besides its sums and samples. */
typedef struct nb_block_need {
    size_t chunk_rows, chunk; /* rows and tokens that run at once */
    size_t linear;            /* weights of the largest linear    */
    size_t expert_k;          /* most inputs of a linear of an expert; 0: there are none */
    size_t w;                 /* floats of the buffer w, at least linear */
    bool full[NB_BLOCK_MAX_OPS], gram[NB_BLOCK_MAX_OPS];
} nb_block_need;

typedef struct nb_block {
    nb_model *model;
    const nb_plan *plan;
    nb_store *store;
    nb_exec *exec;
    const nb_calib *calib;
    nb_pool *pool;
    const nb_host *host;
    nb_rows rows;
    nb_capture cap;
    size_t layer, d, tokens;
    size_t width;  /* d, and what goes from layer to layer beside the residual */
    bool captured; /* since bind */
    bool all_experts, to_head;
    nb_input expert[2]; /* of the expert asked for last: what gate and up read, what down reads */
    uint32_t *taken;    /* [tokens] its tokens */
    float *act;         /* [NB_BLOCK_EXEC_ROWS][2 * expert_k] */
    float *h, *h_next;  /* [tokens][width]; h_next only with replay_original */
    nb_spill h_mem, h_next_mem;
    float *run;     /* [chunk][width] outputs of a chunk             */
    float *w, *tmp; /* weights: need_w floats; need_tmp, one linear   */
    size_t need_w, need_tmp;
} nb_block;

/* Defaults of *need for these rows; the caller raises w and sets full and gram. */
void nb_block_sizes(const nb_plan *p, size_t rows, size_t len, nb_block_need *need);
/* What a job will take, for its plan. */
typedef struct nb_block_cost {
    uint64_t bytes; /* in memory while a layer is at work, beside that layer and the codes of a linear */
    uint64_t whole; /* instead, while linears are not solved: with the layer in float32; 0: never      */
    uint64_t idle;  /* instead, before the layers and after them                                       */
    uint64_t spill; /* activations: in memory too, or in files when memory is short                    */
    double macs;    /* multiply-adds of one layer                                                      */
} nb_block_cost;
/* What open will take and the executor with it, besides the model, at work and idle; whole and macs 0. */
nb_block_cost nb_block_bytes(const nb_plan *p, const nb_block_need *need, size_t rows, size_t len, bool replay_original);

/* Take the buffers and run the embedding, unless calib->resumed. On failure *b is cleared. */
nb_status nb_block_open(nb_block *b, const nb_block_in *in, const nb_block_need *need, nb_err *err);
void nb_block_clear(nb_block *b); /* a zeroed one is fine */

/* Visit the first `rows` rows in chunks: fn gets the batch and the index of its first token. Asks the host whether to stop. */
typedef nb_status nb_chunk_fn(void *user, const nb_batch *batch, size_t at, nb_err *err);
nb_status nb_block_each(nb_block *b, size_t rows, nb_chunk_fn *fn, void *user, nb_err *err);
nb_status nb_block_stopped(nb_err *err); /* NB_ECANCELED with its sentence */
/* After each chunk, by each: touched pages of activations in files go back to the system. */
void nb_block_settle(const nb_block *b);

/* Bind a layer; then run it on all rows and keep what the need asks for, once or several times as weights change. Outputs
 * of the first capture after bind are those of the original block. */
nb_status nb_block_bind(nb_block *b, size_t layer, nb_err *err);
nb_status nb_block_capture(nb_block *b, nb_err *err);
/* The same for the input of one LINEAR op alone; the ops behind it do not run where the plan allows that. */
nb_status nb_block_capture_op(nb_block *b, size_t op, nb_err *err);

/* Inputs of an expert, from the captured ones of its op: which 0, what gate and up read; 1, what down reads, through gate and up
 * as they are now. The captured inputs are divided by s[d] first unless s is NULL. With gram also their second moments, in what
 * it makes. No
 * tokens: zeros. Keeps what it finds in b->expert[which]. */
typedef nb_status nb_gram_init_fn(nb_gram *g, size_t k, nb_err *err);
nb_status nb_block_expert(nb_block *b, size_t e, int which, const float *s, nb_gram_init_fn *gram, nb_err *err);
/* What one linear reads: its op's inputs, or those of its expert as nb_block_expert found them last. */
const nb_input *nb_block_input(const nb_block *b, nb_mod mod);

/* Give back w and tmp, or tmp alone, and take them again: whoever needs the room in between. */
void nb_block_release(nb_block *b);
void nb_block_release_tmp(nb_block *b);
nb_status nb_block_hold(nb_block *b, nb_err *err);

/* Original weights of one linear as f32 into w[n][k]; NaN and Inf are refused here (NU-01). */
nb_status nb_block_read(nb_block *b, nb_mod mod, float *w, nb_err *err);
/* Relative output error of v against w on NB_BLOCK_JUDGE or a few more of the sampled inputs of the linear; norm as in nb_output_error. */
nb_status nb_block_error(nb_block *b, nb_mod mod, const float *w, const float *v, double *norm, double *e, nb_err *err);

/* The same on what an input keeps, for outputs w and v [n][in->k]. */
nb_status nb_input_error(nb_pool *pool, const nb_input *in, const float *w, const float *v, size_t n, double *norm, double *e, nb_err *err);

/* Do the rows go on behind this layer? */
bool nb_block_goes_on(const nb_block *b);
/* Outputs of the block as it is now (or those of the original block) become the next inputs; unbind. */
nb_status nb_block_replay(nb_block *b, nb_err *err);

/* Read the f32 weights of any layer without a block; their pages go back to the system. */
nb_status nb_read_linear(nb_store *s, const nb_plan *p, size_t layer, nb_mod mod, float *w, nb_err *err);

#endif
