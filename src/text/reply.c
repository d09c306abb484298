/* reply.c - a reply in two stages: reasoning is split off, then content and tool calls. Each stage holds back what may still become
 * a marker. */
#include "text/reply.h"

#include <string.h>

#include "text/reply_priv.h"

typedef struct reason_format {
    const char *name, *also, *begin, *end;
} reason_format;

static const reason_format reasons[NB_REASON_N] = {
    [NB_REASON_NONE] = { .name = "none" },
    [NB_REASON_THINK] = { "think", "qwen3", "<think>", "</think>" },
    [NB_REASON_MISTRAL] = { "mistral", NULL, "[THINK]", "[/THINK]" },
    [NB_REASON_GPT_OSS] = { "gpt_oss", "openai_gptoss", "<|channel|>", NULL },
    [NB_REASON_GRANITE] = { "granite", NULL, "Here is my thought process:", "Here is my response:" },
};

/* ---- names ---- */

static bool is_one_of(const char *name, const char *a, const char *b)
{
    return strcmp(name, a) == 0 || (b && strcmp(name, b) == 0);
}

bool nb_tool_format_named(const char *name, nb_tool_format *out)
{
    for (int i = 0; i < NB_TOOLS_N; i++) {
        if (is_one_of(name, nb_call_formats[i].name, nb_call_formats[i].also)) {
            *out = (nb_tool_format)i;
            return true;
        }
    }
    return false;
}

bool nb_reason_format_named(const char *name, nb_reason_format *out)
{
    for (int i = 0; i < NB_REASON_N; i++) {
        if (is_one_of(name, reasons[i].name, reasons[i].also)) {
            *out = (nb_reason_format)i;
            return true;
        }
    }
    return false;
}

const char *nb_tool_format_name(nb_tool_format f)
{
    return nb_call_formats[f].name;
}

const char *nb_reason_format_name(nb_reason_format f)
{
    return reasons[f].name;
}

const char *nb_tool_format_begin(nb_tool_format f)
{
    return nb_call_formats[f].open ? nb_call_formats[f].open : nb_call_formats[f].begin;
}

const char *nb_reason_format_end(nb_reason_format f)
{
    return reasons[f].end;
}

static const char *find(const char *s, size_t n, const char *what)
{
    const size_t k = strlen(what);

    for (size_t i = 0; i + k <= n; i++) {
        if (s[i] == what[0] && memcmp(s + i, what, k) == 0)
            return s + i;
    }
    return NULL;
}

nb_tool_format nb_tool_format_guess(const char *tmpl, size_t n)
{
    /* the more telling markers first */
    static const nb_tool_format order[] = { NB_TOOLS_MINIMAX_M2, NB_TOOLS_KIMI_K2,   NB_TOOLS_DEEPSEEK_V3, NB_TOOLS_GPT_OSS,
                                            NB_TOOLS_GLM47,      NB_TOOLS_QWEN3_XML, NB_TOOLS_MISTRAL,     NB_TOOLS_GRANITE,
                                            NB_TOOLS_PHI4MINI,   NB_TOOLS_HERMES,    NB_TOOLS_PYTHONIC,    NB_TOOLS_LLAMA3_JSON };

    for (size_t i = 0; i < NB_LEN(order); i++) {
        if (!find(tmpl, n, nb_call_formats[order[i]].told_by))
            continue;
        if (order[i] == NB_TOOLS_DEEPSEEK_V3 && !find(tmpl, n, "```"))
            return NB_TOOLS_DEEPSEEK_V31;
        return order[i];
    }
    return NB_TOOLS_NONE;
}

nb_reason_format nb_reason_format_guess(const char *tmpl, size_t n)
{
    static const nb_reason_format order[] = { NB_REASON_GPT_OSS, NB_REASON_MISTRAL, NB_REASON_GRANITE, NB_REASON_THINK };

    for (size_t i = 0; i < NB_LEN(order); i++) {
        const reason_format *f = &reasons[order[i]];
        if (find(tmpl, n, f->begin) || (f->end && find(tmpl, n, f->end)))
            return order[i];
    }
    return NB_REASON_NONE;
}

