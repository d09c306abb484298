/* vocab.h - pieces of text <-> ids. Filled once, then immutable and shared by threads.
 *
 * Ids may have holes; when several pieces share an id, nb_vocab_piece gives the first.
 * The hash is seeded per table, so that chosen pieces cannot make it quadratic. */
#ifndef NB_TEXT_VOCAB_H
#define NB_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define NB_VOCAB_MAX (1u << 22)  /* entries and ids (hardening 4) */
#define NB_PIECE_MAX (64u << 10) /* bytes of one piece            */

typedef struct nb_vocab {
    char *text; /* all pieces: length and id (4 bytes each), the bytes, a zero */
    size_t n_text, cap_text;
    struct nb_vocab_entry {
        uint32_t off, n, hash;
        int32_t id;
    } * entry;
    size_t n, cap;
    uint64_t *slot; /* hash << 32 | offset in text; 0: free. A look-up touches two cache lines */
    size_t n_slots;
    uint32_t *by_id; /* entry + 1; 0: hole */
    size_t n_ids, cap_ids;
    uint64_t seed;
} nb_vocab;

/* Zero the struct first. expected: how many pieces will come (a hint, already checked against the input's size). */
nb_status nb_vocab_init(nb_vocab *v, size_t expected, nb_err *err);
void nb_vocab_clear(nb_vocab *v);
/* Add piece s[n] with its id. *had tells that the piece was there (it keeps its id). Errors: "tok.id", "limit.token",
 * "limit.vocab". */
nb_status nb_vocab_add(nb_vocab *v, const char *s, size_t n, int64_t id, bool *had, nb_err *err);
/* Piece s[n], which is there, has another id too: it is found as that one from now on. Errors as above. */
nb_status nb_vocab_repeat(nb_vocab *v, const char *s, size_t n, int64_t id, nb_err *err);
int32_t nb_vocab_find(const nb_vocab *v, const char *s, size_t n);    /* -1 when absent */
const char *nb_vocab_piece(const nb_vocab *v, int32_t id, size_t *n); /* NULL for a hole */

/* Seed for a hash table: differs between tables and runs. */
uint64_t nb_hash_seed(const void *salt);

static inline uint64_t nb_hash_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9E3779B97F4A7C15u;

    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
}

#endif
