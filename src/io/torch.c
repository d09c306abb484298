/* torch.c - .bin, .pt and .pth files of PyTorch as a store: the zip container, and the stream from before it.
 *
 * Tensors are viewed where they lie. Only a tensor that is not row-major (transposed, expanded) is copied, at opening.
 * The stream: pickles of a magic number, of 1001, of a system description, of the object, of the storage keys; then for
 * every key a 64-bit count and the elements. Rules ZP and PK of hardening 5.9 and 5.10. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "io/io.h"
#include "io/io_priv.h"
#include "io/pickle.h"
#include "io/torch_zip.h"

enum { EXPAND = 16 << 20 }; /* bytes that expanded views may take beyond their storages (hardening 4) */

typedef struct record {
    uint64_t off, bytes;
    const nb_zip_entry *entry; /* NULL in a stream */
} record;

typedef struct torch_store {
    nb_store base;
    nb_map map;
    nb_stamp stamp;
    nb_arena arena;
    nb_report *notes;
    nb_torch_zip *zip; /* NULL for a stream; used under lock once the store is out */
    nb_pkl *pkl;
    record *records; /* [storages of pkl] */
    void **copies;   /* [n_copies]        */
    size_t n_copies;
    uint64_t copied, stored; /* bytes of copies, of storages */
    pthread_mutex_t lock;
    bool verified;
    const char *file;
} torch_store;

static void torch_close(nb_store *base)
{
    torch_store *s = (torch_store *)base;

    nb_store_unindex(base);
    for (size_t i = 0; i < s->n_copies; i++)
        nb_free(s->copies[i]);
    nb_torch_zip_close(s->zip);
    nb_pkl_close(s->pkl);
    nb_map_close(&s->map);
    nb_report_free(s->notes);
    nb_arena_clear(&s->arena);
    pthread_mutex_destroy(&s->lock);
    nb_free(s);
}

static void torch_drop(const nb_store *base, const nb_tensor *t)
{
    const torch_store *s = (const torch_store *)base;

    if (t->data >= s->map.base && t->data < s->map.base + s->map.size)
        nb_map_drop(&s->map, (uint64_t)(t->data - s->map.base), t->n_bytes);
}

/* The file is as it was; and, the first time, its storages have their checksums (ZP-15). A job asks at its end, when the
 * bytes have been read anyway. */
static nb_status torch_still(nb_store *base, nb_err *err)
{
    torch_store *s = (torch_store *)base;
    nb_status rc = nb_stamp_check(&s->stamp, s->file, err);

    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; s->zip && rc == NB_OK && !s->verified && i < nb_pkl_n_storages(s->pkl); i++)
        rc = nb_torch_zip_verify(s->zip, s->records[i].entry, err);
    s->verified = s->verified || rc == NB_OK;
    pthread_mutex_unlock(&s->lock);
    nb_err_at(err, s->file, NULL);
    return rc;
}

static const nb_store_ops torch_ops = { .close = torch_close, .drop = torch_drop, .still = torch_still };

/* ---- where the storages are ---- */

static uint64_t storage_bytes(const nb_pkl_storage *st)
{
    return st->count * (nb_dtype_info(st->dtype)->bits / 8);
}

static nb_status wrong_size(const nb_pkl_storage *st, uint64_t have, nb_err *err)
{
    nb_fail(err, NB_EFORMAT, "torch.record_size", "", "storage \"%.*s\" has %" PRIu64 " bytes; %" PRIu64 " elements of %s take %" PRIu64,
            (int)st->key_len, st->key, have, st->count, nb_dtype_info(st->dtype)->name, storage_bytes(st));
    return NB_EFORMAT;
}

static nb_status find_records(torch_store *s, nb_err *err)
{
    const size_t n = nb_pkl_n_storages(s->pkl);
    nb_status rc = NB_OK;

    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        const nb_pkl_storage *st = nb_pkl_storage_at(s->pkl, i);
        char name[5 + 256] = "data/";
        memcpy(name + 5, st->key, st->key_len);
        rc = nb_torch_zip_find(s->zip, name, 5 + st->key_len, &s->records[i].entry, err);
        if (rc != NB_OK)
            break;
        s->records[i].off = s->records[i].entry->data;
        s->records[i].bytes = s->records[i].entry->size;
        if (s->records[i].bytes != storage_bytes(st))
            rc = wrong_size(st, s->records[i].bytes, err);
    }
    return rc;
}

