/* map.c - mapping and reading of input files; output files that appear under their name only when complete. */
#define _GNU_SOURCE /* renameat2 */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/tmpname.h"

/* "File name too long" and friends, without strerror's static buffer. */
static const char *why(int e, char *buf, size_t cap)
{
    return strerror_r(e, buf, cap);
}

static nb_status open_failed(int e, const char *path, nb_err *err)
{
    char buf[128];
    nb_status rc;

    switch (e) {
    case ENOENT:
    case ENOTDIR:
        rc = nb_fail(err, NB_EOPEN, "io.not_found", "", "no such file; check the path");
        break;
    case EACCES:
    case EPERM:
        rc = nb_fail(err, NB_EOPEN, "io.permission", "", "no permission to read it");
        break;
    case ELOOP:
        rc = nb_fail(err, NB_EOPEN, "io.symlink_loop", "", "symbolic links lead in a circle");
        break;
    case ENXIO: /* a socket */
        rc = nb_fail(err, NB_EOPEN, "io.not_regular", "", "it is a socket or device, a regular file is needed");
        break;
    default:
        rc = nb_fail(err, NB_EREAD, "io.read", "", "cannot be opened: %s", why(e, buf, sizeof buf));
    }
    nb_err_at(err, path, NULL);
    return rc;
}

/* Open a regular file for reading without ever blocking; *st is its state. */
static nb_status open_regular(const char *path, int *fd, struct stat *st, nb_err *err)
{
    const char *kind;
    nb_status rc;

    do
        *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0)
        return open_failed(errno, path, err);
    if (fstat(*fd, st) != 0) {
        rc = open_failed(errno, path, err);
    } else if (!S_ISREG(st->st_mode)) {
        kind = S_ISDIR(st->st_mode) ? "directory" : S_ISFIFO(st->st_mode) ? "pipe" : S_ISSOCK(st->st_mode) ? "socket" : "device";
        rc = nb_fail(err, NB_EOPEN, "io.not_regular", "", "it is a %s, a regular file is needed", kind);
        nb_err_at(err, path, NULL);
    } else {
        return NB_OK;
    }
    close(*fd);
    *fd = -1;
    return rc;
}

/* Keep descriptors for the file system's own needs when a checkpoint has many shards (hardening FS-19). */
static bool fd_is_scarce(int fd)
{
    struct rlimit lim;

    return getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY && (rlim_t)fd >= lim.rlim_cur / 2;
}

nb_status nb_map_open(nb_map *out, const char *path, nb_err *err)
{
    struct stat st;
    nb_map m = { .fd = -1 };
    void *p = NULL;
    nb_status rc;

    *out = m;
    rc = open_regular(path, &m.fd, &st, err);
    if (rc != NB_OK)
        return rc;
    m.path = nb_strdup(path);
    if (!m.path) {
        close(m.fd);
        return nb_enomem(err, "a file name");
    }
    if (st.st_size > 0) {
        p = (uint64_t)st.st_size <= PTRDIFF_MAX ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, m.fd, 0) : MAP_FAILED;
        if (p == MAP_FAILED) {
            rc = nb_fail(err, NB_ELIMIT, "limit.file", "", "%" PRId64 " bytes cannot be mapped", (int64_t)st.st_size);
            nb_err_at(err, path, NULL);
            nb_map_close(&m);
            return rc;
        }
    }
    m.base = p;
    m.size = (size_t)st.st_size;
    m.mtime_s = st.st_mtim.tv_sec;
    m.mtime_ns = st.st_mtim.tv_nsec;
    if (fd_is_scarce(m.fd)) {
        close(m.fd);
        m.fd = -1;
    }
    *out = m;
    return NB_OK;
}

void nb_map_close(nb_map *m)
{
    if (m->base)
        munmap((void *)(uintptr_t)m->base, m->size);
    if (m->path && m->fd >= 0) /* a zeroed map holds descriptor 0, which is not ours */
        close(m->fd);
    nb_free(m->path);
    *m = (nb_map){ .fd = -1 };
}

