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

/* n groups of g weights: clamp(rne(w / s) + z, 0, maxq). The clamp may come first, its ends are whole numbers. */
NB_WIDE static void codes_of(const float *restrict w, size_t g, size_t n, const float *s, const float *z, float maxq,
                             uint8_t *restrict code)
{
    const float magic = 12582912.0f;

    for (size_t j = 0; j < n; j++, w += g, code += g) {
        const float step = s[j], zero = z[j], lo = -zero, hi = maxq - zero;
        for (size_t i = 0; i < g; i++) {
            float v = nb_clampf(w[i] / step, lo, hi);
            v = (v + magic) - magic + zero;
            code[i] = (uint8_t)(int32_t)(v == v ? v : 0.0f); /* the scale of such a group is refused below */
        }
    }
}

/* The sum of values times zero is NaN when one of them is NaN or infinite. */
NB_WIDE static bool row_finite(const float *w, size_t n)
{
    float sum[LANES] = { 0 }, all = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            sum[j] += w[i + (size_t)j] * 0.0f;
    for (; i < n; i++)
        sum[0] += w[i] * 0.0f;
    for (int j = 0; j < LANES; j++)
        all += sum[j];
    return all == 0.0f;
}

/* The bits of a float as a whole number of the same order, and back. */
static inline int32_t ordered(int32_t bits)
{
    return bits ^ (bits >> 31 & 0x7fffffff);
}

/* As nb_grid_range, of n groups of finite values: the least whole number is found in any order, so in vectors. */
NB_WIDE static void ranges_of(const float *w, size_t g, size_t n, float *lo, float *hi)
{
    for (size_t j = 0; j < n; j++, w += g) {
        int32_t least = INT32_MAX, most = INT32_MIN;
        for (size_t i = 0; i < g; i++) {
            const int32_t v = ordered((int32_t)nb_bits_from_f32(w[i]));
            least = v < least ? v : least;
            most = v > most ? v : most;
        }
        lo[j] = nb_f32_from_bits((uint32_t)ordered(least));
        hi[j] = nb_f32_from_bits((uint32_t)ordered(most));
    }
}

/* nb_grid_fit of n asymmetric groups whose scales are stored as F16, branch by branch the same. false: a scale is not a normal number
 * of that type, and nothing is valid. */
NB_WIDE static bool fit_f16(float maxq, size_t n, const float *restrict lo, const float *restrict hi, float *restrict s, float *restrict z)
{
    uint32_t odd = 0;

    for (size_t j = 0; j < n; j++) {
        const float range = hi[j] - lo[j], step = (range < 1e-5f ? 1e-5f : range) / maxq;
        const uint32_t u = nb_bits_from_f32(step), r = (u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu;
        z[j] = nb_clampf(-nb_rne(lo[j] / step), 0.0f, maxq);
        s[j] = nb_f32_from_bits(r);
        odd |= (uint32_t)(u - 0x38800000u > 0x0effe000u); /* 2^-14 .. 65504 */
    }
    return odd == 0;
}

static void fit_all(const nb_grid *grid, const float *w, size_t n, const float *lo, const float *hi, float *s, float *z)
{
    if (!grid->sym && !grid->shrinks && grid->stored == NB_DT_F16 && fit_f16(nb_grid_max(grid), n, lo, hi, s, z))
        return;
    for (size_t j = 0; j < n; j++) {
        nb_grid_fit(grid, lo[j], hi[j], &s[j], &z[j]);
        if (grid->shrinks)
            shrink(grid, w + j * grid->g, grid->g, lo[j], hi[j], &s[j], &z[j]);
    }
}

static void quantize_row(const nb_grid *grid, const float *row, nb_qlin *q, size_t r)
{
    enum { AT_ONCE = 64 };
    float lo[AT_ONCE], hi[AT_ONCE], s[AT_ONCE], z[AT_ONCE];

    for (size_t j = 0; j < q->n_groups; j += AT_ONCE) {
        const size_t n = q->n_groups - j < AT_ONCE ? q->n_groups - j : AT_ONCE, at = r * q->n_groups + j;
        const float *w = row + j * q->g;

        ranges_of(w, q->g, n, lo, hi);
        fit_all(grid, w, n, lo, hi, s, z);
        codes_of(w, q->g, n, s, z, nb_grid_max(grid), q->codes + r * q->k + j * q->g);
        for (size_t i = 0; i < n; i++) {
            q->scales[at + i] = s[i];
            q->zeros[at + i] = (uint8_t)z[i];
        }
    }
}

bool nb_rtn_row(const nb_grid *grid, const float *w, nb_qlin *q, size_t r)
{
    const nb_grid own = { .g = grid->g, .bits = grid->bits, .sym = grid->sym, .shrinks = grid->shrinks, .stored = q->scale_dtype };
    bool ok = row_finite(w, q->k);

    if (ok)
        quantize_row(&own, w, q, r);
    for (size_t j = 0; ok && j < q->n_groups; j++)
        ok = q->scales[r * q->n_groups + j] > 0.0f && isfinite(q->scales[r * q->n_groups + j]);
    return ok;
}

static void final_rows(void *user, size_t begin, size_t end, int thread)
{
    const struct final_ctx *c = user;

    (void)thread;
    for (size_t r = begin; r < end; r++)
        quantize_row(c->grid, c->w + r * c->q->k, c->q, r);
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

nb_status nb_rtn_finite(const float *w, size_t n, nb_err *err)
{
    enum { STEP = 1024 };
    size_t bad = 0, first = 0;

    for (; first + STEP <= n && row_finite(w + first, STEP); first += STEP) {
    }
    for (size_t i = first; i < n; i++)
        if (!isfinite(w[i]) && bad++ == 0)
            first = i;
    if (bad)
        return nb_fail(err, NB_ENUMERIC, "num.nonfinite_weight", "NU-01",
                       "%zu weights are NaN or infinite (first at element %zu); they cannot be quantized", bad, first);
    return NB_OK;
}
