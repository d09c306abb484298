/* test_grammar.c - structured output: which texts each constraint takes, refused ones, masks against single tokens. */
#include "vectors.h"

#include <stdbool.h>
#include <time.h>

#include "text/grammar.h"

/* ---- texts ---- */

static nb_status compile(nb_gkind kind, const char *src, const nb_gvocab *v, const nb_glimits *lim, nb_grammar **g, nb_err *err)
{
    nb_json *j = NULL;
    nb_status rc = NB_OK;

    *g = NULL;
    if (kind == NB_G_JSON)
        return nb_grammar_new_json(v, lim, g, err);
    if (kind == NB_G_REGEX)
        return nb_grammar_new_regex(v, src, strlen(src), lim, g, err);
    if (kind == NB_G_EBNF)
        return nb_grammar_new_ebnf(v, src, strlen(src), lim, g, err);
    if (nb_json_parse(src, strlen(src), "json", 0, &j, err) != NB_OK)
        fail_msg("%s: %s", src, err->what);
    rc = kind == NB_G_SCHEMA ? nb_grammar_new_schema(v, j, lim, g, err) : nb_grammar_new_choice(v, j, lim, g, err);
    nb_json_free(j);
    return rc;
}

static bool takes(nb_grammar *g, const char *text)
{
    nb_gstate *s = NULL;
    bool yes;

    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    yes = nb_gstate_bytes(s, text, strlen(text), NULL) == NB_OK && nb_gstate_may_end(s);
    nb_gstate_close(s);
    return yes;
}

