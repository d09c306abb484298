/* state.c - recurrent and convolution layers keep a state per sequence that cannot be cut back. While a sequence runs it has a slot of
 * the executor; copies made at block borders let a prefix be reused. A copy belongs to a published block and dies with it, so that
 * what finds the block (hash, ids, the chain before) also finds the state. Copies have their own budget and are reused least
 * recently used first. Source: spec serving KV-25, KV-26. */
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "engine/engine_priv.h"

enum { STRIDE = 16 * NB_PAGE }; /* a copy at every multiple of a long prompt, and at its last border */

typedef struct saved {
    uint32_t page, gen, prev, next; /* entry 0 is the end of the list, oldest next to it */
} saved;

struct nb_states {
    size_t bytes; /* of one state */
    size_t n;     /* copies, from 1 on */
    saved *saved;
    uint32_t *of; /* [n_pages] copy that belongs to the block, or 0 */
    unsigned char *buf;
    size_t buf_bytes;
    uint32_t *slots;
    size_t n_slots; /* free ones */
};

nb_status nb_states_open(nb_engine *e, nb_err *err)
{
    const size_t bytes = nb_exec_state_bytes(e->exec);
    nb_states *t;

    if (bytes == 0)
        return NB_OK;
    t = e->states = nb_calloc(1, sizeof *t);
    if (!t)
        return nb_enomem(err, "the states");
    t->bytes = bytes;
    t->n = e->o.n_states ? e->o.n_states : 2 * e->o.max_seqs;
    if (!e->o.n_states && t->n > nb_mem_total() / 8 / bytes)
        t->n = (size_t)(nb_mem_total() / 8 / bytes);
    if (e->o.no_prefix_cache)
        t->n = 0;
    t->saved = nb_calloc(t->n + 1, sizeof *t->saved);
    t->of = nb_calloc(e->kv.n_pages, sizeof *t->of);
    t->slots = nb_calloc(e->o.max_seqs, sizeof *t->slots);
    if (nb_mul_size(t->n ? t->n : 1, bytes, &t->buf_bytes))
        t->buf = nb_huge_alloc(t->buf_bytes); /* touched as far as used */
    if (!t->saved || !t->of || !t->slots || !t->buf)
        return nb_enomem(err, "the states");
    for (size_t i = 0; i <= t->n; i++) {
        t->saved[i].next = (uint32_t)(i == t->n ? 0 : i + 1);
        t->saved[i].prev = (uint32_t)(i == 0 ? t->n : i - 1);
    }
    for (t->n_slots = 0; t->n_slots < e->o.max_seqs; t->n_slots++)
        t->slots[t->n_slots] = (uint32_t)t->n_slots;
    return NB_OK;
}

void nb_states_close(nb_engine *e)
{
    nb_states *t = e->states;

    if (!t)
        return;
    if (t->buf)
        nb_huge_free(t->buf, t->buf_bytes);
    nb_free(t->saved);
    nb_free(t->of);
    nb_free(t->slots);
    nb_free(t);
    e->states = NULL;
}

/* The copy that belongs to what the page holds now, or 0. */
static uint32_t copy_of(const nb_engine *e, uint32_t page)
{
    const nb_states *t = e->states;
    const uint32_t i = t->of[page];

    return i && t->saved[i].page == page && t->saved[i].gen == e->kv.block[page].gen ? i : 0;
}

static void make_newest(nb_states *t, uint32_t i)
{
    saved *s = &t->saved[i];

    t->saved[s->prev].next = s->next;
    t->saved[s->next].prev = s->prev;
    s->prev = t->saved[0].prev;
    s->next = 0;
    t->saved[s->prev].next = i;
    t->saved[0].prev = i;
}

size_t nb_state_usable(const nb_engine *e, const uint32_t *pages, size_t n)
{
    if (!e->states)
        return n;
    while (n > 0 && !copy_of(e, pages[n - 1]))
        n--;
    return n;
}

void nb_state_begin(nb_engine *e, nb_seq *s)
{
    nb_states *t = e->states;
    uint32_t i;

    if (!t)
        return;
    s->slot = t->slots[--t->n_slots];
    s->has_slot = true;
    if (s->n_computed == 0) /* the row at position 0 begins it */
        return;
    i = copy_of(e, s->pages[s->n_pages - 1]);
    nb_exec_state_load(e->exec, s->slot, t->buf + (i - 1) * t->bytes);
    make_newest(t, i);
}

void nb_state_fork(nb_engine *e, const nb_seq *from, nb_seq *to)
{
    nb_states *t = e->states;

    if (!t)
        return;
    to->slot = t->slots[--t->n_slots];
    to->has_slot = true;
    nb_exec_state_copy(e->exec, from->slot, to->slot);
}

void nb_state_end(nb_engine *e, nb_seq *s)
{
    if (s->has_slot)
        e->states->slots[e->states->n_slots++] = s->slot;
    s->has_slot = false;
}

static size_t last_border(const nb_seq *s)
{
    return (s->n_ids - 1) / NB_PAGE * NB_PAGE;
}

size_t nb_state_rows(const nb_engine *e, const nb_seq *s, size_t n)
{
    const size_t at = s->n_computed + s->grant, next = (at / STRIDE + 1) * STRIDE, last = last_border(s);

    if (!e->states || !s->hash || n <= 1)
        return n;
    if (s->grant > 0 && (at % STRIDE == 0 || at == last)) /* the copy is made when the step has run */
        return 0;
    if (at < last && at + n > last)
        n = last - at;
    return at + n > next ? next - at : n;
}

bool nb_state_shared(const nb_engine *e, const nb_seq *s, size_t from, size_t to)
{
    const size_t last = last_border(s);

    return !e->states || to / STRIDE > from / STRIDE || (last > from && last <= to);
}

void nb_state_save(nb_engine *e, nb_seq *s)
{
    nb_states *t = e->states;
    const size_t b = s->n_computed / NB_PAGE;
    const bool decoding = s->n_computed > s->req->n_prompt;
    uint32_t page, i;

    if (!t || t->n == 0 || !s->hash || b == 0 || s->n_computed % NB_PAGE || s->n_published < b)
        return;
    if (!decoding && s->n_computed % STRIDE && s->n_computed != last_border(s))
        return;
    page = s->pages[b - 1];
    if (!e->kv.block[page].published)
        return;
    i = copy_of(e, page);
    if (!i && decoding && s->last_save && t->saved[s->last_save].page == s->last_page) /* one that follows the answer is enough */
        i = s->last_save;
    else if (!i)
        i = t->saved[0].next;
    if (!copy_of(e, page)) {
        if (t->of[t->saved[i].page] == i)
            t->of[t->saved[i].page] = 0;
        nb_exec_state_save(e->exec, s->slot, t->buf + (i - 1) * t->bytes);
        t->saved[i].page = page;
        t->saved[i].gen = e->kv.block[page].gen;
        t->of[page] = i;
        e->st.states_saved++;
    }
    if (decoding) {
        s->last_save = i;
        s->last_page = page;
    }
    make_newest(t, i);
}
