/* eval_stat.h - order statistics, and intervals by drawing units (documents) with replacement. */
#ifndef NB_JOB_EVAL_STAT_H
#define NB_JOB_EVAL_STAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"

typedef struct nb_mean {
    double mean, lo, hi; /* value, 95 % interval  */
    double ci95;         /* half its width        */
} nb_mean;

/* sorted ascending, interpolated linearly between order statistics; 0 when n is 0. */
double nb_quantile(const double *sorted, size_t n, double at);

/* The bootstrap of Efron: resample r draws n units by a counter-based generator of (seed, r), so that all statistics of one set
 * see the same draws; the interval is from the 2.5 % to the 97.5 % quantile of the resamples. */
typedef struct nb_boot {
    size_t n, resamples;
    uint64_t seed;
    nb_pool *pool;
} nb_boot;

/* Value of one resample from how often each unit was drawn: count[n]. Called from several threads. */
typedef double nb_boot_fn(const void *ctx, const uint32_t *count, size_t n);
/* Intervals of n_stats values; out[i].mean must be set before and stays. Units below 2: no interval (lo = hi = mean). */
nb_status nb_bootstrap(const nb_boot *b, nb_boot_fn *const *fn, const void *const *ctx, size_t n_stats, nb_mean *const *out, nb_err *err);

/* Common statistics. Sums per unit. */
typedef struct nb_ratio { /* sum of num over sum of den */
    const double *num, *den;
} nb_ratio;
double nb_boot_ratio(const void *ratio, const uint32_t *count, size_t n);
double nb_boot_exp_ratio(const void *ratio, const uint32_t *count, size_t n); /* exp of it */
typedef struct nb_ranks {                                                     /* quantile `at` of n values, sorted, each of a unit */
    const double *sorted;
    const uint32_t *unit;
    size_t n;
    double at;
} nb_ranks;
double nb_boot_quantile(const void *ranks, const uint32_t *count, size_t n);

#endif
