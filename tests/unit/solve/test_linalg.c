/* test_linalg.c - products of every shape against sums in double, and bits that do not depend on how rows and columns are split. */
#include "golden.h"

#include <math.h>

#include "base/rng.h"
#include "solve/linalg.h"

enum { PAD = 3 }; /* rows of c are longer than n: what is behind must stay */

typedef struct matrices {
    size_t m, n, k;
    float *a, *at, *b, *bt, *c; /* a[m][k], b[k][n], both turned, c[m][n + PAD] */
    double *da, *db, *dbt, *dc, *sum, *size;
} matrices;

static void fill(matrices *v, size_t m, size_t n, size_t k)
{
    const size_t nc = m * (n + PAD);

    *v = (matrices){ .m = m, .n = n, .k = k };
    v->a = nb_alloc_array(m * k + 1, sizeof *v->a);
    v->at = nb_alloc_array(m * k + 1, sizeof *v->at);
    v->b = nb_alloc_array(n * k + 1, sizeof *v->b);
    v->bt = nb_alloc_array(n * k + 1, sizeof *v->bt);
    v->c = nb_alloc_array(nc, sizeof *v->c);
    v->da = nb_alloc_array(m * k + 1, sizeof *v->da);
    v->db = nb_alloc_array(n * k + 1, sizeof *v->db);
    v->dbt = nb_alloc_array(n * k + 1, sizeof *v->dbt);
    v->dc = nb_alloc_array(nc, sizeof *v->dc);
    v->sum = nb_calloc(nc, sizeof *v->sum);
    v->size = nb_calloc(nc, sizeof *v->size);
    for (size_t i = 0; i < m; i++)
        for (size_t l = 0; l < k; l++)
            v->da[i * k + l] = (double)(v->a[i * k + l] = v->at[l * m + i] = (float)nb_rng_normal(1, m, i * k + l));
    for (size_t l = 0; l < k; l++)
        for (size_t j = 0; j < n; j++)
            v->db[l * n + j] = v->dbt[j * k + l] = (double)(v->b[l * n + j] = v->bt[j * k + l] = (float)nb_rng_normal(2, n, l * n + j));
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t l = 0; l < k; l++) {
                v->sum[i * (n + PAD) + j] += v->da[i * k + l] * v->db[l * n + j];
                v->size[i * (n + PAD) + j] += fabs(v->da[i * k + l] * v->db[l * n + j]);
            }
}

static void drop(matrices *v)
{
    nb_free(v->a);
    nb_free(v->at);
    nb_free(v->b);
    nb_free(v->bt);
    nb_free(v->c);
    nb_free(v->da);
    nb_free(v->db);
    nb_free(v->dbt);
    nb_free(v->dc);
    nb_free(v->sum);
    nb_free(v->size);
}

/* 0 nn, 1 nt, 2 tn, 3 less tn; 4, 5 the two of doubles. Columns [j0, n), rows [i0, m). */
static void product(int which, matrices *v, size_t i0, size_t j0)
{
    const size_t m = v->m - i0, n = v->n - j0, k = v->k, ldc = v->n + PAD;
    float *c = v->c + i0 * ldc + j0;
    double *dc = v->dc + i0 * ldc + j0;

    if (which == 0)
        nb_gemm_nn(m, n, k, v->a + i0 * k, k, v->b + j0, v->n, c, ldc);
    else if (which == 1)
        nb_gemm_nt(m, n, k, v->a + i0 * k, k, v->bt + j0 * k, k, c, ldc);
    else if (which == 2)
        nb_gemm_tn(m, n, k, v->at + i0, v->m, v->b + j0, v->n, c, ldc);
    else if (which == 3)
        nb_gemm_sub_tn(m, n, k, v->at + i0, v->m, v->b + j0, v->n, c, ldc);
    else if (which == 4)
        nb_dgemm_sub_nn(m, n, k, v->da + i0 * k, k, v->db + j0, v->n, dc, ldc);
    else
        nb_dgemm_sub_nt(m, n, k, v->da + i0 * k, k, v->dbt + j0 * k, k, dc, ldc);
}

