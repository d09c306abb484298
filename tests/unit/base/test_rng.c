/* test_rng.c - Philox against the known answers published with the algorithm (Random123 kat_vectors), moments. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"

static void known_answers(void **state)
{
    static const struct {
        const char *label;
        uint64_t seed, stream, counter;
        uint32_t out[4];
    } rows[] = {
        { "zeros", 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { "ones", UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { "pi", 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        uint32_t w[4];
        nb_philox(rows[i].seed, rows[i].stream, rows[i].counter, w);
        for (int k = 0; k < 4; k++)
            if (w[k] != rows[i].out[k])
                fail_msg("%s: word %d is %08x", rows[i].label, k, w[k]);
    }
}

static void moments(void **state)
{
    enum { N = 100000 };
    double u1 = 0, n1 = 0, n2 = 0, n4 = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = nb_rng_uniform(1, 2, i), z = nb_rng_normal(1, 3, i);
        assert_true(u >= 0 && u < 1);
        assert_true(isfinite(z));
        u1 += u;
        n1 += z;
        n2 += z * z;
        n4 += z * z * z * z;
    }
    /* five standard errors each; the stream is fixed, so the verdict is too */
    assert_true(fabs(u1 / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(n1 / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(n2 / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(n4 / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(nb_rng_uniform(1, 2, 7) == nb_rng_uniform(1, 2, 7));
    assert_true(nb_rng_uniform(1, 2, 7) != nb_rng_uniform(1, 3, 7));
    assert_true(nb_rng_uniform(1, 2, 7) != nb_rng_uniform(2, 2, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(known_answers), cmocka_unit_test(moments) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
