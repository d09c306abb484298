/* check_names.c - what the architecture needs against what is stored (formats 7.3, SHP-013, SHP-014). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/strmap.h"
#include "job/check_priv.h"

typedef struct names_job {
    nb_checker *c;
    nb_strmap *used; /* tensors that the architecture asked for */
    nb_err *err;
} names_job;

static nb_status use(const names_job *j, const nb_tensor *t)
{
    if (t && nb_strmap_put(j->used, t->name, t->name_len, 1, NULL) != NB_OK)
        return nb_enomem(j->err, "the list of used tensors");
    return NB_OK;
}

static const nb_tensor *find2(const nb_store *s, const char *a, const char *b)
{
    char name[384];

    snprintf(name, sizeof name, "%s%s", a, b);
    return nb_store_find(s, name);
}

static const char *arch_name(const nb_checker *c)
{
    return c->cfg.class_name[0] ? c->cfg.class_name : c->cfg.model_type;
}

/* Is part of a broken linear here (scan left it out and has told why)? */
static bool any_packed(const nb_store *s, const char *name)
{
    return find2(s, name, ".qweight") || find2(s, name, ".qzeros") || find2(s, name, ".scales") || find2(s, name, ".weight_packed") ||
           find2(s, name, ".weight_scale") || find2(s, name, ".B");
}

/* A matrix stored in another cut: q, k, v as one, or gate and up. */
static const char *fused_name(const nb_store *s, const char *name, char *out, size_t cap)
{
    static const char *const pairs[][2] = { { "q_proj", "qkv_proj" },
                                            { "k_proj", "qkv_proj" },
                                            { "v_proj", "qkv_proj" },
                                            { "gate_proj", "gate_up_proj" },
                                            { "up_proj", "gate_up_proj" } };
    const char *leaf = strrchr(name, '.');

    for (size_t i = 0; leaf && i < NB_LEN(pairs); i++) {
        if (strcmp(leaf + 1, pairs[i][0]) != 0)
            continue;
        snprintf(out, cap, "%.*s.%s", (int)(leaf - name), name, pairs[i][1]);
        if (find2(s, out, ".weight") || find2(s, out, ".qweight") || find2(s, out, ".weight_packed"))
            return out;
    }
    return NULL;
}

/* One vector or plain matrix of the architecture. rows 0: a vector of cols. */
static nb_status need_plain(const names_job *j, const char *name, size_t rows, size_t cols)
{
    const nb_tensor *t = nb_store_find(j->c->store, name);
    const uint64_t want[2] = { rows ? rows : cols, cols };
    char a[64], b[64], module[256];
    const char *dot = strrchr(name, '.');

    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    if (!t)
        return nb_rule_hit(j->c->report, j->err, "NAM-003", "", module, "%s is required by %s but has no tensors.", module,
                           arch_name(j->c));
    if (t->rank != (rows ? 2u : 1u) || t->shape[0] != want[0] || (rows && t->shape[1] != want[1])) {
        nb_status rc = nb_rule_hit(j->c->report, j->err, "SHP-013", t->file, module, "%s is %s, but config.json implies %s.", module,
                                   nb_shape_str(a, sizeof a, t->shape, t->rank), nb_shape_str(b, sizeof b, want, rows ? 2 : 1));
        if (rc != NB_OK)
            return rc;
    }
    return use(j, t);
}

/* Values of a mixer, whatever their shape. */
static nb_status need_values(const names_job *j, const char *name, size_t n)
{
    const nb_tensor *t = nb_store_find(j->c->store, name);
    uint64_t total = 1;
    char a[64];

    if (!t)
        return nb_rule_hit(j->c->report, j->err, "NAM-003", "", name, "%s is required by %s but has no tensors.", name, arch_name(j->c));
    for (unsigned i = 0; i < t->rank; i++)
        total *= t->shape[i];
    if (total != n) {
        nb_status rc = nb_rule_hit(j->c->report, j->err, "SHP-013", t->file, name, "%s is %s, but config.json implies %zu values.", name,
                                   nb_shape_str(a, sizeof a, t->shape, t->rank), n);
        if (rc != NB_OK)
            return rc;
    }
    return use(j, t);
}

