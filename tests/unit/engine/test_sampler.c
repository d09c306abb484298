/* test_sampler.c - the sampler against a plain float64 reference that sorts everything, over random settings and ties. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/sampler.h"

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

/* Settings of one round and what surrounds the draw. */
typedef struct setup {
    nb_sampling p;
    int32_t ids[12];
    size_t n_prompt, n_ids, n_bias, n_words, n_stop, min_tokens;
    uint32_t mask[(VOCAB + 31) / 32], allowed[(VOCAB + 31) / 32];
    bool masked, restricted;
    nb_bias bias[3];
    nb_word words[2];
    int32_t stop[2];
    uint64_t choice;
} setup;

static bool bit(const uint32_t *bits, int i)
{
    return bits[i / 32] >> i % 32 & 1;
}

static bool is_bad(const setup *u, int id)
{
    for (size_t w = 0; w < u->n_words; w++) {
        const nb_word *word = &u->words[w];
        bool match = word->ids[word->n - 1] == id && u->n_ids - u->n_prompt >= word->n - 1;
        for (size_t i = 0; match && i + 1 < word->n; i++)
            match = u->ids[u->n_ids - (word->n - 1) + i] == word->ids[i];
        if (match)
            return true;
    }
    return false;
}

/* Steps 1 to 6 of spec serving 5.2 for one logit. */
static float adjusted(const setup *u, int id, float x)
{
    const nb_sampling *p = &u->p;
    int all = 0, drawn = 0;

    if (u->masked && !bit(u->mask, id))
        x = -INFINITY;
    if (u->restricted && !bit(u->allowed, id))
        x = -INFINITY;
    if (is_bad(u, id))
        x = -INFINITY;
    for (size_t i = 0; i < u->n_stop && u->n_ids - u->n_prompt < u->min_tokens; i++)
        if (u->stop[i] == id)
            x = -INFINITY;
    for (size_t i = 0; i < u->n_bias; i++)
        if (u->bias[i].id == id)
            x += u->bias[i].value > 100 ? 100 : u->bias[i].value < -100 ? -100 : u->bias[i].value;
    for (size_t i = 0; i < u->n_ids; i++) {
        all += u->ids[i] == id;
        drawn += i >= u->n_prompt && u->ids[i] == id;
    }
    if (all > 0 && p->repetition_penalty != 1)
        x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
    if (drawn > 0) {
        x -= p->frequency_penalty * (float)drawn;
        x -= p->presence_penalty;
    }
    return x;
}

/* Keep what is locally typical of r[n], in rank order. */
static size_t keep_typical(ranked *r, double *prob, size_t n, double typical_p)
{
    double total = 0, entropy = 0, sum = 0;
    bool keep[VOCAB] = { false };
    size_t m = 0;

    for (size_t i = 0; i < n; i++)
        total += prob[i];
    for (size_t i = 0; i < n; i++)
        entropy -= prob[i] > 0 ? prob[i] / total * log(prob[i] / total) : 0;
    while (sum < typical_p * total && m < n) {
        size_t best = VOCAB;
        float best_d = 0;
        for (size_t i = 0; i < n; i++) {
            const float d = prob[i] > 0 ? (float)fabs(-log(prob[i] / total) - entropy) : INFINITY;
            if (!keep[i] && (best == VOCAB || d < best_d)) {
                best = i;
                best_d = d;
            }
        }
        keep[best] = true;
        sum += prob[best];
        m++;
    }
    for (size_t i = m = 0; i < n; i++)
        if (keep[i]) {
            r[m] = r[i];
            prob[m++] = prob[i];
        }
    return m;
}

