/* chol.c - blocked factorisation and inversion of triangles. */
#include "solve/chol.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/wide.h"
#include "solve/linalg.h"

enum { B = 64 }; /* rows and columns of a tile */

static size_t tile(size_t k, size_t at)
{
    return k - at < B ? k - at : B;
}

/* ---- factor ---- */

/* L of one tile, in place. */
static bool factor_tile(double *a, size_t lda, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        double d = a[j * lda + j];
        for (size_t l = 0; l < j; l++)
            d -= a[j * lda + l] * a[j * lda + l];
        if (!(d > 0.0) || !isfinite(d))
            return false;
        d = a[j * lda + j] = sqrt(d);
        for (size_t i = j + 1; i < n; i++) {
            double s = a[i * lda + j];
            for (size_t l = 0; l < j; l++)
                s -= a[i * lda + l] * a[j * lda + l];
            a[i * lda + j] = s / d;
        }
    }
    return true;
}

struct chol_ctx {
    double *a;
    size_t k, p; /* the panel: columns p .. p + B */
};

/* x[n][B]: L x = x for the tile L. */
NB_WIDE static void solve_tile(const double *l, size_t k, size_t n, double *x)
{
    for (size_t i = 0; i < n; i++) {
        double *row = x + i * B;
        for (size_t j = 0; j < i; j++)
            for (size_t c = 0; c < B; c++)
                row[c] -= l[i * k + j] * x[j * B + c];
        for (size_t c = 0; c < B; c++)
            row[c] /= l[i * k + i];
    }
}

/* Tiles [begin, end) of rows below the panel: X Lᵀ = x, which turned is L Xᵀ = xᵀ. */
static void solve_panel(void *user, size_t begin, size_t end, int thread)
{
    const struct chol_ctx *c = user;
    const size_t k = c->k, p = c->p, n = tile(k, p);
    double turned[B * B] = { 0 };

    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t r0 = p + n + t * B, rows = tile(k, r0);
        double *x = c->a + r0 * k + p;

        for (size_t j = 0; j < n; j++)
            for (size_t r = 0; r < rows; r++)
                turned[j * B + r] = x[r * k + j];
        solve_tile(c->a + p * k + p, k, n, turned);
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < n; j++)
                x[r * k + j] = turned[j * B + r];
    }
}

/* The lower triangle behind the panel loses the product of the panel with itself; tiles of rows [begin, end). */
static void update_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct chol_ctx *c = user;
    const size_t k = c->k, p = c->p, n = tile(k, p), first = p + n;

    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t r = first + t * B, m = tile(k, r);
        double own[B * B];
        const double *x = c->a + r * k + p;

        nb_dgemm_sub_nt(m, r - first, n, x, k, c->a + first * k + p, k, c->a + r * k + first, k);
        memset(own, 0, sizeof own); /* the tile on the diagonal: only its lower half may change */
        nb_dgemm_sub_nt(m, m, n, x, k, x, k, own, B);
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j <= i; j++)
                c->a[(r + i) * k + r + j] += own[i * B + j];
    }
}

bool nb_cholesky(nb_pool *pool, double *a, size_t k)
{
    struct chol_ctx c = { .a = a, .k = k };

    for (c.p = 0; c.p < k; c.p += B) {
        const size_t n = tile(k, c.p), rest = (k - c.p - n + B - 1) / B;

        if (!factor_tile(a + c.p * k + c.p, k, n))
            return false;
        nb_parallel_for(pool, rest, 1, solve_panel, &c);
        nb_parallel_for(pool, rest, 1, update_rows, &c);
    }
    return true;
}

/* ---- inverse ---- */

struct inverse_ctx {
    const double *l;
    size_t k;
    float *u;
    double *scratch; /* [threads][k][B] */
};

/* Column tiles [begin, end) of the inverse, each by forward substitution from its diagonal on. */
static void invert_columns(void *user, size_t begin, size_t end, int thread)
{
    const struct inverse_ctx *c = user;
    const size_t k = c->k;
    double *x = c->scratch + (size_t)thread * k * B;

    for (size_t t = begin; t < end; t++) {
        const size_t c0 = t * B, w = tile(k, c0);

        memset(x, 0, (k - c0) * B * sizeof *x);
        for (size_t i = 0; i < w; i++)
            x[i * B + i] = 1.0;
        for (size_t r = c0; r < k; r += B) {
            double *own = x + (r - c0) * B;
            if (r > c0)
                nb_dgemm_sub_nn(tile(k, r), B, r - c0, c->l + r * k + c0, k, x, B, own, B);
            solve_tile(c->l + r * k + r, k, tile(k, r), own);
        }
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < w; j++)
                c->u[(k - 1 - i) * k + (k - 1 - c0 - j)] = i < c0 ? 0.0f : (float)x[(i - c0) * B + j];
    }
}

nb_status nb_chol_inverse_flipped(nb_pool *pool, const double *l, size_t k, float *u, nb_err *err)
{
    struct inverse_ctx c = { .l = l, .k = k, .u = u };

    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * B, k * sizeof *c.scratch);
    if (!c.scratch)
        return nb_enomem(err, "the inverse of the second moments");
    nb_parallel_for(pool, (k + B - 1) / B, 1, invert_columns, &c);
    nb_free(c.scratch);
    return NB_OK;
}
