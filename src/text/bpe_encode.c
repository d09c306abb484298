/* bpe_encode.c - byte pair encoding: from a piece of text to ids. Source: spec tokenizers 8.1. */
#include <string.h>

#include "base/mem.h"
#include "text/bpe.h"
#include "text/utf8.h"

#define SHORT_WORD 32 /* symbols up to which scanning all pairs beats a heap */

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

static nb_status unknown(const nb_bpe *m, nb_err *err)
{
    char esc[NB_ESC_CAP];

    return nb_fail(err, NB_EFORMAT, "tok.unk", "", "the text has an unknown character and unk_token \"%s\" is not in the vocabulary",
                   nb_esc(esc, sizeof esc, m->unk_token, m->unk_token ? strlen(m->unk_token) : 0));
}

/* First symbols of a raw piece: one per byte. */
static nb_status init_raw(const nb_bpe *m, work *w, const char *s, size_t n, nb_err *err)
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

static bool push_bytes(const nb_bpe *m, work *w, const char *s, size_t n, nb_status *rc, nb_err *err)
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
static nb_status init_chars(const nb_bpe *m, work *w, const char *s, size_t n, nb_err *err)
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
static size_t merge_short(const nb_bpe *m, int32_t *v, size_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];

    for (size_t i = 0; i + 1 < n; i++) {
        const nb_bpe_merge *p = nb_bpe_pair(m, (uint32_t)v[i], (uint32_t)v[i + 1]);
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
            const nb_bpe_merge *p = nb_bpe_pair(m, (uint32_t)v[i], (uint32_t)v[i + 1]);
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

static nb_status push_pair(const nb_bpe *m, work *w, uint32_t left, nb_err *err)
{
    const uint32_t right = left == NONE ? NONE : w->syms[left].next;
    const nb_bpe_merge *p;

    if (right == NONE)
        return NB_OK;
    p = nb_bpe_pair(m, (uint32_t)w->syms[left].id, (uint32_t)w->syms[right].id);
    return p->rank == NONE ? NB_OK : heap_push(w, (uint64_t)p->rank << 32 | left, err);
}

/* The same with linked symbols and a heap: O(n log n). An entry whose pair is no longer there is skipped. */
static nb_status merge_long(const nb_bpe *m, work *w, nb_err *err)
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
        const nb_bpe_merge *p;

        if (w->syms[i].id < 0 || j == NONE)
            continue;
        p = nb_bpe_pair(m, (uint32_t)w->syms[i].id, (uint32_t)w->syms[j].id);
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

static nb_status encode_word(const nb_bpe *m, work *w, const char *s, size_t n, nb_err *err)
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
    *out = w;
    return NB_OK;
}

static cached *cache_slot(const work *w, const char *s, size_t n)
{
    uint64_t k[2] = { 0, 0 };

    memcpy(k, s, n);
    return &w->cache[nb_hash_mix(nb_hash_mix(w->seed ^ n, k[0]), k[1]) & (CACHE_SLOTS - 1)];
}

/* Bytes of s[n] up to the first place where it can be cut. */
static size_t part_length(const nb_bpe *m, const char *s, size_t n)
{
    uint32_t left, right;
    size_t i = (size_t)nb_u8_next(s, n, &left, NULL);

    for (; i < n; left = right) {
        const size_t k = (size_t)nb_u8_next(s + i, n - i, &right, NULL);
        const uint32_t bit = nb_bpe_meet_bit(left, right);
        if (!(m->meet[bit / 64] >> (bit & 63) & 1))
            break;
        i += k;
    }
    return i;
}

static nb_status encode_part(const nb_bpe *m, work *w, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    cached *slot = NULL;
    nb_status rc = NB_OK;

    if (++w->words == 256) /* without memory it goes on uncached */
        w->cache = nb_calloc(CACHE_SLOTS, sizeof *w->cache);
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

nb_status nb_bpe_encode(const nb_tokmodel *base, nb_tokwork *tw, const char *s, size_t n, nb_ids *out, nb_err *err)
{
    const nb_bpe *m = (const nb_bpe *)base;
    work *w = NULL;
    nb_status rc = open_work(tw, &w, err);

    if (rc == NB_OK && !m->meet)
        return encode_part(m, w, s, n, out, err);
    for (size_t i = 0; rc == NB_OK && i < n;) {
        const size_t k = part_length(m, s + i, n - i);
        rc = encode_part(m, w, s + i, k, out, err);
        i += k;
    }
    return rc;
}
