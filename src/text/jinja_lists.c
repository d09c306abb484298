/* jinja_lists.c - filters on lists, dicts and other iterables. Spec chat-templates 6.
 *
 * map, select, reject, unique, items, reverse, batch, slice give a one-shot iterator, as in Jinja: it is true, has no
 * length, prints as an object, and is empty when gone through again. It is filled at once; only its use is lazy. */
#include "text/jinja.h"

#include <string.h>

jval nb_j_gen(jrun *r, jval list)
{
    jval v = nb_j_of(J_GEN);

    v.u.l = nb_j_alloc(r, sizeof *v.u.l);
    *v.u.l = (jlist){ list.u.l->v, list.u.l->n, list.u.l->n, 0 };
    return v;
}

static jval list_of(jrun *r, const jval *v, size_t n)
{
    jval out = nb_j_list(r, n);

    if (n)
        memcpy(out.u.l->v, v, n * sizeof *v);
    out.u.l->n = n;
    return out;
}

static jval f_list(jrun *r, jval self, const jcall *c)
{
    size_t n;
    const jval *v = nb_j_items(r, self, &n);

    (void)c;
    return list_of(r, v, n);
}

static jval f_join(jrun *r, jval self, const jcall *c)
{
    const size_t mark = nb_j_mark(r);
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    const jval sep = nb_j_given(c->arg[0]) ? nb_j_to_str(r, c->arg[0]) : nb_j_cstr(r, c->arg[0].t == J_NONE ? "None" : "");

    for (size_t i = 0; i < n; i++) {
        if (i)
            nb_j_put(r, sep.u.s->s, sep.u.s->n);
        nb_j_put_str(r, nb_j_given(c->arg[1]) ? nb_j_path(r, v[i], c->arg[1]) : v[i]);
    }
    return nb_j_take(r, mark);
}

static const jstr no_item = { "item of an empty list", 21, 21 };

static jval f_first(jrun *r, jval self, const jcall *c)
{
    const bool last = c->sig->name[0] == 'l';
    size_t n;
    const jval *v;

    if (self.t == J_GEN && !last) { /* takes one element only */
        jlist *l = self.u.l;
        return l->at < l->n ? l->v[l->at++] : nb_j_undef(&no_item);
    }
    if (self.t == J_STR)
        return self.u.s->n ? nb_j_getitem(r, self, nb_j_int(last ? -1 : 0)) : nb_j_undef(&no_item);
    v = nb_j_items(r, self, &n);
    return n ? v[last ? n - 1 : 0] : nb_j_undef(&no_item);
}

static jval f_items(jrun *r, jval self, const jcall *c)
{
    jval view = nb_j_of(J_VIEW);
    size_t n;
    const jval *v;

    (void)c;
    if (self.t == J_UNDEF)
        return nb_j_gen(r, nb_j_list(r, 0));
    if (self.t != J_DICT)
        nb_j_fail(r, "items of a %s", nb_j_type_name(self));
    view.u.view = nb_j_alloc(r, sizeof *view.u.view);
    *view.u.view = (jview){ self.u.d, 'i' };
    v = nb_j_items(r, view, &n);
    return nb_j_gen(r, list_of(r, v, n));
}

static jval f_reverse(jrun *r, jval self, const jcall *c)
{
    size_t n;
    jval *v, out;

    (void)c;
    if (self.t == J_STR)
        return nb_j_slice(r, self, nb_j_of(J_ABSENT), nb_j_of(J_ABSENT), nb_j_int(-1));
    v = nb_j_items(r, self, &n);
    out = nb_j_list(r, n);
    for (size_t i = n; i-- > 0;)
        nb_j_append(r, out.u.l, v[i]);
    return nb_j_gen(r, out);
}

/* ---- sorting ---- */

typedef struct keyed {
    jval key, v;
} keyed;

static void merge_sort(jrun *r, keyed *p, keyed *tmp, size_t n, bool reverse)
{
    const size_t h = n / 2;
    size_t i = 0, j = h;

    if (n < 2)
        return;
    merge_sort(r, p, tmp, h, reverse);
    merge_sort(r, p + h, tmp + h, n - h, reverse);
    for (size_t k = 0; k < n; k++) {
        /* the left one stays first when equal; reverse keeps that too, as Python does */
        const bool left = j == n || (i < h && nb_j_order(r, p[j].key, p[i].key) != (reverse ? 1 : -1));
        tmp[k] = left ? p[i++] : p[j++];
    }
    memcpy(p, tmp, n * sizeof *p);
}

