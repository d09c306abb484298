/* cmd_convert.c - `nibble convert MODEL --to TYPE -o DIR`. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/convert.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_convert;
const nb_cmd nb_cmd_convert = {
    .name = "convert",
    .usage = "convert MODEL --to f16|bf16|f32 -o DIR [options]",
    .brief = "a checkpoint in another form: GGUF import, dequantizer",
    .help = "Writes a complete Hugging Face directory: config.json, safetensors, tokenizer and chat template. Quantized\n"
            "linears and GGUF blocks become plain weights, every value rounded once; all other files are copied.\n"
            "DIR appears only when it is complete.\n\n"
            "  nibble convert model.gguf --to f16 -o model-f16\n"
            "  nibble convert model-awq --to bf16 -o model-bf16",
    .run = run,
};

static nb_status print_json(const nb_convert_sum *s, const char *out, const char *type, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    const bool ok =
        o && nb_json_set(o, "output", nb_json_new_str(out)) && nb_json_set(o, "dtype", nb_json_new_str(type)) &&
        nb_json_set(o, "tensors", nb_json_new_int((int64_t)s->n_tensors)) &&
        nb_json_set(o, "dequantized_linears", nb_json_new_int((int64_t)s->n_linears)) &&
        nb_json_set(o, "copied_tensors", nb_json_new_int((int64_t)s->n_copied)) &&
        nb_json_set(o, "bytes", nb_json_new_int((int64_t)s->n_bytes)) && nb_json_set(o, "values", nb_json_new_int((int64_t)s->n_values)) &&
        nb_json_set(o, "inexact", nb_json_new_int((int64_t)s->n_inexact)) &&
        nb_json_set(o, "max_relative_error", nb_json_new_real(s->max_rel)) && nb_json_set(o, "seconds", nb_json_new_real(s->seconds));

    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the summary");
}

static void print_text(const nb_convert_sum *s, const char *out, const char *type)
{
    char bytes[32], name[NB_ESC_CAP];

    printf("%s: %zu tensors, %s, %s", nb_esc(name, sizeof name, out, strlen(out)), s->n_tensors,
           nb_human_bytes(bytes, sizeof bytes, s->n_bytes), type);
    if (s->n_linears > 0)
        printf("; %zu quantized linears widened", s->n_linears);
    if (s->n_values > 0 && s->n_inexact == 0)
        printf("; all values exact");
    else if (s->n_inexact > 0)
        printf("; %.1f %% of values rounded, by at most %.1e of their size", 100.0 * (double)s->n_inexact / (double)s->n_values,
               s->max_rel);
    printf("; %.1f s\n", s->seconds);
}

static nb_status target(const char *to, nb_dtype *out, nb_err *err)
{
    char esc[NB_ESC_CAP];

    *out = to ? nb_dtype_from_name(to) : NB_DT_NONE;
    if (*out == NB_DT_F16 || *out == NB_DT_BF16 || *out == NB_DT_F32)
        return NB_OK;
    if (!to)
        return nb_fail(err, NB_EARG, "arg.missing", "", "--to is missing; expected f16, bf16 or f32");
    return nb_fail(err, NB_EARG, "arg.value", "", "--to is \"%s\"; expected f16, bf16 or f32", nb_esc(esc, sizeof esc, to, strlen(to)));
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *to = NULL, *out = NULL, *args[1];
    double shard_gb = 5.0;
    bool force = false, help = false;
    nb_convert_opts o = { 0 };
    nb_convert_sum sum;
    nb_pool *pool = NULL;
    size_t n;
    const nb_opt opts[] = {
        { "--to", NB_OPT_STR, &to, 0, 0, "TYPE", "f16, bf16 or f32" },
        { "-o,--output", NB_OPT_STR, &out, 0, 0, "DIR", "directory to write" },
        { "--force", NB_OPT_FLAG, &force, 0, 0, NULL, "replace an existing output" },
        { "--shard-size", NB_OPT_NUM, &shard_gb, 0.000001, 1000, "GB", "largest weight file (default 5)" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_convert, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n != 1)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "which model? usage: nibble %s", nb_cmd_convert.usage);
    if (rc == NB_OK)
        rc = target(to, &o.dtype, err);
    if (rc == NB_OK && !out)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "-o DIR is missing");
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &pool, err);
    if (rc == NB_OK) {
        o.force = force;
        o.shard_bytes = (uint64_t)(shard_gb * 1e9);
        o.pool = pool;
        o.host = &cli->host;
        rc = nb_convert(args[0], out, &o, &sum, err);
        nb_cli_progress_end(cli);
    }
    nb_pool_close(pool);
    if (rc != NB_OK)
        return rc;
    if (cli->json)
        return print_json(&sum, out, nb_dtype_info(o.dtype)->name, err);
    print_text(&sum, out, nb_dtype_info(o.dtype)->name);
    return NB_OK;
}
