/* test_stop.c - stop strings over every border of pieces, against a search in the whole text. */
#include "vectors.h"

#include <stdbool.h>

#include "text/stop.h"
#include "text/tokenizer.h"

#define MOST 4
static const struct {
    const char *label;
    const char *stop[MOST], *text, *want; /* want NULL: no stop string comes */
    int hit;
} rows[] = {
    { "one", { "END" }, "abENDcd", "ab", 1 },
    { "none", { "END" }, "abENcd", NULL, 0 },
    { "begins as one", { "END" }, "abEN", NULL, 0 },
    { "AT-7 inside characters", { "\xE2\x82\xAC!" }, "x\xE2\x82\xAC\xE2\x82\xAC!y", "x\xE2\x82\xAC", 1 },
    { "characters with the same first byte", { "\xC3\xA9" }, "\xC3\xA3\xC3\xA9", "\xC3\xA3", 1 },
    { "that ends first", { "abcd", "bc" }, "xabcd", "xa", 2 },
    { "the first of the list", { "c", "abc" }, "xabcd", "xab", 1 },
    { "the first of the list, the longer", { "abc", "c" }, "xabcd", "x", 1 },
    { "overlapping itself", { "aab" }, "aaaab", "aa", 1 },
    { "a suffix of what was begun", { "abab", "bac" }, "xababac", "x", 1 },
    { "another one after a miss", { "aaa#", "ab" }, "aaab", "aa", 2 },
    { "at once", { "a" }, "a", "", 1 },
    { "a newline", { "\n\n", "\nUser:" }, "so\n\nUser:", "so", 1 },
    { "the same twice", { "x", "x" }, "ax", "a", 1 },
};

static nb_stops *open_row(size_t i)
{
    size_t len[MOST], n = 0;
    nb_stops *s = NULL;

    for (; n < MOST && rows[i].stop[n]; n++)
        len[n] = strlen(rows[i].stop[n]);
    assert_int_equal(nb_stops_open(rows[i].stop, len, n, &s, NULL), NB_OK);
    return s;
}

/* Feed text in pieces of `step` characters; check after each that nothing certain is held back. */
static void feed(size_t i, const nb_stops *s, size_t step, bool include)
{
    const char *text = rows[i].text;
    const size_t n = strlen(text);
    nb_stopper st = { 0 };
    nb_buf out = { 0 };
    bool hit = false;

    for (size_t at = 0; at < n && !hit;) {
        size_t to = at;
        for (size_t k = 0; k < step && to < n; k++)
            for (to++; to < n && ((unsigned char)text[to] & 0xC0) == 0x80; to++)
                ;
        hit = nb_stop_feed(s, &st, text + at, to - at, include, &out);
        at = to;
        if (!hit) {
            const size_t held = at - out.n;
            bool begins = held == 0;
            for (size_t k = 0; k < MOST && rows[i].stop[k]; k++)
                begins = begins || (held < strlen(rows[i].stop[k]) && memcmp(rows[i].stop[k], text + out.n, held) == 0);
            if (!begins)
                fail_msg("%s, pieces of %zu: %zu bytes are held back for nothing", rows[i].label, step, held);
        }
    }
    if (!hit)
        nb_stop_flush(s, &st, &out);
    nb_buf want = { 0 };
    nb_buf_puts(&want, rows[i].want ? rows[i].want : text);
    if (rows[i].want && include)
        nb_buf_puts(&want, rows[i].stop[rows[i].hit - 1]);
    if (hit != (rows[i].want != NULL) || st.hit != rows[i].hit || out.n != want.n ||
        memcmp(out.p ? out.p : "", want.p ? want.p : "", out.n) != 0)
        fail_msg("%s, pieces of %zu: \"%s\" (%d), want \"%s\"", rows[i].label, step, out.p ? out.p : "", st.hit, want.p ? want.p : "");
    nb_buf_clear(&out);
    nb_buf_clear(&want);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_stops *s = open_row(i);
        for (size_t step = 1; step < 9; step++) {
            feed(i, s, step, false);
            feed(i, s, step, true);
        }
        nb_stops_close(s);
    }
}

/* Random texts over two letters against a plain search. */
static void test_random(void **state)
{
    uint32_t r = 12345;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        char stop[3][8], text[40];
        const char *v[3] = { stop[0], stop[1], stop[2] };
        size_t len[3], n, hit_end = SIZE_MAX, hit = 0;
        nb_stops *s = NULL;
        nb_stopper st = { 0 };
        nb_buf out = { 0 };
        for (size_t k = 0; k < 3; k++) {
            len[k] = 1 + (r = r * 1664525 + 1013904223) % 7 * 2 % 7;
            for (size_t i = 0; i < len[k]; i++)
                stop[k][i] = (char)('a' + ((r = r * 1664525 + 1013904223) >> 20 & 1));
            stop[k][len[k]] = 0;
        }
        n = (r >> 8) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + ((r = r * 1664525 + 1013904223) >> 20 & 1));
        for (size_t end = 1; end <= n && hit_end == SIZE_MAX; end++) {
            for (size_t k = 0; k < 3 && hit_end == SIZE_MAX; k++) {
                if (len[k] <= end && memcmp(text + end - len[k], stop[k], len[k]) == 0) {
                    hit_end = end;
                    hit = k;
                }
            }
        }
        assert_int_equal(nb_stops_open(v, len, 3, &s, NULL), NB_OK);
        bool got = false;
        for (size_t i = 0; i < n && !got; i++)
            got = nb_stop_feed(s, &st, text + i, 1, false, &out);
        if (!got)
            nb_stop_flush(s, &st, &out);
        assert_int_equal(got, hit_end != SIZE_MAX);
        assert_int_equal(out.n, got ? hit_end - len[hit] : n);
        assert_memory_equal(out.p ? out.p : "", text, out.n);
        assert_int_equal(st.hit, got ? (int)hit + 1 : 0);
        nb_buf_clear(&out);
        nb_stops_close(s);
    }
}

