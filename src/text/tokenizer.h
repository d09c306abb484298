/* tokenizer.h - tokenizer.json -> ids and back. Immutable after open, shared by threads.
 *
 * Source: spec tokenizers; the reference is the Hugging Face library tokenizers 0.23. */
#ifndef NB_TEXT_TOKENIZER_H
#define NB_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct nb_tokenizer nb_tokenizer;

typedef struct nb_ids {
    int32_t *p; /* nb_alloc block */
    size_t n, cap;
} nb_ids;
nb_status nb_ids_push(nb_ids *v, int32_t id, nb_err *err);
void nb_ids_clear(nb_ids *v);

/* json: bytes of tokenizer.json; config: bytes of tokenizer_config.json or NULL (BOS/EOS policy, class rules). */
nb_status nb_tokenizer_open(const char *json, size_t n_json, const char *config, size_t n_config, nb_tokenizer **out, nb_err *err);
void nb_tokenizer_close(nb_tokenizer *t);
/* Append the ids of text[n] (UTF-8; invalid bytes are replaced by U+FFFD as the page says).
 *   add_special   add BOS/EOS as the post-processor and configuration say
 *   parse_special special tokens inside the text become their id (false: they are ordinary text) */
nb_status nb_tokenizer_encode(const nb_tokenizer *t, const char *text, size_t n, bool add_special, bool parse_special, nb_ids *out,
                              nb_err *err);
/* Places of a text, rising. */
typedef struct nb_guard {
    const size_t *v;
    size_t n;
} nb_guard;
/* The same with special tokens parsed, but for those that begin at a place of guard or have one inside: these stay text. For prompts that
 * hold text of a user's (hardening TK-13). */
nb_status nb_tokenizer_encode_guarded(const nb_tokenizer *t, const char *text, size_t n, bool add_special, const nb_guard *guard,
                                      nb_ids *out, nb_err *err);
/* Append the text of ids; always valid UTF-8. Unknown ids add nothing. */
nb_status nb_tokenizer_decode(const nb_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, nb_buf *out, nb_err *err);
size_t nb_tokenizer_size(const nb_tokenizer *t);                              /* largest id + 1 */
const char *nb_tokenizer_piece(const nb_tokenizer *t, int32_t id, size_t *n); /* as stored; NULL when unknown */
int32_t nb_tokenizer_id(const nb_tokenizer *t, const char *piece, size_t n);  /* -1 when unknown */
bool nb_tokenizer_is_special(const nb_tokenizer *t, int32_t id);

/* Append the bytes that token id adds in the middle of a text (perhaps part of a character); special tokens: their text. Nothing for
 * an unknown id. */
nb_status nb_tokenizer_bytes(const nb_tokenizer *t, int32_t id, nb_buf *out, nb_err *err);

/* Streaming: feed ids one by one, get only whole characters; flush gives the rest. Pieces plus flush equal nb_tokenizer_decode of all. */
typedef struct nb_detok nb_detok;
nb_status nb_detok_open(const nb_tokenizer *t, bool skip_special, nb_detok **out, nb_err *err);
void nb_detok_close(nb_detok *d);
nb_status nb_detok_add(nb_detok *d, int32_t id, nb_buf *out, nb_err *err);
nb_status nb_detok_flush(nb_detok *d, nb_buf *out, nb_err *err);

#endif
