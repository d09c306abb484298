/* plan.h - what a model does, as a short list of operations per layer over a few slots; built once, never per token.
 *
 * Read by five users: executor, calibration taps and AWQ groups, memory estimate, tensor-parallel split, trace. */
#ifndef NB_MODEL_PLAN_H
#define NB_MODEL_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/config.h"
#include "tensor/store.h"

typedef enum nb_op_kind {
    NB_OP_NORM,      /* out = norm(in) with vector weight                  */
    NB_OP_LINEAR,    /* out = W in (+ bias); W may be a fused matrix       */
    NB_OP_QKNORM,    /* norm of q and k inside the QKV slot                */
    NB_OP_CLIP,      /* limit q, k, v inside the QKV slot                  */
    NB_OP_ROPE,      /* rotate q and k inside the QKV slot                 */
    NB_OP_WIDEN,     /* q, k, v with values as long as keys */
    NB_OP_ALIBI,     /* q, k, v with the components that carry position biases */
    NB_OP_LATENT,    /* norm the latent of k and v, rotate q and k */
    NB_OP_ABSORB,    /* q of every head in terms of the latent */
    NB_OP_JOIN,      /* q, k, v of latent attention side by side */
    NB_OP_UNFOLD,    /* values of every head from its latent */
    NB_OP_ATTN,      /* append k, v; out = attention(q)                    */
    NB_OP_PACK,      /* the first head_dim components of every head        */
    NB_OP_ACT,       /* out = act(in) of a plain MLP                       */
    NB_OP_ACT_MUL,   /* out = act(gate half) * up half                     */
    NB_OP_MOE,       /* out = the mixture of experts of in                 */
    NB_OP_ADD,       /* out = keep out + gain in                           */
    NB_OP_SCALE,     /* out = gain out                                     */
    NB_OP_UNGATE,    /* q heads moved together inside the QKV slot, their gates to out */
    NB_OP_OGATE,     /* out *= sigmoid(in)                                 */
    NB_OP_GROW,      /* q times a factor that grows with the position      */
    NB_OP_PARTS,     /* parts of the input of Mamba-2 times their multipliers */
    NB_OP_CONV,      /* out = silu(causal convolution of in) over the tokens */
    NB_OP_SHORT,     /* short convolution between its two gates            */
    NB_OP_DELTA,     /* gated delta rule and its output norm; also KDA      */
    NB_OP_SSM,       /* Mamba-2                                            */
    NB_OP_SSM_NORM,  /* its gate and norm                                  */
    NB_OP_DT_NORM,   /* Mamba-1: norms of time step, B and C               */
    NB_OP_SSM1,      /* Mamba-1 with its gate                              */
    NB_OP_LINATT,    /* lightning attention with its norm and gate         */
    NB_OP_INDEX,     /* the key that chooses cached; the keys of every row chosen */
    NB_OP_VNORM,     /* v without its length; of k where that is the value */
    NB_OP_SPARSE,    /* the gate, but for what is far above its mean */
    NB_OP_BRANCH,    /* out = act(in) times the layer's own input  */
    NB_OP_PREDICT,   /* residual streams mixed; the active one to out */
    NB_OP_CORRECT,   /* and corrected by what the layer made of it; its branch to out */
    NB_OP_SPREAD,    /* in added to all streams but the first      */
    NB_OP_PAIR,      /* out = norm of in and the embedding side by side */
    NB_OP_HYPER_IN,  /* out = the streams of in, mixed; how they are mixed behind, to HYPER */
    NB_OP_HYPER_OUT, /* the streams of out, mixed, and in; the first one to X */
    NB_OP_ONE_KV,    /* norms of q and of the one key that is the value; both rotated, in their last components */
    NB_OP_ENTRIES,   /* windows that are complete become entries in the cache */
    NB_OP_UNROTATE,  /* heads turned back */
    NB_OP_GROUPS,    /* out = group by group of in its own matrix */
    NB_OP_PLUS,      /* in added where the outputs of the first role lie in out */
    NB_OP_COUNT
} nb_op_kind;
/* Does an op of that kind use no slots but those it names, and no state of a sequence but keys and values? */
bool nb_op_is_plain(nb_op_kind kind);

