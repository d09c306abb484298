/* safetensors.c - one .safetensors file as a store: header parser, every rule of the header, plain views.
 *
 *   u64 little-endian N | N bytes of JSON, padded with spaces | tensor bytes, no hole, no overlap, to the end of the file
 *
 * The JSON maps each name to {"dtype","shape","data_offsets":[begin,end]}, offsets counted from the end of the header;
 * "__metadata__" maps strings to strings. Rules ST of hardening 5.3, FIL-006 of the formats page. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "base/u8.h"
#include "io/io.h"
#include "io/io_priv.h"

#define MAX_HEADER NB_LIMIT_ST_HEADER
#define MAX_DIM    (((uint64_t)1 << 48) - 1)

typedef struct st_store {
    nb_store base;
    nb_map map;
    nb_arena arena;
    nb_stamp stamp;
    nb_json *meta;
    const char *file; /* files[0] */
} st_store;

/* A tensor while the header is read: sorted by place, then turned into views. */
typedef struct st_entry {
    nb_tensor t;
    uint64_t begin, end;
} st_entry;

static void st_close(nb_store *base)
{
    st_store *s = (st_store *)base;

    nb_store_unindex(base);
    nb_map_close(&s->map);
    nb_json_free(s->meta);
    nb_arena_clear(&s->arena);
    nb_free(s);
}

static void st_drop(const nb_store *base, const nb_tensor *t)
{
    const st_store *s = (const st_store *)base;

    if (t->n_bytes > 0)
        nb_map_drop(&s->map, (uint64_t)(t->data - s->map.base), t->n_bytes);
}

static nb_status st_still(nb_store *base, nb_err *err)
{
    return nb_stamp_check(&((st_store *)base)->stamp, base->path, err);
}

static const nb_store_ops st_ops = { .close = st_close, .drop = st_drop, .still = st_still };

/* A size: a JSON integer, or a real with an integral value that a double holds exactly. */
static bool size_of(const nb_json *v, uint64_t *out)
{
    const nb_json_type t = nb_json_typeof(v);

    if (t == NB_JINT && nb_json_int(v, -1) >= 0) {
        *out = (uint64_t)nb_json_int(v, -1);
        return true;
    }
    if (t == NB_JREAL) {
        const double d = nb_json_num(v, -1.0);
        if (!(d >= 0.0 && d <= 9007199254740992.0) || d != (double)(uint64_t)d)
            return false;
        *out = (uint64_t)d;
        return true;
    }
    return false;
}

static nb_status entry_fail(nb_err *err, const char *name, const char *field, const char *found)
{
    nb_fail(err, NB_EFORMAT, "st.tensor_entry", "FIL-006", "%s %s; expected dtype (text), shape (list), data_offsets (two sizes)", field,
            found);
    nb_err_at(err, NULL, name);
    return NB_EFORMAT;
}

static nb_status read_shape(st_store *s, const char *name, const nb_json *v, nb_tensor *t, nb_err *err)
{
    const size_t rank = nb_json_len(v);
    uint64_t *dims;

    if (rank > NB_MAX_RANK) {
        nb_fail(err, NB_ELIMIT, "limit.rank", "", "%zu dimensions, limit %d", rank, NB_MAX_RANK);
        nb_err_at(err, NULL, name);
        return NB_ELIMIT;
    }
    dims = nb_arena_alloc(&s->arena, (rank ? rank : 1) * sizeof *dims);
    if (!dims)
        return nb_enomem(err, "tensor shapes");
    for (size_t i = 0; i < rank; i++) {
        if (!size_of(nb_json_at(v, i), &dims[i]) || dims[i] > MAX_DIM) {
            nb_fail(err, NB_EFORMAT, "st.shape", "FIL-006", "dimension %zu is not a whole number in 0 .. 2^48 - 1", i);
            nb_err_at(err, NULL, name);
            return NB_EFORMAT;
        }
    }
    t->rank = (unsigned)rank;
    t->shape = dims;
    return NB_OK;
}

