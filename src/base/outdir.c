/* outdir.c - an output directory that appears under its name only when complete. */
#include "base/map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/tmpname.h"

#define TREE_DEPTH 16 /* of directories that nb_remove_tree follows */

struct nb_outdir {
    char *path;       /* final, without trailing slashes */
    char *tmp;        /* staging; NULL until it exists   */
    bool force, keep; /* keep: the staging directory is another's to remove */
};

char *nb_tmp_name(const char *path, bool hidden)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyz234567";
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    uint32_t r = 0;
    char tag[7];
    nb_buf b = { 0 };

    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r) {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        r = (uint32_t)ts.tv_nsec ^ (uint32_t)getpid() << 12;
    }
    for (int i = 0; i < 6; i++, r >>= 5)
        tag[i] = set[r & 31];
    tag[6] = 0;
    nb_buf_put(&b, path, (size_t)(name - path));
    nb_buf_printf(&b, "%s%s.nibble-%s", hidden ? "." : "", name, tag);
    if (b.failed)
        nb_buf_clear(&b);
    return b.p;
}

/* Delete everything below directory `fd` (closed here); never through a symbolic link. */
static void empty_dir(int fd, int depth)
{
    DIR *d = fdopendir(fd);
    struct dirent *e;

    if (!d) {
        close(fd);
        return;
    }
    while ((e = readdir(d))) {
        int sub;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) == 0 || depth == 0)
            continue;
        sub = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub < 0)
            continue;
        empty_dir(sub, depth - 1);
        unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    closedir(d);
}

void nb_remove_tree(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return;
    empty_dir(fd, TREE_DEPTH);
    rmdir(path);
}

static void outdir_free(nb_outdir *d)
{
    nb_free(d->path);
    nb_free(d->tmp);
    nb_free(d);
}

static bool same_file(const char *a, const struct stat *b)
{
    struct stat st;

    return stat(a, &st) == 0 && st.st_dev == b->st_dev && st.st_ino == b->st_ino;
}

/* Is the existing output `st` one of the inputs, or the directory that one of them lies in? */
static nb_status check_inputs(const struct stat *st, const char *path, const char *const *inputs, size_t n, nb_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *slash = strrchr(inputs[i], '/');
        char *dir = slash ? nb_strndup(inputs[i], slash == inputs[i] ? 1 : (size_t)(slash - inputs[i])) : nb_strdup(".");
        struct stat in;
        bool same;

        if (!dir)
            return nb_enomem(err, "a file name");
        same = same_file(inputs[i], st) || (stat(inputs[i], &in) == 0 && !S_ISDIR(in.st_mode) && same_file(dir, st));
        nb_free(dir);
        if (same) {
            nb_fail(err, NB_EEXISTS, "out.is_input", "", "the output is also an input, which would be lost; choose another name");
            nb_err_at(err, path, NULL);
            return NB_EEXISTS;
        }
    }
    return NB_OK;
}

/* May --force replace this directory? Only one that holds a model or nothing. */
static bool replaceable(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    bool empty = true, model = false;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        empty = false;
        model = model || strcmp(e->d_name, "config.json") == 0;
    }
    closedir(d);
    return empty || model;
}

static nb_status check_target(const nb_outdir *d, const char *const *inputs, size_t n_inputs, nb_err *err)
{
    struct stat st, link;
    nb_status rc = NB_OK;

    if (lstat(d->path, &link) != 0)
        return NB_OK;
    if (stat(d->path, &st) == 0)
        rc = check_inputs(&st, d->path, inputs, n_inputs, err);
    if (rc != NB_OK)
        return rc;
    if (!d->force)
        return nb_exists_failed(err, d->path);
    if (!S_ISDIR(link.st_mode) || !replaceable(d->path)) {
        nb_fail(err, NB_EEXISTS, "out.exists", "", "it is not a model directory (no config.json), so --force does not replace it");
        nb_err_at(err, d->path, NULL);
        return NB_EEXISTS;
    }
    return NB_OK;
}

/* The handle with its checked final name. */
static nb_status outdir_new(nb_outdir **out, const char *path, bool force, const char *const *inputs, size_t n_inputs, nb_err *err)
{
    nb_outdir *d = nb_calloc(1, sizeof *d);
    size_t n = strlen(path);
    const char *last;
    nb_status rc;

    *out = NULL;
    if (!d)
        return nb_enomem(err, "an output directory");
    while (n > 1 && path[n - 1] == '/')
        n--;
    d->force = force;
    d->path = nb_strndup(path, n);
    if (!d->path) {
        outdir_free(d);
        return nb_enomem(err, "a file name");
    }
    last = strrchr(d->path, '/');
    last = last ? last + 1 : d->path;
    if (!last[0] || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
        rc = nb_fail(err, NB_EARG, "arg.output", "", "the output directory needs a name of its own");
        nb_err_at(err, path, NULL);
    } else {
        rc = check_target(d, inputs, n_inputs, err);
    }
    if (rc == NB_OK)
        *out = d;
    else
        outdir_free(d);
    return rc;
}

nb_status nb_outdir_may(const char *path, bool force, const char *const *inputs, size_t n_inputs, nb_err *err)
{
    nb_outdir *d;
    const nb_status rc = outdir_new(&d, path, force, inputs, n_inputs, err);

    if (d)
        outdir_free(d);
    return rc;
}

