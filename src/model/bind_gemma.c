/* bind_gemma.c - the table of per-layer inputs and what surrounds it; projections of residual streams. Spec models-2026 S4.8. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

/* The table keeps its type: it is the largest tensor of such a model, and only its rows are read. */
static nb_status bind_table(nb_model *m, nb_err *err)
{
    const size_t width = m->cfg.n_layers * m->cfg.branch;
    char name[192], got[128];
    const nb_tensor *t;

    snprintf(name, sizeof name, "%sembed_tokens_per_layer.weight", m->plan.prefix);
    t = nb_store_find(m->store, name);
    if (!t)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
    if (t->rank != 2 || t->shape[1] != width || t->shape[0] == 0 || t->shape[0] > 1 << 24)
        return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu, %zu]", name,
                       nb_shape_str(got, sizeof got, t->shape, t->rank), m->cfg.branch_vocab, width);
    m->cfg.branch_vocab = (size_t)t->shape[0];
    m->layer_type = nb_source_dtype(t, false);
    m->layer_bytes = m->cfg.branch_vocab * width * nb_dtype_info(m->layer_type)->bits / 8;
    m->layer_embed = nb_huge_alloc(m->layer_bytes);
    if (!m->layer_embed)
        return nb_enomem(err, "the per-layer embedding");
    if (t->data && t->dtype == m->layer_type)
        memcpy(m->layer_embed, t->data, m->layer_bytes);
    else
        return nb_store_read_f32(m->store, t, 0, m->cfg.branch_vocab * width, (float *)(void *)m->layer_embed, err);
    if (!m->lazy)
        nb_store_drop(m->store, t);
    return NB_OK;
}

static nb_status add(nb_model *m, nb_pack_list *lp, const char *name, size_t n, size_t k, nb_fused *f, nb_err *err)
{
    nb_source src;
    nb_status rc = nb_source_find(m->store, m->scan, name, n, k, &src, err);

    return rc != NB_OK ? rc : nb_pack_add(lp, f, &src, 1, err);
}

nb_status nb_bind_gemma(nb_model *m, nb_pack_list *lp, nb_err *err)
{
    const size_t d = m->cfg.d_model;
    char name[192];
    nb_status rc = NB_OK;

    if (m->cfg.branch) {
        rc = bind_table(m, err);
        snprintf(name, sizeof name, "%sper_layer_projection_norm.weight", m->plan.prefix);
        if (rc == NB_OK)
            rc = nb_bind_vec(m, name, m->cfg.branch, &m->top.mem, &m->layer_norm, err);
        snprintf(name, sizeof name, "%sper_layer_model_projection", m->plan.prefix);
        if (rc == NB_OK)
            rc = add(m, lp, name, m->cfg.n_layers * m->cfg.branch, d, &m->top.ops[NB_TOP_LAYERS], err);
    }
    for (size_t i = 0; i + 1 < m->cfg.n_streams && rc == NB_OK; i++) {
        snprintf(name, sizeof name, "%saltup_projections.%zu", m->plan.prefix, i);
        rc = add(m, lp, name, d, d, &m->top.ops[NB_TOP_STREAMS + i], err);
        snprintf(name, sizeof name, "%saltup_unembed_projections.%zu", m->plan.prefix, i);
        if (rc == NB_OK)
            rc = add(m, lp, name, d, d, &m->top.ops[NB_TOP_UNSTREAM + i], err);
    }
    return rc;
}
