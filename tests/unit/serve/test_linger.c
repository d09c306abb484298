/* test_linger.c - who is waited for: clients that come back at once, those that never do, and a crowd that changes its mind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/linger.h"

/* n answers end at `at`, after a step of 0.1 s; one client comes `back` seconds later (< 0: never). Did the next step wait? */
static bool round_of(nb_linger *l, size_t n, double at, double back)
{
    nb_linger_step(l, n, 0.1, at);
    const bool waits = nb_linger_until(l) > at;
    if (back >= 0)
        nb_linger_came(l, at + back);
    return waits;
}

/* A sixteenth of a step, until all are back, and only after answers. */
static void test_how_long(void **state)
{
    nb_linger l;

    (void)state;
    nb_linger_init(&l);
    assert_true(nb_linger_until(&l) == 0);
    nb_linger_step(&l, 0, 0.1, 1);
    assert_true(nb_linger_until(&l) == 0);
    nb_linger_step(&l, 2, 0.1, 1);
    assert_true(nb_linger_until(&l) == 1 + 0.1 / 16);
    nb_linger_came(&l, 1.001);
    assert_true(nb_linger_until(&l) > 0);
    nb_linger_came(&l, 1.002);
    assert_true(nb_linger_until(&l) == 0);
}

/* Clients that take their time cost little: after a few answers one step of four waits. Once they come back at once, also while nobody
 * waits for them, two answers are enough. */
static void test_learning(void **state)
{
    static const double away[] = { -1, 0.05 }; /* never; long after */
    nb_linger l;
    double at = 1;

    (void)state;
    for (size_t i = 0; i < sizeof away / sizeof *away; i++) {
        int waited = 0;
        nb_linger_init(&l);
        for (int k = 0; k < 7; k++)
            assert_true(round_of(&l, 1, at += 0.2, away[i]));
        for (int k = 0; k < 40; k++)
            waited += round_of(&l, 1, at += 0.2, away[i]);
        assert_int_equal(waited, 10);
        for (int k = 0; k < 2; k++)
            round_of(&l, 1, at += 0.2, 0.001);
        for (int k = 0; k < 10; k++)
            assert_true(round_of(&l, 1, at += 0.2, 0.001));
    }
}

/* Half of the clients come back: worth it. A crowd that comes when nothing has ended teaches nothing. */
static void test_mixed(void **state)
{
    nb_linger l;
    double at = 1;

    (void)state;
    nb_linger_init(&l);
    for (int k = 0; k < 50; k++)
        assert_true(round_of(&l, 2, at += 0.2, 0.001));
    for (int k = 0; k < 50; k++)
        round_of(&l, 1, at += 0.2, -1);
    for (int k = 0; k < 50; k++)
        assert_false(round_of(&l, 0, at += 0.2, 0.001));
    assert_true(l.rate < 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_long),
        cmocka_unit_test(test_learning),
        cmocka_unit_test(test_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
