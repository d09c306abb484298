#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAX_ADDED 100000u /* hardening 4 */

/* Aho-Corasick automaton over the reversed tokens. Read from the end of a text to its beginning, it knows at every
 * position the longest token that begins there; leftmost-longest is then one walk forward over these hits. */
typedef struct node {
    uint32_t child, sibling, fail; /* 0: none (the root is nobody's child) */
    int32_t token;                 /* the longest that ends (begins, in the text) here; -1: none */
    unsigned char byte;
} node;

typedef struct matcher {
    node *v;
    uint32_t n;
    size_t cap;
    uint32_t root[256];
} matcher;

struct nb_added {
    nb_vocab names; /* contents; entry i belongs to token i */
    nb_added_token *tok;
    size_t n, cap;
    matcher m[2]; /* raw, normalized */
};

static uint32_t find_child(const matcher *m, uint32_t at, unsigned char c)
{
    uint32_t k;

    if (at == 0)
        return m->root[c];
    for (k = m->v[at].child; k && m->v[k].byte != c; k = m->v[k].sibling)
        ;
    return k;
}

static nb_status new_node(matcher *m, uint32_t parent, unsigned char c, uint32_t *out, nb_err *err)
{
    if (m->n == m->cap) {
        const size_t cap = m->cap ? m->cap * 2 : 256;
        size_t bytes;
        node *v;
        if (cap > UINT32_MAX || !nb_mul_size(cap, sizeof *v, &bytes) || !(v = nb_realloc(m->v, bytes)))
            return nb_enomem(err, "the added tokens");
        m->v = v;
        m->cap = cap;
    }
    m->v[m->n] = (node){ .byte = c, .token = -1 };
    if (m->n > 0 && parent == 0) {
        m->root[c] = m->n;
    } else if (m->n > 0) {
        m->v[m->n].sibling = m->v[parent].child;
        m->v[parent].child = m->n;
    }
    *out = m->n++;
    return NB_OK;
}

static nb_status matcher_add(matcher *m, const char *s, size_t n, int32_t token, nb_err *err)
{
    uint32_t at = 0;
    nb_status rc = NB_OK;

    if (m->n == 0)
        rc = new_node(m, 0, 0, &at, err);
    for (size_t i = n; rc == NB_OK && i-- > 0;) {
        uint32_t next = find_child(m, at, (unsigned char)s[i]);
        if (!next)
            rc = new_node(m, at, (unsigned char)s[i], &next, err);
        at = next;
    }
    if (rc == NB_OK && n > 0 && m->v[at].token < 0)
        m->v[at].token = token;
    return rc;
}

/* Failure links, breadth first. */
static nb_status matcher_link(matcher *m, nb_err *err)
{
    uint32_t *queue, head = 0, tail = 0;

    if (m->n == 0)
        return NB_OK;
    queue = nb_alloc_array(m->n, sizeof *queue);
    if (!queue)
        return nb_enomem(err, "the added tokens");
    for (int c = 0; c < 256; c++) {
        if (m->root[c])
            queue[tail++] = m->root[c];
    }
    while (head < tail) {
        const uint32_t at = queue[head++];
        if (m->v[at].token < 0 && m->v[at].fail)
            m->v[at].token = m->v[m->v[at].fail].token;
        for (uint32_t k = m->v[at].child; k; k = m->v[k].sibling) {
            uint32_t f = m->v[at].fail, to;
            while (!(to = find_child(m, f, m->v[k].byte)) && f)
                f = m->v[f].fail;
            m->v[k].fail = to;
            queue[tail++] = k;
        }
    }
    nb_free(queue);
    return NB_OK;
}

/* ---- reading the lists ---- */

static bool same_text(const nb_vocab *v, int64_t id, const char *s, size_t n)
{
    size_t k = 0;
    const char *p = id >= 0 && id < INT32_MAX ? nb_vocab_piece(v, (int32_t)id, &k) : NULL;

    return !p || (k == n && memcmp(p, s, n) == 0);
}

