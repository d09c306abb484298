/* test_kv.c - the block pool against a naive model of itself: eviction order, hits, counts; and the hash chain byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/kv.h"

enum { PAGES = 13, TABLES = 6, MOST = 8, LOST = PAGES };

static uint64_t pick(uint64_t stream, uint64_t *at, uint64_t n)
{
    return (uint64_t)(nb_rng_uniform(17, stream, (*at)++) * (double)n);
}

/* The naive pool: what every page holds, and the free pages in the order in which they will be taken. */
typedef struct naive {
    uint32_t ref[PAGES], order[PAGES];
    size_t n_free;
    uint64_t content[PAGES]; /* 0: not published */
    uint32_t parent[PAGES];  /* the page before, 0: the first of a chain, LOST: it holds something else now */
    bool lfu;
    uint64_t hits[PAGES], used[PAGES], clock;
} naive;

static void naive_init(naive *m, bool lfu)
{
    memset(m, 0, sizeof *m);
    m->lfu = lfu;
    for (uint32_t p = 1; p < PAGES; p++)
        m->order[m->n_free++] = p;
}

static void naive_remove(naive *m, size_t at)
{
    memmove(m->order + at, m->order + at + 1, (--m->n_free - at) * sizeof *m->order);
}

/* The page holds something else from now on, nothing follows it. */
static void naive_orphan(naive *m, uint32_t p)
{
    for (size_t q = 0; q < PAGES; q++)
        if (m->parent[q] == p)
            m->parent[q] = LOST;
}

static uint32_t naive_find(const naive *m, uint32_t parent, uint64_t content)
{
    for (uint32_t p = 1; p < PAGES; p++)
        if (m->content[p] == content && m->parent[p] == parent)
            return p;
    return 0;
}

static bool naive_leaf(const naive *m, uint32_t p)
{
    for (size_t q = 0; q < PAGES; q++)
        if (m->content[q] && m->parent[q] == p)
            return false;
    return true;
}

/* Place in the order of what is taken next. */
static size_t naive_next(const naive *m)
{
    size_t best = 0;
    bool any = false;

    if (!m->lfu || !m->content[m->order[0]])
        return 0;
    for (size_t i = 0; i < m->n_free; i++) {
        const uint32_t p = m->order[i], b = m->order[best];
        if (naive_leaf(m, p) && (!any || m->hits[p] < m->hits[b] || (m->hits[p] == m->hits[b] && m->used[p] < m->used[b]))) {
            best = i;
            any = true;
        }
    }
    return best;
}

static uint32_t naive_alloc(naive *m)
{
    const size_t next = m->n_free ? naive_next(m) : 0;
    const uint32_t p = m->n_free ? m->order[next] : 0;

    if (p) {
        naive_remove(m, next);
        naive_orphan(m, p);
        m->content[p] = m->hits[p] = 0;
        m->ref[p] = 1;
    }
    return p;
}

static void naive_ref(naive *m, uint32_t p)
{
    for (size_t i = 0; i < m->n_free; i++)
        if (m->order[i] == p) {
            naive_remove(m, i);
            break;
        }
    m->ref[p]++;
    m->hits[p]++;
}

static void naive_release(naive *m, uint32_t p)
{
    if (--m->ref[p] > 0)
        return;
    m->used[p] = ++m->clock;
    if (m->content[p]) {
        m->order[m->n_free++] = p;
    } else {
        memmove(m->order + 1, m->order, m->n_free++ * sizeof *m->order);
        m->order[0] = p;
    }
}

/* A sequence: its pages, and which text it follows; content of block i of text t is t*100 + i + 1. */
typedef struct table {
    uint32_t page[MOST];
    size_t n, published;
    uint64_t text;
    uint32_t canon;
    nb_hash hash[MOST + 1];
} table;

static void ids_of(uint64_t text, size_t block, int32_t ids[NB_PAGE])
{
    for (size_t i = 0; i < NB_PAGE; i++)
        ids[i] = (int32_t)(text % 2 * 50 + block * 3 + i); /* texts of one parity share blocks, not chains */
}

