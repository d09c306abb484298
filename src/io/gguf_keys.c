/* gguf_keys.c - config.json and tokenizer.json as GGUF key-values: the way back of gguf_hf.c.
 *
 * Keys and their types follow llama.cpp's convert_hf_to_gguf.py (gguf 0.19): numbers are UINT32 or FLOAT32, the vocabulary
 * three arrays. */
#include "io/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "io/io_priv.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 }; /* value types */
enum { NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5 };              /* token types */

/* ---- encoding ---- */

static void put_u32(nb_buf *b, uint32_t v)
{
    unsigned char p[4];
    nb_put_le32(p, v);
    nb_buf_put(b, p, sizeof p);
}

static void put_text(nb_buf *b, const char *s, size_t n)
{
    unsigned char p[8];
    nb_put_le64(p, n);
    nb_buf_put(b, p, sizeof p);
    nb_buf_put(b, s, n);
}

/* Key and type; "%s" at its start stands for the architecture. */
static void put_key(nb_gguf_keys *k, const char *key, uint32_t type)
{
    char full[128];

    if (strncmp(key, "%s", 2) == 0)
        snprintf(full, sizeof full, "%s%.100s", k->arch->name, key + 2);
    else
        snprintf(full, sizeof full, "%.127s", key);
    put_text(&k->kv, full, strlen(full));
    put_u32(&k->kv, type);
    k->n++;
}

void nb_gguf_keys_u32(nb_gguf_keys *k, const char *key, uint32_t v)
{
    put_key(k, key, U32);
    put_u32(&k->kv, v);
}

static void key_f32(nb_gguf_keys *k, const char *key, double v)
{
    put_key(k, key, F32);
    put_u32(&k->kv, nb_bits_from_f32((float)v));
}

static void key_bool(nb_gguf_keys *k, const char *key, bool v)
{
    put_key(k, key, BOOL);
    nb_buf_putc(&k->kv, v ? 1 : 0);
}

static void key_text(nb_gguf_keys *k, const char *key, const char *s, size_t n)
{
    put_key(k, key, STRING);
    put_text(&k->kv, s, n);
}

static void key_array(nb_gguf_keys *k, const char *key, uint32_t type, size_t n)
{
    unsigned char p[8];

    put_key(k, key, ARRAY);
    put_u32(&k->kv, type);
    nb_put_le64(p, n);
    nb_buf_put(&k->kv, p, sizeof p);
}

/* ---- config.json ---- */

static nb_status bad(nb_err *err, nb_status code, const char *cls, const char *key, const char *what)
{
    nb_fail(err, code, cls, "", "%s", what);
    nb_err_at(err, "config.json", key);
    return code;
}

static nb_status need_int(const nb_json *c, const char *key, int64_t dflt, int64_t max, int64_t *out, nb_err *err)
{
    const nb_json *v = nb_json_get(c, key);

    *out = nb_json_is_null(v) ? dflt : nb_json_int(v, 0);
    return *out >= 1 && *out <= max ? NB_OK : bad(err, NB_EFORMAT, "cfg.value", key, "a positive integer is needed");
}

/* What a GGUF file of these architectures has no place for. */
static nb_status check_options(const nb_json *c, nb_err *err)
{
    const char *act = nb_json_str(nb_json_get(c, "hidden_act"), "silu");

    if (strcmp(act, "silu") != 0)
        return bad(err, NB_EUNSUPPORTED, "gguf.arch", "hidden_act", "only \"silu\" has a GGUF form here");
    if (nb_json_bool(nb_json_get(c, "mlp_bias"), false))
        return bad(err, NB_EUNSUPPORTED, "gguf.arch", "mlp_bias", "biases of the feed-forward part have no GGUF form here");
    if (nb_json_bool(nb_json_get(c, "use_sliding_window"), false))
        return bad(err, NB_EUNSUPPORTED, "gguf.arch", "use_sliding_window", "a sliding window has no GGUF form here");
    if (nb_json_num(nb_json_get(c, "partial_rotary_factor"), 1.0) != 1.0)
        return bad(err, NB_EUNSUPPORTED, "gguf.arch", "partial_rotary_factor", "a partial rotation has no GGUF form here");
    return NB_OK;
}

