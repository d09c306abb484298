/* test_faults.c - requests of every bad kind to a running server, beside streams that must not notice; and what must hold whatever is
 * asked (hardening 6, 7, 9, 10; users BB-18, BB-19). */
#include "live.h"

#include <pthread.h>
#include <stdatomic.h>

enum { STREAMS = 4 };

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_logged;
static char last_log[512];

/* Called from the engine's thread and from those of the connections. */
static void count_log(void *user, nb_level level, const char *line)
{
    (void)user;
    (void)level;
    pthread_mutex_lock(&log_lock);
    n_logged++;
    snprintf(last_log, sizeof last_log, "%s", line);
    pthread_mutex_unlock(&log_lock);
}

/* Lines so far; the newest into LAST (512 bytes) unless that is NULL. */
static int logged(char *last)
{
    int n;

    pthread_mutex_lock(&log_lock);
    n = n_logged;
    if (last)
        memcpy(last, last_log, sizeof last_log);
    pthread_mutex_unlock(&log_lock);
    return n;
}

static int open_server(void **state)
{
    static live x;
    static const nb_host host = { .log = count_log };

    live_defaults(&x);
    x.o.host = &host;
    live_open(&x);
    *state = &x;
    return 0;
}

static int close_server(void **state)
{
    live_close(*state);
    return 0;
}

/* ---- bad requests beside streams ---- */

typedef struct stream {
    const live *x;
    const atomic_bool *stop;
    char body[256], want[1024];
    int rounds, bad;
} stream;

static void run_stream(stream *s, char *out, size_t cap)
{
    nb_buf b = { 0 }, text = { 0 };
    bool done = false;

    if (live_ask(s->x, "POST", "/v1/completions", "", s->body, &b, NULL) == 200)
        live_events(&b, &text, &done);
    snprintf(out, cap, "%s%s", text.p ? text.p : "", done ? "" : " (cut)");
    nb_buf_clear(&b);
    nb_buf_clear(&text);
}

static void *go_on(void *arg)
{
    stream *s = arg;

    while (!*s->stop) {
        char got[1024];

        run_stream(s, got, sizeof got);
        s->bad += strcmp(got, s->want) != 0;
        s->rounds++;
    }
    return NULL;
}

#define P "\"prompt\":\"It is\",\"max_tokens\":2"

