/* exec_moe.c - mixture of experts: choosing, and running each expert once on all its rows.
 *
 * A row's experts add to it in ascending order, whatever else is in the batch, so that its bits depend on nothing else.
 * Scores are f32 sums in the order of the dense kernels; ties go to the lower index. Source: spec models 6, 7. */
#include <math.h>
#include <string.h>

#include "kern/expf.h"
#include "model/exec_cpu.h"

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

static float sigmoid(float v)
{
    return 1 / (1 + nb_expf(-v));
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* Index of the largest of v[n]; NaN never wins against a number. */
static size_t best_of(const float *v, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        if (v[i] > v[best] || (isnan(v[best]) && !isnan(v[i])))
            best = i;
    return best;
}

/* The k largest of v[n] in descending order; v is used up. */
static void take_best(float *v, size_t n, size_t k, uint32_t *out)
{
    for (size_t i = 0; i < k; i++) {
        size_t best = best_of(v, n);
        for (size_t j = 0; j < i; j++) /* all that is left is -inf or NaN: the first not yet taken */
            if (out[j] == best) {
                best = best + 1 < n ? best + 1 : 0;
                j = (size_t)-1;
            }
        out[i] = (uint32_t)best;
        v[best] = -INFINITY;
    }
}

static void softmax(float *v, size_t n)
{
    const float max = v[best_of(v, n)];
    float sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += v[i] = nb_expf(v[i] - max);
    for (size_t i = 0; i < n; i++)
        v[i] /= sum;
}

/* Put experts outside the best groups out of reach. A group counts by the sum of its `top` best. */
static void limit_groups(const nb_moe_cfg *c, float *v, float *group, size_t top)
{
    const size_t size = c->n_experts / c->n_groups;

    if (c->n_groups == c->top_groups)
        return;
    for (size_t g = 0; g < c->n_groups; g++) {
        float a = -INFINITY, b = -INFINITY;
        for (size_t i = 0; i < size; i++) {
            const float s = v[g * size + i];
            b = s > a ? a : s > b ? s : b;
            a = s > a ? s : a;
        }
        group[g] = top == 2 && size > 1 ? a + b : a;
    }
    for (size_t n = 0; n < c->n_groups - c->top_groups; n++) { /* drop the worst; of equals the last */
        size_t worst = c->n_groups;
        for (size_t g = 0; g < c->n_groups; g++)
            if (group[g] < INFINITY && (worst == c->n_groups || group[g] <= group[worst]))
                worst = g;
        if (worst == c->n_groups)
            return;
        group[worst] = INFINITY;
        for (size_t i = 0; i < size; i++)
            v[worst * size + i] = -INFINITY;
    }
}

/* Sparse mixer: each of two experts by a softmax over those close to it. */
static void mix_two(const nb_moe_cfg *c, const float *z, float *v, uint32_t *chosen, float *share)
{
    const size_t n = c->n_experts;

    memcpy(v, z, n * sizeof *v);
    for (size_t i = 0; i < 2; i++) {
        const size_t e = best_of(v, n);
        const float top = v[e];
        float sum = 0;
        for (size_t j = 0; j < n; j++) {
            const float far = (top - z[j]) / fmaxf(fabsf(z[j]), top);
            if (v[j] != -INFINITY && !(far > 2 * (float)c->jitter))
                sum += nb_expf(v[j] - top);
        }
        chosen[i] = (uint32_t)e;
        share[i] = 1 / sum;
        v[e] = -INFINITY;
    }
}

static bool by_sigmoid(nb_router r)
{
    return r == NB_ROUTE_SIGMOID || r == NB_ROUTE_SIGMOID_M2 || r == NB_ROUTE_AFMOE || r == NB_ROUTE_LFM2;
}

/* Scores of the chosen as weights. */
static void weigh(const nb_moe_cfg *c, float *share)
{
    const size_t k = c->n_active;
    float sum = 0, by = (float)c->scale;

    for (size_t i = 0; i < k; i++)
        sum += share[i];
    switch (c->router) {
    case NB_ROUTE_SOFTMAX:
        sum = c->renorm ? sum : 1;
        by = 1;
        break;
    case NB_ROUTE_GREEDY: /* renormalised or scaled */
        sum = c->renorm && k > 1 ? sum + 1e-20f : 1;
        by = c->renorm && k > 1 ? 1 : by;
        break;
    case NB_ROUTE_SIGMOID_M2:
    case NB_ROUTE_GEMMA4:
        by = 1;
        break;
    case NB_ROUTE_AFMOE:
        sum += 1e-20f;
        break;
    case NB_ROUTE_LFM2:
        sum = c->renorm ? sum + 1e-6f : 1;
        break;
    case NB_ROUTE_ERNIE:
        sum = sum > 1e-12f ? sum : 1e-12f;
        by = 1;
        break;
    case NB_ROUTE_LONGCAT:
        sum = 1;
        break;
    case NB_ROUTE_LLAMA4:
        for (size_t i = 0; i < k; i++)
            share[i] = sigmoid(share[i]);
        return;
    default:
        sum = c->renorm ? sum + 1e-20f : 1;
        break;
    }
    for (size_t i = 0; i < k; i++) {
        if (sum != 1)
            share[i] /= sum;
        if (by != 1)
            share[i] *= by;
    }
}

static void choose(const nb_xcpu *x, const nb_moe *w, size_t r, const float *z, uint32_t *chosen, float *share)
{
    const nb_moe_cfg *c = &x->m->cfg.moe;
    const size_t n = c->n_experts + c->n_identity, k = c->n_active;
    float *p = x->scores, *v = p + n, *group = v + n;

    if (c->router == NB_ROUTE_MIXER) {
        mix_two(c, z, v, chosen, share);
        return;
    }
    memcpy(p, z, n * sizeof *p);
    if (by_sigmoid(c->router))
        for (size_t i = 0; i < n; i++)
            p[i] = sigmoid(p[i]);
    else if (c->router == NB_ROUTE_SQRT)
        for (size_t i = 0; i < n; i++)
            p[i] = (float)sqrt(p[i] > 20 ? (double)p[i] : log1p(exp((double)p[i])));
    else if (c->router != NB_ROUTE_TOP && c->router != NB_ROUTE_LLAMA4)
        softmax(p, n);
    for (size_t i = 0; i < n; i++)
        v[i] = p[i] + (w->correction ? w->correction[i] : 0);
    limit_groups(c, v, group, c->router == NB_ROUTE_GREEDY ? 1 : 2);
    if (w->by_token)
        memcpy(chosen, w->by_token + (size_t)x->b->token[x->row0 + r] * k, k * sizeof *chosen);
    else
        take_best(v, n, k, chosen);
    for (size_t i = 0; i < k; i++)
        share[i] = p[chosen[i]];
    if (c->router == NB_ROUTE_TOP)
        softmax(share, k);
    else
        weigh(c, share);
}

/* ---- running -------------------------------------------------------------------------------------------------- */

typedef struct ffn_job {
    nb_xcpu *x;
    const nb_ffn *f;
    const nb_op *op;
    size_t e; /* SIZE_MAX: the shared expert */
    bool gated;
} ffn_job;

/* (up + 1) * gate * sigmoid(alpha * gate) with limits. */
static void clamped_act(const nb_xcpu *x, float *y, float *gate, float *up, size_t n)
{
    const float limit = (float)x->m->cfg.moe.limit, alpha = (float)x->m->cfg.moe.alpha;

    for (size_t i = 0; i < n; i++) {
        gate[i] = alpha * (gate[i] > limit ? limit : gate[i]);
        up[i] = ((up[i] > limit ? limit : up[i] < -limit ? -limit : up[i]) + 1) / alpha;
    }
    x->kern->silu_mul(y, gate, up, n);
}

/* silu(gate) * up, within limits. */
static void clipped_act(const nb_xcpu *x, float *y, float *gate, float *up, size_t n)
{
    const float most = (float)x->m->cfg.moe.clip;

    for (size_t i = 0; i < n; i++) {
        gate[i] = gate[i] > most ? most : gate[i];
        up[i] = up[i] > most ? most : up[i] < -most ? -most : up[i];
    }
    x->kern->silu_mul(y, gate, up, n);
}

static void act_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const ffn_job *j = ctx;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        float *gate = row_of(j->x, NB_SLOT_GU, r), *up = gate + j->f->up_off, *y = row_of(j->x, NB_SLOT_ACT, r);
        if (j->x->m->cfg.moe.plain)
            nb_xcpu_act(j->x, y, gate, j->f->ff);
        else if (j->x->m->cfg.moe.clip > 0)
            clipped_act(j->x, y, gate, up, j->f->ff);
        else if (j->x->m->cfg.moe.limit > 0)
            clamped_act(j->x, y, gate, up, j->f->ff);
        else
            nb_xcpu_act_mul(j->x, y, gate, up, j->f->ff);
    }
}

