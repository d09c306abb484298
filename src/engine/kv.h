/* kv.h - the block pool: who holds which KV page, and which pages can be found again by what is in them. Numbers only, the bytes
 * belong to the executor. A block is one page of NB_PAGE tokens. Not thread safe. Source: spec serving 2.2, 2.3.
 *
 * Block 0 is never handed out. A block is free when nobody refers to it; a free block that is published keeps its content and can
 * be hit until it is popped for reuse. The free list is popped at its head; blocks that are not published go back to the head,
 * published ones to the tail, and a table is released from its last entry on: tails of a chain die before their beginning. With
 * nb_kv_use_lfu the published ones are taken by how often they were used instead, leaves of the tree of chains first (RAD-3). */
#ifndef NB_ENGINE_KV_H
#define NB_ENGINE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kern/kern.h"

/* Hash of a block's whole past. A hash alone never decides: ids and the chain of blocks are compared too (PC-01). */
typedef struct nb_hash {
    uint8_t b[32];
} nb_hash;

typedef struct nb_kv_block {
    uint32_t ref;
    uint32_t prev, next;             /* free list, while ref is 0 */
    uint32_t map_prev, map_next;     /* blocks of one bucket of hashes, while published */
    uint32_t child_prev, child_next; /* of one bucket of parent hashes */
    uint32_t gen;                    /* counts what the page has held */
    uint64_t stamp;                  /* step in which it was published: computed only when that has run */
    uint32_t parent, parent_gen;     /* the published block before this one; 0: the first of a chain */
    uint32_t n_children;             /* published blocks whose parent is what this page holds now */
    uint32_t leaf_at;                /* place in nb_kv.leaf, 0: none */
    uint64_t hits, used;             /* references taken since it was handed out; nb_kv.clock when it became free */
    bool published, proven;          /* proven: logits computed from it were finite (PC-06) */
    bool on_disk;                    /* disk.c wrote it, or read it there */
    nb_hash hash, parent_hash;
    int32_t ids[NB_PAGE];
} nb_kv_block;

typedef struct nb_kv {
    nb_kv_block *block; /* [n_pages]; 0 is the end of the free list */
    uint32_t *map, *child;
    size_t n_buckets;                 /* a power of two */
    size_t n_pages, n_free, n_cached; /* n_cached: published and free */
    size_t n_reserved;                /* free ones promised to somebody (KV-18, KV-24) */
    uint32_t *leaf;                   /* [1..n_leaves]: heap of the free published blocks without children; NULL: by the free list */
    size_t n_leaves;
    uint64_t clock; /* counts the blocks that became free */
    uint64_t evictions;
} nb_kv;

nb_status nb_kv_init(nb_kv *kv, size_t n_pages, nb_err *err);
void nb_kv_clear(nb_kv *kv);
/* From now on take, of the published blocks, the leaf with the fewest hits, of several the one not used longest. Before any is published. */
nb_status nb_kv_use_lfu(nb_kv *kv, nb_err *err);

/* Take a free block, in the order told above; it is no longer published. 0: none is free. Reservations are the caller's business. */
uint32_t nb_kv_alloc(nb_kv *kv);
/* One more reference to a block that is held or published. */
void nb_kv_ref(nb_kv *kv, uint32_t page);
/* One reference less for each, the last first. */
void nb_kv_release(nb_kv *kv, const uint32_t *pages, size_t n);

/* What a chain is rooted in [KV-12, KV-13], and the hash of a full block after `parent`. */
typedef struct nb_kv_identity {
    const uint8_t *secret, *fingerprint, *ns; /* [32] each */
    uint32_t kv_dtype, numerics;
    const char *adapter; /* "" : none */
} nb_kv_identity;
nb_hash nb_kv_root(const nb_kv_identity *id);
nb_hash nb_kv_hash(const nb_hash *parent, const int32_t *ids);

/* Make a held block findable. parent: the block that nb_kv_publish or nb_kv_find named for the block before, 0 at the beginning.
 * Returns the block that stands for this content: page, or the one that was there first. */
uint32_t nb_kv_publish(nb_kv *kv, uint32_t page, uint32_t parent, const nb_hash *parent_hash, const nb_hash *hash, const int32_t *ids);
/* It cannot be found any more. Nothing happens to one that is not published. */
void nb_kv_unpublish(nb_kv *kv, uint32_t page);
/* The published block with this content after `parent`, or 0. */
uint32_t nb_kv_find(const nb_kv *kv, uint32_t parent, const nb_hash *hash, const nb_hash *parent_hash, const int32_t *ids);
/* The published block after `parent` that shares the most leading ids (at most n, n <= NB_PAGE); *shared says how many. 0: none. */
uint32_t nb_kv_find_partial(const nb_kv *kv, uint32_t parent, const nb_hash *parent_hash, const int32_t *ids, size_t n, size_t *shared);
/* Unpublish everything; returns how many free blocks lost their content [KV-10]. */
size_t nb_kv_reset(nb_kv *kv);

/* All invariants of KV-4 that the pool can see; refs[n_pages]: table entries that name each block. NB_EINTERNAL "kv.invariant". */
nb_status nb_kv_check(const nb_kv *kv, const uint32_t *refs, nb_err *err);

#endif
