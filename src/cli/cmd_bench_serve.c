/* cmd_bench_serve.c - `nibble bench serve`: load for a server, and figures under the names of `vllm bench serve`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/cmd_bench_serve.h"
#include "serve/loadgen.h"

enum { N_METRICS = 4, MAX_PERCENTILES = 8 };
static const char *const metric_names[N_METRICS] = { "ttft", "tpot", "itl", "e2el" };

typedef struct bench {
    nb_cli *cli;
    /* options */
    const char *base_url, *host, *endpoint, *model, *dataset, *dataset_path, *rate_text, *metrics, *percentiles, *goodput, *label,
        *result_file, *result_dir, *burst_text;
    int64_t port, n_prompts, max_concurrency, input_len, output_len, prefix_len, seed, warmups, vocab;
    double temperature, range_ratio, timeout;
    bool save, detailed, append, no_ignore_eos;
    nb_strlist metadata;
    /* the run */
    nb_load_opts load;
    char host_name[256], model_id[512], tokenizer_id[512], server_version[64];
    nb_load_request *q;
    nb_load_answer *a;
    size_t n;
    double rate, burstiness, seconds, hit_before[2];
    double *values[N_METRICS]; /* ms */
    size_t n_values[N_METRICS];
    double pct[MAX_PERCENTILES];
    size_t n_pct;
} bench;

/* ---- requests ---- */

static void put_common(nb_buf *b, const bench *s, size_t n_output)
{
    nb_buf_puts(b, "{\"model\":");
    nb_json_put_str(b, s->model_id, strlen(s->model_id));
    nb_buf_printf(b, ",\"max_tokens\":%zu,\"temperature\":%.9g,\"stream\":true,\"stream_options\":{\"include_usage\":true}", n_output,
                  s->temperature);
    if (!s->no_ignore_eos)
        nb_buf_puts(b, ",\"ignore_eos\":true");
}

static bool chat_endpoint(const bench *s)
{
    return strstr(s->endpoint, "chat") != NULL;
}

/* Uniform in [len (1 - ratio), len (1 + ratio)]. */
static size_t draw_length(const bench *s, int64_t len, uint64_t stream, size_t i)
{
    const double lo = floor((double)len * (1 - s->range_ratio)), hi = ceil((double)len * (1 + s->range_ratio));
    const double v = lo + floor(nb_rng_uniform((uint64_t)s->seed, stream, i) * (hi - lo + 1));

    return v < 1 ? 1 : (size_t)fmin(v, hi);
}

/* Random token ids behind a prefix all requests share. A chat gets them as numbers spelled out. */
static bool random_request(bench *s, size_t i)
{
    const size_t n_in = draw_length(s, s->input_len, 1, i), n_out = draw_length(s, s->output_len, 2, i), all = (size_t)s->prefix_len + n_in;
    const uint64_t low = s->vocab > 2000 ? 1000 : 0;
    nb_buf b = { 0 };

    put_common(&b, s, n_out);
    nb_buf_puts(&b, chat_endpoint(s) ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" : ",\"prompt\":[");
    for (size_t k = 0; k < all; k++) {
        const uint64_t stream = k < (size_t)s->prefix_len ? 3 : 100 + i;
        const uint64_t id = low + (uint64_t)(nb_rng_uniform((uint64_t)s->seed, stream, k) * (double)((uint64_t)s->vocab - low));

        nb_buf_printf(&b, "%s%llu", !k ? "" : chat_endpoint(s) ? " " : ",", (unsigned long long)id);
    }
    nb_buf_puts(&b, chat_endpoint(s) ? "\"}]}" : "]}");
    s->q[i] = (nb_load_request){ .body = b.p, .n_input = all };
    return !b.failed;
}

