#include "text/vocab.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/mem.h"

#define HEAD 8 /* bytes before a piece: its length and id */

uint64_t nb_hash_seed(const void *salt)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return nb_hash_mix((uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec, (uint64_t)(uintptr_t)salt);
}

static uint32_t hash(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ n;
    uint64_t w;

    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = nb_hash_mix(h, w);
    }
    w = 0;
    memcpy(&w, s, n);
    return (uint32_t)(nb_hash_mix(h, w) >> 16);
}

static nb_status grow_slots(nb_vocab *v, size_t want, nb_err *err)
{
    size_t n = 64;
    uint64_t *slot;

    while (n < 2 * want)
        n *= 2;
    slot = nb_calloc(n, sizeof *slot);
    if (!slot)
        return nb_enomem(err, "the vocabulary");
    nb_free(v->slot);
    v->slot = slot;
    v->n_slots = n;
    for (size_t i = 0; i < v->n; i++) {
        size_t k = v->entry[i].hash & (n - 1);
        while (slot[k])
            k = (k + 1) & (n - 1);
        slot[k] = (uint64_t)v->entry[i].hash << 32 | v->entry[i].off;
    }
    return NB_OK;
}

/* Make room for want elements of `size` bytes, doubling. */
static bool reserve(void *pp, size_t *cap, size_t want, size_t size)
{
    void *p;
    size_t c = *cap ? *cap : 64, bytes;

    if (want <= *cap)
        return true;
    while (c < want)
        c *= 2;
    memcpy(&p, pp, sizeof p);
    if (!nb_mul_size(c, size, &bytes) || !(p = nb_realloc(p, bytes)))
        return false;
    memcpy(pp, &p, sizeof p);
    *cap = c;
    return true;
}

nb_status nb_vocab_init(nb_vocab *v, size_t expected, nb_err *err)
{
    v->seed = nb_hash_seed(v);
    if (expected > NB_VOCAB_MAX)
        expected = NB_VOCAB_MAX;
    if (!reserve(&v->entry, &v->cap, expected, sizeof *v->entry) || !reserve(&v->by_id, &v->cap_ids, expected, sizeof *v->by_id))
        return nb_enomem(err, "the vocabulary");
    return grow_slots(v, expected + expected / 4, err);
}

void nb_vocab_clear(nb_vocab *v)
{
    nb_free(v->text);
    nb_free(v->entry);
    nb_free(v->slot);
    nb_free(v->by_id);
    memset(v, 0, sizeof *v);
}

/* Slot of the piece, or the free slot where it belongs. */
static size_t seek(const nb_vocab *v, const char *s, size_t n, uint32_t h)
{
    size_t k = h & (v->n_slots - 1);

    while (v->slot[k]) {
        if (v->slot[k] >> 32 == h) {
            const char *p = v->text + (uint32_t)v->slot[k];
            if (nb_le32(p - 8) == n && memcmp(p, s, n) == 0)
                break;
        }
        k = (k + 1) & (v->n_slots - 1);
    }
    return k;
}

static nb_status check_entry(const nb_vocab *v, const char *s, size_t n, int64_t id, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (id < 0 || id > INT32_MAX)
        return nb_fail(err, NB_EFORMAT, "tok.id", "", "token \"%s\" has id %" PRId64 ", an id is a whole number from 0 below 2^31",
                       nb_esc(esc, sizeof esc, s, n), id);
    if (n > NB_PIECE_MAX)
        return nb_fail(err, NB_ELIMIT, "limit.token", "", "token %" PRId64 " has %zu bytes of text, at most %u are read", id, n,
                       NB_PIECE_MAX);
    if (id >= NB_VOCAB_MAX || v->n >= NB_VOCAB_MAX)
        return nb_fail(err, NB_ELIMIT, "limit.vocab", "", "token id %" PRId64 " of %zu tokens, at most %u are read", id, v->n + 1,
                       NB_VOCAB_MAX);
    return NB_OK;
}

/* Ids up to this one exist, as holes at first; there is room for them. */
static void reach(nb_vocab *v, size_t id)
{
    while (v->n_ids <= id)
        v->by_id[v->n_ids++] = 0;
}

nb_status nb_vocab_add(nb_vocab *v, const char *s, size_t n, int64_t id, bool *had, nb_err *err)
{
    const uint32_t h = hash(v->seed, s, n);
    nb_status rc = check_entry(v, s, n, id, err);
    size_t k;

    if (rc == NB_OK && v->n_slots < 2 * (v->n + 1))
        rc = grow_slots(v, 2 * (v->n + 1), err);
    if (rc != NB_OK)
        return rc;
    k = seek(v, s, n, h);
    *had = v->slot[k] != 0;
    if (*had)
        return NB_OK;
    if (!reserve(&v->text, &v->cap_text, v->n_text + n + HEAD + 1, 1) || !reserve(&v->entry, &v->cap, v->n + 1, sizeof *v->entry) ||
        !reserve(&v->by_id, &v->cap_ids, (size_t)id + 1, sizeof *v->by_id) || v->n_text + n + HEAD >= UINT32_MAX)
        return nb_enomem(err, "the vocabulary");
    reach(v, (size_t)id);
    nb_put_le32(v->text + v->n_text, (uint32_t)n);
    nb_put_le32(v->text + v->n_text + 4, (uint32_t)id);
    v->n_text += HEAD;
    memcpy(v->text + v->n_text, s, n);
    v->text[v->n_text + n] = 0;
    v->entry[v->n].off = (uint32_t)v->n_text;
    v->entry[v->n].n = (uint32_t)n;
    v->entry[v->n].hash = h;
    v->entry[v->n].id = (int32_t)id;
    v->slot[k] = (uint64_t)h << 32 | v->n_text;
    v->n_text += n + 1;
    v->n++;
    if (!v->by_id[id])
        v->by_id[id] = (uint32_t)v->n;
    return NB_OK;
}

nb_status nb_vocab_repeat(nb_vocab *v, const char *s, size_t n, int64_t id, nb_err *err)
{
    const size_t k = seek(v, s, n, hash(v->seed, s, n));
    nb_status rc = check_entry(v, s, n, id, err);
    uint32_t at, e;

    if (rc != NB_OK)
        return rc;
    if (!reserve(&v->by_id, &v->cap_ids, (size_t)id + 1, sizeof *v->by_id))
        return nb_enomem(err, "the vocabulary");
    reach(v, (size_t)id);
    at = (uint32_t)v->slot[k];
    e = v->by_id[nb_le32(v->text + at - 4)];
    if (!v->by_id[id])
        v->by_id[id] = e;
    v->entry[e - 1].id = (int32_t)id;
    nb_put_le32(v->text + at - 4, (uint32_t)id);
    return NB_OK;
}

int32_t nb_vocab_find(const nb_vocab *v, const char *s, size_t n)
{
    size_t k;

    if (v->n_slots == 0)
        return -1;
    k = seek(v, s, n, hash(v->seed, s, n));
    return v->slot[k] ? (int32_t)nb_le32(v->text + (uint32_t)v->slot[k] - 4) : -1;
}

const char *nb_vocab_piece(const nb_vocab *v, int32_t id, size_t *n)
{
    const struct nb_vocab_entry *e;

    if (id < 0 || (size_t)id >= v->n_ids || !v->by_id[id])
        return NULL;
    e = &v->entry[v->by_id[id] - 1];
    *n = e->n;
    return v->text + e->off;
}
