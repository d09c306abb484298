/* items_ask.c - a body of /v1/responses as a chat request. */
#include <stdio.h>
#include <string.h>

#include "serve/items.h"

static bool copy_to(nb_json *o, const char *to, const nb_json *v)
{
    return !v || nb_json_set(o, to, nb_json_copy(v));
}

/* A message of one text. */
static bool push_text(nb_json *list, const char *role, const nb_json *text)
{
    nb_json *m = nb_json_new_obj();

    if (!nb_json_set(m, "role", nb_json_new_str(role)) || !nb_json_set(m, "content", nb_json_copy(text))) {
        nb_json_free(m);
        return false;
    }
    return nb_json_push(list, m);
}

/* {"type":"function","function":{...}} around the members of v but "type". */
static nb_json *wrap_function(const nb_json *v)
{
    nb_json *o = nb_json_new_obj(), *fn = nb_json_copy(v);

    if (fn)
        nb_json_remove(fn, "type");
    if (nb_json_set(o, "type", nb_json_new_str("function")) && nb_json_set(o, "function", fn))
        return o;
    nb_json_free(o);
    return NULL;
}

/* A call the model made earlier: an assistant message with it. */
static bool push_call(nb_json *list, const nb_json *item)
{
    nb_json *m = nb_json_new_obj(), *calls = nb_json_new_arr(), *call = nb_json_new_obj(), *fn = nb_json_new_obj();
    bool ok = nb_json_set(fn, "name", nb_json_copy(nb_json_get(item, "name"))) &&
              nb_json_set(fn, "arguments", nb_json_copy(nb_json_get(item, "arguments")));

    ok =
        nb_json_set(call, "id", nb_json_copy(nb_json_get(item, "call_id"))) && nb_json_set(call, "type", nb_json_new_str("function")) && ok;
    ok = nb_json_set(call, "function", fn) && ok;
    ok = nb_json_push(calls, call) && ok;
    ok = nb_json_set(m, "role", nb_json_new_str("assistant")) && nb_json_set(m, "content", nb_json_new_null()) && ok;
    ok = nb_json_set(m, "tool_calls", calls) && ok;
    if (ok)
        return nb_json_push(list, m);
    nb_json_free(m);
    return false;
}

static bool push_result(nb_json *list, const nb_json *item)
{
    nb_json *m = nb_json_new_obj();

    if (!nb_json_set(m, "role", nb_json_new_str("tool")) || !nb_json_set(m, "tool_call_id", nb_json_copy(nb_json_get(item, "call_id"))) ||
        !nb_json_set(m, "content", nb_json_copy(nb_json_get(item, "output")))) {
        nb_json_free(m);
        return false;
    }
    return nb_json_push(list, m);
}

/* Content whose parts are all called "text", as templates expect. */
static nb_json *plain_content(const nb_json *content)
{
    nb_json *list = nb_json_new_arr();
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < nb_json_len(content); i++) {
        const nb_json *part = nb_json_at(content, i);
        const char *type = nb_json_str(nb_json_get(part, "type"), "");
        nb_json *copy = nb_json_copy(part);

        if (strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0) {
            nb_json_free(copy);
            copy = nb_json_new_obj();
            ok = nb_json_set(copy, "type", nb_json_new_str("text")) && copy_to(copy, "text", nb_ask_field(part, "text"));
        }
        ok = nb_json_push(list, copy) && ok;
    }
    if (ok)
        return list;
    nb_json_free(list);
    return NULL;
}

static bool push_item(nb_json *list, const nb_json *item, size_t i, nb_refusal *f)
{
    const char *type = nb_json_str(nb_json_get(item, "type"), "message");
    char where[48], esc[NB_ESC_CAP];
    bool ok = true;

    snprintf(where, sizeof where, "input[%zu]", i);
    if (nb_json_typeof(item) != NB_JOBJ)
        return nb_refuse(f, 400, "invalid_type", where, "%s must be an object.", where);
    if (strcmp(type, "message") == 0) {
        nb_json *m = nb_json_new_obj();

        const nb_json *content = nb_ask_field(item, "content");

        ok = copy_to(m, "role", nb_ask_field(item, "role"));
        ok =
            (nb_json_typeof(content) == NB_JARR ? nb_json_set(m, "content", plain_content(content)) : copy_to(m, "content", content)) && ok;
        ok = nb_json_push(list, m) && ok;
    } else if (strcmp(type, "function_call") == 0) {
        ok = push_call(list, item);
    } else if (strcmp(type, "function_call_output") == 0) {
        ok = push_result(list, item);
    } else if (strcmp(type, "reasoning") != 0) { /* a model's old thoughts are not read again */
        return nb_refuse(f, 400, "unsupported_parameter", where, "%s.type %s is not supported.", where,
                         nb_esc(esc, sizeof esc, type, strlen(type)));
    }
    return ok || nb_refuse_memory(f);
}

