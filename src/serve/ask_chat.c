/* ask_chat.c - messages, tools, and constraints on the answer. */
#include <stdio.h>
#include <string.h>

#include "serve/ask_priv.h"

enum { MAX_MESSAGES = 2048, MAX_PARTS = 1024, MAX_TOOLS = 128, MAX_TOOL_BYTES = 256 << 10 };

/* ---- messages ---- */

static bool bad_part(nb_refusal *f, size_t i, size_t k, const nb_json *part)
{
    const char *type = nb_json_str(nb_json_get(part, "type"), "");
    char where[64], esc[NB_ESC_CAP];

    snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
    if (nb_json_typeof(part) != NB_JOBJ || !*type)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be an object with a type.", where);
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 && strcmp(type, "refusal") != 0)
        return nb_refuse(f, 400, "unsupported_content", where, "%s: this model reads text, not %s.", where,
                         nb_esc(esc, sizeof esc, type, strlen(type)));
    if (nb_json_typeof(nb_json_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text")) != NB_JSTR)
        return nb_refuse(f, 400, "invalid_type", where, "%s needs a text.", where);
    return true;
}

static bool message(const nb_json *m, size_t i, nb_refusal *f)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    const nb_json *content = nb_ask_field(m, "content");
    const char *role = nb_json_str(nb_json_get(m, "role"), NULL);
    char where[48], esc[NB_ESC_CAP];
    bool known = false;

    snprintf(where, sizeof where, "messages[%zu]", i);
    if (nb_json_typeof(m) != NB_JOBJ)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be an object with role and content.", where);
    for (size_t k = 0; role && k < NB_LEN(roles); k++)
        known = known || strcmp(role, roles[k]) == 0;
    snprintf(where, sizeof where, "messages[%zu].role", i);
    if (!role)
        return nb_refuse(f, 400, nb_json_get(m, "role") ? "invalid_type" : "missing_required_parameter", where, "%s must be a string.",
                         where);
    if (!known)
        return nb_refuse(f, 400, "invalid_value", where, "%s is \"%s\"; use system, developer, user, assistant or tool.", where,
                         nb_esc(esc, sizeof esc, role, strlen(role)));
    snprintf(where, sizeof where, "messages[%zu].content", i);
    if (nb_json_typeof(content) == NB_JARR) {
        if (nb_json_len(content) > MAX_PARTS)
            return nb_refuse(f, 400, "invalid_value", where, "%s has %zu parts, at most %d are accepted.", where, nb_json_len(content),
                             MAX_PARTS);
        for (size_t k = 0; k < nb_json_len(content); k++)
            if (!bad_part(f, i, k, nb_json_at(content, k)))
                return false;
    } else if (content && nb_json_typeof(content) != NB_JSTR) {
        return nb_refuse(f, 400, "invalid_type", where, "%s must be a string or a list of parts.", where);
    } else if (!content && strcmp(role, "assistant") != 0) {
        return nb_refuse(f, 400, nb_json_get(m, "content") ? "invalid_type" : "missing_required_parameter", where, "%s is missing.", where);
    }
    snprintf(where, sizeof where, "messages[%zu].tool_calls", i);
    if (nb_ask_field(m, "tool_calls") && nb_json_typeof(nb_ask_field(m, "tool_calls")) != NB_JARR)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be a list.", where);
    return true;
}

