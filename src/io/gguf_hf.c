/* gguf_hf.c - what a GGUF file says in its key-values, as the small JSON files of a Hugging Face directory.
 *
 * config.json from the hyper-parameters; tokenizer.json from tokenizer.ggml.* (byte-level BPE, model "gpt2": the regular
 * expression belongs to the name in tokenizer.ggml.pre; SentencePiece, model "llama"); tokenizer_config.json with the chat template;
 * generation_config.json with the special ids. Patterns: spec tokenizers 7; which name means which pattern:
 * llama.cpp src/llama-vocab.cpp. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/spm.h"
#include "io/gguf_meta.h"
#include "io/io.h"
#include "io/io_priv.h"

/* ---- config.json ---- */

/* The llama3 rope scaling is stored only as its effect: one divisor per frequency. Find the parameters that give it. */
static nb_status rope_llama3(nb_store *s, const nb_tensor *t, double theta, nb_json *rope, nb_err *err)
{
    const size_t n = (size_t)(t->rank == 1 ? t->shape[0] : 0);
    const double orig = 8192.0, low = 1.0, high = 4.0;
    float have[1024];
    double factor = 0.0;
    bool same = n > 0 && n <= NB_LEN(have);
    nb_status rc = same ? nb_store_read_f32(s, t, 0, n, have, err) : NB_OK;

    if (rc != NB_OK)
        return rc;
    for (size_t i = 0; same && i < n; i++)
        factor = (double)have[i] > factor ? (double)have[i] : factor;
    for (size_t i = 0; same && i < n; i++) {
        const double wave = 2.0 * 3.14159265358979323846 * pow(theta, (double)i / (double)n);
        const double smooth = (orig / wave - low) / (high - low);
        const double want = wave < orig / high ? 1.0 : wave > orig / low ? factor : 1.0 / ((1.0 - smooth) / factor + smooth);
        same = fabs((double)have[i] - want) <= 1e-3 * want;
    }
    if (!same) {
        nb_fail(err, NB_EUNSUPPORTED, "gguf.rope", "", "these rotary factors are not the llama3 kind over 8192 positions");
        nb_err_at(err, t->file, t->name);
        return NB_EUNSUPPORTED;
    }
    if (!nb_json_set(rope, "rope_type", nb_json_new_str("llama3")) || !nb_json_set(rope, "factor", nb_json_new_real(factor)) ||
        !nb_json_set(rope, "low_freq_factor", nb_json_new_real(low)) || !nb_json_set(rope, "high_freq_factor", nb_json_new_real(high)) ||
        !nb_json_set(rope, "original_max_position_embeddings", nb_json_new_int((int64_t)orig)))
        return nb_enomem(err, "config.json");
    return NB_OK;
}

/* rope_scaling of config.json; *out NULL when there is none. */
static nb_status rope_scaling(nb_store *s, double theta, nb_json **out, nb_err *err)
{
    const nb_tensor *freqs = nb_store_find(s, "rope_freqs.weight");
    const nb_json *type, *factor;
    const char *name;
    int64_t orig = 0;
    nb_json *rope = NULL;
    bool ok;
    nb_status rc = nb_gguf_get(s, "%s.rope.scaling.type", NB_JSTR, false, &type, err);

    *out = NULL;
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "%s.rope.scaling.factor", NB_JREAL, false, &factor, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.rope.scaling.original_context_length", 0, 0, (int64_t)1 << 31, &orig, err);
    if (rc != NB_OK)
        return rc;
    name = nb_json_str(type, "none");
    if (!freqs && strcmp(name, "none") == 0)
        return NB_OK;
    rope = nb_json_new_obj();
    if (!rope)
        return nb_enomem(err, "config.json");
    if (freqs) {
        rc = rope_llama3(s, freqs, theta, rope, err);
    } else if (strcmp(name, "linear") != 0 && strcmp(name, "yarn") != 0) {
        char esc[NB_ESC_CAP];
        rc = nb_fail(err, NB_EUNSUPPORTED, "gguf.rope", "", "rope scaling \"%s\" is not read from GGUF",
                     nb_esc(esc, sizeof esc, name, strlen(name)));
    } else {
        ok = nb_json_set(rope, "rope_type", nb_json_new_str(name)) &&
             nb_json_set(rope, "factor", nb_json_new_real(nb_json_num(factor, 1.0)));
        if (ok && orig > 0)
            ok = nb_json_set(rope, "original_max_position_embeddings", nb_json_new_int(orig));
        rc = ok ? NB_OK : nb_enomem(err, "config.json");
    }
    if (rc == NB_OK)
        *out = rope;
    else
        nb_json_free(rope);
    return rc;
}

