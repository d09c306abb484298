/* head.c - request line and header lines, byte by byte. */
#include "serve/head.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* What the header lines said so far. */
typedef struct facts {
    bool http10;
    unsigned n_host, n_length, n_coding;
    int status; /* of a fault that must wait for the end of the head: 0 none */
    const char *code, *what;
} facts;

static nb_head_verdict bad(nb_head_fault *f, int status, const char *code, const char *what)
{
    *f = (nb_head_fault){ status, code, what };
    return NB_HEAD_BAD;
}

/* tchar of RFC 9110. */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

/* p[n] is "METHOD SP target SP HTTP/1.x". */
static nb_head_verdict request_line(const char *p, size_t n, facts *f, nb_head_fault *fault)
{
    size_t i = 0, target, v;

    while (i < n && is_token((unsigned char)p[i]))
        i++;
    if (i == 0 || i == n || p[i] != ' ')
        return bad(fault, 400, "bad_request", "The request line does not begin with a method and one space.");
    target = ++i;
    while (i < n && (unsigned char)p[i] > 0x20 && (unsigned char)p[i] < 0x7f)
        i++;
    if (i == target || i == n || p[i] != ' ')
        return bad(fault, 400, "bad_request", "The request line needs a target without blanks and a version after it.");
    v = i + 1;
    if (n - v != 8 || memcmp(p + v, "HTTP/", 5) != 0 || !is_digit((unsigned char)p[v + 5]) || p[v + 6] != '.' ||
        !is_digit((unsigned char)p[v + 7]))
        return bad(fault, 400, "bad_request", "The request line does not end with a version such as HTTP/1.1.");
    if (p[v + 5] != '1' || (p[v + 7] != '1' && p[v + 7] != '0'))
        return bad(fault, 505, "http_version", "This server speaks HTTP/1.1 and HTTP/1.0.");
    f->http10 = p[v + 7] == '0';
    return NB_HEAD_DONE;
}

/* Note a fault that does not end parsing; the first one counts. */
static void note(facts *f, int status, const char *code, const char *what)
{
    if (!f->status) {
        f->status = status;
        f->code = code;
        f->what = what;
    }
}

static void content_length(const char *v, size_t n, const nb_head_limits *lim, facts *f)
{
    uint64_t sum = 0;

    if (f->n_length++ || n == 0 || n > 19) {
        note(f, 400, "bad_request", "Content-Length must be given once, as decimal digits.");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_digit((unsigned char)v[i])) {
            note(f, 400, "bad_request", "Content-Length must be given once, as decimal digits.");
            return;
        }
        sum = sum * 10 + (uint64_t)(v[i] - '0');
    }
    if (sum > lim->max_body)
        note(f, 413, "body_too_large", "The body is larger than this server accepts (--max-body).");
}

static void transfer_encoding(const char *v, size_t n, facts *f)
{
    if (f->n_coding++ || memchr(v, ',', n))
        note(f, 400, "bad_request", "Transfer-Encoding must name one coding, chunked.");
    else if (n != 7 || strncasecmp(v, "chunked", 7) != 0)
        note(f, 501, "not_implemented", "The only transfer coding of this server is chunked.");
    else if (f->http10)
        note(f, 400, "bad_request", "HTTP/1.0 has no transfer codings.");
}

static void host(const char *v, size_t n, facts *f)
{
    if (f->n_host++)
        note(f, 400, "bad_request", "Host must be given once.");
    for (size_t i = 0; i < n; i++)
        if (!is_digit((unsigned char)v[i]) && !((v[i] | 32) >= 'a' && (v[i] | 32) <= 'z') && !strchr(".-_:[]", v[i])) {
            note(f, 400, "bad_request", "Host has a character that no host name or port has.");
            return;
        }
    if (n == 0)
        note(f, 400, "bad_request", "Host is empty.");
}

static bool named(const char *p, size_t n, const char *name)
{
    return strlen(name) == n && strncasecmp(p, name, n) == 0;
}

