/* bind_top.c - what lies around the layers: embedding, positions, final norm, projections, head. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

typedef struct copy_job {
    nb_model *m;
    const nb_tensor *t;
    unsigned char *to;
    nb_err *errs;
} copy_job;

static void copy_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const copy_job *j = ctx;
    const size_t d = j->m->cfg.embed_dim, row = d * nb_dtype_info(j->m->embed_type)->bits / 8;

    if (j->t->data && j->t->dtype == j->m->embed_type)
        memcpy(j->to + begin * row, j->t->data + begin * row, (end - begin) * row);
    else
        nb_store_read_f32(j->m->store, j->t, (uint64_t)begin * d, (uint64_t)(end - begin) * d, (float *)(void *)j->to + begin * d,
                          &j->errs[thread]);
}

static nb_status copy_embed(nb_model *m, const nb_tensor *t, nb_err *err)
{
    const size_t threads = (size_t)nb_pool_threads(m->pool);
    copy_job j = { m, t, NULL, NULL };
    nb_status rc;

    m->embed_type = nb_source_dtype(t, false);
    if (m->lazy && t->data && t->dtype == m->embed_type) {
        m->embed = t->data;
        m->embed_from = t;
        return NB_OK;
    }
    m->embed_bytes = m->cfg.vocab * m->cfg.embed_dim * nb_dtype_info(m->embed_type)->bits / 8;
    m->embed = j.to = nb_huge_alloc(m->embed_bytes);
    j.errs = nb_calloc(threads, sizeof *j.errs);
    if (!m->embed || !j.errs) {
        nb_free(j.errs);
        return nb_enomem(err, "the embedding");
    }
    nb_parallel_static(m->pool, m->cfg.vocab, copy_rows, &j);
    rc = nb_first_error(j.errs, threads, err);
    nb_free(j.errs);
    nb_store_drop(m->store, t);
    return rc;
}

static bool same_bytes(const nb_tensor *a, const nb_tensor *b)
{
    return a->data && b->data && a->dtype == b->dtype && a->n_bytes == b->n_bytes && memcmp(a->data, b->data, a->n_bytes) == 0;
}

/* The table of learned positions, as f32. */
static nb_status bind_positions(nb_model *m, nb_err *err)
{
    char name[192], got[128];
    const nb_tensor *t;
    size_t n;

    if (!m->cfg.learned_pos)
        return NB_OK;
    snprintf(name, sizeof name, "%s%s.weight", m->plan.prefix, m->cfg.names->positions);
    t = nb_store_find(m->store, name);
    if (!t)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
    if (t->rank != 2 || t->shape[1] != m->cfg.d_model || t->shape[0] <= m->cfg.pos_offset || t->shape[0] > 1 << 24)
        return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu, %zu]", name,
                       nb_shape_str(got, sizeof got, t->shape, t->rank), m->cfg.context + m->cfg.pos_offset, m->cfg.d_model);
    n = (size_t)t->shape[0] * m->cfg.d_model;
    m->positions = nb_arena_calloc(&m->top.mem, n, sizeof *m->positions);
    m->n_positions = (size_t)t->shape[0] - m->cfg.pos_offset;
    return m->positions ? nb_store_read_f32(m->store, t, 0, n, m->positions, err) : nb_enomem(err, "the positions");
}

/* Weight and bias of the final norm. */
static nb_status bind_norm(nb_model *m, nb_err *err)
{
    const nb_norm_kind kind = m->cfg.norm;
    const char *stem = m->cfg.names->norm ? m->cfg.names->norm : "norm";
    char name[192];
    nb_status rc = NB_OK;

    if (m->cfg.embed_norm && kind == NB_NORM_LN) {
        snprintf(name, sizeof name, "%s%s.weight", m->plan.prefix, m->cfg.names->embed_norm);
        rc = nb_bind_vec(m, name, m->cfg.d_model, &m->top.mem, &m->top.vec[NB_VEC_N2], err);
        snprintf(name, sizeof name, "%s%s.bias", m->plan.prefix, m->cfg.names->embed_norm);
        if (rc == NB_OK)
            rc = nb_bind_vec(m, name, m->cfg.d_model, &m->top.mem, &m->top.vec[NB_VEC_N2_BIAS], err);
    }
    if (rc != NB_OK || !m->cfg.final_norm || kind == NB_NORM_LN_0 || kind == NB_NORM_RMS_0)
        return rc;
    snprintf(name, sizeof name, "%s%s.weight", m->plan.prefix, stem);
    rc = nb_bind_vec(m, name, m->cfg.d_model, &m->top.mem, &m->top.vec[NB_VEC_N1], err);
    if (rc == NB_OK && kind == NB_NORM_LN1)
        nb_add_one(m->top.vec[NB_VEC_N1], m->cfg.d_model);
    snprintf(name, sizeof name, "%s%s.bias", m->plan.prefix, stem);
    if (rc == NB_OK && (kind == NB_NORM_LN || kind == NB_NORM_LN1))
        rc = nb_bind_vec(m, name, m->cfg.d_model, &m->top.mem, &m->top.vec[NB_VEC_N1_BIAS], err);
    return rc;
}