/* A line of a JSONL file: {"prompt": text or ids, "output_len": N, "offset": seconds} or ShareGPT's {"conversations":[{"value"}...]}. */
static bool line_request(bench *s, size_t i, const nb_json *line, double *offset)
{
    const nb_json *prompt = nb_json_get(line, "prompt"), *talk = nb_json_get(line, "conversations");
    const int64_t n_out = nb_json_int(nb_json_get(line, "output_len"), nb_json_int(nb_json_get(line, "output_tokens"), s->output_len));
    nb_buf b = { 0 };
    char *text;

    if (nb_json_is_null(prompt))
        prompt = nb_json_get(nb_json_at(talk, 0), "value");
    text = nb_json_is_null(prompt) ? NULL : nb_json_dump(prompt, 0, true);
    if (!text)
        return false;
    put_common(&b, s, (size_t)(n_out > 0 ? n_out : 1));
    if (chat_endpoint(s))
        nb_buf_printf(&b, ",\"messages\":[{\"role\":\"user\",\"content\":%s}]}", text);
    else
        nb_buf_printf(&b, ",\"prompt\":%s}", text);
    nb_free(text);
    *offset = nb_json_num(nb_json_get(line, "offset"), nb_json_num(nb_json_get(line, "timestamp"), 0));
    s->q[i] = (nb_load_request){ .body = b.p };
    return !b.failed;
}

/* Requests of a file: JSONL lines (a trace has offsets), or windows of a plain text. */
static nb_status file_requests(bench *s, bool trace, nb_err *err)
{
    char *text;
    size_t n, i = 0, at = 0;
    nb_status rc = nb_read_file(s->dataset_path, (size_t)1 << 30, &text, &n, err);
    const bool plain = strcmp(s->dataset, "sonnet") == 0;
    const size_t window = (size_t)s->input_len * 4;

    while (rc == NB_OK && i < s->n && at < n) {
        const char *eol = plain ? NULL : memchr(text + at, '\n', n - at);
        const size_t len = plain ? (n - at < window ? n - at : window) : eol ? (size_t)(eol - (text + at)) : n - at;
        nb_json *line = NULL;

        if (plain) {
            nb_json *p = nb_json_new_strn(text + at, len);

            line = nb_json_new_obj();
            if (!nb_json_set(line, "prompt", p)) { /* a window may cut a character: shift it */
                nb_json_free(line);
                at++;
                continue;
            }
        } else if (len) {
            rc = nb_json_parse(text + at, len, "dataset", 0, &line, err);
        }
        if (rc == NB_OK && line) {
            double offset;

            if (line_request(s, i, line, &offset)) {
                s->q[i].at = trace ? offset : 0;
                i++;
            }
        }
        nb_json_free(line);
        at += len + !plain;
    }
    if (rc == NB_OK && i == 0)
        rc = nb_fail(err, NB_EFORMAT, "dataset.empty", "", "no prompt in it; lines are {\"prompt\": ..., \"output_len\": N}");
    s->n = i;
    nb_err_at(err, s->dataset_path, NULL);
    nb_free(text);
    return rc;
}

static nb_status make_requests(bench *s, nb_err *err)
{
    const bool trace = strcmp(s->dataset, "trace") == 0;
    nb_status rc = NB_OK;

    s->n = (size_t)s->n_prompts;
    s->q = nb_calloc(s->n, sizeof *s->q);
    if (!s->q)
        return nb_enomem(err, "the requests");
    if (strcmp(s->dataset, "random") == 0) {
        for (size_t i = 0; i < s->n; i++)
            if (!random_request(s, i))
                return nb_enomem(err, "the requests");
    } else if (!s->dataset_path) {
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "--dataset-name %s needs --dataset-path FILE", s->dataset);
    } else {
        rc = file_requests(s, trace, err);
    }
    if (rc == NB_OK && !trace)
        nb_load_schedule(s->q, s->n, s->rate, s->burstiness, (uint64_t)s->seed);
    s->a = nb_calloc(s->n, sizeof *s->a);
    return rc == NB_OK && !s->a ? nb_enomem(err, "the answers") : rc;
}

/* ---- the server ---- */

static nb_status parse_url(bench *s, nb_err *err)
{
    const char *u = s->base_url;
    const char *end;
    unsigned port = 80;

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
    if (*end == ':' && sscanf(end + 1, "%5u", &port) != 1)
        return nb_fail(err, NB_EARG, "arg.value", "", "--base-url has no port after the colon");
    s->load.port = (uint16_t)port;
    return NB_OK;
}

/* Model, tokenizer and version, as the server names them. */
static nb_status meet(bench *s, nb_err *err)
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

