/* config -> op list, slot sizes and tensor names. Source: spec models 1, 4, 5. */
#include "model/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

/* ---- names ---------------------------------------------------------------------------------------------------- */

static const char *const role_names[NB_ROLE_COUNT] = {
    [NB_ROLE_Q] = "self_attn.q_proj",     [NB_ROLE_K] = "self_attn.k_proj",       [NB_ROLE_V] = "self_attn.v_proj",
    [NB_ROLE_QA] = "self_attn.q_a_proj",  [NB_ROLE_QB] = "self_attn.q_b_proj",    [NB_ROLE_KVA] = "self_attn.kv_a_proj_with_mqa",
    [NB_ROLE_QKV] = "self_attn.qkv_proj", [NB_ROLE_O] = "self_attn.o_proj",       [NB_ROLE_GATE] = "mlp.gate_proj",
    [NB_ROLE_UP] = "mlp.up_proj",         [NB_ROLE_GATE_UP] = "mlp.gate_up_proj", [NB_ROLE_DOWN] = "mlp.down_proj",
};
static const char *const vec_names[] = {
    [NB_VEC_N1] = "input_layernorm",         [NB_VEC_N2] = "post_attention_layernorm",  [NB_VEC_QN] = "self_attn.q_norm",
    [NB_VEC_KN] = "self_attn.k_norm",        [NB_VEC_N1P] = "post_attention_layernorm", [NB_VEC_N2P] = "post_feedforward_layernorm",
    [NB_VEC_QA] = "self_attn.q_a_layernorm", [NB_VEC_KVA] = "self_attn.kv_a_layernorm",
};

static const char *or_default(const char *name, const char *dflt)
{
    return name ? name : dflt;
}

static const char *layers_of(const nb_plan *p)
{
    return or_default(p->cfg->names->layers, "layers.");
}

const char *nb_plan_linear(const nb_plan *p, size_t layer, nb_role role, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%zu.%s", p->prefix, layers_of(p), layer, or_default(p->cfg->names->roles[role], role_names[role]));
    return out;
}

const char *nb_plan_layer(const nb_plan *p, size_t layer, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%zu.", p->prefix, layers_of(p), layer);
    return out;
}

bool nb_plan_runs(const nb_plan *p, const nb_op *op, size_t layer)
{
    const bool sparse = p->cfg->moe.sparse && p->cfg->moe.sparse[layer];

    if (p->cfg->skip && p->cfg->skip[layer])
        return false;
    return op->when == NB_WHEN_ALWAYS || sparse == (op->when == NB_WHEN_SPARSE);
}

static bool is_bias(nb_vec vec)
{
    return vec >= NB_VEC_N1_BIAS && vec <= NB_VEC_KN_BIAS;
}

static const char *stem_of(const nb_plan *p, nb_vec vec)
{
    const nb_vec w = is_bias(vec) ? (nb_vec)(vec - NB_VEC_N1_BIAS) : vec;

    return or_default(p->cfg->names->vecs[w], vec_names[w]);
}

size_t nb_plan_vec_parts(const nb_plan *p, nb_vec vec)
{
    const char *dot;

    if (vec != NB_VEC_QN && vec != NB_VEC_KN)
        return 1;
    dot = strrchr(stem_of(p, vec), '.');
    return !dot || strcmp(dot, ".norms") != 0 ? 1 : vec == NB_VEC_QN ? p->cfg->n_heads : p->cfg->n_kv_heads;
}

const char *nb_plan_vec_part(const nb_plan *p, size_t layer, nb_vec vec, size_t part, char *out, size_t cap)
{
    if (vec == NB_VEC_SINKS)
        snprintf(out, cap, "%s%s%zu.self_attn.sinks", p->prefix, layers_of(p), layer);
    else if (vec == NB_VEC_ACT_SCALE)
        snprintf(out, cap, "%s%s%zu.mlp.act.scales", p->prefix, layers_of(p), layer);
    else if (nb_plan_vec_parts(p, vec) > 1)
        snprintf(out, cap, "%s%s%zu.%s.%zu.weight", p->prefix, layers_of(p), layer, stem_of(p, vec), part);
    else
        snprintf(out, cap, "%s%s%zu.%s%s", p->prefix, layers_of(p), layer, stem_of(p, vec), is_bias(vec) ? ".bias" : ".weight");
    return out;
}