nb_status nb_map_still(const nb_map *m, nb_err *err)
{
    struct stat st;
    nb_status rc;

    if (!m->path)
        return NB_OK;
    if ((m->fd >= 0 ? fstat(m->fd, &st) : stat(m->path, &st)) != 0)
        rc = nb_fail(err, NB_EREAD, "io.changed", "", "the file went away while in use");
    else if ((uint64_t)st.st_size != m->size)
        rc = nb_fail(err, NB_EREAD, "io.changed", "", "the file changed while in use: it had %zu bytes, now %" PRId64, m->size,
                     (int64_t)st.st_size);
    else if (st.st_mtim.tv_sec != m->mtime_s || st.st_mtim.tv_nsec != m->mtime_ns)
        rc = nb_fail(err, NB_EREAD, "io.changed", "", "the file was written to while in use");
    else
        return NB_OK;
    nb_err_at(err, m->path, NULL);
    return rc;
}

void nb_map_want(const void *p, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p / page * page;

    if (p && n > 0)
        madvise((void *)at, n + ((uintptr_t)p - at), MADV_WILLNEED);
}

/* The system maps pages of a file in blocks of up to this size, so what lies beside the range is let go with it; who still reads
 * there gets it back from the page cache. */
#define DROP_UNIT ((uintptr_t)2 << 20)

void nb_map_drop(const nb_map *m, uint64_t off, uint64_t n)
{
    const uintptr_t base = (uintptr_t)m->base, last = base + m->size;
    uintptr_t begin, end;

    if (!m->base || off >= m->size || n == 0)
        return;
    if (n > m->size - off)
        n = m->size - off;
    begin = (base + (uintptr_t)off) / DROP_UNIT * DROP_UNIT;
    end = base + (uintptr_t)(off + n);
    end = last - end < DROP_UNIT ? last : (end + DROP_UNIT - 1) / DROP_UNIT * DROP_UNIT;
    begin = begin < base ? base : begin;
    madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Read up to n bytes, past EINTR and short reads. -1 on error. */
static ssize_t read_full(int fd, char *p, size_t n)
{
    size_t got = 0;

    while (got < n) {
        const ssize_t r = read(fd, p + got, n - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        got += (size_t)r;
    }
    return (ssize_t)got;
}

nb_status nb_read_file(const char *path, size_t limit, char **out, size_t *n, nb_err *err)
{
    struct stat st;
    char buf[128];
    char *p = NULL;
    nb_status rc;
    ssize_t got;
    size_t cap;
    int fd;

    *out = NULL;
    *n = 0;
    rc = open_regular(path, &fd, &st, err);
    if (rc != NB_OK)
        return rc;
    if ((uint64_t)st.st_size > limit || (uint64_t)st.st_size > PTRDIFF_MAX - 2) {
        rc = nb_fail(err, NB_ELIMIT, "limit.file", "", "%" PRId64 " bytes, the limit for such a file is %zu", (int64_t)st.st_size, limit);
        goto done;
    }
    cap = (size_t)st.st_size + 1; /* one more than expected shows a file that grew */
    p = nb_alloc(cap);
    if (!p) {
        rc = nb_enomem(err, "a file");
        goto done;
    }
    got = read_full(fd, p, cap);
    if (got < 0) {
        rc = nb_fail(err, NB_EREAD, "io.read", "", "read failed: %s", why(errno, buf, sizeof buf));
    } else if ((size_t)got != cap - 1) {
        rc = nb_fail(err, NB_EREAD, "io.changed", "", "the file changed while it was read");
    } else {
        p[got] = 0;
        *out = p;
        *n = (size_t)got;
        p = NULL;
    }
done:
    nb_err_at(err, path, NULL);
    nb_free(p);
    close(fd);
    return rc;
}

enum { SEND_BYTES = 32 << 20 }; /* after so many bytes the disk begins to write them */

struct nb_out {
    char *path, *tmp;
    int fd;
    bool force, bad;      /* bad: a sync failed */
    uint64_t off;         /* of the next append */
    pthread_mutex_t lock; /* of the next two, and of writing: the system lets one thread write to a file, and the others spin */
    uint64_t unsent;      /* bytes since the disk was last told to begin */
};

static void out_free(nb_out *o)
{
    if (o->fd >= 0)
        close(o->fd);
    nb_free(o->path);
    nb_free(o->tmp);
    pthread_mutex_destroy(&o->lock);
    nb_free(o);
}

nb_status nb_write_failed(nb_err *err, int e, const char *path, const char *doing)
{
    const bool full = e == ENOSPC || e == EDQUOT || e == EFBIG;
    char buf[128];
    nb_status rc;

    rc = nb_fail(err, NB_EWRITE, full ? "out.no_space" : "out.write", "", "%s failed: %s", doing, why(e, buf, sizeof buf));
    nb_err_at(err, path, NULL);
    return rc;
}

bool nb_not_supported(int e)
{
    return e == ENOSYS || e == EOPNOTSUPP || e == EINVAL;
}

nb_status nb_exists_failed(nb_err *err, const char *path)
{
    const nb_status rc = nb_fail(err, NB_EEXISTS, "out.exists", "", "it exists already; use --force to replace it, or choose another name");

    nb_err_at(err, path, NULL);
    return rc;
}

nb_status nb_out_open(nb_out **out, const char *path, bool force, nb_err *err)
{
    nb_out *o = nb_calloc(1, sizeof *o);
    struct stat st;
    nb_status rc;

    *out = NULL;
    if (o && pthread_mutex_init(&o->lock, NULL) != 0) {
        nb_free(o);
        o = NULL;
    }
    if (!o)
        return nb_enomem(err, "an output file");
    o->fd = -1;
    o->force = force;
    o->path = nb_strdup(path);
    if (lstat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) {
            rc = nb_fail(err, NB_EWRITE, "out.write", "", "it is a directory, the output is one file");
            nb_err_at(err, path, NULL);
            goto fail;
        }
        if (!force) {
            rc = nb_exists_failed(err, path);
            goto fail;
        }
        if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) { /* as root, /dev/null itself would be gone */
            rc = nb_fail(err, NB_EWRITE, "out.write", "", "it is a device, a pipe or a socket, which an output would take the place of");
            nb_err_at(err, path, NULL);
            goto fail;
        }
    }
    for (int tries = 0; o->fd < 0; tries++) {
        nb_free(o->tmp);
        o->tmp = nb_tmp_name(path, false);
        if (!o->path || !o->tmp) {
            rc = nb_enomem(err, "a file name");
            goto fail;
        }
        o->fd = open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (o->fd < 0 && !(errno == EEXIST && tries < 100) && errno != EINTR) {
            rc = nb_write_failed(err, errno, path, "creating a file beside it");
            goto fail;
        }
    }
    *out = o;
    return NB_OK;
fail:
    out_free(o);
    return rc;
}

