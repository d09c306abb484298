/* fake_exec.h - an executor whose pages hold tokens and whose logits are a hash of the tokens it finds in the pages, up to the row's
 * own: what a request gets shows whether its table was right. Filled pages hold ids that no row may read. */
#ifndef NB_TESTS_FAKE_EXEC_H
#define NB_TESTS_FAKE_EXEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

enum { VOCAB = 50 };

typedef struct fake {
    nb_exec base;
    size_t n_pages, largest, rows, runs; /* largest: batch seen */
    int fail_in;                         /* run number from now that fails; 0: none */
    int32_t poison;                      /* a sequence that holds this id gives `bad`; -1: none */
    float bad;                           /* NaN, unless changed; -Inf: in all logits, else in one */
    double clock, cost;                  /* seconds, moved by cost a row and run */
    int32_t *cell;                       /* [n_pages][NB_PAGE] */
    size_t n_near, window;               /* tokens are kept a second time in pages of a window: those that a row may look at */
    int32_t *near;                       /* [n_near][NB_PAGE] */
    bool stateful;                       /* keeps a state too: the hash of the tokens so far */
    struct fake_state {
        uint32_t tokens;
        uint64_t hash;
    } state[16];
} fake;

static inline uint64_t fake_mix(uint64_t h, int32_t token)
{
    h = (h ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static inline void fake_logits(uint64_t h, float *out)
{
    for (int v = 0; v < VOCAB; v++)
        out[v] = (float)(fake_mix(h, v) >> 40) / 4194304.0f;
}

static void fake_close(nb_exec *x)
{
    nb_free(((fake *)x)->cell);
    nb_free(((fake *)x)->near);
    nb_free(x);
}

static uint64_t fake_bytes(const nb_exec *x)
{
    return ((const fake *)x)->n_pages * NB_PAGE * 4;
}

static nb_status fake_run(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    fake *f = (fake *)x;

    f->runs++;
    f->rows += b->m;
    f->clock += f->cost * (double)(b->m + 1);
    f->largest = b->m > f->largest ? b->m : f->largest;
    for (size_t i = 0; i < b->m; i++) { /* all keys are written before any is read */
        const nb_seq_view *s = &b->seqs[b->seq[i]];
        assert_true(b->pos[i] / NB_PAGE < s->n_pages);
        assert_true(s->pages[b->pos[i] / NB_PAGE] > 0 && s->pages[b->pos[i] / NB_PAGE] < f->n_pages);
        f->cell[s->pages[b->pos[i] / NB_PAGE] * NB_PAGE + b->pos[i] % NB_PAGE] = b->token[i];
        if (f->n_near) {
            assert_true(s->near[b->pos[i] / NB_PAGE] > 0 && s->near[b->pos[i] / NB_PAGE] < f->n_near);
            f->near[s->near[b->pos[i] / NB_PAGE] * NB_PAGE + b->pos[i] % NB_PAGE] = b->token[i];
        }
    }
    for (size_t i = 0; f->stateful && i < b->m; i++) {
        struct fake_state *s = &f->state[b->seqs[b->seq[i]].state];
        if (b->pos[i] == 0)
            *s = (struct fake_state){ 0, 1 };
        assert_int_equal(s->tokens, b->pos[i]);
        s->tokens++;
        s->hash = fake_mix(s->hash, b->token[i]);
    }
    if (f->fail_in > 0 && --f->fail_in == 0)
        return nb_fail(err, NB_ENOMEM, "engine.step", "", "made to fail");
    for (size_t i = 0; i < b->m; i++) {
        const nb_seq_view *s = &b->seqs[b->seq[i]];
        uint64_t h = 1;
        bool bad = false;
        for (size_t p = b->pos[i] + 1 > f->window ? b->pos[i] + 1 - f->window : 0; f->n_near && p <= b->pos[i]; p++)
            assert_int_equal(f->near[s->near[p / NB_PAGE] * NB_PAGE + p % NB_PAGE], f->cell[s->pages[p / NB_PAGE] * NB_PAGE + p % NB_PAGE]);
        if (!b->want[i])
            continue;
        for (size_t p = 0; p <= b->pos[i]; p++) {
            const int32_t id = f->cell[s->pages[p / NB_PAGE] * NB_PAGE + p % NB_PAGE];
            assert_true(id >= 0 && id < VOCAB);
            bad = bad || id == f->poison;
            h = fake_mix(h, id);
        }
        if (f->stateful && b->pos[i] + 1 == f->state[b->seqs[b->seq[i]].state].tokens)
            assert_true(h == f->state[b->seqs[b->seq[i]].state].hash);
        fake_logits(h, logits);
        if (bad)
            for (int v = f->bad < 0 ? 0 : VOCAB / 2; v < (f->bad < 0 ? VOCAB : VOCAB / 2 + 1); v++)
                logits[v] = f->bad;
        logits += VOCAB;
    }
    return NB_OK;
}

static void fake_copy_page(nb_exec *x, uint32_t to, uint32_t from)
{
    fake *f = (fake *)x;

    assert_true(to > 0 && to < f->n_pages && from > 0 && from < f->n_pages && to != from);
    memcpy(f->cell + to * NB_PAGE, f->cell + from * NB_PAGE, NB_PAGE * sizeof *f->cell);
}

static void fake_fill_page(nb_exec *x, uint32_t page, uint8_t byte)
{
    fake *f = (fake *)x;

    memset(f->cell + page * NB_PAGE, byte, NB_PAGE * sizeof *f->cell);
}

static size_t fake_page_io(nb_exec *x, uint32_t page, unsigned char *out, const unsigned char *in)
{
    int32_t *cell = ((fake *)x)->cell + page * NB_PAGE;

    if (out)
        memcpy(out, cell, NB_PAGE * sizeof *cell);
    if (in)
        memcpy(cell, in, NB_PAGE * sizeof *cell);
    return NB_PAGE * sizeof *cell;
}

static void fake_copy_near(nb_exec *x, uint32_t to, uint32_t from)
{
    fake *f = (fake *)x;

    assert_true(to > 0 && to < f->n_near && from > 0 && from < f->n_near && to != from);
    memcpy(f->near + to * NB_PAGE, f->near + from * NB_PAGE, NB_PAGE * sizeof *f->near);
}

static void fake_fill_near(nb_exec *x, uint32_t page, uint8_t byte)
{
    fake *f = (fake *)x;

    memset(f->near + page * NB_PAGE, byte, NB_PAGE * sizeof *f->near);
}

static size_t fake_state_bytes(const nb_exec *x)
{
    return ((const fake *)x)->stateful ? sizeof(struct fake_state) : 0;
}

static unsigned char *fake_state_at(nb_exec *x, size_t slot)
{
    return (unsigned char *)&((fake *)x)->state[slot];
}

static double fake_now(void *user)
{
    return ((fake *)user)->clock;
}

static const nb_exec_ops fake_ops = { .close = fake_close,
                                      .bytes = fake_bytes,
                                      .run = fake_run,
                                      .copy_page = fake_copy_page,
                                      .fill_page = fake_fill_page,
                                      .page_io = fake_page_io,
                                      .copy_near = fake_copy_near,
                                      .fill_near = fake_fill_near,
                                      .state_bytes = fake_state_bytes,
                                      .state_at = fake_state_at };

/* NULL when out of memory. */
static fake *fake_open(size_t n_pages)
{
    fake *f = nb_calloc(1, sizeof *f);

    if (!f)
        return NULL;
    f->base.ops = &fake_ops;
    f->n_pages = n_pages;
    f->clock = 1;
    f->cost = 1e-3;
    f->poison = -1;
    f->bad = NAN;
    f->cell = nb_alloc_array(n_pages * NB_PAGE, sizeof *f->cell);
    if (f->cell)
        memset(f->cell, 0xff, n_pages * NB_PAGE * sizeof *f->cell);
    return f;
}

/* An engine that checks itself after each step, on the fake's clock; with n_states over a model that keeps a state. */
static inline nb_engine *fake_engine(nb_engine_opts o, fake **out)
{
    fake *f = fake_open(o.n_pages);
    nb_engine *e = NULL;

    assert_non_null(f);
    f->stateful = o.n_states > 0;
    f->n_near = o.n_near;
    f->window = o.window;
    f->near = o.n_near ? nb_calloc(o.n_near * NB_PAGE, sizeof *f->near) : NULL;
    o.check = true;
    o.now = fake_now;
    o.now_user = f;
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, &o, &e, NULL), NB_OK);
    *out = f;
    return e;
}

#endif
