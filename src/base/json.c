/* json.c - JSON over jansson, with the rules that jansson leaves open: depth, wide integers, member by number. */
#include "base/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

#define DEPTH_DEFAULT 128
#define DEPTH_MOST    2000 /* jansson's own limit is 2048 */
#define WALK_MOST     8    /* objects up to this size are walked, larger ones get an index */

static pthread_once_t init_once = PTHREAD_ONCE_INIT;

/* Set when a block was refused. jansson does not always say so; it may even cut the text of a number short and go on. */
static _Thread_local bool no_memory;

static void *json_block_alloc(size_t n)
{
    void *p = nb_alloc(n);

    no_memory = no_memory || !p;
    return p;
}

/* The block of a json_t starts with it, so the index that member() caches and the digits of a wide integer are its note. */
static void json_block_free(void *p)
{
    if (!p)
        return;
    nb_free(nb_note_get(p));
    nb_free(p);
}

static void init(void)
{
    json_set_alloc_funcs(json_block_alloc, json_block_free);
    json_object_seed(0); /* random, once, before any thread needs it */
}

static void ready(void)
{
    pthread_once(&init_once, init);
}

/* jansson takes no const where it only counts references or reads. */
static json_t *jj(const nb_json *v)
{
    return (json_t *)(uintptr_t)v;
}

