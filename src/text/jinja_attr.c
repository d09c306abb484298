/* jinja_attr.c - a.b, a[b], slices, "in". Spec chat-templates 5.
 *
 * Values are plain data: the only attributes are the methods of jinja_methods.c, keys of dicts, and what loop, macro and
 * namespace objects document. There is nothing behind names that begin with an underscore. */
#include "text/jinja.h"

#include <string.h>

jval nb_j_undef(const jstr *name)
{
    jval v = { .t = J_UNDEF };

    v.u.s = name;
    return v;
}

static const jstr item_name = { "item", 4, 4 };

static _Noreturn void use_of_undefined(jrun *r, jval v, const char *what, size_t n)
{
    char a[NB_ESC_CAP], b[NB_ESC_CAP];

    nb_j_fail(r, "\"%s\" is undefined and has no \"%s\"", v.u.s ? nb_esc(a, sizeof a, v.u.s->s, v.u.s->n) : "value",
              nb_esc(b, sizeof b, what, n));
}

static jval loop_attr(const jloop *l, const jstr *name)
{
    static const char *const names[] = { "index",  "index0", "revindex", "revindex0", "length",  "depth",
                                         "depth0", "first",  "last",     "previtem",  "nextitem" };
    const int64_t i = (int64_t)l->i, n = (int64_t)l->n;
    const int64_t number[] = { i + 1, i, n - i, n - i - 1, n, l->depth + 1, l->depth };
    size_t k = 0;

    while (k < NB_LEN(names) && !(strlen(names[k]) == name->n && memcmp(names[k], name->s, name->n) == 0))
        k++;
    if (k < NB_LEN(number))
        return nb_j_int(number[k]);
    switch (k) {
    case 7:
        return nb_j_bool(i == 0);
    case 8:
        return nb_j_bool(i + 1 == n);
    case 9:
        return i > 0 ? nb_j_loop_item(l, l->i - 1) : nb_j_undef(name);
    case 10:
        return i + 1 < n ? nb_j_loop_item(l, l->i + 1) : nb_j_undef(name);
    default:
        return nb_j_of(J_ABSENT);
    }
}

static jval macro_attr(jrun *r, const jmacro *m, const jstr *name)
{
    jval v;

    if (name->n == 4 && memcmp(name->s, "name", 4) == 0) {
        const jstr *s = &r->t->names[m->node->id];
        return nb_j_view(r, s->s, s->n);
    }
    if (name->n != 9 || memcmp(name->s, "arguments", 9) != 0)
        return nb_j_of(J_ABSENT);
    v = nb_j_list(r, m->node->n);
    v.t = J_TUPLE;
    for (uint32_t i = 0; i < m->node->n; i++) {
        const jstr *s = &r->t->names[m->node->u.v[i]->id];
        nb_j_append(r, v.u.l, nb_j_view(r, s->s, s->n));
    }
    return v;
}

/* A real attribute, or J_ABSENT. */
static jval own_attr(jrun *r, jval v, const jstr *name)
{
    const jsig *sig;
    jval *hit, out = nb_j_of(J_ABSENT);

    switch (v.t) {
    case J_NS:
        hit = nb_j_dict_find(r, v.u.d, name);
        return hit ? *hit : out;
    case J_LOOP:
        out = loop_attr(v.u.loop, name);
        break;
    case J_MACRO:
        out = macro_attr(r, v.u.m, name);
        break;
    case J_CYCLER:
        if (name->n == 7 && memcmp(name->s, "current", 7) == 0)
            out = v.u.l->v[v.u.l->at];
        break;
    default:
        break;
    }
    if (out.t != J_ABSENT)
        return out;
    sig = nb_j_find_method(v, name);
    if (!sig)
        return out;
    if (sig->mutates && !(r->lenient && !v.fixed)) /* the sandbox hides it: it is there, but cannot be used */
        return nb_j_undef(name);
    out.t = J_METHOD;
    out.u.me = nb_j_alloc(r, sizeof *out.u.me);
    *out.u.me = (jmethod){ v, sig };
    return out;
}

jval nb_j_getattr(jrun *r, jval v, const jstr *name)
{
    jval out, *hit;

    if (v.t == J_UNDEF)
        use_of_undefined(r, v, name->s, name->n);
    out = own_attr(r, v, name);
    if (out.t != J_ABSENT)
        return out;
    hit = v.t == J_DICT ? nb_j_dict_find(r, v.u.d, name) : NULL;
    return hit ? *hit : nb_j_undef(name);
}

