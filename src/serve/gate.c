/* gate.c - the accepting thread: an epoll over the listening socket, the connections whose head is still coming, and those
 * being closed in peace. */
#define _GNU_SOURCE /* accept4 */
#include "serve/gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "serve/errors.h"
#include "serve/relay.h"

enum { PEEK = 80 << 10, TICK_MS = 100, LINGER_S = 2, STALL_S = 30, RCVBUF = 256 << 10 };

/* A connection the gate still holds. */
typedef struct visitor {
    struct visitor *next, **prev;
    int fd;
    bool leaving;         /* answered: only drained until the other side closes */
    bool counted;         /* among the connections                              */
    bool dead;            /* dismissed: freed when no event can name it any more */
    nb_relay *relay;      /* between this client and the HTTP library, or NULL */
    struct visitor *twin; /* of a relay's two sides the other one */
    bool far;             /* the side of the library */
    double deadline;      /* of the head, or of the draining                    */
    struct sockaddr_storage addr;
    socklen_t len;
} visitor;

typedef struct address {
    unsigned char ip[16];
    unsigned n;
} address;

struct nb_gate {
    nb_gate_opts o;
    int listener, epoll, wake, spare;
    uint16_t port;
    char unix_path[108];
    pthread_t thread;
    bool running, stop, deaf; /* deaf: the listener is out of the epoll until the next tick */
    pthread_mutex_t lock;     /* what follows, and the list's links */
    visitor *visitors, *dead; /* dead: the gate thread's */
    unsigned n_conns;
    address *addresses;
    size_t n_addresses, cap_addresses;
    char peek[PEEK];
};

/* ---- counting ---- */

/* The address as 16 bytes; false for those that have no limit of their own. */
static bool address_of(const struct sockaddr_storage *a, unsigned char ip[16])
{
    memset(ip, 0, 16);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;

        memcpy(ip, &in->sin_addr, 4);
        return ip[0] != 127;
    }
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;

        memcpy(ip, &in->sin6_addr, 16);
        return !IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) && !(IN6_IS_ADDR_V4MAPPED(&in->sin6_addr) && ip[12] == 127);
    }
    return false;
}

/* Count a connection in; false: there are too many. */
static bool count_in(nb_gate *g, const struct sockaddr_storage *a)
{
    unsigned char ip[16];
    bool ok = true;

    pthread_mutex_lock(&g->lock);
    if (g->n_conns >= g->o.max_conns) {
        ok = false;
    } else if (address_of(a, ip)) {
        size_t i = 0;

        while (i < g->n_addresses && memcmp(g->addresses[i].ip, ip, 16) != 0)
            i++;
        if (i == g->cap_addresses) {
            const size_t cap = i ? 2 * i : 64;
            address *more = nb_realloc(g->addresses, cap * sizeof *more);

            if (more) {
                g->addresses = more;
                g->cap_addresses = cap;
            }
            ok = more != NULL;
        }
        if (ok && i == g->n_addresses) {
            memcpy(g->addresses[i].ip, ip, 16);
            g->addresses[g->n_addresses++].n = 0;
        }
        ok = ok && g->addresses[i].n < g->o.max_per_address;
        if (ok)
            g->addresses[i].n++;
    }
    if (ok)
        g->n_conns++;
    pthread_mutex_unlock(&g->lock);
    return ok;
}

static void count_out(nb_gate *g, const struct sockaddr_storage *a)
{
    unsigned char ip[16];

    pthread_mutex_lock(&g->lock);
    g->n_conns--;
    if (address_of(a, ip)) {
        for (size_t i = 0; i < g->n_addresses; i++)
            if (memcmp(g->addresses[i].ip, ip, 16) == 0) {
                if (--g->addresses[i].n == 0)
                    g->addresses[i] = g->addresses[--g->n_addresses];
                break;
            }
    }
    pthread_mutex_unlock(&g->lock);
}

void nb_gate_left(nb_gate *g, const struct sockaddr *addr)
{
    struct sockaddr_storage a = { 0 };

    if (addr)
        memcpy(&a, addr,
               addr->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
               : addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                             : sizeof addr->sa_family);
    count_out(g, &a);
}

/* ---- visitors ---- */

/* Watch fd; NULL: no memory (fd is closed). */
static visitor *admit(nb_gate *g, int fd, bool leaving, double seconds)
{
    visitor *v = nb_calloc(1, sizeof *v);
    struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET };

    if (!v) {
        close(fd);
        return NULL;
    }
    v->fd = fd;
    v->leaving = leaving;
    v->deadline = nb_now() + seconds;
    pthread_mutex_lock(&g->lock);
    v->next = g->visitors;
    v->prev = &g->visitors;
    if (v->next)
        v->next->prev = &v->next;
    g->visitors = v;
    ev.data.ptr = v;
    epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &ev); /* on failure the deadline ends it */
    pthread_mutex_unlock(&g->lock);
    return v;
}

