/* The linears of a layer, one by one. */
#include "model/mod.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

void nb_mod_size(const nb_plan *p, size_t layer, nb_mod mod, size_t *n, size_t *k)
{
    const nb_role role = nb_mod_role(mod);
    const nb_moe_cfg *m = &p->cfg->moe;

    if (mod < NB_ROLE_COUNT) {
        nb_plan_linear_size_at(p, layer, role, n, k);
        return;
    }
    if (mod >= NB_MOD_KVB) {
        const nb_mla_cfg *a = &p->cfg->mla;
        *n = mod == NB_MOD_ROUTER ? m->n_experts : mod == NB_MOD_SHARED_GATE ? 1 : p->cfg->n_heads * (a->nope + a->value);
        *k = mod == NB_MOD_KVB ? a->kv_rank : p->cfg->d_model;
        return;
    }
    const size_t ff = nb_mod_expert(mod) < m->n_experts ? m->ff : m->shared_ff;
    const size_t d = m->latent && nb_mod_expert(mod) < m->n_experts ? m->latent : p->cfg->d_model;
    *n = role == NB_ROLE_DOWN ? d : role == NB_ROLE_GATE_UP ? 2 * ff : ff;
    *k = role == NB_ROLE_DOWN ? ff : d;
}

size_t nb_mod_op(const nb_plan *p, size_t layer, nb_mod mod)
{
    const nb_op_kind kind = mod == NB_MOD_KVB ? NB_OP_ABSORB : NB_OP_MOE;
    size_t i = 0;

    if (mod < NB_ROLE_COUNT)
        return nb_plan_op_at(p, layer, (nb_role)mod);
    while (i < p->n_ops && !(p->ops[i].kind == kind && nb_plan_runs(p, &p->ops[i], layer)))
        i++;
    return i;
}

static void put(nb_mod *out, size_t cap, size_t *n, nb_mod mod)
{
    if (*n < cap)
        out[*n] = mod;
    ++*n;
}

static void put_experts(const nb_plan *p, const nb_store *s, size_t layer, nb_mod *out, size_t cap, size_t *n)
{
    const size_t E = p->cfg->moe.n_experts, all = E + (p->cfg->moe.shared_ff > 0);

    for (size_t e = p->cfg->moe.latent ? E : 0; e < all; e++) {
        nb_ffn_source src;
        const bool plain = p->cfg->moe.plain,
                   one = !plain && e == E && nb_moe_ffn(p, s, NULL, layer, e, &src, NULL) == NB_OK && src.n_gu == 1;

        if (!plain)
            put(out, cap, n, nb_mod_in_expert(e, one ? NB_ROLE_GATE_UP : NB_ROLE_GATE));
        if (!one)
            put(out, cap, n, nb_mod_in_expert(e, NB_ROLE_UP));
        put(out, cap, n, nb_mod_in_expert(e, NB_ROLE_DOWN));
    }
}

size_t nb_layer_mods(const nb_plan *p, const nb_store *s, size_t layer, nb_mod *out, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_ops; i++) {
        const nb_op *op = &p->ops[i];

        if (!nb_plan_runs(p, op, layer))
            continue;
        if (op->kind == NB_OP_LINEAR && nb_plan_stored_at(p, layer, op->roles[0]) != layer)
            continue;
        for (size_t r = 0; op->kind == NB_OP_LINEAR && r < 3 && op->roles[r] != NB_ROLE_NONE; r++)
            put(out, cap, &n, op->roles[r]);
        if (op->kind == NB_OP_ABSORB)
            put(out, cap, &n, NB_MOD_KVB);
        if (op->kind == NB_OP_MOE)
            put_experts(p, s, layer, out, cap, &n);
    }
    return n;
}

/* ---- where they are stored ------------------------------------------------------------------------------------ */

/* The embedding where it serves as one. */
static nb_status find_head(const nb_plan *p, const nb_store *s, nb_source *out, nb_err *err)
{
    char head[80], name[192];

    *out = (nb_source){ 0 };
    nb_plan_head(p, head, sizeof head);
    snprintf(name, sizeof name, "%s.weight", head);
    if (!p->head[0])
        nb_plan_embed(p, name, sizeof name);
    out->w = nb_store_find(s, name);
    if (!out->w || out->w->rank != 2)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "the head, tensor \"%s\", is no matrix of this model", name);
    out->n = p->head[0] ? (size_t)out->w->shape[0] : nb_vocab_rows(p->cfg, out->w);
    out->k = (size_t)out->w->shape[1];
    snprintf(name, sizeof name, "%s.bias", head);
    out->bias = nb_store_find(s, name);
    return NB_OK;
}

