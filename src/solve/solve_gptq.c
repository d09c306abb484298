/* solve_gptq.c - order, damping and factor of an input; the blocked solve of a linear. */
#include "solve/solve_gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "solve/chol.h"
#include "solve/linalg.h"
#include "solve/round.h"
#include "solve/solve_rtn.h"

enum { BLOCK = 128, ROWS = 64, SHRINKS = 80, STRIDE = 8, FLOORS = 7 };
static const double damp_step = 0.01;

/* ---- order ---- */

typedef struct keyed {
    double key;
    uint32_t at;
} keyed;

static int falling(const void *a, const void *b)
{
    const keyed *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? 1 : -1;
    return x->at < y->at ? -1 : 1;
}

/* order[] of the k inputs; keys are compared as float32, like the references, so that ties are theirs. */
static nb_status find_order(const nb_gptq_opts *o, const double *diag, size_t k, uint32_t *order, nb_err *err)
{
    const size_t g = o->g, whole = k / g;
    keyed *in = nb_alloc_array(k, sizeof *in), *groups = nb_alloc_array(whole + 1, sizeof *groups);

    if (!in || !groups) {
        nb_free(in);
        nb_free(groups);
        return nb_enomem(err, "the order of inputs");
    }
    for (size_t i = 0; i < k; i++)
        in[i] = (keyed){ .key = (double)(float)diag[i], .at = (uint32_t)i };
    if (o->order == NB_GPTQ_DESC) {
        qsort(in, k, sizeof *in, falling);
    } else if (o->order == NB_GPTQ_GAR) {
        for (size_t j = 0; j < whole; j++) {
            qsort(in + j * g, g, sizeof *in, falling);
            groups[j] = (keyed){ .key = in[j * g].key, .at = (uint32_t)j };
        }
        qsort(groups, whole, sizeof *groups, falling);
        for (size_t j = 0; j < whole; j++)
            for (size_t i = 0; i < g; i++)
                order[j * g + i] = in[groups[j].at * g + i].at;
    }
    for (size_t i = o->order == NB_GPTQ_GAR ? whole * g : 0; i < k; i++)
        order[i] = in[i].at;
    nb_free(groups);
    nb_free(in);
    return NB_OK;
}

/* ---- factor ---- */

struct permute_ctx {
    double *h, *scratch; /* scratch [threads][k] */
    const uint32_t *from;
    size_t k;
};

static void permute_columns(void *user, size_t begin, size_t end, int thread)
{
    const struct permute_ctx *c = user;
    double *t = c->scratch + (size_t)thread * c->k;

    for (size_t r = begin; r < end; r++) {
        double *row = c->h + r * c->k;
        for (size_t i = 0; i < c->k; i++)
            t[i] = row[c->from[i]];
        memcpy(row, t, c->k * sizeof *t);
    }
}

/* h[i][j] becomes h[from[i]][from[j]], in place: rows along the cycles of the permutation, then columns row by row. */
static nb_status permute(nb_pool *pool, double *h, const uint32_t *from, size_t k, nb_err *err)
{
    struct permute_ctx c = { .h = h, .from = from, .k = k };
    uint8_t *moved = nb_calloc(k, sizeof *moved);

    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool), k * sizeof *c.scratch);
    if (!moved || !c.scratch) {
        nb_free(moved);
        nb_free(c.scratch);
        return nb_enomem(err, "the order of inputs");
    }
    for (size_t start = 0; start < k; start++) {
        size_t i = start;
        if (moved[start])
            continue;
        memcpy(c.scratch, h + start * k, k * sizeof *h);
        for (; from[i] != start; i = from[i]) {
            memcpy(h + i * k, h + from[i] * k, k * sizeof *h);
            moved[i] = 1;
        }
        memcpy(h + i * k, c.scratch, k * sizeof *h);
        moved[i] = 1;
    }
    nb_parallel_for(pool, k, 16, permute_columns, &c);
    nb_free(c.scratch);
    nb_free(moved);
    return NB_OK;
}

