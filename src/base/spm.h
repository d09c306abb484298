/* spm.h - a SentencePiece vocabulary as the text of a tokenizer.json; it may come from tokenizer.model or from a GGUF file.
 *
 * Source: spec tokenizers 13; transformers convert_slow_tokenizer.py. */
#ifndef NB_BASE_SPM_H
#define NB_BASE_SPM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/merges.h"

/* Types of pieces, numbered as in the files. */
enum { NB_SPM_NORMAL = 1, NB_SPM_UNKNOWN, NB_SPM_CONTROL, NB_SPM_USER, NB_SPM_UNUSED, NB_SPM_BYTE };

typedef struct nb_spm {
    const nb_scored *piece; /* [n]: UTF-8 text and score; the index is the id */
    const unsigned char *type;
    size_t n;
    bool unigram; /* else byte pairs */
    bool byte_fallback;
    bool dummy_prefix, collapse; /* add_dummy_prefix, remove_extra_whitespaces */
    const char *charsmap;        /* bytes, not base64 */
    size_t n_charsmap;
    int64_t unk, bos, eos; /* ids, -1: none */
    bool add_bos, add_eos;
    const char *more; /* further elements of added_tokens as JSON, each with a comma in front; NULL: none */
} nb_spm;

/* Append the text. Control and unknown pieces become special added tokens, user-defined ones plain added tokens.
 * Errors: "tok.duplicate", "tok.score" (not finite), "tok.special_id" (ids past n), "limit.merges", NB_ENOMEM. */
nb_status nb_spm_json(const nb_spm *v, nb_buf *out, nb_err *err);

/* Append the post-processor object [BOS] text [EOS]; NULL: not added. For texts of tokenizer.json in general. */
void nb_tok_put_template(nb_buf *out, const char *bos, size_t n_bos, int64_t bos_id, const char *eos, size_t n_eos, int64_t eos_id);
/* Append one element of added_tokens; id below 0: none is written. */
void nb_tok_put_added(nb_buf *out, const char *s, size_t n, int64_t id, bool special);
/* Append the list of merges m[n] of v as pairs. */
void nb_tok_put_merges(nb_buf *out, const nb_scored *v, const nb_merge *m, size_t n);

#endif