/* Forget v; its descriptor is closed unless `keep`. Gate thread only. */
static void dismiss(nb_gate *g, visitor *v, bool keep)
{
    pthread_mutex_lock(&g->lock);
    *v->prev = v->next;
    if (v->next)
        v->next->prev = v->prev;
    epoll_ctl(g->epoll, EPOLL_CTL_DEL, v->fd, NULL);
    pthread_mutex_unlock(&g->lock);
    if (v->counted && !keep)
        count_out(g, &v->addr);
    if (!keep)
        close(v->fd);
    v->dead = true;
    v->next = g->dead;
    g->dead = v;
}

static void bury(nb_gate *g)
{
    visitor *next;

    for (visitor *v = g->dead; v; v = next) {
        next = v->next;
        nb_free(v);
    }
    g->dead = NULL;
}

static void send_refusal(const nb_gate *g, int fd, const nb_head_fault *fault, const char *extra)
{
    nb_buf b = { 0 }, body = { 0 };

    nb_error_put(&body, g->o.errors, fault->status, fault->code, NULL, fault->what);
    nb_buf_printf(
        &b, "HTTP/1.1 %d %s\r\nServer: nibble\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n",
        fault->status, nb_reason(fault->status), body.n, extra);
    nb_buf_put(&b, body.p, body.n);
    if (!b.failed && !body.failed && send(fd, b.p, b.n, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) /* a full buffer: it will not read this either */
        shutdown(fd, SHUT_WR);
    nb_buf_clear(&b);
    nb_buf_clear(&body);
}

void nb_gate_refuse(nb_gate *g, int fd, const nb_head_fault *fault, const char *extra)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    send_refusal(g, fd, fault, extra);
    admit(g, fd, true, LINGER_S);
}

static void refuse(const nb_gate *g, visitor *v, const nb_head_fault *fault)
{
    send_refusal(g, v->fd, fault, "");
    v->leaving = true;
    v->deadline = nb_now() + LINGER_S;
}

/* Read what a leaving one still sends, so that closing does not reset the connection under the answer. True: it has closed. */
static bool drain(nb_gate *g, const visitor *v)
{
    for (int i = 0; i < 64; i++) {
        const ssize_t n = recv(v->fd, g->peek, PEEK, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return true;
        if (n < 0 && errno == EAGAIN)
            return false;
    }
    return true; /* megabytes nobody asked for */
}

/* A good head: the connection is the library's from here on. */
static void hand_over(nb_gate *g, visitor *v)
{
    const int fd = v->fd;
    const struct sockaddr_storage addr = v->addr;

    dismiss(g, v, true);
    if (!g->o.pass(g->o.user, fd, (const struct sockaddr *)&addr, v->len, false)) {
        close(fd);
        count_out(g, &addr);
    }
}

/* ---- relays ---- */

/* Take the relay down; its client is left to be drained. */
static visitor *part(nb_gate *g, visitor *v)
{
    visitor *client = v->far ? v->twin : v, *far = client->twin;

    nb_relay_close(client->relay);
    client->relay = far->relay = NULL;
    client->twin = NULL;
    dismiss(g, far, false);
    return client;
}

static void carry(nb_gate *g, visitor *v, unsigned events)
{
    nb_head_fault fault;
    const nb_relay_state is = nb_relay_pump(v->relay, !v->far && events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR), &fault);
    visitor *client;

    if (is == NB_RELAY_GOES)
        return;
    client = part(g, v);
    if (is == NB_RELAY_BAD) {
        refuse(g, client, &fault);
    } else {
        shutdown(client->fd, SHUT_WR);
        client->leaving = true;
        client->deadline = nb_now() + LINGER_S;
    }
    if (drain(g, client))
        dismiss(g, client, false);
}

/* The request of v, with a head of `head` bytes, has a body in chunks. */
static void start_relay(nb_gate *g, visitor *v, size_t head)
{
    static const nb_head_fault full = { 503, "overloaded", "The server has no connection left; try again in a moment." };
    struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = v };
    int library = -1, mine = -1;
    nb_relay *r = nb_relay_open(v->fd, head, &g->o.limits, &library, &mine);
    visitor *far = r ? admit(g, mine, false, 1e9) : NULL; /* on failure it has closed `mine` */

    if (!far) {
        nb_relay_close(r);
        if (library >= 0)
            close(library);
        refuse(g, v, &full);
        return;
    }
    v->relay = far->relay = r;
    v->twin = far;
    far->twin = v;
    far->far = true;
    v->deadline = far->deadline;
    epoll_ctl(g->epoll, EPOLL_CTL_MOD, v->fd, &ev);
    ev.data.ptr = far;
    epoll_ctl(g->epoll, EPOLL_CTL_MOD, mine, &ev);
    if (!g->o.pass(g->o.user, library, (const struct sockaddr *)&v->addr, v->len, true)) {
        close(library); /* the pump sees it */
    }
    carry(g, v, 0);
}