bool nb_reply_wants_special(const nb_reply_opts *o)
{
    return o->tools != NB_TOOLS_NONE || o->reason == NB_REASON_MISTRAL || o->reason == NB_REASON_GPT_OSS || o->reason == NB_REASON_THINK;
}

/* ---- events ---- */

void nb_reply_give(nb_reply *r, nb_reply_kind kind, int index, const char *s, size_t n, const char *id)
{
    const nb_reply_event e = { .kind = kind, .index = index, .text = s ? s : "", .n = n, .id = id };

    if (n || kind == NB_REPLY_CALL || kind == NB_REPLY_CALL_END)
        r->fn(r->ctx, &e);
}

/* Content; with calls in play its last blanks wait, as they may stand before a call. */
static void give_content(nb_reply *r, const char *s, size_t n)
{
    size_t k = n;

    if (r->stage == NB_R_BEHIND && !r->began) { /* newlines between reasoning and content */
        while (n && (*s == '\n' || *s == '\r')) {
            s++;
            n--;
        }
        k = n;
        r->began = n > 0;
    }
    while (r->f && k > 0 && nb_is_blank(s[k - 1]))
        k--;
    if (k > 0) {
        nb_reply_give(r, NB_REPLY_CONTENT, 0, r->blanks.p, r->blanks.n, NULL);
        nb_reply_give(r, NB_REPLY_CONTENT, 0, s, k, NULL);
        r->blanks.n = 0;
        r->spoken = true;
    }
    nb_buf_put(&r->blanks, s + k, n - k);
}

/* Reasoning, but for newlines at both its ends. */
void nb_reply_reasoning(nb_reply *r, const char *s, size_t n)
{
    size_t k;

    while (!r->began && n && *s == '\n') {
        s++;
        n--;
    }
    r->began = r->began || n > 0;
    for (k = n; k > 0 && s[k - 1] == '\n';)
        k--;
    if (k > 0) {
        nb_reply_give(r, NB_REPLY_REASONING, 0, r->blanks.p, r->blanks.n, NULL);
        nb_reply_give(r, NB_REPLY_REASONING, 0, s, k, NULL);
        r->blanks.n = 0;
    }
    nb_buf_put(&r->blanks, s + k, n - k);
}

static void make_id(nb_reply *r, char out[40])
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const bool brief = r->f && r->f->id;
    size_t n = 0;

    if (!brief) {
        memcpy(out, "call_", 5);
        n = 5;
    }
    for (size_t i = 0; i < (brief ? 9u : 24u); i++) {
        uint64_t x = r->rng += 0x9E3779B97F4A7C15u; /* splitmix64 */
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
        x = (x ^ x >> 27) * 0x94D049BB133111EBu;
        out[n++] = letters[(x ^ x >> 31) % (sizeof letters - 1)];
    }
    out[n] = 0;
}

void nb_reply_give_begin(nb_reply *r, const char *name, size_t n, const char *id, size_t n_id)
{
    char own[40], *theirs = n_id ? nb_strndup(id, n_id) : NULL;

    make_id(r, own);
    nb_reply_give(r, NB_REPLY_CALL, r->calls, name, n, theirs ? theirs : own);
    nb_free(theirs);
}

void nb_reply_give_calls(nb_reply *r, const nb_calls *c)
{
    for (size_t i = 0; i < c->n; i++) {
        if (r->o.one_call && r->calls > 0)
            return;
        nb_reply_give_begin(r, c->v[i].name.p, c->v[i].name.n, c->v[i].id.p, c->v[i].id.n);
        nb_reply_give(r, NB_REPLY_ARGS, r->calls, c->v[i].args.p, c->v[i].args.n, NULL);
        nb_reply_give(r, NB_REPLY_CALL_END, r->calls, NULL, 0, NULL);
        r->calls++;
    }
}

/* ---- stage two: calls ---- */

typedef struct unit {
    enum { MORE, DONE, BAD } is;
    size_t from, to, length; /* body; of the whole, or of what is surely no call */
} unit;