static bool set_id(nb_json *o, const char *key, int64_t id)
{
    return id < 0 || nb_json_set(o, key, nb_json_new_int(id));
}

/* Special ids; -1 when absent. Ids past the vocabulary are refused (GG-21). */
typedef struct special_ids {
    int64_t bos, eos, eot, unk, pad;
} special_ids;

static nb_status read_ids(const nb_store *s, special_ids *ids, nb_err *err)
{
    const struct {
        const char *key;
        int64_t *to;
    } rows[] = { { "tokenizer.ggml.bos_token_id", &ids->bos },
                 { "tokenizer.ggml.eos_token_id", &ids->eos },
                 { "tokenizer.ggml.eot_token_id", &ids->eot },
                 { "tokenizer.ggml.unknown_token_id", &ids->unk },
                 { "tokenizer.ggml.padding_token_id", &ids->pad } };
    const int64_t n = (int64_t)nb_json_len(nb_json_get(s->meta, "tokenizer.ggml.tokens"));

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_json *v;
        nb_status rc = nb_gguf_get(s, rows[i].key, NB_JINT, false, &v, err);
        if (rc != NB_OK)
            return rc;
        *rows[i].to = v ? nb_json_int(v, -1) : -1;
        if (v && nb_json_int(v, -1) == 0xFFFFFFFF) /* "none" of some writers */
            *rows[i].to = -1;
        else if (v && n > 0 && (*rows[i].to < 0 || *rows[i].to >= n)) {
            nb_fail(err, NB_EFORMAT, "tok.special_id", "", "id %lld is outside the vocabulary of %lld tokens", (long long)*rows[i].to,
                    (long long)n);
            nb_err_at(err, s->path, rows[i].key);
            return NB_EFORMAT;
        }
    }
    return NB_OK;
}

/* The ids that end a text: one, or a list. */
static nb_json *eos_value(const special_ids *ids)
{
    nb_json *list;

    if (ids->eot < 0 || ids->eot == ids->eos)
        return nb_json_new_int(ids->eos);
    if (ids->eos < 0)
        return nb_json_new_int(ids->eot);
    list = nb_json_new_arr();
    if (list && nb_json_push(list, nb_json_new_int(ids->eos)) && nb_json_push(list, nb_json_new_int(ids->eot)))
        return list;
    nb_json_free(list);
    return NULL;
}

static bool put_special(nb_json *o, const special_ids *ids)
{
    bool ok = set_id(o, "bos_token_id", ids->bos) && set_id(o, "pad_token_id", ids->pad);
    if (ok && (ids->eos >= 0 || ids->eot >= 0))
        ok = nb_json_set(o, "eos_token_id", eos_value(ids));
    return ok;
}

typedef struct sizes {
    int64_t layers, hidden, ff, heads, kv, head_dim, context;
    double eps, theta;
} sizes;