/* llama3: one divisor per frequency, stored as the tensor rope_freqs.weight. Formula: transformers modeling_rope_utils.py. */
static nb_status rope_llama3(nb_gguf_keys *k, const nb_json *r, double theta, int64_t head_dim, nb_err *err)
{
    const double factor = nb_json_num(nb_json_get(r, "factor"), 0.0), low = nb_json_num(nb_json_get(r, "low_freq_factor"), 1.0);
    const double high = nb_json_num(nb_json_get(r, "high_freq_factor"), 4.0);
    const double orig = nb_json_num(nb_json_get(r, "original_max_position_embeddings"), 8192.0);

    if (!(factor >= 1.0) || !(high > low) || !(orig > 0.0))
        return bad(err, NB_EFORMAT, "cfg.value", "rope_scaling", "factor, frequency factors or original length are not usable");
    k->n_rope = (size_t)head_dim / 2;
    k->rope = nb_alloc_array(k->n_rope ? k->n_rope : 1, sizeof *k->rope);
    if (!k->rope)
        return nb_enomem(err, "rotary factors");
    for (size_t i = 0; i < k->n_rope; i++) {
        const double wave = 2.0 * 3.14159265358979323846 * pow(theta, 2.0 * (double)i / (double)head_dim);
        const double smooth = (orig / wave - low) / (high - low);
        k->rope[i] = (float)(wave < orig / high ? 1.0 : wave > orig / low ? factor : 1.0 / ((1.0 - smooth) / factor + smooth));
    }
    return NB_OK;
}

static nb_status put_rope(nb_gguf_keys *k, const nb_json *c, int64_t head_dim, nb_err *err)
{
    const nb_json *r = nb_json_get(c, "rope_scaling"), *params = nb_json_get(c, "rope_parameters");
    double theta = nb_json_num(nb_json_get(c, "rope_theta"), 10000.0);
    const char *type;
    int64_t orig;

    if (nb_json_is_null(r))
        r = params;
    theta = nb_json_num(nb_json_get(params, "rope_theta"), theta);
    type = nb_json_str(nb_json_get(r, "rope_type"), nb_json_str(nb_json_get(r, "type"), "default"));
    if (!(theta > 0.0))
        return bad(err, NB_EFORMAT, "cfg.value", "rope_theta", "a positive number is needed");
    key_f32(k, "%s.rope.freq_base", theta);
    nb_gguf_keys_u32(k, "%s.rope.dimension_count", (uint32_t)head_dim);
    if (strcmp(type, "default") == 0)
        return NB_OK;
    if (strcmp(type, "llama3") == 0)
        return rope_llama3(k, r, theta, head_dim, err);
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return bad(err, NB_EUNSUPPORTED, "gguf.rope", "rope_scaling", "only linear, yarn and llama3 scaling have a GGUF form here");
    key_text(k, "%s.rope.scaling.type", type, strlen(type));
    key_f32(k, "%s.rope.scaling.factor", nb_json_num(nb_json_get(r, "factor"), 1.0));
    orig = nb_json_int(nb_json_get(r, "original_max_position_embeddings"), 0);
    if (orig > 0 && orig <= UINT32_MAX)
        nb_gguf_keys_u32(k, "%s.rope.scaling.original_context_length", (uint32_t)orig);
    return NB_OK;
}

static nb_status put_config(nb_gguf_keys *k, const nb_json *c, int64_t *vocab, nb_err *err)
{
    const int64_t big = (int64_t)1 << 24;
    const double eps = nb_json_num(nb_json_get(c, "rms_norm_eps"), 1e-6);
    int64_t layers, hidden, ff, heads, kv, head_dim, context;
    nb_status rc = check_options(c, err);

    if (rc != NB_OK || (rc = need_int(c, "num_hidden_layers", 0, 4096, &layers, err)) != NB_OK ||
        (rc = need_int(c, "hidden_size", 0, big, &hidden, err)) != NB_OK ||
        (rc = need_int(c, "intermediate_size", 0, big, &ff, err)) != NB_OK ||
        (rc = need_int(c, "num_attention_heads", 0, 4096, &heads, err)) != NB_OK ||
        (rc = need_int(c, "num_key_value_heads", heads, 4096, &kv, err)) != NB_OK ||
        (rc = need_int(c, "head_dim", hidden / heads, 65536, &head_dim, err)) != NB_OK ||
        (rc = need_int(c, "max_position_embeddings", 2048, (int64_t)1 << 31, &context, err)) != NB_OK ||
        (rc = need_int(c, "vocab_size", 0, big, vocab, err)) != NB_OK)
        return rc;
    if (!(eps > 0.0 && eps <= 1.0))
        return bad(err, NB_EFORMAT, "cfg.value", "rms_norm_eps", "a number above 0 and at most 1 is needed");
    k->heads[NB_GGUF_ROPE_Q] = heads;
    k->heads[NB_GGUF_ROPE_K] = kv;
    nb_gguf_keys_u32(k, "%s.block_count", (uint32_t)layers);
    nb_gguf_keys_u32(k, "%s.context_length", (uint32_t)context);
    nb_gguf_keys_u32(k, "%s.embedding_length", (uint32_t)hidden);
    nb_gguf_keys_u32(k, "%s.feed_forward_length", (uint32_t)ff);
    nb_gguf_keys_u32(k, "%s.attention.head_count", (uint32_t)heads);
    nb_gguf_keys_u32(k, "%s.attention.head_count_kv", (uint32_t)kv);
    nb_gguf_keys_u32(k, "%s.attention.key_length", (uint32_t)head_dim);
    nb_gguf_keys_u32(k, "%s.attention.value_length", (uint32_t)head_dim);
    key_f32(k, "%s.attention.layer_norm_rms_epsilon", eps);
    nb_gguf_keys_u32(k, "%s.vocab_size", (uint32_t)*vocab);
    return put_rope(k, c, head_dim, err);
}