static size_t blanks_at(const nb_reply *r, size_t i)
{
    size_t k = i;

    while (k < r->text.n && nb_is_blank(r->text.p[k]))
        k++;
    return k;
}

/* Length of the markers before a call's body: [open] begin, or neither where a reply may begin with the body. 0 with is set: no. */
static size_t unit_head(const nb_reply *r, bool final, unit *u)
{
    const nb_call_format *f = r->f;
    const char *s = r->text.p;
    size_t i = 0, n = r->text.n;

    u->is = DONE;
    if (f->open && nb_starts(s, n, f->open)) {
        i = blanks_at(r, strlen(f->open));
        if (!final && nb_begins(s + i, n - i, f->begin)) {
            u->is = MORE;
            return 0;
        }
    }
    if (nb_starts(s + i, n - i, f->begin))
        return i + strlen(f->begin);
    if (f->whole && n && s[0] == f->first)
        return 0;
    u->is = BAD;
    u->length = i ? strlen(f->open) : 1;
    return 0;
}

/* Of bodies that end where their value ends: where it begins; SIZE_MAX: not known yet. */
static size_t value_start(const nb_reply *r, size_t head, bool *bad)
{
    const size_t i = blanks_at(r, head);
    const char *brace;

    *bad = false;
    if (i >= r->text.n)
        return SIZE_MAX;
    if (r->text.p[i] == '{' || (r->text.p[i] == '[' && r->f->body != NB_BODY_JSON))
        return i;
    *bad = r->f->body != NB_BODY_MISTRAL;
    brace = memchr(r->text.p + i, '{', r->text.n - i); /* behind a name and [ARGS] */
    return brace ? (size_t)(brace - r->text.p) : SIZE_MAX;
}

static unit by_end_marker(nb_reply *r, size_t head)
{
    const char *end = r->f->end, *at;
    const size_t back = strlen(end) - 1, from = r->scanned > head + back ? r->scanned - back : head;

    at = find(r->text.p + from, r->text.n - from, end);
    r->scanned = r->text.n;
    if (!at)
        return (unit){ .is = MORE };
    const size_t to = (size_t)(at - r->text.p);
    return (unit){ DONE, head, to, to + strlen(end) };
}

static unit by_value(nb_reply *r, size_t head, bool final)
{
    bool bad;
    const size_t start = value_start(r, head, &bad);
    size_t to, k;

    if (bad)
        return (unit){ .is = BAD, .length = head ? head : r->text.n };
    if (start == SIZE_MAX || !nb_jend_go(&r->end, r->text.p + start, r->text.n - start, r->f->body == NB_BODY_PYTHON))
        return (unit){ .is = MORE };
    to = start + r->end.at;
    k = blanks_at(r, to);
    if (!r->f->end)
        return (unit){ DONE, head, to, to };
    if (nb_starts(r->text.p + k, r->text.n - k, r->f->end))
        return (unit){ DONE, head, to, k + strlen(r->f->end) };
    if (!final && nb_begins(r->text.p + k, r->text.n - k, r->f->end))
        return (unit){ .is = MORE };
    return (unit){ DONE, head, to, to }; /* the end was left out */
}

static unit find_unit(nb_reply *r, bool final)
{
    unit u = { 0 };
    const size_t head = unit_head(r, final, &u);

    if (u.is != DONE)
        return u;
    u = r->f->end && r->f->body != NB_BODY_JSON ? by_end_marker(r, head) : by_value(r, head, final);
    if (u.is == MORE && final) { /* it never ended: what stands up to a marker of an end, or the marker of its begin, is content */
        const char *end = r->f->end ? find(r->text.p, r->text.n, r->f->end) : NULL;
        u.is = BAD;
        u.length = end ? (size_t)(end - r->text.p) + strlen(r->f->end) : head ? head : r->text.n;
        if (r->f->end && !end && r->f->body != NB_BODY_JSON) { /* or all of it is a call without its end */
            u.is = DONE;
            u.from = head;
            u.to = u.length = r->text.n;
        }
    }
    return u;
}

