/* test_awq.c - statistics, scale search and clip search against the recorded steps of GPTQModel 7.7.0. */
#include "golden.h"

#include <math.h>

#include "solve/linalg.h"
#include "solve/solve_awq.h"

/* Direct loss of one linear over all tokens, and the same through the second moments. */
typedef struct lone {
    const nb_grid *grid;
    nb_pool *pool;
    const float *w, *x, *c;
    size_t n, k, t;
} lone;

static nb_status gram_eval(void *user, const float *s, double *loss, nb_err *err)
{
    const lone *l = user;

    return nb_awq_gram_loss(l->pool, l->grid, l->w, s, l->n, l->k, l->c, loss, err);
}

static float *moments(const float *x, size_t t, size_t k)
{
    nb_gram g = { 0 };
    float *c = nb_alloc(k * k * sizeof *c);

    assert_int_equal(nb_gram_init_half(&g, k, NULL), NB_OK);
    assert_int_equal(nb_gram_add(&g, NULL, x, k, t, NULL), NB_OK);
    memcpy(c, nb_gram_take(&g), k * k * sizeof *c);
    nb_gram_shelve(&g);
    assert_memory_equal(nb_gram_take(&g), c, k * k * sizeof *c);
    assert_ptr_equal(nb_gram_take(&g), g.sum); /* once is enough */
    nb_gram_clear(&g);
    return c;
}

static float *means(const double *sum, size_t k, double n)
{
    float *m = nb_alloc(k * sizeof *m);

    for (size_t i = 0; i < k; i++)
        m[i] = (float)(sum[i] / n);
    return m;
}

static float *x_mean(const float *x, size_t t, size_t k)
{
    double *sum = nb_calloc(k, sizeof *sum);
    float *m;

    nb_awq_xsum(NULL, x, k, t, k, sum);
    m = means(sum, k, (double)t);
    nb_free(sum);
    return m;
}

static float *w_mean(const nb_grid *grid, const float *const *w, const size_t *n, size_t count, size_t k)
{
    double *sum = nb_calloc(k, sizeof *sum), rows = 0;
    float *m;

    for (size_t i = 0; i < count; i++) {
        nb_awq_wsum(NULL, grid, w[i], n[i], k, sum);
        rows += (double)n[i];
    }
    m = means(sum, k, rows);
    nb_free(sum);
    return m;
}

static void check_losses(const char *tag, const double *got, int index, const nb_json *entry, double tol)
{
    const nb_json *losses = nb_json_get(entry, "losses");
    const int want = (int)nb_json_int(nb_json_get(entry, "best_index"), -1);

    for (int i = 0; i < NB_AWQ_RATIOS; i++) {
        const double ref = nb_json_num(nb_json_at(losses, (size_t)i), NAN), rel = fabs(got[i] / ref - 1.0);
        if (!(rel <= tol))
            fail_msg("%s: loss %d is %.8g, recorded %.8g (%.1e)", tag, i, got[i], ref, rel);
    }
    if (index != want) { /* allowed only where two losses are closer than the tolerance */
        const double a = nb_json_num(nb_json_at(losses, (size_t)want), 0), b = nb_json_num(nb_json_at(losses, (size_t)index), 0);
        if (!(fabs(a / b - 1.0) <= tol))
            fail_msg("%s: best ratio %d, recorded %d", tag, index, want);
    }
}

/* Indices may differ only where the two least errors are within 0.1 %. */
static void check_clip(const char *tag, const uint8_t *index, const float *errors, size_t cells, const unsigned char *want)
{
    for (size_t i = 0; i < cells; i++) {
        double a = INFINITY, b = INFINITY;
        if (index[i] == want[i])
            continue;
        for (int j = 0; j < NB_AWQ_CLIPS; j++) {
            const double e = (double)errors[(size_t)j * cells + i];
            if (e < a) {
                b = a;
                a = e;
            } else if (e < b) {
                b = e;
            }
        }
        if (!(b - a < 1e-3 * a))
            fail_msg("%s: bound %zu is candidate %d, recorded %d, errors %g and %g", tag, i, index[i], want[i], a, b);
    }
}

