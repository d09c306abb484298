/* bpe.c - byte pair encoding: the model kind "BPE" of tokenizer.json. Source: spec tokenizers 8.1. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokmodel.h"
#include "text/utf8.h"

#define MAX_MERGES (8u << 20) /* hardening 4 */
#define MAX_AFFIX  128        /* bytes of a prefix or suffix, put to every character */
#define SHORT_WORD 32         /* symbols up to which scanning all pairs beats a heap */

typedef struct pair {
    uint32_t a, b;
    uint32_t rank; /* UINT32_MAX: free */
    int32_t id;
} pair;

typedef struct bpe {
    nb_tokmodel base;
    bool raw, ignore_merges, fuse_unk, byte_fallback, has_unk;
    char *prefix, *suffix; /* NULL when empty */
    size_t n_prefix, n_suffix;
    int32_t unk; /* -1: none in the vocabulary */
    char *unk_token;
    int32_t byte_id[256]; /* raw: the stand-in's id; else, with byte_fallback, that of <0xHH>; -1: absent */
    nb_vocab words;       /* raw and ignore_merges: whole pieces as bytes */
    pair *pairs;          /* open addressing, a power of two */
    size_t n_pairs;
    uint64_t seed;
    int32_t made; /* while reading merges: what the last one made */
} bpe;

/* ---- merges ---- */

static pair *pair_seek(const bpe *m, uint32_t a, uint32_t b)
{
    size_t k = (size_t)nb_hash_mix(m->seed, (uint64_t)a << 32 | b) & (m->n_pairs - 1);

    while (m->pairs[k].rank != UINT32_MAX && (m->pairs[k].a != a || m->pairs[k].b != b))
        k = (k + 1) & (m->n_pairs - 1);
    return &m->pairs[k];
}

static nb_status bad_merge(nb_err *err, size_t i, const char *why)
{
    return nb_fail(err, NB_EFORMAT, "tok.merge", "", "merge %zu: %s", i, why);
}

static bool is_piece(const bpe *m, int32_t id, const char *s, size_t n)
{
    size_t k = 0;
    const char *p = nb_vocab_piece(&m->base.vocab, id, &k);

    return p && k == n && memcmp(p, s, n) == 0;
}

/* Id of what a merge makes: nearly always the token that the merge before made, or the one behind it. */
static int32_t find_made(bpe *m, const char *s, size_t n)
{
    if (is_piece(m, m->made, s, n))
        return m->made;
    m->made = is_piece(m, m->made + 1, s, n) ? m->made + 1 : nb_vocab_find(&m->base.vocab, s, n);
    return m->made;
}

static nb_status add_merge(bpe *m, nb_buf *tmp, size_t i, const char *a, size_t n_a, const char *b, size_t n_b, nb_err *err)
{
    const int32_t ia = nb_vocab_find(&m->base.vocab, a, n_a);
    const int32_t ib = nb_vocab_find(&m->base.vocab, b, n_b);
    const size_t cut = m->n_prefix < n_b ? m->n_prefix : n_b;
    int32_t id;
    pair *p;

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
    p = pair_seek(m, (uint32_t)ia, (uint32_t)ib);
    p->a = (uint32_t)ia;
    p->b = (uint32_t)ib;
    p->rank = (uint32_t)i; /* of a pair listed twice the later rank counts */
    p->id = id;
    return NB_OK;
}

/* The table for twice as many pairs. */
static nb_status grow_pairs(bpe *m, nb_err *err)
{
    pair *old = m->pairs;
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
            *pair_seek(m, old[i].a, old[i].b) = old[i];
    }
    nb_free(old);
    return NB_OK;
}

/* Merge i in text form ("a b"). */
static nb_status read_text_merge(bpe *m, nb_tokreader *r, nb_buf *tmp, size_t i, nb_err *err)
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
static nb_status read_pair_merge(bpe *m, nb_tokreader *r, nb_buf *left, nb_buf *tmp, size_t i, nb_err *err)
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

static nb_status read_list(bpe *m, nb_tokreader *r, nb_err *err)
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

