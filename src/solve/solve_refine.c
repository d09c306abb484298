/* solve_refine.c - coordinate descent on codes. */
#include "solve/solve_refine.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "solve/linalg.h"
#include "solve/round.h"

enum { ROWS = 64 };

struct refine_ctx {
    unsigned sweeps;
    const float *h, *w;
    nb_qlin *q;
    float *scratch;   /* [threads][2][ROWS][k] */
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

/* One sweep over an output; r[k] = (w - v) H follows. Returns how many codes moved. */
static size_t sweep(const struct refine_ctx *c, size_t row, float *r)
{
    nb_qlin *q = c->q;
    const size_t k = q->k;
    const float maxq = (float)((1u << q->bits) - 1u);
    uint8_t *codes = q->codes + row * k;
    size_t moved = 0, at = row * q->n_groups, next = q->g;

    for (size_t i = 0; i < k; i++) {
        float s, z, was, code;
        const float diag = c->h[i * k + i];

        if (i == next) {
            next += q->g;
            at++;
        }
        if (q->g_idx)
            at = slot_of(q, row, i);
        s = q->scales[at];
        if (fabsf(r[i]) < 0.499f * diag * s) /* less than half a step */
            continue;
        z = (float)q->zeros[at];
        was = (float)codes[i];
        code = nb_clampf(nb_rne(was - z + r[i] / diag / s) + z, 0.0f, maxq);
        if (code == was || code != code || !(diag > 0.0f))
            continue;
        codes[i] = (uint8_t)code;
        push(r, c->h + i * k, (code - was) * s, k);
        moved++;
    }
    return moved;
}

/* d[k] = w - v */
static void difference(const struct refine_ctx *c, size_t row, float *d)
{
    const nb_qlin *q = c->q;

    for (size_t i = 0; i < q->k; i++) {
        const size_t at = slot_of(q, row, i);
        d[i] = c->w[row * q->k + i] - ((float)q->codes[row * q->k + i] - (float)q->zeros[at]) * q->scales[at];
    }
}

static void refine_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct refine_ctx *c = user;
    const size_t k = c->q->k;
    float *d = c->scratch + (size_t)thread * 2 * ROWS * k, *r = d + ROWS * k;

    for (size_t t = begin; t < end; t++) {
        const size_t r0 = t * ROWS, rows = c->q->n - r0 < ROWS ? c->q->n - r0 : ROWS;

        for (size_t i = 0; i < rows; i++)
            difference(c, r0 + i, d + i * k);
        nb_gemm_nn(rows, k, k, d, k, c->h, k, r, k);
        for (size_t i = 0; i < rows; i++) {
            size_t moved = 1;

            c->error[0][r0 + i] = nb_dot64(d + i * k, r + i * k, k);
            for (unsigned s = 0; s < c->sweeps && moved > 0 && isfinite(c->error[0][r0 + i]); s++) {
                moved = sweep(c, r0 + i, r + i * k);
                c->moved[r0 + i] += moved;
            }
            difference(c, r0 + i, d + i * k);
            c->error[1][r0 + i] = nb_dot64(d + i * k, r + i * k, k);
        }
    }
}

nb_status nb_refine(nb_pool *pool, unsigned sweeps, const float *h, const float *w, nb_qlin *q, nb_refine_result *res, nb_err *err)
{
    struct refine_ctx c = { .sweeps = sweeps, .h = h, .w = w, .q = q };
    nb_status rc = NB_OK;

    memset(res, 0, sizeof *res);
    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * 2 * ROWS, q->k * sizeof *c.scratch);
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
