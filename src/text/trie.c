#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct word {
    const char *s;
    uint32_t n;
    int32_t entry;
} word;

/* Words order[from .. to) share the bytes that lead to one node. */
typedef struct range {
    uint32_t from, to;
} range;

static int by_text(const void *a, const void *b)
{
    const word *x = a, *y = b;
    const int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* Node and range for words[from .. to), which all go on with byte c. */
static nb_status push(nb_trie *t, range **ranges, size_t from, size_t to, unsigned char c, nb_err *err)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap ? t->cap * 2 : 1024;
        size_t bytes;
        void *p;
        if (cap > UINT32_MAX || !nb_mul_size(cap, sizeof *t->node, &bytes) || !(p = nb_realloc(t->node, bytes)))
            return nb_enomem(err, "the vocabulary");
        t->node = p;
        if (!(p = nb_realloc(*ranges, cap * sizeof **ranges)))
            return nb_enomem(err, "the vocabulary");
        *ranges = p;
        t->cap = cap;
    }
    (*ranges)[t->n] = (range){ (uint32_t)from, (uint32_t)to };
    t->node[t->n++] = (nb_trie_node){ .entry = -1, .byte = c };
    return NB_OK;
}

/* Nodes breadth first, so that the children of one are neighbours. */
static nb_status build(nb_trie *t, const word *w, size_t n, nb_err *err)
{
    range *ranges = NULL;
    size_t depth = 0, level = 1; /* node index where the next level begins */
    nb_status rc = push(t, &ranges, 0, n, 0, err);

    for (size_t at = 0; rc == NB_OK && at < t->n; at++) {
        const size_t first = t->n;
        size_t from, to;
        if (at == level) {
            depth++;
            level = t->n;
        }
        from = ranges[at].from;
        to = ranges[at].to;
        if (from < to && w[from].n == depth)
            t->node[at].entry = w[from++].entry;
        while (rc == NB_OK && from < to) {
            const unsigned char c = (unsigned char)w[from].s[depth];
            size_t end = from + 1;
            while (end < to && (unsigned char)w[end].s[depth] == c)
                end++;
            rc = push(t, &ranges, from, end, c, err);
            from = end;
        }
        if (rc == NB_OK && t->n > first) {
            t->node[at].first = (uint32_t)first;
            t->node[at].n = (uint16_t)(t->n - first);
        }
    }
    nb_free(ranges);
    return rc;
}

nb_status nb_trie_init(nb_trie *t, const nb_vocab *v, nb_err *err)
{
    word *w = nb_alloc_array(v->n + 1, sizeof *w);
    size_t n = 0;
    nb_status rc;

    if (!w)
        return nb_enomem(err, "the vocabulary");
    for (size_t i = 0; i < v->n; i++) {
        if (v->entry[i].n > 0)
            w[n++] = (word){ v->text + v->entry[i].off, v->entry[i].n, (int32_t)i };
    }
    qsort(w, n, sizeof *w, by_text);
    rc = build(t, w, n, err);
    nb_free(w);
    return rc;
}

void nb_trie_clear(nb_trie *t)
{
    nb_free(t->node);
    memset(t, 0, sizeof *t);
}

uint32_t nb_trie_step(const nb_trie *t, uint32_t at, unsigned char c)
{
    const nb_trie_node *p = &t->node[at];
    uint32_t lo = p->first, hi = p->first + p->n;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (t->node[mid].byte < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->first + p->n && t->node[lo].byte == c ? lo : 0;
}

nb_status nb_trie_exhausted(nb_err *err)
{
    return nb_fail(err, NB_ELIMIT, "limit.text", "", "the vocabulary has very long pieces and this text begins them again and again");
}
