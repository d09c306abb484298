/* test_eval.c - protocols against transformers, distances against plain sums, bootstrap, layers, saved logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "job/eval.h"
#include "job/eval_layers.h"
#include "unit/job/eval_models.h"

static void read_set(nb_evalset *s, const char *file, const char *protocol, size_t limit)
{
    const nb_evalset_text o = { .files = &file, .n_files = 1, .protocol = protocol, .context = 1024, .bos = -1, .eos = -1, .limit = limit };
    nb_err err = { 0 };

    if (nb_evalset_read(s, plain.tok, &o, &err) != NB_OK)
        fail_msg("%s: %s", protocol, err.what);
}

/* ---- protocols ---- */

/* Values of tests/data/eval/make.py. */
static void protocols(void **state)
{
    static const struct {
        const char *name, *file, *says;
        size_t limit, scored, docs;
        double nll; /* sum */
    } rows[] = {
        { "windows-256", "models/pemberley-4m/eval.txt", "windows-256", 3, 765, 3, 2086.9050018673206 },
        { "gptq-256", "models/pemberley-4m/eval.txt", "gptq-256", 3, 765, 3, 2055.007026644636 },
        { "llama.cpp-256", "models/pemberley-4m/eval.txt", "llama.cpp-256", 3, 381, 3, 986.3567270256333 },
        { "strided-128", "models/pemberley-4m/eval.txt", "strided-128-64", 8, 575, 8, 1568.0677592900977 },
        { "documents-64", "tests/data/eval/docs.jsonl", "documents-64", 0, 1408, 12, 3859.9628351363776 },
    };

#if defined(__SANITIZE_THREAD__) /* one protocol tells as much about threads as five */
    const size_t n = 1;
#else
    const size_t n = NB_LEN(rows);
#endif

    (void)state;
    for (size_t i = 0; i < n; i++) {
        nb_evalset s;
        nb_eval e;
        nb_err err = { 0 };
        read_set(&s, rows[i].file, rows[i].name, rows[i].limit);
        const nb_eval_opts o = { .set = &s, .pool = pool, .resamples = 10 };
        if (nb_eval_run(&plain.model, 1, NULL, NULL, &o, &e, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].name, err.what);
        const nb_eval_score *all = &e.model[0].all;
        if (strcmp(s.protocol, rows[i].says) != 0 || all->scored != rows[i].scored || s.n_docs != rows[i].docs)
            fail_msg("%s: %s, %zu scored, %zu documents", rows[i].name, s.protocol, all->scored, s.n_docs);
        if (!(fabs(all->nll.mean * (double)all->scored - rows[i].nll) <= 2e-5 * rows[i].nll))
            fail_msg("%s: %.6f, want %.6f", rows[i].name, all->nll.mean * (double)all->scored, rows[i].nll);
        if (s.words) {
            assert_true(fabs(all->word_ppl - 63.46557749) < 63 * 2e-4);
            assert_true(fabs(all->byte_bits - 1.096858231) < 2e-5);
        }
        nb_eval_clear(&e);
        nb_evalset_clear(&s);
    }
}

