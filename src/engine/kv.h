/* kv.h - who holds which KV page: numbers only, the bytes belong to the executor. Not thread safe. */
#ifndef NB_ENGINE_KV_H
#define NB_ENGINE_KV_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct nb_kv {
    uint32_t *free_pages; /* stack */
    size_t n_free, n_pages;
} nb_kv;

nb_status nb_kv_init(nb_kv *kv, size_t n_pages, nb_err *err);
void nb_kv_clear(nb_kv *kv);
/* Take n pages into out[n]; false (nothing taken) when fewer are free. */
int nb_kv_alloc(nb_kv *kv, size_t n, uint32_t *out);
/* Give pages back, the last one first, so that the next owner gets them in the same order. */
void nb_kv_release(nb_kv *kv, const uint32_t *pages, size_t n);

#endif
