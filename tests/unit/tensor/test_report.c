/* test_report.c - findings, their counts and the cap per rule. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/report.h"

static void add_and_read(void **state)
{
    nb_report *r = nb_report_new();
    nb_err e = { 0 };
    const nb_finding *f;

    (void)state;
    assert_int_equal(nb_report_add(r, NB_SEV_WARN, "fil.name", "FIL-005", "a.bin", "x", "rename it", "found %d", 3), NB_OK);
    assert_int_equal(nb_report_add(r, NB_SEV_INFO, "note", NULL, NULL, NULL, NULL, "plain"), NB_OK);
    nb_fail(&e, NB_EFORMAT, "st.truncated", "ST-001", "too short");
    nb_err_at(&e, "b.bin", "y");
    assert_int_equal(nb_report_err(r, &e), NB_OK);
    assert_int_equal(nb_report_count(r), 3);
    f = nb_report_at(r, 0);
    assert_int_equal(f->sev, NB_SEV_WARN);
    assert_string_equal(f->rule, "FIL-005");
    assert_string_equal(f->cls, "fil.name");
    assert_string_equal(f->file, "a.bin");
    assert_string_equal(f->subject, "x");
    assert_string_equal(f->what, "found 3");
    assert_string_equal(f->next, "rename it");
    f = nb_report_at(r, 1);
    assert_string_equal(f->rule, "");
    assert_string_equal(f->file, "");
    assert_string_equal(f->next, "");
    f = nb_report_at(r, 2);
    assert_int_equal(f->sev, NB_SEV_REJECT);
    assert_string_equal(f->rule, "ST-001");
    assert_string_equal(f->subject, "y");
    assert_null(nb_report_at(r, 3));
    assert_int_equal(nb_report_count_sev(r, NB_SEV_REJECT), 1);
    nb_report_free(r);
    nb_report_free(NULL);
}

static void cap_and_merge(void **state)
{
    nb_report *a = nb_report_new(), *b = nb_report_new();

    (void)state;
    for (int i = 0; i < 10050; i++)
        assert_int_equal(nb_report_add(a, NB_SEV_REJECT, "awq.order", "AWQ-004", "f", "s", "", "n %d", i), NB_OK);
    assert_int_equal(nb_report_add(a, NB_SEV_WARN, "other", "AWQ-005", "f", "s", "", "x"), NB_OK);
    assert_int_equal(nb_report_count(a), 10001);
    assert_int_equal(nb_report_count_sev(a, NB_SEV_REJECT), 10050);
    assert_string_equal(nb_report_at(a, 9999)->what, "n 9999");
    assert_int_equal(nb_report_add(b, NB_SEV_REJECT, "awq.order", "AWQ-004", "f", "s", "", "mine"), NB_OK);
    assert_int_equal(nb_report_merge(b, a), NB_OK);
    assert_int_equal(nb_report_count(b), 10001);
    assert_int_equal(nb_report_count_sev(b, NB_SEV_REJECT), 10051);
    assert_int_equal(nb_report_count_sev(b, NB_SEV_WARN), 1);
    assert_string_equal(nb_report_at(b, 0)->what, "mine");
    nb_report_free(a); /* b has its own copies */
    assert_string_equal(nb_report_at(b, 10000)->cls, "other");
    nb_report_free(b);
}

static void failing_memory(void **state)
{
    const uint64_t now = nb_mem_now();

    (void)state;
    for (uint64_t i = 1; i < 20; i++) {
        nb_report *r;
        size_t added = 0;

        nb_mem_fail_at(i);
        r = nb_report_new();
        assert_true(r || i <= 3);
        for (int k = 0; r && k < 40; k++)
            added += nb_report_add(r, NB_SEV_WARN, "c", k % 2 ? "A-1" : "A-2", "file", "subject", "next", "what") == NB_OK;
        nb_mem_fail_at(0);
        if (r) {
            assert_int_equal(nb_report_count(r), added);
            assert_int_equal(nb_report_count_sev(r, NB_SEV_WARN), added);
            assert_true(added >= 39); /* only the one call fails */
        }
        nb_report_free(r);
        assert_true(nb_mem_now() == now);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(add_and_read), cmocka_unit_test(cap_and_merge), cmocka_unit_test(failing_memory) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
