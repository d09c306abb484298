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

/* A key of true or false with a value when absent. */
static nb_status get_flag(const reader *r, const char *key, bool dflt, bool *out)
{
    *out = dflt;
    return get_bool(r, key, nb_json_get(r->in, key), out);
}

static const nb_names llama_names = { .embed = NULL };

static nb_status find_arch(const reader *r, nb_config *c)
{
    const nb_json *type = nb_json_get(r->in, "model_type");
    const nb_json *cls = nb_json_at(nb_json_get(r->in, "architectures"), 0);
    char known[1024] = "", a[NB_ESC_CAP], b[NB_ESC_CAP];

    if (!cls)
        cls = nb_json_at(nb_json_get(r->outer, "architectures"), 0);
    c->arch = nb_arch_find(nb_json_str(type, NULL), nb_json_str(cls, NULL));
    if (!c->arch) {
        for (size_t i = 0; i < nb_arch_count(); i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", nb_arch_at(i)->type);
        return nb_fail(r->err, NB_EUNSUPPORTED, "cfg.arch", "", "model_type %s with architecture %s is not supported; supported: %s",
                       show(a, type), show(b, cls), known);
    }
    c->names = c->arch->names ? c->arch->names : &llama_names;
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
    bool fixed;
    nb_status rc;

    rc = get_size(r, heads, MAX_COUNT, c->arch->n_heads, &c->n_heads);
    if (rc != NB_OK)
        return rc;
    /* A null means the head count; only a missing key has a class default. */
    dflt = nb_json_get(r->in, "num_key_value_heads") || !c->arch->kv_heads ? c->n_heads : c->arch->kv_heads;
    if (c->qkv == NB_QKV_BY_HEAD && c->n_kv_heads) /* decided by the family */
        dflt = c->n_kv_heads;
    else if ((rc = get_size(r, kv, MAX_COUNT, dflt, &dflt)) != NB_OK)
        return rc;
    c->n_kv_heads = dflt;
    if (c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"num_key_value_heads\" is %zu, expected a divisor of num_attention_heads %zu",
                       c->n_kv_heads, c->n_heads);
    fixed = (c->arch->quirks & NB_Q_HEAD_DIM_FIXED) != 0;
    if ((fixed || !find(r, dim, &key)) && !c->arch->head_dim && c->d_model % c->n_heads != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.head_dim", "",
                       "hidden_size %zu is not a multiple of num_attention_heads %zu and head_dim is absent", c->d_model, c->n_heads);
    c->head_dim = c->arch->head_dim ? c->arch->head_dim : c->d_model / c->n_heads;
    if (!fixed && (rc = get_size(r, dim, MAX_DIM, c->head_dim, &c->head_dim)) != NB_OK)
        return rc;
    c->kv_dim = c->head_dim + (c->alibi ? c->n_heads / c->n_kv_heads : 0);
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
        (rc = get_heads(r, c)) != NB_OK ||
        (rc = get_size(r, ff, MAX_DIM, c->arch->quirks & (NB_Q_GPT2 | NB_Q_FALCON) ? 4 * c->d_model : 0, &c->d_ff)) != NB_OK ||
        (rc = get_size(r, vocab, MAX_DIM, 0, &c->vocab)) != NB_OK)
        return rc;
    return get_size(r, context, (int64_t)1 << 53, 2048, &c->context); /* any size: nothing is allocated from it (CF-13) */
}

