/* linalg.c - second moments and output errors by the products of gemm.c. */
#include "solve/linalg.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

double nb_dot64(const float *a, const float *b, size_t n)
{
    double s[8] = { 0 };
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++)
        s[i & 7] += (double)a[i] * (double)b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

nb_status nb_gram_init(nb_gram *g, size_t k, nb_err *err)
{
    size_t n;

    *g = (nb_gram){ .k = k };
    g->sum = nb_mul_size(k, k, &n) ? nb_calloc(n, sizeof *g->sum) : NULL;
    return g->sum ? NB_OK : nb_enomem(err, "the second moments of one input");
}

void nb_gram_clear(nb_gram *g)
{
    nb_free(g->sum);
    memset(g, 0, sizeof *g);
}

enum { STRIPE = NB_GRAM_STRIPE }; /* rows of the Gram matrix per task */
enum { FINISH = 32 };             /* rows and columns of a tile that is mirrored */

/* Where row i of half a matrix begins, at the first column of its stripe: the stripes before it are s k - 192 (0 + 1 + .. ) wide. */
static size_t half_row(size_t k, size_t i)
{
    const size_t s = i / STRIPE, i0 = s * STRIPE;

    return i0 * k - STRIPE * STRIPE * (s * (s - (s > 0)) / 2) + (i - i0) * (k - i0);
}

uint64_t nb_gram_half_bytes(size_t k)
{
    const size_t i0 = k ? (k - 1) / STRIPE * STRIPE : 0; /* of the last stripe */

    return sizeof(double) * ((uint64_t)half_row(k, i0) + (uint64_t)(k - i0) * (k - i0));
}

nb_status nb_gram_init_half(nb_gram *g, size_t k, nb_err *err)
{
    *g = (nb_gram){ .k = k, .half = true };
    g->sum = k <= UINT32_MAX / 2 ? nb_calloc(1, (size_t)nb_gram_half_bytes(k)) : NULL;
    return g->sum ? NB_OK : nb_enomem(err, "the second moments of one input");
}

void nb_gram_reset(nb_gram *g, size_t k)
{
    g->k = k;
    g->tokens = 0;
    g->state = NB_GRAM_SUMS;
    memset(g->sum, 0, g->half ? (size_t)nb_gram_half_bytes(k) : k * k * sizeof *g->sum);
}

double *nb_gram_at(const nb_gram *g, size_t i, size_t j, size_t *ld)
{
    const size_t i0 = g->half ? i / STRIPE * STRIPE : 0;

    *ld = g->k - i0;
    return g->sum + (g->half ? half_row(g->k, i) : i * g->k) + (j - i0);
}

struct add_ctx {
    nb_gram *g;
    const float *x;
    size_t ldx, m;
    float *part; /* [threads][STRIPE][k] */
};

/* Stripes [begin, end): rows i0.. of the upper triangle, columns from i0 on, one chunk after another. */
static void add_stripes(void *user, size_t begin, size_t end, int thread)
{
    const struct add_ctx *a = user;
    const size_t k = a->g->k;
    float *part = a->part + (size_t)thread * STRIPE * k;

    for (size_t t = begin; t < end; t++) {
        const size_t i0 = t * STRIPE, rows = k - i0 < STRIPE ? k - i0 : STRIPE, cols = k - i0;
        for (size_t r = 0; r < a->m; r += NB_GRAM_CHUNK) {
            const size_t m = a->m - r < NB_GRAM_CHUNK ? a->m - r : NB_GRAM_CHUNK;
            const float *x = a->x + r * a->ldx + i0;
            nb_gemm_tn(rows, cols, m, x, a->ldx, x, a->ldx, part, cols);
            for (size_t i = 0; i < rows; i++) {
                double *sum = a->g->sum + (a->g->half ? half_row(k, i0 + i) : (i0 + i) * k + i0);
                for (size_t j = 0; j < cols; j++)
                    sum[j] += (double)part[i * cols + j];
            }
        }
    }
}

nb_status nb_gram_add(nb_gram *g, nb_pool *pool, const float *x, size_t ldx, size_t m, nb_err *err)
{
    struct add_ctx a = { .g = g, .x = x, .ldx = ldx, .m = m };

    a.part = nb_alloc_array((size_t)nb_pool_threads(pool) * STRIPE, g->k * sizeof *a.part);
    if (!a.part)
        return nb_enomem(err, "partial second moments");
    nb_parallel_for(pool, (g->k + STRIPE - 1) / STRIPE, 1, add_stripes, &a);
    g->tokens += m;
    nb_free(a.part);
    return NB_OK;
}

/* Below the diagonal: from the mirror image, in squares that stay in the cache. */
static void mirror(float *c, size_t k)
{
    enum { SIDE = 64 };

    for (size_t i0 = 0; i0 < k; i0 += SIDE)
        for (size_t j0 = 0; j0 <= i0; j0 += SIDE)
            for (size_t i = i0; i < i0 + SIDE && i < k; i++)
                for (size_t j = j0; j < j0 + SIDE && j < i; j++)
                    c[i * k + j] = c[j * k + i];
}

/* Sums become means as float, one after another: value i ends where sum i begins, or before. */
static void to_means(nb_gram *g)
{
    const size_t n = (size_t)(nb_gram_half_bytes(g->k) / sizeof *g->sum);
    const double tokens = g->tokens ? (double)g->tokens : 1.0;
    float *c = (float *)(void *)g->sum;

    for (size_t i = 0; i < n; i++) {
        double sum;
        float v;
        memcpy(&sum, g->sum + i, sizeof sum);
        v = (float)(sum / tokens);
        memcpy(c + i, &v, sizeof v);
    }
}

