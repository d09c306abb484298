/* test_tokfiles.c - tokenizers of whole directories and GGUF files: which file is used, and what it gives. */
#include "../text/vectors.h"

#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"
#include "job/load.h"

static nb_tokenizer *open_path(const char *path)
{
    nb_hfdir *d = NULL;
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };

    if (nb_hfdir_open(path, &d, &err) != NB_OK || nb_load_tokenizer(d, &t, &err) != NB_OK)
        fail_msg("%s: %s %s", path, err.cls, err.what);
    nb_hfdir_close(d);
    return t;
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

/* "ids" with special tokens in the text as text, "ids_parsed" (where it differs) with them parsed. */
static int one_line(const nb_tokenizer *t, const nb_json *line, bool parse)
{
    const nb_json *parsed = nb_json_get(line, "ids_parsed");
    const nb_json *want = parse && parsed ? parsed : nb_json_get(line, "ids");
    nb_buf in = { 0 };
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    int bad;

    text_of(line, &in);
    bad = want && (nb_tokenizer_encode(t, in.p ? in.p : "", in.n, false, parse, &ids, &err) != NB_OK || !same_ids(want, &ids));
    if (bad)
        print_message("%s%s: differs %s\n", nb_json_str(nb_json_get(line, "name"), "?"), parse ? ", parsed" : "", err.what);
    nb_buf_clear(&in);
    nb_ids_clear(&ids);
    return bad;
}

static int run_gguf(const char *base, const char *name, int *bad)
{
    char path[1100], dir[1024];
    size_t n = 0, at = 0;
    int lines = 0;
    nb_json *line;
    nb_tokenizer *t;
    char *text;

    snprintf(dir, sizeof dir, "%s/%s", base, name);
    snprintf(path, sizeof path, "%s/vocab.gguf", dir);
    text = slurp(dir, "vectors_llamacpp.jsonl", &n);
    if (!text)
        return 0;
    t = open_path(path);
    while ((line = next_line(text, n, &at))) {
        *bad += one_line(t, line, false) + one_line(t, line, true);
        lines++;
        nb_json_free(line);
    }
    nb_tokenizer_close(t);
    nb_free(text);
    print_message("%s: %d texts\n", dir, lines);
    return lines;
}

static void gguf_vocabularies(void **state)
{
    static const char *const names[] = { "gguf-spm", "gguf-bpe" };
    int lines = 0, bad = 0;
    (void)state;

    for (size_t i = 0; i < NB_LEN(names); i++) {
        run_gguf(OWN_DATA, names[i], &bad);
        lines += run_gguf(golden_dir(), names[i], &bad);
    }
    if (lines == 0)
        print_message("skipped: the whole sets, they are not under %s\n", golden_dir());
    assert_int_equal(bad, 0);
}

/* ---- which file is used ---- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define VOCAB "{\"a\":0,\"b\":1,\"ab\":2,\"</s>\":3}"
#define JSON  "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":7,\"b\":8},\"merges\":[]}}"

typedef struct choice {
    const char *label;
    struct {
        const char *name, *text;
    } file[5];
    const char *text;
    int32_t want[4];
    size_t n;
    bool special_last; /* the last id is a special token */
} choice;

static const choice choices[] = {
    { "vocab.json and merges.txt", { { "vocab.json", VOCAB }, { "merges.txt", "#version: 0.2\na b\n" } }, "abb", { 2, 1 }, 2, false },
    { "tokenizer.json comes first",
      { { "vocab.json", VOCAB }, { "merges.txt", "a b\n" }, { "tokenizer.json", JSON } },
      "ab",
      { 7, 8 },
      2,
      false },
    { "ranks of tiktoken", { { "tokenizer.model", "YQ== 0\nYg== 1\nYWI= 2\n" } }, "bab", { 1, 2 }, 2, false },
    { "tekken.json",
      { { "tekken.json", "{\"config\":{\"pattern\":\"[ab]+\",\"default_vocab_size\":7,\"default_num_special_tokens\":4},\"vocab\":["
                         "{\"rank\":0,\"token_bytes\":\"YQ==\"},{\"rank\":1,\"token_bytes\":\"Yg==\"},"
                         "{\"rank\":2,\"token_bytes\":\"YWI=\"},{\"rank\":3,\"token_bytes\":\"YmE=\"}]}" } },
      "baab[INST]",
      { 5, 4, 6, 3 },
      4,
      true },
    { "special_tokens_map.json",
      { { "vocab.json", VOCAB }, { "merges.txt", "a b" }, { "special_tokens_map.json", "{\"eos_token\":\"</s>\"}" } },
      "a</s>",
      { 0, 3 },
      2,
      true },
    { "added_tokens.json",
      { { "vocab.json", VOCAB }, { "merges.txt", "a b\r\n" }, { "added_tokens.json", "{\"<y>\":5,\"<x>\":4}" } },
      "<y>a<x>",
      { 5, 0, 4 },
      3,
      false },
    { "added_tokens.json and a special name",
      { { "vocab.json", VOCAB },
        { "merges.txt", "a b" },
        { "added_tokens.json", "{\"<x>\":4}" },
        { "special_tokens_map.json", "{\"pad_token\":{\"content\":\"<x>\",\"lstrip\":false}}" } },
      "a<x>",
      { 0, 4 },
      2,
      true },
    { "the configuration says it already",
      { { "tokenizer.json", JSON },
        { "tokenizer_config.json", "{\"added_tokens_decoder\":{\"2\":{\"content\":\"<x>\",\"special\":true}}}" },
        { "added_tokens.json", "{\"<y>\":3}" } },
      "a<x>",
      { 7, 2 },
      2,
      true },
};

