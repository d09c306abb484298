/* ask.h - the JSON body of a request for text, checked field by field.
 *
 * One struct for /v1/chat/completions and /v1/completions: what the engine, the tokenizer and the answer's writer need. Pure:
 * no tokenizer, no engine; token ids are checked against the vocabulary's size. Source: spec serving 5.1, 9.3, 9.7; hardening
 * 4 and 6.2 (RQ). A value is owned by its nb_ask and lives until nb_ask_clear. */
#ifndef NB_SERVE_ASK_H
#define NB_SERVE_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/engine.h"

/* Why a request is refused: one row of the table of 9.7. */
typedef struct nb_refusal {
    int status; /* 0: it is not */
    const char *code;
    char param[96]; /* "" is null */
    char message[600];
} nb_refusal;

/* Fill *f (the first refusal wins) and return false. */
bool nb_refuse(nb_refusal *f, int status, const char *code, const char *param, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 6)))
#endif
    ;
/* The refusal that an error of a lower floor becomes: its sentence without file names. */
bool nb_refuse_err(nb_refusal *f, int status, const char *code, const char *param, const nb_err *err);

/* The refusal for want of memory. */
bool nb_refuse_memory(nb_refusal *f);
/* The member `name` of a request's object, NULL when it is absent or null. */
const nb_json *nb_ask_field(const nb_json *o, const char *name);

typedef enum nb_constraint_kind { NB_CON_NONE, NB_CON_JSON, NB_CON_SCHEMA, NB_CON_REGEX, NB_CON_CHOICE, NB_CON_EBNF } nb_constraint_kind;
typedef enum nb_tool_choice { NB_CALLS_NONE, NB_CALLS_AUTO, NB_CALLS_REQUIRED, NB_CALLS_NAMED } nb_tool_choice;

/* One prompt of /v1/completions: text, or ids. */
typedef struct nb_prompt {
    const char *text;
    size_t n_text;
    const int32_t *ids; /* NULL: text */
    size_t n_ids;
} nb_prompt;

typedef struct nb_ask {
    nb_json *root;
    nb_arena arena;
    bool chat;

    const char *model;      /* "" when absent */
    const char *request_id; /* NULL when absent */
    const nb_json *messages;
    const nb_prompt *prompts; /* completions */
    size_t n_prompts;

    bool stream, include_usage, continuous_usage;
    size_t n, keep; /* choices of a prompt that are made (best_of), and given out */
    nb_sampling sampling;
    bool has_seed;
    int64_t max_tokens; /* -1: absent */
    const char *max_tokens_name;
    size_t min_tokens;
    const char **stop;
    size_t n_stop;
    const int32_t *stop_ids;
    size_t n_stop_ids;
    bool ignore_eos, include_stop, skip_special, spaces_between;
    bool logprobs;
    unsigned top_logprobs;
    const int32_t *named; /* logprob_token_ids: told instead of the likeliest */
    size_t n_named;
    int prompt_logprobs; /* -1: absent */
    bool echo;
    const nb_bias *bias;
    size_t n_bias;
    const int32_t *allowed;
    size_t n_allowed;
    const nb_json *bad_words; /* strings */
    int priority;
    const char *salt; /* NULL when absent */
    const char *cache_key;
    const char *user;
    bool add_special, add_generation_prompt, continue_final;
    int64_t truncate; /* -2: absent, -1: what fits */
    bool return_token_ids, tokens_as_ids;
    const char *template_text; /* chat_template of the request, NULL when absent */

    const nb_json *tools; /* NULL: none */
    nb_tool_choice tool_choice;
    const char *tool_name; /* NAMED */
    bool parallel_tools;
    nb_constraint_kind constraint;
    const nb_json *schema;       /* SCHEMA: object; CHOICE: list of strings */
    const char *constraint_text; /* REGEX, EBNF */
    const char *constraint_param;
    int64_t thinking_budget; /* -1: absent */

    size_t n_ignored; /* fields nobody knows */
} nb_ask;

typedef struct nb_ask_rules {
    size_t vocab;
    size_t max_n;                /* 16 */
    bool lenient;                /* temperatures above 2 */
    bool priorities;             /* the scheduler has them */
    bool request_template;       /* chat_template in requests is allowed */
    const nb_sampling *defaults; /* of the model */
} nb_ask_rules;

/* Parse body[n]. False with *f filled: refused. nb_ask_clear in both cases. */
bool nb_ask_parse(nb_ask *a, bool chat, const char *body, size_t n, const nb_ask_rules *rules, nb_refusal *f);
/* A JSON body of any other endpoint: an object. */
bool nb_body_parse(const char *body, size_t n, nb_json **out, nb_refusal *f);
void nb_ask_clear(nb_ask *a);
/* Names of the fields that mean something, one by one; NULL: no more. */
const char *nb_ask_known(size_t i);

#endif
