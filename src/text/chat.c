/* chat.c - the templates of a model, and requests adapted to what templates expect. Spec chat-templates 10-12. */
#include "text/chat.h"

#include <string.h>

#include "text/jinja.h"

#define TEMPLATES_MOST 64
#define MARKER         "CONTINUE_FINAL_MESSAGE_TAG "

typedef struct named {
    char *name;
    nb_template *t; /* NULL: did not compile */
    nb_err why;
} named;

struct nb_chat {
    nb_json *config; /* tokenizer_config.json, or NULL */
    named *v;
    size_t n;
    size_t plain, tools; /* index of the templates without and with tools */
};

/* ---- opening ---- */

static nb_status add(nb_chat *c, const char *name, const char *src, size_t n, nb_err *err)
{
    named *t = &c->v[c->n];

    t->name = nb_strdup(name);
    if (!t->name)
        return nb_enomem(err, "the chat template");
    c->n++;
    if (nb_template_open(src, n, &t->t, &t->why) == NB_ENOMEM)
        return nb_enomem(err, "the chat template");
    return NB_OK;
}

static nb_status select_error(nb_err *err, const char *what)
{
    return nb_fail(err, NB_EFORMAT, "tmpl.select", "JT-17", "chat_template of tokenizer_config.json: %s", what);
}

/* [{name, template}, ...] */
static nb_status add_list(nb_chat *c, const nb_json *list, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < nb_json_len(list) && rc == NB_OK; i++) {
        const nb_json *e = nb_json_at(list, i), *src = nb_json_get(e, "template");
        const char *name = nb_json_str(nb_json_get(e, "name"), NULL);
        if (!name || nb_json_typeof(src) != NB_JSTR)
            return select_error(err, "an entry of the list has no name or no template");
        for (size_t k = 0; k < c->n; k++)
            if (strcmp(c->v[k].name, name) == 0)
                return select_error(err, "two templates have the same name");
        rc = add(c, name, nb_json_str(src, ""), nb_json_str_len(src), err);
    }
    return rc;
}

static size_t find_named(const nb_chat *c, const char *name)
{
    size_t i = 0;

    while (i < c->n && strcmp(c->v[i].name, name) != 0)
        i++;
    return i;
}

static nb_status open_templates(nb_chat *c, const char *jinja, size_t n_jinja, nb_err *err)
{
    const nb_json *t = nb_json_get(c->config, "chat_template");
    const size_t n = jinja || nb_json_typeof(t) != NB_JARR ? 1 : nb_json_len(t);
    nb_status rc = NB_OK;

    if (n > TEMPLATES_MOST)
        return select_error(err, "more than 64 templates");
    c->v = nb_calloc(n ? n : 1, sizeof *c->v);
    if (!c->v)
        return nb_enomem(err, "the chat template");
    if (jinja)
        rc = add(c, "default", jinja, n_jinja, err);
    else if (nb_json_typeof(t) == NB_JSTR)
        rc = add(c, "default", nb_json_str(t, ""), nb_json_str_len(t), err);
    else if (nb_json_typeof(t) == NB_JARR)
        rc = add_list(c, t, err);
    else if (!nb_json_is_null(t))
        rc = select_error(err, "neither a text nor a list of named templates");
    c->plain = find_named(c, "default");
    c->tools = find_named(c, "tool_use");
    if (c->tools == c->n)
        c->tools = c->plain;
    if (rc == NB_OK && c->n && c->plain == c->n)
        rc = select_error(err, "no template is called \"default\"");
    return rc;
}

nb_status nb_chat_open(const char *tokenizer_config, size_t n, const char *jinja_file, size_t n_jinja, nb_chat **out, nb_err *err)
{
    nb_chat *c = nb_calloc(1, sizeof *c);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!c)
        return nb_enomem(err, "the chat template");
    if (tokenizer_config)
        rc = nb_json_parse(tokenizer_config, n, "tok", 0, &c->config, err);
    if (rc == NB_OK)
        rc = open_templates(c, jinja_file, n_jinja, err);
    if (rc == NB_OK) {
        *out = c;
        return NB_OK;
    }
    nb_chat_close(c);
    return rc;
}

