/* Keys of the families with recurrent or convolution layers: layer kinds, sizes of mixers. Source: spec models-2026 S2.2, S3.1. */
#include "model/arch_priv.h"
#include "model/config_read.h"

/* ---- layer kinds ---------------------------------------------------------------------------------------------- */

typedef bool attention_rule(const nb_cfg_reader *r, size_t l, const size_t *arg);

/* From layer_types or layers_block_type, else by a rule: attention or the other mixer. */
static nb_status get_kinds(const nb_cfg_reader *r, nb_config *c, nb_mixer other, attention_rule *rule, const size_t *arg)
{
    static const char *const keys[] = { "layer_types", "layers_block_type", NULL };
    const bool conv = other == NB_MIX_CONV;
    uint8_t *kinds = nb_arena_calloc(c->mem, c->n_layers, 1);
    const char *key;
    const nb_json *list = nb_cfg_find(r, keys, &key);

    if (!kinds)
        return nb_enomem(r->err, "the layer kinds");
    if (list && (nb_json_typeof(list) != NB_JARR || nb_json_len(list) != c->n_layers))
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected one for each of %zu layers", key,
                       nb_json_len(list), c->n_layers);
    if (!list && !rule)
        return nb_cfg_bad(r, keys[0], NULL, "the kind of every layer");
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_json *t = nb_json_at(list, l);
        const char *s = nb_json_str(t, "");
        if (!list)
            kinds[l] = (uint8_t)(rule(r, l, arg) ? NB_MIX_ATTN : other);
        else if (strcmp(s, conv ? "conv" : "linear_attention") == 0 || (!conv && strcmp(s, "mamba") == 0))
            kinds[l] = (uint8_t)other;
        else if (strcmp(s, "full_attention") != 0 && strcmp(s, "attention") != 0)
            return nb_cfg_unsupported(r, key, t, conv ? "full_attention and conv" : "full_attention and linear_attention");
    }
    c->mixer = kinds;
    return NB_OK;
}

static bool last_of(const nb_cfg_reader *r, size_t l, const size_t *n)
{
    (void)r;
    return (l + 1) % *n == 0;
}

static bool none(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    (void)r;
    (void)l;
    (void)arg;
    return false;
}

static bool in_list(const nb_json *list, size_t n)
{
    for (size_t i = 0; i < nb_json_len(list); i++)
        if (nb_json_int(nb_json_at(list, i), -1) == (int64_t)n)
            return true;
    return false;
}

static nb_status no_rope(const nb_cfg_reader *r, nb_config *c)
{
    uint8_t *of = nb_arena_calloc(c->mem, c->n_layers, 1);

    if (!of)
        return nb_enomem(r->err, "the layer kinds");
    memset(of, NB_ROPE_OFF, c->n_layers);
    c->rope_of = of;
    return NB_OK;
}

/* An MLP that no layer has. */
nb_status nb_cfg_no_mlp(const nb_cfg_reader *r, nb_config *c)
{
    (void)r;
    c->d_ff = 1;
    return NB_OK;
}

/* ---- sizes of mixers ------------------------------------------------------------------------------------------ */

typedef struct size_key {
    const char *key[4]; /* ended by NULL */
    size_t dflt;
    size_t *out;
} size_key;

static nb_status get_keys(const nb_cfg_reader *r, const nb_json *in, const size_key *keys, size_t n)
{
    const nb_cfg_reader at = { in ? in : r->in, r->outer, r->err };
    nb_status rc = NB_OK;

    for (size_t i = 0; i < n && rc == NB_OK; i++)
        rc = nb_cfg_size(&at, keys[i].key, 1 << 16, keys[i].dflt, keys[i].out);
    return rc;
}

/* Products that slots and states are made of; taps 2 or more, heads that share keys evenly. */
static nb_status check_mix(const nb_cfg_reader *r, const nb_config *c, const char *heads, const char *shared)
{
    const nb_mix_cfg *m = &c->mix;

    if (m->taps < 2)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "a convolution of %zu taps, expected 2 or more", m->taps);
    if (m->heads % m->key_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" is %zu, expected a multiple of %s %zu", heads, m->heads, shared,
                       m->key_heads);
    if (m->heads * m->value_dim > NB_CFG_MAX_DIM || m->key_heads * m->key_dim > NB_CFG_MAX_DIM || m->taps > 64 ||
        m->heads * m->value_dim * m->key_dim > (size_t)1 << 30)
        return nb_fail(r->err, NB_EFORMAT, "cfg.overflow", "", "%zu heads of %zu values, %zu of %zu keys, %zu taps are too many", m->heads,
                       m->value_dim, m->key_heads, m->key_dim, m->taps);
    return NB_OK;
}

