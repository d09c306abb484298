/* test_utf8.c - repair of invalid UTF-8, whole and as a stream; the byte-level alphabet; literal search. */
#include "vectors.h"

#include "text/utf8.h"

static size_t unhex(const char *s, char *out)
{
    size_t n = 0;

    for (; s[0] && s[1]; s += 2) {
        char pair[3] = { s[0], s[1], 0 };
        out[n++] = (char)strtol(pair, NULL, 16);
    }
    return n;
}

static void check_bytes(const char *bytes, size_t n, const nb_json *want)
{
    nb_buf whole = { 0 };

    nb_u8_repair(&whole, bytes, n);
    if (!same_str(want, whole.p, whole.n))
        fail_msg("repair: want \"%s\", got \"%s\"", nb_json_str(want, ""), whole.p);
    for (size_t step = 1; step <= n; step++) { /* in pieces of every size */
        nb_u8_stream st = { { 0 }, 0 };
        nb_buf out = { 0 };
        for (size_t i = 0; i < n; i += step) {
            nb_u8_feed(&st, bytes + i, n - i < step ? n - i : step, &out);
            assert_int_equal(nb_u8_check(out.p ? out.p : "", out.n), out.n);
        }
        nb_u8_flush(&st, &out);
        if (!same_str(want, out.p, out.n))
            fail_msg("stream in steps of %zu: want \"%s\", got \"%s\"", step, nb_json_str(want, ""), out.p);
        nb_buf_clear(&out);
    }
    nb_buf_clear(&whole);
}

static void recorded(void **state)
{
    static const char *const dirs[] = { OWN_DATA, NULL };
    int lines = 0;
    (void)state;

    for (size_t d = 0; d < NB_LEN(dirs); d++) {
        size_t n = 0, at = 0;
        char *text = slurp(dirs[d] ? dirs[d] : golden_dir(), "bytes.jsonl", &n);
        nb_json *line;
        while ((line = next_line(text, n, &at))) {
            char bytes[256];
            const size_t k = unhex(nb_json_str(nb_json_get(line, "hex"), ""), bytes);
            check_bytes(bytes, k, nb_json_get(line, "text"));
            lines++;
            nb_json_free(line);
        }
        nb_free(text);
    }
    print_message("%d byte strings\n", lines);
    if (lines == 0)
        skip();
}

static void alphabet(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        assert_int_equal(nb_char_byte(nb_byte_char((unsigned char)b)), b);
    assert_int_equal(nb_byte_char(' '), 0x120);
    assert_int_equal(nb_byte_char('\n'), 0x10A);
    assert_int_equal(nb_byte_char(0xAD), 0x143);
    assert_int_equal(nb_char_byte(0x144), -1);
    assert_int_equal(nb_char_byte(' '), -1);
}

static void needle(void **state)
{
    nb_needle d = { 0 };
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(nb_needle_init(&d, "aab", 3, &err), NB_OK);
    assert_int_equal(nb_needle_find(&d, "aaaab", 5, 0), 2);
    assert_int_equal(nb_needle_find(&d, "aaaab", 5, 3), 5);
    assert_int_equal(nb_needle_find(&d, "aabaab", 6, 1), 3);
    nb_needle_clear(&d);
    assert_int_equal(nb_needle_init(&d, "", 0, &err), NB_OK);
    assert_int_equal(nb_needle_find(&d, "abc", 3, 0), 3);
    nb_needle_clear(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded),
        cmocka_unit_test(alphabet),
        cmocka_unit_test(needle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
