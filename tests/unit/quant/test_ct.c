/* compressed-tensors: recorded checkpoints of llm-compressor and AutoRound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quant/qrules.h"
#include "unit/quant/layout_case.h"

static const struct {
    const char *dir;
    unsigned allow;
} dirs[] = {
    { "autoround-llm-compressor", CASE_SAME },
    { "ct-mixed-ignore", CASE_SAME },
    { "ct-w3a16-aligned-old", CASE_OLD_WORDS | CASE_OLD_ZEROS },
    { "ct-w3a16-asym-g64", CASE_SAME },
    { "ct-w4a16-actorder-g32", CASE_SAME },
    { "ct-w4a16-actorder-static", CASE_SAME },
    { "ct-w4a16-asym-g32", CASE_SAME },
    { "ct-w4a16-asym-i8zp-old", CASE_OLD_ZEROS },
    { "ct-w4a16-channel", CASE_SAME },
    { "ct-w4a16-g128", CASE_SAME },
    { "ct-w4a16-kv-cache", CASE_SAME },
    { "ct-w8a16-g128", CASE_SAME },
};

static void test_golden(void **state)
{
    char root[512];

    (void)state;
    if (!case_root(root, sizeof root))
        skip();
    for (size_t i = 0; i < NB_LEN(dirs); i++)
        case_dir(root, dirs[i].dir, "compressed-tensors", dirs[i].allow);
    case_refused(root, "ct-w8a8-refuse", NB_EUNSUPPORTED, "CFG-022", "also quantizes activations");
    case_refused(root, "ct-nvfp4-refuse", NB_EUNSUPPORTED, "CFG-022", "4-bit floats");
}

static void test_in_tree(void **state)
{
    (void)state;
    case_dir("tests/data/layouts", "ct-w4a16-asym-g32", "compressed-tensors", CASE_SAME);
}

/* ---- the canonical matrix of formats 4 and 10 ------------------------------------------------------------------ */

enum { PACKED, SCALE, ZERO, SHAPE, G_IDX };

static void make_canonical(nb_qlin *q, unsigned bits)
{
    const unsigned maxq = (1u << bits) - 1;

    assert_int_equal(nb_qlin_init(q, 32, 64, 32, bits, NULL), NB_OK);
    q->scale_dtype = NB_DT_F16;
    for (unsigned n = 0; n < 32; n++) {
        for (unsigned k = 0; k < 64; k++)
            q->codes[n * 64 + k] = (uint8_t)((3 * k + 5 * n + 1 + k / 8) & maxq);
        for (unsigned g = 0; g < 2; g++) {
            q->zeros[n * 2 + g] = (uint8_t)((7 * g + n + 2) & maxq);
            q->scales[n * 2 + g] = (float)((g + 1) * (n + 1)) / 256;
        }
    }
}

static const struct {
    unsigned bits;
    uint32_t packed, zero;
} sums[] = {
    { 2, 0xb4d6f58a, 0xc9ff8e58 }, { 3, 0x0b663b59, 0xa528fba2 }, { 4, 0x8f68ce30, 0x02bc7ecc }, { 5, 0xa0556387, 0xdff88c38 },
    { 6, 0x8742ac2c, 0xc6520e65 }, { 7, 0x15a5a546, 0x3d128b7e }, { 8, 0x5a697fc0, 0x98ce7754 },
};

