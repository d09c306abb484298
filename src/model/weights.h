/* weights.h - inside of nb_model: packed matrices, and the stored tensors they come from. Not for other floors. */
#ifndef NB_MODEL_WEIGHTS_H
#define NB_MODEL_WEIGHTS_H

#include "base/mem.h"
#include "model/mod.h"
#include "model/model.h"

/* One packed matrix: one part of a linear op, or several that could be fused. */
typedef enum nb_mat_kind { NB_MAT_Q4, NB_MAT_Q8, NB_MAT_DENSE } nb_mat_kind;
typedef struct nb_mat {
    nb_mat_kind kind;
    nb_q4 q4; /* by kind; Q8: as an nb_q8 */
    nb_dense dense;
    float *fix; /* Q4: [strip][packed group][64] stored offset + scale * zero of layouts with float offsets, or NULL */
    bool has_fix;
    size_t strip0; /* first strip inside the op's output slot */
    size_t n_strips;
    size_t part0, n_parts; /* which of the op's parts */
} nb_mat;

/* All weights of one linear op: its parts in order, each padded to 64 rows. */
typedef struct nb_fused {
    nb_mat mats[3];
    size_t n_mats, n_strips, k;
    size_t part_row[3]; /* first padded row of each part */
    float *bias;        /* [n_strips * 64] or NULL       */
    size_t bytes;       /* of packed weights             */
} nb_fused;

/* Where one part comes from: exactly one of q, w and mx. */
typedef struct nb_source {
    const nb_linear *q;
    const nb_tensor *w, *bias;
    const nb_tensor *mx, *mx_scales; /* MXFP4 blocks: spec models 4.3; at, rs count rows of blocks */
    size_t n, k;
    uint64_t at, rs, cs;         /* w: element (row, column) is at + row * rs + column * cs; rs 0: all of w, row by row */
    uint64_t bias_at, bias_step; /* step 0: plain */
    bool wide;                   /* q: scales need 32 bits            */
    bool widen;                  /* q: held as f32, since no packed form takes its groups */
    uint32_t *perm;              /* q: input order of act-order, NULL */
} nb_source;

/* The weights of one gated MLP, an expert's or a shared one. */
typedef struct nb_ffn {
    nb_fused gu, down;
    size_t ff, up_off; /* where up begins in the output of gu */
} nb_ffn;
typedef struct nb_moe {
    nb_fused router;
    nb_ffn *ffn;           /* [n_experts], then the shared one if any */
    float *correction;     /* [n_experts] or NULL */
    nb_fused gate;         /* of the shared one, one output; no matrices: none */
    nb_fused enter, leave; /* projections around the experts; no matrices: none */
    uint32_t *by_token;    /* [vocab][n_active] or NULL: chosen by their scores */
} nb_moe;

/* kv_b of latent attention, taken apart by head. */
typedef struct nb_latent {
    nb_dense *absorb; /* [n_heads] kv_rank outputs from nope inputs  */
    nb_dense *unfold; /* [n_heads] value outputs from kv_rank inputs */
    unsigned char *block;
    size_t bytes;
} nb_latent;

/* Sources of one such MLP. */
typedef struct nb_ffn_source {
    nb_source gu[3], down;
    size_t n_gu;
} nb_ffn_source;

typedef struct nb_layer {
    bool bound;
    nb_fused ops[NB_ROLE_COUNT]; /* by first role of the op */
    float *vec[NB_VEC_COUNT];
    nb_moe moe;
    nb_latent latent;
    nb_fused *groups;     /* [v4.groups] of the output projection, or NULL */
    unsigned char *block; /* packed matrices, one huge block */
    size_t block_bytes;
    nb_arena mem; /* norm vectors, biases, permutations */
} nb_layer;

/* What the ops of the top are; the final norm is vec N1. */
enum { NB_TOP_HEAD, NB_TOP_IN, NB_TOP_OUT, NB_TOP_LAYERS, NB_TOP_STREAMS, NB_TOP_UNSTREAM = NB_TOP_STREAMS + 7 };

