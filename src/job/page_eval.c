/* page_eval.c - see page_eval.h. One function a section. */
#include "job/page_eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/chart.h"
#include "job/html.h"

enum { SERIES = 2 * NB_EVAL_MODELS + 2 };

/* The last part of a path, which the reader knows the model by; two models of one last part get the part before too. */
static void short_names(const nb_eval_all *a, char out[NB_EVAL_MODELS + 1][96])
{
    for (int parts = 1; parts < 5; parts++) {
        bool same = false;
        for (size_t i = 0; i <= a->n_models; i++) {
            const char *p = i < a->n_models ? a->models[i] : a->ref ? a->ref : "";
            const char *at = p + strlen(p);
            for (int k = 0; k < parts && at > p; k++) {
                while (at > p && at[-1] == '/')
                    at--;
                while (at > p && at[-1] != '/')
                    at--;
            }
            snprintf(out[i], 96, "%s", strlen(at) > 90 ? at + strlen(at) - 90 : at);
            for (size_t n = strlen(out[i]); n > 1 && out[i][n - 1] == '/'; n--)
                out[i][n - 1] = 0;
        }
        for (size_t i = 0; i < a->n_models; i++)
            for (size_t j = i + 1; j < a->n_models + (a->ref != NULL); j++)
                same = same || strcmp(out[i], out[j]) == 0;
        if (!same)
            return;
    }
}

typedef struct page {
    nb_buf *b;
    const nb_eval_all *a;
    char name[NB_EVAL_MODELS + 1][96]; /* the reference last */
} page;

static const char *interval(char out[64], nb_mean m, double times, const char *unit)
{
    char lo[32], hi[32];

    nb_html_num(lo, times * m.lo);
    nb_html_num(hi, times * m.hi);
    snprintf(out, 64, "95 %%: %.20s to %.20s%.8s", lo, hi, unit);
    return out;
}

/* Bits a weight, 0: unknown. */
static double bits(const nb_inspect *w)
{
    return w && w->n_params ? 8 * (double)w->n_bytes / (double)w->n_params : 0;
}

/* ---- figures of the only model ---- */

static void cards(page *p)
{
    const nb_eval_all *a = p->a;
    char v[64], n[96], t[32];

    nb_html_cards(p->b);
    if (a->eval) {
        const nb_eval_score *s = &a->eval->model[0].all;
        if (a->eval->has_ref) {
            nb_html_card(p->b, a->eval->lower_bound ? "mean KL, lower bound" : "mean KL to the reference", nb_html_num(v, s->kl.mean),
                         interval(n, s->kl, 1, " nats"));
            snprintf(v, sizeof v, "%.2f %%", 100 * s->top1.mean);
            nb_html_card(p->b, "same most likely token", v, interval(n, s->top1, 100, " %"));
        }
        snprintf(v, sizeof v, s->ppl.mean < 1000 ? "%.2f" : "%.0f", s->ppl.mean);
        if (a->eval->has_ref) {
            snprintf(n, sizeof n, "reference %.2f, ratio %.4f", a->eval->ref.all.ppl.mean, s->ppl_ratio.mean);
            nb_html_card(p->b, "perplexity", v, n);
        } else {
            nb_html_card(p->b, "perplexity", v, interval(n, s->ppl, 1, ""));
        }
    }
    if (a->choice) {
        snprintf(v, sizeof v, "%.1f %%", 100 * a->choice[0].acc_norm.mean);
        nb_html_card(p->b, "acc_norm", v, interval(n, a->choice[0].acc_norm, 100, " %"));
    }
    if (a->what && a->what[0].n_bytes) {
        snprintf(n, sizeof n, "%.2f bits a weight, embeddings included", bits(&a->what[0]));
        nb_html_card(p->b, "size", nb_html_bytes(t, (double)a->what[0].n_bytes), bits(&a->what[0]) > 0 ? n : "");
    }
    nb_html_cards_end(p->b);
}

/* ---- the table of all models ---- */

static void score_cells(const nb_eval_all *a, const nb_eval_score *s, bool distances, char c[][48])
{
    char t[32];

    for (int i = 0; i < 9; i++)
        c[i][0] = 0;
    snprintf(c[0], 48, s->ppl.mean < 1000 ? "#%.3f" : "#%.0f", s->ppl.mean);
    snprintf(c[1], 48, "#\xc2\xb1 %.2g", s->ppl.ci95);
    if (!a->eval->has_ref)
        return;
    if (!distances) {
        for (int i = 2; i < 9; i++)
            snprintf(c[i], sizeof c[i], "#");
        return;
    }
    snprintf(c[2], 48, "#%.4f", s->ppl_ratio.mean);
    snprintf(c[3], 48, "#%s", nb_html_num(t, s->kl.mean));
    snprintf(c[4], 48, "#\xc2\xb1 %.1g", s->kl.ci95);
    snprintf(c[5], 48, "#%.3g", s->kl_median.mean);
    snprintf(c[6], 48, "#%.3g / %.3g / %.3g", s->kl_99.mean, s->kl_999.mean, s->kl_max);
    snprintf(c[7], 48, "#%.2f %%", 100 * s->top1.mean);
    snprintf(c[8], 48, "#%.2f %%", 100 * s->top5.mean);
}

