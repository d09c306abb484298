/* test_refine.c - what follows GPTQ: codes moved one at a time, weights shifted towards the original model. */
#include "golden.h"

#include <math.h>

#include "base/rng.h"
#include "solve/linalg.h"
#include "solve/solve_refine.h"
#include "solve/solve_rtn.h"
#include "solve/solve_shift.h"

enum { T = 300 };

/* Inputs that hang together, their second moments damped, weights, and the weights rounded plainly. */
typedef struct fixture {
    size_t n, k;
    float *x, *h, *w;
    nb_qlin q;
} fixture;

static void make(fixture *f, size_t n, size_t k, size_t g, unsigned bits)
{
    const nb_grid grid = { .g = g, .bits = bits, .stored = NB_DT_F16 };

    *f = (fixture){ .n = n, .k = k };
    f->x = nb_alloc_array(T * k, sizeof *f->x);
    f->h = nb_alloc_array(k * k, sizeof *f->h);
    f->w = nb_alloc_array(n * k, sizeof *f->w);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < k; i++)
            f->x[t * k + i] = (float)(nb_rng_normal(1, t, i) + 0.8 * nb_rng_normal(2, t, i / 4));
    for (size_t i = 0; i < n * k; i++)
        f->w[i] = (float)nb_rng_normal(3, 0, i);
    nb_gemm_tn(k, k, T, f->x, k, f->x, k, f->h, k);
    for (size_t i = 0; i < k; i++)
        f->h[i * k + i] += 0.05f * (float)T;
    assert_int_equal(nb_qlin_init(&f->q, n, k, g, bits, NULL), NB_OK);
    f->q.scale_dtype = NB_DT_F16;
    assert_int_equal(nb_rtn_quantize(NULL, &grid, f->w, &f->q, NULL), NB_OK);
}

static void clear(fixture *f)
{
    nb_qlin_clear(&f->q);
    nb_free(f->x);
    nb_free(f->h);
    nb_free(f->w);
}

/* (w - v) H (w - v)ᵀ of one output, in float64. */
static double error_of(const fixture *f, size_t row)
{
    double e = 0, d[256];

    for (size_t i = 0; i < f->k; i++) {
        const size_t at = row * f->q.n_groups + i / f->q.g;
        d[i] = (double)f->w[row * f->k + i] - ((double)f->q.codes[row * f->k + i] - f->q.zeros[at]) * (double)f->q.scales[at];
    }
    for (size_t i = 0; i < f->k; i++)
        for (size_t j = 0; j < f->k; j++)
            e += d[i] * (double)f->h[i * f->k + j] * d[j];
    return e;
}

/* The error falls, is what the call says, and no single code can lower it further. */
static void refines(void **state)
{
    static const struct {
        size_t n, k, g;
        unsigned bits;
    } rows[] = { { 5, 32, 8, 2 }, { 3, 48, 16, 3 }, { 70, 64, 32, 4 }, { 2, 96, 96, 8 } };

    (void)state;
    for (size_t c = 0; c < NB_LEN(rows); c++) {
        nb_refine_result res;
        double before = 0, after = 0;
        fixture f;

        make(&f, rows[c].n, rows[c].k, rows[c].g, rows[c].bits);
        for (size_t r = 0; r < f.n; r++)
            before += error_of(&f, r);
        assert_int_equal(nb_refine(NULL, 0, f.h, f.w, &f.q, &res, NULL), NB_OK);
        assert_int_equal(res.moved, 0);
        assert_true(fabs(res.before - before) < 1e-4 * before && res.after == res.before);
        assert_int_equal(nb_refine(NULL, 100, f.h, f.w, &f.q, &res, NULL), NB_OK);
        for (size_t r = 0; r < f.n; r++)
            after += error_of(&f, r);
        assert_true(res.moved > 0 && after < 0.95 * before);
        assert_true(fabs(res.after - after) < 1e-3 * after);
        for (size_t r = 0; r < f.n; r++)
            for (size_t i = 0; i < f.k; i++) {
                uint8_t *code = f.q.codes + r * f.k + i, was = *code;
                const double e = error_of(&f, r);
                for (int d = -1; d <= 1; d += 2)
                    if (was + d >= 0 && was + d < 1 << rows[c].bits) {
                        *code = (uint8_t)(was + d);
                        assert_true(error_of(&f, r) > e * (1 - 1e-4));
                        *code = was;
                    }
            }
        clear(&f);
    }
}

