/* test_host.c - log callbacks, the group of one, and what the processor and system tell. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/comm.h"
#include "base/cpu.h"
#include "base/log.h"

typedef struct {
    char line[64];
    nb_level level;
    uint64_t done;
    bool stop;
} seen;

static void on_log(void *user, nb_level level, const char *line)
{
    seen *s = user;

    strncpy(s->line, line, sizeof s->line - 1);
    s->level = level;
}

static void on_progress(void *user, const nb_progress *p)
{
    ((seen *)user)->done = p->done;
}

static bool on_cancelled(void *user)
{
    return ((seen *)user)->stop;
}

static void callbacks(void **state)
{
    seen s = { .stop = true };
    const nb_host h = { on_log, on_progress, on_cancelled, &s }, silent = { 0 };
    const nb_progress p = { .what = "x", .done = 3 };

    (void)state;
    nb_log(&h, NB_LOG_WARN, "%d of %s", 3, "four");
    assert_string_equal(s.line, "3 of four");
    assert_int_equal(s.level, NB_LOG_WARN);
    nb_report_progress(&h, &p);
    assert_true(s.done == 3);
    assert_true(nb_cancelled(&h));
    s.stop = false;
    assert_false(nb_cancelled(&h));
    nb_log(NULL, NB_LOG_WARN, "x");
    nb_log(&silent, NB_LOG_WARN, "x");
    nb_report_progress(NULL, &p);
    nb_report_progress(&silent, &p);
    assert_false(nb_cancelled(NULL));
    assert_false(nb_cancelled(&silent));
    assert_true(nb_now() <= nb_now());
}

static void group_of_one(void **state)
{
    nb_comm *c = nb_comm_self();
    float f[2] = { 1, 2 };
    double d[2] = { 3, 4 };
    char all[3] = "--";

    (void)state;
    assert_int_equal(c->rank, 0);
    assert_int_equal(c->size, 1);
    assert_int_equal(c->sum_f32(c, f, 2, NULL), NB_OK);
    assert_int_equal(c->sum_f64(c, d, 2, NULL), NB_OK);
    assert_true(f[0] == 1 && f[1] == 2 && d[0] == 3 && d[1] == 4);
    assert_int_equal(c->gather(c, "ab", all, 2, NULL), NB_OK);
    assert_string_equal(all, "ab");
    assert_int_equal(c->barrier(c, NULL), NB_OK);
}

static void processor(void **state)
{
    const unsigned f = nb_cpu_features();

    (void)state;
    assert_int_equal(f, nb_cpu_features());
#if defined(__x86_64__)
    assert_int_equal((f & NB_CPU_AVX2) != 0, __builtin_cpu_supports("avx2") != 0);
    assert_int_equal((f & NB_CPU_FMA) != 0, __builtin_cpu_supports("fma") != 0);
    assert_int_equal((f & NB_CPU_AVX512) != 0, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
    assert_int_equal((f & NB_CPU_AVX512_VNNI) != 0, __builtin_cpu_supports("avx512vnni") != 0);
    assert_int_equal((f & NB_CPU_AVX512_VBMI) != 0, __builtin_cpu_supports("avx512vbmi") != 0);
#endif
    assert_true(strlen(nb_cpu_name()) > 0);
    assert_true(nb_cpu_cores() >= 1);
    assert_true(nb_mem_total() > (size_t)64 << 20);
    assert_true(nb_rss_now() > 0 && nb_rss_peak() >= nb_rss_now() / 2 && nb_rss_now() < nb_mem_total());
    print_message("%s, family %d, %d cores, features %08x\n", nb_cpu_name(), nb_cpu_family(), nb_cpu_cores(), f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(callbacks), cmocka_unit_test(group_of_one), cmocka_unit_test(processor) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