static void refused(void **state)
{
    static const struct {
        const char *label, *protocol, *text, *cls;
        size_t window, stride;
        nb_status want;
    } rows[] = {
        { "no such name", "wikitext", "a b c", "eval.protocol", 0, 0, NB_EARG },
        { "markup in the name", "<script>", "a b c", "eval.protocol", 0, 0, NB_EARG },
        { "no number", "gptq-", "a b c", "eval.protocol", 0, 0, NB_EARG },
        { "two numbers where one belongs", "gptq-64-32", "a b c", "eval.protocol", 0, 0, NB_EARG },
        { "a number that is too long", "gptq-99999999999999999999", "a b c", "eval.protocol", 0, 0, NB_EARG },
        { "a window of one", "gptq-1", "a b c", "eval.window", 0, 0, NB_EARG },
        { "a gap between windows", "strided-64-65", "a b c", "eval.window", 0, 0, NB_EARG },
        { "a stride without windows that stride", "gptq", "a b c", "eval.window", 64, 8, NB_EARG },
        { "no text", "windows", "", "ids.empty", 0, 0, NB_EFORMAT },
        { "TK-10 Latin-1", "windows", "caf\xe9", "tok.utf8", 0, 0, NB_EFORMAT },
        { "less than a window", "gptq-64", "a b c", "ids.empty", 0, 0, NB_EFORMAT },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const char *path = in_scratch("text");
        FILE *f = fopen(path, "w");
        fputs(rows[i].text, f);
        fclose(f);
        const nb_evalset_text o = { .files = &path,
                                    .n_files = 1,
                                    .protocol = rows[i].protocol,
                                    .window = rows[i].window,
                                    .stride = rows[i].stride,
                                    .bos = -1,
                                    .eos = -1 };
        nb_evalset s;
        nb_err err = { 0 };
        const nb_status rc = nb_evalset_read(&s, plain.tok, &o, &err);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %d %s %s", rows[i].label, rc, err.cls, err.what);
        nb_evalset_clear(&s);
    }
}

/* ---- one position ---- */

static double plain_kl(const float *p, const float *q, size_t v, double *lp, double *lq)
{
    double sp = 0, sq = 0, kl = 0;

    for (size_t i = 0; i < v; i++) {
        sp += exp((double)p[i]);
        sq += exp((double)q[i]);
    }
    *lp = log(sp);
    *lq = log(sq);
    for (size_t i = 0; i < v; i++)
        kl += exp((double)p[i] - *lp) * ((double)p[i] - *lp - (double)q[i] + *lq);
    return kl;
}

static void positions(void **state)
{
    enum { V = 1000 };
    float p[V], q[V];
    uint32_t scratch_ids[V];
    static unsigned char record[8 + 8 * V];

    (void)state;
    for (uint64_t t = 0; t < 20; t++) {
        double lp, lq;
        for (size_t i = 0; i < V; i++) {
            p[i] = (float)(3 * nb_rng_normal(1, t, i));
            q[i] = p[i] + (float)(0.2 * nb_rng_normal(2, t, i)) + 5.0f; /* a shift of all logits changes nothing */
        }
        p[17] = p[900] = 20.0f; /* a tie: the lower id counts */
        q[17] = 15.0f;
        q[900] = 30.0f;
        const double kl = plain_kl(p, q, V, &lp, &lq);
        const nb_position r = nb_position_of(p, q, V, 3);
        assert_true(fabs(r.kl - kl) < 1e-9 * (1 + kl) && fabs(r.nll - (lq - (double)q[3])) < 1e-9 &&
                    fabs(r.ref_nll - (lp - (double)p[3])) < 1e-9);
        size_t rank = 0;
        for (size_t i = 0; i < V; i++)
            rank += q[i] > q[17] || (q[i] == q[17] && i < 17);
        assert_int_equal(r.rank, rank);
        assert_true(nb_position_of(p, p, V, SIZE_MAX).kl == 0 && nb_position_of(p, p, V, SIZE_MAX).rank == 0);

        for (size_t k = 1; k <= V; k = k < 8 ? k + 3 : k < 300 ? 4 * k : V + (k == V)) { /* fewer tokens: a lower bound */
            nb_topk_pack(record, p, V, k, 3, scratch_ids);
            const nb_topk_row row = { .nll = (float)r.ref_nll, .rest = 0, .ids = record + 8, .logp = record + 8 + 4 * k, .k = k };
            nb_topk_row full = row;
            uint32_t bits;
            memcpy(&bits, record + 4, 4);
            memcpy(&full.rest, &bits, 4);
            const nb_position at = nb_position_topk(&full, q, V, 3);
            if (!(at.kl <= kl + 1e-6) || (k == V && !(fabs(at.kl - kl) < 1e-6)) || at.rank != rank || !(at.kl >= -1e-6))
                fail_msg("%zu tokens: %.9f, exact %.9f", k, at.kl, kl);
            for (size_t i = 1; i < k; i++)
                assert_true(p[scratch_ids[i - 1]] > p[scratch_ids[i]] ||
                            (p[scratch_ids[i - 1]] == p[scratch_ids[i]] && scratch_ids[i - 1] < scratch_ids[i]));
            if (k == V)
                break;
        }
    }
}

