/* page_quant.h - the HTML page of a quantization: `nibble quantize --report FILE`. It listens to on_plan, on_row, on_layer.
 *
 *   nb_qpage *p; nb_qpage_open(&p, path, force, err);      before the job: a path that cannot be written is found early
 *   nb_qpage_plan(p, plan); nb_qpage_row(p, row) ...       in the callbacks; what is needed is copied, errors stick
 *   nb_qpage_finish(p, &words, result, err);               after it; or nb_qpage_close(p), which writes nothing */
#ifndef NB_JOB_PAGE_QUANT_H
#define NB_JOB_PAGE_QUANT_H

#include <stdbool.h>

#include "base/err.h"
#include "job/quantize.h"

typedef struct nb_qpage nb_qpage;

typedef struct nb_qpage_words {
    const char *model, *out; /* as typed */
    const char *program;     /* "nibble 1.0" */
    const nb_quantize_opts *o;
} nb_qpage_words;

/* NB_EEXISTS when path is there and !force. */
nb_status nb_qpage_open(nb_qpage **out, const char *path, bool force, nb_err *err);
void nb_qpage_plan(nb_qpage *p, const nb_quantize_plan *plan);
void nb_qpage_row(nb_qpage *p, const nb_quantize_row *row);
void nb_qpage_layer(nb_qpage *p, const nb_quantize_layer *layer);
/* Writes the page under its name and frees p, in any case. */
nb_status nb_qpage_finish(nb_qpage *p, const nb_qpage_words *w, const nb_quantize_result *res, nb_err *err);
void nb_qpage_close(nb_qpage *p); /* NULL is fine */

#endif