void nb_chat_close(nb_chat *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++) {
        nb_template_close(c->v[i].t);
        nb_free(c->v[i].name);
    }
    nb_free(c->v);
    nb_json_free(c->config);
    nb_free(c);
}

bool nb_chat_has_template(const nb_chat *c)
{
    return c && c->n > 0;
}

static nb_status repeat_error(const nb_err *why, nb_err *err)
{
    if (err && err->code == NB_OK)
        *err = *why;
    return why->code;
}

nb_status nb_chat_check(const nb_chat *c, nb_err *err)
{
    for (size_t i = 0; c && i < c->n; i++)
        if (!c->v[i].t)
            return repeat_error(&c->v[i].why, err);
    return NB_OK;
}

/* ---- messages ---- */

typedef struct shape {
    bool text_args;  /* tool-call arguments as JSON text, not objects */
    bool keep_parts; /* lists of text parts stay lists */
    bool merge;      /* the system message goes into the first user message */
    bool extend;     /* MARKER behind the last message */
} shape;

/* All parts are texts: their texts joined by newlines; NULL when some part is something else (or no memory). */
static nb_json *join_parts(const nb_json *parts)
{
    nb_buf b = { 0 };
    nb_json *v = NULL;
    bool all = nb_json_len(parts) > 0;

    for (size_t i = 0; i < nb_json_len(parts) && all; i++) {
        const nb_json *part = nb_json_at(parts, i), *text = nb_json_get(part, "text");
        all = strcmp(nb_json_str(nb_json_get(part, "type"), "text"), "text") == 0 && nb_json_typeof(text) == NB_JSTR;
        if (all && i)
            nb_buf_putc(&b, '\n');
        if (all)
            nb_buf_put(&b, nb_json_str(text, ""), nb_json_str_len(text));
    }
    if (all && !b.failed)
        v = nb_json_new_strn(b.p ? b.p : "", b.n);
    nb_buf_clear(&b);
    return v;
}

static nb_json *adapt_content(const nb_json *v, const shape *s)
{
    nb_json *joined = nb_json_typeof(v) == NB_JARR && !s->keep_parts ? join_parts(v) : NULL;

    if (joined)
        return joined;
    return nb_json_is_null(v) ? nb_json_new_str("") : nb_json_copy(v);
}

static nb_json *adapt_arguments(const nb_json *v, const shape *s)
{
    nb_json *parsed = NULL, *out;
    nb_err err = { 0 };
    char *text;

    if (nb_json_typeof(v) == NB_JSTR && !s->text_args) {
        if (nb_json_parse(nb_json_str(v, ""), nb_json_str_len(v), "json", 0, &parsed, &err) == NB_OK && nb_json_typeof(parsed) == NB_JOBJ)
            return parsed;
        nb_json_free(parsed);
    }
    if (nb_json_typeof(v) == NB_JOBJ && s->text_args) {
        text = nb_json_dump(v, 0, false);
        out = text ? nb_json_new_str(text) : NULL;
        nb_free(text);
        return out;
    }
    return nb_json_copy(v);
}

static nb_json *adapt_calls(const nb_json *calls, const shape *s)
{
    nb_json *out = nb_json_copy(calls);

    for (size_t i = 0; out && nb_json_typeof(calls) == NB_JARR && i < nb_json_len(calls); i++) {
        const nb_json *call = nb_json_at(calls, i), *fn = nb_json_get(call, "function");
        const nb_json *args = nb_json_get(fn ? fn : call, "arguments");
        nb_json *target = (nb_json *)(uintptr_t)(fn ? nb_json_get(nb_json_at(out, i), "function") : nb_json_at(out, i));
        if (args && !nb_json_set(target, "arguments", adapt_arguments(args, s))) {
            nb_json_free(out);
            return NULL;
        }
    }
    return out;
}

