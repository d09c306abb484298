/* rx.h - patterns of quantization configs: the regular subset of Python's `re`, matched in time linear in the text.
 *
 * Literals, ., classes, escapes (\d \w \s \b \A \Z and their opposites), groups, |, and * + ? {m,n}, greedy or lazy. Only whether
 * the pattern matches is asked, so laziness and captures mean nothing. Back references, look-around, flags and possessive
 * quantifiers are refused: they cannot be matched in linear time, or nobody uses them (hardening CF-23).
 * Method: Thompson's construction, all states at once (K. Thompson, Regular Expression Search Algorithm, CACM 11(6), 1968). */
#ifndef NB_QUANT_RX_H
#define NB_QUANT_RX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct nb_rx nb_rx;

/* Compile n bytes of pattern. NB_EFORMAT: not a pattern; NB_EUNSUPPORTED: one that we refuse; NB_ELIMIT: longer than 4096 steps
 * once repetitions are written out; NB_ENOMEM. The sentence is a part of one ("a look-around at byte 3"), class cfg.quant_rule,
 * cfg.unsupported or limit.quant_rules. */
nb_status nb_rx_new(const char *pattern, size_t n, nb_rx **out, nb_err *err);
void nb_rx_free(nb_rx *rx); /* NULL is fine */

/* Does it match at the start of the text (Python's re.match), or anywhere (re.search)? Each call adds its work to *work, at most
 * steps of the pattern times length of the text. A compiled pattern is for one thread at a time. */
bool nb_rx_match(nb_rx *rx, const char *text, size_t n, bool anywhere, uint64_t *work);

#endif
