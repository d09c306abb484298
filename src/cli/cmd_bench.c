/* cmd_bench.c - `nibble bench MODEL`: prefill and decode with the read bandwidth of the same run beside them. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cmd_bench_serve.h"
#include "job/load.h"
#include "job/speed.h"
#include "job/streams.h"

static nb_status print_json(const nb_speed *v, const nb_speed_opts *o, const nb_model *m, nb_err *err)
{
    nb_json *j = nb_json_new_obj();
    const bool ok =
        nb_json_set(j, "cpu", nb_json_new_str(nb_cpu_name())) && nb_json_set(j, "cpu_family", nb_json_new_int(nb_cpu_family())) &&
        nb_json_set(j, "kernel", nb_json_new_str(nb_model_kern(m)->name)) &&
        nb_json_set(j, "threads", nb_json_new_int(nb_pool_threads(o->pool))) && nb_json_set(j, "rounds", nb_json_new_int(v->rounds)) &&
        nb_json_set(j, "prompt", nb_json_new_int((int64_t)o->prompt)) && nb_json_set(j, "decode", nb_json_new_int((int64_t)o->decode)) &&
        nb_json_set(j, "depth", nb_json_new_int((int64_t)o->depth)) && nb_json_set(j, "batch", nb_json_new_int((int64_t)o->batch)) &&
        nb_json_set(j, "prefill_tok_s", nb_json_new_real(v->prefill_tok_s)) &&
        nb_json_set(j, "decode_tok_s", nb_json_new_real(v->decode_tok_s)) &&
        nb_json_set(j, "read_bytes_s", nb_json_new_real(v->read_bytes_s)) &&
        nb_json_set(j, "step_bytes", nb_json_new_int((int64_t)v->step_bytes)) &&
        nb_json_set(j, "decode_share_of_read", nb_json_new_real(v->decode_share));

    if (ok)
        nb_cli_json(j);
    nb_json_free(j);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

static void print_table(const nb_speed *v, const nb_speed_opts *o, const nb_model *m)
{
    char bytes[32], read[32];

    printf("%s (family %d), %s, %d threads, %d rounds, medians (min .. max)\n\n", nb_cpu_name(), nb_cpu_family(), nb_model_kern(m)->name,
           nb_pool_threads(o->pool), v->rounds);
    printf("  prefill %4zu      %9.1f tok/s   (%.1f .. %.1f)\n", o->prompt, v->prefill_tok_s, v->prefill_min, v->prefill_max);
    printf("  decode %zu x %zu @ %zu %9.1f tok/s   (%.1f .. %.1f)\n", o->batch, o->decode, o->depth, v->decode_tok_s, v->decode_min,
           v->decode_max);
    printf("  read             %9s/s        decode reads %s of weights a step: %.0f %% of it\n",
           nb_human_bytes(read, sizeof read, (uint64_t)v->read_bytes_s), nb_human_bytes(bytes, sizeof bytes, v->step_bytes),
           100 * v->decode_share);
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
    .help = "Weights sit in private memory. Figures are medians of interleaved rounds; on a shared machine compare ratios only.\n\n"
            "With --streams the engine serves that many requests at a time, first with an empty prefix cache, then again with the\n"
            "common prefix cached; \"engine\" is what it costs beside the model.\n\n"
            "  nibble bench MODEL --prompt 512 --decode 64 --rounds 7\n"
            "  nibble bench MODEL --streams 16 --prefix 512 --prompt 64 --decode 64",
    .run = run_bench,
};

static nb_status run_bench(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    int64_t prompt = 512, decode = 64, depth = 0, batch = 1, rounds = 5, streams = 0, prefix = 0, requests = 0, batched = 0;
    nb_speed_opts o = { 0 };
    nb_streams_opts so = { 0 };
    const char *kv = NULL;
    nb_loaded l = { 0 };
    nb_model_opts mo = { .host = &cli->host };
    nb_speed v;
    const nb_opt opts[] = {
        { "--prompt", NB_OPT_INT, &prompt, 1, 1e7, "N", "prompt tokens of the prefill test (512)" },
        { "--decode", NB_OPT_INT, &decode, 1, 1e7, "N", "tokens of the decode test (64)" },
        { "--depth", NB_OPT_INT, &depth, 0, 1e7, "N", "tokens already cached when decoding starts (0)" },
        { "--batch", NB_OPT_INT, &batch, 1, 1024, "N", "sequences that decode together (1)" },
        { "--rounds", NB_OPT_INT, &rounds, 1, 100, "N", "interleaved rounds (5)" },
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
    if (rc == NB_OK)
        rc = nb_cli_kv(kv, &o.kv_dtype, err);
    o.prompt = (size_t)prompt;
    o.decode = (size_t)decode;
    o.depth = (size_t)depth;
    o.batch = (size_t)batch;
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
                            .kv_dtype = o.kv_dtype,
                            .pool = o.pool,
                            .host = o.host };
    if (rc == NB_OK && streams)
        rc = run_streams(cli, l.model, &so, err);
    else if (rc == NB_OK)
        rc = nb_speed_run(l.model, &o, &v, err);
    nb_cli_progress_end(cli);
    if (streams)
        ;
    else if (rc == NB_OK && cli->json)
        rc = print_json(&v, &o, l.model, err);
    else if (rc == NB_OK)
        print_table(&v, &o, l.model);
    nb_load_close(&l);
    nb_pool_close(o.pool);
    return rc;
}
