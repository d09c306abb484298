/* JS-02: what is and what is not JSON, construct by construct: for every place of the grammar a text that leaves it the usual way.
 * Where this page decides otherwise than the grammar (equal keys, an escaped NUL in a key) test_json.c has the rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"

typedef struct text {
    const char *p;
    size_t n;
} text;

#define T(lit)                                                                                                                             \
    {                                                                                                                                      \
        lit, sizeof(lit) - 1                                                                                                               \
    }

static const text refused[] = {
    /* arrays */
    T("[1 true]"),
    T("[a\xe5]"),
    T("[\"\": 1]"),
    T("[\"\"],"),
    T("[,1]"),
    T("[1,,2]"),
    T("[\"x\",,]"),
    T("[\"x\"]]"),
    T("[\"\",]"),
    T("[\"x\""),
    T("[x"),
    T("[3[4]]"),
    T("[\xff]"),
    T("[1:2]"),
    T("[,]"),
    T("[-]"),
    T("[   , \"\"]"),
    T("[\"a\",\n4\n,1,"),
    T("[1,]"),
    T("[1,,]"),
    T("[\"\va\"\\f]"),
    T("[*]"),
    T("[\"\""),
    T("[1,"),
    T("[1,\n1\n,1"),
    T("[{}"),
    T("[1"),
    T("[\"a"),
    T("[,"),
    T("[{"),
    T("["),
    T("[<null>]"),
    T("[1]x"),
    T("[1]]"),
    T("[\"asd]"),
    T("[][]"),
    T("]"),
    T("1]"),
    T("[\0]"),
    T("[\x0c]"),
    T("[\xe2\x81\xa0]"),
    T("[\\u000A\"\"]"),
    /* words */
    T("[fals]"),
    T("[nul]"),
    T("[tru]"),
    T("[True]"),
    T("[NULL]"),
    T("[ false, nul"),
    T("[ true, fals"),
    T("[ false, tru"),
    T("nulll"),
    T("truefalse"),
    T("[undefined]"),
    T("abc"),
    T("[None]"),
    /* numbers */
    T("123\0"),
    T("[++1234]"),
    T("[+1]"),
    T("[+Inf]"),
    T("[-01]"),
    T("[-1.0.]"),
    T("[-2.]"),
    T("[-NaN]"),
    T("[.-1]"),
    T("[.2e-3]"),
    T("[0.1.2]"),
    T("[0.3e+]"),
    T("[0.3e]"),
    T("[0.e1]"),
    T("[0E+]"),
    T("[0E]"),
    T("[0e+]"),
    T("[0e]"),
    T("[1.0e+]"),
    T("[1.0e-]"),
    T("[1.0e]"),
    T("[1 000.0]"),
    T("[1eE2]"),
    T("[2.e+3]"),
    T("[2.e-3]"),
    T("[2.e3]"),
    T("[9.e+]"),
    T("[Inf]"),
    T("[NaN]"),
    T("[\xef\xbc\x91]"),
    T("[1+2]"),
    T("[0x1]"),
    T("[0x42]"),
    T("[Infinity]"),
    T("[0e+-1]"),
    T("[-123.123foo]"),
    T("[123\xe5]"),
    T("[1e1\xe5]"),
    T("[0\xe5\n]"),
    T("[-Infinity]"),
    T("[-foo]"),
    T("[- 1]"),
    T("[-012]"),
    T("[-.123]"),
    T("[-1x]"),
    T("[1ea]"),
    T("[1e\xe5]"),
    T("[1.]"),
    T("[.123]"),
    T("[1.2a-3]"),
    T("[1.5H-308]"),
    T("[012]"),
    T("[1_000]"),
    T("[1,5.]"),
    T("[0b1]"),
    T("[0o7]"),
    T("[--1]"),
    T("[1e5.5]"),
    T("[00]"),
    T("2@"),
    T("[1l]"),
    T("[1f]"),
    /* objects */
    T("[\"x\", truth]"),
    T("{[: \"x\"}\n"),
    T("{\"x\", null}"),
    T("{\"x\"::\"b\"}"),
    T("{\xf0\x9f\x87\xa8}"),
    T("{\"a\":\"a\" 123}"),
    T("{key: 'value'}"),
    T("{\"\xb9\":\"0\"}"),
    T("{\"a\" b}"),
    T("{:\"b\"}"),
    T("{\"a\" \"b\"}"),
    T("{\"a\":"),
    T("{\"a\""),
    T("{1:1}"),
    T("{9999E9999:1}"),
    T("{null:null}"),
    T("{\"id\":0,,,,,}"),
    T("{'a':0}"),
    T("{\"id\":0,}"),
    T("{\"a\":\"b\"}/**/"),
    T("{\"a\":\"b\"}/**//"),
    T("{\"a\":\"b\"}//"),
    T("{\"a\":\"b\"}/"),
    T("{\"a\":\"b\",,\"c\":\"d\"}"),
    T("{a: \"b\"}"),
    T("{\"a\":\"a"),
    T("{ \"foo\" : \"bar\", \"a\" }"),
    T("{\"a\":\"b\"}#"),
    T("{\"a\":\"b\"}#{}"),
    T("{"),
    T("{]"),
    T("{,"),
    T("{["),
    T("{\"a"),
    T("{'a'"),
    T("{}}"),
    T("{\"\":"),
    T("{\"a\":/*x*/\"b\"}"),
    T("{\"a\": true} \"x\""),
    T("{\"x\": true,"),
    T("{\"asd\":\"asd\""),
    T("{true:1}"),
    T("{[]:1}"),
    T("{\"a\":1 \"b\":2}"),
    T("{\"a\"=1}"),
    T("{\"a\":1;\"b\":2}"),
    T("{\"a\":}"),
    T("{\"a\":,}"),
    /* strings */
    T(" "),
    T("[\"\\uD800\\\"]"),
    T("[\"\\uD800\\u\"]"),
    T("[\"\\uD800\\u1\"]"),
    T("[\"\\uD800\\u1x\"]"),
    T("[\xc3\xa9]"),
    T("[\"\\\0\"]"),
    T("[\"\\x00\"]"),
    T("[\"\\\\\\\"]"),
    T("[\"\\\t\"]"),
    T("[\"\\\xf0\x9f\x8c\x80\"]"),
    T("[\"\\\"]"),
    T("[\"\\u00A\"]"),
    T("[\"\\uD834\\uDd\"]"),
    T("[\"\\uD800\\uD800\\x\"]"),
    T("[\"\\u\xe5\"]"),
    T("[\"\\a\"]"),
    T("[\"\\uqqqq\"]"),
    T("[\"\\\xe5\"]"),
    T("[\\u0020\"asd\"]"),
    T("[\\n]"),
    T("\""),
    T("['single quote']"),
    T("[\"\\"),
    T("[\"a\0a\"]"),
    T("[\"new\nline\"]"),
    T("[\"\t\"]"),
    T("\"\\UA66D\""),
    T("\"\"x"),
    T("[\"\x1f\"]"),
    T("[\"\\v\"]"),
    T("[\"\\0\"]"),
    T("[\"\\'\"]"),
    T("[\"a\" \"b\"]"),
    T("[\"\\u12\"]"),
    T("[\"\\u-123\"]"),
    T("[\"\\u 123\"]"),
    T("[\"\\{[\"\\{"),
    T("[\"\\ud800\\n\"]"),
    T("[\"\\udc00\"]"),
    T("[\"\\ud800abc\"]"),
    T("[`a`]"),
    /* bytes that are no UTF-8, and texts that are no UTF-8 at all */
    T("[\"\xe0\x80\xaf\"]"),
    T("[\"\xf8\x88\x80\x80\x80\"]"),
    T("[\"\xfe\"]"),
    T("[\"\xc0\x80\"]"),
    T("[\"\xf4\x90\x80\x80\"]"),
    T("[\"\xed\xbf\xbf\"]"),
    T("[\"\xe9\"]"),
    T("[\"\x81\"]"),
    T("\xff\xfe[\0\"\0\xe9\0\"\0]\0"),
    T("\0[\0\"\0\xe9\0\"\0]"),
    T("\xe9"),
    T("\xef\xbb{}"),
    T("\xe5"),
    T("\xc3\xa5"),
    T("\xef\xbb\xbf"),
    T("\xef\xbb\xbf{}"),
    /* around the value */
    T("<.>"),
    T("a\xc3\xa5"),
    T("*"),
    T("['"),
    T("{}x"),
    T("[] []"),
    T("1 2"),
    T("\"a\" \"b\""),
    T("[]\0"),
    T("#{}"),
    T("//\n[]"),
    T("/* */[]"),
    T("[]\v"),
    T("\xc2\xa0[]"),
    T("[]\x1a"),
    T(",[]"),
    T("()"),
};

