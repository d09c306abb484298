/* quantize.c - the walk through the model. */
#include "job/quantize.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/map.h"
#include "base/mem.h"
#include "job/gptq_walk.h"
#include "job/quantize_priv.h"

static const nb_qmethod *const methods[NB_QUANT_METHODS] = {
    [NB_QUANT_RTN] = &nb_method_rtn,
    [NB_QUANT_AWQ] = &nb_method_awq,
    [NB_QUANT_GPTQ] = &nb_method_gptq,
    [NB_QUANT_AWQ_GPTQ] = &nb_method_awq_gptq,
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

bool nb_qjob_solves_head(const nb_qjob *j)
{
    return nb_qmods_head(&j->mods) && nb_quant_solves(j->o->method) && nb_gptq_walk_can(&j->plan);
}

size_t nb_qjob_codes(const nb_qjob *j)
{
    size_t g = 64;

    if (!nb_gptq_walk_can(&j->plan))
        return 0;
    /* losses of whole modules are smaller than what codes change */
    if (j->o->method != NB_QUANT_GPTQ && (j->o->method != NB_QUANT_AWQ || j->o->inspect || j->o->bits > 4))
        return 0;
    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        while (m->quantized && m->spec.group_size > 0 && (size_t)m->spec.group_size % g != 0)
            g /= 2;
    }
    return g;
}

/* ---- checks before anything starts ---- */

/* What every layout holds, and who writes whole words only. */
static const char other_ways[] = "--format compressed-tensors holds any width, and --ignore leaves linears as they are";

/* Whole words: eight outputs in AWQ, blocks of 32 both ways in GPTQ, which its readers want of every width. The rest by the layout's own word. */
static nb_status layout_fits(const nb_qjob *j, const nb_qmod *m, nb_err *err)
{
    const size_t n = m->at.n, k = m->at.k;
    nb_err why = { 0 };
    nb_status rc;

    if (strcmp(j->fmt->method, "awq") == 0 && n % 8 != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.outputs", "SHP-003", "%s has %zu outputs; AWQ packs eight to a word; %s", m->at.name,
                       n, other_ways);
    if (strcmp(j->fmt->method, "gptq") == 0 && (n % 32 != 0 || k % 32 != 0))
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.outputs", "SHP-009", "%s is %zu x %zu; GPTQ packs blocks of 32; %s", m->at.name, n,
                       k, other_ways);
    rc = nb_format_holds(j->fmt, n, k, nb_qmod_grid(m).g, &m->spec, &why);
    if (rc == NB_OK || rc == NB_ENOMEM)
        return rc == NB_OK ? rc : nb_enomem(err, "a packed linear");
    if (why.what[0] && why.what[strlen(why.what) - 1] == '.')
        why.what[strlen(why.what) - 1] = 0;
    return nb_fail(err, NB_EUNSUPPORTED, why.cls, why.rule, "%s: %s; %s", m->at.name, why.what, other_ways);
}

/* A linear like one before it fits as that did. */
static bool like_before(const nb_qmods *t, size_t i)
{
    const nb_qmod *m = &t->mods[i];
    size_t looked = 0;

    for (size_t b = i; b-- > 0 && looked < 16; looked++) {
        const nb_qmod *o = &t->mods[b];
        if (o->quantized && o->at.n == m->at.n && o->at.k == m->at.k && nb_qspec_same(&o->spec, &m->spec))
            return true;
    }
    return false;
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

/* Can the layout say that this linear differs from the others, and the method do it? */
static nb_status check_override(const nb_qjob *j, const nb_qmod *m, nb_err *err)
{
    const nb_qspec *s = &m->spec, *all = &j->spec;

    if (!nb_qspec_same(s, all) && !j->fmt->override)
        return nb_fail(
            err, NB_EARG, "quantize.dynamic", "",
            "%s: layout %s has one setting for all linears; use --format gptq or compressed-tensors, or leave it out with --ignore",
            m->at.name, j->fmt->name);
    if (nb_quant_solves(j->o->method) && m->quantized && !m->first) { /* linears that read one input are rounded in one order */
        const nb_qmod *f = m;
        while (!f->first)
            f--;
        if (f->spec.group_size != s->group_size || f->spec.desc_act != s->desc_act)
            return nb_fail(err, NB_EARG, "quantize.dynamic", "",
                           "%s and %s read the same input; give both the same group_size and desc_act", f->at.name, m->at.name);
    }
    if (s->desc_act && !nb_quant_solves(j->o->method))
        return nb_fail(err, NB_EARG, "quantize.dynamic", "", "%s: desc_act belongs to --method gptq", m->at.name);
    return NB_OK;
}

/* Overrides may need a layout that holds more than the usual one of GPTQ: zero points of 0, or 5 to 7 bits. */
static void widen_layout(nb_qjob *j)
{
    const char *name = j->fmt->name;

    if (j->o->format || strncmp(name, "gptq", 4) != 0)
        return;
    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qspec *s = &j->mods.mods[i].spec;
        if (!j->mods.mods[i].quantized)
            continue;
        if (s->bits >= 5 && s->bits <= 7)
            name = "gptq_p";
        else if (!s->sym && strcmp(name, "gptq") == 0)
            name = "gptq_v2";
    }
    j->fmt = nb_format_find(name);
}

