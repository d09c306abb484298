/* cmd_eval.c - `nibble eval MODEL`: perplexity and distance from a reference, or logits to compare with other programs. One
 * function per kind of evaluation. */
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/eval_print.h"
#include "job/dump.h"
#include "job/eval_json.h"
#include "job/load.h"
#include "job/page_eval.h"

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_eval;
const nb_cmd nb_cmd_eval = {
    .name = "eval",
    .usage = "eval MODEL... (--text FILE | --ids FILE[:NAME] | --choices FILE) [--ref MODEL] | eval MODEL --input-ids FILE --dump OUT",
    .brief = "perplexity, distance from a reference model, accuracy, or logits to compare",
    .help = "Perplexity of each MODEL by a named protocol: windows-N (default), gptq-N as in the GPTQ and AWQ papers, llama.cpp-N,\n"
            "strided-N-S, documents-N as lm-eval (also per word and byte). A .jsonl file has a document a line (\"text\"). Several --text\n"
            "files are also reported apart. Every row of --ids (I32 or I64, [R, T]) is a sequence of its own.\n"
            "--ref runs a reference model beside: KL(reference || model) with median, 99 %, 99.9 % and maximum, top-1 and top-5\n"
            "agreement (the reference's most likely token is the model's, is among its five). --save-logits keeps the reference's\n"
            "likeliest tokens in a small file instead, resumable, that --ref-logits compares with later.\n"
            "--choices is multiple choice: lines of {\"query\", \"choices\", \"gold\"}, by lm-eval's log-likelihood rule.\n"
            "Intervals are 95 %, by a seeded bootstrap over documents, rows or windows. The KV cache is float32.\n"
            "--dump runs ids and writes logits, and on request hidden states and the greedy continuation, as safetensors.\n\n"
            "  nibble eval pemberley-awq --text eval.txt --window 256 --ref models/pemberley-4m\n"
            "  nibble eval A B C --text wiki.jsonl --protocol gptq-2048 --ref R --layers --report eval.html\n"
            "  nibble eval R --text wiki.txt --save-logits r.topk && nibble eval A --text wiki.txt --ref-logits r.topk\n"
            "  nibble eval MODEL --choices arc.jsonl\n"
            "  nibble eval MODEL --input-ids golden.safetensors:input_ids --dump out.safetensors --hidden --greedy 16",
    .run = run_eval,
};

