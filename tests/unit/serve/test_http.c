/* test_http.c - the transport over real sockets: deadlines, framing, streams, clients that leave (hardening 6.1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cputime.h"
#include "serve/http.h"

enum { EVENTS = 50, PATIENCE_MS = 20000 };

/* A server with one kept request at a time per thread that answers it. */
typedef struct fixture {
    nb_http *s;
    atomic_int n_done, n_gone, n_body, n_threads;
} fixture;

typedef struct work {
    fixture *x;
    nb_http_req *r;
} work;

static void nap(void)
{
    const struct timespec t = { 0, 1000000 };

    nanosleep(&t, NULL);
}

/* /echo: the body's length; /stream: EVENTS events; /flood: until the client is given up; /wait: until the client is gone. */
static void *answer(void *arg)
{
    const work w = *(work *)arg;
    const char *path = nb_http_path(w.r);
    char text[64];
    size_t n;

    free(arg);
    if (strcmp(path, "/stream") == 0) {
        nb_http_stream(w.r, 200, "text/event-stream");
        for (int i = 0; i < EVENTS; i++) {
            const int k = snprintf(text, sizeof text, "data: %d\n\n", i);

            nb_http_send(w.r, text, (size_t)k);
            if (i % 8 == 0)
                nap();
        }
        nb_http_end(w.r);
    } else if (strcmp(path, "/flood") == 0) {
        static const char block[4096] = { 'x' };

        nb_http_stream(w.r, 200, "text/event-stream");
        while (!nb_http_gone(w.r))
            nb_http_send(w.r, block, sizeof block);
        nb_http_end(w.r);
    } else if (strcmp(path, "/wait") == 0) {
        while (!nb_http_gone(w.r))
            nap();
    } else {
        int k;

        nb_http_body(w.r, &n);
        k = snprintf(text, sizeof text, "%zu", n);
        nb_http_reply(w.r, 200, "text/plain", text, (size_t)k);
    }
    nb_http_drop(w.r);
    w.x->n_threads--;
    return NULL;
}

static void on_head(void *user, nb_http_req *r)
{
    (void)user;
    if (strcmp(nb_http_path(r), "/deny") == 0)
        nb_http_error(r, 401, "invalid_api_key", NULL, "no");
}

static void on_body(void *user, nb_http_req *r)
{
    fixture *x = user;
    work *w;
    pthread_t t;

    x->n_body++;
    if (strcmp(nb_http_path(r), "/now") == 0) {
        nb_http_add(r, "X-Bad", "a\r\nSet-Cookie: b"); /* HT-28: dropped */
        nb_http_reply(r, 200, "text/plain", nb_http_query(r), strlen(nb_http_query(r)));
        return;
    }
    w = malloc(sizeof *w);
    *w = (work){ x, r };
    nb_http_keep(r);
    x->n_threads++;
    pthread_create(&t, NULL, answer, w);
    pthread_detach(t);
}

static void on_done(void *user, nb_http_req *r)
{
    fixture *x = user;

    x->n_done++;
    x->n_gone += nb_http_gone(r);
}

static int open_server(void **state)
{
    static fixture x;
    nb_http_opts o = NB_HTTP_OPTS;
    nb_err err = { 0 };

    x.n_done = x.n_gone = x.n_body = x.n_threads = 0;
    o.port = 0;
    o.head = on_head;
    o.body = on_body;
    o.done = on_done;
    o.user = &x;
    o.head_s = 0.5;
    o.body_s = 0.5;
    o.max_conns = 24;
    o.max_unsent = 256 << 10;
    o.limits.max_body = 1 << 20;
    assert_int_equal(nb_http_open(&o, &x.s, &err), NB_OK);
    assert_int_equal(nb_http_start(x.s, &err), NB_OK);
    *state = &x;
    return 0;
}

static int close_server(void **state)
{
    fixture *x = *state;

    nb_http_close(x->s);
    while (x->n_threads) /* they see that their client is gone */
        nap();
    return 0;
}

