/* test_folds.c - folding AWQ scales leaves every layer of every architecture as it was, and a fold that does not is dropped. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>

#include "base/mem.h"
#include "base/rng.h"
#include "job/awq_block.h"
#include "job/load.h"

typedef struct fixture {
    nb_loaded l;
    nb_calib calib;
    nb_qmods mods;
    nb_awq_block *b;
} fixture;

enum { ROWS = 3, LEN = 20 };
static size_t n_scaled;

/* Groups of 8 inputs where they fit. */
static bool small_groups(void *user, const nb_qmod *m, nb_qspec *spec)
{
    (void)user;
    spec->group_size = m->at.k % 8 == 0 ? 8 : -1;
    return true;
}

static bool open_at(fixture *f, const char *path, bool shared_v)
{
    const nb_model_opts mo = { .lazy = true, .f32 = true };
    const nb_qspec spec = { .bits = 4, .scale_dtype = NB_DT_F16 };
    nb_awq_opts o = { .clip = 0, .shared_v = shared_v, .norm_dtype = NB_DT_F16, .scale_dtype = NB_DT_F16 };
    nb_err err = { 0 };

    memset(f, 0, sizeof *f);
    if (nb_load_store(&f->l, path, NULL, &err) != NB_OK || nb_load_model(&f->l, &mo, &err) != NB_OK ||
        nb_qmods_open(&f->mods, nb_model_plan(f->l.model), f->l.store, &spec, small_groups, NULL, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    f->calib = (nb_calib){ .rows = ROWS, .len = LEN, .ids = nb_alloc_array(ROWS * LEN, sizeof(int32_t)) };
    for (size_t i = 0; i < ROWS * LEN; i++)
        f->calib.ids[i] = (int32_t)(nb_rng_uniform(8, 0, i) * (double)nb_model_config(f->l.model)->vocab);
    o.mods = &f->mods;
    if (nb_awq_block_open(&f->b, f->l.model, f->l.store, &f->calib, &o, NULL, NULL, &err) == NB_OK)
        return true;
    if (err.code != NB_EUNSUPPORTED)
        fail_msg("%s: %s", path, err.what);
    return false;
}

static void open_fixture(fixture *f, const char *model, bool shared_v)
{
    char path[300];

    snprintf(path, sizeof path, "tests/data/models/%s", model);
    assert_true(open_at(f, path, shared_v));
}

static void close_fixture(fixture *f)
{
    nb_awq_block_close(f->b);
    nb_qmods_clear(&f->mods);
    nb_calib_clear(&f->calib);
    nb_load_close(&f->l);
}

/* Capture, search and fold a layer; what wrong() does happens before the fold. */
static size_t fold(fixture *f, size_t layer, void (*wrong)(nb_scale_group *g, size_t n), const nb_awq_group **groups)
{
    nb_err err = { 0 };
    size_t n;

    if (nb_awq_block_capture(f->b, layer, &err) != NB_OK || nb_awq_block_search(f->b, &err) != NB_OK)
        fail_msg("layer %zu: %s", layer, err.what);
    n = nb_awq_block_groups(f->b, groups);
    if (wrong)
        wrong((nb_scale_group *)(*groups)[0].g, n);
    assert_int_equal(nb_awq_block_fold(f->b, &err), NB_OK);
    return n;
}

/* false: layers of this one do not run alone. */
static bool one_model(const char *path)
{
    bool runs = true;
    fixture f;
    nb_err err = { 0 };

    runs = open_at(&f, path, true);
    for (size_t l = 0; runs && l < nb_model_config(f.l.model)->n_layers; l++) {
        const nb_awq_group *g;
        size_t n;

        runs = nb_awq_block_capture(f.b, l, &err) != NB_EUNSUPPORTED;
        if (!runs)
            break;
        n = fold(&f, l, NULL, &g);
        for (size_t i = 0; i < n; i++)
            if (g[i].state != NB_FOLD_ON && g[i].state != NB_FOLD_FEW)
                fail_msg("%s layer %zu: group %zu of linear %u is in state %d", path, l, i, g[i].g->mods[0], g[i].state);
        for (size_t i = 0; i < n; i++) /* the search found something to fold */
            if (g[i].state == NB_FOLD_ON && g[i].best.index > 0)
                n_scaled++;
        assert_int_equal(nb_awq_block_replay(f.b, &err), NB_OK);
    }
    close_fixture(&f);
    return runs;
}

/* All models of a folder. Returns how many. */
static size_t all_of(const char *folder, size_t *alone)
{
    DIR *d = opendir(folder);
    size_t n = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[400], config[440];
        FILE *f;

        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        snprintf(config, sizeof config, "%s/config.json", path);
        if (e->d_name[0] == '.' || !(f = fopen(config, "r")))
            continue;
        fclose(f);
        *alone += one_model(path);
        n++;
    }
    closedir(d);
    return n;
}

static void every_architecture(void **state)
{
    size_t alone = 0, n;

    (void)state;
    n = all_of("tests/data/models", &alone);
    assert_true(n > 70 && alone == n && n_scaled > 400);
}

static void every_architecture_of_2026(void **state)
{
    size_t alone = 0, n;

    (void)state;
    n_scaled = 0;
    n = all_of("tests/data/models-2026", &alone);
    if (!(n > 30 && alone == n && n_scaled > 200))
        fail_msg("%zu models, %zu run layer by layer, %zu groups scaled", n, alone, n_scaled);
}

/* ---- folds that are wrong ---- */

static void no_square(nb_scale_group *g, size_t n)
{
    assert_true(g[n - 1].pred == NB_ROLE_UP);
    g[n - 1].root = true;
}

static void router_forgotten(nb_scale_group *g, size_t n)
{
    assert_true(n > 1 && g[1].mods[0] == NB_MOD_ROUTER);
    g[1].mods[0] = g[1].mods[--g[1].n_mods];
}

static void branch_forgotten(nb_scale_group *g, size_t n)
{
    assert_true(n > 0 && g[0].n_mods == 5);
    g[0].n_mods = 3;
}

static void wrong_norm(nb_scale_group *g, size_t n)
{
    assert_true(n > 1 && g[0].vec == NB_VEC_N1);
    g[0].vec = NB_VEC_N2;
}

static void heads_mixed(nb_scale_group *g, size_t n)
{
    assert_true(n > 1 && g[1].tied);
    for (size_t i = 0; i < g[1].k; i++)
        ((uint32_t *)(uintptr_t)g[1].rows)[i] = (uint32_t)(i % 4);
}

static void wrong_folds(void **state)
{
    static const struct {
        const char *label, *model;
        bool shared_v;
        void (*wrong)(nb_scale_group *g, size_t n);
        size_t culprit; /* SIZE_MAX: the last */
    } rows[] = {
        { "the root of the scales and no square", "llama", false, no_square, SIZE_MAX },
        { "a router without the scales", "qwen3_moe", false, router_forgotten, 1 },
        { "a parallel branch without the scales", "cohere", false, branch_forgotten, 0 },
        { "another norm", "mistral", false, wrong_norm, 0 },
        { "rows of other heads", "llama", true, heads_mixed, 1 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_awq_group *g;
        fixture f;
        size_t n;

        open_fixture(&f, rows[i].model, rows[i].shared_v);
        n = fold(&f, 0, rows[i].wrong, &g);
        for (size_t j = 0; j < n; j++) {
            const bool bad = j == (rows[i].culprit == SIZE_MAX ? n - 1 : rows[i].culprit);
            if ((g[j].state == NB_FOLD_CHANGES) != bad)
                fail_msg("%s: group %zu of %zu is in state %d", rows[i].label, j, n, g[j].state);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_architecture), cmocka_unit_test(every_architecture_of_2026),
                                        cmocka_unit_test(wrong_folds) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
