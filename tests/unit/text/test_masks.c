/* test_masks.c - masks of structured output against single tokens; random replies, dead ends, forks, threads, the cache. */
#include "grammars.h"

#include <pthread.h>

typedef struct subject {
    nb_tokenizer *t;
    nb_gvocab *v;
    size_t n_words;
    int32_t end;
} subject;

static bool open_subject(subject *x, const char *name)
{
    char dir[300];
    size_t n = 0;
    nb_err err = { 0 };
    char *json;

    snprintf(dir, sizeof dir, OWN_DATA "/%s", name);
    json = slurp(dir, "tokenizer.json", &n);
    memset(x, 0, sizeof *x);
    if (!json)
        return false;
    if (nb_tokenizer_open(json, n, NULL, 0, &x->t, &err) != NB_OK)
        fail_msg("%s: %s", name, err.what);
    nb_free(json);
    for (size_t i = 0; i < nb_tokenizer_size(x->t); i++) {
        if (nb_tokenizer_is_special(x->t, (int32_t)i))
            x->end = (int32_t)i;
    }
    assert_int_equal(nb_gvocab_open(x->t, &x->end, 1, nb_tokenizer_size(x->t) + 37, &x->v, &err), NB_OK);
    x->n_words = nb_gvocab_words(x->v);
    return true;
}

static void close_subject(subject *x)
{
    nb_gvocab_close(x->v);
    nb_tokenizer_close(x->t);
}

static uint64_t seed = 0x9E3779B97F4A7C15u;

static uint32_t below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % n;
}

/* The mask must say of every token what taking its bytes says. */
static int check_mask(const subject *x, nb_gstate *s, const uint32_t *bits)
{
    int wrong = 0;

    for (size_t id = 0; id < nb_gvocab_size(x->v); id++) {
        const bool allowed = bits[id / 32] >> (id % 32) & 1;
        nb_buf bytes = { 0 };
        nb_gstate *c = NULL;
        bool fits;
        assert_int_equal(nb_gstate_clone(s, &c, NULL), NB_OK);
        if ((int32_t)id == x->end) {
            fits = nb_gstate_may_end(s);
        } else if (id >= nb_tokenizer_size(x->t) || nb_tokenizer_is_special(x->t, (int32_t)id)) {
            fits = false;
        } else {
            assert_int_equal(nb_tokenizer_bytes(x->t, (int32_t)id, &bytes, NULL), NB_OK);
            fits = bytes.n > 0 && nb_gstate_bytes(c, bytes.p, bytes.n, NULL) == NB_OK;
        }
        wrong += fits != allowed;
        nb_gstate_close(c);
        nb_buf_clear(&bytes);
    }
    return wrong;
}

static int32_t pick(const uint32_t *bits, size_t n, size_t rank)
{
    for (size_t i = 0; i < 32 * n; i++) {
        if ((bits[i / 32] >> (i % 32) & 1) && rank-- == 0)
            return (int32_t)i;
    }
    return -1;
}

static size_t count_bits(const uint32_t *bits, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        for (uint32_t w = bits[i]; w; w &= w - 1)
            k++;
    return k;
}

/* A walk of random allowed tokens; what it writes is appended to text. True when it came to an end token. */
static bool walk(const subject *x, nb_grammar *g, nb_grammar *other, int steps, int check, nb_buf *text)
{
    uint32_t *bits = nb_calloc(x->n_words, sizeof *bits), *again = nb_calloc(x->n_words, sizeof *again);
    nb_gstate *s = NULL, *o = NULL;
    bool ended = false;

    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    assert_int_equal(nb_gstate_open(other ? other : g, &o, NULL), NB_OK);
    for (int i = 0; i < steps && !ended; i++) {
        const nb_status rc = nb_gstate_mask(s, bits, NULL);
        size_t n;
        int32_t id;
        if (rc == NB_NO)
            break;
        assert_int_equal(rc, NB_OK);
        if (other) {
            assert_int_equal(nb_gstate_mask(o, again, NULL), NB_OK);
            assert_memory_equal(bits, again, x->n_words * sizeof *bits);
        }
        if (i % 4 == 0 && check-- > 0)
            assert_int_equal(check_mask(x, s, bits), 0);
        n = count_bits(bits, x->n_words);
        if (n > 1 && bits[x->end / 32] >> (x->end % 32) & 1 && below(4))
            n = 1; /* end soon, where it may */
        id = n == 1 && (bits[x->end / 32] >> (x->end % 32) & 1) ? x->end : pick(bits, x->n_words, below((uint32_t)n));
        ended = id == x->end;
        if (!ended)
            assert_int_equal(nb_tokenizer_bytes(x->t, id, text, NULL), NB_OK);
        if (nb_gstate_advance(s, id, NULL) != NB_OK || nb_gstate_advance(o, id, NULL) != NB_OK)
            fail_msg("token %d is allowed and cannot be taken", (int)id);
    }
    if (ended)
        assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_NO);
    nb_gstate_close(s);
    nb_gstate_close(o);
    nb_free(bits);
    nb_free(again);
    return ended;
}

