/* test_jinja.c - the template engine against recorded vectors, and the hostile rows of hardening 5.8. */
#include "vectors.h"

#include <dirent.h>
#include <stdbool.h>
#include <time.h>

#include "text/chat.h"

/* 2024-07-26 01:02:03, a Friday: the clock of the vectors. */
static const struct tm fixed = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 1, .tm_min = 2, .tm_sec = 3, .tm_wday = 5, .tm_yday = 207
};

static nb_status render(const char *src, size_t n, const nb_json *vars, nb_buf *out, nb_err *err)
{
    nb_template *t = NULL;
    nb_status rc = nb_template_open(src, n, &t, err);

    if (rc == NB_OK)
        rc = nb_template_render(t, vars, &fixed, out, err);
    nb_template_close(t);
    return rc;
}

static void test_conformance(void **state)
{
    size_t n = 0, at = 0, lines = 0, bad = 0, optional = 0;
    char *text = slurp("tests/data/templates", "conformance.jsonl", &n);
    nb_json *line;

    (void)state;
    assert_non_null(text);
    while ((line = next_line(text, n, &at)) != NULL) {
        const nb_json *src = nb_json_get(line, "template"), *want = nb_json_get(line, "output");
        nb_buf out = { 0 };
        nb_err err = { 0 };
        const nb_status rc = render(nb_json_str(src, ""), nb_json_str_len(src), nb_json_get(line, "context"), &out, &err);
        const bool same = want ? rc == NB_OK && same_str(want, out.p ? out.p : "", out.n) : rc != NB_OK;
        lines++;
        if (!same && strcmp(nb_json_str(nb_json_get(line, "kind"), ""), "optional") == 0) {
            optional++;
        } else if (!same) {
            bad++;
            print_message("not ok: %s\n  got  %s%s\n  want %s\n", nb_json_str(src, ""),
                          rc == NB_OK ? (out.p ? out.p : "") : "error: ", err.what,
                          want ? nb_json_str(want, "") : nb_json_str(nb_json_get(line, "message"), "an error"));
        }
        nb_buf_clear(&out);
        nb_json_free(line);
    }
    print_message("%zu lines, %zu wrong, %zu optional ones not supported\n", lines, bad, optional);
    nb_free(text);
    assert_true(lines >= 600);
    assert_int_equal(bad, 0);
}

/* ---- published templates (golden templates/real) ---- */

static const char *real_dir(void)
{
    const char *g = getenv("NB_GOLDEN");
    static char path[512];

    snprintf(path, sizeof path, "%s/templates/real", g && *g ? g : "../shared/golden");
    return path;
}

/* What apply_chat_template does first: null keys are dropped, reasoning is given under two names. */
static nb_json *normalized(const nb_json *messages)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    nb_json *out = nb_json_new_arr();

    for (size_t i = 0; i < nb_json_len(messages); i++) {
        const nb_json *m = nb_json_at(messages, i), *thought = NULL;
        nb_json *copy = nb_json_new_obj();
        for (size_t k = 0; k < 3 && nb_json_is_null(thought); k++)
            thought = nb_json_get(m, names[k]);
        if (!nb_json_is_null(thought))
            assert_true(nb_json_set(copy, "thinking", nb_json_copy(thought)));
        for (size_t k = 0; k < nb_json_len(m); k++) {
            const char *key;
            const nb_json *v = nb_json_member(m, k, &key);
            if (!nb_json_is_null(v))
                assert_true(nb_json_set(copy, key, nb_json_copy(v)));
        }
        if (!nb_json_is_null(thought))
            assert_true(nb_json_set(copy, "reasoning_content", nb_json_copy(thought)));
        assert_true(nb_json_push(out, copy));
    }
    return out;
}

#define MARKER "CONTINUE_FINAL_MESSAGE_TAG "

static nb_json *variables(const nb_json *conv, const nb_json *tokens, bool extend)
{
    const nb_json *kwargs = nb_json_get(conv, "kwargs");
    nb_json *vars = nb_json_new_obj(), *messages = normalized(nb_json_get(conv, "messages"));

    if (extend) {
        nb_json *last = (nb_json *)(uintptr_t)nb_json_at(messages, nb_json_len(messages) - 1);
        nb_buf b = { 0 };
        nb_buf_puts(&b, nb_json_str(nb_json_get(last, "content"), ""));
        nb_buf_puts(&b, MARKER);
        assert_true(nb_json_set(last, "content", nb_json_new_strn(b.p, b.n)));
        nb_buf_clear(&b);
    }
    assert_true(nb_json_set(vars, "messages", messages));
    assert_true(nb_json_set(vars, "tools", nb_json_copy(nb_json_get(conv, "tools"))));
    assert_true(nb_json_set(vars, "documents", nb_json_new_null()));
    assert_true(nb_json_set(vars, "add_generation_prompt", nb_json_new_bool(false)));
    for (int pass = 0; pass < 2; pass++) {
        const nb_json *from = pass ? kwargs : tokens;
        for (size_t i = 0; i < nb_json_len(from); i++) {
            const char *key;
            const nb_json *v = nb_json_member(from, i, &key);
            if (strcmp(key, "continue_final_message") != 0)
                assert_true(nb_json_set(vars, key, nb_json_copy(v)));
        }
    }
    return vars;
}

