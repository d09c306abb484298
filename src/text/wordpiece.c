/* wordpiece.c - the model kinds "WordPiece" and "WordLevel" of tokenizer.json. Source: spec tokenizers 8.3. */
#include <string.h>

#include "base/mem.h"
#include "text/tokmodel.h"
#include "text/trie.h"
#include "text/utf8.h"

typedef struct words {
    nb_tokmodel base;
    nb_trie trie;  /* WordPiece */
    uint32_t rest; /* its node behind the prefix of all parts but the first; 0: no piece begins so */
    bool has_rest; /* there is a prefix */
    size_t most;   /* characters of a word, longer ones are unknown */
    int32_t unk;   /* -1: unk_token is not in the vocabulary */
    char *unk_token;
} words;

static void words_close(nb_tokmodel *base)
{
    words *m = (words *)base;

    nb_vocab_clear(&m->base.vocab);
    nb_trie_clear(&m->trie);
    nb_free(m->unk_token);
    nb_free(m);
}

static nb_status push_unknown(const words *m, nb_ids *out, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (m->unk < 0)
        return nb_fail(err, NB_EFORMAT, "tok.unk", "", "the text has an unknown word and unk_token \"%s\" is not in the vocabulary",
                       nb_esc(esc, sizeof esc, m->unk_token, strlen(m->unk_token)));
    return nb_ids_push(out, m->unk, err);
}

static nb_status open_words(const nb_json *spec, const nb_tokjson *j, const nb_tokmodel_ops *ops, const char *unk, words **out, nb_err *err)
{
    const nb_json *u = nb_json_get(spec, "unk_token");
    words *m = nb_calloc(1, sizeof *m);
    nb_status rc;

    *out = m;
    if (!m)
        return nb_enomem(err, "the tokenizer model");
    m->base.ops = ops;
    rc = nb_vocab_read(&m->base.vocab, j, err);
    if (rc != NB_OK)
        return rc;
    m->unk_token = nb_strdup(nb_json_str(u, unk));
    if (!m->unk_token)
        return nb_enomem(err, "the tokenizer model");
    m->unk = nb_vocab_find(&m->base.vocab, m->unk_token, strlen(m->unk_token));
    return NB_OK;
}

/* Hand over an opened model, or close what there is of it. */
static nb_status finish(words *m, nb_status rc, nb_tokmodel **out)
{
    *out = rc == NB_OK ? &m->base : NULL;
    if (rc != NB_OK && m)
        words_close(&m->base);
    return rc;
}

static nb_status wordpiece_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err)
{
    const nb_json *p = nb_json_get(spec, "continuing_subword_prefix");
    const char *prefix = nb_json_str(p, "##");
    const size_t n = nb_json_typeof(p) == NB_JSTR ? nb_json_str_len(p) : 2;
    const int64_t most = nb_json_int(nb_json_get(spec, "max_input_chars_per_word"), 100);
    words *m = NULL;
    nb_status rc;

    (void)raw; /* only byte pairs take raw bytes */
    rc = open_words(spec, j, &nb_wordpiece_ops, "[UNK]", &m, err);
    if (rc == NB_OK && most < 0)
        rc = nb_fail(err, NB_EFORMAT, "tok.type", "", "max_input_chars_per_word is %lld, at least 0 is needed", (long long)most);
    if (rc == NB_OK)
        rc = nb_trie_init(&m->trie, &m->base.vocab, err);
    if (rc != NB_OK)
        return finish(m, rc, out);
    m->most = (size_t)most;
    m->has_rest = n > 0;
    for (size_t i = 0; i < n && (i == 0 || m->rest); i++)
        m->rest = nb_trie_step(&m->trie, m->rest, (unsigned char)prefix[i]);
    return finish(m, NB_OK, out);
}

/* Longest piece from s on, below node `at`: its length, 0 when there is none (or the budget of steps is used up). */
static size_t longest(const words *m, uint32_t at, const char *s, size_t n, uint64_t *left, int32_t *id)
{
    size_t best = 0;

    for (size_t i = 0; i<n && * left> 0; i++) {
        --*left;
        at = nb_trie_step(&m->trie, at, (unsigned char)s[i]);
        if (!at)
            break;
        if (m->trie.node[at].entry >= 0) {
            best = i + 1;
            *id = m->base.vocab.entry[m->trie.node[at].entry].id;
        }
    }
    return best;
}

static nb_status wordpiece_encode(const nb_tokmodel *base, nb_tokwork *w, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const words *m = (const words *)base;
    const size_t start = out->n;
    uint64_t left = NB_TRIE_BUDGET(n);
    size_t chars = 0;
    nb_status rc = NB_OK;

    (void)w;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    if (chars > m->most)
        return push_unknown(m, out, err);
    for (size_t at = 0; rc == NB_OK && at < n;) {
        int32_t id = -1;
        const bool none = at > 0 && m->has_rest && !m->rest;
        const size_t k = none ? 0 : longest(m, at > 0 ? m->rest : 0, s + at, n - at, &left, &id);
        if (left == 0)
            return nb_trie_exhausted(err);
        if (k == 0) { /* one part unknown: the word is */
            out->n = start;
            return push_unknown(m, out, err);
        }
        rc = nb_ids_push(out, id, err);
        at += k;
    }
    return rc;
}

static nb_status wordlevel_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err)
{
    words *m = NULL;
    nb_status rc;

    (void)raw;
    rc = open_words(spec, j, &nb_wordlevel_ops, "<unk>", &m, err);
    return finish(m, rc, out);
}

static nb_status wordlevel_encode(const nb_tokmodel *base, nb_tokwork *w, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const words *m = (const words *)base;
    const int32_t id = nb_vocab_find(&m->base.vocab, s, n);

    (void)w;
    return id >= 0 ? nb_ids_push(out, id, err) : push_unknown(m, out, err);
}

const nb_tokmodel_ops nb_wordpiece_ops = {
    .type = "WordPiece",
    .open = wordpiece_open,
    .close = words_close,
    .encode = wordpiece_encode,
};

const nb_tokmodel_ops nb_wordlevel_ops = {
    .type = "WordLevel",
    .open = wordlevel_open,
    .close = words_close,
    .encode = wordlevel_encode,
};
