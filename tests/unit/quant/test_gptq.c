/* GPTQ layouts: recorded checkpoints of GPTQModel, AutoGPTQ, AutoRound and Transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quant/convention.h"
#include "quant/qrules.h"
#include "unit/quant/layout_case.h"

static const struct {
    const char *dir, *layout;
    unsigned allow;
} dirs[] = {
    { "autoround-3bit-mixed", "gptq_v2", CASE_SAME },
    { "autoround-as-gptq", "gptq", CASE_SAME },
    { "autoround-gptq-explicit", "gptq", CASE_SAME },
    { "autoround-gptq-g128", "gptq", CASE_SAME },
    { "gptq-marlin-autogptq", "gptq-marlin", CASE_READ_ONLY },
    { "gptq-marlin-channel-autogptq", "gptq-marlin", CASE_READ_ONLY },
    { "gptq-p-3bit-g32", "gptq_p", CASE_SAME },
    { "gptq-p-5bit-g64-asym", "gptq_p", CASE_SAME },
    { "gptq-p-7bit-g64-asym", "gptq_p", CASE_SAME },
    { "gptq-transformers-asym", "gptq_v2", CASE_SAME },
    { "gptq-transformers-sym", "gptq_v2", CASE_SAME },
    { "gptq-v1-2bit-g32", "gptq", CASE_SAME },
    { "gptq-v1-3bit-g128", "gptq", CASE_SAME },
    { "gptq-v1-3bit-g32-asym", "gptq", CASE_ZERO_V1 },
    { "gptq-v1-4bit-g128", "gptq", CASE_SAME },
    { "gptq-v1-4bit-g32-asym", "gptq", CASE_ZERO_V1 },
    { "gptq-v1-4bit-g32-desc", "gptq", CASE_SAME },
    { "gptq-v1-8bit-channel", "gptq", CASE_SAME },
    { "gptq-v1-autogptq-3bit", "gptq", CASE_SAME },
    { "gptq-v1-autogptq-desc-asym", "gptq", CASE_ZERO_V1 },
    { "gptq-v1-autogptq-g128", "gptq", CASE_SAME },
    { "gptq-v1-dynamic", "gptq", CASE_SAME },
    { "gptq-v1-lm-head", "gptq", CASE_SAME },
    { "gptq-v1-moe-mixtral", "gptq", CASE_SAME },
    { "gptq-v1-moe-qwen3-desc", "gptq", CASE_SAME },
    { "gptq-v1-quantize_config-only", "gptq", CASE_SAME },
    { "gptq-v2-2bit-g32-asym", "gptq_v2", CASE_SAME },
    { "gptq-v2-3bit-g32-asym", "gptq_v2", CASE_SAME },
    { "gptq-v2-4bit-g128", "gptq_v2", CASE_SAME },
    { "gptq-v2-4bit-g32-asym-desc", "gptq_v2", CASE_SAME },
    { "gptq-v2-8bit-channel-asym", "gptq_v2", CASE_SAME },
};

static void test_golden(void **state)
{
    char root[512];

    (void)state;
    if (!case_root(root, sizeof root))
        skip();
    for (size_t i = 0; i < NB_LEN(dirs); i++)
        case_dir(root, dirs[i].dir, dirs[i].layout, dirs[i].allow);
    case_refused(root, "gptq-bitblas-refuse", NB_EUNSUPPORTED, "CNV-090", "BitBLAS files depend on the GPU they were prepared for");
}

static void test_in_tree(void **state)
{
    (void)state;
    case_dir("tests/data/layouts", "gptq-v1-4bit-g32-desc", "gptq", CASE_SAME);
    case_dir("tests/data/layouts", "gptq-v2-3bit-g32-asym", "gptq_v2", CASE_SAME);
    case_dir("tests/data/layouts", "gptq-p-3bit-g32", "gptq_p", CASE_SAME);
}

/* ---- the canonical matrix of formats 4 and 10 ------------------------------------------------------------------ */

/* One linear with its packed parts in memory. */
typedef struct made {
    nb_qlin q;
    void *out[NB_MAX_PARTS];
    size_t bytes[NB_MAX_PARTS];
    nb_store *store;
} made;

static void free_made(made *m)
{
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        nb_free(m->out[p]);
    nb_qlin_clear(&m->q);
    nb_store_close(m->store);
}

