/* test_real.c - published vocabularies, which are not in the tree: NB_REAL names the directory that the fetch.sh beside
 * their vectors filled. Skipped without it. */
#include "vectors.h"

#include <sys/stat.h>

#include "base/log.h"
#include "text/tokenizer.h"

static const char *vectors_dir(void)
{
    const char *g = getenv("NB_GOLDEN");
    static char path[512];

    snprintf(path, sizeof path, "%s/tokenizers/real", g && *g ? g : "../shared/golden");
    return path;
}

/* Text of dir/NAME.jsonl.gz, by way of gzip. */
static char *unpack(const char *name, size_t *n)
{
    char cmd[640];
    nb_buf b = { 0 };
    FILE *f;
    char chunk[65536];
    size_t k;

    snprintf(cmd, sizeof cmd, "gzip -dc '%s/%s.jsonl.gz'", vectors_dir(), name);
    f = popen(cmd, "r");
    assert_non_null(f);
    while ((k = fread(chunk, 1, sizeof chunk, f)) > 0)
        nb_buf_put(&b, chunk, k);
    assert_int_equal(pclose(f), 0);
    *n = b.n;
    return b.p;
}

/* The shared texts by name. */
static nb_json *read_texts(void)
{
    size_t n, at = 0;
    char *p = unpack("texts", &n);
    nb_json *all = nb_json_new_obj(), *line;

    while ((line = next_line(p, n, &at))) {
        assert_true(nb_json_set(all, nb_json_str(nb_json_get(line, "name"), ""), nb_json_copy(nb_json_get(line, "text"))));
        nb_json_free(line);
    }
    nb_free(p);
    return all;
}

static int differs(const nb_tokenizer *t, const nb_json *line, const nb_json *text)
{
    const nb_json *want = nb_json_get(line, "ids"), *back = nb_json_get(line, "decoded");
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_err err = { 0 };
    int bad = nb_tokenizer_encode(t, nb_json_str(text, ""), nb_json_str_len(text), false, true, &ids, &err) != NB_OK ||
              nb_json_len(want) != ids.n || nb_tokenizer_decode(t, ids.p, ids.n, false, &out, &err) != NB_OK ||
              !same_str(back ? back : text, out.p, out.n);

    for (size_t i = 0; !bad && i < ids.n; i++)
        bad = nb_json_int(nb_json_at(want, i), -1) != ids.p[i];
    nb_ids_clear(&ids);
    nb_buf_clear(&out);
    return bad;
}

static int run(const char *dir, const char *name, const nb_json *texts, int *lines)
{
    char path[1024];
    size_t n_json = 0, n = 0, at = 0;
    int bad = 0, count = 0;
    char *json, *p;
    double t0;
    nb_tokenizer *t = NULL;
    nb_json *line;
    nb_err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", dir, name);
    json = slurp(path, "tokenizer.json", &n_json);
    if (!json)
        return 0;
    t0 = nb_now();
    if (nb_tokenizer_open(json, n_json, NULL, 0, &t, &err) != NB_OK)
        fail_msg("%s: %s %s", name, err.cls, err.what);
    t0 = nb_now() - t0;
    p = unpack(name, &n);
    while ((line = next_line(p, n, &at))) {
        const nb_json *text = nb_json_get(line, "text");
        if (!text)
            text = nb_json_get(texts, nb_json_str(nb_json_get(line, "name"), ""));
        if (nb_json_get(line, "ids")) {
            count++;
            if (differs(t, line, text) && bad++ < 5)
                print_message("%s: %s differs\n", name, nb_json_str(nb_json_get(line, "name"), "?"));
        }
        nb_json_free(line);
    }
    print_message("%s: %zu bytes open in %.0f ms; %d texts, %d differ\n", name, n_json, 1e3 * t0, count, bad);
    nb_tokenizer_close(t);
    nb_free(json);
    nb_free(p);
    *lines += count;
    return bad;
}

static void published(void **state)
{
    static const char *const names[] = { "llama2", "llama3", "llama3_1", "qwen3", "deepseek_v3", "gptoss", "gemma3" };
    const char *dir = getenv("NB_REAL");
    struct stat st;
    nb_json *texts;
    int bad = 0, lines = 0;
    (void)state;

    if (!dir || stat(dir, &st) != 0 || stat(vectors_dir(), &st) != 0) {
        print_message("skipped: NB_REAL names no directory with the published vocabularies (%s/fetch.sh)\n", vectors_dir());
        skip();
    }
    texts = read_texts();
    for (size_t i = 0; i < NB_LEN(names); i++)
        bad += run(dir, names[i], texts, &lines);
    nb_json_free(texts);
    assert_true(lines > 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(published) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
