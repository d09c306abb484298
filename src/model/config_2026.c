/* Keys of single families of spec models-2026 S2.1: multipliers, positions, layer kinds. */
#include "model/arch_priv.h"
#include "model/config_read.h"

/* The record of the rotation, under either name. */
static const nb_json *rope_record(const nb_cfg_reader *r)
{
    const nb_json *R = nb_json_get(r->in, "rope_scaling");

    return nb_json_len(R) > 0 ? R : nb_json_get(r->in, "rope_parameters");
}

/* Queries that grow with the position: S4.1. */
nb_status nb_cfg_ministral3(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *R = rope_record(r);

    c->grow = nb_json_len(R) > 0 ? 0 : 0.1;
    c->grow_step = nb_json_len(R) > 0 ? (double)c->context : c->arch->rope_orig;
    nb_status rc = nb_cfg_num(r, R, "llama_4_scaling_beta", 0, 1e30, true, &c->grow);
    return rc != NB_OK ? rc : nb_cfg_num(r, R, "original_max_position_embeddings", 0, 1e15, false, &c->grow_step);
}

/* The rotated part of a head as a number of components. */
static nb_status rotary_dim(const nb_cfg_reader *r, nb_config *c, size_t dflt)
{
    static const char *const key[] = { "rotary_dim", NULL };
    const nb_json *v = nb_json_get(r->in, key[0]);
    nb_status rc = nb_cfg_size(r, key, NB_CFG_MAX_DIM, v || !dflt ? c->head_dim : dflt, &c->rope_dim);

    if (rc == NB_OK && (c->rope_dim > c->head_dim || c->rope_dim % 2))
        rc = nb_cfg_bad(r, key[0], v, "an even number up to head_dim");
    return rc;
}

nb_status nb_cfg_rotary_dim(const nb_cfg_reader *r, nb_config *c)
{
    return rotary_dim(r, c, 0);
}

nb_status nb_cfg_gptj(const nb_cfg_reader *r, nb_config *c)
{
    return rotary_dim(r, c, 64);
}

/* Marks layers by a rule; any_dense follows. */
static nb_status mark_sparse(const nb_cfg_reader *r, nb_config *c, bool (*rule)(size_t l, const size_t *arg), const size_t *arg)
{
    uint8_t *sparse = nb_arena_calloc(c->mem, c->n_layers, 1);

    if (!sparse)
        return nb_enomem(r->err, "the layer kinds");
    c->moe.any_dense = false;
    for (size_t l = 0; l < c->n_layers; l++) {
        sparse[l] = rule(l, arg);
        c->moe.any_dense = c->moe.any_dense || !sparse[l];
    }
    c->moe.sparse = sparse;
    return NB_OK;
}

static bool ernie_rule(size_t l, const size_t *a)
{
    return (l + 1) % a[0] == 0 && l >= a[1] && l <= a[2];
}

nb_status nb_cfg_ernie_moe(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const interval[] = { "moe_layer_interval", NULL };
    const nb_json *first = nb_json_get(r->in, "moe_layer_start_index"), *last = nb_json_get(r->in, "moe_layer_end_index");
    const int64_t from = nb_json_is_null(first) ? 1 : nb_json_int(first, -2), to = nb_json_is_null(last) ? -1 : nb_json_int(last, -2);
    size_t arg[3];
    nb_status rc;

    if (nb_json_len(nb_json_get(r->in, "mlp_layer_types")) > 0)
        return NB_OK;
    if (from < 0)
        return nb_cfg_bad(r, "moe_layer_start_index", first, "a layer");
    if (to < -1)
        return nb_cfg_bad(r, "moe_layer_end_index", last, "a layer or -1");
    arg[1] = (size_t)from;
    arg[2] = to < 0 ? c->n_layers - 1 : (size_t)to;
    rc = nb_cfg_size(r, interval, (int64_t)1 << 31, 1, &arg[0]);
    return rc != NB_OK ? rc : mark_sparse(r, c, ernie_rule, arg);
}

nb_status nb_cfg_afmoe(const nb_cfg_reader *r, nb_config *c)
{
    bool mup;
    nb_status rc = nb_cfg_flag(r, "mup_enabled", false, &mup);

    c->out_gate = true;
    if (mup)
        c->embed_mult = sqrt((double)c->d_model);
    return rc;
}

/* ---- llama4 --------------------------------------------------------------------------------------------------- */

nb_status nb_cfg_llama4_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const key[] = { "intermediate_size_mlp", NULL };

    return nb_cfg_size(r, key, NB_CFG_MAX_DIM, 16384, &c->d_ff);
}

