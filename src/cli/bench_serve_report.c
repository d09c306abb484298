/* bench_serve_report.c - the page of `nibble bench serve --report`: a table of the cells, throughput, and times by percentile. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/bench_serve.h"
#include "job/chart.h"
#include "job/html.h"

enum { POINTS = 51, CELLS = 8 }; /* points of a curve; curves of a chart */

static double num(const nb_json *o, const char *name)
{
    return nb_json_num(nb_json_get(o, name), 0);
}

/* Of sorted values. */
static double quantile(const double *v, size_t n, double p)
{
    const double at = n ? p / 100 * (double)(n - 1) : 0;
    const size_t i = (size_t)at;

    if (n == 0)
        return 0;
    return i + 1 < n ? v[i] + (v[i + 1] - v[i]) * (at - (double)i) : v[n - 1];
}

static void cards(nb_buf *b, const nb_json *o)
{
    char v[64], n[96];

    nb_html_cards(b);
    snprintf(v, sizeof v, "%.1f tok/s", num(o, "output_throughput"));
    snprintf(n, sizeof n, "%.2f requests a second", num(o, "request_throughput"));
    nb_html_card(b, "output", v, n);
    snprintf(v, sizeof v, "%.0f ms", num(o, "median_ttft_ms"));
    snprintf(n, sizeof n, "mean %.0f ms", num(o, "mean_ttft_ms"));
    nb_html_card(b, "first token, median", v, n);
    snprintf(v, sizeof v, "%.1f ms", num(o, "median_tpot_ms"));
    snprintf(n, sizeof n, "mean %.1f ms", num(o, "mean_tpot_ms"));
    nb_html_card(b, "each further token, median", v, n);
    snprintf(v, sizeof v, "%.1f %%", 100 * num(nb_json_get(o, "nibble"), "prefix_cache_hit_rate"));
    nb_html_card(b, "prompt tokens from the cache", v, "");
    nb_html_cards_end(b);
}

static void table(nb_buf *b, const nb_bench *s, const nb_bench_cell *cells, size_t n)
{
    static const char *const columns[] = { "",         "#output tok/s", "#ttft p50", "#ttft p99", "#tpot p50",
                                           "#itl p99", "#e2el p99",     "#cached",   "#failed",   "same alone" };
    const size_t n_columns = s->grid ? NB_LEN(columns) : NB_LEN(columns) - 1;

    nb_html_table(b, "Times in milliseconds", columns, n_columns);
    for (size_t i = 0; i < n; i++) {
        const nb_bench_cell *c = &cells[i];
        const char *cell[NB_LEN(columns)];
        char text[NB_LEN(columns)][40];
        const char *said = nb_json_str(nb_json_get(nb_json_get(c->result, "grid"), "probe"), "");

        snprintf(text[1], 40, "#%.1f", num(c->result, "output_throughput"));
        snprintf(text[2], 40, "#%.1f", quantile(c->values[0], c->n_values[0], 50));
        snprintf(text[3], 40, "#%.1f", quantile(c->values[0], c->n_values[0], 99));
        snprintf(text[4], 40, "#%.2f", quantile(c->values[1], c->n_values[1], 50));
        snprintf(text[5], 40, "#%.2f", quantile(c->values[2], c->n_values[2], 99));
        snprintf(text[6], 40, "#%.1f", quantile(c->values[3], c->n_values[3], 99));
        snprintf(text[7], 40, "#%.1f %%", 100 * num(nb_json_get(c->result, "nibble"), "prefix_cache_hit_rate"));
        snprintf(text[8], 40, "#%.0f", num(c->result, "failed"));
        snprintf(text[9], 40, "%s", strcmp(said, "same") == 0 ? "yes" : strcmp(said, "different") == 0 ? "NO" : "no answer");
        cell[0] = c->name;
        for (size_t k = 1; k < n_columns; k++)
            cell[k] = text[k];
        nb_html_row(b, cell, n_columns);
    }
    nb_html_table_end(b);
}

static void throughput(nb_buf *b, const nb_bench_cell *cells, size_t n)
{
    nb_mean *values = nb_calloc(n, sizeof *values);
    const char **names = nb_calloc(n, sizeof *names);
    size_t *color = nb_calloc(n, sizeof *color);

    for (size_t i = 0; values && names && color && i < n; i++) {
        values[i].mean = values[i].lo = values[i].hi = num(cells[i].result, "output_throughput");
        names[i] = cells[i].name;
        color[i] = i % CELLS;
    }
    if (values && names && color)
        nb_chart_bars(b, &(nb_bars){ .title = "Output tokens a second",
                                     .about = "All clients together.",
                                     .x = { .label = "tokens a second" },
                                     .names = names,
                                     .values = values,
                                     .color = color,
                                     .n = n });
    b->failed = b->failed || !values || !names || !color;
    nb_free(values);
    nb_free(names);
    nb_free(color);
}