static const char *const small_schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"age\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":150},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"maxItems\":3}},\"required\":[\"name\",\"age\"],"
    "\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"null\"},{\"const\":{\"a\":1}}]},"
    "\"minItems\":1,\"maxItems\":4}",
    "{\"type\":\"object\",\"properties\":{\"l\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"l\"],"
    "\"additionalProperties\":false}",
    "{\"type\":\"string\",\"pattern\":\"^(ab|c\\\"d)+$\"}",
};

#ifdef __SANITIZE_THREAD__ /* there for the threads below; one walk is enough */
#define VOCABULARIES 1
#define ROUNDS       1
#else
#define VOCABULARIES NB_LEN(names)
#define ROUNDS       3
#endif

static void test_masks(void **state)
{
    static const char *const names[] = { "llama3", "gemma", "llama2", "bert-uncased", "sp-unigram", "wordlevel", "clip-suffix" };
    size_t subjects = 0, ended = 0;

    (void)state;
    for (size_t i = 0; i < VOCABULARIES; i++) {
        subject x;
        if (!open_subject(&x, names[i]))
            continue;
        subjects++;
        for (size_t k = 0; k < NB_LEN(small_schemas) + 1; k++) {
            const bool any = k == NB_LEN(small_schemas);
            const nb_glimits tight = { .cache = 1, .compact = k % 2 }, wide = { .compact = k % 2 };
            nb_grammar *g, *small;
            nb_err err = { 0 };
            if (compile(any ? NB_G_JSON : NB_G_SCHEMA, any ? "" : small_schemas[k], x.v, &wide, &g, &err) != NB_OK)
                fail_msg("%s", err.what);
            assert_int_equal(compile(any ? NB_G_JSON : NB_G_SCHEMA, any ? "" : small_schemas[k], x.v, &tight, &small, &err), NB_OK);
            for (int round = 0; round < ROUNDS; round++) {
                nb_buf text = { 0 };
                nb_json *v = NULL;
                if (walk(&x, g, round == 0 ? small : NULL, 100, round < 2 ? 1 : 0, &text)) {
                    ended++;
                    if (nb_json_parse(text.p, text.n, "json", 0, &v, &err) != NB_OK)
                        fail_msg("AT-13 %s, grammar %zu: %s: %s", names[i], k, err.what, text.p);
                    nb_json_free(v);
                }
                nb_buf_clear(&text);
            }
            nb_grammar_unref(g);
            nb_grammar_unref(small);
        }
        close_subject(&x);
    }
    print_message("%zu vocabularies, %zu random replies came to an end\n", subjects, ended);
    assert_true(subjects > 0 && ended > 0);
}

/* ---- one by one ---- */

static void test_dead_end(void **state)
{
    subject x;
    nb_grammar *g = NULL;
    nb_gstate *s = NULL, *other = NULL;
    uint32_t *bits;
    nb_err err = { 0 };

    (void)state;
    if (!open_subject(&x, "wordlevel"))
        skip();
    bits = nb_calloc(x.n_words, sizeof *bits);
    /* SO-09: no token has the emoji */
    assert_int_equal(compile(NB_G_CHOICE, "[\"\xF0\x9F\xA6\x84\"]", x.v, NULL, &g, &err), NB_OK);
    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    assert_int_equal(nb_gstate_open(g, &other, NULL), NB_OK);
    assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_NO);
    assert_int_equal(count_bits(bits, x.n_words), 0);
    assert_int_equal(nb_gstate_advance(s, 1, NULL), NB_NO);
    assert_int_equal(nb_gstate_advance(s, x.end, NULL), NB_NO);
    assert_int_equal(nb_gstate_advance(s, -1, NULL), NB_NO);
    assert_int_equal(nb_gstate_advance(s, INT32_MAX, NULL), NB_NO);
    nb_gstate_close(s);
    assert_int_equal(nb_gstate_bytes(other, "\xF0\x9F", 2, NULL), NB_OK);
    assert_int_equal(nb_gstate_bytes(other, "\xA6\x84x", 3, NULL), NB_NO); /* all or nothing */
    assert_false(nb_gstate_may_end(other));
    assert_int_equal(nb_gstate_bytes(other, "\xA6\x84", 2, NULL), NB_OK);
    assert_true(nb_gstate_may_end(other) && nb_gstate_must_end(other));
    nb_gstate_close(other);
    nb_grammar_unref(g);
    nb_free(bits);
    close_subject(&x);
}

