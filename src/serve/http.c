/* http.c - requests over libmicrohttpd. The I/O thread runs its callbacks; a request without an answer is suspended there and
 * resumed by whoever answers. `lock` of a request guards its answer, `lock` of the server the list of requests. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "serve/http.h"

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "serve/errors.h"
#include "serve/gate.h"

enum { CONNECTION_BYTES = 128 << 10, CHUNK_BYTES = 16 << 10, REPLY_HEADERS = 12 };

typedef enum phase { PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_DONE } phase;

struct nb_http_req {
    nb_http *s;
    struct MHD_Connection *c;
    nb_http_req *next, **prev;
    int fd;
    _Atomic phase phase;
    char *target; /* the path is cut off it */
    char *query;
    char method[16];
    nb_buf body;
    double began, deadline;
    void *data;

    pthread_mutex_t lock;
    unsigned refs;
    struct MHD_Response *reply;
    int status;
    char *headers[2 * REPLY_HEADERS]; /* name, value */
    size_t n_headers;
    nb_buf out;
    size_t sent;
    double progress; /* when the client last took something */
    bool streaming, ended, suspended, gone, drop_body;
};

/* What libmicrohttpd keeps for a connection of ours. */
typedef struct conn {
    unsigned n_requests;
    bool once; /* the gate is between us and the client, for one request */
} conn;

/* The address under which connections through the gate come. */
static const struct sockaddr_un relayed = { .sun_family = AF_UNIX, .sun_path = "relay" };

struct nb_http {
    nb_http_opts o;
    nb_gate *gate;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    nb_http_req *list;
    atomic_bool closing;
};

/* ---- life of a request ---- */

static void free_req(nb_http_req *r)
{
    for (size_t i = 0; i < 2 * r->n_headers; i++)
        nb_free(r->headers[i]);
    if (r->reply)
        MHD_destroy_response(r->reply);
    nb_buf_clear(&r->body);
    nb_buf_clear(&r->out);
    pthread_mutex_destroy(&r->lock);
    nb_free(r->target);
    nb_free(r);
}

void nb_http_keep(nb_http_req *r)
{
    pthread_mutex_lock(&r->lock);
    r->refs++;
    pthread_mutex_unlock(&r->lock);
}

void nb_http_drop(nb_http_req *r)
{
    bool last;

    pthread_mutex_lock(&r->lock);
    last = --r->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (last)
        free_req(r);
}

/* With r->lock held: let the I/O thread look at it again. */
static void wake(nb_http_req *r)
{
    if (r->suspended && r->c) {
        r->suspended = false;
        MHD_resume_connection(r->c);
    }
}

/* The request line has come: the value returned becomes *con_cls of all later callbacks. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *c)
{
    nb_http *s = cls;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    nb_http_req *r = nb_calloc(1, sizeof *r);
    char *mark;

    if (!r)
        return NULL;
    r->target = nb_strdup(target);
    if (!r->target) {
        nb_free(r);
        return NULL;
    }
    mark = strchr(r->target, '?');
    if (mark)
        *mark++ = '\0';
    r->query = mark ? mark : r->target + strlen(r->target);
    r->s = s;
    r->c = c;
    r->fd = fd ? fd->connect_fd : -1;
    r->refs = 1;
    r->began = r->progress = nb_now();
    r->deadline = r->began + s->o.body_s;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_lock(&s->lock);
    r->next = s->list;
    r->prev = &s->list;
    if (r->next)
        r->next->prev = &r->next;
    s->list = r;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode how)
{
    nb_http *s = cls;
    nb_http_req *r = *con_cls;
    struct MHD_Response *unsent;

    (void)c;
    if (!r)
        return;
    *con_cls = NULL;
    pthread_mutex_lock(&s->lock);
    *r->prev = r->next;
    if (r->next)
        r->next->prev = r->prev;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&r->lock);
    r->c = NULL;
    r->phase = PHASE_DONE;
    unsent = r->reply; /* a stream's holds the request */
    r->reply = NULL;
    if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK || (r->streaming && !r->ended))
        r->gone = true;
    pthread_mutex_unlock(&r->lock);
    if (unsent)
        MHD_destroy_response(unsent);
    if (s->o.done && r->method[0])
        s->o.done(s->o.user, r);
    nb_http_drop(r);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context, enum MHD_ConnectionNotificationCode what)
{
    nb_http *s = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *addr = info ? info->client_addr : NULL;
    const bool once = addr && addr->sa_family == AF_UNIX && strcmp(((const struct sockaddr_un *)addr)->sun_path, relayed.sun_path) == 0;
    conn *k;

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *socket_context = k = nb_calloc(1, sizeof *k);
        if (k)
            k->once = once;
    } else {
        if (!once)
            nb_gate_left(s->gate, addr);
        nb_free(*socket_context);
        *socket_context = NULL;
    }
}

