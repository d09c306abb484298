#include "text/toksource.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/spm.h"
#include "text/presplit.h"
#include "text/tokjson.h"
#include "text/tokmodel.h"
#include "text/utf8.h"
#include "text/vocab.h"

#define JSON_DEPTH 128

const char *const nb_tokfile_name[NB_TOK_N] = {
    [NB_TOK_JSON] = "tokenizer.json",
    [NB_TOK_TEKKEN] = "tekken.json",
    [NB_TOK_MODEL] = "tokenizer.model",
    [NB_TOK_VOCAB] = "vocab.json",
    [NB_TOK_MERGES] = "merges.txt",
    [NB_TOK_QWEN] = "qwen.tiktoken",
    [NB_TOK_CONFIG] = "tokenizer_config.json",
    [NB_TOK_SPECIALS] = "special_tokens_map.json",
    [NB_TOK_ADDED] = "added_tokens.json",
};

bool nb_tokfiles_skip(const nb_tokfiles *f, nb_tokfile_id i)
{
    if (i == NB_TOK_MERGES)
        return !f->f[NB_TOK_VOCAB].p;
    if (i == NB_TOK_ADDED)
        return f->f[NB_TOK_JSON].p != NULL;
    for (nb_tokfile_id k = NB_TOK_JSON; i <= NB_TOK_QWEN && k < i; k++) {
        if (f->f[k].p && k != NB_TOK_MERGES && !(k == NB_TOK_VOCAB && !f->f[NB_TOK_MERGES].p))
            return true;
    }
    return false;
}

/* ---- the configuration, with what other files know ---- */

/* Keys that name one special token each. */
static const char *const single[] = { "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token" };
/* Keys that hold several: a list, or an object name -> token. */
static const char *const several[] = { "additional_special_tokens", "extra_special_tokens" };

static const nb_json *content_of(const nb_json *v)
{
    return nb_json_typeof(v) == NB_JOBJ ? nb_json_get(v, "content") : v;
}

const char *nb_tok_named(const nb_json *config, const char *key, size_t *n)
{
    const nb_json *v = content_of(nb_json_get(config, key));

    *n = nb_json_str_len(v);
    return nb_json_typeof(v) == NB_JSTR && *n > 0 ? nb_json_str(v, "") : NULL;
}

bool nb_tok_default(nb_json *config, const char *key, const char *s, size_t n)
{
    return nb_json_get(config, key) || nb_json_set(config, key, nb_json_new_strn(s, n));
}

/* special_tokens_map.json: token keys that the configuration lacks. */
static nb_status add_specials(nb_json *config, const nb_json *map, bool *changed, nb_err *err)
{
    for (size_t i = 0; i < NB_LEN(single) + NB_LEN(several); i++) {
        const char *key = i < NB_LEN(single) ? single[i] : several[i - NB_LEN(single)];
        const nb_json *v = nb_json_get(map, key);
        if (nb_json_is_null(v) || nb_json_get(config, key))
            continue;
        if (!nb_json_set(config, key, nb_json_copy(v)))
            return nb_enomem(err, "tokenizer_config.json");
        *changed = true;
    }
    return NB_OK;
}

static bool is_named(const nb_json *config, const char *s, size_t n)
{
    for (size_t i = 0; i < NB_LEN(single); i++) {
        size_t k;
        const char *t = nb_tok_named(config, single[i], &k);
        if (t && k == n && memcmp(t, s, n) == 0)
            return true;
    }
    for (size_t i = 0; i < NB_LEN(several); i++) {
        const nb_json *list = nb_json_get(config, several[i]);
        for (size_t e = 0; e < nb_json_len(list); e++) {
            const char *key;
            const nb_json *t = content_of(nb_json_typeof(list) == NB_JARR ? nb_json_at(list, e) : nb_json_member(list, e, &key));
            if (nb_json_str_len(t) == n && memcmp(nb_json_str(t, ""), s, n) == 0)
                return true;
        }
    }
    return false;
}