static nb_json *nj(json_t *v)
{
    return (nb_json *)v;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Does the integer of n digits fit into int64? */
static bool fits_int64(const char *digits, size_t n, bool neg)
{
    const char *most = neg ? "9223372036854775808" : "9223372036854775807";

    return n < 19 || (n == 19 && memcmp(digits, most, 19) <= 0);
}

/* Integers beyond int64: which of the text's reals they became, and their digits. */
typedef struct wide {
    size_t real, at, n;
} wide;
typedef struct wides {
    wide *v;
    size_t n, cap;
    size_t n_reals, next; /* reals seen so far; element to come */
} wides;

static bool wides_push(wides *w, size_t at, size_t n)
{
    if (w->n == w->cap) {
        wide *v = nb_realloc(w->v, (w->cap ? 2 * w->cap : 8) * sizeof *v);
        if (!v)
            return false;
        w->v = v;
        w->cap = w->cap ? 2 * w->cap : 8;
    }
    w->v[w->n++] = (wide){ w->n_reals, at, n };
    return true;
}

/* Length of a number that Python writes and JSON lacks, NaN, Infinity or -Infinity (without its sign), at p[i]; else 0. */
static size_t odd_number(const char *p, size_t n, size_t i)
{
    const bool neg = i > 0 && p[i - 1] == '-';
    const size_t len = p[i] == 'N' ? 3 : 8, first = i - neg;

    if ((p[i] != 'N' && p[i] != 'I') || len > n - i || memcmp(p + i, p[i] == 'N' ? "NaN" : "Infinity", len) != 0 || (neg && p[i] == 'N'))
        return 0;
    if (first > 0 && !strchr(" \t\r\n[,:", p[first - 1])) /* part of a longer word */
        return 0;
    return i + len == n || strchr(" \t\r\n],}", p[i + len]) ? len : 0;
}

static nb_status nul_byte(const char *p, size_t at, const char *cls, nb_err *err)
{
    size_t line = 1, column = at + 1;
    char full[32];

    for (size_t i = 0; i < at; i++)
        if (p[i] == '\n') {
            line++;
            column = at - i;
        }
    snprintf(full, sizeof full, "%s.json", cls);
    return nb_fail(err, NB_EFORMAT, full, "", "not valid JSON at line %zu, column %zu: a NUL byte", line, column);
}

/* One pass before jansson: NUL bytes, nesting depth, and integers beyond int64, which get ".0" in a copy; when `lax` also numbers
 * that are not finite, which become 0.0 there. The texts of both go to w.
 *   copy  stays empty while nothing had to be rewritten */
static nb_status prescan(const char *p, size_t n, const char *cls, int most, bool lax, nb_buf *copy, wides *w, nb_err *err)
{
    size_t done = 0;
    int depth = 0;

    for (size_t i = 0; i < n;) {
        const char c = p[i];

        if (c == '"') {
            for (i++; i < n && p[i] != '"'; i++)
                if (p[i] == '\\')
                    i++;
            i++;
        } else if (c == '[' || c == '{') {
            if (++depth > most)
                return nb_fail(err, NB_ELIMIT, "json.depth", "", "nesting is deeper than %d levels at byte %zu", most, i);
            i++;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
            i++;
        } else if (lax && odd_number(p, n, i)) {
            const size_t sign = i > 0 && p[i - 1] == '-', len = odd_number(p, n, i);
            if (!wides_push(w, i - sign, len + sign))
                return nb_enomem(err, "JSON text");
            w->n_reals++;
            nb_buf_put(copy, p + done, i - done);
            nb_buf_puts(copy, "0.0");
            i += len;
            done = i;
        } else if (is_digit(c)) {
            const size_t begin = i;
            while (i < n && is_digit(p[i]))
                i++;
            if (!(i < n && (p[i] == '.' || p[i] == 'e' || p[i] == 'E')) &&
                !fits_int64(p + begin, i - begin, begin > 0 && p[begin - 1] == '-')) {
                const size_t sign = begin > 0 && p[begin - 1] == '-';
                if (!wides_push(w, begin - sign, i - begin + sign))
                    return nb_enomem(err, "JSON text");
                w->n_reals++;
                nb_buf_put(copy, p + done, i - done);
                nb_buf_puts(copy, ".0");
                done = i;
            } else { /* the rest of a real is no integer of its own */
                w->n_reals += i < n && (p[i] == '.' || p[i] == 'e' || p[i] == 'E');
                while (i < n && (is_digit(p[i]) || p[i] == '.' || p[i] == 'e' || p[i] == 'E' || p[i] == '+' || p[i] == '-'))
                    i++;
            }
        } else if (c == '\0') { /* jansson takes it for the end of the text */
            return nul_byte(p, i, cls, err);
        } else {
            i++;
        }
    }
    if (done)
        nb_buf_put(copy, p + done, n - done);
    return copy->failed ? nb_enomem(err, "JSON text") : NB_OK;
}

static nb_status parse_failed(const json_error_t *e, const char *cls, nb_err *err)
{
    char full[32], esc[NB_ESC_CAP];

    if (no_memory)
        return nb_enomem(err, "JSON values");
    nb_esc(esc, sizeof esc, e->text, strlen(e->text));
    switch (json_error_code(e)) {
    case json_error_duplicate_key:
        snprintf(full, sizeof full, "%s.duplicate_key", cls);
        return nb_fail(err, NB_EFORMAT, full, "", "%s; keys of an object must differ", esc);
    case json_error_stack_overflow:
        return nb_fail(err, NB_ELIMIT, "json.depth", "", "nesting is too deep at line %d", e->line);
    default:
        snprintf(full, sizeof full, "%s.json", cls);
        return nb_fail(err, NB_EFORMAT, full, "", "not valid JSON at line %d, column %d: %s", e->line, e->column, esc);
    }
}

/* Give the reals that were wide integers their digits, as the note of their block; w->n_reals counts them again. */
static bool note_wides(json_t *v, const char *text, wides *w)
{
    const char *key;
    json_t *e;
    size_t i;
    bool ok = true;

    if (json_is_real(v) && w->next < w->n && w->v[w->next].real == w->n_reals++) {
        char *digits = nb_strndup(text + w->v[w->next].at, w->v[w->next].n);
        w->next++;
        return digits && nb_note_swap(v, NULL, digits);
    }
    if (json_is_array(v))
        json_array_foreach(v, i, e) ok = ok && note_wides(e, text, w);
    if (json_is_object(v))
        json_object_foreach(v, key, e) ok = ok && note_wides(e, text, w);
    return ok;
}

static nb_status parse(const char *p, size_t n, const char *cls, int depth, bool lax, nb_json **out, nb_err *warn, nb_err *err)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    nb_buf copy = { 0 };
    wides w = { 0 };
    json_error_t e = { 0 };
    json_t *v;
    nb_status rc;

    *out = NULL;
    ready();
    if (depth <= 0)
        depth = DEPTH_DEFAULT;
    rc = prescan(p, n, cls, depth < DEPTH_MOST ? depth : DEPTH_MOST, lax, &copy, &w, err);
    if (rc == NB_OK) {
        no_memory = false;
        v = json_loadb(copy.n ? copy.p : n ? p : "", copy.n ? copy.n : n, flags | JSON_REJECT_DUPLICATES, &e);
        if (!v && !no_memory && lax && !w.n && json_error_code(&e) == json_error_duplicate_key) {
            parse_failed(&e, cls, warn);
            v = json_loadb(n ? p : "", n, flags, &e);
        }
        w.n_reals = 0;
        if (v && !no_memory && (!w.n || note_wides(v, p, &w))) {
            *out = nj(v);
        } else {
            rc = v && !no_memory ? nb_enomem(err, "JSON values") : parse_failed(&e, cls, err);
            json_decref(v);
        }
    }
    nb_free(w.v);
    nb_buf_clear(&copy);
    return rc;
}