nb_status nb_outdir_open(nb_outdir **out, const char *path, bool force, const char *const *inputs, size_t n_inputs, nb_err *err)
{
    nb_outdir *d;
    nb_status rc = outdir_new(&d, path, force, inputs, n_inputs, err);

    *out = NULL;
    if (rc != NB_OK)
        return rc;
    for (int tries = 0;; tries++) {
        d->tmp = nb_tmp_name(d->path, true);
        if (!d->tmp) {
            rc = nb_enomem(err, "a file name");
            goto fail;
        }
        if (mkdir(d->tmp, 0777) == 0)
            break;
        if (errno != EEXIST || tries >= 100) {
            rc = nb_write_failed(err, errno, d->path, "creating a directory beside it");
            goto fail;
        }
        nb_free(d->tmp);
    }
    *out = d;
    return NB_OK;
fail:
    outdir_free(d);
    return rc;
}

/* "*.nibble-XXXXXX": what a killed process was writing. */
static void remove_temporaries(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((e = readdir(d))) {
        const char *tag = strstr(e->d_name, ".nibble-");
        if (tag && strlen(tag) == strlen(".nibble-XXXXXX"))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

nb_status nb_outdir_reopen(nb_outdir **out, const char *path, const char *staging, bool force, const char *const *inputs, size_t n_inputs,
                           nb_err *err)
{
    nb_outdir *d;
    struct stat st;
    nb_status rc = outdir_new(&d, path, force, inputs, n_inputs, err);

    *out = NULL;
    if (rc != NB_OK)
        return rc;
    d->keep = true;
    d->tmp = nb_strdup(staging);
    if (!d->tmp)
        rc = nb_enomem(err, "a file name");
    else if (mkdir(staging, 0777) != 0 && (errno != EEXIST || lstat(staging, &st) != 0 || !S_ISDIR(st.st_mode)))
        rc = nb_write_failed(err, errno, staging, "creating the directory");
    if (rc != NB_OK) {
        outdir_free(d);
        return rc;
    }
    remove_temporaries(staging);
    *out = d;
    return NB_OK;
}

const char *nb_outdir_path(const nb_outdir *d)
{
    return d->tmp;
}

nb_status nb_outdir_put(nb_outdir *d, const char *name, const void *p, size_t n, nb_err *err)
{
    nb_out *o = NULL;
    nb_buf path = { 0 };
    nb_status rc;

    if (!name[0] || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return nb_fail(err, NB_EARG, "arg.name", "", "a file inside the output directory needs a plain name");
    nb_buf_printf(&path, "%s/%s", d->tmp, name);
    if (path.failed) {
        nb_buf_clear(&path);
        return nb_enomem(err, "a file name");
    }
    rc = nb_out_open(&o, path.p, true, err);
    if (rc == NB_OK)
        rc = nb_out_write(o, p, n, err);
    if (rc == NB_OK)
        rc = nb_out_commit(o, err);
    else
        nb_out_abort(o);
    nb_buf_clear(&path);
    return rc;
}

/* fsync every file of the staging directory and the directory itself. */
static nb_status sync_all(const nb_outdir *d, nb_err *err)
{
    const int fd = open(d->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    nb_status rc = NB_OK;
    struct dirent *e;

    if (!dir) {
        rc = nb_write_failed(err, errno, d->path, "reading the staging directory");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (rc == NB_OK && (e = readdir(dir))) {
        int f;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        f = openat(fd, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (f < 0 && errno == ELOOP) /* a link has no bytes of its own */
            continue;
        if (f < 0 || (fsync(f) != 0 && errno != EINVAL))
            rc = nb_write_failed(err, errno, d->path, "syncing");
        if (f >= 0)
            close(f);
    }
    if (rc == NB_OK && fsync(fd) != 0 && !nb_not_supported(errno))
        rc = nb_write_failed(err, errno, d->path, "syncing");
    closedir(dir);
    return rc;
}

/* Move the old directory aside, the new one in, and delete the old; back again when that fails. */
static nb_status swap_in(const nb_outdir *d, nb_err *err)
{
    char *old = nb_tmp_name(d->path, true);
    nb_status rc;

    if (!old)
        return nb_enomem(err, "a file name");
    rc = nb_rename(d->path, old, false, err);
    if (rc == NB_OK) {
        rc = nb_rename(d->tmp, d->path, false, err);
        if (rc != NB_OK)
            nb_rename(old, d->path, false, NULL);
        else
            nb_remove_tree(old);
    }
    nb_free(old);
    return rc;
}

nb_status nb_outdir_commit(nb_outdir *d, nb_err *err)
{
    nb_status rc = sync_all(d, err);
    struct stat st;

    if (rc == NB_OK && d->force && lstat(d->path, &st) == 0) {
        rc = check_target(d, NULL, 0, err); /* it may have changed since */
        if (rc == NB_OK)
            rc = swap_in(d, err);
    } else if (rc == NB_OK) {
        rc = nb_rename(d->tmp, d->path, false, err);
    }
    if (rc == NB_OK)
        rc = nb_sync_parent(d->path, err);
    else if (!d->keep)
        nb_remove_tree(d->tmp);
    outdir_free(d);
    return rc;
}

void nb_outdir_abort(nb_outdir *d)
{
    if (!d)
        return;
    if (!d->keep)
        nb_remove_tree(d->tmp);
    outdir_free(d);
}
