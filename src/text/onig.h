/* onig.h - regular expressions of tokenizer.json (Oniguruma syntax) rewritten for PCRE2 (UTF, UCP, MULTILINE).
 *
 * Source: spec tokenizers 6. What has no equal there is refused: NB_EUNSUPPORTED "tok.regex" with the byte offset. */
#ifndef NB_TEXT_ONIG_H
#define NB_TEXT_ONIG_H

#include "base/err.h"
#include "base/mem.h"

/* Append the PCRE2 form of re[n] to out. */
nb_status nb_onig_translate(const char *re, size_t n, nb_buf *out, nb_err *err);

#endif