static void end_unit(nb_reply *r, size_t n)
{
    nb_reply_drop(&r->text, n);
    r->unit = r->live = false;
    r->scanned = 0;
    memset(&r->end, 0, sizeof r->end);
}

/* A call that is given out as it is written. False: more text is needed. */
static bool take_live(nb_reply *r, bool final)
{
    size_t to;
    const bool whole = nb_live_go_on(r, final, &to);
    unit u;

    if (!whole && !final)
        return false;
    r->scanned = r->scanned > to ? r->scanned : to;
    if (r->f->end && r->scanned == to)
        r->scanned += strlen(r->f->end) - 1; /* by_end_marker goes back that far */
    u = whole ? find_unit(r, final) : (unit){ .is = BAD, .length = r->text.n };
    if (u.is == MORE)
        return false;
    nb_reply_give(r, NB_REPLY_CALL_END, r->calls, NULL, 0, NULL);
    r->calls++;
    end_unit(r, u.is == DONE && u.length >= to ? u.length : r->text.n);
    return true;
}

/* Take the unit at the beginning of text. False: more text is needed. */
static bool take_unit(nb_reply *r, bool final)
{
    nb_calls calls = { 0 };
    unit u = { 0 };
    bool ok = false;
    size_t head;

    if (!r->live && (r->wants_live || r->armed)) {
        r->armed = r->armed || nb_starts(r->text.p, r->text.n, nb_tool_format_begin(r->o.tools));
        head = unit_head(r, final, &u);
        if (u.is == DONE)
            nb_live_begin(r, head);
    }
    if (r->live)
        return take_live(r, final);
    u = find_unit(r, final);

    if (u.is == MORE)
        return false;
    if (u.is == DONE)
        ok = nb_calls_read(r->f, r->text.p + u.from, u.to - u.from, r->o.tool_list, &calls, &r->failed);
    if (ok) {
        r->blanks.n = 0;
        nb_reply_give_calls(r, &calls);
    } else {
        give_content(r, r->text.p, u.length);
        r->plain = r->plain || r->f->whole;
    }
    end_unit(r, u.length);
    nb_calls_clear(&calls);
    return true;
}

/* First place of a marker in text; *k its length, *close whether it ends the calls. SIZE_MAX: none; *held bytes at the end may become one. */
static size_t find_marker(const nb_reply *r, bool *close, size_t *held)
{
    const char *const marks[] = { r->f->open, r->f->begin, r->f->close };
    const char *s = r->text.p;

    *held = 0;
    for (size_t i = 0; i < r->text.n; i++) {
        for (size_t k = 0; k < NB_LEN(marks); k++) {
            if (!marks[k] || s[i] != marks[k][0])
                continue;
            *close = k == 2;
            if (nb_starts(s + i, r->text.n - i, marks[k]))
                return i;
            if (nb_begins(s + i, r->text.n - i, marks[k])) {
                *held = *held ? *held : r->text.n - i;
            }
        }
    }
    return SIZE_MAX;
}

/* A reply that is calls or none: does one begin here? False: more text is needed. */
static bool at_beginning(nb_reply *r, bool final)
{
    size_t i = blanks_at(r, 0);

    while (r->calls && i < r->text.n && (nb_is_blank(r->text.p[i]) || r->text.p[i] == ';' || r->text.p[i] == ','))
        i++;
    if (i == r->text.n && !final)
        return false;
    if (i < r->text.n && r->calls && r->f->close && nb_starts(r->text.p + i, r->text.n - i, r->f->close)) {
        nb_reply_drop(&r->text, i + strlen(r->f->close));
        return r->text.n > 0;
    }
    if (i < r->text.n && (r->text.p[i] == r->f->first || nb_starts(r->text.p + i, r->text.n - i, r->f->begin))) {
        if (!r->calls)
            give_content(r, r->text.p, i);
        nb_reply_drop(&r->text, i);
        r->unit = true;
        return true;
    }
    if (!final && i < r->text.n &&
        (nb_begins(r->text.p + i, r->text.n - i, r->f->begin) || nb_begins(r->text.p + i, r->text.n - i, r->f->close)))
        return false;
    r->plain = true;
    return true;
}

