/* gen.h - one request for text on its way: prompt ids in, tokens of the engine in, pieces of an answer out.
 *
 * Built on the I/O thread from a parsed nb_ask, prepared (template, tokenizer, constraint) on a preparing thread, then owned by the
 * engine's thread, which hands it every event; response.c writes what it has into the HTTP answer. No locks: one thread at a time.
 * Source: spec serving 6, 8, 9.4. */
#ifndef NB_SERVE_GEN_H
#define NB_SERVE_GEN_H

#include <pthread.h>

#include "serve/ask.h"
#include "serve/http.h"
#include "text/chat.h"
#include "text/grammar.h"
#include "text/reply.h"
#include "text/stop.h"
#include "text/tokenizer.h"

/* Compiled constraints of all requests: the vocabulary as a trie is built when the first one comes. */
typedef struct nb_constraints {
    pthread_mutex_t lock;
    nb_gvocab *vocab;
    nb_gcache *cache;
    nb_glimits limits;
} nb_constraints;

/* What all requests share; read only but for the constraints. */
typedef struct nb_texts {
    const nb_tokenizer *tok;
    const nb_chat *chat; /* NULL: no templates */
    size_t vocab;        /* rows of the head   */
    size_t context;      /* longest prompt + answer */
    const int32_t *eos;
    size_t n_eos;
    const char *model;       /* served name */
    const char *fingerprint; /* "fp_..." */
    nb_tool_format tools;
    nb_reason_format reason;
    nb_constraints *constraints;
    bool strict_openai;
    nb_error_style errors;
    size_t stream_interval; /* tokens of an event; 0: each its own (DET-6) */
} nb_texts;

/* A drawn token as log-probabilities show it. */
typedef struct nb_shown {
    int32_t id;
    float logprob;
    const nb_logprob *top; /* [n_top], in the gen's arena */
    size_t n_top;
    size_t text_at; /* bytes of text before it */
} nb_shown;

/* A tool call that is being written, or is complete. */
typedef struct nb_call_out {
    char *id, *name;
    nb_buf args;
    size_t sent; /* bytes of args written to the client */
    bool begun;  /* id and name were written            */
} nb_call_out;

typedef struct nb_choice {
    size_t index;    /* in the answer */
    nb_detok *detok; /* NULL once done */
    nb_stopper stopper;
    nb_reply *parser;   /* reasoning and tool calls; NULL: all text is content */
    nb_gstate *grammar; /* NULL: unconstrained */
    size_t decoded;     /* bytes of text so far, and those no stop string can take back any more */
    size_t passed;
    size_t echoed; /* bytes of the prompt in front of the content (echo) */
    nb_buf content, reasoning;
    size_t content_sent, reasoning_sent; /* bytes written to the client */
    nb_call_out *calls;
    size_t n_calls;
    nb_shown *shown; /* with logprobs */
    size_t n_shown, cap_shown, shown_sent;
    nb_ids ids; /* with return_token_ids */
    size_t ids_sent;
    size_t n_output;
    size_t n_written;                    /* of them, when the client was last written to */
    bool begun, stopped, done, finished; /* the role went out; met a stop string; finish is final; and was written */
    bool failed;                         /* out of memory */
    nb_finish finish;
    double last_at;          /* of its last token */
    double logprob;          /* sum over its tokens, with best_of */
    int32_t stop_id;         /* -1 */
    const char *stop_string; /* NULL */
} nb_choice;

/* The constraint of one prompt's choices. */
typedef struct nb_limit {
    nb_constraint c;
    struct nb_gen *g;
    size_t first; /* index of its first choice */
} nb_limit;

typedef enum nb_gen_phase { NB_GEN_PREPARE, NB_GEN_QUEUED, NB_GEN_RUNNING, NB_GEN_DONE } nb_gen_phase;

/* How the answer is written. */
typedef enum nb_gen_style { NB_GEN_OPENAI, NB_GEN_ITEMS, NB_GEN_NATIVE, NB_GEN_NATIVE_LIST } nb_gen_style;

typedef struct nb_gen {
    nb_http_req *http;
    nb_gen_style style;
    nb_ask ask;
    const nb_texts *t;
    nb_gen_phase phase;
    nb_refusal refusal; /* status set: the request failed */

    char id[160];           /* "chatcmpl-..." */
    nb_json *original;      /* ITEMS: the body, parts of which the answer repeats */
    struct nb_items *items; /* where its stream stands; in the arena */
    int64_t created;
    uint64_t key; /* number of the API key, 0 without */
    uint8_t ns[32];
    double arrival, last_write;

    nb_ids *prompts; /* [n_prompts] */
    size_t n_prompts;
    int64_t max_tokens; /* per choice */
    nb_buf prompt_text; /* of a chat, as rendered */
    nb_stops *stops;    /* NULL: none */
    nb_grammar *grammar;
    bool own_calls;          /* required or named calls are written in the model's own form, and parsed like all others */
    struct nb_limit *limits; /* what the engine asks, per prompt; in the arena */
    nb_ids *bad_words;
    size_t n_bad_words;
    nb_word *words;
    int32_t *stop_ids; /* in the arena */
    size_t n_stop_ids;

    uint64_t *engine_id; /* [n_prompts] */
    nb_choice *choices;  /* [n_prompts * n], prompt-major */
    size_t n_choices, n_done;
    nb_logprob **prompt_lp; /* [n_prompts], each a row per position; NULL: not asked for, or not told yet */
    size_t n_prompt, n_cached, n_output, n_reasoning, n_preempted;
    size_t *cached; /* [n_prompts] */
    nb_times times; /* first scheduled, first and last token over all choices */
    nb_buf head;    /* of every event of a stream */
    bool streaming; /* headers are out */

    /* the worker's */
    struct nb_gen *next;                 /* in the queue it is in              */
    struct nb_gen *all_next, **all_prev; /* among all requests               */
    bool cancel;                         /* set by others, under the worker's lock */
    bool told;                           /* the engine knows of it             */
    bool news;                           /* events since the last writing      */
} nb_gen;

/* Take over `ask` (it is emptied) for r, which is kept until nb_gen_close. NULL: no memory. */
nb_gen *nb_gen_open(nb_http_req *r, nb_ask *ask, const nb_texts *t);
void nb_gen_close(nb_gen *g);
/* Template, tokenizer, lengths. False: g->refusal says why. */
bool nb_gen_prepare(nb_gen *g);
/* The constraint of the request, compiled or found; part of preparing (constrain.c). */
bool nb_gen_constrain(nb_gen *g);
/* compact: JSON has no whitespace (GRM-5). */
nb_status nb_constraints_init(nb_constraints *k, bool compact, nb_err *err);
void nb_constraints_clear(nb_constraints *k);
/* The engine's request of prompt p; it points into g. */
void nb_gen_request(const nb_gen *g, size_t p, nb_request *out);

/* A TOKEN or DONE of prompt p. Returns true when the choice has met a stop string and the engine should end it (nb_engine_stop). */
bool nb_gen_event(nb_gen *g, size_t p, const nb_event *ev);
/* finish_reason of a choice that is done: "stop", "tool_calls", "length", "abort", "error". */
const char *nb_gen_reason(const nb_gen *g, const nb_choice *c);
/* Text of one token as log-probabilities show it: its bytes. */
void nb_token_bytes(const nb_tokenizer *t, int32_t id, nb_buf *out);

#endif