static nb_status get_delta(const nb_cfg_reader *r, nb_config *c, const size_t dflt[5])
{
    nb_mix_cfg *m = &c->mix;
    const size_key keys[] = { { { "linear_num_key_heads" }, dflt[0], &m->key_heads },
                              { { "linear_num_value_heads" }, dflt[1], &m->heads },
                              { { "linear_key_head_dim" }, dflt[2], &m->key_dim },
                              { { "linear_value_head_dim" }, dflt[3], &m->value_dim },
                              { { "linear_conv_kernel_dim" }, dflt[4], &m->taps } };
    nb_status rc = get_keys(r, NULL, keys, NB_LEN(keys));

    m->rate = 1;
    m->norm_eps = c->norm_eps;
    return rc != NB_OK ? rc : check_mix(r, c, "linear_num_value_heads", "linear_num_key_heads");
}

static nb_status get_qwen(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const every[] = { "full_attention_interval", NULL };
    static const size_t dflt[5] = { 16, 32, 128, 128, 4 };
    size_t n;
    nb_status rc = nb_cfg_size(r, every, NB_CFG_MAX_COUNT, 4, &n);

    if (rc == NB_OK)
        rc = get_kinds(r, c, NB_MIX_DELTA, last_of, &n);
    return rc != NB_OK ? rc : get_delta(r, c, dflt);
}

nb_status nb_cfg_qwen3_next(const nb_cfg_reader *r, nb_config *c)
{
    c->mix.grouped = true;
    return get_qwen(r, c);
}

nb_status nb_cfg_qwen3_5(const nb_cfg_reader *r, nb_config *c)
{
    return get_qwen(r, c);
}

nb_status nb_cfg_olmo_hybrid(const nb_cfg_reader *r, nb_config *c)
{
    const size_t n = 4, dk = c->d_model * 3 / (4 * c->n_heads), dflt[5] = { c->n_heads, c->n_heads, dk ? dk : 1, dk ? 2 * dk : 2, 4 };
    const nb_json *R = nb_json_get(r->in, "rope_parameters"), *theta = nb_json_get(R, "rope_theta");
    bool negative;
    nb_status rc = get_kinds(r, c, NB_MIX_DELTA, last_of, &n);

    if (rc != NB_OK || (rc = get_delta(r, c, dflt)) != NB_OK || (rc = nb_cfg_flag(r, "linear_allow_neg_eigval", true, &negative)) != NB_OK)
        return rc;
    c->mix.rate = negative ? 2 : 1;
    c->mix.norm_eps = 1e-5;
    return theta && nb_json_is_null(theta) ? no_rope(r, c) : NB_OK;
}

/* Layers of the two lists count from 1. */
static bool kimi_full(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    const nb_json *list = nb_json_get(nb_json_get(r->in, "linear_attn_config"), "full_attn_layers");

    (void)arg;
    return list ? in_list(list, l + 1) : l > 0 && l % 4 == 0;
}

nb_status nb_cfg_kimi(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *own = nb_json_get(r->in, "linear_attn_config");
    nb_mix_cfg *m = &c->mix;
    const size_key keys[] = { { { "num_heads", "linear_num_heads" }, 32, &m->heads },
                              { { "head_dim", "linear_head_dim" }, 128, &m->key_dim },
                              { { "short_conv_kernel_size", "linear_conv_kernel_dim" }, 4, &m->taps } };
    const size_key outer[] = { { { "linear_num_heads" }, 32, &m->heads },
                               { { "linear_head_dim" }, 128, &m->key_dim },
                               { { "linear_conv_kernel_dim" }, 4, &m->taps } };
    const nb_json *full = nb_json_get(own, "full_attn_layers");
    nb_status rc = get_keys(r, own, own ? keys : outer, NB_LEN(keys));

    for (size_t i = 0; i < nb_json_len(full); i++)
        if (nb_json_int(nb_json_at(full, i), -1) < 1 || nb_json_int(nb_json_at(full, i), -1) > (int64_t)c->n_layers)
            return nb_cfg_bad(r, "linear_attn_config.full_attn_layers", nb_json_at(full, i), "numbers of layers, from 1");
    if (rc == NB_OK)
        rc = get_kinds(r, c, NB_MIX_KDA, kimi_full, NULL);
    m->key_heads = m->heads;
    m->value_dim = m->key_dim;
    m->norm_eps = c->norm_eps;
    return rc != NB_OK ? rc : check_mix(r, c, "num_heads", "num_heads");
}

