/* qmods.c - the linears of a model, one by one. */
#include "job/qmods.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

bool nb_mods_share(const nb_plan *p, size_t layer, nb_mod a, nb_mod b)
{
    if (nb_mod_op(p, layer, a) != nb_mod_op(p, layer, b))
        return false;
    if (nb_mod_expert(a) == NB_NO_EXPERT)
        return true;
    return nb_mod_expert(a) == nb_mod_expert(b) && (nb_mod_role(a) == NB_ROLE_DOWN) == (nb_mod_role(b) == NB_ROLE_DOWN);
}

bool nb_qspec_same(const nb_qspec *a, const nb_qspec *b)
{
    return a->bits == b->bits && a->group_size == b->group_size && a->sym == b->sym && a->desc_act == b->desc_act;
}

static nb_status check_type(const nb_stored *at, nb_err *err)
{
    const nb_dtype t = at->w->dtype;

    if (t == NB_DT_F16 || t == NB_DT_BF16 || t == NB_DT_F32 || at->more)
        return NB_OK;
    return nb_fail(err, NB_EUNSUPPORTED, "quantize.input", "", "tensor \"%s\" is %s; quantize reads f16, bf16 and f32", at->w->name,
                   nb_dtype_info(t)->name);
}

/* Linears that share an input follow one another. */
static void mark_shared(const nb_plan *p, nb_qmod *m, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        nb_qmod *first = NULL;

        for (end = i; end < n && nb_mods_share(p, m[i].layer, m[i].mod, m[end].mod); end++)
            if (m[end].quantized) {
                first = first ? first : &m[end];
                first->sharing++;
            }
        if (first)
            first->first = true;
        for (size_t j = i; first && j < end; j++)
            m[j].sharing = first->sharing;
    }
}

static nb_status open_layer(nb_qmods *t, const nb_plan *p, const nb_store *s, size_t layer, const nb_mod *mods, size_t n,
                            const nb_qspec *spec, nb_qmod_rule *rule, void *user, nb_err *err)
{
    nb_qmod *m = t->mods + t->n;
    nb_status rc = NB_OK;

    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        m[i] = (nb_qmod){ .layer = layer, .mod = mods[i], .spec = *spec };
        rc = nb_stored_find(p, s, layer, mods[i], &m[i].at, err);
        if (rc == NB_OK)
            rc = check_type(&m[i].at, err);
        if (rc == NB_OK)
            m[i].quantized = !nb_mod_stays(p, mods[i]) && (!rule || rule(user, &m[i], &m[i].spec));
        t->n_quantized += m[i].quantized;
    }
    if (rc == NB_OK)
        mark_shared(p, m, n);
    t->n += n;
    return rc;
}

nb_status nb_qmods_open(nb_qmods *t, const nb_plan *p, const nb_store *s, const nb_qspec *spec, nb_qmod_rule *rule, void *user, nb_err *err)
{
    const size_t L = p->cfg->n_layers;
    size_t total = 0, most = 0;
    nb_status rc = NB_OK;
    nb_mod *mods;

    *t = (nb_qmods){ .n_layers = L };
    for (size_t l = 0; l < L; l++) {
        const size_t n = nb_layer_mods(p, s, l, NULL, 0);
        total += n;
        most = n > most ? n : most;
    }
    t->first = nb_calloc(L + 2, sizeof *t->first);
    t->mods = nb_calloc(total ? total : 1, sizeof *t->mods);
    mods = nb_alloc_array(most ? most : 1, sizeof *mods);
    if (!t->first || !t->mods || !mods)
        rc = nb_enomem(err, "the list of linears");
    for (size_t l = 0; l < L && rc == NB_OK; l++) {
        t->first[l] = t->n;
        rc = open_layer(t, p, s, l, mods, nb_layer_mods(p, s, l, mods, most), spec, rule, user, err);
    }
    if (rc == NB_OK)
        t->first[L] = t->first[L + 1] = t->n;
    else
        nb_qmods_clear(t);
    nb_free(mods);
    return rc;
}

