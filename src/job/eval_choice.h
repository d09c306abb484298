/* eval_choice.h - multiple choice by log-likelihood, with the rule of EleutherAI's lm-evaluation-harness.
 *
 * A question is a line of a .jsonl file: a context ("query", "context", "question", "prompt" or "ctx"), its answers ("choices" or "endings": strings,
 * or {"text": [...], "label": [...]}) and the right one ("gold", "answer", "label" or "answerKey": an index from 0, a letter A-Z,
 * or one of the labels). The likelihood of an answer is that of " " + answer behind the context ("" before the answer when the context
 * ends in white space, which then counts to the answer), split where the tokens of context + answer go beyond those of
 * the context. acc: the answer of highest log-likelihood is right; acc_norm: of highest log-likelihood per character. Of equal
 * ones the first counts. Too long inputs lose ids at the front. The tokenizer's BOS stands in front where it has one. */
#ifndef NB_JOB_EVAL_CHOICE_H
#define NB_JOB_EVAL_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "job/eval.h"

typedef struct nb_choice { /* one answer */
    size_t at, n, first;   /* ids[at .. at + n), those from at + first on are the answer */
    size_t chars;          /* of the answer, without the space in front */
} nb_choice;

typedef struct nb_choiceset {
    nb_choice *choice;    /* all answers, question after question */
    size_t *begin, *gold; /* [n + 1] first answer of a question; [n] the right one */
    size_t n, n_choices, max_len;
    nb_ids ids;
} nb_choiceset;

typedef struct nb_choice_score {
    size_t n;
    nb_mean acc, acc_norm; /* intervals by bootstrap over questions */
    double se, se_norm;    /* standard errors as lm-eval states them: sqrt(p (1 - p) / (n - 1)) */
    double same;           /* share of questions answered as the reference does (acc), -1: no reference */
    double guess;          /* mean of 1 / number of answers */
} nb_choice_score;

typedef struct nb_choice_opts {
    size_t context; /* of the model; 0: unknown */
    int32_t prefix; /* stands for an empty context where the tokenizer has no BOS (its BOS or EOS id); -1: none */
    size_t limit;   /* questions at most, 0: all */
} nb_choice_opts;

/* NB_EFORMAT "choice.line" names line and member, "json.*"; NB_EOPEN. The caller clears in any case. */
nb_status nb_choiceset_read(nb_choiceset *s, const nb_tokenizer *t, const char *path, const nb_choice_opts *o, nb_err *err);
void nb_choiceset_clear(nb_choiceset *s);
/* ll[n_choices]: sums of log-likelihoods, float64. */
nb_status nb_choice_run(nb_model *m, const nb_choiceset *s, const nb_eval_opts *o, double *ll, nb_err *err);
/* Accuracy of log-likelihoods; ref_ll may be NULL. */
nb_status nb_choice_sum(const nb_choiceset *s, const double *ll, const double *ref_ll, const nb_eval_opts *o, nb_choice_score *out,
                        nb_err *err);

#endif
