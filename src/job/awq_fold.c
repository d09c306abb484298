/* awq_fold.c - scales go into norms and predecessors; the block must still compute the same. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"
#include "solve/round.h"

/* ---- what the groups that are on demand ---- */

/* What a norm's stored weight lacks: norms that count from 1. In one kind of them the model adds it when it reads them. */
static float stored_offset(const nb_awq_block *b)
{
    const nb_norm_kind k = b->base.plan->cfg->norm;

    return k == NB_NORM_RMS1 || k == NB_NORM_LN1 ? 1 : 0;
}

static float held_offset(const nb_awq_block *b)
{
    return b->base.plan->cfg->norm == NB_NORM_LN1 ? 1 : 0;
}

/* The norm is stored in few bits, the columns take the exact inverse of what is stored: s becomes norm / nb_stored_f32(norm / s),
 * so that the fold changes nothing but float32 rounding. Norms that count from 1 are folded as 1 + weight. */
static void fold_norm(const nb_awq_block *b, nb_awq_group *g)
{
    const float one = stored_offset(b), add = one - held_offset(b);

    for (size_t i = 0; i < g->g->k; i++) {
        const float w = g->norm0[i] + add;
        float v = nb_stored_f32(w / g->s[i] - one, b->o.norm_dtype);
        if (w != 0.0f && (v + one == 0.0f || !isfinite(v)))
            v = nb_stored_f32(w - one, b->o.norm_dtype);
        if (w != 0.0f && v + one != 0.0f && isfinite(v))
            g->s[i] = w / (v + one);
        g->norm[i] = v;
        g->beta[i] = g->beta0 ? g->beta0[i] / g->s[i] : 0;
    }
}

/* The row of pred behind input i is divided by this. */
static float row_scale(const nb_awq_group *g, size_t i)
{
    return g->g->root ? sqrtf(g->s[i]) : g->s[i];
}

static size_t row_of(const nb_awq_group *g, size_t i)
{
    return g->g->rows ? g->g->rows[i] : g->g->row0 + i;
}

/* The group whose scales divide rows of a linear; NULL when none is on. */
static const nb_awq_group *divided_by(const nb_awq_block *b, nb_mod mod)
{
    const int32_t i = b->as_pred[nb_awq_id(b, mod)];

    return i >= 0 && b->groups[i].state == NB_FOLD_ON ? &b->groups[i] : NULL;
}

/* Rows v[n][k] of a linear, or its bias (k 1): of inputs that share a row one counts, they share scales too. */
static void divide_rows(const nb_awq_group *g, float *v, size_t k, bool undo)
{
    for (size_t i = 0; i < g->g->k; i++) {
        const size_t r = row_of(g, i);
        const float s = row_scale(g, i);
        bool seen = false;

        for (size_t j = 0; g->g->tied && j < i && !seen; j++)
            seen = row_of(g, j) == r;
        for (size_t c = 0; c < k && !seen; c++)
            v[r * k + c] = undo ? v[r * k + c] * s : v[r * k + c] / s;
    }
}

void nb_awq_fold_weights(const nb_awq_block *b, nb_mod mod, float *w, bool undo)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, mod), *q = divided_by(b, mod);
    size_t n, k;

    nb_mod_size(b->base.plan, b->base.layer, mod, &n, &k);
    for (size_t r = 0; g && r < n; r++)
        for (size_t i = 0; i < k; i++)
            w[r * k + i] = undo ? w[r * k + i] / g->s[i] : w[r * k + i] * g->s[i];
    if (q)
        divide_rows(q, w, k, undo);
}

/* ---- into the model ---- */

static nb_status put_linear(nb_awq_block *b, nb_mod mod, nb_err *err)
{
    nb_status rc = nb_block_read(&b->base, mod, b->base.w, err);

    if (rc != NB_OK)
        return rc;
    nb_awq_fold_weights(b, mod, b->base.w, false);
    return nb_model_set_linear(b->base.model, b->base.layer, mod, b->base.w, err);
}

static nb_status folded_bias(nb_awq_block *b, nb_mod mod, float *v, nb_err *err)
{
    const nb_awq_group *g = divided_by(b, mod);
    nb_status rc = nb_stored_bias(b->base.plan, b->base.store, b->base.layer, mod, v, err);

    if (rc == NB_OK && g)
        divide_rows(g, v, 1, false);
    return rc;
}

static nb_status put_pred(nb_awq_block *b, nb_mod mod, nb_err *err)
{
    const nb_qmod *m = nb_awq_mod(b, mod);
    nb_status rc = put_linear(b, mod, err);

    if (rc == NB_OK && m && m->at.bias)
        rc = folded_bias(b, mod, b->base.w, err);
    if (rc == NB_OK && m && m->at.bias)
        rc = nb_model_set_bias(b->base.model, b->base.layer, mod, b->base.w, err);
    return rc;
}

