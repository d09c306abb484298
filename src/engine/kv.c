/* kv.c - a stack of free page numbers. */
#include "engine/kv.h"

#include "base/mem.h"

nb_status nb_kv_init(nb_kv *kv, size_t n_pages, nb_err *err)
{
    kv->free_pages = nb_alloc_array(n_pages, sizeof *kv->free_pages);
    if (!kv->free_pages)
        return nb_enomem(err, "the page list");
    kv->n_pages = kv->n_free = n_pages;
    for (size_t i = 0; i < n_pages; i++)
        kv->free_pages[i] = (uint32_t)(n_pages - 1 - i);
    return NB_OK;
}

void nb_kv_clear(nb_kv *kv)
{
    nb_free(kv->free_pages);
    *kv = (nb_kv){ 0 };
}

int nb_kv_alloc(nb_kv *kv, size_t n, uint32_t *out)
{
    if (kv->n_free < n)
        return 0;
    for (size_t i = 0; i < n; i++)
        out[i] = kv->free_pages[--kv->n_free];
    return 1;
}

void nb_kv_release(nb_kv *kv, const uint32_t *pages, size_t n)
{
    while (n-- > 0)
        kv->free_pages[kv->n_free++] = pages[n];
}