static nb_status check_linears(const nb_qjob *j, nb_err *err)
{
    nb_status rc = check_groups(j, err);

    if (rc == NB_OK && j->mods.n_quantized == 0)
        rc = nb_fail(err, NB_EARG, "quantize.dynamic", "", "nothing is left to quantize");
    for (size_t i = 0; i < j->mods.n && rc == NB_OK; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        if (!m->quantized)
            continue;
        rc = like_before(&j->mods, i) ? NB_OK : layout_fits(j, m, err);
        if (rc == NB_OK)
            rc = check_override(j, m, err);
    }
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
    if (o->method == NB_QUANT_RTN && o->mse != 0 && o->mse != 2)
        return nb_fail(err, NB_EARG, "arg.value", "",
                       "plain rounding looks for the least squared error: --mse 2, or 0 to keep the whole range");
    if (!(o->gptaq >= 0 && o->gptaq <= 1) || o->refine > NB_QUANTIZE_MAX_REFINE)
        return nb_fail(err, NB_EARG, "arg.value", "", "the step of GPTAQ is a share up to 1; at most %d sweeps over codes",
                       NB_QUANTIZE_MAX_REFINE);
    if (m->calibrates && !o->calib)
        return nb_fail(err, NB_EARG, "quantize.calib", "", "%s needs calibration data: --calib FILE (text, or token ids as safetensors)",
                       m->title);
    return NB_OK;
}

/* Where the embedding serves as head it stays, and the quantized head is stored beside it: the model is tied no more. */
static nb_status add_head(nb_qjob *j, nb_err *err)
{
    if (j->cfg.uses && j->cfg.tie_embeddings) /* the same word ties blocks of layers */
        return nb_fail(err, NB_EUNSUPPORTED, "quantize.dynamic", "",
                       "--lm-head: a head of its own would untie the blocks that layers of %s share, too", j->cfg.model_type);
    return nb_qmods_add_head(&j->mods, &j->plan, j->src.store, &j->spec, nb_qselect_rule, j->select, err);
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
        rc = nb_qselect_open(&j->select, j->o->dynamic, j->o->ignore, j->o->n_ignore, &j->spec, err);
    if (rc == NB_OK)
        rc = nb_qmods_open(&j->mods, &j->plan, j->src.store, &j->spec, nb_qselect_rule, j->select, err);
    if (rc == NB_OK && j->o->lm_head)
        rc = add_head(j, err);
    if (rc == NB_OK)
        rc = nb_qselect_check(j->select, err);
    if (rc == NB_OK) {
        widen_layout(j);
        rc = check_linears(j, err);
    }
    nb_err_at(err, model, NULL);
    return rc;
}

/* ---- one linear ---- */

void nb_qjob_tell(nb_qjob *j, nb_quantize_row *r)
{
    char item[320];
    const nb_progress p = { .what = "quantize", .item = item, .unit = "modules", .done = ++j->res.modules, .total = j->mods.n_quantized };

    snprintf(item, sizeof item, "%s error %.2e", r->name, r->after);
    r->done = p.done;
    r->total = p.total;
    j->res.fallbacks += *r->note != 0;
    j->res.mean_before += r->before;
    j->res.mean_after += r->after;
    if (!r->resumed)
        nb_report_progress(j->o->host, &p);
    if (j->o->on_row)
        j->o->on_row(j->o->user, r);
}

