/* config.json -> nb_config. Keys, aliases and defaults: spec models 2, 3, 8.2; what is refused: hardening 5.5. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/arch.h"

enum {
    MAX_DIM = 1 << 24, /* hardening 4: hidden, intermediate, vocabulary, and products of heads */
    MAX_COUNT = 4096   /* layers, heads */
};

/* The model's own object and the one around it (the same when nothing is nested). */
typedef struct reader {
    const nb_json *in, *outer;
    nb_err *err;
} reader;

/* First of `keys` (ended by NULL) that is present and not null; *key names it, or the first one when none is. */
static const nb_json *find(const reader *r, const char *const *keys, const char **key)
{
    *key = keys[0];
    for (; *keys; keys++) {
        const nb_json *v = nb_json_get(r->in, *keys);
        if (v && !nb_json_is_null(v)) {
            *key = *keys;
            return v;
        }
    }
    return NULL;
}

/* A key that multimodal files keep outside text_config. */
static const nb_json *find_outer(const reader *r, const char *key)
{
    const nb_json *v = nb_json_get(r->in, key);

    return v && !nb_json_is_null(v) ? v : nb_json_get(r->outer, key);
}

static const char *show(char out[NB_ESC_CAP], const nb_json *v)
{
    char *text;

    if (!v)
        return "absent";
    text = nb_json_dump(v, 0, true);
    nb_esc(out, NB_ESC_CAP, text ? text : "?", text ? strlen(text) : 1);
    nb_free(text);
    return out;
}

static nb_status bad_value(const reader *r, const char *key, const nb_json *v, const char *want)
{
    char buf[NB_ESC_CAP];

    return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" is %s, expected %s", key, show(buf, v), want);
}

static nb_status unsupported(const reader *r, const char *key, const nb_json *v, const char *known)
{
    char buf[NB_ESC_CAP];

    return nb_fail(r->err, NB_EUNSUPPORTED, "cfg.unsupported", "", "\"%s\" is %s; nibble knows %s", key, show(buf, v), known);
}

/* A count in 1..hi. dflt 0: the key is required. */
static nb_status get_size(const reader *r, const char *const *keys, int64_t hi, size_t dflt, size_t *out)
{
    const char *key;
    const nb_json *v = find(r, keys, &key);
    char want[64];
    int64_t n;

    if (!v && dflt) {
        *out = dflt;
        return NB_OK;
    }
    n = v ? nb_json_int(v, INT64_MIN) : INT64_MIN;
    if (n < 1 || n > hi) {
        snprintf(want, sizeof want, "an integer from 1 to %lld", (long long)hi);
        return bad_value(r, key, v, want);
    }
    *out = (size_t)n;
    return NB_OK;
}

/* A finite number in (lo, hi], or [lo, hi] when `closed`. Absent or null leaves *out. */
static nb_status get_num(const reader *r, const nb_json *obj, const char *key, double lo, double hi, bool closed, double *out)
{
    const nb_json *v = nb_json_get(obj, key);
    char want[64];
    double x;

    if (!v || nb_json_is_null(v))
        return NB_OK;
    x = nb_json_num(v, NAN);
    if (!(x <= hi && (x > lo || (closed && x == lo)))) { /* NaN fails */
        snprintf(want, sizeof want, "a number %s %g%s", closed ? "from" : "above", lo, hi < 1e30 ? "" : " and finite");
        if (hi < 1e30)
            snprintf(want + strlen(want), sizeof want - strlen(want), " up to %g", hi);
        return bad_value(r, key, v, want);
    }
    *out = x;
    return NB_OK;
}

static nb_status get_bool(const reader *r, const char *key, const nb_json *v, bool *out)
{
    if (!v || nb_json_is_null(v))
        return NB_OK;
    if (nb_json_typeof(v) != NB_JBOOL)
        return bad_value(r, key, v, "true or false");
    *out = nb_json_bool(v, false);
    return NB_OK;
}

