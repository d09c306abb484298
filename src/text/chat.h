/* chat.h - chat templates: Jinja source and messages to the exact prompt.
 *
 * The engine is jinja_*.c (map in jinja.h); limits of steps, depth and output: hardening 4 and 5.8.
 * Source: spec chat-templates; the reference is transformers 5.24 with jinja2 3.1.6. */
#ifndef NB_TEXT_CHAT_H
#define NB_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

typedef struct nb_template nb_template;

/* Compile src[n]; the source is copied. Immutable afterwards, shared by threads. Errors with line and column: NB_EFORMAT
 * "tmpl.syntax", "tmpl.utf8"; NB_EUNSUPPORTED "tmpl.unsupported" for a tag, filter or test we lack; NB_ELIMIT
 * "limit.template" (1 MiB of source), "tmpl.depth". */
nb_status nb_template_open(const char *src, size_t n, nb_template **out, nb_err *err);
void nb_template_close(nb_template *t); /* NULL is fine */

/* Render with exactly these variables (an object; NULL: none); the prompt is appended to out, nothing on failure.
 *   now  clock of strftime_now, NULL: the real one (local time)
 * Lists and dicts are immutable, as in the reference. Errors: NB_EFORMAT "tmpl.raise" (raise_exception, its text shown),
 * "tmpl.eval"; NB_EUNSUPPORTED "tmpl.unsupported"; NB_ELIMIT "limit.template", "limit.template_steps". */
nb_status nb_template_render(const nb_template *t, const nb_json *vars, const struct tm *now, nb_buf *out, nb_err *err);

/* The chat templates of a model: chat_template.jinja if there is one, else "chat_template" of tokenizer_config.json (a
 * text, or a list of named ones). Either argument may be NULL. Immutable, shared by threads. A template that does not
 * compile fails at nb_chat_check and nb_chat_render, so that the rest of the model stays usable.
 * Errors: NB_EFORMAT "tok.json", "tmpl.select" (names missing, twice, or no default). */
typedef struct nb_chat nb_chat;
nb_status nb_chat_open(const char *tokenizer_config, size_t n, const char *jinja_file, size_t n_jinja, nb_chat **out, nb_err *err);
void nb_chat_close(nb_chat *c); /* NULL is fine */
bool nb_chat_has_template(const nb_chat *c);
nb_status nb_chat_check(const nb_chat *c, nb_err *err); /* the first failure of compiling, or NB_OK */

/* Render a request: an array of messages, or an object with messages, tools, documents, add_generation_prompt,
 * continue_final_message and further variables.
 *   gen_default  add_generation_prompt when the request does not say
 * Special tokens of tokenizer_config.json are variables unless the request has its own. The request is adapted (spec 12):
 * null content is "", text parts are joined, tool-call arguments given as text are parsed, null keys are left out; when
 * the template then fails, once with the arguments as text and parts as lists, once with the system message merged into
 * the first user message. Templates may change lists and dicts of their own. Errors: those of nb_template_render;
 * NB_EARG "tmpl.request"; NB_EUNSUPPORTED "tmpl.none" without a template. */
nb_status nb_chat_render(const nb_chat *c, const nb_json *request, bool gen_default, const struct tm *now, nb_buf *out, nb_err *err);

/* Render a request and encode the prompt; the prompt is appended to prompt unless NULL. Only the template makes control tokens: where
 * texts of the request have the letters of one, they stay letters (hardening TK-13). trust: they become control tokens too.
 * Errors: those of nb_chat_render and nb_tokenizer_encode; NB_EARG "tmpl.empty" when the prompt has no token (JT-18). */
nb_status nb_chat_encode(const nb_chat *c, const nb_tokenizer *t, const nb_json *request, bool gen_default, const struct tm *now,
                         bool trust, nb_buf *prompt, nb_ids *out, nb_err *err);

/* Put extra template variables (chat_template_kwargs, an object; NULL or null: none) into a request that is an object,
 * replacing what it has under these names. Names that the request's own fields or the model speak for are refused
 * (hardening JT-14): messages, tools, documents, chat_template, tokenize, add_generation_prompt, continue_final_message
 * and all that end in "_token". Errors: NB_EARG "tmpl.reserved", "tmpl.request"; NB_ENOMEM. */
nb_status nb_chat_add_kwargs(nb_json *request, const nb_json *kwargs, nb_err *err);

#endif