/* ---- the head again ---- */

static enum MHD_Result put_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    nb_buf *b = cls;

    (void)kind;
    nb_buf_puts(b, name);
    nb_buf_puts(b, ": ");
    nb_buf_puts(b, value ? value : "");
    nb_buf_puts(b, "\r\n");
    return MHD_YES;
}

/* Requests after the first of a connection did not pass the gate: the same checks, on what the library understood. */
static bool head_is_good(nb_http_req *r, const char *method, const char *version, nb_head_fault *fault)
{
    nb_buf b = { 0 };
    nb_head_limits lim = r->s->o.limits;
    size_t end;
    bool good;

    lim.line += 64; /* the separators of this text are not the client's */
    lim.header += 8;
    lim.total += 2 * lim.count;
    nb_buf_printf(&b, "%s %s%s%s %s\r\n", method, r->target, *r->query ? "?" : "", r->query, version);
    MHD_get_connection_values(r->c, MHD_HEADER_KIND, put_header, &b);
    nb_buf_puts(&b, "\r\n");
    *fault = (nb_head_fault){ 503, "out_of_memory", "There is no memory for this request now." };
    good = !b.failed && nb_head_check(b.p, b.n, &lim, &end, fault) == NB_HEAD_DONE;
    nb_buf_clear(&b);
    return good;
}

/* Answer past the library, and let it close: for faults after which the rest of the connection cannot be understood. */
static enum MHD_Result refuse(nb_http_req *r, const nb_head_fault *fault)
{
    const int fd = dup(r->fd); /* the gate drains its copy, so that the answer is not lost to a reset */

    pthread_mutex_lock(&r->lock);
    r->status = fault->status;
    pthread_mutex_unlock(&r->lock);
    if (fd >= 0)
        nb_gate_refuse(r->s->gate, fd, fault, "");
    return MHD_NO;
}

/* ---- callbacks of the I/O thread ---- */

/* Hand the answer to the library, or suspend until there is one. The library locks the answer while it asks for more of it,
 * so it is not called with r->lock held. */
static enum MHD_Result answer(nb_http_req *r)
{
    struct MHD_Response *reply;
    enum MHD_Result rc = MHD_YES;
    int status;

    pthread_mutex_lock(&r->lock);
    reply = r->reply;
    status = r->status;
    r->reply = NULL;
    if (r->gone || r->s->closing) {
        rc = MHD_NO;
    } else if (!reply) {
        r->suspended = true;
        MHD_suspend_connection(r->c);
    }
    pthread_mutex_unlock(&r->lock);
    if (reply && rc == MHD_YES)
        rc = MHD_queue_response(r->c, (unsigned)status, reply);
    if (reply)
        MHD_destroy_response(reply);
    return rc;
}

static bool answered(nb_http_req *r)
{
    bool yes;

    pthread_mutex_lock(&r->lock);
    yes = r->reply != NULL;
    pthread_mutex_unlock(&r->lock);
    return yes;
}

