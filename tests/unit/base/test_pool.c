/* test_pool.c - every item once, on any thread count; made for the thread sanitizer too. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"

typedef struct {
    nb_pool *pool;
    unsigned char *hits;      /* plain memory: a race would show */
    _Atomic uint32_t threads; /* bit per thread index seen */
    _Atomic size_t calls;
    size_t grain; /* greatest allowed piece, 0 for any */
    _Atomic int bad;
} job;

static void count(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    atomic_fetch_or(&j->threads, 1u << thread);
    atomic_fetch_add(&j->calls, 1);
    if (begin >= end || (j->grain && end - begin > j->grain) || thread < 0 || thread >= nb_pool_threads(j->pool))
        atomic_store(&j->bad, 1);
    for (size_t i = begin; i < end; i++)
        j->hits[i]++;
}

static void check_once(const unsigned char *hits, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (hits[i] != 1)
            fail_msg("item %zu of %zu done %d times", i, n, hits[i]);
}

static void every_item_once(void **state)
{
    static const int threads[] = { 1, 2, 3, 8 };
    static const size_t sizes[] = { 1, 2, 7, 64, 1000 };
    static const size_t grains[] = { 0, 1, 3, 64, 5000 };
    unsigned char hits[1000];

    (void)state;
    for (size_t t = 0; t < NB_LEN(threads); t++) {
        nb_pool *p;
        assert_int_equal(nb_pool_open(&p, threads[t], NULL), NB_OK);
        assert_int_equal(nb_pool_threads(p), threads[t]);
        for (size_t s = 0; s < NB_LEN(sizes); s++) {
            for (size_t g = 0; g < NB_LEN(grains); g++) {
                job j = { .pool = p, .hits = hits, .grain = grains[g] ? grains[g] : 1 };
                memset(hits, 0, sizeof hits);
                nb_parallel_for(p, sizes[s], grains[g], count, &j);
                check_once(hits, sizes[s]);
                assert_int_equal(j.bad, 0);
            }
            job j = { .pool = p, .hits = hits };
            memset(hits, 0, sizeof hits);
            nb_parallel_static(p, sizes[s], count, &j);
            check_once(hits, sizes[s]);
            assert_int_equal(j.bad, 0);
            assert_int_equal(j.calls, sizes[s] < (size_t)threads[t] ? sizes[s] : (size_t)threads[t]);
        }
        nb_pool_close(p);
    }
}

static void no_pool_and_no_items(void **state)
{
    unsigned char hits[10] = { 0 };
    job j = { .hits = hits, .grain = 4 };

    (void)state;
    nb_parallel_for(NULL, 10, 4, count, &j);
    check_once(hits, 10);
    assert_int_equal(j.calls, 3);
    nb_parallel_for(NULL, 0, 4, count, &j);
    nb_parallel_static(NULL, 0, count, &j);
    assert_int_equal(j.calls, 3);
    assert_int_equal(nb_pool_threads(NULL), 1);
    nb_pool_close(NULL);
}

typedef struct {
    size_t begin[4], end[4];
} shares;

static void note_share(void *ctx, size_t begin, size_t end, int thread)
{
    shares *s = ctx;

    s->begin[thread] = begin;
    s->end[thread] = end;
}

static void static_shares(void **state)
{
    nb_pool *p;
    shares s;

    (void)state;
    assert_int_equal(nb_pool_open(&p, 4, NULL), NB_OK);
    for (size_t n = 4; n < 50; n++) {
        nb_parallel_static(p, n, note_share, &s);
        for (size_t t = 0; t < 4; t++) {
            assert_int_equal(s.begin[t], n * t / 4);
            assert_int_equal(s.end[t], n * (t + 1) / 4);
        }
    }
    nb_parallel_static(p, SIZE_MAX, note_share, &s); /* no overflow */
    assert_true(s.begin[0] == 0 && s.end[3] == SIZE_MAX && s.end[1] == s.begin[2] && s.end[0] > SIZE_MAX / 5);
    nb_pool_close(p);
}

static void nested(void *ctx, size_t begin, size_t end, int thread)
{
    job *outer = ctx;

    for (size_t i = begin; i < end; i++) {
        job j = { .pool = outer->pool, .hits = outer->hits + 10 * i, .grain = 3 };
        nb_parallel_for(outer->pool, 10, 3, count, &j);
        if (j.threads != 1u << thread || j.bad)
            atomic_store(&outer->bad, 1);
    }
}

static void nested_calls_run_inline(void **state)
{
    unsigned char hits[400] = { 0 };
    nb_pool *p;
    job j = { .hits = hits };

    (void)state;
    assert_int_equal(nb_pool_open(&p, 3, NULL), NB_OK);
    j.pool = p;
    nb_parallel_for(p, 40, 1, nested, &j);
    check_once(hits, 400);
    assert_int_equal(j.bad, 0);
    nb_pool_close(p);
}

/* Short and long gaps between jobs: spinning, falling asleep, and both again. */
static void sleep_and_wake(void **state)
{
    unsigned char hits[8];
    nb_pool *p;

    (void)state;
    assert_int_equal(nb_pool_open(&p, 2, NULL), NB_OK);
    for (int i = 0; i < 600; i++) {
        const struct timespec gap = { 0, i % 100 == 0 ? 2000000 : i % 10 == 0 ? 40000 : 0 };
        job j = { .pool = p, .hits = hits };
        memset(hits, 0, sizeof hits);
        if (gap.tv_nsec)
            nanosleep(&gap, NULL);
        nb_parallel_static(p, 8, count, &j);
        check_once(hits, 8);
        assert_int_equal(j.threads, 3);
    }
    nb_pool_close(p);
}

