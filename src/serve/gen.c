/* gen.c - the life of a request, and what the engine is asked for it. */
#include "serve/gen.h"

#include <string.h>
#include <time.h>

#include "base/log.h"

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
