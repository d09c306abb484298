/* test_map.c - mapping and reading of odd files (hardening FS rows), and single output files (DU rows). */
#define _XOPEN_SOURCE 700 /* nftw */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "unit/base/tmpdir.h"

static void map_rows(void **state)
{
    static const struct {
        const char *label, *name;
        nb_status rc;
        const char *cls;
    } rows[] = {
        { "FS-01 absent", "absent", NB_EOPEN, "io.not_found" },
        { "FS-01 component is a file", "plain/x", NB_EOPEN, "io.not_found" },
        { "FS-02 no permission", "locked", NB_EOPEN, "io.permission" },
        { "FS-03 directory", "dir", NB_EOPEN, "io.not_regular" },
        { "FS-04 pipe", "pipe", NB_EOPEN, "io.not_regular" },
        { "FS-04 socket", "sock", NB_EOPEN, "io.not_regular" },
        { "FS-06 symlink loop", "loop", NB_EOPEN, "io.symlink_loop" },
        { "FS-05 zero bytes", "empty", NB_OK, "" },
        { "FS-07 symlink to a file", "link", NB_OK, "" },
        { "FS-08 strange name", "a b\n\x1b%s\xff", NB_OK, "" },
    };
    const char *dir = *state;
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    const int s = socket(AF_UNIX, SOCK_STREAM, 0);
    char p[300];

    put(dir, "plain", "hello", 5);
    put(dir, "empty", "", 0);
    put(dir, "a b\n\x1b%s\xff", "hello", 5);
    put(dir, "locked", "hello", 5);
    assert_int_equal(chmod(at(p, dir, "locked"), 0), 0);
    assert_int_equal(mkdir(at(p, dir, "dir"), 0777), 0);
    assert_int_equal(mkfifo(at(p, dir, "pipe"), 0666), 0);
    assert_int_equal(symlink("plain", at(p, dir, "link")), 0);
    assert_int_equal(symlink("loop", at(p, dir, "loop")), 0);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/sock", dir);
    assert_int_equal(bind(s, (struct sockaddr *)&sa, sizeof sa), 0);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err e = { 0 };
        nb_map m = { 0 };
        char *text = NULL;
        size_t n = 9;
        nb_status rc;

        if (rows[i].rc != NB_OK && strcmp(rows[i].name, "locked") == 0 && geteuid() == 0) { /* root may read everything */
            printf("skipped: %s: running as root\n", rows[i].label);
            continue;
        }
        rc = nb_map_open(&m, at(p, dir, rows[i].name), &e);
        if (rc != rows[i].rc || strcmp(e.cls, rows[i].cls) != 0)
            fail_msg("%s: %d %s %s", rows[i].label, (int)rc, e.cls, e.what);
        assert_int_equal(rc == NB_OK && m.size == 5, rc == NB_OK && strcmp(rows[i].name, "empty") != 0);
        if (rc != NB_OK)
            assert_non_null(strstr(e.file, dir));
        if (m.size == 5)
            assert_memory_equal(m.base, "hello", 5);
        nb_map_close(&m);
        nb_map_close(&m);
        nb_err_clear(&e);
        rc = nb_read_file(p, 5, &text, &n, &e);
        if (rc != rows[i].rc || strcmp(e.cls, rows[i].cls) != 0)
            fail_msg("%s, read: %d %s %s", rows[i].label, (int)rc, e.cls, e.what);
        assert_int_equal(text != NULL, rc == NB_OK);
        if (text)
            assert_int_equal(text[n], 0);
        nb_free(text);
    }
    close(s);
    {
        nb_map m = { 0 };
        nb_err e = { 0 };
        assert_int_equal(nb_map_open(&m, "/dev/zero", &e), NB_EOPEN); /* FS-04 */
        assert_string_equal(e.cls, "io.not_regular");
    }
}

/* FS-13: memory at address 0 is a regular file's first page that cannot be read. */
static void read_error(void **state)
{
    char *text = NULL;
    size_t n;
    nb_err e = { 0 };

    (void)state;
    if (access("/proc/self/mem", R_OK) != 0) {
        printf("skipped: FS-13: no /proc/self/mem\n");
        skip();
    }
    assert_int_equal(nb_read_file("/proc/self/mem", 100, &text, &n, &e), NB_EREAD);
    assert_string_equal(e.cls, "io.read");
    assert_string_equal(e.file, "/proc/self/mem");
    assert_non_null(strstr(e.what, "Input/output error"));
    assert_null(text);
}

/* FS-14: read and pwrite of this program give one byte at a time and are interrupted every second time, while told to. */
static int drip_calls = -1;

