/* eval_sum.c - scores of positions to means, quantiles, intervals and curves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/eval_run.h"

enum { FEW = 8, BLOCK = 32 };
enum { BY_DOC, BY_WINDOW, BY_BLOCK };

typedef struct ranked {
    double v;
    uint32_t unit;
} ranked;

/* The positions of one part of the set (or of all of it), and the units they belong to. */
typedef struct subset {
    size_t *at;     /* [n] number among all positions  */
    uint32_t *unit; /* [n]                             */
    uint8_t *scored;
    size_t n, n_scored, n_units;
    int level;
    double *num[5], *den[2]; /* [n_units]: nll, nll - reference, kl, same, among five; scored, positions */
    ranked *rank;            /* [n] */
    double *sorted;
    uint32_t *sorted_unit;
} subset;

static bool inside(const nb_window *w, size_t part)
{
    return part == SIZE_MAX || w->part == part;
}

static int level_of(const nb_evalset *s, size_t part)
{
    size_t docs = 0, windows = 0, last = SIZE_MAX;

    for (size_t i = 0; i < s->n_win; i++) {
        if (!inside(&s->win[i], part))
            continue;
        windows++;
        docs += s->win[i].doc != last;
        last = s->win[i].doc;
    }
    return docs >= FEW ? BY_DOC : windows >= FEW ? BY_WINDOW : BY_BLOCK;
}

static nb_status open_subset(subset *b, const nb_evalset *s, size_t part, nb_err *err)
{
    size_t row0 = 0, last = SIZE_MAX;

    memset(b, 0, sizeof *b);
    b->at = nb_alloc_array(s->positions, sizeof *b->at);
    b->unit = nb_alloc_array(s->positions, sizeof *b->unit);
    b->scored = nb_alloc_array(s->positions, 1);
    if (!b->at || !b->unit || !b->scored)
        return nb_enomem(err, "the scores");
    b->level = level_of(s, part);
    for (size_t i = 0; i < s->n_win; i++) {
        const nb_window *w = &s->win[i];
        const size_t rows = w->feed - (w->first - 1);
        for (size_t r = 0; inside(w, part) && r < rows; r++) {
            const bool fresh = b->level == BY_BLOCK ? r % BLOCK == 0 : r == 0 && (b->level == BY_WINDOW || w->doc != last);
            b->n_units += fresh;
            b->at[b->n] = row0 + r;
            b->unit[b->n] = (uint32_t)(b->n_units - 1);
            b->scored[b->n] = w->first + r < w->n;
            b->n_scored += b->scored[b->n];
            b->n++;
            last = w->doc;
        }
        row0 += rows;
    }
    b->rank = nb_alloc_array(b->n, sizeof *b->rank);
    b->sorted = nb_alloc_array(b->n, sizeof *b->sorted);
    b->sorted_unit = nb_alloc_array(b->n, sizeof *b->sorted_unit);
    bool ok = b->rank && b->sorted && b->sorted_unit;
    for (size_t i = 0; i < NB_LEN(b->num); i++)
        ok = (b->num[i] = nb_calloc(b->n_units, sizeof *b->num[i])) && ok;
    for (size_t i = 0; i < NB_LEN(b->den); i++)
        ok = (b->den[i] = nb_calloc(b->n_units, sizeof *b->den[i])) && ok;
    return ok ? NB_OK : nb_enomem(err, "the scores");
}

static void clear_subset(subset *b)
{
    for (size_t i = 0; i < NB_LEN(b->num); i++)
        nb_free(b->num[i]);
    for (size_t i = 0; i < NB_LEN(b->den); i++)
        nb_free(b->den[i]);
    nb_free(b->at);
    nb_free(b->unit);
    nb_free(b->scored);
    nb_free(b->rank);
    nb_free(b->sorted);
    nb_free(b->sorted_unit);
}

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    if (x->v != y->v)
        return x->v < y->v ? -1 : 1;
    return (x->unit > y->unit) - (x->unit < y->unit);
}

static void sum_units(subset *b, const nb_eval_side *side, const double *ref_nll)
{
    for (size_t i = 0; i < NB_LEN(b->num); i++)
        memset(b->num[i], 0, b->n_units * sizeof *b->num[i]);
    for (size_t i = 0; i < NB_LEN(b->den); i++)
        memset(b->den[i], 0, b->n_units * sizeof *b->den[i]);
    for (size_t i = 0; i < b->n; i++) {
        const size_t at = b->at[i], u = b->unit[i];
        b->den[0][u] += b->scored[i];
        b->den[1][u] += 1;
        b->num[0][u] += side->nll[at];
        if (!side->kl)
            continue;
        b->num[1][u] += side->nll[at] - ref_nll[at];
        b->num[2][u] += side->kl[at];
        b->num[3][u] += side->rank[at] == 0;
        b->num[4][u] += side->rank[at] < 5;
    }
}