/* llama.cpp's order: top_k, typical, top_p, min_p at temperature 1, then the temperature, in f64. */
static int reference_late(ranked *r, const setup *u)
{
    const nb_sampling *p = &u->p;
    const float t = p->temperature < 0.01f ? 0.01f : p->temperature;
    double prob[VOCAB], total = 0, sum = 0;
    size_t n = 0, last = 0;

    while (n < VOCAB && r[n].logit > (double)-INFINITY)
        n++;
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        size_t k = (size_t)p->top_k;
        while (k < n && r[k].logit == r[k - 1].logit)
            k++;
        n = k;
    }
    for (size_t i = 0; i < n; i++)
        prob[i] = exp(r[i].logit - r[0].logit);
    if (p->typical_p > 0 && p->typical_p < 1)
        n = keep_typical(r, prob, n, (double)p->typical_p);
    for (size_t i = 0; i < n; i++)
        total += prob[i];
    while (last < n) {
        sum += prob[last++];
        if (p->top_p < 1 && sum >= (double)p->top_p * total)
            break;
    }
    while (last > 1 && prob[last - 1] < (double)p->min_p * prob[0])
        last--;
    total = 0;
    for (size_t i = 0; i < last; i++) {
        prob[i] = exp((double)((float)r[i].logit / t) - (double)((float)r[0].logit / t));
        total += prob[i];
    }
    total *= nb_rng_uniform(p->seed, 0, (u->n_ids - u->n_prompt) | u->choice << 32);
    sum = 0;
    for (size_t i = 0; i < last; i++) {
        sum += prob[i];
        if (sum > total)
            return r[i].id;
    }
    return r[last - 1].id;
}

/* Steps 7 to 12, one after another, each over the whole sorted list, in f64. */
static int reference(const float *logits, const setup *u)
{
    const nb_sampling *p = &u->p;
    ranked r[VOCAB];
    double prob[VOCAB], total = 0, sum = 0, t = (double)p->temperature;
    size_t n = 0, last;

    for (int i = 0; i < VOCAB; i++)
        r[i] = (ranked){ (double)adjusted(u, i, logits[i]), i };
    qsort(r, VOCAB, sizeof *r, by_rank);
    if (p->temperature < 1e-5f)
        return r[0].id;
    if (p->late_temperature && (p->top_k > 0 || p->min_p > 0 || p->top_p < 1 || (p->typical_p > 0 && p->typical_p < 1)))
        return reference_late(r, u);
    t = p->temperature < 0.01f ? (double)0.01f : t;
    for (int i = 0; i < VOCAB; i++) {
        r[i].logit = (double)((float)r[i].logit / (float)t);
        n += r[i].logit > (double)-INFINITY;
    }
    for (size_t i = 0; i < n; i++)
        prob[i] = exp(r[i].logit - r[0].logit);
    while (n > 1 && prob[n - 1] < (double)p->min_p)
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
    if (p->typical_p > 0 && p->typical_p < 1)
        last = keep_typical(r, prob, last, (double)p->typical_p);
    sum = 0;
    for (size_t i = 0; i < last; i++)
        sum += prob[i];
    total = nb_rng_uniform(p->seed, 0, (u->n_ids - u->n_prompt) | u->choice << 32) * sum;
    sum = 0;
    for (size_t i = 0; i < last; i++) {
        sum += prob[i];
        if (sum > total)
            return r[i].id;
    }
    return r[last - 1].id;
}

static nb_draw draw_of(const setup *u)
{
    return (nb_draw){ .p = &u->p,
                      .ids = u->ids,
                      .n_prompt = u->n_prompt,
                      .n_ids = u->n_ids,
                      .choice = u->choice,
                      .mask = u->masked ? u->mask : NULL,
                      .allowed = u->restricted ? u->allowed : NULL,
                      .bias = u->bias,
                      .n_bias = u->n_bias,
                      .bad_words = u->words,
                      .n_bad_words = u->n_words,
                      .stop_ids = u->stop,
                      .n_stop_ids = u->n_stop,
                      .min_tokens = u->min_tokens };
}

