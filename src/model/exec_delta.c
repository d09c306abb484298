/* exec_delta.c - the gated delta rule: a matrix per value head that forgets, and is corrected by what it predicts wrongly.
 *
 * Token by token, S [key_dim][value_dim]: S_i *= a_i; e = beta (v - sum of k_i S_i); S_i += k_i e; o = sum of q_i S_i. Sums
 * are fma chains, i ascending; a head is one task, so neither cuts nor threads change a bit. Source: spec models-2026 S4.5. */
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
static void unit(float *y, const float *x, size_t n, float by)
{
    float sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    by /= sqrtf(sum + 1e-6f);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * by;
}

static void step(const nb_kern *kern, float *S, size_t dk, size_t dv, const float *q, const float *k, const float *v, const float *a,
                 float beta, float *e, float *o)
{
    memset(e, 0, dv * sizeof *e);
    memset(o, 0, dv * sizeof *o);
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;
        for (size_t j = 0; j < dv; j++)
            row[j] *= a[i];
        kern->axpy(e, row, k[i], dv);
    }
    for (size_t j = 0; j < dv; j++)
        e[j] = beta * (v[j] - e[j]);
    for (size_t i = 0; i < dk; i++) {
        float *row = S + i * dv;
        kern->axpy(row, e, k[i], dv);
        kern->axpy(o, row, q[i], dv);
    }
}

/* Decays of a head's rows, and its rate. */
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
    for (size_t i = 1; i < c->key_dim; i++)
        a[i] = a[0];
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

static void run_head(const delta_job *j, const nb_block *s, size_t h, float *scratch)
{
    const nb_xcpu *x = j->x;
    const nb_mix_cfg *c = &x->m->cfg.mix;
    const size_t dk = c->key_dim, dv = c->value_dim, kh = h / (c->heads / c->key_heads);
    const bool kda = nb_plan_mixer(&x->m->plan, j->l) == NB_MIX_KDA;
    float *q = scratch, *k = q + dk, *a = k + dk, *e = a + dk, *S = nb_xcpu_state(x, s, j->l);

    S += (nb_plan_conv_state(&x->m->plan, j->l) + 63) / 64 * 64 + h * dk * dv;
    if (s->pos == 0)
        memset(S, 0, dk * dv * sizeof *S);
    for (size_t i = 0; i < s->m; i++) {
        const size_t r = s->row + i;
        const float *u = row_of(x, NB_SLOT_CONV, r), *z = gate_of(j, r, h);
        float *o = row_of(x, NB_SLOT_MIXED, r) + h * dv;
        const float beta = rates(j, r, h, a);

        unit(q, u + kh * dk, dk, 1 / sqrtf((float)dk));
        unit(k, u + (c->key_heads + kh) * dk, dk, 1);
        step(x->kern, S, dk, dv, q, k, u + 2 * c->key_heads * dk + h * dv, a, beta, e, o);
        x->kern->rmsnorm(o, o, x->m->layers[j->l].vec[NB_VEC_MIX_NORM], 0, (float)c->norm_eps, dv);
        if (!kda)
            x->kern->silu_mul(o, z, o, dv);
        for (size_t n = 0; kda && n < dv; n++)
            o[n] *= sigmoid(z[n]);
    }
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
    const nb_mix_cfg *c = &x->m->cfg.mix;
    delta_job j = { x, l };

    (void)op;
    nb_parallel_for(x->rows * c->heads * c->key_dim * c->value_dim < NB_INLINE_MACS ? NULL : x->o.pool, x->n_spans * c->heads, 1, run_heads,
                    &j);
    nb_xcpu_states_done(x, l);
}
