/* mem.h - all allocation of the library: checked sizes, a hook for tests, arenas, huge-page blocks.
 *
 * Source of the rules: STYLE.md "Ownership", hardening U-02. */
#ifndef NB_BASE_MEM_H
#define NB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define NB_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* out = a*b (or a+b); false on overflow, out untouched then. */
bool nb_mul_size(size_t a, size_t b, size_t *out);
bool nb_add_size(size_t a, size_t b, size_t *out);
bool nb_mul_u64(uint64_t a, uint64_t b, uint64_t *out);
bool nb_add_u64(uint64_t a, uint64_t b, uint64_t *out);

/* malloc, calloc, realloc, free of the library; NULL when out of memory. Thread safe.
 * nb_alloc(0) returns a valid pointer. Blocks may only be freed with nb_free. */
void *nb_alloc(size_t bytes);
void *nb_calloc(size_t n, size_t size);
void *nb_realloc(void *p, size_t bytes);
void *nb_alloc_array(size_t n, size_t size); /* checked product, not zeroed */
char *nb_strdup(const char *s);
char *nb_strndup(const char *s, size_t n); /* n bytes and a terminator */
void nb_free(void *p);                     /* NULL is fine */

/* One pointer that travels with an nb_alloc block (NULL at first), for the block's owner to cache something derived.
 * nb_note_swap replaces `expected` by `note` atomically, false when something else was there. nb_free does not look at
 * it. Thread safe. */
void *nb_note_get(const void *p);
bool nb_note_swap(const void *p, void *expected, void *note);

/* Aligned block (align: power of two >= 8), freed with nb_free_aligned. */
void *nb_alloc_aligned(size_t align, size_t bytes);
void nb_free_aligned(void *p);

/* Tests: the i-th allocation from now (1 = the next) fails, once; 0 switches off. Returns how many allocations were
 * made since the last call. Not thread safe. */
uint64_t nb_mem_fail_at(uint64_t i);

/* Bytes now and at peak in nb_alloc blocks and huge blocks. Thread safe. */
uint64_t nb_mem_now(void);
uint64_t nb_mem_peak(void);

/* Anonymous private block, 2 MB aligned, MADV_HUGEPAGE, zeroed by the system; untouched until first written.
 * NULL when the system refuses. Freed with nb_huge_free(p, bytes) with the same size. */
void *nb_huge_alloc(size_t bytes);
void nb_huge_free(void *p, size_t bytes);

/* Arena: things that die together. nb_arena is the caller's struct, zero-initialised. Not thread safe. */
typedef struct nb_arena_block nb_arena_block;
typedef struct nb_arena {
    nb_arena_block *head;
    size_t total_bytes;
} nb_arena;
void *nb_arena_alloc(nb_arena *a, size_t bytes); /* 16-byte aligned, not zeroed; NULL when out of memory */
void *nb_arena_calloc(nb_arena *a, size_t n, size_t size);
char *nb_arena_strndup(nb_arena *a, const char *s, size_t n);
char *nb_arena_strdup(nb_arena *a, const char *s);
char *nb_arena_printf(nb_arena *a, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void nb_arena_clear(nb_arena *a);

/* Growing byte buffer, zero-initialised, terminated by a 0 that n does not count. Errors stick: after a failed
 * append `failed` is set and further appends do nothing. */
typedef struct nb_buf {
    char *p;
    size_t n, cap;
    bool failed;
} nb_buf;
void nb_buf_put(nb_buf *b, const void *p, size_t n);
void nb_buf_puts(nb_buf *b, const char *s);
void nb_buf_putc(nb_buf *b, char c);
void nb_buf_printf(nb_buf *b, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void nb_buf_clear(nb_buf *b);

/* nb_fail(err, NB_ENOMEM, "mem.alloc", ...) naming what the memory was for. */
nb_status nb_enomem(nb_err *err, const char *what);

#endif
