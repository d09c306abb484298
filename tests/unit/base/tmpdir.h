/* tmpdir.h - a fresh directory per test case, as cmocka setup and teardown; *state is its path. */
#ifndef NB_TESTS_TMPDIR_H
#define NB_TESTS_TMPDIR_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static inline int tmp_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[256];

    snprintf(path, sizeof path, "%s/nbtest-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(path))
        return -1;
    *state = nb_strdup(path);
    return *state ? 0 : -1;
}

static inline int tmp_remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st, (void)kind, (void)f;
    return remove(path);
}

static inline int tmp_teardown(void **state)
{
    const int rc = nftw(*state, tmp_remove_one, 8, FTW_DEPTH | FTW_PHYS);

    nb_free(*state);
    return rc;
}

/* out = dir/name; out holds 300 bytes. */
static inline const char *at(char *out, const char *dir, const char *name)
{
    assert_true(snprintf(out, 300, "%s/%s", dir, name) < 300);
    return out;
}

static inline void put(const char *dir, const char *name, const void *p, size_t n)
{
    char path[300];
    FILE *f = fopen(at(path, dir, name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void check_file(const char *dir, const char *name, const char *text)
{
    char path[300], got[100] = "";
    FILE *f = fopen(at(path, dir, name), "rb");

    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, text);
}

/* Entries of a directory, hidden ones too. */
static inline int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = -2; /* . and .. */

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

#endif
