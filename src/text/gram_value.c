/* gram_value.c - JSON values as parts of a grammar: any value, strings by length and form, keys, literals. */
#include <string.h>

#include "text/gram.h"
#include "text/utf8.h"

#define WS_MOST  64  /* blanks in one place: more than any indentation, but not endless (SO-12) */
#define KEY_MOST 256 /* characters of a name that other keys must differ from */

static void define(nb_gjson *j, uint32_t rule, nb_gpart p)
{
    if (rule)
        j->b->rules.v[rule - 1] = p;
}

static nb_gpart ascii(nb_gbuild *b, const char *ranges)
{
    nb_gpart v[16];
    size_t n = 0;

    for (; ranges[0]; ranges += 2)
        v[n++] = nb_g_range(b, (unsigned char)ranges[0], (unsigned char)ranges[1]);
    return nb_g_alt(b, v, n);
}

nb_gpart nb_gj_ws(nb_gjson *j)
{
    if (j->b->lim.compact)
        return nb_g_empty(j->b);
    if (!j->ws) {
        j->ws = nb_g_rule_new(j->b);
        define(j, j->ws, nb_g_rep(j->b, ascii(j->b, "  \t\n\r\r"), 0, WS_MOST));
    }
    return nb_g_call(j->b, j->ws);
}

/* ---- strings ---- */

/* \uXXXX: no lone surrogates. */
static nb_gpart unicode_escape(nb_gbuild *b)
{
    const nb_gpart hex = ascii(b, "09afAF"), hex3 = nb_g_rep(b, hex, 3, 3), hex2 = nb_g_rep(b, hex, 2, 2);
    const nb_gpart d = ascii(b, "DDdd");
    const nb_gpart low[] = { nb_g_seq2(b, ascii(b, "09acefACEF"), hex3), nb_g_seq(b, (const nb_gpart[]){ d, ascii(b, "07"), hex2 }, 3) };
    const nb_gpart pair[] = { d, ascii(b, "89abAB"), hex2, nb_g_text(b, "\\u"), d, ascii(b, "cfCF"), hex2 };

    return nb_g_seq2(b, nb_g_text(b, "u"), nb_g_alt(b, (const nb_gpart[]){ low[0], low[1], nb_g_seq(b, pair, NB_LEN(pair)) }, 3));
}

/* One character in any form. */
static nb_gpart any_char(nb_gjson *j)
{
    nb_gbuild *b = j->b;
    nb_gset plain = { 0 };
    nb_gpart p, escape;

    if (j->character)
        return nb_g_call(b, j->character);
    j->character = nb_g_rule_new(b);
    if (!nb_gset_add(&plain, 0x20, 0x21) || !nb_gset_add(&plain, 0x23, 0x5B) || !nb_gset_add(&plain, 0x5D, 0x10FFFF))
        nb_g_oom(b);
    p = nb_g_chars(b, &plain, false);
    nb_gvec_clear(&plain.v);
    escape = nb_g_alt2(b, ascii(b, "\"\"\\\\//bbffnnrrtt"), unicode_escape(b));
    define(j, j->character, nb_g_alt2(b, p, nb_g_seq2(b, nb_g_text(b, "\\"), escape)));
    return nb_g_call(b, j->character);
}

nb_gpart nb_gj_characters(nb_gjson *j)
{
    if (!j->characters) {
        j->characters = nb_g_rule_new(j->b);
        define(j, j->characters, nb_g_rep(j->b, any_char(j), 0, NB_G_INF));
    }
    return nb_g_call(j->b, j->characters);
}

static nb_gpart quoted(nb_gbuild *b, nb_gpart inner)
{
    const nb_gpart q = nb_g_text(b, "\"");

    return nb_g_seq(b, (const nb_gpart[]){ q, inner, q }, 3);
}

nb_gpart nb_gj_string_of(nb_gjson *j, uint32_t least, uint32_t most)
{
    return quoted(j->b, nb_g_rep(j->b, any_char(j), least, most));
}

nb_gpart nb_gj_string(nb_gjson *j)
{
    if (!j->string) {
        j->string = nb_g_rule_new(j->b);
        define(j, j->string, quoted(j->b, nb_gj_characters(j)));
    }
    return nb_g_call(j->b, j->string);
}

/* Names as code points, sorted; those of one branch share the first `at`. */
typedef struct key_text {
    uint32_t cp[KEY_MOST + 1]; /* ended by UINT32_MAX */
} key_text;

static int compare(const key_text *a, const key_text *b)
{
    for (size_t i = 0;; i++) {
        if (a->cp[i] != b->cp[i])
            return a->cp[i] + 1 < b->cp[i] + 1 ? -1 : 1; /* the end sorts first */
        if (a->cp[i] == UINT32_MAX)
            return 0;
    }
}