/* added_tokens.json (content -> id): into added_tokens_decoder, unless there is one. */
static nb_status add_added(nb_json *config, const nb_json *added, bool *changed, nb_err *err)
{
    nb_json *d;

    if (nb_json_len(added) == 0 || nb_json_get(config, "added_tokens_decoder"))
        return NB_OK;
    d = nb_json_new_obj();
    if (!nb_json_set(config, "added_tokens_decoder", d))
        return nb_enomem(err, "tokenizer_config.json");
    *changed = true;
    for (size_t i = 0; i < nb_json_len(added); i++) {
        const char *s;
        const nb_json *id = nb_json_member(added, i, &s);
        nb_json *e = nb_json_new_obj();
        char key[24], esc[NB_ESC_CAP];
        if (nb_json_typeof(id) != NB_JINT || nb_json_int(id, -1) < 0 || nb_json_int(id, -1) >= NB_VOCAB_MAX) {
            nb_json_free(e);
            return nb_fail(err, NB_EFORMAT, "tok.id", "", "added token \"%s\" has no id from 0 below %u",
                           nb_esc(esc, sizeof esc, s, strlen(s)), NB_VOCAB_MAX);
        }
        snprintf(key, sizeof key, "%" PRId64, nb_json_int(id, 0));
        if (nb_json_get(d, key)) {
            nb_json_free(e);
            return nb_fail(err, NB_EFORMAT, "tok.duplicate_id", "", "added token \"%s\" has id %s, which another token has too",
                           nb_esc(esc, sizeof esc, s, strlen(s)), key);
        }
        if (!nb_json_set(d, key, e) || !nb_json_set(e, "content", nb_json_new_str(s)) ||
            !nb_json_set(e, "special", nb_json_new_bool(is_named(config, s, strlen(s)))))
            return nb_enomem(err, "tokenizer_config.json");
    }
    return NB_OK;
}

/* A small JSON file that must be an object; *out NULL when it is absent. */
static nb_status parse_file(const nb_tokfiles *f, nb_tokfile_id i, nb_json **out, nb_err *err)
{
    nb_status rc = NB_OK;

    *out = NULL;
    if (f->f[i].p)
        rc = nb_json_parse(f->f[i].p, f->f[i].n, "tok", JSON_DEPTH, out, err);
    if (rc == NB_OK && *out && nb_json_typeof(*out) != NB_JOBJ) {
        nb_json_free(*out);
        *out = NULL;
        rc = nb_fail(err, NB_EFORMAT, "tok.type", "", "the file is not a JSON object");
    }
    nb_err_at(err, nb_tokfile_name[i], NULL);
    return rc;
}

/* The configuration as a tree, completed; never NULL on success. *changed: it says more than the file. */
static nb_status read_config(const nb_tokfiles *f, nb_json **out, bool *changed, nb_err *err)
{
    nb_json *map = NULL, *added = NULL;
    nb_status rc = parse_file(f, NB_TOK_CONFIG, out, err);

    if (rc == NB_OK && !*out && !(*out = nb_json_new_obj()))
        rc = nb_enomem(err, "tokenizer_config.json");
    if (rc == NB_OK)
        rc = parse_file(f, NB_TOK_SPECIALS, &map, err);
    if (rc == NB_OK)
        rc = parse_file(f, NB_TOK_ADDED, &added, err);
    if (rc == NB_OK)
        rc = add_specials(*out, map, changed, err);
    if (rc == NB_OK && !f->f[NB_TOK_JSON].p)
        rc = add_added(*out, added, changed, err);
    nb_json_free(map);
    nb_json_free(added);
    return rc;
}

/* ---- added tokens of a vocabulary that has none of its own ---- */

typedef struct keyed {
    long id;
    const nb_json *e;
} keyed;

static int by_id(const void *x, const void *y)
{
    const keyed *p = x, *q = y;

    return p->id < q->id ? -1 : p->id > q->id;
}

