/* capacity_model.c - what capacity.h needs to know of a model: from its headers, or from config.json alone. */
#include <string.h>

#include <stdio.h>

#include "base/mem.h"
#include "io/io.h"
#include "job/capacity.h"
#include "job/inferred.h"
#include "model/exec.h"
#include "model/model.h"
#include "quant/quant.h"

/* ---- sizes of the configuration ---- */

static void from_config(nb_cap_model *m, const nb_config *c)
{
    snprintf(m->model_type, sizeof m->model_type, "%s", c->model_type);
    m->layers = c->n_layers;
    m->d_model = c->d_model;
    m->d_ff = c->d_ff;
    m->heads = c->n_heads;
    m->kv_heads = c->n_kv_heads;
    m->head_dim = c->head_dim;
    m->vocab = c->vocab;
    m->context = c->context;
    m->latent = nb_config_one_kv(c);
    if (c->moe.sparse) {
        m->n_experts = c->moe.n_experts;
        m->n_active = c->moe.n_active;
        const size_t used = c->moe.ff * c->moe.n_active + c->moe.shared_ff;
        m->d_ff = used > m->d_ff ? used : m->d_ff;
    }
    if (c->windowed)
        m->window = c->sliding_window;
}

static void cache(nb_cap_model *m, const nb_config *c, const nb_plan *p)
{
    const uint64_t token = (nb_config_one_kv(c) ? 1 : 2) * (uint64_t)c->n_kv_heads * c->kv_dim;

    for (size_t l = 0; l < c->n_layers; l++) {
        if (!nb_plan_has_kv(p, l))
            continue;
        const bool window = m->window && c->windowed[l];
        *(window ? &m->kv_window : &m->kv_full) += token;
        *(window ? &m->kv_window_heads : &m->kv_full_heads) += nb_config_one_kv(c) ? 1 : 2 * c->n_kv_heads;
        if (nb_plan_rate(p, l)) /* entries of several tokens */
            m->kv_full += nb_plan_side_page(p, l, NB_DT_F16) / 2 / NB_PAGE;
    }
    m->state_bytes = (uint64_t)nb_plan_states(p) * sizeof(float);
}

/* Elements of nibble's cache, of layers that keep all tokens and of those that keep a window. */
static void split_own(nb_cap_model *m, const nb_config *c, const nb_plan *p, uint64_t elements)
{
    size_t near = 0;

    for (size_t l = 0; l < c->n_layers; l++)
        near += nb_exec_is_near(c, l) ? nb_plan_kv_page(p, l, NB_DT_F16) / 2 / NB_PAGE : 0;
    if (near)
        m->window = nb_exec_window(c);
    m->kv_own_window = near;
    m->kv_own = elements - m->kv_own_window;
}

/* ---- with weights ---- */

static uint64_t stored_bytes(const nb_tensor *t)
{
    return nb_gguf_stored_bytes(t);
}

static uint64_t tensor_params(const nb_tensor *t)
{
    uint64_t n;

    return nb_shape_count(t->shape, t->rank, &n) ? n : 0;
}

static bool is_expert(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

static void count_store(nb_cap_model *m, const nb_config *c, const nb_plan *p, const nb_store *s, const nb_scan *sc)
{
    uint64_t experts = 0;
    char name[192];

    nb_plan_embed(p, name, sizeof name);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        m->file_bytes += stored_bytes(t);
        if (is_expert(t->name))
            m->expert_bytes += stored_bytes(t);
        if (p->head[0] && strcmp(t->name, name) == 0)
            m->table_bytes = stored_bytes(t);
        const size_t len = strlen(t->name);
        if (len > 7 && strcmp(t->name + len - 7, ".weight") == 0 && t->rank >= 1) {
            m->params += tensor_params(t);
            experts += is_expert(t->name) ? tensor_params(t) : 0;
        }
    }
    for (size_t i = 0; i < sc->n_linears; i++) {
        m->params += (uint64_t)sc->linears[i].n * sc->linears[i].k;
        experts += is_expert(sc->linears[i].prefix) ? (uint64_t)sc->linears[i].n * sc->linears[i].k : 0;
    }
    m->active_params = m->params - experts;
    if (m->n_experts)
        m->active_params += experts / m->n_experts * m->n_active;
    m->active_params -= p->head[0] ? (uint64_t)c->vocab * c->embed_dim : 0;
    if (sc->format) {
        snprintf(m->layout, sizeof m->layout, "%s", sc->format->name);
        m->bits = sc->spec.bits;
    }
}

