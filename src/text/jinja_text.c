/* jinja_text.c - values as text: Python's str and repr, json.dumps, HTML escapes, output. Spec chat-templates 5 and 8. */
#include "text/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

static void puts_text(jrun *r, const char *s)
{
    nb_j_put(r, s, strlen(s));
}

static void deeper(jrun *r)
{
    nb_j_charge(r, 1);
    if (++r->value_depth > J_VALUE_MOST)
        nb_j_fail(r, "a value nests deeper than %d levels", J_VALUE_MOST);
}

/* ---- str and repr ---- */

static void repr_text(jrun *r, const jstr *t)
{
    const bool single = memchr(t->s, '\'', t->n) != NULL, dbl = memchr(t->s, '"', t->n) != NULL;
    const char quote = single && !dbl ? '"' : '\'';
    size_t from = 0;
    char e[16];

    nb_j_put(r, &quote, 1);
    for (size_t i = 0; i < t->n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(t->s + i, t->n - i, &cp, NULL);
        if (cp >= ' ' && cp < 127 && cp != (unsigned char)quote && cp != '\\') {
            i += k;
            continue;
        }
        if (cp >= 127 && nb_j_printable(cp)) {
            i += k;
            continue;
        }
        if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(e, sizeof e, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp == '\\' || cp == (unsigned char)quote)
            snprintf(e, sizeof e, "\\%c", (char)cp);
        else
            snprintf(e, sizeof e, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
        nb_j_put(r, t->s + from, i - from);
        puts_text(r, e);
        i += k;
        from = i;
    }
    nb_j_put(r, t->s + from, t->n - from);
    nb_j_put(r, &quote, 1);
}

static void repr_list(jrun *r, const jval *v, size_t n, const char *open, const char *close)
{
    deeper(r);
    puts_text(r, open);
    for (size_t i = 0; i < n; i++) {
        if (i)
            puts_text(r, ", ");
        nb_j_put_repr(r, v[i]);
    }
    puts_text(r, close);
    r->value_depth--;
}

static void repr_dict(jrun *r, const jdict *d)
{
    deeper(r);
    puts_text(r, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            puts_text(r, ", ");
        nb_j_put_repr(r, d->p[i].k);
        puts_text(r, ": ");
        nb_j_put_repr(r, d->p[i].v);
    }
    puts_text(r, "}");
    r->value_depth--;
}

static void put_number(jrun *r, jval v)
{
    char buf[32];

    nb_j_charge(r, v.t == J_FLOAT ? 8 : 1);
    if (v.t == J_BIG)
        nb_j_put(r, v.u.s->s, v.u.s->n);
    else if (v.t == J_FLOAT)
        nb_j_put(r, buf, nb_j_float_repr(v.u.f, buf));
    else
        nb_j_put(r, buf, (size_t)snprintf(buf, sizeof buf, "%" PRId64, v.u.i));
}

/* What str and repr have in common. */
static void put_other(jrun *r, jval v)
{
    char buf[96];
    size_t n;
    jval *items;

    switch (v.t) {
    case J_NONE:
        puts_text(r, "None");
        break;
    case J_BOOL:
        puts_text(r, v.u.b ? "True" : "False");
        break;
    case J_INT:
    case J_BIG:
    case J_FLOAT:
        put_number(r, v);
        break;
    case J_LIST:
        repr_list(r, v.u.l->v, v.u.l->n, "[", "]");
        break;
    case J_TUPLE:
        repr_list(r, v.u.l->v, v.u.l->n, "(", v.u.l->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        repr_dict(r, v.u.d);
        break;
    case J_NS:
        puts_text(r, "<Namespace ");
        repr_dict(r, v.u.d);
        puts_text(r, ">");
        break;
    case J_RANGE:
        snprintf(buf, sizeof buf, v.u.r->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v.u.r->start, v.u.r->stop, v.u.r->step);
        puts_text(r, buf);
        break;
    case J_VIEW:
        items = nb_j_items(r, v, &n);
        repr_list(r, items, n, v.u.view->what == 'k' ? "dict_keys([" : v.u.view->what == 'v' ? "dict_values([" : "dict_items([", "])");
        break;
    default:
        snprintf(buf, sizeof buf, "<%s>", nb_j_type_name(v));
        puts_text(r, buf);
    }
}

void nb_j_put_repr(jrun *r, jval v)
{
    nb_j_charge(r, 1);
    if (v.t == J_STR && v.safe) {
        puts_text(r, "Markup(");
        repr_text(r, v.u.s);
        puts_text(r, ")");
    } else if (v.t == J_STR) {
        repr_text(r, v.u.s);
    } else if (v.t == J_UNDEF) {
        puts_text(r, "Undefined");
    } else {
        put_other(r, v);
    }
}

void nb_j_put_str(jrun *r, jval v)
{
    if (v.t == J_STR)
        nb_j_put(r, v.u.s->s, v.u.s->n);
    else if (v.t != J_UNDEF)
        put_other(r, v);
}

jval nb_j_to_str(jrun *r, jval v)
{
    size_t mark;

    if (v.t == J_STR)
        return v;
    mark = nb_j_mark(r);
    nb_j_put_str(r, v);
    return nb_j_take(r, mark);
}

/* ---- output ---- */

void nb_j_emit(jrun *r, const char *s, size_t n)
{
    if (n > J_OUTPUT_MOST - r->out.n)
        nb_j_limit(r, "limit.template", "the template prints more than %zu MiB", J_OUTPUT_MOST >> 20);
    nb_j_charge(r, n / 64);
    nb_buf_put(&r->out, s, n);
    if (r->out.failed)
        nb_j_stop(r, NB_ENOMEM, "mem.alloc", "no memory for the output of a template");
}

void nb_j_print(jrun *r, jval v)
{
    const size_t mark = nb_j_mark(r);

    if (v.t == J_STR) {
        nb_j_emit(r, v.u.s->s, v.u.s->n);
        return;
    }
    nb_j_put_str(r, v);
    nb_j_emit(r, r->build.p ? r->build.p + mark : "", r->build.n - mark);
    r->build.n = mark;
}

jval nb_j_escape(jrun *r, jval v)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    size_t mark, start = 0;

    v = nb_j_to_str(r, v);
    if (v.safe)
        return v;
    mark = nb_j_mark(r);
    for (size_t i = 0; i < v.u.s->n; i++) {
        const char *hit = v.u.s->s[i] ? strchr(from, v.u.s->s[i]) : NULL;
        if (!hit)
            continue;
        nb_j_put(r, v.u.s->s + start, i - start);
        puts_text(r, to[hit - from]);
        start = i + 1;
    }
    nb_j_put(r, v.u.s->s + start, v.u.s->n - start);
    v = nb_j_take(r, mark);
    v.safe = true;
    return v;
}

/* ---- JSON ---- */

typedef struct dumper {
    const char *item, *key; /* separators */
    size_t n_item, n_key;
    const char *indent; /* one level; NULL: one line */
    size_t n_indent;
    bool ascii, sort;
} dumper;

static void json_text(jrun *r, const jstr *t, bool ascii)
{
    size_t from = 0;
    char e[16];

    puts_text(r, "\"");
    for (size_t i = 0; i < t->n;) {
        uint32_t cp = (unsigned char)t->s[i];
        size_t k = 1;
        const char *name = NULL;
        if (cp >= 0x80 && ascii)
            k = (size_t)nb_u8_next(t->s + i, t->n - i, &cp, NULL);
        if ((cp >= ' ' && cp < 127 && cp != '"' && cp != '\\') || (cp >= 127 && !ascii)) {
            i += k;
            continue;
        }
        if (cp < 128)
            name = cp ? strchr("\"\"\\\\\nn\rr\tt\bb\ff", (int)cp) : NULL;
        if (name)
            snprintf(e, sizeof e, "\\%c", name[1]);
        else if (cp < 0x10000)
            snprintf(e, sizeof e, "\\u%04x", (unsigned)cp);
        else
            snprintf(e, sizeof e, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((cp - 0x10000) >> 10)), (unsigned)(0xDC00 + (cp & 0x3FF)));
        nb_j_put(r, t->s + from, i - from);
        puts_text(r, e);
        i += k;
        from = i;
    }
    nb_j_put(r, t->s + from, t->n - from);
    puts_text(r, "\"");
}

