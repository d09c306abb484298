/* DeepSeek-V4 in the plan: several residuals, one key that is the value, entries that windows of tokens make up. Source: spec
 * models-2026 S4.10. */
#include "base/mem.h"
#include "kern/kern.h"
#include "model/plan_priv.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

static void emit_compressed(nb_plan *p)
{
    p->mask = 1u << NB_MIX_CSA;
    nb_plan_emit_linear(p, NB_SLOT_NORM, NB_SLOT_ICOMP, NB_ROLE_ICOMP_KV, NB_ROLE_ICOMP_GATE, NB_ROLE_INDEX_W);
    nb_plan_emit_linear(p, NB_SLOT_LORA, NB_SLOT_IQ, NB_ROLE_INDEX_Q, NB_ROLE_NONE, NB_ROLE_NONE);
    p->mask = 1u << NB_MIX_CSA | 1u << NB_MIX_HCA;
    nb_plan_emit_linear(p, NB_SLOT_NORM, NB_SLOT_COMP, NB_ROLE_COMP_KV, NB_ROLE_COMP_GATE, NB_ROLE_NONE);
    nb_plan_emit_step(p, NB_OP_ENTRIES, NB_SLOT_COMP, NB_SLOT_COMP);
    p->mask = 0;
}

void nb_plan_emit_v4(nb_plan *p)
{
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_HYPER_IN, .in = NB_SLOT_STREAMS, .out = NB_SLOT_X, .vec = NB_VEC_HYPER1 });
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    nb_plan_emit_linear(p, NB_SLOT_NORM, NB_SLOT_LORA, NB_ROLE_QA, NB_ROLE_KVA, NB_ROLE_NONE);
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_NORM, .in = NB_SLOT_LORA, .out = NB_SLOT_LORA, .vec = NB_VEC_QA });
    nb_plan_emit_linear(p, NB_SLOT_LORA, NB_SLOT_QKV, NB_ROLE_QB, NB_ROLE_NONE, NB_ROLE_NONE);
    emit_compressed(p);
    nb_plan_emit_step(p, NB_OP_ONE_KV, NB_SLOT_QKV, NB_SLOT_QKV);
    nb_plan_emit_step(p, NB_OP_ATTN, NB_SLOT_QKV, NB_SLOT_ATT);
    nb_plan_emit_step(p, NB_OP_UNROTATE, NB_SLOT_ATT, NB_SLOT_ATT);
    nb_plan_emit_step(p, NB_OP_GROUPS, NB_SLOT_ATT, NB_SLOT_FOLD);
    nb_plan_emit_linear(p, NB_SLOT_FOLD, NB_SLOT_PROJ, NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE);
    nb_plan_emit_step(p, NB_OP_HYPER_OUT, NB_SLOT_PROJ, NB_SLOT_STREAMS);
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_HYPER_IN, .in = NB_SLOT_STREAMS, .out = NB_SLOT_X, .vec = NB_VEC_HYPER2 });
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    nb_plan_emit_step(p, NB_OP_MOE, NB_SLOT_NORM, NB_SLOT_PROJ);
    nb_plan_emit_step(p, NB_OP_HYPER_OUT, NB_SLOT_PROJ, NB_SLOT_STREAMS);
}

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

size_t nb_plan_rate(const nb_plan *p, size_t layer)
{
    const nb_mixer m = nb_plan_mixer(p, layer);

    return m == NB_MIX_CSA ? p->cfg->v4.rate[0] : m == NB_MIX_HCA ? p->cfg->v4.rate[1] : 0;
}

/* An entry lies in the page of its last token. */
size_t nb_plan_page_entries(const nb_plan *p, size_t layer)
{
    const size_t rate = nb_plan_rate(p, layer);

    return rate ? (NB_PAGE + rate - 1) / rate : 0;
}

/* Entries of CSA are made of two windows each. */
size_t nb_plan_entry_channels(const nb_plan *p, size_t layer, bool index)
{
    const bool csa = nb_plan_mixer(p, layer) == NB_MIX_CSA;

    return index ? 2 * p->cfg->index_dim : (csa ? 2 : 1) * p->cfg->head_dim;
}

