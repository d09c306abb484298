/* test_json.c - the strict reader (hardening 5.2), access by number, builders, text. */
#define _XOPEN_SOURCE 700 /* nftw */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "unit/base/tmpdir.h"
#include "cputime.h"

#define S(lit) lit, sizeof(lit) - 1

static void verdict_rows(void **state)
{
    static const struct {
        const char *label, *text;
        size_t n;
        nb_status rc;
        const char *cls;
    } rows[] = {
        { "JS-01 empty", S(""), NB_EFORMAT, "cfg.json" },
        { "JS-01 blank", S(" \n\t"), NB_EFORMAT, "cfg.json" },
        { "JS-02 scalar root", S("3"), NB_OK, "" },
        { "JS-02 leading zero", S("[01]"), NB_EFORMAT, "cfg.json" },
        { "JS-02 bare minus", S("[-]"), NB_EFORMAT, "cfg.json" },
        { "JS-02 plus", S("[+1]"), NB_EFORMAT, "cfg.json" },
        { "JS-02 dot without digits", S("[1.]"), NB_EFORMAT, "cfg.json" },
        { "JS-02 unclosed", S("[1"), NB_EFORMAT, "cfg.json" },
        { "JS-02 unclosed string", S("\"abc\\"), NB_EFORMAT, "cfg.json" },
        { "JS-02 wide integer with a letter", S("[99999999999999999999x]"), NB_EFORMAT, "cfg.json" },
        { "JS-02 wide integer with leading zero", S("[09999999999999999999]"), NB_EFORMAT, "cfg.json" },
        { "JS-04 overlong", S("\"\xc0\xaf\""), NB_EFORMAT, "cfg.json" },
        { "JS-04 lone continuation", S("\"\x80\""), NB_EFORMAT, "cfg.json" },
        { "JS-04 cut", S("\"\xe2\x82\""), NB_EFORMAT, "cfg.json" },
        { "JS-04 encoded surrogate", S("\"\xed\xa0\x80\""), NB_EFORMAT, "cfg.json" },
        { "JS-04 F5", S("\"\xf5\x80\x80\x80\""), NB_EFORMAT, "cfg.json" },
        { "JS-05 lone surrogate escape", S("\"\\ud800\""), NB_EFORMAT, "cfg.json" },
        { "JS-05 swapped surrogates", S("\"\\udc00\\ud800\""), NB_EFORMAT, "cfg.json" },
        { "JS-05 bad hex", S("\"\\u12G4\""), NB_EFORMAT, "cfg.json" },
        { "JS-05 good pair", S("\"\\ud83e\\udd86\""), NB_OK, "" },
        { "JS-06 raw control byte", S("\"\x01\""), NB_EFORMAT, "cfg.json" },
        { "JS-06 raw NUL", S("\"a\0b\""), NB_EFORMAT, "cfg.json" },
        { "JS-06 escaped NUL in a value", S("\"a\\u0000b\""), NB_OK, "" },
        { "JS-06 escaped NUL in a key", S("{\"a\\u0000b\":1}"), NB_EFORMAT, "cfg.json" },
        { "JS-07 byte-order mark", S("\xef\xbb\xbf{}"), NB_EFORMAT, "cfg.json" },
        { "JS-08 duplicate", S("{\"a\":1,\"a\":2}"), NB_EFORMAT, "cfg.duplicate_key" },
        { "JS-08 duplicate after unescaping", S("{\"a\":1,\"\\u0061\":2}"), NB_EFORMAT, "cfg.duplicate_key" },
        { "JS-08 same key in two objects", S("[{\"a\":1},{\"a\":2}]"), NB_OK, "" },
        { "JS-09 trailing text", S("{} x"), NB_EFORMAT, "cfg.json" },
        { "JS-09 second document", S("{}{}"), NB_EFORMAT, "cfg.json" },
        { "JS-09 trailing NUL", S("{}\0"), NB_EFORMAT, "cfg.json" },
        { "JS-10 NaN", S("[NaN]"), NB_EFORMAT, "cfg.json" },
        { "JS-10 -Infinity", S("[-Infinity]"), NB_EFORMAT, "cfg.json" },
        { "JS-11 1e400", S("[1e400]"), NB_EFORMAT, "cfg.json" },
        { "JS-11 1e-400", S("[1e-400]"), NB_OK, "" },
        { "JS-14 comment", S("[1] // x"), NB_EFORMAT, "cfg.json" },
        { "JS-14 trailing comma", S("[1,]"), NB_EFORMAT, "cfg.json" },
        { "JS-14 single quotes", S("['a']"), NB_EFORMAT, "cfg.json" },
        { "JS-14 unquoted key", S("{a:1}"), NB_EFORMAT, "cfg.json" },
        { "JS-14 hex", S("[0x10]"), NB_EFORMAT, "cfg.json" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_json *v = NULL;
        nb_err e = { 0 };
        char *exact = nb_alloc(rows[i].n); /* so that a read past the end shows */
        nb_status rc;

        memcpy(exact, rows[i].text, rows[i].n);
        rc = nb_json_parse(exact, rows[i].n, "cfg", 0, &v, &e);
        if (rc != rows[i].rc || e.code != rows[i].rc || strcmp(e.cls, rows[i].cls) != 0 || (rc == NB_OK) != (v != NULL))
            fail_msg("%s: %d %s %s", rows[i].label, (int)rc, e.cls, e.what);
        nb_json_free(v);
        nb_free(exact);
    }
}

/* JS-08, JS-10 for config-like files; JS-16 is in locale_rows(). */
static void config_rows(void **state)
{
    static const struct {
        const char *label, *text, *dump; /* dump NULL: refused */
        bool warned;
    } rows[] = {
        { "JS-10 NaN in a config", "{\"a\":NaN}", "{\"a\":NaN}", false },
        { "JS-10 infinities in a config", "[Infinity, -Infinity ,1e30]", "[Infinity,-Infinity,1e+30]", false },
        { "JS-10 wide integer beside it", "[NaN,123456789012345678901234]", "[NaN,1.2345678901234569e+23]", false },
        { "JS-10 NaN in a string", "[\"NaN\"]", "[\"NaN\"]", false },
        { "JS-10 -NaN", "[-NaN]", NULL, false },
        { "JS-10 --Infinity", "[--Infinity]", NULL, false },
        { "JS-10 glued in front", "[1NaN]", NULL, false },
        { "JS-10 glued behind", "[NaN5]", NULL, false },
        { "JS-10 cut", "[Infinit]", NULL, false },
        { "JS-10 as a key", "{NaN:1}", NULL, false },
        { "JS-08 the last counts in a config", "{\"a\":1,\"b\":2,\"\\u0061\":3}", "{\"a\":3,\"b\":2}", true },
        { "JS-08 twice and not finite", "{\"a\":1,\"a\":NaN}", NULL, false },
        { "JS-14 comments stay refused", "{} // x", NULL, false },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_json *v = NULL;
        nb_err e = { 0 }, w = { 0 };
        const nb_status rc = nb_json_parse_config(rows[i].text, strlen(rows[i].text), "cfg", &v, &w, &e);
        char *text = v ? nb_json_dump(v, 0, true) : NULL;

        if (rc != (rows[i].dump ? NB_OK : NB_EFORMAT) || (rows[i].dump && strcmp(text, rows[i].dump) != 0))
            fail_msg("%s: %d %s %s", rows[i].label, (int)rc, e.what, text ? text : "");
        if ((w.code != NB_OK) != rows[i].warned || (rows[i].warned && strcmp(w.cls, "cfg.duplicate_key") != 0))
            fail_msg("%s: warning %s", rows[i].label, w.cls);
        nb_free(text);
        nb_json_free(v);
    }
    {
        nb_json *v = NULL, *copy;
        assert_int_equal(nb_json_parse_config(S("[NaN,-Infinity,Infinity,0.0]"), "cfg", &v, NULL, NULL), NB_OK);
        copy = nb_json_copy(v);
        assert_true(isnan(nb_json_num(nb_json_at(copy, 0), 1)));
        assert_true(nb_json_num(nb_json_at(copy, 1), 1) == -INFINITY);
        assert_true(nb_json_num(nb_json_at(copy, 2), 1) == INFINITY);
        assert_true(nb_json_num(nb_json_at(copy, 3), 1) == 0);
        assert_int_equal(nb_json_int(nb_json_at(copy, 0), -7), -7);
        assert_int_equal(nb_json_int(nb_json_at(copy, 2), -7), -7);
        assert_null(nb_json_wide(nb_json_at(copy, 0)));
        nb_json_free(v);
        nb_json_free(copy);
    }
}

/* JS-16: the numbers do not depend on the locale's decimal point. The locale is made here. */
static void locale_rows(void **state)
{
    static const char source[] = "comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\ngrouping -1\n"
                                 "END LC_NUMERIC\n";
    const char *dir = *state;
    nb_json *v = NULL;
    char *text, cmd[512];

    put(dir, "source", source, strlen(source));
    snprintf(cmd, sizeof cmd, "localedef -c --no-archive -i '%s/source' '%s/comma' >/dev/null 2>&1", dir, dir);
    if (system(cmd) == -1 || setenv("LOCPATH", dir, 1) != 0 || !setlocale(LC_NUMERIC, "comma") || *localeconv()->decimal_point != ',') {
        printf("skipped: JS-16: localedef makes no locale with a decimal comma here\n");
        skip();
    }
    assert_int_equal(nb_json_parse(S("[1.5,-2.5e-3]"), "cfg", 0, &v, NULL), NB_OK);
    assert_true(nb_json_num(nb_json_at(v, 0), 0) == 1.5);
    assert_true(nb_json_num(nb_json_at(v, 1), 0) == -2.5e-3);
    text = nb_json_dump(v, 0, true);
    assert_string_equal(text, "[1.5,-0.0025]");
    nb_free(text);
    nb_json_free(v);
    setlocale(LC_NUMERIC, "C");
}

static void error_tells_the_place(void **state)
{
    nb_json *v;
    nb_err e = { 0 };

    (void)state;
    nb_json_parse(S("{\n \"a\": 1,\n \"b\": \x1b }"), "st", 0, &v, &e);
    assert_string_equal(e.cls, "st.json");
    assert_non_null(strstr(e.what, "line 3, column "));
    assert_null(strchr(e.what, 0x1b));
}

static void depth(void **state)
{
    static const struct {
        const char *label;
        int levels, limit;
        nb_status rc;
    } rows[] = {
        { "JS-03 at the default limit", 128, 0, NB_OK },
        { "JS-03 one beyond", 129, 0, NB_ELIMIT },
        { "JS-03 own limit", 9, 8, NB_ELIMIT },
        { "JS-03 hundred thousand", 100000, 0, NB_ELIMIT },
        { "JS-03 any limit is capped", 100000, 1000000, NB_ELIMIT },
        { "JS-03 deep but allowed", 2000, 5000, NB_OK },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const size_t n = (size_t)rows[i].levels;
        char *t = nb_alloc(2 * n);
        nb_json *v = NULL;
        nb_err e = { 0 };

        memset(t, '[', n);
        memset(t + n, ']', n);
        if (nb_json_parse(t, 2 * n, "cfg", rows[i].limit, &v, &e) != rows[i].rc)
            fail_msg("%s: %s", rows[i].label, e.what);
        if (rows[i].rc != NB_OK)
            assert_string_equal(e.cls, "json.depth");
        nb_json_free(v);
        nb_free(t);
    }
    { /* brackets in strings do not count */
        nb_json *v = NULL;
        assert_int_equal(nb_json_parse(S("[\"[[[[\\\"[[[[\"]"), "cfg", 2, &v, NULL), NB_OK);
        nb_json_free(v);
    }
}

static void numbers(void **state)
{
    static const struct {
        const char *label, *text;
        nb_json_type type;
        double num;
        int64_t as_int; /* with default -7 */
    } rows[] = {
        { "largest int64", "9223372036854775807", NB_JINT, 0x1p63, INT64_MAX },
        { "smallest int64", "-9223372036854775808", NB_JINT, -0x1p63, INT64_MIN },
        { "JS-11 2^63 becomes a real", "9223372036854775808", NB_JREAL, 0x1p63, -7 },
        { "JS-11 -2^63-1 becomes a real", "-9223372036854775809", NB_JREAL, -0x1p63, INT64_MIN },
        { "JS-11 2^64", "18446744073709551616", NB_JREAL, 0x1p64, -7 },
        { "thirty digits", "1000000000000000019884624838656", NB_JREAL, 1e30, -7 },
        { "JS-12 4096.0", "4096.0", NB_JREAL, 4096, 4096 },
        { "JS-12 4096.5", "4096.5", NB_JREAL, 4096.5, -7 },
        { "JS-12 string", "\"4096\"", NB_JSTR, -7, -7 },
        { "JS-12 true", "true", NB_JBOOL, -7, -7 },
        { "wide mantissa", "12345678901234567890.5e-10", NB_JREAL, 12345678901234567890.5e-10, -7 },
        { "wide exponent part", "1e00000000000000000000000000002", NB_JREAL, 100, 100 },
        { "wide fraction", "0.12345678901234567890123", NB_JREAL, 0.12345678901234567890123, -7 },
        { "1e30", "1e30", NB_JREAL, 1e30, -7 },
        { "underflow", "1e-400", NB_JREAL, 0, 0 },
    };
    nb_json *v;
    nb_err e = { 0 };
    char big[402];

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err x = { 0 };
        if (nb_json_parse(rows[i].text, strlen(rows[i].text), "cfg", 0, &v, &x) != NB_OK)
            fail_msg("%s: %s", rows[i].label, x.what);
        if (nb_json_typeof(v) != rows[i].type || nb_json_num(v, -7) != rows[i].num || nb_json_int(v, -7) != rows[i].as_int)
            fail_msg("%s: type %d, %g, %lld", rows[i].label, (int)nb_json_typeof(v), nb_json_num(v, -7), (long long)nb_json_int(v, -7));
        nb_json_free(v);
    }
    memset(big, '9', 400);
    assert_int_equal(nb_json_parse(big, 400, "cfg", 0, &v, &e), NB_EFORMAT); /* JS-11 400 digits */
    assert_non_null(strstr(e.what, "overflow"));
    /* several in one text, and text around them untouched */
    assert_int_equal(
        nb_json_parse(S("{\"a\":99999999999999999999,\"99999999999999999999\":[1,-99999999999999999999]}"), "cfg", 0, &v, NULL), NB_OK);
    assert_true(nb_json_num(nb_json_get(v, "a"), 0) == 1e20);
    assert_true(nb_json_num(nb_json_at(nb_json_get(v, "99999999999999999999"), 1), 0) == -1e20);
    nb_json_free(v);
}

