/* sampler.c - logits to one id. Nothing is sorted in whole: tokens are put in order (logit descending, id ascending) from the top
 * down, band by band, only as far as the settings and the draw need; the result is that of a full sort (SMP-4). */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"

enum { SMALL_SORT = 256 };

typedef struct cand {
    float x, w; /* logit over temperature, exp(x - top) */
    int32_t id;
} cand;

struct nb_sampler {
    size_t vocab;
    const nb_kern *kern;
    cand *kept, *spare; /* [vocab] the beginning of the order */
    size_t n_kept;
    float below, width; /* everything not below this is in kept; width of the next band */
    float *w, *raw;     /* [vocab] */
    uint32_t *count;    /* [vocab] of penalties; all 0 between calls */
};

nb_status nb_sampler_open(size_t vocab, nb_sampler **out, nb_err *err)
{
    nb_sampler *s = nb_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return nb_enomem(err, "the sampler");
    s->vocab = vocab;
    s->kern = nb_kern_pick(nb_cpu_features());
    s->kept = nb_alloc_array(vocab, sizeof *s->kept);
    s->spare = nb_alloc_array(vocab, sizeof *s->spare);
    s->w = nb_alloc_array(vocab, sizeof *s->w);
    s->raw = nb_alloc_array(vocab, sizeof *s->raw);
    s->count = nb_calloc(vocab, sizeof *s->count);
    if (!s->kept || !s->spare || !s->w || !s->raw || !s->count) {
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
    nb_free(s->spare);
    nb_free(s->w);
    nb_free(s->raw);
    nb_free(s->count);
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
    const struct {
        const char *cls, *want;
        float value;
        bool ok;
    } rows[] = {
        { "sample.temperature", "a finite number from 0", p->temperature, p->temperature >= 0 && isfinite(p->temperature) },
        { "sample.top_p", "a number above 0 and at most 1", p->top_p, p->top_p > 0 && p->top_p <= 1 },
        { "sample.min_p", "a number from 0 to 1", p->min_p, p->min_p >= 0 && p->min_p <= 1 },
        { "sample.typical_p", "a number from 0 to 1", p->typical_p, p->typical_p >= 0 && p->typical_p <= 1 },
        { "sample.top_k", "-1, 0 or a positive number", (float)p->top_k, p->top_k >= -1 },
        { "sample.repetition_penalty", "a number above 0", p->repetition_penalty,
          p->repetition_penalty > 0 && isfinite(p->repetition_penalty) },
        { "sample.presence_penalty", "a number from -2 to 2", p->presence_penalty, p->presence_penalty >= -2 && p->presence_penalty <= 2 },
        { "sample.frequency_penalty", "a number from -2 to 2", p->frequency_penalty,
          p->frequency_penalty >= -2 && p->frequency_penalty <= 2 },
    };

    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (!rows[i].ok)
            return nb_fail(err, NB_EARG, rows[i].cls, "", "%s is %g, expected %s", rows[i].cls + 7, (double)rows[i].value, rows[i].want);
    return NB_OK;
}

/* ---- log-probabilities ---- */

static bool ranks_before(float a, int32_t a_id, float b, int32_t b_id)
{
    return a > b || (a == b && a_id < b_id);
}

static float logprob_of(float x, float top, double log_sum)
{
    const float below = x - top; /* of finite ones too it may be -Inf */

    return below > -INFINITY ? (float)((double)below - log_sum) : -9999.0f;
}

static uint32_t rank_of(const nb_sampler *s, const float *logits, int32_t id)
{
    uint32_t rank = 1;

    for (size_t i = 0; i < s->vocab; i++)
        rank += ranks_before(logits[i], (int32_t)i, logits[id], id);
    return rank;
}

/* Put id where it belongs among list[n], of which at most cap are kept: the likelier first, of equals the lower id. Returns how many
 * there are now. */
static size_t put_in_order(nb_logprob *list, size_t n, size_t cap, const float *logits, int32_t id)
{
    size_t at = n;

    while (at > 0 && ranks_before(logits[id], id, logits[list[at - 1].id], list[at - 1].id))
        at--;
    if (at == cap)
        return n;
    n += n < cap;
    memmove(list + at + 1, list + at, (n - at - 1) * sizeof *list);
    list[at].id = id;
    return n;
}

nb_status nb_sampler_logprobs(nb_sampler *s, const float *logits, int32_t id, const int32_t *named, size_t n, nb_logprob *lp, nb_err *err)
{
    float top;
    const size_t best = s->kern->row_max(logits, s->vocab, &top);
    double log_sum;
    size_t found = 0;
    nb_logprob *list = lp + 1;

    if (best == s->vocab || !isfinite(top))
        return nb_fail(err, NB_ENUMERIC, "sample.numeric", "SMP-5", "a row of logits is not finite; the model or its weights are broken");
    log_sum = log(s->kern->exp_sum(s->w, logits, top, s->vocab));
    lp[0] = (nb_logprob){ id, logprob_of(logits[id], top, log_sum), rank_of(s, logits, id) };
    for (size_t i = 0; named && i < n; i++)
        found = put_in_order(list, found, n, logits, named[i]);
    for (size_t i = 0; !named && n > 0 && i < s->vocab; i++)
        if (found < n || logits[i] > logits[list[n - 1].id])
            found = put_in_order(list, found, n, logits, (int32_t)i);
    for (size_t i = 0; i < found; i++)
        list[i] = (nb_logprob){ list[i].id, logprob_of(logits[list[i].id], top, log_sum),
                                named ? rank_of(s, logits, list[i].id) : (uint32_t)i + 1 };
    for (size_t i = found; i < n; i++) /* a vocabulary smaller than the list */
        list[i] = (nb_logprob){ -1, -9999.0f, 0 };
    return NB_OK;
}

/* ---- steps 1 to 6: what changes single logits ---- */

static void keep_only(float *logits, size_t vocab, const uint32_t *bits)
{
    for (size_t i = 0; i < vocab; i++)
        if (!(bits[i / 32] >> i % 32 & 1))
            logits[i] = -INFINITY;
}

static void forbid(nb_sampler *s, float *logits, int32_t id)
{
    if (id >= 0 && (size_t)id < s->vocab)
        logits[id] = -INFINITY;
}

static void forbid_words(nb_sampler *s, float *logits, const nb_draw *d)
{
    for (size_t i = 0; i < d->n_bad_words; i++) {
        const nb_word *w = &d->bad_words[i];
        const size_t before = w->n - 1; /* these match the end of what was drawn */
        if (w->n > 0 && before <= d->n_ids - d->n_prompt &&
            (before == 0 || memcmp(d->ids + d->n_ids - before, w->ids, before * sizeof *w->ids) == 0))
            forbid(s, logits, w->ids[before]);
    }
}

static float at_most(float x, float bound)
{
    return x < -bound ? -bound : x > bound ? bound : x;
}

static void penalize(nb_sampler *s, float *logits, const nb_draw *d)
{
    const nb_sampling *p = d->p;
    const size_t from = p->repetition_penalty != 1 ? 0 : d->n_prompt;

    for (size_t i = from; i < d->n_ids; i++) { /* repetition: once for every id, wherever it was */
        const size_t id = (size_t)d->ids[i];
        if (s->count[id]++ == 0 && p->repetition_penalty != 1)
            logits[id] = logits[id] > 0 ? logits[id] / p->repetition_penalty : logits[id] * p->repetition_penalty;
    }
    for (size_t i = from; i < d->n_ids; i++)
        s->count[(size_t)d->ids[i]] = 0;
    if (p->frequency_penalty == 0 && p->presence_penalty == 0)
        return;
    for (size_t i = d->n_prompt; i < d->n_ids; i++)
        s->count[(size_t)d->ids[i]]++;
    for (size_t i = d->n_prompt; i < d->n_ids; i++) {
        const size_t id = (size_t)d->ids[i];
        if (s->count[id]) {
            logits[id] -= p->frequency_penalty * (float)s->count[id];
            logits[id] -= p->presence_penalty;
        }
        s->count[id] = 0;
    }
}

/* Does any step after the snapshot change the row? */
static bool adjusted(const nb_draw *d)
{
    return d->allowed || d->n_bad_words || d->n_bias || d->n_ids - d->n_prompt < d->min_tokens || d->p->repetition_penalty != 1 ||
           d->p->frequency_penalty != 0 || d->p->presence_penalty != 0;
}

static void adjust(nb_sampler *s, float *logits, const nb_draw *d)
{
    if (d->allowed)
        keep_only(logits, s->vocab, d->allowed);
    forbid_words(s, logits, d);
    if (d->n_ids - d->n_prompt < d->min_tokens)
        for (size_t i = 0; i < d->n_stop_ids; i++)
            forbid(s, logits, d->stop_ids[i]);
    for (size_t i = 0; i < d->n_bias; i++)
        logits[d->bias[i].id] += at_most(d->bias[i].value, 100);
    if (d->p->repetition_penalty != 1 || d->p->frequency_penalty != 0 || d->p->presence_penalty != 0)
        penalize(s, logits, d);
}

/* ---- the order, from the top down ---- */

static int by_rank(const void *pa, const void *pb)
{
    const cand *a = pa, *b = pb;

    if (a->x != b->x)
        return a->x > b->x ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Bits that ascend while x descends. -0 and 0 are one value. */
static uint32_t descending(float x)
{
    uint32_t u;

    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

/* c[n] by rank; ids ascend before. Few: compare; many: three passes of a stable radix sort. */
static void sort_band(cand *c, cand *spare, size_t n)
{
    cand *from = c, *to = spare;

    if (n <= SMALL_SORT) {
        qsort(c, n, sizeof *c, by_rank);
        return;
    }
    for (int shift = 0; shift < 32; shift += 11) {
        size_t start[2048] = { 0 }, at = 0;
        for (size_t i = 0; i < n; i++)
            start[descending(from[i].x) >> shift & 2047]++;
        for (size_t b = 0; b < 2048; b++) {
            const size_t k = start[b];
            start[b] = at;
            at += k;
        }
        for (size_t i = 0; i < n; i++)
            to[start[descending(from[i].x) >> shift & 2047]++] = from[i];
        from = to;
        to = from == c ? spare : c;
    }
    memcpy(c, from, n * sizeof *c); /* three passes end in spare */
}

static void order_begin(nb_sampler *s)
{
    s->n_kept = 0;
    s->below = INFINITY;
    s->width = 4;
}

/* Put the next band in order. false: there is nothing below. x[vocab]: logits over temperature. */
static bool order_more(nb_sampler *s, const float *x, float top)
{
    const size_t had = s->n_kept;

    while (s->n_kept == had) {
        const float hi = s->below, lo = s->width < 1e30f ? top - s->width : -INFINITY;
        if (hi == -INFINITY)
            return false;
        for (size_t i = 0; i < s->vocab; i++)
            if (x[i] >= lo && x[i] < hi && x[i] > -INFINITY)
                s->kept[s->n_kept++] = (cand){ x[i], s->w[i], (int32_t)i };
        s->below = lo;
        s->width = s->width < 64 ? s->width * 2 : INFINITY;
    }
    sort_band(s->kept + had, s->spare, s->n_kept - had);
    return true;
}

/* Order of everything that passes min_p and top_k (ties at its border kept). Returns how many, their weight in *total. */
static size_t cut(nb_sampler *s, const float *x, float top, const nb_sampling *p, double *total)
{
    const size_t k = p->top_k > 0 ? (size_t)p->top_k : SIZE_MAX;
    size_t n = 0;

    *total = 0;
    for (;; n++) {
        if (n == s->n_kept && !order_more(s, x, top))
            break;
        if (s->kept[n].w < p->min_p || (n >= k && s->kept[n].x < s->kept[k - 1].x))
            break;
        *total += (double)s->kept[n].w;
    }
    return n;
}

/* Locally typical sampling (Meister et al. 2022): the tokens whose surprise is closest to the entropy, up to a mass of typical_p. The
 * kept ones come first, in their order; returns how many. */
static size_t typical(nb_sampler *s, size_t n, double *total, float typical_p)
{
    double entropy = 0, sum = 0, mass = 0;
    size_t m = 0, out = 0;

    for (size_t i = 0; i < n; i++)
        if (s->kept[i].w > 0)
            entropy -= (double)s->kept[i].w / *total * log((double)s->kept[i].w / *total);
    for (size_t i = 0; i < n; i++) { /* x: how far from typical; id: place in kept */
        const double p = (double)s->kept[i].w / *total;
        s->spare[i] = (cand){ p > 0 ? (float)-fabs(-log(p) - entropy) : -INFINITY, s->kept[i].w, (int32_t)i };
    }
    qsort(s->spare, n, sizeof *s->spare, by_rank);
    while (m < n) {
        sum += (double)s->spare[m++].w;
        if (sum >= (double)typical_p * *total)
            break;
    }
    for (size_t i = 0; i < m; i++)
        s->spare[i].x = -(float)s->spare[i].id; /* back into the order of kept */
    qsort(s->spare, m, sizeof *s->spare, by_rank);
    for (size_t i = 0; i < m; i++) {
        s->kept[out++] = s->kept[s->spare[i].id];
        mass += (double)s->kept[out - 1].w;
    }
    *total = mass;
    return m;
}

/* Cut to the nucleus and draw with u in [0, 1). n: how many are kept, SIZE_MAX: all, put in order as far as needed. */
static int32_t draw(nb_sampler *s, const float *x, float top, size_t n, double total, float top_p, double u)
{
    const double enough = (double)top_p * total;
    double sum = 0, want;
    size_t last = 0, i = 0;

    if (top_p < 1) {
        while (last < n && (last < s->n_kept || order_more(s, x, top))) {
            sum += (double)s->kept[last++].w;
            if (sum >= enough) /* the token that crosses the threshold is kept */
                break;
        }
        n = last;
        total = sum;
    }
    want = u * total;
    sum = 0;
    for (; i < n && (i < s->n_kept || order_more(s, x, top)); i++) {
        sum += (double)s->kept[i].w;
        if (sum > want)
            return s->kept[i].id;
    }
    while (i > 1 && s->kept[i - 1].w == 0) /* rounding of the sums: the last one that can be drawn */
        i--;
    return s->kept[i - 1].id;
}

/* The nucleus of the n kept ones: how many, their weight in *total. */
static size_t nucleus(const nb_sampler *s, size_t n, float top_p, double *total)
{
    const double enough = (double)top_p * *total;
    double sum = 0;
    size_t last = 0;

    while (last < n && sum < enough)
        sum += (double)s->kept[last++].w;
    *total = sum;
    return last;
}

/* llama.cpp's chain (SMP-3): every cut at temperature 1, which comes last. */
static int32_t sample_late(nb_sampler *s, float *x, float top, float t, const nb_sampling *p, double u)
{
    nb_sampling only_k = *p;
    double total;
    size_t n;

    only_k.min_p = 0;
    s->kern->exp_sum(s->w, x, top, s->vocab);
    order_begin(s);
    n = cut(s, x, top, &only_k, &total);
    if (!isfinite(top / t)) /* all others are infinitely far below */
        return s->kept[0].id;
    if (p->typical_p > 0 && p->typical_p < 1)
        n = typical(s, n, &total, p->typical_p);
    if (p->top_p < 1)
        n = nucleus(s, n, p->top_p, &total);
    while (n > 1 && s->kept[n - 1].w < p->min_p * s->kept[0].w)
        n--;
    for (size_t i = 0; i < n; i++)
        x[i] = s->kept[i].x / t;
    total = s->kern->exp_sum(s->w, x, x[0], n);
    for (size_t i = 0; i < n; i++)
        s->kept[i].w = s->w[i];
    return draw(s, x, x[0], n, total, 1, u);
}

/* best: where `top` is, the first of equals. */
static int32_t sample(nb_sampler *s, float *x, size_t best, float top, const nb_draw *d)
{
    const nb_sampling *p = d->p;
    const float t = p->temperature < 0.01f ? 0.01f : p->temperature;
    const double u = nb_rng_uniform(p->seed, 0, (uint64_t)(d->n_ids - d->n_prompt) | d->choice << 32);
    const bool is_typical = p->typical_p > 0 && p->typical_p < 1;
    size_t n = SIZE_MAX;
    float top_p = p->top_p;
    double total;

    if (p->late_temperature && (is_typical || p->top_p < 1 || p->min_p > 0 || p->top_k > 0)) /* without a cut there is no order */
        return sample_late(s, x, top, t, p, u);
    if (!isfinite(top / t)) /* all others are infinitely far below */
        return (int32_t)best;
    for (size_t i = 0; i < s->vocab; i++)
        x[i] /= t;
    top /= t;
    total = s->kern->exp_sum(s->w, x, top, s->vocab);
    order_begin(s);
    if (p->min_p > 0 || p->top_k > 0 || is_typical)
        n = cut(s, x, top, p, &total);
    if (is_typical && top_p < 1) { /* the nucleus first */
        n = nucleus(s, n, top_p, &total);
        top_p = 1;
    }
    if (is_typical)
        n = typical(s, n, &total, p->typical_p);
    return draw(s, x, top, n, total, top_p, u);
}

static nb_status not_finite(const nb_sampler *s, size_t best, float top, nb_err *err)
{
    if (best == s->vocab)
        return nb_fail(err, NB_ENUMERIC, "sample.numeric", "SMP-5", "a logit is not a number; the model or its weights are broken");
    if (!isfinite(top))
        return nb_fail(err, NB_ENUMERIC, "sample.numeric", "SMP-5", "the largest logit is %g; the model, its weights or a mask are broken",
                       (double)top);
    return NB_OK;
}

nb_status nb_sampler_pick(nb_sampler *s, float *logits, const nb_draw *d, int32_t *out, nb_logprob *lp, nb_err *err)
{
    float top;
    size_t best = s->kern->row_max(logits, s->vocab, &top);
    nb_status rc = not_finite(s, best, top, err);

    if (rc != NB_OK)
        return rc;
    if (d->mask)
        keep_only(logits, s->vocab, d->mask);
    if (d->logprobs)
        memcpy(s->raw, logits, s->vocab * sizeof *logits);
    if (adjusted(d))
        adjust(s, logits, d);
    if (d->mask || adjusted(d)) {
        best = s->kern->row_max(logits, s->vocab, &top);
        if (best < s->vocab && top == -INFINITY)
            return nb_fail(err, NB_EINTERNAL, "sample.constraint", "SO-09",
                           "no token may follow: constraints, allowed and bad words exclude all");
        rc = not_finite(s, best, top, err);
        if (rc != NB_OK)
            return rc;
    }
    *out = d->p->temperature < 1e-5f ? (int32_t)best : sample(s, logits, best, top, d);
    return d->logprobs ? nb_sampler_logprobs(s, s->raw, *out, d->n_named ? d->named : NULL, d->n_named ? d->n_named : d->top, lp, err)
                       : NB_OK;
}
