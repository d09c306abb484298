/* config -> op list and slot sizes. Source: spec models 1, 5. */
#include "model/plan_priv.h"

#include <string.h>

#include "base/mem.h"

bool nb_op_is_plain(nb_op_kind kind)
{
    switch (kind) {
    case NB_OP_NORM:
    case NB_OP_LINEAR:
    case NB_OP_QKNORM:
    case NB_OP_CLIP:
    case NB_OP_ROPE:
    case NB_OP_ATTN:
    case NB_OP_ACT:
    case NB_OP_ACT_MUL:
    case NB_OP_ADD:
        return true;
    default:
        return false;
    }
}

bool nb_plan_runs(const nb_plan *p, const nb_op *op, size_t layer)
{
    const nb_config *c = p->cfg;
    const bool sparse = c->moe.sparse && c->moe.sparse[layer];

    if (c->skip && c->skip[layer])
        return false;
    if (op->when >= NB_WHEN_BARE)
        return (c->uses[layer].from != SIZE_MAX) == (op->when == NB_WHEN_SHARED);
    if (op->mixers && !(op->mixers >> (c->mixer ? c->mixer[layer] : NB_MIX_ATTN) & 1))
        return false;
    return op->when == NB_WHEN_ALWAYS || sparse == (op->when == NB_WHEN_SPARSE);
}

static bool reads(const nb_op *op, nb_vec vec)
{
    switch (vec) {
    case NB_VEC_QN:
    case NB_VEC_KN:
    case NB_VEC_QN_BIAS:
    case NB_VEC_KN_BIAS:
        return op->kind == NB_OP_QKNORM;
    case NB_VEC_N1_BIAS:
    case NB_VEC_N2_BIAS:
        return op->kind == NB_OP_NORM && (nb_vec)(NB_VEC_N1_BIAS + op->vec) == vec;
    case NB_VEC_KVA:
        return op->kind == NB_OP_LATENT || op->kind == NB_OP_ONE_KV;
    case NB_VEC_SINKS:
        return op->kind == NB_OP_ATTN;
    case NB_VEC_ACT_SCALE:
    case NB_VEC_ALPHA_P:
    case NB_VEC_ALPHA_N:
    case NB_VEC_BETA:
    case NB_VEC_EPS:
        return op->kind == NB_OP_ACT;
    case NB_VEC_CONV:
    case NB_VEC_CONV_K:
    case NB_VEC_CONV_V:
    case NB_VEC_CONV_BIAS:
        return op->kind == NB_OP_CONV || op->kind == NB_OP_SHORT;
    case NB_VEC_A_LOG:
    case NB_VEC_DT_BIAS:
    case NB_VEC_SKIP:
        return op->kind == NB_OP_DELTA || op->kind == NB_OP_SSM || op->kind == NB_OP_SSM1;
    case NB_VEC_MIX_NORM:
        return op->kind == NB_OP_DELTA || op->kind == NB_OP_SSM_NORM || op->kind == NB_OP_LINATT;
    case NB_VEC_DT_NORM:
    case NB_VEC_B_NORM:
    case NB_VEC_C_NORM:
        return op->kind == NB_OP_DT_NORM;
    case NB_VEC_LAYER_SCALAR:
        return op->kind == NB_OP_SCALE && op->gain == 0;
    case NB_VEC_EXPERT_SCALE:
        return op->kind == NB_OP_MOE;
    case NB_VEC_INDEX_NORM:
    case NB_VEC_INDEX_BIAS:
        return op->kind == NB_OP_INDEX;
    case NB_VEC_COMP_APE:
    case NB_VEC_COMP_NORM:
    case NB_VEC_ICOMP_APE:
    case NB_VEC_ICOMP_NORM:
        return op->kind == NB_OP_ENTRIES;
    case NB_VEC_HYPER1:
    case NB_VEC_HYPER1_BASE:
    case NB_VEC_HYPER1_SCALE:
        return op->kind == NB_OP_HYPER_IN && op->vec == NB_VEC_HYPER1;
    case NB_VEC_HYPER2:
    case NB_VEC_HYPER2_BASE:
    case NB_VEC_HYPER2_SCALE:
        return op->kind == NB_OP_HYPER_IN && op->vec == NB_VEC_HYPER2;
    case NB_VEC_PAIR_NORM:
        return op->kind == NB_OP_PAIR;
    case NB_VEC_ALT_ROUTER:
    case NB_VEC_ALT_NORM:
        return op->kind == NB_OP_PREDICT || op->kind == NB_OP_CORRECT;
    case NB_VEC_ALT_PREDICT:
        return op->kind == NB_OP_PREDICT;
    case NB_VEC_ALT_CORRECT:
    case NB_VEC_ALT_SCALE:
        return op->kind == NB_OP_CORRECT;
    default:
        return op->kind == NB_OP_NORM && op->vec == vec;
    }
}

