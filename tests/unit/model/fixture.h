/* fixture.h - a model from a directory or a store, an executor over it, and whole prompts through both. */
#ifndef NB_TEST_MODEL_FIXTURE_H
#define NB_TEST_MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/io.h"
#include "model/exec.h"

enum { FIX_PAGES = 64 };

typedef struct fixture {
    nb_hfdir *dir;
    nb_store *store;
    nb_scan scan;
    nb_json *inferred; /* for packed tensors without a quantization config */
    nb_pool *pool;
    nb_model *model;
    nb_exec *exec;
    uint32_t pages[FIX_PAGES];
} fixture;

typedef struct fix_opts {
    const nb_kern *kern;
    int threads;  /* 0: no pool */
    size_t max_m; /* 0: 64 */
    nb_dtype kv;  /* NONE: F32 */
    bool exact, a8;
} fix_opts;

static inline void fix_fail(const char *what, const nb_err *err)
{
    char line[1400];

    nb_err_format(err, line, sizeof line);
    fail_msg("%s: %s", what, line);
}

/* Model and executor over a store that is already open. */
static inline void fix_bind(fixture *f, const nb_json *cfg, const nb_json *qcfg, fix_opts o)
{
    nb_model_opts mo = { .kern = o.kern };
    nb_exec_opts xo = {
        .max_m = o.max_m ? o.max_m : 64, .n_pages = FIX_PAGES, .kv_dtype = o.kv ? o.kv : NB_DT_F32, .exact_fp32 = o.exact, .a8 = o.a8
    };
    nb_err err = { 0 };

    if (o.threads && nb_pool_open(&f->pool, o.threads, &err) != NB_OK)
        fix_fail("pool", &err);
    mo.pool = xo.pool = f->pool;
    if (nb_scan_open(f->store, qcfg, "config.json", NULL, &f->scan, &err) != NB_OK)
        fix_fail("scan", &err);
    if (nb_model_open(f->store, cfg, &f->scan, &mo, &f->model, &err) != NB_OK)
        fix_fail("model", &err);
    if (nb_exec_cpu_open(f->model, &xo, &f->exec, &err) != NB_OK)
        fix_fail("exec", &err);
    for (uint32_t i = 0; i < FIX_PAGES; i++) /* not in order: nothing may count on it */
        f->pages[i] = i * 11 % FIX_PAGES;
}

static inline void fix_open(fixture *f, const char *path, fix_opts o)
{
    const nb_json *cfg, *qcfg = NULL;
    const char *source;
    char note[160];
    nb_err err = { 0 };

    *f = (fixture){ 0 };
    if (nb_open(path, &f->store, &err) != NB_OK || nb_hfdir_open(path, &f->dir, &err) != NB_OK ||
        nb_hfdir_config(f->dir, &cfg, &err) != NB_OK || nb_hfdir_quant_config(f->dir, &qcfg, &source, &err) != NB_OK ||
        (!qcfg && nb_quant_infer(f->store, NULL, &f->inferred, note, sizeof note, &err) != NB_OK))
        fix_fail(path, &err);
    fix_bind(f, cfg, qcfg ? qcfg : f->inferred, o);
}

static inline void fix_close(fixture *f)
{
    nb_exec_close(f->exec);
    nb_model_close(f->model);
    nb_pool_close(f->pool);
    nb_scan_clear(&f->scan);
    nb_json_free(f->inferred);
    nb_store_close(f->store);
    nb_hfdir_close(f->dir);
}

static inline size_t fix_vocab(const fixture *f)
{
    return nb_model_config(f->model)->vocab;
}

/* Rows at positions [pos, pos + n) of one sequence; logits of those that want[n] names (NULL: none), one after another. */
static inline void fix_run_some(fixture *f, const int32_t *ids, size_t pos, size_t n, const uint8_t *want, float *logits)
{
    uint32_t *where = nb_calloc(n, 2 * sizeof *where);
    const nb_seq_view view = { .pages = f->pages, .n_pages = FIX_PAGES };
    const nb_batch b = { .m = n, .token = ids, .pos = where, .seq = where + n, .want = want, .seqs = &view, .n_seqs = 1 };
    nb_err err = { 0 };

    assert_non_null(where);
    for (size_t i = 0; i < n; i++)
        where[i] = (uint32_t)(pos + i);
    if (nb_exec_run(f->exec, &b, logits, &err) != NB_OK)
        fix_fail("run", &err);
    nb_free(where);
}

/* The same; logits of all of them (NULL: none). */
static inline void fix_run(fixture *f, const int32_t *ids, size_t pos, size_t n, float *logits)
{
    uint8_t *want = nb_calloc(n, 1);

    assert_non_null(want);
    memset(want, 1, n);
    fix_run_some(f, ids, pos, n, logits ? want : NULL, logits);
    nb_free(want);
}

static inline int32_t fix_argmax(const float *v, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        best = v[i] > v[best] ? i : best;
    return (int32_t)best;
}

#endif
