/* test_quantize_bad.c - weights, activations and calibration files that broke other quantizers: whole jobs on models of noise, into
 * which the fault is put. */
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

#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "job/calib.h"
#include "job/load.h"
#include "job/quantize.h"
#include "solve/solve_awq.h"
#include "unit/kern/thin.h"

static char scratch[48];

static char *paths[64];

/* The path of that name; stays valid. */
static const char *at(const char *name)
{
    for (size_t i = 0; i < NB_LEN(paths); i++) {
        if (!paths[i]) {
            nb_buf b = { 0 };
            nb_buf_printf(&b, "%s/%s", scratch, name);
            paths[i] = b.p;
        }
        if (strcmp(strrchr(paths[i], '/') + 1, name) == 0)
            return paths[i];
    }
    fail_msg("more names than expected");
    return NULL;
}

static int make(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "%s/nibble-bad-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static int drop(void **state)
{
    char cmd[100];

    (void)state;
    for (size_t i = 0; i < NB_LEN(paths); i++)
        nb_free(paths[i]);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", scratch);
    return system(cmd);
}

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- models of noise ---- */

typedef void edit(const char *name, float *w, size_t n, size_t k);

static void put_tensor(nb_sink *s, const char *name, size_t n, size_t k, edit *change, bool write)
{
    const uint64_t shape[2] = { n, k };
    const size_t count = n * (k ? k : 1);
    uint64_t stream = 0;
    nb_err err = { 0 };
    float *w;

    if (!write) {
        assert_int_equal(nb_sink_declare(s, name, NB_DT_F32, k ? 2 : 1, shape, &err), NB_OK);
        return;
    }
    w = nb_alloc_array(count, sizeof *w);
    for (const char *p = name; *p; p++)
        stream = stream * 31 + (unsigned char)*p;
    for (size_t i = 0; i < count; i++)
        w[i] = (float)(k ? 0.1 * nb_rng_normal(21, stream, i) : 0.5 + nb_rng_uniform(21, stream, i));
    if (change)
        change(name, w, n, k);
    assert_int_equal(nb_sink_write(s, name, 0, w, count * sizeof *w, &err), NB_OK);
    nb_free(w);
}

/* One layer; as many kv heads as heads. */
static const char *model(const char *dir, size_t d, size_t ff, size_t vocab, edit *change)
{
    char config[600], path[200], cmd[200];
    nb_err err = { 0 };
    nb_sink *s;

    snprintf(cmd, sizeof cmd, "rm -rf '%s' && mkdir '%s'", at(dir), at(dir));
    assert_int_equal(system(cmd), 0);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%zu,\"intermediate_size\":%zu,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":%zu,\"rms_norm_eps\":1e-5,"
             "\"max_position_embeddings\":4096,\"tie_word_embeddings\":true}",
             d, ff, vocab);
    snprintf(path, sizeof path, "%s/config.json", at(dir));
    put_file(path, config);
    snprintf(path, sizeof path, "%s/model.safetensors", at(dir));
    assert_int_equal(nb_st_sink_file(&s, path, true, &err), NB_OK);
    for (int write = 0; write < 2; write++) {
        put_tensor(s, "model.embed_tokens.weight", vocab, d, change, write);
        put_tensor(s, "model.norm.weight", d, 0, change, write);
        put_tensor(s, "model.layers.0.input_layernorm.weight", d, 0, change, write);
        put_tensor(s, "model.layers.0.post_attention_layernorm.weight", d, 0, change, write);
        put_tensor(s, "model.layers.0.self_attn.q_proj.weight", d, d, change, write);
        put_tensor(s, "model.layers.0.self_attn.k_proj.weight", d, d, change, write);
        put_tensor(s, "model.layers.0.self_attn.v_proj.weight", d, d, change, write);
        put_tensor(s, "model.layers.0.self_attn.o_proj.weight", d, d, change, write);
        put_tensor(s, "model.layers.0.mlp.gate_proj.weight", ff, d, change, write);
        put_tensor(s, "model.layers.0.mlp.up_proj.weight", ff, d, change, write);
        put_tensor(s, "model.layers.0.mlp.down_proj.weight", d, ff, change, write);
        if (!write)
            assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    }
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    return at(dir);
}