/* path, body, status. A long body is made of `body` and n times `fill`. */
static const struct row {
    const char *label, *path, *body, *fill;
    size_t n;
    const char *tail;
    int status;
    const char *code;
} rows[] = {
    { "RQ-01 no body", "/v1/completions", "", NULL, 0, NULL, 400, "invalid_json" },
    { "RQ-01 half", "/v1/completions", "{\"prompt\":", NULL, 0, NULL, 400, "invalid_json" },
    { "RQ-01 JS-03 100,000 brackets", "/v1/completions", "", "[", 100000, "", 400, "json_too_deep" },
    { "RQ-01 JS-04 bytes", "/v1/completions", "{\"prompt\":\"\xc0\xaf\"}", NULL, 0, NULL, 400, "invalid_json" },
    { "RQ-03 1 MB name", "/v1/completions", "{" P ",\"model\":\"", "m", 1 << 20, "\"}", 400, "invalid_value" },
    { "RQ-03 unknown", "/v1/completions", "{" P ",\"model\":\"other\"}", NULL, 0, NULL, 404, "model_not_found" },
    { "RQ-04 2,049 messages", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}",
      ",{\"role\":\"user\",\"content\":\"a\"}", 2048, "]}", 400, "invalid_value" },
    { "RQ-04 1,025 parts", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}",
      ",{\"type\":\"text\",\"text\":\"a\"}", 1024, "]}]}", 400, "invalid_value" },
    { "RQ-07 BB-18 context + 1 tokens", "/v1/completions", "{\"prompt\":[5", ",5", 128, "]}", 400, "context_length_exceeded" },
    { "RQ-07 context", "/v1/completions", "{\"prompt\":[5", ",5", 127, "]}", 400, "context_length_exceeded" },
    { "RQ-07 context - 1, one token", "/v1/completions", "{\"max_tokens\":1,\"prompt\":[5", ",5", 126, "]}", 200, NULL },
    { "RQ-07 1 MB", "/v1/completions", "{\"prompt\":\"", "It is a truth ", 80000, "\"}", 400, "context_length_exceeded" },
    { "RQ-12 bias beyond the vocabulary", "/v1/completions", "{" P ",\"logit_bias\":{\"99999999\":1}}", NULL, 0, NULL, 400,
      "invalid_value" },
    { "RQ-12 allowed ids", "/v1/completions", "{" P ",\"allowed_token_ids\":[-1]}", NULL, 0, NULL, 400, "invalid_value" },
    { "RQ-13 1 MB stop", "/v1/completions", "{" P ",\"stop\":\"", "s", 1 << 20, "\"}", 400, "invalid_value" },
    { "RQ-15 256 KiB of tools", "/v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
      "\"description\":\"",
      "d", 256 << 10, "\"}}]}", 400, "invalid_value" },
    { "RQ-15 129 tools", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[1", ",1", 128, "]}", 400,
      "invalid_value" },
    { "RQ-22 tokenize: wrong type", "/tokenize", "{\"prompt\":5}", NULL, 0, NULL, 400, "invalid_type" },
    { "RQ-22 tokenize: nothing", "/v1/tokenize", "{}", NULL, 0, NULL, 400, "missing_required_parameter" },
    { "RQ-22 detokenize: id", "/detokenize", "{\"tokens\":[99999999]}", NULL, 0, NULL, 400, "invalid_value" },
    { "RQ-22 detokenize: type", "/detokenize", "{\"tokens\":[\"a\"]}", NULL, 0, NULL, 400, NULL },
    { "RQ-22 template: bomb", "/apply-template", "{\"messages\":[]}", NULL, 0, NULL, 400, "missing_required_parameter" },
    { "SO-03 circle", "/v1/completions", "{" P ",\"guided_json\":{\"$ref\":\"#\"}}", NULL, 0, NULL, 400, "invalid_schema" },
    { "SO-04 URL", "/v1/completions", "{" P ",\"guided_json\":{\"$ref\":\"http://192.0.2.1/x\"}}", NULL, 0, NULL, 400, NULL },
    { "SO-05 10,000 levels", "/v1/completions", "{" P ",\"guided_json\":", "{\"items\":", 10000, "", 400, "json_too_deep" },
    { "SO-06 repeat bounds", "/v1/completions", "{" P ",\"guided_regex\":\"a{0,1000000000}\"}", NULL, 0, NULL, 200, NULL },
    { "SO-07 look-around", "/v1/completions", "{" P ",\"guided_regex\":\"(?=a)b\"}", NULL, 0, NULL, 400, "unsupported_schema" },
    { "SO-07 nested", "/v1/completions", "{" P ",\"guided_regex\":\"((a*)*)*b\"}", NULL, 0, NULL, 200, NULL },
    { "SO-08 10,000 parentheses", "/v1/completions", "{" P ",\"guided_grammar\":\"root ::= ", "(", 10000, "\"}", 400, NULL },
    { "NU-09 SO-09 constraint and allowed ids exclude each other", "/v1/completions",
      "{" P ",\"guided_regex\":\"It\",\"allowed_token_ids\":[5]}", NULL, 0, NULL, 500, "constraint_dead_end" },
    { "SO-12 endless whitespace", "/v1/completions", "{" P ",\"response_format\":{\"type\":\"json_object\"}}", NULL, 0, NULL, 200, NULL },
};

