/* Keys of DeepSeek-V4. Source: spec models-2026 S3.2, S4.10. */
#include "model/arch_priv.h"
#include "model/config_read.h"

/* How many tokens make up an entry: under a key of its own, or by the name of the layer kind. */
static nb_status get_rate(const nb_cfg_reader *r, const char *own, const char *kind, size_t dflt, size_t *out)
{
    const char *const keys[] = { own, NULL }, *const inner[] = { kind, NULL };
    const nb_json *rates = nb_json_get(r->in, "compress_rates");
    const nb_cfg_reader in = { rates, rates, r->err };
    nb_status rc = NB_OK;

    *out = dflt;
    if (nb_json_typeof(rates) == NB_JOBJ)
        rc = nb_cfg_size(&in, inner, 1 << 16, dflt, out);
    return rc != NB_OK ? rc : nb_cfg_size(r, keys, 1 << 16, *out, out);
}

/* Layer kinds by their names, by their rates, or as released. */
static nb_status get_kinds(const nb_cfg_reader *r, nb_config *c)
{
    static const struct {
        const char *name;
        int64_t rate;
        nb_mixer kind;
    } kinds[] = { { "sliding_attention", 0, NB_MIX_ATTN },
                  { "compressed_sparse_attention", 4, NB_MIX_CSA },
                  { "heavily_compressed_attention", 128, NB_MIX_HCA } };
    const nb_json *types = nb_json_get(r->in, "layer_types"), *rates = nb_json_get(r->in, "compress_ratios");
    const bool named = !nb_json_is_null(types);
    const nb_json *list = named ? types : rates;
    const char *key = named ? "layer_types" : "compress_ratios";
    uint8_t *out = nb_arena_calloc(c->mem, c->n_layers, 1);

    if (!out)
        return nb_enomem(r->err, "the layer kinds");
    c->mixer = out;
    /* ratios may go on for the layers behind the last, which predict more tokens */
    if (!nb_json_is_null(list) && (nb_json_typeof(list) != NB_JARR || nb_json_len(list) < c->n_layers))
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected one for each of %zu layers", key,
                       nb_json_len(list), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_json *v = nb_json_at(list, l);
        size_t i = l > 1 && l % 2 ? 1 : 2;
        if (!nb_json_is_null(list))
            for (i = 0; i < NB_LEN(kinds); i++)
                if (named ? strcmp(nb_json_str(v, ""), kinds[i].name) == 0 : nb_json_int(v, -1) == kinds[i].rate)
                    break;
        if (i == NB_LEN(kinds))
            return nb_cfg_unsupported(r, key, v,
                                      named ? "sliding_attention, compressed_sparse_attention and heavily_compressed_attention"
                                            : "the ratios 0, 4 and 128");
        out[l] = (uint8_t)kinds[i].kind;
    }
    return NB_OK;
}

/* Layers whose experts follow from the token. */
static nb_status get_hashed(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *kinds = nb_json_get(r->in, "mlp_layer_types"), *n = nb_json_get(r->in, "num_hash_layers");
    const int64_t first = nb_json_is_null(n) ? 3 : nb_json_int(n, -1);
    uint8_t *hashed = nb_arena_calloc(c->mem, c->n_layers, 1), *sparse = nb_arena_calloc(c->mem, c->n_layers, 1);

    if (!hashed || !sparse)
        return nb_enomem(r->err, "the layer kinds");
    if (first < 0)
        return nb_cfg_bad(r, "num_hash_layers", n, "a count of layers");
    if (!nb_json_is_null(kinds) && nb_json_len(kinds) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"mlp_layer_types\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(kinds), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        const char *word = nb_json_str(nb_json_at(kinds, l), "");
        sparse[l] = 1;
        hashed[l] = nb_json_is_null(kinds) ? (int64_t)l < first : strcmp(word, "hash_moe") == 0;
        if (!nb_json_is_null(kinds) && !hashed[l] && strcmp(word, "moe") != 0)
            return nb_cfg_unsupported(r, "mlp_layer_types", nb_json_at(kinds, l), "hash_moe and moe");
    }
    c->v4.hashed = hashed;
    c->moe.sparse = sparse;
    c->moe.any_dense = false;
    return NB_OK;
}