size_t nb_zero_groups(const nb_qlin *q)
{
    size_t n = 0;

    for (size_t r = 0; !q->g_idx && r < q->n; r++)
        for (size_t g = 0; g < q->n_groups; g++) {
            const size_t end = (g + 1) * q->g < q->k ? (g + 1) * q->g : q->k;
            const uint8_t z = q->zeros[r * q->n_groups + g];
            size_t i = g * q->g;
            while (i < end && q->codes[r * q->k + i] == z)
                i++;
            n += i == end;
        }
    return n;
}

/* Which groups of a row have a weight that is not 0. */
static void mark_groups(const nb_qlin *q, const float *w, bool *any)
{
    memset(any, 0, q->n_groups * sizeof *any);
    if (q->g_idx) {
        for (size_t i = 0; i < q->k; i++)
            any[q->g_idx[i]] |= w[i] != 0.0f;
        return;
    }
    for (size_t g = 0; g < q->n_groups; g++) /* mostly the first says it */
        for (size_t i = g * q->g, end = q->k - i < q->g ? q->k : i + q->g; i < end && !any[g]; i++)
            any[g] = w[i] != 0.0f;
}

/* Codes of outputs n0 .. n0 + m, of weights w, that groups of nothing but zeros lost; those groups get them back. any: [n_groups]. */
static size_t zeros_back(const float *w, nb_qlin *q, size_t n0, size_t m, bool *any)
{
    size_t changed = 0;

    for (size_t r = n0; r < n0 + m; r++, w += q->k) {
        uint8_t *c = q->codes + r * q->k;
        const uint8_t *z = q->zeros + r * q->n_groups;
        bool whole = true;

        mark_groups(q, w, any);
        for (size_t g = 0; g < q->n_groups; g++)
            whole = whole && any[g];
        for (size_t i = 0; !whole && i < q->k; i++) {
            const size_t g = q->g_idx ? q->g_idx[i] : i / q->g;
            changed += !any[g] && c[i] != z[g];
            c[i] = any[g] ? c[i] : z[g];
        }
    }
    return changed;
}

/* A group of nothing but zeros stays one: solvers that pass errors on, or refine codes, put small values there. The weights of the
 * original come into the block's buffer, some at a time, then what the block runs with from here on. */
static nb_status keep_zeros(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_err *err)
{
    nb_block *b = j->method->block ? j->method->block(j) : NULL;
    const size_t fit = b ? b->need_tmp / q->k : 0, step = fit < 64 ? fit : 64;
    bool *any = b ? nb_alloc_array(q->n_groups, sizeof *any) : NULL;
    size_t changed = 0;
    nb_status rc = NB_OK;

    if (!b)
        return NB_OK;
    if (!any)
        rc = nb_enomem(err, "a linear");
    for (size_t r = 0; rc == NB_OK && r < q->n; r += step) {
        const size_t rows = q->n - r < step ? q->n - r : step;
        const float *w = nb_stored_rows(j->src.store, &m->at, r, rows, b->tmp, err);
        if (w)
            changed += zeros_back(w, q, r, rows, any);
        else
            rc = err ? err->code : NB_EREAD;
    }
    nb_store_drop(j->src.store, m->at.w);
    if (rc == NB_OK && changed && m->mod != NB_MOD_HEAD)
        rc = nb_model_set_codes(b->model, m->layer, m->mod, q, b->tmp, err);
    nb_free(any);
    return rc;
}

static nb_status solve_linear(nb_qjob *j, const nb_qmethod *method, const nb_qmod *m, nb_quantize_row *row, nb_err *err)
{
    nb_qlin q = { 0 };
    nb_status rc = nb_qlin_init(&q, row->n, row->k, nb_qmod_grid(m).g, m->spec.bits, err);

    q.scale_dtype = m->spec.scale_dtype;
    if (rc == NB_OK)
        rc = method->solve(j, m, &q, row, err);
    if (rc == NB_OK)
        rc = keep_zeros(j, m, &q, err);
    if (rc == NB_OK)
        rc = nb_qout_linear(j->out, m, &q, err);
    row->zeros = rc == NB_OK ? nb_zero_groups(&q) : 0;
    nb_qlin_clear(&q);
    return rc;
}

