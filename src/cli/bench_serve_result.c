/* bench_serve_result.c - figures of a run under the names of `vllm bench serve` (spec serving 11, BEN-1, BEN-4). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/bench_serve.h"

const char *const nb_bench_metric[NB_BENCH_METRICS] = { "ttft", "tpot", "itl", "e2el" };

void nb_bench_cache(const nb_bench *s, double out[2])
{
    nb_json *v;

    out[0] = out[1] = 0;
    if (nb_load_json(&s->load, "/load", NULL, &v, NULL) == NB_OK) {
        out[0] = nb_json_num(nb_json_get(v, "queried_tokens"), 0);
        out[1] = nb_json_num(nb_json_get(v, "hit_tokens"), 0);
        nb_json_free(v);
    }
}

static double tpot(const nb_load_answer *a)
{
    return a->n_output > 1 ? (a->latency - a->ttft) / (double)(a->n_output - 1) : 0;
}

nb_status nb_bench_collect(nb_bench *s, nb_err *err)
{
    size_t n_itl = 0;

    for (size_t i = 0; i < s->n; i++)
        n_itl += s->a[i].n_itl;
    for (int m = 0; m < NB_BENCH_METRICS; m++) {
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

/* Requests for which every limit of --goodput holds; -1 without limits. */
static double good_requests(const nb_bench *s)
{
    const double *limit = s->limit_ms;
    size_t good = 0;

    if (!s->goodput)
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        const nb_load_answer *a = &s->a[i];

        good += a->ok && 1e3 * a->ttft <= limit[0] && 1e3 * tpot(a) <= limit[1] && 1e3 * a->latency <= limit[2];
    }
    return (double)good;
}

/* Most tokens in any second of the run, and most requests at once. */
static void peaks(const nb_bench *s, double *tokens, size_t *concurrent)
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

static bool put_metrics(nb_json *o, const nb_bench *s)
{
    bool ok = true;

    for (int m = 0; m < NB_BENCH_METRICS; m++) {
        char name[48];
        double mean, std;

        mean_std(s->values[m], s->n_values[m], &mean, &std);
        snprintf(name, sizeof name, "mean_%s_ms", nb_bench_metric[m]);
        ok = ok && put_num(o, name, mean);
        snprintf(name, sizeof name, "median_%s_ms", nb_bench_metric[m]);
        ok = ok && put_num(o, name, nb_load_percentile(s->values[m], s->n_values[m], 50));
        snprintf(name, sizeof name, "std_%s_ms", nb_bench_metric[m]);
        ok = ok && put_num(o, name, std);
        for (size_t i = 0; i < s->n_pct; i++) {
            snprintf(name, sizeof name, "p%g_%s_ms", s->pct[i], nb_bench_metric[m]);
            ok = ok && put_num(o, name, nb_load_percentile(s->values[m], s->n_values[m], s->pct[i]));
        }
    }
    return ok;
}

static bool put_details(nb_json *o, const nb_bench *s)
{
    nb_json *in = nb_json_new_arr(), *out = nb_json_new_arr(), *ttft = nb_json_new_arr(), *itl = nb_json_new_arr(),
            *start = nb_json_new_arr(), *errors = nb_json_new_arr(), *texts = nb_json_new_arr(), *whole = nb_json_new_arr(),
            *queue = nb_json_new_arr();
    bool ok = true;

    for (size_t i = 0; ok && i < s->n; i++) {
        const nb_load_answer *a = &s->a[i];
        nb_json *gaps = nb_json_new_arr();

        for (size_t k = 0; ok && k < a->n_itl; k++)
            ok = nb_json_push(gaps, nb_json_new_real(a->itl[k]));
        ok = nb_json_push(in, nb_json_new_int((int64_t)a->n_input)) && nb_json_push(out, nb_json_new_int((int64_t)a->n_output)) &&
             nb_json_push(ttft, nb_json_new_real(a->ttft)) && nb_json_push(start, nb_json_new_real(a->start)) &&
             nb_json_push(errors, nb_json_new_str(a->error)) && ok;
        ok = nb_json_push(whole, nb_json_new_real(a->latency)) && nb_json_push(queue, nb_json_new_real(a->start - s->q[i].at)) && ok;
        ok = nb_json_push(itl, gaps) && nb_json_push(texts, nb_json_new_str(a->text ? a->text : "")) && ok;
    }
    ok = nb_json_set(o, "input_lens", in) && ok;
    ok = nb_json_set(o, "output_lens", out) && ok;
    ok = nb_json_set(o, "ttfts", ttft) && ok;
    ok = nb_json_set(o, "itls", itl) && ok;
    ok = nb_json_set(o, "start_times", start) && ok;
    ok = nb_json_set(o, "latencies", whole) && ok;
    ok = nb_json_set(o, "queue_times", queue) && ok; /* due, but no client was free */
    ok = nb_json_set(o, "generated_texts", texts) && ok;
    return nb_json_set(o, "errors", errors) && ok;
}

