/* test_ask.c - bodies of requests: what is taken, what is refused and how (spec serving 5.1, 9.3, 9.7; hardening 6.2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "serve/ask.h"

enum { VOCAB = 1000 };

static const nb_sampling defaults = { .temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1.1f };
static const nb_ask_rules rules = { .vocab = VOCAB, .max_n = 16, .defaults = &defaults };

static bool parse(bool chat, const char *body, nb_ask *a, nb_refusal *f)
{
    memset(f, 0, sizeof *f);
    return nb_ask_parse(a, chat, body, strlen(body), &rules, f);
}

#define MSG    "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define PROMPT "\"prompt\":\"hi\""

/* Members beside a good message (chat) or prompt, and the refusal: status 0 is accepted. */
static const struct row {
    const char *label;
    bool chat;
    const char *members; /* the whole body when it begins with '{' or is not JSON */
    int status;
    const char *code, *param;
} rows[] = {
    { "RQ-01 empty", true, "", 400, "invalid_json", "" },
    { "RQ-01 not JSON", true, "{nope", 400, "invalid_json", "" },
    { "RQ-01 list", true, "[]", 400, "invalid_json", "" },
    { "RQ-01 twice", true, "{\"n\":1,\"n\":1}", 400, "duplicate_key", "" },
    { "RQ-01 bad UTF-8", true, "{\"a\":\"\xff\"}", 400, "invalid_json", "" },
    { "RQ-02 unknown field", true, "\"nonsense\":1", 0, NULL, NULL },
    { "RQ-02 field we lack", true, "\"web_search_options\":{}", 400, "unsupported_parameter", "web_search_options" },
    { "RQ-02 functions", true, "\"functions\":[]", 400, "unsupported_parameter", "functions" },
    { "RQ-02 functions null", true, "\"functions\":null", 0, NULL, NULL },
    { "RQ-02 neutral sampler", true, "\"typical_p\":1.0", 0, NULL, NULL },
    { "RQ-02 sampler", true, "\"typical_p\":0.5", 400, "unsupported_parameter", "typical_p" },
    { "RQ-03 model of another type", true, "\"model\":5", 400, "invalid_type", "model" },
    { "RQ-04 absent", true, "{}", 400, "missing_required_parameter", "messages" },
    { "RQ-04 empty", true, "{\"messages\":[]}", 400, "empty_prompt", "messages" },
    { "RQ-04 text", true, "{\"messages\":\"hi\"}", 400, "invalid_type", "messages" },
    { "RQ-04 no object", true, "{\"messages\":[1]}", 400, "invalid_type", "messages[0]" },
    { "RQ-04 no role", true, "{\"messages\":[{\"content\":\"a\"}]}", 400, "missing_required_parameter", "messages[0].role" },
    { "RQ-04 unknown role", true, "{\"messages\":[{\"role\":\"boss\",\"content\":\"a\"}]}", 400, "invalid_value", "messages[0].role" },
    { "RQ-04 number", true, "{\"messages\":[{\"role\":\"user\",\"content\":1}]}", 400, "invalid_type", "messages[0].content" },
    { "RQ-04 null content", true, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400, "invalid_type", "messages[0].content" },
    { "null content of a caller", true, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]}", 0, NULL, NULL },
    { "parts", true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]}", 0, NULL, NULL },
    { "HT-29 image", true,
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://x/\"}}]}]}", 400,
      "unsupported_content", "messages[0].content[0]" },
    { "RQ-05 empty text", false, "{\"prompt\":\"\"}", 0, NULL, NULL }, /* good when a start token is added; seen later */
    { "RQ-05 empty list", false, "{\"prompt\":[]}", 400, "empty_prompt", "prompt" },
    { "RQ-05 list of nothing", false, "{\"prompt\":[[]]}", 400, "empty_prompt", "prompt" },
    { "RQ-05 mixed", false, "{\"prompt\":[\"a\",[1]]}", 400, "invalid_type", "prompt" },
    { "RQ-05 ids and text", false, "{\"prompt\":[1,\"a\"]}", 400, "invalid_type", "prompt" },
    { "RQ-05 -1", false, "{\"prompt\":[-1]}", 400, "invalid_value", "prompt" },
    { "RQ-05 vocabulary", false, "{\"prompt\":[1000]}", 400, "invalid_value", "prompt" },
    { "RQ-05 last id", false, "{\"prompt\":[999]}", 0, NULL, NULL },
    { "RQ-05 1.5", false, "{\"prompt\":[1.5]}", 400, "invalid_type", "prompt" },
    { "RQ-05 2^31", false, "{\"prompt\":[2147483648]}", 400, "invalid_value", "prompt" },
    { "RQ-05 absent", false, "{}", 400, "missing_required_parameter", "prompt" },
    { "RQ-06 n", true, "\"n\":17", 400, "invalid_value", "n" },
    { "RQ-06 n at the limit", true, "\"n\":16", 0, NULL, NULL },
    { "RQ-06 n 0", true, "\"n\":0", 400, "invalid_value", "n" },
    { "RQ-06 prompts times n", false, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":16}", 400, "invalid_value", "prompt" },
    { "RQ-06 at the limit", false, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\"],\"n\":16}", 0, NULL, NULL },
    { "RQ-06 best_of", false, "\"best_of\":3", 0, NULL, NULL },
    { "RQ-06 best_of over the limit", false, "\"best_of\":17", 400, "invalid_value", "best_of" },
    { "RQ-09 best_of below n", false, "\"best_of\":2,\"n\":3", 400, "invalid_value", "best_of" },
    { "KV-19 best_of in a stream", false, "\"best_of\":3,\"stream\":true", 400, "invalid_value", "best_of" },
    { "RQ-06 prompts times best_of", false, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"best_of\":16}", 400, "invalid_value", "prompt" },
    { "RQ-08 null", true, "\"max_tokens\":null", 0, NULL, NULL },
    { "RQ-08 0", true, "\"max_tokens\":0", 400, "invalid_value", "max_tokens" },
    { "RQ-08 0 with echo", false, "\"max_tokens\":0,\"echo\":true", 0, NULL, NULL },
    { "RQ-08 -1", true, "\"max_tokens\":-1", 400, "invalid_value", "max_tokens" },
    { "RQ-08 1.5", true, "\"max_tokens\":1.5", 400, "invalid_type", "max_tokens" },
    { "RQ-08 1.0 (SMP-2)", true, "\"max_tokens\":1.0", 0, NULL, NULL },
    { "RQ-08 text", true, "\"max_tokens\":\"5\"", 400, "invalid_type", "max_tokens" },
    { "RQ-08 2^63", true, "\"max_tokens\":9223372036854775808", 400, "invalid_value", "max_tokens" },
    { "RQ-08 both, equal", true, "\"max_tokens\":5,\"max_completion_tokens\":5", 0, NULL, NULL },
    { "RQ-08 both, different", true, "\"max_tokens\":5,\"max_completion_tokens\":6", 400, "invalid_value", "max_tokens" },
    { "RQ-09 min above max", true, "\"min_tokens\":5,\"max_tokens\":4", 400, "invalid_value", "min_tokens" },
    { "RQ-09 top without logprobs", true, "\"top_logprobs\":2", 400, "invalid_value", "top_logprobs" },
    { "RQ-09 options without stream", true, "\"stream_options\":{\"include_usage\":true}", 400, "invalid_value", "stream_options" },
    { "RQ-09 prompt_logprobs with stream", true, "\"stream\":true,\"prompt_logprobs\":1", 400, "invalid_value", "prompt_logprobs" },
    { "RQ-10 temperature", true, "\"temperature\":2.1", 400, "invalid_value", "temperature" },
    { "RQ-10 negative", true, "\"temperature\":-0.1", 400, "invalid_value", "temperature" },
    { "RQ-10 text", true, "\"temperature\":\"1\"", 400, "invalid_type", "temperature" },
    { "RQ-10 top_p 0", true, "\"top_p\":0", 400, "invalid_value", "top_p" },
    { "RQ-10 top_p above", true, "\"top_p\":1.01", 400, "invalid_value", "top_p" },
    { "RQ-10 top_k", true, "\"top_k\":-2", 400, "invalid_value", "top_k" },
    { "RQ-10 min_p", true, "\"min_p\":1.5", 400, "invalid_value", "min_p" },
    { "RQ-10 penalty", true, "\"presence_penalty\":2.5", 400, "invalid_value", "presence_penalty" },
    { "RQ-10 repetition 0", true, "\"repetition_penalty\":0", 400, "invalid_value", "repetition_penalty" },
    { "RQ-10 null", true, "\"temperature\":null,\"top_p\":null", 0, NULL, NULL },
    { "RQ-10 huge", true, "\"temperature\":1e400", 400, "invalid_json", "" },
    { "RQ-11 -1", true, "\"logprobs\":true,\"top_logprobs\":-1", 400, "invalid_value", "top_logprobs" },
    { "RQ-11 21", true, "\"logprobs\":true,\"top_logprobs\":21", 400, "invalid_value", "top_logprobs" },
    { "RQ-11 completions", false, "\"logprobs\":21", 400, "invalid_value", "logprobs" },
    { "RQ-11 completions bool", false, "\"logprobs\":true", 400, "invalid_type", "logprobs" },
    { "RQ-11 named without logprobs", true, "\"logprob_token_ids\":[1]", 400, "invalid_value", "logprob_token_ids" },
    { "RQ-11 named", true, "\"logprobs\":true,\"logprob_token_ids\":[1,999]", 0, NULL, NULL },
    { "RQ-12 named vocabulary", false, "\"logprobs\":0,\"logprob_token_ids\":[1000]", 400, "invalid_value", "logprob_token_ids" },
    { "RQ-11 21 named", false, "\"logprobs\":0,\"logprob_token_ids\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 400, "invalid_value",
      "logprob_token_ids" },
    { "RQ-12 bias", true, "\"logit_bias\":{\"5\":-100}", 0, NULL, NULL },
    { "RQ-12 bias negative id", true, "\"logit_bias\":{\"-5\":1}", 400, "invalid_value", "logit_bias" },
    { "RQ-12 bias vocabulary", true, "\"logit_bias\":{\"1000\":1}", 400, "invalid_value", "logit_bias" },
    { "RQ-12 bias 1e3", true, "\"logit_bias\":{\"1e3\":1}", 400, "invalid_value", "logit_bias" },
    { "RQ-12 bias blank", true, "\"logit_bias\":{\" 1\":1}", 400, "invalid_value", "logit_bias" },
    { "RQ-12 bias value", true, "\"logit_bias\":{\"1\":\"x\"}", 400, "invalid_type", "logit_bias" },
    { "RQ-12 stop ids", true, "\"stop_token_ids\":[2147483648]", 400, "invalid_value", "stop_token_ids" },
    { "RQ-12 allowed, empty", true, "\"allowed_token_ids\":[]", 400, "invalid_value", "allowed_token_ids" },
    { "RQ-13 empty stop", true, "\"stop\":\"\"", 400, "invalid_value", "stop" },
    { "RQ-13 empty in a list", true, "\"stop\":[\"\"]", 400, "invalid_value", "stop" },
    { "RQ-13 17", true, "\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]",
      400, "invalid_value", "stop" },
    { "RQ-15 tools empty", true, "\"tools\":[]", 400, "invalid_value", "tools" },
    { "RQ-15 name", true, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", 400, "invalid_value",
      "tools[0].function.name" },
    { "RQ-15 twice", true,
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]", 400,
      "invalid_value", "tools[1].function.name" },
    { "RQ-15 parameters", true, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", 400, "invalid_type",
      "tools[0].function.parameters" },
    { "RQ-15 choice without tools (TOOL-5)", true, "\"tool_choice\":\"auto\"", 400, "invalid_value", "tool_choice" },
    { "choice none without tools", true, "\"tool_choice\":\"none\"", 0, NULL, NULL },
    { "RQ-15 unknown choice (TOOL-5)", true,
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
      "\"b\"}}",
      400, "invalid_value", "tool_choice" },
    { "RQ-16 embeddings", false, "\"prompt_embeds\":\"x\"", 400, "unsupported_parameter", "prompt_embeds" },
    { "RQ-18 empty salt", true, "\"cache_salt\":\"\"", 400, "invalid_value", "cache_salt" },
    { "RQ-18 control byte", true, "\"cache_salt\":\"a\\nb\"", 400, "invalid_value", "cache_salt" },
    { "SO-02 two constraints", true, "\"response_format\":{\"type\":\"json_object\"},\"guided_regex\":\"a\"", 400, "invalid_value",
      "guided_regex" },
    { "SO-01 response_format: 5", true, "\"response_format\":5", 400, "invalid_type", "response_format" },
    { "SO-01 type: 5", true, "\"response_format\":{\"type\":5}", 400, "invalid_type", "response_format" },
    { "SO-01 schema: 5", true, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":5}}", 400, "invalid_schema",
      "response_format" },
    { "SO-01 structured_outputs: []", true, "\"structured_outputs\":[]", 400, "invalid_type", "structured_outputs" },
    { "SO-01 regex: 5", true, "\"structured_outputs\":{\"regex\":5}", 400, "invalid_type", "structured_outputs" },
    { "SO-01 a text that is no JSON", true, "\"structured_outputs\":{\"json\":\"{\"}", 400, "invalid_schema", "structured_outputs" },
    { "SO-02 two kinds", true, "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}", 400, "invalid_value", "structured_outputs" },
    { "structured_outputs null", true, "\"structured_outputs\":null,\"response_format\":null", 0, NULL, NULL },
    { "json_object false", true, "\"structured_outputs\":{\"json_object\":false}", 0, NULL, NULL },
    { "response_format text", true, "\"response_format\":{\"type\":\"text\"}", 0, NULL, NULL },
    { "response_format unknown", true, "\"response_format\":{\"type\":\"xml\"}", 400, "invalid_value", "response_format" },
    { "schema missing", true, "\"response_format\":{\"type\":\"json_schema\"}", 400, "missing_required_parameter", "response_format" },
    { "priority", true, "\"priority\":1", 400, "unsupported_parameter", "priority" },
    { "priority 0", true, "\"priority\":0", 0, NULL, NULL },
    { "API-10", true, "\"continue_final_message\":true,\"add_generation_prompt\":true", 400, "invalid_value", "continue_final_message" },
    { "continue alone", true, "\"continue_final_message\":true", 0, NULL, NULL },
    { "JT-13 chat_template", true, "\"chat_template\":\"x\"", 400, "unsupported_parameter", "chat_template" },
    { "suffix", false, "\"suffix\":\"x\"", 400, "unsupported_parameter", "suffix" },
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const struct row *r = &rows[i];
        char body[4096];
        nb_ask a;
        nb_refusal f;
        bool ok;

        if (r->members[0] == '"')
            snprintf(body, sizeof body, "{%s,%s}", r->chat ? MSG : PROMPT, r->members);
        else
            snprintf(body, sizeof body, "%s", r->members);
        ok = parse(r->chat, body, &a, &f);
        if (ok != (r->status == 0) || f.status != r->status)
            fail_msg("%s: status %d (%s: %s), want %d", r->label, f.status, f.status ? f.code : "", f.message, r->status);
        if (!ok && (strcmp(f.code, r->code) != 0 || strcmp(f.param, r->param) != 0))
            fail_msg("%s: code %s param %s, want %s %s", r->label, f.code, f.param, r->code, r->param);
        if (!ok)
            assert_true(f.message[0] && strlen(f.message) < sizeof f.message - 1);
        nb_ask_clear(&a);
    }
}

