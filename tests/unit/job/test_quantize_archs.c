/* test_quantize_archs.c - every kind of architecture through every method: the result passes check, runs, and is nearer to the
 * original under AWQ and GPTQ than under plain rounding. Overrides and exclusions. */
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

#include "base/mem.h"
#include "base/rng.h"
#include "job/calib.h"
#include "job/check.h"
#include "job/load.h"
#include "job/quantize.h"
#include "unit/kern/thin.h"

static char scratch[] = "/tmp/nibble-test-XXXXXX";

static const char *in_scratch(const char *name)
{
    static char path[2][512];
    static int turn;

    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

static int make_scratch(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    char cmd[600];

    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", scratch);
    return system(cmd);
}

/* ---- calibration ids, logits ---- */

/* Methods are told apart on rows that none of them has seen, and on many: where a router chooses, the KL of a token is mostly whether
 * it chose the same experts, and its mean over 192 tokens is uncertain by a tenth (mixtral: 0.29 +- 0.03), over 3072 by a fortieth. */
enum { ROWS = 16, LEN = 24, IDS = 90, JUDGED = 128 };

static void make_ids(uint64_t stream, int32_t *ids, size_t rows)
{
    for (size_t i = 0; i < rows * LEN; i++)
        ids[i] = (int32_t)(nb_rng_uniform(3, stream, i) * IDS);
}

static const char *write_ids(void)
{
    const uint64_t shape[2] = { ROWS, LEN };
    const char *path = in_scratch("ids.safetensors");
    int32_t ids[ROWS * LEN];
    nb_err err = { 0 };
    nb_sink *s;

    make_ids(0, ids, ROWS);
    assert_int_equal(nb_st_sink_file(&s, path, true, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "input_ids", NB_DT_I32, 2, shape, &err), NB_OK);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "input_ids", 0, ids, sizeof ids, &err), NB_OK);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    return path;
}

/* Logits of all judged rows, the caller's. */
static float *logits_of(const char *dir, size_t *vocab)
{
    const nb_model_opts mo = { 0 };
    nb_exec_opts eo = { .max_m = JUDGED * LEN, .kv_dtype = NB_DT_F32, .exact_fp32 = true };
    uint8_t want[JUDGED * LEN];
    int32_t ids[JUDGED * LEN];
    nb_loaded l = { 0 };
    nb_err err = { 0 };
    nb_batch batch;
    nb_exec *x;
    nb_rows rows;
    float *out;

    if (nb_load_store(&l, dir, NULL, &err) != NB_OK || nb_load_model(&l, &mo, &err) != NB_OK)
        fail_msg("%s: %s", dir, err.what);
    make_ids(1, ids, JUDGED);
    memset(want, 1, sizeof want);
    assert_int_equal(nb_rows_init(&rows, LEN, JUDGED, &err), NB_OK);
    eo.n_pages = rows.n_pages;
    eo.n_states = JUDGED;
    assert_int_equal(nb_exec_cpu_open(l.model, &eo, &x, &err), NB_OK);
    *vocab = nb_model_config(l.model)->vocab;
    out = nb_alloc_array(JUDGED * LEN, *vocab * sizeof *out);
    batch = nb_rows_batch(&rows, ids, JUDGED);
    batch.want = want;
    assert_int_equal(nb_exec_run(x, &batch, out, &err), NB_OK);
    nb_exec_close(x);
    nb_rows_clear(&rows);
    nb_load_close(&l);
    return out;
}

static double log_sum(const float *v, size_t n)
{
    double top = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        top = (double)v[i] > top ? (double)v[i] : top;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)v[i] - top);
    return top + log(sum);
}

/* Mean KL(a || b). */
static double divergence(const float *a, const float *b, size_t vocab)
{
    double kl = 0;

    for (size_t t = 0; t < JUDGED * LEN; t++, a += vocab, b += vocab) {
        const double za = log_sum(a, vocab), zb = log_sum(b, vocab);
        for (size_t i = 0; i < vocab; i++)
            kl += exp((double)a[i] - za) * (((double)a[i] - za) - ((double)b[i] - zb));
    }
    return kl / (JUDGED * LEN);
}

/* ---- every kind of architecture ---- */