typedef struct eval_args {
    const char *models[NB_EVAL_MODELS], *ids, *ref, *ref_logits, *save, *choices, *protocol, *report;
    nb_strlist text;
    size_t n_models;
    int64_t window, stride, limit, top, resamples, seed;
    bool layers;
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
    nb_status rc = open_model(cli, &l, a->models[0], pool, err);

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

/* ---- perplexity, distance, accuracy ---- */

typedef struct evaluation {
    nb_cli *cli;
    const eval_args *a;
    nb_pool *pool;
    nb_loaded own[NB_EVAL_MODELS], ref;
    nb_model *model[NB_EVAL_MODELS];
    nb_idrows rows;
    nb_evalset set;
    nb_topk topk;
    nb_choiceset questions;
    nb_eval eval;
    nb_choice_score choice[NB_EVAL_MODELS + 1];
    nb_layer_errors layers[NB_EVAL_MODELS];
    nb_inspect *what; /* [n_models + 1], for the page */
    nb_out *page;
    nb_eval_opts o;
    char data[512];
} evaluation;

static nb_status read_set(evaluation *s, nb_err *err)
{
    const eval_args *a = s->a;
    const nb_config *c = nb_model_config(s->model[0]);
    const nb_evalset_text t = { .files = a->text.v,
                                .n_files = a->text.n,
                                .protocol = a->protocol,
                                .window = (size_t)a->window,
                                .stride = (size_t)a->stride,
                                .context = c->context,
                                .bos = (int32_t)c->bos_id,
                                .eos = c->n_eos ? (int32_t)c->eos_id[0] : -1,
                                .limit = (size_t)a->limit };
    char esc[NB_ESC_CAP];
    nb_status rc;

    nb_esc(esc, sizeof esc, a->ids ? a->ids : a->text.v[0], strlen(a->ids ? a->ids : a->text.v[0]));
    snprintf(s->data, sizeof s->data, a->text.n > 1 ? "%.400s and %zu more" : "%.400s", esc, a->text.n - 1);
    if (a->text.n)
        return nb_evalset_read(&s->set, s->own[0].tok, &t, err);
    rc = nb_idrows_read(&s->rows, a->ids, 0, err);
    return rc == NB_OK ? nb_evalset_rows(&s->set, &s->rows, a->ids, (size_t)a->limit, err) : rc;
}

static nb_status read_choices(evaluation *s, nb_err *err)
{
    const nb_config *c = nb_model_config(s->model[0]);
    const nb_choice_opts o = { .context = c->context,
                               .prefix = c->bos_id >= 0 ? (int32_t)c->bos_id
                                         : c->n_eos     ? (int32_t)c->eos_id[0]
                                                        : -1,
                               .limit = (size_t)s->a->limit };

    return nb_choiceset_read(&s->questions, s->own[0].tok, s->a->choices, &o, err);
}

static nb_status open_all(evaluation *s, nb_err *err)
{
    const eval_args *a = s->a;
    nb_status rc = a->report ? nb_out_open(&s->page, a->report, a->dump.force, err) : NB_OK;

    if (rc == NB_OK && (a->text.n || a->choices))
        rc = nb_load_text(&s->own[0], a->models[0], err);
    for (size_t i = 0; rc == NB_OK && i < a->n_models; i++) {
        rc = open_model(s->cli, &s->own[i], a->models[i], s->pool, err);
        s->model[i] = s->own[i].model;
    }
    if (rc == NB_OK && (a->text.n || a->ids))
        rc = read_set(s, err);
    if (rc == NB_OK && a->choices)
        rc = read_choices(s, err);
    if (rc == NB_OK && a->ref_logits)
        rc = nb_topk_open(&s->topk, a->ref_logits, err);
    return rc == NB_OK && a->ref ? open_model(s->cli, &s->ref, a->ref, s->pool, err) : rc;
}

static nb_status run_choices(evaluation *s, nb_err *err)
{
    const size_t n = s->a->n_models, all = s->questions.n_choices;
    double *ll = nb_alloc_array(all, 2 * sizeof *ll), *ref_ll = ll ? ll + all : NULL;
    nb_status rc = ll ? NB_OK : nb_enomem(err, "the answers");

    if (rc == NB_OK && s->ref.model) {
        rc = nb_choice_run(s->ref.model, &s->questions, &s->o, ref_ll, err);
        if (rc == NB_OK)
            rc = nb_choice_sum(&s->questions, ref_ll, NULL, &s->o, &s->choice[n], err);
    }
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        rc = nb_choice_run(s->model[i], &s->questions, &s->o, ll, err);
        if (rc == NB_OK)
            rc = nb_choice_sum(&s->questions, ll, s->ref.model ? ref_ll : NULL, &s->o, &s->choice[i], err);
    }
    nb_free(ll);
    return rc;
}

static nb_status measure(evaluation *s, nb_err *err)
{
    const eval_args *a = s->a;
    nb_status rc = NB_OK;

    if (s->set.n_win)
        rc = nb_eval_run(s->model, a->n_models, s->ref.model, a->ref_logits ? &s->topk : NULL, &s->o, &s->eval, err);
    for (size_t i = 0; rc == NB_OK && a->layers && i < a->n_models; i++) {
        nb_err why = { 0 };
        rc = nb_eval_layers(s->model[i], s->ref.model, &s->o, 0, &s->layers[i], &why);
        if (rc == NB_EUNSUPPORTED) { /* models whose layers cannot be run apart: the rest of the answer stands */
            nb_cli_note(s->cli, "%s: no errors of layers: %s", a->models[i], why.what);
            rc = NB_OK;
        } else if (rc != NB_OK && err) {
            *err = why;
        }
    }
    return rc == NB_OK && a->choices ? run_choices(s, err) : rc;
}

/* The HTML page under its final name. */
static nb_status write_page(evaluation *s, nb_eval_all *all, nb_err *err)
{
    const eval_args *a = s->a;
    nb_out *out = s->page;
    nb_buf b = { 0 };
    nb_status rc;

    s->what = nb_calloc(a->n_models + 1, sizeof *s->what);
    if (!s->what)
        return nb_enomem(err, "the page");
    for (size_t i = 0; i < a->n_models + (a->ref != NULL); i++) { /* what cannot be read again is left out */
        nb_err skip = { 0 };
        (void)nb_inspect_path(i < a->n_models ? a->models[i] : a->ref, 0, &s->what[i], &skip);
    }
    all->what = s->what;
    nb_page_eval(&b, all, "nibble " NB_VERSION);
    rc = b.failed ? nb_enomem(err, "the page") : nb_out_write(out, b.p, b.n, err);
    if (rc == NB_OK) {
        s->page = NULL;
        rc = nb_out_commit(out, err);
    }
    nb_buf_clear(&b);
    if (rc == NB_OK)
        nb_cli_note(s->cli, "%s: the same as a page", a->report);
    return rc;
}

