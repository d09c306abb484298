/* test_q4.c - products of packed 4-bit and 8-bit weights: equal bits over tables, tokens, strips and threads; scalar against
 * double precision. Sizes: spec kernels 12. */
#include "q4_case.h"
#include "thin.h"

#include "base/pool.h"

/* What a test is run for: bits of the weights, form of the activations. */
typedef struct form {
    unsigned bits;
    bool a8;
} form;

/* Everything one product needs. */
typedef struct product {
    nb_qlin hub;
    nb_q4 w;
    float *x;
    size_t m;
    bool a8;
} product;

static void product_make(product *p, form of, size_t n, size_t k, size_t g, size_t m, codes_kind ck, zeros_kind zk, x_kind xk, bool wide)
{
    memset(p, 0, sizeof *p);
    hub_make_bits(&p->hub, of.bits, n, k, g, ck, zk, wide, n + k + g);
    p->a8 = of.a8;
    packed_make(&p->w, nb_kern_find("scalar"), &p->hub, NULL);
    p->m = m;
    p->x = nb_alloc_array(m * k, sizeof *p->x);
    assert_non_null(p->x);
    x_fill(p->x, m * k, xk, 3 * k + m);
}

static void product_free(product *p)
{
    packed_free(&p->w, "weights");
    nb_qlin_clear(&p->hub);
    nb_free(p->x);
}

/* y[m][w.n + 5] of the first m tokens by table t; the 5 columns after each row stay untouched. */
static float *run(const nb_kern *t, const product *p, size_t m, const char *label)
{
    const size_t ldy = p->w.n + 5, bytes = m * ldy * sizeof(float);
    float *y = guarded(bytes);
    nb_act a;
    void *buf = act_make(&a, t, p->x, p->w.k, m, p->w.k, p->w.g, p->w.perm, p->a8);

    gemm_of(t, &p->hub, p->a8)(&p->w, &a, y, ldy, 0, p->w.n_strips);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < 5; j++)
            assert_int_equal(nb_bits_from_f32(y[i * ldy + p->w.n + j]), 0xa5a5a5a5u);
    guard_free(buf, nb_act_bytes(m, p->w.k, p->w.g), label);
    return y;
}

static void run_free(float *y, const product *p, size_t m, const char *label)
{
    guard_free(y, m * (p->w.n + 5) * sizeof(float), label);
}

/* Tables against scalar for each m of the list; scalar runs once with the most tokens. */
static void compare(const product *p, const size_t *ms, size_t n_ms, const char *label)
{
    const nb_kern *ref = nb_kern_find("scalar");
    float *want = run(ref, p, p->m, label);

    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);

        if (!runs(t))
            continue;
        for (size_t i = 0; i < n_ms; i++) {
            float *got = run(t, p, ms[i], t->name);
            same(label, t->name, got, want, ms[i] * (p->w.n + 5) * sizeof(float));
            run_free(got, p, ms[i], t->name);
        }
    }
    run_free(want, p, p->m, label);
}

static void tables_agree_over_shapes(void **state)
{
    const form of = *(const form *)*state;
    static const size_t few[] = { 1, 2, 3, 4, 5, 9 }, all[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 63, 64, 65, 130 }, one[] = { 1, 4 };
    static const struct {
        const size_t *ms;
        size_t n_ms, n, k, g;
        bool wide;
    } rows[] = {
        { all, NB_LEN(all), 65, 128, 128, false },    { all, NB_LEN(all), 64, 64, 32, false },
        { few, NB_LEN(few), 1, 32, 32, false },       { few, NB_LEN(few), 63, 256, 128, false },
        { few, NB_LEN(few), 192, 576, 64, false },    { few, NB_LEN(few), 192, 576, 128, true },
        { few, NB_LEN(few), 64, 576, 576, false },    { few, NB_LEN(few), 128, 576, 32, true },
        { one, NB_LEN(one), 576, 2048, 128, false },  { one, NB_LEN(one), 64, 8192, 8192, false },
        { one, NB_LEN(one), 64, 8192, 64, false },    { one, NB_LEN(one), 2048, 128, 64, false },
        { few, NB_LEN(few), 64, 100, 100, false },    { few, NB_LEN(few), 64, 40, 8, false },
        { few, NB_LEN(few), 64, 1000, 72, false },    { few, NB_LEN(few), 64, 13, 13, true },
        { one, NB_LEN(one), 2048, 2048, 128, false }, { one, NB_LEN(one), 576, 8192, 32, false },
        { all, NB_LEN(all), 192, 256, 128, true },
    };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        product p;
        char label[64];

        if (left_out())
            continue;
        snprintf(label, sizeof label, "n %zu k %zu g %zu", rows[i].n, rows[i].k, rows[i].g);
        product_make(&p, of, rows[i].n, rows[i].k, rows[i].g, rows[i].ms[rows[i].n_ms - 1], CODES_RANDOM, ZEROS_RANDOM, X_NORMAL,
                     rows[i].wide);
        compare(&p, rows[i].ms, rows[i].n_ms, label);
        product_free(&p);
    }
}

