/* Patterns: what matches, what is refused, and that work stays linear. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "quant/rx.h"

static const struct {
    const char *pattern, *text;
    bool match, search; /* Python's re.match and re.search, `python3 -c` */
} rows[] = {
    { "lm_head", "lm_head", true, true },
    { "lm_head", "lm_head.weight", true, true },
    { "lm_head$", "lm_head.weight", false, false },
    { "head", "lm_head", false, true },
    { "^head", "lm_head", false, false },
    { ".*self_attn.*", "model.layers.0.self_attn.q_proj", true, true },
    { ".*layers\\.1\\.self_attn\\.(q|k|v)_proj", "model.layers.1.self_attn.k_proj", true, true },
    { ".*layers\\.1\\.self_attn\\.(q|k|v)_proj", "model.layers.11.self_attn.k_proj", false, false },
    { ".*layers\\.1\\.self_attn\\.(q|k|v)_proj", "model.layers.1.self_attn.o_proj", false, false },
    { ".*mlp.gate$", "model.layers.3.mlp.gate", true, true },
    { ".*mlp.gate$", "model.layers.3.mlp.gate_proj", false, false },
    { ".*\\.18\\..*(?:gate|up|down)_proj.*", "model.layers.18.mlp.up_proj", true, true },
    { "model\\.layers\\.\\d+\\.mlp", "model.layers.27.mlp", true, true },
    { "model\\.layers\\.\\d+\\.mlp", "model.layers.x.mlp", false, false },
    { "model\\.layers\\.([0-9]|1[0-9])\\.", "model.layers.19.", true, true },
    { "model\\.layers\\.([0-9]|1[0-9])\\.", "model.layers.20.", false, false },
    { "(?P<n>a)(b)c", "abc", true, true },
    { "a{2}b", "aab", true, true },
    { "a{2}b", "ab", false, false },
    { "a{2}b", "aaab", false, true },
    { "a{2,}b", "aaaab", true, true },
    { "a{,2}b", "aab", true, true },
    { "a{,2}b", "aaab", false, true },
    { "^a{1,3}$", "aaa", true, true },
    { "^a{1,3}$", "aaaa", false, false },
    { "(ab){2}c", "ababc", true, true },
    { "^(ab){0,2}$", "abab", true, true },
    { "^(ab){0,2}$", "ababab", false, false },
    { "a{x}", "a{x}", true, true },
    { "a{0}b", "b", true, true },
    { "a*?b+?c??", "aabb", true, true },
    { "[^.]+\\.x", "ab.x", true, true },
    { "[^.]+\\.x", "a.b.x", false, true },
    { "[]a]+$", "]a", true, true },
    { "[a-c-]+$", "b-", true, true },
    { "[\\w.]+$", "a_1.B", true, true },
    { "[\\d]+$", "12a", false, false },
    { "\\bq\\b", "q", true, true },
    { "x\\b", "xq", false, false },
    { "x\\B", "xq", true, true },
    { "\\Aab\\Z", "ab", true, true },
    { "a|b|", "z", true, true },
    { "", "z", true, true },
    { "(a*)*b", "aaab", true, true },
    { "(|a)+b", "aab", true, true },
    { ".", "\n", false, false },
    { "^.$", "\xc3\xa9", true, true },
    { "^\xc3\xa9+$", "\xc3\xa9\xc3\xa9", true, true },
    { "^[^a]$", "\xe2\x82\xac", true, true },
    { "\\x41", "A", true, true },
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_rx *rx;
        nb_err err = { 0 };
        uint64_t work = 0;
        if (nb_rx_new(rows[i].pattern, strlen(rows[i].pattern), &rx, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].pattern, err.what);
        for (int again = 0; again < 2; again++) {
            if (nb_rx_match(rx, rows[i].text, strlen(rows[i].text), false, &work) != rows[i].match)
                fail_msg("%s at the start of %s", rows[i].pattern, rows[i].text);
            if (nb_rx_match(rx, rows[i].text, strlen(rows[i].text), true, &work) != rows[i].search)
                fail_msg("%s anywhere in %s", rows[i].pattern, rows[i].text);
        }
        nb_rx_free(rx);
    }
}

