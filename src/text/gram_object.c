/* gram_object.c - JSON schema by type: objects, arrays, strings, numbers, lists of values. */
#include <stdio.h>
#include <string.h>

#include "text/gram_schema.h"

#define PROPERTIES_MOST 5000 /* hardening 4 */
#define VALUES_MOST     5000

/* A count such as minItems, at most NB_G_INF - 1. */
static bool count(nb_gschema *s, const nb_json *v, const char *key, uint32_t dflt, uint32_t *out)
{
    const nb_json *x = nb_json_get(v, key);
    const int64_t n = nb_json_int(x, 0);

    *out = dflt;
    if (!x)
        return true;
    if (n < 0)
        return nb_gs_invalid(s, key, "a count is not negative");
    *out = n < (int64_t)NB_G_INF ? (uint32_t)n : NB_G_INF - 1;
    return true;
}

static bool counts(nb_gschema *s, const nb_json *v, const char *min, const char *max, uint32_t *least, uint32_t *most)
{
    return count(s, v, min, 0, least) && count(s, v, max, NB_G_INF, most);
}

/* ---- scalars ---- */

static nb_gpart string_of(nb_gschema *s, const nb_json *v)
{
    const nb_json *pattern = nb_json_get(v, "pattern"), *format = nb_json_get(v, "format");
    nb_gbuild *b = s->j.b;
    uint32_t least, most;
    nb_gpart p;

    if (!counts(s, v, "minLength", "maxLength", &least, &most))
        return 0;
    if (least > most)
        return nb_g_never(b);
    if ((pattern != NULL) + (format != NULL) + (least > 0 || most != NB_G_INF) > 1)
        return nb_gs_lacking(s, pattern ? "pattern" : "format", "pattern, format and bounds of the length cannot be combined");
    if (pattern) {
        const nb_gpart q = nb_g_text(b, "\"");
        p = nb_g_pattern(b, nb_json_str(pattern, ""), nb_json_str_len(pattern), &s->j);
        return nb_g_seq(b, (const nb_gpart[]){ q, p, q }, 3);
    }
    if (format) {
        p = nb_gj_format(&s->j, nb_json_str(format, ""));
        return p ? p : nb_gs_lacking(s, "format", "this format is not supported");
    }
    return least == 0 && most == NB_G_INF ? nb_gj_string(&s->j) : nb_gj_string_of(&s->j, least, most);
}

/* The stricter of an inclusive and an exclusive bound, as text. */
static const char *bound_text(const nb_json *v, const char *incl, const char *excl, int sign, bool *open, char **text)
{
    const nb_json *a = nb_json_get(v, incl), *b = nb_json_get(v, excl);
    const nb_json *x = !a ? b : b && sign * (nb_json_num(b, 0) - nb_json_num(a, 0)) >= 0 ? b : a;

    *open = x && x == b;
    *text = x ? nb_json_dump(x, 0, true) : NULL;
    return *text;
}

static nb_gpart number_of(nb_gschema *s, const nb_json *v, bool integer)
{
    nb_gbounds r = { 0 };
    char *lo, *hi;
    nb_gpart p;

    r.lo = bound_text(v, "minimum", "exclusiveMinimum", 1, &r.lo_open, &lo);
    r.hi = bound_text(v, "maximum", "exclusiveMaximum", -1, &r.hi_open, &hi);
    if (!r.lo && !r.hi)
        p = integer ? nb_gj_integer(&s->j) : nb_gj_number(&s->j);
    else
        p = nb_gj_bounded(&s->j, &r, integer);
    nb_free(lo);
    nb_free(hi);
    return p;
}

/* ---- arrays ---- */

static nb_gpart with_comma(nb_gschema *s, nb_gpart item)
{
    const nb_gpart ws = nb_gj_ws(&s->j);

    return nb_g_seq(s->j.b, (const nb_gpart[]){ nb_g_text(s->j.b, ","), ws, item, ws }, 4);
}

