/* quantize.c - the walk through the model. */
#include "job/quantize.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "job/awq_block.h"
#include "job/load.h"
#include "job/qout.h"

typedef struct job {
    const nb_quantize_opts *o;
    nb_loaded src;
    nb_config cfg;
    nb_plan plan;
    nb_calib calib;
    nb_qspec spec;
    nb_awq_opts awq;
    nb_qout *out;
    nb_awq_block *block; /* AWQ only */
    nb_quantize_result res;
    size_t modules; /* of one layer */
    double shared;  /* seconds of capture and fold, per module of the layer */
} job;

/* ---- checks before anything starts ---- */

static nb_status check_linear(const job *j, nb_role role, nb_err *err)
{
    char name[256];
    const nb_tensor *t;
    size_t n, k;

    nb_plan_linear_size(&j->plan, role, &n, &k);
    for (size_t l = 0; l < j->cfg.n_layers; l++) {
        nb_plan_linear(&j->plan, l, role, name, sizeof name - 8);
        strcat(name, ".weight");
        t = nb_store_find(j->src.store, name);
        if (!t)
            return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
        if (t->rank != 2 || t->shape[0] != n || t->shape[1] != k)
            return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "SHP-013", "tensor \"%s\" is not [%zu, %zu] as config.json implies", name,
                           n, k);
        if (t->dtype != NB_DT_F16 && t->dtype != NB_DT_BF16 && t->dtype != NB_DT_F32)
            return nb_fail(err, NB_EUNSUPPORTED, "quantize.input", "", "tensor \"%s\" is %s; quantize reads f16, bf16 and f32", name,
                           nb_dtype_info(t->dtype)->name);
    }
    if (n % 8 != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.outputs", "SHP-003", "%s has %zu outputs; AWQ GEMM packs eight to a word", name, n);
    return NB_OK;
}

/* "64, 32, -1": the usual group sizes that divide the inputs of every linear. */
static void fitting(const job *j, char *out, size_t cap)
{
    static const size_t usual[] = { 128, 64, 32, 16 };
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < NB_LEN(usual); i++) {
        bool fits = true;
        for (int r = 0; r < NB_ROLE_COUNT; r++)
            if (j->plan.has_role[r]) {
                size_t n, k;
                nb_plan_linear_size(&j->plan, (nb_role)r, &n, &k);
                fits = fits && k % usual[i] == 0;
            }
        if (fits)
            at += (size_t)snprintf(out + at, cap - at, "%zu, ", usual[i]);
    }
    snprintf(out + at, cap - at, "-1");
}

static nb_status check_groups(const job *j, nb_err *err)
{
    const int64_t g = j->o->group_size;
    char list[64];

    if (g < -1 || g == 0 || g > 1 << 20)
        return nb_fail(err, NB_EARG, "quantize.group", "", "group size %lld; use 128, 64, 32 or -1 (one group per output)", (long long)g);
    for (int r = 0; g > 0 && r < NB_ROLE_COUNT; r++) {
        size_t n, k;
        if (!j->plan.has_role[r])
            continue;
        nb_plan_linear_size(&j->plan, (nb_role)r, &n, &k);
        if (k % (size_t)g != 0) {
            char name[256];
            fitting(j, list, sizeof list);
            return nb_fail(err, NB_EARG, "quantize.group", "SHP-004",
                           "%s has %zu inputs, not a multiple of group size %lld; use --group-size with one of: %s",
                           nb_plan_linear(&j->plan, 0, (nb_role)r, name, sizeof name), k, (long long)g, list);
        }
    }
    return NB_OK;
}

