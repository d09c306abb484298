/* test_attn.c - attention: every table against scalar bit by bit, however rows and tiles are split; scalar against the
 * formula in double. Slots that no query may see hold NaN. */
#include "kern_test.h"
#include "thin.h"

/* What one case is; token i of m sits at position pos + i. */
typedef struct shape {
    size_t d, r, m, pos, window;
    float softcap;
    bool sinks;
    nb_dtype t;
    bool same; /* keys are the values: plain rows only */
} shape;

/* A case with its data. */
typedef struct task {
    nb_attn a;
    size_t keys;
    float *q, *k, *v; /* k, v: exact values [keys][d]          */
    float *raw;       /* k as it was put                       */
    unsigned char *kp, *vp;
    uint32_t *pages;
    size_t n_pages;
    float sinks[80];
} task;

enum { FIRST_PAGE = 3 }; /* pages before it belong to others */

/* A token's components as a page of type t keeps them. */
static void round_row(float *x, size_t d, nb_dtype t)
{
    float max = 0;

    for (size_t i = 0; i < d; i++) {
        max = fmaxf(max, fabsf(x[i]));
        if (t == NB_DT_F16)
            x[i] = nb_f16_to_f32(nb_f32_to_f16(x[i]));
    }
    for (size_t i = 0; i < d && t == NB_DT_I8; i++)
        x[i] = max > 0 ? rintf(x[i] * (1.0f / (max / 127.0f))) * (max / 127.0f) : 0;
}

static task task_make(const shape *s, const nb_kern *kern)
{
    const size_t page_bytes = nb_kv_head_bytes(s->d, s->t), ldq = s->r * s->d + 7;
    uint64_t seed = s->d * 1000 + s->r * 100 + s->m;
    task t = { .keys = s->pos + s->m };

    t.n_pages = (t.keys + NB_PAGE - 1) / NB_PAGE;
    t.q = exactly(((s->m - 1) * ldq + s->r * s->d) * sizeof(float));
    random_fill(t.q, (s->m - 1) * ldq + s->r * s->d, seed);
    t.k = exactly(t.keys * s->d * sizeof(float));
    t.v = exactly(t.keys * s->d * sizeof(float));
    random_fill(t.k, t.keys * s->d, seed + 1);
    random_fill(t.v, t.keys * s->d, seed + 2);
    random_fill(t.sinks, 80, seed + 3);
    t.pages = exactly(t.n_pages * sizeof *t.pages);
    for (size_t i = 0; i < t.n_pages; i++) /* from last to first */
        t.pages[i] = (uint32_t)(FIRST_PAGE + t.n_pages - 1 - i);
    const size_t bytes = (FIRST_PAGE + t.n_pages) * page_bytes;
    t.kp = exactly(bytes);
    t.vp = exactly(bytes);
    memset(t.kp, 0xFF, bytes);
    memset(t.vp, 0xFF, bytes);
    for (size_t p = 0; p < t.keys; p++) {
        const size_t at = t.pages[p / NB_PAGE] * page_bytes;
        if (s->same)
            memcpy(t.k + p * s->d, t.v + p * s->d, s->d * sizeof *t.k);
        kern->kv_put(s->same ? NULL : t.kp + at, t.vp + at, s->t, p % NB_PAGE, s->d, t.k + p * s->d, t.v + p * s->d);
    }
    t.raw = exactly(t.keys * s->d * sizeof(float));
    memcpy(t.raw, t.k, t.keys * s->d * sizeof(float));
    for (size_t p = 0; p < t.keys; p++) {
        round_row(t.k + p * s->d, s->d, s->t);
        round_row(t.v + p * s->d, s->d, s->t);
    }
    t.a = (nb_attn){ .q = t.q,
                     .ldq = ldq,
                     .ldo = s->r * s->d + 3,
                     .m = s->m,
                     .r = s->r,
                     .d = s->d,
                     .pos = s->pos,
                     .window = s->window,
                     .scale = 1.0f / sqrtf((float)s->d),
                     .softcap = s->softcap,
                     .pages = t.pages,
                     .k = s->same ? NULL : t.kp,
                     .v = t.vp,
                     .page_stride = page_bytes,
                     .kv_dtype = s->t };
    return t;
}