static void test_values(void **state)
{
    nb_ask a;
    nb_refusal f;

    (void)state;
    assert_true(parse(true, "{" MSG "}", &a, &f)); /* SMP-1: the model's defaults */
    assert_true(a.sampling.temperature == 0.6f && a.sampling.top_k == 20 && a.sampling.top_p == 0.95f &&
                a.sampling.repetition_penalty == 1.1f);
    assert_true(!a.has_seed && a.max_tokens == -1 && a.n == 1 && a.skip_special && !a.add_special && a.add_generation_prompt &&
                a.prompt_logprobs == -1);
    nb_ask_clear(&a);

    assert_true(parse(true,
                      "{" MSG ",\"temperature\":0,\"top_k\":-1,\"seed\":42,\"max_completion_tokens\":7,\"stop\":[\"a\",\"bc\"],"
                      "\"logit_bias\":{\"3\":500},\"stream\":true,\"stream_options\":{\"include_usage\":true},\"unknown\":1}",
                      &a, &f));
    assert_true(a.sampling.temperature == 0 && a.sampling.top_k == 0 && a.has_seed && a.sampling.seed == 42 && a.max_tokens == 7);
    assert_true(a.n_stop == 2 && strcmp(a.stop[1], "bc") == 0 && a.n_bias == 1 && a.bias[0].id == 3 && a.bias[0].value == 100);
    assert_true(a.stream && a.include_usage && a.n_ignored == 1 && strcmp(a.max_tokens_name, "max_completion_tokens") == 0);
    nb_ask_clear(&a);

    assert_true(parse(false, "{\"prompt\":[[1,2],[3]],\"n\":2,\"logprobs\":0}", &a, &f));
    assert_true(a.n_prompts == 2 && a.prompts[0].n_ids == 2 && a.prompts[1].ids[0] == 3 && a.logprobs && a.top_logprobs == 0 &&
                a.add_special);
    nb_ask_clear(&a);

    assert_true(parse(true,
                      "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"
                      "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"response_format\":{\"type\":\"text\"}}",
                      &a, &f));
    assert_true(a.tool_choice == NB_CALLS_NAMED && strcmp(a.tool_name, "f") == 0);
    nb_ask_clear(&a);

    assert_true(parse(
        true, "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"object\"}}}}",
        &a, &f));
    assert_true(a.constraint == NB_CON_SCHEMA && nb_json_typeof(a.schema) == NB_JOBJ);
    nb_ask_clear(&a);
    assert_true(parse(true, "{" MSG ",\"guided_json\":\"{\\\"type\\\":\\\"string\\\"}\"}", &a, &f)); /* a schema as text */
    assert_true(a.constraint == NB_CON_SCHEMA && nb_json_typeof(a.schema) == NB_JOBJ);
    nb_ask_clear(&a);
}

