/* exec_v4.c - DeepSeek-V4 row by row: residual streams and how they are mixed, the one key that is the value, the output in groups.
 *
 * Sums over streams are fma chains, streams ascending; how streams are mixed is balanced in double. Source: spec models-2026 S4.10. */
#include <math.h>
#include <string.h>

#include "model/exec_cpu.h"

enum { MOST = 8, MOST_COEF = 2 * MOST + MOST * MOST };

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

/* What the matrix w[width][n] makes of the streams, as if they had been normed. */
static void project(const nb_xcpu *x, const float *s, const float *w, size_t n, double *out)
{
    const size_t width = x->m->cfg.v4.streams * x->m->cfg.d_model;
    float g[MOST_COEF] = { 0 };
    double square = 0;

    for (size_t i = 0; i < width; i++) {
        square += (double)s[i] * (double)s[i];
        x->kern->axpy(g, w + i * n, s[i], n);
    }
    square = 1 / sqrt(square / (double)width + x->m->cfg.norm_eps);
    for (size_t i = 0; i < n; i++)
        out[i] = (double)g[i] * square;
}

/* to = sum of by_i streams i. */
static void mix_streams(const nb_xcpu *x, float *to, const float *s, const double *by)
{
    const size_t d = x->m->cfg.d_model;

    memset(to, 0, d * sizeof *to);
    for (size_t i = 0; i < x->m->cfg.v4.streams; i++)
        x->kern->axpy(to, s + i * d, (float)by[i], d);
}

/* Rows of c [m][m], then columns, by their sums, again and again. */
static void balance(double *c, size_t m, double eps, size_t rounds)
{
    for (size_t n = 0; n < 2 * rounds; n++) {
        const size_t step = n % 2 ? 1 : m, other = n % 2 ? m : 1; /* of a column: rows are m apart */
        for (size_t i = 0; i < m && n > 0; i++) {                 /* the first rows have come from a softmax */
            double sum = 0;
            for (size_t j = 0; j < m; j++)
                sum += c[i * step + j * other];
            for (size_t j = 0; j < m; j++)
                c[i * step + j * other] /= sum + eps;
        }
    }
}

void nb_xcpu_hyper_in(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_v4_cfg *c = &x->m->cfg.v4;
    const size_t m = c->streams;
    float *const *vec = it->layer->vec + it->op->vec;
    const float *base = vec[1], *scale = vec[2], *s = row_of(x, it->op->in, r);
    float *out = row_of(x, NB_SLOT_HYPER, r);
    double g[MOST_COEF], pre[MOST], *comb = g + 2 * m;

    project(x, s, vec[0], 2 * m + m * m, g);
    for (size_t i = 0; i < m; i++) {
        pre[i] = sigmoid(g[i] * (double)scale[0] + (double)base[i]) + c->eps;
        out[i] = (float)(2 * sigmoid(g[m + i] * (double)scale[1] + (double)base[m + i]));
    }
    for (size_t i = 0; i < m; i++) {
        double *row = comb + i * m, top = -INFINITY, sum = 0;
        for (size_t j = 0; j < m; j++) {
            row[j] = row[j] * (double)scale[2] + (double)base[2 * m + i * m + j];
            top = row[j] > top ? row[j] : top;
        }
        for (size_t j = 0; j < m; j++)
            sum += row[j] = exp(row[j] - top);
        for (size_t j = 0; j < m; j++)
            row[j] = row[j] / sum + c->eps;
    }
    balance(comb, m, c->eps, c->sinkhorn);
    for (size_t i = 0; i < m * m; i++)
        out[m + i] = (float)comb[i];
    mix_streams(x, row_of(x, it->op->out, r), s, pre);
}