/* What may stand behind the first `at` characters of v[n]: not one of their ends. A rule of its own. */
static nb_gpart behind(nb_gbuild *b, const key_text *const *v, size_t n, size_t at, nb_gpart rest)
{
    const uint32_t rule = nb_g_rule_new(b);
    const bool ends = v[0]->cp[at] == UINT32_MAX;
    nb_gset other = { 0 };
    nb_gvec alt = { 0 };
    bool ok = ends || nb_gvec_push(&alt, nb_g_empty(b));
    nb_gpart p;

    for (size_t i = ends, k; ok && i < n && b->rc == NB_OK; i = k) {
        const uint32_t c = v[i]->cp[at];
        nb_gset one = { 0 };
        for (k = i + 1; k < n && v[k]->cp[at] == c; k++)
            ;
        ok = nb_gset_add(&one, c, c) && nb_gset_add(&other, c, c) &&
             nb_gvec_push(&alt, nb_g_seq2(b, nb_g_chars(b, &one, true), behind(b, v + i, k - i, at + 1, rest)));
        nb_gvec_clear(&one.v);
    }
    ok = ok && nb_gset_invert(&other) && nb_gvec_push(&alt, nb_g_seq2(b, nb_g_chars(b, &other, true), rest));
    if (!ok)
        nb_g_oom(b);
    p = b->rc == NB_OK ? nb_g_alt(b, alt.v, alt.n) : 0;
    if (rule)
        b->rules.v[rule - 1] = p;
    nb_gvec_clear(&other.v);
    nb_gvec_clear(&alt);
    return nb_g_call(b, rule);
}

nb_gpart nb_gj_string_but(nb_gjson *j, const nb_json *names)
{
    const size_t n = nb_json_len(names);
    nb_gbuild *b = j->b;
    key_text *all = nb_alloc_array(n ? n : 1, sizeof *all);
    const key_text **v = nb_alloc_array(n ? n : 1, sizeof *v);
    nb_gpart p = 0;

    if (!all || !v)
        nb_g_oom(b);
    for (size_t i = 0; b->rc == NB_OK && i < n; i++) {
        const char *key;
        size_t k = 0, len;
        nb_json_member(names, i, &key);
        len = strlen(key);
        for (size_t at = 0; at < len && k <= KEY_MOST; k++)
            at += (size_t)nb_u8_next(key + at, len - at, &all[i].cp[k < KEY_MOST ? k : KEY_MOST], NULL);
        if (k > KEY_MOST) {
            nb_g_fail(b, NB_ELIMIT, "grammar.too_complex", "a property's name has more than %d characters", KEY_MOST);
            break;
        }
        all[i].cp[k] = UINT32_MAX;
        size_t to = i; /* sorted as they come; names are few */
        for (; to > 0 && compare(v[to - 1], &all[i]) > 0; to--)
            v[to] = v[to - 1];
        v[to] = &all[i];
    }
    if (b->rc == NB_OK) {
        p = n ? quoted(b, behind(b, v, n, 0, nb_gj_characters(j))) : nb_gj_string(j);
    }
    nb_free(all);
    nb_free(v);
    return p;
}

nb_gpart nb_gj_format(nb_gjson *j, const char *name)
{
#define DATE "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])"
#define TIME "([01]\\d|2[0-3]):[0-5]\\d:([0-5]\\d|60)(\\.\\d{1,9})?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define HOST "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H16  "[0-9A-Fa-f]{1,4}"
    static const struct {
        const char *name, *re;
    } formats[] = {
        { "date", DATE },
        { "time", TIME },
        { "date-time", DATE "[Tt]" TIME },
        { "duration", "P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?"
                      "|T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))" },
        { "email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" HOST },
        { "hostname", HOST },
        { "ipv4", IPV4 },
        { "ipv6", "(" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}(:" H16 "){1}|(" H16 ":){1,5}(:" H16 "){1,2}|(" H16 ":){1,4}(:" H16
                  "){1,3}|(" H16 ":){1,3}(:" H16 "){1,4}|(" H16 ":){1,2}(:" H16 "){1,5}|" H16 ":(:" H16 "){1,6}|:(:" H16 "){1,7}|::" },
        { "uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}" },
        { "uri", "[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+" },
    };

    for (size_t i = 0; i < NB_LEN(formats); i++) {
        if (strcmp(formats[i].name, name) == 0)
            return quoted(j->b, nb_g_regex(j->b, formats[i].re, strlen(formats[i].re), j));
    }
    return 0;
}

/* ---- numbers without bounds ---- */

nb_gpart nb_gj_integer(nb_gjson *j)
{
    nb_gbuild *b = j->b;
    const nb_gpart digits = nb_g_rep(b, ascii(b, "09"), 0, NB_GJ_DIGITS - 1);

    return nb_g_seq2(b, nb_g_opt(b, nb_g_text(b, "-")), nb_g_alt2(b, nb_g_text(b, "0"), nb_g_seq2(b, ascii(b, "19"), digits)));
}

