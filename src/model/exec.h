/* exec.h - runs a plan on a batch. The interface that exec_cpu.c (and a device later) implements; one owner at a time.
 *
 * KV lives in pages of NB_PAGE tokens; the caller gives out page numbers. The logits of a token depend on the tokens
 * before it and on the model, on nothing else (PRODUCT promise 1). */
#ifndef NB_MODEL_EXEC_H
#define NB_MODEL_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "model/model.h"

typedef struct nb_seq_view {
    const uint32_t *pages; /* page numbers, enough for every position of the batch */
    size_t n_pages;
    const uint32_t *near; /* [n_pages] pages of layers with a sliding window (nb_exec_opts.n_near); out of it, any number will do */
    size_t total;         /* planned length, for rope kinds that depend on it (dynamic, longrope); 0: the last position of the batch + 1 */
    uint32_t state;       /* slot of the state pool, below nb_exec_opts.n_states; one sequence a slot */
} nb_seq_view;

/* m rows; rows of one sequence are contiguous and ascend by one in position. */
typedef struct nb_batch {
    size_t m;
    const int32_t *token; /* [m] */
    const uint32_t *pos;  /* [m] */
    const uint32_t *seq;  /* [m] index into seqs */
    const uint8_t *want;  /* [m] 1: logits wanted; NULL: none. Other rows leave their keys, values and states, and are done with then */
    const nb_seq_view *seqs;
    size_t n_seqs;
} nb_batch;

typedef struct nb_exec nb_exec;
typedef struct nb_exec_opts {
    nb_pool *pool;
    size_t max_m; /* largest batch of one call; bigger batches are cut inside, same bits */
    size_t n_pages;
    size_t n_near;     /* pages of layers with a sliding window, numbered apart; 0: they have n_pages, with the same numbers as others */
    size_t n_states;   /* sequences that may be alive at a time (models with recurrent or convolution layers only); 0: one */
    size_t kv_layers;  /* 0: all layers; 1: one layer's pages and state reused (calibration, layer by layer) */
    nb_dtype kv_dtype; /* F16, F32 or I8 (kern.h) */
    bool exact_fp32;   /* activations of 4-bit linears stay f32 */
    bool a8;           /* or are 8-bit integers (kern.h), instead of 16 */
    bool carry;        /* rows h of embed and layers have nb_plan_carry more floats behind the d_model of the residual */
} nb_exec_opts;

nb_status nb_exec_cpu_open(nb_model *m, const nb_exec_opts *o, nb_exec **out, nb_err *err);
void nb_exec_close(nb_exec *x);
uint64_t nb_exec_bytes(const nb_exec *x);
/* Of them, what attention keeps to split the past of few tokens over threads, with several threads and so many pages. */
uint64_t nb_exec_split_bytes(const nb_config *c, size_t n_pages, int threads);
/* The keys and values of one page, in all layers: copied from another page, or every byte set. Between steps only. */
void nb_exec_copy_page(nb_exec *x, uint32_t to, uint32_t from);
void nb_exec_fill_page(nb_exec *x, uint32_t page, uint8_t byte);
/* Those bytes in one piece, to be kept elsewhere and put back: how many (0: this executor cannot), out, and in again. */
size_t nb_exec_page_bytes(nb_exec *x);
void nb_exec_save_page(nb_exec *x, uint32_t page, unsigned char *out);
void nb_exec_load_page(nb_exec *x, uint32_t page, const unsigned char *in);
/* The same for pages of layers with a window, where they are numbered apart. */
void nb_exec_copy_near(nb_exec *x, uint32_t to, uint32_t from);
void nb_exec_fill_near(nb_exec *x, uint32_t page, uint8_t byte);
/* Tokens that layers with a sliding window look back; 0: no layer has one. */
size_t nb_exec_window(const nb_config *c);
/* Are a layer's keys in those pages? It and all layers that read them have a window. */
bool nb_exec_is_near(const nb_config *c, size_t layer);

/* ---- state of recurrent and convolution layers ----
 *
 * Such layers keep a fixed number of floats per sequence instead of keys and values. A slot holds them for all layers of one
 * sequence; a row at position 0 begins a slot anew, a row at position p continues it and must find p tokens in it
 * (NB_EARG "exec.state" else). A state cannot be cut back: to return to an earlier position, keep a copy made there. The
 * bits of a loaded or copied state are those of the saved one, so a sequence continues as if it had run to there. */
/* Bytes of a saved slot; 0: the model keeps no state. */
size_t nb_exec_state_bytes(const nb_exec *x);
/* Tokens in a slot (0 after open). */
size_t nb_exec_state_tokens(const nb_exec *x, size_t slot);
/* Copy a slot out (nb_exec_state_bytes() bytes), in, or to another slot (a fork). Slots below n_states. */
void nb_exec_state_save(const nb_exec *x, size_t slot, void *out);
void nb_exec_state_load(nb_exec *x, size_t slot, const void *in);
void nb_exec_state_copy(nb_exec *x, size_t from, size_t to);
/* Say that a slot holds `tokens` tokens, whatever it has seen. For measurements: a state costs the same at any depth. */
void nb_exec_state_claim(nb_exec *x, size_t slot, uint32_t tokens);

