/* spill.c - see spill.h. */
#include "job/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/tmpname.h"

enum {
    HUGE_FROM = 4 << 20
}; /* bytes in memory that are worth huge pages: a block is used for one pass only, small pages cost a fault each */

/* An open file without a name, or -1 with errno set. */
static int nameless(const char *dir)
{
    nb_buf path = { 0 };
    char *tmp;
    int fd = -1;

    nb_buf_printf(&path, "%s/activations", dir);
    tmp = path.failed ? NULL : nb_tmp_name(path.p, false);
    errno = ENOMEM;
    if (tmp && (fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) >= 0)
        unlink(tmp);
    nb_free(tmp);
    nb_buf_clear(&path);
    return fd;
}

nb_status nb_spill_open(nb_spill *s, const char *dir, size_t n, size_t each, const char *what, nb_err *err)
{
    size_t count, bytes;
    nb_status rc = NB_OK;
    void *p;
    int fd, e;

    memset(s, 0, sizeof *s);
    if (!nb_mul_size(n, each, &count) || !nb_mul_size(count, sizeof *s->p, &bytes))
        return nb_enomem(err, what);
    if (!dir || bytes == 0) {
        s->p = bytes < HUGE_FROM ? nb_alloc_aligned(64, bytes) : nb_huge_alloc(bytes);
        s->bytes = bytes;
        return s->p ? NB_OK : nb_enomem(err, what);
    }
    fd = nameless(dir);
    if (fd < 0)
        return nb_write_failed(err, errno, dir, "making a file for activations");
    e = posix_fallocate(fd, 0, (off_t)bytes);
    p = e == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (e != 0)
        rc = nb_write_failed(err, e, dir, "reserving room for activations");
    else if (p == MAP_FAILED)
        rc = nb_enomem(err, what);
    close(fd);
    if (rc == NB_OK) {
        s->p = p;
        s->bytes = bytes;
        s->in_file = true;
    }
    return rc;
}

void nb_spill_settle(const nb_spill *s)
{
    if (s->in_file)
        madvise(s->p, s->bytes, MADV_DONTNEED);
}

void nb_spill_close(nb_spill *s)
{
    if (s->in_file)
        munmap(s->p, s->bytes);
    else if (s->bytes < HUGE_FROM)
        nb_free_aligned(s->p);
    else
        nb_huge_free(s->p, s->bytes);
    memset(s, 0, sizeof *s);
}
