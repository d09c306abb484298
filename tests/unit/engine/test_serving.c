/* test_serving.c - what an engine owes to many users at once: tenants, overload, cancels, fairness, failures. Each row of spec
 * hardening 7, 9, 10 that the engine answers for is named where it is tested. The clock is the fake executor's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "fake_exec.h"

enum { CONTEXT = 4096, SEQS = 16 };

static nb_engine_opts opts(void)
{
    return (nb_engine_opts){ .max_seqs = SEQS, .max_batched = 256, .n_pages = 300, .context = CONTEXT };
}

/* Ids of a text: other texts differ from the first token on. */
static const int32_t *text(int which, size_t n)
{
    static int32_t ids[4][CONTEXT];
    int32_t *out = ids[which % 4];

    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)((i * 7 + i / 50 + (size_t)which * 11 + (i == 0) * (size_t)which) % VOCAB);
    return out;
}

static nb_request ask(const int32_t *ids, size_t n, size_t max_tokens)
{
    return (nb_request){ .ids = ids, .n_ids = n, .max_tokens = max_tokens, .sampling = { .top_p = 1, .repetition_penalty = 1 } };
}

static uint64_t add(nb_engine *e, const nb_request *r)
{
    nb_err err = { 0 };
    uint64_t id = 0;

    if (nb_engine_add(e, r, &id, &err) != NB_OK)
        fail_msg("refused: %s", err.what);
    return id;
}

static size_t step(nb_engine *e, const nb_event **ev)
{
    nb_err err = { 0 };
    size_t n;

    if (nb_engine_step(e, ev, &n, &err) != NB_OK)
        fail_msg("%s", err.what);
    return n;
}

/* The end of a request. */
typedef struct ended {
    nb_finish finish;
    size_t n_output, n_cached;
    nb_times times;
    char cls[32];
    int32_t ids[CONTEXT];
} ended;

/* Run until `id` (choice 0) ends. */
static void finish(nb_engine *e, uint64_t id, ended *out)
{
    memset(out, 0, sizeof *out);
    for (int k = 0; k < 20000; k++) {
        const nb_event *ev;
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++) {
            if (ev[i].request != id || ev[i].choice != 0)
                continue;
            if (ev[i].kind == NB_EV_TOKEN)
                out->ids[ev[i].index] = ev[i].id;
            if (ev[i].kind != NB_EV_DONE)
                continue;
            out->finish = ev[i].finish;
            out->n_output = ev[i].n_output;
            out->n_cached = ev[i].n_cached;
            out->times = ev[i].times;
            if (ev[i].err)
                snprintf(out->cls, sizeof out->cls, "%s", ev[i].err->cls);
            return;
        }
    }
    fail_msg("request %d does not end", (int)id);
}

static ended run_one(nb_engine *e, const nb_request *r)
{
    static ended out;

    finish(e, add(e, r), &out);
    return out;
}

/* ---- tenants ---- */

/* AT-4, PC-03, PC-05: what a caller hits is what he, or one who shares his namespace, has put there. */
static void test_tenants(void **state)
{
    static const struct {
        const char *label;
        nb_cache_scope scope;
        const char *key, *salt;
        bool hit;
    } rows[] = {
        { "the first one", NB_SCOPE_KEY, "a", "", false },
        { "the same key", NB_SCOPE_KEY, "a", "", true },
        { "another key", NB_SCOPE_KEY, "b", "", false },
        { "the same key, a salt", NB_SCOPE_KEY, "a", "x", false },
        { "another key, the same salt", NB_SCOPE_KEY, "b", "x", false },
        { "again", NB_SCOPE_KEY, "b", "x", true },
        { "a key that ends like a salt", NB_SCOPE_KEY, "bx", "", false },
        { "the common one", NB_SCOPE_GLOBAL, "", "", false },
        { "the common one again", NB_SCOPE_GLOBAL, "", "", true },
    };
    const int32_t *ids = text(1, 128);
    fake *f;
    nb_engine *e = fake_engine(opts(), &f);

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_request r = ask(ids, 128, 3);
        uint8_t ns[32];
        nb_engine_namespace(e, rows[i].scope, rows[i].key, strlen(rows[i].key), rows[i].salt, strlen(rows[i].salt), ns);
        r.ns = ns;
        const ended end = run_one(e, &r);
        if (end.n_cached != (rows[i].hit ? 127 : 0)) /* three blocks and all of the fourth but its last token (KV-7) */
            fail_msg("%s: %d cached tokens", rows[i].label, (int)end.n_cached);
    }
    nb_engine_close(e);
}

/* PC-02: two engines never know each other's secret, and KV-10, KV-11, KV-9: reset, off, and prompts whose log-probabilities are
 * wanted, which read nothing but leave their blocks. */
