/* The safetensors sink: layout, shards, index, atomic appearance, completeness (ST-06, ST-30, ST-31). */
#include "io_test.h"

#include "base/map.h"
#include "base/pool.h"
#include "io/io.h"

static void declare(nb_sink *s, const char *name, nb_dtype t, uint64_t n)
{
    nb_err err = { 0 };
    if (nb_sink_declare(s, name, t, 1, &n, &err) != NB_OK)
        fail_msg("declare %s: %s", name, err.what);
}

static void fill(nb_sink *s, const char *name, unsigned char value, size_t n)
{
    nb_err err = { 0 };
    unsigned char *p = nb_alloc(n);

    memset(p, value, n);
    if (nb_sink_write(s, name, 0, p, n, &err) != NB_OK)
        fail_msg("write %s: %s", name, err.what);
    nb_free(p);
}

static void single_file(void **state)
{
    char path[400];
    nb_err err = { 0 };
    nb_sink *s;
    nb_store *st;
    char *bytes;
    size_t n;

    (void)state;
    snprintf(path, sizeof path, "%s", scratch("one.safetensors"));
    assert_int_equal(nb_st_sink_file(&s, path, false, &err), NB_OK);
    declare(s, "b.half", NB_DT_F16, 3);
    declare(s, "z\"\n", NB_DT_U8, 5);
    declare(s, "long", NB_DT_I64, 1);
    declare(s, "a.half", NB_DT_BF16, 1);
    declare(s, "none", NB_DT_F32, 0);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    fill(s, "a.half", 1, 2);
    fill(s, "z\"\n", 2, 5);
    fill(s, "long", 3, 8);
    assert_int_equal(access(path, F_OK), -1); /* nothing under the final name yet */
    fill(s, "b.half", 4, 6);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);

    assert_int_equal(nb_read_file(path, 4096, &bytes, &n, &err), NB_OK);
    assert_int_equal(bytes[8], '{'); /* ST-06 */
    assert_int_equal(nb_le64(bytes) % 8, 0);
    assert_int_equal(n, 8 + nb_le64(bytes) + 21);
    assert_memory_equal(bytes + n - 21, "\3\3\3\3\3\3\3\3\1\1\4\4\4\4\4\4\2\2\2\2\2", 21); /* ST-31: wide first, then by name */
    nb_free(bytes);
    assert_int_equal(nb_st_open(path, &st, &err), NB_OK);
    assert_int_equal(st->n_tensors, 5);
    assert_non_null(nb_store_find(st, "z\"\n"));
    assert_string_equal(nb_json_str(nb_json_get(st->meta, "format"), ""), "pt");
    nb_store_close(st);

    assert_int_equal(nb_st_sink_file(&s, path, false, &err), NB_OK); /* never overwrites without force */
    declare(s, "x", NB_DT_U8, 1);
    expect("exists", nb_sink_begin(s, &err), &err, NB_EEXISTS, "out.exists");
    nb_sink_close(s);
}

static void refusals(void **state)
{
    const uint64_t two = 2;
    uint64_t shape[65] = { 0 };
    nb_err err = { 0 };
    nb_sink *s;

    (void)state;
    assert_int_equal(nb_st_sink_file(&s, scratch("never.safetensors"), false, &err), NB_OK);
    declare(s, "w", NB_DT_F32, 2);
    expect("twice", nb_sink_declare(s, "w", NB_DT_F32, 1, &two, &err), &err, NB_EFORMAT, "st.duplicate_key");
    nb_err_clear(&err);
    expect("empty name", nb_sink_declare(s, "", NB_DT_F32, 1, &two, &err), &err, NB_EFORMAT, "st.name");
    nb_err_clear(&err);
    expect("metadata", nb_sink_declare(s, "__metadata__", NB_DT_F32, 1, &two, &err), &err, NB_EFORMAT, "st.name");
    nb_err_clear(&err);
    expect("bad UTF-8", nb_sink_declare(s, "\xff", NB_DT_F32, 1, &two, &err), &err, NB_EFORMAT, "st.name");
    nb_err_clear(&err);
    expect("rank", nb_sink_declare(s, "r", NB_DT_F32, 65, shape, &err), &err, NB_ELIMIT, "limit.rank");
    nb_err_clear(&err);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    expect("past the end", nb_sink_write(s, "w", 4, "12345", 5, &err), &err, NB_EINTERNAL, "internal.sink");
    nb_err_clear(&err);
    expect("unknown", nb_sink_write(s, "v", 0, "1", 1, &err), &err, NB_EINTERNAL, "internal.sink");
    nb_err_clear(&err);
    assert_int_equal(nb_sink_write(s, "w", 0, "1234", 4, &err), NB_OK);
    expect("incomplete", nb_sink_finish(s, &err), &err, NB_EINTERNAL, "internal.sink");
    nb_sink_close(s);
    assert_int_equal(access(scratch("never.safetensors"), F_OK), -1);
}