struct ladder {
    nb_pool *pool;
    double *h; /* upper triangle: off-diagonal moments; lower: the factor tried last */
    const double *diag;
    size_t k;
};

static void restore_rows(void *user, size_t begin, size_t end, int thread)
{
    enum { SIDE = 16 }; /* columns whose mirror images stay in the cache */
    const struct ladder *l = user;

    (void)thread;
    for (size_t j0 = 0; j0 < end; j0 += SIDE)
        for (size_t i = begin; i < end; i++)
            for (size_t j = j0; j < j0 + SIDE && j < i; j++)
                l->h[i * l->k + j] = l->h[j * l->k + i];
}

/* Factor h + damp * mean, its diagonal raised to at least `least` (when > 0). */
static bool try_damp(struct ladder *l, double least, double damp)
{
    const size_t k = l->k;
    double mean = 0;

    nb_parallel_for(l->pool, k, 16, restore_rows, l);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < k; i++) {
            double d = l->diag[i];
            if (least > 0)
                d = d + least > least ? d + least : least;
            if (pass == 0)
                mean += d / (double)k;
            else
                l->h[i * k + i] = d + damp * mean;
        }
    return nb_cholesky(l->pool, l->h, k);
}

/* damp after n steps, added up one by one as the references do. */
static double after_steps(double damp, size_t n)
{
    while (n--)
        damp += damp_step;
    return damp;
}

/* The first share below 1 whose matrix is positive definite, found by bisection (more damping never hurts). 0: none. */
static double climb(struct ladder *l, double least, double first)
{
    size_t lo = 0, hi = 0; /* lo fails, hi works */

    if (try_damp(l, least, first))
        return first;
    while (after_steps(first, hi + 1) < 1.0)
        hi++;
    if (hi == 0 || !try_damp(l, least, after_steps(first, hi)))
        return 0;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (try_damp(l, least, after_steps(first, mid)))
            hi = mid;
        else
            lo = mid;
    }
    (void)try_damp(l, least, after_steps(first, hi));
    return after_steps(first, hi);
}

/* Leaves the factor of the damped matrix in h. */
static void damp_and_factor(nb_gptq_factor *f, const nb_gptq_opts *o, struct ladder *l)
{
    double top = 0;
    bool finite = true;

    for (size_t i = 0; i < l->k; i++) {
        top = fabs(l->diag[i]) > top ? fabs(l->diag[i]) : top;
        finite = finite && isfinite(l->diag[i]);
    }
    f->damp = 0;
    for (int i = 0; finite && f->damp == 0 && i < FLOORS; i++)
        f->damp = climb(l, i == 0 ? 0 : top * 1e-6 * pow(10, i - 1), o->damp);
    f->failed = f->damp == 0;
    if (f->failed)
        f->damp = 1;
}

nb_status nb_gptq_factor_make(nb_gptq_factor *f, const nb_gptq_opts *o, double *h, size_t k, nb_pool *pool, nb_err *err)
{
    struct ladder l = { .pool = pool, .h = h, .k = k };
    uint32_t *flipped = nb_alloc_array(k, sizeof *flipped);
    double *diag = nb_alloc_array(k, sizeof *diag);
    nb_status rc = NB_ENOMEM;

    memset(f, 0, sizeof *f);
    f->k = k;
    f->order = nb_alloc_array(k, sizeof *f->order);
    f->dead = nb_calloc(k, sizeof *f->dead);
    f->u = nb_alloc_array(k, k * sizeof *f->u);
    if (!flipped || !diag || !f->order || !f->dead || !f->u) {
        rc = nb_enomem(err, "the second moments of one input");
        goto done;
    }
    for (size_t i = 0; i < k; i++) {
        if (h[i * k + i] == 0.0) {
            h[i * k + i] = 1.0;
            f->dead[i] = 1;
            f->n_dead++;
        }
        diag[i] = h[i * k + i];
    }
    rc = find_order(o, diag, k, f->order, err);
    for (size_t i = 0; rc == NB_OK && i < k; i++)
        flipped[i] = f->order[k - 1 - i];
    if (rc == NB_OK)
        rc = permute(pool, h, flipped, k, err);
    if (rc != NB_OK)
        goto done;
    for (size_t i = 0; i < k; i++)
        diag[i] = h[i * k + i];
    l.diag = diag;
    damp_and_factor(f, o, &l);
    if (!f->failed)
        rc = nb_chol_inverse_flipped(pool, h, k, f->u, err);
    for (size_t i = 0; rc == NB_OK && !f->failed && i < k; i++)
        f->failed = !(f->u[i * k + i] > 0.0f) || !isfinite(f->u[i * k + i]);
done:
    nb_free(diag);
    nb_free(flipped);
    return rc;
}

