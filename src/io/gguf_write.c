/* gguf_write.c - the sink of gguf_write.h.
 *
 *   "GGUF" | u32 3 | u64 tensors | u64 keys | key-values | tensor table | pad to 32 | tensors, each padded to 32
 *
 * The file is written under a temporary name and renamed at finish. Rows of q and k of the llama family go to their place
 * one by one: stored[2j] = row[j], stored[2j + 1] = row[d/2 + j] per head of d rows. */
#include "io/gguf_write.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "io/gguf_keys.h"
#include "io/io_priv.h"

enum { ALIGN = 32, MAX_NAME = 63 };
#define ROPE_FREQS "rope_freqs.weight"

typedef struct out_tensor {
    const char *gguf; /* name in the file */
    unsigned type, rank;
    uint64_t shape[2]; /* outermost first */
    uint64_t row_bytes, n_bytes, off;
    uint64_t heads; /* of interleaved rows, else 0 */
    _Atomic uint64_t written;
} out_tensor;

struct nb_gguf_sink {
    nb_gguf_keys keys;
    nb_arena arena;
    nb_strmap *map; /* Hugging Face name -> index */
    out_tensor **t;
    size_t n, cap;
    nb_out *out;
    bool begun;
};

static nb_status bad_tensor(nb_err *err, const char *name, nb_status code, const char *cls, const char *what)
{
    nb_fail(err, code, cls, "", "%s", what);
    nb_err_at(err, NULL, name);
    return code;
}

bool nb_gguf_sink_takes(const nb_gguf_sink *s, const char *name)
{
    char gguf[MAX_NAME + 1];
    nb_gguf_order order;
    return nb_gguf_name_of(s->keys.arch, name, gguf, sizeof gguf, &order);
}

/* Add a tensor under its GGUF name. */
static nb_status add(nb_gguf_sink *s, const char *name, const char *gguf, unsigned type, unsigned rank, const uint64_t *shape,
                     nb_gguf_order order, nb_err *err)
{
    const uint64_t k = rank ? shape[rank - 1] : 0, rows = rank == 2 ? shape[0] : 1;
    out_tensor *t;
    bool had;

    if (s->begun)
        return bad_tensor(err, name, NB_EINTERNAL, "internal.sink", "a tensor was declared after the first byte");
    if (rank < 1 || rank > 2 || (rank == 1 && type != NB_GGUF_F32))
        return bad_tensor(err, name, NB_EUNSUPPORTED, "gguf.ndims", "tensors are matrices, or vectors of F32");
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 256;
        out_tensor **more = nb_realloc(s->t, cap * sizeof(*more));
        if (!more)
            return nb_enomem(err, "tensor declarations");
        s->t = more;
        s->cap = cap;
    }
    t = nb_arena_calloc(&s->arena, 1, sizeof *t);
    if (!t || !(t->gguf = nb_arena_strdup(&s->arena, gguf)) || nb_strmap_put(s->map, name, strlen(name), s->n, &had) != NB_OK)
        return nb_enomem(err, "tensor declarations");
    if (had)
        return bad_tensor(err, name, NB_EFORMAT, "gguf.duplicate_tensor", "a tensor of this name is already part of the output");
    t->type = type;
    t->rank = rank;
    memcpy(t->shape, shape, rank * sizeof *shape);
    t->row_bytes = nb_gguf_row_bytes(type, k);
    if (t->row_bytes == 0 || !nb_mul_u64(t->row_bytes, rows, &t->n_bytes) || t->n_bytes > (uint64_t)1 << 60)
        return bad_tensor(err, name, NB_EUNSUPPORTED, "gguf.block", "the rows do not fill the blocks of this type, or are too large");
    if (order != NB_GGUF_PLAIN) {
        t->heads = (uint64_t)s->keys.heads[order];
        if (shape[0] % (2 * t->heads) != 0)
            return bad_tensor(err, name, NB_EFORMAT, "cfg.shape_mismatch", "the rows are not heads of an even size");
    }
    s->t[s->n++] = t;
    return NB_OK;
}

