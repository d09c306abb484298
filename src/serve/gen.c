/* gen.c - preparing a request, and turning its tokens into text. */
#include "serve/gen.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/sha256.h"
#include "text/utf8.h"

enum { COMPLETION_TOKENS = 16 }; /* of /v1/completions when the request says nothing */

nb_gen *nb_gen_open(nb_http_req *r, nb_ask *ask, const nb_texts *t)
{
    nb_gen *g = nb_calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->ask = *ask;
    memset(ask, 0, sizeof *ask);
    g->t = t;
    g->http = r;
    g->arrival = nb_now();
    g->created = (int64_t)time(NULL);
    g->n_prompts = g->ask.chat ? 1 : g->ask.n_prompts;
    g->n_choices = g->n_prompts * g->ask.n;
    g->prompts = nb_calloc(g->n_prompts, sizeof *g->prompts);
    g->engine_id = nb_calloc(g->n_prompts, sizeof *g->engine_id);
    g->cached = nb_calloc(g->n_prompts, sizeof *g->cached);
    g->choices = nb_calloc(g->n_choices, sizeof *g->choices);
    g->prompt_lp = nb_calloc(g->n_prompts, sizeof *g->prompt_lp);
    if (!g->prompts || !g->prompt_lp || !g->engine_id || !g->cached || !g->choices) {
        nb_ask_clear(&g->ask);
        nb_free(g->prompts);
        nb_free(g->engine_id);
        nb_free(g->cached);
        nb_free(g->choices);
        nb_free(g->prompt_lp);
        nb_free(g);
        return NULL;
    }
    for (size_t i = 0; i < g->n_choices; i++) {
        g->choices[i].index = i;
        g->choices[i].stop_id = -1;
    }
    nb_http_keep(r);
    return g;
}

void nb_gen_close(nb_gen *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];

        nb_detok_close(c->detok);
        nb_reply_close(c->parser);
        nb_gstate_close(c->grammar);
        nb_buf_clear(&c->content);
        nb_buf_clear(&c->reasoning);
        for (size_t k = 0; k < c->n_calls; k++) {
            nb_free(c->calls[k].id);
            nb_free(c->calls[k].name);
            nb_buf_clear(&c->calls[k].args);
        }
        nb_free(c->calls);
        nb_free(c->shown);
        nb_ids_clear(&c->ids);
    }
    for (size_t i = 0; i < g->n_prompts; i++) {
        nb_ids_clear(&g->prompts[i]);
        nb_free(g->prompt_lp[i]);
    }
    for (size_t i = 0; i < g->n_bad_words; i++)
        nb_ids_clear(&g->bad_words[i]);
    nb_free(g->bad_words);
    nb_free(g->words);
    nb_free(g->prompts);
    nb_free(g->engine_id);
    nb_free(g->cached);
    nb_free(g->choices);
    nb_free(g->prompt_lp);
    nb_buf_clear(&g->prompt_text);
    nb_buf_clear(&g->head);
    nb_json_free(g->original);
    nb_stops_close(g->stops);
    nb_grammar_unref(g->grammar);
    nb_ask_clear(&g->ask);
    nb_http_drop(g->http);
    nb_free(g);
}

/* ---- preparing ---- */

/* The request as the template sees it: messages, tools, documents, switches and the caller's own variables. */
static nb_json *template_request(const nb_gen *g, nb_err *err)
{
    static const char *const copied[] = { "tools", "documents", "reasoning_effort" };
    const nb_json *root = g->ask.root, *kwargs = nb_json_get(root, "chat_template_kwargs");
    const nb_json *effort = nb_json_get(nb_json_get(root, "reasoning"), "effort");
    nb_json *o = nb_json_new_obj();
    bool ok = o != NULL;

    for (size_t i = 0; ok && i < NB_LEN(copied); i++) {
        const nb_json *v = nb_json_get(root, copied[i]);

        if (!nb_json_is_null(v) && !(i == 0 && g->ask.tool_choice == NB_CALLS_NONE))
            ok = nb_json_set(o, copied[i], nb_json_copy(v));
    }
    if (ok && !nb_json_is_null(effort) && !nb_json_get(o, "reasoning_effort"))
        ok = nb_json_set(o, "reasoning_effort", nb_json_copy(effort));
    if (ok && nb_chat_add_kwargs(o, kwargs, err) != NB_OK) {
        nb_json_free(o);
        return NULL;
    }
    ok = ok && nb_json_set(o, "messages", nb_json_copy(g->ask.messages)) &&
         nb_json_set(o, "add_generation_prompt", nb_json_new_bool(g->ask.add_generation_prompt)) &&
         nb_json_set(o, "continue_final_message", nb_json_new_bool(g->ask.continue_final));
    if (ok)
        return o;
    nb_json_free(o);
    nb_enomem(err, "the messages");
    return NULL;
}

