/* cmd_quantize.c - `nibble quantize MODEL -o OUT`: plan, one line per linear, summary. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/quantize.h"

typedef struct view {
    nb_cli *cli;
    const nb_quantize_opts *o;
    nb_json *rows; /* with --json */
    bool failed;   /* no memory for them */
} view;

static void on_plan(void *user, const nb_quantize_plan *p)
{
    const view *v = user;
    char a[32], b[32], c[32], d[32];

    nb_cli_note(v->cli, "plan: %s, %u bits, %s, layout %s", nb_quantize_method(p->method).title, v->o->bits,
                v->o->sym ? "symmetric" : "asymmetric", p->layout);
    nb_cli_note(v->cli, "  linears      %zu in %zu layers, %.1f M weights", p->modules, p->layers, (double)p->params / 1e6);
    if (v->o->group_size > 0)
        nb_cli_note(v->cli, "  groups       %lld inputs", (long long)v->o->group_size);
    else
        nb_cli_note(v->cli, "  groups       one per output");
    if (p->rows)
        nb_cli_note(v->cli, "  calibration  %zu rows of %zu tokens", p->rows, p->len);
    nb_cli_note(v->cli, "  size         %s -> %s", nb_human_bytes(a, sizeof a, p->in_bytes), nb_human_bytes(b, sizeof b, p->out_bytes));
    nb_cli_note(v->cli, "  memory       about %s at peak", nb_human_bytes(c, sizeof c, p->peak_bytes));
    if (p->seconds < 90)
        snprintf(d, sizeof d, "%.0f s", p->seconds < 1 ? 1 : p->seconds);
    else
        snprintf(d, sizeof d, "%.0f min", p->seconds / 60);
    nb_cli_note(v->cli, "  time         about %s (%s kernels, %d thread%s)", d, p->kernel, p->threads, p->threads == 1 ? "" : "s");
}

static void add_json(view *v, const nb_quantize_row *r)
{
    nb_json *j = nb_json_new_obj();

    v->failed =
        v->failed || !(nb_json_set(j, "module", nb_json_new_str(r->name)) && nb_json_set(j, "n", nb_json_new_int((int64_t)r->n)) &&
                       nb_json_set(j, "k", nb_json_new_int((int64_t)r->k)) && nb_json_set(j, "error_rtn", nb_json_new_real(r->before)) &&
                       nb_json_set(j, "error", nb_json_new_real(r->after)) &&
                       nb_json_set(j, "ratio", r->ratio < 0 ? nb_json_new_null() : nb_json_new_real(r->ratio)) &&
                       nb_json_set(j, "damp", r->damp < 0 ? nb_json_new_null() : nb_json_new_real(r->damp)) &&
                       nb_json_set(j, "note", nb_json_new_str(r->note)) && nb_json_set(j, "seconds", nb_json_new_real(r->seconds)));
    v->failed = !nb_json_push(v->rows, j) || v->failed;
}

static void on_row(void *user, const nb_quantize_row *r)
{
    view *v = user;
    char how[32] = "ratio    -", size[32];

    if (r->damp >= 0)
        snprintf(how, sizeof how, "damp %.2f", r->damp);
    else if (r->ratio >= 0)
        snprintf(how, sizeof how, "ratio %.2f", r->ratio);
    snprintf(size, sizeof size, "%zux%zu", r->n, r->k);
    nb_cli_note(v->cli, "%4zu/%-4zu %-36s %11s  error %.3e -> %.3e  %s  %6.2f s%s%s", r->done, r->total, r->name, size, r->before, r->after,
                how, r->seconds, *r->note ? "  " : "", r->note);
    if (v->rows)
        add_json(v, r);
}

static nb_status finish(view *v, const char *out, const nb_quantize_result *res, nb_err *err)
{
    char peak[32];
    bool ok;
    nb_json *j;

    nb_cli_note(v->cli, "%s: %zu linears in %.1f s, mean error %.3e (plain rounding %.3e), %zu fell back, peak memory %s", out,
                res->modules, res->seconds, res->mean_after, res->mean_before, res->fallbacks,
                nb_human_bytes(peak, sizeof peak, res->peak_bytes));
    if (!v->rows)
        return NB_OK;
    j = nb_json_new_obj();
    ok = nb_json_set(j, "output", nb_json_new_str(out)) &&
         nb_json_set(j, "method", nb_json_new_str(nb_quantize_method(v->o->method).name)) &&
         nb_json_set(j, "bits", nb_json_new_int(v->o->bits)) && nb_json_set(j, "group_size", nb_json_new_int(v->o->group_size)) &&
         nb_json_set(j, "sym", nb_json_new_bool(v->o->sym)) && nb_json_set(j, "seconds", nb_json_new_real(res->seconds)) &&
         nb_json_set(j, "peak_bytes", nb_json_new_int((int64_t)res->peak_bytes)) &&
         nb_json_set(j, "fallbacks", nb_json_new_int((int64_t)res->fallbacks)) &&
         nb_json_set(j, "mean_error", nb_json_new_real(res->mean_after)) &&
         nb_json_set(j, "mean_error_rtn", nb_json_new_real(res->mean_before)) && nb_json_set(j, "modules", v->rows);
    v->rows = NULL; /* j's now, or freed by the failed set */
    if (ok && !v->failed)
        nb_cli_json(j);
    nb_json_free(j);
    return ok && !v->failed ? NB_OK : nb_enomem(err, "the result");
}

