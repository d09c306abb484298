/* Keys of Gemma 3n and Gemma 4: spec models-2026 S2.2, S3.2, S4.8. */
#include "model/arch_priv.h"
#include "model/config_read.h"

/* Width of the layers' own inputs; null or 0 switches them off where that is allowed. */
static nb_status get_branch(const nb_cfg_reader *r, nb_config *c, bool optional)
{
    static const char *const key[] = { "hidden_size_per_layer_input", NULL }, *const vocab[] = { "vocab_size_per_layer_input", NULL };
    const nb_json *v = nb_json_get(r->in, key[0]);
    nb_status rc;

    if (optional && v && (nb_json_is_null(v) || nb_json_int(v, -1) == 0))
        return NB_OK;
    rc = nb_cfg_size(r, key, 1 << 16, 256, &c->branch);
    if (rc == NB_OK)
        rc = nb_cfg_size(r, vocab, NB_CFG_MAX_DIM, 262144, &c->branch_vocab);
    return rc != NB_OK || c->branch * c->n_layers <= NB_CFG_MAX_DIM ? rc : nb_cfg_bad(r, key[0], v, "less");
}

/* Layers behind the first ones read keys of the last of those of their kind. */
static nb_status share_kv(const nb_cfg_reader *r, nb_config *c, nb_dims *dims, uint8_t *kinds, size_t dflt)
{
    const nb_json *v = nb_json_get(r->in, "num_kv_shared_layers");
    const int64_t n = !v ? (int64_t)dflt : nb_json_is_null(v) ? 0 : nb_json_int(v, -1);
    const size_t first = n >= 0 && (size_t)n <= c->n_layers ? c->n_layers - (size_t)n : SIZE_MAX;

    if (first == SIZE_MAX)
        return nb_cfg_bad(r, "num_kv_shared_layers", v, "a number of layers");
    for (size_t l = first; l < c->n_layers; l++) {
        const bool w = c->windowed && c->windowed[l];
        size_t from = first;
        while (from > 0 && (c->windowed && c->windowed[from - 1]) != w)
            from--;
        if (from == 0)
            return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                           "\"num_kv_shared_layers\" is %lld, but no layer before those is of the kind of layer %zu", (long long)n, l);
        dims[l].kv_from = from - 1;
        dims[l].kv_heads = dims[from - 1].kv_heads;
        kinds[l] = NB_MIX_SHARED;
    }
    return NB_OK;
}

static nb_status alloc_layers(const nb_cfg_reader *r, nb_config *c, nb_dims **dims, uint8_t **kinds)
{
    *dims = nb_arena_calloc(c->mem, c->n_layers, sizeof **dims);
    *kinds = nb_arena_calloc(c->mem, c->n_layers, 1);
    if (!*dims || !*kinds)
        return nb_enomem(r->err, "the layer kinds");
    for (size_t l = 0; l < c->n_layers; l++)
        (*dims)[l] = (nb_dims){ c->n_kv_heads, c->head_dim, c->head_dim, c->head_dim, c->d_ff, l };
    c->dims = *dims;
    c->mixer = *kinds;
    return NB_OK;
}

/* ---- Gemma 3n ------------------------------------------------------------------------------------------------- */

nb_status nb_cfg_gemma3n_sizes(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *v = nb_json_get(r->in, "intermediate_size");

    if (nb_json_typeof(v) == NB_JARR) { /* the layers come later */
        const int64_t n = nb_json_int(nb_json_at(v, 0), -1);
        if (n < 1 || n > NB_CFG_MAX_DIM)
            return nb_cfg_bad(r, "intermediate_size", v, "widths from 1");
        c->d_ff = (size_t)n;
    }
    return NB_OK;
}

/* The deviations above which a share of `p` lies below, of a normal distribution; by bisection. */
static double deviations(double p)
{
    double lo = -10, hi = 10;

    for (int i = 0; i < 100; i++) {
        const double m = (lo + hi) / 2;
        if (0.5 * (1 + erf(m / sqrt(2))) < p)
            lo = m;
        else
            hi = m;
    }
    return lo;
}

