/* arch.h - the architecture table: what a model_type means where config.json is silent. A new architecture is a row.
 *
 * Source: spec models 2 to 5. The table is constant; all functions may be called from several threads. */
#ifndef NB_MODEL_ARCH_H
#define NB_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Source linears of one layer. The order is the order of a fused matrix. */
typedef enum nb_role {
    NB_ROLE_Q,
    NB_ROLE_K,
    NB_ROLE_V,
    NB_ROLE_QKV, /* q, k and v as one stored matrix        */
    NB_ROLE_QA,  /* latent attention (spec models 5.6): q in two steps */
    NB_ROLE_QB,
    NB_ROLE_KVA, /* latent of k and v, rotated part of k   */
    NB_ROLE_O,
    NB_ROLE_GATE,
    NB_ROLE_UP,      /* of a plain MLP: its first matrix       */
    NB_ROLE_GATE_UP, /* gate rows, then up rows, as one stored matrix */
    NB_ROLE_DOWN,
    NB_ROLE_OGATE,  /* gate of the output of attention        */
    NB_ROLE_MIX_IN, /* of a mixer without softmax: its input, all parts of it that are one matrix */
    NB_ROLE_MIX_Q,  /* or q, k, v apart                       */
    NB_ROLE_MIX_K,
    NB_ROLE_MIX_V,
    NB_ROLE_MIX_Z, /* its output gate; of KDA in two steps   */
    NB_ROLE_MIX_ZA,
    NB_ROLE_MIX_BA, /* rates and decays, by key head          */
    NB_ROLE_MIX_B,  /* rates                                  */
    NB_ROLE_MIX_A,  /* decays; of KDA the second of two steps */
    NB_ROLE_MIX_AA,
    NB_ROLE_MIX_X, /* Mamba-1: time step, B, C from the convolved input, and the time steps */
    NB_ROLE_MIX_DT,
    NB_ROLE_MIX_OUT,
    NB_ROLE_BRANCH_IN, /* from the residual to a layer's own input and back */
    NB_ROLE_BRANCH_OUT,
    NB_ROLE_SIDE_IN, /* a low-rank path beside attention */
    NB_ROLE_SIDE_OUT,
    NB_ROLE_INDEX_Q, /* of what chooses keys: queries from the latent of q, a key, weights of its heads */
    NB_ROLE_INDEX_K,
    NB_ROLE_INDEX_W,
    NB_ROLE_BLEND,      /* of a block that layers share: its output, by the layer that uses it; low-rank paths of each use */
    NB_ROLE_ADAPT_Q_IN, /* each _IN is followed by its _OUT */
    NB_ROLE_ADAPT_Q_OUT,
    NB_ROLE_ADAPT_K_IN,
    NB_ROLE_ADAPT_K_OUT,
    NB_ROLE_ADAPT_V_IN,
    NB_ROLE_ADAPT_V_OUT,
    NB_ROLE_ADAPT_UP_IN,
    NB_ROLE_ADAPT_UP_OUT,
    NB_ROLE_COMP_KV, /* of compressed entries and of what chooses them: values, and how much each token counts */
    NB_ROLE_COMP_GATE,
    NB_ROLE_ICOMP_KV,
    NB_ROLE_ICOMP_GATE,
    NB_ROLE_COUNT,
    NB_ROLE_NONE = NB_ROLE_COUNT
} nb_role;

