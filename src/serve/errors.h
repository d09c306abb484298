/* errors.h - the error object of every answer that is not 2xx: {"error":{message, type, param, code}}.
 *
 * Source: spec serving 9.7, hardening 3.3. */
#ifndef NB_SERVE_ERRORS_H
#define NB_SERVE_ERRORS_H

#include "base/mem.h"

/* Whose clients are to understand the object: OpenAI's, with a word in `code`, or vLLM's, with the status there and vLLM's types. */
typedef enum nb_error_style { NB_ERRORS_OPENAI, NB_ERRORS_VLLM } nb_error_style;

/* Standard phrase of a status line; "Error" for a status this server does not use. */
const char *nb_reason(int status);
/* error.type that belongs to a status. */
const char *nb_error_type(nb_error_style style, int status);
/* Append s[n] as a JSON string; ill-formed UTF-8 becomes U+FFFD. */
void nb_put_text(nb_buf *b, const char *s, size_t n);
/* Append the object. `param` NULL: null. The texts are UTF-8 (anything else becomes U+FFFD). */
void nb_error_put(nb_buf *b, nb_error_style style, int status, const char *code, const char *param, const char *message);

#endif
