/* gram_tools.c - tool calls as grammars, in the forms that reply_calls.c reads. */
#include <stdlib.h>
#include <string.h>

#include "text/gram_schema.h"
#include "text/tool_grammar.h"
#include "text/utf8.h"

#define BAR   "\xEF\xBD\x9C"
#define LOW   "\xE2\x96\x81"
#define DS(x) "<" BAR "tool" LOW x BAR ">"

typedef struct maker {
    nb_gbuild *b;
    const nb_gvocab *vocab;
    nb_gjson j;
    const nb_tool_grammar_opts *o;
} maker;

/* A marker: the special token of this text where there is one, else its letters. */
static nb_gpart mark(maker *m, const char *text)
{
    nb_buf special = { 0 };
    nb_gpart p;

    nb_buf_putc(&special, (char)NB_G_CONTROL);
    nb_buf_puts(&special, text);
    if (special.failed)
        p = nb_g_oom(m->b);
    else if (m->vocab && nb_gvocab_has(m->vocab, special.p, special.n))
        p = nb_g_lit(m->b, special.p, special.n);
    else
        p = nb_g_text(m->b, text);
    nb_buf_clear(&special);
    return p;
}

static nb_gpart seq(maker *m, const nb_gpart *v, size_t n)
{
    return nb_g_seq(m->b, v, n);
}
#define SEQ(m, ...) seq(m, (const nb_gpart[]){ __VA_ARGS__ }, sizeof((const nb_gpart[]){ __VA_ARGS__ }) / sizeof(nb_gpart))

static const char *tool_name(const nb_json *f)
{
    return nb_json_str(nb_json_get(f, "name"), "");
}

/* ---- arguments ---- */

/* Does a grammar hold the schema? */
static bool holds(maker *m, const nb_json *schema)
{
    nb_grammar *g = NULL;
    const bool yes = nb_grammar_new_schema(NULL, schema, &m->b->lim, &g, NULL) == NB_OK;

    nb_grammar_unref(g);
    return yes;
}

static nb_gpart schema_part(maker *m, const nb_json *root, const nb_json *schema)
{
    nb_gschema s = { .j = m->j };
    nb_gpart p;

    p = nb_gs_whole(&s, root, schema);
    m->j = s.j;
    return nb_g_shared(m->b, p);
}

/* The arguments of a function as JSON. */
static nb_gpart json_arguments(maker *m, const nb_json *f)
{
    const nb_json *params = nb_json_get(f, "parameters");

    if (nb_json_is_null(params) || (!holds(m, params) && !nb_json_bool(nb_json_get(f, "strict"), false)))
        return nb_gj_object(&m->j);
    return schema_part(m, params, params);
}

/* Text without `end` in it: one rule for each part of `end` that the text may end with. */
static nb_gpart text_without(maker *m, const char *end)
{
    const size_t n = strlen(end);
    uint32_t rule[64];
    nb_gbuild *b = m->b;

    for (size_t i = 0; i < n; i++)
        rule[i] = nb_g_rule_new(b);
    for (size_t i = 0; i < n && b->rc == NB_OK; i++) {
        nb_gset other = { 0 };
        nb_gpart alt[66];
        size_t k = 0;
        alt[k++] = nb_g_empty(b);
        bool ok = nb_gset_add(&other, 0, 0);
        for (size_t c = 0; ok && c < n; c++) {
            if (memchr(end, end[c], c)) /* had this letter */
                continue;
            size_t to = i + 1; /* longest beginning of `end` that ends the text behind the letter */
            while (to > 0 && !(end[to - 1] == end[c] && memcmp(end, end + (i + 1 - to), to - 1) == 0))
                to--;
            ok = nb_gset_add(&other, (unsigned char)end[c], (unsigned char)end[c]);
            if (to < n)
                alt[k++] = nb_g_seq2(b, nb_g_lit(b, &end[c], 1), nb_g_call(b, rule[to]));
        }
        ok = ok && nb_gset_invert(&other);
        if (!ok)
            nb_g_oom(b);
        alt[k++] = nb_g_seq2(b, nb_g_chars(b, &other, false), nb_g_call(b, rule[0]));
        nb_gvec_clear(&other.v);
        b->rules.v[rule[i] - 1] = nb_g_alt(b, alt, k);
    }
    return b->rc == NB_OK ? nb_g_call(b, rule[0]) : 0;
}

