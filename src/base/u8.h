/* u8.h - is it UTF-8, and which characters (Unicode 3.9, table 3-7)?
 *
 * No state; all functions may be called from several threads. Repair and the rest: text/utf8.h. */
#ifndef NB_BASE_U8_H
#define NB_BASE_U8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Character at s (n >= 1 bytes there): its length, code point in *cp. Ill-formed: minus the length of the maximal
 * subpart, *cp = U+FFFD. *cut (may be NULL) tells that the sequence is well-formed so far and only ends too early. */
int nb_u8_next(const char *s, size_t n, uint32_t *cp, bool *cut);
/* Offset of the first character that is ill-formed, n when there is none. */
size_t nb_u8_check(const char *s, size_t n);

#endif