/* Pack m->q as the format says; the parts become the store's tensors "m.qweight" ... */
static nb_status pack_made(made *m, const char *format, nb_err *err)
{
    const nb_format *f = nb_format_find(format);
    nb_status rc;

    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++) {
        uint64_t shape[4], n = 1;
        const unsigned rank = nb_format_part_shape(f, p, m->q.n, m->q.k, m->q.g, m->q.bits, shape);
        for (unsigned i = 0; i < rank; i++)
            n *= shape[i];
        m->bytes[p] = (size_t)n * (f->parts[p].dtype == NB_DT_NONE ? 2 : 4);
        nb_free(m->out[p]);
        m->out[p] = nb_calloc(m->bytes[p], 1);
    }
    if ((rc = f->pack(&m->q, 0, m->q.n, m->out, err)) != NB_OK)
        return rc;
    assert_int_equal(nb_memstore_open(&m->store, NULL), NB_OK);
    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++) {
        uint64_t shape[4];
        char name[32];
        const unsigned rank = nb_format_part_shape(f, p, m->q.n, m->q.k, m->q.g, m->q.bits, shape);
        snprintf(name, sizeof name, "m.%s", f->parts[p].suffix);
        assert_int_equal(
            nb_memstore_add(m->store, name, f->parts[p].dtype == NB_DT_NONE ? NB_DT_F16 : NB_DT_I32, rank, shape, m->out[p], NULL), NB_OK);
    }
    return NB_OK;
}

static void make_canonical(made *m, unsigned bits)
{
    const unsigned maxq = (1u << bits) - 1;

    *m = (made){ 0 };
    assert_int_equal(nb_qlin_init(&m->q, 32, 64, 32, bits, NULL), NB_OK);
    m->q.scale_dtype = NB_DT_F16;
    for (unsigned n = 0; n < 32; n++) {
        for (unsigned k = 0; k < 64; k++)
            m->q.codes[n * 64 + k] = (uint8_t)((3 * k + 5 * n + 1 + k / 8) & maxq);
        for (unsigned g = 0; g < 2; g++) {
            m->q.zeros[n * 2 + g] = (uint8_t)((7 * g + n + 2) & maxq);
            m->q.scales[n * 2 + g] = (float)((g + 1) * (n + 1)) / 256;
        }
    }
}

static const struct {
    unsigned bits;
    const char *format;
    uint32_t qweight, qzeros;
} sums[] = {
    { 2, "gptq_v2", 0x63da80c7, 0x1cece624 }, { 3, "gptq_v2", 0xe9f8ae67, 0x1bd4e101 }, { 4, "gptq_v2", 0x7a5b64ad, 0x4af8e99d },
    { 8, "gptq_v2", 0x36ca2c12, 0x8fe3ec5e }, { 2, "gptq_p", 0x63da80c7, 0x1cece624 },  { 3, "gptq_p", 0x53d75dc7, 0x09c6a05f },
    { 5, "gptq_p", 0x609181fd, 0x66023221 },  { 6, "gptq_p", 0x4f881656, 0x5813b5a8 },  { 7, "gptq_p", 0xe3c9251f, 0x57077666 },
    { 8, "gptq_p", 0x36ca2c12, 0x8fe3ec5e },
};

static void test_canonical(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(sums); i++) {
        made m;
        make_canonical(&m, sums[i].bits);
        assert_int_equal(pack_made(&m, sums[i].format, NULL), NB_OK);
        if (test_crc32(m.out[0], m.bytes[0]) != sums[i].qweight || test_crc32(m.out[1], m.bytes[1]) != sums[i].qzeros)
            fail_msg("%s, %u bits", sums[i].format, sums[i].bits);
        assert_int_equal(test_crc32(m.out[2], m.bytes[2]), 0x7fdd9164);
        free_made(&m);
    }
}

