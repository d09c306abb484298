/* solve_awq.c - statistics, scale search, clip search. */
#include "solve/solve_awq.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "solve/linalg.h"

/* ---- statistics ---- */

struct sum_ctx {
    const nb_grid *grid;
    const float *x;
    size_t ldx, m, k, width; /* width: columns per task */
    double *sum;
};

static void xsum_columns(void *user, size_t begin, size_t end, int thread)
{
    const struct sum_ctx *c = user;
    const size_t k0 = begin * c->width, k1 = end * c->width < c->k ? end * c->width : c->k;

    (void)thread;
    for (size_t t = 0; t < c->m; t++)
        for (size_t k = k0; k < k1; k++)
            c->sum[k] += (double)fabsf(c->x[t * c->ldx + k]);
}

void nb_awq_xsum(nb_pool *pool, const float *x, size_t ldx, size_t m, size_t k, double *sum)
{
    struct sum_ctx c = { .x = x, .ldx = ldx, .m = m, .k = k, .width = 64, .sum = sum };

    nb_parallel_for(pool, (k + 63) / 64, 1, xsum_columns, &c);
}

static void wsum_groups(void *user, size_t begin, size_t end, int thread)
{
    const struct sum_ctx *c = user;
    const size_t g = c->grid->g;

    (void)thread;
    for (size_t j = begin; j < end; j++)
        for (size_t r = 0; r < c->m; r++) {
            const float *w = c->x + r * c->ldx + j * g;
            float lo, hi, top;

            nb_grid_range(w, g, &lo, &hi);
            top = (-lo > hi ? -lo : hi) + 1e-6f;
            for (size_t i = 0; i < g; i++)
                c->sum[j * g + i] += (double)(fabsf(w[i]) / top);
        }
}

void nb_awq_wsum(nb_pool *pool, const nb_grid *grid, const float *w, size_t n, size_t k, double *sum)
{
    struct sum_ctx c = { .grid = grid, .x = w, .ldx = k, .m = n, .k = k, .sum = sum };

    nb_parallel_for(pool, k / grid->g, 1, wsum_groups, &c);
}

/* ---- scales ---- */

void nb_awq_scales(const float *x_mean, const float *w_mean, size_t k, double ratio, bool duo, float *s)
{
    const double r = (double)(float)ratio, r1 = (double)(float)(1.0 - ratio);
    float lo = INFINITY, hi = -INFINITY, norm;
    bool nan = false;

    for (size_t i = 0; i < k; i++) {
        float v = (float)pow((double)x_mean[i], r);
        if (duo)
            v = v / ((float)pow((double)w_mean[i], r1) + 1e-4f);
        v = v < 1e-4f ? 1e-4f : v;
        nan = nan || v != v;
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
        s[i] = v;
    }
    norm = nan ? NAN : sqrtf(hi * lo);
    for (size_t i = 0; i < k; i++) {
        s[i] /= norm;
        if (!isfinite(s[i]))
            s[i] = 1.0f;
    }
}

nb_status nb_awq_search(const float *x_mean, const float *w_mean, size_t k, bool duo, nb_awq_eval_fn *eval, void *user, nb_awq_best *best,
                        float *s, nb_err *err)
{
    nb_status rc = NB_OK;

    best->index = -1;
    best->loss = INFINITY;
    for (int i = 0; i < NB_AWQ_RATIOS && rc == NB_OK; i++) {
        nb_awq_scales(x_mean, w_mean, k, i / (double)NB_AWQ_RATIOS, duo, s);
        rc = eval(user, s, &best->losses[i], err);
        if (rc == NB_OK && best->losses[i] < best->loss) {
            best->loss = best->losses[i];
            best->index = i;
        }
    }
    if (rc != NB_OK || best->index < 0)
        for (size_t i = 0; i < k; i++)
            s[i] = 1.0f;
    else
        nb_awq_scales(x_mean, w_mean, k, best->index / (double)NB_AWQ_RATIOS, duo, s);
    return rc;
}

/* ---- loss of one linear from second moments ---- */

enum { LOSS_ROWS = 64 };

struct loss_ctx {
    const nb_grid *grid;
    const float *w, *s, *c;
    size_t n, k;
    float *scratch; /* [threads][2][LOSS_ROWS][k] */
    double *part;   /* [tasks] */
};

