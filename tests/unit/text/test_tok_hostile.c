/* test_tok_hostile.c - hostile tokenizers and texts: the TK rows of hardening 5.7, by their IDs. */
#include "vectors.h"

#include <time.h>

#include "base/log.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include "cputime.h"

#define MODEL(more, vocab, merges) "\"model\":{\"type\":\"BPE\"," more "\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define ABC                        "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"<unk>\":6"
#define OK_MODEL                   MODEL("", ABC, "\"a b\",\"ab c\"")
#define REPLACE(p, c)              "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":" p ",\"content\":\"" c "\"}," OK_MODEL "}"
#define SPLIT(re)                                                                                                                          \
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re "\"},\"behavior\":\"Isolated\",\"invert\":false}," OK_MODEL "}"
#define UNIGRAM(list, unk) "{\"model\":{\"type\":\"Unigram\",\"unk_id\":" unk ",\"vocab\":[" list "]}}"
#define CHARSMAP(text)     "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" text "\"}," OK_MODEL "}"
#define ADDED(list)        "{\"added_tokens\":[" list "]," OK_MODEL "}"
#define TOKEN(id, content) "{\"id\":" id ",\"content\":\"" content "\",\"special\":true,\"normalized\":false}"

static const struct {
    const char *label, *json;
    nb_status want;
    const char *cls;
    const char *names; /* must stand in the sentence */
} rows[] = {
    { "TK-01 absent", NULL, NB_EOPEN, "tok.missing", "" },
    { "TK-01 bad JSON", "{\"model\":", NB_EFORMAT, "tok.json", "" },
    { "TK-01 empty", "", NB_EFORMAT, "tok.json", "" },
    { "TK-01 no object", "[]", NB_EFORMAT, "tok.type", "" },
    { "TK-01 no model", "{}", NB_EFORMAT, "tok.type", "" },
    { "TK-02 unknown model", "{\"model\":{\"type\":\"Foo\"}}", NB_EUNSUPPORTED, "tok.unsupported", "Foo" },
    { "TK-02 unknown normalizer", "{\"normalizer\":{\"type\":\"Foo\"}," OK_MODEL "}", NB_EUNSUPPORTED, "tok.unsupported", "Foo" },
    { "TK-02 unknown pre-tokenizer", "{\"pre_tokenizer\":{\"type\":\"Foo\"}," OK_MODEL "}", NB_EUNSUPPORTED, "tok.unsupported", "Foo" },
    { "TK-02 unknown in a sequence", "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Foo\"}]}," OK_MODEL "}",
      NB_EUNSUPPORTED, "tok.unsupported", "Foo" },
    { "TK-02 unknown decoder", "{\"decoder\":{\"type\":\"CTC\"}," OK_MODEL "}", NB_EUNSUPPORTED, "tok.unsupported", "CTC" },
    { "TK-02 unknown post-processor", "{\"post_processor\":{\"type\":\"Foo\"}," OK_MODEL "}", NB_EUNSUPPORTED, "tok.unsupported", "Foo" },
    { "TK-02 unknown version", "{\"version\":\"2.0\"," OK_MODEL "}", NB_EUNSUPPORTED, "tok.unsupported", "2.0" },
    { "TK-03 negative id", "{" MODEL("", "\"a\":-1", "") "}", NB_EFORMAT, "tok.id", "-1" },
    { "TK-03 fractional id", "{" MODEL("", "\"a\":1.5", "") "}", NB_EFORMAT, "tok.id", "" },
    { "TK-03 id 2^31", "{" MODEL("", "\"a\":2147483648", "") "}", NB_EFORMAT, "tok.id", "2147483648" },
    { "TK-03 two tokens one id", "{" MODEL("", "\"a\":0,\"b\":0", "") "}", NB_EFORMAT, "tok.duplicate_id", "" },
    { "TK-03 the same token twice", "{" MODEL("", "\"a\":0,\"a\":1", "") "}", NB_EFORMAT, "tok.duplicate_key", "" },
    { "TK-03 holes", "{" MODEL("", "\"a\":0,\"b\":70", "") "}", NB_OK, "", "" },
    { "TK-04 absent left part", "{" MODEL("", ABC, "\"z b\"") "}", NB_EFORMAT, "tok.merge", "merge 0" },
    { "TK-04 makes an absent token", "{" MODEL("", ABC, "\"a b\",\"b a\"") "}", NB_EFORMAT, "tok.merge", "merge 1" },
    { "TK-04 three parts", "{" MODEL("", ABC, "\"a b a\"") "}", NB_EFORMAT, "tok.merge", "merge 0" },
    { "TK-04 one part", "{" MODEL("", ABC, "\"ab\"") "}", NB_EFORMAT, "tok.merge", "merge 0" },
    { "TK-04 pair of three", "{" MODEL("", ABC, "[\"a\",\"b\",\"c\"]") "}", NB_EFORMAT, "tok.merge", "merge 0" },
    { "TK-04 both forms", "{" MODEL("", ABC, "\"a b\",[\"ab\",\"c\"]") "}", NB_EFORMAT, "tok.merge", "merge 1" },
    { "TK-04 pairs with blanks", "{" MODEL("", "\" \":0,\"a\":1,\" a\":2", "[\" \",\"a\"]") "}", NB_OK, "", "" },
    { "TK-04 version line", "{" MODEL("", ABC, "\"#version: 0.2\",\"a b\"") "}", NB_OK, "", "" },
    { "TK-05 unreachable token", "{" MODEL("", "\"a\":0,\"aaaa\":1", "") "}", NB_OK, "", "" },
    { "TK-06 empty", ADDED(TOKEN("7", "")), NB_EFORMAT, "tok.added", "" },
    { "TK-06 id of another text", ADDED(TOKEN("1", "<x>")), NB_EFORMAT, "tok.duplicate_id", "<x>" },
    { "TK-06 two texts one id", ADDED(TOKEN("7", "<x>") "," TOKEN("7", "<y>")), NB_EFORMAT, "tok.duplicate_id", "<y>" },
    { "TK-06 prefixes of one another", ADDED(TOKEN("7", "<x") "," TOKEN("8", "<x>")), NB_OK, "", "" },
    { "TK-06 regex metacharacters", ADDED(TOKEN("7", "(.*[")), NB_OK, "", "" },
    { "TK-07 invalid", SPLIT("(ab"), NB_EUNSUPPORTED, "tok.regex", "offset" },
    { "TK-07 open set", SPLIT("[ab"), NB_EUNSUPPORTED, "tok.regex", "offset" },
    { "TK-07 unknown property", SPLIT("\\\\p{Foo}"), NB_EUNSUPPORTED, "tok.regex", "offset" },
    { "TK-07 unsupported escape", SPLIT("\\\\y"), NB_EUNSUPPORTED, "tok.regex", "offset" },
    { "TK-12 byte tokens absent", "{" MODEL("\"byte_fallback\":true,", ABC, "") "}", NB_EFORMAT, "tok.byte_fallback", "256" },
    { "TK-12 absent, but unk", "{" MODEL("\"byte_fallback\":true,\"unk_token\":\"<unk>\",", ABC, "") "}", NB_OK, "", "" },
    { "TK-14 vocabulary is a list", "{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", NB_EFORMAT, "tok.type", "vocab" },
    { "TK-14 merges is an object", "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":{\"a\":1}}}", NB_EFORMAT, "tok.arrays", "merges" },
    { "TK-14 merges of numbers", "{" MODEL("", ABC, "1,2") "}", NB_EFORMAT, "tok.arrays", "merges" },
    { "TK-15 id out of range", "{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",99],\"sep\":[\"b\",1]}," OK_MODEL "}",
      NB_EFORMAT, "tok.special_id", "99" },
    { "TK-15 template names an unknown token",
      "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[X]\"}},{\"Sequence\":{\"id\":\"A\"}}],"
      "\"special_tokens\":{}}," OK_MODEL "}",
      NB_EFORMAT, "tok.special_id", "[X]" },
    { "TK-14 vocabulary is an object", "{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", NB_EFORMAT, "tok.type", "vocab" },
    { "TK-14 piece without score", UNIGRAM("[\"a\"]", "0"), NB_EFORMAT, "tok.arrays", "\"a\"" },
    { "TK-14 element is no pair", UNIGRAM("\"a\"", "0"), NB_EFORMAT, "tok.arrays", "element 0" },
    { "TK-14 element of three", UNIGRAM("[\"a\",-1,2]", "0"), NB_EFORMAT, "tok.arrays", "\"a\"" },
    { "TK-14 score is a text", UNIGRAM("[\"a\",\"-1\"]", "0"), NB_EFORMAT, "tok.score", "\"a\"" },
    { "TK-14 score NaN", UNIGRAM("[\"a\",NaN]", "0"), NB_EFORMAT, "tok.score", "\"a\"" },
    { "TK-14 score infinite", UNIGRAM("[\"a\",-1e999]", "0"), NB_EFORMAT, "tok.score", "\"a\"" },
    { "TK-15 unk_id past the vocabulary", UNIGRAM("[\"a\",-1]", "1"), NB_EFORMAT, "tok.special_id", "unk_id" },
    { "TK-16 no character map", CHARSMAP(""), NB_EFORMAT, "tok.charsmap", "0 bytes" },
    { "TK-16 no base64", CHARSMAP("AA*A"), NB_EFORMAT, "tok.charsmap", "base64" },
    { "TK-16 truncated", CHARSMAP("AAQAAAAA"), NB_EFORMAT, "tok.charsmap", "6 bytes" },
    { "TK-16 first place outside", CHARSMAP("BAAAAAAEAAA="), NB_EFORMAT, "tok.charsmap", "outside" },
    { "TK-17 empty pattern", REPLACE("{\"String\":\"\"}", "x"), NB_EFORMAT, "tok.regex", "empty" },
    { "TK-17 pattern of no kind", REPLACE("{}", "x"), NB_EFORMAT, "tok.type", "" },
    { "dropout", "{" MODEL("\"dropout\":0.1,", ABC, "") "}", NB_EUNSUPPORTED, "tok.unsupported", "dropout" },
    { "FixedLength 0", "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}," OK_MODEL "}", NB_EFORMAT, "tok.type", "" },
    { "plain", "{" OK_MODEL "}", NB_OK, "", "" },
};

