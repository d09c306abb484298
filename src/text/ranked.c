/* ranked.c - vocabularies of ranked byte strings: tiktoken's text (tokenizer.model of Llama 3, qwen.tiktoken) and Mistral's
 * tekken.json. Source: spec tokenizers 13. */
#include <stdio.h>
#include <string.h>

#include "base/merges.h"
#include "base/spm.h"
#include "text/base64.h"
#include "text/presplit.h"
#include "text/toksource.h"
#include "text/utf8.h"
#include "text/vocab.h"

/* Byte strings by rank. */
typedef struct ranks {
    nb_buf bytes;  /* all of them, one behind the other */
    nb_spans span; /* of each rank */
} ranks;

static void ranks_clear(ranks *k)
{
    nb_buf_clear(&k->bytes);
    nb_spans_clear(&k->span);
}

/* Rank k->span.n, in base64. cls: class of the error. */
static nb_status add_rank(ranks *k, const char *s, size_t n, const char *cls, nb_err *err)
{
    const size_t off = k->bytes.n;
    nb_status rc;

    if (n == 0 || !nb_base64(&k->bytes, s, n))
        return k->bytes.failed ? nb_enomem(err, "the vocabulary")
                               : nb_fail(err, NB_EFORMAT, cls, "", "the bytes of rank %zu are not base64", k->span.n);
    rc = nb_spans_push(&k->span, off, k->bytes.n - off, err);
    if (rc == NB_OK && k->bytes.n - off > NB_PIECE_MAX)
        rc = nb_fail(err, NB_ELIMIT, "limit.token", "", "the token of rank %zu has more than %u bytes", k->span.n - 1, NB_PIECE_MAX);
    if (rc == NB_OK && k->span.n > NB_VOCAB_MAX)
        rc = nb_fail(err, NB_ELIMIT, "limit.vocab", "", "more than %u tokens", NB_VOCAB_MAX);
    return rc;
}

/* What the pieces look like in tokenizer.json: stand-in characters. */
static nb_status stand_ins(const ranks *k, nb_buf *text, nb_scored **out, nb_err *err)
{
    const char *bytes = k->bytes.p;
    nb_scored *v = nb_alloc_array(k->span.n + 1, sizeof *v);
    size_t at = 0;

    *out = v;
    if (!v)
        return nb_enomem(err, "the vocabulary");
    for (size_t i = 0; i < k->span.n; i++) {
        const size_t off = text->n;
        for (size_t b = 0; b < k->span.v[i].n; b++)
            nb_u8_append(text, nb_byte_char((unsigned char)bytes[k->span.v[i].off + b]));
        v[i] = (nb_scored){ .n = text->n - off };
    }
    if (text->failed)
        return nb_enomem(err, "the vocabulary");
    for (size_t i = 0; i < k->span.n; at += v[i++].n)
        v[i].s = text->p + at; /* the buffer moves no more */
    return NB_OK;
}

typedef struct shape {
    const char *pattern;
    size_t n_pattern;
    bool nfc;
    size_t first_id; /* of rank 0 */
    const char *bos; /* NULL: none is added */
    size_t n_bos;
    int64_t bos_id;
} shape;

static void put_frame(const shape *sh, nb_buf *out)
{
    nb_buf_printf(
        out, "],\"normalizer\":%s,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":",
        sh->nfc ? "{\"type\":\"NFC\"}" : "null");
    nb_json_put_str(out, sh->pattern, sh->n_pattern);
    nb_buf_puts(out,
                "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                "\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":");
    if (sh->bos)
        nb_tok_put_template(out, sh->bos, sh->n_bos, sh->bos_id, NULL, 0, -1);
    else
        nb_buf_puts(out, "null");
    nb_buf_puts(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
                     "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{");
}