static bool refuse_template(nb_gen *g, const nb_err *err)
{
    const bool limit = err->code == NB_ELIMIT;

    if (strcmp(err->cls, "tmpl.none") == 0)
        return nb_refuse(&g->refusal, 400, "unsupported_parameter", "messages", "This model has no chat template; use /v1/completions.");
    if (strcmp(err->cls, "tmpl.empty") == 0)
        return nb_refuse(&g->refusal, 400, "empty_prompt", "messages", "The prompt has no tokens; send some text.");
    return nb_refuse_err(&g->refusal, 400, limit ? "template_limit" : "template_error", "messages", err);
}

static bool prepare_chat(nb_gen *g)
{
    nb_err err = { 0 };
    nb_json *o = template_request(g, &err);
    nb_chat *own = NULL;
    const nb_chat *chat = g->t->chat;
    nb_status rc = NB_OK;

    if (!o)
        return nb_refuse_err(&g->refusal, 400, "invalid_value", "chat_template_kwargs", &err);
    if (g->ask.template_text) {
        rc = nb_chat_open(NULL, 0, g->ask.template_text, strlen(g->ask.template_text), &own, &err);
        chat = own;
    }
    if (rc == NB_OK && !chat)
        rc = nb_fail(&err, NB_EUNSUPPORTED, "tmpl.none", "", "no template");
    if (rc == NB_OK && g->ask.add_special) { /* against the custom: the template has them */
        rc = nb_chat_render(chat, o, g->ask.add_generation_prompt, NULL, &g->prompt_text, &err);
        if (rc == NB_OK)
            rc = nb_tokenizer_encode(g->t->tok, g->prompt_text.p ? g->prompt_text.p : "", g->prompt_text.n, true, true, &g->prompts[0],
                                     &err);
    } else if (rc == NB_OK) {
        rc = nb_chat_encode(chat, g->t->tok, o, g->ask.add_generation_prompt, NULL, false, &g->prompt_text, &g->prompts[0], &err);
    }
    nb_json_free(o);
    nb_chat_close(own);
    if (rc != NB_OK)
        refuse_template(g, &err);
    return rc == NB_OK;
}

static bool prepare_prompt(nb_gen *g, size_t p)
{
    const nb_prompt *in = &g->ask.prompts[p];
    nb_err err = { 0 };

    if (in->ids) {
        for (size_t i = 0; i < in->n_ids; i++)
            if (nb_ids_push(&g->prompts[p], in->ids[i], &err) != NB_OK)
                return nb_refuse_memory(&g->refusal);
        return true;
    }
    if (nb_tokenizer_encode(g->t->tok, in->text, in->n_text, g->ask.add_special, true, &g->prompts[p], &err) != NB_OK)
        return nb_refuse_err(&g->refusal, 400, "invalid_value", "prompt", &err);
    return true;
}

/* A bad word is two words of ids: as the text begins, and as it goes on after a blank. */
static bool prepare_bad_words(nb_gen *g)
{
    const size_t n = nb_json_len(g->ask.bad_words);
    nb_err err = { 0 };

    if (n == 0)
        return true;
    g->bad_words = nb_calloc(2 * n, sizeof *g->bad_words);
    g->words = nb_calloc(2 * n, sizeof *g->words);
    if (!g->bad_words || !g->words)
        return nb_refuse_memory(&g->refusal);
    for (size_t i = 0; i < 2 * n; i++) {
        const nb_json *w = nb_json_at(g->ask.bad_words, i / 2);
        nb_buf text = { 0 };
        nb_ids *ids = &g->bad_words[g->n_bad_words];
        nb_status rc;

        if (i % 2)
            nb_buf_putc(&text, ' ');
        nb_buf_put(&text, nb_json_str(w, ""), nb_json_str_len(w));
        rc = text.failed ? NB_ENOMEM : nb_tokenizer_encode(g->t->tok, text.p, text.n, false, false, ids, &err);
        nb_buf_clear(&text);
        if (rc != NB_OK)
            return nb_refuse_memory(&g->refusal);
        if (ids->n)
            g->words[g->n_bad_words] = (nb_word){ ids->p, ids->n };
        g->n_bad_words += ids->n > 0;
    }
    return true;
}