/* Clamp by the recorded indices, then the final codes: identical. */
static void check_codes(const char *tag, const nb_grid *grid, const float *scaled, size_t n, size_t k, const unsigned char *index,
                        const unsigned char *codes, const char *crc)
{
    float *w = nb_alloc(n * k * sizeof *w);
    nb_qlin q = { 0 };
    char hex[9];

    for (size_t r = 0; r < n; r++)
        for (size_t j = 0; j < k / grid->g; j++) {
            const float *v = scaled + r * k + j * grid->g;
            float top = 0, m;
            for (size_t i = 0; i < grid->g; i++)
                top = fabsf(v[i]) > top ? fabsf(v[i]) : top;
            m = index ? top * (float)(1.0 - index[r * (k / grid->g) + j] / 20.0) : top;
            for (size_t i = 0; i < grid->g; i++)
                w[r * k + j * grid->g + i] = fmaxf(fminf(v[i], m), -m);
        }
    assert_int_equal(nb_qlin_init(&q, n, k, grid->g, 4, NULL), NB_OK);
    q.scale_dtype = NB_DT_F32;
    assert_int_equal(nb_rtn_quantize(NULL, grid, w, &q, NULL), NB_OK);
    if (codes && memcmp(codes, q.codes, n * k) != 0)
        fail_msg("%s: codes differ", tag);
    if (crc && strcmp(crc, crc_hex(hex, q.codes, n * k)) != 0)
        fail_msg("%s: codes have CRC %s, recorded %s", tag, hex, crc);
    nb_qlin_clear(&q);
    nb_free(w);
}

static void synthetic(void **state)
{
    golden g = { 0 };
    const nb_json *cases;

    (void)state;
    if (!golden_open(&g, "synthetic"))
        skip();
    cases = nb_json_get(g.meta, "awq");
    for (size_t i = 0; i < nb_json_len(cases); i++) {
        const char *tag, *dot;
        const nb_json *entry = nb_json_member(cases, i, &tag);
        char base[96], name[160];
        size_t n, k, t;
        uint8_t index[128];
        float errors[1280], s[64], *w, *x, *xm, *wm, *ref, *c;
        nb_awq_best best;

        dot = strrchr(tag, '.');
        snprintf(base, sizeof base, "%.*s", (int)(dot - tag), tag);
        const nb_grid grid = { .g = 32, .bits = 4, .sym = strcmp(dot, ".sym") == 0 };
        snprintf(name, sizeof name, "awq.%s.W", base);
        w = golden_f32(&g, name, &n, &k);
        snprintf(name, sizeof name, "awq.%s.X", base);
        x = golden_f32(&g, name, &t, NULL);
        xm = x_mean(x, t, k);
        wm = w_mean(&grid, (const float *const[]){ w }, &n, 1, k);
        snprintf(name, sizeof name, "awq.%s.x_mean", base);
        ref = golden_f32(&g, name, NULL, NULL);
        assert_true(rel_diff(xm, ref, k) < 1e-5);
        nb_free(ref);
        snprintf(name, sizeof name, "awq.%s.w_mean", base);
        ref = golden_f32(&g, name, NULL, NULL);
        assert_true(rel_diff(wm, ref, k) < 1e-5);
        nb_free(ref);

        c = moments(x, t, k);
        lone l = { .grid = &grid, .w = w, .x = x, .c = c, .n = n, .k = k, .t = t };
        assert_int_equal(nb_awq_search(xm, wm, k, true, gram_eval, &l, &best, s, NULL), NB_OK);
        check_losses(tag, best.losses, best.index, entry, 2e-3);
        snprintf(name, sizeof name, "awq.%s.scales", tag);
        ref = golden_f32(&g, name, NULL, NULL);
        nb_awq_scales(xm, wm, k, nb_json_num(nb_json_get(entry, "best_ratio"), -1), true, s);
        if (!(rel_diff(s, ref, k) < 1e-5))
            fail_msg("%s: scales differ by %g", tag, rel_diff(s, ref, k));

        for (size_t r = 0; r < n * k; r++)
            w[r] *= ref[r % k];
        snprintf(name, sizeof name, "awq.%s.clip_index", tag);
        const unsigned char *gi = golden_bytes(&g, name);
        snprintf(name, sizeof name, "awq.%s.codes", tag);
        check_codes(tag, &grid, w, n, k, gi, golden_bytes(&g, name), NULL);
        assert_int_equal(nb_awq_clip(NULL, &grid, w, n, k, x, k, t, ref, NB_AWQ_CLIPS, index, errors, NULL), NB_OK);
        check_clip(tag, index, errors, n * k / 32, gi);
        nb_free(c);
        nb_free(ref);
        nb_free(wm);
        nb_free(xm);
        nb_free(x);
        nb_free(w);
    }
    golden_close(&g);
}

