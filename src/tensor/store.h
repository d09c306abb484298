/* store.h - read interface over a set of named tensors: one file, many shards, memory, or a test.
 *
 * Implementations embed nb_store as first member and fill `ops`. All functions but close may be called from several
 * threads at once. Views live until nb_store_close. */
#ifndef NB_TENSOR_STORE_H
#define NB_TENSOR_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/report.h"
#include "tensor/tensor.h"

typedef struct nb_store nb_store;

typedef struct nb_store_ops {
    void (*close)(nb_store *s);
    /* Copy the tensor's values, elements [begin, begin+n) in row-major order, as f32. May be NULL when data is plain. */
    nb_status (*read_f32)(nb_store *s, const nb_tensor *t, uint64_t begin, uint64_t n, float *out, nb_err *err);
    /* These bytes will not be read again. May be NULL. */
    void (*drop)(const nb_store *s, const nb_tensor *t);
    /* Check that mapped bytes are still there (file not shrunk): NB_EREAD otherwise. May be NULL. */
    nb_status (*still)(nb_store *s, nb_err *err);
} nb_store_ops;

struct nb_store {
    const nb_store_ops *ops;
    const char *kind;         /* "safetensors", "gguf", "memory"                       */
    const char *path;         /* as typed                                              */
    const nb_tensor *tensors; /* [n_tensors], in file order, shards in name order      */
    size_t n_tensors;
    size_t n_files;
    const char *const *files; /* [n_files] names for messages                          */
    uint64_t total_bytes;     /* of tensor data                                        */
    const nb_json *meta;      /* __metadata__ of the first file, GGUF key-values, or NULL */
    nb_report *notes;         /* warnings found while opening (FIL-005, FIL-007 ...), or NULL */
    void *map;                /* nb_strmap name -> index, filled by nb_store_index      */
};

/* NULL when absent. */
const nb_tensor *nb_store_find(const nb_store *s, const char *name);
const nb_tensor *nb_store_findn(const nb_store *s, const char *name, size_t n);
/* Elements as f32 (F16, BF16, F32, F64, GGUF blocks). NB_EUNSUPPORTED "dtype" for others; NB_EARG for a bad range. */
nb_status nb_store_read_f32(nb_store *s, const nb_tensor *t, uint64_t begin, uint64_t n, float *out, nb_err *err);
void nb_store_drop(const nb_store *s, const nb_tensor *t);
nb_status nb_store_still(nb_store *s, nb_err *err);
void nb_store_close(nb_store *s); /* NULL is fine */

/* For implementers: build the name index over tensors[]; *dup gets the index of the second of two equal names, else SIZE_MAX;
 * dup may be NULL. */
nb_status nb_store_index(nb_store *s, size_t *dup, nb_err *err);
void nb_store_unindex(nb_store *s);

/* A store over the caller's memory: copies names and shapes, borrows data. For tests and for block-by-block jobs.
 * Adding and setting are for one thread, and adding moves the list: views found before it are no longer valid. */
nb_status nb_memstore_open(nb_store **out, nb_err *err);
nb_status nb_memstore_add(nb_store *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, const void *data, nb_err *err);
/* Replace the data pointer of a tensor of the same size. NB_EARG when absent. */
nb_status nb_memstore_set(nb_store *s, const char *name, const void *data, nb_err *err);

#endif
