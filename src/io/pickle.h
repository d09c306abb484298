/* pickle.h - the small part of the pickle language that builds tensors, run as data.
 *
 * One allow-list interpreter: the opcodes and globals of hardening 5.10 and nothing else. A global is a row of a table,
 * never something that is looked up, imported or called; the only "calls" are the four constructors named there. The
 * result is plain data: numbers, texts, tuples, lists, mappings, storages and views of storages.
 *
 * A result borrows the bytes it was read from. Reading it from several threads is fine. Rules PK of hardening 5.10. */
#ifndef NB_IO_PICKLE_H
#define NB_IO_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"

/* Limits of hardening 4. */
enum { NB_PKL_BYTES = 256 << 20, NB_PKL_OPS = 64 << 20, NB_PKL_NODES = 16 << 20, NB_PKL_MEMO = 4 << 20, NB_PKL_DEPTH = 256 };

typedef enum nb_pkl_kind {
    NB_PKL_NONE,
    NB_PKL_BOOL,
    NB_PKL_INT,
    NB_PKL_FLOAT, /* the value is not kept: nothing here needs it */
    NB_PKL_STR,
    NB_PKL_TUPLE,
    NB_PKL_LIST,
    NB_PKL_DICT, /* also OrderedDict, in its order */
    NB_PKL_GLOBAL,
    NB_PKL_DEVICE,
    NB_PKL_STORAGE,
    NB_PKL_TENSOR
} nb_pkl_kind;

typedef uint32_t nb_pkl_ref; /* an object of one result */

/* What a persistent id names. */
typedef struct nb_pkl_storage {
    const char *key; /* key_len bytes, not terminated */
    size_t key_len;
    nb_dtype dtype;
    uint64_t count; /* elements; their bytes fit 63 bits */
} nb_pkl_storage;

/* A view into a storage; checked to lie inside it (PK-15). */
typedef struct nb_pkl_tensor {
    uint32_t storage; /* index                                                 */
    unsigned rank;
    uint64_t offset;                /* first element                                         */
    uint64_t count;                 /* product of shape; its bytes fit 63 bits               */
    const uint64_t *shape, *stride; /* [rank] elements                         */
} nb_pkl_tensor;

typedef struct nb_pkl nb_pkl;

/* Run the stream at p[0..n) to its STOP.
 *   record  what to call it in messages: "data.pkl"
 *   used    gets the bytes up to and with STOP; NULL when nothing may follow (PK-07)
 * Errors: "pkl.*" NB_EFORMAT or NB_EUNSUPPORTED, "limit.pickle_*" NB_ELIMIT, NB_ENOMEM; err->subject is "record offset N".
 * Result is closed with nb_pkl_close and borrows p. */
nb_status nb_pkl_run(const unsigned char *p, size_t n, const char *record, nb_pkl **out, size_t *used, nb_err *err);
void nb_pkl_close(nb_pkl *v); /* NULL is fine */

nb_pkl_ref nb_pkl_root(const nb_pkl *v);
nb_pkl_kind nb_pkl_kind_of(const nb_pkl *v, nb_pkl_ref r);
/* Bytes of a STR (UTF-8, not terminated, maybe with zeros inside); NULL for other kinds. */
const char *nb_pkl_str(const nb_pkl *v, nb_pkl_ref r, size_t *n);
int64_t nb_pkl_int(const nb_pkl *v, nb_pkl_ref r, int64_t dflt);
bool nb_pkl_is_true(const nb_pkl *v, nb_pkl_ref r);
/* Walk a DICT or LIST in order: *at starts at 0; false at the end. key is 0 (None) for lists. */
bool nb_pkl_next(const nb_pkl *v, nb_pkl_ref r, uint32_t *at, nb_pkl_ref *key, nb_pkl_ref *value);
const nb_pkl_tensor *nb_pkl_tensor_of(const nb_pkl *v, nb_pkl_ref r); /* NULL for other kinds */
size_t nb_pkl_n_storages(const nb_pkl *v);
const nb_pkl_storage *nb_pkl_storage_at(const nb_pkl *v, size_t i);

#endif