/* QT-09 zero points 0 and 15 in v1: per field and by whole words the stored words differ (formats 4), the zeros do not. */
static void test_v1_zeros(void **state)
{
    static const uint32_t field[2] = { 0x87654321, 0x0fedcba9 }, word[2] = { 0x87654321, 0xffedcba9 };
    static const char *const cfg[2] = {
        "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,\"desc_act\":false}",
        "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,\"desc_act\":false,"
        "\"meta\":{\"quantizer\":[\"optimum:2.3.0\",\"gptqmodel:7.7.0\"]}}",
    };

    (void)state;
    for (int by_word = 0; by_word < 2; by_word++) {
        made m;
        nb_err err = { 0 };
        nb_json *json = NULL;
        nb_scan sc;
        nb_qlin q = { 0 };
        make_canonical(&m, 4);
        assert_int_equal(pack_made(&m, "gptq", &err), NB_EFORMAT);
        assert_string_equal(err.rule, "CNV-020");
        assert_string_equal(err.what, "4 zero points are 0 and cannot be stored in GPTQ v1. \xe2\x86\x92 Use --to gptq-v2.");
        assert_int_equal(pack_made(&m, "gptq_v2", NULL), NB_OK);
        for (int i = 0; i < 2; i++)
            memcpy((char *)m.out[1] + 4 * i, by_word ? &word[i] : &field[i], 4);
        assert_int_equal(nb_json_parse(cfg[by_word], strlen(cfg[by_word]), "cfg", 0, &json, NULL), NB_OK);
        assert_int_equal(nb_scan_open(m.store, json, "config.json", NULL, &sc, NULL), NB_OK);
        assert_int_equal(nb_qlin_init(&q, 32, 64, 32, 4, NULL), NB_OK);
        assert_int_equal(sc.linears[0].format->unpack(&sc.linears[0], 0, &q, NULL), NB_OK);
        for (size_t n = 0; n < 16; n++)
            assert_int_equal(q.zeros[2 * n], m.q.zeros[2 * n]);
        nb_qlin_clear(&q);
        nb_scan_clear(&sc);
        nb_json_free(json);
        free_made(&m);
    }
}

/* ---- what zero points say -------------------------------------------------------------------------------------- */

/* 64 outputs, 256 inputs, groups of 32; weights centred on a zero point that varies, or on the middle. */
static void make_centred(made *m, unsigned bits, bool sym)
{
    const int half = 1 << (bits - 1), maxq = 2 * half - 1;
    uint32_t seed = 12345;

    *m = (made){ 0 };
    assert_int_equal(nb_qlin_init(&m->q, 64, 256, 32, bits, NULL), NB_OK);
    m->q.scale_dtype = NB_DT_F16;
    for (size_t n = 0; n < 64; n++)
        for (size_t g = 0; g < 8; g++) {
            const int z = sym ? half : half + (int)((n + g) % 3) - 1, spread = z < maxq - z ? z : maxq - z;
            m->q.zeros[n * 8 + g] = (uint8_t)z;
            m->q.scales[n * 8 + g] = 0.25f;
            for (size_t i = 0; i < 32; i += 2) { /* pairs around the zero point: the mean is exact */
                const int d = (int)((seed = seed * 1664525 + 1013904223) >> 16) % (spread + 1);
                m->q.codes[n * 256 + g * 32 + i] = (uint8_t)(z + d);
                m->q.codes[n * 256 + g * 32 + i + 1] = (uint8_t)(z - d);
            }
        }
}

static const struct {
    const char *label, *stored, *said;
    unsigned bits;
    bool sym;
    const char *used, *rule;
} conventions[] = {
    { "ORD-005 symmetric v2 labelled v1", "gptq_v2", "gptq", 4, true, "gptq_v2", "ORD-005" },
    { "ORD-005 symmetric v1 labelled v2", "gptq", "gptq_v2", 4, true, "gptq", "ORD-005" },
    { "ORD-005 8 bits, symmetric", "gptq", "gptq_v2", 8, true, "gptq", "ORD-005" },
    { "ORD-005 3 bits, symmetric", "gptq_v2", "gptq", 3, true, "gptq_v2", "ORD-005" },
    { "ORD-005 asymmetric v2 labelled v1", "gptq_v2", "gptq", 4, false, "gptq_v2", "ORD-005" },
    { "ORD-005 asymmetric v1 labelled v2", "gptq", "gptq_v2", 4, false, "gptq", "ORD-005" },
    { "ORD-005 asymmetric, 3 bits", "gptq", "gptq_v2", 3, false, "gptq", "ORD-005" },
    { "8 bits, asymmetric: noise, the label holds", "gptq", "gptq_v2", 8, false, "gptq_v2", "" },
    { "v1 as said", "gptq", "gptq", 4, false, "gptq", "" },
    { "v2 as said", "gptq_v2", "gptq_v2", 4, true, "gptq_v2", "" },
};

