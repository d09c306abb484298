/* torch_zip.h - the zip container of torch.save: which record is where, and whether its bytes have their checksum.
 *
 * The layout is checked by zip_layout.h; libzip, an independent reader, must see the same archive, and it computes the
 * checksums. Rules ZP of hardening 5.9. One handle is for one thread at a time; it borrows the bytes. */
#ifndef NB_IO_TORCH_ZIP_H
#define NB_IO_TORCH_ZIP_H

#include <stdbool.h>

#include "io/zip_layout.h"

typedef struct nb_torch_zip nb_torch_zip;

/* Open the archive p[0..n) and check version and byte order. Errors: "zip.*", "torch.*", "fmt.mismatch". */
nb_status nb_torch_zip_open(const unsigned char *p, size_t n, nb_torch_zip **out, nb_err *err);
void nb_torch_zip_close(nb_torch_zip *z); /* NULL is fine */
/* The record of this name below the archive's top folder: "data.pkl", "data/0". "torch.missing_record" when absent. */
nb_status nb_torch_zip_find(const nb_torch_zip *z, const char *name, size_t n, const nb_zip_entry **out, nb_err *err);
/* Read all bytes of a record and compare the checksum: "zip.crc" (ZP-15). Records without one pass. */
nb_status nb_torch_zip_verify(nb_torch_zip *z, const nb_zip_entry *e, nb_err *err);
/* Does a record that is not empty lack its checksum? */
bool nb_torch_zip_no_crc(const nb_torch_zip *z);

#endif
