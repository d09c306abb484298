/* toksource.h - the files a tokenizer may come from, and how each becomes a tokenizer.json.
 *
 * Everything else than tokenizer.json is rewritten to that form first, so that there is one way to encode.
 * Source: spec tokenizers 12 and 13. */
#ifndef NB_TEXT_TOKSOURCE_H
#define NB_TEXT_TOKSOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

/* Files of a model directory. The vocabularies stand in the order in which they are preferred. */
typedef enum nb_tokfile_id {
    NB_TOK_JSON,     /* tokenizer.json */
    NB_TOK_TEKKEN,   /* tekken.json */
    NB_TOK_MODEL,    /* tokenizer.model: SentencePiece, or tiktoken's text */
    NB_TOK_VOCAB,    /* vocab.json, with ... */
    NB_TOK_MERGES,   /* merges.txt */
    NB_TOK_QWEN,     /* qwen.tiktoken */
    NB_TOK_CONFIG,   /* tokenizer_config.json */
    NB_TOK_SPECIALS, /* special_tokens_map.json */
    NB_TOK_ADDED,    /* added_tokens.json */
    NB_TOK_N
} nb_tokfile_id;

typedef struct nb_tokfiles {
    struct {
        const char *p; /* NULL: absent */
        size_t n;
    } f[NB_TOK_N];
} nb_tokfiles;

extern const char *const nb_tokfile_name[NB_TOK_N];
/* Is file i of no use, given the files before it? For callers that read one after the other. */
bool nb_tokfiles_skip(const nb_tokfiles *f, nb_tokfile_id i);

/* What the tokenizer and the chat template are opened from. Zero it first; the views live in it or in the files. */
typedef struct nb_toksource {
    const char *json, *config; /* tokenizer.json; tokenizer_config.json with what other files add, NULL when there is none */
    size_t n_json, n_config;
    nb_buf own_json;
    char *own_config;
} nb_toksource;
/* Errors: NB_EOPEN "tok.missing" without any vocabulary; "tok.protobuf", "tok.tiktoken", "tok.json", "tok.arrays" ... for
 * malformed ones; NB_EUNSUPPORTED "tok.unsupported" for a kind or a tokenizer class that is not known. */
nb_status nb_toksource_init(nb_toksource *s, const nb_tokfiles *f, nb_err *err);
void nb_toksource_clear(nb_toksource *s);

/* ---- one kind each: append the text of a tokenizer.json ---- */

/* config: tokenizer_config.json as completed so far (an object); the kinds set what they know and it lacks. */
nb_status nb_spmodel_json(const char *p, size_t n, nb_json *config, nb_buf *out, nb_err *err);
nb_status nb_tiktoken_json(const char *p, size_t n, bool qwen, nb_json *config, nb_buf *out, nb_err *err);
nb_status nb_tekken_json(const char *p, size_t n, nb_json *config, nb_buf *out, nb_err *err);
nb_status nb_vocab_merges_json(const nb_tokfiles *f, nb_json *config, nb_buf *out, nb_err *err);

/* For the kinds. Content of a special token named in config ("bos_token"), text or object; NULL when absent. */
const char *nb_tok_named(const nb_json *config, const char *key, size_t *n);
/* Set config[key] unless it is there. */
bool nb_tok_default(nb_json *config, const char *key, const char *s, size_t n);
/* Append the tokens of added_tokens_decoder by rising id, then the special tokens that are only named: elements of
 * added_tokens, each with a comma in front. known (may be NULL) tells which ones are in the list already. */
nb_status nb_tok_put_configured(const nb_json *config, bool (*known)(const void *ctx, const char *s, size_t n), const void *ctx,
                                nb_buf *out, nb_err *err);

#endif