/* ---- tokenizer ---- */

/* One token of the vocabulary while it is collected. */
typedef struct word {
    const char *text;
    size_t n;
    uint32_t type;
} word;

typedef struct vocab {
    word *w; /* [n] */
    size_t n;
    const nb_json *tokenizer;        /* tokenizer.json                                     */
    const nb_json *config, *options; /* config.json; tokenizer_config.json, or NULL        */
    const nb_json *generation;       /* generation_config.json, or NULL                    */
} vocab;

static nb_status bad_tok(nb_err *err, nb_status code, const char *cls, const char *what)
{
    nb_fail(err, code, cls, "", "%s", what);
    nb_err_at(err, "tokenizer.json", NULL);
    return code;
}

static nb_status place(vocab *v, int64_t id, const char *text, size_t n, uint32_t type, nb_err *err)
{
    if (id < 0 || (uint64_t)id >= v->n)
        return bad_tok(err, NB_EFORMAT, "tok.special_id", "a token has an id outside vocab_size of config.json");
    if (v->w[id].text && (v->w[id].n != n || memcmp(v->w[id].text, text, n) != 0))
        return bad_tok(err, NB_EFORMAT, "tok.duplicate", "two tokens have one id");
    v->w[id] = (word){ text, n, type };
    return NB_OK;
}

static nb_status collect(vocab *v, nb_err *err)
{
    const nb_json *words = nb_json_get(nb_json_get(v->tokenizer, "model"), "vocab");
    const nb_json *added = nb_json_get(v->tokenizer, "added_tokens");
    nb_status rc = NB_OK;

    for (size_t i = 0; i < nb_json_len(words) && rc == NB_OK; i++) {
        const char *key;
        const nb_json *id = nb_json_member(words, i, &key);
        rc = place(v, nb_json_int(id, -1), key, strlen(key), NORMAL, err);
    }
    for (size_t i = 0; i < nb_json_len(added) && rc == NB_OK; i++) {
        const nb_json *a = nb_json_at(added, i), *text = nb_json_get(a, "content");
        if (nb_json_int(nb_json_get(a, "id"), -1) >= (int64_t)v->n)
            continue; /* the model has no row for it, so no text can use it */
        rc = place(v, nb_json_int(nb_json_get(a, "id"), -1), nb_json_str(text, ""), nb_json_str_len(text),
                   nb_json_bool(nb_json_get(a, "special"), false) ? CONTROL : USER, err);
    }
    return rc;
}

static void put_words(nb_gguf_keys *k, const vocab *v)
{
    char pad[32];

    key_array(k, "tokenizer.ggml.tokens", STRING, v->n);
    for (size_t i = 0; i < v->n; i++) {
        if (v->w[i].text) {
            put_text(&k->kv, v->w[i].text, v->w[i].n);
        } else { /* rows of the embedding beyond the vocabulary */
            snprintf(pad, sizeof pad, "[PAD%zu]", i);
            put_text(&k->kv, pad, strlen(pad));
        }
    }
    key_array(k, "tokenizer.ggml.token_type", I32, v->n);
    for (size_t i = 0; i < v->n; i++)
        put_u32(&k->kv, v->w[i].text ? v->w[i].type : UNUSED);
}

