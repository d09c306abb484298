/* eval_stat.c - see eval_stat.h. */
#include "job/eval_stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

double nb_quantile(const double *sorted, size_t n, double at)
{
    if (n == 0)
        return 0;
    const double x = at * (double)(n - 1);
    const size_t i = (size_t)x;
    return i + 1 < n ? sorted[i] + (x - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

typedef struct boot {
    const nb_boot *b;
    nb_boot_fn *const *fn;
    const void *const *ctx;
    size_t n_stats;
    double *value;   /* [n_stats][resamples] */
    uint32_t *count; /* [threads][n]         */
} boot;

static void draw(const nb_boot *b, uint64_t r, uint32_t *count)
{
    uint32_t w[4] = { 0 };

    memset(count, 0, b->n * sizeof *count);
    for (size_t i = 0; i < b->n; i++) {
        if (i % 4 == 0)
            nb_philox(b->seed, r, i / 4, w);
        count[(uint64_t)w[i % 4] * b->n >> 32]++;
    }
}

static void resample(void *ctx, size_t begin, size_t end, int thread)
{
    const boot *x = ctx;
    uint32_t *count = x->count + (size_t)thread * x->b->n;

    for (size_t r = begin; r < end; r++) {
        draw(x->b, r, count);
        for (size_t s = 0; s < x->n_stats; s++)
            x->value[s * x->b->resamples + r] = x->fn[s](x->ctx[s], count, x->b->n);
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

nb_status nb_bootstrap(const nb_boot *b, nb_boot_fn *const *fn, const void *const *ctx, size_t n_stats, nb_mean *const *out, nb_err *err)
{
    boot x = { .b = b, .fn = fn, .ctx = ctx, .n_stats = n_stats };

    for (size_t s = 0; s < n_stats; s++) {
        out[s]->lo = out[s]->hi = out[s]->mean;
        out[s]->ci95 = 0;
    }
    if (b->n < 2 || b->resamples == 0)
        return NB_OK;
    x.value = nb_alloc_array(n_stats * b->resamples, sizeof *x.value);
    x.count = nb_alloc_array((size_t)nb_pool_threads(b->pool) * b->n, sizeof *x.count);
    if (x.value && x.count) {
        nb_parallel_for(b->pool, b->resamples, 8, resample, &x);
        for (size_t s = 0; s < n_stats; s++) {
            double *v = x.value + s * b->resamples;
            qsort(v, b->resamples, sizeof *v, by_value);
            out[s]->lo = nb_quantile(v, b->resamples, 0.025);
            out[s]->hi = nb_quantile(v, b->resamples, 0.975);
            out[s]->ci95 = (out[s]->hi - out[s]->lo) / 2;
        }
    }
    const nb_status rc = x.value && x.count ? NB_OK : nb_enomem(err, "the intervals");
    nb_free(x.value);
    nb_free(x.count);
    return rc;
}

double nb_boot_ratio(const void *ratio, const uint32_t *count, size_t n)
{
    const nb_ratio *r = ratio;
    double num = 0, den = 0;

    for (size_t i = 0; i < n; i++) {
        num += count[i] * r->num[i];
        den += count[i] * r->den[i];
    }
    return den > 0 ? num / den : 0;
}

double nb_boot_exp_ratio(const void *ratio, const uint32_t *count, size_t n)
{
    return exp(nb_boot_ratio(ratio, count, n));
}

/* The sample with every value as often as its unit was drawn is never written out: two neighbours of it are looked up. */
double nb_boot_quantile(const void *ranks, const uint32_t *count, size_t n)
{
    const nb_ranks *r = ranks;
    uint64_t total = 0, seen = 0;

    (void)n;
    for (size_t i = 0; i < r->n; i++)
        total += count[r->unit[i]];
    if (total == 0)
        return 0;
    const double x = r->at * (double)(total - 1);
    const uint64_t k = (uint64_t)x;
    double low = 0;
    for (size_t i = 0; i < r->n; i++) {
        const uint64_t upto = seen + count[r->unit[i]];
        if (seen <= k && k < upto)
            low = r->sorted[i];
        if (seen <= k + 1 && k + 1 < upto)
            return low + (x - (double)k) * (r->sorted[i] - low);
        seen = upto;
    }
    return low;
}