static void test_cache_switches(void **state)
{
    const int32_t *ids = text(1, 96);
    nb_request r = ask(ids, 96, 2);
    nb_engine_opts o = opts();
    uint8_t ns[2][32];
    fake *f;
    nb_engine *e = fake_engine(o, &f), *other = fake_engine(o, &f);

    (void)state;
    nb_engine_namespace(e, NB_SCOPE_KEY, "a", 1, "", 0, ns[0]);
    nb_engine_namespace(other, NB_SCOPE_KEY, "a", 1, "", 0, ns[1]);
    assert_memory_not_equal(ns[0], ns[1], 32);
    nb_engine_close(other);
    r.prompt_logprobs = true;
    assert_int_equal(run_one(e, &r).n_cached, 0);
    assert_int_equal(run_one(e, &r).n_cached, 0);
    r.prompt_logprobs = false;
    assert_int_equal(run_one(e, &r).n_cached, 95);
    assert_true(nb_engine_reset_cache(e) >= 3);
    assert_int_equal(nb_engine_reset_cache(e), 0);
    assert_int_equal(run_one(e, &r).n_cached, 0);
    r.no_cache = true;
    assert_int_equal(run_one(e, &r).n_cached, 0);
    nb_engine_close(e);
    o.no_prefix_cache = true;
    e = fake_engine(o, &f);
    r.no_cache = false;
    assert_int_equal(run_one(e, &r).n_cached, 0);
    assert_int_equal(run_one(e, &r).n_cached, 0);
    nb_engine_close(e);
}

/* PC-06: what a broken, cancelled or failed prefill computed cannot be hit. SMP-5: the request ends, nothing is drawn. */
static void test_unproven_blocks(void **state)
{
    static int32_t ids[224];
    nb_engine_opts o = opts();
    const nb_event *ev;
    ended end;
    fake *f;

    (void)state;
    o.max_batched = SEQS + NB_PAGE;
    nb_engine *e = fake_engine(o, &f);
    for (size_t i = 0; i < NB_LEN(ids); i++)
        ids[i] = (int32_t)(i % 40);
    const nb_request r = ask(ids, 224, 5);
    f->poison = 39; /* the first blocks are finite, but no logits say so */
    end = run_one(e, &r);
    assert_int_equal(end.finish, NB_FINISH_ERROR);
    assert_string_equal(end.cls, "sample.numeric");
    assert_int_equal(end.n_output, 0);
    f->poison = -1;

    const uint64_t id = add(e, &r); /* cancelled after a slice */
    step(e, &ev);
    step(e, &ev);
    nb_engine_cancel(e, id);
    finish(e, id, &end);
    assert_int_equal(end.finish, NB_FINISH_CANCEL);

    f->fail_in = 2; /* the model fails in the second slice */
    end = run_one(e, &r);
    assert_int_equal(end.finish, NB_FINISH_ERROR);
    assert_string_equal(end.cls, "engine.step");

    end = run_one(e, &r);
    assert_int_equal(end.n_cached, 0);
    assert_int_equal(end.finish, NB_FINISH_LENGTH);
    assert_int_equal(run_one(e, &r).n_cached, 223);
    nb_engine_close(e);
}

/* PC-04: 200 pairs of a prompt that another tenant has cached and one that nobody has: not one differs in the rows computed or in the
 * time to the first token, on a clock that counts rows. */
static void test_timing_of_tenants(void **state)
{
    static int32_t ids[2][300];
    nb_engine_opts o = opts();
    fake *f;

    (void)state;
    o.n_pages = 4000;
    nb_engine *e = fake_engine(o, &f);
    for (int pair = 0; pair < 200; pair++) {
        uint8_t ns[2][32];
        double ttft[2];
        size_t rows[2];
        const size_t n = 20 + (size_t)pair;
        for (size_t i = 0; i < NB_LEN(ids[0]); i++) {
            ids[0][i] = (int32_t)((i * i + (size_t)pair * 7 + i / (1 + (size_t)pair)) % VOCAB);
            ids[1][i] = (int32_t)((i * i * 3 + (size_t)pair * 5 + 1 + i / (2 + (size_t)pair)) % VOCAB);
        }
        nb_engine_namespace(e, NB_SCOPE_KEY, "a", 1, "", 0, ns[0]);
        nb_engine_namespace(e, NB_SCOPE_KEY, "b", 1, "", 0, ns[1]);
        nb_request r = ask(ids[0], n, 2);
        r.ns = ns[0];
        run_one(e, &r); /* a's prompt is cached */
        for (int cold = 0; cold < 2; cold++) {
            r = ask(ids[cold], n, 2);
            r.ns = ns[1];
            rows[cold] = f->rows;
            const ended end = run_one(e, &r);
            rows[cold] = f->rows - rows[cold];
            ttft[cold] = end.times.first_token - end.times.arrival;
            assert_int_equal(end.n_cached, 0);
        }
        if (pair == 0)
            assert_true(ttft[0] > 0.02);
        assert_int_equal(rows[0], rows[1]);
        assert_true(ttft[0] - ttft[1] < 1e-9 && ttft[1] - ttft[0] < 1e-9);
        nb_engine_reset_cache(e);
    }
    nb_engine_close(e);
}

/* PC-07: conversations that begin alike and hold secrets, over a pool far too small for them, with cancels, resets and pauses: every
 * greedy answer of every turn is the one that its own tokens give. Blocks are filled before reuse, and the fake refuses to read what
 * was not written (PC-08). */
enum { TALKS = 256, TURNS = 40, SAID = 6, TOLD = 5, TALK = 30 + TURNS * (SAID + TOLD) };

typedef struct talk {
    int32_t ids[TALK];
    size_t n, turn, got;
    uint64_t id; /* of the running turn, 0: none */
    int32_t want[TOLD];
} talk;

