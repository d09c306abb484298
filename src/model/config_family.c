/* What single families add to the common keys. Source: spec models 2, 3, 5, 7. */
#include "model/config_read.h"

/* The block of Falcon follows from five flags: spec models 5.8. Runs before the heads are read. */
static nb_status get_falcon(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const norms[] = { "num_ln_in_parallel_attn", NULL };
    bool newer, multi, parallel;
    size_t n;
    nb_status rc;

    if ((rc = nb_cfg_flag(r, "new_decoder_architecture", false, &newer)) != NB_OK ||
        (rc = nb_cfg_flag(r, "multi_query", true, &multi)) != NB_OK || (rc = nb_cfg_flag(r, "parallel_attn", true, &parallel)) != NB_OK ||
        (rc = nb_cfg_flag(r, "alibi", false, &c->alibi)) != NB_OK || (rc = nb_cfg_size(r, norms, 2, newer ? 2 : 1, &n)) != NB_OK)
        return rc;
    if (newer)
        parallel = true;
    c->block = !parallel ? NB_BLOCK_PRE : n == 2 && newer ? NB_BLOCK_PAR2 : NB_BLOCK_PAR1;
    if (c->block == NB_BLOCK_PAR2)
        c->names = &nb_names_falcon2;
    if (!newer) {
        static const char *const heads[] = { "num_attention_heads", "n_head", NULL };
        rc = multi ? NB_OK : nb_cfg_size(r, heads, NB_CFG_MAX_COUNT, 0, &c->n_kv_heads);
        if (multi)
            c->n_kv_heads = 1;
    }
    return rc;
}

/* Before the sizes: what decides the shape of a layer. */
nb_status nb_cfg_block(const nb_cfg_reader *r, nb_config *c)
{
    const unsigned q = c->arch->quirks;
    bool on = false;
    nb_status rc = NB_OK;

    c->block = c->arch->block;
    c->qkv = c->arch->qkv;
    if (q & (NB_Q_PAR_PAR1 | NB_Q_PAR_PAR2)) {
        rc = nb_cfg_flag(r, "use_parallel_residual", (q & NB_Q_PAR_PAR2) != 0, &on);
        if (on)
            c->block = q & NB_Q_PAR_PAR1 ? NB_BLOCK_PAR1 : NB_BLOCK_PAR2;
    }
    if (q & NB_Q_FALCON)
        rc = get_falcon(r, c);
    return rc;
}

static nb_status get_opt(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const dim[] = { "word_embed_proj_dim", NULL };
    bool before, removed;
    nb_status rc;

    c->pos_offset = 2;
    if ((rc = nb_cfg_flag(r, "do_layer_norm_before", true, &before)) != NB_OK ||
        (rc = nb_cfg_flag(r, "_remove_final_layer_norm", false, &removed)) != NB_OK ||
        (rc = nb_cfg_size(r, dim, NB_CFG_MAX_DIM, c->d_model, &c->embed_dim)) != NB_OK)
        return rc;
    if (c->embed_dim > c->d_model)
        return nb_cfg_bad(r, dim[0], nb_json_get(r->in, dim[0]), "at most hidden_size");
    if (!before)
        c->block = NB_BLOCK_POST_LN;
    c->final_norm = before && !removed;
    return NB_OK;
}

static nb_status get_gpt2(const nb_cfg_reader *r, nb_config *c)
{
    bool scaled;
    nb_status rc = nb_cfg_flag(r, "scale_attn_weights", true, &scaled);

    c->transposed = true;
    if (!scaled)
        c->attn_scale = 1;
    return rc != NB_OK ? rc : nb_cfg_flag(r, "scale_attn_by_inverse_layer_idx", false, &c->scale_by_layer);
}

/* A cap: `dflt` when the key is absent, none when it is null. */
static nb_status get_cap(const nb_cfg_reader *r, const char *key, double dflt, double *out)
{
    const nb_json *v = nb_json_get(r->in, key);

    *out = v ? 0 : dflt;
    return nb_cfg_num(r, r->in, key, 0, 1e30, false, out);
}

