/* eval_models.h - what the tests of evaluation start from: the small model, its 4-bit rounding, a scratch directory. */
#ifndef NB_TESTS_JOB_EVAL_MODELS_H
#define NB_TESTS_JOB_EVAL_MODELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "job/load.h"
#include "job/quantize.h"

static const char pemberley[] = "models/pemberley-4m";
static char scratch[] = "/tmp/nibble-eval-XXXXXX";
static nb_pool *pool;
static nb_loaded plain, rounded; /* the model, and its 4-bit rounding */

static const char *in_scratch(const char *name)
{
    static char path[4][512];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

static void open_model(nb_loaded *l, const char *path)
{
    const nb_model_opts mo = { .pool = pool };
    nb_err err = { 0 };

    if (nb_load_text(l, path, &err) != NB_OK || nb_load_store(l, path, NULL, &err) != NB_OK || nb_load_model(l, &mo, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
}

static int setup(void **state)
{
    const nb_quantize_opts qo = { .method = NB_QUANT_RTN, .bits = 4, .group_size = 128, .scale_dtype = NB_DT_F16 };
    nb_quantize_result res;
    nb_err err = { 0 };

    (void)state;
    if (!mkdtemp(scratch) || nb_pool_open(&pool, 2, &err) != NB_OK)
        return -1;
    if (nb_quantize(pemberley, in_scratch("rtn"), &qo, &res, &err) != NB_OK)
        fail_msg("%s", err.what);
    open_model(&plain, pemberley);
    open_model(&rounded, in_scratch("rtn"));
    return 0;
}

static int teardown(void **state)
{
    char cmd[600];

    (void)state;
    nb_load_close(&plain);
    nb_load_close(&rounded);
    nb_pool_close(pool);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", scratch);
    return system(cmd);
}

#endif
