/* jinja_filters.c - filters on texts and numbers, and the look-up of all filters. Spec chat-templates 6.
 * Filters on lists and dicts: jinja_lists.c. */
#include "text/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

static jval text_of(jrun *r, jval v)
{
    return nb_j_to_str(r, v);
}

static jval take_marked(jrun *r, size_t mark, bool safe)
{
    jval v = nb_j_take(r, mark);

    v.safe = safe;
    return v;
}

static jval f_length(jrun *r, jval self, const jcall *c)
{
    size_t n;

    (void)c;
    if (!nb_j_length(self, &n))
        nb_j_fail(r, "a %s has no length", nb_j_type_name(self));
    return nb_j_int((int64_t)n);
}

static jval f_trim(jrun *r, jval self, const jcall *c)
{
    return nb_j_strip(r, text_of(r, self), c->arg[0], 3);
}

static jval f_string(jrun *r, jval self, const jcall *c)
{
    (void)c;
    return text_of(r, self);
}

static jval f_default(jrun *r, jval self, const jcall *c)
{
    if (self.t != J_UNDEF && !(nb_j_true(c->arg[1]) && !nb_j_true(self)))
        return self;
    return c->arg[0].t == J_ABSENT ? nb_j_cstr(r, "") : c->arg[0];
}

static jval f_case(jrun *r, jval self, const jcall *c)
{
    const jval v = text_of(r, self);
    const size_t mark = nb_j_mark(r);
    const char *name = c->sig->name;

    if (name[0] == 'u')
        nb_j_put_upper(r, v.u.s);
    else if (name[0] == 'l')
        nb_j_put_lower(r, v.u.s);
    else if (name[0] == 't')
        nb_j_put_title(r, v.u.s, true);
    else
        nb_j_put_capital(r, v.u.s);
    return take_marked(r, mark, v.safe && name[0] != 't');
}

static jval f_replace(jrun *r, jval self, const jcall *c)
{
    const int64_t most = nb_j_given(c->arg[2]) ? nb_j_need_int(r, c->arg[2], "replace") : -1;

    return nb_j_replace(r, text_of(r, self).u.s, text_of(r, c->arg[0]).u.s, text_of(r, c->arg[1]).u.s, most);
}

static jval f_indent(jrun *r, jval self, const jcall *c)
{
    const jval v = text_of(r, self);
    const bool first = nb_j_true(c->arg[1]), blank = nb_j_true(c->arg[2]);
    jval pad, text;
    size_t mark, n;
    const jval *lines;

    if (c->arg[0].t == J_STR) {
        pad = c->arg[0];
    } else {
        const jstr none = { "", 0, 0 };
        pad = nb_j_pad(r, &none, c->arg[0].t == J_ABSENT ? 4 : nb_j_need_int(r, c->arg[0], "indent"), -1, ' ');
    }
    mark = nb_j_mark(r);
    nb_j_put(r, v.u.s->s, v.u.s->n);
    nb_j_put(r, "\n", 1); /* keeps a last newline of the text */
    text = nb_j_take(r, mark);
    lines = nb_j_lines(r, text.u.s, false, &n);
    for (size_t i = 0; i < n; i++) {
        if (i)
            nb_j_put(r, "\n", 1);
        if (i ? blank || lines[i].u.s->n > 0 : first)
            nb_j_put(r, pad.u.s->s, pad.u.s->n);
        nb_j_put(r, lines[i].u.s->s, lines[i].u.s->n);
    }
    return take_marked(r, mark, v.safe);
}

static jval f_int(jrun *r, jval self, const jcall *c)
{
    const jval dflt = c->arg[0].t == J_ABSENT ? nb_j_int(0) : c->arg[0];

    return nb_j_to_int(r, self, dflt, c->arg[1].t == J_ABSENT ? 10 : nb_j_need_int(r, c->arg[1], "int"));
}

static jval f_float(jrun *r, jval self, const jcall *c)
{
    return nb_j_to_float(r, self, c->arg[0].t == J_ABSENT ? nb_j_float(0) : c->arg[0]);
}