static bool messages(nb_json *chat, const nb_json *body, nb_refusal *f)
{
    const nb_json *input = nb_ask_field(body, "input"), *instructions = nb_ask_field(body, "instructions");
    nb_json *list = nb_json_new_arr();
    bool ok = list || nb_refuse_memory(f);

    if (ok && instructions && nb_json_typeof(instructions) != NB_JSTR)
        ok = nb_refuse(f, 400, "invalid_type", "instructions", "instructions must be a string.");
    if (ok && instructions)
        ok = push_text(list, "system", instructions) || nb_refuse_memory(f);
    if (ok && !input)
        ok = nb_refuse(f, 400, "missing_required_parameter", "input", "input is missing.");
    if (ok && nb_json_typeof(input) == NB_JSTR)
        ok = push_text(list, "user", input) || nb_refuse_memory(f);
    else if (ok && nb_json_typeof(input) != NB_JARR)
        ok = nb_refuse(f, 400, "invalid_type", "input", "input must be a string or a list of items.");
    for (size_t i = 0; ok && i < nb_json_len(input); i++)
        ok = push_item(list, nb_json_at(input, i), i, f);
    if (!ok) {
        nb_json_free(list);
        return false;
    }
    return nb_json_set(chat, "messages", list) || nb_refuse_memory(f);
}

static bool tools(nb_json *chat, const nb_json *body, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(body, "tools"), *choice = nb_ask_field(body, "tool_choice");
    nb_json *list;
    bool ok;

    if (v && nb_json_typeof(v) != NB_JARR)
        return nb_refuse(f, 400, "invalid_type", "tools", "tools must be a list.");
    if (nb_json_len(v)) {
        list = nb_json_new_arr();
        ok = list != NULL;
        for (size_t i = 0; ok && i < nb_json_len(v); i++) {
            const char *type = nb_json_str(nb_json_get(nb_json_at(v, i), "type"), "");
            char where[32];

            snprintf(where, sizeof where, "tools[%zu]", i);
            if (strcmp(type, "function") != 0) {
                nb_json_free(list);
                return nb_refuse(f, 400, "unsupported_parameter", where, "%s: only functions are supported.", where);
            }
            ok = nb_json_push(list, wrap_function(nb_json_at(v, i)));
        }
        if (!nb_json_set(chat, "tools", list) || !ok)
            return nb_refuse_memory(f);
    } else if (nb_json_typeof(choice) == NB_JSTR) {
        return true; /* without tools "auto" and "none" say nothing */
    }
    if (nb_json_typeof(choice) == NB_JOBJ)
        return nb_json_set(chat, "tool_choice", wrap_function(choice)) || nb_refuse_memory(f);
    return copy_to(chat, "tool_choice", choice) || nb_refuse_memory(f);
}

static bool format(nb_json *chat, const nb_json *body, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(nb_ask_field(body, "text"), "format");
    nb_json *o, *schema;

    if (!v || strcmp(nb_json_str(nb_json_get(v, "type"), ""), "json_schema") != 0)
        return copy_to(chat, "response_format", v) || nb_refuse_memory(f);
    o = nb_json_new_obj();
    schema = nb_json_copy(v);
    if (schema)
        nb_json_remove(schema, "type");
    if (!nb_json_set(o, "type", nb_json_new_str("json_schema")) || !nb_json_set(o, "json_schema", schema)) {
        nb_json_free(o);
        return nb_refuse_memory(f);
    }
    return nb_json_set(chat, "response_format", o) || nb_refuse_memory(f);
}

nb_json *nb_items_to_chat(const nb_json *body, nb_refusal *f)
{
    static const char *const same[] = { "model",
                                        "temperature",
                                        "top_p",
                                        "stream",
                                        "user",
                                        "metadata",
                                        "store",
                                        "reasoning",
                                        "parallel_tool_calls",
                                        "service_tier",
                                        "prompt_cache_key",
                                        "safety_identifier",
                                        "top_k",
                                        "min_p",
                                        "seed",
                                        "chat_template_kwargs",
                                        "cache_salt",
                                        "stop" };
    static const char *const refused[] = { "previous_response_id", "conversation", "background", "prompt", "truncation" };
    nb_json *chat = nb_json_new_obj();
    bool ok = chat || nb_refuse_memory(f);

    for (size_t i = 0; ok && i < NB_LEN(refused); i++) {
        const nb_json *v = nb_ask_field(body, refused[i]);

        if (v && !(nb_json_typeof(v) == NB_JBOOL && !nb_json_bool(v, true)) && strcmp(nb_json_str(v, ""), "disabled") != 0)
            ok = nb_refuse(f, 400, "unsupported_parameter", refused[i], "%s is not supported: this server keeps no conversations.",
                           refused[i]);
    }
    for (size_t i = 0; ok && i < NB_LEN(same); i++)
        ok = copy_to(chat, same[i], nb_ask_field(body, same[i])) || nb_refuse_memory(f);
    ok = ok && (copy_to(chat, "max_completion_tokens", nb_ask_field(body, "max_output_tokens")) || nb_refuse_memory(f));
    ok = ok && messages(chat, body, f) && tools(chat, body, f) && format(chat, body, f);
    if (ok)
        return chat;
    nb_json_free(chat);
    return NULL;
}