static enum MHD_Result begin(nb_http_req *r, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    conn *k = info ? info->socket_context : NULL;
    nb_head_fault fault;

    snprintf(r->method, sizeof r->method, "%.15s", method);
    if ((!k || k->n_requests) && !head_is_good(r, method, version, &fault)) /* the gate has seen the first */
        return refuse(r, &fault);
    /* Chunks of a later request do not pass the gate, so nothing behind them is taken for a request (HT-08). Bad ones the library answers
     * itself: 400 or 413 with a page of its own, where ours would be JSON; it offers no way in between. */
    if (!k || ++k->n_requests >= r->s->o.max_requests || k->once || nb_http_header(r, "transfer-encoding", NULL))
        nb_http_add(r, "Connection", "close");
    r->phase = PHASE_BODY;
    r->s->o.head(r->s->o.user, r);
    if (answered(r)) {
        r->drop_body = true;
        if (nb_http_header(r, "expect", NULL)) /* the client waits for leave to send: this is the answer */
            return answer(r);
    }
    return MHD_YES;
}

static enum MHD_Result take_body(nb_http_req *r, const char *p, size_t n)
{
    static const nb_head_fault large = { 413, "body_too_large", "The body is larger than this server accepts (--max-body)." };
    static const nb_head_fault memory = { 503, "out_of_memory", "There is no memory for this request now." };

    if (n > r->s->o.limits.max_body - r->body.n)
        return refuse(r, &large);
    if (r->drop_body)
        return MHD_YES;
    nb_buf_put(&r->body, p, n);
    return r->body.failed ? refuse(r, &memory) : MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *n_upload, void **con_cls)
{
    nb_http_req *r = *con_cls;
    enum MHD_Result rc = MHD_YES;

    (void)cls;
    (void)c;
    (void)url;
    if (!r)
        return MHD_NO;
    if (r->phase == PHASE_HEAD)
        return begin(r, method, version);
    if (*n_upload) {
        rc = take_body(r, upload, *n_upload);
        *n_upload = 0;
        return rc;
    }
    if (r->phase == PHASE_BODY) {
        r->phase = PHASE_WORK;
        if (!answered(r))
            r->s->o.body(r->s->o.user, r);
    }
    return answer(r);
}

