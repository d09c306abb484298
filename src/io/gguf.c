/* gguf.c - one GGUF file (version 2 or 3, little-endian) as a store: key-values, tensor table, values widened to f32.
 *
 *   "GGUF" u32 version | u64 tensors | u64 keys | keys: string, u32 type, value | tensors: string, u32 n_dims,
 *   u64 dims[] innermost first, u32 type, u64 offset | padding to the alignment | data, each tensor padded
 *
 * Strings are u64 length and bytes. Every length is checked against the bytes that remain before it is used. Tensors of
 * block types have dtype F32 and no plain bytes. Rules GG of hardening 5.11. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/u8.h"
#include "io/gguf_blocks.h"
#include "io/io.h"
#include "io/io_priv.h"

enum {
    MAX_KEYS = 65536,
    MAX_KEY_BYTES = 65535,
    MAX_NAME = 64,
    MAX_STRING = 64 << 20,
    MAX_ARRAY = 16 << 20,
    MAX_DIMS = 4,
    DEEP_ARRAY = 65536
};

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STR, T_ARR, T_U64, T_I64, T_F64, T_COUNT };

static const struct {
    const char *name;
    unsigned bytes;
} kinds[T_COUNT] = { { "u8", 1 },   { "i8", 1 },     { "u16", 2 },   { "i16", 2 }, { "u32", 4 }, { "i32", 4 }, { "f32", 4 },
                     { "bool", 1 }, { "string", 8 }, { "array", 0 }, { "u64", 8 }, { "i64", 8 }, { "f64", 8 } };

typedef struct gguf_store {
    nb_store base;
    nb_map map;
    nb_stamp stamp;
    nb_arena arena;
    nb_json *meta;
    nb_report *notes;
    const unsigned char **data; /* [n_tensors] first stored byte */
    const char *file;
} gguf_store;

/* Reading position; every get() has been checked by need(). */
typedef struct cursor {
    const unsigned char *p;
    uint64_t at, size;
} cursor;

static nb_status need(const cursor *c, uint64_t n, nb_err *err)
{
    if (n <= c->size - c->at)
        return NB_OK;
    return nb_fail(err, NB_EFORMAT, "gguf.truncated", "", "the file ends at byte %llu inside its header (%llu more needed)",
                   (unsigned long long)c->size, (unsigned long long)(n - (c->size - c->at)));
}

static uint32_t get32(cursor *c)
{
    c->at += 4;
    return nb_le32(c->p + c->at - 4);
}

static uint64_t get64(cursor *c)
{
    c->at += 8;
    return nb_le64(c->p + c->at - 8);
}

/* A string: *s points into the file. */
static nb_status get_string(cursor *c, const char **s, uint64_t *n, nb_err *err)
{
    const uint64_t at = c->at;
    nb_status rc = need(c, 8, err);

    if (rc != NB_OK)
        return rc;
    *n = get64(c);
    if (*n > c->size - c->at)
        return nb_fail(err, NB_EFORMAT, "gguf.string", "", "string at byte %llu claims %llu bytes, the file has %llu left",
                       (unsigned long long)at, (unsigned long long)*n, (unsigned long long)(c->size - c->at));
    if (*n > MAX_STRING)
        return nb_fail(err, NB_ELIMIT, "limit.gguf_string", "", "string of %llu bytes, limit %d", (unsigned long long)*n, MAX_STRING);
    *s = (const char *)c->p + c->at;
    c->at += *n;
    return NB_OK;
}

/* Text for the JSON tree; bytes that are not UTF-8 become U+FFFD (GG-27). */
static nb_json *text_value(const char *s, size_t n)
{
    nb_buf b = { 0 };
    nb_json *v;
    size_t bad = nb_u8_check(s, n);

    if (bad == n)
        return nb_json_new_strn(s, n);
    while (n > 0) {
        nb_buf_put(&b, s, bad);
        if (bad < n) {
            nb_buf_puts(&b, "\xEF\xBF\xBD");
            bad++;
        }
        s += bad;
        n -= bad;
        bad = nb_u8_check(s, n);
    }
    v = b.failed ? NULL : nb_json_new_strn(b.p, b.n);
    nb_buf_clear(&b);
    return v;
}