static void check_convention(size_t i)
{
    nb_report *r = nb_report_new();
    nb_json *json = NULL;
    char cfg[256];
    nb_scan sc;
    made m;

    make_centred(&m, conventions[i].bits, conventions[i].sym);
    assert_int_equal(pack_made(&m, conventions[i].stored, NULL), NB_OK);
    snprintf(cfg, sizeof cfg,
             "{\"quant_method\":\"gptq\",\"bits\":%u,\"group_size\":32,\"sym\":%s,\"desc_act\":false,\"checkpoint_format\":\"%s\"}",
             conventions[i].bits, conventions[i].sym ? "true" : "false", conventions[i].said);
    assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
    assert_int_equal(nb_scan_open(m.store, json, "config.json", r, &sc, NULL), NB_OK);
    if (strcmp(sc.format->name, conventions[i].used) != 0 || (sc.note[0] != 0) != (conventions[i].rule[0] != 0))
        fail_msg("%s: %s, \"%s\"", conventions[i].label, sc.format->name, sc.note);
    assert_string_equal(nb_report_count(r) ? nb_report_at(r, 0)->rule : "", conventions[i].rule);
    if (conventions[i].rule[0]) { /* and what is read is what was packed */
        nb_qlin q = { 0 };
        assert_int_equal(nb_qlin_init(&q, 64, 256, 32, conventions[i].bits, NULL), NB_OK);
        assert_int_equal(sc.linears[0].format->unpack(&sc.linears[0], 0, &q, NULL), NB_OK);
        assert_memory_equal(q.zeros, m.q.zeros, 64 * 8);
        nb_qlin_clear(&q);
    }
    nb_scan_clear(&sc);
    nb_json_free(json);
    nb_report_free(r);
    free_made(&m);
}

static void test_conventions(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(conventions); i++)
        check_convention(i);
}

/* VAL-016: zero points minus misplaced constants, by whole words; symmetric ones are the words 00000000 B6DB6DB7 49249249. */
static void test_legacy3(void **state)
{
    static const char cfg[] = "{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":32,\"sym\":true,\"desc_act\":false}";
    static const uint32_t minus[3] = { 0x24924924, 0x92492492, 0x49249249 }, words[3] = { 0x00000000, 0xb6db6db7, 0x49249249 };

    (void)state;
    for (int sym = 0; sym < 2; sym++) {
        nb_report *r = nb_report_new();
        nb_json *json = NULL;
        nb_qlin q = { 0 };
        nb_scan sc;
        made m;
        make_centred(&m, 3, sym != 0);
        assert_int_equal(pack_made(&m, "gptq_v2", NULL), NB_OK);
        for (size_t i = 0; i < m.bytes[1] / 4; i++) {
            uint32_t w;
            memcpy(&w, (char *)m.out[1] + 4 * i, 4);
            w -= minus[i % 6 % 3];
            memcpy((char *)m.out[1] + 4 * i, &w, 4);
            if (sym)
                assert_int_equal(w, words[i % 6 % 3]);
        }
        assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
        assert_int_equal(nb_scan_open(m.store, json, "config.json", r, &sc, NULL), NB_OK);
        assert_string_equal(nb_report_at(r, 0)->rule, "VAL-016");
        assert_int_equal(nb_qlin_init(&q, 64, 256, 32, 3, NULL), NB_OK);
        assert_int_equal(sc.linears[0].format->unpack(&sc.linears[0], 0, &q, NULL), NB_OK);
        assert_memory_equal(q.zeros, m.q.zeros, 64 * 8);
        nb_qlin_clear(&q);
        nb_scan_clear(&sc);
        nb_json_free(json);
        nb_report_free(r);
        free_made(&m);
    }
}

/* VAL-012: AutoGPTQ's overflow, a run of ones up to the top of the word. */
static void test_wraps(void **state)
{
    static const char cfg[] = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,\"desc_act\":false}";
    static const uint32_t over = 0xfff53421, alone = 0x1f543210;
    nb_json *json = NULL;
    uint64_t n, n_over;
    nb_scan sc;
    made m;

    (void)state;
    make_centred(&m, 4, false);
    assert_int_equal(pack_made(&m, "gptq", NULL), NB_OK);
    memcpy(m.out[1], &over, 4);
    memcpy((char *)m.out[1] + 8, &alone, 4);
    assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
    assert_int_equal(nb_scan_open(m.store, json, "config.json", NULL, &sc, NULL), NB_OK);
    nb_zero_wraps(&sc.linears[0], &n, &n_over);
    assert_int_equal(n, 4);
    assert_int_equal(n_over, 1);
    nb_scan_clear(&sc);
    nb_json_free(json);
    free_made(&m);
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static const unsigned char nothing[1 << 14];
static int32_t reordered[64], outside[64], negative[64], uneven[64], unset[64];

static int fill_tables(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++) {
        reordered[i] = i % 2;
        outside[i] = i == 40 ? 2 : i / 32;
        negative[i] = i == 63 ? -1 : i % 2;
        uneven[i] = i > 32;
        unset[i] = -1;
    }
    return 0;
}

