/* chart.h - charts as SVG inside an HTML page, each a figure with caption, key, text for screen readers and its numbers in a table.
 * `half`: for two beside each other, in a div of class pair. Colours are the variables --c0 .. --c7 of the page; lines differ by marker and dash too. */
#ifndef NB_JOB_CHART_H
#define NB_JOB_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "job/eval_stat.h"

typedef enum nb_unit { NB_UNIT_PLAIN, NB_UNIT_PERCENT, NB_UNIT_BYTES } nb_unit;

typedef struct nb_axis {
    const char *label;
    bool log;
    nb_unit unit; /* PERCENT: values are shares */
    bool whole;   /* ticks at whole numbers only */
    bool zero;    /* from 0, of a y axis that is not log */
} nb_axis;

typedef struct nb_series {
    const char *name;
    const double *y; /* [n_x]; NaN: no point (on a log axis also what is not above 0) */
    bool dashed;
    size_t color; /* 0 .. 7 */
} nb_series;

/* Lines over common x values, ascending. */
typedef struct nb_lines {
    const char *title, *about;
    nb_axis x, y;
    const double *xs;
    size_t n_x;
    const nb_series *series;
    size_t n_series;
    bool half;
} nb_lines;
void nb_chart_lines(nb_buf *b, const nb_lines *c);

/* Horizontal bars from 0 with the interval as a whisker where lo < hi. */
typedef struct nb_bars {
    const char *title, *about;
    nb_axis x;
    const char *const *names;
    const nb_mean *values;
    const size_t *color; /* per bar; NULL: all 0 */
    size_t n;
    bool half;
} nb_bars;
void nb_chart_bars(nb_buf *b, const nb_bars *c);

/* One bar a row, made of kinds one after another: value[row * n_kinds + kind]. Kinds beyond 8 share colours. */
typedef struct nb_stack {
    const char *title, *about;
    nb_axis x;
    const char *const *rows, *const *kinds;
    const double *value;
    size_t n_rows, n_kinds;
} nb_stack;
void nb_chart_stack(nb_buf *b, const nb_stack *c);

/* Named points. */
typedef struct nb_points {
    const char *title, *about;
    nb_axis x, y;
    const char *const *names;
    const double *xs, *ys;
    size_t n;
} nb_points;
void nb_chart_points(nb_buf *b, const nb_points *c);

#endif