static nb_status quantize_linear(nb_qjob *j, const nb_qmod *m, nb_err *err)
{
    const double t0 = nb_now();
    nb_quantize_row row = { .ratio = -1.0, .damp = -1.0, .note = "", .n = m->at.n, .k = m->at.k };
    const nb_qmethod *method = m->mod == NB_MOD_HEAD && !nb_qjob_solves_head(j) ? &nb_method_rtn : j->method;
    nb_status rc;
    bool done = false;

    if (nb_cancelled(j->o->host))
        return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
    rc = method == &nb_method_rtn ? nb_rtn_stream(j, m, &row, &done, err) : NB_OK;
    if (rc == NB_OK && !done)
        rc = solve_linear(j, method, m, &row, err);
    row.seconds += nb_now() - t0 + j->shared;
    row.name = m->at.name;
    row.expert = nb_mod_expert(m->mod) < j->cfg.moe.n_experts;
    if (rc == NB_OK)
        rc = nb_qresume_row(j, &row, err);
    if (rc == NB_OK)
        nb_qjob_tell(j, &row);
    else
        nb_err_at(err, NULL, m->at.name);
    return rc;
}

/* ---- blocks ---- */

static nb_status quantize_layer(nb_qjob *j, size_t layer, nb_err *err)
{
    nb_quantize_layer told = { .layer = layer };
    const double t0 = nb_now();
    nb_status rc = j->method->begin ? j->method->begin(j, layer, err) : NB_OK;

    for (size_t i = j->mods.first[layer]; rc == NB_OK && i < j->mods.first[layer + 1]; i++)
        rc = j->mods.mods[i].quantized ? quantize_linear(j, &j->mods.mods[i], err) : nb_qout_keep(j->out, &j->mods.mods[i], err);
    if (rc == NB_OK && j->method->end)
        rc = j->method->end(j, err);
    for (size_t i = j->mods.first[layer]; i < j->mods.first[layer + 1]; i++) /* pages of weights that are done with */
        nb_store_drop(j->src.store, j->mods.mods[i].at.w);
    told.seconds = nb_now() - t0;
    told.resident = nb_rss_now();
    told.peak = nb_rss_peak();
    if (rc == NB_OK)
        rc = nb_qresume_layer(j, &told, err);
    if (rc == NB_OK && j->o->on_layer)
        j->o->on_layer(j->o->user, &told);
    return rc;
}

static nb_status open_calib(nb_qjob *j, const char *model, nb_err *err)
{
    const double least = j->o->least_tokens > 0 ? j->o->least_tokens : NB_QUANTIZE_LEAST;
    nb_status rc = NB_OK;

    if (j->method->calibrates) {
        if (strcmp(j->o->calib, "self") == 0)
            rc = nb_calib_self(&j->calib, model, j->o->calib_rows, j->o->calib_len, j->o->memory, j->kern, j->o->pool, j->o->host, err);
        else
            rc = nb_calib_open(&j->calib, j->o->calib, model, j->o->calib_rows, j->o->calib_len, j->cfg.vocab, err);
        if (rc == NB_OK)
            rc = nb_qout_norm_dtype(j->src.store, &j->plan, j->o->scale_dtype, &j->norm_dtype, err);
    }
    if (rc == NB_OK && j->calib.warning[0])
        nb_log(j->o->host, NB_LOG_WARN, "%s", j->calib.warning);
    j->least_tokens = (size_t)(least * (double)(j->calib.rows * j->calib.len));
    return rc;
}

static nb_status open_method(nb_qjob *j, nb_err *err)
{
    const nb_model_opts mo = {
        .kern = j->kern, .pool = j->o->pool, .lazy = true, .f32 = true, .headless = true, .codes = nb_qjob_codes(j), .host = j->o->host
    };
    nb_status rc = j->method->calibrates ? nb_load_model(&j->src, &mo, err) : NB_OK;

    j->calib.resumed = j->first > 0;
    if (rc == NB_OK && j->method->open)
        rc = j->method->open(j, err);
    return rc == NB_OK ? nb_qresume_inputs(j, err) : rc;
}

/* ---- the job ---- */