nb_gpart nb_gj_number(nb_gjson *j)
{
    nb_gbuild *b = j->b;

    if (!j->number) {
        const nb_gpart digits = nb_g_rep(b, ascii(b, "09"), 1, NB_GJ_DIGITS);
        const nb_gpart exponent[] = { ascii(b, "eeEE"), nb_g_opt(b, ascii(b, "++--")), nb_g_rep(b, ascii(b, "09"), 1, 2) };
        j->number = nb_g_rule_new(b);
        define(j, j->number,
               nb_g_seq(b,
                        (const nb_gpart[]){ nb_gj_integer(j), nb_g_opt(b, nb_g_seq2(b, nb_g_text(b, "."), digits)),
                                            nb_g_opt(b, nb_g_seq(b, exponent, 3)) },
                        3));
    }
    return nb_g_call(b, j->number);
}

/* ---- any value ---- */

/* open ws [item ws ("," ws item ws)*] close */
static nb_gpart list_of(nb_gjson *j, const char *open, nb_gpart item, const char *close)
{
    nb_gbuild *b = j->b;
    const nb_gpart ws = nb_gj_ws(j);
    const nb_gpart more[] = { nb_g_text(b, ","), ws, item, ws };
    const nb_gpart all[] = { item, ws, nb_g_rep(b, nb_g_seq(b, more, 4), 0, NB_G_INF) };
    const nb_gpart whole[] = { nb_g_text(b, open), ws, nb_g_opt(b, nb_g_seq(b, all, 3)), nb_g_text(b, close) };

    return nb_g_seq(b, whole, 4);
}

nb_gpart nb_gj_object(nb_gjson *j)
{
    nb_gbuild *b = j->b;

    if (j->b->rc != NB_OK) /* values hold values: do not go round when no rule can be made */
        return 0;
    if (!j->object) {
        j->object = nb_g_rule_new(b);
        const nb_gpart ws = nb_gj_ws(j);
        const nb_gpart member[] = { nb_gj_string(j), ws, nb_g_text(b, ":"), ws, nb_gj_value(j) };
        define(j, j->object, list_of(j, "{", nb_g_seq(b, member, 5), "}"));
    }
    return nb_g_call(b, j->object);
}

nb_gpart nb_gj_array(nb_gjson *j)
{
    if (j->b->rc != NB_OK)
        return 0;
    if (!j->array) {
        j->array = nb_g_rule_new(j->b);
        define(j, j->array, list_of(j, "[", nb_gj_value(j), "]"));
    }
    return nb_g_call(j->b, j->array);
}

nb_gpart nb_gj_value(nb_gjson *j)
{
    nb_gbuild *b = j->b;

    if (j->b->rc != NB_OK)
        return 0;
    if (!j->value) {
        j->value = nb_g_rule_new(b);
        const nb_gpart v[] = { nb_gj_object(j),      nb_gj_array(j),        nb_gj_string(j),     nb_gj_number(j),
                               nb_g_text(b, "true"), nb_g_text(b, "false"), nb_g_text(b, "null") };
        define(j, j->value, nb_g_alt(b, v, NB_LEN(v)));
    }
    return nb_g_call(b, j->value);
}

/* ---- literals ---- */

nb_gpart nb_gj_literal(nb_gjson *j, const nb_json *v)
{
    nb_gbuild *b = j->b;
    const nb_json_type t = nb_json_typeof(v);
    const nb_gpart ws = nb_gj_ws(j);
    nb_gvec parts = { 0 };
    nb_buf text = { 0 };
    nb_gpart p;
    bool ok;

    if (t != NB_JOBJ && t != NB_JARR) {
        char *s = nb_json_dump(v, 0, true);
        p = s ? nb_g_text(b, s) : nb_g_oom(b);
        nb_free(s);
        return p;
    }
    ok = nb_gvec_push(&parts, nb_g_text(b, t == NB_JOBJ ? "{" : "[")) && nb_gvec_push(&parts, ws);
    for (size_t i = 0; ok && b->rc == NB_OK && i < nb_json_len(v); i++) {
        const char *key;
        const nb_json *e = t == NB_JOBJ ? nb_json_member(v, i, &key) : nb_json_at(v, i);
        if (i > 0)
            ok = nb_gvec_push(&parts, nb_g_text(b, ",")) && nb_gvec_push(&parts, ws);
        if (t == NB_JOBJ) {
            text.n = 0;
            nb_json_put_str(&text, key, strlen(key));
            ok = ok && !text.failed && nb_gvec_push(&parts, nb_g_lit(b, text.p, text.n)) && nb_gvec_push(&parts, ws) &&
                 nb_gvec_push(&parts, nb_g_text(b, ":")) && nb_gvec_push(&parts, ws);
        }
        ok = ok && nb_gvec_push(&parts, nb_gj_literal(j, e)) && nb_gvec_push(&parts, ws);
    }
    ok = ok && nb_gvec_push(&parts, nb_g_text(b, t == NB_JOBJ ? "}" : "]"));
    if (!ok)
        nb_g_oom(b);
    p = b->rc == NB_OK ? nb_g_seq(b, parts.v, parts.n) : 0;
    nb_gvec_clear(&parts);
    nb_buf_clear(&text);
    return p;
}