static const char *const score_columns[] = { "",        "#perplexity",          "#95 %",  "#ratio", "#mean KL", "#95 %",
                                             "#median", "#99 % / 99.9 % / max", "#top-1", "#top-5" };

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static void score_row(page *p, const char *name, const nb_eval_score *s, bool distances)
{
    char c[9][48];
    const char *cells[10] = { name };

    score_cells(p->a, s, distances, c);
    for (size_t i = 0; i < 9; i++)
        cells[i + 1] = c[i];
    nb_html_row(p->b, cells, p->a->eval->has_ref ? 10 : 3);
}

static void scores(page *p)
{
    const nb_eval_all *a = p->a;
    const nb_eval *e = a->eval;
    char about[512];

    snprintf(about, sizeof about, "Protocol %s: %.320s. %zu windows, %zu tokens scored.", a->set->protocol, a->set->about, a->set->n_win,
             a->set->scored);
    nb_html_section(p->b, "Scores", about);
    nb_html_table(p->b, NULL, score_columns, e->has_ref ? 10 : 3);
    for (size_t i = 0; i < a->n_models; i++)
        score_row(p, p->name[i], &e->model[i].all, true);
    if (e->has_ref)
        score_row(p, "reference", &e->ref.all, false);
    nb_html_table_end(p->b);
    for (size_t i = 0; i < a->n_models; i++) {
        char caption[160];
        if (!e->model[i].part)
            continue;
        snprintf(caption, sizeof caption, "%s, file by file", p->name[i]);
        nb_html_table(p->b, caption, score_columns, e->has_ref ? 10 : 3);
        for (size_t k = 0; k < e->n_parts; k++)
            if (e->model[i].part[k].positions)
                score_row(p, last_part(a->set->parts[k]), &e->model[i].part[k], true);
        nb_html_table_end(p->b);
    }
    if (e->model[0].all.word_ppl > 0) {
        static const char *const col[] = { "", "#perplexity per word", "#bits per byte" };
        nb_html_table(p->b, NULL, col, 3);
        for (size_t i = 0; i < a->n_models; i++) {
            char w[40], bb[40], t[32];
            snprintf(w, sizeof w, "#%s", nb_html_num(t, e->model[i].all.word_ppl));
            snprintf(bb, sizeof bb, "#%.4f", e->model[i].all.byte_bits);
            const char *const cells[] = { p->name[i], w, bb };
            nb_html_row(p->b, cells, 3);
        }
        nb_html_table_end(p->b);
    }
}

/* ---- several models ---- */

static void compare(page *p)
{
    const nb_eval_all *a = p->a;
    const char *names[NB_EVAL_MODELS];
    nb_mean kl[NB_EVAL_MODELS], miss[NB_EVAL_MODELS], ppl[NB_EVAL_MODELS];
    double size[NB_EVAL_MODELS], mean[NB_EVAL_MODELS];
    size_t color[NB_EVAL_MODELS];
    bool sizes = a->what != NULL;

    for (size_t i = 0; i < a->n_models; i++) {
        const nb_eval_score *s = &a->eval->model[i].all;
        names[i] = p->name[i];
        kl[i] = s->kl;
        ppl[i] = s->ppl;
        miss[i] = (nb_mean){ 1 - s->top1.mean, 1 - s->top1.hi, 1 - s->top1.lo, s->top1.ci95 };
        mean[i] = s->kl.mean;
        color[i] = i % 8;
        size[i] = a->what ? bits(&a->what[i]) : 0;
        sizes = sizes && size[i] > 0;
    }
    nb_html_section(p->b, "Comparison", "Bars that are further apart than their whiskers are long differ by more than chance.");
    if (!a->eval->has_ref) {
        nb_chart_bars(p->b, &(nb_bars){ .title = "Perplexity",
                                        .about = "Lower is better.",
                                        .x = { .label = "perplexity" },
                                        .names = names,
                                        .values = ppl,
                                        .color = color,
                                        .n = a->n_models });
        return;
    }
    nb_buf_puts(p->b, "<div class=\"pair\">\n");
    nb_chart_bars(p->b, &(nb_bars){ .title = "Mean KL to the reference",
                                    .about = "Lower is better.",
                                    .x = { .label = "nats per token" },
                                    .names = names,
                                    .values = kl,
                                    .color = color,
                                    .n = a->n_models,
                                    .half = true });
    nb_chart_bars(p->b, &(nb_bars){ .title = "Another most likely token than the reference",
                                    .about = "Share of positions; lower is better.",
                                    .x = { .label = "share of positions", .unit = NB_UNIT_PERCENT },
                                    .names = names,
                                    .values = miss,
                                    .color = color,
                                    .n = a->n_models,
                                    .half = true });
    nb_buf_puts(p->b, "</div>\n");
    if (sizes)
        nb_chart_points(p->b, &(nb_points){ .title = "Quality against size",
                                            .about = "Lower left is better. Size counts the whole file, embeddings included.",
                                            .x = { .label = "bits a weight" },
                                            .y = { .label = "mean KL, nats" },
                                            .names = names,
                                            .xs = size,
                                            .ys = mean,
                                            .n = a->n_models });
}

