/* st_write.c - the safetensors sink: one file, or shards of bounded size with their index.
 *
 * Tensors fill shards in the declared order; inside a file they lie by element size, largest first, then by name
 * (ST-31), so that equal inputs give equal files and every tensor is aligned to its elements. The header starts at '{'
 * and is padded with spaces to a multiple of 8. Inside a staging directory a file is opened at its first byte and
 * committed (fsync, rename) at its last, so few are open at a time; a file on its own appears at finish. write() may be
 * called from many threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "base/u8.h"
#include "io/io.h"
#include "io/io_priv.h"

#define SHARD_BYTES 5000000000u /* what the hub's own tools take by default */

typedef struct out_tensor {
    const char *name;
    nb_dtype dtype;
    unsigned rank;
    const uint64_t *shape;
    uint64_t n_bytes, off; /* off: in the file, header included */
    size_t file;
    _Atomic uint64_t written;
} out_tensor;

typedef struct out_file {
    char *name;
    nb_out *out;
    uint64_t left;  /* bytes not yet written; guarded by lock */
    unsigned users; /* writers inside pwrite; guarded by lock */
    bool done;
    char *header;
    size_t header_bytes;
} out_file;

typedef struct st_sink {
    nb_sink base;
    nb_outdir *dir;   /* borrowed; NULL for one file */
    const char *path; /* of the one file             */
    bool force, begun, resume;
    nb_buf meta; /* further pairs of the metadata: ,"key":"value" */
    uint64_t shard_bytes, total;
    nb_arena arena;
    nb_strmap *map;
    out_tensor **tensors;
    size_t n, cap;
    out_file *files;
    size_t n_files;
    pthread_mutex_t lock;
} st_sink;

static nb_status st_sink_declare(nb_sink *base, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    const size_t len = strlen(name);
    out_tensor *o;
    uint64_t *dims, count;
    bool had;
    nb_status rc = NB_OK;

    if (s->begun)
        rc = nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a tensor was declared after the first byte");
    else if (len == 0 || len > NB_LIMIT_NAME || nb_u8_check(name, len) < len || strcmp(name, "__metadata__") == 0)
        rc = nb_fail(err, NB_EFORMAT, "st.name", "", "a safetensors file cannot hold a tensor of this name");
    else if (!nb_dtype_info(t)->st)
        rc = nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "safetensors has no element type \"%s\"", nb_dtype_info(t)->name);
    else if (rank > NB_MAX_RANK)
        rc = nb_fail(err, NB_ELIMIT, "limit.rank", "", "%u dimensions, limit %d", rank, NB_MAX_RANK);
    else if (s->n == NB_LIMIT_MODEL_TENSORS)
        rc = nb_fail(err, NB_ELIMIT, "limit.tensors", "", "more than %d tensors", NB_LIMIT_MODEL_TENSORS);
    if (rc != NB_OK) {
        nb_err_at(err, NULL, name);
        return rc;
    }
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 256;
        out_tensor **more = nb_realloc(s->tensors, cap * sizeof(*more));
        if (!more)
            return nb_enomem(err, "tensor declarations");
        s->tensors = more;
        s->cap = cap;
    }
    o = nb_arena_calloc(&s->arena, 1, sizeof *o);
    dims = nb_arena_alloc(&s->arena, (rank ? rank : 1) * sizeof *dims);
    if (!o || !dims || !(o->name = nb_arena_strndup(&s->arena, name, len)))
        return nb_enomem(err, "tensor declarations");
    if (rank)
        memcpy(dims, shape, rank * sizeof *dims);
    o->dtype = t;
    o->rank = rank;
    o->shape = dims;
    if (!nb_shape_count(shape, rank, &count) || !nb_dtype_bytes(t, count, &o->n_bytes)) {
        nb_fail(err, NB_EFORMAT, "st.overflow", "", "the shape does not give a whole number of bytes that 64 bits can count");
        nb_err_at(err, NULL, name);
        return NB_EFORMAT;
    }
    if (nb_strmap_put(s->map, name, len, s->n, &had) != NB_OK)
        return nb_enomem(err, "tensor declarations");
    if (had) {
        nb_fail(err, NB_EFORMAT, "st.duplicate_key", "", "a tensor of this name is already part of the output");
        nb_err_at(err, NULL, name);
        return NB_EFORMAT;
    }
    s->tensors[s->n++] = o;
    return NB_OK;
}