/* added: elements of added_tokens; first: members of the vocabulary before rank 0. Each with a comma in front. */
static nb_status put(const ranks *k, const shape *sh, const char *added, const char *first, nb_buf *out, nb_err *err)
{
    nb_buf text = { 0 };
    nb_scored *v = NULL;
    nb_merge *m = NULL;
    size_t n_m = 0;
    nb_status rc = stand_ins(k, &text, &v, err);

    if (rc == NB_OK)
        rc = nb_merges_of(v, k->span.n, false, &m, &n_m, err);
    if (rc == NB_OK) {
        nb_buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
        nb_buf_puts(out, added + strspn(added, ","));
        put_frame(sh, out);
        nb_buf_puts(out, first + strspn(first, ","));
        for (size_t i = 0; i < k->span.n; i++) {
            if (i > 0 || *first)
                nb_buf_putc(out, ',');
            nb_json_put_str(out, v[i].s, v[i].n);
            nb_buf_printf(out, ":%zu", i + sh->first_id);
        }
        nb_buf_puts(out, "},\"merges\":");
        nb_tok_put_merges(out, v, m, n_m);
        nb_buf_puts(out, "}}");
    }
    nb_buf_clear(&text);
    nb_free(v);
    nb_free(m);
    return rc == NB_OK && out->failed ? nb_enomem(err, "tokenizer.json") : rc;
}

/* ---- tiktoken ---- */

/* Lines "base64 rank", ranks from 0 on. */
static nb_status read_lines(ranks *k, const char *p, size_t n, nb_err *err)
{
    const char *end = p + n;
    nb_status rc = NB_OK;

    while (rc == NB_OK && p < end) {
        const char *line = p, *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end, *blank;
        uint64_t rank = 0;
        p = nl ? nl + 1 : end;
        if (stop > line && stop[-1] == '\r')
            stop--;
        if (stop == line)
            continue;
        blank = memchr(line, ' ', (size_t)(stop - line));
        for (const char *d = blank ? blank + 1 : stop; d < stop && rank <= NB_VOCAB_MAX; d++) /* digits only (hardening TK-11) */
            rank = *d >= '0' && *d <= '9' ? rank * 10 + (uint64_t)(*d - '0') : UINT64_MAX;
        if (!blank || blank + 1 == stop || rank != k->span.n)
            return nb_fail(err, NB_EFORMAT, "tok.tiktoken", "", "line %zu of the vocabulary should be base64, a blank and the rank %zu",
                           k->span.n + 1, k->span.n);
        rc = add_rank(k, line, (size_t)(blank - line), "tok.tiktoken", err);
    }
    if (rc == NB_OK && k->span.n == 0)
        rc = nb_fail(err, NB_EFORMAT, "tok.tiktoken", "", "the vocabulary is empty");
    return rc;
}

/* The special tokens of Qwen's first tokenizer, which stand in no file: their ids follow the ranks. */
static void qwen_specials(nb_buf *out, size_t id)
{
    static const char *const names[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    char extra[24];

    for (size_t i = 0; i < NB_LEN(names); i++) {
        nb_buf_putc(out, ',');
        nb_tok_put_added(out, names[i], strlen(names[i]), (int64_t)id++, true);
    }
    for (int i = 0; i < 205; i++) {
        const int n = snprintf(extra, sizeof extra, "<|extra_%d|>", i);
        nb_buf_putc(out, ',');
        nb_tok_put_added(out, extra, (size_t)n, (int64_t)id++, true);
    }
}

/* Id that added_tokens_decoder gives to this content, -1 when it does not. */
static int64_t configured_id(const nb_json *config, const char *s, size_t n)
{
    const nb_json *d = nb_json_get(config, "added_tokens_decoder");

    for (size_t i = 0; s && i < nb_json_len(d); i++) {
        const char *key;
        const nb_json *c = nb_json_get(nb_json_member(d, i, &key), "content");
        int64_t id = 0;
        if (nb_json_str_len(c) != n || memcmp(nb_json_str(c, ""), s, n) != 0)
            continue;
        for (size_t k = 0; key[k] && k < 9; k++)
            id = key[k] >= '0' && key[k] <= '9' ? id * 10 + (key[k] - '0') : id; /* strictness: where the decoder is read */
        return id;
    }
    return -1;
}

nb_status nb_tiktoken_json(const char *p, size_t n, bool qwen, nb_json *config, nb_buf *out, nb_err *err)
{
    shape sh = { .pattern = qwen ? nb_qwen2_pattern : nb_llama3_pattern, .nfc = qwen };
    ranks k = { 0 };
    nb_buf added = { 0 };
    nb_status rc = read_lines(&k, p, n, err);

    sh.n_pattern = strlen(sh.pattern);
    sh.bos = qwen ? NULL : nb_tok_named(config, "bos_token", &sh.n_bos);
    sh.bos_id = configured_id(config, sh.bos, sh.n_bos);
    if (sh.bos_id < 0 || !nb_json_bool(nb_json_get(config, "add_bos_token"), true))
        sh.bos = NULL;
    if (rc == NB_OK && qwen)
        qwen_specials(&added, k.span.n);
    if (rc == NB_OK)
        rc = nb_tok_put_configured(config, NULL, NULL, &added, err);
    if (rc == NB_OK)
        rc = put(&k, &sh, added.p ? added.p : "", "", out, err);
    ranks_clear(&k);
    nb_buf_clear(&added);
    return rc;
}

/* ---- tekken.json ---- */

static nb_status bad_tekken(nb_err *err, const char *what, size_t i)
{
    return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "tekken.json: %s %zu", what, i);
}