static nb_status show(evaluation *s, nb_err *err)
{
    const eval_args *a = s->a;
    nb_eval_hints hints;
    nb_eval_all all = { .n_models = a->n_models,
                        .models = a->models,
                        .ref = a->ref ? a->ref : a->ref_logits,
                        .data = s->set.n_win ? s->data : a->choices,
                        .set = s->set.n_win ? &s->set : NULL,
                        .eval = s->set.n_win ? &s->eval : NULL,
                        .choice_file = a->choices,
                        .choice = a->choices ? s->choice : NULL,
                        .layers = a->layers ? s->layers : NULL };
    nb_json *j;

    nb_eval_hint(&all, &hints);
    if (s->cli->json) {
        j = nb_eval_json(&all);
        if (!j)
            return nb_enomem(err, "the result");
        nb_cli_json(j);
        nb_json_free(j);
    } else {
        nb_eval_print(&all);
    }
    for (size_t i = 0; i < all.n_hints; i++)
        nb_cli_note(s->cli, "hint: %s", all.hints[i]);
    return a->report ? write_page(s, &all, err) : NB_OK;
}

static nb_status save(evaluation *s, nb_err *err)
{
    const nb_status rc = nb_eval_save(s->model[0], s->a->save, (size_t)s->a->top, s->a->dump.force, &s->o, err);

    nb_cli_progress_end(s->cli);
    if (rc == NB_OK)
        nb_cli_note(s->cli, "%s: %zu positions (%s)", s->a->save, s->set.positions, s->set.protocol);
    return rc;
}

static nb_status eval_score(nb_cli *cli, const eval_args *a, nb_pool *pool, nb_err *err)
{
    evaluation *s = nb_calloc(1, sizeof *s);
    nb_status rc;

    if (!s)
        return nb_enomem(err, "the evaluation");
    s->cli = cli;
    s->a = a;
    s->pool = pool;
    s->o = (nb_eval_opts){ .set = &s->set,
                           .exact_fp32 = a->dump.exact_fp32,
                           .a8 = a->dump.a8,
                           .resamples = (size_t)a->resamples,
                           .seed = (uint64_t)a->seed,
                           .pool = pool,
                           .host = &cli->host };
    rc = open_all(s, err);
    if (rc == NB_OK && a->save) {
        rc = save(s, err);
    } else if (rc == NB_OK) {
        rc = measure(s, err);
        nb_cli_progress_end(cli);
        if (rc == NB_OK)
            rc = show(s, err);
    }
    nb_eval_clear(&s->eval);
    nb_evalset_clear(&s->set);
    nb_choiceset_clear(&s->questions);
    nb_topk_close(&s->topk);
    nb_idrows_clear(&s->rows);
    for (size_t i = 0; i < a->n_models; i++) {
        nb_layer_errors_clear(&s->layers[i]);
        nb_load_close(&s->own[i]);
    }
    nb_load_close(&s->ref);
    nb_out_abort(s->page);
    nb_free(s->what);
    nb_free(s);
    return rc;
}

/* ---- options ---- */

static nb_status conflict(const char *what, nb_err *err)
{
    return nb_fail(err, NB_EARG, "arg.conflict", "", "%s", what);
}

static nb_status check_args(const eval_args *a, nb_err *err)
{
    const bool text = a->text.n > 0, dump = a->dump.ids || a->dump.out;

    if (a->n_models == 0)
        return nb_fail(err, NB_EARG, "arg.missing", "", "which MODEL? nibble eval --help");
    if (text + (a->ids != NULL) + dump > 1)
        return conflict("--text, --ids and --input-ids exclude each other", err);
    if (dump && (!a->dump.ids || !a->dump.out))
        return conflict("--input-ids and --dump go together", err);
    if (dump && (a->n_models > 1 || a->choices))
        return conflict("--dump writes the logits of one model", err);
    if (dump && (a->ref || a->ref_logits || a->save || a->report || a->layers))
        return conflict("--dump only writes logits; --text or --ids measure", err);
    if (!text && !a->ids && !dump && !a->choices)
        return nb_fail(err, NB_EARG, "arg.missing", "", "nothing to measure: give --text FILE, --ids FILE or --choices FILE");
    if (!dump && (a->dump.hidden || a->dump.greedy))
        return conflict("--hidden and --greedy go with --dump", err);
    if ((a->protocol || a->window || a->stride) && !text)
        return conflict("--protocol, --window and --stride cut a --text", err);
    if (a->ref && a->ref_logits)
        return conflict("--ref and --ref-logits exclude each other", err);
    if ((a->ref_logits || a->layers) && !text && !a->ids)
        return conflict("--ref-logits and --layers compare on --text or --ids", err);
    if (a->layers && !a->ref)
        return conflict("--layers needs --ref MODEL", err);
    if (a->save && (a->n_models > 1 || a->ref || a->ref_logits || a->choices || a->report || (!text && !a->ids)))
        return conflict("--save-logits runs one MODEL over --text or --ids, nothing else", err);
    return NB_OK;
}