/* ---- Mamba ---------------------------------------------------------------------------------------------------- */

/* A limit of the time step: a number, or infinity as Python writes it. */
static bool limit_of(const nb_json *v, double *out)
{
    const char *word = nb_json_str(nb_json_get(v, "__float__"), NULL);

    *out = word && strcmp(word, "Infinity") == 0 ? (double)INFINITY : nb_json_num(v, NAN);
    return *out >= 0;
}

static nb_status get_limits(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *v = nb_json_get(r->in, "time_step_limit");

    c->mix.dt_min = 0;
    c->mix.dt_max = INFINITY;
    if (nb_json_is_null(v))
        return NB_OK;
    if (nb_json_len(v) != 2 || !limit_of(nb_json_at(v, 0), &c->mix.dt_min) || !limit_of(nb_json_at(v, 1), &c->mix.dt_max) ||
        c->mix.dt_min > c->mix.dt_max)
        return nb_cfg_bad(r, "time_step_limit", v, "two numbers of 0 or more, the smaller first");
    return NB_OK;
}

static void plain_ssm(nb_config *c)
{
    for (size_t i = 0; i < NB_LEN(c->mix.parts); i++)
        c->mix.parts[i] = 1;
    c->mix.norm_eps = c->norm_eps;
}

/* granite, bamba, falcon_h1; inner: the width of the mixer. */
static nb_status get_ssm(const nb_cfg_reader *r, nb_config *c, size_t inner)
{
    nb_mix_cfg *m = &c->mix;
    size_t expand = 2;
    const size_key keys[] = { { { "mamba_n_heads" }, 128, &m->heads },
                              { { "mamba_n_groups" }, 1, &m->key_heads },
                              { { "mamba_d_state" }, 256, &m->key_dim },
                              { { "mamba_d_conv" }, 4, &m->taps },
                              { { "mamba_expand" }, 2, &expand } };
    const nb_json *dim = nb_json_get(r->in, "mamba_d_head");
    nb_status rc = get_keys(r, NULL, keys, NB_LEN(keys));

    plain_ssm(c);
    if (rc != NB_OK || (rc = nb_cfg_flag(r, "mamba_conv_bias", true, &m->conv_bias)) != NB_OK ||
        (rc = nb_cfg_flag(r, "mamba_proj_bias", false, &m->in_bias)) != NB_OK || (rc = get_limits(r, c)) != NB_OK)
        return rc;
    inner = inner ? inner : expand * c->d_model;
    m->value_dim = inner / m->heads;
    if (m->value_dim == 0 || inner % m->heads != 0 || (dim && nb_json_int(dim, (int64_t)m->value_dim) != (int64_t)m->value_dim))
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                       "\"mamba_n_heads\" is %zu, expected heads of mamba_d_head that make up %zu channels", m->heads, inner);
    return check_mix(r, c, "mamba_n_heads", "mamba_n_groups");
}

nb_status nb_cfg_granite_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const key[] = { "shared_intermediate_size", NULL };
    const nb_json *n = nb_json_get(r->in, "num_local_experts");

    if (nb_json_is_null(n) || nb_json_int(n, 0) == 0) /* the shared MLP is all there is */
        return nb_cfg_size(r, key, NB_CFG_MAX_DIM, 1024, &c->d_ff);
    return NB_OK;
}

