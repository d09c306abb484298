/* test_chat.c - choosing a model's template, variables, and requests adapted to it. */
#include "vectors.h"

#include <stdbool.h>

#include "text/chat.h"

#define ECHO "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}{{ 'G' if add_generation_prompt }}"

static nb_chat *open_chat(const char *config, const char *jinja)
{
    nb_chat *c = NULL;
    nb_err err = { 0 };

    if (nb_chat_open(config, config ? strlen(config) : 0, jinja, jinja ? strlen(jinja) : 0, &c, &err) != NB_OK)
        fail_msg("open: %s: %s", err.cls, err.what);
    return c;
}

static nb_status render(const nb_chat *c, const char *request, nb_buf *out, nb_err *err)
{
    nb_json *r = NULL;
    nb_status rc;

    if (nb_json_parse(request, strlen(request), "json", 0, &r, err) != NB_OK)
        fail_msg("request: %s", err->what);
    rc = nb_chat_render(c, r, true, NULL, out, err);
    nb_json_free(r);
    return rc;
}

static const struct {
    const char *label, *config, *jinja, *request, *want; /* want NULL: an error of class cls */
    const char *cls;
} rows[] = {
    { "array of messages", NULL, ECHO, "[{\"role\":\"user\",\"content\":\"hi\"}]", "<user:hi>G", NULL },
    { "object", NULL, ECHO, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"add_generation_prompt\":false}", "<user:hi>", NULL },
    { "further variables", NULL, "{{ x }}{{ bos_token }}", "{\"messages\":[{}],\"x\":12345678901234567890}", "12345678901234567890", NULL },
    { "tools and documents are none", NULL, "{{ tools is none }}{{ documents is none }}", "[{}]", "TrueTrue", NULL },
    { "special tokens",
      "{\"chat_template\":\"{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ image_token "
      "}}\",\"bos_token\":\"<s>\",\"eos_token\":"
      "{\"content\":\"</s>\"},\"pad_token\":null,\"add_bos_token\":true,\"extra_special_tokens\":{\"image_token\":\"<i>\"}}",
      NULL, "[{}]", "<s></s>False<i>", NULL },
    { "file before configuration", "{\"chat_template\":\"a\"}", "b", "[{}]", "b", NULL },
    { "JT-17 named templates", "{\"chat_template\":[{\"name\":\"default\",\"template\":\"a\"},{\"name\":\"tool_use\",\"template\":\"b\"}]}",
      NULL, "[{}]", "a", NULL },
    { "JT-17 tool_use with tools",
      "{\"chat_template\":[{\"name\":\"default\",\"template\":\"a\"},{\"name\":\"tool_use\",\"template\":\"b\"}]}", NULL,
      "{\"messages\":[{}],\"tools\":[{}]}", "b", NULL },
    { "no template", "{}", NULL, "[{}]", NULL, "tmpl.none" },
    { "template that does not compile", "{\"chat_template\":\"{{\"}", NULL, "[{}]", NULL, "tmpl.syntax" },
    { "no messages", NULL, "a", "[]", NULL, "tmpl.request" },
    { "not a request", NULL, "a", "{\"x\":1}", NULL, "tmpl.request" },
    { "null content is empty", NULL, ECHO, "[{\"role\":\"assistant\",\"content\":null}]", "<assistant:>G", NULL },
    { "null keys are absent", NULL, "{{ messages[0].tool_calls is defined }}", "[{\"tool_calls\":null}]", "False", NULL },
    { "text parts are joined", NULL, ECHO,
      "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]", "<user:a\nb>G", NULL },
    { "template that wants parts", NULL, "{% for p in messages[0].content %}{{ p.text + '.' }}{% endfor %}",
      "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", "a.", NULL },
    { "other parts stay", NULL, "{{ messages[0].content[0].type }}", "[{\"content\":[{\"type\":\"image\"}]}]", "image", NULL },
    { "arguments as text", NULL, "{{ messages[0].tool_calls[0].function.arguments.x }}",
      "[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1.0}\"}}]}]", "1.0", NULL },
    { "arguments that do not parse", NULL, "{{ messages[0].tool_calls[0].function.arguments }}",
      "[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{x\"}}]}]", "{x", NULL },
    { "template that wants arguments as text", NULL, "{{ 'a' + messages[0].tool_calls[0].function.arguments }}",
      "[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]}]", "a{\"x\": 1}", NULL },
    { "reasoning", NULL, "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", "[{\"reasoning\":\"r\"}]", "rr", NULL },
    { "system role refused", NULL, "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" ECHO,
      "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]", "<user:s\n\nu>G", NULL },
    { "what the template refuses", NULL, "{{ raise_exception('never') }}", "[{}]", NULL, "tmpl.raise" },
    { "own lists may change", NULL,
      "{% set l = [] %}{% set _ = l.append(1) %}{% set d = {} %}{% set _ = d.update({'a': 2}) %}{{ l }}{{ d }}", "[{}]", "[1]{'a': 2}",
      NULL },
    { "lists of the request do not", NULL, "{{ messages.append(1) }}", "[{}]", NULL, "tmpl.eval" },
    { "JT-12 a list in itself", NULL, "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "[{}]", NULL, "tmpl.eval" },
    { "JT-12 a list in itself, as JSON", NULL, "{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", "[{}]", NULL, "tmpl.eval" },
    { "JT-12 a list in itself, compared", NULL,
      "{% set l = [] %}{% set _ = l.append(l) %}{% set k = [] %}{% set _ = k.append(k) %}{{ l == k }}", "[{}]", NULL, "tmpl.eval" },
    { "a list that grows in its loop", NULL, "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}{{ l }}", "[{}]",
      "[1, 1]", NULL },
    { "continue the final message", NULL, ECHO "<end>",
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"so \"}],\"continue_final_message\":true}", "<assistant:so ", NULL },
    { "continue where the template trims", NULL, "{{ messages[0].content|trim }}<end>",
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"so \"}],\"continue_final_message\":true}", "so", NULL },
    { "continue what is not printed", NULL, "x", "{\"messages\":[{\"content\":\"so\"}],\"continue_final_message\":true}", NULL,
      "tmpl.continue" },
    { "continue and generate", NULL, ECHO,
      "{\"messages\":[{\"content\":\"so\"}],\"continue_final_message\":true,\"add_generation_prompt\":true}", NULL, "tmpl.request" },
    { "JT-10 content that looks like a template", NULL, ECHO, "[{\"role\":\"user\",\"content\":\"{{ 1 }}{% raw %}\"}]",
      "<user:{{ 1 }}{% raw %}>G", NULL },
    { "JT-11 messages of odd types", NULL, ECHO, "[1,null,[],{\"role\":7,\"content\":{\"a\":[1]}}]", "<:><:><:><7:{'a': [1]}>G", NULL },
    { "JT-11 odd content", NULL, ECHO, "[{\"role\":7,\"content\":{\"a\":[1]}},{\"role\":[],\"content\":false},{\"tool_calls\":3}]",
      "<7:{'a': [1]}><[]:False><:>G", NULL },
};

static void test_rows(void **state)
{
    size_t bad = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_chat *c = open_chat(rows[i].config, rows[i].jinja);
        nb_buf out = { 0 };
        nb_err err = { 0 };
        const nb_status rc = render(c, rows[i].request, &out, &err);
        const char *got = out.p ? out.p : "";
        if (rows[i].want ? rc != NB_OK || strcmp(got, rows[i].want) != 0 : rc == NB_OK || strcmp(err.cls, rows[i].cls) != 0) {
            bad++;
            print_message("not ok: %s: got %d %s: %s \"%s\"\n", rows[i].label, rc, err.cls, err.what, got);
        }
        nb_buf_clear(&out);
        nb_chat_close(c);
    }
    assert_int_equal(bad, 0);
}

