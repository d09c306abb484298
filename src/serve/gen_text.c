/* gen_text.c - the engine's tokens to text: stop strings, reasoning, tool calls, log-probabilities, the end. */
#include <string.h>

#include "base/sha256.h"
#include "serve/gen.h"

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

/* What is counted and told of a token beside its text. */
static void count_token(nb_gen *g, nb_choice *c, const nb_event *ev)
{
    nb_err err = { 0 };

    c->n_output++;
    g->n_output++;
    if (ev->logprob)
        c->logprob += (double)ev->logprob->logprob;
    if (ev->logprob && g->ask.logprobs)
        keep_logprob(g, c, ev, c->decoded);
    if (g->ask.return_token_ids && nb_ids_push(&c->ids, ev->id, &err) != NB_OK)
        c->failed = true;
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
    count_token(g, c, ev);
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

    count_token(g, c, ev);
    if (is_stop_id(g, ev->id))
        c->stop_id = ev->id;
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