static void put_json_string(nb_buf *b, const char *s)
{
    nb_buf_putc(b, '"');
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            nb_buf_printf(b, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            nb_buf_printf(b, "\\u%04x", c);
        else
            nb_buf_putc(b, (char)c);
    }
    nb_buf_putc(b, '"');
}

/* ST-31. */
static int by_layout(const void *a, const void *b)
{
    const out_tensor *x = *(out_tensor *const *)a, *y = *(out_tensor *const *)b;
    const unsigned bx = nb_dtype_info(x->dtype)->bits, by = nb_dtype_info(y->dtype)->bits;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (bx != by)
        return bx > by ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Header of one file over t[0..n), which are in layout order; sets offsets. */
static nb_status lay_out(out_file *f, out_tensor **t, size_t n, const nb_buf *meta, nb_err *err)
{
    nb_buf b = { 0 };
    unsigned char len[8] = { 0 };
    uint64_t at = 0;

    nb_buf_put(&b, len, sizeof len);
    nb_buf_puts(&b, "{\"__metadata__\":{\"format\":\"pt\"");
    nb_buf_put(&b, meta->p, meta->n);
    nb_buf_putc(&b, '}');
    for (size_t i = 0; i < n; i++) {
        nb_buf_putc(&b, ',');
        put_json_string(&b, t[i]->name);
        nb_buf_printf(&b, ":{\"dtype\":\"%s\",\"shape\":[", nb_dtype_info(t[i]->dtype)->st);
        for (unsigned k = 0; k < t[i]->rank; k++)
            nb_buf_printf(&b, "%s%llu", k ? "," : "", (unsigned long long)t[i]->shape[k]);
        nb_buf_printf(&b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + t[i]->n_bytes));
        t[i]->off = at;
        at += t[i]->n_bytes;
    }
    nb_buf_putc(&b, '}');
    while (b.n % 8 != 0 && !b.failed)
        nb_buf_putc(&b, ' ');
    if (b.failed) {
        nb_buf_clear(&b);
        return nb_enomem(err, "a header");
    }
    if (b.n - 8 > NB_LIMIT_ST_HEADER) {
        nb_fail(err, NB_ELIMIT, "st.header_too_large", "", "the header would have %zu bytes, limit %d; use smaller shards", b.n - 8,
                NB_LIMIT_ST_HEADER);
        nb_buf_clear(&b);
        return NB_ELIMIT;
    }
    nb_put_le64(b.p, b.n - 8);
    for (size_t i = 0; i < n; i++)
        t[i]->off += b.n;
    f->header = b.p;
    f->header_bytes = b.n;
    f->left = at;
    return NB_OK;
}

static nb_status write_index(st_sink *s, nb_err *err)
{
    nb_buf b = { 0 };
    nb_status rc;

    nb_buf_printf(&b, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)s->total);
    for (size_t i = 0; i < s->n; i++) {
        nb_buf_puts(&b, i ? ",\n    " : "\n    ");
        put_json_string(&b, s->tensors[i]->name);
        nb_buf_printf(&b, ": \"%s\"", s->files[s->tensors[i]->file].name);
    }
    nb_buf_puts(&b, "\n  }\n}\n");
    rc = b.failed ? nb_enomem(err, "the index") : nb_outdir_put(s->dir, "model.safetensors.index.json", b.p, b.n, err);
    nb_buf_clear(&b);
    return rc;
}

