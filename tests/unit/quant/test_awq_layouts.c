/* AWQ layouts beside 4-bit GEMM: checksums of formats 10, round trips over odd shapes, padding, offsets, refusals. */
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
    nb_tensor t[3];
    uint64_t shape[3][4];
    char name[3][32];
    nb_linear lin;
} layer;

static void layer_init(layer *l, const char *format, size_t n, size_t k, size_t g, unsigned bits, nb_dtype scales)
{
    const nb_format *f = nb_format_find(format);

    memset(l, 0, sizeof *l);
    assert_int_equal(nb_qlin_init(&l->q, n, k, g, bits, NULL), NB_OK);
    l->q.scale_dtype = scales;
    l->lin = (nb_linear){ .prefix = "m", .format = f, .spec = { .bits = bits, .group_size = (int64_t)g } };
    for (size_t p = 0; p < 3 && f->parts[p].suffix; p++) {
        nb_tensor *t = &l->t[p];
        uint64_t count;
        snprintf(l->name[p], sizeof l->name[p], "m.%s", f->parts[p].suffix);
        t->name = l->name[p];
        t->name_len = strlen(t->name);
        t->dtype = f->parts[p].dtype == NB_DT_NONE ? scales : f->parts[p].dtype;
        t->rank = nb_format_part_shape(f, p, n, k, g, bits, l->shape[p]);
        t->shape = l->shape[p];
        t->file = "test";
        assert_true(nb_shape_count(t->shape, t->rank, &count));
        assert_true(nb_dtype_bytes(t->dtype, count, &t->n_bytes));
        l->part[p] = nb_alloc((size_t)t->n_bytes + 1);
        memset(l->part[p], 0xa5, (size_t)t->n_bytes + 1); /* pack writes every byte, padding too, and none behind it */
        t->data = l->part[p];
        l->lin.parts[p] = t;
    }
}

static void layer_clear(layer *l)
{
    nb_qlin_clear(&l->q);
    for (size_t p = 0; p < 3; p++) {
        if (l->part[p])
            assert_int_equal(l->part[p][l->t[p].n_bytes], 0xa5);
        nb_free(l->part[p]);
    }
}

static uint32_t crc(const layer *l, size_t part)
{
    return test_crc32(l->part[part], (size_t)l->t[part].n_bytes);
}

static nb_qlin rows_of(const nb_qlin *q, size_t n0, size_t n)
{
    nb_qlin r = *q;

    r.n = n;
    r.codes += n0 * q->k;
    r.zeros += n0 * q->n_groups;
    r.scales += n0 * q->n_groups;
    if (r.offsets)
        r.offsets += n0 * q->n_groups;
    return r;
}

static nb_status pack_stripes(layer *l, size_t stripe, nb_err *err)
{
    void *out[NB_MAX_PARTS] = { l->part[0], l->part[1], l->part[2] };
    nb_status rc = NB_OK;

    for (size_t n0 = 0; n0 < l->q.n && rc == NB_OK; n0 += stripe) {
        const nb_qlin r = rows_of(&l->q, n0, l->q.n - n0 < stripe ? l->q.n - n0 : stripe);
        rc = l->lin.format->pack(&r, n0, l->q.n, out, err);
    }
    return rc;
}

/* The matrix of formats 4 with codes and zero points mod 2^bits. */
static void canonical(layer *l, const char *format, unsigned bits)
{
    layer_init(l, format, 32, 64, 32, bits, NB_DT_F16);
    for (size_t n = 0; n < 32; n++) {
        for (size_t k = 0; k < 64; k++)
            l->q.codes[n * 64 + k] = (uint8_t)((3 * k + 5 * n + 1 + k / 8) % (1u << bits));
        for (size_t g = 0; g < 2; g++) {
            l->q.zeros[n * 2 + g] = (uint8_t)((7 * g + n + 2) % (1u << bits));
            l->q.scales[n * 2 + g] = (float)((g + 1) * (n + 1)) / 256;
        }
    }
}