nb_status nb_gptq_moments_back(const nb_gptq_factor *f, double *h, const double *diag, nb_pool *pool, nb_err *err)
{
    const size_t k = f->k;
    struct ladder l = { .h = h, .k = k };
    uint32_t *at = nb_alloc_array(k, sizeof *at);
    nb_status rc;

    if (!at)
        return nb_enomem(err, "the order of inputs");
    for (size_t i = 0; i < k; i++) /* where input order[k - 1 - i] stands */
        at[f->order[k - 1 - i]] = (uint32_t)i;
    nb_parallel_for(pool, k, 16, restore_rows, &l);
    rc = permute(pool, h, at, k, err);
    nb_free(at);
    for (size_t i = 0; rc == NB_OK && i < k; i++) {
        double *row = h + i * k;
        row[i] = diag[i];
        for (size_t j = 0; j < k; j++) { /* byte by byte: float32 over float64, never ahead of what is still to be read */
            const float v = (float)row[j];
            memcpy((char *)h + (i * k + j) * sizeof v, &v, sizeof v);
        }
    }
    return rc;
}

void nb_gptq_factor_clear(nb_gptq_factor *f)
{
    nb_free(f->order);
    nb_free(f->dead);
    nb_free(f->u);
    memset(f, 0, sizeof *f);
}

/* ---- grid ---- */

typedef struct grid {
    float s, z;
} grid;

struct solve_ctx {
    const nb_gptq_factor *f;
    const nb_gptq_opts *o;
    const float *w;
    nb_qlin *q;
    bool plain;          /* no error feedback */
    float *scratch;      /* [threads][ROWS][k] */
    struct lanes *lanes; /* [threads] */
    double *loss;        /* [tasks][k]        */
};

static float round_to(float w, grid g, float maxq, float *code)
{
    *code = nb_clampf(nb_rne(w / g.s) + g.z, 0.0f, maxq);
    return g.s * (*code - g.z);
}

/* Σ |error|^power of n weights on a grid; stops when `least` is passed. */
static double power_error(const float *w, size_t n, grid g, float maxq, float power, double least)
{
    double e = 0;

    for (size_t j = 0; j < n && e < least; j++) { /* more weights only add to it */
        float code;
        e += (double)powf(fabsf(round_to(w[j], g, maxq, &code) - w[j]), power);
    }
    return e;
}

/* What the largest and the smallest weight alone are off when a grid ends so far before them; less than they are. It only grows from
 * one narrower grid to the next. */
static double beyond(float high, float low, float power)
{
    double e = 0;

    if (high > 0.0f)
        e += 0.99 * (double)(power == 2.0f ? high * high : powf(high, power));
    if (low > 0.0f)
        e += 0.99 * (double)(power == 2.0f ? low * low : powf(low, power));
    return e;
}

/* What a search over narrower grids has found. */
typedef struct found {
    double least;
    int at; /* the share of the range is 1 - at / 100 */
    grid best;
} found;