bool nb_plan_has_vec(const nb_plan *p, size_t layer, nb_vec vec)
{
    if (vec == NB_VEC_SINKS && p->cfg->sinks_local && !(p->cfg->windowed && p->cfg->windowed[layer]))
        return false;
    if ((vec == NB_VEC_KN || vec == NB_VEC_KN_BIAS) && nb_plan_mixer(p, layer) == NB_MIX_SHARED)
        return false;
    if (vec >= NB_VEC_ICOMP_APE && vec <= NB_VEC_ICOMP_NORM && nb_plan_mixer(p, layer) != NB_MIX_CSA)
        return false;
    for (size_t i = 0; i < p->n_ops && nb_plan_vec_size(p, vec) > 0; i++)
        if (reads(&p->ops[i], vec) && nb_plan_runs(p, &p->ops[i], layer))
            return true;
    return false;
}

bool nb_plan_has_op(const nb_plan *p, size_t layer, nb_op_kind kind)
{
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && nb_plan_runs(p, &p->ops[i], layer))
            return true;
    return false;
}

bool nb_plan_has_kv(const nb_plan *p, size_t layer)
{
    return nb_plan_has_op(p, layer, NB_OP_ATTN);
}

/* ---- ops ------------------------------------------------------------------------------------------------------ */

enum { MAX_OPS = 64 };

void nb_plan_emit(nb_plan *p, nb_op op)
{
    nb_op *ops = (nb_op *)p->ops;

    for (size_t j = 0; op.kind == NB_OP_LINEAR && j < 3 && op.roles[j] != NB_ROLE_NONE; j++)
        p->has_role[op.roles[j]] = true;
    if (!op.mixers)
        op.mixers = p->mask;
    if (op.when == NB_WHEN_ALWAYS)
        op.when = p->when;
    if (op.kind == NB_OP_ADD && op.keep == 0 && op.gain == 0) {
        op.keep = 1;
        op.gain = (float)p->cfg->res_mult;
    }
    ops[p->n_ops++] = op;
}

void nb_plan_emit_step(nb_plan *p, nb_op_kind kind, nb_slot in, nb_slot out)
{
    nb_plan_emit(p, (nb_op){ .kind = kind, .in = in, .out = out });
}

void nb_plan_emit_norm(nb_plan *p, nb_slot in, nb_slot out, nb_vec vec)
{
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_NORM,
                             .in = in,
                             .out = out,
                             .vec = p->cfg->norm == NB_NORM_LN_0 || p->cfg->norm == NB_NORM_RMS_0 ? NB_VEC_NONE : vec });
}

void nb_plan_emit_linear(nb_plan *p, nb_slot in, nb_slot out, nb_role a, nb_role b, nb_role c)
{
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_LINEAR, .in = in, .out = out, .roles = { a, b, c } });
}

/* Layers that choose keys themselves: models-2026 S4.3. */
static void emit_index(nb_plan *p, nb_slot in)
{
    const unsigned all = p->mask;

    p->mask = p->cfg->mixer ? 1u << NB_MIX_ATTN : 0;
    nb_plan_emit_linear(p, NB_SLOT_LORA, NB_SLOT_IQ, NB_ROLE_INDEX_Q, NB_ROLE_NONE, NB_ROLE_NONE);
    nb_plan_emit_linear(p, in, NB_SLOT_IK, NB_ROLE_INDEX_K, NB_ROLE_INDEX_W, NB_ROLE_NONE);
    nb_plan_emit_step(p, NB_OP_INDEX, NB_SLOT_IQ, NB_SLOT_IK);
    p->mask = all;
}

