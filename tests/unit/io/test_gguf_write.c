/* The GGUF writer: block packers by rows, a written file read back with the same values, what has no GGUF form. */
#include <math.h>

#include "io_test.h"

#include "io/gguf_blocks.h"
#include "io/gguf_write.h"
#include "quant/quant.h"

/* ---- packers ---- */

/* One row of 64 inputs in groups of g: codes from a counter, zero point and scale the same for all groups. */
static void make_row(nb_qlin *q, size_t g, unsigned bits, unsigned zero, float scale)
{
    nb_err err = { 0 };

    memset(q, 0, sizeof *q);
    assert_int_equal(nb_qlin_init(q, 1, 64, g, bits, &err), NB_OK);
    q->scale_dtype = NB_DT_F16;
    for (size_t k = 0; k < 64; k++)
        q->codes[k] = (uint8_t)(k * 7 % (1u << bits));
    for (size_t i = 0; i < q->n_groups; i++) {
        q->zeros[i] = (uint8_t)zero;
        q->scales[i] = scale;
    }
}

static void test_type_for(void **state)
{
    static const struct {
        const char *label;
        size_t g;
        unsigned bits, zero;
        float scale;
        bool ok;
        unsigned type;
        uint64_t inexact; /* of the 64 values in that type */
        double step;      /* most it may differ, in steps  */
    } rows[] = {
        { "symmetric 4-bit", 32, 4, 8, 0.0078125f, true, NB_GGUF_Q4_0, 0, 0 },
        { "symmetric 4-bit, one group per row", 64, 4, 8, 0.0123f, true, NB_GGUF_Q4_1, 64, 0.01 }, /* 0.0123f is no f16 */
        { "negative scale", 32, 4, 8, -0.25f, true, NB_GGUF_Q4_0, 0, 0 },
        { "symmetric 3-bit", 32, 3, 4, 0.5f, true, NB_GGUF_Q4_0, 0, 0 },
        { "asymmetric, minimum is a f16", 32, 4, 3, 0.5f, true, NB_GGUF_Q4_1, 0, 0 },
        { "asymmetric, minimum rounds", 32, 4, 13, 0.00999450683f, true, NB_GGUF_Q4_1, 64, 15.0 / 2048 }, /* f16 scale 0x211e */
        { "zero scale", 32, 4, 8, 0.0f, true, NB_GGUF_Q4_0, 0, 0 },
        { "symmetric 8-bit", 64, 8, 128, 0.001953125f, true, NB_GGUF_Q8_0, 0, 0 },
        { "asymmetric 5-bit", 32, 5, 31, 0.001953125f, true, NB_GGUF_Q8_0, 0, 0 },
        { "asymmetric 8-bit", 32, 8, 3, 0.5f, false, 0, 0, 0 },
        { "groups of 16", 16, 4, 8, 0.5f, false, 0, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_qlin q;
        nb_err err = { 0 };
        nb_gguf_loss loss = { 0 };
        unsigned type = 99;
        unsigned char out[2 * 34 + 1];
        float want[64], got[64];
        nb_status rc;
        make_row(&q, rows[i].g, rows[i].bits, rows[i].zero, rows[i].scale);
        if (nb_gguf_type_for(&q, &type, &err) != rows[i].ok || (rows[i].ok && type != rows[i].type))
            fail_msg("%s: type %u (%s)", rows[i].label, type, err.what);
        if (!rows[i].ok) {
            expect(rows[i].label, err.code, &err, NB_EUNSUPPORTED, "gguf.block");
            nb_qlin_clear(&q);
            continue;
        }
        memset(out, 0xA5, sizeof out);
        rc = type == NB_GGUF_Q4_0   ? nb_gguf_pack_q4_0(&q, out, &loss, &err)
             : type == NB_GGUF_Q4_1 ? nb_gguf_pack_q4_1(&q, out, &loss, &err)
                                    : nb_gguf_pack_q8_0(&q, out, &loss, &err);
        expect(rows[i].label, rc, &err, NB_OK, "");
        nb_qlin_dequant(&q, want);
        for (size_t b = 0; b < 2; b++)
            nb_gguf_type_at(type)->unpack(got + 32 * b, out + b * nb_gguf_row_bytes(type, 32));
        for (size_t k = 0; k < 64; k++) {
            if (!(fabs((double)got[k] - (double)want[k]) <= rows[i].step * fabs((double)rows[i].scale) * (1 + 1e-6)))
                fail_msg("%s: value %zu is %g, want %g", rows[i].label, k, (double)got[k], (double)want[k]);
        }
        if (out[nb_gguf_row_bytes(type, 64)] != 0xA5)
            fail_msg("%s: a byte behind the row was written", rows[i].label);
        if (loss.n_values != 64 || (loss.n_inexact == 0) != (rows[i].inexact == 0) || loss.n_inexact > rows[i].inexact ||
            !(loss.max_step <= rows[i].step))
            fail_msg("%s: %d of %d inexact, %g steps", rows[i].label, (int)loss.n_inexact, (int)loss.n_values, loss.max_step);
        nb_qlin_clear(&q);
    }
}

/* The order of activations: blocks may not mix groups, but whole blocks of one group are fine in any order. */
static void test_act_order(void **state)
{
    nb_qlin q;
    nb_err err = { 0 };
    unsigned type;

    (void)state;
    make_row(&q, 32, 4, 8, 0.5f);
    assert_int_equal(nb_qlin_init_gidx(&q, &err), NB_OK);
    for (size_t k = 0; k < 64; k++)
        q.g_idx[k] = k < 32 ? 1 : 0;
    assert_true(nb_gguf_type_for(&q, &type, &err));
    assert_int_equal(type, NB_GGUF_Q4_0);
    q.g_idx[3] = 0;
    assert_false(nb_gguf_type_for(&q, &type, &err));
    expect("mixed groups", err.code, &err, NB_EUNSUPPORTED, "gguf.block");
    nb_qlin_clear(&q);
}

static void test_overflow(void **state)
{
    unsigned char out[80];
    nb_gguf_loss loss = { 0 };
    nb_qlin q;
    nb_err err = { 0 };

    (void)state;
    make_row(&q, 32, 4, 8, 1e6f);
    expect("scale beyond f16", nb_gguf_pack_q4_0(&q, out, &loss, &err), &err, NB_ENUMERIC, "num.overflow");
    nb_err_clear(&err);
    nb_qlin_clear(&q);
    make_row(&q, 32, 4, 13, 60000.0f);
    expect("minimum beyond f16", nb_gguf_pack_q4_1(&q, out, &loss, &err), &err, NB_ENUMERIC, "num.overflow");
    nb_err_clear(&err);
    expect("codes outside", nb_gguf_pack_q4_0(&q, out, &loss, &err), &err, NB_EUNSUPPORTED, "gguf.block");
    nb_qlin_clear(&q);
}

/* Recorded from the reference package: gguf 0.19, quants.quantize(x, Q8_0), x[i] = (i - 16) * 0.37 and x[0] = -9.5. */
static void test_round_q8_0(void **state)
{
    static const unsigned char want[34] = { 0xca, 0x2c, 0x81, 0xb6, 0xbb, 0xc0, 0xc5, 0xca, 0xcf, 0xd3, 0xd8, 0xdd,
                                            0xe2, 0xe7, 0xec, 0xf1, 0xf6, 0xfb, 0x00, 0x05, 0x0a, 0x0f, 0x14, 0x19,
                                            0x1e, 0x23, 0x28, 0x2d, 0x31, 0x36, 0x3b, 0x40, 0x45, 0x4a };
    float x[32];
    unsigned char out[34];
    nb_gguf_loss loss = { 0 };
    nb_err err = { 0 };

    (void)state;
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i - 16) * 0.37f;
    x[0] = -9.5f;
    assert_int_equal(nb_gguf_round_q8_0(x, 32, out, &loss, &err), NB_OK);
    assert_memory_equal(out, want, sizeof want);
    assert_true(loss.n_inexact > 0 && loss.max_step <= 0.55);
    memset(x, 0, sizeof x);
    assert_int_equal(nb_gguf_round_q8_0(x, 32, out, &loss, &err), NB_OK);
    for (int i = 0; i < 34; i++)
        assert_int_equal(out[i], 0);
    x[5] = NAN;
    expect("not a number", nb_gguf_round_q8_0(x, 32, out, &loss, &err), &err, NB_ENUMERIC, "num.nonfinite");
}

