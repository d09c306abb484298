/* sink.h - write interface: declare every tensor, begin (lays out the files), write bytes in any order, finish.
 *
 * declare() in the wanted order; then begin(); then write() from any thread, any tensor, any byte range, each byte
 * once; then finish() (all files complete, nothing renamed by the sink: the nb_outdir of the caller renames). */
#ifndef NB_TENSOR_SINK_H
#define NB_TENSOR_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"
#include "tensor/store.h"

typedef struct nb_sink nb_sink;
typedef struct nb_sink_ops {
    nb_status (*declare)(nb_sink *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err);
    nb_status (*begin)(nb_sink *s, nb_err *err);
    nb_status (*write)(nb_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err);
    nb_status (*finish)(nb_sink *s, nb_err *err); /* checks that every byte was written */
    void (*close)(nb_sink *s);                    /* after finish or instead of it; removes nothing that the outdir owns */
} nb_sink_ops;
struct nb_sink {
    const nb_sink_ops *ops;
};

nb_status nb_sink_declare(nb_sink *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err);
nb_status nb_sink_begin(nb_sink *s, nb_err *err);
nb_status nb_sink_write(nb_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err);
nb_status nb_sink_finish(nb_sink *s, nb_err *err);
void nb_sink_close(nb_sink *s); /* NULL is fine */

/* A sink into memory; after finish, nb_memsink_store() gives a store over what was written (owned by the sink). */
nb_status nb_memsink_open(nb_sink **out, nb_err *err);
nb_store *nb_memsink_store(nb_sink *s);

#endif