void nb_xcpu_hyper_out(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t m = x->m->cfg.v4.streams, d = x->m->cfg.d_model;
    const float *how = row_of(x, NB_SLOT_HYPER, r), *v = row_of(x, it->op->in, r);
    float *s = row_of(x, it->op->out, r), *new = row_of(x, NB_SLOT_KEEP, r);

    memset(new, 0, m * d * sizeof *new);
    for (size_t i = 0; i < m; i++) {
        x->kern->axpy(new + i *d, v, how[i], d);
        for (size_t j = 0; j < m; j++)
            x->kern->axpy(new + i *d, s + j * d, how[m + j * m + i], d);
    }
    memcpy(s, new, m * d * sizeof *s);
    memcpy(row_of(x, NB_SLOT_X, r), s, d * sizeof *s); /* what taps see */
}

/* All streams begin as the embedding, which is in X. */
void nb_xcpu_v4_begin(nb_xcpu *x)
{
    const size_t d = x->m->cfg.d_model;

    for (size_t r = 0; r < x->rows; r++)
        for (size_t i = 0; i < x->m->cfg.v4.streams; i++)
            memcpy(row_of(x, NB_SLOT_STREAMS, r) + i * d, row_of(x, NB_SLOT_X, r), d * sizeof(float));
}

/* Their sum for the head, to X. */
void nb_xcpu_v4_end(nb_xcpu *x)
{
    const size_t m = x->m->cfg.v4.streams;
    float *const *vec = x->m->top.vec + NB_VEC_HYPER1;

    for (size_t r = 0; r < x->rows; r++) {
        const float *s = row_of(x, NB_SLOT_STREAMS, r);
        double g[MOST];
        project(x, s, vec[0], m, g);
        for (size_t i = 0; i < m; i++)
            g[i] = sigmoid(g[i] * (double)vec[2][0] + (double)vec[1][i]) + x->m->cfg.v4.eps;
        mix_streams(x, row_of(x, NB_SLOT_X, r), s, g);
    }
}

/* ---- around attention ----------------------------------------------------------------------------------------- */

void nb_xcpu_one_kv(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_layer_rope which = nb_rope_layer(c, it->l);
    const size_t d = c->head_dim, n = 2 * x->half[which];
    float *q = row_of(x, it->op->in, r), *kv = row_of(x, NB_SLOT_LORA, r) + x->m->plan.kva_off;

    for (size_t h = 0; h < c->n_heads; h++) {
        x->kern->rmsnorm(q + h * d, q + h * d, NULL, 0, (float)c->norm_eps, d);
        x->kern->rope_pair(q + (h + 1) * d - n, x->row_cs[which][r], x->row_sn[which][r], n);
    }
    x->kern->rmsnorm(kv, kv, it->layer->vec[NB_VEC_KVA], 0, (float)c->norm_eps, d);
    x->kern->rope_pair(kv + d - n, x->row_cs[which][r], x->row_sn[which][r], n);
}

void nb_xcpu_unrotate(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_layer_rope which = nb_rope_layer(c, it->l);
    const size_t d = c->head_dim, half = x->half[which];
    const float *cs = x->row_cs[which][r], *sn = x->row_sn[which][r];

    for (size_t h = 0; h < c->n_heads; h++) {
        float *y = row_of(x, it->op->in, r) + (h + 1) * d - 2 * half;
        for (size_t i = 0; i < half; i++) {
            const float a = y[2 * i], b = y[2 * i + 1];
            y[2 * i] = a * cs[i] + b * sn[i];
            y[2 * i + 1] = b * cs[i] - a * sn[i];
        }
    }
}

/* Each group's rows end in padding that the next group, or the end of the slot, covers: ascending. */
void nb_xcpu_groups(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_v4_cfg *c = &x->m->cfg.v4;
    const size_t k = x->m->cfg.n_heads * x->m->cfg.head_dim / c->groups;
    const nb_plan *p = &x->m->plan;

    for (size_t g = 0; g < c->groups; g++)
        nb_xcpu_dense(x, &x->m->layers[l].groups[g], x->slot[op->in] + g * k, p->slot_width[op->in], x->slot[op->out] + g * c->rank,
                      p->slot_width[op->out], x->rows);
}