/* Attention over a cache of latents: each head's q is brought there, its value back from there. */
static void emit_latent(nb_plan *p, nb_slot in)
{
    if (p->cfg->mla.q_rank) {
        nb_plan_emit_linear(p, in, NB_SLOT_LORA, NB_ROLE_QA, NB_ROLE_KVA, NB_ROLE_NONE);
        nb_plan_emit(p, (nb_op){ .kind = NB_OP_NORM, .in = NB_SLOT_LORA, .out = NB_SLOT_LORA, .vec = NB_VEC_QA });
        nb_plan_emit_linear(p, NB_SLOT_LORA, NB_SLOT_QKV, NB_ROLE_QB, NB_ROLE_NONE, NB_ROLE_NONE);
    } else {
        nb_plan_emit_linear(p, in, NB_SLOT_QKV, NB_ROLE_Q, NB_ROLE_KVA, NB_ROLE_NONE);
    }
    if (p->cfg->index_top)
        emit_index(p, in);
    nb_plan_emit_step(p, NB_OP_LATENT, NB_SLOT_QKV, NB_SLOT_QKV);
    nb_plan_emit_step(p, NB_OP_ABSORB, NB_SLOT_QKV, NB_SLOT_FOLD);
    nb_plan_emit_step(p, NB_OP_JOIN, NB_SLOT_FOLD, NB_SLOT_HEADS);
    nb_plan_emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
    nb_plan_emit_step(p, NB_OP_UNFOLD, NB_SLOT_WIDE, NB_SLOT_ATT);
    nb_plan_emit_linear(p, NB_SLOT_ATT, NB_SLOT_PROJ, NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE);
}

static bool narrow_values(const nb_config *c)
{
    return c->dims && c->dims[0].value_dim != c->dims[0].kv_dim;
}

/* Layers that read the keys of an earlier one have q only; where keys are values too there is no v. */
static void emit_qkv(nb_plan *p, nb_slot in, bool fused)
{
    static const struct {
        nb_mixer kind;
        nb_role k, v;
    } kinds[] = { { NB_MIX_ATTN, NB_ROLE_K, NB_ROLE_V },
                  { NB_MIX_KEYVAL, NB_ROLE_K, NB_ROLE_NONE },
                  { NB_MIX_SHARED, NB_ROLE_NONE, NB_ROLE_NONE } };
    const unsigned all = p->mask;

    if (fused || !p->cfg->dims || !p->cfg->mixer) {
        nb_plan_emit_linear(p, in, NB_SLOT_QKV, fused ? NB_ROLE_QKV : NB_ROLE_Q, fused ? NB_ROLE_NONE : NB_ROLE_K,
                            fused ? NB_ROLE_NONE : NB_ROLE_V);
        return;
    }
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        p->mask = 1u << kinds[i].kind;
        if (nb_plan_has_mixer(p->cfg, kinds[i].kind))
            nb_plan_emit_linear(p, in, NB_SLOT_QKV, NB_ROLE_Q, kinds[i].k, kinds[i].v);
    }
    p->mask = 1u << NB_MIX_ATTN | 1u << NB_MIX_KEYVAL;
    nb_plan_emit_step(p, NB_OP_VNORM, NB_SLOT_QKV, NB_SLOT_QKV);
    p->mask = all;
}

