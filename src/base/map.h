/* map.h - whole-file mappings for reading, and files and directories that appear only when complete.
 *
 * Reading: the file is opened once (regular files only, O_CLOEXEC), sized, mapped read-only. Touching a mapping whose
 * file has shrunk raises SIGBUS: nb_map_still() tells before and after a long read (hardening FS-11, FS-12); a handler
 * for the rest is the program's business.
 * Writing: exclusive, no-follow temporary beside the target, fsync, rename. */
#ifndef NB_BASE_MAP_H
#define NB_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct nb_map {
    const unsigned char *base; /* NULL for an empty file */
    size_t size;
    int fd;                    /* -1 when closed, or given back because descriptors run short */
    char *path;                /* own copy */
    int64_t mtime_s, mtime_ns; /* when it was opened */
} nb_map;

/* Map `path` read-only. out is the caller's struct. Errors: NB_EOPEN "io.not_found", "io.permission",
 * "io.symlink_loop", "io.not_regular"; NB_EREAD "io.read"; NB_ELIMIT "limit.file" when it does not fit the
 * address space. A directory, FIFO, socket or device is refused without blocking. */
nb_status nb_map_open(nb_map *out, const char *path, nb_err *err);
void nb_map_close(nb_map *m); /* a zeroed or closed map is fine */

/* Has the file still the size and time it had when it was mapped? NB_EREAD "io.changed" if not. Thread safe. */
nb_status nb_map_still(const nb_map *m, nb_err *err);

/* Bytes [off, off+n) will not be read again: they no longer count as memory of this process. The page cache keeps them. */
void nb_map_drop(const nb_map *m, uint64_t off, uint64_t n);

/* Ask the system to read these bytes of a mapping soon, in the background. Any readable memory; a hint that cannot fail. */
void nb_map_want(const void *p, size_t n);

/* Read a whole small file (limit bytes at most, else NB_ELIMIT "limit.file") into an nb_alloc block, with a
 * terminating 0 not counted in *n. Caller frees with nb_free. */
nb_status nb_read_file(const char *path, size_t limit, char **out, size_t *n, nb_err *err);

/* Before work: has the file system of `path` (a file or folder to be made, of which at least the folder around it exists) room for n bytes?
 * NB_EWRITE "out.no_space"; NB_OK where that is not known. */
nb_status nb_out_room(const char *path, uint64_t n, nb_err *err);

/* One output file. nb_out_open creates "<path>.nibble-XXXXXX" exclusively. */
typedef struct nb_out nb_out;
nb_status nb_out_open(nb_out **out, const char *path, bool force, nb_err *err); /* NB_EEXISTS when present and !force */
nb_status nb_out_private(nb_out *o, nb_err *err);                               /* before writing: nobody but its owner may read it */
nb_status nb_out_write(nb_out *o, const void *p, size_t n, nb_err *err);        /* append */
/* The file will have n bytes: room for them is taken now, so that a full disk is told at once and writing is faster. NB_EWRITE; where
 * the file system cannot do this, NB_OK and nothing happens. */
nb_status nb_out_reserve(nb_out *o, uint64_t n, nb_err *err);
nb_status nb_out_pwrite(nb_out *o, uint64_t off, const void *p, size_t n, nb_err *err); /* thread safe */
nb_status nb_out_commit(nb_out *o, nb_err *err);                                        /* fsync, close, rename; frees o in any case */
void nb_out_abort(nb_out *o);                                                           /* close and remove; frees o; NULL is fine */

/* The same for jobs that can be resumed: the temporary is "<path>.part", opened again when it is there (or made of `path` when only
 * that is there: completed, but the job ended before it knew). Commit replaces `path`. keep closes and leaves what was written;
 * after a failed sync it removes the file, whose bytes can no longer be trusted (hardening DU-09). */
nb_status nb_out_reopen(nb_out **out, const char *path, nb_err *err);
nb_status nb_out_pread(nb_out *o, uint64_t off, void *p, size_t n, nb_err *err); /* NB_EREAD "io.short" past the end */
nb_status nb_out_sync(nb_out *o, nb_err *err);
void nb_out_keep(nb_out *o); /* NULL is fine */

/* One output directory: everything is written into a hidden sibling ".<name>.nibble-XXXXXX", then renamed.
 * With force an existing directory is moved aside and removed after the rename, but only if it is a directory that
 * holds a config.json or is empty (never somebody's home). An output that is one of `inputs` is NB_EEXISTS "out.is_input". */
typedef struct nb_outdir nb_outdir;
nb_status nb_outdir_open(nb_outdir **out, const char *path, bool force, const char *const *inputs, size_t n_inputs, nb_err *err);
/* For jobs that can be resumed: `staging` (same file system as path) is used instead, made when it is missing; temporaries that a
 * killed process left in it are removed. Neither abort nor a failed commit remove it. */
nb_status nb_outdir_reopen(nb_outdir **out, const char *path, const char *staging, bool force, const char *const *inputs, size_t n_inputs,
                           nb_err *err);
/* May a directory be written there? Fails as open would, without doing anything. */
nb_status nb_outdir_may(const char *path, bool force, const char *const *inputs, size_t n_inputs, nb_err *err);
const char *nb_outdir_path(const nb_outdir *d);                                                /* the staging directory */
nb_status nb_outdir_put(nb_outdir *d, const char *name, const void *p, size_t n, nb_err *err); /* a small file inside */
nb_status nb_outdir_commit(nb_outdir *d, nb_err *err);                                         /* frees d in any case */
void nb_outdir_abort(nb_outdir *d); /* removes the staging directory; NULL is fine */

#endif