static nb_status check_options(const nb_quantize_opts *o, nb_err *err)
{
    if (o->bits != 4)
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.bits", "", "%u bits; AWQ GEMM is written with 4", o->bits);
    if (o->scale_dtype != NB_DT_F16 && o->scale_dtype != NB_DT_BF16)
        return nb_fail(err, NB_EARG, "quantize.scale_dtype", "", "scales are stored as f16 or bf16");
    if (o->clip > NB_AWQ_MAX_CLIPS)
        return nb_fail(err, NB_EARG, "arg.value", "", "at most %d clip candidates", NB_AWQ_MAX_CLIPS);
    if (o->method == NB_QUANT_AWQ && !o->calib)
        return nb_fail(err, NB_EARG, "quantize.calib", "", "AWQ needs calibration data: --calib FILE (text, or token ids as safetensors)");
    return NB_OK;
}

static nb_status open_input(job *j, const char *model, nb_err *err)
{
    nb_status rc = nb_load_store(&j->src, model, j->o->host, err);

    if (rc != NB_OK)
        return rc;
    if (j->src.scan.format || j->src.scan.n_linears) {
        rc = nb_fail(err, NB_EUNSUPPORTED, "quantize.already", "",
                     "the model is already quantized (%s); quantize starts from 16- or 32-bit weights, and nibble convert --to LAYOUT "
                     "changes the layout",
                     j->src.scan.format ? j->src.scan.format->name : "unknown layout");
        nb_err_at(err, model, NULL);
        return rc;
    }
    if (nb_hfdir_is_gguf(j->src.dir))
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.input", "",
                       "quantize reads a Hugging Face directory; first: nibble convert MODEL.gguf --to f16 -o DIR");
    rc = nb_config_parse(j->src.config, &j->cfg, err);
    if (rc == NB_OK)
        rc = nb_plan_build(&j->cfg, j->src.store, &j->plan, err);
    if (rc == NB_OK && j->cfg.transposed)
        rc = nb_fail(err, NB_EUNSUPPORTED, "quantize.arch", "", "%s stores its linears transposed; quantize cannot read them yet",
                     j->cfg.model_type);
    if (rc == NB_OK && j->cfg.skip)
        rc = nb_fail(err, NB_EUNSUPPORTED, "quantize.arch", "", "%s has layers that wait for an image; quantize does not do those",
                     j->cfg.model_type);
    if (rc == NB_OK && j->cfg.moe.sparse)
        rc = nb_fail(err, NB_EUNSUPPORTED, "quantize.arch", "", "%s has experts; quantize does not do those yet", j->cfg.model_type);
    if (rc == NB_OK)
        rc = check_groups(j, err);
    for (int r = 0; rc == NB_OK && r < NB_ROLE_COUNT; r++)
        if (j->plan.has_role[r]) {
            rc = check_linear(j, (nb_role)r, err);
            j->modules++;
        }
    nb_err_at(err, model, NULL);
    return rc;
}

/* ---- plan ---- */

struct probe_ctx {
    const nb_kern *kern;
    const nb_dense *w;
    const float *x;
    float *y;
    size_t m;
};

static void probe_strips(void *user, size_t begin, size_t end, int thread)
{
    const struct probe_ctx *c = user;

    (void)thread;
    c->kern->gemm_dense(c->w, c->x, c->w->k, c->m, c->y, c->w->n, begin, end);
}

/* Multiply-adds per second of the dense kernel on this machine, now: a few milliseconds of real work. */
static double probe_rate(const nb_kern *kern, nb_pool *pool)
{
    enum { N = 1024, K = 512, M = 256 };
    nb_dense w = { 0 };
    float *x = nb_calloc(M * K, sizeof *x), *y = nb_calloc(M * N, sizeof *y);
    struct probe_ctx c = { .kern = kern, .w = &w, .x = x, .y = y, .m = M };
    double rate = 1e9, t0;

    if (x && y && nb_dense_layout(&w, N, K, NB_DT_F32) && (w.base = nb_huge_alloc(w.bytes))) {
        int runs = 0;
        nb_parallel_for(pool, w.n_strips, 1, probe_strips, &c);
        t0 = nb_now();
        do {
            nb_parallel_for(pool, w.n_strips, 1, probe_strips, &c);
            runs++;
        } while (nb_now() - t0 < 0.03);
        rate = (double)runs * N * K * M / (nb_now() - t0);
    }
    nb_huge_free(w.base, w.bytes);
    nb_free(x);
    nb_free(y);
    return rate;
}

