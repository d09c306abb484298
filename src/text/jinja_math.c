/* jinja_math.c - numbers with Python's rules: 64-bit integers, wide ones as decimal text, floats, their spelling. */
#include "text/jinja.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/num.h"
#include "text/utf8.h"

__extension__ typedef __int128 wide;

/* ---- integers ---- */

bool nb_j_as_int(jval v, int64_t *out)
{
    if (v.t != J_INT && v.t != J_BOOL)
        return false;
    *out = v.t == J_BOOL ? v.u.b : v.u.i;
    return true;
}

/* Value of an integer; false beyond 127 bits. */
static bool as_wide(jval v, wide *out)
{
    int64_t i;
    const char *s;
    size_t k, n;
    wide w = 0;

    if (nb_j_as_int(v, &i)) {
        *out = i;
        return true;
    }
    s = v.u.s->s;
    n = v.u.s->n;
    k = s[0] == '-';
    if (n - k > 38)
        return false;
    for (size_t j = k; j < n; j++)
        if (__builtin_mul_overflow(w, (wide)10, &w) || __builtin_add_overflow(w, (wide)(s[j] - '0'), &w))
            return false;
    *out = k ? -w : w;
    return true;
}

static jval from_wide(jrun *r, wide w)
{
    char buf[48], *p = buf + sizeof buf;
    const bool neg = w < 0;
    jval v;

    if (w >= INT64_MIN && w <= INT64_MAX)
        return nb_j_int((int64_t)w);
    do {
        const int d = (int)(w % 10);
        *--p = (char)('0' + (d < 0 ? -d : d));
        w /= 10;
    } while (w);
    if (neg)
        *--p = '-';
    v = nb_j_str(r, p, (size_t)(buf + sizeof buf - p));
    v.t = J_BIG;
    return v;
}

jval nb_j_big(jrun *r, const char *s, size_t n)
{
    const bool neg = n && s[0] == '-';
    size_t i = n && (s[0] == '-' || s[0] == '+') ? 1 : 0;
    jval v;
    wide w;
    char *copy;

    while (i + 1 < n && s[i] == '0')
        i++;
    n -= i;
    copy = nb_j_alloc(r, n + 1);
    copy[0] = '-';
    memcpy(copy + 1, s + i, n);
    v = neg ? nb_j_view(r, copy, n + 1) : nb_j_view(r, copy + 1, n);
    v.t = J_BIG;
    if (as_wide(v, &w) && w >= INT64_MIN && w <= INT64_MAX)
        return nb_j_int((int64_t)w);
    return v;
}

static _Noreturn void too_wide(jrun *r)
{
    nb_j_fail(r, "an integer leaves the range of 64 bits");
}

static wide need_wide(jrun *r, jval v)
{
    wide w = 0;

    if (!as_wide(v, &w))
        too_wide(r);
    return w;
}

static jval power(jrun *r, jval a, int64_t e)
{
    wide base = need_wide(r, a), w = 1;

    for (; e > 0; e >>= 1) {
        if ((e & 1) && __builtin_mul_overflow(w, base, &w))
            too_wide(r);
        if (e > 1 && __builtin_mul_overflow(base, base, &base))
            too_wide(r);
    }
    return from_wide(r, w);
}

/* Integers that fit 64 bits must stay there in + - * // (hardening JT-08); powers and already wide operands may use 127. */
static jval int_arith(jrun *r, jop op, jval a, jval b)
{
    const bool narrow = a.t != J_BIG && b.t != J_BIG;
    wide x, y, w = 0;
    int64_t e;
    bool over = false;

    if (op == O_POW) {
        if (!nb_j_as_int(b, &e))
            too_wide(r);
        return power(r, a, e);
    }
    x = need_wide(r, a);
    y = need_wide(r, b);
    switch (op) {
    case O_ADD:
        over = __builtin_add_overflow(x, y, &w);
        break;
    case O_SUB:
        over = __builtin_sub_overflow(x, y, &w);
        break;
    case O_MUL:
        over = __builtin_mul_overflow(x, y, &w);
        break;
    default:
        if (y == 0)
            nb_j_fail(r, "division by zero");
        w = x % y;
        if (w && (w < 0) != (y < 0))
            w += y;
        if (op == O_FDIV)
            w = (x - w) / y;
    }
    if (over || (narrow && (w < INT64_MIN || w > INT64_MAX)))
        too_wide(r);
    return from_wide(r, w);
}

