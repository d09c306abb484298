/* bench_kern.c - speed of the 4-bit and 8-bit kernels beside the limits of the machine, one JSON line each.
 *
 *   nb_bench_kern [threads [table [what]]]       what: a beginning of q4_stream_a16, q8_tiles_a8 and the like
 *
 * m = 1: bytes of weights per second over a plain read loop on the same bytes. m > 1: multiply-adds per second over the vpdpbusd
 * peak, or half of it with A16 activations, which need two byte products a weight. Both sides of a ratio run in turn in every round; the line
 * gives the median of the rounds' ratios, which holds on a machine that others use too. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "peak.h"

enum { ROUNDS = 7 };

typedef struct job {
    const nb_kern *kern;
    nb_pool *pool;
    nb_q4 w;
    nb_act a;
    nb_qlin hub;
    float *x, *y;
    unsigned bits; /* 4 or 8 */
    bool a8;       /* form of the activations */
    uint64_t peak_n;
    const char *what;
} job;

static void read_part(void *ctx, size_t begin, size_t end, int thread)
{
    const job *j = ctx;
    const size_t strip = j->w.n_groups * j->w.block_bytes;
    volatile uint64_t sum = j->kern->read_probe(j->w.base + begin * strip, (end - begin) * strip);

    (void)sum;
    (void)thread;
}

static void gemm_part(void *ctx, size_t begin, size_t end, int thread)
{
    const job *j = ctx;

    (void)thread;
    if (j->a8)
        (j->bits == 8 ? j->kern->gemm_q8_a8 : j->kern->gemm_q4_a8)(&j->w, &j->a, j->y, j->w.n, begin, end);
    else
        (j->bits == 8 ? j->kern->gemm_q8 : j->kern->gemm_q4)(&j->w, &j->a, j->y, j->w.n, begin, end);
}

static void pack_part(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    (void)thread;
    for (size_t s = begin; s < end; s++)
        (j->bits == 8 ? j->kern->pack_q8 : j->kern->pack_q4)(&j->w, 0, s * NB_STRIP, &j->hub, NULL);
}

static void peak_part(void *ctx, size_t begin, size_t end, int thread)
{
    const job *j = ctx;

    (void)thread;
    (void)j;
    for (size_t i = begin; i < end; i++) {
#ifdef NB_HAVE_AVX512VNNI
        nb_peak_vnni(j->peak_n);
#endif
    }
}

/* Seconds of one pass over all strips: the best of a few, since the rest is other people's work. */
static double pass(job *j, size_t n, nb_range_fn *fn, int tries)
{
    double best = 1e30;

    for (int i = 0; i < tries; i++) {
        const double t = nb_now();
        nb_parallel_static(j->pool, n, fn, j);
        const double took = nb_now() - t;
        best = took < best ? took : best;
    }
    return best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof *v, by_value);
    return v[ROUNDS / 2];
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_kern: out of memory\n");
        exit(9);
    }
    return p;
}

