/* exec_ssm.c - Mamba-2, Mamba-1 and lightning attention: linear recurrences with given decays.
 *
 * The recurrences are kernels (kern.h: linrec, ssm1). Mamba-2: k is B, v is dt X, q is C. Source: spec models-2026 S4.6, S4.9. */
#include <math.h>
#include <string.h>

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

/* Rows [r0, r0 + m) of head h. */
static void ssm_tile(const ssm_job *j, float *S, size_t h, size_t r0, size_t m, float *scratch)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t dk = c->key_dim, dv = c->value_dim, inner = c->heads * dv, group = h / (c->heads / c->key_heads);
    const size_t ld = x->m->plan.slot_width[NB_SLOT_CONV];
    const float *u = row_of(x, NB_SLOT_CONV, r0), *B = u + inner + group * dk;
    float *const *vec = x->m->layers[j->l].vec, *v = scratch, *a = v + NB_RECUR_TILE * dv;
    const double rate = exp((double)vec[NB_VEC_A_LOG][h]);
    nb_recur t = { .S = S, .dk = dk, .dv = dv, .m = m, .q = B + c->key_heads * dk, .k = B, .v = v, .ldq = ld, .ldk = ld, .ldv = dv };

    for (size_t i = 0; i < m; i++) {
        const float *X = u + i * ld + h * dv;
        float dt = softplus(row_of(x, NB_SLOT_MIX, r0 + i)[x->m->plan.a_off + h] + vec[NB_VEC_DT_BIAS][h]);

        dt = dt < (float)c->dt_min ? (float)c->dt_min : dt > (float)c->dt_max ? (float)c->dt_max : dt;
        a[i] = (float)exp(-rate * (double)dt);
        for (size_t n = 0; n < dv; n++)
            v[i * dv + n] = dt * X[n];
    }
    t.a = a;
    t.lda = 1;
    t.o = row_of(x, NB_SLOT_MIXED, r0) + h * dv;
    t.ldo = x->m->plan.slot_width[NB_SLOT_MIXED];
    t.next = h + 1 < c->heads ? S + dk * dv : NULL;
    x->kern->linrec(&t);
    for (size_t i = 0; i < m; i++)
        x->kern->axpy(t.o + i * t.ldo, u + i * ld + h * dv, vec[NB_VEC_SKIP][h], dv);
}

static void ssm_head(const ssm_job *j, const nb_block *s, size_t h, float *scratch)
{
    const nb_mix_cfg *c = &j->x->m->cfg.mix;
    float *S = matrix(j, s, h, c->key_dim * c->value_dim);

    for (size_t i = 0; i < s->m; i += NB_RECUR_TILE)
        ssm_tile(j, S, h, s->row + i, s->m - i < NB_RECUR_TILE ? s->m - i : NB_RECUR_TILE, scratch);
}

static void ssm_heads(void *ctx, size_t begin, size_t end, int thread)
{
    const ssm_job *j = ctx;
    const size_t heads = j->x->m->cfg.mix.heads;

    for (size_t i = begin; i < end; i++)
        ssm_head(j, &j->x->spans[i / heads], i % heads, j->x->mix + (size_t)thread * j->x->mix_floats);
}

void nb_xcpu_ssm(nb_xcpu *x, size_t l, const nb_op *op)
{
    ssm_job j = { x, l };

    (void)op;
    nb_xcpu_heads(x, ssm_heads, &j);
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
    float *const *vec = x->m->layers[j->l].vec; /* decays are turned, and -exp of what is stored */
    float *S = nb_xcpu_state(x, s, j->l) + (nb_plan_conv_state(&x->m->plan, j->l) + 63) / 64 * 64;

    for (size_t k = 0; k < dk && s->pos == 0; k++)
        memset(S + k * inner + c0, 0, n * sizeof *S);
    for (size_t r = s->row; r < s->row + s->m; r++) {
        const float *B = row_of(x, NB_SLOT_STEP, r) + c->rank;
        float *o = row_of(x, NB_SLOT_MIXED, r) + c0;

        x->kern->ssm1(S + c0, inner, dk, n, vec[NB_VEC_A_LOG] + c0, row_of(x, NB_SLOT_RATE, r) + c0, row_of(x, NB_SLOT_CONV, r) + c0,
                      vec[NB_VEC_SKIP] + c0, B, B + dk, o);
        x->kern->silu_mul(o, row_of(x, NB_SLOT_MIX, r) + x->m->plan.z_off + c0, o, n);
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
    nb_parallel_for(nb_xcpu_mix_pool(x), x->n_spans * ((x->m->cfg.mix.value_dim + BLOCK - 1) / BLOCK), 1, ssm1_blocks, &j);
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

    const float a = (float)exp(-slope);

    for (size_t i = 0, m; i < s->m; i += m) {
        const size_t r = s->row + i;

        m = s->m - i < NB_RECUR_TILE ? s->m - i : NB_RECUR_TILE;
        for (size_t t = 0; t < m; t++)
            silu(x->kern, scratch + t * 3 * d, row_of(x, NB_SLOT_MIX, r + t) + h * 3 * d, 3 * d);
        x->kern->linrec(&(nb_recur){ .S = S,
                                     .dk = d,
                                     .dv = d,
                                     .m = m,
                                     .q = scratch,
                                     .k = scratch + d,
                                     .v = scratch + 2 * d,
                                     .ldq = 3 * d,
                                     .ldk = 3 * d,
                                     .ldv = 3 * d,
                                     .a = &a,
                                     .o = row_of(x, NB_SLOT_MIXED, r) + h * d,
                                     .ldo = x->m->plan.slot_width[NB_SLOT_MIXED],
                                     .next = h + 1 < H ? S + d * d : NULL });
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

    nb_xcpu_heads(x, lin_heads, &j);
    for (size_t r = 0; r < x->rows; r++) {
        float *o = row_of(x, op->out, r);
        x->kern->rmsnorm(o, o, x->m->layers[l].vec[NB_VEC_MIX_NORM], 0, 1e-6f, n);
        x->kern->gate(o, row_of(x, NB_SLOT_GATE, r), n);
    }
    nb_xcpu_states_done(x, l);
}