/* Try one narrower grid; false: neither it nor a narrower one can be better. */
static bool try_grid(const struct solve_ctx *c, const float *w, size_t n, float lo, float hi, grid g, int at, found *f)
{
    const float maxq = (float)((1u << c->o->bits) - 1u), power = (float)c->o->mse;
    const int around = c->o->bits == 2 && !c->o->sym; /* four values: the neighbours of the zero point, too */
    const nb_grid bits = { .g = n, .bits = c->o->bits };
    const float p = (float)(1.0 - at / 100.0), s = (p * hi - p * lo) / maxq, z = c->o->sym ? g.z : nb_rne(-(p * lo) / s);

    if (beyond(hi - p * hi - 2 * s, c->o->sym ? 0.0f : p * lo - lo - 2 * s, power) > f->least)
        return false;
    for (int dz = -around; dz <= around; dz++) {
        const grid t = { nb_stored_f32(s, c->q->scale_dtype), nb_clampf(z + (float)dz, 0.0f, maxq) };
        const double e = power == 2.0f ? nb_grid_error(&bits, w, n, t.s, t.z) : power_error(w, n, t, maxq, power, f->least);
        if (e < f->least)
            *f = (found){ e, at, t };
    }
    return true;
}

/* Shrink the grid step by step while that lowers Σ |error|^mse; the first minimum wins. Unless compat is on, every STRIDE-th step, then
 * the neighbours of the best half as far away, and so on. */
static grid shrink(const struct solve_ctx *c, const float *w, size_t n, float lo, float hi, grid g)
{
    const int stride = c->o->compat ? 1 : STRIDE;
    found f = { HUGE_VAL, 0, g };

    for (int i = 0; i < SHRINKS && try_grid(c, w, n, lo, hi, g, i, &f); i += stride)
        ;
    for (int far = stride / 2; far > 0; far /= 2) {
        const int best = f.at;

        for (int i = best - far; i <= best + far; i += 2 * far)
            if (i > 0 && i < SHRINKS)
                (void)try_grid(c, w, n, lo, hi, g, i, &f);
    }
    return f.best;
}

/* The grid of n weights. It always holds zero. */
static grid fit(const struct solve_ctx *c, const float *w, size_t n)
{
    const float maxq = (float)((1u << c->o->bits) - 1u);
    float lo, hi;
    grid g;

    nb_grid_range(w, n, &lo, &hi);
    lo = lo < 0.0f ? lo : 0.0f;
    hi = hi > 0.0f ? hi : 0.0f;
    if (c->o->sym) {
        hi = -lo > hi ? -lo : hi;
        if (lo < 0.0f || !c->o->compat)
            lo = -hi;
    }
    if (lo == 0.0f && hi == 0.0f) {
        lo = -1.0f;
        hi = 1.0f;
    }
    g.s = (hi - lo) / maxq;
    g.z = c->o->sym ? (maxq + 1.0f) / 2.0f : nb_clampf(nb_rne(-lo / g.s), 0.0f, maxq);
    if (c->o->mse > 0)
        return shrink(c, w, n, lo, hi, g);
    g.s = nb_stored_f32(g.s, c->q->scale_dtype);
    return g;
}

/* Are all grids known before the first step? */
static bool is_early(const struct solve_ctx *c)
{
    return c->plain || c->o->static_groups || c->q->g == c->q->k;
}

/* Group of the input at step i, as q stores it. */
static size_t group_at(const struct solve_ctx *c, size_t i)
{
    if (c->o->order == NB_GPTQ_DESC && !is_early(c))
        return i / c->q->g;
    return c->f->order[i] / c->q->g;
}

static grid get_grid(const struct solve_ctx *c, size_t r, size_t group)
{
    const size_t at = r * c->q->n_groups + group;

    return (grid){ c->q->scales[at], (float)c->q->zeros[at] };
}

static void put_grid(const struct solve_ctx *c, size_t r, size_t group, grid g)
{
    const size_t at = r * c->q->n_groups + group;

    c->q->scales[at] = g.s;
    c->q->zeros[at] = (uint8_t)g.z;
}

/* Grids that do not wait for corrections: one group per output from the row as it is, static groups with dead inputs at 0. */
static void fit_early(const struct solve_ctx *c, size_t r, float *t)
{
    const size_t k = c->q->k, g = c->q->g;

    if (g == k) {
        put_grid(c, r, 0, fit(c, c->w + r * k, k));
        return;
    }
    for (size_t i = 0; i < k; i++)
        t[i] = c->f->dead[i] ? 0.0f : c->w[r * k + i];
    for (size_t i = 0; i < k; i += g)
        put_grid(c, r, i / g, fit(c, t + i, k - i < g ? k - i : g));
}