/* One header line p[n], without its end. */
static nb_head_verdict header_line(const char *p, size_t n, const nb_head_limits *lim, facts *f, nb_head_fault *fault)
{
    size_t i = 0, v, e = n;

    while (i < n && is_token((unsigned char)p[i]))
        i++;
    if (i == 0 || i == n || p[i] != ':')
        return bad(fault, 400, "bad_request", "A header line is not a name, a colon and a value.");
    for (v = i + 1; v < n && (p[v] == ' ' || p[v] == '\t');)
        v++;
    while (e > v && (p[e - 1] == ' ' || p[e - 1] == '\t'))
        e--;
    for (size_t j = v; j < e; j++)
        if (((unsigned char)p[j] < 0x20 && p[j] != '\t') || p[j] == 0x7f)
            return bad(fault, 400, "bad_request", "A header value has a control character.");
    if (named(p, i, "content-length"))
        content_length(p + v, e - v, lim, f);
    else if (named(p, i, "transfer-encoding"))
        transfer_encoding(p + v, e - v, f);
    else if (named(p, i, "host"))
        host(p + v, e - v, f);
    else if (named(p, i, "expect") && !named(p + v, e - v, "100-continue"))
        note(f, 417, "expectation_failed", "The only expectation this server knows is 100-continue.");
    return NB_HEAD_DONE;
}

/* The line that starts at p + from: its length without CR LF in *len. MORE while it has no end. */
static nb_head_verdict one_line(const char *p, size_t n, size_t from, size_t *len, nb_head_fault *fault)
{
    for (size_t i = from; i < n; i++) {
        if (p[i] == '\0' || p[i] == '\n')
            return bad(fault, 400, "bad_request", "Lines of the head end with CR LF and have no NUL.");
        if (p[i] == '\r') {
            if (i + 1 == n)
                return NB_HEAD_MORE;
            if (p[i + 1] != '\n')
                return bad(fault, 400, "bad_request", "Lines of the head end with CR LF and have no NUL.");
            *len = i - from;
            return NB_HEAD_DONE;
        }
    }
    return NB_HEAD_MORE;
}

static nb_head_verdict verdict(const facts *f, nb_head_fault *fault)
{
    if (f->n_coding && f->n_length)
        return bad(fault, 400, "bad_request", "Content-Length and Transfer-Encoding exclude each other.");
    if (f->status)
        return bad(fault, f->status, f->code, f->what);
    if (!f->n_host && !f->http10)
        return bad(fault, 400, "bad_request", "HTTP/1.1 needs a Host header.");
    return NB_HEAD_DONE;
}

nb_head_verdict nb_head_check(const char *p, size_t n, const nb_head_limits *lim, size_t *end, nb_head_fault *fault)
{
    facts f = { 0 };
    size_t len = 0, at, count = 0, first;
    nb_head_verdict rc;

    if (n && !is_token((unsigned char)p[0])) /* a TLS hello, random bytes: no need to wait for a line */
        return bad(fault, 400, "bad_request", "This is not an HTTP request.");
    rc = one_line(p, n, 0, &len, fault);
    if (rc == NB_HEAD_BAD)
        return rc;
    if (rc == NB_HEAD_MORE) /* half of the line's end is not of the line */
        len = n - (n && p[n - 1] == '\r');
    if (len > lim->line)
        return bad(fault, 414, "uri_too_long", "The request line is longer than 8192 bytes.");
    if (rc == NB_HEAD_MORE)
        return rc;
    rc = request_line(p, len, &f, fault);
    if (rc != NB_HEAD_DONE)
        return rc;
    first = len + 2;
    for (at = first;; at += len + 2) {
        rc = one_line(p, n, at, &len, fault);
        if (rc == NB_HEAD_BAD)
            return rc;
        if (rc == NB_HEAD_MORE)
            len = n - at - (n > at && p[n - 1] == '\r');
        if (len > lim->header || at + len - first > lim->total || (len && count == lim->count))
            return bad(fault, 431, "headers_too_large", "The headers are more or longer than this server accepts.");
        if (rc == NB_HEAD_MORE)
            return rc;
        if (len == 0)
            break;
        count++;
        rc = header_line(p + at, len, lim, &f, fault);
        if (rc != NB_HEAD_DONE)
            return rc;
    }
    *end = at + 2;
    return verdict(&f, fault);
}

bool nb_head_is_chunked(const char *p, size_t end)
{
    static const char name[] = "\r\ntransfer-encoding:"; /* a good head has no other coding */
    const size_t n = sizeof name - 1;

    for (size_t i = 0; i + n <= end; i++)
        if (p[i] == '\r' && strncasecmp(p + i, name, n) == 0)
            return true;
    return false;
}
