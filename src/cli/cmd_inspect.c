/* cmd_inspect.c - `nibble inspect MODEL`: one screen, headers only. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/capacity.h"
#include "job/doctor.h"
#include "job/engines.h"
#include "job/inferred.h"
#include "job/inspect.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_inspect;
const nb_cmd nb_cmd_inspect = {
    .name = "inspect",
    .alias = "info",
    .usage = "inspect MODEL [options]",
    .brief = "what a checkpoint is: architecture, layout, sizes, memory",
    .help = "Reads headers and configuration only, whatever the size of the files. \"speed\" is a bound: weights and cache of\n"
            "one step at the speed of a plain read, which is timed for it (64 MB).\n\n"
            "  nibble inspect DIR\n"
            "  nibble inspect model.gguf --context 4096\n"
            "  nibble inspect model.safetensors --json\n"
            "  nibble inspect DIR --engines vllm,sglang --gpu sm80,cpu",
    .run = run,
};

/* 134515008 as "134.5 M". */
static const char *human_count(char *out, size_t cap, uint64_t n)
{
    static const char *const unit[] = { "", " k", " M", " B", " T" };
    double v = (double)n;
    size_t u = 0;

    while (v >= 1000.0 && u + 1 < NB_LEN(unit)) {
        v /= 1000.0;
        u++;
    }
    snprintf(out, cap, u ? "%.1f%s" : "%.0f%s", v, unit[u]);
    return out;
}

static void print_model(const nb_inspect *in)
{
    char count[32];

    if (in->has_config)
        printf("architecture  %s%s%s%s\n", in->class_name[0] ? in->class_name : "?", in->model_type[0] ? " (" : "", in->model_type,
               in->model_type[0] ? ")" : "");
    if (in->n_params > 0)
        printf("parameters    %s\n", human_count(count, sizeof count, in->n_params));
    if (in->layers > 0) {
        printf("shape         %zu layers, hidden %zu, ffn %zu, vocabulary %zu%s\n", in->layers, in->hidden, in->ff, in->vocab,
               in->tied ? ", tied head" : "");
        printf("attention     %zu heads, %zu key-value heads", in->heads, in->kv_heads);
        if (in->head_dim > 0)
            printf(" of %zu", in->head_dim);
        printf("; context %zu\n", in->max_context);
    }
}

static void print_quant(const nb_inspect *in)
{
    if (!in->method[0]) {
        printf("quantization  none\n");
        return;
    }
    printf("quantization  %s", in->method);
    if (in->layout[0])
        printf(", layout %s", in->layout);
    if (in->bits > 0)
        printf(", %u bits", in->bits);
    if (in->group_size > 0)
        printf(", group %" PRId64, in->group_size);
    else if (in->group_size < 0)
        printf(", per channel");
    if (in->bits > 0)
        printf(", %s%s", in->sym ? "symmetric" : "with zero points", in->desc_act ? ", act-order" : "");
    if (in->n_linears > 0)
        printf("; %zu linears", in->n_linears);
    printf("\n");
}

/* What one answer can reach here: weights and cache of a step at the speed of a plain read. */
typedef struct speed {
    double tok_s, read; /* 0: not known */
} speed;

static void find_speed(nb_cli *cli, const char *path, const nb_inspect *in, speed *out)
{
    enum { READ = 64 << 20 };
    nb_cap_model m;
    nb_cap_plan p;
    nb_cap_opts o = { .share = 1, .tp = 1, .block = NB_PAGE, .chunk = 512, .output = 1, .memory = in->machine };
    const nb_kern *kern;
    nb_pool *pool = NULL;

    *out = (speed){ 0 };
    if (!in->runs || in->memory == 0)
        return;
    o.prompt = in->context > 1024 ? 512 : in->context > 3 ? in->context / 2 : 1;
    if (nb_cli_cpu(cli, &kern, NULL) == NB_OK && nb_cli_pool(cli, &pool, NULL) == NB_OK && nb_cap_read(&m, path, 0, 0, NULL) == NB_OK &&
        nb_read_bandwidth(kern, pool, READ, 3, &o.bandwidth, NULL) == NB_OK && nb_cap_plan_run(&m, &o, &p, NULL) == NB_OK)
        *out = (speed){ p.decode_1, o.bandwidth };
    nb_pool_close(pool);
}

static void print_text(const nb_inspect *in, const speed *fast, const char *path)
{
    char name[NB_ESC_CAP], a[32], b[32], c[32], d[32];

    printf("%s\n", nb_esc(name, sizeof name, path, strlen(path)));
    print_model(in);
    print_quant(in);
    printf("container     %s, %zu file%s, %zu tensors, %s\n", in->container, in->n_files, in->n_files == 1 ? "" : "s", in->n_tensors,
           nb_human_bytes(a, sizeof a, in->n_bytes));
    for (size_t i = 0; i < in->n_types; i++)
        printf("%s  %-8s %6zu tensors  %10s\n", i ? "            " : "stored      ", in->types[i].name, in->types[i].n_tensors,
               nb_human_bytes(a, sizeof a, in->types[i].n_bytes));
    if (in->memory > 0)
        printf("memory        %s at context %zu: weights %s, cache %s, scratch %s\n", nb_human_bytes(a, sizeof a, in->memory), in->context,
               nb_human_bytes(b, sizeof b, in->weights), nb_human_bytes(c, sizeof c, in->kv), nb_human_bytes(d, sizeof d, in->scratch));
    if (fast->tok_s > 0)
        printf("speed         at best %.*f tok/s for one answer (%s/s read here)\n", fast->tok_s < 10, fast->tok_s,
               nb_human_bytes(a, sizeof a, (uint64_t)fast->read));
    for (size_t i = 0; i < in->n_notes; i++)
        printf("note          %s\n", in->notes[i]);
    if (in->runs && in->machine > 0)
        printf("verdict       runs here (%s of memory)\n", nb_human_bytes(a, sizeof a, in->machine));
    else if (in->runs)
        printf("verdict       runs here\n");
    else
        printf("verdict       does not run here: %s\n", in->why);
}