static bool in_steps(size_t l, const size_t *step)
{
    return (l + 1) % *step == 0;
}

static nb_status llama4_experts(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const step_key[] = { "interleave_moe_layer_step", NULL }, *const ff[] = { "intermediate_size", NULL };
    const nb_json *list = nb_json_get(r->in, "moe_layers");
    size_t step;
    nb_status rc = nb_cfg_size(r, step_key, NB_CFG_MAX_COUNT, 1, &step);

    if (rc != NB_OK || (rc = nb_cfg_size(r, ff, NB_CFG_MAX_DIM, 8192, &c->moe.ff)) != NB_OK)
        return rc;
    c->moe.shared_ff = c->moe.ff;
    if (nb_json_typeof(list) != NB_JARR)
        return mark_sparse(r, c, in_steps, &step);
    uint8_t *sparse = nb_arena_calloc(c->mem, c->n_layers, 1);
    if (!sparse)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t i = 0; i < nb_json_len(list); i++) {
        const int64_t l = nb_json_int(nb_json_at(list, i), -1);
        if (l < 0 || l >= (int64_t)c->n_layers)
            return nb_cfg_bad(r, "moe_layers", nb_json_at(list, i), "numbers of layers");
        sparse[l] = 1;
    }
    c->moe.any_dense = memchr(sparse, 0, c->n_layers) != NULL;
    c->moe.sparse = memchr(sparse, 1, c->n_layers) ? sparse : NULL;
    return NB_OK;
}

nb_status nb_cfg_llama4(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const chunk[] = { "attention_chunk_size", NULL };
    bool norm, grow;
    nb_status rc;

    c->grow_step = 8192;
    c->grow_shift = 1;
    c->grow_off = true;
    c->grow = 0.1;
    if ((rc = nb_cfg_flag(r, "use_qk_norm", true, &norm)) != NB_OK ||
        (rc = nb_cfg_flag(r, "attn_temperature_tuning", true, &grow)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "attn_scale", 0, 1e30, true, &c->grow)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "floor_scale", 0, 1e15, false, &c->grow_step)) != NB_OK || (rc = llama4_experts(r, c)) != NB_OK)
        return rc;
    c->qk = norm ? NB_QK_AFTER_0 : NB_QK_NONE;
    if (!grow)
        c->grow = 0;
    if (nb_json_get(r->in, chunk[0]) && nb_json_is_null(nb_json_get(r->in, chunk[0])))
        return NB_OK;
    return nb_cfg_size(r, chunk, (int64_t)1 << 53, 8192, &c->chunk);
}

/* ---- older ones ----------------------------------------------------------------------------------------------- */

nb_status nb_cfg_bigcode_sizes(const nb_cfg_reader *r, nb_config *c)
{
    bool multi;
    nb_status rc = nb_cfg_flag(r, "multi_query", true, &multi);

    if (multi)
        c->n_kv_heads = 1;
    else
        c->qkv = NB_QKV_BY_HEAD;
    return rc;
}

nb_status nb_cfg_bigcode(const nb_cfg_reader *r, nb_config *c)
{
    bool scaled;
    nb_status rc = nb_cfg_flag(r, "scale_attn_weights", true, &scaled);

    if (!scaled)
        c->attn_scale = 1;
    return rc;
}

nb_status nb_cfg_alibi(const nb_cfg_reader *r, nb_config *c)
{
    (void)r;
    c->alibi = c->alibi_exact = true;
    return NB_OK;
}

nb_status nb_cfg_bloom(const nb_cfg_reader *r, nb_config *c)
{
    bool after;
    nb_status rc = nb_cfg_flag(r, "apply_residual_connection_post_layernorm", false, &after);

    c->embed_norm = true;
    if (after)
        c->block = NB_BLOCK_NORM_RES;
    return rc;
}

nb_status nb_cfg_mpt(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *a = nb_json_get(r->in, "attn_config"), *alibi = nb_json_get(a, "alibi");
    nb_status rc = nb_cfg_num(r, a, "clip_qkv", 0, 1e30, false, &c->clip_qkv);

    if (rc == NB_OK)
        rc = nb_cfg_num(r, a, "softmax_scale", 0, 1e30, false, &c->attn_scale);
    if (rc == NB_OK && alibi && !nb_json_bool(alibi, false))
        rc = nb_cfg_unsupported(r, "attn_config.alibi", alibi, "true");
    return rc;
}

/* ---- multipliers ---------------------------------------------------------------------------------------------- */

