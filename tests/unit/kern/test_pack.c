/* test_pack.c - the packed 4-bit and 8-bit layouts: sizes, round trip, fused parts, act-order, every table against scalar. */
#include "q4_case.h"

/* Code, scale and zero of packed row r, packed input j, read by the drawing in kern.h. */
static unsigned code_at(const nb_q4 *p, size_t r, size_t j)
{
    const unsigned char *b = p->base + (r / 64 * p->n_groups + j / p->g) * p->block_bytes;
    const size_t in = j % p->g;
    if (p->block_bytes == 64 * p->g + (p->wide ? 320 : 192)) /* 8 bits */
        return b[in / 8 * 512 + in % 8 / 4 * 256 + r % 64 * 4 + in % 4];
    const unsigned byte = b[in / 8 * 256 + r % 64 * 4 + in % 4];

    return in % 8 < 4 ? byte & 15 : byte >> 4;
}

static float scale_at(const nb_q4 *p, size_t r, size_t grp)
{
    const unsigned char *b = p->base + (r / 64 * p->n_groups + grp + 1) * p->block_bytes - (p->wide ? 320 : 192);

    return p->wide ? nb_f32_from_bits(nb_le32(b + 4 * (r % 64))) : nb_f16_to_f32(nb_le16(b + 2 * (r % 64)));
}

static unsigned zero_at(const nb_q4 *p, size_t r, size_t grp)
{
    return p->base[(r / 64 * p->n_groups + grp + 1) * p->block_bytes - 64 + r % 64];
}

/* Rows [0, n) of the hub stand at packed rows from row0; rows up to the next 64 are padding. */
static void check_rows(const char *label, const nb_q4 *p, size_t row0, const nb_qlin *q, const uint32_t *perm)
{
    for (size_t r = 0; r < (q->n + 63) / 64 * 64; r++)
        for (size_t j = 0; j < p->n_groups * p->g; j++) {
            const bool real = r < q->n && j < q->k;
            const unsigned want = real ? q->codes[r * q->k + (perm ? perm[j] : j)] : 0;

            if (code_at(p, row0 + r, j) != want)
                fail_msg("%s: row %zu input %zu is %u, want %u", label, r, j, code_at(p, row0 + r, j), want);
            if (j % p->g != 0)
                continue;
            const size_t from = perm ? perm[j] : j, hub = q->g_idx ? q->g_idx[from] : from / q->g;
            const float s = r < q->n ? q->scales[r * q->n_groups + hub] : 0.0f;
            if (scale_at(p, row0 + r, j / p->g) != s || zero_at(p, row0 + r, j / p->g) != (r < q->n ? q->zeros[r * q->n_groups + hub] : 0))
                fail_msg("%s: scale or zero of row %zu, group %zu", label, r, j / p->g);
        }
}

static void layout_sizes(void **state)
{
    static const struct {
        const char *label;
        size_t n, k, g;
        bool wide, ok;
        size_t pg, n_groups, block;
    } rows[] = {
        { "g 128", 64, 256, 128, false, true, 128, 2, 4288 },
        { "g 64", 192, 576, 64, false, true, 64, 9, 2240 },
        { "g 32, wide", 64, 64, 32, true, true, 32, 2, 1344 },
        { "per channel, 8192", 64, 8192, 8192, false, true, 128, 64, 4288 },
        { "per channel, last block short", 64, 576, 576, false, true, 128, 5, 4288 },
        { "per channel, 100 inputs", 64, 100, 100, false, true, 104, 1, 3520 },
        { "g beyond k", 64, 64, 128, false, true, 64, 1, 2240 },
        { "g 1024 in eight blocks", 64, 2048, 1024, false, true, 128, 16, 4288 },
        { "g 192 in two blocks", 64, 384, 192, false, true, 96, 4, 3264 },
        { "last hub group short", 64, 200, 128, false, true, 128, 2, 4288 },
        { "g 20", 64, 200, 20, false, false, 0, 0, 0 },
        { "g 0", 64, 200, 0, false, false, 0, 0, 0 },
        { "rows not padded", 65, 200, 8, false, false, 0, 0, 0 },
        { "sizes overflow", SIZE_MAX / 64 * 64, 4096, 128, false, false, 0, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_q4 p;
        const bool ok = nb_q4_layout(&p, rows[i].n, rows[i].k, rows[i].g, rows[i].wide);

        if (ok != rows[i].ok)
            fail_msg("%s: layout says %d", rows[i].label, ok);
        if (ok && (p.g != rows[i].pg || p.n_groups != rows[i].n_groups || p.block_bytes != rows[i].block || p.n_strips != rows[i].n / 64 ||
                   p.bytes < (p.n_strips * p.n_groups + 2) * p.block_bytes || p.block_bytes % 64 != 0))
            fail_msg("%s: g %zu, %zu groups of %zu bytes, %zu in all", rows[i].label, p.g, p.n_groups, p.block_bytes, p.bytes);
    }
}

static void round_trip(void **state)
{
    const unsigned bits = *(const unsigned *)*state;
    static const struct {
        const char *label;
        size_t n, k, g;
        bool wide;
    } rows[] = {
        { "one row", 1, 128, 128, false },
        { "65 rows", 65, 256, 128, false },
        { "63 rows, g 32, wide", 63, 160, 32, true },
        { "per channel", 64, 1024, 1024, false },
        { "per channel, short", 70, 300, 300, false },
        { "g 8", 64, 40, 8, false },
        { "short last group", 130, 200, 64, true },
        { "odd inputs", 64, 13, 13, false },
    };

    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);

        if (!runs(t))
            continue;
        for (size_t i = 0; i < NB_LEN(rows); i++) {
            nb_qlin q;
            nb_q4 p, ref;

            hub_make_bits(&q, bits, rows[i].n, rows[i].k, rows[i].g, CODES_RANDOM, ZEROS_RANDOM, rows[i].wide, i);
            packed_make(&p, t, &q, NULL);
            packed_make(&ref, nb_kern_find("scalar"), &q, NULL);
            assert_int_equal(p.wide, rows[i].wide);
            check_rows(rows[i].label, &p, 0, &q, NULL);
            same(rows[i].label, t->name, p.base, ref.base, p.bytes); /* the slack keeps its fill as well */
            packed_free(&p, rows[i].label);
            packed_free(&ref, rows[i].label);
            nb_qlin_clear(&q);
        }
    }
}