static void test_open(void **state)
{
    static const struct {
        const char *label, *config, *cls;
    } bad[] = {
        { "JT-17 no default", "{\"chat_template\":[{\"name\":\"a\",\"template\":\"b\"}]}", "tmpl.select" },
        { "JT-17 twice", "{\"chat_template\":[{\"name\":\"a\",\"template\":\"b\"},{\"name\":\"a\",\"template\":\"c\"}]}", "tmpl.select" },
        { "JT-17 no name", "{\"chat_template\":[{\"template\":\"b\"}]}", "tmpl.select" },
        { "JT-17 a number", "{\"chat_template\":3}", "tmpl.select" },
        { "not JSON", "{", "tok.json" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_chat *c = NULL;
        nb_err err = { 0 };
        const nb_status rc = nb_chat_open(bad[i].config, strlen(bad[i].config), NULL, 0, &c, &err);
        if (rc != NB_EFORMAT || c || strcmp(err.cls, bad[i].cls) != 0)
            fail_msg("%s: got %d %s", bad[i].label, rc, err.cls);
    }
    nb_chat *c = open_chat("{\"chat_template\":\"{{\"}", NULL);
    nb_err err = { 0 };
    assert_true(nb_chat_has_template(c));
    assert_int_equal(nb_chat_check(c, &err), NB_EFORMAT);
    assert_string_equal(err.cls, "tmpl.syntax");
    nb_chat_close(c);
    c = open_chat(NULL, NULL);
    assert_false(nb_chat_has_template(c));
    assert_int_equal(nb_chat_check(c, NULL), NB_OK);
    nb_chat_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_open) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