/* ---- curves ---- */

static size_t add(nb_series *s, size_t n, const char *name, const double *y, size_t color, bool dashed)
{
    s[n] = (nb_series){ .name = name, .y = y, .color = color % 8, .dashed = dashed };
    return n + 1;
}

static void curves(page *p)
{
    const nb_eval_all *a = p->a;
    const nb_eval *e = a->eval;
    double at[NB_EVAL_BINS], over[NB_EVAL_SHARES], ppl[NB_EVAL_MODELS + 1][NB_EVAL_BINS];
    nb_series s[SERIES];
    size_t n = 0;

    for (size_t i = 0; i < e->n_bins; i++)
        at[i] = (double)(e->max_len * i / e->n_bins) + (double)(e->max_len / e->n_bins) / 2;
    for (size_t m = 0; m <= e->n_models; m++)
        for (size_t i = 0; i < e->n_bins; i++)
            ppl[m][i] = exp(m < e->n_models ? e->model[m].nll_at[i] : e->ref.nll_at[i]);
    nb_html_section(p->b, e->has_ref ? "Where the differences are" : "By position", NULL);
    if (e->has_ref) {
        nb_buf_puts(p->b, "<div class=\"pair\">\n");
        for (size_t m = 0; m < e->n_models; m++)
            n = add(s, n, p->name[m], e->model[m].kl_at, m, false);
        nb_chart_lines(p->b, &(nb_lines){ .title = "KL by position",
                                          .about = "Mean over the positions of a window; errors of the cache would rise to the right.",
                                          .x = { .label = "position in the window", .whole = true },
                                          .y = { .label = "nats" },
                                          .xs = at,
                                          .n_x = e->n_bins,
                                          .series = s,
                                          .n_series = n,
                                          .half = true });
        for (size_t i = 0; i < NB_EVAL_SHARES; i++)
            over[i] = 1 - nb_eval_share(NB_EVAL_SHARES - 1 - i);
        double share[NB_EVAL_MODELS][NB_EVAL_SHARES];
        size_t first = 0;
        while (first + 1 < NB_EVAL_SHARES &&
               over[first] * (double)e->model[0].all.positions < 2) /* of less than two positions nothing is known */
            first++;
        n = 0;
        for (size_t m = 0; m < e->n_models; m++) {
            for (size_t i = 0; i < NB_EVAL_SHARES; i++)
                share[m][i] = e->model[m].kl_share[NB_EVAL_SHARES - 1 - i];
            n = add(s, n, p->name[m], share[m] + first, m, false);
        }
        nb_chart_lines(p->b, &(nb_lines){ .title = "How often KL is large",
                                          .about = "KL that is exceeded at this share of the positions; the left end is the worst.",
                                          .x = { .label = "share of positions", .log = true, .unit = NB_UNIT_PERCENT },
                                          .y = { .label = "nats", .log = true },
                                          .xs = over + first,
                                          .n_x = NB_EVAL_SHARES - 1 - first, /* the smallest of all says nothing */
                                          .series = s,
                                          .n_series = n,
                                          .half = true });
        nb_buf_puts(p->b, "</div>\n");
    }
    n = 0;
    for (size_t m = 0; m < e->n_models; m++)
        n = add(s, n, p->name[m], ppl[m], m, false);
    if (e->has_ref)
        n = add(s, n, "reference", ppl[e->n_models], 7, true);
    nb_chart_lines(p->b, &(nb_lines){ .title = "Perplexity by position",
                                      .about = "More context, better predictions: it should fall and not rise again.",
                                      .x = { .label = "position in the window", .whole = true },
                                      .y = { .label = "perplexity" },
                                      .xs = at,
                                      .n_x = e->n_bins,
                                      .series = s,
                                      .n_series = n });
}

