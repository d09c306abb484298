/* qout_check.c - what was written, read back. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/cpu.h"
#include "base/sha256.h"
#include "kern/kern.h"
#include "io/io.h"
#include "job/convert_priv.h"
#include "job/qout_priv.h"

/* ---- for the journal ---- */

nb_json *nb_qout_taken(nb_qout *o)
{
    nb_json *names = o->taken ? o->taken : nb_json_new_arr();
    const bool failed = o->failed;

    o->taken = NULL;
    o->failed = false;
    if (failed) {
        nb_json_free(names);
        return NULL;
    }
    return names;
}

nb_status nb_qout_sync(nb_qout *o, nb_err *err)
{
    return nb_st_sink_sync(o->sink, err);
}

static nb_status add_sum(nb_qout *o, const char *name, nb_sha256 *s, unsigned char *buf, size_t cap, nb_err *err)
{
    const uint64_t bytes = nb_st_sink_size(o->sink, name);
    nb_status rc = NB_OK;

    nb_sha256_add(s, name, strlen(name) + 1);
    for (uint64_t at = 0; rc == NB_OK && at < bytes; at += cap) {
        const size_t n = bytes - at < cap ? (size_t)(bytes - at) : cap;
        rc = nb_st_sink_read(o->sink, name, at, buf, n, err);
        if (rc == NB_OK)
            nb_sha256_add(s, buf, n);
    }
    return rc;
}

nb_status nb_qout_sum(nb_qout *o, const nb_json *names, char sum[65], nb_err *err)
{
    const size_t cap = (size_t)1 << 20;
    unsigned char *buf = nb_alloc(cap);
    uint8_t bin[32];
    nb_sha256 s;
    nb_status rc = buf ? NB_OK : nb_enomem(err, "a buffer");

    nb_sha256_init_by(&s, nb_kern_sha256(nb_cpu_features()));
    for (size_t i = 0; rc == NB_OK && i < nb_json_len(names); i++)
        rc = add_sum(o, nb_json_str(nb_json_at(names, i), ""), &s, buf, cap, err);
    nb_sha256_end(&s, bin);
    for (int i = 0; i < 32; i++)
        snprintf(sum + 2 * i, 3, "%02x", bin[i]);
    nb_free(buf);
    return rc;
}

nb_status nb_qout_have(nb_qout *o, const nb_json *names, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(names); i++)
        rc = nb_st_sink_have(o->sink, nb_json_str(nb_json_at(names, i), ""), err);
    return rc;
}

/* ---- the finished files ---- */

static nb_status differs(const nb_qout *o, const char *name, nb_err *err)
{
    nb_fail(err, NB_EVERIFY, "out.verify", "", "read back, it is not what was written; the disk or the memory is faulty");
    nb_err_at(err, nb_outdir_path(o->dir), name);
    return NB_EVERIFY;
}

/* Part of a tensor that was copied, from byte `at` on. */
static bool copied(const nb_tensor *from, const nb_tensor *to, uint64_t at)
{
    const uint64_t n = to->n_bytes - at < NB_QOUT_PIECE ? to->n_bytes - at : NB_QOUT_PIECE;

    return to->dtype == from->dtype && to->n_bytes == from->n_bytes && memcmp(to->data + at, from->data + at, (size_t)n) == 0;
}

/* The small files. */
static nb_status files(nb_qout *o, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(o->files); i++) {
        const char *name;
        const nb_json *print = nb_json_member(o->files, i, &name);
        nb_buf path = { 0 };
        char *text = NULL;
        size_t n;

        nb_buf_printf(&path, "%s/%s", nb_outdir_path(o->dir), name);
        rc = path.failed ? nb_enomem(err, "a path") : nb_read_file(path.p, SIZE_MAX, &text, &n, err);
        if (rc == NB_OK && (int64_t)nb_print_bytes(text, n, 0) != nb_json_int(print, 0))
            rc = differs(o, name, err);
        nb_free(text);
        nb_buf_clear(&path);
    }
    return rc;
}

