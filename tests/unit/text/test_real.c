/* test_real.c - published vocabularies, which are not in the tree: tests/fetch_real.sh fetches them once into the build
 * folder (NB_REAL_CACHE), or NB_REAL names a directory that the fetch.sh beside their vectors filled. Skipped without. */
#include "vectors.h"

#include <stdbool.h>
#include <sys/stat.h>

#include "base/log.h"
#include "text/chat.h"
#include "text/tokenizer.h"

static const char *vectors_dir(void)
{
    const char *g = getenv("NB_GOLDEN");
    static char path[512];

    snprintf(path, sizeof path, "%s/tokenizers/real", g && *g ? g : "../shared/golden");
    return path;
}

/* The directory with the vocabularies; NULL: why was printed. */
static const char *vocabularies(void)
{
    const char *dir = getenv("NB_REAL"), *cache = getenv("NB_REAL_CACHE");
    char cmd[1400], why[256] = "";
    struct stat st;
    FILE *f;
    int rc;

    if (dir && *dir) {
        rc = stat(dir, &st);
        snprintf(why, sizeof why, "NB_REAL is no directory");
    } else if (!cache || !*cache) {
        rc = -1;
        snprintf(why, sizeof why, "neither NB_REAL nor NB_REAL_CACHE is set");
    } else {
        dir = cache;
        snprintf(cmd, sizeof cmd, "tests/fetch_real.sh '%s' '%s/fetch.sh'", cache, vectors_dir());
        f = popen(cmd, "r");
        assert_non_null(f);
        if (fgets(why, sizeof why, f))
            why[strcspn(why, "\n")] = 0;
        rc = pclose(f);
    }
    if (rc == 0)
        return dir;
    print_message("skipped: no published vocabularies: %s\n", why);
    return NULL;
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
    const char *dir = vocabularies();
    nb_json *texts;
    int bad = 0, lines = 0;
    (void)state;

    if (!dir)
        skip();
    texts = read_texts();
    for (size_t i = 0; i < NB_LEN(names); i++)
        bad += run(dir, names[i], texts, &lines);
    nb_json_free(texts);
    assert_true(lines > 0);
    assert_int_equal(bad, 0);
}

/* ---- end to end: conversation, template, ids ---- */

typedef struct end {
    char *tokenizer, *template; /* what is open */
    nb_tokenizer *t;
    nb_chat *c;
} end;

static void end_clear(end *e)
{
    nb_free(e->tokenizer);
    nb_free(e->template);
    nb_tokenizer_close(e->t);
    nb_chat_close(e->c);
    memset(e, 0, sizeof *e);
}

/* Open both; false when the template's text is not here. "npm-X" stands in X's tokenizer_config.json. */
static bool end_open(end *e, const char *dir, const char *tokenizer, const char *template)
{
    char path[1024], file[300];
    size_t n = 0, n_config = 0, n_jinja = 0, at = 0;
    char *json, *config = NULL, *jinja = NULL;
    nb_err err = { 0 };

    if (e->tokenizer && strcmp(e->tokenizer, tokenizer) == 0 && strcmp(e->template, template) == 0)
        return e->c != NULL;
    end_clear(e);
    e->tokenizer = nb_strdup(tokenizer);
    e->template = nb_strdup(template);
    snprintf(path, sizeof path, "%s/%s", dir, tokenizer);
    if (strncmp(template, "npm-", 4) == 0) {
        config = slurp(path, "tokenizer_config.json", &n_config);
    } else {
        char real[1024];
        snprintf(real, sizeof real, "%s/../../templates/real", vectors_dir());
        snprintf(file, sizeof file, "%s.jsonl", template);
        char *rows = slurp(real, file, &n);
        nb_json *head = next_line(rows, n, &at);
        config = nb_json_dump(nb_json_get(head, "tokens"), 0, true);
        n_config = config ? strlen(config) : 0;
        nb_json_free(head);
        nb_free(rows);
        snprintf(file, sizeof file, "templates/%s.jinja", template);
        jinja = slurp(real, file, &n_jinja);
    }
    if (config && (jinja || strncmp(template, "npm-", 4) == 0)) {
        json = slurp(path, "tokenizer.json", &n);
        assert_non_null(json);
        assert_int_equal(nb_tokenizer_open(json, n, NULL, 0, &e->t, &err), NB_OK);
        assert_int_equal(nb_chat_open(config, n_config, jinja, n_jinja, &e->c, &err), NB_OK);
        nb_free(json);
    }
    nb_free(config);
    nb_free(jinja);
    return e->c != NULL;
}