/* A matrix of about `bytes`, packed from one stripe of pseudo-random codes, and activations of m tokens. */
static void setup(job *j, size_t bytes, size_t k, size_t g, size_t m)
{
    const size_t n = (bytes * 8 / j->bits / k + NB_STRIP - 1) / NB_STRIP * NB_STRIP;
    uint32_t s = 1;

    if (!(j->bits == 8 ? nb_q8_layout : nb_q4_layout)(&j->w, n, k, g, false) ||
        nb_qlin_init(&j->hub, NB_STRIP, k, g, j->bits, NULL) != NB_OK)
        must(NULL);
    for (size_t i = 0; i < NB_STRIP * k; i++)
        j->hub.codes[i] = (uint8_t)((s = s * 1664525u + 1013904223u) >> (32 - j->bits));
    for (size_t i = 0; i < NB_STRIP * j->hub.n_groups; i++) {
        j->hub.scales[i] = 0.0078125f;
        j->hub.zeros[i] = (uint8_t)(i % 16);
    }
    j->w.base = must(nb_huge_alloc(j->w.bytes));
    nb_parallel_static(j->pool, j->w.n_strips, pack_part, j); /* first touch by the thread that reads it */
    j->x = must(nb_alloc_array(m * k, sizeof *j->x));
    for (size_t i = 0; i < m * k; i++)
        j->x[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
    j->y = must(nb_alloc_array(m * n, sizeof *j->y));
    memset(j->y, 0, m * n * sizeof *j->y);
    (j->a8 ? nb_act_place_a8 : nb_act_place)(&j->a, must(nb_alloc_aligned(64, nb_act_bytes(m, k, j->w.g))), m, k, j->w.g);
    (j->a8 ? j->kern->act_a8 : j->kern->act_a16)(&j->a, j->x, k, 0, m, NULL);
}

static void teardown(job *j)
{
    nb_huge_free(j->w.base, j->w.bytes);
    nb_free_aligned(j->a.hi);
    nb_free(j->x);
    nb_free(j->y);
    nb_qlin_clear(&j->hub);
}

/* Bytes of weights that no cache holds: at least 96 MB, and twice the last level where that is known. Scalar code would take minutes. */
static size_t past_caches(const job *j)
{
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long last = sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
    const long last = 0;
#endif
    const size_t least = 96u << 20;

    if (!j->kern->need)
        return 1u << 20;
    return last > 0 && 2 * (size_t)last > least ? 2 * (size_t)last : least;
}

/* Is this one of those asked for? */
static bool wanted(const job *j, const char *kind)
{
    char name[32];

    snprintf(name, sizeof name, "q%u_%s_%s", j->bits, kind, j->a8 ? "a8" : "a16");
    return strncmp(name, j->what, strlen(j->what)) == 0;
}

static void bench_stream(job *j, size_t k, size_t g, size_t m)
{
    if (!wanted(j, "stream"))
        return;
    double ratio[ROUNDS], rate[ROUNDS], read[ROUNDS];

    setup(j, past_caches(j), k, g, m);
    const double bytes = (double)(j->w.n_strips * j->w.n_groups * j->w.block_bytes);
    for (int r = 0; r < ROUNDS; r++) {
        const double t_read = pass(j, j->w.n_strips, read_part, 3), t_gemm = pass(j, j->w.n_strips, gemm_part, 3);
        ratio[r] = t_read / t_gemm;
        rate[r] = bytes / t_gemm / 1e9;
        read[r] = bytes / t_read / 1e9;
    }
    printf("{\"bench\":\"q%u_stream\",\"act\":\"%s\",\"table\":\"%s\",\"threads\":%d,\"m\":%zu,\"k\":%zu,\"g\":%zu,\"gb_s\":%.2f,\"read_gb_"
           "s\":%.2f,"
           "\"of_read\":%.3f}\n",
           j->bits, j->a8 ? "a8" : "a16", j->kern->name, nb_pool_threads(j->pool), m, k, g, median(rate), median(read), median(ratio));
    fflush(stdout);
    teardown(j);
}

static void bench_tiles(job *j, size_t k, size_t g, size_t m, bool vnni)
{
    if (!wanted(j, "tiles"))
        return;
    double ratio[ROUNDS], rate[ROUNDS], top[ROUNDS];
    const size_t threads = (size_t)nb_pool_threads(j->pool);

    setup(j, j->kern->need ? 1u << 20 : 1u << 16, k, g, m);
    const double macs = (double)j->w.n * (double)k * (double)m;
    j->peak_n = (uint64_t)(macs / 512 / (double)threads) + 1; /* about as long as the product */
    for (int r = 0; r < ROUNDS; r++) {
        const double t_peak = pass(j, threads, peak_part, 2), t_gemm = pass(j, j->w.n_strips, gemm_part, 2);
        rate[r] = macs / t_gemm / 1e9;
        top[r] = (double)(j->peak_n * 1024 * threads) / t_peak / 1e9;
        ratio[r] = rate[r] / (j->a8 ? top[r] : top[r] / 2);
    }
    printf("{\"bench\":\"q%u_tiles\",\"act\":\"%s\",\"table\":\"%s\",\"threads\":%zu,\"m\":%zu,\"k\":%zu,\"g\":%zu,\"gmac_s\":%.1f",
           j->bits, j->a8 ? "a8" : "a16", j->kern->name, threads, m, k, g, median(rate));
    if (vnni)
        printf(",\"vpdpbusd_gmac_s\":%.1f,\"of_%s\":%.3f", median(top), j->a8 ? "peak" : "half_peak", median(ratio));
    printf("}\n");
    fflush(stdout);
    teardown(j);
}

/* One thread: packing from hub rows, in bytes of 4-bit data; quantizing one token of 2048 inputs. */
static void bench_pack_and_act(job *j)
{
    double gb[ROUNDS], us[ROUNDS];

    setup(j, 4u << 20, 2048, 128, 1);
    for (int r = 0; r < ROUNDS; r++) {
        double t = nb_now();
        pack_part(j, 0, j->w.n_strips, 0);
        gb[r] = (double)(j->w.n * j->w.k) / 2 / (nb_now() - t) / 1e9;
        t = nb_now();
        for (int i = 0; i < 1000; i++)
            j->kern->act_a16(&j->a, j->x, 2048, 0, 1, NULL);
        us[r] = (nb_now() - t) * 1e3;
    }
    printf("{\"bench\":\"q4_pack\",\"table\":\"%s\",\"threads\":1,\"gb_s\":%.2f}\n", j->kern->name, median(gb));
    printf("{\"bench\":\"act_a16\",\"table\":\"%s\",\"threads\":1,\"k\":2048,\"us\":%.2f}\n", j->kern->name, median(us));
    fflush(stdout);
    teardown(j);
}

int main(int argc, char **argv)
{
    static const struct {
        size_t k, g;
    } streams[] = { { 2048, 128 }, { 8192, 128 }, { 4096, 64 }, { 4096, 32 }, { 2048, 2048 } };
    static const struct {
        size_t m, g;
    } tiles[] = { { 16, 128 }, { 64, 128 }, { 512, 128 }, { 512, 64 }, { 512, 32 } };
    static const size_t few[] = { 2, 3, 4, 8 };
    const unsigned have = nb_cpu_features();
    const bool vnni = have & NB_CPU_AVX512_VNNI;
    job j = { .what = argc > 3 ? argv[3] : "", .kern = argc > 2 ? nb_kern_find(argv[2]) : nb_kern_pick(have) };

    if (!j.kern || (j.kern->need & ~have)) {
        fprintf(stderr, "bench_kern: no such table here\n");
        return 2;
    }
    if (nb_pool_open(&j.pool, argc > 1 ? atoi(argv[1]) : 0, NULL) != NB_OK)
        must(NULL);
    for (int i = 0; i < 4; i++) {
        j.bits = i / 2 ? 8 : 4;
        j.a8 = i % 2;
        for (size_t c = 0; c < NB_LEN(streams); c++)
            bench_stream(&j, streams[c].k, streams[c].g, 1);
        for (size_t c = 0; c < NB_LEN(few); c++)
            bench_stream(&j, 2048, 128, few[c]);
        for (size_t c = 0; c < NB_LEN(tiles); c++)
            bench_tiles(&j, 2048, tiles[c].g, tiles[c].m, vnni);
    }
    j.bits = 4;
    j.a8 = false;
    if (!j.what[0])
        bench_pack_and_act(&j);
    nb_pool_close(j.pool);
    return 0;
}