static void access_and_defaults(void **state)
{
    nb_json *v;
    const char *key;

    (void)state;
    assert_int_equal(nb_json_parse(S("{\"s\":\"x\\u0000y\",\"b\":true,\"n\":null,\"a\":[1,2.5],\"o\":{}}"), "cfg", 0, &v, NULL), NB_OK);
    assert_int_equal(nb_json_len(v), 5);
    assert_int_equal(nb_json_str_len(nb_json_get(v, "s")), 3);
    assert_memory_equal(nb_json_str(nb_json_get(v, "s"), ""), "x\0y", 4);
    assert_true(nb_json_bool(nb_json_get(v, "b"), false));
    assert_true(nb_json_is_null(nb_json_get(v, "n")));
    assert_null(nb_json_get(v, "absent"));
    assert_null(nb_json_get(nb_json_get(v, "a"), "x"));
    assert_int_equal(nb_json_len(nb_json_get(v, "s")), 0);
    assert_null(nb_json_at(nb_json_get(v, "a"), 2));
    assert_null(nb_json_member(v, 5, &key));
    assert_null(key);
    assert_null(nb_json_member(nb_json_get(v, "a"), 0, &key));
    assert_int_equal(nb_json_typeof(nb_json_member(v, 3, &key)), NB_JARR);
    assert_string_equal(key, "a");
    assert_int_equal(nb_json_int(NULL, 4), 4);
    assert_string_equal(nb_json_str(nb_json_get(v, "b"), "d"), "d");
    assert_true(nb_json_bool(NULL, true));
    assert_int_equal(nb_json_str_len(NULL), 0);
    assert_int_equal(nb_json_typeof(NULL), NB_JNULL);
    nb_json_free(v);
    nb_json_free(NULL);
}