static void make_setup(setup *u, uint64_t round)
{
    static const float temperatures[] = { 0, 1e-6f, 0.005f, 0.3f, 1, 1.7f };
    static const int top_ks[] = { 0, -1, 1, 2, 7, 40, 96, 97, 500 };
    static const float top_ps[] = { 1, 1e-6f, 0.1f, 0.5f, 0.9f, 0.999f };
    static const float min_ps[] = { 0, 1e-4f, 0.05f, 0.5f, 1 };
    static const float penalties[] = { 1, 1.3f, 0.7f };
    static const int32_t word1[] = { 40, 41 }, word2[] = { 12 };

    memset(u, 0, sizeof *u);
    u->p = (nb_sampling){ .temperature = temperatures[round % 6],
                          .top_k = top_ks[round / 6 % 9],
                          .top_p = top_ps[round / 54 % 6],
                          .min_p = min_ps[round / 3 % 5],
                          .repetition_penalty = penalties[round % 3],
                          .seed = round,
                          .presence_penalty = round % 7 == 0 ? 0.8f : 0,
                          .frequency_penalty = round % 11 == 0 ? -0.6f : 0,
                          .typical_p = round % 8 == 0 ? 0.6f : 0,
                          .late_temperature = round / 54 % 4 == 3 };
    u->n_prompt = 3;
    u->n_ids = 3 + round % 10;
    u->choice = round % 3;
    for (size_t i = 0; i < NB_LEN(u->ids); i++)
        u->ids[i] = (int32_t)((round * 13 + i * i * 5) % VOCAB);
    u->masked = round % 9 == 0;
    u->restricted = round % 10 == 0;
    for (int i = 0; i < VOCAB; i++) {
        u->mask[i / 32] |= (uint32_t)((uint64_t)i * 7 % 5 != round % 5) << i % 32;
        u->allowed[i / 32] |= (uint32_t)(i % 3 != 1 || round % 20 == 0) << i % 32;
    }
    u->n_bias = round % 4;
    for (size_t i = 0; i < u->n_bias; i++)
        u->bias[i] = (nb_bias){ (int32_t)(round * (i + 1) % VOCAB), i == 2 ? -400.0f : 2.5f };
    if (u->n_bias == 2 && u->bias[0].id == u->bias[1].id)
        u->n_bias = 1;
    u->n_words = round % 6 ? 0 : 2;
    u->words[0] = (nb_word){ word1, 2 };
    u->words[1] = (nb_word){ word2, 1 };
    if (round % 12 == 0 && u->n_ids > u->n_prompt)
        u->ids[u->n_ids - 1] = 40;
    u->n_stop = 2;
    u->stop[0] = 5;
    u->stop[1] = (int32_t)(round % VOCAB);
    u->min_tokens = round % 5;
}

/* AT-6. */
static void test_against_reference(void **state)
{
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    for (uint64_t round = 0; round < 12000; round++) {
        setup u;
        float logits[VOCAB], copy[VOCAB];
        int32_t id = -1;
        make_setup(&u, round);
        const nb_draw d = draw_of(&u);
        for (size_t i = 0; i < VOCAB; i++) {
            logits[i] = value(round, i);
            if (round % 4 == 0) /* many equal logits */
                logits[i] = rintf(logits[i]);
            if (round % 5 == 0 && i % 9 == 4)
                logits[i] = -INFINITY;
        }
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(nb_sampler_pick(s, copy, &d, &id, NULL, NULL), NB_OK);
        if (id != reference(logits, &u))
            fail_msg("round %d: got %d, want %d", (int)round, (int)id, reference(logits, &u));
    }
    nb_sampler_close(s);
}

/* A vocabulary beyond every band and sort: the same as drawing from the list that qsort makes. */
static void test_large_vocabulary(void **state)
{
    enum { N = 20000 };
    static float logits[N], copy[N];
    static ranked r[N];
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(N, &s, NULL), NB_OK);
    for (uint64_t round = 0; round < 24; round++) {
        const nb_sampling p = { .temperature = round % 3 ? 1.0f : 8.0f,
                                .top_k = round % 4 == 3 ? 3000 : 0,
                                .top_p = round % 2 ? 0.97f : 1,
                                .repetition_penalty = 1,
                                .seed = round };
        const nb_draw d = { .p = &p };
        double total = 0, sum = 0, enough, want;
        size_t n = p.top_k ? (size_t)p.top_k : N, last = 0;
        int32_t id = -1;
        for (size_t i = 0; i < N; i++)
            logits[i] = rintf(value(round, i) * 256) / 256; /* ties */
        memcpy(copy, logits, sizeof copy);
        for (size_t i = 0; i < N; i++)
            r[i] = (ranked){ (double)(logits[i] / p.temperature), (int)i };
        qsort(r, N, sizeof *r, by_rank);
        while (n < N && r[n].logit == r[n - 1].logit)
            n++;
        for (size_t i = 0; i < n; i++)
            total += exp(r[i].logit - r[0].logit);
        enough = (double)p.top_p * total;
        while (last < n && (p.top_p == 1 || sum < enough))
            sum += exp(r[last++].logit - r[0].logit);
        want = nb_rng_uniform(round, 0, 0) * sum;
        sum = 0;
        for (last = 0; (sum += exp(r[last].logit - r[0].logit)) <= want;)
            last++;
        assert_int_equal(nb_sampler_pick(s, copy, &d, &id, NULL, NULL), NB_OK);
        if (id != r[last].id) /* sums in f32 weights may fall to the neighbour at a border */
            fail_msg("round %d: got %d, want %d", (int)round, (int)id, r[last].id);
    }
    nb_sampler_close(s);
}

