/* page_quant.c - see page_quant.h. */
#include "job/page_quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "job/chart.h"
#include "job/html.h"

enum { ROLES = 12, WORST = 20, MAX_LAYERS = 1024 };

typedef struct row {
    char *name, *note;
    size_t layer, role; /* role: index of qpage.role */
    size_t n, k;
    double before, after, ratio, damp, seconds;
    size_t tokens;
} row;

struct nb_qpage {
    nb_out *out;
    nb_quantize_plan plan;
    char kernel[32], layout[32];
    row *rows;
    size_t n_rows, cap;
    char role[ROLES][48]; /* last parts of names: "q_proj"; the last one takes all further ones */
    size_t n_roles, n_layers;
    nb_quantize_layer *cost; /* [n_cost] in the order told, which is that of the layers */
    size_t n_cost, cap_cost;
    bool failed;
};

nb_status nb_qpage_open(nb_qpage **out, const char *path, bool force, nb_err *err)
{
    nb_qpage *p = nb_calloc(1, sizeof *p);
    nb_status rc;

    *out = NULL;
    if (!p)
        return nb_enomem(err, "the page");
    rc = nb_out_open(&p->out, path, force, err);
    if (rc == NB_OK)
        *out = p;
    else
        nb_free(p);
    return rc;
}

void nb_qpage_close(nb_qpage *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_rows; i++) {
        nb_free(p->rows[i].name);
        nb_free(p->rows[i].note);
    }
    nb_free(p->rows);
    nb_free(p->cost);
    nb_out_abort(p->out);
    nb_free(p);
}

void nb_qpage_plan(nb_qpage *p, const nb_quantize_plan *plan)
{
    p->plan = *plan;
    snprintf(p->kernel, sizeof p->kernel, "%s", plan->kernel ? plan->kernel : "");
    snprintf(p->layout, sizeof p->layout, "%s", plan->layout ? plan->layout : "");
}

/* The first number between dots. */
static size_t layer_of(const char *name)
{
    uint64_t v;

    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.'))
        if (nb_num_u64(at + 1, SIZE_MAX, &v))
            return (size_t)v;
    return 0;
}

static size_t role_of(nb_qpage *p, const char *name)
{
    const char *dot = strrchr(name, '.'), *role = dot ? dot + 1 : name;
    size_t i = 0;

    while (i < p->n_roles && strcmp(p->role[i], role) != 0)
        i++;
    if (i < p->n_roles)
        return i;
    if (p->n_roles == ROLES) {
        snprintf(p->role[ROLES - 1], sizeof p->role[0], "others");
        return ROLES - 1;
    }
    snprintf(p->role[p->n_roles], sizeof p->role[0], "%s", role);
    return p->n_roles++;
}

void nb_qpage_row(nb_qpage *p, const nb_quantize_row *r)
{
    row *to;

    if (p->n_rows == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 64;
        row *rows = nb_realloc(p->rows, cap * sizeof *rows);
        if (!rows) {
            p->failed = true;
            return;
        }
        p->rows = rows;
        p->cap = cap;
    }
    to = &p->rows[p->n_rows];
    *to = (row){ .name = nb_strdup(r->name),
                 .note = nb_strdup(r->note ? r->note : ""),
                 .layer = layer_of(r->name),
                 .role = role_of(p, r->name),
                 .n = r->n,
                 .k = r->k,
                 .tokens = r->tokens,
                 .before = r->before,
                 .after = r->after,
                 .ratio = r->ratio,
                 .damp = r->damp,
                 .seconds = r->seconds };
    p->n_rows++;
    if (!to->name || !to->note) {
        p->failed = true;
        p->n_rows--;
        nb_free(to->name);
        nb_free(to->note);
        return;
    }
    if (to->layer < MAX_LAYERS && to->layer + 1 > p->n_layers)
        p->n_layers = to->layer + 1;
}