const char *nb_plan_vec(const nb_plan *p, size_t layer, nb_vec vec, char *out, size_t cap)
{
    return nb_plan_vec_part(p, layer, vec, 0, out, cap);
}

nb_vec nb_plan_vec_bias(const nb_plan *p, nb_vec vec)
{
    const nb_vec b = vec <= NB_VEC_KN ? (nb_vec)(NB_VEC_N1_BIAS + vec) : NB_VEC_NONE;

    return b != NB_VEC_NONE && nb_plan_vec_size(p, b) > 0 ? b : NB_VEC_NONE;
}

/* spec models 4, prefix resolution */
static const char *const prefixes[] = { "model.",
                                        "",
                                        "model.language_model.",
                                        "language_model.model.",
                                        "language_model.",
                                        "model.model.",
                                        "model.decoder.",
                                        "decoder.",
                                        "transformer.",
                                        "gpt_neox." };

static bool has(const nb_store *s, const char *prefix, const char *name, const char *leaf)
{
    char full[224];

    snprintf(full, sizeof full, "%s%s%s", prefix, name, leaf);
    return nb_store_find(s, full) != NULL;
}

static bool has_linear(const nb_store *s, const char *name)
{
    static const char *const leaves[] = { ".weight", ".qweight", ".weight_packed" };
    bool found = false;

    for (size_t i = 0; i < NB_LEN(leaves) && !found; i++)
        found = has(s, name, "", leaves[i]);
    return found;
}

static nb_status find_names(nb_plan *p, const nb_store *s, nb_err *err)
{
    const nb_names *names = p->cfg->names;
    const char *const heads[] = { or_default(names->head, "lm_head"), "language_model.lm_head" };
    const char *embed = or_default(names->embed, "embed_tokens"), *norm = or_default(names->norm, "norm");
    bool found = false;

    snprintf(p->prefix, sizeof p->prefix, "model.");
    if (!s) {
        snprintf(p->head, sizeof p->head, "%s", p->cfg->tie_embeddings ? "" : heads[0]);
        return NB_OK;
    }
    for (size_t i = 0; i < NB_LEN(heads); i++) {
        if (has_linear(s, heads[i])) {
            snprintf(p->head, sizeof p->head, "%s", heads[i]);
            break;
        }
    }
    for (size_t i = 0; i < NB_LEN(prefixes) && !found; i++) {
        found = has(s, prefixes[i], embed, ".weight");
        if (found)
            snprintf(p->prefix, sizeof p->prefix, "%s", prefixes[i]);
    }
    for (size_t i = 0; i < NB_LEN(prefixes) && !found; i++) { /* tied the other way round: only the head is stored */
        found = p->head[0] && p->cfg->tie_embeddings && has(s, prefixes[i], norm, ".weight");
        if (found)
            snprintf(p->prefix, sizeof p->prefix, "%s", prefixes[i]);
    }
    if (!found)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"model.%s.weight\" is missing", embed);
    if (!p->head[0] && p->cfg->tie_given && !p->cfg->tie_embeddings)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "",
                       "tensor \"%s.weight\" is missing and tie_word_embeddings is false; set it to true if the model is tied", heads[0]);
    return NB_OK;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