static nb_status read_sizes(const nb_store *s, sizes *z, nb_err *err)
{
    const int64_t big = (int64_t)1 << 24;
    const nb_json *eps, *theta;
    int64_t value_dim, rot, experts;
    nb_status rc = nb_gguf_int(s, "%s.block_count", -1, 1, 4096, &z->layers, err);

    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.embedding_length", -1, 1, big, &z->hidden, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.feed_forward_length", -1, 1, big, &z->ff, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.attention.head_count", -1, 1, 4096, &z->heads, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.attention.head_count_kv", z->heads, 1, 4096, &z->kv, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.context_length", 2048, 1, (int64_t)1 << 31, &z->context, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.attention.key_length", z->hidden / z->heads, 1, 65536, &z->head_dim, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.attention.value_length", z->head_dim, 1, 65536, &value_dim, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.rope.dimension_count", z->head_dim, 1, 65536, &rot, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.expert_count", 0, 0, 4096, &experts, err);
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "%s.attention.layer_norm_rms_epsilon", NB_JREAL, true, &eps, err);
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "%s.rope.freq_base", NB_JREAL, false, &theta, err);
    if (rc != NB_OK)
        return rc;
    z->eps = nb_json_num(eps, 0.0);
    z->theta = nb_json_num(theta, 10000.0);
    if (z->hidden % z->heads != 0 && z->head_dim == z->hidden / z->heads)
        rc = nb_fail(err, NB_EFORMAT, "cfg.head_dim", "",
                     "embedding_length %lld is not a multiple of head_count %lld and key_length is absent", (long long)z->hidden,
                     (long long)z->heads);
    else if (!(z->eps > 0.0 && z->eps <= 1.0) || !(z->theta > 0.0))
        rc = nb_fail(err, NB_EFORMAT, "cfg.value", "", "norm epsilon %g or rope base %g is not usable", z->eps, z->theta);
    else if (experts > 0)
        rc = nb_fail(err, NB_EUNSUPPORTED, "gguf.arch", "", "a mixture of %lld experts is not read from GGUF", (long long)experts);
    else if (value_dim != z->head_dim || rot != z->head_dim)
        rc = nb_fail(err, NB_EUNSUPPORTED, "gguf.arch", "",
                     "heads of %lld with values of %lld and a rotation of %lld are not read from GGUF", (long long)z->head_dim,
                     (long long)value_dim, (long long)rot);
    return rc;
}

nb_status nb_gguf_config(const nb_store *store, nb_json **out, nb_err *err)
{
    nb_store *s = (nb_store *)store; /* reading values needs it; nothing is changed */
    const nb_gguf_arch *arch;
    const nb_tensor *embd = nb_store_find(s, "token_embd.weight");
    special_ids ids;
    sizes z;
    nb_json *o = NULL, *rope = NULL, *cls;
    bool ok;
    nb_status rc = nb_gguf_arch_of(s, &arch, err);

    *out = NULL;
    if (rc == NB_OK)
        rc = read_sizes(s, &z, err);
    if (rc == NB_OK)
        rc = read_ids(s, &ids, err);
    if (rc == NB_OK && (!embd || embd->rank != 2))
        rc = nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "token_embd.weight is missing or not a matrix");
    if (rc == NB_OK)
        rc = rope_scaling(s, z.theta, &rope, err);
    if (rc != NB_OK)
        return rc;
    o = nb_json_new_obj();
    cls = nb_json_new_arr();
    ok = nb_json_set(o, "architectures", cls);
    ok = nb_json_set(o, "rope_scaling", rope ? rope : nb_json_new_null()) && ok;
    ok = ok && nb_json_push(cls, nb_json_new_str(arch->cls)) && nb_json_set(o, "model_type", nb_json_new_str(arch->model_type)) &&
         nb_json_set(o, "vocab_size", nb_json_new_int((int64_t)embd->shape[0])) &&
         nb_json_set(o, "hidden_size", nb_json_new_int(z.hidden)) && nb_json_set(o, "intermediate_size", nb_json_new_int(z.ff)) &&
         nb_json_set(o, "num_hidden_layers", nb_json_new_int(z.layers)) &&
         nb_json_set(o, "num_attention_heads", nb_json_new_int(z.heads)) && nb_json_set(o, "num_key_value_heads", nb_json_new_int(z.kv)) &&
         nb_json_set(o, "head_dim", nb_json_new_int(z.head_dim)) && nb_json_set(o, "max_position_embeddings", nb_json_new_int(z.context)) &&
         nb_json_set(o, "hidden_act", nb_json_new_str("silu")) && nb_json_set(o, "rms_norm_eps", nb_json_new_real(z.eps)) &&
         nb_json_set(o, "rope_theta", nb_json_new_real(z.theta)) && nb_json_set(o, "attention_bias", nb_json_new_bool(false)) &&
         nb_json_set(o, "tie_word_embeddings", nb_json_new_bool(!nb_store_find(s, "output.weight"))) && put_special(o, &ids);
    if (!ok) {
        nb_json_free(o);
        return nb_enomem(err, "config.json");
    }
    *out = o;
    return NB_OK;
}

