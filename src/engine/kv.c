/* kv.c - free list, heap of leaves, two hash maps over the blocks (by hash, by parent's hash), and their invariants. */
#include "engine/kv.h"

#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/sha256.h"

enum { MOST_SIBLINGS = 64 }; /* looked at for a partial match, newest first */

nb_status nb_kv_init(nb_kv *kv, size_t n_pages, nb_err *err)
{
    memset(kv, 0, sizeof *kv);
    if (n_pages < 2 || n_pages >= UINT32_MAX / 2)
        return nb_fail(err, NB_EARG, "kv.pages", "", "a pool of %zu pages; at least 2 and less than 2^31 are needed", n_pages);
    kv->n_buckets = 16;
    while (kv->n_buckets < n_pages)
        kv->n_buckets *= 2;
    kv->block = nb_calloc(n_pages, sizeof *kv->block);
    kv->map = nb_calloc(kv->n_buckets, sizeof *kv->map);
    kv->child = nb_calloc(kv->n_buckets, sizeof *kv->child);
    if (!kv->block || !kv->map || !kv->child) {
        nb_kv_clear(kv);
        return nb_enomem(err, "the block pool");
    }
    kv->n_pages = n_pages;
    kv->n_free = n_pages - 1;
    for (size_t i = 0; i < n_pages; i++) {
        kv->block[i].next = (uint32_t)((i + 1) % n_pages);
        kv->block[i].prev = (uint32_t)((i + n_pages - 1) % n_pages);
    }
    return NB_OK;
}

nb_status nb_kv_use_lfu(nb_kv *kv, nb_err *err)
{
    kv->leaf = nb_alloc_array(kv->n_pages, sizeof *kv->leaf);
    return kv->leaf ? NB_OK : nb_enomem(err, "the heap of cached blocks");
}

void nb_kv_clear(nb_kv *kv)
{
    nb_free(kv->leaf);
    nb_free(kv->block);
    nb_free(kv->map);
    nb_free(kv->child);
    memset(kv, 0, sizeof *kv);
}

/* ---- leaves: the free published blocks that no published block follows, a heap with the least used on top (RAD-3) ---- */

static bool less_used(const nb_kv *kv, uint32_t a, uint32_t b)
{
    const nb_kv_block *x = &kv->block[a], *y = &kv->block[b];

    return x->hits != y->hits ? x->hits < y->hits : x->used < y->used;
}

static void put_leaf(nb_kv *kv, size_t at, uint32_t page)
{
    kv->leaf[at] = page;
    kv->block[page].leaf_at = (uint32_t)at;
}

/* Put a page where it belongs on the way up or down from the empty place `at`. */
static void sift(nb_kv *kv, size_t at, uint32_t page)
{
    for (; at > 1 && less_used(kv, page, kv->leaf[at / 2]); at /= 2)
        put_leaf(kv, at, kv->leaf[at / 2]);
    for (size_t c = 2 * at; c <= kv->n_leaves; c = 2 * at) {
        c += c < kv->n_leaves && less_used(kv, kv->leaf[c + 1], kv->leaf[c]);
        if (!less_used(kv, kv->leaf[c], page))
            break;
        put_leaf(kv, at, kv->leaf[c]);
        at = c;
    }
    put_leaf(kv, at, page);
}

static bool is_leaf(const nb_kv_block *b)
{
    return b->ref == 0 && b->published && b->n_children == 0;
}

/* After every change of what is_leaf looks at: into the heap, or out of it. */
static void sort_leaf(nb_kv *kv, uint32_t page)
{
    nb_kv_block *b = &kv->block[page];
    const uint32_t at = b->leaf_at;
    uint32_t last;

    if (!kv->leaf || is_leaf(b) == (at > 0))
        return;
    if (!at) {
        sift(kv, ++kv->n_leaves, page);
        return;
    }
    last = kv->leaf[kv->n_leaves--];
    b->leaf_at = 0;
    if (last != page)
        sift(kv, at, last);
}

/* One published child more or less of what `parent` held in generation `gen`. */
static void count_child(nb_kv *kv, uint32_t parent, uint32_t gen, bool more)
{
    nb_kv_block *b = &kv->block[parent];

    if (b->gen != gen)
        return;
    b->n_children += more ? 1 : -1U;
    sort_leaf(kv, parent);
}

/* The page holds something else from now on: nothing follows it. */
static void next_gen(nb_kv_block *b)
{
    b->gen++;
    b->n_children = 0;
}

/* ---- free list ---- */

static void unlink_free(nb_kv *kv, uint32_t page)
{
    const nb_kv_block *b = &kv->block[page];

    kv->block[b->prev].next = b->next;
    kv->block[b->next].prev = b->prev;
    kv->n_free--;
    kv->n_cached -= b->published;
}

