/* pattern.h - the patterns (literal or regular expression) of tokenizer.json, and finding them.
 *
 * pattern.c is the only includer of PCRE2; onig.c rewrites the Oniguruma syntax of tokenizer.json into PCRE2's.
 * Patterns are immutable after open and shared by threads; an nb_finder belongs to one call. Source: spec tokenizers 6. */
#ifndef NB_TEXT_PATTERN_H
#define NB_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "text/utf8.h"

/* {"String": s} or {"Regex": r}. Errors: NB_EUNSUPPORTED "tok.regex" with the offset; NB_EFORMAT "tok.type". */
typedef struct nb_pattern nb_pattern;
nb_status nb_pattern_open(const nb_json *spec, nb_pattern **out, nb_err *err);
nb_status nb_pattern_regex(const char *re, size_t n, nb_pattern **out, nb_err *err);  /* the same from the expression itself */
nb_status nb_pattern_literal(const char *s, size_t n, nb_pattern **out, nb_err *err); /* a text, not empty */
void nb_pattern_close(nb_pattern *p);
bool nb_pattern_is_empty(const nb_pattern *p); /* matches between any two characters */

/* Iterates over the matches of patterns in texts (valid UTF-8). Zero the struct first; one finder serves any number of
 * texts and patterns, one after the other. A search that takes unreasonably long is NB_ELIMIT "limit.regex". */
typedef struct nb_finder {
    void *match, *context; /* of PCRE2, made when first needed */
    const nb_pattern *p;
    const char *text;
    size_t n, at, last; /* next search starts at `at`; the previous match ended at `last` */
    bool any;
    double budget_s, since;
    unsigned calls;
} nb_finder;
void nb_finder_begin(nb_finder *f, const nb_pattern *p, const char *text, size_t n);
/* The next match [*b, *e); *found false at the end. An empty match at the end of the one before is not reported. */
nb_status nb_finder_next(nb_finder *f, bool *found, size_t *b, size_t *e, nb_err *err);
void nb_finder_clear(nb_finder *f);

#endif