nb_status nb_gguf_sink_declare(nb_gguf_sink *s, const char *name, unsigned type, unsigned rank, const uint64_t *shape, nb_err *err)
{
    char gguf[MAX_NAME + 1];
    nb_gguf_order order;

    if (!nb_gguf_name_of(s->keys.arch, name, gguf, sizeof gguf, &order))
        return bad_tensor(err, name, NB_EUNSUPPORTED, "gguf.tensor", "this architecture has no such tensor in GGUF");
    return add(s, name, gguf, type, rank, shape, order, err);
}

/* general.file_type: what most bytes of the matrices are. Numbers of llama.cpp's llama_ftype. */
static uint32_t file_type(const nb_gguf_sink *s, bool *quantized)
{
    static const struct {
        unsigned type;
        uint32_t number;
    } rows[] = {
        { NB_GGUF_F32, 0 }, { NB_GGUF_F16, 1 }, { NB_GGUF_Q4_0, 2 }, { NB_GGUF_Q4_1, 3 }, { NB_GGUF_Q8_0, 7 }, { NB_GGUF_BF16, 32 }
    };
    uint64_t most = 0;
    uint32_t best = 0;

    *quantized = false;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < s->n; i++)
            sum += s->t[i]->rank == 2 && s->t[i]->type == rows[r].type && strncmp(s->t[i]->gguf, "blk.", 4) == 0 ? s->t[i]->n_bytes : 0;
        if (sum > most) {
            most = sum;
            best = rows[r].number;
        }
        *quantized = *quantized || (sum > 0 && (rows[r].number == 2 || rows[r].number == 3 || rows[r].number == 7));
    }
    return best;
}

static void put64(nb_buf *b, uint64_t v)
{
    unsigned char p[8];
    nb_put_le64(p, v);
    nb_buf_put(b, p, 8);
}

static void put32(nb_buf *b, uint32_t v)
{
    unsigned char p[4];
    nb_put_le32(p, v);
    nb_buf_put(b, p, 4);
}

static uint64_t padded(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

nb_status nb_gguf_sink_begin(nb_gguf_sink *s, nb_err *err)
{
    const uint64_t n_rope = s->keys.n_rope;
    static const unsigned char zeros[ALIGN];
    nb_buf b = { 0 };
    uint64_t at = 0, start;
    bool quantized;
    nb_status rc = s->keys.rope ? add(s, ROPE_FREQS, ROPE_FREQS, NB_GGUF_F32, 1, &n_rope, NB_GGUF_PLAIN, err) : NB_OK;

    if (rc != NB_OK)
        return rc;
    nb_gguf_keys_u32(&s->keys, "general.file_type", file_type(s, &quantized));
    if (quantized)
        nb_gguf_keys_u32(&s->keys, "general.quantization_version", 2);
    nb_buf_puts(&b, "GGUF");
    put32(&b, 3);
    put64(&b, s->n);
    put64(&b, s->keys.n);
    nb_buf_put(&b, s->keys.kv.p, s->keys.kv.n);
    for (size_t i = 0; i < s->n; i++) {
        out_tensor *t = s->t[i];
        put64(&b, strlen(t->gguf));
        nb_buf_puts(&b, t->gguf);
        put32(&b, t->rank);
        for (unsigned k = t->rank; k-- > 0;) /* innermost first */
            put64(&b, t->shape[k]);
        put32(&b, t->type);
        put64(&b, at);
        t->off = at;
        at = padded(at + t->n_bytes);
    }
    start = padded(b.n);
    while (b.n < start && !b.failed)
        nb_buf_putc(&b, '\0');
    if (b.failed || s->keys.kv.failed) {
        nb_buf_clear(&b);
        return nb_enomem(err, "the head of the file");
    }
    for (size_t i = 0; i < s->n; i++)
        s->t[i]->off += start;
    s->begun = true;
    rc = nb_out_pwrite(s->out, 0, b.p, b.n, err);
    for (size_t i = 0; i < s->n && rc == NB_OK; i++) { /* the padding behind each tensor */
        const uint64_t stop = s->t[i]->off + s->t[i]->n_bytes;
        if (padded(stop) > stop)
            rc = nb_out_pwrite(s->out, stop, zeros, (size_t)(padded(stop) - stop), err);
    }
    nb_buf_clear(&b);
    if (rc == NB_OK && s->keys.rope) {
        unsigned char *p = nb_alloc_array(s->keys.n_rope, 4);
        if (!p)
            return nb_enomem(err, "rotary factors");
        for (size_t i = 0; i < s->keys.n_rope; i++)
            nb_put_le32(p + 4 * i, nb_bits_from_f32(s->keys.rope[i]));
        rc = nb_gguf_sink_write(s, ROPE_FREQS, 0, p, 4 * s->keys.n_rope, err);
        nb_free(p);
    }
    return rc;
}

/* Where row r of an interleaved tensor is stored. */
static uint64_t stored_row(const out_tensor *t, uint64_t r)
{
    const uint64_t d = t->shape[0] / t->heads, j = r % d;
    return r - j + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1);
}