/* Every number of inputs from 1 to 65: integer products are equal bit by bit. */
static void edge_lengths(void **state)
{
    const form of = *(const form *)*state;
    static const size_t ms[] = { 1, 2, 5 };

    for (size_t k = 1; k <= 65; k++) {
        product p;
        char label[32];

        if (left_out())
            continue;
        snprintf(label, sizeof label, "NU-16 %zu inputs", k);
        product_make(&p, of, 65, k, k, 5, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, k % 2);
        compare(&p, ms, NB_LEN(ms), label);
        product_free(&p);
    }
}

/* Outputs that are no multiple of a tile of some kernel. */
static void bb07_outputs(void **state)
{
    static const size_t n[] = { 8, 16, 64, 72, 192, 1000 }, ms[] = { 1, 4, 128 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(n); i++) {
        product p;
        char label[32];

        snprintf(label, sizeof label, "BB-07 %zu outputs", n[i]);
        product_make(&p, (form){ 4, false }, n[i], 128, 64, 128, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, false);
        for (size_t t = 0; t < 128; t++) /* the identity: each token reads one column */
            for (size_t k = 0; k < 128; k++)
                p.x[t * p.w.k + k] = t == k ? 1.0f : 0.0f;
        compare(&p, ms, NB_LEN(ms), label);
        product_free(&p);
    }
}

static void tables_agree_over_values(void **state)
{
    const form of = *(const form *)*state;
    static const size_t ms[] = { 1, 2, 4, 7 };
    static const codes_kind codes[] = { CODES_RANDOM, CODES_ZERO, CODES_FULL };
    static const zeros_kind zeros[] = { ZEROS_NONE, ZEROS_FULL, ZEROS_MIXED };

    for (size_t c = 0; c < NB_LEN(codes); c++)
        for (size_t z = 0; z < NB_LEN(zeros); z++)
            for (int kind = 0; kind < X_KINDS; kind++) {
                product p;

                if (left_out())
                    continue;
                product_make(&p, of, 65, 256, 128, 7, codes[c], zeros[z], (x_kind)kind, false);
                compare(&p, ms, NB_LEN(ms), x_names[kind]);
                product_free(&p);
            }
}

/* m = 1 .. 33: row i equals the same token computed alone. */
static void batch_equals_single_tokens(void **state)
{
    const form of = *(const form *)*state;
    enum { M = 33 };
    product p;

    product_make(&p, of, 100, 320, 64, M, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, false);
    const size_t ldy = p.w.n + 5;
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);
        float *alone[M];

        if (!runs(t))
            continue;
        for (size_t i = 0; i < M; i++) {
            product one = p;
            one.x = p.x + i * p.w.k;
            alone[i] = run(t, &one, 1, t->name);
        }
        for (size_t m = 1; m <= M; m++) {
            float *y = run(t, &p, m, t->name);
            for (size_t i = 0; i < m; i++)
                same("token in a batch", t->name, y + i * ldy, alone[i], p.w.n * sizeof(float));
            run_free(y, &p, m, t->name);
        }
        for (size_t i = 0; i < M; i++)
            run_free(alone[i], &p, 1, t->name);
    }
    product_free(&p);
}

typedef struct split {
    gemm_fn *gemm;
    const nb_q4 *w;
    const nb_act *a;
    float *y;
} split;

