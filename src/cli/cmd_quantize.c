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

    nb_cli_note(v->cli, "plan: %s, 4 bits, %s", p->method == NB_QUANT_AWQ ? "AWQ" : "RTN", v->o->sym ? "symmetric" : "asymmetric");
    nb_cli_note(v->cli, "  linears      %zu in %zu layers, %.1f M weights", p->modules, p->layers, (double)p->params / 1e6);
    if (v->o->group_size > 0)
        nb_cli_note(v->cli, "  groups       %lld inputs", (long long)v->o->group_size);
    else
        nb_cli_note(v->cli, "  groups       one per output");
    if (p->method == NB_QUANT_AWQ)
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
                       nb_json_set(j, "note", nb_json_new_str(r->note)) && nb_json_set(j, "seconds", nb_json_new_real(r->seconds)));
    v->failed = !nb_json_push(v->rows, j) || v->failed;
}

static void on_row(void *user, const nb_quantize_row *r)
{
    view *v = user;
    char ratio[16] = "   -", size[32];

    if (r->ratio >= 0)
        snprintf(ratio, sizeof ratio, "%.2f", r->ratio);
    snprintf(size, sizeof size, "%zux%zu", r->n, r->k);
    nb_cli_note(v->cli, "%4zu/%-4zu %-36s %11s  error %.3e -> %.3e  ratio %s  %6.2f s%s%s", r->done, r->total, r->name, size, r->before,
                r->after, ratio, r->seconds, *r->note ? "  " : "", r->note);
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
         nb_json_set(j, "method", nb_json_new_str(v->o->method == NB_QUANT_AWQ ? "awq" : "rtn")) &&
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
    .usage = "quantize MODEL --method awq|rtn [--calib FILE] -o OUT [options]",
    .brief = "16-bit model to a 4-bit AWQ GEMM checkpoint",
    .help = "MODEL is a Hugging Face directory with f16, bf16 or f32 weights. The linears of the decoder layers become 4-bit;\n"
            "embedding, head and norms stay. The result opens in vLLM, GPTQModel and Transformers. The calibration file is text, or\n"
            "token ids as safetensors: one I32 or I64 tensor [rows, tokens].\n\n"
            "  nibble quantize MODEL --method awq --calib text.txt -o OUT\n"
            "  nibble quantize MODEL --method awq --group-size 64 --calib ids.safetensors --calib-rows 8 -o OUT\n"
            "  nibble quantize MODEL --method rtn --sym -o OUT --force",
    .run = run_quantize,
};

static nb_status choose(nb_quantize_opts *o, const char *method, const char *replay, const char *scales, bool sym, bool asym, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (strcmp(method, "awq") == 0)
        o->method = NB_QUANT_AWQ;
    else if (strcmp(method, "rtn") == 0)
        o->method = NB_QUANT_RTN;
    else
        return nb_fail(err, NB_EARG, "quantize.method", "", "no method \"%s\"; use awq or rtn",
                       nb_esc(esc, sizeof esc, method, strlen(method)));
    if (strcmp(replay, "original") == 0)
        o->replay_original = true;
    else if (strcmp(replay, "quantized") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--calib-replay takes quantized or original");
    o->scale_dtype = nb_dtype_from_name(scales);
    if (sym && asym)
        return nb_fail(err, NB_EARG, "arg.value", "", "--sym and --asym exclude each other");
    o->sym = sym;
    return NB_OK;
}

static nb_status run_quantize(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *method = "awq", *replay = "quantized", *scales = "f16", *out = NULL, *args[1];
    int64_t bits = 4, group = 128, rows = 0, len = 0, clip = NB_QUANTIZE_CLIPS;
    bool sym = false, asym = false, help;
    nb_quantize_opts o = { .host = &cli->host, .on_plan = on_plan, .on_row = on_row };
    nb_quantize_result res;
    view v = { .cli = cli, .o = &o };
    size_t n;
    const nb_opt opts[] = {
        { "--method", NB_OPT_STR, &method, 0, 0, "NAME", "awq (default) or rtn" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "bits per weight (4)" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "inputs that share a scale: 128 (default), 64, 32, or -1 for all" },
        { "--sym", NB_OPT_FLAG, &sym, 0, 0, NULL, "symmetric grid" },
        { "--asym", NB_OPT_FLAG, &asym, 0, 0, NULL, "asymmetric grid with zero points (default)" },
        { "--calib", NB_OPT_STR, &o.calib, 0, 0, "FILE", "calibration text, or ids as safetensors" },
        { "--calib-rows", NB_OPT_INT, &rows, 1, 1e7, "N", "use N rows (all; 128 of a text)" },
        { "--calib-len", NB_OPT_INT, &len, 1, 1e6, "N", "tokens per row (all; 512 of a text)" },
        { "--calib-replay", NB_OPT_STR, &replay, 0, 0, "KIND", "what the next block sees: quantized (default) or original" },
        { "--awq-plain", NB_OPT_FLAG, &o.plain, 0, 0, NULL, "scales from activations alone" },
        { "--awq-clip", NB_OPT_INT, &clip, 0, NB_AWQ_MAX_CLIPS, "N", "bounds tried per group (20; 10 as other programs, 0: no clipping)" },
        { "--scale-dtype", NB_OPT_STR, &scales, 0, 0, "TYPE", "f16 (default) or bf16" },
        { "-o,--output", NB_OPT_STR, &out, 0, 0, "OUT", "directory to write" },
        { "--force", NB_OPT_FLAG, &o.force, 0, 0, NULL, "replace OUT when it exists" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_quantize, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && (n == 0 || !out))
        rc = nb_fail(err, NB_EARG, "arg.missing", "", n == 0 ? "which MODEL? nibble quantize --help" : "where to? give -o OUT");
    if (rc == NB_OK)
        rc = choose(&o, method, replay, scales, sym, asym, err);
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