nb_status nb_qmods_add_head(nb_qmods *t, const nb_plan *p, const nb_store *s, const nb_qspec *spec, nb_qmod_rule *rule, void *user,
                            nb_err *err)
{
    static const nb_mod head = NB_MOD_HEAD;
    nb_qmod *mods = nb_realloc(t->mods, (t->n + 1) * sizeof *mods);
    nb_status rc;

    if (!mods)
        return nb_enomem(err, "the list of linears");
    t->mods = mods;
    rc = open_layer(t, p, s, t->n_layers, &head, 1, spec, rule, user, err);
    t->first[t->n_layers + 1] = t->n;
    return rc;
}

const nb_qmod *nb_qmods_head(const nb_qmods *t)
{
    const nb_qmod *m = t->n ? &t->mods[t->n - 1] : NULL;

    return m && m->mod == NB_MOD_HEAD && m->quantized ? m : NULL;
}

void nb_qmods_clear(nb_qmods *t)
{
    nb_free(t->mods);
    nb_free(t->first);
    *t = (nb_qmods){ 0 };
}

const nb_qmod *nb_qmods_find(const nb_qmods *t, size_t layer, nb_mod mod)
{
    for (size_t i = t->first[layer]; i < t->first[layer + 1]; i++)
        if (t->mods[i].mod == mod)
            return &t->mods[i];
    return NULL;
}

/* ---- what is written beside them ---- */

nb_status nb_qwrites_add(nb_qwrites *ws, nb_qwrite w, nb_err *err)
{
    for (size_t i = ws->n; i-- > 0 && ws->w[i].layer == w.layer;) {
        const nb_qwrite *o = &ws->w[i];
        if (o->kind == w.kind && (w.kind == NB_QWRITE_VEC ? o->vec == w.vec : o->mod == w.mod))
            return NB_OK;
    }
    if (ws->n == ws->cap) {
        const size_t cap = ws->cap ? 2 * ws->cap : 64;
        nb_qwrite *p = nb_realloc(ws->w, cap * sizeof *p);
        if (!p)
            return nb_enomem(err, "the list of folded tensors");
        ws->w = p;
        ws->cap = cap;
    }
    ws->w[ws->n++] = w;
    return NB_OK;
}

void nb_qwrites_clear(nb_qwrites *ws)
{
    nb_free(ws->w);
    *ws = (nb_qwrites){ 0 };
}

nb_status nb_qwrite_find(const nb_plan *p, const nb_store *s, const nb_qwrite *w, nb_qwritten *out, nb_err *err)
{
    nb_stored at;
    nb_status rc;

    *out = (nb_qwritten){ 0 };
    if (w->kind == NB_QWRITE_VEC) {
        out->n = nb_plan_vec_size(p, w->vec);
        nb_plan_vec(p, w->layer, w->vec, out->name, sizeof out->name);
        out->from = nb_store_find(s, out->name);
        return out->from ? NB_OK : nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", out->name);
    }
    rc = nb_stored_find(p, s, w->layer, w->mod, &at, err);
    if (rc != NB_OK)
        return rc;
    out->n = at.n;
    out->k = w->kind == NB_QWRITE_DENSE ? at.k : 0;
    out->from = w->kind == NB_QWRITE_DENSE ? at.w : at.bias;
    out->part = w->kind == NB_QWRITE_DENSE ? at.part : at.bias_part;
    snprintf(out->name, sizeof out->name, "%s.%s", at.name, w->kind == NB_QWRITE_DENSE ? "weight" : "bias");
    return NB_OK;
}

nb_dtype nb_qwrite_type(const nb_qwrite *w, const nb_tensor *from, nb_dtype norms)
{
    return w->kind != NB_QWRITE_VEC && from->dtype == NB_DT_F32 ? NB_DT_F32 : norms;
}
