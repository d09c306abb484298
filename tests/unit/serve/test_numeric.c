/* test_numeric.c - NU-08 over HTTP: a model whose logits are no numbers after one id, and then is whole again. */
#include "live.h"

#include <math.h>

enum { BAD = 7 };

static struct broken {
    nb_exec base;
    nb_exec *x;
    size_t vocab;
    bool on; /* changed while nothing runs */
} broken;

static void broken_close(nb_exec *x)
{
    (void)x;
    nb_exec_close(broken.x);
}

static uint64_t broken_bytes(const nb_exec *x)
{
    (void)x;
    return nb_exec_bytes(broken.x);
}

static nb_status broken_run(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    const nb_status rc = nb_exec_run(broken.x, b, logits, err);

    (void)x;
    for (size_t i = 0; i < b->m && rc == NB_OK; i++) {
        if (!b->want[i])
            continue;
        if (broken.on && b->token[i] == BAD)
            logits[5] = NAN;
        logits += broken.vocab;
    }
    return rc;
}

static void broken_copy(nb_exec *x, uint32_t to, uint32_t from)
{
    (void)x;
    nb_exec_copy_page(broken.x, to, from);
}

static void broken_fill(nb_exec *x, uint32_t page, uint8_t byte)
{
    (void)x;
    nb_exec_fill_page(broken.x, page, byte);
}

static size_t broken_state_bytes(const nb_exec *x)
{
    (void)x;
    return 0;
}

static nb_exec *around(nb_exec *x)
{
    static const nb_exec_ops ops = { .close = broken_close,
                                     .bytes = broken_bytes,
                                     .run = broken_run,
                                     .copy_page = broken_copy,
                                     .fill_page = broken_fill,
                                     .state_bytes = broken_state_bytes };

    broken.base.ops = &ops;
    broken.x = x;
    return &broken.base;
}

static int64_t cached(const live *x, const char *body)
{
    nb_buf b = { 0 };
    int64_t n;
    nb_json *v;

    live_post(x, "/v1/completions", body, 200, &b);
    v = live_json(&b);
    n = nb_json_int(nb_json_get(nb_json_get(nb_json_get(v, "usage"), "prompt_tokens_details"), "cached_tokens"), 0);
    nb_json_free(v);
    nb_buf_clear(&b);
    return n;
}

static void test_numeric(void **state)
{
    static const char good[] = "{\"prompt\":\"It is a truth\",\"max_tokens\":8,\"logit_bias\":{\"7\":-100}}";
    nb_buf bad = { 0 }, b = { 0 };
    const nb_json *e;
    const char *at;
    nb_json *v;
    live x;

    (void)state;
    nb_buf_puts(&bad, "{\"max_tokens\":2,\"prompt\":[");
    for (int i = 0; i < 80; i++)
        nb_buf_printf(&bad, "%d,", 20 + i);
    nb_buf_printf(&bad, "%d]}", BAD);
    nb_buf_putc(&bad, 0);
    live_defaults(&x);
    x.around = around;
    broken.vocab = 2048;
    broken.on = true;
    live_open(&x);
    assert_int_equal(nb_model_config(x.l.model)->vocab, broken.vocab);
    live_post(&x, "/v1/completions", bad.p, 500, &b);
    v = live_json(&b);
    e = nb_json_get(v, "error");
    assert_string_equal(nb_json_str(nb_json_get(e, "code"), ""), "numerical_error");
    assert_string_equal(nb_json_str(nb_json_get(e, "type"), ""), "server_error");
    nb_json_free(v);
    cached(&x, good);
    assert_int_equal(live_ask(&x, "GET", "/metrics", "", NULL, &b, NULL), 200);
    at = strstr(b.p, "\nnibble:numeric_errors_total");
    at = at ? strchr(at, ' ') : NULL;
    assert_true(at && strncmp(at, " 1\n", 3) == 0);
    live_settled(&x);
    broken.on = false;
    assert_int_equal(cached(&x, bad.p), 0); /* nothing of it was published */
    assert_true(cached(&x, bad.p) >= 64);
    live_settled(&x);
    live_close(&x);
    nb_buf_clear(&bad);
    nb_buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_numeric) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
