/* chart.c - see chart.h. */
#include "job/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/html.h"

enum {
    WIDE = 1000,
    HALF = 490,
    H = 290,
    LEFT = 64,
    RIGHT = 18,
    TOP = 12,
    BOTTOM = 46,
    COLORS = 8,
    MAX_TICKS = 16,
    ROW_H = 34,
    NAME_W = 150,
    MAX_LABELS = 64
};

typedef struct scale {
    double lo, hi, from, to; /* values, pixels */
    bool log;
    double tick[MAX_TICKS];
    size_t n_ticks;
} scale;

static double place(const scale *s, double v)
{
    const double at = s->log ? log(v / s->lo) / log(s->hi / s->lo) : (v - s->lo) / (s->hi - s->lo);

    return s->from + (s->to - s->from) * (at < 0 ? 0 : at > 1 ? 1 : at);
}

static bool shows(const nb_axis *a, double v)
{
    return isfinite(v) && (!a->log || v > 0);
}

/* 1, 2 or 5 times a power of ten, at least v. */
static double nice(double v)
{
    const double p = pow(10, floor(log10(v)));

    return v <= p * 1.0001 ? p : v <= 2 * p ? 2 * p : v <= 5 * p ? 5 * p : 10 * p;
}

static void linear_ticks(scale *s, bool whole, size_t wanted)
{
    double step = nice((s->hi - s->lo) / (double)wanted);

    step = whole && step < 1 ? 1 : step;
    s->lo = floor(s->lo / step + 1e-9) * step;
    s->hi = ceil(s->hi / step - 1e-9) * step;
    for (double v = s->lo; v <= s->hi + step / 2 && s->n_ticks < MAX_TICKS; v += step)
        s->tick[s->n_ticks++] = fabs(v) < step / 1000 ? 0 : v;
}

static void log_ticks(scale *s)
{
    static const double few[] = { 1, 2, 5 }, many[] = { 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9 };
    const double decades = log10(s->hi / s->lo), *part = decades < 0.9 ? many : few;
    const size_t parts = decades < 0.9 ? NB_LEN(many) : decades < 2.5 ? NB_LEN(few) : 1;
    const int every = decades > MAX_TICKS - 2 ? 3 : 1;

    s->lo /= 1.08;
    s->hi *= 1.08;
    for (int d = (int)floor(log10(s->lo)); d <= (int)ceil(log10(s->hi)); d += every)
        for (size_t i = 0; i < parts; i++) {
            const double v = part[i] * pow(10, d);
            if (v >= s->lo && v <= s->hi && s->n_ticks < MAX_TICKS)
                s->tick[s->n_ticks++] = v;
        }
}

/* lo > hi: nothing to show. */
static scale make_scale(const nb_axis *a, double lo, double hi, double from, double to, size_t wanted)
{
    scale s = { .lo = lo, .hi = hi, .from = from, .to = to, .log = a->log };

    if (!(lo <= hi)) {
        s.lo = a->log ? 1 : 0;
        s.hi = a->log ? 10 : 1;
    }
    if (a->log && s.lo < s.hi * 1e-30) /* what is smaller lies on the edge */
        s.lo = s.hi * 1e-30;
    if (a->log && s.hi < s.lo * 1.5) {
        s.lo /= 1.5;
        s.hi *= 1.5;
    }
    if (!a->log && s.hi <= s.lo) {
        s.lo -= s.lo != 0 ? fabs(s.lo) / 5 : 0.5;
        s.hi += s.hi != 0 ? fabs(s.hi) / 5 : 0.5;
    }
    if (a->log)
        log_ticks(&s);
    else
        linear_ticks(&s, a->whole, wanted);
    return s;
}

static const char *value(char out[32], const nb_axis *a, double v)
{
    if (a->unit == NB_UNIT_BYTES && isfinite(v))
        return nb_html_bytes(out, v);
    if (a->unit == NB_UNIT_PERCENT && isfinite(v)) {
        snprintf(out, 32, "%.4g %%", 100 * v);
        return out;
    }
    return nb_html_num(out, v);
}