static void layers(page *p)
{
    const nb_eval_all *a = p->a;
    double at[512];
    nb_series s[SERIES];
    size_t n = 0, k = a->layers[0].n < NB_LEN(at) ? a->layers[0].n : NB_LEN(at);
    char about[160];

    for (size_t i = 0; i < k; i++)
        at[i] = (double)i;
    snprintf(about, sizeof about, "Relative to the reference, over %zu tokens.", a->layers[0].tokens);
    nb_html_section(p->b, "Layer by layer", about);
    nb_buf_puts(p->b, "<div class=\"pair\">\n");
    for (size_t m = 0; m < a->n_models; m++)
        n = add(s, n, p->name[m], a->layers[m].alone, m, false);
    nb_chart_lines(p->b, &(nb_lines){ .title = "Error of each layer alone",
                                      .about = "Fed the reference's input, in units of what the layer adds.",
                                      .x = { .label = "layer", .whole = true },
                                      .y = { .label = "relative error" },
                                      .xs = at,
                                      .n_x = k,
                                      .series = s,
                                      .n_series = n,
                                      .half = true });
    n = 0;
    for (size_t m = 0; m < a->n_models; m++)
        n = add(s, n, p->name[m], a->layers[m].drift, m, false);
    nb_chart_lines(p->b, &(nb_lines){ .title = "Drift of the residual",
                                      .about = "What has come together behind each layer.",
                                      .x = { .label = "layer", .whole = true },
                                      .y = { .label = "relative error" },
                                      .xs = at,
                                      .n_x = k,
                                      .series = s,
                                      .n_series = n,
                                      .half = true });
    nb_buf_puts(p->b, "</div>\n");
}

/* ---- choices, sizes, words ---- */

static void choices(page *p)
{
    const nb_eval_all *a = p->a;
    const bool ref = a->choice[a->n_models].n > 0;
    const char *names[NB_EVAL_MODELS + 1];
    nb_mean acc[NB_EVAL_MODELS + 1], norm[NB_EVAL_MODELS + 1];
    size_t color[NB_EVAL_MODELS + 1], n = a->n_models + ref;
    char about[400];

    for (size_t i = 0; i < n; i++) {
        names[i] = i < a->n_models ? p->name[i] : "reference";
        acc[i] = a->choice[i].acc;
        norm[i] = a->choice[i].acc_norm;
        color[i] = i < a->n_models ? i % 8 : 7;
    }
    snprintf(about, sizeof about,
             "%zu questions of %.200s by the log-likelihood of the answers (lm-evaluation-harness); guessing gives %.1f %%.",
             a->choice[0].n, a->choice_file, 100 * a->choice[0].guess);
    nb_html_section(p->b, "Multiple choice", about);
    nb_buf_puts(p->b, "<div class=\"pair\">\n");
    nb_chart_bars(p->b, &(nb_bars){ .title = "acc",
                                    .about = "The likeliest answer is right.",
                                    .x = { .label = "share of questions", .unit = NB_UNIT_PERCENT },
                                    .names = names,
                                    .values = acc,
                                    .color = color,
                                    .n = n,
                                    .half = true });
    nb_chart_bars(p->b, &(nb_bars){ .title = "acc_norm",
                                    .about = "The likeliest answer per character is right.",
                                    .x = { .label = "share of questions", .unit = NB_UNIT_PERCENT },
                                    .names = names,
                                    .values = norm,
                                    .color = color,
                                    .n = n,
                                    .half = true });
    nb_buf_puts(p->b, "</div>\n");
}

