/* test_eval_peers.c - a whole evaluation against the row of the reference quantizers' table. */
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

#include "job/eval.h"
#include "unit/job/eval_models.h"

/* Row "rtn:128:asym" of the reference quantizers' table: dequantized by another program, run by transformers. */
static void peers_row(void **state)
{
    const char *golden = getenv("NB_GOLDEN") ? getenv("NB_GOLDEN") : "../shared/golden";
    char path[512];
    nb_idrows rows;
    nb_evalset s;
    nb_eval e;
    nb_err err = { 0 };

    (void)state;
    snprintf(path, sizeof path, "%s/../data/calib/pemberley_eval.safetensors", golden);
    if (access(path, R_OK) != 0) {
        printf("skipped: %s is not there\n", path);
        skip();
    }
    assert_int_equal(nb_idrows_read(&rows, path, 2048, &err), NB_OK);
    assert_int_equal(nb_evalset_rows(&s, &rows, path, 0, &err), NB_OK);
    const nb_eval_opts o = { .set = &s, .pool = pool, .resamples = 200, .seed = 1 };
    if (nb_eval_run(&rounded.model, 1, plain.model, NULL, &o, &e, &err) != NB_OK)
        fail_msg("%s", err.what);
    const nb_eval_score *a = &e.model[0].all;
    const struct {
        const char *what;
        double got, want, tolerance;
    } table[] = {
        { "ppl", a->ppl.mean, 36.05660551348234, 36e-4 },        { "reference", e.ref.all.ppl.mean, 35.764077818588625, 36e-5 },
        { "kl", a->kl.mean, 0.026521650559185705, 2e-5 },        { "kl_sem", a->kl_sem, 0.00022768709297072966, 1e-6 },
        { "kl_999", a->kl_999.mean, 0.2850096263556598, 1e-3 },  { "kl_max", a->kl_max, 0.48740155077406, 2e-3 },
        { "top1", a->top1.mean, 0.88128662109375, 4.0 / 16384 }, { "positions", (double)a->positions, 16384, 0 },
    };
    for (size_t i = 0; i < NB_LEN(table); i++)
        if (!(fabs(table[i].got - table[i].want) <= table[i].tolerance))
            fail_msg("%s: %.9g, recorded %.9g", table[i].what, table[i].got, table[i].want);
    assert_string_equal(e.drawn, "64 rows");
    assert_true(a->kl.lo < a->kl.mean && a->kl.mean < a->kl.hi && a->kl_median.lo < a->kl_median.mean && a->kl_999.hi > a->kl_999.mean);
    assert_true(a->ppl_ratio.hi - a->ppl_ratio.lo < 0.2 * (a->ppl.hi - a->ppl.lo) / a->ppl.mean); /* paired draws say more */
    nb_eval_clear(&e);
    nb_evalset_clear(&s);
    nb_idrows_clear(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(peers_row) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
