/* stop.c - an automaton over all stop strings (Aho and Corasick): its state is the text held back. */
#include "text/stop.h"

#include <string.h>

#include "text/utf8.h"

#define STRINGS_MOST 16
#define BYTES_MOST   1024

typedef struct node {
    uint32_t child, sibling; /* 0: none */
    uint32_t fail;           /* longest proper suffix that begins a stop string */
    uint16_t depth, string;  /* its text: the first `depth` bytes of this string */
    uint16_t hit;            /* string that ends here or at a suffix, first of the list, + 1; 0: none */
    unsigned char byte;
} node;

struct nb_stops {
    char *text[STRINGS_MOST];
    size_t len[STRINGS_MOST], n;
    node *v; /* v[0]: the empty text */
    size_t n_nodes;
};

static uint32_t child_of(const nb_stops *s, uint32_t at, unsigned char c)
{
    uint32_t k = s->v[at].child;

    while (k && s->v[k].byte != c)
        k = s->v[k].sibling;
    return k;
}

static uint32_t step(const nb_stops *s, uint32_t at, unsigned char c)
{
    for (;;) {
        const uint32_t k = child_of(s, at, c);
        if (k || at == 0)
            return k;
        at = s->v[at].fail;
    }
}

static void add(nb_stops *s, size_t i)
{
    uint32_t at = 0;

    for (size_t d = 0; d < s->len[i]; d++) {
        const unsigned char c = (unsigned char)s->text[i][d];
        uint32_t k = child_of(s, at, c);
        if (!k) {
            k = (uint32_t)s->n_nodes++;
            s->v[k] = (node){ .sibling = s->v[at].child, .depth = (uint16_t)(d + 1), .string = (uint16_t)i, .byte = c };
            s->v[at].child = k;
        }
        at = k;
    }
    if (!s->v[at].hit)
        s->v[at].hit = (uint16_t)(i + 1);
}

/* Fail links by rising depth. */
static nb_status link_all(nb_stops *s, nb_err *err)
{
    uint32_t *queue = nb_alloc_array(s->n_nodes, sizeof *queue);
    size_t n = 1;

    if (!queue)
        return nb_enomem(err, "stop strings");
    queue[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = queue[i];
        for (uint32_t k = s->v[at].child; k; k = s->v[k].sibling) {
            node *x = &s->v[k];
            x->fail = at ? step(s, s->v[at].fail, x->byte) : 0;
            const uint16_t other = s->v[x->fail].hit;
            if (other && (!x->hit || other < x->hit))
                x->hit = other;
            queue[n++] = k;
        }
    }
    nb_free(queue);
    return NB_OK;
}

nb_status nb_stops_open(const char *const *v, const size_t *len, size_t n, nb_stops **out, nb_err *err)
{
    nb_stops *s = nb_calloc(1, sizeof *s);
    size_t total = 1;
    nb_status rc = s ? NB_OK : nb_enomem(err, "stop strings");

    *out = NULL;
    if (rc == NB_OK && n > STRINGS_MOST)
        rc = nb_fail(err, NB_EARG, "arg.stop", "", "%zu stop strings, at most %d are allowed", n, STRINGS_MOST);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        if (len[i] == 0 || len[i] > BYTES_MOST)
            rc = nb_fail(err, NB_EARG, "arg.stop", "", "stop string %zu has %zu bytes, 1 to %d are allowed", i, len[i], BYTES_MOST);
        else if (nb_u8_check(v[i], len[i]) < len[i])
            rc = nb_fail(err, NB_EARG, "arg.stop", "", "stop string %zu is not valid UTF-8", i);
        else if (!(s->text[i] = nb_strndup(v[i], len[i])))
            rc = nb_enomem(err, "stop strings");
        s->len[i] = len[i];
        s->n = i + 1;
        total += len[i];
    }
    if (rc == NB_OK && !(s->v = nb_calloc(total, sizeof *s->v)))
        rc = nb_enomem(err, "stop strings");
    if (rc == NB_OK) {
        s->n_nodes = 1;
        for (size_t i = 0; i < n; i++)
            add(s, i);
        rc = link_all(s, err);
    }
    if (rc != NB_OK) {
        nb_stops_close(s);
        return rc;
    }
    *out = s;
    return NB_OK;
}

void nb_stops_close(nb_stops *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        nb_free(s->text[i]);
    nb_free(s->v);
    nb_free(s);
}

bool nb_stop_feed(const nb_stops *s, nb_stopper *st, const char *text, size_t n, bool include, nb_buf *out)
{
    if (!s) {
        nb_buf_put(out, text, n);
        return false;
    }
    for (size_t i = 0; i < n && !st->hit; i++) {
        const node *old = &s->v[st->state];
        const uint32_t at = step(s, st->state, (unsigned char)text[i]);
        const node *x = &s->v[at];
        const size_t free = (size_t)old->depth + 1 - x->depth; /* of the held bytes and this one */
        nb_buf_put(out, s->text[old->string], free <= old->depth ? free : old->depth);
        if (free > old->depth)
            nb_buf_putc(out, text[i]);
        st->state = at;
        st->hit = x->hit;
        if (x->hit) {
            const size_t before = x->depth - s->len[x->hit - 1];
            nb_buf_put(out, s->text[x->string], include ? x->depth : before);
            st->state = 0;
        }
    }
    return st->hit != 0;
}

void nb_stop_flush(const nb_stops *s, nb_stopper *st, nb_buf *out)
{
    if (!s || st->hit)
        return;
    nb_buf_put(out, s->text[s->v[st->state].string], s->v[st->state].depth);
    st->state = 0;
}