/* ST-30: a header over the limit is refused before anything is written. */
static void big_header(void **state)
{
    char name[65001], path[400];
    nb_err err = { 0 };
    nb_sink *s;

    (void)state;
    snprintf(path, sizeof path, "%s", scratch("big.safetensors"));
    assert_int_equal(nb_st_sink_file(&s, path, false, &err), NB_OK);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (int i = 0; i < 1540; i++) {
        char digits[16];
        snprintf(digits, sizeof digits, "%06d", i);
        memcpy(name, digits, 6);
        declare(s, name, NB_DT_U8, 1);
    }
    expect("ST-30 header", nb_sink_begin(s, &err), &err, NB_ELIMIT, "st.header_too_large");
    nb_sink_close(s);
    assert_int_equal(access(path, F_OK), -1);
}

typedef struct part_job {
    nb_sink *s;
    int failed;
} part_job;

/* Item i writes 1000 bytes of tensor i / 10. */
static void write_parts(void *ctx, size_t begin, size_t end, int thread)
{
    part_job *j = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        char name[32], bytes[1000];
        nb_err err = { 0 };
        snprintf(name, sizeof name, "t%02zu", i / 10);
        memset(bytes, (int)i, sizeof bytes);
        if (nb_sink_write(j->s, name, i % 10 * 1000, bytes, sizeof bytes, &err) != NB_OK)
            j->failed = 1;
    }
}

static void shards_and_threads(void **state)
{
    char dir[400], file[480];
    nb_err err = { 0 };
    nb_outdir *out;
    nb_pool *pool;
    part_job j = { 0 };
    nb_store *st;

    (void)state;
    snprintf(dir, sizeof dir, "%s", scratch("sharded"));
    assert_int_equal(nb_pool_open(&pool, 4, &err), NB_OK);
    assert_int_equal(nb_outdir_open(&out, dir, false, NULL, 0, &err), NB_OK);
    assert_int_equal(nb_st_sink_open(&j.s, out, 25000, &err), NB_OK);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%02d", i);
        declare(j.s, name, NB_DT_U8, 10000);
    }
    assert_int_equal(nb_sink_begin(j.s, &err), NB_OK);
    nb_parallel_for(pool, 200, 1, write_parts, &j);
    assert_int_equal(j.failed, 0);
    assert_int_equal(nb_sink_finish(j.s, &err), NB_OK);
    nb_sink_close(j.s);
    assert_int_equal(access(dir, F_OK), -1);
    if (nb_outdir_commit(out, &err) != NB_OK)
        fail_msg("commit: %s", err.what);
    snprintf(file, sizeof file, "%s/model-00010-of-00010.safetensors", dir);
    assert_int_equal(access(file, F_OK), 0);
    if (nb_open(dir, &st, &err) != NB_OK)
        fail_msg("open: %s", err.what);
    assert_int_equal(st->n_files, 10);
    assert_int_equal(st->n_tensors, 20);
    assert_int_equal(nb_report_count(st->notes), 0); /* total_size agrees, no strays */
    for (size_t i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%02zu", i / 10);
        assert_int_equal(nb_store_find(st, name)->data[i % 10 * 1000 + 999], (unsigned char)i);
    }
    nb_store_close(st);
    nb_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(single_file), cmocka_unit_test(refusals), cmocka_unit_test(big_header),
                                        cmocka_unit_test(shards_and_threads) };

    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}