/* Prompt against context: truncation where it was asked for, the answer's length where it was not (API-18). The first words are what clients know it by. */
static bool lengths(nb_gen *g)
{
    const char *param = g->ask.chat ? "messages" : "prompt";
    const size_t limit = g->t->context;
    size_t longest = 0;

    for (size_t p = 0; p < g->n_prompts; p++) {
        nb_ids *ids = &g->prompts[p];
        const int64_t answer = g->ask.max_tokens >= 0 ? g->ask.max_tokens : 1;
        size_t keep = ids->n;

        if (g->ask.truncate >= 0)
            keep = (size_t)g->ask.truncate;
        else if (g->ask.truncate == -1)
            keep = answer < (int64_t)limit ? limit - (size_t)answer : 1;
        if (keep < ids->n && keep > 0) {
            memmove(ids->p, ids->p + (ids->n - keep), keep * sizeof *ids->p);
            ids->n = keep;
        }
        if (ids->n == 0)
            return nb_refuse(&g->refusal, 400, "empty_prompt", param, "The prompt has no tokens; send some text.");
        if (ids->n >= limit)
            return nb_refuse(
                &g->refusal, 400, "context_length_exceeded", param,
                "This model's maximum context length is %zu tokens; the prompt has %zu and an answer needs one: shorten the prompt.", limit,
                ids->n);
        if (ids->n > longest)
            longest = ids->n;
    }
    g->max_tokens = g->ask.max_tokens;
    if (g->max_tokens < 0) {
        g->max_tokens = (int64_t)(limit - longest);
        if (!g->ask.chat && g->max_tokens > COMPLETION_TOKENS)
            g->max_tokens = COMPLETION_TOKENS;
    } else if (g->max_tokens > (int64_t)(limit - longest)) {
        return nb_refuse(&g->refusal, 400, "context_length_exceeded", g->ask.max_tokens_name,
                         "This model's maximum context length is %zu tokens; the prompt has %zu and %s asks for %" PRId64
                         " more: ask for at most %zu.",
                         limit, longest, g->ask.max_tokens_name, g->max_tokens, limit - longest);
    }
    if (g->ask.min_tokens > (size_t)g->max_tokens)
        return nb_refuse(&g->refusal, 400, "invalid_value", "min_tokens",
                         "min_tokens %zu is above the %" PRId64 " tokens an answer may have.", g->ask.min_tokens, g->max_tokens);
    return true;
}

/* The ids that end a choice: the model's unless they are ignored, and the request's. */
static bool prepare_stops(nb_gen *g)
{
    const bool limited =
        g->ask.constraint != NB_CON_NONE || g->ask.tool_choice == NB_CALLS_REQUIRED || g->ask.tool_choice == NB_CALLS_NAMED;
    const size_t n_eos = g->ask.ignore_eos && !limited ? 0 : g->t->n_eos; /* a constraint that is fulfilled ends the answer */

    g->stop_ids = nb_arena_alloc(&g->ask.arena, (n_eos + g->ask.n_stop_ids + 1) * sizeof *g->stop_ids);
    if (!g->stop_ids)
        return nb_refuse_memory(&g->refusal);
    for (size_t i = 0; i < n_eos; i++)
        g->stop_ids[g->n_stop_ids++] = g->t->eos[i];
    for (size_t i = 0; i < g->ask.n_stop_ids; i++)
        g->stop_ids[g->n_stop_ids++] = g->ask.stop_ids[i];
    return true;
}

