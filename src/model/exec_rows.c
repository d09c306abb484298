/* exec_rows.c - ops of one row alone. Rows are split over threads; the bits of a row depend on nothing else. */
#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "model/exec_cpu.h"

static float *at(const nb_xcpu *x, nb_slot s, size_t row)
{
    return x->slot[s] + row * x->m->plan.slot_width[s];
}

/* One norm of the model's kind; a layer norm with an offset has it in its weights already. */
static void norm_row(const nb_xcpu *x, float *y, const float *in, const float *w, const float *b)
{
    const nb_config *c = &x->m->cfg;

    if (c->norm == NB_NORM_RMS || c->norm == NB_NORM_RMS1 || c->norm == NB_NORM_RMS_0)
        x->kern->rmsnorm(y, in, w, c->norm == NB_NORM_RMS1, (float)c->norm_eps, c->d_model);
    else
        x->kern->layernorm(y, in, w, b, (float)c->norm_eps, c->d_model);
}

static const float *vec_of(const nb_layer *l, nb_vec vec)
{
    return vec < NB_VEC_COUNT ? l->vec[vec] : NULL;
}

static void op_norm(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_vec vec = it->op->vec;

    if (vec == NB_VEC_QA) { /* its epsilon is not that of the layers */
        float *q = at(x, it->op->in, r);
        x->kern->rmsnorm(q, q, it->layer->vec[vec], 0, x->m->cfg.v4.on ? (float)x->m->cfg.norm_eps : 1e-6f, x->m->cfg.mla.q_rank);
        return;
    }
    norm_row(x, at(x, it->op->out, r), at(x, it->op->in, r), vec_of(it->layer, vec), vec_of(it->layer, nb_plan_vec_bias(&x->m->plan, vec)));
}

void nb_xcpu_final_norm(nb_xcpu *x, size_t from, size_t to)
{
    const nb_config *c = &x->m->cfg;
    const nb_layer *top = &x->m->top;
    float *y = at(x, NB_SLOT_NORM, to);
    const float *in = at(x, NB_SLOT_X, from);

    if (c->final_norm)
        norm_row(x, y, in, top->vec[NB_VEC_N1], top->vec[NB_VEC_N1_BIAS]);
    else
        memcpy(y, in, c->d_model * sizeof *y);
    for (size_t i = 0; c->final_mult != 1 && i < c->d_model; i++)
        y[i] *= (float)c->final_mult;
}

void nb_xcpu_embed_norm(nb_xcpu *x, size_t r)
{
    float *y = at(x, NB_SLOT_X, r);

    norm_row(x, y, y, x->m->top.vec[NB_VEC_N2], x->m->top.vec[NB_VEC_N2_BIAS]);
}

/* n heads from v on, or all of them as one row. */
static void qk_norm(const nb_xcpu *x, float *v, size_t n, size_t d, const float *w, const float *b)
{
    const nb_config *c = &x->m->cfg;
    const float eps = (float)c->norm_eps;

    if (c->qk == NB_QK_FULL) {
        x->kern->rmsnorm(v, v, w, 0, eps, n * d);
        return;
    }
    for (size_t h = 0; h < n; h++) {
        float *y = v + h * d;
        if (c->qk == NB_QK_PER_HEAD)
            x->kern->layernorm(y, y, w + h * d, NULL, eps, d);
        else if (c->norm == NB_NORM_LN)
            x->kern->layernorm(y, y, w, b, eps, d);
        else
            x->kern->rmsnorm(y, y, w, c->norm == NB_NORM_RMS1, eps, d);
    }
}

static void op_qknorm(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, it->l);
    const nb_heads p = nb_plan_qkv(&x->m->plan, it->l);
    float *const *vec = it->layer->vec;
    float *qkv = at(x, NB_SLOT_QKV, r); /* q and k apart, their heads close together */

    if (c->qk == NB_QK_AFTER_0 && nb_rope_layer(c, it->l) == NB_ROPE_OFF)
        return;
    qk_norm(x, qkv + p.off[0], c->n_heads, d.head_dim, vec[NB_VEC_QN], vec[NB_VEC_QN_BIAS]);
    if (d.kv_from == it->l)
        qk_norm(x, qkv + p.off[1], d.kv_heads, d.head_dim, vec[NB_VEC_KN], vec[NB_VEC_KN_BIAS]);
}

