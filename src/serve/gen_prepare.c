/* gen_prepare.c - from what was asked to what the engine gets: template, tokens, lengths, stops. */
#include <inttypes.h>
#include <string.h>

#include "base/sha256.h"
#include "serve/gen.h"
#include "text/utf8.h"

enum { COMPLETION_TOKENS = 16 }; /* of /v1/completions when the request says nothing */

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
