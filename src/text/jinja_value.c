/* jinja_value.c - values of one render: memory and budgets, texts, lists, dicts, equality, order, iteration. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

#include "text/utf8.h"

/* ---- budgets and memory ---- */

void nb_j_charge(jrun *r, uint64_t steps)
{
    r->steps += steps;
    if (r->steps > J_STEPS_MOST)
        nb_j_limit(r, "limit.template_steps", "the template takes more than %d steps", J_STEPS_MOST);
}

void *nb_j_alloc(jrun *r, size_t bytes)
{
    void *p;

    if (bytes > J_MEMORY_MOST - r->memory)
        nb_j_limit(r, "limit.template", "the values of the template take more than %zu MiB", J_MEMORY_MOST >> 20);
    r->memory += bytes;
    p = nb_arena_alloc(&r->arena, bytes);
    if (!p)
        nb_j_stop(r, NB_ENOMEM, "mem.alloc", "no memory for the values of a template");
    return p;
}

static size_t count_chars(const char *s, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

jval nb_j_view(jrun *r, const char *s, size_t n)
{
    jstr *t = nb_j_alloc(r, sizeof *t);
    jval v = { .t = J_STR };

    nb_j_charge(r, n / 64);
    *t = (jstr){ s, n, count_chars(s, n) };
    v.u.s = t;
    return v;
}

jval nb_j_str(jrun *r, const char *s, size_t n)
{
    char *p;

    if (n > J_OUTPUT_MOST)
        nb_j_limit(r, "limit.template", "a text of %zu bytes, the limit is %zu MiB", n, J_OUTPUT_MOST >> 20);
    p = nb_j_alloc(r, n);
    if (n)
        memcpy(p, s, n);
    return nb_j_view(r, p, n);
}

jval nb_j_cstr(jrun *r, const char *s)
{
    return nb_j_view(r, s, strlen(s));
}

size_t nb_j_mark(jrun *r)
{
    return r->build.n;
}

void nb_j_room(jrun *r, size_t more)
{
    if (more > J_OUTPUT_MOST || r->build.n > J_OUTPUT_MOST - more)
        nb_j_limit(r, "limit.template", "a text grows beyond %zu MiB", J_OUTPUT_MOST >> 20);
    nb_j_charge(r, more / 64);
}

void nb_j_put(jrun *r, const char *s, size_t n)
{
    nb_j_room(r, n);
    nb_buf_put(&r->build, s, n);
    if (r->build.failed)
        nb_j_stop(r, NB_ENOMEM, "mem.alloc", "no memory for a text of a template");
}

jval nb_j_take(jrun *r, size_t mark)
{
    const jval v = nb_j_str(r, r->build.p ? r->build.p + mark : "", r->build.n - mark);

    r->build.n = mark;
    return v;
}

/* ---- lists ---- */

jval nb_j_list(jrun *r, size_t cap)
{
    jval v = { .t = J_LIST };

    if (cap > J_LIST_MOST)
        nb_j_limit(r, "limit.template", "a list of %zu elements, the limit is %d", cap, J_LIST_MOST);
    v.u.l = nb_j_alloc(r, sizeof *v.u.l);
    *v.u.l = (jlist){ cap ? nb_j_alloc(r, cap * sizeof(jval)) : NULL, 0, cap, 0 };
    return v;
}

void nb_j_append(jrun *r, jlist *l, jval v)
{
    if (l->n == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 4;
        jval *p;
        if (l->n >= J_LIST_MOST)
            nb_j_limit(r, "limit.template", "a list of more than %d elements", J_LIST_MOST);
        p = nb_j_alloc(r, cap * sizeof *p);
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

jval nb_j_tuple2(jrun *r, jval a, jval b)
{
    jval v = nb_j_list(r, 2);

    v.t = J_TUPLE;
    v.u.l->v[0] = a;
    v.u.l->v[1] = b;
    v.u.l->n = 2;
    return v;
}

/* ---- dicts ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static uint64_t hash_text(jrun *r, const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ULL;

    nb_j_charge(r, n / 64);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3ULL;
    return mix(h);
}

/* Equal values have equal hashes, also 1, 1.0 and true. */
static uint64_t hash(jrun *r, jval v)
{
    uint64_t h = 7;
    int64_t i;
    double f;

    switch (v.t) {
    case J_STR:
        return hash_text(r, v.u.s->s, v.u.s->n);
    case J_FLOAT:
    case J_BIG:
    case J_INT:
    case J_BOOL:
        if (nb_j_as_int(v, &i))
            return mix((uint64_t)i + 0x9e3779b97f4a7c15ULL);
        f = nb_j_as_double(r, v);
        if (f >= -0x1p63 && f < 0x1p63 && f == floor(f))
            return mix((uint64_t)(int64_t)f + 0x9e3779b97f4a7c15ULL);
        memcpy(&h, &f, sizeof h);
        return mix(h);
    case J_TUPLE:
        for (size_t k = 0; k < v.u.l->n; k++) {
            nb_j_charge(r, 1);
            if (++r->value_depth > J_VALUE_MOST)
                nb_j_fail(r, "a value nests deeper than %d levels", J_VALUE_MOST);
            h = mix(h * 31 + hash(r, v.u.l->v[k]));
            r->value_depth--;
        }
        return h;
    case J_LIST:
    case J_DICT:
        nb_j_fail(r, "a %s cannot be the key of a dict", nb_j_type_name(v));
    default:
        return v.t;
    }
}

jval nb_j_dict(jrun *r, size_t cap)
{
    jval v = { .t = J_DICT };

    if (cap > J_LIST_MOST)
        nb_j_limit(r, "limit.template", "a dict of %zu keys, the limit is %d", cap, J_LIST_MOST);
    v.u.d = nb_j_alloc(r, sizeof *v.u.d);
    memset(v.u.d, 0, sizeof *v.u.d);
    v.u.d->cap = cap;
    v.u.d->p = cap ? nb_j_alloc(r, cap * sizeof(jpair)) : NULL;
    return v;
}

static void index_put(jdict *d, size_t at)
{
    size_t i = (size_t)d->p[at].hash & (d->n_index - 1);

    while (d->index[i])
        i = (i + 1) & (d->n_index - 1);
    d->index[i] = (uint32_t)at + 1;
}

static void index_build(jrun *r, jdict *d, size_t n)
{
    if (n > d->n_index) {
        d->index = nb_j_alloc(r, n * sizeof *d->index);
        d->n_index = n;
    }
    nb_j_charge(r, d->n_index / 16);
    memset(d->index, 0, d->n_index * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
}

#define DICT_SMALL 8

/* Entry of the key, or NULL. Probes are charged, so crafted keys only use up the budget. */
static jpair *dict_seek(jrun *r, const jdict *d, jval key, uint64_t h)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->p[i].hash == h && nb_j_equal(r, d->p[i].k, key))
                return &d->p[i];
        return NULL;
    }
    for (size_t i = (size_t)h & (d->n_index - 1); d->index[i]; i = (i + 1) & (d->n_index - 1)) {
        jpair *p = &d->p[d->index[i] - 1];
        if (p->hash == h && nb_j_equal(r, p->k, key))
            return p;
        nb_j_charge(r, 1);
    }
    return NULL;
}

jval *nb_j_dict_get(jrun *r, const jdict *d, jval key)
{
    jpair *p = dict_seek(r, d, key, hash(r, key));

    return p ? &p->v : NULL;
}

jval *nb_j_dict_find(jrun *r, const jdict *d, const jstr *key)
{
    jval k = { .t = J_STR };
    jpair *p;

    k.u.s = key;
    p = dict_seek(r, d, k, hash_text(r, key->s, key->n));
    return p ? &p->v : NULL;
}

void nb_j_dict_set(jrun *r, jdict *d, jval key, jval v)
{
    const uint64_t h = hash(r, key);
    jpair *p = dict_seek(r, d, key, h);

    if (p) {
        p->v = v;
        return;
    }
    if (d->n == d->cap) {
        const size_t cap = d->cap ? 2 * d->cap : 4;
        if (d->n >= J_LIST_MOST)
            nb_j_limit(r, "limit.template", "a dict of more than %d keys", J_LIST_MOST);
        p = nb_j_alloc(r, cap * sizeof *p);
        if (d->n)
            memcpy(p, d->p, d->n * sizeof *p);
        d->p = p;
        d->cap = cap;
    }
    d->p[d->n++] = (jpair){ key, v, h };
    if (d->n > DICT_SMALL) {
        if (2 * d->n > d->n_index)
            index_build(r, d, d->n_index ? 2 * d->n_index : 32);
        else
            index_put(d, d->n - 1);
    }
}

void nb_j_dict_del(jrun *r, jdict *d, size_t at)
{
    nb_j_charge(r, d->n / 16);
    memmove(d->p + at, d->p + at + 1, (d->n - at - 1) * sizeof *d->p);
    d->n--;
    if (d->index)
        index_build(r, d, d->n_index);
}

/* ---- from JSON ---- */

static jval from_json(jrun *r, const nb_json *v, int depth)
{
    const size_t n = nb_json_len(v);
    jval out;

    nb_j_charge(r, 1);
    if (depth > J_VALUE_MOST)
        nb_j_fail(r, "the variables nest deeper than %d levels", J_VALUE_MOST);
    switch (nb_json_typeof(v)) {
    case NB_JBOOL:
        return nb_j_bool(nb_json_bool(v, false));
    case NB_JINT:
        return nb_j_int(nb_json_int(v, 0));
    case NB_JREAL:
        if (nb_json_wide(v))
            return nb_j_big(r, nb_json_wide(v), strlen(nb_json_wide(v)));
        return nb_j_float(nb_json_num(v, 0));
    case NB_JSTR:
        return nb_j_str(r, nb_json_str(v, ""), nb_json_str_len(v));
    case NB_JARR:
        out = nb_j_list(r, n);
        out.fixed = true;
        for (size_t i = 0; i < n; i++)
            nb_j_append(r, out.u.l, from_json(r, nb_json_at(v, i), depth + 1));
        return out;
    case NB_JOBJ:
        out = nb_j_dict(r, n);
        out.fixed = true;
        for (size_t i = 0; i < n; i++) {
            const char *key;
            const nb_json *m = nb_json_member(v, i, &key);
            nb_j_dict_set(r, out.u.d, nb_j_str(r, key, strlen(key)), from_json(r, m, depth + 1));
        }
        return out;
    default:
        return nb_j_of(J_NONE);
    }
}

jval nb_j_from_json(jrun *r, const nb_json *v)
{
    return from_json(r, v, 0);
}

/* ---- truth, equality, order ---- */

bool nb_j_length(jval v, size_t *n)
{
    switch (v.t) {
    case J_UNDEF:
        *n = 0;
        return true;
    case J_STR:
        *n = v.u.s->chars;
        return true;
    case J_LIST:
    case J_TUPLE:
        *n = v.u.l->n;
        return true;
    case J_DICT:
        *n = v.u.d->n;
        return true;
    case J_RANGE:
        *n = v.u.r->n;
        return true;
    case J_VIEW:
        *n = v.u.view->d->n;
        return true;
    case J_LOOP:
        *n = v.u.loop->n;
        return true;
    default:
        return false;
    }
}

bool nb_j_true(jval v)
{
    size_t n;

    switch (v.t) {
    case J_ABSENT:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.u.b;
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    default:
        return !nb_j_length(v, &n) || n > 0;
    }
}

static void value_deeper(jrun *r)
{
    if (++r->value_depth > J_VALUE_MOST)
        nb_j_fail(r, "a value nests deeper than %d levels", J_VALUE_MOST);
}

static bool equal_dicts(jrun *r, const jdict *a, const jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const jpair *p = dict_seek(r, b, a->p[i].k, a->p[i].hash);
        if (!p || !nb_j_equal(r, a->p[i].v, p->v))
            return false;
    }
    return true;
}