void nb_qpage_layer(nb_qpage *p, const nb_quantize_layer *layer)
{
    if (p->n_cost == p->cap_cost) {
        const size_t cap = p->cap_cost ? 2 * p->cap_cost : 64;
        nb_quantize_layer *cost = nb_realloc(p->cost, cap * sizeof *cost);
        if (!cost) {
            p->failed = true;
            return;
        }
        p->cost = cost;
        p->cap_cost = cap;
    }
    p->cost[p->n_cost++] = *layer;
}

/* ---- sections ---- */

/* Bytes of the packed linears: codes, and scales with zero points. */
static void packed_bytes(const nb_qpage *p, const nb_qpage_words *w, double *codes, double *grid)
{
    *codes = *grid = 0;
    for (size_t i = 0; i < p->n_rows; i++) {
        const row *r = &p->rows[i];
        const double n = (double)r->n, groups = w->o->group_size > 0 ? (double)r->k / (double)w->o->group_size : 1;
        *codes += n * (double)r->k * w->o->bits / 8;
        *grid += n * groups * (2 + w->o->bits / 8.0);
    }
}

static void cards(nb_buf *b, const nb_qpage *p, const nb_qpage_words *w, const nb_quantize_result *res)
{
    char v[64], n[96], t[32], u[32];
    double codes, grid, weights = 0;

    packed_bytes(p, w, &codes, &grid);
    for (size_t i = 0; i < p->n_rows; i++)
        weights += (double)p->rows[i].n * (double)p->rows[i].k;
    nb_html_cards(b);
    snprintf(n, sizeof n, "plain rounding %s", nb_html_num(t, res->mean_before));
    nb_html_card(b, "mean error of a linear", nb_html_num(v, res->mean_after), n);
    snprintf(n, sizeof n, "from %s", nb_html_bytes(t, (double)p->plan.in_bytes));
    nb_html_card(b, "size", nb_html_bytes(u, (double)p->plan.out_bytes), n);
    if (weights > 0) {
        snprintf(v, sizeof v, "%.2f", 8 * (codes + grid) / weights);
        snprintf(n, sizeof n, "of %.1f M quantized ones", weights / 1e6);
        nb_html_card(b, "bits a weight", v, n);
    }
    snprintf(v, sizeof v, res->seconds < 100 ? "%.1f s" : "%.0f s", res->seconds);
    snprintf(n, sizeof n, "%zu linears, peak memory %s", res->modules, nb_html_bytes(t, (double)res->peak_bytes));
    nb_html_card(b, "time", v, n);
    snprintf(v, sizeof v, "%zu", res->fallbacks);
    nb_html_card(b, "fell back to rounding", v, res->fallbacks ? "named below" : "");
    nb_html_cards_end(b);
}

/* Mean over the rows of a layer (and role, unless SIZE_MAX) of one field; NaN where there are none. */
static double layer_mean(const nb_qpage *p, size_t layer, size_t role, bool before)
{
    double sum = 0;
    size_t n = 0;

    for (size_t i = 0; i < p->n_rows; i++) {
        const row *r = &p->rows[i];
        if (r->layer != layer || (role != SIZE_MAX && r->role != role))
            continue;
        sum += before ? r->before : r->after;
        n++;
    }
    return n ? sum / (double)n : (double)NAN;
}

