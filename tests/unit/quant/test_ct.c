/* compressed-tensors: recorded checkpoints of llm-compressor and AutoRound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/quant/layout_case.h"

static const struct {
    const char *dir;
    unsigned allow;
} dirs[] = {
    { "autoround-llm-compressor", CASE_SAME },
    { "ct-mixed-ignore", CASE_SAME },
    { "ct-w3a16-aligned-old", CASE_OLD_WORDS | CASE_OLD_ZEROS },
    { "ct-w3a16-asym-g64", CASE_SAME },
    { "ct-w4a16-actorder-g32", CASE_SAME },
    { "ct-w4a16-actorder-static", CASE_SAME },
    { "ct-w4a16-asym-g32", CASE_SAME },
    { "ct-w4a16-asym-i8zp-old", CASE_OLD_ZEROS },
    { "ct-w4a16-channel", CASE_SAME },
    { "ct-w4a16-g128", CASE_SAME },
    { "ct-w4a16-kv-cache", CASE_SAME },
    { "ct-w8a16-g128", CASE_SAME },
};

static void test_golden(void **state)
{
    char root[512];

    (void)state;
    if (!case_root(root, sizeof root))
        skip();
    for (size_t i = 0; i < NB_LEN(dirs); i++)
        case_dir(root, dirs[i].dir, "compressed-tensors", dirs[i].allow);
    case_refused(root, "ct-w8a8-refuse", NB_EUNSUPPORTED, "CFG-022", "also quantizes activations");
    case_refused(root, "ct-nvfp4-refuse", NB_EUNSUPPORTED, "CFG-022", "4-bit floats");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_golden) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