static void start(nb_kv *kv, naive *m, table *t, uint64_t text)
{
    uint32_t parent = 0;
    int32_t ids[NB_PAGE];

    memset(t, 0, sizeof *t);
    t->text = text;
    t->hash[0].b[0] = (uint8_t)text; /* its root */
    for (size_t i = 0; i < MOST; i++) {
        ids_of(text, i, ids);
        t->hash[i + 1] = nb_kv_hash(&t->hash[i], ids);
    }
    for (size_t i = 0; i < MOST; i++) {
        const uint32_t want = naive_find(m, parent, text * 100 + i + 1);
        ids_of(text, i, ids);
        parent = nb_kv_find(kv, parent, &t->hash[i + 1], &t->hash[i], ids);
        assert_int_equal(parent, want);
        if (!parent)
            break;
        nb_kv_ref(kv, parent);
        naive_ref(m, parent);
        t->page[t->n++] = t->canon = parent;
    }
    t->published = t->n;
}

/* AT-1, AT-2, RAD-3: the page taken is always the one that the naive model names. */
static void run_histories(bool lfu)
{
    size_t evictions = 0;

    for (uint64_t stream = 0; stream < 60; stream++) {
        static table t[TABLES];
        static naive m;
        nb_kv kv;
        uint64_t at = 0;
        memset(t, 0, sizeof t);
        naive_init(&m, lfu);
        assert_int_equal(nb_kv_init(&kv, PAGES, NULL), NB_OK);
        if (lfu)
            assert_int_equal(nb_kv_use_lfu(&kv, NULL), NB_OK);
        for (int step = 0; step < 400; step++) {
            table *x = &t[pick(stream, &at, TABLES)];
            uint32_t refs[PAGES] = { 0 };
            nb_err err = { 0 };
            const uint64_t what = pick(stream, &at, 10);
            if (x->text == 0) {
                start(&kv, &m, x, 1 + pick(stream, &at, 4));
            } else if (what < 4 && x->n < MOST) { /* grow */
                const uint32_t p = nb_kv_alloc(&kv);
                assert_int_equal(p, naive_alloc(&m));
                if (p)
                    x->page[x->n++] = p;
            } else if (what < 8 && x->published < x->n) { /* publish the next block */
                const size_t b = x->published++;
                const uint64_t content = x->text * 100 + b + 1;
                const uint32_t before = b ? x->canon : 0, first = naive_find(&m, before, content);
                int32_t ids[NB_PAGE];
                ids_of(x->text, b, ids);
                x->canon = nb_kv_publish(&kv, x->page[b], before, &x->hash[b], &x->hash[b + 1], ids);
                assert_int_equal(x->canon, first ? first : x->page[b]);
                if (!first) {
                    m.content[x->page[b]] = content;
                    m.parent[x->page[b]] = before;
                }
            } else if (what < 9) { /* end */
                nb_kv_release(&kv, x->page, x->n);
                while (x->n > 0)
                    naive_release(&m, x->page[--x->n]);
                x->text = 0;
            } else if (pick(stream, &at, 10) == 0) {
                nb_kv_reset(&kv);
                for (uint32_t p = 0; p < PAGES; p++) /* free ones are pushed to the head in order of number */
                    if (m.content[p]) {
                        m.content[p] = 0;
                        naive_orphan(&m, p);
                        if (m.ref[p] == 0) {
                            naive_ref(&m, p);
                            naive_release(&m, p);
                        }
                    }
            }
            for (size_t i = 0; i < TABLES; i++)
                for (size_t j = 0; j < t[i].n; j++)
                    refs[t[i].page[j]]++;
            assert_memory_equal(refs, m.ref, sizeof refs);
            if (nb_kv_check(&kv, refs, &err) != NB_OK)
                fail_msg("history %d, step %d: %s", (int)stream, step, err.what);
            assert_int_equal(kv.n_free, m.n_free);
            for (size_t i = 0, p = kv.block[0].next; i < m.n_free; i++, p = kv.block[p].next)
                assert_int_equal(p, m.order[i]);
        }
        evictions += kv.evictions;
        nb_kv_clear(&kv);
    }
    assert_true(evictions > 1000);
}

