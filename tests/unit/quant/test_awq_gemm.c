/* AWQ GEMM: worked example of formats 4, checksums of formats 10, round trips over odd shapes, refusals of pack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "quant/quant.h"
#include "unit/quant/crc32.h"

typedef struct layer {
    nb_qlin q;
    unsigned char *part[3];
    size_t bytes[3];
    nb_tensor t[3];
    uint64_t shape[3][4];
    nb_linear lin;
} layer;

static void layer_init(layer *l, size_t n, size_t k, size_t g, nb_dtype scales)
{
    const nb_format *f = nb_format_find("awq-gemm");

    memset(l, 0, sizeof *l);
    assert_int_equal(nb_qlin_init(&l->q, n, k, g, 4, NULL), NB_OK);
    l->q.scale_dtype = scales;
    l->lin = (nb_linear){ .prefix = "m", .format = f, .spec = { .bits = 4, .group_size = (int64_t)g, .scale_dtype = scales } };
    for (size_t p = 0; p < 3; p++) {
        nb_tensor *t = &l->t[p];
        uint64_t count;
        static const char *const names[] = { "m.qweight", "m.qzeros", "m.scales" };
        t->name = names[p];
        t->name_len = strlen(names[p]);
        t->dtype = p == 2 ? scales : NB_DT_I32;
        t->rank = nb_format_part_shape(f, p, n, k, g, 4, l->shape[p]);
        t->shape = l->shape[p];
        t->file = "test";
        assert_true(nb_shape_count(t->shape, t->rank, &count));
        assert_true(nb_dtype_bytes(t->dtype, count, &t->n_bytes));
        l->bytes[p] = (size_t)t->n_bytes;
        l->part[p] = nb_calloc(l->bytes[p], 1);
        t->data = l->part[p];
        l->lin.parts[p] = t;
    }
}

static void layer_clear(layer *l)
{
    nb_qlin_clear(&l->q);
    for (size_t p = 0; p < 3; p++)
        nb_free(l->part[p]);
}

/* Rows [n0, n0 + n) of q as a q of its own (a view). */
static nb_qlin rows_of(const nb_qlin *q, size_t n0, size_t n)
{
    nb_qlin r = *q;

    r.n = n;
    r.codes += n0 * q->k;
    r.zeros += n0 * q->n_groups;
    r.scales += n0 * q->n_groups;
    return r;
}

static void pack_stripes(layer *l, size_t stripe)
{
    void *out[NB_MAX_PARTS] = { l->part[0], l->part[1], l->part[2] };

    for (size_t n0 = 0; n0 < l->q.n; n0 += stripe) {
        const nb_qlin r = rows_of(&l->q, n0, l->q.n - n0 < stripe ? l->q.n - n0 : stripe);
        nb_err err = { 0 };
        if (l->lin.format->pack(&r, n0, l->q.n, out, &err) != NB_OK)
            fail_msg("pack at %zu: %s", n0, err.what);
    }
}

static void canonical(layer *l)
{
    layer_init(l, 32, 64, 32, NB_DT_F16);
    for (size_t n = 0; n < 32; n++) {
        for (size_t k = 0; k < 64; k++)
            l->q.codes[n * 64 + k] = (uint8_t)((3 * k + 5 * n + 1 + k / 8) % 16);
        for (size_t g = 0; g < 2; g++) {
            l->q.zeros[n * 2 + g] = (uint8_t)((7 * g + n + 2) % 16);
            l->q.scales[n * 2 + g] = (float)((g + 1) * (n + 1)) / 256;
        }
    }
}

static void test_worked_example(void **state)
{
    layer l;
    float w[32 * 64];

    (void)state;
    canonical(&l);
    pack_stripes(&l, 32);
    assert_int_equal(nb_le32(l.part[0]), 0x4A06F5B1);
    assert_int_equal(nb_le32(l.part[1]), 0x97538642);
    nb_qlin_dequant(&l.q, w);
    assert_true(w[0] == -0.00390625f);
    assert_true(w[3 * 64 + 5] == 0.15625f);
    assert_true(w[9 * 64 + 40] == 0.703125f);
    layer_clear(&l);
}

