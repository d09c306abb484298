/* metrics.c - one table of histograms, a few small tables of labelled counters. */
#include "serve/metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/cpu.h"
#include "base/log.h"

enum { MAX_EDGES = 24, MAX_LABELS = 96 };

/* Edges of the reference's histograms, in seconds or tokens. */
static const double edges_a[] = { .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560 };
static const double edges_b[] = { .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80 };
static const double edges_c[] = { .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680 };
static const double edges_n[] = { 1, 2, 5, 10, 20 };
static const double edges_step[] = { 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384 };
static const double edges_http[] = { .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 600 };
static const double edges_125[] = { 1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3, 2e3, 5e3,
                                    1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7 };

#define EDGES(e) e, NB_LEN(e)
static const struct histogram_row {
    const char *name, *alias, *help;
    const double *edges;
    size_t n;
    bool up_to_context; /* edges above the context are left out */
} rows[NB_H_COUNT] = {
    [NB_H_TTFT] = { "vllm:time_to_first_token_seconds", NULL, "Arrival to first token.", EDGES(edges_a), false },
    [NB_H_ITL] = { "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "Gap between tokens of a sequence.",
                   EDGES(edges_b), false },
    [NB_H_TPOT] = { "vllm:request_time_per_output_token_seconds", NULL, "Mean gap between tokens of a request.", EDGES(edges_b), false },
    [NB_H_E2E] = { "vllm:e2e_request_latency_seconds", NULL, "Arrival to the end of the answer.", EDGES(edges_c), false },
    [NB_H_QUEUE] = { "vllm:request_queue_time_seconds", NULL, "Time in the queue.", EDGES(edges_c), false },
    [NB_H_INFERENCE] = { "vllm:request_inference_time_seconds", NULL, "First scheduled to last token.", EDGES(edges_c), false },
    [NB_H_PREFILL] = { "vllm:request_prefill_time_seconds", NULL, "First scheduled to first token.", EDGES(edges_c), false },
    [NB_H_DECODE] = { "vllm:request_decode_time_seconds", NULL, "First to last token.", EDGES(edges_c), false },
    [NB_H_PROMPT_TOKENS] = { "vllm:request_prompt_tokens", NULL, "Prompt tokens of a request.", EDGES(edges_125), true },
    [NB_H_OUTPUT_TOKENS] = { "vllm:request_generation_tokens", NULL, "Tokens of an answer.", EDGES(edges_125), true },
    [NB_H_MAX_OUTPUT_TOKENS] = { "vllm:request_max_num_generation_tokens", NULL, "Tokens of the longest choice.", EDGES(edges_125), true },
    [NB_H_PARAM_MAX_TOKENS] = { "vllm:request_params_max_tokens", NULL, "max_tokens of requests.", EDGES(edges_125), true },
    [NB_H_PREFILL_TOKENS] = { "vllm:request_prefill_kv_computed_tokens", NULL, "Prompt tokens computed, not found in the cache.",
                              EDGES(edges_125), true },
    [NB_H_PARAM_N] = { "vllm:request_params_n", NULL, "n of requests.", EDGES(edges_n), false },
    [NB_H_STEP_TOKENS] = { "vllm:iteration_tokens_total", NULL, "Tokens of one step.", EDGES(edges_step), false },
    [NB_H_STEP] = { "nibble:step_seconds", NULL, "Time of one step.", EDGES(edges_b), false },
    [NB_H_HTTP] = { "http_request_duration_seconds", NULL, "Time of a request to its whole answer.", EDGES(edges_http), false },
    [NB_H_GRAMMAR] = { "nibble:grammar_compile_seconds", NULL, "Time to compile a constraint.", EDGES(edges_a), false },
};

typedef struct hist {
    uint64_t bucket[MAX_EDGES + 1], n;
    double sum;
} hist;

/* A counter with a ready-made label text. */
typedef struct labelled {
    char labels[160];
    uint64_t n;
} labelled;

struct nb_metrics {
    pthread_mutex_t lock;
    nb_metrics_info info;
    hist hists[NB_H_COUNT];
    labelled http[MAX_LABELS], rejected[MAX_LABELS], finished[8];
    size_t n_http, n_rejected, n_finished;
    uint64_t ignored;
    double started;
};

