/* test_clock.c - HT-31: the wall clock jumps a day forwards and backwards while a server works: no deadline notices. */
#define _GNU_SOURCE /* syscall */
#include "live.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>

static atomic_long jump; /* seconds that the wall clock is off */
static atomic_int asked;

/* In front of the C library's, for the HTTP library too. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
    const int rc = (int)syscall(SYS_clock_gettime, id, t);

    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
        t->tv_sec += jump;
        asked++;
    }
    return rc;
}

__attribute__((visibility("default"))) time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

/* Reads until `what` has come. */
static void hear_until(int fd, nb_buf *b, const char *what)
{
    char part[4096];

    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        ssize_t n;

        nb_buf_putc(b, 0);
        b->n--;
        if (strstr(b->p, what))
            return;
        assert_true(poll(&p, 1, LIVE_PATIENCE_MS) > 0);
        n = recv(fd, part, sizeof part, 0);
        if (n <= 0)
            fail_msg("closed before %s: %s", what, b->p);
        nb_buf_put(b, part, (size_t)n);
    }
}

static void test_jumps(void **state)
{
    static const char get[] = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char body[] = "{\"prompt\":\"It is\",\"max_tokens\":60,\"ignore_eos\":true,\"stream\":true}";
    static const long days[] = { 86400, -86400, 0 };
    live x;
    nb_buf b = { 0 }, post = { 0 };
    int idle, half;

    (void)state;
    live_defaults(&x);
    x.o.http.head_s = 60;
    x.m.request_timeout = 60;
    x.m.queue_timeout = 60;
    live_open(&x);
    idle = live_dial(&x);
    half = live_dial(&x);
    live_say(half, get, 10);
    nb_buf_printf(&post,
                  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  sizeof body - 1, body);
    for (size_t i = 0; i < NB_LEN(days); i++) {
        const int fd = live_dial(&x);

        live_say(fd, post.p, post.n);
        b.n = 0;
        hear_until(fd, &b, "data: ");
        jump = days[i]; /* in the middle of a stream, of a head, of the time between two requests */
        hear_until(fd, &b, "data: [DONE]");
        close(fd);
        live_say(idle, get, sizeof get - 1);
        b.n = 0;
        hear_until(idle, &b, "HTTP/1.1 200 OK");
        hear_until(idle, &b, "\r\n\r\n");
    }
    live_say(half, get + 10, sizeof get - 11);
    b.n = 0;
    hear_until(half, &b, "HTTP/1.1 200 OK");
    assert_true(asked > 0); /* the false clock is the one in use */
    close(idle);
    close(half);
    nb_buf_clear(&b);
    nb_buf_clear(&post);
    live_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_jumps) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
