/* test_recur.c - recurrences: every table against scalar bit by bit, any cut the same bits, scalar against double and the check
 * values of spec models-2026 S9. */
#include "base/mem.h"
#include "kern_test.h"

enum { MOST = 40 }; /* tokens */

typedef struct shape {
    const char *label;
    size_t dk, dv, m;
    bool each;
} shape;

static const shape shapes[] = {
    { "tiny", 1, 1, 3, false },        { "less than a block", 8, 12, 5, true },
    { "one block", 16, 32, 7, false }, { "blocks and rest", 24, 77, 9, true },
    { "a head", 128, 128, 33, false }, { "a head, each", 128, 64, MOST, true },
};

/* One problem: inputs of all tokens, the matrix before. */
typedef struct problem {
    shape s;
    float *q, *k, *v, *a, *beta, *S0;
} problem;

static float *filled(size_t n, uint64_t seed, float by, float add)
{
    float *p = exactly(n * sizeof *p);

    random_fill(p, n, seed);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] * by + add;
    return p;
}

static problem make(const shape *s)
{
    problem p = { .s = *s };
    const float by = 1 / sqrtf((float)s->dk);

    p.q = filled(s->m * s->dk, 1, by, 0);
    p.k = filled(s->m * s->dk, 2, by, 0);
    p.v = filled(s->m * s->dv, 3, 1, 0);
    p.a = filled(s->m * s->dk, 4, 0.02f, 0.9f);
    p.beta = filled(s->m, 5, 0.1f, 0.5f);
    p.S0 = filled(s->dk * s->dv, 6, 1, 0);
    return p;
}

static void drop(problem *p)
{
    float *all[] = { p->q, p->k, p->v, p->a, p->beta, p->S0 };

    for (size_t i = 0; i < NB_LEN(all); i++)
        free(all[i]);
}

/* All tokens, `cut` at a time; S and o are filled. */
static void run(const nb_kern *kern, const problem *p, bool delta, size_t cut, float *S, float *o)
{
    const shape *s = &p->s;
    float *work = exactly(s->m * (2 * s->dk + 1) * sizeof *work);

    memcpy(S, p->S0, s->dk * s->dv * sizeof *S);
    for (size_t t = 0; t < s->m; t += cut) {
        const nb_recur r = { .S = S,
                             .dk = s->dk,
                             .dv = s->dv,
                             .m = s->m - t < cut ? s->m - t : cut,
                             .q = p->q + t * s->dk,
                             .k = p->k + t * s->dk,
                             .v = p->v + t * s->dv,
                             .ldq = s->dk,
                             .ldk = s->dk,
                             .ldv = s->dv,
                             .a = p->a + t * s->dk,
                             .lda = s->dk,
                             .each = s->each,
                             .beta = p->beta + t,
                             .o = o + t * s->dv,
                             .ldo = s->dv,
                             .work = work,
                             .next = t ? p->S0 : NULL }; /* read ahead only */
        (delta ? kern->delta : kern->linrec)(&r);
    }
    free(work);
}

static void tables_and_cuts(void **state)
{
    static const size_t cuts[] = { 1, 2, 5, 16, 1000 };

    (void)state;
    for (size_t c = 0; c < 2 * NB_LEN(shapes); c++) {
        const shape *s = &shapes[c / 2];
        const size_t nS = s->dk * s->dv, no = s->m * s->dv;
        problem p = make(s);
        float *S = guarded(nS * sizeof *S), *o = guarded(no * sizeof *o), *wS = exactly(nS * sizeof *S), *wo = exactly(no * sizeof *o);

        run(nb_kern_find("scalar"), &p, c % 2, 1, wS, wo);
        for (size_t i = 0; i < nb_kern_count(); i++)
            for (size_t k = 0; k < NB_LEN(cuts) && table_here(i); k++) {
                run(table_here(i), &p, c % 2, cuts[k], S, o);
                if (memcmp(S, wS, nS * sizeof *S) != 0 || memcmp(o, wo, no * sizeof *o) != 0)
                    fail_msg("%s, %s, table %s, %zu at a time: other bits", s->label, c % 2 ? "delta" : "linear", nb_kern_at(i)->name,
                             cuts[k]);
                guards_intact(S, nS * sizeof *S, s->label);
                guards_intact(o, no * sizeof *o, s->label);
            }
        guarded_free(S);
        guarded_free(o);
        free(wS);
        free(wo);
        drop(&p);
    }
}