/* Spread the tensors over files in the declared order. Returns the number of files. */
static size_t assign_files(st_sink *s)
{
    uint64_t in_file = 0;
    size_t file = 0;

    for (size_t i = 0; i < s->n; i++) {
        out_tensor *o = s->tensors[i];
        if (s->dir && in_file > 0 && (o->n_bytes > s->shard_bytes || in_file > s->shard_bytes - o->n_bytes)) {
            file++;
            in_file = 0;
        }
        o->file = file;
        in_file += o->n_bytes;
        s->total += o->n_bytes;
    }
    return file + 1;
}

static nb_status open_file(st_sink *s, out_file *f, nb_err *err)
{
    char *path = s->dir ? nb_join(nb_outdir_path(s->dir), f->name) : nb_strdup(s->path);
    nb_status rc = path ? NB_OK : nb_enomem(err, "a path");

    if (rc == NB_OK)
        rc = s->resume ? nb_out_reopen(&f->out, path, err) : nb_out_open(&f->out, path, s->dir ? false : s->force, err);
    nb_free(path);
    if (rc == NB_OK)
        rc = nb_out_reserve(f->out, f->header_bytes + f->left, err); /* nothing is written yet */
    if (rc == NB_OK)
        rc = nb_out_pwrite(f->out, 0, f->header, f->header_bytes, err);
    if (!s->resume) { /* else it is compared in the end */
        nb_free(f->header);
        f->header = NULL;
    }
    return rc;
}

static nb_status commit_file(out_file *f, nb_err *err)
{
    nb_out *o = f->out;

    f->out = NULL;
    f->done = true;
    return nb_out_commit(o, err);
}

/* Hardening DU-07. */
static nb_status has_room(const st_sink *s, nb_err *err)
{
    uint64_t n = 0;

    for (size_t i = 0; i < s->n_files; i++)
        n += s->files[i].header_bytes + s->files[i].left;
    return nb_out_room(s->dir ? nb_outdir_path(s->dir) : s->path, n, err);
}

static nb_status st_sink_begin(nb_sink *base, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    out_tensor **sorted = NULL;
    nb_status rc = NB_OK;

    s->begun = true;
    s->n_files = assign_files(s);
    if (s->n_files > 99999)
        return nb_fail(err, NB_ELIMIT, "limit.shards", "", "%zu shards; use larger ones", s->n_files);
    s->files = nb_calloc(s->n_files, sizeof *s->files);
    sorted = nb_alloc_array(s->n ? s->n : 1, sizeof(*sorted));
    if (!s->files || !sorted) {
        nb_free(sorted);
        return nb_enomem(err, "output files");
    }
    if (s->n) {
        memcpy(sorted, s->tensors, s->n * sizeof(*sorted));
        qsort(sorted, s->n, sizeof(*sorted), by_layout);
    }
    for (size_t i = 0, at = 0; i < s->n_files && rc == NB_OK; i++) {
        size_t end = at;
        while (end < s->n && sorted[end]->file == i)
            end++;
        s->files[i].name = s->n_files == 1 ? nb_arena_strdup(&s->arena, "model.safetensors")
                                           : nb_arena_printf(&s->arena, "model-%05zu-of-%05zu.safetensors", i + 1, s->n_files);
        rc = s->files[i].name ? lay_out(&s->files[i], sorted + at, end - at, &s->meta, err) : nb_enomem(err, "file names");
        at = end;
    }
    nb_free(sorted);
    if (rc == NB_OK && !s->resume) /* a job that is resumed has a part of it already */
        rc = has_room(s, err);
    for (size_t i = 0; i < s->n_files && rc == NB_OK; i++) {
        if (s->files[i].left == 0 || !s->dir) /* nothing to wait for, or a name to claim early */
            rc = open_file(s, &s->files[i], err);
        if (rc == NB_OK && s->files[i].left == 0 && s->dir)
            rc = commit_file(&s->files[i], err);
    }
    if (rc == NB_OK && s->dir && s->n_files > 1)
        rc = write_index(s, err);
    return rc;
}