nb_status nb_cfg_granite_hybrid(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *v = nb_json_get(r->in, "position_embedding_type");
    nb_status rc = get_kinds(r, c, NB_MIX_SSM, none, NULL);

    if (rc == NB_OK)
        rc = get_ssm(r, c, 0);
    c->mix.out_bias = c->mix.in_bias;
    return rc != NB_OK || strcmp(nb_json_str(v, ""), "rope") == 0 ? rc : no_rope(r, c);
}

static bool bamba_full(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    (void)arg;
    return in_list(nb_json_get(r->in, "attn_layer_indices"), l);
}

nb_status nb_cfg_bamba(const nb_cfg_reader *r, nb_config *c)
{
    nb_status rc = get_kinds(r, c, NB_MIX_SSM, bamba_full, NULL);

    if (rc == NB_OK)
        rc = get_ssm(r, c, 0);
    c->mix.out_bias = c->mix.in_bias;
    return rc;
}

static nb_status get_list(const nb_cfg_reader *r, const char *key, double *out, size_t n)
{
    const nb_json *v = nb_json_get(r->in, key);

    for (size_t i = 0; i < n; i++)
        out[i] = 1;
    if (nb_json_is_null(v))
        return NB_OK;
    if (nb_json_len(v) != n)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected %zu", key, nb_json_len(v), n);
    for (size_t i = 0; i < n; i++) {
        out[i] = nb_json_num(nb_json_at(v, i), NAN);
        if (!isfinite(out[i]))
            return nb_cfg_bad(r, key, v, "numbers");
    }
    return NB_OK;
}

nb_status nb_cfg_falcon_h1(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const width[] = { "mamba_d_ssm", NULL };
    const nb_json *v = nb_json_get(r->in, width[0]);
    nb_mix_cfg *m = &c->mix;
    uint8_t *kinds = nb_arena_calloc(c->mem, c->n_layers, 1);
    double mlp[2] = { 1, 1 }, key = 1;
    bool norm;
    size_t inner = 0;
    nb_status rc = NB_OK;

    if (!kinds)
        return nb_enomem(r->err, "the layer kinds");
    memset(kinds, NB_MIX_SSM, c->n_layers);
    c->mixer = kinds;
    if (!v || !nb_json_is_null(v))
        rc = nb_cfg_size(r, width, NB_CFG_MAX_DIM, 1024, &inner);
    if (rc != NB_OK || (rc = get_ssm(r, c, inner)) != NB_OK || (rc = nb_cfg_flag(r, "mamba_rms_norm", false, &norm)) != NB_OK ||
        (rc = nb_cfg_flag(r, "mamba_norm_before_gate", true, &m->norm_first)) != NB_OK ||
        (rc = nb_cfg_flag(r, "projectors_bias", false, &m->out_bias)) != NB_OK ||
        (rc = get_list(r, "ssm_multipliers", m->parts, NB_LEN(m->parts))) != NB_OK ||
        (rc = get_list(r, "mlp_multipliers", mlp, 2)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "ssm_in_multiplier", 0, 1e30, false, &m->in_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "ssm_out_multiplier", 0, 1e30, false, &m->out_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "attention_in_multiplier", 0, 1e30, false, &c->attn_in)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "attention_out_multiplier", 0, 1e30, false, &c->attn_out)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "key_multiplier", 0, 1e30, false, &key)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "embedding_multiplier", 0, 1e30, false, &c->embed_mult)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "lm_head_multiplier", 0, 1e30, false, &c->logit_mult)) != NB_OK)
        return rc;
    m->no_norm = !norm;
    c->attn_scale *= key; /* of q times (multiplier times k) */
    c->gate_mult = mlp[0];
    c->down_mult = mlp[1];
    return NB_OK;
}

nb_status nb_cfg_mamba2(const nb_cfg_reader *r, nb_config *c)
{
    nb_mix_cfg *m = &c->mix;
    const size_key keys[] = { { { "num_heads" }, 128, &m->heads },
                              { { "head_dim" }, 64, &m->value_dim },
                              { { "n_groups" }, 8, &m->key_heads },
                              { { "state_size" }, 128, &m->key_dim },
                              { { "conv_kernel" }, 4, &m->taps } };
    nb_status rc = get_keys(r, NULL, keys, NB_LEN(keys));

    plain_ssm(c);
    if (rc != NB_OK || (rc = get_kinds(r, c, NB_MIX_SSM, none, NULL)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_conv_bias", true, &m->conv_bias)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_bias", false, &m->in_bias)) != NB_OK || (rc = get_limits(r, c)) != NB_OK)
        return rc;
    m->out_bias = m->in_bias;
    return check_mix(r, c, "num_heads", "n_groups");
}