/* With echo the answer begins with the prompt. */
static bool prepare_echo(nb_gen *g)
{
    nb_err err = { 0 };

    for (size_t i = 0; g->ask.echo && i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];
        const nb_prompt *in = &g->ask.prompts[i / g->ask.n];
        const nb_ids *ids = &g->prompts[i / g->ask.n];

        if (in->ids || g->ask.truncate >= -1) {
            if (nb_tokenizer_decode(g->t->tok, ids->p, ids->n, g->ask.skip_special, &c->content, &err) != NB_OK)
                return nb_refuse_memory(&g->refusal);
        } else {
            nb_u8_repair(&c->content, in->text, in->n_text);
        }
        if (c->content.failed)
            return nb_refuse_memory(&g->refusal);
        c->echoed = c->content.n;
    }
    return true;
}

static bool prepare_stop_strings(nb_gen *g)
{
    nb_err err = { 0 };
    size_t *len;

    if (g->ask.n_stop == 0)
        return true;
    len = nb_arena_alloc(&g->ask.arena, g->ask.n_stop * sizeof *len);
    if (!len)
        return nb_refuse_memory(&g->refusal);
    for (size_t i = 0; i < g->ask.n_stop; i++)
        len[i] = strlen(g->ask.stop[i]);
    if (nb_stops_open(g->ask.stop, len, g->ask.n_stop, &g->stops, &err) != NB_OK)
        return nb_refuse_err(&g->refusal, 400, "invalid_value", "stop", &err);
    return true;
}

/* Which parts of the answer are reasoning and calls. */
static nb_reply_opts parser_opts(const nb_gen *g)
{
    const bool calls = g->ask.tools && (g->ask.tool_choice == NB_CALLS_AUTO || g->own_calls);

    return (nb_reply_opts){ .tools = calls ? g->t->tools : NB_TOOLS_NONE,
                            .reason = g->t->reason,
                            .tool_list = g->ask.tools,
                            .prompt = g->prompt_text.p,
                            .n_prompt = g->prompt_text.n,
                            .one_call = !g->ask.parallel_tools };
}

/* Required and named calls in the model's own form, where a grammar of it can be made (constrain.c). */
static bool own_form(const nb_gen *g)
{
    return (g->ask.tool_choice == NB_CALLS_REQUIRED || g->ask.tool_choice == NB_CALLS_NAMED) && g->t->tools != NB_TOOLS_NONE &&
           g->t->tools != NB_TOOLS_PYTHONIC && g->t->tools != NB_TOOLS_GPT_OSS;
}

static bool prepare_choices(nb_gen *g)
{
    nb_err err = { 0 };
    nb_reply_opts o;
    bool parsed, skip;

    g->own_calls = own_form(g);
    o = parser_opts(g);
    parsed = g->ask.chat && (o.tools != NB_TOOLS_NONE || o.reason != NB_REASON_NONE);
    skip = g->ask.skip_special && !(parsed && nb_reply_wants_special(&o));
    for (size_t i = 0; i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];

        nb_random_bytes(&o.seed, sizeof o.seed);
        if (nb_detok_open(g->t->tok, skip, &c->detok, &err) != NB_OK || (parsed && nb_reply_open(&o, &c->parser, &err) != NB_OK))
            return nb_refuse_memory(&g->refusal);
    }
    return true;
}

bool nb_gen_prepare(nb_gen *g)
{
    if (g->ask.chat && !prepare_chat(g))
        return false;
    for (size_t p = 0; !g->ask.chat && p < g->n_prompts; p++)
        if (!prepare_prompt(g, p))
            return false;
    if (!lengths(g) || !prepare_bad_words(g) || !prepare_stops(g) || !prepare_stop_strings(g) || !prepare_echo(g) || !prepare_choices(g) ||
        !nb_gen_constrain(g))
        return false;
    for (size_t p = 0; p < g->n_prompts; p++)
        g->n_prompt += g->prompts[p].n;
    return true;
}