/* The gated unit of the recorded layer, for the loss of gate and up. */
typedef struct mlp {
    const nb_grid *grid;
    const float *gate, *up, *down, *x;
    float *ref; /* [t][256] */
    size_t t;
} mlp;

static void mlp_out(const mlp *m, const float *gate, const float *up, float *out)
{
    float *a = nb_alloc(m->t * 768 * sizeof *a), *b = nb_alloc(m->t * 768 * sizeof *b);

    nb_gemm_nt(m->t, 768, 256, m->x, 256, gate, 256, a, 768);
    nb_gemm_nt(m->t, 768, 256, m->x, 256, up, 256, b, 768);
    for (size_t i = 0; i < m->t * 768; i++)
        a[i] = a[i] / (1.0f + expf(-a[i])) * b[i];
    nb_gemm_nt(m->t, 256, 768, a, 768, m->down, 768, out, 256);
    nb_free(b);
    nb_free(a);
}

static nb_status mlp_eval(void *user, const float *s, double *loss, nb_err *err)
{
    const mlp *m = user;
    float *gate = nb_alloc(768 * 256 * sizeof *gate), *up = nb_alloc(768 * 256 * sizeof *up), *out = nb_alloc(m->t * 256 * sizeof *out);

    (void)err;
    nb_rtn_pseudo(NULL, m->grid, m->gate, s, 768, 256, gate);
    nb_rtn_pseudo(NULL, m->grid, m->up, s, 768, 256, up);
    mlp_out(m, gate, up, out);
    for (size_t i = 0; i < m->t * 256; i++)
        out[i] -= m->ref[i];
    *loss = nb_dot64(out, out, m->t * 256) / (double)(m->t * 256);
    nb_free(out);
    nb_free(up);
    nb_free(gate);
    return NB_OK;
}