/* ---- tokenizer.json ---- */

static nb_json *byte_level(bool regex)
{
    nb_json *o = nb_json_new_obj();

    if (o && nb_json_set(o, "type", nb_json_new_str("ByteLevel")) && nb_json_set(o, "add_prefix_space", nb_json_new_bool(false)) &&
        nb_json_set(o, "trim_offsets", nb_json_new_bool(true)) && nb_json_set(o, "use_regex", nb_json_new_bool(regex)))
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_json *pre_tokenizer(const nb_gguf_pre *row)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = nb_json_set(o, "pretokenizers", list); /* parts hang on the tree before they are filled: one free then does */

    ok = ok && nb_json_set(o, "type", nb_json_new_str("Sequence"));
    if (ok && row->digits) {
        nb_json *d = nb_json_new_obj();
        ok = nb_json_push(list, d) && nb_json_set(d, "type", nb_json_new_str("Digits")) &&
             nb_json_set(d, "individual_digits", nb_json_new_bool(true));
    }
    for (size_t i = 0; ok && i < NB_LEN(row->split) && row->split[i]; i++) {
        nb_json *d = nb_json_new_obj(), *re;
        ok = nb_json_push(list, d) && nb_json_set(d, "type", nb_json_new_str("Split"));
        re = ok ? nb_json_new_obj() : NULL;
        ok = ok && nb_json_set(d, "pattern", re) && nb_json_set(re, "Regex", nb_json_new_str(row->split[i])) &&
             nb_json_set(d, "behavior", nb_json_new_str("Isolated")) && nb_json_set(d, "invert", nb_json_new_bool(false));
    }
    if (ok && nb_json_push(list, byte_level(!row->split[0])))
        return o;
    nb_json_free(o);
    return NULL;
}

/* One element of a template: a special token, or the text itself. */
static bool push_piece(nb_json *list, const char *kind, const char *id)
{
    nb_json *o = nb_json_new_obj(), *in;
    bool ok = nb_json_push(list, o);

    in = ok ? nb_json_new_obj() : NULL;
    return ok && nb_json_set(o, kind, in) && nb_json_set(in, "id", nb_json_new_str(id)) && nb_json_set(in, "type_id", nb_json_new_int(0));
}

static bool put_token(nb_json *specials, const char *text, int64_t id)
{
    nb_json *o = nb_json_new_obj(), *list;
    bool ok = nb_json_set(specials, text, o) && nb_json_set(o, "id", nb_json_new_str(text));

    list = ok ? nb_json_new_arr() : NULL;
    ok = ok && nb_json_set(o, "ids", list) && nb_json_push(list, nb_json_new_int(id));
    list = ok ? nb_json_new_arr() : NULL;
    return ok && nb_json_set(o, "tokens", list) && nb_json_push(list, nb_json_new_str(text));
}