static void bad_row(const live *x, const struct row *r)
{
    nb_buf body = { 0 }, out = { 0 };
    int status;

    nb_buf_puts(&body, r->body);
    for (size_t i = 0; i < r->n; i++)
        nb_buf_puts(&body, r->fill);
    nb_buf_puts(&body, r->tail ? r->tail : "");
    nb_buf_putc(&body, 0);
    status = live_ask(x, "POST", r->path, "", body.p, &out, NULL);
    if (status != r->status)
        fail_msg("%s: status %d, want %d: %.400s", r->label, status, r->status, out.p);
    if (status != 200) {
        nb_json *v = live_json(&out);
        const nb_json *e = nb_json_get(v, "error");

        if (!e || !nb_json_str(nb_json_get(e, "message"), NULL) ||
            (r->code && strcmp(nb_json_str(nb_json_get(e, "code"), ""), r->code) != 0))
            fail_msg("%s: want %s, got %.400s", r->label, r->code, out.p);
        nb_json_free(v);
    }
    if (live_ask(x, "GET", "/health", "", NULL, &out, NULL) != 200)
        fail_msg("%s: the server is not well", r->label);
    nb_buf_clear(&body);
    nb_buf_clear(&out);
}

static void test_beside_streams(void **state)
{
    static const char *const words[STREAMS] = { "It is a truth", "Mr. Bennet", "She was", "Elizabeth" };
    const live *x = *state;
    atomic_bool stop = false;
    stream s[STREAMS] = { 0 };
    pthread_t t[STREAMS];

    for (size_t i = 0; i < STREAMS; i++) { /* alone */
        s[i].x = x;
        s[i].stop = &stop;
        snprintf(s[i].body, sizeof s[i].body, "{\"prompt\":\"%s\",\"max_tokens\":24,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}",
                 words[i]);
        run_stream(&s[i], s[i].want, sizeof s[i].want);
        assert_true(strlen(s[i].want) > 20 && !strstr(s[i].want, "(cut)"));
    }
    for (size_t i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, go_on, &s[i]), 0);
    for (size_t i = 0; i < NB_LEN(rows); i++)
        bad_row(x, &rows[i]);
    stop = true;
    for (size_t i = 0; i < STREAMS; i++) {
        pthread_join(t[i], NULL);
        if (s[i].bad || s[i].rounds == 0)
            fail_msg("%s: %d of %d answers beside bad requests differ", words[i], s[i].bad, s[i].rounds);
    }
    live_settled(x);
}

/* ---- single rules ---- */

/* RQ-14: the prompt's log-probabilities without a token drawn; and a first token that is a stop. */
static void test_echo_and_early_stop(void **state)
{
    const live *x = *state;
    nb_buf b = { 0 };
    char body[256];
    nb_json *v;
    const nb_json *c, *lp;
    int64_t id;

    live_post(x, "/v1/completions", "{\"prompt\":\"It is a truth\",\"max_tokens\":0,\"echo\":true,\"logprobs\":1}", 200, &b);
    v = live_json(&b);
    c = nb_json_at(nb_json_get(v, "choices"), 0);
    lp = nb_json_get(nb_json_get(c, "logprobs"), "token_logprobs");
    assert_string_equal(nb_json_str(nb_json_get(c, "text"), ""), "It is a truth");
    assert_string_equal(nb_json_str(nb_json_get(c, "finish_reason"), ""), "length");
    assert_int_equal(nb_json_len(lp), nb_json_int(nb_json_get(nb_json_get(v, "usage"), "prompt_tokens"), 0));
    assert_true(nb_json_is_null(nb_json_at(lp, 0)) && nb_json_num(nb_json_at(lp, 1), 1) <= 0);
    assert_int_equal(nb_json_int(nb_json_get(nb_json_get(v, "usage"), "completion_tokens"), 9), 0);
    nb_json_free(v);
    live_post(x, "/v1/completions", "{\"prompt\":\"It is\",\"max_tokens\":1,\"temperature\":0,\"return_token_ids\":true}", 200, &b);
    v = live_json(&b);
    id = nb_json_int(nb_json_at(nb_json_get(nb_json_at(nb_json_get(v, "choices"), 0), "token_ids"), 0), -1);
    nb_json_free(v);
    snprintf(body, sizeof body, "{\"prompt\":\"It is\",\"max_tokens\":5,\"temperature\":0,\"logprobs\":2,\"stop_token_ids\":[%lld]}",
             (long long)id);
    live_post(x, "/v1/completions", body, 200, &b);
    v = live_json(&b);
    c = nb_json_at(nb_json_get(v, "choices"), 0);
    assert_string_equal(nb_json_str(nb_json_get(c, "text"), "x"), "");
    assert_string_equal(nb_json_str(nb_json_get(c, "finish_reason"), ""), "stop");
    assert_int_equal(nb_json_int(nb_json_get(c, "stop_reason"), -1), id);
    nb_json_free(v);
    nb_buf_clear(&b);
}