static const char *tick_value(char out[32], const nb_axis *a, double v)
{
    if (a->unit == NB_UNIT_PLAIN && (v == 0 || (fabs(v) >= 1e-4 && fabs(v) < 1e6))) {
        snprintf(out, 32, "%g", v);
        return out;
    }
    if (a->unit == NB_UNIT_PLAIN) {
        snprintf(out, 32, "%.0e", v);
        return out;
    }
    return value(out, a, v);
}

/* ---- parts of a figure ---- */

static void begin(nb_buf *b, const char *title, const char *about)
{
    nb_buf_puts(b, "<figure>\n<figcaption>");
    nb_html_text(b, title);
    nb_buf_puts(b, "</figcaption>\n<p>");
    nb_html_text(b, about);
    nb_buf_puts(b, "</p>\n");
}

static void begin_svg(nb_buf *b, const char *title, int width, int height)
{
    nb_buf_printf(b, "<div class=\"plot\"><svg%s viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width == WIDE ? " class=\"wide\"" : "",
                  width, height);
    nb_html_text(b, title);
    nb_buf_puts(b, ". The numbers are in the table below.\">\n");
}

static void begin_data(nb_buf *b)
{
    nb_buf_puts(b, "</svg></div>\n<details><summary>Numbers</summary>\n");
}

static void end(nb_buf *b)
{
    nb_buf_puts(b, "</details>\n</figure>\n");
}

static void marker(nb_buf *b, size_t color, double x, double y, const char *title)
{
    nb_buf_printf(b, "<g fill=\"var(--c%zu)\">", color % COLORS);
    if (color % 4 == 0)
        nb_buf_printf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\">", x, y);
    else if (color % 4 == 1)
        nb_buf_printf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"6\" height=\"6\">", x - 3, y - 3);
    else if (color % 4 == 2)
        nb_buf_printf(b, "<path d=\"M%.1f %.1fl4 7h-8z\">", x, y - 4);
    else
        nb_buf_printf(b, "<path d=\"M%.1f %.1fl4 4l-4 4l-4 -4z\">", x, y - 4);
    if (title) {
        nb_buf_puts(b, "<title>");
        nb_html_text(b, title);
        nb_buf_puts(b, "</title>");
    }
    nb_buf_printf(b, "</%s></g>", color % 4 == 0 ? "circle" : color % 4 == 1 ? "rect" : "path");
}

static void key_line(nb_buf *b, const char *name, size_t color, bool dashed, bool with_marker)
{
    nb_buf_puts(b, "<li><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\">");
    nb_buf_printf(b, "<path d=\"M1 6H25\" stroke=\"var(--c%zu)\" stroke-width=\"2\"%s/>", color % COLORS,
                  dashed ? " stroke-dasharray=\"5 4\"" : "");
    if (with_marker)
        marker(b, color, 13, 6, NULL);
    nb_buf_puts(b, "</svg><span>");
    nb_html_text(b, name);
    nb_buf_puts(b, "</span></li>\n");
}

static void x_axis(nb_buf *b, const nb_axis *a, const scale *s, double top, double bottom)
{
    char t[32];

    for (size_t i = 0; i < s->n_ticks; i++) {
        const double x = place(s, s->tick[i]);
        nb_buf_printf(b, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, top, bottom);
        nb_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x, bottom + 17, tick_value(t, a, s->tick[i]));
    }
    nb_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (s->from + s->to) / 2, bottom + 37);
    nb_html_text(b, a->label);
    nb_buf_puts(b, "</text>\n");
}

static void y_axis(nb_buf *b, const nb_axis *a, const scale *s, double right)
{
    char t[32];

    for (size_t i = 0; i < s->n_ticks; i++) {
        const double y = place(s, s->tick[i]);
        nb_buf_printf(b, "<path class=\"grid\" d=\"M%d %.1fH%.1f\"/>", LEFT, y, right);
        nb_buf_printf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8, y + 4, tick_value(t, a, s->tick[i]));
    }
    nb_buf_printf(b, "<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\">", (s->from + s->to) / 2,
                  (s->from + s->to) / 2);
    nb_html_text(b, a->label);
    nb_buf_puts(b, "</text>\n");
}