static nb_status find_arch(const reader *r, nb_config *c)
{
    const nb_json *type = nb_json_get(r->in, "model_type");
    const nb_json *cls = nb_json_at(nb_json_get(r->in, "architectures"), 0);
    char known[256] = "", a[NB_ESC_CAP], b[NB_ESC_CAP];

    if (!cls)
        cls = nb_json_at(nb_json_get(r->outer, "architectures"), 0);
    c->arch = nb_arch_find(nb_json_str(type, NULL), nb_json_str(cls, NULL));
    if (!c->arch) {
        for (size_t i = 0; i < nb_arch_count(); i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", nb_arch_at(i)->type);
        return nb_fail(r->err, NB_EUNSUPPORTED, "cfg.arch", "", "model_type %s with architecture %s is not supported; supported: %s",
                       show(a, type), show(b, cls), known);
    }
    snprintf(c->model_type, sizeof c->model_type, "%s", nb_json_str(type, c->arch->type));
    snprintf(c->class_name, sizeof c->class_name, "%s", nb_json_str(cls, c->arch->cls));
    return NB_OK;
}

static nb_status get_heads(const reader *r, nb_config *c)
{
    static const char *const heads[] = { "num_attention_heads", "n_head", NULL };
    static const char *const kv[] = { "num_key_value_heads", "num_kv_heads", NULL };
    static const char *const dim[] = { "head_dim", NULL };
    const char *key;
    size_t dflt;
    nb_status rc;

    rc = get_size(r, heads, MAX_COUNT, 0, &c->n_heads);
    if (rc != NB_OK)
        return rc;
    /* A null means the head count; only a missing key has a class default. */
    dflt = nb_json_get(r->in, "num_key_value_heads") || !c->arch->kv_heads ? c->n_heads : c->arch->kv_heads;
    rc = get_size(r, kv, MAX_COUNT, dflt, &c->n_kv_heads);
    if (rc != NB_OK)
        return rc;
    if (c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"num_key_value_heads\" is %zu, expected a divisor of num_attention_heads %zu",
                       c->n_kv_heads, c->n_heads);
    if (!find(r, dim, &key) && !c->arch->head_dim && c->d_model % c->n_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.head_dim", "",
                       "hidden_size %zu is not a multiple of num_attention_heads %zu and head_dim is absent", c->d_model, c->n_heads);
    rc = get_size(r, dim, MAX_DIM, c->arch->head_dim ? c->arch->head_dim : c->d_model / c->n_heads, &c->head_dim);
    if (rc != NB_OK)
        return rc;
    if ((uint64_t)c->n_heads * c->head_dim > MAX_DIM) /* both factors are below 2^25: no overflow */
        return nb_fail(r->err, NB_EFORMAT, "cfg.overflow", "", "num_attention_heads %zu times head_dim %zu is above %d", c->n_heads,
                       c->head_dim, MAX_DIM);
    return NB_OK;
}

static nb_status get_sizes(const reader *r, nb_config *c)
{
    static const char *const hidden[] = { "hidden_size", "n_embd", "d_model", NULL };
    static const char *const layers[] = { "num_hidden_layers", "n_layer", "n_layers", NULL };
    static const char *const ff[] = { "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", NULL };
    static const char *const vocab[] = { "vocab_size", NULL };
    static const char *const context[] = { "max_position_embeddings", "n_positions", NULL };
    nb_status rc;

    if ((rc = get_size(r, hidden, MAX_DIM, 0, &c->d_model)) != NB_OK || (rc = get_size(r, layers, MAX_COUNT, 0, &c->n_layers)) != NB_OK ||
        (rc = get_heads(r, c)) != NB_OK || (rc = get_size(r, ff, MAX_DIM, 0, &c->d_ff)) != NB_OK ||
        (rc = get_size(r, vocab, MAX_DIM, 0, &c->vocab)) != NB_OK)
        return rc;
    return get_size(r, context, (int64_t)1 << 53, 2048, &c->context); /* any size: nothing is allocated from it (CF-13) */
}

static nb_status get_flags(const reader *r, nb_config *c)
{
    const nb_arch *a = c->arch;
    const nb_json *tie = find_outer(r, "tie_word_embeddings");
    bool attn = false, mlp = false;
    nb_status rc;

    c->norm_eps = a->eps;
    c->tie_embeddings = a->tie;
    c->tie_given = tie && !nb_json_is_null(tie);
    c->qk_norm = a->qk_norm;
    if ((rc = get_num(r, r->in, a->eps_key, 0, 1, false, &c->norm_eps)) != NB_OK ||
        (rc = get_bool(r, "tie_word_embeddings", tie, &c->tie_embeddings)) != NB_OK ||
        (rc = get_bool(r, "attention_bias", nb_json_get(r->in, "attention_bias"), &attn)) != NB_OK ||
        (rc = get_bool(r, "mlp_bias", nb_json_get(r->in, "mlp_bias"), &mlp)) != NB_OK)
        return rc;
    c->attn_bias = a->qkv_bias == NB_BIAS_YES || (a->qkv_bias == NB_BIAS_CONFIG && attn);
    c->o_bias = a->o_bias == NB_BIAS_YES || (a->o_bias == NB_BIAS_CONFIG && attn);
    c->mlp_bias = a->mlp_bias == NB_BIAS_YES || (a->mlp_bias == NB_BIAS_CONFIG && mlp);
    return NB_OK;
}

static nb_status get_act(const reader *r, nb_config *c)
{
    static const char *const keys[] = { "hidden_act", "hidden_activation", "activation_function", "activation", NULL };
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
                 { "gelu_fast", NB_ACT_GELU_TANH } };
    const char *key;
    const nb_json *v = find(r, keys, &key);

    c->act = NB_ACT_SILU;
    if (!v)
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(acts); i++) {
        if (strcmp(nb_json_str(v, ""), acts[i].name) == 0) {
            c->act = acts[i].kind;
            return NB_OK;
        }
    }
    return unsupported(r, key, v, "silu, gelu and their spellings");
}