#define MOST 12
static const struct {
    const char *label;
    nb_gkind kind;
    const char *src, *yes[MOST], *no[MOST];
} rows[] = {
    { "json object",
      NB_G_JSON,
      "",
      { "{}", " { }", "{\"a\":1}", "{\"a\": [1, 2.5e3, \"x\\n\\u00e9\\ud83d\\ude00\", null, {\"b\":{}}]}" },
      { "", "[]", "1", "{\"a\"}", "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\t\"}", "{a:1}" } },
    { "any value", NB_G_SCHEMA, "true", { "1", "\"x\"", "[]", "null", "-0.5E+1" }, { "", "nul", "+1", "1." } },
    { "null", NB_G_SCHEMA, "{\"type\":\"null\"}", { "null" }, { "1" } },
    { "types", NB_G_SCHEMA, "{\"type\":[\"integer\",\"null\"]}", { "null", "-12", "0" }, { "1.5", "-", "00" } },
    { "number",
      NB_G_SCHEMA,
      "{\"type\":\"number\"}",
      { "0", "-0", "1.50", "1e5", "12345678901234567890" },
      { ".5", "1.e5", "0x1", "NaN" } },
    { "integer bounds",
      NB_G_SCHEMA,
      "{\"type\":\"integer\",\"minimum\":-13,\"maximum\":205}",
      { "-13", "-9", "-1", "0", "7", "99", "100", "199", "205" },
      { "-14", "-20", "-100", "206", "210", "300", "1000", "-0", "07" } },
    { "integer least",
      NB_G_SCHEMA,
      "{\"type\":\"integer\",\"exclusiveMinimum\":9}",
      { "10", "11", "99", "100", "12345678901" },
      { "9", "1", "0", "-1" } },
    { "integer most", NB_G_SCHEMA, "{\"type\":\"integer\",\"maximum\":-5}", { "-5", "-6", "-10", "-123" }, { "-4", "0", "5", "-1" } },
    { "integer, bounds with a fraction",
      NB_G_SCHEMA,
      "{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.9}",
      { "2", "3" },
      { "1", "4", "0", "-2" } },
    { "number bounds",
      NB_G_SCHEMA,
      "{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":3.5}",
      { "-1.25", "-1.250", "-1.2", "-1", "-0.3", "0", "0.0", "3", "3.4999", "3.0", "2.75" },
      { "-1.26", "-1.3", "-2", "3.5", "3.50", "3.6", "4", "3." } },
    { "number in one whole",
      NB_G_SCHEMA,
      "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.5}",
      { "0.25", "0.3", "0.5", "0.500", "0.4999" },
      { "0", "0.2", "0.24", "0.51", "0.501", "1", "-0.3" } },
    { "number above",
      NB_G_SCHEMA,
      "{\"type\":\"number\",\"exclusiveMinimum\":0}",
      { "0.001", "1", "10.5", "99" },
      { "0", "0.0", "0.000", "-1" } },
    { "number, exponent in the bound",
      NB_G_SCHEMA,
      "{\"type\":\"number\",\"maximum\":1.5e-3,\"minimum\":0}",
      { "0.0015", "0.001", "0" },
      { "0.0016", "0.01" } },
    { "length",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
      { "\"ab\"", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"", "\"\\n\\\"\"", "\"\\ud83d\\ude00a\"" },
      { "\"a\"", "\"abcd\"", "\"\"" } },
    { "long length",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"minLength\":70,\"maxLength\":1000000000}",
      { "\"0123456789012345678901234567890123456789012345678901234567890123456789\"" },
      { "\"012345678901234567890123456789012345678901234567890123456789012345678\"" } },
    { "pattern",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\"?$\"}",
      { "\"a\"", "\"abc\"", "\"ab\\\"\"" },
      { "\"\"", "\"ad\"", "\"ab\"\"" } },
    { "pattern anywhere", NB_G_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b{2}\"}", { "\"bb\"", "\"abba\"" }, { "\"bab\"" } },
    { "pattern at the beginning or the end",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"pattern\":\"^a|b$\"}",
      { "\"ax\"", "\"xb\"", "\"a\"" },
      { "\"xa\"", "\"bx\"" } },
    { "date", NB_G_SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", { "\"2024-02-29\"" }, { "\"2024-13-01\"", "\"24-01-01\"" } },
    { "date-time",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"format\":\"date-time\"}",
      { "\"2024-02-29T23:59:60Z\"", "\"2024-02-29T00:00:00.123+01:00\"" },
      { "\"2024-02-29\"", "\"2024-02-29T24:00:00Z\"" } },
    { "uuid",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"format\":\"uuid\"}",
      { "\"123e4567-e89b-12d3-a456-426614174000\"" },
      { "\"123e4567\"" } },
    { "email", NB_G_SCHEMA, "{\"type\":\"string\",\"format\":\"email\"}", { "\"a.b@c-d.org\"" }, { "\"a@\"", "\"@b\"", "\"a b@c\"" } },
    { "ipv4", NB_G_SCHEMA, "{\"type\":\"string\",\"format\":\"ipv4\"}", { "\"127.0.0.255\"" }, { "\"127.0.0.256\"", "\"1.2.3\"" } },
    { "ipv6",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"format\":\"ipv6\"}",
      { "\"::\"", "\"::1\"", "\"fe80::1\"", "\"1:2:3:4:5:6:7:8\"" },
      { "\"1:2\"", "\":::\"", "\"1:2:3:4:5:6:7:8:9\"" } },
    { "duration",
      NB_G_SCHEMA,
      "{\"type\":\"string\",\"format\":\"duration\"}",
      { "\"P3Y6M4DT12H30M5S\"", "\"PT5M\"", "\"P2W\"" },
      { "\"P\"", "\"PT\"" } },
    { "uri", NB_G_SCHEMA, "{\"type\":\"string\",\"format\":\"uri\"}", { "\"https://a.b/c?d=e#f\"" }, { "\"a b\"", "\"//x\"" } },
    { "array",
      NB_G_SCHEMA,
      "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
      { "[1]", "[1,2]", "[ 1 , 2 ,\n3 ]" },
      { "[]", "[1,2,3,4]", "[\"a\"]", "[1,]" } },
    { "array without end", NB_G_SCHEMA, "{\"items\":{\"type\":\"null\"}}", { "[]", "[null,null,null,null,null]" }, { "[1]", "{}" } },
    { "no array but an empty one", NB_G_SCHEMA, "{\"type\":\"array\",\"items\":false}", { "[]" }, { "[1]" } },
    { "prefix",
      NB_G_SCHEMA,
      "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":"
      "3}",
      { "[1]", "[1,\"a\"]", "[1,\"a\",null]" },
      { "[]", "[2]", "[1,1]", "[1,\"a\",null,null]", "[1,\"a\",1]" } },
    { "prefix that is all",
      NB_G_SCHEMA,
      "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":2}",
      { "[1,2]" },
      { "[1]", "[1,2,3]" } },
    { "object in order",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":\"null\"}},"
      "\"required\":[\"b\"],\"additionalProperties\":false}",
      { "{\"b\":true}", "{\"a\":1,\"b\":false}", "{\"a\":1,\"b\":false,\"c\":null}", "{\"b\":true,\"c\":null}", "{ \"b\" : true\n}" },
      { "{}", "{\"a\":1}", "{\"c\":null,\"b\":true}", "{\"b\":true,\"d\":1}", "{\"b\":true,}", "{,\"b\":true}" } },
    { "no property is wanted",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"additionalProperties\":false}",
      { "{}", "{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}" },
      { "{\"b\":null,\"a\":null}", "{\"a\":null,\"a\":null}" } },
    { "other properties",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"},\"a\\\"\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
      "\"integer\"}}",
      { "{}", "{\"x\":1}", "{\"ab\":null,\"abc\":2,\"a\":3,\"\":4}", "{\"a\\\"\":null}", "{\"a\\\"b\":1}", "{\"b\":1}" },
      { "{\"ab\":1}", "{\"x\":null}", "{\"x\":1,\"ab\":null}", "{\"a\\\"\":1}", "{\"\\u0061b\":1}" } },
    { "any properties", NB_G_SCHEMA, "{\"type\":\"object\"}", { "{}", "{\"a\":[{}]}" }, { "[]" } },
    { "wanted without being described",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"required\":[\"k\"],\"additionalProperties\":{\"type\":\"null\"}}",
      { "{\"k\":null}", "{\"k\":null,\"l\":null}" },
      { "{}", "{\"l\":null}", "{\"k\":1}" } },
    { "enum",
      NB_G_SCHEMA,
      "{\"enum\":[\"red\",\"re\",\"green\",1,null,[1,{\"a\":\"b\"}]]}",
      { "\"red\"", "\"re\"", "\"green\"", "1", "null", "[1, {\"a\": \"b\"}]" },
      { "\"r\"", "\"\"", "2", "\"greens\"" } },
    { "enum with its type", NB_G_SCHEMA, "{\"type\":\"string\",\"enum\":[\"a\",1,\"b\\\"\\n\"]}", { "\"a\"", "\"b\\\"\\n\"" }, { "1" } },
    { "const", NB_G_SCHEMA, "{\"const\":{\"x\":[true,2.5]}}", { "{\"x\":[true,2.5]}", "{ \"x\" : [ true , 2.5 ] }" }, { "{}" } },
    { "anyOf",
      NB_G_SCHEMA,
      "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"default\":null,\"title\":\"T\"}",
      { "\"\"", "null" },
      { "1" } },
    { "anyOf beside keywords",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"properties\":{\"b\":{\"const\":"
      "1}},"
      "\"required\":[\"b\"]}]}",
      { "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"b\":1}" },
      { "{}", "{\"c\":1}", "{\"b\":2}" } },
    { "oneOf", NB_G_SCHEMA, "{\"oneOf\":[{\"const\":1},{\"const\":2}]}", { "1", "2" }, { "3" } },
    { "allOf",
      NB_G_SCHEMA,
      "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
      "{\"properties\":{\"b\":{\"type\":\"null\"},\"a\":{\"maximum\":5}},\"required\":[\"b\"]}]}",
      { "{\"a\":5,\"b\":null}" },
      { "{\"a\":6,\"b\":null}", "{\"a\":1}", "{\"b\":null}" } },
    { "allOf of scalars",
      NB_G_SCHEMA,
      "{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"type\":\"number\",\"minimum\":3},{\"maximum\":8},{\"minimum\":5}]}",
      { "5", "8" },
      { "4", "9", "\"a\"" } },
    { "references",
      NB_G_SCHEMA,
      "{\"$defs\":{\"p/q\":{\"type\":\"integer\"}},\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/p~1q\"}}",
      { "[1,2]" },
      { "[null]" } },
    { "reference beside keywords",
      NB_G_SCHEMA,
      "{\"$defs\":{\"n\":{\"type\":\"integer\"}},\"$ref\":\"#/$defs/n\",\"maximum\":3,\"description\":\"d\"}",
      { "3" },
      { "4", "\"\"" } },
    { "SO-03 a tree",
      NB_G_SCHEMA,
      "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"l\":{\"$ref\":\"#/"
      "$defs/t\"},"
      "\"r\":{\"$ref\":\"#/$defs/t\"}},\"required\":[\"v\"],\"additionalProperties\":false}}}",
      { "{\"v\":1}", "{\"v\":1,\"l\":{\"v\":2,\"r\":{\"v\":3}},\"r\":{\"v\":4}}" },
      { "{\"l\":{}}", "{\"v\":1,\"l\":{}}" } },
    { "SO-03 the whole again", NB_G_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", { "[]", "[[],[[[]]]]" }, { "[1]" } },
    { "false where it may be left out",
      NB_G_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{\"type\":\"null\"}},\"additionalProperties\":false}",
      { "{}", "{\"b\":null}" },
      { "{\"a\":null}" } },
    { "SO-12 blanks",
      NB_G_SCHEMA,
      "{\"type\":\"array\",\"items\":false}",
      { "[ ]", "[\n\t ]", "[                                                                ]" },
      { "[                                                                 ]", "[] " } },

    { "text", NB_G_REGEX, "yes|no", { "yes", "no" }, { "", "ye", "yesno" } },
    { "repeats", NB_G_REGEX, "a{2}b{1,2}c{2,}d?e*f+", { "aabccf", "aabbcccdeeff" }, { "abccf", "aabcf", "aabcc" } },
    { "lazy", NB_G_REGEX, "a+?b??", { "a", "aab" }, { "b" } },
    { "classes", NB_G_REGEX, "[^a-c\\d][\\w-]\\s\\S\\D\\W.", { "xa \xC3\xA9x!\xE2\x82\xAC" }, { "ba axxx", "xa axx\n" } },
    { "groups", NB_G_REGEX, "^(?:(a)(?<n>b)(?P<m>c))+$", { "abc", "abcabc" }, { "ab", "" } },
    { "characters",
      NB_G_REGEX,
      "\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\.\\\\\\/[\\]\\-]{2}",
      { "A\xC3\xA9\xF0\x9F\x98\x80\xF0\x9F\x98\x80.\\/]-" },
      { "A" } },
    { "ranges of UTF-8",
      NB_G_REGEX,
      "[\\u0070-\\u{1F600}]+",
      { "p\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF0\x9F\x98\x80" },
      { "o", "\xF0\x9F\x98\x81", "\xED\xA0\x80", "\xC1\xB0", "\xE0\x80\xB0" } },
    { "a brace that is no repeat", NB_G_REGEX, "a{,b}{", { "a{,b}{" }, { "a" } },
    { "SO-06 10^9 repeats", NB_G_REGEX, "(ab){3,1000000000}", { "ababab", "abababababababab" }, { "abab", "aba" } },
    { "SO-07 nested repeats", NB_G_REGEX, "((a{0,30}b?){0,50}c*){0,20}", { "", "aaab", "abaabccab", "cccc" }, { "d", "ad" } },
    { "SO-07 nothing repeated", NB_G_REGEX, "(()*|(a?){0,1000}){2,500}b", { "b", "ab", "aaab" }, { "a", "c" } },
    { "SO-07 (a+)+", NB_G_REGEX, "((a+)+)+b", { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab" }, { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" } },

    { "choice",
      NB_G_CHOICE,
      "[\"a\",\"ab\",\"abc\",\"b\",\"\xC3\xA9\",\"a\"]",
      { "a", "ab", "abc", "b", "\xC3\xA9" },
      { "", "c", "abcd", "\xC3" } },

    { "GBNF",
      NB_G_EBNF,
      "# a sum\nroot ::= term ([-+] term)* \"\\n\"?\nterm  ::= num | \"(\" root \")\"\nnum ::= [0-9]+ ( \".\" [0-9]{1,2} )?\n",
      { "1", "1+2.5", "(1+(2-3))+4\n" },
      { "", "1+", "(1", "1.234", "a" } },
    { "GBNF of every form",
      NB_G_EBNF,
      "root ::= \"\\\"\\x41\\u00e9\" [^\"\\]a-c]{2} |\n  . opt? \"end\"\nopt ::= \"x\"+\n  | \"\"",
      { "\"A\xC3\xA9"
        "de",
        "\xE2\x82\xAC"
        "end",
        "qxxend" },
      { "\"A\xC3\xA9"
        "ad",
        "end", "qx" } },
    { "Lark",
      NB_G_EBNF,
      "// words\n?start: word (\",\" word)* [tail]\n    | NUMBER -> n\nword: \"a\"..\"c\" /[x-z]+/ \"Q\"i~1..2\ntail: \"!\"~3\n%import "
      "common.NUMBER\nA.2: \"b\"\n",
      { "axQ", "byyqQ,czq!!!", "12.5" },
      { "ax", "axQ!!", "dxq", "" } },
};

static void test_rows(void **state)
{
    int bad = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_grammar *g = NULL;
        nb_err err = { 0 };
        if (compile(rows[i].kind, rows[i].src, NULL, NULL, &g, &err) != NB_OK) {
            print_message("not ok %s: %s %s\n", rows[i].label, err.cls, err.what);
            bad++;
            continue;
        }
        for (size_t k = 0; k < MOST; k++) {
            if (rows[i].yes[k] && !takes(g, rows[i].yes[k])) {
                print_message("not ok %s: does not take %s\n", rows[i].label, rows[i].yes[k]);
                bad++;
            }
            if (rows[i].no[k] && takes(g, rows[i].no[k])) {
                print_message("not ok %s: takes %s\n", rows[i].label, rows[i].no[k]);
                bad++;
            }
        }
        nb_grammar_unref(g);
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