struct nb_model {
    nb_config cfg;
    nb_plan plan;
    const nb_kern *kern;
    nb_pool *pool;
    nb_store *store;
    const nb_scan *scan;
    bool lazy, f32, headless;
    size_t codes; /* nb_model_opts.codes */
    nb_layer *layers;
    nb_layer top;     /* by NB_TOP */
    float *positions; /* [pos_offset + n_positions][d_model] or NULL */
    size_t n_positions;
    size_t act_g, n_acts;        /* smallest packed group and most matrices of one op, of 4-bit matrices bound so far; 0: none */
    nb_dtype embed_type;         /* of embed */
    const unsigned char *embed;  /* [vocab][embed_dim], or NULL: rows of the head */
    size_t embed_bytes;          /* 0: as it is stored */
    const nb_tensor *embed_from; /* then, of a lazy model */
    nb_dtype layer_type;         /* of layer_embed */
    unsigned char *layer_embed;  /* [branch_vocab][n_layers * branch] inputs of single layers, or NULL */
    size_t layer_bytes;
    float *layer_norm; /* [branch] */
};

/* The matrices of a layer, or of the top, with their sources. */
typedef struct nb_pack_item {
    nb_fused *f; /* NULL while only checking */
    nb_source src[3];
    size_t n_parts;
    bool plain; /* a LINEAR op of a layer, which may be held as codes */
} nb_pack_item;
typedef struct nb_pack_list {
    nb_pack_item *items;
    size_t n, cap;
} nb_pack_list;

/* bind.c: add to a list; pack all of it into one block of l; free the list. */
nb_status nb_pack_add(nb_pack_list *lp, nb_fused *f, const nb_source *src, size_t n, nb_err *err);
nb_status nb_pack_layer(nb_model *m, nb_layer *l, nb_pack_list *lp, nb_err *err);
void nb_pack_clear(nb_pack_list *lp);
/* A vector of n values by name, f32, from mem. */
nb_status nb_bind_vec(const nb_model *m, const char *name, size_t n, nb_arena *mem, float **out, nb_err *err);
/* The kernel of layer norms has no offset: v += 1. */
void nb_add_one(float *v, size_t n);
/* The first error of several threads. */
nb_status nb_first_error(const nb_err *errs, size_t n, nb_err *err);
/* bind_top.c: m->top, embedding and positions; the rows of the embedding set cfg.vocab. */
nb_status nb_bind_top(nb_model *m, const nb_host *host, nb_err *err);
/* bind_gemma.c: inputs of single layers, projections of streams; matrices to the list. */
nb_status nb_bind_gemma(nb_model *m, nb_pack_list *lp, nb_err *err);
/* [channels][n] as [n][channels]. */
nb_status nb_turn(float *v, size_t n, size_t channels, nb_err *err);
/* bind_v4.c: the streams at the head; one group's matrix of the output; experts by token. */
nb_status nb_bind_v4(nb_model *m, nb_err *err);
nb_status nb_v4_group(const nb_plan *p, const nb_store *s, size_t layer, size_t g, nb_source *out, nb_err *err);
nb_status nb_v4_table(const nb_model *m, size_t layer, nb_arena *mem, uint32_t **out, nb_err *err);
/* source.c: rows of the embedding that stand for words; behind them may be some of images. */
size_t nb_vocab_rows(const nb_config *c, const nb_tensor *embed);
/* Find `prefix` in scan or store and check its shape [n][k]. NB_EFORMAT cfg.missing_tensor, cfg.shape_mismatch. */
nb_status nb_source_find(const nb_store *s, const nb_scan *sc, const char *prefix, size_t n, size_t k, nb_source *out, nb_err *err);
/* Parts of a linear op of a layer; n_parts of them. */
nb_status nb_source_op(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, const nb_op *op, nb_source out[3],
                       size_t *n_parts, nb_err *err);