/* ---- floats ---- */

double nb_j_as_double(jrun *r, jval v)
{
    double f = 0;

    if (v.t == J_FLOAT)
        return v.u.f;
    if (v.t == J_BOOL)
        return v.u.b;
    if (v.t == J_INT)
        return (double)v.u.i;
    if (v.t != J_BIG || !nb_j_read_double(v.u.s->s, v.u.s->n, &f) || isinf(f))
        nb_j_fail(r, "a %s is no number that fits", nb_j_type_name(v));
    return f;
}

static jval float_arith(jrun *r, jop op, double a, double b)
{
    double mod, div;

    switch (op) {
    case O_ADD:
        return nb_j_float(a + b);
    case O_SUB:
        return nb_j_float(a - b);
    case O_MUL:
        return nb_j_float(a * b);
    case O_POW:
        if ((a < 0 && b != floor(b)) || (a == 0 && b < 0))
            nb_j_fail(r, "this power is no real number");
        div = pow(a, b);
        if (isinf(div) && !isinf(a) && !isinf(b))
            nb_j_fail(r, "this power is too large");
        return nb_j_float(div);
    default:
        break;
    }
    if (b == 0)
        nb_j_fail(r, "division by zero");
    if (op == O_DIV)
        return nb_j_float(a / b);
    mod = fmod(a, b); /* Python's float_divmod */
    div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        }
    } else {
        mod = copysign(0, b);
    }
    if (op == O_MOD)
        return nb_j_float(mod);
    if (div == 0)
        return nb_j_float(copysign(0, a / b));
    return nb_j_float(div - floor(div) > 0.5 ? floor(div) + 1 : floor(div));
}

int nb_j_cmp_num(jval a, jval b)
{
    int64_t i, j;
    wide x = 0, y = 0;
    double f, g;

    if (nb_j_as_int(a, &i) && nb_j_as_int(b, &j))
        return (i > j) - (i < j);
    if (a.t != J_FLOAT && b.t != J_FLOAT) {
        const bool fa = as_wide(a, &x), fb = as_wide(b, &y);
        if (fa && fb)
            return (x > y) - (x < y);
        const int sa = fa ? 0 : a.u.s->s[0] == '-' ? -1 : 1, sb = fb ? 0 : b.u.s->s[0] == '-' ? -1 : 1;
        if (sa != sb)
            return sa > sb ? 1 : -1;
        if (a.u.s->n != b.u.s->n)
            return (a.u.s->n > b.u.s->n) == (sa > 0) ? 1 : -1;
        const int c = memcmp(a.u.s->s, b.u.s->s, a.u.s->n);
        return c == 0 ? 0 : (c > 0) == (sa > 0) ? 1 : -1;
    }
    if (a.t == J_FLOAT && b.t == J_FLOAT)
        return isnan(a.u.f) || isnan(b.u.f) ? 2 : (a.u.f > b.u.f) - (a.u.f < b.u.f);
    if (b.t != J_FLOAT) {
        const int c = nb_j_cmp_num(b, a);
        return c == 2 ? 2 : -c;
    }
    f = b.u.f; /* integer a against float f: exactly, by whole part and rest */
    if (isnan(f))
        return 2;
    if (!as_wide(a, &x))
        return isinf(f) ? (f > 0 ? -1 : 1) : a.u.s->s[0] == '-' ? (f < -1e38 ? 2 : -1) : f > 1e38 ? 2 : 1;
    if (f >= 0x1p126 || f <= -0x1p126)
        return f > 0 ? -1 : 1;
    g = floor(f);
    y = (wide)g;
    return x != y ? (x > y ? 1 : -1) : g < f ? -1 : 0;
}

/* ---- sequences with operators ---- */

