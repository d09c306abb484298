/* nb_diff_run: across layouts, against floats, and every way in which two models can differ. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/io.h"
#include "job/convert.h"
#include "job/diff.h"

static char root[] = "/tmp/nibble-diff-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    char cmd[80];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static const char in[] = "tests/data/layouts/awq-gemm-g32-skip-autoawq";

static void convert(const char *from, const char *to, char out[256])
{
    nb_convert_opts o = { .force = true };
    nb_convert_sum sum;
    nb_err err = { 0 };

    snprintf(out, 256, "%s/%s", root, to);
    assert_int_equal(nb_convert_target(to, &o, &err), NB_OK);
    if (nb_convert(from, out, &o, &sum, &err) != NB_OK)
        fail_msg("%s: %s", to, err.what);
}

static void layouts_agree(void **state)
{
    static const char *const to[] = { "gptq-v2", "ct", "awq-gemv" };
    char out[256];

    (void)state;
    for (size_t i = 0; i < NB_LEN(to); i++) {
        const nb_diff_opts o = { 0 };
        nb_diff d;
        nb_err err = { 0 };
        convert(in, to[i], out);
        if (nb_diff_run(in, out, &o, &d, &err) != NB_OK)
            fail_msg("%s: %zu different, %s", to[i], d.n_different, err.what);
        assert_int_equal(d.n_quantized, 14);
        assert_int_equal(d.n_same_codes, 14);
        nb_diff_clear(&d);
    }
}

/* Against a rounded copy: values differ by at most half a step of the type, and the tolerance counts. */
static void against_floats(void **state)
{
    const nb_diff_opts exact = { 0 }, loose = { .tolerance = 0x1p-8 };
    char f32[256], bf16[256];
    nb_diff d;
    nb_err err = { 0 };

    (void)state;
    convert(in, "f32", f32);
    convert(in, "bf16", bf16);
    assert_int_equal(nb_diff_run(in, f32, &exact, &d, &err), NB_OK); /* float32 holds every product */
    assert_int_equal(d.n_quantized, 0);
    nb_diff_clear(&d);
    assert_int_equal(nb_diff_run(in, bf16, &exact, &d, &err), NB_NO);
    assert_true(d.rows[d.worst].max_abs > 0);
    for (size_t i = 0; i < d.n_rows; i++)
        assert_true(d.rows[i].max_abs <= d.rows[i].max_size * 0x1p-8);
    nb_diff_clear(&d);
    assert_int_equal(nb_diff_run(in, bf16, &loose, &d, &err), NB_OK);
    nb_diff_clear(&d);
}

/* One changed thing at a time in a copy of two tensors. */
static void write_two(const char *path, float x, bool bias, uint64_t rows)
{
    const uint64_t shape[2] = { rows, 2 }, n = 2;
    float w[4] = { 1, 2, 3, x };
    nb_sink *s;
    nb_err err = { 0 };

    assert_int_equal(nb_st_sink_file(&s, path, true, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "a.weight", NB_DT_F32, 2, shape, &err), NB_OK);
    if (bias)
        assert_int_equal(nb_sink_declare(s, "a.bias", NB_DT_F32, 1, &n, &err), NB_OK);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "a.weight", 0, w, rows * 8, &err), NB_OK);
    memset(w, 0, sizeof w);
    if (bias)
        assert_int_equal(nb_sink_write(s, "a.bias", 0, w, 8, &err), NB_OK);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
}

static void kinds(void **state)
{
    static const struct {
        const char *label;
        float xa, xb;
        bool bias_b;
        uint64_t rows_b;
        nb_status rc;
        nb_diff_kind kind;
        double max_abs;
    } rows[] = {
        { "equal", 4, 4, false, 2, NB_OK, NB_DIFF_SAME, 0 },
        { "one value", 4, 4.5f, false, 2, NB_NO, NB_DIFF_VALUES, 0.5 },
        { "NaN equals NaN", NAN, NAN, false, 2, NB_OK, NB_DIFF_SAME, 0 },
        { "NaN against a number", NAN, 4, false, 2, NB_NO, NB_DIFF_VALUES, INFINITY },
        { "signed zero is equal in value", 0.0f, -0.0f, false, 2, NB_OK, NB_DIFF_SAME, 0 },
        { "another shape", 4, 4, false, 1, NB_NO, NB_DIFF_SHAPE, 0 },
        { "a bias of zeros", 4, 4, true, 2, NB_OK, NB_DIFF_SAME, 0 },
    };
    char a[256], b[256];

    (void)state;
    snprintf(a, sizeof a, "%s/a.safetensors", root);
    snprintf(b, sizeof b, "%s/b.safetensors", root);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_diff_opts o = { 0 };
        nb_diff d;
        nb_err err = { 0 };
        write_two(a, rows[i].xa, false, 2);
        write_two(b, rows[i].xb, rows[i].bias_b, rows[i].rows_b);
        if (nb_diff_run(a, b, &o, &d, &err) != rows[i].rc || d.rows[0].kind != rows[i].kind || d.rows[0].max_abs != rows[i].max_abs)
            fail_msg("%s: kind %s, largest %g %s", rows[i].label, nb_diff_kind_name(d.rows[0].kind), d.rows[0].max_abs, err.what);
        nb_diff_clear(&d);
    }
}

static void codes_differ(void **state)
{
    const nb_diff_opts o = { 0 };
    nb_diff d;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_diff_run("tests/data/layouts/awq-gemv-gptqmodel", "tests/data/layouts/awq-gemv-fast-gptqmodel", &o, &d, &err),
                     NB_NO);
    assert_true(d.n_different > 0 && d.n_rows >= d.n_different);
    nb_diff_clear(&d);
    assert_int_equal(nb_diff_run(in, "tests/data/layouts/none", &o, &d, &err), NB_EOPEN);
    assert_null(d.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(against_floats),
        cmocka_unit_test(kinds),
        cmocka_unit_test(codes_differ),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
