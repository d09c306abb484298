/* The logits of a token depend on the tokens before it and on the model, on nothing else: the same bits alone or beside
 * other sequences, whole or in chunks, with one thread or several, from every kernel table, with 16-bit and with 8-bit activations. And A16 is close to f32, A8 less. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

#include <math.h>

static const char *const kinds[] = {
    [MM_BF16] = "16-bit", [MM_AWQ] = "4-bit", [MM_MIXED] = "mixed", [MM_FAST] = "offsets", [MM_BYTE] = "8-bit"
};

typedef struct mm_fixture {
    memmodel mem;
    fixture f;
} mm_fixture;

static void open_kind(mm_fixture *x, mm_kind kind, fix_opts o)
{
    mm_open(&x->mem, kind);
    x->f = (fixture){ .store = x->mem.store };
    fix_bind(&x->f, x->mem.cfg, x->mem.qcfg, o);
}

static void close_kind(mm_fixture *x)
{
    x->f.store = NULL; /* the memory model's */
    fix_close(&x->f);
    mm_close(&x->mem);
}

static void fill_ids(int32_t *ids, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(nb_rng_uniform(9, stream, i) * MM_VOCAB);
}

static void same(const char *label, const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, %s: value %zu is %.9g, expected %.9g", label, what, i, (double)a[i], (double)b[i]);
}

/* Logits of n ids from a fresh executor. */
static float *whole(mm_kind kind, fix_opts o, const int32_t *ids, size_t n)
{
    float *logits = nb_alloc_array(n * MM_VOCAB, sizeof *logits);
    mm_fixture x;

    open_kind(&x, kind, o);
    fix_run(&x.f, ids, 0, n, logits);
    close_kind(&x);
    return logits;
}

static void tables(void **state)
{
    enum { N = 37 };
    int32_t ids[N];

    const bool a8 = *(const bool *)*state;

    fill_ids(ids, N, 1);
    for (mm_kind kind = 0; kind < MM_KIND_COUNT; kind++) {
        float *want = whole(kind, (fix_opts){ .kern = nb_kern_find("scalar"), .a8 = a8 }, ids, N);
        for (size_t i = 0; i < nb_kern_count(); i++) {
            const nb_kern *k = nb_kern_at(i);
            float *got;
            if (k->need & ~nb_cpu_features()) {
                fprintf(stderr, "skipped: this cpu cannot run %s\n", k->name);
                continue;
            }
            got = whole(kind, (fix_opts){ .kern = k, .a8 = a8 }, ids, N);
            same(kinds[kind], k->name, got, want, N * MM_VOCAB);
            nb_free(got);
        }
        nb_free(want);
    }
}

static void threads_and_chunks(void **state)
{
    enum { N = 61 };
    static const struct {
        const char *label;
        int threads;
        size_t max_m, piece;
        bool tune; /* few rows on the threads that are fastest, whichever these are */
    } rows[] = {
        { "one thread of a pool", 1, 64, N, false }, { "two threads", 2, 64, N, false },          { "four threads", 4, 64, N, false },
        { "cut into 7 rows", 2, 7, N, false },       { "pieces of 5", 2, 64, 5, false },          { "token by token", 2, 64, 1, false },
        { "pieces of 33", 1, 16, 33, false },        { "tuned, token by token", 4, 64, 1, true }, { "tuned, pieces of 3", 2, 64, 3, true },
    };
    int32_t ids[N];

    const bool a8 = *(const bool *)*state;

    fill_ids(ids, N, 2);
    for (mm_kind kind = 0; kind < MM_KIND_COUNT; kind++) {
        float *want = whole(kind, (fix_opts){ .a8 = a8 }, ids, N), *got = nb_alloc_array(N * MM_VOCAB, sizeof *got);
        for (size_t i = 0; i < NB_LEN(rows); i++) {
            mm_fixture x;
            open_kind(&x, kind, (fix_opts){ .threads = rows[i].threads, .max_m = rows[i].max_m, .a8 = a8 });
            if (rows[i].tune) {
                assert_int_equal(nb_exec_tune(x.f.exec, x.f.model, x.f.pool, NULL), NB_OK);
                assert_in_range(nb_exec_few(x.f.exec), 1, rows[i].threads);
            }
            for (size_t p = 0; p < N; p += rows[i].piece)
                fix_run(&x.f, ids + p, p, N - p < rows[i].piece ? N - p : rows[i].piece, got + p * MM_VOCAB);
            same(kinds[kind], rows[i].label, got, want, N * MM_VOCAB);
            close_kind(&x);
        }
        nb_free(want);
        nb_free(got);
    }
}

