/* reply_live.c - calls given out while they are written: for replies that a grammar holds to the form of calls, where nothing that has
 * begun as a call can turn out to be none (nb_reply_live). What is given out is what reply_calls.c reads from the whole. */
#include <string.h>

#include "text/reply_priv.h"

#define BAR  "\xEF\xBD\x9C"
#define LOW  "\xE2\x96\x81"
#define SEP  "<" BAR "tool" LOW "sep" BAR ">"
#define KIMI "<|tool_call_argument_begin|>"

/* The beginning of a call: its name, its id where the text has one, and where its arguments begin. */
typedef struct head {
    const char *name, *id;
    size_t n_name, n_id, args;
} head;

static const char *find(const char *s, size_t n, const char *what)
{
    const size_t k = strlen(what);

    for (size_t i = 0; i + k <= n; i++)
        if (s[i] == what[0] && memcmp(s + i, what, k) == 0)
            return s + i;
    return NULL;
}

/* Behind blanks and then `what`; 0: it is not there (yet). */
static size_t behind(const char *s, size_t n, size_t i, const char *what)
{
    while (i < n && nb_is_blank(s[i]))
        i++;
    return nb_starts(s + i, n - i, what) ? i + strlen(what) : 0;
}

/* {"name": NAME, "arguments" or "parameters": { */
static bool json_head(const char *s, size_t n, head *h)
{
    const char *quote;
    size_t i = behind(s, n, 0, "{"), k;

    i = i ? behind(s, n, i, "\"name\"") : 0;
    i = i ? behind(s, n, i, ":") : 0;
    i = i ? behind(s, n, i, "\"") : 0;
    quote = i ? memchr(s + i, '"', n - i) : NULL;
    if (!quote || memchr(s + i, '\\', (size_t)(quote - s) - i))
        return false;
    h->name = s + i;
    h->n_name = (size_t)(quote - h->name);
    i = behind(s, n, (size_t)(quote - s) + 1, ",");
    k = i ? behind(s, n, i, "\"arguments\"") : 0;
    i = k ? k : i ? behind(s, n, i, "\"parameters\"") : 0;
    i = i ? behind(s, n, i, ":") : 0;
    i = i ? behind(s, n, i, "{") : 0;
    h->args = i ? i - 1 : 0;
    return i > 0;
}

/* NAME mark { */
static bool marked_head(const char *s, size_t n, const char *mark, head *h)
{
    const char *at = find(s, n, mark);
    size_t i;

    if (!at)
        return false;
    h->name = s;
    h->n_name = (size_t)(at - s);
    nb_trim(&h->name, &h->n_name);
    i = behind(s, n, (size_t)(at - s) + strlen(mark), "{");
    h->args = i ? i - 1 : 0;
    return i > 0;
}

static bool read_head(const nb_call_format *f, const char *s, size_t n, head *h)
{
    const char *at;
    size_t i;

    memset(h, 0, sizeof *h);
    switch (f->body) {
    case NB_BODY_JSON:
        return json_head(s, n, h);
    case NB_BODY_MISTRAL:
        i = behind(s, n, 0, "[") + behind(s, n, 0, "{"); /* the old form is a list */
        return !i && !find(s, n, "[CALL_ID]") && marked_head(s, n, "[ARGS]", h);
    case NB_BODY_DEEPSEEK31:
        return marked_head(s, n, SEP, h);
    case NB_BODY_DEEPSEEK:
        at = find(s, n, SEP);
        i = at ? (size_t)(at - s) + strlen(SEP) : 0;
        if (!at || !marked_head(s + i, n - i, "```json", h))
            return false;
        h->args += i;
        return true;
    case NB_BODY_KIMI:
        if (!marked_head(s, n, KIMI, h))
            return false;
        h->id = h->name;
        h->n_id = h->n_name;
        if (nb_starts(h->name, h->n_name, "functions.")) {
            h->name += 10;
            h->n_name -= 10;
        }
        at = memchr(h->name, ':', h->n_name);
        h->n_name = at ? (size_t)(at - h->name) : h->n_name;
        return true;
    default:
        return nb_pairs_name(f, s, n, &h->name, &h->n_name, &h->args);
    }
}

bool nb_live_begin(nb_reply *r, size_t from)
{
    const bool named = nb_json_len(r->o.tool_list) > 0;
    head h;

    if (!r->armed || (r->o.one_call && r->calls > 0) || !read_head(r->f, r->text.p + from, r->text.n - from, &h) ||
        !nb_is_call_name(h.name, h.n_name) || (named && !nb_find_tool(r->o.tool_list, h.name, h.n_name)))
        return false;
    r->blanks.n = 0;
    r->name.n = 0;
    nb_buf_put(&r->name, h.name, h.n_name);
    nb_reply_give_begin(r, h.name, h.n_name, h.id, h.n_id);
    r->live = true;
    r->args_at = from + h.args;
    r->args_sent = 0;
    memset(&r->args_end, 0, sizeof r->args_end);
    return true;
}

/* Up to where JSON text s[from, n) may be cut: not inside an escape, nor between two halves of a character. */
static size_t whole_escapes(const char *s, size_t from, size_t n)
{
    size_t i = from;

    while (i < n) {
        size_t k = 1;

        if (s[i] == '\\')
            k = i + 1 < n && s[i + 1] == 'u' ? 6 : 2;
        if (k == 6 && i + 4 <= n && (s[i + 2] | 32) == 'd' && strchr("89abAB", s[i + 3])) /* the first half of two */
            k = 12;
        if (i + k > n)
            return i;
        i += k;
    }
    return n;
}

/* Arguments that are JSON text: what is new of them. True: they are whole; *to: where they end. */
static bool json_args(nb_reply *r, bool final, size_t *to)
{
    const char *s = r->text.p + r->args_at;
    const size_t n = r->text.n - r->args_at;
    const bool whole = nb_jend_go(&r->args_end, s, n, false);
    const size_t upto = whole ? r->args_end.at : final ? n : whole_escapes(s, r->args_sent, n);

    nb_reply_give(r, NB_REPLY_ARGS, r->calls, s + r->args_sent, upto - r->args_sent, NULL);
    r->args_sent = upto;
    *to = r->args_at + upto;
    return whole;
}

/* Arguments between marks: each as soon as its end is there. args_at moves behind them, args_sent counts. */
static bool pair_args(nb_reply *r, bool final, size_t *to)
{
    bool over = false;

    for (;;) {
        nb_buf out = { 0 };
        const size_t k = nb_pairs_next(r->f, r->text.p + r->args_at, r->text.n - r->args_at, r->args_sent == 0, r->name.p, r->name.n,
                                       r->o.tool_list, &out);

        nb_reply_give(r, NB_REPLY_ARGS, r->calls, out.p, out.n, NULL);
        r->failed = r->failed || out.failed;
        nb_buf_clear(&out);
        if (k == 0)
            break;
        r->args_at += k;
        r->args_sent++;
    }
    *to = r->args_at;
    over = behind(r->text.p, r->text.n, r->args_at, r->f->end) > 0;
    if (over || final)
        nb_reply_give(r, NB_REPLY_ARGS, r->calls, r->args_sent ? "}" : "{}", r->args_sent ? 1 : 2, NULL);
    return over;
}

bool nb_live_go_on(nb_reply *r, bool final, size_t *to)
{
    const bool pairs = r->f->body == NB_BODY_QWEN || r->f->body == NB_BODY_GLM || r->f->body == NB_BODY_MINIMAX;

    return pairs ? pair_args(r, final, to) : json_args(r, final, to);
}
