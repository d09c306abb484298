/* route_text.c - endpoints that make or take text: completions, chat, tokens, templates. */
#include <stdio.h>
#include <string.h>

#include "serve/ask_priv.h"
#include "serve/items.h"
#include "serve/native.h"
#include "serve/server_priv.h"

/* ---- generation ---- */

static void generate(nb_server *s, nb_http_req *r, bool chat)
{
    const nb_call *call = nb_http_data(r);
    nb_refusal f = { 0 };
    nb_ask ask;
    nb_gen *g;
    size_t n;
    const char *body = nb_http_body(r, &n);

    if (!nb_ask_parse(&ask, chat, body, n, &s->rules, &f) || !nb_model_known(s, ask.model, &f)) {
        nb_metrics_rejected(s->metrics, f.code);
        nb_answer_refusal(r, &f);
        nb_ask_clear(&ask);
        return;
    }
    if (ask.n_ignored)
        nb_metrics_ignored_fields(s->metrics, ask.n_ignored);
    g = nb_gen_open(r, &ask, &s->texts);
    if (!g) {
        nb_http_error(r, 503, "out_of_memory", NULL, "There is no memory for this request now; try again.");
        return;
    }
    snprintf(g->id, sizeof g->id, "%s-%s", chat ? "chatcmpl" : "cmpl", call->id);
    g->key = call->key;
    nb_worker_submit(s->worker, g);
}

/* A body that says the same as a chat or a completion: `asked` (freed here; NULL: refused) in its terms. NULL: answered. */
static nb_gen *translated(nb_server *s, nb_http_req *r, bool chat, nb_json *asked, const char *prefix, nb_refusal *f)
{
    const nb_call *call = nb_http_data(r);
    char *text = asked ? nb_json_dump(asked, 0, true) : NULL;
    nb_ask ask = { 0 };
    nb_gen *g = NULL;

    if (text && nb_ask_parse(&ask, chat, text, strlen(text), &s->rules, f) && nb_model_known(s, ask.model, f))
        g = nb_gen_open(r, &ask, &s->texts);
    nb_json_free(asked);
    nb_free(text);
    if (g) {
        snprintf(g->id, sizeof g->id, "%s%s", prefix, call->id);
        g->key = call->key;
        return g;
    }
    if (!f->status)
        nb_refuse_memory(f);
    nb_metrics_rejected(s->metrics, f->code);
    nb_answer_refusal(r, f);
    nb_ask_clear(&ask);
    return NULL;
}

void nb_route_responses(nb_server *s, nb_http_req *r)
{
    nb_refusal f = { 0 };
    nb_json *body = NULL;
    nb_gen *g;
    size_t n;
    const char *raw = nb_http_body(r, &n);

    g = translated(s, r, true, nb_body_parse(raw, n, &body, &f) ? nb_items_to_chat(body, &f) : NULL, "resp_", &f);
    if (!g) {
        nb_json_free(body);
        return;
    }
    g->style = NB_GEN_ITEMS;
    g->original = body;
    nb_worker_submit(s->worker, g);
}

void nb_route_generate(nb_server *s, nb_http_req *r)
{
    nb_refusal f = { 0 };
    nb_json *body = NULL;
    nb_gen *g;
    size_t n;
    bool list = false;
    const char *raw = nb_http_body(r, &n);

    g = translated(s, r, false, nb_body_parse(raw, n, &body, &f) ? nb_native_to_completion(body, &list, &f) : NULL, "", &f);
    nb_json_free(body);
    if (!g)
        return;
    g->style = list ? NB_GEN_NATIVE_LIST : NB_GEN_NATIVE;
    nb_worker_submit(s->worker, g);
}

/* One token through the engine: 200 when it comes. */
void nb_route_health_generate(nb_server *s, nb_http_req *r)
{
    nb_refusal f = { 0 };
    nb_json *asked = nb_json_new_obj(), *ids = nb_json_new_arr();
    const bool ok =
        nb_json_push(ids, nb_json_new_int(0)) && nb_json_set(asked, "prompt", ids) && nb_json_set(asked, "max_tokens", nb_json_new_int(1));
    nb_gen *g;

    if (!ok) {
        nb_json_free(asked);
        asked = NULL;
    }
    g = translated(s, r, false, asked, "health-", &f);
    if (g)
        nb_worker_submit(s->worker, g);
}