bool nb_j_equal(jrun *r, jval a, jval b)
{
    bool same = true;

    nb_j_charge(r, 1);
    if (nb_j_is_num(a) && nb_j_is_num(b))
        return nb_j_cmp_num(a, b) == 0;
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case J_UNDEF:
    case J_NONE:
        return true;
    case J_STR:
        nb_j_charge(r, a.u.s->n == b.u.s->n ? a.u.s->n / 64 : 0);
        return a.u.s->n == b.u.s->n && (a.u.s->n == 0 || memcmp(a.u.s->s, b.u.s->s, a.u.s->n) == 0);
    case J_LIST:
    case J_TUPLE:
        if (a.u.l->n != b.u.l->n)
            return false;
        value_deeper(r);
        for (size_t i = 0; i < a.u.l->n && same; i++)
            same = nb_j_equal(r, a.u.l->v[i], b.u.l->v[i]);
        r->value_depth--;
        return same;
    case J_DICT:
        value_deeper(r);
        same = equal_dicts(r, a.u.d, b.u.d);
        r->value_depth--;
        return same;
    case J_RANGE:
        return a.u.r->n == b.u.r->n && (a.u.r->n == 0 || (a.u.r->start == b.u.r->start && (a.u.r->n == 1 || a.u.r->step == b.u.r->step)));
    case J_VIEW:
        return a.u.view->what == b.u.view->what && a.u.view->what != 'v' && equal_dicts(r, a.u.view->d, b.u.view->d);
    default:
        return a.u.s == b.u.s; /* the same object */
    }
}

