/* nb_engines_judge: rows of checkpoint x engine x device with the verdict and the rule that the page gives (serving 13), and every
 * rule of data/engines.json well-formed. nb_explain: every rule and family has something to say. */
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
#include "job/embedded.h"
#include "job/engines.h"
#include "job/explain.h"
#include "quant/quant.h"

static const char *str(const nb_json *o, const char *key)
{
    return nb_json_str(nb_json_get(o, key), "");
}

static const char *layouts(void)
{
    static char dir[512];
    const char *g = getenv("NB_GOLDEN");

    snprintf(dir, sizeof dir, "%s/layouts", g ? g : "../shared/golden");
    return dir;
}

static void verdicts(void **state)
{
    static const struct {
        const char *dir, *engine, *device;
        int tp;
        const char *verdict, *rule, *kernel;
    } rows[] = {
        { "awq-gemm-g128-autoawq", "vllm", "sm80", 1, "RUNS", "V-A2", "Marlin (AWQ)" },
        { "awq-gemm-g128-autoawq", "vllm", "sm70", 1, "REFUSES", "V-A1", "" },
        { "awq-gemm-g128-gptqmodel", "vllm", "sm80", 1, "RUNS-DEGRADED", "V-A3", "AWQ GEMM, dequantize + matmul from 256 tokens" },
        { "awq-gemm-g128-autoawq", "vllm", "sm80", 4, "REFUSES", "V-A2", "" }, /* 256 / 4 inputs, group 128 */
        { "awq-gemv-gptqmodel", "vllm", "sm80", 1, "REFUSES", "V-A1", "" },
        { "awq-gemm-3bit-gptqmodel", "vllm", "sm80", 1, "REFUSES", "V-A1", "" },
        { "awq-gemm-g128-autoawq", "vllm", "cpu-avx2", 1, "CRASHES", "V-C3", "" },
        { "awq-gemm-g128-autoawq", "vllm", "cpu-avx512", 1, "RUNS", "V-C2", "CPUWNA16" },
        { "awq-gemm-g32-asym-bf16-gptqmodel", "vllm", "cpu-amx", 1, "RUNS-DEGRADED", "V-C4", "CPUWNA16, W4A8 through AMX" },
        { "awq-gemm-g128-autoawq", "vllm", "arm", 1, "CRASHES", "V-C3", "" },
        { "awq-gemm-moe-mixtral-autoawq", "vllm", "cpu-avx512", 1, "UNKNOWN", "V-C5", "" },
        { "gptq-v1-4bit-g128", "vllm", "sm80", 1, "RUNS", "V-K4", "Marlin" },
        { "gptq-v1-4bit-g128", "vllm", "sm90", 1, "RUNS", "V-K2", "Machete" },
        { "gptq-v1-8bit-channel", "vllm", "sm86", 1, "RUNS", "V-K3", "AllSpark" },
        { "gptq-v2-4bit-g32-asym-desc", "vllm", "sm80", 1, "REFUSES", "V-G1", "" },
        { "gptq-v1-3bit-g128", "vllm", "sm80", 1, "REFUSES", "V-G1", "" },
        { "gptq-v1-4bit-g32-desc", "sglang", "sm80", 1, "RUNS", "S-G1", "gptq_marlin" },
        { "awq-gemm-g128-autoawq", "sglang", "cpu-avx512", 1, "REFUSES", "S-C1", "" },
        { "awq-gemm-g128-autoawq", "sglang", "cpu-amx", 1, "RUNS-DEGRADED", "S-C1", "int4 x int8 (AMX)" },
        { "awq-gemm-g128-autoawq", "transformers", "cpu-avx2", 1, "RUNS", "T-1", "torch_aten_kernel_awq" },
        { "awq-gemv-fast-gptqmodel", "transformers", "sm80", 1, "RUNS", "T-1", "gemv_fast_awq" },
        { "awq-gemv-fast-gptqmodel", "gptqmodel", "cpu-avx2", 1, "REFUSES", "T-1", "" },
        { "gptq-v2-4bit-g32-asym-desc", "gptqmodel", "sm80", 1, "RUNS", "T-1", "exllamav2" },
        { "awq-gemm-g128-autoawq", "llama.cpp", "cpu-avx2", 1, "REFUSES", "L-1", "" },
        { "gptq-v1-4bit-g128", "llama.cpp", "cpu-avx2", 1, "RUNS-DEGRADED", "L-1", "" },
        { "gptq-v1-4bit-g32-desc", "lmdeploy", "sm80", 1, "REFUSES", "D-1", "" },
        { "gptq-v1-4bit-g128", "mistral.rs", "cpu-avx2", 1, "REFUSES", "M-1", "" },
    };
    size_t n_done = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_engines_opts o = { .engines = rows[i].engine, .devices = rows[i].device, .tp = rows[i].tp };
        nb_json *out;
        const nb_json *v;
        nb_err err = { 0 };
        char dir[768];
        snprintf(dir, sizeof dir, "%s/%s", layouts(), rows[i].dir);
        if (access(dir, R_OK) != 0)
            snprintf(dir, sizeof dir, "tests/data/layouts/%s", rows[i].dir);
        if (access(dir, R_OK) != 0)
            continue;
        if (nb_engines_judge(dir, &o, &out, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].dir, err.what);
        v = nb_json_at(nb_json_get(out, "verdicts"), 0);
        if (strcmp(str(v, "verdict"), rows[i].verdict) || strcmp(str(v, "rule"), rows[i].rule) || strcmp(str(v, "kernel"), rows[i].kernel))
            fail_msg("%s on %s %s: %s %s %s: %s", rows[i].dir, rows[i].engine, rows[i].device, str(v, "verdict"), str(v, "rule"),
                     str(v, "kernel"), str(v, "message"));
        nb_json_free(out);
        n_done++;
    }
    print_message("%zu of %zu rows; the others need golden/layouts\n", n_done, NB_LEN(rows));
    assert_true(n_done >= 4);
}

