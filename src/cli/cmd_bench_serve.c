/* cmd_bench_serve.c - `nibble bench serve`: load for a server, and figures under the names of `vllm bench serve`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "cli/bench_serve.h"
#include "cli/cmd_bench_serve.h"

/* ---- the server ---- */

static nb_status parse_url(nb_bench *s, nb_err *err)
{
    const char *u = s->base_url;
    const char *end;
    uint64_t port = 80;

    if (!u) {
        snprintf(s->host_name, sizeof s->host_name, "%s", s->host);
        s->load.port = (uint16_t)s->port;
        return NB_OK;
    }
    if (strncmp(u, "http://", 7) != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--base-url begins with http://");
    u += 7;
    end = u + strcspn(u, ":/");
    snprintf(s->host_name, sizeof s->host_name, "%.*s", (int)(end - u), u);
    if (*end == ':' && (!(end = nb_num_u64(end + 1, UINT16_MAX, &port)) || port == 0 || (*end && *end != '/')))
        return nb_fail(err, NB_EARG, "arg.value", "", "--base-url has no port after the colon");
    s->load.port = (uint16_t)port;
    return NB_OK;
}

/* Model, tokenizer and version, as the server names them. */
static nb_status meet(nb_bench *s, nb_err *err)
{
    nb_json *v;
    const nb_json *card;
    nb_status rc = nb_load_json(&s->load, "/v1/models", NULL, &v, err);

    if (rc != NB_OK)
        return rc;
    card = nb_json_at(nb_json_get(v, "data"), 0);
    snprintf(s->model_id, sizeof s->model_id, "%s", s->model ? s->model : nb_json_str(nb_json_get(card, "id"), ""));
    snprintf(s->tokenizer_id, sizeof s->tokenizer_id, "%s", nb_json_str(nb_json_get(card, "root"), s->model_id));
    nb_json_free(v);
    if (nb_load_json(&s->load, "/version", NULL, &v, NULL) == NB_OK) {
        snprintf(s->server_version, sizeof s->server_version, "%.60s", nb_json_str(nb_json_get(v, "version"), ""));
        nb_json_free(v);
    }
    if (s->vocab == 0) {
        s->vocab = 32000;
        if (nb_load_json(&s->load, "/props", NULL, &v, NULL) == NB_OK) {
            s->vocab = nb_json_int(nb_json_get(v, "vocab_size"), s->vocab);
            nb_json_free(v);
        }
    }
    return NB_OK;
}

/* ---- options ---- */

enum { GRID_MOST = 8, GRID_CELLS = GRID_MOST * GRID_MOST };

/* "128,1024": *n numbers from 1 on. */
static nb_status number_list(const char *text, const char *name, size_t out[GRID_MOST], size_t *n, nb_err *err)
{
    const char *end;

    for (*n = 0; *text && *n < GRID_MOST; text = *end ? end + 1 : end) {
        uint64_t v;

        end = nb_num_u64(text, INT64_MAX, &v);
        if (!end || v < 1 || (*end && *end != ','))
            break;
        out[(*n)++] = (size_t)v;
    }
    return *n && !*text ? NB_OK
                        : nb_fail(err, NB_EARG, "arg.value", "", "%s is a list of at most %d numbers, such as 128,1024", name, GRID_MOST);
}

/* A number above 0 or "inf"; an option that was not given means `otherwise`. */
static nb_status positive(const char *option, const char *text, double otherwise, double *out, nb_err *err)
{
    const char *end = text ? nb_num_real(text, out) : NULL;

    if (!text || strcmp(text, "inf") == 0)
        *out = text ? (double)INFINITY : otherwise;
    else if (!end || *end || !(*out > 0))
        return nb_fail(err, NB_EARG, "arg.value", "", "%s is a number above 0, or inf", option);
    return NB_OK;
}

/* "ttft:MS tpot:MS e2el:MS", any of them, to limit_ms. */
static nb_status parse_goodput(nb_bench *s, nb_err *err)
{
    static const char *const names[NB_LEN(s->limit_ms)] = { "ttft:", "tpot:", "e2el:" };
    const char *p = s->goodput ? s->goodput : "";

    for (size_t i = 0; i < NB_LEN(names); i++)
        s->limit_ms[i] = INFINITY;
    while (*p) {
        size_t i = 0;
        while (i < NB_LEN(names) && strncmp(p, names[i], strlen(names[i])) != 0)
            i++;
        p = i < NB_LEN(names) ? nb_num_real(p + strlen(names[i]), &s->limit_ms[i]) : NULL;
        if (!p || (*p && *p != ' ' && *p != ','))
            return nb_fail(err, NB_EARG, "arg.value", "", "--goodput is a list of ttft:MS, tpot:MS and e2el:MS");
        p += strspn(p, " ,");
    }
    return NB_OK;
}

static nb_status parse_ramp(nb_bench *s, nb_err *err)
{
    if (!s->ramp_text && s->ramp_from == 0 && s->ramp_to == 0)
        return NB_OK;
    if (!s->ramp_text || s->ramp_from == 0 || s->ramp_to == 0 || s->rate_text)
        return nb_fail(err, NB_EARG, "arg.value", "",
                       "a ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate");
    if (strcmp(s->ramp_text, "linear") == 0)
        s->pace.ramp = NB_RAMP_LINEAR;
    else if (strcmp(s->ramp_text, "exponential") == 0)
        s->pace.ramp = NB_RAMP_EXPONENTIAL;
    else
        return nb_fail(err, NB_EARG, "arg.value", "", "--ramp-up-strategy is linear or exponential");
    s->pace.rate = s->ramp_from;
    s->pace.to = s->ramp_to;
    return NB_OK;
}

static nb_status parse_numbers(nb_bench *s, nb_err *err)
{
    static const char *const sets[] = { "random", "prefix_repetition", "jsonl", "sharegpt", "sonnet", "trace" };
    bool known = false;
    const char *end;
    nb_status rc = positive("--request-rate", s->rate_text, INFINITY, &s->pace.rate, err);

    if (rc == NB_OK)
        rc = positive("--burstiness", s->burst_text, 1, &s->pace.burstiness, err);
    if (rc == NB_OK)
        rc = parse_ramp(s, err);
    if (rc == NB_OK)
        rc = parse_goodput(s, err);
    if (rc != NB_OK)
        return rc;
    for (const char *p = s->percentiles ? s->percentiles : "99"; *p && s->n_pct < NB_BENCH_PERCENTILES; p = *end ? end + 1 : end) {
        end = nb_num_real(p, &s->pct[s->n_pct]);
        if (!end || (*end && *end != ',') || s->pct[s->n_pct] < 0 || s->pct[s->n_pct] > 100)
            return nb_fail(err, NB_EARG, "arg.value", "", "--metric-percentiles is a list such as 50,90,99");
        s->n_pct++;
    }
    for (size_t i = 0; i < NB_LEN(sets); i++)
        known = known || strcmp(s->dataset, sets[i]) == 0;
    if (!known)
        return nb_fail(err, NB_EARG, "arg.value", "", "--dataset-name is random, prefix_repetition, jsonl, sharegpt, sonnet or trace");
    if (s->grid && strcmp(s->dataset, "random") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--grid draws random prompts; leave --dataset-name out");
    return NB_OK;
}

/* --backend names the endpoint; --extra-body is an object. */
static nb_status parse_words(nb_bench *s, nb_err *err)
{
    nb_json *extra = NULL;
    nb_status rc = NB_OK;

    if (s->backend && strcmp(s->backend, "openai-chat") == 0 && !nb_bench_chat(s))
        s->endpoint = "/v1/chat/completions";
    else if (s->backend && strcmp(s->backend, "openai") != 0 && strcmp(s->backend, "vllm") != 0 && strcmp(s->backend, "openai-chat") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--backend is openai (also called vllm) or openai-chat");
    if (s->extra) {
        rc = nb_json_parse(s->extra, strlen(s->extra), "arg", 0, &extra, err);
        if (rc == NB_OK && nb_json_typeof(extra) != NB_JOBJ)
            rc = nb_fail(err, NB_EARG, "arg.value", "", "--extra-body is a JSON object");
        if (rc == NB_OK && nb_json_len(extra) == 0)
            s->extra = NULL;
        nb_json_free(extra);
    }
    return rc;
}

/* ---- one run ---- */

static nb_status warm(nb_bench *s, nb_err *err)
{
    const size_t n = (size_t)s->warmups < s->n ? (size_t)s->warmups : s->n;
    nb_load_answer *a = nb_calloc(n ? n : 1, sizeof *a);
    double seconds;
    nb_status rc = a ? nb_load_run(&s->load, s->q, n, a, &seconds, err) : nb_enomem(err, "the warm-up");

    for (size_t i = 0; a && i < n; i++)
        nb_free(a[i].itl);
    nb_free(a);
    return rc;
}

/* Requests, warm-up, load, figures. *out is the result object. */
static nb_status run_once(nb_bench *s, nb_json **out, nb_err *err)
{
    nb_status rc;

    *out = NULL;
    s->load.concurrency = (unsigned)(s->max_concurrency ? s->max_concurrency : 512);
    rc = nb_bench_requests(s, err);
    if (rc == NB_OK && s->warmups)
        rc = warm(s, err);
    if (rc == NB_OK) {
        nb_bench_cache(s, s->hit_before);
        rc = nb_load_run(&s->load, s->q, s->n, s->a, &s->seconds, err);
    }
    nb_cli_progress_end(s->cli);
    if (rc == NB_OK)
        rc = nb_bench_collect(s, err);
    if (rc == NB_OK && !(*out = nb_bench_result(s)))
        rc = nb_enomem(err, "the result");
    return rc;
}

/* The cell keeps the sorted values of the run. */
static void take_values(nb_bench *s, nb_bench_cell *c)
{
    for (int m = 0; m < NB_BENCH_METRICS; m++) {
        c->values[m] = s->values[m];
        c->n_values[m] = s->n_values[m];
        s->values[m] = NULL;
    }
}

static void clear_cells(nb_bench_cell *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nb_json_free(c[i].result);
        for (int m = 0; m < NB_BENCH_METRICS; m++)
            nb_free(c[i].values[m]);
    }
}

static bool completed(const nb_json *o)
{
    return nb_json_int(nb_json_get(o, "completed"), 0) > 0;
}

static nb_status run_plain(nb_bench *s, nb_err *err)
{
    nb_bench_cell cell = { .name = "this run" };
    nb_status rc = run_once(s, &cell.result, err);

    if (rc != NB_OK)
        return rc;
    if (s->cli->json)
        nb_cli_json(cell.result);
    else
        nb_bench_print(s, cell.result);
    if (s->save)
        rc = nb_bench_save(s, cell.result, err);
    take_values(s, &cell);
    if (rc == NB_OK && s->report)
        rc = nb_bench_report(s, &cell, 1, err);
    if (rc == NB_OK && !completed(cell.result))
        rc = NB_NO;
    clear_cells(&cell, 1);
    return rc;
}

/* ---- the grid (BEN-3) ---- */

/* The first request again, alone: is the answer the one it got in the crowd? "same", "different" or "failed". */
static const char *probe(const nb_bench *s)
{
    nb_load_answer alone = { 0 };
    nb_load_request q = s->q[0];
    const char *said = "failed";
    double seconds;

    q.at = 0;
    if (s->a[0].ok && s->a[0].text && nb_load_run(&s->load, &q, 1, &alone, &seconds, NULL) == NB_OK && alone.ok && alone.text)
        said = strcmp(alone.text, s->a[0].text) == 0 ? "same" : "different";
    nb_free(alone.itl);
    nb_free(alone.text);
    return said;
}

static nb_status run_cell(nb_bench *s, size_t len, size_t clients, nb_bench_cell *c, nb_err *err)
{
    nb_json *g;
    nb_status rc;

    s->input_len = (int64_t)len;
    s->max_concurrency = (int64_t)clients;
    s->load.keep_text = true;
    snprintf(c->name, sizeof c->name, "%zu tok, %zu client%s", len, clients, clients == 1 ? "" : "s");
    if (!s->cli->quiet)
        fprintf(stderr, "%s, %lld requests\n", c->name, (long long)s->n_prompts);
    rc = run_once(s, &c->result, err);
    if (rc != NB_OK)
        return rc;
    g = nb_json_new_obj();
    if (!(nb_json_set(g, "input_len", nb_json_new_int((int64_t)len)) && nb_json_set(g, "concurrency", nb_json_new_int((int64_t)clients)) &&
          nb_json_set(g, "probe", nb_json_new_str(probe(s))) && nb_json_set(c->result, "grid", g)))
        return nb_enomem(err, "the result");
    take_values(s, c);
    nb_bench_clear_run(s);
    s->seed++; /* other prompts in the next cell */
    return NB_OK;
}

static void print_grid(const nb_bench *s, const nb_bench_cell *cells, size_t n)
{
    printf("%s at %s:%u, %lld tokens an answer%s\n\n", s->model_id, s->host_name, s->load.port, (long long)s->output_len,
           s->prefix_len ? ", prompts share a prefix" : "");
    printf("  %7s %8s %10s %10s %10s %9s %9s %8s  %s\n", "prompt", "clients", "out tok/s", "ttft p50", "ttft p99", "tpot p50", "itl p99",
           "cached", "probe");
    for (size_t i = 0; i < n; i++) {
        const nb_json *o = cells[i].result, *g = nb_json_get(o, "grid");
        double p[3];

        p[0] = nb_load_percentile(cells[i].values[0], cells[i].n_values[0], 99);
        p[1] = nb_load_percentile(cells[i].values[2], cells[i].n_values[2], 99);
        p[2] = nb_json_num(nb_json_get(nb_json_get(o, "nibble"), "prefix_cache_hit_rate"), 0);
        printf("  %7lld %8lld %10.1f %10.1f %10.1f %9.2f %9.2f %6.1f %%  %s\n", (long long)nb_json_int(nb_json_get(g, "input_len"), 0),
               (long long)nb_json_int(nb_json_get(g, "concurrency"), 0), nb_json_num(nb_json_get(o, "output_throughput"), 0),
               nb_json_num(nb_json_get(o, "median_ttft_ms"), 0), p[0], nb_json_num(nb_json_get(o, "median_tpot_ms"), 0), p[1], 100 * p[2],
               nb_json_str(nb_json_get(g, "probe"), ""));
        if (nb_json_int(nb_json_get(o, "failed"), 0))
            printf("  %7s %lld of %lld requests failed\n", "", (long long)nb_json_int(nb_json_get(o, "failed"), 0),
                   (long long)s->n_prompts);
    }
}

/* {"date", "model_id", "grid": [cells]}: the object of --json and of --save-result. */
static nb_json *grid_result(const nb_bench_cell *cells, size_t n)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = true;

    for (size_t i = 0; ok && i < n; i++)
        ok = nb_json_push(list, nb_json_copy(cells[i].result));
    ok = ok && nb_json_set(o, "date", nb_json_copy(nb_json_get(cells[0].result, "date"))) &&
         nb_json_set(o, "model_id", nb_json_copy(nb_json_get(cells[0].result, "model_id")));
    ok = nb_json_set(o, "grid", list) && ok;
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_status run_grid(nb_bench *s, nb_err *err)
{
    nb_bench_cell *cells = nb_calloc(GRID_CELLS, sizeof *cells);
    size_t lens[GRID_MOST], clients[GRID_MOST], n_lens, n_clients, n = 0;
    nb_status rc = cells ? number_list(s->grid_lens, "--grid-lens", lens, &n_lens, err) : nb_enomem(err, "the grid");
    bool any = false, differs = false;
    nb_json *o = NULL;

    if (rc == NB_OK)
        rc = number_list(s->grid_clients, "--grid-clients", clients, &n_clients, err);
    for (size_t i = 0; rc == NB_OK && i < n_lens; i++)
        for (size_t k = 0; rc == NB_OK && k < n_clients; k++)
            rc = run_cell(s, lens[i], clients[k], &cells[n++], err);
    if (rc == NB_OK && !(o = grid_result(cells, n)))
        rc = nb_enomem(err, "the result");
    if (rc == NB_OK) {
        if (s->cli->json)
            nb_cli_json(o);
        else
            print_grid(s, cells, n);
        if (s->save)
            rc = nb_bench_save(s, o, err);
    }
    if (rc == NB_OK && s->report)
        rc = nb_bench_report(s, cells, n, err);
    for (size_t i = 0; i < n; i++) {
        any = any || completed(cells[i].result);
        differs = differs || strcmp(nb_json_str(nb_json_get(nb_json_get(cells[i].result, "grid"), "probe"), ""), "different") == 0;
    }
    if (cells)
        clear_cells(cells, n);
    nb_free(cells);
    nb_json_free(o);
    return rc == NB_OK && (!any || differs) ? NB_NO : rc;
}

/* ---- the verb ---- */

static nb_status run_all(nb_bench *s, nb_err *err)
{
    nb_status rc = parse_numbers(s, err);

    if (rc == NB_OK)
        rc = parse_words(s, err);
    if (rc == NB_OK)
        rc = parse_url(s, err);
    s->load.host = s->host_name;
    s->load.path = s->endpoint;
    s->load.bearer = getenv("OPENAI_API_KEY");
    s->load.timeout_s = s->timeout;
    s->load.log = &s->cli->host;
    s->load.keep_text = s->detailed;
    if (s->n_prompts == 0)
        s->n_prompts = s->grid ? 32 : 1000;
    if (rc == NB_OK)
        rc = meet(s, err);
    if (rc == NB_OK && s->report)
        rc = nb_out_open(&s->page, s->report, s->force, err);
    if (rc == NB_OK)
        rc = s->grid ? run_grid(s, err) : run_plain(s, err);
    nb_out_abort(s->page);
    nb_bench_clear_run(s);
    return rc;
}

nb_status nb_bench_serve(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    static const nb_cmd cmd = {
        .name = "bench serve",
        .usage = "bench serve [options]",
        .brief = "load for a running server; figures under the names of `vllm bench serve`",
        .help = "Streams completions from an OpenAI-compatible server and tells throughput, time to first token (ttft), time per\n"
                "output token (tpot), gaps between tokens (itl) and whole latency (e2el). A key is taken from OPENAI_API_KEY.\n\n"
                "  nibble bench serve --port 8000 --num-prompts 200 --max-concurrency 16 --random-prefix-len 512\n"
                "                     --random-input-len 64 --random-output-len 64\n"
                "  nibble bench serve --grid --report grid.html     short and long prompts, few and many clients\n\n"
                "Each cell of the grid asks its first request once more, alone, and compares the answers; exit 1 when they differ.",
    };
    nb_bench s = { .cli = cli,
                   .host = "127.0.0.1",
                   .port = 8000,
                   .endpoint = "/v1/completions",
                   .dataset = "random",
                   .input_len = 1024,
                   .output_len = 128,
                   .prefix_seed = -1,
                   .sampling = { NAN, NAN, NAN, NAN, NAN, NAN },
                   .rep_prefixes = 10,
                   .rep_prefix_len = 256,
                   .rep_suffix_len = 256,
                   .rep_output_len = 128,
                   .grid_lens = "128,1024",
                   .grid_clients = "1,16",
                   .timeout = 600 };
    const nb_opt opts[] = {
        { "--base-url", NB_OPT_STR, &s.base_url, 0, 0, "URL", "http://HOST:PORT of the server" },
        { "--host", NB_OPT_STR, &s.host, 0, 0, "HOST", "without --base-url (default 127.0.0.1)" },
        { "--port", NB_OPT_INT, &s.port, 1, 65535, "N", "without --base-url (default 8000)" },
        { "--endpoint", NB_OPT_STR, &s.endpoint, 0, 0, "PATH", "/v1/completions (default) or /v1/chat/completions" },
        { "--model", NB_OPT_STR, &s.model, 0, 0, "NAME", "model to ask for (default: the first one served)" },
        { "--backend", NB_OPT_STR, &s.backend, 0, 0, "NAME", "openai (default) or openai-chat: names the endpoint" },
        { "--extra-body", NB_OPT_STR, &s.extra, 0, 0, "JSON", "an object whose fields every request gets" },
        { "--dataset-name", NB_OPT_STR, &s.dataset, 0, 0, "KIND",
          "random (default), prefix_repetition, jsonl, sharegpt, sonnet (a text file), trace" },
        { "--dataset-path", NB_OPT_STR, &s.dataset_path, 0, 0, "FILE", "prompts of the other kinds" },
        { "--num-prompts", NB_OPT_INT, &s.n_prompts, 1, 1e6, "N", "requests (default 1000; 32 a cell of the grid)" },
        { "--request-rate", NB_OPT_STR, &s.rate_text, 0, 0, "R", "requests a second, or inf (default)" },
        { "--burstiness", NB_OPT_STR, &s.burst_text, 0, 0, "B", "shape of the gaps: 1 Poisson (default), below 1 burstier, inf constant" },
        { "--ramp-up-strategy", NB_OPT_STR, &s.ramp_text, 0, 0, "linear|exponential", "let the rate rise (instead of --request-rate)" },
        { "--ramp-up-start-rps", NB_OPT_NUM, &s.ramp_from, 0.001, 1e6, "R", "from so many requests a second" },
        { "--ramp-up-end-rps", NB_OPT_NUM, &s.ramp_to, 0.001, 1e6, "R", "to so many" },
        { "--max-concurrency", NB_OPT_INT, &s.max_concurrency, 1, 4096, "N", "requests at a time (default: all, 512 at most)" },
        { "--random-input-len,--input-len", NB_OPT_INT, &s.input_len, 1, 1e7, "N", "prompt tokens (default 1024)" },
        { "--random-output-len,--output-len", NB_OPT_INT, &s.output_len, 1, 1e7, "N", "tokens of an answer (default 128)" },
        { "--random-range-ratio", NB_OPT_NUM, &s.range_ratio, 0, 1, "R", "lengths vary by this share (default 0)" },
        { "--random-prefix-len", NB_OPT_INT, &s.prefix_len, 0, 1e7, "N", "tokens in front that all prompts share (default 0)" },
        { "--prefix-seed", NB_OPT_INT, &s.prefix_seed, 0, 9e15, "N", "of the shared prefix alone (default: --seed)" },
        { "--prefix-repetition-num-prefixes", NB_OPT_INT, &s.rep_prefixes, 1, 1e6, "N", "different prefixes (default 10)" },
        { "--prefix-repetition-prefix-len", NB_OPT_INT, &s.rep_prefix_len, 0, 1e7, "N", "tokens of each (default 256)" },
        { "--prefix-repetition-suffix-len", NB_OPT_INT, &s.rep_suffix_len, 1, 1e7, "N", "own tokens behind it (default 256)" },
        { "--prefix-repetition-output-len", NB_OPT_INT, &s.rep_output_len, 1, 1e7, "N", "tokens of an answer (default 128)" },
        { "--sharegpt-output-len", NB_OPT_INT, &s.share_output_len, 1, 1e7, "N", "tokens of an answer (default: as long as the file's)" },
        { "--vocab", NB_OPT_INT, &s.vocab, 2, 1e8, "N", "random ids are below it (default: what the server says, else 32000)" },
        { "--temperature", NB_OPT_NUM, &s.temperature, 0, 100, "T", "default 0" },
        { "--top-p", NB_OPT_NUM, &s.sampling[0], 0, 1, "P", "sent when given, as the five below are" },
        { "--top-k", NB_OPT_NUM, &s.sampling[1], -1, 1e9, "K", "the K likeliest" },
        { "--min-p", NB_OPT_NUM, &s.sampling[2], 0, 1, "P", "those of at least P times the likeliest" },
        { "--repetition-penalty", NB_OPT_NUM, &s.sampling[3], 0, 1e6, "R", "above 1: against words of prompt and answer" },
        { "--presence-penalty", NB_OPT_NUM, &s.sampling[4], -2, 2, "P", "against words of the answer" },
        { "--frequency-penalty", NB_OPT_NUM, &s.sampling[5], -2, 2, "F", "the same, by their number" },
        { "--ignore-eos", NB_OPT_FLAG, &s.ignore_eos, 0, 0, NULL, "answers have the asked length (the default)" },
        { "--no-ignore-eos", NB_OPT_FLAG, &s.no_ignore_eos, 0, 0, NULL, "answers may end early" },
        { "--seed", NB_OPT_INT, &s.seed, 0, 9e15, "N", "of prompts and arrival times (default 0)" },
        { "--num-warmups", NB_OPT_INT, &s.warmups, 0, 1e5, "N", "requests before the measurement (default 0)" },
        { "--percentile-metrics", NB_OPT_STR, &s.metrics, 0, 0, "LIST", "accepted for compatibility: all four are always told" },
        { "--metric-percentiles", NB_OPT_STR, &s.percentiles, 0, 0, "LIST", "such as 50,90,99 (default 99)" },
        { "--goodput", NB_OPT_STR, &s.goodput, 0, 0, "LIMITS", "such as \"ttft:500 tpot:50\": count requests within them" },
        { "--label", NB_OPT_STR, &s.label, 0, 0, "TEXT", "of the result" },
        { "--metadata", NB_OPT_LIST, &s.metadata, 0, 0, "KEY=VALUE", "put into the result" },
        { "--save-result", NB_OPT_FLAG, &s.save, 0, 0, NULL, "write the JSON to a file" },
        { "--save-detailed", NB_OPT_FLAG, &s.detailed, 0, 0, NULL, "with the figures of every request" },
        { "--append-result", NB_OPT_FLAG, &s.append, 0, 0, NULL, "add a line to the file" },
        { "--result-dir", NB_OPT_STR, &s.result_dir, 0, 0, "DIR", "where the file goes" },
        { "--result-filename", NB_OPT_STR, &s.result_file, 0, 0, "NAME", "its name" },
        { "--grid", NB_OPT_FLAG, &s.grid, 0, 0, NULL, "every pair of a prompt length and a number of clients" },
        { "--grid-lens", NB_OPT_STR, &s.grid_lens, 0, 0, "LIST", "prompt tokens (default 128,1024)" },
        { "--grid-clients", NB_OPT_STR, &s.grid_clients, 0, 0, "LIST", "clients (default 1,16)" },
        { "--report", NB_OPT_STR, &s.report, 0, 0, "FILE", "one HTML page with tables and charts" },
        { "--force", NB_OPT_FLAG, &s.force, 0, 0, NULL, "replace the file of --report" },
        { "--disable-tqdm", NB_OPT_FLAG, &s.no_bar, 0, 0, NULL, "no progress on stderr (as -q)" },
        { "--timeout", NB_OPT_NUM, &s.timeout, 1, 1e6, "S", "silence of the server that fails a request (default 600)" },
    };
    const char *args[1];
    size_t n;
    bool help;
    nb_status rc = nb_cli_parse(cli, &cmd, opts, NB_LEN(opts), argc, argv, args, 0, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && s.no_bar)
        cli->quiet = true;
    return rc == NB_OK ? run_all(&s, err) : rc;
}
