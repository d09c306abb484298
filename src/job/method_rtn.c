/* method_rtn.c - every linear rounded as it is, without calibration, on the grid with the least squared error. */
#include <string.h>

#include "base/mem.h"
#include "job/block.h"
#include "job/quantize_priv.h"

static const char *layout(const nb_quantize_opts *o)
{
    (void)o;
    return "awq-gemm";
}

/* The error of every 16th output stands for that of all. */
static nb_status judge(const nb_qjob *j, float *w, const nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    enum { EVERY = 16 };
    const size_t n = (q->n + EVERY - 1) / EVERY, k = q->k;
    float *v = nb_alloc_array(n, k * sizeof *v);
    nb_status rc = v ? NB_OK : nb_enomem(err, "a linear");

    for (size_t i = 0; i < n && v; i++) {
        nb_qlin one = *q;
        one.n = 1;
        one.codes += i * EVERY * k;
        one.scales += i * EVERY * q->n_groups;
        one.zeros += i * EVERY * q->n_groups;
        nb_qlin_dequant(&one, v + i * k);
        memmove(w + i * k, w + i * EVERY * k, k * sizeof *w);
    }
    if (rc == NB_OK)
        rc = nb_output_error(j->o->pool, w, v, n, k, NULL, 0, 0, &row->after, err);
    row->before = row->after;
    nb_free(v);
    return rc;
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    nb_grid grid = nb_qmod_grid(m);
    float *w = nb_alloc_array(q->n, q->k * sizeof *w);
    nb_status rc = w ? nb_read_linear(j->src.store, &j->plan, m->layer, m->mod, w, err) : nb_enomem(err, "a linear");

    grid.shrinks = j->o->mse > 0;
    if (rc == NB_OK)
        rc = nb_rtn_quantize(j->o->pool, &grid, w, q, err);
    if (rc == NB_OK)
        rc = judge(j, w, q, row, err);
    nb_free(w);
    return rc;
}

const nb_qmethod nb_method_rtn = { .name = "rtn", .title = "RTN", .layout = layout, .solve = solve };
