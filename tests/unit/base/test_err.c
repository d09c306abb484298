/* test_err.c - the error record, its one-line form, and escaping (hardening U-04, U-06). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/err.h"

static void first_failure_wins(void **state)
{
    nb_err e = { 0 };

    (void)state;
    assert_int_equal(nb_fail(&e, NB_EFORMAT, "st.truncated", "ST-001", "found %d", 7), NB_EFORMAT);
    assert_int_equal(nb_fail(&e, NB_EARG, "arg.other", "", "later"), NB_EARG);
    assert_int_equal(e.code, NB_EFORMAT);
    assert_string_equal(e.cls, "st.truncated");
    assert_string_equal(e.what, "found 7");
    nb_err_at(&e, "a.bin", NULL);
    nb_err_at(&e, "b.bin", "x.weight");
    assert_string_equal(e.file, "a.bin");
    assert_string_equal(e.subject, "x.weight");
    nb_err_clear(&e);
    nb_err_at(&e, "a.bin", "x");
    assert_string_equal(e.file, "");
    assert_int_equal(nb_fail(NULL, NB_EARG, "arg", "", "nobody listens"), NB_EARG);
    assert_int_equal(nb_fail(&e, NB_OK, "", "", "not a failure"), NB_EINTERNAL);
    assert_string_equal(e.cls, "internal");
}

static void one_line(void **state)
{
    static const struct {
        const char *rule, *file, *subject, *line;
    } rows[] = {
        { "AWQ-004", "m.safetensors", "q_proj", "awq.order [AWQ-004]: m.safetensors: q_proj: what" },
        { "", "m.safetensors", NULL, "awq.order: m.safetensors: what" },
        { "", NULL, "q_proj", "awq.order: q_proj: what" },
        { "AWQ-004", NULL, NULL, "awq.order [AWQ-004]: what" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nb_err e = { 0 };
        char line[1400], tiny[8];

        nb_fail(&e, NB_EFORMAT, "awq.order", rows[i].rule, "what");
        nb_err_at(&e, rows[i].file, rows[i].subject);
        nb_err_format(&e, line, sizeof line);
        assert_string_equal(line, rows[i].line);
        nb_err_format(&e, tiny, sizeof tiny);
        assert_string_equal(tiny, "awq.ord");
    }
}

static void escape_rows(void **state)
{
    static const struct {
        const char *label, *in;
        size_t n;
        const char *out;
    } rows[] = {
        { "plain", "model.layers.0", 14, "model.layers.0" },
        { "U-06 format signs stay text", "%n%s", 4, "%n%s" },
        { "U-06 newline and ESC", "a\n\x1b[2J", 6, "a\\x0a\\x1b[2J" },
        { "U-06 NUL and DEL", "a\0b\x7f", 4, "a\\x00b\\x7f" },
        { "UTF-8 passes", "gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x86", 11, "gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x86" },
        { "U-06 bidi override", "a\xe2\x80\xae", 4, "a\\u{202e}" },
        { "U-06 C1 control", "\xc2\x9b", 2, "\\u{9b}" },
        { "lone continuation", "\x80z", 2, "\\x80z" },
        { "overlong slash", "\xc0\xaf", 2, "\\xc0\\xaf" },
        { "encoded surrogate", "\xed\xa0\x80", 3, "\\xed\\xa0\\x80" },
        { "beyond the last plane", "\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80" },
        { "cut at the end", "a\xe2\x82", 3, "a\\xe2\\x82" },
        { "empty", "", 0, "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[NB_ESC_CAP];

        if (strcmp(nb_esc(out, sizeof out, rows[i].in, rows[i].n), rows[i].out) != 0)
            fail_msg("%s: %s", rows[i].label, out);
    }
}

static void escape_cut(void **state)
{
    char in[1000], out[NB_ESC_CAP], small[20];

    (void)state;
    memset(in, 'x', sizeof in);
    nb_esc(out, sizeof out, in, 120);
    assert_int_equal(strlen(out), 120);
    nb_esc(out, sizeof out, in, 121);
    assert_string_equal(out + 120, "...(121 bytes)");
    memset(in, 1, sizeof in); /* the worst case fits */
    nb_esc(out, sizeof out, in, sizeof in);
    assert_int_equal(strlen(out), 480 + strlen("...(1000 bytes)"));
    memset(in, 'x', sizeof in);
    memcpy(in + 119, "\xc3\xbc", 2); /* a character across the cut is left out whole */
    nb_esc(out, sizeof out, in, sizeof in);
    assert_string_equal(out + 119, "...(1000 bytes)");
    nb_esc(small, sizeof small, in, sizeof in);
    assert_string_equal(small, "xxxx...(1000 bytes)");
    nb_esc(small, 1, in, sizeof in);
    assert_string_equal(small, "");
    for (size_t cap = 1; cap < 200; cap++) { /* never past the buffer, always terminated */
        memset(out, '#', sizeof out);
        nb_esc(out, cap, in, sizeof in);
        assert_true(strlen(out) < cap);
        assert_int_equal(out[cap], '#');
    }
}

static void long_message_keeps_utf8(void **state)
{
    nb_err e = { 0 };
    char in[1200];
    size_t n;

    (void)state;
    in[0] = 'a'; /* so that the cut at 767 falls into a character */
    for (size_t i = 1; i + 2 < sizeof in; i += 2)
        memcpy(in + i, "\xc3\xbc", 2);
    in[sizeof in - 1] = 0;
    nb_fail(&e, NB_EARG, "arg", "", "%sx", in + 1);
    n = strlen(e.what);
    assert_int_equal(n % 2, 0);
    assert_int_equal((unsigned char)e.what[n - 1], 0xbc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),      cmocka_unit_test(one_line), cmocka_unit_test(escape_rows), cmocka_unit_test(escape_cut),
        cmocka_unit_test(long_message_keeps_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