/* ---- lines ---- */

static void extend(const nb_axis *a, double v, double *lo, double *hi)
{
    if (!shows(a, v))
        return;
    *lo = v < *lo ? v : *lo;
    *hi = v > *hi ? v : *hi;
}

static void one_line(nb_buf *b, const nb_lines *c, const nb_series *s, const scale *x, const scale *y)
{
    bool pen = false;
    char t[32], u[32], title[160];

    nb_buf_printf(b, "<path fill=\"none\" stroke=\"var(--c%zu)\" stroke-width=\"2\" stroke-linejoin=\"round\"%s d=\"", s->color % COLORS,
                  s->dashed ? " stroke-dasharray=\"5 4\"" : "");
    for (size_t i = 0; i < c->n_x; i++) {
        const bool has = shows(&c->y, s->y[i]) && shows(&c->x, c->xs[i]);
        if (has)
            nb_buf_printf(b, "%c%.1f %.1f", pen ? 'L' : 'M', place(x, c->xs[i]), place(y, s->y[i]));
        pen = has;
    }
    nb_buf_puts(b, "\"/>\n");
    for (size_t i = 0; c->n_x <= 64 && i < c->n_x; i++)
        if (shows(&c->y, s->y[i]) && shows(&c->x, c->xs[i])) {
            snprintf(title, sizeof title, "%.60s, %.30s %s: %s", s->name, c->x.label, value(t, &c->x, c->xs[i]), value(u, &c->y, s->y[i]));
            marker(b, s->color, place(x, c->xs[i]), place(y, s->y[i]), title);
        }
    nb_buf_putc(b, '\n');
}

static void lines_data(nb_buf *b, const nb_lines *c)
{
    char head[32][96], cell[32][40], t[32];
    const char *col[32], *cells[32];
    const size_t n = c->n_series < 31 ? c->n_series : 31;

    snprintf(head[0], sizeof head[0], "#%.90s", c->x.label);
    for (size_t i = 0; i < n; i++)
        snprintf(head[i + 1], sizeof head[i + 1], "#%.90s", c->series[i].name);
    for (size_t i = 0; i <= n; i++) {
        col[i] = head[i];
        cells[i] = cell[i];
    }
    nb_html_table(b, NULL, col, n + 1);
    for (size_t k = 0; k < c->n_x; k++) {
        snprintf(cell[0], sizeof cell[0], "#%s", value(t, &c->x, c->xs[k]));
        for (size_t i = 0; i < n; i++)
            snprintf(cell[i + 1], sizeof cell[i + 1], "#%s", value(t, &c->y, c->series[i].y[k]));
        nb_html_row(b, cells, n + 1);
    }
    nb_html_table_end(b);
}

void nb_chart_lines(nb_buf *b, const nb_lines *c)
{
    double xl = INFINITY, xh = -INFINITY, yl = INFINITY, yh = -INFINITY;
    scale x, y;

    for (size_t i = 0; i < c->n_x; i++) {
        extend(&c->x, c->xs[i], &xl, &xh);
        for (size_t k = 0; k < c->n_series; k++)
            extend(&c->y, c->series[k].y[i], &yl, &yh);
    }
    if (!c->y.log && yl > 0 && (c->y.zero || yl < 0.4 * yh)) /* near 0: show it */
        yl = 0;
    const int width = c->half ? HALF : WIDE;
    x = make_scale(&c->x, xl, xh, LEFT, width - RIGHT, c->half ? 6 : 10);
    if (!c->x.log) { /* the data fill the width */
        x.lo = xl <= xh ? xl : 0;
        x.hi = xl < xh ? xh : x.lo + 1;
        while (x.n_ticks && x.tick[x.n_ticks - 1] > x.hi)
            x.n_ticks--;
        while (x.n_ticks && x.tick[0] < x.lo) {
            memmove(x.tick, x.tick + 1, (x.n_ticks - 1) * sizeof *x.tick);
            x.n_ticks--;
        }
    }
    y = make_scale(&c->y, yl, yh, H - BOTTOM, TOP, 5);
    begin(b, c->title, c->about);
    nb_buf_puts(b, "<ul class=\"key\">\n");
    for (size_t k = 0; k < c->n_series; k++)
        key_line(b, c->series[k].name, c->series[k].color, c->series[k].dashed, c->n_x <= 64);
    nb_buf_puts(b, "</ul>\n");
    begin_svg(b, c->title, width, H);
    x_axis(b, &c->x, &x, TOP, H - BOTTOM);
    y_axis(b, &c->y, &y, width - RIGHT);
    for (size_t k = 0; k < c->n_series; k++)
        one_line(b, c, &c->series[k], &x, &y);
    begin_data(b);
    lines_data(b, c);
    end(b);
}