/* The reference does not use the written id: the model's own piece keeps its id, others are numbered on from the size
 * of the model's vocabulary. */
static int64_t resolve_id(const nb_added *a, const nb_vocab *vocab, const char *s, size_t n)
{
    const int32_t own = nb_vocab_find(vocab, s, n);
    int64_t max = -1;

    if (own >= 0)
        return own;
    max = (int64_t)a->names.n_ids - 1;
    return max >= (int64_t)vocab->n || vocab->n == 0 ? max + 1 : (int64_t)vocab->n;
}

static nb_status add_token(nb_added *a, const nb_vocab *vocab, const nb_json *e, int64_t written, nb_err *err)
{
    const nb_json *content = nb_json_get(e, "content");
    const char *s = nb_json_str(content, "");
    const size_t n = nb_json_str_len(content);
    nb_added_token *t;
    char esc[NB_ESC_CAP];
    bool had = false;
    int64_t id;
    nb_status rc;

    if (nb_vocab_find(&a->names, s, n) >= 0)
        return NB_OK; /* listed twice: the first counts */
    if (a->n == MAX_ADDED)
        return nb_fail(err, NB_ELIMIT, "limit.added", "", "more than %u added tokens", MAX_ADDED);
    id = resolve_id(a, vocab, s, n);
    if (!same_text(vocab, written, s, n) || !same_text(&a->names, written, s, n) || !same_text(vocab, id, s, n))
        return nb_fail(err, NB_EFORMAT, "tok.duplicate_id", "", "added token \"%s\" has id %lld, which another token has too",
                       nb_esc(esc, sizeof esc, s, n), (long long)written);
    rc = nb_vocab_add(&a->names, s, n, id, &had, err);
    if (rc != NB_OK)
        return rc;
    if (a->n == a->cap) {
        const size_t cap = a->cap ? a->cap * 2 : 32;
        t = nb_realloc(a->tok, cap * sizeof *t);
        if (!t)
            return nb_enomem(err, "the added tokens");
        a->tok = t;
        a->cap = cap;
    }
    t = &a->tok[a->n++];
    memset(t, 0, sizeof *t);
    t->id = (int32_t)id;
    t->single_word = nb_json_bool(nb_json_get(e, "single_word"), false);
    t->lstrip = nb_json_bool(nb_json_get(e, "lstrip"), false);
    t->rstrip = nb_json_bool(nb_json_get(e, "rstrip"), false);
    t->special = nb_json_bool(nb_json_get(e, "special"), false);
    t->normalized = nb_json_bool(nb_json_get(e, "normalized"), !t->special);
    return NB_OK;
}

static nb_status read_list(nb_added *a, const nb_json *list, const nb_vocab *vocab, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++) {
        const nb_json *e = nb_json_at(list, i), *id = nb_json_get(e, "id");
        if (nb_json_typeof(nb_json_get(e, "content")) != NB_JSTR || nb_json_str_len(nb_json_get(e, "content")) == 0)
            return nb_fail(err, NB_EFORMAT, "tok.added", "", "added token %zu has no text", i);
        if (id && nb_json_typeof(id) != NB_JINT)
            return nb_fail(err, NB_EFORMAT, "tok.id", "", "the id of added token %zu is no whole number", i);
        if (id && (nb_json_int(id, 0) < 0 || nb_json_int(id, 0) > INT32_MAX))
            return nb_fail(err, NB_EFORMAT, "tok.id", "", "added token %zu has id %lld, an id is a whole number from 0 below 2^31", i,
                           (long long)nb_json_int(id, 0));
        rc = add_token(a, vocab, e, nb_json_int(id, -1), err);
    }
    return rc;
}

typedef struct keyed {
    long id;
    const nb_json *e;
} keyed;

static int by_key(const void *x, const void *y)
{
    const keyed *p = x, *q = y;

    return p->id < q->id ? -1 : p->id > q->id;
}

