/* test_bits.c - 16-bit floats, exhaustively, and unaligned little-endian access. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/bits.h"

/* The value a binary16 pattern stands for, by the definition of the format. */
static double f16_value(uint16_t h)
{
    const int exp = h >> 10 & 31, man = h & 1023;
    const double mag = exp == 0 ? ldexp(man, -24) : exp == 31 ? (man ? NAN : INFINITY) : ldexp(1024 + man, exp - 25);

    return h & 0x8000 ? -mag : mag;
}

static void f16_round_trip(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t h = (uint16_t)i;
        const float f = nb_f16_to_f32(h);
        const double want = f16_value(h);

        if (isnan(want)) {
            assert_true(isnan(f));
            assert_true(isnan(nb_f16_to_f32(nb_f32_to_f16(f))));
            continue;
        }
        assert_true((double)f == want);
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(nb_f32_to_f16(f), h);
    }
}

/* Between each pair of finite neighbours: the tie goes to even, a step off the tie to the nearer. */
static void f16_ties(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        const float lo = nb_f16_to_f32(h), hi = nb_f16_to_f32((uint16_t)(h + 1));
        const float mid = (lo + hi) / 2; /* exact: one bit more than binary16 */

        assert_int_equal(nb_f32_to_f16(mid), h & 1 ? h + 1 : h);
        assert_int_equal(nb_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(nb_f32_to_f16(nextafterf(mid, hi)), h + 1);
        assert_int_equal(nb_f32_to_f16(-mid), (h & 1 ? h + 1 : h) | 0x8000);
    }
}

static void bf16_round_trip_and_ties(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t h = (uint16_t)i;
        const float f = nb_bf16_to_f32(h);

        assert_int_equal(nb_bits_from_f32(f), i << 16);
        if (isnan(f)) {
            assert_true(isnan(nb_bf16_to_f32(nb_f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(nb_f32_to_bf16(f), h);
        if ((h & 0x7fff) < 0x7f80) {
            assert_int_equal(nb_f32_to_bf16(nb_f32_from_bits(i << 16 | 0x7fff)), h);
            assert_int_equal(nb_f32_to_bf16(nb_f32_from_bits(i << 16 | 0x8000)), h & 1 ? h + 1 : h);
            assert_int_equal(nb_f32_to_bf16(nb_f32_from_bits(i << 16 | 0x8001)), h + 1);
        }
    }
}

static void f16_edges(void **state)
{
    static const struct {
        const char *label;
        uint32_t in;
        uint16_t out;
    } rows[] = {
        { "largest finite", 0x477fe000, 0x7bff },
        { "just under the tie to Inf", 0x477fefff, 0x7bff },
        { "tie to Inf", 0x477ff000, 0x7c00 },
        { "largest float", 0x7f7fffff, 0x7c00 },
        { "Inf", 0x7f800000, 0x7c00 },
        { "-Inf", 0xff800000, 0xfc00 },
        { "NaN with low payload", 0x7f800001, 0x7e00 },
        { "half of the smallest subnormal", 0x33000000, 0x0000 },
        { "a hair more", 0x33000001, 0x0001 },
        { "smallest float", 0x00000001, 0x0000 },
        { "-0", 0x80000000, 0x8000 },
        { "largest subnormal rounds up to normal", 0x387fffff, 0x0400 },
        { "smallest normal", 0x38800000, 0x0400 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (nb_f32_to_f16(nb_f32_from_bits(rows[i].in)) != rows[i].out)
            fail_msg("%s: got %04x", rows[i].label, nb_f32_to_f16(nb_f32_from_bits(rows[i].in)));
}

static void nan_stays_nan(void **state)
{
    (void)state;
    for (uint32_t bit = 0; bit < 23; bit++) {
        const float f = nb_f32_from_bits(0x7f800000u | 1u << bit);
        assert_true(isnan(nb_f16_to_f32(nb_f32_to_f16(f))));
        assert_true(isnan(nb_bf16_to_f32(nb_f32_to_bf16(f))));
    }
}

static void little_endian(void **state)
{
    unsigned char b[12] = { 0xee, 1, 2, 3, 4, 5, 6, 7, 0x88, 0xee };

    (void)state;
    assert_int_equal(nb_le16(b + 1), 0x0201);
    assert_int_equal(nb_le32(b + 1), 0x04030201);
    assert_true(nb_le64(b + 1) == 0x8807060504030201u);
    nb_put_le64(b + 3, 0x8807060504030201u);
    assert_true(nb_le64(b + 3) == 0x8807060504030201u);
    nb_put_le32(b + 1, 0xfffefdfcu);
    assert_int_equal(nb_le32(b + 1), 0xfffefdfcu);
    nb_put_le16(b + 1, 0xabcd);
    assert_int_equal(b[1], 0xcd);
    assert_int_equal(b[2], 0xab);
    assert_int_equal(b[0], 0xee);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trip), cmocka_unit_test(f16_ties),      cmocka_unit_test(bf16_round_trip_and_ties),
        cmocka_unit_test(f16_edges),      cmocka_unit_test(nan_stays_nan), cmocka_unit_test(little_endian),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