/* Rates, decays and time steps of mixers: programs that quantize leave them alone without saying so. */
static bool never_packed(nb_role role)
{
    return (role > NB_ROLE_MIX_Z && role < NB_ROLE_MIX_OUT) || role == NB_ROLE_OGATE || role >= NB_ROLE_ADAPT_Q_IN;
}

static nb_status check_size(const names_job *j, const char *file, const char *name, uint64_t n, uint64_t k, size_t want_n, size_t want_k)
{
    if (n == want_n && k == want_k)
        return NB_OK;
    return nb_rule_hit(j->c->report, j->err, "SHP-013", file, name, "%s is %" PRIu64 "x%" PRIu64 ", but config.json implies %zux%zu.", name,
                       n, k, want_n, want_k);
}

/* Legal shapes that other consumers refuse (formats 3.1). */
static nb_status check_friendly(const names_job *j, const nb_linear *lin, const char *name)
{
    if (lin->spec.bits != 4)
        return NB_OK;
    if (lin->n % 32 != 0 && strcmp(lin->format->method, "awq") == 0)
        return nb_rule_hit(j->c->report, j->err, "SHP-014", lin->parts[0]->file, name, "%s: works here; AutoAWQ needs outputs %% 32 = 0.",
                           name);
    if (lin->n % 64 != 0 || lin->k % 128 != 0)
        return nb_rule_hit(j->c->report, j->err, "SHP-014", lin->parts[0]->file, name,
                           "%s: works here; the Marlin kernel of vLLM needs outputs %% 64 = 0 and inputs %% 128 = 0.", name);
    return NB_OK;
}

/* A plain linear of a quantized model: some entry of the config must say so. */
static nb_status check_excluded(const names_job *j, const nb_tensor *w, const char *name)
{
    const nb_checker *c = j->c;
    const char *field = "modules_to_not_convert", *e = NULL;
    nb_qspec spec;
    bool whole;
    nb_status rc;

    if (!c->scan.n_linears || !c->use_skips || nb_qconfig_skip(&c->qcfg, name, &whole))
        return NB_OK;
    if (c->rules) {
        if ((rc = nb_qrules_spec(c->rules, name, &spec, &e, j->err)) != NB_OK || e)
            return rc;
        field = nb_qrules_field(c->rules) ? nb_qrules_field(c->rules) : field;
    }
    return nb_rule_hit(c->report, j->err, "CFG-015", w->file, name,
                       "%s is not quantized in the files, but no %s entry says so. Loaders that trust the config will look for %s.%s.",
                       name, field, name, c->scan.format->parts[0].suffix);
}

/* body: a linear of a decoder layer, which quantizers pack unless told not to. */
static nb_status need_linear(const names_job *j, const char *name, size_t want_n, size_t want_k, bool body)
{
    const nb_linear *lin = nb_scan_find(&j->c->scan, name);
    const nb_tensor *w = find2(j->c->store, name, ".weight");
    char other[320];
    nb_status rc;

    if ((rc = use(j, w)) != NB_OK || (rc = use(j, find2(j->c->store, name, ".bias"))) != NB_OK)
        return rc;
    for (size_t p = 0; lin && p < NB_MAX_PARTS; p++)
        if ((rc = use(j, lin->parts[p])) != NB_OK)
            return rc;
    if (lin) {
        if ((rc = check_size(j, lin->parts[0]->file, name, lin->n, lin->k, want_n, want_k)) != NB_OK)
            return rc;
        return check_friendly(j, lin, name);
    }
    if (w && !any_packed(j->c->store, name)) {
        if (w->rank != 2)
            return nb_rule_hit(j->c->report, j->err, "SHP-015", w->file, name, "weight has %u dimensions, expected 2.", w->rank);
        const size_t n = body && j->c->cfg.transposed ? want_k : want_n, k = body && j->c->cfg.transposed ? want_n : want_k;
        if ((rc = check_size(j, w->file, name, w->shape[0], w->shape[1], n, k)) != NB_OK)
            return rc;
        return body ? check_excluded(j, w, name) : NB_OK;
    }
    if (any_packed(j->c->store, name)) /* broken; told by the scan */
        return NB_OK;
    if (fused_name(j->c->store, name, other, sizeof other))
        return nb_rule_hit(j->c->report, j->err, "NAM-005", "", name,
                           "%s expects %s, files contain %s. Fused and split projections are different tensors.", arch_name(j->c), name,
                           other);
    return nb_rule_hit(j->c->report, j->err, "NAM-003", "", name, "%s is required by %s but has no tensors.", name, arch_name(j->c));
}