/* Names of the special tokens in files that do not list them. */
static const char *const early[] = { "<unk>",
                                     "<s>",
                                     "</s>",
                                     "[INST]",
                                     "[/INST]",
                                     "[AVAILABLE_TOOLS]",
                                     "[/AVAILABLE_TOOLS]",
                                     "[TOOL_RESULTS]",
                                     "[/TOOL_RESULTS]",
                                     "[TOOL_CALLS]",
                                     "[IMG]",
                                     "<pad>",
                                     "[IMG_BREAK]",
                                     "[IMG_END]",
                                     "[PREFIX]",
                                     "[MIDDLE]",
                                     "[SUFFIX]",
                                     "[SYSTEM_PROMPT]",
                                     "[/SYSTEM_PROMPT]",
                                     "[TOOL_CONTENT]" };

/* Id of the special token s[n], -1 when there is none. */
static int64_t tekken_id(const nb_json *list, const char *s, size_t n)
{
    for (size_t i = 0; s && i < nb_json_len(list); i++) {
        const nb_json *t = nb_json_get(nb_json_at(list, i), "token_str");
        if (nb_json_str_len(t) == n && memcmp(nb_json_str(t, ""), s, n) == 0)
            return nb_json_int(nb_json_get(nb_json_at(list, i), "rank"), -1);
    }
    for (size_t i = 0; s && nb_json_len(list) == 0 && i < NB_LEN(early); i++) {
        if (strlen(early[i]) == n && memcmp(early[i], s, n) == 0)
            return (int64_t)i;
    }
    return -1;
}

/* Ids 0 to n - 1; ranks that the file leaves out get the names that the reference gives them. */
static nb_status tekken_specials(const nb_json *list, size_t n, nb_json *config, nb_buf *out, nb_buf *words, nb_err *err)
{
    const nb_json **by_rank = nb_calloc(n + 1, sizeof *by_rank);
    bool ok = by_rank != NULL;

    for (size_t i = 0; ok && i < nb_json_len(list); i++) {
        const nb_json *e = nb_json_at(list, i), *s = nb_json_get(e, "token_str");
        const int64_t rank = nb_json_typeof(nb_json_get(e, "rank")) == NB_JINT ? nb_json_int(nb_json_get(e, "rank"), -1) : -1;
        if (rank < 0 || (uint64_t)rank >= n || by_rank[rank] || nb_json_typeof(s) != NB_JSTR || nb_json_str_len(s) == 0) {
            nb_free(by_rank);
            return bad_tekken(err, "rank or text of special token", i);
        }
        by_rank[rank] = s;
    }
    for (size_t i = 0; ok && i < n; i++) {
        char filler[32];
        const char *s = filler;
        size_t len;
        if (by_rank[i]) {
            s = nb_json_str(by_rank[i], "");
            len = nb_json_str_len(by_rank[i]);
        } else if (nb_json_len(list) == 0 && i < NB_LEN(early)) {
            s = early[i];
            len = strlen(s);
        } else {
            len = (size_t)snprintf(filler, sizeof filler, "<SPECIAL_%zu>", i);
        }
        nb_buf_putc(out, ',');
        nb_tok_put_added(out, s, len, (int64_t)i, true);
        nb_buf_putc(words, ',');
        nb_json_put_str(words, s, len);
        nb_buf_printf(words, ":%zu", i);
        ok = (i != 0 || nb_tok_default(config, "unk_token", s, len)) && (i != 1 || nb_tok_default(config, "bos_token", s, len)) &&
             (i != 2 || nb_tok_default(config, "eos_token", s, len));
    }
    nb_free(by_rank);
    return ok && !out->failed && !words->failed ? NB_OK : nb_enomem(err, "the special tokens");
}