/* ---- bars ---- */

/* A name of at most 20 characters in front of a row, whole in its tooltip. */
static void row_name(nb_buf *b, const char *name, double y)
{
    char cut[128];
    size_t n = 0, chars = 0;
    const size_t len = strlen(name);

    while (n < len && n < sizeof cut - 8 && chars < 20) {
        n++;
        while (n < len && ((unsigned char)name[n] & 0xc0) == 0x80)
            n++;
        chars++;
    }
    if (n < len) { /* the end of a path says more than its beginning */
        size_t from = len - (n > 2 ? n - 2 : n);
        while (from < len && ((unsigned char)name[from] & 0xc0) == 0x80)
            from++;
        snprintf(cut, sizeof cut, "\xe2\x80\xa6%s", name + from);
    } else {
        snprintf(cut, sizeof cut, "%s", name);
    }
    nb_buf_printf(b, "<text class=\"name\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\"><title>", NAME_W - 8, y);
    nb_html_text(b, name);
    nb_buf_puts(b, "</title>");
    nb_html_text(b, cut);
    nb_buf_puts(b, "</text>\n");
}

static void bars_data(nb_buf *b, const nb_bars *c)
{
    const char *const col[] = { "", "#value", "#95 % from", "#to" };
    char v[3][40], t[32];

    nb_html_table(b, NULL, col, NB_LEN(col));
    for (size_t i = 0; i < c->n; i++) {
        const nb_mean *m = &c->values[i];
        const bool has = m->lo < m->hi;
        snprintf(v[0], sizeof v[0], "#%s", value(t, &c->x, m->mean));
        snprintf(v[1], sizeof v[1], "#%s", has ? value(t, &c->x, m->lo) : "");
        snprintf(v[2], sizeof v[2], "#%s", has ? value(t, &c->x, m->hi) : "");
        const char *const cells[] = { c->names[i], v[0], v[1], v[2] };
        nb_html_row(b, cells, NB_LEN(cells));
    }
    nb_html_table_end(b);
}

