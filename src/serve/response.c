/* response.c - JSON by hand into one buffer: a token's event is written sixty times a second for every reader. */
#include "serve/response.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "serve/errors.h"
#include "serve/items.h"
#include "serve/native.h"
#include "text/utf8.h"

enum { KEEP_ALIVE_S = 15 };

/* ---- parts ---- */

static void put_str(nb_buf *b, const char *s)
{
    nb_put_text(b, s, strlen(s));
}

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,"choices":[ */
static void put_head(nb_buf *b, const nb_gen *g, bool chunk)
{
    nb_buf_puts(b, "{\"id\":");
    put_str(b, g->id);
    nb_buf_printf(b, ",\"object\":\"%s%s\",\"created\":%" PRId64 ",\"model\":", g->ask.chat ? "chat.completion" : "text_completion",
                  chunk && g->ask.chat ? ".chunk" : "", g->created);
    put_str(b, g->t->model);
    nb_buf_puts(b, ",\"system_fingerprint\":");
    put_str(b, g->t->fingerprint);
    nb_buf_puts(b, ",\"choices\":[");
}

static void put_usage(nb_buf *b, const nb_gen *g)
{
    nb_buf_printf(b,
                  "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
                  g->n_prompt, g->n_output, g->n_prompt + g->n_output, g->n_cached, g->n_reasoning);
}

static void put_ms(nb_buf *b, const char *name, double s)
{
    nb_buf_printf(b, ",\"%s\":", name);
    nb_json_put_real(b, s > 0 ? floor(s * 1e5 + 0.5) / 100 : 0);
}

static void put_extension(nb_buf *b, const nb_gen *g)
{
    const nb_times *t = &g->times;

    if (g->t->strict_openai)
        return;
    nb_buf_printf(b, ",\"nibble\":{\"seed\":%" PRId64, (int64_t)g->ask.sampling.seed);
    put_ms(b, "queue_ms", t->scheduled > 0 ? t->scheduled - g->arrival : 0);
    put_ms(b, "ttft_ms", t->first_token > 0 ? t->first_token - g->arrival : 0);
    put_ms(b, "tpot_ms",
           g->n_output > g->n_choices ? (t->last_token - t->first_token) * (double)g->n_choices / (double)(g->n_output - g->n_choices) : 0);
    nb_buf_printf(b, ",\"cached_tokens\":%zu,\"preemptions\":%zu}", g->n_cached, g->n_preempted);
}

static void put_stop_reason(nb_buf *b, const nb_choice *c)
{
    nb_buf_puts(b, ",\"stop_reason\":");
    if (c->stop_string)
        put_str(b, c->stop_string);
    else if (c->stop_id >= 0)
        nb_buf_printf(b, "%" PRId32, c->stop_id);
    else
        nb_buf_puts(b, "null");
}

static void put_ids(nb_buf *b, const int32_t *ids, size_t n)
{
    nb_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++)
        nb_buf_printf(b, "%s%" PRId32, i ? "," : "", ids[i]);
    nb_buf_putc(b, ']');
}

/* ---- log-probabilities ---- */

static void put_logprob(nb_buf *b, float v)
{
    nb_json_put_real(b, isfinite(v) ? (double)v : -9999.0);
}

/* The name of a token: its text, or "token_id:N". */
static void put_token(nb_buf *b, const nb_gen *g, int32_t id, bool bytes)
{
    nb_buf raw = { 0 };

    nb_token_bytes(g->t->tok, id, &raw);
    if (g->ask.tokens_as_ids)
        nb_buf_printf(b, "\"token_id:%" PRId32 "\"", id);
    else
        nb_put_text(b, raw.p ? raw.p : "", raw.n);
    if (bytes) {
        nb_buf_puts(b, ",\"bytes\":[");
        for (size_t i = 0; i < raw.n; i++)
            nb_buf_printf(b, "%s%u", i ? "," : "", (unsigned)(unsigned char)raw.p[i]);
        nb_buf_putc(b, ']');
    }
    b->failed = b->failed || raw.failed;
    nb_buf_clear(&raw);
}

