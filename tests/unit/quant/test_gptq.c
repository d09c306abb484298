/* GPTQ layouts: recorded checkpoints of GPTQModel, AutoGPTQ, AutoRound and Transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_golden) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
