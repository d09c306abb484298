/* gram_number.c - numbers within bounds, as texts of digits. Without exponents: what JSON writers print of such numbers. */
#include <string.h>

#include "text/gram.h"

#define DIGITS_MOST 60 /* of a bound */

typedef struct bound {
    char whole[DIGITS_MOST + 2], frac[DIGITS_MOST + 1]; /* no leading zeros but "0"; no trailing ones */
    bool negative, open;
} bound;

static nb_gpart digit(nb_gbuild *b, int lo, int hi)
{
    return lo <= hi ? nb_g_range(b, (unsigned)lo, (unsigned)hi) : nb_g_never(b);
}

/* most NB_G_INF: as many as numbers have. */
static nb_gpart digits(nb_gbuild *b, uint32_t least, uint32_t most)
{
    return nb_g_rep(b, digit(b, '0', '9'), least, most != NB_G_INF ? most : least > NB_GJ_DIGITS ? least : NB_GJ_DIGITS);
}

/* ---- whole numbers ---- */

/* n digits, not below a (over) or not above it. */
static nb_gpart beside(nb_gbuild *b, const char *a, size_t n, bool over)
{
    if (n == 0)
        return nb_g_empty(b);
    const nb_gpart same = nb_g_seq2(b, digit(b, a[0], a[0]), beside(b, a + 1, n - 1, over));
    const nb_gpart far = over ? digit(b, a[0] + 1, '9') : digit(b, '0', a[0] - 1);

    return nb_g_alt2(b, same, nb_g_seq2(b, far, digits(b, (uint32_t)n - 1, (uint32_t)n - 1)));
}

/* n digits between a and z. */
static nb_gpart between(nb_gbuild *b, const char *a, const char *z, size_t n)
{
    if (n == 0)
        return nb_g_empty(b);
    if (a[0] == z[0])
        return nb_g_seq2(b, digit(b, a[0], a[0]), between(b, a + 1, z + 1, n - 1));
    const nb_gpart v[] = { nb_g_seq2(b, digit(b, a[0], a[0]), beside(b, a + 1, n - 1, true)),
                           nb_g_seq2(b, digit(b, a[0] + 1, z[0] - 1), digits(b, (uint32_t)n - 1, (uint32_t)n - 1)),
                           nb_g_seq2(b, digit(b, z[0], z[0]), beside(b, z + 1, n - 1, false)) };

    return nb_g_alt(b, v, 3);
}

static int order(const char *a, const char *z)
{
    const size_t n = strlen(a), k = strlen(z);

    return n != k ? (n > k) - (n < k) : strcmp(a, z);
}

/* Whole numbers from a to z without sign; z NULL: no end. */
static nb_gpart wholes(nb_gbuild *b, const char *a, const char *z)
{
    const size_t n = strlen(a), k = z ? strlen(z) : 0;
    char nines[DIGITS_MOST + 2], ten[DIGITS_MOST + 2];
    nb_gpart v[3];

    if (z && order(a, z) > 0)
        return nb_g_never(b);
    if (z && n == k)
        return between(b, a, z, n);
    memset(nines, '9', n);
    v[0] = between(b, a, nines, n);
    v[1] = nb_g_seq2(b, digit(b, '1', '9'), digits(b, (uint32_t)n, NB_G_INF));
    if (!z)
        return nb_g_alt(b, v, 2);
    v[1] = k > n + 1 ? nb_g_seq2(b, digit(b, '1', '9'), digits(b, (uint32_t)n, (uint32_t)k - 2)) : nb_g_never(b);
    memset(ten, '0', k);
    ten[0] = '1';
    v[2] = between(b, ten, z, k);
    return nb_g_alt(b, v, 3);
}

/* a + 1 or a - 1 (a > 0), in place; a has room for one digit more. */
static void add_one(char *a)
{
    size_t i = strlen(a);

    while (i > 0 && a[i - 1] == '9')
        a[--i] = '0';
    if (i > 0) {
        a[i - 1]++;
        return;
    }
    memmove(a + 1, a, strlen(a) + 1);
    a[0] = '1';
}

