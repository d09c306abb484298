/* ids.h - token ids as jobs take them: rows of equal length, each an independent sequence from position 0. */
#ifndef NB_JOB_IDS_H
#define NB_JOB_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/tokenizer.h"

typedef struct nb_idrows {
    size_t rows, len;
    bool flat;    /* the file held [T], not [1, T] */
    int32_t *ids; /* [rows][len]                   */
} nb_idrows;

/* Read FILE.safetensors or FILE.safetensors:NAME: I32 or I64, [T] or [R, T]; without NAME "input_ids", else the only tensor.
 * Every id must be below vocab (0: not checked). Errors: NB_EOPEN, NB_EFORMAT "ids.tensor", "ids.shape", "ids.token". Caller clears. */
nb_status nb_idrows_read(nb_idrows *r, const char *spec, size_t vocab, nb_err *err);
/* Tokenize a UTF-8 file and cut it into disjoint windows of `len` tokens; the tokens left over are dropped unless there is no
 * whole window (then one shorter row). Where the tokenizer adds a BOS, each window begins with it (and holds len - 1 tokens
 * of text); *bos tells. NB_EFORMAT "ids.empty" for fewer than two tokens. Caller clears. */
nb_status nb_idrows_text(nb_idrows *r, const nb_tokenizer *t, const char *path, size_t len, bool *bos, nb_err *err);
void nb_idrows_clear(nb_idrows *r);

#endif
