/* latent.c - kv_b of latent attention, packed twice: to bring each head's q to the latent, and its values back.
 * Source: spec models 5.6 (absorption). */
#include <stdio.h>

#include "model/weights.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

nb_status nb_latent_source(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, nb_source *src, nb_err *err)
{
    const nb_mla_cfg *c = &p->cfg->mla;
    char name[192];

    nb_plan_kv_b(p, layer, name, sizeof name);
    return nb_source_find(s, sc, name, p->cfg->n_heads * (c->nope + c->value), c->kv_rank, src, err);
}

nb_status nb_latent_find(const nb_model *m, size_t layer, nb_source *src, nb_err *err)
{
    return nb_latent_source(&m->plan, m->store, m->scan, layer, src, err);
}

/* All of kv_b as f32. */
static nb_status read_all(const nb_model *m, const nb_source *src, float *w, nb_err *err)
{
    nb_qlin q = { 0 };
    nb_status rc;

    if (!src->q)
        return nb_store_read_f32(m->store, src->w, 0, (uint64_t)src->n * src->k, w, err);
    rc = nb_qlin_init(&q, NB_STRIP, src->k, src->q->g, src->q->spec.bits, err);
    for (size_t n0 = 0; n0 < src->n && rc == NB_OK; n0 += NB_STRIP) {
        q.n = src->n - n0 < NB_STRIP ? src->n - n0 : NB_STRIP;
        rc = src->q->format->unpack(src->q, n0, &q, err);
        if (rc == NB_OK)
            nb_qlin_dequant(&q, w + n0 * src->k);
    }
    nb_qlin_clear(&q);
    return rc;
}

static bool layout(const nb_config *c, nb_dtype type, nb_dense *absorb, nb_dense *unfold)
{
    return nb_dense_layout(absorb, PAD64(c->mla.kv_rank), c->mla.nope, type) &&
           nb_dense_layout(unfold, PAD64(c->mla.value), c->mla.kv_rank, type);
}

size_t nb_latent_bytes(const nb_config *c, nb_dtype type)
{
    nb_dense a, b;

    return layout(c, type, &a, &b) ? c->n_heads * (PAD64(a.bytes) + PAD64(b.bytes)) : 0;
}

/* Rows of w, `rows` of them, row r and column i at r * rs + i * cs, strip by strip. */
static void pack(const nb_model *m, nb_dense *p, const float *w, size_t rows, size_t rs, size_t cs, float *part, void *typed)
{
    for (size_t n0 = 0; n0 < rows; n0 += NB_STRIP) {
        const size_t n = rows - n0 < NB_STRIP ? rows - n0 : NB_STRIP;
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < p->k; i++)
                part[r * p->k + i] = w[(n0 + r) * rs + i * cs];
        nb_from_f32(typed, part, p->dtype, n * p->k);
        m->kern->pack_dense(p, n0, typed, n);
    }
}

/* All heads of w into their places. */
static nb_status pack_heads(const nb_model *m, nb_latent *out, const float *w, nb_err *err)
{
    const nb_config *c = &m->cfg;
    const size_t rank = c->mla.kv_rank, step = (c->mla.nope + c->mla.value) * rank;
    const size_t most = NB_STRIP * (rank > c->mla.nope ? rank : c->mla.nope);
    float *part = nb_alloc_array(most, sizeof *part);
    unsigned char *typed = nb_alloc_array(most, sizeof(float));
    const bool ok = part && typed;

    for (size_t h = 0; ok && h < c->n_heads; h++) {
        const float *k = w + h * step, *v = k + c->mla.nope * rank;
        pack(m, &out->absorb[h], k, rank, 1, rank, part, typed);
        pack(m, &out->unfold[h], v, c->mla.value, rank, 1, part, typed);
    }
    nb_free(part);
    nb_free(typed);
    return ok ? NB_OK : nb_enomem(err, "the latent projections");
}

nb_status nb_latent_set(nb_model *m, size_t layer, const float *w, nb_err *err)
{
    return pack_heads(m, &m->layers[layer].latent, w, err);
}

nb_status nb_latent_bind(const nb_model *m, size_t layer, nb_arena *mem, nb_latent *out, nb_err *err)
{
    const nb_config *c = &m->cfg;
    const size_t H = c->n_heads;
    nb_source src;
    nb_status rc = nb_latent_find(m, layer, &src, err);
    const nb_dtype type = rc != NB_OK || src.q ? NB_DT_F32 : nb_source_dtype(src.w, m->f32);
    float *w = NULL;
    unsigned char *at;

    if (rc != NB_OK)
        return rc;
    out->bytes = nb_latent_bytes(c, type);
    w = nb_alloc_array(src.n, src.k * sizeof *w);
    out->absorb = nb_arena_calloc(mem, H, sizeof *out->absorb);
    out->unfold = nb_arena_calloc(mem, H, sizeof *out->unfold);
    at = out->block = out->bytes ? nb_huge_alloc(out->bytes) : NULL;
    if (!w || !out->absorb || !out->unfold || !at)
        rc = nb_enomem(err, "the latent projections");
    if (rc == NB_OK)
        rc = read_all(m, &src, w, err);
    for (size_t h = 0; h < H && rc == NB_OK; h++) {
        layout(c, type, &out->absorb[h], &out->unfold[h]);
        out->absorb[h].base = at;
        at += PAD64(out->absorb[h].bytes);
        out->unfold[h].base = at;
        at += PAD64(out->unfold[h].bytes);
    }
    if (rc == NB_OK)
        rc = pack_heads(m, out, w, err);
    nb_free(w);
    return rc;
}
