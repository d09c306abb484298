/* Where the weights of experts come from: stored one by one, as one tensor of three dimensions, or as MXFP4 blocks, under
 * the names of several programs. Source: spec models 4.2, 4.3. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

static const char *const blocks[] = { "mlp.", "block_sparse_moe.", "feed_forward.", "mixer.", "ffn.", "" }; /* gemma4: beside the MLP */
static const char *const experts_of[][3] = { { "gate_proj", "up_proj", "down_proj" }, { "w1", "w3", "w2" } };

static bool exists(const nb_store *s, const nb_scan *sc, const char *prefix)
{
    char name[320];

    snprintf(name, sizeof name, "%s.weight", prefix);
    return nb_store_find(s, name) || (sc && nb_scan_find(sc, prefix));
}

static const nb_tensor *find(const nb_store *s, const char *layer, const char *block, const char *leaf)
{
    char name[256];

    snprintf(name, sizeof name, "%s%s%s", layer, block, leaf);
    return nb_store_find(s, name);
}

/* Three linears under PREFIX + names; plain: without the first. */
static nb_status find_apart(const nb_store *s, const nb_scan *sc, const char *prefix, const char *const names[3], bool plain, size_t ff,
                            size_t d, nb_ffn_source *out, nb_err *err)
{
    char name[256];
    nb_status rc = NB_OK;

    for (size_t i = plain; i < 2 && rc == NB_OK; i++) {
        snprintf(name, sizeof name, "%s.%s", prefix, names[i]);
        rc = nb_source_find(s, sc, name, ff, d, &out->gu[out->n_gu++], err);
    }
    snprintf(name, sizeof name, "%s.%s", prefix, names[2]);
    return rc != NB_OK ? rc : nb_source_find(s, sc, name, d, ff, &out->down, err);
}

static nb_status shape_of(const nb_tensor *t, unsigned rank, const uint64_t *want, nb_err *err)
{
    char got[128], need[128];

    if (t->rank == rank && memcmp(t->shape, want, rank * sizeof *want) == 0)
        return NB_OK;
    return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs %s", t->name,
                   nb_shape_str(got, sizeof got, t->shape, t->rank), nb_shape_str(need, sizeof need, want, rank));
}

/* Matrix e of [E][n][k], rows row0, row0 + step, ...; `turned`: of [E][k][n]. total: n of the tensor. */
static nb_source slice(const nb_tensor *t, bool turned, size_t e, size_t row0, size_t step, size_t n, size_t total, size_t k)
{
    nb_source s = { .w = t, .n = n, .k = k };

    s.at = (uint64_t)e * total * k + (uint64_t)row0 * (turned ? 1 : k);
    s.rs = turned ? step : (uint64_t)step * k;
    s.cs = turned ? total : 1;
    return s;
}

static nb_status set_bias(nb_source *s, const nb_tensor *t, size_t e, size_t row0, size_t step, size_t total, size_t n_experts, nb_err *err)
{
    const uint64_t want[] = { n_experts, total };

    if (!t)
        return NB_OK;
    s->bias = t;
    s->bias_at = (uint64_t)e * total + row0;
    s->bias_step = step;
    return shape_of(t, 2, want, err);
}

