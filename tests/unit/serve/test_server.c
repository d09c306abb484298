/* test_server.c - the whole server in one process under load: many clients, some of which leave, some at the limit, a drain in the
 * middle. What it must show is order between threads (run under ThreadSanitizer too) and that nothing stays behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "job/answer.h"
#include "job/load.h"
#include "serve/loadgen.h"
#include "serve/server.h"

enum { CLIENTS = 8, REQUESTS = 48, CONTEXT = 128 };

typedef struct fixture {
    nb_loaded l;
    nb_pool *pool;
    nb_answer_defaults d;
    nb_server *s;
    nb_load_opts load;
} fixture;

static const char *const names[] = { "model" };

static int open_server(void **state)
{
    static fixture x;
    static const char *const keys[] = { "one", "two" };
    nb_server_opts o = {
        .http = NB_HTTP_OPTS, .keys = keys, .n_keys = 2, .max_n = 4, .stall_s = 60, .version = "nibble/test", .commit = ""
    };
    nb_model_opts mo = { 0 };
    nb_engine_opts eo = {
        .context = CONTEXT, .max_seqs = 6, .max_batched = 64, .n_pages = 25, .kv_dtype = NB_DT_F16
    }; /* pages for four full ones */
    nb_server_model m = { .names = names,
                          .n_names = 1,
                          .root = "model",
                          .isa = "test",
                          .kernel = "a16",
                          .kv_dtype = "f16",
                          .identity = "test",
                          .prefix_cache = true,
                          .scope = -1,
                          .max_queued = 64,
                          .request_timeout = 300,
                          .prepare_threads = 2 };
    nb_err err = { 0 };

    memset(&x, 0, sizeof x);
    o.http.port = 0;
    assert_int_equal(nb_pool_open(&x.pool, 2, &err), NB_OK);
    assert_int_equal(nb_load_kern(NULL, &mo.kern, &err), NB_OK);
    assert_int_equal(nb_load_store(&x.l, "models/pemberley-4m", NULL, &err), NB_OK);
    assert_int_equal(nb_load_text(&x.l, "models/pemberley-4m", &err), NB_OK);
    mo.pool = eo.pool = x.pool;
    assert_int_equal(nb_server_open(&o, &x.s, &err), NB_OK);
    x.load = (nb_load_opts){ .host = "127.0.0.1",
                             .port = nb_server_port(x.s),
                             .path = "/v1/completions",
                             .bearer = "one",
                             .concurrency = CLIENTS,
                             .timeout_s = 300 };
    assert_int_equal(nb_load_model(&x.l, &mo, &err), NB_OK);
    assert_int_equal(nb_answer_defaults_read(x.l.dir, nb_model_config(x.l.model), &x.d, &err), NB_OK);
    assert_int_equal(nb_engine_open(x.l.model, &eo, &m.engine, &err), NB_OK);
    m.tok = x.l.tok;
    m.chat = x.l.chat;
    m.defaults = x.d.sampling;
    m.eos = x.d.stop_ids;
    m.n_eos = x.d.n_stop_ids;
    m.vocab = nb_model_config(x.l.model)->vocab;
    assert_int_equal(nb_server_ready(x.s, &m, &err), NB_OK);
    *state = &x;
    return 0;
}

static int close_server(void **state)
{
    fixture *x = *state;

    nb_server_close(x->s);
    nb_load_close(&x->l);
    nb_pool_close(x->pool);
    return 0;
}

/* Requests of several shapes over one shared beginning. */
static void make(nb_load_request *q, size_t n, bool greedy)
{
    for (size_t i = 0; i < n; i++) {
        nb_buf b = { 0 };

        nb_buf_puts(&b, "{\"prompt\":\"It is a truth universally acknowledged, that a single man in possession of a good fortune, must be "
                        "in want of a wife. ");
        for (size_t k = 0; k < i % 5; k++)
            nb_buf_puts(&b, "However little known ");
        nb_buf_printf(&b, "\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":%zu,\"ignore_eos\":true",
                      4 + i % 23);
        if (greedy)
            nb_buf_puts(&b, ",\"temperature\":0");
        else
            nb_buf_printf(&b, ",\"seed\":%zu,\"n\":%zu,\"logprobs\":2,\"stop\":[\"the \",\"zz\"]%s", i, 1 + i % 3,
                          i % 4 == 3 ? ",\"guided_regex\":\"[a-z ]{1,30}\"" : "");
        nb_buf_puts(&b, "}");
        q[i] = (nb_load_request){ .body = b.p };
    }
}

static void clear(nb_load_request *q, nb_load_answer *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nb_free(q[i].body);
        nb_free(a[i].itl);
    }
}

/* Nothing runs, waits or holds a block. */
static void settled(const fixture *x)
{
    const struct timespec nap = { 0, 20000000 };
    nb_err err = { 0 };

    for (int i = 0; i < 3000; i++) {
        nb_json *v;
        bool idle;

        assert_int_equal(nb_load_json(&x->load, "/load", NULL, &v, &err), NB_OK);
        idle = nb_json_int(nb_json_get(v, "server_load"), 1) == 0 && nb_json_num(nb_json_get(v, "kv_usage"), 1) == 0;
        nb_json_free(v);
        if (idle)
            return;
        nanosleep(&nap, NULL);
    }
    fail_msg("something stays behind");
}