/* Kinds of nemotron_h: letters, or words. */
static nb_status nemotron_kinds(const nb_cfg_reader *r, nb_config *c, uint8_t **mixer, uint8_t **sparse)
{
    static const char *const keys[] = { "layers_block_type", "layer_types", NULL };
    static const struct {
        char letter;
        const char *word, *old;
        uint8_t mixer, sparse;
    } kinds[] = { { 'M', "linear_attention", "mamba", NB_MIX_SSM, 0 },
                  { '*', "full_attention", "attention", NB_MIX_ATTN, 0 },
                  { '-', "mlp", "mlp", NB_MIX_NONE, 0 },
                  { 'E', "moe", "moe", NB_MIX_NONE, 1 } };
    const nb_json *pattern = nb_json_get(r->in, "hybrid_override_pattern");
    const char *key, *letters = nb_json_str(pattern, NULL);
    const nb_json *list = nb_cfg_find(r, keys, &key);
    const size_t n = list ? nb_json_len(list) : letters ? strlen(letters) : 0;

    if (n < 1 || n > NB_CFG_MAX_COUNT)
        return nb_cfg_bad(r, list ? key : "hybrid_override_pattern", list ? list : pattern, "the kind of every layer");
    c->n_layers = n;
    *mixer = nb_arena_calloc(c->mem, n, 1);
    *sparse = nb_arena_calloc(c->mem, n, 1);
    if (!*mixer || !*sparse)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t l = 0; l < n; l++) {
        const char *word = nb_json_str(nb_json_at(list, l), "");
        size_t i = 0;
        while (i < NB_LEN(kinds) &&
               (list ? strcmp(word, kinds[i].word) != 0 && strcmp(word, kinds[i].old) != 0 : letters[l] != kinds[i].letter))
            i++;
        if (i == NB_LEN(kinds))
            return nb_cfg_unsupported(r, list ? key : "hybrid_override_pattern", list ? nb_json_at(list, l) : pattern,
                                      list ? "linear_attention, full_attention, mlp and moe" : "the letters M, *, - and E");
        (*mixer)[l] = kinds[i].mixer;
        (*sparse)[l] = kinds[i].sparse;
    }
    return NB_OK;
}

nb_status nb_cfg_nemotron_sizes(const nb_cfg_reader *r, nb_config *c)
{
    uint8_t *mixer, *sparse;

    return nemotron_kinds(r, c, &mixer, &sparse);
}

static nb_status nemotron_experts(const nb_cfg_reader *r, nb_config *c, const uint8_t *mixer, const uint8_t *sparse)
{
    static const char *const shared[] = { "moe_shared_expert_intermediate_size", NULL }, *const latent[] = { "moe_latent_size", NULL };
    const nb_json *v = nb_json_get(r->in, "n_shared_experts");
    const char *key;
    nb_status rc = NB_OK;

    if (!memchr(sparse, 1, c->n_layers)) {
        c->moe = (nb_moe_cfg){ .router = NB_ROUTE_NONE };
        return NB_OK;
    }
    if (c->moe.router == NB_ROUTE_NONE)
        return nb_cfg_bad(r, "n_routed_experts", NULL, "the number of experts");
    c->moe.sparse = sparse;
    c->moe.plain = true;
    c->moe.any_dense = false;
    for (size_t l = 0; l < c->n_layers; l++)
        c->moe.any_dense = c->moe.any_dense || (mixer[l] == NB_MIX_NONE && !sparse[l]);
    if (!v || nb_json_int(v, 1) != 0)
        rc = nb_cfg_size(r, shared, NB_CFG_MAX_DIM, 7688, &c->moe.shared_ff);
    if (rc == NB_OK && nb_cfg_find(r, latent, &key))
        rc = nb_cfg_size(r, latent, NB_CFG_MAX_DIM, 0, &c->moe.latent);
    return rc;
}

