/* test_gptq.c - GPTQ against recorded layers of GPTQModel and the values of quantizers 11.2; what its own rules add: grids that
 * see all corrections, scales as stored, same bytes for any number of threads, inputs from which nothing can be learned. */
#include "golden.h"

#include <math.h>

#include "base/bits.h"
#include "base/rng.h"
#include "solve/chol.h"
#include "solve/linalg.h"
#include "solve/solve_gptq.h"

/* ---- matrices ---- */

/* Factor and flipped inverse of random symmetric matrices, sizes around the tile: L Lᵀ = A and Uᵀ U A = 1 for A with rows
 * and columns reversed. */
static void factors(void **state)
{
    static const size_t sizes[] = { 1, 2, 63, 64, 65, 130 };

    (void)state;
    for (size_t s = 0; s < NB_LEN(sizes); s++) {
        const size_t k = sizes[s];
        double *x = nb_alloc_array(k * k, sizeof *x), *a = nb_alloc_array(k * k, sizeof *a), *l = nb_alloc_array(k * k, sizeof *l);
        float *u = nb_alloc_array(k * k, sizeof *u);

        for (size_t i = 0; i < k * k; i++)
            x[i] = nb_rng_normal(1, s, i);
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < k; j++) {
                a[i * k + j] = i == j ? 0.5 * (double)k : 0;
                for (size_t m = 0; m < k; m++)
                    a[i * k + j] += x[i * k + m] * x[j * k + m];
            }
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < k; j++)
                l[i * k + j] = j > i ? 777.0 : a[i * k + j]; /* what is above must not be touched */
        assert_true(nb_cholesky(NULL, l, k));
        assert_int_equal(nb_chol_inverse_flipped(NULL, l, k, u, NULL), NB_OK);
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < k; j++) {
                double p = 0, one = 0;
                for (size_t m = 0; m <= (i < j ? i : j); m++)
                    p += l[i * k + m] * l[j * k + m];
                if (j > i)
                    assert_true(l[i * k + j] == 777.0);
                assert_true(fabs(p - a[i * k + j]) < 1e-10 * (double)k * (double)k);
                for (size_t m = 0; m < k; m++) { /* (Uᵀ U)[i][m] A'[m][j] with A' reversed */
                    double inv = 0;
                    for (size_t n = 0; n <= (i < m ? i : m); n++)
                        inv += (double)u[n * k + i] * (double)u[n * k + m];
                    one += inv * a[(k - 1 - m) * k + (k - 1 - j)];
                }
                assert_true(fabs(one - (i == j)) < 1e-4);
                if (j < i)
                    assert_true(u[i * k + j] == 0.0f);
            }
        l[(k - 1) * k + k - 1] = -1.0;
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < i; j++)
                l[i * k + j] = 0;
        assert_false(nb_cholesky(NULL, l, k));
        nb_free(u);
        nb_free(l);
        nb_free(a);
        nb_free(x);
    }
}

/* ---- one call ---- */

typedef struct solved {
    nb_gptq_factor f;
    nb_qlin q;
    nb_gptq_result res;
    double *column_loss;
} solved;

static void solve(solved *v, const nb_gptq_opts *o, const float *w, const float *h, size_t n, size_t k, nb_dtype scales, nb_pool *pool)
{
    double *d = nb_alloc_array(k * k, sizeof *d);
    nb_err err = { 0 };

    memset(v, 0, sizeof *v);
    for (size_t i = 0; i < k * k; i++)
        d[i] = (double)h[i];
    v->column_loss = v->res.column_loss = nb_alloc_array(k, sizeof *v->column_loss);
    assert_int_equal(nb_gptq_factor_make(&v->f, o, d, k, pool, &err), NB_OK);
    assert_int_equal(nb_qlin_init(&v->q, n, k, o->g, o->bits, &err), NB_OK);
    v->q.scale_dtype = scales;
    if (nb_gptq_solve(&v->f, o, w, &v->q, &v->res, pool, &err) != NB_OK)
        fail_msg("%s", err.what);
    nb_free(d);
}