static void go_on(nb_reply *r, bool final)
{
    while (!r->failed && r->text.n > 0) {
        bool close = false;
        size_t at, held;
        if (r->unit) {
            if (!take_unit(r, final))
                return;
            continue;
        }
        if (r->plain || !r->f) {
            give_content(r, r->text.p, r->text.n);
            r->text.n = 0;
            return;
        }
        if (r->f->whole) {
            if (!at_beginning(r, final))
                return;
            continue;
        }
        at = find_marker(r, &close, &held);
        if (at == SIZE_MAX) {
            at = r->text.n - (final ? 0 : held);
            give_content(r, r->text.p, at);
            nb_reply_drop(&r->text, at);
            return;
        }
        give_content(r, r->text.p, at);
        nb_reply_drop(&r->text, at);
        r->unit = !close;
        if (close) {
            if (!r->calls)
                give_content(r, r->text.p, strlen(r->f->close));
            nb_reply_drop(&r->text, strlen(r->f->close));
        }
    }
}

static void put_content(nb_reply *r, const char *s, size_t n)
{
    nb_buf_put(&r->text, s, n);
    if (!r->text.failed)
        go_on(r, false);
}

/* ---- stage one: reasoning between marks ---- */

static void reasoning(nb_reply *r, bool final)
{
    const reason_format *f = &reasons[r->o.reason];

    if (r->stage == NB_R_MAYBE) {
        size_t i = 0;
        while (i < r->in.n && nb_is_blank(r->in.p[i]))
            i++;
        if (!final && (i == r->in.n || nb_begins(r->in.p + i, r->in.n - i, f->begin)))
            return;
        if (nb_starts(r->in.p + i, r->in.n - i, f->begin)) {
            nb_reply_drop(&r->in, i + strlen(f->begin));
            r->stage = NB_R_INSIDE;
        } else {
            r->stage = NB_R_BEHIND;
            r->began = true; /* blanks at the beginning of plain content stay */
        }
    }
    if (r->stage == NB_R_INSIDE) {
        const char *at = find(r->in.p ? r->in.p : "", r->in.n, f->end);
        size_t n = at ? (size_t)(at - r->in.p) : r->in.n;
        for (size_t k = n < strlen(f->end) ? n : strlen(f->end) - 1; !at && !final && k > 0; k--) {
            if (nb_begins(r->in.p + r->in.n - k, k, f->end)) {
                n = r->in.n - k;
                break;
            }
        }
        nb_reply_reasoning(r, r->in.p, n);
        nb_reply_drop(&r->in, n);
        if (!at)
            return;
        nb_reply_drop(&r->in, strlen(f->end));
        r->stage = NB_R_BEHIND;
        r->began = false;
        r->blanks.n = 0;
    }
    put_content(r, r->in.p, r->in.n);
    r->in.n = 0;
}

/* ---- a reply ---- */

/* Where the last of these stands; -1: nowhere. */
static long last(const char *s, size_t n, const char *what)
{
    const size_t k = strlen(what);

    for (size_t i = n >= k ? n - k + 1 : 0; i > 0; i--) {
        if (memcmp(s + i - 1, what, k) == 0)
            return (long)(i - 1);
    }
    return -1;
}

static void set_stage(nb_reply *r)
{
    const reason_format *f = &reasons[r->o.reason];

    r->stage = r->o.reason == NB_REASON_NONE ? NB_R_BEHIND : NB_R_MAYBE;
    r->began = r->o.reason == NB_REASON_NONE;
    if (f->end && r->o.prompt) {
        const long from = last(r->o.prompt, r->o.n_prompt, f->begin), to = last(r->o.prompt, r->o.n_prompt, f->end);
        if (from >= 0 && from > to) {
            size_t i = (size_t)from + strlen(f->begin);
            while (i < r->o.n_prompt && nb_is_blank(r->o.prompt[i])) /* an old mark in the conversation is followed by text */
                i++;
            r->stage = i == r->o.n_prompt ? NB_R_INSIDE : NB_R_MAYBE;
        }
    }
}

