/* test_jinja.c - the template engine against recorded vectors, and the hostile rows of hardening 5.8. */
#include "vectors.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_conformance) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
