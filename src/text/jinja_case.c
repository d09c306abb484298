/* jinja_case.c - case mapping and character classes of Python's str. Simple mappings and categories: norm.c; mappings to
 * several characters: Unicode SpecialCasing, unconditional rows, and the final sigma. */
#include "text/jinja.h"

#include <string.h>

#include "text/norm.h"
#include "text/utf8.h"

/* Characters whose upper or title form is several characters, ascending. */
static const struct {
    uint32_t cp;
    const char *upper, *title;
} special[] = {
    /* clang-format off */
    { 0x00DF, "SS", "Ss" }, { 0x0149, "\xca\xbcN", "\xca\xbcN" }, { 0x01F0, "J\xcc\x8c", "J\xcc\x8c" },
    { 0x0390, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81" },
    { 0x03B0, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81" }, { 0x0587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82" },
    { 0x1E96, "H\xcc\xb1", "H\xcc\xb1" }, { 0x1E97, "T\xcc\x88", "T\xcc\x88" }, { 0x1E98, "W\xcc\x8a", "W\xcc\x8a" },
    { 0x1E99, "Y\xcc\x8a", "Y\xcc\x8a" }, { 0x1E9A, "A\xca\xbe", "A\xca\xbe" }, { 0x1F50, "\xce\xa5\xcc\x93", "\xce\xa5\xcc\x93" },
    { 0x1F52, "\xce\xa5\xcc\x93\xcc\x80", "\xce\xa5\xcc\x93\xcc\x80" },
    { 0x1F54, "\xce\xa5\xcc\x93\xcc\x81", "\xce\xa5\xcc\x93\xcc\x81" },
    { 0x1F56, "\xce\xa5\xcc\x93\xcd\x82", "\xce\xa5\xcc\x93\xcd\x82" }, { 0x1F80, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88" },
    { 0x1F81, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89" }, { 0x1F82, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a" },
    { 0x1F83, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b" }, { 0x1F84, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c" },
    { 0x1F85, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d" }, { 0x1F86, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e" },
    { 0x1F87, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f" }, { 0x1F88, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88" },
    { 0x1F89, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89" }, { 0x1F8A, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a" },
    { 0x1F8B, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b" }, { 0x1F8C, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c" },
    { 0x1F8D, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d" }, { 0x1F8E, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e" },
    { 0x1F8F, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f" }, { 0x1F90, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98" },
    { 0x1F91, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99" }, { 0x1F92, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a" },
    { 0x1F93, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b" }, { 0x1F94, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c" },
    { 0x1F95, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d" }, { 0x1F96, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e" },
    { 0x1F97, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f" }, { 0x1F98, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98" },
    { 0x1F99, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99" }, { 0x1F9A, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a" },
    { 0x1F9B, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b" }, { 0x1F9C, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c" },
    { 0x1F9D, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d" }, { 0x1F9E, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e" },
    { 0x1F9F, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f" }, { 0x1FA0, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8" },
    { 0x1FA1, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9" }, { 0x1FA2, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa" },
    { 0x1FA3, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab" }, { 0x1FA4, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac" },
    { 0x1FA5, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad" }, { 0x1FA6, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae" },
    { 0x1FA7, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf" }, { 0x1FA8, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8" },
    { 0x1FA9, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9" }, { 0x1FAA, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa" },
    { 0x1FAB, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab" }, { 0x1FAC, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac" },
    { 0x1FAD, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad" }, { 0x1FAE, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae" },
    { 0x1FAF, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf" }, { 0x1FB2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85" },
    { 0x1FB3, "\xce\x91\xce\x99", "\xe1\xbe\xbc" }, { 0x1FB4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85" },
    { 0x1FB6, "\xce\x91\xcd\x82", "\xce\x91\xcd\x82" }, { 0x1FB7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85" },
    { 0x1FBC, "\xce\x91\xce\x99", "\xe1\xbe\xbc" }, { 0x1FC2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85" },
    { 0x1FC3, "\xce\x97\xce\x99", "\xe1\xbf\x8c" }, { 0x1FC4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85" },
    { 0x1FC6, "\xce\x97\xcd\x82", "\xce\x97\xcd\x82" }, { 0x1FC7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85" },
    { 0x1FCC, "\xce\x97\xce\x99", "\xe1\xbf\x8c" }, { 0x1FD2, "\xce\x99\xcc\x88\xcc\x80", "\xce\x99\xcc\x88\xcc\x80" },
    { 0x1FD3, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81" }, { 0x1FD6, "\xce\x99\xcd\x82", "\xce\x99\xcd\x82" },
    { 0x1FD7, "\xce\x99\xcc\x88\xcd\x82", "\xce\x99\xcc\x88\xcd\x82" },
    { 0x1FE2, "\xce\xa5\xcc\x88\xcc\x80", "\xce\xa5\xcc\x88\xcc\x80" },
    { 0x1FE3, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81" }, { 0x1FE4, "\xce\xa1\xcc\x93", "\xce\xa1\xcc\x93" },
    { 0x1FE6, "\xce\xa5\xcd\x82", "\xce\xa5\xcd\x82" }, { 0x1FE7, "\xce\xa5\xcc\x88\xcd\x82", "\xce\xa5\xcc\x88\xcd\x82" },
    { 0x1FF2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85" }, { 0x1FF3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc" },
    { 0x1FF4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85" }, { 0x1FF6, "\xce\xa9\xcd\x82", "\xce\xa9\xcd\x82" },
    { 0x1FF7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85" }, { 0x1FFC, "\xce\xa9\xce\x99", "\xe1\xbf\xbc" },
    { 0xFB00, "FF", "Ff" }, { 0xFB01, "FI", "Fi" }, { 0xFB02, "FL", "Fl" }, { 0xFB03, "FFI", "Ffi" }, { 0xFB04, "FFL", "Ffl" },
    { 0xFB05, "ST", "St" }, { 0xFB06, "ST", "St" }, { 0xFB13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6" },
    { 0xFB14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5" }, { 0xFB15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab" },
    { 0xFB16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6" }, { 0xFB17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad" },
    /* clang-format on */
};

bool nb_j_space(uint32_t cp)
{
    return nb_uc_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

bool nb_j_printable(uint32_t cp)
{
    const char *c = nb_uc_category(cp);

    return cp == ' ' || !(c[0] == 'C' || c[0] == 'Z');
}

static bool is_upper(uint32_t cp)
{
    return cp < 128 ? cp >= 'A' && cp <= 'Z' : memcmp(nb_uc_category(cp), "Lu", 2) == 0;
}

static bool is_lower(uint32_t cp)
{
    return cp < 128 ? cp >= 'a' && cp <= 'z' : memcmp(nb_uc_category(cp), "Ll", 2) == 0 || cp == 0xAA || cp == 0xBA;
}

static bool is_title(uint32_t cp)
{
    return cp >= 128 && memcmp(nb_uc_category(cp), "Lt", 2) == 0;
}

static bool is_cased(uint32_t cp)
{
    return is_upper(cp) || is_lower(cp) || is_title(cp);
}

/* Characters that do not matter when looking for the letters around a sigma. */
static bool is_ignorable(uint32_t cp)
{
    const char *c = nb_uc_category(cp);

    return memcmp(c, "Mn", 2) == 0 || memcmp(c, "Me", 2) == 0 || memcmp(c, "Cf", 2) == 0 || memcmp(c, "Lm", 2) == 0 ||
           memcmp(c, "Sk", 2) == 0 || cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2019;
}

static void put_cp(jrun *r, uint32_t cp)
{
    char b[4];

    nb_j_put(r, b, nb_u8_put(b, cp));
}

static void put_upper(jrun *r, uint32_t cp, bool title)
{
    size_t a = 0, b = NB_LEN(special);

    while (a < b && cp >= special[0].cp) {
        const size_t m = (a + b) / 2;
        if (special[m].cp == cp) {
            const char *s = title ? special[m].title : special[m].upper;
            nb_j_put(r, s, strlen(s));
            return;
        }
        *(special[m].cp < cp ? &a : &b) = special[m].cp < cp ? m + 1 : m;
    }
    if (cp < 128)
        put_cp(r, cp >= 'a' && cp <= 'z' ? cp - 32 : cp);
    else
        put_cp(r, title ? nb_uc_title(cp) : nb_uc_upper(cp));
}

/* Is the sigma at byte i of s the last letter of its word? */
static bool final_sigma(const jstr *s, size_t i)
{
    size_t k = i;
    uint32_t cp = 0;
    bool before = false;

    while (k > 0 && !before) {
        k -= nb_u8_prev(s->s, k, &cp);
        before = is_cased(cp);
        if (!before && !is_ignorable(cp))
            break;
    }
    if (!before)
        return false;
    for (k = i + 2; k < s->n;) {
        k += (size_t)nb_u8_next(s->s + k, s->n - k, &cp, NULL);
        if (is_cased(cp))
            return false;
        if (!is_ignorable(cp))
            break;
    }
    return true;
}

static void put_lower(jrun *r, const jstr *s, size_t i, uint32_t cp)
{
    if (cp < 128)
        put_cp(r, cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
    else if (cp == 0x130)
        nb_j_put(r, "i\xcc\x87", 3);
    else if (cp == 0x3A3)
        put_cp(r, final_sigma(s, i) ? 0x3C2 : 0x3C3);
    else
        put_cp(r, nb_uc_lower(cp));
}

typedef enum change { UPPER, LOWER, SWAP, CAPITAL, TITLE, TITLE_FILTER } change;

static void map(jrun *r, const jstr *s, change how)
{
    bool inside = false; /* of a word */

    nb_j_charge(r, s->n / 4);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s->s + i, s->n - i, &cp, NULL);
        const bool up = how == UPPER || (how == SWAP && !is_upper(cp)) || (how >= CAPITAL && !inside);
        if (up)
            put_upper(r, cp, how == CAPITAL || how == TITLE);
        else
            put_lower(r, s, i, cp);
        if (how == TITLE)
            inside = is_cased(cp);
        else if (how == TITLE_FILTER)
            inside = !nb_j_space(cp) && !(cp && cp < 128 && strchr("-({[<", (int)cp));
        else
            inside = true;
        i += k;
    }
}

void nb_j_put_upper(jrun *r, const jstr *s)
{
    map(r, s, UPPER);
}

void nb_j_put_lower(jrun *r, const jstr *s)
{
    map(r, s, LOWER);
}

void nb_j_put_title(jrun *r, const jstr *s, bool filter)
{
    map(r, s, filter ? TITLE_FILTER : TITLE);
}

void nb_j_put_capital(jrun *r, const jstr *s)
{
    map(r, s, CAPITAL);
}

void nb_j_put_swap(jrun *r, const jstr *s)
{
    map(r, s, SWAP);
}

/* ---- the isX methods ---- */

static bool is_digit(uint32_t cp)
{
    static const uint32_t ranges[][2] = { { 0xB2, 0xB3 },       { 0xB9, 0xB9 },       { 0x1369, 0x1371 },   { 0x19DA, 0x19DA },
                                          { 0x2070, 0x2070 },   { 0x2074, 0x2079 },   { 0x2080, 0x2089 },   { 0x2460, 0x2468 },
                                          { 0x2474, 0x247C },   { 0x2488, 0x2490 },   { 0x24EA, 0x24EA },   { 0x24F5, 0x24FD },
                                          { 0x24FF, 0x24FF },   { 0x2776, 0x277E },   { 0x2780, 0x2788 },   { 0x278A, 0x2792 },
                                          { 0x10A40, 0x10A43 }, { 0x10E60, 0x10E68 }, { 0x11052, 0x1105A }, { 0x1F100, 0x1F10A } };

    if (memcmp(nb_uc_category(cp), "Nd", 2) == 0)
        return true;
    for (size_t i = 0; i < NB_LEN(ranges); i++)
        if (cp >= ranges[i][0] && cp <= ranges[i][1])
            return true;
    return false;
}

static bool char_is(uint32_t cp, const char *what)
{
    const char *c = nb_uc_category(cp);

    if (strcmp(what, "alpha") == 0)
        return c[0] == 'L';
    if (strcmp(what, "digit") == 0)
        return is_digit(cp);
    if (strcmp(what, "decimal") == 0)
        return memcmp(c, "Nd", 2) == 0;
    if (strcmp(what, "numeric") == 0)
        return c[0] == 'N' || is_digit(cp);
    if (strcmp(what, "alnum") == 0)
        return c[0] == 'L' || c[0] == 'N' || is_digit(cp);
    if (strcmp(what, "space") == 0)
        return nb_j_space(cp);
    if (strcmp(what, "printable") == 0)
        return nb_j_printable(cp);
    if (strcmp(what, "ascii") == 0)
        return cp < 128;
    return nb_uc_word(cp); /* "word", "identifier" */
}

bool nb_j_str_is(const jstr *s, const char *what)
{
    const bool upper = strcmp(what, "upper") == 0, lower = strcmp(what, "lower") == 0, title = strcmp(what, "title") == 0;
    bool any = false, inside = false;

    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        i += (size_t)nb_u8_next(s->s + i, s->n - i, &cp, NULL);
        if (!upper && !lower && !title) {
            if (!char_is(cp, what))
                return false;
            any = true;
            continue;
        }
        const bool up = is_upper(cp) || is_title(cp), low = is_lower(cp);
        if (title ? (up && inside) || (low && !inside) : upper ? low || is_title(cp) : up)
            return false;
        inside = up || low;
        any = any || inside;
    }
    return any || (s->n == 0 && (strcmp(what, "printable") == 0 || strcmp(what, "ascii") == 0));
}