#define CFG(more)  "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":true" more "}"
#define PLAIN      CFG(",\"desc_act\":false")
#define ORDERED    CFG(",\"desc_act\":true")
#define BITS(b, g) "{\"quant_method\":\"gptq\",\"bits\":" b ",\"group_size\":" g ",\"sym\":true,\"desc_act\":false}"

typedef struct part {
    const char *name;
    nb_dtype type;
    unsigned rank;
    uint64_t shape[3];
    const void *data;
} part;

/* A good linear of 64 inputs and 32 outputs; rows replace, remove (rank 99) or add tensors. */
static const part good[] = {
    { "m.qweight", NB_DT_I32, 2, { 8, 32 }, nothing },
    { "m.qzeros", NB_DT_I32, 2, { 2, 4 }, nothing },
    { "m.scales", NB_DT_F16, 2, { 2, 32 }, nothing },
};
enum { GONE = 99 };

static const struct {
    const char *label, *config;
    part change[4];
    nb_status code; /* of the loader */
    const char *rule, *what;
    bool act_order; /* when loaded   */
} rows[] = {
    { "a good linear", PLAIN, { { 0 } }, NB_OK, "", "", false },
    { "group -1",
      BITS("4", "-1"),
      { { "m.qzeros", NB_DT_I32, 2, { 1, 4 }, 0 }, { "m.scales", NB_DT_F16, 2, { 1, 32 }, 0 } },
      NB_OK,
      "",
      "",
      false },
    { "a short last group", BITS("4", "48"), { { 0 } }, NB_OK, "", "", false },
    { "group longer than the inputs",
      BITS("4", "1024"),
      { { "m.qzeros", NB_DT_I32, 2, { 1, 4 }, 0 }, { "m.scales", NB_DT_F16, 2, { 1, 32 }, 0 } },
      NB_OK,
      "",
      "",
      false },
    { "a reordered g_idx", ORDERED, { { "m.g_idx", NB_DT_I32, 1, { 64 }, reordered } }, NB_OK, "", "", true },
    { "ORD-006 reordered, but desc_act false",
      PLAIN,
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, reordered } },
      NB_OK,
      "ORD-006",
      "desc_act is false, but g_idx is reordered; g_idx is used.",
      true },
    { "ORD-007 static groups",
      CFG(",\"desc_act\":true,\"static_groups\":true"),
      { { 0 } },
      NB_OK,
      "ORD-007",
      "desc_act is true, but g_idx is in natural order (static groups).",
      false },
    { "QT-07 all-zero g_idx with act-order off", PLAIN, { { "m.g_idx", NB_DT_I32, 1, { 64 }, nothing } }, NB_OK, "", "", false },
    { "g_idx that was never set", PLAIN, { { "m.g_idx", NB_DT_I32, 1, { 64 }, unset } }, NB_OK, "", "", false },
    { "CFG-011 no desc_act", CFG(""), { { 0 } }, NB_OK, "CFG-011", "desc_act is missing; vLLM refuses to load without it.", false },
    { "CFG-006 QT-03 8 bits said, 4 stored",
      BITS("8", "32"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-006",
      "Config says 8-bit, but m.qweight has 8 words for 64 values, which only fits 4-bit.",
      false },
    { "CFG-006 by g_idx",
      BITS("2", "32"),
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, nothing } },
      NB_EFORMAT,
      "CFG-006",
      "only fits 4-bit",
      false },
    { "CFG-007 group size",
      BITS("4", "16"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-007",
      "Config says group_size 16 (4 groups for 64 inputs), but scales has 2 rows: the tensors were made with group size 32.",
      false },
    { "SHP-001 QT-02 words in float",
      PLAIN,
      { { "m.qzeros", NB_DT_F16, 2, { 2, 4 }, 0 } },
      NB_EFORMAT,
      "SHP-001",
      "qzeros is F16, expected I32.",
      false },
    { "SHP-002 integer scales",
      PLAIN,
      { { "m.scales", NB_DT_I32, 2, { 2, 32 }, 0 } },
      NB_EFORMAT,
      "SHP-002",
      "scales are I32; scales must be floating point.",
      false },
    { "SHP-006 qzeros too wide",
      PLAIN,
      { { "m.qzeros", NB_DT_I32, 2, { 3, 4 }, 0 } },
      NB_EFORMAT,
      "SHP-006",
      "qzeros is [3, 4], expected [2, 4].",
      false },
    { "SHP-009 QT-03 3 bits, outputs not a multiple of 32",
      BITS("3", "32"),
      { { "m.qweight", NB_DT_I32, 2, { 6, 40 }, 0 },
        { "m.scales", NB_DT_F16, 2, { 2, 40 }, 0 },
        { "m.qzeros", NB_DT_I32, 2, { 2, 4 }, 0 } },
      NB_EFORMAT,
      "SHP-009",
      "m: 64x40 does not fill whole words at 3 bits.",
      false },
    { "SHP-010 QT-05 g_idx too short",
      PLAIN,
      { { "m.g_idx", NB_DT_I32, 1, { 63 }, nothing } },
      NB_EFORMAT,
      "SHP-010",
      "g_idx has 63 entries, expected 64.",
      false },
    { "SHP-010 g_idx in float",
      PLAIN,
      { { "m.g_idx", NB_DT_F32, 1, { 64 }, nothing } },
      NB_EFORMAT,
      "SHP-010",
      "g_idx is F32, expected I32.",
      false },
    { "SHP-011 bias",
      PLAIN,
      { { "m.bias", NB_DT_F16, 1, { 31 }, nothing } },
      NB_EFORMAT,
      "SHP-011",
      "bias has 31 values, expected 32.",
      false },
    { "SHP-015 rank",
      PLAIN,
      { { "m.scales", NB_DT_F16, 1, { 64 }, 0 } },
      NB_EFORMAT,
      "SHP-015",
      "scales has 1 dimensions, expected 2.",
      false },
    { "SHP-016 scales",
      PLAIN,
      { { "m.scales", NB_DT_F16, 2, { 2, 31 }, 0 } },
      NB_EFORMAT,
      "SHP-016",
      "scales is [2, 31], expected [2, 32].",
      false },
    { "VAL-006 QT-06 g_idx too large",
      PLAIN,
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, outside } },
      NB_EFORMAT,
      "VAL-006",
      "g_idx[40] = 2 points outside the 2 groups.",
      false },
    { "VAL-006 QT-06 g_idx negative, last",
      PLAIN,
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, negative } },
      NB_EFORMAT,
      "VAL-006",
      "g_idx[63] = -1 points outside the 2 groups.",
      false },
    { "VAL-006 all-zero g_idx is real with act-order",
      ORDERED,
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, nothing } },
      NB_EFORMAT,
      "VAL-007",
      "g_idx gives group 0 64 inputs instead of 32.",
      false },
    { "VAL-007 uneven groups",
      PLAIN,
      { { "m.g_idx", NB_DT_I32, 1, { 64 }, uneven } },
      NB_EFORMAT,
      "VAL-007",
      "g_idx gives group 0 33 inputs instead of 32.",
      false },
    { "NAM-001 QT-01 act-order without g_idx", ORDERED, { { 0 } }, NB_EFORMAT, "NAM-001", "m has qweight but no g_idx.", false },
    { "NAM-001 QT-01 no qzeros",
      PLAIN,
      { { "m.qzeros", NB_DT_I32, GONE, { 0 }, 0 } },
      NB_EFORMAT,
      "NAM-001",
      "m has qweight but no qzeros.",
      false },
    { "CFG-008 QT-04 GPTQ label, AWQ tensors",
      PLAIN,
      { { "m.qweight", NB_DT_I32, 2, { 64, 4 }, 0 } },
      NB_EFORMAT,
      "CFG-008",
      "Config declares gptq, but the tensors have the awq-gemm layout ([64, 4]).",
      false },
    { "CFG-016 a broken pattern",
      CFG(",\"desc_act\":false,\"dynamic\":{\"-:(\":{}}"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-016",
      "dynamic rule \"-:(\": a group that does not end at byte 1.",
      false },
    { "CFG-016 CF-23 a pattern we do not match",
      CFG(",\"desc_act\":false,\"dynamic\":{\"+:(?!a)\":{}}"),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CFG-016",
      "dynamic rule \"+:(?!a)\": a look-around",
      false },
    { "CFG-016 an override that is no width",
      CFG(",\"desc_act\":false,\"dynamic\":{\"m\":{\"bits\":9}}"),
      { { 0 } },
      NB_EFORMAT,
      "CFG-016",
      "dynamic rule \"m\": bits are not an integer from 2 to 8.",
      false },
    { "an override by pattern",
      "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":-1,\"sym\":true,\"desc_act\":false,\"dynamic\":{\"+:^m$\":{\"bits\":4,\"group_"
      "size\":32}}}",
      { { 0 } },
      NB_OK,
      "",
      "",
      false },
    { "AutoRound names a module",
      "{\"quant_method\":\"auto-round\",\"bits\":8,\"group_size\":-1,\"sym\":true,\"extra_config\":{\"m\":{\"bits\":4,\"group_size\":32}}}",
      { { 0 } },
      NB_OK,
      "",
      "",
      false },
    { "AutoRound finds a pattern anywhere",
      "{\"quant_method\":\"intel/"
      "auto-round\",\"bits\":8,\"group_size\":-1,\"sym\":true,\"extra_config\":{\"[mn]$\":{\"bits\":4,\"group_size\":32}}}",
      { { 0 } },
      NB_OK,
      "",
      "",
      false },
    { "CFG-023 BitBLAS",
      CFG(",\"desc_act\":false,\"checkpoint_format\":\"bitblas\""),
      { { 0 } },
      NB_EUNSUPPORTED,
      "CNV-090",
      "BitBLAS files depend on the GPU they were prepared for and cannot be decoded reliably.",
      false },
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
            assert_int_equal(nb_memstore_add(s, change[c].name, change[c].type, change[c].rank, change[c].shape, change[c].data, NULL),
                             NB_OK);
    return s;
}