/* Merges are "a b", or since tokenizers 0.20 ["a", "b"]; byte-level pieces hold no blank. */
static nb_status put_merges(nb_gguf_keys *k, const vocab *v, nb_err *err)
{
    const nb_json *list = nb_json_get(nb_json_get(v->tokenizer, "model"), "merges");

    key_array(k, "tokenizer.ggml.merges", STRING, nb_json_len(list));
    for (size_t i = 0; i < nb_json_len(list); i++) {
        const nb_json *m = nb_json_at(list, i), *a = nb_json_at(m, 0), *b = nb_json_at(m, 1);
        nb_buf text = { 0 };
        if (nb_json_typeof(m) == NB_JSTR) {
            put_text(&k->kv, nb_json_str(m, ""), nb_json_str_len(m));
            continue;
        }
        if (nb_json_typeof(a) != NB_JSTR || nb_json_typeof(b) != NB_JSTR || nb_json_len(m) != 2)
            return bad_tok(err, NB_EFORMAT, "tok.merges", "a merge is neither a text nor a pair of texts");
        nb_buf_put(&text, nb_json_str(a, ""), nb_json_str_len(a));
        nb_buf_putc(&text, ' ');
        nb_buf_put(&text, nb_json_str(b, ""), nb_json_str_len(b));
        if (!text.failed)
            put_text(&k->kv, text.p, text.n);
        k->kv.failed = k->kv.failed || text.failed;
        nb_buf_clear(&text);
    }
    return NB_OK;
}

/* Id of the token that tokenizer_config.json names under `key`; -1 when it names none. */
static int64_t named_token(const vocab *v, const char *key)
{
    const nb_json *t = nb_json_get(v->options, key), *text = nb_json_get(t, "content");
    const char *s = nb_json_str(text ? text : t, NULL);
    const size_t n = nb_json_str_len(text ? text : t);

    for (size_t i = 0; s && i < v->n; i++) {
        if (v->w[i].text && v->w[i].n == n && memcmp(v->w[i].text, s, n) == 0)
            return (int64_t)i;
    }
    return -1;
}

/* First id under `key` of generation_config.json, else config.json; -1. *second: the next one of a list. */
static int64_t config_id(const vocab *v, const char *key, int64_t *second)
{
    const nb_json *id = nb_json_get(v->generation, key);

    if (nb_json_is_null(id))
        id = nb_json_get(v->config, key);
    *second = nb_json_int(nb_json_at(id, 1), -1);
    return nb_json_int(nb_json_typeof(id) == NB_JARR ? nb_json_at(id, 0) : id, -1);
}

/* Does the template put a special token at its start, or its end? */
static bool template_adds(const vocab *v, bool end)
{
    const nb_json *post = nb_json_get(v->tokenizer, "post_processor"), *list = nb_json_get(post, "processors"), *single;

    for (size_t i = 0; i < nb_json_len(list); i++) {
        if (nb_json_get(nb_json_at(list, i), "single"))
            post = nb_json_at(list, i);
    }
    single = nb_json_get(post, "single");
    return nb_json_len(single) > 1 && nb_json_get(nb_json_at(single, end ? nb_json_len(single) - 1 : 0), "SpecialToken");
}

static void put_specials(nb_gguf_keys *k, const vocab *v)
{
    static const struct {
        const char *text, *id, *key;
    } rows[] = { { "bos_token", "bos_token_id", "tokenizer.ggml.bos_token_id" },
                 { "eos_token", "eos_token_id", "tokenizer.ggml.eos_token_id" },
                 { "unk_token", "unk_token_id", "tokenizer.ggml.unknown_token_id" },
                 { "pad_token", "pad_token_id", "tokenizer.ggml.padding_token_id" } };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        int64_t other, first = config_id(v, rows[i].id, &other), id = first >= 0 ? first : named_token(v, rows[i].text);
        if (id < 0 || (uint64_t)id >= v->n)
            continue;
        nb_gguf_keys_u32(k, rows[i].key, (uint32_t)id);
        if (strcmp(rows[i].text, "eos_token") == 0 && other >= 0 && (uint64_t)other < v->n)
            nb_gguf_keys_u32(k, "tokenizer.ggml.eot_token_id", (uint32_t)other);
    }
    key_bool(k, "tokenizer.ggml.add_bos_token", template_adds(v, false));
    key_bool(k, "tokenizer.ggml.add_eos_token", template_adds(v, true));
}

