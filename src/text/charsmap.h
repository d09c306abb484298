/* charsmap.h - the "Precompiled" normalizer: SentencePiece's table of replacements. Immutable after open.
 *
 *   u32 size | size bytes: a double array of u32 units | replacements, each with a zero at its end
 *
 * Source: spec tokenizers 4; spm_precompiled src/lib.rs. */
#ifndef NB_TEXT_CHARSMAP_H
#define NB_TEXT_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct nb_charsmap nb_charsmap;
/* text[n]: the table in base64. Every place that can be reached is checked here, so that running needs no more checks.
 * Error NB_EFORMAT "tok.charsmap": not base64, cut short, a place outside, a cycle, no UTF-8. */
nb_status nb_charsmap_open(const char *text, size_t n, nb_charsmap **out, nb_err *err);
void nb_charsmap_close(nb_charsmap *m); /* NULL is fine */
/* Append the replacement of the first (shortest) entry that s[n] begins with. false: there is none. */
bool nb_charsmap_find(const nb_charsmap *m, const char *s, size_t n, nb_buf *out);

#endif
