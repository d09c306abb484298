/* test_capacity.c - the examples of serving 12, refusals, models from disk against what is then used, the GPU table. */
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
#include "job/capacity.h"
#include "job/load.h"
#include "model/exec.h"

static const nb_cap_model llama8 = { .layers = 32,
                                     .d_model = 4096,
                                     .d_ff = 14336,
                                     .heads = 32,
                                     .kv_heads = 8,
                                     .head_dim = 128,
                                     .vocab = 128256,
                                     .context = 131072,
                                     .params = 8030000000,
                                     .active_params = 7500000000,
                                     .file_bytes = 5730000000,
                                     .packed_bytes = 5730000000,
                                     .table_bytes = 1050000000,
                                     .kv_full = 65536,
                                     .kv_full_heads = 512 };

/* Serving 12.2: bits a weight. */
static void bits_a_weight(void **state)
{
    static const struct {
        const char *label;
        unsigned bits;
        double group, want, tolerance;
        bool sym;
    } rows[] = {
        { "g128 asymmetric", 4, 128, 4.15625, 1e-9, false },
        { "g128 symmetric without zeros", 4, 128, 4.125, 1e-9, true },
        { "g64 asymmetric", 4, 64, 4.3125, 1e-9, false },
        { "g32 asymmetric", 4, 32, 4.625, 1e-9, false },
        { "one group", 4, -1, 4.0, 0.01, false },
        { "8 bits", 8, 128, 8.1875, 1e-9, false },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const double got = nb_cap_linear_bytes(4096, 4096, rows[i].bits, rows[i].group, rows[i].sym) * 8 / 4096 / 4096;
        if (!(fabs(got - rows[i].want) <= rows[i].tolerance))
            fail_msg("%s: %.5f", rows[i].label, got);
    }
}

