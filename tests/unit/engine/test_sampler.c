/* test_sampler.c - the sampler against a plain float64 reference that sorts everything, over random settings and ties. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { VOCAB = 97 };

static float value(uint64_t stream, uint64_t i)
{
    return (float)(nb_rng_normal(7, stream, i) * 3);
}

typedef struct ranked {
    double logit;
    int id;
} ranked;

static int by_rank(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;

    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->id - b->id;
}

/* Steps 6 to 12 of spec serving 5.2, one after another, each over the whole sorted list. */
static int reference(const float *logits, const nb_sampling *p, const int32_t *history, size_t n_history, uint64_t index)
{
    ranked r[VOCAB];
    double prob[VOCAB], total = 0, sum = 0, t = (double)p->temperature;
    size_t n = VOCAB, last;

    for (int i = 0; i < VOCAB; i++) {
        float x = logits[i];
        for (size_t h = 0; h < n_history; h++)
            if (history[h] == i) {
                x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
                break;
            }
        r[i] = (ranked){ (double)x, i };
    }
    qsort(r, VOCAB, sizeof *r, by_rank);
    if (p->temperature < 1e-5f)
        return r[0].id;
    t = p->temperature < 0.01f ? (double)0.01f : t;
    for (int i = 0; i < VOCAB; i++)
        r[i].logit = (double)((float)r[i].logit / (float)t);
    for (size_t i = 0; i < n; i++)
        prob[i] = exp(r[i].logit - r[0].logit);
    if (p->min_p > 0)
        while (n > 1 && (float)r[n - 1].logit < (float)r[0].logit + logf(p->min_p))
            n--;
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        size_t k = (size_t)p->top_k;
        while (k < n && r[k].logit == r[k - 1].logit)
            k++;
        n = k;
    }
    for (size_t i = 0; i < n; i++)
        total += prob[i];
    for (last = 0; last < n;) {
        sum += prob[last++];
        if (p->top_p < 1 && sum >= (double)p->top_p * total)
            break;
    }
    total = nb_rng_uniform(p->seed, 0, index) * sum;
    sum = 0;
    for (size_t i = 0; i < last; i++) {
        sum += prob[i];
        if (sum > total)
            return r[i].id;
    }
    return r[last - 1].id;
}

static void test_against_reference(void **state)
{
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    for (uint64_t round = 0; round < 4000; round++) {
        static const float temperatures[] = { 0, 1e-6f, 0.005f, 0.3f, 1, 1.7f };
        static const int top_ks[] = { 0, -1, 1, 2, 7, 40, 96, 97, 500 };
        static const float top_ps[] = { 1, 1e-6f, 0.1f, 0.5f, 0.9f, 0.999f };
        static const float min_ps[] = { 0, 1e-4f, 0.05f, 0.5f, 1 };
        static const float penalties[] = { 1, 1.3f, 0.7f };
        const nb_sampling p = { .temperature = temperatures[round % 6],
                                .top_k = top_ks[round / 6 % 9],
                                .top_p = top_ps[round / 54 % 6],
                                .min_p = min_ps[round / 3 % 5],
                                .repetition_penalty = penalties[round % 3],
                                .seed = round };
        float logits[VOCAB], copy[VOCAB];
        const int32_t history[] = { 5, 90, 5, (int32_t)(round % VOCAB) };
        int32_t id = -1;
        for (size_t i = 0; i < VOCAB; i++) {
            logits[i] = value(round, i);
            if (round % 4 == 0) /* many equal logits */
                logits[i] = rintf(logits[i]);
            if (round % 5 == 0 && i % 9 == 4)
                logits[i] = -INFINITY;
        }
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(nb_sampler_pick(s, copy, &p, history, NB_LEN(history), round * 3, &id, NULL), NB_OK);
        if (id != reference(logits, &p, history, NB_LEN(history), round * 3))
            fail_msg("round %d: got %d, want %d", (int)round, (int)id, reference(logits, &p, history, NB_LEN(history), round * 3));
    }
    nb_sampler_close(s);
}

/* The draw follows the distribution: 20000 draws of a known one, each count within five standard deviations. */
static void test_distribution(void **state)
{
    const double want[4] = { 0.5, 0.25, 0.15, 0.10 };
    const nb_sampling p = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 11 };
    int count[4] = { 0 };
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(4, &s, NULL), NB_OK);
    for (uint64_t i = 0; i < 20000; i++) {
        float logits[4];
        int32_t id;
        for (int v = 0; v < 4; v++)
            logits[v] = (float)log(want[v]);
        assert_int_equal(nb_sampler_pick(s, logits, &p, NULL, 0, i, &id, NULL), NB_OK);
        count[id]++;
    }
    for (int v = 0; v < 4; v++) {
        const double sd = sqrt(20000 * want[v] * (1 - want[v]));
        assert_true(fabs(count[v] - 20000 * want[v]) < 5 * sd);
    }
    nb_sampler_close(s);
}

static void test_bad_logits(void **state)
{
    static const struct {
        const char *label;
        float logits[3];
        nb_status want;
    } rows[] = {
        { "one NaN", { 1, NAN, 2 }, NB_ENUMERIC },
        { "all -inf", { -INFINITY, -INFINITY, -INFINITY }, NB_ENUMERIC },
        { "+inf", { 1, INFINITY, 2 }, NB_ENUMERIC },
        { "some -inf", { -INFINITY, 1, -INFINITY }, NB_OK },
    };
    const nb_sampling p = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(3, &s, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        float logits[3];
        int32_t id = -1;
        nb_err err = { 0 };
        memcpy(logits, rows[i].logits, sizeof logits);
        if (nb_sampler_pick(s, logits, &p, NULL, 0, 0, &id, &err) != rows[i].want)
            fail_msg("%s: %s", rows[i].label, err.what);
    }
    nb_sampler_close(s);
}

static void test_bad_settings(void **state)
{
    static const struct {
        const char *label;
        nb_sampling p;
    } rows[] = {
        { "negative temperature", { -1, 0, 1, 0, 1, 0 } },
        { "NaN temperature", { NAN, 0, 1, 0, 1, 0 } },
        { "top_p 0", { 1, 0, 0, 0, 1, 0 } },
        { "top_p above 1", { 1, 0, 1.5f, 0, 1, 0 } },
        { "min_p above 1", { 1, 0, 1, 2, 1, 0 } },
        { "top_k -2", { 1, -2, 1, 0, 1, 0 } },
        { "penalty 0", { 1, 0, 1, 0, 0, 0 } },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (nb_sampling_check(&rows[i].p, NULL) != NB_EARG)
            fail_msg("%s was accepted", rows[i].label);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