static void task_free(task *t)
{
    free(t->q);
    free(t->k);
    free(t->raw);
    free(t->v);
    free(t->kp);
    free(t->vp);
    free(t->pages);
}

/* How to cut the work; every way must give the same bits. */
typedef enum way { WHOLE, ROW_BY_ROW, BY_TILES, TILE_BY_TILE, WAYS } way;

static void run_tiles(const nb_kern *kern, const nb_attn *a, size_t step, float *scratch, size_t scratch_bytes)
{
    const size_t tiles = (a->pos + a->m + NB_ATT_TILE - 1) / NB_ATT_TILE, floats = nb_attn_partial(a->m * a->r, a->d);
    float *part = guarded(tiles * floats * sizeof(float));

    for (size_t t = 0; t < tiles; t += step) { /* from last to first: order must not matter */
        const size_t end = tiles - t, begin = end > step ? end - step : 0;
        kern->attn_part(a, begin, end, part + begin * floats, scratch);
    }
    guards_intact(part, tiles * floats * sizeof(float), kern->name);
    guards_intact(scratch, scratch_bytes, kern->name);
    kern->attn_merge(a, tiles, part);
    guarded_free(part);
}

/* out[m][r*d] */
static void run(const nb_kern *kern, const task *t, way how, float *out)
{
    const size_t scratch_bytes = nb_attn_scratch(t->a.m, t->a.r, t->a.d) * sizeof(float), row = t->a.r * t->a.d;
    const size_t o_bytes = ((t->a.m - 1) * t->a.ldo + row) * sizeof(float);
    float *scratch = guarded(scratch_bytes), *o = guarded(o_bytes);
    nb_attn a = t->a;

    a.o = o;
    if (how == WHOLE)
        kern->attn(&a, scratch);
    else if (how == BY_TILES || how == TILE_BY_TILE)
        run_tiles(kern, &a, how == BY_TILES ? 2 : 1, scratch, scratch_bytes);
    else
        for (size_t i = 0; i < t->a.m; i++) {
            a.m = 1;
            a.pos = t->a.pos + i;
            a.q = t->a.q + i * a.ldq;
            a.o = o + i * a.ldo;
            kern->attn(&a, scratch);
        }
    guards_intact(scratch, scratch_bytes, kern->name);
    guards_intact(o, o_bytes, kern->name);
    for (size_t i = 0; i < t->a.m; i++) {
        for (size_t j = row; i + 1 < t->a.m && j < t->a.ldo; j++)
            assert_int_equal(nb_bits_from_f32(o[i * t->a.ldo + j]), 0x5A5A5A5A);
        memcpy(out + i * row, o + i * t->a.ldo, row * sizeof(float));
    }
    guarded_free(scratch);
    guarded_free(o);
}

/* The formula, one row. */
static void check_row(const task *t, size_t i, size_t j, const float *got)
{
    const nb_attn *a = &t->a;
    const size_t end = a->pos + i + 1, first = a->window && end > a->window ? end - a->window : 0;
    double *p = exactly(end * sizeof *p), top = a->sinks ? a->sinks[j] : -INFINITY, sum = 0;

    for (size_t x = first; x < end; x++) {
        double s = 0;
        for (size_t y = 0; y < a->d; y++)
            s += (double)a->q[i * a->ldq + j * a->d + y] * t->k[x * a->d + y];
        s *= a->scale;
        if (a->softcap > 0)
            s = a->softcap * tanh(s / a->softcap);
        p[x] = s;
        top = s > top ? s : top;
    }
    for (size_t x = first; x < end; x++)
        sum += p[x] = exp(p[x] - top);
    if (a->sinks)
        sum += exp(a->sinks[j] - top);
    for (size_t y = 0; y < a->d; y++) {
        double o = 0, size = 0;
        for (size_t x = first; x < end; x++) {
            o += p[x] * t->v[x * a->d + y] / sum;
            size += fabs(p[x] * t->v[x * a->d + y]) / sum;
        }
        if (!(fabs(got[y] - o) <= 2e-6 * size + 1e-30))
            fail_msg("d %zu r %zu m %zu pos %zu: token %zu head %zu value %zu: got %.9g, want %.9g", a->d, a->r, a->m, a->pos, i, j, y,
                     (double)got[y], o);
    }
    free(p);
}