/* The prompt up to the marker; false when it is not there. */
static bool cut(nb_buf *out)
{
    const size_t n = sizeof MARKER - 2;
    size_t hit = SIZE_MAX;

    for (size_t i = 0; out->p && i + n <= out->n; i++)
        if (memcmp(out->p + i, MARKER, n) == 0)
            hit = i;
    if (hit == SIZE_MAX)
        return false;
    if (!(hit + n < out->n && out->p[hit + n] == ' '))
        while (hit > 0 && strchr(" \t\n\r\v\f", out->p[hit - 1]))
            hit--;
    out->n = hit;
    return true;
}

static void one_template(const char *name, const char *src, size_t n_src, const char *convs, size_t n_convs, size_t tally[3])
{
    char file[300];
    size_t n = 0, at = 0, conv_at = 0;
    char *rows;
    nb_json *head, *row;

    snprintf(file, sizeof file, "%s.jsonl", name);
    rows = slurp(real_dir(), file, &n);
    if (!rows)
        return; /* a copy of another one, listed there */
    head = next_line(rows, n, &at);
    while ((row = next_line(rows, n, &at)) != NULL) {
        nb_json *conv = next_line(convs, n_convs, &conv_at);
        const nb_json *want = nb_json_get(row, "output");
        const bool extend = nb_json_bool(nb_json_get(nb_json_get(conv, "kwargs"), "continue_final_message"), false);
        nb_json *vars;
        nb_buf out = { 0 };
        nb_err err = { 0 };
        assert_non_null(conv);
        assert_string_equal(nb_json_str(nb_json_get(row, "case"), ""), nb_json_str(nb_json_get(conv, "case"), ""));
        vars = variables(conv, nb_json_get(head, "tokens"), extend);
        nb_status rc = render(src, n_src, vars, &out, &err);
        if (rc == NB_OK && extend && !cut(&out))
            rc = NB_NO;
        const bool fails = nb_json_get(row, "error") != NULL;
        const bool good = fails ? rc != NB_OK
                                : rc == NB_OK && (want ? same_str(want, out.p ? out.p : "", out.n)
                                                       : (int64_t)out.n == nb_json_int(nb_json_get(row, "bytes"), -1));
        tally[0]++;
        tally[1] += !good;
        if (!good)
            print_message("not ok: %s, %s: %s%s\n  want %s\n  got  %s\n", name, nb_json_str(nb_json_get(row, "case"), ""), err.cls,
                          err.what,
                          fails  ? nb_json_str(nb_json_get(row, "message"), "error")
                          : want ? nb_json_str(want, "")
                                 : "(a hash)",
                          out.p ? out.p : "");
        nb_buf_clear(&out);
        nb_json_free(vars);
        nb_json_free(conv);
        nb_json_free(row);
    }
    tally[2]++;
    nb_json_free(head);
    nb_free(rows);
}

/* Every template of NB_TEMPLATES (default: real/templates) with every recorded conversation. */
static void test_published(void **state)
{
    const char *more = getenv("NB_TEMPLATES");
    char dir[600];
    size_t n_convs = 0, tally[3] = { 0 };
    char *convs = slurp(real_dir(), "conversations.jsonl", &n_convs);
    struct dirent *e;
    DIR *d;

    (void)state;
    snprintf(dir, sizeof dir, "%s/templates", real_dir());
    d = opendir(more ? more : dir);
    if (!convs || !d) {
        print_message("skipped: no golden templates at %s\n", real_dir());
        nb_free(convs);
        if (d)
            closedir(d);
        skip();
    }
    while ((e = readdir(d)) != NULL) {
        const size_t n = strlen(e->d_name);
        char name[256], *src;
        size_t n_src = 0;
        if (n < 7 || strcmp(e->d_name + n - 6, ".jinja") != 0)
            continue;
        src = slurp(more ? more : dir, e->d_name, &n_src);
        assert_non_null(src);
        snprintf(name, sizeof name, "%.*s", (int)(n - 6 < sizeof name ? n - 6 : sizeof name - 1), e->d_name);
        one_template(name, src, n_src, convs, n_convs, tally);
        nb_free(src);
    }
    closedir(d);
    nb_free(convs);
    print_message("%zu templates, %zu prompts, %zu wrong\n", tally[2], tally[0], tally[1]);
    assert_true(tally[2] > 0);
    assert_int_equal(tally[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_conformance), cmocka_unit_test(test_published) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
