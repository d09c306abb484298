/* bpe.h - the model kind "BPE" between its reader (bpe.c) and its encoder (bpe_encode.c). Source: spec tokenizers 8.1. */
#ifndef NB_TEXT_BPE_H
#define NB_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokmodel.h"

typedef struct nb_bpe_merge {
    uint32_t a, b;
    uint32_t rank; /* UINT32_MAX: free */
    int32_t id;
} nb_bpe_merge;

/* Where a piece can be cut without changing its ids: between two characters that no merge has side by side where its parts
 * meet. A set of such meetings, hashed to bits; a bit too many only means a cut less. */
#define NB_BPE_MEET_BITS 20

typedef struct nb_bpe {
    nb_tokmodel base;
    bool raw, ignore_merges, fuse_unk, byte_fallback, has_unk;
    bool all_bytes;        /* byte_fallback with all of its tokens: no character is unknown */
    char *prefix, *suffix; /* NULL when empty */
    size_t n_prefix, n_suffix;
    int32_t unk; /* -1: none in the vocabulary */
    char *unk_token;
    int32_t byte_id[256]; /* raw: the stand-in's id; else, with byte_fallback, that of <0xHH>; -1: absent */
    nb_vocab words;       /* raw and ignore_merges: whole pieces as bytes */
    nb_bpe_merge *pairs;  /* open addressing, a power of two */
    size_t n_pairs;
    uint64_t seed;
    int32_t made;   /* while reading merges: what the last one made */
    uint64_t *meet; /* NULL: pieces are not cut */
} nb_bpe;

/* The slot of this pair: its merge, or a free one. */
static inline nb_bpe_merge *nb_bpe_pair(const nb_bpe *m, uint32_t a, uint32_t b)
{
    size_t k = (size_t)nb_hash_mix(m->seed, (uint64_t)a << 32 | b) & (m->n_pairs - 1);

    while (m->pairs[k].rank != UINT32_MAX && (m->pairs[k].a != a || m->pairs[k].b != b))
        k = (k + 1) & (m->n_pairs - 1);
    return &m->pairs[k];
}

/* The bit of two neighbouring characters. */
static inline uint32_t nb_bpe_meet_bit(uint32_t left, uint32_t right)
{
    return (left * 0x9E3779B1u ^ right * 0x85EBCA77u) * 0xC2B2AE3Du >> (32 - NB_BPE_MEET_BITS);
}

nb_status nb_bpe_encode(const nb_tokmodel *base, nb_tokwork *tw, const char *s, size_t n, nb_ids *out, nb_err *err);

#endif