void nb_plan_linear_size(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;

    *k = c->d_model;
    switch (role) {
    case NB_ROLE_Q:
        *n = c->n_heads * (c->mla.on ? c->mla.nope + c->mla.rope : c->head_dim);
        break;
    case NB_ROLE_QA:
        *n = c->mla.q_rank;
        break;
    case NB_ROLE_QB:
        *n = c->n_heads * (c->mla.nope + c->mla.rope);
        *k = c->mla.q_rank;
        break;
    case NB_ROLE_KVA:
        *n = c->mla.kv_rank + c->mla.rope;
        break;
    case NB_ROLE_K:
    case NB_ROLE_V:
        *n = c->n_kv_heads * c->head_dim;
        break;
    case NB_ROLE_QKV:
        *n = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
        break;
    case NB_ROLE_O:
        *n = c->d_model;
        *k = c->n_heads * (c->mla.on ? c->mla.value : c->head_dim);
        break;
    case NB_ROLE_GATE_UP:
        *n = 2 * c->d_ff;
        break;
    case NB_ROLE_DOWN:
        *n = c->d_model;
        *k = c->d_ff;
        break;
    default:
        *n = c->d_ff;
        break;
    }
}

size_t nb_plan_role_off(const nb_plan *p, nb_role role)
{
    switch (role) {
    case NB_ROLE_K:
        return p->qkv.off[1];
    case NB_ROLE_V:
        return p->qkv.off[2];
    case NB_ROLE_KVA:
        return p->kva_off;
    case NB_ROLE_UP:
        return p->up_off;
    default:
        return 0;
    }
}

size_t nb_plan_vec_size(const nb_plan *p, nb_vec vec)
{
    const nb_config *c = p->cfg;
    const bool post = c->block == NB_BLOCK_POST || c->block == NB_BLOCK_SANDWICH, biased = c->norm == NB_NORM_LN || c->norm == NB_NORM_LN1;
    const size_t norm = c->norm == NB_NORM_LN_0 ? 0 : c->d_model;
    const bool each = c->qk == NB_QK_HEAD || c->qk == NB_QK_AFTER;

    switch (vec) {
    case NB_VEC_N1:
        return c->block != NB_BLOCK_POST ? norm : 0;
    case NB_VEC_N2:
        return c->block != NB_BLOCK_POST && c->block != NB_BLOCK_PAR1 ? norm : 0;
    case NB_VEC_QN:
    case NB_VEC_KN:
        if (c->qk == NB_QK_NONE)
            return 0;
        return each ? c->head_dim : (vec == NB_VEC_QN ? c->n_heads : c->n_kv_heads) * c->head_dim;
    case NB_VEC_N1P:
    case NB_VEC_N2P:
        return post ? norm : 0;
    case NB_VEC_N1_BIAS:
    case NB_VEC_N2_BIAS:
        return biased ? nb_plan_vec_size(p, (nb_vec)(vec - NB_VEC_N1_BIAS)) : 0;
    case NB_VEC_QN_BIAS:
    case NB_VEC_KN_BIAS:
        return biased && c->qk == NB_QK_HEAD ? c->head_dim : 0;
    case NB_VEC_QA:
        return c->mla.q_rank;
    case NB_VEC_KVA:
        return c->mla.kv_rank;
    case NB_VEC_SINKS:
        return c->arch->quirks & NB_Q_OSS ? c->n_heads : 0;
    case NB_VEC_ACT_SCALE:
        return p->has_act_scale ? c->d_ff : 0;
    default:
        return 0;
    }
}

/* Heads of `dim` components, q, then k, then v, each part `pad`ded or not. Returns the width. */
static size_t plain_heads(const nb_config *c, size_t dim, bool pad, nb_heads *out)
{
    const size_t q = pad ? PAD64(c->n_heads * dim) : c->n_heads * dim, kv = pad ? PAD64(c->n_kv_heads * dim) : c->n_kv_heads * dim;

    *out = (nb_heads){ { 0, q, q + kv }, { c->n_heads / c->n_kv_heads * dim, dim, dim } };
    return q + 2 * kv;
}

/* By kv head: its query heads, k, v. */
static size_t grouped_heads(const nb_config *c, nb_heads *out)
{
    const size_t r = c->n_heads / c->n_kv_heads, d = c->head_dim, step = (r + 2) * d;

    *out = (nb_heads){ { 0, r * d, (r + 1) * d }, { step, step, step } };
    return c->n_kv_heads * step;
}

