/* test_engine.c - random histories over a fake executor whose logits are a hash of the tokens it finds in the pages: what a request
 * gets never depends on its neighbours, and no page is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { VOCAB = 50, PAGES = 24, CONTEXT = 200, EOS = 3 };

/* ---- the fake: a page holds tokens ---- */

typedef struct fake {
    nb_exec base;
    int32_t cell[PAGES * NB_PAGE];
    size_t largest; /* batch seen */
} fake;

static uint64_t mix(uint64_t h, int32_t token)
{
    h = (h ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static void logits_of(uint64_t h, float *out)
{
    for (int v = 0; v < VOCAB; v++)
        out[v] = (float)(mix(h, v) >> 40) / 4194304.0f;
}

static void fake_close(nb_exec *x)
{
    nb_free(x);
}

static nb_status fake_run(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    fake *f = (fake *)x;

    (void)err;
    f->largest = b->m > f->largest ? b->m : f->largest;
    for (size_t i = 0; i < b->m; i++) { /* all keys are written before any is read */
        const nb_seq_view *s = &b->seqs[b->seq[i]];
        assert_true(b->pos[i] / NB_PAGE < s->n_pages);
        f->cell[s->pages[b->pos[i] / NB_PAGE] * NB_PAGE + b->pos[i] % NB_PAGE] = b->token[i];
    }
    for (size_t i = 0; i < b->m; i++) {
        const nb_seq_view *s = &b->seqs[b->seq[i]];
        uint64_t h = 1;
        if (!b->want[i])
            continue;
        for (size_t p = 0; p <= b->pos[i]; p++)
            h = mix(h, f->cell[s->pages[p / NB_PAGE] * NB_PAGE + p % NB_PAGE]);
        logits_of(h, logits);
        logits += VOCAB;
    }
    return NB_OK;
}

static const nb_exec_ops fake_ops = { .close = fake_close, .run = fake_run };

static nb_engine *open_engine(size_t max_batch, size_t chunk, fake **out)
{
    const nb_engine_opts o = { .max_batch = max_batch, .chunk = chunk };
    fake *f = nb_calloc(1, sizeof *f);
    nb_engine *e = NULL;

    assert_non_null(f);
    f->base.ops = &fake_ops;
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, CONTEXT, PAGES, &o, &e, NULL), NB_OK);
    *out = f;
    return e;
}

/* ---- what one request alone must produce ---- */

typedef struct job {
    int32_t prompt[CONTEXT], want[CONTEXT], got[CONTEXT];
    size_t n_prompt, n_want, n_got, max_tokens, cancel_after;
    nb_sampling s;
    uint64_t id;
    nb_finish want_finish, finish;
} job;

static void expect(job *j)
{
    const size_t room = CONTEXT - j->n_prompt;
    const size_t limit = j->max_tokens && j->max_tokens < room ? j->max_tokens : room;
    int32_t all[2 * CONTEXT];
    nb_sampler *s = NULL;
    uint64_t h = 1;

    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    memcpy(all, j->prompt, j->n_prompt * sizeof *all);
    for (size_t i = 0; i < j->n_prompt; i++)
        h = mix(h, all[i]);
    j->want_finish = NB_FINISH_LENGTH;
    while (j->n_want < limit) {
        float logits[VOCAB];
        int32_t id;
        logits_of(h, logits);
        assert_int_equal(nb_sampler_pick(s, logits, &j->s, all, j->n_prompt + j->n_want, j->n_want, &id, NULL), NB_OK);
        if (id == EOS) {
            j->want_finish = NB_FINISH_STOP;
            break;
        }
        all[j->n_prompt + j->n_want] = j->want[j->n_want] = id;
        j->n_want++;
        h = mix(h, id);
    }
    nb_sampler_close(s);
}

static uint64_t pick(uint64_t stream, uint64_t *at, uint64_t n)
{
    return (uint64_t)(nb_rng_uniform(99, stream, (*at)++) * (double)n);
}

static void make_job(job *j, uint64_t stream, uint64_t *at)
{
    memset(j, 0, sizeof *j);
    j->n_prompt = 1 + pick(stream, at, 120);
    for (size_t i = 0; i < j->n_prompt; i++)
        j->prompt[i] = (int32_t)pick(stream, at, VOCAB);
    j->max_tokens = pick(stream, at, 4) ? 1 + pick(stream, at, 60) : 0;
    j->s = (nb_sampling){
        .temperature = pick(stream, at, 2) ? 1 : 0, .top_p = 1, .repetition_penalty = pick(stream, at, 2) ? 1.2f : 1, .seed = stream
    };
    j->cancel_after = pick(stream, at, 5) ? SIZE_MAX : pick(stream, at, 30);
    expect(j);
}

static void take_event(job *jobs, size_t n, const nb_event *ev)
{
    for (size_t i = 0; i < n; i++) {
        job *j = &jobs[i];
        if (j->id != ev->request)
            continue;
        assert_int_equal(j->finish, NB_FINISH_NONE);
        if (ev->kind == NB_EV_DONE) {
            j->finish = ev->finish;
        } else {
            assert_true(j->n_got < j->n_want);
            assert_int_equal(ev->id, j->want[j->n_got]);
            j->got[j->n_got++] = ev->id;
        }
        return;
    }
    fail_msg("event of request %d, which does not exist", (int)ev->request);
}