static nb_status get_granite(const nb_cfg_reader *r, nb_config *c)
{
    double div = 1;
    nb_status rc;

    c->attn_scale = 1;
    if ((rc = nb_cfg_num(r, r->in, "embedding_multiplier", 0, 1e30, false, &c->embed_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "residual_multiplier", 0, 1e30, false, &c->res_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "attention_multiplier", 0, 1e30, false, &c->attn_scale)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "logits_scaling", 0, 1e30, false, &div)) != NB_OK)
        return rc;
    c->logit_mult = 1 / div;
    return NB_OK;
}

/* Which layers have experts. */
static nb_status get_sparse(const nb_cfg_reader *r, nb_config *c, const nb_moe_row *row)
{
    static const char *const step_key[] = { "decoder_sparse_step", NULL };
    const nb_json *only = nb_json_get(r->in, "mlp_only_layers"),
                  *kinds = row->router == NB_ROUTE_SQRT ? NULL : nb_json_get(r->in, "mlp_layer_types");
    uint8_t *sparse = nb_arena_calloc(c->mem, c->n_layers, 1);
    int64_t first = (int64_t)row->first;
    size_t step = 1;
    nb_status rc = NB_OK;

    if (!sparse)
        return nb_enomem(r->err, "the layer kinds");
    if (row->by_step)
        rc = nb_cfg_size(r, step_key, (int64_t)1 << 31, 1, &step);
    if (row->by_first) {
        static const char *const keys[] = { "first_k_dense_replace", "num_dense_layers", NULL };
        const char *key;
        const nb_json *v = nb_cfg_find(r, keys, &key);
        first = v ? nb_json_int(v, -1) : first;
        if (first < 0)
            return nb_cfg_bad(r, key, v, "a count of layers");
    }
    if (nb_json_len(kinds) > 0 && nb_json_len(kinds) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"mlp_layer_types\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(kinds), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        bool on = row->by_step ? (l + 1) % step == 0 : !row->by_first || (int64_t)l >= first;
        for (size_t i = 0; row->by_step && i < nb_json_len(only); i++)
            on = on && nb_json_int(nb_json_at(only, i), -1) != (int64_t)l;
        if (nb_json_len(kinds) > 0) {
            on = strcmp(nb_json_str(nb_json_at(kinds, l), ""), "sparse") == 0;
            if (!on && strcmp(nb_json_str(nb_json_at(kinds, l), ""), "dense") != 0)
                return nb_cfg_unsupported(r, "mlp_layer_types", nb_json_at(kinds, l), "dense and sparse");
        }
        sparse[l] = on;
        c->moe.any_dense = c->moe.any_dense || !on;
    }
    c->moe.sparse = sparse;
    return rc;
}

static bool no_experts(const nb_cfg_reader *r, const char *const *keys)
{
    const char *key;
    const nb_json *v = nb_cfg_find(r, keys, &key);

    return !v || nb_json_int(v, -1) == 0;
}

/* A count, or a list that says the same for every layer. */
static nb_status count_or_list(const nb_cfg_reader *r, const char *const *keys, int64_t hi, size_t dflt, size_t *out)
{
    const char *key;
    const nb_json *v = nb_cfg_find(r, keys, &key);

    if (nb_json_typeof(v) != NB_JARR)
        return nb_cfg_size(r, keys, hi, dflt, out);
    for (size_t i = 0; i < nb_json_len(v); i++) {
        const int64_t n = nb_json_int(nb_json_at(v, i), -1);
        if (n < 1 || n > hi)
            return nb_cfg_bad(r, key, v, "counts of 1 or more");
        if (i > 0 && (size_t)n != *out)
            return nb_cfg_unsupported(r, key, v, "lists that say the same for every layer");
        *out = (size_t)n;
    }
    return nb_json_len(v) > 0 ? NB_OK : nb_cfg_bad(r, key, v, "a count or a list of counts");
}

