/* chunks.c - one state a byte, but for the bytes of chunks. */
#include "serve/chunks.h"

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, END_LF };

static nb_head_verdict bad(nb_head_fault *f, int status, const char *code, const char *what)
{
    *f = (nb_head_fault){ status, code, what };
    return NB_HEAD_BAD;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* What may stand in an extension or in the value of a trailer. */
static bool is_text(char c)
{
    return (unsigned char)c >= 0x20 ? c != 0x7f : c == '\t';
}

static nb_head_verdict size_byte(nb_chunks *c, char x, nb_head_fault *f)
{
    if (hex(x) >= 0 && c->digits < 16) {
        c->left = c->left << 4 | (uint64_t)hex(x);
        c->digits++;
    } else if (c->digits > 0 && (x == ';' || x == '\r')) {
        c->state = x == ';' ? EXTENSION : SIZE_LF;
    } else {
        return bad(f, 400, "bad_request", "The size of a chunk is 1 to 16 hexadecimal digits and CR LF.");
    }
    return NB_HEAD_MORE;
}

static nb_head_verdict size_end(nb_chunks *c, char x, const nb_head_limits *lim, nb_head_fault *f)
{
    if (x != '\n')
        return bad(f, 400, "bad_request", "The line of a chunk's size ends with CR LF.");
    if (c->left > lim->max_body - c->total)
        return bad(f, 413, "body_too_large", "The body is larger than this server accepts (--max-body).");
    c->total += c->left;
    c->state = c->left ? DATA : TRAILER;
    c->line = 0;
    c->digits = 0;
    return NB_HEAD_MORE;
}

static nb_head_verdict trailer_byte(nb_chunks *c, char x, const nb_head_limits *lim, nb_head_fault *f)
{
    static const char what[] = "A trailer field is a name, a colon and a value, and ends with CR LF.";

    if (x == '\r') {
        c->state = c->line ? TRAILER_LF : END_LF;
        return c->line && !c->named ? bad(f, 400, "bad_request", what) : NB_HEAD_MORE;
    }
    if (!is_text(x) || (!c->named && (x == ' ' || x == '\t')) || (x == ':' && c->line == 0))
        return bad(f, 400, "bad_request", what);
    c->named = c->named || x == ':';
    if (++c->line > lim->header || ++c->trailer > lim->total || (c->line == 1 && ++c->fields > lim->count))
        return bad(f, 431, "headers_too_large", "The trailer is more or longer than this server accepts.");
    return NB_HEAD_MORE;
}

static nb_head_verdict one_byte(nb_chunks *c, char x, const nb_head_limits *lim, nb_head_fault *f)
{
    switch (c->state) {
    case SIZE:
        return size_byte(c, x, f);
    case EXTENSION:
        if (x == '\r')
            c->state = SIZE_LF;
        else if (!is_text(x) || ++c->line > lim->header)
            return bad(f, 400, "bad_request", "The extension of a chunk's size is too long or no text.");
        return NB_HEAD_MORE;
    case SIZE_LF:
        return size_end(c, x, lim, f);
    case DATA_CR:
    case DATA_LF:
        if (x != (c->state == DATA_CR ? '\r' : '\n'))
            return bad(f, 400, "bad_request", "A chunk is not as long as its size says, or does not end with CR LF.");
        c->state = c->state == DATA_CR ? DATA_LF : SIZE;
        return NB_HEAD_MORE;
    case TRAILER:
        return trailer_byte(c, x, lim, f);
    default:
        if (x != '\n')
            return bad(f, 400, "bad_request", "Lines of a trailer end with CR LF.");
        c->line = 0;
        c->named = false;
        if (c->state == END_LF)
            return NB_HEAD_DONE;
        c->state = TRAILER;
        return NB_HEAD_MORE;
    }
}

nb_head_verdict nb_chunks_check(nb_chunks *c, const char *p, size_t n, const nb_head_limits *lim, size_t *used, nb_head_fault *fault)
{
    for (size_t i = 0; i < n;) {
        nb_head_verdict rc;

        if (c->state == DATA) {
            const size_t k = n - i < c->left ? n - i : (size_t)c->left;

            i += k;
            c->left -= k;
            c->state = c->left ? DATA : DATA_CR;
            continue;
        }
        rc = one_byte(c, p[i++], lim, fault);
        *used = i;
        if (rc != NB_HEAD_MORE)
            return rc;
    }
    return NB_HEAD_MORE;
}
