/* num.h - numbers in text, read strictly: no sign, no space, no locale, nothing beyond the stated range (hardening CR-05).
 *
 * Each function returns the first byte behind the number, or NULL when none begins at s or it is out of range; *out is then
 * left alone. A caller that wants the whole text compares what follows with 0. */
#ifndef NB_BASE_NUM_H
#define NB_BASE_NUM_H

#include <stdint.h>

/* Decimal digits, at most `most`. */
const char *nb_num_u64(const char *s, uint64_t most, uint64_t *out);
/* Hexadecimal digits of either case, at most `most`. */
const char *nb_num_hex(const char *s, uint64_t most, uint64_t *out);
/* Decimal digits behind an optional minus. */
const char *nb_num_i64(const char *s, int64_t *out);
/* 12, -1.5, .5, 1e-3; finite. */
const char *nb_num_real(const char *s, double *out);

#endif
