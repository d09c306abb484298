/* test_store.c - stores and sinks in memory, the name index, and all of them with failing memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tensor/sink.h"
#include "tensor/store.h"

static void find_and_read(void **state)
{
    static const uint64_t shape[] = { 2, 3 };
    unsigned char data[12];
    float out[6] = { 0 };
    const nb_tensor *t;
    nb_err e = { 0 };
    nb_store *s;

    (void)state;
    assert_int_equal(nb_memstore_open(&s, NULL), NB_OK);
    for (size_t i = 0; i < 6; i++)
        nb_put_le16(data + 2 * i, nb_f32_to_f16((float)i));
    for (int i = 0; i < 100; i++) {
        char name[20];
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(nb_memstore_add(s, name, i == 50 ? NB_DT_I16 : NB_DT_F16, 2, shape, data, NULL), NB_OK);
    }
    assert_int_equal(s->n_tensors, 100);
    assert_true(s->total_bytes == 1200);
    t = nb_store_find(s, "t73");
    assert_non_null(t);
    assert_string_equal(t->name, "t73");
    assert_true(t->n_bytes == 12 && t->shape[1] == 3 && t->rank == 2 && t->index == 73);
    assert_ptr_equal(nb_store_findn(s, "t73xx", 3), t);
    assert_null(nb_store_find(s, "t100"));
    assert_int_equal(nb_store_read_f32(s, t, 2, 3, out, &e), NB_OK);
    assert_true(out[0] == 2 && out[2] == 4 && out[3] == 0);
    assert_int_equal(nb_store_read_f32(s, t, 6, 0, out, &e), NB_OK);
    assert_int_equal(nb_store_read_f32(s, t, 4, 3, out, &e), NB_EARG);
    assert_string_equal(e.subject, "t73");
    nb_err_clear(&e);
    assert_int_equal(nb_store_read_f32(s, t, 7, UINT64_MAX, out, &e), NB_EARG);
    nb_err_clear(&e);
    assert_int_equal(nb_store_read_f32(s, nb_store_find(s, "t50"), 0, 1, out, &e), NB_EUNSUPPORTED);
    assert_string_equal(e.cls, "dtype");
    assert_int_equal(nb_memstore_add(s, "t1", NB_DT_F16, 2, shape, data, NULL), NB_EARG);
    assert_int_equal(nb_memstore_add(s, "odd", NB_DT_F4, 1, (const uint64_t[]){ 3 }, data, NULL), NB_EARG);
    assert_int_equal(nb_memstore_add(s, "big", NB_DT_F32, 1, (const uint64_t[]){ 1ull << 62 }, data, NULL), NB_EARG);
    assert_int_equal(nb_memstore_add(s, "none", NB_DT_NONE, 0, NULL, data, NULL), NB_EARG);
    assert_int_equal(nb_memstore_add(s, "scalar", NB_DT_F16, 0, NULL, data, NULL), NB_OK);
    assert_int_equal(nb_memstore_set(s, "absent", data, NULL), NB_EARG);
    assert_int_equal(nb_memstore_set(s, "t1", data + 2, NULL), NB_OK);
    assert_int_equal(nb_store_read_f32(s, nb_store_find(s, "t1"), 0, 1, out, NULL), NB_OK);
    assert_true(out[0] == 1);
    nb_store_drop(s, t);
    assert_int_equal(nb_store_still(s, NULL), NB_OK);
    nb_store_close(s);
    nb_store_close(NULL);
}

static void index_tells_duplicates(void **state)
{
    nb_tensor list[4] = {
        { .name = "a", .name_len = 1 }, { .name = "b", .name_len = 1 }, { .name = "a", .name_len = 1 }, { .name = "b", .name_len = 1 }
    };
    nb_store s = { .tensors = list, .n_tensors = 4 };
    size_t dup = 0;

    (void)state;
    assert_null(nb_store_find(&s, "a")); /* no index yet */
    assert_int_equal(nb_store_index(&s, &dup, NULL), NB_OK);
    assert_int_equal(dup, 2);
    assert_ptr_equal(nb_store_find(&s, "b"), &list[1]);
    s.n_tensors = 2;
    assert_int_equal(nb_store_index(&s, &dup, NULL), NB_OK);
    assert_true(dup == SIZE_MAX);
    nb_store_unindex(&s);
    assert_null(s.map);
}

typedef struct {
    nb_sink *sink;
    _Atomic int bad;
} writer;

static void write_bytes(void *ctx, size_t begin, size_t end, int thread)
{
    writer *w = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const unsigned char b = (unsigned char)(i * 7);
        if (nb_sink_write(w->sink, i < 100 ? "a" : "b", i % 100, &b, 1, NULL) != NB_OK)
            w->bad = 1;
    }
}

