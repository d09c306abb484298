/* quantize.c - the walk through the model. */
#include "job/quantize.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "job/quantize_priv.h"

static const nb_qmethod *const methods[NB_QUANT_METHODS] = {
    [NB_QUANT_RTN] = &nb_method_rtn,
    [NB_QUANT_AWQ] = &nb_method_awq,
    [NB_QUANT_GPTQ] = &nb_method_gptq,
};

nb_quant_method_info nb_quantize_method(nb_quant_method m)
{
    return (nb_quant_method_info){
        .name = methods[m]->name, .title = methods[m]->title, .calibrates = methods[m]->calibrates, .sym = methods[m]->sym
    };
}

nb_status nb_quantize_method_find(const char *name, nb_quant_method *out, nb_err *err)
{
    char esc[NB_ESC_CAP], list[64] = "";
    size_t at = 0;

    for (size_t i = 0; i < NB_LEN(methods); i++) {
        if (strcmp(name, methods[i]->name) == 0) {
            *out = (nb_quant_method)i;
            return NB_OK;
        }
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", methods[i]->name);
    }
    return nb_fail(err, NB_EARG, "quantize.method", "", "no method \"%s\"; there are: %s", nb_esc(esc, sizeof esc, name, strlen(name)),
                   list);
}

const char nb_few_tokens[] = "too few calibration tokens reach the expert: rounded plainly";

nb_grid nb_qmod_grid(const nb_qmod *m)
{
    return (nb_grid){ .g = m->spec.group_size < 0 ? m->at.k : (size_t)m->spec.group_size,
                      .bits = m->spec.bits,
                      .sym = m->spec.sym,
                      .stored = m->spec.scale_dtype };
}

size_t nb_qjob_layer_mods(const nb_qjob *j, size_t layer)
{
    size_t n = 0;

    for (size_t i = j->mods.first[layer]; i < j->mods.first[layer + 1]; i++)
        n += j->mods.mods[i].quantized;
    return n;
}

/* ---- checks before anything starts ---- */

/* Whole words: eight outputs in AWQ, blocks of 32 both ways in GPTQ. The other layouts say so when they pack. */
static nb_status layout_fits(const nb_qjob *j, const char *name, size_t n, size_t k, nb_err *err)
{
    if (strcmp(j->fmt->method, "awq") == 0 && n % 8 != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.outputs", "SHP-003", "%s has %zu outputs; AWQ packs eight to a word", name, n);
    if (strcmp(j->fmt->method, "gptq") == 0 && (n % 32 != 0 || k % 32 != 0))
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.outputs", "SHP-009", "%s is %zu x %zu; GPTQ packs blocks of 32", name, n, k);
    return NB_OK;
}

/* "64, 32, -1": the usual group sizes that divide the inputs of every linear. */
static void fitting(const nb_qjob *j, char *out, size_t cap)
{
    static const size_t usual[] = { 128, 64, 32, 16 };
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < NB_LEN(usual); i++) {
        bool fits = true;
        for (size_t m = 0; m < j->mods.n; m++)
            fits = fits && (!j->mods.mods[m].quantized || j->mods.mods[m].at.k % usual[i] == 0);
        if (fits)
            at += (size_t)snprintf(out + at, cap - at, "%zu, ", usual[i]);
    }
    snprintf(out + at, cap - at, "-1");
}

static nb_status check_groups(const nb_qjob *j, nb_err *err)
{
    char list[64];

    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        const int64_t g = m->spec.group_size;

        if (g < -1 || g == 0 || g > 1 << 20)
            return nb_fail(err, NB_EARG, "quantize.group", "", "group size %lld; use 128, 64, 32 or -1 (one group per output)",
                           (long long)g);
        if (!m->quantized || g < 0 || m->at.k % (size_t)g == 0)
            continue;
        fitting(j, list, sizeof list);
        return nb_fail(err, NB_EARG, "quantize.group", "SHP-004",
                       "%s has %zu inputs, not a multiple of group size %lld; use --group-size with one of: %s", m->at.name, m->at.k,
                       (long long)g, list);
    }
    return NB_OK;
}

static nb_status check_linears(const nb_qjob *j, nb_err *err)
{
    nb_status rc = check_groups(j, err);

    for (size_t i = 0; i < j->mods.n && rc == NB_OK; i++)
        if (j->mods.mods[i].quantized)
            rc = layout_fits(j, j->mods.mods[i].at.name, j->mods.mods[i].at.n, j->mods.mods[i].at.k, err);
    return rc;
}

