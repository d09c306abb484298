/* jinja_format.c - Python's "%" operator and str.format. Spec chat-templates 5 and 7. */
#include "text/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

/* What both kinds of format say about one field. */
typedef struct field {
    char fill[4];
    size_t n_fill;
    char align; /* '<' '>' '^' '=' or 0 */
    char sign;  /* '+' ' ' or 0 */
    bool alt, zero, comma;
    int64_t width, prec; /* -1: not given */
    char type;
} field;

static field new_field(void)
{
    field f = { .fill = { ' ' }, .n_fill = 1, .width = -1, .prec = -1 };

    return f;
}

/* text[n] with its first `lead` bytes (sign, 0x) in front of the padding when that is '='. */
static void put_field(jrun *r, const field *f, const char *text, size_t n, size_t lead)
{
    size_t chars = 0, pad, left;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    pad = f->width > 0 && (uint64_t)f->width > chars ? (size_t)f->width - chars : 0;
    left = f->align == '<' ? 0 : f->align == '^' ? pad / 2 : pad;
    nb_j_room(r, pad);
    if (f->align == '=') {
        nb_j_put(r, text, lead);
        text += lead;
        n -= lead;
    }
    for (size_t i = 0; i < left; i++)
        nb_j_put(r, f->fill, f->n_fill);
    nb_j_put(r, text, n);
    for (size_t i = left; i < pad; i++)
        nb_j_put(r, f->fill, f->n_fill);
}

static void put_text(jrun *r, field f, const jstr *s)
{
    const size_t n = f.prec >= 0 ? nb_j_offset(r, s, (size_t)f.prec) : s->n;

    if (!f.align)
        f.align = '<';
    put_field(r, &f, s->s, n, 0);
}

/* Digits of an integer in base 2, 8, 10 or 16 behind its sign and prefix; *lead counts those. */
static size_t int_text(jrun *r, const field *f, jval v, char *out, size_t cap, size_t *lead)
{
    char digits[80];
    size_t n = 0, k = 0, d = 0;
    int64_t i = 0;
    const int base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    const bool small = nb_j_as_int(v, &i);
    const bool neg = small ? i < 0 : v.u.s->s[0] == '-';
    uint64_t u = neg ? 0 - (uint64_t)i : (uint64_t)i;

    if (!small && (base != 10 || v.u.s->n > cap / 2))
        nb_j_fail(r, "an integer is too wide for this format");
    if (small) {
        do
            digits[n++] = "0123456789abcdef"[u % (unsigned)base];
        while ((u /= (unsigned)base) != 0);
        if (f->type == 'X')
            for (size_t j = 0; j < n; j++)
                digits[j] = (char)(digits[j] >= 'a' ? digits[j] - 32 : digits[j]);
    }
    if (neg || f->sign)
        out[k++] = neg ? '-' : f->sign;
    if (f->alt && base != 10) {
        out[k++] = '0';
        out[k++] = f->type;
    }
    *lead = k;
    d = small ? n : v.u.s->n - neg;
    for (size_t j = 0; j < d; j++) {
        if (f->comma && j && (d - j) % 3 == 0)
            out[k++] = ',';
        out[k++] = small ? digits[n - 1 - j] : v.u.s->s[neg + j];
    }
    return k;
}

static void put_int(jrun *r, field f, jval v)
{
    char out[9000];
    size_t lead, n;

    n = int_text(r, &f, v, out, sizeof out, &lead);
    if (f.prec >= 0 && n - lead < (uint64_t)f.prec) { /* "%.3d": at least so many digits */
        const size_t more = (size_t)f.prec - (n - lead);
        if (more > 4000)
            nb_j_limit(r, "limit.template", "a precision of %" PRId64, f.prec);
        memmove(out + lead + more, out + lead, n - lead);
        memset(out + lead, '0', more);
        n += more;
    }
    if (!f.align)
        f.align = f.zero ? '=' : '>';
    if (f.zero && f.align == '=')
        f.fill[0] = '0';
    put_field(r, &f, out, n, lead);
}

/* What C's printf makes of a finite number; `f.type` is one of "eEfFgG%". */
static void print_float(char *raw, size_t cap, const field *f, int prec, double v)
{
    switch (f->type) {
    case 'e':
        f->alt ? snprintf(raw, cap, "%#.*e", prec, v) : snprintf(raw, cap, "%.*e", prec, v);
        break;
    case 'E':
        f->alt ? snprintf(raw, cap, "%#.*E", prec, v) : snprintf(raw, cap, "%.*E", prec, v);
        break;
    case 'g':
        f->alt ? snprintf(raw, cap, "%#.*g", prec, v) : snprintf(raw, cap, "%.*g", prec, v);
        break;
    case 'G':
        f->alt ? snprintf(raw, cap, "%#.*G", prec, v) : snprintf(raw, cap, "%.*G", prec, v);
        break;
    default: /* f, F and per cent */
        f->alt ? snprintf(raw, cap, "%#.*f", prec, v) : snprintf(raw, cap, "%.*f", prec, v);
    }
}