/* [BOS] text [EOS] as add_bos_token and add_eos_token say. */
static nb_json *post_processor(const char *bos, int64_t bos_id, const char *eos, int64_t eos_id)
{
    nb_json *o, *list, *pair, *specials;
    bool ok;

    if (!bos && !eos)
        return byte_level(true);
    o = nb_json_new_obj();
    list = nb_json_new_arr();
    pair = nb_json_new_arr();
    specials = nb_json_new_obj();
    ok = nb_json_set(o, "type", nb_json_new_str("TemplateProcessing"));
    ok = nb_json_set(o, "single", list) && ok; /* each is owned by the tree, or freed, before the next line */
    ok = nb_json_set(o, "pair", pair) && ok;
    ok = nb_json_set(o, "special_tokens", specials) && ok;
    if (ok && bos)
        ok = push_piece(list, "SpecialToken", bos) && push_piece(pair, "SpecialToken", bos) && put_token(specials, bos, bos_id);
    ok = ok && push_piece(list, "Sequence", "A") && push_piece(pair, "Sequence", "A") && push_piece(pair, "Sequence", "B");
    if (ok && eos)
        ok = push_piece(list, "SpecialToken", eos) && push_piece(pair, "SpecialToken", eos) && put_token(specials, eos, eos_id);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

/* Everything tokenizer.ggml.* says, checked. */
typedef struct vocab {
    const nb_json *tokens, *types, *merges, *scores, *chat;
    const nb_gguf_pre *pre; /* NULL: SentencePiece */
    special_ids ids;
    bool add_bos, add_eos;
} vocab;

static nb_status check_strings(const nb_json *list, const char *key, nb_err *err)
{
    for (size_t i = 0; i < nb_json_len(list); i++) {
        const nb_json *v = nb_json_at(list, i);
        if (nb_json_typeof(v) != NB_JSTR || strlen(nb_json_str(v, "")) != nb_json_str_len(v)) {
            nb_fail(err, NB_EFORMAT, "gguf.meta_type", "", "element %zu is not a string without NUL", i);
            nb_err_at(err, NULL, key);
            return NB_EFORMAT;
        }
    }
    return NB_OK;
}

/* What byte pairs with merges need more. */
static nb_status read_bpe(const nb_store *s, vocab *v, nb_err *err)
{
    const nb_json *pre;
    const char *name;
    char esc[NB_ESC_CAP];
    nb_status rc = nb_gguf_get(s, "tokenizer.ggml.pre", NB_JSTR, true, &pre, err);

    if (rc == NB_OK)
        rc = nb_gguf_get(s, "tokenizer.ggml.merges", NB_JARR, true, &v->merges, err);
    if (rc != NB_OK)
        return rc;
    name = nb_json_str(pre, "");
    v->pre = nb_gguf_pre_named(name);
    if (!v->pre)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.tokenizer", "", "pre-tokenizer \"%s\" is not known",
                       nb_esc(esc, sizeof esc, name, strlen(name)));
    /* llama.cpp adds BOS for this family unless the file says otherwise */
    v->add_bos = v->pre->bos && strcmp(name, "glm4") != 0;
    return check_strings(v->merges, "tokenizer.ggml.merges", err);
}

/* What a SentencePiece vocabulary needs more, with the ids that llama.cpp takes when the file names none. */
static nb_status read_spm(const nb_store *s, vocab *v, nb_err *err)
{
    const size_t n = nb_json_len(v->tokens);
    nb_status rc = nb_gguf_get(s, "tokenizer.ggml.scores", NB_JARR, true, &v->scores, err);

    if (rc != NB_OK)
        return rc;
    if (nb_json_len(v->scores) != n)
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "%zu tokens, but %zu scores", n, nb_json_len(v->scores));
    for (size_t i = 0; i < n; i++) {
        const nb_json_type t = nb_json_typeof(nb_json_at(v->scores, i));
        if (t != NB_JREAL && t != NB_JINT)
            return nb_fail(err, NB_EFORMAT, "tok.score", "", "the score of token %zu is not a finite number", i);
    }
    if (v->ids.unk < 0 && n > 0)
        v->ids.unk = 0;
    if (v->ids.bos < 0 && n > 1)
        v->ids.bos = 1;
    if (v->ids.eos < 0 && n > 2)
        v->ids.eos = 2;
    v->add_bos = true;
    return NB_OK;
}

