/* test_engine.c - random histories over a fake executor: what a request gets never depends on its neighbours, on slices, on the cache
 * or on lost blocks, and no block is lost. All invariants of KV-4 are checked after every step. */
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
#include "fake_exec.h"

enum { CONTEXT = 200, EOS = 3, MOST_CHOICES = 4 };

/* ---- what one request alone must produce ---- */

typedef struct choice {
    int32_t want[CONTEXT];
    size_t n_want, n_got;
    nb_finish want_finish, finish;
} choice;

typedef struct job {
    int32_t prompt[CONTEXT];
    size_t n_prompt, max_tokens, cancel_after, n;
    nb_sampling s;
    uint64_t id, key;
    choice c[MOST_CHOICES];
} job;

static void expect(job *j, size_t c)
{
    const size_t room = CONTEXT - j->n_prompt;
    const size_t limit = j->max_tokens && j->max_tokens < room ? j->max_tokens : room;
    int32_t all[2 * CONTEXT];
    nb_sampler *s = NULL;
    choice *out = &j->c[c];
    uint64_t h = 1;

    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    memcpy(all, j->prompt, j->n_prompt * sizeof *all);
    for (size_t i = 0; i < j->n_prompt; i++)
        h = fake_mix(h, all[i]);
    out->want_finish = NB_FINISH_LENGTH;
    while (out->n_want < limit) {
        const nb_draw d = { .p = &j->s, .ids = all, .n_prompt = j->n_prompt, .n_ids = j->n_prompt + out->n_want, .choice = c };
        float logits[VOCAB];
        int32_t id;
        fake_logits(h, logits);
        assert_int_equal(nb_sampler_pick(s, logits, &d, &id, NULL, NULL), NB_OK);
        if (id == EOS) {
            out->want_finish = NB_FINISH_STOP;
            break;
        }
        all[j->n_prompt + out->n_want] = out->want[out->n_want] = id;
        out->n_want++;
        h = fake_mix(h, id);
    }
    nb_sampler_close(s);
}

static uint64_t pick(uint64_t stream, uint64_t *at, uint64_t n)
{
    return (uint64_t)(nb_rng_uniform(99, stream, (*at)++) * (double)n);
}

/* Prompts often begin like others do: with `shared` tokens of one of three texts. */
static void make_job(job *j, uint64_t stream, uint64_t *at, size_t most_choices)
{
    const uint64_t text = pick(stream, at, 3);
    const size_t shared = pick(stream, at, 3) ? pick(stream, at, 110) : 0;

    memset(j, 0, sizeof *j);
    j->n_prompt = 1 + pick(stream, at, 120);
    for (size_t i = 0; i < j->n_prompt; i++)
        j->prompt[i] = (int32_t)(i < shared ? (text + 1) * (i + 3) * 7 % VOCAB : pick(stream, at, VOCAB));
    j->max_tokens = pick(stream, at, 4) ? 1 + pick(stream, at, 60) : 0;
    j->s = (nb_sampling){
        .temperature = pick(stream, at, 2) ? 1 : 0, .top_p = 1, .repetition_penalty = pick(stream, at, 2) ? 1.2f : 1, .seed = stream
    };
    j->cancel_after = pick(stream, at, 5) ? SIZE_MAX : pick(stream, at, 30);
    j->key = pick(stream, at, 3) ? 0 : pick(stream, at, 3);
    j->n = pick(stream, at, 3) ? 1 : 1 + pick(stream, at, most_choices);
    for (size_t c = 0; c < j->n; c++)
        expect(j, c);
}

static void take_event(job *jobs, size_t n, const nb_event *ev)
{
    for (size_t i = 0; i < n; i++) {
        job *j = &jobs[i];
        choice *c;
        if (j->id != ev->request)
            continue;
        assert_true(ev->choice < j->n);
        c = &j->c[ev->choice];
        assert_int_equal(c->finish, NB_FINISH_NONE);
        if (ev->err)
            fail_msg("request %d: %s", (int)ev->request, ev->err->what);
        if (ev->kind == NB_EV_DONE) {
            c->finish = ev->finish;
            assert_int_equal(ev->n_prompt, j->n_prompt);
            assert_int_equal(ev->n_output, c->n_got + (ev->finish == NB_FINISH_STOP));
            assert_true(ev->n_cached < j->n_prompt);
        } else {
            assert_int_equal(ev->index, c->n_got);
            assert_true(c->n_got < c->n_want);
            assert_int_equal(ev->id, c->want[c->n_got]);
            c->n_got++;
        }
        return;
    }
    fail_msg("event of request %d, which does not exist", (int)ev->request);
}

