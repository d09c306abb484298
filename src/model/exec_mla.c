/* exec_mla.c - latent attention: all heads share one cached vector, the latent of k and v beside the rotated part of k.
 *
 * q of a head is multiplied into the latent's space, attention gives a sum of latents, and the head's values follow from
 * that: the cache never holds a head's own k and v. Source: spec models 5.6. */
#include <string.h>

#include "model/exec_cpu.h"

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

/* Floats between the heads of the FOLD slot. */
static size_t fold_step(const nb_xcpu *x)
{
    return x->m->plan.slot_len[NB_SLOT_FOLD] / x->m->cfg.n_heads;
}

void nb_xcpu_latent(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_mla_cfg *m = &c->mla;
    const float *cs = x->row_cs[NB_ROPE_MAIN][r], *sn = x->row_sn[NB_ROPE_MAIN][r];
    void (*rotate)(float *, const float *, const float *, size_t) = c->rope_pairs ? x->kern->rope_pair : x->kern->rope_half;
    float *z = row_of(x, x->m->plan.kva_slot, r) + x->m->plan.kva_off, *q = row_of(x, NB_SLOT_QKV, r), by;

    x->kern->rmsnorm(z, z, it->layer->vec[NB_VEC_KVA], 0, 1e-6f, m->kv_rank);
    for (size_t i = 0; m->kv_mult != 1 && i < m->kv_rank; i++)
        z[i] *= (float)m->kv_mult;
    by = (float)m->q_mult * (c->grow > 0 ? nb_xcpu_grow(x, r) : 1);
    for (size_t i = 0; by != 1 && i < c->n_heads * (m->nope + m->rope); i++)
        q[i] *= by;
    if (nb_rope_layer(c, it->l) == NB_ROPE_OFF)
        return;
    rotate(z + m->kv_rank, cs, sn, 2 * x->half[NB_ROPE_MAIN]);
    for (size_t h = 0; h < c->n_heads; h++)
        rotate(q + h * (m->nope + m->rope) + m->nope, cs, sn, 2 * x->half[NB_ROPE_MAIN]);
}

/* q and k as attention wants them; v is k, of which only the latent's part of a sum is read. */
void nb_xcpu_join(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    const nb_mla_cfg *m = &c->mla;
    const nb_heads *to = &x->m->plan.att;
    const float *z = row_of(x, x->m->plan.kva_slot, r) + x->m->plan.kva_off, *fold = row_of(x, NB_SLOT_FOLD, r);
    const float *q = row_of(x, NB_SLOT_QKV, r);
    float *out = row_of(x, NB_SLOT_HEADS, r);

    (void)it;
    for (size_t h = 0; h < c->n_heads; h++) {
        float *t = out + to->off[0] + h * c->kv_dim;
        memcpy(t, fold + h * fold_step(x), m->kv_rank * sizeof *t);
        memcpy(t + m->kv_rank, q + h * (m->nope + m->rope) + m->nope, m->rope * sizeof *t);
    }
    memcpy(out + to->off[1], z, c->kv_dim * sizeof *out);
}

typedef struct head_job {
    const nb_xcpu *x;
    const nb_dense *w; /* [n_heads] */
    const float *in;
    size_t ldi, step; /* of rows, of heads */
} head_job;

static void run_heads(void *ctx, size_t begin, size_t end, int thread)
{
    const head_job *j = ctx;

    (void)thread;
    for (size_t h = begin; h < end; h++)
        j->x->kern->gemm_dense(&j->w[h], j->in + h * j->step, j->ldi, j->x->rows, j->x->slot[NB_SLOT_FOLD] + h * fold_step(j->x),
                               j->x->m->plan.slot_width[NB_SLOT_FOLD], 0, j->w[h].n_strips);
}

/* The latents of the cut, normed, for who calibrates kv_b. */
static void tap_latent(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_plan *p = &x->m->plan;
    nb_tap t = { .kind = NB_TAP_OP_IN, .layer = l, .op = (size_t)(op - p->ops), .row0 = x->row0, .m = x->rows };

    t.x = x->slot[p->kva_slot] + p->kva_off;
    t.width = x->m->cfg.mla.kv_rank;
    t.ld = p->slot_width[p->kva_slot];
    if (x->tap)
        x->tap(x->tap_user, &t);
}

void nb_xcpu_absorb(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_mla_cfg *m = &x->m->cfg.mla;
    head_job j = { x, x->m->layers[l].latent.absorb, x->slot[NB_SLOT_QKV], x->m->plan.slot_width[NB_SLOT_QKV], m->nope + m->rope };

    tap_latent(x, l, op);
    nb_parallel_for(x->o.pool, x->m->cfg.n_heads, 1, run_heads, &j);
}

void nb_xcpu_unfold(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_config *c = &x->m->cfg;
    head_job j = { x, x->m->layers[l].latent.unfold, x->slot[NB_SLOT_WIDE], x->m->plan.slot_width[NB_SLOT_WIDE], c->kv_dim };

    (void)op;
    nb_parallel_for(x->o.pool, c->n_heads, 1, run_heads, &j);
    for (size_t r = 0; r < x->rows; r++)
        for (size_t h = 0; h < c->n_heads; h++)
            memcpy(row_of(x, NB_SLOT_ATT, r) + h * c->mla.value, row_of(x, NB_SLOT_FOLD, r) + h * fold_step(x),
                   c->mla.value * sizeof(float));
}