static void take_one(char *a)
{
    size_t i = strlen(a);

    while (i > 0 && a[i - 1] == '0')
        a[--i] = '9';
    if (i > 0)
        a[i - 1]--;
    if (a[0] == '0' && a[1])
        memmove(a, a + 1, strlen(a));
}

/* ---- fractions: digits behind the point, some: at least one ---- */

static nb_gpart above(nb_gbuild *b, const char *f, bool open, bool some)
{
    if (!*f && !open)
        return digits(b, some, NB_G_INF);
    if (!*f)
        return nb_g_seq(b, (const nb_gpart[]){ digits(b, 0, NB_G_INF), digit(b, '1', '9'), digits(b, 0, NB_G_INF) }, 3);
    return nb_g_alt2(b, nb_g_seq2(b, digit(b, f[0], f[0]), above(b, f + 1, open, false)),
                     nb_g_seq2(b, digit(b, f[0] + 1, '9'), digits(b, 0, NB_G_INF)));
}

static nb_gpart below(nb_gbuild *b, const char *g, bool open, bool some)
{
    if (!*g)
        return open ? nb_g_never(b) : nb_g_rep(b, digit(b, '0', '0'), some, NB_G_INF);
    const nb_gpart v[] = { nb_g_seq2(b, digit(b, '0', g[0] - 1), digits(b, 0, NB_G_INF)),
                           nb_g_seq2(b, digit(b, g[0], g[0]), below(b, g + 1, open, false)), nb_g_empty(b) };

    return nb_g_alt(b, v, some ? 2 : 3);
}

static nb_gpart within(nb_gbuild *b, const char *f, bool f_open, const char *g, bool g_open, bool some)
{
    const int x = *f ? *f : '0', y = *g ? *g : '0';
    const bool stop = !some && !*f && !f_open && (*g || !g_open); /* what follows may be nothing, which is zero */
    nb_gpart v[4];
    size_t n = 0;

    if (!*f && !*g)
        return f_open || g_open ? nb_g_never(b) : nb_g_rep(b, digit(b, '0', '0'), some, NB_G_INF);
    if (x > y)
        return nb_g_never(b);
    if (stop)
        v[n++] = nb_g_empty(b);
    if (x == y) {
        v[n++] = nb_g_seq2(b, digit(b, x, x), within(b, *f ? f + 1 : f, f_open, *g ? g + 1 : g, g_open, false));
    } else {
        v[n++] = nb_g_seq2(b, digit(b, x, x), above(b, *f ? f + 1 : f, f_open, false));
        v[n++] = nb_g_seq2(b, digit(b, x + 1, y - 1), digits(b, 0, NB_G_INF));
        v[n++] = nb_g_seq2(b, digit(b, y, y), below(b, *g ? g + 1 : g, g_open, false));
    }
    return nb_g_alt(b, v, n);
}

static nb_gpart point(nb_gbuild *b, nb_gpart behind, bool may_lack)
{
    const nb_gpart p = nb_g_seq2(b, nb_g_text(b, "."), behind);

    return may_lack ? nb_g_opt(b, p) : p;
}

