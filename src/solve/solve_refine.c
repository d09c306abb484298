/* solve_refine.c - coordinate descent on codes. */
#include "solve/solve_refine.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "solve/linalg.h"
#include "solve/round.h"

enum { ROWS = 96, LINE = 32 };

struct refine_ctx {
    unsigned sweeps;
    const float *h, *w;
    nb_qlin *q;
    float *scratch;   /* [threads][3 * ROWS + 1][k] */
    double *error[2]; /* [n] before, after */
    size_t *moved;    /* [n] */
};

static size_t slot_of(const nb_qlin *q, size_t row, size_t i)
{
    return row * q->n_groups + (q->g_idx ? q->g_idx[i] : i / q->g);
}

/* r -= d * h */
NB_WIDE static void push(float *restrict r, const float *restrict h, float d, size_t k)
{
    for (size_t j = 0; j < k; j++)
        r[j] -= d * h[j];
}

/* least[n] = 0.499 diag s: what r must reach for a code to move, half a step. */
NB_WIDE static void half_steps(float *restrict least, const float *restrict diag, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        least[i] = 0.499f * diag[i] * s;
}

/* Is |r| below `least` in all of n places? */
NB_WIDE static bool all_below(const float *restrict r, const float *restrict least, size_t n)
{
    int reach = 0;

    for (size_t i = 0; i < n; i++)
        reach |= !(fabsf(r[i]) < least[i]);
    return reach == 0;
}

/* One sweep over an output; r[k] = (w - v) H follows. Returns how many codes moved. */
static size_t sweep(const struct refine_ctx *c, size_t row, float *r, const float *least, const float *diag)
{
    nb_qlin *q = c->q;
    const size_t k = q->k;
    const float maxq = (float)((1u << q->bits) - 1u);
    uint8_t *codes = q->codes + row * k;
    size_t moved = 0;

    for (size_t i = 0; i < k; i++) {
        float s, z, was, code;
        size_t at;

        if (i % LINE == 0 && i + LINE <= k && all_below(r + i, least + i, LINE)) {
            i += LINE - 1; /* r changes with a move only */
            continue;
        }
        if (fabsf(r[i]) < least[i])
            continue;
        at = slot_of(q, row, i);
        s = q->scales[at];
        z = (float)q->zeros[at];
        was = (float)codes[i];
        code = nb_clampf(nb_rne(was - z + r[i] / diag[i] / s) + z, 0.0f, maxq);
        if (code == was || code != code || !(diag[i] > 0.0f))
            continue;
        codes[i] = (uint8_t)code;
        push(r, c->h + i * k, (code - was) * s, k);
        moved++;
    }
    return moved;
}

/* d[n] = w - v for inputs on one grid */
NB_WIDE static void less(float *restrict d, const float *restrict w, const uint8_t *restrict codes, float s, float z, size_t n)
{
    for (size_t i = 0; i < n; i++)
        d[i] = w[i] - ((float)codes[i] - z) * s;
}

/* d[k] = w - v, and, unless it is NULL, least[k]. */
static void difference(const struct refine_ctx *c, size_t row, float *d, float *least, const float *diag)
{
    const nb_qlin *q = c->q;
    const size_t step = q->g_idx ? 1 : q->g;

    for (size_t i = 0; i < q->k; i += step) {
        const size_t at = slot_of(q, row, i), all = row * q->k + i, n = q->k - i < step ? q->k - i : step;
        less(d + i, c->w + all, q->codes + all, q->scales[at], (float)q->zeros[at], n);
        if (least)
            half_steps(least + i, diag + i, q->scales[at], n);
    }
}

static void refine_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct refine_ctx *c = user;
    const size_t k = c->q->k;
    float *d = c->scratch + (size_t)thread * (3 * ROWS + 1) * k, *r = d + ROWS * k, *least = r + ROWS * k, *diag = least + ROWS * k;

    for (size_t i = 0; i < k; i++)
        diag[i] = c->h[i * k + i];
    for (size_t t = begin; t < end; t++) {
        const size_t r0 = t * ROWS, rows = c->q->n - r0 < ROWS ? c->q->n - r0 : ROWS;

        for (size_t i = 0; i < rows; i++)
            difference(c, r0 + i, d + i * k, least + i * k, diag);
        nb_gemm_nn(rows, k, k, d, k, c->h, k, r, k);
        for (size_t i = 0; i < rows; i++) {
            size_t moved = 1;

            c->error[0][r0 + i] = nb_dot64(d + i * k, r + i * k, k);
            for (unsigned s = 0; s < c->sweeps && moved > 0 && isfinite(c->error[0][r0 + i]); s++) {
                moved = sweep(c, r0 + i, r + i * k, least + i * k, diag);
                c->moved[r0 + i] += moved;
            }
            difference(c, r0 + i, d + i * k, NULL, NULL);
            c->error[1][r0 + i] = nb_dot64(d + i * k, r + i * k, k);
        }
    }
}

nb_status nb_refine(nb_pool *pool, unsigned sweeps, const float *h, const float *w, nb_qlin *q, nb_refine_result *res, nb_err *err)
{
    struct refine_ctx c = { .sweeps = sweeps, .h = h, .w = w, .q = q };
    nb_status rc = NB_OK;

    memset(res, 0, sizeof *res);
    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * (3 * ROWS + 1), q->k * sizeof *c.scratch);
    c.error[0] = nb_alloc_array(q->n, sizeof **c.error);
    c.error[1] = nb_alloc_array(q->n, sizeof **c.error);
    c.moved = nb_calloc(q->n, sizeof *c.moved);
    if (!c.scratch || !c.error[0] || !c.error[1] || !c.moved) {
        rc = nb_enomem(err, "the refinement of a linear");
        goto done;
    }
    nb_parallel_for(pool, (q->n + ROWS - 1) / ROWS, 1, refine_rows, &c);
    for (size_t i = 0; i < q->n; i++) {
        res->before += c.error[0][i];
        res->after += c.error[1][i];
        res->moved += c.moved[i];
    }
done:
    nb_free(c.moved);
    nb_free(c.error[1]);
    nb_free(c.error[0]);
    nb_free(c.scratch);
    return rc;
}
