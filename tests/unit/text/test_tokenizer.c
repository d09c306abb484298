/* test_tokenizer.c - whole tokenizers against recorded vectors of the reference library. */
#include "vectors.h"

#include "text/tokenizer.h"

static const char *const families[] = { "gpt2",       "starcoder-neox", "roberta-prefix", "llama3",      "qwen2",      "o200k",
                                        "tekken",     "deepseek3",      "llama2",         "phi3-strip",  "gemma",      "mistral-metaspace",
                                        "sp-bpe",     "partial-bytes",  "clip-suffix",    "cont-prefix", "drop-nounk", "added",
                                        "sp-unigram", "unigram-bytes",  "bert-uncased",   "bert-cased",  "wordlevel" };

typedef struct tally {
    int lines, bad;
} tally;

static void complain(tally *t, const char *family, const nb_json *line, const char *what, const char *got)
{
    t->bad++;
    if (t->bad <= 10)
        print_message("%s: %s: %s: %s\n", family, nb_json_str(nb_json_get(line, "name"), "?"), what, got ? got : "");
}

static int same_ids(const nb_json *want, const nb_ids *got)
{
    if (nb_json_len(want) != got->n)
        return 0;
    for (size_t i = 0; i < got->n; i++) {
        if (nb_json_int(nb_json_at(want, i), -1) != got->p[i])
            return 0;
    }
    return 1;
}

static int same_ids_rle(const nb_json *want, const nb_ids *got)
{
    size_t k = 0;

    for (size_t i = 0; i < nb_json_len(want); i++) {
        const int64_t id = nb_json_int(nb_json_at(nb_json_at(want, i), 0), -1);
        for (int64_t c = nb_json_int(nb_json_at(nb_json_at(want, i), 1), 0); c > 0; c--) {
            if (k >= got->n || got->p[k++] != id)
                return 0;
        }
    }
    return k == got->n;
}

static void show_ids(const nb_ids *v, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < v->n && at + 16 < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%d ", v->p[i]);
}

static void check_encode(const nb_tokenizer *tk, tally *t, const char *family, const nb_json *line, const nb_buf *text, const char *key,
                         bool add, bool parse)
{
    const nb_json *want = nb_json_get(line, key);
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    char shown[256];

    if (want) {
        t->lines++;
        if (nb_tokenizer_encode(tk, text->p ? text->p : "", text->n, add, parse, &ids, &err) != NB_OK)
            complain(t, family, line, key, err.what);
        show_ids(&ids, shown, sizeof shown);
        if (strcmp(key, "ids_rle") == 0 ? !same_ids_rle(want, &ids) : !same_ids(want, &ids))
            complain(t, family, line, key, shown);
    }
    nb_ids_clear(&ids);
}

/* Lists recorded as a hash only: their length, and that decoding gives the text back where it did. */
static void check_count(const nb_tokenizer *tk, tally *t, const char *family, const nb_json *line, const nb_buf *text)
{
    nb_ids ids = { 0 };
    nb_buf back = { 0 };
    nb_err err = { 0 };

    if (!nb_json_get(line, "ids_sha256"))
        return;
    t->lines++;
    if (nb_tokenizer_encode(tk, text->p, text->n, false, true, &ids, &err) != NB_OK ||
        (int64_t)ids.n != nb_json_int(nb_json_get(line, "n"), -1))
        complain(t, family, line, "number of ids", "");
    nb_tokenizer_decode(tk, ids.p, ids.n, false, &back, &err);
    if ((int64_t)back.n != nb_json_int(nb_json_get(line, "decoded_bytes"), -1) ||
        (nb_json_bool(nb_json_get(line, "decoded_equal"), false) && (back.n != text->n || memcmp(back.p, text->p, back.n) != 0)))
        complain(t, family, line, "decoded", "");
    nb_ids_clear(&ids);
    nb_buf_clear(&back);
}

static void check_decode(const nb_tokenizer *tk, tally *t, const char *family, const nb_json *line, const nb_json *list, const char *key,
                         bool skip)
{
    const nb_json *want = nb_json_get(line, key);
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_err err = { 0 };

    if (!want || !list)
        return;
    t->lines++;
    for (size_t i = 0; i < nb_json_len(list); i++)
        nb_ids_push(&ids, (int32_t)nb_json_int(nb_json_at(list, i), -1), &err);
    if (nb_tokenizer_decode(tk, ids.p, ids.n, skip, &out, &err) != NB_OK || !same_str(want, out.p, out.n))
        complain(t, family, line, key, out.p);
    nb_buf_clear(&out);
    nb_ids_clear(&ids);
}

/* The stream rule: every piece is whole characters, pieces and flush make up the decoded text, and never lag behind
 * what the reference had emitted by then. exact: ByteLevel, where nothing needs to be held longer. */
