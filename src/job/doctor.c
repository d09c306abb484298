/* doctor.c - see doctor.h. */
#include "job/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"

enum { PROBE = 256 << 20, MAX_ROUNDS = 32, OUT_BYTES = 1 << 18, HUGE_BLOCK = 16 << 20, SMALL_PARTS = 210, SMALL_PART = 1 << 19 };

static const struct {
    unsigned bit;
    const char *name;
} features[] = {
    { NB_CPU_AVX2, "avx2" },
    { NB_CPU_FMA, "fma" },
    { NB_CPU_F16C, "f16c" },
    { NB_CPU_AVX_VNNI, "avx-vnni" },
    { NB_CPU_AVX512, "avx512" },
    { NB_CPU_AVX512_VNNI, "avx512-vnni" },
    { NB_CPU_AVX512_VBMI, "avx512-vbmi" },
    { NB_CPU_AVX512_BF16, "avx512-bf16" },
    { NB_CPU_AMX_INT8, "amx-int8" },
    { NB_CPU_NEON, "neon" },
    { NB_CPU_DOTPROD, "dotprod" },
    { NB_CPU_I8MM, "i8mm" },
};

static void name_features(unsigned bits, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < NB_LEN(features); i++)
        if ((bits & features[i].bit) && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? " " : "", features[i].name);
}

/* ---- bandwidth ---- */

typedef struct probe {
    const nb_kern *kern;
    unsigned char *p;
    uint64_t sum[256];
} probe;

static void touch(void *ctx, size_t begin, size_t end, int thread)
{
    (void)thread;
    memset((unsigned char *)ctx + begin, 1, end - begin);
}