static nb_status mark_layers(const reader *r, nb_config *c, const nb_json *types, size_t first)
{
    uint8_t *w = nb_arena_calloc(c->mem, c->n_layers, 1);
    bool any = false;

    if (!w)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_json *t = nb_json_at(types, l);
        const char *s = nb_json_str(t, "");
        if (!types)
            w[l] = l >= first;
        else if (strcmp(s, "sliding_attention") == 0)
            w[l] = 1;
        else if (strcmp(s, "full_attention") != 0)
            return unsupported(r, "layer_types", t, "full_attention and sliding_attention");
        any = any || w[l];
    }
    c->windowed = any ? w : NULL;
    if (!any)
        c->sliding_window = 0;
    return NB_OK;
}

static nb_status get_window(const reader *r, nb_config *c)
{
    static const char *const size[] = { "sliding_window", NULL };
    static const char *const upper[] = { "max_window_layers", NULL };
    const nb_arch *a = c->arch;
    const nb_json *types = a->layer_types ? nb_json_get(r->in, "layer_types") : NULL;
    const nb_json *w = nb_json_get(r->in, "sliding_window");
    bool use = a->window == NB_WINDOW_ALL;
    size_t first = 0;
    nb_status rc;

    if (nb_json_is_null(types))
        types = NULL;
    if (types && nb_json_len(types) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"layer_types\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(types), c->n_layers);
    if (a->window == NB_WINDOW_UPPER) {
        rc = get_bool(r, "use_sliding_window", nb_json_get(r->in, "use_sliding_window"), &use);
        if (rc != NB_OK)
            return rc;
    }
    if (!use || (w && nb_json_is_null(w))) /* unused, whatever it says */
        return NB_OK;
    rc = get_size(r, size, (int64_t)1 << 53, a->window_size, &c->sliding_window);
    if (rc == NB_OK && a->window == NB_WINDOW_UPPER && !types) {
        if (nb_json_int(nb_json_get(r->in, "max_window_layers"), -1) != 0) /* 0 is a fine value here */
            rc = get_size(r, upper, (int64_t)1 << 31, 28, &first);
    }
    return rc != NB_OK ? rc : mark_layers(r, c, types, first);
}

/* ---- rope: section 8.2 ---------------------------------------------------------------------------------------- */

static nb_status get_factors(const reader *r, nb_config *c, const nb_json *R, const char *key, const double **out)
{
    const nb_json *v = nb_json_get(R, key);
    const size_t half = nb_rope_dims(c) / 2;
    double *f;

    if (nb_json_typeof(v) != NB_JARR || nb_json_len(v) != half)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected %zu (half the rotary size)", key,
                       nb_json_len(v), half);
    f = nb_arena_calloc(c->mem, half, sizeof *f);
    if (!f)
        return nb_enomem(r->err, "rope factors");
    for (size_t i = 0; i < half; i++) {
        f[i] = nb_json_num(nb_json_at(v, i), NAN);
        if (!(f[i] > 0 && f[i] < INFINITY))
            return bad_value(r, key, nb_json_at(v, i), "positive numbers");
    }
    *out = f;
    return NB_OK;
}