static jval repeat(jrun *r, jval v, jval times)
{
    int64_t n;
    size_t all = 0;

    if (!nb_j_as_int(times, &n))
        nb_j_fail(r, "a %s cannot be repeated by a %s", nb_j_type_name(v), nb_j_type_name(times));
    if (n < 0)
        n = 0;
    if (v.t == J_STR) {
        const size_t mark = nb_j_mark(r);
        jval out;
        if (!nb_mul_size(v.u.s->n, (size_t)n, &all))
            all = SIZE_MAX;
        nb_j_room(r, all);
        for (int64_t i = 0; i < n && v.u.s->n; i++)
            nb_j_put(r, v.u.s->s, v.u.s->n);
        out = nb_j_take(r, mark);
        out.safe = v.safe;
        return out;
    }
    if (!nb_mul_size(v.u.l->n, (size_t)n, &all))
        all = SIZE_MAX;
    nb_j_charge(r, all <= J_LIST_MOST ? all / 16 : 0);
    jval out = nb_j_list(r, all);
    out.t = v.t;
    for (int64_t i = 0; i < n && v.u.l->n; i++) {
        memcpy(out.u.l->v + out.u.l->n, v.u.l->v, v.u.l->n * sizeof(jval));
        out.u.l->n += v.u.l->n;
    }
    return out;
}

static jval add_text(jrun *r, jval a, jval b)
{
    const bool safe = a.safe || b.safe;
    size_t mark;
    jval v;

    if (safe) { /* the unmarked side is escaped, as markupsafe does */
        a = nb_j_escape(r, a);
        b = nb_j_escape(r, b);
    }
    if (!a.u.s->n || !b.u.s->n)
        return a.u.s->n ? a : b;
    mark = nb_j_mark(r);
    nb_j_put(r, a.u.s->s, a.u.s->n);
    nb_j_put(r, b.u.s->s, b.u.s->n);
    v = nb_j_take(r, mark);
    v.safe = safe;
    return v;
}

static jval add_lists(jrun *r, jval a, jval b)
{
    jval v = nb_j_list(r, a.u.l->n + b.u.l->n);

    nb_j_charge(r, (a.u.l->n + b.u.l->n) / 16);
    v.t = a.t;
    if (a.u.l->n)
        memcpy(v.u.l->v, a.u.l->v, a.u.l->n * sizeof(jval));
    if (b.u.l->n)
        memcpy(v.u.l->v + a.u.l->n, b.u.l->v, b.u.l->n * sizeof(jval));
    v.u.l->n = a.u.l->n + b.u.l->n;
    return v;
}

static _Noreturn void no_operator(jrun *r, jop op, jval a, jval b)
{
    static const char *const spell[] = { "+", "-", "*", "/", "//", "%", "**" };
    char esc[NB_ESC_CAP];

    for (int i = 0; i < 2; i++) {
        const jval v = i ? b : a;
        if (v.t == J_UNDEF && v.u.s)
            nb_j_fail(r, "\"%s\" is undefined", nb_esc(esc, sizeof esc, v.u.s->s, v.u.s->n));
    }
    nb_j_fail(r, "%s between a %s and a %s", spell[op], nb_j_type_name(a), nb_j_type_name(b));
}

jval nb_j_arith(jrun *r, jop op, jval a, jval b)
{
    int64_t e;

    if (nb_j_is_num(a) && nb_j_is_num(b)) {
        const bool floats = a.t == J_FLOAT || b.t == J_FLOAT || op == O_DIV || (op == O_POW && nb_j_as_int(b, &e) && e < 0);
        return floats ? float_arith(r, op, nb_j_as_double(r, a), nb_j_as_double(r, b)) : int_arith(r, op, a, b);
    }
    if (op == O_ADD && a.t == J_STR && b.t == J_STR)
        return add_text(r, a, b);
    if (op == O_ADD && a.t == b.t && nb_j_is_seq(a))
        return add_lists(r, a, b);
    if (op == O_MUL && (a.t == J_STR || nb_j_is_seq(a)) && b.t != J_UNDEF)
        return repeat(r, a, b);
    if (op == O_MUL && (b.t == J_STR || nb_j_is_seq(b)) && a.t != J_UNDEF)
        return repeat(r, b, a);
    if (op == O_MOD && a.t == J_STR)
        return nb_j_printf(r, a, b);
    no_operator(r, op, a, b);
}