static void read_range(void *ctx, size_t begin, size_t end, int thread)
{
    probe *r = ctx;

    begin &= ~(size_t)63;
    end &= ~(size_t)63;
    r->sum[thread & 255] += r->kern->read_probe(r->p + begin, end - begin);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

nb_status nb_read_bandwidth(const nb_kern *kern, nb_pool *pool, size_t bytes, int rounds, double *out, nb_err *err)
{
    const size_t n = bytes ? bytes & ~(size_t)63 : PROBE;
    probe r = { .kern = kern, .p = nb_huge_alloc(n) };
    double v[MAX_ROUNDS];

    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    if (!r.p)
        return nb_enomem(err, "the bytes to read");
    nb_parallel_static(pool, n, touch, r.p);
    for (int i = 0; i < rounds; i++) {
        const double t = nb_now();
        nb_parallel_static(pool, n, read_range, &r);
        v[i] = (double)n / (nb_now() - t);
    }
    qsort(v, (size_t)rounds, sizeof *v, by_value);
    *out = v[rounds / 2];
    nb_huge_free(r.p, n);
    return NB_OK;
}

/* ---- threads and pages ---- */

static void nothing(void *ctx, size_t begin, size_t end, int thread)
{
    (void)ctx;
    (void)begin;
    (void)end;
    (void)thread;
}

static double fork_time(nb_pool *pool)
{
    double v[64];

    for (size_t i = 0; i < NB_LEN(v); i++) {
        const double t = nb_now();
        nb_parallel_static(pool, 64, nothing, NULL);
        v[i] = 1e6 * (nb_now() - t);
    }
    qsort(v, NB_LEN(v), sizeof *v, by_value);
    return v[NB_LEN(v) / 2];
}

/* A step of a small model: its weights, read part after part, each by all threads. */
typedef struct small_step {
    probe r;
    nb_pool *pool;
} small_step;

static void read_parts(void *ctx)
{
    small_step *s = ctx;
    unsigned char *const first = s->r.p;

    for (size_t i = 0; i < SMALL_PARTS; i++) {
        s->r.p = first + i * SMALL_PART;
        nb_parallel_static(s->pool, SMALL_PART, read_range, &s->r);
    }
    s->r.p = first;
}

static nb_status small_model(nb_doctor *d, const nb_kern *kern, nb_pool *pool, nb_err *err)
{
    const size_t bytes = (size_t)SMALL_PARTS * SMALL_PART;
    small_step s = { .r = { .kern = kern, .p = nb_huge_alloc(bytes) }, .pool = pool };

    if (!s.r.p)
        return nb_enomem(err, "the bytes to read");
    nb_parallel_static(pool, bytes, touch, s.r.p);
    d->small_threads = nb_pool_tune(pool, read_parts, &s, &d->small_all_s, &d->small_s);
    nb_huge_free(s.r.p, bytes);
    return NB_OK;
}

/* The word in brackets of "always [madvise] never". */
static void huge_mode(char out[32])
{
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    char line[128] = "";
    const char *open, *end;

    out[0] = 0;
    if (!f)
        return;
    if (fgets(line, sizeof line, f) && (open = strchr(line, '[')) && (end = strchr(open, ']')))
        snprintf(out, 32, "%.*s", (int)(end - open - 1), open + 1);
    fclose(f);
}

/* "FROM-TO ", the head of a mapping in smaps. */
static bool mapping_range(const char *line, uint64_t *from, uint64_t *to)
{
    const char *end = nb_num_hex(line, UINT64_MAX, from);

    end = end && *end == '-' ? nb_num_hex(end + 1, UINT64_MAX, to) : NULL;
    return end && *end == ' ';
}

/* Huge pages of the mapping that holds p, in bytes. */
static size_t huge_bytes(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    static const char key[] = "AnonHugePages:";
    uint64_t from, to, kb;
    bool inside = false;
    size_t got = SIZE_MAX;

    while (f && fgets(line, sizeof line, f)) {
        if (mapping_range(line, &from, &to))
            inside = (uintptr_t)p >= from && (uintptr_t)p < to;
        else if (inside && strncmp(line, key, sizeof key - 1) == 0 &&
                 nb_num_u64(line + sizeof key - 1 + strspn(line + sizeof key - 1, " "), SIZE_MAX / 1024, &kb)) {
            got = (size_t)kb * 1024;
            break;
        }
    }
    if (f)
        fclose(f);
    return got;
}

static nb_status look_at_memory(nb_doctor *d, nb_err *err)
{
    unsigned char *p = nb_huge_alloc(HUGE_BLOCK);

    d->mem_total = nb_mem_total();
    d->mem_free = nb_mem_free();
    huge_mode(d->huge_mode);
    if (!p)
        return nb_enomem(err, "a block of 16 MB");
    memset(p, 1, HUGE_BLOCK);
    d->huge_asked = HUGE_BLOCK;
    d->huge_got = huge_bytes(p);
    nb_huge_free(p, HUGE_BLOCK);
    return NB_OK;
}

/* ---- bits ---- */

static const char *tier_of(size_t op, const nb_kern *kern)
{
    for (size_t i = nb_kern_count(); i-- > 0;) /* scalar is last */
        if (nb_doctor_op_same(op, nb_kern_at(i), kern))
            return nb_kern_at(i)->name;
    return kern->name;
}

static nb_status compare_table(nb_doctor *d, const nb_kern *t, nb_doctor_table *row, const nb_kern *kern, unsigned char *buf, nb_err *err)
{
    for (size_t i = 0; i < d->n_ops; i++) {
        memset(buf, 0, 2 * OUT_BYTES);
        const size_t n = nb_doctor_op_run(i, nb_kern_find("scalar"), buf, OUT_BYTES),
                     m = nb_doctor_op_run(i, t, buf + OUT_BYTES, OUT_BYTES);
        if (n == SIZE_MAX || m == SIZE_MAX)
            return nb_enomem(err, "the self-test");
        const bool same = n == m && memcmp(buf, buf + OUT_BYTES, n) == 0;
        row->agrees = row->agrees && same;
        if (t == kern)
            d->op[i].agrees = same;
    }
    d->bits_ok = d->bits_ok && row->agrees;
    return NB_OK;
}

static nb_status self_test(nb_doctor *d, const nb_kern *kern, const nb_host *host, nb_err *err)
{
    nb_progress at = { .what = "doctor", .unit = "kernel tables", .total = nb_kern_count() };
    const unsigned have = nb_cpu_features();
    unsigned char *buf = nb_alloc(2 * OUT_BYTES);
    nb_status rc = buf ? NB_OK : nb_enomem(err, "the self-test");

    d->bits_ok = true;
    d->n_ops = nb_doctor_ops();
    for (size_t i = 0; i < d->n_ops; i++)
        d->op[i] = (nb_doctor_op){ .name = nb_doctor_op_name(i), .tier = tier_of(i, kern) };
    for (size_t i = 0; rc == NB_OK && i < nb_kern_count() && i < NB_DOCTOR_TABLES; i++) {
        const nb_kern *t = nb_kern_at(i);
        nb_doctor_table *row = &d->table[d->n_tables++];
        *row = (nb_doctor_table){ .name = t->name, .runs = (t->need & ~have) == 0, .agrees = true };
        name_features(t->need & ~have, row->lacks, sizeof row->lacks);
        at.done = i;
        nb_report_progress(host, &at);
        if (nb_cancelled(host))
            rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at table %s", t->name);
        else if (row->runs)
            rc = compare_table(d, t, row, kern, buf, err);
    }
    nb_free(buf);
    return rc;
}

/* ---- advice ---- */

static char *next_advice(nb_doctor *d)
{
    return d->n_advice < NB_LEN(d->advice) ? d->advice[d->n_advice++] : NULL;
}

static void advise(nb_doctor *d, const nb_kern *kern)
{
    char *to;

    if (!d->bits_ok && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0], "kernels of this processor disagree with the scalar ones: run with --cpu scalar and report it");
    if (kern != nb_kern_pick(nb_cpu_features()) && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0], "--cpu holds back a better table: %s", nb_kern_pick(nb_cpu_features())->name);
    if (strcmp(d->huge_mode, "never") == 0 && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0],
                 "transparent huge pages are off; weights are read a few percent faster with them (echo madvise into "
                 "/sys/kernel/mm/transparent_hugepage/enabled)");
    if (d->threads < d->cores && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0], "%d of %d cores are used (--threads)", d->threads, d->cores);
    if (d->read_all < 1.05 * d->read_1 && d->threads > 1 && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0], "one thread already reads as fast as all: other programs may be running, or the memory is slow");
    if (d->fork_us > 200 && d->threads > 1 && (to = next_advice(d)))
        snprintf(to, sizeof d->advice[0], "threads wake slowly (%.0f us): other programs use the cores", d->fork_us);
}

nb_status nb_doctor_run(const nb_kern *kern, nb_pool *pool, const nb_host *host, nb_doctor *d, nb_err *err)
{
    nb_status rc;

    memset(d, 0, sizeof *d);
    d->cpu = nb_cpu_name();
    d->family = nb_cpu_family();
    d->cores = nb_cpu_cores();
    d->threads = nb_pool_threads(pool);
    d->chosen = kern->name;
    name_features(nb_cpu_features(), d->features, sizeof d->features);
    rc = self_test(d, kern, host, err);
    if (rc == NB_OK)
        rc = look_at_memory(d, err);
    if (rc == NB_OK)
        rc = nb_read_bandwidth(kern, NULL, 0, 5, &d->read_1, err);
    if (rc == NB_OK)
        rc = nb_read_bandwidth(kern, pool, 0, 5, &d->read_all, err);
    if (rc == NB_OK)
        rc = small_model(d, kern, pool, err);
    if (rc == NB_OK) {
        d->fork_us = fork_time(pool);
        advise(d, kern);
    }
    return rc;
}