static void cache_counters(bench *s, double out[2])
{
    nb_json *v;

    out[0] = out[1] = 0;
    if (nb_load_json(&s->load, "/load", NULL, &v, NULL) == NB_OK) {
        out[0] = nb_json_num(nb_json_get(v, "queried_tokens"), 0);
        out[1] = nb_json_num(nb_json_get(v, "hit_tokens"), 0);
        nb_json_free(v);
    }
}

/* ---- figures ---- */

static double tpot(const nb_load_answer *a)
{
    return a->n_output > 1 ? (a->latency - a->ttft) / (double)(a->n_output - 1) : 0;
}

static nb_status collect(bench *s, nb_err *err)
{
    size_t n_itl = 0;

    for (size_t i = 0; i < s->n; i++)
        n_itl += s->a[i].n_itl;
    for (int m = 0; m < N_METRICS; m++) {
        s->values[m] = nb_calloc((m == 2 ? n_itl : s->n) + 1, sizeof(double));
        if (!s->values[m])
            return nb_enomem(err, "the figures");
    }
    for (size_t i = 0; i < s->n; i++) {
        const nb_load_answer *a = &s->a[i];

        if (!a->ok)
            continue;
        s->values[0][s->n_values[0]++] = 1e3 * a->ttft;
        if (a->n_output > 1)
            s->values[1][s->n_values[1]++] = 1e3 * tpot(a);
        for (size_t k = 0; k < a->n_itl; k++)
            s->values[2][s->n_values[2]++] = 1e3 * a->itl[k];
        s->values[3][s->n_values[3]++] = 1e3 * a->latency;
    }
    return NB_OK;
}

static void mean_std(const double *v, size_t n, double *mean, double *std)
{
    double sum = 0, sq = 0;

    for (size_t i = 0; i < n; i++)
        sum += v[i];
    *mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < n; i++)
        sq += (v[i] - *mean) * (v[i] - *mean);
    *std = n ? sqrt(sq / (double)n) : 0;
}

/* Requests for which every limit of --goodput "ttft:MS tpot:MS e2el:MS" holds; -1 without limits. */
static double good_requests(const bench *s)
{
    double limit[3] = { INFINITY, INFINITY, INFINITY };
    size_t good = 0;

    if (!s->goodput)
        return -1;
    for (const char *p = s->goodput; *p;) {
        double ms;

        if (sscanf(p, "ttft:%lf", &ms) == 1)
            limit[0] = ms;
        else if (sscanf(p, "tpot:%lf", &ms) == 1)
            limit[1] = ms;
        else if (sscanf(p, "e2el:%lf", &ms) == 1)
            limit[2] = ms;
        p += strcspn(p, " ,");
        p += strspn(p, " ,");
    }
    for (size_t i = 0; i < s->n; i++) {
        const nb_load_answer *a = &s->a[i];

        good += a->ok && 1e3 * a->ttft <= limit[0] && 1e3 * tpot(a) <= limit[1] && 1e3 * a->latency <= limit[2];
    }
    return (double)good;
}

/* Most tokens in any second of the run, and most requests at once. */
static void peaks(const bench *s, double *tokens, size_t *concurrent)
{
    const size_t n_s = (size_t)s->seconds + 2;
    double *per = nb_calloc(n_s, sizeof *per);

    *tokens = 0;
    *concurrent = 0;
    for (size_t i = 0; i < s->n; i++) {
        double t = s->a[i].start + s->a[i].ttft;
        size_t at_once = 0;

        for (size_t k = 0; s->a[i].ok && per && k <= s->a[i].n_itl; k++) {
            if (k)
                t += s->a[i].itl[k - 1];
            if ((size_t)t < n_s)
                per[(size_t)t]++;
        }
        for (size_t k = 0; k < s->n; k++)
            at_once += s->a[k].start <= s->a[i].start && s->a[i].start < s->a[k].start + s->a[k].latency;
        *concurrent = at_once > *concurrent ? at_once : *concurrent;
    }
    for (size_t i = 0; per && i < n_s; i++)
        *tokens = fmax(*tokens, per[i]);
    nb_free(per);
}

static bool put_num(nb_json *o, const char *name, double v)
{
    return nb_json_set(o, name, nb_json_new_real(v));
}

static bool put_int(nb_json *o, const char *name, size_t v)
{
    return nb_json_set(o, name, nb_json_new_int((int64_t)v));
}