static void opening(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_tokenizer *t = NULL;
        const nb_status rc = nb_tokenizer_open(rows[i].json, rows[i].json ? strlen(rows[i].json) : 0, NULL, 0, &t, &err);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 || !strstr(err.what, rows[i].names) || (rc == NB_OK) != (t != NULL))
            fail_msg("%s: got %d %s (%s), want %d %s", rows[i].label, rc, err.cls, err.what, rows[i].want, rows[i].cls);
        nb_tokenizer_close(t);
    }
}

static nb_tokenizer *open_json(const char *json, size_t n, const char *config)
{
    nb_err err = { 0 };
    nb_tokenizer *t = NULL;

    if (nb_tokenizer_open(json, n, config, config ? strlen(config) : 0, &t, &err) != NB_OK)
        fail_msg("%s %s", err.cls, err.what);
    return t;
}

static nb_tokenizer *open_gpt2(void)
{
    size_t n;
    char *json = slurp(OWN_DATA "/gpt2", "tokenizer.json", &n);
    nb_tokenizer *t;

    assert_non_null(json);
    t = open_json(json, n, NULL);
    nb_free(json);
    return t;
}

/* Every allocation may fail: an error, nothing lost. */
static void no_memory(void **state)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":\"a\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a+|b\"},\"behavior\":\"Isolated\",\"invert\":false},"
        "\"added_tokens\":[" TOKEN("7", "<x>") "]," OK_MODEL "}";
    (void)state;

    for (uint64_t i = 1; i < 2000; i++) {
        nb_err err = { 0 };
        nb_tokenizer *t = NULL;
        nb_ids ids = { 0 };
        nb_buf out = { 0 };
        nb_status rc;

        nb_mem_fail_at(i);
        rc = nb_tokenizer_open(json, sizeof json - 1, NULL, 0, &t, &err);
        if (rc == NB_OK)
            rc = nb_tokenizer_encode(t, "abc<x>\xc3\xa9", 8, true, true, &ids, &err);
        if (rc == NB_OK)
            rc = nb_tokenizer_decode(t, ids.p, ids.n, false, &out, &err);
        nb_mem_fail_at(0);
        nb_tokenizer_close(t);
        nb_ids_clear(&ids);
        nb_buf_clear(&out);
        if (rc == NB_OK)
            return;
        assert_int_equal(rc, NB_ENOMEM);
    }
    fail_msg("it never came through");
}

