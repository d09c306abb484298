/* bind_set.c - weights of a bound layer replaced by others: for those who quantize block by block. */
#include <string.h>

#include "model/weights.h"

typedef struct set_job {
    const nb_model *m;
    nb_dense dst;
    const float *w;
    size_t row0, n, k;
} set_job;

static void set_strips(void *ctx, size_t begin, size_t end, int thread)
{
    set_job *j = ctx;
    nb_dense dst = j->dst;

    (void)thread;
    for (size_t s = begin; s < end; s++) {
        const size_t n0 = s * NB_STRIP, rows = j->n - n0 < NB_STRIP ? j->n - n0 : NB_STRIP;
        j->m->kern->pack_dense(&dst, j->row0 + n0, j->w + n0 * j->k, rows);
    }
}

/* The packed matrices of a linear of a bound layer, and which of their parts it is; NULL: the layer has none. */
static const nb_fused *fused_of(const nb_model *m, size_t layer, nb_mod mod, size_t *part)
{
    const nb_layer *l = &m->layers[layer];
    const nb_role role = nb_mod_role(mod);

    *part = 0;
    if (mod == NB_MOD_ROUTER || mod == NB_MOD_SHARED_GATE)
        return mod == NB_MOD_ROUTER ? &l->moe.router : &l->moe.gate;
    if (mod >= NB_ROLE_COUNT) {
        const nb_ffn *f = l->moe.ffn ? &l->moe.ffn[nb_mod_expert(mod)] : NULL;
        *part = role == NB_ROLE_UP && !m->cfg.moe.plain;
        return !f ? NULL : role == NB_ROLE_DOWN ? &f->down : &f->gu;
    }
    const size_t op = nb_mod_op(&m->plan, layer, role);
    if (op == m->plan.n_ops)
        return NULL;
    while (m->plan.ops[op].roles[*part] != role)
        ++*part;
    return &l->ops[m->plan.ops[op].roles[0]];
}

/* The matrix that holds a linear, and the packed row where it begins there. NULL: *err says why. */
static const nb_mat *mat_of(const nb_model *m, size_t layer, nb_mod mod, size_t *row0, nb_err *err)
{
    const bool bound = layer < m->cfg.n_layers && m->layers[layer].bound;
    size_t part = 0;
    const nb_fused *f = bound && mod != NB_MOD_KVB ? fused_of(m, layer, mod, &part) : NULL;

    for (size_t i = 0; f && i < f->n_mats; i++) {
        const nb_mat *mat = &f->mats[i];
        *row0 = f->part_row[part] - mat->strip0 * NB_STRIP;
        if (part >= mat->part0 && part < mat->part0 + mat->n_parts)
            return mat;
    }
    nb_fail(err, NB_EARG, "model.layer", "", "layer %zu is not bound", layer);
    return NULL;
}

nb_status nb_model_set_linear(nb_model *m, size_t layer, nb_mod mod, const float *w, nb_err *err)
{
    set_job j = { .m = m, .w = w };
    const nb_mat *mat;

    if (layer < m->cfg.n_layers && m->layers[layer].bound && mod == NB_MOD_KVB && m->layers[layer].latent.block)
        return nb_latent_set(m, layer, w, err);
    mat = mat_of(m, layer, mod, &j.row0, err);
    if (!mat)
        return NB_EARG;
    nb_mod_size(&m->plan, layer, mod, &j.n, &j.k);
    if (mat->kind == NB_MAT_Q8 && m->codes)
        return nb_codes_set(m, mat, j.row0, j.n, NULL, w, err);
    if (mat->kind != NB_MAT_DENSE || mat->dense.dtype != NB_DT_F32)
        return nb_fail(err, NB_EARG, "model.layer", "", "the matrix is not held as f32");
    j.dst = mat->dense;
    nb_parallel_static(m->pool, (j.n + NB_STRIP - 1) / NB_STRIP, set_strips, &j);
    return NB_OK;
}

nb_status nb_model_set_codes(nb_model *m, size_t layer, nb_mod mod, const nb_qlin *q, float *scratch, nb_err *err)
{
    size_t row0 = 0;
    const nb_mat *mat = m->codes && mod != NB_MOD_KVB ? mat_of(m, layer, mod, &row0, err) : NULL;

    if (mat && nb_codes_fit(mat, q))
        return nb_codes_set(m, mat, row0, q->n, q, NULL, err);
    nb_qlin_dequant(q, scratch);
    return nb_model_set_linear(m, layer, mod, scratch, err);
}

nb_status nb_model_set_bias(nb_model *m, size_t layer, nb_mod mod, const float *b, nb_err *err)
{
    size_t part = 0, n, k;
    const nb_fused *f = layer < m->cfg.n_layers && m->layers[layer].bound && mod != NB_MOD_KVB ? fused_of(m, layer, mod, &part) : NULL;

    if (!f || !f->bias)
        return nb_fail(err, NB_EARG, "model.layer", "", "layer %zu is not bound or the linear has no bias", layer);
    nb_mod_size(&m->plan, layer, mod, &n, &k);
    memcpy(f->bias + f->part_row[part], b, n * sizeof *b);
    return NB_OK;
}

nb_status nb_model_set_vec(nb_model *m, size_t layer, nb_vec vec, const float *w, nb_err *err)
{
    if (layer >= m->cfg.n_layers || !m->layers[layer].bound || !m->layers[layer].vec[vec])
        return nb_fail(err, NB_EARG, "model.layer", "", "layer %zu is not bound or has no such norm", layer);
    memcpy(m->layers[layer].vec[vec], w, nb_plan_vec_size(&m->plan, vec) * sizeof *w);
    return NB_OK;
}

const float *nb_model_vec(const nb_model *m, size_t layer, nb_vec vec, size_t *n)
{
    if (layer >= m->cfg.n_layers || !m->layers[layer].vec[vec])
        return NULL;
    *n = nb_plan_vec_size(&m->plan, vec);
    return m->layers[layer].vec[vec];
}