void nb_gen_request(const nb_gen *g, size_t p, nb_request *out)
{
    const nb_ask *a = &g->ask;
    const bool prompt_lp = a->prompt_logprobs >= 0 || (a->echo && a->logprobs), best = a->keep < a->n;
    const unsigned prompt_top = a->prompt_logprobs > 0 ? (unsigned)a->prompt_logprobs : 0;

    *out = (nb_request){ .ids = g->prompts[p].p,
                         .n_ids = g->prompts[p].n,
                         .max_tokens = g->max_tokens ? (size_t)g->max_tokens : 1,
                         .sampling = a->sampling,
                         .stop_ids = g->stop_ids,
                         .n_stop_ids = g->n_stop_ids,
                         .min_tokens = a->min_tokens,
                         .n = a->n,
                         .first_choice = p * a->n,
                         .logprobs = a->logprobs || best,
                         .prompt_logprobs = prompt_lp,
                         .top = prompt_top > a->top_logprobs ? prompt_top : a->top_logprobs,
                         .named = a->named,
                         .n_named = a->n_named,
                         .bias = a->bias,
                         .n_bias = a->n_bias,
                         .allowed = a->allowed,
                         .n_allowed = a->n_allowed,
                         .bad_words = g->words,
                         .n_bad_words = g->n_bad_words,
                         .limit = g->limits ? &g->limits[p].c : NULL,
                         .priority = a->priority,
                         .key = g->key,
                         .ns = g->ns,
                         .arrival = g->arrival };
}

/* ---- tokens to text ---- */

/* A part of the answer from the parser. */
static void on_part(void *ctx, const nb_reply_event *e)
{
    nb_choice *c = ctx;
    nb_call_out *more;

    switch (e->kind) {
    case NB_REPLY_REASONING:
        nb_buf_put(&c->reasoning, e->text, e->n);
        break;
    case NB_REPLY_CONTENT:
        nb_buf_put(&c->content, e->text, e->n);
        break;
    case NB_REPLY_CALL:
        more = nb_realloc(c->calls, (c->n_calls + 1) * sizeof *more);
        if (!more) {
            c->failed = true;
            break;
        }
        c->calls = more;
        more[c->n_calls] = (nb_call_out){ .id = nb_strdup(e->id), .name = nb_strndup(e->text, e->n) };
        c->failed = c->failed || !more[c->n_calls].id || !more[c->n_calls].name;
        c->n_calls++;
        break;
    case NB_REPLY_ARGS:
        if (c->n_calls)
            nb_buf_put(&c->calls[c->n_calls - 1].args, e->text, e->n);
        break;
    case NB_REPLY_CALL_END:
        break;
    }
}

/* A call of the tool whose arguments the whole answer is (tool_choice with a name). */
static void named_call(const nb_gen *g, nb_choice *c, const char *p, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    char id[32] = "call_";
    uint8_t random[24];

    if (c->n_calls == 0) {
        nb_random_bytes(random, sizeof random);
        for (size_t i = 0; i < sizeof random; i++)
            id[5 + i] = letters[random[i] % (sizeof letters - 1)];
        on_part(c, &(nb_reply_event){ .kind = NB_REPLY_CALL, .text = g->ask.tool_name, .n = strlen(g->ask.tool_name), .id = id });
    }
    on_part(c, &(nb_reply_event){ .kind = NB_REPLY_ARGS, .text = p, .n = n });
}

/* The answer is one call as JSON (tool_choice required): take it apart. Cut short, it stays content. */
static void required_call(nb_gen *g, nb_choice *c)
{
    nb_json *o;
    nb_err err = { 0 };
    const char *name;
    char *args;

    if (nb_json_parse(c->content.p ? c->content.p : "", c->content.n, "call", 0, &o, &err) != NB_OK)
        return;
    name = nb_json_str(nb_json_get(o, "name"), NULL);
    args = nb_json_dump(nb_json_get(o, "arguments"), 0, true);
    if (name && args) {
        g->ask.tool_name = nb_arena_strdup(&g->ask.arena, name);
        if (g->ask.tool_name)
            named_call(g, c, args, strlen(args));
        c->content.n = 0;
    }
    nb_free(args);
    nb_json_free(o);
}

/* Text that is certain. */
static void pass(const nb_gen *g, nb_choice *c, const char *p, size_t n)
{
    nb_err err = { 0 };

    c->passed += n;
    if (g->ask.tool_choice == NB_CALLS_NAMED && !g->own_calls && !(c->parser && nb_reply_is_reasoning(c->parser)))
        named_call(g, c, p, n);
    else if (!c->parser)
        nb_buf_put(&c->content, p, n);
    else if (n && nb_reply_feed(c->parser, p, n, on_part, c, &err) != NB_OK)
        c->failed = true;
}