static nb_status get_flags(const reader *r, nb_config *c)
{
    const nb_arch *a = c->arch;
    const nb_json *tie = find_outer(r, "tie_word_embeddings");
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
    if ((!(a->quirks & NB_Q_EPS_FIXED) && (rc = get_num(r, r->in, a->eps_key, 0, 1, false, &c->norm_eps)) != NB_OK) ||
        (rc = get_bool(r, "tie_word_embeddings", tie, &c->tie_embeddings)) != NB_OK ||
        (rc = get_flag(r, akey, a->bias_on, &attn)) != NB_OK || (rc = get_flag(r, okey, a->bias_on && okey == akey, &o)) != NB_OK ||
        (rc = get_flag(r, mkey, a->bias_on && strcmp(mkey, akey) == 0, &mlp)) != NB_OK ||
        (rc = get_flag(r, a->qk_key ? a->qk_key : "qk_norm", false, &qk)) != NB_OK)
        return rc;
    c->qk = a->qk_key && !qk ? NB_QK_NONE : a->qk;
    c->attn_bias = a->qkv_bias == NB_BIAS_YES || (a->qkv_bias == NB_BIAS_CONFIG && attn);
    c->o_bias = a->o_bias == NB_BIAS_YES || (a->o_bias == NB_BIAS_CONFIG && o);
    c->mlp_bias = a->mlp_bias == NB_BIAS_YES || (a->mlp_bias == NB_BIAS_CONFIG && mlp);
    return NB_OK;
}

/* ---- what families add ---------------------------------------------------------------------------------------- */

/* The block of Falcon follows from five flags: spec models 5.8. Runs before the heads are read. */
static nb_status get_falcon(const reader *r, nb_config *c)
{
    static const char *const norms[] = { "num_ln_in_parallel_attn", NULL };
    bool newer, multi, parallel;
    size_t n;
    nb_status rc;

    if ((rc = get_flag(r, "new_decoder_architecture", false, &newer)) != NB_OK ||
        (rc = get_flag(r, "multi_query", true, &multi)) != NB_OK || (rc = get_flag(r, "parallel_attn", true, &parallel)) != NB_OK ||
        (rc = get_flag(r, "alibi", false, &c->alibi)) != NB_OK || (rc = get_size(r, norms, 2, newer ? 2 : 1, &n)) != NB_OK)
        return rc;
    if (newer)
        parallel = true;
    c->block = !parallel ? NB_BLOCK_PRE : n == 2 && newer ? NB_BLOCK_PAR2 : NB_BLOCK_PAR1;
    if (c->block == NB_BLOCK_PAR2)
        c->names = &nb_names_falcon2;
    if (!newer) {
        static const char *const heads[] = { "num_attention_heads", "n_head", NULL };
        rc = multi ? NB_OK : get_size(r, heads, MAX_COUNT, 0, &c->n_kv_heads);
        if (multi)
            c->n_kv_heads = 1;
    }
    return rc;
}

/* Before the sizes: what decides the shape of a layer. */
static nb_status get_block(const reader *r, nb_config *c)
{
    const unsigned q = c->arch->quirks;
    bool on = false;
    nb_status rc = NB_OK;

    c->block = c->arch->block;
    c->qkv = c->arch->qkv;
    if (q & (NB_Q_PAR_PAR1 | NB_Q_PAR_PAR2)) {
        rc = get_flag(r, "use_parallel_residual", (q & NB_Q_PAR_PAR2) != 0, &on);
        if (on)
            c->block = q & NB_Q_PAR_PAR1 ? NB_BLOCK_PAR1 : NB_BLOCK_PAR2;
    }
    if (q & NB_Q_FALCON)
        rc = get_falcon(r, c);
    return rc;
}

static nb_status get_opt(const reader *r, nb_config *c)
{
    static const char *const dim[] = { "word_embed_proj_dim", NULL };
    bool before, removed;
    nb_status rc;

    c->pos_offset = 2;
    if ((rc = get_flag(r, "do_layer_norm_before", true, &before)) != NB_OK ||
        (rc = get_flag(r, "_remove_final_layer_norm", false, &removed)) != NB_OK ||
        (rc = get_size(r, dim, MAX_DIM, c->d_model, &c->embed_dim)) != NB_OK)
        return rc;
    if (c->embed_dim > c->d_model)
        return bad_value(r, dim[0], nb_json_get(r->in, dim[0]), "at most hidden_size");
    if (!before)
        c->block = NB_BLOCK_POST_LN;
    c->final_norm = before && !removed;
    return NB_OK;
}