static const char *write_ids(const char *name, size_t rows, size_t len, size_t kinds)
{
    const uint64_t shape[2] = { rows, len };
    int32_t *v = nb_alloc_array(rows * len, sizeof *v);
    nb_err err = { 0 };
    nb_sink *s;

    for (size_t i = 0; i < rows * len; i++)
        v[i] = (int32_t)(nb_rng_uniform(5, 0, i) * (double)kinds);
    assert_int_equal(nb_st_sink_file(&s, at(name), true, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "input_ids", NB_DT_I32, 2, shape, &err), NB_OK);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "input_ids", 0, v, rows * len * sizeof *v, &err), NB_OK);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    nb_free(v);
    return at(name);
}

/* ---- jobs ---- */

enum { METHODS = 4 };
static const char *const method_name[METHODS] = { "rtn", "awq", "gptq", "awq+gptq" };

static nb_quantize_opts options(size_t method, const char *ids)
{
    nb_quantize_opts o = { .bits = 4,
                           .group_size = 32,
                           .scale_dtype = NB_DT_F16,
                           .format = "awq-gemm",
                           .calib = ids,
                           .clip = 10,
                           .order = NB_GPTQ_GAR,
                           .mse = NB_QUANTIZE_MSE,
                           .gptaq = 0.5,
                           .refine = 2 };
    nb_err err = { 0 };

    assert_int_equal(nb_quantize_method_find(method_name[method], &o.method, &err), NB_OK);
    return o;
}

/* What the rows of a job said. */
typedef struct heard {
    size_t rows, zeros, notes;
    double worse; /* largest error over that of plain rounding */
    double damp;
    bool finite;
} heard;

static void hear(void *user, const nb_quantize_row *r)
{
    heard *h = user;

    h->rows++;
    h->zeros += r->zeros;
    h->notes += *r->note != 0;
    h->finite = h->finite && isfinite(r->before) && isfinite(r->after);
    if (r->before > 0 && r->after / r->before > h->worse)
        h->worse = r->after / r->before;
    h->damp = r->damp > h->damp ? r->damp : h->damp;
}

static void job(const char *label, const char *from, const char *to, nb_quantize_opts *o, heard *h)
{
    nb_err err = { 0 };
    char cmd[200];

    snprintf(cmd, sizeof cmd, "rm -rf '%s'", to);
    assert_int_equal(system(cmd), 0);
    *h = (heard){ .finite = true, .damp = -1 };
    o->on_row = hear;
    o->user = h;
    if (nb_quantize(from, to, o, NULL, &err) != NB_OK)
        fail_msg("%s, %s: %s: %s: %s", label, nb_quantize_method(o->method).name, err.cls, err.subject, err.what);
    if (h->rows != 7 || !h->finite)
        fail_msg("%s, %s: %zu rows, finite %d", label, nb_quantize_method(o->method).name, h->rows, h->finite);
}

/* The values of one linear of the result, w[n][k], the caller's; also its codes. All are finite. */
static float *decode(const char *dir, const char *name, nb_qlin *q)
{
    nb_loaded l = { 0 };
    const nb_linear *lin;
    nb_err err = { 0 };
    float *w;

    if (nb_load_store(&l, dir, NULL, &err) != NB_OK)
        fail_msg("%s: %s", dir, err.what);
    lin = nb_scan_find(&l.scan, name);
    assert_non_null(lin);
    memset(q, 0, sizeof *q);
    assert_int_equal(nb_qlin_init(q, lin->n, lin->k, lin->g, lin->spec.bits, &err), NB_OK);
    assert_int_equal(lin->format->unpack(lin, 0, q, &err), NB_OK);
    w = nb_alloc_array(q->n, q->k * sizeof *w);
    nb_qlin_dequant(q, w);
    for (size_t i = 0; i < q->n * q->k; i++)
        if (!isfinite(w[i]))
            fail_msg("%s: value %zu is not finite", name, i);
    nb_load_close(&l);
    return w;
}

/* ---- weights ---- */

/* up_proj: row 3 zero, group 1 of row 5 zero, group 2 of row 6 tiny. */
static void holes(const char *name, float *w, size_t n, size_t k)
{
    (void)n;
    if (!strstr(name, "up_proj"))
        return;
    memset(w + 3 * k, 0, k * sizeof *w);
    memset(w + 5 * k + 32, 0, 32 * sizeof *w);
    for (size_t i = 64; i < 96; i++)
        w[6 * k + i] = i % 2 ? 1e-8f : -1e-8f;
}