static nb_status read_merges(bpe *m, const nb_json *spec, const nb_tokjson *j, nb_err *err)
{
    nb_tokreader r;
    nb_status rc;

    m->seed = nb_hash_seed(m);
    rc = grow_pairs(m, err);
    if (rc != NB_OK || nb_json_is_null(nb_json_get(spec, "merges")))
        return rc;
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
    bpe *m = (bpe *)base;

    nb_vocab_clear(&m->base.vocab);
    nb_vocab_clear(&m->words);
    nb_free(m->pairs);
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

static nb_status read_flags(bpe *m, const nb_json *spec, nb_err *err)
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

static nb_status read_bytes(bpe *m, nb_err *err)
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
    if (m->byte_fallback && absent > 0 && !m->has_unk)
        return nb_fail(err, NB_EFORMAT, "tok.byte_fallback", "",
                       "byte_fallback is set, %d of the 256 byte tokens are absent and there is no unk_token", absent);
    return NB_OK;
}

/* Whole pieces as bytes, for ignore_merges. */
static nb_status read_words(bpe *m, nb_err *err)
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
    bpe *m = nb_calloc(1, sizeof *m);
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

/* ---- encode ---- */

/* Ids of short words seen in this call: one probe, the last one wins. */
#define CACHE_KEY   14
#define CACHE_IDS   4
#define CACHE_SLOTS 4096
typedef struct cached {
    uint8_t n_key, n_ids; /* n_key 0: free */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
} cached;

typedef struct sym {
    int32_t id; /* -1: merged into the one on its left */
    uint32_t prev, next;
} sym;

typedef struct work {
    nb_ids word; /* symbols of the piece */
    sym *syms;   /* linked, for long pieces */
    size_t cap_syms;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t n_heap, cap_heap;
    cached *cache;
    uint64_t seed;
    size_t words; /* seen so far: the cache pays only for many */
} work;

static void work_close(void *p)
{
    work *w = p;

    nb_ids_clear(&w->word);
    nb_free(w->syms);
    nb_free(w->heap);
    nb_free(w->cache);
    nb_free(w);
}

static nb_status unknown(const bpe *m, nb_err *err)
{
    char esc[NB_ESC_CAP];

    return nb_fail(err, NB_EFORMAT, "tok.unk", "", "the text has an unknown character and unk_token \"%s\" is not in the vocabulary",
                   nb_esc(esc, sizeof esc, m->unk_token, m->unk_token ? strlen(m->unk_token) : 0));
}

/* First symbols of a raw piece: one per byte. */
static nb_status init_raw(const bpe *m, work *w, const char *s, size_t n, nb_err *err)
{
    bool pending = false; /* an unknown run not written yet */
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const int32_t id = m->byte_id[(unsigned char)s[i]];
        if (id < 0 && !m->has_unk)
            continue; /* dropped, as the reference does */
        if (id < 0 && m->unk < 0)
            return unknown(m, err);
        if (id < 0 && pending && m->fuse_unk)
            continue;
        pending = id < 0;
        rc = nb_ids_push(&w->word, id < 0 ? m->unk : id, err);
    }
    return rc;
}

static bool push_bytes(const bpe *m, work *w, const char *s, size_t n, nb_status *rc, nb_err *err)
{
    if (!m->byte_fallback)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (m->byte_id[(unsigned char)s[i]] < 0)
            return false;
    }
    for (size_t i = 0; *rc == NB_OK && i < n; i++)
        *rc = nb_ids_push(&w->word, m->byte_id[(unsigned char)s[i]], err);
    return true;
}

/* First symbols of a piece of characters. An unknown character waits until the next known one (or the end), so that
 * byte tokens in between come before it: the reference does the same. */