static const text accepted[] = {
    T("[[]   ]"),
    T("[\"\"]"),
    T("[]"),
    T("[\"a\"]"),
    T("[false]"),
    T("[null, 1, \"1\", {}]"),
    T("[null]"),
    T("[1\n]"),
    T(" [1]"),
    T("[1,null,null,null,2]"),
    T("[2] "),
    T("[0e+1]"),
    T("[0e1]"),
    T("[ 4]"),
    T("[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    T("[20e1]"),
    T("[-0]"),
    T("[-123]"),
    T("[-1]"),
    T("[1E22]"),
    T("[1E-2]"),
    T("[1E+2]"),
    T("[123e45]"),
    T("[123.456e78]"),
    T("[1e-2]"),
    T("[1e+2]"),
    T("[123]"),
    T("[123.456789]"),
    T("[0.0]"),
    T("[-0.0]"),
    T("[0e-0]"),
    T("[1.0E+01]"),
    T("[9223372036854775807]"),
    T("[-9223372036854775808]"),
    T("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"),
    T("{\"asd\":\"sdf\"}"),
    T("{}"),
    T("{\"\":0}"),
    T("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    T("{\"x\":[{\"id\": \"xxxx\"}], \"id\": \"yyyy\"}"),
    T("{\"a\":[]}"),
    T("{\"title\":\"\\u041f\\u043e\"}"),
    T("{\n\"a\": \"b\"\n}"),
    T("{\"a\":{\"a\":{\"a\":1}}}"),
    T("{\"A\":1,\"a\":2}"),
    T("[\"\\u0060\\u012a\\u12AB\"]"),
    T("[\"\\uD801\\udc37\"]"),
    T("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    T("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    T("[\"\\\\u0000\"]"),
    T("[\"\\\"\"]"),
    T("[\"a/*b*/c/*d//e\"]"),
    T("[\"\\\\a\"]"),
    T("[\"\\\\n\"]"),
    T("[\"\\u0012\"]"),
    T("[\"\\uFFFF\"]"),
    T("[\"asd\"]"),
    T("[ \"asd\"]"),
    T("[\"\\uDBFF\\uDFFF\"]"),
    T("[\"new\\u00A0line\"]"),
    T("[\"\xf4\x8f\xbf\xbf\"]"),
    T("[\"\xef\xbf\xbf\"]"),
    T("[\"\\u0000\"]"),
    T("[\"\\u002c\"]"),
    T("[\"\xcf\x80\"]"),
    T("[\"\xf0\x9b\xbf\xbf\"]"),
    T("\" \""),
    T("[\"\\uD834\\uDd1e\"]"),
    T("[\"\\u0821\"]"),
    T("[\"\\u0123\"]"),
    T("[\"\xe2\x80\xa8\"]"),
    T("[\"\xe2\x80\xa9\"]"),
    T("[\"\\u0061\\u30af\\u30EA\\u30b9\"]"),
    T("[\"new\\u000Aline\"]"),
    T("[\"\x7f\"]"),
    T("[\"\\uA66D\"]"),
    T("[\"\\u005C\"]"),
    T("[\"\xe2\x8d\x82\xe3\x88\xb4\"]"),
    T("[\"\\u0022\"]"),
    T("[\"\\uDBFF\\uDFFE\"]"),
    T("[\"\\u200B\"]"),
    T("[\"\\u2064\"]"),
    T("[\"\\uFDD0\"]"),
    T("[\"\\uFFFE\"]"),
    T("[\"\xe2\x82\xac\xf0\x9d\x84\x9e\"]"),
    T("[\"a\x7f\x61\"]"),
    T("[\"\xc2\x80\"]"),
    T("[\"\xe0\xa0\x80\"]"),
    T("[\"\xed\x9f\xbf\"]"),
    T("[\"\xee\x80\x80\"]"),
    T("[\"\xf0\x90\x80\x80\"]"),
    T("false"),
    T("42"),
    T("-0.1"),
    T("null"),
    T("\"asd\""),
    T("true"),
    T("\"\""),
    T("[\"a\"]\n"),
    T("[true]"),
    T(" [] "),
    T("\t\r\n {\t\"a\"\r:\n1 }\n"),
    T("[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]"),
};

/* Where the grammar leaves it open. */
static const struct {
    text t;
    nb_status rc;
} pinned[] = {
    { T("[123.456e-789]"), NB_OK },
    { T("[123123e-10000000]"), NB_OK },
    { T("[1.5e+9999]"), NB_EFORMAT },
    { T("[-1e+9999]"), NB_EFORMAT },
    { T("[123123e100000]"), NB_EFORMAT },
    { T("[0.4e00669999999999999999]"), NB_EFORMAT },
    { T("[\"\\uD800\"]"), NB_EFORMAT },
    { T("[\"\\uDADA\"]"), NB_EFORMAT },
    { T("[\"\\uD888\\u1234\"]"), NB_EFORMAT },
    { T("[\"\\uDd1e\\uD834\"]"), NB_EFORMAT },
    { T("[\"\xff\"]"), NB_EFORMAT },
    { T("[\"\xe6\x97\xa5\xd1\x88\xfa\"]"), NB_EFORMAT },
};

static void judge(const text *t, nb_status want, const char *table, size_t row)
{
    nb_json *v = NULL;
    nb_err e = { 0 };
    char *exact = nb_alloc(t->n), esc[NB_ESC_CAP]; /* of exactly this size, so that a read past the end shows */
    nb_status rc;

    memcpy(exact, t->p, t->n);
    rc = nb_json_parse(exact, t->n, "cfg", 0, &v, &e);
    if (rc != want || (v != NULL) != (rc == NB_OK))
        fail_msg("%s %zu: %s gives %d, %s", table, row, nb_esc(esc, sizeof esc, t->p, t->n), (int)rc, e.what);
    nb_json_free(v);
    nb_free(exact);
}

static void texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(refused); i++)
        judge(&refused[i], NB_EFORMAT, "JS-02 refused", i);
    for (size_t i = 0; i < NB_LEN(accepted); i++)
        judge(&accepted[i], NB_OK, "JS-02 accepted", i);
    for (size_t i = 0; i < NB_LEN(pinned); i++)
        judge(&pinned[i].t, pinned[i].rc, "JS-02 open", i);
}

/* Every accepted text is refused at every cut, but where what is left is whole. */
static void cuts(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(accepted); i++)
        for (size_t n = 0; n < accepted[i].n; n++) {
            nb_json *v = NULL;
            char *exact = nb_alloc(n ? n : 1);
            nb_status rc;
            memcpy(exact, accepted[i].p, n);
            rc = nb_json_parse(exact, n, "cfg", 0, &v, NULL);
            if (rc == NB_OK && (accepted[i].p[accepted[i].n - 1] == ']' || accepted[i].p[accepted[i].n - 1] == '}'))
                fail_msg("JS-02 accepted %zu: its first %zu bytes too", i, n);
            nb_json_free(v);
            nb_free(exact);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(texts), cmocka_unit_test(cuts) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
