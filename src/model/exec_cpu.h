/* exec_cpu.h - inside of the CPU executor: its buffers, and the two halves of a step. Not for other floors.
 *
 * exec_ops.c runs ops over the rows that are in the slots; exec_cpu.c brings rows in and out. Row-wise ops (norm, rope,
 * activation, quantizing an input) are gathered and run as one fork over rows; a linear op and attention are one fork
 * each. At m = 1 the row-wise ops run on the caller. What is left of a step when no op keeps anything for later rows is run for the rows
 * whose logits are wanted alone. */
#ifndef NB_MODEL_EXEC_CPU_H
#define NB_MODEL_EXEC_CPU_H

#include "model/exec.h"
#include "model/weights.h"

enum {
    NB_MAX_ITEMS = 16,      /* row-wise ops gathered at most */
    NB_INLINE_MACS = 32768, /* below, a linear op runs on the caller (kernels 8) */
    NB_FETCH_STRIPS = 256,  /* outputs of one token, in strips, that are fetched from other threads' caches */
    NB_QUERY_ROWS = 64,     /* query rows (tokens x heads of a group) of one attention task */
    NB_SPLIT_ROWS = 4,      /* tokens of a task that may be split over tiles */
    NB_RECUR_TILE = 16,     /* tokens of one call of a recurrence */
    NB_PIECE_ROWS = 64,     /* fewer rows of a product are not cut */
    NB_PIECE_STEP = 16,     /* pieces of a product are multiples of so many rows: one quantized piece then fills whole cache lines */
    NB_PIECE_WASTE = 30     /* of 1000 turns of the threads, those without work that do not matter */
};

/* One row-wise op, waiting. */
struct nb_xcpu;
struct nb_item;
typedef void nb_row_fn(struct nb_xcpu *x, const struct nb_item *it, size_t r);
typedef struct nb_item {
    nb_row_fn *row; /* NULL: quantize the input of f */
    const nb_layer *layer;
    size_t l;
    const nb_op *op;
    const nb_fused *f;
} nb_item;
/* An op over all rows, after what was pending. */
typedef void nb_whole_fn(struct nb_xcpu *x, size_t l, const nb_op *op);

/* Rows of one sequence inside the current cut, and blocks of them. */
typedef struct nb_block {
    const nb_seq_view *seq;
    size_t row, m, pos;
    size_t item0; /* tiles of all blocks before this one (split attention) */
} nb_block;

/* Where a layer's keys and values lie: pages from base on, in a page K of every head, then V (MLA: V only). */
typedef struct nb_kv_place {
    size_t side, side_page;                /* in plain pages: from side on, entries, then keys that choose them; 0 bytes: none */
    size_t base, page, head, v_off, index; /* index: keys that choose, [dim][tokens]; 0: none */
    bool own;                              /* the layer writes them, and no earlier one shares the place */
    bool near;                             /* in pages that are numbered apart: the layer and all that read its keys have a window */
} nb_kv_place;