static bool put_metrics(nb_json *o, const bench *s)
{
    bool ok = true;

    for (int m = 0; m < N_METRICS; m++) {
        char name[48];
        double mean, std;

        mean_std(s->values[m], s->n_values[m], &mean, &std);
        snprintf(name, sizeof name, "mean_%s_ms", metric_names[m]);
        ok = ok && put_num(o, name, mean);
        snprintf(name, sizeof name, "median_%s_ms", metric_names[m]);
        ok = ok && put_num(o, name, nb_load_percentile(s->values[m], s->n_values[m], 50));
        snprintf(name, sizeof name, "std_%s_ms", metric_names[m]);
        ok = ok && put_num(o, name, std);
        for (size_t i = 0; i < s->n_pct; i++) {
            snprintf(name, sizeof name, "p%g_%s_ms", s->pct[i], metric_names[m]);
            ok = ok && put_num(o, name, nb_load_percentile(s->values[m], s->n_values[m], s->pct[i]));
        }
    }
    return ok;
}

static bool put_details(nb_json *o, const bench *s)
{
    nb_json *in = nb_json_new_arr(), *out = nb_json_new_arr(), *ttft = nb_json_new_arr(), *itl = nb_json_new_arr(),
            *start = nb_json_new_arr(), *errors = nb_json_new_arr();
    bool ok = true;

    for (size_t i = 0; ok && i < s->n; i++) {
        const nb_load_answer *a = &s->a[i];
        nb_json *gaps = nb_json_new_arr();

        for (size_t k = 0; ok && k < a->n_itl; k++)
            ok = nb_json_push(gaps, nb_json_new_real(a->itl[k]));
        ok = nb_json_push(in, nb_json_new_int((int64_t)a->n_input)) && nb_json_push(out, nb_json_new_int((int64_t)a->n_output)) &&
             nb_json_push(ttft, nb_json_new_real(a->ttft)) && nb_json_push(start, nb_json_new_real(a->start)) &&
             nb_json_push(errors, nb_json_new_str(a->error)) && ok;
        ok = nb_json_push(itl, gaps) && ok;
    }
    ok = nb_json_set(o, "input_lens", in) && ok;
    ok = nb_json_set(o, "output_lens", out) && ok;
    ok = nb_json_set(o, "ttfts", ttft) && ok;
    ok = nb_json_set(o, "itls", itl) && ok;
    ok = nb_json_set(o, "start_times", start) && ok;
    return nb_json_set(o, "errors", errors) && ok;
}

/* Latency from the moment a request was due: what waiting for a free client hides (BEN-4). */
static double scheduled_p99(const bench *s)
{
    double *v = nb_calloc(s->n + 1, sizeof *v), p;
    size_t n = 0;

    if (!v)
        return 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->a[i].ok)
            v[n++] = 1e3 * (s->a[i].start - s->q[i].at + s->a[i].latency);
    p = nb_load_percentile(v, n, 99);
    nb_free(v);
    return p;
}

static bool put_extension(nb_json *o, bench *s, size_t rejected)
{
    nb_json *x = nb_json_new_obj();
    double after[2];

    cache_counters(s, after);
    if (nb_json_set(x, "client_version", nb_json_new_str(NB_VERSION)) &&
        nb_json_set(x, "server_version", nb_json_new_str(s->server_version)) &&
        put_num(x, "prefix_cache_hit_rate",
                after[0] > s->hit_before[0] ? (after[1] - s->hit_before[1]) / (after[0] - s->hit_before[0]) : 0) &&
        put_int(x, "rejected_429", rejected) && put_num(x, "p99_scheduled_latency_ms", scheduled_p99(s)) &&
        nb_json_set(x, "host", nb_json_new_str(nb_cpu_name())))
        return nb_json_set(o, "nibble", x);
    nb_json_free(x);
    return false;
}

