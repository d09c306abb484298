/* config -> op list, slot sizes and tensor names. Source: spec models 1, 4.1. */
#include "model/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

static const char *const role_names[NB_ROLE_COUNT] = {
    [NB_ROLE_Q] = "self_attn.q_proj", [NB_ROLE_K] = "self_attn.k_proj", [NB_ROLE_V] = "self_attn.v_proj", [NB_ROLE_O] = "self_attn.o_proj",
    [NB_ROLE_GATE] = "mlp.gate_proj", [NB_ROLE_UP] = "mlp.up_proj",     [NB_ROLE_DOWN] = "mlp.down_proj",
};
static const char *const vec_names[NB_VEC_COUNT] = {
    [NB_VEC_N1] = "input_layernorm",
    [NB_VEC_N2] = "post_attention_layernorm",
    [NB_VEC_QN] = "self_attn.q_norm",
    [NB_VEC_KN] = "self_attn.k_norm",
};

/* The pre-norm decoder layer. Rows marked qk exist only with a norm on q and k. */
static const struct {
    nb_op op;
    bool qk;
} layer_ops[] = {
    { { .kind = NB_OP_NORM, .in = NB_SLOT_X, .out = NB_SLOT_NORM, .vec = NB_VEC_N1 }, false },
    { { .kind = NB_OP_LINEAR, .in = NB_SLOT_NORM, .out = NB_SLOT_QKV, .roles = { NB_ROLE_Q, NB_ROLE_K, NB_ROLE_V } }, false },
    { { .kind = NB_OP_QKNORM, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV, .vec = NB_VEC_QN }, true },
    { { .kind = NB_OP_ROPE, .in = NB_SLOT_QKV, .out = NB_SLOT_QKV }, false },
    { { .kind = NB_OP_ATTN, .in = NB_SLOT_QKV, .out = NB_SLOT_ATT }, false },
    { { .kind = NB_OP_LINEAR, .in = NB_SLOT_ATT, .out = NB_SLOT_PROJ, .roles = { NB_ROLE_O, NB_ROLE_NONE, NB_ROLE_NONE } }, false },
    { { .kind = NB_OP_ADD, .in = NB_SLOT_PROJ, .out = NB_SLOT_X }, false },
    { { .kind = NB_OP_NORM, .in = NB_SLOT_X, .out = NB_SLOT_NORM, .vec = NB_VEC_N2 }, false },
    { { .kind = NB_OP_LINEAR, .in = NB_SLOT_NORM, .out = NB_SLOT_GU, .roles = { NB_ROLE_GATE, NB_ROLE_UP, NB_ROLE_NONE } }, false },
    { { .kind = NB_OP_ACT_MUL, .in = NB_SLOT_GU, .out = NB_SLOT_ACT }, false },
    { { .kind = NB_OP_LINEAR, .in = NB_SLOT_ACT, .out = NB_SLOT_PROJ, .roles = { NB_ROLE_DOWN, NB_ROLE_NONE, NB_ROLE_NONE } }, false },
    { { .kind = NB_OP_ADD, .in = NB_SLOT_PROJ, .out = NB_SLOT_X }, false },
};

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
static const char *const heads[] = { "lm_head", "language_model.lm_head" };

static bool has(const nb_store *s, const char *prefix, const char *leaf)
{
    char name[192];

    snprintf(name, sizeof name, "%s%s", prefix, leaf);
    return nb_store_find(s, name) != NULL;
}

static nb_status find_names(nb_plan *p, const nb_store *s, nb_err *err)
{
    bool embed = false;

    snprintf(p->prefix, sizeof p->prefix, "model.");
    if (!s) {
        snprintf(p->head, sizeof p->head, "%s", p->cfg->tie_embeddings ? "" : "lm_head");
        return NB_OK;
    }
    for (size_t i = 0; i < NB_LEN(heads); i++) {
        if (has(s, heads[i], ".weight") || has(s, heads[i], ".qweight")) {
            snprintf(p->head, sizeof p->head, "%s", heads[i]);
            break;
        }
    }
    for (size_t i = 0; i < NB_LEN(prefixes) && !embed; i++) {
        embed = has(s, prefixes[i], "embed_tokens.weight");
        if (embed)
            snprintf(p->prefix, sizeof p->prefix, "%s", prefixes[i]);
    }
    for (size_t i = 0; i < NB_LEN(prefixes) && !embed; i++) { /* tied the other way round: only the head is stored */
        embed = p->head[0] && p->cfg->tie_embeddings && has(s, prefixes[i], "norm.weight");
        if (embed)
            snprintf(p->prefix, sizeof p->prefix, "%s", prefixes[i]);
    }
    if (!embed)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"model.embed_tokens.weight\" is missing");
    if (!p->head[0] && p->cfg->tie_given && !p->cfg->tie_embeddings)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "",
                       "tensor \"lm_head.weight\" is missing and tie_word_embeddings is false; set it to true if the model is tied");
    return NB_OK;
}