/* Bytes of the tensor from dtype and shape; the product counts even when a later dimension is 0. */
static nb_status entry_bytes(const nb_tensor *t, uint64_t *bytes, nb_err *err)
{
    const unsigned bits = nb_dtype_info(t->dtype)->bits;
    uint64_t n = 1, all = 1;
    bool fits = true;

    for (unsigned i = 0; i < t->rank; i++) {
        n *= t->shape[i]; /* right whenever `all` fits: it is `all`, or 0 */
        fits = fits && (t->shape[i] == 0 || nb_mul_u64(all, t->shape[i], &all));
    }
    fits = fits && nb_mul_u64(all, bits, &all) && all / 8 < (uint64_t)1 << 62;
    if (!fits) {
        nb_fail(err, NB_EFORMAT, "st.overflow", "FIL-006", "the shape has more elements than 64 bits can count");
        nb_err_at(err, NULL, t->name);
        return NB_EFORMAT;
    }
    if (n * bits % 8 != 0) {
        nb_fail(err, NB_EFORMAT, "st.misaligned", "FIL-006", "%llu elements of %u bits do not fill whole bytes", (unsigned long long)n,
                bits);
        nb_err_at(err, NULL, t->name);
        return NB_EFORMAT;
    }
    *bytes = n * bits / 8;
    return NB_OK;
}

static nb_status read_entry(st_store *s, const char *key, size_t len, const nb_json *v, st_entry *e, nb_err *err)
{
    const nb_json *dt = nb_json_get(v, "dtype"), *shape = nb_json_get(v, "shape"), *off = nb_json_get(v, "data_offsets");
    char esc[NB_ESC_CAP], dims[256];
    uint64_t want;
    nb_status rc;

    if (len == 0)
        return nb_fail(err, NB_EFORMAT, "st.name", "FIL-006", "a tensor has an empty name");
    if (len > NB_LIMIT_NAME) {
        nb_fail(err, NB_ELIMIT, "limit.name", "", "tensor name of %zu bytes, limit %d", len, NB_LIMIT_NAME);
        nb_err_at(err, NULL, key);
        return NB_ELIMIT;
    }
    if (nb_json_typeof(v) != NB_JOBJ)
        return entry_fail(err, key, "the entry", "is not an object");
    if (nb_json_typeof(dt) != NB_JSTR)
        return entry_fail(err, key, "dtype", dt ? "is not a text" : "is missing");
    if (nb_json_typeof(shape) != NB_JARR)
        return entry_fail(err, key, "shape", shape ? "is not a list" : "is missing");
    if (nb_json_typeof(off) != NB_JARR || nb_json_len(off) != 2 || !size_of(nb_json_at(off, 0), &e->begin) ||
        !size_of(nb_json_at(off, 1), &e->end))
        return entry_fail(err, key, "data_offsets", off ? "is not a list of two whole numbers" : "is missing");

    e->t.name = key;
    e->t.name_len = len;
    e->t.dtype = nb_dtype_from_st(nb_json_str(dt, ""), nb_json_str_len(dt));
    if (e->t.dtype == NB_DT_NONE) {
        nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "unknown dtype \"%s\"",
                nb_esc(esc, sizeof esc, nb_json_str(dt, ""), nb_json_str_len(dt)));
        nb_err_at(err, NULL, key);
        return NB_EUNSUPPORTED;
    }
    rc = read_shape(s, key, shape, &e->t, err);
    if (rc == NB_OK)
        rc = entry_bytes(&e->t, &want, err);
    if (rc != NB_OK)
        return rc;
    if (e->end < e->begin) {
        nb_fail(err, NB_EFORMAT, "st.offsets", "FIL-006", "data_offsets [%llu, %llu] run backwards", (unsigned long long)e->begin,
                (unsigned long long)e->end);
        nb_err_at(err, NULL, key);
        return NB_EFORMAT;
    }
    if (e->end - e->begin != want) {
        nb_fail(err, NB_EFORMAT, "st.tensor_size", "FIL-006", "needs %llu bytes (%s %s), data_offsets give %llu", (unsigned long long)want,
                nb_dtype_info(e->t.dtype)->st, nb_shape_str(dims, sizeof dims, e->t.shape, e->t.rank),
                (unsigned long long)(e->end - e->begin));
        nb_err_at(err, NULL, key);
        return NB_EFORMAT;
    }
    e->t.n_bytes = want;
    e->t.file = s->file;
    return NB_OK;
}

