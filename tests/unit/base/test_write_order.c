/* test_write_order.c - which calls make an output file, in which order, and what becomes of it when one of them fails or is not known
 * here. The calls are replaced by ones that keep a list. */
#define _GNU_SOURCE /* renameat2, fallocate */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/map.h"
#include "unit/base/tmpdir.h"

typedef enum call { NONE, RESERVE, WRITE, SYNC, CLOSE, RENAME, RENAME_ONLY, SYNC_DIR } call;
static struct {
    bool on;
    char list[400];
    call fails;
    int err;
} trace;

/* One more call; false: it is to fail, errno set. */
static bool called(call c, const char *name)
{
    const size_t n = strlen(trace.list);

    if (!trace.on)
        return true;
    snprintf(trace.list + n, sizeof trace.list - n, "%s%s", n ? " " : "", name);
    errno = trace.err;
    return c != trace.fails;
}

static bool is_dir(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
}

int fallocate(int fd, int mode, off_t off, off_t n)
{
    return called(RESERVE, "reserve") ? (int)syscall(SYS_fallocate, fd, mode, off, n) : -1;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
    return called(WRITE, "write") ? syscall(SYS_pwrite64, fd, p, n, off) : -1;
}

int fsync(int fd)
{
    const bool dir = is_dir(fd);

    return called(dir ? SYNC_DIR : SYNC, dir ? "sync-dir" : "sync") ? (int)syscall(SYS_fsync, fd) : -1;
}

int close(int fd)
{
    const bool ok = is_dir(fd) || called(CLOSE, "close");
    const int rc = (int)syscall(SYS_close, fd), e = trace.err;

    if (!ok)
        errno = e;
    return ok ? rc : -1;
}

int rename(const char *a, const char *b)
{
    return called(RENAME, "rename") ? (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0) : -1;
}

int renameat2(int fa, const char *a, int fb, const char *b, unsigned flags)
{
    return called(RENAME_ONLY, "rename-new") ? (int)syscall(SYS_renameat2, fa, a, fb, b, flags) : -1;
}

/* One file of four bytes with room for them. */
static nb_status write_one(const char *path, bool force, call fails, int e, nb_err *err)
{
    nb_out *o;
    nb_status rc;

    memset(&trace, 0, sizeof trace);
    memset(err, 0, sizeof *err);
    trace.fails = fails;
    trace.err = e;
    trace.on = true;
    rc = nb_out_open(&o, path, force, err);
    if (rc == NB_OK && (rc = nb_out_reserve(o, 4, err)) == NB_OK)
        rc = nb_out_write(o, "data", 4, err);
    if (rc == NB_OK)
        rc = nb_out_commit(o, err);
    else
        nb_out_abort(o);
    trace.on = false;
    return rc;
}

static void order(void **state)
{
    char p[300];
    nb_err err;

    assert_int_equal(write_one(at(p, *state, "new"), false, NONE, 0, &err), NB_OK);
    if (strcmp(trace.list, "reserve write sync close rename-new sync-dir") != 0)
        fail_msg("DU-01 a new file: %s", trace.list);
    assert_int_equal(write_one(p, true, NONE, 0, &err), NB_OK);
    if (strcmp(trace.list, "reserve write sync close rename sync-dir") != 0)
        fail_msg("DU-01 a file replaced: %s", trace.list);
    check_file(*state, "new", "data");
}

/* The temporary lies beside the target, is new, and has a name that no loader takes. */
static void temporary(void **state)
{
    const char *dir = *state;
    char p[300], victim[300];
    nb_out *o;
    struct dirent *e;
    size_t seen = 0;
    DIR *d;

    assert_int_equal(nb_out_open(&o, at(p, dir, "model.safetensors"), false, NULL), NB_OK);
    d = opendir(dir);
    assert_non_null(d);
    while ((e = readdir(d))) {
        const char *dot = strrchr(e->d_name, '.');
        if (e->d_name[0] == '.')
            continue;
        seen++;
        if (strncmp(e->d_name, "model.safetensors.", 18) != 0 || !dot || strncmp(dot, ".nibble-", 8) != 0)
            fail_msg("DU-04 the temporary is called %s", e->d_name);
        at(victim, dir, e->d_name);
    }
    closedir(d);
    assert_int_equal(seen, 1);
    assert_int_equal(open(victim, O_WRONLY | O_CREAT | O_EXCL, 0600), -1);
    nb_out_abort(o);
    assert_int_equal(count_entries(dir), 0);
    assert_int_equal(nb_out_reopen(&o, p, NULL), NB_OK);
    assert_int_equal(access(at(p, dir, "model.safetensors.part"), F_OK), 0); /* DU-04 of a job that can be resumed */
    nb_out_abort(o);
}

