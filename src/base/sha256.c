/* sha256.c - see sha256.h. Names follow FIPS 180-4. */
#define _GNU_SOURCE
#include "base/sha256.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/bits.h"

static const uint32_t round_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], v[8];

    for (int t = 0; t < 16; t++)
        w[t] = be32(p + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        const uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t big1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25), ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
        const uint32_t big0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
        const uint32_t maj = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]), t1 = v[7] + big1 + ch + round_k[t] + w[t];
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + big0 + maj;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

#define NB_SHA __attribute__((target("sha,sse4.1,ssse3")))

/* The same with the instructions for it: 64 rounds, four at a time. The state is held as ABEF and CDGH. */
NB_SHA static void blocks_x86(uint32_t h[8], const uint8_t *p, size_t n)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const void *)h), 0xb1),
            b = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(h + 4)), 0x1b);
    __m128i a = _mm_alignr_epi8(t, b, 8), m[4];

    b = _mm_blend_epi16(b, t, 0xf0);
    for (; n > 0; n--, p += 64) {
        const __m128i a0 = a, b0 = b;
        for (int i = 0; i < 4; i++)
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(p + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            if (i >= 4) {
                t = _mm_add_epi32(_mm_sha256msg1_epu32(m[i & 3], m[(i + 1) & 3]), _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4));
                m[i & 3] = _mm_sha256msg2_epu32(t, m[(i + 3) & 3]);
            }
            t = _mm_add_epi32(m[i & 3], _mm_loadu_si128((const void *)(round_k + 4 * i)));
            b = _mm_sha256rnds2_epu32(b, a, t);
            a = _mm_sha256rnds2_epu32(a, b, _mm_shuffle_epi32(t, 0x0e));
        }
        a = _mm_add_epi32(a, a0);
        b = _mm_add_epi32(b, b0);
    }
    t = _mm_shuffle_epi32(a, 0x1b);
    b = _mm_shuffle_epi32(b, 0xb1);
    _mm_storeu_si128((void *)h, _mm_blend_epi16(t, b, 0xf0));
    _mm_storeu_si128((void *)(h + 4), _mm_alignr_epi8(b, t, 8));
}

static bool has_sha(void)
{
    static int known; /* written by several threads, always the same */
    unsigned a, b, c, d;

    if (__atomic_load_n(&known, __ATOMIC_RELAXED) == 0) {
        const bool yes = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1u && __get_cpuid(1, &a, &b, &c, &d) && c >> 19 & 1u;
        __atomic_store_n(&known, yes ? 1 : -1, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED) > 0;
}
#endif

static void blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_sha()) {
        blocks_x86(h, p, n);
        return;
    }
#endif
    for (; n > 0; n--, p += 64)
        block(h, p);
}

void nb_sha256_init(nb_sha256 *s)
{
    static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

    memcpy(s->h, first, sizeof first);
    s->n = 0;
}

void nb_sha256_add(nb_sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t have = s->n % 64;

    if (n == 0) /* data may be NULL */
        return;
    s->n += n;
    if (have) {
        const size_t take = n < 64 - have ? n : 64 - have;
        memcpy(s->part + have, p, take);
        p += take;
        n -= take;
        have += take;
        if (have < 64)
            return;
        blocks(s->h, s->part, 1);
    }
    blocks(s->h, p, n / 64);
    if (n % 64)
        memcpy(s->part, p + n / 64 * 64, n % 64);
}

void nb_sha256_add_le32(nb_sha256 *s, uint32_t v)
{
    uint8_t b[4];

    nb_put_le32(b, v);
    nb_sha256_add(s, b, 4);
}

void nb_sha256_end(nb_sha256 *s, uint8_t out[32])
{
    static const uint8_t pad[64] = { 0x80 };
    const uint64_t bits = s->n * 8;
    uint8_t len[8];

    nb_sha256_add(s, pad, 1 + (119 - s->n % 64) % 64);
    put_be32(len, (uint32_t)(bits >> 32));
    put_be32(len + 4, (uint32_t)bits);
    nb_sha256_add(s, len, 8);
    for (int i = 0; i < 8; i++)
        put_be32(out + 4 * i, s->h[i]);
}

static void hmac_pad(nb_sha256 *s, const uint8_t *key, size_t n_key, uint8_t with)
{
    uint8_t k[64] = { 0 };

    memcpy(k, key, n_key);
    for (int i = 0; i < 64; i++)
        k[i] ^= with;
    nb_sha256_init(s);
    nb_sha256_add(s, k, sizeof k);
}

void nb_hmac_init(nb_sha256 *s, const uint8_t *key, size_t n_key)
{
    hmac_pad(s, key, n_key, 0x36);
}

void nb_hmac_end(nb_sha256 *s, const uint8_t *key, size_t n_key, uint8_t out[32])
{
    uint8_t inner[32];

    nb_sha256_end(s, inner);
    hmac_pad(s, key, n_key, 0x5c);
    nb_sha256_add(s, inner, sizeof inner);
    nb_sha256_end(s, out);
}

bool nb_same_bytes(const void *a, const void *b, size_t n)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t diff = 0;

    for (size_t i = 0; i < n; i++)
        diff = (uint8_t)(diff | (x[i] ^ y[i]));
    return diff == 0;
}

void nb_wipe(void *p, size_t n)
{
    volatile uint8_t *b = p;

    while (n-- > 0)
        *b++ = 0;
}

bool nb_random_bytes(void *out, size_t n)
{
    uint8_t *p = out;

    while (n > 0) {
        const ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}