/* TK-08: nested quantifiers end with an answer or a limit, in bounded time. */
static void nested_quantifiers(void **state)
{
    static const char json[] = SPLIT("(a+)+b|(?:a|a)*c");
    nb_tokenizer *t = open_json(json, sizeof json - 1, NULL);
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    char text[4000];
    nb_status rc;
    (void)state;

    memset(text, 'a', sizeof text);
    rc = nb_tokenizer_encode(t, text, sizeof text, false, true, &ids, &err);
    if (rc != NB_OK && (rc != NB_ELIMIT || strcmp(err.cls, "limit.regex") != 0))
        fail_msg("TK-08: got %d %s %s", rc, err.cls, err.what);
    nb_ids_clear(&ids);
    nb_tokenizer_close(t);
}

/* exact: decoding must give the text back. */
static double seconds(const nb_tokenizer *t, const char *text, size_t n, bool exact, size_t *n_ids)
{
    nb_ids ids = { 0 };
    nb_buf back = { 0 };
    nb_err err = { 0 };
    const double t0 = cpu_now();
    double dt;

    if (nb_tokenizer_encode(t, text, n, false, true, &ids, &err) != NB_OK)
        fail_msg("%s", err.what);
    dt = cpu_now() - t0;
    assert_int_equal(nb_tokenizer_decode(t, ids.p, ids.n, false, &back, &err), NB_OK);
    if (exact && (back.n != n || memcmp(back.p, text, n) != 0))
        fail_msg("decoding does not give the text back");
    *n_ids = ids.n;
    nb_ids_clear(&ids);
    nb_buf_clear(&back);
    return dt;
}