/* One group of the recorded layer under one setting: search, scales, and of each linear clip bounds and codes. */
static void layer_group(const golden *g, const char *tag, const nb_json *cfg, const nb_json *linears, const nb_json *group)
{
    const nb_grid grid = { .g = (size_t)nb_json_int(nb_json_get(cfg, "group_size"), 0),
                           .bits = 4,
                           .sym = nb_json_bool(nb_json_get(cfg, "sym"), false) };
    const bool duo = nb_json_bool(nb_json_get(cfg, "duo_scaling"), true);
    const nb_json *names = nb_json_get(group, "linears");
    const char *first = nb_json_str(nb_json_at(names, 0), "");
    const double hint = nb_json_num(nb_json_get(group, "prev_scale_hint"), 1.0);
    const size_t count = nb_json_len(names);
    float *w[3], *x, *xm, *wm, *s, *ref;
    size_t n[3], k = 0, t;
    char name[160];
    nb_awq_best best;

    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "W.%s", nb_json_str(nb_json_at(names, i), ""));
        w[i] = golden_f32(g, name, &n[i], &k);
    }
    snprintf(name, sizeof name, "X.%s", first);
    x = golden_f32(g, name, &t, NULL);
    s = nb_alloc(k * sizeof *s);
    xm = x_mean(x, t, k);
    wm = w_mean(&grid, (const float *const *)w, n, count, k);
    if (grid.g == 128) {
        snprintf(name, sizeof name, "w_mean.%s", first);
        ref = golden_f32(g, name, NULL, NULL);
        assert_true(rel_diff(wm, ref, k) < 1e-5);
        nb_free(ref);
    }
    for (size_t i = 0; i < k; i++)
        wm[i] = (float)((double)wm[i] * hint);

    if (strcmp(first, "mlp.down_proj") == 0) {
        float *c = moments(x, t, k);
        lone l = { .grid = &grid, .w = w[0], .x = x, .c = c, .n = n[0], .k = k, .t = t };
        assert_int_equal(nb_awq_search(xm, wm, k, duo, gram_eval, &l, &best, s, NULL), NB_OK);
        check_losses(tag, best.losses, best.index, group, 2e-3);
        nb_free(c);
    } else if (strcmp(first, "mlp.gate_proj") == 0 && grid.g == 128) { /* twice the same arithmetic in smaller groups */
        float *down = golden_f32(g, "W.mlp.down_proj", NULL, NULL);
        mlp m = { .grid = &grid, .gate = w[0], .up = w[1], .down = down, .x = x, .t = t, .ref = nb_alloc(t * 256 * sizeof *m.ref) };
        mlp_out(&m, w[0], w[1], m.ref);
        assert_int_equal(nb_awq_search(xm, wm, k, duo, mlp_eval, &m, &best, s, NULL), NB_OK);
        check_losses(tag, best.losses, best.index, group, 2e-3);
        nb_free(m.ref);
        nb_free(down);
    }
    snprintf(name, sizeof name, "%s.scales.%s", tag, first);
    ref = golden_f32(g, name, NULL, NULL);
    nb_awq_scales(xm, wm, k, nb_json_num(nb_json_get(group, "best_ratio"), -1), duo, s);
    if (!(rel_diff(s, ref, k) < 1e-5))
        fail_msg("%s %s: scales differ by %g", tag, first, rel_diff(s, ref, k));

    for (size_t i = 0; i < count; i++) {
        const char *lin = nb_json_str(nb_json_at(names, i), "");
        const size_t cells = n[i] * k / grid.g;
        const unsigned char *gi = NULL;

        for (size_t j = 0; j < n[i] * k; j++)
            w[i][j] *= ref[j % k];
        if (strcmp(lin, "mlp.up_proj") == 0) { /* its rows carry the fold of down_proj */
            snprintf(name, sizeof name, "%s.scales.mlp.down_proj", tag);
            float *d = golden_f32(g, name, NULL, NULL);
            for (size_t j = 0; j < n[i] * k; j++)
                w[i][j] /= d[j / k];
            nb_free(d);
        }
        snprintf(name, sizeof name, "%s.clip_index.%s", tag, lin);
        if (nb_store_find(g->store, name))
            gi = golden_bytes(g, name);
        check_codes(tag, &grid, w[i], n[i], k, gi, NULL, nb_json_str(nb_json_get(nb_json_get(linears, lin), "codes_crc32_u8"), "none"));
        if (gi) {
            uint8_t *index = nb_alloc(cells);
            float *errors = nb_alloc(NB_AWQ_CLIPS * cells * sizeof *errors);
            assert_int_equal(nb_awq_clip(NULL, &grid, w[i], n[i], k, x, k * (t / 512), (t + t / 512 - 1) / (t / 512), ref, NB_AWQ_CLIPS,
                                         index, errors, NULL),
                             NB_OK);
            check_clip(tag, index, errors, cells, gi);
            nb_free(errors);
            nb_free(index);
        }
        nb_free(w[i]);
    }
    nb_free(ref);
    nb_free(wm);
    nb_free(xm);
    nb_free(s);
    nb_free(x);
}

static void recorded_layer(void **state)
{
    golden g = { 0 };
    const nb_json *tags;

    (void)state;
    if (!golden_open(&g, "awq_layer"))
        skip();
    tags = nb_json_get(g.meta, "awq");
    assert_true(nb_json_len(tags) >= 6);
    for (size_t i = 0; i < nb_json_len(tags); i++) {
        const char *tag;
        const nb_json *e = nb_json_member(tags, i, &tag), *groups = nb_json_get(e, "groups");
        for (size_t j = 0; j < nb_json_len(groups); j++)
            layer_group(&g, tag, nb_json_get(e, "config"), nb_json_get(e, "linears"), nb_json_at(groups, j));
    }
    golden_close(&g);
}

