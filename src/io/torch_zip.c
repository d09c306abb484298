/* torch_zip.c - see torch_zip.h. The only includer of libzip.
 *
 *   NAME/data.pkl     the object: a pickle
 *   NAME/data/KEY     the bytes of storage KEY
 *   NAME/version      "3"          NAME/byteorder    "little"
 *
 * Other records (.format_version, .data/serialization_id ...) are ignored and never opened. Source: PyTorch
 * caffe2/serialize/inline_container.cc, torch/serialization.py (2.13). */
#include "io/torch_zip.h"

#include <string.h>

#include <zip.h>

#include "io/io_priv.h"

enum { NEWEST_VERSION = 10 }; /* kMaxSupportedFileFormatVersion */

struct nb_torch_zip {
    const unsigned char *p;
    nb_arena arena;
    nb_zip_layout layout;
    size_t n_prefix; /* bytes of the top folder, '/' included */
    zip_t *zip;
};

/* ---- libzip: the second opinion ---- */

static nb_status disagree(nb_err *err, const char *entry, const char *what)
{
    char esc[NB_ESC_CAP];

    nb_fail(err, NB_EFORMAT, "zip.ambiguous", "", "readers of zip files see different archives here: %s",
            nb_esc(esc, sizeof esc, what, strlen(what)));
    nb_err_at(err, NULL, entry);
    return NB_EFORMAT;
}

static nb_status compare_readers(nb_torch_zip *z, size_t n, nb_err *err)
{
    zip_error_t e;
    zip_source_t *src;
    nb_status rc = NB_OK;

    zip_error_init(&e);
    src = zip_source_buffer_create(z->p, n, 0, &e);
    z->zip = src ? zip_open_from_source(src, ZIP_RDONLY | ZIP_CHECKCONS, &e) : NULL;
    if (!z->zip) {
        rc = zip_error_code_zip(&e) == ZIP_ER_MEMORY ? nb_enomem(err, "a zip archive") : disagree(err, NULL, zip_error_strerror(&e));
        zip_source_free(src);
    }
    zip_error_fini(&e);
    if (rc == NB_OK && zip_get_num_entries(z->zip, 0) != (zip_int64_t)z->layout.n)
        rc = disagree(err, NULL, "the number of entries");
    for (size_t i = 0; i < z->layout.n && rc == NB_OK; i++) {
        const nb_zip_entry *mine = &z->layout.e[i];
        const char *name = zip_get_name(z->zip, i, ZIP_FL_ENC_RAW);
        zip_stat_t st;
        if (!name || strcmp(name, mine->name) != 0)
            rc = disagree(err, mine->name, "the name of an entry");
        else if (zip_stat_index(z->zip, i, 0, &st) != 0 || st.size != mine->size || st.comp_size != mine->size || st.crc != mine->crc ||
                 st.comp_method != ZIP_CM_STORE)
            rc = disagree(err, mine->name, "size, method or checksum");
    }
    return rc;
}

nb_status nb_torch_zip_verify(nb_torch_zip *z, const nb_zip_entry *e, nb_err *err)
{
    static const size_t step = 1 << 16;
    const zip_uint64_t i = (zip_uint64_t)(e - z->layout.e);
    zip_file_t *f;
    char *buf;
    zip_int64_t got = 0;
    uint64_t sum = 0;

    if (e->crc == 0)
        return NB_OK;
    buf = nb_alloc(step);
    f = buf ? zip_fopen_index(z->zip, i, 0) : NULL;
    while (f && (got = zip_fread(f, buf, step)) > 0)
        sum += (uint64_t)got;
    if (f)
        zip_fclose(f);
    nb_free(buf);
    if (!f)
        return nb_enomem(err, "a zip entry");
    if (got == 0 && sum == e->size)
        return NB_OK;
    nb_fail(err, NB_EFORMAT, "zip.crc", "", "the bytes do not have their checksum %08x; download the file again", e->crc);
    nb_err_at(err, NULL, e->name);
    return NB_EFORMAT;
}

/* ---- records ---- */

static bool has(const nb_torch_zip *z, const char *name)
{
    const nb_zip_entry *e;
    nb_err ignored = { 0 };
    return nb_torch_zip_find(z, name, strlen(name), &e, &ignored) == NB_OK;
}

