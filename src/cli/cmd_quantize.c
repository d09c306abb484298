/* cmd_quantize.c - `nibble quantize MODEL -o OUT`: the options. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/quantize_view.h"
#include "job/quantize.h"

static nb_status run_quantize(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_quantize;
const nb_cmd nb_cmd_quantize = {
    .name = "quantize",
    .usage = "quantize MODEL --method awq|gptq|awq+gptq|rtn [--calib FILE] -o OUT [options]",
    .brief = "16-bit model to a 4-bit AWQ or GPTQ checkpoint",
    .help = "MODEL is a Hugging Face directory with f16, bf16 or f32 weights. The linears of the decoder layers become 4-bit;\n"
            "embedding, head and norms stay. The result opens in vLLM, GPTQModel and Transformers. The calibration file is text;\n"
            "JSON Lines with {\"text\": ...} or {\"messages\": [...]} (through the chat template) each; or token ids as safetensors: one\n"
            "I32 or I64 tensor [rows, tokens].\n\n"
            "The plan comes first; --plan-only stops there. The resident size stays below --memory, with the activations in files if\n"
            "need be, or the job does not begin and names the smallest cap that works; the bytes of the result do not depend on it.\n"
            "A job that ends early, by Ctrl-C, a full disk or a power failure, leaves OUT.nibble-job: the same command goes on after\n"
            "the last finished layer and gives the same bytes. Other inputs or options are refused until --restart drops it.\n\n"
            "Experts of a mixture, fused ones too, become linears of their own; each is calibrated with the tokens that the router sends\n"
            "it, and rounded plainly when these are too few (a table at the end tells). Routers stay 16-bit.\n\n"
            "  nibble quantize MODEL --method awq --calib text.txt -o OUT\n"
            "  nibble quantize MODEL --method awq --group-size 64 --calib ids.safetensors --calib-rows 8 -o OUT\n"
            "  nibble quantize MODEL --method gptq --calib text.txt -o OUT\n"
            "  nibble quantize MODEL --method gptq --asym --bits 3 --desc-act --calib ids.safetensors -o OUT\n"
            "  nibble quantize MODEL --method gptq --calib text.txt --dynamic '{\"+:.*down_proj\": {\"bits\": 8}}' -o OUT\n"
            "  nibble quantize MODEL --method awq --calib text.txt --ignore 'layers\\.0\\.' --moe-calib all -o OUT\n"
            "  nibble quantize MODEL --method rtn --sym -o OUT --force",
    .run = run_quantize,
};

/* What the command line says in words and flags. */
typedef struct words {
    const char *method, *replay, *scales, *experts;
    double damp, mse, gptaq; /* below 0: not given */
    int64_t refine;
    bool sym, asym, desc, gar, natural;
} words;

/* Each method's own options, refused with another one: nothing is ignored in silence. */
static nb_status only_for(bool given, const char *option, const nb_quantize_opts *o, bool (*fits)(nb_quant_method), const char *name,
                          nb_err *err)
{
    if (!given || fits(o->method))
        return NB_OK;
    return nb_fail(err, NB_EARG, "arg.value", "", "%s belongs to --method %s or awq+gptq", option, name);
}

