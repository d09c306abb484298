/* Logits of every recorded checkpoint of $NB_GOLDEN/layouts that is not to be refused: with exact float32
 * within 1e-3 of their standard deviation, by default within 5e-3. */
#include "unit/model/fixture.h"

#include <math.h>

/* Largest |difference| over the standard deviation of the recorded logits. */
static double distance(const float *got, const float *want, size_t n)
{
    double sum = 0, square = 0, worst = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        sum += want[i];
        square += (double)want[i] * want[i];
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst / sqrt(square / (double)n - sum * sum / ((double)n * (double)n));
}

/* Returns whether both are near enough. */
static bool check_dir(const char *root, const char *name)
{
    static const double most[2] = { 5e-3, 1e-3 };
    char path[2048];
    nb_store *rec = NULL;
    const nb_tensor *ids, *want;
    nb_err err = { 0 };
    double d[2];

    snprintf(path, sizeof path, "%s/golden/%s.safetensors", root, name);
    if (nb_open(path, &rec, &err) != NB_OK)
        fix_fail(path, &err);
    ids = nb_store_find(rec, "input_ids");
    want = nb_store_find(rec, "logits");
    assert_true(ids && want && ids->dtype == NB_DT_I32);
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (int exact = 0; exact < 2; exact++) {
        fixture f;
        int32_t in[64];
        const size_t T = (size_t)ids->shape[0];
        float *got, *all;
        fix_open(&f, path, (fix_opts){ .exact = exact != 0 });
        assert_true(T <= 64 && fix_vocab(&f) == want->shape[1]);
        memcpy(in, ids->data, T * sizeof *in);
        got = nb_alloc_array(T * fix_vocab(&f), sizeof *got);
        all = nb_alloc_array(T * fix_vocab(&f), sizeof *all);
        assert_int_equal(nb_store_read_f32(rec, want, 0, T * fix_vocab(&f), all, NULL), NB_OK);
        fix_run(&f, in, 0, T, got);
        d[exact] = distance(got, all, T * fix_vocab(&f));
        nb_free(got);
        nb_free(all);
        fix_close(&f);
    }
    print_message("%-36s %.1e, exact %.1e%s\n", name, d[0], d[1], d[0] <= most[0] && d[1] <= most[1] ? "" : " TOO FAR");
    nb_store_close(rec);
    return d[0] <= most[0] && d[1] <= most[1];
}

static void test_all(void **state)
{
    const char *golden = getenv("NB_GOLDEN");
    char root[400], line[1024];
    size_t n = 0, n_bad = 0;
    FILE *f;

    (void)state;
    snprintf(line, sizeof line, "%s/layouts/LAYOUTS.tsv", golden ? golden : "../shared/golden");
    snprintf(root, sizeof root, "%s/layouts", golden ? golden : "../shared/golden");
    f = fopen(line, "r");
    if (!f) {
        print_message("skipped: %s is absent\n", line);
        skip();
    }
    while (fgets(line, sizeof line, f)) {
        char *field[10] = { line };
        for (size_t i = 1; i < 10 && field[i - 1]; i++) {
            field[i] = strchr(field[i - 1], '\t');
            if (field[i])
                *field[i]++ = 0;
        }
        if (!field[9] || strcmp(line, "directory") == 0 || strcmp(field[9], "-") == 0 || strstr(line, "-refuse"))
            continue;
        n++;
        if (!check_dir(root, line))
            n_bad++;
    }
    fclose(f);
    assert_int_equal(n_bad, 0);
    assert_int_equal(n, 68);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
