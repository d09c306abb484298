/* Format and rule tables: every row complete, names and IDs unique, shapes as written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "quant/quant.h"

static void test_rules(void **state)
{
    (void)state;
    assert_true(nb_rule_count() > 40);
    for (size_t i = 0; i < nb_rule_count(); i++) {
        const nb_rule *r = nb_rule_at(i);
        if (strlen(r->id) != 7 || r->id[3] != '-' || !r->cls || !strchr(r->cls, '.') || strlen(r->cls) >= 32 || !r->text ||
            strlen(r->text) < 40)
            fail_msg("rule %zu (%s) is incomplete", i, r->id);
        if ((r->sev == NB_SEV_REJECT) != (r->code != NB_OK))
            fail_msg("%s: severity and code do not fit", r->id);
        assert_ptr_equal(nb_rule_find(r->id), r);
    }
    assert_null(nb_rule_at(nb_rule_count()));
    assert_null(nb_rule_find("XXX-000"));
}

static void test_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < nb_format_count(); i++) {
        const nb_format *f = nb_format_at(i);
        if (!f->name || !f->method || !f->version || !f->stripe || !f->match || !f->shape || !f->unpack || !f->pack != !f->config)
            fail_msg("format %zu is incomplete", i);
        for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++)
            assert_non_null(f->parts[p].shape);
        assert_ptr_equal(nb_format_find(f->name), f);
    }
    assert_null(nb_format_find("gem"));
    assert_null(nb_format_find(NULL));
    assert_null(nb_format_at(nb_format_count()));
}

static void test_part_shape(void **state)
{
    const nb_format *f = nb_format_find("awq-gemm");
    uint64_t s[4];

    (void)state;
    assert_int_equal(nb_format_part_shape(f, 0, 96, 256, 64, 4, s), 2);
    assert_int_equal(s[0], 256);
    assert_int_equal(s[1], 12);
    assert_int_equal(nb_format_part_shape(f, 1, 96, 256, 64, 4, s), 2);
    assert_int_equal(s[0], 4);
    assert_int_equal(s[1], 12);
    assert_int_equal(nb_format_part_shape(f, 2, 96, 256, 64, 4, s), 2);
    assert_int_equal(s[0], 4);
    assert_int_equal(s[1], 96);
    assert_int_equal(nb_format_part_shape(f, 5, 96, 256, 64, 4, s), 0);
}

static void test_hit(void **state)
{
    nb_err err = { 0 };
    nb_report *r = nb_report_new();

    (void)state;
    assert_int_equal(nb_rule_hit(NULL, &err, "CFG-010", "f", "s", "a warning"), NB_OK);
    assert_int_equal(err.code, NB_OK);
    assert_int_equal(nb_rule_hit(NULL, &err, "SHP-011", "f", "s", "wrong \xe2\x86\x92 fix"), NB_EFORMAT);
    assert_string_equal(err.rule, "SHP-011");
    assert_string_equal(err.file, "f");
    assert_string_equal(err.subject, "s");
    assert_int_equal(nb_rule_hit(r, NULL, "SHP-011", "f", "s", "wrong \xe2\x86\x92 fix"), NB_OK);
    assert_string_equal(nb_report_at(r, 0)->what, "wrong");
    assert_string_equal(nb_report_at(r, 0)->next, "fix");
    assert_int_equal(nb_rule_warn(r, "SHP-001", "f", "s", "soft"), NB_OK);
    assert_int_equal(nb_report_at(r, 1)->sev, NB_SEV_WARN);
    assert_int_equal(nb_rule_hit(NULL, NULL, "XXX-000", "f", "s", "no such rule"), NB_EINTERNAL);
    nb_report_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rules), cmocka_unit_test(test_formats), cmocka_unit_test(test_part_shape),
                                        cmocka_unit_test(test_hit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
