/* test_alloc_fail.c - every allocation of the base floor fails once in turn: an error comes back, nothing leaks. */
#define _XOPEN_SOURCE 700 /* nftw */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "unit/base/tmpdir.h"

static const char *dir;

/* Each returns true when it worked, false after a clean failure. */
static bool do_parse(void)
{
    static const char text[] = "{\"a\":[1,2.5,\"x\",null,true,99999999999999999999],\"b\":{\"c\":{\"d\":-1}},\"e\":1,\"f\":2,\"g\":3,"
                               "\"h\":4,\"i\":5,\"j\":6,\"k\":7}";
    nb_json *v = NULL;
    nb_err e = { 0 };
    const nb_status rc = nb_json_parse(text, sizeof text - 1, "cfg", 0, &v, &e);

    assert_int_equal(e.code, rc);
    if (rc != NB_OK) {
        assert_int_equal(rc, NB_ENOMEM);
        assert_null(v);
        return false;
    }
    for (size_t i = 0; i < nb_json_len(v); i++) /* works without the index too */
        assert_non_null(nb_json_member(v, i, NULL));
    nb_json_free(v);
    return true;
}

static bool do_build(void)
{
    nb_json *o = nb_json_new_obj(), *a = nb_json_new_arr();
    bool ok = true;
    char *t;

    for (int i = 0; i < 20; i++)
        ok &= nb_json_push(a, nb_json_new_int(i));
    ok &= nb_json_set(o, "list", a);
    ok &= nb_json_set(o, "real", nb_json_new_real(0.5));
    ok &= nb_json_set(o, "copy", nb_json_copy(nb_json_get(o, "list")));
    t = ok ? nb_json_dump(o, 2, false) : NULL;
    ok = ok && t;
    nb_free(t);
    nb_json_free(o);
    return ok;
}

static bool do_strmap(void)
{
    nb_strmap *m = nb_strmap_new(0);
    bool ok = m != NULL;
    uint64_t v;

    for (uint64_t i = 0; ok && i < 500; i++) {
        char key[32];
        const int n = snprintf(key, sizeof key, "key %u with some length", (unsigned)i);
        ok = nb_strmap_put(m, key, (size_t)n, i, NULL) == NB_OK;
        if (!ok) /* the failed one is not there, the earlier ones are */
            assert_true(!nb_strmap_get(m, key, (size_t)n, NULL) && nb_strmap_count(m) == i);
        if (i > 0)
            assert_true(nb_strmap_get(m, "key 0 with some length", 22, &v) && v == 0);
    }
    nb_strmap_free(m);
    return ok;
}

static bool do_arena(void)
{
    nb_arena a = { 0 };
    bool ok = true;

    for (int i = 0; ok && i < 300; i++)
        ok = nb_arena_printf(&a, "%0*d", i * 10, i) != NULL;
    nb_arena_clear(&a);
    return ok;
}

static bool do_files(void)
{
    char p[300];
    nb_outdir *d;
    nb_map m = { 0 };
    nb_err e = { 0 };
    char *text = NULL;
    size_t n;
    nb_status rc = nb_outdir_open(&d, at(p, dir, "m"), true, (const char *const[]){ "x" }, 1, &e);

    if (rc == NB_OK) {
        rc = nb_outdir_put(d, "config.json", "{}", 2, &e);
        if (rc == NB_OK)
            rc = nb_outdir_commit(d, &e);
        else
            nb_outdir_abort(d);
    }
    if (rc == NB_OK)
        rc = nb_map_open(&m, at(p, dir, "m/config.json"), &e);
    if (rc == NB_OK) {
        nb_map_close(&m);
        rc = nb_read_file(p, 100, &text, &n, &e);
        nb_free(text);
    }
    assert_int_equal(e.code, rc);
    if (rc != NB_OK)
        assert_int_equal(rc, NB_ENOMEM);
    assert_true(count_entries(dir) <= 1); /* no staging left */
    return rc == NB_OK;
}

static void each_allocation(void **state)
{
    static const struct {
        const char *label;
        bool (*run)(void);
    } rows[] = {
        { "json parse", do_parse }, { "json build", do_build }, { "strmap", do_strmap }, { "arena", do_arena }, { "files", do_files }
    };

    dir = *state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        uint64_t total, now;

        assert_true(rows[r].run()); /* and whatever is made once per process */
        nb_mem_fail_at(0);
        assert_true(rows[r].run());
        total = nb_mem_fail_at(0);
        assert_true(total > 2);
        now = nb_mem_now();
        for (uint64_t i = 1; i <= total; i++) {
            bool ok;

            nb_mem_fail_at(i);
            ok = rows[r].run();
            nb_mem_fail_at(0);
            /* the last one of parsing is the member index, which can be done without; all else must tell */
            if (ok && !(rows[r].run == do_parse && i == total))
                fail_msg("%s: allocation %u of %u failed unnoticed", rows[r].label, (unsigned)i, (unsigned)total);
            if (nb_mem_now() != now)
                fail_msg("%s: allocation %u of %u leaks", rows[r].label, (unsigned)i, (unsigned)total);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(each_allocation, tmp_setup, tmp_teardown) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
