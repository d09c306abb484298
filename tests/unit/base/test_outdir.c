/* test_outdir.c - output directories: nothing half-made, nothing of others lost (hardening U-05, DU rows). */
#define _XOPEN_SOURCE 700 /* nftw */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/map.h"
#include "unit/base/tmpdir.h"

static nb_outdir *open_ok(const char *path, bool force)
{
    nb_err e = { 0 };
    nb_outdir *d;

    if (nb_outdir_open(&d, path, force, NULL, 0, &e) != NB_OK)
        fail_msg("%s", e.what);
    return d;
}

static void commit_and_abort(void **state)
{
    const char *dir = *state;
    char p[300], sub[300];
    nb_outdir *d = open_ok(at(p, dir, "model/"), false);
    struct stat st;

    assert_int_equal(access(p, F_OK), -1); /* not there before the commit */
    assert_int_equal(count_entries(dir), 1);
    assert_non_null(strstr(nb_outdir_path(d), "/.model.nibble-"));
    assert_int_equal(nb_outdir_put(d, "config.json", "{}", 2, NULL), NB_OK);
    assert_int_equal(nb_outdir_put(d, "config.json", "[]", 2, NULL), NB_OK); /* again: replaced */
    put(nb_outdir_path(d), "data.bin", "bytes", 5);
    assert_int_equal(nb_outdir_commit(d, NULL), NB_OK);
    assert_int_equal(count_entries(dir), 1);
    check_file(dir, "model/config.json", "[]");
    check_file(dir, "model/data.bin", "bytes");
    assert_int_equal(stat(at(p, dir, "model"), &st), 0);
    assert_int_not_equal(st.st_mode & 0700, 0);

    d = open_ok(at(p, dir, "other"), false);
    assert_int_equal(nb_outdir_put(d, "a", "x", 1, NULL), NB_OK);
    assert_int_equal(mkdir(at(sub, nb_outdir_path(d), "sub"), 0777), 0);
    put(sub, "b", "x", 1);
    assert_int_equal(symlink(dir, at(sub, nb_outdir_path(d), "link")), 0);
    nb_outdir_abort(d);
    assert_int_equal(count_entries(dir), 1); /* U-05; and the link was not followed */
    check_file(dir, "model/data.bin", "bytes");
    nb_outdir_abort(NULL);
}

static void existing_rows(void **state)
{
    static const struct {
        const char *label, *file; /* what the present directory holds; NULL: nothing */
        bool force;
        nb_status rc;
    } rows[] = {
        { "DU-05 empty, no force", NULL, false, NB_EEXISTS },
        { "DU-05 model, no force", "config.json", false, NB_EEXISTS },
        { "empty, force", NULL, true, NB_OK },
        { "model, force", "config.json", true, NB_OK },
        { "somebody's home, force", "thesis.tex", true, NB_EEXISTS },
    };
    const char *dir = *state;

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char p[300], name[20];
        nb_err e = { 0 };
        nb_outdir *d;

        snprintf(name, sizeof name, "row%zu", i);
        assert_int_equal(mkdir(at(p, dir, name), 0777), 0);
        if (rows[i].file)
            put(p, rows[i].file, "old", 3);
        if (nb_outdir_open(&d, p, rows[i].force, NULL, 0, &e) != rows[i].rc)
            fail_msg("%s: %s", rows[i].label, e.what);
        if (rows[i].rc == NB_OK) {
            assert_int_equal(nb_outdir_put(d, "new.json", "new", 3, NULL), NB_OK);
            if (rows[i].file)
                check_file(p, rows[i].file, "old"); /* the old one stays until the rename */
            assert_int_equal(nb_outdir_commit(d, NULL), NB_OK);
            assert_int_equal(count_entries(p), 1);
            check_file(p, "new.json", "new");
        } else {
            assert_string_equal(e.cls, "out.exists");
            assert_null(d);
            if (rows[i].file)
                check_file(p, rows[i].file, "old");
        }
    }
    assert_int_equal(count_entries(dir), (int)NB_LEN(rows)); /* neither staging nor old ones left */
}

static void input_rows(void **state)
{
    const char *dir = *state;
    char model[300], alias[300], file[300], fresh[300];
    const char *inputs[2];
    nb_err e = { 0 };
    nb_outdir *d;

    assert_int_equal(mkdir(at(model, dir, "m"), 0777), 0);
    put(model, "config.json", "{}", 2);
    assert_int_equal(symlink("m", at(alias, dir, "alias")), 0);
    at(file, model, "config.json");
    const char *const outs[] = { model, alias };
    const char *const ins[] = { model, alias, file };
    for (size_t o = 0; o < 2; o++) {
        for (size_t i = 0; i < 3; i++) {
            inputs[0] = "no/such";
            inputs[1] = ins[i];
            nb_err_clear(&e);
            if (nb_outdir_open(&d, outs[o], true, inputs, 2, &e) != NB_EEXISTS || strcmp(e.cls, "out.is_input") != 0)
                fail_msg("DU-06 out %zu in %zu: %s", o, i, e.cls);
        }
    }
    inputs[0] = model;
    assert_int_equal(nb_outdir_open(&d, at(fresh, dir, "fresh"), true, inputs, 1, NULL), NB_OK);
    nb_outdir_abort(d);
    check_file(dir, "m/config.json", "{}");
}

static void appears_meanwhile(void **state)
{
    const char *dir = *state;
    char p[300];
    nb_err e = { 0 };
    nb_outdir *d = open_ok(at(p, dir, "m"), false);

    assert_int_equal(mkdir(p, 0777), 0);
    assert_int_equal(nb_outdir_commit(d, &e), NB_EEXISTS);
    assert_int_equal(count_entries(dir), 1);
    d = open_ok(at(p, dir, "n"), true);
    assert_int_equal(mkdir(p, 0777), 0);
    put(p, "thesis.tex", "x", 1);
    nb_err_clear(&e);
    assert_int_equal(nb_outdir_commit(d, &e), NB_EEXISTS);
    check_file(p, "thesis.tex", "x");
    assert_int_equal(count_entries(dir), 2);
}

static void bad_names(void **state)
{
    static const char *const outs[] = { "", ".", "..", "/", "a/..", "a/./" };
    static const char *const names[] = { "", ".", "..", "a/b", "../x" };
    const char *dir = *state;
    char p[300];
    nb_outdir *d;

    for (size_t i = 0; i < NB_LEN(outs); i++)
        assert_int_equal(nb_outdir_open(&d, outs[i], true, NULL, 0, NULL), NB_EARG);
    d = open_ok(at(p, dir, "m"), false);
    for (size_t i = 0; i < NB_LEN(names); i++)
        assert_int_equal(nb_outdir_put(d, names[i], "x", 1, NULL), NB_EARG);
    nb_outdir_abort(d);
    assert_int_equal(nb_outdir_open(&d, at(p, dir, "no/such/m"), false, NULL, 0, NULL), NB_EWRITE);
    assert_int_equal(count_entries(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commit_and_abort, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(existing_rows, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(input_rows, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(appears_meanwhile, tmp_setup, tmp_teardown),
        cmocka_unit_test_setup_teardown(bad_names, tmp_setup, tmp_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