nb_status nb_cfg_nemotron(const nb_cfg_reader *r, nb_config *c)
{
    nb_mix_cfg *m = &c->mix;
    const size_key keys[] = { { { "mamba_num_heads" }, 128, &m->heads },
                              { { "mamba_head_dim" }, 64, &m->value_dim },
                              { { "n_groups", "mamba_n_groups" }, 8, &m->key_heads },
                              { { "ssm_state_size" }, 128, &m->key_dim },
                              { { "conv_kernel", "mamba_d_conv" }, 4, &m->taps } };
    uint8_t *mixer, *sparse;
    nb_status rc = get_keys(r, NULL, keys, NB_LEN(keys));

    plain_ssm(c);
    m->dt_min = 0.001;
    m->dt_max = INFINITY;
    if (rc != NB_OK || (rc = nemotron_kinds(r, c, &mixer, &sparse)) != NB_OK ||
        (rc = nb_cfg_flag(r, "mamba_conv_bias", true, &m->conv_bias)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_conv_bias", m->conv_bias, &m->conv_bias)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_bias", false, &m->in_bias)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "time_step_min", 0, 1e30, true, &m->dt_min)) != NB_OK)
        return rc;
    m->out_bias = m->in_bias;
    c->mixer = mixer;
    rc = nemotron_experts(r, c, mixer, sparse);
    return rc != NB_OK ? rc : check_mix(r, c, "mamba_num_heads", "n_groups");
}

/* Which layers run a shared block, and with which layer its weights are stored. */
static nb_status zamba_uses(const nb_cfg_reader *r, nb_config *c, size_t blocks)
{
    static const char *const keys[] = { "layers_block_type", "layer_types", NULL };
    nb_use *uses = nb_arena_calloc(c->mem, c->n_layers, sizeof *uses);
    const nb_json *ids = nb_json_get(r->in, "hybrid_layer_ids");
    const char *key;
    const nb_json *list = nb_cfg_find(r, keys, &key);
    size_t n = 0;

    if (!uses)
        return nb_enomem(r->err, "the layer kinds");
    if (list && (nb_json_typeof(list) != NB_JARR || nb_json_len(list) != c->n_layers))
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected one for each of %zu layers", key,
                       nb_json_len(list), c->n_layers);
    if (!list && nb_json_typeof(ids) != NB_JARR)
        return nb_cfg_bad(r, key, NULL, "the kind of every layer");
    for (size_t l = 0; l < c->n_layers; l++) {
        const char *word = nb_json_str(nb_json_at(list, l), "");
        const bool hybrid = list ? strcmp(word, "hybrid") == 0 : in_list(ids, l);
        if (list && !hybrid && strcmp(word, "mamba") != 0 && strcmp(word, "linear_attention") != 0)
            return nb_cfg_unsupported(r, key, nb_json_at(list, l), "mamba and hybrid");
        uses[l] = (nb_use){ hybrid ? l : SIZE_MAX, hybrid ? n++ : 0 };
    }
    for (size_t l = 0; l < c->n_layers && c->tie_embeddings; l++) /* else every layer stores its own */
        for (size_t first = 0; uses[l].from == l && uses[l].index >= blocks && first < l; first++)
            if (uses[first].from == first && uses[first].index == uses[l].index % blocks)
                uses[l].from = first;
    c->uses = uses;
    return NB_OK;
}

