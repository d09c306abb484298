/* pool.c - fork and join over long-lived threads: a generation counter starts a job, a pending counter ends it. */
#define _GNU_SOURCE /* syscall */
#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/thread.h"

#define SPIN_NS     30000
#define MAX_THREADS 1024
/* The generation word counts jobs in its upper bits and holds the number of threads of the job in the lower ones: a thread that was not
 * asked for reads nothing else of a job, which may be over by then. */
#define ASKED(word) ((int)((word)&0x7ff))
#define NEXT_JOB    0x800u

typedef struct {
    nb_pool *pool;
    pthread_t handle;
    int index;
} worker;

struct nb_pool {
    int n_threads;
    int n_started;
    worker *workers; /* [n_threads - 1] */

    /* The job. Written before `generation` rises, read after it was seen to rise. */
    nb_range_fn *fn;
    void *ctx;
    size_t n, grain; /* grain 0: static shares */
    _Atomic bool quit;
    _Atomic uint32_t limit; /* threads in use; futex of those beyond it */

    _Alignas(64) _Atomic uint32_t generation; /* futex of the workers */
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t pending; /* futex of the caller: workers still busy */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic size_t next; /* first item nobody has taken */
};

/* Index of this thread inside the running job, -1 outside: a nested call must run inline. */
static _Thread_local int inside = -1;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Spin until *word differs from `seen` (want_change) or equals it (!want_change); false when the time is over. */
static bool spin(_Atomic uint32_t *word, uint32_t seen, bool want_change)
{
    const int64_t end = now_ns() + SPIN_NS;

    do {
        for (int i = 0; i < 64; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) != seen) == want_change)
                return true;
            relax();
        }
    } while (now_ns() < end);
    return false;
}

static void in_pieces(nb_range_fn *fn, void *ctx, size_t n, size_t grain, int thread)
{
    for (size_t i = 0; i < n; i += n - i < grain ? n - i : grain)
        fn(ctx, i, n - i < grain ? n : i + grain, thread);
}

/* Share t of T of n items: floor(n * t / T) without overflow. */
static size_t share(size_t n, size_t t, size_t total)
{
    return n / total * t + n % total * t / total;
}

static void do_work(nb_pool *p, int thread)
{
    inside = thread;
    if (p->grain == 0) {
        const size_t begin = share(p->n, (size_t)thread, p->limit);
        const size_t end = share(p->n, (size_t)thread + 1, p->limit);
        if (begin < end)
            p->fn(p->ctx, begin, end, thread);
    } else {
        for (;;) { /* next stays below n + threads * grain, which start() keeps from wrapping */
            const size_t begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
            if (begin >= p->n)
                break;
            p->fn(p->ctx, begin, p->n - begin < p->grain ? p->n : begin + p->grain, thread);
        }
    }
    inside = -1;
}

/* Wait for the generation after `seen`. A worker that spun in vain twice in a row goes to sleep at once, until jobs
 * follow each other closely again. */
static void await_job(nb_pool *p, uint32_t seen, int *late)
{
    const int64_t begin = now_ns();

    if (*late < 2 && spin(&p->generation, seen, true)) {
        *late = 0;
        return;
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == seen)
        futex_wait(&p->generation, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    if (now_ns() - begin > 2 * SPIN_NS)
        *late += *late < 2;
    else
        *late = 0;
}

/* Until the pool uses thread `index` again, or ends. */
static void await_limit(nb_pool *p, int index)
{
    uint32_t limit;

    while ((uint32_t)index >= (limit = atomic_load(&p->limit)) && !atomic_load(&p->quit))
        futex_wait(&p->limit, limit);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    nb_pool *p = w->pool;
    uint32_t seen = 0;
    int late = 0;

    for (;;) {
        await_job(p, seen, &late);
        seen = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (atomic_load(&p->quit))
            return NULL;
        if (w->index >= ASKED(seen)) {
            await_limit(p, w->index);
            continue;
        }
        do_work(p, w->index);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->pending);
    }
}

/* Let the workers see the job fields. Only the caller's thread writes the word. */
static void announce(nb_pool *p)
{
    const uint32_t word = atomic_load_explicit(&p->generation, memory_order_relaxed);

    atomic_store(&p->generation, ((word & ~(NEXT_JOB - 1)) + NEXT_JOB) | p->limit);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->generation);
}