static void put_chat_entry(nb_buf *b, const nb_gen *g, const nb_shown *s)
{
    nb_buf_puts(b, "{\"token\":");
    put_token(b, g, s->id, true);
    nb_buf_puts(b, ",\"logprob\":");
    put_logprob(b, s->logprob);
    nb_buf_puts(b, ",\"top_logprobs\":[");
    for (size_t i = 0; i < s->n_top; i++) {
        nb_buf_puts(b, i ? ",{\"token\":" : "{\"token\":");
        put_token(b, g, s->top[i].id, true);
        nb_buf_puts(b, ",\"logprob\":");
        put_logprob(b, s->top[i].logprob);
        nb_buf_putc(b, '}');
    }
    nb_buf_puts(b, "]}");
}

/* {"token": logprob, ...}: n of them, and `own`, the token of the text, where it is not among them (SMP-8). */
static void put_top(nb_buf *b, const nb_gen *g, nb_logprob own, const nb_logprob *top, size_t n)
{
    bool listed = false;

    nb_buf_putc(b, '{');
    for (size_t i = 0; i < n + !listed; i++) {
        const nb_logprob *one = i < n ? &top[i] : &own;

        listed = listed || one->id == own.id;
        nb_buf_puts(b, i ? "," : "");
        put_token(b, g, one->id, false);
        nb_buf_putc(b, ':');
        put_logprob(b, one->logprob);
    }
    nb_buf_putc(b, '}');
}

