/* near.c - pages of the layers with a sliding window. They are few: a sequence needs those of its last blocks only. Every block may
 * have one such page; it is held while a running sequence can still look at it, and after that kept, least recently used first, for
 * those who hit the block. A prefix can be reused up to a block before which the pages of a window are still there. Source: spec
 * serving 2.7, KV-25. */
#include <string.h>

#include "base/mem.h"
#include "engine/engine_priv.h"

struct nb_near {
    size_t window;         /* tokens */
    uint32_t *of;          /* [blocks] the near page of a block, 0: none */
    uint32_t *need;        /* [blocks] running sequences that can look at it */
    uint32_t *prev, *next; /* [blocks] list of blocks that nobody looks at, oldest first; 0 is its end */
    uint32_t *free;        /* near pages that nobody has */
    size_t n_free;
};

size_t nb_near_pages(size_t window, size_t max_seqs, size_t max_batched)
{
    const size_t one = nb_blocks(window) + 4; /* of a sequence: the window across borders, a slice's ends, a copy */

    return 2 * max_seqs * one + nb_blocks(max_batched) + 1; /* twice: for prefixes that nobody runs */
}

nb_status nb_near_open(nb_engine *e, nb_err *err)
{
    const size_t blocks = e->kv.n_pages;
    nb_near *t;

    if (e->o.n_near == 0)
        return NB_OK;
    if (e->o.n_near < nb_near_pages(e->o.window, e->o.max_seqs, e->o.max_batched))
        return nb_fail(err, NB_EARG, "engine.size", "KV-25", "%zu pages for layers with a window, %zu are needed", e->o.n_near,
                       nb_near_pages(e->o.window, e->o.max_seqs, e->o.max_batched));
    t = e->near = nb_calloc(1, sizeof *t);
    if (!t)
        return nb_enomem(err, "the window pages");
    t->window = e->o.window;
    t->of = nb_calloc(blocks, sizeof *t->of);
    t->need = nb_calloc(blocks, sizeof *t->need);
    t->prev = nb_calloc(blocks, sizeof *t->prev);
    t->next = nb_calloc(blocks, sizeof *t->next);
    t->free = nb_calloc(e->o.n_near, sizeof *t->free);
    if (!t->of || !t->need || !t->prev || !t->next || !t->free)
        return nb_enomem(err, "the window pages");
    for (size_t p = e->o.n_near; p-- > 1;)
        t->free[t->n_free++] = (uint32_t)p;
    return NB_OK;
}

void nb_near_close(nb_engine *e)
{
    nb_near *t = e->near;

    if (!t)
        return;
    nb_free(t->of);
    nb_free(t->need);
    nb_free(t->prev);
    nb_free(t->next);
    nb_free(t->free);
    nb_free(t);
    e->near = NULL;
}

/* ---- blocks and their near pages ---- */

static void unlink_block(nb_near *t, uint32_t b)
{
    t->next[t->prev[b]] = t->next[b];
    t->prev[t->next[b]] = t->prev[b];
}

static void give_back(nb_near *t, uint32_t b)
{
    t->free[t->n_free++] = t->of[b];
    t->of[b] = 0;
}

/* The block holds something else from now on. */
static void forget(nb_near *t, uint32_t b)
{
    if (t->of[b] && t->need[b] == 0) {
        unlink_block(t, b);
        give_back(t, b);
    }
}

static void hold(nb_near *t, uint32_t b)
{
    if (t->need[b]++ == 0 && t->of[b])
        unlink_block(t, b);
}

static void drop(const nb_engine *e, uint32_t b)
{
    nb_near *t = e->near;

    if (--t->need[b] > 0 || t->of[b] == 0)
        return;
    if (!e->kv.block[b].published) { /* nobody will find it */
        give_back(t, b);
        return;
    }
    t->next[b] = 0;
    t->prev[b] = t->prev[0];
    t->next[t->prev[0]] = b;
    t->prev[0] = b;
}

/* A near page for block b, which its new owner writes. */
static bool take(nb_near *t, uint32_t b)
{
    if (t->n_free == 0 && t->next[0]) {
        const uint32_t oldest = t->next[0];
        unlink_block(t, oldest);
        give_back(t, oldest);
    }
    if (t->n_free == 0)
        return false;
    t->of[b] = t->free[--t->n_free];
    t->need[b] = 1;
    return true;
}

/* ---- sequences ---- */

