/* test_qlin.c - the hub against equation (R) in double precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/qlin.h"

static void dequant_rows(void **state)
{
    static const struct {
        const char *label;
        size_t n, k, g, n_groups;
        unsigned bits;
        bool act_order;
    } rows[] = {
        { "plain", 3, 256, 128, 2, 4, false },     { "short last group", 2, 100, 32, 4, 4, false },
        { "per channel", 4, 64, 64, 1, 8, false }, { "group larger than k", 2, 8, 32, 1, 2, false },
        { "g_idx", 3, 128, 32, 4, 4, true },       { "one", 1, 1, 1, 1, 3, false },
    };

    (void)state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        nb_qlin q = { 0 };
        float out[3 * 256];
        uint32_t w[4];

        assert_int_equal(nb_qlin_init(&q, rows[r].n, rows[r].k, rows[r].g, rows[r].bits, NULL), NB_OK);
        assert_int_equal(q.n_groups, rows[r].n_groups);
        assert_int_equal(q.cap_n, rows[r].n);
        assert_null(q.g_idx);
        if (rows[r].act_order) {
            assert_int_equal(nb_qlin_init_gidx(&q, NULL), NB_OK);
            assert_int_equal(q.g_idx[q.k - 1], 0);
            for (size_t i = 0; i < q.k; i++)
                q.g_idx[i] = (uint32_t)(i * 7 % q.n_groups);
        }
        for (size_t i = 0; i < q.n * q.k; i++) {
            nb_philox(r, 0, i, w);
            q.codes[i] = (uint8_t)(w[0] & ((1u << q.bits) - 1));
        }
        for (size_t i = 0; i < q.n * q.n_groups; i++) {
            nb_philox(r, 1, i, w);
            q.zeros[i] = (uint8_t)(w[0] & ((1u << q.bits) - 1));
            q.scales[i] = nb_f16_to_f32((uint16_t)(0x1000 + (w[1] & 0xfff))); /* 11 bits: the product is exact in f32 */
        }
        nb_qlin_dequant(&q, out);
        for (size_t i = 0; i < q.n; i++) {
            for (size_t j = 0; j < q.k; j++) {
                const size_t at = i * q.n_groups + (q.g_idx ? q.g_idx[j] : j / q.g);
                const double want = ((double)q.codes[i * q.k + j] - q.zeros[at]) * (double)q.scales[at];
                if ((double)out[i * q.k + j] != want)
                    fail_msg("%s: [%zu][%zu] is %g, not %g", rows[r].label, i, j, (double)out[i * q.k + j], want);
            }
        }
        nb_qlin_clear(&q);
        assert_null(q.codes);
        nb_qlin_clear(&q);
    }
}

static void bad_sizes(void **state)
{
    static const struct {
        const char *label;
        size_t n, k, g;
        unsigned bits;
        nb_status rc;
    } rows[] = {
        { "no rows", 0, 8, 8, 4, NB_EINTERNAL },       { "no inputs", 8, 0, 8, 4, NB_EINTERNAL },
        { "group of none", 8, 8, 0, 4, NB_EINTERNAL }, { "one bit", 8, 8, 8, 1, NB_EINTERNAL },
        { "nine bits", 8, 8, 8, 9, NB_EINTERNAL },     { "overflow", SIZE_MAX / 2, 8, 8, 4, NB_ENOMEM },
    };
    nb_qlin q;

    (void)state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        if (nb_qlin_init(&q, rows[r].n, rows[r].k, rows[r].g, rows[r].bits, NULL) != rows[r].rc)
            fail_msg("%s", rows[r].label);
        nb_qlin_clear(&q);
    }
    for (uint64_t i = 1; i <= 3; i++) {
        const uint64_t now = nb_mem_now();
        nb_mem_fail_at(i);
        assert_int_equal(nb_qlin_init(&q, 2, 8, 8, 4, NULL), NB_ENOMEM);
        nb_mem_fail_at(0);
        assert_true(nb_mem_now() == now);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(dequant_rows), cmocka_unit_test(bad_sizes) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
