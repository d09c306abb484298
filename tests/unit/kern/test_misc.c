/* test_misc.c - norms, rotations and activations: every table against scalar bit by bit, scalar against double. */
#include "base/mem.h"
#include "kern_test.h"
#include "thin.h"

#include "kern/expf.h"

enum { MAX_N = 2048 };

static const size_t sizes[] = { 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576, MAX_N };

/* Inputs of one call: four vectors, an output and two numbers. */
typedef struct inputs {
    float x[MAX_N], y[MAX_N], w[MAX_N], b[MAX_N];
    size_t n;
} inputs;

/* Each case runs in place on v->y or writes there, from x, w, b. */
static void do_rmsnorm(const nb_kern *k, inputs *v)
{
    k->rmsnorm(v->y, v->x, v->w, 0, 1e-5f, v->n);
}

static void do_rmsnorm_plus_one(const nb_kern *k, inputs *v)
{
    k->rmsnorm(v->x, v->x, v->w, 1, 1e-6f, v->n);
    memcpy(v->y, v->x, v->n * sizeof(float));
}

static void do_rmsnorm_bare(const nb_kern *k, inputs *v)
{
    k->rmsnorm(v->y, v->x, NULL, 1, 1e-6f, v->n);
}

static void do_layernorm(const nb_kern *k, inputs *v)
{
    k->layernorm(v->y, v->x, v->w, v->b, 1e-5f, v->n);
}

static void do_layernorm_bare(const nb_kern *k, inputs *v)
{
    k->layernorm(v->y, v->x, NULL, NULL, 1e-5f, v->n);
}

static void do_rope_half(const nb_kern *k, inputs *v)
{
    k->rope_half(v->y, v->w, v->b, v->n / 2 * 2);
}

static void do_rope_pair(const nb_kern *k, inputs *v)
{
    k->rope_pair(v->y, v->w, v->b, v->n / 2 * 2);
}

static void do_silu(const nb_kern *k, inputs *v)
{
    k->silu_mul(v->y, v->x, v->w, v->n);
}

static void do_gelu_tanh(const nb_kern *k, inputs *v)
{
    k->gelu_tanh_mul(v->y, v->x, v->w, v->n);
}

static void do_gelu_erf(const nb_kern *k, inputs *v)
{
    k->gelu_erf_mul(v->y, v->x, v->w, v->n);
}

static void do_add(const nb_kern *k, inputs *v)
{
    k->add(v->y, v->x, v->n);
}

static void do_axpy(const nb_kern *k, inputs *v)
{
    k->axpy(v->y, v->x, 0.7f, v->n);
}

static void do_softcap(const nb_kern *k, inputs *v)
{
    k->softcap(v->y, 3.0f, v->n);
}

static void do_exp_sum(const nb_kern *k, inputs *v)
{
    v->y[0] = (float)k->exp_sum(v->y, v->x, 0.5f, v->n); /* the sum takes the place of an element, to be compared too */
}

/* The formulas: element i, from the untouched inputs. *size: sum of absolute terms, to which the tolerance is relative. */
static double mean_of(const inputs *v)
{
    double sum = 0;

    for (size_t i = 0; i < v->n; i++)
        sum += v->x[i];
    return sum / (double)v->n;
}

static double variance(const inputs *v, double mean)
{
    double sum = 0;

    for (size_t i = 0; i < v->n; i++)
        sum += (v->x[i] - mean) * (v->x[i] - mean);
    return sum / (double)v->n;
}

static double is_rmsnorm(const inputs *v, size_t i, double *size)
{
    const double y = v->x[i] / sqrt(variance(v, 0) + (double)1e-5f) * v->w[i];

    *size = fabs(y);
    return y;
}

static double is_rmsnorm_plus_one(const inputs *v, size_t i, double *size)
{
    const double y = v->x[i] / sqrt(variance(v, 0) + (double)1e-6f);

    *size = fabs(y) * (1 + fabs(v->w[i]));
    return y * (v->w[i] + 1.0);
}

static double is_rmsnorm_bare(const inputs *v, size_t i, double *size)
{
    const double y = v->x[i] / sqrt(variance(v, 0) + (double)1e-6f);

    *size = fabs(y);
    return y;
}

static double is_layernorm_bare(const inputs *v, size_t i, double *size)
{
    const double mean = mean_of(v), y = (v->x[i] - mean) / sqrt(variance(v, mean) + (double)1e-5f);

    *size = fabs(y);
    return y;
}