/* Vectors of one layer: weights of norms, then their biases in the same order, then others. */
typedef enum nb_vec {
    NB_VEC_N1, /* before attention  */
    NB_VEC_N2, /* before the MLP    */
    NB_VEC_QN, /* of q and k        */
    NB_VEC_KN,
    NB_VEC_N1P, /* after attention   */
    NB_VEC_N2P, /* after the MLP     */
    NB_VEC_QA,  /* of latents        */
    NB_VEC_KVA,
    NB_VEC_N1_BIAS,
    NB_VEC_N2_BIAS,
    NB_VEC_QN_BIAS,
    NB_VEC_KN_BIAS,
    NB_VEC_SINKS,     /* a logit for each head that joins the softmax */
    NB_VEC_ACT_SCALE, /* what AutoAWQ divides the activation of a plain MLP by; optional */
    NB_VEC_CONV,      /* of mixers: the convolution [taps][channels], also of k and v where they are apart, and its bias */
    NB_VEC_CONV_K,
    NB_VEC_CONV_V,
    NB_VEC_CONV_BIAS,
    NB_VEC_A_LOG,
    NB_VEC_DT_BIAS,
    NB_VEC_SKIP,     /* D                               */
    NB_VEC_MIX_NORM, /* weight before the output        */
    NB_VEC_DT_NORM,  /* Mamba-1: of time step, B, C     */
    NB_VEC_B_NORM,
    NB_VEC_C_NORM,
    NB_VEC_ALPHA_P, /* of xielu: four scalars */
    NB_VEC_ALPHA_N,
    NB_VEC_BETA,
    NB_VEC_EPS,
    NB_VEC_DENSE_NORM, /* of the MLP beside experts, of their input and output, of what their router reads */
    NB_VEC_MOE_IN,
    NB_VEC_MOE_OUT,
    NB_VEC_ROUTER_NORM,
    NB_VEC_EXPERT_SCALE, /* of the share of each expert */
    NB_VEC_BRANCH_NORM,
    NB_VEC_LAYER_SCALAR,
    NB_VEC_SIDE_NORM,
    NB_VEC_ALT_NORM, /* of streams: norm and matrix of what mixes them, prediction, correction, scale of the active one */
    NB_VEC_ALT_ROUTER,
    NB_VEC_ALT_PREDICT,
    NB_VEC_ALT_CORRECT,
    NB_VEC_ALT_SCALE,
    NB_VEC_INDEX_NORM, /* of the key that chooses */
    NB_VEC_INDEX_BIAS,
    NB_VEC_PAIR_NORM, /* of the residual and the embedding side by side */
    NB_VEC_COMP_APE,  /* of compressed entries: what a token counts by its place in the window, and a norm */
    NB_VEC_COMP_NORM,
    NB_VEC_ICOMP_APE,
    NB_VEC_ICOMP_NORM,
    NB_VEC_HYPER1, /* of hyper-connections around attention: a matrix, then base and scale; the same around the MLP */
    NB_VEC_HYPER1_BASE,
    NB_VEC_HYPER1_SCALE,
    NB_VEC_HYPER2,
    NB_VEC_HYPER2_BASE,
    NB_VEC_HYPER2_SCALE,
    NB_VEC_COUNT,
    NB_VEC_NONE = NB_VEC_COUNT /* a norm without parameters */
} nb_vec;

/* Names relative to the prefix of the model or to a layer; NULL: as Llama names it (spec models 4.1). A # stands for a number, an @ for
 * what only some layers have before the rest (plan_names.c). */
typedef struct nb_names {
    const char *embed, *positions, *layers, *norm, *head, *embed_norm; /* head: a full name */
    const char *roles[NB_ROLE_COUNT];
    const char *vecs[NB_VEC_COUNT]; /* of norms stems: .weight and .bias follow; of others the whole name */
} nb_names;

/* What mixes the tokens of a layer (models-2026 S1). */
typedef enum nb_mixer {
    NB_MIX_ATTN,
    NB_MIX_DELTA,     /* gated delta rule                          */
    NB_MIX_KDA,       /* the same with a decay for every channel   */
    NB_MIX_SSM,       /* Mamba-2                                   */
    NB_MIX_SSM1,      /* Mamba-1                                   */
    NB_MIX_CONV,      /* short convolution                         */
    NB_MIX_LIGHTNING, /* linear attention with fixed decays        */
    NB_MIX_NONE,      /* the layer is an MLP only                  */
    NB_MIX_SHARED,    /* attention over the keys and values, or the choice of keys, of an earlier layer */
    NB_MIX_KEYVAL,    /* attention whose keys are its values       */
    NB_MIX_CSA,       /* attention over a window and chosen entries that few tokens make up */
    NB_MIX_HCA,       /* and over all entries that many tokens make up */
    NB_MIX_COUNT
} nb_mixer;

/* Where a bias flag comes from. */
typedef enum nb_bias_rule { NB_BIAS_NO, NB_BIAS_YES, NB_BIAS_CONFIG } nb_bias_rule;