ssize_t read(int fd, void *p, size_t n)
{
    if (drip_calls >= 0 && drip_calls++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return (ssize_t)syscall(SYS_read, fd, p, drip_calls >= 0 && n > 1 ? 1 : n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
    if (drip_calls >= 0 && drip_calls++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, p, drip_calls >= 0 && n > 1 ? 1 : n, off);
}

static void drops(void **state)
{
    const char *dir = *state;
    char p[300], *text = NULL;
    nb_status rc, wc;
    nb_out *o;
    size_t n;

    put(dir, "in", "0123456789", 10);
    assert_int_equal(nb_out_open(&o, at(p, dir, "out"), false, NULL), NB_OK);
    drip_calls = 0;
    wc = nb_out_write(o, "abcdefghij", 10, NULL);
    rc = nb_read_file(at(p, dir, "in"), 100, &text, &n, NULL);
    assert_true(drip_calls >= 40);
    drip_calls = -1;
    assert_int_equal(rc, NB_OK);
    assert_int_equal(wc, NB_OK);
    assert_int_equal(nb_out_commit(o, NULL), NB_OK);
    check_file(dir, "out", "abcdefghij");
    assert_int_equal(n, 10);
    assert_string_equal(text, "0123456789");
    nb_free(text);
}

/* Room taken beforehand changes nothing about what is written; more room than a file may have is told at once. */
static void reserved(void **state)
{
    const char *dir = *state;
    struct rlimit was, small = { .rlim_cur = 1 << 20 };
    char p[300];
    nb_out *o;
    nb_map m;
    nb_err e = { 0 };

    assert_int_equal(nb_out_open(&o, at(p, dir, "room"), true, &e), NB_OK);
    assert_int_equal(nb_out_reserve(o, 10, &e), NB_OK);
    assert_int_equal(nb_out_pwrite(o, 5, "56789", 5, &e), NB_OK);
    assert_int_equal(nb_out_pwrite(o, 0, "01234", 5, &e), NB_OK);
    assert_int_equal(nb_out_commit(o, &e), NB_OK);
    assert_int_equal(nb_map_open(&m, p, &e), NB_OK);
    assert_int_equal(m.size, 10);
    assert_memory_equal(m.base, "0123456789", 10);
    nb_map_close(&m);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(nb_out_open(&o, p, true, &e), NB_OK);
    assert_int_equal(nb_out_reserve(o, 2 << 20, &e), NB_EWRITE);
    assert_string_equal(e.cls, "out.no_space");
    nb_out_abort(o);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_DFL);
}

static void changed_while_mapped(void **state)
{
    const char *dir = *state;
    char p[300];
    nb_err e = { 0 };
    nb_map m;

    put(dir, "f", "0123456789", 10);
    assert_int_equal(nb_map_open(&m, at(p, dir, "f"), NULL), NB_OK);
    assert_int_equal(nb_map_still(&m, &e), NB_OK);
    nb_map_drop(&m, 0, 10);
    nb_map_drop(&m, 3, UINT64_MAX);
    nb_map_drop(&m, 100, 1);
    assert_memory_equal(m.base, "0123456789", 10); /* dropped bytes come back when read */
    assert_int_equal(truncate(p, 4), 0);
    assert_int_equal(nb_map_still(&m, &e), NB_EREAD); /* FS-11 */
    assert_string_equal(e.cls, "io.changed");
    nb_map_close(&m);

    put(dir, "f", "0123456789", 10);
    assert_int_equal(nb_map_open(&m, p, NULL), NB_OK);
    {
        const struct timespec when[2] = { { 5, 0 }, { 5, 0 } };
        assert_int_equal(utimensat(AT_FDCWD, p, when, 0), 0);
    }
    nb_err_clear(&e);
    assert_int_equal(nb_map_still(&m, &e), NB_EREAD); /* FS-12 same size, other time */
    nb_map_close(&m);
    assert_int_equal(nb_map_still(&m, NULL), NB_OK); /* nothing mapped, nothing changed */
}

static void sparse(void **state)
{
    const char *dir = *state;
    char p[300];
    char *text;
    size_t n;
    nb_err e = { 0 };
    nb_map m;

    put(dir, "s", "", 0);
    if (truncate(at(p, dir, "s"), ((off_t)5 << 30) + 7) != 0)
        skip();                                        /* a file system with a small limit */
    assert_int_equal(nb_map_open(&m, p, NULL), NB_OK); /* FS-09 */
    assert_true(m.size == ((size_t)5 << 30) + 7);
    assert_int_equal(m.base[m.size - 1], 0);
    nb_map_close(&m);
    assert_int_equal(nb_read_file(p, 1000, &text, &n, &e), NB_ELIMIT);
    assert_string_equal(e.cls, "limit.file");
    nb_err_clear(&e);
    for (int bits = 62; bits >= 44; bits--) /* FS-10: as large as the file system lets it be */
        if (truncate(p, (off_t)(((uint64_t)1 << bits) - 1)) == 0)
            break;
    const nb_status rc = nb_map_open(&m, p, &e);
    assert_true(rc == NB_OK || rc == NB_ELIMIT);
    nb_map_close(&m);
}

static void few_descriptors(void **state)
{
    enum { N = 100 };
    const char *dir = *state;
    struct rlimit old, low;
    nb_map m[N];
    char p[300];

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = 32;
    put(dir, "f", "0123456789", 10);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int i = 0; i < N; i++) { /* FS-19 */
        nb_err e = { 0 };
        if (nb_map_open(&m[i], at(p, dir, "f"), &e) != NB_OK)
            fail_msg("map %d: %s", i, e.what);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(nb_map_still(&m[i], NULL), NB_OK);
    assert_int_equal(truncate(p, 4), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(nb_map_still(&m[i], NULL), NB_EREAD);
        nb_map_close(&m[i]);
    }
    setrlimit(RLIMIT_NOFILE, &old);
}

static void out_rows(void **state)
{
    const char *dir = *state;
    char p[300];
    nb_err e = { 0 };
    nb_out *o;

    at(p, dir, "out.bin");
    assert_int_equal(nb_out_open(&o, p, false, NULL), NB_OK);
    assert_int_equal(access(p, F_OK), -1); /* DU-03: absent until complete */
    assert_int_equal(nb_out_write(o, "abc", 3, NULL), NB_OK);
    assert_int_equal(nb_out_write(o, "def", 3, NULL), NB_OK);
    assert_int_equal(nb_out_pwrite(o, 1, "X", 1, NULL), NB_OK);
    assert_int_equal(nb_out_commit(o, NULL), NB_OK);
    check_file(dir, "out.bin", "aXcdef");
    assert_int_equal(count_entries(dir), 1);

    assert_int_equal(nb_out_open(&o, p, false, &e), NB_EEXISTS); /* DU-05 */
    assert_string_equal(e.cls, "out.exists");
    assert_null(o);
    assert_int_equal(nb_out_open(&o, p, true, NULL), NB_OK);
    assert_int_equal(nb_out_write(o, "new", 3, NULL), NB_OK);
    check_file(dir, "out.bin", "aXcdef"); /* the old one stays until the rename */
    nb_out_abort(o);
    check_file(dir, "out.bin", "aXcdef");
    assert_int_equal(count_entries(dir), 1); /* U-05 */
    assert_int_equal(nb_out_open(&o, p, true, NULL), NB_OK);
    assert_int_equal(nb_out_write(o, "new", 3, NULL), NB_OK);
    assert_int_equal(nb_out_commit(o, NULL), NB_OK);
    check_file(dir, "out.bin", "new");
    nb_out_abort(NULL);
}

static void out_appears_meanwhile(void **state)
{
    const char *dir = *state;
    char p[300];
    nb_err e = { 0 };
    nb_out *o;

    assert_int_equal(nb_out_open(&o, at(p, dir, "x"), false, NULL), NB_OK);
    put(dir, "x", "theirs", 6);
    assert_int_equal(nb_out_commit(o, &e), NB_EEXISTS);
    check_file(dir, "x", "theirs");
    assert_int_equal(count_entries(dir), 1);
}

static void out_failures(void **state)
{
    const char *dir = *state;
    char p[300];
    struct rlimit old, low;
    nb_err e = { 0 };
    nb_out *o;

    assert_int_equal(nb_out_open(&o, at(p, dir, "no/such/x"), false, &e), NB_EWRITE);
    assert_string_equal(e.cls, "out.write");
    nb_err_clear(&e);
    assert_int_equal(nb_out_open(&o, dir, true, &e), NB_EWRITE); /* a directory */
    nb_err_clear(&e);
    assert_int_equal(nb_out_open(&o, at(p, dir, "x"), false, NULL), NB_OK);
    assert_int_equal(nb_out_pwrite(o, INT64_MAX, "ab", 2, &e), NB_EWRITE); /* DU-08 EFBIG */
    assert_string_equal(e.cls, "out.no_space");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 10;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    nb_err_clear(&e);
    assert_int_equal(nb_out_write(o, "0123456789abc", 13, &e), NB_EWRITE); /* DU-08 at the file size limit */
    setrlimit(RLIMIT_FSIZE, &old);
    assert_string_equal(e.cls, "out.no_space");
    nb_out_abort(o);
    assert_int_equal(count_entries(dir), 0);
}

static void out_replaces_link_not_target(void **state)
{
    const char *dir = *state;
    char p[300];
    struct stat st;
    nb_out *o;

    put(dir, "target", "precious", 8);
    assert_int_equal(symlink("target", at(p, dir, "link")), 0);
    assert_int_equal(nb_out_open(&o, p, true, NULL), NB_OK);
    assert_int_equal(nb_out_write(o, "new", 3, NULL), NB_OK);
    assert_int_equal(nb_out_commit(o, NULL), NB_OK);
    check_file(dir, "target", "precious");
    assert_int_equal(lstat(p, &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(map_rows, tmp_setup, tmp_teardown),
        cmocka_unit_test(read_error),
        cmocka_unit_test_setup_teardown(drops, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(changed_while_mapped, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(reserved, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(sparse, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(few_descriptors, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(out_rows, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(out_appears_meanwhile, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(out_failures, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(out_replaces_link_not_target, tmp_setup, tmp_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
