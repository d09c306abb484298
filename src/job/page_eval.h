/* page_eval.h - the HTML page of an evaluation: `nibble eval --report FILE`. */
#ifndef NB_JOB_PAGE_EVAL_H
#define NB_JOB_PAGE_EVAL_H

#include "base/mem.h"
#include "job/eval_all.h"

/* Append the whole page. program: "nibble 1.0"; the same input gives the same bytes. Look at b->failed. */
void nb_page_eval(nb_buf *b, const nb_eval_all *a, const char *program);

#endif
