/* presplit.h - pre-tokenizers: a text into pieces; and the patterns (literal or regular expression) of tokenizer.json.
 *
 * presplit.c is the only includer of PCRE2; onig.c rewrites the Oniguruma syntax of tokenizer.json into PCRE2's.
 * Everything opened here is immutable afterwards and shared by threads; what changes lives in nb_finder and
 * nb_pieces, which belong to one call. Source: spec tokenizers 5, 6, 7. */
#ifndef NB_TEXT_PRESPLIT_H
#define NB_TEXT_PRESPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "text/utf8.h"

/* {"String": s} or {"Regex": r}. Errors: NB_EUNSUPPORTED "tok.regex" with the offset; NB_EFORMAT "tok.type". */
typedef struct nb_pattern nb_pattern;
nb_status nb_pattern_open(const nb_json *spec, nb_pattern **out, nb_err *err);
nb_status nb_pattern_regex(const char *re, size_t n, nb_pattern **out, nb_err *err); /* the same from the expression itself */
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

/* Result of pre-tokenizing one text. Zero the struct first; reused for text after text. */
typedef struct nb_pieces {
    const char *text; /* what the spans index: the input or a buffer of `own` */
    size_t n_text;
    nb_spans list, other;
    nb_flip own;
    size_t most;  /* bytes the rewritten text may have */
    bool at_zero; /* the first piece begins at offset 0 of the original input */
    nb_finder finder;
} nb_pieces;
void nb_pieces_clear(nb_pieces *p);

typedef struct nb_presplit nb_presplit;
/* Build from "pre_tokenizer" (null: one piece). raw_bytes: may the last step be a ByteLevel whose bytes the model takes
 * as they are? *raw_bytes then tells whether it was one; the stand-in characters are never made in that case.
 * Errors: NB_EUNSUPPORTED "tok.unsupported" naming the type, "tok.regex"; NB_EFORMAT "tok.type". */
nb_status nb_presplit_open(const nb_json *spec, bool *raw_bytes, nb_presplit **out, nb_err *err);
void nb_presplit_close(nb_presplit *p);
/* Cut text[n] (valid UTF-8). at_zero: it begins at offset 0 of the input. Views in `out` live until its next use. */
nb_status nb_presplit_run(const nb_presplit *p, const char *text, size_t n, bool at_zero, nb_pieces *out, nb_err *err);

/* GPT-2's pattern, which ByteLevel uses with use_regex. */
extern const char nb_gpt2_pattern[];

#endif