/* OPT: embeddings narrower than the model, between two projections. */
static nb_status find_projections(nb_model *m, nb_pack_list *lp, nb_err *err)
{
    const size_t e = m->cfg.embed_dim, d = m->cfg.d_model;
    char name[192];
    nb_source src;
    nb_status rc;

    if (e == d)
        return NB_OK;
    snprintf(name, sizeof name, "%sproject_in", m->plan.prefix);
    rc = nb_source_find(m->store, m->scan, name, d, e, &src, err);
    if (rc == NB_OK)
        rc = nb_pack_add(lp, &m->top.ops[NB_TOP_IN], &src, 1, err);
    snprintf(name, sizeof name, "%sproject_out", m->plan.prefix);
    if (rc == NB_OK)
        rc = nb_source_find(m->store, m->scan, name, e, d, &src, err);
    return rc != NB_OK ? rc : nb_pack_add(lp, &m->top.ops[NB_TOP_OUT], &src, 1, err);
}

/* The rows of the embedding decide the vocabulary (models 9.2); the head must agree. */
nb_status nb_bind_top(nb_model *m, const nb_host *host, nb_err *err)
{
    nb_pack_list lp = { 0 };
    nb_source source = { 0 }, *head = &source;
    nb_store *s = m->store;
    char name[192], got[128];
    const nb_tensor *e;
    nb_status rc;
    bool tied;

    e = nb_store_find(s, nb_plan_embed(&m->plan, name, sizeof name));
    if (e) {
        if (e->rank != 2 || e->shape[1] != m->cfg.embed_dim || e->shape[0] == 0 || e->shape[0] > 1 << 24)
            return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu, %zu]", name,
                           nb_shape_str(got, sizeof got, e->shape, e->rank), m->cfg.vocab, m->cfg.embed_dim);
        m->cfg.vocab = nb_vocab_rows(&m->cfg, e);
    }
    if (m->plan.head[0]) {
        rc = nb_source_find(s, m->scan, m->plan.head, m->cfg.vocab, m->cfg.embed_dim, head, err);
        if (rc != NB_OK)
            return rc;
    } else {
        *head = (nb_source){ .w = e, .n = m->cfg.vocab, .k = m->cfg.embed_dim };
        if (!m->cfg.tie_embeddings)
            nb_log(host, NB_LOG_WARN, "no %s.weight: the embedding serves as head", nb_plan_head(&m->plan, name, sizeof name));
    }
    if (!e && head->q)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing, and the quantized head cannot serve as it",
                       name);
    tied = !e || (!m->headless && (head->w == e || (m->cfg.tie_embeddings && head->w && same_bytes(e, head->w))));
    rc = m->headless && e ? NB_OK : nb_pack_add(&lp, &m->top.ops[NB_TOP_HEAD], head, 1, err);
    if (rc == NB_OK && (rc = bind_norm(m, err)) == NB_OK && (rc = bind_positions(m, err)) == NB_OK &&
        (rc = find_projections(m, &lp, err)) == NB_OK && (rc = nb_bind_gemma(m, &lp, err)) == NB_OK && (rc = nb_bind_v4(m, err)) == NB_OK &&
        !tied)
        rc = copy_embed(m, e, err);
    if (rc == NB_OK) {
        const bool f32 = m->f32;
        m->f32 = false; /* the head keeps its type: the values are the same */
        rc = nb_pack_layer(m, &m->top, &lp, err);
        m->f32 = f32;
    }
    nb_pack_clear(&lp);
    return rc;
}
