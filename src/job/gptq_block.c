/* gptq_block.c - GPTQ on one decoder block. */
#include "job/gptq_block.h"

#include <string.h>

#include "base/mem.h"
#include "solve/solve_rtn.h"

struct nb_gptq_block {
    nb_block base;
    nb_gptq_opts o;
    nb_gptq_factor f;
};

nb_block_cost nb_gptq_block_cost(const nb_plan *p, size_t rows, size_t len, bool replay_original, int threads)
{
    const double t = (double)rows * (double)len, attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2;
    double before = 0; /* multiply-adds per token of the ops so far */
    uint64_t most = 0;
    nb_block_need need;
    nb_block_cost c;

    nb_block_sizes(p, rows, len, &need);
    c = nb_block_bytes(p, &need, rows, len, replay_original);
    for (size_t op = 0; op < p->n_ops; op++) {
        size_t n = 0, k = 0, weights = 0;
        before += p->ops[op].kind == NB_OP_ATTN ? attn : 0;
        if (p->ops[op].kind != NB_OP_LINEAR)
            continue;
        for (size_t r = 0; r < 3 && p->ops[op].roles[r] != NB_ROLE_NONE; r++) {
            nb_plan_linear_size(p, p->ops[op].roles[r], &n, &k);
            weights += n * k;
        }
        c.macs += t * before + t * (double)k * (double)k / 2;  /* up to here once more, second moments */
        c.macs += 2 * (double)k * (double)k * (double)k;       /* two factorisations in float64        */
        c.macs += (double)weights * ((double)k / 2 + 4 * 512); /* corrections; both errors             */
        before += (double)weights;
        most = (uint64_t)k * k * (sizeof(double) + sizeof(float)) > most ? (uint64_t)k * k * (sizeof(double) + sizeof(float)) : most;
    }
    c.macs += t * before;
    c.bytes += most + 4 * (uint64_t)need.linear / 8 * (uint64_t)threads;
    return c;
}

nb_status nb_gptq_block_open(nb_gptq_block **out, const nb_block_in *in, const nb_gptq_opts *o, nb_err *err)
{
    nb_gptq_block *b = nb_calloc(1, sizeof *b);
    nb_block_need need;
    nb_status rc;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the GPTQ block");
    b->o = *o;
    nb_block_sizes(nb_model_plan(in->model), in->calib->rows, in->calib->len, &need);
    rc = nb_block_open(&b->base, in, &need, err);
    if (rc == NB_OK)
        *out = b;
    else
        nb_free(b);
    return rc;
}

void nb_gptq_block_close(nb_gptq_block *b)
{
    if (!b)
        return;
    nb_gptq_factor_clear(&b->f);
    nb_block_clear(&b->base);
    nb_free(b);
}

nb_block *nb_gptq_block_base(nb_gptq_block *b)
{
    return &b->base;
}

nb_status nb_gptq_block_bind(nb_gptq_block *b, size_t layer, nb_err *err)
{
    return nb_block_bind(&b->base, layer, err);
}

nb_status nb_gptq_block_prepare(nb_gptq_block *b, size_t op, size_t g, nb_err *err)
{
    nb_input *in = nb_capture_at(&b->base.cap, op);
    nb_status rc;

    if (!in)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "op %zu captures no input", op);
    nb_gptq_factor_clear(&b->f);
    b->o.g = g;
    rc = nb_gram_init(&in->gram, in->k, err);
    if (rc == NB_OK)
        rc = nb_block_capture_op(&b->base, op, err);
    if (rc == NB_OK) {
        nb_gram_finish(&in->gram);
        rc = nb_gptq_factor_make(&b->f, &b->o, in->gram.sum, in->k, b->base.pool, err);
    }
    nb_gram_clear(&in->gram);
    return rc;
}

const nb_gptq_factor *nb_gptq_block_factor(const nb_gptq_block *b)
{
    return &b->f;
}

nb_status nb_gptq_block_solve(nb_gptq_block *b, nb_role role, nb_qlin *q, nb_gptq_result *res, double *before, double *after, nb_err *err)
{
    const nb_grid plain = { .g = q->g, .bits = q->bits, .sym = b->o.sym, .stored = q->scale_dtype };
    nb_block *base = &b->base;
    nb_status rc = nb_block_read(base, role, base->w, err);

    if (rc != NB_OK)
        return rc;
    nb_rtn_pseudo(base->pool, &plain, base->w, NULL, q->n, q->k, base->tmp);
    rc = nb_block_error(base, role, base->w, base->tmp, before, err);
    if (rc == NB_OK)
        rc = nb_gptq_solve(&b->f, &b->o, base->w, q, res, base->pool, err);
    if (rc != NB_OK)
        return rc;
    nb_qlin_dequant(q, base->tmp);
    rc = nb_block_error(base, role, base->w, base->tmp, after, err);
    return rc == NB_OK ? nb_model_set_linear(base->model, base->layer, role, base->tmp, err) : rc;
}

nb_status nb_gptq_block_replay(nb_gptq_block *b, nb_err *err)
{
    return nb_block_replay(&b->base, err);
}