nb_status nb_reply_open(const nb_reply_opts *o, nb_reply **out, nb_err *err)
{
    nb_reply *r = nb_calloc(1, sizeof *r);

    *out = r;
    if (!r)
        return nb_enomem(err, "a reply");
    r->o = *o;
    r->rng = o->seed;
    nb_buf *const all[] = { &r->in, &r->blanks, &r->header, &r->body, &r->text };
    for (size_t i = 0; i < NB_LEN(all); i++) { /* never NULL from now on */
        nb_buf_putc(all[i], ' ');
        all[i]->n = 0;
        r->failed = r->failed || all[i]->failed;
    }
    if (r->failed) {
        nb_reply_close(r);
        *out = NULL;
        return nb_enomem(err, "a reply");
    }
    r->f = nb_call_formats[o->tools].begin ? &nb_call_formats[o->tools] : NULL;
    set_stage(r);
    r->o.prompt = NULL;
    return NB_OK;
}

void nb_reply_close(nb_reply *r)
{
    if (!r)
        return;
    nb_buf_clear(&r->in);
    nb_buf_clear(&r->blanks);
    nb_buf_clear(&r->header);
    nb_buf_clear(&r->body);
    nb_buf_clear(&r->text);
    nb_buf_clear(&r->name);
    nb_free(r);
}

nb_status nb_reply_clone(const nb_reply *r, uint64_t seed, nb_reply **out, nb_err *err)
{
    nb_status rc = nb_reply_open(&r->o, out, err);

    if (rc == NB_OK) {
        (*out)->stage = r->stage;
        (*out)->began = r->began;
        (*out)->rng = seed;
        (*out)->wants_live = r->wants_live;
        (*out)->armed = r->armed;
    }
    return rc;
}

void nb_reply_live(nb_reply *r, bool always)
{
    r->wants_live = r->f != NULL;
    r->armed = r->wants_live && always;
}

static nb_status done(nb_reply *r, nb_err *err)
{
    r->failed = r->failed || r->in.failed || r->text.failed || r->blanks.failed || r->header.failed || r->body.failed || r->name.failed;
    return r->failed ? nb_enomem(err, "a reply") : NB_OK;
}

nb_status nb_reply_feed(nb_reply *r, const char *text, size_t n, nb_reply_fn fn, void *ctx, nb_err *err)
{
    r->fn = fn;
    r->ctx = ctx;
    if (n == 0)
        return NB_OK;
    nb_buf_put(&r->in, text, n);
    if (!r->in.failed && r->o.reason == NB_REASON_GPT_OSS)
        nb_reply_channels(r, false);
    else if (!r->in.failed)
        reasoning(r, false);
    return done(r, err);
}

nb_status nb_reply_finish(nb_reply *r, nb_reply_fn fn, void *ctx, nb_err *err)
{
    r->fn = fn;
    r->ctx = ctx;
    if (r->o.reason == NB_REASON_GPT_OSS) {
        nb_reply_channels(r, true);
        return done(r, err);
    }
    reasoning(r, true);
    if (r->stage == NB_R_INSIDE) { /* the end never came: nothing but reasoning */
        nb_reply_give(r, NB_REPLY_REASONING, 0, r->blanks.p, r->blanks.n, NULL);
    } else {
        go_on(r, true);
        if (!r->calls)
            nb_reply_give(r, NB_REPLY_CONTENT, 0, r->blanks.p, r->blanks.n, NULL);
    }
    r->blanks.n = 0;
    return done(r, err);
}

int nb_reply_calls(const nb_reply *r)
{
    return r->calls;
}

bool nb_reply_is_reasoning(const nb_reply *r)
{
    return r->o.reason == NB_REASON_GPT_OSS ? r->channel == NB_CH_ANALYSIS : r->stage == NB_R_INSIDE;
}