static nb_status get_value(cursor *c, unsigned kind, nb_json **out, nb_err *err);

static nb_status get_array(cursor *c, nb_json **out, nb_err *err)
{
    uint64_t n;
    uint32_t kind;
    nb_status rc = need(c, 12, err);

    if (rc != NB_OK)
        return rc;
    kind = get32(c);
    n = get64(c);
    if (kind >= T_COUNT)
        return nb_fail(err, NB_EFORMAT, "gguf.type", "", "array of unknown value type %u", kind);
    if (kind == T_ARR)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.nested_array", "", "an array of arrays");
    if (n > (c->size - c->at) / kinds[kind].bytes)
        return nb_fail(err, NB_EFORMAT, "gguf.array", "", "array claims %llu elements of type %s, the file has %llu bytes left",
                       (unsigned long long)n, kinds[kind].name, (unsigned long long)(c->size - c->at));
    if (n > MAX_ARRAY)
        return nb_fail(err, NB_ELIMIT, "limit.gguf_array", "", "array of %llu elements, limit %d", (unsigned long long)n, MAX_ARRAY);
    if (kinds[kind].bytes < 4 && n > DEEP_ARRAY) { /* nothing we use; as JSON it would be forty times its size */
        *out = nb_json_new_obj();
        if (!nb_json_set(*out, "array", nb_json_new_str(kinds[kind].name)) || !nb_json_set(*out, "length", nb_json_new_int((int64_t)n)))
            return nb_enomem(err, "key-values");
        c->at += n * kinds[kind].bytes;
        return NB_OK;
    }
    *out = nb_json_new_arr();
    if (!*out)
        return nb_enomem(err, "key-values");
    for (uint64_t i = 0; i < n && rc == NB_OK; i++) {
        nb_json *v = NULL;
        rc = get_value(c, kind, &v, err);
        if (rc == NB_OK && !nb_json_push(*out, v))
            rc = nb_enomem(err, "key-values");
    }
    return rc;
}

/* One value. On failure *out may hold a partial one, which the caller frees. */
static nb_status get_value(cursor *c, unsigned kind, nb_json **out, nb_err *err)
{
    const unsigned char *p = c->p + c->at;
    const char *s;
    uint64_t n;
    nb_status rc;

    if (kind >= T_COUNT)
        return nb_fail(err, NB_EFORMAT, "gguf.type", "", "unknown value type %u", kind);
    if (kind == T_ARR)
        return get_array(c, out, err);
    if (kind == T_STR) {
        rc = get_string(c, &s, &n, err);
        if (rc != NB_OK)
            return rc;
        *out = text_value(s, (size_t)n);
        return *out ? NB_OK : nb_enomem(err, "key-values");
    }
    rc = need(c, kinds[kind].bytes, err);
    if (rc != NB_OK)
        return rc;
    c->at += kinds[kind].bytes;
    switch (kind) {
    case T_U8:
        *out = nb_json_new_int(p[0]);
        break;
    case T_I8:
        *out = nb_json_new_int((int8_t)p[0]);
        break;
    case T_U16:
        *out = nb_json_new_int(nb_le16(p));
        break;
    case T_I16:
        *out = nb_json_new_int((int16_t)nb_le16(p));
        break;
    case T_U32:
        *out = nb_json_new_int(nb_le32(p));
        break;
    case T_I32:
        *out = nb_json_new_int((int32_t)nb_le32(p));
        break;
    case T_F32:
        *out = nb_json_new_real(nb_json_short(nb_f32_from_bits(nb_le32(p))));
        break;
    case T_BOOL:
        if (p[0] > 1)
            return nb_fail(err, NB_EFORMAT, "gguf.bool", "", "a true/false value is the byte %u", p[0]);
        *out = nb_json_new_bool(p[0] == 1);
        break;
    case T_U64:
        n = nb_le64(p);
        *out = n <= INT64_MAX ? nb_json_new_int((int64_t)n) : nb_json_new_real((double)n);
        break;
    case T_I64:
        *out = nb_json_new_int((int64_t)nb_le64(p));
        break;
    default: {
        double d;
        n = nb_le64(p);
        memcpy(&d, &n, 8);
        *out = nb_json_new_real(d);
        break;
    }
    }
    return *out ? NB_OK : nb_enomem(err, "key-values");
}