/* What a tap sees. Rows are those of the batch (or of its current cut, row0 first). */
typedef enum nb_tap_kind { NB_TAP_EMBED, NB_TAP_OP_IN, NB_TAP_LAYER, NB_TAP_FINAL } nb_tap_kind;
typedef struct nb_tap {
    nb_tap_kind kind;
    size_t layer, op; /* OP_IN: input of LINEAR, MOE or ABSORB (the latent) op `op` of `layer`; LAYER: residual after `layer` */
    const float *x;   /* [m][ld], `width` used */
    size_t row0, m, width, ld;
    const uint32_t *chosen; /* OP_IN of a MOE op: [m][n_chosen] experts of each row; else NULL */
    size_t n_chosen;
} nb_tap;
typedef void nb_tap_fn(void *user, const nb_tap *t);
void nb_exec_set_tap(nb_exec *x, nb_tap_fn *fn, void *user); /* NULL: off */

/* Small models: on how many of the pool's threads a step of one to three rows is fastest, measured by a few steps with token 0 (page 0,
 * slot 0; before any sequence lives there), and so used from here on; now and then twice as many are
 * tried. Models of more than 256 MB a step keep all threads. Bits do not change. NB_ENOMEM. Source: kernels 8. */
nb_status nb_exec_tune(nb_exec *x, const nb_model *m, nb_pool *pool, nb_err *err);
/* The threads of such a step; 0: all of the pool. */
int nb_exec_few(const nb_exec *x);

/* A whole step. logits [number of wanted rows][vocab], in row order; may be NULL when none are wanted. */
nb_status nb_exec_run(nb_exec *x, const nb_batch *b, float *logits, nb_err *err);
/* Pieces for layer-by-layer jobs: h[m][d_model] of the batch's embeddings; layers [l0, l1) in place. */
nb_status nb_exec_embed(nb_exec *x, const nb_batch *b, float *h, nb_err *err);
nb_status nb_exec_layers(nb_exec *x, const nb_batch *b, float *h, size_t l0, size_t l1, nb_err *err);
/* Ops [op0, op1) of one layer: `in` [m][in_width of op0] goes to op0's input slot, out gets op(op1-1)'s output slot [m][out width].
 * Parts of fused slots (QKV, GU) are where the plan says. Used by the AWQ search on whole self_attn and mlp. */
/* With opts.carry: the rows h[m][...] that entered this layer, for the next spans, which read what they carry; NULL: nothing. */
void nb_exec_beside(nb_exec *x, const float *h);
nb_status nb_exec_span(nb_exec *x, const nb_batch *b, size_t layer, size_t op0, size_t op1, const float *in, float *out, nb_err *err);
/* Rows in[m][d_model] through gate and up of expert e of a layer (n_experts: the shared one), and its activation: act[m][width of
 * its down projection]. */
nb_status nb_exec_ffn(nb_exec *x, size_t layer, size_t e, const float *in, size_t m, float *act, nb_err *err);
/* The same from the middle of a layer: h [m][d_model] goes to and comes from the residual slot; `in` is not read where op0 reads
 * that slot, out may be NULL, op1 may be the end of the layer. What else op0 and the ops behind it read must be `in` or h. */
nb_status nb_exec_part(nb_exec *x, const nb_batch *b, size_t layer, size_t op0, size_t op1, float *h, const float *in, float *out,
                       nb_err *err);
/* Final norm and head on h[m][d_model]: logits for all rows; NULL: only what the head reads, for a tap. */
nb_status nb_exec_head(nb_exec *x, const float *h, size_t m, float *logits, nb_err *err);

/* ---- for implementers ---- */

/* What an executor does; the functions above call these. An implementation embeds nb_exec as first member. */
typedef struct nb_exec_ops {
    void (*close)(nb_exec *x);
    uint64_t (*bytes)(const nb_exec *x);
    void (*set_tap)(nb_exec *x, nb_tap_fn *fn, void *user);
    nb_status (*run)(nb_exec *x, const nb_batch *b, float *logits, nb_err *err);
    nb_status (*embed)(nb_exec *x, const nb_batch *b, float *h, nb_err *err);
    nb_status (*layers)(nb_exec *x, const nb_batch *b, float *h, size_t l0, size_t l1, nb_err *err);
    nb_status (*span)(nb_exec *x, const nb_batch *b, size_t layer, size_t op0, size_t op1, float *h, const float *in, float *out,
                      nb_err *err);
    nb_status (*ffn)(nb_exec *x, size_t layer, size_t e, const float *in, size_t m, float *act, nb_err *err);
    void (*beside)(nb_exec *x, const float *h);
    nb_status (*head)(nb_exec *x, const float *h, size_t m, float *logits, nb_err *err);
    void (*copy_page)(nb_exec *x, uint32_t to, uint32_t from);
    void (*fill_page)(nb_exec *x, uint32_t page, uint8_t byte);
    size_t (*page_io)(nb_exec *x, uint32_t page, unsigned char *out, const unsigned char *in); /* may be NULL; either may be; bytes */
    void (*copy_near)(nb_exec *x, uint32_t to, uint32_t from); /* these two only where opts.n_near is obeyed */
    void (*fill_near)(nb_exec *x, uint32_t page, uint8_t byte);
    size_t (*state_bytes)(const nb_exec *x); /* the rest only where this is not NULL */
    unsigned char *(*state_at)(nb_exec *x, size_t slot);
    void (*state_claim)(nb_exec *x, size_t slot, uint32_t tokens);
} nb_exec_ops;
struct nb_exec {
    const nb_exec_ops *ops;
    nb_pool *pool; /* the rest is nb_exec_tune's */
    int few;
    unsigned steps; /* of a few rows */
    double took;    /* seconds of the last one */
};

#endif
