/* pickle_pool.c - memory of the pickle machine, and reading what it made. See pickle_priv.h. */
#include "io/pickle_priv.h"

/* ---- pools: growing arrays whose elements never move ---- */

void *nb_pool_at(const nb_pool *q, uint32_t i)
{
    return (char *)q->chunk[i >> NB_POOL_BITS] + (size_t)(i & (NB_POOL_CHUNK - 1)) * q->size;
}

void *nb_pool_reach(nb_pool *q, uint32_t i)
{
    if (!q->chunk && !(q->chunk = nb_calloc(NB_POOL_CHUNKS, sizeof *q->chunk)))
        return NULL;
    if (!q->chunk[i >> NB_POOL_BITS] && !(q->chunk[i >> NB_POOL_BITS] = nb_calloc(NB_POOL_CHUNK, q->size)))
        return NULL;
    return nb_pool_at(q, i);
}

void nb_pool_clear(nb_pool *q)
{
    for (size_t i = 0; q->chunk && i < NB_POOL_CHUNKS; i++)
        nb_free(q->chunk[i]);
    nb_free(q->chunk);
}

/* ---- reading the result ---- */

nb_pkl_ref nb_pkl_root(const nb_pkl *v)
{
    return v->root;
}

nb_pkl_kind nb_pkl_kind_of(const nb_pkl *v, nb_pkl_ref r)
{
    return NB_PKL_KIND(nb_pkl_node_at(v, r)->tag);
}

const char *nb_pkl_str(const nb_pkl *v, nb_pkl_ref r, size_t *n)
{
    const nb_pkl_node *x = nb_pkl_node_at(v, r);

    *n = 0;
    if (NB_PKL_KIND(x->tag) != NB_PKL_STR)
        return NULL;
    *n = NB_PKL_COUNT(x->tag);
    return (const char *)v->p + x->a;
}

int64_t nb_pkl_int(const nb_pkl *v, nb_pkl_ref r, int64_t dflt)
{
    const nb_pkl_node *x = nb_pkl_node_at(v, r);
    return NB_PKL_KIND(x->tag) == NB_PKL_INT ? (int64_t)((uint64_t)x->b << 32 | x->a) : dflt;
}

bool nb_pkl_is_true(const nb_pkl *v, nb_pkl_ref r)
{
    (void)v;
    return r == NB_PKL_R_TRUE;
}

bool nb_pkl_next(const nb_pkl *v, nb_pkl_ref r, uint32_t *step, nb_pkl_ref *key, nb_pkl_ref *value)
{
    const nb_pkl_node *x = nb_pkl_node_at(v, r);
    const uint32_t i = *step ? ((nb_pkl_cell *)nb_pool_at(&v->cells, *step - 1))->next : x->a;
    const nb_pkl_cell *c;

    if ((NB_PKL_KIND(x->tag) != NB_PKL_LIST && NB_PKL_KIND(x->tag) != NB_PKL_DICT) || i == 0)
        return false;
    c = nb_pool_at(&v->cells, i - 1);
    *step = i;
    *key = c->key;
    *value = c->value;
    return true;
}

const nb_pkl_tensor *nb_pkl_tensor_of(const nb_pkl *v, nb_pkl_ref r)
{
    const nb_pkl_node *x = nb_pkl_node_at(v, r);
    return NB_PKL_KIND(x->tag) == NB_PKL_TENSOR ? nb_pool_at(&v->tensors, x->a) : NULL;
}

size_t nb_pkl_n_storages(const nb_pkl *v)
{
    return v->storages.n;
}

const nb_pkl_storage *nb_pkl_storage_at(const nb_pkl *v, size_t i)
{
    return nb_pool_at(&v->storages, (uint32_t)i);
}