/* TK-09: long runs of one thing, no repeats, whatever: a million bytes in a second or so, no quadratic growth. */
static void long_runs(void **state)
{
    static const struct {
        const char *label, *unit;
    } units[] = { { "letter", "a" },     { "digit", "7" },          { "space", " " },
                  { "newline", "\n" },   { "CJK", "\xe4\xb8\xad" }, { "joiner", "\xe2\x80\x8d" },
                  { "apostrophe", "'" }, { "zero", NULL } };
    static const struct {
        const char *name;
        bool exact;
    } models[] = { { "gpt2", true }, { "llama3", true }, { "llama2", false }, { "sp-unigram", false }, { "bert-uncased", false } };
    (void)state;

    for (size_t m = 0; m < NB_LEN(models); m++) {
        char dir[256];
        size_t n;
        char *json;
        nb_tokenizer *t;

        snprintf(dir, sizeof dir, "%s/%s", OWN_DATA, models[m].name);
        json = slurp(dir, "tokenizer.json", &n);
        assert_non_null(json);
        t = open_json(json, n, NULL);
        for (size_t u = 0; u < NB_LEN(units); u++) {
            nb_buf b = { 0 };
            size_t k;
            double small, large;
            while (b.n < 1000000) {
                if (units[u].unit)
                    nb_buf_puts(&b, units[u].unit);
                else
                    nb_buf_putc(&b, 0);
            }
            small = seconds(t, b.p, b.n / 12 * 3, models[m].exact, &k);
            large = seconds(t, b.p, b.n / 3 * 3, models[m].exact, &k);
            if (large > 20 || (large > 0.5 && large > 16 * small)) /* four times the text: far from sixteen times the time */
                fail_msg("TK-09 %s, %s: %.2f s, a quarter of it %.2f s", models[m].name, units[u].label, large, small);
            nb_buf_clear(&b);
        }
        nb_tokenizer_close(t);
        nb_free(json);
    }
}

