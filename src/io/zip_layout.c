/* zip_layout.c - see zip_layout.h.
 *
 *   local header, name, extra, data [, descriptor]   for every entry, without holes
 *   directory: one record per entry
 *   [zip64 end record, its locator]  end record, comment */
#include "io/zip_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/u8.h"
#include "io/io_priv.h"

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, LOCATOR = 0x07064b50, DESCRIPTOR = 0x08074b50 };
enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20 };
enum { BIT_ENCRYPTED = 1, BIT_DESCRIPTOR = 8, BIT_PATCH = 0x20, BIT_STRONG = 0x40, BIT_MASKED = 0x2000 };

#define ALL32 0xFFFFFFFFu

typedef struct directory {
    uint64_t at, bytes, n;
    uint64_t end; /* what follows it */
} directory;

static nb_status find_end(const unsigned char *p, size_t n, size_t *at, nb_err *err)
{
    const size_t first = n - END_BYTES > 0xFFFF ? n - END_BYTES - 0xFFFF : 0;
    size_t found = 0;

    for (size_t i = n - END_BYTES + 1; i-- > first;) {
        if (nb_le32(p + i) != END || nb_le16(p + i + 20) != n - i - END_BYTES)
            continue;
        if (found++ == 0)
            *at = i;
    }
    if (found == 0)
        return nb_fail(err, NB_EFORMAT, "zip.eocd", "",
                       "no end record whose comment ends with the file; the download is probably incomplete");
    if (found > 1)
        return nb_fail(err, NB_EFORMAT, "zip.ambiguous", "", "%zu possible end records", found);
    return NB_OK;
}

/* Replace what the end record leaves to the zip64 end record, and hold the two against each other. */
static nb_status read_end64(const unsigned char *p, size_t end, directory *d, bool flagged, nb_err *err)
{
    const unsigned char *loc = end >= LOCATOR_BYTES ? p + end - LOCATOR_BYTES : NULL, *q;
    uint64_t at, n, bytes, off;

    if (!loc || nb_le32(loc) != LOCATOR)
        return flagged ? nb_fail(err, NB_EFORMAT, "zip.zip64", "", "the end record refers to a zip64 record that is not there") : NB_OK;
    at = nb_le64(loc + 8);
    if (nb_le32(loc + 4) != 0 || nb_le32(loc + 16) > 1)
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "an archive in several parts");
    if (end < LOCATOR_BYTES + END64_BYTES || at > end - LOCATOR_BYTES - END64_BYTES || nb_le32(p + at) != END64 ||
        nb_le64(p + at + 4) != end - LOCATOR_BYTES - at - 12)
        return nb_fail(err, NB_EFORMAT, "zip.zip64", "", "the zip64 locator does not lead to a zip64 end record");
    q = p + at;
    if (nb_le32(q + 16) != 0 || nb_le32(q + 20) != 0 || nb_le64(q + 24) != nb_le64(q + 32))
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "an archive in several parts");
    n = nb_le64(q + 32);
    bytes = nb_le64(q + 40);
    off = nb_le64(q + 48);
    if ((d->n != 0xFFFF && d->n != n) || (d->bytes != ALL32 && d->bytes != bytes) || (d->at != ALL32 && d->at != off))
        return nb_fail(err, NB_EFORMAT, "zip.zip64", "", "end record and zip64 end record contradict each other");
    *d = (directory){ .at = off, .bytes = bytes, .n = n, .end = at };
    return NB_OK;
}

static nb_status find_directory(const unsigned char *p, size_t n, directory *d, nb_err *err)
{
    const unsigned char *q;
    size_t end = 0;
    bool flagged;
    nb_status rc;

    if (n < 4 || nb_le32(p) != LOCAL)
        return nb_fail(err, NB_EFORMAT, "zip.magic", "", "does not begin with a zip entry");
    if (n < END_BYTES)
        return nb_fail(err, NB_EFORMAT, "zip.eocd", "", "%zu bytes are too few for a zip archive", n);
    rc = find_end(p, n, &end, err);
    if (rc != NB_OK)
        return rc;
    q = p + end;
    if (nb_le16(q + 4) != 0 || nb_le16(q + 6) != 0 || nb_le16(q + 8) != nb_le16(q + 10))
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "an archive in several parts");
    *d = (directory){ .at = nb_le32(q + 16), .bytes = nb_le32(q + 12), .n = nb_le16(q + 10), .end = end };
    flagged = d->n == 0xFFFF || d->bytes == ALL32 || d->at == ALL32;
    rc = read_end64(p, end, d, flagged, err);
    if (rc != NB_OK)
        return rc;
    if (d->at > d->end || d->bytes != d->end - d->at)
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "the directory is said to have %llu bytes at %llu, its end is at %llu",
                       (unsigned long long)d->bytes, (unsigned long long)d->at, (unsigned long long)d->end);
    if (d->n > NB_ZIP_ENTRIES)
        return nb_fail(err, NB_ELIMIT, "limit.zip_entries", "", "%llu entries, limit %d", (unsigned long long)d->n, NB_ZIP_ENTRIES);
    if (d->n == 0 || d->n > d->bytes / CENTRAL_BYTES)
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "%llu entries in a directory of %llu bytes", (unsigned long long)d->n,
                       (unsigned long long)d->bytes);
    return NB_OK;
}