nb_status nb_json_parse(const char *p, size_t n, const char *cls, int depth, nb_json **out, nb_err *err)
{
    return parse(p, n, cls, depth, false, out, NULL, err);
}

nb_status nb_json_parse_config(const char *p, size_t n, const char *cls, nb_json **out, nb_err *warn, nb_err *err)
{
    return parse(p, n, cls, 0, true, out, warn, err);
}

nb_status nb_json_parse_file(const char *path, size_t limit, const char *cls, nb_json **out, nb_err *err)
{
    char *text = NULL;
    size_t n = 0;
    nb_status rc;

    *out = NULL;
    rc = nb_read_file(path, limit, &text, &n, err);
    if (rc == NB_OK)
        rc = nb_json_parse(text, n, cls, 0, out, err);
    if (rc != NB_OK)
        nb_err_at(err, path, NULL);
    nb_free(text);
    return rc;
}

void nb_json_free(nb_json *root)
{
    json_decref(jj(root));
}

nb_json_type nb_json_typeof(const nb_json *v)
{
    if (!v)
        return NB_JNULL;
    switch (json_typeof(jj(v))) {
    case JSON_OBJECT:
        return NB_JOBJ;
    case JSON_ARRAY:
        return NB_JARR;
    case JSON_STRING:
        return NB_JSTR;
    case JSON_INTEGER:
        return NB_JINT;
    case JSON_REAL:
        return NB_JREAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return NB_JBOOL;
    default:
        return NB_JNULL;
    }
}

bool nb_json_is_null(const nb_json *v)
{
    return nb_json_typeof(v) == NB_JNULL;
}

const nb_json *nb_json_get(const nb_json *v, const char *key)
{
    return nj(json_object_get(jj(v), key)); /* NULL for anything but an object */
}

size_t nb_json_len(const nb_json *v)
{
    return nb_json_typeof(v) == NB_JOBJ ? json_object_size(jj(v)) : json_array_size(jj(v));
}

const nb_json *nb_json_at(const nb_json *v, size_t i)
{
    return nj(json_array_get(jj(v), i));
}

/* Iterators of all members in order, made once per object; NULL when there is no memory. */
static void **member_index(json_t *obj)
{
    void **index = nb_note_get(obj);
    size_t i = 0;

    if (index)
        return index;
    index = nb_alloc_array(json_object_size(obj), sizeof *index);
    if (!index)
        return NULL;
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it))
        index[i++] = it;
    if (!nb_note_swap(obj, NULL, index)) { /* another reader was first */
        nb_free(index);
        index = nb_note_get(obj);
    }
    return index;
}

static void forget_index(json_t *obj)
{
    void *index = nb_note_get(obj);

    if (index && nb_note_swap(obj, index, NULL))
        nb_free(index);
}

const nb_json *nb_json_member(const nb_json *v, size_t i, const char **key)
{
    json_t *obj = jj(v);
    void **index, *it;

    if (key)
        *key = NULL;
    if (nb_json_typeof(v) != NB_JOBJ || i >= json_object_size(obj))
        return NULL;
    index = json_object_size(obj) > WALK_MOST ? member_index(obj) : NULL;
    if (index) {
        it = index[i];
    } else {
        it = json_object_iter(obj);
        while (i-- > 0)
            it = json_object_iter_next(obj, it);
    }
    if (key)
        *key = json_object_iter_key(it);
    return nj(json_object_iter_value(it));
}