static void op_rope(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_heads p = nb_plan_qkv(&x->m->plan, it->l);
    const nb_dims d = nb_config_dims(c, it->l);
    const size_t share = c->n_heads / d.kv_heads;
    const nb_layer_rope which = nb_rope_layer(c, it->l);
    void (*rotate)(float *, const float *, const float *, size_t) = c->rope_pairs ? x->kern->rope_pair : x->kern->rope_half;
    float *qkv = at(x, NB_SLOT_QKV, r);

    if (which == NB_ROPE_OFF)
        return;
    for (size_t h = 0; h < d.kv_heads; h++) {
        for (size_t j = 0; j < share; j++)
            rotate(qkv + p.off[0] + h * p.step[0] + j * d.head_dim, x->row_cs[which][r], x->row_sn[which][r], 2 * x->half[which]);
        if (d.kv_from == it->l)
            rotate(qkv + p.off[1] + h * p.step[1], x->row_cs[which][r], x->row_sn[which][r], 2 * x->half[which]);
    }
}

static void op_clip(nb_xcpu *x, const nb_item *it, size_t r)
{
    const float most = (float)x->m->cfg.clip_qkv;
    float *qkv = at(x, NB_SLOT_QKV, r);

    (void)it;
    for (size_t i = 0; i < x->m->plan.slot_len[NB_SLOT_QKV]; i++)
        qkv[i] = qkv[i] < -most ? -most : qkv[i] > most ? most : qkv[i]; /* NaN stays */
}

/* Slope of query head h of n: spec models 5.8. */
static float alibi_slope(size_t h, size_t n)
{
    size_t p = 1;

    while (2 * p <= n)
        p *= 2;
    if (h < p)
        return (float)exp2(-8.0 * (double)(h + 1) / (double)p);
    return (float)exp2(-4.0 * (double)(2 * (h - p) + 1) / (double)p);
}

static float round_bf16(float v)
{
    uint16_t h;

    nb_from_f32(&h, &v, NB_DT_BF16, 1);
    nb_to_f32(&v, &h, NB_DT_BF16, 1);
    return v;
}

/* Position biases as products: each query head of a kv head has a component of its own, 1 in the query, its bias in the
 * key, 0 for the others. The bias is rounded as the reference rounds it, and takes part in the scaling. */
static void op_alibi(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_heads *from = &x->m->plan.qkv, *to = &x->m->plan.att;
    const size_t share = c->n_heads / c->n_kv_heads, d = c->head_dim;
    const float pos = (float)x->b->pos[x->row0 + r];
    const float *in = at(x, NB_SLOT_QKV, r);
    float *out = at(x, NB_SLOT_HEADS, r);

    (void)it;
    memset(out, 0, x->m->plan.slot_len[NB_SLOT_HEADS] * sizeof *out);
    for (size_t h = 0; h < c->n_kv_heads; h++) {
        float *k = out + to->off[1] + h * to->step[1];
        for (size_t j = 0; j < share; j++) {
            float *q = out + to->off[0] + h * to->step[0] + j * c->kv_dim;
            memcpy(q, in + from->off[0] + h * from->step[0] + j * d, d * sizeof *q);
            if (c->alibi_exact) {
                const float bias = (float)((double)alibi_slope(h * share + j, c->n_heads) * (double)pos / c->attn_scale);
                q[d + 2 * j] = q[d + 2 * j + 1] = 1;
                k[d + 2 * j] = nb_f16_to_f32(nb_f32_to_f16(bias)); /* what a 16-bit cache holds of it, and the rest */
                k[d + 2 * j + 1] = bias - k[d + 2 * j];
                continue;
            }
            q[d + j] = 1;
            k[d + j] = round_bf16(round_bf16(alibi_slope(h * share + j, c->n_heads)) * pos);
        }
        memcpy(k, in + from->off[1] + h * from->step[1], d * sizeof *k);
        memcpy(out + to->off[2] + h * to->step[2], in + from->off[2] + h * from->step[2], d * sizeof *k);
    }
}

static void op_pack(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;

    const nb_dims d = nb_config_dims(c, it->l);

    for (size_t h = 0; h < c->n_heads; h++)
        memcpy(at(x, it->op->out, r) + h * d.value_dim, at(x, it->op->in, r) + h * d.kv_dim, d.value_dim * sizeof(float));
}

unsigned char *nb_xcpu_kv(const nb_xcpu *x, size_t layer, size_t head)
{
    return x->kv + x->kv_of[layer].base + head * x->kv_of[layer].head;
}