nb_status nb_cfg_minicpm3_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const heads[] = { "num_attention_heads", NULL };
    size_t n;
    nb_status rc = nb_cfg_size(r, heads, NB_CFG_MAX_COUNT, 0, &n);

    if (rc == NB_OK)
        c->mla.value = c->d_model / n > 0 ? c->d_model / n : 1;
    return rc;
}

nb_status nb_cfg_minicpm3(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *depth = nb_json_get(r->in, "scale_depth"), *base = nb_json_get(r->in, "dim_model_base");
    double scale = 1.4, dim = 256;
    nb_status rc;

    c->embed_mult = 12;
    if ((rc = nb_cfg_num(r, r->in, "scale_emb", 0, 1e30, false, &c->embed_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "scale_depth", 0, 1e30, false, &scale)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "dim_model_base", 0, 1e30, false, &dim)) != NB_OK)
        return rc;
    if (!depth || !nb_json_is_null(depth))
        c->res_mult = scale / sqrt((double)c->n_layers);
    if (!base || !nb_json_is_null(base))
        c->final_mult = dim / (double)c->d_model;
    return NB_OK;
}

/* Its MLP has biases unless the file says no. */
nb_status nb_cfg_jais2(const nb_cfg_reader *r, nb_config *c)
{
    return nb_cfg_flag(r, "mlp_bias", true, &c->mlp_bias);
}

nb_status nb_cfg_nanochat(const nb_cfg_reader *r, nb_config *c)
{
    c->embed_norm = true;
    if (!nb_json_get(r->in, "final_logit_softcapping"))
        c->logit_cap = 15;
    return NB_OK;
}

/* ---- layers of two sizes -------------------------------------------------------------------------------------- */

nb_status nb_cfg_mimo_window(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const key[] = { "sliding_window_size", NULL };
    const char *found;
    nb_status rc = NB_OK;

    if (nb_cfg_find(r, key, &found)) {
        rc = nb_cfg_size(r, key, (int64_t)1 << 52, 0, &c->window_given);
        c->window_given++;
    }
    return rc;
}

/* Sliding layers have twice the kv heads and a sink for each head; values are narrower than keys, and scaled. */
nb_status nb_cfg_mimo(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const value[] = { "v_head_dim", NULL };
    const nb_json *by = nb_json_get(r->in, "attention_value_scale");
    nb_dims *dims = nb_arena_calloc(c->mem, c->n_layers, sizeof *dims);
    size_t v;
    nb_status rc = nb_cfg_size(r, value, NB_CFG_MAX_DIM, 128, &v);

    c->value_mult = by ? 1 : 0.707;
    if (!dims)
        return nb_enomem(r->err, "the layer kinds");
    if (rc != NB_OK || (rc = nb_cfg_num(r, r->in, "attention_value_scale", 0, 1e30, false, &c->value_mult)) != NB_OK)
        return rc;
    if (v > c->head_dim || c->n_heads % (2 * c->n_kv_heads) != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                       "\"v_head_dim\" %zu with head_dim %zu and %zu kv heads of %zu, expected no more than head_dim and half of a divisor",
                       v, c->head_dim, c->n_kv_heads, c->n_heads);
    for (size_t l = 0; l < c->n_layers; l++)
        dims[l] = (nb_dims){ c->n_kv_heads << (c->windowed && c->windowed[l]), c->head_dim, v, c->head_dim, c->d_ff, l };
    c->dims = dims;
    c->sinks_local = true;
    return NB_OK;
}

/* ---- latent attention over chosen keys: S4.3 ------------------------------------------------------------------- */

static nb_status get_index(const nb_cfg_reader *r, nb_config *c, size_t heads)
{
    static const char *const n[] = { "index_n_heads", NULL }, *const dim[] = { "index_head_dim", NULL },
                             *const top[] = { "index_topk", NULL };
    nb_status rc;

    if ((rc = nb_cfg_size(r, n, NB_CFG_MAX_COUNT, heads, &c->index_heads)) != NB_OK ||
        (rc = nb_cfg_size(r, dim, NB_CFG_MAX_COUNT, 128, &c->index_dim)) != NB_OK ||
        (rc = nb_cfg_size(r, top, 1 << 20, 2048, &c->index_top)) != NB_OK)
        return rc;
    if (c->index_dim < c->mla.rope)
        return nb_cfg_bad(r, dim[0], nb_json_get(r->in, dim[0]), "at least qk_rope_head_dim");
    return c->mla.q_rank ? NB_OK : nb_cfg_bad(r, "q_lora_rank", nb_json_get(r->in, "q_lora_rank"), "the latent that the indexer reads");
}