/* Which layers are limited to the sliding window when there is one. */
typedef enum nb_window_rule {
    NB_WINDOW_NONE,      /* never                                                      */
    NB_WINDOW_ALL,       /* every layer                                                */
    NB_WINDOW_UPPER,     /* layers from max_window_layers on, if use_sliding_window    */
    NB_WINDOW_FLAG,      /* every layer, if use_sliding_window                         */
    NB_WINDOW_QWEN2_MOE, /* even layers below max_window_layers, if use_sliding_window */
    NB_WINDOW_EVEN,      /* even layers                                                */
    NB_WINDOW_PATTERN,   /* all but the last of every `pattern` (sliding_window_pattern) */
    NB_WINDOW_NO_ROPE,   /* layers without rope, if use_sliding_window                 */
    NB_WINDOW_FROM,      /* layers from max_window_layers on                           */
    NB_WINDOW_CWM,       /* all but every fourth, from the first on                    */
    NB_WINDOW_ROPE,      /* layers with rope                                           */
    NB_WINDOW_MIMO       /* all but the first and every sixth                          */
} nb_window_rule;

/* Which layers are rotated, and how. */
typedef enum nb_rope_rule {
    NB_LAYERS_ALL,     /* all alike                                      */
    NB_LAYERS_LOCAL,   /* windowed layers by a table of their own        */
    NB_LAYERS_WINDOW,  /* windowed layers only                           */
    NB_LAYERS_WINDOW2, /* the same, but all when there is no window      */
    NB_LAYERS_LIST,    /* no_rope_layers                                 */
    NB_LAYERS_NONE     /* learned positions or alibi                     */
} nb_rope_rule;

/* y = (x [- mean]) / deviation * (w + offset) + b */
typedef enum nb_norm_kind {
    NB_NORM_RMS,
    NB_NORM_RMS1,
    NB_NORM_LN,
    NB_NORM_LN1,
    NB_NORM_LN_W, /* no bias           */
    NB_NORM_LN_0, /* nor weight        */
    NB_NORM_RMS_0 /* no weight         */
} nb_norm_kind;

/* Where a layer has its norms (spec models 2, column Slots). */
typedef enum nb_block_kind {
    NB_BLOCK_PRE,
    NB_BLOCK_POST,
    NB_BLOCK_SANDWICH,
    NB_BLOCK_PAR1,
    NB_BLOCK_PAR2,
    NB_BLOCK_POST_LN,
    NB_BLOCK_NORM_RES, /* as PRE, but the residual is the norm's output */
    NB_BLOCK_SINGLE,   /* one norm, and either a mixer or an MLP        */
    NB_BLOCK_BOTH,     /* as PRE, attention and a mixer in every layer  */
    NB_BLOCK_MIXED,    /* attention layers POST, others PRE             */
    NB_BLOCK_GEMMA4,   /* as SANDWICH, and more: models-2026 S4.8       */
    NB_BLOCK_GEMMA3N,
    NB_BLOCK_LONGCAT, /* two PRE halves, experts beside both: models-2026 S4.2 */
    NB_BLOCK_HYPER,   /* several residuals, mixed around attention and MLP: models-2026 S4.10 */
    NB_BLOCK_ZAMBA    /* one norm and a mixer; in some layers a block that they share before it: models-2026 S4.6 */
} nb_block_kind;

/* Norms of q and k before rope: over each head with one weight, over all heads, over each head with its own weight; over
 * each head after rope, the last without a weight. */
typedef enum nb_qk_kind { NB_QK_NONE, NB_QK_HEAD, NB_QK_FULL, NB_QK_PER_HEAD, NB_QK_AFTER, NB_QK_AFTER_0 } nb_qk_kind;

/* How q, k and v are stored: apart; rows of q, k, v; by kv head: its q heads, k, v. */
typedef enum nb_qkv_kind { NB_QKV_SPLIT, NB_QKV_CAT, NB_QKV_BY_HEAD } nb_qkv_kind;
typedef enum nb_mlp_kind { NB_MLP_GATED, NB_MLP_GATED_CAT, NB_MLP_PLAIN } nb_mlp_kind;
typedef enum nb_act_kind {
    NB_ACT_SILU,
    NB_ACT_GELU_TANH,
    NB_ACT_GELU_ERF,
    NB_ACT_RELU,  /* of plain MLPs only, as the next */
    NB_ACT_RELU2, /* relu(x)^2 */
    NB_ACT_XIELU  /* models-2026 S4.1, with four scalars of the layer */
} nb_act_kind;