static void unsolve(solved *v)
{
    nb_gptq_factor_clear(&v->f);
    nb_qlin_clear(&v->q);
    nb_free(v->column_loss);
}

/* ---- recorded ---- */

static nb_gptq_opts recorded_opts(const nb_json *c, size_t k)
{
    const int64_t g = nb_json_int(nb_json_get(c, "group_size"), 0);

    return (nb_gptq_opts){ .g = g < 0 ? k : (size_t)g,
                           .bits = (unsigned)nb_json_int(nb_json_get(c, "bits"), 0),
                           .sym = nb_json_bool(nb_json_get(c, "sym"), false),
                           .order = nb_json_bool(nb_json_get(c, "desc_act"), false)          ? NB_GPTQ_DESC
                                    : nb_json_bool(nb_json_get(c, "act_group_aware"), false) ? NB_GPTQ_GAR
                                                                                             : NB_GPTQ_NATURAL,
                           .static_groups = nb_json_bool(nb_json_get(c, "static_groups"), false),
                           .damp = nb_json_num(nb_json_get(c, "damp_percent"), 0),
                           .mse = nb_json_num(nb_json_get(c, "mse"), 0),
                           .compat = true };
}

/* Same diagonal values in the same places: among equal ones the recorded order is arbitrary. */
static void check_order(const char *tag, const golden *g, const char *pre, const solved *v, const float *h, size_t k)
{
    char name[200];
    const unsigned char *p;

    snprintf(name, sizeof name, "%s.order", pre);
    if (!nb_store_find(g->store, name))
        return;
    p = golden_bytes(g, name);
    for (size_t i = 0; i < k; i++) {
        int32_t at;
        memcpy(&at, p + 4 * i, 4);
        if (h[(size_t)at * k + (size_t)at] != h[v->f.order[i] * k + v->f.order[i]])
            fail_msg("%s: step %zu takes input %u, recorded %d", tag, i, (unsigned)v->f.order[i], (int)at);
    }
}

static void check_numbers(const char *tag, const golden *g, const char *pre, const nb_json *e, const solved *v, double tol)
{
    const size_t k = v->q.k;
    const double sum = nb_json_num(nb_json_get(e, "loss_sum"), 0), damp = nb_json_num(nb_json_get(e, "damp_used"), 0);
    char name[200];
    float *u, *loss;
    double worst = 0;

    if (fabs(v->f.damp - damp) > 1e-9)
        fail_msg("%s: damp %g, recorded %g", tag, v->f.damp, damp);
    if (!(fabs(v->res.loss - sum) <= 2e-3 * tol * (sum > 1e-12 ? sum : 1e-12)))
        fail_msg("%s: loss %.8g, recorded %.8g", tag, v->res.loss, sum);
    snprintf(name, sizeof name, "%s.hinv_diag", pre);
    u = golden_f32(g, name, NULL, NULL);
    snprintf(name, sizeof name, "%s.column_loss", pre);
    loss = golden_f32(g, name, NULL, NULL);
    for (size_t i = 0; i < k; i++) {
        if (!(fabs((double)v->f.u[i * k + i] / (double)u[i] - 1) <= 1e-4))
            fail_msg("%s: U[%zu] is %.8g, recorded %.8g", tag, i, (double)v->f.u[i * k + i], (double)u[i]);
        worst = fmax(worst, fabs(v->column_loss[i] - (double)loss[i]));
    }
    if (!(worst <= 0.02 * sum))
        fail_msg("%s: a column's loss is off by %g, of %g in all", tag, worst, sum);
    nb_free(loss);
    nb_free(u);
}

/* Among equal diagonals the recorded order is arbitrary. Inputs are renamed so that a stable sort gives it: input i of the new
 * matrices is input order[i]. Caller frees the new w and h. */