static void test_histories(void **state)
{
    (void)state;
    run_histories(false);
}

static void test_histories_lfu(void **state)
{
    (void)state;
    run_histories(true);
}

/* RAD-3: a chain that was hit outlives a younger one, and its end goes before its beginning. */
static void test_lfu(void **state)
{
    const nb_hash root = { { 1 } };
    int32_t ids[4][NB_PAGE] = { { 1 }, { 2 }, { 3 }, { 4 } };
    nb_hash h[4];
    uint32_t page[4];
    nb_kv kv;

    (void)state;
    assert_int_equal(nb_kv_init(&kv, 5, NULL), NB_OK);
    assert_int_equal(nb_kv_use_lfu(&kv, NULL), NB_OK);
    for (size_t i = 0; i < 4; i++) { /* two chains of two blocks */
        const nb_hash *before = i % 2 ? &h[i - 1] : &root;
        h[i] = nb_kv_hash(before, ids[i]);
        page[i] = nb_kv_alloc(&kv);
        nb_kv_publish(&kv, page[i], i % 2 ? page[i - 1] : 0, before, &h[i], ids[i]);
    }
    nb_kv_ref(&kv, page[0]);
    nb_kv_ref(&kv, page[1]);
    nb_kv_release(&kv, page, 2);
    nb_kv_release(&kv, page, 2);
    nb_kv_release(&kv, page + 2, 2);
    assert_int_equal(nb_kv_alloc(&kv), page[3]);
    assert_int_equal(nb_kv_alloc(&kv), page[2]);
    assert_int_equal(nb_kv_alloc(&kv), page[1]);
    assert_int_equal(nb_kv_alloc(&kv), page[0]);
    assert_int_equal(nb_kv_alloc(&kv), 0);
    nb_kv_clear(&kv);
}

static const char *hex(const nb_hash *h)
{
    static char out[65];

    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", h->b[i]);
    return out;
}

/* KV-12. Values of Python's hashlib over the bytes that the page lists:
 *   root = sha256(b"nibble-kv/1" + bytes(range(32)) + b"\x11"*32 + u32(32) + u32(7) + u32(0) + b"\x22"*32 + u32(0))
 *   block = sha256(root + u32(32) + b"".join(u32(i * 1000) for i in range(32))) */
static void test_hash_chain(void **state)
{
    uint8_t secret[32], fingerprint[32], ns[32];
    const nb_kv_identity id = { .secret = secret, .fingerprint = fingerprint, .ns = ns, .kv_dtype = 7, .adapter = "" };
    int32_t ids[NB_PAGE];
    nb_hash root, block;

    (void)state;
    for (int i = 0; i < 32; i++) {
        secret[i] = (uint8_t)i;
        ids[i] = i * 1000;
    }
    memset(fingerprint, 0x11, 32);
    memset(ns, 0x22, 32);
    root = nb_kv_root(&id);
    assert_string_equal(hex(&root), "efe56674153474e94f6e752b78778e7753e3a3db42b9f99d9d86180508ef2447");
    block = nb_kv_hash(&root, ids);
    assert_string_equal(hex(&block), "36c51d5215be5066c8e2f2dd4d6c9fc0054af0f89d862bcc411a945dd1e969c0");
}