/* KV-19: best_of gives the n of highest mean log-probability out of the answers that n alone gives. */
static void test_best_of(void **state)
{
    enum { ALL = 6 };
    const live *x = *state;
    nb_buf b = { 0 };
    double mean[ALL] = { 0 }, sum = 0;
    char text[ALL][256];
    nb_json *v;
    size_t first = 0, second = 0;

    live_post(x, "/v1/completions", "{\"prompt\":\"It is\",\"max_tokens\":9,\"seed\":5,\"n\":6,\"logprobs\":0}", 200, &b);
    v = live_json(&b);
    for (size_t i = 0; i < ALL; i++) {
        const nb_json *c = nb_json_at(nb_json_get(v, "choices"), i), *lp = nb_json_get(nb_json_get(c, "logprobs"), "token_logprobs");

        snprintf(text[i], sizeof text[i], "%s", nb_json_str(nb_json_get(c, "text"), ""));
        for (size_t k = 0; k < nb_json_len(lp); k++)
            mean[i] += nb_json_num(nb_json_at(lp, k), 0) / (double)nb_json_len(lp);
    }
    nb_json_free(v);
    for (size_t i = 1; i < ALL; i++)
        first = mean[i] > mean[first] ? i : first;
    second = first == 0;
    for (size_t i = 0; i < ALL; i++)
        second = i != first && mean[i] > mean[second] ? i : second;
    live_post(x, "/v1/completions", "{\"prompt\":\"It is\",\"max_tokens\":9,\"seed\":5,\"n\":2,\"best_of\":6}", 200, &b);
    v = live_json(&b);
    assert_int_equal(nb_json_len(nb_json_get(v, "choices")), 2);
    for (size_t i = 0; i < 2; i++) {
        const nb_json *c = nb_json_at(nb_json_get(v, "choices"), i);

        assert_int_equal(nb_json_int(nb_json_get(c, "index"), -1), i);
        assert_string_equal(nb_json_str(nb_json_get(c, "text"), ""), text[i ? second : first]);
        sum += mean[i ? second : first];
    }
    assert_true(sum < 0);
    assert_int_equal(nb_json_int(nb_json_get(nb_json_get(v, "usage"), "completion_tokens"), 0), 54); /* all of them count */
    nb_json_free(v);
    nb_buf_clear(&b);
}

/* RQ-17: names of other engines' insides change nothing. */
static void test_engine_internals(void **state)
{
    const live *x = *state;
    nb_buf a = { 0 }, b = { 0 }, ta = { 0 }, tb = { 0 };
    bool done;

    live_post(x, "/v1/completions", "{" P ",\"temperature\":0,\"stream\":true}", 200, &a);
    live_post(
        x, "/v1/completions",
        "{" P
        ",\"temperature\":0,\"stream\":true,\"id_slot\":3,\"slot_id\":-7,\"n_discard\":1000000000,\"n_keep\":-5,\"cache_prompt\":true,"
        "\"kv_transfer_params\":{\"a\":1},\"lora\":[{\"id\":0}]}",
        200, &b);
    live_events(&a, &ta, &done);
    live_events(&b, &tb, &done);
    assert_string_equal(ta.p, tb.p);
    nb_buf_clear(&a);
    nb_buf_clear(&b);
    nb_buf_clear(&ta);
    nb_buf_clear(&tb);
}

static bool is_utf8(const char *s)
{
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        const int n = *p < 0x80 ? 1 : *p >= 0xc2 && *p < 0xe0 ? 2 : *p >= 0xe0 && *p < 0xf0 ? 3 : *p >= 0xf0 && *p < 0xf5 ? 4 : 0;

        if (n == 0)
            return false;
        for (int i = 1; i < n; i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
        p += n;
    }
    return true;
}