static nb_status read_vocab(const nb_store *s, vocab *v, nb_err *err)
{
    const nb_json *model, *flag;
    const char *name;
    char esc[NB_ESC_CAP];
    bool spm;
    nb_status rc = nb_gguf_get(s, "tokenizer.ggml.model", NB_JSTR, true, &model, err);

    if (rc != NB_OK)
        return rc;
    name = nb_json_str(model, "");
    spm = strcmp(name, "llama") == 0;
    if (!spm && strcmp(name, "gpt2") != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.tokenizer", "",
                       "tokenizer model \"%s\" is not read from GGUF; byte-level BPE (\"gpt2\") and SentencePiece (\"llama\") are",
                       nb_esc(esc, sizeof esc, name, strlen(name)));
    rc = nb_gguf_get(s, "tokenizer.ggml.tokens", NB_JARR, true, &v->tokens, err);
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "tokenizer.ggml.token_type", NB_JARR, spm, &v->types, err);
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "tokenizer.chat_template", NB_JSTR, false, &v->chat, err);
    if (rc == NB_OK)
        rc = read_ids(s, &v->ids, err);
    if (rc == NB_OK)
        rc = check_strings(v->tokens, "tokenizer.ggml.tokens", err);
    if (rc != NB_OK)
        return rc;
    if (v->types && nb_json_len(v->types) != nb_json_len(v->tokens))
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "%zu tokens, but %zu token types", nb_json_len(v->tokens), nb_json_len(v->types));
    rc = spm ? read_spm(s, v, err) : read_bpe(s, v, err);
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "tokenizer.ggml.add_bos_token", NB_JBOOL, false, &flag, err);
    if (rc == NB_OK)
        v->add_bos = nb_json_bool(flag, v->add_bos) && v->ids.bos >= 0;
    if (rc == NB_OK)
        rc = nb_gguf_get(s, "tokenizer.ggml.add_eos_token", NB_JBOOL, false, &flag, err);
    if (rc == NB_OK)
        v->add_eos = nb_json_bool(flag, false) && v->ids.eos >= 0;
    return rc;
}

static const char *token(const vocab *v, int64_t id)
{
    return id < 0 ? NULL : nb_json_str(nb_json_at(v->tokens, (size_t)id), NULL);
}

/* Types of tokens: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. */
static bool is_added(const vocab *v, size_t id, bool *special)
{
    const int64_t t = nb_json_int(nb_json_at(v->types, id), 1);

    *special = t == 2 || t == 3;
    return *special || t == 4;
}