static void put_float(jrun *r, field f, double v)
{
    char raw[900], out[1300];
    size_t k = 0, n = 0, lead, point, raw_n;
    const int prec = f.prec < 0 ? 6 : (int)f.prec;

    if (f.prec > 500)
        nb_j_limit(r, "limit.template", "a precision of %" PRId64, f.prec);
    if (f.type == '%')
        v *= 100;
    if (signbit(v) || f.sign)
        out[k++] = signbit(v) ? '-' : f.sign;
    lead = k;
    if (!isfinite(v)) {
        snprintf(raw, sizeof raw, "%s", isnan(v) ? "nan" : "inf");
    } else {
        print_float(raw, sizeof raw, &f, prec, fabs(v));
    }
    raw_n = strlen(raw);
    for (size_t i = 0; i < raw_n; i++)
        if (raw[i] == ',')
            raw[i] = '.'; /* the decimal point of a foreign locale */
    point = strcspn(raw, ".e");
    for (size_t i = 0; i < raw_n; i++, n++) {
        if (f.comma && i && i < point && (point - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = raw[i];
    }
    if (f.type == '%')
        out[k++] = '%';
    if (!f.align)
        f.align = f.zero ? '=' : '>';
    if (f.zero && f.align == '=')
        f.fill[0] = '0';
    put_field(r, &f, out, k, lead);
}

/* ---- printf ---- */

typedef struct printf_args {
    jval all;
    size_t n, at;
    bool safe;
} printf_args;

static jval next_arg(jrun *r, printf_args *a)
{
    const size_t i = a->at++;

    if (i >= a->n)
        nb_j_fail(r, "not enough values for the format");
    return a->all.t == J_TUPLE ? a->all.u.l->v[i] : a->all;
}

static int64_t read_number(jrun *r, const jstr *s, size_t *i)
{
    int64_t v = 0;

    for (; *i < s->n && s->s[*i] >= '0' && s->s[*i] <= '9'; ++*i) {
        v = v * 10 + (s->s[*i] - '0');
        if ((size_t)v > J_OUTPUT_MOST)
            nb_j_limit(r, "limit.template", "a width or precision beyond %zu", J_OUTPUT_MOST);
    }
    return v;
}

/* The value of one conversion, by its letter. */
static void convert(jrun *r, field f, jval v, bool safe)
{
    const size_t mark = nb_j_mark(r);
    jval s;

    switch (f.type) {
    case 's':
        s = safe ? nb_j_escape(r, v) : nb_j_to_str(r, v);
        break;
    case 'r':
    case 'a':
        nb_j_put_repr(r, v);
        s = nb_j_take(r, mark);
        if (safe)
            s = nb_j_escape(r, s);
        break;
    case 'c':
        if (v.t == J_STR && v.u.s->chars == 1) {
            s = v;
        } else {
            char b[4];
            const int64_t cp = nb_j_need_int(r, v, "%c");
            if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
                nb_j_fail(r, "%%c wants a character");
            s = nb_j_str(r, b, nb_u8_put(b, (uint32_t)cp));
        }
        f.prec = -1;
        break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (!nb_j_is_num(v) || (v.t == J_FLOAT && strchr("xXo", f.type)))
            nb_j_fail(r, "%%%c wants a number, not a %s", f.type, nb_j_type_name(v));
        if (v.t == J_FLOAT && !isfinite(v.u.f))
            nb_j_fail(r, "%%%c of a number that is not finite", f.type);
        put_int(r, f, v.t == J_FLOAT ? nb_j_to_int(r, v, v, 10) : v);
        return;
    default:
        put_float(r, f, nb_j_as_double(r, v));
        return;
    }
    if (!f.align)
        f.align = '>';
    f.fill[0] = ' ';
    put_text(r, f, s.u.s);
}

/* "%(key)flags width.prec type" at s[*i], behind the "%". */
static void one_printf(jrun *r, const jstr *s, size_t *i, printf_args *a)
{
    field f = new_field();
    jval v = nb_j_of(J_ABSENT);
    const char *flag;

    if (*i < s->n && s->s[*i] == '(') {
        const size_t from = ++*i;
        while (*i < s->n && s->s[*i] != ')')
            ++*i;
        if (*i >= s->n || a->all.t != J_DICT)
            nb_j_fail(r, "the format wants a mapping");
        const jval key = nb_j_view(r, s->s + from, *i - from);
        const jval *hit = nb_j_dict_get(r, a->all.u.d, key);
        if (!hit)
            nb_j_fail(r, "a key of the format is not in the mapping");
        v = *hit;
        a->at = a->n;
        ++*i;
    }
    for (; *i < s->n && s->s[*i] && (flag = strchr("-+ 0#", s->s[*i])) != NULL; ++*i) {
        if (*flag == '-')
            f.align = '<';
        else if (*flag == '0')
            f.zero = true;
        else if (*flag == '#')
            f.alt = true;
        else if (f.sign != '+')
            f.sign = *flag;
    }
    if (*i < s->n && s->s[*i] == '*') {
        f.width = nb_j_need_int(r, next_arg(r, a), "a width");
        ++*i;
    } else {
        f.width = read_number(r, s, i);
    }
    if (f.width < 0) {
        f.align = '<';
        f.width = f.width == INT64_MIN ? INT64_MAX : -f.width;
    }
    if (*i < s->n && s->s[*i] == '.') {
        ++*i;
        f.prec = read_number(r, s, i);
    }
    while (*i < s->n && (s->s[*i] == 'l' || s->s[*i] == 'h' || s->s[*i] == 'L'))
        ++*i;
    if (*i >= s->n)
        nb_j_fail(r, "the format ends inside a conversion");
    f.type = s->s[(*i)++];
    if (f.type == '%') {
        nb_j_put(r, "%", 1);
        return;
    }
    if (!f.type || !strchr("srcdiuxXoeEfFgGa", f.type))
        nb_j_fail(r, "the format has no such conversion");
    convert(r, f, v.t == J_ABSENT ? next_arg(r, a) : v, a->safe);
}

jval nb_j_printf(jrun *r, jval fmt, jval args)
{
    const jstr *s = fmt.u.s;
    printf_args a = { args, args.t == J_TUPLE ? args.u.l->n : 1, 0, fmt.safe };
    const size_t mark = nb_j_mark(r);
    jval out;

    for (size_t i = 0; i < s->n;) {
        const char *hit = memchr(s->s + i, '%', s->n - i);
        const size_t run = hit ? (size_t)(hit - s->s) - i : s->n - i;
        nb_j_put(r, s->s + i, run);
        i += run;
        if (!hit)
            break;
        i++;
        nb_j_charge(r, 1);
        one_printf(r, s, &i, &a);
    }
    if (a.at < a.n && args.t != J_DICT)
        nb_j_fail(r, "more values than the format has conversions");
    out = nb_j_take(r, mark);
    out.safe = fmt.safe;
    return out;
}

/* ---- str.format ---- */

static field parse_spec(jrun *r, const jstr *s)
{
    field f = new_field();
    size_t i = 0, k = 1;

    while (k < s->n && ((unsigned char)s->s[k] & 0xC0) == 0x80)
        k++;
    if (s->n > k && s->s[k] && strchr("<>^=", s->s[k]) && k <= 4) {
        memcpy(f.fill, s->s, k);
        f.n_fill = k;
        f.align = s->s[k];
        i = k + 1;
    } else if (s->n && s->s[0] && strchr("<>^=", s->s[0])) {
        f.align = s->s[i++];
    }
    if (i < s->n && s->s[i] && strchr("+- ", s->s[i]))
        f.sign = s->s[i++];
    if (f.sign == '-')
        f.sign = '\0';
    if (i < s->n && s->s[i] == '#') {
        f.alt = true;
        i++;
    }
    if (i < s->n && s->s[i] == '0' && !f.align) {
        f.zero = true;
        i++;
    }
    if (i < s->n && s->s[i] >= '0' && s->s[i] <= '9')
        f.width = read_number(r, s, &i);
    if (i < s->n && s->s[i] == ',') {
        f.comma = true;
        i++;
    }
    if (i < s->n && s->s[i] == '.') {
        i++;
        f.prec = read_number(r, s, &i);
    }
    if (i < s->n)
        f.type = s->s[i++];
    if (i != s->n)
        nb_j_fail(r, "a format specification that is not understood");
    return f;
}

static void format_value(jrun *r, jval v, const jstr *spec)
{
    field f;

    if (!spec->n) {
        nb_j_put_str(r, v);
        return;
    }
    f = parse_spec(r, spec);
    if (v.t == J_STR && (!f.type || f.type == 's') && f.align != '=') {
        put_text(r, f, v.u.s);
    } else if (nb_j_is_num(v) && v.t != J_FLOAT && f.prec < 0 && (!f.type || strchr("dxXobn", f.type))) {
        f.type = f.type ? f.type : 'd';
        put_int(r, f, v);
    } else if (nb_j_is_num(v) && f.type && strchr("eEfFgG%", f.type)) {
        put_float(r, f, nb_j_as_double(r, v));
    } else if (v.t == J_FLOAT && !f.type) {
        char text[32];
        if (f.prec >= 0) {
            f.type = 'g';
            put_float(r, f, v.u.f);
            return;
        }
        const size_t n = nb_j_float_repr(v.u.f, text);
        f.align = f.align ? f.align : f.zero ? '=' : '>';
        if (f.zero)
            f.fill[0] = '0';
        put_field(r, &f, text, n, text[0] == '-');
    } else {
        nb_j_fail(r, "a %s cannot be formatted like this", nb_j_type_name(v));
    }
}

/* "0", "name", "" then ".attr" and "[key]". *next: number of the next automatic field; -1 after explicit numbers. */
static jval field_value(jrun *r, const jstr *s, const jcall *c, int64_t *next)
{
    size_t i = 0;
    int64_t index = 0;
    jval v;

    while (i < s->n && s->s[i] != '.' && s->s[i] != '[')
        i++;
    const jstr name = { s->s, i, i };
    bool number = i > 0 && i < 9;
    for (size_t k = 0; k < i && number; k++) {
        number = s->s[k] >= '0' && s->s[k] <= '9';
        index = index * 10 + (s->s[k] - '0');
    }
    if (i == 0 || number) {
        if (i == 0 ? *next < 0 : *next > 0)
            nb_j_fail(r, "automatic and numbered fields in one format");
        if (i == 0)
            index = (*next)++;
        else
            *next = -1;
        if ((uint64_t)index >= c->n)
            nb_j_fail(r, "the format has more fields than values");
        v = c->arg[index];
    } else {
        size_t k = 0;
        while (k < c->n_kw && !(c->kw[k].name->n == name.n && memcmp(c->kw[k].name->s, name.s, name.n) == 0))
            k++;
        if (k == c->n_kw)
            nb_j_fail(r, "the format names a value that is not given");
        v = c->kw[k].v;
    }
    while (i < s->n) {
        const bool item = s->s[i++] == '[';
        const size_t from = i;
        while (i < s->n && (item ? s->s[i] != ']' : s->s[i] != '.' && s->s[i] != '['))
            i++;
        const jval key = nb_j_view(r, s->s + from, i - from);
        const jval as_int = nb_j_to_int(r, key, nb_j_of(J_NONE), 10);
        v = item ? nb_j_getitem(r, v, as_int.t == J_INT ? as_int : key) : nb_j_getattr(r, v, key.u.s);
        i += item;
    }
    return v;
}

static void one_field(jrun *r, const jstr *s, const jcall *c, int64_t *next, bool safe)
{
    const char *colon = memchr(s->s, ':', s->n), *bang = memchr(s->s, '!', s->n);
    const size_t head = bang && (!colon || bang < colon) ? (size_t)(bang - s->s) : colon ? (size_t)(colon - s->s) : s->n;
    const size_t spec_at = colon ? (size_t)(colon - s->s) + 1 : s->n;
    const jstr name = { s->s, head, head }, spec = { s->s + spec_at, s->n - spec_at, 0 };
    jval v = field_value(r, &name, c, next);
    const size_t mark = nb_j_mark(r);

    if (memchr(spec.s, '{', spec.n))
        nb_j_fail(r, "fields inside a format specification");
    if (head < s->n && s->s[head] == '!') {
        const char how = head + 1 < s->n ? s->s[head + 1] : '\0';
        if (how == 's')
            v = nb_j_to_str(r, v);
        else if (how == 'r' || how == 'a') {
            nb_j_put_repr(r, v);
            v = nb_j_take(r, mark);
        } else {
            nb_j_fail(r, "a format has no conversion like this");
        }
    }
    format_value(r, safe && v.t == J_STR ? nb_j_escape(r, v) : v, &spec);
}

jval nb_j_str_format(jrun *r, jval fmt, const jcall *c)
{
    const jstr *s = fmt.u.s;
    const size_t mark = nb_j_mark(r);
    int64_t next = 0;

    for (size_t i = 0; i < s->n;) {
        size_t run = 0, end, depth = 0;
        while (i + run < s->n && s->s[i + run] != '{' && s->s[i + run] != '}')
            run++;
        nb_j_put(r, s->s + i, run);
        i += run;
        if (i >= s->n)
            break;
        if (i + 1 < s->n && s->s[i + 1] == s->s[i]) {
            nb_j_put(r, s->s + i, 1);
            i += 2;
            continue;
        }
        if (s->s[i] == '}')
            nb_j_fail(r, "a single \"}\" in a format");
        for (end = ++i; end < s->n && (depth || s->s[end] != '}'); end++)
            depth += s->s[end] == '{' ? 1 : s->s[end] == '}' ? (size_t)-1 : 0;
        if (end >= s->n)
            nb_j_fail(r, "a single \"{\" in a format");
        nb_j_charge(r, 1);
        const jstr part = { s->s + i, end - i, 0 };
        one_field(r, &part, c, &next, fmt.safe);
        i = end + 1;
    }
    return nb_j_take(r, mark);
}
