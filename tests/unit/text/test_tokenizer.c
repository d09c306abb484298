/* test_tokenizer.c - whole tokenizers against recorded vectors of the reference library. */
#include "vectors.h"

#include "text/tokenizer.h"

static const char *const families[] = { "gpt2",   "starcoder-neox", "roberta-prefix", "llama3",      "qwen2",      "o200k",
                                        "tekken", "deepseek3",      "llama2",         "phi3-strip",  "gemma",      "mistral-metaspace",
                                        "sp-bpe", "partial-bytes",  "clip-suffix",    "cont-prefix", "drop-nounk", "added" };

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_in_the_tree),
        cmocka_unit_test(recorded_beside_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