static nb_status run_quantize(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_quantize;
const nb_cmd nb_cmd_quantize = {
    .name = "quantize",
    .usage = "quantize MODEL --method awq|gptq|rtn [--calib FILE] -o OUT [options]",
    .brief = "16-bit model to a 4-bit AWQ or GPTQ checkpoint",
    .help = "MODEL is a Hugging Face directory with f16, bf16 or f32 weights. The linears of the decoder layers become 4-bit;\n"
            "embedding, head and norms stay. The result opens in vLLM, GPTQModel and Transformers. The calibration file is text, or\n"
            "token ids as safetensors: one I32 or I64 tensor [rows, tokens].\n\n"
            "  nibble quantize MODEL --method awq --calib text.txt -o OUT\n"
            "  nibble quantize MODEL --method awq --group-size 64 --calib ids.safetensors --calib-rows 8 -o OUT\n"
            "  nibble quantize MODEL --method gptq --calib text.txt -o OUT\n"
            "  nibble quantize MODEL --method gptq --asym --bits 3 --desc-act --calib ids.safetensors -o OUT\n"
            "  nibble quantize MODEL --method rtn --sym -o OUT --force",
    .run = run_quantize,
};

/* What the command line says in words and flags. */
typedef struct words {
    const char *method, *replay, *scales;
    double damp, mse; /* below 0: not given */
    bool sym, asym, desc, gar, natural;
} words;

/* Each method's own options, refused with another one: nothing is ignored in silence. */
static nb_status only_for(bool given, const char *option, const nb_quantize_opts *o, nb_quant_method m, nb_err *err)
{
    if (!given || o->method == m)
        return NB_OK;
    return nb_fail(err, NB_EARG, "arg.value", "", "%s belongs to --method %s", option, nb_quantize_method(m).name);
}

static nb_status choose_gptq(nb_quantize_opts *o, const words *w, nb_err *err)
{
    nb_status rc = only_for(w->desc, "--desc-act", o, NB_QUANT_GPTQ, err);

    if (rc == NB_OK)
        rc = only_for(w->gar, "--act-group-aware", o, NB_QUANT_GPTQ, err);
    if (rc == NB_OK)
        rc = only_for(w->natural, "--natural-order", o, NB_QUANT_GPTQ, err);
    if (rc == NB_OK)
        rc = only_for(o->static_groups, "--static-groups", o, NB_QUANT_GPTQ, err);
    if (rc == NB_OK)
        rc = only_for(w->damp >= 0, "--damp", o, NB_QUANT_GPTQ, err);
    if (rc == NB_OK)
        rc = only_for(w->mse >= 0, "--mse", o, NB_QUANT_GPTQ, err);
    if (rc == NB_OK && w->desc + w->gar + w->natural > 1)
        rc = nb_fail(err, NB_EARG, "arg.value", "", "--desc-act, --act-group-aware and --natural-order exclude each other");
    o->order = w->desc ? NB_GPTQ_DESC : w->natural ? NB_GPTQ_NATURAL : NB_GPTQ_GAR;
    o->damp = w->damp > 0 ? w->damp : 0;
    o->mse = w->mse >= 0 ? w->mse : NB_QUANTIZE_MSE;
    return rc;
}

static nb_status choose(nb_quantize_opts *o, const words *w, nb_err *err)
{
    nb_status rc = nb_quantize_method_find(w->method, &o->method, err);

    if (rc != NB_OK)
        return rc;
    if (strcmp(w->replay, "original") == 0)
        o->replay_original = true;
    else if (strcmp(w->replay, "quantized") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--calib-replay takes quantized or original");
    o->scale_dtype = nb_dtype_from_name(w->scales);
    if (w->sym && w->asym)
        return nb_fail(err, NB_EARG, "arg.value", "", "--sym and --asym exclude each other");
    o->sym = w->sym || (nb_quantize_method(o->method).sym && !w->asym);
    rc = only_for(o->plain, "--awq-plain", o, NB_QUANT_AWQ, err);
    return rc == NB_OK ? choose_gptq(o, w, err) : rc;
}

static nb_status run_quantize(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    words w = { .method = "awq", .replay = "quantized", .scales = "f16", .damp = -1, .mse = -1 };
    const char *out = NULL, *args[1];
    int64_t bits = 4, group = 128, rows = 0, len = 0, clip = NB_QUANTIZE_CLIPS;
    bool help;
    nb_quantize_opts o = { .host = &cli->host, .on_plan = on_plan, .on_row = on_row };
    nb_quantize_result res;
    view v = { .cli = cli, .o = &o };
    size_t n;
    const nb_opt opts[] = {
        { "--method", NB_OPT_STR, &w.method, 0, 0, "NAME", "awq (default), gptq or rtn" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "bits per weight (4; gptq: 2 to 8)" },
        { "--format", NB_OPT_STR, &o.format, 0, 0, "NAME", "layout to write (awq-gemm; gptq, or gptq_v2 when asymmetric)" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "inputs that share a scale: 128 (default), 64, 32, or -1 for all" },
        { "--sym", NB_OPT_FLAG, &w.sym, 0, 0, NULL, "symmetric grid (default of gptq)" },
        { "--asym", NB_OPT_FLAG, &w.asym, 0, 0, NULL, "asymmetric grid with zero points (default of awq and rtn)" },
        { "--calib", NB_OPT_STR, &o.calib, 0, 0, "FILE", "calibration text, or ids as safetensors" },
        { "--calib-rows", NB_OPT_INT, &rows, 1, 1e7, "N", "use N rows (all; 128 of a text)" },
        { "--calib-len", NB_OPT_INT, &len, 1, 1e6, "N", "tokens per row (all; 512 of a text)" },
        { "--calib-replay", NB_OPT_STR, &w.replay, 0, 0, "KIND", "what the next block sees: quantized (default) or original" },
        { "--awq-plain", NB_OPT_FLAG, &o.plain, 0, 0, NULL, "scales from activations alone" },
        { "--awq-clip", NB_OPT_INT, &clip, 0, NB_AWQ_MAX_CLIPS, "N", "bounds tried per group (20; 10 as other programs, 0: no clipping)" },
        { "--act-group-aware", NB_OPT_FLAG, &w.gar, 0, 0, NULL, "gptq: most active inputs first, group by group (default)" },
        { "--desc-act", NB_OPT_FLAG, &w.desc, 0, 0, NULL, "gptq: most active inputs first, over all; needs g_idx" },
        { "--natural-order", NB_OPT_FLAG, &w.natural, 0, 0, NULL, "gptq: inputs as they are" },
        { "--static-groups", NB_OPT_FLAG, &o.static_groups, 0, 0, NULL, "gptq: grids from the weights before any correction" },
        { "--damp", NB_OPT_NUM, &w.damp, 1e-6, 0.99, "X", "gptq: share of the mean diagonal added (0.05)" },
        { "--mse", NB_OPT_NUM, &w.mse, 0, 10, "P", "gptq: shrink grids while the error to the power P falls (2.4; 0: off)" },
        { "--scale-dtype", NB_OPT_STR, &w.scales, 0, 0, "TYPE", "f16 (default) or bf16" },
        { "-o,--output", NB_OPT_STR, &out, 0, 0, "OUT", "directory to write" },
        { "--force", NB_OPT_FLAG, &o.force, 0, 0, NULL, "replace OUT when it exists" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_quantize, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && (n == 0 || !out))
        rc = nb_fail(err, NB_EARG, "arg.missing", "", n == 0 ? "which MODEL? nibble quantize --help" : "where to? give -o OUT");
    if (rc == NB_OK)
        rc = choose(&o, &w, err);
    o.bits = (unsigned)bits;
    o.group_size = group;
    o.clip = (unsigned)clip;
    o.calib_rows = (size_t)rows;
    o.calib_len = (size_t)len;
    if (rc == NB_OK)
        rc = nb_cli_cpu(cli, &o.kern, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &o.pool, err);
    if (rc == NB_OK && cli->json && !(v.rows = nb_json_new_arr()))
        rc = nb_enomem(err, "the result");
    o.user = &v;
    if (rc == NB_OK)
        rc = nb_quantize(args[0], out, &o, &res, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK)
        rc = finish(&v, out, &res, err);
    nb_json_free(v.rows);
    nb_pool_close(o.pool);
    return rc;
}
