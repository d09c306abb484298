/* sha256.c - see sha256.h. Names follow FIPS 180-4. */
#define _GNU_SOURCE
#include "base/sha256.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/bits.h"

const uint32_t nb_sha256_k[64] = {
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
    for (int i = 0; i < 8; i++)
        v[i] = h[i];
    for (int t = 0; t < 64; t += 8) /* the eight values change places with every round: after eight each is back where it was */
        for (int i = 0; i < 8; i++) {
            uint32_t *a = &v[(8 - i) & 7], *b = &v[(9 - i) & 7], *c = &v[(10 - i) & 7], *d = &v[(11 - i) & 7];
            const uint32_t e = v[(12 - i) & 7], f = v[(13 - i) & 7], g = v[(14 - i) & 7];
            uint32_t *last = &v[(15 - i) & 7];
            const uint32_t big1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25), ch = (e & f) ^ (~e & g);
            const uint32_t big0 = rotr(*a, 2) ^ rotr(*a, 13) ^ rotr(*a, 22);
            const uint32_t maj = (*a & *b) ^ (*a & *c) ^ (*b & *c), t1 = *last + big1 + ch + nb_sha256_k[t + i] + w[t + i];
            *d += t1;
            *last = t1 + big0 + maj;
        }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void nb_sha256_blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
    for (; n > 0; n--, p += 64)
        block(h, p);
}

void nb_sha256_init_by(nb_sha256 *s, nb_sha256_fn *blocks)
{
    static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

    memcpy(s->h, first, sizeof first);
    s->n = 0;
    s->blocks = blocks;
}

void nb_sha256_init(nb_sha256 *s)
{
    nb_sha256_init_by(s, nb_sha256_blocks);
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
        s->blocks(s->h, s->part, 1);
    }
    if (n >= 64)
        s->blocks(s->h, p, n / 64);
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
