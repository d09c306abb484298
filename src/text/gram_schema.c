/* gram_schema.c - JSON schema: keywords, references, alternatives, merging of allOf. Objects, arrays and scalars: gram_object.c.
 *
 * What is implemented is enforced whole; any other keyword that has a meaning is refused by name (SO-02). oneOf counts as
 * anyOf. A schema without "type" has the types that its keywords speak of. Properties come in the order of the schema. */
#include "text/gram_schema.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define T_STR (1u << NB_JSTR)
#define T_ARR (1u << NB_JARR)
#define T_OBJ (1u << NB_JOBJ)
#define T_BOO (1u << NB_JBOOL)
#define T_INT (1u << NB_JINT)
#define T_NUM (1u << NB_JINT | 1u << NB_JREAL)
#define T_ANY (~0u)

enum { PLAIN, NOTE }; /* a keyword with a meaning; one without */

static const struct keyword {
    const char *name;
    unsigned types; /* JSON types that its value may have */
    int kind;
} keywords[] = {
    { "type", T_STR | T_ARR, PLAIN },
    { "enum", T_ARR, PLAIN },
    { "const", T_ANY, PLAIN },
    { "properties", T_OBJ, PLAIN },
    { "required", T_ARR, PLAIN },
    { "additionalProperties", T_OBJ | T_BOO, PLAIN },
    { "items", T_OBJ | T_BOO, PLAIN },
    { "prefixItems", T_ARR, PLAIN },
    { "minItems", T_INT, PLAIN },
    { "maxItems", T_INT, PLAIN },
    { "uniqueItems", T_BOO, PLAIN },
    { "minLength", T_INT, PLAIN },
    { "maxLength", T_INT, PLAIN },
    { "pattern", T_STR, PLAIN },
    { "format", T_STR, PLAIN },
    { "minimum", T_NUM, PLAIN },
    { "maximum", T_NUM, PLAIN },
    { "exclusiveMinimum", T_NUM, PLAIN },
    { "exclusiveMaximum", T_NUM, PLAIN },
    { "anyOf", T_ARR, PLAIN },
    { "oneOf", T_ARR, PLAIN },
    { "allOf", T_ARR, PLAIN },
    { "$ref", T_STR, PLAIN },
    { "$defs", T_OBJ, NOTE },
    { "definitions", T_OBJ, NOTE },
    { "title", T_ANY, NOTE },
    { "description", T_ANY, NOTE },
    { "default", T_ANY, NOTE },
    { "example", T_ANY, NOTE },
    { "examples", T_ANY, NOTE },
    { "deprecated", T_ANY, NOTE },
    { "readOnly", T_ANY, NOTE },
    { "writeOnly", T_ANY, NOTE },
    { "discriminator", T_ANY, NOTE },
    { "$comment", T_ANY, NOTE },
    { "$schema", T_ANY, NOTE },
    { "$id", T_ANY, NOTE },
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < NB_LEN(keywords); i++) {
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    }
    return NULL;
}

/* ---- where, and errors ---- */

size_t nb_gs_enter(nb_gschema *s, const char *key)
{
    const size_t at = s->path.n;

    nb_buf_putc(&s->path, '/');
    for (; *key; key++) {
        if (*key == '~' || *key == '/')
            nb_buf_puts(&s->path, *key == '~' ? "~0" : "~1");
        else
            nb_buf_putc(&s->path, *key);
    }
    return at;
}

size_t nb_gs_enter_at(nb_gschema *s, size_t i)
{
    char text[24];

    snprintf(text, sizeof text, "%zu", i);
    return nb_gs_enter(s, text);
}

void nb_gs_leave(nb_gschema *s, size_t at)
{
    s->path.n = at;
    if (s->path.p)
        s->path.p[at] = 0;
}

nb_gpart nb_gs_fail(nb_gschema *s, nb_status code, const char *cls, const char *key, const char *what)
{
    char esc[NB_ESC_CAP];
    nb_buf p = { 0 };

    nb_buf_puts(&p, "#");
    nb_buf_put(&p, s->path.p ? s->path.p : "", s->path.n);
    if (*key) {
        nb_buf_putc(&p, '/');
        nb_buf_puts(&p, key);
    }
    nb_g_fail(s->j.b, code, cls, "the schema at %s: %s", nb_esc(esc, sizeof esc, p.p ? p.p : "", p.n), what);
    nb_buf_clear(&p);
    return 0;
}

