/* test_dense.c - packed float matrices: every table against scalar bit by bit, scalar against sums in double. */
#include "kern_test.h"
#include "thin.h"

enum { MAX_M = 130 };

static const nb_dtype dtypes[] = { NB_DT_F16, NB_DT_BF16, NB_DT_F32 };

/* A random matrix [n][k]: its bytes, its exact values, and its packed form. */
typedef struct matrix {
    nb_dense w;
    void *src;
    float *values;
    size_t n;
} matrix;

static void put_element(void *at, nb_dtype t, size_t i, float v, float *exact)
{
    if (t == NB_DT_F32) {
        memcpy((char *)at + 4 * i, &v, 4);
        *exact = v;
    } else {
        const uint16_t h = t == NB_DT_F16 ? nb_f32_to_f16(v) : nb_f32_to_bf16(v);
        memcpy((char *)at + 2 * i, &h, 2);
        *exact = t == NB_DT_F16 ? nb_f16_to_f32(h) : nb_bf16_to_f32(h);
    }
}

static matrix matrix_make(const nb_kern *kern, size_t n, size_t k, nb_dtype t, uint64_t seed)
{
    const size_t size = t == NB_DT_F32 ? 4 : 2;
    matrix a = { .n = n };

    a.src = exactly(n * k * size);
    a.values = exactly(n * k * sizeof(float));
    for (size_t i = 0; i < n * k; i++)
        put_element(a.src, t, i, random_float(&seed), a.values + i);
    assert_true(nb_dense_layout(&a.w, n, k, t));
    assert_int_equal(a.w.n, (n + 63) / 64 * 64);
    assert_true(a.w.bytes >= a.w.n * k * size);
    a.w.base = exactly(a.w.n * k * size); /* without the slack: nothing but prefetch may touch it */
    memset(a.w.base, 0xFF, a.w.n * k * size);
    kern->pack_dense(&a.w, 0, a.src, n);
    return a;
}

static void matrix_free(matrix *a)
{
    free(a->src);
    free(a->values);
    free(a->w.base);
}

/* y[m][n] for `kern`, strips in two calls, guards checked. */
static void multiply(const nb_kern *kern, const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy)
{
    const size_t bytes = m * ldy * sizeof *y, half = w->n_strips / 2;
    float *to = guarded(bytes);

    kern->gemm_dense(w, x, ldx, m, to, ldy, 0, half);
    kern->gemm_dense(w, x, ldx, m, to, ldy, half, w->n_strips);
    guards_intact(to, bytes, kern->name);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = w->n; j < ldy; j++)
            assert_int_equal(nb_bits_from_f32(to[i * ldy + j]), 0x5A5A5A5A); /* between rows */
        memcpy(y + i * ldy, to + i * ldy, w->n * sizeof *y);
    }
    guarded_free(to);
}

static void check_against_double(const matrix *a, const float *x, size_t ldx, size_t m, const float *y, size_t ldy)
{
    for (size_t i = 0; i < m; i += 7)
        for (size_t j = 0; j < a->w.n; j++) {
            double sum = 0, size = 0;
            for (size_t c = 0; c < a->w.k && j < a->n; c++) {
                sum += (double)a->values[j * a->w.k + c] * x[i * ldx + c];
                size += fabs((double)a->values[j * a->w.k + c] * x[i * ldx + c]);
            }
            if (!(fabs(y[i * ldy + j] - sum) <= 6e-7 * size))
                fail_msg("token %zu output %zu: got %.9g, want %.9g", i, j, (double)y[i * ldy + j], sum);
        }
}

static void check_shape(size_t n, size_t k, nb_dtype t, size_t max_m)
{
    const nb_kern *scalar = nb_kern_find("scalar");
    matrix a = matrix_make(scalar, n, k, t, n * 31 + k);
    const size_t ldx = k + 3, ldy = a.w.n + 5;
    float *x = exactly(((max_m - 1) * ldx + k) * sizeof *x), *want = exactly(max_m * ldy * sizeof *want);
    float *got = exactly(max_m * ldy * sizeof *got);

    random_fill(x, (max_m - 1) * ldx + k, k);
    multiply(scalar, &a.w, x, ldx, max_m, want, ldy);
    check_against_double(&a, x, ldx, max_m, want, ldy);
    for (size_t c = 0; c < nb_kern_count(); c++) {
        const nb_kern *kern = table_here(c);
        if (!kern)
            continue;
        matrix b = matrix_make(kern, n, k, t, n * 31 + k);
        assert_memory_equal(b.w.base, a.w.base, a.w.n * k * (t == NB_DT_F32 ? 4 : 2));
        matrix_free(&b);
        for (size_t m = 1; m <= max_m; m = m < 33 ? m + 1 : m < 64 ? 64 : m == 64 ? 65 : m == 65 ? MAX_M : m + 1) {
            if (kern == scalar && m > 1) /* a row of its own is the same row */
                break;
            multiply(kern, &a.w, x, ldx, m, got, ldy);
            for (size_t i = 0; i < m; i++)
                if (memcmp(got + i * ldy, want + i * ldy, a.w.n * sizeof *got) != 0)
                    fail_msg("%s: n %zu k %zu type %d m %zu: row %zu differs from scalar", kern->name, n, k, (int)t, m, i);
        }
    }
    free(x);
    free(want);
    free(got);
    matrix_free(&a);
}