static nb_status get_gpt2(const reader *r, nb_config *c)
{
    bool scaled;
    nb_status rc = get_flag(r, "scale_attn_weights", true, &scaled);

    c->transposed = true;
    if (!scaled)
        c->attn_scale = 1;
    return rc != NB_OK ? rc : get_flag(r, "scale_attn_by_inverse_layer_idx", false, &c->scale_by_layer);
}

/* A cap: `dflt` when the key is absent, none when it is null. */
static nb_status get_cap(const reader *r, const char *key, double dflt, double *out)
{
    const nb_json *v = nb_json_get(r->in, key);

    *out = v ? 0 : dflt;
    return get_num(r, r->in, key, 0, 1e30, false, out);
}

static nb_status get_granite(const reader *r, nb_config *c)
{
    double div = 1;
    nb_status rc;

    c->attn_scale = 1;
    if ((rc = get_num(r, r->in, "embedding_multiplier", 0, 1e30, false, &c->embed_mult)) != NB_OK ||
        (rc = get_num(r, r->in, "residual_multiplier", 0, 1e30, false, &c->res_mult)) != NB_OK ||
        (rc = get_num(r, r->in, "attention_multiplier", 0, 1e30, false, &c->attn_scale)) != NB_OK ||
        (rc = get_num(r, r->in, "logits_scaling", 0, 1e30, false, &div)) != NB_OK)
        return rc;
    c->logit_mult = 1 / div;
    return NB_OK;
}

/* After the sizes: multipliers, caps, positions. */
static nb_status get_family(const reader *r, nb_config *c)
{
    const unsigned q = c->arch->quirks;
    double scalar = 256;
    bool both = false;
    nb_status rc = NB_OK;

    c->embed_mult = q & NB_Q_EMBED_SQRT ? sqrt((double)c->d_model) : 1;
    c->res_mult = 1;
    c->logit_mult = q & NB_Q_LOGIT_SCALE ? 0.0625 : 1;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    c->embed_dim = c->d_model;
    c->final_norm = true;
    c->learned_pos = c->names->positions != NULL;
    if ((q & NB_Q_LOGIT_SCALE && (rc = get_num(r, r->in, "logit_scale", 0, 1e30, false, &c->logit_mult)) != NB_OK) ||
        (q & NB_Q_CLIP_QKV && (rc = get_num(r, r->in, "clip_qkv", 0, 1e30, false, &c->clip_qkv)) != NB_OK) ||
        (q & NB_Q_GRANITE && (rc = get_granite(r, c)) != NB_OK) || (q & NB_Q_GPT2 && (rc = get_gpt2(r, c)) != NB_OK) ||
        (q & NB_Q_OPT && (rc = get_opt(r, c)) != NB_OK) ||
        (q & NB_Q_SCORE_CAP && (rc = get_cap(r, "attn_logit_softcapping", 50, &c->score_cap)) != NB_OK) ||
        (q & (NB_Q_SCORE_CAP | NB_Q_LOGIT_CAP) &&
         (rc = get_cap(r, "final_logit_softcapping", q & NB_Q_SCORE_CAP ? 30 : 0, &c->logit_cap)) != NB_OK))
        return rc;
    if (q & NB_Q_QUERY_SCALAR) {
        rc = get_num(r, r->in, "query_pre_attn_scalar", 0, 1e30, false, &scalar);
        c->attn_scale = 1 / sqrt(scalar);
        if (rc == NB_OK)
            rc = get_flag(r, "use_bidirectional_attention", false, &both);
        if (rc == NB_OK && both)
            rc = unsupported(r, "use_bidirectional_attention", nb_json_get(r->in, "use_bidirectional_attention"), "causal models only");
    }
    return rc;
}