static nb_status get_sparsity(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *v = nb_json_get(r->in, "activation_sparsity_pattern");
    const bool list = nb_json_typeof(v) == NB_JARR;
    double *z = nb_arena_calloc(c->mem, c->n_layers, sizeof *z);
    bool any = false;

    if (!z)
        return nb_enomem(r->err, "the layer kinds");
    if (list && nb_json_len(v) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                       "\"activation_sparsity_pattern\" has %zu entries, expected one for each of %zu layers", nb_json_len(v), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_json *one = list ? nb_json_at(v, l) : v;
        const double p = nb_json_is_null(v) ? (c->n_layers > 10 && l < 10 ? 0.95 : 0) : nb_json_num(one, NAN);
        if (!(p >= 0 && p < 1))
            return nb_cfg_bad(r, "activation_sparsity_pattern", one, "a share from 0 to below 1");
        z[l] = p > 0 ? deviations(p) : 0;
        any = any || p > 0;
    }
    c->sparsity = any ? z : NULL;
    return NB_OK;
}

nb_status nb_cfg_gemma3n(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const streams[] = { "altup_num_inputs", NULL }, *const rank[] = { "laurel_rank", NULL };
    const nb_json *active = nb_json_get(r->in, "altup_active_idx");
    const int64_t at = nb_json_is_null(active) ? 0 : nb_json_int(active, -1);
    nb_status rc;

    c->attn_scale = 1;
    if (!nb_json_get(r->in, "final_logit_softcapping"))
        c->logit_cap = 30;
    if ((rc = get_branch(r, c, false)) != NB_OK || (rc = nb_cfg_size(r, streams, 8, 4, &c->n_streams)) != NB_OK ||
        (rc = nb_cfg_size(r, rank, NB_CFG_MAX_DIM, 64, &c->side_rank)) != NB_OK ||
        (rc = nb_cfg_flag(r, "altup_correct_scale", true, &c->scale_stream)) != NB_OK || (rc = get_sparsity(r, c)) != NB_OK)
        return rc;
    c->active = (size_t)at;
    return at >= 0 && c->active < c->n_streams ? NB_OK : nb_cfg_bad(r, "altup_active_idx", active, "a number below altup_num_inputs");
}

