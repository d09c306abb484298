/* loadgen.c - sockets of the load client: one connection per request, chunked event streams taken apart as they come. */
#include "serve/loadgen.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/rng.h"

/* ---- a connection ---- */

typedef struct wire {
    int fd;
    char buf[16384];
    size_t at, n;
    bool chunked, closed;
    size_t left; /* of the chunk, or of the body */
    int status;
} wire;

static int dial(const nb_load_opts *o)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    const struct timeval tv = { (time_t)o->timeout_s, 0 };
    struct addrinfo *list;
    char port[8];
    const int one = 1;
    int fd = -1;

    snprintf(port, sizeof port, "%u", o->port);
    if (getaddrinfo(o->host, port, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    }
    return fd;
}

static bool send_all(int fd, const char *p, size_t n)
{
    while (n) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool send_request(const nb_load_opts *o, int fd, const char *path, const char *body)
{
    nb_buf b = { 0 };
    bool ok;

    nb_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: %s:%u\r\nConnection: close\r\n", body ? "POST" : "GET", path, o->host, o->port);
    if (o->bearer)
        nb_buf_printf(&b, "Authorization: Bearer %s\r\n", o->bearer);
    if (body)
        nb_buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    nb_buf_puts(&b, "\r\n");
    if (body)
        nb_buf_puts(&b, body);
    ok = !b.failed && send_all(fd, b.p, b.n);
    nb_buf_clear(&b);
    return ok;
}

/* The next byte, -1 at the end. */
static int next_byte(wire *l)
{
    if (l->at == l->n) {
        ssize_t k;

        do
            k = recv(l->fd, l->buf, sizeof l->buf, 0);
        while (k < 0 && errno == EINTR);
        if (k <= 0)
            return -1;
        l->at = 0;
        l->n = (size_t)k;
    }
    return (unsigned char)l->buf[l->at++];
}

/* A line without its end; false at the end of the connection. */
static bool read_line(wire *l, char *out, size_t cap)
{
    size_t n = 0;
    int c;

    while ((c = next_byte(l)) >= 0 && c != '\n')
        if (n + 1 < cap && c != '\r')
            out[n++] = (char)c;
    out[n] = 0;
    return c >= 0;
}

static bool read_head(wire *l)
{
    char line[1024];
    const char *p;
    uint64_t status, v;

    if (!read_line(l, line, sizeof line) || strncmp(line, "HTTP/1.", 7) != 0 || !(p = strchr(line, ' ')) ||
        !nb_num_u64(p + 1, 999, &status))
        return false;
    l->status = (int)status;
    l->left = SIZE_MAX;
    while (read_line(l, line, sizeof line) && line[0]) {
        if (strncasecmp(line, "transfer-encoding:", 18) == 0 && strstr(line, "chunked"))
            l->chunked = true;
        if (strncasecmp(line, "content-length:", 15) == 0)
            l->left = nb_num_u64(line + 15 + strspn(line + 15, " \t"), SIZE_MAX - 1, &v) ? (size_t)v : SIZE_MAX;
    }
    if (l->chunked)
        l->left = 0;
    return true;
}

/* The next byte of the body. */
static int body_byte(wire *l)
{
    char line[64];
    uint64_t v;

    if (l->chunked && l->left == 0) {
        if (l->closed || !read_line(l, line, sizeof line))
            return -1;
        if (!line[0] && !read_line(l, line, sizeof line)) /* the end of the chunk before */
            return -1;
        l->left = nb_num_hex(line, SIZE_MAX, &v) ? (size_t)v : 0;
        if (l->left == 0) {
            l->closed = true;
            return -1;
        }
    }
    if (l->left == 0)
        return -1;
    l->left--;
    return next_byte(l);
}

/* ---- one request ---- */

static bool keep_gap(nb_load_answer *a, double gap)
{
    if (a->n_itl == a->cap_itl) {
        const size_t cap = a->cap_itl ? 2 * a->cap_itl : 64;
        double *more = nb_realloc(a->itl, cap * sizeof *more);

        if (!more)
            return false;
        a->itl = more;
        a->cap_itl = cap;
    }
    a->itl[a->n_itl++] = gap;
    return true;
}

/* What one event says. `last`: when the one before came, 0: none yet; text: what was said so far, or NULL. */
static void on_event(nb_load_answer *a, const char *p, size_t n, double began, double *last, nb_buf *text)
{
    const double now = nb_now();
    nb_json *v = NULL;
    const nb_json *usage;

    if (nb_json_parse(p, n, "event", 0, &v, NULL) != NB_OK)
        return;
    if (nb_json_get(v, "error")) {
        snprintf(a->error, sizeof a->error, "%.150s", nb_json_str(nb_json_get(nb_json_get(v, "error"), "message"), "error in the stream"));
        a->ok = false;
    } else if (nb_json_len(nb_json_get(v, "choices"))) {
        if (*last > 0)
            keep_gap(a, now - *last);
        else
            a->ttft = now - began;
        *last = now;
        a->latency = now - began;
        if (text) {
            const nb_json *c = nb_json_at(nb_json_get(v, "choices"), 0);

            nb_buf_puts(text, nb_json_str(nb_json_get(c, "text"), nb_json_str(nb_json_get(nb_json_get(c, "delta"), "content"), "")));
        }
    }
    usage = nb_json_get(v, "usage");
    if (!nb_json_is_null(usage)) {
        a->n_output = (size_t)nb_json_int(nb_json_get(usage, "completion_tokens"), 0);
        a->n_input = (size_t)nb_json_int(nb_json_get(usage, "prompt_tokens"), (int64_t)a->n_input);
        a->n_cached = (size_t)nb_json_int(nb_json_get(nb_json_get(usage, "prompt_tokens_details"), "cached_tokens"), 0);
    }
    nb_json_free(v);
}

static void read_events(wire *l, nb_load_answer *a, double began, bool keep)
{
    nb_buf line = { 0 }, text = { 0 };
    double last = 0;
    bool done = false;
    int c;

    a->ok = true;
    while (!done && (c = body_byte(l)) >= 0) {
        if (c != '\n') {
            nb_buf_putc(&line, (char)c);
            continue;
        }
        if (line.n > 6 && memcmp(line.p, "data: ", 6) == 0) {
            done = strncmp(line.p + 6, "[DONE]", 6) == 0;
            if (!done)
                on_event(a, line.p + 6, line.n - 6, began, &last, keep ? &text : NULL);
        }
        line.n = 0;
    }
    a->text = keep && !text.failed ? nb_strdup(text.p ? text.p : "") : NULL;
    nb_buf_clear(&text);
    nb_buf_clear(&line);
    if (a->ok && !done) {
        a->ok = false;
        snprintf(a->error, sizeof a->error, "the stream ended early");
    }
}

static void read_refusal(wire *l, nb_load_answer *a)
{
    nb_buf body = { 0 };
    int c;

    while (body.n < 4096 && (c = body_byte(l)) >= 0)
        nb_buf_putc(&body, (char)c);
    snprintf(a->error, sizeof a->error, "status %d: %.120s", l->status, body.p ? body.p : "");
    nb_buf_clear(&body);
}

static void sleep_until(double t)
{
    for (double left; (left = t - nb_now()) > 0;) {
        const struct timespec ts = { (time_t)left, (long)((left - floor(left)) * 1e9) };

        nanosleep(&ts, NULL);
    }
}

static void ask(const nb_load_opts *o, const nb_load_request *q, nb_load_answer *a)
{
    const double began = nb_now();
    wire *l = nb_calloc(1, sizeof *l);

    a->n_input = q->n_input;
    if (!l)
        return;
    l->fd = dial(o);
    if (l->fd < 0)
        snprintf(a->error, sizeof a->error, "no connection");
    else if (!send_request(o, l->fd, o->path, q->body))
        snprintf(a->error, sizeof a->error, "the request cannot be sent");
    else if (o->give_up_s > 0)
        sleep_until(began + o->give_up_s);
    else if (!read_head(l))
        snprintf(a->error, sizeof a->error, "no answer");
    else if (l->status != 200)
        read_refusal(l, a);
    else
        read_events(l, a, began, o->keep_text);
    a->status = l->status;
    if (l->fd >= 0)
        close(l->fd);
    nb_free(l);
}

/* ---- all of them ---- */

typedef struct run {
    const nb_load_opts *o;
    const nb_load_request *q;
    nb_load_answer *a;
    size_t n;
    atomic_size_t next, done;
    double t0;
} run;

static void *worker(void *arg)
{
    run *r = arg;

    for (;;) {
        const size_t i = atomic_fetch_add(&r->next, 1);

        if (i >= r->n || nb_cancelled(r->o->log))
            return NULL;
        sleep_until(r->t0 + r->q[i].at);
        r->a[i].start = nb_now() - r->t0;
        ask(r->o, &r->q[i], &r->a[i]);
        atomic_fetch_add(&r->done, 1);
    }
}

nb_status nb_load_run(const nb_load_opts *o, const nb_load_request *q, size_t n, nb_load_answer *a, double *seconds, nb_err *err)
{
    const unsigned n_threads = o->concurrency < n ? o->concurrency : (unsigned)n;
    pthread_t *threads = nb_calloc(n_threads ? n_threads : 1, sizeof *threads);
    const struct timespec nap = { 0, 100000000 };
    run r = { .o = o, .q = q, .a = a, .n = n };
    pthread_attr_t attr;
    unsigned started = 0;

    if (!threads)
        return nb_enomem(err, "the load client");
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    r.t0 = nb_now();
    while (started < n_threads && pthread_create(&threads[started], &attr, worker, &r) == 0)
        started++;
    pthread_attr_destroy(&attr);
    while (started && atomic_load(&r.done) < n && !nb_cancelled(o->log)) {
        const nb_progress p = { .what = "bench", .unit = "requests", .done = atomic_load(&r.done), .total = n };

        nanosleep(&nap, NULL);
        nb_report_progress(o->log, &p);
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    *seconds = 0;
    for (size_t i = 0; i < n; i++)
        *seconds = fmax(*seconds, a[i].start + a[i].latency);
    nb_free(threads);
    return started ? NB_OK : nb_fail(err, NB_ENOMEM, "bench.thread", "", "no thread can be started");
}

nb_status nb_load_json(const nb_load_opts *o, const char *path, const char *body, nb_json **out, nb_err *err)
{
    wire *l = nb_calloc(1, sizeof *l);
    nb_buf text = { 0 };
    nb_status rc;
    int c;

    *out = NULL;
    if (!l)
        return nb_enomem(err, "the load client");
    l->fd = dial(o);
    if (l->fd < 0 || !send_request(o, l->fd, path, body) || !read_head(l)) {
        rc = nb_fail(err, NB_EOPEN, "net.connect", "", "no answer from %s port %u; is the server running?", o->host, o->port);
    } else {
        while ((c = body_byte(l)) >= 0)
            nb_buf_putc(&text, (char)c);
        rc = l->status == 200 ? nb_json_parse(text.p ? text.p : "", text.n, "net", 0, out, err)
                              : nb_fail(err, NB_EOPEN, "net.status", "", "%s answers %d", path, l->status);
    }
    if (l->fd >= 0)
        close(l->fd);
    nb_buf_clear(&text);
    nb_free(l);
    return rc;
}

/* ---- times ---- */

/* A gamma variate of shape k and scale 1 (Marsaglia and Tsang, 2000). Draws of stream 7 from *counter on. */
static double gamma_draw(double k, uint64_t seed, uint64_t *counter)
{
    const double boost = k < 1 ? pow(nb_rng_uniform(seed, 7, (*counter)++), 1 / k) : 1;
    const double d = (k < 1 ? k + 1 : k) - 1.0 / 3, c = 1 / sqrt(9 * d);

    for (;;) {
        const double x = nb_rng_normal(seed, 8, (*counter)++), v = pow(1 + c * x, 3), u = nb_rng_uniform(seed, 7, (*counter)++);

        if (v > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v * boost;
    }
}

/* Of request i of n. */
static double rate_at(const nb_load_pace *p, size_t i, size_t n)
{
    const double done = (double)i / (double)(n > 1 ? n - 1 : 1);

    switch (p->ramp) {
    case NB_RAMP_LINEAR:
        return p->rate + (p->to - p->rate) * done;
    case NB_RAMP_EXPONENTIAL:
        return p->rate * pow(p->to / p->rate, done);
    default:
        return p->rate;
    }
}

void nb_load_schedule(nb_load_request *q, size_t n, const nb_load_pace *p, uint64_t seed)
{
    uint64_t counter = 0;
    double at = 0;

    for (size_t i = 0; i < n; i++) {
        const double rate = rate_at(p, i, n);

        at += isinf(rate) ? 0 : isinf(p->burstiness) ? 1 / rate : gamma_draw(p->burstiness, seed, &counter) / (rate * p->burstiness);
        q[i].at = at;
    }
    for (size_t i = 0; at > 0 && p->ramp == NB_RAMP_NONE && i < n; i++)
        q[i].at *= (double)n / p->rate / at;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double nb_load_percentile(double *v, size_t n, double p)
{
    const double at = n ? p / 100 * (double)(n - 1) : 0;
    const size_t i = (size_t)at;

    if (n == 0)
        return 0;
    qsort(v, n, sizeof *v, by_value);
    return i + 1 < n ? v[i] + (v[i + 1] - v[i]) * (at - (double)i) : v[n - 1];
}