static nb_status get_act(const reader *r, nb_config *c)
{
    static const char *const keys[] = { "hidden_activation", "hidden_act", "activation_function", "activation", NULL };
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
                 { "relu2", NB_ACT_RELU2 } };
    const bool plain = c->arch->mlp == NB_MLP_PLAIN;
    const char *key;
    const nb_json *v = find(r, keys, &key);

    c->act = c->arch->act;
    if (!v)
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(acts) - (plain ? 0 : 2); i++) {
        if (strcmp(nb_json_str(v, ""), acts[i].name) == 0) {
            c->act = acts[i].kind;
            if (c->act == NB_ACT_GELU_ERF && c->arch->quirks & NB_Q_GELU_TANH)
                c->act = NB_ACT_GELU_TANH;
            return NB_OK;
        }
    }
    return unsupported(r, key, v, plain ? "silu, gelu, relu, relu2 and their spellings" : "silu, gelu and their spellings");
}

/* Whether the rule of the table limits layer l. */
static bool by_rule(const nb_config *c, size_t l, size_t n, const char *letters)
{
    switch (c->arch->window) {
    case NB_WINDOW_UPPER:
        return l >= n;
    case NB_WINDOW_EVEN:
        return l % 2 == 0;
    case NB_WINDOW_PATTERN:
        return letters ? letters[l % strlen(letters)] == 'L' : (l + 1) % n != 0;
    case NB_WINDOW_NO_ROPE:
        return nb_rope_layer(c, l) == NB_ROPE_OFF;
    default:
        return c->arch->window == NB_WINDOW_ALL;
    }
}

static nb_status mark_layers(const reader *r, nb_config *c, const nb_json *types, size_t n, const char *letters)
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

/* The number of a rule: first windowed layer, or the period of full ones. */
static nb_status get_window_rule(const reader *r, nb_config *c, const nb_json *types)
{
    static const char *const upper[] = { "max_window_layers", NULL };
    static const char *const pattern[] = { "sliding_window_pattern", "_sliding_window_pattern", NULL };
    const char *letters = nb_json_str(nb_json_get(r->in, pattern[0]), NULL);
    nb_status rc = NB_OK;
    size_t n = 0;

    if (c->arch->window == NB_WINDOW_UPPER && !types) {
        if (nb_json_int(nb_json_get(r->in, "max_window_layers"), -1) != 0) /* 0 is a fine value here */
            rc = get_size(r, upper, (int64_t)1 << 31, 28, &n);
    } else if (c->arch->window == NB_WINDOW_PATTERN && !types) {
        if (!letters)
            rc = get_size(r, pattern, (int64_t)1 << 31, c->arch->pattern, &n);
        else if (!*letters || strspn(letters, "LG") != strlen(letters))
            rc = bad_value(r, pattern[0], nb_json_get(r->in, pattern[0]), "a number or letters L and G");
    }
    return rc != NB_OK ? rc : mark_layers(r, c, types, n, letters);
}

static nb_status get_window(const reader *r, nb_config *c)
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
    if (a->window == NB_WINDOW_UPPER || a->window == NB_WINDOW_NO_ROPE) {
        rc = get_flag(r, "use_sliding_window", false, &use);
        if (rc != NB_OK)
            return rc;
    }
    if (!use || (w ? nb_json_is_null(w) : a->window_size == 0)) /* unused, whatever it says */
        return NB_OK;
    rc = get_size(r, size, (int64_t)1 << 53, a->window_size, &c->sliding_window);
    return rc != NB_OK ? rc : get_window_rule(r, c, types);
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

static nb_status get_rope_kind(const reader *r, const nb_json *R, unsigned quirks, nb_rope *out)
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
            if (out->kind == NB_ROPE_YARN && quirks & NB_Q_YARN_LONG)
                out->kind = NB_ROPE_LONGROPE;
            if (out->kind == NB_ROPE_DYNAMIC && quirks & NB_Q_ROPE_ALPHA && nb_json_num(nb_json_get(R, "alpha"), 0) != 0)
                out->kind = NB_ROPE_ALPHA;
            return NB_OK;
        }
    }
    return unsupported(r, "rope_type", type, "default, linear, dynamic, llama3, yarn, longrope");
}