static void test_checksums(void **state)
{
    static const struct {
        const char *format;
        unsigned bits;
        uint32_t qweight, zeros, scales;
    } rows[] = {
        { "awq-gemm", 2, 0x1a4dee17, 0x1cece624, 0x7fdd9164 }, { "awq-gemm", 3, 0x76054739, 0x1bd4e101, 0x7fdd9164 },
        { "awq-gemm", 5, 0x6cacfa48, 0x54853fce, 0x7fdd9164 }, { "awq-gemm", 6, 0x9728754d, 0xba59fb6a, 0x7fdd9164 },
        { "awq-gemm", 7, 0xc1f586c5, 0xb5eb2ff4, 0x7fdd9164 }, { "awq-gemm", 8, 0xa694fafc, 0x8fe3ec5e, 0x7fdd9164 },
        { "awq-gemv", 4, 0x8f68ce30, 0x5fb856da, 0x1a59cba7 }, { "awq-gemv-fast", 4, 0x8ddc1295, 0xdfa2f738, 0x43e697dd },
        { "llm-awq", 4, 0x8ddc1295, 0xdfa2f738, 0x43e697dd },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        layer l;
        canonical(&l, rows[i].format, rows[i].bits);
        assert_int_equal(pack_stripes(&l, 8, NULL), NB_OK);
        if (crc(&l, 0) != rows[i].qweight || crc(&l, 1) != rows[i].zeros || crc(&l, 2) != rows[i].scales)
            fail_msg("%s, %u bits: %08x %08x %08x", rows[i].format, rows[i].bits, crc(&l, 0), crc(&l, 1), crc(&l, 2));
        layer_clear(&l);
    }
}

static void test_words(void **state)
{
    layer l;

    (void)state;
    canonical(&l, "awq-gemv", 4);
    assert_int_equal(pack_stripes(&l, 32, NULL), NB_OK);
    assert_int_equal(nb_le32(l.part[0]), 0x630DA741);
    assert_int_equal(nb_le32(l.part[1]), 0x92);
    layer_clear(&l);
    canonical(&l, "awq-gemv-fast", 4);
    assert_int_equal(pack_stripes(&l, 32, NULL), NB_OK);
    assert_int_equal(nb_le16(l.part[0]), 0xC3A1);
    assert_true(nb_f16_to_f32(nb_le16(l.part[1])) == -0.0078125f);
    assert_true(nb_f16_to_f32(nb_le16(l.part[1] + 4)) == -0.046875f);
    layer_clear(&l);
}

static unsigned below(uint64_t seed, uint64_t stream, uint64_t i, unsigned n)
{
    return (unsigned)(nb_rng_uniform(seed, stream, i) * n);
}

static void fill(nb_qlin *q, uint64_t seed)
{
    for (size_t i = 0; i < q->n * q->k; i++)
        q->codes[i] = (uint8_t)below(seed, 0, i, 1u << q->bits);
    for (size_t i = 0; i < q->n * q->n_groups; i++) {
        q->zeros[i] = (uint8_t)below(seed, 1, i, 1u << q->bits);
        q->scales[i] = nb_f16_to_f32((uint16_t)(0x1c00 + below(seed, 2, i, 0x800)));
    }
}

