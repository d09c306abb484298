/* config -> op list and slot sizes. Source: spec models 1, 5. */
#include "model/plan.h"

#include <string.h>

#include "base/mem.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

bool nb_plan_runs(const nb_plan *p, const nb_op *op, size_t layer)
{
    const nb_config *c = p->cfg;
    const bool sparse = c->moe.sparse && c->moe.sparse[layer];

    if (c->skip && c->skip[layer])
        return false;
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
        return op->kind == NB_OP_LATENT;
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
    default:
        return op->kind == NB_OP_NORM && op->vec == vec;
    }
}

bool nb_plan_has_vec(const nb_plan *p, size_t layer, nb_vec vec)
{
    if (vec == NB_VEC_SINKS && p->cfg->sinks_local && !(p->cfg->windowed && p->cfg->windowed[layer]))
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

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

void nb_plan_linear_size_at(const nb_plan *p, size_t layer, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;
    const nb_dims d = nb_config_dims(c, layer);

    nb_plan_linear_size(p, role, n, k);
    if (!c->dims)
        return;
    if (role == NB_ROLE_Q)
        *n = c->n_heads * d.head_dim;
    else if (role == NB_ROLE_K || role == NB_ROLE_V)
        *n = d.kv_heads * (role == NB_ROLE_K ? d.head_dim : d.value_dim);
    else if (role == NB_ROLE_O)
        *k = c->n_heads * d.value_dim;
    else if (role == NB_ROLE_GATE || role == NB_ROLE_UP)
        *n = d.d_ff;
    else if (role == NB_ROLE_DOWN)
        *k = d.d_ff;
}

size_t nb_plan_vec_size_at(const nb_plan *p, size_t layer, nb_vec vec)
{
    const size_t n = nb_plan_vec_size(p, vec);

    return n > 0 && p->cfg->dims && (vec == NB_VEC_QN || vec == NB_VEC_KN) ? nb_config_dims(p->cfg, layer).head_dim : n;
}

/* Parts of a layer that differs from the others; all of them are padded. */
static nb_heads heads_at(const nb_plan *p, size_t layer)
{
    const nb_dims d = nb_config_dims(p->cfg, layer);
    const size_t q = PAD64(p->cfg->n_heads * d.head_dim), k = PAD64(d.kv_heads * d.head_dim);

    return (nb_heads){ { 0, q, q + k }, { p->cfg->n_heads / d.kv_heads * d.head_dim, d.head_dim, d.value_dim } };
}

nb_heads nb_plan_qkv(const nb_plan *p, size_t layer)
{
    return p->cfg->dims ? heads_at(p, layer) : p->qkv;
}

/* Where values are narrower than keys, they are widened for the cache. */
nb_heads nb_plan_att(const nb_plan *p, size_t layer)
{
    nb_heads h = p->att;

    if (p->cfg->dims) {
        h = heads_at(p, layer);
        h.step[2] = nb_config_dims(p->cfg, layer).kv_dim;
    }
    return h;
}

size_t nb_plan_up_off(const nb_plan *p, size_t layer)
{
    return p->cfg->dims && p->up_off ? PAD64(nb_config_dims(p->cfg, layer).d_ff) : p->up_off;
}

void nb_plan_linear_size(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;

    if (nb_plan_mix_linear(p, role, n, k))
        return;
    *k = c->d_model;
    switch (role) {
    case NB_ROLE_Q:
        *n = c->n_heads * (c->mla.on ? c->mla.nope + c->mla.rope : c->head_dim) * (c->gated_q ? 2 : 1);
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
    const bool post = c->block == NB_BLOCK_POST || c->block == NB_BLOCK_SANDWICH || c->block == NB_BLOCK_MIXED,
               biased = c->norm == NB_NORM_LN || c->norm == NB_NORM_LN1;
    const size_t norm = c->norm == NB_NORM_LN_0 || c->norm == NB_NORM_RMS_0 ? 0 : c->d_model;
    const bool each = c->qk == NB_QK_HEAD || c->qk == NB_QK_AFTER;

    switch (vec) {
    case NB_VEC_N1:
        return c->block != NB_BLOCK_POST ? norm : 0;
    case NB_VEC_N2:
        return c->block != NB_BLOCK_POST && c->block != NB_BLOCK_PAR1 && c->block != NB_BLOCK_SINGLE ? norm : 0;
    case NB_VEC_QN:
    case NB_VEC_KN:
        if (c->qk == NB_QK_NONE || c->qk == NB_QK_AFTER_0)
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
        return c->arch->quirks & NB_Q_OSS || c->sinks_local ? c->n_heads : 0;
    case NB_VEC_ACT_SCALE:
        return p->has_act_scale ? c->d_ff : 0;
    case NB_VEC_ALPHA_P:
    case NB_VEC_ALPHA_N:
    case NB_VEC_BETA:
    case NB_VEC_EPS:
        return c->act == NB_ACT_XIELU;
    default:
        return nb_plan_mix_vec(p, vec);
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

/* Slots hold the widest layer. */
static void widen_slots(nb_plan *p, size_t layer)
{
    const nb_config *c = p->cfg;
    const nb_dims d = nb_config_dims(c, layer);
    const nb_heads qkv = nb_plan_qkv(p, layer);
    const bool wide = d.value_dim != d.kv_dim;
    const size_t need[][2] = { { NB_SLOT_QKV, qkv.off[2] + PAD64(d.kv_heads * d.value_dim) },
                               { NB_SLOT_ATT, c->n_heads * d.value_dim },
                               { NB_SLOT_HEADS, wide ? qkv.off[2] + PAD64(d.kv_heads * d.kv_dim) : 0 },
                               { NB_SLOT_WIDE, wide ? c->n_heads * d.kv_dim : 0 },
                               { NB_SLOT_GU, p->up_off ? 2 * PAD64(d.d_ff) : d.d_ff },
                               { NB_SLOT_ACT, d.d_ff } };

    for (size_t i = 0; i < NB_LEN(need); i++)
        if (p->slot_len[need[i][0]] < need[i][1])
            p->slot_len[need[i][0]] = need[i][1];
    if (wide)
        p->att_in = NB_SLOT_HEADS;
}

static void size_slots(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const bool fused = p->has_role[NB_ROLE_QKV], gated = c->mlp != NB_MLP_PLAIN;
    size_t *len = p->slot_len;

    len[NB_SLOT_QKV] = fused && c->qkv == NB_QKV_BY_HEAD ? grouped_heads(c, &p->qkv) : plain_heads(c, c->head_dim, !fused, &p->qkv);
    if (c->gated_q) { /* k and v lie behind the gates */
        const size_t more = PAD64(2 * c->n_heads * c->head_dim) - p->qkv.off[1];
        p->qkv.off[1] += more;
        p->qkv.off[2] += more;
        len[NB_SLOT_QKV] += more;
    }
    if (c->gated_q || c->out_gate)
        len[NB_SLOT_GATE] = c->n_heads * c->head_dim;
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
    nb_plan_size_mixers(p);
    for (size_t l = 0; c->dims && l < c->n_layers; l++)
        widen_slots(p, l);
    for (size_t i = 0; i < NB_SLOT_COUNT; i++)
        p->slot_width[i] = PAD64(len[i]);
    if (c->moe.sparse) {
        const size_t ff = PAD64(c->moe.ff > c->moe.shared_ff ? c->moe.ff : c->moe.shared_ff);
        size_t *w = p->slot_width;
        len[NB_SLOT_ROUTE] = c->moe.n_experts + c->moe.n_identity;
        w[NB_SLOT_ROUTE] = PAD64(len[NB_SLOT_ROUTE]);
        len[NB_SLOT_KEEP] = len[NB_SLOT_SUM] = c->moe.latent;
        w[NB_SLOT_KEEP] = w[NB_SLOT_SUM] = PAD64(c->moe.latent);
        len[NB_SLOT_TAKEN] = len[NB_SLOT_GIVEN] = c->d_model;
        w[NB_SLOT_TAKEN] = w[NB_SLOT_GIVEN] = PAD64(c->d_model);
        w[NB_SLOT_GU] = w[NB_SLOT_GU] > 2 * ff ? w[NB_SLOT_GU] : 2 * ff;
        w[NB_SLOT_ACT] = w[NB_SLOT_ACT] > ff ? w[NB_SLOT_ACT] : ff;
    }
}

/* ---- ops ------------------------------------------------------------------------------------------------------ */

enum { MAX_OPS = 48 };

void nb_plan_emit(nb_plan *p, nb_op op)
{
    nb_op *ops = (nb_op *)p->ops;

    for (size_t j = 0; op.kind == NB_OP_LINEAR && j < 3 && op.roles[j] != NB_ROLE_NONE; j++)
        p->has_role[op.roles[j]] = true;
    if (!op.mixers)
        op.mixers = p->mask;
    if (op.kind == NB_OP_ADD && op.keep == 0 && op.gain == 0) {
        op.keep = 1;
        op.gain = (float)p->cfg->res_mult;
    }
    ops[p->n_ops++] = op;
}

static void emit(nb_plan *p, nb_op op)
{
    nb_plan_emit(p, op);
}

static void emit_step(nb_plan *p, nb_op_kind kind, nb_slot in, nb_slot out)
{
    emit(p, (nb_op){ .kind = kind, .in = in, .out = out });
}

static void emit_norm(nb_plan *p, nb_slot in, nb_slot out, nb_vec vec)
{
    emit(p, (nb_op){ .kind = NB_OP_NORM,
                     .in = in,
                     .out = out,
                     .vec = p->cfg->norm == NB_NORM_LN_0 || p->cfg->norm == NB_NORM_RMS_0 ? NB_VEC_NONE : vec });
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

static bool narrow_values(const nb_config *c)
{
    return c->dims && c->dims[0].value_dim != c->dims[0].kv_dim;
}

/* From slot `in` to PROJ. */
static void emit_attention(nb_plan *p, nb_slot in, bool fused)
{
    const nb_config *c = p->cfg;
    const bool after = c->qk == NB_QK_AFTER || c->qk == NB_QK_AFTER_0;

    if (c->mla.on) {
        emit_latent(p, in);
        return;
    }
    emit_linear(p, in, NB_SLOT_QKV, fused ? NB_ROLE_QKV : NB_ROLE_Q, fused ? NB_ROLE_NONE : NB_ROLE_K, fused ? NB_ROLE_NONE : NB_ROLE_V);
    if (c->gated_q)
        emit_step(p, NB_OP_UNGATE, NB_SLOT_QKV, NB_SLOT_GATE);
    if (c->out_gate)
        emit_linear(p, in, NB_SLOT_GATE, NB_ROLE_OGATE, NB_ROLE_NONE, NB_ROLE_NONE);
    if (c->qk != NB_QK_NONE && !after)
        emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->clip_qkv > 0)
        emit_step(p, NB_OP_CLIP, NB_SLOT_QKV, NB_SLOT_QKV);
    if (!c->learned_pos && !c->alibi)
        emit_step(p, NB_OP_ROPE, NB_SLOT_QKV, NB_SLOT_QKV);
    if (after)
        emit(p, (nb_op){ .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN });
    if (c->grow > 0)
        emit_step(p, NB_OP_GROW, NB_SLOT_QKV, NB_SLOT_QKV);
    if (c->alibi) {
        emit_step(p, NB_OP_ALIBI, NB_SLOT_QKV, NB_SLOT_HEADS);
        emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
        emit_step(p, NB_OP_PACK, NB_SLOT_WIDE, NB_SLOT_ATT);
    } else if (narrow_values(c)) {
        emit_step(p, NB_OP_WIDEN, NB_SLOT_QKV, NB_SLOT_HEADS);
        emit_step(p, NB_OP_ATTN, NB_SLOT_HEADS, NB_SLOT_WIDE);
        emit_step(p, NB_OP_PACK, NB_SLOT_WIDE, NB_SLOT_ATT);
    } else {
        emit_step(p, NB_OP_ATTN, NB_SLOT_QKV, NB_SLOT_ATT);
    }
    if (c->gated_q || c->out_gate)
        emit_step(p, NB_OP_OGATE, NB_SLOT_GATE, NB_SLOT_ATT);
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

static void emit_scale(nb_plan *p, nb_slot slot, double gain)
{
    if (gain != 1)
        emit(p, (nb_op){ .kind = NB_OP_SCALE, .in = slot, .out = slot, .gain = (float)gain });
}

static void emit_add(nb_plan *p, double keep, double gain)
{
    emit(p, (nb_op){ .kind = NB_OP_ADD, .in = NB_SLOT_PROJ, .out = NB_SLOT_X, .keep = (float)keep, .gain = (float)gain });
}

/* From slot `in` to PROJ: attention in some layers, a mixer in others. */
static void emit_mixer(nb_plan *p, nb_slot in, bool fused)
{
    const unsigned all = p->mask, attn = 1u << NB_MIX_ATTN;

    if (p->cfg->mixer)
        p->mask = attn;
    if (!p->cfg->mixer || (nb_plan_has_mixer(p->cfg, NB_MIX_ATTN) && (!all || all & attn)))
        emit_attention(p, in, fused);
    p->mask = all;
    if (all != attn)
        nb_plan_emit_mixers(p, in);
}

/* Attention and a mixer side by side: models-2026 S4.6, falcon_h1. */
static void emit_both(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    const nb_config *c = p->cfg;

    emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    emit_scale(p, NB_SLOT_NORM, c->mix.in_mult);
    nb_plan_emit_mixers(p, NB_SLOT_NORM);
    emit_add(p, 1, c->mix.out_mult);
    emit_scale(p, NB_SLOT_NORM, c->attn_in / c->mix.in_mult);
    emit_attention(p, NB_SLOT_NORM, fused_qkv);
    emit_add(p, 1, c->attn_out);
    emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    emit_mlp(p, NB_SLOT_NORM, fused_gu);
    emit_add(p, 1, c->down_mult);
}

/* A mixer or an MLP behind one norm. */
static void emit_single(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    emit_mixer(p, NB_SLOT_NORM, fused_qkv);
    p->mask = 1u << NB_MIX_NONE;
    if (nb_plan_has_mixer(p->cfg, NB_MIX_NONE))
        emit_mlp(p, NB_SLOT_NORM, fused_gu);
    p->mask = 0;
    emit_step(p, NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X);
}

/* The residual is what the norm gives: models-2026 S4.9. */
static void emit_norm_res(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    const nb_config *c = p->cfg;

    emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N1);
    emit_mixer(p, NB_SLOT_X, fused_qkv);
    p->mask = c->mixer ? 1u << NB_MIX_ATTN : 0;
    emit_add(p, c->alpha[1], c->beta[1]);
    p->mask = 1u << NB_MIX_LIGHTNING;
    if (c->mixer)
        emit_add(p, c->alpha[0], c->beta[0]);
    p->mask = 0;
    emit_norm(p, NB_SLOT_X, NB_SLOT_X, NB_VEC_N2);
    emit_mlp(p, NB_SLOT_X, fused_gu);
    emit_add(p, c->alpha[2], c->beta[2]);
}

/* Section 1 of the page, block by block kind. */
static void emit_block(nb_plan *p, nb_block_kind b, bool fused_qkv, bool fused_gu)
{
    const bool before = b != NB_BLOCK_POST && b != NB_BLOCK_POST_LN, after = b == NB_BLOCK_POST || b == NB_BLOCK_SANDWICH;
    nb_slot mlp_in = NB_SLOT_NORM;

    if (before)
        emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    if (b == NB_BLOCK_PAR2)
        emit_norm(p, NB_SLOT_X, mlp_in = NB_SLOT_NORM2, NB_VEC_N2);
    emit_mixer(p, before ? NB_SLOT_NORM : NB_SLOT_X, fused_qkv);
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

static void emit_layer(nb_plan *p, bool fused_qkv, bool fused_gu)
{
    switch (p->cfg->block) {
    case NB_BLOCK_BOTH:
        emit_both(p, fused_qkv, fused_gu);
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
    size_slots(out);
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
