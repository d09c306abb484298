/* method_awq.c - AWQ: search, fold and clip per block, then plain rounding. */
#include <string.h>

#include "base/mem.h"
#include "job/awq_block.h"
#include "job/quantize_priv.h"

static const char *layout(const nb_quantize_opts *o)
{
    (void)o;
    return "awq-gemm";
}

static nb_awq_opts options(const nb_qjob *j)
{
    const nb_quantize_opts *o = j->o;

    return (nb_awq_opts){ .mods = &j->mods,
                          .bits = o->bits,
                          .group_size = o->group_size,
                          .sym = o->sym,
                          .shared_v = o->shared_v,
                          .plain = o->plain,
                          .inspect = o->inspect,
                          .clip = o->clip,
                          .refine = o->refine,
                          .replay_original = o->replay_original,
                          .all_experts = o->all_experts,
                          .least_tokens = j->least_tokens,
                          .scale_dtype = o->scale_dtype,
                          .norm_dtype = j->norm_dtype };
}

static nb_status open(nb_qjob *j, nb_err *err)
{
    const nb_awq_opts o = options(j);
    nb_awq_block *b = NULL;
    const nb_status rc = nb_awq_block_open(&b, j->src.model, j->src.store, &j->calib, &o, j->o->pool, j->o->host, err);

    j->state = b;
    return rc;
}

static void close(nb_qjob *j)
{
    nb_awq_block_close(j->state);
}

static nb_block_cost cost(const nb_qjob *j)
{
    const nb_awq_opts o = options(j);
    nb_block_cost c;

    /* what can fail here fails again when the block is opened */
    return nb_awq_block_cost(&j->plan, j->src.store, &o, j->calib.rows, j->calib.len, &c, NULL) == NB_OK ? c : (nb_block_cost){ 0 };
}

static nb_status writes(const nb_qjob *j, nb_qwrites *out, nb_err *err)
{
    const nb_awq_opts o = options(j);

    return nb_awq_writes(&j->plan, j->src.store, &o, out, err);
}

static nb_block *block(nb_qjob *j)
{
    return nb_awq_block_base(j->state);
}

/* What groups fold into is written for every layer, folded or not. */
static nb_status write_folded(nb_qjob *j, size_t layer, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < j->writes.n; i++)
        if (j->writes.w[i].layer == layer) {
            const float *v;
            rc = nb_awq_block_written(j->state, &j->writes.w[i], &v, err);
            if (rc == NB_OK)
                rc = nb_qout_write(j->out, &j->writes.w[i], v, err);
        }
    return rc;
}

static nb_status begin(nb_qjob *j, size_t layer, nb_err *err)
{
    double t0 = nb_now();
    nb_status rc = nb_awq_block_capture(j->state, layer, err);

    j->shared = nb_now() - t0;
    if (rc == NB_OK)
        rc = nb_awq_block_search(j->state, err);
    t0 = nb_now();
    if (rc == NB_OK)
        rc = nb_awq_block_fold(j->state, err);
    if (rc == NB_OK)
        rc = write_folded(j, layer, err);
    j->shared = (j->shared + nb_now() - t0) / (double)nb_qjob_layer_mods(j, layer);
    return rc;
}

static const char *note(const nb_qjob *j, nb_mod mod)
{
    static const char *const says[] = { [NB_FOLD_ON] = "",
                                        [NB_FOLD_NO_LOSS] = "no scale gave a finite loss: rounded plainly",
                                        [NB_FOLD_CHANGES] = "folding the scales would change the block: rounded plainly",
                                        [NB_FOLD_FEW] = nb_few_tokens,
                                        [NB_FOLD_OFF] = "" };

    return nb_awq_block_few(j->state, mod) ? nb_few_tokens : says[nb_awq_block_state(j->state, mod)];
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    const nb_grid grid = nb_qmod_grid(m);
    const nb_awq_group *g = nb_awq_block_group_of(j->state, m->mod);
    float *w;
    nb_status rc = nb_awq_block_take(j->state, m->mod, &w, &row->before, err);

    if (rc == NB_OK)
        rc = nb_rtn_quantize(j->o->pool, &grid, w, q, err);
    if (rc == NB_OK)
        rc = nb_awq_block_refine(j->state, m->mod, q, err);
    if (rc != NB_OK)
        return rc;
    nb_qlin_dequant(q, w);
    row->note = note(j, m->mod);
    row->tokens = nb_awq_block_tokens(j->state, m->mod);
    if (g) {
        row->search = &g->best;
        row->ratio = g->best.index / (double)NB_AWQ_RATIOS;
        row->seconds += g->seconds / (double)g->g->n_mods;
    }
    return nb_awq_block_put(j->state, m->mod, w, &row->after, err);
}

static nb_status end(nb_qjob *j, nb_err *err)
{
    return nb_awq_block_replay(j->state, err);
}

const nb_qmethod nb_method_awq = { .name = "awq",
                                   .title = "AWQ",
                                   .calibrates = true,
                                   .layout = layout,
                                   .writes = writes,
                                   .open = open,
                                   .cost = cost,
                                   .block = block,
                                   .begin = begin,
                                   .end = end,
                                   .close = close,
                                   .solve = solve };