static nb_json *result(bench *s)
{
    nb_json *o = nb_json_new_obj();
    size_t completed = 0, in = 0, out = 0, concurrent, rejected = 0;
    const double good = good_requests(s), t = s->seconds > 0 ? s->seconds : 1;
    const time_t now = time(NULL);
    struct tm tm;
    char date[32];
    double peak;
    bool ok;

    for (size_t i = 0; i < s->n; i++) {
        completed += s->a[i].ok;
        in += s->a[i].ok ? s->a[i].n_input : 0;
        out += s->a[i].ok ? s->a[i].n_output : 0;
        rejected += s->a[i].status == 429;
    }
    peaks(s, &peak, &concurrent);
    localtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm);
    ok = nb_json_set(o, "date", nb_json_new_str(date)) &&
         nb_json_set(o, "endpoint_type", nb_json_new_str(chat_endpoint(s) ? "openai-chat" : "openai")) &&
         nb_json_set(o, "backend", nb_json_new_str(chat_endpoint(s) ? "openai-chat" : "openai")) &&
         nb_json_set(o, "label", s->label ? nb_json_new_str(s->label) : nb_json_new_null()) &&
         nb_json_set(o, "model_id", nb_json_new_str(s->model_id)) && nb_json_set(o, "tokenizer_id", nb_json_new_str(s->tokenizer_id)) &&
         put_int(o, "num_prompts", s->n);
    for (size_t i = 0; ok && i < s->metadata.n; i++) {
        const char *eq = strchr(s->metadata.v[i], '=');
        char *key = eq ? nb_strndup(s->metadata.v[i], (size_t)(eq - s->metadata.v[i])) : NULL;

        ok = !key || nb_json_set(o, key, nb_json_new_str(eq + 1));
        nb_free(key);
    }
    ok = ok && nb_json_set(o, "request_rate", isinf(s->rate) ? nb_json_new_str("inf") : nb_json_new_real(s->rate)) &&
         nb_json_set(o, "burstiness", isinf(s->burstiness) ? nb_json_new_str("inf") : nb_json_new_real(s->burstiness)) &&
         nb_json_set(o, "max_concurrency", s->max_concurrency ? nb_json_new_int(s->max_concurrency) : nb_json_new_null()) &&
         put_num(o, "duration", s->seconds) && put_int(o, "completed", completed) && put_int(o, "failed", s->n - completed) &&
         put_int(o, "total_input_tokens", in) && put_int(o, "total_output_tokens", out) &&
         put_num(o, "request_throughput", (double)completed / t) &&
         nb_json_set(o, "request_goodput", good < 0 ? nb_json_new_null() : nb_json_new_real(good / t)) &&
         put_num(o, "output_throughput", (double)out / t) && put_num(o, "total_token_throughput", (double)(in + out) / t) &&
         put_num(o, "max_output_tokens_per_s", peak) && put_int(o, "max_concurrent_requests", concurrent) && put_num(o, "rtfx", 0) &&
         put_metrics(o, s) && (!s->detailed || put_details(o, s)) && put_extension(o, s, rejected);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

static void print_table(const bench *s, const nb_json *o)
{
    printf("%s at %s:%u, %zu requests, %lld at a time\n\n", s->model_id, s->host_name, s->load.port, s->n,
           (long long)(s->max_concurrency ? s->max_concurrency : (int64_t)s->load.concurrency));
    printf("  completed %lld, failed %lld in %.2f s\n", (long long)nb_json_int(nb_json_get(o, "completed"), 0),
           (long long)nb_json_int(nb_json_get(o, "failed"), 0), s->seconds);
    printf("  requests %.2f/s   output %.1f tok/s   all tokens %.1f tok/s\n\n", nb_json_num(nb_json_get(o, "request_throughput"), 0),
           nb_json_num(nb_json_get(o, "output_throughput"), 0), nb_json_num(nb_json_get(o, "total_token_throughput"), 0));
    printf("  %-6s %10s %10s", "ms", "mean", "median");
    for (size_t i = 0; i < s->n_pct; i++)
        printf("%9sp%g", "", s->pct[i]);
    putchar('\n');
    for (int m = 0; m < N_METRICS; m++) {
        char name[48];

        snprintf(name, sizeof name, "mean_%s_ms", metric_names[m]);
        printf("  %-6s %10.2f", metric_names[m], nb_json_num(nb_json_get(o, name), 0));
        snprintf(name, sizeof name, "median_%s_ms", metric_names[m]);
        printf(" %10.2f", nb_json_num(nb_json_get(o, name), 0));
        for (size_t i = 0; i < s->n_pct; i++) {
            snprintf(name, sizeof name, "p%g_%s_ms", s->pct[i], metric_names[m]);
            printf(" %10.2f", nb_json_num(nb_json_get(o, name), 0));
        }
        putchar('\n');
    }
    printf("\n  prefix cache hits %.1f %% of prompt tokens\n",
           100 * nb_json_num(nb_json_get(nb_json_get(o, "nibble"), "prefix_cache_hit_rate"), 0));
    for (size_t i = 0; i < s->n; i++)
        if (!s->a[i].ok) {
            printf("  first failure: %s\n", s->a[i].error);
            break;
        }
}