/* Marks around keys and values that are plain text. */
typedef struct pair_marks {
    const char *before, *between, *after, *end; /* end: what a text value cannot have */
} pair_marks;

static bool is_text(const nb_json *schema)
{
    return strcmp(nb_json_str(nb_json_get(schema, "type"), ""), "string") == 0 && !nb_json_get(schema, "enum");
}

/* Texts of a list of strings, not quoted. */
static bool is_text_enum(const nb_json *schema)
{
    const nb_json *list = nb_json_get(schema, "enum");

    for (size_t i = 0; i < nb_json_len(list); i++) {
        if (nb_json_typeof(nb_json_at(list, i)) != NB_JSTR || nb_json_str_len(nb_json_at(list, i)) == 0)
            return false;
    }
    return nb_json_len(list) > 0;
}

static nb_gpart pair_value(maker *m, const nb_json *root, const nb_json *schema, const char *end)
{
    if (is_text(schema))
        return text_without(m, end);
    if (is_text_enum(schema))
        return nb_g_choice(m->b, nb_json_get(schema, "enum"), false);
    return holds(m, schema) ? schema_part(m, root, schema) : text_without(m, end);
}

static bool is_required(const nb_json *params, const char *key)
{
    const nb_json *list = nb_json_get(params, "required");

    for (size_t i = 0; i < nb_json_len(list); i++) {
        if (strcmp(nb_json_str(nb_json_at(list, i), ""), key) == 0)
            return true;
    }
    return false;
}

static nb_gpart pair_arguments(maker *m, const nb_json *f, const pair_marks *k)
{
    const nb_json *params = nb_json_get(f, "parameters"), *props = nb_json_get(params, "properties");
    nb_gvec parts = { 0 };
    nb_gpart p;

    for (size_t i = 0; i < nb_json_len(props) && m->b->rc == NB_OK; i++) {
        const char *key;
        const nb_json *schema = nb_json_member(props, i, &key);
        p = SEQ(m, nb_g_text(m->b, k->before), nb_g_text(m->b, key), nb_g_text(m->b, k->between), pair_value(m, params, schema, k->end),
                nb_g_text(m->b, k->after));
        if (!nb_gvec_push(&parts, is_required(params, key) ? p : nb_g_opt(m->b, p)))
            nb_g_oom(m->b);
    }
    p = m->b->rc == NB_OK ? nb_g_seq(m->b, parts.v, parts.n) : 0;
    nb_gvec_clear(&parts);
    return p;
}

/* ---- calls ---- */

/* {"name": N, "arguments": ...} */
static nb_gpart json_call(maker *m, const nb_json *f, const char *arguments)
{
    nb_gbuild *b = m->b;
    const nb_gpart ws = nb_gj_ws(&m->j), colon = SEQ(m, ws, nb_g_text(b, ":"), ws);

    return SEQ(m, nb_g_text(b, "{"), ws, nb_g_text(b, "\"name\""), colon, nb_gj_literal(&m->j, nb_json_get(f, "name")), ws,
               nb_g_text(b, ","), ws, nb_g_text(b, arguments), colon, json_arguments(m, f), ws, nb_g_text(b, "}"));
}

