/* sampler.c - logits to one id. Full sorts are avoided: only the tokens that can survive are ordered, with the result of a
 * full sort by (logit descending, id ascending) (SMP-4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

typedef struct cand {
    float logit;
    int32_t id;
} cand;

struct nb_sampler {
    size_t vocab;
    cand *kept;          /* [vocab] */
    unsigned char *seen; /* [(vocab + 7) / 8] */
};

nb_status nb_sampler_open(size_t vocab, nb_sampler **out, nb_err *err)
{
    nb_sampler *s = nb_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return nb_enomem(err, "the sampler");
    s->vocab = vocab;
    s->kept = nb_alloc_array(vocab, sizeof *s->kept);
    s->seen = nb_calloc((vocab + 7) / 8, 1);
    if (!s->kept || !s->seen) {
        nb_sampler_close(s);
        return nb_enomem(err, "the sampler");
    }
    *out = s;
    return NB_OK;
}

void nb_sampler_close(nb_sampler *s)
{
    if (!s)
        return;
    nb_free(s->kept);
    nb_free(s->seen);
    nb_free(s);
}

int32_t nb_argmax(const float *logits, size_t v)
{
    size_t best = 0;

    for (size_t i = 1; i < v; i++)
        if (logits[i] > logits[best] || (isnan(logits[best]) && !isnan(logits[i])))
            best = i;
    return (int32_t)best;
}

nb_status nb_sampling_check(const nb_sampling *p, nb_err *err)
{
    if (!(p->temperature >= 0 && isfinite(p->temperature)))
        return nb_fail(err, NB_EARG, "sample.temperature", "", "temperature is %g, expected a finite number from 0",
                       (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return nb_fail(err, NB_EARG, "sample.top_p", "", "top_p is %g, expected a number above 0 and at most 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return nb_fail(err, NB_EARG, "sample.min_p", "", "min_p is %g, expected a number from 0 to 1", (double)p->min_p);
    if (p->top_k < -1)
        return nb_fail(err, NB_EARG, "sample.top_k", "", "top_k is %d, expected -1, 0 or a positive number", p->top_k);
    if (!(p->repetition_penalty > 0 && isfinite(p->repetition_penalty)))
        return nb_fail(err, NB_EARG, "sample.repetition_penalty", "", "repetition_penalty is %g, expected a number above 0",
                       (double)p->repetition_penalty);
    return NB_OK;
}

static void penalize(nb_sampler *s, float *logits, float penalty, const int32_t *history, size_t n)
{
    memset(s->seen, 0, (s->vocab + 7) / 8);
    for (size_t i = 0; i < n; i++) {
        const size_t id = (size_t)history[i];
        if (history[i] < 0 || id >= s->vocab || (s->seen[id / 8] >> id % 8 & 1))
            continue;
        s->seen[id / 8] |= (unsigned char)(1u << id % 8);
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* Largest logit first, lowest id among equals. */
static int by_rank(const void *pa, const void *pb)
{
    const cand *a = pa, *b = pb;

    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* The k-th largest logit of c[n] (1 <= k <= n); reorders c. */
static float kth_largest(cand *c, size_t n, size_t k)
{
    size_t lo = 0, hi = n - 1;

    while (lo < hi) {
        const float pivot = c[lo + (hi - lo) / 2].logit;
        size_t i = lo, j = hi;
        while (i <= j) {
            while (c[i].logit > pivot)
                i++;
            while (c[j].logit < pivot)
                j--;
            if (i <= j) {
                const cand t = c[i];
                c[i] = c[j];
                c[j] = t;
                i++;
                if (j == 0)
                    break;
                j--;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return c[k - 1].logit;
}

/* Tokens that pass min_p and top_k, ties at the border kept, in rank order. Returns how many. */
static size_t keep(nb_sampler *s, const float *logits, const nb_sampling *p, float top)
{
    const float floor_logit = p->min_p > 0 ? top + logf(p->min_p) : -INFINITY;
    size_t n = 0;

    for (size_t i = 0; i < s->vocab; i++)
        if (logits[i] > -INFINITY && logits[i] >= floor_logit)
            s->kept[n++] = (cand){ logits[i], (int32_t)i };
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        const float border = kth_largest(s->kept, n, (size_t)p->top_k);
        size_t m = 0;
        for (size_t i = 0; i < n; i++)
            if (s->kept[i].logit >= border)
                s->kept[m++] = s->kept[i];
        n = m;
    }
    qsort(s->kept, n, sizeof *s->kept, by_rank);
    return n;
}

/* Cut to the nucleus and draw one of kept[n]. u in [0, 1). */
static int32_t draw(const cand *kept, size_t n, float top, float top_p, double u)
{
    double total = 0, sum = 0, want;
    size_t last = 0;

    for (size_t i = 0; i < n; i++)
        total += exp((double)kept[i].logit - (double)top);
    while (last < n) { /* the token that crosses the threshold is kept */
        sum += exp((double)kept[last++].logit - (double)top);
        if (top_p < 1 && sum >= (double)top_p * total)
            break;
    }
    want = u * sum;
    sum = 0;
    for (size_t i = 0; i < last; i++) {
        sum += exp((double)kept[i].logit - (double)top);
        if (sum > want)
            return kept[i].id;
    }
    return kept[last - 1].id;
}

nb_status nb_sampler_pick(nb_sampler *s, float *logits, const nb_sampling *p, const int32_t *history, size_t n_history, uint64_t index,
                          int32_t *out, nb_err *err)
{
    float t = p->temperature;
    float top;
    size_t n;
    nb_status rc = nb_sampling_check(p, err);

    if (rc != NB_OK)
        return rc;
    for (size_t i = 0; i < s->vocab; i++)
        if (isnan(logits[i]))
            return nb_fail(err, NB_ENUMERIC, "sample.numeric", "", "logit %zu is not a number; the model or its weights are broken", i);
    if (p->repetition_penalty != 1)
        penalize(s, logits, p->repetition_penalty, history, n_history);
    *out = nb_argmax(logits, s->vocab);
    top = logits[*out];
    if (!isfinite(top))
        return nb_fail(err, NB_ENUMERIC, "sample.numeric", "", "the largest logit is %g; the model or its weights are broken", (double)top);
    if (t < 1e-5f)
        return NB_OK;
    t = t < 0.01f ? 0.01f : t;
    for (size_t i = 0; i < s->vocab; i++)
        logits[i] /= t;
    top = logits[*out];
    n = keep(s, logits, p, top);
    *out = draw(s->kept, n, top, p->top_p, nb_rng_uniform(p->seed, 0, index));
    return NB_OK;
}