static void rename_ties(const golden *g, const char *pre, const float **w, const float **h, size_t n, size_t k, int32_t *order)
{
    float *w2 = nb_alloc_array(n * k, sizeof *w2), *h2 = nb_alloc_array(k * k, sizeof *h2);
    char name[200];

    snprintf(name, sizeof name, "%s.order", pre);
    memcpy(order, golden_bytes(g, name), k * sizeof *order);
    for (size_t i = 0; i < k; i++) {
        for (size_t r = 0; r < n; r++)
            w2[r * k + i] = (*w)[r * k + (size_t)order[i]];
        for (size_t j = 0; j < k; j++)
            h2[i * k + j] = (*h)[(size_t)order[i] * k + (size_t)order[j]];
    }
    *w = w2;
    *h = h2;
}

static void check_case(const char *tag, const golden *g, const char *pre, const nb_json *e, const float *w, const float *h, size_t n,
                       size_t k)
{
    const nb_gptq_opts o = recorded_opts(nb_json_get(e, "config"), k);
    const bool rank = strstr(tag, "rank_deficient"), fell = nb_json_get(e, "loss_sum") == NULL;
    const double tol = rank ? 5 : o.sym ? 3 : 1;
    const bool ties = (strstr(tag, "duplicate") || strstr(tag, "all_dead")) && o.order == NB_GPTQ_DESC && !o.static_groups;
    int32_t *order = ties ? nb_alloc_array(k, sizeof *order) : NULL;
    const float *ow = w;
    size_t codes = 0, zeros = 0, groups, g_idx = 0;
    const unsigned char *p;
    char name[200];
    float *scale;
    solved v;

    solve(&v, &o, w, h, n, k, NB_DT_F32, NULL);
    check_order(tag, g, pre, &v, h, k);
    if (ties) {
        rename_ties(g, pre, &w, &h, n, k, order);
        unsolve(&v);
        solve(&v, &o, w, h, n, k, NB_DT_F32, NULL);
    }
    groups = v.q.n_groups;
    assert_int_equal(v.res.fallback, fell);
    if (!fell)
        check_numbers(tag, g, pre, e, &v, tol);
    else
        assert_true(v.f.damp == 1.0);
    snprintf(name, sizeof name, "%s.codes", pre);
    p = golden_bytes(g, name);
    for (size_t i = 0; i < n * k; i++)
        codes += p[ties ? i / k * k + (size_t)order[i % k] : i] != v.q.codes[i];
    snprintf(name, sizeof name, "%s.zero", pre);
    p = golden_bytes(g, name);
    for (size_t i = 0; i < n * groups; i++)
        zeros += p[i] != v.q.zeros[i];
    snprintf(name, sizeof name, "%s.scale", pre);
    scale = golden_f32(g, name, NULL, NULL);
    snprintf(name, sizeof name, "%s.g_idx", pre);
    p = golden_bytes(g, name);
    for (size_t i = 0; i < k; i++) {
        int32_t at;
        memcpy(&at, p + 4 * (ties ? (size_t)order[i] : i), 4);
        g_idx += (uint32_t)at != (v.q.g_idx ? v.q.g_idx[i] : (uint32_t)(i / o.g));
    }
    print_message("%-40s codes %zu of %zu, zeros %zu, scale %.1e, loss %.1e\n", tag, codes, n * k, zeros,
                  rel_diff(v.q.scales, scale, n * groups), v.res.loss / nb_json_num(nb_json_get(e, "loss_sum"), NAN) - 1);
    if ((double)codes > (fell ? 0.0 : 0.003 * tol * (double)(n * k)) || g_idx > 0)
        fail_msg("%s: %zu of %zu codes and %zu group indices differ", tag, codes, n * k, g_idx);
    nb_free(scale);
    unsolve(&v);
    if (w != ow) {
        nb_free((void *)w);
        nb_free((void *)h);
    }
    nb_free(order);
}

