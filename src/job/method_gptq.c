/* method_gptq.c - GPTQ: one factor per input, each linear solved with the error passed on. */
#include "base/mem.h"
#include "job/method_gptq.h"

/* Symmetric results fit GPTQ v1, which most programs read; zero points of 0 need v2; 5 to 7 bits have one layout only. */
static const char *layout(const nb_quantize_opts *o)
{
    if (o->bits >= 5 && o->bits <= 7)
        return "gptq_p";
    return o->sym ? "gptq" : "gptq_v2";
}

nb_gptq_opts nb_gptq_options(const nb_quantize_opts *o)
{
    return (nb_gptq_opts){ .bits = o->bits,
                           .sym = o->sym,
                           .order = o->order,
                           .static_groups = o->static_groups,
                           .damp = o->damp > 0 ? o->damp : NB_QUANTIZE_DAMP,
                           .mse = o->mse };
}

nb_gptq_extra nb_gptq_extras(const nb_quantize_opts *o)
{
    return (nb_gptq_extra){ .share = o->gptaq, .sweeps = o->refine };
}

nb_status nb_gptq_tell_config(nb_qjob *j, nb_err *err)
{
    nb_status rc = nb_qout_note(j->out, "damp_percent", nb_json_new_real(nb_gptq_options(j->o).damp), err);

    if (rc == NB_OK && j->o->static_groups)
        rc = nb_qout_note(j->out, "static_groups", nb_json_new_bool(true), err);
    return rc;
}

static nb_status open(nb_qjob *j, nb_err *err)
{
    const nb_block_in in = { .model = j->src.model,
                             .store = j->src.store,
                             .calib = &j->calib,
                             .pool = j->o->pool,
                             .host = j->o->host,
                             .replay_original = j->o->replay_original,
                             .a8 = j->o->bits <= 4, /* more bits differ from the original by less than that noise */
                             .all_experts = j->o->all_experts,
                             .to_head = nb_qjob_solves_head(j) };
    const nb_gptq_opts o = nb_gptq_options(j->o);
    const nb_gptq_extra x = nb_gptq_extras(j->o);
    nb_gptq_block *b = NULL;
    nb_status rc = nb_gptq_block_open(&b, &in, &o, &x, err);

    j->state = b;
    return rc == NB_OK ? nb_gptq_tell_config(j, err) : rc;
}

static void close(nb_qjob *j)
{
    nb_gptq_block_close(j->state);
}

static nb_block_cost cost(const nb_qjob *j)
{
    const nb_gptq_extra x = nb_gptq_extras(j->o);

    return nb_gptq_block_cost(&j->plan, &x, j->calib.rows, j->calib.len, j->o->replay_original, true, nb_pool_threads(j->o->pool));
}

static nb_block *block(nb_qjob *j)
{
    return nb_gptq_block_base(j->state);
}

static nb_status begin(nb_qjob *j, size_t layer, nb_err *err)
{
    return nb_gptq_block_bind(j->state, layer, err);
}

/* Inputs in falling order where the linear's setting says so, though the others may not; the other way round whole groups. */
static nb_gptq_order order_of(const nb_qjob *j, const nb_qmod *m)
{
    if (m->spec.desc_act == j->spec.desc_act)
        return j->o->order;
    return m->spec.desc_act ? NB_GPTQ_DESC : NB_GPTQ_GAR;
}

nb_status nb_gptq_solve_mod(nb_gptq_block *b, nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    const nb_gptq_factor *f = nb_gptq_block_factor(b);
    nb_gptq_result res = { 0 };
    nb_status rc = NB_OK;

    nb_gptq_block_as(b, m->spec.sym, order_of(j, m));
    if (m->first) {
        const double t0 = nb_now();
        rc = nb_gptq_block_prepare(b, m->mod, q->g, m->spec.sym, j->least_tokens, &j->few, err);
        j->input = (nb_now() - t0) / (double)m->sharing;
        row->seconds -= nb_now() - t0;
    }
    if (rc == NB_OK)
        rc = nb_gptq_block_solve(b, m->mod, q, &res, &row->before, &row->after, err);
    if (rc != NB_OK)
        return rc;
    row->seconds += j->input;
    row->damp = f->damp;
    row->tokens = nb_gptq_block_tokens(b, m->mod);
    if (j->few)
        row->note = nb_few_tokens;
    else if (f->failed)
        row->note = "no damping makes the second moments positive definite: rounded plainly";
    else if (res.fallback)
        row->note = "the errors passed on grew beyond float32: rounded plainly";
    return rc;
}

static nb_status solve(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err)
{
    return nb_gptq_solve_mod(j->state, j, m, q, row, err);
}

static nb_status end(nb_qjob *j, nb_err *err)
{
    return nb_gptq_block_replay(j->state, err);
}

const nb_qmethod nb_method_gptq = { .name = "gptq",
                                    .title = "GPTQ",
                                    .calibrates = true,
                                    .sym = true,
                                    .layout = layout,
                                    .open = open,
                                    .cost = cost,
                                    .block = block,
                                    .begin = begin,
                                    .end = end,
                                    .close = close,
                                    .solve = solve };
