/* Scan and its rules: one row per broken store, named by the rule or hardening row it stands for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "quant/quant.h"

#define AWQ         "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemm\"}"
#define GEMV        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemv\"}"
#define FAST        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemv_fast\"}"
#define AWQ_BITS(b) "{\"quant_method\":\"awq\",\"bits\":" b ",\"group_size\":32,\"zero_point\":true,\"version\":\"gemm\"}"
#define AWQ_SYM     "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":false,\"version\":\"gemm\"}"
#define CT                                                                                                                                 \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"     \
    "\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32}}}}"
#define GPTQ "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":true,\"desc_act\":false}"

static const unsigned char zeros[1 << 16];

typedef struct spec {
    const char *name;
    nb_dtype type;
    unsigned rank;
    uint64_t shape[3];
} spec;

/* A good linear: 64 inputs, 32 outputs, groups of 32. Rows replace, remove (rank 99) or add tensors. */
static const spec good[] = {
    { "m.qweight", NB_DT_I32, 2, { 64, 4 } },
    { "m.qzeros", NB_DT_I32, 2, { 2, 4 } },
    { "m.scales", NB_DT_F16, 2, { 2, 32 } },
};
enum { GONE = 99 };

static nb_store *make(const spec *change, size_t n_change)
{
    nb_store *s = NULL;
    bool used[8] = { 0 };

    assert_int_equal(nb_memstore_open(&s, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(good); i++) {
        const spec *t = &good[i];
        for (size_t c = 0; c < n_change && change[c].name; c++)
            if (strcmp(change[c].name, t->name) == 0) {
                t = &change[c];
                used[c] = true;
            }
        if (t->rank != GONE)
            assert_int_equal(nb_memstore_add(s, t->name, t->type, t->rank, t->shape, zeros, NULL), NB_OK);
    }
    for (size_t c = 0; c < n_change && change[c].name; c++)
        if (!used[c])
            assert_int_equal(nb_memstore_add(s, change[c].name, change[c].type, change[c].rank, change[c].shape, zeros, NULL), NB_OK);
    return s;
}

static nb_json *parse(const char *text)
{
    nb_json *o = NULL;

    if (text)
        assert_int_equal(nb_json_parse(text, strlen(text), "cfg", 0, &o, NULL), NB_OK);
    return o;
}

static const struct {
    const char *label, *config;
    spec change[6];
    nb_status code;   /* of the loader */
    const char *rule; /* "" : none     */
    const char *what; /* in the sentence; the layout when all is well, "": awq-gemm */
} rows[] = {
    { "a good linear", AWQ, { { 0 } }, NB_OK, "", "" },
    { "QT-08 bf16 and f32 scales are fine", AWQ, { { "m.scales", NB_DT_BF16, 2, { 2, 32 } } }, NB_OK, "", "" },
    { "bias of the right length", AWQ, { { "m.bias", NB_DT_F16, 1, { 32 } } }, NB_OK, "", "" },
    { "symmetric without qzeros", AWQ_SYM, { { "m.qzeros", NB_DT_I32, GONE, { 0 } } }, NB_OK, "", "" },
    { "gptq with format gemm is AWQ",
      "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,\"checkpoint_format\":\"gemm\"}",
      { { 0 } },
      NB_OK,
      "",
      "" },
    { "auto-round packed for AWQ",
      "{\"quant_method\":\"auto-round\",\"bits\":4,\"group_size\":32,\"sym\":false,\"packing_format\":\"auto_round:auto_awq\"}",
      { { 0 } },
      NB_OK,
      "",
      "" },
    { "CFG-001 no config",
      NULL,
      { { 0 } },
      NB_EFORMAT,
      "CFG-001",
      "Found 1 packed tensors but no quantization_config, quantize_config.json or quant_config.json." },
    { "CFG-006 bits against words",
      AWQ,
      { { "m.qweight", NB_DT_I32, 2, { 64, 3 } } },
      NB_EFORMAT,
      "CFG-006",
      "Config says 4-bit, but m.qweight has 3 words for 32 values, which only fits 3-bit." },
    { "CFG-007 group size against scales",
      AWQ,
      { { "m.scales", NB_DT_F16, 2, { 4, 32 } }, { "m.qzeros", NB_DT_I32, 2, { 4, 4 } } },
      NB_EFORMAT,
      "CFG-007",
      "Config says group_size 32 (2 groups for 64 inputs), but scales has 4 rows: the tensors were made with group size 16." },
    { "CFG-008 QT-04 AWQ tensors, GPTQ label",
      GPTQ,
      { { 0 } },
      NB_EFORMAT,
      "CFG-008",
      "Config declares gptq, but the tensors have the awq-gemm layout ([64, 4])." },
    { "CFG-008 QT-04 GPTQ tensors, AWQ label",
      AWQ,
      { { "m.qweight", NB_DT_I32, 2, { 8, 32 } } },
      NB_EFORMAT,
      "CFG-008",
      "Config declares awq gemm, but the tensors have the gptq layout ([8, 32])." },
    { "GPTQ without a group table", GPTQ, { { "m.qweight", NB_DT_I32, 2, { 8, 32 } } }, NB_OK, "", "gptq" },
    { "gemv",
      GEMV,
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 4 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_OK,
      "",
      "awq-gemv" },
    { "SHP-007 gemv scales without their padding",
      GEMV,
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 1 } }, { "m.scales", NB_DT_F16, 2, { 32, 8 } } },
      NB_EFORMAT,
      "SHP-007",
      "padded scales width is 8, expected 32 (= 8 \xc3\x97 zeros_width(64,32))." },
    { "SHP-007 gemv tensors of another group size",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":true,\"version\":\"gemv\"}",
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 4 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "SHP-007",
      "padded scales width is 32, expected 16 (= 8 \xc3\x97 zeros_width(64,64))." },
    { "SHP-017 gemv with groups of 8",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":8,\"zero_point\":true,\"version\":\"gemv\"}",
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 4 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "SHP-017",
      "m: the awq-gemv layout has no group size 8" },
    { "CFG-004 gemv with 3 bits",
      "{\"quant_method\":\"awq\",\"bits\":3,\"group_size\":32,\"zero_point\":true,\"version\":\"gemv\"}",
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 4 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EUNSUPPORTED,
      "CFG-004",
      "bits = 3 is not usable (the awq-gemv layout holds 4 bits)." },
    { "gemv_fast",
      FAST,
      { { "m.qweight", NB_DT_I16, 2, { 8, 64 } }, { "m.qzeros", NB_DT_F16, 2, { 32, 32 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_OK,
      "",
      "awq-gemv-fast" },
    { "SHP-008 gemv_fast with 96 inputs",
      FAST,
      { { "m.qweight", NB_DT_I16, 2, { 8, 96 } }, { "m.qzeros", NB_DT_F16, 2, { 32, 32 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "SHP-008",
      "awq-gemv-fast needs inputs % 64 = 0 and outputs % 4 = 0, got 96\xc3\x97"
      "32." },
    { "SHP-007 gemv_fast offsets without their padding",
      FAST,
      { { "m.qweight", NB_DT_I16, 2, { 8, 64 } }, { "m.qzeros", NB_DT_F16, 2, { 2, 32 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "SHP-007",
      "padded qzeros width is 2, expected 32 (= 8 \xc3\x97 zeros_width(64,32))." },
    { "SHP-002 gemv_fast offsets as integers",
      FAST,
      { { "m.qweight", NB_DT_I16, 2, { 8, 64 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 32 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "SHP-002",
      "I32" },
    { "CFG-008 QT-04 gemv_fast tensors, GEMM label",
      AWQ,
      { { "m.qweight", NB_DT_I16, 2, { 8, 64 } }, { "m.qzeros", NB_DT_F16, 2, { 32, 32 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "CFG-008",
      "Config declares awq gemm, but the tensors have the awq-gemv-fast layout ([8, 64])." },
    { "llm-awq by its backend",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"backend\":\"llm-awq\"}",
      { { "m.qweight", NB_DT_I16, 2, { 8, 64 } },
        { "m.qzeros", NB_DT_I32, GONE, { 0 } },
        { "m.scaled_zeros", NB_DT_BF16, 2, { 32, 32 } },
        { "m.scales", NB_DT_BF16, 2, { 32, 32 } } },
      NB_OK,
      "",
      "llm-awq" },
    { "CFG-008 QT-04 small GEMV tensors, GEMM label",
      AWQ,
      { { "m.qweight", NB_DT_I32, 2, { 32, 8 } }, { "m.qzeros", NB_DT_I32, 2, { 32, 4 } }, { "m.scales", NB_DT_F16, 2, { 32, 32 } } },
      NB_EFORMAT,
      "CFG-008",
      "Config declares awq gemm, but the tensors have the awq-gemv layout ([32, 8])." },
    { "legacy AWQ marlin",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":false,\"version\":\"marlin\"}",
      { { "m.qweight", NB_DT_I32, 2, { 4, 128 } }, { "m.qzeros", NB_DT_I32, GONE, { 0 } }, { "m.scales", NB_DT_F16, 2, { 2, 64 } } },
      NB_OK,
      "",
      "awq-marlin" },
    { "SHP-016 marlin with half a tile",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":false,\"version\":\"marlin\"}",
      { { "m.qweight", NB_DT_I32, 2, { 4, 64 } }, { "m.qzeros", NB_DT_I32, GONE, { 0 } } },
      NB_EFORMAT,
      "SHP-016",
      "32 outputs do not fill whole tiles of 64." },
    { "compressed-tensors without weight_shape",
      CT,
      { { "m.qweight", NB_DT_I32, GONE, { 0 } },
        { "m.qzeros", NB_DT_I32, GONE, { 0 } },
        { "m.scales", NB_DT_I32, GONE, { 0 } },
        { "m.weight_packed", NB_DT_I32, 2, { 32, 8 } },
        { "m.weight_scale", NB_DT_BF16, 2, { 32, 2 } } },
      NB_OK,
      "",
      "compressed-tensors" },
    { "3 bits",
      AWQ_BITS("3"),
      { { "m.qweight", NB_DT_I32, 2, { 64, 3 } }, { "m.qzeros", NB_DT_I32, 2, { 2, 3 } } },
      NB_OK,
      "",
      "awq-gemm" },
    { "5 bits, the last word with a tail",
      AWQ_BITS("5"),
      { { "m.qweight", NB_DT_I32, 2, { 64, 4 } }, { "m.qzeros", NB_DT_I32, 2, { 2, 4 } }, { "m.scales", NB_DT_F16, 2, { 2, 24 } } },
      NB_OK,
      "",
      "awq-gemm" },
    { "CFG-006 8 bits said, 4 stored",
      AWQ_BITS("8"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-006",
      "Config says 8-bit, but m.qweight has 4 words for 32 values, which only fits 4-bit." },
    { "NAM-001 QT-01 no scales", AWQ, { { "m.scales", NB_DT_F16, GONE, { 0 } } }, NB_EFORMAT, "NAM-001", "m has qweight but no scales." },
    { "NAM-001 QT-01 no qzeros", AWQ, { { "m.qzeros", NB_DT_I32, GONE, { 0 } } }, NB_EFORMAT, "NAM-001", "m has qweight but no qzeros." },
    { "NAM-001 QT-01 no qweight", AWQ, { { "m.qweight", NB_DT_I32, GONE, { 0 } } }, NB_EFORMAT, "NAM-001", "m has qzeros but no qweight." },
    { "NAM-002 QT-01 weight and qweight",
      AWQ,
      { { "m.weight", NB_DT_F16, 2, { 32, 64 } } },
      NB_EFORMAT,
      "NAM-002",
      "m has both weight and qweight; only one may exist." },
    { "NAM-008 activation scale",
      AWQ,
      { { "a.mlp.act.scales", NB_DT_F16, 1, { 64 } } },
      NB_EUNSUPPORTED,
      "NAM-008",
      "a.mlp.act.scales is an AWQ activation scale; ignoring it would change the result" },
    { "NAM-001 names are escaped",
      AWQ,
      { { "a\x1b[2J%n\n.qzeros", NB_DT_I32, 2, { 2, 4 } } },
      NB_EFORMAT,
      "NAM-001",
      "a\\x1b[2J%n\\x0a has qzeros but no qweight." },
    { "NAM-009 two families", AWQ, { { "m.weight_packed", NB_DT_I32, 2, { 32, 8 } } }, NB_EFORMAT, "NAM-009", "m mixes two formats." },
    { "SHP-001 QT-02 words as I64",
      AWQ,
      { { "m.qweight", NB_DT_I64, 2, { 64, 4 } } },
      NB_EFORMAT,
      "SHP-001",
      "qweight is I64, expected I32." },
    { "SHP-001 QT-02 zeros as F16",
      AWQ,
      { { "m.qzeros", NB_DT_F16, 2, { 2, 4 } } },
      NB_EFORMAT,
      "SHP-001",
      "qzeros is F16, expected I32." },
    { "SHP-002 QT-02 scales as I32",
      AWQ,
      { { "m.scales", NB_DT_I32, 2, { 2, 32 } } },
      NB_EFORMAT,
      "SHP-002",
      "scales are I32; scales must be floating point." },
    { "SHP-003 QT-03 36 outputs",
      AWQ,
      { { "m.scales", NB_DT_F16, 2, { 2, 36 } } },
      NB_EFORMAT,
      "SHP-003",
      "m: 36 outputs cannot fill whole 32-bit words at 4 bits (needs a multiple of 8)." },
    { "SHP-004 CF-21 group does not divide",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48,\"zero_point\":true}",
      { { 0 } },
      NB_EFORMAT,
      "SHP-004",
      "m: 64 inputs are not a multiple of group size 48." },
    { "SHP-004 CF-21 group above the inputs",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true}",
      { { 0 } },
      NB_EFORMAT,
      "SHP-004",
      "Pad the layer or use a group size that divides it (16, 32, 64, -1)." },
    { "CF-21 group -1 is one group",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-1,\"zero_point\":true}",
      { { "m.scales", NB_DT_F16, 2, { 1, 32 } }, { "m.qzeros", NB_DT_I32, 2, { 1, 4 } } },
      NB_OK,
      "",
      "" },
    { "SHP-005 scales transposed",
      AWQ,
      { { "m.scales", NB_DT_F16, 2, { 32, 2 } } },
      NB_EFORMAT,
      "SHP-005",
      "scales look transposed: found [32, 2], expected [2, 32]." },
    { "SHP-006 QT-03 qzeros short",
      AWQ,
      { { "m.qzeros", NB_DT_I32, 2, { 1, 4 } } },
      NB_EFORMAT,
      "SHP-006",
      "qzeros is [1, 4], expected [2, 4]." },
    { "SHP-011 bias", AWQ, { { "m.bias", NB_DT_F16, 1, { 31 } } }, NB_EFORMAT, "SHP-011", "bias has 31 values, expected 32." },
    { "SHP-015 three dimensions",
      AWQ,
      { { "m.scales", NB_DT_F16, 3, { 2, 32, 1 } } },
      NB_EFORMAT,
      "SHP-015",
      "scales has 3 dimensions, expected 2." },
    { "SHP-015 bias with two",
      AWQ,
      { { "m.bias", NB_DT_F16, 2, { 1, 32 } } },
      NB_EFORMAT,
      "SHP-015",
      "bias has 2 dimensions, expected 1." },
    { "SHP-016 scales of another layer", AWQ, { { "m.scales", NB_DT_F16, 2, { 7, 31 } } }, NB_EFORMAT, "SHP-003", "31 outputs" },
    { "SHP-016 scales with odd groups",
      AWQ,
      { { "m.scales", NB_DT_F16, 2, { 3, 32 } } },
      NB_EFORMAT,
      "SHP-016",
      "scales is [3, 32], expected [2, 32]." },
    { "SHP-016 QT-03 no words", AWQ, { { "m.qweight", NB_DT_I32, 2, { 64, 0 } } }, NB_EFORMAT, "SHP-016", "qweight is 64x0" },
    { "QT-03 zero groups",
      AWQ,
      { { "m.scales", NB_DT_F16, 2, { 0, 32 } } },
      NB_EFORMAT,
      "SHP-016",
      "scales is [0, 32], expected [2, 32]." },
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_store *s = make(rows[i].change, NB_LEN(rows[i].change));
        nb_json *cfg = parse(rows[i].config);
        nb_scan sc;
        nb_err err = { 0 };
        const nb_status rc = nb_scan_open(s, cfg, "config.json", NULL, &sc, &err);

        if (rc != rows[i].code || strcmp(err.rule, rows[i].rule) != 0 || (rc != NB_OK && !strstr(err.what, rows[i].what)))
            fail_msg("%s: got %d [%s] \"%s\", want %d [%s] \"%s\"", rows[i].label, (int)rc, err.rule, err.what, (int)rows[i].code,
                     rows[i].rule, rows[i].what);
        if (rc == NB_OK) {
            assert_int_equal(sc.n_linears, 1);
            assert_string_equal(sc.format->name, rows[i].what[0] ? rows[i].what : "awq-gemm");
            assert_ptr_equal(nb_scan_find(&sc, "m"), &sc.linears[0]);
            assert_null(nb_scan_find(&sc, "other"));
            assert_true(sc.linears[0].n % 8 == 0);
            assert_int_equal(sc.linears[0].k, 64);
        }
        nb_scan_clear(&sc);

        if (rows[i].rule[0] && strcmp(rows[i].rule, "CFG-004") != 0) { /* the same as a finding, with the same class */
            nb_report *r = nb_report_new();
            nb_err two = { 0 };
            nb_scan_open(s, cfg, "config.json", r, &sc, &two);
            if (nb_report_count(r) == 0)
                fail_msg("%s: no finding", rows[i].label);
            assert_string_equal(nb_report_at(r, 0)->rule, rows[i].rule);
            assert_string_equal(nb_report_at(r, 0)->cls, err.cls);
            assert_null(strstr(nb_report_at(r, 0)->what, "\xe2\x86\x92"));
            nb_scan_clear(&sc);
            nb_report_free(r);
        }
        nb_json_free(cfg);
        nb_store_close(s);
    }
}

static void test_report_goes_on(void **state)
{
    static const spec extra[] = {
        { "m.scales", NB_DT_F16, 2, { 32, 2 } }, /* broken */
        { "n.qweight", NB_DT_I32, 2, { 64, 4 } },
        { "n.qzeros", NB_DT_I32, 2, { 2, 4 } },
        { "n.scales", NB_DT_F16, 2, { 2, 32 } },
    };
    nb_store *s = make(extra, NB_LEN(extra));
    nb_json *cfg = parse(AWQ);
    nb_report *r = nb_report_new();
    nb_scan sc;

    (void)state;
    assert_int_equal(nb_scan_open(s, cfg, "config.json", r, &sc, NULL), NB_OK);
    assert_int_equal(sc.n_linears, 1);
    assert_null(nb_scan_find(&sc, "m"));
    assert_non_null(nb_scan_find(&sc, "n"));
    assert_int_equal(nb_report_count_sev(r, NB_SEV_REJECT), 1);
    nb_scan_clear(&sc);
    nb_report_free(r);
    nb_json_free(cfg);
    nb_store_close(s);
}

static void test_u32_is_a_warning(void **state)
{
    static const spec change[] = { { "m.qweight", NB_DT_U32, 2, { 64, 4 } } };
    nb_store *s = make(change, 1);
    nb_json *cfg = parse(AWQ);
    nb_report *r = nb_report_new();
    nb_scan sc;

    (void)state;
    assert_int_equal(nb_scan_open(s, cfg, "config.json", r, &sc, NULL), NB_OK);
    assert_int_equal(nb_report_count(r), 1);
    assert_string_equal(nb_report_at(r, 0)->rule, "SHP-001");
    assert_int_equal(nb_report_at(r, 0)->sev, NB_SEV_WARN);
    assert_int_equal(sc.n_linears, 1);
    nb_scan_clear(&sc);
    nb_report_free(r);
    nb_json_free(cfg);
    nb_store_close(s);
}

static void test_dense(void **state)
{
    nb_store *s = NULL;
    const uint64_t shape[] = { 4, 4 };
    nb_scan sc;

    (void)state;
    assert_int_equal(nb_memstore_open(&s, NULL), NB_OK);
    assert_int_equal(nb_memstore_add(s, "m.weight", NB_DT_F16, 2, shape, zeros, NULL), NB_OK);
    assert_int_equal(nb_scan_open(s, NULL, NULL, NULL, &sc, NULL), NB_OK);
    assert_int_equal(sc.n_linears, 0);
    assert_null(sc.format);
    assert_null(nb_scan_find(&sc, "m"));
    nb_scan_clear(&sc);
    nb_store_close(s);
}

static void test_no_memory(void **state)
{
    nb_store *s = make(NULL, 0);
    nb_json *cfg = parse(AWQ);
    bool failed = true;

    (void)state;
    nb_store_find(s, "m.qweight"); /* build the index first */
    for (uint64_t i = 1; failed && i < 100; i++) {
        nb_scan sc;
        nb_err err = { 0 };
        nb_mem_fail_at(i);
        const nb_status rc = nb_scan_open(s, cfg, "config.json", NULL, &sc, &err);
        nb_mem_fail_at(0);
        failed = rc != NB_OK;
        if (failed)
            assert_int_equal(rc, NB_ENOMEM);
        nb_scan_clear(&sc);
    }
    assert_false(failed);
    nb_json_free(cfg);
    nb_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_report_goes_on), cmocka_unit_test(test_u32_is_a_warning),
        cmocka_unit_test(test_dense), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