/* Two parts of 100 and 30 rows, the first in stripes of 64, into one matrix: same bytes as each alone. */
static void fused_parts_and_stripes(void **state)
{
    const unsigned bits = *(const unsigned *)*state;
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        const nb_kern *t = nb_kern_at(ti);
        nb_qlin a, b;
        nb_q4 p;

        if (!runs(t))
            continue;
        hub_make_bits(&a, bits, 100, 192, 64, CODES_RANDOM, ZEROS_RANDOM, false, 11);
        hub_make_bits(&b, bits, 30, 192, 64, CODES_RANDOM, ZEROS_RANDOM, false, 12);
        assert_true((bits > 4 ? nb_q8_layout : nb_q4_layout)(&p, 192, 192, 64, false));
        p.base = guarded(p.bytes);
        nb_qlin part = a; /* views of rows 0..63 and 64..99 */
        part.n = 64;
        (bits > 4 ? t->pack_q8 : t->pack_q4)(&p, 0, 0, &part, NULL);
        part = a;
        part.n = 36;
        part.codes += 64 * a.k;
        part.scales += 64 * a.n_groups;
        part.zeros += 64 * a.n_groups;
        (bits > 4 ? t->pack_q8 : t->pack_q4)(&p, 0, 64, &part, NULL);
        (bits > 4 ? t->pack_q8 : t->pack_q4)(&p, 128, 0, &b, NULL);
        check_rows("first part", &p, 0, &a, NULL);
        check_rows("second part", &p, 128, &b, NULL);
        packed_free(&p, t->name);
        nb_qlin_clear(&a);
        nb_qlin_clear(&b);
    }
}

/* Words of a hub's codes. AWQ: nibbles 0 .. 7 are rows 0, 2, 4, 6, 1, 3, 5, 7 of eight. */
static unsigned char *words_make(const nb_qlin *q, bool by_input, nb_words *w)
{
    const size_t bytes = q->n * q->k / 2;
    unsigned char *to = guarded(bytes);

    memset(to, 0, bytes);
    *w = (nb_words){ to, by_input ? 4 * q->n : q->n / 2, by_input };
    for (size_t r = 0; r < q->n; r++)
        for (size_t j = 0; j < q->k; j++) {
            const size_t nibble = by_input ? j % 8 : r % 8 % 2 * 4 + r % 8 / 2;
            const size_t word = by_input ? j / 8 * q->n + r : j * (q->n / 8) + r / 8;
            to[4 * word + nibble / 2] |= (unsigned char)(q->codes[r * q->k + j] << nibble % 2 * 4);
        }
    return to;
}

