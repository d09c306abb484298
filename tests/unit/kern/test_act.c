/* test_act.c - A16 and A8 activations: every table against scalar, scalar against the definition. */
#include <stdlib.h>

#include "q4_case.h"

static const struct {
    size_t k, g;
} sizes[] = { { 1, 8 }, { 7, 8 }, { 32, 32 }, { 100, 104 }, { 576, 64 }, { 576, 128 }, { 1000, 72 }, { 2048, 128 }, { 513, 128 } };

/* A permutation of k inputs. */
static uint32_t *perm_make(size_t k)
{
    uint32_t *p = nb_alloc_array(k, sizeof *p);
    uint64_t s = k;

    assert_non_null(p);
    for (size_t i = 0; i < k; i++)
        p[i] = (uint32_t)i;
    for (size_t i = k; i > 1; i--) {
        const size_t j = rnd(&s) % i;
        const uint32_t t = p[i - 1];
        p[i - 1] = p[j];
        p[j] = t;
    }
    return p;
}

static void tables_agree(void **state)
{
    enum { M = 3 };
    const nb_kern *ref = nb_kern_find("scalar");

    (void)state;
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);
        if (!runs(t))
            continue;
        for (size_t i = 0; i < NB_LEN(sizes); i++)
            for (int kind = 0; kind < X_KINDS; kind++)
                for (int variant = 0; variant < 4; variant++) {
                    const bool permuted = variant & 1, a8 = variant & 2;
                    const size_t k = sizes[i].k, g = sizes[i].g, bytes = nb_act_bytes(M, k, g);
                    float *x = nb_alloc_array(M * k, sizeof *x); /* exact: reads past the end are seen by the sanitizer */
                    uint32_t *perm = permuted ? perm_make(k) : NULL;
                    nb_act a, b;

                    x_fill(x, M * k, (x_kind)kind, 7 * i + 1);
                    void *got = act_make(&a, t, x, k, M, k, g, perm, a8), *want = act_make(&b, ref, x, k, M, k, g, perm, a8);
                    same(x_names[kind], t->name, got, want, bytes);
                    memset(got, 0, bytes); /* the same again, token by token */
                    for (size_t r = M; r-- > 0;)
                        (a8 ? t->act_a8 : t->act_a16)(&a, x, k, r, r + 1, perm);
                    same(x_names[kind], t->name, a.hi, b.hi, a.n_groups * M * g);
                    if (!a8)
                        same(x_names[kind], t->name, a.lo, b.lo, a.n_groups * M * g);
                    same(x_names[kind], t->name, a.step, b.step, a.n_groups * M * 4);
                    same(x_names[kind], t->name, a.sum, b.sum, a.n_groups * M * 4);
                    guard_free(got, bytes, t->name);
                    guard_free(want, bytes, "scalar");
                    nb_free(x);
                    nb_free(perm);
                }
    }
}

/* Every length from 1 to 65, from floats that begin 4 bytes behind a cache line. */
static void edge_lengths(void **state)
{
    enum { M = 2, G = 32 };
    const nb_kern *ref = nb_kern_find("scalar");
    float *room = aligned_alloc(64, 64 * 16);

    (void)state;
    assert_non_null(room);
    for (size_t ti = 0; ti < nb_kern_count(); ti++)
        for (size_t k = 1; runs(nb_kern_at(ti)) && k <= 65; k++)
            for (int a8 = 0; a8 < 2; a8++) {
                const size_t bytes = nb_act_bytes(M, k, G);
                float *x = room + 1;
                nb_act a, b;

                x_fill(x, M * k, X_NORMAL, k);
                void *got = act_make(&a, nb_kern_at(ti), x, k, M, k, G, NULL, a8), *want = act_make(&b, ref, x, k, M, k, G, NULL, a8);
                same("NU-16 edge lengths, unaligned", nb_kern_at(ti)->name, got, want, bytes);
                guard_free(got, bytes, nb_kern_at(ti)->name);
                guard_free(want, bytes, "scalar");
            }
    free(room);
}