/* RQ-04, RQ-13, RQ-15: sizes at and over the limit; JSON too deep. */
static void test_sizes(void **state)
{
    nb_buf b = { 0 };
    nb_ask a;
    nb_refusal f;

    (void)state;
    for (int over = 0; over < 2; over++) {
        b.n = 0;
        nb_buf_puts(&b, "{\"messages\":[");
        for (int i = 0; i < 2048 + over; i++)
            nb_buf_printf(&b, "%s{\"role\":\"user\",\"content\":\"a\"}", i ? "," : "");
        nb_buf_puts(&b, "]}");
        assert_int_equal(parse(true, b.p, &a, &f), !over);
        nb_ask_clear(&a);

        b.n = 0;
        nb_buf_puts(&b, "{" MSG ",\"stop\":\"");
        for (int i = 0; i < 1024 + over; i++)
            nb_buf_putc(&b, 'x');
        nb_buf_puts(&b, "\"}");
        assert_int_equal(parse(true, b.p, &a, &f), !over);
        nb_ask_clear(&a);

        b.n = 0;
        nb_buf_puts(&b, "{" MSG ",\"tools\":[");
        for (int i = 0; i < 128 + over; i++)
            nb_buf_printf(&b, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}", i ? "," : "", i);
        nb_buf_puts(&b, "]}");
        assert_int_equal(parse(true, b.p, &a, &f), !over);
        nb_ask_clear(&a);

        b.n = 0;
        nb_buf_puts(&b, "{" MSG ",\"x\":");
        for (int i = 0; i < 63 + over; i++)
            nb_buf_putc(&b, '[');
        for (int i = 0; i < 63 + over; i++)
            nb_buf_putc(&b, ']');
        nb_buf_putc(&b, '}');
        assert_int_equal(parse(true, b.p, &a, &f), !over);
        if (over)
            assert_string_equal(f.code, "json_too_deep");
        nb_ask_clear(&a);
    }
    nb_buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