static const struct {
    const char *pattern;
    nb_status code;
    const char *what;
} bad[] = {
    { "(", NB_EFORMAT, "a group that does not end at byte 1" },
    { ")", NB_EFORMAT, "a group that was not opened at byte 0" },
    { "[a", NB_EFORMAT, "a class that does not end at byte 2" },
    { "[z-a]", NB_EFORMAT, "a range that runs backwards at byte 4" },
    { "*", NB_EFORMAT, "nothing to repeat at byte 0" },
    { "a**", NB_EFORMAT, "a repeated quantifier" },
    { "a\\", NB_EFORMAT, "a backslash without a character" },
    { "\\q", NB_EFORMAT, "an unknown escape at byte 1" },
    { "a{3,2}", NB_EFORMAT, "a repetition whose end is below its beginning" },
    { "(?P<n", NB_EFORMAT, "a group name that does not end" },
    { "^(?!x)", NB_EUNSUPPORTED, "a look-around at byte 3" },
    { "(?<=x)y", NB_EUNSUPPORTED, "a look-around at byte 2" },
    { "(?i)x", NB_EUNSUPPORTED, "a group of a special kind" },
    { "(a)\\1", NB_EUNSUPPORTED, "a back reference at byte 4" },
    { "a++", NB_EUNSUPPORTED, "a possessive quantifier" },
    { "^*", NB_EUNSUPPORTED, "a repeated anchor" },
    { "[\xc3\xa9]", NB_EUNSUPPORTED, "a class with characters beyond ASCII" },
    { "a{1001}", NB_ELIMIT, "a repetition of more than 1000" },
    { "((((a{50}){50}){50}){50})", NB_ELIMIT, "a pattern of more than 4096 steps" },
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_rx *rx;
        nb_err err = { 0 };
        const nb_status rc = nb_rx_new(bad[i].pattern, strlen(bad[i].pattern), &rx, &err);
        if (rc != bad[i].code || rx || !strstr(err.what, bad[i].what))
            fail_msg("%s: %d %s", bad[i].pattern, rc, err.what);
    }
}

/* Patterns that take backtracking matchers exponential time; and depth that would take the stack. */
static void test_linear(void **state)
{
    static const char *const evil[] = { "(a*)*b", "(a|a)*b", "(a|aa)+$", "(.*)(.*)(.*)(.*)(.*)[^a]$" };
    enum { N = 4000 };
    char *text = nb_alloc(N), deep[2001];
    nb_rx *rx;

    (void)state;
    memset(text, 'a', N);
    text[N - 1] = 'c';
    for (size_t i = 0; i < NB_LEN(evil); i++) {
        uint64_t work = 0;
        assert_int_equal(nb_rx_new(evil[i], strlen(evil[i]), &rx, NULL), NB_OK);
        nb_rx_match(rx, text, N, true, &work);
        assert_true(work < 200ull * N);
        nb_rx_free(rx);
    }
    memset(deep, '(', sizeof deep);
    assert_int_equal(nb_rx_new(deep, sizeof deep, &rx, NULL), NB_ELIMIT);
    nb_free(text);
}

static void test_no_memory(void **state)
{
    const char *p = "(a|[b-d]{2,5}.*)+";
    bool failed = true;

    (void)state;
    for (uint64_t i = 1; failed && i < 100; i++) {
        nb_rx *rx;
        nb_mem_fail_at(i);
        const nb_status rc = nb_rx_new(p, strlen(p), &rx, NULL);
        nb_mem_fail_at(0);
        failed = rc != NB_OK;
        if (failed)
            assert_int_equal(rc, NB_ENOMEM);
        nb_rx_free(rx);
    }
    assert_false(failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