static void size_slots(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const size_t q = PAD64(c->n_heads * c->head_dim), kv = PAD64(c->n_kv_heads * c->head_dim), ff = PAD64(c->d_ff);
    size_t *len = p->slot_len;

    p->qkv_off[1] = q;
    p->qkv_off[2] = q + kv;
    p->gu_off[1] = ff;
    len[NB_SLOT_X] = len[NB_SLOT_NORM] = len[NB_SLOT_PROJ] = c->d_model;
    len[NB_SLOT_QKV] = q + 2 * kv;
    len[NB_SLOT_ATT] = c->n_heads * c->head_dim;
    len[NB_SLOT_GU] = 2 * ff;
    len[NB_SLOT_ACT] = c->d_ff;
    for (size_t i = 0; i < NB_SLOT_COUNT; i++)
        p->slot_width[i] = PAD64(len[i]);
}

nb_status nb_plan_build(const nb_config *cfg, const nb_store *s, nb_plan *out, nb_err *err)
{
    nb_op *ops;
    nb_status rc;

    *out = (nb_plan){ .cfg = cfg };
    rc = find_names(out, s, err);
    if (rc != NB_OK)
        return rc;
    size_slots(out);
    ops = nb_alloc_array(NB_LEN(layer_ops), sizeof *ops);
    if (!ops)
        return nb_enomem(err, "the plan");
    for (size_t i = 0; i < NB_LEN(layer_ops); i++) {
        if (layer_ops[i].qk && !cfg->qk_norm)
            continue;
        ops[out->n_ops] = layer_ops[i].op;
        for (size_t j = 0; ops[out->n_ops].kind == NB_OP_LINEAR && j < 3 && ops[out->n_ops].roles[j] != NB_ROLE_NONE; j++)
            out->has_role[ops[out->n_ops].roles[j]] = true;
        out->n_ops++;
    }
    out->ops = ops;
    return NB_OK;
}

void nb_plan_clear(nb_plan *p)
{
    nb_free((void *)p->ops);
    *p = (nb_plan){ 0 };
}

const char *nb_plan_linear(const nb_plan *p, size_t layer, nb_role role, char *out, size_t cap)
{
    snprintf(out, cap, "%slayers.%zu.%s", p->prefix, layer, role_names[role]);
    return out;
}

const char *nb_plan_vec(const nb_plan *p, size_t layer, nb_vec vec, char *out, size_t cap)
{
    snprintf(out, cap, "%slayers.%zu.%s.weight", p->prefix, layer, vec_names[vec]);
    return out;
}

void nb_plan_linear_size(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;

    *k = c->d_model;
    switch (role) {
    case NB_ROLE_Q:
        *n = c->n_heads * c->head_dim;
        break;
    case NB_ROLE_K:
    case NB_ROLE_V:
        *n = c->n_kv_heads * c->head_dim;
        break;
    case NB_ROLE_O:
        *n = c->d_model;
        *k = c->n_heads * c->head_dim;
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
        return p->qkv_off[1];
    case NB_ROLE_V:
        return p->qkv_off[2];
    case NB_ROLE_UP:
        return p->gu_off[1];
    default:
        return 0;
    }
}

size_t nb_plan_vec_size(const nb_plan *p, nb_vec vec)
{
    if (vec == NB_VEC_QN || vec == NB_VEC_KN)
        return p->cfg->qk_norm ? p->cfg->head_dim : 0;
    return p->cfg->d_model;
}

size_t nb_plan_op_of(const nb_plan *p, nb_role role)
{
    for (size_t i = 0; i < p->n_ops; i++)
        for (size_t j = 0; p->ops[i].kind == NB_OP_LINEAR && j < 3; j++)
            if (p->ops[i].roles[j] == role)
                return i;
    return p->n_ops;
}