/* i-th of n, negative ones from the end; n when outside. */
static size_t position(int64_t i, size_t n)
{
    if (i < 0)
        i += (int64_t)n;
    return i < 0 || (uint64_t)i >= n ? n : (size_t)i;
}

size_t nb_j_offset(jrun *r, const jstr *s, size_t chars)
{
    size_t at = 0;

    if (s->chars == s->n || chars >= s->chars)
        return chars >= s->chars ? s->n : chars;
    nb_j_charge(r, chars / 64);
    for (;; at++)
        if (((unsigned char)s->s[at] & 0xC0) != 0x80 && chars-- == 0)
            return at;
}

static jval at_index(jrun *r, jval v, int64_t i)
{
    size_t n = 0, k;
    jval out;

    if (v.t != J_STR && v.t != J_RANGE && !nb_j_is_seq(v))
        return nb_j_undef(&item_name);
    nb_j_length(v, &n);
    k = position(i, n);
    if (k == n)
        return nb_j_undef(&item_name);
    if (v.t == J_RANGE)
        return nb_j_int(v.u.r->start + (int64_t)k * v.u.r->step);
    if (v.t != J_STR)
        return v.u.l->v[k];
    const size_t from = nb_j_offset(r, v.u.s, k);
    out = nb_j_view(r, v.u.s->s + from, nb_j_offset(r, v.u.s, k + 1) - from);
    out.safe = v.safe;
    return out;
}

jval nb_j_getitem(jrun *r, jval v, jval key)
{
    jval out = nb_j_of(J_ABSENT), *hit;
    int64_t i;

    if (v.t == J_UNDEF) {
        jval s = nb_j_to_str(r, key);
        use_of_undefined(r, v, s.u.s->s, s.u.s->n);
    }
    if (v.t == J_DICT && key.t != J_LIST && key.t != J_DICT) {
        hit = nb_j_dict_get(r, v.u.d, key);
        if (hit)
            return *hit;
    }
    if (key.t == J_STR) {
        out = own_attr(r, v, key.u.s);
        return out.t != J_ABSENT ? out : nb_j_undef(key.u.s);
    }
    if (v.t != J_DICT && nb_j_as_int(key, &i))
        return at_index(r, v, i);
    return nb_j_undef(&item_name);
}

/* Python's slice.indices. */
static size_t slice_bounds(jrun *r, size_t len, jval start, jval stop, jval step, int64_t *from, int64_t *by)
{
    const int64_t n = (int64_t)len;
    int64_t a, b, s = 1;

    if (nb_j_given(step) && !nb_j_as_int(step, &s))
        nb_j_fail(r, "a slice step is a %s, not a number", nb_j_type_name(step));
    if (s == 0)
        nb_j_fail(r, "a slice step is 0");
    s = s > n + 1 ? n + 1 : s < -n - 1 ? -n - 1 : s; /* longer steps reach no other element */
    a = s > 0 ? 0 : n - 1;
    b = s > 0 ? n : -1;
    for (int i = 0; i < 2; i++) {
        const jval v = i ? stop : start;
        int64_t x;
        if (!nb_j_given(v))
            continue;
        if (!nb_j_as_int(v, &x))
            nb_j_fail(r, "a slice bound is a %s, not a number", nb_j_type_name(v));
        if (x < 0)
            x = x + n < 0 ? (s > 0 ? 0 : -1) : x + n;
        else if (x >= n)
            x = s > 0 ? n : n - 1;
        *(i ? &b : &a) = x;
    }
    *from = a;
    *by = s;
    if (s > 0)
        return a < b ? (size_t)(b - a - 1) / (size_t)s + 1 : 0;
    return b < a ? (size_t)(a - b - 1) / ((size_t)0 - (size_t)s) + 1 : 0;
}