static nb_request request_of(const job *j)
{
    static const int32_t stop[] = { EOS };

    return (nb_request){ .ids = j->prompt,
                         .n_ids = j->n_prompt,
                         .max_tokens = j->max_tokens,
                         .sampling = j->s,
                         .stop_ids = stop,
                         .n_stop_ids = 1,
                         .n = j->n,
                         .key = j->key };
}

enum { JOBS = 14 };

/* Returns what the engine counted. */
static nb_engine_stats one_history(uint64_t stream, const nb_engine_opts *o)
{
    static job jobs[JOBS];
    const nb_event *ev;
    nb_engine_stats st;
    uint64_t at = 0;
    size_t added = 0, n;
    fake *f;
    nb_engine *e = fake_engine(*o, &f);

    for (size_t i = 0; i < JOBS; i++)
        make_job(&jobs[i], stream * 100 + i, &at, o->max_seqs < MOST_CHOICES ? o->max_seqs : MOST_CHOICES);
    for (int step = 0; step < 5000 && (added < JOBS || !nb_engine_idle(e)); step++) {
        nb_err err = { 0 };
        if (added < JOBS && pick(stream, &at, 6) == 0) {
            job *j = &jobs[added++];
            const nb_request r = request_of(j);
            assert_int_equal(nb_engine_add(e, &r, &j->id, NULL), NB_OK);
        }
        if (pick(stream, &at, 50) == 0)
            nb_engine_reset_cache(e);
        for (size_t i = 0; i < added; i++)
            if (jobs[i].c[0].n_got >= jobs[i].cancel_after)
                nb_engine_cancel(e, jobs[i].id);
        if (nb_engine_step(e, &ev, &n, &err) != NB_OK)
            fail_msg("history %d, step %d: %s", (int)stream, step, err.what);
        for (size_t i = 0; i < n; i++)
            take_event(jobs, added, &ev[i]);
    }
    assert_true(nb_engine_idle(e));
    assert_int_equal(nb_engine_free_pages(e), o->n_pages - 1);
    assert_true(f->largest <= o->max_batched);
    for (size_t i = 0; i < JOBS; i++)
        for (size_t c = 0; c < jobs[i].n; c++) {
            const choice *x = &jobs[i].c[c];
            if (x->finish == NB_FINISH_CANCEL)
                continue;
            if (x->finish != x->want_finish || x->n_got != x->n_want)
                fail_msg("history %d, job %d choice %d: finish %d with %d tokens, want %d with %d", (int)stream, (int)i, (int)c, x->finish,
                         (int)x->n_got, x->want_finish, (int)x->n_want);
        }
    nb_engine_stats_get(e, &st);
    nb_engine_close(e);
    return st;
}