/* The first block that a row at position pos looks at. */
static size_t first_block(const nb_near *t, size_t pos)
{
    return pos + 1 > t->window ? (pos + 1 - t->window) / NB_PAGE : 0;
}

size_t nb_near_usable(const nb_engine *e, const uint32_t *pages, size_t n)
{
    const nb_near *t = e->near;

    for (size_t b = n; t && b-- > first_block(t, n * NB_PAGE);)
        if (!t->of[pages[b]]) {
            n = b;
            b = n; /* and again for the shorter one */
        }
    return n;
}

void nb_near_begin(nb_engine *e, nb_seq *s)
{
    const nb_near *t = e->near;

    if (!t)
        return;
    s->near_first = first_block(t, s->n_computed);
    for (size_t b = s->near_first; b < s->n_pages; b++) {
        hold(e->near, s->pages[b]);
        s->near[b] = t->of[s->pages[b]];
    }
}

bool nb_near_add(nb_engine *e, nb_seq *s, size_t b)
{
    if (!e->near)
        return true;
    forget(e->near, s->pages[b]);
    if (!take(e->near, s->pages[b]))
        return false;
    s->near[b] = e->near->of[s->pages[b]];
    if (e->o.check)
        nb_exec_fill_near(e->exec, s->near[b], 0xff);
    return true;
}

bool nb_near_copy(nb_engine *e, nb_seq *s, size_t b, uint32_t from)
{
    const uint32_t page = e->near ? e->near->of[from] : 0;

    if (!e->near)
        return true;
    if (page == 0)
        return false;
    hold(e->near, from); /* or it might be the one that is taken */
    if (!nb_near_add(e, s, b)) {
        drop(e, from);
        return false;
    }
    nb_exec_copy_near(e->exec, s->near[b], page);
    drop(e, from);
    return true;
}

void nb_near_left(nb_engine *e, uint32_t block)
{
    if (e->near)
        drop(e, block);
}

void nb_near_advance(nb_engine *e, nb_seq *s)
{
    if (!e->near)
        return;
    for (const size_t first = first_block(e->near, s->n_computed); s->near_first < first; s->near_first++) {
        drop(e, s->pages[s->near_first]);
        s->near[s->near_first] = 0;
    }
}

void nb_near_merge(nb_engine *e, nb_seq *s, size_t b, uint32_t own, uint32_t other)
{
    nb_near *t = e->near;

    if (!t || b < s->near_first)
        return;
    hold(t, other);
    if (t->of[other] == 0) {
        t->of[other] = t->of[own];
        t->of[own] = 0;
    }
    drop(e, own);
    s->near[b] = t->of[other];
}

void nb_near_fork(nb_engine *e, const nb_seq *from, nb_seq *to)
{
    if (!e->near)
        return;
    to->near_first = from->near_first;
    memcpy(to->near, from->near, from->n_pages * sizeof *to->near);
    for (size_t b = to->near_first; b < to->n_pages; b++)
        hold(e->near, to->pages[b]);
}

void nb_near_end(nb_engine *e, nb_seq *s)
{
    for (size_t b = s->near_first; e->near && b < s->n_pages; b++)
        drop(e, s->pages[b]);
    s->near_first = 0;
}

nb_status nb_near_check(const nb_engine *e, uint32_t *count, nb_err *err)
{
    const nb_near *t = e->near;
    size_t kept = 0, held = 0;

    if (!t)
        return NB_OK;
    memset(count, 0, e->kv.n_pages * sizeof *count);
    for (size_t i = 0; i < e->n_live; i++)
        for (size_t b = e->live[i]->near_first; b < e->live[i]->n_pages; b++) {
            const uint32_t page = e->live[i]->pages[b];
            count[page]++;
            if (t->of[page] == 0 || e->live[i]->near[b] != t->of[page])
                return nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-25", "block %u is looked at, its near page is %u, not %u", page,
                               t->of[page], e->live[i]->near[b]);
        }
    for (uint32_t b = t->next[0]; b; b = t->next[b])
        kept++;
    for (size_t b = 1; b < e->kv.n_pages; b++) {
        held += t->of[b] && t->need[b] > 0;
        if (t->need[b] != count[b])
            return nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-25", "block %zu is counted %u times, looked at by %u", b, t->need[b],
                           count[b]);
    }
    return kept + held + t->n_free == e->o.n_near - 1
               ? NB_OK
               : nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-25", "%zu near pages are kept, %zu held, %zu free, of %zu", kept, held,
                         t->n_free, e->o.n_near - 1);
}