static void begin_turn(nb_engine *e, talk *t, size_t who, uint64_t *turns)
{
    static const int32_t common[] = { 1, 2, 3, 5, 8, 13, 21, 34, 5, 39, 44, 33, 27, 10, 37, 47, 34, 31, 15, 46, 11, 7, 18, 25 };
    uint64_t h = 1;

    if (t->turn == 0) {
        memcpy(t->ids, common, sizeof common);
        t->n = NB_LEN(common);
        t->ids[t->n++] = (int32_t)(who % VOCAB); /* the secret */
        t->ids[t->n++] = (int32_t)(who / VOCAB);
    }
    for (size_t i = 0; i < SAID; i++)
        t->ids[t->n++] = (int32_t)((t->turn * 3 + i) % VOCAB); /* all say the same */
    for (size_t i = 0; i < t->n; i++)
        h = fake_mix(h, t->ids[i]);
    for (size_t k = 0; k < TOLD; k++) {
        float logits[VOCAB];
        fake_logits(h, logits);
        t->want[k] = nb_argmax(logits, VOCAB);
        h = fake_mix(h, t->want[k]);
    }
    nb_request r = ask(t->ids, t->n, TOLD);
    r.key = who % 5;
    t->got = 0;
    t->id = add(e, &r);
    ++*turns;
}

static void test_conversations(void **state)
{
    static talk talks[TALKS];
    nb_engine_opts o = opts();
    const nb_event *ev;
    nb_engine_stats st;
    uint64_t turns = 0, dice = 1;
    size_t open = TALKS;
    fake *f;

    (void)state;
    memset(talks, 0, sizeof talks);
    o.context = TALK;
    o.n_pages = 120;
    nb_engine *e = fake_engine(o, &f);
    while (open > 0) {
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        for (int k = 0; k < 3; k++) { /* some go on, the rest pauses */
            const size_t who = (dice >> (20 + 9 * k)) % TALKS;
            if (talks[who].id == 0 && talks[who].turn < TURNS)
                begin_turn(e, &talks[who], who, &turns);
        }
        if (dice >> 57 == 0)
            nb_engine_reset_cache(e);
        for (size_t i = 0; dice >> 60 == 1 && i < TALKS; i++)
            if (talks[i].id && talks[i].got == dice % TOLD) {
                nb_engine_cancel(e, talks[i].id);
                break;
            }
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++) {
            talk *t = talks;
            while (t->id != ev[i].request)
                t++;
            if (ev[i].kind == NB_EV_TOKEN) {
                if (ev[i].id != t->want[t->got])
                    fail_msg("conversation %d, turn %d: token %d is %d, alone it is %d", (int)(t - talks), (int)t->turn, (int)t->got,
                             ev[i].id, t->want[t->got]);
                t->ids[t->n++] = ev[i].id;
                t->got++;
                continue;
            }
            t->id = 0; /* a cancelled answer stays as far as it came */
            open -= ++t->turn == TURNS;
        }
    }
    nb_engine_stats_get(e, &st);
    assert_true(turns == TALKS * TURNS && st.evictions > 10000 && st.hit_tokens > 100000 && st.finished[NB_FINISH_CANCEL] > 100);
    assert_int_equal(st.pages_used, 0);
    nb_engine_close(e);
}

/* PC-09: a key with many long requests keeps at most half of the pool from the moment another has work; then the whole. */
static void test_half_the_pool(void **state)
{
    nb_engine_opts o = opts();
    const nb_event *ev;
    nb_engine_stats st;
    uint64_t small = 0;
    fake *f;

    (void)state;
    o.n_pages = 65;
    nb_engine *e = fake_engine(o, &f);
    for (int i = 0; i < 12; i++) {
        nb_request r = ask(text(i, 120), 120, 300);
        r.key = 1;
        r.no_cache = true;
        add(e, &r);
    }
    for (int i = 0; i < 120; i++)
        step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_true(st.pages_used > 60);
    nb_request r = ask(text(3, 700), 700, 200);
    r.key = 2;
    small = add(e, &r);
    bool done = false;
    for (int i = 0; i < 400 && !done; i++) {
        const size_t n = step(e, &ev);
        for (size_t k = 0; k < n; k++)
            done = done || (ev[k].request == small && ev[k].kind == NB_EV_DONE);
        nb_engine_stats_get(e, &st);
    }
    assert_true(done);
    assert_true(st.preemptions > 0);
    while (!nb_engine_idle(e))
        step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_int_equal(st.finished[NB_FINISH_LENGTH], 13);
    nb_engine_close(e);
}

/* PC-10: refused settings and another's failing constraint leave the neighbours' answers as they are. */
static int no_way_on(void *user, size_t choice, uint32_t *bits)
{
    (void)choice;
    (void)bits;
    return ++*(int *)user > 3 ? -1 : 0;
}

static void test_bad_neighbours(void **state)
{
    static ended alone;
    int asked = 0;
    const nb_constraint limit = { .mask = no_way_on, .user = &asked };
    nb_request good = ask(text(2, 40), 40, 30), bad = ask(text(3, 50), 50, 30);
    const nb_event *ev;
    size_t n_got = 0;
    uint64_t id;
    fake *f;
    nb_engine *e = fake_engine(opts(), &f);

    (void)state;
    alone = run_one(e, &good);
    const uint64_t g = add(e, &good);
    bad.limit = &limit;
    const uint64_t b = add(e, &bad);
    bad.sampling.top_p = 2;
    assert_int_equal(nb_engine_add(e, &bad, &id, NULL), NB_EARG);
    while (!nb_engine_idle(e)) {
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++)
            if (ev[i].request == b && ev[i].kind == NB_EV_DONE) {
                assert_string_equal(ev[i].err->cls, "sample.constraint");
                assert_int_equal(ev[i].n_output, 3);
            } else if (ev[i].request == g && ev[i].kind == NB_EV_TOKEN) {
                assert_int_equal(ev[i].id, alone.ids[n_got++]);
            }
    }
    assert_int_equal(n_got, 30);
    nb_engine_close(e);
}