static nb_status losses(nb_buf *b, const nb_qpage *p, nb_err *err)
{
    const size_t L = p->n_layers;
    double *at = nb_alloc_array(L * (p->n_roles + 3), sizeof *at);
    nb_series s[ROLES + 2], two[2];

    if (!at)
        return nb_enomem(err, "the page");
    for (size_t l = 0; l < L; l++) {
        at[l] = (double)l;
        for (size_t r = 0; r < p->n_roles; r++)
            at[(r + 1) * L + l] = layer_mean(p, l, r, false);
        at[(p->n_roles + 1) * L + l] = layer_mean(p, l, SIZE_MAX, true);
        at[(p->n_roles + 2) * L + l] = layer_mean(p, l, SIZE_MAX, false);
    }
    for (size_t r = 0; r < p->n_roles; r++)
        s[r] = (nb_series){ .name = p->role[r], .y = at + (r + 1) * L, .color = r % 8, .dashed = r >= 8 };
    two[0] = (nb_series){ .name = "plain rounding", .y = at + (p->n_roles + 1) * L, .color = 1, .dashed = true };
    two[1] = (nb_series){ .name = "as written", .y = at + (p->n_roles + 2) * L, .color = 0 };
    nb_html_section(b, "Loss per layer",
                    "Relative error of the outputs of linears on the calibration data (of the weights where there is none).");
    nb_chart_lines(b, &(nb_lines){ .title = "Mean over the linears of a layer",
                                   .about = "The gap is what the method gained over plain rounding.",
                                   .x = { .label = "layer", .whole = true },
                                   .y = { .label = "relative error", .log = true },
                                   .xs = at,
                                   .n_x = L,
                                   .series = two,
                                   .n_series = 2 });
    nb_chart_lines(b, &(nb_lines){ .title = "By kind of linear",
                                   .about = "As written.",
                                   .x = { .label = "layer", .whole = true },
                                   .y = { .label = "relative error", .log = true },
                                   .xs = at,
                                   .n_x = L,
                                   .series = s,
                                   .n_series = p->n_roles });
    nb_free(at);
    return NB_OK;
}

/* Memory and time over the layers. */
static nb_status costs(nb_buf *b, const nb_qpage *p, nb_err *err)
{
    enum { X, RESIDENT, PEAK, PLAN, CAP, SECONDS, FIELDS };
    const size_t n = p->n_cost;
    double *v = nb_alloc_array(n * FIELDS, sizeof *v), most = (double)p->plan.peak_bytes;
    const double cap = (double)p->plan.cap_bytes;
    size_t resumed = 0, lines = 0;
    nb_series s[4];
    char about[160], t[32];

    if (!v)
        return nb_enomem(err, "the page");
    for (size_t i = 0; i < n; i++) {
        const nb_quantize_layer *l = &p->cost[i];
        v[X * n + i] = (double)l->layer;
        v[RESIDENT * n + i] = l->resident ? (double)l->resident : (double)NAN;
        v[PEAK * n + i] = l->peak ? (double)l->peak : (double)NAN;
        v[PLAN * n + i] = (double)p->plan.peak_bytes;
        v[CAP * n + i] = cap;
        v[SECONDS * n + i] = l->seconds;
        most = (double)l->peak > most ? (double)l->peak : most;
        resumed += l->resumed;
    }
    if (resumed)
        snprintf(about, sizeof about, "%zu of %zu layers were done by an earlier process, before the job was resumed.", resumed, n);
    nb_html_section(b, "Memory and time over layers", resumed ? about : NULL);
    s[lines++] = (nb_series){ .name = "at the end of the layer", .y = v + RESIDENT * n, .color = 0 };
    s[lines++] = (nb_series){ .name = "most so far", .y = v + PEAK * n, .color = 2 };
    if (p->plan.peak_bytes)
        s[lines++] = (nb_series){ .name = "planned peak", .y = v + PLAN * n, .color = 3, .dashed = true };
    if (cap > 0 && cap <= 3 * most) /* one far above would press the others flat */
        s[lines++] = (nb_series){ .name = "cap", .y = v + CAP * n, .color = 4, .dashed = true };
    snprintf(about, sizeof about, cap > 0 ? "Resident bytes of the process; the cap is %s." : "Resident bytes of the process.",
             nb_html_bytes(t, cap));
    nb_buf_puts(b, "<div class=\"pair\">\n");
    nb_chart_lines(b, &(nb_lines){ .title = "Memory",
                                   .about = about,
                                   .x = { .label = "layer", .whole = true },
                                   .y = { .label = "", .unit = NB_UNIT_BYTES, .zero = true },
                                   .xs = v,
                                   .n_x = n,
                                   .series = s,
                                   .n_series = lines,
                                   .half = true });
    s[0] = (nb_series){ .name = "seconds a layer", .y = v + SECONDS * n, .color = 0 };
    nb_chart_lines(b, &(nb_lines){ .title = "Time",
                                   .about = "Wall time of a whole layer: running it, searching, rounding, writing.",
                                   .x = { .label = "layer", .whole = true },
                                   .y = { .label = "seconds", .zero = true },
                                   .xs = v,
                                   .n_x = n,
                                   .series = s,
                                   .n_series = 1,
                                   .half = true });
    nb_buf_puts(b, "</div>\n");
    nb_free(v);
    return NB_OK;
}

