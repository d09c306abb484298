/* eval_kl.c - divergence of two distributions given as logits, and the order statistics of many of them. */
#include <math.h>

#include "job/eval.h"

double nb_kl_of(const float *p, const float *q, size_t v)
{
    const double lp = nb_log_sum_exp(p, v), lq = nb_log_sum_exp(q, v);
    double sum = 0;

    for (size_t i = 0; i < v; i++) {
        const double a = (double)p[i] - lp;
        sum += exp(a) * (a - ((double)q[i] - lq));
    }
    return sum;
}

double nb_quantile(double *sorted, size_t n, double at)
{
    const double x = at * (double)(n - 1);
    const size_t i = (size_t)x;

    if (n == 0)
        return 0;
    return i + 1 < n ? sorted[i] + (x - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}