/* Both sides of every tensor that stayed, in pieces; and the print of those that were made, each by one thread. */
struct back_ctx {
    const nb_qout *o;
    nb_store *s;
    bool *bad;    /* [tensors of s] */
    size_t first; /* of the tensors at work */
};

static void back_tensors(void *user, size_t begin, size_t end, int thread)
{
    const struct back_ctx *c = user;

    (void)thread;
    for (size_t i = c->first + begin; i < c->first + end; i++) {
        const nb_tensor *t = &c->s->tensors[i];
        uint64_t print;

        if (!nb_strmap_get(c->o->prints, t->name, t->name_len, &print))
            continue;
        c->bad[i] = nb_print_bytes(t->data, t->n_bytes, 0) != print;
        nb_store_drop(c->s, t);
    }
}

struct piece_ctx {
    const nb_tensor *from, *to;
    bool *bad; /* [pieces] */
};

static void back_pieces(void *user, size_t begin, size_t end, int thread)
{
    const struct piece_ctx *c = user;

    (void)thread;
    for (size_t i = begin; i < end; i++)
        c->bad[i] = !copied(c->from, c->to, (uint64_t)i * NB_QOUT_PIECE);
}

static nb_status back_copies(struct back_ctx *c, nb_err *err)
{
    for (size_t i = 0; i < c->s->n_tensors; i++) {
        const nb_tensor *t = &c->s->tensors[i], *from = nb_store_find(c->o->src->store, t->name);
        const size_t n = (size_t)((t->n_bytes + NB_QOUT_PIECE - 1) / NB_QOUT_PIECE);
        struct piece_ctx p = { .from = from, .to = t };

        if (!from || nb_strmap_get(c->o->prints, t->name, t->name_len, NULL) ||
            nb_strmap_get(c->o->replaced, from->name, from->name_len, NULL))
            continue;
        if (!(p.bad = nb_calloc(n + 1, sizeof *p.bad)))
            return nb_enomem(err, "the comparison");
        nb_parallel_for(c->o->pool, n, 1, back_pieces, &p);
        c->bad[i] = t->n_bytes != from->n_bytes || t->dtype != from->dtype;
        for (size_t x = 0; x < n; x++)
            c->bad[i] = c->bad[i] || p.bad[x];
        nb_free(p.bad);
        nb_store_drop(c->s, t);
    }
    return NB_OK;
}

/* Every tensor that should have been copied is there. */
static nb_status all_there(const nb_qout *o, const nb_store *s, nb_err *err)
{
    for (size_t i = 0; i < o->src->store->n_tensors; i++) {
        const nb_tensor *t = &o->src->store->tensors[i];
        if (!nb_strmap_get(o->replaced, t->name, t->name_len, NULL) && !nb_store_find(s, t->name))
            return differs(o, t->name, err);
    }
    return NB_OK;
}

nb_status nb_qout_read_back(nb_qout *o, nb_err *err)
{
    enum { AT_ONCE = 64 };
    struct back_ctx c = { .o = o };
    nb_status rc = files(o, err);

    if (rc == NB_OK)
        rc = nb_open(nb_outdir_path(o->dir), &c.s, err);
    if (rc == NB_OK)
        rc = all_there(o, c.s, err);
    if (rc == NB_OK && !(c.bad = nb_calloc(c.s->n_tensors ? c.s->n_tensors : 1, sizeof *c.bad)))
        rc = nb_enomem(err, "the comparison");
    for (; rc == NB_OK && c.first < c.s->n_tensors; c.first += AT_ONCE) {
        const size_t n = c.s->n_tensors - c.first < AT_ONCE ? c.s->n_tensors - c.first : AT_ONCE;
        if (nb_cancelled(o->host))
            rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
        else
            nb_parallel_for(o->pool, n, 1, back_tensors, &c);
    }
    if (rc == NB_OK)
        rc = back_copies(&c, err);
    for (size_t i = 0; rc == NB_OK && i < c.s->n_tensors; i++)
        if (c.bad[i])
            rc = differs(o, c.s->tensors[i].name, err);
    nb_free(c.bad);
    nb_store_close(c.s);
    return rc;
}