nb_status nb_cfg_gemma3n_layers(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *ff = nb_json_get(r->in, "intermediate_size");
    uint8_t *kinds;
    nb_dims *dims;
    nb_status rc = alloc_layers(r, c, &dims, &kinds);

    if (nb_json_typeof(ff) == NB_JARR && nb_json_len(ff) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"intermediate_size\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(ff), c->n_layers);
    for (size_t l = 0; rc == NB_OK && l < nb_json_len(ff); l++) {
        const int64_t n = nb_json_int(nb_json_at(ff, l), -1);
        if (n < 1 || n > NB_CFG_MAX_DIM)
            return nb_cfg_bad(r, "intermediate_size", nb_json_at(ff, l), "widths from 1");
        dims[l].d_ff = (size_t)n;
    }
    return rc != NB_OK ? rc : share_kv(r, c, dims, kinds, 15);
}

/* ---- Gemma 4 -------------------------------------------------------------------------------------------------- */

/* A member of per_layer_config for a layer, or the model's value. */
static nb_status own_size(const nb_cfg_reader *r, size_t layer, const char *key, size_t dflt, size_t *out)
{
    const char *const keys[] = { key, NULL };
    char name[24];
    const nb_json *all = nb_json_get(r->in, "per_layer_config");

    snprintf(name, sizeof name, "%zu", layer);
    const nb_json *own = nb_json_get(all, name);
    return nb_cfg_size(&(nb_cfg_reader){ own, own, r->err }, keys, NB_CFG_MAX_COUNT, dflt, out);
}

/* Head size of full layers: a key of its own, or members of per_layer_config, all alike. */
static nb_status get_global(const nb_cfg_reader *r, nb_config *c)
{
    static const char *const key[] = { "global_head_dim", NULL };
    const nb_json *all = nb_json_get(r->in, "per_layer_config");
    size_t n, found = 0;
    nb_status rc = NB_OK;

    if (nb_json_typeof(all) != NB_JOBJ)
        return nb_cfg_size(r, key, NB_CFG_MAX_COUNT, 512, &c->global_head_dim);
    for (size_t l = 0; l < c->n_layers && rc == NB_OK; l++) {
        rc = own_size(r, l, "head_dim", c->head_dim, &n);
        if (rc == NB_OK && n != c->head_dim && found && n != found)
            rc = nb_cfg_unsupported(r, "per_layer_config", all, "one head_dim for all full layers");
        found = n != c->head_dim ? n : found;
    }
    c->global_head_dim = found ? found : c->head_dim;
    return rc;
}

nb_status nb_cfg_gemma4(const nb_cfg_reader *r, nb_config *c)
{
    bool moe;
    nb_status rc;

    c->attn_scale = 1;
    if ((rc = nb_cfg_flag(r, "enable_moe_block", false, &moe)) != NB_OK || (rc = get_branch(r, c, true)) != NB_OK)
        return rc;
    if (!moe)
        c->moe = (nb_moe_cfg){ .router = NB_ROUTE_NONE };
    else if (c->moe.router == NB_ROUTE_NONE)
        return nb_cfg_bad(r, "num_experts", nb_json_get(r->in, "num_experts"), "the number of experts");
    return get_global(r, c);
}

nb_status nb_cfg_gemma4_layers(const nb_cfg_reader *r, nb_config *c)
{
    const bool listed = nb_json_typeof(nb_json_get(r->in, "per_layer_config")) == NB_JOBJ;
    const nb_json *global = nb_json_get(r->in, "num_global_key_value_heads");
    bool same, wide;
    size_t kv = c->n_kv_heads;
    uint8_t *kinds;
    nb_dims *dims;
    nb_status rc = alloc_layers(r, c, &dims, &kinds);

    if (rc != NB_OK || (rc = nb_cfg_flag(r, "attention_k_eq_v", false, &same)) != NB_OK ||
        (rc = nb_cfg_flag(r, "use_double_wide_mlp", true, &wide)) != NB_OK)
        return rc;
    if (same && !nb_json_is_null(global)) {
        static const char *const key[] = { "num_global_key_value_heads", NULL };
        if ((rc = nb_cfg_size(r, key, NB_CFG_MAX_COUNT, 0, &kv)) != NB_OK)
            return rc;
    }
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool full = !(c->windowed && c->windowed[l]);
        nb_dims *d = &dims[l];
        d->kv_heads = full ? kv : c->n_kv_heads;
        d->head_dim = full ? c->global_head_dim : c->head_dim;
        if (listed && ((rc = own_size(r, l, "num_key_value_heads", c->n_kv_heads, &d->kv_heads)) != NB_OK ||
                       (rc = own_size(r, l, "head_dim", c->head_dim, &d->head_dim)) != NB_OK))
            return rc;
        if (c->n_heads % d->kv_heads != 0 || d->head_dim != (full ? c->global_head_dim : c->head_dim))
            return nb_fail(r->err, NB_EFORMAT, "cfg.value", "",
                           "layer %zu has %zu kv heads of %zu components, expected a divisor of %zu heads", l, d->kv_heads, d->head_dim,
                           c->n_heads);
        d->value_dim = d->kv_dim = d->head_dim;
        kinds[l] = (uint8_t)(full && same ? NB_MIX_KEYVAL : NB_MIX_ATTN);
    }
    if ((rc = share_kv(r, c, dims, kinds, 0)) != NB_OK)
        return rc;
    for (size_t l = 0; l < c->n_layers; l++)
        dims[l].d_ff <<= kinds[l] == NB_MIX_SHARED && wide;
    return NB_OK;
}