nb_gpart nb_gs_invalid(nb_gschema *s, const char *key, const char *what)
{
    return nb_gs_fail(s, NB_EARG, "grammar.invalid", key, what);
}

nb_gpart nb_gs_lacking(nb_gschema *s, const char *key, const char *what)
{
    return nb_gs_fail(s, NB_EUNSUPPORTED, "grammar.unsupported", key, what);
}

nb_gpart nb_gs_too_complex(nb_gschema *s, const char *what)
{
    return nb_gs_fail(s, NB_ELIMIT, "grammar.too_complex", "", what);
}

/* Every keyword is known and has a value of its type. *meaning counts those that have one. */
static bool check_keywords(nb_gschema *s, const nb_json *v, size_t *meaning)
{
    *meaning = 0;
    if (nb_json_typeof(v) != NB_JOBJ)
        return nb_gs_invalid(s, "", "a schema is an object, true or false");
    for (size_t i = 0; i < nb_json_len(v); i++) {
        const char *key;
        const nb_json *x = nb_json_member(v, i, &key);
        const struct keyword *k = find_keyword(key);
        if (!k && strncmp(key, "x-", 2) == 0)
            continue;
        if (!k)
            return nb_gs_lacking(s, key, "this keyword is not supported");
        if (!(k->types >> nb_json_typeof(x) & 1)) {
            if (strcmp(key, "items") == 0 && nb_json_typeof(x) == NB_JARR)
                return nb_gs_lacking(s, key, "a list of items is not supported, prefixItems is");
            return nb_gs_invalid(s, key, "the value of this keyword has the wrong type");
        }
        *meaning += k->kind == PLAIN;
    }
    return true;
}

/* ---- references ---- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* One step of a JSON pointer in a fragment: up to the next slash, escapes undone. */
static const char *pointer_step(const char *p, nb_buf *out)
{
    out->n = 0;
    nb_buf_puts(out, "");
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '%' && hex_value(p[1]) >= 0 && hex_value(p[2]) >= 0) {
            c = (char)(hex_value(p[1]) << 4 | hex_value(p[2]));
            p += 2;
        } else if (c == '~' && (p[1] == '0' || p[1] == '1')) {
            c = *++p == '0' ? '~' : '/';
        }
        nb_buf_putc(out, c);
    }
    return p;
}

static const nb_json *child(const nb_json *v, const char *name)
{
    size_t i = 0;

    if (nb_json_typeof(v) != NB_JARR)
        return nb_json_get(v, name);
    for (const char *p = name; *p; p++) {
        if (*p < '0' || *p > '9' || i > 100000)
            return NULL;
        i = i * 10 + (size_t)(*p - '0');
    }
    return *name ? nb_json_at(v, i) : NULL;
}

/* What "$ref" names; NULL: the error is recorded. */
static const nb_json *resolve(nb_gschema *s, const nb_json *v)
{
    const char *ref = nb_json_str(nb_json_get(v, "$ref"), ""), *p = ref + 1;
    const nb_json *at = s->root;
    nb_buf step = { 0 };

    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        nb_gs_lacking(s, "$ref", "only references into the schema itself (#/...) are followed, nothing is fetched");
        return NULL;
    }
    while (at && *p) {
        p = pointer_step(p + 1, &step);
        at = step.failed ? NULL : child(at, step.p ? step.p : "");
    }
    nb_buf_clear(&step);
    if (!at)
        nb_gs_invalid(s, "$ref", "the reference names nothing in the schema");
    return at;
}

