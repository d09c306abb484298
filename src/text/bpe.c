/* bpe.c - byte pair encoding: reading the model kind "BPE" of tokenizer.json. Source: spec tokenizers 8.1. */
#include "text/bpe.h"

#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

#define MAX_MERGES (8u << 20) /* hardening 4 */
#define MAX_AFFIX  128        /* bytes of a prefix or suffix, put to every character */

/* ---- merges ---- */

static nb_status bad_merge(nb_err *err, size_t i, const char *why)
{
    return nb_fail(err, NB_EFORMAT, "tok.merge", "", "merge %zu: %s", i, why);
}

static bool is_piece(const nb_bpe *m, int32_t id, const char *s, size_t n)
{
    size_t k = 0;
    const char *p = nb_vocab_piece(&m->base.vocab, id, &k);

    return p && k == n && memcmp(p, s, n) == 0;
}

/* Id of what a merge makes: nearly always the token that the merge before made, or the one behind it. */
static int32_t find_made(nb_bpe *m, const char *s, size_t n)
{
    if (is_piece(m, m->made, s, n))
        return m->made;
    m->made = is_piece(m, m->made + 1, s, n) ? m->made + 1 : nb_vocab_find(&m->base.vocab, s, n);
    return m->made;
}

/* Note which characters meet in the merge of a and b, or give up cutting: byte tokens stand for bytes of other characters. */
static void note_meeting(nb_bpe *m, const char *a, size_t n_a, const char *b, size_t n_b)
{
    uint32_t left, right;
    size_t i = n_a;

    if (!m->meet)
        return;
    if (n_a == 0 || n_b == 0 || (n_a == 6 && memcmp(a, "<0x", 3) == 0) || (n_b == 6 && memcmp(b, "<0x", 3) == 0)) {
        nb_free(m->meet);
        m->meet = NULL;
        return;
    }
    do
        i--;
    while (i > 0 && ((unsigned char)a[i] & 0xC0) == 0x80);
    nb_u8_next(a + i, n_a - i, &left, NULL);
    nb_u8_next(b, n_b, &right, NULL);
    i = nb_bpe_meet_bit(left, right);
    m->meet[i / 64] |= (uint64_t)1 << (i & 63);
}

static nb_status add_merge(nb_bpe *m, nb_buf *tmp, size_t i, const char *a, size_t n_a, const char *b, size_t n_b, nb_err *err)
{
    const int32_t ia = nb_vocab_find(&m->base.vocab, a, n_a);
    const int32_t ib = nb_vocab_find(&m->base.vocab, b, n_b);
    const size_t cut = m->n_prefix < n_b ? m->n_prefix : n_b;
    int32_t id;
    nb_bpe_merge *p;

    if (ia < 0 || ib < 0)
        return bad_merge(err, i, ia < 0 ? "its left part is not in the vocabulary" : "its right part is not in the vocabulary");
    tmp->n = 0;
    nb_buf_put(tmp, a, n_a);
    nb_buf_put(tmp, b + cut, n_b - cut);
    if (tmp->failed)
        return nb_enomem(err, "the merges");
    id = find_made(m, tmp->p ? tmp->p : "", tmp->n);
    if (id < 0)
        return bad_merge(err, i, "what it makes is not in the vocabulary");
    p = nb_bpe_pair(m, (uint32_t)ia, (uint32_t)ib);
    p->a = (uint32_t)ia;
    p->b = (uint32_t)ib;
    p->rank = (uint32_t)i; /* of a pair listed twice the later rank counts */
    p->id = id;
    note_meeting(m, a, n_a, b, n_b);
    return NB_OK;
}

/* The table for twice as many pairs. */
static nb_status grow_pairs(nb_bpe *m, nb_err *err)
{
    nb_bpe_merge *old = m->pairs;
    const size_t n_old = m->n_pairs;

    m->n_pairs = n_old ? n_old * 2 : 1024;
    m->pairs = nb_alloc_array(m->n_pairs, sizeof *m->pairs);
    if (!m->pairs) {
        nb_free(old);
        return nb_enomem(err, "the merges");
    }
    memset(m->pairs, 0xFF, m->n_pairs * sizeof *m->pairs);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].rank != UINT32_MAX)
            *nb_bpe_pair(m, old[i].a, old[i].b) = old[i];
    }
    nb_free(old);
    return NB_OK;
}