static void json_scalar(jrun *r, jval v, bool ascii)
{
    if (v.t == J_STR)
        json_text(r, v.u.s, ascii);
    else if (v.t == J_NONE)
        puts_text(r, "null");
    else if (v.t == J_BOOL)
        puts_text(r, v.u.b ? "true" : "false");
    else if (v.t == J_FLOAT && !isfinite(v.u.f))
        puts_text(r, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
    else if (nb_j_is_num(v))
        put_number(r, v);
    else
        nb_j_fail(r, "a %s cannot be written as JSON", nb_j_type_name(v));
}

static void json_break(jrun *r, const dumper *d, int level)
{
    if (!d->indent)
        return;
    puts_text(r, "\n");
    for (int i = 0; i < level; i++)
        nb_j_put(r, d->indent, d->n_indent);
}

static void json_key(jrun *r, jval k, bool ascii)
{
    if (k.t == J_STR) {
        json_text(r, k.u.s, ascii);
        return;
    }
    puts_text(r, "\"");
    json_scalar(r, k, ascii);
    puts_text(r, "\"");
}

/* Entries by key; merge sort, because comparing may fail half-way. */
static void sort_keys(jrun *r, jpair *p, jpair *tmp, size_t n)
{
    const size_t h = n / 2;
    size_t i = 0, j = h;

    if (n < 2)
        return;
    sort_keys(r, p, tmp, h);
    sort_keys(r, p + h, tmp + h, n - h);
    for (size_t k = 0; k < n; k++)
        tmp[k] = j == n || (i < h && nb_j_order(r, p[i].k, p[j].k) <= 0) ? p[i++] : p[j++];
    memcpy(p, tmp, n * sizeof *p);
}

static void json_value(jrun *r, const dumper *d, jval v, int level)
{
    const bool obj = v.t == J_DICT;
    const size_t n = obj ? v.u.d->n : nb_j_is_seq(v) ? v.u.l->n : 0;
    const jpair *p = obj ? v.u.d->p : NULL;

    if (!obj && !nb_j_is_seq(v)) {
        json_scalar(r, v, d->ascii);
        return;
    }
    deeper(r);
    if (obj && d->sort && n) {
        jpair *sorted = nb_j_alloc(r, n * sizeof *p), *tmp = nb_j_alloc(r, n * sizeof *p);
        memcpy(sorted, p, n * sizeof *p);
        sort_keys(r, sorted, tmp, n);
        p = sorted;
    }
    puts_text(r, obj ? "{" : "[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            nb_j_put(r, d->item, d->n_item);
        json_break(r, d, level + 1);
        if (obj) {
            json_key(r, p[i].k, d->ascii);
            nb_j_put(r, d->key, d->n_key);
        }
        nb_j_charge(r, 1);
        json_value(r, d, obj ? p[i].v : v.u.l->v[i], level + 1);
    }
    if (n)
        json_break(r, d, level);
    puts_text(r, obj ? "}" : "]");
    r->value_depth--;
}

jval nb_j_tojson(jrun *r, jval v, bool ascii, jval indent, jval separators, bool sort)
{
    dumper d = { ", ", ": ", 2, 2, NULL, 0, ascii, sort };
    size_t mark = nb_j_mark(r);
    int64_t width;

    if (nb_j_given(indent)) {
        d.item = ",";
        d.n_item = 1;
        if (indent.t == J_STR) {
            d.indent = indent.u.s->s;
            d.n_indent = indent.u.s->n;
        } else {
            if (!nb_j_as_int(indent, &width))
                nb_j_fail(r, "indent is a %s, not a number", nb_j_type_name(indent));
            width = width < 0 ? 0 : width;
            if (width > 1000)
                nb_j_limit(r, "limit.template", "indent %lld", (long long)width);
            for (int64_t i = 0; i < width; i++)
                puts_text(r, " ");
            indent = nb_j_take(r, mark);
            d.indent = indent.u.s->s;
            d.n_indent = indent.u.s->n;
        }
    }
    if (nb_j_given(separators)) {
        size_t n;
        const jval *s = nb_j_items(r, separators, &n);
        if (n != 2 || s[0].t != J_STR || s[1].t != J_STR)
            nb_j_fail(r, "separators are not two texts");
        d.item = s[0].u.s->s;
        d.n_item = s[0].u.s->n;
        d.key = s[1].u.s->s;
        d.n_key = s[1].u.s->n;
    }
    mark = nb_j_mark(r);
    json_value(r, &d, v, 0);
    return nb_j_take(r, mark);
}
