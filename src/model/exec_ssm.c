/* exec_ssm.c - Mamba-2, Mamba-1 and lightning attention: linear recurrences with given decays.
 *
 * Token by token, one head: S_i = a S_i + k_i v; o = sum of q_i S_i, an fma chain over i ascending; S [key_dim][value_dim].
 * Mamba-2: k is B, v is dt X, q is C. Source: spec models-2026 S4.6, S4.9. */
#include <math.h>
#include <string.h>

#include "kern/expf.h"
#include "model/exec_cpu.h"

typedef struct ssm_job {
    const nb_xcpu *x;
    size_t l;
} ssm_job;

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

static float softplus(float v)
{
    return v > 20 ? v : (float)log1p(exp((double)v));
}

static float sigmoid(float v)
{
    return 1 / (1 + nb_expf(-v));
}

static void step(const nb_kern *kern, float *S, size_t dk, size_t dv, const float *q, const float *k, const float *v, float a, float *o)
{
    memset(o, 0, dv * sizeof *o);
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;
        for (size_t j = 0; j < dv; j++)
            row[j] *= a;
        kern->axpy(row, v, k[i], dv);
        kern->axpy(o, row, q[i], dv);
    }
}

/* The matrix of head h, cleared where the sequence begins. */
static float *matrix(const ssm_job *j, const nb_block *s, size_t h, size_t n)
{
    float *S = nb_xcpu_state(j->x, s, j->l) + (nb_plan_conv_state(&j->x->m->plan, j->l) + 63) / 64 * 64 + h * n;

    if (s->pos == 0)
        memset(S, 0, n * sizeof *S);
    return S;
}

/* ---- Mamba-2 -------------------------------------------------------------------------------------------------- */

void nb_xcpu_parts(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t v = c->heads * c->value_dim, k = c->key_heads * c->key_dim, sizes[5] = { v, v, k, k, c->heads };
    float *y = row_of(x, it->op->in, r);

    for (size_t p = 0; p < 5; y += sizes[p++])
        for (size_t i = 0; c->parts[p] != 1 && i < sizes[p]; i++)
            y[i] *= (float)c->parts[p];
}

static void ssm_head(const ssm_job *j, const nb_block *s, size_t h, float *v)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t dk = c->key_dim, dv = c->value_dim, inner = c->heads * dv, group = h / (c->heads / c->key_heads);
    float *const *vec = x->m->layers[j->l].vec, *S = matrix(j, s, h, dk * dv);
    const double rate = exp((double)vec[NB_VEC_A_LOG][h]);

    for (size_t i = 0; i < s->m; i++) {
        const float *u = row_of(x, NB_SLOT_CONV, s->row + i), *X = u + h * dv, *B = u + inner + group * dk, *C = B + c->key_heads * dk;
        float *o = row_of(x, NB_SLOT_MIXED, s->row + i) + h * dv;
        float dt = softplus(row_of(x, NB_SLOT_MIX, s->row + i)[x->m->plan.a_off + h] + vec[NB_VEC_DT_BIAS][h]);

        dt = dt < (float)c->dt_min ? (float)c->dt_min : dt > (float)c->dt_max ? (float)c->dt_max : dt;
        for (size_t n = 0; n < dv; n++)
            v[n] = dt * X[n];
        step(x->kern, S, dk, dv, C, B, v, (float)exp(-rate * (double)dt), o);
        x->kern->axpy(o, X, vec[NB_VEC_SKIP][h], dv);
    }
}

static void ssm_heads(void *ctx, size_t begin, size_t end, int thread)
{
    const ssm_job *j = ctx;
    const size_t heads = j->x->m->cfg.mix.heads;

    for (size_t i = begin; i < end; i++)
        ssm_head(j, &j->x->spans[i / heads], i % heads, j->x->mix + (size_t)thread * j->x->mix_floats);
}

static nb_pool *pool_of(const nb_xcpu *x)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;

    return x->rows * c->heads * c->key_dim * c->value_dim < NB_INLINE_MACS ? NULL : x->o.pool;
}

void nb_xcpu_ssm(nb_xcpu *x, size_t l, const nb_op *op)
{
    ssm_job j = { x, l };

    (void)op;
    nb_parallel_for(pool_of(x), x->n_spans * x->m->cfg.mix.heads, 1, ssm_heads, &j);
    nb_xcpu_states_done(x, l);
}

void nb_xcpu_ssm_norm(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t inner = c->heads * c->value_dim, n = inner / c->key_heads;
    const float *z = row_of(x, NB_SLOT_MIX, r), *w = it->layer->vec[NB_VEC_MIX_NORM];
    float *o = row_of(x, it->op->in, r);

    if (c->no_norm || !c->norm_first)
        x->kern->silu_mul(o, z, o, inner);
    for (size_t g = 0; !c->no_norm && g < c->key_heads; g++)
        x->kern->rmsnorm(o + g * n, o + g * n, w + g * n, 0, (float)c->norm_eps, n);
    if (!c->no_norm && c->norm_first)
        x->kern->silu_mul(o, z, o, inner);
}

/* ---- Mamba-1: decays of every channel and state ---------------------------------------------------------------- */

enum { BLOCK = 128 }; /* channels of one task */