/* Serving 12.3, 12.4. */
static void cache_and_workspace(void **state)
{
    const nb_cap_model mla = { .layers = 61, .kv_heads = 1, .kv_full = 61 * (512 + 64), .kv_full_heads = 61, .latent = true };
    const nb_cap_model window = { .kv_heads = 8, .kv_window = 1000, .kv_full = 100, .window = 4096, .state_bytes = 7 };
    const struct {
        const char *label;
        const nb_cap_model *m;
        nb_cap_kv kv;
        size_t block, tp, tokens;
        uint64_t want;
    } rows[] = {
        { "128 KiB a token", &llama8, NB_CAP_KV_16, 1, 1, 1, 131072 },
        { "4 GiB for 32768 tokens", &llama8, NB_CAP_KV_16, 1, 1, 32768, (uint64_t)4 << 30 },
        { "65 KiB a token with 8 bits", &llama8, NB_CAP_KV_8, 1, 1, 1, 65 * 1024 },
        { "2.03 GiB", &llama8, NB_CAP_KV_8, 1, 1, 32768, 32768ull * 65 * 1024 },
        { "fp8 has no scales", &llama8, NB_CAP_KV_FP8, 1, 1, 1, 65536 },
        { "f32", &llama8, NB_CAP_KV_32, 1, 1, 1, 262144 },
        { "whole blocks", &llama8, NB_CAP_KV_16, 32, 1, 33, 64 * 131072 },
        { "two devices", &llama8, NB_CAP_KV_16, 1, 2, 1, 65536 },
        { "as many devices as heads", &llama8, NB_CAP_KV_16, 1, 8, 1, 16384 },
        { "heads are copied, not cut", &llama8, NB_CAP_KV_16, 1, 32, 1, 16384 },
        { "a latent", &mla, NB_CAP_KV_16, 1, 1, 1, 70272 },
        { "a latent is not split", &mla, NB_CAP_KV_16, 1, 4, 1, 70272 },
        { "inside a window", &window, NB_CAP_KV_16, 1, 1, 1000, 2 * 1100 * 1000 + 7 },
        { "behind a window", &window, NB_CAP_KV_16, 1, 1, 100000, 2 * (100 * 100000 + 1000 * (4096 + 512)) + 7 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_cap_opts o = { .gpu = true, .kv = rows[i].kv, .block = rows[i].block, .tp = rows[i].tp, .chunk = 512 };
        const uint64_t got = nb_cap_seq_bytes(rows[i].m, &o, rows[i].tokens);
        if (got != rows[i].want)
            fail_msg("%s: %llu, want %llu", rows[i].label, (unsigned long long)got, (unsigned long long)rows[i].want);
    }
    assert_true(fabs((double)nb_cap_workspace(&llama8, false, 512, 0) / 96e6 - 1) < 0.01);
    assert_true(fabs((double)nb_cap_workspace(&llama8, false, 0, 64) / 33e6 - 1) < 0.01);
}

static void answers(void **state)
{
    nb_cap_opts o = { .gpu = true,
                      .memory = (uint64_t)24 << 30,
                      .share = 0.9,
                      .reserve = (uint64_t)1 << 30,
                      .tp = 1,
                      .block = 32,
                      .chunk = 512,
                      .prompt = 2000,
                      .output = 500,
                      .prompt_max = 28000,
                      .output_max = 4768,
                      .bandwidth = 1e12,
                      .flops = 1e14 };
    nb_cap_model moe = llama8;
    nb_cap_plan p, q;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_cap_plan_run(&llama8, &o, &p, &err), NB_OK);
    assert_true(p.fits && p.tokens_max == 32768 && p.seq_max == (uint64_t)4 << 30 &&
                p.seq_mean == 2528 * 131072ull); /* 2500 in blocks of 32 */
    assert_int_equal(p.kv_pool, p.budget - p.weights - p.workspace - p.reserve);
    assert_int_equal(p.seqs_mean, p.kv_pool / p.seq_mean);
    assert_int_equal(p.seqs_max, p.kv_pool / p.seq_max);
    assert_true(nb_cap_seq_bytes(&llama8, &o, p.longest) <= p.kv_pool && nb_cap_seq_bytes(&llama8, &o, p.longest + 1) > p.kv_pool);
    /* 4.68 GB of weights without the embedding table, 2250 tokens of cache */
    assert_true(fabs(p.decode_1 / (1e12 / (4.68e9 + 2272 * 131072.0)) - 1) < 1e-9);
    assert_true(fabs(p.prefill_s - 2 * 7.5e9 * 2000 / 1e14) < 1e-9);
    o.tp = 2;
    assert_int_equal(nb_cap_plan_run(&llama8, &o, &q, &err), NB_OK);
    assert_true(q.weights == p.weights / 2 && q.seq_max == p.seq_max / 2 && q.longest > 2 * p.longest / 2);
    o.tp = 1;

    moe.n_experts = 8; /* 1 - (1 - k/E)^B of the experts: a quarter for one token, nearly all for 16 */
    moe.n_active = 2;
    moe.expert_bytes = 4000000000;
    moe.kv_full = moe.kv_full_heads = 0;
    o.max_seqs = 16;
    assert_int_equal(nb_cap_plan_run(&moe, &o, &p, &err), NB_OK);
    assert_int_equal(p.batch, 16);
    assert_true(fabs(p.decode_1 / (1e12 / (0.68e9 + 1e9)) - 1) < 1e-9);
    assert_true(fabs(p.decode_batch / (16e12 / (0.68e9 + 4e9 * (1 - pow(0.75, 16)))) - 1) < 1e-9);

    o.memory = (uint64_t)6 << 30; /* weights alone are too much */
    assert_int_equal(nb_cap_plan_run(&llama8, &o, &p, &err), NB_OK);
    assert_true(!p.fits && p.kv_pool == 0 && p.seqs_mean == 0 && p.longest == 0 && p.weights_dominate && p.decode_batch == 0);
}