static nb_status with_weights(nb_cap_model *m, nb_hfdir *dir, const nb_config *c, nb_store *s, nb_err *err)
{
    const nb_json *qcfg = NULL;
    const char *source = NULL;
    nb_json *inferred = NULL;
    nb_scan scan = { 0 };
    nb_plan plan = { 0 };
    nb_fit fit;
    char note[160];
    nb_status rc = nb_hfdir_quant_config(dir, &qcfg, &source, err);

    if (rc == NB_OK && nb_json_is_null(qcfg))
        rc = nb_infer_scan(s, NULL, &inferred, &scan, note, sizeof note, err);
    else if (rc == NB_OK)
        rc = nb_scan_open(s, qcfg, source, NULL, &scan, err);
    if (rc == NB_OK)
        rc = nb_plan_build(c, s, &plan, err);
    if (rc == NB_OK)
        rc = nb_model_fit(c, &plan, &scan, s, NB_PAGE, 512, NB_DT_F16, &fit, err);
    if (rc == NB_OK) {
        cache(m, c, &plan);
        count_store(m, c, &plan, s, &scan);
        m->packed_bytes = fit.weights;
        m->step_bytes = fit.scratch / 512;
        m->split_most = nb_exec_split_bytes(c, SIZE_MAX / 2 / NB_PAGE, 2);
        m->split_bytes = (double)(nb_exec_split_bytes(c, 1 << 10, 2) - nb_exec_split_bytes(c, 0, 2)) / (1 << 10) / NB_PAGE;
        split_own(m, c, &plan, fit.kv / NB_PAGE / 2);
    }
    nb_plan_clear(&plan);
    nb_scan_clear(&scan);
    nb_json_free(inferred);
    return rc;
}

/* ---- without ---- */

typedef struct recipe {
    unsigned bits; /* 16: not quantized */
    double group;
    bool sym;
} recipe;

static recipe find_recipe(const nb_json *qcfg, unsigned bits, int64_t group)
{
    recipe r = { .bits = 16, .group = 128 };

    if (!nb_json_is_null(qcfg)) {
        r.bits = (unsigned)nb_json_int(nb_json_get(qcfg, "bits"), nb_json_int(nb_json_get(qcfg, "w_bit"), 4));
        r.group = (double)nb_json_int(nb_json_get(qcfg, "group_size"), nb_json_int(nb_json_get(qcfg, "q_group_size"), 128));
        r.sym = nb_json_bool(nb_json_get(qcfg, "sym"), !nb_json_bool(nb_json_get(qcfg, "zero_point"), true));
    }
    if (bits)
        r.bits = bits;
    if (group)
        r.group = (double)group;
    return r;
}

static void add_linear(nb_cap_model *m, const recipe *r, uint64_t n, uint64_t k, double times, bool expert)
{
    const double bytes =
        times * (r->bits < 16 ? nb_cap_linear_bytes((double)n, (double)k, r->bits, r->group, r->sym) : 2.0 * (double)(n * k));

    m->file_bytes += (uint64_t)bytes;
    m->params += (uint64_t)(times * (double)(n * k));
    if (expert) {
        m->expert_bytes += (uint64_t)bytes;
        m->active_params += (uint64_t)(times * (double)(n * k) / (double)m->n_experts * (double)m->n_active);
    } else {
        m->active_params += (uint64_t)(times * (double)(n * k));
    }
}