/* Latency from the moment a request was due: what waiting for a free client hides (BEN-4). */
static double scheduled_p99(const nb_bench *s)
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

static bool put_extension(nb_json *o, nb_bench *s, size_t rejected)
{
    nb_json *x = nb_json_new_obj();
    double after[2];

    nb_bench_cache(s, after);
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

nb_json *nb_bench_result(nb_bench *s)
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
         nb_json_set(o, "endpoint_type", nb_json_new_str(nb_bench_chat(s) ? "openai-chat" : "openai")) &&
         nb_json_set(o, "backend", nb_json_new_str(nb_bench_chat(s) ? "openai-chat" : "openai")) &&
         nb_json_set(o, "label", s->label ? nb_json_new_str(s->label) : nb_json_new_null()) &&
         nb_json_set(o, "model_id", nb_json_new_str(s->model_id)) && nb_json_set(o, "tokenizer_id", nb_json_new_str(s->tokenizer_id)) &&
         put_int(o, "num_prompts", s->n);
    for (size_t i = 0; ok && i < s->metadata.n; i++) {
        const char *eq = strchr(s->metadata.v[i], '=');
        char *key = eq ? nb_strndup(s->metadata.v[i], (size_t)(eq - s->metadata.v[i])) : NULL;

        ok = !key || nb_json_set(o, key, nb_json_new_str(eq + 1));
        nb_free(key);
    }
    ok = ok &&
         nb_json_set(o, "request_rate", isinf(s->pace.rate) || s->pace.ramp ? nb_json_new_str("inf") : nb_json_new_real(s->pace.rate)) &&
         nb_json_set(o, "burstiness", isinf(s->pace.burstiness) ? nb_json_new_str("inf") : nb_json_new_real(s->pace.burstiness)) &&
         (!s->pace.ramp || (nb_json_set(o, "ramp_up_strategy", nb_json_new_str(s->ramp_text)) &&
                            put_num(o, "ramp_up_start_rps", s->pace.rate) && put_num(o, "ramp_up_end_rps", s->pace.to))) &&
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

void nb_bench_print(const nb_bench *s, const nb_json *o)
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
    for (int m = 0; m < NB_BENCH_METRICS; m++) {
        char name[48];

        snprintf(name, sizeof name, "mean_%s_ms", nb_bench_metric[m]);
        printf("  %-6s %10.2f", nb_bench_metric[m], nb_json_num(nb_json_get(o, name), 0));
        snprintf(name, sizeof name, "median_%s_ms", nb_bench_metric[m]);
        printf(" %10.2f", nb_json_num(nb_json_get(o, name), 0));
        for (size_t i = 0; i < s->n_pct; i++) {
            snprintf(name, sizeof name, "p%g_%s_ms", s->pct[i], nb_bench_metric[m]);
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

nb_status nb_bench_save(const nb_bench *s, const nb_json *o, nb_err *err)
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
                 s->label ? s->label : "openai", s->pace.rate, s->max_concurrency ? "-concurrency" : "", (long long)s->max_concurrency,
                 model, nb_json_str(nb_json_get(o, "date"), ""));
    f = fopen(path, s->append ? "a" : "w");
    ok = f && fprintf(f, "%s\n", text) > 0;
    ok = (!f || fclose(f) == 0) && ok;
    nb_free(text);
    return ok ? NB_OK : nb_fail(err, NB_EWRITE, "out.write", "", "%s cannot be written", path);
}