static void refused(void **state)
{
    const struct {
        const char *label, *cls;
        size_t tp, prompt, output;
    } rows[] = {
        { "heads do not divide", "plan.tp", 3, 10, 10 },
        { "no device", "plan.tp", 0, 10, 10 },
        { "beyond the context", "plan.lengths", 1, 131000, 1000 },
        { "no tokens", "plan.lengths", 1, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_cap_opts o = { .memory = 1 << 30, .share = 1, .tp = rows[i].tp, .prompt = rows[i].prompt, .output = rows[i].output };
        nb_cap_plan p;
        nb_err err = { 0 };
        assert_int_equal(nb_cap_plan_run(&llama8, &o, &p, &err), NB_EARG);
        if (strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %s", rows[i].label, err.cls);
    }
}

/* Bytes that 64 more pages take. */
static double pages_64(nb_model *m)
{
    nb_exec_opts xo = { .max_m = 64, .n_pages = 2, .kv_dtype = NB_DT_F16 };
    uint64_t bytes[2];
    nb_err err = { 0 };

    for (int i = 0; i < 2; i++, xo.n_pages += 64) {
        nb_exec *x;
        if (nb_exec_cpu_open(m, &xo, &x, &err) != NB_OK)
            fail_msg("%s", err.what);
        bytes[i] = nb_exec_bytes(x);
        nb_exec_close(x);
    }
    return (double)(bytes[1] - bytes[0]);
}

/* CAP-1: what a plan says is what a model and its cache then take, within 1 %. */
static void as_used(void **state)
{
    static const char *const models[] = { "models/pemberley-4m", "tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel",
                                          "tests/data/models/gemma2", "tests/data/models/deepseek_v3", "tests/data/models/mixtral" };

    (void)state;
    for (size_t i = 0; i < NB_LEN(models); i++) {
        const nb_model_opts mo = { 0 };
        const nb_cap_opts co = { .tp = 1, .block = NB_PAGE, .chunk = 1 << 20 }; /* windows hold all there is */
        nb_loaded l = { 0 };
        nb_cap_model m;
        nb_err err = { 0 };
        if (nb_cap_read(&m, models[i], 0, 0, &err) != NB_OK || nb_load_store(&l, models[i], NULL, &err) != NB_OK ||
            nb_load_model(&l, &mo, &err) != NB_OK)
            fail_msg("%s: %s", models[i], err.what);
        const double used = (double)nb_model_bytes(l.model), weights = (double)m.packed_bytes / used,
                     kv = (double)nb_cap_seq_bytes(&m, &co, 64 * NB_PAGE) / pages_64(l.model);
        if (!(fabs(weights - 1) * used < 0.01 * used + 16384) || /* norms of models of 100 KB */ !(fabs(kv - 1) < 0.01))
            fail_msg("%s: weights %.4f, cache %.4f of what is used", models[i], weights, kv);
        assert_true(m.active_params <= m.params && m.params > 0 && m.file_bytes > 0 && !m.estimated);
        nb_load_close(&l);
    }
}

/* From config.json alone: Llama 3 8B with AWQ g128 is 5.7 GB, not the 4.0 of half a byte a parameter. */
static void config_alone(void **state)
{
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_"
        "layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"max_position_embeddings\":131072,\"rms_"
        "norm_eps\":1e-5,\"rope_theta\":500000.0,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"%s}";
    static const struct {
        const char *label, *quant;
        unsigned bits;
        double want;
    } rows[] = {
        { "AWQ g128",
          ",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\"}", 0,
          5.73e9 },
        { "planned with 4 bits", "", 4, 5.73e9 },
        { "16 bits", "", 0, 16.06e9 },
    };
    char dir[] = "/tmp/nibble-plan-XXXXXX", path[64];

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        FILE *f = fopen(path, "w");
        nb_cap_model m;
        nb_err err = { 0 };
        fprintf(f, config, rows[i].quant);
        fclose(f);
        if (nb_cap_read(&m, dir, rows[i].bits, 0, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].label, err.what);
        if (!(fabs((double)m.file_bytes / rows[i].want - 1) < 0.005) || !(fabs((double)m.params / 8.030e9 - 1) < 0.001) || !m.estimated ||
            m.kv_full != 65536)
            fail_msg("%s: %.3e bytes, %.3e parameters", rows[i].label, (double)m.file_bytes, (double)m.params);
    }
    unlink(path);
    rmdir(dir);
}

static void gpus(void **state)
{
    static const struct {
        const char *name, *want;
    } rows[] = {
        { "RTX-4090", "RTX-4090" },   { "rtx 4090", "RTX-4090" }, { "4090", "RTX-4090" }, { "h200", "H200" }, { "a10", "A10" },
        { "A100 80gb", "A100-80GB" }, { "a100", NULL },           { "4091", NULL },       { "", NULL },       { "<script>", NULL },
    };
    nb_gpu g;

    (void)state;
    assert_true(nb_gpu_count() >= 25);
    for (size_t i = 0; i < nb_gpu_count(); i++) { /* every row says something sane */
        assert_int_equal(nb_gpu_at(i, &g, NULL), NB_OK);
        if (!(g.memory >= (uint64_t)8 << 30 && g.memory <= (uint64_t)1 << 40 && g.bandwidth > 1e11 && g.bandwidth < 2e13 &&
              g.flops > 1e13 && g.arch[0] && g.vendor[0]))
            fail_msg("row %zu: %s", i, g.name);
    }
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        const nb_status rc = nb_gpu_find(rows[i].name, &g, &err);
        if (rc != (rows[i].want ? NB_OK : NB_EARG) || (rows[i].want && strcmp(g.name, rows[i].want) != 0))
            fail_msg("\"%s\": %d %s", rows[i].name, rc, rc == NB_OK ? g.name : err.what);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bits_a_weight), cmocka_unit_test(cache_and_workspace),
                                        cmocka_unit_test(answers),       cmocka_unit_test(refused),
                                        cmocka_unit_test(as_used),       cmocka_unit_test(config_alone),
                                        cmocka_unit_test(gpus) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
