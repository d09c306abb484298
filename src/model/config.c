/* config.json -> nb_config. Keys, aliases and defaults: spec models 2, 3, 8.2; what is refused: hardening 5.5. */
#include "model/config_read.h"

static const nb_names llama_names = { .embed = NULL };

static nb_status find_arch(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *type = nb_json_get(r->in, "model_type");
    const nb_json *cls = nb_json_at(nb_json_get(r->in, "architectures"), 0);
    char known[2048] = "", a[NB_ESC_CAP], b[NB_ESC_CAP];

    if (!cls)
        cls = nb_json_at(nb_json_get(r->outer, "architectures"), 0);
    c->arch = nb_arch_find(nb_json_str(type, NULL), nb_json_str(cls, NULL));
    if (!c->arch) {
        for (size_t i = 0; i < nb_arch_count(); i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", nb_arch_at(i)->type);
        return nb_fail(r->err, NB_EUNSUPPORTED, "cfg.arch", "", "model_type %s with architecture %s is not supported; supported: %s",
                       nb_cfg_show(a, type), nb_cfg_show(b, cls), known);
    }
    c->names = c->arch->names ? c->arch->names : &llama_names;
    snprintf(c->model_type, sizeof c->model_type, "%s", nb_json_str(type, c->arch->type));
    snprintf(c->class_name, sizeof c->class_name, "%s", nb_json_str(cls, c->arch->cls));
    return NB_OK;
}

static nb_status get_heads(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const heads[] = { "num_attention_heads", "n_head", "n_heads", NULL };
    static const char *const kv[] = { "num_key_value_heads", "num_kv_heads", NULL };
    static const char *const dim[] = { "head_dim", NULL };
    const char *key;
    size_t dflt;
    bool fixed;
    nb_status rc;

    if (c->arch->quirks & NB_Q_NO_HEADS) {
        c->n_heads = c->n_kv_heads = c->head_dim = c->kv_dim = 1;
        return NB_OK;
    }
    rc = nb_cfg_size(r, heads, NB_CFG_MAX_COUNT, c->arch->n_heads, &c->n_heads);
    if (rc != NB_OK)
        return rc;
    if (c->arch->mla)
        return nb_cfg_mla(r, c);
    /* A null means the head count; only a missing key has a class default. */
    dflt = nb_json_get(r->in, "num_key_value_heads") || !c->arch->kv_heads ? c->n_heads : c->arch->kv_heads;
    if (c->n_kv_heads) /* decided by the family */
        dflt = c->n_kv_heads;
    else if ((rc = nb_cfg_size(r, kv, NB_CFG_MAX_COUNT, dflt, &dflt)) != NB_OK)
        return rc;
    c->n_kv_heads = dflt;
    if (c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"num_key_value_heads\" is %zu, expected a divisor of num_attention_heads %zu",
                       c->n_kv_heads, c->n_heads);
    fixed = (c->arch->quirks & NB_Q_HEAD_DIM_FIXED) != 0;
    if ((fixed || !nb_cfg_find(r, dim, &key)) && !c->arch->head_dim && c->d_model % c->n_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.head_dim", "",
                       "hidden_size %zu is not a multiple of num_attention_heads %zu and head_dim is absent", c->d_model, c->n_heads);
    c->head_dim = c->arch->head_dim ? c->arch->head_dim : c->d_model / c->n_heads;
    if (!fixed && (rc = nb_cfg_size(r, dim, NB_CFG_MAX_DIM, c->head_dim, &c->head_dim)) != NB_OK)
        return rc;
    c->kv_dim = c->head_dim + (c->alibi ? (c->alibi_exact ? 2 : 1) * (c->n_heads / c->n_kv_heads) : 0);
    if ((uint64_t)c->n_heads * c->head_dim > NB_CFG_MAX_DIM) /* both factors are below 2^25: no overflow */
        return nb_fail(r->err, NB_EFORMAT, "cfg.overflow", "", "num_attention_heads %zu times head_dim %zu is above %d", c->n_heads,
                       c->head_dim, NB_CFG_MAX_DIM);
    return NB_OK;
}

static nb_status get_sizes(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const hidden[] = { "hidden_size", "n_embd", "d_model", "n_embed", NULL };
    static const char *const layers[] = { "num_hidden_layers", "n_layer", "n_layers", "num_layers", NULL };
    static const char *const ff[] = { "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", NULL };
    static const char *const vocab[] = { "vocab_size", NULL };
    const bool wide = (c->arch->quirks & (NB_Q_GPT2 | NB_Q_FALCON | NB_Q_FOUR_D)) != 0;
    static const char *const context[] = {
        "max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "seq_length", NULL
    };
    nb_status rc;

    if ((rc = nb_cfg_size(r, hidden, NB_CFG_MAX_DIM, 0, &c->d_model)) != NB_OK ||
        (c->arch->sizes && (rc = c->arch->sizes(r, c)) != NB_OK) ||
        (!c->n_layers && (rc = nb_cfg_size(r, layers, NB_CFG_MAX_COUNT, 0, &c->n_layers)) != NB_OK) || (rc = get_heads(r, c)) != NB_OK ||
        (!c->d_ff && (rc = nb_cfg_size(r, ff, NB_CFG_MAX_DIM, wide ? 4 * c->d_model : 0, &c->d_ff)) != NB_OK) ||
        (rc = nb_cfg_size(r, vocab, NB_CFG_MAX_DIM, 0, &c->vocab)) != NB_OK)
        return rc;
    return nb_cfg_size(r, context, (int64_t)1 << 53, 2048, &c->context); /* any size: nothing is allocated from it (CF-13) */
}

static nb_status get_flags(const nb_cfg_reader *r, nb_config *c)
{
    const nb_arch *a = c->arch;
    const nb_json *tie = nb_cfg_outer(r, "tie_word_embeddings");
    const char *akey = a->bias_key ? a->bias_key : "attention_bias", *okey = a->o_bias_key ? a->o_bias_key : akey;
    const char *mkey = a->mlp_bias_key ? a->mlp_bias_key : "mlp_bias";
    bool attn, o, mlp, qk;
    nb_status rc;

    c->norm_eps = a->eps;
    c->tie_embeddings = a->tie;
    c->tie_given = tie && !nb_json_is_null(tie);
    c->norm = a->norm;
    c->mlp = a->mlp;
    c->rope_pairs = a->rope_pairs;
    if ((!(a->quirks & NB_Q_EPS_FIXED) && (rc = nb_cfg_num(r, r->in, a->eps_key, 0, 1, false, &c->norm_eps)) != NB_OK) ||
        (rc = nb_cfg_bool(r, "tie_word_embeddings", tie, &c->tie_embeddings)) != NB_OK ||
        (rc = nb_cfg_flag(r, akey, a->bias_on, &attn)) != NB_OK || (rc = nb_cfg_flag(r, okey, a->bias_on && okey == akey, &o)) != NB_OK ||
        (rc = nb_cfg_flag(r, mkey, a->bias_on && strcmp(mkey, akey) == 0, &mlp)) != NB_OK ||
        (rc = nb_cfg_flag(r, a->qk_key ? a->qk_key : "qk_norm", false, &qk)) != NB_OK)
        return rc;
    c->qk = a->qk_key && !qk ? NB_QK_NONE : a->qk;
    c->attn_bias = a->qkv_bias == NB_BIAS_YES || (a->qkv_bias == NB_BIAS_CONFIG && attn);
    c->o_bias = a->o_bias == NB_BIAS_YES || (a->o_bias == NB_BIAS_CONFIG && o);
    c->mlp_bias = a->mlp_bias == NB_BIAS_YES || (a->mlp_bias == NB_BIAS_CONFIG && mlp);
    return NB_OK;
}

static nb_status get_act(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const keys[] = { "hidden_activation", "hidden_act", "activation_function", "activation", "mlp_hidden_act", NULL };
    static const struct {
        const char *name;
        nb_act_kind kind;
    } acts[] = { { "silu", NB_ACT_SILU },
                 { "swish", NB_ACT_SILU },
                 { "gelu", NB_ACT_GELU_ERF },
                 { "gelu_python", NB_ACT_GELU_ERF },
                 { "gelu_new", NB_ACT_GELU_TANH },
                 { "gelu_pytorch_tanh", NB_ACT_GELU_TANH },
                 { "gelu_python_tanh", NB_ACT_GELU_TANH },
                 { "gelu_accurate", NB_ACT_GELU_TANH },
                 { "gelu_fast", NB_ACT_GELU_TANH },
                 { "relu", NB_ACT_RELU },
                 { "xielu", NB_ACT_XIELU },
                 { "relu2", NB_ACT_RELU2 } };
    const bool plain = c->arch->mlp == NB_MLP_PLAIN;
    const char *key;
    const nb_json *v = nb_cfg_find(r, keys, &key);

    c->act = c->arch->act;
    if (!v)
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(acts) - (plain ? 0 : 3); i++) {
        if (strcmp(nb_json_str(v, ""), acts[i].name) == 0) {
            c->act = acts[i].kind;
            if (c->act == NB_ACT_GELU_ERF && c->arch->quirks & NB_Q_GELU_TANH)
                c->act = NB_ACT_GELU_TANH;
            return NB_OK;
        }
    }
    return nb_cfg_unsupported(r, key, v, plain ? "silu, gelu, relu, relu2 and their spellings" : "silu, gelu and their spellings");
}