/* ---- statistics ---- */

static void bootstrap(void **state)
{
    enum { N = 400 };
    double num[N], den[N], one = 1;
    const nb_ratio r = { num, den }, single = { &one, &one };
    nb_boot_fn *const fn[] = { nb_boot_ratio };
    const void *ctx[] = { &r };
    nb_mean m[3] = { { 0 } }, *to[] = { &m[0] };
    nb_err err = { 0 };
    double sum = 0, square = 0;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        num[i] = 3 + 2 * nb_rng_normal(7, 0, i);
        den[i] = 1;
        sum += num[i];
        square += num[i] * num[i];
    }
    const double mean = sum / N, half = 1.96 * sqrt((square / N - mean * mean) / N);
    for (int t = 0; t < 3; t++) { /* two threads, one, another seed */
        const nb_boot b = { .n = N, .resamples = 2000, .seed = t == 2 ? 6 : 5, .pool = t == 1 ? NULL : pool };
        m[t].mean = mean;
        to[0] = &m[t];
        assert_int_equal(nb_bootstrap(&b, fn, ctx, 1, to, &err), NB_OK);
        if (!(fabs(m[t].ci95 / half - 1) < 0.08) || !(fabs((m[t].lo + m[t].hi) / 2 - mean) < 0.1 * half))
            fail_msg("%.4f .. %.4f around %.4f, half width by theory %.4f", m[t].lo, m[t].hi, mean, half);
    }
    assert_memory_equal(&m[0], &m[1], sizeof m[0]);
    assert_true(m[0].lo != m[2].lo);

    const nb_boot alone = { .n = 1, .resamples = 100, .seed = 1 }; /* one document says nothing about others */
    ctx[0] = &single;
    m[0].mean = 1;
    to[0] = &m[0];
    assert_int_equal(nb_bootstrap(&alone, fn, ctx, 1, to, &err), NB_OK);
    assert_true(m[0].lo == 1 && m[0].hi == 1 && m[0].ci95 == 0);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void quantiles(void **state)
{
    static const double at[] = { 0, 0.1, 0.5, 0.77, 0.99, 1 };
    double v[40], wide[400];
    uint32_t unit[40], count[7];

    (void)state;
    for (size_t i = 0; i < 40; i++) {
        v[i] = nb_rng_uniform(3, 0, i);
        unit[i] = (uint32_t)(i * 5 % 7);
    }
    qsort(v, 40, sizeof *v, by_value);
    assert_true(nb_quantile(v, 40, 0) == v[0] && nb_quantile(v, 40, 1) == v[39] && nb_quantile(v, 0, 0.5) == 0);
    assert_true(fabs(nb_quantile(v, 40, 0.5) - (v[19] + v[20]) / 2) < 1e-15);
    for (uint32_t t = 0; t < 30; t++) { /* against the sample written out */
        size_t n = 0;
        for (size_t u = 0; u < 7; u++)
            count[u] = (uint32_t)(nb_rng_uniform(4, t, u) * 4);
        for (size_t i = 0; i < 40; i++)
            for (uint32_t k = 0; k < count[unit[i]]; k++)
                wide[n++] = v[i];
        for (size_t i = 0; i < NB_LEN(at); i++) {
            const nb_ranks r = { v, unit, 40, at[i] };
            const double got = nb_boot_quantile(&r, count, 7), want = nb_quantile(wide, n, at[i]);
            if (!(fabs(got - want) < 1e-14))
                fail_msg("draw %u, %.2f: %.6f, want %.6f", t, at[i], got, want);
        }
    }
}

/* ---- against a reference model ---- */