static nb_status make_records(torch_store *s, nb_err *err)
{
    const size_t n = nb_pkl_n_storages(s->pkl);

    s->records = nb_arena_calloc(&s->arena, n + 1, sizeof *s->records);
    return s->records ? NB_OK : nb_enomem(err, "storages");
}

static nb_status open_zip(torch_store *s, nb_err *err)
{
    const nb_zip_entry *e = NULL;
    nb_status rc = nb_torch_zip_open(s->map.base, s->map.size, &s->zip, err);

    if (rc == NB_OK)
        rc = nb_torch_zip_find(s->zip, "data.pkl", 8, &e, err);
    if (rc == NB_OK)
        rc = nb_torch_zip_verify(s->zip, e, err);
    if (rc == NB_OK)
        rc = nb_pkl_run(s->map.base + e->data, (size_t)e->size, "data.pkl", &s->pkl, NULL, err);
    if (rc == NB_OK)
        rc = make_records(s, err);
    if (rc == NB_OK)
        rc = find_records(s, err);
    if (rc == NB_OK && nb_torch_zip_no_crc(s->zip) &&
        nb_report_add(s->notes, NB_SEV_WARN, "zip.crc", "", s->file, "", "",
                      "records without a checksum: damage to the weights would not be noticed") != NB_OK)
        rc = nb_enomem(err, "notes");
    return rc;
}

/* ---- the stream from before the zip container ---- */

/* What pickling the number 0x1950a86a20f9469cfc6c gives: the only integer wider than 64 bits in these files. */
static const unsigned char legacy_magic[] = { 0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.' };

static nb_status next_pickle(const torch_store *s, const char *name, size_t *at, nb_pkl **out, nb_err *err)
{
    size_t used = 0;
    nb_status rc = nb_pkl_run(s->map.base + *at, s->map.size - *at, name, out, &used, err);

    *at += used;
    return rc;
}

static nb_status check_system(const nb_pkl *v, nb_err *err)
{
    nb_pkl_ref key, value;
    uint32_t step = 0;

    while (nb_pkl_next(v, nb_pkl_root(v), &step, &key, &value)) {
        size_t n = 0;
        const char *word = nb_pkl_str(v, key, &n);
        if (word && n == 13 && memcmp(word, "little_endian", 13) == 0)
            return nb_pkl_is_true(v, value) ? NB_OK
                                            : nb_fail(err, NB_EUNSUPPORTED, "torch.byteorder", "", "written on a big-endian machine");
    }
    return nb_fail(err, NB_EFORMAT, "torch.byteorder", "", "the file does not say its byte order");
}

/* Index of the storage with this key; SIZE_MAX when no tensor uses it. */
static size_t storage_of(const nb_strmap *keys, const nb_pkl *list, nb_pkl_ref r)
{
    size_t n = 0;
    const char *key = nb_pkl_str(list, r, &n);
    uint64_t i;

    return key && nb_strmap_get(keys, key, n, &i) ? (size_t)i : SIZE_MAX;
}

static nb_status stream_records(torch_store *s, const nb_pkl *list, size_t at, nb_err *err)
{
    const size_t n = nb_pkl_n_storages(s->pkl);
    nb_strmap *keys = nb_strmap_new(n);
    nb_pkl_ref key, ignored;
    uint32_t step = 0;
    size_t found = 0;
    nb_status rc = keys ? NB_OK : nb_enomem(err, "storages");

    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        const nb_pkl_storage *st = nb_pkl_storage_at(s->pkl, i);
        if (nb_strmap_put(keys, st->key, st->key_len, i, NULL) != NB_OK)
            rc = nb_enomem(err, "storages");
    }
    while (rc == NB_OK && nb_pkl_next(list, nb_pkl_root(list), &step, &ignored, &key)) {
        const size_t i = storage_of(keys, list, key), left = s->map.size - at;
        const nb_pkl_storage *st = i == SIZE_MAX ? NULL : nb_pkl_storage_at(s->pkl, i);
        if (!st || s->records[i].off != 0) {
            rc = nb_fail(err, NB_EFORMAT, "pkl.storage", "", "the list of storages names one that no tensor uses, or one twice");
        } else if (left < 8 || storage_bytes(st) > left - 8) {
            rc = nb_fail(err, NB_EFORMAT, "torch.truncated", "", "storage \"%.*s\" needs %" PRIu64 " bytes, the file has %zu left",
                         (int)st->key_len, st->key, storage_bytes(st), left < 8 ? 0 : left - 8);
        } else if (nb_le64(s->map.base + at) != st->count) {
            rc = wrong_size(st, nb_le64(s->map.base + at), err);
        } else {
            s->records[i] = (record){ .off = at + 8, .bytes = storage_bytes(st) };
            at += 8 + (size_t)storage_bytes(st);
            found++;
        }
    }
    nb_strmap_free(keys);
    if (rc == NB_OK && found < n)
        rc = nb_fail(err, NB_EFORMAT, "torch.missing_record", "", "%zu of %zu storages are in the file", found, n);
    if (rc == NB_OK && at != s->map.size)
        rc = nb_fail(err, NB_EFORMAT, "pkl.trailing", "", "%zu bytes follow the last storage", s->map.size - at);
    return rc;
}