static void check_row(size_t i)
{
    nb_store *s = make_store(rows[i].change, NB_LEN(rows[i].change));
    nb_json *json = NULL;
    nb_report *r = nb_report_new();
    nb_err err = { 0 };
    nb_scan sc;
    nb_status rc;

    assert_int_equal(nb_json_parse(rows[i].config, strlen(rows[i].config), "cfg", 0, &json, NULL), NB_OK);
    rc = nb_scan_open(s, json, "config.json", NULL, &sc, &err);
    if (rc != rows[i].code || (rc != NB_OK && (strcmp(err.rule, rows[i].rule) != 0 || !strstr(err.what, rows[i].what))))
        fail_msg("%s: got %d [%s] \"%s\", want %d [%s]", rows[i].label, rc, err.rule, err.what, rows[i].code, rows[i].rule);
    if (rc == NB_OK && (sc.n_linears != 1 || sc.linears[0].act_order != rows[i].act_order))
        fail_msg("%s: %zu linears", rows[i].label, sc.n_linears);
    nb_scan_clear(&sc);
    nb_err_clear(&err);
    nb_scan_open(s, json, "config.json", r, &sc, &err); /* the same as findings */
    if (rows[i].rule[0]) {
        bool found = false;
        for (size_t x = 0; x < nb_report_count(r); x++)
            found = found || strcmp(nb_report_at(r, x)->rule, rows[i].rule) == 0;
        if (!found)
            fail_msg("%s: no finding", rows[i].label);
    } else if (nb_report_count(r)) {
        fail_msg("%s: %s", rows[i].label, nb_report_at(r, 0)->what);
    }
    nb_scan_clear(&sc);
    nb_report_free(r);
    nb_json_free(json);
    nb_store_close(s);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        check_row(i);
}