/* ---- overload ---- */

/* OV-01, AT-10: bounds by choices and by tokens at limit and limit + 1; an empty queue takes one of any size; what is refused leaves
 * nothing behind; accepted ones all end; the estimate of the wait is positive and ends with the queue. */
static void test_overload(void **state)
{
    nb_engine_opts o = opts();
    const nb_event *ev;
    nb_engine_stats st;
    size_t taken = 0, refused = 0;
    uint64_t id;
    fake *f;

    (void)state;
    o.max_queued = 8;
    o.max_queued_tokens = 2000;
    nb_engine *e = fake_engine(o, &f);
    nb_request r = ask(text(1, 3000), 3000, 1);
    r.hold = true;
    const uint64_t held = add(e, &r); /* alone: taken */
    r = ask(text(2, 10), 10, 4);
    assert_int_equal(nb_engine_add(e, &r, &id, NULL), NB_EBUSY); /* tokens */
    nb_engine_cancel(e, held);
    step(e, &ev);
    const uint64_t before = nb_mem_now();
    for (int i = 0; i < 24; i++) {
        nb_err err = { 0 };
        r.n = i % 3 == 0 ? 2 : 1;
        const nb_status rc = nb_engine_add(e, &r, &id, &err);
        assert_true(rc == NB_OK || (rc == NB_EBUSY && strcmp(err.cls, "queue.full") == 0));
        taken += rc == NB_OK ? r.n : 0;
        refused += rc != NB_OK;
    }
    assert_int_equal(taken, 8);
    assert_true(refused > 0);
    assert_true(nb_mem_now() < before + 2 * 8 * CONTEXT * 8);
    step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_int_equal(st.rejected, refused + 1);
    assert_int_equal(st.running + st.waiting, 8);
    while (!nb_engine_idle(e))
        step(e, &ev);
    assert_true(nb_engine_drain_s(e) == 0);
    const uint64_t calm = nb_mem_now(); /* OV-14: a burst of 10,000 leaves no more memory in use than there was */
    for (int i = 0; i < 10000; i++) {
        r = ask(text(i, 200), 200, 2);
        (void)nb_engine_add(e, &r, &id, NULL);
        if (i % 1000 == 0)
            step(e, &ev);
    }
    while (!nb_engine_idle(e))
        step(e, &ev);
    step(e, &ev);
    assert_true(nb_mem_now() <= calm);
    for (int i = 0; i < 40; i++) {
        r = ask(text(i, 200), 200, 50);
        (void)nb_engine_add(e, &r, &id, NULL);
    }
    assert_true(nb_engine_drain_s(e) > 0);
    while (!nb_engine_idle(e))
        step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_int_equal(st.waiting + st.running + st.pages_used, 0);
    nb_engine_close(e);
}

/* OV-02: both time limits, on the engine's clock. */
static void test_timeouts(void **state)
{
    ended end;
    nb_engine_opts o = opts();
    nb_request r = ask(text(1, 60), 60, 1000);
    fake *f;

    (void)state;
    o.max_seqs = 1;
    nb_engine *e = fake_engine(o, &f);
    r.timeout = 0.5;
    const uint64_t running = add(e, &r);
    r.queue_timeout = 0.2;
    r.timeout = 0;
    const uint64_t queued = add(e, &r);
    finish(e, queued, &end);
    assert_string_equal(end.cls, "queue.timeout");
    assert_true(end.times.done - end.times.arrival > 0.2 && end.times.done - end.times.arrival < 0.3);
    finish(e, running, &end);
    assert_string_equal(end.cls, "request.timeout");
    assert_true(end.times.done - end.times.arrival > 0.5 && end.times.done - end.times.arrival < 0.6);
    assert_true(end.n_output > 10);
    nb_engine_close(e);
}

/* OV-03, KV-20, KV-23: 64 requests in the smallest pool that may hold one of them; one that can never fit. */
static void test_smallest_pool(void **state)
{
    nb_engine_opts o = opts();
    const nb_event *ev;
    nb_engine_stats st;
    uint64_t id;
    nb_err err = { 0 };
    fake *f;

    (void)state;
    o.n_pages = 6;
    nb_engine *e = fake_engine(o, &f);
    nb_request r = ask(text(0, 100), 100, 61); /* 161 tokens: six blocks */
    assert_int_equal(nb_engine_add(e, &r, &id, &err), NB_ELIMIT);
    assert_string_equal(err.cls, "limit.context");
    for (int i = 0; i < 64; i++) {
        r = ask(text(i, 50 + (size_t)i), 50 + (size_t)i, 40);
        r.n = i % 5 == 0 ? 3 : 1;
        add(e, &r);
    }
    for (int i = 0; i < 60000 && !nb_engine_idle(e); i++)
        step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_int_equal(st.finished[NB_FINISH_LENGTH], 64 + 2 * 13);
    assert_int_equal(nb_engine_free_pages(e), 5);
    nb_engine_close(e);
}

