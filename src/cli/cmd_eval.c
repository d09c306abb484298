/* cmd_eval.c - `nibble eval MODEL`: what a model computes, as numbers to compare. One function per kind of evaluation. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/dump.h"
#include "job/load.h"

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_eval;
const nb_cmd nb_cmd_eval = {
    .name = "eval",
    .usage = "eval MODEL --input-ids FILE[:NAME] --dump OUT [options]",
    .brief = "logits and hidden states of given token ids",
    .help = "Runs the ids (I32 or I64, [T] or [R, T]: R independent sequences) and writes logits, and on request hidden states and\n"
            "the greedy continuation, as one safetensors file. The KV cache is float32.\n\n"
            "  nibble eval MODEL --input-ids golden.safetensors:input_ids --dump out.safetensors --hidden --greedy 16",
    .run = run_eval,
};

typedef struct eval_args {
    const char *model;
    nb_dump_opts dump;
} eval_args;

static nb_status eval_dump(nb_cli *cli, const eval_args *a, nb_err *err)
{
    nb_dump_opts o = a->dump;
    nb_model_opts mo = { .host = &cli->host };
    nb_loaded l = { 0 };
    nb_dump_info info;
    nb_status rc = nb_cli_cpu(cli, &mo.kern, err);

    o.host = &cli->host;
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &o.pool, err);
    mo.pool = o.pool;
    if (rc == NB_OK)
        rc = nb_load_store(&l, a->model, &cli->host, err);
    if (rc == NB_OK)
        rc = nb_load_model(&l, &mo, err);
    if (rc == NB_OK)
        rc = nb_dump_run(l.model, &o, &info, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK)
        nb_cli_note(cli, "%s: %zu x %zu tokens, vocabulary %zu", o.out, info.rows, info.tokens, info.vocab);
    nb_load_close(&l);
    nb_pool_close(o.pool);
    return rc;
}

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    eval_args a = { 0 };
    int64_t greedy = 0;
    const nb_opt opts[] = {
        { "--input-ids", NB_OPT_STR, &a.dump.ids, 0, 0, "FILE[:NAME]", "token ids in a safetensors file (input_ids, or its only tensor)" },
        { "--dump", NB_OPT_STR, &a.dump.out, 0, 0, "OUT", "write logits to this safetensors file" },
        { "--hidden", NB_OPT_FLAG, &a.dump.hidden, 0, 0, NULL, "also the hidden states" },
        { "--greedy", NB_OPT_INT, &greedy, 0, 1e6, "N", "also the N most likely ids that follow" },
        { "--exact-fp32", NB_OPT_FLAG, &a.dump.exact_fp32, 0, 0, NULL, "float32 activations in 4-bit linears" },
        { "--force", NB_OPT_FLAG, &a.dump.force, 0, 0, NULL, "replace OUT" },
    };
    bool help;
    size_t n;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_eval, opts, NB_LEN(opts), argc, argv, &a.model, 1, &n, &help, err);

    if (help)
        return NB_OK;
    a.dump.greedy = (size_t)greedy;
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "usage.argument", "", "MODEL is missing; usage: nibble %s", nb_cmd_eval.usage);
    if (rc == NB_OK && (!a.dump.ids || !a.dump.out))
        rc = nb_fail(err, NB_EARG, "usage.argument", "", "%s is missing; usage: nibble %s", a.dump.ids ? "--dump" : "--input-ids",
                     nb_cmd_eval.usage);
    return rc == NB_OK ? eval_dump(cli, &a, err) : rc;
}
