/* io_test.h - scratch files for the tests of this floor, and one way to say what went wrong in a row. */
#ifndef NB_TESTS_IO_TEST_H
#define NB_TESTS_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/err.h"
#include "base/mem.h"

static char scratch_dir[64];

/* A path inside this process's scratch directory; four results live at a time. */
static inline const char *scratch(const char *name)
{
    static char path[4][400];
    static int at;

    if (scratch_dir[0] == '\0') {
        snprintf(scratch_dir, sizeof scratch_dir, "/tmp/nibble-test-XXXXXX");
        if (!mkdtemp(scratch_dir))
            abort();
    }
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", scratch_dir, name);
    return path[at];
}

static inline const char *scratch_file(const char *name, const void *p, size_t n)
{
    const char *path = scratch(name);
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(p, 1, n, f) != n || fclose(f) != 0)
        abort();
    return path;
}

static inline int scratch_remove(void **state)
{
    char cmd[128];

    (void)state;
    if (scratch_dir[0] == '\0')
        return 0;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", scratch_dir);
    return system(cmd);
}

/* Fail with label and sentence unless status and class are the wanted ones. */
static inline void expect(const char *label, nb_status rc, const nb_err *err, nb_status want, const char *cls)
{
    if (rc != want || (want != NB_OK && strcmp(err->cls, cls) != 0))
        fail_msg("%s: got %d %s (%s: %s), want %d %s", label, (int)rc, err->cls, err->subject, err->what, (int)want, cls);
    if (want != NB_OK && (err->what[0] == '\0' || strchr(err->what, '\n')))
        fail_msg("%s: not one sentence: \"%s\"", label, err->what);
}

#endif