typedef struct tally {
    size_t rows, experts, notes;
    double before, after; /* errors of the linear that came last */
} tally;

static void on_row(void *user, const nb_quantize_row *r)
{
    tally *t = user;

    t->rows++;
    t->experts += r->expert;
    t->notes += *r->note != 0;
    t->before = r->before;
    t->after = r->after;
    assert_true(isfinite(r->before) && isfinite(r->after));
}

static void checks_out(const char *label, const char *dir)
{
    const nb_check_opts o = { 0 };
    nb_report *rep = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    const nb_status rc = nb_check(dir, &o, rep, &sum, &err);

    if (rc != NB_OK)
        fail_msg("%s: %zu findings %s", label, nb_report_count_sev(rep, NB_SEV_REJECT), err.what);
    nb_report_free(rep);
}

static double quantize(const char *label, const char *model, nb_quantize_opts *o, const float *ref, size_t vocab, tally *t)
{
    const char *out = in_scratch("out");
    nb_quantize_result res;
    nb_err err = { 0 };
    size_t v;
    float *got;
    double kl;

    *t = (tally){ 0 };
    o->scale_dtype = NB_DT_F16;
    o->force = true;
    o->on_row = on_row;
    o->user = t;
    if (nb_quantize(model, out, o, &res, &err) != NB_OK)
        fail_msg("%s: %s: %s", label, err.subject, err.what);
    assert_int_equal(res.modules, t->rows);
    checks_out(label, out);
    got = logits_of(out, &v);
    assert_int_equal(v, vocab);
    kl = divergence(ref, got, vocab);
    nb_free(got);
    return kl;
}

static const char *ids_file(void)
{
    static char path[512];

    snprintf(path, sizeof path, "%s", write_ids());
    return path;
}

static nb_quantize_opts options(nb_quant_method method, const char *calib)
{
    return (nb_quantize_opts){ .method = method,
                               .bits = 4,
                               .group_size = -1,
                               .format = "compressed-tensors",
                               .calib = calib,
                               .clip = NB_QUANTIZE_CLIPS,
                               .order = NB_GPTQ_GAR,
                               .mse = NB_QUANTIZE_MSE,
                               .gptaq = NB_QUANTIZE_GPTAQ,
                               .refine = NB_QUANTIZE_REFINE };
}

static void every_kind(void **state)
{
    static const struct {
        const char *model;
        size_t linears, of_experts;
    } rows[] = {
        { "llama", 14, 0 },
        { "gemma3-mm", 14, 0 },
        { "cohere", 14, 0 },
        { "phi3", 8, 0 },
        { "falcon-40b", 8, 0 },
        { "gpt2", 8, 0 },
        { "opt", 12, 0 },
        { "nemotron", 12, 0 },
        { "deepseek_v3", 40, 24 },
        { "mixtral", 32, 24 },
        { "qwen2_moe", 38, 24 },
        { "granitemoeshared", 36, 24 },
        { "gpt_oss-mxfp4", 32, 24 },
        { "gpt_oss", 32, 24 },
        /* layers that hand on more than the residual: streams, keys and values, chosen keys, a branch; blocks that layers share */
        { "gemma3n", 32, 0 },
        { "gemma4", 32, 0 },
        { "glm_moe_dsa", 76, 48 },
        { "longcat_flash", 68, 36 },
        { "deepseek_v4", 100, 72 },
        { "olmo_hybrid", 15, 0 },
        { "zamba2", 13, 0 },
    };
    const char *calib = ids_file();

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        double kl[NB_QUANT_METHODS];
        char model[128];
        size_t vocab;
        float *ref;

        snprintf(model, sizeof model, "tests/data/models/%s/config.json", rows[i].model);
        snprintf(model, sizeof model, "tests/data/models%s/%s", access(model, R_OK) == 0 ? "" : "-2026", rows[i].model);
        ref = logits_of(model, &vocab);
        for (int m = 0; m < NB_QUANT_METHODS; m++) {
            nb_quantize_opts o = options((nb_quant_method)m, calib);
            tally t;

            kl[m] = -INFINITY;
            if (m != NB_QUANT_RTN && thin() > 1 && (size_t)m % 3 != i % 3) /* the methods take turns where each is slow */
                continue;
            kl[m] = quantize(rows[i].model, model, &o, ref, vocab, &t);
            if (t.rows != rows[i].linears || t.experts != rows[i].of_experts || t.notes != 0)
                fail_msg("%s: %zu linears, %zu of experts, %zu notes", rows[i].model, t.rows, t.experts, t.notes);
        }
        nb_free(ref);
        print_message("%s: KL of rtn %.5f, awq %.5f, gptq %.5f, awq+gptq %.5f\n", rows[i].model, kl[NB_QUANT_RTN], kl[NB_QUANT_AWQ],
                      kl[NB_QUANT_GPTQ], kl[NB_QUANT_AWQ_GPTQ]);
        for (int m = 0; m < NB_QUANT_METHODS; m++)
            if (m != NB_QUANT_RTN && !(kl[m] < kl[NB_QUANT_RTN]))
                fail_msg("%s: KL of rtn %.5f, of method %d %.5f", rows[i].model, kl[NB_QUANT_RTN], m, kl[m]);
    }
}