static nb_status read_keys(gguf_store *s, cursor *c, uint64_t n_keys, nb_err *err)
{
    nb_status rc = NB_OK;

    s->meta = nb_json_new_obj();
    s->base.meta = s->meta;
    if (!s->meta)
        return nb_enomem(err, "key-values");
    for (uint64_t i = 0; i < n_keys && rc == NB_OK; i++) {
        const char *p;
        char esc[NB_ESC_CAP], *key;
        uint64_t n;
        nb_json *v = NULL;
        bool plain;

        rc = get_string(c, &p, &n, err);
        if (rc != NB_OK)
            break;
        plain = n > 0 && n <= MAX_KEY_BYTES;
        for (uint64_t k = 0; plain && k < n; k++)
            plain = p[k] >= 0x20 && p[k] < 0x7F;
        if (!plain)
            return nb_fail(err, NB_EFORMAT, "gguf.key", "", "key %llu is not 1 to 65535 printable ASCII characters: \"%s\"",
                           (unsigned long long)i, nb_esc(esc, sizeof esc, p, (size_t)n));
        key = nb_strndup(p, (size_t)n);
        if (!key)
            return nb_enomem(err, "key-values");
        if (nb_json_get(s->meta, key))
            rc = nb_fail(err, NB_EFORMAT, "gguf.duplicate_key", "", "the key appears twice");
        if (rc == NB_OK)
            rc = need(c, 4, err);
        if (rc == NB_OK)
            rc = get_value(c, get32(c), &v, err);
        if (rc == NB_OK && !nb_json_set(s->meta, key, v))
            rc = nb_enomem(err, "key-values");
        else if (rc != NB_OK)
            nb_json_free(v);
        if (rc != NB_OK)
            nb_err_at(err, NULL, key);
        nb_free(key);
    }
    return rc;
}

static nb_status tensor_fail(nb_err *err, nb_status code, const char *cls, const char *name, const char *what)
{
    nb_fail(err, code, cls, "", "%s", what);
    nb_err_at(err, NULL, name);
    return code;
}

/* One row of the tensor table; stored: its bytes in the file, offset: as the file says. */
static nb_status read_tensor(gguf_store *s, cursor *c, nb_tensor *t, uint64_t *stored, uint64_t *offset, nb_err *err)
{
    const nb_gguf_type *type;
    const char *name = NULL;
    char *own;
    uint64_t n = 0, dims[MAX_DIMS], count = 1, all = 1, *shape;
    uint32_t rank;
    bool fits = true;
    nb_status rc = get_string(c, &name, &n, err);

    if (rc != NB_OK)
        return rc;
    if (n == 0 || n > MAX_NAME || memchr(name, 0, (size_t)n)) {
        char esc[NB_ESC_CAP];
        return nb_fail(err, NB_EFORMAT, "gguf.tensor_name", "", "tensor name \"%s\" is not 1 to %d bytes without NUL",
                       nb_esc(esc, sizeof esc, name, (size_t)n), MAX_NAME);
    }
    own = nb_arena_strndup(&s->arena, name, (size_t)n);
    rc = own ? need(c, 4, err) : nb_enomem(err, "tensor names");
    if (rc != NB_OK)
        return rc;
    rank = get32(c);
    if (rank > MAX_DIMS)
        return tensor_fail(err, NB_EFORMAT, "gguf.ndims", own, "more than 4 dimensions");
    rc = need(c, 8 * (uint64_t)rank + 12, err);
    if (rc != NB_OK)
        return rc;
    shape = nb_arena_alloc(&s->arena, (rank ? rank : 1) * sizeof *shape);
    if (!shape)
        return nb_enomem(err, "tensor shapes");
    for (uint32_t i = 0; i < rank; i++) {
        dims[i] = get64(c);
        shape[rank - 1 - i] = dims[i]; /* the file counts from the innermost */
        fits = fits && dims[i] <= INT64_MAX && (dims[i] == 0 || nb_mul_u64(all, dims[i], &all));
        count *= dims[i];
    }
    t->file_type = get32(c);
    *offset = get64(c);
    type = nb_gguf_type_at(t->file_type);
    if (!type->name) {
        nb_fail(err, NB_EUNSUPPORTED, "gguf.tensor_type", "", "element type %u is unknown or withdrawn", t->file_type);
        nb_err_at(err, NULL, own);
        return NB_EUNSUPPORTED;
    }
    if (!fits || all > INT64_MAX / 16 || !nb_mul_u64(count / type->block, type->bytes, stored))
        return tensor_fail(err, NB_EFORMAT, "gguf.overflow", own, "the dimensions give more bytes than 64 bits can count");
    if ((rank > 0 ? dims[0] : 1) % type->block != 0) {
        nb_fail(err, NB_EFORMAT, "gguf.block", "", "rows of %llu values are not whole blocks of %u (%s)",
                (unsigned long long)(rank > 0 ? dims[0] : 1), type->block, type->name);
        nb_err_at(err, NULL, own);
        return NB_EFORMAT;
    }
    t->name = own;
    t->name_len = (size_t)n;
    t->rank = rank;
    t->shape = shape;
    t->file = s->file;
    t->dtype = type->plain != NB_DT_NONE ? type->plain : NB_DT_F32;
    t->n_bytes = type->plain != NB_DT_NONE ? *stored : count * 4;
    return NB_OK;
}

