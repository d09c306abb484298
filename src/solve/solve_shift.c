/* solve_shift.c - cross moments, and the step through the factor of the second moments. */
#include "solve/solve_shift.h"

#include <string.h>

#include "base/mem.h"
#include "base/wide.h"
#include "solve/linalg.h"

enum { STRIPE = 192, ROWS = 96, BLOCK = 128 };

nb_status nb_cross_init(nb_cross *c, size_t n, size_t k, nb_err *err)
{
    size_t all;

    *c = (nb_cross){ .n = n, .k = k };
    c->sum = nb_mul_size(n, k, &all) ? nb_calloc(all, sizeof *c->sum) : NULL;
    return c->sum ? NB_OK : nb_enomem(err, "the moments between two inputs");
}

void nb_cross_clear(nb_cross *c)
{
    nb_free(c->sum);
    memset(c, 0, sizeof *c);
}

struct cross_ctx {
    nb_cross *c;
    const float *a, *b, *x;
    size_t m;
    float *scratch; /* [threads][STRIPE][NB_GRAM_CHUNK + k] */
};

/* Rows of the sum, STRIPE at a time, one chunk of tokens after another. */
static void cross_stripes(void *user, size_t begin, size_t end, int thread)
{
    const struct cross_ctx *c = user;
    const size_t n = c->c->n, k = c->c->k;
    float *d = c->scratch + (size_t)thread * STRIPE * (NB_GRAM_CHUNK + k), *part = d + STRIPE * NB_GRAM_CHUNK;

    for (size_t s = begin; s < end; s++) {
        const size_t i0 = s * STRIPE, rows = n - i0 < STRIPE ? n - i0 : STRIPE;

        for (size_t t = 0; t < c->m; t += NB_GRAM_CHUNK) {
            const size_t m = c->m - t < NB_GRAM_CHUNK ? c->m - t : NB_GRAM_CHUNK;
            float *sum = c->c->sum + i0 * k;

            for (size_t j = 0; j < m; j++)
                for (size_t i = 0; i < rows; i++)
                    d[j * rows + i] = c->a[(t + j) * n + i0 + i] - c->b[(t + j) * n + i0 + i];
            nb_gemm_tn(rows, k, m, d, rows, c->x + t * k, k, part, k);
            for (size_t i = 0; i < rows * k; i++)
                sum[i] += part[i];
        }
    }
}

nb_status nb_cross_add(nb_cross *c, nb_pool *pool, const float *a, const float *b, const float *x, size_t m, nb_err *err)
{
    struct cross_ctx p = { .c = c, .a = a, .b = b, .x = x, .m = m };

    p.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * STRIPE, (NB_GRAM_CHUNK + c->k) * sizeof *p.scratch);
    if (!p.scratch)
        return nb_enomem(err, "partial moments");
    nb_parallel_for(pool, (c->n + STRIPE - 1) / STRIPE, 1, cross_stripes, &p);
    c->tokens += m;
    nb_free(p.scratch);
    return NB_OK;
}

struct inverse_ctx {
    const nb_gptq_factor *f;
    nb_cross *c;
    float *scratch; /* [threads][2][ROWS][k] */
};

/* H⁻¹ = Uᵀ U in processing order: t Uᵀ, then U, both triangular and in blocks. */
static void inverse_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct inverse_ctx *c = user;
    const size_t k = c->f->k;
    const uint32_t *order = c->f->order;
    float *t = c->scratch + (size_t)thread * 2 * ROWS * k, *y = t + ROWS * k;

    for (size_t s = begin; s < end; s++) {
        const size_t r0 = s * ROWS, rows = c->c->n - r0 < ROWS ? c->c->n - r0 : ROWS;
        float *sum = c->c->sum + r0 * k;

        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < k; i++)
                t[r * k + i] = sum[r * k + order[i]];
        for (size_t i = 0; i < k; i += BLOCK)
            nb_gemm_nt(rows, k - i < BLOCK ? k - i : BLOCK, k - i, t + i, k, c->f->u + i * k + i, k, y + i, k);
        for (size_t j = 0; j < k; j += BLOCK) {
            const size_t w1 = k - j < BLOCK ? k - j : BLOCK;
            nb_gemm_nn(rows, w1, j + w1, y, k, c->f->u + j, k, t + j, k);
        }
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < k; i++)
                sum[r * k + order[i]] = t[r * k + i];
    }
}

nb_status nb_cross_solve(nb_cross *c, nb_pool *pool, const nb_gptq_factor *f, nb_err *err)
{
    struct inverse_ctx p = { .f = f, .c = c };

    p.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * 2 * ROWS, f->k * sizeof *p.scratch);
    if (!p.scratch)
        return nb_enomem(err, "the correction of a linear");
    nb_parallel_for(pool, (c->n + ROWS - 1) / ROWS, 1, inverse_rows, &p);
    nb_free(p.scratch);
    return NB_OK;
}

struct shift_ctx {
    const nb_gptq_factor *f;
    const nb_cross *d, *r;
    float share; /* over the tokens */
    const float *w;
    size_t n;
    float *out;
};

/* out = w + share (out + r) for n weights; r NULL: 0. */
NB_WIDE static void add_share(float *restrict out, const float *restrict w, const float *restrict r, float share, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = w[i] + share * (out[i] + (r ? r[i] : 0.0f));
}

static void shift_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct shift_ctx *c = user;
    const size_t k = c->f->k;

    (void)thread;
    for (size_t s = begin; s < end; s++) {
        const size_t r0 = s * ROWS, rows = c->n - r0 < ROWS ? c->n - r0 : ROWS;
        const float *w = c->w + r0 * k;
        float *out = c->out + r0 * k;

        if (c->d)
            nb_gemm_nn(rows, k, k, w, k, c->d->sum, k, out, k);
        else
            memset(out, 0, rows * k * sizeof *out);
        add_share(out, w, c->r ? c->r->sum + r0 * k : NULL, c->share, rows * k);
        for (size_t i = 0; c->f->n_dead > 0 && i < k; i++)
            for (size_t r = 0; c->f->dead[i] && r < rows; r++)
                out[r * k + i] = w[r * k + i];
    }
}

void nb_shift(nb_pool *pool, const nb_gptq_factor *f, double share, const nb_cross *d, const nb_cross *r, const float *w, size_t n,
              float *out)
{
    const size_t tokens = d ? d->tokens : r->tokens;
    struct shift_ctx c = { .f = f, .d = d, .r = r, .share = tokens ? (float)(share / (double)tokens) : 0, .w = w, .n = n, .out = out };

    nb_parallel_for(pool, (n + ROWS - 1) / ROWS, 1, shift_rows, &c);
}
