/* reply.h - a model's reply as a stream of reasoning, content and tool calls.
 *
 * Text goes in as it is made (from nb_detok, after nb_stop_feed), events come out. What may still become a marker is held
 * back. The events of one text are the same however it is cut into pieces, up to where deltas are cut. A call that is not
 * well formed comes out as content, its text unchanged; so a call is given out when it is complete. Source: spec serving 8. */
#ifndef NB_TEXT_REPLY_H
#define NB_TEXT_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

/* Formats of tool calls, by the names of --tool-parser. */
typedef enum nb_tool_format {
    NB_TOOLS_NONE,
    NB_TOOLS_HERMES,
    NB_TOOLS_LLAMA3_JSON,
    NB_TOOLS_MISTRAL,
    NB_TOOLS_QWEN3_XML, /* qwen3_coder, qwen3_xml */
    NB_TOOLS_DEEPSEEK_V3,
    NB_TOOLS_DEEPSEEK_V31,
    NB_TOOLS_KIMI_K2,
    NB_TOOLS_GLM47, /* glm45, glm47 */
    NB_TOOLS_MINIMAX_M2,
    NB_TOOLS_PYTHONIC,
    NB_TOOLS_GRANITE,
    NB_TOOLS_PHI4MINI,
    NB_TOOLS_GPT_OSS, /* calls in channels; goes with NB_REASON_GPT_OSS */
    NB_TOOLS_N
} nb_tool_format;

typedef enum nb_reason_format {
    NB_REASON_NONE,
    NB_REASON_THINK,   /* <think> ... </think>; the start may be in the prompt */
    NB_REASON_MISTRAL, /* [THINK] ... [/THINK] */
    NB_REASON_GPT_OSS, /* channels analysis, commentary, final */
    NB_REASON_GRANITE, /* Here is my thought process: ... Here is my response: */
    NB_REASON_N
} nb_reason_format;

/* By the name of an option ("none" included); false: unknown. */
bool nb_tool_format_named(const char *name, nb_tool_format *out);
bool nb_reason_format_named(const char *name, nb_reason_format *out);
const char *nb_tool_format_name(nb_tool_format f);
const char *nb_reason_format_name(nb_reason_format f);
/* From the marker strings of a chat template's source; NONE when none fits. */
nb_tool_format nb_tool_format_guess(const char *tmpl, size_t n);
nb_reason_format nb_reason_format_guess(const char *tmpl, size_t n);
/* Text with which a call begins and reasoning ends (for nb_gstate_wait); NULL: none. */
const char *nb_tool_format_begin(nb_tool_format f);
const char *nb_reason_format_end(nb_reason_format f);

typedef struct nb_reply_opts {
    nb_tool_format tools;
    nb_reason_format reason;
    const nb_json *tool_list; /* "tools" of the request: types of arguments, known names; NULL or empty: any. Must outlive the reply */
    const char *prompt;       /* rendered prompt: does it end inside reasoning?; NULL: not */
    size_t n_prompt;
    uint64_t seed; /* of call ids */
    bool one_call; /* parallel_tool_calls false: what follows the first call is dropped */
} nb_reply_opts;
/* Decode with special tokens shown (skip_special false)? */
bool nb_reply_wants_special(const nb_reply_opts *o);

typedef enum nb_reply_kind {
    NB_REPLY_REASONING, /* text */
    NB_REPLY_CONTENT,   /* text */
    NB_REPLY_CALL,      /* text is the name, id the call's id; a new call, number `index` */
    NB_REPLY_ARGS,      /* text is a piece of the call's arguments (JSON text) */
    NB_REPLY_CALL_END
} nb_reply_kind;
typedef struct nb_reply_event {
    nb_reply_kind kind;
    int index;
    const char *text; /* whole characters; never cut inside an escape of JSON */
    size_t n;
    const char *id;
} nb_reply_event;
/* Called while a text is fed; what the event points to lives until it returns. */
typedef void (*nb_reply_fn)(void *ctx, const nb_reply_event *e);

typedef struct nb_reply nb_reply;
nb_status nb_reply_open(const nb_reply_opts *o, nb_reply **out, nb_err *err);
void nb_reply_close(nb_reply *r);                                                        /* NULL is fine */
nb_status nb_reply_clone(const nb_reply *r, uint64_t seed, nb_reply **out, nb_err *err); /* for n > 1, before any text */
/* Feed the next text. Errors: NB_ENOMEM. */
nb_status nb_reply_feed(nb_reply *r, const char *text, size_t n, nb_reply_fn fn, void *ctx, nb_err *err);
/* From now on a grammar holds the reply to the form of calls: from its beginning (always), or from the marker of the first call on. Then
 * calls are given out as they are written, whole characters and escapes at a time; one that the end of the text cuts off is given out as
 * far as it came. Calls in lists (granite, phi4mini, mistral's old form) and gpt_oss's still come when they are whole. */
void nb_reply_live(nb_reply *r, bool always);
/* The text is over: give out what was held back. */
nb_status nb_reply_finish(nb_reply *r, nb_reply_fn fn, void *ctx, nb_err *err);
int nb_reply_calls(const nb_reply *r);         /* complete calls so far */
bool nb_reply_is_reasoning(const nb_reply *r); /* the text so far ends inside reasoning (to count its tokens) */

#endif