/* tokenizer_config.json repeats the added tokens under their ids; the ones the list lacks count too. */
static nb_status read_config(nb_added *a, const nb_json *obj, const nb_vocab *vocab, nb_err *err)
{
    const size_t n = nb_json_len(obj);
    keyed *k;
    nb_status rc = NB_OK;

    if (nb_json_typeof(obj) != NB_JOBJ || n == 0)
        return NB_OK;
    k = nb_alloc_array(n, sizeof *k);
    if (!k)
        return nb_enomem(err, "the added tokens");
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const char *key;
        k[i].e = nb_json_member(obj, i, &key);
        k[i].id = 0;
        for (const char *c = key; *c && rc == NB_OK; c++) { /* digits only, no sign, no blank (hardening TK-11) */
            if (*c < '0' || *c > '9' || c - key > 9)
                rc = nb_fail(err, NB_EFORMAT, "tok.id", "", "added_tokens_decoder has a key that is no token id");
            else
                k[i].id = k[i].id * 10 + (*c - '0');
        }
    }
    if (rc == NB_OK)
        qsort(k, n, sizeof *k, by_key);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        if (nb_json_str_len(nb_json_get(k[i].e, "content")) > 0)
            rc = add_token(a, vocab, k[i].e, k[i].id, err);
    }
    nb_free(k);
    return rc;
}

/* The reference asks by text, so a special token that the normalizer changes is not left out when decoding. */
static bool is_special_text(const nb_added *a, const char *s, size_t n)
{
    const nb_added_token *t = nb_added_by_id(a, nb_added_find(a, s, n));

    return t && t->special;
}

static nb_status build(nb_added *a, const nb_norm *nm, nb_err *err)
{
    nb_norm_work w = { .left = NB_NORM_BUDGET(a->names.n_text) };
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < a->n; i++) {
        nb_added_token *t = &a->tok[i];
        const char *s = a->names.text + a->names.entry[i].off;
        size_t n = a->names.entry[i].n;

        if (t->normalized)
            rc = nb_norm_run(nm, &w, &s, &n, err);
        if (rc != NB_OK)
            break;
        t->shown = nb_strndup(s, n);
        t->n_shown = n;
        t->skipped = is_special_text(a, s, n);
        rc = t->shown ? matcher_add(&a->m[t->normalized], s, n, (int32_t)i, err) : nb_enomem(err, "the added tokens");
    }
    nb_norm_work_clear(&w);
    if (rc == NB_OK)
        rc = matcher_link(&a->m[0], err);
    return rc == NB_OK ? matcher_link(&a->m[1], err) : rc;
}

nb_status nb_added_open(const nb_json *list, const nb_json *config, const nb_vocab *vocab, const nb_norm *nm, nb_added **out, nb_err *err)
{
    nb_added *a = nb_calloc(1, sizeof *a);
    nb_status rc;

    *out = NULL;
    if (!a)
        return nb_enomem(err, "the added tokens");
    rc = nb_vocab_init(&a->names, nb_json_len(list), err);
    if (rc == NB_OK)
        rc = read_list(a, list, vocab, err);
    if (rc == NB_OK)
        rc = read_config(a, config, vocab, err);
    if (rc == NB_OK)
        rc = build(a, nm, err);
    if (rc == NB_OK) {
        *out = a;
        a = NULL;
    }
    nb_added_close(a);
    return rc;
}

void nb_added_close(nb_added *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->n; i++)
        nb_free(a->tok[i].shown);
    nb_free(a->tok);
    nb_vocab_clear(&a->names);
    nb_free(a->m[0].v);
    nb_free(a->m[1].v);
    nb_free(a);
}

const nb_added_token *nb_added_by_id(const nb_added *a, int32_t id)
{
    if (id < 0 || (size_t)id >= a->names.n_ids || !a->names.by_id[id])
        return NULL;
    return &a->tok[a->names.by_id[id] - 1];
}

int32_t nb_added_find(const nb_added *a, const char *content, size_t n)
{
    return nb_vocab_find(&a->names, content, n);
}

const char *nb_added_content(const nb_added *a, int32_t id, size_t *n)
{
    return nb_vocab_piece(&a->names, id, n);
}