static void test_wait(void **state)
{
    subject x;
    nb_grammar *g = NULL;
    nb_gstate *s = NULL, *c = NULL;
    uint32_t *bits;
    nb_err err = { 0 };

    (void)state;
    if (!open_subject(&x, "llama3"))
        skip();
    bits = nb_calloc(x.n_words, sizeof *bits);
    assert_int_equal(compile(NB_G_CHOICE, "[\"yes\",\"no\"]", x.v, NULL, &g, &err), NB_OK);
    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    assert_int_equal(nb_gstate_wait(s, "</</think>", 10, NULL), NB_OK);
    assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_OK);
    assert_int_equal(count_bits(bits, x.n_words), nb_gvocab_size(x.v));
    assert_int_equal(nb_gstate_bytes(s, "so </</</thin", 13, NULL), NB_OK);
    assert_true(nb_gstate_waiting(s) && !nb_gstate_may_end(s));
    assert_int_equal(nb_gstate_clone(s, &c, NULL), NB_OK);
    assert_int_equal(nb_gstate_bytes(s, "k>\n\nye", 6, NULL), NB_OK);
    assert_false(nb_gstate_waiting(s));
    assert_int_equal(nb_gstate_bytes(s, "x", 1, NULL), NB_NO);
    assert_int_equal(nb_gstate_bytes(s, "s", 1, NULL), NB_OK);
    assert_true(nb_gstate_must_end(s));
    assert_true(nb_gstate_waiting(c));
    assert_int_equal(nb_gstate_advance(c, x.end, NULL), NB_OK); /* a reply may end while it waits */
    assert_int_equal(nb_gstate_advance(c, x.end, NULL), NB_NO);
    nb_gstate_close(s);
    nb_gstate_close(c);
    nb_grammar_unref(g);
    nb_free(bits);
    close_subject(&x);
}

static void test_cache(void **state)
{
    nb_gcache *c = NULL;
    nb_json *same = nb_json_new_obj();
    nb_grammar *a = NULL, *b = NULL;
    nb_err err = { 0 };
    uint64_t most = 0;

    (void)state;
    assert_int_equal(nb_gcache_open(NULL, NULL, 2u << 20, &c, &err), NB_OK);
    assert_true(nb_json_set(same, "type", nb_json_new_str("string")));
    assert_int_equal(nb_gcache_get(c, NB_G_SCHEMA, same, &a, &err), NB_OK);
    assert_int_equal(nb_gcache_get(c, NB_G_SCHEMA, same, &b, &err), NB_OK);
    assert_ptr_equal(a, b);
    nb_grammar_unref(b);
    for (int i = 0; i < 3000; i++) { /* SO-10 */
        nb_json *v = nb_json_new_obj();
        assert_true(nb_json_set(v, "const", nb_json_new_int(i)));
        assert_int_equal(nb_gcache_get(c, NB_G_SCHEMA, v, &b, &err), NB_OK);
        assert_true(takes(b, i % 2 ? "1" : "0") == (i < 2));
        nb_grammar_unref(b);
        nb_json_free(v);
        if (i % 100 == 0 && nb_gcache_bytes(c) > most)
            most = nb_gcache_bytes(c);
    }
    assert_true(most > 0 && most <= 2u << 20);
    assert_true(takes(a, "\"still here\""));
    nb_grammar_unref(a);
    a = NULL;
    assert_int_equal(nb_gcache_get(c, NB_G_REGEX, same, &a, &err), NB_EARG); /* a regex is a text */
    assert_null(a);
    nb_json_free(same);
    nb_gcache_close(c);
}

/* SO-11: compiling and walking in several threads at once. */
static const subject *shared_subject;
static nb_grammar *shared_grammar;