/* Kinds of stored elements over all models, in the order in which they are met. */
static void sizes(page *p)
{
    enum { KINDS = 16 };
    const nb_eval_all *a = p->a;
    const char *kinds[KINDS], *rows[NB_EVAL_MODELS + 1];
    double value[(NB_EVAL_MODELS + 1) * KINDS] = { 0 };
    size_t n_kinds = 0, n_rows = a->n_models + (a->ref && a->what[a->n_models].n_bytes > 0);
    double flat[(NB_EVAL_MODELS + 1) * KINDS];

    for (size_t r = 0; r < n_rows; r++) {
        rows[r] = p->name[r];
        for (size_t t = 0; t < a->what[r].n_types; t++) {
            size_t k = 0;
            while (k < n_kinds && strcmp(kinds[k], a->what[r].types[t].name) != 0)
                k++;
            if (k == n_kinds && n_kinds < KINDS)
                kinds[n_kinds++] = a->what[r].types[t].name;
            k = k < KINDS ? k : KINDS - 1;
            value[r * KINDS + k] += (double)a->what[r].types[t].n_bytes;
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        for (size_t k = 0; k < n_kinds; k++)
            flat[r * n_kinds + k] = value[r * KINDS + k];
    nb_html_section(p->b, "Bits and size", NULL);
    nb_chart_stack(p->b, &(nb_stack){ .title = "Stored bytes by element type",
                                      .about = "Packed codes are stored as i32 or u8 words, scales as f16 or bf16.",
                                      .x = { .label = "bytes", .unit = NB_UNIT_BYTES },
                                      .rows = rows,
                                      .kinds = kinds,
                                      .value = flat,
                                      .n_rows = n_rows,
                                      .n_kinds = n_kinds });
    static const char *const col[] = { "", "architecture", "layout", "#bits", "#group", "#size", "#parameters", "#bits a weight" };
    nb_html_table(p->b, NULL, col, NB_LEN(col));
    for (size_t r = 0; r < n_rows; r++) {
        const nb_inspect *w = &a->what[r];
        char b[32], g[32], s[40], m[32], bw[32], t[32];
        snprintf(b, sizeof b, w->bits ? "#%u" : "#", w->bits);
        snprintf(g, sizeof g, w->group_size ? "#%lld" : "#", (long long)w->group_size);
        snprintf(s, sizeof s, "#%s", nb_html_bytes(t, (double)w->n_bytes));
        snprintf(m, sizeof m, "#%.1f M", (double)w->n_params / 1e6);
        snprintf(bw, sizeof bw, "#%.2f", bits(w));
        const char *const cells[] = { rows[r], w->model_type, w->layout[0] ? w->layout : "not quantized", b, g, s, m, bw };
        nb_html_row(p->b, cells, NB_LEN(cells));
    }
    nb_html_table_end(p->b);
}

static void words(page *p)
{
    const nb_eval_all *a = p->a;
    char text[512];

    nb_html_section(p->b, "How this was measured", NULL);
    nb_buf_puts(p->b, "<ul>\n");
    if (a->eval) {
        snprintf(text, sizeof text,
                 "Intervals are 95 %%, from %zu bootstrap draws of %s (seed %llu): documents are independent, tokens are not.",
                 a->eval->resamples, a->eval->drawn, (unsigned long long)a->eval->seed);
        nb_buf_puts(p->b, "<li>");
        nb_html_text(p->b, text);
        nb_buf_puts(p->b,
                    "</li>\n<li>KL is KL(reference || model) in nats, top-1 that both have the same most likely token, top-5 that the "
                    "reference's is among the model's five. Sums are float64, the cache is float32.</li>\n");
        if (a->eval->lower_bound)
            nb_buf_puts(
                p->b,
                "<li>The reference was a file of its likeliest tokens; all others count as one, which makes KL a lower bound.</li>\n");
    }
    for (size_t i = 0; i <= a->n_models; i++) {
        if (i == a->n_models && !a->ref)
            break;
        nb_buf_puts(p->b, "<li>");
        nb_html_text(p->b, i < a->n_models ? p->name[i] : "reference");
        nb_buf_puts(p->b, ": <code>");
        nb_html_text(p->b, i < a->n_models ? a->models[i] : a->ref);
        nb_buf_puts(p->b, "</code></li>\n");
    }
    nb_buf_puts(p->b, "</ul>\n");
}

void nb_page_eval(nb_buf *b, const nb_eval_all *a, const char *program)
{
    page p = { .b = b, .a = a };
    char title[160], below[900];

    short_names(a, p.name);
    if (a->n_models == 1)
        snprintf(title, sizeof title, "%s", p.name[0]);
    else
        snprintf(title, sizeof title, "%zu models compared", a->n_models);
    snprintf(below, sizeof below, "%.500s%s%.200s", a->data, a->ref ? ", against " : "", a->ref ? p.name[a->n_models] : "");
    nb_html_begin(b, "Evaluation", title, below);
    for (size_t i = 0; i < a->n_hints; i++)
        nb_html_notice(b, a->hints[i]);
    if (a->n_models == 1)
        cards(&p);
    if (a->eval && a->n_models > 1)
        compare(&p);
    if (a->eval) {
        scores(&p);
        curves(&p);
    }
    if (a->layers && a->layers[0].n)
        layers(&p);
    if (a->choice)
        choices(&p);
    if (a->what)
        sizes(&p);
    words(&p);
    nb_html_end(b, program);
}