static double is_layernorm(const inputs *v, size_t i, double *size)
{
    const double y = is_layernorm_bare(v, i, size) * v->w[i];

    *size = fabs(y) + fabs(v->b[i]);
    return y + v->b[i];
}

static double rotate(double a, double b, double c, double s, bool first, double *size)
{
    *size = fabs(first ? a * c : a * s) + fabs(first ? b * s : b * c);
    return first ? a * c - b * s : a * s + b * c;
}

static double is_rope_half(const inputs *v, size_t i, double *size)
{
    const size_t h = v->n / 2, j = i % (h ? h : 1);

    if (i >= 2 * h)
        return v->y[i];
    return rotate(v->y[j], v->y[j + h], v->w[j], v->b[j], i < h, size);
}

static double is_rope_pair(const inputs *v, size_t i, double *size)
{
    const size_t j = i / 2;

    if (i >= v->n / 2 * 2)
        return v->y[i];
    return rotate(v->y[2 * j], v->y[2 * j + 1], v->w[j], v->b[j], i % 2 == 0, size);
}

static double is_silu(const inputs *v, size_t i, double *size)
{
    const double y = v->x[i] / (1 + exp(-(double)v->x[i])) * v->w[i];

    *size = fabs(y);
    return y;
}

static double is_gelu_tanh(const inputs *v, size_t i, double *size)
{
    const double x = v->x[i], u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);

    *size = fabs(x * v->w[i]);
    return x / (1 + exp(-2 * u)) * v->w[i];
}

static double is_gelu_erf(const inputs *v, size_t i, double *size)
{
    const double x = v->x[i];

    *size = fabs(x * v->w[i]);
    return x * 0.5 * erfc(-x / sqrt(2.0)) * v->w[i];
}

static double is_add(const inputs *v, size_t i, double *size)
{
    *size = fabs(v->x[i]) + fabs(v->y[i]);
    return (double)v->x[i] + v->y[i];
}

static double is_axpy(const inputs *v, size_t i, double *size)
{
    *size = fabs(v->x[i]) + fabs(v->y[i]);
    return (double)0.7f * v->x[i] + v->y[i];
}

static double is_softcap(const inputs *v, size_t i, double *size)
{
    const double y = 3 * tanh(v->y[i] / 3.0);

    *size = fabs(y);
    return y;
}

static double is_exp_sum(const inputs *v, size_t i, double *size)
{
    double y = exp((double)v->x[i] - 0.5);

    for (size_t j = 1; i == 0 && j < v->n; j++)
        y += exp((double)v->x[j] - 0.5);
    *size = fabs(y) * (1 + 2 * fabs((double)v->x[i] - 0.5)); /* the subtraction is rounded */
    return y;
}

static const struct {
    const char *label;
    void (*run)(const nb_kern *k, inputs *v);
    double (*formula)(const inputs *v, size_t i, double *size);
    double tolerance;
    bool mixes; /* one element's NaN reaches others */
} rows[] = {
    { "rmsnorm", do_rmsnorm, is_rmsnorm, 2e-7, true },
    { "rmsnorm in place, weight + 1", do_rmsnorm_plus_one, is_rmsnorm_plus_one, 3e-7, true },
    { "rmsnorm without weight", do_rmsnorm_bare, is_rmsnorm_bare, 2e-7, true },
    { "layernorm", do_layernorm, is_layernorm, 3e-7, true },
    { "layernorm without weight", do_layernorm_bare, is_layernorm_bare, 2e-7, true },
    { "rope, halves", do_rope_half, is_rope_half, 2e-7, true },
    { "rope, pairs", do_rope_pair, is_rope_pair, 2e-7, true },
    { "silu", do_silu, is_silu, 4e-7, false },
    { "gelu tanh", do_gelu_tanh, is_gelu_tanh, 3e-7, false },
    { "gelu erf", do_gelu_erf, is_gelu_erf, 3e-7, false },
    { "add", do_add, is_add, 1e-7, false },
    { "axpy", do_axpy, is_axpy, 1e-7, false },
    { "softcap", do_softcap, is_softcap, 4e-7, false },
    { "exp and its sum", do_exp_sum, is_exp_sum, 4e-7, true },
};

enum { N_ROWS = sizeof rows / sizeof *rows };

static void fill(inputs *v, size_t n, float mean, float scale, uint64_t seed)
{
    v->n = n;
    random_fill(v->x, MAX_N, seed);
    random_fill(v->y, MAX_N, seed + 1);
    random_fill(v->w, MAX_N, seed + 2);
    random_fill(v->b, MAX_N, seed + 3);
    for (size_t i = 0; i < MAX_N; i++) {
        v->x[i] = v->x[i] * scale + mean;
        v->y[i] *= scale;
    }
}

