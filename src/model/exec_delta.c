/* exec_delta.c - the gated delta rule: a matrix per value head that forgets, and is corrected by what it predicts wrongly.
 *
 * The recurrence is a kernel (kern.h: delta), token by token inside; a head is one task, so neither cuts nor threads change a bit.
 * Here: keys, queries, decays and rates of NB_RECUR_TILE tokens at a time. Source: spec models-2026 S4.5. */
#include <math.h>
#include <string.h>

#include "kern/expf.h"
#include "model/exec_cpu.h"

typedef struct delta_job {
    const nb_xcpu *x;
    size_t l;
} delta_job;

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

static float sigmoid(float v)
{
    return 1 / (1 + nb_expf(-v));
}

/* exp(-exp(A_log) * softplus(v)) */
static float decay(float a_log, float v)
{
    const double s = v > 20 ? (double)v : log1p(exp((double)v));

    return (float)exp(-exp((double)a_log) * s);
}

/* x / sqrt(sum of squares + 1e-6) * by */
static void unit(const nb_kern *kern, float *y, const float *x, size_t n, float by)
{
    by /= sqrtf((float)n);
    kern->rmsnorm(y, x, NULL, 0, 1e-6f / (float)n, n);
    for (size_t i = 0; i < n; i++)
        y[i] *= by;
}

/* Decays of a head's rows, or the one of all of them, and its rate. */
static float rates(const delta_job *j, size_t r, size_t h, float *a)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    float *const *vec = x->m->layers[j->l].vec;
    const float *in = row_of(x, NB_SLOT_RATE, r);
    const size_t share = c->heads / c->key_heads, b = c->grouped ? h / share * 2 * share + h % share : h;
    const size_t ai = c->grouped ? b + share : x->m->plan.a_off + h;

    if (nb_plan_mixer(&x->m->plan, j->l) == NB_MIX_KDA) {
        const float *f = row_of(x, NB_SLOT_STEP, r) + h * c->key_dim, *bias = vec[NB_VEC_DT_BIAS] + h * c->key_dim;
        for (size_t i = 0; i < c->key_dim; i++)
            a[i] = decay(vec[NB_VEC_A_LOG][h], f[i] + bias[i]);
        return sigmoid(in[h]);
    }
    a[0] = decay(vec[NB_VEC_A_LOG][h], in[ai] + vec[NB_VEC_DT_BIAS][h]);
    return sigmoid(in[b]) * (float)c->rate;
}

/* Output gate of a head. */
static const float *gate_of(const delta_job *j, size_t r, size_t h)
{
    const nb_xcpu *x = j->x;
    const nb_plan *p = &x->m->plan;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t share = c->heads / c->key_heads, dv = c->value_dim;

    if (c->grouped) /* q, k, values, gates of a key head */
        return row_of(x, NB_SLOT_MIX, r) + h / share * 2 * (c->key_dim + share * dv) + 2 * c->key_dim + share * dv + h % share * dv;
    return p->z_off ? row_of(x, NB_SLOT_MIX, r) + p->z_off + h * dv : row_of(x, NB_SLOT_GATE, r) + h * dv;
}

/* Rows [r0, r0 + m) of head h through the kernel and the norm and gate behind it. */
static void run_tile(const delta_job *j, float *S, size_t h, size_t r0, size_t m, float *scratch)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t dk = c->key_dim, dv = c->value_dim, kh = h / (c->heads / c->key_heads);
    const bool kda = nb_plan_mixer(&x->m->plan, j->l) == NB_MIX_KDA;
    float *q = scratch, *k = q + NB_RECUR_TILE * dk, *a = k + NB_RECUR_TILE * dk, *beta = a + NB_RECUR_TILE * dk;
    const nb_recur t = { .S = S,
                         .dk = dk,
                         .dv = dv,
                         .m = m,
                         .q = q,
                         .k = k,
                         .v = row_of(x, NB_SLOT_CONV, r0) + 2 * c->key_heads * dk + h * dv,
                         .ldq = dk,
                         .ldk = dk,
                         .ldv = x->m->plan.slot_width[NB_SLOT_CONV],
                         .a = a,
                         .lda = dk,
                         .each = kda,
                         .beta = beta,
                         .o = row_of(x, NB_SLOT_MIXED, r0) + h * dv,
                         .ldo = x->m->plan.slot_width[NB_SLOT_MIXED],
                         .work = beta + NB_RECUR_TILE,
                         .next = h + 1 < c->heads ? S + dk * dv : NULL };

    for (size_t i = 0; i < m; i++) {
        const float *u = row_of(x, NB_SLOT_CONV, r0 + i);

        beta[i] = rates(j, r0 + i, h, a + i * dk);
        unit(x->kern, q + i * dk, u + kh * dk, dk, 1 / sqrtf((float)dk));
        unit(x->kern, k + i * dk, u + (c->key_heads + kh) * dk, dk, 1);
    }
    x->kern->delta(&t);
    for (size_t i = 0; i < m; i++) {
        const float *z = gate_of(j, r0 + i, h);
        float *o = t.o + i * t.ldo;

        x->kern->rmsnorm(o, o, x->m->layers[j->l].vec[NB_VEC_MIX_NORM], 0, (float)c->norm_eps, dv);
        if (kda)
            x->kern->gate(o, z, dv);
        else
            x->kern->silu_mul(o, z, o, dv);
    }
}

static void run_head(const delta_job *j, const nb_block *s, size_t h, float *scratch)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t n = c->key_dim * c->value_dim;
    float *S = nb_xcpu_state(x, s, j->l) + (nb_plan_conv_state(&x->m->plan, j->l) + 63) / 64 * 64 + h * n;

    if (s->pos == 0)
        memset(S, 0, n * sizeof *S);
    for (size_t i = 0; i < s->m; i += NB_RECUR_TILE)
        run_tile(j, S, h, s->row + i, s->m - i < NB_RECUR_TILE ? s->m - i : NB_RECUR_TILE, scratch);
}

static void run_heads(void *ctx, size_t begin, size_t end, int thread)
{
    const delta_job *j = ctx;
    const size_t heads = j->x->m->cfg.mix.heads;

    for (size_t i = begin; i < end; i++)
        run_head(j, &j->x->spans[i / heads], i % heads, j->x->mix + (size_t)thread * j->x->mix_floats);
}

void nb_xcpu_delta(nb_xcpu *x, size_t l, const nb_op *op)
{
    delta_job j = { x, l };

    (void)op;
    nb_xcpu_heads(x, run_heads, &j);
    nb_xcpu_states_done(x, l);
}
