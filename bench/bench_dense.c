/* bench_dense.c - float matrices, attention and elementwise kernels beside the limits of the same run.
 *
 *   nb_bench_dense [TABLE] [THREADS] [ROUNDS] [dense|attention|elementwise]
 *
 * Each JSON line is a median over rounds of a ratio: bytes per second over a plain read loop, or multiply-adds per second
 * over a loop of independent FMAs, the limit measured right before the kernel. Absolute figures depend on the machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kern/kern.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_ROUNDS = 101 };

static const nb_kern *kern;
static nb_pool *pool;
static int rounds = 7;

/* With one thread its own time, which others on the machine disturb less; else the clock on the wall. */
static double now(void)
{
    struct timespec t;

    clock_gettime(nb_pool_threads(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, (size_t)rounds, sizeof *v, by_value);
    return v[rounds / 2];
}

static void *get(size_t bytes)
{
    void *p = nb_huge_alloc(bytes);

    if (!p) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Floats around zero, spread over the buffer by threads, so that each touches what it will read. */
static void fill_some(void *ctx, size_t begin, size_t end, int thread)
{
    uint32_t *p = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const uint32_t r = (uint32_t)i * 2654435761u; /* both halves are small numbers in f16, bf16 and f32 */
        p[i] = (r & 0x807f807fu) | 0x3c003c00u;
    }
}

static void fill(void *p, size_t bytes)
{
    nb_parallel_static(pool, bytes / 4, fill_some, p);
}

/* ---- limits ---- */
typedef struct region {
    const unsigned char *p;
    uint64_t sums[64];
} region;

static void read_some(void *ctx, size_t begin, size_t end, int thread)
{
    region *r = ctx;

    r->sums[thread % 64] += kern->read_probe(r->p + begin * 4096, (end - begin) * 4096);
}

/* Bytes per second of reading p once. */
static double read_rate(const void *p, size_t bytes)
{
    region r = { .p = p };
    const double t = now();

    nb_parallel_static(pool, bytes / 4096, read_some, &r);
    return (double)(bytes / 4096 * 4096) / (now() - t);
}

#if defined(__x86_64__)
enum { CHAINS = 14, STEPS = 2000000 };

__attribute__((target("avx512f"))) static float fma_512(void)
{
    __m512 a[CHAINS];
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);

    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (int s = 0; s < STEPS; s++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, y);
    for (int i = 1; i < CHAINS; i++)
        a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx2,fma"))) static float fma_256(void)
{
    __m256 a[CHAINS];
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);

    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (int s = 0; s < STEPS; s++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 1; i < CHAINS; i++)
        a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_cvtss_f32(a[0]);
}

static void fma_some(void *ctx, size_t begin, size_t end, int thread)
{
    volatile float sink;

    (void)thread;
    for (size_t i = begin; i < end; i++)
        sink = *(const int *)ctx == 16 ? fma_512() : fma_256();
    (void)sink;
}

/* Multiply-adds per second of all threads; 0 where there is no such loop for the table. */
static double fma_rate(void)
{
    int lanes = kern->need & NB_CPU_AVX512 ? 16 : kern->need & NB_CPU_AVX2 ? 8 : 0;
    const size_t n = (size_t)nb_pool_threads(pool);
    const double t = now();

    if (lanes == 0)
        return 0;
    nb_parallel_static(pool, n, fma_some, &lanes);
    return (double)n * CHAINS * STEPS * lanes / (now() - t);
}
#else
static double fma_rate(void)
{
    return 0;
}
#endif

/* ---- dense ---- */
typedef struct product {
    nb_dense w;
    const float *x;
    float *y;
    size_t m;
} product;

static void product_some(void *ctx, size_t begin, size_t end, int thread)
{
    const product *p = ctx;

    (void)thread;
    kern->gemm_dense(&p->w, p->x, p->w.k, p->m, p->y, p->w.n, begin, end);
}