/* reasoning_content, thinking and reasoning are one thing; templates read the first two. */
static bool add_reasoning(nb_json *out, const nb_json *m)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    const nb_json *v = NULL;

    for (size_t i = 0; i < NB_LEN(names) && nb_json_is_null(v); i++)
        v = nb_json_get(m, names[i]);
    if (nb_json_is_null(v))
        return true;
    return (nb_json_get(out, "thinking") || nb_json_set(out, "thinking", nb_json_copy(v))) &&
           nb_json_set(out, "reasoning_content", nb_json_copy(v));
}

static nb_json *adapt_message(const nb_json *m, const shape *s)
{
    nb_json *out = nb_json_typeof(m) == NB_JOBJ ? nb_json_new_obj() : nb_json_copy(m);
    bool ok = out != NULL;

    for (size_t i = 0; ok && nb_json_typeof(m) == NB_JOBJ && i < nb_json_len(m); i++) {
        const char *key;
        const nb_json *v = nb_json_member(m, i, &key);
        if (strcmp(key, "content") == 0)
            ok = nb_json_set(out, key, adapt_content(v, s));
        else if (strcmp(key, "tool_calls") == 0 && !nb_json_is_null(v))
            ok = nb_json_set(out, key, adapt_calls(v, s));
        else if (!nb_json_is_null(v))
            ok = nb_json_set(out, key, nb_json_copy(v));
    }
    if (ok && nb_json_typeof(m) == NB_JOBJ)
        ok = add_reasoning(out, m);
    if (!ok) {
        nb_json_free(out);
        return NULL;
    }
    return out;
}

static bool has_role(const nb_json *m, const char *role)
{
    return strcmp(nb_json_str(nb_json_get(m, "role"), ""), role) == 0;
}

/* m's text content preceded or followed by more; false also when the content is no text. */
static bool add_text(nb_json *m, const char *before, size_t n_before, const char *after)
{
    const nb_json *content = nb_json_get(m, "content");
    nb_buf b = { 0 };
    bool ok;

    if (nb_json_typeof(content) != NB_JSTR)
        return false;
    nb_buf_put(&b, before, n_before);
    nb_buf_put(&b, nb_json_str(content, ""), nb_json_str_len(content));
    nb_buf_puts(&b, after);
    ok = !b.failed && nb_json_set(m, "content", nb_json_new_strn(b.p ? b.p : "", b.n));
    nb_buf_clear(&b);
    return ok;
}

/* The last message's text, or its last text part, gets the marker. */
static bool extend_last(nb_json *messages)
{
    const size_t n = nb_json_len(messages);
    nb_json *last = (nb_json *)(uintptr_t)nb_json_at(messages, n ? n - 1 : 0);
    const nb_json *content = nb_json_get(last, "content"), *part = NULL;

    if (nb_json_typeof(content) == NB_JSTR)
        return add_text(last, "", 0, MARKER);
    for (size_t i = 0; i < nb_json_len(content); i++)
        if (nb_json_typeof(nb_json_get(nb_json_at(content, i), "text")) == NB_JSTR)
            part = nb_json_at(content, i);
    if (!part)
        return false;
    nb_buf b = { 0 };
    nb_buf_puts(&b, nb_json_str(nb_json_get(part, "text"), ""));
    nb_buf_puts(&b, MARKER);
    const bool ok = !b.failed && nb_json_set((nb_json *)(uintptr_t)part, "text", nb_json_new_strn(b.p, b.n));
    nb_buf_clear(&b);
    return ok;
}

static nb_json *adapt_messages(const nb_json *messages, const shape *s)
{
    const nb_json *system = nb_json_at(messages, 0), *text = nb_json_get(system, "content");
    const bool merge = s->merge && has_role(system, "system") && has_role(nb_json_at(messages, 1), "user");
    nb_json *out = nb_json_new_arr();
    bool ok = out != NULL;

    for (size_t i = merge; ok && i < nb_json_len(messages); i++) {
        nb_json *m = adapt_message(nb_json_at(messages, i), s);
        ok = nb_json_push(out, m);
        if (ok && merge && i == 1 && nb_json_typeof(text) == NB_JSTR) {
            nb_buf b = { 0 };
            nb_buf_put(&b, nb_json_str(text, ""), nb_json_str_len(text));
            nb_buf_puts(&b, "\n\n");
            ok = !b.failed && add_text(m, b.p, b.n, "");
            nb_buf_clear(&b);
        }
    }
    ok = ok && (!s->extend || extend_last(out));
    if (ok)
        return out;
    nb_json_free(out);
    return NULL;
}