static uint64_t pad(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1); /* n is far below 2^63 */
}

static nb_status alignment(const gguf_store *s, uint64_t *align, nb_err *err)
{
    const nb_json *v = nb_json_get(s->meta, "general.alignment");
    const int64_t a = v ? nb_json_int(v, -1) : 32;

    if ((v && nb_json_typeof(v) != NB_JINT) || a < 8 || a > 65536 || (a & (a - 1)) != 0)
        return nb_fail(err, NB_EFORMAT, "gguf.alignment", "", "general.alignment %lld is not a power of two from 8 to 65536", (long long)a);
    *align = (uint64_t)a;
    return NB_OK;
}

/* The table, then the places: each offset must be the padded sum of the sizes before it, all of it inside the file. */
static nb_status read_table(gguf_store *s, cursor *c, uint64_t n, nb_err *err)
{
    nb_tensor *t = nb_arena_calloc(&s->arena, (size_t)(n ? n : 1), sizeof *t);
    uint64_t *stored = nb_alloc_array((size_t)(n ? n : 1), 2 * sizeof *stored), *offset = stored ? stored + n : NULL;
    uint64_t align = 32, start, at = 0;
    nb_status rc = NB_OK;

    s->data = nb_arena_calloc(&s->arena, (size_t)(n ? n : 1), sizeof *s->data);
    if (!t || !stored || !s->data)
        rc = nb_enomem(err, "the tensor table");
    for (uint64_t i = 0; i < n && rc == NB_OK; i++)
        rc = read_tensor(s, c, &t[i], &stored[i], &offset[i], err);
    if (rc == NB_OK)
        rc = alignment(s, &align, err);
    start = pad(c->at, align);
    for (uint64_t i = 0; i < n && rc == NB_OK; i++) { /* all sums before any of them is compared with the file */
        if (offset[i] != at) {
            nb_fail(err, NB_EFORMAT, "gguf.offset", "", "offset %llu, expected %llu: tensors must follow each other, padded to %llu",
                    (unsigned long long)offset[i], (unsigned long long)at, (unsigned long long)align);
            nb_err_at(err, NULL, t[i].name);
            rc = NB_EFORMAT;
        } else if (stored[i] > (uint64_t)INT64_MAX / 4 - at) {
            rc = tensor_fail(err, NB_EFORMAT, "gguf.overflow", t[i].name, "the sizes add up to more bytes than 64 bits can count");
        } else {
            at = pad(at + stored[i], align);
            s->base.total_bytes += stored[i];
        }
    }
    for (uint64_t i = 0; i < n && rc == NB_OK; i++) {
        if (stored[i] > 0 && (start > c->size || offset[i] > c->size - start || stored[i] > c->size - start - offset[i])) {
            nb_fail(err, NB_EFORMAT, "gguf.truncated", "", "needs %llu bytes at %llu, the file ends at %llu; fetch the file again",
                    (unsigned long long)stored[i], (unsigned long long)(start + offset[i]), (unsigned long long)c->size);
            nb_err_at(err, NULL, t[i].name);
            rc = NB_EFORMAT;
            break;
        }
        s->data[i] = stored[i] ? c->p + start + offset[i] : c->p;
        t[i].data = nb_gguf_type_at(t[i].file_type)->plain != NB_DT_NONE ? s->data[i] : NULL;
        t[i].index = i;
    }
    nb_free(stored);
    s->base.tensors = t;
    s->base.n_tensors = (size_t)n;
    if (rc == NB_OK && n > 0 && c->size > start + at &&
        nb_report_add(s->notes, NB_SEV_WARN, "gguf.trailing", "", s->file, "", "", "%llu bytes after the last tensor are ignored",
                      (unsigned long long)(c->size - start - at)) != NB_OK)
        rc = nb_enomem(err, "notes");
    return rc;
}

