/* test_head.c - request heads, good and bad, byte by byte (hardening 6.1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/head.h"

static const nb_head_limits limits = NB_HEAD_LIMITS;

#define GET  "GET /x HTTP/1.1\r\n"
#define HOST "Host: a\r\n"

static const struct row {
    const char *label, *head;
    int status; /* 0: good, -1: not complete */
} rows[] = {
    { "plain", GET HOST "\r\n", 0 },
    { "HTTP/1.0 without Host (HT-14)", "GET / HTTP/1.0\r\n\r\n", 0 },
    { "any token method", "M-SEARCH * HTTP/1.1\r\n" HOST "\r\n", 0 },
    { "length", "POST / HTTP/1.1\r\n" HOST "Content-Length: 12\r\n\r\n", 0 },
    { "chunked, any case", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n", 0 },
    { "expect", "POST / HTTP/1.1\r\n" HOST "Expect: 100-Continue\r\n\r\n", 0 },
    { "port and IPv6", GET "Host: [::1]:8000\r\n\r\n", 0 },
    { "UTF-8 in a value", GET HOST "X: \xc3\xa9\r\n\r\n", 0 },
    { "unfinished line", "GET /x HTT", -1 },
    { "unfinished head", GET HOST, -1 },
    { "CR at the end", GET HOST "\r", -1 },
    { "nothing", "", -1 },
    { "HT-06 negative", "POST / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400 },
    { "HT-06 plus", "POST / HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\n", 400 },
    { "HT-06 hex", "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x10\r\n\r\n", 400 },
    { "HT-06 two numbers", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5 5\r\n\r\n", 400 },
    { "HT-06 list", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5,5\r\n\r\n", 400 },
    { "HT-06 2^64", "POST / HTTP/1.1\r\n" HOST "Content-Length: 18446744073709551616\r\n\r\n", 400 },
    { "HT-06 twice", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\ncontent-length: 5\r\n\r\n", 400 },
    { "HT-06 empty", "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", 400 },
    { "HT-07 both", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "HT-07 two codings", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400 },
    { "HT-07 twice", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "HT-07 unknown coding", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", 501 },
    { "HT-07 chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "HT-10 length over the limit", "POST / HTTP/1.1\r\n" HOST "Content-Length: 16777217\r\n\r\n", 413 },
    { "HT-10 length at the limit", "POST / HTTP/1.1\r\n" HOST "Content-Length: 16777216\r\n\r\n", 0 },
    { "HT-10 other expectation", "POST / HTTP/1.1\r\n" HOST "Expect: tea\r\n\r\n", 417 },
    { "HT-12 bare LF", "GET /x HTTP/1.1\nHost: a\n\n", 400 },
    { "HT-12 bare LF in a header", GET "Host: a\n\r\n", 400 },
    { "HT-12 bare CR", GET "Host: a\rX: b\r\n\r\n", 400 },
    { "HT-12 folded", GET "Host: a\r\n b\r\n\r\n", 400 },
    { "HT-12 blank before the colon", GET "Host : a\r\n\r\n", 400 },
    { "HT-12 control byte", GET HOST "X: \x01\r\n\r\n", 400 },
    { "HT-12 empty name", GET HOST ": x\r\n\r\n", 400 },
    { "HT-12 no colon", GET HOST "nonsense\r\n\r\n", 400 },
    { "HT-12 bad method", "GE(T /x HTTP/1.1\r\n" HOST "\r\n", 400 },
    { "HT-12 two blanks", "GET  /x HTTP/1.1\r\n" HOST "\r\n", 400 },
    { "HT-12 blank in the target", "GET /a b HTTP/1.1\r\n" HOST "\r\n", 400 },
    { "HT-13 HTTP/0.9", "GET /x\r\n", 400 },
    { "HT-13 HTTP/1.2", "GET /x HTTP/1.2\r\n", 505 },
    { "HT-13 HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505 },
    { "HT-13 TLS hello", "\x16\x03\x01\x02", 400 },
    { "HT-13 random bytes", "\xff\xfe", 400 },
    { "HT-13 empty line first", "\r\n" GET HOST "\r\n", 400 },
    { "HT-14 no Host", GET "\r\n", 400 },
    { "HT-14 two Hosts", GET HOST HOST "\r\n", 400 },
    { "HT-14 slash", GET "Host: a/b\r\n\r\n", 400 },
    { "HT-14 at", GET "Host: a@b\r\n\r\n", 400 },
    { "HT-14 query", GET "Host: a?b\r\n\r\n", 400 },
    { "HT-14 empty", GET "Host:\r\n\r\n", 400 },
    { "HT-14 not ASCII", GET "Host: \xc3\xa9\r\n\r\n", 400 },
};

static int verdict(const char *p, size_t n, size_t *end)
{
    nb_head_fault f = { 0 };

    switch (nb_head_check(p, n, &limits, end, &f)) {
    case NB_HEAD_DONE:
        return 0;
    case NB_HEAD_MORE:
        return -1;
    case NB_HEAD_BAD:
        break;
    }
    assert_non_null(f.code);
    assert_non_null(f.what);
    return f.status;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const size_t n = strlen(rows[i].head);
        size_t end = 0;
        const int got = verdict(rows[i].head, n, &end);

        if (got != rows[i].status)
            fail_msg("%s: %d, want %d", rows[i].label, got, rows[i].status);
        if (got == 0)
            assert_int_equal(end, n);
    }
}

/* However a head arrives, a good one is never refused on the way, and a bad one never accepted. */
static void test_prefixes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t n = 0, end; n < strlen(rows[i].head); n++) {
            char *part = malloc(n + 1); /* its own block: reading past it is seen */
            int got;

            memcpy(part, rows[i].head, n);
            got = verdict(part, n, &end);
            free(part);
            if (got == 0)
                fail_msg("%s: complete after %zu bytes", rows[i].label, n);
            if (rows[i].status <= 0 && got != -1)
                fail_msg("%s: %d after %zu bytes", rows[i].label, got, n);
        }
}

static void test_nul(void **state)
{
    static const char head[] = GET HOST "X: a\0b\r\n\r\n";
    size_t end;

    (void)state;
    assert_int_equal(verdict(head, sizeof head - 1, &end), 400); /* HT-12 */
}

/* HT-01, HT-02: limits at, and one above. */
static void test_limits(void **state)
{
    static char big[200000];
    size_t end, n;

    (void)state;
    for (int over = 0; over < 2; over++) {
        const int pad = 8192 - 13 + over; /* "GET / HTTP/1.1" with `pad` more in the target */

        n = (size_t)snprintf(big, sizeof big, "GET /%0*d HTTP/1.1\r\n" HOST "\r\n", pad - 1, 0);
        assert_int_equal(strcspn(big, "\r"), 8192 + (size_t)over);
        assert_int_equal(verdict(big, n, &end), over ? 414 : 0);
        assert_int_equal(verdict(big, 8193 + (size_t)over, &end), over ? 414 : -1); /* up to the CR */

        n = (size_t)snprintf(big, sizeof big, GET HOST "X: %0*d\r\n\r\n", 8192 - 3 + over, 0);
        assert_int_equal(verdict(big, n, &end), over ? 431 : 0);

        n = (size_t)snprintf(big, sizeof big, GET HOST);
        for (int i = 0; i < 99 + over; i++)
            n += (size_t)snprintf(big + n, sizeof big - n, "X: y\r\n");
        n += (size_t)snprintf(big + n, sizeof big - n, "\r\n");
        assert_int_equal(verdict(big, n, &end), over ? 431 : 0);
        assert_int_equal(verdict(big, n - 1, &end), over ? 431 : -1); /* the last LF is still on its way */

        n = (size_t)snprintf(big, sizeof big, GET HOST);
        for (int i = 0; i < 8; i++)
            n += (size_t)snprintf(big + n, sizeof big - n, "X: %0*d\r\n", i < 7 || over ? 8187 : 8000, 0);
        n += (size_t)snprintf(big + n, sizeof big - n, "\r\n");
        assert_int_equal(verdict(big, n, &end), over ? 431 : 0);
    }
    memset(big, 'a', sizeof big);
    assert_int_equal(verdict(big, sizeof big, &end), 414); /* an endless line */
    n = (size_t)snprintf(big, sizeof big, GET "X: ");
    memset(big + n, 'a', sizeof big - n);
    assert_int_equal(verdict(big, sizeof big, &end), 431);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