static int by_place(const void *a, const void *b)
{
    const st_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

/* The sorted ranges must tile [0, data_bytes): no hole, no overlap, nothing missing, nothing left over. */
static nb_status check_tiling(const st_entry *e, size_t n, uint64_t data_bytes, nb_err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < n; i++) {
        if (e[i].begin != at) {
            nb_fail(err, NB_EFORMAT, "st.offsets", "FIL-006", "starts at byte %llu, expected %llu: the file has %s",
                    (unsigned long long)e[i].begin, (unsigned long long)at,
                    e[i].begin < at ? "overlapping tensors" : "a hole between tensors");
            nb_err_at(err, NULL, e[i].t.name);
            return NB_EFORMAT;
        }
        at = e[i].end;
    }
    if (at > data_bytes) {
        size_t first = 0;
        while (e[first].end <= data_bytes)
            first++;
        nb_fail(err, NB_EFORMAT, "st.truncated", "FIL-006",
                "%llu bytes missing, first tensor affected \"%.200s\"; the download is probably incomplete, fetch the file again",
                (unsigned long long)(at - data_bytes), e[first].t.name);
        return NB_EFORMAT;
    }
    if (at < data_bytes)
        return nb_fail(err, NB_EFORMAT, "st.trailing_bytes", "FIL-006", "%llu bytes after the last tensor; nothing may follow it",
                       (unsigned long long)(data_bytes - at));
    return NB_OK;
}

/* One member of the header object: where its key and its value lie in the text. */
typedef struct st_member {
    size_t key, n_key, value, n_value; /* the key with its quotes */
} st_member;

static size_t blanks(const char *p, size_t n, size_t i)
{
    while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r'))
        i++;
    return i;
}

/* End of the string or value that starts at i: behind the closing quote, or at the comma or brace that ends the member.
 * Only brackets and quotes are looked at; the JSON reader judges the text between them. */
static size_t skip_string(const char *p, size_t n, size_t i)
{
    for (i++; i < n && p[i] != '"'; i++)
        i += p[i] == '\\'; /* what is escaped is no quote */
    return i < n ? i + 1 : n;
}

static size_t skip_value(const char *p, size_t n, size_t i)
{
    size_t depth = 0;

    while (i < n) {
        if (p[i] == '"') {
            i = skip_string(p, n, i);
            continue;
        }
        if (depth == 0 && (p[i] == ',' || p[i] == '}'))
            break;
        if (p[i] == '{' || p[i] == '[')
            depth++;
        else if (p[i] == '}' || p[i] == ']')
            depth--;
        i++;
    }
    return i;
}

static nb_status bad_header(nb_err *err, size_t at, const char *what)
{
    return nb_fail(err, NB_EFORMAT, "st.header_json", "FIL-006", "the header is not valid JSON at byte %zu: %s", at, what);
}

/* A piece of the header as a value. Pieces are read one by one: the whole tree of a 100 MB header would take 2 GB. */
static nb_status parse_piece(const char *p, size_t n, nb_json **out, nb_err *err)
{
    nb_err e = { 0 };
    nb_status rc = nb_json_parse(p, n, "st", 127, out, &e); /* one level is the header itself */

    if (rc == NB_OK)
        return NB_OK;
    if (rc == NB_EFORMAT)
        return nb_fail(err, rc, strcmp(e.cls, "st.duplicate_key") == 0 ? e.cls : "st.header_json", "FIL-006", "%s", e.what);
    return nb_fail(err, rc, e.cls, e.rule, "%s", e.what);
}

/* Step to the next member: *i is behind '{' or behind the last value. *more false at the closing brace. */
static nb_status next_member(const char *p, size_t n, size_t *i, bool first, st_member *m, bool *more, nb_err *err)
{
    size_t at = blanks(p, n, *i);

    *more = false;
    if (at < n && p[at] == '}') {
        at = blanks(p, n, at + 1);
        return at == n ? NB_OK : bad_header(err, at, "text after the closing brace");
    }
    if (!first) {
        if (at == n || p[at] != ',')
            return bad_header(err, at, "expected ',' or '}'");
        at = blanks(p, n, at + 1);
    }
    if (at == n || p[at] != '"')
        return bad_header(err, at, "expected a name in quotes");
    m->key = at;
    at = skip_string(p, n, at);
    m->n_key = at - m->key;
    at = blanks(p, n, at);
    if (at == n || p[at] != ':')
        return bad_header(err, at, "expected ':'");
    m->value = blanks(p, n, at + 1);
    *i = skip_value(p, n, m->value);
    m->n_value = *i - m->value;
    *more = true;
    if (*i == n) { /* no end in sight: the reader knows whether that is its depth limit or plain syntax */
        nb_json *v = NULL;
        const nb_status rc = parse_piece(p + m->value, m->n_value, &v, err);
        nb_json_free(v);
        return rc == NB_OK ? bad_header(err, n, "the closing brace is missing") : rc;
    }
    return NB_OK;
}

