/* relay.h - a connection whose request has a chunked body: its bytes reach the HTTP library only after they were checked.
 *
 * The library reads one end of a socket pair; a relay carries what the client sends to the other end, as far as it is well framed
 * (chunks.h), and what the library answers back. One request a connection. Gate thread only. Source: hardening HT-08. */
#ifndef NB_SERVE_RELAY_H
#define NB_SERVE_RELAY_H

#include "serve/chunks.h"

typedef struct nb_relay nb_relay;

typedef enum nb_relay_state {
    NB_RELAY_GOES,
    NB_RELAY_BAD, /* the framing is broken and nothing was answered yet: *fault is the answer */
    NB_RELAY_OVER /* the answer is out, or cannot get out */
} nb_relay_state;

/* Between client, whose next `head` bytes are a checked head, and *library, the end for the library. Descriptors are non-blocking
 * and stay the caller's; `mine` is the relay's other end. NULL: no memory or descriptors. */
nb_relay *nb_relay_open(int client, size_t head, const nb_head_limits *lim, int *library, int *mine);
/* Carry what can be carried. gone: the client has hung up. */
nb_relay_state nb_relay_pump(nb_relay *r, bool gone, nb_head_fault *fault);
/* Seconds in which the client has taken nothing of an answer that the library has given; 0 while there is one to come. */
double nb_relay_stalled(const nb_relay *r);
void nb_relay_close(nb_relay *r); /* frees; no descriptor is closed */

#endif
