/* cmd_plan.c - `nibble plan MODEL`: will it fit, how many users, at which context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "job/capacity.h"
#include "job/doctor.h"

static nb_status run_plan(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_plan;
const nb_cmd nb_cmd_plan = {
    .name = "plan",
    .usage = "plan MODEL [--gpu NAME | --memory SIZE] [--tp N] [--context N] [options]",
    .brief = "will it fit, how many users at once, at which context",
    .help =
        "Weights, key-value cache and workspace against the memory of this machine, of --memory, or of a GPU of the table (--gpu list).\n"
        "Reads headers only; a directory with config.json alone will do, with --bits and --group-size for what is planned.\n"
        "--context is prompt and answer of the longest request; --prompt and --output are the usual ones. Speeds are bounds from\n"
        "bandwidth and arithmetic, not promises; --measure takes the bandwidth of this machine.\n\n"
        "  nibble plan MODEL --context 8192 --measure\n"
        "  nibble plan MODEL --gpu rtx-4090 --prompt 2000 --output 500\n"
        "  nibble plan MODEL --gpu h100-sxm --tp 4 --kv fp8 --json",
    .run = run_plan,
};

typedef struct plan_args {
    const char *model[1], *gpu, *memory, *kv, *act;
    int64_t tp, context, prompt, output, seqs, chunk, bits, group;
    double share, bandwidth, tflops;
    bool measure;
} plan_args;

static nb_status list_gpus(const nb_cli *cli, nb_err *err)
{
    nb_json *list = cli->json ? nb_json_new_arr() : NULL;
    bool ok = !cli->json || list;
    nb_gpu g;

    for (size_t i = 0; ok && i < nb_gpu_count(); i++) {
        if (nb_gpu_at(i, &g, err) != NB_OK)
            break;
        if (!cli->json) {
            printf("%-18s %-7s %-7s %4.0f GiB  %5.0f GB/s  %5.0f TFLOPS\n", g.name, g.vendor, g.arch, (double)g.memory / (1 << 30),
                   g.bandwidth / 1e9, g.flops / 1e12);
            continue;
        }
        nb_json *o = nb_json_new_obj();
        ok = nb_json_push(list, o) && nb_json_set(o, "name", nb_json_new_str(g.name)) &&
             nb_json_set(o, "vendor", nb_json_new_str(g.vendor)) && nb_json_set(o, "arch", nb_json_new_str(g.arch)) &&
             nb_json_set(o, "memory", nb_json_new_int((int64_t)g.memory)) && nb_json_set(o, "bandwidth", nb_json_new_real(g.bandwidth)) &&
             nb_json_set(o, "flops", nb_json_new_real(g.flops));
    }
    if (cli->json && ok)
        nb_cli_json(list);
    nb_json_free(list);
    return ok ? err->code : nb_enomem(err, "the table");
}

static nb_status find_device(nb_cli *cli, const plan_args *a, nb_cap_opts *o, nb_gpu *g, nb_err *err)
{
    nb_status rc = NB_OK;

    memset(g, 0, sizeof *g);
    if (a->gpu && a->memory)
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--gpu and --memory exclude each other");
    o->gpu = a->gpu != NULL;
    o->share = a->share > 0 ? a->share : o->gpu ? 0.9 : a->memory ? 1 : 0.9;
    o->reserve = o->gpu ? (uint64_t)1 << 30 : (uint64_t)128 << 20; /* context and graphs; process, tokenizer and grammars */
    if (a->gpu) {
        rc = nb_gpu_find(a->gpu, g, err);
        o->memory = g->memory;
        o->bandwidth = g->bandwidth;
        o->flops = g->flops;
    } else {
        snprintf(g->name, sizeof g->name, "%s", a->memory ? "memory given" : "this machine");
        o->memory = nb_mem_total();
        if (a->memory)
            rc = nb_cli_size("--memory", a->memory, "24G or 16GiB", &o->memory, err);
    }
    if (a->bandwidth > 0)
        o->bandwidth = a->bandwidth * 1e9;
    if (a->tflops > 0)
        o->flops = a->tflops * 1e12;
    if (rc == NB_OK && a->measure) {
        nb_pool *pool = NULL;
        const nb_kern *kern;
        rc = nb_cli_cpu(cli, &kern, err);
        if (rc == NB_OK)
            rc = nb_cli_pool(cli, &pool, err);
        if (rc == NB_OK)
            rc = nb_read_bandwidth(kern, pool, 0, 3, &o->bandwidth, err);
        nb_pool_close(pool);
    }
    return rc;
}