static void split_range(void *ctx, size_t begin, size_t end, int thread)
{
    const split *s = ctx;

    (void)thread;
    s->gemm(s->w, s->a, s->y, s->w->n + 5, begin, end);
}

/* Any split of the strips, by hand or over threads, gives the bits of one call and writes only its own columns. */
static void strips_and_threads(void **state)
{
    const form of = *(const form *)*state;
    static const size_t ms[] = { 1, 6 };
    product p;

    product_make(&p, of, 400, 512, 128, 6, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, false);
    for (size_t ti = 0; ti < nb_kern_count(); ti++)
        for (size_t mi = 0; mi < NB_LEN(ms); mi++) {
            const nb_kern *t = nb_kern_at(ti);
            const size_t m = ms[mi], ldy = p.w.n + 5, bytes = m * ldy * sizeof(float);
            nb_act a;

            if (!runs(t))
                continue;
            float *want = run(t, &p, m, t->name), *y = guarded(bytes);
            void *buf = act_make(&a, t, p.x, p.w.k, m, p.w.k, p.w.g, NULL, p.a8);

            gemm_of(t, &p.hub, p.a8)(&p.w, &a, y, ldy, 2, 3);
            for (size_t i = 0; i < m * ldy; i++) {
                const bool mine = i % ldy >= 128 && i % ldy < 192;
                if (nb_bits_from_f32(y[i]) != (mine ? nb_bits_from_f32(want[i]) : 0xa5a5a5a5u))
                    fail_msg("%s: strip 2 alone: value %zu", t->name, i);
            }
            for (int threads = 1; threads <= 3; threads++) {
                nb_pool *pool;
                split s = { gemm_of(t, &p.hub, p.a8), &p.w, &a, y };

                assert_int_equal(nb_pool_open(&pool, threads, NULL), NB_OK);
                memset(y, GUARD_BYTE, bytes);
                nb_parallel_static(pool, p.w.n_strips, split_range, &s);
                same("static split", t->name, y, want, bytes);
                memset(y, GUARD_BYTE, bytes);
                nb_parallel_for(pool, p.w.n_strips, 1, split_range, &s);
                same("dynamic split", t->name, y, want, bytes);
                nb_pool_close(pool);
            }
            guard_free(buf, nb_act_bytes(m, p.w.k, p.w.g), t->name);
            guard_free(y, bytes, t->name);
            run_free(want, &p, m, t->name);
        }
    product_free(&p);
}

/* Exact product of row r and token i in double, with the sums of |w| * step/2 and |w*x| that bound the error. */
static double exact(const product *p, const nb_act *a, size_t i, size_t r, double *half_steps, double *size)
{
    const nb_qlin *q = &p->hub;
    double y = 0.0;

    *half_steps = *size = 0.0;
    for (size_t j = 0; j < q->k; j++) {
        const size_t at = r * q->n_groups + j / q->g;
        const double w = (q->codes[r * q->k + j] - q->zeros[at]) * (double)q->scales[at], x = (double)p->x[i * q->k + j];

        y += w * x;
        *size += fabs(w * x) + fabs(q->zeros[at] * (double)q->scales[at] * x);
        if (a)
            *half_steps += fabs(w) * 0.5 * (double)a->step[j / p->w.g * a->m + i];
    }
    return y;
}