/* AT-1, AT-5, OV-03, OV-06; NU-13 and, as every other job is drawn with a seed, NU-14: each answer is the one computed alone. Pools from the smallest that holds one context, so that blocks are taken back all the time. */
static void test_random_histories(void **state)
{
    static const nb_engine_opts rows[] = {
        { .max_seqs = 1, .max_batched = 512, .n_pages = 8, .context = CONTEXT },
        { .max_seqs = 1, .max_batched = 33, .chunk = 1, .n_pages = 8, .context = CONTEXT },
        { .max_seqs = 3, .max_batched = 35, .chunk = 7, .n_pages = 10, .context = CONTEXT },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 8, .context = CONTEXT },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 14, .context = CONTEXT, .policy = NB_SCHED_LPM },
        { .max_seqs = 8, .max_batched = 128, .n_pages = 20, .context = CONTEXT, .policy = NB_SCHED_PRIORITY, .step_ms = 70 },
        { .max_seqs = 4, .max_batched = 512, .n_pages = 60, .context = CONTEXT },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 14, .context = CONTEXT, .lfu = true },
        { .max_seqs = 3, .max_batched = 96, .n_pages = 30, .context = CONTEXT, .lfu = true, .n_states = 3 },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 12, .context = CONTEXT, .no_prefix_cache = true },
        { .max_seqs = 6, .max_batched = 96, .n_pages = 12, .context = CONTEXT, .max_per_key = 2 },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 16, .context = CONTEXT, .n_states = 3 },
        { .max_seqs = 4, .max_batched = 512, .n_pages = 60, .context = CONTEXT, .n_states = 40 },
        { .max_seqs = 8, .max_batched = 64, .n_pages = 40, .context = CONTEXT, .n_near = 99, .window = 40 },
        { .max_seqs = 2, .max_batched = 512, .n_pages = 60, .context = CONTEXT, .n_near = 41, .window = 33 },
        { .max_seqs = 4, .max_batched = 64, .n_pages = 9, .context = CONTEXT, .n_near = 52, .window = 1 },
        { .max_seqs = 3, .max_batched = 50, .chunk = 5, .n_pages = 60, .context = CONTEXT, .n_near = 45, .window = 65, .n_states = 20 },
        { .max_seqs = 3, .max_batched = 64, .chunk = 9, .n_pages = 60, .context = CONTEXT, .n_states = 8, .no_prefix_cache = true },
    };
    nb_engine_stats sum = { 0 };
    uint64_t state_hits = 0, near_hits = 0;

    (void)state;
    for (uint64_t i = 0; i < 25 * NB_LEN(rows); i++) {
        const nb_engine_stats st = one_history(i, &rows[i % NB_LEN(rows)]);
        sum.preemptions += st.preemptions;
        sum.hit_tokens += st.hit_tokens;
        sum.evictions += st.evictions;
        sum.copies += st.copies;
        sum.deduplicated += st.deduplicated;
        sum.states_saved += st.states_saved;
        near_hits += rows[i % NB_LEN(rows)].n_near ? st.hit_tokens : 0;
        state_hits += rows[i % NB_LEN(rows)].n_states ? st.hit_tokens : 0;
    }
    /* the histories went through everything they are for */
    assert_true(sum.preemptions > 100 && sum.hit_tokens > 1000 && sum.evictions > 100 && sum.copies > 100);
    assert_true(sum.states_saved > 300 && state_hits > 1000 && near_hits > 1000);
    print_message("%d preemptions, %d hit tokens, %d evictions, %d copies, %d merged\n", (int)sum.preemptions, (int)sum.hit_tokens,
                  (int)sum.evictions, (int)sum.copies, (int)sum.deduplicated);
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
    nb_engine *e = fake_engine((nb_engine_opts){ .max_seqs = 2, .max_batched = 34, .n_pages = 20, .context = CONTEXT }, &f);

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_request r = {
            .ids = ids + rows[i].from, .n_ids = rows[i].n, .max_tokens = 1, .sampling = { .top_p = 1, .repetition_penalty = 1 }
        };
        uint64_t id;
        nb_err err = { 0 };
        if (nb_engine_add(e, &r, &id, &err) != rows[i].want)
            fail_msg("%s: %s", rows[i].label, err.what);
    }
    nb_engine_close(e); /* with a request waiting */
}

/* MM-03: the i-th allocation fails: opening and adding either work or give everything back, and the engine goes on. */
static void test_out_of_memory(void **state)
{
    (void)state;
    for (uint64_t i = 1; i < 80; i++) {
        const nb_engine_opts o = { .max_seqs = 2, .max_batched = 40, .n_pages = 10, .context = CONTEXT };
        const nb_request r = { .ids = (const int32_t[]){ 1, 2 },
                               .n_ids = 2,
                               .max_tokens = 3,
                               .sampling = { .top_p = 1, .repetition_penalty = 1 },
                               .prompt_logprobs = true,
                               .allowed = (const int32_t[]){ 4, 5 },
                               .n_allowed = 2,
                               .n = 2 };
        fake *f = fake_open(o.n_pages);
        nb_engine *e = NULL;
        const nb_event *ev;
        uint64_t id;
        size_t n;
        nb_mem_fail_at(i);
        nb_status rc = nb_engine_open_exec(&f->base, VOCAB, &o, &e, NULL);
        const bool opened = rc == NB_OK;
        if (rc == NB_OK)
            rc = nb_engine_add(e, &r, &id, NULL);
        nb_mem_fail_at(0);
        assert_true(rc == NB_OK || rc == NB_ENOMEM);
        if (opened && rc != NB_OK)
            assert_int_equal(nb_engine_add(e, &r, &id, NULL), NB_OK);
        for (int k = 0; opened && k < 10; k++)
            assert_int_equal(nb_engine_step(e, &ev, &n, NULL), NB_OK);
        assert_true(!opened || nb_engine_idle(e));
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