size_t nb_plan_v4_state(const nb_plan *p, size_t layer)
{
    const nb_config *c = p->cfg;

    if (nb_plan_mixer(p, layer) == NB_MIX_HCA)
        return PAD64(c->v4.rate[1] * 2 * c->head_dim);
    return PAD64(c->v4.rate[0] * 6 * c->head_dim) + PAD64(c->v4.rate[0] * 6 * c->index_dim);
}

size_t nb_plan_kv_page(const nb_plan *p, size_t layer, nb_dtype t)
{
    const nb_dims d = nb_config_dims(p->cfg, layer);

    return nb_plan_has_kv(p, layer) && d.kv_from == layer ? (nb_config_one_kv(p->cfg) ? 1 : 2) * d.kv_heads * nb_kv_head_bytes(d.kv_dim, t)
                                                          : 0;
}

size_t nb_plan_side_page(const nb_plan *p, size_t layer, nb_dtype t)
{
    const size_t es = t == NB_DT_F32 ? 4 : 2, n = nb_plan_page_entries(p, layer);

    if (n > 0)
        return n * (p->cfg->head_dim + (nb_plan_mixer(p, layer) == NB_MIX_CSA ? p->cfg->index_dim : 0)) * es;
    return nb_plan_has_op(p, layer, NB_OP_INDEX) ? NB_PAGE * p->cfg->index_dim * es : 0;
}

void nb_plan_size_v4(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const size_t m = c->v4.streams;
    size_t *len = p->slot_len;

    if (!c->v4.on)
        return;
    p->kva_slot = NB_SLOT_LORA;
    p->kva_off = PAD64(c->mla.q_rank);
    len[NB_SLOT_LORA] = p->kva_off + c->head_dim;
    len[NB_SLOT_QKV] = c->n_heads * c->head_dim;
    len[NB_SLOT_FOLD] = c->v4.groups * c->v4.rank;
    len[NB_SLOT_STREAMS] = len[NB_SLOT_KEEP] = m * c->d_model;
    len[NB_SLOT_HYPER] = m + m * m;
    len[NB_SLOT_COMP] = PAD64(2 * c->head_dim) + 2 * c->head_dim;
    len[NB_SLOT_ICOMP] = 2 * PAD64(2 * c->index_dim) + c->index_heads;
}

bool nb_plan_v4_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;

    if (!c->v4.on)
        return false;
    *k = c->d_model;
    switch (role) {
    case NB_ROLE_KVA:
        *n = c->head_dim;
        return true;
    case NB_ROLE_QB:
        *n = c->n_heads * c->head_dim;
        *k = c->mla.q_rank;
        return true;
    case NB_ROLE_O:
        *n = c->d_model;
        *k = c->v4.groups * c->v4.rank;
        return true;
    case NB_ROLE_COMP_KV: /* the widest; see nb_plan_linear_size_at */
    case NB_ROLE_COMP_GATE:
        *n = 2 * c->head_dim;
        return true;
    case NB_ROLE_ICOMP_KV:
    case NB_ROLE_ICOMP_GATE:
        *n = 2 * c->index_dim;
        return true;
    default:
        return false;
    }
}

size_t nb_plan_v4_vec(const nb_plan *p, nb_vec vec)
{
    const nb_config *c = p->cfg;
    const size_t m = c->v4.streams, n = 2 * m + m * m;

    if (!c->v4.on)
        return 0;
    switch (vec) {
    case NB_VEC_COMP_APE:
        return c->v4.rate[0] * 2 * c->head_dim;
    case NB_VEC_COMP_NORM:
        return c->head_dim;
    case NB_VEC_ICOMP_APE:
        return c->v4.rate[0] * 2 * c->index_dim;
    case NB_VEC_ICOMP_NORM:
        return c->index_dim;
    case NB_VEC_HYPER1:
    case NB_VEC_HYPER2:
        return n * m * c->d_model;
    case NB_VEC_HYPER1_BASE:
    case NB_VEC_HYPER2_BASE:
        return n;
    case NB_VEC_HYPER1_SCALE:
    case NB_VEC_HYPER2_SCALE:
        return 3;
    default:
        return 0;
    }
}
