/* solve_rtn.c - rounding to nearest on the AWQ grid. */
#include "solve/solve_rtn.h"

#include <math.h>

#include "base/mem.h"
#include "solve/round.h"

void nb_grid_fit(const nb_grid *grid, float lo, float hi, float *s, float *z)
{
    const float maxq = nb_grid_max(grid), half = (maxq + 1.0f) / 2.0f;

    if (grid->sym) {
        const float a = -lo > hi ? -lo : hi;
        *s = (a < 1e-5f ? 1e-5f : a) / (half - 1.0f);
        *z = half;
    } else {
        const float range = hi - lo;
        *s = (range < 1e-5f ? 1e-5f : range) / maxq;
        *z = nb_clampf(-nb_rne(lo / *s), 0.0f, maxq);
    }
    *s = nb_stored_f32(*s, grid->stored);
}

void nb_grid_round(const nb_grid *grid, const float *restrict w, size_t n, float s, float z, float *restrict out)
{
    const float maxq = nb_grid_max(grid);

    for (size_t i = 0; i < n; i++)
        out[i] = (nb_clampf(nb_rne(w[i] / s) + z, 0.0f, maxq) - z) * s;
}

enum { TILE = 64, LANES = 16 };

/* Smallest and largest value seen so far, in sixteen lanes: elementwise loops, which vectorise. */
typedef struct span {
    float lo[LANES], hi[LANES];
} span;

static void span_init(span *p, float first)
{
    for (int j = 0; j < LANES; j++)
        p->lo[j] = p->hi[j] = first;
}

NB_WIDE static void span_add(span *p, const float *w, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            p->lo[j] = w[i + j] < p->lo[j] ? w[i + j] : p->lo[j];
            p->hi[j] = w[i + j] > p->hi[j] ? w[i + j] : p->hi[j];
        }
    for (; i < n; i++) {
        p->lo[0] = w[i] < p->lo[0] ? w[i] : p->lo[0];
        p->hi[0] = w[i] > p->hi[0] ? w[i] : p->hi[0];
    }
}

static void span_get(const span *p, float *lo, float *hi)
{
    *lo = p->lo[0];
    *hi = p->hi[0];
    for (int j = 1; j < LANES; j++) {
        *lo = p->lo[j] < *lo ? p->lo[j] : *lo;
        *hi = p->hi[j] > *hi ? p->hi[j] : *hi;
    }
}

void nb_grid_range(const float *w, size_t n, float *lo, float *hi)
{
    span p;

    span_init(&p, w[0]);
    span_add(&p, w, n);
    span_get(&p, lo, hi);
}

/* One group of one row, in tiles on the stack, so that out may be w. */
static void pseudo_group(const nb_grid *grid, const float *w, const float *s, float *out)
{
    const size_t g = grid->g;
    float lo, hi, step, z, t[TILE], u[TILE];
    span p;

    span_init(&p, s ? w[0] * s[0] : w[0]);
    for (size_t i0 = 0; i0 < g; i0 += TILE) {
        const size_t m = g - i0 < TILE ? g - i0 : TILE;
        for (size_t i = 0; i < m; i++)
            t[i] = s ? w[i0 + i] * s[i0 + i] : w[i0 + i];
        span_add(&p, t, m);
    }
    span_get(&p, &lo, &hi);
    nb_grid_fit(grid, lo, hi, &step, &z);
    for (size_t i0 = 0; i0 < g; i0 += TILE) {
        const size_t m = g - i0 < TILE ? g - i0 : TILE;
        for (size_t i = 0; i < m; i++)
            t[i] = s ? w[i0 + i] * s[i0 + i] : w[i0 + i];
        nb_grid_round(grid, t, m, step, z, u);
        for (size_t i = 0; i < m; i++)
            out[i0 + i] = s ? u[i] / s[i0 + i] : u[i];
    }
}

struct pseudo_ctx {
    const nb_grid *grid;
    const float *w, *s;
    float *out;
    size_t k;
};

static void pseudo_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct pseudo_ctx *c = user;

    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t k0 = 0; k0 < c->k; k0 += c->grid->g)
            pseudo_group(c->grid, c->w + r * c->k + k0, c->s ? c->s + k0 : NULL, c->out + r * c->k + k0);
}

void nb_rtn_pseudo(nb_pool *pool, const nb_grid *grid, const float *w, const float *s, size_t n, size_t k, float *out)
{
    struct pseudo_ctx c = { .grid = grid, .w = w, .s = s, .out = out, .k = k };

    nb_parallel_for(pool, n, 16, pseudo_rows, &c);
}

