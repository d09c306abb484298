/* test_charsmap.c - the character map of SentencePiece: what it replaces, and TK-16, broken ones. */
#include "vectors.h"

#include "base/bits.h"
#include "text/charsmap.h"

#define UNITS 512 /* two blocks of children */

static void base64_of(const unsigned char *p, size_t n, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t k = 0;

    for (size_t i = 0; i < n; i += 3) {
        const uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        out[k++] = digits[v >> 18];
        out[k++] = digits[v >> 12 & 63];
        out[k++] = i + 1 < n ? digits[v >> 6 & 63] : '=';
        out[k++] = i + 2 < n ? digits[v & 63] : '=';
    }
    out[k] = 0;
}

typedef struct table {
    uint32_t unit[UNITS];
    char words[8];
} table;

#define UNIT(byte, value, to) ((uint32_t)(to) << 10 | (uint32_t)(value) << 8 | (uint32_t)(byte))

/* "a" -> "xy", "ab" is longer and never reached; its children are in the second block. */
static table sound(void)
{
    table t = { .words = { 'x', 'y', 0, 'z', 0 } };

    t.unit[0] = UNIT(0, 0, 0);
    t.unit['a'] = UNIT('a', 1, 'a' ^ 256); /* children from 256 on */
    t.unit[256] = 0;                       /* value of "a": offset 0 */
    t.unit[256 ^ 'b'] = UNIT('b', 1, 'b' ^ 1);
    t.unit[256 ^ 1] = 3; /* value of "ab" */
    return t;
}

static nb_status open_table(const table *t, size_t cut, nb_charsmap **m, nb_err *err)
{
    unsigned char blob[4 + sizeof *t];
    static char text[4 * sizeof blob];

    nb_put_le32((char *)blob, 4 * UNITS);
    for (size_t i = 0; i < UNITS; i++)
        nb_put_le32((char *)blob + 4 + 4 * i, t->unit[i]);
    memcpy(blob + 4 + 4 * UNITS, t->words, 5);
    base64_of(blob, 4 + 4 * UNITS + 5 - cut, text);
    return nb_charsmap_open(text, strlen(text), m, err);
}

static void replaces(void **state)
{
    static const struct {
        const char *label, *text, *want; /* NULL: no entry */
    } rows[] = {
        { "whole", "a", "xy" }, { "the shortest entry", "ab", "xy" }, { "none", "b", NULL }, { "empty", "", NULL }, { "zero", "\0a", NULL }
    };
    const table t = sound();
    nb_charsmap *m = NULL;
    nb_err err = { 0 };
    (void)state;

    assert_int_equal(open_table(&t, 0, &m, &err), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_buf out = { 0 };
        if (nb_charsmap_find(m, rows[i].text, strlen(rows[i].text), &out) != (rows[i].want != NULL) ||
            (rows[i].want && strcmp(out.p, rows[i].want) != 0))
            fail_msg("%s: got \"%s\"", rows[i].label, out.p ? out.p : "");
        nb_buf_clear(&out);
    }
    nb_charsmap_close(m);
}

/* One unit changed makes the table unsound. */
static void broken(void **state)
{
    static const struct {
        const char *label;
        size_t at;
        uint32_t unit;
        const char *names;
    } rows[] = {
        { "TK-16 place outside", 'a', UNIT('a', 1, 100000), "outside" },
        { "TK-16 block outside", 'a', UNIT('a', 0, 4096), "outside" },
        { "TK-16 replacement outside", 256, 6, "replacement" },
        { "TK-16 cycle", 256 ^ 'b', UNIT('b', 0, 'b'), "cycle" },
        { "TK-16 cycle through the root", 256 ^ 'b', UNIT('b', 0, 256 ^ 'b'), "cycle" },
    };
    (void)state;

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        table t = sound();
        nb_charsmap *m = NULL;
        nb_err err = { 0 };
        t.unit[rows[i].at] = rows[i].unit;
        if (open_table(&t, 0, &m, &err) != NB_EFORMAT || strcmp(err.cls, "tok.charsmap") != 0 || !strstr(err.what, rows[i].names))
            fail_msg("%s: got %s %s", rows[i].label, err.cls, err.what);
    }
}

/* TK-16: cut short at any byte: an error, or (behind the tree) a table with fewer replacements. */
static void truncated(void **state)
{
    const table t = sound();
    (void)state;

    for (size_t cut = 1; cut < 4 * UNITS + 9; cut++) {
        nb_charsmap *m = NULL;
        nb_err err = { 0 };
        const nb_status rc = open_table(&t, cut, &m, &err);
        if (cut > 1 ? rc != NB_EFORMAT || strcmp(err.cls, "tok.charsmap") != 0 : rc != NB_OK)
            fail_msg("TK-16: %zu bytes short: %d %s", cut, rc, err.what);
        nb_charsmap_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaces),
        cmocka_unit_test(broken),
        cmocka_unit_test(truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