static void test_shapes(void **state)
{
    static const size_t ns[] = { 1, 63, 64, 65, 192, 576 }, ks[] = { 8, 64, 100, 576, 2048 };
    (void)state;

    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
            for (size_t t = 0; t < 3; t++)
                if (!left_out())
                    check_shape(ns[i], ks[j], dtypes[t], ns[i] * ks[j] <= 65 * 100 ? MAX_M : ns[i] == 65 ? 33 : 7);
}

/* NU-16: every number of inputs from 1 to 65, rows of tokens that begin anywhere. */
static void test_edge_lengths(void **state)
{
    (void)state;
    for (size_t k = 1; k <= 65; k++)
        if (!left_out())
            check_shape(65, k, dtypes[k % 3], 5);
}

/* More tokens than pass a block at once. */
static void test_many_tokens(void **state)
{
    static const size_t ms[] = { 191, 192, 193, 391 };
    (void)state;

    for (size_t i = 0; i < 4 && !(i > 0 && left_out()); i++) {
        const nb_kern *scalar = nb_kern_find("scalar");
        const size_t m = ms[i], k = 300, n = 64;
        matrix a = matrix_make(scalar, n, k, dtypes[i % 3], 5);
        float *x = exactly(m * k * sizeof *x), *want = exactly(m * n * sizeof *want), *got = exactly(m * n * sizeof *got);
        random_fill(x, m * k, 6);
        multiply(scalar, &a.w, x, k, m, want, n);
        for (size_t c = 0; c < nb_kern_count(); c++)
            if (table_here(c)) {
                multiply(nb_kern_at(c), &a.w, x, k, m, got, n);
                if (memcmp(got, want, m * n * sizeof *got) != 0)
                    fail_msg("%s: m %zu differs from scalar", nb_kern_at(c)->name, m);
            }
        free(x);
        free(want);
        free(got);
        matrix_free(&a);
    }
}

/* Parts packed one after another, and rows read back. */
static void test_parts_and_rows(void **state)
{
    (void)state;
    for (size_t c = 0; c < nb_kern_count(); c++)
        for (size_t t = 0; t < 3; t++) {
            const nb_kern *kern = table_here(c);
            const size_t k = 37, size = dtypes[t] == NB_DT_F32 ? 4 : 2;
            if (!kern)
                continue;
            matrix a = matrix_make(kern, 70, k, dtypes[t], 1), b = matrix_make(kern, 64, k, dtypes[t], 2);
            nb_dense both;
            assert_true(nb_dense_layout(&both, 192, k, dtypes[t]));
            both.base = guarded(192 * k * size);
            kern->pack_dense(&both, 0, a.src, 70);
            kern->pack_dense(&both, 128, b.src, 64);
            guards_intact(both.base, 192 * k * size, kern->name);
            assert_memory_equal(both.base, a.w.base, 128 * k * size);
            assert_memory_equal(both.base + 128 * k * size, b.w.base, 64 * k * size);
            for (size_t n = 0; n < 192; n++) {
                float *out = guarded(k * sizeof(float));
                kern->row_dense(&both, n, out);
                guards_intact(out, k * sizeof(float), kern->name);
                for (size_t i = 0; i < k; i++)
                    assert_true(out[i] == (n < 70 ? a.values[n * k + i] : n < 128 ? 0.0f : b.values[(n - 128) * k + i]));
                guarded_free(out);
            }
            guarded_free(both.base);
            matrix_free(&a);
            matrix_free(&b);
        }
}

