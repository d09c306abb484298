/* sink.c - dispatch of the write interface, and the sink into memory. */
#include "tensor/sink.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

nb_status nb_sink_declare(nb_sink *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err)
{
    return s->ops->declare(s, name, t, rank, shape, err);
}

nb_status nb_sink_begin(nb_sink *s, nb_err *err)
{
    return s->ops->begin(s, err);
}

nb_status nb_sink_write(nb_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err)
{
    return s->ops->write(s, name, off, p, n, err);
}

nb_status nb_sink_finish(nb_sink *s, nb_err *err)
{
    return s->ops->finish(s, err);
}

void nb_sink_close(nb_sink *s)
{
    if (s)
        s->ops->close(s);
}

typedef struct {
    nb_sink base;
    nb_store *store;        /* owns names and shapes; data points into `bytes` */
    unsigned char *bytes;   /* all tensors, each 16-byte aligned */
    _Atomic uint64_t *todo; /* [n_tensors] bytes not written yet */
    bool begun, finished;
} memsink;

static nb_status bad_order(nb_err *err, const char *what)
{
    return nb_fail(err, NB_EINTERNAL, "internal", "", "sink used out of order: %s", what);
}

static nb_status mem_declare(nb_sink *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err)
{
    memsink *m = (memsink *)s;

    return m->begun ? bad_order(err, "declare after begin") : nb_memstore_add(m->store, name, t, rank, shape, NULL, err);
}

static nb_status mem_begin(nb_sink *s, nb_err *err)
{
    memsink *m = (memsink *)s;
    const size_t n = m->store->n_tensors;
    uint64_t total = 0, off = 0;

    if (m->begun)
        return bad_order(err, "begin twice");
    for (size_t i = 0; i < n; i++)
        if (!nb_add_u64(total, m->store->tensors[i].n_bytes + 15, &total))
            return nb_enomem(err, "the output tensors");
    m->todo = nb_calloc(n ? n : 1, sizeof *m->todo);
    m->bytes = total < SIZE_MAX ? nb_alloc((size_t)total) : NULL;
    if (!m->todo || !m->bytes)
        return nb_enomem(err, "the output tensors");
    for (size_t i = 0; i < n; i++) {
        const nb_tensor *t = &m->store->tensors[i];
        atomic_init(&m->todo[i], t->n_bytes);
        nb_memstore_set(m->store, t->name, m->bytes + off, NULL);
        off += (t->n_bytes + 15) / 16 * 16;
    }
    m->begun = true;
    return NB_OK;
}

static nb_status mem_write(nb_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err)
{
    memsink *m = (memsink *)s;
    const nb_tensor *t = nb_store_find(m->store, name);
    uint64_t left;
    size_t i;

    if (!m->begun || m->finished)
        return bad_order(err, "write outside begin and finish");
    if (!t || off > t->n_bytes || n > t->n_bytes - off) {
        nb_fail(err, NB_EINTERNAL, "internal", "", t ? "bytes outside the declared tensor" : "tensor was not declared");
        nb_err_at(err, NULL, name);
        return NB_EINTERNAL;
    }
    i = (size_t)(t - m->store->tensors);
    left = atomic_load(&m->todo[i]);
    do {
        if (n > left) {
            nb_fail(err, NB_EINTERNAL, "internal", "", "bytes written twice");
            nb_err_at(err, NULL, name);
            return NB_EINTERNAL;
        }
    } while (!atomic_compare_exchange_weak(&m->todo[i], &left, left - n));
    if (n)
        memcpy(m->bytes + (t->data - m->bytes) + off, p, (size_t)n);
    return NB_OK;
}

static nb_status mem_finish(nb_sink *s, nb_err *err)
{
    memsink *m = (memsink *)s;

    if (!m->begun || m->finished)
        return bad_order(err, "finish");
    for (size_t i = 0; i < m->store->n_tensors; i++) {
        const uint64_t left = atomic_load(&m->todo[i]);
        if (left != 0) {
            nb_fail(err, NB_EINTERNAL, "internal", "", "%" PRIu64 " bytes were never written", left);
            nb_err_at(err, NULL, m->store->tensors[i].name);
            return NB_EINTERNAL;
        }
    }
    m->finished = true;
    return NB_OK;
}

static void mem_close(nb_sink *s)
{
    memsink *m = (memsink *)s;

    nb_store_close(m->store);
    nb_free(m->bytes);
    nb_free(m->todo);
    nb_free(m);
}

static const nb_sink_ops mem_ops = { mem_declare, mem_begin, mem_write, mem_finish, mem_close };

nb_status nb_memsink_open(nb_sink **out, nb_err *err)
{
    memsink *m = nb_calloc(1, sizeof *m);
    nb_status rc;

    *out = NULL;
    if (!m)
        return nb_enomem(err, "a sink in memory");
    m->base.ops = &mem_ops;
    rc = nb_memstore_open(&m->store, err);
    if (rc != NB_OK) {
        mem_close(&m->base);
        return rc;
    }
    *out = &m->base;
    return NB_OK;
}

nb_store *nb_memsink_store(nb_sink *s)
{
    return ((memsink *)s)->store;
}