static void zero_groups(void **state)
{
    const char *ids = write_ids("ids", 4, 48, 90);
    const char *from = model("holes", 128, 96, 96, holes);

    (void)state;
    for (size_t m = 0; m < METHODS; m++)
        for (int sym = 0; sym < 2; sym++) {
            nb_quantize_opts o = options(m, ids);
            nb_qlin q;
            heard h;
            float *w;

            o.sym = sym;
            job("BB-03 NU-02 zero groups", from, at("out"), &o, &h);
            if (h.zeros < 5) /* four of row 3, one of row 5; the tiny one may be a sixth */
                fail_msg("BB-03 %s: %zu groups reported as zero", method_name[m], h.zeros);
            w = decode(at("out"), "model.layers.0.mlp.up_proj", &q);
            for (size_t i = 0; i < 128; i++)
                if (w[3 * 128 + i] != 0.0f || (i >= 32 && i < 64 && w[5 * 128 + i] != 0.0f))
                    fail_msg("BB-03 %s: input %zu of a zero group is %g", method_name[m], i, (double)w[(i < 64 ? 5 : 3) * 128 + i]);
            for (size_t i = 64; i < 96 && m < 2; i++) /* GPTQ may need it to make up for others */
                assert_true(fabsf(w[6 * 128 + i]) <= 1.2e-5f);
            nb_free(w);
            nb_qlin_clear(&q);
        }
}

static void one_value(const char *name, float *w, size_t n, size_t k)
{
    (void)n;
    if (!strstr(name, "gate_proj"))
        return;
    for (size_t i = 0; i < 32; i++) {
        w[i] = 0.25f;                        /* a block of one value */
        w[k + i] = i % 2 ? 1e-40f : -1e-40f; /* subnormals */
        w[2 * k + i] = -0.0f;
        w[3 * k + i] = i == 7 ? 3000.0f : w[3 * k + i]; /* an outlier */
    }
}

static void extremes(void **state)
{
    const char *ids = write_ids("ids", 4, 48, 90);
    const char *from = model("extreme", 128, 96, 96, one_value);

    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        nb_quantize_opts o = options(m, ids);
        nb_qlin q;
        heard h;
        float *w;

        o.clip = 0;
        job("NU-03 extreme groups", from, at("out"), &o, &h);
        w = decode(at("out"), "model.layers.0.mlp.gate_proj", &q);
        for (size_t i = 0; i < 32; i++)
            assert_true(w[2 * 128 + i] == 0.0f && (m >= 2 || fabsf(w[128 + i]) <= 1.2e-5f));
        nb_free(w);
        nb_qlin_clear(&q);
    }
}

static void nan_weight(const char *name, float *w, size_t n, size_t k)
{
    (void)n;
    if (strstr(name, "o_proj"))
        w[5 * k + 7] = NAN;
}

static void huge_weight(const char *name, float *w, size_t n, size_t k)
{
    (void)n;
    (void)k;
    if (strstr(name, "down_proj"))
        w[0] = 1e30f;
}

/* Faults of the weights end the job; nothing is left. */
static void refused(void **state)
{
    const struct {
        const char *label, *cls, *subject;
        edit *change;
    } rows[] = { { "NU-01 NaN in a weight", "num.nonfinite_weight", "o_proj", nan_weight },
                 { "NU-03 NU-04 a scale beyond f16", "num.scale", "down_proj", huge_weight } };
    const char *ids = write_ids("ids", 4, 48, 90);

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const char *from = model("refused", 128, 96, 96, rows[i].change);
        for (size_t m = 0; m < METHODS; m++) {
            nb_quantize_opts o = options(m, ids);
            nb_err err = { 0 };
            const nb_status rc = nb_quantize(from, at("no"), &o, NULL, &err);

            if (rc != NB_ENUMERIC || strncmp(err.cls, rows[i].cls, strlen(rows[i].cls)) != 0 || !strstr(err.subject, rows[i].subject))
                fail_msg("%s, %s: %d %s: %s: %s", rows[i].label, method_name[m], rc, err.cls, err.subject, err.what);
            assert_int_not_equal(access(at("no"), F_OK), 0);
            assert_int_not_equal(access(at("no.nibble-job"), F_OK), 0);
        }
    }
}

/* ---- activations ---- */

