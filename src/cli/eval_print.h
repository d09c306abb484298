/* eval_print.h - results of an evaluation as a table for people, and sentences about results that look wrong. */
#ifndef NB_CLI_EVAL_PRINT_H
#define NB_CLI_EVAL_PRINT_H

#include "job/eval_all.h"

void nb_eval_print(const nb_eval_all *a); /* to stdout */

enum { NB_EVAL_HINTS = 8 };
typedef struct nb_eval_hints {
    char text[NB_EVAL_HINTS][512];
    const char *list[NB_EVAL_HINTS];
    size_t n;
} nb_eval_hints;
/* Perplexities outside the normal band, a model far from its reference, files that differ: into h and a->hints. */
void nb_eval_hint(nb_eval_all *a, nb_eval_hints *h);

#endif