static nb_status find_source(const nb_plan *p, const nb_store *s, size_t layer, nb_mod mod, nb_source *out, nb_err *err)
{
    nb_ffn_source ffn;
    nb_source parts[3];
    size_t part = 0, n;
    nb_status rc;

    if (mod < NB_ROLE_COUNT) {
        const size_t op = nb_mod_op(p, layer, mod);
        if (op == p->n_ops)
            return nb_fail(err, NB_EINTERNAL, "internal", "", "no op has linear %u", (unsigned)mod);
        rc = nb_source_op(p, s, NULL, layer, &p->ops[op], parts, &n, err);
        while (rc == NB_OK && p->ops[op].roles[part] != mod)
            part++;
        *out = parts[rc == NB_OK ? part : 0];
        return rc;
    }
    if (mod == NB_MOD_HEAD)
        return find_head(p, s, out, err);
    if (mod >= NB_MOD_KVB)
        return mod == NB_MOD_KVB      ? nb_latent_source(p, s, NULL, layer, out, err)
               : mod == NB_MOD_ROUTER ? nb_moe_router(p, s, layer, out, err)
                                      : nb_moe_gate(p, s, layer, out, err);
    rc = nb_moe_ffn(p, s, NULL, layer, nb_mod_expert(mod), &ffn, err);
    if (rc == NB_OK)
        *out = nb_mod_role(mod) == NB_ROLE_DOWN ? ffn.down : ffn.gu[nb_mod_role(mod) == NB_ROLE_UP && ffn.n_gu > 1];
    return rc;
}

/* One of many in a tensor is named as if it were stored alone, where readers look for it: beside the experts' tensor. */
static void name_part(const char *tensor, nb_mod mod, char *out, size_t cap)
{
    static const char *const leaves[] = { "gate_proj", "up_proj", "gate_up_proj", "down_proj" };
    const char *end = strstr(tensor, ".experts.");

    if (!end)
        end = strstr(tensor, ".input_linear");
    if (!end)
        end = strstr(tensor, ".output_linear");
    if (!end)
        end = tensor + strlen(tensor);
    snprintf(out, cap, "%.*s.experts.%u.%s", (int)(end - tensor), tensor, (unsigned)nb_mod_expert(mod),
             leaves[nb_mod_role(mod) - NB_ROLE_GATE]);
}

nb_status nb_stored_find(const nb_plan *p, const nb_store *s, size_t layer, nb_mod mod, nb_stored *out, nb_err *err)
{
    nb_source src = { 0 };
    nb_status rc = find_source(p, s, layer, mod, &src, err);
    const nb_tensor *t = src.mx ? src.mx : src.w;

    if (rc != NB_OK)
        return rc;
    *out = (nb_stored){ .w = t, .more = src.mx_scales, .bias = src.bias, .n = src.n, .k = src.k, .at = src.at, .rs = src.rs, .cs = src.cs };
    out->part = src.mx || t->rank > 2;
    out->bias_part = src.bias && src.bias->rank > 1;
    out->serves = mod == NB_MOD_HEAD && !p->head[0];
    if (out->serves)
        nb_plan_head(p, out->name, sizeof out->name);
    else if (out->part)
        name_part(t->name, mod, out->name, sizeof out->name);
    else
        snprintf(out->name, sizeof out->name, "%.*s", (int)(t->name_len - strlen(".weight")), t->name);
    return NB_OK;
}

/* ---- stored values -------------------------------------------------------------------------------------------- */

/* Rows of a part that lies scattered in its tensor. */
static bool strided_rows(nb_store *st, const nb_source *s, size_t n0, size_t rows, float *out, nb_err *err)
{
    float part[2 * NB_STRIP];

    if (s->cs == 1) {
        for (size_t r = 0; r < rows; r++)
            if (nb_store_read_f32(st, s->w, s->at + (n0 + r) * s->rs, s->k, out + r * s->k, err) != NB_OK)
                return false;
        return true;
    }
    for (size_t i = 0; i < s->k; i++) { /* turned: rows are rs (1 or 2) apart */
        if (nb_store_read_f32(st, s->w, s->at + n0 * s->rs + i * s->cs, (rows - 1) * s->rs + 1, part, err) != NB_OK)
            return false;
        for (size_t r = 0; r < rows; r++)
            out[r * s->k + i] = part[r * s->rs];
    }
    return true;
}