static void recorded_layer(void **state)
{
    golden g = { 0 }, a = { 0 };
    const nb_json *cases;

    (void)state;
    if (!golden_open(&g, "gptq_layer"))
        skip();
    if (!golden_open(&a, "awq_layer")) {
        golden_close(&g);
        skip();
    }
    cases = nb_json_get(g.meta, "cases");
    assert_true(nb_json_len(cases) >= 20);
    for (size_t i = 0; i < nb_json_len(cases); i++) {
        const char *tag;
        const nb_json *e = nb_json_member(cases, i, &tag);
        const int len = (int)(strchr(strchr(tag, '.') + 1, '.') - tag);
        char name[200];
        size_t n, k;
        float *w, *h;

        snprintf(name, sizeof name, "W.%.*s", len, tag);
        w = golden_f32(&a, name, &n, &k);
        snprintf(name, sizeof name, "H.%.*s", len, tag);
        h = golden_f32(&g, name, NULL, NULL);
        check_case(tag, &g, tag, e, w, h, n, k);
        nb_free(h);
        nb_free(w);
    }
    golden_close(&a);
    golden_close(&g);
}

/* The second moments themselves: 2 XᵀX / tokens. */
static void recorded_moments(void **state)
{
    static const char *const rows[][2] = { { "self_attn.q_proj", "self_attn.k_proj" }, { "mlp.down_proj", "mlp.down_proj" } };
    golden g = { 0 }, a = { 0 };

    (void)state;
    if (!golden_open(&g, "gptq_layer"))
        skip();
    if (!golden_open(&a, "awq_layer")) {
        golden_close(&g);
        skip();
    }
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char name[64];
        size_t tokens, k;
        float *x, *h;
        double top = 0, worst = 0;
        nb_gram gram;

        snprintf(name, sizeof name, "X.%s", rows[i][0]);
        x = golden_f32(&a, name, &tokens, &k);
        snprintf(name, sizeof name, "H.%s", rows[i][1]);
        h = golden_f32(&g, name, NULL, NULL);
        assert_int_equal(nb_gram_init(&gram, k, NULL), NB_OK);
        assert_int_equal(nb_gram_add(&gram, NULL, x, k, tokens, NULL), NB_OK);
        nb_gram_finish(&gram);
        for (size_t j = 0; j < k * k; j++) {
            top = fmax(top, fabs((double)h[j]));
            worst = fmax(worst, fabs(2 * gram.sum[j] - (double)h[j]));
            assert_true(gram.sum[j] == gram.sum[j % k * k + j / k]);
        }
        if (!(worst <= 1e-5 * top))
            fail_msg("%s: off by %g of %g", rows[i][0], worst, top);
        nb_gram_clear(&gram);
        nb_free(h);
        nb_free(x);
    }
    golden_close(&a);
    golden_close(&g);
}

static void recorded_synthetic(void **state)
{
    golden g = { 0 };
    const nb_json *cases;

    (void)state;
    if (!golden_open(&g, "synthetic"))
        skip();
    cases = nb_json_get(g.meta, "gptq");
    assert_true(nb_json_len(cases) >= 60);
    for (size_t i = 0; i < nb_json_len(cases); i++) {
        const char *tag;
        const nb_json *e = nb_json_member(cases, i, &tag);
        const int len = (int)(strchr(tag, '.') - tag);
        char name[200];
        size_t n, k;
        float *w, *h;

        snprintf(name, sizeof name, "gptq.%.*s.W", len, tag);
        w = golden_f32(&g, name, &n, &k);
        snprintf(name, sizeof name, "gptq.%.*s.H", len, tag);
        h = golden_f32(&g, name, NULL, NULL);
        snprintf(name, sizeof name, "gptq.%s", tag);
        check_case(tag, &g, name, e, w, h, n, k);
        nb_free(h);
        nb_free(w);
    }
    golden_close(&g);
}

/* ---- the page (11.2) ---- */

enum { PN = 32, PK = 64, PT = 96 };

