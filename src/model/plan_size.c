/* Sizes of linears, vectors and slots. Source: spec models 1, 5. */
#include <string.h>

#include "base/mem.h"
#include "model/plan_priv.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

void nb_plan_linear_size_at(const nb_plan *p, size_t layer, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;
    const nb_dims d = nb_config_dims(c, layer);

    nb_plan_linear_size(p, role, n, k);
    if (role >= NB_ROLE_COMP_KV && role <= NB_ROLE_ICOMP_GATE)
        *n = nb_plan_entry_channels(p, layer, role >= NB_ROLE_ICOMP_KV);
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

    if (vec == NB_VEC_COMP_APE || vec == NB_VEC_ICOMP_APE)
        return nb_plan_rate(p, layer) * nb_plan_entry_channels(p, layer, vec == NB_VEC_ICOMP_APE);
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

    if (nb_plan_mix_linear(p, role, n, k) || nb_plan_gemma_linear(p, role, n, k) || nb_plan_shared_linear(p, role, n, k) ||
        nb_plan_v4_linear(p, role, n, k))
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
    case NB_ROLE_INDEX_Q:
        *n = c->index_heads * c->index_dim;
        *k = c->mla.q_rank;
        break;
    case NB_ROLE_INDEX_K:
        *n = c->index_dim;
        break;
    case NB_ROLE_INDEX_W:
        *n = c->index_heads;
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
    const bool post = c->block == NB_BLOCK_POST || c->block == NB_BLOCK_SANDWICH ||
                      (c->block >= NB_BLOCK_MIXED && c->block <= NB_BLOCK_GEMMA3N),
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
        return c->v4.on ? c->head_dim : c->mla.kv_rank;
    case NB_VEC_INDEX_NORM:
    case NB_VEC_INDEX_BIAS:
        return c->index_top && !c->v4.on ? c->index_dim : 0;
    case NB_VEC_PAIR_NORM:
        return c->uses ? 2 * c->d_model : 0;
    case NB_VEC_SINKS:
        return c->arch->quirks & NB_Q_OSS || c->sinks_local || c->v4.on ? c->n_heads : 0;
    case NB_VEC_ACT_SCALE:
        return p->has_act_scale ? c->d_ff : 0;
    case NB_VEC_ALPHA_P:
    case NB_VEC_ALPHA_N:
    case NB_VEC_BETA:
    case NB_VEC_EPS:
        return c->act == NB_ACT_XIELU;
    default:
        if (vec >= NB_VEC_COMP_APE)
            return nb_plan_v4_vec(p, vec);
        return vec < NB_VEC_DENSE_NORM ? nb_plan_mix_vec(p, vec) : nb_plan_gemma_vec(p, vec);
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

void nb_plan_size_slots(nb_plan *p)
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
    len[NB_SLOT_IQ] = c->index_heads * c->index_dim;
    len[NB_SLOT_IK] = c->index_top && !c->v4.on ? PAD64(c->index_dim) + c->index_heads : 0;
    len[NB_SLOT_KEEP] = c->halves ? c->d_model : 0;
    len[NB_SLOT_GU] = !gated ? c->d_ff : p->has_role[NB_ROLE_GATE_UP] ? 2 * c->d_ff : 2 * PAD64(c->d_ff);
    len[NB_SLOT_ACT] = c->d_ff;
    nb_plan_size_mixers(p);
    nb_plan_size_gemma(p);
    nb_plan_size_shared(p);
    nb_plan_size_v4(p);
    for (size_t l = 0; c->dims && l < c->n_layers; l++)
        widen_slots(p, l);
    for (size_t i = 0; i < NB_SLOT_COUNT; i++)
        p->slot_width[i] = PAD64(len[i]);
    if (c->v4.on) /* the last group's rows are padded */
        p->slot_width[NB_SLOT_FOLD] = PAD64((c->v4.groups - 1) * c->v4.rank + PAD64(c->v4.rank));
    if (c->moe.sparse) {
        const size_t ff = PAD64(c->moe.ff > c->moe.shared_ff ? c->moe.ff : c->moe.shared_ff);
        size_t *w = p->slot_width;
        len[NB_SLOT_ROUTE] = c->moe.n_experts + c->moe.n_identity;
        w[NB_SLOT_ROUTE] = PAD64(len[NB_SLOT_ROUTE]);
        if (c->moe.latent) {
            len[NB_SLOT_KEEP] = len[NB_SLOT_SUM] = c->moe.latent;
            w[NB_SLOT_KEEP] = w[NB_SLOT_SUM] = PAD64(c->moe.latent);
        }
        len[NB_SLOT_TAKEN] = len[NB_SLOT_GIVEN] = c->d_model;
        w[NB_SLOT_TAKEN] = w[NB_SLOT_GIVEN] = PAD64(c->d_model);
        w[NB_SLOT_GU] = w[NB_SLOT_GU] > 2 * ff ? w[NB_SLOT_GU] : 2 * ff;
        w[NB_SLOT_ACT] = w[NB_SLOT_ACT] > ff ? w[NB_SLOT_ACT] : ff;
    }
}