/* The name of a member, without quotes, in the arena. */
static nb_status read_name(st_store *s, const char *p, const st_member *m, const char **name, size_t *len, nb_err *err)
{
    nb_json *v = NULL;
    nb_status rc = NB_OK;

    if (m->n_key < 2 || memchr(p + m->key, '\\', m->n_key)) { /* escapes: let the JSON reader resolve them */
        rc = parse_piece(p + m->key, m->n_key, &v, err);
        if (rc == NB_OK && strlen(nb_json_str(v, "")) != nb_json_str_len(v))
            rc = nb_fail(err, NB_EFORMAT, "st.name", "FIL-006", "a tensor name holds a NUL character (header byte %zu)", m->key);
        *len = nb_json_str_len(v);
    } else {
        for (size_t i = 0; i < m->n_key; i++) {
            if ((unsigned char)p[m->key + i] < 0x20)
                return bad_header(err, m->key + i, "a control character in a name");
        }
        *len = m->n_key - 2;
    }
    if (rc == NB_OK) {
        *name = nb_arena_strndup(&s->arena, v ? nb_json_str(v, "") : p + m->key + 1, *len);
        if (!*name)
            rc = nb_enomem(err, "tensor names");
    }
    nb_json_free(v);
    return rc;
}

static nb_status check_meta(const nb_json *meta, nb_err *err)
{
    const char *key;

    if (nb_json_typeof(meta) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "st.metadata", "FIL-006", "__metadata__ is not an object of texts");
    for (size_t i = 0; i < nb_json_len(meta); i++) {
        if (nb_json_typeof(nb_json_member(meta, i, &key)) != NB_JSTR) {
            nb_fail(err, NB_EFORMAT, "st.metadata", "FIL-006", "a value of __metadata__ is not a text");
            nb_err_at(err, NULL, key);
            return NB_EFORMAT;
        }
    }
    return NB_OK;
}

/* Sort the entries, check that they tile the data, and hand them out as views. */
static nb_status make_views(st_store *s, st_entry *e, size_t n, const unsigned char *data, uint64_t data_bytes, nb_err *err)
{
    nb_tensor *views;
    nb_status rc;

    qsort(e, n, sizeof *e, by_place);
    rc = check_tiling(e, n, data_bytes, err);
    if (rc != NB_OK)
        return rc;
    views = nb_arena_calloc(&s->arena, n ? n : 1, sizeof *views);
    if (!views)
        return nb_enomem(err, "tensor views");
    for (size_t i = 0; i < n; i++) {
        views[i] = e[i].t;
        views[i].data = data + e[i].begin;
        views[i].index = i;
    }
    s->base.tensors = views;
    s->base.n_tensors = n;
    s->base.total_bytes = data_bytes;
    return NB_OK;
}

static nb_status read_member(st_store *s, const char *p, const st_member *m, nb_strmap *names, st_entry *e, size_t *n, nb_err *err)
{
    const char *name = NULL;
    nb_json *v = NULL;
    size_t len = 0;
    bool had = false;
    nb_status rc = read_name(s, p, m, &name, &len, err);

    if (rc == NB_OK)
        rc = parse_piece(p + m->value, m->n_value, &v, err);
    if (rc == NB_OK && nb_strmap_put(names, name, len, *n, &had) != NB_OK)
        rc = nb_enomem(err, "tensor names");
    if (rc == NB_OK && had)
        rc = nb_fail(err, NB_EFORMAT, "st.duplicate_key", "FIL-006", "the name appears twice in the header");
    if (rc == NB_OK && strcmp(name, "__metadata__") == 0) {
        rc = check_meta(v, err);
        s->base.meta = s->meta = v;
        return rc;
    }
    if (rc == NB_OK)
        rc = read_entry(s, name, len, v, &e[(*n)++], err);
    nb_json_free(v);
    if (rc != NB_OK)
        nb_err_at(err, NULL, name);
    return rc;
}

