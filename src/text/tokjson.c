#include "text/tokjson.h"

#include <math.h>
#include <string.h>

#include "text/utf8.h"

#define JSON_DEPTH 128

static nb_status broken(nb_tokreader *r, const char *what)
{
    return nb_fail(r->err, NB_EFORMAT, "tok.json", "", "not valid JSON at byte %zu: %s", (size_t)(r->p - r->all), what);
}

void nb_tokreader_init(nb_tokreader *r, const nb_tokjson *j, const char *part, size_t n, nb_err *err)
{
    memset(r, 0, sizeof *r);
    r->all = j->all;
    r->p = part;
    r->end = part + n;
    r->err = err;
}

void nb_tokreader_clear(nb_tokreader *r)
{
    nb_buf_clear(&r->text);
}

char nb_tokreader_peek(nb_tokreader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
    return r->p < r->end ? *r->p : 0;
}

nb_status nb_tokreader_take(nb_tokreader *r, char c)
{
    char what[32] = "'.' is missing";

    if (nb_tokreader_peek(r) == c && r->p < r->end) {
        r->p++;
        return NB_OK;
    }
    what[1] = c;
    return broken(r, what);
}

nb_status nb_tokreader_more(nb_tokreader *r, char close, bool *first, bool *more)
{
    const bool was_first = *first;

    *first = false;
    *more = nb_tokreader_peek(r) != close;
    if (!*more)
        return nb_tokreader_take(r, close);
    return was_first ? NB_OK : nb_tokreader_take(r, ',');
}