static nb_status put_object(const nb_json *e, int64_t id, bool special, nb_buf *out, nb_err *err)
{
    nb_json *copy = nb_json_copy(e);
    char *text = NULL;
    bool ok = copy != NULL;

    if (ok && id >= 0)
        ok = nb_json_set(copy, "id", nb_json_new_int(id));
    if (ok && special)
        ok = nb_json_set(copy, "special", nb_json_new_bool(true));
    if (ok)
        text = nb_json_dump(copy, 0, true);
    if (text) {
        nb_buf_putc(out, ',');
        nb_buf_puts(out, text);
    }
    nb_json_free(copy);
    nb_free(text);
    return text ? NB_OK : nb_enomem(err, "the added tokens");
}

static nb_status put_decoder(const nb_json *d, nb_buf *out, nb_err *err)
{
    const size_t n = nb_json_len(d);
    keyed *k = nb_alloc_array(n + 1, sizeof *k);
    nb_status rc = k ? NB_OK : nb_enomem(err, "the added tokens");

    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const char *key;
        k[i].e = nb_json_member(d, i, &key);
        k[i].id = 0;
        for (const char *c = key; *c && rc == NB_OK; c++) { /* digits only (hardening TK-11) */
            if (*c < '0' || *c > '9' || c - key > 8)
                rc = nb_fail(err, NB_EFORMAT, "tok.id", "", "added_tokens_decoder has a key that is no token id");
            else
                k[i].id = k[i].id * 10 + (*c - '0');
        }
    }
    if (rc == NB_OK && n > 1)
        qsort(k, n, sizeof *k, by_id);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        if (nb_json_str_len(nb_json_get(k[i].e, "content")) > 0)
            rc = put_object(k[i].e, k[i].id, false, out, err);
    }
    nb_free(k);
    return rc;
}

/* Where the elements go, and which ones are there already. */
typedef struct list {
    bool (*known)(const void *ctx, const char *s, size_t n);
    const void *ctx;
    nb_buf *out;
} list;

static nb_status put_named(const list *l, const nb_json *v, nb_err *err)
{
    const nb_json *s = content_of(v);

    if (nb_json_typeof(s) != NB_JSTR || nb_json_str_len(s) == 0 || (l->known && l->known(l->ctx, nb_json_str(s, ""), nb_json_str_len(s))))
        return NB_OK;
    if (nb_json_typeof(v) == NB_JOBJ)
        return put_object(v, -1, true, l->out, err);
    nb_buf_putc(l->out, ',');
    nb_tok_put_added(l->out, nb_json_str(s, ""), nb_json_str_len(s), -1, true);
    return NB_OK;
}

/* A token twice in the list does no harm: the first counts. */
nb_status nb_tok_put_configured(const nb_json *config, bool (*known)(const void *ctx, const char *s, size_t n), const void *ctx,
                                nb_buf *out, nb_err *err)
{
    const list l = { known, ctx, out };
    nb_status rc = put_decoder(nb_json_get(config, "added_tokens_decoder"), out, err);

    for (size_t i = 0; rc == NB_OK && i < NB_LEN(single); i++)
        rc = put_named(&l, nb_json_get(config, single[i]), err);
    for (size_t i = 0; rc == NB_OK && i < NB_LEN(several); i++) {
        const nb_json *some = nb_json_get(config, several[i]);
        for (size_t e = 0; rc == NB_OK && e < nb_json_len(some); e++) {
            const char *key;
            rc = put_named(&l, nb_json_typeof(some) == NB_JARR ? nb_json_at(some, e) : nb_json_member(some, e, &key), err);
        }
    }
    return rc == NB_OK && out->failed ? nb_enomem(err, "the added tokens") : rc;
}

/* ---- vocab.json and merges.txt ---- */

