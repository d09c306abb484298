/* gram_cache.c - compiled grammars by kind and text, least recently used first out. */
#include <pthread.h>
#include <string.h>

#include "text/gram.h"

#define DEFAULT_BYTES ((size_t)64 << 20)
#define ENTRIES       1024

typedef struct entry {
    nb_gkind kind;
    char *key; /* text of the value */
    nb_grammar *g;
    uint64_t used;
} entry;

struct nb_gcache {
    pthread_mutex_t lock;
    const nb_gvocab *vocab;
    nb_glimits lim;
    size_t most;
    entry v[ENTRIES];
    size_t n;
    uint64_t clock;
};

nb_status nb_gcache_open(const nb_gvocab *vocab, const nb_glimits *lim, size_t bytes, nb_gcache **out, nb_err *err)
{
    nb_gcache *c = nb_calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return nb_enomem(err, "the grammars");
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        nb_free(c);
        return nb_enomem(err, "the grammars");
    }
    c->vocab = vocab;
    if (lim)
        c->lim = *lim;
    c->most = bytes ? bytes : DEFAULT_BYTES;
    *out = c;
    return NB_OK;
}

static void drop(nb_gcache *c, size_t i)
{
    nb_free(c->v[i].key);
    nb_grammar_unref(c->v[i].g);
    c->v[i] = c->v[--c->n];
}

void nb_gcache_close(nb_gcache *c)
{
    if (!c)
        return;
    while (c->n)
        drop(c, c->n - 1);
    pthread_mutex_destroy(&c->lock);
    nb_free(c);
}

static uint64_t held(const nb_gcache *c)
{
    uint64_t n = sizeof *c;

    for (size_t i = 0; i < c->n; i++)
        n += strlen(c->v[i].key) + nb_grammar_bytes(c->v[i].g);
    return n;
}

uint64_t nb_gcache_bytes(nb_gcache *c)
{
    uint64_t n;

    pthread_mutex_lock(&c->lock);
    n = held(c);
    pthread_mutex_unlock(&c->lock);
    return n;
}

static nb_grammar *find(nb_gcache *c, nb_gkind kind, const char *key)
{
    for (size_t i = 0; i < c->n; i++) {
        if (c->v[i].kind == kind && strcmp(c->v[i].key, key) == 0) {
            c->v[i].used = ++c->clock;
            return nb_grammar_ref(c->v[i].g);
        }
    }
    return NULL;
}

/* Grammars grow while they are used: drop old ones until the rest is within bounds. Those in use live on with their users. */
static void trim(nb_gcache *c)
{
    while (c->n > 1 && (c->n == ENTRIES || held(c) > c->most)) {
        size_t oldest = 0;
        for (size_t i = 1; i < c->n; i++) {
            if (c->v[i].used < c->v[oldest].used)
                oldest = i;
        }
        drop(c, oldest);
    }
}

static void keep(nb_gcache *c, nb_gkind kind, char *key, nb_grammar *g)
{
    c->v[c->n++] = (entry){ kind, key, nb_grammar_ref(g), ++c->clock };
    trim(c);
}

static nb_status compile(const nb_gcache *c, nb_gkind kind, const nb_json *v, nb_grammar **out, nb_err *err)
{
    switch (kind) {
    case NB_G_JSON:
        return nb_grammar_new_json(c->vocab, &c->lim, out, err);
    case NB_G_SCHEMA:
        return nb_grammar_new_schema(c->vocab, v, &c->lim, out, err);
    case NB_G_CHOICE:
        return nb_grammar_new_choice(c->vocab, v, &c->lim, out, err);
    case NB_G_REGEX:
    case NB_G_EBNF:
        if (nb_json_typeof(v) != NB_JSTR)
            return nb_fail(err, NB_EARG, "grammar.invalid", "", "a regular expression or a grammar is a text");
        return kind == NB_G_REGEX ? nb_grammar_new_regex(c->vocab, nb_json_str(v, ""), nb_json_str_len(v), &c->lim, out, err)
                                  : nb_grammar_new_ebnf(c->vocab, nb_json_str(v, ""), nb_json_str_len(v), &c->lim, out, err);
    default:
        return nb_fail(err, NB_EINTERNAL, "internal", "", "an unknown kind of constraint");
    }
}

nb_status nb_gcache_get(nb_gcache *c, nb_gkind kind, const nb_json *value, nb_grammar **out, nb_err *err)
{
    char *key = value ? nb_json_dump(value, 0, true) : nb_strdup("");
    nb_status rc = NB_OK;

    *out = NULL;
    if (!key)
        return nb_enomem(err, "a constraint");
    pthread_mutex_lock(&c->lock);
    *out = find(c, kind, key);
    if (*out)
        trim(c);
    pthread_mutex_unlock(&c->lock);
    if (!*out) {
        rc = compile(c, kind, value, out, err);
        if (rc == NB_OK) {
            nb_grammar *had;
            pthread_mutex_lock(&c->lock);
            had = find(c, kind, key); /* another thread was first */
            if (had) {
                nb_grammar_unref(*out);
                *out = had;
            } else {
                keep(c, kind, key, *out);
                key = NULL;
            }
            pthread_mutex_unlock(&c->lock);
        }
    }
    nb_free(key);
    return rc;
}