/* Many rows: products are cut into pieces of rows where their strips alone would leave threads idle. And of the last layers only the
 * rows that are wanted are run. */
static void many_rows(void **state)
{
    enum { N = 171 };
    static const struct {
        const char *label;
        int threads;
        size_t max_m, piece, every; /* rows 0, every, 2 every ... are wanted */
    } rows[] = {
        { "two threads", 2, N, N, 1 },     { "three threads", 3, N, N, 1 },    { "eight threads", 8, N, N, 1 },
        { "cuts of 130", 7, 130, N, 1 },   { "every second row", 2, N, N, 2 }, { "every 50th row", 5, N, N, 50 },
        { "the first row", 3, 100, N, N }, { "pieces of 40", 2, 64, 40, 40 },  { "pieces, few wanted", 2, 64, 30, 100 },
    };
    const bool a8 = *(const bool *)*state;
    int32_t ids[N];
    uint8_t mask[N];

    fill_ids(ids, N, 21);
    for (mm_kind kind = 0; kind < MM_KIND_COUNT; kind++) {
        float *want = whole(kind, (fix_opts){ .a8 = a8 }, ids, N), *got = nb_alloc_array(N * MM_VOCAB, sizeof *got);
        for (size_t i = 0; i < NB_LEN(rows); i++) {
            float *to = got;
            mm_fixture x;
            open_kind(&x, kind, (fix_opts){ .threads = rows[i].threads, .max_m = rows[i].max_m, .a8 = a8 });
            for (size_t r = 0; r < N; r++)
                mask[r] = r % rows[i].every == 0;
            for (size_t p = 0, n; p < N; p += n) {
                n = N - p < rows[i].piece ? N - p : rows[i].piece;
                fix_run_some(&x.f, ids + p, p, n, mask + p, to);
                for (size_t r = p; r < p + n; r++)
                    to += mask[r] * MM_VOCAB;
            }
            close_kind(&x);
            for (size_t r = 0, at = 0; r < N; r += rows[i].every, at++)
                same(kinds[kind], rows[i].label, got + at * MM_VOCAB, want + r * MM_VOCAB, MM_VOCAB);
        }
        nb_free(want);
        nb_free(got);
    }
}

/* Three sequences in one batch: one reads 20 tokens, one continues after 9, one decodes its 31st. */
static void several_sequences(void **state)
{
    static const size_t before[3] = { 0, 9, 30 }, now[3] = { 20, 6, 1 };
    int32_t ids[3][32], token[27];
    uint32_t pos[27], seq[27], pages[3][2] = { { 5, 1 }, { 0, 9 }, { 3, 7 } };
    const nb_seq_view views[3] = { { .pages = pages[0], .n_pages = 2 },
                                   { .pages = pages[1], .n_pages = 2 },
                                   { .pages = pages[2], .n_pages = 2 } };
    uint8_t want[27];
    size_t m = 0;

    const bool a8 = *(const bool *)*state;

    for (uint32_t s = 0; s < 3; s++) {
        fill_ids(ids[s], 32, 3 + s);
        for (size_t i = 0; i < now[s]; i++, m++) {
            token[m] = ids[s][before[s] + i];
            pos[m] = (uint32_t)(before[s] + i);
            seq[m] = s;
            want[m] = (uint8_t)(i % 2 == 0); /* only some rows */
        }
    }
    for (mm_kind kind = 0; kind < MM_KIND_COUNT; kind++) {
        const nb_batch b = { .m = m, .token = token, .pos = pos, .seq = seq, .want = want, .seqs = views, .n_seqs = 3 };
        float *got = nb_alloc_array(m * MM_VOCAB, sizeof *got), *at = got;
        nb_err err = { 0 };
        mm_fixture x;

        open_kind(&x, kind, (fix_opts){ .threads = 2, .a8 = a8 });
        for (uint32_t s = 0; s < 3; s++) {
            memcpy(x.f.pages, pages[s], sizeof pages[s]);
            if (before[s])
                fix_run(&x.f, ids[s], 0, before[s], NULL);
        }
        if (nb_exec_run(x.f.exec, &b, got, &err) != NB_OK)
            fix_fail("batch", &err);
        close_kind(&x);
        for (uint32_t s = 0; s < 3; s++) {
            float *alone = whole(kind, (fix_opts){ .a8 = a8 }, ids[s], before[s] + now[s]);
            for (size_t i = 0; i < now[s]; i += 2, at += MM_VOCAB)
                same(kinds[kind], "beside others", at, alone + (before[s] + i) * MM_VOCAB, MM_VOCAB);
            nb_free(alone);
        }
        nb_free(got);
    }
}

