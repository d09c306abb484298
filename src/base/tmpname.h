/* tmpname.h - what map.c and outdir.c share: temporary names, and the failures and renames of output. */
#ifndef NB_BASE_TMPNAME_H
#define NB_BASE_TMPNAME_H

#include <stdbool.h>

#include "base/err.h"

/* "<path>.nibble-XXXXXX", or hidden, "<dir>/.<name>.nibble-XXXXXX"; a different one each time. NULL when out of memory;
 * freed with nb_free. */
char *nb_tmp_name(const char *path, bool hidden);
/* NB_EWRITE "out.no_space" or "out.write" for errno `e`; `doing` as in "writing". */
nb_status nb_write_failed(nb_err *err, int e, const char *path, const char *doing);
/* Does errno `e` of a call that one can do without say that the file system does not know it (hardening DU-11)? */
bool nb_not_supported(int e);
/* NB_EEXISTS "out.exists". */
nb_status nb_exists_failed(nb_err *err, const char *path);
/* Rename; without `replace` an existing target is NB_EEXISTS. */
nb_status nb_rename(const char *from, const char *to, bool replace, nb_err *err);
/* Delete a directory and everything below it, never through a symbolic link; what cannot be removed stays. */
void nb_remove_tree(const char *path);
/* fsync the directory that holds `path`. */
nb_status nb_sync_parent(const char *path, nb_err *err);

#endif