nb_status nb_cfg_v4(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const streams[] = { "hc_mult", NULL }, *const rounds[] = { "hc_sinkhorn_iters", NULL };
    static const char *const groups[] = { "o_groups", NULL }, *const rank[] = { "o_lora_rank", NULL }, *const q[] = { "q_lora_rank", NULL };
    static const char *const rope[] = { "qk_rope_head_dim", NULL }, *const heads[] = { "index_n_heads", NULL };
    static const char *const dim[] = { "index_head_dim", NULL }, *const top[] = { "index_topk", NULL };
    const nb_json *func = nb_json_get(r->in, "scoring_func");
    nb_v4_cfg *v = &c->v4;
    nb_status rc;

    v->on = true;
    v->eps = 1e-6;
    c->moe.clip = 10;
    if ((rc = nb_cfg_size(r, streams, 8, 4, &v->streams)) != NB_OK || (rc = nb_cfg_size(r, rounds, 1000, 20, &v->sinkhorn)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "hc_eps", 0, 1, false, &v->eps)) != NB_OK ||
        (rc = nb_cfg_size(r, groups, NB_CFG_MAX_COUNT, 8, &v->groups)) != NB_OK ||
        (rc = nb_cfg_size(r, rank, 1 << 16, 1024, &v->rank)) != NB_OK ||
        (rc = nb_cfg_size(r, q, NB_CFG_MAX_DIM, 1024, &c->mla.q_rank)) != NB_OK ||
        (rc = nb_cfg_size(r, rope, 1 << 16, 64, &c->rope_dim)) != NB_OK ||
        (rc = nb_cfg_size(r, heads, NB_CFG_MAX_COUNT, 64, &c->index_heads)) != NB_OK ||
        (rc = nb_cfg_size(r, dim, 1 << 16, 128, &c->index_dim)) != NB_OK ||
        (rc = nb_cfg_size(r, top, 1 << 24, 512, &c->index_top)) != NB_OK ||
        (rc = get_rate(r, "compress_rate_csa", "compressed_sparse_attention", 4, &v->rate[0])) != NB_OK ||
        (rc = get_rate(r, "compress_rate_hca", "heavily_compressed_attention", 128, &v->rate[1])) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "swiglu_limit", 0, 1e30, false, &c->moe.clip)) != NB_OK || (rc = get_kinds(r, c)) != NB_OK ||
        (rc = get_hashed(r, c)) != NB_OK)
        return rc;
    if (!nb_json_is_null(func) && strcmp(nb_json_str(func, ""), "sqrtsoftplus") != 0)
        return nb_cfg_unsupported(r, "scoring_func", func, "sqrtsoftplus");
    if (c->n_kv_heads != 1)
        return nb_cfg_bad(r, "num_key_value_heads", nb_json_get(r->in, "num_key_value_heads"), "1");
    if (c->n_heads % v->groups != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"o_groups\" is %zu, expected a divisor of num_attention_heads %zu", v->groups,
                       c->n_heads);
    if (c->rope_dim % 2 != 0 || c->rope_dim > c->head_dim || c->rope_dim > c->index_dim)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                       "\"qk_rope_head_dim\" is %zu, expected an even number up to head_dim %zu and index_head_dim %zu", c->rope_dim,
                       c->head_dim, c->index_dim);
    if ((uint64_t)v->groups * v->rank > NB_CFG_MAX_DIM || (uint64_t)v->streams * c->d_model > NB_CFG_MAX_DIM ||
        (uint64_t)c->index_heads * c->index_dim > NB_CFG_MAX_DIM ||
        (uint64_t)(v->rate[0] + v->rate[1]) * (c->head_dim + c->index_dim) > 1 << 28)
        return nb_fail(r->err, NB_EFORMAT, "cfg.overflow", "",
                       "%zu groups of rank %zu, %zu streams, %zu indexing heads of %zu, entries of %zu and %zu tokens are too many",
                       v->groups, v->rank, v->streams, c->index_heads, c->index_dim, v->rate[0], v->rate[1]);
    return NB_OK;
}

/* Two rotations: of layers with a window only, and of those with entries. */
nb_status nb_cfg_v4_layers(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *given = nb_json_get(r->in, "rope_parameters");
    uint8_t *of = nb_arena_calloc(c->mem, c->n_layers, 1);
    nb_status rc = NB_OK;

    if (!of)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t l = 0; l < c->n_layers; l++)
        of[l] = c->mixer[l] == NB_MIX_ATTN ? NB_ROPE_LOCAL : NB_ROPE_MAIN;
    c->rope_of = of;
    if (!nb_json_get(given, "compress")) { /* the record of the file is that of entries */
        c->rope_local.theta = c->rope.theta;
        c->rope.theta = 160000;
        rc = nb_cfg_num(r, r->in, "compress_rope_theta", 0, 1e30, false, &c->rope.theta);
    }
    if (rc == NB_OK && c->rope.kind != NB_ROPE_DEFAULT && c->rope.kind != NB_ROPE_YARN && c->rope.kind != NB_ROPE_LINEAR)
        rc = nb_cfg_unsupported(r, "rope_scaling", nb_json_get(r->in, "rope_scaling"), "default, linear and yarn");
    if (!c->rope.has_attention_factor) {
        c->rope.has_attention_factor = true;
        c->rope.attention_factor = 1;
    }
    return rc;
}