/* TK-09: one piece of 64 KiB that the text begins at every place: a limit, in bounded time. */
static void long_pieces(void **state)
{
    static const char *const before[] = { "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<u>\",0],[\"a\",-1],[\"",
                                          "{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":100000000,\"unk_token\":\"a\","
                                          "\"vocab\":{\"a\":0,\"##a\":1,\"##" };
    static const char *const after[] = { "b\",-1]]}}", "b\":2}}}" };
    (void)state;

    for (size_t i = 0; i < NB_LEN(before); i++) {
        nb_buf json = { 0 }, text = { 0 };
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        nb_tokenizer *t;
        nb_buf_puts(&json, before[i]);
        for (size_t k = 0; k < 65000; k++)
            nb_buf_putc(&json, 'a');
        nb_buf_puts(&json, after[i]);
        t = open_json(json.p, json.n, NULL);
        for (size_t k = 0; k < 300000; k++)
            nb_buf_putc(&text, 'a');
        if (nb_tokenizer_encode(t, text.p, text.n, false, true, &ids, &err) != NB_ELIMIT || strcmp(err.cls, "limit.text") != 0 ||
            ids.n != 0)
            fail_msg("TK-09: %s %s", err.cls, err.what);
        err = (nb_err){ 0 };
        assert_int_equal(nb_tokenizer_encode(t, text.p, 200, false, true, &ids, &err), NB_OK); /* a short one is fine */
        assert_int_equal(ids.n, 200);
        nb_tokenizer_close(t);
        nb_ids_clear(&ids);
        nb_buf_clear(&json);
        nb_buf_clear(&text);
    }
}

/* TK-10: invalid bytes become U+FFFD before encoding. */
static void invalid_text(void **state)
{
    nb_tokenizer *t = open_gpt2();
    nb_ids a = { 0 }, b = { 0 };
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(nb_tokenizer_encode(t, "a\xff\xe2\x82 b", 6, false, true, &a, &err), NB_OK);
    assert_int_equal(nb_tokenizer_encode(t, "a\xef\xbf\xbd\xef\xbf\xbd b", 9, false, true, &b, &err), NB_OK);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.p, b.p, a.n * sizeof *a.p);
    nb_ids_clear(&a);
    nb_ids_clear(&b);
    nb_tokenizer_close(t);
}

/* TK-11: numbers inside names are digits and nothing else. */
static void numbers_in_names(void **state)
{
    static const char json[] = "{\"decoder\":{\"type\":\"ByteFallback\"},\"model\":{\"type\":\"BPE\",\"vocab\":"
                               "{\"<0x41>\":0,\"<0x+1>\":1,\"<0x 1>\":2,\"<0x1>\":3,\"<0x0041>\":4},\"merges\":[]}}";
    static const int32_t ids[] = { 0, 1, 2, 3, 4 };
    static const char *const keys[] = { "+7", " 7", "7x", "0x7", "-7", "99999999999" };
    nb_tokenizer *t = open_json(json, sizeof json - 1, NULL);
    nb_buf out = { 0 };
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(nb_tokenizer_decode(t, ids, NB_LEN(ids), false, &out, &err), NB_OK);
    assert_string_equal(out.p, "A<0x+1><0x 1><0x1><0x0041>");
    nb_buf_clear(&out);
    nb_tokenizer_close(t);
    for (size_t i = 0; i < NB_LEN(keys); i++) {
        char config[160];
        nb_err e = { 0 };
        snprintf(config, sizeof config, "{\"added_tokens_decoder\":{\"%s\":{\"content\":\"<x>\",\"special\":true}}}", keys[i]);
        if (nb_tokenizer_open("{" OK_MODEL "}", strlen("{" OK_MODEL "}"), config, strlen(config), &t, &e) != NB_EFORMAT ||
            strcmp(e.cls, "tok.id") != 0)
            fail_msg("TK-11 key \"%s\": got %s %s", keys[i], e.cls, e.what);
    }
}

