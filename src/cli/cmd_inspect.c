/* cmd_inspect.c - `nibble inspect MODEL`: one screen, headers only. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/inspect.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_inspect;
const nb_cmd nb_cmd_inspect = {
    .name = "inspect",
    .alias = "info",
    .usage = "inspect MODEL [options]",
    .brief = "what a checkpoint is: architecture, layout, sizes, memory",
    .help = "Reads headers and configuration only, whatever the size of the files.\n\n"
            "  nibble inspect DIR\n"
            "  nibble inspect model.gguf --context 4096\n"
            "  nibble inspect model.safetensors --json",
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

static void print_text(const nb_inspect *in, const char *path)
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
    for (size_t i = 0; i < in->n_notes; i++)
        printf("note          %s\n", in->notes[i]);
    if (in->runs && in->machine > 0)
        printf("verdict       runs here (%s of memory)\n", nb_human_bytes(a, sizeof a, in->machine));
    else if (in->runs)
        printf("verdict       runs here\n");
    else
        printf("verdict       does not run here: %s\n", in->why);
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[1];
    int64_t context = 0;
    nb_inspect in;
    nb_json *o;
    size_t n;
    bool help = false;
    const nb_opt opts[] = { { "--context", NB_OPT_INT, &context, 1, 1 << 30, "N", "tokens of cache the memory is stated for" } };
    nb_status rc = nb_cli_parse(cli, &nb_cmd_inspect, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n != 1)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "inspect needs one model: nibble inspect MODEL");
    if (rc == NB_OK)
        rc = nb_inspect_path(args[0], (size_t)context, &in, err);
    if (rc != NB_OK)
        return rc;
    if (!cli->json) {
        print_text(&in, args[0]);
        return NB_OK;
    }
    o = nb_inspect_json(&in);
    if (!o)
        return nb_enomem(err, "the answer");
    nb_cli_json(o);
    nb_json_free(o);
    return NB_OK;
}
