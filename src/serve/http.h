/* http.h - an HTTP/1.1 server: requests with whole bodies in, answers and event streams out, from any thread.
 *
 * gate.c accepts and checks the first head of a connection, libmicrohttpd (http.c is its only includer) does the rest on one
 * I/O thread. A request is answered with nb_http_reply, or with nb_http_stream, any number of nb_http_send, and nb_http_end.
 * Source: spec serving 9.1, 9.6; hardening 4, 6.1. */
#ifndef NB_SERVE_HTTP_H
#define NB_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "serve/errors.h"
#include "serve/head.h"

typedef struct nb_http nb_http;
typedef struct nb_http_req nb_http_req;

typedef struct nb_http_opts {
    const char *host; /* name, address, or "unix:PATH" */
    uint16_t port;
    nb_head_limits limits;
    unsigned max_conns, max_per_address;
    const char *timing;                     /* header that tells the milliseconds until the answer began; NULL: none */
    double head_s, body_s, idle_s, write_s; /* deadlines of a head, a body, an idle connection, a stalled write */
    size_t max_unsent;                      /* bytes of a stream nobody reads, after which it is given up        */
    unsigned max_requests;                  /* of one connection                                                 */
    nb_error_style errors;
    /* Both on the I/O thread. `head` may answer already (the body is then read and dropped); `body` may answer, or keep the
     * request (nb_http_keep) and answer later from any thread. */
    void (*head)(void *user, nb_http_req *r);
    void (*body)(void *user, nb_http_req *r);
    void (*done)(void *user, nb_http_req *r); /* the answer is out, or the client is gone; for logs and counters. May be NULL */
    void *user;
} nb_http_opts;
#define NB_HTTP_OPTS                                                                                                                       \
    {                                                                                                                                      \
        .host = "127.0.0.1", .port = 8000, .limits = NB_HEAD_LIMITS, .max_conns = 512, .max_per_address = 128, .head_s = 10, .body_s = 60, \
        .idle_s = 30, .write_s = 30, .max_unsent = (size_t)4 << 20, .max_requests = 1000                                                   \
    }

/* Bind; nothing is accepted before nb_http_start. `o` is copied, its strings stay the caller's. Errors: nb_gate_open's. */
nb_status nb_http_open(const nb_http_opts *o, nb_http **out, nb_err *err);
nb_status nb_http_start(nb_http *s, nb_err *err);
uint16_t nb_http_port(const nb_http *s);
/* Close every connection, answered or not, then the server. Kept requests stay valid until dropped. NULL is fine. */
void nb_http_close(nb_http *s);
/* Look which clients have left; their requests become `gone`. Any thread; the engine's calls it before each step. */
void nb_http_sweep(nb_http *s);

/* ---- a request ---- */

const char *nb_http_method(const nb_http_req *r);
const char *nb_http_path(const nb_http_req *r);  /* as sent, without the query */
const char *nb_http_query(const nb_http_req *r); /* "" when there is none */
/* Value of a header; NULL when absent. *count (may be NULL) tells how often it was sent. I/O thread only. */
const char *nb_http_header(const nb_http_req *r, const char *name, unsigned *count);
/* The whole body; valid while the request is. */
const char *nb_http_body(const nb_http_req *r, size_t *n);
/* The caller's data of a request, NULL at first. */
void nb_http_set_data(nb_http_req *r, void *data);
void *nb_http_data(const nb_http_req *r);
double nb_http_began(const nb_http_req *r); /* nb_now() at its first byte of body, or at its head */
int nb_http_status(const nb_http_req *r);   /* of the answer; 0 while there is none */

void nb_http_keep(nb_http_req *r);
void nb_http_drop(nb_http_req *r); /* as often as kept */

/* A header of the answer, before it is given. Ignored when the value has control characters. */
void nb_http_add(nb_http_req *r, const char *name, const char *value);
/* The answer; body[n] is copied. Only the first answer counts. Any thread. */
void nb_http_reply(nb_http_req *r, int status, const char *type, const char *body, size_t n);
/* A reply with the error object. `param` may be NULL. */
void nb_http_error(nb_http_req *r, int status, const char *code, const char *param, const char *message);
/* Begin an answer of unknown length. */
void nb_http_stream(nb_http_req *r, int status, const char *type);
/* More of it, sent as one chunk when the client keeps up. Returns the bytes not sent yet. Nothing happens once gone. */
size_t nb_http_send(nb_http_req *r, const char *p, size_t n);
void nb_http_end(nb_http_req *r);
/* The client is gone: no answer can reach it. Any thread. */
bool nb_http_gone(const nb_http_req *r);

#endif
