/* live.h - a whole server over the small model of the tree, and a client that speaks bytes: what tests of the server's behaviour
 * share. */
#ifndef NB_TESTS_LIVE_H
#define NB_TESTS_LIVE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "job/answer.h"
#include "job/load.h"
#include "serve/server.h"

enum { LIVE_PATIENCE_MS = 60000 };

typedef struct live {
    nb_loaded l;
    nb_pool *pool;
    nb_answer_defaults d;
    nb_server *s;
    nb_server_opts o; /* filled in by the caller before live_open, as the next two */
    nb_engine_opts e;
    nb_server_model m;
    nb_exec *(*around)(nb_exec *x); /* NULL, or what stands between the engine and the executor; it closes x */
} live;

static const char *const live_names[] = { "model" };

/* Reasonable options; the caller may change them before live_open. */
static inline void live_defaults(live *x)
{
    memset(x, 0, sizeof *x);
    x->o = (nb_server_opts){ .http = NB_HTTP_OPTS, .max_n = 16, .stall_s = 60, .version = "nibble/test", .commit = "" };
    x->o.http.port = 0;
    x->e = (nb_engine_opts){ .context = 128, .max_seqs = 8, .max_batched = 64, .n_pages = 40, .kv_dtype = NB_DT_F16 };
    x->m = (nb_server_model){ .names = live_names,
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
}

static inline void live_engine(live *x)
{
    const nb_config *c = nb_model_config(x->l.model);
    const nb_exec_opts xo = {
        .pool = x->pool, .max_m = x->e.max_batched, .n_pages = x->e.n_pages, .n_states = x->e.max_seqs, .kv_dtype = x->e.kv_dtype
    };
    nb_exec *exec = NULL;
    nb_err err = { 0 };

    if (!x->around) {
        assert_int_equal(nb_engine_open(x->l.model, &x->e, &x->m.engine, &err), NB_OK);
        return;
    }
    x->e.config = c;
    assert_int_equal(nb_exec_cpu_open(x->l.model, &xo, &exec, &err), NB_OK);
    assert_int_equal(nb_engine_open_exec(x->around(exec), c->vocab, &x->e, &x->m.engine, &err), NB_OK);
}

static inline void live_open(live *x)
{
    nb_model_opts mo = { 0 };
    nb_err err = { 0 };

    assert_int_equal(nb_pool_open(&x->pool, 2, &err), NB_OK);
    assert_int_equal(nb_load_kern(NULL, &mo.kern, &err), NB_OK);
    assert_int_equal(nb_load_store(&x->l, "models/pemberley-4m", NULL, &err), NB_OK);
    assert_int_equal(nb_load_text(&x->l, "models/pemberley-4m", &err), NB_OK);
    mo.pool = x->e.pool = x->pool;
    assert_int_equal(nb_server_open(&x->o, &x->s, &err), NB_OK);
    assert_int_equal(nb_load_model(&x->l, &mo, &err), NB_OK);
    assert_int_equal(nb_answer_defaults_read(x->l.dir, nb_model_config(x->l.model), &x->d, &err), NB_OK);
    live_engine(x);
    x->m.tok = x->l.tok;
    x->m.chat = x->l.chat;
    x->m.defaults = x->d.sampling;
    x->m.eos = x->d.stop_ids;
    x->m.n_eos = x->d.n_stop_ids;
    x->m.vocab = nb_model_config(x->l.model)->vocab;
    assert_int_equal(nb_server_ready(x->s, &x->m, &err), NB_OK);
}

static inline void live_close(live *x)
{
    nb_server_close(x->s);
    nb_load_close(&x->l);
    nb_pool_close(x->pool);
}

static inline int live_dial(const live *x)
{
    const struct sockaddr_in a = { .sin_family = AF_INET,
                                   .sin_port = htons(nb_server_port(x->s)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void live_say(int fd, const char *p, size_t n)
{
    while (n) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k <= 0)
            return;
        p += k;
        n -= (size_t)k;
    }
}

/* Everything until the server closes; the descriptor is closed. */
static inline void live_hear(int fd, nb_buf *out)
{
    char part[4096];

    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        ssize_t n;

        if (poll(&p, 1, LIVE_PATIENCE_MS) <= 0)
            break;
        n = recv(fd, part, sizeof part, 0);
        if (n <= 0)
            break;
        nb_buf_put(out, part, (size_t)n);
    }
    nb_buf_putc(out, 0);
    close(fd);
}

/* One request on a connection of its own: the status; what came behind the head (chunked coding taken off) in *body, NUL-terminated,
 * the whole in *raw (may be NULL). body NULL on the way in: a GET. headers: lines, or "". */
static inline int live_ask(const live *x, const char *method, const char *path, const char *headers, const char *body, nb_buf *out,
                           nb_buf *raw)
{
    nb_buf in = { 0 }, all = { 0 };
    const int fd = live_dial(x);
    const char *p;
    int status = 0;

    nb_buf_printf(&in, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, headers);
    if (body)
        nb_buf_printf(&in, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    else
        nb_buf_puts(&in, "\r\n");
    if (body)
        nb_buf_puts(&in, body);
    live_say(fd, in.p, in.n);
    live_hear(fd, &all);
    out->n = 0;
    if (sscanf(all.p, "HTTP/1.1 %d", &status) == 1 && (p = strstr(all.p, "\r\n\r\n"))) {
        const bool chunked = strstr(all.p, "Transfer-Encoding: chunked") != NULL;

        for (p += 4; chunked;) {
            char *end;
            const unsigned long n = strtoul(p, &end, 16);

            if (n == 0 || end == p || (size_t)(all.p + all.n - end) < n + 2)
                break;
            nb_buf_put(out, end + 2, n);
            p = end + 2 + n + 2;
        }
        if (!chunked)
            nb_buf_puts(out, p);
    }
    nb_buf_putc(out, 0);
    if (raw) {
        raw->n = 0;
        nb_buf_put(raw, all.p, all.n);
    }
    nb_buf_clear(&in);
    nb_buf_clear(&all);
    return status;
}

/* POST of a body, which must be answered with `status`. */
static inline void live_post(const live *x, const char *path, const char *body, int status, nb_buf *out)
{
    const int got = live_ask(x, "POST", path, "", body, out, NULL);

    if (got != status)
        fail_msg("%s %s: status %d, want %d: %s", path, body, got, status, out->p);
}

/* The body as JSON. */
static inline nb_json *live_json(const nb_buf *b)
{
    nb_json *v = NULL;
    nb_err err = { 0 };

    if (nb_json_parse(b->p, strlen(b->p), "answer", 0, &v, &err) != NB_OK)
        fail_msg("no JSON (%s): %s", err.what, b->p);
    return v;
}

/* Texts of all events of a stream of /v1/completions, one behind the other; every event is JSON. Returns how many events have usage. */
static inline int live_events(const nb_buf *b, nb_buf *text, bool *done)
{
    const char *p = b->p;
    int usages = 0;

    text->n = 0;
    *done = false;
    while ((p = strstr(p, "data: "))) {
        const char *end = strstr(p, "\n\n");
        nb_buf one = { 0 };
        nb_json *v;

        assert_non_null(end);
        nb_buf_put(&one, p + 6, (size_t)(end - p) - 6);
        nb_buf_putc(&one, 0);
        p = end;
        *done = strcmp(one.p, "[DONE]") == 0;
        if (!*done) {
            v = live_json(&one);
            nb_buf_puts(text, nb_json_str(nb_json_get(nb_json_at(nb_json_get(v, "choices"), 0), "text"), ""));
            usages += nb_json_typeof(nb_json_get(v, "usage")) == NB_JOBJ;
            nb_json_free(v);
        }
        nb_buf_clear(&one);
    }
    nb_buf_putc(text, 0);
    return usages;
}

/* Nothing runs, waits or holds a block. */
static inline void live_settled(const live *x)
{
    const struct timespec nap = { 0, 10000000 };
    nb_buf b = { 0 };

    for (int i = 0; i < 6000; i++) {
        nb_json *v;
        bool idle;

        assert_int_equal(live_ask(x, "GET", "/load", "", NULL, &b, NULL), 200);
        v = live_json(&b);
        idle = nb_json_int(nb_json_get(v, "server_load"), 1) == 0 && nb_json_num(nb_json_get(v, "kv_usage"), 1) == 0;
        nb_json_free(v);
        if (idle) {
            nb_buf_clear(&b);
            return;
        }
        nanosleep(&nap, NULL);
    }
    fail_msg("something stays behind");
}

#endif
