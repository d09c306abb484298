/* jinja_methods.c - methods of texts, lists, dicts and loop objects. Spec chat-templates 7. */
#include "text/jinja.h"

#include <string.h>

#include "text/utf8.h"

/* ---- splitting ---- */

static jval split_blanks(jrun *r, const jstr *s, int64_t most, bool right)
{
    jval out = nb_j_list(r, 0);
    size_t a = 0, b = s->n;
    uint32_t cp;

    nb_j_charge(r, s->n / 16);
    while (a < b) {
        size_t i = right ? b : a, k;
        while (right ? i > a && (k = nb_u8_prev(s->s, i, &cp), nb_j_space(cp))
                     : i < b && (k = (size_t)nb_u8_next(s->s + i, b - i, &cp, NULL), nb_j_space(cp)))
            i = right ? i - k : i + k;
        *(right ? &b : &a) = i;
        if (a == b)
            break;
        if (most >= 0 && out.u.l->n == (uint64_t)most) {
            jval rest = nb_j_view(r, s->s + a, b - a);
            nb_j_append(r, out.u.l, nb_j_strip(r, rest, nb_j_of(J_ABSENT), right ? 1 : 0));
            break;
        }
        while (right ? i > a && (k = nb_u8_prev(s->s, i, &cp), !nb_j_space(cp))
                     : i < b && (k = (size_t)nb_u8_next(s->s + i, b - i, &cp, NULL), !nb_j_space(cp)))
            i = right ? i - k : i + k;
        nb_j_append(r, out.u.l, right ? nb_j_view(r, s->s + i, b - i) : nb_j_view(r, s->s + a, i - a));
        *(right ? &b : &a) = i;
    }
    return out;
}