/* ---- whole files ---- */

typedef struct model {
    nb_hfdir *dir;
    nb_store *store;
    nb_scan scan;
} model;

static void model_open(model *m, const char *path)
{
    const nb_json *qcfg;
    const char *source;
    nb_err err = { 0 };

    if (nb_hfdir_open(path, &m->dir, &err) != NB_OK || nb_open(path, &m->store, &err) != NB_OK ||
        nb_hfdir_quant_config(m->dir, &qcfg, &source, &err) != NB_OK || nb_scan_open(m->store, qcfg, source, NULL, &m->scan, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
}

static void model_close(model *m)
{
    nb_scan_clear(&m->scan);
    nb_store_close(m->store);
    nb_hfdir_close(m->dir);
}

static void unpack(const nb_linear *lin, nb_qlin *q)
{
    nb_err err = { 0 };

    memset(q, 0, sizeof *q);
    if (nb_qlin_init(q, lin->n, lin->k, lin->g, lin->spec.bits, &err) != NB_OK || (lin->act_order && nb_qlin_init_gidx(q, &err) != NB_OK) ||
        (lin->format->offsets && nb_qlin_init_offsets(q, &err) != NB_OK) || lin->format->unpack(lin, 0, q, &err) != NB_OK)
        fail_msg("%s: %s", lin->prefix, err.what);
}

static bool is_plain(const model *m, const nb_tensor *t, const nb_gguf_sink *s)
{
    (void)m;
    return nb_gguf_sink_takes(s, t->name) && nb_dtype_info(t->dtype)->is_float;
}

static unsigned plain_type(const nb_tensor *t)
{
    return t->rank == 1 || t->dtype == NB_DT_F32 ? NB_GGUF_F32 : t->dtype == NB_DT_BF16 ? NB_GGUF_BF16 : NB_GGUF_F16;
}

static void write_plain(model *m, nb_gguf_sink *s, const nb_tensor *t)
{
    nb_err err = { 0 };
    uint64_t n;
    float *v;

    if (plain_type(t) != NB_GGUF_F32) { /* in odd pieces, so that rows are cut */
        for (uint64_t at = 0; at < t->n_bytes;) {
            const uint64_t take = t->n_bytes - at < 1001 ? t->n_bytes - at : 1001;
            if (nb_gguf_sink_write(s, t->name, at, t->data + at, take, &err) != NB_OK)
                fail_msg("%s: %s", t->name, err.what);
            at += take;
        }
        return;
    }
    assert_true(nb_shape_count(t->shape, t->rank, &n));
    v = nb_alloc_array((size_t)n, sizeof *v);
    if (nb_store_read_f32(m->store, t, 0, n, v, &err) != NB_OK || nb_gguf_sink_write(s, t->name, 0, v, 4 * n, &err) != NB_OK)
        fail_msg("%s: %s", t->name, err.what);
    nb_free(v);
}

static void linear_name(char out[256], const nb_linear *lin)
{
    snprintf(out, 256, "%s.weight", lin->prefix);
}

/* Write the model at `path` as GGUF; *loss gets what packing did. */
static nb_status write_gguf(const char *path, const char *to, nb_gguf_loss *loss, nb_err *err)
{
    model m;
    nb_gguf_sink *s = NULL;
    char name[256];
    nb_qlin q;
    unsigned type;
    nb_status rc;

    model_open(&m, path);
    rc = nb_gguf_sink_open(&s, to, false, m.dir, err);
    for (size_t i = 0; i < m.store->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &m.store->tensors[i];
        if (is_plain(&m, t, s))
            rc = nb_gguf_sink_declare(s, t->name, plain_type(t), t->rank, t->shape, err);
    }
    for (size_t i = 0; i < m.scan.n_linears && rc == NB_OK; i++) {
        const uint64_t shape[2] = { m.scan.linears[i].n, m.scan.linears[i].k };
        unpack(&m.scan.linears[i], &q);
        linear_name(name, &m.scan.linears[i]);
        rc = nb_gguf_type_for(&q, &type, err) ? nb_gguf_sink_declare(s, name, type, 2, shape, err) : err->code;
        nb_qlin_clear(&q);
    }
    if (rc == NB_OK)
        rc = nb_gguf_sink_begin(s, err);
    for (size_t i = 0; i < m.store->n_tensors && rc == NB_OK; i++) {
        if (is_plain(&m, &m.store->tensors[i], s))
            write_plain(&m, s, &m.store->tensors[i]);
    }
    for (size_t i = 0; i < m.scan.n_linears && rc == NB_OK; i++) {
        unsigned char *p;
        uint64_t bytes;
        unpack(&m.scan.linears[i], &q);
        linear_name(name, &m.scan.linears[i]);
        nb_gguf_type_for(&q, &type, err);
        bytes = nb_gguf_row_bytes(type, q.k) * q.n;
        p = nb_alloc((size_t)bytes);
        rc = type == NB_GGUF_Q4_0   ? nb_gguf_pack_q4_0(&q, p, loss, err)
             : type == NB_GGUF_Q4_1 ? nb_gguf_pack_q4_1(&q, p, loss, err)
                                    : nb_gguf_pack_q8_0(&q, p, loss, err);
        if (rc == NB_OK)
            rc = nb_gguf_sink_write(s, name, 0, p, bytes, err);
        nb_free(p);
        nb_qlin_clear(&q);
    }
    if (rc == NB_OK)
        rc = nb_gguf_sink_finish(s, err);
    nb_gguf_sink_close(s);
    model_close(&m);
    return rc;
}

/* All values of a tensor of the written file. */
static float *values(nb_store *g, const char *name, uint64_t *n)
{
    const nb_tensor *t = nb_store_find(g, name);
    nb_err err = { 0 };
    float *v;

    if (!t || !nb_shape_count(t->shape, t->rank, n))
        fail_msg("%s is not in the file", name);
    v = nb_alloc_array((size_t)*n, sizeof *v);
    if (nb_store_read_f32(g, t, 0, *n, v, &err) != NB_OK)
        fail_msg("%s: %s", name, err.what);
    return v;
}

static void compare_values(const char *to, const char *path, const nb_gguf_loss *loss)
{
    model m;
    nb_store *g = NULL;
    nb_err err = { 0 };
    char name[256];
    uint64_t n;
    size_t seen = 0;

    model_open(&m, path);
    if (nb_open(to, &g, &err) != NB_OK)
        fail_msg("%s: %s %s", to, err.subject, err.what);
    for (size_t i = 0; i < m.scan.n_linears; i++, seen++) {
        nb_qlin q;
        float *want, *got;
        linear_name(name, &m.scan.linears[i]);
        unpack(&m.scan.linears[i], &q);
        want = nb_alloc_array(q.n * q.k, sizeof *want);
        nb_qlin_dequant(&q, want);
        got = values(g, name, &n);
        assert_int_equal(n, q.n * q.k);
        for (uint64_t k = 0; k < n; k++) {
            if (!(fabs((double)got[k] - (double)want[k]) <= loss->max_abs + (loss->n_inexact ? fabs((double)want[k]) * 1e-6 : 0)))
                fail_msg("%s: %s[%d] is %g, want %g, bound %g", path, name, (int)k, (double)got[k], (double)want[k], loss->max_abs);
        }
        nb_free(want);
        nb_free(got);
        nb_qlin_clear(&q);
    }
    for (size_t i = 0; i < m.store->n_tensors; i++) {
        const nb_tensor *t = &m.store->tensors[i];
        float *want, *got;
        if (!nb_store_find(g, t->name) || !nb_dtype_info(t->dtype)->is_float)
            continue;
        got = values(g, t->name, &n);
        want = nb_alloc_array((size_t)n, sizeof *want);
        assert_int_equal(nb_store_read_f32(m.store, t, 0, n, want, &err), NB_OK);
        if (memcmp(want, got, (size_t)n * sizeof *want) != 0)
            fail_msg("%s: %s differs", path, t->name);
        nb_free(want);
        nb_free(got);
        seen++;
    }
    assert_int_equal(seen, g->n_tensors);
    nb_store_close(g);
    model_close(&m);
}

/* What a reader of the file takes from its key-values, against the files they came from. */
static void compare_files(const char *to, const char *path)
{
    static const char *const ints[] = { "vocab_size",          "hidden_size",         "intermediate_size",      "num_hidden_layers",
                                        "num_attention_heads", "num_key_value_heads", "max_position_embeddings" };
    nb_hfdir *a = NULL, *b = NULL;
    const nb_json *ca, *cb;
    nb_json *ta = NULL, *tb = NULL;
    const char *pa, *pb;
    size_t na, nb;
    nb_err err = { 0 };

    if (nb_hfdir_open(path, &a, &err) != NB_OK || nb_hfdir_open(to, &b, &err) != NB_OK || nb_hfdir_config(a, &ca, &err) != NB_OK ||
        nb_hfdir_config(b, &cb, &err) != NB_OK)
        fail_msg("%s: %s", to, err.what);
    for (size_t i = 0; i < NB_LEN(ints); i++) {
        if (nb_json_int(nb_json_get(ca, ints[i]), -1) != nb_json_int(nb_json_get(cb, ints[i]), -2))
            fail_msg("%s: %s differs", path, ints[i]);
    }
    assert_string_equal(nb_json_str(nb_json_get(ca, "model_type"), ""), nb_json_str(nb_json_get(cb, "model_type"), "-"));
    if (nb_hfdir_file(a, "tokenizer.json", &pa, &na, &err) != NB_OK || nb_hfdir_file(b, "tokenizer.json", &pb, &nb, &err) != NB_OK ||
        (pa != NULL) != (pb != NULL))
        fail_msg("%s: %s", to, err.what);
    if (pa) {
        assert_int_equal(nb_json_parse(pa, na, "tok", 0, &ta, &err), NB_OK);
        assert_int_equal(nb_json_parse(pb, nb, "tok", 0, &tb, &err), NB_OK);
        if (!nb_json_equal(nb_json_get(nb_json_get(ta, "model"), "vocab"), nb_json_get(nb_json_get(tb, "model"), "vocab")) ||
            !nb_json_equal(nb_json_get(nb_json_get(ta, "model"), "merges"), nb_json_get(nb_json_get(tb, "model"), "merges")))
            fail_msg("%s: vocabulary or merges differ", path);
    }
    nb_json_free(ta);
    nb_json_free(tb);
    nb_hfdir_close(a);
    nb_hfdir_close(b);
}

/* exact: every value of the file is the value of the checkpoint. */
static void round_trip(const char *path, bool exact)
{
    const char *to = scratch("model.gguf");
    nb_gguf_loss loss = { 0 };
    nb_err err = { 0 };

    if (write_gguf(path, to, &loss, &err) != NB_OK)
        fail_msg("%s: %s: %s", path, err.subject, err.what);
    if ((loss.n_inexact == 0) != exact || !(loss.max_step <= 15.0 / 2048))
        fail_msg("%s: %d values changed, by %g steps at most", path, (int)loss.n_inexact, loss.max_step);
    compare_values(to, path, &loss);
    compare_files(to, path);
    print_message("%s: %d of %d values changed, by %g steps at most\n", path, (int)loss.n_inexact, (int)loss.n_values, loss.max_step);
    assert_int_equal(remove(to), 0);
}

static void test_in_tree(void **state)
{
    (void)state;
    round_trip("tests/data/layouts/awq-gemm-g32-skip-autoawq", false);
}

static void test_golden(void **state)
{
    static const struct {
        const char *name;
        bool exact;
    } rows[] = {
        { "awq-gemm-g128-gptqmodel", true }, /* symmetric llama: Q4_0 */
        { "gptq-v1-4bit-g128", true },       { "ct-w4a16-g128", true },          { "ct-w8a16-g128", true },
        { "gptq-v1-3bit-g128", true },       { "awq-gemm-g128-autoawq", false }, { "awq-gemm-bin-autoawq", false },
    };
    const char *golden = getenv("NB_GOLDEN");
    char path[512];
    size_t seen = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        snprintf(path, sizeof path, "%s/layouts/%s", golden ? golden : "../shared/golden", rows[i].name);
        if (access(path, R_OK) != 0)
            continue;
        round_trip(path, rows[i].exact);
        seen++;
    }
    if (seen == 0) {
        print_message("skipped: no reference layouts beside the tree\n");
        skip();
    }
}

/* ---- what has no GGUF form ---- */

#define CONFIG                                                                                                                             \
    "\"num_hidden_layers\":1,\"hidden_size\":64,\"intermediate_size\":64,\"num_attention_heads\":2,\"vocab_size\":4,\"max_position_embe"   \
    "ddings\":16"

static const char *model_dir(const char *config, const char *tokenizer)
{
    static char dir[420];

    snprintf(dir, sizeof dir, "%s", scratch("hf"));
    mkdir(dir, 0700);
    scratch_file("hf/config.json", config, strlen(config));
    if (tokenizer)
        scratch_file("hf/tokenizer.json", tokenizer, strlen(tokenizer));
    else
        remove(scratch("hf/tokenizer.json"));
    return dir;
}

#define TOK(pre, model)                                                                                                                    \
    "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":" pre ",\"model\":{" model ",\"merges\":[[\"a\",\"b\"]]}}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define BPE   "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"

static void test_refused(void **state)
{
    static const struct {
        const char *label, *config, *tokenizer;
        nb_status want;
        const char *cls;
    } rows[] = {
        { "good", "{\"model_type\":\"llama\"," CONFIG "}", TOK(BYTES, BPE), NB_OK, "" },
        { "no vocabulary", "{\"model_type\":\"qwen3\"," CONFIG "}", NULL, NB_OK, "" },
        { "architecture", "{\"model_type\":\"phi3\"," CONFIG "}", NULL, NB_EUNSUPPORTED, "gguf.arch" },
        { "no model_type", "{" CONFIG "}", NULL, NB_EUNSUPPORTED, "gguf.arch" },
        { "activation", "{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"," CONFIG "}", NULL, NB_EUNSUPPORTED, "gguf.arch" },
        { "sliding window", "{\"model_type\":\"qwen2\",\"use_sliding_window\":true," CONFIG "}", NULL, NB_EUNSUPPORTED, "gguf.arch" },
        { "rope kind", "{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"longrope\"}," CONFIG "}", NULL, NB_EUNSUPPORTED,
          "gguf.rope" },
        { "layers", "{\"model_type\":\"llama\",\"num_hidden_layers\":0}", NULL, NB_EFORMAT, "cfg.value" },
        { "WordPiece", "{\"model_type\":\"llama\"," CONFIG "}", TOK(BYTES, "\"type\":\"WordPiece\",\"vocab\":{\"a\":0}"), NB_EUNSUPPORTED,
          "gguf.tokenizer" },
        { "byte fallback", "{\"model_type\":\"llama\"," CONFIG "}", TOK(BYTES, BPE ",\"byte_fallback\":true"), NB_EUNSUPPORTED,
          "gguf.tokenizer" },
        { "unknown splitting", "{\"model_type\":\"llama\"," CONFIG "}", TOK("{\"type\":\"Whitespace\"}", BPE), NB_EUNSUPPORTED,
          "gguf.tokenizer" },
        { "id outside", "{\"model_type\":\"llama\"," CONFIG "}", TOK(BYTES, "\"type\":\"BPE\",\"vocab\":{\"a\":4}"), NB_EFORMAT,
          "tok.special_id" },
        { "one id twice", "{\"model_type\":\"llama\"," CONFIG "}", TOK(BYTES, "\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1}"), NB_EFORMAT,
          "tok.duplicate" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_hfdir *d = NULL;
        nb_gguf_sink *s = NULL;
        assert_int_equal(nb_hfdir_open(model_dir(rows[i].config, rows[i].tokenizer), &d, &err), NB_OK);
        expect(rows[i].label, nb_gguf_sink_open(&s, scratch("out.gguf"), false, d, &err), &err, rows[i].want, rows[i].cls);
        nb_gguf_sink_close(s);
        nb_hfdir_close(d);
        if (access(scratch("out.gguf"), F_OK) == 0)
            fail_msg("%s: a file was left", rows[i].label);
    }
}

static void test_declare(void **state)
{
    static const struct {
        const char *label, *name;
        unsigned type, rank;
        uint64_t shape[2];
        nb_status want;
        const char *cls;
    } rows[] = {
        { "good", "model.layers.0.self_attn.q_proj.weight", NB_GGUF_Q4_0, 2, { 64, 64 }, NB_OK, "" },
        { "twice", "model.layers.0.self_attn.q_proj.weight", NB_GGUF_Q4_0, 2, { 64, 64 }, NB_EFORMAT, "gguf.duplicate_tensor" },
        { "name", "model.layers.0.self_attn.q_proj.bias", NB_GGUF_F32, 1, { 64 }, NB_EUNSUPPORTED, "gguf.tensor" }, /* llama has none */
        { "norm of f16", "model.norm.weight", NB_GGUF_F16, 1, { 64 }, NB_EUNSUPPORTED, "gguf.ndims" },
        { "row of 40", "model.layers.0.mlp.down_proj.weight", NB_GGUF_Q8_0, 2, { 64, 40 }, NB_EUNSUPPORTED, "gguf.block" },
        { "odd heads", "model.layers.0.self_attn.k_proj.weight", NB_GGUF_F16, 2, { 6, 64 }, NB_EFORMAT, "cfg.shape_mismatch" },
    };
    nb_err err = { 0 };
    nb_hfdir *d = NULL;
    nb_gguf_sink *s = NULL;

    (void)state;
    assert_int_equal(nb_hfdir_open(model_dir("{\"model_type\":\"llama\"," CONFIG "}", NULL), &d, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_open(&s, scratch("out.gguf"), false, d, &err), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err_clear(&err);
        expect(rows[i].label, nb_gguf_sink_declare(s, rows[i].name, rows[i].type, rows[i].rank, rows[i].shape, &err), &err, rows[i].want,
               rows[i].cls);
    }
    nb_err_clear(&err);
    assert_int_equal(nb_gguf_sink_begin(s, &err), NB_OK);
    expect("not all bytes", nb_gguf_sink_finish(s, &err), &err, NB_EINTERNAL, "internal.sink");
    nb_gguf_sink_close(s);
    nb_hfdir_close(d);
    assert_int_not_equal(access(scratch("out.gguf"), F_OK), 0);
}

/* The factors of the llama3 rotation come back as the parameters they were made from. */
static void test_rope(void **state)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"head_dim\":64,\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
        "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}," CONFIG "}";
    static const char *const names[] = { "model.embed_tokens.weight", "model.norm.weight" };
    static const unsigned char zeros[4 * 64 * 4];
    const uint64_t shape[2] = { 4, 64 };
    nb_err err = { 0 };
    nb_hfdir *d = NULL;
    nb_gguf_sink *s = NULL;
    const nb_json *c, *r;

    (void)state;
    assert_int_equal(nb_hfdir_open(model_dir(config, NULL), &d, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_open(&s, scratch("out.gguf"), false, d, &err), NB_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(nb_gguf_sink_declare(s, names[i], NB_GGUF_F32, i ? 1 : 2, shape + i, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_write(s, names[0], 0, zeros, 4 * 64 * 4, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_write(s, names[1], 0, zeros, 64 * 4, &err), NB_OK);
    assert_int_equal(nb_gguf_sink_finish(s, &err), NB_OK);
    nb_gguf_sink_close(s);
    nb_hfdir_close(d);
    assert_int_equal(nb_hfdir_open(scratch("out.gguf"), &d, &err), NB_OK);
    if (nb_hfdir_config(d, &c, &err) != NB_OK)
        fail_msg("%s", err.what);
    r = nb_json_get(c, "rope_scaling");
    assert_string_equal(nb_json_str(nb_json_get(r, "rope_type"), ""), "llama3");
    assert_true(nb_json_num(nb_json_get(r, "factor"), 0) == 32.0);
    assert_true(nb_json_num(nb_json_get(c, "rope_theta"), 0) == 500000.0);
    nb_hfdir_close(d);
    assert_int_equal(remove(scratch("out.gguf")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_type_for),   cmocka_unit_test(test_act_order), cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_round_q8_0), cmocka_unit_test(test_in_tree),   cmocka_unit_test(test_golden),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_declare),   cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}
