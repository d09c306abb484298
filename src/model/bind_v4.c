/* bind_v4.c - DeepSeek-V4: matrices of the output's groups, experts by token, how the streams meet at the head. Spec models-2026
 * S4.10. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

nb_status nb_v4_group(const nb_plan *p, const nb_store *s, size_t layer, size_t g, nb_source *out, nb_err *err)
{
    const nb_config *c = p->cfg;
    const size_t k = c->n_heads * c->head_dim / c->v4.groups;
    char prefix[128], name[192];
    nb_status rc;

    snprintf(name, sizeof name, "%sattn.wo_a", nb_plan_layer(p, layer, prefix, sizeof prefix));
    rc = nb_source_find(s, NULL, name, c->v4.groups * c->v4.rank, k, out, err);
    out->n = c->v4.rank;
    out->at = (uint64_t)g * c->v4.rank * k;
    out->rs = k;
    out->cs = 1;
    return rc;
}

static nb_status find_shape(const nb_store *s, const char *name, size_t rows, size_t cols, const nb_tensor **out, nb_err *err)
{
    char got[128];
    const nb_tensor *t = *out = nb_store_find(s, name);

    if (!t)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
    if (t->rank != (cols ? 2u : 1u) || t->shape[0] != rows || (cols && t->shape[1] != cols))
        return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu, %zu]", name,
                       nb_shape_str(got, sizeof got, t->shape, t->rank), rows, cols);
    return NB_OK;
}

nb_status nb_v4_table(const nb_model *m, size_t layer, nb_arena *mem, uint32_t **out, nb_err *err)
{
    const size_t k = m->cfg.moe.n_active, n = m->cfg.vocab * k;
    char prefix[128], name[192];
    const nb_tensor *t;
    nb_status rc;

    if (!m->cfg.v4.hashed || !m->cfg.v4.hashed[layer])
        return NB_OK;
    snprintf(name, sizeof name, "%sffn.gate.tid2eid", nb_plan_layer(&m->plan, layer, prefix, sizeof prefix));
    rc = find_shape(m->store, name, m->cfg.vocab, k, &t, err);
    if (rc != NB_OK)
        return rc;
    if ((t->dtype != NB_DT_I64 && t->dtype != NB_DT_I32) || !t->data)
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.unsupported", "", "tensor \"%s\" is %s; nibble knows I32 and I64", name,
                       nb_dtype_info(t->dtype)->name);
    *out = nb_arena_calloc(mem, n, sizeof **out);
    if (!*out)
        return nb_enomem(err, "experts by token");
    for (size_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t half;
        if (t->dtype == NB_DT_I64) {
            memcpy(&wide, t->data + 8 * i, 8);
        } else {
            memcpy(&half, t->data + 4 * i, 4);
            wide = half;
        }
        if (wide < 0 || (size_t)wide >= m->cfg.moe.n_experts)
            return nb_fail(err, NB_EFORMAT, "cfg.value", "", "tensor \"%s\" names expert %lld of %zu", name, (long long)wide,
                           m->cfg.moe.n_experts);
        (*out)[i] = (uint32_t)wide;
    }
    return NB_OK;
}

nb_status nb_bind_v4(nb_model *m, nb_err *err)
{
    static const char *const names[] = { "hc_head_fn", "hc_head_base", "hc_head_scale" };
    const size_t n = m->cfg.v4.streams, width = n * m->cfg.d_model;
    const size_t rows[] = { n, n, 1 }, cols[] = { width, 0, 0 };
    nb_status rc = NB_OK;

    for (size_t i = 0; i < NB_LEN(names) && m->cfg.v4.on && rc == NB_OK; i++) {
        char name[192];
        const nb_tensor *t;
        float **v = &m->top.vec[NB_VEC_HYPER1 + i];

        snprintf(name, sizeof name, "%s%s", m->plan.prefix, names[i]);
        rc = find_shape(m->store, name, rows[i], cols[i], &t, err);
        if (rc != NB_OK)
            return rc;
        *v = nb_arena_calloc(&m->top.mem, rows[i] * (cols[i] ? cols[i] : 1), sizeof **v);
        rc = *v ? nb_store_read_f32(m->store, t, 0, rows[i] * (cols[i] ? cols[i] : 1), *v, err) : nb_enomem(err, "the streams");
    }
    return rc == NB_OK && m->cfg.v4.on ? nb_turn(m->top.vec[NB_VEC_HYPER1], width, n, err) : rc;
}