/* The latent of q has a size of the class; null would mean that there is none. */
nb_status nb_cfg_index_sizes(const nb_cfg_reader *r, nb_config *c)
{
    if (!nb_json_get(r->in, "q_lora_rank"))
        c->mla.q_rank = 1536;
    return NB_OK;
}

nb_status nb_cfg_deepseek_v32(const nb_cfg_reader *r, nb_config *c)
{
    return get_index(r, c, 64);
}

/* Layers that choose, and layers that take the choice of the one before. */
static nb_status index_kinds(const nb_cfg_reader *r, nb_config *c, uint8_t *kinds)
{
    static const char *const keys[] = { "indexer_types", "index_topk_pattern", NULL }, *const freq[] = { "index_topk_freq", NULL };
    const nb_json *skip = nb_json_get(r->in, "index_skip_topk_offset");
    const int64_t offset = nb_json_is_null(skip) ? 2 : nb_json_int(skip, -1);
    const char *key, *letters;
    const nb_json *list = nb_cfg_find(r, keys, &key);
    size_t every;
    nb_status rc = nb_cfg_size(r, freq, NB_CFG_MAX_COUNT, 1, &every);

    if (rc != NB_OK)
        return rc;
    if (offset < 0)
        return nb_cfg_bad(r, "index_skip_topk_offset", skip, "a number of layers");
    letters = nb_json_str(list, NULL);
    if (list && (letters ? strlen(letters) : nb_json_len(list)) != c->n_layers)
        return nb_cfg_bad(r, key, list, "an entry for each layer");
    for (size_t l = 0; l < c->n_layers; l++) {
        const char *word = letters ? letters + l : nb_json_str(nb_json_at(list, l), "");
        const int64_t past = (int64_t)l - offset + 1;
        bool full = (past > 0 ? (size_t)past : 0) % every == 0;
        if (list) {
            full = *word == 'F' || *word == 'f';
            if (!full && *word != 'S' && *word != 's')
                return nb_cfg_unsupported(r, key, letters ? list : nb_json_at(list, l), "full and shared");
        }
        if (l == 0 && !full)
            return nb_cfg_bad(r, list ? key : "index_skip_topk_offset", list ? list : skip, "a first layer that chooses keys");
        kinds[l] = (uint8_t)(full ? NB_MIX_ATTN : NB_MIX_SHARED);
    }
    return NB_OK;
}

nb_status nb_cfg_glm_moe_dsa(const nb_cfg_reader *r, nb_config *c)
{
    uint8_t *kinds = nb_arena_calloc(c->mem, c->n_layers, 1);
    nb_status rc = kinds ? get_index(r, c, 32) : nb_enomem(r->err, "the layer kinds");

    if (rc == NB_OK)
        rc = nb_cfg_flag(r, "indexer_rope_interleave", true, &c->index_pairs);
    if (rc == NB_OK)
        rc = index_kinds(r, c, kinds);
    c->mixer = kinds;
    return rc;
}

/* ---- layers of two halves -------------------------------------------------------------------------------------- */

nb_status nb_cfg_longcat_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const layers[] = { "num_layers", "num_hidden_layers", NULL };
    nb_status rc = nb_cfg_size(r, layers, NB_CFG_MAX_COUNT / 2, 0, &c->n_layers);

    if (rc == NB_OK)
        rc = nb_cfg_index_sizes(r, c);
    c->halves = 2;
    c->n_layers *= 2;
    return rc;
}

static bool first_half(size_t l, const size_t *arg)
{
    (void)arg;
    return l % 2 == 0;
}

nb_status nb_cfg_longcat(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *zero = nb_json_get(r->in, "zero_expert_num");
    const int64_t n = nb_json_is_null(zero) ? 0 : nb_json_int(zero, -1);

    if (n < 0 || n > NB_CFG_MAX_COUNT)
        return nb_cfg_bad(r, "zero_expert_num", zero, "a number of experts");
    if (!c->mla.q_rank)
        return nb_cfg_bad(r, "q_lora_rank", nb_json_get(r->in, "q_lora_rank"), "a count of 1 or more");
    c->moe.n_identity = (size_t)n;
    c->mla.q_mult = sqrt((double)c->d_model / (double)c->mla.q_rank);
    c->mla.kv_mult = sqrt((double)c->d_model / (double)c->mla.kv_rank);
    return mark_sparse(r, c, first_half, NULL);
}