nb_status nb_metrics_open(nb_metrics **out, nb_err *err)
{
    nb_metrics *m = nb_calloc(1, sizeof *m);
    static const char *const reasons[] = { "stop", "length", "abort", "error" };

    *out = m;
    if (!m)
        return nb_enomem(err, "the metrics");
    pthread_mutex_init(&m->lock, NULL);
    m->started = (double)time(NULL);
    m->info.model = "";
    for (size_t i = 0; i < NB_LEN(reasons); i++)
        snprintf(m->finished[m->n_finished++].labels, sizeof m->finished[0].labels, "finished_reason=\"%s\"", reasons[i]);
    return NB_OK;
}

void nb_metrics_close(nb_metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    nb_free(m);
}

void nb_metrics_describe(nb_metrics *m, const nb_metrics_info *info)
{
    pthread_mutex_lock(&m->lock);
    m->info = *info;
    pthread_mutex_unlock(&m->lock);
}

void nb_metrics_observe(nb_metrics *m, nb_histogram h, double value)
{
    size_t i = 0;

    pthread_mutex_lock(&m->lock);
    while (i < rows[h].n && value > rows[h].edges[i])
        i++;
    m->hists[h].bucket[i]++;
    m->hists[h].n++;
    m->hists[h].sum += value;
    pthread_mutex_unlock(&m->lock);
}

/* With the lock held: count one under these labels; the last slot takes what no longer fits. */
static void count(labelled *v, size_t *n, size_t cap, const char *labels)
{
    size_t i = 0;

    while (i < *n && strcmp(v[i].labels, labels) != 0)
        i++;
    if (i == cap)
        i--;
    else if (i == *n)
        snprintf(v[(*n)++].labels, sizeof v->labels, "%s", labels);
    v[i].n++;
}

void nb_metrics_finished(nb_metrics *m, const char *reason)
{
    char labels[160];

    snprintf(labels, sizeof labels, "finished_reason=\"%s\"", reason);
    pthread_mutex_lock(&m->lock);
    count(m->finished, &m->n_finished, NB_LEN(m->finished), labels);
    pthread_mutex_unlock(&m->lock);
}

void nb_metrics_rejected(nb_metrics *m, const char *code)
{
    char labels[160];

    snprintf(labels, sizeof labels, "code=\"%s\"", code);
    pthread_mutex_lock(&m->lock);
    count(m->rejected, &m->n_rejected, MAX_LABELS, labels);
    pthread_mutex_unlock(&m->lock);
}

void nb_metrics_ignored_fields(nb_metrics *m, size_t n)
{
    pthread_mutex_lock(&m->lock);
    m->ignored += n;
    pthread_mutex_unlock(&m->lock);
}

void nb_metrics_http(nb_metrics *m, const char *handler, const char *method, int status, double seconds)
{
    char labels[160];

    snprintf(labels, sizeof labels, "handler=\"%s\",method=\"%s\",status=\"%dxx\"", handler, method, status / 100);
    pthread_mutex_lock(&m->lock);
    count(m->http, &m->n_http, MAX_LABELS, labels);
    pthread_mutex_unlock(&m->lock);
    nb_metrics_observe(m, NB_H_HTTP, seconds);
}

/* ---- the page ---- */

/* A label value: backslash, quote and newline escaped. */
static void put_label(nb_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n') {
            nb_buf_puts(b, "\\n");
            continue;
        }
        if (*s == '\\' || *s == '"')
            nb_buf_putc(b, '\\');
        nb_buf_putc(b, *s);
    }
}

/* `name{engine="0",model_name="..."` and what follows. */
static void open_series(nb_buf *b, const nb_metrics *m, const char *name, const char *more)
{
    nb_buf_printf(b, "%s{engine=\"0\",model_name=\"", name);
    put_label(b, m->info.model);
    nb_buf_printf(b, "\"%s%s} ", *more ? "," : "", more);
}