static nb_status open_stream(torch_store *s, nb_err *err)
{
    size_t at = sizeof legacy_magic;
    nb_pkl *v = NULL;
    nb_status rc = next_pickle(s, "protocol", &at, &v, err);

    if (rc == NB_OK && nb_pkl_int(v, nb_pkl_root(v), 0) != 1001)
        rc = nb_fail(err, NB_EUNSUPPORTED, "torch.version", "", "a stream of another protocol than 1001");
    nb_pkl_close(v);
    v = NULL;
    if (rc == NB_OK)
        rc = next_pickle(s, "system", &at, &v, err);
    if (rc == NB_OK)
        rc = check_system(v, err);
    nb_pkl_close(v);
    v = NULL;
    if (rc == NB_OK)
        rc = next_pickle(s, "object", &at, &s->pkl, err);
    if (rc == NB_OK)
        rc = next_pickle(s, "keys", &at, &v, err);
    if (rc == NB_OK)
        rc = make_records(s, err);
    if (rc == NB_OK)
        rc = stream_records(s, v, at, err);
    nb_pkl_close(v);
    return rc;
}

/* ---- from the object to named tensors ---- */

static size_t count_tensors(const nb_pkl *v, nb_pkl_ref dict)
{
    nb_pkl_ref key, value;
    uint32_t step = 0;
    size_t n = 0, len;

    while (nb_pkl_next(v, dict, &step, &key, &value))
        n += nb_pkl_tensor_of(v, value) && nb_pkl_str(v, key, &len);
    return n;
}

/* PK-19: the mapping that holds the weights: the object itself, or the only mapping in it that has any. */
static nb_status find_dict(torch_store *s, nb_pkl_ref *out, size_t *n, nb_err *err)
{
    const nb_pkl *v = s->pkl;
    nb_pkl_ref root = nb_pkl_root(v), key, value;
    uint32_t step = 0;
    size_t found = 0;
    char esc[NB_ESC_CAP] = "";

    *out = root;
    *n = 0;
    if (nb_pkl_kind_of(v, root) != NB_PKL_DICT)
        return nb_fail(err, NB_EFORMAT, "torch.no_state_dict", "", "the file holds no mapping of names to tensors");
    *n = count_tensors(v, root);
    if (*n > 0)
        return NB_OK;
    while (nb_pkl_next(v, root, &step, &key, &value)) {
        const size_t k = nb_pkl_kind_of(v, value) == NB_PKL_DICT ? count_tensors(v, value) : 0;
        size_t len = 0;
        const char *word = nb_pkl_str(v, key, &len);
        if (k == 0)
            continue;
        found++;
        *out = value;
        *n = k;
        nb_esc(esc, sizeof esc, word ? word : "", len);
    }
    if (found != 1)
        return nb_fail(err, NB_EFORMAT, "torch.no_state_dict", "",
                       found ? "%zu mappings in the file hold tensors; save one state dict"
                             : "none of the file's mappings holds tensors (%zu)",
                       found);
    if (nb_report_add(s->notes, NB_SEV_INFO, "torch.nested", "", s->file, "", "", "the weights are under the key \"%s\"", esc) != NB_OK)
        return nb_enomem(err, "notes");
    return NB_OK;
}

