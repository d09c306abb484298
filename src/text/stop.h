/* stop.h - stop strings over the borders of tokens and pieces of text: what is certain is let through at once.
 *
 * Works on the text that nb_detok gives (whole characters). The match that ends first wins, then the order of the list;
 * the cut is the same however the text is cut into pieces. Source: spec serving DET-3. */
#ifndef NB_TEXT_STOP_H
#define NB_TEXT_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* The strings of a request, immutable, shared by its sequences. */
typedef struct nb_stops nb_stops;
/* s[i] has len[i] bytes. Errors: NB_EARG "arg.stop" for a string that is empty, longer than 1024 bytes or not UTF-8, or more
 * than 16 (hardening 4). */
nb_status nb_stops_open(const char *const *s, const size_t *len, size_t n, nb_stops **out, nb_err *err);
void nb_stops_close(nb_stops *s); /* NULL is fine */

/* Where one sequence stands. Zero it first; nothing to free. */
typedef struct nb_stopper {
    uint32_t state; /* longest suffix of the text that begins a stop string */
    int hit;        /* index of the string that matched + 1; 0: none yet */
} nb_stopper;
/* Feed text: append to out what can no longer belong to a stop string. True when a stop string is complete: then out ends
 * before it (behind it with `include`), and the rest of the text is dropped. s may be NULL: no stop strings. */
bool nb_stop_feed(const nb_stops *s, nb_stopper *st, const char *text, size_t n, bool include, nb_buf *out);
/* The text ends without a match: append what was held back. */
void nb_stop_flush(const nb_stops *s, nb_stopper *st, nb_buf *out);

#endif