static size_t code_points(const char *s, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

/* Prompt positions come first with echo; then shown[from, to). */
static void put_completion_logprobs(nb_buf *b, const nb_gen *g, const nb_choice *c, size_t from, size_t to)
{
    const nb_ids *prompt = &g->prompts[c->index / g->ask.n];
    const nb_logprob *lp = g->prompt_lp[c->index / g->ask.n];
    const size_t n_prompt = g->ask.echo && from == 0 && lp ? prompt->n : 0;
    size_t at = 0;
    nb_request q;

    nb_gen_request(g, 0, &q);
    nb_buf_puts(b, "{\"text_offset\":[");
    for (size_t i = 0; i < n_prompt; i++) {
        nb_buf piece = { 0 };

        nb_buf_printf(b, "%s%zu", i ? "," : "", at);
        if (!g->ask.skip_special || !nb_tokenizer_is_special(g->t->tok, prompt->p[i])) /* the others are not in the text */
            nb_token_bytes(g->t->tok, prompt->p[i], &piece);
        at += code_points(piece.p ? piece.p : "", piece.n);
        nb_buf_clear(&piece);
    }
    for (size_t i = from; i < to; i++)
        nb_buf_printf(
            b, "%s%zu", i > from || n_prompt ? "," : "",
            code_points(c->content.p, c->shown[i].text_at + c->echoed < c->content.n ? c->shown[i].text_at + c->echoed : c->content.n));
    nb_buf_puts(b, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n_prompt; i++) {
        nb_buf_puts(b, i ? "," : "null");
        if (i)
            put_logprob(b, lp[i * (1 + q.top)].logprob);
    }
    for (size_t i = from; i < to; i++) {
        nb_buf_puts(b, i > from || n_prompt ? "," : "");
        put_logprob(b, c->shown[i].logprob);
    }
    nb_buf_puts(b, "],\"tokens\":[");
    for (size_t i = 0; i < n_prompt; i++) {
        nb_buf_puts(b, i ? "," : "");
        put_token(b, g, prompt->p[i], false);
    }
    for (size_t i = from; i < to; i++) {
        nb_buf_puts(b, i > from || n_prompt ? "," : "");
        put_token(b, g, c->shown[i].id, false);
    }
    nb_buf_puts(b, "],\"top_logprobs\":[");
    for (size_t i = 0; i < n_prompt + (to - from); i++) {
        const nb_shown *drawn = i < n_prompt ? NULL : &c->shown[from + i - n_prompt];
        const nb_logprob *row = drawn ? NULL : lp + i * (1 + q.top);

        nb_buf_puts(b, i ? "," : "");
        if (drawn)
            put_top(b, g, (nb_logprob){ .id = drawn->id, .logprob = drawn->logprob }, drawn->top, drawn->n_top);
        else if (i)
            put_top(b, g, row[0], row + 1, g->ask.top_logprobs);
        else
            nb_buf_puts(b, "null");
    }
    nb_buf_puts(b, "]}");
}

static void put_logprobs(nb_buf *b, const nb_gen *g, const nb_choice *c, size_t from, size_t to)
{
    if (!g->ask.logprobs) {
        nb_buf_puts(b, "null");
        return;
    }
    if (!g->ask.chat) {
        put_completion_logprobs(b, g, c, from, to);
        return;
    }
    nb_buf_puts(b, "{\"content\":[");
    for (size_t i = from; i < to; i++) {
        nb_buf_puts(b, i > from ? "," : "");
        put_chat_entry(b, g, &c->shown[i]);
    }
    nb_buf_puts(b, "],\"refusal\":null}");
}

/* [null, {"id": {"logprob", "rank", "decoded_token"}, ...}, ...] (SMP-11) */
static void put_prompt_logprobs(nb_buf *b, const nb_gen *g, size_t p)
{
    const nb_logprob *lp = g->prompt_lp[p];
    nb_request q;

    nb_gen_request(g, 0, &q);
    nb_buf_puts(b, ",\"prompt_logprobs\":");
    if (!lp) {
        nb_buf_puts(b, "null");
        return;
    }
    nb_buf_puts(b, "[null");
    for (size_t i = 1; i < g->prompts[p].n; i++) {
        const nb_logprob *row = lp + i * (1 + q.top);

        nb_buf_puts(b, ",{");
        for (size_t k = 0; k <= (size_t)g->ask.prompt_logprobs; k++) {
            if (k && row[k].id == row[0].id)
                continue;
            nb_buf_printf(b, "%s\"%" PRId32 "\":{\"logprob\":", k ? "," : "", row[k].id);
            put_logprob(b, row[k].logprob);
            nb_buf_printf(b, ",\"rank\":%" PRIu32 ",\"decoded_token\":", row[k].rank);
            put_token(b, g, row[k].id, false);
            nb_buf_putc(b, '}');
        }
        nb_buf_putc(b, '}');
    }
    nb_buf_putc(b, ']');
}

/* ---- a whole answer ---- */

static void put_call(nb_buf *b, const nb_call_out *c)
{
    nb_buf_puts(b, "{\"id\":");
    put_str(b, c->id);
    nb_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
    put_str(b, c->name);
    nb_buf_puts(b, ",\"arguments\":");
    nb_put_text(b, c->args.p ? c->args.p : "", c->args.n);
    nb_buf_puts(b, "}}");
}

static void put_reasoning(nb_buf *b, const char *p, size_t n)
{
    nb_buf_puts(b, "\"reasoning\":");
    nb_put_text(b, p, n);
    nb_buf_puts(b, ",\"reasoning_content\":"); /* its older name */
    nb_put_text(b, p, n);
}

static void put_message(nb_buf *b, const nb_choice *c)
{
    nb_buf_puts(b, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->content.n || !c->n_calls)
        nb_put_text(b, c->content.p ? c->content.p : "", c->content.n);
    else
        nb_buf_puts(b, "null");
    nb_buf_puts(b, ",\"refusal\":null");
    if (c->reasoning.n) {
        nb_buf_putc(b, ',');
        put_reasoning(b, c->reasoning.p, c->reasoning.n);
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        nb_buf_puts(b, i ? "," : ",\"tool_calls\":[");
        put_call(b, &c->calls[i]);
    }
    nb_buf_puts(b, c->n_calls ? "]}" : "}");
}

static void put_choice(nb_buf *b, const nb_gen *g, const nb_choice *c, size_t index)
{
    nb_buf_printf(b, "%s{\"index\":%zu,", index ? "," : "", index);
    if (g->ask.chat) {
        put_message(b, c);
    } else {
        nb_buf_puts(b, "\"text\":");
        nb_put_text(b, c->content.p ? c->content.p : "", c->content.n);
    }
    nb_buf_puts(b, ",\"logprobs\":");
    put_logprobs(b, g, c, 0, c->n_shown);
    nb_buf_printf(b, ",\"finish_reason\":\"%s\"", nb_gen_reason(g, c));
    put_stop_reason(b, c);
    if (g->ask.return_token_ids) {
        nb_buf_puts(b, ",\"token_ids\":");
        put_ids(b, c->ids.p, c->ids.n);
    }
    if (!g->ask.chat && g->ask.prompt_logprobs >= 0)
        put_prompt_logprobs(b, g, c->index / g->ask.n);
    nb_buf_putc(b, '}');
}

static double mean_logprob(const nb_choice *c)
{
    return c->n_output ? c->logprob / (double)c->n_output : 0;
}

/* Of the choices of a prompt, the number of those that are better than c (KV-19). */
static size_t place(const nb_gen *g, const nb_choice *c)
{
    const size_t first = c->index / g->ask.n * g->ask.n;
    size_t better = 0;

    for (size_t i = first; i < first + g->ask.n; i++) {
        const nb_choice *o = &g->choices[i];

        better += mean_logprob(o) > mean_logprob(c) || (mean_logprob(o) == mean_logprob(c) && o->index < c->index);
    }
    return better;
}

static void put_choices(nb_buf *b, const nb_gen *g)
{
    for (size_t k = 0; k < g->n_prompts * g->ask.keep; k++)
        for (size_t i = 0; i < g->ask.n; i++) {
            const nb_choice *c = &g->choices[k / g->ask.keep * g->ask.n + i];

            if (g->ask.keep == g->ask.n ? i == k % g->ask.keep : place(g, c) == k % g->ask.keep)
                put_choice(b, g, c, k);
        }
}

static void put_answer(nb_buf *b, const nb_gen *g)
{
    put_head(b, g, false);
    put_choices(b, g);
    nb_buf_puts(b, "],\"usage\":");
    put_usage(b, g);
    if (g->ask.chat && g->ask.prompt_logprobs >= 0)
        put_prompt_logprobs(b, g, 0);
    if (g->ask.return_token_ids) {
        nb_buf_puts(b, ",\"prompt_token_ids\":");
        put_ids(b, g->prompts[0].p, g->prompts[0].n);
    }
    put_extension(b, g);
    nb_buf_putc(b, '}');
}

void nb_response_whole(nb_gen *g, nb_buf *b)
{
    const nb_refusal *f = &g->refusal;

    if (f->status)
        nb_http_error(g->http, f->status, f->code, f->param[0] ? f->param : NULL, f->message);
    else if (b->failed)
        nb_http_error(g->http, 503, "out_of_memory", NULL, "There is no memory for this answer now; try again.");
    else
        nb_http_reply(g->http, 200, "application/json", b->p, b->n);
    nb_buf_clear(b);
}

/* ---- a stream ---- */

void nb_response_event(nb_gen *g, nb_buf *b)
{
    nb_buf_puts(b, "\n\n");
    if (!b->failed)
        nb_http_send(g->http, b->p, b->n);
    b->n = 0;
    g->last_write = nb_now();
}

static void put_tail(nb_buf *b, const nb_gen *g)
{
    nb_buf_putc(b, ']');
    if (g->ask.continuous_usage) {
        nb_buf_puts(b, ",\"usage\":");
        put_usage(b, g);
    } else if (g->ask.include_usage) {
        nb_buf_puts(b, ",\"usage\":null");
    }
    nb_buf_putc(b, '}');
}

/* "data: " and the head, which is the same in every event of an answer. */
static void put_chunk_head(nb_buf *b, nb_gen *g)
{
    if (!g->head.n) {
        nb_buf_puts(&g->head, "data: ");
        put_head(&g->head, g, true);
    }
    nb_buf_put(b, g->head.p, g->head.n);
    b->failed = b->failed || g->head.failed;
}

/* Log-probabilities of the tokens whose text begins before `end` ride with it. */
static size_t shown_until(const nb_choice *c, size_t end)
{
    size_t i = c->shown_sent;

    while (i < c->n_shown && (c->done || c->shown[i].text_at < end))
        i++;
    return i;
}

static void role_chunk(nb_gen *g, nb_choice *c, nb_buf *b)
{
    c->begun = true;
    if (!g->ask.chat)
        return;
    put_chunk_head(b, g);
    nb_buf_printf(b, "{\"index\":%zu,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
                  c->index);
    put_tail(b, g);
    nb_response_event(g, b);
}

/* The tool calls of a delta: what is new of each. */
static void put_call_deltas(nb_buf *b, nb_choice *c)
{
    bool first = true;

    for (size_t i = 0; i < c->n_calls; i++) {
        nb_call_out *k = &c->calls[i];

        if (k->begun && k->sent == k->args.n)
            continue;
        nb_buf_printf(b, "%s{\"index\":%zu,", first ? "\"tool_calls\":[" : ",", i);
        if (!k->begun) {
            nb_buf_puts(b, "\"id\":");
            put_str(b, k->id);
            nb_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
            put_str(b, k->name);
            nb_buf_putc(b, ',');
        } else {
            nb_buf_puts(b, "\"function\":{");
        }
        nb_buf_puts(b, "\"arguments\":");
        nb_put_text(b, k->args.n > k->sent ? k->args.p + k->sent : "", k->args.n - k->sent);
        nb_buf_puts(b, "}}");
        k->begun = true;
        k->sent = k->args.n;
        first = false;
    }
    if (!first)
        nb_buf_putc(b, ']');
}

static bool calls_have_news(const nb_choice *c)
{
    for (size_t i = 0; i < c->n_calls; i++)
        if (!c->calls[i].begun || c->calls[i].sent < c->calls[i].args.n)
            return true;
    return false;
}

/* Bytes of content that may go out: with required calls it is JSON of a call until the end shows otherwise. */
static size_t content_ready(const nb_gen *g, const nb_choice *c)
{
    return g->ask.tool_choice == NB_CALLS_REQUIRED && !g->own_calls && !c->done ? c->content_sent : c->content.n;
}

static void put_delta(nb_buf *b, const nb_gen *g, nb_choice *c)
{
    const size_t ready = content_ready(g, c);
    const char *comma = "";

    nb_buf_puts(b, "\"delta\":{");
    if (c->reasoning.n > c->reasoning_sent) {
        put_reasoning(b, c->reasoning.p + c->reasoning_sent, c->reasoning.n - c->reasoning_sent);
        c->reasoning_sent = c->reasoning.n;
        comma = ",";
    }
    if (ready > c->content_sent) {
        nb_buf_printf(b, "%s\"content\":", comma);
        nb_put_text(b, c->content.p + c->content_sent, ready - c->content_sent);
        c->content_sent = ready;
        comma = ",";
    }
    if (calls_have_news(c)) {
        nb_buf_puts(b, comma);
        put_call_deltas(b, c);
    }
    nb_buf_puts(b, "},\"logprobs\":");
}

/* What is new of a choice, and its end. */
static void text_chunk(nb_gen *g, nb_choice *c, nb_buf *b)
{
    const size_t to = shown_until(c, c->passed);
    const bool prompt = g->ask.echo && c->shown_sent == 0 && c->content_sent == 0;

    put_chunk_head(b, g);
    nb_buf_printf(b, "{\"index\":%zu,", c->index);
    if (g->ask.chat) {
        put_delta(b, g, c);
    } else {
        nb_buf_puts(b, "\"text\":");
        nb_put_text(b, c->content.n > c->content_sent ? c->content.p + c->content_sent : "", c->content.n - c->content_sent);
        c->content_sent = c->content.n;
        nb_buf_puts(b, ",\"logprobs\":");
    }
    if (to > c->shown_sent || prompt)
        put_logprobs(b, g, c, c->shown_sent, to);
    else
        nb_buf_puts(b, "null");
    if (c->done) {
        nb_buf_printf(b, ",\"finish_reason\":\"%s\"", nb_gen_reason(g, c));
        put_stop_reason(b, c);
    } else {
        nb_buf_puts(b, ",\"finish_reason\":null");
    }
    if (g->ask.return_token_ids) {
        nb_buf_puts(b, ",\"token_ids\":");
        put_ids(b, c->ids.p + c->ids_sent, c->ids.n - c->ids_sent);
        c->ids_sent = c->ids.n;
    }
    nb_buf_putc(b, '}');
    put_tail(b, g);
    nb_response_event(g, b);
    c->shown_sent = to;
}

static void stream_choices(nb_gen *g)
{
    nb_buf b = { 0 };

    for (size_t i = 0; i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];
        const bool text = content_ready(g, c) > c->content_sent || c->reasoning.n > c->reasoning_sent || calls_have_news(c);

        if (c->finished || (!c->done && !(text && c->n_output)))
            continue;
        if (!c->begun)
            role_chunk(g, c, &b);
        text_chunk(g, c, &b);
        c->finished = c->done;
    }
    nb_buf_clear(&b);
}

