/* Quantization configs: aliases, defaults, refusals (CF rows of hardening 5.5, CFG rules of formats 7.2), exclusions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "quant/qconfig.h"

static const struct {
    const char *label, *text;
    nb_status code;
    const char *cls, *rule; /* of the error, or of the first finding */
    const char *what;
} bad[] = {
    { "CF-19 CFG-003 unknown method", "{\"quant_method\":\"fp8\"}", NB_EUNSUPPORTED, "cfg.quant_method", "CFG-003",
      "Quantization method fp8 is not a 4-bit integer checkpoint this tool understands." },
    { "QT-10 FP8 weights, with or without scales, are refused as a method",
      "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}", NB_EUNSUPPORTED, "cfg.quant_method",
      "CFG-003", "Quantization method fp8" },
    { "CF-19 method with an escape", "{\"quant_method\":\"a\\u001b[2J\"}", NB_EUNSUPPORTED, "cfg.quant_method", "CFG-003", "a\\x1b[2J" },
    { "CF-20 CFG-004 bits 0", "{\"quant_method\":\"awq\",\"bits\":0}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004",
      "bits = 0 is not usable (expected an integer from 2 to 8)." },
    { "CF-20 bits 1", "{\"quant_method\":\"awq\",\"bits\":1}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = 1 is" },
    { "CF-20 bits 9", "{\"quant_method\":\"awq\",\"bits\":9}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = 9 is" },
    { "CF-20 bits negative", "{\"quant_method\":\"awq\",\"bits\":-4}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = -4 is" },
    { "CF-20 bits fractional", "{\"quant_method\":\"awq\",\"bits\":4.5}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = 4.5 is" },
    { "CF-20 bits 2^31", "{\"quant_method\":\"awq\",\"bits\":2147483648}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004",
      "bits = 2147483648 is" },
    { "CF-20 bits 2^64", "{\"quant_method\":\"awq\",\"bits\":18446744073709551616}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004",
      "is not usable" },
    { "CF-20 bits no number", "{\"quant_method\":\"awq\",\"bits\":[4]}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = [4] is" },
    { "CF-20 bits missing for gptq", "{\"quant_method\":\"gptq\"}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "bits = (missing) is" },
    { "CF-20 bits a word", "{\"quant_method\":\"awq\",\"bits\":\"four\"}", NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004",
      "bits = \"four\" is" },
    { "CF-21 CFG-005 group 0", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":0}", NB_EFORMAT, "cfg.group_size", "CFG-005",
      "group_size = 0 is not usable (expected -1 or a positive integer)." },
    { "CF-21 group -2", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-2}", NB_EFORMAT, "cfg.group_size", "CFG-005",
      "group_size = -2 is" },
    { "CF-21 group 2^31", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":2147483648}", NB_EFORMAT, "cfg.group_size", "CFG-005",
      "group_size = 2147483648 is" },
    { "CF-21 group fractional", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":1.5}", NB_EFORMAT, "cfg.group_size", "CFG-005",
      "group_size = 1.5 is" },
    { "CF-22 CFG-030 zero_point and sym", "{\"quant_method\":\"awq\",\"bits\":4,\"zero_point\":true,\"sym\":true}", NB_EFORMAT,
      "cfg.quant_conflict", "CFG-030", "zero_point is true and sym is true; one is the opposite of the other." },
};

static nb_json *parse(const char *text)
{
    nb_json *o = NULL;

    assert_int_equal(nb_json_parse(text, strlen(text), "cfg", 0, &o, NULL), NB_OK);
    return o;
}

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_json *o = parse(bad[i].text);
        nb_qconfig c;
        nb_err err = { 0 };
        nb_report *r = nb_report_new();
        const nb_status rc = nb_qconfig_parse(o, "config.json", NULL, &c, &err);

        if (rc != bad[i].code || strcmp(err.cls, bad[i].cls) != 0 || strcmp(err.rule, bad[i].rule) != 0 || !strstr(err.what, bad[i].what))
            fail_msg("%s: got %d %s [%s] \"%s\"", bad[i].label, (int)rc, err.cls, err.rule, err.what);
        nb_qconfig_parse(o, "config.json", r, &c, NULL);
        if (nb_report_count_sev(r, NB_SEV_REJECT) != 1)
            fail_msg("%s: no finding of severity reject", bad[i].label);
        nb_report_free(r);
        nb_json_free(o);
    }
}