static int dial(const fixture *x)
{
    const struct sockaddr_in a = { .sin_family = AF_INET,
                                   .sin_port = htons(nb_http_port(x->s)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *p, size_t n)
{
    while (n) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k <= 0)
            return; /* the server has had enough; its answer tells */
        p += k;
        n -= (size_t)k;
    }
}

static void say_text(int fd, const char *s)
{
    say(fd, s, strlen(s));
}

/* Everything until the server closes. */
static void hear(int fd, nb_buf *out)
{
    char part[4096];

    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        ssize_t n;

        assert_true(poll(&p, 1, PATIENCE_MS) > 0);
        n = recv(fd, part, sizeof part, 0);
        if (n <= 0)
            break;
        nb_buf_put(out, part, (size_t)n);
    }
    nb_buf_putc(out, 0);
    close(fd);
}

static void talk(const fixture *x, const char *p, size_t n, nb_buf *out)
{
    const int fd = dial(x);

    out->n = 0;
    say(fd, p, n);
    hear(fd, out);
}

#define H     "Host: x\r\n"
#define CLOSE H "Connection: close\r\n"

static void test_rows(void **state)
{
    static const struct {
        const char *label, *request;
        int status;
        const char *has; /* in the answer; NULL: nothing more is asked */
    } rows[] = {
        { "at once, query", "GET /now?a=1 HTTP/1.1\r\n" CLOSE "\r\n", 200, "\r\n\r\na=1" },
        { "later", "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n" CLOSE "\r\nhello", 200, "\r\n\r\n5" },
        { "chunked", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n", 200,
          "\r\n\r\n8" },
        { "HT-11 trailers", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n", 200,
          "\r\n\r\n5" },
        { "HT-08 size of letters", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\nxyz\r\nhello\r\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 negative", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n-5\r\nhello\r\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 blank before", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n 5\r\nhello\r\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 blank behind", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5 \r\nhello\r\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 0x", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n0x5\r\nhello\r\n0\r\n\r\n", 400, "bad_request" },
        { "HT-08 no size", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n\r\nhello\r\n0\r\n\r\n", 400, "bad_request" },
        { "HT-08 no end of a chunk", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhelloXX0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 bare LF behind a size", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\nhello\r\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 bare LF behind a chunk", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\n0\r\n\r\n", 400,
          "bad_request" },
        { "HT-08 bare CR", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\rhello\r\n0\r\n\r\n", 400, "bad_request" },
        { "HT-08 bare LF at the end", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n0\r\n\n", 400,
          "bad_request" },
        { "HT-08 bare LF behind the last size", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n0\n\r\n",
          400, "bad_request" },
        { "HT-08 17 digits", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\nfffffffffffffffff\r\nhello", 400,
          "bad_request" },
        { "HT-08 16 digits", "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\nffffffffffffffff\r\nhello", 413,
          "body_too_large" },
        { "HT-08 control byte in an extension",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5;a=\001\r\nhello\r\n0\r\n\r\n", 400, "bad_request" },
        { "HT-08 trailer without a colon",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n0\r\nabc\r\n\r\n", 400, "bad_request" },
        { "HT-08 blank before a colon",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n5\r\nhello\r\n0\r\na : b\r\n\r\n", 400, "bad_request" },
        { "HT-08 extension and 16 digits",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE "\r\n0000000000000005;a=b;c=\"d\"\r\nhello\r\n0\r\n\r\n", 200,
          "\r\n\r\n5" },
        { "HT-08 nothing after a bad chunk is a request",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n5\nhello\r\n0\r\n\r\nGET /now?second HTTP/1.1\r\n" CLOSE "\r\n",
          400, "bad_request" },
        { "HT-08 in a later request",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\n5\r\nhello\r\n0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, "\r\n\r\n5" },
        { "HT-08 in a later request: letters",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\nxyz\r\nhello\r\n0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-08 in a later request: a bare LF",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\n5\nhello\r\n0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-08 in a later request: 0x",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\n0x5\r\nhello\r\n0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-08 in a later request: no end of a chunk",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\n5\r\nhelloXX0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-08 in a later request: a bare LF at the end",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\n5\r\nhello\r\n0\r\n\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-08 in a later request: 17 digits",
          "GET /now?first HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H
          "\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\nGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, NULL },
        { "HT-10 too long", "POST /echo HTTP/1.1\r\nContent-Length: 1048577\r\n" CLOSE "\r\n", 413, "body_too_large" },
        { "HT-10 too long, expecting", "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1048577\r\n" CLOSE "\r\n", 413,
          "body_too_large" },
        { "refused before the body", "POST /deny HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n" CLOSE "\r\n", 401,
          "invalid_api_key" },
        { "HT-19 refused with the body", "POST /deny HTTP/1.1\r\nContent-Length: 5\r\n" CLOSE "\r\nhello", 401, "invalid_api_key" },
        { "HT-19 no desynchronisation",
          "POST /deny HTTP/1.1\r\nContent-Length: 5\r\n" H "\r\nhelloGET /now?second HTTP/1.1\r\n" CLOSE "\r\n", 401, "second" },
        { "HT-18 pipelined",
          "POST /echo HTTP/1.1\r\nContent-Length: 1\r\n" H "\r\naPOST /echo HTTP/1.1\r\nContent-Length: 2\r\n" H
          "\r\nabGET /now?third HTTP/1.1\r\n" CLOSE "\r\n",
          200, "third" },
        { "HT-06 in a second request",
          "GET /now HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n" H "\r\na", 200,
          "HTTP/1.1 400 " },
        { "HT-03 slow head", "GET /now HTTP", 408, "request_timeout" },
        { "HT-04 slow body", "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n" H "\r\nhe", 408, "request_timeout" },
        { "HT-13 TLS hello", "\x16\x03\x01\x02", 400, "bad_request" },
    };
    nb_buf out = { 0 };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char want[32];

        talk(*state, rows[i].request, strlen(rows[i].request), &out);
        snprintf(want, sizeof want, "HTTP/1.1 %d ", rows[i].status);
        if (strncmp(out.p, want, strlen(want)) != 0 || (rows[i].has && !strstr(out.p, rows[i].has)))
            fail_msg("%s: %s", rows[i].label, out.p);
        assert_null(strstr(out.p, "Set-Cookie"));                /* HT-28 */
        if (strncmp(rows[i].label, "HT-08 in a later", 16) != 0) /* a bad chunk there is the library's to tell */
            assert_null(strstr(out.p, "<html>"));                /* all other answers are ours */
        assert_null(strncmp(rows[i].label, "HT-08", 5) == 0 ? strstr(out.p, "third") : NULL);
        assert_null(strncmp(rows[i].label, "HT-08 nothing", 13) == 0 ? strstr(out.p, "second") : NULL);
    }
    nb_buf_clear(&out);
}

static void until(fixture *x, const atomic_int *v, int n)
{
    for (int i = 0; *v < n; i++) {
        assert_true(i < PATIENCE_MS);
        nap();
        nb_http_sweep(x->s);
    }
}

/* HT-08: a chunked request in two parts, at every place, good and bad; and an answer that streams through. */
static void test_chunks_in_parts(void **state)
{
    static const char good[] =
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n5;x\r\nhello\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n";
    static const char bad[] = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n5\r\nhello\n";
    static const char stream[] = "POST /stream HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n1\r\na\r\n0\r\n\r\n";
    nb_buf out = { 0 };

    for (int which = 0; which < 2; which++) {
        const char *p = which ? bad : good;
        const size_t n = strlen(p);

        for (size_t i = strlen("POST "); i < n; i += 7) {
            const int fd = dial(*state);

            out.n = 0;
            say(fd, p, i);
            nap();
            say(fd, p + i, n - i);
            hear(fd, &out);
            if (strncmp(out.p, which ? "HTTP/1.1 400 " : "HTTP/1.1 200 ", 13) != 0 || !strstr(out.p, which ? "bad_request" : "\r\n\r\n8"))
                fail_msg("cut at %zu: %s", i, out.p);
        }
    }
    talk(*state, stream, sizeof stream - 1, &out);
    assert_non_null(strstr(out.p, "data: 49\n\n"));
    assert_non_null(strstr(out.p, "\r\n0\r\n\r\n"));
    nb_buf_clear(&out);
}

/* HT-20: a client with a chunked body leaves while it is awaited. */
static void test_chunked_gone(void **state)
{
    fixture *x = *state;

    for (int how = 0; how < 2; how++) {
        const int fd = dial(x), seen = x->n_body, n = x->n_gone;

        say_text(fd, "POST /wait HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n1\r\na\r\n0\r\n\r\n");
        until(x, &x->n_body, seen + 1);
        if (how == 0)
            shutdown(fd, SHUT_WR);
        else
            close(fd);
        until(x, &x->n_gone, n + 1);
        if (how == 0)
            close(fd);
    }
}

/* HT-09: a chunked body over the limit ends as soon as the sum passes it. */
static void test_long_body(void **state)
{
    nb_buf in = { 0 }, out = { 0 };

    nb_buf_puts(&in, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" H "\r\n");
    for (int i = 0; i < 40; i++) {
        nb_buf_puts(&in, "10000\r\n");
        for (int k = 0; k < 0x10000; k++)
            nb_buf_putc(&in, 'a');
        nb_buf_puts(&in, "\r\n");
    }
    talk(*state, in.p, in.n, &out);
    assert_true(strncmp(out.p, "HTTP/1.1 413 ", 13) == 0);
    nb_buf_clear(&in);
    nb_buf_clear(&out);
}

static void test_stream(void **state)
{
    static const char request[] = "POST /stream HTTP/1.1\r\nContent-Length: 0\r\n" CLOSE "\r\n";
    nb_buf out = { 0 };
    const char *at;

    talk(*state, request, sizeof request - 1, &out);
    at = out.p;
    for (int i = 0; i < EVENTS; i++) { /* all, in order */
        char want[32];

        snprintf(want, sizeof want, "data: %d\n\n", i);
        at = strstr(at, want);
        if (!at)
            fail_msg("event %d is missing: %s", i, out.p);
    }
    assert_non_null(strstr(at, "\r\n0\r\n\r\n")); /* the last chunk */
    nb_buf_clear(&out);
}

/* HT-20: closed and half-closed while the answer is awaited or streams. */
static void test_gone(void **state)
{
    fixture *x = *state;
    const struct linger hard = { 1, 0 };
    int n = x->n_gone;

    for (int how = 0; how < 3; how++) {
        const int fd = dial(x), seen = x->n_body;

        say_text(fd, "POST /wait HTTP/1.1\r\nContent-Length: 0\r\n" H "\r\n");
        until(x, &x->n_body, seen + 1);
        if (how == 0)
            shutdown(fd, SHUT_WR);
        if (how == 1)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard); /* a reset */
        if (how)
            close(fd);
        until(x, &x->n_gone, ++n);
        if (!how)
            close(fd);
    }
}

/* HT-05, OV-07: who never reads is given up, and costs a bounded amount of memory. */
static void test_never_reads(void **state)
{
    fixture *x = *state;
    const int n = x->n_gone, fd = dial(x);
    const uint64_t before = nb_mem_now();

    say_text(fd, "POST /flood HTTP/1.1\r\nContent-Length: 0\r\n" H "\r\n");
    while (x->n_threads) {
        assert_true(nb_mem_now() < before + (2 << 20)); /* max_unsent is a quarter of a MiB; a buffer doubles */
        nap();
    }
    close(fd);
    until(x, &x->n_gone, n + 1);
}

/* HT-22: no descriptor is left when a client comes: the server does not turn in circles, and goes on as soon as there is one. */
static void test_no_descriptors(void **state)
{
    fixture *x = *state;
    static const char request[] = "GET /now HTTP/1.1\r\n" CLOSE "\r\n";
    const struct sockaddr_in a = { .sin_family = AF_INET,
                                   .sin_port = htons(nb_http_port(x->s)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct rlimit old, low;
    int client[4], taken[256], n = 0;
    nb_buf out = { 0 };
    double spent;
    bool ok = false;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (size_t i = 0; i < NB_LEN(client); i++)
        client[i] = socket(AF_INET, SOCK_STREAM, 0);
    low = old;
    low.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (n < (int)NB_LEN(taken) && (taken[n] = dup(0)) >= 0)
        n++;
    assert_true(n < (int)NB_LEN(taken)); /* the table is full */
    for (size_t i = 0; i < NB_LEN(client); i++) {
        assert_int_equal(connect(client[i], (const struct sockaddr *)&a, sizeof a), 0);
        say(client[i], request, sizeof request - 1);
    }
    spent = cpu_now();
    for (int i = 0; i < 500; i++)
        nap();
    spent = cpu_now() - spent;
    while (n > 0)
        close(taken[--n]);
    setrlimit(RLIMIT_NOFILE, &old);
    if (!(spent < 0.1))
        fail_msg("HT-22: %.3f s of processor time in half a second of nothing", spent);
    for (size_t i = 0; i < NB_LEN(client); i++)
        close(client[i]);
    for (int i = 0; !ok && i < 2000; i++, nap()) {
        talk(x, request, sizeof request - 1, &out);
        ok = strncmp(out.p, "HTTP/1.1 200 ", 13) == 0;
    }
    assert_true(ok);
    nb_buf_clear(&out);
}

/* HT-21: more connections than the limit, and recovery. */
static void test_too_many(void **state)
{
    fixture *x = *state;
    static const char request[] = "GET /now HTTP/1.1\r\n" CLOSE "\r\n";
    nb_buf out = { 0 };
    int fds[24];
    bool ok = false;

    for (size_t i = 0; i < NB_LEN(fds); i++)
        fds[i] = dial(x);
    for (int i = 0; !ok && i < 200; i++) { /* those of earlier tests may still be closing */
        talk(x, request, sizeof request - 1, &out);
        ok = strncmp(out.p, "HTTP/1.1 503 ", 13) == 0 && strstr(out.p, "Retry-After: 1");
    }
    assert_true(ok);
    for (size_t i = 0; i < NB_LEN(fds); i++)
        close(fds[i]);
    ok = false;
    for (int i = 0; !ok && i < 2000; i++) {
        talk(x, request, sizeof request - 1, &out);
        ok = strncmp(out.p, "HTTP/1.1 200 ", 13) == 0;
        nap();
    }
    assert_true(ok);
    nb_buf_clear(&out);
}

/* HT-32: the port is taken. */
static void test_port_in_use(void **state)
{
    const fixture *x = *state;
    nb_http_opts o = NB_HTTP_OPTS;
    nb_http *s;
    nb_err err = { 0 };

    o.port = nb_http_port(x->s);
    assert_int_equal(nb_http_open(&o, &s, &err), NB_EBUSY);
    assert_string_equal(err.cls, "net.bind");
    memset(&err, 0, sizeof err);
    o.host = "192.0.2.1"; /* no address of this machine */
    assert_int_equal(nb_http_open(&o, &s, &err), NB_EBUSY);
}

/* Closing with requests under way. */
static void test_close_busy(void **state)
{
    fixture *x = *state;
    int fds[4];
    const int seen = x->n_body;

    for (size_t i = 0; i < NB_LEN(fds); i++) {
        fds[i] = dial(x);
        say_text(fds[i], "POST /wait HTTP/1.1\r\nContent-Length: 0\r\n" H "\r\n");
    }
    until(x, &x->n_body, seen + 4);
    for (size_t i = 0; i < NB_LEN(fds); i++)
        close(fds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_chunks_in_parts), cmocka_unit_test(test_chunked_gone),
        cmocka_unit_test(test_long_body),   cmocka_unit_test(test_stream),          cmocka_unit_test(test_gone),
        cmocka_unit_test(test_never_reads), cmocka_unit_test(test_too_many),        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_port_in_use), cmocka_unit_test(test_close_busy),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