/* A rule for what the reference names; compiled later, so that chains of references need no stack. */
static nb_gpart reference(nb_gschema *s, const nb_json *v)
{
    const nb_json *to = resolve(s, v);
    uint32_t rule;

    if (!to)
        return 0;
    for (size_t i = 0; i < s->n_refs; i++) {
        if (s->refs[i].to == to)
            return nb_g_call(s->j.b, s->refs[i].rule);
    }
    rule = nb_g_rule_new(s->j.b);
    if (!rule)
        return 0;
    if (s->n_refs == s->cap_refs) {
        const size_t cap = s->cap_refs ? s->cap_refs * 2 : 16;
        void *p = nb_realloc(s->refs, cap * sizeof *s->refs);
        if (!p)
            return nb_g_oom(s->j.b);
        s->refs = p;
        s->cap_refs = cap;
    }
    s->refs[s->n_refs].to = to;
    s->refs[s->n_refs].path = nb_strdup(nb_json_str(nb_json_get(v, "$ref"), "") + 1);
    if (!s->refs[s->n_refs].path)
        return nb_g_oom(s->j.b);
    s->refs[s->n_refs++].rule = rule;
    return nb_g_call(s->j.b, rule);
}

/* ---- merging: allOf, and what stands beside $ref, anyOf, oneOf ---- */

static bool set_both(nb_gschema *s, nb_json *to, const char *key, const nb_json *a, const nb_json *b)
{
    nb_json *both = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = nb_json_push(list, nb_json_copy(a)) && nb_json_push(list, nb_json_copy(b));

    if (!ok)
        nb_json_free(list);
    ok = nb_json_set(both, "allOf", ok ? list : NULL);
    if (!ok) {
        nb_json_free(both);
        both = NULL;
    }
    return nb_json_set(to, key, both) ? true : nb_g_oom(s->j.b);
}

static bool has_type(const nb_json *types, const char *name)
{
    if (nb_json_typeof(types) == NB_JSTR)
        return strcmp(nb_json_str(types, ""), name) == 0;
    for (size_t i = 0; i < nb_json_len(types); i++) {
        if (strcmp(nb_json_str(nb_json_at(types, i), ""), name) == 0)
            return true;
    }
    return false;
}

static bool merge_types(nb_gschema *s, nb_json *to, const nb_json *a, const nb_json *b)
{
    static const char *const names[] = { "null", "boolean", "object", "array", "string", "number", "integer" };
    nb_json *out = nb_json_new_arr();
    bool ok = out != NULL;

    for (size_t i = 0; ok && i < NB_LEN(names); i++) {
        const char *n = names[i];
        const bool whole = strcmp(n, "integer") == 0;
        const bool in_a = has_type(a, n) || (whole && has_type(a, "number")), in_b = has_type(b, n) || (whole && has_type(b, "number"));
        if (in_a && in_b && !(whole && has_type(a, "number") && has_type(b, "number")))
            ok = nb_json_push(out, nb_json_new_str(n));
    }
    if (!ok) {
        nb_json_free(out);
        return nb_g_oom(s->j.b);
    }
    return nb_json_set(to, "type", out) ? true : nb_g_oom(s->j.b);
}

/* Values of both lists. */
static bool merge_enums(nb_gschema *s, nb_json *to, const nb_json *a, const nb_json *b)
{
    nb_json *out = nb_json_new_arr();
    bool ok = out != NULL;

    for (size_t i = 0; ok && i < nb_json_len(a); i++) {
        for (size_t k = 0; k < nb_json_len(b); k++) {
            if (nb_json_equal(nb_json_at(a, i), nb_json_at(b, k))) {
                ok = nb_json_push(out, nb_json_copy(nb_json_at(a, i)));
                break;
            }
        }
    }
    if (!ok) {
        nb_json_free(out);
        return nb_g_oom(s->j.b);
    }
    return nb_json_set(to, "enum", out) ? true : nb_g_oom(s->j.b);
}

static bool is_closed(const nb_json *v)
{
    const nb_json *x = nb_json_get(v, "additionalProperties");

    return x && !nb_json_bool(x, false);
}

/* Are all properties of a known to b? */
static bool covers(const nb_json *b, const nb_json *a)
{
    const nb_json *p = nb_json_get(a, "properties"), *q = nb_json_get(b, "properties");

    for (size_t i = 0; i < nb_json_len(p); i++) {
        const char *key;
        nb_json_member(p, i, &key);
        if (!nb_json_get(q, key))
            return false;
    }
    return true;
}