static const char *str(const nb_json *o, const char *key)
{
    return nb_json_str(nb_json_get(o, key), "");
}

/* One line per engine and device; behind it what decides and what would help. */
static void print_engines(const nb_json *answer, bool verbose)
{
    const nb_json *rows = nb_json_get(answer, "verdicts");

    for (size_t i = 0; i < nb_json_len(rows); i++) {
        const nb_json *v = nb_json_at(rows, i), *skipped = nb_json_get(v, "skipped");
        const int64_t n = nb_json_int(nb_json_get(v, "linears"), 0), of = nb_json_int(nb_json_get(v, "of"), 0);
        printf("%-14s %-10s %-13s [%s] %s%s%s\n", str(v, "engine"), str(v, "device"), str(v, "verdict"), str(v, "rule"), str(v, "kernel"),
               str(v, "kernel")[0] && str(v, "message")[0] ? ": " : "", str(v, "message"));
        if (n < of)
            printf("%-25s decided by %" PRId64 " of %" PRId64 " linears, first %s\n", "", n, of, str(v, "module"));
        if (str(v, "fix")[0])
            printf("%-25s \xe2\x86\x92 %s\n", "", str(v, "fix"));
        for (size_t k = 0; verbose && k < nb_json_len(skipped); k++)
            printf("%-25s not %s [%s]: %s\n", "", str(nb_json_at(skipped, k), "kernel"), str(nb_json_at(skipped, k), "rule"),
                   str(nb_json_at(skipped, k), "why"));
        if (verbose)
            printf("%-25s %s %s, %s\n", "", str(v, "title"), str(v, "version"), str(v, "source"));
    }
    printf("\nRules as read from the sources at the versions that -v shows; other versions are not verified.\n");
}

static nb_status engines(nb_cli *cli, const char *path, const nb_engines_opts *o, nb_err *err)
{
    nb_json *answer;
    const nb_status rc = nb_engines_judge(path, o, &answer, err);

    if (rc != NB_OK)
        return rc;
    if (cli->json)
        nb_cli_json(answer);
    else
        print_engines(answer, cli->verbose > 0);
    nb_json_free(answer);
    return NB_OK;
}

/* --engines without a list means all of them: is what follows a list? */
static void fill_engines(int argc, char **argv)
{
    static char all[] = "--engines=all";

    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--engines") == 0 && (i + 1 == argc || !nb_engines_known(argv[i + 1])))
            argv[i] = all;
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[1];
    const char *format = NULL;
    int64_t context = 0, tp = 1, bits = 0, group = 0;
    nb_qhint hint = { 0 };
    nb_engines_opts eo = { 0 };
    nb_inspect in;
    speed fast;
    nb_json *o;
    size_t n;
    bool help = false;
    const nb_opt opts[] = {
        { "--context", NB_OPT_INT, &context, 1, 1 << 30, "N", "tokens of cache the memory is stated for" },
        { "--format", NB_OPT_STR, &format, 0, 0, "LAYOUT", "no quantization config: the layout, as convert --to takes it" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "no quantization config: bits of a code" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "no quantization config: inputs of a group, -1 for all" },
        { "--engines", NB_OPT_STR, &eo.engines, 0, 0, "LIST", "which engines load it, with which kernel (default: all)" },
        { "--gpu", NB_OPT_STR, &eo.devices, 0, 0, "LIST", "devices to ask about: sm80, sm90 ..., cpu, cpu-avx2, arm (default sm80,cpu)" },
        { "--tp", NB_OPT_INT, &tp, 1, 1024, "N", "tensor-parallel ranks the linears are split over" },
        { "--rules", NB_OPT_STR, &eo.rules, 0, 0, "FILE", "engine rules in place of the built-in ones" },
    };
    nb_status rc;

    fill_engines(argc, argv);
    rc = nb_cli_parse(cli, &nb_cmd_inspect, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);
    if (help)
        return NB_OK;
    if (rc == NB_OK && n != 1)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "inspect needs one model: nibble inspect MODEL");
    if (rc == NB_OK && !eo.engines && (eo.devices || eo.rules || tp > 1))
        rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--gpu, --tp and --rules belong to --engines");
    if (rc == NB_OK)
        rc = nb_infer_hint(format, bits, group, &hint, err);
    if (rc == NB_OK && eo.engines && nb_infer_said(&hint))
        rc = nb_fail(err, NB_EARG, "arg.conflict", "", "--format, --bits and --group-size do not go with --engines");
    if (rc == NB_OK && eo.engines) {
        eo.tp = (int)tp;
        return engines(cli, args[0], &eo, err);
    }
    if (rc == NB_OK)
        rc = nb_inspect_as(args[0], (size_t)context, &hint, &in, err);
    if (rc != NB_OK)
        return rc;
    find_speed(cli, args[0], &in, &fast);
    if (!cli->json) {
        print_text(&in, &fast, args[0]);
        return NB_OK;
    }
    o = nb_inspect_json(&in);
    if (!o || !nb_json_set(o, "decode_tok_s_bound", fast.tok_s > 0 ? nb_json_new_real(fast.tok_s) : nb_json_new_null())) {
        nb_json_free(o);
        return nb_enomem(err, "the answer");
    }
    nb_cli_json(o);
    nb_json_free(o);
    return NB_OK;
}