/* RQ-19, AT-7: an answer of pieces of characters, ended after any number of them: every event is JSON, the stream's text is that of the
 * whole answer, and it is UTF-8. */
static void test_broken_characters(void **state)
{
    const live *x = *state;
    nb_buf ids = { 0 }, b = { 0 }, text = { 0 };
    size_t n = 0;

    for (int32_t id = 0; id < (int32_t)x->m.vocab; id++) {
        nb_buf piece = { 0 };
        nb_err err = { 0 };

        if (nb_tokenizer_bytes(x->l.tok, id, &piece, &err) == NB_OK && piece.n == 1 && (unsigned char)piece.p[0] >= 0x80)
            nb_buf_printf(&ids, "%s%d", n++ ? "," : "", (int)id);
        nb_buf_clear(&piece);
    }
    assert_true(n >= 64);
    for (int k = 1; k <= 12; k++)
        for (int seed = 1; seed <= 3; seed++) {
            nb_buf body = { 0 };
            nb_json *v;
            bool done;

            nb_buf_printf(
                &body,
                "{\"prompt\":\"It\",\"max_tokens\":%d,\"ignore_eos\":true,\"seed\":%d,\"temperature\":2,\"allowed_token_ids\":[%.*s]", k,
                seed, (int)ids.n, ids.p);
            nb_buf_puts(&body, seed == 3 ? ",\"stop\":[\"\xc3\xa9\"]" : "");
            nb_buf_puts(&body, ",\"stream\":false}");
            nb_buf_putc(&body, 0);
            live_post(x, "/v1/completions", body.p, 200, &b);
            v = live_json(&b);
            memcpy(strstr(body.p, "\"stream\":false"), "\"stream\":true ", 14);
            live_post(x, "/v1/completions", body.p, 200, &b);
            live_events(&b, &text, &done);
            assert_true(done);
            assert_string_equal(text.p, nb_json_str(nb_json_get(nb_json_at(nb_json_get(v, "choices"), 0), "text"), ""));
            assert_true(is_utf8(text.p));
            nb_json_free(v);
            nb_buf_clear(&body);
        }
    nb_buf_clear(&ids);
    nb_buf_clear(&b);
    nb_buf_clear(&text);
}

/* BB-19: usage in a stream when it is asked for, and only then. */
static void test_stream_usage(void **state)
{
    static const struct {
        const char *label, *options;
        int usages;
    } cases[] = { { "true", ",\"stream_options\":{\"include_usage\":true}", 1 },
                  { "false", ",\"stream_options\":{\"include_usage\":false}", 0 },
                  { "absent", "", 0 },
                  { "unknown field", ",\"stream_options\":{\"include_usage\":true,\"what\":[1]},\"other\":{}", 1 } };
    const live *x = *state;
    nb_buf b = { 0 }, text = { 0 };

    for (size_t i = 0; i < NB_LEN(cases); i++) {
        char body[256];
        bool done;

        snprintf(body, sizeof body, "{" P ",\"stream\":true%s}", cases[i].options);
        live_post(x, "/v1/completions", body, 200, &b);
        if (live_events(&b, &text, &done) != cases[i].usages || !done)
            fail_msg("BB-19 %s: %s", cases[i].label, b.p);
        if (cases[i].usages) /* in the last event before the end */
            assert_non_null(strstr(strstr(b.p, "\"choices\":[],\"usage\":{"), "data: [DONE]"));
    }
    nb_buf_clear(&b);
    nb_buf_clear(&text);
}

/* HT-30: nothing takes the name of a file or saves state. */
static void test_no_files(void **state)
{
    static const char *const paths[] = { "/slots",
                                         "/slots/0?action=save",
                                         "/slots/0?action=restore",
                                         "/v1/files",
                                         "/lora-adapters",
                                         "/models/load",
                                         "/v1/load_lora_adapter",
                                         "/save",
                                         "/update_weights_from_disk",
                                         "/start_profile" };
    const live *x = *state;
    nb_buf b = { 0 };

    for (size_t i = 0; i < NB_LEN(paths); i++) {
        const int got = live_ask(x, "POST", paths[i], "", "{\"filename\":\"/tmp/x\"}", &b, NULL);

        if (got != 404 && got != 405)
            fail_msg("HT-30 %s: %d", paths[i], got);
    }
    nb_buf_clear(&b);
}

