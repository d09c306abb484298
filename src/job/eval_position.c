/* eval_position.c - two distributions of one position, given as logits: likelihood, divergence, rank. */
#include <math.h>

#include "base/bits.h"
#include "job/eval.h"

static size_t first_max(const float *x, size_t v)
{
    size_t at = 0;

    for (size_t i = 1; i < v; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Log of the sum of exp, given the largest. */
static double log_sum(const float *x, size_t v, float top)
{
    double sum = 0;

    for (size_t i = 0; i < v; i++)
        sum += exp((double)x[i] - (double)top);
    return (double)top + log(sum);
}

/* How many tokens are likelier than `at`; of equal ones the lower ids are. */
static size_t rank_of(const float *x, size_t v, size_t at)
{
    size_t rank = 0;

    for (size_t i = 0; i < v; i++)
        rank += x[i] > x[at] || (x[i] == x[at] && i < at);
    return rank;
}

nb_position nb_position_of(const float *p, const float *q, size_t v, size_t next)
{
    nb_position r = { 0 };
    const double lq = log_sum(q, v, q[first_max(q, v)]);
    size_t top;
    double sum = 0, moved = 0;

    r.nll = next < v ? lq - (double)q[next] : 0;
    if (!p)
        return r;
    top = first_max(p, v);
    for (size_t i = 0; i < v; i++) { /* KL = sum P (p - q) - lp + lq with P = e / sum: one pass of exp */
        const double e = exp((double)p[i] - (double)p[top]);
        sum += e;
        moved += e * ((double)p[i] - (double)q[i]);
    }
    const double lp = (double)p[top] + log(sum);
    r.ref_nll = next < v ? lp - (double)p[next] : 0;
    r.kl = moved / sum - lp + lq;
    r.rank = rank_of(q, v, top);
    return r;
}

nb_position nb_position_topk(const nb_topk_row *p, const float *q, size_t v, size_t next)
{
    nb_position r = { 0 };
    const double lq = log_sum(q, v, q[first_max(q, v)]), rest = exp((double)p->rest);
    double q_rest = 1;

    r.nll = next < v ? lq - (double)q[next] : 0;
    r.ref_nll = next < v ? (double)p->nll : 0;
    for (size_t i = 0; i < p->k; i++) {
        const double a = (double)nb_f32_from_bits(nb_le32(p->logp + 4 * i)), b = (double)q[nb_le32(p->ids + 4 * i)] - lq;
        r.kl += exp(a) * (a - b);
        q_rest -= exp(b);
    }
    if (rest > 0) /* by the log sum inequality all other tokens together differ at least by this */
        r.kl += rest * ((double)p->rest - log(q_rest > 1e-300 ? q_rest : 1e-300));
    r.rank = rank_of(q, v, nb_le32(p->ids));
    return r;
}
