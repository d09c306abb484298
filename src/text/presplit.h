/* presplit.h - pre-tokenizers: a text into pieces.
 *
 * Immutable after open and shared by threads; what changes lives in nb_pieces, which belongs to one call.
 * Source: spec tokenizers 5, 7. */
#ifndef NB_TEXT_PRESPLIT_H
#define NB_TEXT_PRESPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "text/pattern.h"
#include "text/utf8.h"

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

/* Patterns of families (spec tokenizers 7): GPT-2's, which ByteLevel uses with use_regex; Llama 3's; Qwen 2's. */
extern const char nb_gpt2_pattern[], nb_llama3_pattern[], nb_qwen2_pattern[];

#endif