static float share_of(const ffn_job *j, size_t r)
{
    const size_t k = j->x->m->cfg.moe.n_active;

    if (j->e == SIZE_MAX)
        return j->gated ? sigmoid(row_of(j->x, NB_SLOT_ROUTE, r)[0]) : 1;
    for (size_t i = 0; i < k; i++)
        if (j->x->chosen[r * k + i] == j->e)
            return j->x->share[r * k + i];
    return 0;
}

static void take_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const ffn_job *j = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const float w = j->x->m->cfg.moe.router == NB_ROUTE_LLAMA4 ? share_of(j, j->x->taken[i]) : 1;
        const size_t latent = j->x->m->cfg.moe.latent, d = latent ? latent : j->x->m->cfg.d_model;
        float *to = row_of(j->x, NB_SLOT_TAKEN, i);
        memcpy(to, row_of(j->x, latent ? NB_SLOT_KEEP : j->op->in, j->x->taken[i]), d * sizeof *to);
        for (size_t n = 0; w != 1 && n < d; n++)
            to[n] *= w;
    }
}

static void give_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const ffn_job *j = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t r = j->e == SIZE_MAX ? i : j->x->taken[i];
        const bool done = j->e != SIZE_MAX && j->x->m->cfg.moe.router == NB_ROUTE_LLAMA4; /* its input was weighted */
        const size_t latent = j->e != SIZE_MAX ? j->x->m->cfg.moe.latent : 0;
        j->x->kern->axpy(row_of(j->x, latent ? NB_SLOT_SUM : j->op->out, r), row_of(j->x, NB_SLOT_GIVEN, i), done ? 1 : share_of(j, r),
                         latent ? latent : j->x->m->cfg.d_model);
    }
}