static void wrong_words(void **state)
{
    static const struct {
        const char *engines, *devices;
    } rows[] = { { "vllmm", "sm80" }, { "vllm", "sm" }, { "vllm", "gpu0" }, { "vllm,,sglang", "cpu" }, { "", "cpu" }, { "vllm", "" } };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_engines_opts o = { .engines = rows[i].engines, .devices = rows[i].devices };
        nb_json *out;
        nb_err err = { 0 };
        assert_int_equal(nb_engines_judge("tests/data/layouts/awq-gemv-gptqmodel", &o, &out, &err), NB_EARG);
        assert_null(out);
    }
    assert_true(nb_engines_known("vllm,llama.cpp") && nb_engines_known("all"));
    assert_false(nb_engines_known("tests/data") || nb_engines_known("") || nb_engines_known("vllm,x"));
}

/* Every rule has an id, a verdict of the five and a sentence, and asks only about facts that exist. */
static void every_rule(void **state)
{
    static const char *const verdict[] = { "RUNS", "RUNS-DEGRADED", "UNKNOWN", "CRASHES", "REFUSES" };
    static const char *const facts[] = { "method",
                                         "layout",
                                         "bits",
                                         "group_size",
                                         "sym",
                                         "act_order",
                                         "act_order_sharded",
                                         "device",
                                         "sm",
                                         "x86",
                                         "avx2",
                                         "avx512",
                                         "amx",
                                         "expert",
                                         "n",
                                         "k",
                                         "tp",
                                         "k_mod_group",
                                         "dtype",
                                         "scale_dtype",
                                         "checkpoint",
                                         "fused_differs",
                                         "group_even",
                                         "checkpoint_wrong",
                                         "zero_and_order" };
    nb_json *root;
    size_t n_rules = 0;

    (void)state;
    assert_int_equal(nb_json_parse((const char *)nb_data_engines, nb_data_engines_size, "rules", 0, &root, NULL), NB_OK);
    for (size_t e = 0; e < nb_json_len(nb_json_get(root, "engines")); e++) {
        const nb_json *engine = nb_json_at(nb_json_get(root, "engines"), e);
        const char *const lists[] = { "refuse", "kernels" };
        assert_true(str(engine, "name")[0] && str(engine, "title")[0] && str(engine, "version")[0] && str(engine, "source")[0]);
        assert_true(str(engine, "same_as")[0] || nb_json_get(engine, "none"));
        for (size_t l = 0; l < 2; l++)
            for (size_t i = 0; i < nb_json_len(nb_json_get(engine, lists[l])); i++) {
                const nb_json *r = nb_json_at(nb_json_get(engine, lists[l]), i), *when = nb_json_get(r, l ? "need" : "when");
                bool known = false;
                n_rules++;
                for (size_t v = 0; v < NB_LEN(verdict); v++)
                    known = known || strcmp(str(r, "verdict"), verdict[v]) == 0;
                if (!known || !str(r, "id")[0] || !(str(r, "message")[0] || str(r, "kernel")[0]) || nb_json_len(when) == 0)
                    fail_msg("%s %s[%zu] is incomplete", str(engine, "name"), lists[l], i);
                for (size_t m = 0; m < nb_json_len(when); m++) {
                    const char *key;
                    bool fact = false;
                    nb_json_member(when, m, &key);
                    for (size_t f = 0; f < NB_LEN(facts); f++)
                        fact = fact || strcmp(key, facts[f]) == 0;
                    if (!fact)
                        fail_msg("%s %s asks about %s", str(engine, "name"), str(r, "id"), key);
                }
            }
    }
    assert_true(n_rules > 60);
    nb_json_free(root);
}

static void explain_all(void **state)
{
    nb_json *list, *one;
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < nb_rule_count(); i++) {
        assert_int_equal(nb_explain(nb_rule_at(i)->id, &one, &err), NB_OK);
        assert_string_equal(str(one, "text"), nb_rule_at(i)->text);
        nb_json_free(one);
        assert_int_equal(nb_explain(nb_rule_at(i)->cls, &one, &err), NB_OK);
        assert_true(nb_json_len(nb_json_get(one, "rules")) >= 1);
        nb_json_free(one);
    }
    assert_int_equal(nb_explain_list(&list, &err), NB_OK);
    for (size_t i = 0; i < nb_json_len(nb_json_get(list, "families")); i++) {
        assert_int_equal(nb_explain(str(nb_json_at(nb_json_get(list, "families"), i), "name"), &one, &err), NB_OK);
        assert_true(str(one, "text")[0] && str(one, "title")[0]);
        nb_json_free(one);
    }
    nb_json_free(list);
    assert_int_equal(nb_explain("shp-003", &one, &err), NB_OK);
    nb_json_free(one);
    assert_int_equal(nb_explain("XYZ-001", &one, &err), NB_EARG);
    assert_null(one);
}

static void formats(void **state)
{
    nb_json *rows = nb_formats_json();

    (void)state;
    assert_int_equal(nb_json_len(rows), nb_format_count());
    for (size_t i = 0; i < nb_json_len(rows); i++) {
        const nb_json *o = nb_json_at(rows, i);
        assert_true(nb_json_bool(nb_json_get(o, "read"), false) && nb_json_len(nb_json_get(o, "bits")) > 0);
    }
    nb_json_free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),    cmocka_unit_test(wrong_words), cmocka_unit_test(every_rule),
        cmocka_unit_test(explain_all), cmocka_unit_test(formats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
