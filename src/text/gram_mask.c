/* gram_mask.c - grammars and sequences: masks, steps, forks. One lock a grammar guards its states. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "text/gram.h"

#define WORK_MASK ((uint64_t)1 << 22) /* closure steps of one mask: below a second */
#define WORK_STEP ((uint64_t)1 << 20) /* of one token */

struct nb_grammar {
    pthread_mutex_t lock;
    atomic_uint refs;
    const nb_gvocab *vocab;
    nb_gcode code;
    nb_grun run;
    uint32_t start; /* pinned */
    size_t cache;   /* bytes of states and masks, raised when what is in use alone is more */
};

struct nb_gstate {
    nb_grammar *g;
    uint32_t at; /* pinned */
    bool ended;
    char *marker; /* waiting for it; NULL: not */
    size_t n_marker, seen;
};

/* ---- grammar ---- */

nb_status nb_grammar_make(nb_gbuild *b, nb_gpart root, const nb_gvocab *vocab, nb_grammar **out, nb_err *err)
{
    nb_grammar *g = nb_calloc(1, sizeof *g);
    nb_status rc = g ? NB_OK : nb_enomem(err, "a grammar");
    const size_t cache = b->lim.cache;

    *out = NULL;
    if (rc == NB_OK)
        rc = nb_gcode_make(b, root, &g->code, err);
    nb_gbuild_clear(b);
    if (rc == NB_OK)
        rc = nb_grun_init(&g->run, &g->code, cache, err);
    if (rc == NB_OK) {
        g->run.work = WORK_STEP;
        g->start = nb_grun_start(&g->run);
        if (g->start == NB_GS_UNKNOWN)
            rc = g->run.failed ? nb_enomem(err, "a grammar")
                               : nb_fail(err, NB_ELIMIT, "grammar.too_complex", "", "the constraint begins in too many ways");
        else if (g->start == NB_GS_DEAD)
            rc = nb_fail(err, NB_ELIMIT, "grammar.too_complex", "", "the constraint begins in too many ways, or too deep");
    }
    if (rc == NB_OK && pthread_mutex_init(&g->lock, NULL) != 0)
        rc = nb_enomem(err, "a grammar");
    if (rc != NB_OK) {
        if (g) {
            nb_grun_clear(&g->run);
            nb_gcode_clear(&g->code);
        }
        nb_free(g);
        return rc;
    }
    g->run.state[g->start].pins = 1;
    g->vocab = vocab;
    g->cache = cache;
    atomic_init(&g->refs, 1);
    *out = g;
    return NB_OK;
}

static nb_status too_long(size_t n, size_t most, nb_err *err)
{
    return nb_fail(err, NB_ELIMIT, "grammar.too_complex", "", "the constraint has %zu bytes, at most %zu are read", n, most);
}

#define SOURCE_SCHEMA ((size_t)128 << 10) /* hardening 4 */
#define SOURCE_REGEX  ((size_t)8 << 10)
#define DEPTH_SCHEMA  32
#define DEPTH_TEXT    128

nb_status nb_grammar_new_json(const nb_gvocab *vocab, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;
    nb_gjson j = { .b = &b };

    nb_gbuild_init(&b, lim, SOURCE_SCHEMA, DEPTH_SCHEMA, err);
    return nb_grammar_make(&b, nb_g_seq2(&b, nb_gj_ws(&j), nb_gj_object(&j)), vocab, out, err);
}

nb_status nb_grammar_new_schema(const nb_gvocab *vocab, const nb_json *schema, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;
    char *text = nb_json_dump(schema, 0, true);
    const size_t n = text ? strlen(text) : 0;

    *out = NULL;
    nb_free(text);
    if (!text)
        return nb_enomem(err, "a schema");
    nb_gbuild_init(&b, lim, SOURCE_SCHEMA, DEPTH_SCHEMA, err);
    if (n > b.lim.source)
        return too_long(n, b.lim.source, err);
    return nb_grammar_make(&b, nb_g_schema(&b, schema), vocab, out, err);
}