static void *worker(void *arg)
{
    nb_gcache *c = arg;
    uint32_t *bits = nb_calloc(shared_subject->n_words, sizeof *bits);

    for (int i = 0; i < 6; i++) {
        nb_json *v = nb_json_new_str(i % 2 ? "(a|b){1,50}c" : "[0-9]{1,20}x?");
        nb_grammar *g = NULL;
        nb_gstate *s = NULL, *t = NULL;
        assert_int_equal(nb_gcache_get(c, NB_G_REGEX, v, &g, NULL), NB_OK);
        assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
        assert_int_equal(nb_gstate_open(shared_grammar, &t, NULL), NB_OK);
        for (int k = 0; k < 5; k++) {
            assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_OK);
            assert_int_equal(nb_gstate_bytes(s, i % 2 ? "a" : "7", 1, NULL), NB_OK);
            assert_int_equal(nb_gstate_mask(t, bits, NULL), NB_OK);
            assert_int_equal(nb_gstate_bytes(t, k ? " " : "{", 1, NULL), NB_OK);
        }
        nb_gstate_close(s);
        nb_gstate_close(t);
        nb_grammar_unref(g);
        nb_json_free(v);
    }
    nb_free(bits);
    return NULL;
}

static void test_threads(void **state)
{
    subject x;
    nb_gcache *c = NULL;
    pthread_t t[3];
    nb_err err = { 0 };

    (void)state;
    if (!open_subject(&x, "llama3"))
        skip();
    shared_subject = &x;
    assert_int_equal(nb_gcache_open(x.v, NULL, 0, &c, &err), NB_OK);
    assert_int_equal(compile(NB_G_JSON, "", x.v, NULL, &shared_grammar, &err), NB_OK);
    for (size_t i = 0; i < NB_LEN(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, worker, c), 0);
    for (size_t i = 0; i < NB_LEN(t); i++)
        pthread_join(t[i], NULL);
    nb_grammar_unref(shared_grammar);
    nb_gcache_close(c);
    close_subject(&x);
}

/* Every allocation fails once: NB_ENOMEM or a full result, and what was there still works. */
static nb_status use_all(const subject *x, uint32_t *bits)
{
    static const char *const src =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",\"y\"]},\"b\":{\"type\":\"integer\",\"maximum\":9}}}";
    nb_grammar *g = NULL;
    nb_gstate *s = NULL, *c = NULL;
    nb_json *schema = NULL;
    nb_gcache *cache = NULL;
    nb_err err = { 0 };
    nb_status rc = nb_json_parse(src, strlen(src), "json", 0, &schema, &err);

    if (rc == NB_OK)
        rc = nb_gcache_open(x->v, NULL, 0, &cache, &err);
    if (rc == NB_OK)
        rc = nb_gcache_get(cache, NB_G_SCHEMA, schema, &g, &err);
    if (rc == NB_OK)
        rc = nb_gstate_open(g, &s, &err);
    for (int i = 0; rc == NB_OK && i < 3; i++) {
        rc = nb_gstate_mask(s, bits, &err);
        if (rc == NB_OK || rc == NB_NO) /* few words have a brace */
            rc = nb_gstate_bytes(s, i ? " " : "{", 1, &err);
    }
    if (rc == NB_OK)
        rc = nb_gstate_clone(s, &c, &err);
    if (rc == NB_OK)
        rc = nb_gstate_wait(c, "x", 1, &err);
    nb_gstate_close(s);
    nb_gstate_close(c);
    nb_grammar_unref(g);
    nb_gcache_close(cache);
    nb_json_free(schema);
    return rc;
}

static void test_out_of_memory(void **state)
{
    subject x;
    uint32_t *bits;
    uint64_t n;

    (void)state;
    if (!open_subject(&x, "wordlevel"))
        skip();
    bits = nb_calloc(x.n_words, sizeof *bits);
    nb_mem_fail_at(0);
    assert_int_equal(use_all(&x, bits), NB_OK);
    n = nb_mem_fail_at(0);
    assert_true(n > 100);
    for (uint64_t i = 1; i <= n; i++) {
        nb_mem_fail_at(i);
        const nb_status rc = use_all(&x, bits);
        nb_mem_fail_at(0);
        if (rc != NB_OK && rc != NB_ENOMEM)
            fail_msg("allocation %d of %d: %d", (int)i, (int)n, rc);
    }
    nb_free(bits);
    close_subject(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks), cmocka_unit_test(test_dead_end),      cmocka_unit_test(test_wait),
        cmocka_unit_test(test_cache), cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_threads)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