static bool merge_properties(nb_gschema *s, nb_json *to, const nb_json *from)
{
    nb_json *all = nb_json_copy(nb_json_get(to, "properties"));
    bool ok = all != NULL;

    for (size_t i = 0; ok && i < nb_json_len(from); i++) {
        const char *key;
        const nb_json *v = nb_json_member(from, i, &key), *old = nb_json_get(all, key);
        ok = old && !nb_json_equal(old, v) ? set_both(s, all, key, old, v) : nb_json_set(all, key, nb_json_copy(v));
    }
    if (ok)
        ok = nb_json_set(to, "properties", all);
    else
        nb_json_free(all);
    return ok ? true : nb_g_oom(s->j.b);
}

static bool merge_lists(nb_gschema *s, nb_json *to, const char *key, const nb_json *a, const nb_json *b)
{
    nb_json *all = nb_json_copy(a);
    bool ok = all != NULL;

    for (size_t i = 0; ok && i < nb_json_len(b); i++)
        ok = nb_json_push(all, nb_json_copy(nb_json_at(b, i)));
    if (!ok) {
        nb_json_free(all);
        return nb_g_oom(s->j.b);
    }
    return nb_json_set(to, key, all) ? true : nb_g_oom(s->j.b);
}

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* Both have the keyword. */
static bool merge_keyword(nb_gschema *s, nb_json *to, const char *key, const nb_json *a, const nb_json *b)
{
    const bool least = starts(key, "min") || strcmp(key, "exclusiveMinimum") == 0;
    const bool most = starts(key, "max") || strcmp(key, "exclusiveMaximum") == 0;

    if (nb_json_equal(a, b))
        return true;
    if (least || most) {
        const bool second = least ? nb_json_num(b, 0) > nb_json_num(a, 0) : nb_json_num(b, 0) < nb_json_num(a, 0);
        return !second || nb_json_set(to, key, nb_json_copy(b)) ? true : nb_g_oom(s->j.b);
    }
    if (strcmp(key, "type") == 0)
        return merge_types(s, to, a, b);
    if (strcmp(key, "enum") == 0)
        return merge_enums(s, to, a, b);
    if (strcmp(key, "properties") == 0)
        return merge_properties(s, to, b);
    if (strcmp(key, "required") == 0)
        return merge_lists(s, to, key, a, b);
    if (strcmp(key, "items") == 0 || strcmp(key, "additionalProperties") == 0)
        return set_both(s, to, key, a, b);
    if (strcmp(key, "const") == 0) /* two values: none */
        return nb_json_set(to, "enum", nb_json_new_arr()) ? true : nb_g_oom(s->j.b);
    return nb_gs_lacking(s, key, "several of these cannot be combined");
}

/* Make `to` also demand what v demands. */
static bool merge(nb_gschema *s, nb_json *to, const nb_json *v, int depth)
{
    size_t meaning;

    if (nb_json_typeof(v) == NB_JBOOL)
        return nb_json_bool(v, true) || nb_json_set(to, "enum", nb_json_new_arr()) ? true : nb_g_oom(s->j.b);
    if (depth > s->j.b->lim.depth)
        return nb_gs_invalid(s, "", "allOf and references go in a circle, or too deep");
    if (!check_keywords(s, v, &meaning))
        return false;
    if ((is_closed(to) && !covers(to, v)) || (is_closed(v) && !covers(v, to)))
        return nb_gs_lacking(s, "additionalProperties", "additionalProperties beside properties of another part of allOf");
    for (size_t i = 0; i < nb_json_len(v); i++) {
        const char *key;
        const nb_json *x = nb_json_member(v, i, &key), *old;
        const struct keyword *k = find_keyword(key);
        if (!k || k->kind == NOTE)
            continue;
        if (strcmp(key, "$ref") == 0) {
            x = resolve(s, v);
            if (!x || !merge(s, to, x, depth + 1))
                return false;
            continue;
        }
        if (strcmp(key, "allOf") == 0) {
            for (size_t e = 0; e < nb_json_len(x); e++) {
                if (!merge(s, to, nb_json_at(x, e), depth + 1))
                    return false;
            }
            continue;
        }
        old = nb_json_get(to, key);
        if (old ? !merge_keyword(s, to, key, old, x) : !nb_json_set(to, key, nb_json_copy(x)))
            return nb_g_oom(s->j.b);
    }
    return true;
}