/* HT-33: connections that say nothing good cost no line of the log. */
static void test_quiet_log(void **state)
{
    static const char *const bad[] = { "\x16\x03\x01\x02", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                                       "GET /no HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" };
    const live *x = *state;
    nb_buf b = { 0 };
    int before;

    live_settled(x);
    before = logged(NULL);
    for (int i = 0; i < 400; i++) {
        const int fd = live_dial(x);

        live_say(fd, bad[i % 5], strlen(bad[i % 5]));
        b.n = 0;
        live_hear(fd, &b);
        assert_true(b.n > 12);
    }
    assert_int_equal(logged(NULL), before);
    nb_buf_clear(&b);
}

/* OV-16, PC-11: a line per request, and no word of the prompt in it. */
static void test_log_line(void **state)
{
    const live *x = *state;
    nb_buf b = { 0 };
    const int before = logged(NULL);
    char last[sizeof last_log];
    const struct timespec nap = { 0, 1000000 };

    live_post(x, "/v1/completions", "{\"prompt\":\"Pemberley\",\"max_tokens\":2}", 200, &b);
    for (int i = 0; logged(NULL) == before && i < 20000; i++)
        nanosleep(&nap, NULL);
    assert_int_equal(logged(last), before + 1);
    assert_null(strstr(last, "Pemberley"));
    assert_non_null(strstr(last, "output 2"));
    nb_buf_clear(&b);
}

/* MM-07: as much memory in use after hundreds of requests of all kinds as before. */
static void test_growth(void **state)
{
    static const char *const bodies[] = { "{" P "}", "{" P ",\"stream\":true,\"n\":3}", "{" P ",\"guided_regex\":\"[a-z ]+\"}", "{nope",
                                          "{" P ",\"logprobs\":3,\"echo\":true}" };
    const live *x = *state;
    nb_buf b = { 0 };
    uint64_t calm = 0;

    for (int round = 0; round < 3; round++) {
        uint64_t now = UINT64_MAX;
        const struct timespec nap = { 0, 5000000 };

        for (int i = 0; i < 100; i++)
            live_ask(x, "POST", "/v1/completions", "", bodies[i % 5], &b, NULL);
        live_settled(x);
        for (int i = 0; round && now > calm && i < 400; i++) { /* closed connections give theirs back in time */
            nanosleep(&nap, NULL);
            now = nb_mem_now();
        }
        if (round == 0)
            calm = nb_mem_now() + (64 << 10); /* one connection may be on its way out */
        else if (now > calm)
            fail_msg("MM-07: %llu bytes in use, %llu before", (unsigned long long)now, (unsigned long long)calm);
    }
    nb_buf_clear(&b);
}

/* PC-12: names of requests are 128 random bits, never twice the same. */
static void test_ids(void **state)
{
    const live *x = *state;
    static char seen[200][40];
    nb_buf b = { 0 }, raw = { 0 };

    for (size_t i = 0; i < NB_LEN(seen); i++) {
        const char *id;

        assert_int_equal(live_ask(x, "GET", "/live", "", NULL, &b, &raw), 200);
        id = strstr(raw.p, "x-request-id: ");
        assert_non_null(id);
        assert_int_equal(strspn(id + 14, "0123456789abcdef"), 32);
        snprintf(seen[i], sizeof seen[i], "%.32s", id + 14);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(seen[k], seen[i]);
    }
    nb_buf_clear(&b);
    nb_buf_clear(&raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_streams),
        cmocka_unit_test(test_echo_and_early_stop),
        cmocka_unit_test(test_engine_internals),
        cmocka_unit_test(test_best_of),
        cmocka_unit_test(test_broken_characters),
        cmocka_unit_test(test_stream_usage),
        cmocka_unit_test(test_no_files),
        cmocka_unit_test(test_quiet_log),
        cmocka_unit_test(test_log_line),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_ids),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