nb_status nb_cfg_zamba2(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const mem_blocks[] = { "num_mem_blocks", NULL }, *const rank[] = { "adapter_rank", NULL };
    nb_mix_cfg *m = &c->mix;
    size_t expand = 2, blocks;
    const size_key keys[] = { { { "n_mamba_heads" }, 8, &m->heads },
                              { { "mamba_ngroups" }, 1, &m->key_heads },
                              { { "mamba_d_state" }, 64, &m->key_dim },
                              { { "mamba_d_conv" }, 4, &m->taps },
                              { { "mamba_expand" }, 2, &expand } };
    uint8_t *kinds = nb_arena_calloc(c->mem, c->n_layers, 1);
    bool rope, far;
    nb_status rc = kinds ? get_keys(r, NULL, keys, NB_LEN(keys)) : nb_enomem(r->err, "the layer kinds");

    plain_ssm(c);
    m->conv_bias = true;
    m->norm_eps = 1e-5;
    m->dt_min = 0.001;
    m->dt_max = INFINITY;
    if (rc != NB_OK || (rc = nb_cfg_size(r, mem_blocks, NB_CFG_MAX_COUNT, 1, &blocks)) != NB_OK ||
        (rc = nb_cfg_size(r, rank, NB_CFG_MAX_DIM, 128, &c->adapt_rank)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_shared_attention_adapter", false, &c->adapt_qkv)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_mem_rope", false, &rope)) != NB_OK || (rc = nb_cfg_flag(r, "use_long_context", false, &far)) != NB_OK ||
        (rc = nb_cfg_flag(r, "add_bias_linear", false, &m->in_bias)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "time_step_min", 0, 1e30, true, &m->dt_min)) != NB_OK || (rc = zamba_uses(r, c, blocks)) != NB_OK)
        return rc;
    if (far)
        return nb_cfg_unsupported(r, "use_long_context", nb_json_get(r->in, "use_long_context"), "false");
    if (expand * c->d_model % m->heads != 0 || 2 * c->d_model % c->n_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                       "\"n_mamba_heads\" is %zu and \"num_attention_heads\" %zu, expected divisors of %zu and %zu", m->heads, c->n_heads,
                       expand * c->d_model, 2 * c->d_model);
    memset(kinds, NB_MIX_SSM, c->n_layers);
    c->mixer = kinds;
    m->out_bias = m->in_bias;
    m->value_dim = expand * c->d_model / m->heads;
    c->head_dim = c->kv_dim = 2 * c->d_model / c->n_heads;
    c->attn_scale = 1 / sqrt((double)c->head_dim / 2);
    rc = check_mix(r, c, "n_mamba_heads", "mamba_ngroups");
    return rc != NB_OK || rope ? rc : no_rope(r, c);
}

static bool jamba_full(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    (void)r;
    return l % arg[0] == arg[1];
}

/* A period and where in it. */
static nb_status get_period(const nb_cfg_reader *r, const char *period, const char *offset, size_t p, size_t o, size_t out[2])
{
    const char *const keys[] = { period, NULL };
    const nb_json *v = nb_json_get(r->in, offset);
    const int64_t at = nb_json_is_null(v) ? (int64_t)o : nb_json_int(v, -1);
    nb_status rc = nb_cfg_size(r, keys, NB_CFG_MAX_COUNT, p, &out[0]);

    out[1] = (size_t)at;
    return rc != NB_OK || (at >= 0 && out[1] < out[0]) ? rc : nb_cfg_bad(r, offset, v, "a number below the period");
}

nb_status nb_cfg_jamba(const nb_cfg_reader *r, nb_config *c)
{
    nb_mix_cfg *m = &c->mix;
    size_t full[2], expert[2], expand = 2;
    const size_key keys[] = { { { "mamba_d_state" }, 16, &m->key_dim },
                              { { "mamba_d_conv" }, 4, &m->taps },
                              { { "mamba_expand" }, 2, &expand } };
    static const char *const rank[] = { "mamba_dt_rank", NULL };
    const nb_json *auto_rank = nb_json_get(r->in, rank[0]);
    uint8_t *sparse = nb_arena_calloc(c->mem, c->n_layers, 1);
    nb_status rc = sparse ? get_keys(r, NULL, keys, NB_LEN(keys)) : nb_enomem(r->err, "the layer kinds");

    m->rank = (c->d_model + 15) / 16;
    if (rc != NB_OK || (rc = get_period(r, "attn_layer_period", "attn_layer_offset", 8, 4, full)) != NB_OK ||
        (rc = get_period(r, "expert_layer_period", "expert_layer_offset", 2, 1, expert)) != NB_OK ||
        (rc = get_kinds(r, c, NB_MIX_SSM1, jamba_full, full)) != NB_OK ||
        (!nb_json_str(auto_rank, NULL) && (rc = nb_cfg_size(r, rank, NB_CFG_MAX_DIM, m->rank, &m->rank)) != NB_OK) ||
        (rc = nb_cfg_flag(r, "mamba_conv_bias", true, &m->conv_bias)) != NB_OK ||
        (rc = nb_cfg_flag(r, "mamba_proj_bias", false, &m->in_bias)) != NB_OK)
        return rc;
    m->out_bias = m->in_bias;
    m->heads = m->key_heads = 1;
    m->value_dim = expand * c->d_model;
    m->norm_eps = c->norm_eps;
    for (size_t l = 0; l < c->n_layers; l++)
        sparse[l] = l % expert[0] == expert[1];
    if (c->moe.n_experts > 1) {
        c->moe.sparse = sparse;
        c->moe.any_dense = memchr(sparse, 0, c->n_layers) != NULL;
    } else {
        c->moe = (nb_moe_cfg){ .router = NB_ROUTE_NONE };
    }
    return check_mix(r, c, "", "");
}