/* Rows [n0, n0 + rows) of an unquantized source as `type`: F32, or the stored type of a matrix that lies there whole (BF16 too for
 * MXFP4). Into scratch of rows * k floats, or where they lie. rows <= NB_STRIP. NULL: *err says why. */
const void *nb_source_rows(nb_store *st, const nb_source *s, nb_dtype type, size_t n0, size_t rows, float *scratch, nb_err *err);
/* What only the stored bytes tell: perm (from mem) and wide. */
nb_status nb_source_probe(nb_source *src, nb_arena *mem, nb_err *err);
/* latent.c: find and check kv_b (src), and pack it; or pack w[n][k] in its place. Free with nb_huge_free(block, bytes). */
nb_status nb_latent_find(const nb_model *m, size_t layer, nb_source *src, nb_err *err);
nb_status nb_latent_source(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, nb_source *src, nb_err *err);
nb_status nb_latent_set(nb_model *m, size_t layer, const float *w, nb_err *err);
nb_status nb_latent_bind(const nb_model *m, size_t layer, nb_arena *mem, nb_latent *out, nb_err *err);
/* Bytes it takes. */
size_t nb_latent_bytes(const nb_config *c, nb_dtype type);
/* moe.c: experts e < n_experts, the shared one e == n_experts. NB_EFORMAT cfg.missing_tensor, cfg.shape_mismatch. */
nb_status nb_moe_ffn(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, size_t e, nb_ffn_source *out, nb_err *err);
nb_status nb_moe_router(const nb_plan *p, const nb_store *s, size_t layer, nb_source *out, nb_err *err);
/* The projections around experts (leave or enter), where cfg.moe.latent. */
nb_status nb_moe_latent(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, bool leave, nb_source *out, nb_err *err);
/* The gate of a shared expert; w NULL when there is none. */
nb_status nb_moe_gate(const nb_plan *p, const nb_store *s, size_t layer, nb_source *out, nb_err *err);
/* The correction of the scores, NULL when there is none. */
const nb_tensor *nb_moe_correction(const nb_plan *p, const nb_store *s, size_t layer);
/* Decide what is fused and lay out the matrices (bases stay NULL). false: a shape that cannot be packed. */
bool nb_fused_layout(nb_fused *f, const nb_source *src, size_t n_parts, bool f32);
/* bind_codes.c: the same matrices, laid out before, as 8-bit codes in groups that divide g (nb_model_opts.codes). false: as it was. */
bool nb_fused_codes(nb_fused *f, const nb_source *src, size_t n_parts, size_t g);
/* Rows w[q->n][q->k] as 8-bit codes into q, initialised; q->g divides q->k. */
void nb_codes_round(nb_qlin *q, const float *w);
/* Can such a matrix hold these codes exactly? */
bool nb_codes_fit(const nb_mat *mat, const nb_qlin *q);
/* n rows from packed row row0 (a multiple of 64) of mat on: the codes q, or where it is NULL w[n][k], rounded. */
nb_status nb_codes_set(const nb_model *m, const nb_mat *mat, size_t row0, size_t n, const nb_qlin *q, const float *w, nb_err *err);
/* The type an unquantized tensor is packed in. */
nb_dtype nb_source_dtype(const nb_tensor *w, bool f32);
/* Codes of up to 4 bits are packed as 4, wider ones as 8. */
static inline nb_mat_kind nb_source_kind(const nb_source *s)
{
    if (!s->q || s->widen)
        return NB_MAT_DENSE;
    return s->q->spec.bits > 4 ? NB_MAT_Q8 : NB_MAT_Q4;
}
/* Bytes of the packed matrix, and of its fix. */
static inline size_t nb_mat_bytes(const nb_mat *m)
{
    return m->kind == NB_MAT_DENSE ? m->dense.bytes : m->q4.bytes;
}
static inline size_t nb_mat_fix_bytes(const nb_mat *m)
{
    return m->has_fix ? m->q4.n_strips * m->q4.n_groups * NB_STRIP * sizeof(float) : 0;
}

#endif