static void size_latent(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const nb_mla_cfg *m = &c->mla;
    const size_t q = c->n_heads * (m->nope + m->rope), fold = m->kv_rank > m->value ? m->kv_rank : m->value;
    size_t *len = p->slot_len;

    p->kva_slot = m->q_rank ? NB_SLOT_LORA : NB_SLOT_QKV;
    p->kva_off = PAD64(m->q_rank ? m->q_rank : q);
    len[NB_SLOT_LORA] = m->q_rank ? p->kva_off + c->kv_dim : 0;
    len[NB_SLOT_QKV] = m->q_rank ? q : p->kva_off + c->kv_dim;
    len[NB_SLOT_FOLD] = c->n_heads * PAD64(fold);
    len[NB_SLOT_ATT] = c->n_heads * m->value;
}

static void size_slots(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const bool fused = p->has_role[NB_ROLE_QKV], gated = c->mlp != NB_MLP_PLAIN;
    size_t *len = p->slot_len;

    len[NB_SLOT_QKV] = fused && c->qkv == NB_QKV_BY_HEAD ? grouped_heads(c, &p->qkv) : plain_heads(c, c->head_dim, !fused, &p->qkv);
    p->att = p->qkv;
    p->att_in = NB_SLOT_QKV;
    if (c->alibi || c->mla.on) {
        len[NB_SLOT_HEADS] = plain_heads(c, c->kv_dim, false, &p->att);
        if (c->mla.on) { /* values are the keys */
            p->att.off[2] = p->att.off[1];
            len[NB_SLOT_HEADS] -= c->kv_dim;
        }
        len[NB_SLOT_WIDE] = c->n_heads * c->kv_dim;
        p->att_in = NB_SLOT_HEADS;
    }
    p->up_off = !gated ? 0 : p->has_role[NB_ROLE_GATE_UP] ? c->d_ff : PAD64(c->d_ff);
    len[NB_SLOT_X] = len[NB_SLOT_NORM] = len[NB_SLOT_PROJ] = c->d_model;
    len[NB_SLOT_NORM2] = c->block == NB_BLOCK_PAR2 ? c->d_model : 0;
    len[NB_SLOT_ATT] = c->n_heads * c->head_dim;
    if (c->mla.on)
        size_latent(p);
    len[NB_SLOT_GU] = !gated ? c->d_ff : p->has_role[NB_ROLE_GATE_UP] ? 2 * c->d_ff : 2 * PAD64(c->d_ff);
    len[NB_SLOT_ACT] = c->d_ff;
    for (size_t i = 0; i < NB_SLOT_COUNT; i++)
        p->slot_width[i] = PAD64(len[i]);
    if (c->moe.sparse) {
        const size_t ff = PAD64(c->moe.ff > c->moe.shared_ff ? c->moe.ff : c->moe.shared_ff);
        size_t *w = p->slot_width;
        len[NB_SLOT_ROUTE] = c->moe.n_experts;
        w[NB_SLOT_ROUTE] = PAD64(c->moe.n_experts);
        len[NB_SLOT_TAKEN] = len[NB_SLOT_GIVEN] = c->d_model;
        w[NB_SLOT_TAKEN] = w[NB_SLOT_GIVEN] = PAD64(c->d_model);
        w[NB_SLOT_GU] = w[NB_SLOT_GU] > 2 * ff ? w[NB_SLOT_GU] : 2 * ff;
        w[NB_SLOT_ACT] = w[NB_SLOT_ACT] > ff ? w[NB_SLOT_ACT] : ff;
    }
}

/* ---- ops ------------------------------------------------------------------------------------------------------ */

enum { MAX_OPS = 24 };

static void emit(nb_plan *p, nb_op op)
{
    nb_op *ops = (nb_op *)p->ops;

    for (size_t j = 0; op.kind == NB_OP_LINEAR && j < 3 && op.roles[j] != NB_ROLE_NONE; j++)
        p->has_role[op.roles[j]] = true;
    ops[p->n_ops++] = op;
}

static void emit_step(nb_plan *p, nb_op_kind kind, nb_slot in, nb_slot out)
{
    emit(p, (nb_op){ .kind = kind, .in = in, .out = out });
}