/* ---- what is quantized, and how ---- */

static void selections(void **state)
{
    static const struct {
        const char *label, *model, *dynamic, *ignore;
        nb_quant_method method;
        bool all;
        double least;
        size_t linears, notes; /* notes SIZE_MAX: some */
    } rows[] = {
        { "a pattern to ignore, anywhere in the name", "llama", NULL, "down_proj", NB_QUANT_AWQ, false, 0, 12, 0 },
        { "a layer, from the start of the name", "llama", "{\"-:model.layers.1\":{}}", NULL, NB_QUANT_GPTQ, false, 0, 7, 0 },
        { "wider here, none there", "mistral", "{\"+:.*down\":{\"bits\":8},\"-:.*k_proj\":{}}", NULL, NB_QUANT_AWQ, false, 0, 12, 0 },
        { "each its own grid", "mistral", "{\".*gate\":{\"sym\":true},\".*o_proj\":{\"bits\":3}}", NULL, NB_QUANT_GPTQ, false, 0, 14, 0 },
        { "some experts of a fused tensor", "gpt_oss", NULL, "experts\\.[13]\\.", NB_QUANT_AWQ, false, 0, 20, 0 },
        { "some experts of a fused tensor, rounded", "granitemoe", NULL, "experts\\.2\\.", NB_QUANT_RTN, false, 0, 26, 0 },
        { "a Conv1D that only takes scales", "gpt2", NULL, "c_attn", NB_QUANT_AWQ, false, 0, 6, 0 },
        { "experts that few tokens reach", "qwen3_moe", NULL, NULL, NB_QUANT_AWQ, false, 0.9, 44, 36 },
        { "the same", "qwen3_moe", NULL, NULL, NB_QUANT_GPTQ, false, 0.9, 44, 36 },
        { "all tokens to every expert", "qwen3_moe", NULL, NULL, NB_QUANT_AWQ, true, 0.9, 44, 0 },
        { "all tokens to every expert", "mixtral", NULL, NULL, NB_QUANT_GPTQ, true, 0.9, 32, 0 },
    };
    const char *calib = ids_file();

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(rows[i].method, calib);
        char model[128];
        size_t vocab;
        float *ref;
        double kl;
        tally t;

        snprintf(model, sizeof model, "tests/data/models/%s", rows[i].model);
        ref = logits_of(model, &vocab);
        o.dynamic = rows[i].dynamic;
        o.ignore = &rows[i].ignore;
        o.n_ignore = rows[i].ignore != NULL;
        o.all_experts = rows[i].all;
        o.least_tokens = rows[i].least;
        kl = quantize(rows[i].label, model, &o, ref, vocab, &t);
        if (t.rows != rows[i].linears || t.notes != rows[i].notes || !(kl < 1))
            fail_msg("%s: %zu linears, %zu notes, KL %.5f", rows[i].label, t.rows, t.notes, kl);
        nb_free(ref);
    }
}