/* The first n entries. */
static nb_status tekken_ranks(ranks *k, const nb_json *list, size_t n, nb_err *err)
{
    nb_status rc = NB_OK;

    if (nb_json_typeof(list) != NB_JARR || nb_json_len(list) < n)
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "tekken.json uses %zu entries of its vocabulary, which has %zu", n,
                       nb_json_len(list));
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const nb_json *e = nb_json_at(list, i), *b = nb_json_get(e, "token_bytes");
        if (nb_json_typeof(b) != NB_JSTR || nb_json_int(nb_json_get(e, "rank"), -1) != (int64_t)i)
            return bad_tekken(err, "rank or bytes of vocabulary entry", i);
        rc = add_rank(k, nb_json_str(b, ""), nb_json_str_len(b), "tok.arrays", err);
    }
    return rc;
}

static nb_status tekken_sizes(const nb_json *c, size_t *specials, size_t *words, nb_err *err)
{
    const int64_t all = nb_json_int(nb_json_get(c, "default_vocab_size"), -1);
    const int64_t n = nb_json_int(nb_json_get(c, "default_num_special_tokens"), 1000);

    if (n < 3 || n > NB_VOCAB_MAX || all <= n || all > NB_VOCAB_MAX)
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "",
                       "tekken.json has %lld tokens, %lld of them special; at least 3 special ones and at most "
                       "%u in all are read",
                       (long long)all, (long long)n, NB_VOCAB_MAX);
    *specials = (size_t)n;
    *words = (size_t)(all - n);
    return NB_OK;
}

nb_status nb_tekken_json(const char *p, size_t n, nb_json *config, nb_buf *out, nb_err *err)
{
    nb_json *doc = NULL;
    const nb_json *c, *pattern;
    ranks k = { 0 };
    nb_buf added = { 0 }, first = { 0 };
    size_t words = 0;
    shape sh = { 0 };
    nb_status rc = nb_json_parse(p, n, "tok", 0, &doc, err);

    c = nb_json_get(doc, "config");
    pattern = nb_json_get(c, "pattern");
    if (rc == NB_OK && nb_json_typeof(pattern) != NB_JSTR)
        rc = nb_fail(err, NB_EFORMAT, "tok.type", "", "tekken.json has no config with a pattern");
    sh.pattern = nb_json_str(pattern, "");
    sh.n_pattern = nb_json_str_len(pattern);
    if (rc == NB_OK)
        rc = tekken_sizes(c, &sh.first_id, &words, err);
    if (rc == NB_OK)
        rc = tekken_ranks(&k, nb_json_get(doc, "vocab"), words, err);
    if (rc == NB_OK)
        rc = tekken_specials(nb_json_get(doc, "special_tokens"), sh.first_id, config, &added, &first, err);
    sh.bos = nb_json_bool(nb_json_get(config, "add_bos_token"), true) ? nb_tok_named(config, "bos_token", &sh.n_bos) : NULL;
    sh.bos_id = tekken_id(nb_json_get(doc, "special_tokens"), sh.bos, sh.n_bos);
    if (sh.bos_id < 0)
        sh.bos = NULL;
    if (rc == NB_OK)
        rc = put(&k, &sh, added.p, first.p, out, err);
    nb_json_free(doc);
    ranks_clear(&k);
    nb_buf_clear(&added);
    nb_buf_clear(&first);
    return rc;
}
