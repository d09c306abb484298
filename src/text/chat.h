/* chat.h - chat templates: Jinja source and messages to the exact prompt.
 *
 * The engine is jinja_lex.c, jinja_parse.c, jinja_eval.c; limits of steps, depth and output (hardening 5.8).
 * Source: spec chat-templates; the reference is transformers 5.24 with jinja2 3.1.6. */
#ifndef NB_TEXT_CHAT_H
#define NB_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

typedef struct nb_template nb_template;

/* Compile; source is copied. Errors: NB_EFORMAT "tmpl.syntax" with the line. Immutable afterwards, shared by threads. */
nb_status nb_template_open(const char *src, size_t n, nb_template **out, nb_err *err);
void nb_template_close(nb_template *t);

/* Render with exactly these variables (an object; NULL: none). now: clock of strftime_now, NULL: the real one (local time).
 * Errors: NB_EFORMAT "tmpl.raise" (raise_exception, its text shown), "tmpl.eval"; NB_ELIMIT "limit.template". */
nb_status nb_template_render(const nb_template *t, const nb_json *vars, const struct tm *now, nb_buf *out, nb_err *err);

/* The chat template of a model: from tokenizer_config.json ("chat_template" string or list), else chat_template.jinja. */
typedef struct nb_chat nb_chat;
nb_status nb_chat_open(const char *tokenizer_config, size_t n, const char *jinja_file, size_t n_jinja, nb_chat **out, nb_err *err);
void nb_chat_close(nb_chat *c);
bool nb_chat_has_template(const nb_chat *c);
/* request: an array of messages, or an object with messages, tools, add_generation_prompt and further variables. Special
 * tokens of tokenizer_config.json are given as variables. Request repairs of the page (section 12) are applied.
 * gen_default: add_generation_prompt when the request does not say. */
nb_status nb_chat_render(const nb_chat *c, const nb_json *request, bool gen_default, const struct tm *now, nb_buf *out, nb_err *err);

#endif
