/* reply_priv.h - inside of reply.h: reply.c splits the text, reply_calls.c reads calls, reply_values.c their arguments. */
#ifndef NB_TEXT_REPLY_PRIV_H
#define NB_TEXT_REPLY_PRIV_H

#include <string.h>

#include "text/reply.h"

#define NB_CALL_DEPTH 64 /* nesting of arguments that are no JSON text */

/* Where one JSON value ends, over pieces. Zero it first. Brackets and strings only: what is in between is checked later. */
typedef struct nb_jend {
    size_t at;
    int depth;
    bool begun, in_string, escaped, done;
    char quote; /* of the string; a text of Python has two kinds */
} nb_jend;
/* Go on in s[n] (the same text as before, longer). True when the value is complete: s[0, at). */
bool nb_jend_go(nb_jend *e, const char *s, size_t n, bool python);

typedef enum nb_call_body {
    NB_BODY_JSON,       /* {name, arguments | parameters} */
    NB_BODY_LIST,       /* [{...}, ...], or one object */
    NB_BODY_MISTRAL,    /* list, or NAME [ARGS] {...} */
    NB_BODY_QWEN,       /* <function=NAME><parameter=KEY>value</parameter> */
    NB_BODY_DEEPSEEK,   /* type SEP name ``` json */
    NB_BODY_DEEPSEEK31, /* name SEP json */
    NB_BODY_KIMI,       /* functions.NAME:INDEX MARK json */
    NB_BODY_GLM,        /* NAME <arg_key>k</arg_key><arg_value>v</arg_value> */
    NB_BODY_MINIMAX,    /* NAME"> <parameter name="KEY">value</parameter> */
    NB_BODY_PYTHON      /* [f(a=1), g()] */
} nb_call_body;

typedef struct nb_call_format {
    const char *name, *also;  /* of the option; also may be NULL */
    const char *begin, *end;  /* of one call; end NULL: where its value ends */
    const char *open, *close; /* around all calls; NULL: none */
    nb_call_body body;
    bool whole;          /* a reply is calls or none: only at its beginning */
    char first;          /* whole: the first character of a call */
    const char *id;      /* form of ids: NULL "call_" and 24 characters, else this many characters alone */
    const char *told_by; /* marker in a chat template */
} nb_call_format;
extern const nb_call_format nb_call_formats[NB_TOOLS_N];

/* Calls found in one unit of text. */
typedef struct nb_call {
    nb_buf name, args, id;
} nb_call;
typedef struct nb_calls {
    nb_call *v;
    size_t n, cap;
} nb_calls;
nb_call *nb_calls_add(nb_calls *c); /* NULL: no memory */
void nb_calls_clear(nb_calls *c);
bool nb_is_call_name(const char *s, size_t n); /* letters, digits, '_', '-', '.' */

/* Read the calls of s[n] (what stands between begin and end). false: not well formed (or *failed: no memory). */
bool nb_calls_read(const nb_call_format *f, const char *s, size_t n, const nb_json *tools, nb_calls *out, bool *failed);

/* ---- a reply ---- */

typedef enum nb_reply_stage {
    NB_R_MAYBE,
    NB_R_INSIDE,
    NB_R_BEHIND
} nb_reply_stage; /* reasoning: may begin, goes on, is over or never was */
typedef enum nb_reply_channel { NB_CH_HEADER, NB_CH_ANALYSIS, NB_CH_FINAL, NB_CH_CALL } nb_reply_channel;

struct nb_reply {
    nb_reply_opts o;
    uint64_t rng;
    nb_reply_fn fn;
    void *ctx;
    bool failed;
    /* reasoning */
    nb_buf in; /* not taken apart yet */
    nb_reply_stage stage;
    bool began;    /* the first newline of reasoning is gone; likewise of what follows it */
    nb_buf blanks; /* newlines at the end of reasoning, or blanks at the end of content: dropped before a marker */
    nb_reply_channel channel;
    nb_buf header; /* of a channel's message */
    nb_buf body;   /* of a call in a channel */
    /* calls */
    const nb_call_format *f;
    nb_buf text; /* not taken apart yet */
    bool unit;   /* text begins with a call's marker */
    bool plain;  /* no calls may come any more */
    bool spoken; /* content was given out */
    nb_jend end;
    size_t scanned;
    int calls;
    /* calls given out as they are written (reply_live.c) */
    bool wants_live, armed, live; /* after the first marker; from now on; a call has begun */
    nb_buf name;                  /* of the call */
    size_t args_at, args_sent;    /* in text; bytes of JSON, or pairs */
    nb_jend args_end;
};

/* Give out an event; texts of no bytes are none. */
void nb_reply_give(nb_reply *r, nb_reply_kind kind, int index, const char *s, size_t n, const char *id);
void nb_reply_reasoning(nb_reply *r, const char *s, size_t n); /* but for newlines at both its ends */
void nb_reply_give_calls(nb_reply *r, const nb_calls *c);
/* The beginning of a call; id NULL: one of ours. */
void nb_reply_give_begin(nb_reply *r, const char *name, size_t n, const char *id, size_t n_id);

/* Does a call begin in r->text behind the markers (`from`), so that it can be given out as it comes? Then it has. */
bool nb_live_begin(nb_reply *r, size_t from);
/* Give out what is new of it. True: its arguments are whole, and end at *to. */
bool nb_live_go_on(nb_reply *r, bool final, size_t *to);
/* Formats of marked pairs: the name at s[n] and where its pairs begin; false: not there yet. */
bool nb_pairs_name(const nb_call_format *f, const char *s, size_t n, const char **name, size_t *k, size_t *args);
/* The next pair at s[n] appended as JSON; the bytes it takes, 0: it is not whole. */
size_t nb_pairs_next(const nb_call_format *f, const char *s, size_t n, bool first, const char *name, size_t n_name, const nb_json *tools,
                     nb_buf *out);
void nb_reply_channels(nb_reply *r, bool final); /* take apart what is in r->in */

static inline bool nb_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static inline void nb_reply_drop(nb_buf *b, size_t n)
{
    if (n)
        memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

static inline bool nb_starts(const char *s, size_t n, const char *with)
{
    const size_t k = strlen(with);

    return n >= k && memcmp(s, with, k) == 0;
}

/* Is s[n] shorter than `whole` and its beginning? */
static inline bool nb_begins(const char *s, size_t n, const char *whole)
{
    return whole && n < strlen(whole) && memcmp(s, whole, n) == 0;
}

/* ---- values (reply_values.c) ---- */

/* The text of a member's value in the JSON object s[n]: false when it is not there. */
bool nb_member_text(const char *s, size_t n, const char *name, const char **v, size_t *k);
/* s[n] without blanks around. */
void nb_trim(const char **s, size_t *n);
/* Append the JSON of an argument that was written as plain text: by its type in the tool's parameters. */
void nb_put_argument(nb_buf *out, const nb_json *tools, const char *name, size_t n_name, const char *key, size_t n_key, const char *v,
                     size_t n_v);
/* Append the JSON of the Python literal at s[n]; its length, 0 when it is none. */
size_t nb_put_python(nb_buf *out, const char *s, size_t n, int depth);
const nb_json *nb_find_tool(const nb_json *tools, const char *name, size_t n); /* its "function", or itself */

#endif
