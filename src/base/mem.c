/* mem.c - allocation with a counter and a failure hook, arenas, huge-page blocks, the growing buffer. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What precedes every nb_alloc block. */
typedef struct {
    _Alignas(16) size_t bytes;
    _Atomic(void *) note;
} head;

static _Atomic uint64_t bytes_now, bytes_peak, n_allocs, fail_at;

bool nb_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool nb_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

bool nb_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool nb_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

/* Count one allocation; true when the test hook wants this one to fail. */
static bool must_fail(void)
{
    const uint64_t i = atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed) + 1;
    return i == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

uint64_t nb_mem_fail_at(uint64_t i)
{
    const uint64_t n = atomic_load(&n_allocs);

    atomic_store(&n_allocs, 0);
    atomic_store(&fail_at, i);
    return n;
}

static void count_in(size_t n)
{
    const uint64_t now = atomic_fetch_add_explicit(&bytes_now, n, memory_order_relaxed) + n;
    uint64_t peak = atomic_load_explicit(&bytes_peak, memory_order_relaxed);

    while (now > peak && !atomic_compare_exchange_weak_explicit(&bytes_peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void count_out(size_t n)
{
    atomic_fetch_sub_explicit(&bytes_now, n, memory_order_relaxed);
}

uint64_t nb_mem_now(void)
{
    return atomic_load(&bytes_now);
}

uint64_t nb_mem_peak(void)
{
    return atomic_load(&bytes_peak);
}

#define HUGE_PAGE ((size_t)2 << 20)

/* The whole huge pages inside a large block become such when they are touched: a fault for each in place of 512. */
static void ask_huge(head *h, size_t bytes)
{
    const uintptr_t from = ((uintptr_t)h + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, to = ((uintptr_t)h + bytes) / HUGE_PAGE * HUGE_PAGE;

    if (from < to)
        madvise((char *)h + (from - (uintptr_t)h), to - from, MADV_HUGEPAGE);
}

static void *start(head *h, size_t bytes)
{
    if (!h)
        return NULL;
    ask_huge(h, bytes);
    h->bytes = bytes;
    atomic_init(&h->note, NULL);
    count_in(bytes);
    return h + 1;
}

void *nb_alloc(size_t bytes)
{
    if (must_fail() || bytes > PTRDIFF_MAX - sizeof(head))
        return NULL;
    return start(malloc(sizeof(head) + bytes), bytes);
}

void *nb_calloc(size_t n, size_t size)
{
    size_t bytes;

    if (must_fail() || !nb_mul_size(n, size, &bytes) || bytes > PTRDIFF_MAX - sizeof(head))
        return NULL;
    return start(calloc(1, sizeof(head) + bytes), bytes);
}

void *nb_realloc(void *p, size_t bytes)
{
    head *h;
    size_t old;

    if (!p)
        return nb_alloc(bytes);
    if (must_fail() || bytes > PTRDIFF_MAX - sizeof(head))
        return NULL;
    h = (head *)p - 1;
    old = h->bytes;
    h = realloc(h, sizeof(head) + bytes);
    if (!h)
        return NULL;
    h->bytes = bytes;
    count_in(bytes);
    count_out(old);
    return h + 1;
}

void *nb_alloc_array(size_t n, size_t size)
{
    size_t bytes;

    return nb_mul_size(n, size, &bytes) ? nb_alloc(bytes) : NULL;
}

char *nb_strndup(const char *s, size_t n)
{
    char *d = n < SIZE_MAX ? nb_alloc(n + 1) : NULL;

    if (!d)
        return NULL;
    if (n)
        memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *nb_strdup(const char *s)
{
    return nb_strndup(s, strlen(s));
}

void nb_free(void *p)
{
    if (!p)
        return;
    count_out(((head *)p - 1)->bytes);
    free((head *)p - 1);
}

void *nb_note_get(const void *p)
{
    return atomic_load_explicit(&((const head *)p - 1)->note, memory_order_acquire);
}

bool nb_note_swap(const void *p, void *expected, void *note)
{
    head *h = (head *)((uintptr_t)p - sizeof(head));
    return atomic_compare_exchange_strong(&h->note, &expected, note);
}

void *nb_alloc_aligned(size_t align, size_t bytes)
{
    void *p = NULL;

    if (must_fail() || posix_memalign(&p, align, bytes ? bytes : 1) != 0)
        return NULL;
    return p;
}

void nb_free_aligned(void *p)
{
    free(p);
}

/* Bytes mapped for a block: whole huge pages; 0 on overflow. */
static size_t huge_round(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - 2 * HUGE_PAGE)
        return 0;
    return bytes == 0 ? HUGE_PAGE : (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void *nb_huge_alloc(size_t bytes)
{
    const size_t n = huge_round(bytes);
    unsigned char *p;
    size_t lead;

    if (must_fail() || n == 0)
        return NULL;
    p = mmap(NULL, n + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    lead = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (lead)
        munmap(p, lead);
    munmap(p + lead + n, HUGE_PAGE - lead); /* lead < HUGE_PAGE, so something is left over */
    madvise(p + lead, n, MADV_HUGEPAGE);
    count_in(n);
    return p + lead;
}

void nb_huge_free(void *p, size_t bytes)
{
    if (!p)
        return;
    munmap(p, huge_round(bytes));
    count_out(huge_round(bytes));
}

struct nb_arena_block {
    _Alignas(16) nb_arena_block *next;
    size_t used, cap; /* of data */
};

#define ARENA_FIRST ((size_t)4064)
#define ARENA_MOST  ((size_t)1 << 20)

void *nb_arena_alloc(nb_arena *a, size_t bytes)
{
    nb_arena_block *b = a->head;
    size_t need, cap;
    void *p;

    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    need = (bytes + 15) / 16 * 16;
    if (!b || need > b->cap - b->used) {
        cap = !b ? ARENA_FIRST : b->cap >= ARENA_MOST / 2 ? ARENA_MOST : 2 * b->cap;
        if (cap < need)
            cap = need;
        b = nb_alloc(sizeof *b + cap);
        if (!b)
            return NULL;
        b->used = 0;
        b->cap = cap;
        if (a->head && need == cap && a->head->cap - a->head->used > 256) { /* a large one: keep filling the old block */
            b->next = a->head->next;
            a->head->next = b;
        } else {
            b->next = a->head;
            a->head = b;
        }
        a->total_bytes += cap;
    }
    p = (unsigned char *)(b + 1) + b->used;
    b->used += need;
    return p;
}

void *nb_arena_calloc(nb_arena *a, size_t n, size_t size)
{
    size_t bytes;
    void *p;

    if (!nb_mul_size(n, size, &bytes))
        return NULL;
    p = nb_arena_alloc(a, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *nb_arena_strndup(nb_arena *a, const char *s, size_t n)
{
    char *d = n < SIZE_MAX ? nb_arena_alloc(a, n + 1) : NULL;

    if (!d)
        return NULL;
    if (n)
        memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *nb_arena_strdup(nb_arena *a, const char *s)
{
    return nb_arena_strndup(a, s, strlen(s));
}

char *nb_arena_printf(nb_arena *a, const char *fmt, ...)
{
    va_list ap;
    char *d;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return NULL;
    d = nb_arena_alloc(a, (size_t)n + 1);
    if (!d)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(d, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return d;
}

void nb_arena_clear(nb_arena *a)
{
    nb_arena_block *b = a->head;

    while (b) {
        nb_arena_block *next = b->next;
        nb_free(b);
        b = next;
    }
    a->head = NULL;
    a->total_bytes = 0;
}

/* Room for n more bytes and the terminator. */
static bool buf_room(nb_buf *b, size_t n)
{
    size_t cap = b->cap ? b->cap : 64;
    char *p;

    if (b->failed)
        return false;
    if (b->cap && n < b->cap - b->n)
        return true;
    while (n >= cap - b->n) {
        if (cap > PTRDIFF_MAX / 2) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }
    p = nb_realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void nb_buf_put(nb_buf *b, const void *p, size_t n)
{
    if (!buf_room(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void nb_buf_puts(nb_buf *b, const char *s)
{
    nb_buf_put(b, s, strlen(s));
}

void nb_buf_putc(nb_buf *b, char c)
{
    nb_buf_put(b, &c, 1);
}

void nb_buf_printf(nb_buf *b, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    if (n < 0 || !buf_room(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

void nb_buf_clear(nb_buf *b)
{
    nb_free(b->p);
    memset(b, 0, sizeof *b);
}

nb_status nb_enomem(nb_err *err, const char *what)
{
    return nb_fail(err, NB_ENOMEM, "mem.alloc", "", "no memory for %s; free some, or run with fewer threads or a smaller budget", what);
}