static void dense(nb_dtype t, size_t n, size_t k, size_t m, const char *what)
{
    double speed[MAX_ROUNDS], share[MAX_ROUNDS];
    product p = { .m = m };

    if (!nb_dense_layout(&p.w, n, k, t))
        exit(1);
    const size_t x_bytes = m * k * sizeof(float), y_bytes = m * p.w.n * sizeof(float);
    float *x = get(x_bytes);
    p.w.base = get(p.w.bytes);
    p.y = get(y_bytes);
    p.x = x;
    fill(p.w.base, p.w.bytes);
    fill(x, x_bytes);
    fill(p.y, y_bytes);
    for (int i = -1; i < rounds; i++) {
        const double limit = m == 1 ? read_rate(p.w.base, p.w.bytes) : fma_rate(), begin = now();
        if (m == 1)
            nb_parallel_static(pool, p.w.n_strips, product_some, &p);
        else
            nb_parallel_for(pool, p.w.n_strips, 1, product_some, &p);
        const double seconds = now() - begin, work = m == 1 ? (double)p.w.bytes : (double)m * (double)n * (double)k;
        if (i >= 0) {
            speed[i] = work / seconds * 1e-9;
            share[i] = limit > 0 ? work / seconds / limit : 0;
        }
    }
    printf(
        "{\"bench\":\"dense\",\"table\":\"%s\",\"threads\":%d,\"type\":\"%s\",\"n\":%zu,\"k\":%zu,\"m\":%zu,\"%s\":%.2f,\"share\":%.3f}\n",
        kern->name, nb_pool_threads(pool), nb_dtype_info(t)->name, n, k, m, what, median(speed), median(share));
    fflush(stdout);
    nb_huge_free(p.w.base, p.w.bytes);
    nb_huge_free(p.y, y_bytes);
    nb_huge_free(x, x_bytes);
}

/* ---- attention ---- */
typedef struct heads {
    nb_attn a;
    size_t n, head_bytes;
    float *scratch;
    size_t scratch_floats;
} heads;

static void heads_some(void *ctx, size_t begin, size_t end, int thread)
{
    const heads *h = ctx;

    for (size_t i = begin; i < end; i++) {
        nb_attn a = h->a;
        a.k += i * h->head_bytes;
        a.v += i * h->head_bytes;
        a.q += i * a.r * a.d;
        a.o += i * a.r * a.d;
        kern->attn(&a, h->scratch + (size_t)thread * h->scratch_floats);
    }
}

/* n kv heads of [page][d][32] and [page][32][d] side by side in each page, m tokens whose last is at `depth`. */
static void attention(size_t n, size_t d, size_t r, size_t m, size_t depth)
{
    double speed[MAX_ROUNDS], share[MAX_ROUNDS];
    const size_t n_pages = (depth + NB_PAGE - 1) / NB_PAGE, head_bytes = NB_PAGE * d * 2, bytes = n_pages * n * head_bytes;
    const size_t q_bytes = m * n * r * d * sizeof(float), scratch_floats = nb_attn_scratch(m, r, d);
    uint32_t *pages = get(n_pages * sizeof *pages);
    unsigned char *kv = get(2 * bytes);
    float *q = get(q_bytes), *o = get(q_bytes);
    heads h = { .n = n, .head_bytes = head_bytes, .scratch_floats = scratch_floats };

    for (size_t i = 0; i < n_pages; i++)
        pages[i] = (uint32_t)i;
    fill(kv, 2 * bytes);
    fill(q, q_bytes);
    h.scratch = get((size_t)nb_pool_threads(pool) * scratch_floats * sizeof(float));
    h.a = (nb_attn){ .q = q,
                     .o = o,
                     .ldq = n * r * d,
                     .ldo = n * r * d,
                     .m = m,
                     .r = r,
                     .d = d,
                     .pos = depth - m,
                     .scale = 1.0f / sqrtf((float)d),
                     .pages = pages,
                     .k = kv,
                     .v = kv + bytes,
                     .page_stride = n * head_bytes,
                     .kv_dtype = NB_DT_F16 };
    for (int i = -1; i < rounds; i++) {
        const double limit = m == 1 ? read_rate(kv, 2 * bytes) : fma_rate(), begin = now();
        nb_parallel_for(pool, n, 1, heads_some, &h);
        const double seconds = now() - begin, keys = (double)m * (double)(depth - m) + (double)m * (double)(m + 1) / 2;
        const double work = m == 1 ? 2.0 * (double)(n * depth * d * 2) : 2.0 * keys * (double)(n * r * d);
        if (i >= 0) {
            speed[i] = work / seconds * 1e-9;
            share[i] = limit > 0 ? work / seconds / limit : 0;
        }
    }
    printf("{\"bench\":\"attention\",\"table\":\"%s\",\"threads\":%d,\"kv_heads\":%zu,\"d\":%zu,\"r\":%zu,\"m\":%zu,\"depth\":%zu,"
           "\"%s\":%.2f,\"share\":%.3f}\n",
           kern->name, nb_pool_threads(pool), n, d, r, m, depth, m == 1 ? "gb_s" : "gmac_s", median(speed), median(share));
    fflush(stdout);
    nb_huge_free(h.scratch, (size_t)nb_pool_threads(pool) * scratch_floats * sizeof(float));
    nb_huge_free(pages, n_pages * sizeof *pages);
    nb_huge_free(kv, 2 * bytes);
    nb_huge_free(q, q_bytes);
    nb_huge_free(o, q_bytes);
}