/* From stored words come the bytes that come from a byte a code, in one stripe or in two. */
static void stored_words(void **state)
{
    static const struct {
        const char *label;
        size_t n, k, g, first;
        bool wide;
    } rows[] = {
        { "three strips", 192, 256, 128, 192, false },   { "in stripes, g 64", 192, 192, 64, 128, false },
        { "72 rows, g 32, wide", 72, 96, 32, 64, true }, { "eight rows, g 8", 8, 24, 8, 8, false },
        { "per channel", 64, 512, 512, 64, false },      { "g 192 in two blocks", 128, 384, 192, 64, false },
        { "twenty groups", 136, 640, 32, 128, false },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows) * nb_kern_count() * 2; i++) {
        const nb_kern *t = nb_kern_at(i / 2 % nb_kern_count());
        const size_t row = i / 2 / nb_kern_count();
        nb_qlin q, part;
        nb_q4 p, ref;
        nb_words all, w;

        if (!runs(t))
            continue;
        hub_make(&q, rows[row].n, rows[row].k, rows[row].g, CODES_RANDOM, ZEROS_RANDOM, rows[row].wide, i);
        packed_make(&ref, nb_kern_find("scalar"), &q, NULL);
        unsigned char *words = words_make(&q, i % 2, &all);
        p = ref;
        p.base = guarded(p.bytes);
        for (size_t n0 = 0; n0 < q.n; n0 += part.n) {
            part = q;
            part.codes = NULL;
            part.n = n0 ? q.n - n0 : rows[row].first;
            part.scales += n0 * q.n_groups;
            part.zeros += n0 * q.n_groups;
            w = nb_words_at(&all, 0, n0);
            t->pack_words(&p, 0, n0, &part, &w);
        }
        same(rows[row].label, t->name, p.base, ref.base, p.bytes);
        packed_free(&p, rows[row].label);
        packed_free(&ref, rows[row].label);
        guard_free(words, q.n * q.k / 2, "words");
        nb_qlin_clear(&q);
    }
}

static void act_order(void **state)
{
    const unsigned bits = *(const unsigned *)*state;
    enum { N = 70, K = 256, G = 64 };
    uint32_t perm[K];
    nb_err err = { 0 };
    nb_qlin q;
    uint64_t s = 9;

    hub_make_bits(&q, bits, N, K, G, CODES_RANDOM, ZEROS_RANDOM, false, 13);
    assert_int_equal(nb_qlin_init_gidx(&q, NULL), NB_OK);
    for (size_t i = 0; i < K; i++)
        q.g_idx[i] = (uint32_t)(i / G);
    for (size_t i = K; i > 1; i--) {
        const size_t j = rnd(&s) % i;
        const uint32_t v = q.g_idx[i - 1];
        q.g_idx[i - 1] = q.g_idx[j];
        q.g_idx[j] = v;
    }
    assert_int_equal(nb_q4_perm(q.g_idx, K, G, K / G, perm, &err), NB_OK);
    for (size_t i = 1; i < K; i++) /* sorted, stable */
        assert_true(q.g_idx[perm[i - 1]] < q.g_idx[perm[i]] || (q.g_idx[perm[i - 1]] == q.g_idx[perm[i]] && perm[i - 1] < perm[i]));
    for (size_t ti = 0; ti < nb_kern_count(); ti++) {
        nb_q4 p;

        if (!runs(nb_kern_at(ti)))
            continue;
        packed_make(&p, nb_kern_at(ti), &q, perm);
        check_rows(nb_kern_at(ti)->name, &p, 0, &q, perm);
        packed_free(&p, "act-order");
    }

    q.g_idx[7] = q.g_idx[7] == 0 ? 1 : 0; /* 63 and 65 inputs */
    assert_int_equal(nb_q4_perm(q.g_idx, K, G, K / G, perm, &err), NB_EUNSUPPORTED);
    nb_err_clear(&err);
    q.g_idx[7] = K / G;
    assert_int_equal(nb_q4_perm(q.g_idx, K, G, K / G, perm, &err), NB_EFORMAT);
    nb_qlin_clear(&q);
}

static void wide_scales_are_found(void **state)
{
    nb_qlin q;

    (void)state;
    hub_make(&q, 4, 64, 32, CODES_RANDOM, ZEROS_RANDOM, false, 14);
    q.scale_dtype = NB_DT_BF16;
    assert_false(nb_q4_wide(&q));
    q.scales[5] = nb_f32_from_bits(0x31800000u); /* 2^-28: a bf16, no fp16 */
    assert_true(nb_q4_wide(&q));
    q.scales[5] = 0.1f;
    assert_true(nb_q4_wide(&q));
    nb_qlin_clear(&q);
}

int main(void)
{
    static unsigned four = 4, eight = 8;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_sizes),
        { "round trip, four bits", round_trip, NULL, NULL, &four },
        { "round trip, eight bits", round_trip, NULL, NULL, &eight },
        { "fused parts and stripes, four bits", fused_parts_and_stripes, NULL, NULL, &four },
        { "fused parts and stripes, eight bits", fused_parts_and_stripes, NULL, NULL, &eight },
        cmocka_unit_test(stored_words),
        { "act-order, four bits", act_order, NULL, NULL, &four },
        { "act-order, eight bits", act_order, NULL, NULL, &eight },
        cmocka_unit_test(wide_scales_are_found),
    };
    return cmocka_run_group_tests_name("kern pack", tests, NULL, NULL);
}