/* Classes by how they cut text. No class: as GPT-2, whose files these were first. */
static nb_status find_class(const nb_json *config, bool *qwen, nb_err *err)
{
    static const char *const known[] = { "GPT2", "CodeGen",    "Roberta", "Longformer", "Bart",
                                         "LED",  "Blenderbot", "OPT",     "GPTNeoX",    "PreTrained" };
    const char *cls = nb_json_str(nb_json_get(config, "tokenizer_class"), "");
    char esc[NB_ESC_CAP];

    *qwen = strncmp(cls, "Qwen2", 5) == 0;
    if (*qwen || !cls[0])
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(known); i++) {
        if (strncmp(cls, known[i], strlen(known[i])) == 0)
            return NB_OK;
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "",
                   "vocab.json and merges.txt of tokenizer class \"%s\" are not read; tokenizer.json would be",
                   nb_esc(esc, sizeof esc, cls, strlen(cls)));
}

/* Lines "a b" as a list of pairs. */
static nb_status put_lines(const char *p, size_t n, nb_buf *out, nb_err *err)
{
    const char *end = p + n;
    size_t k = 0;

    nb_buf_putc(out, '[');
    for (size_t line = 1; p < end; line++) {
        const char *s = p, *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end, *blank;
        p = nl ? nl + 1 : end;
        if (stop > s && stop[-1] == '\r')
            stop--;
        if ((stop == s && p == end) || (stop - s >= 8 && memcmp(s, "#version", 8) == 0))
            continue;
        blank = memchr(s, ' ', (size_t)(stop - s));
        if (!blank || blank == s || blank + 1 == stop || memchr(blank + 1, ' ', (size_t)(stop - blank - 1)) ||
            nb_u8_check(s, (size_t)(stop - s)) < (size_t)(stop - s)) {
            nb_fail(err, NB_EFORMAT, "tok.merge", "", "line %zu must have two parts with one space between them", line);
            nb_err_at(err, nb_tokfile_name[NB_TOK_MERGES], NULL);
            return NB_EFORMAT;
        }
        nb_buf_puts(out, k++ ? ",[" : "[");
        nb_json_put_str(out, s, (size_t)(blank - s));
        nb_buf_putc(out, ',');
        nb_json_put_str(out, blank + 1, (size_t)(stop - blank - 1));
        nb_buf_putc(out, ']');
    }
    nb_buf_putc(out, ']');
    return NB_OK;
}

#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":%s}"