/* gate_up and down of all experts in one tensor each. Interleaved ones alternate gate and up, and are stored turned. */
static nb_status find_fused(const nb_plan *p, const nb_tensor *gu, const nb_tensor *down, size_t e, nb_ffn_source *out, nb_err *err)
{
    const nb_moe_cfg *m = &p->cfg->moe;
    const size_t d = p->cfg->d_model, ff = m->ff;
    const bool woven = m->limit > 0, turned = woven || m->router == NB_ROUTE_LLAMA4;
    const uint64_t gu_shape[] = { m->n_experts, turned ? d : 2 * ff, turned ? 2 * ff : d };
    const uint64_t down_shape[] = { m->n_experts, turned ? ff : d, turned ? d : ff };
    nb_status rc;

    if (!down)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "the experts' down projection is missing beside \"%s\"", gu->name);
    if ((rc = shape_of(gu, 3, gu_shape, err)) != NB_OK || (rc = shape_of(down, 3, down_shape, err)) != NB_OK)
        return rc;
    out->n_gu = 2;
    out->gu[0] = slice(gu, turned, e, 0, woven ? 2 : 1, ff, 2 * ff, d);
    out->gu[1] = slice(gu, turned, e, woven ? 1 : ff, woven ? 2 : 1, ff, 2 * ff, d);
    out->down = slice(down, turned, e, 0, 1, d, d, ff);
    return NB_OK;
}

static nb_status find_mx(const nb_plan *p, const nb_store *s, const char *layer, const char *block, const char *stem, size_t n, size_t k,
                         nb_source *out, nb_err *err)
{
    const size_t E = p->cfg->moe.n_experts;
    const uint64_t shape[] = { E, n, k / 32, 16 };
    char leaf[64];
    nb_status rc;

    snprintf(leaf, sizeof leaf, "%s_blocks", stem);
    out->mx = find(s, layer, block, leaf);
    snprintf(leaf, sizeof leaf, "%s_scales", stem);
    out->mx_scales = find(s, layer, block, leaf);
    if (!out->mx || !out->mx_scales)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "MXFP4 blocks or scales of \"%s%s%s\" are missing", layer, block, stem);
    if (k % 32 != 0 || out->mx->dtype != NB_DT_U8 || out->mx_scales->dtype != NB_DT_U8 || !out->mx->data || !out->mx_scales->data)
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.unsupported", "", "\"%s\": MXFP4 needs byte tensors and rows of whole 32s",
                       out->mx->name);
    rc = shape_of(out->mx, 4, shape, err);
    return rc != NB_OK ? rc : shape_of(out->mx_scales, 3, shape, err);
}

static nb_status find_mx_expert(const nb_plan *p, const nb_store *s, const char *layer, const char *block, size_t e, nb_ffn_source *out,
                                nb_err *err)
{
    const size_t d = p->cfg->d_model, ff = p->cfg->moe.ff;
    nb_status rc;

    out->n_gu = 2;
    for (size_t i = 0; i < 2; i++) {
        out->gu[i] = (nb_source){ .n = ff, .k = d, .at = (uint64_t)e * 2 * ff + i, .rs = 2 };
        rc = find_mx(p, s, layer, block, "experts.gate_up_proj", 2 * ff, d, &out->gu[i], err);
        if (rc != NB_OK)
            return rc;
    }
    out->down = (nb_source){ .n = d, .k = ff, .at = (uint64_t)e * d, .rs = 1 };
    return find_mx(p, s, layer, block, "experts.down_proj", d, ff, &out->down, err);
}

static nb_status find_biases(const nb_plan *p, const nb_store *s, const char *layer, const char *block, size_t e, nb_ffn_source *out,
                             nb_err *err)
{
    const nb_tensor *gu = find(s, layer, block, "experts.gate_up_proj_bias"), *down = find(s, layer, block, "experts.down_proj_bias");
    const size_t E = p->cfg->moe.n_experts, ff = p->cfg->moe.ff, d = p->cfg->d_model;
    const bool woven = p->cfg->moe.limit > 0;
    nb_status rc = set_bias(&out->gu[0], gu, e, 0, woven ? 2 : 1, 2 * ff, E, err);

    if (rc == NB_OK)
        rc = set_bias(&out->gu[1], gu, e, woven ? 1 : ff, woven ? 2 : 1, 2 * ff, E, err);
    return rc != NB_OK ? rc : set_bias(&out->down, down, e, 0, 1, d, E, err);
}

