/* test_rtn.c - the AWQ grid and rounding to nearest: exact values of the page, recorded codes, awkward groups. */
#include "golden.h"

#include <math.h>

#include "base/bits.h"
#include "base/rng.h"
#include "solve/solve_rtn.h"

/* The matrix of quantizers 11.1. */
static void page_w(float *w, size_t n, size_t k)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++)
            w[i * k + j] = (float)((double)((53 * i + 29 * j + 11 * i * j) % 251) - 113.0) / 256.0f + (float)((i * j) % 7) / 4096.0f;
}

static void quantize(const float *w, size_t n, size_t k, size_t g, bool sym, nb_dtype t, nb_qlin *q)
{
    const nb_grid grid = { .g = g, .bits = 4, .sym = sym };

    memset(q, 0, sizeof *q);
    assert_int_equal(nb_qlin_init(q, n, k, g, 4, NULL), NB_OK);
    q->scale_dtype = t;
    assert_int_equal(nb_rtn_quantize(NULL, &grid, w, q, NULL), NB_OK);
}

static void page_values(void **state)
{
    static const struct {
        const char *label;
        bool sym;
        float s00;
        int codes[8];
        const char *crc_q, *crc_s32, *crc_s16;
    } rows[] = {
        { "asym", false, 0.0630208328f, { 0, 2, 4, 5, 7, 9, 11, 13 }, "d9da437b", "22d857d1", "ab1e573d" },
        { "sym", true, 0.0719866082f, { 2, 3, 5, 7, 8, 10, 11, 13 }, "b25b6795", "5b93b492", "9544a215" },
    };
    float w[64 * 64];
    char hex[9];

    (void)state;
    page_w(w, 64, 64);
    assert_string_equal(crc_hex(hex, w, sizeof w), "6e232674");
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_qlin q;
        uint16_t s16[128];

        quantize(w, 64, 64, 32, rows[i].sym, NB_DT_F32, &q);
        print_message("%s\n", rows[i].label);
        assert_true(fabsf(q.scales[0] - rows[i].s00) < 1e-9f);
        for (int j = 0; j < 8; j++)
            assert_int_equal(q.codes[j], rows[i].codes[j]);
        assert_string_equal(crc_hex(hex, q.codes, 64 * 64), rows[i].crc_q);
        assert_string_equal(crc_hex(hex, q.scales, 128 * 4), rows[i].crc_s32);
        if (!rows[i].sym)
            assert_string_equal(crc_hex(hex, q.zeros, 128), "9852f6b7");
        for (int j = 0; j < 128; j++)
            s16[j] = nb_f32_to_f16(q.scales[j]);
        assert_string_equal(crc_hex(hex, s16, sizeof s16), rows[i].crc_s16);
        nb_qlin_clear(&q);
    }
}

/* Rounding of the untouched matrices of the synthetic cases: zero groups, outliers, all-positive and constant groups. */
static void recorded_codes(void **state)
{
    golden g = { 0 };
    const nb_json *cases;

    (void)state;
    if (!golden_open(&g, "synthetic"))
        skip();
    cases = nb_json_get(g.meta, "awq");
    for (size_t i = 0; i < nb_json_len(cases); i++) {
        const char *tag, *dot;
        char name[160], wname[160];
        size_t n, k;
        float *w, *s;
        nb_qlin q;

        nb_json_member(cases, i, &tag);
        dot = strrchr(tag, '.');
        snprintf(wname, sizeof wname, "awq.%.*s.W", (int)(dot - tag), tag);
        w = golden_f32(&g, wname, &n, &k);
        quantize(w, n, k, 32, strcmp(dot, ".sym") == 0, NB_DT_F32, &q);
        snprintf(name, sizeof name, "awq.%s.rtn_codes", tag);
        if (memcmp(q.codes, golden_bytes(&g, name), n * k) != 0)
            fail_msg("%s: codes differ", tag);
        snprintf(name, sizeof name, "awq.%s.rtn_zero", tag);
        if (memcmp(q.zeros, golden_bytes(&g, name), n * k / 32) != 0)
            fail_msg("%s: zeros differ", tag);
        snprintf(name, sizeof name, "awq.%s.rtn_scale", tag);
        s = golden_f32(&g, name, NULL, NULL);
        if (memcmp(q.scales, s, n * k / 32 * sizeof *s) != 0)
            fail_msg("%s: scales differ", tag);
        nb_free(s);
        nb_qlin_clear(&q);
        nb_free(w);
    }
    golden_close(&g);
}

/* What a search sees is what is written, whatever type scales are stored in; in place is the same as apart. */
static void pseudo_is_dequant(void **state)
{
    const nb_grid grids[] = { { 32, 4, false, NB_DT_F32, false },
                              { 96, 4, true, NB_DT_F16, false },
                              { 24, 3, false, NB_DT_BF16, false },
                              { 8, 8, true, NB_DT_F16, false } };
    float w[16 * 96], a[16 * 96], b[16 * 96];

    (void)state;
    page_w(w, 16, 96);
    for (size_t i = 0; i < NB_LEN(grids); i++) {
        nb_qlin q = { 0 };

        assert_int_equal(nb_qlin_init(&q, 16, 96, grids[i].g, grids[i].bits, NULL), NB_OK);
        q.scale_dtype = grids[i].stored;
        assert_int_equal(nb_rtn_quantize(NULL, &grids[i], w, &q, NULL), NB_OK);
        nb_qlin_dequant(&q, a);
        memcpy(b, w, sizeof b);
        nb_rtn_pseudo(NULL, &grids[i], b, NULL, 16, 96, b);
        for (size_t j = 0; j < NB_LEN(a); j++)
            assert_true(a[j] == b[j]);
        nb_qlin_clear(&q);
    }
}