/* From slot `in` to PROJ. */
void nb_plan_emit_attention(nb_plan *p, nb_slot in, bool fused)
{
    const nb_config *c = p->cfg;
    const bool after = c->qk == NB_QK_AFTER || c->qk == NB_QK_AFTER_0;

    if (c->mla.on) {
        emit_latent(p, in);
        return;
    }
    emit_qkv(p, in, fused);
    nb_plan_emit_adapters(p, in);
    if (c->gated_q)
        nb_plan_emit_step(p, NB_OP_UNGATE, NB_SLOT_QKV, NB_SLOT_GATE);
    if (c->out_gate)
        nb_plan_emit_linear(p, in, NB_SLOT_GATE, NB_ROLE_OGATE, NB_ROLE_NONE, NB_ROLE_NONE);
    if (c->qk != NB_QK_NONE && !after)
        nb_plan_emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->clip_qkv > 0)
        nb_plan_emit_step(p, NB_OP_CLIP, NB_SLOT_QKV, NB_SLOT_QKV);
    if (!c->learned_pos && !c->alibi)
        nb_plan_emit_step(p, NB_OP_ROPE, NB_SLOT_QKV, NB_SLOT_QKV);
    if (after)
        nb_plan_emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->grow > 0)
        nb_plan_emit_step(p, NB_OP_GROW, NB_SLOT_QKV, NB_SLOT_QKV);
    if (c->alibi) {
        nb_plan_emit_step(p, NB_OP_ALIBI, NB_SLOT_QKV, NB_SLOT_HEADS);
        nb_plan_emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
        nb_plan_emit_step(p, NB_OP_PACK, NB_SLOT_WIDE, NB_SLOT_ATT);
    } else if (narrow_values(c)) {
        nb_plan_emit_step(p, NB_OP_WIDEN, NB_SLOT_QKV, NB_SLOT_HEADS);
        nb_plan_emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
        nb_plan_emit_step(p, NB_OP_PACK, NB_SLOT_WIDE, NB_SLOT_ATT);
    } else {
        nb_plan_emit_step(p, NB_OP_ATTN, NB_SLOT_QKV, NB_SLOT_ATT);
    }
    if (c->gated_q || c->out_gate)
        nb_plan_emit_step(p, NB_OP_OGATE, NB_SLOT_GATE, NB_SLOT_ATT);
    nb_plan_emit_linear(p, NB_SLOT_ATT, NB_SLOT_PROJ, NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE);
}

/* An MLP without experts. */
void nb_plan_emit_dense(nb_plan *p, nb_slot in, bool fused)
{
    if (p->cfg->mlp == NB_MLP_PLAIN) {
        nb_plan_emit_linear(p, in, NB_SLOT_GU, NB_ROLE_UP, NB_ROLE_NONE, NB_ROLE_NONE);
        nb_plan_emit_step(p, NB_OP_ACT, NB_SLOT_GU, NB_SLOT_ACT);
    } else {
        nb_plan_emit_linear(p, in, NB_SLOT_GU, fused ? NB_ROLE_GATE_UP : NB_ROLE_GATE, fused ? NB_ROLE_NONE : NB_ROLE_UP, NB_ROLE_NONE);
        if (p->cfg->sparsity)
            nb_plan_emit_step(p, NB_OP_SPARSE, NB_SLOT_GU, NB_SLOT_GU);
        nb_plan_emit_step(p, NB_OP_ACT_MUL, NB_SLOT_GU, NB_SLOT_ACT);
    }
    nb_plan_emit_linear(p, NB_SLOT_ACT, NB_SLOT_PROJ, NB_ROLE_DOWN, NB_ROLE_NONE, NB_ROLE_NONE);
}

void nb_plan_emit_mlp(nb_plan *p, nb_slot in, bool fused)
{
    const size_t first = p->n_ops;

    if (p->cfg->moe.sparse && !p->cfg->moe.any_dense) {
        nb_plan_emit_step(p, NB_OP_MOE, in, NB_SLOT_PROJ);
        return;
    }
    nb_plan_emit_dense(p, in, fused);
    if (p->cfg->moe.sparse) {
        for (size_t i = first; i < p->n_ops; i++)
            ((nb_op *)p->ops)[i].when = NB_WHEN_DENSE;
        nb_plan_emit(p, (nb_op){ .kind = NB_OP_MOE, .in = in, .out = NB_SLOT_PROJ, .when = NB_WHEN_SPARSE });
    }
}

void nb_plan_emit_scale(nb_plan *p, nb_slot slot, double gain)
{
    if (gain != 1)
        nb_plan_emit(p, (nb_op){ .kind = NB_OP_SCALE, .in = slot, .out = slot, .gain = (float)gain });
}