/* SMP-8, SMP-9: of the row after the mask and before everything else. */
static void test_logprobs(void **state)
{
    const nb_sampling p = { .temperature = 0, .top_p = 1, .repetition_penalty = 1 };
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(VOCAB, &s, NULL), NB_OK);
    for (uint64_t round = 0; round < 300; round++) {
        const nb_bias bias = { (int32_t)(round % VOCAB), 90 };
        uint32_t mask[(VOCAB + 31) / 32];
        const unsigned top = (unsigned)(round % (NB_MAX_TOP + 1));
        const nb_draw d = { .p = &p, .bias = &bias, .n_bias = 1, .mask = round % 2 ? mask : NULL, .logprobs = true, .top = top };
        float logits[VOCAB], copy[VOCAB];
        ranked r[VOCAB];
        nb_logprob lp[1 + NB_MAX_TOP], again[1 + NB_MAX_TOP];
        double total = 0;
        int32_t id, named[NB_MAX_TOP];
        memset(mask, 0xff, sizeof mask);
        mask[1] = 0xfff0f0f0; /* the biased token may be forbidden: then it stays so */
        for (size_t i = 0; i < VOCAB; i++) {
            logits[i] = copy[i] = rintf(value(round, i) * 4) / 4;
            if (d.mask && !bit(mask, (int)i))
                logits[i] = -INFINITY;
            r[i] = (ranked){ (double)logits[i], (int)i };
            total += exp((double)logits[i]);
        }
        qsort(r, VOCAB, sizeof *r, by_rank);
        assert_int_equal(nb_sampler_pick(s, copy, &d, &id, lp, NULL), NB_OK);
        assert_int_equal(lp[0].id, id);
        for (size_t i = 0; i < 1 + top; i++) {
            const double x = (double)logits[lp[i].id], want = x > (double)-INFINITY ? x - log(total) : -9999;
            if (!(fabs((double)lp[i].logprob - want) < 2e-6 * (1 + fabs(want))))
                fail_msg("round %d: %g, want %g", (int)round, (double)lp[i].logprob, want);
            assert_int_equal(r[lp[i].rank - 1].id, lp[i].id);
            assert_true(i == 0 || lp[i].rank == i);
        }
        for (size_t i = 0; i < top; i++) /* the same by name, in any order of asking */
            named[i] = lp[1 + (i * 7 + 3) % top].id;
        if (top && top % 7) {
            assert_int_equal(nb_sampler_logprobs(s, logits, id, named, top, again, NULL), NB_OK);
            assert_memory_equal(lp, again, (1 + top) * sizeof *lp);
        }
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
        const nb_draw d = { .p = &p, .ids = NULL, .n_ids = (size_t)i };
        assert_int_equal(nb_sampler_pick(s, logits, &d, &id, NULL, NULL), NB_OK);
        count[id]++;
    }
    for (int v = 0; v < 4; v++) {
        const double sd = sqrt(20000 * want[v] * (1 - want[v]));
        assert_true(fabs(count[v] - 20000 * want[v]) < 5 * sd);
    }
    nb_sampler_close(s);
}

/* NU-11: settings at their ends over rows at their ends: something that can be drawn is drawn, log-probabilities are finite and sum to
 * 1; where only the likeliest can be drawn it is, the lowest id of equals. */
