/* test_hash.c - SHA-256 by the processor's instructions gives what plain C gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "kern/kern.h"

static void test_plain(void **state)
{
    nb_sha256_fn *const best = nb_kern_sha256(nb_cpu_features());
    uint8_t data[64 * 5 + 1];
    nb_sha256 plain, fast;

    (void)state;
    assert_true(nb_kern_sha256(0) == nb_sha256_blocks);
    nb_sha256_init(&plain);
    nb_sha256_init_by(&fast, best);
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned j = 0; j < sizeof data; j++)
            data[j] = (uint8_t)(nb_rng_uniform(1, i, j) * 256);
        nb_sha256_add(&plain, data, i % sizeof data);
        nb_sha256_add(&fast, data, i % sizeof data);
        assert_memory_equal(plain.h, fast.h, sizeof plain.h);
        nb_sha256_add(&plain, data, sizeof data);
        nb_sha256_add(&fast, data, sizeof data);
        assert_memory_equal(plain.h, fast.h, sizeof plain.h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plain) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