static void emit_norm(nb_plan *p, nb_slot in, nb_slot out, nb_vec vec)
{
    emit(p, (nb_op){ .kind = NB_OP_NORM, .in = in, .out = out, .vec = p->cfg->norm == NB_NORM_LN_0 ? NB_VEC_NONE : vec });
}

static void emit_linear(nb_plan *p, nb_slot in, nb_slot out, nb_role a, nb_role b, nb_role c)
{
    emit(p, (nb_op){ .kind = NB_OP_LINEAR, .in = in, .out = out, .roles = { a, b, c } });
}

/* Attention over a cache of latents: each head's q is brought there, its value back from there. */
static void emit_latent(nb_plan *p, nb_slot in)
{
    if (p->cfg->mla.q_rank) {
        emit_linear(p, in, NB_SLOT_LORA, NB_ROLE_QA, NB_ROLE_KVA, NB_ROLE_NONE);
        emit(p, (nb_op){ .kind = NB_OP_NORM, .in = NB_SLOT_LORA, .out = NB_SLOT_LORA, .vec = NB_VEC_QA });
        emit_linear(p, NB_SLOT_LORA, NB_SLOT_QKV, NB_ROLE_QB, NB_ROLE_NONE, NB_ROLE_NONE);
    } else {
        emit_linear(p, in, NB_SLOT_QKV, NB_ROLE_Q, NB_ROLE_KVA, NB_ROLE_NONE);
    }
    emit_step(p, NB_OP_LATENT, NB_SLOT_QKV, NB_SLOT_QKV);
    emit_step(p, NB_OP_ABSORB, NB_SLOT_QKV, NB_SLOT_FOLD);
    emit_step(p, NB_OP_JOIN, NB_SLOT_FOLD, NB_SLOT_HEADS);
    emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
    emit_step(p, NB_OP_UNFOLD, NB_SLOT_WIDE, NB_SLOT_ATT);
    emit_linear(p, NB_SLOT_ATT, NB_SLOT_PROJ, NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE);
}

/* From slot `in` to PROJ. */
static void emit_attention(nb_plan *p, nb_slot in, bool fused)
{
    const nb_config *c = p->cfg;

    if (c->mla.on) {
        emit_latent(p, in);
        return;
    }
    emit_linear(p, in, NB_SLOT_QKV, fused ? NB_ROLE_QKV : NB_ROLE_Q, fused ? NB_ROLE_NONE : NB_ROLE_K, fused ? NB_ROLE_NONE : NB_ROLE_V);
    if (c->qk != NB_QK_NONE && c->qk != NB_QK_AFTER)
        emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->clip_qkv > 0)
        emit_step(p, NB_OP_CLIP, NB_SLOT_QKV, NB_SLOT_QKV);
    if (!c->learned_pos && !c->alibi)
        emit_step(p, NB_OP_ROPE, NB_SLOT_QKV, NB_SLOT_QKV);
    if (c->qk == NB_QK_AFTER)
        emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->alibi) {
        emit_step(p, NB_OP_ALIBI, NB_SLOT_QKV, NB_SLOT_HEADS);
        emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
        emit_step(p, NB_OP_PACK, NB_SLOT_WIDE, NB_SLOT_ATT);
    } else {
        emit_step(p, NB_OP_ATTN, NB_SLOT_QKV, NB_SLOT_ATT);
    }
    emit_linear(p, NB_SLOT_ATT, NB_SLOT_PROJ, NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE);
}