static nb_status put_norm(nb_awq_block *b, const nb_awq_group *g, nb_err *err)
{
    const bool on = g->state == NB_FOLD_ON;
    const float add = held_offset(b);
    float *v = b->base.w;
    nb_status rc;

    for (size_t i = 0; i < g->g->k; i++)
        v[i] = on ? g->norm[i] + add : g->norm0[i];
    rc = nb_model_set_vec(b->base.model, b->base.layer, g->g->vec, v, err);
    if (rc == NB_OK && g->beta0)
        rc = nb_model_set_vec(b->base.model, b->base.layer, nb_plan_vec_bias(b->base.plan, g->g->vec), on ? g->beta : g->beta0, err);
    return rc;
}

nb_status nb_awq_apply(nb_awq_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++) {
        const nb_awq_group *g = &b->groups[i];

        if (g->state == NB_FOLD_OFF)
            continue;
        for (size_t m = 0; rc == NB_OK && m < g->g->n_mods; m++)
            rc = put_linear(b, g->g->mods[m], err);
        if (rc == NB_OK)
            rc = g->g->vec != NB_VEC_NONE ? put_norm(b, g, err) : put_pred(b, g->g->pred, err);
    }
    return rc;
}

/* ---- the test ---- */

static size_t test_rows(const nb_awq_block *b)
{
    const size_t most = b->base.rows.max_rows < NB_AWQ_TEST_ROWS ? b->base.rows.max_rows : NB_AWQ_TEST_ROWS;

    return b->base.calib->rows < most ? b->base.calib->rows : most;
}

/* Outputs of the layer for the first rows. */
static nb_status run_test(nb_awq_block *b, float *out, nb_err *err)
{
    const nb_batch batch = nb_rows_batch(&b->base.rows, b->base.calib->ids, test_rows(b));

    memcpy(out, b->base.h, batch.m * b->base.width * sizeof *out);
    return nb_exec_layers(b->base.exec, &batch, out, b->base.layer, b->base.layer + 1, err);
}

/* Floats [from, to) of every test row: max |difference| <= 1e-3 max |output|; NaN fails. */
static bool same_part(const nb_awq_block *b, size_t from, size_t to)
{
    const size_t rows = test_rows(b) * b->base.calib->len, width = b->base.width;
    float top = 0, diff = 0;

    for (size_t r = 0; r < rows; r++)
        for (size_t i = r * width + from; i < r * width + to; i++) {
            const float a = fabsf(b->test[0][i]), e = fabsf(b->test[0][i] - b->test[1][i]);
            if (!isfinite(a)) /* the original block overflows by itself: nothing can be proven */
                continue;
            if (e != e)
                return false;
            top = a > top ? a : top;
            diff = e > diff ? e : diff;
        }
    return diff <= 1e-3f * top;
}

/* Does the folded block still compute the same, for the residual and for what goes beside it? */
static nb_status same_output(nb_awq_block *b, bool *same, nb_err *err)
{
    const nb_status rc = run_test(b, b->test[1], err);

    *same = rc != NB_OK || (same_part(b, 0, b->base.d) && same_part(b, b->base.d, b->base.width));
    return rc;
}

/* Groups [begin, end) of those that were on: alone they must change nothing. Halves of what does are tried again. */
static nb_status find_culprits(nb_awq_block *b, const bool *was, bool *bad, size_t begin, size_t end, nb_err *err)
{
    const size_t middle = begin + (end - begin) / 2;
    bool same = true, any = false;
    nb_status rc;

    for (size_t i = 0; i < b->n_groups; i++)
        if (was[i]) {
            b->groups[i].state = i >= begin && i < end ? NB_FOLD_ON : NB_FOLD_CHANGES;
            any = any || (i >= begin && i < end);
        }
    if (!any)
        return NB_OK;
    rc = nb_awq_apply(b, err);
    if (rc == NB_OK)
        rc = same_output(b, &same, err);
    if (rc != NB_OK || same)
        return rc;
    if (end - begin == 1) {
        bad[begin] = true;
        return NB_OK;
    }
    rc = find_culprits(b, was, bad, begin, middle, err);
    return rc == NB_OK ? find_culprits(b, was, bad, middle, end, err) : rc;
}

/* The whole fold changed the block: drop the groups that do so alone; all of them when that is not enough. */
static nb_status drop_culprits(nb_awq_block *b, nb_err *err)
{
    bool *was = nb_calloc(b->n_groups + 1, 2 * sizeof *was), *bad = was + b->n_groups, same = true;
    nb_status rc = NB_OK;

    if (!was)
        return nb_enomem(err, "the test of the fold");
    for (size_t i = 0; i < b->n_groups; i++)
        was[i] = b->groups[i].state == NB_FOLD_ON;
    rc = find_culprits(b, was, bad, 0, b->n_groups, err);
    for (int turn = 0; turn < 2 && rc == NB_OK && (turn == 0 || !same); turn++) {
        for (size_t i = 0; i < b->n_groups; i++)
            if (was[i])
                b->groups[i].state = bad[i] || turn > 0 ? NB_FOLD_CHANGES : NB_FOLD_ON;
        rc = nb_awq_apply(b, err);
        if (rc == NB_OK)
            rc = same_output(b, &same, err);
    }
    nb_free(was);
    return rc;
}