static nb_status read_gguf(gguf_store *s, nb_err *err)
{
    cursor c = { .p = s->map.base, .size = s->map.size };
    uint64_t n_tensors, n_keys;
    uint32_t version;
    size_t dup = SIZE_MAX;
    nb_status rc = nb_lfs_check(s->map.base, s->map.size, err);

    if (rc != NB_OK)
        return rc;
    if (c.size >= 4 && memcmp(c.p, "FUGG", 4) == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.endian", "", "a big-endian GGUF file");
    if (c.size < 24 || memcmp(c.p, "GGUF", 4) != 0)
        return nb_fail(err, NB_EFORMAT, "gguf.magic", "", "not a GGUF file: %s",
                       c.size < 24 ? "shorter than its 24-byte head" : "wrong magic");
    c.at = 4;
    version = get32(&c);
    if (version == 0x02000000u || version == 0x03000000u)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.endian", "", "a big-endian GGUF file");
    if (version != 2 && version != 3)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.version", "", "GGUF version %u; versions 2 and 3 are read", version);
    n_tensors = get64(&c);
    n_keys = get64(&c);
    if (n_tensors > (c.size - c.at) / 24 || n_keys > (c.size - c.at) / 13)
        return nb_fail(err, NB_EFORMAT, "gguf.count", "", "%llu tensors and %llu keys do not fit into a file of %llu bytes",
                       (unsigned long long)n_tensors, (unsigned long long)n_keys, (unsigned long long)c.size);
    if (n_tensors > NB_LIMIT_TENSORS)
        return nb_fail(err, NB_ELIMIT, "limit.tensors", "", "%llu tensors, limit %d", (unsigned long long)n_tensors, NB_LIMIT_TENSORS);
    if (n_keys > MAX_KEYS)
        return nb_fail(err, NB_ELIMIT, "limit.gguf_keys", "", "%llu keys, limit %d", (unsigned long long)n_keys, MAX_KEYS);
    rc = read_keys(s, &c, n_keys, err);
    if (rc == NB_OK && nb_json_int(nb_json_get(s->meta, "split.count"), 1) > 1)
        rc = nb_fail(err, NB_EUNSUPPORTED, "gguf.split", "", "one part of a split GGUF; join the parts first (gguf-split --merge)");
    if (rc == NB_OK)
        rc = read_table(s, &c, n_tensors, err);
    if (rc == NB_OK) {
        rc = nb_store_index(&s->base, &dup, err);
        if (rc == NB_OK && dup != SIZE_MAX)
            return tensor_fail(err, NB_EFORMAT, "gguf.duplicate_tensor", s->base.tensors[dup].name, "the tensor appears twice");
    }
    return rc;
}

static void gguf_close(nb_store *base)
{
    gguf_store *s = (gguf_store *)base;

    nb_store_unindex(base);
    nb_map_close(&s->map);
    nb_json_free(s->meta);
    nb_report_free(s->notes);
    nb_arena_clear(&s->arena);
    nb_free(s);
}

static nb_status gguf_read(nb_store *base, const nb_tensor *t, uint64_t begin, uint64_t n, float *out, nb_err *err)
{
    const gguf_store *s = (const gguf_store *)base;
    const nb_gguf_type *type = nb_gguf_type_at(t->file_type);
    float block[NB_GGUF_MAX_BLOCK];

    if (type->plain != NB_DT_NONE) {
        const unsigned char *p = s->data[t->index] + begin * type->bytes;
        if (nb_to_f32(out, p, type->plain, (size_t)n))
            return NB_OK;
        nb_fail(err, NB_EUNSUPPORTED, "dtype", "", "%s values are not numbers of a weight", type->name);
        nb_err_at(err, t->file, t->name);
        return NB_EUNSUPPORTED;
    }
    if (!type->unpack) {
        nb_fail(err, NB_EUNSUPPORTED, "gguf.tensor_type", "", "block type %s is listed but not read", type->name);
        nb_err_at(err, t->file, t->name);
        return NB_EUNSUPPORTED;
    }
    while (n > 0) {
        const unsigned char *p = s->data[t->index] + begin / type->block * type->bytes;
        const size_t skip = (size_t)(begin % type->block);
        const size_t take = n < type->block - skip ? (size_t)n : type->block - skip;
        if (take == type->block) {
            type->unpack(out, p);
        } else {
            type->unpack(block, p);
            memcpy(out, block + skip, take * sizeof *out);
        }
        out += take;
        begin += take;
        n -= take;
    }
    return NB_OK;
}

static void gguf_drop(const nb_store *base, const nb_tensor *t)
{
    const gguf_store *s = (const gguf_store *)base;

    nb_map_drop(&s->map, (uint64_t)(s->data[t->index] - s->map.base), nb_gguf_stored_bytes(t));
}

static nb_status gguf_still(nb_store *base, nb_err *err)
{
    return nb_stamp_check(&((gguf_store *)base)->stamp, base->path, err);
}

static const nb_store_ops gguf_ops = { .close = gguf_close, .read_f32 = gguf_read, .drop = gguf_drop, .still = gguf_still };

const char *nb_gguf_type_name(unsigned file_type)
{
    const char *name = nb_gguf_type_at(file_type)->name;
    return name ? name : "?";
}

uint64_t nb_gguf_stored_bytes(const nb_tensor *t)
{
    const nb_gguf_type *type = nb_gguf_type_at(t->file_type);
    return type->plain != NB_DT_NONE ? t->n_bytes : t->n_bytes / 4 / type->block * type->bytes;
}

nb_status nb_gguf_open(const char *path, nb_store **out, nb_err *err)
{
    gguf_store *s = nb_calloc(1, sizeof *s);
    const char **files;
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "a GGUF file");
    s->base.ops = &gguf_ops;
    s->base.kind = "gguf";
    s->map.fd = -1;
    rc = nb_map_open(&s->map, path, err);
    if (rc == NB_OK)
        rc = nb_stamp_take(&s->stamp, &s->map, err);
    if (rc != NB_OK)
        goto done;
    files = nb_arena_alloc(&s->arena, sizeof *files);
    s->file = nb_arena_strdup(&s->arena, path);
    s->notes = nb_report_new();
    if (!files || !s->file || !s->notes) {
        rc = nb_enomem(err, "a GGUF file");
        goto done;
    }
    files[0] = s->file;
    s->base.path = s->file;
    s->base.files = files;
    s->base.n_files = 1;
    s->base.notes = s->notes;
    rc = read_gguf(s, err);
    if (rc != NB_OK)
        goto done;
    *out = &s->base;
    s = NULL;
done:
    nb_err_at(err, path, NULL);
    if (s)
        gguf_close(&s->base);
    return rc;
}