/* Numbers without sign from lo to hi (NULL: no end). */
static nb_gpart magnitudes(nb_gbuild *b, const bound *lo, const bound *hi, bool integer)
{
    char from[DIGITS_MOST + 2], to[DIGITS_MOST + 2];
    nb_gpart v[3];
    size_t n = 0;

    memcpy(from, lo->whole, sizeof from);
    if (integer) {
        if (*lo->frac || lo->open)
            add_one(from);
        if (!hi)
            return wholes(b, from, NULL);
        memcpy(to, hi->whole, sizeof to);
        if (hi->open && !*hi->frac) {
            if (strcmp(to, "0") == 0)
                return nb_g_never(b);
            take_one(to);
        }
        return wholes(b, from, to);
    }
    if (hi && strcmp(lo->whole, hi->whole) == 0) {
        const bool lack = !*lo->frac && !lo->open && (*hi->frac || !hi->open);
        return nb_g_seq2(b, nb_g_text(b, lo->whole), point(b, within(b, lo->frac, lo->open, hi->frac, hi->open, true), lack));
    }
    if (hi && order(lo->whole, hi->whole) > 0)
        return nb_g_never(b);
    v[n++] = nb_g_seq2(b, nb_g_text(b, lo->whole), point(b, above(b, lo->frac, lo->open, true), !*lo->frac && !lo->open));
    add_one(from);
    if (hi) {
        memcpy(to, hi->whole, sizeof to);
        take_one(to);
        v[n++] = nb_g_seq2(b, nb_g_text(b, hi->whole), point(b, below(b, hi->frac, hi->open, true), *hi->frac || !hi->open));
    }
    v[n++] = nb_g_seq2(b, wholes(b, from, hi ? to : NULL), point(b, digits(b, 1, NB_G_INF), true));
    return nb_g_alt(b, v, n);
}

/* A decimal text "-12.5e3" taken apart; false when it is too long. */
static bool read_bound(const char *s, bool open, bound *out)
{
    char all[2 * DIGITS_MOST] = "";
    size_t n = 0;
    long point_at = -1, exponent = 0;

    memset(out, 0, sizeof *out);
    out->open = open;
    out->negative = *s == '-';
    s += out->negative;
    for (; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        if (*s == '.')
            point_at = (long)n;
        else if (n < DIGITS_MOST)
            all[n++] = *s;
        else
            return false;
    }
    if (*s == 'e' || *s == 'E') {
        const bool minus = s[1] == '-';
        for (s += 1 + (s[1] == '-' || s[1] == '+'); *s >= '0' && *s <= '9' && exponent < 1000; s++)
            exponent = 10 * exponent + (*s - '0');
        exponent = minus ? -exponent : exponent;
    }
    point_at = (point_at < 0 ? (long)n : point_at) + exponent;
    if (point_at > DIGITS_MOST || point_at < -DIGITS_MOST + (long)n)
        return false;
    size_t w = 0, f = 0;
    for (long i = 0; i < point_at; i++) {
        const char c = i < (long)n ? all[i] : '0';
        if (w > 0 || c != '0')
            out->whole[w++] = c;
    }
    if (w == 0)
        out->whole[w++] = '0';
    for (long i = point_at; i < (long)n; i++) {
        if (f >= DIGITS_MOST)
            return false;
        out->frac[f++] = i < 0 ? '0' : all[i];
    }
    while (f > 0 && out->frac[f - 1] == '0')
        out->frac[--f] = 0;
    if (strcmp(out->whole, "0") == 0 && f == 0)
        out->negative = false;
    return true;
}

nb_gpart nb_gj_bounded(nb_gjson *j, const nb_gbounds *r, bool integer)
{
    nb_gbuild *b = j->b;
    const bound zero = { .whole = "0" }, past_zero = { .whole = "0", .open = true };
    bound lo, hi;
    nb_gpart v[2];
    size_t n = 0;

    if ((r->lo && !read_bound(r->lo, r->lo_open, &lo)) || (r->hi && !read_bound(r->hi, r->hi_open, &hi)))
        return nb_g_fail(b, NB_EUNSUPPORTED, "grammar.unsupported", "a bound of a number has more than %d digits", DIGITS_MOST);
    if (!r->hi || !hi.negative) /* numbers from zero */
        v[n++] = magnitudes(b, r->lo && !lo.negative ? &lo : &zero, r->hi ? &hi : NULL, integer);
    if (!r->lo || lo.negative) { /* below zero: bounds change places */
        const nb_gpart m = magnitudes(b, r->hi && hi.negative ? &hi : &past_zero, r->lo ? &lo : NULL, integer);
        v[n++] = nb_g_seq2(b, nb_g_text(b, "-"), m);
    }
    return nb_g_alt(b, v, n);
}