static void stream_end(nb_gen *g)
{
    nb_buf b = { 0 };

    if (g->refusal.status) {
        nb_buf_puts(&b, "data: ");
        nb_error_put(&b, g->t->errors, g->refusal.status, g->refusal.code, g->refusal.param[0] ? g->refusal.param : NULL,
                     g->refusal.message);
        nb_response_event(g, &b);
    } else if (g->ask.include_usage) {
        put_chunk_head(&b, g);
        nb_buf_puts(&b, "],\"usage\":");
        put_usage(&b, g);
        put_extension(&b, g);
        nb_buf_putc(&b, '}');
        nb_response_event(g, &b);
    }
    nb_buf_puts(&b, "data: [DONE]");
    nb_response_event(g, &b);
    nb_buf_clear(&b);
    nb_http_end(g->http);
}

void nb_response_begin(nb_gen *g)
{
    if (g->ask.stream) {
        nb_http_add(g->http, "Cache-Control", "no-cache");
        nb_http_add(g->http, "X-Accel-Buffering", "no");
        nb_http_stream(g->http, 200, "text/event-stream; charset=utf-8");
        g->streaming = true;
    }
    g->last_write = nb_now();
    if (g->streaming && g->style == NB_GEN_ITEMS)
        nb_items_begin(g);
}