static void emit_mlp(nb_plan *p, nb_slot in, bool fused)
{
    const size_t first = p->n_ops;

    if (p->cfg->moe.sparse && !p->cfg->moe.any_dense) {
        emit_step(p, NB_OP_MOE, in, NB_SLOT_PROJ);
        return;
    }
    if (p->cfg->mlp == NB_MLP_PLAIN) {
        emit_linear(p, in, NB_SLOT_GU, NB_ROLE_UP, NB_ROLE_NONE, NB_ROLE_NONE);
        emit_step(p, NB_OP_ACT, NB_SLOT_GU, NB_SLOT_ACT);
    } else {
        emit_linear(p, in, NB_SLOT_GU, fused ? NB_ROLE_GATE_UP : NB_ROLE_GATE, fused ? NB_ROLE_NONE : NB_ROLE_UP, NB_ROLE_NONE);
        emit_step(p, NB_OP_ACT_MUL, NB_SLOT_GU, NB_SLOT_ACT);
    }
    emit_linear(p, NB_SLOT_ACT, NB_SLOT_PROJ, NB_ROLE_DOWN, NB_ROLE_NONE, NB_ROLE_NONE);
    if (p->cfg->moe.sparse) {
        for (size_t i = first; i < p->n_ops; i++)
            ((nb_op *)p->ops)[i].when = NB_WHEN_DENSE;
        emit(p, (nb_op){ .kind = NB_OP_MOE, .in = in, .out = NB_SLOT_PROJ, .when = NB_WHEN_SPARSE });
    }
}

/* Section 1 of the page, block by block kind. */
static void emit_layer(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    const nb_block_kind b = p->cfg->block;
    const bool before = b != NB_BLOCK_POST && b != NB_BLOCK_POST_LN, after = b == NB_BLOCK_POST || b == NB_BLOCK_SANDWICH;
    nb_slot mlp_in = NB_SLOT_NORM;

    if (before)
        emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    if (b == NB_BLOCK_PAR2)
        emit_norm(p, NB_SLOT_X, mlp_in = NB_SLOT_NORM2, NB_VEC_N2);
    emit_attention(p, before ? NB_SLOT_NORM : NB_SLOT_X, fused_qkv);
    if (after)
        emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N1P);
    emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
    if (b == NB_BLOCK_POST_LN)
        emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N1);
    if (b == NB_BLOCK_PRE || b == NB_BLOCK_SANDWICH)
        emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    else if (b == NB_BLOCK_POST || b == NB_BLOCK_POST_LN)
        mlp_in = NB_SLOT_X;
    emit_mlp(p, mlp_in, fused_gu);
    if (after)
        emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N2P);
    emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
    if (b == NB_BLOCK_POST_LN)
        emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N2);
}

/* Programs that quantize may have taken fused matrices apart: the store decides. */
static bool stored_apart(const nb_plan *p, const nb_store *s, nb_role role)
{
    char name[192];

    return s && has_linear(s, nb_plan_linear(p, 0, role, name, sizeof name));
}

nb_status nb_plan_build(const nb_config *cfg, const nb_store *s, nb_plan *out, nb_err *err)
{
    char name[192];
    nb_status rc;

    *out = (nb_plan){ .cfg = cfg };
    rc = find_names(out, s, err);
    if (rc != NB_OK)
        return rc;
    out->ops = nb_alloc_array(MAX_OPS, sizeof *out->ops);
    if (!out->ops)
        return nb_enomem(err, "the plan");
    out->has_act_scale = cfg->mlp == NB_MLP_PLAIN && s && nb_store_find(s, nb_plan_vec(out, 0, NB_VEC_ACT_SCALE, name, sizeof name));
    emit_layer(out, cfg->qkv == NB_QKV_BY_HEAD || (cfg->qkv == NB_QKV_CAT && !stored_apart(out, s, NB_ROLE_Q)),
               cfg->mlp == NB_MLP_GATED_CAT && !stored_apart(out, s, NB_ROLE_GATE));
    size_slots(out);
    return NB_OK;
}

void nb_plan_clear(nb_plan *p)
{
    nb_free((void *)p->ops);
    *p = (nb_plan){ 0 };
}

size_t nb_plan_op_of(const nb_plan *p, nb_role role)
{
    for (size_t i = 0; i < p->n_ops; i++)
        for (size_t j = 0; p->ops[i].kind == NB_OP_LINEAR && j < 3; j++)
            if (p->ops[i].roles[j] == role)
                return i;
    return p->n_ops;
}
