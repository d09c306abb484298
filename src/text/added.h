/* added.h - added tokens: which they are, and where they stand in a text. Immutable after open, shared by threads.
 *
 * Matching is leftmost, then longest, in linear time whatever the tokens are. Source: spec tokenizers 3. */
#ifndef NB_TEXT_ADDED_H
#define NB_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "text/norm.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

typedef struct nb_added_token {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool skipped; /* decoding without special tokens leaves it out: its shown text is that of a special token */
    char *shown;  /* content, in normalized form where it is matched in normalized text */
    size_t n_shown;
} nb_added_token;

typedef struct nb_added nb_added;
/* list: "added_tokens" of tokenizer.json. config: "added_tokens_decoder" of tokenizer_config.json or NULL; what the list
 * lacks is added in id order. vocab: the model's; nm: the normalizer. Errors: "tok.added", "tok.duplicate_id", limits. */
nb_status nb_added_open(const nb_json *list, const nb_json *config, const nb_vocab *vocab, const nb_norm *nm, nb_added **out, nb_err *err);
void nb_added_close(nb_added *a);
const nb_added_token *nb_added_by_id(const nb_added *a, int32_t id);     /* NULL: not an added token */
int32_t nb_added_find(const nb_added *a, const char *content, size_t n); /* -1: none */
const char *nb_added_content(const nb_added *a, int32_t id, size_t *n);  /* NULL: none */
size_t nb_added_ids(const nb_added *a);                                  /* largest id + 1, 0 without tokens */

/* A part of a text: an added token, or text (token NULL). */
typedef struct nb_part {
    size_t off, n;
    const nb_added_token *token;
} nb_part;
typedef struct nb_parts {
    nb_part *v;
    size_t n, cap;
    nb_spans hits; /* scratch */
} nb_parts;
void nb_parts_clear(nb_parts *p);

/* Cut text[n] at the added tokens matched in raw (normalized false) or in normalized text. skip_special: tokens with the
 * special flag stay text; guard (NULL: none): those stay text that begin at one of these places or have one inside. out is
 * overwritten. */
nb_status nb_added_split(const nb_added *a, bool normalized, const char *text, size_t n, bool skip_special, const nb_guard *guard,
                         nb_parts *out, nb_err *err);

#endif