static nb_status lengths(const plan_args *a, const nb_cap_model *m, nb_cap_opts *o, nb_err *err)
{
    size_t context = a->context ? (size_t)a->context : m->context && m->context < 8192 ? m->context : 8192;

    if (m->context && context > m->context)
        return nb_fail(err, NB_EARG, "plan.lengths", "", "--context %zu is beyond the model's %zu", context, m->context);
    o->prompt = a->prompt ? (size_t)a->prompt : context / 4;
    o->output = a->output ? (size_t)a->output : context / 8 ? context / 8 : 1;
    if (o->prompt + o->output > context) {
        if (a->context)
            return nb_fail(err, NB_EARG, "plan.lengths", "", "--prompt %zu and --output %zu are longer than --context %zu", o->prompt,
                           o->output, context);
        context = o->prompt + o->output;
    }
    o->output_max = o->output;
    o->prompt_max = context - o->output;
    return NB_OK;
}

/* ---- output ---- */

typedef struct answer {
    const plan_args *a;
    const nb_cap_model *m;
    const nb_cap_opts *o;
    const nb_cap_plan *p;
    const nb_gpu *g;
    bool a8;
    char flags[256], binding[160];
} answer;

/* What the usual requests need, or a longest one, as far as there is room, in MiB as serve reads it. */
static uint64_t cache_mb(const nb_cap_plan *p, uint64_t seqs)
{
    const uint64_t usual = seqs * p->seq_mean, want = usual > p->seq_max ? usual : p->seq_max;

    return want < p->kv_pool ? (want + (1 << 20) - 1) >> 20 : p->kv_pool >> 20;
}

static void words(answer *w)
{
    const nb_cap_plan *p = w->p;
    const uint64_t seqs = p->seqs_mean < p->batch ? p->seqs_mean : p->batch;
    const uint64_t length = p->tokens_max < p->longest ? p->tokens_max : p->longest;

    if (p->kv_pool == 0)
        snprintf(w->binding, sizeof w->binding, "weights, workspace and reserve alone are over the budget");
    else if (!p->fits)
        snprintf(w->binding, sizeof w->binding, "a request of %zu tokens does not fit; %llu do", p->tokens_max,
                 (unsigned long long)p->longest);
    else if (p->batch < p->seqs_mean)
        snprintf(w->binding, sizeof w->binding, "the limit of %zu sequences, not memory", p->batch);
    else
        snprintf(w->binding, sizeof w->binding, "the key-value cache%s",
                 p->weights_dominate ? "; weights take over half of the budget" : "");
    if (p->kv_pool == 0)
        return;
    if (w->o->gpu)
        snprintf(w->flags, sizeof w->flags, "vllm serve MODEL --max-model-len %llu --max-num-seqs %llu --gpu-memory-utilization %.2f",
                 (unsigned long long)length, (unsigned long long)(seqs ? seqs : 1), w->o->share);
    else
        snprintf(w->flags, sizeof w->flags, "nibble serve MODEL --max-model-len %llu --max-seqs %llu --kv-cache %lluMiB%s%s",
                 (unsigned long long)length, (unsigned long long)(seqs ? seqs : 1), (unsigned long long)cache_mb(p, seqs),
                 w->o->kv == NB_CAP_KV_8    ? " --kv q8"
                 : w->o->kv == NB_CAP_KV_32 ? " --kv f32"
                                            : "",
                 w->a8 ? " --act a8" : "");
    if (w->o->gpu && w->o->tp > 1)
        snprintf(w->flags + strlen(w->flags), sizeof w->flags - strlen(w->flags), " --tensor-parallel-size %zu", w->o->tp);
}

static bool set_bytes(nb_json *o, const char *name, uint64_t v)
{
    return nb_json_set(o, name, nb_json_new_int((int64_t)v));
}