static void need_defined(jrun *r, jval v)
{
    if (v.t == J_UNDEF)
        nb_j_fail(r, "%s is undefined", nb_j_type_name(v));
}

int nb_j_order(jrun *r, jval a, jval b)
{
    int c = 0;

    nb_j_charge(r, 1);
    if (nb_j_is_num(a) && nb_j_is_num(b))
        return nb_j_cmp_num(a, b);
    if (a.t == J_STR && b.t == J_STR) {
        const size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        nb_j_charge(r, n / 64);
        c = n ? memcmp(a.u.s->s, b.u.s->s, n) : 0; /* UTF-8 sorts by code point */
        return c ? (c > 0) - (c < 0) : (a.u.s->n > b.u.s->n) - (a.u.s->n < b.u.s->n);
    }
    need_defined(r, a);
    need_defined(r, b);
    if (a.t != b.t || !nb_j_is_seq(a))
        nb_j_fail(r, "a %s and a %s have no order", nb_j_type_name(a), nb_j_type_name(b));
    value_deeper(r);
    for (size_t i = 0; i < a.u.l->n && i < b.u.l->n && c == 0; i++)
        if (!nb_j_equal(r, a.u.l->v[i], b.u.l->v[i]))
            c = nb_j_order(r, a.u.l->v[i], b.u.l->v[i]);
    r->value_depth--;
    return c ? c : (a.u.l->n > b.u.l->n) - (a.u.l->n < b.u.l->n);
}