/* One metric by percentile, a line a cell. */
static void curves(nb_buf *b, const nb_bench_cell *cells, size_t n, int metric, const char *title, const char *about)
{
    double xs[POINTS], ys[CELLS][POINTS];
    nb_series series[CELLS];
    size_t k = 0;

    for (size_t p = 0; p < POINTS; p++)
        xs[p] = 100.0 * (double)p / (POINTS - 1);
    for (size_t i = 0; i < n && k < CELLS; i++) {
        if (cells[i].n_values[metric] == 0)
            continue;
        for (size_t p = 0; p < POINTS; p++)
            ys[k][p] = quantile(cells[i].values[metric], cells[i].n_values[metric], xs[p]);
        series[k] = (nb_series){ .name = cells[i].name, .y = ys[k], .color = i % CELLS, .dashed = i % 2 };
        k++;
    }
    if (k)
        nb_chart_lines(b, &(nb_lines){ .title = title,
                                       .about = about,
                                       .x = { .label = "percentile" },
                                       .y = { .label = "ms", .log = true },
                                       .xs = xs,
                                       .n_x = POINTS,
                                       .series = series,
                                       .n_series = k,
                                       .half = true });
}

static void settings(nb_buf *b, const nb_bench *s)
{
    static const char *const columns[] = { "setting", "value" };
    char text[96];
    const struct {
        const char *name;
        int digits;
        double v;
        bool show;
    } rows[] = {
        { "requests a run", 15, (double)s->n_prompts, true },
        { "requests a second", 3, s->pace.rate, s->pace.rate < 1e300 },
        { "clients at most", 15, (double)s->max_concurrency, s->max_concurrency > 0 && !s->grid },
        { "own prompt tokens", 15, (double)s->input_len, strcmp(s->dataset, "random") == 0 && !s->grid },
        { "tokens in front that all prompts share", 15, (double)s->prefix_len, strcmp(s->dataset, "random") == 0 },
        { "tokens of an answer", 15, (double)s->output_len, strcmp(s->dataset, "random") == 0 },
        { "temperature", 3, s->temperature, true },
        { "warm-up requests", 15, (double)s->warmups, true },
    };

    nb_html_table(b, "Settings", columns, NB_LEN(columns));
    nb_html_row(b, (const char *const[]){ "prompts", s->dataset }, 2);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        if (!rows[i].show)
            continue;
        snprintf(text, sizeof text, "%.*g", rows[i].digits, rows[i].v);
        nb_html_row(b, (const char *const[]){ rows[i].name, text }, 2);
    }
    nb_html_row(b, (const char *const[]){ "server", s->server_version[0] ? s->server_version : "does not tell its version" }, 2);
    nb_html_row(b, (const char *const[]){ "this machine", nb_cpu_name() }, 2);
    nb_html_table_end(b);
}

nb_status nb_bench_report(nb_bench *s, const nb_bench_cell *cells, size_t n, nb_err *err)
{
    nb_buf b = { 0 };
    const char *date = nb_json_str(nb_json_get(cells[0].result, "date"), "00000000-000000"); /* YYYYMMDD-HHMMSS */
    char below[700], small[96];
    nb_status rc;

    snprintf(small, sizeof small, "nibble bench serve, %.4s-%.2s-%.2s %.2s:%.2s", date, date + 4, date + 6, date + 9, date + 11);
    snprintf(below, sizeof below,
             "%.200s at port %u, streamed answers. ttft: time to the first token. tpot: mean time of each further token of an answer. "
             "itl: gap between two tokens. e2el: the whole answer.",
             s->host_name, s->load.port);
    nb_html_begin(&b, small, s->model_id, below);
    if (n == 1)
        cards(&b, cells[0].result);
    nb_html_section(&b, s->grid ? "Short and long prompts, few and many clients" : "The run", NULL);
    table(&b, s, cells, n);
    if (n > 1)
        throughput(&b, cells, n);
    nb_html_section(&b, "Times by percentile", "Half of the requests are left of 50. Times are on a logarithmic scale.");
    nb_buf_puts(&b, "<div class=\"pair\">\n");
    curves(&b, cells, n, 0, "Time to first token", "From the request to its first token.");
    curves(&b, cells, n, 2, "Gap between tokens", "Between one token of an answer and the next.");
    nb_buf_puts(&b, "</div>\n<div class=\"pair\">\n");
    curves(&b, cells, n, 1, "Time per output token", "Mean over an answer, without the first token.");
    curves(&b, cells, n, 3, "Whole answer", "From the request to its last token.");
    nb_buf_puts(&b, "</div>\n");
    nb_html_section(&b, "How it was measured", NULL);
    settings(&b, s);
    nb_html_end(&b, "nibble " NB_VERSION);
    rc = b.failed ? nb_enomem(err, "the page") : nb_out_write(s->page, b.p, b.n, err);
    if (rc == NB_OK) {
        rc = nb_out_commit(s->page, err);
        s->page = NULL;
        nb_cli_note(s->cli, "%s: the same as a page", s->report);
    }
    nb_buf_clear(&b);
    return rc;
}