/* Whether the rule of the table limits layer l. */
static bool by_rule(const nb_config *c, size_t l, size_t n, const char *letters)
{
    switch (c->arch->window) {
    case NB_WINDOW_UPPER:
        return l >= n;
    case NB_WINDOW_FLAG:
        return true;
    case NB_WINDOW_QWEN2_MOE:
        return l % 2 == 0 && l < n;
    case NB_WINDOW_EVEN:
        return l % 2 == 0;
    case NB_WINDOW_FROM:
        return l >= n;
    case NB_WINDOW_CWM:
        return l % 4 != 0;
    case NB_WINDOW_MIMO:
        return l > 0 && (l + 1) % 6 != 0;
    case NB_WINDOW_ROPE:
        return nb_rope_layer(c, l) != NB_ROPE_OFF;
    case NB_WINDOW_PATTERN:
        if (c->arch->last_full && l + 1 == c->n_layers)
            return false;
        return letters ? letters[l % strlen(letters)] == 'L' : (l + 1) % n != 0;
    case NB_WINDOW_NO_ROPE:
        return nb_rope_layer(c, l) == NB_ROPE_OFF;
    default:
        return c->arch->window == NB_WINDOW_ALL;
    }
}

static nb_status mark_layers(const nb_cfg_reader *r, nb_config *c, const nb_json *types, size_t n, const char *letters)
{
    uint8_t *w = nb_arena_calloc(c->mem, c->n_layers, 1);
    bool any = false;

    if (!w)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_json *t = nb_json_at(types, l);
        const char *s = nb_json_str(t, "");
        if (!types)
            w[l] = by_rule(c, l, n, letters);
        else if (strcmp(s, c->chunk ? "chunked_attention" : "sliding_attention") == 0)
            w[l] = 1;
        else if (strcmp(s, "full_attention") != 0)
            return nb_cfg_unsupported(r, "layer_types", t,
                                      c->chunk ? "full_attention and chunked_attention" : "full_attention and sliding_attention");
        any = any || w[l];
    }
    c->windowed = any ? w : NULL;
    if (!any)
        c->sliding_window = 0;
    return NB_OK;
}