static void test_checksums(void **state)
{
    layer l;
    float w[32 * 64];

    (void)state;
    canonical(&l);
    pack_stripes(&l, 8);
    assert_int_equal(l.bytes[0], 64 * 4 * 4);
    assert_int_equal(test_crc32(l.part[0], l.bytes[0]), 0x3d9682be);
    assert_int_equal(test_crc32(l.part[1], l.bytes[1]), 0x59401572);
    assert_int_equal(test_crc32(l.part[2], l.bytes[2]), 0x7fdd9164);
    nb_qlin_dequant(&l.q, w);
    assert_int_equal(test_crc32(w, sizeof w), 0xa5a381b3);
    layer_clear(&l);
}

static void test_round_trip(void **state)
{
    static const struct {
        const char *label;
        size_t n, k, g, pack_stripe, unpack_stripe;
        nb_dtype scales;
    } rows[] = {
        { "one word, one group", 8, 16, 16, 8, 8, NB_DT_F16 },
        { "per channel", 24, 96, 96, 16, 8, NB_DT_F16 },
        { "inputs no multiple of 8", 16, 60, 20, 16, 16, NB_DT_F32 },
        { "one input", 8, 1, 1, 8, 8, NB_DT_F32 },
        { "wider than a tile", 328, 200, 40, 72, 136, NB_DT_BF16 },
        { "QT-09 zero points 0 to 15, many groups", 128, 512, 32, 128, 64, NB_DT_F16 },
        { "group of 128", 256, 384, 128, 40, 256, NB_DT_BF16 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        layer l;
        nb_err err = { 0 };
        const size_t n = rows[i].n, k = rows[i].k;
        layer_init(&l, n, k, rows[i].g, rows[i].scales);
        for (size_t x = 0; x < n * k; x++)
            l.q.codes[x] = (uint8_t)(nb_rng_uniform(7, i, x) * 16);
        for (size_t x = 0; x < n * l.q.n_groups; x++) {
            l.q.zeros[x] = (uint8_t)(nb_rng_uniform(8, i, x) * 16);
            l.q.scales[x] = nb_bf16_to_f32(nb_f32_to_bf16((float)nb_rng_normal(9, i, x)));
            if (rows[i].scales == NB_DT_F16) /* exact in both */
                l.q.scales[x] = nb_f16_to_f32(nb_f32_to_f16(l.q.scales[x]));
        }
        pack_stripes(&l, rows[i].pack_stripe);
        if (l.lin.format->shape(&l.lin, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].label, err.what);
        assert_int_equal(l.lin.n, n);
        assert_int_equal(l.lin.k, k);
        for (size_t n0 = 0; n0 < n; n0 += rows[i].unpack_stripe) {
            nb_qlin q = { 0 };
            const size_t s = n - n0 < rows[i].unpack_stripe ? n - n0 : rows[i].unpack_stripe;
            const nb_qlin want = rows_of(&l.q, n0, s);
            assert_int_equal(nb_qlin_init(&q, s, k, rows[i].g, 4, &err), NB_OK);
            assert_int_equal(l.lin.format->unpack(&l.lin, n0, &q, &err), NB_OK);
            if (memcmp(q.codes, want.codes, s * k) != 0 || memcmp(q.zeros, want.zeros, s * q.n_groups) != 0 ||
                memcmp(q.scales, want.scales, s * q.n_groups * 4) != 0)
                fail_msg("%s: rows from %zu differ", rows[i].label, n0);
            nb_qlin_clear(&q);
        }
        layer_clear(&l);
    }
}

static void test_no_zeros(void **state)
{
    layer l;
    nb_qlin q = { 0 };

    (void)state;
    canonical(&l);
    pack_stripes(&l, 32);
    l.lin.parts[1] = NULL; /* formats 9: symmetric files may leave qzeros out */
    assert_int_equal(l.lin.format->shape(&l.lin, NULL), NB_OK);
    assert_int_equal(nb_qlin_init(&q, 32, 64, 32, 4, NULL), NB_OK);
    assert_int_equal(l.lin.format->unpack(&l.lin, 0, &q, NULL), NB_OK);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(q.zeros[i], 8);
    nb_qlin_clear(&q);
    layer_clear(&l);
}

static void test_bad_stripe(void **state)
{
    layer l;
    nb_qlin q = { 0 };

    (void)state;
    canonical(&l);
    assert_int_equal(l.lin.format->shape(&l.lin, NULL), NB_OK);
    assert_int_equal(nb_qlin_init(&q, 8, 64, 32, 4, NULL), NB_OK);
    assert_int_equal(l.lin.format->unpack(&l.lin, 4, &q, NULL), NB_EARG);
    assert_int_equal(l.lin.format->unpack(&l.lin, 32, &q, NULL), NB_EARG);
    nb_qlin_clear(&q);
    layer_clear(&l);
}

static void test_pack_refuses(void **state)
{
    layer l;
    nb_err err = { 0 };

    (void)state;
    canonical(&l);
    void *out[NB_MAX_PARTS] = { l.part[0], l.part[1], l.part[2] };

    l.q.codes[77] = 16;
    assert_int_equal(l.lin.format->pack(&l.q, 0, 32, out, &err), NB_EARG);
    l.q.codes[77] = 15;
    l.q.zeros[3] = 255;
    assert_int_equal(l.lin.format->pack(&l.q, 0, 32, out, NULL), NB_EARG);
    l.q.zeros[3] = 0;
    l.q.scales[5] = 1.0f + 1.0f / 4096; /* needs 12 bits of mantissa */
    nb_err_clear(&err);
    assert_int_equal(l.lin.format->pack(&l.q, 0, 32, out, &err), NB_ENUMERIC);
    assert_string_equal(err.rule, "CNV-030");
    l.q.scales[5] = 1;
    assert_int_equal(l.lin.format->pack(&l.q, 0, 36, out, NULL), NB_EFORMAT);
    assert_int_equal(nb_qlin_init_gidx(&l.q, NULL), NB_OK);
    nb_err_clear(&err);
    assert_int_equal(l.lin.format->pack(&l.q, 0, 32, out, &err), NB_EUNSUPPORTED);
    assert_string_equal(err.rule, "CNV-010");
    layer_clear(&l);
}

static void test_config(void **state)
{
    static const char *const skip[] = { "model.layers.0.mlp.gate", "lm_head" };
    const nb_qspec spec = { .bits = 4, .group_size = 128, .sym = false };
    nb_json *o = nb_format_find("awq-gemm")->config(&spec, skip, 2);
    char *text = nb_json_dump(o, 0, true);
    const char *want =
        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\",\"format\":\"gemm\","
        "\"modules_to_not_convert\":[\"model.layers.0.mlp.gate\",\"lm_head\"],\"lm_head\":false,"
        "\"meta\":{\"quantizer\":[\"nibble:";

    (void)state;
    assert_non_null(text);
    assert_int_equal(strncmp(text, want, strlen(want)), 0);
    nb_free(text);
    nb_json_free(o);
}

/* Every allocation of config() may fail without a leak or a crash. */
static void test_config_no_memory(void **state)
{
    const nb_qspec spec = { .bits = 4, .group_size = -1, .sym = true };
    static const char *const skip[] = { "lm_head" };
    bool failed = true;

    (void)state;
    for (uint64_t i = 1; failed && i < 400; i++) {
        nb_json *o;
        nb_mem_fail_at(i);
        o = nb_format_find("awq-gemm")->config(&spec, skip, 1);
        nb_mem_fail_at(0);
        failed = o == NULL;
        nb_json_free(o);
    }
    assert_false(failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example), cmocka_unit_test(test_checksums),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_no_zeros),       cmocka_unit_test(test_bad_stripe),       cmocka_unit_test(test_pack_refuses),
        cmocka_unit_test(test_config),         cmocka_unit_test(test_config_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