static void reverse(jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        const jval t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static jval m_split(jrun *r, jval self, const jcall *c)
{
    const bool right = c->sig->name[0] == 'r';
    const jstr *s = self.u.s, *sep;
    const int64_t most = nb_j_given(c->arg[1]) ? nb_j_need_int(r, c->arg[1], c->sig->name) : -1;
    size_t a = 0, b = s->n, hit;
    jval out;

    if (!nb_j_given(c->arg[0])) {
        out = split_blanks(r, s, most, right);
        if (right)
            reverse(out.u.l);
        return out;
    }
    sep = nb_j_need_str(r, c->arg[0], c->sig->name);
    if (!sep->n)
        nb_j_fail(r, "split by an empty text");
    out = nb_j_list(r, 0);
    while (most < 0 || out.u.l->n < (uint64_t)most) {
        hit = right ? nb_j_find_last(r, &(jstr){ s->s, b, 0 }, b, sep) : nb_j_find(r, s, a, sep);
        if (hit == SIZE_MAX)
            break;
        nb_j_append(r, out.u.l, right ? nb_j_view(r, s->s + hit + sep->n, b - hit - sep->n) : nb_j_view(r, s->s + a, hit - a));
        *(right ? &b : &a) = right ? hit : hit + sep->n;
    }
    nb_j_append(r, out.u.l, nb_j_view(r, s->s + a, b - a));
    if (right)
        reverse(out.u.l);
    return out;
}

static jval m_splitlines(jrun *r, jval self, const jcall *c)
{
    jval out = nb_j_list(r, 0);

    out.u.l->v = nb_j_lines(r, self.u.s, nb_j_true(c->arg[0]), &out.u.l->n);
    out.u.l->cap = out.u.l->n;
    return out;
}

static jval m_partition(jrun *r, jval self, const jcall *c)
{
    const bool right = c->sig->name[0] == 'r';
    const jstr *s = self.u.s, *sep = nb_j_need_str(r, c->arg[0], c->sig->name);
    const size_t hit = !sep->n ? SIZE_MAX : right ? nb_j_find_last(r, s, s->n, sep) : nb_j_find(r, s, 0, sep);
    jval out = nb_j_list(r, 3);

    if (!sep->n)
        nb_j_fail(r, "partition by an empty text");
    out.t = J_TUPLE;
    if (hit == SIZE_MAX) {
        nb_j_append(r, out.u.l, right ? nb_j_cstr(r, "") : self);
        nb_j_append(r, out.u.l, nb_j_cstr(r, ""));
        nb_j_append(r, out.u.l, right ? self : nb_j_cstr(r, ""));
        return out;
    }
    nb_j_append(r, out.u.l, nb_j_view(r, s->s, hit));
    nb_j_append(r, out.u.l, c->arg[0]);
    nb_j_append(r, out.u.l, nb_j_view(r, s->s + hit + sep->n, s->n - hit - sep->n));
    return out;
}

/* ---- other methods of texts ---- */

static jval m_strip(jrun *r, jval self, const jcall *c)
{
    return nb_j_strip(r, self, c->arg[0], c->sig->name[0] == 'l' ? 1 : c->sig->name[0] == 'r' ? 2 : 3);
}

/* s[start:end] of the optional arguments, as byte offsets. False: start is beyond the end. */
static bool bounds(jrun *r, const jstr *s, const jval *arg, size_t *from, size_t *to)
{
    int64_t v[2] = { 0, (int64_t)s->chars };

    for (int i = 0; i < 2; i++) {
        if (!nb_j_given(arg[i]))
            continue;
        v[i] = nb_j_need_int(r, arg[i], "a range");
        if (v[i] < 0)
            v[i] = v[i] + (int64_t)s->chars < 0 ? 0 : v[i] + (int64_t)s->chars;
        if (v[i] > (int64_t)s->chars && i == 1)
            v[i] = (int64_t)s->chars;
    }
    if (v[0] > v[1])
        return false;
    *from = nb_j_offset(r, s, (size_t)v[0]);
    *to = nb_j_offset(r, s, (size_t)v[1]);
    return true;
}

static jval m_starts(jrun *r, jval self, const jcall *c)
{
    const bool ends = c->sig->name[0] == 'e';
    size_t from, to, n = 1;
    const jval *v = &c->arg[0];

    if (v->t == J_TUPLE) {
        n = v->u.l->n;
        v = v->u.l->v;
    }
    if (!bounds(r, self.u.s, c->arg + 1, &from, &to))
        return nb_j_bool(false);
    for (size_t i = 0; i < n; i++) {
        const jstr *p = nb_j_need_str(r, v[i], c->sig->name);
        nb_j_charge(r, p->n / 64);
        if (p->n <= to - from && (p->n == 0 || memcmp(self.u.s->s + (ends ? to - p->n : from), p->s, p->n) == 0))
            return nb_j_bool(true);
    }
    return nb_j_bool(false);
}

static jval m_find(jrun *r, jval self, const jcall *c)
{
    const char *name = c->sig->name;
    const bool right = name[0] == 'r', must = strstr(name, "index") != NULL, count = name[0] == 'c';
    const jstr *what = nb_j_need_str(r, c->arg[0], name);
    size_t from = 0, to = 0, hit = SIZE_MAX, total = 0, chars = 0;
    const bool in = bounds(r, self.u.s, c->arg + 1, &from, &to);
    const jstr part = { self.u.s->s, in ? to : 0, 0 };

    if (count && in && !what->n)
        return nb_j_int((int64_t)nb_j_view(r, self.u.s->s + from, to - from).u.s->chars + 1);
    if (in)
        hit = right ? nb_j_find_last(r, &part, to, what) : nb_j_find(r, &part, from, what);
    if (right && hit != SIZE_MAX && hit < from)
        hit = SIZE_MAX;
    for (; count && hit != SIZE_MAX; total++)
        hit = nb_j_find(r, &part, hit + what->n, what);
    if (count)
        return nb_j_int((int64_t)total);
    if (hit == SIZE_MAX && must)
        nb_j_fail(r, "%s: the text is not there", name);
    if (hit == SIZE_MAX)
        return nb_j_int(-1);
    for (size_t i = 0; i < hit; i++)
        chars += ((unsigned char)self.u.s->s[i] & 0xC0) != 0x80;
    return nb_j_int((int64_t)chars);
}

static jval m_replace(jrun *r, jval self, const jcall *c)
{
    const int64_t most = nb_j_given(c->arg[2]) ? nb_j_need_int(r, c->arg[2], "replace") : -1;

    return nb_j_replace(r, self.u.s, nb_j_need_str(r, c->arg[0], "replace"), nb_j_need_str(r, c->arg[1], "replace"), most);
}

static jval m_case(jrun *r, jval self, const jcall *c)
{
    const size_t mark = nb_j_mark(r);
    const char *name = c->sig->name;

    if (strcmp(name, "upper") == 0)
        nb_j_put_upper(r, self.u.s);
    else if (strcmp(name, "title") == 0)
        nb_j_put_title(r, self.u.s, false);
    else if (strcmp(name, "capitalize") == 0)
        nb_j_put_capital(r, self.u.s);
    else if (strcmp(name, "swapcase") == 0)
        nb_j_put_swap(r, self.u.s);
    else
        nb_j_put_lower(r, self.u.s);
    return nb_j_take(r, mark);
}

static jval m_is(jrun *r, jval self, const jcall *c)
{
    nb_j_charge(r, self.u.s->n / 16);
    return nb_j_bool(nb_j_str_is(self.u.s, c->sig->name + 2));
}

static jval m_join(jrun *r, jval self, const jcall *c)
{
    const size_t mark = nb_j_mark(r);
    size_t n;
    const jval *v = nb_j_items(r, c->arg[0], &n);

    for (size_t i = 0; i < n; i++) {
        if (i)
            nb_j_put(r, self.u.s->s, self.u.s->n);
        const jstr *s = self.safe ? nb_j_escape(r, v[i]).u.s : nb_j_need_str(r, v[i], "join");
        nb_j_put(r, s->s, s->n);
    }
    return nb_j_take(r, mark);
}

static jval m_format(jrun *r, jval self, const jcall *c)
{
    return nb_j_str_format(r, self, c);
}

static jval m_remove(jrun *r, jval self, const jcall *c)
{
    const jstr *s = self.u.s, *p = nb_j_need_str(r, c->arg[0], c->sig->name);
    const bool prefix = c->sig->name[6] == 'p';

    if (!p->n || p->n > s->n || memcmp(s->s + (prefix ? 0 : s->n - p->n), p->s, p->n) != 0)
        return self;
    return nb_j_view(r, s->s + (prefix ? p->n : 0), s->n - p->n);
}

static jval m_pad(jrun *r, jval self, const jcall *c)
{
    const char *name = c->sig->name;
    const int64_t width = nb_j_need_int(r, c->arg[0], name);
    uint32_t fill = ' ';

    if (nb_j_given(c->arg[1])) {
        const jstr *f = nb_j_need_str(r, c->arg[1], name);
        if (f->chars != 1)
            nb_j_fail(r, "%s wants one fill character", name);
        nb_u8_next(f->s, f->n, &fill, NULL);
    }
    return nb_j_pad(r, self.u.s, width, name[0] == 'l' ? -1 : name[0] == 'r' ? 1 : 0, fill);
}

static jval m_zfill(jrun *r, jval self, const jcall *c)
{
    const jstr *s = self.u.s;
    const size_t sign = s->n && (s->s[0] == '+' || s->s[0] == '-'), mark = nb_j_mark(r);
    const jval rest = nb_j_view(r, s->s + sign, s->n - sign);
    const jval padded = nb_j_pad(r, rest.u.s, nb_j_need_int(r, c->arg[0], "zfill") - (int64_t)sign, 1, '0');

    nb_j_put(r, s->s, sign);
    nb_j_put(r, padded.u.s->s, padded.u.s->n);
    return nb_j_take(r, mark);
}

/* ---- lists, dicts, loops ---- */

static jval m_index(jrun *r, jval self, const jcall *c)
{
    const bool count = c->sig->name[0] == 'c';
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    int64_t total = 0;

    for (size_t i = 0; i < n; i++)
        if (nb_j_equal(r, v[i], c->arg[0])) {
            if (!count)
                return nb_j_int((int64_t)i);
            total++;
        }
    if (!count)
        nb_j_fail(r, "index: the value is not in the list");
    return nb_j_int(total);
}

static jval m_get(jrun *r, jval self, const jcall *c)
{
    const jval *hit = nb_j_dict_get(r, self.u.d, c->arg[0]);

    return hit ? *hit : c->arg[1].t == J_ABSENT ? nb_j_of(J_NONE) : c->arg[1];
}

static jval m_view(jrun *r, jval self, const jcall *c)
{
    jval v = nb_j_of(J_VIEW);

    v.u.view = nb_j_alloc(r, sizeof *v.u.view);
    *v.u.view = (jview){ self.u.d, (uint8_t)c->sig->name[0] };
    return v;
}

static jval m_copy(jrun *r, jval self, const jcall *c)
{
    jval v = self.t == J_DICT ? nb_j_dict(r, self.u.d->n) : nb_j_list(r, self.u.l->n);

    (void)c;
    for (size_t i = 0; self.t == J_DICT && i < self.u.d->n; i++)
        nb_j_dict_set(r, v.u.d, self.u.d->p[i].k, self.u.d->p[i].v);
    for (size_t i = 0; self.t != J_DICT && i < self.u.l->n; i++)
        nb_j_append(r, v.u.l, self.u.l->v[i]);
    return v;
}

static jval m_next(jrun *r, jval self, const jcall *c)
{
    jlist *l = self.u.l;
    const jval v = l->v[l->at];

    (void)r;
    l->at = c->sig->name[0] == 'r' ? 0 : (l->at + 1) % l->n;
    return c->sig->name[0] == 'r' ? nb_j_of(J_NONE) : v;
}

static jval m_cycle(jrun *r, jval self, const jcall *c)
{
    if (!c->n || c->n_kw)
        nb_j_fail(r, "loop.cycle wants at least one item");
    return c->arg[self.u.loop->i % c->n];
}

static jval m_changed(jrun *r, jval self, const jcall *c)
{
    jval now = nb_j_list(r, c->n);
    bool same;

    for (size_t i = 0; i < c->n; i++)
        nb_j_append(r, now.u.l, c->arg[i]);
    same = self.u.loop->changed.t == J_LIST && nb_j_equal(r, self.u.loop->changed, now);
    self.u.loop->changed = now;
    return nb_j_bool(!same);
}

/* Methods that change a list or dict: only in lenient renders, only on values the template made (jinja_attr.c). */
static jval m_append(jrun *r, jval self, const jcall *c)
{
    size_t n;
    const jval *v = c->sig->name[0] == 'e' ? nb_j_items(r, c->arg[0], &n) : (n = 1, c->arg);

    if (n > J_LIST_MOST)
        nb_j_limit(r, "limit.template", "a list of more than %d elements", J_LIST_MOST);
    for (size_t i = 0; i < n; i++)
        nb_j_append(r, self.u.l, v[i]);
    return nb_j_of(J_NONE);
}

static jval m_insert(jrun *r, jval self, const jcall *c)
{
    jlist *l = self.u.l;
    int64_t at = nb_j_need_int(r, c->arg[0], "insert");

    at = at < 0 ? at + (int64_t)l->n : at;
    at = at < 0 ? 0 : at > (int64_t)l->n ? (int64_t)l->n : at;
    nb_j_append(r, l, c->arg[1]);
    nb_j_charge(r, l->n / 16);
    memmove(l->v + at + 1, l->v + at, (l->n - 1 - (size_t)at) * sizeof *l->v);
    l->v[at] = c->arg[1];
    return nb_j_of(J_NONE);
}

static jval m_pop(jrun *r, jval self, const jcall *c)
{
    jlist *l = self.u.l;
    int64_t at = nb_j_given(c->arg[0]) ? nb_j_need_int(r, c->arg[0], "pop") : -1;
    jval v;

    at = at < 0 ? at + (int64_t)l->n : at;
    if (at < 0 || at >= (int64_t)l->n)
        nb_j_fail(r, "pop beyond the end of the list");
    v = l->v[at];
    nb_j_charge(r, l->n / 16);
    memmove(l->v + at, l->v + at + 1, (l->n - 1 - (size_t)at) * sizeof *l->v);
    l->n--;
    return v;
}

static jval m_dict_pop(jrun *r, jval self, const jcall *c)
{
    const jval *hit = nb_j_dict_get(r, self.u.d, c->arg[0]);
    jval v;

    if (!hit && c->arg[1].t == J_ABSENT)
        nb_j_fail(r, "pop: the key is not in the dict");
    if (!hit)
        return c->arg[1];
    v = *hit;
    nb_j_dict_del(r, self.u.d, (size_t)((const jpair *)(const void *)((const char *)hit - offsetof(jpair, v)) - self.u.d->p));
    return v;
}

static jval m_setdefault(jrun *r, jval self, const jcall *c)
{
    const jval *hit = nb_j_dict_get(r, self.u.d, c->arg[0]);
    const jval v = hit ? *hit : c->arg[1].t == J_ABSENT ? nb_j_of(J_NONE) : c->arg[1];

    if (!hit)
        nb_j_dict_set(r, self.u.d, c->arg[0], v);
    return v;
}

static jval m_update(jrun *r, jval self, const jcall *c)
{
    if (c->n > 1 || (c->n && c->arg[0].t != J_DICT))
        nb_j_fail(r, "update wants a dict");
    for (size_t i = 0; c->n && i < c->arg[0].u.d->n; i++)
        nb_j_dict_set(r, self.u.d, c->arg[0].u.d->p[i].k, c->arg[0].u.d->p[i].v);
    for (size_t i = 0; i < c->n_kw; i++) {
        jval key = nb_j_of(J_STR);
        key.u.s = c->kw[i].name;
        nb_j_dict_set(r, self.u.d, key, c->kw[i].v);
    }
    return nb_j_of(J_NONE);
}

static jval m_refused(jrun *r, jval self, const jcall *c)
{
    nb_j_fail(r, "%s changes a %s, which templates cannot do", c->sig->name, nb_j_type_name(self));
}

#define STR(n, f, lo, hi, ...)                                                                                                             \
    {                                                                                                                                      \
        .name = n, .fn = f, .par = { __VA_ARGS__ }, .min = lo, .max = hi, .takes = J_STR                                                   \
    }
#define IS(n)                                                                                                                              \
    {                                                                                                                                      \
        .name = n, .fn = m_is, .takes = J_STR                                                                                              \
    }
#define LIST(n, f, lo, hi, mut, ...)                                                                                                       \
    {                                                                                                                                      \
        .name = n, .fn = f, .par = { __VA_ARGS__ }, .min = lo, .max = hi, .takes = J_LIST, .mutates = mut                                  \
    }
#define DICT(n, f, lo, hi, mut, ...)                                                                                                       \
    {                                                                                                                                      \
        .name = n, .fn = f, .par = { __VA_ARGS__ }, .min = lo, .max = hi, .takes = J_DICT, .mutates = mut                                  \
    }
static const jsig methods[] = {
    STR("split", m_split, 0, 2, "sep", "maxsplit"),
    STR("rsplit", m_split, 0, 2, "sep", "maxsplit"),
    STR("splitlines", m_splitlines, 0, 1, "keepends"),
    STR("strip", m_strip, 0, 1, "chars"),
    STR("lstrip", m_strip, 0, 1, "chars"),
    STR("rstrip", m_strip, 0, 1, "chars"),
    STR("startswith", m_starts, 1, 3, "prefix", "start", "end"),
    STR("endswith", m_starts, 1, 3, "suffix", "start", "end"),
    STR("replace", m_replace, 2, 3, "old", "new", "count"),
    STR("upper", m_case, 0, 0, NULL),
    STR("lower", m_case, 0, 0, NULL),
    STR("casefold", m_case, 0, 0, NULL),
    STR("title", m_case, 0, 0, NULL),
    STR("capitalize", m_case, 0, 0, NULL),
    STR("swapcase", m_case, 0, 0, NULL),
    STR("find", m_find, 1, 3, "sub", "start", "end"),
    STR("rfind", m_find, 1, 3, "sub", "start", "end"),
    STR("index", m_find, 1, 3, "sub", "start", "end"),
    STR("rindex", m_find, 1, 3, "sub", "start", "end"),
    STR("count", m_find, 1, 3, "sub", "start", "end"),
    STR("join", m_join, 1, 1, "iterable"),
    STR("format", m_format, 0, J_ANY, NULL),
    STR("removeprefix", m_remove, 1, 1, "prefix"),
    STR("removesuffix", m_remove, 1, 1, "suffix"),
    STR("partition", m_partition, 1, 1, "sep"),
    STR("rpartition", m_partition, 1, 1, "sep"),
    STR("zfill", m_zfill, 1, 1, "width"),
    STR("center", m_pad, 1, 2, "width", "fillchar"),
    STR("ljust", m_pad, 1, 2, "width", "fillchar"),
    STR("rjust", m_pad, 1, 2, "width", "fillchar"),
    IS("isalpha"),
    IS("isdigit"),
    IS("isdecimal"),
    IS("isnumeric"),
    IS("isalnum"),
    IS("isspace"),
    IS("isupper"),
    IS("islower"),
    IS("istitle"),
    IS("isascii"),
    IS("isprintable"),
    LIST("index", m_index, 1, 1, false, "value"),
    LIST("count", m_index, 1, 1, false, "value"),
    LIST("copy", m_copy, 0, 0, false, NULL),
    LIST("append", m_append, 1, 1, true, "object"),
    LIST("extend", m_append, 1, 1, true, "iterable"),
    LIST("insert", m_insert, 2, 2, true, "index", "object"),
    LIST("pop", m_pop, 0, 1, true, "index"),
    LIST("remove", m_refused, 0, J_ANY, true, NULL),
    LIST("sort", m_refused, 0, J_ANY, true, NULL),
    LIST("reverse", m_refused, 0, J_ANY, true, NULL),
    LIST("clear", m_refused, 0, J_ANY, true, NULL),
    DICT("get", m_get, 1, 2, false, "key", "default"),
    DICT("items", m_view, 0, 0, false, NULL),
    DICT("keys", m_view, 0, 0, false, NULL),
    DICT("values", m_view, 0, 0, false, NULL),
    DICT("copy", m_copy, 0, 0, false, NULL),
    DICT("pop", m_dict_pop, 1, 2, true, "key", "default"),
    DICT("setdefault", m_setdefault, 1, 2, true, "key", "default"),
    DICT("update", m_update, 0, J_ANY, true, NULL),
    DICT("popitem", m_refused, 0, J_ANY, true, NULL),
    DICT("clear", m_refused, 0, J_ANY, true, NULL),
    { .name = "next", .fn = m_next, .takes = J_CYCLER },
    { .name = "reset", .fn = m_next, .takes = J_CYCLER },
    { .name = "cycle", .fn = m_cycle, .max = J_ANY, .takes = J_LOOP },
    { .name = "changed", .fn = m_changed, .max = J_ANY, .takes = J_LOOP },
};

const jsig *nb_j_find_method(jval self, const jstr *name)
{
    const uint8_t t = self.t == J_TUPLE || self.t == J_RANGE ? J_LIST : self.t;

    for (size_t i = 0; i < NB_LEN(methods); i++)
        if (methods[i].takes == t && strlen(methods[i].name) == name->n && memcmp(methods[i].name, name->s, name->n) == 0)
            return self.t != t && (methods[i].mutates || methods[i].fn == m_copy) ? NULL : &methods[i];
    return NULL;
}

/* The mark of a text survives its methods. */
jval nb_j_call_method(jrun *r, const jmethod *m, const jcall *c)
{
    jval v = nb_j_apply(r, m->sig, m->self, c);

    if (m->self.t != J_STR || !m->self.safe)
        return v;
    if (v.t == J_STR)
        v.safe = true;
    for (size_t i = 0; nb_j_is_seq(v) && i < v.u.l->n; i++)
        v.u.l->v[i].safe = v.u.l->v[i].t == J_STR;
    return v;
}
