/* q4_case.h - matrices, activations and guarded buffers for the tests of 4-bit and 8-bit kernels. Everything is seeded. */
#ifndef NB_TESTS_UNIT_KERN_Q4_CASE_H
#define NB_TESTS_UNIT_KERN_Q4_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kern/kern.h"

/* ---- random numbers ---- */
static inline uint32_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

static inline float rnd_float(uint64_t *s) /* about normal, mean 0, deviation 1 */
{
    float v = 0.0f;

    for (int i = 0; i < 12; i++)
        v += (float)(rnd(s) & 0xffffffu) / 16777216.0f;
    return v - 6.0f;
}

/* ---- buffers with guard bytes on both sides ---- */
enum { GUARD = 128, GUARD_BYTE = 0xa5 };

static inline void *guarded(size_t bytes)
{
    unsigned char *p = nb_alloc_aligned(64, (bytes + 2 * GUARD + 63) / 64 * 64);

    assert_non_null(p);
    memset(p, GUARD_BYTE, bytes + 2 * GUARD);
    return p + GUARD;
}

static inline void guard_free(void *q, size_t bytes, const char *label)
{
    unsigned char *p = (unsigned char *)q - GUARD;

    for (size_t i = 0; i < GUARD; i++)
        if (p[i] != GUARD_BYTE || p[GUARD + bytes + i] != GUARD_BYTE)
            fail_msg("%s: wrote outside its buffer, %zu bytes %s", label, i, p[i] != GUARD_BYTE ? "before the start" : "past the end");
    nb_free_aligned(p);
}

/* Can this machine run the table? Says once when not. */
static inline bool runs(const nb_kern *t)
{
    static const nb_kern *said[8];
    size_t i = 0;

    if ((t->need & ~nb_cpu_features()) == 0)
        return true;
    while (i < NB_LEN(said) - 1 && said[i] && said[i] != t)
        i++;
    if (said[i] != t)
        print_message("SKIP table %s: this processor lacks it\n", t->name);
    said[i] = t;
    return false;
}

/* ---- weights ---- */
typedef enum codes_kind { CODES_RANDOM, CODES_ZERO, CODES_FULL } codes_kind;
typedef enum zeros_kind { ZEROS_RANDOM, ZEROS_NONE, ZEROS_FULL, ZEROS_MIXED } zeros_kind;

static inline void hub_make_bits(nb_qlin *q, unsigned bits, size_t n, size_t k, size_t g, codes_kind ck, zeros_kind zk, bool wide,
                                 uint64_t seed)
{
    const uint8_t full = (uint8_t)((1u << bits) - 1);
    const uint32_t most = bits == 8 ? 255 : 1u << bits; /* a zero may be one above the codes */
    uint64_t s = seed;

    assert_int_equal(nb_qlin_init(q, n, k, g, bits, NULL), NB_OK);
    q->scale_dtype = wide ? NB_DT_F32 : NB_DT_F16;
    for (size_t i = 0; i < n * k; i++)
        q->codes[i] = ck == CODES_ZERO ? 0 : ck == CODES_FULL ? full : (uint8_t)(rnd(&s) & full);
    for (size_t i = 0; i < n * q->n_groups; i++) {
        const float v = 0.002f + (float)(rnd(&s) & 0xffff) * 1e-6f;
        q->scales[i] = wide ? v : nb_f16_to_f32(nb_f32_to_f16(v));
        q->zeros[i] = (uint8_t)(rnd(&s) % (most + 1));
        if (zk == ZEROS_NONE)
            q->zeros[i] = 0;
        if (zk == ZEROS_FULL || (zk == ZEROS_MIXED && i % 2))
            q->zeros[i] = full;
        if (zk == ZEROS_MIXED && i % 2 == 0)
            q->zeros[i] = 0;
    }
}

static inline void hub_make(nb_qlin *q, size_t n, size_t k, size_t g, codes_kind ck, zeros_kind zk, bool wide, uint64_t seed)
{
    hub_make_bits(q, 4, n, k, g, ck, zk, wide, seed);
}

