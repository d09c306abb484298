/* eval_run.h - inside of an evaluation: what is open while windows run, and the walk over them. Not for callers of eval.h. */
#ifndef NB_JOB_EVAL_RUN_H
#define NB_JOB_EVAL_RUN_H

#include "job/eval.h"
#include "model/exec.h"

typedef struct nb_eval_side {
    nb_model *model;
    nb_exec *exec;
    double *nll, *kl; /* [positions] of the set; 0 where no id follows */
    uint8_t *rank;    /* at most 255 */
} nb_eval_side;

typedef struct nb_eval_work {
    const nb_eval_opts *o;
    const nb_evalset *set;
    const nb_topk *topk;
    nb_eval_side model[NB_EVAL_MODELS], ref;
    size_t n_models, vocab, piece, n_pages;
    uint32_t *pages, *pos, *seq;
    uint8_t *want;
    float *logits, *ref_logits; /* [piece][vocab] */
} nb_eval_work;

/* Tokens [base, base + m) of a window; its first position with a distance has number row0 among all. */
typedef struct nb_eval_piece {
    const nb_window *win;
    size_t window, base, m, row0;
} nb_eval_piece;
size_t nb_eval_piece_rows(const nb_eval_piece *p);             /* rows with logits */
size_t nb_eval_piece_at(const nb_eval_piece *p);               /* number of the first of them among all positions */
size_t nb_eval_piece_next(const nb_eval_piece *p, size_t row); /* the id that follows, SIZE_MAX: none */

/* Close in any case. */
nb_status nb_eval_work_open(nb_eval_work *w, const nb_eval_opts *o, nb_model *const *m, size_t n, nb_model *ref, const nb_topk *topk,
                            nb_err *err);
void nb_eval_work_close(nb_eval_work *w);
/* The piece through one executor; logits [rows][vocab]. */
nb_status nb_eval_piece_run(nb_eval_work *w, const nb_eval_piece *p, nb_exec *x, float *logits, nb_err *err);
/* fn for every piece of windows [first, end), with progress and cancelling. */
typedef nb_status nb_eval_piece_fn(void *user, nb_eval_work *w, const nb_eval_piece *p, nb_err *err);
nb_status nb_eval_windows(nb_eval_work *w, size_t first, size_t end, nb_eval_piece_fn *fn, void *user, nb_err *err);
/* eval_sum.c: the numbers of all positions. */
nb_status nb_eval_summarize(nb_eval_work *w, nb_eval *out, nb_err *err);

#endif