/* Inputs that were always 0 keep their codes; an output with NaN keeps all of them. */
static void leaves_alone(void **state)
{
    nb_refine_result res;
    uint8_t was[2][32];
    fixture f;

    (void)state;
    make(&f, 2, 32, 8, 4);
    for (size_t i = 0; i < f.k; i++)
        f.h[7 * f.k + i] = f.h[i * f.k + 7] = 0;
    f.w[f.k + 3] = NAN;
    memcpy(was, f.q.codes, sizeof was);
    assert_int_equal(nb_refine(NULL, 10, f.h, f.w, &f.q, &res, NULL), NB_OK);
    assert_true(res.moved > 0);
    assert_int_equal(f.q.codes[7], was[0][7]);
    assert_memory_equal(f.q.codes + f.k, was[1], f.k);
    clear(&f);
}

/* The factor of f's moments (mean over tokens). */
static nb_gptq_factor factor(const fixture *f, nb_gptq_order order, double damp)
{
    const nb_gptq_opts o = { .g = 16, .bits = 4, .order = order, .damp = damp };
    double *h = nb_alloc_array(f->k * f->k, sizeof *h);
    nb_gptq_factor out;

    for (size_t i = 0; i < f->k * f->k; i++)
        h[i] = (double)f->h[i] / T;
    assert_int_equal(nb_gptq_factor_make(&out, &o, h, f->k, NULL, NULL), NB_OK);
    assert_false(out.failed);
    nb_free(h);
    return out;
}

/* Where the original inputs are a linear function of those seen, x' = x + a x in the next input, the whole step finds the
 * weights that make up for it: w + a w shifted by one input. Whatever the order of the factor. */
static void shift_finds_what_is_missing(void **state)
{
    static const nb_gptq_order orders[] = { NB_GPTQ_NATURAL, NB_GPTQ_DESC, NB_GPTQ_GAR };

    (void)state;
    for (size_t c = 0; c < NB_LEN(orders); c++)
        for (int share = 0; share <= 2; share++) {
            nb_cross d = { 0 };
            nb_gptq_factor fac;
            float *orig, *out;
            fixture f;

            make(&f, 70, 160, 16, 4);
            nb_gemm_tn(f.k, f.k, T, f.x, f.k, f.x, f.k, f.h, f.k); /* without damping */
            fac = factor(&f, orders[c], 1e-9);
            orig = nb_alloc_array(T * f.k, sizeof *orig);
            out = nb_alloc_array(f.n * f.k, sizeof *out);
            for (size_t t = 0; t < T; t++)
                for (size_t i = 0; i < f.k; i++)
                    orig[t * f.k + i] = f.x[t * f.k + i] + 0.1f * f.x[t * f.k + (i + 1) % f.k];
            assert_int_equal(nb_cross_init(&d, f.k, f.k, NULL), NB_OK);
            assert_int_equal(nb_cross_add(&d, NULL, orig, f.x, f.x, 256, NULL), NB_OK);
            assert_int_equal(nb_cross_add(&d, NULL, orig + 256 * f.k, f.x + 256 * f.k, f.x + 256 * f.k, T - 256, NULL), NB_OK);
            assert_int_equal(nb_cross_solve(&d, NULL, &fac, NULL), NB_OK);
            nb_shift(NULL, &fac, share / 2.0, &d, NULL, f.w, f.n, out);
            for (size_t r = 0; r < f.n; r++)
                for (size_t i = 0; i < f.k; i++) {
                    const float want = f.w[r * f.k + i] + (float)share / 2 * 0.1f * f.w[r * f.k + (i + f.k - 1) % f.k];
                    assert_true(fabsf(out[r * f.k + i] - want) < (share ? 2e-3f : 1e-30f));
                }
            nb_free(out);
            nb_free(orig);
            nb_cross_clear(&d);
            nb_gptq_factor_clear(&fac);
            clear(&f);
        }
}

