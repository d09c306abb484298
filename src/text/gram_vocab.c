/* gram_vocab.c - the bytes of all tokens as a trie, in preorder, so that a walk is one pass with jumps. */
#include <stdlib.h>
#include <string.h>

#include "text/gram.h"

#define LONGEST 4096 /* bytes of a token that a grammar may use */

typedef struct item {
    const char *p;
    uint32_t n;
    int32_t id;
} item;

static int by_bytes(const void *x, const void *y)
{
    const item *a = x, *b = y;
    const uint32_t n = a->n < b->n ? a->n : b->n;
    const int c = n ? memcmp(a->p, b->p, n) : 0;

    return c ? c : a->n != b->n ? (a->n > b->n) - (a->n < b->n) : (a->id > b->id) - (a->id < b->id);
}

/* Bytes of every token one behind the other; NB_G_CONTROL before special ones. */
static nb_status read_tokens(nb_gvocab *v, const nb_tokenizer *t, nb_err *err)
{
    const size_t known = nb_tokenizer_size(t);
    nb_buf all = { 0 };
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < v->n_tokens; i++) {
        v->off[i] = (uint32_t)all.n;
        if (i >= known)
            continue;
        if (nb_tokenizer_is_special(t, (int32_t)i))
            nb_buf_putc(&all, (char)NB_G_CONTROL);
        rc = nb_tokenizer_bytes(t, (int32_t)i, &all, err);
        if (rc == NB_OK && all.n > UINT32_MAX)
            rc = nb_fail(err, NB_ELIMIT, "limit.vocab", "", "a vocabulary of more than 4 GiB");
    }
    v->off[v->n_tokens] = (uint32_t)all.n;
    if (rc == NB_OK && all.failed)
        rc = nb_enomem(err, "the vocabulary");
    v->text = all.p;
    return rc;
}

static uint32_t common(const item *a, const item *b)
{
    uint32_t n = 0;

    while (n < a->n && n < b->n && a->p[n] == b->p[n])
        n++;
    return n;
}

/* Nodes of the sorted items. path[d]: the node at depth d on the way to the current item. */
static nb_status build(nb_gvocab *v, const item *list, size_t n, nb_err *err)
{
    uint32_t *path = nb_calloc(LONGEST + 1, sizeof *path);
    size_t nodes = 1;

    for (size_t i = 0; i < n; i++)
        nodes += list[i].n - (i ? common(&list[i - 1], &list[i]) : 0);
    v->byte = nb_calloc(nodes, sizeof *v->byte);
    v->depth = nb_calloc(nodes, sizeof *v->depth);
    v->skip = nb_calloc(nodes, sizeof *v->skip);
    v->token = nb_alloc_array(nodes, sizeof *v->token);
    if (!path || !v->byte || !v->depth || !v->skip || !v->token || nodes > UINT32_MAX) {
        nb_free(path);
        return nb_enomem(err, "the vocabulary");
    }
    memset(v->token, 0xFF, nodes * sizeof *v->token);
    v->n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t d = i ? common(&list[i - 1], &list[i]) : 0;
        for (uint32_t k = i ? list[i - 1].n : 0; k > d; k--)
            v->skip[path[k]] = (uint32_t)v->n_nodes;
        for (; d < list[i].n; d++) {
            const size_t at = v->n_nodes++;
            v->byte[at] = (unsigned char)list[i].p[d];
            v->depth[at] = (uint16_t)(d + 1);
            path[d + 1] = (uint32_t)at;
        }
        const uint32_t at = path[list[i].n];
        v->same[list[i].id] = v->token[at];
        v->token[at] = list[i].id;
    }
    for (uint32_t k = n ? list[n - 1].n : 0; k > 0; k--)
        v->skip[path[k]] = (uint32_t)v->n_nodes;
    v->skip[0] = (uint32_t)v->n_nodes;
    nb_free(path);
    return NB_OK;
}

nb_status nb_gvocab_open(const nb_tokenizer *t, const int32_t *end, size_t n_end, size_t n_vocab, nb_gvocab **out, nb_err *err)
{
    nb_gvocab *v = nb_calloc(1, sizeof *v);
    item *list = NULL;
    size_t n = 0;
    nb_status rc = NB_OK;

    *out = NULL;
    if (!v)
        return nb_enomem(err, "the vocabulary");
    v->n_tokens = n_vocab ? n_vocab : nb_tokenizer_size(t);
    v->n_words = (v->n_tokens + 31) / 32;
    v->off = nb_calloc(v->n_tokens + 1, sizeof *v->off);
    v->same = nb_alloc_array(v->n_tokens + 1, sizeof *v->same);
    v->end = nb_alloc_array(n_end + 1, sizeof *v->end);
    list = nb_alloc_array(v->n_tokens + 1, sizeof *list);
    if (!v->off || !v->same || !v->end || !list)
        rc = nb_enomem(err, "the vocabulary");
    if (rc == NB_OK)
        rc = read_tokens(v, t, err);
    for (size_t i = 0; rc == NB_OK && i < n_end; i++) {
        if (end[i] >= 0 && (size_t)end[i] < v->n_tokens)
            v->end[v->n_end++] = end[i];
    }
    for (size_t i = 0; rc == NB_OK && i < v->n_tokens; i++) {
        const uint32_t len = v->off[i + 1] - v->off[i];
        v->same[i] = -1;
        if (len == 0 || len > LONGEST)
            continue;
        list[n++] = (item){ v->text + v->off[i], len, (int32_t)i };
        if (len > v->longest)
            v->longest = len;
    }
    if (rc == NB_OK) {
        qsort(list, n, sizeof *list, by_bytes);
        rc = build(v, list, n, err);
    }
    nb_free(list);
    if (rc != NB_OK) {
        nb_gvocab_close(v);
        return rc;
    }
    *out = v;
    return NB_OK;
}

void nb_gvocab_close(nb_gvocab *v)
{
    if (!v)
        return;
    nb_free(v->byte);
    nb_free(v->depth);
    nb_free(v->skip);
    nb_free(v->token);
    nb_free(v->same);
    nb_free(v->off);
    nb_free(v->text);
    nb_free(v->end);
    nb_free(v);
}

bool nb_gvocab_has(const nb_gvocab *v, const char *p, size_t n)
{
    size_t at = 0;

    for (size_t d = 0; d < n; d++) {
        size_t i = at + 1;
        while (i < v->skip[at] && v->byte[i] != (unsigned char)p[d])
            i = v->skip[i];
        if (i >= v->skip[at])
            return false;
        at = i;
    }
    return n && v->token[at] >= 0;
}

size_t nb_gvocab_size(const nb_gvocab *v)
{
    return v->n_tokens;
}

size_t nb_gvocab_words(const nb_gvocab *v)
{
    return v->n_words;
}

uint64_t nb_gvocab_bytes(const nb_gvocab *v)
{
    return v->n_nodes * (1 + 2 + 4 + 4) + v->n_tokens * 8 + v->off[v->n_tokens] + sizeof *v;
}