/* ---- variables ---- */

/* Every "..._token" that is set, as text. */
static bool add_tokens(nb_json *vars, const nb_json *config)
{
    static const char *const more[] = { "extra_special_tokens", "model_specific_special_tokens" };
    bool ok = true;

    for (size_t k = 0; k <= NB_LEN(more); k++) {
        const nb_json *from = k ? nb_json_get(config, more[k - 1]) : config;
        for (size_t i = 0; ok && nb_json_typeof(from) == NB_JOBJ && i < nb_json_len(from); i++) {
            const char *key;
            const nb_json *v = nb_json_member(from, i, &key);
            const size_t n = strlen(key);
            if (nb_json_typeof(v) == NB_JOBJ)
                v = nb_json_get(v, "content");
            if (n > 6 && strcmp(key + n - 6, "_token") == 0 && nb_json_typeof(v) == NB_JSTR)
                ok = nb_json_set(vars, key, nb_json_copy(v));
        }
    }
    return ok;
}

static nb_json *make_vars(const nb_chat *c, const nb_json *request, const nb_json *messages, const shape *s, bool gen)
{
    nb_json *vars = nb_json_new_obj();
    bool ok = vars && add_tokens(vars, c->config) && nb_json_set(vars, "tools", nb_json_new_null()) &&
              nb_json_set(vars, "documents", nb_json_new_null()) && nb_json_set(vars, "add_generation_prompt", nb_json_new_bool(gen));

    for (size_t i = 0; ok && nb_json_typeof(request) == NB_JOBJ && i < nb_json_len(request); i++) {
        const char *key;
        const nb_json *v = nb_json_member(request, i, &key);
        if (strcmp(key, "messages") != 0 && strcmp(key, "add_generation_prompt") != 0 && strcmp(key, "continue_final_message") != 0)
            ok = nb_json_set(vars, key, nb_json_copy(v));
    }
    ok = ok && nb_json_set(vars, "messages", adapt_messages(messages, s));
    if (ok)
        return vars;
    nb_json_free(vars);
    return NULL;
}

/* ---- rendering ---- */

/* Cut the prompt before the marker; where the template stripped the marker's blank, blanks before it go too. */
static nb_status cut_at_marker(nb_buf *out, size_t from, nb_err *err)
{
    const size_t n = sizeof MARKER - 2; /* without its blank */
    size_t hit = SIZE_MAX;
    bool blank;

    for (size_t i = from; out->p && i + n <= out->n; i++)
        if (memcmp(out->p + i, MARKER, n) == 0)
            hit = i;
    if (hit == SIZE_MAX) {
        out->n = from;
        return nb_fail(err, NB_EFORMAT, "tmpl.continue", "", "the template does not print the final message, so it cannot be continued");
    }
    blank = hit + n < out->n && out->p[hit + n] == ' ';
    while (!blank && hit > from && strchr(" \t\n\r\v\f", out->p[hit - 1]) && out->p[hit - 1])
        hit--;
    out->n = hit;
    out->p[hit] = '\0';
    return NB_OK;
}

static nb_status render_as(const nb_chat *c, const nb_template *t, const nb_json *request, const nb_json *messages, const shape *s,
                           bool gen, const struct tm *now, nb_buf *out, nb_err *err)
{
    nb_json *vars = make_vars(c, request, messages, s, gen);
    const size_t from = out->n;
    nb_status rc;

    if (!vars)
        return s->extend ? nb_fail(err, NB_EARG, "tmpl.request", "", "the final message has no text that could be continued")
                         : nb_enomem(err, "the variables of the chat template");
    rc = nb_j_render(t, vars, now, true, out, err);
    if (rc == NB_OK && s->extend)
        rc = cut_at_marker(out, from, err);
    nb_json_free(vars);
    return rc;
}