void nb_xcpu_put_kv(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, it->l);
    const nb_heads p = nb_plan_att(&x->m->plan, it->l);
    const nb_batch *b = x->b;
    const size_t pos = b->pos[x->row0 + r];
    const nb_seq_view *s = &b->seqs[b->seq[x->row0 + r]];
    const size_t page = (x->kv_of[it->l].near ? s->near : s->pages)[pos / NB_PAGE];
    const float *in = at(x, x->m->plan.att_in, r);

    for (size_t h = 0; h < d.kv_heads; h++) {
        unsigned char *to = nb_xcpu_kv(x, it->l, h) + page * x->kv_of[it->l].page;
        x->kern->kv_put(c->mla.on ? NULL : to, to + x->kv_of[it->l].v_off, x->o.kv_dtype, pos % NB_PAGE, d.kv_dim,
                        in + p.off[1] + h * p.step[1], in + p.off[2] + h * p.step[2]);
    }
}

/* Values are cached as long as keys, zeros behind. */
static void op_widen(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, it->l);
    const nb_heads p = nb_plan_qkv(&x->m->plan, it->l);
    const float *in = at(x, it->op->in, r);
    float *out = at(x, it->op->out, r);

    memcpy(out, in, p.off[2] * sizeof *out);
    for (size_t h = 0; h < d.kv_heads; h++) {
        float *v = out + p.off[2] + h * d.kv_dim;
        memset(v, 0, d.kv_dim * sizeof *v);
        for (size_t i = 0; i < d.value_dim; i++)
            v[i] = in[p.off[2] + h * d.value_dim + i] * (float)c->value_mult;
    }
}

void nb_xcpu_act_mul(const nb_xcpu *x, float *y, const float *gate, const float *up, size_t n)
{
    switch (x->m->cfg.act) {
    case NB_ACT_GELU_TANH:
        x->kern->gelu_tanh_mul(y, gate, up, n);
        break;
    case NB_ACT_GELU_ERF:
        x->kern->gelu_erf_mul(y, gate, up, n);
        break;
    case NB_ACT_RELU:
    case NB_ACT_RELU2:
        for (size_t i = 0; i < n; i++) {
            const float v = gate[i] < 0 ? 0 : gate[i];
            y[i] = (x->m->cfg.act == NB_ACT_RELU ? v : v * v) * up[i];
        }
        break;
    default:
        x->kern->silu_mul(y, gate, up, n);
        break;
    }
}

static void op_act_mul(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t n = nb_config_dims(&x->m->cfg, it->l).d_ff;
    const double mult = x->m->cfg.gate_mult;
    float *gate = at(x, NB_SLOT_GU, r);

    for (size_t i = 0; mult != 1 && i < n; i++)
        gate[i] *= (float)mult;
    nb_xcpu_act_mul(x, at(x, NB_SLOT_ACT, r), gate, gate + nb_plan_up_off(&x->m->plan, it->l), n);
}

static double softplus(double v)
{
    return v > 20 ? v : log1p(exp(v));
}

/* models-2026 S4.1 */
static void xielu(float *y, const float *in, const nb_layer *l, size_t n)
{
    const float beta = *l->vec[NB_VEC_BETA], eps = *l->vec[NB_VEC_EPS], p = (float)softplus((double)*l->vec[NB_VEC_ALPHA_P]);
    const float b = beta + (float)softplus((double)*l->vec[NB_VEC_ALPHA_N]);

    for (size_t i = 0; i < n; i++) {
        const float v = in[i];
        y[i] = v > 0 ? p * v * v + beta * v : (expm1f(v < eps ? v : eps) - v) * b + beta * v;
    }
}

/* The activation alone is that of a gate beside ones. */
void nb_xcpu_act(const nb_xcpu *x, float *y, const float *in, size_t n)
{
    float ones[64];

    for (size_t i = 0; i < NB_LEN(ones); i++)
        ones[i] = 1;
    for (size_t i = 0; i < n; i += NB_LEN(ones))
        nb_xcpu_act_mul(x, y + i, in + i, ones, n - i < NB_LEN(ones) ? n - i : NB_LEN(ones));
}

static void op_act(nb_xcpu *x, const nb_item *it, size_t r)
{
    const float *in = at(x, it->op->in, r), *div = it->layer->vec[NB_VEC_ACT_SCALE];
    const size_t n = x->m->cfg.d_ff;
    float *y = at(x, it->op->out, r);

    if (x->m->cfg.act == NB_ACT_XIELU)
        xielu(y, in, it->layer, n);
    else
        nb_xcpu_act(x, y, in, n);
    for (size_t i = 0; div && i < n; i++)
        y[i] /= div[i];
}

