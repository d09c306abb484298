/* jinja_funcs.c - global functions. Spec chat-templates 7. */
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

const jsig *nb_j_find_in(const jsig *rows, const char *s, size_t n)
{
    for (; rows->name; rows++)
        if (strlen(rows->name) == n && memcmp(rows->name, s, n) == 0)
            return rows;
    return NULL;
}

static jval f_range(jrun *r, jval self, const jcall *c)
{
    int64_t v[3] = { 0, 0, 1 };
    jval out = nb_j_of(J_RANGE);
    size_t n = 0;
    __extension__ __int128 span;

    (void)self;
    while (n < 3 && c->arg[n].t != J_ABSENT)
        n++;
    for (size_t i = 0; i < n; i++)
        v[n == 1 ? 1 : i] = nb_j_need_int(r, c->arg[i], "range");
    if (v[2] == 0)
        nb_j_fail(r, "range with step 0");
    span = v[2] > 0 ? (__extension__(__int128) v[1]) - v[0] : (__extension__(__int128) v[0]) - v[1];
    if (span > 0)
        span = (span - 1) / (v[2] > 0 ? v[2] : -(__extension__(__int128) v[2])) + 1;
    if (span > J_RANGE_MOST)
        nb_j_limit(r, "limit.template_steps", "range() of more than %d elements", J_RANGE_MOST);
    out.u.r = nb_j_alloc(r, sizeof *out.u.r);
    *out.u.r = (jrange){ v[0], v[1], v[2], span > 0 ? (size_t)span : 0 };
    return out;
}

/* dict(mapping or pairs, **kw), also the start of namespace(). */
static jval make_dict(jrun *r, const jcall *c)
{
    jval d = nb_j_dict(r, 0);

    if (c->n > 1)
        nb_j_fail(r, "%s takes one mapping and keyword arguments", c->sig->name);
    if (c->n && c->arg[0].t == J_DICT) {
        for (size_t i = 0; i < c->arg[0].u.d->n; i++)
            nb_j_dict_set(r, d.u.d, c->arg[0].u.d->p[i].k, c->arg[0].u.d->p[i].v);
    } else if (c->n) {
        size_t n, k;
        const jval *items = nb_j_items(r, c->arg[0], &n);
        for (size_t i = 0; i < n; i++) {
            const jval *pair = nb_j_items(r, items[i], &k);
            if (k != 2)
                nb_j_fail(r, "%s wants pairs, element %zu has %zu parts", c->sig->name, i, k);
            nb_j_dict_set(r, d.u.d, pair[0], pair[1]);
        }
    }
    for (size_t i = 0; i < c->n_kw; i++) {
        jval key = nb_j_of(J_STR);
        key.u.s = c->kw[i].name;
        nb_j_dict_set(r, d.u.d, key, c->kw[i].v);
    }
    return d;
}

static jval f_dict(jrun *r, jval self, const jcall *c)
{
    (void)self;
    return make_dict(r, c);
}

static jval f_namespace(jrun *r, jval self, const jcall *c)
{
    jval v = make_dict(r, c);

    (void)self;
    for (size_t i = 0; i < v.u.d->n; i++) {
        const jval k = v.u.d->p[i].k;
        if (k.t == J_STR && k.u.s->n && k.u.s->s[0] == '_')
            nb_j_fail(r, "an attribute of a namespace begins with an underscore");
    }
    v.t = J_NS;
    return v;
}

static jval f_cycler(jrun *r, jval self, const jcall *c)
{
    jval v = nb_j_list(r, c->n);

    (void)self;
    if (!c->n || c->n_kw)
        nb_j_fail(r, "cycler wants at least one item");
    for (size_t i = 0; i < c->n; i++)
        nb_j_append(r, v.u.l, c->arg[i]);
    v.t = J_CYCLER;
    return v;
}

static jval f_joiner(jrun *r, jval self, const jcall *c)
{
    jval v = nb_j_of(J_JOINER);

    (void)self;
    v.u.join = nb_j_alloc(r, sizeof *v.u.join);
    *v.u.join = (jjoin){ c->arg[0].t == J_ABSENT ? nb_j_cstr(r, ", ") : c->arg[0], false };
    return v;
}

static jval f_lipsum(jrun *r, jval self, const jcall *c)
{
    (void)self;
    (void)c;
    nb_j_fail(r, "lipsum() makes random text, which is not supported");
}

static jval f_raise(jrun *r, jval self, const jcall *c)
{
    const jval text = nb_j_to_str(r, c->arg[0]);
    char esc[NB_ESC_CAP];

    (void)self;
    nb_fail(r->err, NB_EFORMAT, "tmpl.raise", "", "the template refuses: %s", nb_esc(esc, sizeof esc, text.u.s->s, text.u.s->n));
    longjmp(r->stop, 1);
}

static jval f_strftime(jrun *r, jval self, const jcall *c)
{
    (void)self;
    return nb_j_strftime(r, nb_j_need_str(r, c->arg[0], "strftime_now"));
}

static const jsig funcs[] = {
    { .name = "range", .fn = f_range, .par = { "start", "stop", "step" }, .min = 1, .max = 3 },
    { .name = "dict", .fn = f_dict, .max = J_ANY },
    { .name = "namespace", .fn = f_namespace, .max = J_ANY },
    { .name = "cycler", .fn = f_cycler, .max = J_ANY },
    { .name = "joiner", .fn = f_joiner, .par = { "sep" }, .max = 1 },
    { .name = "lipsum", .fn = f_lipsum, .max = J_ANY },
    { .name = "raise_exception", .fn = f_raise, .par = { "message" }, .min = 1, .max = 1 },
    { .name = "strftime_now", .fn = f_strftime, .par = { "format" }, .min = 1, .max = 1 },
    { .name = NULL },
};

const jsig *nb_j_find_func(const char *s, size_t n)
{
    return nb_j_find_in(funcs, s, n);
}
