/* unigram.c - the model kind "Unigram" of tokenizer.json: the most probable cut. Source: spec tokenizers 8.2. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokmodel.h"
#include "text/trie.h"
#include "text/utf8.h"

#define UNKNOWN_PENALTY 10.0 /* below the worst score of the vocabulary */

typedef struct unigram {
    nb_tokmodel base;
    nb_trie trie;
    double *score; /* of each id */
    size_t n_score, cap_score;
    double worst;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    int32_t byte_id[256]; /* of <0xHH>; -1: absent */
} unigram;

/* The best way to cut the text up to here. */
typedef struct best {
    double score;
    size_t from; /* where the last piece begins; SIZE_MAX: no way yet */
    int32_t id;  /* of the last piece */
} best;

typedef struct work {
    best *v;
    size_t cap;
    nb_spans cut;  /* from the last piece to the first */
    uint64_t left; /* steps in the trie */
} work;

static void work_close(void *p)
{
    work *w = p;

    nb_free(w->v);
    nb_spans_clear(&w->cut);
    nb_free(w);
}

/* ---- open ---- */

static void unigram_close(nb_tokmodel *base)
{
    unigram *m = (unigram *)base;

    nb_vocab_clear(&m->base.vocab);
    nb_trie_clear(&m->trie);
    nb_free(m->score);
    nb_free(m);
}

static nb_status push_score(unigram *m, double x, nb_err *err)
{
    if (m->n_score == m->cap_score) {
        const size_t cap = m->cap_score ? m->cap_score * 2 : 1024;
        double *p = nb_realloc(m->score, cap * sizeof *p); /* no overflow: the vocabulary is limited before */
        if (!p)
            return nb_enomem(err, "the vocabulary");
        m->score = p;
        m->cap_score = cap;
    }
    m->score[m->n_score++] = x;
    m->worst = x < m->worst ? x : m->worst;
    return NB_OK;
}

/* Row i: [piece, score]. */
static nb_status read_row(unigram *m, nb_tokreader *r, size_t i, nb_err *err)
{
    const char *s = "";
    size_t n = 0;
    double x = 0;
    bool had = false;
    char esc[NB_ESC_CAP];
    nb_status rc;

    if (nb_tokreader_peek(r) != '[' || nb_tokreader_take(r, '[') != NB_OK || nb_tokreader_peek(r) != '"')
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "element %zu of the vocabulary is not a piece and its score", i);
    rc = nb_tokreader_text(r, &s, &n);
    if (rc == NB_OK)
        rc = nb_vocab_add(&m->base.vocab, s, n, (int64_t)i, &had, err);
    if (rc == NB_OK && had) /* the last one counts */
        rc = nb_vocab_repeat(&m->base.vocab, s, n, (int64_t)i, err);
    if (rc != NB_OK)
        return rc;
    nb_esc(esc, sizeof esc, s, n);
    if (nb_tokreader_peek(r) != ',')
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "element %zu of the vocabulary, \"%s\", has no score", i, esc);
    rc = nb_tokreader_take(r, ',');
    if (rc == NB_OK && nb_tokreader_peek(r) != '-' && !(nb_tokreader_peek(r) >= '0' && nb_tokreader_peek(r) <= '9'))
        return nb_fail(err, NB_EFORMAT, "tok.score", "", "the score of token %zu, \"%s\", is not a number", i, esc);
    if (rc == NB_OK)
        rc = nb_tokreader_real(r, &x);
    if (rc == NB_OK && !isfinite(x))
        return nb_fail(err, NB_EFORMAT, "tok.score", "", "the score of token %zu, \"%s\", is not finite", i, esc);
    if (rc == NB_OK && nb_tokreader_peek(r) != ']')
        return nb_fail(err, NB_EFORMAT, "tok.arrays", "", "element %zu of the vocabulary, \"%s\", has more than a piece and its score", i,
                       esc);
    if (rc == NB_OK)
        rc = nb_tokreader_take(r, ']');
    return rc == NB_OK ? push_score(m, x, err) : rc;
}

static nb_status read_rows(unigram *m, const nb_tokjson *j, nb_err *err)
{
    bool first = true, more = true;
    nb_tokreader r;
    nb_status rc;

    if (!j->vocab || j->vocab[0] != '[')
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "\"vocab\" of the Unigram model is not a list");
    nb_tokreader_init(&r, j, j->vocab, j->n_vocab, err);
    rc = nb_vocab_init(&m->base.vocab, j->n_vocab / 32, err); /* an element takes some 32 bytes */
    if (rc == NB_OK)
        rc = nb_tokreader_take(&r, '[');
    for (size_t i = 0; rc == NB_OK && (rc = nb_tokreader_more(&r, ']', &first, &more)) == NB_OK && more; i++)
        rc = read_row(m, &r, i, err);
    if (rc == NB_OK)
        rc = nb_tokreader_end(&r);
    nb_tokreader_clear(&r);
    return rc;
}

static nb_status read_unk(unigram *m, const nb_json *spec, nb_err *err)
{
    const nb_json *u = nb_json_get(spec, "unk_id");
    const int64_t id = nb_json_typeof(u) == NB_JINT ? nb_json_int(u, -1) : -1;

    m->unk = -1;
    if (nb_json_is_null(u))
        return NB_OK;
    if (id < 0 || (uint64_t)id >= m->n_score)
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "unk_id is not one of the %zu ids of the vocabulary", m->n_score);
    m->unk = (int32_t)id;
    return NB_OK;
}