static void failures(void **state)
{
    static const struct {
        const char *label;
        call fails;
        int err;
        const char *cls;
    } rows[] = {
        { "DU-01 no room", RESERVE, ENOSPC, "out.no_space" },      { "DU-01 write fails", WRITE, EIO, "out.write" },
        { "DU-01 fsync fails", SYNC, EIO, "out.write" },           { "DU-01 close fails", CLOSE, EIO, "out.write" },
        { "DU-01 close: no room", CLOSE, ENOSPC, "out.no_space" }, { "DU-01 close: quota", CLOSE, EDQUOT, "out.no_space" },
        { "DU-01 rename fails", RENAME, EIO, "out.write" },
    };
    const char *dir = *state;
    char p[300];
    nb_err err;

    put(dir, "f", "old", 3);
    at(p, dir, "f");
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_status rc = write_one(p, true, rows[i].fails, rows[i].err, &err);

        if (rc != NB_EWRITE || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %d %s %s", rows[i].label, (int)rc, err.cls, err.what);
        check_file(dir, "f", "old");
        if (count_entries(dir) != 1)
            fail_msg("%s: something is left: %s", rows[i].label, trace.list);
    }
    if (write_one(p, true, SYNC_DIR, EIO, &err) != NB_EWRITE || strcmp(err.cls, "out.write") != 0) /* it is there, but may not stay */
        fail_msg("DU-01 fsync of the directory fails: %s", err.cls);
}

static void not_supported(void **state)
{
    static const int errs[] = { ENOSYS, EOPNOTSUPP, EINVAL };
    static const struct {
        const char *label;
        call fails;
    } rows[] = { { "DU-11 preallocate", RESERVE },
                 { "DU-11 rename without replacing", RENAME_ONLY },
                 { "DU-11 sync a directory", SYNC_DIR } };
    const char *dir = *state;
    char p[300];
    nb_err err;

    at(p, dir, "f");
    for (size_t i = 0; i < NB_LEN(rows); i++)
        for (size_t e = 0; e < NB_LEN(errs); e++) {
            nb_outdir *d;

            if (write_one(p, false, rows[i].fails, errs[e], &err) != NB_OK)
                fail_msg("%s: %s: %s %s", rows[i].label, strerror(errs[e]), err.cls, err.what);
            check_file(dir, "f", "data");
            if (rows[i].fails == RENAME_ONLY) { /* and what is there stays, as with the exclusive form */
                trace.on = true;
                assert_int_equal(nb_outdir_open(&d, at(p, dir, "dir"), false, NULL, 0, &err), NB_OK);
                assert_int_equal(mkdir(p, 0777), 0);
                assert_int_equal(nb_outdir_commit(d, &err), NB_EEXISTS);
                trace.on = false;
                assert_int_equal(rmdir(p), 0);
                at(p, dir, "f");
            }
            assert_int_equal(unlink(p), 0);
            trace.on = true;
            assert_int_equal(nb_outdir_open(&d, at(p, dir, "dir"), false, NULL, 0, &err), NB_OK);
            if (nb_outdir_commit(d, &err) != NB_OK)
                fail_msg("%s, a directory: %s: %s", rows[i].label, strerror(errs[e]), err.what);
            trace.on = false;
            assert_int_equal(rmdir(p), 0);
            at(p, dir, "f");
        }
    assert_int_equal(count_entries(dir), 0);
}

/* With force a file is replaced, but never a device: a pipe stands for /dev/null here. */
static void devices(void **state)
{
    char p[300];
    struct stat st;
    nb_err err;

    assert_int_equal(mkfifo(at(p, *state, "pipe"), 0666), 0);
    if (write_one(p, true, NONE, 0, &err) != NB_EWRITE || strcmp(err.cls, "out.write") != 0)
        fail_msg("DU-01 over a pipe: %s", err.cls);
    assert_int_equal(lstat(p, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(count_entries(*state), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(order, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(temporary, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(failures, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(not_supported, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(devices, tmp_setup, tmp_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