static nb_json *model_json(const nb_cap_model *m)
{
    nb_json *o = nb_json_new_obj();

    if (nb_json_set(o, "model_type", nb_json_new_str(m->model_type)) && nb_json_set(o, "layout", nb_json_new_str(m->layout)) &&
        nb_json_set(o, "estimated", nb_json_new_bool(m->estimated)) && set_bytes(o, "parameters", m->params) &&
        set_bytes(o, "active_parameters", m->active_params) && set_bytes(o, "stored_bytes", m->file_bytes) &&
        set_bytes(o, "packed_bytes", m->packed_bytes) && set_bytes(o, "context", m->context) && set_bytes(o, "window", m->window) &&
        set_bytes(o, "state_bytes", m->state_bytes))
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_status print_json(const answer *w, nb_err *err)
{
    const nb_cap_plan *p = w->p;
    nb_json *o = nb_json_new_obj();
    const bool ok = nb_json_set(o, "device", nb_json_new_str(w->g->name)) && set_bytes(o, "devices", w->o->tp) &&
                    nb_json_set(o, "model", model_json(w->m)) && set_bytes(o, "memory", w->o->memory) &&
                    set_bytes(o, "budget", p->budget) && set_bytes(o, "weights", p->weights) && set_bytes(o, "workspace", p->workspace) &&
                    set_bytes(o, "reserve", p->reserve) && set_bytes(o, "kv_pool", p->kv_pool) &&
                    nb_json_set(o, "kv_bytes_per_token", nb_json_new_real(p->kv_token)) && set_bytes(o, "tokens_mean", p->tokens_mean) &&
                    set_bytes(o, "tokens_max", p->tokens_max) && set_bytes(o, "sequence_bytes_mean", p->seq_mean) &&
                    set_bytes(o, "sequence_bytes_max", p->seq_max) && nb_json_set(o, "fits", nb_json_new_bool(p->fits)) &&
                    set_bytes(o, "sequences_mean", p->seqs_mean) && set_bytes(o, "sequences_max", p->seqs_max) &&
                    set_bytes(o, "longest_context", p->longest) && nb_json_set(o, "binding", nb_json_new_str(w->binding)) &&
                    nb_json_set(o, "flags", nb_json_new_str(w->flags)) && nb_json_set(o, "bandwidth", nb_json_new_real(w->o->bandwidth)) &&
                    nb_json_set(o, "decode_tok_s_bound", nb_json_new_real(p->decode_1)) && set_bytes(o, "batch", p->batch) &&
                    nb_json_set(o, "batch_tok_s_bound", nb_json_new_real(p->decode_batch)) &&
                    nb_json_set(o, "prefill_s_bound", nb_json_new_real(p->prefill_s));

    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the plan");
}

static void line(const char *name, uint64_t bytes, const char *note)
{
    char t[32];

    printf("  %-22s %10s   %s\n", name, nb_human_bytes(t, sizeof t, bytes), note);
}

static void print_table(const answer *w)
{
    const nb_cap_model *m = w->m;
    const nb_cap_plan *p = w->p;
    char note[256], t[32];

    printf("%s, %s%s, ", m->model_type, m->layout[0] ? m->layout : "not quantized", m->estimated ? " (estimated from config.json)" : "");
    printf(m->params < 1000000000 ? "%.1f M parameters" : "%.2f B parameters", (double)m->params / (m->params < 1000000000 ? 1e6 : 1e9));
    if (m->active_params < m->params / 10 * 9)
        printf(" (%.2f B active)", (double)m->active_params / 1e9);
    printf(" on %zu x %s\n\n", w->o->tp, w->g->name);
    snprintf(note, sizeof note, "%.0f %% of %s%s", 100 * w->o->share, nb_human_bytes(t, sizeof t, w->o->memory),
             w->o->tp > 1 ? ", each device" : "");
    line("budget", p->budget, note);
    snprintf(note, sizeof note, w->o->gpu ? "as stored" : "packed; %s stored", nb_human_bytes(t, sizeof t, m->file_bytes));
    line("weights", p->weights, note);
    snprintf(note, sizeof note, "a step of %zu tokens, logits of %zu sequences", w->o->chunk, w->o->max_seqs);
    line("workspace", p->workspace, note);
    line("reserve", p->reserve, w->o->gpu ? "context and graphs" : "process, tokenizer, grammars");
    snprintf(note, sizeof note, "%.1f KB a token%s", p->kv_token / 1e3, m->window ? ", more inside the window" : "");
    line("left for the cache", p->kv_pool, note);
    snprintf(note, sizeof note, "%zu tokens", p->tokens_mean);
    line("a usual request", p->seq_mean, note);
    snprintf(note, sizeof note, "%zu tokens", p->tokens_max);
    line("the longest request", p->seq_max, note);
    printf("\n  at once                %10llu usual requests, or %llu of the longest\n", (unsigned long long)p->seqs_mean,
           (unsigned long long)p->seqs_max);
    printf("  longest context        %9llu tokens%s\n", (unsigned long long)p->longest, p->longest_is_model ? " (the model's limit)" : "");
    printf("  bound by                 %s\n", w->binding);
    if (p->decode_1 > 0)
        printf("  decode at best         %9.1f tok/s for one, %.0f tok/s for %zu (%s/s read)\n", p->decode_1, p->decode_batch, p->batch,
               nb_human_bytes(t, sizeof t, (uint64_t)w->o->bandwidth));
    if (p->prefill_s > 0)
        printf("  a usual prompt takes   %9.2f s at least\n", p->prefill_s);
    if (w->flags[0])
        printf("\n  %s\n", w->flags);
}

static nb_status run_plan(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    plan_args a = { .tp = 1, .seqs = 64, .chunk = 512 };
    const nb_opt opts[] = {
        { "--gpu", NB_OPT_STR, &a.gpu, 0, 0, "NAME", "a GPU of the table; list shows it" },
        { "--memory", NB_OPT_STR, &a.memory, 0, 0, "SIZE", "plan for this much memory, as 24G or 16GiB (this machine's)" },
        { "--tp", NB_OPT_INT, &a.tp, 1, 1024, "N", "split over N devices (1)" },
        { "--context", NB_OPT_INT, &a.context, 2, 1e9, "N", "tokens of the longest request (8192, at most the model's)" },
        { "--prompt", NB_OPT_INT, &a.prompt, 1, 1e9, "N", "tokens of a usual prompt (a quarter of the context)" },
        { "--output", NB_OPT_INT, &a.output, 1, 1e9, "N", "tokens of a usual answer (an eighth)" },
        { "--max-seqs", NB_OPT_INT, &a.seqs, 1, 1e6, "N", "sequences at once at most (64)" },
        { "--max-batched-tokens", NB_OPT_INT, &a.chunk, 1, 1e6, "N", "tokens of a step (512)" },
        { "--kv", NB_OPT_STR, &a.kv, 0, 0, "TYPE", "how keys and values are kept: f16 (default), q8, f32 or fp8" },
        { "--act", NB_OPT_STR, &a.act, 0, 0, NB_CLI_ACT, NB_CLI_ACT_HELP },
        { "--utilization", NB_OPT_NUM, &a.share, 0.05, 1, "X", "share of the memory that may be used (0.9)" },
        { "--bandwidth", NB_OPT_NUM, &a.bandwidth, 0.01, 1e6, "GB/s", "of reading memory" },
        { "--tflops", NB_OPT_NUM, &a.tflops, 0.001, 1e6, "X", "of 16-bit matrix products" },
        { "--measure", NB_OPT_FLAG, &a.measure, 0, 0, NULL, "measure the read bandwidth of this machine" },
        { "--bits", NB_OPT_INT, &a.bits, 2, 16, "N", "for a config.json without weights (its own, else 16)" },
        { "--group-size", NB_OPT_INT, &a.group, -1, 1 << 20, "N", "for a config.json without weights (its own, else 128)" },
    };
    nb_cap_model m;
    nb_cap_plan p;
    nb_gpu g;
    bool help, a8 = false;
    size_t n;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_plan, opts, NB_LEN(opts), argc, argv, a.model, 1, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && a.gpu && strcmp(a.gpu, "list") == 0)
        return list_gpus(cli, err);
    nb_cap_opts o = { .tp = (size_t)a.tp, .block = 32, .chunk = (size_t)a.chunk, .max_seqs = (size_t)a.seqs };
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "which MODEL? nibble plan --help");
    if (rc == NB_OK && a.kv) {
        static const char *const names[] = {
            [NB_CAP_KV_16] = "f16", [NB_CAP_KV_8] = "q8", [NB_CAP_KV_32] = "f32", [NB_CAP_KV_FP8] = "fp8"
        };
        size_t k = 0;
        while (k < NB_LEN(names) && strcmp(names[k], a.kv) != 0)
            k++;
        o.kv = (nb_cap_kv)k;
        if (k == NB_LEN(names))
            rc = nb_fail(err, NB_EARG, "arg.value", "", "--kv takes f16, q8, f32 or fp8");
    }
    if (rc == NB_OK)
        rc = nb_cli_act(a.act, false, &a8, err);
    if (rc == NB_OK && a8 && a.gpu)
        rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--act a8 is of this program's own kernels; it does not go with --gpu");
    if (rc == NB_OK)
        rc = find_device(cli, &a, &o, &g, err);
    if (rc == NB_OK)
        rc = nb_cap_read(&m, a.model[0], (unsigned)a.bits, a.group, err);
    if (rc == NB_OK)
        rc = lengths(&a, &m, &o, err);
    if (rc == NB_OK)
        rc = nb_cap_plan_run(&m, &o, &p, err);
    if (rc != NB_OK)
        return rc;
    answer w = { .a8 = a8, .a = &a, .m = &m, .o = &o, .p = &p, .g = &g };
    words(&w);
    if (cli->json)
        rc = print_json(&w, err);
    else
        print_table(&w);
    return rc == NB_OK && !p.fits ? NB_NO : rc;
}