/* A past of several attention tiles: decoding with threads splits it, without does not. */
static void long_past(void **state)
{
    enum { N = 1300 };
    int32_t *ids = nb_alloc_array(N + 3, sizeof *ids);
    float logits[2][3 * MM_VOCAB];
    static const nb_dtype types[] = { NB_DT_F32, NB_DT_F16 };

    (void)state;
    fill_ids(ids, N + 3, 8);
    for (size_t t = 0; t < NB_LEN(types); t++) {
        for (int i = 0; i < 2; i++) {
            mm_fixture x;
            open_kind(&x, MM_AWQ, (fix_opts){ .threads = i ? 4 : 0, .kv = types[t] });
            fix_run(&x.f, ids, 0, N, NULL);
            fix_run(&x.f, ids + N, N, 1, logits[i]);
            fix_run(&x.f, ids + N + 1, N + 1, 2, logits[i] + MM_VOCAB);
            close_kind(&x);
        }
        same("4-bit", "split past", logits[1], logits[0], 3 * MM_VOCAB);
    }
    nb_free(ids);
}

/* A form's differences from float32 activations, over the standard deviation of those logits: root of the mean square, largest. */
static double difference(bool a8, double *worst)
{
    enum { N = 50 };
    int32_t ids[N];
    double sum = 0, sq = 0, diff = 0, sd;
    float *a, *b;

    *worst = 0;
    fill_ids(ids, N, 12);
    a = whole(MM_AWQ, (fix_opts){ .a8 = a8 }, ids, N);
    b = whole(MM_AWQ, (fix_opts){ .exact = true }, ids, N);
    for (size_t i = 0; i < N * MM_VOCAB; i++) {
        const double d = (double)a[i] - (double)b[i];
        sum += (double)b[i];
        sq += (double)b[i] * (double)b[i];
        diff += d * d;
        *worst = fmax(*worst, fabs(d));
    }
    sum /= N * MM_VOCAB;
    nb_free(a);
    nb_free(b);
    sd = sqrt(sq / (N * MM_VOCAB) - sum * sum);
    *worst /= sd;
    return sqrt(diff / (N * MM_VOCAB)) / sd;
}

static void forms_are_close(void **state)
{
    double worst16, worst8;
    const double a16 = difference(false, &worst16), a8 = difference(true, &worst8);

    (void)state;
    if (!(a16 > 0 && worst16 <= 5e-3 && a8 > a16 && a8 <= 5e-2))
        fail_msg("differences from float32: A16 %g (worst %g), A8 %g (worst %g)", a16, worst16, a8, worst8);
}

