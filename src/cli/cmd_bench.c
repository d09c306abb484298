/* cmd_bench.c - `nibble bench MODEL`: prefill and decode with the read bandwidth of the same run beside them. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/cmd_bench_serve.h"
#include "job/load.h"
#include "job/speed.h"
#include "job/streams.h"

static bool add_row(nb_json *rows, const char *what, size_t tokens, const nb_speed_row *at, const nb_spread *v)
{
    nb_json *o = nb_json_new_obj();

    return nb_json_push(rows, o) && nb_json_set(o, "what", nb_json_new_str(what)) &&
           nb_json_set(o, "tokens", nb_json_new_int((int64_t)tokens)) && nb_json_set(o, "batch", nb_json_new_int((int64_t)at->batch)) &&
           nb_json_set(o, "depth", nb_json_new_int((int64_t)at->depth)) && nb_json_set(o, "tok_s", nb_json_new_real(v->median)) &&
           nb_json_set(o, "min", nb_json_new_real(v->min)) && nb_json_set(o, "max", nb_json_new_real(v->max)) &&
           nb_json_set(o, "share_of_read", at->share_of_read > 0 ? nb_json_new_real(at->share_of_read) : nb_json_new_null());
}

static bool add_rows(nb_json *j, const nb_speed *v, const nb_speed_opts *o)
{
    static const nb_speed_row one = { .batch = 1 };
    nb_json *rows = nb_json_new_arr();
    bool ok = nb_json_set(j, "rows", rows) && add_row(rows, "prefill", o->prompt, &one, &v->prefill_tok_s);

    for (size_t i = 0; ok && i < v->n_decode; i++)
        ok = add_row(rows, "decode", o->decode, &v->decode[i], &v->decode[i].tok_s);
    return ok;
}

/* The fields beside "rows" are those of the prefill test and of the first decode row. */
static nb_status print_json(const nb_speed *v, const nb_speed_opts *o, const nb_model *m, nb_err *err)
{
    nb_json *j = nb_json_new_obj();
    const bool ok = nb_json_set(j, "cpu", nb_json_new_str(nb_cpu_name())) &&
                    nb_json_set(j, "cpu_family", nb_json_new_int(nb_cpu_family())) &&
                    nb_json_set(j, "kernel", nb_json_new_str(nb_model_kern(m)->name)) &&
                    nb_json_set(j, "threads", nb_json_new_int(nb_pool_threads(o->pool))) &&
                    nb_json_set(j, "decode_threads", nb_json_new_int(v->few_threads ? v->few_threads : nb_pool_threads(o->pool))) &&
                    nb_json_set(j, "rounds", nb_json_new_int(v->rounds)) && nb_json_set(j, "prompt", nb_json_new_int((int64_t)o->prompt)) &&
                    nb_json_set(j, "decode", nb_json_new_int((int64_t)o->decode)) &&
                    nb_json_set(j, "act",
                                nb_json_new_str(o->exact_fp32 ? "f32"
                                                : o->a8       ? "a8"
                                                              : "a16")) &&
                    nb_json_set(j, "depth", nb_json_new_int((int64_t)v->decode[0].depth)) &&
                    nb_json_set(j, "batch", nb_json_new_int((int64_t)v->decode[0].batch)) &&
                    nb_json_set(j, "prefill_tok_s", nb_json_new_real(v->prefill_tok_s.median)) &&
                    nb_json_set(j, "decode_tok_s", nb_json_new_real(v->decode[0].tok_s.median)) &&
                    nb_json_set(j, "read_bytes_s", nb_json_new_real(v->read_bytes_s.median)) &&
                    nb_json_set(j, "step_bytes", nb_json_new_int((int64_t)v->step_bytes)) &&
                    nb_json_set(j, "decode_share_of_read", nb_json_new_real(v->decode[0].share_of_read)) && add_rows(j, v, o);

    if (ok)
        nb_cli_json(j);
    nb_json_free(j);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

static void print_table(const nb_speed *v, const nb_speed_opts *o, const nb_model *m)
{
    char bytes[32], read[32], from[32], to[32], what[64];

    printf("%s (family %d), %s, %d threads, %d rounds, medians (min .. max)\n\n", nb_cpu_name(), nb_cpu_family(), nb_model_kern(m)->name,
           nb_pool_threads(o->pool), v->rounds);
    printf("  %-32s %9s/s   (%s .. %s)\n", "read", nb_human_bytes(read, sizeof read, (uint64_t)v->read_bytes_s.median),
           nb_human_bytes(from, sizeof from, (uint64_t)v->read_bytes_s.min), nb_human_bytes(to, sizeof to, (uint64_t)v->read_bytes_s.max));
    snprintf(what, sizeof what, "prefill of %zu tokens", o->prompt);
    printf("  %-32s %9.1f tok/s (%.1f .. %.1f)\n", what, v->prefill_tok_s.median, v->prefill_tok_s.min, v->prefill_tok_s.max);
    for (size_t i = 0; i < v->n_decode; i++) {
        const nb_speed_row *row = &v->decode[i];
        snprintf(what, sizeof what, "decode, %zu sequence%s at depth %zu", row->batch, row->batch == 1 ? "" : "s", row->depth);
        printf("  %-32s %9.1f tok/s (%.1f .. %.1f)", what, row->tok_s.median, row->tok_s.min, row->tok_s.max);
        if (row->share_of_read > 0)
            printf("   %.0f %% of the read", 100 * row->share_of_read);
        putchar('\n');
    }
    if (v->few_threads && v->few_threads < nb_pool_threads(o->pool))
        printf("\n  One sequence decodes on %d thread%s, which is faster here.", v->few_threads, v->few_threads == 1 ? "" : "s");
    printf("\n  A decode step of one sequence reads %s of weights; its share of the read leaves keys and values out.\n",
           nb_human_bytes(bytes, sizeof bytes, v->step_bytes));
}

/* ---- many streams ---- */

static bool set_load(nb_json *j, const char *name, const nb_streams_load *v, const nb_streams_opts *o)
{
    nb_json *to = nb_json_new_obj();

    return nb_json_set(j, name, to) && nb_json_set(to, "seconds", nb_json_new_real(v->seconds)) &&
           nb_json_set(to, "output_tok_s", nb_json_new_real(v->out_tok_s)) &&
           nb_json_set(to, "ttft_p50_ms", nb_json_new_real(1e3 * v->ttft_p50)) &&
           nb_json_set(to, "ttft_p99_ms", nb_json_new_real(1e3 * v->ttft_p99)) &&
           nb_json_set(to, "itl_p50_ms", nb_json_new_real(1e3 * v->itl_p50)) &&
           nb_json_set(to, "itl_p99_ms", nb_json_new_real(1e3 * v->itl_p99)) &&
           nb_json_set(to, "steps", nb_json_new_int((int64_t)v->steps)) &&
           nb_json_set(to, "preemptions", nb_json_new_int((int64_t)v->preemptions)) &&
           nb_json_set(to, "cached_share", nb_json_new_real(v->hit_share)) &&
           nb_json_set(to, "engine_us_per_token", nb_json_new_real(1e6 * v->engine_s / (double)(o->requests * o->decode))) &&
           nb_json_set(to, "engine_share", nb_json_new_real(v->engine_s / (v->engine_s + v->exec_s)));
}

static nb_status streams_json(const nb_streams *v, const nb_streams_opts *o, const nb_model *m, nb_err *err)
{
    nb_json *j = nb_json_new_obj();
    const bool ok =
        nb_json_set(j, "cpu", nb_json_new_str(nb_cpu_name())) && nb_json_set(j, "kernel", nb_json_new_str(nb_model_kern(m)->name)) &&
        nb_json_set(j, "threads", nb_json_new_int(nb_pool_threads(o->pool))) &&
        nb_json_set(j, "streams", nb_json_new_int((int64_t)o->streams)) &&
        nb_json_set(j, "requests", nb_json_new_int((int64_t)o->requests)) &&
        nb_json_set(j, "prefix", nb_json_new_int((int64_t)o->prefix)) && nb_json_set(j, "prompt", nb_json_new_int((int64_t)o->prompt)) &&
        nb_json_set(j, "decode", nb_json_new_int((int64_t)o->decode)) &&
        nb_json_set(j, "cache_bytes", nb_json_new_int((int64_t)v->kv_bytes)) && set_load(j, "cold", &v->cold, o) &&
        set_load(j, "warm", &v->warm, o);

    if (ok)
        nb_cli_json(j);
    nb_json_free(j);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

static void streams_line(const char *name, const nb_streams_load *v, const nb_streams_opts *o)
{
    printf("  %-6s %9.1f tok/s   first token %5.0f ms (p99 %.0f)   next %5.1f ms (p99 %.1f)   cached %2.0f %%   engine %.1f us a token, "
           "%.2f %%\n",
           name, v->out_tok_s, 1e3 * v->ttft_p50, 1e3 * v->ttft_p99, 1e3 * v->itl_p50, 1e3 * v->itl_p99, 100 * v->hit_share,
           1e6 * v->engine_s / (double)(o->requests * o->decode), 100 * v->engine_s / (v->engine_s + v->exec_s));
}

static nb_status run_streams(nb_cli *cli, nb_model *m, const nb_streams_opts *o, nb_err *err)
{
    nb_streams v;
    const nb_status rc = nb_streams_run(m, o, &v, err);

    nb_cli_progress_end(cli);
    if (rc != NB_OK)
        return rc;
    if (cli->json)
        return streams_json(&v, o, m, err);
    printf("%s, %s, %d threads; %zu streams, %zu requests of %zu common + %zu own tokens, %zu drawn\n\n", nb_cpu_name(),
           nb_model_kern(m)->name, nb_pool_threads(o->pool), o->streams, o->requests, o->prefix, o->prompt, o->decode);
    streams_line("cold", &v.cold, o);
    streams_line("warm", &v.warm, o);
    return NB_OK;
}

static nb_status run_bench(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_bench;
const nb_cmd nb_cmd_bench = {
    .name = "bench",
    .usage = "bench MODEL [options]",
    .brief = "decode and prefill speed beside the read bandwidth; `bench serve` loads a server",
    .help = "Weights sit in private memory. Figures are medians of interleaved rounds; on a shared machine compare ratios only.\n"
            "Every depth is measured with the first of --batch, every other batch at the first of --depth. Of a depth the first 512\n"
            "tokens are real, the rest copies of their keys and values, which cost the same; so do recurrent states.\n\n"
            "With --streams the engine serves that many requests at a time, first with an empty prefix cache, then again with the\n"
            "common prefix cached; \"engine\" is what it costs beside the model.\n\n"
            "  nibble bench MODEL --prompt 512 --decode 64 --rounds 7\n"
            "  nibble bench MODEL --depth 0,1024,4096,16384 --batch 1,2,4,8,16,32,64 --json\n"
            "  nibble bench MODEL --streams 16 --prefix 512 --prompt 64 --decode 64",
    .run = run_bench,
};

/* Numbers divided by commas. Of the default list only what the context holds beside `decode` tokens (0: no limit is known). */
static nb_status parse_sizes(const char *text, const char *usual, uint64_t room, const char *option, size_t *out, size_t *n, nb_err *err)
{
    const char *p = text ? text : usual;

    for (*n = 0;; p++) {
        uint64_t v;
        const char *end = nb_num_u64(p, 10000000, &v);
        if (!end || *n == NB_SPEED_MAX || (*end && *end != ','))
            return nb_fail(err, NB_EARG, "arg.value", "", "%s is a list such as %s: at most %d numbers up to 10000000", option, usual,
                           NB_SPEED_MAX);
        if (text || !room || v <= room || *n == 0)
            out[(*n)++] = (size_t)v;
        if (*(p = end) == '\0')
            return NB_OK;
    }
}

static nb_status run_speed(nb_cli *cli, nb_model *m, nb_speed_opts *o, const char *depth, const char *batch, nb_err *err)
{
    const uint64_t context = nb_model_config(m)->context;
    size_t depths[NB_SPEED_MAX], batches[NB_SPEED_MAX];
    nb_speed v;
    nb_status rc =
        parse_sizes(depth, "0,1024,4096", context > o->decode ? context - o->decode - 1 : context, "--depth", depths, &o->n_depths, err);

    if (rc == NB_OK)
        rc = parse_sizes(batch, "1,8,16", 0, "--batch", batches, &o->n_batches, err);
    o->depths = depths;
    o->batches = batches;
    for (size_t i = 0; rc == NB_OK && i < o->n_batches; i++)
        if (batches[i] > 1024)
            rc = nb_fail(err, NB_EARG, "arg.value", "", "--batch %zu is above 1024", batches[i]);
    if (rc == NB_OK)
        rc = nb_speed_run(m, o, &v, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK && cli->json)
        return print_json(&v, o, m, err);
    if (rc == NB_OK)
        print_table(&v, o, m);
    return rc;
}

static nb_status run_bench(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *depth = NULL, *batch = NULL;
    int64_t prompt = 512, decode = 64, rounds = 5, streams = 0, prefix = 0, requests = 0, batched = 0;
    nb_speed_opts o = { 0 };
    nb_streams_opts so = { .step_ms = 200 }; /* as serve does */
    const char *kv = NULL, *act = NULL;
    nb_loaded l = { 0 };
    nb_model_opts mo = { .host = &cli->host };
    const nb_opt opts[] = {
        { "--prompt", NB_OPT_INT, &prompt, 1, 1e7, "N", "prompt tokens of the prefill test (512)" },
        { "--decode", NB_OPT_INT, &decode, 1, 1e7, "N", "tokens of each decode test (64)" },
        { "--depth", NB_OPT_STR, &depth, 0, 0, "N,N...", "tokens already cached when decoding starts (0,1024,4096)" },
        { "--batch", NB_OPT_STR, &batch, 0, 0, "N,N...", "sequences that decode together (1,8,16)" },
        { "--rounds", NB_OPT_INT, &rounds, 1, 100, "N", "interleaved rounds (5)" },
        { "--act", NB_OPT_STR, &act, 0, 0, NB_CLI_ACT, NB_CLI_ACT_HELP },
        { "--exact-fp32", NB_OPT_FLAG, &o.exact_fp32, 0, 0, NULL, "float32 activations in 4-bit linears" },
        { "--kv", NB_OPT_STR, &kv, 0, 0, NB_CLI_KV, "how keys and values are kept (default f16; q8 needs half of it)" },
        { "--streams", NB_OPT_INT, &streams, 0, 1024, "N", "serve N requests at a time through the engine instead" },
        { "--requests", NB_OPT_INT, &requests, 1, 1e6, "N", "streams: requests in all (2 N)" },
        { "--prefix", NB_OPT_INT, &prefix, 0, 1e7, "N", "streams: tokens that all prompts begin with (0)" },
        { "--max-batched", NB_OPT_INT, &batched, 0, 1e6, "N", "streams: rows of one step (512)" },
    };
    const char *args[1];
    size_t n;
    bool help;
    nb_status rc;

    if (argc && strcmp(argv[0], "serve") == 0)
        return nb_bench_serve(cli, argc - 1, argv + 1, err);
    rc = nb_cli_parse(cli, &nb_cmd_bench, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "MODEL is missing; usage: nibble %s", nb_cmd_bench.usage);
    if (rc == NB_OK)
        rc = nb_cli_cpu(cli, &mo.kern, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &o.pool, err);
    mo.pool = o.pool;
    o.tune = cli->threads == 0;
    if (rc == NB_OK)
        rc = nb_cli_kv(kv, &o.kv_dtype, err);
    if (rc == NB_OK)
        rc = nb_cli_act(act, o.exact_fp32, &o.a8, err);
    o.prompt = (size_t)prompt;
    o.decode = (size_t)decode;
    o.rounds = (int)rounds;
    o.host = &cli->host;
    if (rc == NB_OK)
        rc = nb_load_store(&l, args[0], &cli->host, err);
    if (rc == NB_OK)
        rc = nb_load_model(&l, &mo, err);
    so = (nb_streams_opts){ .streams = (size_t)streams,
                            .requests = (size_t)(requests ? requests : 2 * streams),
                            .prefix = (size_t)prefix,
                            .prompt = o.prompt,
                            .decode = o.decode,
                            .max_batched = (size_t)batched,
                            .exact_fp32 = o.exact_fp32,
                            .a8 = o.a8,
                            .kv_dtype = o.kv_dtype,
                            .pool = o.pool,
                            .host = o.host };
    if (rc == NB_OK && streams)
        rc = run_streams(cli, l.model, &so, err);
    else if (rc == NB_OK)
        rc = run_speed(cli, l.model, &o, depth, batch, err);
    nb_load_close(&l);
    nb_pool_close(o.pool);
    return rc;
}