bool nb_ask_messages(nb_ask *a, const nb_ask_rules *rules, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "messages"), *kwargs = nb_ask_field(a->root, "chat_template_kwargs");

    if (!v)
        return nb_refuse(f, 400, "missing_required_parameter", "messages", "messages is missing.");
    if (nb_json_typeof(v) != NB_JARR)
        return nb_ask_type(f, "messages", "a list of messages");
    if (nb_json_len(v) == 0)
        return nb_refuse(f, 400, "empty_prompt", "messages", "messages is empty; send at least one message.");
    if (nb_json_len(v) > MAX_MESSAGES)
        return nb_refuse(f, 400, "invalid_value", "messages", "messages has %zu entries, at most %d are accepted.", nb_json_len(v),
                         MAX_MESSAGES);
    for (size_t i = 0; i < nb_json_len(v); i++)
        if (!message(nb_json_at(v, i), i, f))
            return false;
    a->messages = v;
    a->add_generation_prompt = true;
    if (!nb_ask_bool(a->root, "continue_final_message", &a->continue_final, f))
        return false;
    if (a->continue_final)
        a->add_generation_prompt = false; /* the default beside it; both true is a conflict */
    if (!nb_ask_bool(a->root, "add_generation_prompt", &a->add_generation_prompt, f))
        return false;
    if (a->continue_final && a->add_generation_prompt)
        return nb_refuse(f, 400, "invalid_value", "continue_final_message", "continue_final_message excludes add_generation_prompt: true.");
    if (kwargs && nb_json_typeof(kwargs) != NB_JOBJ)
        return nb_ask_type(f, "chat_template_kwargs", "an object");
    if (nb_ask_field(a->root, "documents") && nb_json_typeof(nb_ask_field(a->root, "documents")) != NB_JARR)
        return nb_ask_type(f, "documents", "a list");
    if (nb_ask_field(a->root, "chat_template") && !rules->request_template)
        return nb_refuse(f, 400, "unsupported_parameter", "chat_template",
                         "chat_template needs a server started with --trust-request-template.");
    return nb_ask_str(a->root, "chat_template", 1 << 20, &a->template_text, f);
}

/* ---- tools ---- */

static bool tool_name_ok(const char *s, size_t n)
{
    if (n == 0 || n > 64)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z') && !(s[i] >= '0' && s[i] <= '9') && !(s[i] && strchr("_-.", s[i])))
            return false;
    return true;
}

static const char *tool_at(const nb_json *tools, size_t i)
{
    return nb_json_str(nb_json_get(nb_json_get(nb_json_at(tools, i), "function"), "name"), "");
}

static bool tool(const nb_json *tools, size_t i, nb_refusal *f)
{
    const nb_json *t = nb_json_at(tools, i), *fn = nb_ask_field(t, "function"), *name = nb_ask_field(fn, "name"),
                  *params = nb_ask_field(fn, "parameters");
    char where[64];

    snprintf(where, sizeof where, "tools[%zu]", i);
    if (nb_json_typeof(t) != NB_JOBJ || nb_json_typeof(fn) != NB_JOBJ)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be {\"type\":\"function\",\"function\":{...}}.", where);
    if (strcmp(nb_json_str(nb_json_get(t, "type"), "function"), "function") != 0)
        return nb_refuse(f, 400, "unsupported_parameter", where, "%s.type: only functions are supported.", where);
    snprintf(where, sizeof where, "tools[%zu].function.name", i);
    if (nb_json_typeof(name) != NB_JSTR || !tool_name_ok(nb_json_str(name, ""), nb_json_str_len(name)))
        return nb_refuse(f, 400, "invalid_value", where, "%s must have 1 to 64 letters, digits, '_', '-' or '.'.", where);
    for (size_t k = 0; k < i; k++)
        if (strcmp(tool_at(tools, k), nb_json_str(name, "")) == 0)
            return nb_refuse(f, 400, "invalid_value", where, "%s is the name of two tools.", where);
    snprintf(where, sizeof where, "tools[%zu].function.parameters", i);
    if (params && nb_json_typeof(params) != NB_JOBJ)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be a JSON schema, an object.", where);
    return true;
}