static void tell_plan(job *j, const nb_kern *kern)
{
    nb_quantize_plan p = { .method = j->o->method, .layers = j->cfg.n_layers, .modules = j->modules * j->cfg.n_layers };
    size_t most = 0, layer = 0;

    for (int r = 0; r < NB_ROLE_COUNT; r++)
        if (j->plan.has_role[r]) {
            size_t n, k;
            nb_plan_linear_size(&j->plan, (nb_role)r, &n, &k);
            layer += n * k;
            most = n * k > most ? n * k : most;
        }
    p.params = (uint64_t)layer * j->cfg.n_layers;
    p.in_bytes = j->src.store->total_bytes;
    p.out_bytes = nb_qout_bytes(j->out);
    p.kernel = kern->name;
    p.threads = nb_pool_threads(j->o->pool);
    p.peak_bytes = 2 * (uint64_t)most + 8 * (uint64_t)most;          /* codes and packed words; float32 in and out */
    p.seconds = (double)p.params * 8e-9 + (double)p.in_bytes * 1e-9; /* rounding, and moving bytes */
    if (j->block) {
        double macs;
        uint64_t bytes;
        nb_awq_block_cost(&j->plan, &j->awq, j->calib.rows, j->calib.len, &bytes, &macs);
        p.rows = j->calib.rows;
        p.len = j->calib.len;
        p.peak_bytes = nb_model_bytes(j->src.model) + 4 * (uint64_t)layer + bytes + 2 * (uint64_t)most;
        p.seconds += 1.2 * macs * (double)j->cfg.n_layers / probe_rate(kern, j->o->pool);
    }
    if (j->o->on_plan)
        j->o->on_plan(j->o->user, &p);
}

/* ---- one linear ---- */

static const char *fold_note(const job *j, nb_role role)
{
    const nb_awq_group *g;
    size_t n = j->block ? nb_awq_block_groups(j->block, &g) : 0;

    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < g[i].g.n_roles; r++)
            if (g[i].g.roles[r] == role)
                switch (g[i].state) {
                case NB_FOLD_NO_LOSS:
                    return "no scale gave a finite loss: rounded plainly";
                case NB_FOLD_CHANGES:
                    return "folding the scales would change the block: rounded plainly";
                case NB_FOLD_BIAS:
                    return "the linear before it has a bias: not scaled";
                case NB_FOLD_ON:
                    break;
                }
    return "";
}

static void tell_row(job *j, size_t layer, nb_role role, double before, double after, double seconds)
{
    const nb_awq_group *g = j->block ? nb_awq_block_group_of(j->block, role) : NULL;
    char name[256];
    nb_quantize_row r = {
        .done = ++j->res.modules, .total = j->modules * j->cfg.n_layers, .before = before, .after = after, .ratio = -1.0
    };
    const nb_progress p = { .what = "quantize", .item = name, .unit = "modules", .done = r.done, .total = r.total };

    r.name = nb_plan_linear(&j->plan, layer, role, name, sizeof name);
    nb_plan_linear_size(&j->plan, role, &r.n, &r.k);
    r.note = fold_note(j, role);
    r.seconds = seconds + j->shared;
    if (g) {
        r.search = &g->best;
        r.ratio = g->best.index / (double)NB_AWQ_RATIOS;
        r.seconds += g->seconds / (double)g->g.n_roles;
    }
    j->res.fallbacks += *r.note != 0;
    j->res.mean_before += before;
    j->res.mean_after += after;
    nb_report_progress(j->o->host, &p);
    if (j->o->on_row)
        j->o->on_row(j->o->user, &r);
}

