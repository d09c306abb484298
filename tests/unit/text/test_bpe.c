/* test_bpe.c - BPE over whole texts: cutting them where no merge can act changes no id. */
#include "vectors.h"

#include <stdbool.h>

#include "text/tokenizer.h"

static uint64_t seed = 0x5DEECE66D1u;

static uint32_t below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % n;
}

static const char *const letters[] = { "a", "b", "c", "d", "\xC3\xA9", "\xE2\x96\x81", "\xF0\x9F\x98\x80" };
#define LETTERS 7
#define PIECES  60

/* A tokenizer of random merges over these letters with byte fallback; byte_merge adds one of byte tokens that no text here
 * contains, with which pieces are not cut. */
static nb_tokenizer *make(char piece[PIECES][64], int parts[PIECES][2], int n, bool byte_merge)
{
    nb_buf b = { 0 };
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };
    int id = 0;

    nb_buf_puts(&b, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (int i = 0; i < 256; i++)
        nb_buf_printf(&b, "\"<0x%02X>\":%d,", (unsigned)i, id++);
    for (int i = 0; i < n; i++)
        nb_buf_printf(&b, "\"%s\":%d,", piece[i], id++);
    nb_buf_printf(&b, "\"<0x00><0x01>\":%d},\"merges\":[", id);
    for (int i = LETTERS; i < n; i++)
        nb_buf_printf(&b, "%s[\"%s\",\"%s\"]", i > LETTERS ? "," : "", piece[parts[i][0]], piece[parts[i][1]]);
    nb_buf_printf(&b, "%s]}}", byte_merge ? ",[\"<0x00>\",\"<0x01>\"]" : "");
    if (nb_tokenizer_open(b.p, b.n, NULL, 0, &t, &err) != NB_OK)
        fail_msg("%s: %s", err.cls, err.what);
    nb_buf_clear(&b);
    return t;
}

static void test_cuts(void **state)
{
    char piece[PIECES][64];
    int parts[PIECES][2];
    size_t cut_ids = 0;

    (void)state;
    for (int round = 0; round < 40; round++) {
        int n = LETTERS;
        for (int i = 0; i < LETTERS; i++)
            snprintf(piece[i], sizeof piece[i], "%s", letters[i]);
        for (int tries = 0; n < PIECES - (int)below(40) && tries < 500; tries++) {
            const int a = (int)below((uint32_t)n), b = (int)below((uint32_t)n);
            bool known = strlen(piece[a]) + strlen(piece[b]) >= 24;
            char both[64];
            snprintf(both, sizeof both, "%.30s%.30s", piece[a], piece[b]);
            for (int i = 0; i < n; i++)
                known = known || strcmp(piece[i], both) == 0;
            if (known)
                continue;
            memcpy(piece[n], both, sizeof both);
            parts[n][0] = a;
            parts[n++][1] = b;
        }
        nb_tokenizer *cut = make(piece, parts, n, false), *whole = make(piece, parts, n, true);
        for (int k = 0; k < 60; k++) {
            nb_buf text = { 0 };
            nb_ids x = { 0 }, y = { 0 };
            for (uint32_t i = 1 + below(200); i > 0; i--) {
                const uint32_t c = below(LETTERS + 2);
                nb_buf_puts(&text, c < LETTERS ? letters[c] : c == LETTERS ? "\xCE\xB1" : "z"); /* the last two: bytes */
            }
            assert_int_equal(nb_tokenizer_encode(cut, text.p, text.n, false, true, &x, NULL), NB_OK);
            assert_int_equal(nb_tokenizer_encode(whole, text.p, text.n, false, true, &y, NULL), NB_OK);
            if (x.n != y.n || memcmp(x.p, y.p, x.n * sizeof *x.p) != 0)
                fail_msg("round %d text %d: %zu and %zu ids of \"%s\"", round, k, x.n, y.n, text.p);
            cut_ids += x.n;
            nb_buf_clear(&text);
            nb_ids_clear(&x);
            nb_ids_clear(&y);
        }
        nb_tokenizer_close(cut);
        nb_tokenizer_close(whole);
    }
    assert_true(cut_ids > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cuts) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
