/* kern_test.h - what the kernel tests share: every table that runs here, guarded buffers, random values. */
#ifndef NB_TESTS_KERN_TEST_H
#define NB_TESTS_KERN_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/cpu.h"
#include "kern/kern.h"

enum { GUARD = 256 };

/* The i-th table if this processor runs it; else NULL, said once on stderr. */
static inline const nb_kern *table_here(size_t i)
{
    static unsigned told;
    const nb_kern *t = nb_kern_at(i);

    if ((t->need & ~nb_cpu_features()) == 0)
        return t;
    if (!(told & 1u << i))
        fprintf(stderr, "SKIPPED: table %s needs instructions that this processor lacks\n", t->name);
    told |= 1u << i;
    return NULL;
}

/* 64-byte aligned bytes between two guards. */
static inline void *guarded(size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);

    assert_non_null(p);
    memset(p, 0xA5, GUARD);
    memset(p + GUARD, 0x5A, bytes);
    memset(p + GUARD + bytes, 0xA5, GUARD);
    return p + GUARD;
}

static inline void guards_intact(const void *at, size_t bytes, const char *label)
{
    const unsigned char *p = at;

    for (size_t i = 1; i <= GUARD; i++)
        if (p[-(ptrdiff_t)i] != 0xA5 || p[bytes + i - 1] != 0xA5)
            fail_msg("%s: a byte outside the buffer was written (%zu away)", label, i);
}

static inline void guarded_free(void *at)
{
    free((unsigned char *)at - GUARD);
}

/* A block of exactly `bytes`, so that AddressSanitizer sees the first byte read past it. */
static inline void *exactly(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    assert_non_null(p);
    return p;
}

static inline uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* About normal, standard deviation 1. */
static inline float random_float(uint64_t *state)
{
    float sum = -6.0f;

    for (int i = 0; i < 12; i++)
        sum += (float)next_random(state) * (1.0f / 2147483648.0f);
    return sum;
}

static inline void random_fill(float *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = random_float(&seed);
}

/* Equal bits, or both NaN (whose payload depends on operand order, which is not part of any contract). */
static inline bool same_float(float a, float b)
{
    return nb_bits_from_f32(a) == nb_bits_from_f32(b) || (isnan(a) && isnan(b));
}

#endif
