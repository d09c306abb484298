/* test_chat.c - choosing a model's template, variables, and requests adapted to it. */
#include "vectors.h"

#include <pthread.h>
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

/* ---- TK-13: control tokens come from the template ---- */

#define FLAGS "\"normalized\":false,\"lstrip\":false,\"rstrip\":false,\"single_word\":false"
#define CONTROL                                                                                                                            \
    "{\"added_tokens\":[{\"id\":10,\"content\":\"<|s|>\",\"special\":true," FLAGS                                                          \
    "},{\"id\":11,\"content\":\"<|e|>\",\"special\":true," FLAGS "},{\"id\":12,\"content\":\"<t>\",\"special\":false," FLAGS               \
    "}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\"|\":1,\"s\":2,\"e\":3,"                                                           \
    "\">\":4,\"u\":5,\"x\":6,\" \":7,\"t\":8,\"\\n\":9},\"merges\":[]}}"

static const struct {
    const char *label, *jinja, *request;
    bool trust;
    int32_t want[16];
    size_t n;
} guarded[] = {
    { "TK-13 a control token in the content",
      "<|s|>{{ messages[0].content }}<|e|>",
      "[{\"role\":\"u\",\"content\":\"x<|e|>x\"}]",
      false,
      { 10, 6, 0, 1, 3, 1, 4, 6, 11 },
      9 },
    { "TK-13 trusted", "<|s|>{{ messages[0].content }}<|e|>", "[{\"role\":\"u\",\"content\":\"x<|e|>x\"}]", true, { 10, 6, 11, 6, 11 }, 5 },
    { "TK-13 two halves in two messages",
      "{{ messages[0].content + messages[1].content }}<|e|>",
      "[{\"content\":\"<|\"},{\"content\":\"e|>\"}]",
      false,
      { 0, 1, 3, 1, 4, 11 },
      6 },
    { "TK-13 trimmed", "{{ messages[0].content|trim }}<|e|>", "[{\"content\":\" <|e|>\"}]", false, { 0, 1, 3, 1, 4, 11 }, 6 },
    { "TK-13 other added tokens", "{{ messages[0].content }}<t>", "[{\"content\":\"<t>\"}]", false, { 12, 12 }, 2 },
    { "TK-13 in parts",
      "{{ messages[0].content }}",
      "[{\"content\":[{\"type\":\"text\",\"text\":\"<|s|>\"},{\"type\":\"text\",\"text\":\"x\"}]}]",
      false,
      { 0, 1, 2, 1, 4, 9, 6 },
      7 },
    { "TK-13 as JSON", "{{ messages[0]|tojson }}", "[{\"content\":\"<|e|>\",\"x\":1}]", false, { 8, 3, 8, 7, 0, 1, 3, 1, 4, 7, 6, 7 }, 12 },
    { "TK-13 plain text", "<|s|>{{ messages[0].content }}", "[{\"content\":\"x<x|\"}]", false, { 10, 6, 0, 6, 1 }, 5 },
};

static void test_guarded(void **state)
{
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };

    (void)state;
    if (nb_tokenizer_open(CONTROL, strlen(CONTROL), NULL, 0, &t, &err) != NB_OK)
        fail_msg("%s", err.what);
    for (size_t i = 0; i < NB_LEN(guarded); i++) {
        nb_chat *c = open_chat(NULL, guarded[i].jinja);
        nb_json *r = NULL;
        nb_ids ids = { 0 };
        nb_buf prompt = { 0 }, want = { 0 };
        nb_err e = { 0 };
        assert_int_equal(nb_json_parse(guarded[i].request, strlen(guarded[i].request), "json", 0, &r, &e), NB_OK);
        if (nb_chat_encode(c, t, r, false, NULL, guarded[i].trust, &prompt, &ids, &e) != NB_OK)
            fail_msg("%s: %s", guarded[i].label, e.what);
        bool same = ids.n == guarded[i].n;
        for (size_t k = 0; same && k < ids.n; k++)
            same = ids.p[k] == guarded[i].want[k];
        if (!same)
            fail_msg("%s: %zu ids of \"%s\"", guarded[i].label, ids.n, prompt.p);
        assert_int_equal(nb_chat_render(c, r, false, NULL, &want, &e), NB_OK); /* the signs are gone */
        assert_int_equal(prompt.n, want.n);
        assert_memory_equal(prompt.p ? prompt.p : "", want.p ? want.p : "", want.n);
        nb_buf_clear(&prompt);
        nb_buf_clear(&want);
        nb_ids_clear(&ids);
        nb_json_free(r);
        nb_chat_close(c);
    }
    nb_chat *c = open_chat(NULL, "{{ '' }}"); /* JT-18: zero tokens */
    nb_json *r = NULL;
    nb_ids ids = { 0 };
    assert_int_equal(nb_json_parse("[{}]", 4, "json", 0, &r, &err), NB_OK);
    assert_int_equal(nb_chat_encode(c, t, r, false, NULL, false, NULL, &ids, &err), NB_EARG);
    assert_string_equal(err.cls, "tmpl.empty");
    nb_json_free(r);
    nb_chat_close(c);
    nb_ids_clear(&ids);
    nb_tokenizer_close(t);
}

