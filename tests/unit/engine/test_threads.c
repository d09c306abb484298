/* test_threads.c - rows and draws split over threads: the same tokens and log-probabilities as without, and nothing for a race detector
 * to say. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

#include "engine/engine.h"

enum { N_ASK = 5, N_OUT = 12, CHOICES = 2 };

typedef struct answers {
    int32_t ids[N_ASK][CHOICES][N_OUT];
    nb_logprob lp[N_ASK][CHOICES][N_OUT][3];
} answers;

static void run(fixture *f, nb_pool *pool, answers *out)
{
    const nb_engine_opts o = { .pool = pool, .context = 128, .max_seqs = 8, .max_batched = 96, .n_pages = 24, .check = true };
    nb_engine *e = NULL;
    const nb_event *ev;
    nb_err err = { 0 };
    size_t n;

    memset(out, 0, sizeof *out);
    if (nb_engine_open(f->model, &o, &e, &err) != NB_OK)
        fix_fail("engine", &err);
    for (size_t i = 0; i < N_ASK; i++) {
        int32_t ids[60];
        uint64_t id;
        const nb_request r = { .ids = ids,
                               .n_ids = 20 + 10 * (i % 5),
                               .max_tokens = N_OUT,
                               .sampling = { .temperature = (float)(i % 3), .top_p = 0.9f, .repetition_penalty = 1, .seed = i },
                               .n = CHOICES,
                               .logprobs = true,
                               .top = 2 };
        for (size_t k = 0; k < NB_LEN(ids); k++)
            ids[k] = (int32_t)((k * 7 + (k > 32) * i) % MM_VOCAB);
        if (nb_engine_add(e, &r, &id, &err) != NB_OK)
            fix_fail("add", &err);
        assert_int_equal(id, i + 1);
    }
    while (!nb_engine_idle(e)) {
        if (nb_engine_step(e, &ev, &n, &err) != NB_OK)
            fix_fail("step", &err);
        for (size_t i = 0; i < n; i++)
            if (ev[i].kind == NB_EV_TOKEN) {
                out->ids[ev[i].request - 1][ev[i].choice][ev[i].index] = ev[i].id;
                memcpy(out->lp[ev[i].request - 1][ev[i].choice][ev[i].index], ev[i].logprob, sizeof out->lp[0][0][0]);
            }
    }
    nb_engine_close(e);
}

static void test_same_answers(void **state)
{
    static answers alone, split;
    memmodel mem;
    fixture f = { 0 };
    nb_pool *pool = NULL;

    (void)state;
    mm_open(&mem, MM_AWQ);
    f.store = mem.store;
    fix_bind(&f, mem.cfg, mem.qcfg, (fix_opts){ 0 });
    assert_int_equal(nb_pool_open(&pool, 3, NULL), NB_OK);
    run(&f, NULL, &alone);
    run(&f, pool, &split);
    assert_memory_equal(&alone, &split, sizeof alone);
    nb_pool_close(pool);
    f.store = NULL;
    fix_close(&f);
    mm_close(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_answers) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