static void test_formulas(void **state)
{
    static const float scales[] = { 1.0f, 0.01f, 4.0f };
    static inputs before, after;
    (void)state;

    for (size_t c = 0; c < N_ROWS; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t z = 0; z < 3; z++) {
                if (left_out())
                    continue;
                fill(&before, sizes[s], z == 2 ? 1.0f : 0, scales[z], s + 10 * z);
                after = before;
                rows[c].run(nb_kern_find("scalar"), &after);
                for (size_t i = 0; i < sizes[s]; i++) {
                    double size = 0;
                    const double want = rows[c].formula(&before, i, &size);
                    if (!(fabs(after.y[i] - want) <= rows[c].tolerance * size))
                        fail_msg("%s: n %zu scale %g element %zu: got %.9g, want %.9g", rows[c].label, sizes[s], (double)scales[z], i,
                                 (double)after.y[i], want);
                }
            }
}

/* In *got. */
static void compare_in(inputs *got, size_t c, const inputs *before, const char *what)
{
    static inputs want;

    want = *before;
    rows[c].run(nb_kern_find("scalar"), &want);
    for (size_t t = 0; t < nb_kern_count(); t++) {
        if (!table_here(t))
            continue;
        *got = *before;
        rows[c].run(nb_kern_at(t), got);
        for (size_t i = 0; i < MAX_N; i++) /* past n too: nothing else may change */
            if (!same_float(got->y[i], want.y[i]) || (i >= before->n && !same_float(got->y[i], before->y[i])))
                fail_msg("%s, %s: n %zu: %s has %.9g at %zu, scalar %.9g", rows[c].label, what, before->n, nb_kern_at(t)->name,
                         (double)got->y[i], i, (double)want.y[i]);
    }
}

static void compare(size_t c, const inputs *before, const char *what)
{
    static inputs got;

    compare_in(&got, c, before, what);
}

/* Every length from 1 to 65, from vectors that begin 8 bytes behind a cache line. */
static void test_edge_lengths(void **state)
{
    static inputs v;
    unsigned char *room = aligned_alloc(64, (sizeof v + 127) / 64 * 64);
    (void)state;

    assert_non_null(room);
    for (size_t c = 0; c < N_ROWS; c++)
        for (size_t n = 1; n <= 65; n++) {
            if (left_out())
                continue;
            fill(&v, n, 0, 3, n);
            compare_in((void *)(room + 8), c, &v, "NU-16 edge lengths, unaligned");
        }
    free(room);
}

static void test_tables_agree(void **state)
{
    static const float special[] = { 0.0f, -0.0f, 1e-42f, -1e-39f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN };
    static inputs v;
    (void)state;

    for (size_t c = 0; c < N_ROWS; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (left_out())
                continue;
            fill(&v, sizes[s], 0, 1, s);
            compare(c, &v, "normal");
            fill(&v, sizes[s], 0, 40, s);
            compare(c, &v, "wide");
            for (size_t i = 0; i < MAX_N; i++) /* bits of every exponent */
                v.x[i] = ldexpf(v.x[i], (int)(i % 270) - 140);
            compare(c, &v, "all exponents");
            for (size_t z = 0; z < sizeof special / sizeof *special; z++) {
                fill(&v, sizes[s], 0, 1, s);
                v.x[sizes[s] / 2] = v.y[sizes[s] / 2] = special[z];
                compare(c, &v, "one special value");
            }
        }
}

/* Guards and over-reads: buffers of exactly n. */
static void test_bounds(void **state)
{
    (void)state;
    for (size_t t = 0; t < nb_kern_count(); t++)
        for (size_t n = 2; n < 70; n++) {
            const nb_kern *k = table_here(t);
            const size_t bytes = n * sizeof(float);
            if (!k)
                continue;
            float *y = guarded(bytes), *x = exactly(bytes), *w = exactly(bytes), *half = exactly(bytes / 2);
            random_fill(x, n, 1);
            random_fill(w, n, 2);
            random_fill(y, n, 3);
            random_fill(half, n / 2, 4);
            k->rmsnorm(y, x, w, 0, 1e-5f, n);
            k->layernorm(y, x, w, w, 1e-5f, n);
            k->rope_half(y, half, half, n / 2 * 2);
            k->rope_pair(y, half, half, n / 2 * 2);
            k->silu_mul(y, x, w, n);
            k->gelu_tanh_mul(y, x, w, n);
            k->gelu_erf_mul(y, x, w, n);
            k->add(y, x, n);
            k->axpy(y, x, 2, n);
            k->softcap(y, 5, n);
            k->exp_sum(y, x, 1, n);
            guards_intact(y, bytes, k->name);
            guarded_free(y);
            free(x);
            free(w);
            free(half);
        }
}

