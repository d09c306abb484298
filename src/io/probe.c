/* probe.c - small looks at files: stamps, foreign formats by first bytes, UTF-8, paths. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/io_priv.h"

static void stamp_of(nb_stamp *s, const struct stat *st)
{
    s->dev = (uint64_t)st->st_dev;
    s->ino = (uint64_t)st->st_ino;
    s->size = (uint64_t)st->st_size;
    s->sec = (int64_t)st->st_mtim.tv_sec;
    s->nsec = st->st_mtim.tv_nsec;
}

nb_status nb_stamp_take(nb_stamp *s, nb_map *m, nb_err *err)
{
    struct stat st;

    if (m->fd < 0)
        return NB_OK; /* an empty file that the mapper did not keep */
    if (fstat(m->fd, &st) != 0)
        return nb_fail(err, NB_EREAD, "io.read", "", "fstat: %s", strerror(errno));
    stamp_of(s, &st);
    close(m->fd);
    m->fd = -1;
    return NB_OK;
}

nb_status nb_stamp_check(const nb_stamp *s, const char *path, nb_err *err)
{
    struct stat st;
    nb_stamp now;

    if (stat(path, &st) != 0) {
        nb_fail(err, NB_EREAD, "io.changed", "", "the file went away while it was in use: %s", strerror(errno));
        nb_err_at(err, path, NULL);
        return NB_EREAD;
    }
    stamp_of(&now, &st);
    if (now.dev == s->dev && now.ino == s->ino && now.size == s->size && now.sec == s->sec && now.nsec == s->nsec)
        return NB_OK;
    nb_fail(err, NB_EREAD, "io.changed", "", "the file changed while it was in use (%llu bytes when opened, %llu now)",
            (unsigned long long)s->size, (unsigned long long)now.size);
    nb_err_at(err, path, NULL);
    return NB_EREAD;
}

static bool starts(const unsigned char *p, size_t n, const char *with)
{
    const size_t k = strlen(with);
    return n >= k && memcmp(p, with, k) == 0;
}

nb_status nb_lfs_check(const unsigned char *p, size_t n, nb_err *err)
{
    if (!starts(p, n, "version https://git-lfs") || n > 4096)
        return NB_OK;
    return nb_fail(err, NB_EFORMAT, "fmt.mismatch", "FIL-009",
                   "is a Git LFS pointer (%zu bytes), not the weights: the download is incomplete; run: git lfs pull", n);
}

const char *nb_foreign(const unsigned char *p, size_t n)
{
    static const struct {
        const char *magic, *what;
    } rows[] = {
        { "GGUF", "a GGUF file" },
        { "PK\003\004", "a zip archive (PyTorch weights?)" },
        { "\x1f\x8b", "a gzip archive" },
        { "\x89HDF", "an HDF5 file" },
        { "<!DOCTYPE", "a web page: the download went wrong" },
        { "<!doctype", "a web page: the download went wrong" },
        { "<html", "a web page: the download went wrong" },
        { "\x80\x02", "a Python pickle" },
    };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        /* Two-byte magics could be the low bytes of a header length: the seven other bytes of one are then zero. */
        if (starts(p, n, rows[i].magic) && !(n >= 8 && memcmp(p + 4, "\0\0\0\0", 4) == 0))
            return rows[i].what;
    }
    return NULL;
}

char *nb_join(const char *dir, const char *name)
{
    nb_buf b = { 0 };

    nb_buf_puts(&b, dir);
    if (b.n > 0 && b.p[b.n - 1] != '/')
        nb_buf_putc(&b, '/');
    nb_buf_puts(&b, name);
    if (b.failed) {
        nb_buf_clear(&b);
        return NULL;
    }
    return b.p;
}

char *nb_dirname(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return nb_strdup(".");
    return slash == path ? nb_strdup("/") : nb_strndup(path, (size_t)(slash - path));
}

bool nb_ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && memcmp(s + n - k, end, k) == 0;
}

bool nb_torch_name(const char *s)
{
    return nb_ends_with(s, ".bin") || nb_ends_with(s, ".pt") || nb_ends_with(s, ".pth");
}