nb_status nb_grammar_new_regex(const nb_gvocab *vocab, const char *re, size_t n, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;

    *out = NULL;
    nb_gbuild_init(&b, lim, SOURCE_REGEX, DEPTH_TEXT, err);
    if (n > b.lim.source)
        return too_long(n, b.lim.source, err);
    return nb_grammar_make(&b, nb_g_regex(&b, re, n, NULL), vocab, out, err);
}

nb_status nb_grammar_new_choice(const nb_gvocab *vocab, const nb_json *list, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;
    size_t n = 0;

    *out = NULL;
    nb_gbuild_init(&b, lim, SOURCE_SCHEMA, DEPTH_SCHEMA, err);
    if (nb_json_typeof(list) != NB_JARR || nb_json_len(list) == 0)
        return nb_fail(err, NB_EARG, "grammar.invalid", "", "choice is a list of texts, and not empty");
    for (size_t i = 0; i < nb_json_len(list); i++) {
        if (nb_json_typeof(nb_json_at(list, i)) != NB_JSTR || nb_json_str_len(nb_json_at(list, i)) == 0)
            return nb_fail(err, NB_EARG, "grammar.invalid", "", "choice: element %zu is no text, or an empty one", i);
        n += nb_json_str_len(nb_json_at(list, i));
    }
    if (n > b.lim.source)
        return too_long(n, b.lim.source, err);
    return nb_grammar_make(&b, nb_g_choice(&b, list, false), vocab, out, err);
}

static bool has_definition(const char *s, size_t n)
{
    for (size_t i = 0; i + 3 <= n; i++) {
        if (memcmp(s + i, "::=", 3) == 0)
            return true;
    }
    return false;
}

nb_status nb_grammar_new_ebnf(const nb_gvocab *vocab, const char *src, size_t n, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;

    *out = NULL;
    nb_gbuild_init(&b, lim, SOURCE_SCHEMA, DEPTH_TEXT, err);
    if (n > b.lim.source)
        return too_long(n, b.lim.source, err);
    return nb_grammar_make(&b, has_definition(src, n) ? nb_g_gbnf(&b, src, n) : nb_g_lark(&b, src, n), vocab, out, err);
}

nb_grammar *nb_grammar_ref(nb_grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void nb_grammar_unref(nb_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    nb_grun_clear(&g->run);
    nb_gcode_clear(&g->code);
    pthread_mutex_destroy(&g->lock);
    nb_free(g);
}

uint64_t nb_grammar_bytes(const nb_grammar *g)
{
    nb_grammar *m = (nb_grammar *)(uintptr_t)g;
    uint64_t n;

    pthread_mutex_lock(&m->lock);
    n = sizeof *g + g->code.cap * sizeof *g->code.ins + g->code.cap_rep * sizeof *g->code.rep + g->run.bytes +
        (g->run.cap_frame - g->run.n_frame) * sizeof *g->run.frame +
        (g->run.cap_seen + g->run.cap_out + g->run.cap_todo) * sizeof(uint64_t) + 2 * g->run.n_bucket * sizeof(uint32_t);
    pthread_mutex_unlock(&m->lock);
    return n;
}

/* Room for more states: forget all but pinned ones and keep[n]. */
static void make_room(nb_grammar *g, const uint32_t *keep, size_t n)
{
    if (g->run.bytes <= g->cache)
        return;
    nb_grun_collect(&g->run, keep, n);
    if (g->run.bytes > g->cache / 2)
        g->cache = (size_t)g->run.bytes * 2;
}

static nb_status gave_up(nb_grammar *g, nb_err *err)
{
    const bool failed = g->run.failed;

    g->run.failed = g->run.tired = false;
    return failed ? nb_enomem(err, "a grammar")
                  : nb_fail(err, NB_ELIMIT, "grammar.too_complex", "", "the constraint has too many possibilities here");
}

/* ---- sequences ---- */

nb_status nb_gstate_open(nb_grammar *g, nb_gstate **out, nb_err *err)
{
    nb_gstate *s = nb_calloc(1, sizeof *s);

    *out = s;
    if (!s)
        return nb_enomem(err, "a grammar's state");
    s->g = nb_grammar_ref(g);
    s->at = g->start;
    pthread_mutex_lock(&g->lock);
    g->run.state[s->at].pins++;
    pthread_mutex_unlock(&g->lock);
    return NB_OK;
}

void nb_gstate_close(nb_gstate *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->g->lock);
    s->g->run.state[s->at].pins--;
    pthread_mutex_unlock(&s->g->lock);
    nb_grammar_unref(s->g);
    nb_free(s->marker);
    nb_free(s);
}