/* v without its combining keyword, and also x (NULL: v's own combinations). */
static nb_gpart combined(nb_gschema *s, const nb_json *v, const char *key, const nb_json *x, int depth)
{
    nb_json *own = nb_json_copy(v), *all = nb_json_new_obj();
    nb_gpart p = 0;

    if (!own || !all)
        nb_g_oom(s->j.b);
    else if (!x)
        p = merge(s, all, v, 0) ? nb_gs_value(s, all, depth + 1) : 0;
    else if (nb_json_remove(own, key) && merge(s, all, own, 0) && merge(s, all, x, 0))
        p = nb_gs_value(s, all, depth + 1);
    nb_json_free(own);
    nb_json_free(all);
    return p;
}

static nb_gpart any_of(nb_gschema *s, const nb_json *v, const char *key, bool alone, int depth)
{
    const nb_json *list = nb_json_get(v, key);
    nb_gvec alt = { 0 };
    const size_t at = nb_gs_enter(s, key);
    nb_gpart p;

    if (nb_json_len(list) == 0)
        nb_gs_invalid(s, "", "the list is empty");
    for (size_t i = 0; i < nb_json_len(list) && s->j.b->rc == NB_OK; i++) {
        const size_t in = nb_gs_enter_at(s, i);
        const nb_json *x = nb_json_at(list, i);
        if (!nb_gvec_push(&alt, alone ? nb_gs_value(s, x, depth + 1) : combined(s, v, key, x, depth)))
            nb_g_oom(s->j.b);
        nb_gs_leave(s, in);
    }
    nb_gs_leave(s, at);
    p = s->j.b->rc == NB_OK ? nb_g_alt(s->j.b, alt.v, alt.n) : 0;
    nb_gvec_clear(&alt);
    return p;
}

/* ---- one schema ---- */

nb_gpart nb_gs_value(nb_gschema *s, const nb_json *v, int depth)
{
    size_t meaning;

    if (s->j.b->rc != NB_OK)
        return 0;
    if (depth > s->j.b->lim.depth)
        return nb_gs_too_complex(s, "schemas are nested too deep");
    if (nb_now() > s->j.b->deadline)
        return nb_gs_too_complex(s, "it takes too long to compile");
    if (nb_json_typeof(v) == NB_JBOOL)
        return nb_json_bool(v, true) ? nb_gj_value(&s->j) : nb_g_never(s->j.b);
    if (!check_keywords(s, v, &meaning))
        return 0;
    if (nb_json_get(v, "$ref"))
        return meaning == 1 ? reference(s, v) : combined(s, v, "", NULL, depth);
    if (nb_json_get(v, "allOf"))
        return combined(s, v, "", NULL, depth);
    if (nb_json_get(v, "anyOf"))
        return any_of(s, v, "anyOf", meaning == 1, depth);
    if (nb_json_get(v, "oneOf"))
        return any_of(s, v, "oneOf", meaning == 1, depth);
    if (nb_json_get(v, "enum") || nb_json_get(v, "const"))
        return nb_gs_enum(s, v, meaning);
    return nb_gs_typed(s, v, depth);
}

nb_gpart nb_gs_whole(nb_gschema *s, const nb_json *root, const nb_json *schema)
{
    nb_gbuild *b = s->j.b;
    nb_gpart p;

    s->root = root;
    p = nb_gs_value(s, schema, 1);
    for (size_t i = 0; i < s->n_refs && b->rc == NB_OK; i++) { /* more are added while they are compiled */
        s->path.n = 0;
        nb_buf_puts(&s->path, s->refs[i].path);
        const nb_gpart body = nb_gs_value(s, s->refs[i].to, 1);
        b->rules.v[s->refs[i].rule - 1] = body;
    }
    for (size_t i = 0; i < s->n_refs; i++)
        nb_free(s->refs[i].path);
    nb_free(s->refs);
    nb_buf_clear(&s->path);
    return b->rc == NB_OK ? p : 0;
}

nb_gpart nb_g_schema(nb_gbuild *b, const nb_json *schema)
{
    nb_gschema s = { .j = { .b = b } };
    const nb_gpart p = nb_gs_whole(&s, schema, schema);

    return p ? nb_g_seq2(b, nb_gj_ws(&s.j), p) : 0;
}
