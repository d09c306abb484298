/* Where the weights of an op come from, and which of them share a packed matrix. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

size_t nb_vocab_rows(const nb_config *c, const nb_tensor *embed)
{
    return c->skip && embed->shape[0] >= c->vocab ? c->vocab : (size_t)embed->shape[0];
}

static nb_status check_shape(const nb_tensor *t, size_t n, size_t k, nb_err *err)
{
    const bool vec = k == 0;
    char got[128], name[NB_ESC_CAP];

    if (vec ? t->rank == 1 && t->shape[0] == n : t->rank == 2 && t->shape[0] == n && t->shape[1] == k)
        return NB_OK;
    nb_shape_str(got, sizeof got, t->shape, t->rank);
    nb_esc(name, sizeof name, t->name, t->name_len);
    if (vec)
        return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu]", name, got, n);
    return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu, %zu]", name, got, n, k);
}

static nb_status find_dense(const nb_store *s, const char *prefix, bool transposed, nb_source *out, nb_err *err)
{
    char name[256];
    nb_status rc;

    snprintf(name, sizeof name, "%s.weight", prefix);
    out->w = nb_store_find(s, name);
    if (!out->w)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
    rc = transposed ? check_shape(out->w, out->k, out->n, err) : check_shape(out->w, out->n, out->k, err);
    snprintf(name, sizeof name, "%s.bias", prefix);
    out->bias = nb_store_find(s, name);
    if (transposed) {
        out->rs = 1;
        out->cs = out->n;
    }
    return rc;
}

/* transposed: an unquantized matrix is stored [k][n]; packed ones never are (spec models 4.6). */
static nb_status find_linear(const nb_store *s, const nb_scan *sc, const char *prefix, bool transposed, size_t n, size_t k, nb_source *out,
                             nb_err *err)
{
    nb_status rc;

    *out = (nb_source){ .n = n, .k = k };
    out->q = sc ? nb_scan_find(sc, prefix) : NULL;
    if (out->q) {
        out->bias = out->q->bias;
        if (out->q->n != n || out->q->k != k)
            return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "",
                           "quantized linear \"%s\" has %zu outputs and %zu inputs, the configuration needs %zu and %zu", prefix, out->q->n,
                           out->q->k, n, k);
        out->widen = !nb_q4_layout(&(nb_q4){ 0 }, NB_STRIP, k, out->q->g, false);
    } else if ((rc = find_dense(s, prefix, transposed, out, err)) != NB_OK) {
        return rc;
    }
    return out->bias ? check_shape(out->bias, n, 0, err) : NB_OK;
}

nb_status nb_source_find(const nb_store *s, const nb_scan *sc, const char *prefix, size_t n, size_t k, nb_source *out, nb_err *err)
{
    return find_linear(s, sc, prefix, false, n, k, out, err);
}

/* A bias that the configuration promises must be there; one it does not mention is used all the same. */
static bool wants_bias(const nb_config *c, nb_role role)
{
    switch (role) {
    case NB_ROLE_QB:
        return false;
    case NB_ROLE_Q:
        return c->attn_bias && !c->mla.on;
    case NB_ROLE_QA:
    case NB_ROLE_KVA:
    case NB_ROLE_K:
    case NB_ROLE_V:
    case NB_ROLE_QKV:
        return c->attn_bias;
    case NB_ROLE_O:
        return c->o_bias;
    case NB_ROLE_GATE:
    case NB_ROLE_UP:
    case NB_ROLE_GATE_UP:
    case NB_ROLE_DOWN:
        return c->mlp_bias;
    case NB_ROLE_MIX_IN:
        return c->mix.in_bias;
    case NB_ROLE_MIX_OUT:
        return c->mix.out_bias;
    default:
        return role == NB_ROLE_MIX_DT;
    }
}

nb_status nb_source_op(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, const nb_op *op, nb_source out[3],
                       size_t *n_parts, nb_err *err)
{
    char prefix[192];
    size_t n, k, i;

    for (i = 0; i < 3 && op->roles[i] != NB_ROLE_NONE; i++) {
        nb_status rc;

        nb_plan_linear(p, layer, op->roles[i], prefix, sizeof prefix);
        nb_plan_linear_size_at(p, layer, op->roles[i], &n, &k);
        rc = find_linear(s, sc, prefix, p->cfg->transposed, n, k, &out[i], err);
        if (rc == NB_OK && !out[i].bias && wants_bias(p->cfg, op->roles[i]))
            rc = nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s.bias\" is missing", prefix);
        if (rc != NB_OK)
            return rc;
    }
    *n_parts = i;
    return NB_OK;
}

