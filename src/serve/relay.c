/* relay.c - two buffers, each filled from one side and emptied to the other. */
#include "serve/relay.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/mem.h"

enum { BUFFER = 16 << 10 };

typedef struct flow {
    size_t n, sent;
    bool ended; /* its source has */
    char p[BUFFER];
} flow;

struct nb_relay {
    int client, mine;
    size_t head; /* bytes of it still to come */
    nb_head_limits lim;
    nb_chunks chunks;
    bool whole, answered, shut; /* the request is in; something was answered; the library knows that the client has gone */
    double moved;
    flow up, down;
};

nb_relay *nb_relay_open(int client, size_t head, const nb_head_limits *lim, int *library, int *mine)
{
    nb_relay *r = nb_calloc(1, sizeof *r);
    int pair[2];

    if (!r || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        nb_free(r);
        return NULL;
    }
    r->client = client;
    r->mine = *mine = pair[0];
    *library = pair[1];
    r->head = head;
    r->lim = *lim;
    r->moved = nb_now();
    return r;
}

void nb_relay_close(nb_relay *r)
{
    nb_free(r);
}

double nb_relay_stalled(const nb_relay *r)
{
    return r->down.ended ? nb_now() - r->moved : 0;
}

/* Fill an empty flow; false: nothing came. */
static bool fill(nb_relay *r, flow *f, int fd, size_t most)
{
    ssize_t n;

    if (f->ended || f->n)
        return false;
    n = recv(fd, f->p, most < BUFFER ? most : BUFFER, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    f->ended = n <= 0;
    f->n = n > 0 ? (size_t)n : 0;
    r->moved = nb_now();
    return n > 0;
}

/* Empty a flow; false: nothing went. *lost: the other side takes nothing any more. */
static bool empty(nb_relay *r, flow *f, int fd, bool *lost)
{
    ssize_t n;

    if (f->sent == f->n)
        return false;
    n = send(fd, f->p + f->sent, f->n - f->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
        *lost = errno != EAGAIN && errno != EINTR;
        return false;
    }
    f->sent += (size_t)n;
    if (f->sent == f->n)
        f->sent = f->n = 0;
    r->moved = nb_now();
    return true;
}

/* What just came from the client: false when its framing is broken. What stands behind the body is nobody's. */
static bool check(nb_relay *r, nb_head_fault *fault)
{
    const size_t skip = r->head < r->up.n ? r->head : r->up.n;
    size_t used = 0;

    r->head -= skip;
    switch (nb_chunks_check(&r->chunks, r->up.p + skip, r->up.n - skip, &r->lim, &used, fault)) {
    case NB_HEAD_BAD:
        return false;
    case NB_HEAD_DONE:
        r->whole = true;
        r->up.n = skip + used;
        break;
    default:
        break;
    }
    return true;
}

nb_relay_state nb_relay_pump(nb_relay *r, bool gone, nb_head_fault *fault)
{
    bool moved = true, lost = false, deaf = false;

    while (moved && !lost) {
        moved = false;
        if (!r->whole && fill(r, &r->up, r->client, BUFFER)) {
            moved = true;
            if (!check(r, fault))
                return r->answered ? NB_RELAY_OVER : NB_RELAY_BAD;
        }
        if (!deaf && empty(r, &r->up, r->mine, &deaf))
            moved = true;
        if (deaf) /* the library has closed; its answer still comes */
            r->up.n = r->up.sent = 0;
        if (fill(r, &r->down, r->mine, BUFFER))
            moved = r->answered = true;
        if (empty(r, &r->down, r->client, &lost))
            moved = true;
    }
    if ((gone || (r->up.ended && !r->whole)) && !r->shut && r->up.n == 0) {
        shutdown(r->mine, SHUT_WR);
        r->shut = true;
    }
    return lost || (r->down.ended && r->down.n == 0) ? NB_RELAY_OVER : NB_RELAY_GOES;
}
