/* Blocks that layers share in the plan: attention and MLP over the residual and the embedding, whose output joins the input of the
 * layer's own mixer. Source: spec models-2026 S4.6, zamba2. */
#include "model/plan_priv.h"

static void one(nb_plan *p, nb_slot in, nb_slot out, nb_role role)
{
    nb_plan_emit_linear(p, in, out, role, NB_ROLE_NONE, NB_ROLE_NONE);
}

/* out[where `to` lies] += the low-rank path of this use. */
static void adapter(nb_plan *p, nb_slot in, nb_slot out, nb_role path, nb_role to)
{
    one(p, in, NB_SLOT_LORA, path);
    one(p, NB_SLOT_LORA, NB_SLOT_BRANCH, (nb_role)(path + 1));
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_PLUS, .in = NB_SLOT_BRANCH, .out = out, .roles = { to, NB_ROLE_NONE, NB_ROLE_NONE } });
}

void nb_plan_emit_adapters(nb_plan *p, nb_slot in)
{
    for (int i = 0; p->cfg->adapt_qkv && i < 3; i++)
        adapter(p, in, NB_SLOT_QKV, (nb_role)(NB_ROLE_ADAPT_Q_IN + 2 * i), (nb_role)(NB_ROLE_Q + i));
}

void nb_plan_emit_zamba(nb_plan *p)
{
    p->when = NB_WHEN_SHARED;
    nb_plan_emit_step(p, NB_OP_PAIR, NB_SLOT_X, NB_SLOT_PAIR);
    nb_plan_emit_attention(p, NB_SLOT_PAIR, false);
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_NORM, NB_VEC_N2);
    one(p, NB_SLOT_NORM, NB_SLOT_GU, NB_ROLE_GATE_UP);
    adapter(p, NB_SLOT_NORM, NB_SLOT_GU, NB_ROLE_ADAPT_UP_IN, NB_ROLE_GATE_UP);
    nb_plan_emit_step(p, NB_OP_ACT_MUL, NB_SLOT_GU, NB_SLOT_ACT);
    one(p, NB_SLOT_ACT, NB_SLOT_PROJ, NB_ROLE_DOWN);
    one(p, NB_SLOT_PROJ, NB_SLOT_KEEP, NB_ROLE_BLEND);
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_ADD, .in = NB_SLOT_X, .out = NB_SLOT_KEEP, .keep = 1, .gain = 1 });
    nb_plan_emit_norm(p, NB_SLOT_KEEP, NB_SLOT_NORM, NB_VEC_N1);
    p->when = NB_WHEN_BARE;
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    p->when = NB_WHEN_ALWAYS;
    nb_plan_emit_mixers(p, NB_SLOT_NORM);
    nb_plan_emit_add(p, 1, 1);
}

void nb_plan_size_shared(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const size_t q = c->adapt_qkv ? c->n_heads * c->head_dim : 0;
    size_t *len = p->slot_len;

    if (!c->uses)
        return;
    len[NB_SLOT_FIRST] = len[NB_SLOT_KEEP] = c->d_model;
    len[NB_SLOT_PAIR] = 2 * c->d_model;
    len[NB_SLOT_LORA] = c->adapt_rank;
    len[NB_SLOT_BRANCH] = 2 * c->d_ff > q ? 2 * c->d_ff : q;
}

bool nb_plan_shared_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;
    const size_t d = c->d_model;

    if (!c->uses)
        return false;
    switch (role) {
    case NB_ROLE_Q:
    case NB_ROLE_K:
    case NB_ROLE_V:
    case NB_ROLE_ADAPT_Q_IN:
    case NB_ROLE_ADAPT_K_IN:
    case NB_ROLE_ADAPT_V_IN:
        *n = role == NB_ROLE_Q ? c->n_heads * c->head_dim : role <= NB_ROLE_V ? c->n_kv_heads * c->head_dim : c->adapt_rank;
        *k = 2 * d;
        return true;
    case NB_ROLE_ADAPT_Q_OUT:
    case NB_ROLE_ADAPT_K_OUT:
    case NB_ROLE_ADAPT_V_OUT:
    case NB_ROLE_ADAPT_UP_OUT:
        *n = role == NB_ROLE_ADAPT_UP_OUT  ? 2 * c->d_ff
             : role == NB_ROLE_ADAPT_Q_OUT ? c->n_heads * c->head_dim
                                           : c->n_kv_heads * c->head_dim;
        *k = c->adapt_rank;
        return true;
    case NB_ROLE_ADAPT_UP_IN:
    case NB_ROLE_BLEND:
        *n = role == NB_ROLE_BLEND ? d : c->adapt_rank;
        *k = d;
        return true;
    default:
        return false;
    }
}