static nb_gpart array_of(nb_gschema *s, const nb_json *v, int depth)
{
    const nb_json *items = nb_json_get(v, "items"), *prefix = nb_json_get(v, "prefixItems");
    nb_gbuild *b = s->j.b;
    const nb_gpart ws = nb_gj_ws(&s->j);
    uint32_t least, most, k = (uint32_t)nb_json_len(prefix);
    nb_gpart item, tail, inner;
    size_t at;

    if (!counts(s, v, "minItems", "maxItems", &least, &most))
        return 0;
    if (nb_json_bool(nb_json_get(v, "uniqueItems"), false))
        return nb_gs_lacking(s, "uniqueItems", "this keyword is not supported");
    if (least > most)
        return nb_g_never(b);
    at = nb_gs_enter(s, "items");
    item = items ? nb_g_shared(b, nb_gs_value(s, items, depth + 1)) : nb_gj_value(&s->j);
    nb_gs_leave(s, at);
    /* from the back: what may stand behind element i */
    tail = nb_g_never(b);
    if (most == NB_G_INF || most > k)
        tail = nb_g_rep(b, k ? with_comma(s, item) : item, least > k ? least - k : 0, most == NB_G_INF ? most : most - k);
    if (k == 0) {
        const uint32_t more = most == NB_G_INF ? most : most ? most - 1 : 0;
        if (most == 0)
            inner = nb_g_empty(b);
        else
            inner = nb_g_seq(b, (const nb_gpart[]){ item, ws, nb_g_rep(b, with_comma(s, item), least ? least - 1 : 0, more) }, 3);
        if (least == 0)
            inner = nb_g_opt(b, inner);
    } else {
        inner = most > k ? tail : nb_g_empty(b);
        at = nb_gs_enter(s, "prefixItems");
        for (uint32_t i = k; i-- > 0 && b->rc == NB_OK;) {
            const size_t in = nb_gs_enter_at(s, i);
            const nb_gpart e = nb_gs_value(s, nb_json_at(prefix, i), depth + 1);
            nb_gs_leave(s, in);
            if (i >= most) {
                inner = nb_g_empty(b);
                continue;
            }
            inner = nb_g_seq2(b, i ? with_comma(s, e) : nb_g_seq2(b, e, ws), inner);
            if (i >= least)
                inner = nb_g_opt(b, inner);
        }
        nb_gs_leave(s, at);
    }
    return nb_g_seq(b, (const nb_gpart[]){ nb_g_text(b, "["), ws, inner, nb_g_text(b, "]") }, 4);
}

/* ---- objects ---- */

static bool is_required(const nb_json *required, const char *key)
{
    for (size_t i = 0; i < nb_json_len(required); i++) {
        const nb_json *r = nb_json_at(required, i);
        if (nb_json_str_len(r) == strlen(key) && strcmp(nb_json_str(r, ""), key) == 0)
            return true;
    }
    return false;
}

static nb_gpart member(nb_gschema *s, nb_gpart key, nb_gpart value)
{
    const nb_gpart ws = nb_gj_ws(&s->j);

    return nb_g_seq(s->j.b, (const nb_gpart[]){ key, ws, nb_g_text(s->j.b, ":"), ws, value }, 5);
}

static nb_gpart named_member(nb_gschema *s, const char *key, const nb_json *schema, int depth)
{
    nb_buf text = { 0 };
    const size_t at = nb_gs_enter(s, key);
    nb_gpart p;

    nb_json_put_str(&text, key, strlen(key));
    p = text.failed ? nb_g_oom(s->j.b) : member(s, nb_g_lit(s->j.b, text.p, text.n), nb_gs_value(s, schema, depth + 1));
    nb_gs_leave(s, at);
    nb_buf_clear(&text);
    return p;
}

