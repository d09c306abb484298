/* exec_gemma.c - inputs of single layers that follow from the token, and several residual streams. Source: spec models-2026 S4.8. */
#include <math.h>
#include <string.h>

#include "kern/expf.h"
#include "model/exec_cpu.h"

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

/* ---- around the layers ---------------------------------------------------------------------------------------- */

/* Of row r: (norm of the projected embedding + what the token's own row says) / sqrt 2. */
static void layer_inputs(nb_xcpu *x, size_t r)
{
    const nb_model *m = x->m;
    const nb_config *c = &m->cfg;
    const size_t token = (size_t)x->b->token[x->row0 + r], P = c->branch, n = c->n_layers * P;
    const float by = (float)(1 / sqrt((double)c->d_model)), own = (float)sqrt((double)P);
    float *y = row_of(x, NB_SLOT_LAYERS, r), part[256];

    for (size_t l = 0; l < c->n_layers; l++) {
        for (size_t i = 0; i < P; i++)
            y[l * P + i] *= by;
        x->kern->rmsnorm(y + l * P, y + l * P, m->layer_norm, 0, (float)c->norm_eps, P);
    }
    for (size_t i = 0; i < n; i += NB_LEN(part)) {
        const size_t some = n - i < NB_LEN(part) ? n - i : NB_LEN(part), row = token < c->branch_vocab ? token : 0;
        nb_to_f32(part, m->layer_embed + (row * n + i) * (nb_dtype_info(m->layer_type)->bits / 8), m->layer_type, some);
        for (size_t k = 0; k < some; k++)
            y[i + k] = (y[i + k] + part[k] * own) * 0.70710678f;
    }
}

static float mean_square(const float *v, size_t n)
{
    float sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sum / (float)n;
}

/* y rescaled to the length of `like`. */
static void same_length(float *y, const float *like, size_t n)
{
    const float now = mean_square(y, n), by = sqrtf(mean_square(like, n)) / sqrtf(now > 1e-5f ? now : 1e-5f);

    for (size_t i = 0; i < n; i++)
        y[i] *= by;
}

void nb_xcpu_after_embed(nb_xcpu *x)
{
    const nb_config *c = &x->m->cfg;
    const size_t d = c->d_model;

    if (c->branch) {
        nb_xcpu_linear(x, &x->m->top.ops[NB_TOP_LAYERS], NB_SLOT_X, NB_SLOT_LAYERS, x->rows);
        for (size_t r = 0; r < x->rows; r++)
            layer_inputs(x, r);
    }
    if (c->v4.on)
        nb_xcpu_v4_begin(x);
    for (size_t r = 0; c->uses && r < x->rows; r++)
        memcpy(row_of(x, NB_SLOT_FIRST, r), row_of(x, NB_SLOT_X, r), d * sizeof(float));
    for (size_t i = 0; i < c->n_streams; i++) {
        if (i > 0)
            nb_xcpu_linear(x, &x->m->top.ops[NB_TOP_STREAMS + i - 1], NB_SLOT_X, NB_SLOT_PROJ, x->rows);
        for (size_t r = 0; r < x->rows; r++) {
            float *to = row_of(x, NB_SLOT_STREAMS, r) + i * d;
            memcpy(to, row_of(x, i ? NB_SLOT_PROJ : NB_SLOT_X, r), d * sizeof *to);
            if (i > 0)
                same_length(to, row_of(x, NB_SLOT_X, r), d);
        }
    }
}

/* The mean of all streams, each brought back, in X. */
void nb_xcpu_before_head(nb_xcpu *x)
{
    const nb_config *c = &x->m->cfg;
    const size_t d = c->d_model, A = c->n_streams;

    if (c->v4.on)
        nb_xcpu_v4_end(x);
    for (size_t r = 0; A > 0 && r < x->rows; r++)
        memcpy(row_of(x, NB_SLOT_X, r), row_of(x, NB_SLOT_STREAMS, r), d * sizeof(float));
    for (size_t i = 1; i < A; i++) {
        for (size_t r = 0; r < x->rows; r++)
            memcpy(row_of(x, NB_SLOT_NORM, r), row_of(x, NB_SLOT_STREAMS, r) + i * d, d * sizeof(float));
        nb_xcpu_linear(x, &x->m->top.ops[NB_TOP_UNSTREAM + i - 1], NB_SLOT_NORM, NB_SLOT_PROJ, x->rows);
        for (size_t r = 0; r < x->rows; r++) {
            float *y = row_of(x, NB_SLOT_PROJ, r);
            same_length(y, row_of(x, NB_SLOT_STREAMS, r), d);
            x->kern->add(row_of(x, NB_SLOT_X, r), y, d);
        }
    }
    for (size_t r = 0; A > 0 && r < x->rows; r++)
        for (size_t i = 0; i < d; i++)
            row_of(x, NB_SLOT_X, r)[i] /= (float)A;
}