static void sort_kl(subset *b, const nb_eval_side *side)
{
    for (size_t i = 0; i < b->n; i++)
        b->rank[i] = (ranked){ side->kl[b->at[i]], b->unit[i] };
    qsort(b->rank, b->n, sizeof *b->rank, by_rank);
    for (size_t i = 0; i < b->n; i++) {
        b->sorted[i] = b->rank[i].v;
        b->sorted_unit[i] = b->rank[i].unit;
    }
}

/* A plain mean in the order of positions, which the resamples do not have. */
static double mean_of(const subset *b, const double *v, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < b->n; i++)
        sum += v[b->at[i]];
    return n ? sum / (double)n : 0;
}

static double spread(const subset *b, const double *v, double mean)
{
    double sum = 0;

    for (size_t i = 0; i < b->n; i++)
        sum += (v[b->at[i]] - mean) * (v[b->at[i]] - mean);
    return b->n > 1 ? sqrt(sum / (double)(b->n - 1) / (double)b->n) : 0;
}

static void distances(subset *b, const nb_eval_work *w, const nb_eval_side *side, nb_eval_score *s)
{
    size_t same = 0, five = 0;

    for (size_t i = 0; i < b->n; i++) {
        same += side->rank[b->at[i]] == 0;
        five += side->rank[b->at[i]] < 5;
    }
    sort_kl(b, side);
    s->kl.mean = mean_of(b, side->kl, b->n);
    s->kl_sem = spread(b, side->kl, s->kl.mean);
    s->top1.mean = (double)same / (double)b->n;
    s->top5.mean = (double)five / (double)b->n;
    s->kl_median.mean = nb_quantile(b->sorted, b->n, 0.5);
    s->kl_99.mean = nb_quantile(b->sorted, b->n, 0.99);
    s->kl_999.mean = nb_quantile(b->sorted, b->n, 0.999);
    s->kl_max = b->sorted[b->n - 1];
    s->ppl_ratio.mean = exp(s->nll.mean - mean_of(b, w->ref.nll, b->n_scored));
}

static nb_status score_subset(subset *b, nb_eval_work *w, const nb_eval_side *side, nb_eval_score *s, nb_err *err)
{
    const nb_boot boot = { .n = b->n_units, .resamples = w->o->resamples ? w->o->resamples : 1000, .seed = w->o->seed, .pool = w->o->pool };
    const nb_ratio nll = { b->num[0], b->den[0] }, more = { b->num[1], b->den[0] }, kl = { b->num[2], b->den[1] },
                   same = { b->num[3], b->den[1] }, five = { b->num[4], b->den[1] };
    const nb_ranks half = { b->sorted, b->sorted_unit, b->n, 0.5 }, r99 = { b->sorted, b->sorted_unit, b->n, 0.99 },
                   r999 = { b->sorted, b->sorted_unit, b->n, 0.999 };
    nb_boot_fn *const fn[] = { nb_boot_ratio, nb_boot_exp_ratio, nb_boot_exp_ratio, nb_boot_ratio,   nb_boot_ratio,
                               nb_boot_ratio, nb_boot_quantile,  nb_boot_quantile,  nb_boot_quantile };
    const void *const ctx[] = { &nll, &nll, &more, &kl, &same, &five, &half, &r99, &r999 };
    nb_mean *const to[] = { &s->nll, &s->ppl, &s->ppl_ratio, &s->kl, &s->top1, &s->top5, &s->kl_median, &s->kl_99, &s->kl_999 };

    memset(s, 0, sizeof *s);
    s->scored = b->n_scored;
    s->positions = b->n;
    s->nll.mean = mean_of(b, side->nll, b->n_scored);
    s->ppl.mean = exp(s->nll.mean);
    if (side->kl)
        distances(b, w, side, s);
    if (!isfinite(s->nll.mean) || !isfinite(s->kl.mean))
        return nb_fail(err, NB_ENUMERIC, "eval.numeric", "", "some logits are not finite; run nibble check on the model");
    sum_units(b, side, w->ref.nll);
    return nb_bootstrap(&boot, fn, ctx, side->kl ? NB_LEN(to) : 2, to, err);
}

/* ---- curves over all positions ---- */

double nb_eval_share(size_t i)
{
    return 1 - pow(2, -(double)i / 3);
}