nb_status nb_vocab_merges_json(const nb_tokfiles *f, nb_json *config, nb_buf *out, nb_err *err)
{
    const char *words = f->f[NB_TOK_VOCAB].p;
    nb_tokjson j = { .all = words, .vocab = words, .n_vocab = f->f[NB_TOK_VOCAB].n };
    const bool prefix = nb_json_bool(nb_json_get(config, "add_prefix_space"), false);
    nb_vocab v = { 0 };
    nb_buf added = { 0 };
    bool qwen = false;
    size_t n_bos = 0;
    const char *bos = nb_json_bool(nb_json_get(config, "add_bos_token"), false) ? nb_tok_named(config, "bos_token", &n_bos) : NULL;
    nb_status rc;

    for (; j.n_vocab > 0 && memchr(" \t\r\n", *j.vocab, 4); j.n_vocab--)
        j.vocab++;
    if (j.n_vocab == 0)
        j.vocab = NULL;
    rc = nb_vocab_read(&v, &j, err); /* its faults are found here, to name its file */
    nb_err_at(err, nb_tokfile_name[NB_TOK_VOCAB], NULL);
    if (rc == NB_OK)
        rc = find_class(config, &qwen, err);
    if (rc == NB_OK)
        rc = nb_tok_put_configured(config, NULL, NULL, &added, err);
    if (rc != NB_OK)
        goto done;
    nb_buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    nb_buf_puts(out, added.p ? added.p + strspn(added.p, ",") : "");
    nb_buf_puts(out, qwen ? "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                          : "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (qwen) {
        nb_buf_puts(out, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
        nb_json_put_str(out, nb_qwen2_pattern, strlen(nb_qwen2_pattern));
        nb_buf_puts(out, "}},");
    }
    nb_buf_printf(out, BYTES "]},\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":", prefix ? "true" : "false",
                  qwen ? "false" : "true");
    if (bos && nb_vocab_find(&v, bos, n_bos) >= 0)
        nb_tok_put_template(out, bos, n_bos, nb_vocab_find(&v, bos, n_bos), NULL, 0, -1);
    else
        nb_buf_puts(out, "null");
    nb_buf_puts(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                     "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":");
    nb_buf_put(out, words, f->f[NB_TOK_VOCAB].n);
    nb_buf_puts(out, ",\"merges\":");
    rc = put_lines(f->f[NB_TOK_MERGES].p, f->f[NB_TOK_MERGES].n, out, err);
    nb_buf_puts(out, "}}");
    if (rc == NB_OK && out->failed)
        rc = nb_enomem(err, "tokenizer.json");
done:
    nb_vocab_clear(&v);
    nb_buf_clear(&added);
    return rc;
}

/* ---- choosing ---- */

static nb_status missing(nb_err *err)
{
    return nb_fail(
        err, NB_EOPEN, "tok.missing", "FIL-010",
        "there is no tokenizer.json, tokenizer.model, tekken.json, or vocab.json with merges.txt; the model can be inspected and "
        "converted but not chatted with");
}

/* The vocabulary that is there as own_json. A protobuf begins with the byte of its field 1, tiktoken's text with base64. */
static nb_status convert(nb_toksource *s, const nb_tokfiles *f, nb_json *config, nb_err *err)
{
    nb_tokfile_id i = NB_TOK_TEKKEN;
    nb_status rc;

    while (i < NB_TOK_CONFIG && (!f->f[i].p || (i == NB_TOK_VOCAB && !f->f[NB_TOK_MERGES].p) || i == NB_TOK_MERGES))
        i++;
    switch (i) {
    case NB_TOK_TEKKEN:
        rc = nb_tekken_json(f->f[i].p, f->f[i].n, config, &s->own_json, err);
        break;
    case NB_TOK_MODEL:
        if (f->f[i].n > 0 && f->f[i].p[0] == 0x0A)
            rc = nb_spmodel_json(f->f[i].p, f->f[i].n, config, &s->own_json, err);
        else
            rc = nb_tiktoken_json(f->f[i].p, f->f[i].n, false, config, &s->own_json, err);
        break;
    case NB_TOK_QWEN:
        rc = nb_tiktoken_json(f->f[i].p, f->f[i].n, true, config, &s->own_json, err);
        break;
    case NB_TOK_VOCAB:
        return nb_vocab_merges_json(f, config, &s->own_json, err);
    default:
        return missing(err);
    }
    nb_err_at(err, nb_tokfile_name[i], NULL);
    return rc;
}

nb_status nb_toksource_init(nb_toksource *s, const nb_tokfiles *f, nb_err *err)
{
    nb_json *config = NULL;
    bool changed = false;
    nb_status rc;

    s->json = f->f[NB_TOK_JSON].p;
    s->n_json = f->f[NB_TOK_JSON].n;
    s->config = f->f[NB_TOK_CONFIG].p;
    s->n_config = f->f[NB_TOK_CONFIG].n;
    if (s->json && !f->f[NB_TOK_SPECIALS].p)
        return NB_OK;
    rc = read_config(f, &config, &changed, err);
    if (rc == NB_OK && !s->json) {
        rc = convert(s, f, config, err);
        s->json = s->own_json.p;
        s->n_json = s->own_json.n;
        changed = true;
    }
    if (rc == NB_OK && changed) {
        s->own_config = nb_json_dump(config, 0, true);
        if (!s->own_config)
            rc = nb_enomem(err, "tokenizer_config.json");
        s->config = s->own_config;
        s->n_config = s->own_config ? strlen(s->own_config) : 0;
    }
    nb_json_free(config);
    return rc;
}

void nb_toksource_clear(nb_toksource *s)
{
    nb_buf_clear(&s->own_json);
    nb_free(s->own_config);
    memset(s, 0, sizeof *s);
}
