/* method_awq.c - AWQ: search, fold and clip per block, then plain rounding; and AWQ with GPTQ on the folded weights. */
#include <string.h>

#include "base/mem.h"
#include "job/awq_block.h"
#include "job/method_gptq.h"

static const char *layout(const nb_quantize_opts *o)
{
    (void)o;
    return "awq-gemm";
}

/* Natural groups fit the AWQ layout, which holds 4 bits; the rest that of GPTQ. */
static const char *layout_solved(const nb_quantize_opts *o)
{
    return o->bits == 4 && !(o->order == NB_GPTQ_DESC && !o->static_groups) ? "awq-gemm" : nb_method_gptq.layout(o);
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
                          .a8 = nb_qjob_codes(j) > 0,
                          .all_experts = o->all_experts,
                          .to_head = nb_qjob_solves_head(j),
                          .least_tokens = j->least_tokens,
                          .scale_dtype = o->scale_dtype,
                          .norm_dtype = j->norm_dtype };
}

typedef struct awq_state {
    nb_awq_block *awq;
    nb_gptq_block *gptq; /* NULL: AWQ alone */
} awq_state;

static nb_awq_block *awq_of(const nb_qjob *j)
{
    return ((const awq_state *)j->state)->awq;
}

static nb_status read_folded(void *user, nb_mod mod, float *w, nb_err *err)
{
    return nb_awq_block_folded(user, mod, w, err);
}

static nb_status open(nb_qjob *j, nb_err *err)
{
    const nb_awq_opts o = options(j);
    const nb_gptq_opts go = nb_gptq_options(j->o);
    const nb_gptq_extra x = nb_gptq_extras(j->o);
    awq_state *s = j->state = nb_calloc(1, sizeof *s);
    nb_status rc;

    if (!s)
        return nb_enomem(err, "the AWQ block");
    rc = nb_awq_block_open(&s->awq, j->src.model, j->src.store, &j->calib, &o, j->o->pool, j->o->host, err);
    if (rc != NB_OK || !nb_quant_solves(j->o->method))
        return rc;
    rc = nb_gptq_block_over(&s->gptq, nb_awq_block_base(s->awq), read_folded, s->awq, &go, &x, err);
    return rc == NB_OK ? nb_gptq_tell_config(j, err) : rc;
}

static void close(nb_qjob *j)
{
    awq_state *s = j->state;

    if (!s)
        return;
    nb_gptq_block_close(s->gptq);
    nb_awq_block_close(s->awq);
    nb_free(s);
}

static nb_block_cost cost(const nb_qjob *j)
{
    const nb_awq_opts o = options(j);
    const nb_gptq_extra x = nb_gptq_extras(j->o);
    nb_block_cost c, g = { 0 };
    nb_block_need need;

    if (nb_quant_solves(j->o->method)) { /* the buffers of the block are counted once */
        nb_block_sizes(&j->plan, j->calib.rows, j->calib.len, &need);
        c = nb_block_bytes(&j->plan, &need, j->calib.rows, j->calib.len, j->o->replay_original);
        g = nb_gptq_block_cost(&j->plan, &x, j->calib.rows, j->calib.len, j->o->replay_original, false, nb_pool_threads(j->o->pool));
        g.bytes -= c.bytes < g.bytes ? c.bytes : g.bytes;
        g.spill -= c.spill < g.spill ? c.spill : g.spill;
    }
    /* what can fail here fails again when the block is opened */
    if (nb_awq_block_cost(&j->plan, j->src.store, &o, j->calib.rows, j->calib.len, &c, NULL) != NB_OK)
        return (nb_block_cost){ 0 };
    c.bytes += g.bytes;
    c.whole += c.whole ? g.bytes : 0;
    c.spill += g.spill;
    c.macs += g.macs;
    return c;
}

static nb_status writes(const nb_qjob *j, nb_qwrites *out, nb_err *err)
{
    const nb_awq_opts o = options(j);

    return nb_awq_writes(&j->plan, j->src.store, &o, out, err);
}

static nb_block *block(nb_qjob *j)
{
    return nb_awq_block_base(awq_of(j));
}

/* What groups fold into is written for every layer, folded or not. */
static nb_status write_folded(nb_qjob *j, size_t layer, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < j->writes.n; i++)
        if (j->writes.w[i].layer == layer) {
            const float *v;
            rc = nb_awq_block_written(awq_of(j), &j->writes.w[i], &v, err);
            if (rc == NB_OK)
                rc = nb_qout_write(j->out, &j->writes.w[i], v, err);
        }
    return rc;
}

static nb_status begin(nb_qjob *j, size_t layer, nb_err *err)
{
    awq_state *s = j->state;
    double t0 = nb_now();
    nb_status rc = s->gptq ? nb_gptq_block_reach(s->gptq, layer, err) : NB_OK;

    if (rc == NB_OK)
        rc = nb_awq_block_capture(s->awq, layer, err);
    j->shared = nb_now() - t0;
    if (rc == NB_OK)
        rc = nb_awq_block_search(s->awq, err);
    t0 = nb_now();
    if (rc == NB_OK)
        rc = nb_awq_block_fold(s->awq, err);
    if (rc == NB_OK)
        rc = write_folded(j, layer, err);
    if (rc == NB_OK && s->gptq)
        rc = nb_gptq_block_start(s->gptq, err);
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

    return nb_awq_block_few(awq_of(j), mod) ? nb_few_tokens : says[nb_awq_block_state(awq_of(j), mod)];
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    const awq_state *s = j->state;
    const nb_awq_group *g = nb_awq_block_group_of(s->awq, m->mod);
    const nb_grid grid = nb_qmod_grid(m);
    nb_status rc;
    float *w;

    if (g) {
        row->search = &g->best;
        row->ratio = g->best.index / (double)NB_AWQ_RATIOS;
        row->seconds += g->seconds / (double)g->g->n_mods;
    }
    if (s->gptq)
        return nb_gptq_solve_mod(s->gptq, j, m, q, row, err);
    rc = nb_awq_block_take(s->awq, m->mod, &w, &row->before, err);
    if (rc == NB_OK)
        rc = nb_rtn_quantize(j->o->pool, &grid, w, q, err);
    if (rc == NB_OK)
        rc = nb_awq_block_refine(s->awq, m->mod, q, err);
    if (rc != NB_OK)
        return rc;
    nb_qlin_dequant(q, w);
    row->note = note(j, m->mod);
    row->tokens = nb_awq_block_tokens(s->awq, m->mod);
    return nb_awq_block_put(s->awq, m->mod, q, w, &row->after, err);
}

static nb_status end(nb_qjob *j, nb_err *err)
{
    const awq_state *s = j->state;

    return s->gptq ? nb_gptq_block_replay(s->gptq, err) : nb_awq_block_replay(s->awq, err);
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

const nb_qmethod nb_method_awq_gptq = { .name = "awq+gptq",
                                        .title = "AWQ and GPTQ",
                                        .calibrates = true,
                                        .layout = layout_solved,
                                        .writes = writes,
                                        .open = open,
                                        .cost = cost,
                                        .block = block,
                                        .begin = begin,
                                        .end = end,
                                        .close = close,
                                        .solve = solve };