/* The number of a rule: first windowed layer, or the period of full ones. */
static nb_status get_window_rule(const nb_cfg_reader *r, nb_config *c, const nb_json *types)
{
    static const char *const upper[] = { "max_window_layers", NULL };
    static const char *const pattern[] = { "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", NULL };
    const char *letters = nb_json_str(nb_json_get(r->in, pattern[0]), NULL);
    nb_status rc = NB_OK;
    size_t n = 0;

    if ((c->arch->window == NB_WINDOW_UPPER || c->arch->window == NB_WINDOW_FROM || c->arch->window == NB_WINDOW_QWEN2_MOE) && !types) {
        if (nb_json_int(nb_json_get(r->in, "max_window_layers"), -1) != 0) /* 0 is a fine value here */
            rc = nb_cfg_size(r, upper, (int64_t)1 << 31, c->arch->window == NB_WINDOW_FROM ? 62 : 28, &n);
    } else if (c->arch->window == NB_WINDOW_PATTERN && !types) {
        if (!letters)
            rc = nb_cfg_size(r, pattern, (int64_t)1 << 31, c->arch->pattern, &n);
        else if (!*letters || strspn(letters, "LG") != strlen(letters))
            rc = nb_cfg_bad(r, pattern[0], nb_json_get(r->in, pattern[0]), "a number or letters L and G");
    }
    return rc != NB_OK ? rc : mark_layers(r, c, types, n, letters);
}