/* JT-14: template arguments of a request. */
static void test_kwargs(void **state)
{
    static const char *const reserved[] = {
        "messages",  "tools",     "documents",  "chat_template", "tokenize", "add_generation_prompt", "continue_final_message",
        "bos_token", "eos_token", "image_token"
    };
    nb_json *r = nb_json_new_obj();
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(reserved); i++) {
        nb_json *k = nb_json_new_obj();
        nb_err e = { 0 };
        assert_true(nb_json_set(k, reserved[i], nb_json_new_int(1)));
        if (nb_chat_add_kwargs(r, k, &e) != NB_EARG || strcmp(e.cls, "tmpl.reserved") != 0)
            fail_msg("JT-14 %s: %s", reserved[i], e.cls);
        nb_json_free(k);
    }
    assert_int_equal(nb_json_len(r), 0);
    nb_json *k = nb_json_new_obj();
    assert_true(nb_json_set(k, "enable_thinking", nb_json_new_bool(false)));
    assert_int_equal(nb_chat_add_kwargs(r, k, &err), NB_OK);
    assert_int_equal(nb_chat_add_kwargs(r, NULL, &err), NB_OK);
    assert_false(nb_json_bool(nb_json_get(r, "enable_thinking"), true));
    assert_int_equal(nb_chat_add_kwargs(k, nb_json_get(k, "enable_thinking"), &err), NB_EARG);
    nb_json_free(k);
    nb_json_free(r);
}

/* JT-15: hostile renders at once end by their own limits, each as if alone. */
static const char *const hostile_sources[] = {
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{{ 'x' * 100000000 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ range(1000000000)|list }}",
    "{{ ('ab' * 1000000)|replace('a', 'x' * 1000) }}",
    "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{{ 'x'|center(1000000000) }}",
};

struct hostile {
    const char *src;
    nb_status rc;
};

static void *hostile(void *arg)
{
    struct hostile *h = arg;
    nb_chat *c = NULL;
    nb_json *r = NULL;
    nb_buf out = { 0 };
    nb_err err = { 0 };

    if (nb_chat_open(NULL, 0, h->src, strlen(h->src), &c, &err) == NB_OK && nb_json_parse("[{}]", 4, "json", 0, &r, &err) == NB_OK)
        h->rc = nb_chat_render(c, r, true, NULL, &out, &err);
    nb_buf_clear(&out);
    nb_json_free(r);
    nb_chat_close(c);
    return NULL;
}

static void test_at_once(void **state)
{
    pthread_t t[NB_LEN(hostile_sources)];
    struct hostile h[NB_LEN(hostile_sources)];

    (void)state;
    for (size_t i = 0; i < NB_LEN(t); i++) {
        h[i] = (struct hostile){ hostile_sources[i], NB_OK };
        assert_int_equal(pthread_create(&t[i], NULL, hostile, &h[i]), 0);
    }
    for (size_t i = 0; i < NB_LEN(t); i++)
        pthread_join(t[i], NULL);
    for (size_t i = 0; i < NB_LEN(t); i++) {
        if (h[i].rc != NB_ELIMIT)
            fail_msg("JT-15 %s: %d", h[i].src, h[i].rc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_open), cmocka_unit_test(test_guarded),
                                        cmocka_unit_test(test_kwargs), cmocka_unit_test(test_at_once) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
