/* memstore.c - a store over the caller's memory. */
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "tensor/store.h"

typedef struct {
    nb_store base;
    nb_tensor *list; /* [cap] */
    size_t cap;
    nb_arena arena; /* names and shapes */
} memstore;

static void mem_close(nb_store *s)
{
    memstore *m = (memstore *)s;

    nb_store_unindex(s);
    nb_arena_clear(&m->arena);
    nb_free(m->list);
    nb_free(m);
}

static const nb_store_ops mem_ops = { .close = mem_close };

nb_status nb_memstore_open(nb_store **out, nb_err *err)
{
    static const char *const files[] = { "memory" };
    memstore *m = nb_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return nb_enomem(err, "a store in memory");
    m->base.ops = &mem_ops;
    m->base.kind = "memory";
    m->base.path = files[0];
    m->base.n_files = 1;
    m->base.files = files;
    m->base.map = nb_strmap_new(0);
    if (!m->base.map) {
        mem_close(&m->base);
        return nb_enomem(err, "a store in memory");
    }
    *out = &m->base;
    return NB_OK;
}

static bool room(memstore *m)
{
    const size_t cap = m->cap ? 2 * m->cap : 16;
    nb_tensor *list;
    size_t bytes;

    if (m->base.n_tensors < m->cap)
        return true;
    list = nb_mul_size(cap, sizeof *list, &bytes) ? nb_realloc(m->list, bytes) : NULL;
    if (!list)
        return false;
    m->list = list;
    m->cap = cap;
    m->base.tensors = list;
    return true;
}

nb_status nb_memstore_add(nb_store *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, const void *data, nb_err *err)
{
    memstore *m = (memstore *)s;
    const size_t len = strlen(name);
    uint64_t count, bytes, total;
    uint64_t *dims;
    char *copy;
    nb_status rc;

    if (nb_store_findn(s, name, len))
        rc = nb_fail(err, NB_EARG, "arg.duplicate", "", "a tensor of that name is there already");
    else if (t == NB_DT_NONE || rank > NB_MAX_RANK || !nb_shape_count(shape, rank, &count) || !nb_dtype_bytes(t, count, &bytes) ||
             !nb_add_u64(s->total_bytes, bytes, &total))
        rc = nb_fail(err, NB_EARG, "arg.shape", "", "type and shape do not give a size");
    else {
        dims = nb_arena_alloc(&m->arena, rank * sizeof *dims);
        copy = nb_arena_strndup(&m->arena, name, len);
        if (!dims || !copy || !room(m) || nb_strmap_put(s->map, name, len, s->n_tensors, NULL) != NB_OK)
            return nb_enomem(err, "a tensor in memory");
        if (rank)
            memcpy(dims, shape, rank * sizeof *dims);
        m->list[s->n_tensors] = (nb_tensor){ .name = copy,
                                             .name_len = len,
                                             .dtype = t,
                                             .rank = rank,
                                             .shape = dims,
                                             .data = data,
                                             .n_bytes = bytes,
                                             .file = s->path,
                                             .index = s->n_tensors };
        s->n_tensors++;
        s->total_bytes = total;
        return NB_OK;
    }
    nb_err_at(err, NULL, name);
    return rc;
}

nb_status nb_memstore_set(nb_store *s, const char *name, const void *data, nb_err *err)
{
    memstore *m = (memstore *)s;
    const nb_tensor *t = nb_store_find(s, name);

    if (!t) {
        nb_fail(err, NB_EARG, "arg.name", "", "there is no tensor of that name");
        nb_err_at(err, NULL, name);
        return NB_EARG;
    }
    m->list[t - s->tensors].data = data;
    return NB_OK;
}