/* Linears that other engines run as one matrix: all alike, or NAM-006. */
static nb_status check_fused(const names_job *j, size_t layer, const nb_op *op)
{
    char name[320], detail[160] = "";
    const nb_linear *first = NULL;
    bool differs = false;
    size_t n = 0;

    for (size_t i = 0; i < 3 && op->roles[i] != NB_ROLE_NONE; i++, n++) {
        const nb_linear *lin = nb_scan_find(&j->c->scan, nb_plan_linear(&j->c->plan, layer, op->roles[i], name, sizeof name));
        char one[48] = "16 bit";
        if (i == 0)
            first = lin;
        else if (!lin != !first || (lin && (lin->spec.bits != first->spec.bits || lin->g != first->g)))
            differs = true;
        if (lin)
            snprintf(one, sizeof one, "%u bit group %zu", lin->spec.bits, lin->g);
        snprintf(detail + strlen(detail), sizeof detail - strlen(detail), "%s%s %s", i ? ", " : "", strrchr(name, '.') + 1, one);
    }
    if (n < 2 || !differs || op->roles[0] > NB_ROLE_DOWN)
        return NB_OK;
    snprintf(name, sizeof name, "%slayers.%zu", j->c->plan.prefix, layer);
    return nb_rule_hit(j->c->report, j->err, "NAM-006", "", name,
                       "q, k and v (or gate and up) of layer %zu are not quantized alike (%s); vLLM fuses them and will refuse to load.",
                       layer, detail);
}

static nb_status check_layer(const names_job *j, size_t layer)
{
    const nb_plan *p = &j->c->plan;
    char name[320];
    nb_status rc = NB_OK;

    if (p->cfg->skip && p->cfg->skip[layer])
        return NB_OK;
    for (int v = 0; v < NB_VEC_COUNT; v++) {
        const size_t size = nb_plan_has_vec(p, layer, (nb_vec)v) ? nb_plan_vec_size_at(p, layer, (nb_vec)v) : 0,
                     parts = nb_plan_vec_parts(p, (nb_vec)v);
        const bool rows = p->cfg->qk == NB_QK_PER_HEAD && parts == 1 && (v == NB_VEC_QN || v == NB_VEC_KN); /* a row a head */
        for (size_t i = 0; rc == NB_OK && size > 0 && i < parts; i++)
            rc = v >= NB_VEC_CONV ? need_values(j, nb_plan_vec(p, layer, (nb_vec)v, name, sizeof name), size)
                                  : need_plain(j, nb_plan_vec_part(p, layer, (nb_vec)v, i, name, sizeof name),
                                               rows ? size / p->cfg->head_dim : 0, rows ? p->cfg->head_dim : size / parts);
    }
    for (size_t i = 0; rc == NB_OK && i < p->n_ops; i++) {
        const nb_op *op = &p->ops[i];
        if (op->kind == NB_OP_ABSORB && nb_plan_runs(p, op, layer)) { /* kv_b */
            const nb_mla_cfg *m = &p->cfg->mla;
            nb_plan_kv_b(p, layer, name, sizeof name);
            rc = need_linear(j, name, p->cfg->n_heads * (m->nope + m->value), m->kv_rank, true);
        }
        if (op->kind == NB_OP_GROUPS) {
            nb_plan_layer(p, layer, name, sizeof name);
            strncat(name, "attn.wo_a.weight", sizeof name - strlen(name) - 1);
            rc = need_plain(j, name, p->cfg->v4.groups * p->cfg->v4.rank, p->cfg->n_heads * p->cfg->head_dim / p->cfg->v4.groups);
        }
        if (op->kind != NB_OP_LINEAR || !nb_plan_runs(p, op, layer))
            continue;
        for (size_t r = 0; rc == NB_OK && r < 3 && op->roles[r] != NB_ROLE_NONE; r++) {
            size_t n, k;
            nb_plan_linear_size_at(p, layer, op->roles[r], &n, &k);
            rc = need_linear(j, nb_plan_linear(p, layer, op->roles[r], name, sizeof name), n, k, !never_packed(op->roles[r]));
        }
        if (rc == NB_OK)
            rc = check_fused(j, layer, op);
    }
    return rc;
}