static void scalar_meets_the_formula(void **state)
{
    const form of = *(const form *)*state;
    static const struct {
        const char *label;
        size_t n, k, g;
        x_kind x;
        bool wide;
    } rows[] = {
        { "g 128", 70, 2048, 128, X_NORMAL, false },     { "g 32, wide", 64, 576, 32, X_NORMAL, true },
        { "outliers", 64, 1024, 128, X_OUTLIER, false }, { "per channel", 64, 576, 576, X_NORMAL, false },
        { "bounds", 64, 512, 128, X_MAX, false },
    };
    const nb_kern *ref = nb_kern_find("scalar");

    for (size_t c = 0; c < NB_LEN(rows); c++) {
        product p;
        nb_act a;
        double err = 0.0, sum = 0.0;

        product_make(&p, of, rows[c].n, rows[c].k, rows[c].g, 2, CODES_RANDOM, ZEROS_RANDOM, rows[c].x, rows[c].wide);
        float *y = run(ref, &p, 2, "scalar"), *z = guarded(2 * p.w.n * sizeof(float));
        void *buf = act_make(&a, ref, p.x, p.w.k, 2, p.w.k, p.w.g, NULL, of.a8);
        gemm_f32_of(ref, &p.hub)(&p.w, p.x, p.w.k, 2, z, p.w.n, 0, p.w.n_strips);
        for (size_t i = 0; i < 2; i++)
            for (size_t r = 0; r < p.hub.n; r++) {
                double half, size;
                const double want = exact(&p, &a, i, r, &half, &size), got = (double)y[i * (p.w.n + 5) + r];

                if (!(fabs(got - want) <= 1.01 * half + size * 1e-6))
                    fail_msg("%s: row %zu is %g, want %g within %g", rows[c].label, r, got, want, half);
                if (!(fabs((double)z[i * p.w.n + r] - want) <= size * 1e-5))
                    fail_msg("%s: f32: row %zu is %g, want %g", rows[c].label, r, (double)z[i * p.w.n + r], want);
                err += (got - want) * (got - want);
                sum += want * want;
            }
        /* gates of spec kernels 12: relative RMS error */
        const double gate = of.a8 ? (rows[c].x == X_OUTLIER ? 4e-2 : 1e-2) : rows[c].x == X_OUTLIER ? 2e-4 : 5e-5;
        if (!(sqrt(err / sum) <= gate))
            fail_msg("%s: relative error %g", rows[c].label, sqrt(err / sum));
        guard_free(buf, nb_act_bytes(2, p.w.k, p.w.g), "scalar");
        guard_free(z, 2 * p.w.n * sizeof(float), "scalar");
        run_free(y, &p, 2, "scalar");
        product_free(&p);
    }
}

/* A token with a NaN or Inf gives NaN in every output; the others keep their bits. */
static void not_finite_reaches_its_token(void **state)
{
    const form of = *(const form *)*state;
    for (size_t ti = 0; ti < nb_kern_count(); ti++)
        for (int inf = 0; inf < 2; inf++) {
            const nb_kern *t = nb_kern_at(ti);
            product p;

            if (!runs(t))
                continue;
            product_make(&p, of, 64, 256, 64, 5, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, false);
            float *clean = run(t, &p, 5, t->name);
            p.x[3 * 256 + 100] = inf ? INFINITY : NAN;
            float *y = run(t, &p, 5, t->name);
            for (size_t i = 0; i < 5; i++)
                for (size_t r = 0; r < 64; r++)
                    if (i == 3 ? !isnan(y[i * 69 + r]) : y[i * 69 + r] != clean[i * 69 + r])
                        fail_msg("%s: token %zu, row %zu is %g", t->name, i, r, (double)y[i * 69 + r]);
            run_free(clean, &p, 5, t->name);
            run_free(y, &p, 5, t->name);
            product_free(&p);
        }
}