static void test_extremes(void **state)
{
    enum { N = NB_MAX_TOP };
    static const struct {
        const char *label;
        nb_sampling p;
        bool greedy; /* only the likeliest is left, of equals the first that the draw allows */
    } settings[] = {
        { "greedy", { .top_p = 1, .repetition_penalty = 1 }, true },
        { "temperature 1e-6", { .temperature = 1e-6f, .top_p = 1, .repetition_penalty = 1 }, true },
        { "temperature 2", { .temperature = 2, .top_p = 1, .repetition_penalty = 1 }, false },
        { "temperature 0.01", { .temperature = 0.01f, .top_p = 1, .repetition_penalty = 1 }, false },
        { "top_p 1e-9", { .temperature = 1, .top_p = 1e-9f, .repetition_penalty = 1 }, true },
        { "top_p 1e-9, hot", { .temperature = 2, .top_p = 1e-9f, .repetition_penalty = 1 }, true },
        { "top_k 1", { .temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1 }, false }, /* keeps ties */
        { "top_k 1, top_p 1e-9", { .temperature = 1, .top_k = 1, .top_p = 1e-9f, .repetition_penalty = 1 }, true },
        { "min_p 1", { .temperature = 1, .top_p = 1, .min_p = 1, .repetition_penalty = 1 }, false },
        { "typical 1e-9", { .temperature = 1, .top_p = 1, .typical_p = 1e-9f, .repetition_penalty = 1 }, false },
        { "all at once",
          { .temperature = 0.01f, .top_k = 1, .top_p = 1e-9f, .min_p = 1, .typical_p = 1e-9f, .repetition_penalty = 1 },
          false },
        { "late", { .temperature = 0.01f, .top_k = 5, .top_p = 0.9f, .repetition_penalty = 1, .late_temperature = true }, false },
        { "late, top_p 1e-9", { .temperature = 2, .top_p = 1e-9f, .repetition_penalty = 1, .late_temperature = true }, true },
        { "penalty 1e-38", { .temperature = 0.5f, .top_p = 1, .repetition_penalty = 1e-38f }, false },
        { "penalty 1e-38, top_p", { .temperature = 0.5f, .top_p = 0.9f, .repetition_penalty = 1e-38f }, false },
        { "penalty 1e6", { .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1e6f }, false },
    };
    static const char *const shapes[] = { "random", "ties", "all equal", "one huge", "all huge", "ends of f32", "one left" };
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(N, &s, NULL), NB_OK);
    for (size_t k = 0; k < NB_LEN(settings) * NB_LEN(shapes) * 20; k++) {
        const size_t set = k % NB_LEN(settings), shape = k / NB_LEN(settings) % NB_LEN(shapes), best = k % N;
        nb_sampling p = settings[set].p;
        const int32_t prompt[] = { (int32_t)best };
        const nb_draw d = { .p = &p, .ids = prompt, .n_ids = 1, .n_prompt = 1, .logprobs = true, .top = N };
        float logits[N], copy[N];
        nb_logprob lp[1 + NB_MAX_TOP];
        nb_err err = { 0 };
        double sum = 0;
        int32_t id = -1;

        p.seed = k;
        for (size_t i = 0; i < N; i++)
            logits[i] = copy[i] = shape == 0   ? value(k, i)
                                  : shape == 1 ? (float)(i % 3)
                                  : shape == 2 ? 1.0f
                                  : shape == 3 ? (i == best ? 3e38f : value(k, i))
                                  : shape == 4 ? 3e38f
                                  : shape == 5 ? (i == best ? 3.4e38f : -3.4e38f)
                                               : (i == best ? 0.9f : -INFINITY);
        if (nb_sampler_pick(s, copy, &d, &id, lp, &err) != NB_OK) {
            if (err.code == NB_ENUMERIC && p.repetition_penalty < 1) /* the penalty itself has left f32: the request ends */
                continue;
            fail_msg("%s, %s: %s", settings[set].label, shapes[shape], err.what);
        }
        if (id < 0 || id >= N || logits[id] == -INFINITY)
            fail_msg("%s, %s: drew %d", settings[set].label, shapes[shape], (int)id);
        if (settings[set].greedy)
            assert_int_equal(id, nb_argmax(logits, N));
        for (size_t i = 0; i <= N; i++) {
            if (!isfinite(lp[i].logprob) || lp[i].logprob > 0)
                fail_msg("%s, %s: log-probability %g", settings[set].label, shapes[shape], (double)lp[i].logprob);
            sum += i ? exp((double)lp[i].logprob) : 0;
        }
        if (fabs(sum - 1) > 1e-5)
            fail_msg("%s, %s: probabilities sum to %.9g", settings[set].label, shapes[shape], sum);
    }
    nb_sampler_close(s);
}