/* Weights of one linear without calibration. Caller frees *w. */
static nb_status read_plain(job *j, size_t layer, nb_role role, float **w, nb_err *err)
{
    char name[256];
    const nb_tensor *t;
    size_t n, k;
    nb_status rc;

    nb_plan_linear(&j->plan, layer, role, name, sizeof name - 8);
    strcat(name, ".weight");
    nb_plan_linear_size(&j->plan, role, &n, &k);
    t = nb_store_find(j->src.store, name);
    *w = nb_alloc_array(n, k * sizeof **w);
    if (!*w)
        return nb_enomem(err, name);
    rc = nb_store_read_f32(j->src.store, t, 0, (uint64_t)n * k, *w, err);
    if (rc == NB_OK)
        rc = nb_rtn_finite(*w, n * k, err);
    nb_err_at(err, t->file, name);
    return rc;
}

static nb_status quantize_linear(job *j, size_t layer, nb_role role, nb_err *err)
{
    nb_pool *pool = j->o->pool;
    const double t0 = nb_now();
    double before = 0, after = 0;
    float *w = NULL, *own = NULL, *v = NULL;
    nb_qlin q = { 0 };
    nb_grid grid;
    size_t n, k;
    nb_status rc;

    if (nb_cancelled(j->o->host))
        return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
    nb_plan_linear_size(&j->plan, role, &n, &k);
    grid = nb_awq_grid(&j->awq, k);
    if (j->block) {
        rc = nb_awq_block_take(j->block, role, &w, &before, err);
    } else {
        rc = read_plain(j, layer, role, &own, err);
        w = own;
    }
    if (rc == NB_OK)
        rc = nb_qlin_init(&q, n, k, grid.g, grid.bits, err);
    if (rc != NB_OK)
        goto done;
    q.scale_dtype = j->o->scale_dtype;
    rc = nb_rtn_quantize(pool, &grid, w, &q, err);
    if (rc == NB_OK)
        rc = nb_qout_linear(j->out, layer, role, &q, err);
    if (rc != NB_OK)
        goto done;
    if (j->block) {
        nb_qlin_dequant(&q, w);
        rc = nb_awq_block_put(j->block, role, w, &after, err);
    } else {
        v = nb_alloc_array(n, k * sizeof *v);
        if (v)
            nb_qlin_dequant(&q, v);
        rc = v ? nb_output_error(pool, w, v, n, k, NULL, 0, 0, &after, err) : nb_enomem(err, "a linear");
        before = after;
    }
    if (rc == NB_OK)
        tell_row(j, layer, role, before, after, nb_now() - t0);
done:
    if (rc != NB_OK) {
        char name[256];
        nb_err_at(err, NULL, nb_plan_linear(&j->plan, layer, role, name, sizeof name));
    }
    nb_qlin_clear(&q);
    nb_free(v);
    nb_free(own);
    return rc;
}

/* ---- blocks ---- */

/* Norms that groups fold into are written for every layer, folded or not. */
static void folded_norms(const job *j, bool out[NB_VEC_COUNT])
{
    nb_scale_group g[NB_MAX_GROUPS];
    const size_t n = nb_scale_groups(&j->plan, g);

    memset(out, 0, NB_VEC_COUNT * sizeof *out);
    for (size_t i = 0; j->o->method == NB_QUANT_AWQ && i < n; i++)
        if (g[i].from_norm)
            out[g[i].vec] = true;
}

static nb_status write_norms(job *j, size_t layer, nb_err *err)
{
    bool wanted[NB_VEC_COUNT];
    nb_status rc = NB_OK;

    folded_norms(j, wanted);
    for (int v = 0; rc == NB_OK && v < NB_VEC_COUNT; v++)
        if (wanted[v]) {
            size_t n;
            const float *w = nb_model_vec(j->src.model, layer, (nb_vec)v, &n);
            rc = nb_qout_norm(j->out, layer, (nb_vec)v, w, n, j->awq.norm_dtype, err);
        }
    return rc;
}