/* `model` of a body that is no request for text. */
static bool asks_us(const nb_server *s, const nb_json *o, nb_refusal *f)
{
    const char *name = "";

    return nb_ask_str(o, "model", 512, &name, f) && nb_model_known(s, name, f);
}

/* Only models that say how their states are pooled give embeddings, and none of those is served (spec serving 9.2). */
void nb_route_embeddings(nb_server *s, nb_http_req *r)
{
    nb_refusal f = { 0 };
    nb_json *o = NULL;
    size_t n;
    const char *body = nb_http_body(r, &n);

    if (nb_body_parse(body, n, &o, &f) && asks_us(s, o, &f))
        nb_refuse(&f, 400, "unsupported_parameter", "model", "This model has no pooling configuration: it gives text, not embeddings.");
    nb_answer_refusal(r, &f);
    nb_json_free(o);
}

void nb_route_chat(nb_server *s, nb_http_req *r)
{
    generate(s, r, true);
}

void nb_route_completions(nb_server *s, nb_http_req *r)
{
    generate(s, r, false);
}

/* ---- tokens ---- */

/* Messages of a body to the prompt's text. */
static bool render(const nb_server *s, const nb_json *o, nb_buf *out, nb_refusal *f)
{
    nb_err err = { 0 };

    if (nb_json_typeof(nb_ask_field(o, "messages")) != NB_JARR || nb_json_len(nb_ask_field(o, "messages")) == 0)
        return nb_refuse(f, 400, "missing_required_parameter", "messages", "messages must be a list with at least one message.");
    for (size_t i = 0; i < nb_json_len(nb_ask_field(o, "messages")); i++)
        if (nb_json_typeof(nb_json_at(nb_ask_field(o, "messages"), i)) != NB_JOBJ)
            return nb_refuse(f, 400, "invalid_type", "messages", "messages[%zu] must be an object with role and content.", i);
    if (!s->texts.chat)
        return nb_refuse(f, 400, "unsupported_parameter", "messages", "This model has no chat template.");
    if (nb_chat_render(s->texts.chat, o, true, NULL, out, &err) != NB_OK)
        return nb_refuse_err(f, 400, err.code == NB_ELIMIT ? "template_limit" : "template_error", "messages", &err);
    return true;
}

/* The ids of a body with prompt (or llama.cpp's content), or messages. */
static bool body_ids(const nb_server *s, const nb_json *o, nb_ids *ids, nb_refusal *f)
{
    const nb_json *text = nb_ask_field(o, "prompt") ? nb_ask_field(o, "prompt") : nb_ask_field(o, "content");
    const bool chat = nb_ask_field(o, "messages") != NULL;
    bool special = !chat;
    nb_err err = { 0 };
    nb_buf prompt = { 0 };
    static const char *const texts[] = { "prompt", "content" };
    bool ok = true;

    if (!nb_ask_bool(o, "add_special_tokens", &special, f))
        return false;
    for (size_t i = 0; i < NB_LEN(texts); i++)
        if (nb_ask_field(o, texts[i]) && nb_json_typeof(nb_ask_field(o, texts[i])) != NB_JSTR)
            return nb_ask_type(f, texts[i], "a string");
    if (chat)
        ok = render(s, o, &prompt, f);
    else if (!text)
        ok = nb_refuse(f, 400, "missing_required_parameter", "prompt", "prompt is missing.");
    else
        nb_buf_put(&prompt, nb_json_str(text, ""), nb_json_str_len(text));
    if (ok && !f->status && nb_tokenizer_encode(s->m.tok, prompt.p ? prompt.p : "", prompt.n, special, true, ids, &err) != NB_OK)
        ok = nb_refuse_err(f, 400, "invalid_value", "prompt", &err);
    nb_buf_clear(&prompt);
    return ok && !f->status;
}

static nb_json *token_strings(const nb_server *s, const nb_ids *ids)
{
    nb_json *list = nb_json_new_arr();
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < ids->n; i++) {
        size_t n = 0;
        const char *piece = nb_tokenizer_piece(s->m.tok, ids->p[i], &n);

        ok = nb_json_push(list, nb_json_new_strn(piece ? piece : "", n));
    }
    if (ok)
        return list;
    nb_json_free(list);
    return NULL;
}