/* id below 0: none, where the key says it. */
static nb_json *added_token(const char *text, bool special, int64_t id)
{
    nb_json *o = nb_json_new_obj();
    bool ok = id < 0 || nb_json_set(o, "id", nb_json_new_int(id));

    if (ok && nb_json_set(o, "content", nb_json_new_str(text)) && nb_json_set(o, "single_word", nb_json_new_bool(false)) &&
        nb_json_set(o, "lstrip", nb_json_new_bool(false)) && nb_json_set(o, "rstrip", nb_json_new_bool(false)) &&
        nb_json_set(o, "normalized", nb_json_new_bool(false)) && nb_json_set(o, "special", nb_json_new_bool(special)))
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_status bpe_model(const vocab *v, nb_json *o, nb_err *err)
{
    nb_json *words;
    bool ok = nb_json_set(o, "type", nb_json_new_str("BPE")) && nb_json_set(o, "dropout", nb_json_new_null()) &&
              nb_json_set(o, "unk_token", nb_json_new_null()) && nb_json_set(o, "continuing_subword_prefix", nb_json_new_null()) &&
              nb_json_set(o, "end_of_word_suffix", nb_json_new_null()) && nb_json_set(o, "fuse_unk", nb_json_new_bool(false)) &&
              nb_json_set(o, "byte_fallback", nb_json_new_bool(false)) &&
              nb_json_set(o, "ignore_merges", nb_json_new_bool(v->pre->ignore_merges));

    words = ok ? nb_json_new_obj() : NULL;
    ok = ok && nb_json_set(o, "vocab", words);
    for (size_t i = 0; ok && i < nb_json_len(v->tokens); i++) {
        const char *t = nb_json_str(nb_json_at(v->tokens, i), "");
        if (nb_json_get(words, t)) {
            nb_fail(err, NB_EFORMAT, "tok.duplicate", "", "token %zu is the same text as an earlier one", i);
            nb_err_at(err, NULL, t);
            return NB_EFORMAT;
        }
        ok = nb_json_set(words, t, nb_json_new_int((int64_t)i));
    }
    ok = ok && nb_json_set(o, "merges", nb_json_copy(v->merges));
    return ok ? NB_OK : nb_enomem(err, "tokenizer.json");
}

static nb_status fill_tokenizer(const vocab *v, nb_json *o, nb_err *err)
{
    nb_json *added, *nfc = NULL, *model;
    bool special, ok = nb_json_set(o, "version", nb_json_new_str("1.0")) && nb_json_set(o, "truncation", nb_json_new_null()) &&
                       nb_json_set(o, "padding", nb_json_new_null());

    added = ok ? nb_json_new_arr() : NULL;
    ok = ok && nb_json_set(o, "added_tokens", added);
    for (size_t i = 0; ok && i < nb_json_len(v->tokens); i++) {
        if (is_added(v, i, &special))
            ok = nb_json_push(added, added_token(token(v, (int64_t)i), special, (int64_t)i));
    }
    if (ok && v->pre->nfc) {
        nfc = nb_json_new_obj();
        ok = nb_json_set(o, "normalizer", nfc) && nb_json_set(nfc, "type", nb_json_new_str("NFC"));
    } else if (ok) {
        ok = nb_json_set(o, "normalizer", nb_json_new_null());
    }
    ok = ok && nb_json_set(o, "pre_tokenizer", pre_tokenizer(v->pre)) &&
         nb_json_set(
             o, "post_processor",
             post_processor(v->add_bos ? token(v, v->ids.bos) : NULL, v->ids.bos, v->add_eos ? token(v, v->ids.eos) : NULL, v->ids.eos)) &&
         nb_json_set(o, "decoder", byte_level(true));
    model = ok ? nb_json_new_obj() : NULL;
    if (!ok || !nb_json_set(o, "model", model))
        return nb_enomem(err, "tokenizer.json");
    return bpe_model(v, model, err);
}

/* The text for a SentencePiece vocabulary. */
static nb_status spm_json(const nb_store *s, const vocab *v, nb_buf *out, nb_err *err)
{
    const size_t n = nb_json_len(v->tokens);
    nb_scored *piece = nb_alloc_array(n + 1, sizeof *piece);
    unsigned char *type = nb_alloc(n + 1);
    size_t bytes = 0;
    const nb_json *prefix;
    nb_spm m = { .piece = piece,
                 .type = type,
                 .n = n,
                 .unk = v->ids.unk,
                 .bos = v->ids.bos,
                 .eos = v->ids.eos,
                 .add_bos = v->add_bos,
                 .add_eos = v->add_eos };
    nb_status rc =
        piece && type ? nb_gguf_get(s, "tokenizer.ggml.add_space_prefix", NB_JBOOL, false, &prefix, err) : nb_enomem(err, "tokenizer.json");

    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const nb_json *t = nb_json_at(v->tokens, i);
        const int64_t k = nb_json_int(nb_json_at(v->types, i), NB_SPM_NORMAL);
        piece[i] = (nb_scored){ nb_json_str(t, ""), nb_json_str_len(t), nb_json_num(nb_json_at(v->scores, i), 0) };
        type[i] = (unsigned char)(k >= NB_SPM_NORMAL && k <= NB_SPM_BYTE ? k : NB_SPM_NORMAL);
        bytes += type[i] == NB_SPM_BYTE;
    }
    if (rc == NB_OK) {
        m.dummy_prefix = nb_json_bool(prefix, true);
        m.byte_fallback = bytes > 0;
        rc = nb_spm_json(&m, out, err);
    }
    nb_free(piece);
    nb_free(type);
    return rc;
}

static nb_status tokenizer_json(const nb_store *s, nb_buf *out, nb_err *err)
{
    vocab v = { 0 };
    nb_json *o;
    char *text = NULL;
    nb_status rc = read_vocab(s, &v, err);

    if (rc != NB_OK || !v.pre)
        return rc == NB_OK ? spm_json(s, &v, out, err) : rc;
    o = nb_json_new_obj();
    rc = o ? fill_tokenizer(&v, o, err) : nb_enomem(err, "tokenizer.json");
    if (rc == NB_OK && !(text = nb_json_dump(o, 1, false)))
        rc = nb_enomem(err, "tokenizer.json");
    nb_json_free(o);
    if (rc == NB_OK) /* the block is the buffer's from here on */
        *out = (nb_buf){ .p = text, .n = strlen(text), .cap = strlen(text) + 1 };
    return rc;
}

/* ---- tokenizer_config.json, generation_config.json ---- */