static void loss_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct loss_ctx *l = user;
    const size_t k = l->k;
    float *d = l->scratch + (size_t)thread * 2 * LOSS_ROWS * k, *e = d + LOSS_ROWS * k;

    for (size_t t = begin; t < end; t++) {
        const size_t r0 = t * LOSS_ROWS, rows = l->n - r0 < LOSS_ROWS ? l->n - r0 : LOSS_ROWS;
        const float *w = l->w + r0 * k;
        double sum = 0;

        nb_rtn_pseudo(NULL, l->grid, w, l->s, rows, k, d);
        for (size_t i = 0; i < rows * k; i++)
            d[i] -= w[i];
        nb_gemm_nn(rows, k, k, d, k, l->c, k, e, k);
        for (size_t r = 0; r < rows; r++)
            sum += nb_dot64(d + r * k, e + r * k, k);
        l->part[t] = sum;
    }
}

nb_status nb_awq_gram_loss(nb_pool *pool, const nb_grid *grid, const float *w, const float *s, size_t n, size_t k, const float *c,
                           double *loss, nb_err *err)
{
    const size_t tasks = (n + LOSS_ROWS - 1) / LOSS_ROWS;
    struct loss_ctx l = { .grid = grid, .w = w, .s = s, .c = c, .n = n, .k = k };
    nb_status rc = NB_OK;

    l.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * 2 * LOSS_ROWS, k * sizeof *l.scratch);
    l.part = nb_alloc_array(tasks, sizeof *l.part);
    if (!l.scratch || !l.part) {
        rc = nb_enomem(err, "the loss of one candidate");
        goto done;
    }
    nb_parallel_for(pool, tasks, 1, loss_rows, &l);
    *loss = 0;
    for (size_t i = 0; i < tasks; i++)
        *loss += l.part[i];
    *loss /= (double)n;
done:
    nb_free(l.part);
    nb_free(l.scratch);
    return rc;
}

/* ---- clip search ---- */

enum { CLIP_ROWS = 16 };

struct clip_ctx {
    const nb_grid *grid;
    float *w;
    size_t n, k, t, n_groups;
    float *x;       /* [t][k] scaled inputs                                                                */
    float *c;       /* [n_groups][g][g] second moments; NULL: few tokens, errors straight from x */
    float *scratch; /* [threads][CLIP_ROWS * steps][g + max(g, t)] */
    size_t wide, steps;
    uint8_t *index;
    float *errors;
};

/* Second moments of groups [begin, end). Few tokens (about 512): one product per group. */
static void clip_grams(void *user, size_t begin, size_t end, int thread)
{
    const struct clip_ctx *p = user;
    const size_t g = p->grid->g;

    (void)thread;
    for (size_t j = begin; j < end; j++) {
        float *c = p->c + j * g * g;
        nb_gemm_tn(g, g, p->t, p->x + j * g, p->k, p->x + j * g, p->k, c, g);
        for (size_t i = 0; i < g * g; i++)
            c[i] /= (float)p->t;
    }
}

static float bound(float top, size_t i, size_t steps)
{
    return top * (float)(1.0 - (double)i / (2.0 * (double)steps));
}

/* d[steps][g] = rounding errors of one group for every candidate bound. Returns max |w|. */
static float clip_errors(const nb_grid *grid, const float *w, size_t steps, float *d)
{
    enum { TILE = 64 };
    float lo, hi, top, t[TILE];

    nb_grid_range(w, grid->g, &lo, &hi);
    top = -lo > hi ? -lo : hi;
    for (size_t i = 0; i < steps; i++) {
        const float m = bound(top, i, steps);
        float s, z, *out = d + i * grid->g;

        nb_grid_fit(grid, lo < -m ? -m : lo > m ? m : lo, hi > m ? m : hi < -m ? -m : hi, &s, &z);
        for (size_t j0 = 0; j0 < grid->g; j0 += TILE) {
            const size_t n = grid->g - j0 < TILE ? grid->g - j0 : TILE;
            for (size_t j = 0; j < n; j++) {
                const float v = w[j0 + j] < -m ? -m : w[j0 + j];
                t[j] = v > m ? m : v;
            }
            nb_grid_round(grid, t, n, s, z, out + j0);
            for (size_t j = 0; j < n; j++)
                out[j0 + j] -= w[j0 + j];
        }
    }
    return top;
}

