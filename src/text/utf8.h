/* utf8.h - UTF-8 characters, repair of invalid bytes, literal search, and lists of pieces of a text.
 *
 * Used by the tokenizer's parts. No state; all functions may be called from several threads.
 * Repair: one U+FFFD per maximal subpart of an ill-formed sequence (Unicode 3.9, table 3-7). */
#ifndef NB_TEXT_UTF8_H
#define NB_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/u8.h"

#define NB_FFFD "\xef\xbf\xbd"

/* Character that ends at s + n (n >= 1, valid text): its length. */
size_t nb_u8_prev(const char *s, size_t n, uint32_t *cp);
/* Encode cp (a scalar value) into out[4]: the length. */
size_t nb_u8_put(char *out, uint32_t cp);
void nb_u8_append(nb_buf *b, uint32_t cp);
/* Is s[n], read from a file, text? Ill-formed UTF-8 and zero bytes are nearly always a wrong file. NB_EFORMAT "tok.utf8" with the offset
 * and the way out (NB_U8_WAY, or what else the user may do). */
#define NB_U8_WAY "iconv -f LATIN1 -t UTF-8, or with the name of what it was written in, makes it so"
nb_status nb_u8_text(const char *s, size_t n, const char *way, nb_err *err);
/* Append s[n] with every ill-formed part replaced by U+FFFD. */
void nb_u8_repair(nb_buf *out, const char *s, size_t n);
/* The same for a stream: *held (at most 3 bytes, `n_held` of them) keeps an incomplete tail between calls; flush
 * turns what is left into U+FFFD. */
typedef struct nb_u8_stream {
    char held[4];
    size_t n_held;
} nb_u8_stream;
void nb_u8_feed(nb_u8_stream *st, const char *s, size_t n, nb_buf *out);
void nb_u8_flush(nb_u8_stream *st, nb_buf *out);

/* The byte-level alphabet: every byte has a printable stand-in character (GPT-2's bytes_to_unicode). */
uint32_t nb_byte_char(unsigned char b);
int nb_char_byte(uint32_t cp); /* -1: no stand-in */
/* Append the bytes that the stand-ins of s[n] mean; false (nothing appended) when some character is none. */
bool nb_standin_bytes(nb_buf *out, const char *s, size_t n);

/* A literal to search for, in linear time whatever it is (Knuth, Morris, Pratt). */
typedef struct nb_needle {
    char *s;
    size_t n;
    size_t *fail;
} nb_needle;
nb_status nb_needle_init(nb_needle *d, const char *s, size_t n, nb_err *err);
void nb_needle_clear(nb_needle *d);
/* First occurrence in text[from, n): its offset, or n. An empty needle is never found. */
size_t nb_needle_find(const nb_needle *d, const char *text, size_t n, size_t from);

/* A list of views into one text. */
typedef struct nb_span {
    size_t off, n;
} nb_span;
typedef struct nb_spans {
    nb_span *v;
    size_t n, cap;
} nb_spans;
nb_status nb_spans_push(nb_spans *l, size_t off, size_t n, nb_err *err);
void nb_spans_clear(nb_spans *l);

/* Two buffers used in turn by steps that rewrite a text: the view is in one, the next result goes to the other. */
typedef struct nb_flip {
    nb_buf b[2];
    int cur;
} nb_flip;
nb_buf *nb_flip_next(nb_flip *f); /* emptied; becomes the current one */
void nb_flip_clear(nb_flip *f);

#endif
