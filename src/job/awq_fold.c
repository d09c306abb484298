/* awq_fold.c - scales go into norms and predecessors; the block must still compute the same. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"
#include "solve/round.h"

/* The norm is stored in few bits, the columns take the exact inverse of what is stored: s becomes norm / nb_stored_f32(norm / s),
 * so that the fold changes nothing but float32 rounding. Norms that count from 1 are folded as 1 + weight. */
static void fold_norm(const nb_awq_block *b, nb_awq_group *g)
{
    size_t n;
    const float *norm = nb_model_vec(b->base.model, b->base.layer, g->g.vec, &n);
    const float one = b->base.plan->cfg->norm == NB_NORM_RMS1 ? 1 : 0;

    for (size_t i = 0; i < g->g.k; i++) {
        const float w = norm[i] + one;
        float v = nb_stored_f32(w / g->s[i] - one, b->o.norm_dtype);
        if (w != 0.0f && (v + one == 0.0f || !isfinite(v)))
            v = nb_stored_f32(norm[i], b->o.norm_dtype);
        if (w != 0.0f && v + one != 0.0f && isfinite(v))
            g->s[i] = w / (v + one);
        g->norm[i] = v;
    }
}

const nb_awq_group *nb_awq_block_group_of(const nb_awq_block *b, nb_mod role)
{
    for (size_t i = 0; i < b->n_groups; i++)
        for (size_t j = 0; j < b->groups[i].g.n_roles; j++)
            if (b->groups[i].g.roles[j] == role && b->groups[i].state == NB_FOLD_ON)
                return &b->groups[i];
    return NULL;
}

/* w *= scales of its inputs, rows /= scales of the group it precedes; or the other way round. */
void nb_awq_fold_weights(const nb_awq_block *b, nb_mod role, float *w, bool undo)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, role);
    size_t n, k;

    nb_mod_size(b->base.plan, role, &n, &k);
    for (size_t r = 0; g && r < n; r++)
        for (size_t i = 0; i < k; i++)
            w[r * k + i] = undo ? w[r * k + i] / g->s[i] : w[r * k + i] * g->s[i];
    for (size_t j = 0; j < b->n_groups; j++) {
        const nb_awq_group *q = &b->groups[j];
        if (q->state != NB_FOLD_ON || q->g.from_norm || q->g.pred != role)
            continue;
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < k; i++)
                w[r * k + i] = undo ? w[r * k + i] * q->s[r] : w[r * k + i] / q->s[r];
    }
}

/* Put all linears and norms into the model as the groups that are on now demand. */
static nb_status apply_fold(nb_awq_block *b, float *const *plain_norm, nb_err *err)
{
    nb_status rc = NB_OK;

    for (int r = 0; rc == NB_OK && r < NB_ROLE_COUNT; r++) {
        const size_t op = nb_plan_op_of(b->base.plan, (nb_role)r);
        if (op == b->base.plan->n_ops || !nb_plan_runs(b->base.plan, &b->base.plan->ops[op], b->base.layer))
            continue;
        rc = nb_block_read(&b->base, (nb_role)r, b->base.w, err);
        if (rc != NB_OK)
            break;
        nb_awq_fold_weights(b, (nb_role)r, b->base.w, false);
        rc = nb_model_set_linear(b->base.model, b->base.layer, (nb_role)r, b->base.w, err);
    }
    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++)
        if (b->groups[i].g.from_norm)
            rc = nb_model_set_vec(b->base.model, b->base.layer, b->groups[i].g.vec,
                                  b->groups[i].state == NB_FOLD_ON ? b->groups[i].norm : plain_norm[i], err);
    return rc;
}

static size_t test_rows(const nb_awq_block *b)
{
    const size_t most = b->base.rows.max_rows < NB_AWQ_TEST_ROWS ? b->base.rows.max_rows : NB_AWQ_TEST_ROWS;

    return b->base.calib->rows < most ? b->base.calib->rows : most;
}