static void link_free(nb_kv *kv, uint32_t page)
{
    nb_kv_block *b = &kv->block[page];
    const uint32_t after = b->published ? kv->block[0].prev : 0;

    b->prev = after;
    b->next = kv->block[after].next;
    kv->block[b->next].prev = page;
    kv->block[after].next = page;
    kv->n_free++;
    kv->n_cached += b->published;
    b->used = ++kv->clock;
}

uint32_t nb_kv_alloc(nb_kv *kv)
{
    uint32_t page = kv->block[0].next;
    nb_kv_block *b;

    if (page == 0)
        return 0;
    if (kv->block[page].published && kv->n_leaves > 0) /* else every free block has a child that is held */
        page = kv->leaf[1];
    b = &kv->block[page];
    if (b->published) {
        nb_kv_unpublish(kv, page);
        kv->evictions++;
    }
    unlink_free(kv, page);
    b->ref = 1;
    b->hits = 0;
    next_gen(b);
    b->proven = b->on_disk = false;
    return page;
}

void nb_kv_ref(nb_kv *kv, uint32_t page)
{
    if (kv->block[page].ref == 0)
        unlink_free(kv, page);
    kv->block[page].ref++;
    kv->block[page].hits++;
    sort_leaf(kv, page);
}

void nb_kv_release(nb_kv *kv, const uint32_t *pages, size_t n)
{
    while (n-- > 0)
        if (--kv->block[pages[n]].ref == 0) {
            link_free(kv, pages[n]);
            sort_leaf(kv, pages[n]);
        }
}

/* ---- hashes ---- */

nb_hash nb_kv_root(const nb_kv_identity *id)
{
    static const char tag[] = "nibble-kv/1";
    const size_t n = strlen(id->adapter);
    nb_sha256 s;
    nb_hash h;

    nb_sha256_init(&s);
    nb_sha256_add(&s, tag, sizeof tag - 1);
    nb_sha256_add(&s, id->secret, 32);
    nb_sha256_add(&s, id->fingerprint, 32);
    nb_sha256_add_le32(&s, NB_PAGE);
    nb_sha256_add_le32(&s, id->kv_dtype);
    nb_sha256_add_le32(&s, id->numerics);
    nb_sha256_add(&s, id->ns, 32);
    nb_sha256_add_le32(&s, (uint32_t)n);
    nb_sha256_add(&s, id->adapter, n);
    nb_sha256_end(&s, h.b);
    return h;
}

nb_hash nb_kv_hash(const nb_hash *parent, const int32_t *ids)
{
    uint8_t bytes[4 * NB_PAGE];
    nb_sha256 s;
    nb_hash h;

    for (size_t i = 0; i < NB_PAGE; i++)
        nb_put_le32(bytes + 4 * i, (uint32_t)ids[i]);
    nb_sha256_init(&s);
    nb_sha256_add(&s, parent->b, sizeof parent->b);
    nb_sha256_add_le32(&s, NB_PAGE);
    nb_sha256_add(&s, bytes, sizeof bytes);
    nb_sha256_end(&s, h.b);
    return h;
}

static uint32_t *bucket(uint32_t *table, size_t n, const nb_hash *h)
{
    return &table[nb_le64(h->b) & (n - 1)];
}