static void tokenize(void *user, nb_http_req *r)
{
    const nb_server *s = user;
    nb_refusal f = { 0 };
    nb_json *o = NULL, *out, *list;
    nb_ids ids = { 0 };
    size_t n;
    const char *body = nb_http_body(r, &n);
    bool ok, strings = false;

    if (!nb_body_parse(body, n, &o, &f) || !asks_us(s, o, &f) || !nb_ask_bool(o, "return_token_strs", &strings, &f) ||
        !body_ids(s, o, &ids, &f)) {
        nb_answer_refusal(r, &f);
    } else {
        out = nb_json_new_obj();
        list = nb_json_new_arr();
        ok = list != NULL;
        for (size_t i = 0; ok && i < ids.n; i++)
            ok = nb_json_push(list, nb_json_new_int(ids.p[i]));
        ok = nb_json_set(out, "count", nb_json_new_int((int64_t)ids.n)) &&
             nb_json_set(out, "max_model_len", nb_json_new_int((int64_t)s->texts.context)) && nb_json_set(out, "tokens", list) && ok;
        if (ok && strings)
            ok = nb_json_set(out, "token_strs", token_strings(s, &ids));
        nb_answer_json(r, out, ok);
    }
    nb_ids_clear(&ids);
    nb_json_free(o);
}

void nb_route_tokenize(nb_server *s, nb_http_req *r)
{
    nb_worker_job(s->worker, tokenize, s, r);
}

/* {"prompt": text} */
static void answer_prompt(nb_http_req *r, const nb_buf *text)
{
    nb_json *o = nb_json_new_obj();

    nb_answer_json(r, o, nb_json_set(o, "prompt", nb_json_new_strn(text->p ? text->p : "", text->n)));
}

static void detokenize(void *user, nb_http_req *r)
{
    const nb_server *s = user;
    nb_refusal f = { 0 };
    nb_json *o = NULL;
    const nb_json *list;
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    nb_buf text = { 0 };
    size_t n;
    bool skip = false;
    const char *body = nb_http_body(r, &n);

    if (nb_body_parse(body, n, &o, &f) && asks_us(s, o, &f) && nb_ask_bool(o, "skip_special_tokens", &skip, &f)) {
        list = nb_ask_field(o, "tokens");
        if (nb_json_typeof(list) != NB_JARR)
            nb_refuse(&f, 400, list ? "invalid_type" : "missing_required_parameter", "tokens", "tokens must be a list of token ids.");
        for (size_t i = 0; !f.status && i < nb_json_len(list); i++) {
            const int64_t id = nb_json_int(nb_json_at(list, i), -1);

            if (id < 0 || id >= (int64_t)s->m.vocab)
                nb_refuse(&f, 400, "invalid_value", "tokens", "tokens[%zu] is not a token id below %zu.", i, s->m.vocab);
            else if (nb_ids_push(&ids, (int32_t)id, &err) != NB_OK)
                nb_refuse_err(&f, 503, "out_of_memory", NULL, &err);
        }
        if (!f.status && nb_tokenizer_decode(s->m.tok, ids.p, ids.n, skip, &text, &err) != NB_OK)
            nb_refuse_err(&f, 400, "invalid_value", "tokens", &err);
    }
    if (f.status) {
        nb_answer_refusal(r, &f);
    } else {
        answer_prompt(r, &text);
    }
    nb_ids_clear(&ids);
    nb_buf_clear(&text);
    nb_json_free(o);
}

void nb_route_detokenize(nb_server *s, nb_http_req *r)
{
    nb_worker_job(s->worker, detokenize, s, r);
}

static void apply_template(void *user, nb_http_req *r)
{
    const nb_server *s = user;
    nb_refusal f = { 0 };
    nb_json *o = NULL;
    nb_buf text = { 0 };
    size_t n;
    const char *body = nb_http_body(r, &n);

    if (!nb_body_parse(body, n, &o, &f) || !render(s, o, &text, &f)) {
        nb_answer_refusal(r, &f);
    } else {
        answer_prompt(r, &text);
    }
    nb_buf_clear(&text);
    nb_json_free(o);
}

void nb_route_template(nb_server *s, nb_http_req *r)
{
    nb_worker_job(s->worker, apply_template, s, r);
}