/* Outputs of the layer for the first rows. */
static nb_status run_test(nb_awq_block *b, float *out, nb_err *err)
{
    const nb_batch batch = nb_rows_batch(&b->base.rows, b->base.calib->ids, test_rows(b));

    memcpy(out, b->base.h, batch.m * b->base.d * sizeof *out);
    return nb_exec_layers(b->base.exec, &batch, out, b->base.layer, b->base.layer + 1, err);
}

/* Does the folded block still compute the same? max |difference| <= 1e-3 max |output|; NaN fails. */
static nb_status same_output(nb_awq_block *b, bool *same, nb_err *err)
{
    const size_t n = test_rows(b) * b->base.calib->len * b->base.d;
    nb_status rc = run_test(b, b->test[1], err);
    float top = 0, diff = 0;

    *same = true;
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const float a = fabsf(b->test[0][i]), e = fabsf(b->test[0][i] - b->test[1][i]);
        if (!isfinite(a)) /* the original block overflows by itself: nothing can be proven */
            continue;
        top = a > top ? a : top;
        *same = *same && e == e;
        diff = e > diff ? e : diff;
    }
    *same = *same && diff <= 1e-3f * top;
    return rc;
}

/* The whole fold changed the block: find the groups that do so alone, and drop them. */
static nb_status find_culprits(nb_awq_block *b, float *const *plain_norm, nb_err *err)
{
    nb_fold_state was[NB_MAX_GROUPS];
    nb_status rc = NB_OK;

    for (size_t i = 0; i < b->n_groups; i++) {
        was[i] = b->groups[i].state;
        b->groups[i].state = NB_FOLD_CHANGES;
    }
    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        bool same = true;
        if (was[i] != NB_FOLD_ON)
            continue;
        b->groups[i].state = NB_FOLD_ON;
        rc = apply_fold(b, plain_norm, err);
        if (rc == NB_OK)
            rc = same_output(b, &same, err);
        b->groups[i].state = NB_FOLD_CHANGES;
        if (!same)
            was[i] = NB_FOLD_CHANGES;
    }
    for (size_t i = 0; i < b->n_groups; i++)
        b->groups[i].state = was[i];
    return rc == NB_OK ? apply_fold(b, plain_norm, err) : rc;
}

static void drop_all(nb_awq_block *b)
{
    for (size_t i = 0; i < b->n_groups; i++)
        if (b->groups[i].state == NB_FOLD_ON)
            b->groups[i].state = NB_FOLD_CHANGES;
}

nb_status nb_awq_block_fold(nb_awq_block *b, nb_err *err)
{
    float *plain_norm[NB_MAX_GROUPS] = { NULL };
    bool same = true;
    nb_status rc = run_test(b, b->test[0], err);

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        nb_awq_group *g = &b->groups[i];
        size_t n;
        if (!g->g.from_norm)
            continue;
        plain_norm[i] = nb_alloc_array(g->g.k, sizeof **plain_norm);
        if (!plain_norm[i]) {
            rc = nb_enomem(err, "a norm vector");
            break;
        }
        memcpy(plain_norm[i], nb_model_vec(b->base.model, b->base.layer, g->g.vec, &n), g->g.k * sizeof **plain_norm);
        fold_norm(b, g);
    }
    if (rc == NB_OK)
        rc = apply_fold(b, plain_norm, err);
    if (rc == NB_OK)
        rc = same_output(b, &same, err);
    if (rc == NB_OK && !same)
        rc = find_culprits(b, plain_norm, err);
    if (rc == NB_OK && !same)
        rc = same_output(b, &same, err);
    if (rc == NB_OK && !same) {
        drop_all(b);
        rc = apply_fold(b, plain_norm, err);
    }
    for (size_t i = 0; i < b->n_groups; i++)
        nb_free(plain_norm[i]);
    return rc;
}

size_t nb_awq_block_groups(const nb_awq_block *b, const nb_awq_group **groups)
{
    *groups = b->groups;
    return b->n_groups;
}