/* ---- short convolutions, lightning ----------------------------------------------------------------------------- */

nb_status nb_cfg_lfm2_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const width[] = { "block_ff_dim", "intermediate_size", NULL }, *const multiple[] = { "block_multiple_of", NULL };
    double by = 1;
    bool adjust;
    size_t f, n;
    nb_status rc;

    if ((rc = nb_cfg_size(r, width, NB_CFG_MAX_DIM, 0, &f)) != NB_OK || (rc = nb_cfg_size(r, multiple, NB_CFG_MAX_DIM, 256, &n)) != NB_OK ||
        (rc = nb_cfg_flag(r, "block_auto_adjust_ff_dim", true, &adjust)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "block_ffn_dim_multiplier", 0, 1e6, false, &by)) != NB_OK)
        return rc;
    if (adjust)
        f = ((size_t)(by * (double)(2 * f / 3)) + n - 1) / n * n;
    c->d_ff = f;
    return f > 0 && f <= NB_CFG_MAX_DIM ? NB_OK : nb_cfg_bad(r, width[0], nb_json_get(r->in, width[0]), "a smaller width");
}

static bool lfm2_full(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    const nb_json *list = nb_json_get(r->in, "full_attn_idxs");

    (void)arg;
    return !list || nb_json_is_null(list) || in_list(list, l);
}

nb_status nb_cfg_lfm2(const nb_cfg_reader *r, nb_config *c)
{
    const size_key keys[] = { { { "conv_L_cache" }, 3, &c->mix.taps } };
    const bool listed = c->moe.router != NB_ROUTE_NONE; /* its layers have no default */
    const nb_json *tie = nb_json_get(r->in, "tie_embedding");
    nb_status rc = get_keys(r, NULL, keys, 1);

    c->mix.heads = c->mix.key_heads = c->mix.key_dim = c->mix.value_dim = 1;
    if (rc != NB_OK || (rc = nb_cfg_flag(r, "conv_bias", false, &c->mix.conv_bias)) != NB_OK ||
        (rc = get_kinds(r, c, NB_MIX_CONV, listed ? NULL : lfm2_full, NULL)) != NB_OK ||
        (rc = nb_cfg_bool(r, "tie_embedding", tie, &c->tie_embeddings)) != NB_OK)
        return rc;
    c->mix.in_bias = c->mix.out_bias = c->mix.conv_bias;
    return check_mix(r, c, "", "");
}

static bool odd(const nb_cfg_reader *r, size_t l, const size_t *arg)
{
    (void)r;
    (void)arg;
    return l % 2 == 0;
}

nb_status nb_cfg_minimax(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const names[] = { "linear_attn", "full_attn", "mlp" };
    char key[64];
    nb_status rc = get_kinds(r, c, NB_MIX_LIGHTNING, odd, NULL);

    for (size_t i = 0; i < 3 && rc == NB_OK; i++) {
        snprintf(key, sizeof key, "%s_alpha_factor", names[i]);
        rc = nb_cfg_num(r, r->in, key, 0, 1e30, true, &c->alpha[i]);
        snprintf(key, sizeof key, "%s_beta_factor", names[i]);
        if (rc == NB_OK)
            rc = nb_cfg_num(r, r->in, key, 0, 1e30, true, &c->beta[i]);
    }
    c->mix.heads = c->mix.key_heads = c->n_heads;
    c->mix.key_dim = c->mix.value_dim = c->head_dim;
    c->mix.taps = 2; /* none, in fact */
    return rc != NB_OK ? rc : check_mix(r, c, "num_attention_heads", "num_attention_heads");
}
