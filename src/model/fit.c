/* fit.c - what a model will take in memory, from shapes alone: nothing is allocated, no weight is read. */
#include <stdio.h>

#include "model/weights.h"

static nb_status fused_bytes(nb_source *src, size_t n, uint64_t *bytes, nb_err *err)
{
    nb_fused f;

    for (size_t j = 0; j < n; j++) /* scales of 16-bit floats fit fp16 but in odd cases */
        src[j].wide = src[j].q && src[j].q->spec.scale_dtype == NB_DT_F32;
    if (!nb_fused_layout(&f, src, n, false))
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.group_size", "", "%zu inputs in groups of %zu cannot be packed", src[0].k,
                       src[0].q ? src[0].q->g : 0);
    *bytes += f.bytes;
    return NB_OK;
}

static nb_status moe_bytes(const nb_plan *p, const nb_scan *sc, const nb_store *s, size_t layer, uint64_t *bytes, nb_err *err)
{
    const nb_moe_cfg *m = &p->cfg->moe;
    nb_ffn_source src;
    nb_source router;
    nb_status rc = nb_moe_router(p, s, layer, &router, err);

    if (rc == NB_OK)
        rc = fused_bytes(&router, 1, bytes, err);
    for (size_t e = 0; e < m->n_experts + (m->shared_ff > 0) && rc == NB_OK; e++) {
        rc = nb_moe_ffn(p, s, sc, layer, e, &src, err);
        if (rc == NB_OK)
            rc = fused_bytes(src.gu, src.n_gu, bytes, err);
        if (rc == NB_OK)
            rc = fused_bytes(&src.down, 1, bytes, err);
    }
    for (int leave = 0; leave < 2 && m->latent && rc == NB_OK; leave++) {
        rc = nb_moe_latent(p, s, sc, layer, leave != 0, &router, err);
        if (rc == NB_OK)
            rc = fused_bytes(&router, 1, bytes, err);
    }
    return rc;
}

/* Packed bytes of one layer. */
static nb_status layer_bytes(const nb_plan *p, const nb_scan *sc, const nb_store *s, size_t layer, uint64_t *bytes, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < p->n_ops && rc == NB_OK; i++) {
        const nb_op *op = &p->ops[i];
        nb_source src[3];
        size_t n;

        if (!nb_plan_runs(p, op, layer))
            continue;
        if (op->kind == NB_OP_ABSORB) /* as 16-bit floats; a quantized kv_b takes twice that */
            *bytes += nb_latent_bytes(p->cfg, NB_DT_BF16);
        if (op->kind == NB_OP_MOE)
            rc = moe_bytes(p, sc, s, layer, bytes, err);
        for (size_t g = 0; op->kind == NB_OP_GROUPS && g < p->cfg->v4.groups && rc == NB_OK; g++) {
            rc = nb_v4_group(p, s, layer, g, &src[0], err);
            if (rc == NB_OK)
                rc = fused_bytes(src, 1, bytes, err);
        }
        if (op->kind != NB_OP_LINEAR || nb_plan_stored_at(p, layer, op->roles[0]) != layer)
            continue;
        rc = nb_source_op(p, s, sc, layer, op, src, &n, err);
        if (rc == NB_OK)
            rc = fused_bytes(src, n, bytes, err);
    }
    return rc;
}

static nb_status top_bytes(const nb_config *c, const nb_plan *p, const nb_scan *sc, const nb_store *s, uint64_t *bytes, nb_err *err)
{
    char name[192];
    const nb_tensor *e;
    nb_source head = { .n = c->vocab, .k = c->embed_dim };
    nb_fused f;
    nb_status rc;

    e = nb_store_find(s, nb_plan_embed(p, name, sizeof name));
    head.w = e;
    if (p->head[0]) {
        rc = nb_source_find(s, sc, p->head, e ? nb_vocab_rows(c, e) : c->vocab, c->embed_dim, &head, err);
        if (rc != NB_OK)
            return rc;
    }
    if (!nb_fused_layout(&f, &head, 1, false))
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.group_size", "", "the head cannot be packed");
    *bytes += f.bytes;
    snprintf(name, sizeof name, "%sembed_tokens_per_layer.weight", p->prefix);
    if (c->branch && nb_store_find(s, name))
        *bytes += nb_store_find(s, name)->n_bytes;
    if (e && head.w != e && !(c->tie_embeddings && head.w)) /* a second copy of a tied one is not kept */
        *bytes += (uint64_t)head.n * c->embed_dim * (nb_dtype_info(nb_source_dtype(e, false))->bits / 8);
    return NB_OK;
}

nb_status nb_model_fit(const nb_config *cfg, const nb_plan *plan, const nb_scan *scan, const nb_store *s, size_t tokens, size_t m,
                       nb_dtype kv, nb_fit *out, nb_err *err)
{
    const uint64_t pages = (tokens + NB_PAGE - 1) / NB_PAGE;
    size_t k = cfg->d_ff > cfg->d_model ? cfg->d_ff : cfg->d_model;
    uint64_t page = 0; /* of all layers */
    nb_status rc = NB_OK;

    *out = (nb_fit){ .state = (uint64_t)nb_plan_states(plan) * sizeof(float) };
    for (size_t l = 0; l < cfg->n_layers; l++)
        page += nb_plan_kv_page(plan, l, kv) + nb_plan_side_page(plan, l, kv);
    for (size_t l = 0; s && l < cfg->n_layers && rc == NB_OK; l++)
        rc = layer_bytes(plan, scan, s, l, &out->weights, err);
    if (s && rc == NB_OK)
        rc = top_bytes(cfg, plan, scan, s, &out->weights, err);
    if (rc == NB_OK && !nb_mul_u64(pages, page, &out->kv))
        rc = nb_fail(err, NB_EARG, "exec.size", "", "a cache of %zu tokens is too large", tokens);
    for (size_t i = 0; i < NB_SLOT_COUNT; i++)
        out->scratch += (uint64_t)plan->slot_width[i] * sizeof(float) * m;
    k = k > cfg->n_heads * cfg->head_dim ? k : cfg->n_heads * cfg->head_dim;
    out->scratch += nb_act_bytes(m, k, 32);
    return rc;
}