/* The members of the header, in one pass to count them and one to read them. */
static nb_status read_members(st_store *s, const char *p, size_t n_text, const unsigned char *data, uint64_t data_bytes, nb_err *err)
{
    const size_t start = blanks(p, n_text, 0) + 1;
    size_t i = start, members = 0, n = 0;
    nb_strmap *names = NULL;
    st_entry *e = NULL;
    st_member m;
    bool more = true;
    nb_status rc = NB_OK;

    if (start > n_text || p[start - 1] != '{')
        return bad_header(err, start - 1, "it does not start with '{'");
    while (rc == NB_OK && more) {
        rc = next_member(p, n_text, &i, members == 0, &m, &more, err);
        members += more;
    }
    if (rc != NB_OK)
        return rc;
    if (members > NB_LIMIT_TENSORS + 1)
        return nb_fail(err, NB_ELIMIT, "limit.tensors", "", "%zu tensors, limit %d", members, NB_LIMIT_TENSORS);
    e = nb_calloc(members ? members : 1, sizeof *e);
    names = nb_strmap_new(members);
    if (!e || !names)
        rc = nb_enomem(err, "the header");
    i = start;
    for (size_t k = 0; k < members && rc == NB_OK; k++) {
        rc = next_member(p, n_text, &i, k == 0, &m, &more, err);
        if (rc == NB_OK)
            rc = read_member(s, p, &m, names, e, &n, err);
    }
    if (rc == NB_OK && n > NB_LIMIT_TENSORS)
        rc = nb_fail(err, NB_ELIMIT, "limit.tensors", "", "%zu tensors, limit %d", n, NB_LIMIT_TENSORS);
    nb_strmap_free(names);
    if (rc == NB_OK)
        rc = make_views(s, e, n, data, data_bytes, err);
    nb_free(e);
    return rc;
}

static nb_status read_header(st_store *s, nb_err *err)
{
    const unsigned char *p = s->map.base;
    const size_t size = s->map.size;
    const char *foreign;
    uint64_t n;
    size_t bad;
    nb_status rc = nb_lfs_check(p, size, err);

    if (rc != NB_OK)
        return rc;
    foreign = nb_foreign(p, size);
    if (foreign)
        return nb_fail(err, NB_EFORMAT, "fmt.mismatch", "", "expected a safetensors file, found %s", foreign);
    if (size < 8)
        return nb_fail(err, NB_EFORMAT, "st.header_too_small", "FIL-006", "the file has %zu bytes, the length field alone needs 8", size);
    n = nb_le64(p);
    if (n > MAX_HEADER)
        return nb_fail(err, NB_ELIMIT, "st.header_too_large", "FIL-006", "header of %llu bytes, limit %d", (unsigned long long)n,
                       MAX_HEADER);
    if (n > size - 8)
        return nb_fail(err, NB_EFORMAT, "st.header_length", "FIL-006",
                       "header of %llu bytes in a file of %zu; the download is probably incomplete", (unsigned long long)n, size);
    bad = nb_u8_check((const char *)p + 8, (size_t)n);
    if (bad < n)
        return nb_fail(err, NB_EFORMAT, "st.header_utf8", "FIL-006", "byte %zu of the header is not valid UTF-8", bad);
    return read_members(s, (const char *)p + 8, (size_t)n, p + 8 + n, size - 8 - n, err);
}

nb_status nb_st_open(const char *path, nb_store **out, nb_err *err)
{
    st_store *s = nb_calloc(1, sizeof *s);
    const char **files;
    size_t dup;
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "a safetensors file");
    s->base.ops = &st_ops;
    s->base.kind = "safetensors";
    s->map.fd = -1;
    rc = nb_map_open(&s->map, path, err);
    if (rc != NB_OK)
        goto done;
    rc = nb_stamp_take(&s->stamp, &s->map, err);
    if (rc != NB_OK)
        goto done;
    files = nb_arena_alloc(&s->arena, sizeof *files);
    s->file = nb_arena_strdup(&s->arena, path);
    if (!files || !s->file) {
        rc = nb_enomem(err, "a file name");
        goto done;
    }
    files[0] = s->file;
    s->base.path = s->file;
    s->base.files = files;
    s->base.n_files = 1;
    rc = read_header(s, err);
    if (rc == NB_OK)
        rc = nb_store_index(&s->base, &dup, err); /* JSON keys: no two are equal */
    if (rc != NB_OK)
        goto done;
    *out = &s->base;
    s = NULL;
done:
    nb_err_at(err, path, NULL);
    if (s)
        st_close(&s->base);
    return rc;
}