static void look(nb_gate *g, visitor *v)
{
    nb_head_fault fault;
    size_t end;
    ssize_t n;

    if (v->leaving) {
        if (drain(g, v))
            dismiss(g, v, false);
        return;
    }
    n = recv(v->fd, g->peek, PEEK, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        dismiss(g, v, false);
        return;
    }
    switch (nb_head_check(g->peek, (size_t)n, &g->o.limits, &end, &fault)) {
    case NB_HEAD_MORE:
        break;
    case NB_HEAD_BAD:
        refuse(g, v, &fault);
        if (drain(g, v))
            dismiss(g, v, false);
        break;
    case NB_HEAD_DONE:
        if (nb_head_is_chunked(g->peek, end))
            start_relay(g, v, end);
        else
            hand_over(g, v);
    }
}
static void listen_again(nb_gate *g, bool on)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &g->listener };

    g->deaf = !on;
    epoll_ctl(g->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, g->listener, &ev);
}

/* No descriptor is left: give up the spare one to tell one caller so, then rest until the next tick. */
static void out_of_descriptors(nb_gate *g)
{
    static const nb_head_fault full = { 503, "overloaded", "The server has no connection left; try again in a moment." };
    int fd;

    close(g->spare);
    fd = accept(g->listener, NULL, NULL);
    if (fd >= 0) {
        send_refusal(g, fd, &full, "Retry-After: 1\r\n");
        close(fd);
    }
    g->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    listen_again(g, false);
}

static void accept_some(nb_gate *g)
{
    static const nb_head_fault full = { 503, "overloaded",
                                        "The server has as many connections as it accepts (--max-connections); try again in a moment." };

    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage addr = { 0 };
        socklen_t len = sizeof addr;
        const int one = 1, fd = accept4(g->listener, (struct sockaddr *)&addr, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        visitor *v;

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                out_of_descriptors(g);
            else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                listen_again(g, false);
            return;
        }
        if (addr.ss_family == AF_UNIX) { /* a name that the other side has chosen means nothing: an empty one, whole */
            memset((char *)&addr + sizeof addr.ss_family, 0, sizeof addr - sizeof addr.ss_family);
            len = sizeof(struct sockaddr_un);
        }
        if (addr.ss_family == AF_INET || addr.ss_family == AF_INET6)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!count_in(g, &addr)) {
            nb_gate_refuse(g, fd, &full, "Retry-After: 1\r\n");
            continue;
        }
        v = admit(g, fd, false, g->o.head_s);
        if (!v) {
            count_out(g, &addr);
            continue;
        }
        v->addr = addr;
        v->len = len;
        v->counted = true;
        look(g, v); /* often all is there already */
    }
}

static void tick(nb_gate *g)
{
    static const nb_head_fault late = { 408, "request_timeout", "The head of the request took too long." };
    const double now = nb_now();
    visitor *v, *next;

    if (g->deaf)
        listen_again(g, true);
    pthread_mutex_lock(&g->lock); /* only this thread takes visitors out; others may put new ones in front */
    v = g->visitors;
    pthread_mutex_unlock(&g->lock);
    for (; v; v = next) {
        next = v->next;
        if (v->relay && !v->far && nb_relay_stalled(v->relay) > STALL_S) {
            dismiss(g, part(g, v), false);
            break; /* the other side is out of the list too; the rest has time */
        }
        if (now < v->deadline)
            continue;
        if (!v->leaving)
            refuse(g, v, &late);
        else
            dismiss(g, v, false);
    }
    if (g->o.tick)
        g->o.tick(g->o.user);
}

static void attend(nb_gate *g, visitor *v, unsigned events)
{
    if (v->dead)
        return;
    if (v->relay)
        carry(g, v, events);
    else
        look(g, v);
}

static void *run(void *arg)
{
    nb_gate *g = arg;
    double next = nb_now() + TICK_MS / 1e3;

    for (;;) {
        struct epoll_event ev[64];
        const int n = epoll_wait(g->epoll, ev, 64, TICK_MS);
        bool stop;

        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &g->listener)
                accept_some(g);
            else if (ev[i].data.ptr != &g->wake)
                attend(g, ev[i].data.ptr, ev[i].events);
        }
        bury(g);
        if (nb_now() >= next) {
            tick(g);
            next = nb_now() + TICK_MS / 1e3;
        }
        pthread_mutex_lock(&g->lock);
        stop = g->stop;
        pthread_mutex_unlock(&g->lock);
        if (stop)
            return NULL;
    }
}

/* ---- opening and closing ---- */

