/* method_rtn.c - every linear rounded as it is, without calibration, on the grid with the least squared error. */
#include "base/mem.h"
#include "job/block.h"
#include "job/quantize_priv.h"

static const char *layout(const nb_quantize_opts *o)
{
    (void)o;
    return "awq-gemm";
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    nb_grid grid = nb_qmod_grid(m);
    float *w = nb_alloc_array(q->n, q->k * sizeof *w), *v = nb_alloc_array(q->n, q->k * sizeof *v);
    nb_status rc = w && v ? nb_read_linear(j->src.store, &j->plan, m->layer, m->mod, w, err) : nb_enomem(err, "a linear");

    grid.shrinks = j->o->mse > 0;
    if (rc == NB_OK)
        rc = nb_rtn_quantize(j->o->pool, &grid, w, q, err);
    if (rc == NB_OK) {
        nb_qlin_dequant(q, v);
        rc = nb_output_error(j->o->pool, w, v, q->n, q->k, NULL, 0, 0, &row->after, err);
        row->before = row->after;
    }
    nb_free(v);
    nb_free(w);
    return rc;
}

const nb_qmethod nb_method_rtn = { .name = "rtn", .title = "RTN", .layout = layout, .solve = solve };
