/* items.c - the answer of /v1/responses: reasoning, a message, calls; whole, or as the events that build them. */
#include "serve/items.h"

#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "serve/errors.h"
#include "serve/response.h"

/* Which item a stream is writing. */
typedef enum item_kind { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } item_kind;

struct nb_items {
    uint64_t sequence; /* number of the next event */
    size_t index;      /* of the item in `output`  */
    item_kind open;
    size_t call; /* ITEM_CALL: which call */
    size_t calls_begun;
    size_t reasoning, content, args; /* bytes written of each; args: of the open call */
};

static void put_str(nb_buf *b, const char *s)
{
    nb_put_text(b, s, strlen(s));
}

static void put_piece(nb_buf *b, const nb_buf *text, size_t from)
{
    nb_put_text(b, text->n > from ? text->p + from : "", text->n > from ? text->n - from : 0);
}

/* "rs_", "msg_" or "fc_" and the request's id. */
static void put_id(nb_buf *b, const nb_gen *g, item_kind kind, size_t call)
{
    static const char *const prefix[] = { "", "rs", "msg", "fc" };

    nb_buf_printf(b, "\"%s_%s", prefix[kind], g->id + strcspn(g->id, "_") + 1);
    if (kind == ITEM_CALL)
        nb_buf_printf(b, "_%zu", call);
    nb_buf_putc(b, '"');
}

