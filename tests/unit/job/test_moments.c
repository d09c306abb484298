/* test_moments.c - moments by the 8-bit kernels against sums in double; the same bits for every table and number of threads; columns of
 * nothing, of what is not finite, and of one large value. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "job/moments.h"

typedef struct sums {
    nb_gram g;
    nb_cross c;
} sums;

/* Moments of x[m][k] and of (a - less)[m][n] with it, `most` tokens at a time. */
static void find(sums *s, const nb_kern *kern, nb_pool *pool, const float *x, const float *a, const float *less, size_t m, size_t k,
                 size_t n, size_t most)
{
    nb_turned tx, ta;
    nb_err err = { 0 };

    assert_int_equal(nb_gram_init(&s->g, k, &err), NB_OK);
    assert_int_equal(nb_cross_init(&s->c, n, k, &err), NB_OK);
    assert_int_equal(nb_turned_open(&tx, pool, k, most, true, &err), NB_OK);
    assert_int_equal(nb_turned_open(&ta, pool, n, most, false, &err), NB_OK);
    for (size_t t = 0; t < m; t += most) {
        const size_t part = m - t < most ? m - t : most;
        nb_turned_set(&tx, pool, x + t * k, NULL, part);
        nb_turned_set(&ta, pool, a + t * n, less ? less + t * n : NULL, part);
        nb_moments_gram(&s->g, kern, pool, &tx);
        nb_moments_cross(&s->c, kern, pool, &ta, &tx);
    }
    nb_turned_close(&tx);
    nb_turned_close(&ta);
    assert_int_equal(s->g.tokens, m);
    assert_int_equal(s->c.tokens, m);
}

static void drop(sums *s)
{
    nb_gram_clear(&s->g);
    nb_cross_clear(&s->c);
}

static float *noise(uint64_t seed, size_t count)
{
    float *x = nb_alloc_array(count, sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = (float)nb_rng_normal(seed, 0, i);
    return x;
}

static double sum_of(const float *a, const float *less, size_t i, size_t n, const float *b, size_t j, size_t k, size_t m)
{
    double s = 0;

    for (size_t t = 0; t < m; t++)
        s += ((double)a[t * n + i] - (less ? (double)less[t * n + i] : 0)) * (double)b[t * k + j];
    return s;
}

static void exact_enough(void **state)
{
    static const struct {
        size_t m, k, n, most;
    } rows[] = { { 1, 1, 1, 1 }, { 128, 64, 64, 128 }, { 300, 65, 70, 300 }, { 1000, 130, 33, 256 }, { 77, 20, 200, 50 } };

    (void)state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        const size_t m = rows[r].m, k = rows[r].k, n = rows[r].n;
        float *x = noise(1, m * k), *a = noise(2, m * n), *less = noise(3, m * n);
        sums s;

        for (size_t t = 0; t < m; t++)
            for (size_t i = 0; i < k; i++)
                x[t * k + i] *= (float)(1 << i % 7);
        find(&s, nb_kern_pick(nb_cpu_features()), NULL, x, a, less, m, k, n, rows[r].most);
        for (size_t i = 0; i < k; i++)
            for (size_t j = i; j < k; j++) {
                const double size = sqrt(sum_of(x, NULL, i, k, x, i, k, m) * sum_of(x, NULL, j, k, x, j, k, m));
                assert_true(fabs(s.g.sum[i * k + j] - sum_of(x, NULL, i, k, x, j, k, m)) <= 0.01 * size);
            }
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < k; j++) {
                const double size = sqrt(2.0 * (double)m * sum_of(x, NULL, j, k, x, j, k, m));
                assert_true(fabs((double)s.c.sum[i * k + j] - sum_of(a, less, i, n, x, j, k, m)) <= 0.02 * size);
            }
        drop(&s);
        nb_free(x);
        nb_free(a);
        nb_free(less);
    }
}

/* Tables that run here and three threads: the bits of scalar code and one. */
static void same_bits(void **state)
{
    enum { M = 200, K = 100, N = 70 };
    float *x = noise(4, (size_t)M * K), *a = noise(5, (size_t)M * N);
    nb_pool *pool;
    sums want;

    (void)state;
    assert_int_equal(nb_pool_open(&pool, 3, NULL), NB_OK);
    find(&want, nb_kern_find("scalar"), NULL, x, a, NULL, M, K, N, 128);
    for (size_t t = 0; t < nb_kern_count(); t++) {
        const nb_kern *kern = nb_kern_at(t);
        sums got;
        if (kern->need & ~nb_cpu_features())
            continue;
        find(&got, kern, pool, x, a, NULL, M, K, N, 128);
        assert_memory_equal(got.g.sum, want.g.sum, sizeof(double) * K * K);
        assert_memory_equal(got.c.sum, want.c.sum, sizeof(float) * N * K);
        drop(&got);
    }
    drop(&want);
    nb_pool_close(pool);
    nb_free(x);
    nb_free(a);
}

static void odd_columns(void **state)
{
    enum { M = 256, K = 6 };
    float *x = noise(6, (size_t)M * K);
    sums s;

    (void)state;
    for (size_t t = 0; t < M; t++) {
        x[t * K] = 0;
        x[t * K + 1] *= 1e-42f; /* too little to divide by */
    }
    x[3 * K + 2] = NAN;
    x[200 * K + 3] = -INFINITY;
    x[5 * K + 4] = 1e6f; /* coarsens its own column and 128 tokens only */
    find(&s, nb_kern_pick(nb_cpu_features()), NULL, x, x, NULL, M, K, K, M);
    for (size_t j = 0; j < K; j++) {
        assert_true(j == 2 || j == 3 ? isnan(s.g.sum[j]) : s.g.sum[j] == 0);
        assert_true(isnan(j < 2 ? s.g.sum[j * K + 2] : s.g.sum[2 * K + j]));
    }
    assert_true(s.g.sum[1 * K + 1] == 0 && isnan(s.g.sum[3 * K + 3]));
    assert_true(fabs(s.g.sum[4 * K + 4] / 1e12 - 1) < 1e-4);
    assert_true(fabs(s.g.sum[5 * K + 5] / sum_of(x, NULL, 5, K, x, 5, K, M) - 1) < 0.01);
    drop(&s);
    nb_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(exact_enough), cmocka_unit_test(same_bits), cmocka_unit_test(odd_columns) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