static bool has_calls_or_parts(const nb_json *messages)
{
    for (size_t i = 0; i < nb_json_len(messages); i++) {
        const nb_json *m = nb_json_at(messages, i);
        if (nb_json_len(nb_json_get(m, "tool_calls")) || nb_json_typeof(nb_json_get(m, "content")) == NB_JARR)
            return true;
    }
    return false;
}

nb_status nb_chat_render(const nb_chat *c, const nb_json *request, bool gen_default, const struct tm *now, nb_buf *out, nb_err *err)
{
    const nb_json *messages = nb_json_typeof(request) == NB_JOBJ ? nb_json_get(request, "messages") : request;
    const bool extend = nb_json_bool(nb_json_get(request, "continue_final_message"), false);
    const bool gen = nb_json_bool(nb_json_get(request, "add_generation_prompt"), gen_default && !extend);
    const shape shapes[] = { { .extend = extend },
                             { .text_args = true, .keep_parts = true, .extend = extend },
                             { .merge = true, .extend = extend } };
    const named *t;
    nb_err first = { 0 };
    nb_status rc = NB_OK;

    if (!nb_chat_has_template(c))
        return nb_fail(err, NB_EUNSUPPORTED, "tmpl.none", "",
                       "the model has no chat template, so messages cannot be turned into a prompt; put a chat_template.jinja beside the "
                       "tokenizer, or use text");
    if (nb_json_typeof(messages) != NB_JARR || !nb_json_len(messages))
        return nb_fail(err, NB_EARG, "tmpl.request", "",
                       "a request is an array of messages, or an object with \"messages\", and not empty");
    if (extend && gen)
        return nb_fail(err, NB_EARG, "tmpl.request", "", "continue_final_message and add_generation_prompt exclude each other");
    t = &c->v[nb_json_len(nb_json_get(request, "tools")) ? c->tools : c->plain];
    if (!t->t)
        return repeat_error(&t->why, err);
    for (size_t i = 0; i < NB_LEN(shapes); i++) {
        nb_err e = { 0 };
        if ((i == 1 && !has_calls_or_parts(messages)) ||
            (i == 2 && !(has_role(nb_json_at(messages, 0), "system") && has_role(nb_json_at(messages, 1), "user"))))
            continue;
        rc = render_as(c, t->t, request, messages, &shapes[i], gen, now, out, &e);
        if (rc == NB_OK)
            return NB_OK;
        if (i == 0)
            first = e;
        if (rc != NB_EFORMAT) /* only what the template itself says may be helped by another form */
            break;
    }
    return repeat_error(&first, err);
}

/* ---- extra variables ---- */

static bool is_reserved(const char *key)
{
    static const char *const names[] = {
        "messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"
    };
    const size_t n = strlen(key);

    for (size_t i = 0; i < NB_LEN(names); i++) {
        if (strcmp(key, names[i]) == 0)
            return true;
    }
    return n >= 6 && strcmp(key + n - 6, "_token") == 0;
}

nb_status nb_chat_add_kwargs(nb_json *request, const nb_json *kwargs, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (nb_json_is_null(kwargs))
        return NB_OK;
    if (nb_json_typeof(kwargs) != NB_JOBJ || nb_json_typeof(request) != NB_JOBJ)
        return nb_fail(err, NB_EARG, "tmpl.request", "JT-14", "extra template variables are a JSON object of names and values");
    for (size_t i = 0; i < nb_json_len(kwargs); i++) {
        const char *key;
        const nb_json *v = nb_json_member(kwargs, i, &key);
        if (is_reserved(key))
            return nb_fail(err, NB_EARG, "tmpl.reserved", "JT-14", "the template variable \"%s\" cannot be given this way",
                           nb_esc(esc, sizeof esc, key, strlen(key)));
        if (!nb_json_set(request, key, nb_json_copy(v)))
            return nb_enomem(err, "the request");
    }
    return NB_OK;
}