/* Merge i in text form ("a b"). */
static nb_status read_text_merge(nb_bpe *m, nb_tokreader *r, nb_buf *tmp, size_t i, nb_err *err)
{
    const char *s, *blank;
    size_t n;
    nb_status rc = nb_tokreader_text(r, &s, &n);

    if (rc != NB_OK || (n >= 8 && memcmp(s, "#version", 8) == 0))
        return rc;
    blank = memchr(s, ' ', n);
    if (!blank || memchr(blank + 1, ' ', n - (size_t)(blank + 1 - s)))
        return bad_merge(err, i, "it must have two parts with one space between them");
    return add_merge(m, tmp, i, s, (size_t)(blank - s), blank + 1, n - (size_t)(blank + 1 - s), err);
}

/* Merge i in pair form (["a", "b"]). */
static nb_status read_pair_merge(nb_bpe *m, nb_tokreader *r, nb_buf *left, nb_buf *tmp, size_t i, nb_err *err)
{
    const char *s;
    size_t n;
    nb_status rc = nb_tokreader_take(r, '[');

    if (rc == NB_OK && nb_tokreader_peek(r) != '"')
        return bad_merge(err, i, "it is not a pair of texts");
    if (rc == NB_OK)
        rc = nb_tokreader_text(r, &s, &n);
    if (rc != NB_OK)
        return rc;
    left->n = 0;
    nb_buf_put(left, s, n);
    if (left->failed)
        return nb_enomem(err, "the merges");
    if (nb_tokreader_peek(r) != ',' || nb_tokreader_take(r, ',') != NB_OK || nb_tokreader_peek(r) != '"')
        return bad_merge(err, i, "it is not a pair of texts");
    rc = nb_tokreader_text(r, &s, &n);
    if (rc == NB_OK && nb_tokreader_peek(r) != ']')
        return bad_merge(err, i, "it is not a pair of texts");
    if (rc == NB_OK)
        rc = nb_tokreader_take(r, ']');
    return rc == NB_OK ? add_merge(m, tmp, i, left->p ? left->p : "", left->n, s, n, err) : rc;
}

static nb_status read_list(nb_bpe *m, nb_tokreader *r, nb_err *err)
{
    nb_buf left = { 0 }, tmp = { 0 };
    bool first = true, more = true;
    char form = 0;
    nb_status rc = nb_tokreader_take(r, '[');

    for (size_t i = 0; rc == NB_OK && (rc = nb_tokreader_more(r, ']', &first, &more)) == NB_OK && more; i++) {
        const char c = nb_tokreader_peek(r);
        if (i == MAX_MERGES)
            rc = nb_fail(err, NB_ELIMIT, "limit.merges", "", "more than %u merges", MAX_MERGES);
        else if (c != '"' && c != '[')
            rc = nb_fail(err, NB_EFORMAT, "tok.arrays", "", "\"merges\" must be a list of texts or of pairs, element %zu is neither", i);
        else if (form && c != form)
            rc = bad_merge(err, i, "texts and pairs are mixed");
        else if (3 * i >= 2 * m->n_pairs)
            rc = grow_pairs(m, err);
        form = c;
        if (rc == NB_OK)
            rc = c == '"' ? read_text_merge(m, r, &tmp, i, err) : read_pair_merge(m, r, &left, &tmp, i, err);
    }
    if (rc == NB_OK)
        rc = nb_tokreader_end(r);
    nb_buf_clear(&left);
    nb_buf_clear(&tmp);
    return rc;
}

static nb_status read_merges(nb_bpe *m, const nb_json *spec, const nb_tokjson *j, nb_err *err)
{
    nb_tokreader r;
    nb_status rc;

    m->seed = nb_hash_seed(m);
    rc = grow_pairs(m, err);
    if (rc != NB_OK || nb_json_is_null(nb_json_get(spec, "merges")))
        return rc;
    /* raw pieces are short; an unknown character acts across its borders */
    if (!m->raw && !m->prefix && !m->suffix && !m->ignore_merges && m->all_bytes &&
        !(m->meet = nb_calloc((size_t)1 << (NB_BPE_MEET_BITS - 6), sizeof *m->meet)))
        return nb_enomem(err, "the merges");
    if (!j->merges || j->merges[0] != '[')
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "\"merges\" must be a list of texts or of pairs");
    nb_tokreader_init(&r, j, j->merges, j->n_merges, err);
    rc = read_list(m, &r, err);
    nb_tokreader_clear(&r);
    return rc;
}

/* ---- open ---- */

static void bpe_close(nb_tokmodel *base)
{
    nb_bpe *m = (nb_bpe *)base;

    nb_vocab_clear(&m->base.vocab);
    nb_vocab_clear(&m->words);
    nb_free(m->pairs);
    nb_free(m->meet);
    nb_free(m->prefix);
    nb_free(m->suffix);
    nb_free(m->unk_token);
    nb_free(m);
}

