#include "base/merges.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

#define MAX_MERGES (8u << 20) /* hardening 4 */

typedef struct cut {
    double score;
    uint32_t n_left, n_right; /* characters */
    nb_merge m;
} cut;

typedef struct finder {
    const nb_scored *v;
    uint64_t *hash; /* of each piece */
    uint32_t *slot; /* index + 1; 0: free */
    size_t mask;
    uint64_t factor, *pow; /* of the rolling hash: powers of the factor */
    uint64_t *prefix;      /* hash of the first i bytes of the piece at hand */
    cut *cuts;
    size_t n, cap;
} finder;

static uint64_t place(uint64_t h)
{
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

/* The piece s[n] with this hash: index + 1, or 0. */
static uint32_t find(const finder *f, uint64_t h, const char *s, size_t n)
{
    size_t k = (size_t)place(h ^ n) & f->mask;

    for (; f->slot[k]; k = (k + 1) & f->mask) {
        const uint32_t i = f->slot[k] - 1;
        if (f->hash[i] == h && f->v[i].n == n && memcmp(f->v[i].s, s, n) == 0)
            return i + 1;
    }
    return 0;
}

static nb_status prepare(finder *f, size_t n, nb_err *err)
{
    size_t most = 0, slots = 64;

    for (size_t i = 0; i < n; i++)
        most = f->v[i].n > most ? f->v[i].n : most;
    while (slots < 2 * n)
        slots *= 2;
    f->mask = slots - 1;
    f->hash = nb_alloc_array(n + 1, sizeof *f->hash);
    f->slot = nb_calloc(slots, sizeof *f->slot);
    f->pow = nb_alloc_array(most + 1, sizeof *f->pow);
    f->prefix = nb_alloc_array(most + 1, sizeof *f->prefix);
    if (!f->hash || !f->slot || !f->pow || !f->prefix)
        return nb_enomem(err, "the merges");
    f->pow[0] = 1;
    for (size_t i = 1; i <= most; i++)
        f->pow[i] = f->pow[i - 1] * f->factor;
    for (size_t i = 0; i < n; i++) {
        const nb_scored *p = &f->v[i];
        uint64_t h = 0;
        size_t k;
        for (size_t b = 0; b < p->n; b++)
            h = h * f->factor + (unsigned char)p->s[b] + 1;
        f->hash[i] = h;
        if (p->n == 0)
            continue;
        if (find(f, h, p->s, p->n)) {
            char esc[NB_ESC_CAP];
            return nb_fail(err, NB_EFORMAT, "tok.duplicate", "", "token %zu, \"%s\", is the same text as an earlier one", i,
                           nb_esc(esc, sizeof esc, p->s, p->n));
        }
        for (k = (size_t)place(h ^ p->n) & f->mask; f->slot[k]; k = (k + 1) & f->mask)
            ;
        f->slot[k] = (uint32_t)i + 1;
    }
    return NB_OK;
}

static nb_status push(finder *f, cut c, nb_err *err)
{
    if (f->n == MAX_MERGES)
        return nb_fail(err, NB_ELIMIT, "limit.merges", "", "the vocabulary makes more than %u merges", MAX_MERGES);
    if (f->n == f->cap) {
        const size_t cap = f->cap ? f->cap * 2 : 1024;
        cut *p = nb_realloc(f->cuts, cap * sizeof *p);
        if (!p)
            return nb_enomem(err, "the merges");
        f->cuts = p;
        f->cap = cap;
    }
    f->cuts[f->n++] = c;
    return NB_OK;
}

/* All cuts of piece i. */
static nb_status cut_piece(finder *f, uint32_t i, nb_err *err)
{
    const nb_scored *p = &f->v[i];
    uint32_t chars = 0, left = 0;
    nb_status rc = NB_OK;

    f->prefix[0] = 0;
    for (size_t b = 0; b < p->n; b++) {
        f->prefix[b + 1] = f->prefix[b] * f->factor + (unsigned char)p->s[b] + 1;
        chars += ((unsigned char)p->s[b] & 0xC0) != 0x80;
    }
    for (size_t b = 1; rc == NB_OK && b < p->n; b++) {
        const uint64_t rest = f->prefix[p->n] - f->prefix[b] * f->pow[p->n - b];
        uint32_t l, r;
        left += ((unsigned char)p->s[b - 1] & 0xC0) != 0x80;
        l = find(f, f->prefix[b], p->s, b);
        r = l ? find(f, rest, p->s + b, p->n - b) : 0;
        if (r)
            rc = push(f, (cut){ p->score, left, chars - left, { l - 1, r - 1, i } }, err);
    }
    return rc;
}

static int by_index(const void *a, const void *b)
{
    const nb_merge *x = &((const cut *)a)->m, *y = &((const cut *)b)->m;

    if (x->whole != y->whole)
        return x->whole < y->whole ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static int by_score_then_index(const void *a, const void *b)
{
    const cut *x = a, *y = b;

    if (x->score > y->score || x->score < y->score)
        return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left)
        return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right)
        return x->n_right > y->n_right ? -1 : 1;
    return by_index(a, b);
}

nb_status nb_merges_of(const nb_scored *v, size_t n, bool by_score, nb_merge **out, size_t *n_out, nb_err *err)
{
    finder f = { .v = v };
    nb_merge *m = NULL;
    struct timespec now;
    nb_status rc;

    *out = NULL;
    *n_out = 0;
    clock_gettime(CLOCK_MONOTONIC, &now); /* another factor every time: no file can know which pieces collide */
    f.factor = place((uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uint64_t)(uintptr_t)v) | 1;
    rc = n < UINT32_MAX / 4 ? prepare(&f, n, err) : nb_fail(err, NB_ELIMIT, "limit.vocab", "", "%zu tokens", n);
    for (size_t i = 0; rc == NB_OK && i < n; i++)
        rc = cut_piece(&f, (uint32_t)i, err);
    if (rc == NB_OK && !(m = nb_alloc_array(f.n + 1, sizeof *m)))
        rc = nb_enomem(err, "the merges");
    if (rc == NB_OK) {
        if (f.n > 1)
            qsort(f.cuts, f.n, sizeof *f.cuts, by_score ? by_score_then_index : by_index);
        for (size_t i = 0; i < f.n; i++)
            m[i] = f.cuts[i].m;
        *out = m;
        *n_out = f.n;
    }
    nb_free(f.hash);
    nb_free(f.slot);
    nb_free(f.pow);
    nb_free(f.prefix);
    nb_free(f.cuts);
    return rc;
}