static nb_status init_chars(const bpe *m, work *w, const char *s, size_t n, nb_err *err)
{
    nb_buf tmp = { 0 };
    bool pending = false;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n;) {
        uint32_t cp;
        const size_t len = (size_t)nb_u8_next(s + i, n - i, &cp, NULL);
        const char *c = s + i;
        size_t k = len;
        int32_t id;

        if ((m->prefix && i > 0) || (m->suffix && i + len == n)) {
            tmp.n = 0;
            if (m->prefix && i > 0)
                nb_buf_put(&tmp, m->prefix, m->n_prefix);
            nb_buf_put(&tmp, s + i, len);
            if (m->suffix && i + len == n)
                nb_buf_put(&tmp, m->suffix, m->n_suffix);
            if (tmp.failed) {
                rc = nb_enomem(err, "a word");
                break;
            }
            c = tmp.p;
            k = tmp.n;
        }
        i += len;
        id = nb_vocab_find(&m->base.vocab, c, k);
        if (id >= 0) {
            if (pending)
                rc = nb_ids_push(&w->word, m->unk, err);
            pending = false;
            if (rc == NB_OK)
                rc = nb_ids_push(&w->word, id, err);
        } else if (!push_bytes(m, w, c, k, &rc, err) && m->has_unk) {
            if (m->unk < 0)
                rc = unknown(m, err);
            else if (pending && !m->fuse_unk)
                rc = nb_ids_push(&w->word, m->unk, err);
            pending = true;
        }
    }
    if (rc == NB_OK && pending)
        rc = nb_ids_push(&w->word, m->unk, err);
    nb_buf_clear(&tmp);
    return rc;
}

/* Apply the pair of lowest rank, leftmost first, until none is left; v[n] in place. Returns the new length. */
static size_t merge_short(const bpe *m, int32_t *v, size_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];

    for (size_t i = 0; i + 1 < n; i++) {
        const pair *p = pair_seek(m, (uint32_t)v[i], (uint32_t)v[i + 1]);
        rank[i] = p->rank;
        id[i] = p->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best])
                best = i;
        }
        if (rank[best] == UINT32_MAX)
            break;
        v[best] = id[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            v[i] = v[i + 1];
            rank[i] = i + 2 < n ? rank[i + 1] : UINT32_MAX;
            id[i] = i + 2 < n ? id[i + 1] : -1;
        }
        n--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const pair *p = pair_seek(m, (uint32_t)v[i], (uint32_t)v[i + 1]);
            rank[i] = p->rank;
            id[i] = p->id;
        }
    }
    return n;
}

static nb_status heap_push(work *w, uint64_t key, nb_err *err)
{
    size_t i = w->n_heap;

    if (i == w->cap_heap) {
        const size_t cap = w->cap_heap ? w->cap_heap * 2 : 1024;
        size_t bytes;
        uint64_t *h;
        if (!nb_mul_size(cap, sizeof *h, &bytes) || !(h = nb_realloc(w->heap, bytes)))
            return nb_enomem(err, "a long word");
        w->heap = h;
        w->cap_heap = cap;
    }
    w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
    return NB_OK;
}

static uint64_t heap_pop(work *w)
{
    const uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap)
            break;
        if (c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c])
            c++;
        if (w->heap[c] >= last)
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

#define NONE UINT32_MAX

static nb_status push_pair(const bpe *m, work *w, uint32_t left, nb_err *err)
{
    const uint32_t right = left == NONE ? NONE : w->syms[left].next;
    const pair *p;

    if (right == NONE)
        return NB_OK;
    p = pair_seek(m, (uint32_t)w->syms[left].id, (uint32_t)w->syms[right].id);
    return p->rank == NONE ? NB_OK : heap_push(w, (uint64_t)p->rank << 32 | left, err);
}