static nb_status fail_at(nb_err *err, const nb_zip_entry *e, nb_status code, const char *cls, const char *what)
{
    nb_fail(err, code, cls, "", "%s", what);
    nb_err_at(err, NULL, e->name);
    return code;
}

/* Find the zip64 field; every field must lie inside (ZP-17). *out NULL when there is none. */
static nb_status extra_fields(const nb_zip_entry *e, const unsigned char *p, size_t n, const unsigned char **out, size_t *len, nb_err *err)
{
    *out = NULL;
    *len = 0;
    while (n > 0) {
        const size_t k = n >= 4 ? nb_le16(p + 2) : 0;
        if (n < 4 || k > n - 4)
            return fail_at(err, e, NB_EFORMAT, "zip.extra", "an extra field reaches past the extra data");
        if (nb_le16(p) == 1) {
            if (*out)
                return fail_at(err, e, NB_EFORMAT, "zip.zip64", "two zip64 fields in one entry");
            *out = p + 4;
            *len = k;
        }
        p += 4 + k;
        n -= 4 + k;
    }
    return NB_OK;
}

/* The next 64-bit value of a zip64 field when the 32-bit one says so. */
static bool widen(uint64_t *v, const unsigned char **p, size_t *n)
{
    if (*v != ALL32)
        return true;
    if (!*p || *n < 8)
        return false;
    *v = nb_le64(*p);
    *p += 8;
    *n -= 8;
    return true;
}

/* ZP-10. */
static nb_status check_name(const nb_zip_entry *e, nb_err *err)
{
    const char *s = e->name;

    if (e->name_len == 0 || e->name_len > NB_ZIP_NAME)
        return nb_fail(err, NB_EFORMAT, "zip.name", "", "an entry name of %zu bytes; 1 to %d are allowed", e->name_len, NB_ZIP_NAME);
    for (size_t i = 0; i < e->name_len; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F || s[i] == '\\')
            return nb_fail(err, NB_EFORMAT, "zip.name", "", "an entry name with a backslash or a control byte");
    }
    if (s[0] == '/' || (e->name_len > 1 && s[1] == ':') || nb_u8_check(s, e->name_len) < e->name_len)
        return fail_at(err, e, NB_EFORMAT, "zip.name", "an entry name that is absolute or not UTF-8");
    for (const char *part = s; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0'))
            return fail_at(err, e, NB_EFORMAT, "zip.name", "an entry name that leads upwards");
    }
    return NB_OK;
}

/* Only plain files (and the folders they are in) have a meaning here. */
static bool plain_file(unsigned made_by, uint32_t attr)
{
    const unsigned type = attr >> 28; /* S_IFMT of Unix modes */
    return (made_by >> 8 != 3 && made_by >> 8 != 19) || type == 0 || type == 8 || type == 4;
}