/* Act-order: the product equals that of the matrix with its inputs put in order by hand. */
static void act_order_gathers_inputs(void **state)
{
    const form of = *(const form *)*state;
    enum { N = 64, K = 256, G = 64, M = 3 };
    uint32_t perm[K];
    nb_qlin q, plain;
    static float x[M * K], sorted[M * K];
    nb_q4 w, v;

    hub_make_bits(&q, of.bits, N, K, G, CODES_RANDOM, ZEROS_RANDOM, false, 21);
    hub_make_bits(&plain, of.bits, N, K, G, CODES_RANDOM, ZEROS_RANDOM, false, 21);
    assert_int_equal(nb_qlin_init_gidx(&q, NULL), NB_OK);
    for (size_t i = 0; i < K; i++)
        q.g_idx[i] = (uint32_t)(i * 5 % 256 / G);
    assert_int_equal(nb_q4_perm(q.g_idx, K, G, K / G, perm, NULL), NB_OK);
    x_fill(x, M * K, X_NORMAL, 22);
    for (size_t j = 0; j < K; j++) {
        for (size_t r = 0; r < N; r++)
            plain.codes[r * K + j] = q.codes[r * K + perm[j]];
        for (size_t i = 0; i < M; i++)
            sorted[i * K + j] = x[i * K + perm[j]];
    }
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);
        float y[M * N], z[M * N];
        nb_act a, b;

        if (!runs(t))
            continue;
        packed_make(&w, t, &q, perm);
        packed_make(&v, t, &plain, NULL);
        void *abuf = act_make(&a, t, x, K, M, K, G, perm, of.a8), *bbuf = act_make(&b, t, sorted, K, M, K, G, NULL, of.a8);
        gemm_of(t, &q, of.a8)(&w, &a, y, N, 0, 1);
        gemm_of(t, &q, of.a8)(&v, &b, z, N, 0, 1);
        same("act-order", t->name, y, z, sizeof y);
        gemm_f32_of(t, &q)(&w, x, K, M, y, N, 0, 1);
        gemm_f32_of(t, &q)(&v, sorted, K, M, z, N, 0, 1);
        same("act-order, f32", t->name, y, z, sizeof y);
        guard_free(abuf, nb_act_bytes(M, K, G), t->name);
        guard_free(bbuf, nb_act_bytes(M, K, G), t->name);
        packed_free(&w, t->name);
        packed_free(&v, t->name);
    }
    nb_qlin_clear(&q);
    nb_qlin_clear(&plain);
}

/* Every array exactly as long as promised, each its own allocation: the address sanitizer sees any access outside. */
static void touches_only_its_arguments(void **state)
{
    const form of = *(const form *)*state;
    static const struct {
        size_t m, k, g;
    } rows[] = { { 1, 256, 128 }, { 2, 200, 64 }, { 3, 256, 128 }, { 5, 72, 72 }, { 7, 96, 32 }, { 63, 64, 64 } };

    for (size_t ti = 0; ti < nb_kern_count(); ti++)
        for (size_t i = 0; i < NB_LEN(rows); i++) {
            const nb_kern *t = nb_kern_at(ti);
            const size_t m = rows[i].m;
            product p;
            nb_act a = { .m = m, .k = rows[i].k, .g = rows[i].g };

            if (!runs(t))
                continue;
            product_make(&p, of, 64, rows[i].k, rows[i].g, m, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, false);
            a.n_groups = p.w.n_groups;
            a.hi = nb_alloc(a.n_groups * m * a.g);
            a.lo = of.a8 ? NULL : nb_alloc(a.n_groups * m * a.g);
            a.step = nb_alloc(a.n_groups * m * sizeof *a.step);
            a.sum = nb_alloc(a.n_groups * m * sizeof *a.sum);
            float *y = nb_alloc(m * 64 * sizeof *y), *want = run(nb_kern_find("scalar"), &p, m, "scalar");
            assert_true(a.hi && (a.lo || of.a8) && a.step && a.sum && y);
            (of.a8 ? t->act_a8 : t->act_a16)(&a, p.x, a.k, 0, m, NULL);
            gemm_of(t, &p.hub, p.a8)(&p.w, &a, y, 64, 0, 1);
            for (size_t r = 0; r < m; r++)
                same("exact arrays", t->name, y + r * 64, want + r * 69, 64 * sizeof *y);
            gemm_f32_of(t, &p.hub)(&p.w, p.x, a.k, m, y, 64, 0, 1);
            run_free(want, &p, m, "scalar");
            nb_free(a.hi);
            nb_free(a.lo);
            nb_free(a.step);
            nb_free(a.sum);
            nb_free(y);
            product_free(&p);
        }
}

