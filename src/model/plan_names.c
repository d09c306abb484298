/* Names of tensors: prefixes, layers, linears, vectors. Source: spec models 4, models-2026 S3.3. */
#include "model/plan_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- names ---------------------------------------------------------------------------------------------------- */

static const char *const role_names[NB_ROLE_COUNT] = {
    [NB_ROLE_Q] = "self_attn.q_proj",
    [NB_ROLE_K] = "self_attn.k_proj",
    [NB_ROLE_V] = "self_attn.v_proj",
    [NB_ROLE_QA] = "self_attn.q_a_proj",
    [NB_ROLE_QB] = "self_attn.q_b_proj",
    [NB_ROLE_KVA] = "self_attn.kv_a_proj_with_mqa",
    [NB_ROLE_QKV] = "self_attn.qkv_proj",
    [NB_ROLE_O] = "self_attn.o_proj",
    [NB_ROLE_GATE] = "mlp.gate_proj",
    [NB_ROLE_UP] = "mlp.up_proj",
    [NB_ROLE_GATE_UP] = "mlp.gate_up_proj",
    [NB_ROLE_DOWN] = "mlp.down_proj",
    [NB_ROLE_OGATE] = "self_attn.gate_proj",
    [NB_ROLE_BRANCH_IN] = "per_layer_input_gate",
    [NB_ROLE_BRANCH_OUT] = "per_layer_projection",
    [NB_ROLE_SIDE_IN] = "laurel.linear_left",
    [NB_ROLE_SIDE_OUT] = "laurel.linear_right",
    [NB_ROLE_INDEX_Q] = "self_attn.indexer.wq_b",
    [NB_ROLE_INDEX_K] = "self_attn.indexer.wk",
    [NB_ROLE_INDEX_W] = "self_attn.indexer.weights_proj",
};
static const char *const vec_names[NB_VEC_COUNT] = {
    [NB_VEC_N1] = "input_layernorm",
    [NB_VEC_N2] = "post_attention_layernorm",
    [NB_VEC_QN] = "self_attn.q_norm",
    [NB_VEC_KN] = "self_attn.k_norm",
    [NB_VEC_N1P] = "post_attention_layernorm",
    [NB_VEC_N2P] = "post_feedforward_layernorm",
    [NB_VEC_QA] = "self_attn.q_a_layernorm",
    [NB_VEC_KVA] = "self_attn.kv_a_layernorm",
    [NB_VEC_SINKS] = "self_attn.sinks",
    [NB_VEC_ACT_SCALE] = "mlp.act.scales",
    [NB_VEC_ALPHA_P] = "mlp.act_fn.alpha_p",
    [NB_VEC_ALPHA_N] = "mlp.act_fn.alpha_n",
    [NB_VEC_BETA] = "mlp.act_fn.beta",
    [NB_VEC_EPS] = "mlp.act_fn.eps",
    [NB_VEC_DENSE_NORM] = "post_feedforward_layernorm_1.weight",
    [NB_VEC_MOE_IN] = "pre_feedforward_layernorm_2.weight",
    [NB_VEC_MOE_OUT] = "post_feedforward_layernorm_2.weight",
    [NB_VEC_ROUTER_NORM] = "router.scale",
    [NB_VEC_EXPERT_SCALE] = "router.per_expert_scale",
    [NB_VEC_BRANCH_NORM] = "post_per_layer_input_norm.weight",
    [NB_VEC_LAYER_SCALAR] = "layer_scalar",
    [NB_VEC_SIDE_NORM] = "laurel.post_laurel_norm.weight",
    [NB_VEC_ALT_NORM] = "altup.router_norm.weight",
    [NB_VEC_ALT_ROUTER] = "altup.modality_router.weight",
    [NB_VEC_ALT_PREDICT] = "altup.prediction_coefs.weight",
    [NB_VEC_ALT_CORRECT] = "altup.correction_coefs.weight",
    [NB_VEC_ALT_SCALE] = "altup.correct_output_scale",
    [NB_VEC_INDEX_NORM] = "self_attn.indexer.k_norm.weight",
    [NB_VEC_INDEX_BIAS] = "self_attn.indexer.k_norm.bias",
};

static const char *or_default(const char *name, const char *dflt)
{
    return name ? name : dflt;
}

static const char *layers_of(const nb_plan *p)
{
    return or_default(p->cfg->names->layers, "layers.");
}