static bool same(const nb_hash *a, const nb_hash *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

/* Does block b follow `parent`, in whatever page its content lies now? */
static bool follows(const nb_kv *kv, const nb_kv_block *b, uint32_t parent, const nb_hash *parent_hash)
{
    return b->parent == parent && b->parent_gen == kv->block[parent].gen && same(&b->parent_hash, parent_hash);
}

uint32_t nb_kv_find(const nb_kv *kv, uint32_t parent, const nb_hash *hash, const nb_hash *parent_hash, const int32_t *ids)
{
    for (uint32_t p = *bucket(kv->map, kv->n_buckets, hash); p; p = kv->block[p].map_next) {
        const nb_kv_block *b = &kv->block[p];
        if (same(&b->hash, hash) && follows(kv, b, parent, parent_hash) && memcmp(b->ids, ids, sizeof b->ids) == 0)
            return p;
    }
    return 0;
}

uint32_t nb_kv_find_partial(const nb_kv *kv, uint32_t parent, const nb_hash *parent_hash, const int32_t *ids, size_t n, size_t *shared)
{
    uint32_t best = 0;
    int left = MOST_SIBLINGS;

    *shared = 0;
    for (uint32_t p = *bucket(kv->child, kv->n_buckets, parent_hash); p && left-- > 0; p = kv->block[p].child_next) {
        const nb_kv_block *b = &kv->block[p];
        size_t k = 0;
        if (!follows(kv, b, parent, parent_hash))
            continue;
        while (k < n && b->ids[k] == ids[k])
            k++;
        if (k > *shared) {
            *shared = k;
            best = p;
        }
    }
    return best;
}

uint32_t nb_kv_publish(nb_kv *kv, uint32_t page, uint32_t parent, const nb_hash *parent_hash, const nb_hash *hash, const int32_t *ids)
{
    nb_kv_block *b = &kv->block[page];
    uint32_t *map = bucket(kv->map, kv->n_buckets, hash), *child = bucket(kv->child, kv->n_buckets, parent_hash);
    const uint32_t first = nb_kv_find(kv, parent, hash, parent_hash, ids);

    if (first)
        return first;
    b->published = true;
    b->hash = *hash;
    b->parent_hash = *parent_hash;
    b->parent = parent;
    b->parent_gen = kv->block[parent].gen;
    memcpy(b->ids, ids, sizeof b->ids);
    b->map_prev = b->child_prev = 0;
    b->map_next = *map;
    b->child_next = *child;
    if (*map)
        kv->block[*map].map_prev = page;
    if (*child)
        kv->block[*child].child_prev = page;
    *map = *child = page;
    count_child(kv, parent, b->parent_gen, true);
    return page;
}

void nb_kv_unpublish(nb_kv *kv, uint32_t page)
{
    nb_kv_block *b = &kv->block[page];
    const bool is_free = b->ref == 0;

    if (!b->published)
        return;
    if (is_free)
        unlink_free(kv, page);
    if (b->map_prev)
        kv->block[b->map_prev].map_next = b->map_next;
    else
        *bucket(kv->map, kv->n_buckets, &b->hash) = b->map_next;
    if (b->map_next)
        kv->block[b->map_next].map_prev = b->map_prev;
    if (b->child_prev)
        kv->block[b->child_prev].child_next = b->child_next;
    else
        *bucket(kv->child, kv->n_buckets, &b->parent_hash) = b->child_next;
    if (b->child_next)
        kv->block[b->child_next].child_prev = b->child_prev;
    b->published = b->proven = false;
    next_gen(b); /* what follows it in a chain cannot be found either */
    if (is_free)
        link_free(kv, page);
    sort_leaf(kv, page);
    count_child(kv, b->parent, b->parent_gen, false);
}

size_t nb_kv_reset(nb_kv *kv)
{
    const size_t dropped = kv->n_cached;

    for (size_t i = 1; i < kv->n_pages; i++)
        nb_kv_unpublish(kv, (uint32_t)i);
    return dropped;
}

/* ---- invariants ---- */

static nb_status broken(nb_err *err, const char *what, size_t page)
{
    return nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-4", "block %zu: %s", page, what);
}

static nb_status check_leaves(const nb_kv *kv, nb_err *err)
{
    size_t n_leaves = 0, n_children = 0, followers = 0;

    for (uint32_t p = 0; p < kv->n_pages; p++) {
        const nb_kv_block *b = &kv->block[p];
        n_leaves += is_leaf(b);
        n_children += b->n_children;
        followers += b->published && b->parent_gen == kv->block[b->parent].gen;
        if (kv->leaf && is_leaf(b) != (b->leaf_at > 0))
            return broken(err, "in the heap of leaves, or missing there", p);
        if (b->leaf_at > 0 && (kv->leaf[b->leaf_at] != p || (b->leaf_at > 1 && less_used(kv, p, kv->leaf[b->leaf_at / 2]))))
            return broken(err, "out of order among the leaves", p);
    }
    if (n_children != followers || (kv->leaf && n_leaves != kv->n_leaves))
        return broken(err, "children or leaves do not add up", n_children);
    return NB_OK;
}

nb_status nb_kv_check(const nb_kv *kv, const uint32_t *refs, nb_err *err)
{
    size_t n_free = 0, n_cached = 0, used = 0;

    for (uint32_t p = kv->block[0].next; p; p = kv->block[p].next) {
        if (kv->block[p].ref != 0 || n_free++ > kv->n_pages)
            return broken(err, "in the free list, but held", p);
        n_cached += kv->block[p].published;
        if (kv->block[kv->block[p].next].prev != p)
            return broken(err, "the free list is torn", p);
    }
    for (size_t p = 1; p < kv->n_pages; p++) {
        const nb_kv_block *b = &kv->block[p];
        used += b->ref > 0;
        if (b->ref != refs[p])
            return broken(err, "its count differs from the tables that name it", p);
        if (b->published && nb_kv_find(kv, b->parent, &b->hash, &b->parent_hash, b->ids) == 0 && b->parent_gen == kv->block[b->parent].gen)
            return broken(err, "published, but not found under its hash", p);
    }
    if (refs[0] != 0 || kv->block[0].ref != 0)
        return broken(err, "held", 0);
    if (n_free != kv->n_free || n_cached != kv->n_cached || n_free + used != kv->n_pages - 1)
        return broken(err, "free and held blocks do not add up", n_free);
    if (kv->n_reserved > n_free)
        return broken(err, "more blocks are promised than are free", kv->n_reserved);
    for (size_t i = 0; i < kv->n_buckets; i++)
        for (uint32_t p = kv->map[i]; p; p = kv->block[p].map_next)
            if (!kv->block[p].published || bucket(kv->map, kv->n_buckets, &kv->block[p].hash) != &kv->map[i])
                return broken(err, "in the map without being published", p);
    return check_leaves(kv, err);
}
