/* Bit streams: round trips at every width, ranges that begin and end anywhere, words drawn in formats 2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/mem.h"
#include "quant/bitpack.h"

static const nb_packing packings[] = { NB_PACK_STREAM, NB_PACK_PLANAR, NB_PACK_ALIGNED };

static uint8_t code(size_t i, unsigned bits)
{
    return (uint8_t)((i * 2654435761u >> 7) & ((1u << bits) - 1));
}

/* The definition, bit by bit. */
static uint8_t slow(nb_packing p, unsigned bits, const unsigned char *src, size_t i)
{
    static const uint8_t planes[9][4] = {
        [2] = { 2 }, [3] = { 2, 1 }, [4] = { 4 }, [5] = { 4, 1 }, [6] = { 4, 2 }, [7] = { 4, 2, 1 }, [8] = { 8 }
    };
    unsigned v = 0, shift = 0, word = 0;

    if (p == NB_PACK_PLANAR) {
        for (const uint8_t *w = planes[bits]; *w; word += *w, shift += *w++)
            v |= (nb_le32(src + 4 * (i / 32 * bits + word + i % 32 / (32u / *w))) >> *w * (i % (32u / *w)) & ((1u << *w) - 1)) << shift;
        return (uint8_t)v;
    }
    for (unsigned b = 0; b < bits; b++) {
        const size_t at = p == NB_PACK_STREAM ? i * bits + b : i / (32 / bits) * 32 + i % (32 / bits) * bits + b;
        v |= (unsigned)(src[at / 8] >> at % 8 & 1) << b;
    }
    return (uint8_t)v;
}

static void test_round_trip(void **state)
{
    enum { N = 203 };
    uint8_t in[N + 32], out[N + 32];

    (void)state;
    for (size_t x = 0; x < NB_LEN(packings); x++)
        for (unsigned bits = 2; bits <= 8; bits++)
            for (size_t n = packings[x] == NB_PACK_PLANAR ? 32 : 1; n <= N; n += packings[x] == NB_PACK_PLANAR ? 32 : 1) {
                const size_t bytes = (size_t)nb_packed_words(packings[x], bits, n) * 4;
                unsigned char *words = nb_alloc(bytes); /* exact: a sanitizer sees any byte beyond */
                for (size_t i = 0; i < n; i++)
                    in[i] = code(i + n, bits);
                memset(words, 0xee, bytes);
                nb_pack_codes(packings[x], bits, in, n, words);
                for (size_t i = 0; i < n; i++)
                    if (slow(packings[x], bits, words, i) != in[i])
                        fail_msg("packing %zu, %u bits: code %zu of %zu", x, bits, i, n);
                for (size_t first = 0; first < n; first += 1 + n / 7)
                    for (size_t m = 1; m <= n - first; m += 1 + n / 5) {
                        nb_unpack_codes(packings[x], bits, words, first, m, out);
                        if (memcmp(out, in + first, m) != 0)
                            fail_msg("packing %zu, %u bits: codes %zu + %zu of %zu", x, bits, first, m, n);
                    }
                nb_free(words);
            }
}

static void test_tail_is_zero(void **state)
{
    const uint8_t in[5] = { 7, 7, 7, 7, 7 };
    unsigned char words[4];

    (void)state;
    nb_pack_codes(NB_PACK_STREAM, 3, in, 5, words);
    assert_int_equal(nb_le32(words), 0x7fff);
    nb_pack_codes(NB_PACK_ALIGNED, 3, in, 5, words);
    assert_int_equal(nb_le32(words), 0x7fff);
}

/* Code 10 of 3 bits straddles words 0 and 1, code 21 words 1 and 2 (formats 2.1); aligned words take ten (3.13). */
static void test_three_bits(void **state)
{
    uint8_t in[32] = { 0 };
    unsigned char words[16];

    (void)state;
    in[10] = 7;
    in[21] = 7;
    nb_pack_codes(NB_PACK_STREAM, 3, in, 32, words);
    assert_int_equal(nb_le32(words), 0xc0000000u);
    assert_int_equal(nb_le32(words + 4), 0x80000001u);
    assert_int_equal(nb_le32(words + 8), 0x00000003u);
    nb_pack_codes(NB_PACK_ALIGNED, 3, in, 32, words);
    assert_int_equal(nb_le32(words + 4), 7);
    assert_int_equal(nb_le32(words + 8), 7u << 3);
    assert_int_equal(nb_packed_words(NB_PACK_ALIGNED, 3, 32), 4);
    assert_int_equal(nb_packed_words(NB_PACK_STREAM, 3, 33), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_tail_is_zero),
        cmocka_unit_test(test_three_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
