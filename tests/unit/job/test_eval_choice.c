/* test_eval_choice.c - multiple choice against likelihoods of transformers, and broken lines. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "job/eval_choice.h"
#include "job/load.h"

static nb_pool *pool;
static nb_loaded l;

static int setup(void **state)
{
    const char *path = "models/pemberley-4m";
    nb_err err = { 0 };

    (void)state;
    if (nb_pool_open(&pool, 2, &err) != NB_OK)
        return -1;
    const nb_model_opts mo = { .pool = pool };
    if (nb_load_text(&l, path, &err) != NB_OK || nb_load_store(&l, path, NULL, &err) != NB_OK || nb_load_model(&l, &mo, &err) != NB_OK)
        fail_msg("%s", err.what);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nb_load_close(&l);
    nb_pool_close(pool);
    return 0;
}

/* Values of tests/data/eval/make.py. */
static void recorded(void **state)
{
    const nb_choice_opts co = { .prefix = -1 };
    const nb_eval_opts o = { .pool = pool, .resamples = 500, .seed = 1 };
    static const double first[] = { -31.37709675081128, -25.410652665480963, -42.30494678883418, -61.14220153040654 };
    nb_choiceset s;
    nb_choice_score c;
    nb_err err = { 0 };
    double sum = 0, *ll;

    (void)state;
    if (nb_choiceset_read(&s, l.tok, "tests/data/eval/choices.jsonl", &co, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_int_equal(s.n, 24);
    assert_int_equal(s.n_choices, 96);
    ll = nb_alloc_array(s.n_choices, sizeof *ll);
    if (nb_choice_run(l.model, &s, &o, ll, &err) != NB_OK)
        fail_msg("%s", err.what);
    for (size_t i = 0; i < s.n_choices; i++)
        sum += ll[i];
    for (size_t i = 0; i < 4; i++)
        assert_true(fabs(ll[i] - first[i]) < 1e-3);
    assert_true(fabs(sum + 5286.27923497376) < 0.05);
    assert_int_equal(nb_choice_sum(&s, ll, ll, &o, &c, &err), NB_OK);
    assert_true(fabs(c.acc.mean - 13.0 / 24) < 1e-12 && fabs(c.acc_norm.mean - 18.0 / 24) < 1e-12);
    assert_true(fabs(c.se - sqrt(13.0 / 24 * 11 / 24 / 23)) < 1e-12 && fabs(c.guess - 0.25) < 1e-12 && c.same == 1);
    assert_true(c.acc.lo < c.acc.mean && c.acc.hi > c.acc.mean);
    nb_free(ll);
    nb_choiceset_clear(&s);
}

/* The last ids stay when a question is longer than the context; its answer is scored in any case. */
static void too_long(void **state)
{
    const nb_choice_opts co = { .prefix = -1, .context = 6, .limit = 3 };
    nb_choiceset s;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_choiceset_read(&s, l.tok, "tests/data/eval/choices.jsonl", &co, &err), NB_OK);
    assert_int_equal(s.n, 3);
    for (size_t i = 0; i < s.n_choices; i++)
        assert_true(s.choice[i].n <= 7 && s.choice[i].first >= 1 && s.choice[i].first < s.choice[i].n);
    nb_choiceset_clear(&s);
}

static void lines(void **state)
{
    static const struct {
        const char *label, *line, *cls;
        nb_status want;
    } rows[] = {
        { "index", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":1}", "", NB_OK },
        { "letter", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"answer\":\"B\"}", "", NB_OK },
        { "label", "{\"question\":\"a\",\"choices\":{\"text\":[\"b\",\"c\"],\"label\":[\"1\",\"2\"]},\"answerKey\":\"2\"}", "", NB_OK },
        { "blank lines", "\n  \n{\"query\":\"a \",\"choices\":[\"b\",\"c\"],\"gold\":0}\n\n", "", NB_OK },
        { "not JSON", "query", "json.json", NB_EFORMAT },
        { "an array", "[]", "choice.line", NB_EFORMAT },
        { "no context", "{\"choices\":[\"b\",\"c\"],\"gold\":1}", "choice.line", NB_EFORMAT },
        { "one answer", "{\"query\":\"a\",\"choices\":[\"b\"],\"gold\":0}", "choice.line", NB_EFORMAT },
        { "an empty answer", "{\"query\":\"a\",\"choices\":[\"b\",\"\"],\"gold\":0}", "choice.line", NB_EFORMAT },
        { "a number for an answer", "{\"query\":\"a\",\"choices\":[\"b\",3],\"gold\":0}", "choice.line", NB_EFORMAT },
        { "no right answer", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"]}", "choice.line", NB_EFORMAT },
        { "an index too large", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":2}", "choice.line", NB_EFORMAT },
        { "below zero", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":-1}", "choice.line", NB_EFORMAT },
        { "an unknown letter", "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":\"C\"}", "choice.line", NB_EFORMAT },
        { "nothing", "", "choice.line", NB_EFORMAT },
    };
    char path[] = "/tmp/nibble-choice-XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_choice_opts co = { .prefix = -1 };
        nb_choiceset s;
        nb_err err = { 0 };
        FILE *f = fopen(path, "w");
        fputs(rows[i].line, f);
        fclose(f);
        const nb_status rc = nb_choiceset_read(&s, l.tok, path, &co, &err);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: %d %s %s", rows[i].label, rc, err.cls, err.what);
        nb_choiceset_clear(&s);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(recorded), cmocka_unit_test(too_long), cmocka_unit_test(lines) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