/* The first of the largest, wherever it lies, and whether anything is NaN. */
static void test_row_max(void **state)
{
    static float x[5000];

    (void)state;
    for (size_t t = 0; t < nb_kern_count(); t++) {
        const nb_kern *k = table_here(t);
        for (size_t n = 1; k && n <= NB_LEN(x); n += n < 70 ? 1 : 977)
            for (uint64_t round = 0; round < 6; round++) {
                size_t want = 0, got;
                float top = 0;
                random_fill(x, n, 31 * n + round);
                for (size_t i = 0; i < n; i++) {
                    x[i] = round < 3 ? rintf(x[i]) : x[i]; /* many equal ones */
                    x[i] = round == 1 && i % 3 ? -INFINITY : x[i];
                    want = x[i] > x[want] ? i : want;
                }
                got = k->row_max(x, n, &top);
                if (got != want || !same_float(top, x[want]))
                    fail_msg("%s: %zu values: largest at %zu, want %zu", k->name, n, got, want);
                x[(n * 7 + round) % n] = NAN;
                assert_int_equal(k->row_max(x, n, &top), n);
            }
        if (k) {
            float top = 0;
            for (size_t i = 0; i < 100; i++)
                x[i] = -INFINITY;
            assert_int_equal(k->row_max(x, 100, &top), 0);
            assert_true(isinf(top));
        }
    }
}

/* Softmax and norms of rows at their extremes: finite, and as in double. */
static void test_extremes(void **state)
{
    static const size_t lengths[] = { 1, 2, 17, 4096, 65536 };
    static const struct {
        const char *label;
        float most, rest; /* one value, and all others */
    } cases[] = {
        { "NU-10 all equal", 3, 3 },       { "NU-10 all equal and huge", 1e18f, 1e18f }, { "NU-10 all zero", 0, 0 },
        { "NU-10 one huge", 1e18f, 1 },    { "NU-10 one far below", -1e18f, 1 },         { "NU-10 all tiny", 1e-30f, 1e-30f },
        { "NU-10 a step of 100", 100, 0 },
    };
    static float x[65536], y[65536];

    (void)state;
    for (size_t t = 0; t < nb_kern_count(); t++)
        for (size_t c = 0; table_here(t) && c < NB_LEN(cases); c++)
            for (size_t l = 0; l < NB_LEN(lengths); l++) {
                const nb_kern *k = nb_kern_at(t);
                const size_t n = lengths[l], at = n / 3, other = at ? 0 : n - 1;
                const double a = cases[c].most, b = n > 1 ? cases[c].rest : a, top = a > b ? a : b, rest = (double)(n - 1);
                const double sum = exp(a - top) + rest * exp(b - top), square = (a * a + rest * b * b) / (double)n;
                const double rms = 1 / sqrt(square + (double)1e-5f), mean = (a + rest * b) / (double)n;
                const double dev = ((a - mean) * (a - mean) + rest * (b - mean) * (b - mean)) / (double)n;
                float most = 0;
                double got;

                for (size_t i = 0; i < n; i++)
                    x[i] = cases[c].rest;
                x[at] = cases[c].most;
                assert_true(k->row_max(x, n, &most) < n);
                assert_true(same_float(most, (float)top));
                got = k->exp_sum(y, x, most, n);
                if (!(fabs(got - sum) <= 4e-7 * sum) || !(fabs((double)y[at] / got - exp(a - top) / sum) <= 4e-7))
                    fail_msg("%s: softmax of %zu, %s: sum %g, want %g", cases[c].label, n, k->name, got, sum);
                k->rmsnorm(y, x, NULL, 1, 1e-5f, n);
                if (!(fabs((double)y[at] - a * rms) <= 4e-7 * fabs(a * rms)) || !(fabs((double)y[other] - b * rms) <= 4e-7 * fabs(b * rms)))
                    fail_msg("%s: rmsnorm of %zu, %s: %g, want %g", cases[c].label, n, k->name, (double)y[at], a * rms);
                k->layernorm(y, x, NULL, NULL, 1e-5f, n);
                got = (a - mean) / sqrt(dev + (double)1e-5f); /* what rounding of the mean alone may change */
                if (!isfinite(y[at]) || !(fabs((double)y[at] - got) <= 4e-7 * (fabs(got) + fabs(mean) / sqrt(dev + (double)1e-5f))))
                    fail_msg("%s: layernorm of %zu, %s: %g, want %g", cases[c].label, n, k->name, (double)y[at], got);
            }
}