static void run(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx)
{
    uint32_t left;

    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->pending, p->limit - 1, memory_order_relaxed);
    announce(p);
    do_work(p, 0);
    if (spin(&p->pending, 0, false))
        return;
    atomic_store(&p->caller_sleeps, 1);
    while ((left = atomic_load(&p->pending)) != 0)
        futex_wait(&p->pending, left);
    atomic_store(&p->caller_sleeps, 0);
}

void nb_parallel_for(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx)
{
    if (n == 0)
        return;
    if (grain == 0)
        grain = 1;
    if (!p || p->limit == 1 || inside >= 0 || n <= grain || grain > SIZE_MAX / 2 / MAX_THREADS || n > SIZE_MAX / 2)
        in_pieces(fn, ctx, n, grain, inside >= 0 ? inside : 0);
    else
        run(p, n, grain, fn, ctx);
}

void nb_parallel_static(nb_pool *p, size_t n, nb_range_fn *fn, void *ctx)
{
    if (n == 0)
        return;
    if (!p || p->limit == 1 || inside >= 0)
        fn(ctx, 0, n, inside >= 0 ? inside : 0);
    else
        run(p, n, 0, fn, ctx);
}

nb_status nb_pool_open(nb_pool **out, int n_threads, nb_err *err)
{
    nb_pool *p = nb_alloc_aligned(64, sizeof *p);

    *out = NULL;
    if (!p)
        return nb_enomem(err, "the thread pool");
    if (n_threads <= 0)
        n_threads = nb_cpu_cores();
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    *p = (nb_pool){ .n_threads = n_threads, .limit = (uint32_t)n_threads };
    p->workers = nb_calloc((size_t)n_threads, sizeof *p->workers);
    if (!p->workers) {
        nb_pool_close(p);
        return nb_enomem(err, "the thread pool");
    }
    for (int i = 1; i < n_threads; i++) {
        worker *w = &p->workers[i - 1];
        *w = (worker){ .pool = p, .index = i };
        if (nb_thread_start(&w->handle, "nb-pool", worker_main, w) != 0) {
            nb_pool_close(p);
            return nb_fail(err, NB_ENOMEM, "mem.threads", "", "the system refused thread %d of %d; use fewer threads", i + 1, n_threads);
        }
        p->n_started++;
    }
    *out = p;
    return NB_OK;
}

void nb_pool_close(nb_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    nb_pool_limit(p, 0); /* wakes those beyond it */
    announce(p);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].handle, NULL);
    nb_free(p->workers);
    nb_free_aligned(p);
}

int nb_pool_threads(const nb_pool *p)
{
    return p ? p->n_threads : 1;
}

void nb_pool_limit(nb_pool *p, int n)
{
    const uint32_t limit = (uint32_t)(!p ? 1 : n < 1 || n > p->n_threads ? p->n_threads : n);

    if (p && limit != atomic_load_explicit(&p->limit, memory_order_relaxed)) {
        atomic_store(&p->limit, limit);
        futex_wake(&p->limit);
    }
}

/* Seconds of the fastest of a few calls, the first of which does not count. */
static double fastest(void (*step)(void *ctx), void *ctx)
{
    int64_t best = INT64_MAX;

    step(ctx);
    for (int i = 0; i < 4; i++) {
        const int64_t begin = now_ns();
        int64_t took;
        step(ctx);
        took = now_ns() - begin;
        best = took < best ? took : best;
    }
    return 1e-9 * (double)best;
}

int nb_pool_tune(nb_pool *p, void (*step)(void *ctx), void *ctx, double *all, double *best)
{
    const int n_threads = nb_pool_threads(p);
    int chosen = n_threads;
    double gain = 0.9; /* a tenth faster at least: fewer threads serve other work worse */

    nb_pool_limit(p, 0);
    *all = *best = fastest(step, ctx);
    for (int n = n_threads / 2; n > 0; n /= 2) {
        double t;
        nb_pool_limit(p, n);
        t = fastest(step, ctx);
        if (t < gain * *best) {
            *best = t;
            chosen = n;
            gain = 1;
        }
    }
    nb_pool_limit(p, 0);
    return chosen;
}
