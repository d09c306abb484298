/* Memory of convert and check does not grow with the model: the peak of a process over a small and a larger one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/check.h"
#include "job/convert.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CHECKED 1
#endif
#endif

enum { N = 1024, K = 4096, G = 128, SMALL = 6, LARGE = 24, GROWTH_KB = 8 << 10 }; /* 2 MB of codes in a linear */

static char root[] = "/tmp/nibble-memory-XXXXXX";

static void must(nb_status rc, const nb_err *e)
{
    if (rc != NB_OK)
        fail_msg("%s: %s (%s)", e->cls, e->what, e->subject);
}

static void put(nb_sink *s, const char *name, uint64_t bytes, unsigned what)
{
    unsigned char *p = nb_alloc((size_t)bytes);
    nb_err e = { 0 };

    for (size_t i = 0; i < bytes / 4; i++) /* words of all codes; scales and the rest: halves */
        nb_put_le32(p + 4 * i, what == 'w' ? (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 7) : 0x38003800u);
    must(nb_sink_write(s, name, 0, p, bytes, &e), &e);
    nb_free(p);
}

static void make_model(const char *dir, unsigned linears)
{
    static const char config[] = "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,"
                                 "\"version\":\"gemm\"}}";
    const struct {
        const char *suffix;
        nb_dtype t;
        uint64_t shape[2];
        unsigned what;
    } parts[3] = { { "qweight", NB_DT_I32, { K, N / 8 }, 'w' },
                   { "qzeros", NB_DT_I32, { K / G, N / 8 }, 'w' },
                   { "scales", NB_DT_F16, { K / G, N }, 's' } };
    const uint64_t plain[2] = { 256 * (uint64_t)linears, K }; /* as many bytes as the codes */
    nb_outdir *out;
    nb_sink *s;
    nb_err e = { 0 };
    char name[64];

    must(nb_outdir_open(&out, dir, false, NULL, 0, &e), &e);
    must(nb_st_sink_open(&s, out, 0, &e), &e);
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned i = 0; i < 3 * linears; i++) {
            snprintf(name, sizeof name, "model.layers.%u.mlp.up_proj.%s", i / 3, parts[i % 3].suffix);
            if (pass == 0)
                must(nb_sink_declare(s, name, parts[i % 3].t, 2, parts[i % 3].shape, &e), &e);
            else
                put(s, name, parts[i % 3].shape[0] * parts[i % 3].shape[1] * nb_dtype_info(parts[i % 3].t)->bits / 8, parts[i % 3].what);
        }
        if (pass == 0) {
            must(nb_sink_declare(s, "model.embed_tokens.weight", NB_DT_F16, 2, plain, &e), &e);
            must(nb_sink_begin(s, &e), &e);
        }
    }
    put(s, "model.embed_tokens.weight", plain[0] * plain[1] * 2, 's');
    must(nb_sink_finish(s, &e), &e);
    nb_sink_close(s);
    must(nb_outdir_put(out, "config.json", config, strlen(config), &e), &e);
    must(nb_outdir_commit(out, &e), &e);
}

/* 0, or a number that says which step failed. */
static int work(const char *in, const char *out, const char *to)
{
    nb_convert_opts o = { 0 };
    nb_convert_sum sum;
    nb_check_opts c = { 0 };
    nb_check_sum found;
    nb_report *r;
    nb_pool *pool = NULL;
    nb_err e = { 0 };

    if (nb_pool_open(&pool, 2, &e) != NB_OK)
        return 1;
    o.pool = c.pool = pool;
    if (to) {
        if (nb_convert_target(to, &o, &e) != NB_OK || nb_convert(in, out, &o, &sum, &e) != NB_OK || !sum.verified) {
            fprintf(stderr, "%s: %s\n", e.cls, e.what);
            return 2;
        }
    } else {
        if (!(r = nb_report_new()))
            return 3;
        nb_check(in, &c, r, &found, &e); /* the config describes no architecture: findings are welcome */
        nb_report_free(r);
        if (found.n_linears == 0)
            return 4;
    }
    nb_pool_close(pool);
    return 0;
}

/* Peak of a process that does one thing, kB. */
static long peak(const char *in, const char *out, const char *to)
{
    struct rusage u;
    int status;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(work(in, out, to));
    assert_int_equal(wait4(child, &status, 0, &u), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    return u.ru_maxrss;
}

static void does_not_grow(void **state)
{
    static const char *const jobs[] = { "gptq", "compressed-tensors", "awq-gemv", NULL }; /* NULL: check */
    char in[2][64], out[64];

    (void)state;
#ifdef CHECKED
    print_message("skipped: a sanitizer's own memory is counted too\n");
    skip();
#endif
    for (int i = 0; i < 2; i++) {
        snprintf(in[i], sizeof in[i], "%s/in-%d", root, i);
        make_model(in[i], i ? LARGE : SMALL);
    }
    for (size_t j = 0; j < NB_LEN(jobs); j++) {
        long kb[2];
        for (int i = 0; i < 2; i++) {
            snprintf(out, sizeof out, "%s/out-%zu-%d", root, j, i);
            kb[i] = peak(in[i], out, jobs[j]);
        }
        if (kb[1] > kb[0] + GROWTH_KB)
            fail_msg("%s: %ld kB for %d MB, %ld kB for %d MB", jobs[j] ? jobs[j] : "check", kb[0], 4 * SMALL, kb[1], 4 * LARGE);
    }
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    char cmd[80];

    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(does_not_grow) };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