static void page_inputs(float *w, float *h)
{
    static float x[PT * PK];
    nb_gram gram;

    for (size_t i = 0; i < PN; i++)
        for (size_t j = 0; j < PK; j++)
            w[i * PK + j] = (float)((double)((53 * i + 29 * j + 11 * i * j) % 251) - 113.0) / 256.0f + (float)((i * j) % 7) / 4096.0f;
    for (size_t t = 0; t < PT; t++)
        for (size_t k = 0; k < PK; k++)
            x[t * PK + k] = k == 40
                                ? 0.0f
                                : (float)((double)((37 * t + 101 * k + 7 * t * k) % 257) - 128.0) / 128.0f * (k % 16 == 3 ? 8.0f : 1.0f) +
                                      (float)((double)((11 * t * t + 13 * k) % 31) - 15.0) / 64.0f;
    assert_int_equal(nb_gram_init(&gram, PK, NULL), NB_OK);
    assert_int_equal(nb_gram_add(&gram, NULL, x, PK, PT, NULL), NB_OK);
    nb_gram_finish(&gram);
    for (size_t i = 0; i < PK * PK; i++)
        h[i] = (float)(2.0 * PT / 3.0 * gram.sum[i]); /* three sequences */
    nb_gram_clear(&gram);
}

static void page_values(void **state)
{
    static const struct {
        const char *label;
        nb_gptq_opts o;
        float s00;
        uint8_t z00, codes[8];
        double loss;
        const char *crc, *crc_g_idx;
    } rows[] = {
        { "sym", { .g = 32, .bits = 4, .sym = true }, 0.0671875f, 8, { 1, 3, 5, 7, 8, 10, 12, 13 }, 87.5872, "92d1aede", "860792e7" },
        { "asym", { .g = 32, .bits = 4 }, 0.0630208f, 7, { 0, 2, 4, 5, 7, 9, 11, 13 }, 19.2130, "8db398e0", "860792e7" },
        { "asym, one group", { .g = PK, .bits = 4 }, 0.0632812f, 7, { 0, 2, 4, 5, 7, 9, 11, 13 }, 22.9903, "6a400325", "0d968558" },
        { "sym, falling diagonal",
          { .g = 32, .bits = 4, .sym = true, .order = NB_GPTQ_DESC },
          0.0677083f,
          8,
          { 1, 3, 5, 7, 9, 10, 13, 14 },
          15.2669,
          "0554e27c",
          "58448869" },
        { "sym, falling diagonal, static",
          { .g = 32, .bits = 4, .sym = true, .order = NB_GPTQ_DESC, .static_groups = true },
          0.0671875f,
          8,
          { 2, 3, 6, 7, 9, 10, 13, 14 },
          64.0732,
          "0cdf5e0e",
          "860792e7" },
        { "asym, mse", { .g = 32, .bits = 4, .mse = 2.4 }, 0.0630208f, 7, { 0, 2, 4, 5, 7, 9, 11, 13 }, 18.7232, "7e331f29", "860792e7" },
        { "sym, 3 bits", { .g = 32, .bits = 3, .sym = true }, 0.1439732f, 4, { 1, 2, 3, 3, 4, 5, 6, 6 }, 195.8662, "726839fc", "860792e7" },
    };
    float w[PN * PK], h[PK * PK];

    (void)state;
    page_inputs(w, h);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_gptq_opts o = rows[i].o;
        uint8_t turned[PK * PN];
        char crc[9], crc_g[9];
        int32_t g_idx[PK];
        solved v;

        o.damp = 0.01;
        o.compat = true;
        solve(&v, &o, w, h, PN, PK, NB_DT_F32, NULL);
        for (size_t a = 0; a < PK; a++) {
            g_idx[a] = (int32_t)(v.q.g_idx ? v.q.g_idx[a] : a / o.g);
            for (size_t b = 0; b < PN; b++)
                turned[a * PN + b] = v.q.codes[b * PK + a];
        }
        crc_hex(crc, turned, sizeof turned);
        crc_hex(crc_g, g_idx, sizeof g_idx);
        if (!(fabs(v.res.loss / rows[i].loss - 1) < 1e-5) || !(fabsf(v.q.scales[0] - rows[i].s00) < 1e-7f) || v.q.zeros[0] != rows[i].z00 ||
            strcmp(crc, rows[i].crc) != 0 || strcmp(crc_g, rows[i].crc_g_idx) != 0)
            fail_msg("%s: loss %.6f, scale %.7f, zero %d, codes %s, g_idx %s", rows[i].label, v.res.loss, (double)v.q.scales[0],
                     v.q.zeros[0], crc, crc_g);
        assert_memory_equal(v.q.codes, rows[i].codes, 8);
        assert_int_equal(v.f.n_dead, 1);
        unsolve(&v);
    }
}