typedef enum nb_slot {
    NB_SLOT_X,
    NB_SLOT_NORM,
    NB_SLOT_NORM2, /* of the MLP when it runs beside attention */
    NB_SLOT_LORA,  /* latents of q, and of k and v              */
    NB_SLOT_QKV,
    NB_SLOT_FOLD,  /* by head, each padded to 64: q in terms of the latent; later its values */
    NB_SLOT_HEADS, /* q, k, v widened for attention (alibi)    */
    NB_SLOT_WIDE,  /* its output                               */
    NB_SLOT_ATT,
    NB_SLOT_PROJ,
    NB_SLOT_GU,
    NB_SLOT_ACT,
    NB_SLOT_ROUTE,   /* scores of the experts                    */
    NB_SLOT_TAKEN,   /* the rows of one expert                   */
    NB_SLOT_GIVEN,   /* its output                               */
    NB_SLOT_GATE,    /* of the attention output, of a mixer      */
    NB_SLOT_MIX,     /* what a mixer reads: all parts of its input */
    NB_SLOT_RATE,    /* rates and decays, low-rank parts         */
    NB_SLOT_CONV,    /* convolved channels                       */
    NB_SLOT_STEP,    /* Mamba-1: time step, B, C; decays of KDA  */
    NB_SLOT_MIXED,   /* output of a mixer                        */
    NB_SLOT_KEEP,    /* a branch that is added later; inputs of experts between projections */
    NB_SLOT_SUM,     /* and their sums                           */
    NB_SLOT_LAYERS,  /* inputs of single layers that follow from the token: per-layer embeddings */
    NB_SLOT_BRANCH,  /* what a layer makes of its own          */
    NB_SLOT_STREAMS, /* several residuals side by side         */
    NB_SLOT_IQ,      /* queries that choose keys */
    NB_SLOT_IK,      /* the key, the weights of the heads */
    NB_SLOT_FIRST,   /* the embedding, kept for all layers */
    NB_SLOT_HYPER,   /* how streams are mixed: of the new, of the old ones */
    NB_SLOT_COMP,    /* what entries are made of; of the keys that choose them */
    NB_SLOT_ICOMP,
    NB_SLOT_PAIR, /* it beside the residual, normed */
    NB_SLOT_COUNT
} nb_slot;

typedef struct nb_op {
    nb_op_kind kind;
    nb_slot in, out;
    nb_role roles[3]; /* LINEAR: source linears, ended by NB_ROLE_NONE; PLUS: where to */
    nb_vec vec;       /* NORM, QKNORM */
    enum nb_when {
        NB_WHEN_ALWAYS,
        NB_WHEN_DENSE,
        NB_WHEN_SPARSE,
        NB_WHEN_BARE,
        NB_WHEN_SHARED
    } when;           /* layers without, with experts; without, with a block that layers share */
    unsigned mixers;  /* layers of these kinds only, a bit each; 0: all */
    float keep, gain; /* ADD, SCALE */
} nb_op;

/* Channels [to, to + n) of a convolution are floats [from, from + n) of the MIX slot. */
typedef struct nb_run {
    size_t from, to, n;
} nb_run;

/* Where the heads lie in a slot: q, k, v of kv head h begin at off + h * step; the query heads of h follow one another. */
typedef struct nb_heads {
    size_t off[3], step[3];
} nb_heads;

typedef struct nb_plan {
    const nb_config *cfg;
    const nb_op *ops; /* of one layer; which of them a layer runs: nb_plan_runs */
    size_t n_ops;
    size_t slot_width[NB_SLOT_COUNT]; /* floats per token, parts padded to 64: the row stride inside the executor */
    size_t slot_len[NB_SLOT_COUNT];   /* floats of a row that mean something: the widths nb_exec_span reads and writes
                                       * (QKV and GU of several parts: the padded width) */
    nb_heads qkv, att;                /* in the QKV slot, and in the input of ATTN */
    nb_slot att_in;
    nb_slot kva_slot; /* where the latent of k and v lies */
    size_t kva_off;
    size_t up_off; /* where up begins inside GU */
    nb_run *runs;  /* of mixers: their convolution */
    size_t n_runs;
    size_t z_off, a_off; /* of mixers: gate (in MIX, where GATE has none), decays (in RATE; in MIX of Mamba-2) */
    unsigned mask;       /* while it is built: of ops that do not say which layers */
    enum nb_when when;   /* the same */
    bool has_role[NB_ROLE_COUNT];
    bool has_act_scale;
    char prefix[64]; /* "model." as found in the store */
    char head[64];   /* "lm_head" as found in the store; "" when the model has none and the embedding serves */
} nb_plan;

/* Build for a config (kept by pointer: it must outlive the plan). `s` decides the name prefix and whether there is a head; NULL
 * means "model." and a head unless tied. NB_EFORMAT "cfg.missing_tensor" when no embedding is found, or neither a head nor a
 * reason to tie (hardening CF-16). */
nb_status nb_plan_build(const nb_config *cfg, const nb_store *s, nb_plan *out, nb_err *err);
void nb_plan_clear(nb_plan *p);
/* nearest.c. Where parsing `root` failed because its architecture is not in the table (class "cfg.arch"; any other error is
 * left alone): the sentence of *err names the row whose tensors come closest, if one comes close, and what differs. */