/* The head is a quantized linear, the embedding has its bytes, and no flag ties them. */
static void has_own_head(const char *label, const char *model, const char *dir, const char *name)
{
    nb_loaded was = { 0 }, is = { 0 };
    nb_config cfg = { 0 };
    nb_plan plan = { 0 };
    nb_err err = { 0 };
    const nb_tensor *a, *b;
    char embed[192];

    if (nb_load_store(&was, model, NULL, &err) != NB_OK || nb_load_store(&is, dir, NULL, &err) != NB_OK ||
        nb_config_parse(is.config, &cfg, &err) != NB_OK || nb_plan_build(&cfg, is.store, &plan, &err) != NB_OK)
        fail_msg("%s: %s", label, err.what);
    a = nb_store_find(was.store, nb_plan_embed(&plan, embed, sizeof embed));
    b = nb_store_find(is.store, embed);
    if (strcmp(plan.head, name) != 0 || !nb_scan_find(&is.scan, name) || cfg.tie_embeddings || !a || !b || a->dtype != b->dtype ||
        a->n_bytes != b->n_bytes || memcmp(a->data, b->data, (size_t)a->n_bytes) != 0)
        fail_msg("%s: head \"%s\", embedding %s", label, plan.head, embed);
    nb_plan_clear(&plan);
    nb_config_clear(&cfg);
    nb_load_close(&was);
    nb_load_close(&is);
}

/* The head as well, in a layout of either kind, plainly or from what the quantized layers feed it. Where the embedding serves as head it
 * stays, and the model is tied no more. */
static void with_head(void **state)
{
    static const struct {
        const char *model, *format, *head;
        nb_quant_method method;
        nb_gptq_order order;
        int64_t group;
        size_t linears;
        bool solved;
    } rows[] = { { "llama", "compressed-tensors", "lm_head", NB_QUANT_RTN, NB_GPTQ_GAR, 16, 15, false },
                 { "llama", "awq-gemm", "lm_head", NB_QUANT_RTN, NB_GPTQ_GAR, 16, 15, false },
                 { "llama", "awq-gemm", "lm_head", NB_QUANT_AWQ, NB_GPTQ_GAR, 16, 15, false },
                 { "llama", "compressed-tensors", "lm_head", NB_QUANT_GPTQ, NB_GPTQ_GAR, 16, 15, true },
                 { "llama", "compressed-tensors", "lm_head", NB_QUANT_GPTQ, NB_GPTQ_DESC, 16, 15, true },
                 { "llama", "awq-gemm", "lm_head", NB_QUANT_AWQ_GPTQ, NB_GPTQ_GAR, 16, 15, true },
                 /* tied: by the file, by default, inside a multimodal directory, with a copy that is stored */
                 { "llama-llama3", "compressed-tensors", "lm_head", NB_QUANT_RTN, NB_GPTQ_GAR, 16, 15, false },
                 { "llama-llama3", "awq-gemm", "lm_head", NB_QUANT_AWQ, NB_GPTQ_GAR, 16, 15, false },
                 { "llama-llama3", "compressed-tensors", "lm_head", NB_QUANT_GPTQ, NB_GPTQ_GAR, 16, 15, true },
                 { "gemma", "compressed-tensors", "lm_head", NB_QUANT_AWQ_GPTQ, NB_GPTQ_GAR, 16, 15, true },
                 { "gemma3-mm", "compressed-tensors", "language_model.lm_head", NB_QUANT_GPTQ, NB_GPTQ_GAR, 16, 15, true },
                 { "gpt2", "compressed-tensors", "lm_head", NB_QUANT_RTN, NB_GPTQ_GAR, 16, 9, false },
                 { "opt", "compressed-tensors", "lm_head", NB_QUANT_GPTQ, NB_GPTQ_GAR, 16, 13, true },
                 { "gpt_neox-serial", "compressed-tensors", "embed_out", NB_QUANT_GPTQ, NB_GPTQ_GAR, 16, 9, true },
                 { "qwen2-sliding", "compressed-tensors", "lm_head", NB_QUANT_RTN, NB_GPTQ_GAR, 16, 15, false },
                 { "mixtral-sliding", "compressed-tensors", "lm_head", NB_QUANT_GPTQ, NB_GPTQ_GAR, -1, 33, false } };
    const char *calib = ids_file();
    nb_quantize_opts shared = options(NB_QUANT_RTN, NULL);
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(rows[i].method, calib);
        char label[128], model[128];
        size_t vocab;
        float *ref;
        double kl;
        tally t;

        if (thin() > 1 && i % 3 != 2)
            continue;
        snprintf(label, sizeof label, "row %zu: %s as %s", i, rows[i].model, rows[i].format);
        snprintf(model, sizeof model, "tests/data/models/%s", rows[i].model);
        ref = logits_of(model, &vocab);
        o.lm_head = true;
        o.format = rows[i].format;
        o.order = rows[i].order;
        o.group_size = rows[i].group;
        kl = quantize(label, model, &o, ref, vocab, &t);
        if (!(kl < 0.5) || t.rows != rows[i].linears)
            fail_msg("%s: KL %.5f, %zu linears", label, kl, t.rows);
        if (rows[i].solved && !(t.after < 0.8 * t.before))
            fail_msg("%s: error of the head %.3e, rounded plainly %.3e", label, t.after, t.before);
        has_own_head(label, model, in_scratch("out"), rows[i].head);
        nb_free(ref);
    }
    /* tied by the same word as blocks of layers are */
    shared.lm_head = true;
    shared.scale_dtype = NB_DT_F16;
    assert_int_equal(nb_quantize("tests/data/models-2026/zamba2", in_scratch("zamba2"), &shared, NULL, &err), NB_EUNSUPPORTED);
    assert_non_null(strstr(err.what, "untie"));
}