void nb_xcpu_dt_norm(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;
    float *const *vec = it->layer->vec, *y = row_of(x, it->op->in, r);
    const float eps = (float)c->norm_eps;

    x->kern->rmsnorm(y, y, vec[NB_VEC_DT_NORM], 0, eps, c->rank);
    x->kern->rmsnorm(y + c->rank, y + c->rank, vec[NB_VEC_B_NORM], 0, eps, c->key_dim);
    x->kern->rmsnorm(y + c->rank + c->key_dim, y + c->rank + c->key_dim, vec[NB_VEC_C_NORM], 0, eps, c->key_dim);
}

/* Channels [c0, c0 + n) of [key_dim][channels]. */
static void ssm1_block(const ssm_job *j, const nb_block *s, size_t c0, size_t n)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t dk = c->key_dim, inner = c->value_dim;
    float *const *vec = x->m->layers[j->l].vec, dt[BLOCK], v[BLOCK];
    float *S = nb_xcpu_state(x, s, j->l) + (nb_plan_conv_state(&x->m->plan, j->l) + 63) / 64 * 64;

    for (size_t k = 0; k < dk && s->pos == 0; k++)
        memset(S + k * inner + c0, 0, n * sizeof *S);
    for (size_t r = s->row; r < s->row + s->m; r++) {
        const float *u = row_of(x, NB_SLOT_CONV, r) + c0, *B = row_of(x, NB_SLOT_STEP, r) + c->rank, *C = B + dk;
        const float *z = row_of(x, NB_SLOT_MIX, r) + x->m->plan.z_off + c0, *in = row_of(x, NB_SLOT_RATE, r) + c0;
        float *o = row_of(x, NB_SLOT_MIXED, r) + c0;

        for (size_t i = 0; i < n; i++) {
            dt[i] = softplus(in[i]);
            v[i] = dt[i] * u[i];
            o[i] = vec[NB_VEC_SKIP][c0 + i] * u[i];
        }
        for (size_t k = 0; k < dk; k++) {
            float *row = S + k * inner + c0;
            const float *a = vec[NB_VEC_A_LOG] + k * inner + c0; /* turned, and -exp of what is stored */
            for (size_t i = 0; i < n; i++) {
                row[i] = nb_expf(a[i] * dt[i]) * row[i] + v[i] * B[k];
                o[i] += row[i] * C[k];
            }
        }
        x->kern->silu_mul(o, z, o, n);
    }
}

static void ssm1_blocks(void *ctx, size_t begin, size_t end, int thread)
{
    const ssm_job *j = ctx;
    const size_t inner = j->x->m->cfg.mix.value_dim, per = (inner + BLOCK - 1) / BLOCK;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t c0 = i % per * BLOCK;
        ssm1_block(j, &j->x->spans[i / per], c0, inner - c0 < BLOCK ? inner - c0 : BLOCK);
    }
}

void nb_xcpu_ssm1(nb_xcpu *x, size_t l, const nb_op *op)
{
    ssm_job j = { x, l };

    (void)op;
    nb_parallel_for(pool_of(x), x->n_spans * ((x->m->cfg.mix.value_dim + BLOCK - 1) / BLOCK), 1, ssm1_blocks, &j);
    nb_xcpu_states_done(x, l);
}

/* ---- lightning attention -------------------------------------------------------------------------------------- */

static void silu(const nb_kern *kern, float *y, const float *in, size_t n)
{
    float one[BLOCK];

    for (size_t i = 0; i < BLOCK; i++)
        one[i] = 1;
    for (size_t i = 0; i < n; i += BLOCK)
        kern->silu_mul(y + i, in + i, one, n - i < BLOCK ? n - i : BLOCK);
}

static void lin_head(const ssm_job *j, const nb_block *s, size_t h, float *scratch)
{
    const nb_xcpu *x = j->x;
    const size_t d = x->m->cfg.mix.key_dim, H = x->m->cfg.mix.heads, L = x->m->cfg.n_layers;
    const double slope = exp2(-8 * (double)(h + 1) / (double)H) * (1 - (double)j->l / ((double)L - 1 + 1e-5) + 1e-5);
    float *S = matrix(j, s, h, d * d);

    for (size_t r = s->row; r < s->row + s->m; r++) {
        silu(x->kern, scratch, row_of(x, NB_SLOT_MIX, r) + h * 3 * d, 3 * d);
        step(x->kern, S, d, d, scratch, scratch + d, scratch + 2 * d, (float)exp(-slope), row_of(x, NB_SLOT_MIXED, r) + h * d);
    }
}

static void lin_heads(void *ctx, size_t begin, size_t end, int thread)
{
    const ssm_job *j = ctx;
    const size_t heads = j->x->m->cfg.mix.heads;

    for (size_t i = begin; i < end; i++)
        lin_head(j, &j->x->spans[i / heads], i % heads, j->x->mix + (size_t)thread * j->x->mix_floats);
}

void nb_xcpu_linatt(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t n = c->heads * c->value_dim;
    ssm_job j = { x, l };

    nb_parallel_for(pool_of(x), x->n_spans * c->heads, 1, lin_heads, &j);
    for (size_t r = 0; r < x->rows; r++) {
        float *o = row_of(x, op->out, r);
        const float *gate = row_of(x, NB_SLOT_GATE, r);
        x->kern->rmsnorm(o, o, x->m->layers[l].vec[NB_VEC_MIX_NORM], 0, 1e-6f, n);
        for (size_t i = 0; i < n; i++)
            o[i] *= sigmoid(gate[i]);
    }
    nb_xcpu_states_done(x, l);
}