void nb_j_sort(jrun *r, jval *v, jval *key, size_t n, bool reverse)
{
    keyed *p = nb_j_alloc(r, n * sizeof *p), *tmp = nb_j_alloc(r, n * sizeof *tmp);

    for (size_t i = 0; i < n; i++)
        p[i] = (keyed){ key[i], v[i] };
    merge_sort(r, p, tmp, n, reverse);
    for (size_t i = 0; i < n; i++)
        v[i] = p[i].v;
}

static jval fold_case(jrun *r, jval v, bool sensitive)
{
    size_t mark;

    if (v.t != J_STR || sensitive)
        return v;
    mark = nb_j_mark(r);
    nb_j_put_lower(r, v.u.s);
    return nb_j_take(r, mark);
}

/* What an element is compared by: itself, or the attribute; "a,b" is a tuple of several. */
static jval sort_key(jrun *r, jval v, jval attribute, bool sensitive)
{
    jval out;

    if (!nb_j_given(attribute))
        return fold_case(r, v, sensitive);
    if (attribute.t != J_STR || !memchr(attribute.u.s->s, ',', attribute.u.s->n))
        return fold_case(r, nb_j_path(r, v, attribute), sensitive);
    out = nb_j_list(r, 0);
    for (size_t at = 0; at <= attribute.u.s->n;) {
        const char *s = attribute.u.s->s + at, *comma = memchr(s, ',', attribute.u.s->n - at);
        const size_t n = comma ? (size_t)(comma - s) : attribute.u.s->n - at;
        nb_j_append(r, out.u.l, fold_case(r, nb_j_path(r, v, nb_j_view(r, s, n)), sensitive));
        at += n + 1;
    }
    return out;
}

static jval *sort_keys(jrun *r, const jval *v, size_t n, jval attribute, bool sensitive)
{
    jval *key = nb_j_alloc(r, n * sizeof *key);

    for (size_t i = 0; i < n; i++)
        key[i] = sort_key(r, v[i], attribute, sensitive);
    return key;
}

static jval f_sort(jrun *r, jval self, const jcall *c)
{
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    jval out = list_of(r, v, n);

    nb_j_sort(r, out.u.l->v, sort_keys(r, v, n, c->arg[2], nb_j_true(c->arg[1])), n, nb_j_true(c->arg[0]));
    return out;
}

static jval f_dictsort(jrun *r, jval self, const jcall *c)
{
    const bool by_value = c->arg[1].t != J_ABSENT && nb_j_is_str(c->arg[1], "value");
    jval view = nb_j_of(J_VIEW), out;
    size_t n;
    const jval *v;

    if (self.t != J_DICT)
        nb_j_fail(r, "dictsort of a %s", nb_j_type_name(self));
    if (!by_value && c->arg[1].t != J_ABSENT && !nb_j_is_str(c->arg[1], "key"))
        nb_j_fail(r, "dictsort sorts by key or value");
    view.u.view = nb_j_alloc(r, sizeof *view.u.view);
    *view.u.view = (jview){ self.u.d, 'i' };
    v = nb_j_items(r, view, &n);
    out = list_of(r, v, n);
    nb_j_sort(r, out.u.l->v, sort_keys(r, v, n, nb_j_int(by_value), nb_j_true(c->arg[0])), n, nb_j_true(c->arg[2]));
    return out;
}

static jval f_unique(jrun *r, jval self, const jcall *c)
{
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    const jval *key = sort_keys(r, v, n, c->arg[1], nb_j_true(c->arg[0]));
    jval out = nb_j_list(r, 0), seen = nb_j_dict(r, 0);

    for (size_t i = 0; i < n; i++) {
        if (nb_j_dict_get(r, seen.u.d, key[i]))
            continue;
        nb_j_dict_set(r, seen.u.d, key[i], nb_j_of(J_NONE));
        nb_j_append(r, out.u.l, v[i]);
    }
    return nb_j_gen(r, out);
}

static jval f_min(jrun *r, jval self, const jcall *c)
{
    const int want = strcmp(c->sig->name, "max") == 0 ? 1 : -1;
    size_t n, best = 0;
    const jval *v = nb_j_items(r, self, &n);
    const jval *key = sort_keys(r, v, n, c->arg[1], nb_j_true(c->arg[0]));

    for (size_t i = 1; i < n; i++)
        if (nb_j_order(r, key[i], key[best]) == want)
            best = i;
    return n ? v[best] : nb_j_undef(&no_item);
}