/* One call of a function, without what stands around all calls. */
static nb_gpart call_of(maker *m, const nb_json *f, bool args_mark)
{
    static const pair_marks qwen = { "<parameter=", ">\n", "\n</parameter>\n", "</parameter>" };
    static const pair_marks minimax = { "<parameter name=\"", "\">", "</parameter>\n", "</parameter>" };
    static const pair_marks glm = { "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</arg_value>" };
    nb_gbuild *b = m->b;
    const nb_gpart name = nb_g_text(b, tool_name(f));

    switch (m->o->format) {
    case NB_TOOLS_QWEN3_XML:
        return SEQ(m, nb_g_text(b, "\n<function="), name, nb_g_text(b, ">\n"), pair_arguments(m, f, &qwen), nb_g_text(b, "</function>\n"));
    case NB_TOOLS_MINIMAX_M2:
        return SEQ(m, nb_g_text(b, "<invoke name=\""), name, nb_g_text(b, "\">\n"), pair_arguments(m, f, &minimax),
                   nb_g_text(b, "</invoke>\n"));
    case NB_TOOLS_GLM47:
        return SEQ(m, name, nb_g_text(b, "\n"), pair_arguments(m, f, &glm));
    case NB_TOOLS_DEEPSEEK_V3:
        return SEQ(m, nb_g_text(b, "function"), mark(m, DS("sep")), name, nb_g_text(b, "\n```json\n"), json_arguments(m, f),
                   nb_g_text(b, "\n```"));
    case NB_TOOLS_DEEPSEEK_V31:
        return SEQ(m, name, mark(m, DS("sep")), json_arguments(m, f));
    case NB_TOOLS_KIMI_K2:
        return SEQ(m, nb_g_text(b, "functions."), name, nb_g_text(b, ":"), nb_g_rep(b, nb_g_range(b, '0', '9'), 1, 3),
                   mark(m, "<|tool_call_argument_begin|>"), json_arguments(m, f));
    case NB_TOOLS_MISTRAL:
        if (args_mark)
            return SEQ(m, name, mark(m, "[ARGS]"), json_arguments(m, f));
        return json_call(m, f, "\"arguments\"");
    case NB_TOOLS_LLAMA3_JSON:
        return json_call(m, f, "\"parameters\"");
    default:
        return json_call(m, f, "\"arguments\"");
    }
}

/* Calls of all functions allowed, as alternatives. */
static nb_gpart any_call(maker *m, bool args_mark)
{
    const nb_json *tools = m->o->tools;
    nb_gvec alt = { 0 };
    nb_gpart p;

    for (size_t i = 0; i < nb_json_len(tools) && m->b->rc == NB_OK; i++) {
        const nb_json *t = nb_json_at(tools, i), *f = nb_json_get(t, "function");
        f = f ? f : t;
        const char *name = tool_name(f);
        if (!*name || strlen(name) != nb_json_str_len(nb_json_get(f, "name"))) {
            nb_g_fail(m->b, NB_EARG, "grammar.invalid", "tool %zu has no name", i);
            break;
        }
        if ((!m->o->name || strcmp(name, m->o->name) == 0) && !nb_gvec_push(&alt, call_of(m, f, args_mark)))
            nb_g_oom(m->b);
    }
    if (m->b->rc == NB_OK && alt.n == 0)
        nb_g_fail(m->b, NB_EARG, "grammar.invalid",
                  m->o->name ? "no tool has the name that tool_choice wants" : "there are no tools to call");
    p = m->b->rc == NB_OK ? nb_g_alt(m->b, alt.v, alt.n) : 0;
    nb_gvec_clear(&alt);
    return nb_g_shared(m->b, p);
}

/* begin call end, perhaps again behind a gap; begun leaves the first begin out. */
static nb_gpart chain(maker *m, nb_gpart begin, nb_gpart call, nb_gpart end, nb_gpart gap)
{
    const nb_gpart first = m->o->begun ? SEQ(m, call, end) : SEQ(m, begin, call, end);
    const nb_gpart more = m->o->several ? nb_g_rep(m->b, SEQ(m, gap, begin, call, end), 0, NB_G_INF) : nb_g_empty(m->b);

    return SEQ(m, first, more);
}