/* ZP-05, ZP-06, ZP-16: the local header says the same. `end` is where the directory begins. */
static nb_status check_local(nb_zip_entry *e, const unsigned char *p, uint64_t end, nb_err *err)
{
    const unsigned char *h, *z;
    uint64_t size, packed, room;
    size_t nl, el, zl;
    bool later, zero;
    char e1[NB_ESC_CAP];
    nb_status rc;

    if (e->head > end || end - e->head < LOCAL_BYTES || e->size > end - e->head - LOCAL_BYTES)
        return fail_at(err, e, NB_EFORMAT, "zip.size", "the entry reaches past the end of the file");
    h = p + e->head;
    if (nb_le32(h) != LOCAL)
        return fail_at(err, e, NB_EFORMAT, "zip.header_mismatch", "no entry header where the directory says");
    nl = nb_le16(h + 26);
    el = nb_le16(h + 28);
    room = end - e->head - LOCAL_BYTES;
    if (nl > room || el > room - nl || e->size > room - nl - el)
        return fail_at(err, e, NB_EFORMAT, "zip.size", "the entry reaches past the end of the file");
    if (nl != e->name_len || memcmp(h + LOCAL_BYTES, e->name, nl) != 0) {
        nb_fail(err, NB_EFORMAT, "zip.name_mismatch", "", "the entry itself calls itself \"%s\"",
                nb_esc(e1, sizeof e1, (const char *)h + LOCAL_BYTES, nl));
        nb_err_at(err, NULL, e->name);
        return NB_EFORMAT;
    }
    rc = extra_fields(e, h + LOCAL_BYTES + nl, el, &z, &zl, err);
    if (rc != NB_OK)
        return rc;
    size = nb_le32(h + 22);
    packed = nb_le32(h + 18);
    if (!widen(&size, &z, &zl) || !widen(&packed, &z, &zl))
        return fail_at(err, e, NB_EFORMAT, "zip.zip64", "a zip64 field is missing or too short");
    later = (e->flags & BIT_DESCRIPTOR) != 0;
    zero = later && size == 0 && packed == 0 && nb_le32(h + 14) == 0;
    if (nb_le16(h + 6) != e->flags || nb_le16(h + 8) != 0 || (!zero && (size != e->size || packed != e->size || nb_le32(h + 14) != e->crc)))
        return fail_at(err, e, NB_EFORMAT, "zip.header_mismatch", "entry header and directory disagree on method, size or checksum");
    e->data = e->head + LOCAL_BYTES + nl + el;
    return NB_OK;
}

/* One record of the directory at p[*at..end). */
static nb_status read_record(nb_zip_entry *e, const unsigned char *p, uint64_t *at, uint64_t end, nb_arena *a, nb_err *err)
{
    const unsigned char *h = p + *at, *z;
    const uint64_t left = end - *at;
    uint64_t packed, disk;
    size_t el, zl, more;
    nb_status rc;

    if (left < CENTRAL_BYTES || nb_le32(h) != CENTRAL)
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "the directory ends early or holds something else");
    e->name_len = nb_le16(h + 28);
    el = nb_le16(h + 30);
    more = e->name_len + el + nb_le16(h + 32);
    if (more > left - CENTRAL_BYTES)
        return nb_fail(err, NB_EFORMAT, "zip.central", "", "a record reaches past the end of the directory");
    e->name = nb_arena_strndup(a, (const char *)h + CENTRAL_BYTES, e->name_len);
    if (!e->name)
        return nb_enomem(err, "entry names");
    e->flags = nb_le16(h + 8);
    e->crc = nb_le32(h + 16);
    packed = nb_le32(h + 20);
    e->size = nb_le32(h + 24);
    e->head = nb_le32(h + 42);
    disk = nb_le16(h + 34);
    *at += CENTRAL_BYTES + more;
    rc = check_name(e, err);
    if (rc == NB_OK)
        rc = extra_fields(e, h + CENTRAL_BYTES + e->name_len, el, &z, &zl, err);
    if (rc != NB_OK)
        return rc;
    if (!widen(&e->size, &z, &zl) || !widen(&packed, &z, &zl) || !widen(&e->head, &z, &zl))
        return fail_at(err, e, NB_EFORMAT, "zip.zip64", "a zip64 field is missing or too short");
    if (disk != 0)
        return fail_at(err, e, NB_EFORMAT, "zip.central", "an archive in several parts");
    if (!plain_file(nb_le16(h + 4), nb_le32(h + 38)))
        return fail_at(err, e, NB_EFORMAT, "zip.entry_type", "a link or a device, not a file");
    if (e->flags & (BIT_ENCRYPTED | BIT_PATCH | BIT_STRONG | BIT_MASKED))
        return fail_at(err, e, NB_EUNSUPPORTED, "zip.flags", "encrypted or patched");
    if (nb_le16(h + 10) != 0) {
        nb_fail(err, NB_EUNSUPPORTED, "zip.method", "", "compressed (method %u); weights are read in place and must be stored",
                nb_le16(h + 10));
        nb_err_at(err, NULL, e->name);
        return NB_EUNSUPPORTED;
    }
    return packed == e->size ? NB_OK : fail_at(err, e, NB_EFORMAT, "zip.size", "a stored entry with two sizes");
}

/* A data descriptor of 12 to 24 bytes: [mark] checksum, size twice, in 32 or 64 bits. */
static bool is_descriptor(const nb_zip_entry *e, const unsigned char *p, uint64_t n)
{
    if (n == 16 || n == 24) {
        if (nb_le32(p) != DESCRIPTOR)
            return false;
        p += 4;
        n -= 4;
    }
    if (n == 12)
        return nb_le32(p) == e->crc && nb_le32(p + 4) == (uint32_t)e->size && nb_le32(p + 8) == (uint32_t)e->size;
    return n == 20 && nb_le32(p) == e->crc && nb_le64(p + 4) == e->size && nb_le64(p + 12) == e->size;
}