/* Inputs sorted by group, stably; every group must have exactly g of them (the last one may be short). */
static nb_status make_perm(nb_source *src, const uint32_t *g_idx, nb_arena *mem, nb_err *err)
{
    const size_t k = src->k, g = src->q->g, n_groups = (k + g - 1) / g;
    size_t *next = nb_alloc_array(n_groups, sizeof *next);
    nb_status rc = NB_OK;
    bool sorted = true;

    src->perm = nb_arena_calloc(mem, k, sizeof *src->perm);
    if (!next || !src->perm) {
        nb_free(next);
        return nb_enomem(err, "an act-order permutation");
    }
    for (size_t i = 0; i < n_groups; i++)
        next[i] = i * g;
    for (size_t i = 0; i < k && rc == NB_OK; i++) {
        const size_t grp = g_idx[i];
        if (grp >= n_groups || next[grp] == (grp + 1) * g || next[grp] == k) {
            rc = nb_fail(err, NB_EUNSUPPORTED, "cfg.unsupported", "", "\"%s\": g_idx gives group %zu a size other than %zu", src->q->prefix,
                         grp, g);
        } else {
            sorted = sorted && next[grp] == i;
            src->perm[next[grp]++] = (uint32_t)i;
        }
    }
    if (sorted)
        src->perm = NULL; /* already in order */
    nb_free(next);
    return rc;
}

nb_status nb_source_probe(nb_source *src, nb_arena *mem, nb_err *err)
{
    nb_qlin q = { 0 };
    nb_status rc;

    if (nb_source_kind(src) == NB_MAT_DENSE)
        return NB_OK;
    rc = (src->q->format->words ? nb_qlin_init_grid : nb_qlin_init)(&q, NB_STRIP, src->k, src->q->g, src->q->spec.bits, err);
    for (size_t n0 = 0; rc == NB_OK && n0 < src->n && !src->wide; n0 += NB_STRIP) {
        q.n = src->n - n0 < NB_STRIP ? src->n - n0 : NB_STRIP;
        rc = src->q->format->unpack(src->q, n0, &q, err);
        if (rc == NB_OK && n0 == 0 && q.g_idx)
            rc = make_perm(src, q.g_idx, mem, err);
        if (rc == NB_OK && q.scale_dtype == NB_DT_F16) /* always fits: the first stripe told everything */
            break;
        src->wide = rc == NB_OK && nb_q4_wide(&q);
    }
    nb_qlin_clear(&q);
    return rc;
}

nb_dtype nb_source_dtype(const nb_tensor *w, bool f32)
{
    const bool half = w->data && (w->dtype == NB_DT_F16 || w->dtype == NB_DT_BF16);

    return half && !f32 ? w->dtype : NB_DT_F32;
}

/* The type a dense source is packed in. */
static nb_dtype dense_type(const nb_source *s, bool f32)
{
    if (s->mx)
        return f32 ? NB_DT_F32 : NB_DT_BF16; /* holds every value exactly */
    return s->q || (s->rs && (s->cs != 1 || s->rs != s->k)) ? NB_DT_F32 : nb_source_dtype(s->w, f32);
}

static bool same_kind(const nb_source *a, const nb_source *b, bool f32)
{
    if (nb_source_kind(a) != nb_source_kind(b))
        return false;
    if (nb_source_kind(a) == NB_MAT_DENSE)
        return dense_type(a, f32) == dense_type(b, f32);
    if (a->q->format->offsets != b->q->format->offsets)
        return false;
    if (a->q->g != b->q->g || !a->perm != !b->perm)
        return false;
    return !a->perm || memcmp(a->perm, b->perm, a->k * sizeof *a->perm) == 0;
}

bool nb_fused_layout(nb_fused *f, const nb_source *src, size_t n_parts, bool f32)
{
    bool all = true;

    *f = (nb_fused){ .k = src[0].k };
    for (size_t i = 1; i < n_parts; i++)
        all = all && same_kind(&src[0], &src[i], f32);
    for (size_t i = 0; i < n_parts; i++) {
        nb_mat *m;

        f->part_row[i] = f->n_strips * NB_STRIP;
        if (i == 0 || !all) {
            m = &f->mats[f->n_mats++];
            *m = (nb_mat){ .kind = nb_source_kind(&src[i]), .strip0 = f->n_strips, .part0 = i };
            m->has_fix = m->kind == NB_MAT_Q4 && src[i].q->format->offsets;
        }
        m = &f->mats[f->n_mats - 1];
        m->n_parts++;
        m->n_strips += (src[i].n + NB_STRIP - 1) / NB_STRIP;
        m->q4.wide = m->q4.wide || src[i].wide;
        m->q4.perm = src[i].perm;
        f->n_strips = m->strip0 + m->n_strips;
    }
    for (size_t i = 0; i < f->n_mats; i++) {
        nb_mat *m = &f->mats[i];
        const nb_source *s = &src[m->part0];
        uint32_t *perm = m->q4.perm;
        const size_t rows = m->n_strips * NB_STRIP;
        const bool ok = m->kind == NB_MAT_DENSE ? nb_dense_layout(&m->dense, rows, s->k, dense_type(s, f32))
                        : m->kind == NB_MAT_Q8  ? nb_q8_layout(&m->q4, rows, s->k, s->q->g, m->q4.wide)
                                                : nb_q4_layout(&m->q4, rows, s->k, s->q->g, m->q4.wide);
        if (!ok)
            return false;
        m->q4.perm = perm;
        f->bytes += nb_mat_bytes(m) + nb_mat_fix_bytes(m);
    }
    return true;
}
