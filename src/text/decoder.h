/* decoder.h - decoders of tokenizer.json: token texts to text. Immutable after open, shared by threads.
 *
 * nb_decoder_run is the definition (a list of texts through every step). nb_decoder_stream gives the same bytes piece
 * by piece where the steps allow it. Source: spec tokenizers 10 and 11. */
#ifndef NB_TEXT_DECODER_H
#define NB_TEXT_DECODER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "text/presplit.h"
#include "text/utf8.h"

typedef struct nb_decoder nb_decoder;
/* spec: "decoder" or null (texts joined by blanks). Errors: "tok.unsupported" naming the type, "tok.type", "tok.regex". */
nb_status nb_decoder_open(const nb_json *spec, nb_decoder **out, nb_err *err);
void nb_decoder_close(nb_decoder *d);
bool nb_decoder_is_bytes(const nb_decoder *d); /* ByteLevel and nothing else */

/* Append the text of tokens v[n], which index into text. */
nb_status nb_decoder_run(const nb_decoder *d, const char *text, const nb_span *v, size_t n, nb_buf *out, nb_err *err);

/* Append the bytes that token s[n] adds in the middle of a text, perhaps part of a character. */
nb_status nb_decoder_middle(const nb_decoder *d, const char *s, size_t n, nb_buf *out, nb_err *err);

/* The same for a stream. Zero the struct first. */
typedef struct nb_decoder_stream {
    nb_u8_stream u8; /* bytes of an unfinished character */
    nb_buf held;     /* what may still change: a run of byte tokens, the last token, or everything */
    nb_spans tokens; /* of `held` */
    size_t seen;     /* tokens so far */
    size_t strip;    /* blanks already taken from the beginning */
    bool begun;      /* text was emitted: nothing more to strip */
    nb_finder finder;
} nb_decoder_stream;
nb_status nb_decoder_feed(const nb_decoder *d, nb_decoder_stream *st, const char *s, size_t n, nb_buf *out, nb_err *err);
nb_status nb_decoder_flush(const nb_decoder *d, nb_decoder_stream *st, nb_buf *out, nb_err *err);
void nb_decoder_stream_clear(nb_decoder_stream *st);

#endif