static nb_status read_text(const nb_json *v, char **out, size_t *n, nb_err *err)
{
    *out = NULL;
    *n = nb_json_str_len(v);
    if (*n == 0)
        return NB_OK;
    if (*n > MAX_AFFIX)
        return nb_fail(err, NB_ELIMIT, "limit.token", "", "a subword prefix, suffix or unk_token of %zu bytes, at most %d are read", *n,
                       MAX_AFFIX);
    *out = nb_strndup(nb_json_str(v, ""), *n);
    return *out ? NB_OK : nb_enomem(err, "the tokenizer model");
}

static nb_status read_flags(nb_bpe *m, const nb_json *spec, nb_err *err)
{
    const nb_json *unk = nb_json_get(spec, "unk_token");
    size_t n_unk;
    nb_status rc;

    if (!(nb_json_num(nb_json_get(spec, "dropout"), 0) == 0))
        return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "BPE dropout makes ids random, only null or 0 is supported");
    m->ignore_merges = nb_json_bool(nb_json_get(spec, "ignore_merges"), false);
    m->fuse_unk = nb_json_bool(nb_json_get(spec, "fuse_unk"), false);
    m->byte_fallback = nb_json_bool(nb_json_get(spec, "byte_fallback"), false);
    m->has_unk = nb_json_typeof(unk) == NB_JSTR;
    m->unk = m->has_unk ? nb_vocab_find(&m->base.vocab, nb_json_str(unk, ""), nb_json_str_len(unk)) : -1;
    rc = read_text(nb_json_get(spec, "continuing_subword_prefix"), &m->prefix, &m->n_prefix, err);
    if (rc == NB_OK)
        rc = read_text(nb_json_get(spec, "end_of_word_suffix"), &m->suffix, &m->n_suffix, err);
    if (rc == NB_OK)
        rc = read_text(unk, &m->unk_token, &n_unk, err);
    return rc;
}

static nb_status read_bytes(nb_bpe *m, nb_err *err)
{
    int absent = 0;
    char t[8];

    for (unsigned b = 0; b < 256; b++) {
        if (m->raw) {
            m->byte_id[b] = nb_vocab_find(&m->base.vocab, t, nb_u8_put(t, nb_byte_char((unsigned char)b)));
            continue;
        }
        memcpy(t, "<0x..>", 6);
        t[3] = "0123456789ABCDEF"[b >> 4];
        t[4] = "0123456789ABCDEF"[b & 15];
        m->byte_id[b] = m->byte_fallback ? nb_vocab_find(&m->base.vocab, t, 6) : -1;
        absent += m->byte_id[b] < 0;
    }
    m->all_bytes = m->byte_fallback && absent == 0;
    if (m->byte_fallback && absent > 0 && !m->has_unk)
        return nb_fail(err, NB_EFORMAT, "tok.byte_fallback", "",
                       "byte_fallback is set, %d of the 256 byte tokens are absent and there is no unk_token", absent);
    return NB_OK;
}

/* Whole pieces as bytes, for ignore_merges. */
static nb_status read_words(nb_bpe *m, nb_err *err)
{
    const nb_vocab *v = &m->base.vocab;
    nb_buf tmp = { 0 };
    nb_status rc = nb_vocab_init(&m->words, v->n, err);

    for (size_t i = 0; rc == NB_OK && i < v->n; i++) {
        bool had;
        tmp.n = 0;
        if (nb_standin_bytes(&tmp, v->text + v->entry[i].off, v->entry[i].n) && !tmp.failed)
            rc = nb_vocab_add(&m->words, tmp.p ? tmp.p : "", tmp.n, v->entry[i].id, &had, err);
    }
    if (rc == NB_OK && tmp.failed)
        rc = nb_enomem(err, "the vocabulary");
    nb_buf_clear(&tmp);
    return rc;
}

static nb_status bpe_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err)
{
    nb_bpe *m = nb_calloc(1, sizeof *m);
    nb_status rc;

    *out = NULL;
    if (!m)
        return nb_enomem(err, "the tokenizer model");
    m->base.ops = &nb_bpe_ops;
    m->raw = raw;
    rc = nb_vocab_read(&m->base.vocab, j, err);
    if (rc == NB_OK)
        rc = read_flags(m, spec, err);
    if (rc == NB_OK)
        rc = read_bytes(m, err);
    if (rc == NB_OK)
        rc = read_merges(m, spec, j, err);
    if (rc == NB_OK && raw && m->ignore_merges)
        rc = read_words(m, err);
    if (rc == NB_OK) {
        *out = &m->base;
        m = NULL;
    }
    if (m)
        bpe_close(&m->base);
    return rc;
}

const nb_tokmodel_ops nb_bpe_ops = {
    .type = "BPE",
    .open = bpe_open,
    .close = bpe_close,
    .encode = nb_bpe_encode,
};