static void own_reference(void **state)
{
    nb_evalset s;
    nb_eval e;
    nb_layer_errors l;
    nb_err err = { 0 };

    (void)state;
    read_set(&s, "models/pemberley-4m/eval.txt", "windows-50", 4); /* fewer than 8: blocks */
    const nb_eval_opts o = { .set = &s, .pool = pool, .resamples = 50 };
    assert_int_equal(nb_eval_run(&plain.model, 1, plain.model, NULL, &o, &e, &err), NB_OK);
    const nb_eval_score *all = &e.model[0].all;
    assert_string_equal(e.drawn, "8 blocks of 32 positions");
    assert_true(all->kl.mean == 0 && all->kl_max == 0 && all->top1.mean == 1 && all->top5.mean == 1 && all->ppl_ratio.mean == 1);
    assert_int_equal(all->positions, 200);
    nb_eval_clear(&e);
    assert_int_equal(nb_eval_layers(plain.model, plain.model, &o, 0, &l, &err), NB_OK);
    assert_true(l.n == 4 && l.alone[3] == 0 && l.drift[3] == 0);
    nb_layer_errors_clear(&l);
    assert_int_equal(nb_eval_layers(rounded.model, plain.model, &o, 0, &l, &err), NB_OK);
    assert_true(fabs(l.alone[0] - l.drift[0]) < 0.1 * l.drift[0]); /* no error comes into the first layer */
    for (size_t i = 0; i < l.n; i++)
        assert_true(l.alone[i] > 0.02 && l.alone[i] < 0.4 && l.drift[i] > 0.02 && l.drift[i] < 0.4);
    nb_layer_errors_clear(&l);
    nb_evalset_clear(&s);
}

/* ---- saved logits ---- */

static int calls_left;

static bool stop_soon(void *user)
{
    (void)user;
    return calls_left-- <= 0;
}

static size_t file_bytes(const char *path, unsigned char *out, size_t cap)
{
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(out, 1, cap, f) : 0;

    if (f)
        fclose(f);
    return n;
}

static void saved_logits(void **state)
{
    static unsigned char a[1 << 19], b[1 << 19];
    const nb_host host = { .cancelled = stop_soon };
    nb_evalset s, other;
    nb_topk t;
    nb_eval e, exact;
    nb_err err = { 0 };
    size_t n;

    (void)state;
    read_set(&s, "models/pemberley-4m/eval.txt", "gptq-48", 5);
    read_set(&other, "models/pemberley-4m/eval.txt", "gptq-24", 10);
    nb_eval_opts o = { .set = &s, .pool = pool, .resamples = 20 };
    assert_int_equal(nb_eval_save(plain.model, in_scratch("whole"), 40, false, &o, &err), NB_OK);
    n = file_bytes(in_scratch("whole"), a, sizeof a);
    assert_true(n > 5 * 48 * nb_topk_bytes(40) && n < 5 * 48 * nb_topk_bytes(40) + 1024);

    o.host = &host; /* DU: stopped again and again, the file is the same; whole windows are never run twice but the first */
    for (int i = 0; i < 20; i++) {
        calls_left = 3;
        nb_err_clear(&err);
        const nb_status rc = nb_eval_save(plain.model, in_scratch("pieces"), 40, false, &o, &err);
        if (rc == NB_OK)
            break;
        assert_int_equal(rc, NB_ECANCELED);
        assert_int_equal(access(in_scratch("pieces"), F_OK), -1);
    }
    assert_int_equal(file_bytes(in_scratch("pieces"), b, sizeof b), n);
    assert_memory_equal(a, b, n);

    calls_left = 3; /* the same name of another model */
    assert_int_equal(nb_eval_save(plain.model, in_scratch("mixed"), 40, false, &o, &err), NB_ECANCELED);
    nb_err_clear(&err);
    o.host = NULL;
    assert_int_equal(nb_eval_save(rounded.model, in_scratch("mixed"), 40, false, &o, &err), NB_EMISMATCH);
    assert_string_equal(err.cls, "eval.topk");
    nb_err_clear(&err);
    assert_int_equal(nb_eval_save(plain.model, in_scratch("whole"), 40, false, &o, &err), NB_EEXISTS);
    nb_err_clear(&err);

    assert_int_equal(nb_topk_open(&t, in_scratch("whole"), &err), NB_OK);
    assert_int_equal(nb_eval_run(&rounded.model, 1, NULL, &t, &o, &e, &err), NB_OK);
    assert_int_equal(nb_eval_run(&rounded.model, 1, plain.model, NULL, &o, &exact, &err), NB_OK);
    const nb_eval_score *x = &e.model[0].all, *y = &exact.model[0].all;
    assert_true(e.lower_bound && x->kl.mean < y->kl.mean && x->kl.mean > 0.7 * y->kl.mean);
    assert_true(x->top1.mean == y->top1.mean && x->nll.mean == y->nll.mean && fabs(e.ref.all.nll.mean - exact.ref.all.nll.mean) < 1e-6);
    o.set = &other;
    nb_eval_clear(&e);
    nb_eval_clear(&exact);
    assert_int_equal(nb_eval_run(&rounded.model, 1, NULL, &t, &o, &e, &err), NB_EMISMATCH);
    nb_topk_close(&t);
    nb_evalset_clear(&s);
    nb_evalset_clear(&other);
}