static void check_shape(const shape *s, size_t check_every)
{
    const nb_kern *scalar = nb_kern_find("scalar");
    const size_t row = s->r * s->d, page_bytes = nb_kv_head_bytes(s->d, s->t);
    task t = task_make(s, scalar);
    float *want = exactly(s->m * row * sizeof(float)), *got = exactly(s->m * row * sizeof(float));

    t.a.sinks = s->sinks ? t.sinks : NULL;
    run(scalar, &t, WHOLE, want);
    for (size_t i = 0; i < s->m * s->r; i += check_every)
        check_row(&t, i / s->r, i % s->r, want + i * s->d);
    for (size_t c = 0; c < nb_kern_count(); c++) {
        const nb_kern *kern = table_here(c);
        if (!kern)
            continue;
        task u = task_make(s, kern);
        assert_memory_equal(u.kp, t.kp, (FIRST_PAGE + t.n_pages) * page_bytes);
        assert_memory_equal(u.vp, t.vp, (FIRST_PAGE + t.n_pages) * page_bytes);
        task_free(&u);
        for (way how = WHOLE; how < WAYS; how++) {
            if (kern == scalar && (how == WHOLE || s->m == 1))
                continue;
            run(kern, &t, how, got);
            for (size_t i = 0; i < s->m * row; i++)
                if (nb_bits_from_f32(got[i]) != nb_bits_from_f32(want[i]))
                    fail_msg("%s: d %zu r %zu m %zu pos %zu window %zu type %d way %d: element %zu is %.9g, scalar has %.9g", kern->name,
                             s->d, s->r, s->m, s->pos, s->window, (int)s->t, (int)how, i, (double)got[i], (double)want[i]);
        }
    }
    free(want);
    free(got);
    task_free(&t);
}

static void test_decode(void **state)
{
    static const size_t ds[] = { 8, 16, 32, 64, 80, 96, 128, 256 }, at[] = { 0, 30, 31, 32, 33, 63, 64, 511, 512, 513, 1500 };
    size_t n = 0;
    (void)state;

    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (size_t r = 1; r <= 8; r++)
            for (size_t p = 0; p < sizeof at / sizeof *at; p++, n++) {
                if ((at[p] == 1500 && (i + r) % 4 != 0) || left_out())
                    continue;
                const shape s = { .d = ds[i],
                                  .r = r,
                                  .m = 1,
                                  .pos = at[p],
                                  .window = n % 5 == 4 ? 40 : 0,
                                  .softcap = n % 7 == 6 ? 30.0f : 0.0f,
                                  .sinks = n % 3 == 2,
                                  .t = n % 4 == 3   ? NB_DT_F32
                                       : n % 4 == 1 ? NB_DT_I8
                                                    : NB_DT_F16 };
                check_shape(&s, 3);
            }
}

static void test_blocks_of_tokens(void **state)
{
    static const shape rows[] = {
        { 8, 1, 33, 0, 0, 0, false, NB_DT_F16, false },        { 64, 1, 130, 0, 0, 0, false, NB_DT_F16, false },
        { 64, 3, 65, 0, 0, 0, false, NB_DT_F16, false },       { 64, 3, 47, 490, 0, 0, true, NB_DT_F16, false },
        { 16, 4, 7, 27, 0, 0, false, NB_DT_F32, false },       { 128, 8, 9, 505, 0, 50.0f, false, NB_DT_F16, false },
        { 80, 2, 40, 1000, 0, 0, false, NB_DT_F16, false },    { 96, 7, 20, 30, 17, 0, false, NB_DT_F16, false },
        { 32, 5, 70, 500, 64, 20.0f, true, NB_DT_F16, false }, { 32, 2, 70, 500, 1, 0, false, NB_DT_F32, false },
        { 64, 1, 64, 1472, 513, 0, true, NB_DT_F16, false },   { 256, 2, 12, 60, 0, 0, false, NB_DT_F16, false },
        { 40, 2, 12, 60, 31, 0, false, NB_DT_F16, false },     { 64, 71, 2, 100, 0, 0, false, NB_DT_F16, false },
        { 12, 3, 5, 70, 0, 0, false, NB_DT_F32, false },       { 4, 1, 3, 0, 0, 0, false, NB_DT_F16, false },
        { 64, 3, 65, 470, 0, 0, false, NB_DT_I8, false },      { 128, 8, 9, 505, 0, 50.0f, true, NB_DT_I8, false },
        { 12, 3, 5, 70, 40, 0, false, NB_DT_I8, false },       { 80, 1, 40, 1000, 0, 0, false, NB_DT_I8, false },
    };
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!left_out())
            check_shape(rows + i, 11);
}