static nb_status choose_gptq(nb_quantize_opts *o, const words *w, nb_err *err)
{
    nb_status rc = only_for(w->desc, "--desc-act", o, nb_quant_solves, "gptq", err);

    if (rc == NB_OK)
        rc = only_for(w->gar, "--act-group-aware", o, nb_quant_solves, "gptq", err);
    if (rc == NB_OK)
        rc = only_for(w->natural, "--natural-order", o, nb_quant_solves, "gptq", err);
    if (rc == NB_OK)
        rc = only_for(o->static_groups, "--static-groups", o, nb_quant_solves, "gptq", err);
    if (rc == NB_OK)
        rc = only_for(w->damp >= 0, "--damp", o, nb_quant_solves, "gptq", err);
    if (rc == NB_OK)
        rc = o->method == NB_QUANT_RTN ? NB_OK : only_for(w->mse >= 0, "--mse", o, nb_quant_solves, "rtn, gptq", err);
    if (rc == NB_OK && w->desc + w->gar + w->natural > 1)
        rc = nb_fail(err, NB_EARG, "arg.value", "", "--desc-act, --act-group-aware and --natural-order exclude each other");
    o->order = w->desc ? NB_GPTQ_DESC : w->natural ? NB_GPTQ_NATURAL : NB_GPTQ_GAR;
    if (rc == NB_OK)
        rc = only_for(w->gptaq >= 0, "--gptaq", o, nb_quant_solves, "gptq", err);
    if (rc == NB_OK)
        rc = w->refine >= 0 && o->method == NB_QUANT_RTN
                 ? nb_fail(err, NB_EARG, "arg.value", "", "--refine belongs to --method awq, gptq or awq+gptq")
                 : NB_OK;
    o->gptaq = w->gptaq >= 0 ? w->gptaq : NB_QUANTIZE_GPTAQ;
    o->refine = w->refine >= 0 ? (unsigned)w->refine : NB_QUANTIZE_REFINE;
    o->damp = w->damp > 0 ? w->damp : 0;
    o->mse = w->mse >= 0 ? w->mse : o->method == NB_QUANT_RTN && !o->sym ? 0 : NB_QUANTIZE_MSE; /* where it lowers KL */
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
    o->all_experts = strcmp(w->experts, "all") == 0;
    if (!o->all_experts && strcmp(w->experts, "routed") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--moe-calib takes routed or all");
    o->scale_dtype = nb_dtype_from_name(w->scales);
    if (w->sym && w->asym)
        return nb_fail(err, NB_EARG, "arg.value", "", "--sym and --asym exclude each other");
    o->sym = w->sym || (nb_quantize_method(o->method).sym && !w->asym);
    rc = only_for(o->plain, "--awq-plain", o, nb_quant_scales, "awq", err);
    if (rc == NB_OK)
        rc = only_for(o->inspect, "--awq-inspect", o, nb_quant_scales, "awq", err);
    if (rc == NB_OK)
        rc = only_for(o->shared_v, "--awq-gqa-vo", o, nb_quant_scales, "awq", err);
    return rc == NB_OK ? choose_gptq(o, w, err) : rc;
}

static nb_status run_quantize(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    words w = {
        .method = "awq", .replay = "quantized", .scales = "f16", .experts = "routed", .damp = -1, .mse = -1, .gptaq = -1, .refine = -1
    };
    const char *out = NULL, *memory = NULL, *log = NULL, *report = NULL, *args[1];
    int64_t bits = 4, group = 128, rows = 0, len = 0, clip = NB_QUANTIZE_CLIPS;
    nb_strlist ignore = { 0 };
    bool help;
    nb_quantize_opts o = { .host = &cli->host, .on_plan = nb_qview_plan, .on_row = nb_qview_row, .on_layer = nb_qview_layer };
    nb_quantize_result res = { 0 };
    nb_status logged;
    nb_qview v = { .cli = cli, .o = &o };
    size_t n;
    const nb_opt opts[] = {
        { "--method", NB_OPT_STR, &w.method, 0, 0, "awq|gptq|awq+gptq|rtn", "how (awq); awq+gptq: scales of awq, then gptq" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "bits per weight (4; gptq: 2 to 8)" },
        { "--format", NB_OPT_STR, &o.format, 0, 0, "NAME", "layout to write (awq-gemm; gptq, or gptq_v2 when asymmetric)" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "inputs that share a scale: 128 (default), 64, 32, or -1 for all" },
        { "--sym", NB_OPT_FLAG, &w.sym, 0, 0, NULL, "symmetric grid (default of gptq)" },
        { "--asym", NB_OPT_FLAG, &w.asym, 0, 0, NULL, "asymmetric grid with zero points (default of awq and rtn)" },
        { "--calib", NB_OPT_STR, &o.calib, 0, 0, "FILE", "calibration text, JSON Lines, or ids as safetensors; self: the model writes it" },
        { "--calib-rows", NB_OPT_INT, &rows, 1, 1e7, "N", "use N rows (all; 128 of a text)" },
        { "--calib-len", NB_OPT_INT, &len, 1, 1e6, "N", "tokens per row (all; 512 of a text)" },
        { "--calib-replay", NB_OPT_STR, &w.replay, 0, 0, "quantized|original", "what the next block sees (quantized)" },
        { "--awq-plain", NB_OPT_FLAG, &o.plain, 0, 0, NULL, "scales from activations alone" },
        { "--awq-inspect", NB_OPT_FLAG, &o.inspect, 0, 0, NULL, "losses from whole modules run again and again, as other programs do" },
        { "--awq-clip", NB_OPT_INT, &clip, 0, NB_AWQ_MAX_CLIPS, "N", "bounds tried per group (20; 10 as other programs, 0: no clipping)" },
        { "--act-group-aware", NB_OPT_FLAG, &w.gar, 0, 0, NULL, "gptq: most active inputs first, group by group (default)" },
        { "--desc-act", NB_OPT_FLAG, &w.desc, 0, 0, NULL, "gptq: most active inputs first, over all; needs g_idx" },
        { "--natural-order", NB_OPT_FLAG, &w.natural, 0, 0, NULL, "gptq: inputs as they are" },
        { "--static-groups", NB_OPT_FLAG, &o.static_groups, 0, 0, NULL, "gptq: grids from the weights before any correction" },
        { "--damp", NB_OPT_NUM, &w.damp, 1e-6, 0.99, "X", "gptq: share of the mean diagonal added (0.05)" },
        { "--mse", NB_OPT_NUM, &w.mse, 0, 10, "P",
          "gptq, rtn: shrink grids while the error to the power P falls (2; 0: off, as for rtn --asym)" },
        { "--gptaq", NB_OPT_NUM, &w.gptaq, 0, 1, "X",
          "gptq: share of the step towards the original model's outputs (0.5; 0: off; never with experts)" },
        { "--refine", NB_OPT_INT, &w.refine, 0, 100, "N", "awq, gptq: sweeps of coordinate descent over the codes (4; 0: off)" },
        { "--dynamic", NB_OPT_STR, &o.dynamic, 0, 0, "JSON", "overrides by module, as GPTQModel's dynamic: an object, or a file of it" },
        { "--ignore", NB_OPT_LIST, &ignore, 0, 0, "REGEX", "linears that stay 16-bit; may be repeated" },
        { "--lm-head", NB_OPT_FLAG, &o.lm_head, 0, 0, NULL,
          "quantize the head too (plainly by awq and rtn); an embedding that serves as one stays, the head comes beside it" },
        { "--moe-calib", NB_OPT_STR, &w.experts, 0, 0, "routed|all", "tokens that calibrate an expert (routed)" },
        { "--awq-gqa-vo", NB_OPT_FLAG, &o.shared_v, 0, 0, NULL, "scale o also where heads share v (one scale for all of them)" },
        { "--scale-dtype", NB_OPT_STR, &w.scales, 0, 0, "f16|bf16", "of scales (f16)" },
        { "-o,--output", NB_OPT_STR, &out, 0, 0, "OUT", "directory to write" },
        { "--force", NB_OPT_FLAG, &o.force, 0, 0, NULL, "replace OUT when it exists" },
        { "--plan-only", NB_OPT_FLAG, &o.plan_only, 0, 0, NULL, "tell modules, bytes, memory, disk and time; write nothing" },
        { "--memory", NB_OPT_STR, &memory, 0, 0, "SIZE", "cap of the resident size, as 4G or 800M (60 % of what is free)" },
        { "--restart", NB_OPT_FLAG, &o.restart, 0, 0, NULL, "drop what an unfinished job left in OUT.nibble-job" },
        { "--log", NB_OPT_STR, &log, 0, 0, "FILE", "write a JSON object per module to FILE as it is done" },
        { "--report", NB_OPT_STR, &report, 0, 0, "FILE.html", "write losses, worst modules, sizes, memory and time as one HTML page" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_quantize, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && (n == 0 || (!out && !o.plan_only)))
        rc = nb_fail(err, NB_EARG, "arg.missing", "", n == 0 ? "which MODEL? nibble quantize --help" : "where to? give -o OUT");
    if (rc == NB_OK)
        rc = choose(&o, &w, err);
    o.bits = (unsigned)bits;
    o.group_size = group;
    o.clip = (unsigned)clip;
    o.calib_rows = (size_t)rows;
    o.calib_len = (size_t)len;
    o.ignore = ignore.v;
    o.n_ignore = ignore.n;
    if (rc == NB_OK)
        rc = nb_cli_cpu(cli, &o.kern, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &o.pool, err);
    if (rc == NB_OK && cli->json && !(v.rows = nb_json_new_arr()))
        rc = nb_enomem(err, "the result");
    if (rc == NB_OK && memory)
        rc = nb_cli_size("--memory", memory, "4G or 800M", &o.memory, err);
    if (rc == NB_OK && log)
        rc = nb_qview_open_log(&v, log, err);
    if (rc == NB_OK && report && o.plan_only)
        rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--plan-only has nothing to put into a --report");
    if (rc == NB_OK && report)
        rc = nb_qpage_open(&v.page, report, o.force, err);
    o.user = &v;
    if (rc == NB_OK)
        rc = nb_quantize(args[0], out, &o, &res, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK)
        rc = nb_qview_finish(&v, out, &res, err);
    logged = nb_qview_close_log(&v, log, rc == NB_OK && !o.plan_only ? &res : NULL, err);
    rc = rc == NB_OK ? logged : rc;
    if (rc == NB_OK && v.page) {
        const nb_qpage_words words_of = { .model = args[0], .out = out, .program = "nibble " NB_VERSION, .o = &o };
        rc = nb_qpage_finish(v.page, &words_of, &res, err);
        v.page = NULL;
    }
    nb_qpage_close(v.page);
    nb_json_free(v.plan);
    nb_coverage_clear(&v.cover);
    nb_json_free(v.rows);
    nb_pool_close(o.pool);
    return rc;
}