static nb_status save(const bench *s, const nb_json *o, nb_err *err)
{
    char path[1024], model[256];
    const char *base = strrchr(s->model_id, '/');
    char *text = nb_json_dump(o, 0, false);
    FILE *f;
    bool ok;

    if (!text)
        return nb_enomem(err, "the result");
    snprintf(model, sizeof model, "%.255s", base ? base + 1 : s->model_id);
    if (s->result_file)
        snprintf(path, sizeof path, "%s%s%s", s->result_dir ? s->result_dir : "", s->result_dir ? "/" : "", s->result_file);
    else
        snprintf(path, sizeof path, "%s%s%s-%gqps%s%.0lld-%s-%s.json", s->result_dir ? s->result_dir : "", s->result_dir ? "/" : "",
                 s->label ? s->label : "openai", s->rate, s->max_concurrency ? "-concurrency" : "", (long long)s->max_concurrency, model,
                 nb_json_str(nb_json_get(o, "date"), ""));
    f = fopen(path, s->append ? "a" : "w");
    ok = f && fprintf(f, "%s\n", text) > 0;
    ok = (!f || fclose(f) == 0) && ok;
    nb_free(text);
    return ok ? NB_OK : nb_fail(err, NB_EWRITE, "out.write", "", "%s cannot be written", path);
}

/* ---- the verb ---- */