/* 0 or errno. */
static int write_full(int fd, uint64_t off, const char *p, size_t n)
{
    while (n > 0) {
        const ssize_t w = pwrite(fd, p, n, (off_t)off);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? errno : EIO;
        p += w;
        off += (uint64_t)w;
        n -= (size_t)w;
    }
    return 0;
}

nb_status nb_out_room(const char *path, uint64_t n, nb_err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? nb_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : nb_strdup(".");
    struct statvfs v;
    nb_status rc = NB_OK;

    if (!dir)
        return nb_enomem(err, "a path");
    if (statvfs(dir, &v) == 0 && (uint64_t)v.f_bavail < n / v.f_frsize + (n % v.f_frsize != 0)) {
        rc = nb_fail(err, NB_EWRITE, "out.no_space", "", "%.1f MB of disk are needed, %.1f MB are free", (double)n / 1e6,
                     (double)v.f_bavail * (double)v.f_frsize / 1e6);
        nb_err_at(err, path, NULL);
    }
    nb_free(dir);
    return rc;
}

nb_status nb_out_reserve(nb_out *o, uint64_t n, nb_err *err)
{
    if (n == 0)
        return NB_OK;
    if (n > INT64_MAX)
        return nb_write_failed(err, EFBIG, o->path, "writing");
    while (fallocate(o->fd, 0, 0, (off_t)n) != 0) {
        if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
            return nb_write_failed(err, errno, o->path, "writing");
        if (errno != EINTR)
            break;
    }
    return NB_OK;
}

nb_status nb_out_pwrite(nb_out *o, uint64_t off, const void *p, size_t n, nb_err *err)
{
    bool send;
    int e;

    if (off > INT64_MAX || n > (uint64_t)INT64_MAX - off)
        return nb_write_failed(err, EFBIG, o->path, "writing");
    pthread_mutex_lock(&o->lock);
    e = write_full(o->fd, off, p, n);
    o->unsent += n;
    send = o->unsent >= SEND_BYTES;
    if (send)
        o->unsent = 0;
    pthread_mutex_unlock(&o->lock);
    if (e)
        return nb_write_failed(err, e, o->path, "writing");
    if (send) /* a hint, so that the fsync at the end has little left to do */
        sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return NB_OK;
}

nb_status nb_out_private(nb_out *o, nb_err *err)
{
    return fchmod(o->fd, 0600) == 0 ? NB_OK : nb_write_failed(err, errno, o->path, "setting who may read it");
}