/* open (begin call end)+ close */
static nb_gpart block(maker *m, const char *open, const char *begin, const char *end, const char *close, nb_gpart call)
{
    const nb_gpart one = SEQ(m, begin ? mark(m, begin) : nb_g_empty(m->b), call, end ? mark(m, end) : nb_g_empty(m->b));
    const nb_gpart calls = nb_g_rep(m->b, one, 1, m->o->several ? NB_G_INF : 1);

    return SEQ(m, m->o->begun ? nb_g_empty(m->b) : mark(m, open), calls, mark(m, close));
}

static nb_gpart list(maker *m, const char *begin, nb_gpart call)
{
    nb_gbuild *b = m->b;
    const nb_gpart ws = nb_gj_ws(&m->j);
    const nb_gpart more = m->o->several ? nb_g_rep(b, SEQ(m, nb_g_text(b, ","), ws, call, ws), 0, NB_G_INF) : nb_g_empty(b);

    return SEQ(m, m->o->begun ? nb_g_empty(b) : mark(m, begin), ws, nb_g_text(b, "["), ws, call, ws, more, nb_g_text(b, "]"));
}

static nb_gpart whole(maker *m)
{
    const bool args_mark = m->vocab && nb_gvocab_has(m->vocab, "\xFF[ARGS]", 7);
    nb_gbuild *b = m->b;
    const nb_gpart ws = nb_gj_ws(&m->j), none = nb_g_empty(b);
    nb_gpart call;

    switch (m->o->format) {
    case NB_TOOLS_NONE:
    case NB_TOOLS_PYTHONIC:
    case NB_TOOLS_GPT_OSS:
    case NB_TOOLS_N:
        return nb_g_fail(b, NB_EUNSUPPORTED, "grammar.unsupported", "tool calls of the format %s cannot be forced",
                         nb_tool_format_name(m->o->format));
    default:
        break;
    }
    call = any_call(m, args_mark);
    switch (m->o->format) {
    case NB_TOOLS_LLAMA3_JSON:
        return SEQ(m, call, m->o->several ? nb_g_rep(b, SEQ(m, nb_g_text(b, "; "), call), 0, NB_G_INF) : none);
    case NB_TOOLS_MISTRAL:
        return args_mark ? chain(m, mark(m, "[TOOL_CALLS]"), call, none, none) : list(m, "[TOOL_CALLS]", call);
    case NB_TOOLS_QWEN3_XML:
    case NB_TOOLS_GLM47:
        return chain(m, mark(m, "<tool_call>"), call, mark(m, "</tool_call>"), nb_g_text(b, "\n"));
    case NB_TOOLS_DEEPSEEK_V3:
    case NB_TOOLS_DEEPSEEK_V31:
        return block(m, DS("calls" LOW "begin"), DS("call" LOW "begin"), DS("call" LOW "end"), DS("calls" LOW "end"), call);
    case NB_TOOLS_KIMI_K2:
        return block(m, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", call);
    case NB_TOOLS_MINIMAX_M2:
        return block(m, "<minimax:tool_call>", NULL, NULL, "</minimax:tool_call>", SEQ(m, nb_g_opt(b, nb_g_text(b, "\n")), call));
    case NB_TOOLS_GRANITE:
        return list(m, "<|tool_call|>", call);
    case NB_TOOLS_PHI4MINI:
        return list(m, "functools", call);
    default:
        return chain(m, mark(m, "<tool_call>"), SEQ(m, ws, call, ws), mark(m, "</tool_call>"), ws);
    }
}

nb_status nb_grammar_new_tools(const nb_gvocab *vocab, const nb_tool_grammar_opts *o, const nb_glimits *lim, nb_grammar **out, nb_err *err)
{
    nb_gbuild b;
    maker m = { .b = &b, .vocab = vocab, .o = o };

    *out = NULL;
    nb_gbuild_init(&b, lim, (size_t)128 << 10, 32, err);
    m.j.b = &b;
    return nb_grammar_make(&b, whole(&m), vocab, out, err);
}