/* {"k0":0,"k1":1, ...} */
static char *big_object(size_t n, size_t *len)
{
    nb_buf b = { 0 };

    nb_buf_putc(&b, '{');
    for (size_t i = 0; i < n; i++)
        nb_buf_printf(&b, "%s\"k%zu\":%zu", i ? "," : "", i, i);
    nb_buf_putc(&b, '}');
    *len = b.n;
    return b.p;
}

static void members_in_order(void **state)
{
    enum { N = 100000 };
    size_t n;
    char *t = big_object(N, &n);
    const double begin = cpu_now();
    const char *key;
    char want[32];
    nb_json *v, *other = nb_json_new_arr();

    (void)state;
    assert_int_equal(nb_json_parse(t, n, "idx", 0, &v, NULL), NB_OK);
    for (size_t i = 0; i < N; i++) { /* with other trees built and freed meanwhile */
        assert_int_equal(nb_json_int(nb_json_member(v, i, &key), -1), i);
        snprintf(want, sizeof want, "k%zu", i);
        assert_string_equal(key, want);
        nb_json_free(nb_json_copy(nb_json_at(other, 0)));
        assert_true(nb_json_push(other, nb_json_new_int(1)));
    }
    assert_true(cpu_now() - begin < 5); /* JS-13: a quadratic walk takes minutes */
    assert_true(nb_json_remove(v, "k1"));
    assert_false(nb_json_remove(v, "k1"));
    nb_json_member(v, 1, &key);
    assert_string_equal(key, "k2");
    assert_true(nb_json_set(v, "new", nb_json_new_bool(true)));
    nb_json_member(v, N - 1, &key);
    assert_string_equal(key, "new");
    nb_json_free(other);
    nb_json_free(v);
    nb_free(t);
}