/* Inputs 4, 40 and 41 of q, k, v are always zero; their weights are not. */
static void dead_inputs(const char *name, float *w, size_t n, size_t k)
{
    (void)n;
    (void)k;
    if (strstr(name, "input_layernorm"))
        w[4] = w[40] = w[41] = 0;
}

static void dead_weights(const char *name, float *w, size_t n, size_t k)
{
    dead_inputs(name, w, n, k);
    if (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "v_proj"))
        for (size_t r = 0; r < n; r++)
            w[r * k + 4] = w[r * k + 40] = w[r * k + 41] = 0;
}

static void dead_columns(void **state)
{
    const char *ids = write_ids("ids", 4, 48, 90);
    char a[128], b[128];

    (void)state;
    snprintf(a, sizeof a, "%s", model("dead", 128, 96, 96, dead_inputs));
    snprintf(b, sizeof b, "%s", model("deader", 128, 96, 96, dead_weights));
    for (size_t m = 1; m < METHODS; m++) {
        nb_quantize_opts o = options(m, ids);
        heard h;
        nb_qlin q, r;

        job("BB-05 BB-06 dead inputs", a, at("out"), &o, &h);
        nb_free(decode(at("out"), "model.layers.0.self_attn.q_proj", &q));
        job("BB-06 dead inputs and weights", b, at("out"), &o, &h);
        nb_free(decode(at("out"), "model.layers.0.self_attn.q_proj", &r));
        if (m == 2) /* GPTQ sets them to zero first: what the weights were there changes nothing */
            for (size_t i = 0; i < q.n * q.k; i++)
                if (i % q.k != 4 && i % q.k != 40 && i % q.k != 41 && q.codes[i] != r.codes[i])
                    fail_msg("BB-05: code %zu is affected by a dead column", i);
        nb_qlin_clear(&q);
        nb_qlin_clear(&r);
    }
}

/* Three different tokens: every input has rank three at most. */
static void singular(void **state)
{
    const char *ids = write_ids("few", 1, 8, 3);
    const char *from = model("plain", 256, 96, 96, NULL);

    (void)state;
    for (size_t m = 1; m < METHODS; m++) {
        nb_quantize_opts o = options(m, ids);
        heard h;

        job("BB-04 NU-06 eight tokens of rank three", from, at("out"), &o, &h);
        if (h.worse > 1.0 && m == 2)
            fail_msg("BB-04 %s: %.3f times the error of plain rounding", method_name[m], h.worse);
        assert_true(m == 1 || h.damp >= 0);
    }
}

/* The block overflows: no candidate has a finite loss. */
static void overflow(const char *name, float *w, size_t n, size_t k)
{
    if (strstr(name, "up_proj") || strstr(name, "gate_proj"))
        for (size_t i = 0; i < n * k; i++)
            w[i] *= 3e19f;
    if (strstr(name, "post_attention_layernorm"))
        for (size_t i = 0; i < n; i++)
            w[i] *= 1e4f;
}

static void no_finite_loss(void **state)
{
    const char *ids = write_ids("ids", 4, 48, 90);
    const char *from = model("overflow", 128, 96, 96, overflow);
    nb_quantize_opts o = options(1, ids);
    nb_err err = { 0 };
    heard h = { .finite = true };
    nb_status rc;

    (void)state;
    o.scale_dtype = NB_DT_BF16;
    o.on_row = hear;
    o.user = &h;
    rc = nb_quantize(from, at("out7"), &o, NULL, &err);
    if (rc != NB_OK && rc != NB_ENUMERIC)
        fail_msg("NU-07 NU-05: %d %s %s", rc, err.cls, err.what);
    if (rc == NB_OK)
        assert_true(h.notes > 0);
}

/* ---- shapes ---- */