/* Weights of the layer in f32, or in codes again, as they are stored. */
static nb_status hold(nb_awq_block *b, size_t codes, size_t *was, nb_err *err)
{
    nb_model_unbind_layer(b->base.model, b->base.layer);
    *was = nb_model_hold_codes(b->base.model, codes);
    return nb_model_bind_layer(b->base.model, b->base.layer, err);
}

/* Of inputs that no group was searched for, too: they make room for the layer. */
static void shelve_moments(nb_awq_block *b)
{
    for (size_t i = 0; i < b->base.cap.n_in; i++) {
        nb_gram *g = &b->base.cap.in[i].gram;

        if (g->sum && g->half && g->state == NB_GRAM_SUMS && nb_gram_take(g))
            nb_gram_shelve(g);
    }
}

/* All in the weights that the model holds. */
static nb_status fold(nb_awq_block *b, nb_err *err)
{
    bool same = true;
    nb_status rc = run_test(b, b->test[0], err);

    for (size_t i = 0; rc == NB_OK && i < b->n_groups; i++)
        if (b->groups[i].g->vec != NB_VEC_NONE && b->groups[i].state == NB_FOLD_ON)
            fold_norm(b, &b->groups[i]);
    if (rc == NB_OK)
        rc = nb_awq_apply(b, err);
    if (rc == NB_OK)
        rc = same_output(b, &same, err);
    return rc == NB_OK && !same ? drop_culprits(b, err) : rc;
}

nb_status nb_awq_block_fold(nb_awq_block *b, nb_err *err)
{
    size_t codes = 0, none;
    nb_status rc = NB_OK;

    if (b->o.a8) {
        shelve_moments(b);
        nb_block_release_tmp(&b->base);
        rc = hold(b, 0, &codes, err); /* codes change by more than the test allows */
    }
    if (rc == NB_OK)
        rc = fold(b, err);
    if (!b->o.a8)
        return rc;
    if (rc == NB_OK)
        rc = hold(b, codes, &none, err);
    else
        (void)nb_model_hold_codes(b->base.model, codes);
    if (rc == NB_OK)
        rc = nb_block_hold(&b->base, err);
    return rc == NB_OK ? nb_awq_apply(b, err) : rc;
}

/* ---- what is written ---- */

/* The group that a norm, or its bias, precedes. */
static const nb_awq_group *behind_norm(const nb_awq_block *b, nb_vec vec)
{
    for (size_t i = 0; i < b->n_groups; i++)
        if (b->groups[i].g->vec != NB_VEC_NONE &&
            (b->groups[i].g->vec == vec || nb_plan_vec_bias(b->base.plan, b->groups[i].g->vec) == vec))
            return &b->groups[i];
    return NULL;
}

static nb_status written_vec(nb_awq_block *b, nb_vec vec, float *v, nb_err *err)
{
    const nb_awq_group *g = behind_norm(b, vec);
    const bool on = g && g->state == NB_FOLD_ON, bias = g && g->g->vec != vec;

    if (!g)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "no scales fold into vector %d", (int)vec);
    for (size_t i = 0; i < g->g->k; i++)
        v[i] = bias ? (on ? g->beta[i] : g->beta0[i]) : on ? g->norm[i] : g->norm0[i] - held_offset(b);
    return NB_OK;
}

nb_status nb_awq_block_written(nb_awq_block *b, const nb_qwrite *w, const float **out, nb_err *err)
{
    float *v = b->base.w;
    nb_qwritten at;
    nb_dtype type;
    nb_status rc = nb_qwrite_find(b->base.plan, b->base.store, w, &at, err);

    *out = v;
    if (rc != NB_OK)
        return rc;
    type = nb_qwrite_type(w, at.from, b->o.norm_dtype);
    if (w->kind == NB_QWRITE_VEC) {
        rc = written_vec(b, w->vec, v, err);
    } else if (w->kind == NB_QWRITE_BIAS) {
        rc = folded_bias(b, w->mod, v, err);
    } else {
        rc = nb_block_read(&b->base, w->mod, v, err);
        if (rc == NB_OK)
            nb_awq_fold_weights(b, w->mod, v, false);
    }
    for (size_t i = 0; rc == NB_OK && i < at.n * (at.k ? at.k : 1); i++) { /* the next blocks see what is written */
        v[i] = nb_stored_f32(v[i], type);
        if (!isfinite(v[i]))
            rc =
                nb_fail(err, NB_ENUMERIC, "num.scale_range", "",
                        "\"%s\" has values beyond %s once scales fold into it; use --scale-dtype bf16", at.name, nb_dtype_info(type)->name);
    }
    if (rc != NB_OK || (w->kind == NB_QWRITE_VEC && behind_norm(b, w->vec)->g->vec == w->vec))
        return rc; /* norms are exact already */
    if (w->kind == NB_QWRITE_VEC)
        return nb_model_set_vec(b->base.model, b->base.layer, w->vec, v, err);
    return w->kind == NB_QWRITE_BIAS ? nb_model_set_bias(b->base.model, b->base.layer, w->mod, v, err)
                                     : nb_model_set_linear(b->base.model, b->base.layer, w->mod, v, err);
}