static nb_status quantize_layer(job *j, size_t layer, nb_err *err)
{
    nb_status rc = NB_OK;
    double t0 = nb_now();

    if (j->block) {
        rc = nb_awq_block_capture(j->block, layer, err);
        j->shared = nb_now() - t0;
        if (rc == NB_OK)
            rc = nb_awq_block_search(j->block, err);
        t0 = nb_now();
        if (rc == NB_OK)
            rc = nb_awq_block_fold(j->block, err);
        if (rc == NB_OK)
            rc = write_norms(j, layer, err);
        j->shared = (j->shared + nb_now() - t0) / (double)j->modules;
    }
    for (int r = 0; rc == NB_OK && r < NB_ROLE_COUNT; r++)
        if (j->plan.has_role[r])
            rc = quantize_linear(j, layer, (nb_role)r, err);
    if (rc == NB_OK && j->block)
        rc = nb_awq_block_replay(j->block, err);
    return rc;
}

static nb_status open_block(job *j, const nb_kern *kern, const char *model, nb_err *err)
{
    const nb_model_opts mo = { .kern = kern, .pool = j->o->pool, .lazy = true, .f32 = true, .host = j->o->host };
    nb_status rc = nb_calib_open(&j->calib, j->o->calib, model, j->o->calib_rows, j->o->calib_len, j->cfg.vocab, err);

    if (rc == NB_OK)
        rc = nb_qout_norm_dtype(j->src.store, &j->plan, j->o->scale_dtype, &j->awq.norm_dtype, err);
    if (rc == NB_OK)
        rc = nb_load_model(&j->src, &mo, err);
    if (rc == NB_OK)
        rc = nb_awq_block_open(&j->block, j->src.model, j->src.store, &j->calib, &j->awq, j->o->pool, j->o->host, err);
    return rc;
}

nb_status nb_quantize(const char *model, const char *out, const nb_quantize_opts *o, nb_quantize_result *res, nb_err *err)
{
    const nb_kern *kern = o->kern ? o->kern : nb_kern_pick(nb_cpu_features());
    const double t0 = nb_now();
    job j = { .o = o };
    bool fold[NB_VEC_COUNT];
    nb_status rc = check_options(o, err);

    j.spec = (nb_qspec){ .bits = o->bits, .group_size = o->group_size, .sym = o->sym, .scale_dtype = o->scale_dtype };
    j.awq = (nb_awq_opts){ .bits = o->bits,
                           .group_size = o->group_size,
                           .sym = o->sym,
                           .scale_dtype = o->scale_dtype,
                           .plain = o->plain,
                           .clip = o->clip,
                           .replay_original = o->replay_original };
    if (rc == NB_OK)
        rc = open_input(&j, model, err);
    if (rc != NB_OK)
        goto done;
    folded_norms(&j, fold);
    rc = nb_qout_open(&j.out, out, o->force, &j.src, &j.plan, nb_format_find("awq-gemm"), &j.spec, fold, o->host, err);
    if (rc == NB_OK && o->method == NB_QUANT_AWQ)
        rc = open_block(&j, kern, model, err);
    if (rc != NB_OK)
        goto done;
    tell_plan(&j, kern);
    for (size_t l = 0; rc == NB_OK && l < j.cfg.n_layers; l++)
        rc = quantize_layer(&j, l, err);
    if (rc == NB_OK) {
        rc = nb_qout_commit(j.out, err);
        j.out = NULL;
    }
    if (rc == NB_OK && res) {
        j.res.seconds = nb_now() - t0;
        j.res.mean_before /= (double)j.res.modules;
        j.res.mean_after /= (double)j.res.modules;
        j.res.peak_bytes = nb_mem_peak();
        *res = j.res;
    }
done:
    nb_qout_abort(j.out);
    nb_awq_block_close(j.block);
    nb_calib_clear(&j.calib);
    nb_plan_clear(&j.plan);
    nb_config_clear(&j.cfg);
    nb_load_close(&j.src);
    return rc;
}
