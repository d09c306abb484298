/* eval --dump: shapes and values against the recorded pass of a tiny model, several sequences, refused ids. */
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
#include "job/dump.h"
#include "job/load.h"

static char scratch[] = "/tmp/nb_dump_XXXXXX";

static const char *in_scratch(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", scratch, name);
    return out;
}

/* A safetensors file with the given tensors of one type. */
static void write_ids(const char *path, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, const void *data, size_t bytes)
{
    nb_sink *s;
    nb_err err = { 0 };

    if (nb_st_sink_file(&s, path, true, &err) != NB_OK || nb_sink_declare(s, name, t, rank, shape, &err) != NB_OK ||
        nb_sink_begin(s, &err) != NB_OK || nb_sink_write(s, name, 0, data, bytes, &err) != NB_OK || nb_sink_finish(s, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    nb_sink_close(s);
}

static nb_model *open_model(nb_loaded *l, const char *name)
{
    const nb_model_opts mo = { 0 };
    char path[128];
    nb_err err = { 0 };

    snprintf(path, sizeof path, "tests/data/models/%s", name);
    if (nb_load_store(l, path, NULL, &err) != NB_OK || nb_load_model(l, &mo, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    return l->model;
}

/* The last rows of `name` in a against all of `want` in b. */
static void compare(nb_store *a, nb_store *b, const char *name, const char *want)
{
    const nb_tensor *x = nb_store_find(a, name), *y = nb_store_find(b, want);
    uint64_t nx, ny;
    float *p, *q;

    assert_non_null(x);
    assert_non_null(y);
    nb_shape_count(x->shape, x->rank, &nx);
    nb_shape_count(y->shape, y->rank, &ny);
    assert_true(nx >= ny && x->dtype == NB_DT_F32 && x->shape[x->rank - 1] == y->shape[y->rank - 1]);
    p = nb_alloc_array(ny, sizeof *p);
    q = nb_alloc_array(ny, sizeof *q);
    assert_int_equal(nb_store_read_f32(a, x, nx - ny, ny, p, NULL), NB_OK);
    assert_int_equal(nb_store_read_f32(b, y, 0, ny, q, NULL), NB_OK);
    for (uint64_t i = 0; i < ny; i++)
        if (!(fabsf(p[i] - q[i]) <= 2e-4f + 2e-4f * fabsf(q[i])))
            fail_msg("%s: value %d is %g, expected %g", name, (int)i, (double)p[i], (double)q[i]);
    nb_free(p);
    nb_free(q);
}

static void golden_pass(void **state)
{
    char out[256];
    const nb_dump_opts o = { .ids = "tests/data/models/llama-dynamic/golden.safetensors:input_ids",
                             .out = in_scratch(out, "golden.safetensors"),
                             .hidden = true,
                             .greedy = 16 };
    nb_loaded l = { 0 };
    nb_dump_info info;
    nb_store *got = NULL, *want = NULL;
    nb_err err = { 0 };

    (void)state;
    if (nb_dump_run(open_model(&l, "llama-dynamic"), &o, &info, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_true(info.rows == 1 && info.tokens == 40 && info.vocab == 96);
    assert_int_equal(nb_st_open(o.out, &got, NULL), NB_OK);
    assert_int_equal(nb_st_open("tests/data/models/llama-dynamic/golden.safetensors", &want, NULL), NB_OK);
    assert_int_equal(got->n_tensors, 2 + 2 + 2); /* logits, greedy, embed, final, two layers */
    compare(got, want, "logits", "logits");
    assert_int_equal(nb_store_find(got, "logits")->rank, 2);
    assert_memory_equal(nb_store_find(got, "greedy")->data, nb_store_find(want, "greedy")->data, 16 * 8);
    nb_store_close(want);
    nb_store_close(got);

    /* it is there now */
    assert_int_equal(nb_dump_run(l.model, &o, &info, &err), NB_EEXISTS);
    nb_load_close(&l);
}

/* Hidden states: recorded in the base directory. Two sequences at once, as I32. */
static void rows_of_ids(void **state)
{
    char ids[256], out[256];
    const nb_dump_opts o = {
        .ids = in_scratch(ids, "rows.safetensors"), .out = in_scratch(out, "rows_out.safetensors"), .hidden = true, .greedy = 3
    };
    const uint64_t shape[2] = { 2, 40 };
    int32_t both[80];
    nb_store *got = NULL, *want = NULL;
    nb_loaded l = { 0 };
    nb_dump_info info;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_st_open("tests/data/models/llama/golden.safetensors", &want, NULL), NB_OK);
    for (size_t i = 0; i < 80; i++) {
        int64_t id;
        memcpy(&id, nb_store_find(want, "input_ids")->data + 8 * (i % 40), 8);
        both[i] = i < 40 ? (int32_t)(95 - id) : (int32_t)id; /* the second is the recorded one */
    }
    write_ids(o.ids, "only", NB_DT_I32, 2, shape, both, sizeof both);
    if (nb_dump_run(open_model(&l, "llama"), &o, &info, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_int_equal(nb_st_open(o.out, &got, NULL), NB_OK);
    assert_true(nb_store_find(got, "logits")->rank == 3 && nb_store_find(got, "logits")->shape[0] == 2);
    assert_true(nb_store_find(got, "greedy")->rank == 2 && nb_store_find(got, "greedy")->shape[1] == 3);
    compare(got, want, "logits", "logits");
    compare(got, want, "hidden.embed", "hidden.embed");
    compare(got, want, "hidden.layer0", "hidden.layer0");
    compare(got, want, "hidden.layer1", "hidden.layer1");
    compare(got, want, "hidden.final", "hidden.final");
    assert_memory_equal(nb_store_find(got, "greedy")->data + 24, nb_store_find(want, "greedy")->data, 24);
    nb_store_close(got);
    nb_store_close(want);
    nb_load_close(&l);
}

static void refused(void **state)
{
    static const struct {
        const char *label, *name;
        nb_dtype type;
        unsigned rank;
        uint64_t shape[3];
        int32_t first;
        const char *suffix, *cls;
    } rows[] = {
        { "id past the vocabulary", "input_ids", NB_DT_I32, 1, { 4 }, 96, "", "ids.token" },
        { "negative id", "input_ids", NB_DT_I32, 1, { 4 }, -1, "", "ids.token" },
        { "floats", "input_ids", NB_DT_F32, 1, { 4 }, 0, "", "ids.shape" },
        { "rank 3", "input_ids", NB_DT_I32, 3, { 1, 2, 2 }, 0, "", "ids.shape" },
        { "no such tensor", "input_ids", NB_DT_I32, 1, { 4 }, 0, ":other", "ids.tensor" },
    };
    nb_loaded l = { 0 };
    nb_model *m = open_model(&l, "llama");

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char path[256], spec[300], out[256];
        const int32_t ids[4] = { rows[i].first };
        nb_dump_opts o = { .ids = spec, .out = in_scratch(out, "refused.safetensors") };
        nb_dump_info info;
        nb_err err = { 0 };

        write_ids(in_scratch(path, "bad.safetensors"), rows[i].name, rows[i].type, rows[i].rank, rows[i].shape, ids, sizeof ids);
        snprintf(spec, sizeof spec, "%s%s", path, rows[i].suffix);
        if (nb_dump_run(m, &o, &info, &err) != NB_EFORMAT || strcmp(err.cls, rows[i].cls) != 0)
            fail_msg("%s: got %s (%s)", rows[i].label, err.cls, err.what);
        if (access(out, F_OK) == 0)
            fail_msg("%s: a file was left", rows[i].label);
    }
    nb_load_close(&l);
}

static int clean(void **state)
{
    static const char *const names[] = { "golden.safetensors", "rows.safetensors", "rows_out.safetensors", "bad.safetensors" };
    char path[256];

    (void)state;
    for (size_t i = 0; i < NB_LEN(names); i++)
        unlink(in_scratch(path, names[i]));
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_pass),
        cmocka_unit_test(rows_of_ids),
        cmocka_unit_test(refused),
    };

    if (!mkdtemp(scratch))
        return 1;
    return cmocka_run_group_tests(tests, NULL, clean);
}