static bool row_major(const nb_pkl_tensor *t)
{
    uint64_t want = 1;

    for (unsigned k = t->rank; k-- > 0;) {
        if (t->shape[k] != 1 && t->stride[k] != want)
            return t->count == 0;
        want *= t->shape[k] ? t->shape[k] : 1;
    }
    return true;
}

/* Row-major copy of a strided view. */
static void gather(unsigned char *out, const unsigned char *base, const nb_pkl_tensor *t, size_t size)
{
    const unsigned last = t->rank - 1;
    uint64_t at[NB_MAX_RANK] = { 0 };
    uint64_t from = t->offset;

    for (uint64_t done = 0; done < t->count; done += t->shape[last]) {
        const unsigned char *p = base + from * size;
        for (uint64_t j = 0; j < t->shape[last]; j++, out += size)
            memcpy(out, p + j * t->stride[last] * size, size);
        for (unsigned k = last; k-- > 0;) {
            from += t->stride[k];
            if (++at[k] < t->shape[k])
                break;
            from -= at[k] * t->stride[k];
            at[k] = 0;
        }
    }
}

static nb_status copy_view(torch_store *s, nb_tensor *t, const nb_pkl_tensor *v, const unsigned char *base, nb_err *err)
{
    unsigned char *p;

    if (t->n_bytes > s->records[v->storage].bytes + EXPAND || t->n_bytes > s->stored + EXPAND - s->copied)
        return nb_fail(err, NB_ELIMIT, "limit.expand", "", "a view of %" PRIu64 " bytes over a storage of %" PRIu64 "; limit %d more",
                       t->n_bytes, s->records[v->storage].bytes, EXPAND);
    p = nb_alloc((size_t)t->n_bytes);
    if (!p)
        return nb_enomem(err, "a tensor that is not row-major");
    s->copies[s->n_copies++] = p;
    s->copied += t->n_bytes;
    gather(p, base, v, nb_dtype_info(t->dtype)->bits / 8);
    t->data = p;
    return NB_OK;
}

static nb_status make_view(torch_store *s, const char *name, size_t len, const nb_pkl_tensor *v, nb_tensor *t, nb_err *err)
{
    const nb_pkl_storage *st = nb_pkl_storage_at(s->pkl, v->storage);
    const unsigned char *base = s->map.base + s->records[v->storage].off;
    nb_status rc = NB_OK;

    *t = (nb_tensor){ .name = nb_arena_strndup(&s->arena, name, len),
                      .name_len = len,
                      .dtype = st->dtype,
                      .rank = v->rank,
                      .shape = v->shape,
                      .file = s->file };
    if (!t->name)
        return nb_enomem(err, "tensor names");
    nb_dtype_bytes(st->dtype, v->count, &t->n_bytes); /* checked by the pickle reader */
    if (len == 0 || len > NB_LIMIT_NAME || strlen(t->name) != len)
        rc = nb_fail(err, NB_EFORMAT, "torch.name", "", "a tensor name is empty, too long or holds a zero byte");
    else if (row_major(v))
        t->data = base + v->offset * (nb_dtype_info(st->dtype)->bits / 8);
    else
        rc = copy_view(s, t, v, base, err);
    if (rc != NB_OK)
        nb_err_at(err, NULL, t->name);
    return rc;
}

