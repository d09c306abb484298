/* cmd_formats.c - `nibble formats`: what is read and written. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/explain.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_formats;
const nb_cmd nb_cmd_formats = {
    .name = "formats",
    .usage = "formats",
    .brief = "the layouts that are read and written",
    .help = "One line per layout of quantized linears. convert --to takes the names, and short ones: awq, gptq, gptq-v2, ct.\n\n"
            "  nibble formats\n"
            "  nibble formats --json",
    .run = run,
};

static const char *yes(const nb_json *o, const char *key)
{
    return nb_json_bool(nb_json_get(o, key), false) ? "yes" : "-";
}

static void print_table(const nb_json *rows)
{
    printf("%-20s %-6s %-6s %-16s %-12s %-10s %s\n", "layout", "read", "write", "bits", "zero points", "act-order", "bits per module");
    for (size_t i = 0; i < nb_json_len(rows); i++) {
        const nb_json *o = nb_json_at(rows, i), *bits = nb_json_get(o, "bits");
        char text[32] = "";
        for (size_t b = 0, at = 0; b < nb_json_len(bits); b++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", b ? " " : "", (int)nb_json_int(nb_json_at(bits, b), 0));
        printf("%-20s %-6s %-6s %-16s %-12s %-10s %s\n", nb_json_str(nb_json_get(o, "name"), ""), yes(o, "read"), yes(o, "write"), text,
               yes(o, "zero_points"), yes(o, "act_order"), yes(o, "per_module"));
    }
    printf("\nconvert --to f16, bf16 and f32 writes plain weights.\n");
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    bool help = false;
    nb_json *rows;
    size_t n;
    const nb_status rc = nb_cli_parse(cli, &nb_cmd_formats, NULL, 0, argc, argv, NULL, 0, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc != NB_OK)
        return rc;
    rows = nb_formats_json();
    if (!rows)
        return nb_enomem(err, "the table");
    if (cli->json)
        nb_cli_json(rows);
    else
        print_table(rows);
    nb_json_free(rows);
    return NB_OK;
}