/* Act-order: codes stay in input order, the table goes along, and both come back. */
static void test_act_order(void **state)
{
    static const char cfg[] = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":true,\"desc_act\":true}";
    nb_json *json = NULL;
    nb_qlin q = { 0 };
    nb_scan sc;
    made m;

    (void)state;
    make_centred(&m, 4, true);
    assert_int_equal(nb_qlin_init_gidx(&m.q, NULL), NB_OK);
    for (uint32_t i = 0; i < 256; i++)
        m.q.g_idx[i] = i * 5 % 8;
    assert_int_equal(pack_made(&m, "gptq", NULL), NB_OK);
    assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
    assert_int_equal(nb_scan_open(m.store, json, "config.json", NULL, &sc, NULL), NB_OK);
    assert_true(sc.linears[0].act_order);
    assert_int_equal(nb_qlin_init(&q, 64, 256, 32, 4, NULL), NB_OK);
    assert_int_equal(sc.linears[0].format->unpack(&sc.linears[0], 0, &q, NULL), NB_OK);
    assert_memory_equal(q.codes, m.q.codes, 64 * 256);
    assert_memory_equal(q.g_idx, m.q.g_idx, 256 * sizeof *q.g_idx);
    nb_qlin_clear(&q);
    nb_scan_clear(&sc);
    nb_json_free(json);
    free_made(&m);
}