static void head(nb_buf *b, const char *name, const char *type, const char *help)
{
    nb_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_histogram(nb_buf *b, const nb_metrics *m, const struct histogram_row *r, const hist *h, const char *name)
{
    char series[160], le[64];
    uint64_t sum = 0;

    head(b, name, "histogram", r->help);
    snprintf(series, sizeof series, "%s_bucket", name);
    for (size_t i = 0; i < r->n; i++) {
        sum += h->bucket[i];
        if (r->up_to_context && m->info.context && i && r->edges[i - 1] >= (double)m->info.context)
            continue;
        snprintf(le, sizeof le, "le=\"%.10g\"", r->edges[i]);
        open_series(b, m, series, le);
        nb_buf_printf(b, "%" PRIu64 "\n", sum);
    }
    open_series(b, m, series, "le=\"+Inf\"");
    nb_buf_printf(b, "%" PRIu64 "\n", h->n);
    snprintf(series, sizeof series, "%s_sum", name);
    open_series(b, m, series, "");
    nb_buf_printf(b, "%.9g\n", h->sum);
    snprintf(series, sizeof series, "%s_count", name);
    open_series(b, m, series, "");
    nb_buf_printf(b, "%" PRIu64 "\n", h->n);
}

static void one(nb_buf *b, const nb_metrics *m, const char *name, const char *type, const char *help, double v)
{
    head(b, name, type, help);
    open_series(b, m, name, "");
    nb_buf_printf(b, "%.15g\n", v);
}

static void put_labelled(nb_buf *b, const nb_metrics *m, const char *name, const char *help, const labelled *v, size_t n, bool with_model)
{
    head(b, name, "counter", help);
    for (size_t i = 0; i < n; i++) {
        if (with_model)
            open_series(b, m, name, v[i].labels);
        else
            nb_buf_printf(b, "%s{%s} ", name, v[i].labels);
        nb_buf_printf(b, "%" PRIu64 "\n", v[i].n);
    }
}

static void put_engine(nb_buf *b, const nb_metrics *m, const nb_engine_stats *s)
{
    const double pages = s->pages ? (double)s->pages : 1;
    char labels[160];

    one(b, m, "vllm:num_requests_running", "gauge", "Sequences being computed.", (double)s->running);
    one(b, m, "vllm:num_requests_waiting", "gauge", "Sequences waiting.", (double)s->waiting);
    head(b, "vllm:num_requests_waiting_by_reason", "gauge", "Sequences waiting, by reason.");
    open_series(b, m, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"");
    nb_buf_printf(b, "%zu\n", s->waiting - s->held);
    open_series(b, m, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"");
    nb_buf_printf(b, "%zu\n", s->held);
    one(b, m, "vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", (double)s->pages_used / pages);
    one(b, m, "vllm:gpu_cache_usage_perc", "gauge", "The same under its old name.", (double)s->pages_used / pages);
    one(b, m, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", (double)s->queried_tokens);
    one(b, m, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there.", (double)s->hit_tokens);
    one(b, m, "vllm:prompt_tokens_total", "counter", "Prompt tokens of all requests.", (double)s->prompt_tokens);
    one(b, m, "vllm:generation_tokens_total", "counter", "Tokens drawn.", (double)s->output_tokens);
    one(b, m, "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that came from the cache.", (double)s->hit_tokens);
    head(b, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source.");
    open_series(b, m, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"");
    nb_buf_printf(b, "%" PRIu64 "\n", s->computed_tokens);
    open_series(b, m, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"");
    nb_buf_printf(b, "%" PRIu64 "\n", s->hit_tokens);
    one(b, m, "vllm:num_preemptions_total", "counter", "Sequences put back to recompute.", (double)s->preemptions);
    one(b, m, "nibble:steps_total", "counter", "Runs of the model.", (double)s->steps);
    one(b, m, "nibble:numeric_errors_total", "counter", "Answers ended by NaN or infinite logits.", (double)s->numeric_errors);
    one(b, m, "nibble:evictions_total", "counter", "Cached blocks given up.", (double)s->evictions);
    one(b, m, "nibble:engine_seconds_total", "counter", "Time of the engine outside the model.", s->engine_s);
    one(b, m, "nibble:model_seconds_total", "counter", "Time inside the model.", s->exec_s);
    head(b, "vllm:cache_config_info", "gauge", "The KV cache.");
    snprintf(labels, sizeof labels, "block_size=\"%zu\",num_gpu_blocks=\"%zu\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\"",
             m->info.page, s->pages, m->info.kv_dtype ? m->info.kv_dtype : "", m->info.prefix_cache ? "True" : "False");
    open_series(b, m, "vllm:cache_config_info", labels);
    nb_buf_puts(b, "1\n");
}

static void put_process(nb_buf *b, const nb_metrics *m)
{
    struct rusage u = { 0 };

    getrusage(RUSAGE_SELF, &u);
    head(b, "process_resident_memory_bytes", "gauge", "Resident memory.");
    nb_buf_printf(b, "process_resident_memory_bytes %zu\n", nb_rss_now());
    head(b, "process_cpu_seconds_total", "counter", "User and system time.");
    nb_buf_printf(b, "process_cpu_seconds_total %.3f\n",
                  (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    head(b, "process_start_time_seconds", "gauge", "Start, since the epoch.");
    nb_buf_printf(b, "process_start_time_seconds %.0f\n", m->started);
}

/* What stands there under vLLM's names once more under `prefix` (MET-1). */
static void repeat_as(nb_buf *b, const char *prefix)
{
    static const char theirs[] = "vllm:", comment[] = "# TYPE "; /* "# HELP " is as long */
    const size_t n_theirs = sizeof theirs - 1, n_comment = sizeof comment - 1;
    char *page = b->failed ? NULL : nb_strndup(b->p, b->n);

    b->failed = b->failed || !page;
    for (char *line = page, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        const size_t before = *line == '#' ? n_comment : 0;

        *end = 0;
        if (strncmp(line + before, theirs, n_theirs) == 0)
            nb_buf_printf(b, "%.*s%s:%s\n", (int)before, line, prefix, line + before + n_theirs);
    }
    nb_free(page);
}

void nb_metrics_write(nb_metrics *m, const nb_engine_stats *s, double silence, nb_buf *out)
{
    const nb_engine_stats none = { 0 };
    char labels[160];

    pthread_mutex_lock(&m->lock);
    put_engine(out, m, s ? s : &none);
    one(out, m, "nibble:engine_silence_seconds", "gauge", "Time without a sign of life while there is work; a stall when it grows.",
        silence);
    for (int h = 0; h < NB_H_COUNT; h++) {
        put_histogram(out, m, &rows[h], &m->hists[h], rows[h].name);
        if (rows[h].alias)
            put_histogram(out, m, &rows[h], &m->hists[h], rows[h].alias);
    }
    put_labelled(out, m, "vllm:request_success_total", "Answers by the reason of their end.", m->finished, m->n_finished, true);
    put_labelled(out, m, "nibble:requests_rejected_total", "Requests refused, by error code.", m->rejected, m->n_rejected, true);
    put_labelled(out, m, "http_requests_total", "HTTP answers.", m->http, m->n_http, false);
    one(out, m, "nibble:ignored_fields_total", "counter", "Fields of requests that mean nothing here.", (double)m->ignored);
    head(out, "nibble:weights_bytes", "gauge", "Memory of the model.");
    open_series(out, m, "nibble:weights_bytes", "kind=\"packed\"");
    nb_buf_printf(out, "%" PRIu64 "\n", m->info.weights_bytes);
    open_series(out, m, "nibble:weights_bytes", "kind=\"kv_pool\"");
    nb_buf_printf(out, "%" PRIu64 "\n", m->info.kv_bytes);
    open_series(out, m, "nibble:weights_bytes", "kind=\"workspace\"");
    nb_buf_printf(out, "%" PRIu64 "\n", m->info.work_bytes);
    head(out, "nibble:kernel_info", "gauge", "Kernels in use.");
    snprintf(labels, sizeof labels, "family=\"%s\",isa=\"%s\"", m->info.kernel ? m->info.kernel : "", m->info.isa ? m->info.isa : "");
    open_series(out, m, "nibble:kernel_info", labels);
    nb_buf_puts(out, "1\n");
    put_process(out, m);
    if (m->info.prefix)
        repeat_as(out, m->info.prefix);
    pthread_mutex_unlock(&m->lock);
}