static nb_status st_sink_write(nb_sink *base, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    out_tensor *o;
    out_file *f;
    uint64_t at;
    nb_status rc = NB_OK;

    if (!s->begun || !nb_strmap_get(s->map, name, strlen(name), &at))
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a write to a tensor that was not declared");
    o = s->tensors[at];
    f = &s->files[o->file];
    if (off > o->n_bytes || n > o->n_bytes - off || (size_t)n != n)
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a write past the end of a tensor");
    if (n == 0)
        return NB_OK;

    pthread_mutex_lock(&s->lock);
    if (f->done || f->left < n)
        rc = nb_fail(err, NB_EINTERNAL, "internal.sink", "", "more bytes written than the file holds");
    else if (!f->out)
        rc = open_file(s, f, err);
    if (rc == NB_OK) {
        f->users++;
        f->left -= n;
    }
    pthread_mutex_unlock(&s->lock);
    if (rc != NB_OK)
        return rc;

    rc = nb_out_pwrite(f->out, o->off + off, p, (size_t)n, err);
    atomic_fetch_add_explicit(&o->written, n, memory_order_relaxed);

    pthread_mutex_lock(&s->lock);
    f->users--;
    if (rc == NB_OK && f->users == 0 && f->left == 0 && s->dir && !s->resume)
        rc = commit_file(f, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* The header that is in the file is the one that was written (hardening DU-16). */
static nb_status same_header(out_file *f, nb_err *err)
{
    char *got = nb_alloc(f->header_bytes);
    nb_status rc = got ? nb_out_pread(f->out, 0, got, f->header_bytes, err) : nb_enomem(err, "a header");

    if (rc == NB_OK && memcmp(got, f->header, f->header_bytes) != 0) {
        rc = nb_fail(err, NB_EVERIFY, "out.verify", "", "read back, the header is not what was written; the disk or the memory is faulty");
        nb_err_at(err, f->name, NULL);
    }
    nb_free(got);
    return rc;
}

static nb_status st_sink_finish(nb_sink *base, nb_err *err)
{
    st_sink *s = (st_sink *)base;

    for (size_t i = 0; i < s->n; i++) {
        const uint64_t got = atomic_load(&s->tensors[i]->written);
        if (got != s->tensors[i]->n_bytes) {
            nb_fail(err, NB_EINTERNAL, "internal.sink", "", "%llu of %llu bytes were written", (unsigned long long)got,
                    (unsigned long long)s->tensors[i]->n_bytes);
            nb_err_at(err, NULL, s->tensors[i]->name);
            return NB_EINTERNAL;
        }
    }
    for (size_t i = 0; i < s->n_files; i++) {
        if (!s->dir && s->files[i].out)
            return commit_file(&s->files[i], err);
        if (s->resume && !s->files[i].done) { /* all bytes are there: none is missing above */
            nb_status rc = s->files[i].out ? NB_OK : open_file(s, &s->files[i], err);
            if (rc == NB_OK)
                rc = same_header(&s->files[i], err);
            if (rc == NB_OK)
                rc = commit_file(&s->files[i], err);
            if (rc != NB_OK)
                return rc;
        }
        if (!s->files[i].done)
            return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "%s is not complete", s->files[i].name);
    }
    return NB_OK;
}

static void st_sink_close(nb_sink *base)
{
    st_sink *s = (st_sink *)base;

    for (size_t i = 0; s->files && i < s->n_files; i++) {
        if (s->resume)
            nb_out_keep(s->files[i].out);
        else
            nb_out_abort(s->files[i].out);
        nb_free(s->files[i].header);
    }
    nb_free(s->files);
    nb_free(s->tensors);
    nb_strmap_free(s->map);
    nb_arena_clear(&s->arena);
    nb_buf_clear(&s->meta);
    pthread_mutex_destroy(&s->lock);
    nb_free(s);
}

static const nb_sink_ops st_sink_ops = {
    .declare = st_sink_declare, .begin = st_sink_begin, .write = st_sink_write, .finish = st_sink_finish, .close = st_sink_close
};

static st_sink *new_sink(nb_err *err)
{
    st_sink *s = nb_calloc(1, sizeof *s);

    if (s) {
        s->base.ops = &st_sink_ops;
        s->map = nb_strmap_new(256);
        if (s->map && pthread_mutex_init(&s->lock, NULL) == 0)
            return s;
        nb_strmap_free(s->map);
        nb_free(s);
    }
    nb_enomem(err, "the output");
    return NULL;
}

nb_status nb_st_sink_open(nb_sink **out, nb_outdir *dir, uint64_t shard_bytes, nb_err *err)
{
    st_sink *s = new_sink(err);

    *out = NULL;
    if (!s)
        return NB_ENOMEM;
    s->dir = dir;
    s->shard_bytes = shard_bytes ? shard_bytes : SHARD_BYTES;
    *out = &s->base;
    return NB_OK;
}

nb_status nb_st_sink_file(nb_sink **out, const char *path, bool force, nb_err *err)
{
    st_sink *s = new_sink(err);

    *out = NULL;
    if (!s)
        return NB_ENOMEM;
    s->force = force;
    s->path = nb_arena_strdup(&s->arena, path);
    if (!s->path) {
        st_sink_close(&s->base);
        return nb_enomem(err, "a path");
    }
    *out = &s->base;
    return NB_OK;
}

/* ---- jobs that can be resumed ---- */

void nb_st_sink_resume(nb_sink *base)
{
    ((st_sink *)base)->resume = true;
}

nb_status nb_st_sink_meta(nb_sink *base, const char *key, const char *value, nb_err *err)
{
    st_sink *s = (st_sink *)base;

    nb_buf_putc(&s->meta, ',');
    put_json_string(&s->meta, key);
    nb_buf_putc(&s->meta, ':');
    put_json_string(&s->meta, value);
    return s->meta.failed ? nb_enomem(err, "metadata") : NB_OK;
}

static nb_status find(st_sink *s, const char *name, out_tensor **o, nb_err *err)
{
    uint64_t at;

    if (!s->begun || !nb_strmap_get(s->map, name, strlen(name), &at))
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a tensor that was not declared");
    *o = s->tensors[at];
    return NB_OK;
}

uint64_t nb_st_sink_size(const nb_sink *base, const char *name)
{
    const st_sink *s = (const st_sink *)base;
    uint64_t at;

    return nb_strmap_get(s->map, name, strlen(name), &at) ? s->tensors[at]->n_bytes : 0;
}

nb_status nb_st_sink_have(nb_sink *base, const char *name, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    out_tensor *o = NULL;
    const nb_status rc = find(s, name, &o, err);

    if (rc == NB_OK && atomic_load(&o->written) == 0) {
        atomic_store(&o->written, o->n_bytes);
        s->files[o->file].left -= o->n_bytes;
    }
    return rc;
}

nb_status nb_st_sink_read(nb_sink *base, const char *name, uint64_t off, void *p, uint64_t n, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    out_tensor *o = NULL;
    out_file *f;
    nb_status rc = find(s, name, &o, err);

    if (rc != NB_OK)
        return rc;
    f = &s->files[o->file];
    if (off > o->n_bytes || n > o->n_bytes - off || f->done)
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a read past the end of a tensor");
    pthread_mutex_lock(&s->lock);
    if (!f->out)
        rc = open_file(s, f, err);
    pthread_mutex_unlock(&s->lock);
    return rc == NB_OK ? nb_out_pread(f->out, o->off + off, p, (size_t)n, err) : rc;
}

nb_status nb_st_sink_sync(nb_sink *base, nb_err *err)
{
    st_sink *s = (st_sink *)base;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < s->n_files; i++)
        if (s->files[i].out)
            rc = nb_out_sync(s->files[i].out, err);
    return rc;
}