static nb_status get_rope_kind(const reader *r, const nb_json *R, nb_rope *out)
{
    static const struct {
        const char *name;
        nb_rope_kind kind;
    } kinds[] = { { "default", NB_ROPE_DEFAULT }, { "linear", NB_ROPE_LINEAR }, { "dynamic", NB_ROPE_DYNAMIC },
                  { "llama3", NB_ROPE_LLAMA3 },   { "yarn", NB_ROPE_YARN },     { "longrope", NB_ROPE_LONGROPE },
                  { "su", NB_ROPE_LONGROPE },     { "mrope", NB_ROPE_DEFAULT } };
    const nb_json *type = nb_json_get(R, "rope_type");

    if (!type || nb_json_is_null(type))
        type = nb_json_get(R, "type");
    if (!type || nb_json_is_null(type))
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        if (strcmp(nb_json_str(type, ""), kinds[i].name) == 0) {
            out->kind = kinds[i].kind;
            return NB_OK;
        }
    }
    return unsupported(r, "rope_type", type, "default, linear, dynamic, llama3, yarn, longrope");
}

/* Scaling keys of R; theta, partial and orig_context are known. */
static nb_status get_rope_scaling(const reader *r, nb_config *c, const nb_json *R)
{
    nb_rope *p = &c->rope;
    const bool need = p->kind != NB_ROPE_DEFAULT && p->kind != NB_ROPE_LONGROPE;
    nb_status rc;

    p->factor = (double)c->context / (double)p->orig_context;
    p->attention_factor = NAN;
    if ((rc = get_num(r, R, "factor", 0, 1e30, false, &p->factor)) != NB_OK ||
        (rc = get_num(r, R, "low_freq_factor", 0, 1e30, false, &p->low_freq_factor)) != NB_OK ||
        (rc = get_num(r, R, "high_freq_factor", 0, 1e30, false, &p->high_freq_factor)) != NB_OK ||
        (rc = get_num(r, R, "beta_fast", 0, 1e30, false, &p->beta_fast)) != NB_OK ||
        (rc = get_num(r, R, "beta_slow", 0, 1e30, false, &p->beta_slow)) != NB_OK ||
        (rc = get_num(r, R, "attention_factor", 0, 1e30, false, &p->attention_factor)) != NB_OK ||
        (rc = get_num(r, R, "mscale", 0, 1e30, true, &p->mscale)) != NB_OK ||
        (rc = get_num(r, R, "mscale_all_dim", 0, 1e30, true, &p->mscale_all_dim)) != NB_OK ||
        (rc = get_bool(r, "truncate", nb_json_get(R, "truncate"), &p->truncate)) != NB_OK)
        return rc;
    p->has_attention_factor = !isnan(p->attention_factor);
    if (need && p->kind != NB_ROPE_YARN && nb_json_is_null(nb_json_get(R, "factor")))
        return bad_value(r, "factor", nb_json_get(R, "factor"), "a number above 0 for this rope type");
    if (p->kind == NB_ROPE_LLAMA3 && !(p->high_freq_factor > p->low_freq_factor))
        return bad_value(r, "high_freq_factor", nb_json_get(R, "high_freq_factor"), "more than low_freq_factor");
    if (p->kind == NB_ROPE_LONGROPE) {
        rc = get_factors(r, c, R, "long_factor", &p->long_factor);
        if (rc == NB_OK)
            rc = get_factors(r, c, R, "short_factor", &p->short_factor);
    }
    return rc;
}