static void one_history(uint64_t stream, size_t max_batch, size_t chunk)
{
    enum { JOBS = 12 };
    static job jobs[JOBS];
    static const int32_t stop[] = { EOS };
    nb_event ev[2 * 8];
    uint64_t at = 0;
    size_t added = 0, n;
    fake *f;
    nb_engine *e = open_engine(max_batch, chunk, &f);

    for (size_t i = 0; i < JOBS; i++)
        make_job(&jobs[i], stream * 100 + i, &at);
    for (int step = 0; step < 5000 && (added < JOBS || !nb_engine_idle(e)); step++) {
        if (added < JOBS && pick(stream, &at, 6) == 0) {
            job *j = &jobs[added++];
            const nb_request r = { j->prompt, j->n_prompt, j->max_tokens, j->s, stop, 1 };
            assert_int_equal(nb_engine_add(e, &r, &j->id, NULL), NB_OK);
        }
        for (size_t i = 0; i < added; i++)
            if (jobs[i].n_got >= jobs[i].cancel_after && jobs[i].finish == NB_FINISH_NONE)
                nb_engine_cancel(e, jobs[i].id);
        assert_int_equal(nb_engine_step(e, ev, NB_LEN(ev), &n, NULL), NB_OK);
        for (size_t i = 0; i < n; i++)
            take_event(jobs, added, &ev[i]);
    }
    assert_true(nb_engine_idle(e));
    assert_int_equal(nb_engine_free_pages(e), PAGES);
    assert_true(f->largest <= max_batch + chunk);
    for (size_t i = 0; i < JOBS; i++) {
        if (jobs[i].finish == NB_FINISH_CANCEL)
            continue;
        assert_int_equal(jobs[i].finish, jobs[i].want_finish);
        assert_int_equal(jobs[i].n_got, jobs[i].n_want);
    }
    nb_engine_close(e);
}

static void test_random_histories(void **state)
{
    static const struct {
        size_t max_batch, chunk;
    } rows[] = { { 1, 512 }, { 1, 1 }, { 3, 7 }, { 8, 64 }, { 4, 512 } };

    (void)state;
    for (uint64_t i = 0; i < 60; i++)
        one_history(i, rows[i % NB_LEN(rows)].max_batch, rows[i % NB_LEN(rows)].chunk);
}

static void test_refusals(void **state)
{
    static const int32_t ids[CONTEXT + 1] = { 1, 2, VOCAB, -1 };
    static const struct {
        const char *label;
        size_t from, n;
        nb_status want;
    } rows[] = {
        { "no tokens", 0, 0, NB_EARG },
        { "a token past the vocabulary", 0, 3, NB_EARG },
        { "a negative token", 3, 1, NB_EARG },
        { "no room for an answer", 0, CONTEXT, NB_ELIMIT },
        { "longer than the context", 0, CONTEXT + 1, NB_ELIMIT },
        { "fine", 0, 2, NB_OK },
    };
    fake *f;
    nb_engine *e = open_engine(2, 16, &f);
    nb_event ev[4];
    size_t n;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_request r = { ids + rows[i].from, rows[i].n, 1, { .temperature = 0, .top_p = 1, .repetition_penalty = 1 }, NULL, 0 };
        uint64_t id;
        nb_err err = { 0 };
        if (nb_engine_add(e, &r, &id, &err) != rows[i].want)
            fail_msg("%s: %s", rows[i].label, err.what);
    }
    assert_int_equal(nb_engine_step(e, ev, 1, &n, NULL), NB_EARG); /* too little room for events */
    nb_engine_close(e);                                            /* with a request waiting */
}

/* The i-th allocation fails: opening either works or gives everything back. */
static void test_out_of_memory(void **state)
{
    (void)state;
    for (uint64_t i = 1; i < 40; i++) {
        const nb_engine_opts o = { .max_batch = 2, .chunk = 8 };
        const nb_request r = { (const int32_t[]){ 1, 2 }, 2, 3, { .temperature = 0, .top_p = 1, .repetition_penalty = 1 }, NULL, 0 };
        fake *f = nb_calloc(1, sizeof *f);
        nb_engine *e = NULL;
        nb_event ev[4];
        uint64_t id;
        size_t n;
        f->base.ops = &fake_ops;
        nb_mem_fail_at(i);
        nb_status rc = nb_engine_open_exec(&f->base, VOCAB, CONTEXT, PAGES, &o, &e, NULL);
        if (rc == NB_OK)
            rc = nb_engine_add(e, &r, &id, NULL);
        if (rc == NB_OK)
            rc = nb_engine_step(e, ev, NB_LEN(ev), &n, NULL);
        nb_mem_fail_at(0);
        assert_true(rc == NB_OK || rc == NB_ENOMEM);
        nb_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_histories),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
