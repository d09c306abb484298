/* test_toksource.c - tokenizers that come from other files than tokenizer.json, against recorded vectors. */
#include "vectors.h"

#include "text/toksource.h"

typedef struct source {
    char *p[NB_TOK_N];
    nb_tokfiles f;
    nb_toksource s;
} source;

static void source_clear(source *s)
{
    nb_toksource_clear(&s->s);
    for (int i = 0; i < NB_TOK_N; i++)
        nb_free(s->p[i]);
    memset(s, 0, sizeof *s);
}

/* The files of dir, but not tokenizer.json: NULL when there are none. */
static nb_tokenizer *open_dir(const char *base, const char *name, source *s)
{
    char dir[1024];
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };
    bool any = false;

    snprintf(dir, sizeof dir, "%s/%s", base, name);
    for (int i = NB_TOK_JSON + 1; i < NB_TOK_N; i++) {
        s->p[i] = slurp(dir, nb_tokfile_name[i], &s->f.f[i].n);
        s->f.f[i].p = s->p[i];
        any = any || (s->p[i] && i < NB_TOK_CONFIG);
    }
    if (!any)
        return NULL;
    if (nb_toksource_init(&s->s, &s->f, &err) != NB_OK ||
        nb_tokenizer_open(s->s.json, s->s.n_json, s->s.config, s->s.n_config, &t, &err) != NB_OK)
        fail_msg("%s: %s %s: %s", name, err.cls, err.file, err.what);
    return t;
}

static int same_ids(const nb_json *want, const int32_t *got, size_t n)
{
    if (nb_json_len(want) != n)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (nb_json_int(nb_json_at(want, i), -1) != got[i])
            return 0;
    }
    return 1;
}

/* How ids of the vector file compare: which key with which flags. */
typedef struct row {
    const char *dir, *vectors_dir, *vectors, *key;
    bool add, parse;
    const char *only_without; /* lines whose text has this are of another rule */
    const char *also_without;
} row;

static const row rows[] = {
    { "gpt2-files", "gpt2", "vectors.jsonl", "ids", false, true, NULL, NULL },
    { "gpt2-files", "gpt2", "vectors.jsonl", "ids_plain", false, false, NULL, NULL },
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids", false, true, NULL, NULL },
    /* the class says: no BOS where the text has it; the vectors know no class */
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids_special", true, true, "<s>", NULL },
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids_plain", false, false, NULL, NULL },
    /* SentencePiece itself cuts user-defined pieces out of the normalized text, not out of the raw one */
    { "sp-bpe", "sp-bpe", "vectors_sentencepiece.jsonl", "ids", false, false, "<|user|>", "<|tool|>" },
    { "sp-unigram", "sp-unigram", "vectors.jsonl", "ids", false, true, "<extra_id_", NULL },
    { "sp-unigram", "sp-unigram", "vectors.jsonl", "ids_special", true, true, "<extra_id_", NULL },
    { "llama3-tiktoken", "llama3-tiktoken", "vectors.jsonl", "ids", false, true, NULL, NULL },
    { "llama3-tiktoken", "llama3-tiktoken", "vectors.jsonl", "ids_ordinary", false, false, NULL, NULL },
    { "tekken-json", "tekken-json", "vectors.jsonl", "ids", false, false, NULL, NULL },
};

static bool has(const nb_buf *text, const char *part)
{
    const size_t n = part ? strlen(part) : 0;

    for (size_t i = 0; part && i + n <= text->n; i++) {
        if (memcmp(text->p + i, part, n) == 0)
            return true;
    }
    return false;
}

static int run_row(const char *base, const row *r, const nb_tokenizer *t, int *bad)
{
    char dir[1024];
    size_t n = 0, at = 0;
    int lines = 0;
    nb_json *line;
    char *text;

    snprintf(dir, sizeof dir, "%s/%s", base, r->vectors_dir);
    text = slurp(dir, r->vectors, &n);
    while ((line = next_line(text, n, &at))) {
        const nb_json *want = nb_json_get(line, r->key);
        nb_buf in = { 0 };
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        text_of(line, &in);
        if (want && !has(&in, r->only_without) && !has(&in, r->also_without)) {
            lines++;
            if (nb_tokenizer_encode(t, in.p ? in.p : "", in.n, r->add, r->parse, &ids, &err) != NB_OK || !same_ids(want, ids.p, ids.n)) {
                if ((*bad)++ < 5)
                    print_message("%s, %s, %s: %s differs %s\n", r->dir, r->vectors, r->key, nb_json_str(nb_json_get(line, "name"), "?"),
                                  err.what);
            }
        }
        nb_ids_clear(&ids);
        nb_buf_clear(&in);
        nb_json_free(line);
    }
    nb_free(text);
    return lines;
}

static void run_all(const char *base)
{
    int total = 0, bad = 0;

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        source s = { 0 };
        nb_tokenizer *t = open_dir(base, rows[i].dir, &s);
        const int lines = t ? run_row(base, &rows[i], t, &bad) : 0;
        if (t)
            print_message("%s, %s, %s: %d lines\n", rows[i].dir, rows[i].vectors, rows[i].key, lines);
        total += lines;
        nb_tokenizer_close(t);
        source_clear(&s);
    }
    if (total == 0) {
        print_message("skipped: no vocabularies under %s\n", base);
        skip();
    }
    print_message("%s: %d texts, %d differ\n", base, total, bad);
    assert_int_equal(bad, 0);
}

static void recorded_in_the_tree(void **state)
{
    (void)state;
    run_all(OWN_DATA);
}

static void recorded_beside_the_tree(void **state)
{
    (void)state;
    run_all(golden_dir());
}

/* tokenizer.model becomes the very merges that the reference converter makes. */
static void same_merges(void **state)
{
    source s = { 0 };
    char dir[1024];
    size_t n = 0;
    char *text;
    nb_json *want = NULL, *got = NULL;
    nb_err err = { 0 };
    nb_tokenizer *t = open_dir(golden_dir(), "sp-bpe", &s);
    (void)state;

    snprintf(dir, sizeof dir, "%s/sp-bpe", golden_dir());
    text = slurp(dir, "tokenizer.json", &n);
    if (!t || !text) {
        print_message("skipped: no sp-bpe under %s\n", golden_dir());
        skip();
    }
    assert_int_equal(nb_json_parse(text, n, "json", 0, &want, &err), NB_OK);
    assert_int_equal(nb_json_parse(s.s.json, s.s.n_json, "json", 0, &got, &err), NB_OK);
    for (size_t i = 0; i < nb_json_len(want); i++) {
        const char *key;
        const nb_json *w = nb_json_member(want, i, &key);
        const nb_json *g = nb_json_get(got, key);
        for (size_t k = 0; strcmp(key, "model") == 0 && k < nb_json_len(w); k++) {
            const char *part;
            const nb_json *member = nb_json_member(w, k, &part);
            if (!nb_json_equal(member, nb_json_get(g, part)))
                fail_msg("model.%s differs", part);
        }
        if (!nb_json_equal(w, g))
            fail_msg("%s differs", key);
    }
    nb_json_free(want);
    nb_json_free(got);
    nb_free(text);
    nb_tokenizer_close(t);
    source_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_in_the_tree),
        cmocka_unit_test(recorded_beside_the_tree),
        cmocka_unit_test(same_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