static nb_status find_expert(const nb_plan *p, const nb_store *s, const nb_scan *sc, const char *layer, size_t e, nb_ffn_source *out,
                             nb_err *err)
{
    const bool plain = p->cfg->moe.plain;
    const size_t d = p->cfg->moe.latent ? p->cfg->moe.latent : p->cfg->d_model, ff = p->cfg->moe.ff;
    char prefix[256], name[288];
    nb_status rc;

    snprintf(name, sizeof name, "%sblock_sparse_moe.input_linear.%zu.linear", layer, e); /* GPTQModel on Granite */
    if (exists(s, sc, name)) {
        out->n_gu = 1;
        rc = nb_source_find(s, sc, name, 2 * ff, d, &out->gu[0], err);
        snprintf(name, sizeof name, "%sblock_sparse_moe.output_linear.%zu.linear", layer, e);
        return rc != NB_OK ? rc : nb_source_find(s, sc, name, d, ff, &out->down, err);
    }
    for (size_t b = 0; b < NB_LEN(blocks); b++) {
        const nb_tensor *gu = find(s, layer, blocks[b], "experts.gate_up_proj"), *old = find(s, layer, blocks[b], "input_linear.weight");

        snprintf(prefix, sizeof prefix, "%s%sexperts.%zu", layer, blocks[b], e);
        for (size_t i = 0; i < NB_LEN(experts_of); i++) {
            snprintf(name, sizeof name, "%s.%s", prefix, experts_of[i][plain]);
            if (exists(s, sc, name))
                return find_apart(s, sc, prefix, experts_of[i], plain, ff, d, out, err);
        }
        if (old)
            return find_fused(p, old, find(s, layer, blocks[b], "output_linear.weight"), e, out, err);
        if (!gu && !find(s, layer, blocks[b], "experts.gate_up_proj_blocks"))
            continue;
        rc = gu ? find_fused(p, gu, find(s, layer, blocks[b], "experts.down_proj"), e, out, err)
                : find_mx_expert(p, s, layer, blocks[b], e, out, err);
        return rc != NB_OK ? rc : find_biases(p, s, layer, blocks[b], e, out, err);
    }
    return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "expert %zu of \"%smlp\" has no tensors", e, layer);
}

/* The shared expert: three linears, or two with gate and up as one. */
static nb_status find_shared(const nb_plan *p, const nb_store *s, const nb_scan *sc, const char *layer, nb_ffn_source *out, nb_err *err)
{
    static const char *const names[] = { "mlp.shared_experts",   "mlp.shared_expert",          "shared_mlp",
                                         "mlp.shared_mlp",       "feed_forward.shared_expert", "block_sparse_moe.shared_experts",
                                         "mixer.shared_experts", "ffn.shared_experts" };
    const size_t d = p->cfg->d_model, ff = p->cfg->moe.shared_ff;
    char prefix[256], name[288];
    nb_status rc;

    for (size_t i = 0; i < NB_LEN(names); i++) {
        snprintf(prefix, sizeof prefix, "%s%s", layer, names[i]);
        for (size_t e = 0; e < NB_LEN(experts_of); e++) {
            snprintf(name, sizeof name, "%s.%s", prefix, experts_of[e][p->cfg->moe.plain]);
            if (exists(s, sc, name))
                return find_apart(s, sc, prefix, experts_of[e], p->cfg->moe.plain, ff, d, out, err);
        }
        snprintf(name, sizeof name, "%s.input_linear", prefix);
        if (!exists(s, sc, name))
            continue;
        out->n_gu = 1;
        rc = nb_source_find(s, sc, name, 2 * ff, d, &out->gu[0], err);
        snprintf(name, sizeof name, "%s.output_linear", prefix);
        return rc != NB_OK ? rc : nb_source_find(s, sc, name, d, ff, &out->down, err);
    }
    return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "the shared expert of \"%smlp\" has no tensors", layer);
}

