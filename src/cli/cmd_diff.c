/* cmd_diff.c - `nibble diff A B`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/diff.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_diff;
const nb_cmd nb_cmd_diff = {
    .name = "diff",
    .usage = "diff A B [options]",
    .brief = "two checkpoints: same codes, same values, largest difference",
    .help = "Compares tensor by tensor, across layouts: a quantized linear stands for the weights it decodes to, so an AWQ model\n"
            "compares with its GPTQ conversion, and both with the 16-bit original. Exit code 1 when something differs.\n\n"
            "  nibble diff model-awq model-gptq\n"
            "  nibble diff model-awq model-bf16 --tolerance 0.2\n"
            "  nibble diff before after --json",
    .run = run,
};

static void print_row(const nb_diff_row *r)
{
    char name[NB_ESC_CAP];

    nb_esc(name, sizeof name, r->name, strlen(r->name));
    switch (r->kind) {
    case NB_DIFF_ONLY_A:
    case NB_DIFF_ONLY_B:
        printf("  %s: only in %c (%s)\n", name, r->kind == NB_DIFF_ONLY_A ? 'A' : 'B', r->a[0] ? r->a : r->b);
        return;
    case NB_DIFF_SHAPE:
    case NB_DIFF_TYPE:
        printf("  %s: %s against %s\n", name, r->a, r->b);
        return;
    default:
        break;
    }
    printf("  %s: %" PRIu64 " of %" PRIu64 " values differ", name, r->n_values, r->n);
    if (r->max_abs > 0)
        printf(", by at most %.3g (values reach %.3g)", r->max_abs, r->max_size);
    if (r->codes)
        printf("; %" PRIu64 " codes, %" PRIu64 " zero points, %" PRIu64 " scales", r->n_codes, r->n_zeros, r->n_scales);
    printf("\n");
}

static void print_text(const nb_diff *d, size_t shown)
{
    const nb_diff_row *worst = d->n_rows ? &d->rows[d->worst] : NULL;
    size_t n = 0, listed = 0;
    char name[NB_ESC_CAP];

    for (size_t i = 0; i < d->n_rows; i++) {
        const nb_diff_row *r = &d->rows[i];
        if (r->kind == NB_DIFF_SAME && r->n_codes + r->n_zeros + r->n_scales == 0)
            continue;
        n++;
        if (listed < shown) {
            print_row(r);
            listed++;
        }
    }
    if (n > listed)
        printf("  ... and %zu more (--all lists them)\n", n - listed);
    if (d->n_quantized > 0)
        printf("codes     %zu of %zu linears have the same codes, zero points and scales\n", d->n_same_codes, d->n_quantized);
    printf("values    %zu of %zu tensors differ\n", d->n_different, d->n_rows);
    if (worst && worst->max_abs > 0)
        printf("largest   %.3g in %s, whose values reach %.3g\n", worst->max_abs,
               nb_esc(name, sizeof name, worst->name, strlen(worst->name)), worst->max_size);
    printf("verdict   %s\n", d->n_different ? "different" : "same");
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[2];
    bool help = false, all = false;
    nb_diff_opts o = { 0 };
    nb_diff d = { 0 };
    nb_pool *pool = NULL;
    size_t n;
    const nb_opt opts[] = {
        { "--tolerance", NB_OPT_NUM, &o.tolerance, 0, 1e9, "X", "largest difference that counts as equal, relative to the largest value" },
        { "--all", NB_OPT_FLAG, &all, 0, 0, NULL, "list every tensor that differs, not only the first 20" },
    };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_diff, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n != 2)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "diff needs two models: nibble %s", nb_cmd_diff.usage);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &pool, err);
    if (rc != NB_OK)
        return rc;
    o.pool = pool;
    o.host = &cli->host;
    rc = nb_diff_run(args[0], args[1], &o, &d, err);
    nb_cli_progress_end(cli);
    nb_pool_close(pool);
    if ((rc == NB_OK || rc == NB_NO) && cli->json) {
        nb_json *v = nb_diff_json(&d, args[0], args[1]);
        if (v)
            nb_cli_json(v);
        else
            rc = nb_enomem(err, "the answer");
        nb_json_free(v);
    } else if (rc == NB_OK || rc == NB_NO) {
        print_text(&d, all ? SIZE_MAX : 20);
    }
    nb_diff_clear(&d);
    return rc;
}