/* ---- solve ---- */

/* End of the block that begins at step i1: 128 steps, and unless compat is on, never across the beginning of a group that
 * the block does not hold whole, so that each grid sees all corrections before it. */
static size_t block_end(const struct solve_ctx *c, size_t i1)
{
    const size_t k = c->q->k, g = c->q->g;
    size_t n = BLOCK;

    if (!c->o->compat && !is_early(c)) {
        if (g <= BLOCK)
            n = BLOCK / g * g;
        else if (g - i1 % g < BLOCK)
            n = g - i1 % g;
    }
    return k - i1 < n ? k : i1 + n;
}

/* ROWS outputs beside one another: their weights in a block of steps, the errors to pass on, the grids they are on now. */
typedef struct lanes {
    float w[BLOCK][ROWS], e[BLOCK][ROWS];
    float s[ROWS], z[ROWS], code[ROWS], line[BLOCK];
} lanes;

/* Round the weights v of one step; d: what each is off. */
NB_WIDE static void round_lanes(const float *restrict v, const float *restrict s, const float *restrict z, float maxq, float *restrict code,
                                float *restrict d)
{
    for (size_t r = 0; r < ROWS; r++) {
        const grid own = { s[r], z[r] };
        d[r] = v[r] - round_to(v[r], own, maxq, &code[r]);
    }
}

/* w[j] -= e u[j] for n steps */
NB_WIDE static void pass_on(float (*restrict w)[ROWS], const float *restrict u, float *restrict e, float own, size_t n)
{
    for (size_t r = 0; r < ROWS; r++)
        e[r] /= own;
    for (size_t j = 0; j < n; j++)
        for (size_t r = 0; r < ROWS; r++)
            w[j][r] -= e[r] * u[j];
}

/* Grids of `rows` outputs for the group that begins at step i, from their weights as they are now (compat: as they were when the block
 * began, in w[rows][k]). */
static void fit_lanes(const struct solve_ctx *c, size_t r0, size_t rows, size_t i, size_t i1, size_t i2, const float *w, lanes *l)
{
    const size_t k = c->q->k, n = k - i < c->q->g ? k - i : c->q->g;
    const bool now = !c->o->compat && i + n <= i2;

    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; now && j < n; j++)
            l->line[j] = l->w[i - i1 + j][r];
        put_grid(c, r0 + r, group_at(c, i), fit(c, now ? l->line : w + r * k + i, n));
    }
}

/* `rows` outputs from r0 on, steps [i1, i2); w[rows][k]: the weights of whole rows as they were when the block began. */
static void solve_block(const struct solve_ctx *c, size_t r0, size_t rows, size_t i1, size_t i2, const float *w, lanes *l, double *loss)
{
    const size_t k = c->q->k, g = c->q->g;
    const float maxq = (float)((1u << c->o->bits) - 1u);
    const bool early = is_early(c);
    size_t group = SIZE_MAX;

    for (size_t i = i1; i < i2; i++)
        for (size_t r = 0; r < ROWS; r++)
            l->w[i - i1][r] = r < rows ? w[r * k + i] : 0.0f;
    for (size_t r = rows; r < ROWS; r++) {
        l->s[r] = 1.0f;
        l->z[r] = 0.0f;
    }
    for (size_t i = i1; i < i2; i++) {
        const float *u = c->f->u + i * k;
        float *e = l->e[i - i1];

        if (!early && i % g == 0)
            fit_lanes(c, r0, rows, i, i1, i2, w, l);
        if (group_at(c, i) != group || (!early && i % g == 0)) {
            group = group_at(c, i);
            for (size_t r = 0; r < rows; r++) {
                const grid own = get_grid(c, r0 + r, group);
                l->s[r] = own.s;
                l->z[r] = own.z;
            }
        }
        round_lanes(l->w[i - i1], l->s, l->z, maxq, l->code, e);
        for (size_t r = 0; r < rows; r++)
            c->q->codes[(r0 + r) * k + c->f->order[i]] = l->code[r] == l->code[r] ? (uint8_t)l->code[r] : 0;
        if (c->plain)
            continue;
        pass_on(l->w + (i - i1 + 1), u + i + 1, e, u[i], i2 - i - 1);
        for (size_t r = 0; r < rows; r++)
            loss[i] += (double)e[r] * (double)e[r] / 2.0;
    }
}