/* NU-09: masks that leave nothing end the draw, each by itself and together; the model is not to blame. */
static void test_nothing_left(void **state)
{
    static const struct {
        const char *label;
        uint32_t mask, allowed; /* bits of the three ids; 0: none given */
        size_t n_words, n_stop;
        nb_status want;
    } rows[] = {
        { "NU-09 mask and allowed ids exclude each other", 1, 2, 0, 0, NB_EINTERNAL },
        { "NU-09 all are bad words", 0, 0, 3, 0, NB_EINTERNAL },
        { "NU-09 the only allowed one is a bad word", 0, 1, 1, 0, NB_EINTERNAL },
        { "NU-09 the mask leaves a stop, which may not come yet", 4, 0, 0, 3, NB_EINTERNAL },
        { "NU-09 the mask leaves one that the model excludes", 8, 0, 0, 0, NB_EINTERNAL },
        { "one is left", 3, 2, 1, 0, NB_OK },
    };
    static const int32_t ids[] = { 0, 1, 2 };
    static const nb_word words[] = { { ids, 1 }, { ids + 1, 1 }, { ids + 2, 1 } };
    nb_sampler *s = NULL;

    (void)state;
    assert_int_equal(nb_sampler_open(4, &s, NULL), NB_OK);
    for (size_t i = 0; i < 3 * NB_LEN(rows); i++) {
        const size_t r = i / 3;
        const nb_sampling p = { .temperature = (float)(i % 3), .top_p = i % 3 == 2 ? 0.5f : 1, .repetition_penalty = 1 };
        const nb_draw d = { .p = &p,
                            .mask = rows[r].mask ? &rows[r].mask : NULL,
                            .allowed = rows[r].allowed ? &rows[r].allowed : NULL,
                            .bad_words = words,
                            .n_bad_words = rows[r].n_words,
                            .stop_ids = ids,
                            .n_stop_ids = rows[r].n_stop,
                            .min_tokens = 1 };
        float logits[4] = { 1, 2, 3, -INFINITY };
        int32_t id = -1;
        nb_err err = { 0 };

        if (nb_sampler_pick(s, logits, &d, &id, NULL, &err) != rows[r].want || id != (rows[r].want == NB_OK ? 1 : -1))
            fail_msg("%s: %s, drew %d", rows[r].label, err.what, (int)id);
        assert_string_equal(err.cls, rows[r].want == NB_OK ? "" : "sample.constraint");
    }
    nb_sampler_close(s);
}

/* NU-08: no number, nothing drawn. */
static void test_bad_logits(void **state)
{
    static const struct {
        const char *label;
        float logits[3];
        nb_status want;
    } rows[] = {
        { "NU-08 one NaN", { 1, NAN, 2 }, NB_ENUMERIC },
        { "NU-08 all -inf", { -INFINITY, -INFINITY, -INFINITY }, NB_ENUMERIC },
        { "NU-08 +inf", { 1, INFINITY, 2 }, NB_ENUMERIC },
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
        if (nb_sampler_pick(s, logits, &(nb_draw){ .p = &p }, &id, NULL, &err) != rows[i].want)
            fail_msg("%s: %s", rows[i].label, err.what);
        assert_int_equal(id, rows[i].want == NB_OK ? 1 : -1);
    }
    nb_sampler_close(s);
}

static void test_bad_settings(void **state)
{
    static const struct {
        const char *label;
        nb_sampling p;
    } rows[] = {
        { "negative temperature", { .temperature = -1, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1 } },
        { "NaN temperature", { .temperature = NAN, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 1 } },
        { "top_p 0", { .temperature = 1, .top_k = 0, .top_p = 0, .min_p = 0, .repetition_penalty = 1 } },
        { "top_p above 1", { .temperature = 1, .top_k = 0, .top_p = 1.5f, .min_p = 0, .repetition_penalty = 1 } },
        { "min_p above 1", { .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 2, .repetition_penalty = 1 } },
        { "top_k -2", { .temperature = 1, .top_k = -2, .top_p = 1, .min_p = 0, .repetition_penalty = 1 } },
        { "presence 3", { .top_p = 1, .repetition_penalty = 1, .presence_penalty = 3 } },
        { "frequency -3", { .top_p = 1, .repetition_penalty = 1, .frequency_penalty = -3 } },
        { "typical 2", { .top_p = 1, .repetition_penalty = 1, .typical_p = 2 } },
        { "penalty 0", { .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repetition_penalty = 0 } },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (nb_sampling_check(&rows[i].p, NULL) != NB_EARG)
            fail_msg("%s was accepted", rows[i].label);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference), cmocka_unit_test(test_large_vocabulary), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_distribution),      cmocka_unit_test(test_bad_logits),       cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_nothing_left),      cmocka_unit_test(test_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