/* Everything that the plan needs, read but for the weights. */
static nb_status prepare(nb_qjob *j, const char *model, nb_err *err)
{
    nb_status rc = open_input(j, model, err);

    if (rc == NB_OK && j->method->writes)
        rc = j->method->writes(j, &j->writes, err);
    if (rc == NB_OK)
        rc = nb_qout_open(&j->out, &j->src, &j->plan, &j->mods, j->fmt, &j->spec, &j->writes, j->o->pool, j->o->host, err);
    return rc == NB_OK ? open_calib(j, model, err) : rc;
}

static nb_status finish(nb_qjob *j, nb_err *err)
{
    nb_status rc = nb_qout_tensors(j->out, err);

    if (rc == NB_OK)
        rc = nb_qcard_write(j, err);
    if (rc == NB_OK)
        rc = nb_qout_complete(j->out, err);
    if (rc == NB_OK)
        rc = nb_journal_finish(j->journal, err);
    if (rc == NB_OK) {
        rc = nb_qout_commit(j->out, err);
        j->out = NULL;
    }
    return rc;
}

/* Was the output that is there made by this recipe? A job that died after its last rename, while it removed its journal. */
static bool is_ours(const nb_qjob *j, const char *out)
{
    char *recipe = nb_json_dump(j->recipe, 0, true);
    nb_err ignored = { 0 };
    nb_store *s = NULL;
    bool ours = recipe && nb_open(out, &s, &ignored) == NB_OK && strcmp(nb_json_str(nb_json_get(s->meta, "nibble"), ""), recipe) == 0;

    nb_store_close(s);
    nb_free(recipe);
    return ours;
}

/* With the journal open. taken: something has the name of the output; right when an earlier process finished, else the error. */
static nb_status work(nb_qjob *j, const char *out, const nb_err *taken, nb_err *err)
{
    nb_status rc;

    if (nb_journal_finished(j->journal) || (taken->code != NB_OK && nb_journal_blocks(j->journal) == 0 && is_ours(j, out))) {
        nb_qresume_tell(j);
        return NB_OK;
    }
    if (taken->code != NB_OK) {
        if (err)
            *err = *taken;
        return taken->code;
    }
    rc = nb_qresume_open(j, out, err);
    if (rc == NB_OK)
        nb_qresume_tell(j);
    if (rc == NB_OK && j->first > 0)
        nb_log(j->o->host, NB_LOG_INFO, "going on after layer %zu of %zu, which are in %s", j->first, j->cfg.n_layers,
               nb_journal_dir(j->journal));
    if (rc == NB_OK)
        rc = open_method(j, err);
    for (size_t l = j->first; rc == NB_OK && l < j->cfg.n_layers; l++)
        rc = quantize_layer(j, l, err);
    if (rc == NB_OK && nb_qmods_head(&j->mods))
        rc = quantize_linear(j, nb_qmods_head(&j->mods), err);
    return rc == NB_OK ? finish(j, err) : rc;
}

/* What a failed job leaves is kept when the same command can go on: not when its inputs are at fault. Says so in the error. */
static bool keeps(const nb_qjob *j, nb_status rc, nb_err *err)
{
    const size_t done = j->journal ? nb_journal_blocks(j->journal) : 0;
    const bool ours = rc == NB_EFORMAT || rc == NB_EUNSUPPORTED || rc == NB_EARG || rc == NB_ENUMERIC || rc == NB_EVERIFY;

    if (rc == NB_ECANCELED && done == 0 && err)
        strncat(err->what, "; nothing was written", sizeof err->what - strlen(err->what) - 1);
    if (rc == NB_OK || done == 0 || ours)
        return false;
    if (err && rc != NB_EEXISTS) {
        const size_t n = strlen(err->what);
        snprintf(err->what + n, sizeof err->what - n,
                 "; %zu of %zu layers are finished and kept in %s: the same command goes on from there", done, j->cfg.n_layers,
                 nb_journal_dir(j->journal));
    }
    return true;
}