float *nb_gram_take(nb_gram *g)
{
    const size_t k = g->k;
    float *c = (float *)(void *)g->sum;

    if (g->state == NB_GRAM_TAKEN)
        return c;
    if (g->state == NB_GRAM_SHELVED) {
        double *whole = nb_realloc(g->sum, (size_t)nb_gram_half_bytes(k));
        if (!whole)
            return NULL;
        g->sum = whole;
        c = (float *)(void *)whole;
    } else {
        to_means(g);
    }
    for (size_t i = k; i-- > 0;) { /* no row moves to the front */
        const size_t i0 = i / STRIPE * STRIPE;
        memmove(c + i * k + i0, c + half_row(k, i), (k - i0) * sizeof *c);
    }
    mirror(c, k);
    g->state = NB_GRAM_TAKEN;
    return c;
}

void nb_gram_shelve(nb_gram *g)
{
    const size_t k = g->k;
    float *c = (float *)(void *)g->sum;
    double *less;

    if (g->state != NB_GRAM_TAKEN)
        return;
    for (size_t i = 0; i < k; i++) {
        const size_t i0 = i / STRIPE * STRIPE;
        memmove(c + half_row(k, i), c + i * k + i0, (k - i0) * sizeof *c);
    }
    g->state = NB_GRAM_SHELVED;
    less = nb_realloc(g->sum, (size_t)nb_gram_half_bytes(k) / 2);
    g->sum = less ? less : g->sum;
}

/* The tile of rows i0 .. and columns j0 .. >= i0 divided by n, and its mirror image, row by row: rows of many a matrix lie a multiple of 4096
 * bytes apart, where the lines of a column crowd each other out of the cache. */
static void finish_tile(double *c, size_t k, size_t i0, size_t j0, double n)
{
    const size_t rows = k - i0 < FINISH ? k - i0 : FINISH, cols = k - j0 < FINISH ? k - j0 : FINISH;
    double turned[FINISH][FINISH];

    for (size_t i = 0; i < rows; i++)
        for (size_t j = i0 == j0 ? i : 0; j < cols; j++)
            turned[j][i] = c[(i0 + i) * k + j0 + j] /= n;
    for (size_t j = 0; j < cols; j++)
        memcpy(c + (j0 + j) * k + i0, turned[j], (i0 == j0 ? j : rows) * sizeof *c);
}

void nb_gram_finish(nb_gram *g)
{
    const double n = g->tokens ? (double)g->tokens : 1.0;

    for (size_t i0 = 0; i0 < g->k; i0 += FINISH)
        for (size_t j0 = i0; j0 < g->k; j0 += FINISH)
            finish_tile(g->sum, g->k, i0, j0, n);
}

/* ---- output error ---- */

struct error_ctx {
    const float *w, *v, *x;
    size_t n, k, ldx, t;
    bool norm;      /* the sum of (w x)² is wanted */
    float *scratch; /* [threads][STRIPE][k + t] */
    double *part;   /* [tasks][2] */
};

static void error_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct error_ctx *c = user;
    const size_t k = c->k;
    float *d = c->scratch + (size_t)thread * STRIPE * (k + c->t), *y = d + STRIPE * k;

    for (size_t task = begin; task < end; task++) {
        const size_t r0 = task * STRIPE, rows = c->n - r0 < STRIPE ? c->n - r0 : STRIPE;
        const float *w = c->w + r0 * k, *v = c->v + r0 * k;

        for (size_t i = 0; i < rows * k; i++)
            d[i] = v[i] - w[i];
        if (c->x) {
            nb_gemm_nt(rows, c->t, k, d, k, c->x, c->ldx, y, c->t);
            c->part[2 * task] = nb_dot64(y, y, rows * c->t);
            if (c->norm)
                nb_gemm_nt(rows, c->t, k, w, k, c->x, c->ldx, y, c->t);
            c->part[2 * task + 1] = c->norm ? nb_dot64(y, y, rows * c->t) : 0;
        } else {
            c->part[2 * task] = nb_dot64(d, d, rows * k);
            c->part[2 * task + 1] = nb_dot64(w, w, rows * k);
        }
    }
}

nb_status nb_output_error(nb_pool *pool, const float *w, const float *v, size_t n, size_t k, const float *x, size_t ldx, size_t t,
                          double *norm, double *e, nb_err *err)
{
    const size_t tasks = (n + STRIPE - 1) / STRIPE;
    struct error_ctx c = { .w = w, .v = v, .x = x, .n = n, .k = k, .ldx = ldx, .t = x ? t : 0, .norm = !norm || *norm < 0 };
    double num = 0, den = 0;
    nb_status rc = NB_OK;

    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * STRIPE, (k + c.t) * sizeof *c.scratch);
    c.part = nb_alloc_array(tasks, 2 * sizeof *c.part);
    if (!c.scratch || !c.part) {
        rc = nb_enomem(err, "the error of a linear");
        goto done;
    }
    nb_parallel_for(pool, tasks, 1, error_rows, &c);
    for (size_t i = 0; i < tasks; i++) {
        num += c.part[2 * i];
        den += c.part[2 * i + 1];
    }
    if (norm)
        den = *norm = c.norm ? den : *norm;
    *e = num == 0.0 ? 0.0 : num / den;
done:
    nb_free(c.part);
    nb_free(c.scratch);
    return rc;
}
