/* zip_layout.h - where everything lies in a zip archive of stored entries, checked byte range by byte range.
 *
 * Readers of zip files disagree on malformed ones, so nothing is forgiven: one end record, entries that tile the file from
 * its first byte to the directory, local headers that say what the directory says. Nothing is decompressed or extracted.
 * Rules ZP-01 .. ZP-10, ZP-16, ZP-17, ZP-20 of hardening 5.9. Format: PKWARE APPNOTE 6.3. */
#ifndef NB_IO_ZIP_LAYOUT_H
#define NB_IO_ZIP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/strmap.h"

enum { NB_ZIP_ENTRIES = 1000000, NB_ZIP_NAME = 1024 };

typedef struct nb_zip_entry {
    const char *name; /* terminated; relative, without "..", "\", control bytes */
    size_t name_len;
    uint64_t head; /* offset of the local header */
    uint64_t data; /* offset of the first byte   */
    uint64_t size;
    uint32_t crc;
    unsigned flags;
} nb_zip_entry;

typedef struct nb_zip_layout {
    nb_zip_entry *e; /* [n], in the order of the directory */
    size_t n;
    nb_strmap *names; /* name -> index */
} nb_zip_layout;

/* Read the layout of the archive p[0..n). Names and entries live in `a`; the struct is the caller's, cleared with
 * nb_zip_layout_clear also after a failure. Errors: "zip.*" NB_EFORMAT or NB_EUNSUPPORTED, "limit.zip_entries". */
nb_status nb_zip_layout_read(nb_zip_layout *z, const unsigned char *p, size_t n, nb_arena *a, nb_err *err);
void nb_zip_layout_clear(nb_zip_layout *z); /* a zeroed one is fine */

#endif
