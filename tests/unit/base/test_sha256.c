/* test_sha256.c - published vectors of SHA-256 and HMAC, and any cut into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/sha256.h"

static const char *hex(const uint8_t h[32])
{
    static char out[65];

    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", h[i]);
    return out;
}

static void test_vectors(void **state)
{
    static const struct {
        const char *label, *text, *want;
    } rows[] = { /* FIPS 180-4 examples */
                 { "empty", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
                 { "three bytes", "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
                 { "two blocks", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                   "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" }
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_sha256 s;
        uint8_t h[32];
        nb_sha256_init(&s);
        nb_sha256_add(&s, NULL, 0); /* nothing, from nowhere */
        nb_sha256_add(&s, rows[i].text, strlen(rows[i].text));
        nb_sha256_end(&s, h);
        if (strcmp(hex(h), rows[i].want) != 0)
            fail_msg("%s: %s", rows[i].label, hex(h));
    }
}

static void test_pieces(void **state)
{
    uint8_t data[300], whole[32], cut[32];
    nb_sha256 s;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= sizeof data; n++) {
        nb_sha256_init(&s);
        nb_sha256_add(&s, data, n);
        nb_sha256_end(&s, whole);
        nb_sha256_init(&s);
        for (size_t at = 0, step = 1; at < n; at += step, step = step % 67 + 3)
            nb_sha256_add(&s, data + at, step < n - at ? step : n - at);
        nb_sha256_end(&s, cut);
        assert_memory_equal(whole, cut, 32);
    }
}

/* RFC 4231, cases 1 and 2. */
static void test_hmac(void **state)
{
    uint8_t key[20], h[32];
    nb_sha256 s;

    (void)state;
    memset(key, 0x0b, sizeof key);
    nb_hmac_init(&s, key, sizeof key);
    nb_sha256_add(&s, "Hi There", 8);
    nb_hmac_end(&s, key, sizeof key, h);
    assert_string_equal(hex(h), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    nb_hmac_init(&s, (const uint8_t *)"Jefe", 4);
    nb_sha256_add(&s, "what do ya want ", 16);
    nb_sha256_add(&s, "for nothing?", 12);
    nb_hmac_end(&s, (const uint8_t *)"Jefe", 4, h);
    assert_string_equal(hex(h), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void test_helpers(void **state)
{
    uint8_t a[32] = { 0 }, b[32] = { 0 };

    (void)state;
    assert_true(nb_same_bytes(a, b, 32));
    b[31] = 1;
    assert_false(nb_same_bytes(a, b, 32));
    assert_true(nb_random_bytes(a, 32) && nb_random_bytes(b, 32));
    assert_false(nb_same_bytes(a, b, 32));
    nb_wipe(a, 31);
    nb_wipe(b, 31);
    assert_true(nb_same_bytes(a, b, 31) && a[0] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_hmac),
        cmocka_unit_test(test_helpers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