/* The formulas of S4.5 and S4.6 in double, in their own order. */
static void against_double(void **state)
{
    (void)state;
    for (size_t c = 0; c < 2 * NB_LEN(shapes); c++) {
        const shape *s = &shapes[c / 2];
        problem p = make(s);
        float *S = exactly(s->dk * s->dv * sizeof *S), *o = exactly(s->m * s->dv * sizeof *o);
        double *D = exactly(s->dk * s->dv * sizeof *D), worst = 0;

        run(nb_kern_find("scalar"), &p, c % 2, 7, S, o);
        for (size_t i = 0; i < s->dk * s->dv; i++)
            D[i] = (double)p.S0[i];
        for (size_t t = 0; t < s->m; t++)
            for (size_t j = 0; j < s->dv; j++) {
                double e = (double)p.v[t * s->dv + j], out = 0;
                for (size_t i = 0; i < s->dk; i++)
                    D[i * s->dv + j] *= (double)p.a[t * s->dk + (s->each ? i : 0)];
                for (size_t i = 0; c % 2 && i < s->dk; i++)
                    e -= D[i * s->dv + j] * (double)p.k[t * s->dk + i];
                e *= c % 2 ? (double)p.beta[t] : 1;
                for (size_t i = 0; i < s->dk; i++) {
                    D[i * s->dv + j] += (double)p.k[t * s->dk + i] * e;
                    out += D[i * s->dv + j] * (double)p.q[t * s->dk + i];
                }
                worst = fmax(worst, fabs(out - (double)o[t * s->dv + j]));
            }
        if (!(worst < 2e-5))
            fail_msg("%s, %s: %g from double", s->label, c % 2 ? "delta" : "linear", worst);
        free(S);
        free(o);
        free(D);
        drop(&p);
    }
}

static void check_values(void **state)
{
    const float r2 = 1 / sqrtf(2 + 1e-6f), r1 = 1 / sqrtf(1 + 1e-6f), r5 = 1 / sqrtf(5 + 1e-6f), h = 1 / sqrtf(2);
    /* q and k by their lengths, q by another 2^-1/2 */
    const float q[] = { 1 * r5 * h, 2 * r5 * h, 0, 1 * r1 * h }, v[] = { 1, -1, 2, 0.5f }, beta[] = { 0.5f, 0.25f };
    const float k1[] = { 1 * r1, 0, 1 * r2, 1 * r2 }, a1[] = { 0.5f, 0.8f };
    const float k2[] = { 1 * r2, 1 * r2, 1 * r5, -2 * r5 }, a2[] = { 0.5f, 0.9f, 0.8f, 0.25f };
    const double want1[] = { 0.15811379, -0.15811379, 0.21464453, 0.09785524 };
    const double want2[] = { 0.33541008, -0.33541008, -0.24622763, -0.14905684 };
    const float dt[] = { 0.2f, -1 }, X[] = { 1, -2, 0.5f, 1 }, B[] = { 1, 0.5f, -1, 2 }, C[] = { 0.5f, 1, 1, 1 };
    const double want3[] = { 1.0981389, -2.1962777, 1.0209047, -0.8152861 };

    (void)state;
    for (size_t i = 0; i < nb_kern_count() && table_here(i); i++) {
        float S[3][4] = { { 0 } }, o[3][4], work[10], a3[2], v3[4];
        nb_recur r = { .S = S[0], .dk = 2, .dv = 2, .m = 2, .q = q, .k = k1, .v = v, .ldq = 2, .ldk = 2, .ldv = 2, .a = a1, .lda = 1 };

        r.beta = beta;
        r.o = o[0];
        r.ldo = 2;
        r.work = work;
        nb_kern_at(i)->delta(&r);
        r = (nb_recur){ .S = S[1],
                        .dk = 2,
                        .dv = 2,
                        .m = 2,
                        .q = q,
                        .k = k2,
                        .v = v,
                        .ldq = 2,
                        .ldk = 2,
                        .ldv = 2,
                        .a = a2,
                        .lda = 2,
                        .each = true,
                        .beta = beta,
                        .o = o[1],
                        .ldo = 2,
                        .work = work };
        nb_kern_at(i)->delta(&r);
        for (size_t t = 0; t < 2; t++) {
            const float d = logf(1 + expf(dt[t]));
            a3[t] = expf(-expf(0.5f) * d);
            v3[2 * t] = d * X[2 * t];
            v3[2 * t + 1] = d * X[2 * t + 1];
        }
        r = (nb_recur){ .S = S[2],
                        .dk = 2,
                        .dv = 2,
                        .m = 2,
                        .q = C,
                        .k = B,
                        .v = v3,
                        .ldq = 2,
                        .ldk = 2,
                        .ldv = 2,
                        .a = a3,
                        .lda = 1,
                        .o = o[2],
                        .ldo = 2 };
        nb_kern_at(i)->linrec(&r);
        for (size_t n = 0; n < 4; n++) {
            assert_true(fabs((double)o[0][n] - want1[n]) < 1e-6 && fabs((double)o[1][n] - want2[n]) < 1e-6);
            assert_true(fabs((double)(o[2][n] + 0.3f * X[n]) - want3[n]) < 1e-6);
        }
    }
}