/* What the writer says of itself is read back as the same layout; exclusions and overrides by exact name. */
static void test_config(void **state)
{
    static const char *const names[] = { "gptq", "gptq_v2", "gptq_p" };
    static const char *const skip[] = { "model.layers.1.mlp.down_proj", "lm_head" };
    const nb_qspec spec = { .bits = 4, .group_size = 64, .sym = false, .desc_act = true },
                   other = { .bits = 8, .group_size = -1, .sym = true };

    (void)state;
    for (size_t i = 0; i < NB_LEN(names); i++) {
        const nb_format *f = nb_format_find(names[i]);
        nb_json *o = f->config(&spec, skip, 2);
        nb_qconfig c;
        nb_qrules *r;
        nb_qspec got;
        const char *excluded;
        assert_true(f->override(o, "model.layers.0.mlp.up_proj", &other));
        assert_int_equal(nb_qconfig_parse(o, "config.json", NULL, &c, NULL), NB_OK);
        assert_string_equal(c.layout, names[i]);
        assert_true(c.spec.bits == 4 && c.spec.group_size == 64 && !c.spec.sym && c.spec.desc_act);
        assert_int_equal(nb_qrules_open(&c, NULL, &r, NULL), NB_OK);
        nb_qrules_spec(r, "model.layers.1.mlp.down_proj", &got, &excluded, NULL);
        assert_string_equal(excluded, "-:^model\\.layers\\.1\\.mlp\\.down_proj$");
        nb_qrules_spec(r, "model.layers.10.mlp.down_proj", &got, &excluded, NULL);
        assert_null(excluded);
        nb_qrules_spec(r, "model.layers.0.mlp.up_proj", &got, &excluded, NULL);
        assert_null(excluded);
        assert_true(got.bits == 8 && got.group_size == -1 && got.sym && !got.desc_act);
        nb_qrules_close(r);
        nb_json_free(o);
    }
}

/* An allocation that fails anywhere in a scan with patterns, a group table and the test of zero points. */
static void test_no_memory(void **state)
{
    static const char cfg[] = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false,\"desc_act\":true,"
                              "\"dynamic\":{\"-:.*gate$\":{},\"+:(m|n)\":{\"bits\":4}}}";
    nb_json *json = NULL;
    bool failed = true;
    made m;

    (void)state;
    make_centred(&m, 4, false);
    assert_int_equal(nb_qlin_init_gidx(&m.q, NULL), NB_OK);
    for (uint32_t i = 0; i < 256; i++)
        m.q.g_idx[i] = 7 - i / 32;
    assert_int_equal(pack_made(&m, "gptq_v2", NULL), NB_OK);
    nb_store_find(m.store, "m.qweight"); /* build the index first */
    assert_int_equal(nb_json_parse(cfg, strlen(cfg), "cfg", 0, &json, NULL), NB_OK);
    for (uint64_t i = 1; failed && i < 300; i++) {
        nb_scan sc;
        nb_err err = { 0 };
        nb_mem_fail_at(i);
        const nb_status rc = nb_scan_open(m.store, json, "config.json", NULL, &sc, &err);
        nb_mem_fail_at(0);
        failed = rc != NB_OK;
        if (failed && rc != NB_ENOMEM)
            fail_msg("allocation %d: %d %s", (int)i, rc, err.what);
        nb_scan_clear(&sc);
    }
    assert_false(failed);
    nb_json_free(json);
    free_made(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_tree),  cmocka_unit_test(test_golden),      cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_v1_zeros), cmocka_unit_test(test_conventions), cmocka_unit_test(test_legacy3),
        cmocka_unit_test(test_wraps),    cmocka_unit_test(test_rows),        cmocka_unit_test(test_act_order),
        cmocka_unit_test(test_config),   cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, fill_tables, NULL);
}