static bool tool_choice(nb_ask *a, const nb_json *v, nb_refusal *f)
{
    const char *word = nb_json_str(v, NULL);
    const char *name = nb_json_str(nb_json_get(nb_json_get(v, "function"), "name"), NULL);

    if (word && strcmp(word, "none") == 0) {
        a->tool_choice = NB_CALLS_NONE;
        return true;
    }
    if (!a->tools)
        return nb_refuse(f, 400, "invalid_value", "tool_choice", "tool_choice needs tools.");
    if (word && (strcmp(word, "auto") == 0 || strcmp(word, "required") == 0)) {
        a->tool_choice = *word == 'a' ? NB_CALLS_AUTO : NB_CALLS_REQUIRED;
        return true;
    }
    if (!name)
        return nb_refuse(f, 400, "invalid_value", "tool_choice",
                         "tool_choice must be none, auto, required or {\"type\":\"function\",\"function\":{\"name\":...}}.");
    for (size_t i = 0; i < nb_json_len(a->tools); i++)
        if (strcmp(tool_at(a->tools, i), name) == 0) {
            a->tool_choice = NB_CALLS_NAMED;
            a->tool_name = name;
            return true;
        }
    return nb_refuse(f, 400, "invalid_value", "tool_choice", "tool_choice names a function that tools does not have.");
}

bool nb_ask_tools(nb_ask *a, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "tools"), *choice = nb_ask_field(a->root, "tool_choice");
    char *text;
    size_t n;

    a->parallel_tools = true;
    if (!nb_ask_bool(a->root, "parallel_tool_calls", &a->parallel_tools, f))
        return false;
    if (v) {
        if (nb_json_typeof(v) != NB_JARR)
            return nb_ask_type(f, "tools", "a list");
        if (nb_json_len(v) == 0 || nb_json_len(v) > MAX_TOOLS)
            return nb_refuse(f, 400, "invalid_value", "tools", "tools has %zu entries; 1 to %d are accepted.", nb_json_len(v), MAX_TOOLS);
        text = nb_json_dump(v, 0, true);
        n = text ? strlen(text) : 0;
        nb_free(text);
        if (n > MAX_TOOL_BYTES)
            return nb_refuse(f, 400, "invalid_value", "tools", "tools has %zu bytes of text, at most %d are accepted.", n, MAX_TOOL_BYTES);
        for (size_t i = 0; i < nb_json_len(v); i++)
            if (!tool(v, i, f))
                return false;
        a->tools = v;
        a->tool_choice = NB_CALLS_AUTO;
    }
    return !choice || tool_choice(a, choice, f);
}

/* ---- constraints ---- */

static bool constrain(nb_ask *a, nb_constraint_kind kind, const char *param, nb_refusal *f)
{
    if (a->constraint != NB_CON_NONE)
        return nb_refuse(f, 400, "invalid_value", param, "A request has at most one constraint; %s is the second.", param);
    a->constraint = kind;
    a->constraint_param = param;
    return true;
}

static bool constrain_text(nb_ask *a, nb_constraint_kind kind, const char *param, const nb_json *v, nb_refusal *f)
{
    if (nb_json_typeof(v) != NB_JSTR || nb_json_str_len(v) == 0 || strlen(nb_json_str(v, "")) != nb_json_str_len(v))
        return nb_refuse(f, 400, "invalid_type", param, "%s must be a text without NUL.", param);
    a->constraint_text = nb_json_str(v, "");
    return constrain(a, kind, param, f);
}

static bool constrain_json(nb_ask *a, const char *param, const nb_json *v, nb_refusal *f)
{
    nb_err err = { 0 };

    if (nb_json_typeof(v) == NB_JSTR) { /* a schema written as text, as older clients do */
        nb_json *parsed;

        if (nb_json_parse(nb_json_str(v, ""), nb_json_str_len(v), "schema", NB_ASK_DEPTH, &parsed, &err) != NB_OK)
            return nb_refuse_err(f, 400, "invalid_schema", param, &err);
        if (!nb_json_set(a->root, " schema", parsed)) /* owned by the request from here on */
            return nb_refuse_memory(f);
        v = nb_json_get(a->root, " schema");
    }
    if (nb_json_typeof(v) != NB_JOBJ && nb_json_typeof(v) != NB_JBOOL)
        return nb_refuse(f, 400, "invalid_schema", param, "%s must be a JSON schema, an object.", param);
    a->schema = v;
    return constrain(a, NB_CON_SCHEMA, param, f);
}