static void refused(void **state)
{
    static const struct {
        const char *label, *format, *dynamic, *ignore;
        nb_quant_method method;
        nb_status rc;
        const char *word;
    } rows[] = {
        { "not JSON", NULL, "{\"a\":", NULL, NB_QUANT_RTN, NB_EFORMAT, "" },
        { "a file that is not there", NULL, "no-such-file.json", NULL, NB_QUANT_RTN, NB_EOPEN, "" },
        { "no pattern", NULL, "{\"+:(\":{\"bits\":8}}", NULL, NB_QUANT_RTN, NB_EFORMAT, "dynamic" },
        { "bits out of range", NULL, "{\".*\":{\"bits\":9}}", NULL, NB_QUANT_RTN, NB_EFORMAT, "bits" },
        { "a pattern to ignore that is none", NULL, NULL, "[", NB_QUANT_RTN, NB_EFORMAT, "--ignore" },
        { "a pattern that matches nothing", NULL, NULL, "lm_tail", NB_QUANT_RTN, NB_EARG, "matches no linear" },
        { "nothing left", NULL, NULL, "proj", NB_QUANT_RTN, NB_EARG, "nothing is left" },
        { "a layout with one setting", "awq-gemm", "{\".*down\":{\"group_size\":8}}", NULL, NB_QUANT_AWQ, NB_EARG, "one setting" },
        { "scaled together, rounded apart", NULL, "{\".*q_proj\":{\"bits\":8}}", NULL, NB_QUANT_AWQ, NB_EARG, "scaled together" },
        { "one input, two orders", NULL, "{\".*up_proj\":{\"desc_act\":true}}", NULL, NB_QUANT_GPTQ, NB_EARG, "same input" },
        { "groups that do not fit", NULL, "{\".*o_proj\":{\"group_size\":48}}", NULL, NB_QUANT_RTN, NB_EARG, "multiple" },
    };
    const char *calib = ids_file();

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(rows[i].method, calib);
        nb_err err = { 0 };
        nb_status rc;

        o.scale_dtype = NB_DT_F16;
        o.force = true;
        o.group_size = 16;
        o.format = rows[i].format ? rows[i].format : o.format;
        o.dynamic = rows[i].dynamic;
        o.ignore = &rows[i].ignore;
        o.n_ignore = rows[i].ignore != NULL;
        rc = nb_quantize("tests/data/models/llama", in_scratch("refused"), &o, NULL, &err);
        if (rc != rows[i].rc || !strstr(err.what, rows[i].word))
            fail_msg("%s: status %d, %s", rows[i].label, rc, err.what);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_kind), cmocka_unit_test(selections), cmocka_unit_test(refused),
                                        cmocka_unit_test(with_head) };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