/* The library wants more of a stream. */
static ssize_t more(void *cls, uint64_t pos, char *buf, size_t max)
{
    nb_http_req *r = cls;
    ssize_t n;

    (void)pos;
    pthread_mutex_lock(&r->lock);
    r->progress = nb_now();
    if (r->gone || r->s->closing) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (r->out.n > r->sent) {
        n = (ssize_t)(r->out.n - r->sent < max ? r->out.n - r->sent : max);
        memcpy(buf, r->out.p + r->sent, (size_t)n);
        r->sent += (size_t)n;
        if (r->sent == r->out.n)
            r->sent = r->out.n = 0;
    } else if (r->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        n = 0;
        r->suspended = true;
        MHD_suspend_connection(r->c);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void stream_done(void *cls)
{
    nb_http_drop(cls);
}

/* ---- answers ---- */

void nb_http_add(nb_http_req *r, const char *name, const char *value)
{
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return;
    pthread_mutex_lock(&r->lock);
    if (r->n_headers < REPLY_HEADERS) {
        char *n = nb_strdup(name), *v = nb_strdup(value);

        if (n && v) {
            r->headers[2 * r->n_headers] = n;
            r->headers[2 * r->n_headers++ + 1] = v;
        } else {
            nb_free(n);
            nb_free(v);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

/* With r->lock held: `made` (NULL: no memory) is the answer. */
static void give(nb_http_req *r, struct MHD_Response *made, int status, const char *type)
{
    char ms[32];

    r->reply = made;
    r->status = status;
    if (!made) {
        r->gone = true; /* all that can be done is to close */
    } else {
        if (type)
            MHD_add_response_header(made, "Content-Type", type);
        if (r->s->o.timing && snprintf(ms, sizeof ms, "%.0f", 1e3 * (nb_now() - r->began)) > 0)
            MHD_add_response_header(made, r->s->o.timing, ms);
        for (size_t i = 0; i < r->n_headers; i++)
            MHD_add_response_header(made, r->headers[2 * i], r->headers[2 * i + 1]);
    }
    wake(r);
}

void nb_http_reply(nb_http_req *r, int status, const char *type, const char *body, size_t n)
{
    pthread_mutex_lock(&r->lock);
    if (!r->status && !r->gone && r->c)
        give(r, MHD_create_response_from_buffer(n, (void *)(uintptr_t)(body ? body : ""), MHD_RESPMEM_MUST_COPY), status, type);
    pthread_mutex_unlock(&r->lock);
}

void nb_http_error(nb_http_req *r, int status, const char *code, const char *param, const char *message)
{
    nb_buf b = { 0 };

    nb_error_put(&b, r->s->o.errors, status, code, param, message);
    if (status >= 400 && status < 500 && status != 408 && status != 409 && status != 429)
        nb_http_add(r, "x-should-retry", "false");
    nb_http_reply(r, status, "application/json", b.failed ? "{}" : b.p, b.failed ? 2 : b.n);
    nb_buf_clear(&b);
}

void nb_http_stream(nb_http_req *r, int status, const char *type)
{
    pthread_mutex_lock(&r->lock);
    if (!r->status && !r->gone && r->c) {
        struct MHD_Response *made = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES, more, r, stream_done);

        if (made)
            r->refs++;
        r->streaming = true;
        r->progress = nb_now();
        give(r, made, status, type);
    }
    pthread_mutex_unlock(&r->lock);
}

size_t nb_http_send(nb_http_req *r, const char *p, size_t n)
{
    size_t left;

    pthread_mutex_lock(&r->lock);
    if (!r->gone && !r->ended) {
        if (r->sent && r->sent == r->out.n)
            r->sent = r->out.n = 0;
        if (r->out.n == 0)
            r->progress = nb_now();
        nb_buf_put(&r->out, p, n);
        if (r->out.failed || r->out.n - r->sent > r->s->o.max_unsent)
            r->gone = true;
        wake(r);
    }
    left = r->out.n - r->sent;
    pthread_mutex_unlock(&r->lock);
    return left;
}

void nb_http_end(nb_http_req *r)
{
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    wake(r);
    pthread_mutex_unlock(&r->lock);
}

bool nb_http_gone(const nb_http_req *r)
{
    nb_http_req *w = (nb_http_req *)(uintptr_t)r;
    bool yes;

    pthread_mutex_lock(&w->lock);
    yes = r->gone;
    pthread_mutex_unlock(&w->lock);
    return yes;
}

int nb_http_status(const nb_http_req *r)
{
    nb_http_req *w = (nb_http_req *)(uintptr_t)r;
    int status;

    pthread_mutex_lock(&w->lock);
    status = r->status;
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- what is known of a request ---- */

const char *nb_http_method(const nb_http_req *r)
{
    return r->method;
}

const char *nb_http_path(const nb_http_req *r)
{
    return r->target;
}

const char *nb_http_query(const nb_http_req *r)
{
    return r->query;
}

typedef struct lookup {
    const char *name, *value;
    unsigned n;
} lookup;

static enum MHD_Result match(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    lookup *l = cls;

    (void)kind;
    if (strcasecmp(name, l->name) == 0) {
        if (!l->n++)
            l->value = value ? value : "";
    }
    return MHD_YES;
}

const char *nb_http_header(const nb_http_req *r, const char *name, unsigned *count)
{
    lookup l = { .name = name };

    MHD_get_connection_values(r->c, MHD_HEADER_KIND, match, &l);
    if (count)
        *count = l.n;
    return l.value;
}

const char *nb_http_body(const nb_http_req *r, size_t *n)
{
    *n = r->body.n;
    return r->body.p ? r->body.p : "";
}

void nb_http_set_data(nb_http_req *r, void *data)
{
    r->data = data;
}

void *nb_http_data(const nb_http_req *r)
{
    return r->data;
}

double nb_http_began(const nb_http_req *r)
{
    return r->began;
}

/* ---- clients that leave or stall ---- */

/* With s->lock held. */
static void give_up(nb_http_req *r)
{
    pthread_mutex_lock(&r->lock);
    r->gone = true;
    wake(r);
    pthread_mutex_unlock(&r->lock);
}

void nb_http_sweep(nb_http *s)
{
    struct pollfd fds[64];
    nb_http_req *of[64];

    pthread_mutex_lock(&s->lock); /* a descriptor in the list is open: on_completed takes it out before the library closes it */
    for (nb_http_req *r = s->list; r;) {
        nfds_t n = 0;

        for (; r && n < 64; r = r->next)
            if (r->phase == PHASE_WORK && r->fd >= 0) {
                fds[n] = (struct pollfd){ .fd = r->fd, .events = POLLRDHUP };
                of[n++] = r;
            }
        if (n == 0 || poll(fds, n, 0) <= 0)
            continue;
        for (nfds_t i = 0; i < n; i++)
            if (fds[i].revents)
                give_up(of[i]);
    }
    pthread_mutex_unlock(&s->lock);
}

static void on_tick(void *user)
{
    static const nb_head_fault late = { 408, "request_timeout", "The body of the request took too long." };
    nb_http *s = user;
    const double now = nb_now();

    pthread_mutex_lock(&s->lock);
    for (nb_http_req *r = s->list; r; r = r->next) {
        bool stalled;

        if (r->phase == PHASE_BODY && now > r->deadline) {
            const int fd = dup(r->fd);

            r->deadline = now + 1e9;
            if (fd >= 0)
                nb_gate_refuse(s->gate, fd, &late, "");
            shutdown(r->fd, SHUT_RD); /* the library sees the end and closes */
            continue;
        }
        pthread_mutex_lock(&r->lock);
        stalled = r->streaming && !r->suspended && r->out.n > r->sent && now - r->progress > s->o.write_s;
        pthread_mutex_unlock(&r->lock);
        if (stalled) {
            give_up(r);
            shutdown(r->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- the server ---- */

static bool on_pass(void *user, int fd, const struct sockaddr *addr, socklen_t len, bool once)
{
    nb_http *s = user;

    if (once)
        (void)MHD_add_connection(s->daemon, fd, (const struct sockaddr *)&relayed, sizeof relayed);
    else if (MHD_add_connection(s->daemon, fd, addr, len) != MHD_YES)
        nb_gate_left(s->gate, addr); /* the library has closed it */
    return true;
}

nb_status nb_http_open(const nb_http_opts *o, nb_http **out, nb_err *err)
{
    nb_http *s = nb_calloc(1, sizeof *s);
    const nb_gate_opts g = { .host = o->host,
                             .port = o->port,
                             .limits = o->limits,
                             .max_conns = o->max_conns,
                             .max_per_address = o->max_per_address,
                             .head_s = o->head_s,
                             .errors = o->errors,
                             .pass = on_pass,
                             .tick = on_tick,
                             .user = s };
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "the server");
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    rc = nb_gate_open(&g, &s->gate, err);
    if (rc != NB_OK) {
        nb_http_close(s);
        return rc;
    }
    *out = s;
    return NB_OK;
}

nb_status nb_http_start(nb_http *s, nb_err *err)
{
    s->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC, 0, NULL, NULL,
                         on_request, s, MHD_OPTION_URI_LOG_CALLBACK, on_target, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                         MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.idle_s, MHD_OPTION_CONNECTION_LIMIT, s->o.max_conns + 16,
                         MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_THREAD_STACK_SIZE, (size_t)NB_THREAD_STACK, MHD_OPTION_END);
    if (!s->daemon)
        return nb_fail(err, NB_ENOMEM, "net.daemon", "", "the HTTP library did not start");
    return nb_gate_start(s->gate, err);
}

uint16_t nb_http_port(const nb_http *s)
{
    return nb_gate_port(s->gate);
}

void nb_http_close(nb_http *s)
{
    if (!s)
        return;
    if (s->gate)
        nb_gate_stop(s->gate);
    if (s->daemon) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        for (nb_http_req *r = s->list; r; r = r->next)
            give_up(r);
        pthread_mutex_unlock(&s->lock);
        MHD_stop_daemon(s->daemon);
    }
    nb_gate_close(s->gate);
    pthread_mutex_destroy(&s->lock);
    nb_free(s);
}