static nb_status get_shared(const nb_cfg_reader *r, nb_config *c, const nb_moe_row *row)
{
    static const char *const gated[] = { "shared_expert_intermediate_size", NULL }, *const size[] = { "shared_intermediate_size", NULL };
    static const char *const count[] = { "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert", NULL };
    const char *key = count[0];
    const nb_json *found = nb_cfg_find(r, count, &key), *v = found ? found : nb_json_get(r->in, count[0]);
    int64_t n = (int64_t)row->n_shared;

    switch (row->shared) {
    case NB_SHARED_COUNT:
        if (nb_json_typeof(v) == NB_JARR) {
            size_t same = 0;
            nb_status rc = count_or_list(r, count, 1024, 0, &same);
            if (rc != NB_OK)
                return rc;
            n = (int64_t)same;
        } else if (v && (n = nb_json_is_null(v) ? 0 : nb_json_int(v, -1), n < 0 || n > 1024))
            return nb_cfg_bad(r, key, v, "an integer from 0 to 1024");
        c->moe.shared_ff = (size_t)n * c->moe.ff;
        return c->moe.shared_ff <= NB_CFG_MAX_DIM ? NB_OK : nb_cfg_bad(r, key, v, "fewer");
    case NB_SHARED_GATED:
        return nb_cfg_size(r, gated, NB_CFG_MAX_DIM, row->n_shared ? row->n_shared : 5632, &c->moe.shared_ff);
    case NB_SHARED_FF:
        c->moe.shared_ff = c->moe.ff;
        return NB_OK;
    case NB_SHARED_SIZE:
        if (nb_json_int(nb_json_get(r->in, size[0]), -1) == 0)
            return NB_OK;
        return nb_cfg_size(r, size, NB_CFG_MAX_DIM, 1024, &c->moe.shared_ff);
    default:
        return NB_OK;
    }
}

static nb_status get_groups(const nb_cfg_reader *r, nb_config *c, const nb_moe_row *row)
{
    static const char *const n_group[] = { "n_group", "num_expert_group", NULL }, *const top[] = { "topk_group", NULL };
    const char *method = nb_json_str(nb_json_get(r->in, "topk_method"), "greedy");
    nb_moe_cfg *m = &c->moe;
    nb_status rc;

    m->n_groups = m->top_groups = 1;
    if (row->router != NB_ROUTE_SIGMOID && row->router != NB_ROUTE_GREEDY && row->router != NB_ROUTE_GROUPS)
        return NB_OK;
    if (row->router == NB_ROUTE_GREEDY) {
        if (strcmp(method, "greedy") == 0)
            return NB_OK;
        if (strcmp(method, "group_limited_greedy") != 0)
            return nb_cfg_unsupported(r, "topk_method", nb_json_get(r->in, "topk_method"), "greedy and group_limited_greedy");
    }
    if ((rc = nb_cfg_size(r, n_group, NB_CFG_MAX_COUNT, row->n_groups, &m->n_groups)) != NB_OK ||
        (rc = nb_cfg_size(r, top, NB_CFG_MAX_COUNT, row->top_groups, &m->top_groups)) != NB_OK)
        return rc;
    if (m->n_experts % m->n_groups != 0 || m->top_groups > m->n_groups || m->top_groups * (m->n_experts / m->n_groups) < m->n_active)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "%zu of %zu groups of %zu experts cannot give %zu", m->top_groups, m->n_groups,
                       m->n_experts, m->n_active);
    return NB_OK;
}