static int hex4(const char *s, const char *end)
{
    int v = 0;

    if (end - s < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char c = s[i];
        const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* One escape behind the backslash at r->p - 1. */
static nb_status escape(nb_tokreader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = r->p < r->end ? *r->p++ : 0;
    const char *k = c ? strchr(from, c) : NULL;
    int u, low;

    if (k) {
        nb_buf_putc(&r->text, to[k - from]);
        return NB_OK;
    }
    if (c != 'u')
        return broken(r, "unknown escape");
    u = hex4(r->p, r->end);
    if (u < 0)
        return broken(r, "\\u needs four hexadecimal digits");
    r->p += 4;
    if (u >= 0xD800 && u < 0xDC00) {
        low = r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u' ? hex4(r->p + 2, r->end) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return broken(r, "half of a surrogate pair");
        r->p += 6;
        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    } else if (u >= 0xDC00 && u < 0xE000) {
        return broken(r, "half of a surrogate pair");
    }
    nb_u8_append(&r->text, (uint32_t)u);
    return NB_OK;
}

/* Plain bytes from r->p to the next quote or backslash: their length. */
static nb_status plain_bytes(nb_tokreader *r, size_t *n)
{
    const char *s = r->p;
    bool high = false;

    while (s < r->end && *s != '"' && *s != '\\') {
        if ((unsigned char)*s < 0x20) {
            r->p = s;
            return broken(r, "a control character in a text");
        }
        high = high || (unsigned char)*s >= 0x80;
        s++;
    }
    *n = (size_t)(s - r->p);
    if (s == r->end)
        return broken(r, "a text has no end");
    if (high && nb_u8_check(r->p, *n) < *n)
        return broken(r, "a text is not valid UTF-8");
    return NB_OK;
}

nb_status nb_tokreader_text(nb_tokreader *r, const char **s, size_t *n)
{
    nb_status rc = nb_tokreader_take(r, '"');

    if (rc == NB_OK)
        rc = plain_bytes(r, n);
    if (rc != NB_OK)
        return rc;
    if (r->p[*n] == '"') { /* no escapes: a view into the input */
        *s = r->p;
        r->p += *n + 1;
        return NB_OK;
    }
    r->text.n = 0;
    for (;;) {
        nb_buf_put(&r->text, r->p, *n);
        r->p += *n;
        if (*r->p++ == '"')
            break;
        if ((rc = escape(r)) != NB_OK || (rc = plain_bytes(r, n)) != NB_OK)
            return rc;
    }
    *s = r->text.p ? r->text.p : "";
    *n = r->text.n;
    return r->text.failed ? nb_enomem(r->err, "a token") : NB_OK;
}

static size_t digits(nb_tokreader *r)
{
    const char *s = r->p;

    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return (size_t)(r->p - s);
}

nb_status nb_tokreader_number(nb_tokreader *r, int64_t *v, bool *whole)
{
    const bool neg = nb_tokreader_peek(r) == '-';
    const char *s;
    size_t n;

    r->p += neg;
    s = r->p;
    n = digits(r);
    if (n == 0 || (n > 1 && *s == '0'))
        return broken(r, "a number is expected");
    *whole = n <= 18;
    *v = 0;
    for (size_t i = 0; *whole && i < n; i++)
        *v = *v * 10 + (s[i] - '0');
    if (neg)
        *v = -*v;
    if (r->p < r->end && *r->p == '.') {
        *whole = false;
        r->p++;
        if (digits(r) == 0)
            return broken(r, "digits are expected");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        *whole = false;
        r->p++;
        r->p += r->p < r->end && (*r->p == '+' || *r->p == '-');
        if (digits(r) == 0)
            return broken(r, "digits are expected");
    }
    return NB_OK;
}

nb_status nb_tokreader_real(nb_tokreader *r, double *v)
{
    const char *s;
    int64_t k;
    bool whole;
    nb_json *j = NULL;
    nb_status rc;

    (void)nb_tokreader_peek(r);
    s = r->p;
    rc = nb_tokreader_number(r, &k, &whole);
    if (rc != NB_OK)
        return rc;
    rc = nb_json_parse(s, (size_t)(r->p - s), "tok", 1, &j, NULL);
    *v = nb_json_num(j, INFINITY);
    nb_json_free(j);
    return rc == NB_ENOMEM ? nb_enomem(r->err, "a number") : NB_OK;
}

nb_status nb_tokreader_end(nb_tokreader *r)
{
    return nb_tokreader_peek(r) == 0 && r->p == r->end ? NB_OK : broken(r, "the value should end here");
}

/* ---- cutting ---- */

/* Step over any value without judging it: brackets are counted, texts skipped. false: the input ends inside. */
static bool skip_value(nb_tokreader *r)
{
    size_t depth = 0;

    do {
        const char c = nb_tokreader_peek(r);
        if (r->p >= r->end)
            return false;
        if (c == '"') {
            for (r->p++; r->p < r->end && *r->p != '"'; r->p++)
                r->p += *r->p == '\\';
            if (r->p >= r->end)
                return false;
            r->p++;
        } else if (c == '{' || c == '[') {
            depth++;
            r->p++;
        } else if (c == '}' || c == ']') {
            if (depth == 0)
                return false;
            depth--;
            r->p++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            r->p++;
        } else { /* a number or a word */
            const char *s = r->p;
            while (r->p < r->end && !strchr(" \t\r\n,:]}[{\"", *r->p))
                r->p++;
            if (r->p == s)
                return false;
        }
    } while (depth > 0);
    return true;
}

/* Members of the object at r->p, until one is called `a` or `b`: true with r->p on its value. *state: 0 before the
 * bracket, 1 inside. Anything odd ends the search; the real parser will say what it is. */
static bool find_member(nb_tokreader *r, int *state, const char *a, const char *b, bool *is_b)
{
    const char *s;
    size_t n;

    if (*state == 0 && nb_tokreader_peek(r) != '{')
        return false;
    while (*state == 0 || nb_tokreader_peek(r) == ',') {
        r->p++;
        *state = 1;
        if (nb_tokreader_peek(r) != '"' || nb_tokreader_text(r, &s, &n) != NB_OK || nb_tokreader_take(r, ':') != NB_OK)
            return false;
        *is_b = b && n == strlen(b) && memcmp(s, b, n) == 0;
        if (*is_b || (n == strlen(a) && memcmp(s, a, n) == 0)) {
            (void)nb_tokreader_peek(r);
            return true;
        }
        if (!skip_value(r))
            return false;
    }
    return false;
}

static void cut(nb_tokjson *out, nb_buf *rest, size_t *done, const char *from, const char *to, bool is_merges)
{
    nb_buf_put(rest, out->all + *done, (size_t)(from - out->all) - *done);
    nb_buf_puts(rest, *from == '{' ? "{}" : "[]");
    *done = (size_t)(to - out->all);
    if (is_merges) {
        out->merges = from;
        out->n_merges = (size_t)(to - from);
    } else {
        out->vocab = from;
        out->n_vocab = (size_t)(to - from);
    }
}

nb_status nb_tokjson_open(const char *json, size_t n, nb_tokjson *out, nb_err *err)
{
    nb_tokreader r;
    nb_buf rest = { 0 };
    size_t done = 0;
    int outer = 0, inner = 0;
    bool is_merges = false;
    nb_status rc;

    out->all = json;
    nb_tokreader_init(&r, out, json, n, NULL);
    if (find_member(&r, &outer, "model", NULL, &is_merges)) {
        while (find_member(&r, &inner, "vocab", "merges", &is_merges)) {
            const char *from = r.p;
            if (!skip_value(&r))
                break;
            if ((*from == '{' || *from == '[') && !(is_merges ? out->merges : out->vocab))
                cut(out, &rest, &done, from, r.p, is_merges);
        }
    }
    nb_tokreader_clear(&r);
    nb_buf_put(&rest, json + done, n - done);
    rc = rest.failed ? nb_enomem(err, "the tokenizer") : nb_json_parse(rest.p ? rest.p : "", rest.n, "tok", JSON_DEPTH, &out->doc, err);
    nb_buf_clear(&rest);
    return rc;
}

void nb_tokjson_clear(nb_tokjson *j)
{
    nb_json_free(j->doc);
    memset(j, 0, sizeof *j);
}