static int by_loss(const void *a, const void *b)
{
    const row *x = *(const row *const *)a, *y = *(const row *const *)b;

    if (x->after != y->after)
        return x->after > y->after ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void module_row(nb_buf *b, const row *r)
{
    char size[48], before[40], after[40], gain[40], how[40], seconds[40], tokens[40], t[32];

    snprintf(size, sizeof size, "#%zu x %zu", r->n, r->k);
    snprintf(before, sizeof before, "#%s", nb_html_num(t, r->before));
    snprintf(after, sizeof after, "#%s", nb_html_num(t, r->after));
    snprintf(gain, sizeof gain, r->before > 0 ? "#%.2f" : "#", r->after / r->before);
    if (r->damp >= 0)
        snprintf(how, sizeof how, "damp %.3g", r->damp);
    else if (r->ratio >= 0)
        snprintf(how, sizeof how, "ratio %.2f", r->ratio);
    else
        how[0] = 0;
    snprintf(seconds, sizeof seconds, "#%.2f s", r->seconds);
    snprintf(tokens, sizeof tokens, r->tokens ? "#%zu" : "#", r->tokens);
    const char *const cells[] = { r->name, size, before, after, gain, tokens, how, seconds, r->note };
    nb_html_row(b, cells, NB_LEN(cells));
}

static nb_status modules(nb_buf *b, const nb_qpage *p, nb_err *err)
{
    static const char *const col[] = { "module", "#size", "#rounding", "#as written", "#share left", "#tokens", "search", "#time", "note" };
    const row **order = nb_alloc_array(p->n_rows, sizeof *order);
    const size_t n = p->n_rows < WORST ? p->n_rows : WORST;
    const char *names[WORST];
    nb_mean values[WORST];
    bool notes = false;

    if (!order)
        return nb_enomem(err, "the page");
    for (size_t i = 0; i < p->n_rows; i++) {
        order[i] = &p->rows[i];
        notes = notes || p->rows[i].note[0];
    }
    qsort(order, p->n_rows, sizeof *order, by_loss);
    for (size_t i = 0; i < n; i++) {
        const char *from = strstr(order[i]->name, "layers.");
        names[i] = from ? from + 7 : order[i]->name;
        values[i] = (nb_mean){ .mean = order[i]->after };
    }
    nb_html_section(b, "Worst modules", "Candidates for more bits or a smaller group.");
    nb_chart_bars(b, &(nb_bars){ .title = "Largest relative error",
                                 .about = "As written, worst first.",
                                 .x = { .label = "relative error" },
                                 .names = names,
                                 .values = values,
                                 .n = n });
    if (notes) {
        nb_html_table(b, "Modules with a note", col, NB_LEN(col));
        for (size_t i = 0; i < p->n_rows; i++)
            if (p->rows[i].note[0])
                module_row(b, &p->rows[i]);
        nb_html_table_end(b);
    }
    nb_buf_puts(b, "<details><summary>All modules</summary>\n");
    nb_html_table(b, NULL, col, NB_LEN(col));
    for (size_t i = 0; i < p->n_rows; i++)
        module_row(b, &p->rows[i]);
    nb_html_table_end(b);
    nb_buf_puts(b, "</details>\n");
    nb_free(order);
    return NB_OK;
}

static void sizes(nb_buf *b, const nb_qpage *p, const nb_qpage_words *w)
{
    static const char *const rows[] = { "before", "after" }, *const kinds[] = { "weights that are quantized", "their codes",
                                                                                "scales and zeros", "the rest" };
    double weights = 0, codes, grid, value[8] = { 0 };

    packed_bytes(p, w, &codes, &grid);
    for (size_t i = 0; i < p->n_rows; i++)
        weights += (double)p->rows[i].n * (double)p->rows[i].k;
    const double rest = (double)p->plan.out_bytes - codes - grid;
    value[3] = value[7] = rest > 0 ? rest : 0;
    value[0] = (double)p->plan.in_bytes - value[3];
    value[0] = value[0] > 0 ? value[0] : 2 * weights;
    value[5] = codes;
    value[6] = grid;
    nb_html_section(b, "Bits and size", "Embedding and norms keep their 16 bits; so does the head unless --lm-head was given.");
    nb_chart_stack(b, &(nb_stack){ .title = "Bytes before and after",
                                   .about = "As planned; zero points count as one code a group.",
                                   .x = { .label = "bytes", .unit = NB_UNIT_BYTES },
                                   .rows = rows,
                                   .kinds = kinds,
                                   .value = value,
                                   .n_rows = 2,
                                   .n_kinds = 4 });
}

static void setting(nb_buf *b, const char *name, const char *value)
{
    const char *const cells[] = { name, value };

    nb_html_row(b, cells, 2);
}

static void settings(nb_buf *b, const nb_qpage *p, const nb_qpage_words *w)
{
    static const char *const col[] = { "", "" };
    static const char *const orders[] = {
        [NB_GPTQ_NATURAL] = "natural", [NB_GPTQ_DESC] = "most active first", [NB_GPTQ_GAR] = "most active first, group by group"
    };
    const nb_quantize_opts *o = w->o;
    char v[64];

    nb_html_section(b, "Settings", NULL);
    nb_html_table(b, NULL, col, 2);
    setting(b, "method", nb_quantize_method(o->method).title);
    snprintf(v, sizeof v, "%u bits, %s", o->bits, o->sym ? "symmetric" : "asymmetric");
    setting(b, "grid", v);
    if (o->group_size > 0)
        snprintf(v, sizeof v, "%lld inputs", (long long)o->group_size);
    else
        snprintf(v, sizeof v, "one per output");
    setting(b, "group", v);
    setting(b, "layout", p->layout);
    if (p->plan.rows) {
        snprintf(v, sizeof v, "%zu rows of %zu tokens", p->plan.rows, p->plan.len);
        setting(b, "calibration", v);
        setting(b, "from", o->calib ? o->calib : "");
    }
    if (strcmp(nb_quantize_method(o->method).name, "gptq") == 0 && (size_t)o->order < NB_LEN(orders) && orders[o->order])
        setting(b, "order of inputs", orders[o->order]);
    snprintf(v, sizeof v, "%s kernels, %d thread%s", p->kernel, p->plan.threads, p->plan.threads == 1 ? "" : "s");
    setting(b, "computed with", v);
    setting(b, "input", w->model);
    setting(b, "output", w->out);
    nb_html_table_end(b);
}

static nb_status build(nb_buf *b, const nb_qpage *p, const nb_qpage_words *w, const nb_quantize_result *res, nb_err *err)
{
    const char *slash = strrchr(w->out, '/');
    char below[600];
    nb_status rc;

    snprintf(below, sizeof below, "%.400s by %s, %u bits", w->model, nb_quantize_method(w->o->method).title, w->o->bits);
    nb_html_begin(b, "Quantization", slash && slash[1] ? slash + 1 : w->out, below);
    cards(b, p, w, res);
    rc = losses(b, p, err);
    if (rc == NB_OK)
        rc = modules(b, p, err);
    sizes(b, p, w);
    if (rc == NB_OK && p->n_cost)
        rc = costs(b, p, err);
    settings(b, p, w);
    nb_html_end(b, w->program);
    return rc == NB_OK && b->failed ? nb_enomem(err, "the page") : rc;
}

nb_status nb_qpage_finish(nb_qpage *p, const nb_qpage_words *w, const nb_quantize_result *res, nb_err *err)
{
    nb_buf b = { 0 };
    nb_status rc = p->failed ? nb_enomem(err, "the page") : build(&b, p, w, res, err);

    if (rc == NB_OK)
        rc = nb_out_write(p->out, b.p, b.n, err);
    if (rc == NB_OK) {
        nb_out *out = p->out;
        p->out = NULL;
        rc = nb_out_commit(out, err);
    }
    nb_buf_clear(&b);
    nb_qpage_close(p);
    return rc;
}