/* "NaN", "Infinity" or "-Infinity" for a real that stands for it, else NULL. */
static const char *not_finite(const nb_json *v)
{
    const char *text = nb_json_typeof(v) == NB_JREAL ? nb_note_get(v) : NULL;

    return text && !is_digit(text[text[0] == '-']) ? text : NULL;
}

double nb_json_num(const nb_json *v, double dflt)
{
    const nb_json_type t = nb_json_typeof(v);
    const char *odd = not_finite(v);

    if (odd)
        return odd[0] == 'N' ? NAN : odd[0] == '-' ? -INFINITY : INFINITY;
    return t == NB_JINT || t == NB_JREAL ? json_number_value(jj(v)) : dflt;
}

int64_t nb_json_int(const nb_json *v, int64_t dflt)
{
    if (nb_json_typeof(v) == NB_JINT)
        return json_integer_value(jj(v));
    if (nb_json_typeof(v) == NB_JREAL) {
        const double d = nb_json_num(v, 0);
        if (d >= -0x1p63 && d < 0x1p63 && d == floor(d))
            return (int64_t)d;
    }
    return dflt;
}

bool nb_json_bool(const nb_json *v, bool dflt)
{
    return nb_json_typeof(v) == NB_JBOOL ? json_is_true(jj(v)) : dflt;
}

const char *nb_json_str(const nb_json *v, const char *dflt)
{
    return nb_json_typeof(v) == NB_JSTR ? json_string_value(jj(v)) : dflt;
}

size_t nb_json_str_len(const nb_json *v)
{
    return json_string_length(jj(v));
}

const char *nb_json_wide(const nb_json *v)
{
    return nb_json_typeof(v) == NB_JREAL && !not_finite(v) ? nb_note_get(v) : NULL;
}

bool nb_json_equal(const nb_json *a, const nb_json *b)
{
    if (!a || !b)
        return nb_json_is_null(a) && nb_json_is_null(b);
    return json_equal(jj(a), jj(b));
}

nb_json *nb_json_new_obj(void)
{
    ready();
    return nj(json_object());
}

nb_json *nb_json_new_arr(void)
{
    ready();
    return nj(json_array());
}

nb_json *nb_json_new_strn(const char *s, size_t n)
{
    ready();
    return nj(json_stringn(n ? s : "", n));
}

nb_json *nb_json_new_str(const char *s)
{
    return nb_json_new_strn(s, strlen(s));
}

nb_json *nb_json_new_int(int64_t v)
{
    ready();
    return nj(json_integer(v));
}

nb_json *nb_json_new_real(double v)
{
    ready();
    return nj(isfinite(v) ? json_real(v) : json_null());
}

double nb_json_short(float v)
{
    char text[32];
    double d = (double)v;

    for (int digits = 6; isfinite(v) && digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        d = strtod(text, NULL);
        if ((float)d == v)
            break;
    }
    return d;
}

nb_json *nb_json_new_bool(bool v)
{
    return nj(json_boolean(v));
}

nb_json *nb_json_new_null(void)
{
    return nj(json_null());
}

/* The copy b of a gets the digits of its wide integers. */
static bool copy_wides(json_t *a, json_t *b)
{
    const char *digits = json_is_real(a) ? nb_note_get(a) : NULL;
    void *i = json_object_iter(a), *j = json_object_iter(b);
    bool ok = true;

    if (digits) {
        char *copy = nb_strdup(digits);
        return copy && nb_note_swap(b, NULL, copy);
    }
    for (size_t k = 0; ok && k < json_array_size(a); k++)
        ok = copy_wides(json_array_get(a, k), json_array_get(b, k));
    for (; ok && i && j; i = json_object_iter_next(a, i), j = json_object_iter_next(b, j))
        ok = copy_wides(json_object_iter_value(i), json_object_iter_value(j));
    return ok;
}