/* The members: of v, then what is only required. NULL: the error is recorded. */
static nb_json *all_properties(nb_gschema *s, const nb_json *v)
{
    const nb_json *required = nb_json_get(v, "required"), *other = nb_json_get(v, "additionalProperties");
    nb_json *all = nb_json_get(v, "properties") ? nb_json_copy(nb_json_get(v, "properties")) : nb_json_new_obj();
    bool ok = all != NULL;

    for (size_t i = 0; ok && i < nb_json_len(required); i++) {
        const nb_json *r = nb_json_at(required, i);
        if (nb_json_typeof(r) != NB_JSTR || strlen(nb_json_str(r, "")) != nb_json_str_len(r)) {
            nb_json_free(all);
            nb_gs_invalid(s, "required", "a list of names");
            return NULL;
        }
        if (!nb_json_get(all, nb_json_str(r, "")))
            ok = nb_json_set(all, nb_json_str(r, ""), other ? nb_json_copy(other) : nb_json_new_bool(true));
    }
    if (!ok) {
        nb_json_free(all);
        nb_g_oom(s->j.b);
        return NULL;
    }
    s->n_properties += nb_json_len(all);
    if (s->n_properties > PROPERTIES_MOST) {
        nb_json_free(all);
        nb_gs_too_complex(s, "too many properties");
        return NULL;
    }
    return all;
}

/* Two rules a property: what may stand from here on, when no member was written yet and when one was. */
static nb_gpart object_of(nb_gschema *s, const nb_json *v, int depth)
{
    const nb_json *other = nb_json_get(v, "additionalProperties"), *required = nb_json_get(v, "required");
    nb_gbuild *b = s->j.b;
    nb_json *all = all_properties(s, v);
    const nb_gpart ws = nb_gj_ws(&s->j);
    const bool open = !other || nb_json_typeof(other) == NB_JOBJ || nb_json_bool(other, false);
    nb_gpart first = nb_g_empty(b), rest = nb_g_empty(b);
    size_t at;

    if (!all)
        return 0;
    if (open) {
        at = nb_gs_enter(s, "additionalProperties");
        const nb_gpart m =
            nb_g_shared(b, member(s, nb_gj_string_but(&s->j, all), other ? nb_gs_value(s, other, depth + 1) : nb_gj_value(&s->j)));
        nb_gs_leave(s, at);
        rest = nb_g_rep(b, with_comma(s, m), 0, NB_G_INF);
        first = nb_g_opt(b, nb_g_seq(b, (const nb_gpart[]){ m, ws, rest }, 3));
    }
    at = nb_gs_enter(s, "properties");
    for (size_t i = nb_json_len(all); i-- > 0 && b->rc == NB_OK;) {
        const uint32_t f = nb_g_rule_new(b), r = nb_g_rule_new(b);
        const char *key;
        const nb_json *schema = nb_json_member(all, i, &key);
        const bool must = is_required(required, key);
        const nb_gpart m = nb_g_shared(b, named_member(s, key, schema, depth));
        const nb_gpart x = nb_g_seq(b, (const nb_gpart[]){ m, ws, rest }, 3), y = nb_g_seq2(b, with_comma(s, m), rest);
        if (b->rc != NB_OK)
            break;
        b->rules.v[f - 1] = must ? x : nb_g_alt2(b, x, first);
        b->rules.v[r - 1] = must ? y : nb_g_alt2(b, y, rest);
        first = nb_g_call(b, f);
        rest = nb_g_call(b, r);
    }
    nb_gs_leave(s, at);
    nb_json_free(all);
    return nb_g_seq(b, (const nb_gpart[]){ nb_g_text(b, "{"), ws, first, nb_g_text(b, "}") }, 4);
}

/* ---- types ---- */

static const char *const type_names[] = { "object", "array", "string", "number", "integer", "boolean", "null" };

static bool speaks_of(const nb_json *v, const char *const *keys)
{
    for (; *keys; keys++) {
        if (nb_json_get(v, *keys))
            return true;
    }
    return false;
}