static void test_nan_propagates(void **state)
{
    static inputs v;
    (void)state;

    for (size_t c = 0; c < N_ROWS; c++)
        for (size_t t = 0; t < nb_kern_count(); t++) {
            if (!table_here(t))
                continue;
            fill(&v, 64, 0, 1, 9);
            v.x[20] = v.y[20] = NAN;
            rows[c].run(nb_kern_at(t), &v);
            for (size_t i = 0; i < 64; i++)
                if ((i == 20 && !isnan(v.y[i])) || (i != 20 && !rows[c].mixes && isnan(v.y[i])))
                    fail_msg("%s, %s: element %zu is %g", rows[c].label, nb_kern_at(t)->name, i, (double)v.y[i]);
        }
}

/* exp, tanh and the normal distribution over their ranges. */
static double relative(double got, double want)
{
    return fabs(got - want) / fabs(want);
}

static void test_functions(void **state)
{
    (void)state;
    for (float x = -87.3f; x < 88.3f; x += 0.000317f * (float)thin())
        if (!(relative(nb_expf(x), exp((double)x)) <= 1.3e-7))
            fail_msg("exp(%.9g) = %.9g", (double)x, (double)nb_expf(x));
    for (float x = 1e-6f; x < 12.0f; x *= 1.0f + 0.00003f * (float)thin()) {
        if (!(relative(nb_tanhf(x), tanh((double)x)) <= 2e-7) || nb_tanhf(-x) != -nb_tanhf(x))
            fail_msg("tanh(%.9g) = %.9g", (double)x, (double)nb_tanhf(x));
    }
    for (float x = -7.0f; x < 9.0f; x += 0.00007f * (float)thin())
        if (!(relative(nb_normf(x), 0.5 * erfc(-(double)x / sqrt(2.0))) <= (x > -1.0f ? 3e-7 : 4e-6)))
            fail_msg("norm(%.9g) = %.9g, want %.9g", (double)x, (double)nb_normf(x), 0.5 * erfc(-(double)x / sqrt(2.0)));
    assert_true(nb_expf(0.0f) == 1.0f && nb_expf(-INFINITY) == 0.0f && nb_expf(-200.0f) == 0.0f);
    assert_true(nb_expf(INFINITY) == INFINITY && nb_expf(100.0f) == INFINITY && isnan(nb_expf(NAN)));
    assert_true(nb_tanhf(INFINITY) == 1.0f && nb_tanhf(-INFINITY) == -1.0f && isnan(nb_tanhf(NAN)) && nb_tanhf(1e-40f) == 1e-40f);
    assert_true(nb_normf(0.0f) == 0.5f && nb_normf(20.0f) == 1.0f && nb_normf(-20.0f) == 0.0f && isnan(nb_normf(NAN)));
}

/* A vector table that points at scalar code would pass every comparison; only packing and single rows may. */
static void test_no_scalar_in_disguise(void **state)
{
    const nb_kern *s = nb_kern_find("scalar");
    (void)state;

    for (size_t i = 0; i < nb_kern_count(); i++) {
        const nb_kern *t = nb_kern_at(i);
        if (t == s)
            continue;
        if (t->gemm_dense == s->gemm_dense || t->kv_put == s->kv_put || t->attn == s->attn || t->attn_part == s->attn_part ||
            t->attn_merge == s->attn_merge || t->rmsnorm == s->rmsnorm || t->layernorm == s->layernorm || t->rope_half == s->rope_half ||
            t->rope_pair == s->rope_pair || t->silu_mul == s->silu_mul || t->gelu_tanh_mul == s->gelu_tanh_mul ||
            t->gelu_erf_mul == s->gelu_erf_mul || t->add == s->add || t->axpy == s->axpy || t->softcap == s->softcap)
            fail_msg("%s: a kernel is the scalar one", t->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),     cmocka_unit_test(test_tables_agree),
        cmocka_unit_test(test_edge_lengths), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_row_max),      cmocka_unit_test(test_nan_propagates),
        cmocka_unit_test(test_functions),    cmocka_unit_test(test_no_scalar_in_disguise),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
