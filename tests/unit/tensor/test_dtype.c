/* test_dtype.c - names of element types, conversion, sizes of shapes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

static void names(void **state)
{
    (void)state;
    for (unsigned i = 1; i < NB_DT_COUNT; i++) {
        const nb_dtype_row *r = nb_dtype_info((nb_dtype)i);
        assert_non_null(r->name);
        assert_true(r->bits > 0);
        assert_int_equal(nb_dtype_from_name(r->name), i);
        if (r->st)
            assert_int_equal(nb_dtype_from_st(r->st, strlen(r->st)), i);
        if (r->torch)
            assert_int_equal(nb_dtype_from_torch(r->torch), i);
    }
    assert_string_equal(nb_dtype_info(NB_DT_NONE)->name, "none");
    assert_ptr_equal(nb_dtype_info((nb_dtype)1000), nb_dtype_info(NB_DT_NONE));
    assert_ptr_equal(nb_dtype_info((nb_dtype)-1), nb_dtype_info(NB_DT_NONE));
    assert_int_equal(nb_dtype_from_torch("torch.float16"), NB_DT_F16);
    assert_int_equal(nb_dtype_from_torch("float17"), NB_DT_NONE);
    assert_int_equal(nb_dtype_from_st("F16", 2), NB_DT_NONE);
    assert_int_equal(nb_dtype_from_st("f16", 3), NB_DT_NONE); /* the format is case sensitive */
    assert_int_equal(nb_dtype_from_st("", 0), NB_DT_NONE);
    assert_int_equal(nb_dtype_from_name("none"), NB_DT_NONE);
    assert_int_equal(nb_dtype_from_name(""), NB_DT_NONE);
}

static void widen_and_narrow(void **state)
{
    static const float in[] = { 0, -0.0f, 1, -2.5f, 0.333251953125f, 65504, 6.103515625e-05f };
    static const nb_dtype types[] = { NB_DT_F16, NB_DT_BF16, NB_DT_F32 };
    unsigned char raw[1 + 8 * NB_LEN(in)];
    float out[NB_LEN(in)];

    (void)state;
    for (size_t t = 0; t < NB_LEN(types); t++) { /* unaligned on purpose */
        assert_true(nb_from_f32(raw + 1, in, types[t], NB_LEN(in)));
        assert_true(nb_to_f32(out, raw + 1, types[t], NB_LEN(in)));
        for (size_t i = 0; i < NB_LEN(in); i++) {
            const float want = types[t] == NB_DT_BF16 ? nb_bf16_to_f32(nb_f32_to_bf16(in[i])) : in[i];
            assert_int_equal(nb_bits_from_f32(out[i]), nb_bits_from_f32(want));
        }
    }
    {
        static const double d[] = { 1.0 / 3, 1e300, -1e-320 };
        for (size_t i = 0; i < 3; i++) {
            uint64_t u;
            memcpy(&u, &d[i], 8);
            nb_put_le64(raw + 1 + 8 * i, u);
        }
        assert_true(nb_to_f32(out, raw + 1, NB_DT_F64, 3));
        assert_true(out[0] == (float)(1.0 / 3) && isinf(out[1]) && out[2] == 0 && signbit(out[2]));
    }
    out[0] = 7;
    assert_false(nb_to_f32(out, raw, NB_DT_I8, 1));
    assert_false(nb_to_f32(out, raw, NB_DT_F8_E4M3, 1));
    assert_true(out[0] == 7);
    assert_false(nb_from_f32(raw, in, NB_DT_F64, 1));
}

/* The loops against the conversion of one value, all of them, at lengths that fill no block. */
static void every_half(void **state)
{
    enum { ALL = 65536 };
    unsigned char *raw = malloc(2 * ALL + 1);
    float *out = malloc(ALL * sizeof *out);

    (void)state;
    assert_non_null(raw);
    assert_non_null(out);
    for (unsigned i = 0; i < ALL; i++)
        nb_put_le16(raw + 1 + 2 * i, (uint16_t)i);
    for (int bf = 0; bf < 2; bf++) {
        for (size_t at = 0, n = 1; at < ALL; at += n, n = n % 700 + 37)
            assert_true(nb_to_f32(out + at, raw + 1 + 2 * at, bf ? NB_DT_BF16 : NB_DT_F16, ALL - at < n ? ALL - at : n));
        for (unsigned i = 0; i < ALL; i++)
            assert_int_equal(nb_bits_from_f32(out[i]), nb_bits_from_f32(bf ? nb_bf16_to_f32((uint16_t)i) : nb_f16_to_f32((uint16_t)i)));
    }
    free(raw);
    free(out);
}

static void shapes(void **state)
{
    static const struct {
        const char *label;
        unsigned rank;
        uint64_t shape[3];
        bool ok;
        uint64_t n;
        const char *text;
    } rows[] = {
        { "scalar", 0, { 0 }, true, 1, "[]" },
        { "matrix", 2, { 576, 64 }, true, 36864, "[576, 64]" },
        { "empty", 2, { 0, 5 }, true, 0, "[0, 5]" },
        { "2^62", 2, { 1ull << 31, 1ull << 31 }, true, 1ull << 62, "[2147483648, 2147483648]" },
        { "2^63", 2, { 1ull << 32, 1ull << 31 }, false, 9, "[4294967296, 2147483648]" },
        { "2^64", 2, { 1ull << 32, 1ull << 32 }, false, 9, "[4294967296, 4294967296]" },
        { "overflow behind a zero", 3, { 0, 1ull << 32, 1ull << 32 }, false, 9, "[0, 4294967296, 4294967296]" },
        { "one huge", 1, { UINT64_MAX }, false, 9, "[18446744073709551615]" },
    };
    char s[100], tiny[5];

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        uint64_t n = 9;
        if (nb_shape_count(rows[i].shape, rows[i].rank, &n) != rows[i].ok || n != rows[i].n)
            fail_msg("%s: %llu", rows[i].label, (unsigned long long)n);
        assert_string_equal(nb_shape_str(s, sizeof s, rows[i].shape, rows[i].rank), rows[i].text);
        assert_int_equal(strncmp(nb_shape_str(tiny, sizeof tiny, rows[i].shape, rows[i].rank), rows[i].text, 4), 0);
        assert_true(strlen(tiny) <= 4);
    }
}

static void sizes(void **state)
{
    static const struct {
        const char *label;
        nb_dtype t;
        uint64_t n;
        bool ok;
        uint64_t bytes;
    } rows[] = {
        { "f16", NB_DT_F16, 3, true, 6 },
        { "f64", NB_DT_F64, 3, true, 24 },
        { "f4 even", NB_DT_F4, 6, true, 3 },
        { "f4 odd", NB_DT_F4, 3, false, 9 },
        { "f6 of four", NB_DT_F6_E2M3, 4, true, 3 },
        { "f6 of three", NB_DT_F6_E2M3, 3, false, 9 },
        { "none of any", NB_DT_F16, 0, true, 0 },
        { "overflow", NB_DT_F64, 1ull << 62, false, 9 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        uint64_t b = 9;
        if (nb_dtype_bytes(rows[i].t, rows[i].n, &b) != rows[i].ok || b != rows[i].bytes)
            fail_msg("%s: %llu", rows[i].label, (unsigned long long)b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(names), cmocka_unit_test(widen_and_narrow), cmocka_unit_test(every_half),
                                        cmocka_unit_test(shapes), cmocka_unit_test(sizes) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