static nb_status get_moe(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const experts[] = { "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", NULL };
    static const char *const active[] = { "num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts", NULL };
    static const char *const ff[] = { "moe_intermediate_size", "expert_ffn_hidden_size", NULL };
    const nb_moe_row *row = &c->arch->moe;
    nb_moe_cfg *m = &c->moe;
    nb_status rc;

    if (row->router == NB_ROUTE_NONE || (row->optional && no_experts(r, experts)))
        return NB_OK;
    m->router = row->router;
    m->scale = row->scale > 0 ? row->scale : 1;
    m->ff = c->d_ff;
    m->jitter = 0.01;
    m->limit = row->clamped ? 7 : 0;
    m->alpha = 1.702;
    if ((rc = count_or_list(r, experts, NB_CFG_MAX_COUNT, 0, &m->n_experts)) != NB_OK ||
        (rc = count_or_list(r, active, NB_CFG_MAX_COUNT, row->n_active, &m->n_active)) != NB_OK ||
        (row->own_size && (rc = count_or_list(r, ff, NB_CFG_MAX_DIM, 0, &m->ff)) != NB_OK) ||
        (rc = nb_cfg_flag(r, "norm_topk_prob", row->renorm_on, &m->renorm)) != NB_OK ||
        (rc = nb_cfg_bool(r, "moe_renormalize", nb_json_get(r->in, "moe_renormalize"), &m->renorm)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "routed_scaling_factor", 0, 1e30, false, &m->scale)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "route_scale", 0, 1e30, false, &m->scale)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "router_jitter_noise", 0, 1e30, true, &m->jitter)) != NB_OK ||
        (row->clamped && ((rc = nb_cfg_num(r, r->in, "swiglu_limit", 0, 1e30, false, &m->limit)) != NB_OK ||
                          (rc = nb_cfg_num(r, r->in, "swiglu_alpha", 0, 1e30, false, &m->alpha)) != NB_OK)))
        return rc;
    if (row->renorm != NB_BIAS_CONFIG)
        m->renorm = row->renorm == NB_BIAS_YES;
    if (m->n_active > m->n_experts || (m->router == NB_ROUTE_MIXER && m->n_active != 2))
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"num_experts_per_tok\" is %zu of %zu experts", m->n_active, m->n_experts);
    if ((rc = get_groups(r, c, row)) != NB_OK || (rc = get_shared(r, c, row)) != NB_OK)
        return rc;
    return get_sparse(r, c, row);
}

nb_status nb_cfg_mla(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const q[] = { "q_lora_rank", NULL }, *const kv[] = { "kv_lora_rank", NULL };
    static const char *const nope[] = { "qk_nope_head_dim", NULL }, *const rope[] = { "qk_rope_head_dim", NULL };
    static const char *const value[] = { "v_head_dim", NULL };
    nb_mla_cfg *m = &c->mla;
    const char *key;
    nb_status rc = NB_OK;

    m->on = true;
    m->q_mult = m->kv_mult = 1;
    if (nb_cfg_find(r, q, &key))
        rc = nb_cfg_size(r, q, NB_CFG_MAX_DIM, 0, &m->q_rank);
    if (rc != NB_OK || (rc = nb_cfg_size(r, kv, 1 << 16, 512, &m->kv_rank)) != NB_OK ||
        (rc = nb_cfg_size(r, nope, 1 << 16, 128, &m->nope)) != NB_OK || (rc = nb_cfg_size(r, rope, 1 << 16, 64, &m->rope)) != NB_OK ||
        (rc = nb_cfg_size(r, value, 1 << 16, m->value ? m->value : 128, &m->value)) != NB_OK)
        return rc;
    c->head_dim = m->rope;
    c->n_kv_heads = 1;
    c->kv_dim = m->kv_rank + m->rope;
    if ((uint64_t)c->n_heads * (c->kv_dim + m->nope + m->value) > NB_CFG_MAX_DIM)
        return nb_fail(r->err, NB_EFORMAT, "cfg.overflow", "", "%zu heads of latent attention are above %d components", c->n_heads,
                       NB_CFG_MAX_DIM);
    return NB_OK;
}

