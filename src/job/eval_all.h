/* eval_all.h - everything `nibble eval` found out in one run, for the table, the JSON and the HTML page. Views only. */
#ifndef NB_JOB_EVAL_ALL_H
#define NB_JOB_EVAL_ALL_H

#include "job/eval.h"
#include "job/eval_choice.h"
#include "job/eval_layers.h"
#include "job/inspect.h"

typedef struct nb_eval_all {
    size_t n_models;
    const char *const *models; /* [n_models] as typed */
    const char *ref;           /* as typed, or the file of saved logits; NULL: none */
    const nb_inspect *what;    /* [n_models + 1], the reference last; NULL: not known */
    const char *data;          /* what was read, for people */
    const nb_evalset *set;     /* NULL with eval: only choices */
    const nb_eval *eval;
    const char *choice_file;       /* NULL: none      */
    const nb_choice_score *choice; /* [n_models + 1], the reference last */
    const nb_layer_errors *layers; /* [n_models], or NULL */
    const char *const *hints;      /* sentences about results that look wrong */
    size_t n_hints;
} nb_eval_all;

#endif