/* The inputs of quantizers 11.1 and the values printed there. */
static void page_values(void **state)
{
    static const double losses[NB_AWQ_RATIOS] = { 1.356088e-1, 1.319730e-1, 1.109968e-1, 9.335922e-2, 7.786361e-2, 6.947783e-2, 5.987194e-2,
                                                  5.474196e-2, 4.945416e-2, 4.649644e-2, 4.513712e-2, 4.372351e-2, 4.720185e-2, 4.879708e-2,
                                                  5.179994e-2, 5.764518e-2, 6.546483e-2, 7.625370e-2, 8.495324e-2, 1.011096e-1 };
    static const float first[8] = { 0.607441f, 0.600760f, 0.615075f, 1.899518f, 0.607267f, 0.616087f, 0.601387f, 0.593329f };
    static const uint8_t rows03[8] = { 0, 1, 1, 1, 0, 0, 0, 0 };
    const nb_grid grid = { .g = 32, .bits = 4, .sym = false };
    enum { N = 64, K = 64, T = 48 };
    static float w[N * K], x[T * K];
    float s[K], *xm, *wm, *c;
    uint8_t index[N * 2];
    size_t n = N, hist[NB_AWQ_CLIPS] = { 0 };
    nb_awq_best best;

    (void)state;
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < K; k++)
            w[i * K + k] = ((float)((53 * i + 29 * k + 11 * i * k) % 251) - 113.0f) / 256.0f + (float)((i * k) % 7) / 4096.0f;
    for (size_t t = 0; t < T; t++)
        for (size_t k = 0; k < K; k++)
            x[t * K + k] = ((float)((37 * t + 101 * k + 7 * t * k) % 257) - 128.0f) / 128.0f * (k % 16 == 3 ? 8.0f : 1.0f);
    xm = x_mean(x, T, K);
    wm = w_mean(&grid, (const float *const[]){ w }, &n, 1, K);
    c = moments(x, T, K);
    lone l = { .grid = &grid, .w = w, .x = x, .c = c, .n = N, .k = K, .t = T };
    assert_int_equal(nb_awq_search(xm, wm, K, true, gram_eval, &l, &best, s, NULL), NB_OK);
    assert_int_equal(best.index, 11);
    for (int i = 0; i < NB_AWQ_RATIOS; i++)
        if (!(fabs(best.losses[i] / losses[i] - 1.0) <= 1e-5))
            fail_msg("loss %d is %.8g, the page says %.7g", i, best.losses[i], losses[i]);
    for (int i = 0; i < 8; i++)
        assert_true(fabsf(s[i] - first[i]) < 1e-6f * 2);
    for (size_t i = 0; i < N * K; i++)
        w[i] *= s[i % K];
    assert_int_equal(nb_awq_clip(NULL, &grid, w, N, K, x, K, T, s, NB_AWQ_CLIPS, index, NULL, NULL), NB_OK);
    for (size_t i = 0; i < N * 2; i++)
        hist[index[i]]++;
    assert_int_equal(hist[0], 94);
    assert_int_equal(hist[1], 32);
    assert_int_equal(hist[2], 2);
    assert_memory_equal(index, rows03, sizeof rows03);
    nb_free(c);
    nb_free(wm);
    nb_free(xm);
}

/* Scales of one change nothing: pseudo-quantization with s = 1 is rounding to nearest, bit for bit. */
static void ones_are_rtn(void **state)
{
    const nb_grid grid = { .g = 32, .bits = 4, .sym = false };
    float w[8 * 64], a[8 * 64], b[8 * 64], s[64];

    (void)state;
    for (size_t i = 0; i < NB_LEN(w); i++)
        w[i] = (float)((i * 37) % 101) / 50.0f - 1.0f;
    for (size_t i = 0; i < NB_LEN(s); i++)
        s[i] = 1.0f;
    nb_rtn_pseudo(NULL, &grid, w, s, 8, 64, a);
    nb_rtn_pseudo(NULL, &grid, w, NULL, 8, 64, b);
    assert_memory_equal(a, b, sizeof a);
}

static nb_status nan_eval(void *user, const float *s, double *loss, nb_err *err)
{
    (void)user, (void)s, (void)err;
    *loss = NAN;
    return NB_OK;
}

static void no_finite_loss(void **state)
{
    const float xm[4] = { 1, 2, 3, INFINITY }, wm[4] = { 0.5f, 0.25f, 0.125f, 0.5f };
    float s[4];
    nb_awq_best best;

    (void)state;
    assert_int_equal(nb_awq_search(xm, wm, 4, true, nan_eval, NULL, &best, s, NULL), NB_OK);
    assert_int_equal(best.index, -1);
    for (int i = 0; i < 4; i++)
        assert_true(s[i] == 1.0f);
}