/* Is the name of the output free? One that is taken is forgiven while there may be a finished job of this output. */
static nb_status may_write(const char *model, const char *out, bool force, nb_err *taken, nb_err *err)
{
    const char *inputs[1] = { model };
    char *dir = nb_journal_path(out);
    const nb_status rc = nb_outdir_may(out, force, inputs, 1, taken);
    const bool maybe = rc == NB_EEXISTS && strcmp(taken->cls, "out.exists") == 0 && dir && access(dir, F_OK) == 0;

    nb_free(dir);
    if (rc == NB_OK || maybe)
        return NB_OK;
    if (err)
        *err = *taken;
    return rc;
}

static void close_job(nb_qjob *j)
{
    nb_qout_abort(j->out);
    if (j->method->close)
        j->method->close(j);
    nb_calib_clear(&j->calib);
    nb_qwrites_clear(&j->writes);
    nb_qselect_close(j->select);
    nb_qmods_clear(&j->mods);
    nb_plan_clear(&j->plan);
    nb_config_clear(&j->cfg);
    nb_load_close(&j->src);
    nb_json_free(j->recipe);
    nb_json_free(j->rows);
    nb_json_free(j->pending);
}

nb_status nb_quantize(const char *model, const char *out, const nb_quantize_opts *o, nb_quantize_result *res, nb_err *err)
{
    const double t0 = nb_now();
    nb_qjob j = { .o = o, .method = methods[o->method], .kern = o->kern ? o->kern : nb_kern_pick(nb_cpu_features()) };
    nb_quantize_plan plan;
    nb_err taken = { 0 };
    nb_status rc;
    bool keep;

    j.fmt = nb_format_find(o->format ? o->format : j.method->layout(o));
    j.spec = (nb_qspec){ .bits = o->bits,
                         .group_size = o->group_size,
                         .sym = o->sym,
                         .desc_act = nb_quant_solves(o->method) && o->order == NB_GPTQ_DESC && !o->static_groups && o->group_size > 0,
                         .scale_dtype = o->scale_dtype };
    rc = check_options(o, j.method, j.fmt, err);
    if (rc == NB_OK && !o->plan_only)
        rc = may_write(model, out, o->force, &taken, err);
    if (rc == NB_OK)
        rc = prepare(&j, model, err);
    if (rc == NB_OK) {
        nb_qplan_make(&j, &plan);
        if (o->on_plan)
            o->on_plan(o->user, &plan);
        if (nb_quant_solves(o->method) && o->gptaq > 0 && !nb_gptq_walk_can(&j.plan)) /* nothing is left out in silence */
            nb_log(o->host, NB_LOG_INFO,
                   "quantize.gptaq: layers of %s have experts, branches or recurrent parts: GPTQ without the step towards the original "
                   "model (--gptaq)",
                   j.cfg.model_type);
        if (nb_qmods_head(&j.mods) && nb_qmods_head(&j.mods)->at.serves)
            nb_log(o->host, NB_LOG_INFO,
                   "quantize.lm_head: the embedding serves as head; it stays as it is, and %s is stored beside it (tie_word_embeddings: "
                   "false)",
                   nb_qmods_head(&j.mods)->at.name);
        if (nb_quant_solves(o->method) && nb_qmods_head(&j.mods) && !nb_qjob_solves_head(&j))
            nb_log(o->host, NB_LOG_INFO,
                   "quantize.lm_head: layers of %s have experts, branches or recurrent parts: the head is rounded plainly",
                   j.cfg.model_type);
        rc = nb_qplan_fits(&j, &plan, o->plan_only ? "." : out, err);
    }
    if (rc == NB_OK && !o->plan_only)
        rc = nb_qjob_recipe(&j, &j.recipe, err);
    if (rc == NB_OK && !o->plan_only) {
        rc = nb_journal_open(&j.journal, out, nb_json_copy(j.recipe), o->restart, err);
        if (rc == NB_OK)
            j.calib.spill = plan.spill ? nb_journal_dir(j.journal) : NULL;
        if (rc == NB_OK)
            rc = work(&j, out, &taken, err);
    }
    if (rc == NB_OK && res) {
        j.res.seconds = nb_now() - t0;
        j.res.mean_before /= (double)(j.res.modules ? j.res.modules : 1);
        j.res.mean_after /= (double)(j.res.modules ? j.res.modules : 1);
        j.res.peak_bytes = nb_rss_peak();
        *res = j.res;
    }
    keep = keeps(&j, rc, err);
    close_job(&j);
    nb_journal_close(j.journal, keep);
    return rc;
}
