/* tokjson.h - the two large members of tokenizer.json, model.vocab and model.merges, read without building a tree.
 *
 * A 128k vocabulary has half a million values; a tree of them takes several times as long as the rest of opening.
 * nb_tokjson_open cuts the two out, base/json.h reads what is left, and the model pulls texts and numbers from the
 * cut parts with the same strictness (UTF-8, escapes, grammar). Texts may hold U+0000. */
#ifndef NB_TEXT_TOKJSON_H
#define NB_TEXT_TOKJSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

typedef struct nb_tokjson {
    nb_json *doc;      /* everything else; the cut members are empty there, of the same type */
    const char *all;   /* the input, which must outlive this struct */
    const char *vocab; /* text of the member's value; NULL when absent or neither object nor list */
    const char *merges;
    size_t n_vocab, n_merges;
} nb_tokjson;
/* Zero *out first. Errors: NB_EFORMAT "tok.json", "tok.duplicate_key"; NB_ELIMIT "json.depth". */
nb_status nb_tokjson_open(const char *json, size_t n, nb_tokjson *out, nb_err *err);
void nb_tokjson_clear(nb_tokjson *j);

/* Pull reader over one cut part. */
typedef struct nb_tokreader {
    const char *all; /* for offsets in messages */
    const char *p, *end;
    nb_buf text; /* the last text that had escapes */
    nb_err *err;
} nb_tokreader;
void nb_tokreader_init(nb_tokreader *r, const nb_tokjson *j, const char *part, size_t n, nb_err *err);
void nb_tokreader_clear(nb_tokreader *r);
/* First byte of what comes next, blanks skipped; 0 at the end. */
char nb_tokreader_peek(nb_tokreader *r);
/* Take exactly c. */
nb_status nb_tokreader_take(nb_tokreader *r, char c);
/* In a list or object whose opening bracket was taken: *more tells that another element follows (its comma taken);
 * else the closing bracket was taken. *first starts true. */
nb_status nb_tokreader_more(nb_tokreader *r, char close, bool *first, bool *more);
/* A text; the view lives until the next text. */
nb_status nb_tokreader_text(nb_tokreader *r, const char **s, size_t *n);
/* A number; *whole tells that it is an integer within int64, in *v then. */
nb_status nb_tokreader_number(nb_tokreader *r, int64_t *v, bool *whole);
/* A number; beyond the range of double it is infinite. */
nb_status nb_tokreader_real(nb_tokreader *r, double *v);
/* The part must end here. */
nb_status nb_tokreader_end(nb_tokreader *r);

#endif
