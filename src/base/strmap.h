/* strmap.h - string -> uint64 index. Keys are copied. Hash is seeded so that chosen keys cannot make it quadratic.
 * Reading from several threads is fine while nobody writes. */
#ifndef NB_BASE_STRMAP_H
#define NB_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct nb_strmap nb_strmap;

nb_strmap *nb_strmap_new(size_t expected); /* NULL when out of memory */
void nb_strmap_free(nb_strmap *m);         /* NULL is fine */
/* Insert; *had tells (if not NULL) that the key was there, its value is kept then. NB_ENOMEM else. */
nb_status nb_strmap_put(nb_strmap *m, const char *key, size_t n, uint64_t value, bool *had);
bool nb_strmap_get(const nb_strmap *m, const char *key, size_t n, uint64_t *value);
size_t nb_strmap_count(const nb_strmap *m);

#endif