/* ---- in the layers -------------------------------------------------------------------------------------------- */

void nb_xcpu_branch(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t P = x->m->cfg.branch;

    nb_xcpu_act_mul(x, row_of(x, it->op->out, r), row_of(x, it->op->in, r), row_of(x, NB_SLOT_LAYERS, r) + it->l * P, P);
}

void nb_xcpu_vnorm(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, it->l);
    const nb_heads p = nb_plan_qkv(&x->m->plan, it->l);
    const bool keys = c->mixer[it->l] == NB_MIX_KEYVAL;
    float *qkv = row_of(x, it->op->in, r);

    for (size_t h = 0; h < d.kv_heads; h++)
        x->kern->rmsnorm(qkv + p.off[2] + h * p.step[2], qkv + p.off[keys ? 1 : 2] + h * p.step[keys ? 1 : 2], NULL, 0, (float)c->norm_eps,
                         d.head_dim);
}

void nb_xcpu_sparse(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const size_t n = nb_config_dims(c, it->l).d_ff;
    float *g = row_of(x, it->op->in, r);
    double mean = 0, var = 0;

    if (c->sparsity[it->l] == 0)
        return;
    for (size_t i = 0; i < n; i++)
        mean += (double)g[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        var += ((double)g[i] - mean) * ((double)g[i] - mean) / (double)n;
    const float least = (float)(mean + c->sparsity[it->l] * sqrt(var));
    for (size_t i = 0; i < n; i++)
        g[i] = g[i] > least ? g[i] - least : 0;
}

enum { MOST = 8 }; /* streams */

/* tanh of what the router makes of v. */
static void modes(const nb_xcpu *x, const nb_item *it, const float *v, float *out)
{
    const size_t d = x->m->cfg.d_model, A = x->m->cfg.n_streams;
    const float *w = it->layer->vec[NB_VEC_ALT_ROUTER], *norm = it->layer->vec[NB_VEC_ALT_NORM];
    const float length = 1 / sqrtf(mean_square(v, d) + (float)x->m->cfg.norm_eps);

    for (size_t a = 0; a < A; a++) {
        double sum = 0;
        for (size_t i = 0; i < d; i++)
            sum += (double)(v[i] * length * norm[i]) * (double)w[a * d + i];
        out[a] = (float)tanh(sum / (double)d);
    }
}

void nb_xcpu_predict(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t d = x->m->cfg.d_model, A = x->m->cfg.n_streams;
    const float *w = it->layer->vec[NB_VEC_ALT_PREDICT];
    float *s = row_of(x, it->op->in, r), m[MOST], coef[MOST * MOST], mixed[MOST];

    modes(x, it, s + x->m->cfg.active * d, m);
    for (size_t i = 0; i < A * A; i++) {
        coef[i] = 0;
        for (size_t a = 0; a < A; a++)
            coef[i] = fmaf(w[i * A + a], m[a], coef[i]);
    }
    for (size_t k = 0; k < d; k++) {
        for (size_t i = 0; i < A; i++) {
            mixed[i] = s[i * d + k];
            for (size_t j = 0; j < A; j++)
                mixed[i] = fmaf(coef[i * A + j], s[j * d + k], mixed[i]);
        }
        for (size_t i = 0; i < A; i++)
            s[i * d + k] = mixed[i];
    }
    memcpy(row_of(x, it->op->out, r), s + x->m->cfg.active * d, d * sizeof *s);
}

void nb_xcpu_correct(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const size_t d = c->d_model, A = c->n_streams;
    const float *w = it->layer->vec[NB_VEC_ALT_CORRECT], *by = it->layer->vec[NB_VEC_ALT_SCALE], *y = row_of(x, it->op->in, r);
    float *s = row_of(x, NB_SLOT_STREAMS, r), *out = row_of(x, it->op->out, r), m[MOST], coef[MOST];

    modes(x, it, y, m);
    for (size_t i = 0; i < A; i++) {
        coef[i] = 1;
        for (size_t a = 0; a < A; a++)
            coef[i] = fmaf(w[i * A + a], m[a], coef[i]);
    }
    for (size_t k = 0; k < d; k++) {
        const float news = y[k] - s[c->active * d + k];
        for (size_t i = 0; i < A; i++)
            s[i * d + k] = fmaf(coef[i], news, s[i * d + k]);
        out[k] = s[c->active * d + k] * (by ? by[k] : 1);
    }
}

/* The residual that taps see is the first stream. */
void nb_xcpu_spread(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t d = x->m->cfg.d_model;
    float *s = row_of(x, it->op->out, r);

    for (size_t i = 1; i < x->m->cfg.n_streams; i++)
        x->kern->add(s + i * d, row_of(x, it->op->in, r), d);
    memcpy(row_of(x, NB_SLOT_X, r), s, d * sizeof *s);
}