/* Mamba-1 with 100 channels of a wider matrix, a convolution, a gate. */
static void channels(void **state)
{
    enum { N = 100, LD = 130, K = 16, TAPS = 4 };
    float *S0 = filled(K * LD, 1, 1, 0), *A = filled(K * LD, 2, 1, -3), *dt = filled(N, 3, 4, 0), *u = filled(N, 4, 1, 0);
    float *skip = filled(N, 5, 1, 0), *B = filled(K, 6, 1, 0), *C = filled(K, 7, 1, 0), *w = filled(TAPS * N, 8, 1, 0);
    float *S = exactly(K * LD * sizeof *S), *wS = exactly(K * LD * sizeof *S), *o = exactly(N * sizeof *o), wo[3][N];
    const float *taps[TAPS] = { dt, u, skip, dt };

    (void)state;
    for (size_t i = nb_kern_count(); i-- > 0;) {
        const nb_kern *k = table_here(i);
        const bool scalar = strcmp(nb_kern_at(i)->name, "scalar") == 0;
        float got[3][N];

        if (!k)
            continue;
        memcpy(S, S0, K * LD * sizeof *S);
        k->ssm1(S, LD, K, N, A, dt, u, skip, B, C, o);
        memcpy(got[0], o, N * sizeof *o);
        k->conv(o, u, w, N, taps, TAPS, N);
        memcpy(got[1], o, N * sizeof *o);
        memcpy(o, u, N * sizeof *o);
        k->gate(o, dt, N);
        memcpy(got[2], o, N * sizeof *o);
        if (scalar) {
            memcpy(wS, S, K * LD * sizeof *S);
            memcpy(wo, got, sizeof wo);
            for (size_t n = 0; n < N; n++) {
                const double d = log1p(exp((double)dt[n])), c = (double)u[n] + (double)w[n] * (double)dt[n] +
                                                                (double)w[N + n] * (double)u[n] + (double)w[2 * N + n] * (double)skip[n] +
                                                                (double)w[3 * N + n] * (double)dt[n];
                double y = (double)skip[n] * (double)u[n];
                for (size_t j = 0; j < K; j++)
                    y += (exp((double)A[j * LD + n] * d) * (double)S0[j * LD + n] + d * (double)u[n] * (double)B[j]) * (double)C[j];
                assert_true(fabs(y - (double)got[0][n]) < 2e-5 * (1 + fabs(y)) && fabs(c - (double)got[1][n]) < 1e-5);
                assert_true(fabs((double)u[n] / (1 + exp(-(double)dt[n])) - (double)got[2][n]) < 1e-6);
            }
        }
        if (memcmp(wS, S, K * LD * sizeof *S) != 0 || memcmp(wo, got, sizeof wo) != 0)
            fail_msg("table %s: other bits", nb_kern_at(i)->name);
    }
    float *all[] = { S0, A, dt, u, skip, B, C, w, S, wS, o };
    for (size_t i = 0; i < NB_LEN(all); i++)
        free(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tables_and_cuts), cmocka_unit_test(against_double), cmocka_unit_test(check_values),
                                        cmocka_unit_test(channels) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