static jval f_sum(jrun *r, jval self, const jcall *c)
{
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    jval total = c->arg[1].t == J_ABSENT ? nb_j_int(0) : c->arg[1];

    if (total.t == J_STR)
        nb_j_fail(r, "sum of texts");
    for (size_t i = 0; i < n; i++)
        total = nb_j_arith(r, O_ADD, total, nb_j_given(c->arg[0]) ? nb_j_path(r, v[i], c->arg[0]) : v[i]);
    return total;
}

/* ---- map, select ---- */

static jcall rest_of(const jcall *c, size_t from)
{
    jcall rest = *c;

    rest.arg = c->n > from ? c->arg + from : NULL;
    rest.n = c->n > from ? c->n - from : 0;
    return rest;
}

static _Noreturn void unknown(jrun *r, const char *what, const jstr *name)
{
    char esc[NB_ESC_CAP];

    nb_j_fail(r, "no %s is called \"%s\"", what, nb_esc(esc, sizeof esc, name->s, name->n));
}

static jval f_map(jrun *r, jval self, const jcall *c)
{
    const jkw *attribute = nb_j_kw(c, "attribute"), *dflt = nb_j_kw(c, "default");
    const jcall rest = rest_of(c, 1);
    const jsig *filter = NULL;
    size_t n;
    const jval *v;
    jval out;

    if (!nb_j_true(self)) /* also none: Jinja looks at the truth first */
        return nb_j_gen(r, nb_j_list(r, 0));
    if (c->n == 0 && (!attribute || c->n_kw != (dflt ? 2U : 1U)))
        nb_j_fail(r, "map wants the name of a filter, or attribute=");
    v = nb_j_items(r, self, &n);
    if (c->n && n) {
        const jstr *name = nb_j_need_str(r, c->arg[0], "map");
        filter = nb_j_find_filter(name->s, name->n);
        if (!filter)
            unknown(r, "filter", name);
    }
    out = nb_j_list(r, n);
    for (size_t i = 0; i < n; i++) {
        jval x = c->n ? nb_j_apply(r, filter, v[i], &rest) : nb_j_path(r, v[i], attribute->v);
        if (dflt && !c->n && x.t == J_UNDEF)
            x = dflt->v;
        nb_j_append(r, out.u.l, x);
    }
    return nb_j_gen(r, out);
}

/* select, reject, selectattr, rejectattr */
static jval f_select(jrun *r, jval self, const jcall *c)
{
    const bool attr = strstr(c->sig->name, "attr") != NULL, want = c->sig->name[0] == 's';
    const size_t at = attr ? 1 : 0;
    const jcall rest = rest_of(c, at + 1);
    const jsig *test = NULL;
    size_t n;
    const jval *v;
    jval out = nb_j_list(r, 0);

    if (!nb_j_true(self))
        return nb_j_gen(r, out);
    if (attr && !c->n)
        nb_j_fail(r, "%s wants the name of an attribute", c->sig->name);
    v = nb_j_items(r, self, &n);
    if (c->n > at && n) {
        const jstr *name = nb_j_need_str(r, c->arg[at], c->sig->name);
        test = nb_j_find_test(name->s, name->n);
        if (!test)
            unknown(r, "test", name);
    }
    for (size_t i = 0; i < n; i++) {
        const jval x = attr ? nb_j_path(r, v[i], c->arg[0]) : v[i];
        nb_j_charge(r, 1);
        if (nb_j_true(test ? nb_j_apply(r, test, x, &rest) : x) == want)
            nb_j_append(r, out.u.l, v[i]);
    }
    return nb_j_gen(r, out);
}

/* ---- groups ---- */

static jval f_batch(jrun *r, jval self, const jcall *c)
{
    const int64_t size = nb_j_need_int(r, c->arg[0], "batch");
    size_t n;
    const jval *v = nb_j_items(r, self, &n);
    jval out = nb_j_list(r, 0);

    if (size < 1 || size > J_LIST_MOST)
        nb_j_fail(r, "batch of %lld", (long long)size);
    for (size_t i = 0; i < n; i += (size_t)size) {
        const size_t k = n - i < (size_t)size ? n - i : (size_t)size;
        jval part = list_of(r, v + i, k);
        while (nb_j_given(c->arg[1]) && part.u.l->n < (size_t)size)
            nb_j_append(r, part.u.l, c->arg[1]);
        nb_j_append(r, out.u.l, part);
    }
    return nb_j_gen(r, out);
}