static void layer_linears(nb_cap_model *m, const nb_config *c, const nb_plan *p, const recipe *r, size_t layer)
{
    for (size_t i = 0; i < p->n_ops; i++) {
        const nb_op *op = &p->ops[i];
        if (!nb_plan_runs(p, op, layer))
            continue;
        for (size_t k = 0; op->kind == NB_OP_LINEAR && k < NB_LEN(op->roles) && op->roles[k] != NB_ROLE_NONE; k++) {
            size_t n, in;
            nb_plan_linear_size(p, op->roles[k], &n, &in);
            add_linear(m, r, n, in, 1, false);
        }
        if (op->kind == NB_OP_MOE) {
            add_linear(m, r, 3 * c->moe.ff, c->d_model, (double)c->moe.n_experts, true);
            add_linear(m, r, 3 * c->moe.shared_ff, c->d_model, 1, false);
            add_linear(m, &(recipe){ .bits = 16 }, c->moe.n_experts, c->d_model, 1, false);
        }
    }
}

static nb_status without_weights(nb_cap_model *m, nb_hfdir *dir, const nb_config *c, unsigned bits, int64_t group, nb_err *err)
{
    const recipe plain = { .bits = 16 };
    const nb_json *qcfg = NULL;
    const char *source;
    nb_plan plan = { 0 };
    recipe r;
    nb_status rc = nb_hfdir_quant_config(dir, &qcfg, &source, err);

    if (rc == NB_OK)
        rc = nb_plan_build(c, NULL, &plan, err);
    if (rc != NB_OK)
        return rc;
    r = find_recipe(qcfg, bits, group);
    m->estimated = true;
    m->bits = r.bits;
    snprintf(m->layout, sizeof m->layout, "%s", r.bits < 16 ? nb_json_str(nb_json_get(qcfg, "quant_method"), "4-bit") : "16-bit");
    cache(m, c, &plan);
    for (size_t l = 0; l < c->n_layers; l++)
        layer_linears(m, c, &plan, &r, l);
    add_linear(m, &plain, c->vocab, c->embed_dim, 1, false); /* the head, or the embedding as one */
    if (!c->tie_embeddings) {
        m->table_bytes = 2 * (uint64_t)c->vocab * c->embed_dim;
        m->file_bytes += m->table_bytes;
        m->params += (uint64_t)c->vocab * c->embed_dim;
    }
    m->packed_bytes = m->file_bytes; /* within a few percent: scales and zero points are packed alike */
    nb_plan_clear(&plan);
    return NB_OK;
}

nb_status nb_cap_read(nb_cap_model *m, const char *path, unsigned bits, int64_t group, nb_err *err)
{
    nb_hfdir *dir = NULL;
    nb_store *s = NULL;
    const nb_json *root = NULL;
    nb_config c = { 0 };
    nb_err none = { 0 };
    nb_status rc = nb_hfdir_open(path, &dir, err);

    memset(m, 0, sizeof *m);
    if (rc == NB_OK)
        rc = nb_hfdir_config(dir, &root, err);
    if (rc == NB_OK)
        rc = nb_config_parse(root, &c, err);
    if (rc == NB_OK) {
        const nb_status opened = nb_open(path, &s, &none);
        from_config(m, &c);
        if (opened == NB_OK && bits)
            rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--bits and --group-size are for a model without weights; these have their own");
        else if (opened == NB_OK)
            rc = with_weights(m, dir, &c, s, err);
        else if (opened == NB_EOPEN)
            rc = without_weights(m, dir, &c, bits, group, err);
        else
            rc = nb_fail(err, none.code, none.cls, none.rule, "%s", none.what);
    }
    nb_err_at(err, path, NULL);
    nb_config_clear(&c);
    nb_store_close(s);
    nb_hfdir_close(dir);
    return rc;
}
