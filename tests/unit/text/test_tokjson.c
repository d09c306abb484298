/* test_tokjson.c - the cut-out reader takes and refuses the same texts as a JSON parser does. */
#include "vectors.h"

#include "text/tokjson.h"
#include "text/tokmodel.h"

static const struct {
    const char *label, *json; /* a whole tokenizer.json */
    nb_status want;
    const char *cls, *piece; /* piece: text of id 1 when it opens */
} rows[] = {
    { "plain", "{\"model\":{\"vocab\":{\"b\":1},\"merges\":[]}}", NB_OK, "", "b" },
    { "blanks", " { \"model\" : { \"vocab\" : { \"b\" : 1 } , \"merges\" : [ ] } } ", NB_OK, "", "b" },
    { "other members around", "{\"a\":[{\"vocab\":{\"x\":1}}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":1},\"z\":{\"merges\":2}}}",
      NB_OK, "", "b" },
    { "key with an escape", "{\"mod\\u0065l\":{\"voc\\u0061b\":{\"b\":1}}}", NB_OK, "", "b" },
    { "escapes", "{\"model\":{\"vocab\":{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":1}}}", NB_OK, "", "\"\\/\b\f\n\r\t" },
    { "surrogate pair", "{\"model\":{\"vocab\":{\"\\ud83d\\ude00\":1}}}", NB_OK, "", "\xf0\x9f\x98\x80" },
    { "brackets in a text", "{\"model\":{\"vocab\":{\"}]{[\":1}}}", NB_OK, "", "}]{[" },
    { "half a pair", "{\"model\":{\"vocab\":{\"\\ud83d\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "swapped pair", "{\"model\":{\"vocab\":{\"\\ude00\\ud83d\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "bad escape", "{\"model\":{\"vocab\":{\"\\x\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "short escape", "{\"model\":{\"vocab\":{\"\\u12G4\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "control character", "{\"model\":{\"vocab\":{\"a\nb\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "invalid UTF-8", "{\"model\":{\"vocab\":{\"\xff\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "overlong UTF-8", "{\"model\":{\"vocab\":{\"\xc0\x80\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "no comma", "{\"model\":{\"vocab\":{\"a\":0 \"b\":1}}}", NB_EFORMAT, "tok.json", "" },
    { "comma at the end", "{\"model\":{\"vocab\":{\"b\":1,}}}", NB_EFORMAT, "tok.json", "" },
    { "no colon", "{\"model\":{\"vocab\":{\"b\" 1}}}", NB_EFORMAT, "tok.json", "" },
    { "wrong bracket", "{\"model\":{\"vocab\":{\"b\":1]}}", NB_EFORMAT, "tok.json", "" },
    { "leading zero", "{\"model\":{\"vocab\":{\"b\":01}}}", NB_EFORMAT, "tok.json", "" },
    { "minus alone", "{\"model\":{\"vocab\":{\"b\":-}}}", NB_EFORMAT, "tok.json", "" },
    { "key is no text", "{\"model\":{\"vocab\":{1:1}}}", NB_EFORMAT, "tok.json", "" },
    { "ends inside", "{\"model\":{\"vocab\":{\"b\":1", NB_EFORMAT, "tok.json", "" },
    { "ends in a text", "{\"model\":{\"vocab\":{\"b", NB_EFORMAT, "tok.json", "" },
    { "text behind", "{\"model\":{\"vocab\":{\"b\":1}}} x", NB_EFORMAT, "tok.json", "" },
    { "vocab twice", "{\"model\":{\"vocab\":{\"b\":1},\"vocab\":{}}}", NB_EFORMAT, "tok.duplicate_key", "" },
    { "equal after unescaping", "{\"model\":{\"vocab\":{\"b\":1,\"\\u0062\":2}}}", NB_EFORMAT, "tok.duplicate_key", "" },
    { "exponent", "{\"model\":{\"vocab\":{\"b\":1e0}}}", NB_EFORMAT, "tok.id", "" },
    { "id of 40 digits", "{\"model\":{\"vocab\":{\"b\":1111111111111111111111111111111111111111}}}", NB_EFORMAT, "tok.id", "" },
    { "id is a text", "{\"model\":{\"vocab\":{\"b\":\"1\"}}}", NB_EFORMAT, "tok.id", "" },
};

static void reading(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_tokjson j = { 0 };
        nb_vocab v = { 0 };
        nb_err err = { 0 };
        size_t n = 0;
        char *copy = nb_strdup(rows[i].json); /* exactly as long: a byte behind it is a fault under ASan */
        nb_status rc = nb_tokjson_open(copy, strlen(copy), &j, &err);
        const char *s = NULL;

        if (rc == NB_OK)
            rc = nb_vocab_read(&v, &j, &err);
        if (rc == NB_OK)
            s = nb_vocab_piece(&v, 1, &n);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 ||
            (rc == NB_OK && (!s || n != strlen(rows[i].piece) || memcmp(s, rows[i].piece, n) != 0)))
            fail_msg("%s: got %d %s (%s) \"%s\"", rows[i].label, rc, err.cls, err.what, s ? s : "");
        nb_vocab_clear(&v);
        nb_tokjson_clear(&j);
        nb_free(copy);
    }
}

/* Every cut of a good file is refused and touches nothing behind its end. */
static void truncated(void **state)
{
    static const char json[] = "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u00e9\":1,\"\xc3\xa9"
                               "a\":2},\"merges\":[[\"a\",\"b\"]]},\"x\":[1]}";
    (void)state;

    for (size_t n = 0; n < sizeof json - 1; n++) {
        nb_tokjson j = { 0 };
        nb_err err = { 0 };
        char *copy = nb_alloc(n);
        memcpy(copy, json, n);
        assert_int_not_equal(nb_tokjson_open(copy, n, &j, &err), NB_OK);
        nb_tokjson_clear(&j);
        nb_free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading),
        cmocka_unit_test(truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