/* ---- elementwise ---- */
enum { WIDTH = 2048, REPEAT = 2000 };

static void elementwise(const char *name, int which)
{
    static float x[WIDTH], y[WIDTH], w[WIDTH];
    double ns[MAX_ROUNDS];

    for (int i = 0; i < WIDTH; i++)
        x[i] = y[i] = w[i] = (float)(i % 17) * 0.1f - 0.8f;
    for (int i = -1; i < rounds; i++) {
        const double begin = now();
        for (int c = 0; c < REPEAT; c++)
            switch (which) {
            case 0:
                kern->rmsnorm(y, x, w, 0, 1e-5f, WIDTH);
                break;
            case 1:
                kern->layernorm(y, x, w, w, 1e-5f, WIDTH);
                break;
            case 2:
                kern->silu_mul(y, x, w, WIDTH);
                break;
            case 3:
                kern->gelu_erf_mul(y, x, w, WIDTH);
                break;
            case 4:
                kern->softcap(x, 30, WIDTH);
                break;
            case 5:
                for (int h = 0; h < WIDTH / 128; h++)
                    kern->rope_half(x + 128 * h, w, w + 64, 128);
                break;
            default:
                for (int h = 0; h < WIDTH / 128; h++)
                    kern->rope_pair(x + 128 * h, w, w + 64, 128);
                break;
            }
        if (i >= 0)
            ns[i] = (now() - begin) / REPEAT / WIDTH * 1e9;
    }
    printf("{\"bench\":\"elementwise\",\"table\":\"%s\",\"op\":\"%s\",\"n\":%d,\"ns_per_value\":%.3f}\n", kern->name, name, WIDTH,
           median(ns));
    fflush(stdout);
}

/* Everything named `only`, or everything. */
static void run(const char *only)
{
    static const char *const ops[] = { "rmsnorm", "layernorm", "silu", "gelu_erf", "softcap", "rope_half", "rope_pair" };

    if (!only || strcmp(only, "dense") == 0) {
        dense(NB_DT_BF16, 32768, 2048, 1, "gb_s");
        dense(NB_DT_F16, 32768, 2048, 1, "gb_s");
        dense(NB_DT_F32, 16384, 2048, 1, "gb_s");
        dense(NB_DT_BF16, 2048, 2048, 4, "gmac_s");
        dense(NB_DT_BF16, 2048, 2048, 16, "gmac_s");
        dense(NB_DT_BF16, 2048, 2048, 256, "gmac_s");
        dense(NB_DT_F32, 2048, 2048, 64, "gmac_s");
        dense(NB_DT_F32, 512, 4096, 1024, "gmac_s");
        dense(NB_DT_F32, 576, 576, 1024, "gmac_s");
    }
    if (!only || strcmp(only, "attention") == 0) {
        attention(64, 128, 4, 1, 4096);
        attention(64, 128, 1, 1, 4096);
        attention(64, 64, 4, 1, 4096);
        attention(128, 64, 3, 1, 4096);
        attention(128, 64, 8, 1, 4096);
        attention(4, 128, 4, 512, 512);
        attention(4, 64, 3, 512, 2048);
    }
    for (int i = 0; i < (int)NB_LEN(ops) && (!only || strcmp(only, "elementwise") == 0); i++)
        elementwise(ops[i], i);
}

int main(int argc, char **argv)
{
    const int threads = argc > 2 ? atoi(argv[2]) : 0;

    kern = argc > 1 ? nb_kern_find(argv[1]) : nb_kern_pick(nb_cpu_features());
    rounds = argc > 3 ? atoi(argv[3]) : rounds;
    if (!kern || (kern->need & ~nb_cpu_features()) || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr,
                "usage: nb_bench_dense [TABLE] [THREADS] [ROUNDS] [dense|attention|elementwise]; the table must exist and run here\n");
        return 2;
    }
    if (nb_pool_open(&pool, threads, NULL) != NB_OK)
        return 1;
    run(argc > 4 ? argv[4] : NULL);
    nb_pool_close(pool);
    return 0;
}