/* New text of a choice: stop strings cut it. */
static void take(nb_gen *g, nb_choice *c, const char *p, size_t n)
{
    nb_buf out = { 0 };

    c->decoded += n;
    if (!g->stops || c->n_output <= g->ask.min_tokens) {
        pass(g, c, p, n);
        return;
    }
    if (nb_stop_feed(g->stops, &c->stopper, p, n, g->ask.include_stop, &out)) {
        c->stopped = true;
        c->stop_string = g->ask.stop[c->stopper.hit - 1];
    }
    c->failed = c->failed || out.failed;
    pass(g, c, out.p ? out.p : "", out.n);
    nb_buf_clear(&out);
}

/* The text is over: what was held back comes out, and the parser's last words. */
static void take_rest(nb_gen *g, nb_choice *c)
{
    nb_buf rest = { 0 };
    nb_err err = { 0 };

    if (!c->stopped) {
        if (nb_detok_flush(c->detok, &rest, &err) != NB_OK)
            c->failed = true;
        take(g, c, rest.p ? rest.p : "", rest.n);
        rest.n = 0;
    }
    if (!c->stopped && g->stops) {
        nb_stop_flush(g->stops, &c->stopper, &rest);
        pass(g, c, rest.p ? rest.p : "", rest.n);
    }
    if (c->parser && nb_reply_finish(c->parser, on_part, c, &err) != NB_OK)
        c->failed = true;
    if (g->ask.tool_choice == NB_CALLS_REQUIRED && !g->own_calls)
        required_call(g, c);
    c->failed = c->failed || rest.failed;
    nb_buf_clear(&rest);
}

void nb_token_bytes(const nb_tokenizer *t, int32_t id, nb_buf *out)
{
    nb_err err = { 0 };

    (void)nb_tokenizer_bytes(t, id, out, &err);
}

static void keep_logprob(nb_gen *g, nb_choice *c, const nb_event *ev, size_t at)
{
    const size_t n_top = g->ask.n_named || ev->n_top < g->ask.top_logprobs ? ev->n_top : g->ask.top_logprobs;
    nb_shown *s;
    nb_logprob *top;

    if (c->n_shown == c->cap_shown) {
        const size_t cap = c->cap_shown ? 2 * c->cap_shown : 16;
        nb_shown *more = nb_realloc(c->shown, cap * sizeof *more);

        if (!more) {
            c->failed = true;
            return;
        }
        c->shown = more;
        c->cap_shown = cap;
    }
    top = nb_arena_alloc(&g->ask.arena, (n_top ? n_top : 1) * sizeof *top);
    if (!top) {
        c->failed = true;
        return;
    }
    if (n_top)
        memcpy(top, ev->logprob + 1, n_top * sizeof *top);
    s = &c->shown[c->n_shown++];
    *s = (nb_shown){ .id = ev->id, .logprob = ev->logprob->logprob, .top = top, .n_top = n_top, .text_at = at };
}

/* The token's text; true when a stop string was met. */
static bool on_token(nb_gen *g, nb_choice *c, const nb_event *ev)
{
    nb_err err = { 0 };
    nb_buf piece = { 0 };

    if (g->times.first_token == 0)
        g->times.first_token = ev->times.last_token;
    g->times.last_token = ev->times.last_token;
    if (c->stopped || c->done || g->max_tokens == 0)
        return false;
    c->n_output++;
    g->n_output++;
    if (ev->logprob)
        c->logprob += (double)ev->logprob->logprob;
    if (ev->logprob && g->ask.logprobs)
        keep_logprob(g, c, ev, c->decoded);
    if (g->ask.return_token_ids && nb_ids_push(&c->ids, ev->id, &err) != NB_OK)
        c->failed = true;
    if (nb_detok_add(c->detok, ev->id, &piece, &err) != NB_OK || piece.failed)
        c->failed = true;
    take(g, c, piece.p ? piece.p : "", piece.n);
    if (c->parser && nb_reply_is_reasoning(c->parser))
        g->n_reasoning++;
    nb_buf_clear(&piece);
    return c->stopped;
}

/* One of the request's own, which stop_reason names; the model's are not. */
static bool is_stop_id(const nb_gen *g, int32_t id)
{
    for (size_t i = 0; i < g->ask.n_stop_ids; i++)
        if (g->ask.stop_ids[i] == id)
            return true;
    return false;
}

