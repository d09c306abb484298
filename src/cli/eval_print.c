/* eval_print.c - see eval_print.h. */
#include "cli/eval_print.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

static const char *show(const char *path, char esc[NB_ESC_CAP])
{
    return nb_esc(esc, NB_ESC_CAP, path, strlen(path));
}

static void print_score(const nb_eval_all *a, const nb_eval_score *s, const char *indent)
{
    printf("%sperplexity        %10.4f   95 %% %.4f .. %.4f   (%zu tokens, %.4f nats each)\n", indent, s->ppl.mean, s->ppl.lo, s->ppl.hi,
           s->scored, s->nll.mean);
    if (s->word_ppl > 0)
        printf("%s  per word        %10.4f   bits per byte %.4f\n", indent, s->word_ppl, s->byte_bits);
    if (!a->eval->has_ref)
        return;
    printf("%s  to reference    %10.4f x 95 %% %.4f .. %.4f\n", indent, s->ppl_ratio.mean, s->ppl_ratio.lo, s->ppl_ratio.hi);
    printf("%sKL(ref || model) %s%10.5f   95 %% %.5f .. %.5f   (nats, %zu positions)\n", indent, a->eval->lower_bound ? ">" : " ",
           s->kl.mean, s->kl.lo, s->kl.hi, s->positions);
    printf("%s  median          %10.5f   99 %% %.4f   99.9 %% %.4f   max %.4f\n", indent, s->kl_median.mean, s->kl_99.mean, s->kl_999.mean,
           s->kl_max);
    printf("%stop-1 agreement   %9.2f %%   95 %% %.2f .. %.2f\n", indent, 100 * s->top1.mean, 100 * s->top1.lo, 100 * s->top1.hi);
    printf("%stop-5 agreement   %9.2f %%   95 %% %.2f .. %.2f\n", indent, 100 * s->top5.mean, 100 * s->top5.lo, 100 * s->top5.hi);
}

static void print_choice(const nb_choice_score *c)
{
    printf("  acc               %9.2f %%   95 %% %.2f .. %.2f   (%zu questions, guessing %.2f)\n", 100 * c->acc.mean, 100 * c->acc.lo,
           100 * c->acc.hi, c->n, 100 * c->guess);
    printf("  acc_norm          %9.2f %%   95 %% %.2f .. %.2f", 100 * c->acc_norm.mean, 100 * c->acc_norm.lo, 100 * c->acc_norm.hi);
    if (c->same >= 0)
        printf("   same answer as the reference %.2f %%", 100 * c->same);
    printf("\n");
}

static void print_layers(const nb_layer_errors *e)
{
    printf("  layer   error alone   drift of the residual   (relative, %zu tokens)\n", e->tokens);
    for (size_t l = 0; l < e->n; l++)
        printf("  %5zu   %11.4e   %11.4e\n", l, e->alone[l], e->drift[l]);
}

/* One line a model, when there are several. */
static void print_compare(const nb_eval_all *a)
{
    char esc[NB_ESC_CAP];

    if (a->eval->has_ref)
        printf("  %10s %17s %9s %17s %9s %7s %7s\n", "perplexity", "95 %", "KL", "95 %", "KL 99.9 %", "top-1", "top-5");
    else
        printf("  %10s %17s\n", "perplexity", "95 %");
    for (size_t i = 0; i < a->n_models; i++) {
        const nb_eval_score *s = &a->eval->model[i].all;
        printf("  %10.4f %8.4f-%-8.4f", s->ppl.mean, s->ppl.lo, s->ppl.hi);
        if (a->eval->has_ref)
            printf(" %9.5f %8.5f-%-8.5f %9.4f %7.2f %7.2f", s->kl.mean, s->kl.lo, s->kl.hi, s->kl_999.mean, 100 * s->top1.mean,
                   100 * s->top5.mean);
        printf("  %s\n", show(a->models[i], esc));
    }
}