static void broken_topk(void **state)
{
    static const struct {
        const char *label, *cls;
        size_t at, cut; /* change this byte, or keep so many */
    } rows[] = {
        { "empty", "topk.header", 0, 0 },
        { "another file", "topk.header", 2, SIZE_MAX },
        { "header longer than the file", "topk.header", 14, SIZE_MAX },
        { "half a record", "topk.size", 0, 5000 },
        { "a token id too large", "topk.id", 256 + 8 + 3, SIZE_MAX },
    };
    static unsigned char bytes[1 << 19];
    const size_t n = file_bytes(in_scratch("whole"), bytes, sizeof bytes);

    (void)state;
    assert_true(n > 6000);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        FILE *f = fopen(in_scratch("broken"), "wb");
        nb_topk t;
        nb_err err = { 0 };
        bytes[rows[i].at] ^= 0x40;
        fwrite(bytes, 1, rows[i].cut < n ? rows[i].cut : n, f);
        bytes[rows[i].at] ^= 0x40;
        fclose(f);
        if (rows[i].at == 0 && rows[i].cut == 5000) { /* only cut */
            f = fopen(in_scratch("broken"), "wb");
            fwrite(bytes, 1, 5000, f);
            fclose(f);
        }
        const nb_status rc = nb_topk_open(&t, in_scratch("broken"), &err);
        if (rc != NB_EFORMAT || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %d %s %s", rows[i].label, rc, err.cls, err.what);
    }
}

/* Every allocation fails once: NB_ENOMEM, nothing else, nothing leaked. */
static void out_of_memory(void **state)
{
    const char *file = "tests/data/eval/docs.jsonl";
    const nb_evalset_text t = { .files = &file, .n_files = 1, .protocol = "documents-4", .bos = -1, .eos = -1, .limit = 1 };
    uint64_t i = 0;
    nb_status rc;

    (void)state;
    do {
        nb_evalset s;
        nb_eval e;
        nb_err err = { 0 };
        const nb_eval_opts o = { .set = &s, .resamples = 3 };
        nb_mem_fail_at(++i);
        rc = nb_evalset_read(&s, plain.tok, &t, &err);
        if (rc == NB_OK)
            rc = nb_eval_run(&rounded.model, 1, plain.model, NULL, &o, &e, &err);
        if (rc == NB_OK) {
            rc = nb_eval_save(plain.model, in_scratch("memory"), 3, true, &o, &err);
            nb_eval_clear(&e);
        }
        nb_mem_fail_at(0);
        if (rc != NB_OK && rc != NB_ENOMEM)
            fail_msg("allocation %d: %d %s %s", (int)i, rc, err.cls, err.what);
        nb_evalset_clear(&s);
    } while (rc != NB_OK);
    assert_true(i > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protocols),    cmocka_unit_test(refused),     cmocka_unit_test(positions),
        cmocka_unit_test(bootstrap),    cmocka_unit_test(quantiles),   cmocka_unit_test(own_reference),
        cmocka_unit_test(saved_logits), cmocka_unit_test(broken_topk), cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