void nb_plan_emit_add(nb_plan *p, double keep, double gain)
{
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_ADD, .in = NB_SLOT_PROJ, .out = NB_SLOT_X, .keep = (float)keep, .gain = (float)gain });
}

/* From slot `in` to PROJ: attention in some layers, a mixer in others. */
static void emit_mixer(nb_plan *p, nb_slot in, bool fused)
{
    const unsigned all = p->mask, attn = 1u << NB_MIX_ATTN;

    if (p->cfg->mixer)
        p->mask = attn | 1u << NB_MIX_SHARED;
    if (!p->cfg->mixer || (nb_plan_has_mixer(p->cfg, NB_MIX_ATTN) && (!all || all & attn)))
        nb_plan_emit_attention(p, in, fused);
    p->mask = all;
    if (all != attn)
        nb_plan_emit_mixers(p, in);
}

/* Attention and a mixer side by side: models-2026 S4.6, falcon_h1. */
static void emit_both(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    const nb_config *c = p->cfg;

    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    nb_plan_emit_scale(p, NB_SLOT_NORM, c->mix.in_mult);
    nb_plan_emit_mixers(p, NB_SLOT_NORM);
    nb_plan_emit_add(p, 1, c->mix.out_mult);
    nb_plan_emit_scale(p, NB_SLOT_NORM, c->attn_in / c->mix.in_mult);
    nb_plan_emit_attention(p, NB_SLOT_NORM, fused_qkv);
    nb_plan_emit_add(p, 1, c->attn_out);
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    nb_plan_emit_mlp(p, NB_SLOT_NORM, fused_gu);
    nb_plan_emit_add(p, 1, c->down_mult);
}

/* A mixer or an MLP behind one norm. */
static void emit_single(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    emit_mixer(p, NB_SLOT_NORM, fused_qkv);
    p->mask = 1u << NB_MIX_NONE;
    if (nb_plan_has_mixer(p->cfg, NB_MIX_NONE))
        nb_plan_emit_mlp(p, NB_SLOT_NORM, fused_gu);
    p->mask = 0;
    nb_plan_emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
}

/* The residual is what the norm gives: models-2026 S4.9. */
static void emit_norm_res(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    const nb_config *c = p->cfg;

    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N1);
    emit_mixer(p, NB_SLOT_X, fused_qkv);
    p->mask = c->mixer ? 1u << NB_MIX_ATTN : 0;
    nb_plan_emit_add(p, c->alpha[1], c->beta[1]);
    p->mask = 1u << NB_MIX_LIGHTNING;
    if (c->mixer)
        nb_plan_emit_add(p, c->alpha[0], c->beta[0]);
    p->mask = 0;
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N2);
    nb_plan_emit_mlp(p, NB_SLOT_X, fused_gu);
    nb_plan_emit_add(p, c->alpha[2], c->beta[2]);
}

/* Halves of a layer in turn; the experts read what the first one's MLP reads, and join behind the second. */
static void emit_longcat(nb_plan *p)
{
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    nb_plan_emit_attention(p, NB_SLOT_NORM, false);
    nb_plan_emit_add(p, 1, 1);
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_MOE, .in = NB_SLOT_NORM, .out = NB_SLOT_KEEP, .when = NB_WHEN_SPARSE });
    nb_plan_emit_dense(p, NB_SLOT_NORM, false);
    nb_plan_emit_add(p, 1, 1);
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_ADD, .in = NB_SLOT_KEEP, .out = NB_SLOT_X, .keep = 1, .gain = 1, .when = NB_WHEN_DENSE });
}

