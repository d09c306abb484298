/* test_decoder.c - decoders against recorded results of the reference library; the stream says the same. */
#include "vectors.h"

#include "text/decoder.h"

static void one(const nb_json *line, int *bad)
{
    const nb_json *tokens = nb_json_get(line, "tokens"), *want = nb_json_get(line, "text");
    nb_decoder *d = NULL;
    nb_decoder_stream st = { 0 };
    nb_buf text = { 0 }, out = { 0 }, piecewise = { 0 };
    nb_spans list = { 0 };
    nb_err err = { 0 };

    assert_int_equal(nb_decoder_open(nb_json_get(line, "decoder"), &d, &err), NB_OK);
    for (size_t i = 0; i < nb_json_len(tokens); i++) {
        const nb_json *t = nb_json_at(tokens, i);
        nb_spans_push(&list, text.n, nb_json_str_len(t), &err);
        nb_buf_put(&text, nb_json_str(t, ""), nb_json_str_len(t));
        nb_decoder_feed(d, &st, nb_json_str(t, ""), nb_json_str_len(t), &piecewise, &err);
    }
    nb_decoder_flush(d, &st, &piecewise, &err);
    assert_int_equal(nb_decoder_run(d, text.p ? text.p : "", list.v, list.n, &out, &err), NB_OK);
    if (!same_str(want, out.p, out.n) || !same_str(want, piecewise.p, piecewise.n)) {
        char *s = nb_json_dump(line, 0, true);
        print_message("%s: got \"%s\", stream \"%s\"\n", s, out.p ? out.p : "", piecewise.p ? piecewise.p : "");
        nb_free(s);
        (*bad)++;
    }
    nb_decoder_close(d);
    nb_buf_clear(&text);
    nb_buf_clear(&out);
    nb_buf_clear(&piecewise);
    nb_spans_clear(&list);
}

static void run_dir(const char *dir, int *lines, int *bad)
{
    size_t n = 0, at = 0;
    char *text = slurp(dir, "decoders.jsonl", &n);
    nb_json *line;

    while ((line = next_line(text, n, &at))) {
        (*lines)++;
        one(line, bad);
        nb_json_free(line);
    }
    nb_free(text);
}

static void recorded(void **state)
{
    int lines = 0, bad = 0;
    (void)state;

    run_dir(OWN_DATA, &lines, &bad);
    run_dir(golden_dir(), &lines, &bad);
    print_message("%d vectors, %d differ\n", lines, bad);
    if (lines == 0)
        skip();
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