/* How a token's experts are chosen and weighted: spec models 7.1 to 7.7. */
typedef enum nb_router {
    NB_ROUTE_NONE,
    NB_ROUTE_SOFTMAX,    /* best of the softmax over all                           */
    NB_ROUTE_TOP,        /* softmax over the best                                  */
    NB_ROUTE_GREEDY,     /* as SOFTMAX, scaled; or within groups by their best one */
    NB_ROUTE_SIGMOID,    /* sigmoids with a correction, within groups              */
    NB_ROUTE_MIXER,      /* two, each of a softmax over what is close to it        */
    NB_ROUTE_SIGMOID_M2, /* sigmoids with a correction, shares of their sum: models-2026 S5, as the rest */
    NB_ROUTE_AFMOE,      /* the same over the sum + 1e-20, scaled                */
    NB_ROUTE_LFM2,       /* over the sum + 1e-6 if renormalised, scaled          */
    NB_ROUTE_GROUPS,     /* softmax, groups by their two best, others 0          */
    NB_ROUTE_ERNIE,      /* softmax with a correction, over max(sum, 1e-12)      */
    NB_ROUTE_LONGCAT,    /* softmax with a correction, scaled; identity experts  */
    NB_ROUTE_LLAMA4,     /* best scores; the sigmoid multiplies the expert's input */
    NB_ROUTE_SQRT,       /* roots of softplus with a correction, shares of the sum, scaled; or experts by token */
    NB_ROUTE_GEMMA4      /* softmax, shares of the sum, times a scale of each expert */
} nb_router;
typedef enum nb_shared_kind {
    NB_SHARED_NONE,
    NB_SHARED_COUNT, /* n_shared_experts of the experts' size     */
    NB_SHARED_GATED, /* shared_expert_intermediate_size, with a gate */
    NB_SHARED_SIZE,  /* shared_intermediate_size                  */
    NB_SHARED_FF     /* one of the experts' size                  */
} nb_shared_kind;

/* Experts, with what holds when a key is absent. */
typedef struct nb_moe_row {
    nb_router router;
    size_t n_active;
    bool own_size;       /* moe_intermediate_size, not intermediate_size */
    nb_bias_rule renorm; /* CONFIG: norm_topk_prob                       */
    bool renorm_on;
    bool by_step;  /* mlp_only_layers, decoder_sparse_step            */
    bool by_first; /* dense below first_k_dense_replace              */
    size_t first, n_groups, top_groups, n_shared;
    double scale;
    nb_shared_kind shared;
    bool clamped;  /* experts of gpt_oss: spec models 6 */
    bool optional; /* no expert count: no experts        */
} nb_moe_row;

/* What differs in kind, not in a value. */
typedef enum nb_quirk {
    NB_Q_GRANITE = 1 << 0,        /* embedding_multiplier, residual_multiplier, logits_scaling, attention_multiplier  */
    NB_Q_EMBED_SQRT = 1 << 1,     /* embeddings times sqrt(hidden)                                                     */
    NB_Q_QUERY_SCALAR = 1 << 2,   /* softmax scale query_pre_attn_scalar^-0.5                                        */
    NB_Q_SCORE_CAP = 1 << 3,      /* attn_logit_softcapping (50 when absent), final_logit_softcapping (30)             */
    NB_Q_LOGIT_CAP = 1 << 4,      /* final_logit_softcapping only, none when absent                                    */
    NB_Q_LOGIT_SCALE = 1 << 5,    /* logits times logit_scale (0.0625)                                                 */
    NB_Q_CLIP_QKV = 1 << 6,       /* q, k, v limited to clip_qkv                                                       */
    NB_Q_GELU_TANH = 1 << 7,      /* "gelu" means the tanh form                                                        */
    NB_Q_HEAD_DIM_FIXED = 1 << 8, /* head_dim is not read                                                          */
    NB_Q_EPS_FIXED = 1 << 9,      /* eps_key is not read                                                               */
    NB_Q_PAR_PAR1 = 1 << 10,      /* use_parallel_residual makes the block PAR1 (no when absent)                       */
    NB_Q_PAR_PAR2 = 1 << 11,      /* use_parallel_residual makes the block PAR2 (yes when absent)                      */
    NB_Q_GPT2 = 1 << 12,          /* stored transposed; scale_attn_weights, scale_attn_by_inverse_layer_idx            */
    NB_Q_OPT = 1 << 13,           /* do_layer_norm_before, word_embed_proj_dim, positions from row 2 on                */
    NB_Q_FALCON = 1 << 14,        /* spec models 5.8                                                                   */
    NB_Q_ROPE_ALPHA = 1 << 15,    /* dynamic rope with alpha                                                           */
    NB_Q_YARN_LONG = 1 << 16,     /* yarn means longrope */
    NB_Q_OSS = 1 << 17,           /* yarn when no key says how to rotate */
    NB_Q_MSCALE = 1 << 18,        /* short_mscale, long_mscale */
    NB_Q_INTERLEAVE = 1 << 19,    /* rope_interleave (yes when absent) says whether pairs are rotated */
    NB_Q_SKIP_CROSS = 1 << 20,    /* layers of cross_attention_layers do nothing without an image */
    NB_Q_NO_HEADS = 1 << 21,      /* no attention: no heads */
    NB_Q_GATED_Q = 1 << 22,       /* q rows of a head are followed by those of its output gate */
    NB_Q_FOUR_D = 1 << 23,        /* an MLP of 4 times hidden_size when no key says it        */
    NB_Q_ROPE_GIVEN = 1 << 24,    /* rotated only if rope_theta is given                      */
    NB_Q_LLAMA3_OR = 1 << 25,     /* llama3, or with YARN_OR yarn, when no key says how to rotate: rope_default */
    NB_Q_YARN_OR = 1 << 26,
    NB_Q_ROPE_BACK = 1 << 27 /* turned the other way */
} nb_quirk;