nb_json *nb_json_copy(const nb_json *v)
{
    json_t *copy;

    ready();
    copy = v ? json_deep_copy(jj(v)) : NULL;
    if (copy && !copy_wides(jj(v), copy)) {
        json_decref(copy);
        copy = NULL;
    }
    return nj(copy);
}

bool nb_json_set(nb_json *obj, const char *key, nb_json *value)
{
    if (nb_json_typeof(obj) == NB_JOBJ)
        forget_index(jj(obj));
    return json_object_set_new(jj(obj), key, jj(value)) == 0;
}

bool nb_json_push(nb_json *arr, nb_json *value)
{
    return json_array_append_new(jj(arr), jj(value)) == 0;
}

bool nb_json_remove(nb_json *obj, const char *key)
{
    if (nb_json_typeof(obj) == NB_JOBJ)
        forget_index(jj(obj));
    return json_object_del(jj(obj), key) == 0;
}

void nb_json_put_str(nb_buf *b, const char *s, size_t n)
{
    size_t from = 0;

    nb_buf_putc(b, '"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* byte, letter after the backslash */
        const char *hit = NULL;

        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        for (size_t k = 0; k + 1 < sizeof named; k += 2)
            if ((unsigned char)named[k] == c)
                hit = named + k + 1;
        nb_buf_put(b, s + from, i - from);
        if (hit) {
            nb_buf_putc(b, '\\');
            nb_buf_putc(b, *hit);
        } else {
            nb_buf_printf(b, "\\u%04x", c);
        }
        from = i + 1;
    }
    nb_buf_put(b, s + from, n - from);
    nb_buf_putc(b, '"');
}

/* The shortest of 15, 16 or 17 digits that reads back the same; always recognisable as a real. */
void nb_json_put_real(nb_buf *b, double v)
{
    char s[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    for (char *c = s; *c; c++)
        if (*c == ',') /* decimal point of a foreign locale */
            *c = '.';
    nb_buf_puts(b, s);
    if (!strpbrk(s, ".e"))
        nb_buf_puts(b, ".0");
}

typedef struct {
    nb_buf *b;
    int indent;
    bool compact;
} dumper;

static void dump_break(const dumper *d, int level, bool comma)
{
    if (comma)
        nb_buf_putc(d->b, ',');
    if (d->indent > 0)
        nb_buf_printf(d->b, "\n%*s", d->indent * level, "");
    else if (comma && !d->compact)
        nb_buf_putc(d->b, ' ');
}

static void dump(const dumper *d, json_t *v, int level)
{
    const size_t n = nb_json_len(nj(v));
    size_t i = 0;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        nb_buf_putc(d->b, '{');
        for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) {
            const char *key = json_object_iter_key(it);
            dump_break(d, level + 1, i++ > 0);
            nb_json_put_str(d->b, key, strlen(key));
            nb_buf_puts(d->b, d->compact ? ":" : ": ");
            dump(d, json_object_iter_value(it), level + 1);
        }
        if (n)
            dump_break(d, level, false);
        nb_buf_putc(d->b, '}');
        break;
    case JSON_ARRAY:
        nb_buf_putc(d->b, '[');
        for (; i < n; i++) {
            dump_break(d, level + 1, i > 0);
            dump(d, json_array_get(v, i), level + 1);
        }
        if (n)
            dump_break(d, level, false);
        nb_buf_putc(d->b, ']');
        break;
    case JSON_STRING:
        nb_json_put_str(d->b, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        nb_buf_printf(d->b, "%" PRId64, (int64_t)json_integer_value(v));
        break;
    case JSON_REAL:
        if (not_finite(nj(v)))
            nb_buf_puts(d->b, not_finite(nj(v)));
        else
            nb_json_put_real(d->b, json_real_value(v));
        break;
    default:
        nb_buf_puts(d->b, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    }
}

char *nb_json_dump(const nb_json *v, int indent, bool compact)
{
    nb_buf b = { 0 };
    const dumper d = { &b, indent, compact };

    dump(&d, v ? jj(v) : json_null(), 0);
    if (b.failed)
        nb_buf_clear(&b);
    return b.p;
}
