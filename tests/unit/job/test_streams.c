/* test_streams.c - the load of `bench --streams`, and what 8-bit keys and values cost in accuracy: Kullback-Leibler divergence from
 * the logits with a float32 cache, on the small model of the tree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "job/load.h"
#include "job/logits.h"
#include "job/streams.h"

static const char path[] = "models/pemberley-4m";

static void open_model(nb_loaded *l)
{
    const nb_model_opts mo = { 0 };
    nb_err err = { 0 };

    if (nb_load_store(l, path, NULL, &err) != NB_OK || nb_load_text(l, path, &err) != NB_OK || nb_load_model(l, &mo, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
}

static double log_sum(const float *x, size_t n)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* Mean over rows of KL(p || q). */
static double divergence(const float *p, const float *q, size_t rows, size_t vocab)
{
    double sum = 0;

    for (size_t r = 0; r < rows; r++, p += vocab, q += vocab) {
        const double lp = log_sum(p, vocab), lq = log_sum(q, vocab);
        for (size_t i = 0; i < vocab; i++)
            sum += exp((double)p[i] - lp) * (((double)p[i] - lp) - ((double)q[i] - lq));
    }
    return sum / (double)rows;
}

static void test_cache_types(void **state)
{
    static const char text[] = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
                               "of a wife. However little known the feelings or views of such a man may be on his first entering a "
                               "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered "
                               "as the rightful property of some one or other of their daughters.";
    static const nb_dtype types[] = { NB_DT_F32, NB_DT_F16, NB_DT_I8 };
    float *logits[3];
    double kl[3];
    nb_loaded l = { 0 };
    nb_ids ids = { 0 };
    size_t vocab;
    nb_err err = { 0 };

    (void)state;
    open_model(&l);
    vocab = nb_model_config(l.model)->vocab;
    assert_int_equal(nb_tokenizer_encode(l.tok, text, sizeof text - 1, true, false, &ids, &err), NB_OK);
    for (size_t i = 0; i < 3; i++) {
        logits[i] = nb_alloc_array(ids.n * vocab, sizeof **logits);
        if (nb_logits_run(l.model, NULL, types[i], NULL, ids.p, ids.n, logits[i], &err) != NB_OK)
            fail_msg("%s", err.what);
        kl[i] = divergence(logits[0], logits[i], ids.n, vocab);
    }
    print_message("%d tokens: KL from a float32 cache: f16 %.2e, q8 %.2e nats a token\n", (int)ids.n, kl[1], kl[2]);
    assert_true(ids.n > 60 && kl[0] < 1e-12 && kl[1] < 1e-5 && kl[2] < 1e-3);
    assert_true(kl[2] > kl[1]); /* or the 8 bits were not used */
    for (size_t i = 0; i < 3; i++)
        nb_free(logits[i]);
    nb_ids_clear(&ids);
    nb_load_close(&l);
}

static void test_load(void **state)
{
    nb_streams_opts o = { .streams = 4, .requests = 10, .prefix = 96, .prompt = 20, .decode = 6 };
    nb_loaded l = { 0 };
    nb_streams v;
    nb_err err = { 0 };

    (void)state;
    open_model(&l);
    if (nb_streams_run(l.model, &o, &v, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_true(v.cold.out_tok_s > 0 && v.cold.exec_s > 0 && v.cold.engine_s > 0 && v.warm.itl_p99 >= v.warm.itl_p50);
    assert_true(v.cold.hit_share > 0.7 && v.cold.hit_share < v.warm.hit_share && v.warm.hit_share <= 96.0 / 116);
    assert_true(v.cold.ttft_p99 >= v.cold.ttft_p50 && v.kv_bytes > 0 && v.warm.steps > 0 && v.warm.preemptions == 0);
    o.decode = 0;
    assert_int_equal(nb_streams_run(l.model, &o, &v, &err), NB_EARG);
    nb_load_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_types),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