/* Layer by layer over one layer's pages, and op by op with nb_exec_span, equals the whole step. */
static void pieces(void **state)
{
    enum { N = 23 };
    int32_t ids[N];
    uint32_t where[2 * N] = { 0 };
    float *want, h[N * MM_D], att[N * MM_D], mlp[N * MM_D], norm[N * MM_D], *got = nb_alloc_array(N * MM_VOCAB, sizeof *got);
    nb_err err = { 0 };

    (void)state;
    fill_ids(ids, N, 14);
    for (uint32_t i = 0; i < N; i++)
        where[i] = i;
    for (mm_kind kind = 0; kind < MM_KIND_COUNT; kind++) {
        const nb_plan *p;
        nb_exec_opts xo = { .max_m = 10, .n_pages = 1, .kv_layers = 1, .kv_dtype = NB_DT_F32 };
        const uint32_t page = 0;
        const nb_seq_view view = { .pages = &page, .n_pages = 1 };
        const nb_batch b = { .m = N, .token = ids, .pos = where, .seq = where + N, .seqs = &view, .n_seqs = 1 };
        nb_exec *one;
        mm_fixture x;

        want = whole(kind, (fix_opts){ 0 }, ids, N);
        open_kind(&x, kind, (fix_opts){ 0 });
        p = nb_model_plan(x.f.model);
        assert_int_equal(nb_exec_cpu_open(x.f.model, &xo, &one, &err), NB_OK);
        assert_int_equal(nb_exec_embed(one, &b, h, &err), NB_OK);
        assert_int_equal(nb_exec_layers(one, &b, h, 0, 1, &err), NB_OK);
        /* layer 1 in spans: norm; q, k, v to o; then add by hand */
        assert_int_equal(nb_exec_span(one, &b, 1, 0, 1, h, norm, &err), NB_OK);
        assert_int_equal(nb_exec_span(one, &b, 1, 1, nb_plan_op_of(p, NB_ROLE_O) + 1, norm, att, &err), NB_OK);
        for (size_t i = 0; i < N * MM_D; i++)
            h[i] += att[i];
        assert_int_equal(nb_exec_span(one, &b, 1, nb_plan_op_of(p, NB_ROLE_O) + 2, nb_plan_op_of(p, NB_ROLE_DOWN) + 1, h, mlp, &err),
                         NB_OK);
        for (size_t i = 0; i < N * MM_D; i++)
            h[i] += mlp[i];
        assert_int_equal(nb_exec_head(one, h, N, got, &err), NB_OK);
        same(kinds[kind], "in pieces", got, want, N * MM_VOCAB);
        nb_exec_close(one);
        close_kind(&x);
        nb_free(want);
    }
    nb_free(got);
}

/* A lazy f32 model: bind, replace a linear and a norm, unbind. */
static void lazy(void **state)
{
    enum { N = 12 };
    int32_t ids[N];
    memmodel mem;
    fixture f = { 0 };
    nb_model_opts mo = { .lazy = true, .f32 = true };
    nb_exec_opts xo = { .max_m = 16, .n_pages = FIX_PAGES, .kv_dtype = NB_DT_F32 };
    float *want, *got = nb_alloc_array(N * MM_VOCAB, sizeof *got), *w = nb_calloc(MM_FF * MM_D, sizeof *w),
                 *back = nb_calloc(MM_FF * MM_D, sizeof *w);
    const nb_tensor *up;
    nb_err err = { 0 };
    uint64_t empty;

    (void)state;
    fill_ids(ids, N, 15);
    want = whole(MM_BF16, (fix_opts){ 0 }, ids, N);
    mm_open(&mem, MM_BF16);
    f.store = mem.store;
    up = nb_store_find(mem.store, "model.layers.0.mlp.up_proj.weight");
    assert_int_equal(nb_store_read_f32(mem.store, up, 0, MM_FF * MM_D, back, NULL), NB_OK);
    assert_int_equal(nb_scan_open(mem.store, NULL, "config.json", NULL, &f.scan, &err), NB_OK);
    assert_int_equal(nb_model_open(mem.store, mem.cfg, &f.scan, &mo, &f.model, &err), NB_OK);
    assert_int_equal(nb_exec_cpu_open(f.model, &xo, &f.exec, &err), NB_OK);
    for (uint32_t i = 0; i < FIX_PAGES; i++)
        f.pages[i] = i;
    empty = nb_model_bytes(f.model);
    for (size_t l = 0; l < MM_LAYERS; l++)
        assert_int_equal(nb_model_bind_layer(f.model, l, &err), NB_OK);
    fix_run(&f, ids, 0, N, got);
    same("f32 of 16-bit", "lazily bound", got, want, N * MM_VOCAB);
    assert_int_equal(nb_model_set_linear(f.model, 0, NB_ROLE_UP, w, &err), NB_OK); /* zeros: the MLP of layer 0 adds nothing */
    fix_run(&f, ids, 0, N, got);
    assert_memory_not_equal(got, want, N * MM_VOCAB * sizeof *got);
    assert_int_equal(nb_model_set_linear(f.model, 0, NB_ROLE_UP, back, &err), NB_OK);
    fix_run(&f, ids, 0, N, got);
    same("f32 of 16-bit", "set back", got, want, N * MM_VOCAB);
    assert_int_equal(nb_model_set_vec(f.model, 1, NB_VEC_N2, w, &err), NB_OK);
    fix_run(&f, ids, 0, N, got);
    assert_memory_not_equal(got, want, N * MM_VOCAB * sizeof *got);
    for (size_t l = 0; l < MM_LAYERS; l++)
        nb_model_unbind_layer(f.model, l);
    assert_true(nb_model_bytes(f.model) == empty);
    f.store = NULL;
    fix_close(&f);
    mm_close(&mem);
    nb_free(want);
    nb_free(got);
    nb_free(w);
    nb_free(back);
}