static void test_round_trip(void **state)
{
    static const struct {
        const char *format;
        size_t n, k, g, pack_stripe, unpack_stripe;
        unsigned bits;
        nb_dtype scales;
    } rows[] = {
        { "awq-gemm", 32, 16, 16, 8, 8, 3, NB_DT_F16 },         { "awq-gemm", 96, 60, 20, 40, 24, 5, NB_DT_F32 },
        { "awq-gemm", 160, 129, 43, 160, 72, 7, NB_DT_F16 },    { "awq-gemm", 64, 256, 64, 16, 64, 8, NB_DT_F32 },
        { "awq-gemm", 32, 128, 128, 24, 8, 2, NB_DT_F16 },      { "awq-gemm", 64, 64, 32, 8, 40, 6, NB_DT_F16 },
        { "awq-gemv", 8, 32, 32, 8, 8, 4, NB_DT_F16 },          { "awq-gemv", 40, 2048, 128, 16, 24, 4, NB_DT_F16 },
        { "awq-gemv", 24, 4160, 32, 8, 8, 4, NB_DT_F32 },       { "awq-gemv", 16, 1024, 16, 16, 8, 4, NB_DT_F16 },
        { "awq-gemv", 16, 1536, 1536, 8, 16, 4, NB_DT_F16 },    { "awq-gemv-fast", 8, 64, 32, 8, 8, 4, NB_DT_F16 },
        { "awq-gemv-fast", 40, 1344, 64, 8, 24, 4, NB_DT_F16 }, { "llm-awq", 16, 256, 128, 16, 4, 4, NB_DT_F16 },
        { "llm-awq", 24, 320, 32, 4, 12, 4, NB_DT_F16 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const size_t k = rows[i].k;
        layer l;
        nb_err err = { 0 };
        layer_init(&l, rows[i].format, rows[i].n, k, rows[i].g, rows[i].bits, rows[i].scales);
        fill(&l.q, i + 1);
        if (pack_stripes(&l, rows[i].pack_stripe, &err) != NB_OK || l.lin.format->shape(&l.lin, &err) != NB_OK)
            fail_msg("row %zu (%s): %s", i, rows[i].format, err.what);
        assert_int_equal(l.lin.n, rows[i].n);
        assert_int_equal(l.lin.k, k);
        assert_int_equal(l.lin.g, rows[i].g);
        if (l.lin.format->padding)
            assert_int_equal(l.lin.format->padding(&l.lin), 0);
        for (size_t n0 = 0; n0 < rows[i].n; n0 += rows[i].unpack_stripe) {
            const size_t n = rows[i].n - n0 < rows[i].unpack_stripe ? rows[i].n - n0 : rows[i].unpack_stripe;
            const nb_qlin want = rows_of(&l.q, n0, n);
            nb_qlin q = { 0 };
            assert_int_equal(nb_qlin_init(&q, n, k, rows[i].g, rows[i].bits, NULL), NB_OK);
            if (l.lin.format->unpack(&l.lin, n0, &q, &err) != NB_OK)
                fail_msg("row %zu (%s): %s", i, rows[i].format, err.what);
            if (memcmp(q.codes, want.codes, n * k) != 0 || memcmp(q.zeros, want.zeros, n * q.n_groups) != 0 ||
                memcmp(q.scales, want.scales, n * q.n_groups * sizeof(float)) != 0)
                fail_msg("row %zu (%s): outputs from %zu differ", i, rows[i].format, n0);
            assert_int_equal(q.bits, rows[i].bits);
            assert_int_equal(q.scale_dtype, rows[i].scales);
            nb_qlin_clear(&q);
        }
        layer_clear(&l);
    }
}

static void test_tail(void **state) /* 3 bits, 20 outputs: 60 bits in two words */
{
    uint32_t words[2] = { 0x00fac688, 0 };
    const uint64_t wshape[] = { 1, 2 }, sshape[] = { 1, 20 };
    float scales[20];
    nb_tensor t[3] = {
        { .name = "m.qweight", .dtype = NB_DT_I32, .rank = 2, .shape = wshape, .data = (unsigned char *)words, .n_bytes = 8, .file = "t" },
        { .name = "m.qzeros", .dtype = NB_DT_I32, .rank = 2, .shape = wshape, .data = (unsigned char *)words, .n_bytes = 8, .file = "t" },
        { .name = "m.scales", .dtype = NB_DT_F32, .rank = 2, .shape = sshape, .data = (unsigned char *)scales, .n_bytes = 80, .file = "t" },
    };
    nb_linear lin = { .prefix = "m", .format = nb_format_find("awq-gemm"), .spec = { .bits = 3, .group_size = -1 } };
    nb_qlin q = { 0 };

    (void)state;
    for (size_t i = 0; i < 20; i++)
        scales[i] = 1;
    for (size_t p = 0; p < 3; p++)
        lin.parts[p] = &t[p];
    assert_int_equal(lin.format->shape(&lin, NULL), NB_OK);
    assert_int_equal(lin.n, 20);
    assert_int_equal(nb_qlin_init(&q, 12, 1, 1, 3, NULL), NB_OK);
    assert_int_equal(lin.format->unpack(&lin, 8, &q, NULL), NB_OK); /* the last stripe may be short */
    assert_int_equal(q.codes[0], 0);
    nb_qlin_clear(&q);
    assert_int_equal(nb_qlin_init(&q, 8, 1, 1, 3, NULL), NB_OK);
    assert_int_equal(lin.format->unpack(&lin, 0, &q, NULL), NB_OK);
    for (size_t i = 0; i < 8; i++) /* 0xfac688 is 0 1 2 3 4 5 6 7 in octal digits from the end */
        assert_int_equal(q.codes[i], i);
    nb_qlin_clear(&q);
}

static void test_padding(void **state)
{
    layer l;

    (void)state;
    canonical(&l, "awq-gemv", 4);
    assert_int_equal(pack_stripes(&l, 8, NULL), NB_OK);
    assert_int_equal(l.lin.format->shape(&l.lin, NULL), NB_OK);
    nb_put_le16(l.part[2] + 2 * (5 * 32 + 2), 0x8000); /* scale of output 5, group 2 of 2 */
    nb_put_le32(l.part[1] + 4 * (7 * 4 + 3), 0x101);   /* zero points of output 7, groups 24 and 26 */
    assert_int_equal(l.lin.format->padding(&l.lin), 3);
    layer_clear(&l);
    canonical(&l, "awq-gemv-fast", 4);
    assert_int_equal(pack_stripes(&l, 8, NULL), NB_OK);
    assert_int_equal(l.lin.format->shape(&l.lin, NULL), NB_OK);
    nb_put_le16(l.part[1] + 2 * (31 * 32 + 31), 1);
    nb_put_le16(l.part[2] + 2 * (2 * 32), 1);
    assert_int_equal(l.lin.format->padding(&l.lin), 2);
    layer_clear(&l);
}

static void test_offsets(void **state)
{
    layer l;
    nb_qlin q = { 0 };
    nb_err err = { 0 };
    float w[8 * 64];

    (void)state;
    canonical(&l, "awq-gemv-fast", 4);
    assert_int_equal(pack_stripes(&l, 8, NULL), NB_OK);
    assert_int_equal(l.lin.format->shape(&l.lin, NULL), NB_OK);
    assert_int_equal(nb_qlin_init(&q, 8, 64, 32, 4, NULL), NB_OK);
    nb_put_le16(l.part[1], nb_f32_to_f16(-0.00785f)); /* 2 * scale is 0.0078125: near enough, and kept as it is */
    assert_int_equal(l.lin.format->unpack(&l.lin, 0, &q, NULL), NB_OK);
    assert_int_equal(q.zeros[0], 2);
    assert_true(q.offsets[0] == nb_f16_to_f32(nb_f32_to_f16(-0.00785f)));
    nb_qlin_dequant(&q, w);
    assert_true(w[0] == 1 / 256.0f + q.offsets[0]);
    nb_put_le16(l.part[1], nb_f32_to_f16(-0.0088f)); /* 2.25 scales */
    assert_int_equal(l.lin.format->unpack(&l.lin, 0, &q, &err), NB_EFORMAT);
    assert_string_equal(err.rule, "VAL-011");
    assert_non_null(strstr(err.what, "qzeros is not -scale \xc3\x97 integer for 1 groups; this is not a awq-gemv-fast tensor."));
    nb_put_le16(l.part[1], 0x7e00); /* NaN */
    assert_int_equal(l.lin.format->unpack(&l.lin, 0, &q, NULL), NB_EFORMAT);
    nb_put_le16(l.part[1], nb_f32_to_f16(-16 / 256.0f)); /* 16 is no zero point */
    assert_int_equal(l.lin.format->unpack(&l.lin, 0, &q, NULL), NB_EFORMAT);
    nb_qlin_clear(&q);
    layer_clear(&l);
}

static void test_refused(void **state)
{
    static const struct {
        const char *label, *format;
        size_t n, k, g;
        unsigned bits;
        nb_status code;
        const char *rule;
    } rows[] = {
        { "gemv holds 4 bits", "awq-gemv", 32, 64, 32, 3, NB_EUNSUPPORTED, "CNV-060" },
        { "gemv_fast holds 4 bits", "awq-gemv-fast", 32, 64, 32, 8, NB_EUNSUPPORTED, "CNV-060" },
        { "gemv, 48 inputs", "awq-gemv", 32, 48, 16, 4, NB_EUNSUPPORTED, "CNV-050" },
        { "gemv, groups of 96", "awq-gemv", 32, 96, 96, 4, NB_EUNSUPPORTED, "CNV-050" },
        { "gemv_fast, 96 inputs", "awq-gemv-fast", 32, 96, 32, 4, NB_EUNSUPPORTED, "SHP-008" },
        { "llm-awq, 12 outputs", "llm-awq", 12, 64, 32, 4, NB_EUNSUPPORTED, "SHP-008" },
        { "gemm, 24 outputs of 5 bits", "awq-gemm", 24, 64, 32, 5, NB_EFORMAT, "SHP-003" },
        { "gemm, short last group", "awq-gemm", 32, 64, 48, 4, NB_EFORMAT, "SHP-004" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        unsigned char *buf = nb_calloc(1, 1 << 20);
        void *out[NB_MAX_PARTS] = { buf, buf, buf };
        nb_qlin q = { 0 };
        nb_err err = { 0 };
        assert_int_equal(nb_qlin_init(&q, rows[i].n, rows[i].k, rows[i].g, rows[i].bits, NULL), NB_OK);
        fill(&q, i);
        q.scale_dtype = NB_DT_F16;
        if (nb_format_find(rows[i].format)->pack(&q, 0, rows[i].n, out, &err) != rows[i].code || strcmp(err.rule, rows[i].rule) != 0)
            fail_msg("%s: %d [%s] %s", rows[i].label, (int)err.code, err.rule, err.what);
        nb_qlin_clear(&q);
        nb_free(buf);
    }
    {
        layer l;
        nb_err err = { 0 };
        canonical(&l, "awq-gemv-fast", 4);
        l.q.scales[0] = 8000; /* 8000 * 15 is no float16 */
        l.q.zeros[0] = 15;
        assert_int_equal(pack_stripes(&l, 32, &err), NB_ENUMERIC);
        assert_string_equal(err.rule, "CNV-030");
        layer_clear(&l);
        canonical(&l, "awq-gemv", 4);
        l.q.codes[7] = 16;
        assert_int_equal(pack_stripes(&l, 32, NULL), NB_EARG);
        layer_clear(&l);
    }
}

static void test_config(void **state)
{
    static const struct {
        const char *format, *version;
        bool int16;
    } rows[] = { { "awq-gemv", "gemv", false }, { "awq-gemv-fast", "gemv_fast", true }, { "llm-awq", "llm-awq", true } };
    const nb_qspec spec = { .bits = 4, .group_size = 64 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_json *o = nb_format_find(rows[i].format)->config(&spec, NULL, 0);
        assert_non_null(o);
        assert_string_equal(nb_json_str(nb_json_get(o, "version"), ""), rows[i].version);
        assert_string_equal(nb_json_str(nb_json_get(o, "format"), ""), rows[i].version);
        assert_int_equal(nb_json_get(o, "pack_dtype") != NULL, rows[i].int16);
        nb_json_free(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums), cmocka_unit_test(test_words),   cmocka_unit_test(test_round_trip), cmocka_unit_test(test_tail),
        cmocka_unit_test(test_padding),   cmocka_unit_test(test_offsets), cmocka_unit_test(test_refused),    cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