static int by_place(const void *a, const void *b)
{
    const nb_zip_entry *x = *(nb_zip_entry *const *)a, *y = *(nb_zip_entry *const *)b;
    return x->head < y->head ? -1 : x->head > y->head;
}

/* ZP-04: entries follow each other without overlap and without holes, from the first byte to the directory. */
static nb_status check_tiling(const nb_zip_layout *z, const unsigned char *p, uint64_t end, nb_err *err)
{
    nb_zip_entry **e = nb_alloc_array(z->n, sizeof(*e));
    nb_status rc = NB_OK;

    if (!e)
        return nb_enomem(err, "entry names");
    for (size_t i = 0; i < z->n; i++)
        e[i] = &z->e[i];
    qsort(e, z->n, sizeof(*e), by_place);
    if (e[0]->head != 0)
        rc = fail_at(err, e[0], NB_EFORMAT, "zip.gap", "bytes before the first entry");
    for (size_t i = 0; i < z->n && rc == NB_OK; i++) {
        const uint64_t stop = e[i]->data + e[i]->size, next = i + 1 < z->n ? e[i + 1]->head : end;
        if (stop > next)
            rc = fail_at(err, e[i], NB_EFORMAT, "zip.overlap", "the entry overlaps the next one or the directory");
        else if (e[i]->flags & BIT_DESCRIPTOR ? !is_descriptor(e[i], p + stop, next - stop) : stop != next)
            rc = fail_at(err, e[i], NB_EFORMAT, e[i]->flags & BIT_DESCRIPTOR ? "zip.header_mismatch" : "zip.gap",
                         "what follows the entry is not its descriptor and not the next entry");
    }
    nb_free(e);
    return rc;
}

/* ZP-07: no two names are equal, also not when letters are taken as the same in both cases. */
static nb_status index_names(nb_zip_layout *z, nb_err *err)
{
    nb_strmap *folded = nb_strmap_new(z->n);
    char low[NB_ZIP_NAME];
    bool had = false;
    nb_status rc = NB_OK;

    z->names = nb_strmap_new(z->n);
    if (!folded || !z->names)
        rc = nb_enomem(err, "entry names");
    for (size_t i = 0; i < z->n && rc == NB_OK; i++) {
        const nb_zip_entry *e = &z->e[i];
        for (size_t k = 0; k < e->name_len; k++)
            low[k] = e->name[k] >= 'A' && e->name[k] <= 'Z' ? (char)(e->name[k] + 32) : e->name[k];
        if (nb_strmap_put(folded, low, e->name_len, i, &had) != NB_OK || nb_strmap_put(z->names, e->name, e->name_len, i, NULL) != NB_OK)
            rc = nb_enomem(err, "entry names");
        else if (had)
            rc = fail_at(err, e, NB_EFORMAT, "zip.duplicate_name", "two entries have this name, or differ only in upper and lower case");
    }
    nb_strmap_free(folded);
    return rc;
}

nb_status nb_zip_layout_read(nb_zip_layout *z, const unsigned char *p, size_t n, nb_arena *a, nb_err *err)
{
    directory d = { 0 };
    uint64_t at;
    nb_status rc = find_directory(p, n, &d, err);

    *z = (nb_zip_layout){ 0 };
    if (rc != NB_OK)
        return rc;
    z->e = nb_arena_calloc(a, (size_t)d.n, sizeof *z->e);
    if (!z->e)
        return nb_enomem(err, "entry names");
    z->n = (size_t)d.n;
    at = d.at;
    for (size_t i = 0; i < z->n && rc == NB_OK; i++)
        rc = read_record(&z->e[i], p, &at, d.at + d.bytes, a, err);
    if (rc == NB_OK && at != d.at + d.bytes)
        rc = nb_fail(err, NB_EFORMAT, "zip.central", "", "%llu bytes of the directory belong to no entry",
                     (unsigned long long)(d.at + d.bytes - at));
    if (rc == NB_OK)
        rc = index_names(z, err);
    for (size_t i = 0; i < z->n && rc == NB_OK; i++)
        rc = check_local(&z->e[i], p, d.at, err);
    return rc == NB_OK ? check_tiling(z, p, d.at, err) : rc;
}

void nb_zip_layout_clear(nb_zip_layout *z)
{
    nb_strmap_free(z->names);
    z->names = NULL;
}