/* ---- rules of its own ---- */

/* Σ d H dᵀ over outputs, d = what q says minus w: the error that counts. */
static double error_of(const nb_qlin *q, const float *w, const float *h)
{
    const size_t n = q->n, k = q->k;
    float *v = nb_alloc_array(n * k, sizeof *v);
    double sum = 0;

    nb_qlin_dequant(q, v);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < k; j++)
                sum += ((double)v[r * k + i] - (double)w[r * k + i]) * (double)h[i * k + j] * ((double)v[r * k + j] - (double)w[r * k + j]);
    nb_free(v);
    return sum;
}

/* Correlated inputs: neighbours share most of what they carry. */
static void noise(float *w, size_t n, float *h, size_t k, size_t tokens)
{
    float *x = nb_alloc_array(tokens * k, sizeof *x);
    nb_gram g;

    for (size_t i = 0; i < n * k; i++)
        w[i] = 0.05f * (float)nb_rng_normal(11, 0, i);
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < k; i++)
            x[t * k + i] = (float)nb_rng_normal(12, t, i) * (i % 9 == 4 ? 5.0f : 1.0f) + (i ? 0.8f * x[t * k + i - 1] : 0.0f);
    assert_int_equal(nb_gram_init(&g, k, NULL), NB_OK);
    assert_int_equal(nb_gram_add(&g, NULL, x, k, tokens, NULL), NB_OK);
    nb_gram_finish(&g);
    for (size_t i = 0; i < k * k; i++)
        h[i] = (float)g.sum[i];
    nb_gram_clear(&g);
    nb_free(x);
}

/* Stored scales, every order, groups that do not divide: codes in range, scales of their type, better than rounding without
 * feedback, and the same bytes with three threads. */