jval nb_j_neg(jrun *r, jval v, bool plus)
{
    int64_t i;

    if (!nb_j_is_num(v))
        no_operator(r, plus ? O_ADD : O_SUB, v, v);
    if (v.t == J_FLOAT)
        return nb_j_float(plus ? v.u.f : -v.u.f);
    if (nb_j_as_int(v, &i)) {
        if (!plus && i == INT64_MIN)
            too_wide(r);
        return nb_j_int(plus ? i : -i);
    }
    if (plus)
        return v;
    return v.u.s->s[0] == '-' ? nb_j_big(r, v.u.s->s + 1, v.u.s->n - 1) : from_wide(r, -need_wide(r, v));
}

/* ---- spelling ---- */

bool nb_j_read_double(const char *s, size_t n, double *out)
{
    static const char *const words[] = { "inf", "infinity", "nan" };
    const size_t sign = n && (s[0] == '-' || s[0] == '+');
    char small[128], *buf = small, *end, *dot;
    bool ok = true;

    for (size_t i = 0; i < NB_LEN(words); i++)
        if (n - sign == strlen(words[i]) && strncasecmp(s + sign, words[i], n - sign) == 0) {
            const double f = i < 2 ? INFINITY : NAN;
            *out = s[0] == '-' ? -f : f;
            return true;
        }
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789.eE+-", s[i]) || !s[i])
            return false;
    if (!n || !(buf = n < sizeof small ? small : nb_alloc(n + 1)))
        return false;
    memcpy(buf, s, n);
    buf[n] = '\0';
    dot = memchr(buf, '.', n);
    if (dot)
        *dot = localeconv()->decimal_point[0];
    *out = strtod(buf, &end);
    ok = end == buf + n;
    if (buf != small)
        nb_free(buf);
    return ok;
}

/* Shortest digits that read back as the same float, in Python's layout. */
size_t nb_j_float_repr(double f, char out[32])
{
    char e[40], digits[24];
    int n = 0, exp10;
    uint64_t size10 = 0;
    const char *e10;
    char *p = out;

    if (isnan(f))
        return (size_t)snprintf(out, 32, "nan");
    if (isinf(f))
        return (size_t)snprintf(out, 32, f < 0 ? "-inf" : "inf");
    /* 15 digits hold every shorter spelling of a normal number; among subnormal ones the shortest is searched for */
    for (int prec = fabs(f) < 1e-300 ? 0 : 14; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, fabs(f));
        if (strtod(e, NULL) == fabs(f))
            break;
    }
    for (char *c = e; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    e10 = strchr(e, 'e') + 1; /* "+05", "-300" */
    nb_num_u64(e10 + 1, 999, &size10);
    exp10 = e10[0] == '-' ? -(int)size10 : (int)size10;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (signbit(f))
        *p++ = '-';
    if (exp10 < -4 || exp10 >= 16) {
        *p++ = digits[0];
        if (n > 1) {
            *p++ = '.';
            memcpy(p, digits + 1, (size_t)n - 1);
            p += n - 1;
        }
        return (size_t)(p - out) + (size_t)snprintf(p, 8, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
    }
    if (exp10 < 0) {
        *p++ = '0';
        *p++ = '.';
        for (int i = -1; i > exp10; i--)
            *p++ = '0';
        memcpy(p, digits, (size_t)n);
        p += n;
    } else {
        for (int i = 0; i <= exp10; i++)
            *p++ = i < n ? digits[i] : '0';
        *p++ = '.';
        if (n <= exp10 + 1)
            *p++ = '0';
        for (int i = exp10 + 1; i < n; i++)
            *p++ = digits[i];
    }
    *p = '\0';
    return (size_t)(p - out);
}

/* ---- conversions ---- */

static void strip(const char **s, size_t *n)
{
    uint32_t cp;
    int k;
    size_t b;

    while (*n && (k = nb_u8_next(*s, *n, &cp, NULL)) > 0 && nb_j_space(cp)) {
        *s += k;
        *n -= (size_t)k;
    }
    while (*n && (b = nb_u8_prev(*s, *n, &cp)) > 0 && nb_j_space(cp))
        *n -= b;
}

/* Copy without single underscores between digits; 0 when the text is longer than cap or one stands elsewhere. */
static size_t drop_underscores(const char *s, size_t n, char *out, size_t cap)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_') {
            if (i == 0 || i + 1 == n || s[i - 1] == '_')
                return 0;
            continue;
        }
        if (k + 1 >= cap)
            return 0;
        out[k++] = s[i];
    }
    return k;
}