size_t nb_added_ids(const nb_added *a)
{
    return a->names.n_ids;
}

/* ---- splitting ---- */

void nb_parts_clear(nb_parts *p)
{
    nb_free(p->v);
    nb_spans_clear(&p->hits);
    memset(p, 0, sizeof *p);
}

static nb_status push_part(nb_parts *p, size_t off, size_t end, const nb_added_token *t, nb_err *err)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 16;
        size_t bytes;
        nb_part *v;
        if (!nb_mul_size(cap, sizeof *v, &bytes) || !(v = nb_realloc(p->v, bytes)))
            return nb_enomem(err, "the parts of a text");
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = (nb_part){ off, end - off, t };
    return NB_OK;
}

/* Position and token of the longest match at every position that has one, from the last to the first. */
static nb_status find_hits(const matcher *m, const char *text, size_t n, nb_spans *hits, nb_err *err)
{
    uint32_t at = 0;
    nb_status rc = NB_OK;

    hits->n = 0;
    for (size_t i = n; rc == NB_OK && i-- > 0;) {
        const unsigned char c = (unsigned char)text[i];
        uint32_t next;

        while (!(next = find_child(m, at, c)) && at)
            at = m->v[at].fail;
        at = next;
        if (at && m->v[at].token >= 0)
            rc = nb_spans_push(hits, i, (size_t)m->v[at].token, err);
    }
    return rc;
}

static bool stands_alone(const char *text, size_t n, size_t b, size_t e)
{
    uint32_t cp;

    if (b > 0) {
        nb_u8_prev(text, b, &cp);
        if (nb_uc_word(cp))
            return false;
    }
    if (e < n) {
        nb_u8_next(text + e, n - e, &cp, NULL);
        if (nb_uc_word(cp))
            return false;
    }
    return true;
}

/* Is a place of guard in [b, e)? */
static bool is_guarded(const nb_guard *g, size_t b, size_t e)
{
    size_t lo = 0, hi = g ? g->n : 0;

    while (lo < hi) { /* the first place from b on */
        const size_t mid = lo + (hi - lo) / 2;
        if (g->v[mid] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return g && lo < g->n && g->v[lo] < e;
}

nb_status nb_added_split(const nb_added *a, bool normalized, const char *text, size_t n, bool skip_special, const nb_guard *guard,
                         nb_parts *out, nb_err *err)
{
    const matcher *m = &a->m[normalized];
    size_t pos = 0, done = 0, blank_b = 0, blank_e = 0; /* blank_b .. blank_e: blanks seen behind a token, read once */
    uint32_t cp;
    nb_status rc = NB_OK;

    out->n = 0;
    out->hits.n = 0;
    if (m->n > 0)
        rc = find_hits(m, text, n, &out->hits, err);
    for (size_t i = out->hits.n; rc == NB_OK && i-- > 0;) {
        const nb_added_token *t = &a->tok[out->hits.v[i].n];
        size_t b = out->hits.v[i].off, e = b + t->n_shown;

        if (b < pos)
            continue;
        pos = e;
        if ((t->special && (skip_special || is_guarded(guard, b, e))) || (t->single_word && !stands_alone(text, n, b, e)))
            continue;
        if (t->lstrip) {
            while (b > done) {
                const size_t k = nb_u8_prev(text, b, &cp);
                if (!nb_uc_space(cp) || b - k < done)
                    break;
                b -= k;
            }
        }
        if (t->rstrip) {
            if (e < blank_b || e > blank_e) {
                blank_b = blank_e = e;
                while (blank_e < n) {
                    const size_t k = (size_t)nb_u8_next(text + blank_e, n - blank_e, &cp, NULL);
                    if (!nb_uc_space(cp))
                        break;
                    blank_e += k;
                }
            }
            e = blank_e;
        }
        if (done < b)
            rc = push_part(out, done, b, NULL, err);
        if (rc == NB_OK)
            rc = push_part(out, b, e, t, err);
        done = e;
    }
    if (rc == NB_OK && done < n)
        rc = push_part(out, done, n, NULL, err);
    return rc;
}