static void print_eval(const nb_eval_all *a)
{
    const nb_eval *e = a->eval;
    char esc[NB_ESC_CAP];

    printf("%s (%s): %s\n", a->data, a->set->protocol, a->set->about);
    printf("%zu windows, %zu tokens scored; intervals from %zu draws of %s, seed %llu\n\n", a->set->n_win, a->set->scored, e->resamples,
           e->drawn, (unsigned long long)e->seed);
    if (e->has_ref)
        printf("  reference         %10.4f   %s\n", e->ref.all.ppl.mean, show(a->ref, esc));
    if (e->lower_bound)
        printf("  (saved likeliest tokens: KL is a lower bound)\n");
    if (a->n_models > 1)
        print_compare(a);
    for (size_t i = 0; i < a->n_models; i++) {
        const nb_eval_model *m = &e->model[i];
        if (a->n_models == 1)
            print_score(a, &m->all, "  ");
        else if (m->part)
            printf("\n%s\n", show(a->models[i], esc));
        for (size_t p = 0; m->part && p < e->n_parts; p++)
            if (m->part[p].positions) {
                printf("  %s\n", a->set->parts[p]);
                print_score(a, &m->part[p], "    ");
            }
    }
}

void nb_eval_print(const nb_eval_all *a)
{
    char esc[NB_ESC_CAP];

    if (a->n_models == 1)
        printf("%s on ", show(a->models[0], esc));
    if (a->eval)
        print_eval(a);
    if (a->choice) {
        printf("%s%s: multiple choice, lm-eval's rule\n\n", a->eval ? "\n" : "", show(a->choice_file, esc));
        if (a->choice[a->n_models].n) {
            printf("  reference %s\n", show(a->ref, esc));
            print_choice(&a->choice[a->n_models]);
        }
        for (size_t i = 0; i < a->n_models; i++) {
            if (a->n_models > 1 || a->choice[a->n_models].n)
                printf("  %s\n", show(a->models[i], esc));
            print_choice(&a->choice[i]);
        }
    }
    for (size_t i = 0; a->layers && i < a->n_models; i++) {
        if (a->layers[i].n == 0)
            continue;
        printf("\n  %s\n", show(a->models[i], esc));
        print_layers(&a->layers[i]);
    }
}

/* ---- what looks wrong ---- */

static char *next_hint(nb_eval_hints *h)
{
    if (h->n == NB_EVAL_HINTS)
        return NULL;
    h->list[h->n] = h->text[h->n];
    return h->text[h->n++];
}

static void hint_model(const nb_eval_all *a, size_t i, nb_eval_hints *h)
{
    const nb_eval *e = a->eval;
    const nb_eval_score *s = &e->model[i].all;
    char esc[NB_ESC_CAP], *to;

    show(a->models[i], esc);
    if (!e->has_ref && s->ppl.mean > 200 && (to = next_hint(h)))
        snprintf(
            to, sizeof h->text[0],
            "%.160s: a perplexity of %.0f is outside the normal band of prose (4 to 60): a text of another kind or language, the wrong "
            "tokenizer, or broken weights; --ref ORIGINAL tells which, nibble check looks at the weights",
            esc, s->ppl.mean);
    if (e->has_ref && s->ppl_ratio.mean > 1.5 && (to = next_hint(h)))
        snprintf(to, sizeof h->text[0],
                 "%.160s: %.1f times the perplexity of the reference is outside the normal band of 4-bit weights (1.0 to 1.2): look at "
                 "--layers, "
                 "and at nibble check",
                 esc, s->ppl_ratio.mean);
    if (e->has_ref && s->kl.mean > 1 && s->ppl_ratio.mean <= 1.5 && (to = next_hint(h)))
        snprintf(to, sizeof h->text[0], "%.160s: a mean KL of %.2f with a similar perplexity: these seem to be two different models", esc,
                 s->kl.mean);
    for (size_t p = 1; e->has_ref && e->model[i].part && p < e->n_parts; p++) {
        const double x = e->model[i].part[0].kl.mean, y = e->model[i].part[p].kl.mean;
        if (x > 0 && y > 0 && (y > 1.5 * x || x > 1.5 * y) && (to = next_hint(h)))
            snprintf(to, sizeof h->text[0],
                     "%.120s: KL on %.80s is %.1f times that on %.80s; where the calibration text was of one kind only, quantize with both "
                     "kinds",
                     esc, a->set->parts[y > x ? p : 0], y > x ? y / x : x / y, a->set->parts[y > x ? 0 : p]);
    }
}

void nb_eval_hint(nb_eval_all *a, nb_eval_hints *h)
{
    h->n = 0;
    for (size_t i = 0; a->eval && i < a->n_models; i++)
        hint_model(a, i, h);
    a->hints = h->list;
    a->n_hints = h->n;
}