static bool constrain_choice(nb_ask *a, const char *param, const nb_json *v, nb_refusal *f)
{
    if (nb_json_typeof(v) != NB_JARR || nb_json_len(v) == 0)
        return nb_refuse(f, 400, "invalid_type", param, "%s must be a list of strings.", param);
    for (size_t i = 0; i < nb_json_len(v); i++)
        if (nb_json_typeof(nb_json_at(v, i)) != NB_JSTR)
            return nb_refuse(f, 400, "invalid_type", param, "%s must be a list of strings.", param);
    a->schema = v;
    return constrain(a, NB_CON_CHOICE, param, f);
}

static bool response_format(nb_ask *a, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "response_format"), *s;
    const char *type = nb_json_str(nb_json_get(v, "type"), NULL);

    if (!v)
        return true;
    if (nb_json_typeof(v) != NB_JOBJ || !type)
        return nb_ask_type(f, "response_format", "an object with a type");
    if (strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_object") == 0)
        return constrain(a, NB_CON_JSON, "response_format", f);
    if (strcmp(type, "json_schema") != 0)
        return nb_refuse(f, 400, "invalid_value", "response_format", "response_format.type must be text, json_object or json_schema.");
    s = nb_ask_field(v, "json_schema");
    if (nb_json_typeof(s) != NB_JOBJ || !nb_ask_field(s, "schema"))
        return nb_refuse(f, 400, "missing_required_parameter", "response_format", "response_format.json_schema.schema is missing.");
    return constrain_json(a, "response_format", nb_ask_field(s, "schema"), f);
}

bool nb_ask_constraints(nb_ask *a, nb_refusal *f)
{
    const nb_json *root = a->root, *s = nb_ask_field(root, "structured_outputs");
    bool object = false;

    if (!response_format(a, f))
        return false;
    if (s && nb_json_typeof(s) != NB_JOBJ)
        return nb_ask_type(f, "structured_outputs", "an object");
    if (s && !nb_ask_bool(s, "json_object", &object, f))
        return false;
    if (object && !constrain(a, NB_CON_JSON, "structured_outputs", f))
        return false;
    if (nb_ask_field(s, "json") && !constrain_json(a, "structured_outputs", nb_ask_field(s, "json"), f))
        return false;
    if (nb_ask_field(s, "regex") && !constrain_text(a, NB_CON_REGEX, "structured_outputs", nb_ask_field(s, "regex"), f))
        return false;
    if (nb_ask_field(s, "choice") && !constrain_choice(a, "structured_outputs", nb_ask_field(s, "choice"), f))
        return false;
    if (nb_ask_field(s, "grammar") && !constrain_text(a, NB_CON_EBNF, "structured_outputs", nb_ask_field(s, "grammar"), f))
        return false;
    if (nb_ask_field(root, "guided_json") && !constrain_json(a, "guided_json", nb_ask_field(root, "guided_json"), f))
        return false;
    if (nb_ask_field(root, "guided_regex") && !constrain_text(a, NB_CON_REGEX, "guided_regex", nb_ask_field(root, "guided_regex"), f))
        return false;
    if (nb_ask_field(root, "guided_choice") && !constrain_choice(a, "guided_choice", nb_ask_field(root, "guided_choice"), f))
        return false;
    if (nb_ask_field(root, "guided_grammar") && !constrain_text(a, NB_CON_EBNF, "guided_grammar", nb_ask_field(root, "guided_grammar"), f))
        return false;
    if (a->constraint != NB_CON_NONE && (a->tool_choice == NB_CALLS_REQUIRED || a->tool_choice == NB_CALLS_NAMED))
        return nb_refuse(f, 400, "invalid_value", "tool_choice", "tool_choice %s excludes another constraint.",
                         a->tool_choice == NB_CALLS_NAMED ? "with a name" : "required");
    return true;
}