/* NaN and Inf reach exactly the outputs that they belong to; subnormal inputs and zeros keep their bits over tables. */
static void test_special_values(void **state)
{
    enum { N = 64, K = 300, M = 30 };
    static float x[M * K], want[M * N], got[M * N];
    (void)state;

    for (size_t t = 0; t < 3; t++) {
        const nb_kern *scalar = nb_kern_find("scalar");
        matrix a = matrix_make(scalar, N, K, dtypes[t], 3);
        random_fill(x, M * K, 4);
        for (size_t i = 0; i < K; i++) {
            x[1 * K + i] = 0;
            x[2 * K + i] = -0.0f;
            x[3 * K + i] *= 1e-39f;
        }
        x[4 * K + 17] = NAN;
        x[5 * K + 280] = INFINITY;
        put_element(a.src, dtypes[t], 9 * K + 33, INFINITY, a.values + 9 * K + 33);
        scalar->pack_dense(&a.w, 0, a.src, N);
        multiply(scalar, &a.w, x, K, M, want, N);
        for (size_t i = 0; i < M; i++)
            for (size_t j = 0; j < N; j++) {
                const float v = want[i * N + j];
                if (i == 4 || (j == 9 && (i == 1 || i == 2)))
                    assert_true(isnan(v));
                else if (i == 5 || j == 9)
                    assert_false(isfinite(v));
                else
                    assert_true(isfinite(v));
            }
        for (size_t c = 0; c < nb_kern_count(); c++)
            for (size_t m = 1; table_here(c) && m <= M; m += 29) {
                const size_t rows = m == 1 ? M : 1; /* one at a time, then together */
                for (size_t i = 0; i < rows; i++)
                    multiply(nb_kern_at(c), &a.w, x + i * K, K, m, got + i * N, N);
                for (size_t i = 0; i < M * N; i++)
                    if (!same_float(got[i], want[i]))
                        fail_msg("%s: m %zu: element %zu is %g, scalar has %g", nb_kern_at(c)->name, m, i, (double)got[i], (double)want[i]);
            }
        matrix_free(&a);
    }
}

static void test_layout_refuses(void **state)
{
    static const struct {
        const char *label;
        size_t n, k;
        nb_dtype t;
    } rows[] = {
        { "no rows", 0, 8, NB_DT_F16 },
        { "no inputs", 64, 0, NB_DT_F16 },
        { "integers", 64, 8, NB_DT_I32 },
        { "f64", 64, 8, NB_DT_F64 },
        { "rows overflow", SIZE_MAX, 8, NB_DT_F16 },
        { "product overflows", SIZE_MAX / 128, 256, NB_DT_F16 },
        { "bytes overflow", SIZE_MAX / 2048, 1024, NB_DT_F32 },
    };
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nb_dense w;
        if (nb_dense_layout(&w, rows[i].n, rows[i].k, rows[i].t))
            fail_msg("%s: accepted", rows[i].label);
    }
}

/* Tiles of panels: every table against scalar, scalar against sums in double. */
static void test_tiles(void **state)
{
    enum { MOST = 300, A = NB_TILE_M, F = NB_TILE_F32, D = NB_TILE_F64 };
    static const size_t depths[] = { 0, 1, 2, 63, 256, MOST };
    static float a[MOST * A], b[MOST * F], want[A * F];
    static double da[MOST * A], db[MOST * D], dwant[A * D];
    uint64_t seed = 5;

    (void)state;
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        da[i] = (double)(a[i] = random_float(&seed));
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        b[i] = random_float(&seed);
    for (size_t i = 0; i < sizeof db / sizeof *db; i++)
        db[i] = (double)random_float(&seed);
    for (size_t s = 0; s < sizeof depths / sizeof *depths; s++) {
        const size_t k = depths[s];
        nb_kern_find("scalar")->tile_f32(k, a, b, want);
        nb_kern_find("scalar")->tile_f64(k, da, db, dwant);
        for (size_t i = 0; i < A * F; i++) {
            double sum = 0, size = 0;
            for (size_t l = 0; l < k; l++) {
                const double p = da[l * A + i / F] * (double)b[l * F + i % F];
                sum += p;
                size += fabs(p);
            }
            assert_true(fabs(sum - (double)want[i]) <= 1e-6 * size);
        }
        for (size_t i = 0; i < A * D; i++) {
            double sum = 0, size = 0;
            for (size_t l = 0; l < k; l++) {
                sum += da[l * A + i / D] * db[l * D + i % D];
                size += fabs(da[l * A + i / D] * db[l * D + i % D]);
            }
            assert_true(fabs(sum - dwant[i]) <= 1e-14 * size);
        }
        for (size_t t = 0; t < nb_kern_count(); t++) {
            const nb_kern *kern = table_here(t);
            float *got = guarded(sizeof want);
            double *dgot = guarded(sizeof dwant);
            if (kern) {
                kern->tile_f32(k, a, b, got);
                kern->tile_f64(k, da, db, dgot);
                assert_memory_equal(got, want, sizeof want);
                assert_memory_equal(dgot, dwant, sizeof dwant);
                guards_intact(got, sizeof want, kern->name);
                guards_intact(dgot, sizeof dwant, kern->name);
            }
            guarded_free(got);
            guarded_free(dgot);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_edge_lengths),   cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_parts_and_rows), cmocka_unit_test(test_special_values), cmocka_unit_test(test_layout_refuses),
        cmocka_unit_test(test_tiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