static void which_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(choices); i++) {
        const choice *c = &choices[i];
        char dir[] = "/tmp/nb_tokfiles_XXXXXX", path[512];
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        nb_tokenizer *t;

        assert_non_null(mkdtemp(dir));
        for (size_t f = 0; f < NB_LEN(c->file) && c->file[f].name; f++)
            put_file(dir, c->file[f].name, c->file[f].text);
        t = open_path(dir);
        if (nb_tokenizer_encode(t, c->text, strlen(c->text), false, true, &ids, &err) != NB_OK || ids.n != c->n ||
            memcmp(ids.p, c->want, c->n * sizeof *ids.p) != 0)
            fail_msg("%s: %zu ids, first %d: %s", c->label, ids.n, ids.n ? ids.p[0] : -1, err.what);
        if (nb_tokenizer_is_special(t, ids.p[ids.n - 1]) != c->special_last)
            fail_msg("%s: special or not", c->label);
        nb_tokenizer_close(t);
        nb_ids_clear(&ids);
        for (size_t f = 0; f < NB_LEN(c->file) && c->file[f].name; f++) {
            snprintf(path, sizeof path, "%s/%s", dir, c->file[f].name);
            unlink(path);
        }
        rmdir(dir);
    }
}

/* Names of special_tokens_map.json reach the chat template. */
static void names_for_templates(void **state)
{
    char dir[] = "/tmp/nb_tokfiles_XXXXXX", path[512];
    nb_loaded l = { 0 };
    nb_err err = { 0 };
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json" };
    static const char *const texts[] = { JSON, "{\"chat_template\":\"{{ bos_token }}!\"}", "{\"bos_token\":\"<x>\"}" };
    static const char request[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    nb_json *messages = NULL;
    nb_buf out = { 0 };
    (void)state;

    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < NB_LEN(names); i++)
        put_file(dir, names[i], texts[i]);
    if (nb_load_text(&l, dir, &err) != NB_OK)
        fail_msg("%s: %s", err.cls, err.what);
    assert_int_equal(nb_json_parse(request, sizeof request - 1, "json", 0, &messages, &err), NB_OK);
    assert_int_equal(nb_chat_render(l.chat, messages, false, NULL, &out, &err), NB_OK);
    assert_string_equal(out.p, "<x>!");
    nb_buf_clear(&out);
    nb_json_free(messages);
    nb_load_close(&l);
    for (size_t i = 0; i < NB_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* TK-01: nothing that could be a vocabulary. */
static void nothing(void **state)
{
    char dir[] = "/tmp/nb_tokfiles_XXXXXX", path[512];
    nb_hfdir *d = NULL;
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };
    (void)state;

    assert_non_null(mkdtemp(dir));
    put_file(dir, "vocab.json", VOCAB); /* without merges.txt */
    assert_int_equal(nb_hfdir_open(dir, &d, &err), NB_OK);
    assert_int_equal(nb_load_tokenizer(d, &t, &err), NB_EOPEN);
    assert_string_equal(err.cls, "tok.missing");
    assert_null(t);
    nb_hfdir_close(d);
    snprintf(path, sizeof path, "%s/vocab.json", dir);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_vocabularies),
        cmocka_unit_test(which_file),
        cmocka_unit_test(names_for_templates),
        cmocka_unit_test(nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