static void check_stream(const nb_tokenizer *tk, tally *t, const char *family, const nb_json *line, const nb_json *list, const char *key,
                         bool skip)
{
    const nb_json *steps = nb_json_get(line, key);
    const bool differs = nb_json_get(line, "stream_differs") != NULL;
    const bool exact = strncmp(family, "gpt2", 4) == 0 || strcmp(family, "llama3") == 0 || strcmp(family, "qwen2") == 0;
    nb_detok *d = NULL;
    nb_buf all = { 0 }, ref = { 0 }, whole = { 0 };
    nb_ids ids = { 0 };
    nb_err err = { 0 };

    if (!list)
        return;
    t->lines++;
    assert_int_equal(nb_detok_open(tk, skip, &d, &err), NB_OK);
    for (size_t i = 0; i < nb_json_len(list); i++) {
        const int32_t id = (int32_t)nb_json_int(nb_json_at(list, i), -1);
        const nb_json *s = nb_json_at(steps, i);
        nb_ids_push(&ids, id, &err);
        if (nb_detok_add(d, id, &all, &err) != NB_OK)
            complain(t, family, line, "detok", err.what);
        if (nb_json_typeof(s) == NB_JSTR)
            nb_buf_put(&ref, nb_json_str(s, ""), nb_json_str_len(s));
        if (steps && exact && !differs && (all.n < ref.n || (ref.n > 0 && memcmp(all.p, ref.p, ref.n) != 0)))
            complain(t, family, line, "stream behind the reference", all.p);
    }
    nb_detok_flush(d, &all, &err);
    nb_tokenizer_decode(tk, ids.p, ids.n, skip, &whole, &err);
    if (all.n != whole.n || (all.n > 0 && memcmp(all.p, whole.p, all.n) != 0))
        complain(t, family, line, "stream is not the decoded text", all.p);
    nb_detok_close(d);
    nb_buf_clear(&all);
    nb_buf_clear(&ref);
    nb_buf_clear(&whole);
    nb_ids_clear(&ids);
}

static void one_line(const nb_tokenizer *tk, tally *t, const char *family, const nb_json *line, bool encode)
{
    const nb_json *ids = nb_json_get(line, "ids"), *special = nb_json_get(line, "ids_special");
    nb_buf text = { 0 };

    if (encode) {
        text_of(line, &text);
        check_encode(tk, t, family, line, &text, "ids", false, true);
        check_encode(tk, t, family, line, &text, "ids_rle", false, true);
        check_count(tk, t, family, line, &text);
        check_encode(tk, t, family, line, &text, "ids_special", true, true);
        check_encode(tk, t, family, line, &text, "ids_plain", false, false);
        nb_buf_clear(&text);
    }
    check_decode(tk, t, family, line, encode ? special : ids, "decoded", false);
    check_decode(tk, t, family, line, encode ? special : ids, "decoded_skip", true);
    check_stream(tk, t, family, line, ids, "stream", false);
    check_stream(tk, t, family, line, special, "none", true);
}

static void one_file(const nb_tokenizer *tk, tally *t, const char *family, const char *dir, const char *name)
{
    size_t n = 0, at = 0;
    char *text = slurp(dir, name, &n);
    nb_json *line;

    while ((line = next_line(text, n, &at))) {
        one_line(tk, t, family, line, strncmp(name, "vectors", 7) == 0);
        nb_json_free(line);
    }
    nb_free(text);
}

static void run_family(const char *base, const char *family, tally *t, int *seen)
{
    char dir[1024];
    size_t n = 0;
    char *json;
    nb_tokenizer *tk = NULL;
    nb_err err = { 0 };

    snprintf(dir, sizeof dir, "%s/%s", base, family);
    json = slurp(dir, "tokenizer.json", &n);
    if (!json)
        return;
    (*seen)++;
    if (nb_tokenizer_open(json, n, NULL, 0, &tk, &err) != NB_OK)
        fail_msg("%s: %s %s", family, err.cls, err.what);
    one_file(tk, t, family, dir, "vectors.jsonl");
    one_file(tk, t, family, dir, "decode.jsonl");
    nb_tokenizer_close(tk);
    nb_free(json);
}