static void *read_all(void *arg)
{
    const nb_json *v = arg;

    for (size_t i = 0; i < nb_json_len(v); i++)
        if (nb_json_int(nb_json_member(v, i, NULL), -1) != (int64_t)i)
            return arg;
    return NULL;
}

static void members_from_threads(void **state)
{
    size_t n;
    char *t = big_object(1000, &n);
    pthread_t th[4];
    nb_json *v;

    (void)state;
    assert_int_equal(nb_json_parse(t, n, "idx", 0, &v, NULL), NB_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&th[i], NULL, read_all, v), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(th[i], &bad);
        assert_null(bad);
    }
    nb_json_free(v);
    nb_free(t);
}

static void build_and_dump(void **state)
{
    nb_json *o = nb_json_new_obj(), *a = nb_json_new_arr(), *back, *copy;
    bool ok = true;
    char *t;

    (void)state;
    ok &= nb_json_set(o, "z", nb_json_new_int(INT64_MIN));
    ok &= nb_json_set(o, "a", a);
    ok &= nb_json_push(a, nb_json_new_real(0.1));
    ok &= nb_json_push(a, nb_json_new_real(1e-5));
    ok &= nb_json_push(a, nb_json_new_real(10000));
    ok &= nb_json_push(a, nb_json_new_real(1.0 / 3));
    ok &= nb_json_push(a, nb_json_new_real(NAN));
    ok &= nb_json_push(a, nb_json_new_bool(false));
    ok &= nb_json_push(a, nb_json_new_null());
    ok &= nb_json_set(o, "s", nb_json_new_strn("q\"\\\n\0\x1f\xc3\xbc", 8));
    ok &= nb_json_set(o, "e", nb_json_new_obj());
    assert_true(ok);
    t = nb_json_dump(o, 0, true);
    assert_string_equal(t, "{\"z\":-9223372036854775808,\"a\":[0.1,1e-05,10000.0,0.3333333333333333,null,false,null],"
                           "\"s\":\"q\\\"\\\\\\n\\u0000\\u001f\xc3\xbc\",\"e\":{}}");
    assert_int_equal(nb_json_parse(t, strlen(t), "cfg", 0, &back, NULL), NB_OK);
    assert_true(nb_json_equal(o, back));
    nb_free(t);
    copy = nb_json_copy(back);
    assert_true(nb_json_equal(o, copy));
    assert_true(nb_json_remove(copy, "e"));
    assert_false(nb_json_equal(o, copy));
    assert_true(nb_json_equal(NULL, NULL));
    assert_false(nb_json_equal(o, NULL));
    assert_true(nb_json_remove(copy, "s") && nb_json_remove(copy, "z"));
    t = nb_json_dump(copy, 2, false);
    assert_string_equal(
        t, "{\n  \"a\": [\n    0.1,\n    1e-05,\n    10000.0,\n    0.3333333333333333,\n    null,\n    false,\n    null\n  ]\n}");
    nb_free(t);
    t = nb_json_dump(copy, 0, false);
    assert_string_equal(t, "{\"a\": [0.1, 1e-05, 10000.0, 0.3333333333333333, null, false, null]}");
    nb_free(t);
    assert_false(nb_json_set(o, "x", NULL));
    assert_false(nb_json_push(o, nb_json_new_int(1))); /* not an array: the value is freed */
    assert_false(nb_json_set(NULL, "x", nb_json_new_int(1)));
    assert_null(nb_json_new_str("\xff"));
    nb_json_free(o);
    nb_json_free(back);
    nb_json_free(copy);
}