/* OV-04: a key that floods leaves another at least half of what it gets alone. */
static size_t tokens_of(uint64_t key, bool flood)
{
    nb_engine_opts o = opts();
    const nb_event *ev;
    static uint64_t mine[4000];
    size_t n_mine = 0, tokens = 0;
    fake *f;

    o.max_seqs = 4;
    nb_engine *e = fake_engine(o, &f);
    for (int i = 0; flood && i < 200; i++) {
        nb_request r = ask(text(i, 60), 60, 20);
        r.key = key + 1;
        r.no_cache = true;
        add(e, &r);
    }
    while (f->clock < 4) {
        if (n_mine == 0 || n_mine < NB_LEN(mine)) { /* always four of them wait or run */
            nb_engine_stats st;
            nb_engine_stats_get(e, &st);
            for (size_t i = 0; i < 4 && n_mine < NB_LEN(mine) && f->clock < 4 && n_mine < 4 + tokens / 20; i++) {
                nb_request r = ask(text(2, 60), 60, 20);
                r.key = key;
                r.no_cache = true;
                mine[n_mine++] = add(e, &r);
            }
        }
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n_mine && ev[i].kind == NB_EV_TOKEN; k++)
                tokens += mine[k] == ev[i].request;
    }
    nb_engine_close(e);
    return tokens;
}

static void test_flood(void **state)
{
    const size_t alone = tokens_of(7, false), flooded = tokens_of(7, true);

    (void)state;
    if (!(flooded * 2 >= alone))
        fail_msg("%d tokens beside the flood, %d alone", (int)flooded, (int)alone);
}

/* AT-8, OV-05: gone while queued, in prefill, in decode, as one of several choices, held: no row is computed after, all blocks are
 * free after one step. */
static void test_gone(void **state)
{
    static const char *const phases[] = { "queued", "held", "prefill", "decode", "choices" };

    (void)state;
    for (size_t p = 0; p < NB_LEN(phases); p++) {
        nb_engine_opts o = opts();
        const nb_event *ev;
        uint64_t other = 0;
        fake *f;
        o.max_seqs = p == 0 ? 1 : 4;
        nb_engine *e = fake_engine(o, &f);
        nb_request r = ask(text(1, 1000), 1000, 100);
        if (p == 0)
            other = add(e, &r);
        r.hold = p == 1;
        r.n = p == 4 ? 3 : 1;
        const uint64_t id = add(e, &r);
        for (size_t k = 0; k < (p < 3 ? 2u : 12u); k++)
            step(e, &ev);
        nb_engine_cancel(e, id);
        if (other)
            nb_engine_cancel(e, other);
        const size_t rows = f->rows, n = step(e, &ev);
        assert_int_equal(f->rows, rows);
        assert_int_equal(n, (p == 0) + r.n);
        for (size_t i = 0; i < n; i++)
            assert_true(ev[i].kind == NB_EV_DONE && ev[i].finish == NB_FINISH_CANCEL);
        assert_true(ev[n - 1].last);
        assert_int_equal(nb_engine_free_pages(e), o.n_pages - 1);
        assert_true(nb_engine_idle(e));
        nb_engine_close(e);
    }
}

/* OV-06, OV-11: every end of a neighbour, at every place: the others' answers are those they have alone. */
static void test_ends_of_neighbours(void **state)
{
    enum { N = 5 };
    static ended alone[N];
    static int32_t got[N][200];
    fake *f;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        nb_engine *e = fake_engine(opts(), &f);
        const nb_request r = ask(text((int)i, 30 + 20 * i), 30 + 20 * i, 40);
        alone[i] = run_one(e, &r);
        nb_engine_close(e);
    }
    for (int way = 0; way < 3; way++)
        for (size_t when = 1; when < 40; when += 6) {
            size_t n_got[N] = { 0 };
            uint64_t id[N];
            const nb_event *ev;
            nb_engine *e = fake_engine(opts(), &f);
            for (size_t i = 0; i < N; i++) {
                const nb_request r = ask(text((int)i, 30 + 20 * i), 30 + 20 * i, 40);
                id[i] = add(e, &r);
            }
            for (size_t k = 0; !nb_engine_idle(e); k++) {
                if (k == when && way == 0)
                    nb_engine_cancel(e, id[2]);
                if (k == when && way == 1)
                    nb_engine_stop(e, id[2], 0);
                if (k == when && way == 2) {
                    nb_request late = ask(text(9, 300), 300, 2);
                    late.timeout = 1e-9;
                    add(e, &late);
                }
                const size_t n = step(e, &ev);
                for (size_t i = 0; i < n; i++)
                    for (size_t j = 0; j < N; j++)
                        if (ev[i].request == id[j] && ev[i].kind == NB_EV_TOKEN)
                            got[j][n_got[j]++] = ev[i].id;
                        else if (ev[i].request == id[j])
                            assert_int_equal(ev[i].finish, j != 2 || way == 2 ? NB_FINISH_LENGTH : way ? NB_FINISH_STOP : NB_FINISH_CANCEL);
            }
            for (size_t j = 0; j < N; j++) {
                assert_memory_equal(got[j], alone[j].ids, n_got[j] * sizeof **got);
                assert_true(n_got[j] == 40 || (j == 2 && way < 2));
            }
            nb_engine_close(e);
        }
}

/* NU-08: of seven requests two meet logits that are no numbers, one in its prompt, one after its first token. Both end with the error and
 * what was drawn before; the others' answers are those they have alone; what the first computed is not in the cache. */