static nb_status get_window(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const size[] = { "sliding_window", NULL };
    const nb_arch *a = c->arch;
    const nb_json *types = a->layer_types ? nb_json_get(r->in, "layer_types") : NULL;
    const nb_json *w = nb_json_get(r->in, "sliding_window");
    bool use = a->window != NB_WINDOW_NONE;
    nb_status rc;

    if (nb_json_is_null(types))
        types = NULL;
    if (types && nb_json_len(types) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"layer_types\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(types), c->n_layers);
    if (a->window == NB_WINDOW_UPPER || a->window == NB_WINDOW_NO_ROPE || a->window == NB_WINDOW_FLAG || a->window == NB_WINDOW_QWEN2_MOE) {
        rc = nb_cfg_flag(r, "use_sliding_window", false, &use);
        if (rc != NB_OK)
            return rc;
    }
    if (!use || (!c->chunk && !c->window_given && (w ? nb_json_is_null(w) : a->window_size == 0))) /* unused, whatever it says */
        return NB_OK;
    rc = c->chunk ? NB_OK : c->window_given ? NB_OK : nb_cfg_size(r, size, (int64_t)1 << 53, a->window_size, &c->sliding_window);
    if (c->chunk || c->window_given)
        c->sliding_window = c->chunk ? c->chunk : c->window_given;
    return rc != NB_OK ? rc : get_window_rule(r, c, types);
}

/* ---- token ids ------------------------------------------------------------------------------------------------ */

static nb_status token_id(const nb_cfg_reader *r, const nb_config *c, const char *key, const nb_json *v, int64_t *out)
{
    const int64_t id = nb_json_int(v, INT64_MIN);
    char buf[NB_ESC_CAP];

    if (id < -1 || id >= (int64_t)c->vocab) /* -1 means none in some files */
        return nb_fail(r->err, NB_EFORMAT, "cfg.token_id", "", "\"%s\" is %s, expected an id below vocab_size %zu, or null", key,
                       nb_cfg_show(buf, v), c->vocab);
    *out = id;
    return NB_OK;
}

static nb_status get_tokens(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *bos = nb_cfg_outer(r, "bos_token_id"), *pad = nb_cfg_outer(r, "pad_token_id"), *eos = nb_cfg_outer(r, "eos_token_id");
    const bool list = nb_json_typeof(eos) == NB_JARR;
    const size_t n = list ? nb_json_len(eos) : !nb_json_is_null(eos);
    nb_status rc = NB_OK;

    c->bos_id = c->pad_id = -1;
    if (!nb_json_is_null(bos))
        rc = token_id(r, c, "bos_token_id", bos, &c->bos_id);
    if (rc == NB_OK && !nb_json_is_null(pad))
        rc = token_id(r, c, "pad_token_id", pad, &c->pad_id);
    if (rc == NB_OK && n > NB_LEN(c->eos_id))
        rc = nb_fail(r->err, NB_EFORMAT, "cfg.token_id", "", "\"eos_token_id\" lists %zu ids, expected at most %zu", n, NB_LEN(c->eos_id));
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        int64_t id = -1;
        rc = token_id(r, c, "eos_token_id", list ? nb_json_at(eos, i) : eos, &id);
        if (rc == NB_OK && id >= 0)
            c->eos_id[c->n_eos++] = id;
    }
    return rc;
}

nb_status nb_config_parse(const nb_json *root, nb_config *out, nb_err *err)
{
    const nb_json *text = nb_json_get(root, "text_config");
    const nb_cfg_reader r = { nb_json_typeof(text) == NB_JOBJ ? text : root, root, err };
    nb_status rc;

    *out = (nb_config){ .mem = nb_calloc(1, sizeof(nb_arena)) };
    if (!out->mem)
        return nb_enomem(err, "the model configuration");
    if (nb_json_typeof(root) != NB_JOBJ)
        rc = nb_fail(err, NB_EFORMAT, "cfg.value", "", "the configuration is not a JSON object");
    else if ((rc = find_arch(&r, out)) == NB_OK && (rc = nb_cfg_block(&r, out)) == NB_OK && (rc = get_sizes(&r, out)) == NB_OK &&
             (rc = get_flags(&r, out)) == NB_OK && (rc = get_act(&r, out)) == NB_OK && (rc = nb_cfg_family(&r, out)) == NB_OK &&
             (rc = nb_cfg_rope_layers(&r, out, true)) == NB_OK && (rc = get_window(&r, out)) == NB_OK &&
             (rc = nb_cfg_rope(&r, out)) == NB_OK && (rc = nb_cfg_rope_layers(&r, out, false)) == NB_OK &&
             (!out->arch->layers || (rc = out->arch->layers(&r, out)) == NB_OK))
        rc = get_tokens(&r, out);
    if (rc == NB_OK) {
        const nb_json *t = nb_cfg_outer(&r, "dtype");
        if (!nb_json_str(t, NULL))
            t = nb_cfg_outer(&r, "torch_dtype");
        if (nb_json_str(t, NULL))
            out->dtype = nb_dtype_from_torch(nb_json_str(t, NULL));
    } else {
        nb_err_at(err, "config.json", NULL);
        nb_config_clear(out);
    }
    return rc;
}

void nb_config_clear(nb_config *c)
{
    if (c->mem)
        nb_arena_clear(c->mem);
    nb_free(c->mem);
    *c = (nb_config){ 0 };
}
