/* strmap.c - open addressing with linear probing over SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input
 * PRF", 2012) and a random seed per process. */
#include "base/strmap.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/bits.h"
#include "base/mem.h"

typedef struct {
    const char *key; /* NULL: free slot */
    size_t n;
    uint64_t hash, value;
} slot;

struct nb_strmap {
    slot *slots; /* [mask + 1] */
    size_t mask, count;
    nb_arena keys;
};

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static uint64_t seed[2];

static void make_seed(void)
{
    struct timespec ts;

    if (getrandom(seed, sizeof seed, 0) == (ssize_t)sizeof seed)
        return;
    clock_gettime(CLOCK_REALTIME, &ts); /* no entropy device: better than a constant */
    seed[0] = (uint64_t)ts.tv_nsec * 0x9e3779b97f4a7c15u;
    seed[1] = (uint64_t)ts.tv_sec ^ (uint64_t)(uintptr_t)&ts;
}

static inline uint64_t rotl(uint64_t v, unsigned b)
{
    return v << b | v >> (64 - b);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static uint64_t hash_key(const char *key, size_t n)
{
    uint64_t v[4] = { seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du, seed[0] ^ 0x6c7967656e657261u,
                      seed[1] ^ 0x7465646279746573u };
    uint64_t last = (uint64_t)n << 56;
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        const uint64_t w = nb_le64(key + i);
        v[3] ^= w;
        sip_round(v);
        v[0] ^= w;
    }
    for (unsigned b = 0; i < n; i++, b += 8)
        last |= (uint64_t)(unsigned char)key[i] << b;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int r = 0; r < 3; r++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

nb_strmap *nb_strmap_new(size_t expected)
{
    nb_strmap *m = nb_calloc(1, sizeof *m);
    size_t cap = 16;

    pthread_once(&seed_once, make_seed);
    if (!m)
        return NULL;
    while (cap / 4 * 3 <= expected && cap <= SIZE_MAX / 4)
        cap *= 2;
    m->slots = nb_calloc(cap, sizeof *m->slots);
    m->mask = cap - 1;
    if (!m->slots) {
        nb_free(m);
        return NULL;
    }
    return m;
}

void nb_strmap_free(nb_strmap *m)
{
    if (!m)
        return;
    nb_arena_clear(&m->keys);
    nb_free(m->slots);
    nb_free(m);
}

/* The slot that holds the key, or the free one where it belongs. */
static slot *find(const nb_strmap *m, const char *key, size_t n, uint64_t hash)
{
    for (size_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && s->n == n && (n == 0 || memcmp(s->key, key, n) == 0)))
            return s;
    }
}

static bool grow(nb_strmap *m)
{
    const size_t cap = m->mask + 1;
    slot *old = m->slots;
    slot *fresh = cap <= SIZE_MAX / 2 ? nb_calloc(2 * cap, sizeof *fresh) : NULL;

    if (!fresh)
        return false;
    m->slots = fresh;
    m->mask = 2 * cap - 1;
    for (size_t i = 0; i < cap; i++) {
        if (!old[i].key)
            continue;
        size_t j = old[i].hash & m->mask;
        while (fresh[j].key)
            j = (j + 1) & m->mask;
        fresh[j] = old[i];
    }
    nb_free(old);
    return true;
}

nb_status nb_strmap_put(nb_strmap *m, const char *key, size_t n, uint64_t value, bool *had)
{
    const uint64_t hash = hash_key(key, n);
    slot *s = find(m, key, n, hash);
    const char *copy;

    if (had)
        *had = s->key != NULL;
    if (s->key)
        return NB_OK;
    if (m->count + 1 > (m->mask + 1) / 4 * 3) {
        if (!grow(m))
            return NB_ENOMEM;
        s = find(m, key, n, hash);
    }
    copy = nb_arena_strndup(&m->keys, key, n);
    if (!copy)
        return NB_ENOMEM;
    *s = (slot){ copy, n, hash, value };
    m->count++;
    return NB_OK;
}

bool nb_strmap_get(const nb_strmap *m, const char *key, size_t n, uint64_t *value)
{
    const slot *s = find(m, key, n, hash_key(key, n));

    if (!s->key)
        return false;
    if (value)
        *value = s->value;
    return true;
}

size_t nb_strmap_count(const nb_strmap *m)
{
    return m->count;
}