/* Has a choice of a stream as many new tokens as an event should have, its first one, or its end (DET-6)? */
static bool is_due(const nb_gen *g)
{
    for (size_t i = 0; i < g->n_choices; i++) {
        const nb_choice *c = &g->choices[i];

        if ((c->done && !c->finished) || (c->n_output && !c->n_written) || c->n_output >= c->n_written + g->t->stream_interval)
            return true;
    }
    return false;
}

static void write_progress(nb_gen *g, bool done)
{
    nb_buf b = { 0 };

    if (done)
        g->phase = NB_GEN_DONE;
    if (g->style == NB_GEN_ITEMS) {
        nb_items_progress(g, done);
    } else if (g->style != NB_GEN_OPENAI) {
        nb_native_progress(g, done);
    } else if (g->streaming) {
        stream_choices(g);
        if (done)
            stream_end(g);
    } else if (done) {
        if (!g->refusal.status)
            put_answer(&b, g);
        nb_response_whole(g, &b);
    }
}

void nb_response_progress(nb_gen *g)
{
    const double before = g->last_write;
    bool done = g->refusal.status || g->n_done == g->n_choices;

    for (size_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].failed || g->choices[i].content.failed || g->choices[i].reasoning.failed)
            done = !nb_refuse(&g->refusal, 503, "out_of_memory", NULL, "There is no memory for this answer now; try again.");
    if (g->phase == NB_GEN_DONE || (g->streaming && !done && !is_due(g)))
        return;
    write_progress(g, done);
    for (size_t i = 0; g->last_write > before && i < g->n_choices; i++)
        g->choices[i].n_written = g->choices[i].n_output;
}

void nb_response_keep_alive(nb_gen *g, double now)
{
    static const char comment[] = ": keep-alive\n\n";

    if (g->streaming && g->phase != NB_GEN_DONE && now - g->last_write > KEEP_ALIVE_S) {
        nb_http_send(g->http, comment, sizeof comment - 1);
        g->last_write = now;
    }
}