/* Any order of limits: every item once, by the first threads of the pool alone, whatever the others were doing. */
static void fewer_threads(void **state)
{
    static const int limits[] = { 1, 4, 2, 3, 1, 2, 0, 3, 9, 2, 4, 1 };
    static const int used[] = { 1, 4, 2, 3, 1, 2, 4, 3, 4, 2, 4, 1 };
    unsigned char hits[64];
    nb_pool *p;

    (void)state;
    assert_int_equal(nb_pool_open(&p, 4, NULL), NB_OK);
    for (int i = 0; i < 1200; i++) {
        const size_t at = (size_t)i % NB_LEN(limits);
        const struct timespec gap = { 0, i % 97 == 0 ? 2000000 : 0 };
        job j = { .pool = p, .hits = hits };
        nb_pool_limit(p, limits[at]);
        if (gap.tv_nsec)
            nanosleep(&gap, NULL);
        for (int again = 0; again < 3; again++) {
            memset(hits, 0, sizeof hits);
            j.threads = 0;
            nb_parallel_static(p, 64, count, &j);
            check_once(hits, 64);
            assert_int_equal(j.threads, (1 << used[at]) - 1);
            memset(hits, 0, sizeof hits);
            nb_parallel_for(p, 64, 3, count, &j);
            check_once(hits, 64);
            assert_int_equal(j.threads & ~((1u << used[at]) - 1), 0);
        }
    }
    assert_int_equal(nb_pool_threads(p), 4);
    nb_pool_close(p); /* with sleeping threads beyond the limit */
    nb_pool_limit(NULL, 3);
}

typedef struct {
    nb_pool *pool;
    int threads, calls; /* the number that is fast; steps taken */
} tuned;

static void note_thread(void *ctx, size_t begin, size_t end, int thread)
{
    _Atomic uint32_t *seen = ctx;

    (void)begin;
    (void)end;
    atomic_fetch_or(seen, 1u << thread);
}

/* A step that is fast on t->threads threads and slow on any other number. */
static void one_step(void *ctx)
{
    tuned *t = ctx;
    _Atomic uint32_t seen = 0;
    const struct timespec slow = { 0, 20000000 };

    t->calls++;
    nb_parallel_static(t->pool, 64, note_thread, &seen);
    if (seen != (1u << t->threads) - 1)
        nanosleep(&slow, NULL);
}

static void best_number_of_threads(void **state)
{
    static const int threads[] = { 8, 4, 2, 1 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(threads); i++) {
        tuned t = { .threads = threads[i] };
        double all, best;
        assert_int_equal(nb_pool_open(&t.pool, 8, NULL), NB_OK);
        assert_int_equal(nb_pool_tune(t.pool, one_step, &t, &all, &best), threads[i]);
        assert_true(best > 0 && best <= all);
        assert_int_equal(t.calls, 20);
        t.threads = 8;
        one_step(&t); /* all are in use after it */
        nb_pool_close(t.pool);
    }
    tuned none = { .threads = 1 };
    double all, best;
    assert_int_equal(nb_pool_tune(NULL, one_step, &none, &all, &best), 1);
}

static void sums(void *ctx, size_t begin, size_t end, int thread)
{
    float *out = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float s = 0;
        for (int k = 1; k < 50; k++)
            s += 1.0f / (float)((size_t)k + i);
        out[i] = s;
    }
}

static void bits_do_not_depend_on_threads(void **state)
{
    float want[333], got[333];

    (void)state;
    nb_parallel_for(NULL, 333, 333, sums, want);
    for (int t = 1; t <= 4; t++) {
        nb_pool *p;
        assert_int_equal(nb_pool_open(&p, t, NULL), NB_OK);
        nb_parallel_for(p, 333, 7, sums, got);
        assert_memory_equal(got, want, sizeof want);
        nb_parallel_static(p, 333, sums, got);
        assert_memory_equal(got, want, sizeof want);
        nb_pool_close(p);
    }
}

static void nothing(void *ctx, size_t begin, size_t end, int thread)
{
    (void)ctx, (void)begin, (void)end, (void)thread;
}

/* Prints the cost of one fork and join; no bound, the machine may be busy. */
static void overhead(void **state)
{
    nb_pool *p;
    double best = 1e9;

    (void)state;
    assert_int_equal(nb_pool_open(&p, 2, NULL), NB_OK);
    for (int rep = 0; rep < 20; rep++) {
        const double begin = nb_now();
        for (int i = 0; i < 1000; i++)
            nb_parallel_static(p, 2, nothing, NULL);
        best = nb_now() - begin < best ? nb_now() - begin : best;
    }
    print_message("fork and join of 2 threads: %.2f us\n", best * 1e3);
    assert_true(best < 10);
    nb_pool_close(p);
}

static void default_size_and_memory(void **state)
{
    nb_pool *p;
    nb_err e = { 0 };

    (void)state;
    assert_int_equal(nb_pool_open(&p, 0, NULL), NB_OK);
    assert_true(nb_pool_threads(p) >= 1);
    nb_pool_close(p);
    for (uint64_t i = 1; i <= 2; i++) {
        nb_err_clear(&e);
        nb_mem_fail_at(i);
        assert_int_equal(nb_pool_open(&p, 2, &e), NB_ENOMEM);
        nb_mem_fail_at(0);
        assert_null(p);
        assert_string_equal(e.cls, "mem.alloc");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once),
        cmocka_unit_test(no_pool_and_no_items),
        cmocka_unit_test(static_shares),
        cmocka_unit_test(nested_calls_run_inline),
        cmocka_unit_test(sleep_and_wake),
        cmocka_unit_test(fewer_threads),
        cmocka_unit_test(best_number_of_threads),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(overhead),
        cmocka_unit_test(default_size_and_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