nb_status nb_gguf_sink_write(nb_gguf_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err)
{
    const unsigned char *from = p;
    out_tensor *t;
    uint64_t at;
    nb_status rc = NB_OK;

    if (!s->begun || !nb_strmap_get(s->map, name, strlen(name), &at))
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a write to a tensor that was not declared");
    t = s->t[at];
    if (off > t->n_bytes || n > t->n_bytes - off || (size_t)n != n)
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "a write past the end of a tensor");
    atomic_fetch_add_explicit(&t->written, n, memory_order_relaxed);
    if (t->heads == 0)
        return nb_out_pwrite(s->out, t->off + off, p, (size_t)n, err);
    while (n > 0 && rc == NB_OK) {
        const uint64_t width = t->rank == 2 ? t->row_bytes : 4, row = off / width, col = off % width;
        const uint64_t take = n < width - col ? n : width - col;
        rc = nb_out_pwrite(s->out, t->off + stored_row(t, row) * width + col, from, (size_t)take, err);
        from += take;
        off += take;
        n -= take;
    }
    return rc;
}

nb_status nb_gguf_sink_finish(nb_gguf_sink *s, nb_err *err)
{
    nb_out *o = s->out;

    for (size_t i = 0; i < s->n; i++) {
        if (atomic_load(&s->t[i]->written) != s->t[i]->n_bytes)
            return bad_tensor(err, s->t[i]->gguf, NB_EINTERNAL, "internal.sink", "not every byte of the tensor was written");
    }
    if (!s->begun)
        return nb_fail(err, NB_EINTERNAL, "internal.sink", "", "finished before it began");
    s->out = NULL;
    return nb_out_commit(o, err);
}

void nb_gguf_sink_close(nb_gguf_sink *s)
{
    if (!s)
        return;
    nb_out_abort(s->out);
    nb_gguf_keys_clear(&s->keys);
    nb_strmap_free(s->map);
    nb_free(s->t);
    nb_arena_clear(&s->arena);
    nb_free(s);
}

nb_status nb_gguf_sink_open(nb_gguf_sink **out, const char *path, bool force, nb_hfdir *dir, nb_err *err)
{
    nb_gguf_sink *s = nb_calloc(1, sizeof *s);
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "the output");
    s->map = nb_strmap_new(256);
    rc = s->map ? nb_gguf_keys_read(&s->keys, dir, err) : nb_enomem(err, "the output");
    if (rc == NB_OK)
        rc = nb_out_open(&s->out, path, force, err);
    if (rc == NB_OK)
        *out = s;
    else
        nb_gguf_sink_close(s);
    return rc;
}