nb_status nb_gstate_clone(const nb_gstate *s, nb_gstate **out, nb_err *err)
{
    nb_status rc = nb_gstate_open(s->g, out, err);
    nb_gstate *c = *out;

    if (rc != NB_OK)
        return rc;
    if (s->marker && !(c->marker = nb_strndup(s->marker, s->n_marker))) {
        nb_gstate_close(c);
        *out = NULL;
        return nb_enomem(err, "a grammar's state");
    }
    c->n_marker = s->n_marker;
    c->seen = s->seen;
    c->ended = s->ended;
    pthread_mutex_lock(&s->g->lock);
    s->g->run.state[c->at].pins--;
    c->at = s->at;
    s->g->run.state[c->at].pins++;
    pthread_mutex_unlock(&s->g->lock);
    return NB_OK;
}

nb_status nb_gstate_wait(nb_gstate *s, const char *marker, size_t n, nb_err *err)
{
    char *copy = nb_strndup(marker, n);

    if (!copy)
        return nb_enomem(err, "a grammar's state");
    nb_free(s->marker);
    s->marker = n ? copy : NULL;
    if (!n)
        nb_free(copy);
    s->n_marker = n;
    s->seen = 0;
    return NB_OK;
}

bool nb_gstate_waiting(const nb_gstate *s)
{
    return s->marker != NULL;
}

/* Length of the longest prefix of the marker that ends the text after byte c. */
static size_t marker_step(const nb_gstate *s, size_t seen, char c)
{
    for (size_t k = seen + 1; k > 0; k--) { /* k bytes would match: the last k - 1 seen and c */
        if (s->marker[k - 1] == c && memcmp(s->marker, s->marker + (seen + 1 - k), k - 1) == 0)
            return k;
    }
    return 0;
}

/* Set the bits of what may follow state `from`. */
static nb_status walk(nb_grammar *g, uint32_t from, uint32_t *bits, nb_err *err)
{
    const nb_gvocab *v = g->vocab;
    uint32_t *path = nb_alloc_array((size_t)v->longest + 1, sizeof *path);
    nb_status rc = path ? NB_OK : nb_enomem(err, "a mask");

    memset(bits, 0, v->n_words * sizeof *bits);
    if (rc == NB_OK)
        path[0] = from;
    g->run.work = WORK_MASK;
    for (size_t i = 1; rc == NB_OK && i < v->n_nodes;) {
        const size_t d = v->depth[i];
        const uint32_t s = path[d - 1], *next = g->run.state[s].next;
        uint32_t t = next ? next[v->byte[i]] : NB_GS_UNKNOWN;
        if (t == NB_GS_UNKNOWN) {
            make_room(g, path, d);
            t = nb_grun_step(&g->run, s, v->byte[i]);
            if (t == NB_GS_UNKNOWN) {
                rc = gave_up(g, err);
                break;
            }
        }
        if (t == NB_GS_DEAD) {
            i = v->skip[i];
            continue;
        }
        path[d] = t;
        for (int32_t id = v->token[i]; id >= 0; id = v->same[id])
            bits[id >> 5] |= (uint32_t)1 << (id & 31);
        i++;
    }
    for (size_t i = 0; rc == NB_OK && g->run.state[from].accept && i < v->n_end; i++)
        bits[v->end[i] >> 5] |= (uint32_t)1 << (v->end[i] & 31);
    nb_free(path);
    return rc;
}

static void all_ones(const nb_gvocab *v, uint32_t *bits)
{
    memset(bits, 0xFF, v->n_words * sizeof *bits);
    if (v->n_tokens & 31)
        bits[v->n_words - 1] = ((uint32_t)1 << (v->n_tokens & 31)) - 1;
}

static bool any_bit(const uint32_t *bits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bits[i])
            return true;
    }
    return false;
}