/* ZP-11, ZP-19: one top folder; what other programs keep in zip files is told by its name. */
static nb_status check_folder(nb_torch_zip *z, nb_err *err)
{
    const char *slash = strchr(z->layout.e[0].name, '/');

    for (size_t i = 0; i < z->layout.n; i++) {
        if (nb_ends_with(z->layout.e[i].name, ".npy"))
            return nb_fail(err, NB_EFORMAT, "fmt.mismatch", "", "expected a PyTorch archive, found numpy arrays in a zip file");
    }
    z->n_prefix = slash ? (size_t)(slash - z->layout.e[0].name) + 1 : 0;
    for (size_t i = 0; i < z->layout.n; i++) {
        const nb_zip_entry *e = &z->layout.e[i];
        if (slash && e->name_len >= z->n_prefix && memcmp(e->name, z->layout.e[0].name, z->n_prefix) == 0)
            continue;
        nb_fail(err, NB_EFORMAT, "zip.prefix", "", "the entries are not all in one top folder");
        nb_err_at(err, NULL, e->name);
        return NB_EFORMAT;
    }
    for (size_t i = 0; i < z->layout.n; i++) {
        if (strncmp(z->layout.e[i].name + z->n_prefix, "code/", 5) == 0 || has(z, "constants.pkl"))
            return nb_fail(err, NB_EUNSUPPORTED, "torch.torchscript", "",
                           "a TorchScript program, not a checkpoint; save the state dict instead");
    }
    return NB_OK;
}

static bool text_is(const nb_torch_zip *z, const nb_zip_entry *e, const char *want)
{
    return e->size == strlen(want) && memcmp(z->p + e->data, want, e->size) == 0;
}

/* ZP-13. */
static nb_status check_version(const nb_torch_zip *z, nb_err *err)
{
    const nb_zip_entry *e;
    nb_err absent = { 0 };
    char esc[NB_ESC_CAP];
    unsigned v = 0;
    uint64_t i = 0;

    if (nb_torch_zip_find(z, "version", 7, &e, &absent) != NB_OK && nb_torch_zip_find(z, ".data/version", 13, &e, &absent) != NB_OK)
        return nb_fail(err, NB_EUNSUPPORTED, "torch.version", "", "the archive does not say its version");
    for (; i < e->size && i < 4 && z->p[e->data + i] >= '0' && z->p[e->data + i] <= '9'; i++)
        v = 10 * v + (unsigned)(z->p[e->data + i] - '0');
    if (v == 0 || v > NEWEST_VERSION || (i < e->size && (i + 1 != e->size || z->p[e->data + i] != '\n')))
        return nb_fail(err, NB_EUNSUPPORTED, "torch.version", "", "archive version \"%s\", 1 to %d are read",
                       nb_esc(esc, sizeof esc, (const char *)z->p + e->data, (size_t)e->size), NEWEST_VERSION);
    if (nb_torch_zip_find(z, "byteorder", 9, &e, &absent) != NB_OK || text_is(z, e, "little"))
        return NB_OK; /* old archives say nothing and are little-endian */
    if (text_is(z, e, "big"))
        return nb_fail(err, NB_EUNSUPPORTED, "torch.byteorder", "",
                       "written on a big-endian machine; save it again on a little-endian one");
    return nb_fail(err, NB_EFORMAT, "torch.byteorder", "", "byte order \"%s\" is neither little nor big",
                   nb_esc(esc, sizeof esc, (const char *)z->p + e->data, (size_t)e->size));
}

nb_status nb_torch_zip_find(const nb_torch_zip *z, const char *name, size_t n, const nb_zip_entry **out, nb_err *err)
{
    char full[NB_ZIP_NAME + 1], esc[NB_ESC_CAP];
    uint64_t i;

    *out = NULL;
    if (n <= NB_ZIP_NAME - z->n_prefix) {
        memcpy(full, z->layout.e[0].name, z->n_prefix);
        memcpy(full + z->n_prefix, name, n);
        if (nb_strmap_get(z->layout.names, full, z->n_prefix + n, &i)) {
            *out = &z->layout.e[i];
            return NB_OK;
        }
    }
    return nb_fail(err, NB_EFORMAT, "torch.missing_record", "", "the archive has no record \"%s\"", nb_esc(esc, sizeof esc, name, n));
}

bool nb_torch_zip_no_crc(const nb_torch_zip *z)
{
    for (size_t i = 0; i < z->layout.n; i++) {
        if (z->layout.e[i].crc == 0 && z->layout.e[i].size > 0)
            return true;
    }
    return false;
}

nb_status nb_torch_zip_open(const unsigned char *p, size_t n, nb_torch_zip **out, nb_err *err)
{
    nb_torch_zip *z = nb_calloc(1, sizeof *z);
    nb_status rc;

    *out = NULL;
    if (!z)
        return nb_enomem(err, "a zip archive");
    z->p = p;
    rc = nb_zip_layout_read(&z->layout, p, n, &z->arena, err);
    if (rc == NB_OK)
        rc = compare_readers(z, n, err);
    if (rc == NB_OK)
        rc = check_folder(z, err);
    if (rc == NB_OK && has(z, "data.pkl")) /* what is no checkpoint at all is told by the caller's look for data.pkl */
        rc = check_version(z, err);
    if (rc == NB_OK)
        *out = z;
    else
        nb_torch_zip_close(z);
    return rc;
}

void nb_torch_zip_close(nb_torch_zip *z)
{
    if (!z)
        return;
    if (z->zip)
        zip_discard(z->zip);
    nb_zip_layout_clear(&z->layout);
    nb_arena_clear(&z->arena);
    nb_free(z);
}