static void test_not_a_number(void **state)
{
    enum { N = 5, OUT = 40, POISON = 49 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    static const nb_bias never = { POISON, -100 }, always = { POISON, 100 };
    static ended alone[N];
    static int32_t prompt[N + 2][120];
    nb_request r[N + 2];

    (void)state;
    for (size_t i = 0; i < N + 2; i++) {
        for (size_t k = 0; k < 120; k++)
            prompt[i][k] = (int32_t)((k * 7 + i * (k / 3) + i) % 48);
        r[i] = ask(prompt[i], i < N ? 30 + 20 * i : 120, OUT);
        r[i].bias = i == N + 1 ? &always : &never;
        r[i].n_bias = 1;
        r[i].sampling.temperature = (float)(i % 2);
        r[i].sampling.seed = i;
    }
    prompt[N][119] = POISON;
    for (size_t i = 0; i < N; i++) {
        fake *f;
        nb_engine *e = fake_engine(opts(), &f);
        alone[i] = run_one(e, &r[i]);
        assert_int_equal(alone[i].n_output, OUT);
        nb_engine_close(e);
    }
    for (size_t way = 0; way < 2 * NB_LEN(bad); way++) {
        nb_engine_opts o = opts();
        size_t n_got[N + 2] = { 0 }, n_failed = 0;
        uint64_t id[N + 2];
        const nb_event *ev;
        nb_engine_stats st;
        fake *f;

        o.chunk = way % 2 ? 33 : 0;
        nb_engine *e = fake_engine(o, &f);
        f->poison = POISON;
        f->bad = bad[way / 2];
        for (size_t i = 0; i < N + 2; i++)
            id[i] = add(e, &r[i]);
        while (!nb_engine_idle(e)) {
            const size_t n = step(e, &ev);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < N + 2; j++) {
                    if (ev[i].request != id[j])
                        continue;
                    if (ev[i].kind == NB_EV_TOKEN) {
                        assert_int_equal(ev[i].id, j < N ? alone[j].ids[n_got[j]] : POISON);
                        n_got[j]++;
                    } else if (j < N) {
                        assert_int_equal(ev[i].finish, NB_FINISH_LENGTH);
                    } else {
                        assert_int_equal(ev[i].finish, NB_FINISH_ERROR);
                        assert_string_equal(ev[i].err->cls, "sample.numeric");
                        n_failed++;
                    }
                }
        }
        for (size_t j = 0; j < N + 2; j++)
            assert_int_equal(n_got[j], j < N ? OUT : j - N);
        nb_engine_stats_get(e, &st);
        assert_true(n_failed == 2 && st.numeric_errors == 2);
        f->poison = -1;
        assert_int_equal(run_one(e, &r[N]).n_cached, 0);
        assert_int_equal(run_one(e, &r[N]).n_cached, 119);
        nb_engine_close(e);
    }
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* AT-9, SCH-3, SCH-4: 15 decoders while an 8k prompt is read: the gap between tokens stays within twice step_ms at the 99th percentile;
 * two long prompts go on together. */
static void test_long_prompt_beside_decoders(void **state)
{
    static double gap[20000];
    static int32_t ids[2][8192];
    nb_engine_opts o = opts();
    const nb_event *ev;
    double last[SEQS + 8] = { 0 };
    uint64_t big[2] = { 0 };
    size_t n_gaps = 0;
    double first[2] = { 0 };
    fake *f;

    (void)state;
    o.max_seqs = SEQS + 2;
    o.max_batched = 512;
    o.context = 9000;
    o.n_pages = 1500;
    o.step_ms = 100;
    nb_engine *e = fake_engine(o, &f);
    f->cost = 1e-3;
    assert_int_equal(nb_engine_warm(e, NULL), NB_OK);
    for (int i = 0; i < SEQS - 1; i++) {
        nb_request r = ask(text(i, 20), 20, 2000);
        add(e, &r);
    }
    for (int k = 0; first[0] == 0 || first[1] == 0; k++) {
        assert_true(k < 3000);
        if (k == 20)
            for (int i = 0; i < 2; i++) {
                for (size_t t = 0; t < NB_LEN(ids[i]); t++)
                    ids[i][t] = (int32_t)((t * (5 + (size_t)i) + t / 77) % VOCAB);
                nb_request r = ask(ids[i], NB_LEN(ids[i]), 1);
                big[i] = add(e, &r);
            }
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++) {
            for (int b = 0; b < 2; b++)
                if (ev[i].request == big[b] && ev[i].kind == NB_EV_TOKEN)
                    first[b] = ev[i].times.last_token;
            if (ev[i].kind == NB_EV_TOKEN && ev[i].request < SEQS) {
                if (last[ev[i].request] > 0 && n_gaps < NB_LEN(gap))
                    gap[n_gaps++] = ev[i].times.last_token - last[ev[i].request];
                last[ev[i].request] = ev[i].times.last_token;
            }
        }
    }
    qsort(gap, n_gaps, sizeof *gap, by_value);
    if (!(gap[n_gaps * 99 / 100] <= 2 * 0.1))
        fail_msg("the 99th percentile of the gaps is %g s", gap[n_gaps * 99 / 100]);
    assert_true(first[1] - first[0] < 0.25 * (first[0] - 1)); /* not one after the other */
    nb_engine_close(e);
}

/* SCH-2: sixteen clients begin at the same moment, each asks again when it has its answer, and all answers are equally long. They do not
 * stay in step: whoever came first is answered first, and from the second wave on every prompt has a step of its own, and at once. */