nb_status nb_gstate_mask(nb_gstate *s, uint32_t *bits, nb_err *err)
{
    nb_grammar *g = s->g;
    const nb_gvocab *v = g->vocab;
    const size_t bytes = v->n_words * sizeof *bits;
    uint32_t at;
    nb_status rc = NB_OK;

    if (s->marker) {
        all_ones(v, bits);
        return NB_OK;
    }
    if (s->ended) {
        memset(bits, 0, bytes);
        return NB_NO;
    }
    pthread_mutex_lock(&g->lock);
    at = nb_grun_clamp(&g->run, s->at, v->longest);
    if (at == NB_GS_UNKNOWN) {
        rc = gave_up(g, err);
    } else if (g->run.state[at].mask) {
        memcpy(bits, g->run.state[at].mask, bytes);
    } else {
        g->run.state[at].pins++;
        rc = walk(g, at, bits, err);
        g->run.state[at].pins--;
        if (rc == NB_OK && (g->run.state[at].mask = nb_alloc(bytes))) {
            memcpy(g->run.state[at].mask, bits, bytes);
            g->run.bytes += bytes;
        }
    }
    pthread_mutex_unlock(&g->lock);
    return rc != NB_OK ? rc : any_bit(bits, v->n_words) ? NB_OK : NB_NO;
}

/* Bytes through the marker and the grammar. NB_NO: not allowed, nothing changed. */
static nb_status take(nb_gstate *s, const char *p, size_t n, nb_err *err)
{
    nb_grammar *g = s->g;
    size_t i = 0, seen = s->seen;
    bool waiting = s->marker != NULL;
    uint32_t at = s->at;
    nb_status rc = NB_OK;

    for (; waiting && i < n; i++) {
        seen = marker_step(s, seen, p[i]);
        waiting = seen < s->n_marker;
    }
    while (s->marker && !waiting && i < n && strchr(" \t\n\r", p[i]) && p[i]) /* blanks of the marker's own token */
        i++;
    pthread_mutex_lock(&g->lock);
    g->run.work = WORK_STEP;
    for (; rc == NB_OK && i < n; i++) {
        make_room(g, &at, 1);
        at = nb_grun_step(&g->run, at, (unsigned char)p[i]);
        if (at == NB_GS_UNKNOWN)
            rc = gave_up(g, err);
        else if (at == NB_GS_DEAD)
            rc = NB_NO;
    }
    if (rc == NB_OK) {
        g->run.state[s->at].pins--;
        g->run.state[at].pins++;
        s->at = at;
    }
    pthread_mutex_unlock(&g->lock);
    if (rc != NB_OK)
        return rc;
    s->seen = seen;
    if (s->marker && !waiting) {
        nb_free(s->marker);
        s->marker = NULL;
    }
    return NB_OK;
}

nb_status nb_gstate_advance(nb_gstate *s, int32_t id, nb_err *err)
{
    const nb_gvocab *v = s->g->vocab;
    const char *p;
    size_t n;

    if (s->ended || id < 0 || (size_t)id >= v->n_tokens)
        return NB_NO;
    for (size_t i = 0; i < v->n_end; i++) {
        if (v->end[i] != id)
            continue;
        if (!s->marker && !nb_gstate_may_end(s))
            return NB_NO;
        s->ended = true;
        return NB_OK;
    }
    p = v->text + v->off[id];
    n = v->off[id + 1] - v->off[id];
    if (s->marker && n && (unsigned char)*p == NB_G_CONTROL) { /* a marker is told by its text */
        p++;
        n--;
    }
    return n || s->marker ? take(s, p, n, err) : NB_NO;
}

nb_status nb_gstate_bytes(nb_gstate *s, const char *p, size_t n, nb_err *err)
{
    return s->ended ? NB_NO : take(s, p, n, err);
}

bool nb_gstate_may_end(const nb_gstate *s)
{
    bool yes;

    if (s->marker)
        return false;
    pthread_mutex_lock(&s->g->lock);
    yes = s->g->run.state[s->at].accept;
    pthread_mutex_unlock(&s->g->lock);
    return yes;
}

bool nb_gstate_must_end(const nb_gstate *s)
{
    bool yes;

    if (s->marker)
        return false;
    pthread_mutex_lock(&s->g->lock);
    yes = s->g->run.state[s->at].accept && s->g->run.state[s->at].n == 0;
    pthread_mutex_unlock(&s->g->lock);
    return yes;
}