static nb_status cannot(const nb_gate_opts *o, nb_err *err)
{
    return nb_fail(err, NB_EBUSY, "net.bind", "HT-32", "%s port %u: %s; choose another with --host and --port", o->host, o->port,
                   strerror(errno));
}

/* The socket that a killed server left behind: nobody listens any more, so it goes (MM-08). Anything else stays. */
static void sweep_socket(const struct sockaddr_un *a)
{
    struct stat st;
    int fd;

    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED)
        unlink(a->sun_path);
    if (fd >= 0)
        close(fd);
}

static nb_status bind_unix(nb_gate *g, const char *path, nb_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    if (strlen(path) >= sizeof a.sun_path)
        return nb_fail(err, NB_EARG, "net.address", "", "the path of the socket has %zu bytes, at most %zu fit", strlen(path),
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    sweep_socket(&a);
    g->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (g->listener < 0 || bind(g->listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(g->listener, 512) != 0)
        return cannot(&g->o, err);
    memcpy(g->unix_path, a.sun_path, sizeof a.sun_path);
    return NB_OK;
}

static nb_status bind_tcp(nb_gate *g, nb_err *err)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct sockaddr_storage bound = { 0 };
    socklen_t len = sizeof bound;
    struct addrinfo *list;
    char port[8];
    const int one = 1, buf = RCVBUF;
    int rc;

    snprintf(port, sizeof port, "%u", g->o.port);
    rc = getaddrinfo(g->o.host, port, &hints, &list);
    if (rc != 0)
        return nb_fail(err, NB_EBUSY, "net.bind", "HT-32", "%s: %s; give an address of this machine with --host", g->o.host,
                       gai_strerror(rc));
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        g->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (g->listener < 0)
            continue;
        setsockopt(g->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(g->listener, SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf); /* a whole head must fit to be looked at */
        if (bind(g->listener, a->ai_addr, a->ai_addrlen) == 0 && listen(g->listener, 512) == 0)
            break;
        rc = errno;
        close(g->listener);
        g->listener = -1;
        errno = rc;
    }
    freeaddrinfo(list);
    if (g->listener < 0)
        return cannot(&g->o, err);
    getsockname(g->listener, (struct sockaddr *)&bound, &len);
    g->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
    return NB_OK;
}

nb_status nb_gate_open(const nb_gate_opts *o, nb_gate **out, nb_err *err)
{
    nb_gate *g = nb_calloc(1, sizeof *g);
    struct epoll_event ev = { .events = EPOLLIN };
    nb_status rc;

    *out = NULL;
    if (!g)
        return nb_enomem(err, "the listening socket");
    g->o = *o;
    g->listener = -1;
    pthread_mutex_init(&g->lock, NULL);
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    rc = strncmp(o->host, "unix:", 5) == 0 ? bind_unix(g, o->host + 5, err) : bind_tcp(g, err);
    ev.data.ptr = &g->wake;
    if (rc == NB_OK && (g->epoll < 0 || g->wake < 0 || epoll_ctl(g->epoll, EPOLL_CTL_ADD, g->wake, &ev) != 0))
        rc = nb_fail(err, NB_ENOMEM, "net.epoll", "", "cannot watch sockets: %s", strerror(errno));
    if (rc != NB_OK) {
        nb_gate_close(g);
        return rc;
    }
    *out = g;
    return NB_OK;
}

nb_status nb_gate_start(nb_gate *g, nb_err *err)
{
    listen_again(g, true);
    if (nb_thread_start(&g->thread, "nb-gate", run, g) != 0)
        return nb_fail(err, NB_ENOMEM, "net.thread", "", "cannot start the accepting thread");
    g->running = true;
    return NB_OK;
}

uint16_t nb_gate_port(const nb_gate *g)
{
    return g->port;
}

void nb_gate_stop(nb_gate *g)
{
    const uint64_t one = 1;

    if (g->running) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_mutex_unlock(&g->lock);
        if (write(g->wake, &one, sizeof one) < 0)
            g->deaf = false; /* the tick will notice */
        pthread_join(g->thread, NULL);
        g->running = false;
    }
    if (g->listener >= 0)
        close(g->listener);
    g->listener = -1;
    while (g->visitors)
        dismiss(g, g->visitors->relay ? part(g, g->visitors) : g->visitors, false);
    bury(g);
}

void nb_gate_close(nb_gate *g)
{
    if (!g)
        return;
    nb_gate_stop(g);
    if (g->unix_path[0])
        unlink(g->unix_path);
    if (g->epoll >= 0)
        close(g->epoll);
    if (g->wake >= 0)
        close(g->wake);
    if (g->spare >= 0)
        close(g->spare);
    pthread_mutex_destroy(&g->lock);
    nb_free(g->addresses);
    nb_free(g);
}