static nb_status check_options(const nb_quantize_opts *o, const nb_qmethod *m, const nb_format *fmt, nb_err *err)
{
    if (!fmt || !fmt->pack || !fmt->config)
        return nb_fail(err, NB_EARG, "quantize.format", "", "no layout to write by that name; nibble formats lists them");
    if (o->bits < 2 || o->bits > 8 || (strcmp(fmt->method, "awq") == 0 && o->bits != 4))
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.bits", "", "%u bits; AWQ layouts are written with 4, GPTQ with 2, 3, 4 or 8",
                       o->bits);
    if (o->scale_dtype != NB_DT_F16 && o->scale_dtype != NB_DT_BF16)
        return nb_fail(err, NB_EARG, "quantize.scale_dtype", "", "scales are stored as f16 or bf16");
    if (o->clip > NB_AWQ_MAX_CLIPS)
        return nb_fail(err, NB_EARG, "arg.value", "", "at most %d clip candidates", NB_AWQ_MAX_CLIPS);
    if (!(o->damp >= 0 && o->damp < 1) || !(o->mse >= 0 && o->mse <= 10))
        return nb_fail(err, NB_EARG, "arg.value", "", "damping is a share below 1, the exponent of the grid search at most 10");
    if (m->calibrates && !o->calib)
        return nb_fail(err, NB_EARG, "quantize.calib", "", "%s needs calibration data: --calib FILE (text, or token ids as safetensors)",
                       m->title);
    return NB_OK;
}

static nb_status open_input(nb_qjob *j, const char *model, nb_err *err)
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
    if (rc != NB_OK)
        nb_config_nearest(j->src.config, j->src.store, err);
    else
        rc = nb_plan_build(&j->cfg, j->src.store, &j->plan, err);
    if (rc == NB_OK)
        rc = nb_qmods_open(&j->mods, &j->plan, j->src.store, &j->spec, NULL, NULL, err);
    if (rc == NB_OK)
        rc = check_linears(j, err);
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

static void tell_plan(nb_qjob *j, const nb_kern *kern)
{
    nb_quantize_plan p = { .method = j->o->method, .layout = j->fmt->name, .layers = j->cfg.n_layers, .modules = j->mods.n_quantized };
    uint64_t most = 0, layer = 0, one = 0; /* weights of the largest linear, and of the largest layer */

    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        const uint64_t w = (uint64_t)m->at.n * m->at.k;

        one = (i == j->mods.first[m->layer] ? 0 : one) + w;
        layer = one > layer ? one : layer;
        most = w > most ? w : most;
        p.params += m->quantized ? w : 0;
    }
    p.in_bytes = j->src.store->total_bytes;
    p.out_bytes = nb_qout_bytes(j->out);
    p.kernel = kern->name;
    p.threads = nb_pool_threads(j->o->pool);
    p.peak_bytes = 2 * most + 8 * most;                              /* codes and packed words; float32 in and out */
    p.seconds = (double)p.params * 8e-9 + (double)p.in_bytes * 1e-9; /* rounding, and moving bytes */
    if (j->method->open) {
        const nb_block_cost c = j->method->cost(j);
        p.rows = j->calib.rows;
        p.len = j->calib.len;
        p.peak_bytes = nb_model_bytes(j->src.model) + 4 * layer + c.bytes + c.spill + 2 * most;
        p.seconds += 1.2 * c.macs * (double)j->cfg.n_layers / probe_rate(kern, j->o->pool);
    }
    if (j->o->on_plan)
        j->o->on_plan(j->o->user, &p);
}

/* ---- one linear ---- */

static void tell_row(nb_qjob *j, const nb_qmod *m, nb_quantize_row *r)
{
    const nb_progress p = {
        .what = "quantize", .item = m->at.name, .unit = "modules", .done = ++j->res.modules, .total = j->mods.n_quantized
    };

    r->done = p.done;
    r->total = p.total;
    r->name = m->at.name;
    r->expert = nb_mod_expert(m->mod) < j->cfg.moe.n_experts;
    r->seconds += j->shared;
    j->res.fallbacks += *r->note != 0;
    j->res.mean_before += r->before;
    j->res.mean_after += r->after;
    nb_report_progress(j->o->host, &p);
    if (j->o->on_row)
        j->o->on_row(j->o->user, r);
}