static void forms(void **state)
{
    static const struct {
        const char *label;
        nb_gptq_opts o;
        nb_dtype scales;
    } rows[] = {
        { "groups of 32, float16", { .g = 32, .bits = 4 }, NB_DT_F16 },
        { "symmetric, bfloat16", { .g = 32, .bits = 4, .sym = true, .order = NB_GPTQ_GAR }, NB_DT_BF16 },
        { "short last group", { .g = 64, .bits = 4, .order = NB_GPTQ_GAR }, NB_DT_F16 },
        { "short last group, g_idx", { .g = 64, .bits = 4, .order = NB_GPTQ_DESC }, NB_DT_F16 },
        { "groups over 128", { .g = 150, .bits = 3 }, NB_DT_F16 },
        { "groups that end inside blocks", { .g = 48, .bits = 8, .sym = true }, NB_DT_F16 },
        { "per channel, static", { .g = 200, .bits = 4, .static_groups = true }, NB_DT_F16 },
        { "2 bits, searched", { .g = 40, .bits = 2, .mse = 2.0 }, NB_DT_F16 },
        { "2 bits, symmetric", { .g = 40, .bits = 2, .sym = true, .order = NB_GPTQ_DESC, .static_groups = true }, NB_DT_F16 },
    };
    enum { N = 70, K = 200 };
    float *w = nb_alloc_array(N * K, sizeof *w), *h = nb_alloc_array(K * K, sizeof *h);
    nb_pool *pool;

    (void)state;
    noise(w, N, h, K, 300);
    assert_int_equal(nb_pool_open(&pool, 3, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_gptq_opts o = rows[i].o;
        double with, without;
        solved a, b;

        o.damp = 0.05;
        solve(&a, &o, w, h, N, K, rows[i].scales, NULL);
        solve(&b, &o, w, h, N, K, rows[i].scales, pool);
        assert_int_equal(a.q.n_groups, (K + o.g - 1) / o.g);
        assert_int_equal(a.q.g_idx != NULL, o.order == NB_GPTQ_DESC && !o.static_groups);
        if (a.res.fallback || memcmp(a.q.codes, b.q.codes, N * K) != 0 || a.res.loss != b.res.loss ||
            memcmp(a.q.scales, b.q.scales, N * a.q.n_groups * sizeof(float)) != 0)
            fail_msg("%s: one thread and three differ", rows[i].label);
        for (size_t j = 0; j < N * K; j++)
            assert_true(a.q.codes[j] < 1u << o.bits);
        for (size_t j = 0; j < N * a.q.n_groups; j++) {
            const float s = a.q.scales[j];
            assert_true(s == (rows[i].scales == NB_DT_F16 ? nb_f16_to_f32(nb_f32_to_f16(s)) : nb_bf16_to_f32(nb_f32_to_bf16(s))));
        }
        with = error_of(&a.q, w, h);
        unsolve(&b);
        for (size_t j = 0; j < K * K; j++)
            h[j] = -h[j]; /* nothing makes this positive definite */
        solve(&b, &o, w, h, N, K, rows[i].scales, NULL);
        for (size_t j = 0; j < K * K; j++)
            h[j] = -h[j];
        assert_true(b.res.fallback && !b.q.g_idx);
        without = error_of(&b.q, w, h);
        print_message("%-32s error %.4f, without feedback %.4f\n", rows[i].label, with, without);
        assert_true(with < 0.8 * without);
        unsolve(&a);
        unsolve(&b);
    }
    nb_pool_close(pool);
    nb_free(h);
    nb_free(w);
}

/* Moments and weights from which nothing can be computed: plain rounding, or an error with a way out. */
static void bad_numbers(void **state)
{
    static const struct {
        const char *label;
        float h01, w0;
        nb_status want;
        bool fallback;
    } rows[] = {
        { "NaN in the moments", NAN, 0.5f, NB_OK, true },
        { "infinite moments", INFINITY, 0.5f, NB_OK, true },
        { "scale over float16", 0.5f, 3e6f, NB_ENUMERIC, false },
        { "one input tells all of another", 1.0f, 0.5f, NB_OK, false },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_gptq_opts o = { .g = 32, .bits = 4, .damp = 0.05 };
        double h[32 * 32] = { 0 };
        float w[32] = { rows[i].w0, -0.25f };
        nb_gptq_result res = { 0 };
        nb_gptq_factor f;
        nb_err err = { 0 };
        nb_qlin q = { 0 };

        for (int j = 0; j < 32; j++)
            h[j * 33] = 1;
        h[1] = h[32] = (double)rows[i].h01;
        assert_int_equal(nb_gptq_factor_make(&f, &o, h, 32, NULL, &err), NB_OK);
        assert_int_equal(nb_qlin_init(&q, 1, 32, 32, 4, &err), NB_OK);
        q.scale_dtype = NB_DT_F16;
        if (nb_gptq_solve(&f, &o, w, &q, &res, NULL, &err) != rows[i].want || (rows[i].want == NB_OK && res.fallback != rows[i].fallback))
            fail_msg("%s: %d %s, fallback %d", rows[i].label, err.code, err.what, res.fallback);
        nb_qlin_clear(&q);
        nb_gptq_factor_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors),        cmocka_unit_test(recorded_moments),
        cmocka_unit_test(recorded_layer), cmocka_unit_test(recorded_synthetic),
        cmocka_unit_test(page_values),    cmocka_unit_test(forms),
        cmocka_unit_test(bad_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
