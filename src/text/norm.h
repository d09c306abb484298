/* norm.h - normalizers, and the character classes the tokenizer asks for. norm.c is the only includer of utf8proc.
 *
 * Unicode tables are utf8proc's (version 15 in Debian 12); the reference library has older ones for NFC and
 * categories, which real text does not show. Source: spec tokenizers 4. Immutable after open, shared by threads. */
#ifndef NB_TEXT_NORM_H
#define NB_TEXT_NORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "text/presplit.h"
#include "text/utf8.h"

bool nb_uc_space(uint32_t cp);           /* White_Space: 25 characters               */
bool nb_uc_word(uint32_t cp);            /* \w of Rust: Alphabetic M Nd Pc, joiners   */
bool nb_uc_number(uint32_t cp);          /* Nd Nl No                                  */
bool nb_uc_punct(uint32_t cp);           /* P, or an ASCII symbol                     */
const char *nb_uc_category(uint32_t cp); /* "Lu", "Zs" ...                    */
/* Case mapping to one character (mappings to several are the caller's affair). */
uint32_t nb_uc_upper(uint32_t cp);
uint32_t nb_uc_lower(uint32_t cp);
uint32_t nb_uc_title(uint32_t cp);

/* State of one call: the buffers, the pattern iterator, and how many bytes all normalized text may still take. */
typedef struct nb_norm_work {
    nb_flip flip;
    nb_finder finder;
    size_t left;
} nb_norm_work;
void nb_norm_work_clear(nb_norm_work *w);
#define NB_NORM_BUDGET(n) ((n) > SIZE_MAX / 32 ? SIZE_MAX : 18 * (n) + 65536) /* hardening TK-17 */

typedef struct nb_norm nb_norm;
/* Build from "normalizer" (null: none). Errors: NB_EUNSUPPORTED "tok.unsupported" naming the type; NB_EFORMAT "tok.regex"
 * for an empty pattern, "tok.type". */
nb_status nb_norm_open(const nb_json *spec, nb_norm **out, nb_err *err);
void nb_norm_close(nb_norm *nm);
bool nb_norm_is_none(const nb_norm *nm);
/* Normalize *s[*n] (valid UTF-8): the view is replaced by one that lives in the input or in w until its next use.
 * Error NB_ELIMIT "limit.normalize" when the results of this call's texts exceed w->left. */
nb_status nb_norm_run(const nb_norm *nm, nb_norm_work *w, const char **s, size_t *n, nb_err *err);

/* Replace every match of p in s[n] by by[n_by], appended to out; stops with "limit.normalize" beyond `left` bytes. */
nb_status nb_replace(const nb_pattern *p, nb_finder *f, const char *s, size_t n, const char *by, size_t n_by, size_t left, nb_buf *out,
                     nb_err *err);

#endif
