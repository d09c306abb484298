/* io_priv.h - what the files of this floor share and nobody else needs: limits, file stamps, looks at first bytes. */
#ifndef NB_IO_IO_PRIV_H
#define NB_IO_IO_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/err.h"
#include "base/json.h"
#include "base/map.h"

/* Limits of hardening 4. */
enum {
    NB_LIMIT_ST_HEADER = 100000000,
    NB_LIMIT_TENSORS = 1000000, /* per file  */
    NB_LIMIT_MODEL_TENSORS = 4000000,
    NB_LIMIT_SHARDS = 4096,
    NB_LIMIT_NAME = 65535,      /* bytes of a tensor name */
    NB_LIMIT_CONFIG = 16 << 20, /* config-like JSON files */
    NB_LIMIT_INDEX = 512 << 20,
    NB_LIMIT_TOKENIZER = 256 << 20
};

/* What a file looked like when it was opened, so that a change in use is noticed (FS-12, IX-15). */
typedef struct nb_stamp {
    uint64_t dev, ino, size;
    int64_t sec;
    long nsec;
} nb_stamp;

/* Take the stamp of a mapping and close its descriptor: the mapping stays, open files stay few (FS-19). */
nb_status nb_stamp_take(nb_stamp *s, nb_map *m, nb_err *err);
/* NB_EREAD "io.changed" when the file at `path` is no longer the one the stamp was taken of. */
nb_status nb_stamp_check(const nb_stamp *s, const char *path, nb_err *err);

/* NB_EFORMAT "fmt.mismatch" FIL-009 when the bytes are a Git LFS pointer. */
nb_status nb_lfs_check(const unsigned char *p, size_t n, nb_err *err);
/* "a zip archive", "a GGUF file", "a web page" ... when the first bytes say so; NULL when they say nothing. */
const char *nb_foreign(const unsigned char *p, size_t n);
/* "dir/name" in an nb_alloc block; NULL when out of memory. */
char *nb_join(const char *dir, const char *name);
/* Directory part of a path ("." when there is none), nb_alloc block. */
char *nb_dirname(const char *path);
bool nb_ends_with(const char *s, const char *end);
bool nb_torch_name(const char *s); /* .bin, .pt or .pth */

/* JSON texts of the small files of a model that is stored as GGUF (gguf_hf.c). *out NULL when there is nothing to say. */
struct nb_store;
nb_status nb_gguf_config(const struct nb_store *s, nb_json **out, nb_err *err);
nb_status nb_gguf_text(const struct nb_store *s, const char *name, char **out, size_t *n, nb_err *err);

#endif