static void start(matrices *v)
{
    for (size_t i = 0; i < v->m * (v->n + PAD); i++)
        v->dc[i] = (double)(v->c[i] = (float)nb_rng_normal(3, 0, i));
}

static void products(void **state)
{
    static const size_t shapes[][3] = { { 1, 1, 1 },    { 3, 5, 0 },     { 8, 32, 256 },  { 7, 31, 255 },
                                        { 9, 33, 257 }, { 97, 65, 600 }, { 200, 17, 96 }, { 64, 130, 128 } };

    (void)state;
    for (size_t s = 0; s < NB_LEN(shapes); s++) {
        const size_t m = shapes[s][0], n = shapes[s][1], ldc = n + PAD, bytes = m * ldc * sizeof(float);
        float *whole = nb_alloc_array(m * ldc, sizeof *whole);
        matrices v;

        fill(&v, m, n, shapes[s][2]);
        for (int which = 0; which < 6; which++) {
            start(&v);
            product(which, &v, 0, 0);
            for (size_t i = 0; i < m; i++)
                for (size_t j = 0; j < ldc; j++) {
                    const size_t at = i * ldc + j;
                    const double was = (double)(float)nb_rng_normal(3, 0, at), got = which < 4 ? (double)v.c[at] : v.dc[at];
                    const double want = j >= n ? was : which < 3 ? v.sum[at] : was - v.sum[at];
                    if (!(fabs(got - want) <= (which < 4 ? 2e-6 : 1e-13) * (v.size[at] + fabs(was)) * (j < n)))
                        fail_msg("%d, %zu x %zu x %zu: c[%zu][%zu] is %.9g, wanted %.9g", which, m, n, v.k, i, j, got, want);
                }
            if (which >= 4 || m < 3 || n < 5)
                continue;
            memcpy(whole, v.c, bytes); /* the same in four parts */
            start(&v);
            product(which, &v, 2, 3);
            for (size_t i = 2; i < m; i++)
                assert_memory_equal(v.c + i * ldc + 3, whole + i * ldc + 3, (n - 3) * sizeof *whole);
        }
        drop(&v);
        nb_free(whole);
    }
}

/* Where w x is known already, the sum of its squares is not found again. */
static void output_errors(void **state)
{
    enum { N = 70, K = 40, T = 30 };
    static float w[N * K], v[N * K], x[T * K];
    double num = 0, den = 0, e, norm = -1, again;

    (void)state;
    for (size_t i = 0; i < NB_LEN(w); i++)
        v[i] = (float)0.1 * (float)nb_rng_normal(5, 1, i) + (w[i] = (float)nb_rng_normal(4, 0, i));
    for (size_t i = 0; i < NB_LEN(x); i++)
        x[i] = (float)nb_rng_normal(6, 0, i);
    for (size_t t = 0; t < T; t++)
        for (size_t r = 0; r < N; r++) {
            double y = 0, d = 0;
            for (size_t i = 0; i < K; i++) {
                y += (double)w[r * K + i] * (double)x[t * K + i];
                d += ((double)v[r * K + i] - (double)w[r * K + i]) * (double)x[t * K + i];
            }
            num += d * d;
            den += y * y;
        }
    assert_int_equal(nb_output_error(NULL, w, v, N, K, x, K, T, &norm, &e, NULL), NB_OK);
    assert_true(fabs(e / (num / den) - 1) < 1e-5 && fabs(norm / den - 1) < 1e-5);
    assert_int_equal(nb_output_error(NULL, w, v, N, K, x, K, T, &norm, &again, NULL), NB_OK);
    assert_true(again == e);
    assert_int_equal(nb_output_error(NULL, w, v, N, K, x, K, T, NULL, &again, NULL), NB_OK);
    assert_true(again == e);
    assert_int_equal(nb_output_error(NULL, w, w, N, K, NULL, 0, 0, NULL, &again, NULL), NB_OK);
    assert_true(again == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(products), cmocka_unit_test(output_errors) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