/* AT-7: ids one by one through detokenizer and stop strings give the text that decoding all of them and searching gives. */
static void test_streamed(void **state)
{
    static const char *const names[] = { "llama3", "llama2", "unigram-bytes", "bert-uncased" };
    static const char *const texts[] = { "a\xE2\x82\xAC\xE2\x82\xAC! b", "\xF0\x9F\x98\x80\xF0\x9F\x98\x81x\n\nUser: y",
                                         "\xE4\xBD\xA0\xE5\xA5\xBD, end. END", "no stop \xC3\xA9\xC3",
                                         "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 !" };
    static const char *const stop[] = { "\xE2\x82\xAC!", "\xF0\x9F\x98\x81", "\n\nUser:", "END", "\xE5\xA5\xBD, end", " !" };
    size_t len[NB_LEN(stop)], seen = 0;
    nb_stops *s = NULL;

    (void)state;
    for (size_t i = 0; i < NB_LEN(stop); i++)
        len[i] = strlen(stop[i]);
    assert_int_equal(nb_stops_open(stop, len, NB_LEN(stop), &s, NULL), NB_OK);
    for (size_t k = 0; k < NB_LEN(names); k++) {
        char dir[300];
        size_t n = 0;
        nb_tokenizer *t = NULL;
        nb_err err = { 0 };
        snprintf(dir, sizeof dir, OWN_DATA "/%s", names[k]);
        char *json = slurp(dir, "tokenizer.json", &n);
        if (!json)
            continue;
        assert_int_equal(nb_tokenizer_open(json, n, NULL, 0, &t, &err), NB_OK);
        nb_free(json);
        for (size_t i = 0; i < NB_LEN(texts); i++) {
            nb_ids ids = { 0 };
            nb_buf all = { 0 }, want = { 0 }, got = { 0 }, piece = { 0 };
            nb_stopper a = { 0 }, b = { 0 };
            nb_detok *d = NULL;
            bool hit = false;
            assert_int_equal(nb_tokenizer_encode(t, texts[i], strlen(texts[i]), false, false, &ids, NULL), NB_OK);
            assert_int_equal(nb_tokenizer_decode(t, ids.p, ids.n, true, &all, NULL), NB_OK);
            if (!nb_stop_feed(s, &a, all.p ? all.p : "", all.n, false, &want))
                nb_stop_flush(s, &a, &want);
            assert_int_equal(nb_detok_open(t, true, &d, NULL), NB_OK);
            for (size_t x = 0; x <= ids.n && !hit; x++) {
                piece.n = 0;
                assert_int_equal(x < ids.n ? nb_detok_add(d, ids.p[x], &piece, NULL) : nb_detok_flush(d, &piece, NULL), NB_OK);
                hit = nb_stop_feed(s, &b, piece.p ? piece.p : "", piece.n, false, &got);
            }
            if (!hit)
                nb_stop_flush(s, &b, &got);
            if (got.n != want.n || memcmp(got.p ? got.p : "", want.p ? want.p : "", got.n) != 0 || a.hit != b.hit)
                fail_msg("AT-7 %s, text %zu: \"%s\" and \"%s\"", names[k], i, got.p ? got.p : "", want.p ? want.p : "");
            seen += hit;
            nb_detok_close(d);
            nb_ids_clear(&ids);
            nb_buf_clear(&all);
            nb_buf_clear(&want);
            nb_buf_clear(&got);
            nb_buf_clear(&piece);
        }
        nb_tokenizer_close(t);
    }
    nb_stops_close(s);
    assert_true(seen > 0);
}

static void test_refused(void **state)
{
    static char long_one[2000];
    const char *v[17];
    size_t len[17];
    nb_stops *s = NULL;
    nb_stopper st = { 0 };
    nb_buf out = { 0 };
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < 17; i++) {
        v[i] = "a";
        len[i] = 1;
    }
    assert_int_equal(nb_stops_open(v, len, 16, &s, &err), NB_OK);
    nb_stops_close(s);
    assert_int_equal(nb_stops_open(v, len, 17, &s, &err), NB_EARG);
    assert_string_equal(err.cls, "arg.stop");
    memset(long_one, 'x', sizeof long_one);
    v[0] = long_one;
    len[0] = 1024;
    assert_int_equal(nb_stops_open(v, len, 1, &s, NULL), NB_OK);
    nb_stops_close(s);
    len[0] = 1025;
    assert_int_equal(nb_stops_open(v, len, 1, &s, NULL), NB_EARG);
    len[0] = 0;
    assert_int_equal(nb_stops_open(v, len, 1, &s, NULL), NB_EARG);
    v[0] = "\x80";
    len[0] = 1;
    assert_int_equal(nb_stops_open(v, len, 1, &s, NULL), NB_EARG);
    assert_null(s);
    assert_false(nb_stop_feed(NULL, &st, "all", 3, false, &out)); /* no stop strings */
    nb_stop_flush(NULL, &st, &out);
    assert_string_equal(out.p, "all");
    nb_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_random), cmocka_unit_test(test_streamed),
                                        cmocka_unit_test(test_refused) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