/* The same with linked symbols and a heap: O(n log n). An entry whose pair is no longer there is skipped. */
static nb_status merge_long(const bpe *m, work *w, nb_err *err)
{
    const size_t n = w->word.n;
    size_t k = 0;
    nb_status rc = NB_OK;

    if (n >= NONE)
        return nb_fail(err, NB_ELIMIT, "limit.text", "", "one word of %zu characters", n);
    if (n > w->cap_syms) {
        nb_free(w->syms);
        w->cap_syms = 0;
        w->syms = nb_alloc_array(n, sizeof *w->syms);
        if (!w->syms)
            return nb_enomem(err, "a long word");
        w->cap_syms = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        w->syms[i].id = w->word.p[i];
        w->syms[i].prev = i == 0 ? NONE : i - 1;
        w->syms[i].next = i + 1 < n ? i + 1 : NONE;
    }
    w->n_heap = 0;
    for (uint32_t i = 0; rc == NB_OK && i < n; i++)
        rc = push_pair(m, w, i, err);
    while (rc == NB_OK && w->n_heap > 0) {
        const uint64_t top = heap_pop(w);
        const uint32_t i = (uint32_t)top;
        const uint32_t j = w->syms[i].next;
        const pair *p;

        if (w->syms[i].id < 0 || j == NONE)
            continue;
        p = pair_seek(m, (uint32_t)w->syms[i].id, (uint32_t)w->syms[j].id);
        if (p->rank != top >> 32)
            continue;
        w->syms[i].id = p->id;
        w->syms[i].next = w->syms[j].next;
        w->syms[j].id = -1;
        if (w->syms[i].next != NONE)
            w->syms[w->syms[i].next].prev = i;
        rc = push_pair(m, w, w->syms[i].prev, err);
        if (rc == NB_OK)
            rc = push_pair(m, w, i, err);
    }
    for (uint32_t i = 0; rc == NB_OK && i != NONE; i = w->syms[i].next)
        w->word.p[k++] = w->syms[i].id;
    w->word.n = k;
    return rc;
}

static nb_status encode_word(const bpe *m, work *w, const char *s, size_t n, nb_err *err)
{
    nb_status rc;

    w->word.n = 0;
    if (m->ignore_merges) {
        const int32_t id = nb_vocab_find(m->raw ? &m->words : &m->base.vocab, s, n);
        if (id >= 0)
            return nb_ids_push(&w->word, id, err);
    }
    rc = m->raw ? init_raw(m, w, s, n, err) : init_chars(m, w, s, n, err);
    if (rc != NB_OK || w->word.n < 2)
        return rc;
    if (w->word.n > SHORT_WORD)
        return merge_long(m, w, err);
    w->word.n = merge_short(m, w->word.p, w->word.n);
    return NB_OK;
}

static nb_status open_work(nb_tokwork *tw, work **out, nb_err *err)
{
    work *w = tw->p;

    if (!w) {
        w = nb_calloc(1, sizeof *w);
        if (!w)
            return nb_enomem(err, "encoding a text");
        w->seed = nb_hash_seed(w);
        tw->p = w;
        tw->close = work_close;
    }
    if (++w->words == 256) /* without memory it goes on uncached */
        w->cache = nb_calloc(CACHE_SLOTS, sizeof *w->cache);
    *out = w;
    return NB_OK;
}

static cached *cache_slot(const work *w, const char *s, size_t n)
{
    uint64_t k[2] = { 0, 0 };

    memcpy(k, s, n);
    return &w->cache[nb_hash_mix(nb_hash_mix(w->seed ^ n, k[0]), k[1]) & (CACHE_SLOTS - 1)];
}

static nb_status bpe_encode(const nb_tokmodel *base, nb_tokwork *tw, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const bpe *m = (const bpe *)base;
    cached *slot = NULL;
    work *w = NULL;
    nb_status rc = open_work(tw, &w, err);

    if (rc != NB_OK)
        return rc;
    if (w->cache && n <= CACHE_KEY) {
        slot = cache_slot(w, s, n);
        if (slot->n_key == n && memcmp(slot->key, s, n) == 0) {
            for (size_t i = 0; rc == NB_OK && i < slot->n_ids; i++)
                rc = nb_ids_push(out, slot->ids[i], err);
            return rc;
        }
    }
    rc = encode_word(m, w, s, n, err);
    for (size_t i = 0; rc == NB_OK && i < w->word.n; i++)
        rc = nb_ids_push(out, w->word.p[i], err);
    if (rc == NB_OK && slot && w->word.n <= CACHE_IDS) {
        slot->n_key = (uint8_t)n;
        slot->n_ids = (uint8_t)w->word.n;
        memcpy(slot->key, s, n);
        memcpy(slot->ids, w->word.p, w->word.n * sizeof *w->word.p);
    }
    return rc;
}

const nb_tokmodel_ops nb_bpe_ops = {
    .type = "BPE",
    .open = bpe_open,
    .close = bpe_close,
    .encode = bpe_encode,
};