/* int(text, base): false when Python would raise ValueError. */
static bool parse_int(jrun *r, const jstr *t, int64_t base, jval *out)
{
    const char *s = t->s;
    size_t n = t->n, i;
    char buf[4400];
    wide w = 0;
    bool neg, any = false;

    if (base != 0 && (base < 2 || base > 36))
        return false;
    strip(&s, &n);
    n = drop_underscores(s, n, buf, sizeof buf);
    i = n && (buf[0] == '-' || buf[0] == '+');
    neg = n && buf[0] == '-';
    if (n - i > 2 && buf[i] == '0') {
        const char c = (char)(buf[i + 1] | 0x20);
        const int64_t b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (b && (base == 0 || base == b)) {
            base = b;
            i += 2;
        }
    }
    if (base == 0)
        base = 10;
    for (size_t j = i; j < n; j++) {
        const char c = buf[j];
        const int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10 : 99;
        if (d >= base)
            return false;
        any = true;
        if (base != 10 && (__builtin_mul_overflow(w, (wide)base, &w) || __builtin_add_overflow(w, (wide)d, &w)))
            too_wide(r);
    }
    if (any)
        *out = base == 10 ? nb_j_big(r, buf, n) : from_wide(r, neg ? -w : w);
    return any;
}

static bool parse_float(const jstr *t, double *out)
{
    const char *s = t->s;
    size_t n = t->n;
    char buf[512];

    strip(&s, &n);
    n = drop_underscores(s, n, buf, sizeof buf);
    return n && nb_j_read_double(buf, n, out);
}

static jval trunc_float(jrun *r, double f, jval dflt)
{
    if (isnan(f) || isinf(f))
        return dflt;
    if (f >= 0x1p126 || f <= -0x1p126)
        too_wide(r);
    return from_wide(r, (wide)f);
}

jval nb_j_to_int(jrun *r, jval v, jval dflt, int64_t base)
{
    double f;
    jval out;

    if (v.t == J_UNDEF)
        nb_j_fail(r, "an undefined value is no number");
    if (v.t == J_BOOL)
        return nb_j_int(v.u.b);
    if (v.t == J_INT || v.t == J_BIG)
        return v;
    if (v.t == J_FLOAT)
        return trunc_float(r, v.u.f, dflt);
    if (v.t != J_STR)
        return dflt;
    if (parse_int(r, v.u.s, base, &out))
        return out;
    return parse_float(v.u.s, &f) ? trunc_float(r, f, dflt) : dflt;
}

jval nb_j_to_float(jrun *r, jval v, jval dflt)
{
    double f;

    if (v.t == J_UNDEF)
        nb_j_fail(r, "an undefined value is no number");
    if (nb_j_is_num(v))
        return nb_j_float(nb_j_as_double(r, v));
    return v.t == J_STR && parse_float(v.u.s, &f) ? nb_j_float(f) : dflt;
}

jval nb_j_round(jrun *r, jval v, int64_t digits, const char *method)
{
    const double scale = digits > 300 || digits < -300 ? 0 : pow(10, (double)(digits < 0 ? -digits : digits));
    double f;
    char buf[700];

    if (!nb_j_is_num(v))
        nb_j_fail(r, "a %s cannot be rounded", nb_j_type_name(v));
    f = nb_j_as_double(r, v);
    if (strcmp(method, "common") == 0) {
        if (v.t != J_FLOAT && digits >= 0)
            return nb_j_to_int(r, v, v, 10);
        if (!isfinite(f) || digits > 300)
            return v;
        if (digits < 0) {
            f = scale == 0 ? 0 : rint(f / scale) * scale;
            return v.t == J_FLOAT ? nb_j_float(f) : trunc_float(r, f, v);
        }
        snprintf(buf, sizeof buf, "%.*f", (int)digits, f); /* exact value, half to even */
        return nb_j_float(strtod(buf, NULL));
    }
    if (scale == 0)
        nb_j_fail(r, "rounding to %lld digits", (long long)digits);
    f = digits < 0 ? f / scale : f * scale;
    f = strcmp(method, "ceil") == 0 ? ceil(f) : floor(f);
    return nb_j_float(digits < 0 ? f * scale : f / scale);
}