/* Squared error of n weights on a grid, in sixteen lanes. It only compares grids: a product with 1/s serves. */
/* Static: a function with clones is exported whatever the visibility. */
NB_WIDE static double grid_error(const nb_grid *grid, const float *restrict w, size_t n, float s, float z)
{
    const float maxq = nb_grid_max(grid), inv = 1.0f / s;
    float e[LANES] = { 0 };
    double sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float d = (nb_clampf(nb_rne(w[i + (size_t)j] * inv) + z, 0.0f, maxq) - z) * s - w[i + (size_t)j];
            e[j] += d * d;
        }
    for (; i < n; i++) {
        const float d = (nb_clampf(nb_rne(w[i] * inv) + z, 0.0f, maxq) - z) * s - w[i];
        e[i % LANES] += d * d;
    }
    for (int j = 0; j < LANES; j++)
        sum += (double)e[j];
    return sum;
}

double nb_grid_error(const nb_grid *grid, const float *restrict w, size_t n, float s, float z)
{
    return grid_error(grid, w, n, s, z);
}

/* The first narrower grid of a range with the least error; *s and *z come in as those of the whole range. */
static void shrink(const nb_grid *grid, const float *w, size_t n, float lo, float hi, float *s, float *z)
{
    double least = nb_grid_error(grid, w, n, *s, *z);

    for (int i = 1; i <= 50; i++) {
        const float p = (float)(1.0 - i / 100.0);
        double e;
        float s1, z1;

        nb_grid_fit(grid, p * lo, p * hi, &s1, &z1);
        e = nb_grid_error(grid, w, n, s1, z1);
        if (e < least) {
            least = e;
            *s = s1;
            *z = z1;
        }
    }
}

struct final_ctx {
    const nb_grid *grid;
    const float *w;
    nb_qlin *q;
};

NB_WIDE static void codes_of(const float *restrict w, size_t n, float s, float z, float maxq, uint8_t *restrict code)
{
    for (size_t i = 0; i < n; i++) {
        const float v = nb_clampf(nb_rne(w[i] / s) + z, 0.0f, maxq);
        code[i] = v == v ? (uint8_t)v : 0; /* the scale of such a group is refused below */
    }
}

static void final_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct final_ctx *c = user;
    nb_qlin *q = c->q;
    const float maxq = nb_grid_max(c->grid);

    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t j = 0; j < q->n_groups; j++) {
            const float *w = c->w + r * q->k + j * q->g;
            uint8_t *code = q->codes + r * q->k + j * q->g;
            float lo, hi, s, z;

            nb_grid_range(w, q->g, &lo, &hi);
            nb_grid_fit(c->grid, lo, hi, &s, &z);
            if (c->grid->shrinks)
                shrink(c->grid, w, q->g, lo, hi, &s, &z);
            q->scales[r * q->n_groups + j] = s;
            q->zeros[r * q->n_groups + j] = (uint8_t)z;
            codes_of(w, q->g, s, z, maxq, code);
        }
}

nb_status nb_rtn_scales_ok(const nb_qlin *q, nb_err *err)
{
    for (size_t i = 0; i < q->n * q->n_groups; i++)
        if (!(q->scales[i] > 0.0f) || !isfinite(q->scales[i]))
            return nb_fail(err, NB_ENUMERIC, "num.scale_range", "",
                           "the scale of output %zu, group %zu becomes %g in %s; store scales in a wider type (--scale-dtype bf16)",
                           i / q->n_groups, i % q->n_groups, (double)q->scales[i], nb_dtype_info(q->scale_dtype)->name);
    return NB_OK;
}

nb_status nb_rtn_quantize(nb_pool *pool, const nb_grid *grid, const float *w, nb_qlin *q, nb_err *err)
{
    const nb_grid own = { .g = grid->g, .bits = grid->bits, .sym = grid->sym, .shrinks = grid->shrinks, .stored = q->scale_dtype };
    struct final_ctx c = { .grid = &own, .w = w, .q = q };

    nb_parallel_for(pool, q->n, 16, final_rows, &c);
    return nb_rtn_scales_ok(q, err);
}

/* The sum of values times zero is NaN when one of them is NaN or infinite. */
static bool all_finite(const float *w)
{
    float sum = 0;

    for (int j = 0; j < LANES; j++)
        sum += w[j] * 0.0f;
    return sum == 0.0f;
}

nb_status nb_rtn_finite(const float *w, size_t n, nb_err *err)
{
    size_t bad = 0, first = 0;

    for (; first + LANES <= n && all_finite(w + first); first += LANES) {
    }
    for (size_t i = first; i < n; i++)
        if (!isfinite(w[i]) && bad++ == 0)
            first = i;
    if (bad)
        return nb_fail(err, NB_ENUMERIC, "num.nonfinite_weight", "NU-01",
                       "%zu weights are NaN or infinite (first at element %zu); they cannot be quantized", bad, first);
    return NB_OK;
}