/* An item as it is now: empty when it is announced, whole when it is done. */
static void put_item(nb_buf *b, const nb_gen *g, item_kind kind, size_t call, bool whole)
{
    const nb_choice *c = &g->choices[0];
    const nb_buf none = { 0 };

    nb_buf_puts(b, "{\"id\":");
    put_id(b, g, kind, call);
    switch (kind) {
    case ITEM_REASONING:
        nb_buf_puts(b, ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (whole) {
            nb_buf_puts(b, "{\"type\":\"reasoning_text\",\"text\":");
            put_piece(b, &c->reasoning, 0);
            nb_buf_putc(b, '}');
        }
        nb_buf_putc(b, ']');
        break;
    case ITEM_MESSAGE:
        nb_buf_puts(b, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (whole) {
            nb_buf_puts(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
            put_piece(b, &c->content, 0);
            nb_buf_putc(b, '}');
        }
        nb_buf_putc(b, ']');
        break;
    default:
        nb_buf_puts(b, ",\"type\":\"function_call\",\"call_id\":");
        put_str(b, c->calls[call].id);
        nb_buf_puts(b, ",\"name\":");
        put_str(b, c->calls[call].name);
        nb_buf_puts(b, ",\"arguments\":");
        put_piece(b, whole ? &c->calls[call].args : &none, 0);
    }
    nb_buf_printf(b, ",\"status\":\"%s\"}", !whole ? "in_progress" : c->finish == NB_FINISH_STOP ? "completed" : "incomplete");
}

static void put_output(nb_buf *b, const nb_gen *g)
{
    const nb_choice *c = &g->choices[0];
    bool some = false;

    if (c->reasoning.n) {
        put_item(b, g, ITEM_REASONING, 0, true);
        some = true;
    }
    if (c->content.n || !c->n_calls) {
        nb_buf_puts(b, some ? "," : "");
        put_item(b, g, ITEM_MESSAGE, 0, true);
        some = true;
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        nb_buf_puts(b, some || i ? "," : "");
        put_item(b, g, ITEM_CALL, i, true);
    }
}

static void put_original(nb_buf *b, const nb_gen *g, const char *name, const char *dflt)
{
    const nb_json *v = nb_json_get(g->original, name);
    char *text = v ? nb_json_dump(v, 0, true) : NULL;

    nb_buf_printf(b, ",\"%s\":%s", name, text ? text : dflt);
    nb_free(text);
}

/* The response object; `done`: with its output and usage. */
static void put_response(nb_buf *b, const nb_gen *g, bool done)
{
    const nb_choice *c = &g->choices[0];
    const bool failed = g->refusal.status != 0, cut = done && !failed && c->finish != NB_FINISH_STOP;

    nb_buf_puts(b, "{\"id\":");
    put_str(b, g->id);
    nb_buf_printf(b, ",\"object\":\"response\",\"created_at\":%" PRId64 ",\"status\":\"%s\",\"model\":", g->created,
                  failed  ? "failed"
                  : !done ? "in_progress"
                  : cut   ? "incomplete"
                          : "completed");
    put_str(b, g->t->model);
    nb_buf_puts(b, ",\"error\":");
    if (failed) {
        nb_buf_puts(b, "{\"code\":");
        put_str(b, g->refusal.code);
        nb_buf_puts(b, ",\"message\":");
        put_str(b, g->refusal.message);
        nb_buf_putc(b, '}');
    } else {
        nb_buf_puts(b, "null");
    }
    nb_buf_printf(b, ",\"incomplete_details\":%s",
                  cut ? c->finish == NB_FINISH_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "{\"reason\":\"content_filter\"}" : "null");
    put_original(b, g, "instructions", "null");
    put_original(b, g, "metadata", "{}");
    put_original(b, g, "max_output_tokens", "null");
    put_original(b, g, "parallel_tool_calls", "true");
    put_original(b, g, "tool_choice", "\"auto\"");
    put_original(b, g, "tools", "[]");
    put_original(b, g, "text", "{\"format\":{\"type\":\"text\"}}");
    put_original(b, g, "reasoning", "{\"effort\":null,\"summary\":null}");
    put_original(b, g, "user", "null");
    nb_buf_puts(b, ",\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\",\"temperature\":");
    nb_json_put_real(b, nb_json_short(g->ask.sampling.temperature));
    nb_buf_puts(b, ",\"top_p\":");
    nb_json_put_real(b, nb_json_short(g->ask.sampling.top_p));
    nb_buf_puts(b, ",\"output\":[");
    if (done && !failed)
        put_output(b, g);
    nb_buf_puts(b, "],\"usage\":");
    if (done && !failed)
        nb_buf_printf(b,
                      "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu},\"output_tokens\":%zu,"
                      "\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}",
                      g->n_prompt, g->n_cached, g->n_output, g->n_reasoning, g->n_prompt + g->n_output);
    else
        nb_buf_puts(b, "null");
    nb_buf_putc(b, '}');
}

/* ---- events ---- */

/* `event: TYPE`, and the beginning of its data. */
static void event(nb_buf *b, nb_gen *g, const char *type)
{
    nb_buf_printf(b, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu64, type, type, g->items->sequence++);
}

static void send_it(nb_buf *b, nb_gen *g)
{
    nb_buf_putc(b, '}');
    nb_response_event(g, b);
}

/* `,"item_id":...,"output_index":N` and, for text, `,"content_index":0` */
static void put_place(nb_buf *b, const nb_gen *g)
{
    const struct nb_items *s = g->items;

    nb_buf_puts(b, ",\"item_id\":");
    put_id(b, g, s->open, s->call);
    nb_buf_printf(b, ",\"output_index\":%zu", s->index);
    if (s->open != ITEM_CALL)
        nb_buf_puts(b, ",\"content_index\":0");
}

static void put_part(nb_buf *b, const nb_gen *g, bool whole)
{
    const bool message = g->items->open == ITEM_MESSAGE;
    const nb_choice *c = &g->choices[0];
    const nb_buf none = { 0 };

    nb_buf_printf(b, ",\"part\":{\"type\":\"%s\",%s\"text\":", message ? "output_text" : "reasoning_text",
                  message ? "\"annotations\":[],\"logprobs\":[]," : "");
    put_piece(b, !whole ? &none : message ? &c->content : &c->reasoning, 0);
    nb_buf_putc(b, '}');
}

static void open_item(nb_gen *g, item_kind kind, size_t call, nb_buf *b)
{
    struct nb_items *s = g->items;

    s->open = kind;
    s->call = call;
    event(b, g, "response.output_item.added");
    nb_buf_printf(b, ",\"output_index\":%zu,\"item\":", s->index);
    put_item(b, g, kind, call, false);
    send_it(b, g);
    if (kind != ITEM_CALL) {
        event(b, g, "response.content_part.added");
        put_place(b, g);
        put_part(b, g, false);
        send_it(b, g);
    }
}

static void close_item(nb_gen *g, nb_buf *b)
{
    static const char *const done[] = { "", "response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done" };
    struct nb_items *s = g->items;
    const nb_choice *c = &g->choices[0];

    if (s->open == ITEM_NONE)
        return;
    event(b, g, done[s->open]);
    put_place(b, g);
    nb_buf_puts(b, s->open == ITEM_CALL ? ",\"arguments\":" : s->open == ITEM_MESSAGE ? ",\"logprobs\":[],\"text\":" : ",\"text\":");
    put_piece(b, s->open == ITEM_CALL ? &c->calls[s->call].args : s->open == ITEM_MESSAGE ? &c->content : &c->reasoning, 0);
    send_it(b, g);
    if (s->open != ITEM_CALL) {
        event(b, g, "response.content_part.done");
        put_place(b, g);
        put_part(b, g, true);
        send_it(b, g);
    }
    event(b, g, "response.output_item.done");
    nb_buf_printf(b, ",\"output_index\":%zu,\"item\":", s->index);
    put_item(b, g, s->open, s->call, true);
    send_it(b, g);
    s->open = ITEM_NONE;
    s->index++;
}

/* New text of `kind` from *sent on. */
static void delta(nb_gen *g, item_kind kind, size_t call, const nb_buf *text, size_t *sent, nb_buf *b)
{
    static const char *const names[] = { "", "response.reasoning_text.delta", "response.output_text.delta",
                                         "response.function_call_arguments.delta" };
    struct nb_items *s = g->items;

    if (s->open != kind || s->call != call) {
        close_item(g, b);
        open_item(g, kind, call, b);
    }
    if (text->n == *sent)
        return;
    event(b, g, names[kind]);
    put_place(b, g);
    nb_buf_puts(b, kind == ITEM_MESSAGE ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
    put_piece(b, text, *sent);
    send_it(b, g);
    *sent = text->n;
}

void nb_items_begin(nb_gen *g)
{
    nb_buf b = { 0 };

    g->items = nb_arena_calloc(&g->ask.arena, 1, sizeof *g->items);
    if (!g->items) {
        g->choices[0].failed = true;
        return;
    }
    event(&b, g, "response.created");
    nb_buf_puts(&b, ",\"response\":");
    put_response(&b, g, false);
    send_it(&b, g);
    event(&b, g, "response.in_progress");
    nb_buf_puts(&b, ",\"response\":");
    put_response(&b, g, false);
    send_it(&b, g);
    nb_buf_clear(&b);
}

static void stream(nb_gen *g, bool done)
{
    struct nb_items *s = g->items;
    const nb_choice *c = &g->choices[0];
    const bool hold = g->ask.tool_choice == NB_CALLS_REQUIRED && !g->own_calls && !c->done; /* it may be a call yet */
    nb_buf b = { 0 };

    if (c->reasoning.n > s->reasoning)
        delta(g, ITEM_REASONING, 0, &c->reasoning, &s->reasoning, &b);
    if (!hold && (c->content.n > s->content || (done && !c->n_calls && c->content.n == 0 && !g->refusal.status)))
        delta(g, ITEM_MESSAGE, 0, &c->content, &s->content, &b);
    for (size_t i = s->open == ITEM_CALL ? s->call : s->calls_begun; i < c->n_calls; i++) {
        if (i >= s->calls_begun) {
            s->args = 0;
            s->calls_begun = i + 1;
        }
        delta(g, ITEM_CALL, i, &c->calls[i].args, &s->args, &b);
    }
    if (done) {
        close_item(g, &b);
        event(&b, g, g->refusal.status ? "response.failed" : c->finish == NB_FINISH_STOP ? "response.completed" : "response.incomplete");
        nb_buf_puts(&b, ",\"response\":");
        put_response(&b, g, true);
        send_it(&b, g);
        nb_http_end(g->http);
    }
    nb_buf_clear(&b);
}

void nb_items_progress(nb_gen *g, bool done)
{
    nb_buf b = { 0 };

    if (g->streaming && g->items) {
        stream(g, done);
    } else if (g->streaming) {
        nb_http_end(g->http);
    } else if (done) {
        if (!g->refusal.status)
            put_response(&b, g, true);
        nb_response_whole(g, &b);
    }
}
