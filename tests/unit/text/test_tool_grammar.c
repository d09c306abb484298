/* test_tool_grammar.c - tool calls as grammars, read back by the parser of their format. */
#include "vectors.h"

#include <stdbool.h>

#include "text/tool_grammar.h"

static nb_json *parse(const char *text)
{
    nb_json *v = NULL;
    nb_err err = { 0 };

    if (nb_json_parse(text, strlen(text), "json", 0, &v, &err) != NB_OK)
        fail_msg("%s: %s", text, err.what);
    return v;
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

/* ---- tool calls ---- */

static const char *const tools_text = "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
                                      "\"properties\":{\"a\":{\"type\":\"integer\"},\"s\":{\"type\":"
                                      "\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}}},"
                                      "{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"parameters\":{\"type\":\"object\","
                                      "\"properties\":{\"l\":{\"type\":\"array\",\"uniqueItems\":true}}}}},"
                                      "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

#define BAR   "\xEF\xBD\x9C"
#define LOW   "\xE2\x96\x81"
#define DS(x) "<" BAR "tool" LOW x BAR ">"

static const struct {
    const char *label;
    nb_tool_format format;
    bool several, begun;
    const char *name, *yes[3], *no[5];
} calls[] = {
    { "TOOL-2 hermes",
      NB_TOOLS_HERMES,
      true,
      false,
      NULL,
      { "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"odd\",\"arguments\":{\"l\":[1,1]}}</"
        "tool_call>" },
      { "", "x", "<tool_call>{\"name\":\"sub\",\"arguments\":{}}</tool_call>", "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"1\"}}</tool_call>" } },
    { "TOOL-2 one by name",
      NB_TOOLS_HERMES,
      false,
      false,
      "add",
      { "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1,\"s\":\"\"}}</tool_call>" },
      { "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call><tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</"
        "tool_call>" } },
    { "TOOL-2 behind the marker",
      NB_TOOLS_HERMES,
      true,
      true,
      NULL,
      { "\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>" },
      { "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>" } },
    { "llama3",
      NB_TOOLS_LLAMA3_JSON,
      true,
      false,
      NULL,
      { "{\"name\": \"add\", \"parameters\": {\"a\": 1}}",
        "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}" },
      { "{\"name\": \"add\", \"arguments\": {\"a\": 1}}" } },
    { "mistral",
      NB_TOOLS_MISTRAL,
      true,
      false,
      NULL,
      { "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"now\", \"arguments\": {}}]" },
      { "[TOOL_CALLS] []", "[TOOL_CALLS]" } },
    { "qwen3 xml",
      NB_TOOLS_QWEN3_XML,
      true,
      false,
      NULL,
      { "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\na < "
        "b\n</parameter\n</para\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>" },
      { "<tool_call>\n<function=add>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>" } },
    { "glm",
      NB_TOOLS_GLM47,
      true,
      false,
      NULL,
      { "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>now\n</tool_call>\n<tool_call>now\n</tool_call>" },
      { "<tool_call>add\n</tool_call>" } },
    { "deepseek v3",
      NB_TOOLS_DEEPSEEK_V3,
      true,
      false,
      NULL,
      { DS("calls" LOW "begin") DS("call" LOW "begin") "function" DS("sep") "add\n```json\n{\"a\": 1}\n```" DS("call" LOW "end")
            DS("calls" LOW "end") },
      { DS("calls" LOW "begin") DS("calls" LOW "end") } },
    { "deepseek v3.1",
      NB_TOOLS_DEEPSEEK_V31,
      false,
      false,
      NULL,
      { DS("calls" LOW "begin") DS("call" LOW "begin") "now" DS("sep") "{}" DS("call" LOW "end") DS("calls" LOW "end") },
      { DS("calls" LOW "begin") DS("call" LOW "begin") "now" DS("sep") "{}" DS("call" LOW "end")
            DS("call" LOW "begin") "now" DS("sep") "{}" DS("call" LOW "end") DS("calls" LOW "end") } },
    { "kimi",
      NB_TOOLS_KIMI_K2,
      true,
      false,
      NULL,
      { "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_"
        "end|>" },
      { "<|tool_calls_section_begin|><|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>" } },
    { "minimax",
      NB_TOOLS_MINIMAX_M2,
      true,
      false,
      NULL,
      { "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter "
        "name=\"s\">x</parameter>\n</invoke>\n</minimax:tool_call>" },
      { "<minimax:tool_call>\n</minimax:tool_call>" } },
    { "granite", NB_TOOLS_GRANITE, true, false, NULL, { "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]" }, { "[]" } },
    { "phi4mini", NB_TOOLS_PHI4MINI, true, false, NULL, { "functools[{\"name\": \"now\", \"arguments\": {}}]" }, { "functools[]" } },
};

static void count(void *ctx, const nb_reply_event *e)
{
    int *n = ctx;

    if (e->kind == NB_REPLY_CALL_END)
        ++*n;
    if (e->kind == NB_REPLY_CONTENT || e->kind == NB_REPLY_REASONING)
        *n = -1000;
}

/* What the grammar takes must be nothing but calls to the parser. */
static int read_back(nb_tool_format f, const nb_json *tools, const char *head, const char *text)
{
    const nb_reply_opts o = { .tools = f, .tool_list = tools };
    nb_reply *r = NULL;
    int n = 0;

    assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
    nb_reply_feed(r, head, strlen(head), count, &n, NULL);
    nb_reply_feed(r, text, strlen(text), count, &n, NULL);
    nb_reply_finish(r, count, &n, NULL);
    nb_reply_close(r);
    return n;
}

static void test_calls(void **state)
{
    nb_json *tools = parse(tools_text);
    int bad = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(calls); i++) {
        const nb_tool_grammar_opts o = {
            .format = calls[i].format, .tools = tools, .name = calls[i].name, .several = calls[i].several, .begun = calls[i].begun
        };
        nb_grammar *g = NULL;
        nb_err err = { 0 };
        if (nb_grammar_new_tools(NULL, &o, NULL, &g, &err) != NB_OK)
            fail_msg("%s: %s %s", calls[i].label, err.cls, err.what);
        for (size_t k = 0; k < 3 && calls[i].yes[k]; k++) {
            if (!takes(g, calls[i].yes[k]) ||
                read_back(calls[i].format, tools, calls[i].begun ? nb_tool_format_begin(calls[i].format) : "", calls[i].yes[k]) <= 0) {
                print_message("not ok %s: %s\n", calls[i].label, calls[i].yes[k]);
                bad++;
            }
        }
        for (size_t k = 0; k < 5 && calls[i].no[k]; k++) {
            if (takes(g, calls[i].no[k])) {
                print_message("not ok %s: takes %s\n", calls[i].label, calls[i].no[k]);
                bad++;
            }
        }
        nb_grammar_unref(g);
    }
    nb_json_free(tools);
    assert_int_equal(bad, 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *label, *tools, *name, *cls;
        nb_tool_format format;
    } rows[] = {
        { "no tools", "[]", NULL, "grammar.invalid", NB_TOOLS_HERMES },
        { "a tool without a name", "[{\"function\":{}}]", NULL, "grammar.invalid", NB_TOOLS_HERMES },
        { "TOOL-5 an unknown name", "[{\"function\":{\"name\":\"f\"}}]", "g", "grammar.invalid", NB_TOOLS_HERMES },
        { "a strict one beyond schema grammars", "[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"not\":{}}}}]", NULL,
          "grammar.unsupported", NB_TOOLS_HERMES },
        { "a format without one", "[{\"function\":{\"name\":\"f\"}}]", NULL, "grammar.unsupported", NB_TOOLS_PYTHONIC },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_json *tools = parse(rows[i].tools);
        const nb_tool_grammar_opts o = { .format = rows[i].format, .tools = tools, .name = rows[i].name };
        nb_grammar *g = NULL;
        nb_err err = { 0 };
        if (nb_grammar_new_tools(NULL, &o, NULL, &g, &err) == NB_OK || g || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %s %s", rows[i].label, err.cls, err.what);
        nb_json_free(tools);
    }
}

/* Markers that are special tokens are wanted as such. */
static void test_special_marker(void **state)
{
    static const char *const json = "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<tool_call>\",\"special\":true,"
                                    "\"normalized\":false,\"lstrip\":false,"
                                    "\"rstrip\":false,\"single_word\":false}],\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":"
                                    "\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{"
                                    "\"<tool_call>\":0,\"?\":1,\"<\":2,\"{\":3,\"</tool_call>\":4,\"end\":5}}}";
    nb_json *tools = parse(tools_text);
    const nb_tool_grammar_opts o = { .format = NB_TOOLS_HERMES, .tools = tools };
    const int32_t end = 5;
    uint32_t bits[1];
    nb_tokenizer *t = NULL;
    nb_gvocab *v = NULL;
    nb_grammar *g = NULL;
    nb_gstate *s = NULL;
    nb_err err = { 0 };

    (void)state;
    if (nb_tokenizer_open(json, strlen(json), NULL, 0, &t, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_int_equal(nb_gvocab_open(t, &end, 1, 0, &v, &err), NB_OK);
    assert_int_equal(nb_grammar_new_tools(v, &o, NULL, &g, &err), NB_OK);
    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_OK);
    assert_int_equal(bits[0], 1u << 0);
    assert_int_equal(nb_gstate_advance(s, 2, NULL), NB_NO);
    assert_int_equal(nb_gstate_advance(s, 0, NULL), NB_OK);
    assert_int_equal(nb_gstate_mask(s, bits, NULL), NB_OK);
    assert_int_equal(bits[0], 1u << 3);
    nb_gstate_close(s);
    nb_grammar_unref(g);
    nb_gvocab_close(v);
    nb_tokenizer_close(t);
    nb_json_free(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_calls), cmocka_unit_test(test_refused),
                                        cmocka_unit_test(test_special_marker) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