struct nb_config;
struct nb_cfg_reader;
typedef nb_status nb_arch_read(const struct nb_cfg_reader *r, struct nb_config *c);

typedef struct nb_arch {
    const char *type; /* model_type                     */
    const char *cls;  /* architectures[0]               */
    const char *eps_key;
    double eps, theta;
    double partial;                                   /* rotated part of a head when the key is absent; 0: all */
    size_t head_dim;                                  /* when the key is absent; 0: hidden / heads */
    size_t n_heads;                                   /* when the key is absent; 0: required       */
    size_t kv_heads;                                  /* when the key is absent; 0: heads          */
    nb_bias_rule qkv_bias, o_bias;                    /* CONFIG: bias_key, o_bias_key              */
    nb_bias_rule mlp_bias;                            /* CONFIG: mlp_bias_key                      */
    const char *bias_key, *o_bias_key, *mlp_bias_key; /* NULL: attention_bias, bias_key, mlp_bias */
    bool bias_on;                                     /* bias_key when absent (o_bias_key and mlp_bias_key when they are the same) */
    bool tie;                                         /* tie_word_embeddings when absent           */
    nb_norm_kind norm;
    nb_block_kind block;
    nb_qk_kind qk;
    const char *qk_key; /* qk only if this key is true */
    nb_qkv_kind qkv;
    nb_mlp_kind mlp;
    nb_act_kind act; /* when the key is absent */
    bool rope_pairs; /* rotate (2i, 2i+1), not (i, i + r/2) */
    nb_rope_rule rope;
    double rope_factor, rope_orig, rope_low, rope_high; /* of LLAMA3_OR and YARN_OR */
    double local_theta;                                 /* of windowed layers under LAYERS_LOCAL; 0: as the full ones */
    nb_window_rule window;
    size_t window_size; /* sliding_window when the key is absent; 0: none */
    size_t pattern;     /* sliding_window_pattern when absent */
    bool last_full;     /* the last layer is none of the windowed ones */
    bool layer_types;   /* a layer_types list overrides the window rule  */
    unsigned quirks;
    bool mla; /* latent attention */
    nb_moe_row moe;
    const nb_names *names;
    nb_arch_read *sizes, *more, *layers; /* keys of this family only: before the heads, after all sizes, after windows and rope */
} nb_arch;

/* By model_type or another name of it, else by class name; either may be NULL. NULL when neither is known. */
const nb_arch *nb_arch_find(const char *type, const char *cls);
size_t nb_arch_count(void);
const nb_arch *nb_arch_at(size_t i);

/* The tables of names of falcon with two norms in parallel (spec models 5.8). */
extern const nb_names nb_names_falcon2;

#endif
