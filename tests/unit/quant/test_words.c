/* Codes as words against the layouts' own pack and unpack: sizes that fill vectors, tiles and segments, and sizes that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "quant/words.h"

static const char *const names[] = { "awq-gemm", "awq-gemv", "gptq", "gptq_v2", "gptq_p", "compressed-tensors" };

typedef struct packed {
    nb_tensor t;
    uint64_t shape[4];
    nb_linear lin;
    void *part[NB_MAX_PARTS];
} packed;

static void pack(packed *p, const nb_qlin *q, const char *name)
{
    const nb_format *f = nb_format_find(name);
    nb_err e = { 0 };

    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < NB_MAX_PARTS; i++)
        p->part[i] = nb_calloc(q->n * q->k * 4 + 4096, 1);
    if (f->pack(q, 0, q->n, p->part, &e) != NB_OK)
        fail_msg("%s %zux%zu: %s", name, q->n, q->k, e.what);
    p->t.rank = nb_format_part_shape(f, 0, q->n, q->k, q->g, 4, p->shape);
    p->t.shape = p->shape;
    p->t.data = p->part[0];
    p->lin = (nb_linear){ .prefix = "m", .format = f, .spec = { .bits = 4 }, .n = q->n, .k = q->k, .g = q->g };
    p->lin.parts[0] = &p->t;
}

static void clear(packed *p)
{
    for (size_t i = 0; i < NB_MAX_PARTS; i++)
        nb_free(p->part[i]);
}

static void same(const void *a, const void *b, size_t n, const char *what, const char *name, const nb_qlin *q)
{
    if (memcmp(a, b, n) != 0)
        fail_msg("%s of %s, %zu outputs, %zu inputs", what, name, q->n, q->k);
}

/* Every tile of every cut is a piece of what gptq_v2 stores; and put() of the whole is what pack() wrote. */
static void check(const nb_qlin *q, const char *name, const unsigned char *gptq)
{
    static const size_t cuts[][2] = { { 1, SIZE_MAX }, { 5, SIZE_MAX }, { SIZE_MAX, 8 }, { SIZE_MAX, 136 }, { 16, 128 } };
    const size_t rows = q->k / 8, bytes = rows * q->n * 4;
    unsigned char *tile = nb_alloc(bytes), *scratch = nb_alloc(bytes);
    packed p;

    pack(&p, q, name);
    assert_true(nb_words_fit(&p.lin));
    for (size_t i = 0; i < NB_LEN(cuts); i++)
        for (size_t r = 0; r < rows; r += cuts[i][0] < rows - r ? cuts[i][0] : rows - r)
            for (size_t c = 0; c < q->n; c += cuts[i][1] < q->n - c ? cuts[i][1] : q->n - c) {
                const size_t nr = cuts[i][0] < rows - r ? cuts[i][0] : rows - r, nc = cuts[i][1] < q->n - c ? cuts[i][1] : q->n - c;
                const unsigned char *got = nb_words_get(&p.lin, r, nr, c, nc, tile);
                for (size_t x = 0; x < nr; x++)
                    same(got + x * nc * 4, gptq + ((r + x) * q->n + c) * 4, nc * 4, "a tile", name, q);
            }
    same(nb_words_put(p.lin.format->words, gptq, rows, q->n, scratch), p.part[0], bytes, "the codes", name, q);
    clear(&p);
    nb_free(tile);
    nb_free(scratch);
}

static void tiles(void **state)
{
    static const size_t sizes[][2] = { { 32, 32 }, { 64, 96 }, { 128, 128 }, { 160, 416 }, { 288, 160 }, { 512, 64 } };
    uint64_t at = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(sizes); i++) {
        nb_qlin q = { 0 };
        packed p;
        nb_err e = { 0 };
        assert_int_equal(nb_qlin_init(&q, sizes[i][0], sizes[i][1], 32, 4, &e), NB_OK);
        q.scale_dtype = NB_DT_F16;
        for (size_t x = 0; x < q.n * q.k; x++)
            q.codes[x] = (uint8_t)(16 * nb_rng_uniform(4, 0, at++));
        for (size_t x = 0; x < q.n * q.n_groups; x++) {
            q.zeros[x] = 8; /* also what symmetric compressed-tensors holds */
            q.scales[x] = 0.5f;
        }
        pack(&p, &q, "gptq_v2");
        for (size_t f = 0; f < NB_LEN(names); f++)
            check(&q, names[f], p.part[0]);
        clear(&p);
        nb_qlin_clear(&q);
    }
}

static void what_fits(void **state)
{
    nb_linear lin = { .format = nb_format_find("gptq"), .spec = { .bits = 4 }, .n = 64, .k = 64 };

    (void)state;
    assert_true(nb_words_fit(&lin));
    lin.spec.bits = 3;
    assert_false(nb_words_fit(&lin));
    lin.spec.bits = 4;
    lin.k = 60;
    assert_false(nb_words_fit(&lin));
    lin.k = 64;
    lin.format = nb_format_find("llm-awq");
    assert_false(nb_words_fit(&lin));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tiles), cmocka_unit_test(what_fits) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