/* Keys that are the values: every table by its plain rows has the bits of scalar, and scalar those of a cache that holds
 * both. */
static void test_keys_are_values(void **state)
{
    static const shape rows[] = {
        { 576, 16, 1, 700, 0, 0, false, NB_DT_F16, true }, { 576, 4, 20, 40, 0, 0, false, NB_DT_F16, true },
        { 288, 3, 9, 505, 0, 0, true, NB_DT_F32, true },   { 40, 2, 33, 31, 0, 0, false, NB_DT_F16, true },
        { 12, 3, 5, 70, 0, 0, false, NB_DT_F32, true },    { 20, 5, 40, 500, 64, 0, true, NB_DT_F16, true },
        { 64, 71, 2, 100, 0, 0, false, NB_DT_F16, true },  { 4, 1, 3, 0, 0, 0, false, NB_DT_F16, true },
        { 576, 16, 1, 300, 0, 0, false, NB_DT_I8, true },  { 40, 2, 33, 31, 0, 0, false, NB_DT_I8, true },
    };
    const nb_kern *scalar = nb_kern_find("scalar");
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (left_out())
            continue;
        const shape s = rows[i];
        const size_t n = s.m * s.r * s.d, page_bytes = nb_kv_head_bytes(s.d, s.t);
        float *want = exactly(n * sizeof(float)), *got = exactly(n * sizeof(float));
        check_shape(&s, 11);
        task t = task_make(&s, scalar);
        run(scalar, &t, WHOLE, got);
        for (size_t p = 0; p < t.keys; p++) {
            const size_t at = t.pages[p / NB_PAGE] * page_bytes;
            scalar->kv_put(t.kp + at, t.vp + at, s.t, p % NB_PAGE, s.d, t.raw + p * s.d, t.raw + p * s.d);
        }
        t.a.k = t.kp;
        run(scalar, &t, WHOLE, want);
        assert_memory_equal(got, want, n * sizeof(float));
        free(want);
        free(got);
        task_free(&t);
    }
}

/* A NaN or Inf in the keys or values of one token reaches that token and later ones, and no earlier one. */
static void test_nan_stays_in_its_future(void **state)
{
    (void)state;

    for (size_t c = 0; c < nb_kern_count(); c++)
        for (int what = 0; what < 8; what++) {
            const shape s = { .d = 64, .r = 2, .m = 70, .pos = 20, .t = what < 4 ? NB_DT_F16 : NB_DT_I8 };
            const size_t row = s.r * s.d, page_bytes = nb_kv_head_bytes(s.d, s.t);
            const nb_kern *kern = table_here(c);
            if (!kern)
                continue;
            float *clean = exactly(s.m * row * sizeof(float)), *got = exactly(s.m * row * sizeof(float));
            task t = task_make(&s, kern);
            const size_t bad = s.pos + 33, at = t.pages[bad / NB_PAGE] * page_bytes;
            run(kern, &t, WHOLE, clean);
            for (size_t y = 0; y < s.d; y++) {
                const float v = what % 2 ? INFINITY : NAN;
                t.k[bad * s.d + y] = what % 4 < 2 ? v : t.k[bad * s.d + y];
                t.v[bad * s.d + y] = what % 4 < 2 ? t.v[bad * s.d + y] : v;
            }
            kern->kv_put(t.kp + at, t.vp + at, s.t, bad % NB_PAGE, s.d, t.k + bad * s.d, t.v + bad * s.d);
            for (way how = WHOLE; how < WAYS; how++) {
                run(kern, &t, how, got);
                assert_memory_equal(got, clean, 33 * row * sizeof(float));
                for (size_t i = 33 * row; i < s.m * row; i++)
                    if (isfinite(got[i]))
                        fail_msg("%s: element %zu is %g", kern->name, i, (double)got[i]);
            }
            free(clean);
            free(got);
            task_free(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_blocks_of_tokens),
        cmocka_unit_test(test_keys_are_values),
        cmocka_unit_test(test_nan_stays_in_its_future),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