static const struct {
    const char *label, *text, *method, *layout;
    unsigned bits;
    int64_t group;
    bool sym;
    const char *warns; /* rule of the first finding, or "" */
} fine[] = {
    { "AutoAWQ", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\"}", "awq", "awq-gemm", 4,
      128, false, "" },
    { "old side file", "{\"zero_point\":true,\"q_group_size\":64,\"w_bit\":4,\"version\":\"GEMM\"}", "awq", "awq-gemm", 4, 64, false, "" },
    { "GPTQModel symmetric",
      "{\"quant_method\":\"awq\",\"method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":false,\"format\":\"gemm\"}", "awq",
      "awq-gemm", 4, 128, true, "" },
    { "CF-22 sym and zero_point agree", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"sym\":false,\"zero_point\":true}", "awq",
      "awq-gemm", 4, 64, false, "" },
    { "CFG-010 zero_point missing", "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}", "awq", "awq-gemm", 4, 128, false,
      "CFG-010" },
    { "CFG-020 bits as a string", "{\"quant_method\":\"awq\",\"bits\":\"4\",\"group_size\":128,\"zero_point\":true}", "awq", "awq-gemm", 4,
      128, false, "CFG-020" },
    { "defaults", "{\"quant_method\":\"awq\",\"zero_point\":true}", "awq", "awq-gemm", 4, 128, false, "" },
    { "null keys are absent", "{\"quant_method\":\"awq\",\"bits\":null,\"modules_to_not_convert\":null,\"zero_point\":true}", "awq",
      "awq-gemm", 4, 128, false, "" },
    { "exllama is a choice of the loader", "{\"quant_method\":\"awq\",\"version\":\"exllama\",\"zero_point\":true}", "awq", "awq-gemm", 4,
      128, false, "" },
    { "llm-awq backend", "{\"quant_method\":\"awq\",\"version\":\"gemm\",\"backend\":\"llm-awq\",\"zero_point\":true}", "awq", "llm-awq", 4,
      128, false, "" },
    { "version that nobody wrote", "{\"quant_method\":\"awq\",\"version\":\"gems\",\"zero_point\":true}", "awq", NULL, 4, 128, false, "" },
    { "AutoGPTQ side file", "{\"bits\":4,\"group_size\":128,\"desc_act\":false,\"sym\":true}", "gptq", "gptq", 4, 128, true, "" },
    { "Intel's old name", "{\"quant_method\":\"intel/auto-round\",\"bits\":4,\"group_size\":64,\"sym\":true}", "auto-round", "gptq", 4, 64,
      true, "" },
};

static void test_fine(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(fine); i++) {
        nb_json *o = parse(fine[i].text);
        nb_report *r = nb_report_new();
        nb_qconfig c;
        nb_err err = { 0 };

        if (nb_qconfig_parse(o, "config.json", r, &c, &err) != NB_OK)
            fail_msg("%s: %s", fine[i].label, err.what);
        if (strcmp(c.method, fine[i].method) != 0 || (c.layout == NULL) != (fine[i].layout == NULL) ||
            (c.layout && strcmp(c.layout, fine[i].layout) != 0) || c.spec.bits != fine[i].bits || c.spec.group_size != fine[i].group ||
            c.spec.sym != fine[i].sym)
            fail_msg("%s: %s %s %u %d %d", fine[i].label, c.method, c.layout ? c.layout : "-", c.spec.bits, (int)c.spec.group_size,
                     c.spec.sym);
        if (fine[i].warns[0]) {
            assert_int_equal(nb_report_count(r), 1);
            assert_string_equal(nb_report_at(r, 0)->rule, fine[i].warns);
            assert_int_equal(nb_report_at(r, 0)->sev, NB_SEV_WARN);
        } else if (nb_report_count(r)) {
            fail_msg("%s: unexpected %s", fine[i].label, nb_report_at(r, 0)->what);
        }
        nb_report_free(r);
        nb_json_free(o);
    }
}

static void test_skips(void **state)
{
    static const struct {
        const char *label, *list, *module, *entry;
        bool whole;
    } rows[] = {
        { "full path", "[\"model.layers.1.mlp.down_proj\"]", "model.layers.1.mlp.down_proj", "model.layers.1.mlp.down_proj", true },
        { "tail of the path", "[\"layers.1.mlp.down_proj\"]", "model.layers.1.mlp.down_proj", "layers.1.mlp.down_proj", true },
        { "layer 1 is not layer 11", "[\"layers.1.\"]", "model.layers.11.mlp.down_proj", NULL, false },
        { "whole component", "[\"mlp\"]", "model.layers.0.mlp.up_proj", "mlp", true },
        { "gate matches gate_proj", "[\"gate\"]", "model.layers.0.mlp.gate_proj", "gate", false },
        { "a later whole match wins", "[\"gate\",\"gate_proj\"]", "model.layers.0.mlp.gate_proj", "gate_proj", true },
        { "no match", "[\"lm_head\"]", "model.layers.0.mlp.gate_proj", NULL, false },
        { "empty entries and numbers match nothing", "[\"\",5]", "model.layers.0.mlp.gate_proj", NULL, false },
        { "empty list", "[]", "model.layers.0.mlp.gate_proj", NULL, false },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char text[256];
        nb_qconfig c;
        nb_json *o;
        bool whole;
        const char *e;

        snprintf(text, sizeof text, "{\"quant_method\":\"awq\",\"zero_point\":true,\"modules_to_not_convert\":%s}", rows[i].list);
        o = parse(text);
        assert_int_equal(nb_qconfig_parse(o, "config.json", NULL, &c, NULL), NB_OK);
        e = nb_qconfig_skip(&c, rows[i].module, &whole);
        if (!e != !rows[i].entry || (e && strcmp(e, rows[i].entry) != 0) || whole != rows[i].whole)
            fail_msg("%s: %s %d", rows[i].label, e ? e : "-", whole);
        nb_json_free(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bad), cmocka_unit_test(test_fine), cmocka_unit_test(test_skips) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