static void test_clients_in_step(void **state)
{
    enum { SHARED = 512, OWN = 64, NEW = 64, WAVES = 4 };
    static int32_t ids[SEQS * WAVES][SHARED + OWN];
    static double first[SEQS * WAVES];
    nb_engine_opts o = opts();
    const nb_event *ev;
    size_t n_asked = 0, n_done = 0;
    uint64_t id[SEQS * WAVES];
    fake *f;

    (void)state;
    o.max_batched = 512;
    o.n_pages = 1500;
    o.step_ms = 200;
    nb_engine *e = fake_engine(o, &f);
    f->cost = 1e-3;
    assert_int_equal(nb_engine_warm(e, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(ids); i++)
        for (size_t t = 0; t < SHARED + OWN; t++)
            ids[i][t] = (int32_t)((t < SHARED ? t * 3 : t * 5 + i + i * (t / 3)) % VOCAB);
    while (n_done < NB_LEN(ids)) {
        for (; n_asked < NB_LEN(ids) && n_asked < n_done + SEQS; n_asked++) {
            const nb_request r = ask(ids[n_asked], SHARED + OWN, NEW);
            id[n_asked] = add(e, &r);
        }
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n_asked; k++) {
                if (ev[i].request != id[k] || ev[i].kind != NB_EV_DONE)
                    continue;
                first[k] = ev[i].times.first_token - ev[i].times.arrival;
                n_done++;
            }
    }
    for (size_t k = 1; k < SEQS; k++)
        assert_true(first[k - 1] < first[k]);
    assert_true(first[0] < 1e-3 * (SHARED + OWN + NB_PAGE));
    qsort(first + SEQS, NB_LEN(first) - SEQS, sizeof *first, by_value);
    if (!(first[NB_LEN(first) - 1] < 1e-3 * (OWN + SEQS + 1)))
        fail_msg("a first token of a later wave takes %g s", first[NB_LEN(first) - 1]);
    nb_engine_close(e);
}

/* SCH-5: lower numbers first; a waiting request gains with time. */
static void test_priorities(void **state)
{
    ended end;
    nb_engine_opts o = opts();
    uint64_t id[4];
    double scheduled[4];
    fake *f;

    (void)state;
    o.max_seqs = 1;
    o.policy = NB_SCHED_PRIORITY;
    for (int ageing = 0; ageing < 2; ageing++) {
        o.priority_age_s = ageing ? 0.02 : 0;
        nb_engine *e = fake_engine(o, &f);
        const int priority[4] = { 0, 9, 8, -1 };
        for (size_t i = 0; i < 4; i++) {
            nb_request r = ask(text((int)i, 40), 40, 100);
            r.priority = priority[i];
            if (i == 3) /* comes later */
                finish(e, id[0], &end);
            id[i] = add(e, &r);
        }
        static const size_t order[2][3] = { { 3, 2, 1 }, { 2, 1, 3 } }; /* the old ones overtake the urgent one */
        for (size_t i = 0; i < 3; i++) {
            finish(e, id[order[ageing][i]], &end);
            scheduled[i] = end.times.scheduled;
        }
        assert_true(scheduled[0] < scheduled[1] && scheduled[1] < scheduled[2]);
        nb_engine_close(e);
    }
}

/* KV-5, RAD-5: sixteen prompts with a common beginning arrive together: it is computed once. */
static void test_common_prefix(void **state)
{
    static int32_t ids[SEQS][320];
    nb_engine_opts o = opts();
    const nb_event *ev;
    nb_engine_stats st;
    fake *f;
    nb_engine *e = fake_engine(o, &f);

    (void)state;
    for (size_t i = 0; i < SEQS; i++) {
        for (size_t t = 0; t < NB_LEN(ids[i]); t++)
            ids[i][t] = (int32_t)((t < 256 ? t * 3 : t * 5 + i) % VOCAB);
        const nb_request r = ask(ids[i], NB_LEN(ids[i]), 2);
        add(e, &r);
    }
    while (!nb_engine_idle(e))
        step(e, &ev);
    nb_engine_stats_get(e, &st);
    assert_int_equal(st.hit_tokens, 15 * 256);
    assert_int_equal(st.computed_tokens, 256 + 16 * 64);
    nb_engine_close(e);
}

/* MM-02: decoding allocates nothing. */
static void test_steady_state(void **state)
{
    const nb_event *ev;
    fake *f;
    nb_engine *e = fake_engine(opts(), &f);

    (void)state;
    for (int i = 0; i < SEQS; i++) {
        nb_request r = ask(text(i, 100), 100, 200);
        r.sampling.temperature = 1;
        r.logprobs = true;
        r.top = 5;
        add(e, &r);
    }
    for (int i = 0; i < 20; i++)
        step(e, &ev);
    nb_mem_fail_at(0);
    for (int i = 0; i < 100; i++)
        step(e, &ev);
    assert_int_equal(nb_mem_fail_at(0), 0);
    nb_engine_close(e);
}

/* AT-5, KV-17: four choices of one prompt, ending in the middle and at the border of a block, are the four answers with n = 1 and the
 * corresponding streams; their first tokens come from one row; greedy choices are equal. */