static jval slice_text(jrun *r, jval v, int64_t from, int64_t by, size_t n)
{
    const size_t mark = nb_j_mark(r);
    jval out;
    size_t at;

    if (by == 1 || n == 0) {
        const size_t a = n ? nb_j_offset(r, v.u.s, (size_t)from) : 0;
        out = nb_j_view(r, v.u.s->s + a, n ? nb_j_offset(r, v.u.s, (size_t)from + n) - a : 0);
    } else {
        nb_j_room(r, n);
        nb_j_charge(r, v.u.s->n / 16 + n);
        at = nb_j_offset(r, v.u.s, (size_t)from);
        for (size_t i = 0; i < n; i++) {
            size_t k = 1;
            while (at + k < v.u.s->n && ((unsigned char)v.u.s->s[at + k] & 0xC0) == 0x80)
                k++;
            nb_j_put(r, v.u.s->s + at, k);
            for (int64_t j = 0; j < (by < 0 ? -by : by) && i + 1 < n; j++) { /* to the next wanted character */
                at += by < 0 ? (size_t)-1 : 1;
                while (((unsigned char)v.u.s->s[at] & 0xC0) == 0x80)
                    at += by < 0 ? (size_t)-1 : 1;
            }
        }
        out = nb_j_take(r, mark);
    }
    out.safe = v.safe;
    return out;
}

jval nb_j_slice(jrun *r, jval v, jval start, jval stop, jval step)
{
    int64_t from, by;
    size_t len = 0, n;
    jval out;

    if (v.t == J_UNDEF)
        use_of_undefined(r, v, "slice", 5);
    if (v.t != J_STR && v.t != J_RANGE && !nb_j_is_seq(v))
        return nb_j_undef(&item_name);
    nb_j_length(v, &len);
    n = slice_bounds(r, len, start, stop, step, &from, &by);
    if (v.t == J_STR)
        return slice_text(r, v, from, by, n);
    if (v.t == J_RANGE) {
        jrange *g = nb_j_alloc(r, sizeof *g);
        out = v;
        out.u.r = g;
        g->start = v.u.r->start + from * v.u.r->step;
        g->step = n > 1 ? by * v.u.r->step : v.u.r->step;
        g->n = n;
        g->stop = g->start + (int64_t)n * g->step;
        return out;
    }
    out = nb_j_list(r, n);
    out.t = v.t;
    nb_j_charge(r, n / 16);
    for (size_t i = 0; i < n; i++)
        out.u.l->v[i] = v.u.l->v[from + (int64_t)i * by];
    out.u.l->n = n;
    return out;
}

/* "a.b.0", a name or a number; steps through like the language does. */
jval nb_j_path(jrun *r, jval v, jval path)
{
    if (path.t != J_STR)
        return nb_j_getitem(r, v, path);
    for (size_t at = 0; at <= path.u.s->n;) {
        const char *s = path.u.s->s + at, *dot = memchr(s, '.', path.u.s->n - at);
        const size_t n = dot ? (size_t)(dot - s) : path.u.s->n - at;
        int64_t i = 0;
        bool number = n > 0 && n < 10;
        for (size_t k = 0; k < n && number; k++) {
            number = s[k] >= '0' && s[k] <= '9';
            i = i * 10 + (s[k] - '0');
        }
        v = nb_j_getitem(r, v, number ? nb_j_int(i) : nb_j_view(r, s, n));
        at += n + 1;
    }
    return v;
}

bool nb_j_contains(jrun *r, jval box, jval v)
{
    size_t n;
    int64_t i;
    jval *items;

    switch (box.t) {
    case J_STR:
        if (v.t != J_STR)
            nb_j_fail(r, "\"in\" a text wants a text, not a %s", nb_j_type_name(v));
        return nb_j_find(r, box.u.s, 0, v.u.s) != SIZE_MAX;
    case J_DICT:
        return nb_j_dict_get(r, box.u.d, v) != NULL;
    case J_VIEW:
        if (box.u.view->what == 'k')
            return nb_j_dict_get(r, box.u.view->d, v) != NULL;
        break;
    case J_RANGE:
        if (nb_j_as_int(v, &i)) {
            const jrange *g = box.u.r;
            const int64_t d = i - g->start;
            return g->n > 0 && d % g->step == 0 && d / g->step >= 0 && (uint64_t)(d / g->step) < g->n;
        }
        break;
    default:
        break;
    }
    items = nb_j_items(r, box, &n);
    for (size_t k = 0; k < n; k++)
        if (nb_j_equal(r, items[k], v))
            return true;
    return false;
}