/* Experts and their routers, under whatever names: the model finds them itself. */
static bool of_experts(const nb_tensor *t, const nb_plan *p)
{
    static const char *const within[] = { ".mlp.",   ".block_sparse_moe.", ".shared_mlp.", ".feed_forward.",
                                          ".mixer.", ".experts.",          ".router.",     ".ffn." };
    bool found = false;

    for (size_t i = 0; i < NB_LEN(within) && p->cfg->moe.sparse; i++)
        found = found || strstr(t->name, within[i]);
    return found;
}

/* Tensors that programs write and nobody reads (models 4). */
static bool ignored(const nb_tensor *t, const nb_plan *p)
{
    const size_t n_layers = p->cfg->n_layers;
    static const char *const ends[] = { ".rotary_emb.inv_freq", ".attn.bias",   ".masked_bias", ".k_scale",       ".v_scale",
                                        ".slope_rate",          ".query_decay", ".key_decay",   ".diagonal_decay" };
    static const char *const others[] = { "mtp.",
                                          "model.mtp.",
                                          "model.visual.",
                                          "model.vision_tower.",
                                          "model.audio_tower.",
                                          "model.embed_vision.",
                                          "model.embed_audio.",
                                          "visual.",
                                          "vision_tower.",
                                          "multi_modal_projector." };
    const char *at = strstr(t->name, "layers.");
    uint64_t layer;

    for (size_t i = 0; i < NB_LEN(others); i++)
        if (strncmp(t->name, others[i], strlen(others[i])) == 0)
            return true;
    for (size_t i = 0; i < NB_LEN(ends); i++) {
        const size_t n = strlen(ends[i]);
        if (t->name_len >= n && strcmp(t->name + t->name_len - n, ends[i]) == 0)
            return true;
    }
    return at && nb_num_u64(at + 7, UINT64_MAX, &layer) && layer >= n_layers; /* layers behind the last: multi-token prediction */
}

static nb_status check_unknown(const names_job *j)
{
    const nb_store *s = j->c->store;
    const nb_tensor *first = NULL;
    char text[NB_ESC_CAP];
    size_t n = 0;

    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        char module[256];
        const char *dot = strrchr(t->name, '.');
        uint64_t one;
        if (nb_strmap_get(j->used, t->name, t->name_len, &one) || ignored(t, &j->c->plan) || of_experts(t, &j->c->plan))
            continue;
        if (dot && (size_t)(dot - t->name) < sizeof module) { /* parts of a broken linear are told elsewhere */
            snprintf(module, sizeof module, "%.*s", (int)(dot - t->name), t->name);
            if (any_packed(s, module) && !nb_scan_find(&j->c->scan, module))
                continue;
        }
        first = first ? first : t;
        n++;
    }
    if (!n)
        return NB_OK;
    return nb_rule_hit(j->c->report, j->err, "NAM-004", first->file, NULL, "%zu unknown tensors (first: %s).", n,
                       nb_esc(text, sizeof text, first->name, first->name_len));
}