static void test_choices(void **state)
{
    static ended want[4];
    static int32_t got[4][64];

    (void)state;
    for (size_t n_ids = 62; n_ids < 67; n_ids++)
        for (int greedy = 0; greedy < 2; greedy++) {
            nb_request r = ask(text(1, n_ids), n_ids, 50);
            size_t n_got[4] = { 0 }, ends = 0;
            const nb_event *ev;
            fake *f;
            r.sampling.temperature = greedy ? 0 : 1;
            r.sampling.seed = 5;
            for (size_t c = 0; c < 4; c++) {
                nb_engine *e = fake_engine(opts(), &f);
                r.first_choice = c;
                want[c] = run_one(e, &r);
                nb_engine_close(e);
            }
            r.first_choice = 0;
            r.n = 4;
            nb_engine *e = fake_engine(opts(), &f);
            add(e, &r);
            while (!nb_engine_idle(e)) {
                const size_t n = step(e, &ev);
                for (size_t i = 0; i < n; i++)
                    if (ev[i].kind == NB_EV_TOKEN)
                        got[ev[i].choice][n_got[ev[i].choice]++] = ev[i].id;
                    else
                        assert_int_equal(ev[i].last, ++ends == 4);
            }
            for (size_t c = 0; c < 4; c++) {
                assert_int_equal(n_got[c], 50);
                assert_memory_equal(got[c], want[c].ids, 50 * sizeof **got);
            }
            assert_true(greedy == (memcmp(got[0], got[1], sizeof got[0]) == 0));
            assert_int_equal(nb_engine_free_pages(e), 299);
            assert_true(f->rows < n_ids + 4 * 50);
            nb_engine_close(e);
        }
}

/* SMP-11: log-probabilities of a prompt, in slices and with others beside it, are those of its own rows; of drawn tokens those that
 * were asked for by name. */
static void test_prompt_logprobs(void **state)
{
    static const int32_t named[] = { 7, 3 };
    const int32_t *ids = text(1, 150);
    nb_request r = ask(ids, 150, 2), other = ask(text(2, 50), 50, 60);
    nb_sampler *s = NULL;
    const nb_event *ev;
    size_t told = 0;
    fake *f;
    nb_engine *e = fake_engine(opts(), &f);

    (void)state;
    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    add(e, &other);
    r.prompt_logprobs = r.logprobs = true;
    r.top = 3;
    r.named = named;
    r.n_named = 2;
    add(e, &r);
    while (!nb_engine_idle(e)) {
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++) {
            uint64_t h = 1;
            if (ev[i].kind == NB_EV_TOKEN && ev[i].request == 2)
                assert_true(ev[i].logprob && ev[i].n_top == 2 && ev[i].logprob[0].id == ev[i].id && told == 1 &&
                            ev[i].logprob[1].id + ev[i].logprob[2].id == named[0] + named[1] &&
                            ev[i].logprob[1].rank < ev[i].logprob[2].rank);
            if (ev[i].kind != NB_EV_PROMPT)
                continue;
            assert_int_equal(ev[i].n_prompt, 150);
            for (size_t p = 1; p < 150; p++) {
                float logits[VOCAB];
                nb_logprob lp[4];
                h = fake_mix(h, ids[p - 1]);
                fake_logits(h, logits);
                assert_int_equal(nb_sampler_logprobs(s, logits, ids[p], NULL, 3, lp, NULL), NB_OK);
                assert_memory_equal(lp, ev[i].prompt + p * 4, sizeof lp);
            }
            told++;
        }
    }
    assert_int_equal(told, 1);
    nb_sampler_close(s);
    nb_engine_close(e);
}

/* A constraint is asked before each token of each choice and told what was drawn, exactly once, also when blocks are taken back. */
typedef struct only_even {
    size_t n[4];
    int32_t ids[4][100];
} only_even;

static int even_mask(void *user, size_t choice, uint32_t *bits)
{
    (void)user;
    (void)choice;
    for (int i = 0; i < VOCAB; i += 2)
        bits[i / 32] |= 1u << i % 32;
    return 1;
}

static void even_accept(void *user, size_t choice, int32_t id)
{
    only_even *u = user;

    u->ids[choice][u->n[choice]++] = id;
}

static void test_constraint(void **state)
{
    static only_even u;
    const nb_constraint limit = { even_mask, even_accept, &u };
    nb_engine_opts o = opts();
    nb_engine_stats st;
    const nb_event *ev;
    size_t n_got[4] = { 0 };
    fake *f;

    (void)state;
    o.n_pages = 9;
    nb_engine *e = fake_engine(o, &f);
    nb_request r = ask(text(1, 40), 40, 90), other = ask(text(2, 40), 40, 90);
    r.limit = &limit;
    r.n = 3;
    r.sampling.temperature = 1;
    r.hold = true;
    const uint64_t id = add(e, &r);
    add(e, &other);
    step(e, &ev);
    nb_engine_release(e, id, NULL);
    while (!nb_engine_idle(e)) {
        const size_t n = step(e, &ev);
        for (size_t i = 0; i < n; i++)
            if (ev[i].request == id && ev[i].kind == NB_EV_TOKEN) {
                assert_int_equal(ev[i].id % 2, 0);
                assert_int_equal(ev[i].id, u.ids[ev[i].choice][n_got[ev[i].choice]++]);
            }
    }
    for (size_t c = 0; c < 3; c++)
        assert_true(u.n[c] == 90 && n_got[c] == 90);
    nb_engine_stats_get(e, &st);
    assert_true(st.preemptions > 0);
    nb_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_cache_switches),
        cmocka_unit_test(test_unproven_blocks),
        cmocka_unit_test(test_timing_of_tenants),
        cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_half_the_pool),
        cmocka_unit_test(test_bad_neighbours),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_smallest_pool),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_ends_of_neighbours),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_long_prompt_beside_decoders),
        cmocka_unit_test(test_clients_in_step),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_common_prefix),
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_constraint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