static nb_json *request_of(const nb_json *conv)
{
    const nb_json *kwargs = nb_json_get(conv, "kwargs");
    nb_json *r = nb_json_new_obj();

    assert_true(nb_json_set(r, "messages", nb_json_copy(nb_json_get(conv, "messages"))));
    assert_true(nb_json_set(r, "tools", nb_json_copy(nb_json_get(conv, "tools"))));
    for (size_t i = 0; i < nb_json_len(kwargs); i++) {
        const char *key;
        const nb_json *v = nb_json_member(kwargs, i, &key);
        assert_true(nb_json_set(r, key, nb_json_copy(v)));
    }
    return r;
}

static void conversations(void **state)
{
    const struct tm now = {
        .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 1, .tm_min = 2, .tm_sec = 3, .tm_wday = 5, .tm_yday = 207
    };
    const char *dir = vocabularies();
    char path[700];
    size_t n = 0, n_convs = 0, at = 0, count = 0, bad = 0, absent = 0;
    end e = { 0 };
    nb_json *line, *convs = nb_json_new_obj();
    char *p;
    (void)state;

    snprintf(path, sizeof path, "%s/../../templates/real", vectors_dir());
    char *text = slurp(path, "conversations.jsonl", &n_convs);
    if (!dir || !text) {
        nb_json_free(convs);
        nb_free(text);
        print_message("skipped: conversations: nothing to run them with\n");
        skip();
    }
    while ((line = next_line(text, n_convs, &at))) {
        assert_true(nb_json_set(convs, nb_json_str(nb_json_get(line, "case"), ""), nb_json_copy(line)));
        nb_json_free(line);
    }
    nb_free(text);
    p = unpack("chat", &n);
    for (at = 0; (line = next_line(p, n, &at)); nb_json_free(line)) {
        const nb_json *want = nb_json_get(line, "ids");
        const char *name = nb_json_str(nb_json_get(line, "case"), "");
        nb_json *request;
        nb_buf out = { 0 };
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        /* recorded without our repairs of requests, which join parts and parse arguments */
        if (strcmp(name, "parts-text") == 0 || strcmp(name, "call-string-args") == 0)
            continue;
        if (!end_open(&e, dir, nb_json_str(nb_json_get(line, "tokenizer"), ""), nb_json_str(nb_json_get(line, "template"), ""))) {
            absent++;
            continue;
        }
        request = request_of(nb_json_get(convs, name));
        bool same = nb_chat_render(e.c, request, false, &now, &out, &err) == NB_OK &&
                    nb_tokenizer_encode(e.t, out.p, out.n, false, true, &ids, &err) == NB_OK && ids.n == nb_json_len(want);
        for (size_t i = 0; same && i < ids.n; i++)
            same = nb_json_int(nb_json_at(want, i), -1) == ids.p[i];
        count++;
        bad += !same;
        if (!same)
            print_message("not ok: %s, %s: %s %s\n", e.template, name, err.cls, err.what);
        nb_json_free(request);
        nb_buf_clear(&out);
        nb_ids_clear(&ids);
    }
    print_message("%zu conversations, %zu differ; %zu of templates that are not here\n", count, bad, absent);
    end_clear(&e);
    nb_free(p);
    nb_json_free(convs);
    assert_true(count > 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(published), cmocka_unit_test(conversations) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