/* ROWS outputs at a time, all steps. */
static void solve_stripes(void *user, size_t begin, size_t end, int thread)
{
    const struct solve_ctx *c = user;
    const size_t k = c->q->k;
    float *w = c->scratch + (size_t)thread * ROWS * k;
    lanes *l = c->lanes + thread;

    for (size_t t = begin; t < end; t++) {
        const size_t r0 = t * ROWS, rows = c->q->n - r0 < ROWS ? c->q->n - r0 : ROWS;

        for (size_t r = 0; is_early(c) && r < rows; r++)
            fit_early(c, r0 + r, w);
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < k; i++) {
                const size_t at = c->f->order[i];
                w[r * k + i] = c->f->dead[at] ? 0.0f : c->w[(r0 + r) * k + at];
            }
        for (size_t i1 = 0, i2; i1 < k; i1 = i2) {
            i2 = block_end(c, i1);
            solve_block(c, r0, rows, i1, i2, w, l, c->loss + t * k);
            if (i2 < k && !c->plain)
                nb_gemm_sub_tn(rows, k - i2, i2 - i1, l->e[0], ROWS, c->f->u + i1 * k + i2, k, w + i2, k);
        }
    }
}

/* Groups in the order of processing need the group of each input stored. */
static nb_status set_g_idx(const struct solve_ctx *c, nb_err *err)
{
    nb_status rc;

    if (c->o->order != NB_GPTQ_DESC || is_early(c))
        return NB_OK;
    rc = nb_qlin_init_gidx(c->q, err);
    for (size_t i = 0; rc == NB_OK && i < c->q->k; i++)
        c->q->g_idx[c->f->order[i]] = (uint32_t)group_at(c, i);
    return rc;
}

static void run(struct solve_ctx *c, nb_gptq_result *res, nb_pool *pool)
{
    const size_t k = c->q->k, tasks = (c->q->n + ROWS - 1) / ROWS;

    memset(c->loss, 0, tasks * k * sizeof *c->loss);
    nb_parallel_for(pool, tasks, 1, solve_stripes, c);
    res->loss = 0;
    for (size_t i = 0; i < k; i++) {
        for (size_t t = 1; t < tasks; t++)
            c->loss[i] += c->loss[t * k + i];
        res->loss += c->loss[i];
    }
}

nb_status nb_gptq_solve(const nb_gptq_factor *f, const nb_gptq_opts *o, const float *w, nb_qlin *q, nb_gptq_result *res, nb_pool *pool,
                        nb_err *err)
{
    struct solve_ctx c = { .f = f, .o = o, .w = w, .q = q, .plain = f->failed };
    nb_status rc = NB_OK;

    c.scratch = nb_alloc_array((size_t)nb_pool_threads(pool) * ROWS, q->k * sizeof *c.scratch);
    c.lanes = nb_alloc_array((size_t)nb_pool_threads(pool), sizeof *c.lanes);
    c.loss = nb_alloc_array((q->n + ROWS - 1) / ROWS, q->k * sizeof *c.loss);
    if (!c.scratch || !c.lanes || !c.loss) {
        rc = nb_enomem(err, "a linear");
        goto done;
    }
    run(&c, res, pool);
    if (!c.plain && !isfinite(res->loss)) {
        c.plain = true;
        run(&c, res, pool);
    }
    res->fallback = c.plain;
    if (res->column_loss)
        memcpy(res->column_loss, c.loss, q->k * sizeof *c.loss);
    rc = set_g_idx(&c, err);
    if (rc == NB_OK)
        rc = nb_rtn_scales_ok(q, err);
done:
    nb_free(c.loss);
    nb_free(c.lanes);
    nb_free(c.scratch);
    return rc;
}
