/* cmd_eval.c - `nibble eval MODEL`: perplexity and distance from a reference, or logits to compare with other programs. One
 * function per kind of evaluation. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/dump.h"
#include "job/eval.h"
#include "job/load.h"

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_eval;
const nb_cmd nb_cmd_eval = {
    .name = "eval",
    .usage = "eval MODEL (--text FILE | --ids FILE[:NAME]) [--ref MODEL] | eval MODEL --input-ids FILE[:NAME] --dump OUT",
    .brief = "perplexity, distance from a reference model, or logits to compare",
    .help = "Perplexity: every row of --ids (I32 or I64, [R, T]) is an independent sequence from position 0; a --text is cut into\n"
            "windows of --window tokens, each with the tokenizer's BOS in front. --ref adds KL(reference || model) and top-1\n"
            "agreement on the same ids. Intervals are 95 %.\n"
            "Dump: runs the ids and writes logits, and on request hidden states and the greedy continuation, as safetensors.\n"
            "The KV cache is float32 in both.\n\n"
            "  nibble eval pemberley-awq --text eval.txt --window 256 --ref models/pemberley-4m\n"
            "  nibble eval MODEL --input-ids golden.safetensors:input_ids --dump out.safetensors --hidden --greedy 16",
    .run = run_eval,
};

typedef struct eval_args {
    const char *model, *text, *ids, *ref;
    int64_t window;
    nb_dump_opts dump;
} eval_args;

/* Store, layout and weights of one model; *l is zeroed by the caller and closed by it in any case. */
static nb_status open_model(nb_cli *cli, nb_loaded *l, const char *path, nb_pool *pool, nb_err *err)
{
    nb_model_opts mo = { .host = &cli->host, .pool = pool };
    nb_status rc = nb_cli_cpu(cli, &mo.kern, err);

    if (rc == NB_OK)
        rc = nb_load_store(l, path, &cli->host, err);
    return rc == NB_OK ? nb_load_model(l, &mo, err) : rc;
}

static nb_status eval_dump(nb_cli *cli, const eval_args *a, nb_pool *pool, nb_err *err)
{
    nb_dump_opts o = a->dump;
    nb_loaded l = { 0 };
    nb_dump_info info;
    nb_status rc = open_model(cli, &l, a->model, pool, err);

    o.host = &cli->host;
    o.pool = pool;
    if (rc == NB_OK)
        rc = nb_dump_run(l.model, &o, &info, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK)
        nb_cli_note(cli, "%s: %zu x %zu tokens, vocabulary %zu", o.out, info.rows, info.tokens, info.vocab);
    nb_load_close(&l);
    return rc;
}

/* ---- perplexity and distance ---- */

static void protocol(const eval_args *a, const nb_eval *v, bool bos, char *out, size_t cap)
{
    if (a->text)
        snprintf(out, cap, "%zu disjoint windows of %zu tokens%s, likelihood of all but the first token of each", v->rows, v->len,
                 bos ? " with BOS in front" : "");
    else
        snprintf(out, cap, "%zu rows of %zu tokens, each from position 0, likelihood of all but the first token of each", v->rows, v->len);
}

static bool set_mean(nb_json *o, const char *name, nb_mean m)
{
    nb_json *v = nb_json_new_obj();

    if (!nb_json_set(v, "mean", nb_json_new_real(m.mean)) || !nb_json_set(v, "ci95", nb_json_new_real(m.ci95))) {
        nb_json_free(v);
        return false;
    }
    return nb_json_set(o, name, v);
}

