/* gate.h - the door: accepts connections, lets only well-formed requests in, and shows the others out in order.
 *
 * One thread. It looks at the first head of a connection without taking it from the socket (MSG_PEEK); a good one goes to
 * the HTTP library with all its bytes, a bad or late one gets its answer here. It also counts connections, keeps a spare
 * descriptor for the day none is left, and closes without cutting off what was just answered.
 * Source: hardening 6.1 (HT-01 .. 03, 12, 13, 21, 22). */
#ifndef NB_SERVE_GATE_H
#define NB_SERVE_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"
#include "serve/errors.h"
#include "serve/head.h"

typedef struct nb_gate nb_gate;

typedef struct nb_gate_opts {
    const char *host; /* name or address, or "unix:PATH" */
    uint16_t port;    /* 0: any free one                 */
    nb_head_limits limits;
    unsigned max_conns, max_per_address; /* loopback and Unix sockets have no limit per address: a proxy is one address */
    double head_s;                       /* time to a complete head */
    nb_error_style errors;
    /* A connection with a good head. The callee owns fd from here; false: it could not take it (the gate closes it). once: there is one
     * request on it, whose body the gate checks as it comes; the gate has kept the client and counts it out itself. */
    bool (*pass)(void *user, int fd, const struct sockaddr *addr, socklen_t len, bool once);
    void (*tick)(void *user); /* about every 100 ms, from the gate's thread */
    void *user;
} nb_gate_opts;

/* Bind and listen. Errors: NB_EBUSY "net.bind" (port in use, address absent); NB_EARG for a host that does not resolve. */
nb_status nb_gate_open(const nb_gate_opts *o, nb_gate **out, nb_err *err);
nb_status nb_gate_start(nb_gate *g, nb_err *err); /* begin to accept */
uint16_t nb_gate_port(const nb_gate *g);
/* No new connections from here on; those waiting for their head are closed. */
void nb_gate_stop(nb_gate *g);
void nb_gate_close(nb_gate *g); /* stops first; NULL is fine */

/* A connection passed earlier has ended. Any thread. */
void nb_gate_left(nb_gate *g, const struct sockaddr *addr);
/* Write a whole answer with `fault` on fd (blocking for at most an instant), then drain and close it in the background.
 * Takes fd. Any thread. Extra headers may be "" or end with CR LF. */
void nb_gate_refuse(nb_gate *g, int fd, const nb_head_fault *fault, const char *extra);

#endif