static nb_status make_views(torch_store *s, nb_err *err)
{
    nb_pkl_ref dict, key, value;
    uint32_t step = 0;
    size_t n, at = 0;
    nb_tensor *views;
    nb_status rc = find_dict(s, &dict, &n, err);

    if (rc != NB_OK)
        return rc;
    if (n > NB_LIMIT_TENSORS)
        return nb_fail(err, NB_ELIMIT, "limit.tensors", "", "%zu tensors, limit %d", n, NB_LIMIT_TENSORS);
    views = nb_arena_calloc(&s->arena, n, sizeof *views);
    s->copies = nb_arena_calloc(&s->arena, n, sizeof *s->copies);
    if (!views || !s->copies)
        return nb_enomem(err, "tensor views");
    for (size_t i = 0; i < nb_pkl_n_storages(s->pkl); i++)
        s->stored += s->records[i].bytes;
    while (rc == NB_OK && nb_pkl_next(s->pkl, dict, &step, &key, &value)) {
        const nb_pkl_tensor *v = nb_pkl_tensor_of(s->pkl, value);
        size_t len = 0;
        const char *name = nb_pkl_str(s->pkl, key, &len);
        if (!v || !name)
            continue; /* a step counter, an option: not weights */
        rc = make_view(s, name, len, v, &views[at], err);
        views[at].index = at;
        s->base.total_bytes += views[at].n_bytes;
        at++;
    }
    s->base.tensors = views;
    s->base.n_tensors = at;
    return rc;
}

/* What the file is, by its first bytes (FS-15, ZP-19). */
static nb_status open_any(torch_store *s, nb_err *err)
{
    const unsigned char *p = s->map.base;
    const size_t n = s->map.size;
    const char *foreign;
    nb_status rc = nb_lfs_check(p, n, err);

    if (rc != NB_OK)
        return rc;
    if (n >= 4 && memcmp(p, "PK\003\004", 4) == 0)
        return open_zip(s, err);
    if (n >= sizeof legacy_magic && memcmp(p, legacy_magic, sizeof legacy_magic) == 0)
        return open_stream(s, err);
    if (n >= 262 && memcmp(p + 257, "ustar", 5) == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "torch.legacy", "",
                       "a tar checkpoint of the first PyTorch releases; save it again with a newer one");
    if (n >= 2 && p[0] == 0x80)
        return nb_fail(err, NB_EUNSUPPORTED, "torch.legacy", "", "a bare pickle that torch.save did not write; nothing in it is read");
    foreign = n >= 6 && memcmp(p, "\x93NUMPY", 6) == 0 ? "a numpy array" : nb_foreign(p, n);
    if (foreign)
        return nb_fail(err, NB_EFORMAT, "fmt.mismatch", "", "expected a PyTorch archive, found %s", foreign);
    return open_zip(s, err); /* which says what is wrong */
}

nb_status nb_torch_open(const char *path, nb_store **out, nb_err *err)
{
    torch_store *s = nb_calloc(1, sizeof *s);
    const char **files;
    size_t dup;
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "a PyTorch archive");
    pthread_mutex_init(&s->lock, NULL);
    s->base.ops = &torch_ops;
    s->base.kind = "torch";
    s->map.fd = -1;
    s->notes = nb_report_new();
    s->base.notes = s->notes;
    files = nb_arena_alloc(&s->arena, sizeof *files);
    s->file = nb_arena_strdup(&s->arena, path);
    rc = s->notes && files && s->file ? nb_map_open(&s->map, path, err) : nb_enomem(err, "a PyTorch archive");
    if (rc == NB_OK)
        rc = nb_stamp_take(&s->stamp, &s->map, err);
    if (rc == NB_OK) {
        files[0] = s->file;
        s->base.path = s->file;
        s->base.files = files;
        s->base.n_files = 1;
        rc = open_any(s, err);
    }
    if (rc == NB_OK)
        rc = make_views(s, err);
    if (rc == NB_OK)
        rc = nb_store_index(&s->base, &dup, err); /* keys of one mapping: no two are equal */
    if (rc == NB_OK && nb_report_add(s->notes, NB_SEV_INFO, "fmt.torch", "FIL-002", s->file, "", "",
                                     "weights are stored as a PyTorch archive; it is read as data: only tensor-building opcodes are "
                                     "followed, anything else is refused") != NB_OK)
        rc = nb_enomem(err, "notes");
    if (rc == NB_OK)
        *out = &s->base;
    else
        torch_close(&s->base);
    nb_err_at(err, path, NULL);
    return rc;
}