static void files(void **state)
{
    nb_json *v;
    nb_err e = { 0 };

    (void)state;
    assert_int_equal(nb_json_parse_file("no/such/config.json", 1000, "cfg", &v, &e), NB_EOPEN);
    assert_string_equal(e.file, "no/such/config.json");
    assert_null(v);
    assert_int_equal(nb_json_parse_file("CMakePresets.json", 1 << 20, "cfg", &v, NULL), NB_OK);
    assert_int_equal(nb_json_int(nb_json_get(v, "version"), 0), 6);
    nb_json_free(v);
    nb_err_clear(&e);
    assert_int_equal(nb_json_parse_file("CMakePresets.json", 10, "cfg", &v, &e), NB_ELIMIT);
    assert_string_equal(e.cls, "limit.file");
    nb_err_clear(&e);
    assert_int_equal(nb_json_parse_file("CMakeLists.txt", 1 << 20, "cfg", &v, &e), NB_EFORMAT);
    assert_string_equal(e.file, "CMakeLists.txt");
}

/* U-03: double the hostile input, at most about double the time. */
static void doubling(void **state)
{
    static const struct {
        const char *label, *unit;
    } rows[] = { { "wide integers", "99999999999999999999," }, { "quotes", "\"\\\\\"," }, { "empty objects", "{}," } };

    (void)state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        double t[2];
        for (int k = 0; k < 2; k++) {
            nb_buf b = { 0 };
            double best = 1e9;
            nb_buf_putc(&b, '[');
            for (int i = 0; i < 50000 << k; i++)
                nb_buf_puts(&b, rows[r].unit);
            nb_buf_puts(&b, "0]");
            for (int rep = 0; rep < 3; rep++) {
                const double begin = cpu_now();
                nb_json *v;
                assert_int_equal(nb_json_parse(b.p, b.n, "cfg", 0, &v, NULL), NB_OK);
                nb_json_free(v);
                best = fmin(best, cpu_now() - begin);
            }
            t[k] = best;
            nb_buf_clear(&b);
        }
        if (t[1] > 8 * t[0] + 0.1) /* generous: the machine may be busy; quadratic would show as more time */
            fail_msg("JS-13 %s: %g s, doubled %g s", rows[r].label, t[0], t[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdict_rows),
        cmocka_unit_test(config_rows),
        cmocka_unit_test_setup_teardown(locale_rows, tmp_setup, tmp_teardown),
        cmocka_unit_test(error_tells_the_place),
        cmocka_unit_test(depth),
        cmocka_unit_test(numbers),
        cmocka_unit_test(access_and_defaults),
        cmocka_unit_test(members_in_order),
        cmocka_unit_test(members_from_threads),
        cmocka_unit_test(build_and_dump),
        cmocka_unit_test(files),
        cmocka_unit_test(doubling),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
