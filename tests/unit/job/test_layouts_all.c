/* The 71 directories of $NB_GOLDEN/layouts, as written by the real programs: what check finds in each, and every linear's dequantized
 * CRC-32 as recorded, opened the way run and eval open them. Logits: unit/model/test_layouts.c; packing: unit/quant; conversion
 * there and back: test_convert_matrix.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "job/check.h"
#include "job/load.h"
#include "unit/quant/layout_case.h"

/* What check finds, errors first. Directories that are not named here have no error and no warning. */
static const struct {
    const char *dir, *error, *warning, *why;
} expected[] = {
    /* to be refused */
    { "ct-nvfp4-refuse", "CFG-022", NULL, "4-bit floats" },
    { "ct-w8a8-refuse", "CFG-022", NULL, "activations are quantized too" },
    { "gptq-bitblas-refuse", "CFG-023 CNV-090", "FIL-010", "arranged for one GPU" },
    /* files that break a rule */
    { "awq-gemm-g32-skip-autoawq", "CFG-015", NULL, "AutoAWQ packed a module that modules_to_not_convert names: vLLM fails on it" },
    /* warnings that the page asks for */
    { "awq-llm-awq-pt", NULL, "CFG-001", "no configuration; the shapes leave one reading (3.16)" },
    { "autoround-3bit-mixed", NULL, "VAL-003", "AutoRound writes negative scales" },
    { "autoround-as-gptq", NULL, "VAL-003", "AutoRound writes negative scales" },
    { "autoround-gptq-g128", NULL, "VAL-003", "AutoRound writes negative scales" },
    { "autoround-llm-compressor", NULL, "VAL-003", "AutoRound writes negative scales" },
    { "gptq-marlin-autogptq", NULL, "CFG-023 FIL-010", "arranged for one kernel, but readable; no tokenizer" },
    { "gptq-marlin-channel-autogptq", NULL, "CFG-023 FIL-010", "arranged for one kernel, but readable; no tokenizer" },
    { "gptq-v1-autogptq-3bit", NULL, "FIL-010", "AutoGPTQ saves no tokenizer" },
    { "gptq-v1-autogptq-g128", NULL, "FIL-010", "AutoGPTQ saves no tokenizer" },
    { "gptq-v1-quantize_config-only", NULL, "FIL-010", "AutoGPTQ saves no tokenizer" },
    { "gptq-v1-autogptq-desc-asym", NULL, "VAL-012 FIL-010", "AutoGPTQ's zero points overflowed when saved; no tokenizer" },
};

/* Every finding of this severity is of a listed rule, and every listed rule was found. */
static bool findings_are(const nb_report *r, nb_severity sev, const char *rules)
{
    char left[64], *at;

    snprintf(left, sizeof left, "%s", rules ? rules : "");
    for (size_t i = 0; i < nb_report_count(r); i++) {
        const nb_finding *f = nb_report_at(r, i);
        if (f->sev != sev)
            continue;
        if (!rules || !f->rule[0] || !strstr(rules, f->rule))
            return false;
        if ((at = strstr(left, f->rule)))
            memset(at, ' ', strlen(f->rule));
    }
    return strspn(left, " ") == strlen(left);
}

static size_t check_one(const char *root, const char *name, nb_pool *pool)
{
    const char *error = NULL, *warning = NULL;
    const nb_check_opts o = { .pool = pool };
    nb_report *r = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    char path[1024];
    nb_status rc;
    size_t known = 0;

    for (size_t i = 0; i < NB_LEN(expected); i++)
        if (strcmp(expected[i].dir, name) == 0) {
            error = expected[i].error;
            warning = expected[i].warning;
            known = 1;
        }
    snprintf(path, sizeof path, "%s/%s", root, name);
    rc = nb_check(path, &o, r, &sum, &err);
    if (rc != (error ? NB_NO : NB_OK) || !findings_are(r, NB_SEV_REJECT, error) || !findings_are(r, NB_SEV_WARN, warning)) {
        for (size_t i = 0; i < nb_report_count(r); i++)
            print_message("  %s: %s [%s]\n", nb_report_at(r, i)->subject, nb_report_at(r, i)->what, nb_report_at(r, i)->rule);
        fail_msg("%s: status %d %s, expected errors %s, warnings %s", name, (int)rc, err.what, error ? error : "none",
                 warning ? warning : "none");
    }
    nb_report_free(r);
    return known;
}

/* Returns the linears compared. */
static size_t dequantized(const char *root, const char *name)
{
    nb_loaded l = { 0 };
    nb_json *rec = NULL;
    const nb_json *want;
    nb_err err = { 0 };
    char path[1024];
    size_t n;

    snprintf(path, sizeof path, "%s/golden/%s.json", root, name);
    if (nb_json_parse_file(path, 1 << 20, "json", &rec, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    want = nb_json_get(rec, "linears");
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (nb_load_store(&l, path, NULL, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    n = l.scan.n_linears;
    if (n == 0 || n != nb_json_len(want))
        fail_msg("%s: %zu linears, recorded %zu", name, n, nb_json_len(want));
    for (size_t i = 0; i < n; i++)
        case_linear(name, &l.scan.linears[i], want, CASE_READ_ONLY);
    nb_load_close(&l);
    nb_json_free(rec);
    return n;
}

static void all(void **state)
{
    const char *golden = getenv("NB_GOLDEN");
    char root[400], line[512];
    size_t n = 0, n_known = 0, n_refused = 0, n_linears = 0;
    nb_pool *pool = NULL;
    FILE *f;

    (void)state;
    snprintf(root, sizeof root, "%s/layouts", golden ? golden : "../shared/golden");
    snprintf(line, sizeof line, "%s/LAYOUTS.tsv", root);
    f = fopen(line, "r");
    if (!f) {
        print_message("skipped: %s is absent\n", line);
        skip();
    }
    assert_int_equal(nb_pool_open(&pool, 2, NULL), NB_OK);
    while (fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t');
        if (!tab || strncmp(line, "directory\t", 10) == 0)
            continue;
        *tab = 0;
        n_known += check_one(root, line, pool);
        if (strstr(line, "-refuse"))
            n_refused++;
        else
            n_linears += dequantized(root, line);
        n++;
    }
    fclose(f);
    nb_pool_close(pool);
    print_message("%zu directories, %zu of them refused, %zu linears\n", n, n_refused, n_linears);
    assert_int_equal(n, 71);
    assert_int_equal(n_refused, 3);
    assert_int_equal(n_known, NB_LEN(expected));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