/* Section 1 of the page, block by block kind. */
static void emit_block(nb_plan *p, nb_block_kind b, bool fused_qkv, bool fused_gu)
{
    const bool before = b != NB_BLOCK_POST && b != NB_BLOCK_POST_LN, after = b == NB_BLOCK_POST || b == NB_BLOCK_SANDWICH;
    nb_slot mlp_in = NB_SLOT_NORM;

    if (before)
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    if (b == NB_BLOCK_PAR2)
        nb_plan_emit_norm(p, NB_SLOT_X, mlp_in = NB_SLOT_NORM2, NB_VEC_N2);
    emit_mixer(p, before ? NB_SLOT_NORM : NB_SLOT_X, fused_qkv);
    if (after)
        nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N1P);
    nb_plan_emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
    if (b == NB_BLOCK_POST_LN)
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N1);
    if (b == NB_BLOCK_PRE || b == NB_BLOCK_SANDWICH)
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    else if (b == NB_BLOCK_POST || b == NB_BLOCK_POST_LN)
        mlp_in = NB_SLOT_X;
    nb_plan_emit_mlp(p, mlp_in, fused_gu);
    if (after)
        nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N2P);
    nb_plan_emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
    if (b == NB_BLOCK_POST_LN)
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N2);
}

static void emit_layer(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    switch (p->cfg->block) {
    case NB_BLOCK_BOTH:
        emit_both(p, fused_qkv, fused_gu);
        break;
    case NB_BLOCK_LONGCAT:
        emit_longcat(p);
        break;
    case NB_BLOCK_GEMMA4:
        nb_plan_emit_gemma4(p);
        break;
    case NB_BLOCK_GEMMA3N:
        nb_plan_emit_gemma3n(p);
        break;
    case NB_BLOCK_HYPER:
        nb_plan_emit_v4(p);
        break;
    case NB_BLOCK_ZAMBA:
        nb_plan_emit_zamba(p);
        break;
    case NB_BLOCK_SINGLE:
        emit_single(p, fused_qkv, fused_gu);
        break;
    case NB_BLOCK_NORM_RES:
        emit_norm_res(p, fused_qkv, fused_gu);
        break;
    case NB_BLOCK_MIXED:
        p->mask = 1u << NB_MIX_ATTN;
        emit_block(p, NB_BLOCK_POST, fused_qkv, fused_gu);
        p->mask = ~p->mask;
        emit_block(p, NB_BLOCK_PRE, fused_qkv, fused_gu);
        p->mask = 0;
        break;
    default:
        emit_block(p, p->cfg->block, fused_qkv, fused_gu);
        break;
    }
}

/* Programs that quantize may have taken fused matrices apart: the store decides. */
static bool stored_apart(const nb_plan *p, const nb_store *s, nb_role role)
{
    char name[192];

    return s && nb_plan_stored(s, nb_plan_linear(p, 0, role, name, sizeof name));
}

nb_status nb_plan_build(const nb_config *cfg, const nb_store *s, nb_plan *out, nb_err *err)
{
    char name[192];
    nb_status rc;

    *out = (nb_plan){ .cfg = cfg };
    rc = nb_plan_find_names(out, s, err);
    if (rc != NB_OK)
        return rc;
    out->ops = nb_alloc_array(MAX_OPS, sizeof *out->ops);
    out->runs = nb_alloc_array(3 * (cfg->mix.key_heads + 1), sizeof *out->runs);
    if (!out->ops || !out->runs) {
        nb_plan_clear(out);
        return nb_enomem(err, "the plan");
    }
    out->has_act_scale = cfg->mlp == NB_MLP_PLAIN && s && nb_store_find(s, nb_plan_vec(out, 0, NB_VEC_ACT_SCALE, name, sizeof name));
    emit_layer(out, cfg->qkv == NB_QKV_BY_HEAD || (cfg->qkv == NB_QKV_CAT && !stored_apart(out, s, NB_ROLE_Q)),
               cfg->mlp == NB_MLP_GATED_CAT && !stored_apart(out, s, NB_ROLE_GATE));
    nb_plan_size_slots(out);
    return NB_OK;
}

void nb_plan_clear(nb_plan *p)
{
    nb_free((void *)p->ops);
    nb_free(p->runs);
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

size_t nb_plan_op_at(const nb_plan *p, size_t layer, nb_role role)
{
    for (size_t i = 0; i < p->n_ops; i++)
        for (size_t j = 0; p->ops[i].kind == NB_OP_LINEAR && j < 3 && nb_plan_runs(p, &p->ops[i], layer); j++)
            if (p->ops[i].roles[j] == role)
                return i;
    return p->n_ops;
}