/* The functions for the codes of a hub: above 4 bits, the 8-bit ones. */
typedef void gemm_fn(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
typedef void gemm_f32_fn(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);

static inline gemm_fn *gemm_of(const nb_kern *t, const nb_qlin *q, bool a8)
{
    if (a8)
        return q->bits > 4 ? t->gemm_q8_a8 : t->gemm_q4_a8;
    return q->bits > 4 ? t->gemm_q8 : t->gemm_q4;
}

static inline gemm_f32_fn *gemm_f32_of(const nb_kern *t, const nb_qlin *q)
{
    return q->bits > 4 ? t->gemm_q8_f32 : t->gemm_q4_f32;
}

static inline void packed_make(nb_q4 *p, const nb_kern *t, const nb_qlin *q, uint32_t *perm)
{
    const bool byte = q->bits > 4;

    assert_true((byte ? nb_q8_layout : nb_q4_layout)(p, (q->n + 63) / 64 * 64, q->k, q->g, nb_q4_wide(q)));
    p->base = guarded(p->bytes);
    p->perm = perm;
    (byte ? t->pack_q8 : t->pack_q4)(p, 0, 0, q, perm);
}

static inline void packed_free(nb_q4 *p, const char *label)
{
    guard_free(p->base, p->bytes, label);
}

/* ---- activations ---- */
typedef enum x_kind { X_NORMAL, X_ZERO, X_OUTLIER, X_MAX, X_PLANES, X_DENORMAL, X_TINY, X_HUGE, X_NAN, X_INF, X_KINDS } x_kind;
static const char *const x_names[X_KINDS] = { "normal",   "zero", "one outlier", "+-max", "plane bounds",
                                              "denormal", "tiny", "huge",        "NaN",   "Inf" };

static inline void x_fill(float *x, size_t n, x_kind kind, uint64_t seed)
{
    uint64_t s = seed;

    for (size_t i = 0; i < n; i++) {
        const float v = rnd_float(&s);

        switch (kind) {
        case X_ZERO:
            x[i] = i % 2 ? 0.0f : -0.0f;
            break;
        case X_OUTLIER:
            x[i] = i % 97 == 5 ? 3000.0f : v * 0.01f;
            break;
        case X_MAX:
            x[i] = i % 3 ? 2.5f : -2.5f;
            break;
        case X_PLANES: /* 32512 * x / 32512: low plane at -128 and 127 */
            x[i] = i % 3 == 0 ? 32512.0f : (float)(256 * ((int)(rnd(&s) % 254) - 127) + (i % 3 == 1 ? 128 : 127));
            break;
        case X_DENORMAL:
            x[i] = v * 1e-41f;
            break;
        case X_TINY:
            x[i] = v * 1e-34f;
            break;
        case X_HUGE:
            x[i] = v * 5e37f;
            break;
        case X_NAN:
            x[i] = i % 501 == 77 ? NAN : v;
            break;
        case X_INF:
            x[i] = i % 501 == 77 ? -INFINITY : v;
            break;
        default:
            x[i] = v;
            break;
        }
    }
}

static inline void *act_make(nb_act *a, const nb_kern *t, const float *x, size_t ldx, size_t m, size_t k, size_t g, const uint32_t *perm,
                             bool a8)
{
    void *buf = guarded(nb_act_bytes(m, k, g));

    (a8 ? nb_act_place_a8 : nb_act_place)(a, buf, m, k, g);
    (a8 ? t->act_a8 : t->act_a16)(a, x, ldx, 0, m, perm);
    return buf;
}

/* Equal bytes, or the place of the first difference. */
static inline void same(const char *label, const char *table, const void *got, const void *want, size_t bytes)
{
    const unsigned char *a = got, *b = want;

    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s, %s: byte %zu of %zu is %02x, want %02x", table, label, i, bytes, a[i], b[i]);
}

#endif
