/* test_num.c - numbers in text: whole digits, no sign, no space, nothing out of range (CR-05). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/num.h"

typedef enum kind { DEC, HEX, INT, REAL } kind;

static const struct {
    const char *label, *text;
    kind kind;
    uint64_t most;
    int used; /* bytes of the number; -1: none */
    double v;
} rows[] = {
    { "zero", "0", DEC, 9, 1, 0 },
    { "digits end at another byte", "12.x", DEC, 99, 2, 12 },
    { "leading zeros", "007", DEC, 7, 3, 7 },
    { "the greatest", "18446744073709551615", DEC, UINT64_MAX, 20, 18446744073709551615.0 },
    { "one above the greatest", "18446744073709551616", DEC, UINT64_MAX, -1, 0 },
    { "400 digits would wrap", "1111111111111111111111111111111111111111", DEC, UINT64_MAX, -1, 0 },
    { "the limit itself", "4096", DEC, 4096, 4, 4096 },
    { "one above the limit", "4097", DEC, 4096, -1, 0 },
    { "a digit above a tiny limit", "5", DEC, 3, -1, 0 },
    { "empty", "", DEC, 9, -1, 0 },
    { "minus", "-1", DEC, 9, -1, 0 },
    { "plus", "+1", DEC, 9, -1, 0 },
    { "space", " 1", DEC, 9, -1, 0 },
    { "hexadecimal digits are no decimal ones", "a", DEC, 99, -1, 0 },
    { "a prefix is no number", "0x10", DEC, 99, 1, 0 },
    { "hexadecimal", "fF;", HEX, 255, 2, 255 },
    { "hexadecimal beyond 64 bits", "10000000000000000", HEX, UINT64_MAX, -1, 0 },
    { "hexadecimal with minus", "-1", HEX, 255, -1, 0 },
    { "negative", "-128]", INT, 0, 4, -128 },
    { "the least", "-9223372036854775808", INT, 0, 20, -9223372036854775808.0 },
    { "below the least", "-9223372036854775809", INT, 0, -1, 0 },
    { "the greatest with a sign", "9223372036854775807", INT, 0, 19, 9223372036854775807.0 },
    { "above it", "9223372036854775808", INT, 0, -1, 0 },
    { "two signs", "--1", INT, 0, -1, 0 },
    { "only a sign", "-", INT, 0, -1, 0 },
    { "real", "1.5", REAL, 0, 3, 1.5 },
    { "real without whole part", ".5", REAL, 0, 2, 0.5 },
    { "real without fraction", "5.", REAL, 0, 2, 5 },
    { "exponent", "-25e-1,", REAL, 0, 6, -2.5 },
    { "an e without exponent stays behind", "1e", REAL, 0, 1, 1 },
    { "only a point", ".", REAL, 0, -1, 0 },
    { "hexadecimal real", "0x1p3", REAL, 0, 1, 0 },
    { "not a number", "nan", REAL, 0, -1, 0 },
    { "infinity", "inf", REAL, 0, -1, 0 },
    { "beyond a double", "1e400", REAL, 0, -1, 0 },
    { "space in front", " 1", REAL, 0, -1, 0 },
};

static const char *read_row(size_t i, double *v)
{
    uint64_t u = 0;
    int64_t s = 0;
    const char *end = rows[i].kind == DEC   ? nb_num_u64(rows[i].text, rows[i].most, &u)
                      : rows[i].kind == HEX ? nb_num_hex(rows[i].text, rows[i].most, &u)
                      : rows[i].kind == INT ? nb_num_i64(rows[i].text, &s)
                                            : nb_num_real(rows[i].text, v);

    if (rows[i].kind != REAL)
        *v = rows[i].kind == INT ? (double)s : (double)u;
    return end;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        double v = 0;
        const char *end = read_row(i, &v);
        const int used = end ? (int)(end - rows[i].text) : -1;
        if (used != rows[i].used || v != rows[i].v)
            fail_msg("%s: %d bytes, value %g; want %d, %g", rows[i].label, used, v, rows[i].used, rows[i].v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