nb_status nb_moe_ffn(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, size_t e, nb_ffn_source *out, nb_err *err)
{
    char prefix[128];

    *out = (nb_ffn_source){ .n_gu = 0 };
    nb_plan_layer(p, layer, prefix, sizeof prefix);
    return e == p->cfg->moe.n_experts ? find_shared(p, s, sc, prefix, out, err) : find_expert(p, s, sc, prefix, e, out, err);
}

nb_status nb_moe_router(const nb_plan *p, const nb_store *s, size_t layer, nb_source *out, nb_err *err)
{
    static const char *const names[] = { "mlp.gate",
                                         "mlp.router",
                                         "block_sparse_moe.gate",
                                         "block_sparse_moe.router.layer",
                                         "mlp.router.gate",
                                         "mlp.gate.wg",
                                         "feed_forward.router",
                                         "feed_forward.gate",
                                         "mixer.gate",
                                         "mlp.router.classifier",
                                         "router.proj",
                                         "ffn.gate" };
    char prefix[128], name[192];

    nb_plan_layer(p, layer, prefix, sizeof prefix);
    for (size_t i = 0; i < NB_LEN(names); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        if (exists(s, NULL, name)) {
            const nb_status rc = nb_source_find(s, NULL, name, p->cfg->moe.n_experts + p->cfg->moe.n_identity, p->cfg->d_model, out, err);
            if (p->cfg->moe.router == NB_ROUTE_SQRT) /* what is called its bias corrects the choice only */
                out->bias = NULL;
            return rc;
        }
    }
    return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%smlp.gate.weight\" is missing", prefix);
}

nb_status nb_moe_latent(const nb_plan *p, const nb_store *s, const nb_scan *sc, size_t layer, bool leave, nb_source *out, nb_err *err)
{
    const size_t d = p->cfg->d_model, latent = p->cfg->moe.latent;
    char prefix[128], name[192];

    snprintf(name, sizeof name, "%smixer.fc%d_latent_proj", nb_plan_layer(p, layer, prefix, sizeof prefix), 1 + leave);
    return nb_source_find(s, sc, name, leave ? d : latent, leave ? latent : d, out, err);
}

nb_status nb_moe_gate(const nb_plan *p, const nb_store *s, size_t layer, nb_source *out, nb_err *err)
{
    char prefix[128], name[192];

    *out = (nb_source){ .n = 1 };
    if (p->cfg->arch->moe.shared != NB_SHARED_GATED)
        return NB_OK;
    snprintf(name, sizeof name, "%smlp.shared_expert_gate", nb_plan_layer(p, layer, prefix, sizeof prefix));
    return nb_source_find(s, NULL, name, 1, p->cfg->d_model, out, err);
}

const nb_tensor *nb_moe_correction(const nb_plan *p, const nb_store *s, size_t layer)
{
    static const char *const names[] = { "mlp.gate.e_score_correction_bias",
                                         "mlp.e_score_correction_bias",
                                         "mlp.moe_statics.e_score_correction_bias",
                                         "mlp.router.e_score_correction_bias",
                                         "mlp.expert_bias",
                                         "feed_forward.expert_bias",
                                         "block_sparse_moe.e_score_correction_bias",
                                         "block_sparse_moe.gate.e_score_correction_bias",
                                         "mixer.gate.e_score_correction_bias",
                                         "ffn.gate.bias" };
    const nb_router router = p->cfg->moe.router;
    const nb_tensor *t = NULL;
    char prefix[128], name[192];

    if (router != NB_ROUTE_SIGMOID && router != NB_ROUTE_SQRT &&
        (router < NB_ROUTE_SIGMOID_M2 || router == NB_ROUTE_GROUPS || router >= NB_ROUTE_LLAMA4))
        return NULL;
    nb_plan_layer(p, layer, prefix, sizeof prefix);
    for (size_t i = 0; i < NB_LEN(names) && !t; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        t = nb_store_find(s, name);
    }
    return t;
}