static void curves(const nb_eval_work *w, const nb_eval_side *side, const subset *all, size_t n_bins, nb_eval_model *m)
{
    double kl[NB_EVAL_BINS] = { 0 }, nll[NB_EVAL_BINS] = { 0 };
    size_t n_kl[NB_EVAL_BINS] = { 0 }, n_nll[NB_EVAL_BINS] = { 0 }, at = 0;

    for (size_t i = 0; i < w->set->n_win; i++) {
        const nb_window *win = &w->set->win[i];
        for (size_t p = win->first - 1; p < win->feed; p++, at++) {
            const size_t bin = p * n_bins / w->set->max_len;
            const bool scored = p + 1 < win->n;
            nll[bin] += side->nll[at];
            n_nll[bin] += scored;
            kl[bin] += side->kl ? side->kl[at] : 0;
            n_kl[bin]++;
        }
    }
    for (size_t i = 0; i < n_bins; i++) {
        m->kl_at[i] = n_kl[i] ? kl[i] / (double)n_kl[i] : (double)NAN;
        m->nll_at[i] = n_nll[i] ? nll[i] / (double)n_nll[i] : (double)NAN;
    }
    for (size_t i = 0; side->kl && i < NB_EVAL_SHARES; i++)
        m->kl_share[i] = nb_quantile(all->sorted, all->n, nb_eval_share(i));
}

static void words(const nb_evalset *s, nb_eval_score *all)
{
    const double total = all->nll.mean * (double)all->scored;

    if (s->words)
        all->word_ppl = exp(total / (double)s->words);
    if (s->bytes)
        all->byte_bits = total / (double)s->bytes / log(2);
}

static nb_status one_model(nb_eval_work *w, const nb_eval_side *side, subset *sub, nb_eval *out, nb_eval_model *m, nb_err *err)
{
    const size_t parts = w->set->n_parts;
    nb_status rc = score_subset(&sub[0], w, side, &m->all, err);

    if (rc == NB_OK) {
        curves(w, side, &sub[0], out->n_bins, m);
        words(w->set, &m->all);
    }
    if (rc != NB_OK || parts < 2)
        return rc;
    m->part = nb_calloc(parts, sizeof *m->part);
    if (!m->part)
        return nb_enomem(err, "the parts");
    for (size_t i = 0; rc == NB_OK && i < parts; i++)
        if (sub[1 + i].n)
            rc = score_subset(&sub[1 + i], w, side, &m->part[i], err);
    return rc;
}

nb_status nb_eval_summarize(nb_eval_work *w, nb_eval *out, nb_err *err)
{
    const size_t n_sub = w->set->n_parts > 1 ? w->set->n_parts + 1 : 1;
    subset *sub = nb_calloc(n_sub, sizeof *sub);
    nb_status rc = sub ? NB_OK : nb_enomem(err, "the parts");

    out->n_models = w->n_models;
    out->n_parts = w->set->n_parts;
    out->max_len = w->set->max_len;
    out->n_bins = w->set->max_len < NB_EVAL_BINS ? w->set->max_len : NB_EVAL_BINS;
    out->has_ref = w->ref.nll != NULL;
    out->lower_bound = w->topk != NULL;
    out->resamples = w->o->resamples ? w->o->resamples : 1000;
    out->seed = w->o->seed;
    for (size_t i = 0; rc == NB_OK && i < n_sub; i++)
        rc = open_subset(&sub[i], w->set, i ? i - 1 : SIZE_MAX, err);
    if (rc == NB_OK) {
        const char *what = sub[0].level == BY_DOC ? w->set->doc_is : sub[0].level == BY_WINDOW ? "window" : "block";
        snprintf(out->drawn, sizeof out->drawn, "%zu %s%s%s", sub[0].n_units, what, sub[0].n_units == 1 ? "" : "s",
                 sub[0].level == BY_BLOCK ? " of 32 positions" : "");
    }
    for (size_t i = 0; rc == NB_OK && i < w->n_models; i++)
        rc = one_model(w, &w->model[i], sub, out, &out->model[i], err);
    if (rc == NB_OK && out->has_ref)
        rc = one_model(w, &w->ref, sub, out, &out->ref, err);
    for (size_t i = 0; sub && i < n_sub; i++)
        clear_subset(&sub[i]);
    nb_free(sub);
    if (rc != NB_OK)
        nb_eval_clear(out);
    return rc;
}

void nb_eval_clear(nb_eval *e)
{
    for (size_t i = 0; i < NB_EVAL_MODELS; i++)
        nb_free(e->model[i].part);
    nb_free(e->ref.part);
    memset(e, 0, sizeof *e);
}
