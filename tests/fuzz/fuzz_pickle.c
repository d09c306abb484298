/* fuzz_pickle.c - any bytes as a pickle stream, from a block of just that size: a verdict, and a result that can be walked. */
#include <string.h>

#include "fuzz_file.h"

#include "io/pickle.h"

/* Everything that hangs on a mapping or list, two levels deep. */
static unsigned walk(const nb_pkl *v, nb_pkl_ref r, int depth)
{
    const nb_pkl_tensor *t = nb_pkl_tensor_of(v, r);
    nb_pkl_ref key, value;
    uint32_t at = 0;
    size_t n = 0;
    const char *s = nb_pkl_str(v, r, &n);
    unsigned sum = n > 0 ? (unsigned)s[n - 1] : 0;

    for (unsigned k = 0; t && k < t->rank; k++)
        sum += (unsigned)(t->shape[k] + t->stride[k]);
    if (t && t->storage >= nb_pkl_n_storages(v))
        abort();
    while (depth > 0 && nb_pkl_next(v, r, &at, &key, &value))
        sum += walk(v, key, 0) + walk(v, value, depth - 1);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    nb_err err = { 0 };
    nb_pkl *v = NULL;
    unsigned sum = 0;
    size_t used = 0;

    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    if (nb_pkl_run(copy, size, "fuzz", &v, &used, &err) == NB_OK)
        sum = walk(v, nb_pkl_root(v), 3);
    else if (err.what[0] == '\0')
        abort();
    if (used > size)
        abort();
    nb_pkl_close(v);
    free(copy);
    return sum == 1u << 31;
}