static void op_add(nb_xcpu *x, const nb_item *it, size_t r)
{
    const size_t n = x->m->cfg.d_model;
    const nb_op *op = it->op;
    float *y = at(x, op->out, r);

    for (size_t i = 0; op->keep != 1 && i < n; i++)
        y[i] *= op->keep;
    if (op->gain == 1)
        x->kern->add(y, at(x, op->in, r), n);
    else
        x->kern->axpy(y, at(x, op->in, r), op->gain, n);
}

static void op_scale(nb_xcpu *x, const nb_item *it, size_t r)
{
    const float by = it->op->gain != 0 ? it->op->gain : *it->layer->vec[NB_VEC_LAYER_SCALAR];
    float *y = at(x, it->op->out, r);

    for (size_t i = 0; i < x->m->plan.slot_len[it->op->out]; i++)
        y[i] *= by;
}

/* ---- attention with an output gate, with growing queries (models-2026 S4.1) ------------------------------------ */

static void op_ungate(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const size_t d = c->head_dim;
    float *q = at(x, it->op->in, r), *gate = at(x, it->op->out, r);

    for (size_t h = 0; h < c->n_heads; h++) {
        memcpy(gate + h * d, q + (2 * h + 1) * d, d * sizeof *q);
        memmove(q + h * d, q + 2 * h * d, d * sizeof *q);
    }
}

static void op_ogate(nb_xcpu *x, const nb_item *it, size_t r)
{
    const float *gate = at(x, it->op->in, r);
    float *y = at(x, it->op->out, r);

    x->kern->gate(y, gate, x->m->plan.slot_len[it->op->in]);
}

/* Factor of q at the position of row r. */
float nb_xcpu_grow(const nb_xcpu *x, size_t r)
{
    const nb_config *c = &x->m->cfg;

    return (float)(1 + c->grow * log1p(floor(((double)x->b->pos[x->row0 + r] + c->grow_shift) / c->grow_step)));
}

static void op_grow(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const float by = nb_xcpu_grow(x, r);
    float *q = at(x, NB_SLOT_QKV, r) + x->m->plan.qkv.off[0];

    if (c->grow_off && nb_rope_layer(c, it->l) != NB_ROPE_OFF)
        return;
    for (size_t i = 0; i < c->n_heads * c->head_dim; i++)
        q[i] *= by;
}

nb_row_fn *const nb_xcpu_rows[NB_OP_COUNT] = {
    [NB_OP_NORM] = op_norm,
    [NB_OP_QKNORM] = op_qknorm,
    [NB_OP_CLIP] = op_clip,
    [NB_OP_ROPE] = op_rope,
    [NB_OP_ALIBI] = op_alibi,
    [NB_OP_WIDEN] = op_widen,
    [NB_OP_VNORM] = nb_xcpu_vnorm,
    [NB_OP_SPARSE] = nb_xcpu_sparse,
    [NB_OP_BRANCH] = nb_xcpu_branch,
    [NB_OP_PREDICT] = nb_xcpu_predict,
    [NB_OP_CORRECT] = nb_xcpu_correct,
    [NB_OP_SPREAD] = nb_xcpu_spread,
    [NB_OP_PAIR] = nb_xcpu_pair,
    [NB_OP_HYPER_IN] = nb_xcpu_hyper_in,
    [NB_OP_HYPER_OUT] = nb_xcpu_hyper_out,
    [NB_OP_ONE_KV] = nb_xcpu_one_kv,
    [NB_OP_UNROTATE] = nb_xcpu_unrotate,
    [NB_OP_PLUS] = nb_xcpu_plus,
    [NB_OP_PACK] = op_pack,
    [NB_OP_ACT_MUL] = op_act_mul,
    [NB_OP_ACT] = op_act,
    [NB_OP_ADD] = op_add,
    [NB_OP_LATENT] = nb_xcpu_latent,
    [NB_OP_JOIN] = nb_xcpu_join,
    [NB_OP_SCALE] = op_scale,
    [NB_OP_UNGATE] = op_ungate,
    [NB_OP_OGATE] = op_ogate,
    [NB_OP_GROW] = op_grow,
    [NB_OP_PARTS] = nb_xcpu_parts,
    [NB_OP_SSM_NORM] = nb_xcpu_ssm_norm,
    [NB_OP_DT_NORM] = nb_xcpu_dt_norm,
};