static void test_crowd(void **state)
{
    const fixture *x = *state;

    for (int greedy = 0; greedy < 2; greedy++) {
        nb_load_request q[REQUESTS];
        nb_load_answer a[REQUESTS] = { 0 };
        double seconds;
        nb_err err = { 0 };

        make(q, REQUESTS, greedy);
        assert_int_equal(nb_load_run(&x->load, q, REQUESTS, a, &seconds, &err), NB_OK);
        for (size_t i = 0; i < REQUESTS; i++) {
            if (!a[i].ok)
                fail_msg("request %zu: %s", i, a[i].error);
            if (greedy)
                assert_int_equal(a[i].n_output, 4 + i % 23);
        }
        clear(q, a, REQUESTS);
        settled(x);
    }
}

/* Clients that hang up while others go on. */
static void test_leaving(void **state)
{
    const fixture *x = *state;
    nb_load_opts hasty = x->load;
    nb_load_request q[REQUESTS];
    nb_load_answer a[REQUESTS] = { 0 };
    double seconds;
    nb_err err = { 0 };

    make(q, REQUESTS, true);
    hasty.give_up_s = 0.002;
    assert_int_equal(nb_load_run(&hasty, q, REQUESTS / 2, a, &seconds, &err), NB_OK);
    assert_int_equal(nb_load_run(&x->load, q + REQUESTS / 2, REQUESTS / 2, a + REQUESTS / 2, &seconds, &err), NB_OK);
    for (size_t i = REQUESTS / 2; i < REQUESTS; i++)
        if (!a[i].ok)
            fail_msg("request %zu: %s", i, a[i].error);
    clear(q, a, REQUESTS);
    settled(x);
}

/* Every door at once, while text is made. */
static void test_doors(void **state)
{
    static const char *const paths[] = { "/v1/models", "/load", "/props", "/version", "/health_generate" };
    const fixture *x = *state;
    nb_err err = { 0 };
    nb_json *v;

    for (int i = 0; i < 40; i++) {
        assert_int_equal(nb_load_json(&x->load, paths[i % 5], NULL, &v, &err), NB_OK);
        nb_json_free(v);
    }
    assert_int_equal(nb_load_json(&x->load, "/tokenize", "{\"prompt\":\"It is\"}", &v, &err), NB_OK);
    assert_true(nb_json_int(nb_json_get(v, "count"), 0) > 0);
    nb_json_free(v);
    assert_int_equal(nb_load_json(&x->load, "/reset_prefix_cache", "{}", &v, &err), NB_OK);
    nb_json_free(v);
    assert_int_equal(nb_load_json(&x->load, "/abort", "{\"all\":true}", &v, &err), NB_OK);
    nb_json_free(v);
}

/* OV-08: draining refuses what is new and cuts nothing when there is time. */
static void test_drain(void **state)
{
    const fixture *x = *state;
    nb_err err = { 0 };
    nb_json *v;

    assert_int_equal(nb_server_drain(x->s, 30, NULL, NULL), 0);
    assert_int_not_equal(nb_load_json(&x->load, "/v1/completions", "{\"prompt\":\"a\"}", &v, &err), NB_OK);
    assert_non_null(strstr(err.what, "503"));
}

static void test_times(void **state)
{
    nb_load_request q[1000] = { 0 };
    double v[] = { 4, 1, 3, 2 };
    double before = 0, gaps = 0, sq = 0;

    (void)state;
    nb_load_schedule(q, 1000, &(nb_load_pace){ .rate = 10, .burstiness = 1 }, 3);
    for (size_t i = 0; i < 1000; i++) {
        assert_true(q[i].at >= before);
        gaps += q[i].at - before;
        sq += (q[i].at - before) * (q[i].at - before);
        before = q[i].at;
    }
    assert_true(fabs(before - 100) < 1e-9);                               /* the last is due at n / rate */
    assert_true(fabs(sq / 1000 / (gaps / 1000 * gaps / 1000) - 2) < 0.3); /* Poisson: the second moment is twice the square of the mean */
    nb_load_schedule(q, 4, &(nb_load_pace){ .rate = 2, .burstiness = INFINITY }, 0);
    assert_true(q[0].at == 0.5 && q[3].at == 2);
    nb_load_schedule(q, 4, &(nb_load_pace){ .rate = INFINITY, .burstiness = 1 }, 0);
    assert_true(q[3].at == 0);
    nb_load_schedule(q, 3, &(nb_load_pace){ .rate = 1, .burstiness = INFINITY, .ramp = NB_RAMP_LINEAR, .to = 4 }, 0);
    assert_true(q[0].at == 1 && fabs(q[1].at - 1.4) < 1e-12 && fabs(q[2].at - 1.65) < 1e-12); /* 1, 2.5 and 4 a second */
    nb_load_schedule(q, 3, &(nb_load_pace){ .rate = 1, .burstiness = INFINITY, .ramp = NB_RAMP_EXPONENTIAL, .to = 4 }, 0);
    assert_true(fabs(q[1].at - 1.5) < 1e-12 && fabs(q[2].at - 1.75) < 1e-12);
    assert_true(nb_load_percentile(v, 4, 50) == 2.5 && nb_load_percentile(v, 4, 0) == 1 && nb_load_percentile(v, 4, 100) == 4);
    assert_true(fabs(nb_load_percentile(v, 4, 99) - 3.97) < 1e-12 && nb_load_percentile(v, 0, 50) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times), cmocka_unit_test(test_crowd), cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_doors), cmocka_unit_test(test_drain),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