static nb_status run_eval(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    eval_args a = { .resamples = 1000, .seed = 1, .top = NB_TOPK_DEFAULT };
    int64_t greedy = 0;
    const char *act = NULL;
    nb_pool *pool = NULL;
    const nb_opt opts[] = {
        { "--text", NB_OPT_LIST, &a.text, 0, 0, "FILE", "perplexity of this text or .jsonl; may be repeated" },
        { "--ids", NB_OPT_STR, &a.ids, 0, 0, "FILE[:NAME]", "perplexity of token ids in a safetensors file" },
        { "--protocol", NB_OPT_STR, &a.protocol, 0, 0, "NAME", "windows, gptq, llama.cpp, strided or documents, with sizes: gptq-2048" },
        { "--window", NB_OPT_INT, &a.window, 2, 1e7, "N", "tokens of a window (of the protocol: 512; gptq, documents 2048)" },
        { "--stride", NB_OPT_INT, &a.stride, 1, 1e7, "N", "tokens from one strided window to the next (half a window)" },
        { "--limit", NB_OPT_INT, &a.limit, 1, 1e9, "N", "read only the first N windows or rows, questions of --choices" },
        { "--ref", NB_OPT_STR, &a.ref, 0, 0, "MODEL", "also KL, top-1 and top-5 agreement against this model" },
        { "--ref-logits", NB_OPT_STR, &a.ref_logits, 0, 0, "FILE", "the same against logits saved before" },
        { "--save-logits", NB_OPT_STR, &a.save, 0, 0, "FILE", "save the likeliest tokens of MODEL at every position" },
        { "--top", NB_OPT_INT, &a.top, 1, NB_TOPK_MAX, "N", "how many of them (128)" },
        { "--layers", NB_OPT_FLAG, &a.layers, 0, 0, NULL, "also the output error of every decoder layer against --ref" },
        { "--choices", NB_OPT_STR, &a.choices, 0, 0, "FILE", "accuracy on multiple choice questions, a .jsonl file" },
        { "--report", NB_OPT_STR, &a.report, 0, 0, "FILE.html", "write everything as one HTML page with charts" },
        { "--resamples", NB_OPT_INT, &a.resamples, 1, 1e6, "N", "draws of the bootstrap (1000)" },
        { "--seed", NB_OPT_INT, &a.seed, 0, 9e15, "N", "of the bootstrap (1)" },
        { "--input-ids", NB_OPT_STR, &a.dump.ids, 0, 0, "FILE[:NAME]", "token ids to run (input_ids, or the only tensor)" },
        { "--dump", NB_OPT_STR, &a.dump.out, 0, 0, "OUT", "write logits to this safetensors file" },
        { "--hidden", NB_OPT_FLAG, &a.dump.hidden, 0, 0, NULL, "also the hidden states" },
        { "--greedy", NB_OPT_INT, &greedy, 0, 1e6, "N", "also the N most likely ids that follow" },
        { "--act", NB_OPT_STR, &act, 0, 0, NB_CLI_ACT, NB_CLI_ACT_HELP },
        { "--exact-fp32", NB_OPT_FLAG, &a.dump.exact_fp32, 0, 0, NULL, "float32 activations in 4-bit linears" },
        { "--force", NB_OPT_FLAG, &a.dump.force, 0, 0, NULL, "replace OUT, or the file of --report or --save-logits" },
    };
    bool help;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_eval, opts, NB_LEN(opts), argc, argv, a.models, NB_EVAL_MODELS, &a.n_models, &help, err);

    if (help)
        return NB_OK;
    a.dump.greedy = (size_t)greedy;
    if (rc == NB_OK)
        rc = check_args(&a, err);
    if (rc == NB_OK)
        rc = nb_cli_act(act, a.dump.exact_fp32, &a.dump.a8, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &pool, err);
    if (rc == NB_OK)
        rc = a.dump.ids ? eval_dump(cli, &a, pool, err) : eval_score(cli, &a, pool, err);
    nb_pool_close(pool);
    return rc;
}