typedef struct nb_xcpu {
    nb_exec base; /* first: an nb_exec is one of these */
    nb_model *m;
    const nb_kern *kern;
    nb_exec_opts o;
    int threads;
    uint64_t bytes;

    float *slot[NB_SLOT_COUNT]; /* [max_m][slot_width] */
    float *slots;               /* the block they are cut from */
    size_t slots_bytes;
    nb_act act[3];          /* quantized inputs of the current linear op, by matrix: the first piece of its rows */
    size_t piece, act_m;    /* rows of a piece, and all of them */
    unsigned char *act_buf; /* n_acts x act_bytes */
    size_t act_bytes, n_acts;
    float *tail; /* [max_m][64] last strip of logits */

    unsigned char *kv;
    size_t kv_bytes;
    nb_kv_place *kv_of; /* [n_layers] */

    size_t half[2];       /* rotated pairs, by nb_layer_rope */
    float *cs[2], *sn[2]; /* by nb_layer_rope: [rope_cap][half] positions from 0, plain tables; LOCAL only where layers use it */
    size_t rope_cap;
    float *own_cs, *own_sn;               /* [max_m][half] rows whose sequence needs another table */
    const float **row_cs[2], **row_sn[2]; /* by nb_layer_rope: [max_m] */

    nb_block *blocks;
    size_t n_blocks;
    nb_block *spans; /* the rows of each sequence, uncut */
    size_t n_spans;

    unsigned char *states; /* [n_states][state_stride]: tokens by layer, then the floats of every layer */
    size_t states_bytes, state_stride, state_head, state_layers;
    size_t *state_off; /* [n_layers] floats, SIZE_MAX: none */
    float *mix;        /* [threads][mix_floats] scratch of mixers */
    size_t mix_floats;
    float *scratch; /* [threads][scratch_floats] attention */
    size_t scratch_floats;
    float *part; /* partial results of split attention */
    size_t part_floats;

    uint32_t *picked;        /* [max_m][index_top] positions, ascending, of rows with more keys than that */
    uint32_t *in_order;      /* 0, 1, ...: pages of gathered keys */
    unsigned char *gathered; /* [threads][gather_bytes] */
    float *marks;            /* [threads][mark_floats] scores of all keys of a row, and of one page */
    size_t gather_bytes, mark_floats;

    uint32_t *chosen; /* [max_m][n_active] experts of each row  */
    float *share;     /* their weights                          */
    uint32_t *taken;  /* [max_m] rows of the current expert     */
    float *scores;    /* [2 * n_experts + n_groups] of one row  */

    nb_item items[NB_MAX_ITEMS];
    size_t n_items;

    /* the current cut */
    const nb_batch *b;
    size_t row0, rows;
    /* Of its last layers only the rows whose logits are wanted, after (in attention: before the keys are read) the last op that leaves
     * something of a row for later ones. The slots then begin with these rows, and b is `kept`. */
    bool narrows;
    size_t last_layer, last_op;
    nb_batch kept;
    int32_t *kept_token; /* [max_m] */
    uint32_t *kept_pos, *kept_seq;

    size_t width;        /* floats of a row that enters and leaves a layer: the residual, and what goes beside it */
    const float *beside; /* [m][width] rows of the next spans, or NULL */
    nb_tap_fn *tap;
    void *tap_user;
} nb_xcpu;

/* exec_open.c. All buffers of an executor whose options are set; what of it is there is closed; pages of the interface. */
nb_status nb_xcpu_alloc(nb_xcpu *x, nb_err *err);
void nb_xcpu_close(nb_exec *base);
uint64_t nb_xcpu_bytes(const nb_exec *base);
void nb_xcpu_copy_page(nb_exec *base, uint32_t to, uint32_t from);
void nb_xcpu_fill_page(nb_exec *base, uint32_t page, uint8_t byte);
size_t nb_xcpu_page_io(nb_exec *base, uint32_t page, unsigned char *out, const unsigned char *in);
void nb_xcpu_copy_near(nb_exec *base, uint32_t to, uint32_t from);
void nb_xcpu_fill_near(nb_exec *base, uint32_t page, uint8_t byte);
/* Do some layers rotate by a table of their own? */
bool nb_xcpu_has_local(const nb_xcpu *x);
/* exec_ops.c. The rows of the cut are in the input slot; ops [op0, op1) of layer l. Row-wise ops may stay pending. */
void nb_xcpu_ops(nb_xcpu *x, size_t l, size_t op0, size_t op1);
/* Run what is pending. */
void nb_xcpu_flush(nb_xcpu *x);
/* The last op of all that leaves something of a row for later rows, keys or a state; of layer SIZE_MAX where there is none. */
void nb_xcpu_find_last(const nb_xcpu *x, size_t *layer, size_t *op);
/* exec_cpu.c. Only the rows of the cut whose logits are wanted, from here on; nothing may be pending. */
void nb_xcpu_keep_wanted(nb_xcpu *x);
/* Final norm of X row `from` into NORM row `to`. */
void nb_xcpu_final_norm(nb_xcpu *x, size_t from, size_t to);
/* Norm of an embedding in X, where the model has one. */
void nb_xcpu_embed_norm(nb_xcpu *x, size_t r);
/* m rows of one slot through f into another; quantizes its input if f wants that. */
void nb_xcpu_linear(nb_xcpu *x, const nb_fused *f, nb_slot in, nb_slot out, size_t m);
/* y = act(gate) * up */
void nb_xcpu_act(const nb_xcpu *x, float *y, const float *in, size_t n); /* of a plain MLP */
void nb_xcpu_act_mul(const nb_xcpu *x, float *y, const float *gate, const float *up, size_t n);
/* exec_rows.c. By op kind; NULL where an op is not row-wise. Keys and values of a row into their pages. */
extern nb_row_fn *const nb_xcpu_rows[NB_OP_COUNT];
nb_row_fn nb_xcpu_put_kv;
float nb_xcpu_grow(const nb_xcpu *x, size_t r);
unsigned char *nb_xcpu_kv(const nb_xcpu *x, size_t layer, size_t head);
/* exec_mla.c. Row-wise steps of latent attention, and those by head. */
nb_row_fn nb_xcpu_latent, nb_xcpu_join;
nb_whole_fn nb_xcpu_absorb, nb_xcpu_unfold;
/* exec_moe.c. The mixture of experts of layer l. */
nb_whole_fn nb_xcpu_moe;
/* exec_state.c. Open the pool; where a sequence of the cut keeps the floats of layer l; whether rows may continue theirs. */
nb_status nb_xcpu_states_open(nb_xcpu *x, nb_err *err);
float *nb_xcpu_state(const nb_xcpu *x, const nb_block *span, size_t l);
nb_status nb_xcpu_states_check(const nb_xcpu *x, const nb_batch *b, size_t l0, size_t l1, nb_err *err);
/* Threads that work on matrices of the cut: NULL for few values. fn over [0, spans * heads): single tokens are bound by memory, so
 * that every thread has one run of it; longer spans are handed out one by one. */