static jval f_slice(jrun *r, jval self, const jcall *c)
{
    const int64_t slices = nb_j_need_int(r, c->arg[0], "slice");
    size_t n, at = 0;
    const jval *v = nb_j_items(r, self, &n);
    jval out = nb_j_list(r, 0);

    if (slices < 1 || slices > J_LIST_MOST)
        nb_j_fail(r, "slice into %lld", (long long)slices);
    for (size_t i = 0; i < (size_t)slices; i++) {
        const bool longer = i < n % (size_t)slices;
        const size_t k = n / (size_t)slices + longer;
        jval part = list_of(r, v ? v + at : v, k);
        at += k;
        if (nb_j_given(c->arg[1]) && !longer && n % (size_t)slices)
            nb_j_append(r, part.u.l, c->arg[1]);
        nb_j_append(r, out.u.l, part);
    }
    return nb_j_gen(r, out);
}

static jval f_groupby(jrun *r, jval self, const jcall *c)
{
    const bool sensitive = nb_j_true(c->arg[2]);
    size_t n;
    jval *v = nb_j_items(r, self, &n), *key = nb_j_alloc(r, n * sizeof *key);
    jval sorted = list_of(r, v, n), out = nb_j_list(r, 0);

    for (size_t i = 0; i < n; i++) {
        key[i] = nb_j_path(r, v[i], c->arg[0]);
        if (key[i].t == J_UNDEF && c->arg[1].t != J_ABSENT)
            key[i] = c->arg[1];
        key[i] = fold_case(r, key[i], sensitive);
    }
    nb_j_sort(r, sorted.u.l->v, key, n, false);
    for (size_t i = 0; i < n;) {
        const jval shown = nb_j_path(r, sorted.u.l->v[i], c->arg[0]);
        const jval first = shown.t == J_UNDEF && c->arg[1].t != J_ABSENT ? c->arg[1] : shown;
        size_t k = i;
        for (; k < n; k++) {
            jval x = nb_j_path(r, sorted.u.l->v[k], c->arg[0]);
            if (x.t == J_UNDEF && c->arg[1].t != J_ABSENT)
                x = c->arg[1];
            if (!nb_j_equal(r, fold_case(r, x, sensitive), fold_case(r, first, sensitive)))
                break;
        }
        if (k == i)
            k++;
        nb_j_append(r, out.u.l, nb_j_tuple2(r, first, list_of(r, sorted.u.l->v + i, k - i)));
        i = k;
    }
    return out;
}

#define PAR(...) .par = { __VA_ARGS__ }
const jsig nb_j_list_filters[] = {
    { .name = "list", .fn = f_list },
    { .name = "join", .fn = f_join, PAR("d", "attribute"), .max = 2 },
    { .name = "first", .fn = f_first },
    { .name = "last", .fn = f_first },
    { .name = "items", .fn = f_items },
    { .name = "reverse", .fn = f_reverse },
    { .name = "sort", .fn = f_sort, PAR("reverse", "case_sensitive", "attribute"), .max = 3 },
    { .name = "dictsort", .fn = f_dictsort, PAR("case_sensitive", "by", "reverse"), .max = 3 },
    { .name = "unique", .fn = f_unique, PAR("case_sensitive", "attribute"), .max = 2 },
    { .name = "min", .fn = f_min, PAR("case_sensitive", "attribute"), .max = 2 },
    { .name = "max", .fn = f_min, PAR("case_sensitive", "attribute"), .max = 2 },
    { .name = "sum", .fn = f_sum, PAR("attribute", "start"), .max = 2 },
    { .name = "map", .fn = f_map, .max = J_ANY },
    { .name = "select", .fn = f_select, .max = J_ANY },
    { .name = "reject", .fn = f_select, .max = J_ANY },
    { .name = "selectattr", .fn = f_select, .max = J_ANY },
    { .name = "rejectattr", .fn = f_select, .max = J_ANY },
    { .name = "batch", .fn = f_batch, PAR("linecount", "fill_with"), .min = 1, .max = 2 },
    { .name = "slice", .fn = f_slice, PAR("slices", "fill_with"), .min = 1, .max = 2 },
    { .name = "groupby", .fn = f_groupby, PAR("attribute", "default", "case_sensitive"), .min = 1, .max = 3 },
    { .name = NULL },
};