static nb_status put_tokenizer(nb_gguf_keys *k, vocab *v, nb_hfdir *dir, nb_err *err)
{
    const nb_json *model = nb_json_get(v->tokenizer, "model"), *chat = nb_json_get(v->options, "chat_template");
    const char *jinja;
    char pre[64];
    size_t n;
    nb_status rc;

    if (strcmp(nb_json_str(nb_json_get(model, "type"), ""), "BPE") != 0 || nb_json_bool(nb_json_get(model, "byte_fallback"), false))
        return bad_tok(err, NB_EUNSUPPORTED, "gguf.tokenizer", "only byte-level BPE vocabularies have a GGUF form here");
    if (!nb_gguf_pre_name(v->tokenizer, pre, sizeof pre))
        return bad_tok(err, NB_EUNSUPPORTED, "gguf.tokenizer", "this way of splitting text has no name in GGUF that we know");
    rc = collect(v, err);
    if (rc != NB_OK)
        return rc;
    key_text(k, "tokenizer.ggml.model", "gpt2", 4);
    key_text(k, "tokenizer.ggml.pre", pre, strlen(pre));
    put_words(k, v);
    rc = put_merges(k, v, err);
    if (rc != NB_OK)
        return rc;
    put_specials(k, v);
    rc = nb_hfdir_file(dir, "chat_template.jinja", &jinja, &n, err);
    if (rc == NB_OK && jinja)
        key_text(k, "tokenizer.chat_template", jinja, n);
    else if (rc == NB_OK && nb_json_typeof(chat) == NB_JSTR)
        key_text(k, "tokenizer.chat_template", nb_json_str(chat, ""), nb_json_str_len(chat));
    return rc;
}

static nb_status parse_file(nb_hfdir *dir, const char *name, nb_json **out, nb_err *err)
{
    const char *p;
    size_t n;
    nb_status rc = nb_hfdir_file(dir, name, &p, &n, err);

    *out = NULL;
    if (rc == NB_OK && p && strcmp(name, "tokenizer.json") == 0)
        rc = nb_json_parse(p, n, "tok", 0, out, err);
    else if (rc == NB_OK && p)
        rc = nb_json_parse_config(p, n, strncmp(name, "tok", 3) == 0 ? "tok" : "cfg", out, NULL, err);
    nb_err_at(err, name, NULL);
    return rc;
}

nb_status nb_gguf_keys_read(nb_gguf_keys *k, nb_hfdir *dir, nb_err *err)
{
    const nb_json *config;
    nb_json *tokenizer = NULL, *options = NULL, *generation = NULL;
    int64_t n = 0;
    vocab v = { 0 };
    const char *type;
    char esc[NB_ESC_CAP];
    nb_status rc = nb_hfdir_config(dir, &config, err);

    if (rc != NB_OK)
        return rc;
    type = nb_json_str(nb_json_get(config, "model_type"), "");
    k->arch = nb_gguf_arch_named(type);
    if (!k->arch)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.arch", "", "model type \"%s\" is not written as GGUF; llama, qwen2 and qwen3 are",
                       nb_esc(esc, sizeof esc, type, strlen(type)));
    key_text(k, "general.architecture", k->arch->name, strlen(k->arch->name));
    key_text(k, "general.type", "model", 5);
    rc = put_config(k, config, &n, err);
    if (rc == NB_OK)
        rc = parse_file(dir, "tokenizer.json", &tokenizer, err);
    if (rc == NB_OK)
        rc = parse_file(dir, "tokenizer_config.json", &options, err);
    if (rc == NB_OK)
        rc = parse_file(dir, "generation_config.json", &generation, err);
    if (rc == NB_OK && tokenizer) {
        v = (vocab){ .n = (size_t)n, .tokenizer = tokenizer, .config = config, .options = options, .generation = generation };
        v.w = nb_calloc(v.n, sizeof *v.w);
        rc = v.w ? put_tokenizer(k, &v, dir, err) : nb_enomem(err, "the vocabulary");
    }
    nb_free(v.w);
    nb_json_free(tokenizer);
    nb_json_free(options);
    nb_json_free(generation);
    return rc == NB_OK && k->kv.failed ? nb_enomem(err, "key-values") : rc;
}

void nb_gguf_keys_clear(nb_gguf_keys *k)
{
    nb_buf_clear(&k->kv);
    nb_free(k->rope);
    k->rope = NULL;
}