const char *nb_j_type_name(jval v)
{
    static const char *const names[] = {
        [J_ABSENT] = "missing value",
        [J_UNDEF] = "undefined value",
        [J_NONE] = "none",
        [J_BOOL] = "bool",
        [J_INT] = "int",
        [J_BIG] = "int",
        [J_FLOAT] = "float",
        [J_STR] = "str",
        [J_LIST] = "list",
        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",
        [J_NS] = "namespace",
        [J_RANGE] = "range",
        [J_VIEW] = "dict view",
        [J_GEN] = "generator",
        [J_MACRO] = "macro",
        [J_FUNC] = "function",
        [J_METHOD] = "method",
        [J_LOOP] = "loop",
        [J_CYCLER] = "cycler",
        [J_JOINER] = "joiner",
    };

    return names[v.t];
}

bool nb_j_is_str(jval v, const char *s)
{
    return v.t == J_STR && v.u.s->n == strlen(s) && memcmp(v.u.s->s, s, v.u.s->n) == 0;
}

/* ---- iteration ---- */

bool nb_j_iterable(jval v)
{
    return v.t == J_UNDEF || v.t == J_STR || nb_j_is_seq(v) || v.t == J_DICT || v.t == J_RANGE || v.t == J_VIEW || v.t == J_GEN ||
           v.t == J_LOOP;
}

static jval *chars_of(jrun *r, const jstr *s)
{
    jval *v = nb_j_alloc(r, s->chars * sizeof *v);
    jstr *c = nb_j_alloc(r, s->chars * sizeof *c);
    size_t at = 0;

    for (size_t i = 0; i < s->chars; i++) {
        size_t k = 1;
        while (at + k < s->n && ((unsigned char)s->s[at + k] & 0xC0) == 0x80)
            k++;
        c[i] = (jstr){ s->s + at, k, 1 };
        v[i] = nb_j_of(J_STR);
        v[i].u.s = &c[i];
        at += k;
    }
    return v;
}

jval *nb_j_items(jrun *r, jval v, size_t *n)
{
    jval *out;

    *n = 0;
    switch (v.t) {
    case J_UNDEF:
        return NULL;
    case J_LIST:
    case J_TUPLE:
        *n = v.u.l->n;
        nb_j_charge(r, *n / 16);
        return v.u.l->v;
    case J_GEN:
        *n = v.u.l->n - v.u.l->at;
        out = v.u.l->v ? v.u.l->v + v.u.l->at : NULL; /* of nothing: NULL + 0 is undefined too */
        v.u.l->at = v.u.l->n;
        return out;
    case J_STR:
        *n = v.u.s->chars;
        nb_j_charge(r, *n / 8);
        return chars_of(r, v.u.s);
    case J_DICT:
    case J_VIEW: {
        const jdict *d = v.t == J_DICT ? v.u.d : v.u.view->d;
        const uint8_t what = v.t == J_DICT ? 'k' : v.u.view->what;
        *n = d->n;
        nb_j_charge(r, *n / 4);
        out = nb_j_alloc(r, *n * sizeof *out);
        for (size_t i = 0; i < *n; i++)
            out[i] = what == 'k' ? d->p[i].k : what == 'v' ? d->p[i].v : nb_j_tuple2(r, d->p[i].k, d->p[i].v);
        return out;
    }
    case J_RANGE:
        *n = v.u.r->n;
        nb_j_charge(r, *n / 16);
        out = nb_j_alloc(r, *n * sizeof *out);
        for (size_t i = 0; i < *n; i++)
            out[i] = nb_j_int(v.u.r->start + (int64_t)i * v.u.r->step);
        return out;
    default:
        nb_j_fail(r, "a %s cannot be iterated", nb_j_type_name(v));
    }
}