/* Same bits with one thread and with three; second moments against plain float64 sums; few tokens take the direct form. */
static void threads_and_forms(void **state)
{
    enum { N = 70, K = 448, T = 600 };
    const nb_grid grid = { .g = 64, .bits = 4, .sym = false };
    static float w[N * K], a[N * K], b[N * K], x[T * K];
    float s[K], *c, *c3;
    double l1, l3, direct = 0;
    uint8_t i1[N * K / 64], i3[N * K / 64];
    static float e1[10 * N * K / 64], e3[10 * N * K / 64];
    nb_pool *pool;
    nb_gram g = { 0 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(w); i++)
        w[i] = (float)((i * 7919) % 1009) / 504.0f - 1.0f;
    for (size_t i = 0; i < NB_LEN(x); i++)
        x[i] = (float)((i * 104729) % 2003) / 1001.0f - 1.0f;
    for (size_t i = 0; i < K; i++)
        s[i] = 0.5f + (float)(i % 7) * 0.25f;
    assert_int_equal(nb_pool_open(&pool, 3, NULL), NB_OK);
    c = moments(x, T, K);
    c3 = nb_alloc(K * K * sizeof *c3);
    assert_int_equal(nb_gram_init(&g, K, NULL), NB_OK);
    assert_int_equal(nb_gram_add(&g, pool, x, K, T, NULL), NB_OK);
    nb_gram_finish(&g);
    for (size_t i = 0; i < K * K; i++)
        c3[i] = (float)g.sum[i];
    nb_gram_clear(&g);
    assert_memory_equal(c, c3, K * K * sizeof *c);
    for (size_t i = 0; i < K; i += 17)
        for (size_t j = 0; j < K; j += 13) {
            double sum = 0;
            for (size_t t = 0; t < T; t++)
                sum += (double)x[t * K + i] * (double)x[t * K + j];
            assert_true(fabs(sum / T - (double)c[i * K + j]) < 1e-5);
        }
    assert_int_equal(nb_awq_gram_loss(NULL, &grid, w, s, N, K, c, &l1, NULL), NB_OK);
    assert_int_equal(nb_awq_gram_loss(pool, &grid, w, s, N, K, c, &l3, NULL), NB_OK);
    assert_memory_equal(&l1, &l3, sizeof l1);
    nb_rtn_pseudo(pool, &grid, w, s, N, K, a);
    for (size_t t = 0; t < T; t++)
        for (size_t r = 0; r < N; r++) {
            double d = 0;
            for (size_t k = 0; k < K; k++)
                d += (double)x[t * K + k] * ((double)a[r * K + k] - (double)w[r * K + k]);
            direct += d * d;
        }
    assert_true(fabs(l1 / (direct / (T * N)) - 1.0) < 1e-5);

    memcpy(a, w, sizeof a);
    memcpy(b, w, sizeof b);
    assert_int_equal(nb_awq_clip(NULL, &grid, a, N, K, x, K, T, s, NB_AWQ_CLIPS, i1, e1, NULL), NB_OK);
    assert_int_equal(nb_awq_clip(pool, &grid, b, N, K, x, K, T, s, NB_AWQ_CLIPS, i3, e3, NULL), NB_OK);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(i1, i3, sizeof i1);
    assert_memory_equal(e1, e3, sizeof e1);
    /* 32 tokens twice over: the direct form must agree with the second moments of the same rows */
    memcpy(x + 32 * K, x, 32 * K * sizeof *x);
    memcpy(a, w, sizeof a);
    memcpy(b, w, sizeof b);
    assert_int_equal(nb_awq_clip(NULL, &grid, a, N, K, x, K, 32, s, NB_AWQ_CLIPS, i1, e1, NULL), NB_OK);
    assert_int_equal(nb_awq_clip(NULL, &grid, b, N, K, x, K, 64, s, NB_AWQ_CLIPS, i3, e3, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(e1); i++)
        assert_true(fabsf(e1[i] - e3[i]) <= 1e-4f * e3[i]);
    /* and the moments of all inputs, of which a group takes its own square, with the samples they are made of */
    nb_gemm_tn(K, K, 64, x, K, x, K, c, K);
    for (size_t i = 0; i < K * K; i++)
        c[i] /= 64;
    memcpy(b, w, sizeof b);
    assert_int_equal(nb_awq_clip_moments(pool, &grid, b, N, K, c, s, NB_AWQ_CLIPS, i1, e1, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(e1); i++)
        assert_true(fabsf(e1[i] - e3[i]) <= 1e-4f * e3[i]);
    nb_pool_close(pool);
    nb_free(c3);
    nb_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_values),       cmocka_unit_test(ones_are_rtn), cmocka_unit_test(no_finite_loss),
        cmocka_unit_test(threads_and_forms), cmocka_unit_test(synthetic),    cmocka_unit_test(recorded_layer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