/* The stop id that ended a choice: it counts, its text does not (DET-5) unless it was asked for. */
static void on_stop_id(nb_gen *g, nb_choice *c, const nb_event *ev)
{
    nb_err err = { 0 };
    nb_buf piece = { 0 };

    c->n_output++;
    g->n_output++;
    if (is_stop_id(g, ev->id))
        c->stop_id = ev->id;
    if (ev->logprob)
        c->logprob += (double)ev->logprob->logprob;
    if (ev->logprob && g->ask.logprobs)
        keep_logprob(g, c, ev, c->decoded);
    if (g->ask.return_token_ids && nb_ids_push(&c->ids, ev->id, &err) != NB_OK)
        c->failed = true;
    if (g->ask.include_stop) {
        if (nb_detok_add(c->detok, ev->id, &piece, &err) != NB_OK)
            c->failed = true;
        take(g, c, piece.p ? piece.p : "", piece.n);
    }
    nb_buf_clear(&piece);
}

static void on_done(nb_gen *g, nb_choice *c, const nb_event *ev)
{
    if (c->done)
        return;
    if (!c->stopped) {
        c->finish = g->max_tokens == 0 && ev->finish == NB_FINISH_STOP ? NB_FINISH_LENGTH : ev->finish;
        if (ev->finish == NB_FINISH_STOP && ev->id >= 0 && g->max_tokens)
            on_stop_id(g, c, ev);
    }
    take_rest(g, c);
    if (c->stopped)
        c->finish = NB_FINISH_STOP;
    c->done = true;
    nb_detok_close(c->detok);
    c->detok = NULL;
    g->n_done++;
    g->n_preempted += ev->n_preempted;
    if (g->times.scheduled == 0 || (ev->times.scheduled > 0 && ev->times.scheduled < g->times.scheduled))
        g->times.scheduled = ev->times.scheduled;
    g->times.queued = ev->times.queued;
    if (ev->finish == NB_FINISH_ERROR && ev->err)
        nb_refuse_err(&g->refusal,
                      strcmp(ev->err->cls, "queue.timeout") == 0     ? 503
                      : strcmp(ev->err->cls, "request.timeout") == 0 ? 504
                                                                     : 500,
                      strcmp(ev->err->cls, "queue.timeout") == 0       ? "queue_timeout"
                      : strcmp(ev->err->cls, "request.timeout") == 0   ? "request_timeout"
                      : strcmp(ev->err->cls, "sample.numeric") == 0    ? "numerical_error"
                      : strcmp(ev->err->cls, "sample.constraint") == 0 ? "constraint_dead_end"
                                                                       : "internal_error",
                      NULL, ev->err);
}

static void on_prompt(nb_gen *g, size_t p, const nb_event *ev)
{
    nb_request r = { 0 };
    size_t bytes;

    nb_gen_request(g, p, &r);
    if (g->prompt_lp[p] || !nb_mul_size(g->prompts[p].n * (1 + r.top), sizeof **g->prompt_lp, &bytes))
        return;
    g->prompt_lp[p] = nb_alloc(bytes);
    if (g->prompt_lp[p])
        memcpy(g->prompt_lp[p], ev->prompt, bytes);
}

bool nb_gen_event(nb_gen *g, size_t p, const nb_event *ev)
{
    nb_choice *c = &g->choices[p * g->ask.n + ev->choice];

    g->n_cached += ev->n_cached - g->cached[p];
    g->cached[p] = ev->n_cached;
    switch (ev->kind) {
    case NB_EV_PROMPT:
        on_prompt(g, p, ev);
        return false;
    case NB_EV_TOKEN:
        return on_token(g, c, ev);
    case NB_EV_DONE:
        on_done(g, c, ev);
    }
    return false;
}

const char *nb_gen_reason(const nb_gen *g, const nb_choice *c)
{
    switch (c->finish) {
    case NB_FINISH_LENGTH:
        return "length";
    case NB_FINISH_CANCEL:
        return "abort";
    case NB_FINISH_ERROR:
        return "error";
    default:
        return c->n_calls && g->ask.tool_choice != NB_CALLS_NAMED ? "tool_calls" : "stop";
    }
}
