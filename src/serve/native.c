/* native.c - names of /generate, in and out. */
#include "serve/native.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "serve/errors.h"
#include "serve/response.h"

nb_json *nb_native_to_completion(const nb_json *body, bool *list, nb_refusal *f)
{
    static const struct {
        const char *from, *to;
    } names[] = { { "max_new_tokens", "max_tokens" },
                  { "min_new_tokens", "min_tokens" },
                  { "stop", "stop" },
                  { "stop_token_ids", "stop_token_ids" },
                  { "temperature", "temperature" },
                  { "top_p", "top_p" },
                  { "top_k", "top_k" },
                  { "min_p", "min_p" },
                  { "frequency_penalty", "frequency_penalty" },
                  { "presence_penalty", "presence_penalty" },
                  { "repetition_penalty", "repetition_penalty" },
                  { "n", "n" },
                  { "ignore_eos", "ignore_eos" },
                  { "skip_special_tokens", "skip_special_tokens" },
                  { "spaces_between_special_tokens", "spaces_between_special_tokens" },
                  { "no_stop_trim", "include_stop_str_in_output" },
                  { "logit_bias", "logit_bias" },
                  { "sampling_seed", "seed" },
                  { "json_schema", "guided_json" },
                  { "regex", "guided_regex" },
                  { "ebnf", "guided_grammar" } };
    static const struct {
        const char *from, *to;
    } outer[] = { { "stream", "stream" }, { "priority", "priority" }, { "cache_salt", "cache_salt" }, { "extra_key", "prompt_cache_key" } };
    const nb_json *text = nb_ask_field(body, "text"), *ids = nb_ask_field(body, "input_ids"),
                  *params = nb_ask_field(body, "sampling_params");
    const nb_json *input = text ? text : ids;
    nb_json *o;
    bool ok;

    if (!input || (text && ids)) {
        nb_refuse(f, 400, input ? "invalid_value" : "missing_required_parameter", "text", "Send text or input_ids, one of them.");
        return NULL;
    }
    if (params && nb_json_typeof(params) != NB_JOBJ) {
        nb_refuse(f, 400, "invalid_type", "sampling_params", "sampling_params must be one object.");
        return NULL;
    }
    if (nb_ask_field(params, "stop_regex")) {
        nb_refuse(f, 400, "unsupported_parameter", "sampling_params", "stop_regex is not supported; use stop.");
        return NULL;
    }
    *list = text ? nb_json_typeof(text) == NB_JARR : nb_json_typeof(nb_json_at(ids, 0)) == NB_JARR;
    o = nb_json_new_obj();
    ok = nb_json_set(o, "prompt", nb_json_copy(input));
    for (size_t i = 0; ok && i < NB_LEN(names); i++)
        ok = !nb_ask_field(params, names[i].from) || nb_json_set(o, names[i].to, nb_json_copy(nb_ask_field(params, names[i].from)));
    for (size_t i = 0; ok && i < NB_LEN(outer); i++)
        ok = !nb_ask_field(body, outer[i].from) || nb_json_set(o, outer[i].to, nb_json_copy(nb_ask_field(body, outer[i].from)));
    ok = ok && (nb_json_get(o, "max_tokens") || nb_json_set(o, "max_tokens", nb_json_new_int(128))) &&
         nb_json_set(o, "return_token_ids", nb_json_new_bool(true));
    if (ok && nb_json_bool(nb_ask_field(body, "return_logprob"), false))
        ok = nb_json_set(o, "logprobs", nb_json_new_int(nb_json_int(nb_ask_field(body, "top_logprobs_num"), 0)));
    if (ok)
        return o;
    nb_json_free(o);
    nb_refuse_memory(f);
    return NULL;
}

