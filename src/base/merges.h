/* merges.h - the merges that a vocabulary of scored or ranked pieces stands for.
 *
 * SentencePiece, tiktoken and GGUF keep pieces only; tokenizer.json wants the list of merges. Every cut of a piece into
 * two pieces of the vocabulary is one. Source: spec tokenizers 13; transformers convert_slow_tokenizer.py generate_merges. */
#ifndef NB_BASE_MERGES_H
#define NB_BASE_MERGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct nb_scored {
    const char *s; /* any bytes; lengths count characters where they are UTF-8 */
    size_t n;
    double score;
} nb_scored;

typedef struct nb_merge {
    uint32_t left, right; /* indices of the parts */
    uint32_t whole;
} nb_merge;

/* Merges of v[n], first the ones to apply first:
 *   by_score  highest score of the whole, then the longer left part, then the longer right part (SentencePiece)
 *   else      by the index of the whole, of the left part, of the right part (tiktoken: indices are ranks)
 * *out[*n_out] is the caller's (nb_free). Empty pieces take no part. Time and space go with the bytes of the pieces.
 * Errors: "tok.duplicate" for a piece listed twice; "limit.merges" beyond 8 million; NB_ENOMEM. */
nb_status nb_merges_of(const nb_scored *v, size_t n, bool by_score, nb_merge **out, size_t *n_out, nb_err *err);

#endif