static void run_all(const char *base)
{
    tally total = { 0, 0 };
    int seen = 0;

    for (size_t i = 0; i < NB_LEN(families); i++) {
        tally t = { 0, 0 };
        run_family(base, families[i], &t, &seen);
        if (t.bad)
            print_message("%s: %d of %d checks differ\n", families[i], t.bad, t.lines);
        total.lines += t.lines;
        total.bad += t.bad;
    }
    if (seen == 0) {
        print_message("skipped: no tokenizers under %s\n", base);
        skip();
    }
    print_message("%s: %d tokenizers, %d checks, %d differ\n", base, seen, total.lines, total.bad);
    if (seen > 0)
        assert_int_equal(total.bad, 0);
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

/* What stands before and after plain text, by class and flags of tokenizer_config.json. */
static void bos_policy(void **state)
{
    size_t n = 0;
    char *text = slurp(golden_dir(), "bos_policy.json", &n);
    nb_json *doc = NULL;
    const nb_json *all;
    int seen = 0, other = 0;
    nb_err err = { 0 };
    (void)state;

    if (!text) {
        print_message("skipped: no bos_policy.json under %s\n", golden_dir());
        skip();
    }
    assert_int_equal(nb_json_parse(text, n, "json", 0, &doc, &err), NB_OK);
    all = nb_json_get(doc, "policy");
    for (size_t i = 0; i < nb_json_len(all); i++) {
        const char *name;
        const nb_json *row = nb_json_member(all, i, &name);
        const nb_json *lists[3] = { nb_json_get(row, "prefix"), nb_json_get(row, "ids"), nb_json_get(row, "suffix") };
        const char *in = nb_json_str(nb_json_get(row, "text"), "");
        nb_tokenizer *tk = NULL;
        nb_ids ids = { 0 };
        char dir[1024];
        size_t n_json = 0, n_config = 0, k = 0;
        char *json, *config;

        snprintf(dir, sizeof dir, "%s/%s", golden_dir(), name);
        json = slurp(dir, "tokenizer.json", &n_json);
        config = slurp(dir, "tokenizer_config.json", &n_config);
        nb_err_clear(&err);
        if (nb_tokenizer_open(json, n_json, config, n_config, &tk, &err) == NB_OK) {
            assert_int_equal(nb_tokenizer_encode(tk, in, strlen(in), true, true, &ids, &err), NB_OK);
            for (size_t l = 0; l < 3; l++) {
                for (size_t e = 0; e < nb_json_len(lists[l]); e++, k++) {
                    if (k >= ids.n || ids.p[k] != nb_json_int(nb_json_at(lists[l], e), -1))
                        fail_msg("%s: id %zu differs", name, k);
                }
            }
            assert_int_equal(k, ids.n);
            seen++;
        } else {
            assert_int_equal(err.code, NB_EUNSUPPORTED);
            print_message("skipped: %s: %s\n", name, err.what);
            other++;
        }
        nb_tokenizer_close(tk);
        nb_ids_clear(&ids);
        nb_free(json);
        nb_free(config);
    }
    nb_json_free(doc);
    nb_free(text);
    print_message("%d directories, %d of unsupported kinds skipped\n", seen, other);
    assert_true(seen > 0);
}

/* The tokenizer of the model in the tree; ids recorded from tokenizers 0.23.3. */
static void pemberley(void **state)
{
    static const char in[] = "It is a truth universally acknowledged, 1813.\n";
    static const int32_t want[] = { 0, 1434, 369, 262, 1934, 475, 76, 1195, 558, 1809, 740, 799, 15, 224, 20, 27, 20, 22, 17, 202 };
    const char *dir = "models/pemberley-4m";
    size_t n_json = 0, n_config = 0, n_text = 0;
    char *json = slurp(dir, "tokenizer.json", &n_json), *config = slurp(dir, "tokenizer_config.json", &n_config);
    char *text = slurp(dir, "eval.txt", &n_text);
    nb_tokenizer *tk = NULL;
    nb_ids ids = { 0 };
    nb_buf back = { 0 };
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(nb_tokenizer_open(json, n_json, config, n_config, &tk, &err), NB_OK);
    assert_int_equal(nb_tokenizer_encode(tk, in, sizeof in - 1, true, true, &ids, &err), NB_OK);
    assert_int_equal(ids.n, NB_LEN(want));
    assert_memory_equal(ids.p, want, sizeof want);
    ids.n = 0;
    assert_int_equal(nb_tokenizer_encode(tk, text, n_text, false, true, &ids, &err), NB_OK);
    assert_int_equal(ids.n, 15427);
    assert_int_equal(nb_tokenizer_decode(tk, ids.p, ids.n, false, &back, &err), NB_OK);
    assert_int_equal(back.n, n_text);
    assert_memory_equal(back.p, text, n_text);
    nb_tokenizer_close(tk);
    nb_ids_clear(&ids);
    nb_buf_clear(&back);
    nb_free(json);
    nb_free(config);
    nb_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_in_the_tree),
        cmocka_unit_test(recorded_beside_the_tree),
        cmocka_unit_test(bos_policy),
        cmocka_unit_test(pemberley),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