nb_status nb_out_write(nb_out *o, const void *p, size_t n, nb_err *err)
{
    const nb_status rc = nb_out_pwrite(o, o->off, p, n, err);

    if (rc == NB_OK)
        o->off += n;
    return rc;
}

nb_status nb_rename(const char *from, const char *to, bool replace, nb_err *err)
{
    struct stat st;

    if (!replace) {
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
            return NB_OK;
        if (errno == EEXIST)
            return nb_exists_failed(err, to);
        if (!nb_not_supported(errno))
            return nb_write_failed(err, errno, to, "renaming");
        if (lstat(to, &st) == 0) /* a file system without the exclusive form */
            return nb_exists_failed(err, to);
    }
    return rename(from, to) == 0 ? NB_OK : nb_write_failed(err, errno, to, "renaming");
}

nb_status nb_sync_parent(const char *path, nb_err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? nb_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : nb_strdup(".");
    nb_status rc = NB_OK;
    int fd;

    if (!dir)
        return nb_enomem(err, "a file name");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && !nb_not_supported(errno) && errno != EROFS)) /* some file systems cannot sync a directory */
        rc = nb_write_failed(err, errno, dir, "syncing the directory");
    if (fd >= 0)
        close(fd);
    nb_free(dir);
    return rc;
}

nb_status nb_out_commit(nb_out *o, nb_err *err)
{
    nb_status rc = NB_OK;
    int fd = o->fd;

    if (fsync(fd) != 0 && errno != EINVAL)
        rc = nb_write_failed(err, errno, o->path, "syncing");
    o->fd = -1;
    if (close(fd) != 0 && rc == NB_OK && errno != EINTR)
        rc = nb_write_failed(err, errno, o->path, "closing");
    if (rc == NB_OK)
        rc = nb_rename(o->tmp, o->path, o->force, err);
    if (rc == NB_OK)
        rc = nb_sync_parent(o->path, err);
    else
        unlink(o->tmp);
    out_free(o);
    return rc;
}

void nb_out_abort(nb_out *o)
{
    if (!o)
        return;
    unlink(o->tmp);
    out_free(o);
}

/* ---- files of a job that can be resumed ---- */

nb_status nb_out_reopen(nb_out **out, const char *path, nb_err *err)
{
    nb_out *o = nb_calloc(1, sizeof *o);
    nb_buf part = { 0 };
    struct stat st;

    *out = NULL;
    nb_buf_printf(&part, "%s.part", path);
    if (o) {
        o->fd = -1;
        o->force = true;
        o->path = nb_strdup(path);
        o->tmp = part.failed ? NULL : part.p;
    }
    if (!o || !o->path || !o->tmp) {
        if (o)
            nb_free(o->path);
        nb_buf_clear(&part);
        nb_free(o);
        return nb_enomem(err, "an output file");
    }
    if (lstat(o->tmp, &st) != 0 && lstat(path, &st) == 0)
        nb_rename(path, o->tmp, false, NULL); /* when it fails, the file begins anew */
    do
        o->fd = open(o->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (o->fd < 0 && errno == EINTR);
    if (o->fd < 0) {
        const nb_status rc = nb_write_failed(err, errno, o->tmp, "opening");
        out_free(o);
        return rc;
    }
    *out = o;
    return NB_OK;
}

nb_status nb_out_pread(nb_out *o, uint64_t off, void *p, size_t n, nb_err *err)
{
    char *c = p, buf[128];

    while (n > 0) {
        const ssize_t r = off > INT64_MAX ? 0 : pread(o->fd, c, n, (off_t)off);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0) {
            nb_fail(err, NB_EREAD, r < 0 ? "io.read" : "io.short", "", "%s",
                    r < 0 ? why(errno, buf, sizeof buf) : "the file ends before bytes that were written to it");
            nb_err_at(err, o->tmp, NULL);
            return NB_EREAD;
        }
        c += r;
        off += (uint64_t)r;
        n -= (size_t)r;
    }
    return NB_OK;
}

nb_status nb_out_sync(nb_out *o, nb_err *err)
{
    if (o->bad || (fsync(o->fd) != 0 && errno != EINVAL)) {
        o->bad = true;
        return nb_write_failed(err, errno, o->tmp, "syncing");
    }
    return NB_OK;
}

void nb_out_keep(nb_out *o)
{
    if (!o)
        return;
    if (o->bad)
        unlink(o->tmp);
    out_free(o);
}