static nb_status get_rope(const reader *r, nb_config *c)
{
    static const char *const orig[] = { "original_max_position_embeddings", NULL };
    nb_rope *p = &c->rope;
    const nb_json *R = nb_json_get(r->in, "rope_scaling");
    nb_status rc;
    size_t n;

    if (nb_json_len(R) == 0)
        R = nb_json_get(r->in, "rope_parameters");
    if (nb_json_get(R, "full_attention") || nb_json_get(R, "sliding_attention"))
        return unsupported(r, "rope_parameters", R, "one record for all layers of this architecture");
    if (R && !nb_json_is_null(R) && nb_json_typeof(R) != NB_JOBJ)
        return bad_value(r, "rope_scaling", R, "an object or null");
    *p = (nb_rope){ .theta = c->arch->theta,
                    .partial = 1,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = true };
    if ((rc = get_rope_kind(r, R, p)) != NB_OK || (rc = get_num(r, r->in, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK ||
        (rc = get_num(r, R, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK ||
        (rc = get_num(r, r->in, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK ||
        (rc = get_num(r, R, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK)
        return rc;
    n = nb_rope_dims(c);
    if (n < 2 || n % 2 != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "the rotary size is %zu (head_dim %zu times %g), expected an even number", n,
                       c->head_dim, p->partial);
    rc = get_size(&(reader){ R, R, r->err }, orig, (int64_t)1 << 53, c->context, &n);
    if (rc == NB_OK) /* the outer key wins */
        rc = get_size(r, orig, (int64_t)1 << 53, n, &n);
    if (rc != NB_OK)
        return rc;
    p->orig_context = n;
    return get_rope_scaling(r, c, R);
}

/* ---- token ids ------------------------------------------------------------------------------------------------ */

static nb_status token_id(const reader *r, const nb_config *c, const char *key, const nb_json *v, int64_t *out)
{
    const int64_t id = nb_json_int(v, INT64_MIN);
    char buf[NB_ESC_CAP];

    if (id < -1 || id >= (int64_t)c->vocab) /* -1 means none in some files */
        return nb_fail(r->err, NB_EFORMAT, "cfg.token_id", "", "\"%s\" is %s, expected an id below vocab_size %zu, or null", key,
                       show(buf, v), c->vocab);
    *out = id;
    return NB_OK;
}

static nb_status get_tokens(const reader *r, nb_config *c)
{
    const nb_json *bos = find_outer(r, "bos_token_id"), *pad = find_outer(r, "pad_token_id"), *eos = find_outer(r, "eos_token_id");
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
    const reader r = { nb_json_typeof(text) == NB_JOBJ ? text : root, root, err };
    nb_status rc;

    *out = (nb_config){ .mem = nb_calloc(1, sizeof(nb_arena)) };
    if (!out->mem)
        return nb_enomem(err, "the model configuration");
    if (nb_json_typeof(root) != NB_JOBJ)
        rc = nb_fail(err, NB_EFORMAT, "cfg.value", "", "the configuration is not a JSON object");
    else if ((rc = find_arch(&r, out)) == NB_OK && (rc = get_sizes(&r, out)) == NB_OK && (rc = get_flags(&r, out)) == NB_OK &&
             (rc = get_act(&r, out)) == NB_OK && (rc = get_window(&r, out)) == NB_OK && (rc = get_rope(&r, out)) == NB_OK)
        rc = get_tokens(&r, out);
    if (rc == NB_OK) {
        const nb_json *t = find_outer(&r, "dtype");
        if (!nb_json_str(t, NULL))
            t = find_outer(&r, "torch_dtype");
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
