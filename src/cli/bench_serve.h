/* bench_serve.h - what the parts of `nibble bench serve` share: options, requests and answers of one run (a cell of the grid). */
#ifndef NB_CLI_BENCH_SERVE_H
#define NB_CLI_BENCH_SERVE_H

#include "base/map.h"
#include "cli/cli.h"
#include "serve/loadgen.h"

enum { NB_BENCH_METRICS = 4, NB_BENCH_PERCENTILES = 8, NB_BENCH_SAMPLING = 6 };
extern const char *const nb_bench_metric[NB_BENCH_METRICS];    /* "ttft", "tpot", "itl", "e2el" */
extern const char *const nb_bench_sampling[NB_BENCH_SAMPLING]; /* fields of a request beside temperature: "top_p" ... */

typedef struct nb_bench {
    nb_cli *cli;
    /* options */
    const char *base_url, *host, *endpoint, *model, *dataset, *dataset_path, *rate_text, *metrics, *percentiles, *goodput, *label,
        *result_file, *result_dir, *burst_text, *ramp_text, *backend, *extra, *report, *grid_lens, *grid_clients;
    int64_t port, n_prompts, max_concurrency, input_len, output_len, prefix_len, prefix_seed, seed, warmups, vocab;
    int64_t rep_prefixes, rep_prefix_len, rep_suffix_len, rep_output_len, share_output_len;
    double temperature, range_ratio, timeout, ramp_from, ramp_to;
    double sampling[NB_BENCH_SAMPLING]; /* NaN: not asked for */
    bool save, detailed, append, ignore_eos, no_ignore_eos, no_bar, grid, force;
    nb_strlist metadata;
    nb_out *page; /* of --report, opened before anything is measured */
    /* the server */
    nb_load_opts load;
    char host_name[256], model_id[512], tokenizer_id[512], server_version[64];
    /* the run */
    nb_load_request *q;
    nb_load_answer *a;
    size_t n;
    nb_load_pace pace;
    double seconds, hit_before[2];
    double limit_ms[3];               /* --goodput: first token, each token, whole answer */
    double *values[NB_BENCH_METRICS]; /* ms, ascending */
    size_t n_values[NB_BENCH_METRICS];
    double pct[NB_BENCH_PERCENTILES];
    size_t n_pct;
} nb_bench;

/* bench_serve_data.c: s->q, s->a for s->n requests of the data set, with their due times. */
nb_status nb_bench_requests(nb_bench *s, nb_err *err);
bool nb_bench_chat(const nb_bench *s); /* the endpoint is a chat's */
void nb_bench_clear_run(nb_bench *s);  /* requests, answers and values */

/* bench_serve_result.c: values from the answers; the JSON object under vllm's names (owned by the caller); a table on stdout; the file
 * of --save-result. */
nb_status nb_bench_collect(nb_bench *s, nb_err *err);
nb_json *nb_bench_result(nb_bench *s);
void nb_bench_print(const nb_bench *s, const nb_json *o);
nb_status nb_bench_save(const nb_bench *s, const nb_json *o, nb_err *err);
/* Tokens looked up and found in the server's prefix cache so far; zeros where it does not tell. */
void nb_bench_cache(const nb_bench *s, double out[2]);

/* bench_serve_report.c: one HTML page. */
typedef struct nb_bench_cell {
    char name[64];
    nb_json *result;                  /* with "grid" in it where there is one */
    double *values[NB_BENCH_METRICS]; /* ms, ascending */
    size_t n_values[NB_BENCH_METRICS];
} nb_bench_cell;
nb_status nb_bench_report(nb_bench *s, const nb_bench_cell *cells, size_t n, nb_err *err); /* writes and closes s->page */

#endif