static nb_status quantize_linear(nb_qjob *j, const nb_qmod *m, nb_err *err)
{
    const double t0 = nb_now();
    nb_quantize_row row = { .ratio = -1.0, .damp = -1.0, .note = "", .n = m->at.n, .k = m->at.k };
    nb_qlin q = { 0 };
    nb_status rc;

    if (nb_cancelled(j->o->host))
        return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
    rc = nb_qlin_init(&q, row.n, row.k, nb_qmod_grid(m).g, m->spec.bits, err);
    q.scale_dtype = m->spec.scale_dtype;
    if (rc == NB_OK)
        rc = j->method->solve(j, m, &q, &row, err);
    if (rc == NB_OK)
        rc = nb_qout_linear(j->out, m, &q, err);
    row.seconds += nb_now() - t0;
    if (rc == NB_OK)
        tell_row(j, m, &row);
    else
        nb_err_at(err, NULL, m->at.name);
    nb_qlin_clear(&q);
    return rc;
}

/* ---- blocks ---- */

static nb_status quantize_layer(nb_qjob *j, size_t layer, nb_err *err)
{
    nb_status rc = j->method->begin ? j->method->begin(j, layer, err) : NB_OK;

    for (size_t i = j->mods.first[layer]; rc == NB_OK && i < j->mods.first[layer + 1]; i++)
        if (j->mods.mods[i].quantized)
            rc = quantize_linear(j, &j->mods.mods[i], err);
    return rc == NB_OK && j->method->end ? j->method->end(j, err) : rc;
}

static nb_status open_method(nb_qjob *j, const nb_kern *kern, const char *model, nb_err *err)
{
    const nb_model_opts mo = { .kern = kern, .pool = j->o->pool, .lazy = true, .f32 = true, .host = j->o->host };
    nb_status rc = NB_OK;

    if (j->method->calibrates) {
        rc = nb_calib_open(&j->calib, j->o->calib, model, j->o->calib_rows, j->o->calib_len, j->cfg.vocab, err);
        if (rc == NB_OK)
            rc = nb_qout_norm_dtype(j->src.store, &j->plan, j->o->scale_dtype, &j->norm_dtype, err);
        if (rc == NB_OK)
            rc = nb_load_model(&j->src, &mo, err);
    }
    if (rc == NB_OK)
        j->least_tokens =
            (size_t)((j->o->least_tokens > 0 ? j->o->least_tokens : NB_QUANTIZE_LEAST) * (double)(j->calib.rows * j->calib.len));
    return rc == NB_OK && j->method->open ? j->method->open(j, err) : rc;
}

nb_status nb_quantize(const char *model, const char *out, const nb_quantize_opts *o, nb_quantize_result *res, nb_err *err)
{
    const nb_kern *kern = o->kern ? o->kern : nb_kern_pick(nb_cpu_features());
    const double t0 = nb_now();
    nb_qjob j = { .o = o, .method = methods[o->method] };
    bool fold[NB_VEC_COUNT] = { false };
    nb_status rc;

    j.fmt = nb_format_find(o->format ? o->format : j.method->layout(o));
    j.spec = (nb_qspec){ .bits = o->bits,
                         .group_size = o->group_size,
                         .sym = o->sym,
                         .desc_act = o->method == NB_QUANT_GPTQ && o->order == NB_GPTQ_DESC && !o->static_groups && o->group_size > 0,
                         .scale_dtype = o->scale_dtype };
    rc = check_options(o, j.method, j.fmt, err);
    if (rc == NB_OK)
        rc = open_input(&j, model, err);
    if (rc != NB_OK)
        goto done;
    if (j.method->folds)
        j.method->folds(&j.plan, fold);
    rc = nb_qout_open(&j.out, out, o->force, &j.src, &j.plan, &j.mods, j.fmt, &j.spec, fold, o->host, err);
    if (rc == NB_OK)
        rc = open_method(&j, kern, model, err);
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
    if (j.method->close)
        j.method->close(&j);
    nb_calib_clear(&j.calib);
    nb_qmods_clear(&j.mods);
    nb_plan_clear(&j.plan);
    nb_config_clear(&j.cfg);
    nb_load_close(&j.src);
    return rc;
}
