/* reply_channels.c - replies of gpt-oss: messages in channels, <|channel|>NAME<|message|>TEXT<|end|>. Source: spec serving 8.3. */
#include <string.h>

#include "text/reply_priv.h"

/* A message begins: what kind its header says. */
static void open_channel(nb_reply *r)
{
    const char *h = r->header.p ? r->header.p : "";
    const bool call = strstr(h, "to=functions.") != NULL;

    r->channel = call ? NB_CH_CALL : strstr(h, "analysis") ? NB_CH_ANALYSIS : NB_CH_FINAL;
    r->began = r->channel != NB_CH_FINAL ? false : r->began;
    r->body.n = 0;
}

static void close_channel(nb_reply *r)
{
    const char *name = r->header.p ? strstr(r->header.p, "to=functions.") : NULL;
    nb_calls calls = { 0 };

    if (r->channel == NB_CH_CALL && name) {
        nb_call *c = nb_calls_add(&calls);
        nb_json *v = NULL;
        const char *s = r->body.p ? r->body.p : "";
        size_t n = r->body.n, k;
        name += 13;
        k = strcspn(name, " <\t\n");
        nb_trim(&s, &n);
        if (!c) {
            r->failed = true;
        } else if (k && n && nb_json_parse(s, n, "call", 0, &v, NULL) == NB_OK && nb_json_typeof(v) == NB_JOBJ) {
            nb_buf_put(&c->name, name, k);
            nb_buf_put(&c->args, s, n);
            r->failed = r->failed || c->name.failed || c->args.failed;
            if (!r->failed)
                nb_reply_give_calls(r, &calls);
        } else {
            nb_reply_give(r, NB_REPLY_CONTENT, 0, r->body.p, r->body.n, NULL);
        }
        nb_json_free(v);
    }
    if (r->channel == NB_CH_ANALYSIS)
        r->blanks.n = 0;
    r->channel = NB_CH_HEADER;
    r->header.n = 0;
    nb_calls_clear(&calls);
}

static void channel_text(nb_reply *r, const char *s, size_t n)
{
    switch (r->channel) {
    case NB_CH_HEADER:
        nb_buf_put(&r->header, s, n);
        break;
    case NB_CH_ANALYSIS:
        nb_reply_reasoning(r, s, n);
        break;
    case NB_CH_CALL:
        nb_buf_put(&r->body, s, n);
        break;
    case NB_CH_FINAL:
    default:
        nb_reply_give(r, NB_REPLY_CONTENT, 0, s, n, NULL);
        break;
    }
}

/* What may stand before the first channel: " to=functions.name". */
static bool may_be_header(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && nb_is_blank(s[i]))
        i++;
    return nb_begins(s + i, n - i, "to=") || nb_starts(s + i, n - i, "to=");
}

/* First place where one of marks[n] stands, or may once more text came; *which of them, *whole when it is all there. */
static size_t find_mark(const nb_reply *r, bool final, const char *const *marks, size_t n, size_t *which, bool *whole)
{
    const char *s = r->in.p;

    *whole = false;
    for (size_t i = 0; i < r->in.n; i++) {
        for (size_t k = 0; s[i] == '<' && k < n; k++) {
            *which = k;
            *whole = nb_starts(s + i, r->in.n - i, marks[k]);
            if (*whole || (!final && nb_begins(s + i, r->in.n - i, marks[k])))
                return i;
        }
    }
    return r->in.n;
}

void nb_reply_channels(nb_reply *r, bool final)
{
    enum { MESSAGE, END, RETURN, CALL, START, CHANNEL, CONSTRAIN };
    static const char *const marks[] = { "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|constrain|>" };

    while (r->in.n > 0 && !r->failed) {
        size_t k = 0;
        bool whole;
        const size_t i = find_mark(r, final, marks, NB_LEN(marks), &k, &whole);
        if (r->stage == NB_R_MAYBE && may_be_header(r->in.p, i)) {
            if (!whole && !final)
                return;
        } else if (r->stage == NB_R_MAYBE && i > 0) { /* plain text: no channels at all */
            r->stage = NB_R_BEHIND;
            r->channel = NB_CH_FINAL;
        }
        channel_text(r, r->in.p, i);
        nb_reply_drop(&r->in, i);
        if (!whole)
            break;
        r->stage = NB_R_BEHIND;
        nb_reply_drop(&r->in, strlen(marks[k]));
        if (k == MESSAGE && r->channel == NB_CH_HEADER)
            open_channel(r);
        else if ((k >= END && k <= START) || (k == CHANNEL && r->channel != NB_CH_HEADER))
            close_channel(r);
        else
            channel_text(r, k >= CHANNEL ? " " : marks[k], k >= CHANNEL ? 1 : strlen(marks[k]));
    }
    if (final && r->channel != NB_CH_HEADER)
        close_channel(r);
}
