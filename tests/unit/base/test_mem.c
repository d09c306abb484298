/* test_mem.c - checked sizes, the failure hook, counters, arenas, buffers, huge blocks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void checked_sizes(void **state)
{
    size_t s = 7;
    uint64_t u = 7;

    (void)state;
    assert_false(nb_mul_size(SIZE_MAX, 2, &s));
    assert_false(nb_mul_size(SIZE_MAX / 2 + 1, 2, &s));
    assert_int_equal(s, 7);
    assert_true(nb_mul_size(SIZE_MAX, 1, &s) && s == SIZE_MAX);
    assert_true(nb_mul_size(0, SIZE_MAX, &s) && s == 0);
    assert_false(nb_add_size(SIZE_MAX, 1, &s));
    assert_true(nb_add_size(SIZE_MAX, 0, &s) && s == SIZE_MAX);
    assert_false(nb_mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &u));
    assert_false(nb_add_u64(UINT64_MAX, UINT64_MAX, &u));
    assert_true(u == 7);
    assert_null(nb_alloc_array(SIZE_MAX / 2, 3));
    assert_null(nb_calloc(SIZE_MAX / 2, 3));
    assert_null(nb_alloc(SIZE_MAX));
    assert_null(nb_strndup("x", SIZE_MAX));
    assert_null(nb_huge_alloc(SIZE_MAX));
}

static void blocks_and_counters(void **state)
{
    const uint64_t before = nb_mem_now();
    unsigned char *p = nb_alloc(0), *q = nb_calloc(10, 10);
    char *s = nb_strndup("abc\0def", 7);

    (void)state;
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(q[i], 0);
    assert_memory_equal(s, "abc\0def", 8);
    assert_true(nb_mem_now() == before + 100 + 8);
    memset(q, 5, 100);
    q = nb_realloc(q, 100000);
    assert_int_equal(q[99], 5);
    assert_true(nb_mem_now() == before + 100000 + 8);
    assert_true(nb_mem_peak() >= before + 100000 + 8);
    nb_free(p);
    nb_free(q);
    nb_free(s);
    nb_free(NULL);
    assert_true(nb_mem_now() == before);
    p = nb_alloc_aligned(4096, 10);
    assert_int_equal((uintptr_t)p % 4096, 0);
    nb_free_aligned(p);
    nb_free_aligned(NULL);
}

static void notes(void **state)
{
    int a, b;
    void *p = nb_alloc(8);

    (void)state;
    assert_null(nb_note_get(p));
    assert_true(nb_note_swap(p, NULL, &a));
    assert_false(nb_note_swap(p, NULL, &b));
    assert_ptr_equal(nb_note_get(p), &a);
    p = nb_realloc(p, 100000);
    assert_ptr_equal(nb_note_get(p), &a);
    nb_free(p);
}

static void failure_hook(void **state)
{
    void *p[3];

    (void)state;
    nb_mem_fail_at(2);
    for (int i = 0; i < 3; i++)
        p[i] = nb_alloc(1);
    assert_int_equal(nb_mem_fail_at(0), 3);
    assert_non_null(p[0]);
    assert_null(p[1]);
    assert_non_null(p[2]);
    nb_free(p[0]);
    nb_free(p[2]);
    p[0] = nb_alloc(1);
    assert_int_equal(nb_mem_fail_at(0), 1);
    nb_free(p[0]);
}

static void arenas(void **state)
{
    const uint64_t before = nb_mem_now();
    nb_arena a = { 0 };
    char *list[2000];

    (void)state;
    for (int i = 0; i < 2000; i++) {
        list[i] = nb_arena_printf(&a, "item %d", i);
        assert_int_equal((uintptr_t)list[i] % 16, 0);
        if (i % 100 == 0)
            memset(nb_arena_alloc(&a, 50000), 0xff, 50000);
    }
    for (int i = 0; i < 2000; i++) {
        char want[32];
        snprintf(want, sizeof want, "item %d", i);
        assert_string_equal(list[i], want);
    }
    assert_true(a.total_bytes < 2000 * 32 + 20 * 50000 + ((size_t)1 << 20));
    assert_null(nb_arena_alloc(&a, SIZE_MAX));
    assert_null(nb_arena_calloc(&a, SIZE_MAX, 2));
    assert_memory_equal(nb_arena_calloc(&a, 4, 4), "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_string_equal(nb_arena_strdup(&a, "x"), "x");
    assert_non_null(nb_arena_alloc(&a, 0));
    nb_arena_clear(&a);
    assert_true(nb_mem_now() == before);
    assert_non_null(nb_arena_alloc(&a, 3)); /* usable again */
    nb_arena_clear(&a);
}

static void buffers(void **state)
{
    nb_buf b = { 0 };

    (void)state;
    for (int i = 0; i < 1000; i++)
        nb_buf_printf(&b, "%d,", i % 10);
    nb_buf_putc(&b, 'x');
    nb_buf_puts(&b, "yz");
    nb_buf_put(&b, "\0q", 2);
    assert_int_equal(b.n, 2005);
    assert_string_equal(b.p + 1996, "8,9,xyz");
    assert_int_equal(b.p[2004], 'q');
    assert_int_equal(b.p[2005], 0);
    assert_false(b.failed);
    nb_mem_fail_at(1);
    for (int i = 0; i < 5000; i++)
        nb_buf_putc(&b, 'a');
    nb_mem_fail_at(0);
    assert_true(b.failed);
    nb_buf_puts(&b, "ignored");
    nb_buf_clear(&b);
    assert_null(b.p);
    nb_buf_put(&b, "", 0); /* an empty one is a terminated string */
    assert_string_equal(b.p, "");
    nb_buf_clear(&b);
}

static void huge_blocks(void **state)
{
    const size_t n = ((size_t)5 << 20) + 3;
    const uint64_t before = nb_mem_now();
    unsigned char *p = nb_huge_alloc(n);

    (void)state;
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % ((size_t)2 << 20), 0);
    assert_int_equal(p[0] | p[n - 1], 0);
    p[n - 1] = 1;
    assert_true(nb_mem_now() >= before + n);
    nb_huge_free(p, n);
    nb_huge_free(NULL, n);
    assert_true(nb_mem_now() == before);
}

static void enomem(void **state)
{
    nb_err e = { 0 };

    (void)state;
    assert_int_equal(nb_enomem(&e, "the moon"), NB_ENOMEM);
    assert_string_equal(e.cls, "mem.alloc");
    assert_non_null(strstr(e.what, "the moon"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_sizes), cmocka_unit_test(blocks_and_counters),
        cmocka_unit_test(notes),         cmocka_unit_test(failure_hook),
        cmocka_unit_test(arenas),        cmocka_unit_test(buffers),
        cmocka_unit_test(huge_blocks),   cmocka_unit_test(enomem),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