static void sink_in_any_order(void **state)
{
    writer w = { 0 };
    const nb_tensor *t;
    nb_err e = { 0 };
    nb_pool *p;

    (void)state;
    assert_int_equal(nb_memsink_open(&w.sink, NULL), NB_OK);
    assert_int_equal(nb_sink_write(w.sink, "a", 0, "x", 1, NULL), NB_EINTERNAL); /* before begin */
    assert_int_equal(nb_sink_declare(w.sink, "a", NB_DT_U8, 1, (const uint64_t[]){ 100 }, NULL), NB_OK);
    assert_int_equal(nb_sink_declare(w.sink, "b", NB_DT_F16, 2, (const uint64_t[]){ 5, 10 }, NULL), NB_OK);
    assert_int_equal(nb_sink_declare(w.sink, "b", NB_DT_F16, 0, NULL, NULL), NB_EARG);
    assert_int_equal(nb_sink_declare(w.sink, "empty", NB_DT_F16, 1, (const uint64_t[]){ 0 }, NULL), NB_OK);
    assert_int_equal(nb_sink_begin(w.sink, NULL), NB_OK);
    assert_int_equal(nb_sink_begin(w.sink, NULL), NB_EINTERNAL);
    assert_int_equal(nb_sink_declare(w.sink, "late", NB_DT_U8, 0, NULL, NULL), NB_EINTERNAL);
    assert_int_equal(nb_sink_write(w.sink, "a", 99, "xy", 2, NULL), NB_EINTERNAL);
    assert_int_equal(nb_sink_write(w.sink, "absent", 0, "x", 1, NULL), NB_EINTERNAL);
    assert_int_equal(nb_sink_finish(w.sink, &e), NB_EINTERNAL); /* bytes missing */
    assert_string_equal(e.subject, "a");
    assert_int_equal(nb_pool_open(&p, 3, NULL), NB_OK);
    nb_parallel_for(p, 200, 3, write_bytes, &w);
    nb_pool_close(p);
    assert_int_equal(w.bad, 0);
    assert_int_equal(nb_sink_write(w.sink, "a", 5, "x", 1, NULL), NB_EINTERNAL); /* twice */
    assert_int_equal(nb_sink_finish(w.sink, NULL), NB_OK);
    assert_int_equal(nb_sink_finish(w.sink, NULL), NB_EINTERNAL);
    t = nb_store_find(nb_memsink_store(w.sink), "b");
    assert_non_null(t);
    assert_true(t->n_bytes == 100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(t->data[i], (unsigned char)((100 + i) * 7));
    nb_sink_close(w.sink);
    nb_sink_close(NULL);
}

static bool do_store(void)
{
    nb_store *s = NULL;
    bool ok = nb_memstore_open(&s, NULL) == NB_OK;

    for (int i = 0; ok && i < 200; i++) {
        char name[32];
        nb_err e = { 0 };
        snprintf(name, sizeof name, "model.layers.%d", i);
        ok = nb_memstore_add(s, name, NB_DT_F16, 1, (const uint64_t[]){ 4 }, "12345678", &e) == NB_OK;
        if (!ok) {
            assert_int_equal(e.code, NB_ENOMEM);
            assert_int_equal(s->n_tensors, i);
            assert_null(nb_store_find(s, name));
        }
    }
    if (ok) {
        size_t dup;
        ok = nb_store_index(s, &dup, NULL) == NB_OK && nb_store_find(s, "model.layers.7");
    }
    nb_store_close(s);
    return ok;
}

static bool do_sink(void)
{
    nb_sink *s = NULL;
    bool ok = nb_memsink_open(&s, NULL) == NB_OK && nb_sink_declare(s, "a", NB_DT_U8, 1, (const uint64_t[]){ 3 }, NULL) == NB_OK &&
              nb_sink_begin(s, NULL) == NB_OK && nb_sink_write(s, "a", 0, "abc", 3, NULL) == NB_OK && nb_sink_finish(s, NULL) == NB_OK;

    nb_sink_close(s);
    return ok;
}

static void each_allocation(void **state)
{
    static const struct {
        const char *label;
        bool (*run)(void);
    } rows[] = { { "store", do_store }, { "sink", do_sink } };

    (void)state;
    for (size_t r = 0; r < NB_LEN(rows); r++) {
        const uint64_t now = nb_mem_now();
        uint64_t total;

        nb_mem_fail_at(0);
        assert_true(rows[r].run());
        total = nb_mem_fail_at(0);
        assert_true(total > 2);
        for (uint64_t i = 1; i <= total; i++) {
            nb_mem_fail_at(i);
            if (rows[r].run())
                fail_msg("%s: allocation %u failed unnoticed", rows[r].label, (unsigned)i);
            nb_mem_fail_at(0);
            assert_true(nb_mem_now() == now);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(find_and_read), cmocka_unit_test(index_tells_duplicates),
                                        cmocka_unit_test(sink_in_any_order), cmocka_unit_test(each_allocation) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