static void clip_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct clip_ctx *p = user;
    const size_t g = p->grid->g;
    float *d = p->scratch + (size_t)thread * CLIP_ROWS * p->steps * (g + p->wide), *e = d + CLIP_ROWS * p->steps * g;
    float top[CLIP_ROWS];

    for (size_t task = begin; task < end; task++) {
        const size_t j = task % p->n_groups, r0 = task / p->n_groups * CLIP_ROWS, rows = p->n - r0 < CLIP_ROWS ? p->n - r0 : CLIP_ROWS;
        const size_t m = rows * p->steps;

        for (size_t r = 0; r < rows; r++)
            top[r] = clip_errors(p->grid, p->w + (r0 + r) * p->k + j * g, p->steps, d + r * p->steps * g);
        if (p->c)
            nb_gemm_nn(m, g, g, d, g, p->c + j * g * g, g, e, g);
        else
            nb_gemm_nt(m, p->t, g, d, g, p->x + j * g, p->k, e, p->t);
        for (size_t r = 0; r < rows; r++) {
            float *w = p->w + (r0 + r) * p->k + j * g;
            double least = INFINITY;
            size_t win = 0;

            for (size_t i = 0; i < p->steps; i++) {
                const size_t row = r * p->steps + i;
                const double loss =
                    p->c ? nb_dot64(d + row * g, e + row * g, g) : nb_dot64(e + row * p->t, e + row * p->t, p->t) / (double)p->t;
                if (loss < least) {
                    least = loss;
                    win = i;
                }
                if (p->errors)
                    p->errors[(i * p->n + r0 + r) * p->n_groups + j] = (float)loss;
            }
            if (p->index)
                p->index[(r0 + r) * p->n_groups + j] = (uint8_t)win;
            for (size_t i = 0; i < g; i++) {
                const float m1 = bound(top[r], win, p->steps);
                const float v = w[i] < -m1 ? -m1 : w[i];
                w[i] = v > m1 ? m1 : v;
            }
        }
    }
}

/* Search and clamp; second moments of all groups are in p->c, or p->x holds a few tokens. */
static nb_status clip_all(nb_pool *pool, struct clip_ctx *p, nb_err *err)
{
    const size_t blocks = (p->n + CLIP_ROWS - 1) / CLIP_ROWS;

    p->wide = p->c ? p->grid->g : p->t;
    p->scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * CLIP_ROWS * p->steps, (p->grid->g + p->wide) * sizeof *p->scratch);
    if (!p->scratch)
        return nb_enomem(err, "the clip search");
    nb_parallel_for(pool, blocks * p->n_groups, 1, clip_rows, p);
    nb_free(p->scratch);
    return NB_OK;
}

nb_status nb_awq_clip(nb_pool *pool, const nb_grid *grid, float *w, size_t n, size_t k, const float *x, size_t ldx, size_t t,
                      const float *s, unsigned steps, uint8_t *index, float *errors, nb_err *err)
{
    const size_t g = grid->g, n_groups = k / g;
    struct clip_ctx p = {
        .grid = grid, .w = w, .n = n, .k = k, .t = t, .n_groups = n_groups, .steps = steps, .index = index, .errors = errors
    };
    const bool gram = t >= g;
    nb_status rc = NB_OK;

    if (t == 0) { /* nothing known about the inputs: no bound is better than the full range */
        if (index)
            memset(index, 0, n * n_groups);
        return NB_OK;
    }
    p.x = nb_alloc_array(t, k * sizeof *p.x);
    p.c = gram ? nb_alloc_array(k, g * sizeof *p.c) : NULL;
    if (!p.x || (gram && !p.c))
        rc = nb_enomem(err, "the clip search");
    for (size_t i = 0; rc == NB_OK && i < t; i++)
        for (size_t j = 0; j < k; j++)
            p.x[i * k + j] = s ? x[i * ldx + j] / s[j] : x[i * ldx + j];
    if (rc == NB_OK && gram)
        nb_parallel_for(pool, n_groups, 1, clip_grams, &p);
    if (rc == NB_OK)
        rc = clip_all(pool, &p, err);
    nb_free(p.c);
    nb_free(p.x);
    return rc;
}

nb_status nb_awq_clip_moments(nb_pool *pool, const nb_grid *grid, float *w, size_t n, size_t k, const float *c, const float *s,
                              unsigned steps, uint8_t *index, float *errors, nb_err *err)
{
    const size_t g = grid->g;
    struct clip_ctx p = { .grid = grid, .w = w, .n = n, .k = k, .n_groups = k / g, .steps = steps, .index = index, .errors = errors };
    nb_status rc;

    p.c = nb_alloc_array(k, g * sizeof *p.c);
    if (!p.c)
        return nb_enomem(err, "the clip search");
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < g; j++) {
            const size_t col = i / g * g + j;
            p.c[i * g + j] = s ? c[i * k + col] / (s[i] * s[col]) : c[i * k + col];
        }
    rc = clip_all(pool, &p, err);
    nb_free(p.c);
    return rc;
}