/* |v*step - x| <= step/2 and a little for the rounding of 32512/a (127/a), of the product and of step. */
static void meets_the_definition(bool a8)
{
    const int most = a8 ? 127 : 32512;
    const nb_kern *ref = nb_kern_find("scalar");
    static const x_kind kinds[] = { X_NORMAL, X_ZERO, X_OUTLIER, X_MAX, X_PLANES, X_TINY, X_HUGE };
    enum { K = 1000, G = 128 };
    static float x[K];

    for (size_t c = 0; c < NB_LEN(kinds); c++) {
        nb_act a;

        x_fill(x, K, kinds[c], 5);
        void *buf = act_make(&a, ref, x, K, 1, K, G, NULL, a8);
        for (size_t grp = 0; grp < a.n_groups; grp++) {
            double max = 0.0;
            int32_t sum = 0;

            for (size_t j = 0; j < G && grp * G + j < K; j++)
                max = fmax(max, fabs((double)x[grp * G + j]));
            for (size_t j = 0; j < G; j++) {
                const double want = grp * G + j < K ? (double)x[grp * G + j] : 0.0, step = (double)a.step[grp];
                const int hi = a.hi[grp * G + j], v = a8 ? hi : 256 * hi + a.lo[grp * G + j];

                sum += v;
                assert_in_range(hi + 127, 0, 254);
                assert_in_range(v + most, 0, 2 * most);
                if (!(fabs(v * step - want) <= 0.5 * step * 1.01 + max * 3e-7))
                    fail_msg("%s: input %zu is %g, stored as %d * %g", x_names[kinds[c]], grp * G + j, want, v, step);
            }
            assert_int_equal(sum, a.sum[grp]);
            if (!(fabs((double)a.step[grp] - max / most) <= max / most * 1e-6))
                fail_msg("%s: step %g, max %g", x_names[kinds[c]], (double)a.step[grp], max);
        }
        guard_free(buf, nb_act_bytes(1, K, G), "scalar");
    }
}

static void scalar_meets_the_definition(void **state)
{
    (void)state;
    meets_the_definition(false);
    meets_the_definition(true);
}

/* A NaN or Inf makes the step of its own group NaN, with zero values; other groups are untouched. */
static void not_finite_is_kept(void **state)
{
    static float x[256];

    (void)state;
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);
        static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };

        if (!runs(t))
            continue;
        for (size_t i = 0; i < 2 * NB_LEN(bad); i++) {
            const bool a8 = i % 2;
            nb_act a;

            x_fill(x, 256, X_NORMAL, 3);
            x[200] = bad[i / 2];
            void *buf = act_make(&a, t, x, 256, 1, 256, 128, NULL, a8);
            assert_false(isnan(a.step[0]));
            assert_true(isnan(a.step[1]));
            assert_int_equal(a.sum[1], 0);
            for (size_t j = 128; j < 256; j++)
                assert_true(a.hi[j] == 0 && (a8 || a.lo[j] == 0));
            guard_free(buf, nb_act_bytes(1, 256, 128), t->name);
        }
    }
}

/* Groups too small to scale (32512/a or 127/a overflows) are zero: no NaN, no Inf. */
static void denormals_are_zero(void **state)
{
    static float x[128];
    nb_act a;

    (void)state;
    x_fill(x, 128, X_DENORMAL, 4);
    for (int a8 = 0; a8 < 2; a8++) {
        void *buf = act_make(&a, nb_kern_find("scalar"), x, 128, 1, 128, 128, NULL, a8);
        assert_true(a.step[0] == 0.0f && a.sum[0] == 0);
        guard_free(buf, nb_act_bytes(1, 128, 128), "scalar");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree),       cmocka_unit_test(edge_lengths),       cmocka_unit_test(scalar_meets_the_definition),
        cmocka_unit_test(not_finite_is_kept), cmocka_unit_test(denormals_are_zero),
    };
    return cmocka_run_group_tests_name("kern act", tests, NULL, NULL);
}