/* Embedding, positions, final norm, projections. */
static nb_status check_top(const names_job *j)
{
    const nb_config *c = &j->c->cfg;
    const char *prefix = j->c->plan.prefix, *norm = c->names->norm ? c->names->norm : "norm";
    char name[320];
    nb_status rc = NB_OK;

    nb_plan_embed(&j->c->plan, name, sizeof name);
    if (!c->tie_embeddings || nb_store_find(j->c->store, name) || !j->c->plan.head[0]) /* else only the head is stored */
        rc = need_plain(j, name, c->vocab + (c->skip ? 8 : 0), c->embed_dim);
    snprintf(name, sizeof name, "%s%s.weight", prefix, norm);
    if (rc == NB_OK && c->final_norm && c->norm != NB_NORM_LN_0 && c->norm != NB_NORM_RMS_0)
        rc = need_plain(j, name, 0, c->d_model);
    snprintf(name, sizeof name, "%s%s.bias", prefix, norm);
    if (rc == NB_OK && c->final_norm && (c->norm == NB_NORM_LN || c->norm == NB_NORM_LN1))
        rc = need_plain(j, name, 0, c->d_model);
    for (int bias = 0; rc == NB_OK && c->embed_norm && c->names->embed_norm && bias < 2; bias++) {
        snprintf(name, sizeof name, "%s%s.%s", prefix, c->names->embed_norm, bias ? "bias" : "weight");
        rc = need_plain(j, name, 0, c->d_model);
    }
    if (rc == NB_OK && c->learned_pos) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, c->names->positions);
        rc = need_plain(j, name, c->context + c->pos_offset, c->d_model);
    }
    if (rc == NB_OK && c->embed_dim != c->d_model) {
        snprintf(name, sizeof name, "%sproject_in", prefix);
        rc = need_linear(j, name, c->d_model, c->embed_dim, false);
        snprintf(name, sizeof name, "%sproject_out", prefix);
        if (rc == NB_OK)
            rc = need_linear(j, name, c->embed_dim, c->d_model, false);
    }
    return rc;
}

/* Inputs of single layers, and projections of residual streams. */
static nb_status check_gemma(const names_job *j)
{
    const nb_config *c = &j->c->cfg;
    const char *prefix = j->c->plan.prefix;
    char name[320];
    nb_status rc = NB_OK;

    if (c->branch) {
        snprintf(name, sizeof name, "%sembed_tokens_per_layer.weight", prefix);
        rc = need_plain(j, name, c->branch_vocab, c->n_layers * c->branch);
        snprintf(name, sizeof name, "%sper_layer_projection_norm.weight", prefix);
        if (rc == NB_OK)
            rc = need_plain(j, name, 0, c->branch);
        snprintf(name, sizeof name, "%sper_layer_model_projection", prefix);
        if (rc == NB_OK)
            rc = need_linear(j, name, c->n_layers * c->branch, c->d_model, false);
    }
    for (size_t i = 0; i < 3 && c->v4.on && rc == NB_OK; i++) {
        static const char *const parts[] = { "fn", "base", "scale" };
        snprintf(name, sizeof name, "%shc_head_%s", prefix, parts[i]);
        rc = need_values(j, name, i == 0 ? c->v4.streams * c->v4.streams * c->d_model : i == 1 ? c->v4.streams : 1);
    }
    for (size_t i = 0; i + 1 < c->n_streams && rc == NB_OK; i++) {
        snprintf(name, sizeof name, "%saltup_projections.%zu", prefix, i);
        rc = need_linear(j, name, c->d_model, c->d_model, false);
        snprintf(name, sizeof name, "%saltup_unembed_projections.%zu", prefix, i);
        if (rc == NB_OK)
            rc = need_linear(j, name, c->d_model, c->d_model, false);
    }
    return rc;
}

nb_status nb_check_names(nb_checker *c, nb_err *err)
{
    names_job j = { .c = c, .err = err };
    nb_status rc;

    if (!c->has_plan)
        return NB_OK;
    j.used = nb_strmap_new(c->store->n_tensors);
    if (!j.used)
        return nb_enomem(err, "the list of used tensors");
    rc = check_top(&j);
    if (rc == NB_OK)
        rc = check_gemma(&j);
    for (size_t l = 0; rc == NB_OK && l < c->cfg.n_layers; l++)
        rc = check_layer(&j, l);
    if (rc == NB_OK && c->plan.head[0])
        rc = need_linear(&j, c->plan.head, c->cfg.vocab, c->cfg.embed_dim, false);
    if (rc == NB_OK)
        rc = check_unknown(&j);
    nb_strmap_free(j.used);
    return rc;
}
