/* test_reply_bombs.c - RQ-20: replies that are made to hurt their parser, fed in pieces as a model writes them: time and memory grow with
 * the length, not faster, and what is no call comes out as content, unchanged. */
#include "vectors.h"

#include <stdbool.h>

#include "base/json.h"
#include "base/mem.h"
#include "cputime.h"
#include "text/reply.h"

static const struct {
    const char *label;
    nb_tool_format tools;
    nb_reason_format reason;
    const char *begin, *again; /* again and again */
    bool content;              /* all of it is */
} bombs[] = {
    { "openers", NB_TOOLS_HERMES, NB_REASON_NONE, "", "<tool_call>", true },
    { "opener, never closed", NB_TOOLS_HERMES, NB_REASON_NONE, "<tool_call>", "a", true },
    { "nearly openers", NB_TOOLS_HERMES, NB_REASON_NONE, "", "<tool_cal", true },
    { "levels", NB_TOOLS_HERMES, NB_REASON_NONE, "<tool_call>{\"name\":\"f\",\"arguments\":", "{\"a\":", true },
    { "brackets", NB_TOOLS_HERMES, NB_REASON_NONE, "<tool_call>", "[", true },
    { "escapes", NB_TOOLS_HERMES, NB_REASON_NONE, "<tool_call>{\"name\":\"", "\\\"", true },
    { "a call that never ends", NB_TOOLS_LLAMA3_JSON, NB_REASON_NONE, "{\"name\":\"f\",\"parameters\":{\"a\":\"", "x", true },
    { "lists", NB_TOOLS_PYTHONIC, NB_REASON_NONE, "[f(", "a=[", true },
    { "parameters", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, "<tool_call><function=f>", "<parameter=a>1</parameter>", false },
    { "half parameters", NB_TOOLS_QWEN3_XML, NB_REASON_NONE, "<tool_call><function=f>", "<parameter=", false },
    { "arguments", NB_TOOLS_GLM47, NB_REASON_NONE, "<tool_call>f", "<arg_key>a</arg_key><arg_value>", false },
    { "separators", NB_TOOLS_DEEPSEEK_V31, NB_REASON_NONE,
      "<\xEF\xBD\x9Ctool\xE2\x96\x81"
      "call\xE2\x96\x81"
      "begin\xEF\xBD\x9C>f",
      "<\xEF\xBD\x9C", false },
    { "names", NB_TOOLS_MISTRAL, NB_REASON_NONE, "[TOOL_CALLS]", "[ARGS]", false },
    { "openers of calls", NB_TOOLS_MISTRAL, NB_REASON_NONE, "", "[TOOL_CALLS]", false },
    { "reasoning, never closed", NB_TOOLS_NONE, NB_REASON_THINK, "<think>", "</thin", false },
    { "channels", NB_TOOLS_GPT_OSS, NB_REASON_GPT_OSS, "", "<|channel|>", false },
    { "newlines", NB_TOOLS_HERMES, NB_REASON_THINK, "<think>", "\n", false },
};

typedef struct sum {
    size_t content, other;
} sum;

static void count(void *ctx, const nb_reply_event *e)
{
    sum *s = ctx;

    *(e->kind == NB_REPLY_CONTENT ? &s->content : &s->other) += e->n;
}

/* Processor time of a reply of about n bytes, in pieces of 5. */
static double feed(size_t i, size_t n, sum *s)
{
    const nb_reply_opts o = { .tools = bombs[i].tools, .reason = bombs[i].reason };
    nb_buf text = { 0 };
    nb_reply *r = NULL;
    nb_err err = { 0 };
    double t;
    const uint64_t before = nb_mem_now();
    uint64_t most = 0;

    memset(s, 0, sizeof *s);
    nb_buf_puts(&text, bombs[i].begin);
    while (text.n < n)
        nb_buf_puts(&text, bombs[i].again);
    assert_int_equal(nb_reply_open(&o, &r, &err), NB_OK);
    t = cpu_now();
    for (size_t at = 0; at < text.n; at += 5) {
        assert_int_equal(nb_reply_feed(r, text.p + at, text.n - at < 5 ? text.n - at : 5, count, s, &err), NB_OK);
        most = nb_mem_now() > most ? nb_mem_now() : most;
    }
    assert_int_equal(nb_reply_finish(r, count, s, &err), NB_OK);
    t = cpu_now() - t;
    if (bombs[i].content && (s->content != text.n || s->other))
        fail_msg("%s: %zu of %zu bytes came out as content, %zu as something else", bombs[i].label, s->content, text.n, s->other);
    if (most - before > 8 * text.n + (1 << 16))
        fail_msg("%s: %llu bytes of memory for %zu of text", bombs[i].label, (unsigned long long)(most - before), text.n);
    nb_reply_close(r);
    nb_buf_clear(&text);
    return t;
}

static void test_bombs(void **state)
{
    sum s;

    (void)state;
    for (size_t i = 0; i < NB_LEN(bombs); i++) {
        const double small = feed(i, 64 << 10, &s), large = feed(i, 512 << 10, &s);

        if (large > 0.05 && large > 24 * small) /* eight times the text */
            fail_msg("RQ-20 %s: %.3f s for 64 KiB, %.3f s for 512 KiB", bombs[i].label, small, large);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bombs) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