static void run_act(ffn_job *j, nb_slot in, size_t m)
{
    nb_xcpu_linear(j->x, &j->f->gu, in, NB_SLOT_GU, m);
    nb_parallel_for(m == 1 ? NULL : j->x->o.pool, m, 1, act_rows, j);
}

void nb_xcpu_ffn_act(nb_xcpu *x, const nb_ffn *f, size_t m)
{
    ffn_job j = { .x = x, .f = f };

    run_act(&j, NB_SLOT_TAKEN, m);
}

static void run_ffn(ffn_job *j, nb_slot in, size_t m)
{
    nb_pool *pool = m == 1 ? NULL : j->x->o.pool;

    run_act(j, in, m);
    nb_xcpu_linear(j->x, &j->f->down, NB_SLOT_ACT, NB_SLOT_GIVEN, m);
    nb_parallel_for(pool, m, 1, give_rows, j);
}

static void tap_rows(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_plan *p = &x->m->plan;
    nb_tap t = { .kind = NB_TAP_OP_IN, .layer = l, .op = (size_t)(op - p->ops), .x = x->slot[op->in], .row0 = x->row0, .m = x->rows };

    t.width = p->slot_len[op->in];
    t.ld = p->slot_width[op->in];
    t.chosen = x->chosen;
    t.n_chosen = x->m->cfg.moe.n_active;
    if (x->tap)
        x->tap(x->tap_user, &t);
}

void nb_xcpu_moe(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_moe *w = &x->m->layers[l].moe;
    const nb_moe_cfg *c = &x->m->cfg.moe;
    ffn_job j = { .x = x, .op = op };

    nb_xcpu_linear(x, &w->router, c->router == NB_ROUTE_GEMMA4 ? NB_SLOT_KEEP : op->in, NB_SLOT_ROUTE, x->rows);
    for (size_t r = 0; r < x->rows; r++) {
        choose(x, w, r, row_of(x, NB_SLOT_ROUTE, r), x->chosen + r * c->n_active, x->share + r * c->n_active);
        memset(row_of(x, op->out, r), 0, x->m->cfg.d_model * sizeof(float));
        memset(row_of(x, NB_SLOT_SUM, r), 0, c->latent * sizeof(float));
        for (size_t i = 0; c->router == NB_ROUTE_GEMMA4 && i < c->n_active; i++)
            x->share[r * c->n_active + i] *= x->m->layers[l].vec[NB_VEC_EXPERT_SCALE][x->chosen[r * c->n_active + i]];
    }
    if (c->latent)
        nb_xcpu_linear(x, &w->enter, op->in, NB_SLOT_KEEP, x->rows);
    tap_rows(x, l, op);
    for (j.e = 0; j.e < c->n_experts; j.e++) {
        size_t n = 0;
        for (size_t r = 0; r < x->rows; r++)
            for (size_t i = 0; i < c->n_active; i++)
                if (x->chosen[r * c->n_active + i] == j.e)
                    x->taken[n++] = (uint32_t)r;
        if (n == 0)
            continue;
        j.f = &w->ffn[j.e];
        nb_parallel_for(n == 1 ? NULL : x->o.pool, n, 1, take_rows, &j);
        run_ffn(&j, NB_SLOT_TAKEN, n);
    }
    if (c->latent)
        nb_xcpu_linear(x, &w->leave, NB_SLOT_SUM, op->out, x->rows);
    for (size_t r = 0; c->n_identity && r < x->rows; r++)
        for (size_t i = 0; i < c->n_active; i++)
            if (x->chosen[r * c->n_active + i] >= c->n_experts)
                x->kern->axpy(row_of(x, op->out, r), row_of(x, op->in, r), x->share[r * c->n_active + i], x->m->cfg.d_model);
    if (c->shared_ff > 0) {
        j.f = &w->ffn[c->n_experts];
        j.e = SIZE_MAX;
        j.gated = w->gate.n_mats > 0;
        if (j.gated)
            nb_xcpu_linear(x, &w->gate, op->in, NB_SLOT_ROUTE, x->rows);
        run_ffn(&j, op->in, x->rows);
    }
}
