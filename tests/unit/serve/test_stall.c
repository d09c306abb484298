/* test_stall.c - an engine that hangs in the middle of a step: what the server says meanwhile, and that it goes on (OV-01, OV-09, OV-13). */
#include "live.h"

#include <pthread.h>
#include <stdatomic.h>

#include "unit/engine/fake_exec.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t open;
    bool shut;
    atomic_int inside;
} door = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 };

static void set_door(bool shut)
{
    pthread_mutex_lock(&door.lock);
    door.shut = shut;
    pthread_cond_broadcast(&door.open);
    pthread_mutex_unlock(&door.lock);
}

static nb_status run_behind_door(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    pthread_mutex_lock(&door.lock);
    door.inside++;
    while (door.shut)
        pthread_cond_wait(&door.open, &door.lock);
    door.inside--;
    pthread_mutex_unlock(&door.lock);
    return fake_run(x, b, logits, err);
}

static int open_server(void **state)
{
    static live x;
    static nb_exec_ops ops;
    nb_err err = { 0 };
    fake *f;

    live_defaults(&x);
    x.o.stall_s = 0.3;
    x.m.max_queued = 4; /* the one in its first step still counts */
    x.e.max_seqs = 1;
    assert_int_equal(nb_pool_open(&x.pool, 1, &err), NB_OK);
    x.e.pool = x.pool;
    assert_int_equal(nb_load_store(&x.l, "models/pemberley-4m", NULL, &err), NB_OK);
    assert_int_equal(nb_load_text(&x.l, "models/pemberley-4m", &err), NB_OK);
    f = fake_open(x.e.n_pages);
    assert_non_null(f);
    ops = fake_ops;
    ops.run = run_behind_door;
    f->base.ops = &ops;
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, &x.e, &x.m.engine, &err), NB_OK);
    x.m.tok = x.l.tok;
    x.m.defaults = (nb_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    x.m.vocab = VOCAB;
    assert_int_equal(nb_server_open(&x.o, &x.s, &err), NB_OK);
    assert_int_equal(nb_server_ready(x.s, &x.m, &err), NB_OK);
    *state = &x;
    return 0;
}

static int close_server(void **state)
{
    live_close(*state);
    return 0;
}

static void nap(void)
{
    const struct timespec t = { 0, 5000000 };

    nanosleep(&t, NULL);
}

typedef struct asker {
    const live *x;
    pthread_t t;
    int status;
    nb_buf raw, out;
} asker;

static void *ask(void *arg)
{
    asker *a = arg;

    a->status =
        live_ask(a->x, "POST", "/v1/completions", "", "{\"prompt\":[5,6,7],\"max_tokens\":3,\"ignore_eos\":true}", &a->out, &a->raw);
    return NULL;
}

static unsigned header(const char *raw, const char *name)
{
    const char *p = strstr(raw, name);

    return p ? (unsigned)strtoul(p + strlen(name), NULL, 10) : 0;
}

static void test_stall(void **state)
{
    const live *x = *state;
    asker in[4] = { 0 };
    nb_buf b = { 0 }, raw = { 0 };
    unsigned least = UINT32_MAX, most = 0;
    double fastest = INFINITY;
    nb_json *v;
    int status = 200;

    assert_int_equal(live_ask(x, "GET", "/health", "", NULL, &b, NULL), 200);
    set_door(true);
    for (size_t i = 0; i < NB_LEN(in); i++) { /* one in the step, three behind it: the queue is full */
        in[i].x = x;
        assert_int_equal(pthread_create(&in[i].t, NULL, ask, &in[i]), 0);
        if (i == 0)
            while (!door.inside)
                nap();
        else
            for (int64_t waiting = 0; waiting < (int64_t)i + 1; nap()) {
                assert_int_equal(live_ask(x, "GET", "/load", "", NULL, &b, NULL), 200);
                v = live_json(&b);
                waiting = nb_json_int(nb_json_get(v, "queued"), 0);
                nb_json_free(v);
            }
    }
    /* OV-01, OV-13, AT-10: more are refused at once, though the engine is busy, and are told to come at different times */
    for (int i = 0; i < 8; i++) {
        const double t0 = nb_now();
        const int got = live_ask(x, "POST", "/v1/completions", "", "{\"prompt\":[5,6,7],\"max_tokens\":3}", &b, &raw);
        unsigned s, ms;

        fastest = nb_now() - t0 < fastest ? nb_now() - t0 : fastest;
        nb_buf_putc(&raw, 0);
        s = header(raw.p, "Retry-After: ");
        ms = header(raw.p, "retry-after-ms: ");
        if (got != 429 || s < 1 || s > 60 || ms < 1000 || ms > 60000 || s * 1000 < ms)
            fail_msg("OV-13: %d, %u s, %u ms", got, s, ms);
        least = ms < least ? ms : least;
        most = ms > most ? ms : most;
    }
    assert_true(least < most);
    assert_true(fastest < 0.05);
    /* OV-09: not well, but alive */
    for (int i = 0; status == 200 && i < 4000; i++, nap())
        status = live_ask(x, "GET", "/health", "", NULL, &b, NULL);
    assert_int_equal(status, 503);
    assert_non_null(strstr(b.p, "\"code\":\"stalled\""));
    assert_int_equal(live_ask(x, "GET", "/live", "", NULL, &b, NULL), 200);
    assert_true(nb_server_stalled(x->s) >= 0.3);
    assert_int_equal(live_ask(x, "GET", "/metrics", "", NULL, &b, NULL), 200);
    assert_true(
        strtod(strstr(b.p, "nibble:engine_silence_seconds{") + strlen("nibble:engine_silence_seconds{engine=\"0\",model_name=\"model\"}"),
               NULL) >= 0.3);
    b.n = 0;
    nb_server_dump(x->s, &b);
    nb_buf_putc(&b, 0);
    assert_non_null(strstr(b.p, "silent for"));
    set_door(false);
    for (size_t i = 0; i < NB_LEN(in); i++) {
        pthread_join(in[i].t, NULL);
        if (in[i].status != 200)
            fail_msg("request %zu: %d %s", i, in[i].status, in[i].out.p);
        nb_buf_clear(&in[i].raw);
        nb_buf_clear(&in[i].out);
    }
    live_settled(x);
    assert_int_equal(live_ask(x, "GET", "/health", "", NULL, &b, NULL), 200);
    nb_buf_clear(&b);
    nb_buf_clear(&raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_stall) };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
