/* Gemma 3n and Gemma 4 in the plan: layers with inputs of their own, several residual streams. Source: spec models-2026 S4.8. */
#include "model/plan_priv.h"

static void add(nb_plan *p, nb_slot in, nb_slot out)
{
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_ADD, .in = in, .out = out, .keep = 1, .gain = 1 });
}

static void one(nb_plan *p, nb_slot in, nb_slot out, nb_role role)
{
    nb_plan_emit_linear(p, in, out, role, NB_ROLE_NONE, NB_ROLE_NONE);
}

/* From slot `in` to PROJ, times what the token gives to this layer. */
static void emit_branch(nb_plan *p, nb_slot in)
{
    one(p, in, NB_SLOT_BRANCH, NB_ROLE_BRANCH_IN);
    nb_plan_emit_step(p, NB_OP_BRANCH, NB_SLOT_BRANCH, NB_SLOT_BRANCH);
    one(p, NB_SLOT_BRANCH, NB_SLOT_PROJ, NB_ROLE_BRANCH_OUT);
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_BRANCH_NORM);
}

void nb_plan_emit_gemma4(nb_plan *p)
{
    const nb_config *c = p->cfg;

    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    nb_plan_emit_attention(p, NB_SLOT_NORM, false);
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N1P);
    add(p, NB_SLOT_PROJ, NB_SLOT_X);
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    nb_plan_emit_dense(p, NB_SLOT_NORM, false);
    if (c->moe.sparse) {
        nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_DENSE_NORM);
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_KEEP, NB_VEC_ROUTER_NORM);
        nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_MOE_IN);
        nb_plan_emit_step(p, NB_OP_MOE, NB_SLOT_NORM, NB_SLOT_SUM);
        nb_plan_emit_norm(p, NB_SLOT_SUM, NB_SLOT_SUM, NB_VEC_MOE_OUT);
        add(p, NB_SLOT_SUM, NB_SLOT_PROJ);
    }
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N2P);
    add(p, NB_SLOT_PROJ, NB_SLOT_X);
    if (c->branch) {
        emit_branch(p, NB_SLOT_X);
        add(p, NB_SLOT_PROJ, NB_SLOT_X);
    }
    nb_plan_emit(p, (nb_op){ .kind = NB_OP_SCALE, .in = NB_SLOT_X, .out = NB_SLOT_X }); /* by the layer's scalar */
}

void nb_plan_emit_gemma3n(nb_plan *p)
{
    nb_plan_emit_step(p, NB_OP_PREDICT, NB_SLOT_STREAMS, NB_SLOT_X);
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N1);
    one(p, NB_SLOT_NORM, NB_SLOT_BRANCH, NB_ROLE_SIDE_IN);
    one(p, NB_SLOT_BRANCH, NB_SLOT_KEEP, NB_ROLE_SIDE_OUT);
    nb_plan_emit_norm(p, NB_SLOT_KEEP, NB_SLOT_KEEP, NB_VEC_SIDE_NORM);
    nb_plan_emit_attention(p, NB_SLOT_NORM, false);
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N1P);
    add(p, NB_SLOT_PROJ, NB_SLOT_X);
    add(p, NB_SLOT_NORM, NB_SLOT_X);
    add(p, NB_SLOT_KEEP, NB_SLOT_X);
    nb_plan_emit_scale(p, NB_SLOT_X, 0.70710678118654752440);
    nb_plan_emit_norm(p, NB_SLOT_X, NB_SLOT_NORM, NB_VEC_N2);
    nb_plan_emit_dense(p, NB_SLOT_NORM, false);
    nb_plan_emit_norm(p, NB_SLOT_PROJ, NB_SLOT_PROJ, NB_VEC_N2P);
    add(p, NB_SLOT_PROJ, NB_SLOT_X);
    nb_plan_emit_step(p, NB_OP_CORRECT, NB_SLOT_X, NB_SLOT_KEEP);
    emit_branch(p, NB_SLOT_KEEP);
    nb_plan_emit_step(p, NB_OP_SPREAD, NB_SLOT_PROJ, NB_SLOT_STREAMS);
}

void nb_plan_size_gemma(nb_plan *p)
{
    const nb_config *c = p->cfg;
    size_t *len = p->slot_len;

    if (c->block != NB_BLOCK_GEMMA4 && c->block != NB_BLOCK_GEMMA3N)
        return;
    len[NB_SLOT_LAYERS] = c->n_layers * c->branch;
    len[NB_SLOT_BRANCH] = c->branch > c->side_rank ? c->branch : c->side_rank;
    len[NB_SLOT_STREAMS] = c->n_streams * c->d_model;
    len[NB_SLOT_KEEP] = len[NB_SLOT_SUM] = c->d_model;
}

bool nb_plan_gemma_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;
    const bool in = role == NB_ROLE_BRANCH_IN || role == NB_ROLE_SIDE_IN;
    const size_t width = role == NB_ROLE_BRANCH_IN || role == NB_ROLE_BRANCH_OUT ? c->branch : c->side_rank;

    if (role < NB_ROLE_BRANCH_IN || role > NB_ROLE_SIDE_OUT)
        return false;
    *n = in ? width : c->d_model;
    *k = in ? c->d_model : width;
    return true;
}

size_t nb_plan_gemma_vec(const nb_plan *p, nb_vec vec)
{
    const nb_config *c = p->cfg;
    const size_t A = c->n_streams;

    switch (vec) {
    case NB_VEC_DENSE_NORM:
    case NB_VEC_MOE_IN:
    case NB_VEC_MOE_OUT:
    case NB_VEC_ROUTER_NORM:
        return c->block == NB_BLOCK_GEMMA4 && c->moe.sparse ? c->d_model : 0;
    case NB_VEC_EXPERT_SCALE:
        return c->block == NB_BLOCK_GEMMA4 ? c->moe.n_experts : 0;
    case NB_VEC_BRANCH_NORM:
        return c->branch ? c->d_model : 0;
    case NB_VEC_LAYER_SCALAR:
        return c->block == NB_BLOCK_GEMMA4;
    case NB_VEC_SIDE_NORM:
    case NB_VEC_ALT_NORM:
        return A ? c->d_model : 0;
    case NB_VEC_ALT_SCALE:
        return A && c->scale_stream ? c->d_model : 0;
    case NB_VEC_ALT_ROUTER:
        return A * c->d_model;
    case NB_VEC_ALT_PREDICT:
        return A * A * A;
    case NB_VEC_ALT_CORRECT:
        return A * A;
    default:
        return 0;
    }
}