/* Scaling keys of R; theta, partial and orig_context are known. */
static nb_status get_rope_scaling(const reader *r, nb_config *c, const nb_json *R, nb_rope *p)
{
    const bool need = p->kind != NB_ROPE_DEFAULT && p->kind != NB_ROPE_LONGROPE && p->kind != NB_ROPE_ALPHA;
    nb_status rc;

    p->factor = (double)c->context / (double)p->orig_context;
    p->attention_factor = NAN;
    if ((rc = get_num(r, R, "factor", 0, 1e30, false, &p->factor)) != NB_OK ||
        (rc = get_num(r, R, "low_freq_factor", 0, 1e30, false, &p->low_freq_factor)) != NB_OK ||
        (rc = get_num(r, R, "high_freq_factor", 0, 1e30, false, &p->high_freq_factor)) != NB_OK ||
        (rc = get_num(r, R, "beta_fast", 0, 1e30, false, &p->beta_fast)) != NB_OK ||
        (rc = get_num(r, R, "beta_slow", 0, 1e30, false, &p->beta_slow)) != NB_OK ||
        (rc = get_num(r, R, "attention_factor", 0, 1e30, false, &p->attention_factor)) != NB_OK ||
        (rc = get_num(r, R, "alpha", 0, 1e30, false, &p->alpha)) != NB_OK ||
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

/* One record R into p. theta: when no key says it; the outer keys count only if `outer`. */
static nb_status read_rope(const reader *r, nb_config *c, const nb_json *R, double theta, bool outer, nb_rope *p)
{
    static const char *const orig[] = { "original_max_position_embeddings", NULL };
    nb_status rc;
    size_t n;

    if (R && !nb_json_is_null(R) && nb_json_typeof(R) != NB_JOBJ)
        return bad_value(r, "rope_scaling", R, "an object or null");
    *p = (nb_rope){ .theta = theta,
                    .partial = c->arch->partial > 0 ? c->arch->partial : 1,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = true };
    if ((rc = get_rope_kind(r, R, c->arch->quirks, p)) != NB_OK ||
        (outer && ((rc = get_num(r, r->in, "rotary_emb_base", 0, 1e30, false, &p->theta)) != NB_OK ||
                   (rc = get_num(r, r->in, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK)) ||
        (rc = get_num(r, R, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK ||
        (rc = get_num(r, r->in, "rotary_pct", 0, 1, false, &p->partial)) != NB_OK ||
        (rc = get_num(r, r->in, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK ||
        (rc = get_num(r, R, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK)
        return rc;
    n = (size_t)((double)c->head_dim * p->partial);
    if (n < 2 || n % 2 != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "the rotary size is %zu (head_dim %zu times %g), expected an even number", n,
                       c->head_dim, p->partial);
    rc = get_size(&(reader){ R, R, r->err }, orig, (int64_t)1 << 53, c->context, &n);
    if (rc == NB_OK) /* the outer key wins */
        rc = get_size(r, orig, (int64_t)1 << 53, n, &n);
    if (rc != NB_OK)
        return rc;
    p->orig_context = n;
    return get_rope_scaling(r, c, R, p);
}

/* Windowed layers of LAYERS_LOCAL: their record, or plain rope by the key of Gemma 3 or the theta of the other layers. */
static nb_status get_local(const reader *r, nb_config *c, const nb_json *R, bool by_type)
{
    const double theta = c->arch->local_theta > 0 ? c->arch->local_theta : by_type ? c->arch->theta : c->rope.theta;
    nb_rope *p = &c->rope_local;
    nb_status rc = read_rope(r, c, by_type ? R : NULL, theta, false, p);

    if (rc == NB_OK && !by_type)
        rc = get_num(r, r->in, "rope_local_base_freq", 0, 1e30, false, &p->theta);
    if (rc == NB_OK && (p->kind == NB_ROPE_DYNAMIC || p->kind == NB_ROPE_LONGROPE || p->partial != c->rope.partial))
        rc = unsupported(r, "rope_parameters", R, "dynamic and longrope, and other partial_rotary_factor, for full layers only");
    return rc;
}

static nb_status get_rope(const reader *r, nb_config *c)
{
    const nb_json *R = nb_json_get(r->in, "rope_scaling");
    const nb_json *full, *local;
    bool by_type;
    nb_status rc;

    if (nb_json_len(R) == 0)
        R = nb_json_get(r->in, "rope_parameters");
    full = nb_json_get(R, "full_attention");
    local = nb_json_get(R, "sliding_attention");
    by_type = full || local;
    if (by_type && c->arch->rope != NB_LAYERS_LOCAL)
        return unsupported(r, "rope_parameters", R, "one record for all layers of this architecture");
    if (c->arch->rope == NB_LAYERS_NONE || c->alibi) {
        c->rope = (nb_rope){ .partial = 1, .theta = 1 };
        return NB_OK;
    }
    rc = read_rope(r, c, by_type ? full : R, c->arch->theta, !by_type, &c->rope);
    return rc != NB_OK || c->arch->rope != NB_LAYERS_LOCAL ? rc : get_local(r, c, local, by_type);
}

/* no_rope_layers: 1 where a layer is rotated, name notwithstanding. Read before the windows, which may follow from it. */
static nb_status get_rope_list(const reader *r, nb_config *c, uint8_t *of)
{
    static const char *const every[] = { "no_rope_layer_interval", NULL };
    const nb_json *list = nb_json_get(r->in, "no_rope_layers");
    size_t n;
    nb_status rc = get_size(r, every, (int64_t)1 << 31, 4, &n);

    if (rc != NB_OK)
        return rc;
    if (nb_json_len(list) > 0 && nb_json_len(list) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"no_rope_layers\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(list), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool on = nb_json_len(list) > 0 ? nb_json_int(nb_json_at(list, l), 1) != 0 : (l + 1) % n != 0;
        of[l] = on ? NB_ROPE_MAIN : NB_ROPE_OFF;
    }
    return NB_OK;
}

/* before: only the rule that windows need; else those that need the windows. */
static nb_status get_rope_layers(const reader *r, nb_config *c, bool before)
{
    const nb_rope_rule rule = c->alibi ? NB_LAYERS_NONE : c->arch->rope;
    uint8_t *of;

    if (rule == NB_LAYERS_ALL || (rule == NB_LAYERS_LIST) != before || (rule == NB_LAYERS_WINDOW2 && !c->windowed))
        return NB_OK;
    of = nb_arena_calloc(c->mem, c->n_layers, 1);
    if (!of)
        return nb_enomem(r->err, "the layer kinds");
    c->rope_of = of;
    if (rule == NB_LAYERS_LIST)
        return get_rope_list(r, c, of);
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool w = c->windowed && c->windowed[l];
        of[l] = rule == NB_LAYERS_LOCAL ? (w ? NB_ROPE_LOCAL : NB_ROPE_MAIN) : rule != NB_LAYERS_NONE && w ? NB_ROPE_MAIN : NB_ROPE_OFF;
    }
    return NB_OK;
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
    else if ((rc = find_arch(&r, out)) == NB_OK && (rc = get_block(&r, out)) == NB_OK && (rc = get_sizes(&r, out)) == NB_OK &&
             (rc = get_flags(&r, out)) == NB_OK && (rc = get_act(&r, out)) == NB_OK && (rc = get_family(&r, out)) == NB_OK &&
             (rc = get_rope_layers(&r, out, true)) == NB_OK && (rc = get_window(&r, out)) == NB_OK && (rc = get_rope(&r, out)) == NB_OK &&
             (rc = get_rope_layers(&r, out, false)) == NB_OK)
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
