/* json.h - JSON values, read strictly and written in insertion order. json.c is the only includer of jansson.
 *
 * Memory: about 60 bytes per number, 170 per array and 260 per object, beside what they hold.
 * A value is owned by its root; nb_json_free(root) frees all. Reading from several threads is fine.
 * Reader (hardening 5.2): whole input, UTF-8 checked, duplicate keys refused, depth limit, NaN/Infinity/comments
 * refused (but nb_json_parse_config), integers beyond int64 become reals (model_max_length 1e30 is common). U+0000 in a string is kept (see
 * nb_json_str with its length). */
#ifndef NB_BASE_JSON_H
#define NB_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct nb_json nb_json;

typedef enum nb_json_type { NB_JNULL, NB_JBOOL, NB_JINT, NB_JREAL, NB_JSTR, NB_JARR, NB_JOBJ } nb_json_type;

/* Parse n bytes. cls is the prefix of the class of errors ("cfg", "idx", "st", "tok", "json"): malformed text is
 * "<cls>.json", NB_EFORMAT; deeper than depth is "json.depth", NB_ELIMIT. The sentence gives line and column.
 * depth 0 means 128. Duplicate key: "<cls>.duplicate_key". */
nb_status nb_json_parse(const char *p, size_t n, const char *cls, int depth, nb_json **out, nb_err *err);
/* The same for files that Python programs write and read: NaN, Infinity and -Infinity are reals, and of members with one name
 * the last counts (not in a text that has both, or wide integers too). warn, unless NULL, is filled with
 * "<cls>.duplicate_key" in the second case. */
nb_status nb_json_parse_config(const char *p, size_t n, const char *cls, nb_json **out, nb_err *warn, nb_err *err);
/* Read and parse a file of at most limit bytes; err gets the file name. */
nb_status nb_json_parse_file(const char *path, size_t limit, const char *cls, nb_json **out, nb_err *err);
void nb_json_free(nb_json *root); /* NULL is fine */

nb_json_type nb_json_typeof(const nb_json *v); /* NULL counts as NB_JNULL */
bool nb_json_is_null(const nb_json *v);
/* Object member, NULL when v is no object or has no such key. */
const nb_json *nb_json_get(const nb_json *v, const char *key);
size_t nb_json_len(const nb_json *v);                                        /* members or elements, else 0 */
const nb_json *nb_json_at(const nb_json *v, size_t i);                       /* i-th element of an array */
const nb_json *nb_json_member(const nb_json *v, size_t i, const char **key); /* i-th member; O(1) amortised when i rises by one */
/* Scalars with a default: the value when it has that type, else dflt. */
int64_t nb_json_int(const nb_json *v, int64_t dflt); /* a real with an integral value in range counts */
double nb_json_num(const nb_json *v, double dflt);   /* may be NaN or infinite after nb_json_parse_config only */
bool nb_json_bool(const nb_json *v, bool dflt);
const char *nb_json_str(const nb_json *v, const char *dflt); /* terminated; may hold inner zeros */
size_t nb_json_str_len(const nb_json *v);
/* Digits (with sign) of an integer beyond int64 that nb_json_parse read as a real; NULL for all else. */
const char *nb_json_wide(const nb_json *v);
bool nb_json_equal(const nb_json *a, const nb_json *b);

/* Builders. NULL on failure of memory, and for strings that are not UTF-8; setters take ownership of `value`, free it on
 * failure, and accept NULL (then they fail), so that a chain needs one check at the end: false means some step failed. */
nb_json *nb_json_new_obj(void);
nb_json *nb_json_new_arr(void);
nb_json *nb_json_new_str(const char *s);
nb_json *nb_json_new_strn(const char *s, size_t n);
nb_json *nb_json_new_int(int64_t v);
nb_json *nb_json_new_real(double v); /* NaN and Inf become null */
double nb_json_short(float v);       /* the number with the fewest digits that is v as a float: 0.8, not 0.800000011920929 */
nb_json *nb_json_new_bool(bool v);
nb_json *nb_json_new_null(void);
nb_json *nb_json_copy(const nb_json *v); /* deep */
bool nb_json_set(nb_json *obj, const char *key, nb_json *value);
bool nb_json_push(nb_json *arr, nb_json *value);
bool nb_json_remove(nb_json *obj, const char *key); /* true when it was there */
/* Text; indent 0 is one line, without spaces after separators when `compact`. Caller frees with nb_free. NULL: no memory. */
char *nb_json_dump(const nb_json *v, int indent, bool compact);
/* Parts for writers of large texts that need no tree: a string in quotes (s[n] is UTF-8), a finite real. */
void nb_json_put_str(nb_buf *b, const char *s, size_t n);
void nb_json_put_real(nb_buf *b, double v);

#endif