static void put_finish(nb_buf *b, const nb_gen *g, const nb_choice *c)
{
    nb_buf_puts(b, "\"finish_reason\":");
    if (!c->done) {
        nb_buf_puts(b, "null");
        return;
    }
    nb_buf_printf(b, "{\"type\":\"%s\"", nb_gen_reason(g, c));
    if (c->finish == NB_FINISH_LENGTH)
        nb_buf_printf(b, ",\"length\":%zu", c->n_output);
    if (c->stop_string) {
        nb_buf_puts(b, ",\"matched\":");
        nb_put_text(b, c->stop_string, strlen(c->stop_string));
    } else if (c->finish == NB_FINISH_STOP && c->ids.n) {
        nb_buf_printf(b, ",\"matched\":%" PRId32, c->ids.p[c->ids.n - 1]);
    }
    nb_buf_putc(b, '}');
}

static void put_lp(nb_buf *b, float v, int32_t id)
{
    nb_buf_putc(b, '[');
    nb_json_put_real(b, isfinite(v) ? (double)v : -9999.0);
    nb_buf_printf(b, ",%" PRId32 ",null]", id);
}

static void put_choice(nb_buf *b, const nb_gen *g, const nb_choice *c)
{
    const size_t p = c->index / g->ask.n;

    nb_buf_puts(b, "{\"text\":");
    nb_put_text(b, c->content.p ? c->content.p : "", c->content.n);
    nb_buf_puts(b, ",\"output_ids\":[");
    for (size_t i = 0; i < c->ids.n; i++)
        nb_buf_printf(b, "%s%" PRId32, i ? "," : "", c->ids.p[i]);
    nb_buf_puts(b, "],\"meta_info\":{\"id\":");
    nb_put_text(b, g->id, strlen(g->id));
    nb_buf_putc(b, ',');
    put_finish(b, g, c);
    nb_buf_printf(b, ",\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%zu,\"e2e_latency\":", g->prompts[p].n,
                  c->n_output, g->cached[p]);
    nb_json_put_real(b, nb_now() - g->arrival);
    if (g->ask.logprobs) {
        nb_buf_puts(b, ",\"output_token_logprobs\":[");
        for (size_t i = 0; i < c->n_shown; i++) {
            nb_buf_puts(b, i ? "," : "");
            put_lp(b, c->shown[i].logprob, c->shown[i].id);
        }
        nb_buf_puts(b, "],\"output_top_logprobs\":[");
        for (size_t i = 0; i < c->n_shown; i++) {
            nb_buf_puts(b, i ? ",[" : "[");
            for (size_t k = 0; k < c->shown[i].n_top; k++) {
                nb_buf_puts(b, k ? "," : "");
                put_lp(b, c->shown[i].top[k].logprob, c->shown[i].top[k].id);
            }
            nb_buf_putc(b, ']');
        }
        nb_buf_putc(b, ']');
    }
    nb_buf_puts(b, "}}");
}

static void stream(nb_gen *g, bool done)
{
    nb_buf b = { 0 };

    for (size_t i = 0; i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];

        if (c->finished || (c->content.n == c->content_sent && !c->done))
            continue;
        nb_buf_puts(&b, "data: ");
        put_choice(&b, g, c);
        nb_response_event(g, &b);
        c->content_sent = c->content.n;
        c->finished = c->done;
    }
    if (done) {
        if (g->refusal.status) {
            nb_buf_puts(&b, "data: ");
            nb_error_put(&b, g->t->errors, g->refusal.status, g->refusal.code, NULL, g->refusal.message);
            nb_response_event(g, &b);
        }
        nb_buf_puts(&b, "data: [DONE]");
        nb_response_event(g, &b);
        nb_http_end(g->http);
    }
    nb_buf_clear(&b);
}

void nb_native_progress(nb_gen *g, bool done)
{
    const bool list = g->style == NB_GEN_NATIVE_LIST || g->n_choices > 1;
    nb_buf b = { 0 };

    if (g->streaming) {
        stream(g, done);
    } else if (done) {
        nb_buf_puts(&b, list ? "[" : "");
        for (size_t i = 0; i < g->n_choices && !g->refusal.status; i++) {
            nb_buf_puts(&b, i ? "," : "");
            put_choice(&b, g, &g->choices[i]);
        }
        nb_buf_puts(&b, list ? "]" : "");
        nb_response_whole(g, &b);
    }
}