/* Bits by type_names; without "type" those that the keywords speak of, else all. */
static bool types_of(nb_gschema *s, const nb_json *v, unsigned *out)
{
    static const char *const about[][8] = { { "properties", "required", "additionalProperties" },
                                            { "items", "prefixItems", "minItems", "maxItems", "uniqueItems" },
                                            { "pattern", "format", "minLength", "maxLength" },
                                            { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" } };
    const nb_json *type = nb_json_get(v, "type");
    const size_t n = nb_json_typeof(type) == NB_JARR ? nb_json_len(type) : 1;

    *out = 0;
    if (!type) {
        for (unsigned i = 0; i < NB_LEN(about); i++)
            *out |= (unsigned)speaks_of(v, about[i]) << i;
        *out = *out ? *out : 0x6Fu;
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        const nb_json *t = nb_json_typeof(type) == NB_JARR ? nb_json_at(type, i) : type;
        unsigned k = 0;
        while (k < NB_LEN(type_names) && strcmp(type_names[k], nb_json_str(t, "")) != 0)
            k++;
        if (k == NB_LEN(type_names))
            return nb_gs_invalid(s, "type", "not the name of a type");
        *out |= 1u << k;
    }
    if (*out & 1u << 3) /* every integer is a number */
        *out &= ~(1u << 4);
    return true;
}

nb_gpart nb_gs_typed(nb_gschema *s, const nb_json *v, int depth)
{
    nb_gbuild *b = s->j.b;
    nb_gpart list[7];
    unsigned types;
    size_t n = 0;

    if (!types_of(s, v, &types))
        return 0;
    if (types == 0x6Fu && !nb_json_get(v, "type"))
        return nb_gj_value(&s->j);
    for (unsigned k = 0; k < 7; k++) {
        if (!(types >> k & 1))
            continue;
        switch (k) {
        case 0:
            list[n++] = object_of(s, v, depth);
            break;
        case 1:
            list[n++] = array_of(s, v, depth);
            break;
        case 2:
            list[n++] = string_of(s, v);
            break;
        case 3:
        case 4:
            list[n++] = number_of(s, v, k == 4);
            break;
        case 5:
            list[n++] = nb_g_alt2(b, nb_g_text(b, "true"), nb_g_text(b, "false"));
            break;
        default:
            list[n++] = nb_g_text(b, "null");
            break;
        }
    }
    return nb_g_alt(b, list, n);
}

static bool has_type(unsigned types, const nb_json *v)
{
    const double x = nb_json_num(v, 0.5);

    switch (nb_json_typeof(v)) {
    case NB_JOBJ:
        return types & 1;
    case NB_JARR:
        return types >> 1 & 1;
    case NB_JSTR:
        return types >> 2 & 1;
    case NB_JBOOL:
        return types >> 5 & 1;
    case NB_JNULL:
        return types >> 6 & 1;
    case NB_JINT:
        return types >> 3 & 3;
    case NB_JREAL:
    default:
        return types >> 3 & 1 || (types >> 4 & 1 && x >= -9e15 && x <= 9e15 && x == (double)(int64_t)x);
    }
}

nb_gpart nb_gs_enum(nb_gschema *s, const nb_json *v, size_t meaning)
{
    const nb_json *list = nb_json_get(v, "enum"), *one = nb_json_get(v, "const");
    const bool typed = nb_json_get(v, "type") != NULL;
    nb_gbuild *b = s->j.b;
    nb_json *texts = nb_json_new_arr();
    const size_t n = list ? nb_json_len(list) : 1;
    nb_gvec alt = { 0 };
    unsigned types = 0x7F;
    nb_gpart p = 0;
    bool ok = texts != NULL;

    if (meaning > (size_t)typed + (list != NULL) + (one != NULL)) {
        nb_json_free(texts);
        return nb_gs_lacking(s, list ? "enum" : "const", "enum and const go with \"type\" only");
    }
    s->n_values += n;
    if (s->n_values > VALUES_MOST) {
        nb_json_free(texts);
        return nb_gs_too_complex(s, "too many values of enum");
    }
    if (typed && !types_of(s, v, &types))
        ok = false;
    for (size_t i = 0; ok && i < n; i++) {
        const nb_json *x = list ? nb_json_at(list, i) : one;
        if ((typed && !has_type(types, x)) || (list && one && !nb_json_equal(x, one)))
            continue;
        if (nb_json_typeof(x) == NB_JSTR)
            ok = nb_json_push(texts, nb_json_copy(x));
        else
            ok = nb_gvec_push(&alt, nb_gj_literal(&s->j, x));
    }
    if (ok && nb_json_len(texts))
        ok = nb_gvec_push(&alt, nb_g_choice(b, texts, true));
    if (!ok)
        nb_g_oom(b);
    else if (b->rc == NB_OK)
        p = nb_g_alt(b, alt.v, alt.n);
    nb_json_free(texts);
    nb_gvec_clear(&alt);
    return p;
}