static void test_canonical(void **state)
{
    const nb_format *f = nb_format_find("compressed-tensors");

    (void)state;
    for (size_t i = 0; i < NB_LEN(sums); i++) {
        nb_qlin q = { 0 };
        uint8_t packed[32 * 64], zero[32 * 2], scale[32 * 2 * 2], shape[16];
        void *out[NB_MAX_PARTS] = { [PACKED] = packed, [SCALE] = scale, [ZERO] = zero, [SHAPE] = shape };
        nb_err err = { 0 };
        make_canonical(&q, sums[i].bits);
        assert_int_equal(f->pack(&q, 0, 32, out, &err), NB_OK);
        if (test_crc32(packed, 32 * 8 * sums[i].bits) != sums[i].packed || test_crc32(zero, 2 * 4 * sums[i].bits) != sums[i].zero)
            fail_msg("%u bits", sums[i].bits);
        assert_int_equal(test_crc32(scale, sizeof scale), 0x00ccb0a3);
        assert_memory_equal(shape, "\x20\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 16);
        out[ZERO] = NULL; /* CNV-040: no place for zero points other than the middle */
        assert_int_equal(f->pack(&q, 0, 32, out, &err), NB_EFORMAT);
        assert_string_equal(err.rule, "CNV-040");
        nb_qlin_clear(&q);
    }
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static const unsigned char nothing[1 << 13];
static const int64_t shape_32_64[2] = { 32, 64 }, shape_32_60[2] = { 32, 60 }, shape_16_64[2] = { 16, 64 }, shape_32_8[2] = { 32, 8 };

#define ARGS(bits, sym, strategy, group)                                                                                                   \
    "\"weights\":{\"num_bits\":" bits ",\"type\":\"int\",\"symmetric\":" sym ",\"strategy\":\"" strategy "\",\"group_size\":" group "}"
#define GROUP(args, more) "\"g\":{\"targets\":[\"Linear\"]," args more "}"
#define CFG(groups, more) "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{" groups "}" more "}"
#define PLAIN             CFG(GROUP(ARGS("4", "true", "group", "32"), ""), "")
#define ASYM              CFG(GROUP(ARGS("4", "false", "group", "32"), ""), "")

typedef struct part {
    const char *name;
    nb_dtype type;
    unsigned rank;
    uint64_t shape[3];
    const void *data;
} part;

static const part good[] = {
    { "m.weight_packed", NB_DT_I32, 2, { 32, 8 }, nothing },
    { "m.weight_scale", NB_DT_BF16, 2, { 32, 2 }, nothing },
    { "m.weight_shape", NB_DT_I64, 1, { 2 }, shape_32_64 },
};
enum { GONE = 99 };

static const struct {
    const char *label, *config;
    part change[4];
    nb_status code;
    const char *rule, *what;
} rows[] = {
    { "a good linear", PLAIN, { { 0 } }, NB_OK, "", "" },
    { "channel",
      CFG(GROUP(ARGS("4", "true", "channel", "null"), ""), ""),
      { { "m.weight_scale", NB_DT_F16, 2, { 32, 1 }, 0 } },
      NB_OK,
      "",
      "" },
    { "tensor", CFG(GROUP(ARGS("4", "true", "tensor", "null"), ""), ""), { { "m.weight_scale", NB_DT_F16, 1, { 1 }, 0 } }, NB_OK, "", "" },
    { "packed zero points", ASYM, { { "m.weight_zero_point", NB_DT_I32, 2, { 4, 2 }, 0 } }, NB_OK, "", "" },
    { "zero points in bytes", ASYM, { { "m.weight_zero_point", NB_DT_I8, 2, { 32, 2 }, 0 } }, NB_OK, "", "" },
    { "3 bits in a dense stream",
      CFG(GROUP(ARGS("3", "true", "group", "32"), ""), ""),
      { { "m.weight_packed", NB_DT_I32, 2, { 32, 6 }, 0 } },
      NB_OK,
      "",
      "" },
    { "3 bits in aligned words",
      CFG(GROUP(ARGS("3", "true", "group", "32"), ""), ""),
      { { "m.weight_packed", NB_DT_I32, 2, { 32, 7 }, 0 } },
      NB_OK,
      "",
      "" },
    { "VAL-014 3 bits in neither",
      CFG(GROUP(ARGS("3", "true", "group", "32"), ""), ""),
      { { "m.weight_packed", NB_DT_I32, 2, { 32, 9 }, 0 } },
      NB_EFORMAT,
      "VAL-014",
      "weight_packed has 9 words; 3-bit needs 6 (dense) or 7 (older aligned packing)." },
    { "CFG-006 QT-03 8 bits said, 4 stored",
      CFG(GROUP(ARGS("8", "true", "group", "32"), ""), ""),
      { { 0 } },
      NB_EFORMAT,
      "CFG-006",
      "Config says 8-bit, but m.weight_packed has 8 words for 64 values, which only fits 4-bit." },
    { "CFG-007 group size",
      CFG(GROUP(ARGS("4", "true", "group", "16"), ""), ""),
      { { 0 } },
      NB_EFORMAT,
      "CFG-007",
      "Config says group_size 16 (4 groups for 64 inputs), but weight_scale has 2 columns: the tensors were made with group size 32." },
    { "SHP-001 QT-02 zero points in I64",
      ASYM,
      { { "m.weight_zero_point", NB_DT_I64, 2, { 32, 2 }, 0 } },
      NB_EFORMAT,
      "SHP-001",
      "weight_zero_point is I64, expected I32." },
    { "SHP-002 integer scales",
      PLAIN,
      { { "m.weight_scale", NB_DT_I32, 2, { 32, 2 }, 0 } },
      NB_EFORMAT,
      "SHP-002",
      "scales are I32; scales must be floating point." },
    { "SHP-005 transposed scales",
      PLAIN,
      { { "m.weight_scale", NB_DT_F16, 2, { 2, 32 }, 0 } },
      NB_EFORMAT,
      "SHP-005",
      "scales look transposed: found [2, 32], expected [32, 2]." },
    { "SHP-006 zero points unpacked, but words",
      ASYM,
      { { "m.weight_zero_point", NB_DT_I32, 2, { 32, 2 }, 0 } },
      NB_EFORMAT,
      "SHP-006",
      "weight_zero_point is [32, 2], expected [4, 2]." },
    { "SHP-010 QT-05 group table",
      PLAIN,
      { { "m.weight_g_idx", NB_DT_I32, 1, { 65 }, nothing } },
      NB_EFORMAT,
      "SHP-010",
      "g_idx has 65 entries, expected 64." },
    { "SHP-012 outputs",
      PLAIN,
      { { "m.weight_shape", NB_DT_I64, 1, { 2 }, shape_16_64 } },
      NB_EFORMAT,
      "SHP-012",
      "weight_shape says [16, 64], packed words fit [32, 64]." },
    { "SHP-012 inputs",
      PLAIN,
      { { "m.weight_shape", NB_DT_I64, 1, { 2 }, shape_32_8 } },
      NB_EFORMAT,
      "SHP-012",
      "weight_shape says [32, 8], packed words fit [32, 64]." },
    { "inputs that leave a part of the last word",
      CFG(GROUP(ARGS("4", "true", "group", "30"), ""), ""),
      { { "m.weight_shape", NB_DT_I64, 1, { 2 }, shape_32_60 } },
      NB_OK,
      "",
      "" },
    { "SHP-015 rank",
      PLAIN,
      { { "m.weight_scale", NB_DT_F16, 1, { 64 }, 0 } },
      NB_EFORMAT,
      "SHP-015",
      "weight_scale has 1 dimensions, expected 2." },
    { "NAM-001 QT-01 no zero points", ASYM, { { 0 } }, NB_EFORMAT, "NAM-001", "m has weight_packed but no weight_zero_point." },
    { "NAM-001 QT-01 no scale",
      PLAIN,
      { { "m.weight_scale", NB_DT_F16, GONE, { 0 }, 0 } },
      NB_EFORMAT,
      "NAM-001",
      "m has weight_packed but no weight_scale." },
    { "NAM-002 QT-01 weight too",
      PLAIN,
      { { "m.weight", NB_DT_F16, 2, { 32, 64 }, nothing } },
      NB_EFORMAT,
      "NAM-002",
      "m has both weight and weight_packed; only one may exist." },
    { "NAM-009 two families", PLAIN, { { "m.qweight", NB_DT_I32, 2, { 8, 32 }, nothing } }, NB_EFORMAT, "NAM-009", "m mixes two formats." },
    { "CFG-022 activations",
      CFG(GROUP(ARGS("8", "true", "channel", "null"), ",\"input_activations\":{\"num_bits\":8}"), ""),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-022",
      "This compressed-tensors model also quantizes activations; only weight-only integer models are supported." },
    { "CFG-022 floats",
      CFG("\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\"}}", ""),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-022",
      "quantizes weights to floats" },
    { "CFG-022 sparse",
      CFG(GROUP(ARGS("4", "true", "group", "32"), ""), ",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-022",
      "sparse weights" },
    { "CFG-022 another format",
      CFG(GROUP(ARGS("8", "true", "channel", "null"), ",\"format\":\"int-quantized\""), ""),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-022",
      "weights in the format int-quantized" },
    { "CF-20 CFG-004 bits 16",
      CFG(GROUP(ARGS("16", "true", "group", "32"), ""), ""),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-004",
      "bits = 16 is not usable" },
    { "CF-20 CFG-004 no groups", CFG("", ""), { { 0 } }, NB_EUNSUPPORTED, "CFG-004", "bits = (missing) is not usable" },
    { "CF-21 CFG-005 group without a size",
      CFG(GROUP(ARGS("4", "true", "group", "null"), ""), ""),
      { { 0 } },
      NB_EFORMAT,
      "CFG-005",
      "group_size = null is not usable" },
    { "CFG-016 a broken pattern",
      CFG(GROUP(ARGS("4", "true", "group", "32"), ""), ",\"ignore\":[\"re:(\"]"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-016",
      "ignore rule \"re:(\": a group that does not end at byte 1." },
};

static nb_store *make_store(const part *change, size_t n_change)
{
    nb_store *s = NULL;
    bool used[8] = { 0 };

    assert_int_equal(nb_memstore_open(&s, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(good); i++) {
        const part *t = &good[i];
        for (size_t c = 0; c < n_change && change[c].name; c++)
            if (strcmp(change[c].name, t->name) == 0) {
                t = &change[c];
                used[c] = true;
            }
        if (t->rank != GONE)
            assert_int_equal(nb_memstore_add(s, t->name, t->type, t->rank, t->shape, t->data ? t->data : nothing, NULL), NB_OK);
    }
    for (size_t c = 0; c < n_change && change[c].name; c++)
        if (!used[c])
            assert_int_equal(nb_memstore_add(s, change[c].name, change[c].type, change[c].rank, change[c].shape,
                                             change[c].data ? change[c].data : nothing, NULL),
                             NB_OK);
    return s;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_store *s = make_store(rows[i].change, NB_LEN(rows[i].change));
        nb_json *json = NULL;
        nb_report *r = nb_report_new();
        nb_err err = { 0 };
        nb_scan sc;
        nb_status rc;
        if (nb_json_parse(rows[i].config, strlen(rows[i].config), "cfg", 0, &json, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].label, err.what);
        rc = nb_scan_open(s, json, "config.json", NULL, &sc, &err);
        if (rc != rows[i].code || (rc != NB_OK && (strcmp(err.rule, rows[i].rule) != 0 || !strstr(err.what, rows[i].what))))
            fail_msg("%s: got %d [%s] \"%s\", want %d [%s]", rows[i].label, rc, err.rule, err.what, rows[i].code, rows[i].rule);
        if (rc == NB_OK && sc.n_linears != 1)
            fail_msg("%s: %zu linears", rows[i].label, sc.n_linears);
        nb_scan_clear(&sc);
        nb_err_clear(&err);
        nb_scan_open(s, json, "config.json", r, &sc, &err);
        if (nb_report_count(r) != (rows[i].rule[0] != 0) || (rows[i].rule[0] && strcmp(nb_report_at(r, 0)->rule, rows[i].rule) != 0))
            fail_msg("%s: %zu findings", rows[i].label, nb_report_count(r));
        nb_scan_clear(&sc);
        nb_report_free(r);
        nb_json_free(json);
        nb_store_close(s);
    }
}

/* ---- targets and ignore ---------------------------------------------------------------------------------------- */

static const struct {
    const char *module;
    const char *excluded; /* NULL: quantized */
    unsigned bits;
} modules[] = {
    { "model.layers.0.self_attn.q_proj", NULL, 4 },
    { "model.layers.0.mlp.up_proj", NULL, 8 },
    { "model.layers.0.mlp.down_proj", "model.layers.0.mlp.down_proj", 0 },
    { "model.layers.7.mlp.gate", "re:.*mlp.gate$", 0 },
    { "model.layers.7.mlp.gate_proj", NULL, 8 },
    { "lm_head", "lm_head", 0 },
    { "model.layers.0.exact", NULL, 3 },
    { "visual.proj", "", 0 }, /* no target */
};

static void test_targets(void **state)
{
    static const char cfg[] =
        CFG("\"a\":{\"targets\":[\"re:.*self_attn.*\"]," ARGS("4", "true", "group", "64") "},\"b\":{\"targets\":[\"re:.*mlp.*\"]," ARGS(
                "8", "true", "channel", "null") "},"
                                                "\"c\":{\"targets\":[\"model.layers.0.exact\"]," ARGS("3", "true", "group", "32") "}",
            ",\"ignore\":[\"model.layers.0.mlp.down_proj\",\"re:.*mlp.gate$\",\"lm_head\"]");
    nb_json *json = NULL;
    nb_qconfig c;
    nb_qrules *r;

    (void)state;
    assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
    assert_int_equal(nb_qconfig_parse(json, "config.json", NULL, &c, NULL), NB_OK);
    assert_int_equal(nb_qrules_open(&c, NULL, &r, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(modules); i++) {
        nb_qspec spec;
        const char *excluded;
        assert_int_equal(nb_qrules_spec(r, modules[i].module, &spec, &excluded, NULL), NB_OK);
        if (!excluded != !modules[i].excluded || (excluded && strcmp(excluded, modules[i].excluded) != 0) ||
            (!excluded && spec.bits != modules[i].bits))
            fail_msg("%s: %s, %u bits", modules[i].module, excluded ? excluded : "quantized", spec.bits);
    }
    nb_qrules_close(r);
    nb_json_free(json);
}

/* CF-23: rules times modules is bounded work. */
static void test_too_many_rules(void **state)
{
    nb_json *o = nb_format_find("gptq")->config(&(nb_qspec){ .bits = 4, .group_size = 32, .sym = true }, NULL, 0), *d = nb_json_new_obj();
    char name[400], key[64];
    nb_qconfig c;
    nb_qrules *r;
    nb_status rc = NB_OK;
    size_t calls = 0;

    (void)state;
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof key, "(.*a){20}x%d", i);
        assert_true(nb_json_set(d, key, nb_json_new_obj()));
    }
    assert_true(nb_json_set(o, "dynamic", d));
    assert_int_equal(nb_qconfig_parse(o, "config.json", NULL, &c, NULL), NB_OK);
    assert_int_equal(nb_qrules_open(&c, NULL, &r, NULL), NB_OK);
    for (; rc == NB_OK && calls < 1000; calls++) {
        nb_qspec spec;
        const char *excluded;
        nb_err err = { 0 };
        rc = nb_qrules_spec(r, name, &spec, &excluded, &err);
        if (rc != NB_OK)
            assert_string_equal(err.cls, "limit.quant_rules");
    }
    assert_int_equal(rc, NB_ELIMIT);
    nb_qrules_close(r);
    nb_json_free(o);
}

static void test_config(void **state)
{
    static const char *const skip[] = { "lm_head" };
    const nb_qspec spec = { .bits = 4, .group_size = 64, .sym = false }, other = { .bits = 8, .group_size = -1, .sym = true };
    const nb_format *f = nb_format_find("compressed-tensors");
    nb_json *o = f->config(&spec, skip, 1);
    nb_qconfig c;
    nb_qrules *r;
    nb_qspec got;
    const char *excluded;

    (void)state;
    assert_true(f->override(o, "a.b", &other) && f->override(o, "a.c", &other));
    assert_int_equal(nb_json_len(nb_json_get(o, "config_groups")), 2);
    assert_int_equal(nb_qconfig_parse(o, "config.json", NULL, &c, NULL), NB_OK);
    assert_string_equal(c.layout, "compressed-tensors");
    assert_true(c.spec.bits == 4 && c.spec.group_size == 64 && !c.spec.sym && !c.old_words);
    assert_int_equal(nb_qrules_open(&c, NULL, &r, NULL), NB_OK);
    nb_qrules_spec(r, "lm_head", &got, &excluded, NULL);
    assert_string_equal(excluded, "lm_head");
    nb_qrules_spec(r, "a.c", &got, &excluded, NULL);
    assert_true(!excluded && got.bits == 8 && got.group_size == -1 && got.sym);
    nb_qrules_spec(r, "a.d", &got, &excluded, NULL);
    assert_true(!excluded && got.bits == 4);
    nb_qrules_close(r);
    nb_json_free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_tree), cmocka_unit_test(test_golden),  cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_targets), cmocka_unit_test(test_too_many_rules),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