/* What the residual lacks is made up for, too: where it is a linear function of the inputs, the weights take it over. */
static void shift_makes_up_for_the_residual(void **state)
{
    nb_cross d = { 0 }, r = { 0 };
    nb_gptq_factor fac;
    float *lack, *none, *out, *m;
    fixture f;

    (void)state;
    make(&f, 24, 64, 16, 4);
    nb_gemm_tn(f.k, f.k, T, f.x, f.k, f.x, f.k, f.h, f.k);
    fac = factor(&f, NB_GPTQ_GAR, 1e-9);
    m = nb_alloc_array(f.n * f.k, sizeof *m);
    lack = nb_alloc_array(T * f.n, sizeof *lack);
    none = nb_calloc(T * f.n, sizeof *none);
    out = nb_alloc_array(f.n * f.k, sizeof *out);
    for (size_t i = 0; i < f.n * f.k; i++)
        m[i] = (float)nb_rng_normal(9, 0, i);
    nb_gemm_nt(T, f.n, f.k, f.x, f.k, m, f.k, lack, f.n);
    assert_int_equal(nb_cross_init(&d, f.k, f.k, NULL), NB_OK);
    assert_int_equal(nb_cross_init(&r, f.n, f.k, NULL), NB_OK);
    assert_int_equal(nb_cross_add(&d, NULL, f.x, f.x, f.x, T, NULL), NB_OK);
    assert_int_equal(nb_cross_add(&r, NULL, lack, none, f.x, T, NULL), NB_OK);
    assert_int_equal(nb_cross_solve(&d, NULL, &fac, NULL), NB_OK);
    assert_int_equal(nb_cross_solve(&r, NULL, &fac, NULL), NB_OK);
    nb_shift(NULL, &fac, 1.0, &d, &r, f.w, f.n, out);
    for (size_t i = 0; i < f.n * f.k; i++)
        assert_true(fabsf(out[i] - f.w[i] - m[i]) < 5e-3f);
    nb_free(out);
    nb_free(none);
    nb_free(lack);
    nb_free(m);
    nb_cross_clear(&r);
    nb_cross_clear(&d);
    nb_gptq_factor_clear(&fac);
    clear(&f);
}

/* Same bytes on one thread and on three. */
static void threads(void **state)
{
    nb_pool *pool = NULL;
    nb_cross d[2] = { { 0 } };
    nb_gptq_factor fac;
    nb_refine_result res;
    float *out[2], *orig;
    fixture f[2];

    (void)state;
    assert_int_equal(nb_pool_open(&pool, 3, NULL), NB_OK);
    for (int i = 0; i < 2; i++) {
        make(&f[i], 200, 160, 32, 3);
        orig = nb_alloc_array(T * f[i].k, sizeof *orig);
        for (size_t t = 0; t < T * f[i].k; t++)
            orig[t] = f[i].x[t] + (float)nb_rng_normal(5, 1, t) / 8;
        fac = factor(&f[i], NB_GPTQ_GAR, 0.05);
        out[i] = nb_alloc_array(f[i].n * f[i].k, sizeof **out);
        assert_int_equal(nb_cross_init(&d[i], f[i].k, f[i].k, NULL), NB_OK);
        assert_int_equal(nb_cross_add(&d[i], i ? pool : NULL, orig, f[i].x, f[i].x, T, NULL), NB_OK);
        assert_int_equal(nb_cross_solve(&d[i], i ? pool : NULL, &fac, NULL), NB_OK);
        nb_shift(i ? pool : NULL, &fac, 0.5, &d[i], NULL, f[i].w, f[i].n, out[i]);
        assert_int_equal(nb_refine(i ? pool : NULL, 4, f[i].h, out[i], &f[i].q, &res, NULL), NB_OK);
        nb_gptq_factor_clear(&fac);
        nb_free(orig);
    }
    assert_memory_equal(d[0].sum, d[1].sum, f[0].k * f[0].k * sizeof *d[0].sum);
    assert_memory_equal(out[0], out[1], f[0].n * f[0].k * sizeof **out);
    assert_memory_equal(f[0].q.codes, f[1].q.codes, f[0].n * f[0].k);
    for (int i = 0; i < 2; i++) {
        nb_cross_clear(&d[i]);
        nb_free(out[i]);
        clear(&f[i]);
    }
    nb_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(refines), cmocka_unit_test(leaves_alone),
                                        cmocka_unit_test(shift_finds_what_is_missing), cmocka_unit_test(shift_makes_up_for_the_residual),
                                        cmocka_unit_test(threads) };

    return cmocka_run_group_tests_name("solve/refine", tests, NULL, NULL);
}