static void f32_tables_agree(void **state)
{
    const form of = *(const form *)*state;
    static const struct {
        size_t n, k, g, m;
        bool wide;
    } rows[] = { { 65, 256, 128, 1, false }, { 64, 576, 576, 6, true }, { 100, 100, 100, 5, false }, { 64, 40, 8, 9, false } };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        product p;

        product_make(&p, of, rows[i].n, rows[i].k, rows[i].g, rows[i].m, CODES_RANDOM, ZEROS_RANDOM, X_NORMAL, rows[i].wide);
        const size_t bytes = p.m * (p.w.n + 5) * sizeof(float);
        float *want = guarded(bytes);
        gemm_f32_of(nb_kern_find("scalar"), &p.hub)(&p.w, p.x, p.w.k, p.m, want, p.w.n + 5, 0, p.w.n_strips);
        for (size_t ti = 0; ti < nb_kern_count(); ti++) {
            const nb_kern *t = nb_kern_at(ti);
            if (!runs(t))
                continue;
            float *got = guarded(bytes);
            gemm_f32_of(t, &p.hub)(&p.w, p.x, p.w.k, p.m, got, p.w.n + 5, 0, p.w.n_strips);
            same("f32", t->name, got, want, bytes);
            guard_free(got, bytes, t->name);
        }
        guard_free(want, bytes, "scalar");
        product_free(&p);
    }
}

static void tables_are_complete(void **state)
{
    (void)state;
    assert_ptr_equal(nb_kern_pick(0), nb_kern_find("scalar"));
    assert_null(nb_kern_find("none"));
    for (size_t i = 0; i < nb_kern_count(); i++) {
        const nb_kern *t = nb_kern_at(i);

        assert_ptr_equal(nb_kern_find(t->name), t);
        assert_ptr_equal(nb_kern_pick(t->need), t); /* best first: nothing better needs less */
        assert_true(t->pack_q4 && t->act_a16 && t->gemm_q4 && t->gemm_q4_f32 && t->pack_q8 && t->gemm_q8 && t->gemm_q8_f32);
        assert_true(t->act_a8 && t->gemm_q4_a8 && t->gemm_q8_a8);
        assert_true(t->pack_dense && t->gemm_dense && t->row_dense);
        assert_true(t->kv_put && t->attn && t->attn_part && t->attn_merge && t->rmsnorm && t->layernorm && t->rope_half && t->rope_pair);
        assert_true(t->silu_mul && t->gelu_tanh_mul && t->gelu_erf_mul && t->add && t->axpy && t->softcap && t->read_probe);
    }
}

static void probe_reads_every_word(void **state)
{
    enum { WORDS = 1000 };
    uint64_t *p = nb_alloc_array(WORDS, sizeof *p), want = 0, s = 1;

    (void)state;
    for (size_t i = 0; i < WORDS; i++) {
        p[i] = (uint64_t)rnd(&s) << 33 | rnd(&s);
        want += p[i];
        for (size_t ti = 0; i % 50 == 3 && ti < nb_kern_count(); ti++)
            if (runs(nb_kern_at(ti)))
                assert_true(nb_kern_at(ti)->read_probe(p, 8 * (i + 1)) == want);
    }
    nb_free(p);
}

int main(void)
{
    static form four = { 4, false }, eight = { 8, false }, four_a8 = { 4, true }, eight_a8 = { 8, true };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_complete),
        cmocka_unit_test(probe_reads_every_word),
        { "BB-07 outputs beside the tiles", bb07_outputs, NULL, NULL, NULL },
#define ALL_FORMS(title, test)                                                                                                             \
    { title ", four bits", test, NULL, NULL, &four }, { title ", eight bits", test, NULL, NULL, &eight },                                  \
        { title ", four bits, A8", test, NULL, NULL, &four_a8 }, { title ", eight bits, A8", test, NULL, NULL, &eight_a8 }
        ALL_FORMS("tables agree over shapes", tables_agree_over_shapes),
        ALL_FORMS("tables agree over values", tables_agree_over_values),
        ALL_FORMS("NU-16 edge lengths", edge_lengths),
        ALL_FORMS("batch equals single tokens", batch_equals_single_tokens),
        ALL_FORMS("strips and threads", strips_and_threads),
        ALL_FORMS("scalar meets the formula", scalar_meets_the_formula),
        ALL_FORMS("not finite reaches its token", not_finite_reaches_its_token),
        ALL_FORMS("act order gathers inputs", act_order_gathers_inputs),
        ALL_FORMS("touches only its arguments", touches_only_its_arguments),
        { "f32 tables agree, four bits", f32_tables_agree, NULL, NULL, &four },
        { "f32 tables agree, eight bits", f32_tables_agree, NULL, NULL, &eight },
    };
    return cmocka_run_group_tests_name("kern q4 q8", tests, NULL, NULL);
}