const char *nb_plan_layer(const nb_plan *p, size_t layer, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%zu.", p->prefix, layers_of(p), p->cfg->halves ? layer / p->cfg->halves : layer);
    return out;
}

const char *nb_plan_embed(const nb_plan *p, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s.weight", p->prefix, or_default(p->cfg->names->embed, "embed_tokens"));
    return out;
}

const char *nb_plan_head(const nb_plan *p, char *out, size_t cap)
{
    static const char outer[] = "language_model.";
    const bool inside = strncmp(p->prefix, outer, strlen(outer)) == 0;

    if (p->head[0])
        snprintf(out, cap, "%s", p->head);
    else
        snprintf(out, cap, "%s%s", inside ? outer : "", or_default(p->cfg->names->head, "lm_head"));
    return out;
}

/* Of blocks that layers share. */
#define SHARED "shared_transformer."

/* The name of a layer's tensor; a # stands for which half of a stored layer it is, or which use of a block that layers share; an @
 * for what stands before the mixer where there is such a block. */
static void name_of(const nb_plan *p, size_t layer, const char *name, const char *end, char *out, size_t cap)
{
    const nb_use *use = p->cfg->uses ? &p->cfg->uses[layer] : NULL;
    const size_t number = use ? use->index : p->cfg->halves ? layer % p->cfg->halves : 0;
    size_t at;

    nb_plan_layer(p, use && use->from != SIZE_MAX && strncmp(name, SHARED, strlen(SHARED)) == 0 ? use->from : layer, out, cap);
    at = strlen(out);
    for (; *name && at + 24 < cap; name++) {
        if (*name == '#')
            at += (size_t)snprintf(out + at, cap - at, "%zu", number);
        else if (*name == '@')
            at += (size_t)snprintf(out + at, cap - at, "%s", use && use->from != SIZE_MAX ? "mamba_decoder." : "");
        else
            out[at++] = *name;
    }
    snprintf(out + at, cap - at, "%s", end);
}

size_t nb_plan_stored_at(const nb_plan *p, size_t layer, nb_role role)
{
    const char *name = or_default(p->cfg->names->roles[role], role_names[role]);
    const bool shared = p->cfg->uses && p->cfg->uses[layer].from != SIZE_MAX && strncmp(name, SHARED, strlen(SHARED)) == 0;

    return shared && !strchr(name, '#') ? p->cfg->uses[layer].from : layer;
}

const char *nb_plan_linear(const nb_plan *p, size_t layer, nb_role role, char *out, size_t cap)
{
    name_of(p, layer, or_default(p->cfg->names->roles[role], role_names[role]), "", out, cap);
    return out;
}

const char *nb_plan_kv_b(const nb_plan *p, size_t layer, char *out, size_t cap)
{
    name_of(p, layer, p->cfg->halves ? "self_attn.#.kv_b_proj" : "self_attn.kv_b_proj", "", out, cap);
    return out;
}

/* Vectors that are no norms have their whole names. */
static bool is_norm(nb_vec vec)
{
    return vec < NB_VEC_SINKS;
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
    if (!is_norm(vec))
        name_of(p, layer, stem_of(p, vec), "", out, cap);
    else if (nb_plan_vec_parts(p, vec) > 1)
        snprintf(out, cap, "%s%s%zu.%s.%zu.weight", p->prefix, layers_of(p), layer, stem_of(p, vec), part);
    else
        name_of(p, layer, stem_of(p, vec), is_bias(vec) ? ".bias" : ".weight", out, cap);
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
                                        "gpt_neox.",
                                        "backbone." };

static bool has(const nb_store *s, const char *prefix, const char *name, const char *leaf)
{
    char full[224];

    snprintf(full, sizeof full, "%s%s%s", prefix, name, leaf);
    return nb_store_find(s, full) != NULL;
}

bool nb_plan_stored(const nb_store *s, const char *name)
{
    static const char *const leaves[] = { ".weight", ".qweight", ".weight_packed" };
    bool found = false;

    for (size_t i = 0; i < NB_LEN(leaves) && !found; i++)
        found = has(s, name, "", leaves[i]);
    return found;
}

nb_status nb_plan_find_names(nb_plan *p, const nb_store *s, nb_err *err)
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
        if (nb_plan_stored(s, heads[i])) {
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