/* TK-13: with parse_special off, a control token in the text stays text. TK-06: the longest added token wins. */
static void control_tokens(void **state)
{
    static const char json[] = ADDED(TOKEN("7", "<x") "," TOKEN("8", "<x>"));
    nb_tokenizer *t = open_json(json, sizeof json - 1, NULL);
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(nb_tokenizer_encode(t, "a<x><xb", 7, false, true, &ids, &err), NB_OK);
    assert_int_equal(ids.n, 4);
    assert_int_equal(ids.p[1], 8);
    assert_int_equal(ids.p[2], 7);
    ids.n = 0;
    assert_int_equal(nb_tokenizer_encode(t, "a<x><xb", 7, false, false, &ids, &err), NB_OK);
    assert_int_equal(ids.n, 1); /* the vocabulary has a and b of these characters: they meet and merge */
    assert_int_equal(ids.p[0], 3);
    nb_ids_clear(&ids);
    nb_tokenizer_close(t);
}

/* TK-06: matching stays linear for the tokens that are worst for it. */
static void many_added(void **state)
{
    nb_buf j = { 0 }, text = { 0 };
    nb_tokenizer *t;
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    (void)state;

    nb_buf_puts(&j, "{\"added_tokens\":[" TOKEN("7", "aa"));
    nb_buf_puts(&j, ",{\"id\":8,\"content\":\"a");
    for (int i = 0; i < 60000; i++)
        nb_buf_putc(&j, 'a');
    nb_buf_puts(&j, "b\",\"special\":false,\"normalized\":false}");
    for (int i = 9; i < 20000; i++)
        nb_buf_printf(&j, ",{\"id\":%d,\"content\":\"<extra_%d>\",\"special\":true,\"normalized\":false}", i, i);
    nb_buf_puts(&j, "]," OK_MODEL "}");
    t = open_json(j.p, j.n, NULL);
    for (int i = 0; i < 1000000; i++)
        nb_buf_putc(&text, 'a');
    assert_int_equal(nb_tokenizer_encode(t, text.p, text.n, false, true, &ids, &err), NB_OK);
    assert_int_equal(ids.n, 500000);
    assert_int_equal(ids.p[499999], 7);
    ids.n = 0;
    assert_int_equal(nb_tokenizer_encode(t, "<extra_19999>", 13, false, true, &ids, &err), NB_OK);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.p[0], 19999);
    nb_ids_clear(&ids);
    nb_buf_clear(&j);
    nb_buf_clear(&text);
    nb_tokenizer_close(t);
}

/* TK-17: a rule that makes each character many. */
static void growth(void **state)
{
    static const char head[] = "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"";
    nb_buf j = { 0 };
    nb_tokenizer *t;
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    char text[1000];
    (void)state;

    nb_buf_puts(&j, head);
    for (int i = 0; i < 1000000; i++)
        nb_buf_putc(&j, 'b');
    nb_buf_puts(&j, "\"}," OK_MODEL "}");
    t = open_json(j.p, j.n, NULL);
    memset(text, 'a', sizeof text);
    assert_int_equal(nb_tokenizer_encode(t, text, sizeof text, false, true, &ids, &err), NB_ELIMIT);
    assert_string_equal(err.cls, "limit.normalize");
    assert_int_equal(ids.n, 0);
    nb_ids_clear(&ids);
    nb_buf_clear(&j);
    nb_tokenizer_close(t);
}

/* TK-17: steps that are harmless alone and double the text again and again. */
static void doubling(void **state)
{
    nb_buf j = { 0 };
    nb_tokenizer *t;
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_err err = { 0 };
    static const int32_t a = 0;
    (void)state;

    nb_buf_puts(&j, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}");
    for (int i = 0; i < 60; i++)
        nb_buf_puts(&j, ",{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}");
    nb_buf_puts(&j, "]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}");
    for (int i = 0; i < 60; i++)
        nb_buf_puts(&j, ",{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}");
    nb_buf_puts(&j, "]}," OK_MODEL "}");
    t = open_json(j.p, j.n, NULL);
    assert_int_equal(nb_tokenizer_encode(t, "\xc3\xa9", 2, false, true, &ids, &err), NB_ELIMIT);
    assert_string_equal(err.cls, "limit.normalize");
    nb_err_clear(&err);
    assert_int_equal(nb_tokenizer_decode(t, &a, 1, false, &out, &err), NB_ELIMIT);
    nb_ids_clear(&ids);
    nb_buf_clear(&out);
    nb_buf_clear(&j);
    nb_tokenizer_close(t);
}