/* Rows of MXFP4 blocks as `type`, F32 or BF16: 32 codes of 4 bits and a power of two each. */
static void mx_rows(const nb_source *s, nb_dtype type, size_t n0, size_t rows, void *out)
{
    static const float values[16] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    const size_t n_blocks = s->k / 32, es = nb_dtype_info(type)->bits / 8;
    unsigned char *to = out;

    for (size_t r = 0; r < rows; r++) {
        const uint64_t row = s->at + (n0 + r) * s->rs;
        for (size_t b = 0; b < n_blocks; b++, to += 32 * es) {
            const unsigned char *codes = s->mx->data + (row * n_blocks + b) * 16;
            const int exponent = s->mx_scales->data[row * n_blocks + b];
            float v[32];
            for (size_t i = 0; i < 32; i++)
                v[i] = exponent == 255 ? NAN : ldexpf(values[i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15], exponent - 127);
            nb_from_f32(to, v, type, 32);
        }
    }
}

const void *nb_source_rows(nb_store *st, const nb_source *s, nb_dtype type, size_t n0, size_t rows, float *scratch, nb_err *err)
{
    const size_t es = nb_dtype_info(type)->bits / 8;
    const nb_tensor *t = s->w;
    const bool whole = s->rs == 0 || (s->cs == 1 && s->rs == s->k);

    if (s->mx) {
        mx_rows(s, type, n0, rows, scratch);
        return scratch;
    }
    if (!whole)
        return strided_rows(st, s, n0, rows, scratch, err) ? scratch : NULL;
    if (t->data && t->dtype == type) {
        const unsigned char *p = t->data + (s->at + n0 * s->k) * es;
        if ((uintptr_t)p % es == 0)
            return p;
        return memcpy(scratch, p, rows * s->k * es);
    }
    if (nb_store_read_f32(st, t, s->at + (uint64_t)n0 * s->k, (uint64_t)rows * s->k, scratch, err) != NB_OK)
        return NULL;
    return scratch; /* type is F32 whenever the stored one is not used */
}

nb_status nb_stored_read(const nb_plan *p, nb_store *s, size_t layer, nb_mod mod, float *w, nb_err *err)
{
    nb_source src;
    nb_status rc = find_source(p, s, layer, mod, &src, err);

    for (size_t n0 = 0; rc == NB_OK && n0 < src.n; n0 += NB_STRIP) {
        const size_t rows = src.n - n0 < NB_STRIP ? src.n - n0 : NB_STRIP;
        float *to = w + n0 * src.k;
        const void *at = nb_source_rows(s, &src, NB_DT_F32, n0, rows, to, err);

        if (!at)
            rc = err ? err->code : NB_EINTERNAL;
        else if (at != to)
            memcpy(to, at, rows * src.k * sizeof *to);
    }
    return rc;
}

const float *nb_stored_rows(nb_store *s, const nb_stored *at, size_t n0, size_t rows, float *scratch, nb_err *err)
{
    const nb_source src = { .w = at->more ? NULL : at->w,
                            .mx = at->more ? at->w : NULL,
                            .mx_scales = at->more,
                            .n = at->n,
                            .k = at->k,
                            .at = at->at,
                            .rs = at->rs,
                            .cs = at->cs };

    return nb_source_rows(s, &src, NB_DT_F32, n0, rows, scratch, err);
}

nb_status nb_stored_bias(const nb_plan *p, nb_store *s, size_t layer, nb_mod mod, float *b, nb_err *err)
{
    nb_source src;
    nb_status rc = find_source(p, s, layer, mod, &src, err);
    const size_t step = rc == NB_OK && src.bias_step ? (size_t)src.bias_step : 1;

    if (rc == NB_OK && step == 1)
        return nb_store_read_f32(s, src.bias, src.bias_at, src.n, b, err);
    for (size_t i = 0; rc == NB_OK && i < src.n; i++)
        rc = nb_store_read_f32(s, src.bias, src.bias_at + i * step, 1, b + i, err);
    return rc;
}