static nb_status tokenizer_config(const nb_store *s, nb_json **out, nb_err *err)
{
    vocab v = { 0 };
    int64_t context;
    nb_json *o, *decoder;
    bool ok, special;
    nb_status rc = read_vocab(s, &v, err);

    *out = NULL;
    if (rc == NB_OK)
        rc = nb_gguf_int(s, "%s.context_length", 0, 0, (int64_t)1 << 31, &context, err);
    if (rc != NB_OK)
        return rc;
    o = nb_json_new_obj();
    ok = nb_json_set(o, "add_bos_token", nb_json_new_bool(v.add_bos)) && nb_json_set(o, "add_eos_token", nb_json_new_bool(v.add_eos));
    decoder = ok ? nb_json_new_obj() : NULL;
    ok = ok && nb_json_set(o, "added_tokens_decoder", decoder);
    for (size_t i = 0; ok && i < nb_json_len(v.tokens); i++) {
        char id[24];
        if (!is_added(&v, i, &special))
            continue;
        snprintf(id, sizeof id, "%zu", i);
        ok = nb_json_set(decoder, id, added_token(token(&v, (int64_t)i), special, -1));
    }
    if (ok && v.ids.bos >= 0)
        ok = nb_json_set(o, "bos_token", nb_json_new_str(token(&v, v.ids.bos)));
    if (ok && v.ids.eos >= 0)
        ok = nb_json_set(o, "eos_token", nb_json_new_str(token(&v, v.ids.eos)));
    if (ok && v.ids.unk >= 0)
        ok = nb_json_set(o, "unk_token", nb_json_new_str(token(&v, v.ids.unk)));
    if (ok && v.ids.pad >= 0)
        ok = nb_json_set(o, "pad_token", nb_json_new_str(token(&v, v.ids.pad)));
    if (ok && v.chat)
        ok = nb_json_set(o, "chat_template", nb_json_copy(v.chat));
    ok = ok && nb_json_set(o, "clean_up_tokenization_spaces", nb_json_new_bool(false));
    if (ok && context > 0)
        ok = nb_json_set(o, "model_max_length", nb_json_new_int(context));
    ok = ok && nb_json_set(o, "tokenizer_class", nb_json_new_str("PreTrainedTokenizerFast"));
    if (!ok) {
        nb_json_free(o);
        return nb_enomem(err, "tokenizer_config.json");
    }
    *out = o;
    return NB_OK;
}

static nb_status generation_config(const nb_store *s, nb_json **out, nb_err *err)
{
    special_ids ids;
    nb_status rc = read_ids(s, &ids, err);

    *out = NULL;
    if (rc != NB_OK)
        return rc;
    *out = nb_json_new_obj();
    if (*out && nb_json_set(*out, "_from_model_config", nb_json_new_bool(true)) && put_special(*out, &ids))
        return NB_OK;
    nb_json_free(*out);
    *out = NULL;
    return nb_enomem(err, "generation_config.json");
}

nb_status nb_gguf_text(const nb_store *s, const char *name, char **out, size_t *n, nb_err *err)
{
    static const struct {
        const char *name;
        nb_status (*make)(const nb_store *s, nb_json **out, nb_err *err);
        int indent;
    } rows[] = { { "config.json", nb_gguf_config, 2 },
                 { "tokenizer_config.json", tokenizer_config, 2 },
                 { "generation_config.json", generation_config, 2 } };
    nb_json *v = NULL;
    nb_buf b = { 0 };
    nb_status rc = NB_OK;

    *out = NULL;
    *n = 0;
    /* a vocabulary is a part of its own: a file without one still has weights */
    if (strncmp(name, "tokenizer", 9) == 0 && !nb_json_get(s->meta, "tokenizer.ggml.model"))
        return NB_OK;
    if (strcmp(name, "tokenizer.json") == 0) {
        rc = tokenizer_json(s, &b, err);
        if (rc == NB_OK) {
            *out = b.p;
            *n = b.n;
        } else {
            nb_buf_clear(&b);
        }
        return rc;
    }
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        if (strcmp(name, rows[i].name) != 0)
            continue;
        rc = rows[i].make(s, &v, err);
        if (rc == NB_OK) {
            *out = nb_json_dump(v, rows[i].indent, false);
            if (*out)
                *n = strlen(*out);
            else
                rc = nb_enomem(err, name);
        }
        nb_json_free(v);
        return rc;
    }
    return NB_OK;
}