/* PC-02, PC-03: whatever the answer depends on gives another root. */
static void test_identity(void **state)
{
    uint8_t a[32] = { 0 }, b[32] = { 1 };
    const nb_kv_identity base = { .secret = a, .fingerprint = a, .ns = a, .kv_dtype = 1, .adapter = "" };
    nb_kv_identity rows[6];
    nb_hash root[7];

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        rows[i] = base;
    rows[0].secret = b;
    rows[1].fingerprint = b; /* another model */
    rows[2].ns = b;          /* another tenant or salt */
    rows[3].kv_dtype = 2;
    rows[4].numerics = 1;
    rows[5].adapter = "a";
    root[6] = nb_kv_root(&base);
    for (size_t i = 0; i < NB_LEN(rows); i++)
        root[i] = nb_kv_root(&rows[i]);
    for (size_t i = 0; i < NB_LEN(root); i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(&root[i], &root[j], sizeof root[i]);
}

/* PC-01: blocks that have one hash in common are told apart by their ids and by the blocks before them. */
static void test_equal_hashes(void **state)
{
    const nb_hash same = { { 9 } };
    int32_t a[NB_PAGE] = { 1 }, b[NB_PAGE] = { 2 }, c[NB_PAGE] = { 3 };
    nb_kv kv;

    (void)state;
    assert_int_equal(nb_kv_init(&kv, 8, NULL), NB_OK);
    const uint32_t pa = nb_kv_alloc(&kv), pb = nb_kv_alloc(&kv), pac = nb_kv_alloc(&kv);
    assert_int_equal(nb_kv_publish(&kv, pa, 0, &same, &same, a), pa);
    assert_int_equal(nb_kv_publish(&kv, pb, 0, &same, &same, b), pb);
    assert_int_equal(nb_kv_publish(&kv, pac, pa, &same, &same, c), pac);
    assert_int_equal(nb_kv_find(&kv, 0, &same, &same, a), pa);
    assert_int_equal(nb_kv_find(&kv, 0, &same, &same, b), pb);
    assert_int_equal(nb_kv_find(&kv, 0, &same, &same, c), 0);
    assert_int_equal(nb_kv_find(&kv, pa, &same, &same, c), pac);
    assert_int_equal(nb_kv_find(&kv, pb, &same, &same, c), 0);
    nb_kv_unpublish(&kv, pa); /* and what follows it cannot be reached through a page that holds something else now */
    assert_int_equal(nb_kv_publish(&kv, pa, 0, &same, &same, b), pb);
    assert_int_equal(nb_kv_find(&kv, pa, &same, &same, c), 0);
    nb_kv_clear(&kv);
}

/* KV-7: the published child that shares most. */
static void test_partial(void **state)
{
    int32_t ids[NB_PAGE], other[NB_PAGE];
    const nb_hash root = { { 1 } };
    uint32_t page[3];
    size_t shared;
    nb_kv kv;

    (void)state;
    assert_int_equal(nb_kv_init(&kv, 8, NULL), NB_OK);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < NB_PAGE; i++)
            ids[i] = (int32_t)(i < 5 + 10 * k ? i : 100 + k);
        const nb_hash h = nb_kv_hash(&root, ids);
        page[k] = nb_kv_alloc(&kv);
        assert_int_equal(nb_kv_publish(&kv, page[k], 0, &root, &h, ids), page[k]);
    }
    for (size_t i = 0; i < NB_PAGE; i++)
        other[i] = (int32_t)(i < 18 ? i : 900);
    assert_int_equal(nb_kv_find_partial(&kv, 0, &root, other, NB_PAGE, &shared), page[2]);
    assert_int_equal(shared, 18);
    nb_kv_unpublish(&kv, page[2]);
    assert_int_equal(nb_kv_find_partial(&kv, 0, &root, other, NB_PAGE, &shared), page[1]);
    assert_int_equal(shared, 15);
    assert_true(nb_kv_find_partial(&kv, 0, &root, other, 3, &shared) != 0 && shared == 3);
    other[0] = 77;
    assert_int_equal(nb_kv_find_partial(&kv, 0, &root, other, NB_PAGE, &shared), 0);
    nb_kv_clear(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histories_lfu), cmocka_unit_test(test_lfu),      cmocka_unit_test(test_histories),
        cmocka_unit_test(test_hash_chain),    cmocka_unit_test(test_identity), cmocka_unit_test(test_equal_hashes),
        cmocka_unit_test(test_partial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