nb_pool *nb_xcpu_mix_pool(const nb_xcpu *x);
void nb_xcpu_heads(const nb_xcpu *x, nb_range_fn *fn, void *ctx);
/* All ops of a layer have seen the rows of the cut. */
void nb_xcpu_states_done(nb_xcpu *x, size_t l);
size_t nb_xcpu_state_bytes(const nb_exec *x);
unsigned char *nb_xcpu_state_at(nb_exec *x, size_t slot);
void nb_xcpu_state_claim(nb_exec *x, size_t slot, uint32_t tokens);
/* exec_conv.c, exec_delta.c, exec_ssm.c. Mixers: rows of a sequence in order, split over channels or heads. */
nb_whole_fn nb_xcpu_conv, nb_xcpu_delta, nb_xcpu_ssm, nb_xcpu_ssm1, nb_xcpu_linatt;
nb_row_fn nb_xcpu_parts, nb_xcpu_ssm_norm, nb_xcpu_dt_norm;
/* The first m rows of TAKEN through gate, up and activation of an expert, into ACT. */
void nb_xcpu_ffn_act(nb_xcpu *x, const nb_ffn *f, size_t m);
/* exec_index.c. Room for choices; choosing; attention of layer l over chosen keys; whether some row of the cut needs that. */
nb_status nb_xcpu_index_open(nb_xcpu *x, nb_err *err);
nb_whole_fn nb_xcpu_index;
void nb_xcpu_attn_picked(nb_xcpu *x, size_t l);
bool nb_xcpu_picks(const nb_xcpu *x);
/* exec_ops.c. What one attention task reads and writes. */
nb_attn nb_xcpu_attn_task(const nb_xcpu *x, size_t layer, const nb_block *b, size_t head);
/* exec_carry.c. What layer l reads beside the residual, from rows [rows][ld] of the cut into slots and pages; what it leaves. */
void nb_xcpu_carry_in(nb_xcpu *x, size_t l, const float *rows, size_t ld);
void nb_xcpu_carry_out(const nb_xcpu *x, size_t l, float *rows, size_t ld);
/* exec_gemma.c. What follows from embeddings in X beside them; what the head reads, to X; rows in layers. */
void nb_xcpu_after_embed(nb_xcpu *x);
void nb_xcpu_before_head(nb_xcpu *x);
/* exec_index.c: the k best of n > k scores, as ascending indices; of equals the first. */
void nb_xcpu_pick(const float *v, size_t n, size_t k, uint32_t *out);
/* exec_ops.c: m rows through matrices of floats, from and to anywhere. */
void nb_xcpu_dense(const nb_xcpu *x, const nb_fused *f, const float *in, size_t ldi, float *out, size_t ldo, size_t m);
/* exec_v4.c, exec_v4_attn.c. */
nb_row_fn nb_xcpu_hyper_in, nb_xcpu_hyper_out, nb_xcpu_one_kv, nb_xcpu_unrotate;
nb_whole_fn nb_xcpu_groups, nb_xcpu_entries;
nb_status nb_xcpu_v4_open(nb_xcpu *x, nb_err *err);
void nb_xcpu_v4_begin(nb_xcpu *x);
void nb_xcpu_v4_end(nb_xcpu *x);
void nb_xcpu_attn_v4(nb_xcpu *x, size_t l);
/* exec_shared.c. */
nb_row_fn nb_xcpu_pair, nb_xcpu_plus;
nb_row_fn nb_xcpu_branch, nb_xcpu_vnorm, nb_xcpu_sparse, nb_xcpu_predict, nb_xcpu_correct, nb_xcpu_spread;
/* Logits of `m` rows in the NORM slot. */
void nb_xcpu_logits(nb_xcpu *x, size_t m, float *logits);

#endif