static jval f_abs(jrun *r, jval self, const jcall *c)
{
    (void)c;
    if (!nb_j_is_num(self))
        nb_j_fail(r, "abs of a %s", nb_j_type_name(self));
    if (self.t == J_FLOAT)
        return nb_j_float(fabs(self.u.f));
    return nb_j_order(r, self, nb_j_int(0)) < 0 ? nb_j_neg(r, self, false) : nb_j_neg(r, self, true);
}

static jval f_round(jrun *r, jval self, const jcall *c)
{
    static const char *const methods[] = { "common", "ceil", "floor" };
    size_t i = 0;

    while (c->arg[1].t != J_ABSENT && i < NB_LEN(methods) && !nb_j_is_str(c->arg[1], methods[i]))
        i++;
    if (i == NB_LEN(methods))
        nb_j_fail(r, "the method of round is common, ceil or floor");
    return nb_j_round(r, self, c->arg[0].t == J_ABSENT ? 0 : nb_j_need_int(r, c->arg[0], "round"), methods[i]);
}

static jval f_format(jrun *r, jval self, const jcall *c)
{
    jval args = nb_j_list(r, c->n);

    if (c->n && c->n_kw)
        nb_j_fail(r, "format takes positional or keyword arguments, not both");
    args.t = J_TUPLE;
    for (size_t i = 0; i < c->n; i++)
        nb_j_append(r, args.u.l, c->arg[i]);
    if (c->n_kw)
        args = nb_j_dict(r, c->n_kw);
    for (size_t i = 0; i < c->n_kw; i++) {
        jval key = nb_j_of(J_STR);
        key.u.s = c->kw[i].name;
        nb_j_dict_set(r, args.u.d, key, c->kw[i].v);
    }
    return nb_j_printf(r, text_of(r, self), args);
}

static jval f_tojson(jrun *r, jval self, const jcall *c)
{
    return nb_j_tojson(r, self, nb_j_true(c->arg[0]), c->arg[1], c->arg[2], nb_j_true(c->arg[3]));
}

static jval f_safe(jrun *r, jval self, const jcall *c)
{
    jval v = text_of(r, self);

    (void)c;
    v.safe = true;
    return v;
}

static jval f_escape(jrun *r, jval self, const jcall *c)
{
    (void)c;
    return nb_j_escape(r, self);
}

static jval f_wordcount(jrun *r, jval self, const jcall *c)
{
    const jstr *s = text_of(r, self).u.s;
    int64_t n = 0;
    bool inside = false;

    (void)c;
    nb_j_charge(r, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s->s + i, s->n - i, &cp, NULL);
        const jstr one = { s->s + i, k, 1 };
        const bool word = nb_j_str_is(&one, "word");
        n += word && !inside;
        inside = word;
        i += k;
    }
    return nb_j_int(n);
}

static jval f_center(jrun *r, jval self, const jcall *c)
{
    const jval v = text_of(r, self);
    jval out = nb_j_pad(r, v.u.s, c->arg[0].t == J_ABSENT ? 80 : nb_j_need_int(r, c->arg[0], "center"), 0, ' ');

    out.safe = v.safe;
    return out;
}

static jval f_truncate(jrun *r, jval self, const jcall *c)
{
    const jval v = text_of(r, self);
    const int64_t length = c->arg[0].t == J_ABSENT ? 255 : nb_j_need_int(r, c->arg[0], "truncate");
    const jval end = c->arg[2].t == J_ABSENT ? nb_j_cstr(r, "...") : text_of(r, c->arg[2]);
    const int64_t leeway = nb_j_given(c->arg[3]) ? nb_j_need_int(r, c->arg[3], "truncate") : 5;
    const size_t mark = nb_j_mark(r);
    size_t n;

    if (length < (int64_t)end.u.s->chars || leeway < 0 || length > INT32_MAX || leeway > INT32_MAX)
        nb_j_fail(r, "truncate to %" PRId64 " characters", length);
    if ((int64_t)v.u.s->chars <= length + leeway)
        return v;
    n = nb_j_offset(r, v.u.s, (size_t)length - end.u.s->chars);
    if (!nb_j_true(c->arg[1]))
        for (size_t i = n; i-- > 0;)
            if (v.u.s->s[i] == ' ') {
                n = i;
                break;
            }
    nb_j_put(r, v.u.s->s, n);
    nb_j_put(r, end.u.s->s, end.u.s->n);
    return take_marked(r, mark, v.safe);
}

