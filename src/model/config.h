/* config.h - config.json in one normal form: every size checked, every default resolved.
 *
 * Source: spec models 2, 3, 8. Rules CF of hardening 5.5. */
#ifndef NB_MODEL_CONFIG_H
#define NB_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "model/arch.h"
#include "tensor/dtype.h"

typedef enum nb_rope_kind {
    NB_ROPE_DEFAULT,
    NB_ROPE_LINEAR,
    NB_ROPE_DYNAMIC,
    NB_ROPE_LLAMA3,
    NB_ROPE_YARN,
    NB_ROPE_LONGROPE,
    NB_ROPE_ALPHA,       /* dynamic with alpha: a larger theta at every length */
    NB_ROPE_PROPORTIONAL /* the factor says how many of all pairs turn, by exponents of the whole head */
} nb_rope_kind;

typedef struct nb_rope {
    nb_rope_kind kind;
    double theta, partial, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, alpha,
        short_mscale, long_mscale;             /* 0: by the rule */
    bool truncate, has_attention_factor, back; /* back: turned the other way */
    uint64_t orig_context;
    const double *long_factor, *short_factor; /* in the config's arena */
} nb_rope;

/* How a layer is rotated. */
typedef enum nb_layer_rope { NB_ROPE_MAIN, NB_ROPE_LOCAL, NB_ROPE_OFF } nb_layer_rope;

/* Mixture of experts. */
typedef struct nb_moe_cfg {
    nb_router router;
    bool plain;        /* experts without a gate */
    size_t latent;     /* experts work on so many components, between two projections; 0: on all */
    size_t n_identity; /* experts behind the others that return their input */
    size_t n_experts, n_active, ff, shared_ff, n_groups, top_groups;
    bool renorm;
    double scale, jitter;
    double limit, alpha;   /* of clamped experts; limit 0: plain ones       */
    double clip;           /* gate at most, up within this; 0: none         */
    const uint8_t *sparse; /* [n_layers] 1: the layer has experts; NULL: none has */
    bool any_dense;
} nb_moe_cfg;

/* Latent attention: sizes of the latents and of the parts of a head. */
typedef struct nb_mla_cfg {
    bool on;
    size_t q_rank, kv_rank, nope, rope, value; /* q_rank 0: q in one step */
    double q_mult, kv_mult;                    /* 1: none                 */
} nb_mla_cfg;

/* Mixers without softmax (models-2026 S4.4 to S4.9). Delta and KDA: keys of key_heads, values of heads; Mamba-2: heads of
 * value_dim in groups that share B and C of key_dim; Mamba-1: one head of inner channels; lightning: heads of key_dim. */
typedef struct nb_mix_cfg {
    size_t taps;                                       /* of the convolution                 */
    size_t key_heads, heads, key_dim, value_dim, rank; /* rank: of time steps of Mamba-1     */
    bool grouped;                                      /* stored by key head (qwen3_next)    */
    bool conv_bias, in_bias, out_bias, norm_first, no_norm;
    double rate, dt_min, dt_max, norm_eps; /* rate: factor of beta                           */
    double parts[5], in_mult, out_mult;    /* of falcon_h1: z, x, B, C, dt                   */
} nb_mix_cfg;

/* Sizes of a layer's attention and MLP, where layers differ. value_dim: of values as projected; kv_dim: of cached keys and
 * values. kv_from: the layer whose keys and values it reads. */
typedef struct nb_dims {
    size_t kv_heads, head_dim, value_dim, kv_dim, d_ff, kv_from;
} nb_dims;

/* DeepSeek-V4 (models-2026 S4.10): residual streams, entries that tokens make up, groups of the output. */
typedef struct nb_v4_cfg {
    bool on;
    size_t streams, sinkhorn; /* residuals; rounds that balance how they mix */
    double eps;               /* of those */
    size_t rate[2];           /* tokens of an entry: CSA, HCA */
    size_t groups, rank;      /* of the output projection */
    const uint8_t *hashed;    /* [n_layers] 1: experts follow from the token */
} nb_v4_cfg;

/* A block of weights that several layers run: the layer it is stored with, and which use of all this is. */
typedef struct nb_use {
    size_t from, index; /* from SIZE_MAX: the layer has none */
} nb_use;

