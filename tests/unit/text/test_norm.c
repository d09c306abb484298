/* test_norm.c - normalizers against recorded results of the reference library. */
#include "vectors.h"

#include "text/norm.h"

/* The reference library has older Unicode tables (spec tokenizers 4): what only they explain is counted apart. */
static bool is_newer_unicode(const char *s, size_t n)
{
    static const uint32_t newer[] = { 0x32FF };
    uint32_t cp;

    for (size_t i = 0; i < n; i += (size_t)nb_u8_next(s + i, n - i, &cp, NULL)) {
        nb_u8_next(s + i, n - i, &cp, NULL);
        for (size_t k = 0; k < NB_LEN(newer); k++) {
            if (cp == newer[k])
                return true;
        }
    }
    return false;
}

static void recorded(void **state)
{
    static const char *const dirs[] = { OWN_DATA, NULL };
    int lines = 0, bad = 0, refused = 0, newer = 0;
    (void)state;

    for (size_t d = 0; d < NB_LEN(dirs); d++) {
        size_t n = 0, at = 0;
        char *text = slurp(dirs[d] ? dirs[d] : golden_dir(), "normalizers.jsonl", &n);
        nb_json *line;

        while ((line = next_line(text, n, &at))) {
            const nb_json *in = nb_json_get(line, "text");
            const char *s = nb_json_str(in, "");
            size_t k = nb_json_str_len(in);
            nb_norm_work w = { .left = NB_NORM_BUDGET(k) };
            nb_norm *nm = NULL;
            nb_err err = { 0 };

            lines++;
            if (nb_norm_open(nb_json_get(line, "normalizer"), &nm, &err) != NB_OK) {
                assert_string_equal(err.cls, "tok.regex"); /* the empty pattern: refused by rule TK-17 */
                refused++;
            } else {
                const bool odd = is_newer_unicode(s, k);
                assert_int_equal(nb_norm_run(nm, &w, &s, &k, &err), NB_OK);
                if (!same_str(nb_json_get(line, "out"), s, k)) {
                    newer += odd;
                    bad += !odd;
                    if (!odd && bad <= 10) {
                        char *spec = nb_json_dump(nb_json_get(line, "normalizer"), 0, true);
                        print_message("%s: \"%s\": want \"%s\", got \"%.*s\"\n", spec, nb_json_str(in, ""),
                                      nb_json_str(nb_json_get(line, "out"), ""), (int)k, s);
                        nb_free(spec);
                    }
                }
            }
            nb_norm_work_clear(&w);
            nb_norm_close(nm);
            nb_json_free(line);
        }
        nb_free(text);
    }
    print_message("%d vectors, %d differ, %d newer Unicode, %d with an empty pattern skipped (refused by TK-17)\n", lines, bad, newer,
                  refused);
    if (lines == 0)
        skip();
    assert_int_equal(bad, 0);
}

/* A long run of marks in descending order takes linear time and comes out sorted. */
static void many_marks(void **state)
{
    nb_json *spec = NULL;
    nb_norm *nm = NULL;
    nb_norm_work w = { 0 };
    nb_buf text = { 0 };
    nb_err err = { 0 };
    const char *s;
    size_t n;
    (void)state;

    assert_int_equal(nb_json_parse("{\"type\":\"NFD\"}", 14, "tok", 0, &spec, &err), NB_OK);
    assert_int_equal(nb_norm_open(spec, &nm, &err), NB_OK);
    nb_buf_putc(&text, 'a');
    for (int i = 0; i < 100000; i++)
        nb_buf_puts(&text, "\xcc\x81\xcc\xa3"); /* class 230, class 220 */
    s = text.p;
    n = text.n;
    w.left = NB_NORM_BUDGET(n);
    assert_int_equal(nb_norm_run(nm, &w, &s, &n, &err), NB_OK);
    assert_int_equal(n, text.n);
    assert_memory_equal(s, "a\xcc\xa3\xcc\xa3", 5);
    assert_memory_equal(s + n - 4, "\xcc\x81\xcc\x81", 4);
    nb_norm_work_clear(&w);
    nb_buf_clear(&text);
    nb_norm_close(nm);
    nb_json_free(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded),
        cmocka_unit_test(many_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