static void awkward_groups(void **state)
{
    float w[4][32];
    nb_qlin q;

    (void)state;
    for (int i = 0; i < 32; i++) {
        w[0][i] = 0.0f;                              /* all zero */
        w[1][i] = i == 7 ? 50.0f : 0.01f * (float)i; /* a lone outlier */
        w[2][i] = 1e6f + (float)(i % 2);             /* far from zero: the range is not widened */
        w[3][i] = 0.125f;                            /* constant */
    }
    quantize(&w[0][0], 4, 32, 32, false, NB_DT_F16, &q);
    assert_true(q.scales[0] > 0.0f && q.zeros[0] == 0);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(q.codes[i], 0);
        assert_int_equal(q.codes[64 + i], 15); /* z = 0: all saturate */
        assert_int_equal(q.codes[96 + i], 15);
    }
    assert_int_equal(q.codes[32 + 7], 15);
    assert_int_equal(q.codes[32 + 6], 0);
    nb_qlin_clear(&q);
}

/* Narrower grids: those tried are 1, 0.99 ... 0.5 of the range, and the first with the least error is taken, found here in float64. */
static void narrower_grids(void **state)
{
    enum { N = 40, G = 48 };
    float w[N * G];

    (void)state;
    for (size_t i = 0; i < NB_LEN(w); i++)
        w[i] = (float)(nb_rng_normal(11, 0, i) * (i % 19 == 0 ? 4 : 1));
    for (int sym = 0; sym < 2; sym++)
        for (unsigned bits = 2; bits <= 8; bits += 2) {
            const nb_grid grid = { .g = G, .bits = bits, .sym = sym, .shrinks = true, .stored = NB_DT_F16 };
            size_t narrower = 0;
            nb_qlin q = { 0 };

            assert_int_equal(nb_qlin_init(&q, N, G, G, bits, NULL), NB_OK);
            q.scale_dtype = NB_DT_F16;
            assert_int_equal(nb_rtn_quantize(NULL, &grid, w, &q, NULL), NB_OK);
            for (size_t r = 0; r < N; r++) {
                double least = INFINITY, got = 0;
                float lo, hi, s, z, v[G];
                nb_grid_range(w + r * G, G, &lo, &hi);
                for (int i = 0; i <= 50; i++) {
                    const float p = (float)(1.0 - i / 100.0);
                    double e = 0;
                    nb_grid_fit(&grid, p * lo, p * hi, &s, &z);
                    nb_grid_round(&grid, w + r * G, G, s, z, v);
                    for (size_t j = 0; j < G; j++)
                        e += ((double)v[j] - (double)w[r * G + j]) * ((double)v[j] - (double)w[r * G + j]);
                    least = e < least ? e : least;
                    if (i == 0)
                        narrower += s > q.scales[r];
                }
                for (size_t j = 0; j < G; j++) {
                    const double d = ((double)q.codes[r * G + j] - q.zeros[r]) * (double)q.scales[r] - (double)w[r * G + j];
                    got += d * d;
                }
                assert_true(got <= least * (1 + 1e-3));
            }
            assert_true(narrower > 0 || bits == 8);
            nb_qlin_clear(&q);
        }
}

static void bad_numbers(void **state)
{
    static const struct {
        const char *label;
        float v;
        nb_dtype t;
        bool finite;
        nb_status want;
    } rows[] = {
        { "scale over float16", 3e6f, NB_DT_F16, true, NB_ENUMERIC },     { "the same scale in bfloat16", 3e6f, NB_DT_BF16, true, NB_OK },
        { "NU-01 infinity", INFINITY, NB_DT_F32, false, NB_ENUMERIC },    { "NU-01 NaN", NAN, NB_DT_F32, false, NB_ENUMERIC },
        { "largest float, both signs", 3.4e38f, NB_DT_F32, true, NB_OK },
    };
    const nb_grid grid = { .g = 16, .bits = 4, .sym = false };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        float w[16] = { 0, 0.5f, -0.25f, 1.0f };
        nb_err err = { 0 };
        nb_qlin q = { 0 };

        w[9] = rows[i].v;
        assert_int_equal(nb_rtn_finite(w, 16, &err), rows[i].finite ? NB_OK : NB_ENUMERIC);
        if (!rows[i].finite)
            assert_string_equal(err.cls, "num.nonfinite_weight");
        nb_err_clear(&err);
        assert_int_equal(nb_qlin_init(&q, 1, 16, 16, 4, NULL), NB_OK);
        q.scale_dtype = rows[i].t;
        if (nb_rtn_quantize(NULL, &grid, w, &q, &err) != rows[i].want)
            fail_msg("%s: %d, %s", rows[i].label, err.code, err.what);
        nb_qlin_clear(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_values),    cmocka_unit_test(recorded_codes), cmocka_unit_test(pseudo_is_dequant),
        cmocka_unit_test(awkward_groups), cmocka_unit_test(narrower_grids), cmocka_unit_test(bad_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
