/* store.c - what all stores share: the name index, dispatch, widening of plain data. */
#include "tensor/store.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"

const nb_tensor *nb_store_findn(const nb_store *s, const char *name, size_t n)
{
    uint64_t i;

    return s->map && nb_strmap_get(s->map, name, n, &i) ? &s->tensors[i] : NULL;
}

const nb_tensor *nb_store_find(const nb_store *s, const char *name)
{
    return nb_store_findn(s, name, strlen(name));
}

nb_status nb_store_read_f32(nb_store *s, const nb_tensor *t, uint64_t begin, uint64_t n, float *out, nb_err *err)
{
    const unsigned bits = nb_dtype_info(t->dtype)->bits;
    uint64_t count;
    nb_status rc;

    if (!nb_shape_count(t->shape, t->rank, &count) || begin > count || n > count - begin) {
        rc = nb_fail(err, NB_EARG, "arg.range", "", "elements from %" PRIu64 ", %" PRIu64 " of them, are not all in the tensor", begin, n);
    } else if (n == 0) {
        return NB_OK;
    } else if (s->ops->read_f32) {
        rc = s->ops->read_f32(s, t, begin, n, out, err);
    } else if (!t->data || bits % 8 != 0 || !nb_to_f32(out, t->data + begin * (bits / 8), t->dtype, (size_t)n)) {
        rc = nb_fail(err, NB_EUNSUPPORTED, "dtype", "", "values of type %s cannot be read as f32", nb_dtype_info(t->dtype)->name);
    } else {
        return NB_OK;
    }
    if (rc != NB_OK)
        nb_err_at(err, t->file, t->name);
    return rc;
}

void nb_store_drop(const nb_store *s, const nb_tensor *t)
{
    if (s->ops->drop)
        s->ops->drop(s, t);
}

nb_status nb_store_still(nb_store *s, nb_err *err)
{
    return s->ops->still ? s->ops->still(s, err) : NB_OK;
}

void nb_store_close(nb_store *s)
{
    if (s)
        s->ops->close(s);
}

nb_status nb_store_index(nb_store *s, size_t *dup, nb_err *err)
{
    bool had = false;
    size_t ignored;

    dup = dup ? dup : &ignored;
    *dup = SIZE_MAX;
    nb_store_unindex(s);
    s->map = nb_strmap_new(s->n_tensors);
    if (!s->map)
        return nb_enomem(err, "the index of tensor names");
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        if (nb_strmap_put(s->map, t->name, t->name_len, i, &had) != NB_OK) {
            nb_store_unindex(s);
            return nb_enomem(err, "the index of tensor names");
        }
        if (had && *dup == SIZE_MAX)
            *dup = i;
    }
    return NB_OK;
}

void nb_store_unindex(nb_store *s)
{
    nb_strmap_free(s->map);
    s->map = NULL;
}