typedef struct nb_config {
    const nb_arch *arch;
    const nb_names *names; /* never NULL */
    char model_type[64], class_name[96];
    size_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab, context;
    double norm_eps;
    bool attn_bias, o_bias, mlp_bias, tie_embeddings; /* attn_bias: of q, k, v */
    bool tie_given;                                   /* tie_embeddings was in the file, not a default */
    size_t sliding_window;                            /* 0: none */
    nb_rope rope, rope_local;
    const uint8_t *rope_of; /* [n_layers] nb_layer_rope; NULL: MAIN everywhere */
    bool rope_pairs;        /* rotate (2i, 2i+1) */
    nb_act_kind act;
    nb_norm_kind norm;
    nb_block_kind block;
    nb_qk_kind qk;
    nb_qkv_kind qkv; /* of architectures that store one matrix; the plan says what this checkpoint has */
    nb_mlp_kind mlp;
    double embed_mult, res_mult, logit_mult;           /* 1: none */
    double attn_scale, score_cap, logit_cap, clip_qkv; /* caps and clip 0: none */
    bool scale_by_layer;                               /* the softmax scale of layer l is divided by l + 1 */
    bool alibi, alibi_exact;                           /* exact: not rounded, in two components a head, outside the softmax scale */
    size_t global_head_dim;                            /* of full layers, where theirs differ; 0: none */
    size_t rope_dim;                                   /* rotated components when no factor says it; 0: by the factor */
    size_t kv_dim;                                     /* components of a cached key or value: head_dim, more with alibi */
    bool sinks_local;                                  /* sinks in windowed layers only */
    bool learned_pos;                                  /* positions are added to the embedding, from row pos_offset of their table on */
    size_t pos_offset;
    size_t embed_dim; /* of the embedding table and the head; d_model but for projections in and out */
    bool final_norm;
    nb_moe_cfg moe;
    nb_mla_cfg mla;                     /* on: head_dim is the rotated part, n_kv_heads 1: all heads share the latent */
    bool transposed;                    /* unquantized linears are stored [inputs, outputs] */
    const uint8_t *skip;                /* [n_layers] 1: the layer does nothing; NULL: all do something */
    const uint8_t *windowed;            /* [n_layers] 1: the layer looks back sliding_window tokens only; NULL: no layer does */
    nb_dtype dtype;                     /* as declared; NONE when absent */
    int64_t bos_id, eos_id[16], pad_id; /* -1: none */
    size_t n_eos;
    size_t branch;                       /* width of a layer's own input; 0: none */
    size_t branch_vocab;                 /* rows of its table                     */
    size_t side_rank, n_streams, active; /* of gemma3n; 0: none */
    bool scale_stream;
    const double *sparsity;                   /* [n_layers] deviations above the mean that a gate must be; 0: all; NULL: none */
    size_t halves;                            /* layers of this configuration that are one of the file; 0: 1 */
    size_t index_heads, index_dim, index_top; /* keys are chosen, as many as this; 0: all */
    bool index_pairs;                         /* rotated in pairs (2i, 2i+1) */
    size_t window_given;                      /* under another key; 0: not */
    nb_v4_cfg v4;
    const nb_use *uses;   /* [n_layers]; NULL: no layer shares a block. They read the residual and the embedding */
    size_t adapt_rank;    /* of low-rank paths of each use */
    bool adapt_qkv;       /* beside q, k and v too */
    const nb_dims *dims;  /* [n_layers]; NULL: all alike */
    double value_mult;    /* of v; 1: none               */
    const uint8_t *mixer; /* [n_layers] nb_mixer; NULL: attention everywhere */
    nb_mix_cfg mix;
    bool gated_q;                                             /* q rows of a head are followed by its gate */
    bool out_gate;                                            /* attention output times a sigmoid of a projection */
    size_t chunk;                                             /* windowed layers see their own chunk of so many positions; 0: a window */
    double grow, grow_step, grow_shift;                       /* q times 1 + grow ln(1 + floor((pos + shift) / step)); 0: none         */
    bool grow_off;                                            /* only in layers that are not rotated */
    bool embed_norm;                                          /* of the model's kind, behind the embedding */
    double final_mult;                                        /* of what the head reads; 1: none     */
    double alpha[3], beta[3];                                 /* NORM_RES: x = alpha norm + beta f: linear, full attention, MLP */
    double attn_in, attn_out, key_mult, gate_mult, down_mult; /* of falcon_h1; 1: none */
    void *mem;                                                /* arena of factor lists */
} nb_config;

/* Parse and check. root: config.json; a text_config inside is followed (models 3). Unknown architecture: NB_EUNSUPPORTED
 * "cfg.arch" with the list of known ones; bad values: NB_EFORMAT "cfg.value", "cfg.head_dim", "cfg.token_id", "cfg.overflow";
 * unknown rope types and activations: NB_EUNSUPPORTED "cfg.unsupported". Caller clears with nb_config_clear. */
nb_status nb_config_parse(const nb_json *root, nb_config *out, nb_err *err);
void nb_config_clear(nb_config *c);
static inline nb_dims nb_config_dims(const nb_config *c, size_t layer)
{
    return c->dims ? c->dims[layer] : (nb_dims){ c->n_kv_heads, c->head_dim, c->head_dim, c->kv_dim, c->d_ff, layer };
}

/* Is what is cached of a token key and value in one? */
static inline bool nb_config_one_kv(const nb_config *c)
{
    return c->mla.on || c->v4.on;
}

/* rope.c. r, the rotated components of a head (even, <= head_dim); of the local table. */
size_t nb_rope_dims(const nb_config *c);
size_t nb_rope_dims_local(const nb_config *c);
/* Some kinds depend on the length of the sequence (dynamic, longrope). The key tells lengths apart: equal keys, equal tables;
 * 0 is the plain table, the only one of all other kinds. total: tokens of the sequence, prompt and answer. */
size_t nb_rope_key(const nb_config *c, size_t total);
/* Where layer l is rotated. */
nb_layer_rope nb_rope_layer(const nb_config *c, size_t layer);
/* Angle per position of pair i (0 .. r/2-1), and the factor of both cos and sin. key: of nb_rope_key. */
double nb_rope_freq(const nb_config *c, size_t key, size_t i);
double nb_rope_attention_factor(const nb_config *c);
/* g(s, m) of spec models 8.5. */
double nb_rope_mscale(double s, double m);
/* cos, sin for positions [pos, pos + n): cs[n][r/2], sn[n][r/2]. Computed in double, rounded once. */
void nb_rope_table(const nb_config *c, size_t key, size_t pos, size_t n, float *cs, float *sn);
/* The same for the local table, which has no kind that depends on lengths and the same r. */
void nb_rope_table_local(const nb_config *c, size_t pos, size_t n, float *cs, float *sn);

#endif