static nb_status print_json(const eval_args *a, const nb_eval *v, const char *how, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    bool ok = nb_json_set(o, "model", nb_json_new_str(a->model)) && nb_json_set(o, "data", nb_json_new_str(a->text ? a->text : a->ids)) &&
              nb_json_set(o, "protocol", nb_json_new_str(how)) && nb_json_set(o, "rows", nb_json_new_int((int64_t)v->rows)) &&
              nb_json_set(o, "row_tokens", nb_json_new_int((int64_t)v->len)) &&
              nb_json_set(o, "scored", nb_json_new_int((int64_t)v->scored)) && set_mean(o, "nll", v->nll) &&
              nb_json_set(o, "ppl", nb_json_new_real(v->ppl)) && nb_json_set(o, "ppl_lo", nb_json_new_real(v->ppl_lo)) &&
              nb_json_set(o, "ppl_hi", nb_json_new_real(v->ppl_hi));

    if (ok && v->has_ref)
        ok = nb_json_set(o, "ref", nb_json_new_str(a->ref)) && nb_json_set(o, "ref_ppl", nb_json_new_real(v->ref_ppl)) &&
             nb_json_set(o, "positions", nb_json_new_int((int64_t)v->positions)) && set_mean(o, "kl", v->kl) &&
             nb_json_set(o, "kl_sem", nb_json_new_real(v->kl_sem)) && nb_json_set(o, "kl_999", nb_json_new_real(v->kl_999)) &&
             nb_json_set(o, "kl_max", nb_json_new_real(v->kl_max)) && set_mean(o, "top1", v->top1);
    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

static void print_table(const eval_args *a, const nb_eval *v, const char *how)
{
    printf("%s on %s: %s\n\n", a->model, a->text ? a->text : a->ids, how);
    printf("  perplexity        %10.4f   95 %% %.4f .. %.4f   (%zu tokens, %.4f nats each)\n", v->ppl, v->ppl_lo, v->ppl_hi, v->scored,
           v->nll.mean);
    if (!v->has_ref)
        return;
    printf("  reference         %10.4f   %s\n", v->ref_ppl, a->ref);
    printf("  KL(ref || model)  %10.5f   +- %.5f   99.9 %% %.4f   max %.4f   (nats, %zu positions)\n", v->kl.mean, v->kl.ci95, v->kl_999,
           v->kl_max, v->positions);
    printf("  top-1 agreement   %9.2f %%   +- %.2f\n", 100 * v->top1.mean, 100 * v->top1.ci95);
}

static nb_status eval_score(nb_cli *cli, const eval_args *a, nb_pool *pool, nb_err *err)
{
    nb_loaded own = { 0 }, ref = { 0 };
    nb_idrows ids = { 0 };
    nb_eval_opts o = { .ids = &ids, .exact_fp32 = a->dump.exact_fp32, .pool = pool, .host = &cli->host };
    nb_eval v;
    bool bos = false;
    char how[256];
    nb_status rc = a->text ? nb_load_text(&own, a->model, err) : nb_idrows_read(&ids, a->ids, 0, err);

    if (rc == NB_OK)
        rc = open_model(cli, &own, a->model, pool, err);
    if (rc == NB_OK && a->text) {
        const size_t context = nb_model_config(own.model)->context;
        const size_t wanted = a->window ? (size_t)a->window : 512;
        rc = nb_idrows_text(&ids, own.tok, a->text, context && wanted > context && !a->window ? context : wanted, &bos, err);
    }
    if (rc == NB_OK && a->ref)
        rc = open_model(cli, &ref, a->ref, pool, err);
    if (rc == NB_OK)
        rc = nb_eval_run(own.model, ref.model, &o, &v, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK) {
        protocol(a, &v, bos, how, sizeof how);
        if (cli->json)
            rc = print_json(a, &v, how, err);
        else
            print_table(a, &v, how);
    }
    nb_idrows_clear(&ids);
    nb_load_close(&own);
    nb_load_close(&ref);
    return rc;
}

/* ---- options ---- */

static nb_status check_args(const eval_args *a, size_t n, nb_err *err)
{
    const int kinds = (a->text != NULL) + (a->ids != NULL) + (a->dump.ids != NULL);

    if (n == 0)
        return nb_fail(err, NB_EARG, "arg.missing", "", "MODEL is missing; usage: nibble %s", nb_cmd_eval.usage);
    if (kinds != 1)
        return nb_fail(err, NB_EARG, "arg.missing", "", "give one of --text, --ids and --input-ids; usage: nibble %s", nb_cmd_eval.usage);
    if ((a->dump.ids != NULL) != (a->dump.out != NULL))
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--input-ids and --dump go together; usage: nibble %s", nb_cmd_eval.usage);
    if (a->dump.ids && a->ref)
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--ref compares on --text or --ids");
    return NB_OK;
}

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    eval_args a = { 0 };
    int64_t greedy = 0;
    nb_pool *pool = NULL;
    const nb_opt opts[] = {
        { "--text", NB_OPT_STR, &a.text, 0, 0, "FILE", "perplexity of this text" },
        { "--ids", NB_OPT_STR, &a.ids, 0, 0, "FILE[:NAME]", "perplexity of token ids in a safetensors file" },
        { "--window", NB_OPT_INT, &a.window, 2, 1e7, "N", "tokens of a window of --text (512, at most the context)" },
        { "--ref", NB_OPT_STR, &a.ref, 0, 0, "MODEL", "also KL and top-1 agreement against this model" },
        { "--input-ids", NB_OPT_STR, &a.dump.ids, 0, 0, "FILE[:NAME]", "token ids to run (input_ids, or the only tensor)" },
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
    if (rc == NB_OK)
        rc = check_args(&a, n, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &pool, err);
    if (rc == NB_OK)
        rc = a.dump.ids ? eval_dump(cli, &a, pool, err) : eval_score(cli, &a, pool, err);
    nb_pool_close(pool);
    return rc;
}