static nb_status parse_numbers(bench *s, nb_err *err)
{
    char *end;

    s->rate = s->rate_text ? strtod(s->rate_text, &end) : INFINITY;
    if (!(s->rate > 0))
        return nb_fail(err, NB_EARG, "arg.value", "", "--request-rate is a number above 0, or inf");
    s->burstiness = s->burst_text ? strtod(s->burst_text, &end) : 1;
    if (!(s->burstiness > 0))
        return nb_fail(err, NB_EARG, "arg.value", "", "--burstiness is a number above 0, or inf");
    for (const char *p = s->percentiles ? s->percentiles : "99"; *p && s->n_pct < MAX_PERCENTILES; p = *end ? end + 1 : end) {
        s->pct[s->n_pct] = strtod(p, &end);
        if (end == p || s->pct[s->n_pct] < 0 || s->pct[s->n_pct] > 100)
            return nb_fail(err, NB_EARG, "arg.value", "", "--metric-percentiles is a list such as 50,90,99");
        s->n_pct++;
    }
    if (strcmp(s->dataset, "random") != 0 && strcmp(s->dataset, "jsonl") != 0 && strcmp(s->dataset, "sharegpt") != 0 &&
        strcmp(s->dataset, "sonnet") != 0 && strcmp(s->dataset, "trace") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--dataset-name is random, jsonl, sharegpt, sonnet or trace");
    return NB_OK;
}

static nb_status warm(bench *s, nb_err *err)
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

static nb_status run_all(bench *s, nb_err *err)
{
    nb_json *o;
    size_t completed;
    nb_status rc = parse_numbers(s, err);

    if (rc == NB_OK)
        rc = parse_url(s, err);
    s->load.host = s->host_name;
    s->load.path = s->endpoint;
    s->load.bearer = getenv("OPENAI_API_KEY");
    s->load.concurrency = (unsigned)(s->max_concurrency ? s->max_concurrency : 512);
    s->load.timeout_s = s->timeout;
    s->load.log = &s->cli->host;
    if (rc == NB_OK)
        rc = meet(s, err);
    if (rc == NB_OK)
        rc = make_requests(s, err);
    if (rc == NB_OK && s->warmups)
        rc = warm(s, err);
    if (rc == NB_OK) {
        cache_counters(s, s->hit_before);
        rc = nb_load_run(&s->load, s->q, s->n, s->a, &s->seconds, err);
    }
    nb_cli_progress_end(s->cli);
    if (rc == NB_OK)
        rc = collect(s, err);
    if (rc != NB_OK)
        return rc;
    o = result(s);
    if (!o)
        return nb_enomem(err, "the result");
    if (s->cli->json)
        nb_cli_json(o);
    else
        print_table(s, o);
    if (s->save)
        rc = save(s, o, err);
    completed = (size_t)nb_json_int(nb_json_get(o, "completed"), 0);
    nb_json_free(o);
    return rc == NB_OK && completed == 0 ? NB_NO : rc;
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
                "                     --random-input-len 64 --random-output-len 64",
    };
    bench s = { .cli = cli,
                .host = "127.0.0.1",
                .port = 8000,
                .endpoint = "/v1/completions",
                .dataset = "random",
                .n_prompts = 1000,
                .input_len = 1024,
                .output_len = 128,
                .timeout = 600 };
    const nb_opt opts[] = {
        { "--base-url", NB_OPT_STR, &s.base_url, 0, 0, "URL", "http://HOST:PORT of the server" },
        { "--host", NB_OPT_STR, &s.host, 0, 0, "HOST", "without --base-url (default 127.0.0.1)" },
        { "--port", NB_OPT_INT, &s.port, 1, 65535, "N", "without --base-url (default 8000)" },
        { "--endpoint", NB_OPT_STR, &s.endpoint, 0, 0, "PATH", "/v1/completions (default) or /v1/chat/completions" },
        { "--model", NB_OPT_STR, &s.model, 0, 0, "NAME", "model to ask for (default: the first one served)" },
        { "--dataset-name", NB_OPT_STR, &s.dataset, 0, 0, "KIND", "random (default), jsonl, sharegpt, sonnet (a text file) or trace" },
        { "--dataset-path", NB_OPT_STR, &s.dataset_path, 0, 0, "FILE", "prompts of the other kinds" },
        { "--num-prompts", NB_OPT_INT, &s.n_prompts, 1, 1e6, "N", "requests (default 1000)" },
        { "--request-rate", NB_OPT_STR, &s.rate_text, 0, 0, "R", "requests a second, or inf (default)" },
        { "--burstiness", NB_OPT_STR, &s.burst_text, 0, 0, "B", "shape of the gaps: 1 Poisson (default), below 1 burstier, inf constant" },
        { "--max-concurrency", NB_OPT_INT, &s.max_concurrency, 1, 4096, "N", "requests at a time (default: all, 512 at most)" },
        { "--random-input-len", NB_OPT_INT, &s.input_len, 1, 1e7, "N", "prompt tokens (default 1024)" },
        { "--random-output-len", NB_OPT_INT, &s.output_len, 1, 1e7, "N", "tokens of an answer (default 128)" },
        { "--random-range-ratio", NB_OPT_NUM, &s.range_ratio, 0, 1, "R", "lengths vary by this share (default 0)" },
        { "--random-prefix-len", NB_OPT_INT, &s.prefix_len, 0, 1e7, "N", "tokens in front that all prompts share (default 0)" },
        { "--vocab", NB_OPT_INT, &s.vocab, 2, 1e8, "N", "random ids are below it (default: what the server says, else 32000)" },
        { "--temperature", NB_OPT_NUM, &s.temperature, 0, 100, "T", "default 0" },
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
        { "--timeout", NB_OPT_NUM, &s.timeout, 1, 1e6, "S", "silence of the server that fails a request (default 600)" },
    };
    const char *args[1];
    size_t n;
    bool help;
    nb_status rc = nb_cli_parse(cli, &cmd, opts, NB_LEN(opts), argc, argv, args, 0, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK)
        rc = run_all(&s, err);
    for (size_t i = 0; s.q && i < (size_t)s.n_prompts; i++)
        nb_free(s.q[i].body);
    for (size_t i = 0; s.a && i < s.n; i++)
        nb_free(s.a[i].itl);
    for (int m = 0; m < N_METRICS; m++)
        nb_free(s.values[m]);
    nb_free(s.q);
    nb_free(s.a);
    return rc;
}