void nb_chart_bars(nb_buf *b, const nb_bars *c)
{
    const int height = TOP + (int)c->n * ROW_H + BOTTOM, width = c->half ? HALF : WIDE;
    double hi = 0;
    char t[32];
    scale x;

    for (size_t i = 0; i < c->n; i++) {
        hi = isfinite(c->values[i].mean) && c->values[i].mean > hi ? c->values[i].mean : hi;
        hi = isfinite(c->values[i].hi) && c->values[i].hi > hi ? c->values[i].hi : hi;
    }
    x = make_scale(&c->x, 0, hi > 0 ? hi : 1, NAME_W, width - 74, c->half ? 4 : 8);
    begin(b, c->title, c->about);
    begin_svg(b, c->title, width, height);
    x_axis(b, &c->x, &x, TOP, height - BOTTOM);
    for (size_t i = 0; i < c->n; i++) {
        const nb_mean *m = &c->values[i];
        const double y = TOP + (double)i * ROW_H + 7, end_x = isfinite(m->mean) ? place(&x, m->mean) : NAME_W, mid = y + 10;
        double text_x = end_x;
        row_name(b, c->names[i], y + 14);
        nb_buf_printf(b, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"20\" rx=\"2\" fill=\"var(--c%zu)\" fill-opacity=\"0.8\"/>",
                      NAME_W, y, end_x - NAME_W, c->color ? c->color[i] % COLORS : 0);
        if (m->lo < m->hi) {
            const double l = place(&x, m->lo > 0 ? m->lo : 0), h = place(&x, m->hi);
            nb_buf_printf(b, "<path class=\"axis\" stroke-width=\"1.6\" fill=\"none\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv10M%.1f %.1fv10\"/>", l,
                          mid, h, l, mid - 5, h, mid - 5);
            text_x = h > end_x ? h : end_x;
        }
        nb_buf_printf(b, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", text_x + 8, y + 14, value(t, &c->x, m->mean));
    }
    begin_data(b);
    bars_data(b, c);
    end(b);
}

/* ---- stacks ---- */

static void stack_data(nb_buf *b, const nb_stack *c)
{
    const char *col[18], *cells[18];
    char head[18][64], cell[18][40], t[32];
    const size_t n = c->n_kinds < 16 ? c->n_kinds : 16;

    col[0] = "";
    for (size_t k = 0; k < n; k++) {
        snprintf(head[k], sizeof head[k], "#%.60s", c->kinds[k]);
        col[k + 1] = head[k];
    }
    col[n + 1] = "#together";
    nb_html_table(b, NULL, col, n + 2);
    for (size_t r = 0; r < c->n_rows; r++) {
        double sum = 0;
        cells[0] = c->rows[r];
        for (size_t k = 0; k < c->n_kinds; k++)
            sum += c->value[r * c->n_kinds + k];
        for (size_t k = 0; k < n; k++) {
            snprintf(cell[k], sizeof cell[k], "#%s", value(t, &c->x, c->value[r * c->n_kinds + k]));
            cells[k + 1] = cell[k];
        }
        snprintf(cell[n], sizeof cell[n], "#%s", value(t, &c->x, sum));
        cells[n + 1] = cell[n];
        nb_html_row(b, cells, n + 2);
    }
    nb_html_table_end(b);
}

void nb_chart_stack(nb_buf *b, const nb_stack *c)
{
    const int height = TOP + (int)c->n_rows * ROW_H + BOTTOM;
    double hi = 0;
    char t[32];
    scale x;

    for (size_t r = 0; r < c->n_rows; r++) {
        double sum = 0;
        for (size_t k = 0; k < c->n_kinds; k++)
            sum += c->value[r * c->n_kinds + k];
        hi = sum > hi ? sum : hi;
    }
    x = make_scale(&c->x, 0, hi > 0 ? hi : 1, NAME_W, WIDE - 74, 8);
    begin(b, c->title, c->about);
    nb_buf_puts(b, "<ul class=\"key\">\n");
    for (size_t k = 0; k < c->n_kinds; k++) {
        nb_buf_printf(b,
                      "<li><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\"><rect width=\"22\" height=\"12\" rx=\"2\" "
                      "fill=\"var(--c%zu)\"/></svg><span>",
                      k % COLORS);
        nb_html_text(b, c->kinds[k]);
        nb_buf_puts(b, "</span></li>\n");
    }
    nb_buf_puts(b, "</ul>\n");
    begin_svg(b, c->title, WIDE, height);
    x_axis(b, &c->x, &x, TOP, height - BOTTOM);
    for (size_t r = 0; r < c->n_rows; r++) {
        const double y = TOP + (double)r * ROW_H + 7;
        double sum = 0;
        row_name(b, c->rows[r], y + 14);
        for (size_t k = 0; k < c->n_kinds; k++) {
            const double v = c->value[r * c->n_kinds + k], from = place(&x, sum), to = place(&x, sum + v);
            if (v > 0) {
                nb_buf_printf(
                    b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"20\" fill=\"var(--c%zu)\" stroke=\"var(--card)\"><title>", from,
                    y, to - from, k % COLORS);
                nb_html_text(b, c->kinds[k]);
                nb_buf_printf(b, ": %s</title></rect>", value(t, &c->x, v));
            }
            sum += v;
        }
        nb_buf_printf(b, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", place(&x, sum) + 8, y + 14, value(t, &c->x, sum));
    }
    begin_data(b);
    stack_data(b, c);
    end(b);
}

/* ---- points ---- */

/* Labels beside points, each where none before it lies: right of its point, or further down or up. */
typedef struct label {
    double x, y, width;
} label;

static const char *label_text(const char *name, double *width)
{
    size_t chars = 0, from = strlen(name);

    while (from > 0 && chars < 26) { /* the end of a path says more than its beginning */
        from--;
        while (from > 0 && ((unsigned char)name[from] & 0xc0) == 0x80)
            from--;
        chars++;
    }
    *width = 7.0 * (double)chars;
    return name + from;
}

static label label_place(const label *all, size_t n, double x, double y, double width)
{
    label l = { .x = x + 8, .y = y + 4, .width = width };

    for (int step = 1; step <= 24; step++) {
        size_t i = 0;
        while (i < n && (fabs(all[i].y - l.y) >= 14 || l.x >= all[i].x + all[i].width || all[i].x >= l.x + width))
            i++;
        if (i == n && l.y > TOP + 8 && l.y < H - BOTTOM - 2)
            break;
        l.y = y + 4 + (step % 2 ? 7.0 : -7.0) * (double)((step + 1) / 2);
    }
    return l;
}

void nb_chart_points(nb_buf *b, const nb_points *c)
{
    double xl = INFINITY, xh = -INFINITY, yl = INFINITY, yh = -INFINITY;
    char t[32], u[32], title[256], cx[40], cy[40];
    const char *col[3] = { "", cx, cy };
    label labels[MAX_LABELS];
    size_t n_labels = 0;
    scale x, y;

    for (size_t i = 0; i < c->n; i++) {
        extend(&c->x, c->xs[i], &xl, &xh);
        extend(&c->y, c->ys[i], &yl, &yh);
    }
    if (!c->x.log && xl > 0 && xl < 0.6 * xh)
        xl = 0;
    if (!c->y.log && yl > 0 && yl < 0.6 * yh)
        yl = 0;
    x = make_scale(&c->x, xl, xh, LEFT, WIDE - RIGHT - 110, 9);
    y = make_scale(&c->y, yl, yh, H - BOTTOM, TOP, 5);
    begin(b, c->title, c->about);
    begin_svg(b, c->title, WIDE, H);
    x_axis(b, &c->x, &x, TOP, H - BOTTOM);
    y_axis(b, &c->y, &y, WIDE - RIGHT);
    for (size_t i = 0; i < c->n; i++) {
        if (!shows(&c->x, c->xs[i]) || !shows(&c->y, c->ys[i]))
            continue;
        const double px = place(&x, c->xs[i]), py = place(&y, c->ys[i]);
        double w;
        const char *text = label_text(c->names[i], &w);
        const label l = label_place(labels, n_labels, px, py, w);
        if (n_labels < MAX_LABELS)
            labels[n_labels++] = l;
        snprintf(title, sizeof title, "%.100s: %s, %s", c->names[i], value(t, &c->x, c->xs[i]), value(u, &c->y, c->ys[i]));
        marker(b, i, px, py, title);
        nb_buf_printf(b, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">", l.x, l.y);
        nb_html_text(b, text);
        nb_buf_puts(b, "</text>\n");
    }
    begin_data(b);
    snprintf(cx, sizeof cx, "#%.30s", c->x.label);
    snprintf(cy, sizeof cy, "#%.30s", c->y.label);
    nb_html_table(b, NULL, col, 3);
    for (size_t i = 0; i < c->n; i++) {
        snprintf(cx, sizeof cx, "#%s", value(t, &c->x, c->xs[i]));
        snprintf(cy, sizeof cy, "#%s", value(t, &c->y, c->ys[i]));
        const char *const cells[] = { c->names[i], cx, cy };
        nb_html_row(b, cells, 3);
    }
    nb_html_table_end(b);
    end(b);
}
