/* cmd_convert.c - `nibble convert MODEL --to LAYOUT -o DIR`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/convert.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_convert;
const nb_cmd nb_cmd_convert = {
    .name = "convert",
    .usage = "convert MODEL --to LAYOUT -o DIR [options]",
    .brief = "a checkpoint in another layout, bit for bit; GGUF import, dequantizer",
    .help = "Writes a complete Hugging Face directory: config.json, safetensors, tokenizer and chat template.\n\n"
            "To a layout (awq-gemm, awq-gemv, awq-gemv-fast, llm-awq, gptq, gptq-v2, gptq-p, compressed-tensors) codes, zero\n"
            "points and scales stay the same numbers, and other tensors the same bytes; what the layout cannot hold is refused\n"
            "with the reason. The result is read back and compared before it appears. gptq is v1 for symmetric models and v2\n"
            "for others; gptq-v1 insists.\n\n"
            "To gguf, -o names a file: Q4_0, Q4_1 or Q8_0 blocks of the same codes, for llama.cpp.\n\n"
            "To f16, bf16 or f32 quantized linears and GGUF blocks become plain weights, every value rounded once.\n\n"
            "  nibble convert model-awq --to gptq -o model-gptq\n"
            "  nibble convert model-awq --to bf16 -o model-bf16\n"
            "  nibble convert model-awq --to gguf -o model.gguf\n"
            "  nibble convert model.gguf --to f16 -o model-f16\n"
            "  nibble convert broken --repair zeros -o repaired",
    .run = run,
};

static nb_status print_json(const nb_convert_sum *s, const char *out, const nb_convert_opts *c, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    bool ok = o && nb_json_set(o, "output", nb_json_new_str(out));

    if (c->gguf) {
        ok = ok && nb_json_set(o, "layout", nb_json_new_str("gguf")) && nb_json_set(o, "linears", nb_json_new_int((int64_t)s->n_linears)) &&
             nb_json_set(o, "q4_0", nb_json_new_int((int64_t)s->n_blocks[0])) &&
             nb_json_set(o, "q4_1", nb_json_new_int((int64_t)s->n_blocks[1])) &&
             nb_json_set(o, "q8_0", nb_json_new_int((int64_t)s->n_blocks[2])) &&
             nb_json_set(o, "inexact", nb_json_new_int((int64_t)s->n_inexact)) &&
             nb_json_set(o, "rounded_scales", nb_json_new_int((int64_t)s->n_rounded)) &&
             nb_json_set(o, "max_change", nb_json_new_real(s->max_abs)) && nb_json_set(o, "max_steps", nb_json_new_real(s->max_step)) &&
             nb_json_set(o, "verified", nb_json_new_bool(s->verified));
    } else if (s->format) {
        ok = ok && nb_json_set(o, "from", nb_json_new_str(s->from->name)) && nb_json_set(o, "layout", nb_json_new_str(s->format->name)) &&
             nb_json_set(o, "linears", nb_json_new_int((int64_t)s->n_linears)) &&
             nb_json_set(o, "scales", nb_json_new_int((int64_t)s->n_scales)) &&
             nb_json_set(o, "rounded_scales", nb_json_new_int((int64_t)s->n_rounded)) &&
             nb_json_set(o, "repaired_linears", nb_json_new_int((int64_t)s->n_repaired)) &&
             nb_json_set(o, "verified", nb_json_new_bool(s->verified)) && nb_json_set(o, "bits_checked", nb_json_new_bool(s->bits_checked));
    } else {
        ok = ok && nb_json_set(o, "dtype", nb_json_new_str(nb_dtype_info(c->dtype)->name)) &&
             nb_json_set(o, "dequantized_linears", nb_json_new_int((int64_t)s->n_linears)) &&
             nb_json_set(o, "values", nb_json_new_int((int64_t)s->n_values)) &&
             nb_json_set(o, "inexact", nb_json_new_int((int64_t)s->n_inexact));
    }
    ok = ok && nb_json_set(o, "tensors", nb_json_new_int((int64_t)s->n_tensors)) &&
         nb_json_set(o, "copied_tensors", nb_json_new_int((int64_t)s->n_copied)) &&
         nb_json_set(o, "bytes", nb_json_new_int((int64_t)s->n_bytes)) &&
         nb_json_set(o, "max_relative_error", nb_json_new_real(s->max_rel)) && nb_json_set(o, "seconds", nb_json_new_real(s->seconds));
    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the summary");
}

static void print_layout(const nb_convert_sum *s)
{
    printf("; %zu linears from %s to %s", s->n_linears, s->from->name, s->format->name);
    if (s->n_repaired > 0)
        printf(", %zu repaired", s->n_repaired);
    if (s->n_rounded > 0)
        printf("; codes and zero points exact, %" PRIu64 " of %" PRIu64 " scales rounded, by at most %.1e of their size", s->n_rounded,
               s->n_scales, s->max_rel);
    else
        printf("; codes, zero points and scales exact");
    if (s->verified)
        printf("; read back and compared");
    if (s->bits_checked)
        printf("; every number equal");
}

static void print_gguf(const nb_convert_sum *s)
{
    static const char *const types[] = { "Q4_0", "Q4_1", "Q8_0" };

    for (size_t i = 0; i < NB_LEN(types); i++)
        if (s->n_blocks[i] > 0)
            printf("; %zu linears to %s", s->n_blocks[i], types[i]);
    if (s->n_rounded > 0)
        printf("; %" PRIu64 " scales rounded to float16", s->n_rounded);
    if (s->n_inexact > 0)
        printf("; codes exact, values change by at most %.2g (%.4f of a step): the minimum of a block is a float16", s->max_abs,
               s->max_step);
    else
        printf("; all values exact");
    if (s->verified)
        printf("; read back and compared");
}

static void print_text(const nb_convert_sum *s, const char *out, const nb_convert_opts *c)
{
    char bytes[32], name[NB_ESC_CAP];

    printf("%s: %zu tensors, %s", nb_esc(name, sizeof name, out, strlen(out)), s->n_tensors,
           nb_human_bytes(bytes, sizeof bytes, s->n_bytes));
    if (c->gguf || s->format) {
        if (c->gguf)
            print_gguf(s);
        else
            print_layout(s);
        printf("; %.1f s\n", s->seconds);
        return;
    }
    printf(", %s", nb_dtype_info(c->dtype)->name);
    if (s->n_linears > 0)
        printf("; %zu quantized linears widened", s->n_linears);
    if (s->n_values > 0 && s->n_inexact == 0)
        printf("; all values exact");
    else if (s->n_inexact > 0)
        printf("; %.1f %% of values rounded, by at most %.1e of their size", 100.0 * (double)s->n_inexact / (double)s->n_values,
               s->max_rel);
    printf("; %.1f s\n", s->seconds);
}

static nb_status set_repair(const char *what, nb_convert_opts *o, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (!what)
        return NB_OK;
    o->repair = strcmp(what, "zeros") == 0 ? NB_REPAIR_ZEROS : strcmp(what, "order") == 0 ? NB_REPAIR_ORDER : NB_REPAIR_NONE;
    if (o->repair == NB_REPAIR_NONE)
        return nb_fail(err, NB_EARG, "arg.value", "", "--repair is \"%s\"; expected zeros or order",
                       nb_esc(esc, sizeof esc, what, strlen(what)));
    if (o->dtype != NB_DT_NONE || o->gguf)
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--repair writes a layout; repair first, then convert the copy to %s",
                       o->gguf ? "gguf" : nb_dtype_info(o->dtype)->name);
    return NB_OK;
}

static nb_status set_scale_dtype(const char *name, nb_convert_opts *o, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (!name)
        return NB_OK;
    o->scale_dtype = nb_dtype_from_name(name);
    if (o->scale_dtype != NB_DT_F16 && o->scale_dtype != NB_DT_BF16 && o->scale_dtype != NB_DT_F32)
        return nb_fail(err, NB_EARG, "arg.value", "", "--scale-dtype is \"%s\"; expected f16, bf16 or f32",
                       nb_esc(esc, sizeof esc, name, strlen(name)));
    if (o->dtype != NB_DT_NONE || o->gguf)
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--scale-dtype belongs to layouts; --to %s has no choice of scales",
                       o->gguf ? "gguf" : nb_dtype_info(o->dtype)->name);
    return NB_OK;
}

static nb_status convert(nb_cli *cli, const char *in, const char *out, nb_convert_opts *o, nb_err *err)
{
    nb_convert_sum sum;
    nb_pool *pool = NULL;
    nb_status rc = nb_cli_pool(cli, &pool, err);

    if (rc == NB_OK) {
        o->pool = pool;
        o->host = &cli->host;
        rc = nb_convert(in, out, o, &sum, err);
        nb_cli_progress_end(cli);
    }
    nb_pool_close(pool);
    if (rc == NB_OK && cli->json)
        return print_json(&sum, out, o, err);
    if (rc == NB_OK)
        print_text(&sum, out, o);
    return rc;
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *to = NULL, *out = NULL, *repair = NULL, *scale = NULL, *args[1];
    double shard_gb = 5.0;
    int64_t bits = 0, group = 0;
    bool force = false, help = false, verify = false;
    nb_convert_opts o = { 0 };
    size_t n;
    const nb_opt opts[] = {
        { "--to", NB_OPT_STR, &to, 0, 0, "LAYOUT", "layout, or f16, bf16, f32" },
        { "-o,--output", NB_OPT_STR, &out, 0, 0, "OUT", "directory to write, or .gguf file" },
        { "--repair", NB_OPT_STR, &repair, 0, 0, "WHAT", "zeros or order: a corrected copy, when the values prove the fault" },
        { "--scale-dtype", NB_OPT_STR, &scale, 0, 0, "TYPE", "of scales: f16, bf16, f32 (default: as stored)" },
        { "--lossy", NB_OPT_FLAG, &o.lossy, 0, 0, NULL, "scales may be rounded to their new type" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "refuse when the codes have other bits" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "refuse when the groups have another size" },
        { "--verify", NB_OPT_FLAG, &verify, 0, 0, NULL, "read the result back and compare (default for layouts)" },
        { "--bits-check", NB_OPT_FLAG, &o.bits_check, 0, 0, NULL, "also compare input and result number by number" },
        { "--no-verify", NB_OPT_FLAG, &o.no_verify, 0, 0, NULL, "do not read the result back" },
        { "--force", NB_OPT_FLAG, &force, 0, 0, NULL, "replace an existing output" },
        { "--shard-size", NB_OPT_NUM, &shard_gb, 0.000001, 1000, "GB", "largest weight file (default 5)" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_convert, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n != 1)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "which model? usage: nibble %s", nb_cmd_convert.usage);
    if (rc == NB_OK && !to && !repair)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "--to is missing; expected a layout (nibble formats lists them), f16, bf16 or f32");
    if (rc == NB_OK && to)
        rc = nb_convert_target(to, &o, err);
    if (rc == NB_OK && verify && o.no_verify)
        rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--verify and --no-verify exclude each other");
    if (rc == NB_OK && o.bits_check && (o.gguf || o.dtype != NB_DT_NONE || repair || o.lossy))
        rc = nb_fail(
            err, NB_EARG, "arg.conflict", "",
            "--bits-check is for a layout, without --lossy or --repair: elsewhere numbers change by intention; nibble diff shows how");
    if (rc == NB_OK)
        rc = set_repair(repair, &o, err);
    if (rc == NB_OK)
        rc = set_scale_dtype(scale, &o, err);
    if (rc == NB_OK && !out)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "-o DIR is missing");
    if (rc != NB_OK)
        return rc;
    o.force = force;
    o.bits = (unsigned)bits;
    o.group_size = group;
    o.shard_bytes = (uint64_t)(shard_gb * 1e9);
    return convert(cli, args[0], out, &o, err);
}
