/* test_reply.c - reasoning, content and tool calls of replies in every format, fed whole and in pieces. */
#include "vectors.h"

#include <stdbool.h>

#include "text/reply.h"

#define BAR   "\xEF\xBD\x9C"
#define LOW   "\xE2\x96\x81"
#define DS(x) "<" BAR "tool" LOW x BAR ">"
#define DSB   DS("calls" LOW "begin")
#define DSE   DS("calls" LOW "end")
#define DB    DS("call" LOW "begin")
#define DE    DS("call" LOW "end")
#define DSEP  DS("sep")

static const char *const tools_text =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
    "\"string\"},\"days\":{\"type\":\"integer\"},\"opt\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"list\":{\"type\":"
    "\"array\"},"
    "\"ok\":{\"type\":\"boolean\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{"
    "\"a\":{\"type\":\"number\"},\"b\":{\"type\":\"number\"}}}}}]";

/* What comes out, as one text: R{...} reasoning, C{...} content, name(args) a call. */
static const struct row {
    const char *label;
    nb_tool_format tools;
    nb_reason_format reason;
    const char *prompt, *text, *want;
} rows[] = {
    { "plain", NB_TOOLS_NONE, NB_REASON_NONE, NULL, "Hello <tool_call> \n", "C{Hello <tool_call> \n}" },
    { "empty", NB_TOOLS_HERMES, NB_REASON_THINK, NULL, "", "" },
    { "blanks", NB_TOOLS_HERMES, NB_REASON_THINK, NULL, " \n", "C{ \n}" },

    /* reasoning */
    { "RSN think", NB_TOOLS_NONE, NB_REASON_THINK, NULL, "<think>\nhm, 1 < 2\n</think>\n\nYes.", "R{hm, 1 < 2}C{Yes.}" },
    { "RSN begun in the prompt", NB_TOOLS_NONE, NB_REASON_THINK, "<|im_start|>assistant\n<think>\n", "hm</think>Yes", "R{hm}C{Yes}" },
    { "RSN over in the prompt", NB_TOOLS_NONE, NB_REASON_THINK, "<think>\n\n</think>\n\n", "Yes</think>", "C{Yes</think>}" },
    { "RSN an old mark in the prompt", NB_TOOLS_NONE, NB_REASON_THINK, "what is <think> for?", "Yes", "C{Yes}" },
    { "RSN none", NB_TOOLS_NONE, NB_REASON_THINK, NULL, "\nYes <think>", "C{\nYes <think>}" },
    { "RSN cut off", NB_TOOLS_NONE, NB_REASON_THINK, NULL, "<think>\nhm\n\nha </thin", "R{hm\n\nha </thin}" },
    { "RSN empty", NB_TOOLS_NONE, NB_REASON_THINK, NULL, "<think>\n\n</think>\n\nA", "C{A}" },
    { "RSN [THINK]", NB_TOOLS_MISTRAL, NB_REASON_MISTRAL, NULL, "[THINK]a[b[/THINK]c", "R{a[b}C{c}" },
    { "RSN granite", NB_TOOLS_NONE, NB_REASON_GRANITE, NULL, "Here is my thought process: a\nHere is my response: b", "R{ a}C{ b}" },
    { "RSN then a call", NB_TOOLS_HERMES, NB_REASON_THINK, NULL,
      "<think>a <tool_call></think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "R{a <tool_call>}f({})" },
    { "RSN channels", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL,
      "<|channel|>analysis<|message|>Think\n<|end|><|start|>assistant<|channel|>final<|message|>Done < 3<|return|>",
      "R{Think}C{Done < 3}" },
    { "RSN channels with calls", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL,
      "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant"
      "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>",
      "R{T}C{Let me.}add({\"a\": 1})" },
    { "RSN channels, recipient first", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL,
      " to=functions.add<|channel|>commentary json<|message|>{}<|call|>", "add({})" },
    { "RSN channels, a call that is none", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL,
      "<|channel|>commentary to=functions.f<|message|>{\"a\"<|call|>", "C{{\"a\"}" },
    { "RSN channels cut off", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL, "<|channel|>analysis<|message|>a<|en", "R{a<|en}" },
    { "RSN no channels, nearly", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL, " to be < or", "C{ to be < or}" },
    { "RSN no channels", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, NULL, "Hello", "C{Hello}" },

    /* hermes */
    { "hermes", NB_TOOLS_HERMES, NB_REASON_NONE, NULL,
      "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\xC3\xBCrich</tool_call>\", \"days\": "
      "2.0}}\n</tool_call>",
      "C{Let me see.}get_weather({\"city\": \"Z\xC3\xBCrich</tool_call>\", \"days\": 2.0})" },
    { "hermes, two and text behind", NB_TOOLS_HERMES, NB_REASON_NONE, NULL,
      "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"x\":[1,{}]},\"name\":\"b\"}</"
      "tool_call>\nDone",
      "a({})b({\"x\":[1,{}]})C{\nDone}" },
    { "hermes without the end", NB_TOOLS_HERMES, NB_REASON_NONE, NULL, "<tool_call>{\"name\":\"a\",\"arguments\":{}}", "a({})" },
    { "hermes, arguments as text", NB_TOOLS_HERMES, NB_REASON_NONE, NULL,
      "<tool_call>{\"name\":\"a\",\"arguments\":\"{\\\"x\\\": 1}\"}</tool_call>", "a({\"x\": 1})" },
    { "hermes without arguments", NB_TOOLS_HERMES, NB_REASON_NONE, NULL, "<tool_call>{\"name\":\"a\"}</tool_call>", "a({})" },
    { "TOOL-3 hermes, broken JSON", NB_TOOLS_HERMES, NB_REASON_NONE, NULL,
      "x <tool_call>{\"name\": a}</tool_call> y <tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
      "C{x <tool_call>{\"name\": a}</tool_call> y}b({})" },
    { "TOOL-3 hermes, no JSON", NB_TOOLS_HERMES, NB_REASON_NONE, NULL, "<tool_call> is a marker, </tool_call> too",
      "C{<tool_call> is a marker, </tool_call> too}" },
    { "TOOL-3 hermes, cut off", NB_TOOLS_HERMES, NB_REASON_NONE, NULL, "<tool_call>\n{\"name\": \"a\", \"argu",
      "C{<tool_call>\n{\"name\": \"a\", \"argu}" },
    { "TOOL-3 hermes, arguments of another type", NB_TOOLS_HERMES, NB_REASON_NONE, NULL,
      "<tool_call>{\"name\":\"a\",\"arguments\":[1]}</tool_call>", "C{<tool_call>{\"name\":\"a\",\"arguments\":[1]}</tool_call>}" },
    { "TOOL-3 nearly a marker", NB_TOOLS_HERMES, NB_REASON_NONE, NULL, "a < b <tool_ca", "C{a < b <tool_ca}" },

    /* llama3_json */
    { "llama3", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL, "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}",
      "add({\"a\": 1, \"b\": 2})" },
    { "llama3, two", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL,
      "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"get_weather\", \"arguments\": {}}", "add({})get_weather({})" },
    { "llama3, plain text", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL, "The {\"name\": \"add\", \"parameters\": {}}",
      "C{The {\"name\": \"add\", \"parameters\": {}}}" },
    { "llama3, JSON that is no call", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL, "{\"name\": \"Bob\", \"age\": 3} ",
      "C{{\"name\": \"Bob\", \"age\": 3} }" },
    { "llama3, an unknown name", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL, "{\"name\": \"sub\", \"parameters\": {}}",
      "C{{\"name\": \"sub\", \"parameters\": {}}}" },
    { "TOOL-3 llama3, cut off", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, NULL, "{\"name\": \"add\", ", "C{{\"name\": \"add\", }" },

    /* mistral */
    { "mistral, list", NB_TOOLS_MISTRAL, NB_REASON_NONE, NULL,
      "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"AbCdEf123\"}, {\"name\": \"add\", \"arguments\": {}}]",
      "add#AbCdEf123({\"a\": 1})add({})" },
    { "mistral, named", NB_TOOLS_MISTRAL, NB_REASON_NONE, NULL, "Yes[TOOL_CALLS]add[ARGS]{\"a\": [1]}[TOOL_CALLS]add{\"b\":2}",
      "C{Yes}add({\"a\": [1]})add({\"b\":2})" },
    { "mistral with an id", NB_TOOLS_MISTRAL, NB_REASON_NONE, NULL, "[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{}", "add#123456789({})" },
    { "TOOL-3 mistral", NB_TOOLS_MISTRAL, NB_REASON_NONE, NULL, "[TOOL_CALLS] none, sorry", "C{[TOOL_CALLS] none, sorry}" },

    /* qwen3 xml */
    { "qwen3 xml", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL,
      "Ok.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n\"X\"\n</parameter>\n<parameter=days>\n3\n</"
      "parameter>\n<parameter=ok>\nTrue\n"
      "</parameter>\n<parameter=list>\n[1, \"a\"]\n</parameter>\n<parameter=opt>\nnull\n</parameter>\n</function>\n</tool_call>",
      "C{Ok.}get_weather({\"city\": \"Paris\\n\\\"X\\\"\", \"days\": 3, \"ok\": true, \"list\": [1, \"a\"], \"opt\": null})" },
    { "qwen3 xml without the outer marker", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL,
      "<function=add>\n<parameter=a>\n1.50\n</parameter>\n</function>", "add({\"a\": 1.50})" },
    { "qwen3 xml, a text where a number is wanted", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL,
      "<tool_call><function=add><parameter=a>two</parameter></function></tool_call>", "add({\"a\": \"two\"})" },
    { "qwen3 xml, two", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL,
      "<tool_call>\n<function=add>\n</function>\n</tool_call>\n<tool_call>\n<function=other>\n<parameter=k>\n5\n</parameter>\n</"
      "function>\n</tool_call>",
      "add({})other({\"k\": \"5\"})" },
    { "TOOL-3 qwen3 xml", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL, "<tool_call> no </tool_call>", "C{<tool_call> no </tool_call>}" },
    { "TOOL-3 qwen3 xml, cut off", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, NULL, "<tool_call>\n<function=add>\n<parameter=a>\n1",
      "C{<tool_call>\n<function=add>\n<parameter=a>\n1}" },

    /* deepseek */
    { "deepseek v3", NB_TOOLS_DEEPSEEK_V3, NB_REASON_NONE, NULL,
      "Hi" DSB DB "function" DSEP "add\n```json\n{\"a\": 1}\n```" DE "\n" DB "function" DSEP "add\n```json\n{}\n```" DE DSE,
      "C{Hi}add({\"a\": 1})add({})" },
    { "deepseek v3.1", NB_TOOLS_DEEPSEEK_V31, NB_REASON_NONE, NULL, DSB DB "add" DSEP "{\"a\": 1}" DE DB "add" DSEP "{}" DE DSE,
      "add({\"a\": 1})add({})" },
    { "TOOL-3 deepseek", NB_TOOLS_DEEPSEEK_V31, NB_REASON_NONE, NULL, DSB DB "add" DSEP "{" DE DSE, "C{" DSB DB "add" DSEP "{" DE DSE "}" },

    { "kimi", NB_TOOLS_KIMI_K2, NB_REASON_NONE, NULL,
      "A<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"
      "<|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
      "C{A}add#functions.add:0({\"a\": 1})add#functions.add:1({})" },
    { "glm", NB_TOOLS_GLM47, NB_REASON_NONE, NULL,
      "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</"
      "arg_value>\n</tool_call>"
      "<tool_call>add</tool_call>",
      "get_weather({\"city\": \"Oslo\", \"days\": 2})add({})" },
    { "TOOL-3 glm", NB_TOOLS_GLM47, NB_REASON_NONE, NULL, "<tool_call>two words</tool_call>", "C{<tool_call>two words</tool_call>}" },
    { "minimax", NB_TOOLS_MINIMAX_M2, NB_REASON_NONE, NULL,
      "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter "
      "name=\"days\">1</parameter>\n</invoke>\n"
      "<invoke name=\"add\">\n</invoke>\n</minimax:tool_call>",
      "get_weather({\"city\": \"Rome\", \"days\": 1})add({})" },
    { "pythonic", NB_TOOLS_PYTHONIC, NB_REASON_NONE, NULL,
      "[get_weather(city='S\\'a \"o\"', days=-3, opt=None), add(a=1e3, b=[1, {'x': (True,)}])]",
      "get_weather({\"city\": \"S'a \\\"o\\\"\", \"days\": -3, \"opt\": null})add({\"a\": 1e3, \"b\": [1, {\"x\": [true]}]})" },
    { "pythonic with markers", NB_TOOLS_PYTHONIC, NB_REASON_NONE, NULL, "<|python_start|>[add()]<|python_end|>", "add({})" },
    { "pythonic, a list that is no call", NB_TOOLS_PYTHONIC, NB_REASON_NONE, NULL, "[1, 2] are numbers", "C{[1, 2] are numbers}" },
    { "pythonic, a name that is none", NB_TOOLS_PYTHONIC, NB_REASON_NONE, NULL, "[sub(a=1)]", "C{[sub(a=1)]}" },
    { "TOOL-3 pythonic, cut off", NB_TOOLS_PYTHONIC, NB_REASON_NONE, NULL, "[add(a=1", "C{[add(a=1}" },
    { "granite", NB_TOOLS_GRANITE, NB_REASON_NONE, NULL, "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
      "add({\"a\": 1})" },
    { "phi4mini", NB_TOOLS_PHI4MINI, NB_REASON_NONE, NULL,
      "functools[{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {\"b\":1}}]", "add({})add({\"b\":1})" },
    { "TOOL-3 phi4mini", NB_TOOLS_PHI4MINI, NB_REASON_NONE, NULL, "functools is a module", "C{functools is a module}" },
};

typedef struct sink {
    nb_buf out;
    nb_reply_kind last;
    bool open, bad;
    int index;
} sink;

static void close_text(sink *s)
{
    if (s->open)
        nb_buf_putc(&s->out, '}');
    s->open = false;
}

static void event(void *ctx, const nb_reply_event *e)
{
    sink *s = ctx;

    if (e->kind == NB_REPLY_REASONING || e->kind == NB_REPLY_CONTENT) {
        if (!s->open || s->last != e->kind) {
            close_text(s);
            nb_buf_puts(&s->out, e->kind == NB_REPLY_CONTENT ? "C{" : "R{");
        }
        s->open = true;
        nb_buf_put(&s->out, e->text, e->n);
        s->bad = s->bad || e->n == 0 || ((unsigned char)e->text[0] & 0xC0) == 0x80;
    } else if (e->kind == NB_REPLY_CALL) {
        close_text(s);
        nb_buf_put(&s->out, e->text, e->n);
        if (strncmp(e->id, "call_", 5) != 0 && strlen(e->id) && !strstr("000000000", e->id)) {
            const bool own = strlen(e->id) == 9 && strcmp(e->id, "123456789") != 0 && strcmp(e->id, "AbCdEf123") != 0; /* made here */
            if (!own)
                nb_buf_printf(&s->out, "#%s", e->id);
        } else {
            s->bad = s->bad || strlen(e->id) != 29;
        }
        s->bad = s->bad || e->index != s->index;
        nb_buf_putc(&s->out, '(');
    } else if (e->kind == NB_REPLY_ARGS) {
        nb_buf_put(&s->out, e->text, e->n);
    } else {
        nb_buf_putc(&s->out, ')');
        s->index++;
    }
    s->last = e->kind;
}

static void run(const struct row *row, const nb_json *tools, size_t step)
{
    const nb_reply_opts o = { .tools = row->tools,
                              .reason = row->reason,
                              .tool_list = tools,
                              .prompt = row->prompt,
                              .n_prompt = row->prompt ? strlen(row->prompt) : 0,
                              .seed = 7 };
    const size_t n = strlen(row->text);
    nb_reply *r = NULL;
    sink s = { 0 };

    assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
    for (size_t at = 0; at < n;) {
        size_t to = at;
        for (size_t k = 0; k < step && to < n; k++)
            for (to++; to < n && ((unsigned char)row->text[to] & 0xC0) == 0x80; to++)
                ;
        assert_int_equal(nb_reply_feed(r, row->text + at, to - at, event, &s, NULL), NB_OK);
        at = to;
    }
    assert_int_equal(nb_reply_finish(r, event, &s, NULL), NB_OK);
    close_text(&s);
    if (strcmp(s.out.p ? s.out.p : "", row->want) != 0 || s.bad || nb_reply_calls(r) != s.index)
        fail_msg("%s, pieces of %zu%s:\n got %s\nwant %s", row->label, step, s.bad ? ", a broken event" : "", s.out.p ? s.out.p : "",
                 row->want);
    nb_buf_clear(&s.out);
    nb_reply_close(r);
}

static void test_rows(void **state)
{
    nb_json *tools = NULL;

    (void)state;
    assert_int_equal(nb_json_parse(tools_text, strlen(tools_text), "json", 0, &tools, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        static const size_t steps[] = { 100000, 1, 2, 3, 7 };
        for (size_t k = 0; k < NB_LEN(steps); k++)
            run(&rows[i], tools, steps[k]);
    }
    nb_json_free(tools);
}

/* Everything certain is given out at once: content without a marker never waits for the end. */
static void test_streaming(void **state)
{
    const nb_reply_opts o = { .tools = NB_TOOLS_HERMES, .reason = NB_REASON_THINK };
    nb_reply *r = NULL;
    sink s = { 0 };

    (void)state;
    assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
    nb_reply_feed(r, "<think>so", 9, event, &s, NULL);
    assert_string_equal(s.out.p, "R{so");
    assert_true(nb_reply_is_reasoning(r));
    nb_reply_feed(r, " </thi", 6, event, &s, NULL);
    assert_string_equal(s.out.p, "R{so ");
    nb_reply_feed(r, "nk>one <", 8, event, &s, NULL);
    assert_false(nb_reply_is_reasoning(r));
    assert_string_equal(s.out.p, "R{so }C{one");
    nb_reply_feed(r, " two", 4, event, &s, NULL);
    assert_string_equal(s.out.p, "R{so }C{one < two");
    nb_reply_feed(r, "<tool_call>{\"name\":\"f\"}</tool_call>", 35, event, &s, NULL);
    assert_string_equal(s.out.p, "R{so }C{one < two}f({})");
    assert_int_equal(nb_reply_calls(r), 1);
    nb_buf_clear(&s.out);
    nb_reply_close(r);
}

static void first_id(void *ctx, const nb_reply_event *e)
{
    if (e->kind == NB_REPLY_CALL && !*(char *)ctx)
        snprintf(ctx, 64, "%s", e->id);
}

static void test_calls(void **state)
{
    static const char *const two = "<tool_call>{\"name\":\"a\"}</tool_call><tool_call>{\"name\":\"b\"}</tool_call>";
    nb_reply_opts o = { .tools = NB_TOOLS_HERMES, .seed = 1, .one_call = true };
    char ids[4][64] = { { 0 } };
    nb_reply *r = NULL, *c = NULL;
    sink s = { 0 };

    (void)state;
    assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK); /* parallel_tool_calls false */
    assert_int_equal(nb_reply_clone(r, 2, &c, NULL), NB_OK);
    nb_reply_feed(r, two, strlen(two), event, &s, NULL);
    nb_reply_finish(r, event, &s, NULL);
    assert_string_equal(s.out.p, "a({})");
    nb_reply_close(r);
    nb_reply_feed(c, two, strlen(two), first_id, ids[2], NULL);
    nb_reply_close(c);
    for (int i = 0; i < 2; i++) { /* TOOL-4: the same seed, the same ids; 24 letters and digits */
        assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
        nb_reply_feed(r, two, strlen(two), first_id, ids[i], NULL);
        nb_reply_close(r);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[0], ids[2]);
    assert_int_equal(strlen(ids[0]), 29);
    assert_int_equal(strspn(ids[0] + 5, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 24);
    o.tools = NB_TOOLS_MISTRAL;
    assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
    nb_reply_feed(r, "[TOOL_CALLS]a[ARGS]{}", 21, first_id, ids[3], NULL);
    assert_int_equal(strlen(ids[3]), 9);
    nb_reply_close(r);
    nb_buf_clear(&s.out);
}

/* Given out as they are written: of calls that are well formed the same comes out, in pieces, and the first piece before the call ends;
 * pieces are never cut inside an escape. */
typedef struct live_sum {
    nb_buf all;
    size_t pieces;
} live_sum;

static void add_live(void *ctx, const nb_reply_event *e)
{
    live_sum *s = ctx;

    if (e->kind == NB_REPLY_CALL) {
        nb_buf_put(&s->all, e->text, e->n);
        nb_buf_putc(&s->all, '(');
    } else if (e->kind == NB_REPLY_ARGS) {
        nb_buf_put(&s->all, e->text, e->n);
        s->pieces++;
        assert_true(e->text[e->n - 1] != '\\' || (e->n > 1 && e->text[e->n - 2] == '\\'));
    } else if (e->kind == NB_REPLY_CALL_END) {
        nb_buf_putc(&s->all, ')');
    } else {
        nb_buf_puts(&s->all, e->kind == NB_REPLY_CONTENT ? "C{" : "R{");
        nb_buf_put(&s->all, e->text, e->n);
        nb_buf_putc(&s->all, '}');
    }
}

static void test_live(void **state)
{
    static const struct {
        const char *label;
        nb_tool_format tools;
        const char *text, *want;
        size_t pieces; /* at least, fed byte by byte */
    } live[] = {
        { "hermes", NB_TOOLS_HERMES,
          "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"}</tool_call>\\\"\\ud83d\\ude00\"}}\n</tool_call>",
          "add({\"a\": 1, \"b\": \"}</tool_call>\\\"\\ud83d\\ude00\"})", 20 },
        { "hermes, two", NB_TOOLS_HERMES,
          "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>\n<tool_call>{\"name\":\"get_weather\",\"arguments\":{}}</"
          "tool_call>",
          "add({\"a\":1})get_weather({})", 8 },
        { "hermes, cut off", NB_TOOLS_HERMES, "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1", "add({\"a\":1)", 5 },
        { "hermes, cut off in an escape", NB_TOOLS_HERMES, "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"\\u00",
          "add({\"a\":\"\\u00)", 5 },
        { "hermes, not yet a call", NB_TOOLS_HERMES, "<tool_call>{\"name\":\"add\",\"argu", "C{<tool_call>}C{{\"name\":\"add\",\"argu}",
          0 },
        { "llama", NB_TOOLS_LLAMA3_JSON,
          "<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": [1]}}; {\"name\": \"add\", \"parameters\": {}}",
          "add({\"a\": [1]})add({})", 8 },
        { "mistral", NB_TOOLS_MISTRAL, "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]add[ARGS]{}", "add({\"a\": 1})add({})", 8 },
        { "mistral, list", NB_TOOLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]", "add({\"a\": 1})", 1 },
        { "deepseek 3", NB_TOOLS_DEEPSEEK_V3, DSB DB "function" DSEP "add\n```json\n{\"a\": 1}\n```" DE DSE, "add({\"a\": 1})", 6 },
        { "deepseek 3.1", NB_TOOLS_DEEPSEEK_V31, DSB DB "add" DSEP "{\"a\": 1}" DE DB "add" DSEP "{}" DE DSE, "add({\"a\": 1})add({})", 8 },
        { "kimi", NB_TOOLS_KIMI_K2,
          "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"
          "<|tool_calls_section_end|>",
          "add({\"a\": 1})", 6 },
        { "qwen xml", NB_TOOLS_QWEN3_XML,
          "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis "
          "</function>\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
          "get_weather({\"city\": \"Paris </function>\", \"days\": 3})", 3 },
        { "qwen xml without arguments", NB_TOOLS_QWEN3_XML, "<tool_call>\n<function=add>\n</function>\n</tool_call>", "add({})", 1 },
        { "minimax", NB_TOOLS_MINIMAX_M2,
          "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter "
          "name=\"b\">2</parameter>\n</invoke>\n</minimax:tool_call>",
          "add({\"a\": 1, \"b\": 2})", 3 },
        { "glm", NB_TOOLS_GLM47, "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "add({\"a\": 1})", 2 },
        { "glm without arguments", NB_TOOLS_GLM47, "<tool_call>add\n</tool_call>", "add({})", 1 },
    };
    nb_json *tools = NULL;

    (void)state;
    assert_int_equal(nb_json_parse(tools_text, strlen(tools_text), "tools", 0, &tools, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(live); i++)
        for (size_t step = 1; step < 60; step += 7) {
            const nb_reply_opts o = { .tools = live[i].tools, .tool_list = tools };
            const size_t n = strlen(live[i].text);
            nb_reply *r = NULL;
            live_sum s = { 0 };

            assert_int_equal(nb_reply_open(&o, &r, NULL), NB_OK);
            nb_reply_live(r, false);
            for (size_t at = 0; at < n; at += step)
                assert_int_equal(nb_reply_feed(r, live[i].text + at, n - at < step ? n - at : step, add_live, &s, NULL), NB_OK);
            assert_int_equal(nb_reply_finish(r, add_live, &s, NULL), NB_OK);
            nb_buf_putc(&s.all, 0);
            if (strcmp(s.all.p, live[i].want) != 0)
                fail_msg("live %s, steps of %zu: %s", live[i].label, step, s.all.p);
            if (step == 1 && s.pieces < live[i].pieces)
                fail_msg("live %s: %zu pieces", live[i].label, s.pieces);
            nb_buf_clear(&s.all);
            nb_reply_close(r);
        }
    nb_json_free(tools);
}

static void test_names(void **state)
{
    nb_tool_format t;
    nb_reason_format f;

    (void)state;
    for (int i = 0; i < NB_TOOLS_N; i++) {
        assert_true(nb_tool_format_named(nb_tool_format_name((nb_tool_format)i), &t));
        assert_int_equal(t, i);
    }
    for (int i = 0; i < NB_REASON_N; i++) {
        assert_true(nb_reason_format_named(nb_reason_format_name((nb_reason_format)i), &f));
        assert_int_equal(f, i);
    }
    assert_true(nb_tool_format_named("qwen3_coder", &t) && t == NB_TOOLS_QWEN3_XML);
    assert_false(nb_tool_format_named("frobnicate", &t) || nb_reason_format_named("", &f));
    assert_string_equal(nb_reason_format_end(NB_REASON_THINK), "</think>");
    assert_string_equal(nb_tool_format_begin(NB_TOOLS_KIMI_K2), "<|tool_calls_section_begin|>");
}

/* TOOL-1: the format told from published templates. */
static void test_guess(void **state)
{
    static const struct {
        const char *file;
        nb_tool_format tools;
        nb_reason_format reason;
    } known[] = {
        { "Qwen-Qwen3-0.6B", NB_TOOLS_HERMES, NB_REASON_THINK },
        { "Qwen-Qwen2.5-7B-Instruct", NB_TOOLS_HERMES, NB_REASON_NONE },
        { "Qwen3-Coder", NB_TOOLS_QWEN3_XML, NB_REASON_NONE },
        { "openai-gpt-oss-120b", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS },
        { "deepseek-ai-DeepSeek-V3.1", NB_TOOLS_DEEPSEEK_V31, NB_REASON_THINK },
        { "GLM-4.6", NB_TOOLS_GLM47, NB_REASON_THINK },
        { "MiniMax-M2", NB_TOOLS_MINIMAX_M2, NB_REASON_THINK },
        { "meta-llama-Llama-3.1-8B-Instruct", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE },
        { "mistralai-Mistral-Nemo-Instruct-2407", NB_TOOLS_MISTRAL, NB_REASON_NONE },
    };
    const char *g = getenv("NB_GOLDEN");
    char dir[600], file[200];
    size_t seen = 0;

    (void)state;
    snprintf(dir, sizeof dir, "%s/templates/real/templates", g && *g ? g : "../shared/golden");
    for (size_t i = 0; i < NB_LEN(known); i++) {
        size_t n = 0;
        snprintf(file, sizeof file, "%s.jinja", known[i].file);
        char *src = slurp(dir, file, &n);
        if (!src)
            continue;
        seen++;
        if (nb_tool_format_guess(src, n) != known[i].tools || nb_reason_format_guess(src, n) != known[i].reason)
            fail_msg("%s: %s, %s", known[i].file, nb_tool_format_name(nb_tool_format_guess(src, n)),
                     nb_reason_format_name(nb_reason_format_guess(src, n)));
        nb_free(src);
    }
    print_message("%zu published templates\n", seen);
    assert_int_equal(nb_tool_format_guess("nothing", 7), NB_TOOLS_NONE);
    assert_int_equal(nb_reason_format_guess("nothing", 7), NB_REASON_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_streaming), cmocka_unit_test(test_calls),
                                        cmocka_unit_test(test_live), cmocka_unit_test(test_names),     cmocka_unit_test(test_guess) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
