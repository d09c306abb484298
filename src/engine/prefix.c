/* prefix.c - which blocks of a sequence others have computed, and when its own can be found. */
#include <string.h>

#include "engine/engine_priv.h"

static bool caches(const nb_engine *e, const nb_seq *s)
{
    return !e->o.no_prefix_cache && !s->req->no_cache;
}

bool nb_prefix_reads(const nb_engine *e, const nb_seq *s)
{
    return caches(e, s) && !(s->req->prompt_logprobs && s->req->n_told < s->req->n_prompt);
}

static const nb_hash *hash_before(const nb_seq *s, size_t block)
{
    return block ? &s->hash[block - 1] : &s->req->root;
}

static void hash_up_to(nb_seq *s, size_t blocks)
{
    for (; s->n_hash < blocks; s->n_hash++)
        s->hash[s->n_hash] = nb_kv_hash(hash_before(s, s->n_hash), s->ids + s->n_hash * NB_PAGE);
}

const nb_hash *nb_prefix_hash(nb_seq *s, size_t b)
{
    hash_up_to(s, b + 1);
    return &s->hash[b];
}

const nb_hash *nb_prefix_before(nb_seq *s, size_t b)
{
    hash_up_to(s, b);
    return hash_before(s, b);
}

/* Published blocks of the first `most`, into pages. */
static size_t walk(nb_engine *e, nb_seq *s, size_t most, uint32_t *pages)
{
    uint32_t parent = 0;
    size_t n = 0;

    for (; n < most; n++) {
        hash_up_to(s, n + 1);
        parent = nb_kv_find(&e->kv, parent, &s->hash[n], hash_before(s, n), s->ids + n * NB_PAGE);
        if (!parent)
            break;
        pages[n] = parent;
    }
    return n;
}

size_t nb_prefix_find(nb_engine *e, nb_seq *s)
{
    size_t n, before;

    if (!nb_prefix_reads(e, s))
        return 0;
    n = walk(e, s, (s->n_ids - 1) / NB_PAGE, s->pages); /* the last token is computed: its logits are wanted */
    do {                                                /* the longest that all kinds of layers have */
        before = n;
        n = nb_near_usable(e, s->pages, nb_state_usable(e, s->pages, n));
    } while (n < before);
    return n;
}

size_t nb_prefix_peek(nb_engine *e, nb_seq *s)
{
    return nb_prefix_find(e, s);
}

size_t nb_prefix_tail(nb_engine *e, nb_seq *s)
{
    const size_t at = s->n_pages * NB_PAGE, left = s->n_ids - 1 - at;
    size_t shared;
    uint32_t from, page;

    if (left == 0 || e->states || !nb_prefix_reads(e, s))
        return 0;
    from = nb_kv_find_partial(&e->kv, s->n_pages ? s->pages[s->n_pages - 1] : 0, hash_before(s, s->n_pages), s->ids + at,
                              left < NB_PAGE ? left : NB_PAGE, &shared);
    if (!from || e->kv.block[from].stamp == e->step) /* published for this step: there is nothing to copy yet */
        return 0;
    nb_kv_ref(&e->kv, from); /* or it might be the one that is taken */
    page = e->kv.n_free > e->kv.n_reserved ? nb_kv_alloc(&e->kv) : 0;
    if (page) {
        s->pages[s->n_pages] = page;
        if (nb_near_copy(e, s, s->n_pages, from)) {
            nb_exec_copy_page(e->exec, page, from);
            s->n_pages++;
            e->st.copies++;
        } else {
            nb_kv_release(&e->kv, &page, 1);
            page = 0;
        }
    }
    nb_kv_release(&e->kv, &from, 1);
    return page ? shared : 0;
}

void nb_prefix_publish(nb_engine *e, nb_seq *s)
{
    const size_t full = (s->n_computed + s->grant) / NB_PAGE;

    if (!caches(e, s))
        return;
    hash_up_to(s, full);
    for (; s->n_published < full; s->n_published++) {
        const size_t b = s->n_published;
        s->canon = nb_kv_publish(&e->kv, s->pages[b], b ? s->canon : 0, hash_before(s, b), &s->hash[b], s->ids + b * NB_PAGE);
        if (s->canon == s->pages[b])
            e->kv.block[s->pages[b]].stamp = e->step;
    }
}

void nb_prefix_withdraw(nb_engine *e, nb_seq *s)
{
    while (s->n_published > s->offered)
        if (e->kv.block[s->pages[--s->n_published]].stamp == e->step)
            nb_kv_unpublish(&e->kv, s->pages[s->n_published]);
}

void nb_prefix_merge(nb_engine *e, nb_seq *s)
{
    for (size_t b = s->offered; b < s->n_published; b++) {
        const uint32_t own = s->pages[b], parent = b ? s->pages[b - 1] : 0;
        if (e->kv.block[own].published)
            continue;
        const uint32_t first = nb_kv_publish(&e->kv, own, parent, hash_before(s, b), &s->hash[b], s->ids + b * NB_PAGE);
        if (first == own)
            continue;
        nb_kv_ref(&e->kv, first);
        nb_near_merge(e, s, b, own, first);
        nb_kv_release(&e->kv, &own, 1);
        s->pages[b] = first;
        e->st.deduplicated++;
    }
    s->offered = s->n_published;
    s->canon = s->n_published ? s->pages[s->n_published - 1] : 0;
}

void nb_prefix_prove(nb_engine *e, nb_seq *s)
{
    for (; s->n_proven < s->n_published; s->n_proven++)
        e->kv.block[s->pages[s->n_proven]].proven = true;
}

void nb_prefix_forget(nb_engine *e, nb_seq *s, bool poisoned)
{
    size_t n = s->n_published;

    if (!caches(e, s))
        return;
    if (s->state == SEQ_PREEMPTED) /* the table is gone, the blocks may still be there */
        n = walk(e, s, s->n_hash, s->pages);
    while (n-- > 0) {
        const nb_kv_block *b = &e->kv.block[s->pages[n]];
        const uint32_t others = s->state == SEQ_PREEMPTED ? 0 : 1;
        if (!b->proven && (poisoned || b->ref <= others))
            nb_kv_unpublish(&e->kv, s->pages[n]);
    }
}
