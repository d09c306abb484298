/* quantize_view.h - what `nibble quantize` shows: the plan, a bar or a line per linear, --json, --log, --report. */
#ifndef NB_CLI_QUANTIZE_VIEW_H
#define NB_CLI_QUANTIZE_VIEW_H

#include <stdio.h>

#include "cli/cli.h"
#include "cli/coverage.h"
#include "job/page_quant.h"
#include "job/quantize.h"

typedef struct nb_qview {
    nb_cli *cli;
    const nb_quantize_opts *o;
    nb_json *rows; /* with --json */
    nb_json *plan; /* with --json and --plan-only, or a log */
    FILE *log;     /* --log */
    nb_coverage cover;
    nb_qpage *page; /* --report */
    bool failed;    /* no memory for them */
} nb_qview;

/* Callbacks of nb_quantize_opts; user is the view. */
void nb_qview_plan(void *user, const nb_quantize_plan *p);
void nb_qview_row(void *user, const nb_quantize_row *r);
void nb_qview_layer(void *user, const nb_quantize_layer *l);

/* --log FILE: one JSON object a line, "plan", then "module" each and "layer" behind those of one. NB_EWRITE. */
nb_status nb_qview_open_log(nb_qview *v, const char *path, nb_err *err);
/* The last line of the log; whether all of it was written. */
nb_status nb_qview_close_log(nb_qview *v, const char *path, const nb_quantize_result *res, nb_err *err);
/* The summary; with --json the whole result on stdout. */
nb_status nb_qview_finish(nb_qview *v, const char *out, const nb_quantize_result *res, nb_err *err);

#endif
