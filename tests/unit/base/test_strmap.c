/* test_strmap.c - the string index against a plain list. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "base/log.h"
#include "base/strmap.h"
#include "cputime.h"

static void put_and_get(void **state)
{
    nb_strmap *m = nb_strmap_new(0);
    uint64_t v = 99;
    bool had = true;

    (void)state;
    assert_false(nb_strmap_get(m, "a", 1, &v));
    assert_true(v == 99);
    assert_int_equal(nb_strmap_put(m, "a", 1, 5, &had), NB_OK);
    assert_false(had);
    assert_int_equal(nb_strmap_put(m, "a", 1, 6, &had), NB_OK);
    assert_true(had);
    assert_true(nb_strmap_get(m, "a", 1, &v) && v == 5);
    assert_int_equal(nb_strmap_put(m, "", 0, 7, NULL), NB_OK);
    assert_true(nb_strmap_get(m, NULL, 0, &v) && v == 7);
    assert_int_equal(nb_strmap_put(m, "a\0b", 3, 8, &had), NB_OK); /* inner zeros count */
    assert_false(had);
    assert_true(nb_strmap_get(m, "a\0b", 3, NULL));
    assert_false(nb_strmap_get(m, "a\0c", 3, NULL));
    assert_int_equal(nb_strmap_count(m), 3);
    nb_strmap_free(m);
    nb_strmap_free(NULL);
}

static void many(void **state)
{
    enum { N = 200000 };
    nb_strmap *m = nb_strmap_new(10);
    const double begin = cpu_now();
    char key[64];

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const int n = snprintf(key, sizeof key, "model.layers.%u.mlp.weight", (unsigned)i);
        bool had;
        assert_int_equal(nb_strmap_put(m, key, (size_t)n, i, &had), NB_OK);
        assert_false(had);
    }
    assert_int_equal(nb_strmap_count(m), N);
    for (uint64_t i = 0; i < N; i++) {
        const int n = snprintf(key, sizeof key, "model.layers.%u.mlp.weight", (unsigned)i);
        uint64_t v;
        assert_true(nb_strmap_get(m, key, (size_t)n, &v) && v == i);
        assert_false(nb_strmap_get(m, key, (size_t)n - 1, NULL)); /* prefixes are other keys */
    }
    assert_true(cpu_now() - begin < 10);
    nb_strmap_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(put_and_get), cmocka_unit_test(many) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