static void ragged(void **state)
{
    static const struct {
        size_t d, ff;
        int64_t g;
        bool ok;
        const char *says;
    } rows[] = {
        { 200, 128, 128, false, "200 inputs, not a multiple of group size 128; use --group-size with one of: -1" },
        { 200, 128, -1, true, "" },
        { 64, 29568, 64, true, "" },
        { 64, 14784, 128, false, "64 inputs" },
        { 128, 14784, 128, false, "14784 inputs, not a multiple of group size 128; use --group-size with one of: 64, 32, 16, -1" },
        { 128, 29568, 128, true, "" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(0, NULL);
        nb_err err = { 0 };
        nb_status rc;

        o.group_size = rows[i].g;
        o.plan_only = true;
        rc = nb_quantize(model("ragged", rows[i].d, rows[i].ff, 96, NULL), NULL, &o, NULL, &err);
        if (rc != (rows[i].ok ? NB_OK : NB_EARG) || !strstr(err.what, rows[i].says))
            fail_msg("BB-09 %zu and %zu inputs, groups of %lld: %d %s", rows[i].d, rows[i].ff, (long long)rows[i].g, rc, err.what);
    }
}

/* 1440 outputs: no batch of 64 or 256 divides them. The same as one output at a time. */
static void outputs_1440(void **state)
{
    enum { N = 1440, K = 256, T = 64 };
    const nb_grid grid = { .g = 32, .bits = 4, .stored = NB_DT_F16 };
    const char *ids = write_ids("ids", 2, 48, 90);
    nb_quantize_opts o = options(1, ids);
    float *w = nb_alloc_array(N, K * sizeof *w), *one = nb_alloc_array(N, K * sizeof *one), *x = nb_alloc_array(T, K * sizeof *x);
    nb_err err = { 0 };
    heard h;

    (void)state;
    job("BB-08 1440 outputs", model("wide", K, N, 96, NULL), at("out"), &o, &h);
    for (size_t i = 0; i < N * K; i++)
        w[i] = one[i] = (float)nb_rng_normal(1, 0, i);
    for (size_t i = 0; i < T * K; i++)
        x[i] = (float)nb_rng_normal(1, 1, i);
    assert_int_equal(nb_awq_clip(NULL, &grid, w, N, K, x, K, T, NULL, 10, NULL, NULL, &err), NB_OK);
    for (size_t r = 0; r < N; r++)
        assert_int_equal(nb_awq_clip(NULL, &grid, one + r * K, 1, K, x, K, T, NULL, 10, NULL, NULL, &err), NB_OK);
    assert_memory_equal(w, one, N * K * sizeof *w);
    nb_free(w);
    nb_free(one);
    nb_free(x);
}

/* It is a model for readers; what a linear stands for is finite. */
static void loads(const char *label, const char *dir)
{
    const nb_model_opts mo = { 0 };
    nb_loaded l = { 0 };
    nb_err err = { 0 };
    nb_qlin q;
    float *w;

    if (nb_load_store(&l, dir, NULL, &err) != NB_OK || nb_load_model(&l, &mo, &err) != NB_OK)
        fail_msg("%s: %s", label, err.what);
    nb_load_close(&l);
    w = decode(dir, "model.layers.0.mlp.down_proj", &q);
    nb_qlin_clear(&q);
    nb_free(w);
}

/* Widths that fill no word, block or tile: every layout holds them, or the plan says that it does not, and what does. */
static void widths(void **state)
{
    enum { D = 320 };
    static const struct {
        const char *format;
        size_t ff;
        int64_t g;
        const char *rule, *says; /* NULL: it holds them */
    } rows[] = {
        { "awq-gemm", 1440, 32, NULL, NULL },
        { "awq-gemm", 1000, -1, NULL, NULL },
        { "awq-gemm", 1000, 20, NULL, NULL },
        { "awq-gemm", 100, -1, "SHP-003", "gate_proj has 100 outputs; AWQ packs eight to a word; --format compressed-tensors" },
        { "awq-gemv", 1440, 32, NULL, NULL },
        { "awq-gemv", 1440, 20, "CNV-050", "no group size 20 (16, 32, 64, 128 and above); --format compressed-tensors" },
        { "awq-gemv", 1000, -1, "CNV-050",
          "inputs % 32 = 0, got 1000\xc3\x97"
          "320; --format compressed-tensors" },
        { "awq-gemv", 100, -1, "SHP-003", "100 outputs" },
        { "awq-gemv-fast", 1472, 64, NULL, NULL },
        { "awq-gemv-fast", 1440, 32, "SHP-008",
          "inputs % 64 = 0 and outputs % 8 = 0 to be written, got 1440\xc3\x97"
          "320; --format" },
        { "awq-gemv-fast", 1000, -1, "SHP-008",
          "got 1000\xc3\x97"
          "320" },
        { "llm-awq", 1472, 64, NULL, NULL },
        { "llm-awq", 1440, -1, "SHP-008",
          "got 1440\xc3\x97"
          "320" },
        { "llm-awq", 100, -1, "SHP-003", "100 outputs" },
        { "gptq_v2", 1440, 32, NULL, NULL },
        { "gptq_v2", 1440, 20, NULL, NULL },
        { "gptq_v2", 1000, -1, "SHP-009", "gate_proj is 1000 x 320; GPTQ packs blocks of 32; --format compressed-tensors" },
        { "gptq_v2", 100, 20, "SHP-009", "gate_proj is 100 x 320" },
        { "gptq_p", 1440, 32, NULL, NULL },
        { "gptq_p", 1000, 20, "SHP-009", "gate_proj is 1000 x 320" },
        { "compressed-tensors", 1440, 32, NULL, NULL },
        { "compressed-tensors", 1000, -1, NULL, NULL },
        { "compressed-tensors", 100, 20, NULL, NULL },
        { "compressed-tensors", 100, -1, NULL, NULL },
    };
    const char *ids = write_ids("ids", 2, 48, 90);

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        for (size_t m = 0; m < METHODS; m++) {
            const char *from = model("widths", D, rows[i].ff, 96, NULL);
            nb_quantize_opts o = options(m, ids);
            nb_err err = { 0 };
            char label[160];
            nb_status rc;
            heard h;

            snprintf(label, sizeof label, "BB-09 %s, %s, %zu wide, groups of %lld", rows[i].format, method_name[m], rows[i].ff,
                     (long long)rows[i].g);
            o.format = rows[i].format;
            o.group_size = rows[i].g;
            o.refine = 0;
            o.plan_only = true;
            rc = nb_quantize(from, NULL, &o, NULL, &err);
            if (rc != (rows[i].says ? NB_EUNSUPPORTED : NB_OK) ||
                (rows[i].says && (strcmp(err.rule, rows[i].rule) != 0 || !strstr(err.what, rows[i].says))))
                fail_msg("%s: %d %s %s", label, rc, err.rule, err.what);
            o.plan_only = false;
            if (rows[i].says || left_out())
                continue;
            job(label, from, at("out"), &o, &h);
            if (h.notes > 0 || !(h.worse <= 1.001))
                fail_msg("%s: %zu notes, %.3f times the error of plain rounding", label, h.notes, h.worse);
            loads(label, at("out"));
        }
}

/* ---- calibration files ---- */

static void calibration(void **state)
{
    static const char short_lines[] = "{\"text\": \"It was a dark night.\"}\n\n{\"text\": \"\"}\n{\"text\": \"The end.\"}\n";
    static const struct {
        const char *label, *name, *text;
        nb_status want;
        const char *cls, *says;
    } rows[] = {
        { "BB-17 empty", "empty.txt", "", NB_EFORMAT, "calib.empty", "gives 1 tokens, at least 128" },
        { "BB-17 blank lines", "blank.jsonl", "\n \n\t\n", NB_EFORMAT, "calib.empty", "0 tokens, at least 128" },
        { "BB-17 all too short", "short.jsonl", short_lines, NB_EFORMAT, "calib.short", "3 documents (1 of them empty) give" },
        { "C-13 not JSON", "bad.jsonl", "{\"text\": \"a\"}\n{text: b}\n", NB_EFORMAT, "calib.json", "" },
        { "C-13 no text", "other.jsonl", "{\"prompt\": \"a\"}\n", NB_EFORMAT, "calib.record", "\"text\"" },
        { "TK-10 Latin-1", "latin.txt", "caf\xe9", NB_EFORMAT, "tok.utf8", "at byte 3; iconv" },
        { "TK-10 in a record", "latin.jsonl", "{\"text\": \"caf\xe9\"}\n", NB_EFORMAT, "calib.json", "0xe9" },
        { "Parquet", "data.parquet", "PAR1xxxxPAR1", NB_EUNSUPPORTED, "calib.parquet", "to_json" },
        { "gzip", "data.txt.gz", "\x1f\x8b\x08zzz", NB_EUNSUPPORTED, "calib.packed", "gunzip" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(1, NULL);
        nb_err err = { 0 };
        char path[200];
        nb_status rc;

        snprintf(path, sizeof path, "%s", at(rows[i].name));
        put_file(path, rows[i].text);
        o.calib = path;
        rc = nb_quantize("models/pemberley-4m", at("no"), &o, NULL, &err);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 || !strstr(err.what, rows[i].says))
            fail_msg("%s: %d %s: %s %s", rows[i].label, rc, err.cls, err.subject, err.what);
        assert_int_not_equal(access(at("no"), F_OK), 0);
        assert_int_not_equal(access(at("no.nibble-job"), F_OK), 0);
    }
}

/* Records, packed: short ones share rows, every token is a real one, the order is seeded. */
static void records(void **state)
{
    FILE *f = fopen(at("many.jsonl"), "w");
    nb_calib a, b;
    nb_err err = { 0 };

    (void)state;
    assert_non_null(f);
    for (int i = 0; i < 200; i++)
        fprintf(f,
                i % 3 ? "{\"text\": \"Number %d was a single man in possession of a good fortune.\"}\n"
                      : "{\"messages\": [{\"role\": \"user\", \"content\": \"Who was number %d?\"}, {\"role\": \"assistant\", \"content\": "
                        "\"A clergyman.\"}]}\n",
                i);
    fprintf(f, "{\"text\": \"\"}\n");
    assert_int_equal(fclose(f), 0);
    if (nb_calib_open(&a, at("many.jsonl"), "models/pemberley-4m", 10, 64, 2048, &err) != NB_OK)
        fail_msg("%s: %s %s", err.cls, err.subject, err.what);
    assert_int_equal(a.rows, 10);
    assert_int_equal(a.len, 64);
    assert_int_equal(a.docs, 201);
    assert_true(a.used > 10 && a.used <= 201);
    assert_int_equal(nb_calib_open(&b, at("many.jsonl"), "models/pemberley-4m", 10, 64, 2048, &err), NB_OK);
    assert_memory_equal(a.ids, b.ids, 640 * sizeof *a.ids);
    assert_non_null(strstr(a.warning, "calib.")); /* few, and much alike */
    nb_calib_clear(&a);
    nb_calib_clear(&b);

    f = fopen(at("same.txt"), "w");
    assert_non_null(f);
    for (int i = 0; i < 1500; i++)
        fputs("All work and no play makes Jack a dull boy. ", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(nb_calib_open(&a, at("same.txt"), "models/pemberley-4m", 0, 128, 2048, &err), NB_OK);
    if (!strstr(a.warning, "calib.uniform") || !strstr(a.warning, "are distinct"))
        fail_msg("no warning about a text that repeats itself: \"%s\"", a.warning);
    assert_true(a.distinct < 0.1);
    nb_calib_clear(&a);
}

/* Ids with an attention mask: padding is never counted. */
static void padding(void **state)
{
    const uint64_t shape[2] = { 8, 64 };
    int32_t v[2][8 * 64];
    nb_calib c;
    nb_err err = { 0 };
    nb_sink *s;

    (void)state;
    for (size_t i = 0; i < 8 * 64; i++) {
        v[1][i] = i % 64 < 30 + i / 64;
        v[0][i] = v[1][i] ? 8 + (int32_t)(i % 50) : 7;
    }
    assert_int_equal(nb_st_sink_file(&s, at("padded.safetensors"), true, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "input_ids", NB_DT_I32, 2, shape, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "attention_mask", NB_DT_I32, 2, shape, &err), NB_OK);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "input_ids", 0, v[0], sizeof v[0], &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "attention_mask", 0, v[1], sizeof v[1], &err), NB_OK);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    if (nb_calib_open(&c, at("padded.safetensors"), "models/pemberley-4m", 0, 0, 2048, &err) != NB_OK)
        fail_msg("%s: %s", err.cls, err.what);
    assert_int_equal(c.len, 64);
    assert_int_equal(c.rows, 4); /* 268 tokens are real */
    for (size_t i = 0; i < c.rows * c.len; i++)
        assert_int_not_equal(c.ids[i], 7);
    nb_calib_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_groups), cmocka_unit_test(extremes),       cmocka_unit_test(refused), cmocka_unit_test(dead_columns),
        cmocka_unit_test(singular),    cmocka_unit_test(no_finite_loss), cmocka_unit_test(ragged),  cmocka_unit_test(outputs_1440),
        cmocka_unit_test(calibration), cmocka_unit_test(records),        cmocka_unit_test(padding), cmocka_unit_test(widths),
    };

    return cmocka_run_group_tests(tests, make, drop);
}