static nb_status unigram_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err)
{
    unigram *m = nb_calloc(1, sizeof *m);
    char t[8] = "<0x..>";
    nb_status rc;

    *out = NULL;
    (void)raw; /* only byte pairs take raw bytes */
    if (!m)
        return nb_enomem(err, "the tokenizer model");
    m->base.ops = &nb_unigram_ops;
    rc = read_rows(m, j, err);
    if (rc == NB_OK)
        rc = read_unk(m, spec, err);
    if (rc == NB_OK)
        rc = nb_trie_init(&m->trie, &m->base.vocab, err);
    if (rc != NB_OK) {
        unigram_close(&m->base);
        return rc;
    }
    m->byte_fallback = nb_json_bool(nb_json_get(spec, "byte_fallback"), false);
    for (unsigned b = 0; b < 256; b++) {
        t[3] = "0123456789ABCDEF"[b >> 4];
        t[4] = "0123456789ABCDEF"[b & 15];
        m->byte_id[b] = nb_vocab_find(&m->base.vocab, t, 6);
    }
    *out = &m->base;
    return NB_OK;
}

/* ---- encode ---- */

static nb_status no_unk(nb_err *err)
{
    return nb_fail(err, NB_EFORMAT, "tok.unk", "", "the text has an unknown character and the Unigram model has no unk_id");
}

static nb_status reserve(nb_tokwork *tw, size_t n, work **out, nb_err *err)
{
    work *w = tw->p;

    if (!w) {
        w = nb_calloc(1, sizeof *w);
        if (!w)
            return nb_enomem(err, "encoding a text");
        tw->p = w;
        tw->close = work_close;
    }
    *out = w;
    if (n > w->cap) {
        nb_free(w->v);
        w->cap = 0;
        w->v = nb_alloc_array(n, sizeof *w->v);
        if (!w->v)
            return nb_enomem(err, "encoding a text");
        w->cap = n;
    }
    return NB_OK;
}

static bool offer(best *to, double score, size_t from, int32_t id)
{
    if (to->from != SIZE_MAX && !(score > to->score))
        return false;
    *to = (best){ score, from, id };
    return true;
}

/* Every piece that begins at `at`, shortest first; the unknown character where no piece is exactly it. */
static nb_status extend(const unigram *m, work *w, const char *s, size_t n, size_t at, size_t len, nb_err *err)
{
    const double till = w->v[at].score;
    bool single = false;
    uint32_t node = 0;

    for (size_t i = at; i < n; i++) {
        if (w->left-- == 0)
            return nb_trie_exhausted(err);
        node = nb_trie_step(&m->trie, node, (unsigned char)s[i]);
        if (!node)
            break;
        if (m->trie.node[node].entry < 0)
            continue;
        const int32_t id = m->base.vocab.entry[m->trie.node[node].entry].id;
        offer(&w->v[i + 1], m->score[id] + till, at, id);
        single = single || i + 1 == at + len;
    }
    if (!single && offer(&w->v[at + len], m->worst - UNKNOWN_PENALTY + till, at, m->unk) && m->unk < 0)
        return no_unk(err);
    return NB_OK;
}

/* A piece as id; an unknown one, which may be several characters, as bytes or as unk. */
static nb_status push_piece(const unigram *m, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const int32_t id = nb_vocab_find(&m->base.vocab, s, n);
    bool bytes = m->byte_fallback;
    nb_status rc = NB_OK;

    if (id >= 0)
        return nb_ids_push(out, id, err);
    for (size_t i = 0; bytes && i < n; i++)
        bytes = m->byte_id[(unsigned char)s[i]] >= 0;
    if (!bytes)
        return m->unk >= 0 ? nb_ids_push(out, m->unk, err) : no_unk(err);
    for (size_t i = 0; rc == NB_OK && i < n; i++)
        rc = nb_ids_push(out, m->byte_id[(unsigned char)s[i]], err);
    return rc;
}

static nb_status unigram_encode(const nb_tokmodel *base, nb_tokwork *tw, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const unigram *m = (const unigram *)base;
    bool was_unk = false;
    work *w = NULL;
    nb_status rc = reserve(tw, n + 1, &w, err);

    if (rc != NB_OK)
        return rc;
    w->left = NB_TRIE_BUDGET(n);
    w->v[0] = (best){ .score = 0 };
    for (size_t i = 1; i <= n; i++)
        w->v[i].from = SIZE_MAX;
    for (size_t at = 0; rc == NB_OK && at < n;) {
        uint32_t cp;
        const size_t len = (size_t)nb_u8_next(s + at, n - at, &cp, NULL);
        rc = extend(m, w, s, n, at, len, err);
        at += len;
    }
    w->cut.n = 0;
    for (size_t end = n; rc == NB_OK && end > 0; end = w->v[end].from) {
        const best *b = &w->v[end];
        const bool unk = m->unk >= 0 && b->id == m->unk;
        if (unk && was_unk) { /* unknown neighbours are one piece */
            nb_span *last = &w->cut.v[w->cut.n - 1];
            *last = (nb_span){ b->from, last->off + last->n - b->from };
        } else {
            rc = nb_spans_push(&w->cut, b->from, end - b->from, err);
        }
        was_unk = unk;
    }
    for (size_t i = w->cut.n; rc == NB_OK && i-- > 0;)
        rc = push_piece(m, s + w->cut.v[i].off, w->cut.v[i].n, out, err);
    return rc;
}

const nb_tokmodel_ops nb_unigram_ops = {
    .type = "Unigram",
    .open = unigram_open,
    .close = unigram_close,
    .encode = unigram_encode,
};