/* TK-18: limits of one token and of the vocabulary, at and over. */
static void limits(void **state)
{
    nb_vocab v = { 0 };
    nb_err err = { 0 };
    char *big = nb_calloc(NB_PIECE_MAX + 1, 1);
    bool had;
    (void)state;

    assert_int_equal(nb_vocab_init(&v, 1, &err), NB_OK);
    assert_int_equal(nb_vocab_add(&v, big, NB_PIECE_MAX, 0, &had, &err), NB_OK);
    assert_int_equal(nb_vocab_add(&v, big, NB_PIECE_MAX + 1, 1, &had, &err), NB_ELIMIT);
    assert_string_equal(err.cls, "limit.token");
    nb_err_clear(&err);
    assert_int_equal(nb_vocab_add(&v, "x", 1, NB_VOCAB_MAX - 1, &had, &err), NB_OK);
    assert_int_equal(nb_vocab_add(&v, "y", 1, NB_VOCAB_MAX, &had, &err), NB_ELIMIT);
    assert_string_equal(err.cls, "limit.vocab");
    nb_vocab_clear(&v);
    nb_free(big);
}

/* TK-19: any ids decode to valid UTF-8, whole and streamed; ids nobody has add nothing. */
static void any_ids(void **state)
{
    nb_tokenizer *t = open_gpt2();
    uint32_t x = 1;
    (void)state;

    for (int round = 0; round < 200; round++) {
        nb_buf a = { 0 }, b = { 0 };
        nb_detok *d = NULL;
        int32_t ids[64];
        nb_err err = { 0 };

        assert_int_equal(nb_detok_open(t, false, &d, &err), NB_OK);
        for (size_t i = 0; i < NB_LEN(ids); i++) {
            x = x * 1664525u + 1013904223u;
            ids[i] = round % 4 == 3 ? (int32_t)x : (int32_t)(x >> 8) % 300;
            assert_int_equal(nb_detok_add(d, ids[i], &b, &err), NB_OK);
            assert_int_equal(nb_u8_check(b.p ? b.p : "", b.n), b.n);
        }
        nb_detok_flush(d, &b, &err);
        nb_detok_close(d);
        assert_int_equal(nb_tokenizer_decode(t, ids, NB_LEN(ids), false, &a, &err), NB_OK);
        assert_int_equal(nb_u8_check(a.p ? a.p : "", a.n), a.n);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.p ? a.p : "", b.p ? b.p : "", a.n);
        nb_buf_clear(&a);
        nb_buf_clear(&b);
    }
    nb_tokenizer_close(t);
}

/* TK-20, scaled down: a quarter of a million tokens open in a moment. */
static void large_vocabulary(void **state)
{
    nb_buf j = { 0 };
    nb_tokenizer *t;
    double t0;
    (void)state;

    nb_buf_puts(&j, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 262144; i++)
        nb_buf_printf(&j, "%s\"t%06x\":%d", i ? "," : "", i, i);
    nb_buf_puts(&j, "}}}");
    t0 = cpu_now();
    t = open_json(j.p, j.n, NULL);
    assert_true(cpu_now() - t0 < 10);
    assert_int_equal(nb_tokenizer_size(t), 262144);
    assert_int_equal(nb_tokenizer_id(t, "t03ffff", 7), 262143);
    nb_tokenizer_close(t);
    nb_buf_clear(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),          cmocka_unit_test(no_memory),        cmocka_unit_test(nested_quantifiers),
        cmocka_unit_test(long_runs),        cmocka_unit_test(long_pieces),      cmocka_unit_test(invalid_text),
        cmocka_unit_test(numbers_in_names), cmocka_unit_test(control_tokens),   cmocka_unit_test(many_added),
        cmocka_unit_test(growth),           cmocka_unit_test(doubling),         cmocka_unit_test(limits),
        cmocka_unit_test(any_ids),          cmocka_unit_test(large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