static jval f_urlencode(jrun *r, jval self, const jcall *c)
{
    const jstr *s = text_of(r, self).u.s;
    const size_t mark = nb_j_mark(r);
    char e[4];

    (void)c;
    if (self.t == J_DICT || nb_j_is_seq(self))
        nb_j_fail(r, "urlencode of a %s is not supported", nb_j_type_name(self));
    for (size_t i = 0; i < s->n; i++) {
        const char ch = s->s[i], low = (char)(ch | 0x20);
        if ((low >= 'a' && low <= 'z') || (ch >= '0' && ch <= '9') || (ch && strchr("_.-~/", ch)))
            nb_j_put(r, &ch, 1);
        else
            nb_j_put(r, e, (size_t)snprintf(e, sizeof e, "%%%02X", (unsigned char)ch));
    }
    return nb_j_take(r, mark);
}

static jval f_attr(jrun *r, jval self, const jcall *c)
{
    const jstr *name = nb_j_need_str(r, c->arg[0], "attr");

    if (self.t == J_DICT && !nb_j_find_method(self, name)) /* attributes only, never keys */
        return nb_j_undef(name);
    return nb_j_getattr(r, self, name);
}

static jval f_pprint(jrun *r, jval self, const jcall *c)
{
    const size_t mark = nb_j_mark(r);

    (void)c;
    nb_j_put_repr(r, self);
    return nb_j_take(r, mark);
}

#define PAR(...) .par = { __VA_ARGS__ }
static const jsig filters[] = {
    { .name = "length", .fn = f_length },
    { .name = "count", .fn = f_length },
    { .name = "trim", .fn = f_trim, PAR("chars"), .max = 1 },
    { .name = "string", .fn = f_string },
    { .name = "default", .fn = f_default, PAR("default_value", "boolean"), .max = 2 },
    { .name = "d", .fn = f_default, PAR("default_value", "boolean"), .max = 2 },
    { .name = "upper", .fn = f_case },
    { .name = "lower", .fn = f_case },
    { .name = "title", .fn = f_case },
    { .name = "capitalize", .fn = f_case },
    { .name = "replace", .fn = f_replace, PAR("old", "new", "count"), .min = 2, .max = 3 },
    { .name = "indent", .fn = f_indent, PAR("width", "first", "blank"), .max = 3 },
    { .name = "int", .fn = f_int, PAR("default", "base"), .max = 2 },
    { .name = "float", .fn = f_float, PAR("default"), .max = 1 },
    { .name = "abs", .fn = f_abs },
    { .name = "round", .fn = f_round, PAR("precision", "method"), .max = 2 },
    { .name = "format", .fn = f_format, .max = J_ANY },
    { .name = "tojson", .fn = f_tojson, PAR("ensure_ascii", "indent", "separators", "sort_keys"), .max = 4 },
    { .name = "safe", .fn = f_safe },
    { .name = "e", .fn = f_escape },
    { .name = "escape", .fn = f_escape },
    { .name = "wordcount", .fn = f_wordcount },
    { .name = "center", .fn = f_center, PAR("width"), .max = 1 },
    { .name = "truncate", .fn = f_truncate, PAR("length", "killwords", "end", "leeway"), .max = 4 },
    { .name = "urlencode", .fn = f_urlencode },
    { .name = "attr", .fn = f_attr, PAR("name"), .min = 1, .max = 1 },
    { .name = "pprint", .fn = f_pprint },
    { .name = NULL },
};

const jsig *nb_j_find_filter(const char *s, size_t n)
{
    const jsig *hit = nb_j_find_in(filters, s, n);

    return hit ? hit : nb_j_find_in(nb_j_list_filters, s, n);
}