/* Text of a model for images: its cross attention layers wait for one. */
static nb_status get_skip(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *list = nb_json_get(r->in, "cross_attention_layers");
    uint8_t *skip = nb_arena_calloc(c->mem, c->n_layers, 1);

    if (!skip)
        return nb_enomem(r->err, "the layer kinds");
    c->skip = skip;
    for (size_t l = 3; !list && l < c->n_layers; l += 5) /* as released */
        skip[l] = 1;
    for (size_t i = 0; i < nb_json_len(list); i++) {
        const int64_t l = nb_json_int(nb_json_at(list, i), -1);
        if (l < 0 || l >= (int64_t)c->n_layers)
            return nb_cfg_bad(r, "cross_attention_layers", nb_json_at(list, i), "numbers of layers");
        skip[l] = 1;
    }
    return NB_OK;
}

/* After the sizes: multipliers, caps, positions. */
nb_status nb_cfg_family(const nb_cfg_reader *r, nb_config *c)
{
    const unsigned q = c->arch->quirks;
    double scalar = 256;
    bool both = false;
    nb_status rc = NB_OK;

    c->embed_mult = q & NB_Q_EMBED_SQRT ? sqrt((double)c->d_model) : 1;
    c->res_mult = 1;
    c->logit_mult = q & NB_Q_LOGIT_SCALE ? 0.0625 : 1;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    if (c->mla.on)
        c->attn_scale = 1 / sqrt((double)(c->mla.nope + c->mla.rope));
    c->value_mult = c->final_mult = c->attn_in = c->attn_out = c->gate_mult = c->down_mult = c->mix.in_mult = c->mix.out_mult = 1;
    for (size_t i = 0; i < 3; i++)
        c->alpha[i] = c->beta[i] = 1;
    c->gated_q = (q & NB_Q_GATED_Q) != 0;
    c->embed_dim = c->d_model;
    c->final_norm = true;
    c->learned_pos = c->names->positions != NULL;
    if ((q & NB_Q_LOGIT_SCALE && (rc = nb_cfg_num(r, r->in, "logit_scale", 0, 1e30, false, &c->logit_mult)) != NB_OK) ||
        (q & NB_Q_CLIP_QKV && (rc = nb_cfg_num(r, r->in, "clip_qkv", 0, 1e30, false, &c->clip_qkv)) != NB_OK) ||
        (q & NB_Q_GRANITE && (rc = get_granite(r, c)) != NB_OK) || (q & NB_Q_GPT2 && (rc = get_gpt2(r, c)) != NB_OK) ||
        (q & NB_Q_OPT && (rc = get_opt(r, c)) != NB_OK) ||
        (q & NB_Q_SCORE_CAP && (rc = get_cap(r, "attn_logit_softcapping", 50, &c->score_cap)) != NB_OK) ||
        (q & (NB_Q_SCORE_CAP | NB_Q_LOGIT_CAP) &&
         (rc = get_cap(r, "final_logit_softcapping", q & NB_Q_SCORE_CAP ? 30 : 0, &c->logit_cap)) != NB_OK))
        return rc;
    if (q & NB_Q_INTERLEAVE && (rc = nb_cfg_flag(r, "rope_interleave", true, &c->rope_pairs)) != NB_OK)
        return rc;
    if (q & NB_Q_SKIP_CROSS && (rc = get_skip(r, c)) != NB_OK)
        return rc;
    if ((rc = get_moe(r, c)) != NB_OK)
        return rc;
    if (q & NB_Q_QUERY_SCALAR) {
        rc = nb_cfg_num(r, r->in, "query_pre_attn_scalar", 0, 1e30, false, &scalar);
        c->attn_scale = 1 / sqrt(scalar);
        if (rc == NB_OK)
            rc = nb_cfg_flag(r, "use_bidirectional_attention", false, &both);
        if (rc == NB_OK && both)
            rc = nb_cfg_unsupported(r, "use_bidirectional_attention", nb_json_get(r->in, "use_bidirectional_attention"),
                                    "causal models only");
    }
    return rc == NB_OK && c->arch->more ? c->arch->more(r, c) : rc;
}