void nb_config_nearest(const nb_json *root, const nb_store *s, nb_err *err);
/* Whether a layer runs an op: models with experts have layers without, mixers differ. */
bool nb_plan_runs(const nb_plan *p, const nb_op *op, size_t layer);
/* What the names of a layer begin with, "model.layers.3.". */
const char *nb_plan_layer(const nb_plan *p, size_t layer, char *out, size_t cap);
/* The tensor of the embedding, "model.embed_tokens.weight". */
const char *nb_plan_embed(const nb_plan *p, char *out, size_t cap);
/* The linear that is the head, "lm_head"; where the embedding serves as one: what a head would be called. */
const char *nb_plan_head(const nb_plan *p, char *out, size_t cap);
/* The second projection of latent attention. */
const char *nb_plan_kv_b(const nb_plan *p, size_t layer, char *out, size_t cap);
/* "model.layers.3.self_attn.q_proj" into out. Returns out. Sizes of a linear: outputs n, inputs k. */
const char *nb_plan_linear(const nb_plan *p, size_t layer, nb_role role, char *out, size_t cap);
/* The tensor of a vector, ".weight" or ".bias" included. */
const char *nb_plan_vec(const nb_plan *p, size_t layer, nb_vec vec, char *out, size_t cap);
/* Some vectors are stored as one tensor a head: how many tensors, and their names. */
size_t nb_plan_vec_parts(const nb_plan *p, nb_vec vec);
const char *nb_plan_vec_part(const nb_plan *p, size_t layer, nb_vec vec, size_t part, char *out, size_t cap);
/* The bias that goes with the weight of a norm, or NONE. */
nb_vec nb_plan_vec_bias(const nb_plan *p, nb_vec vec);
void nb_plan_linear_size(const nb_plan *p, nb_role role, size_t *n, size_t *k);
/* The same where layers differ in size; so for vectors, for where the heads lie in the QKV slot and in the input of ATTN, and for
 * where up begins inside GU. */
void nb_plan_linear_size_at(const nb_plan *p, size_t layer, nb_role role, size_t *n, size_t *k);
size_t nb_plan_vec_size_at(const nb_plan *p, size_t layer, nb_vec vec);
nb_heads nb_plan_qkv(const nb_plan *p, size_t layer);
nb_heads nb_plan_att(const nb_plan *p, size_t layer);
size_t nb_plan_up_off(const nb_plan *p, size_t layer);
/* Where the outputs of a role begin inside the output slot of its op. */
size_t nb_plan_role_off(const nb_plan *p, nb_role role);
/* Length of a vector; 0 when the architecture has none. */
size_t nb_plan_vec_size(const nb_plan *p, nb_vec vec);
bool nb_plan_has_op(const nb_plan *p, size_t layer, nb_op_kind kind);
/* Whether some op of a layer reads a vector. */
bool nb_plan_has_vec(const nb_plan *p, size_t layer, nb_vec vec);
/* Whether a layer caches keys and values in pages; floats it keeps for a sequence whatever its length: inputs of its
 * convolution [taps - 1][channels], then its matrix (plan_mix.c); floats of all layers. */
bool nb_plan_has_kv(const nb_plan *p, size_t layer);
nb_mixer nb_plan_mixer(const nb_plan *p, size_t layer);
size_t nb_plan_conv_state(const nb_plan *p, size_t layer);
size_t nb_plan_state(const nb_plan *p, size_t layer);
size_t nb_plan_states(const nb_plan *p);
/* Of layers with compressed entries: tokens of one (0: the layer has none), entries of a page, and channels
 * of the tokens they are made of; index: of the keys that choose entries. */
size_t nb_plan_rate(const nb_plan *p, size_t layer);
size_t nb_plan_page_entries(const nb_plan *p, size_t layer);
size_t nb_plan_entry_channels(const nb_plan *p, size_t layer, bool index);
/* Bytes of a page in a layer: keys and values; what lies beside them: keys that choose, entries. */
size_t nb_plan_kv_page(const nb_plan *p, size_t layer, nb_dtype t);
size_t nb_plan_side_page(const nb_plan *p, size_t layer, nb_dtype t);

/* The LINEAR op that holds a role (the first, where kinds of layers have one each); n_ops when none does. */
size_t nb_plan_op_of(const nb_plan *p, nb_role role);
/* The one that a layer runs; n_ops when it runs none. */
size_t nb_plan_op_at(const nb_plan *p, size_t layer, nb_role role);
/* Floats of a token that go from layer to layer beside the residual, for those who run layers one at a time (nb_exec_opts.carry);
 * 0: none. Other residual streams, a branch that is added later, chosen keys, keys and values that later layers read. */
size_t nb_plan_carry(const nb_plan *p);
/* The layer that a linear is stored with; another one where layers share a block. */
size_t nb_plan_stored_at(const nb_plan *p, size_t layer, nb_role role);

#endif