static void bad_batches(void **state)
{
    static const struct {
        const char *label;
        int32_t token;
        uint32_t pos, seq, page;
        const char *cls;
    } rows[] = {
        { "token past the vocabulary", MM_VOCAB, 0, 0, 0, "exec.token" }, { "negative token", -1, 0, 0, 0, "exec.token" },
        { "position without a page", 1, 32, 0, 0, "exec.batch" },         { "page past the cache", 1, 0, 0, FIX_PAGES, "exec.batch" },
        { "sequence past the list", 1, 0, 1, 0, "exec.batch" },
    };
    float logits[MM_VOCAB];
    const uint8_t want = 1;
    mm_fixture x;

    (void)state;
    open_kind(&x, MM_BF16, (fix_opts){ 0 });
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_seq_view view = { .pages = &rows[i].page, .n_pages = 1 };
        const nb_batch b = { 1, &rows[i].token, &rows[i].pos, &rows[i].seq, &want, &view, 1 };
        nb_err err = { 0 };
        if (nb_exec_run(x.f.exec, &b, logits, &err) != NB_EARG || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: got %s (%s)", rows[i].label, err.cls, err.what);
    }
    close_kind(&x);
}

/* Every allocation of opening may fail: an error, no leak, no crash. */
static void out_of_memory(void **state)
{
    memmodel mem;
    nb_scan scan;
    nb_err err = { 0 };
    uint64_t now;

    (void)state;
    mm_open(&mem, MM_MIXED);
    assert_int_equal(nb_scan_open(mem.store, mem.qcfg, "config.json", NULL, &scan, &err), NB_OK);
    now = nb_mem_now();
    for (uint64_t i = 1;; i++) {
        nb_model *m = NULL;
        nb_exec *x = NULL;
        nb_exec_opts xo = { .max_m = 4, .n_pages = 2, .kv_dtype = NB_DT_F16 };
        nb_status rc;

        nb_err_clear(&err);
        nb_mem_fail_at(i);
        rc = nb_model_open(mem.store, mem.cfg, &scan, &(nb_model_opts){ 0 }, &m, &err);
        if (rc == NB_OK)
            rc = nb_exec_cpu_open(m, &xo, &x, &err);
        nb_mem_fail_at(0);
        nb_exec_close(x);
        nb_model_close(m);
        assert_true(nb_mem_now() == now);
        if (rc == NB_OK)
            break;
        assert_int_equal(rc, NB_ENOMEM);
        assert_true(i < 10000);
    }
    nb_scan_clear(&scan);
    mm_close(&mem);
}

int main(void)
{
    static bool a16 = false, a8 = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(tables, &a16),
        cmocka_unit_test_prestate(threads_and_chunks, &a16),
        cmocka_unit_test_prestate(many_rows, &a16),
        cmocka_unit_test_prestate(several_sequences, &a16),
        { "tables, A8", tables, NULL, NULL, &a8 },
        { "threads and chunks, A8", threads_and_chunks, NULL, NULL, &a8 },
        { "many rows, A8", many_rows, NULL, NULL, &a8 },
        { "several sequences, A8", several_sequences, NULL, NULL, &a8 },
        cmocka_unit_test(long_past),
        cmocka_unit_test(forms_are_close),
        cmocka_unit_test(pieces),
        cmocka_unit_test(lazy),
        cmocka_unit_test(bad_batches),
        cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
