/* reply_calls.c - formats of tool calls: their markers, and what stands between these. Source: spec serving 8.2. */
#include <stdlib.h>
#include <string.h>

#include "text/reply_priv.h"

#define BAR   "\xEF\xBD\x9C" /* U+FF5C */
#define LOW   "\xE2\x96\x81" /* U+2581 */
#define DS(x) "<" BAR "tool" LOW x BAR ">"

const nb_call_format nb_call_formats[NB_TOOLS_N] = {
    [NB_TOOLS_NONE] = { .name = "none" },
    [NB_TOOLS_HERMES] = { .name = "hermes", .begin = "<tool_call>", .end = "</tool_call>", .body = NB_BODY_JSON, .told_by = "<tool_call>" },
    [NB_TOOLS_LLAMA3_JSON] = { .name = "llama3_json",
                               .begin = "<|python_tag|>",
                               .body = NB_BODY_JSON,
                               .whole = true,
                               .first = '{',
                               .told_by = "\"parameters\":" },
    [NB_TOOLS_MISTRAL] = { .name = "mistral", .begin = "[TOOL_CALLS]", .body = NB_BODY_MISTRAL, .id = "9", .told_by = "[TOOL_CALLS]" },
    [NB_TOOLS_QWEN3_XML] = { .name = "qwen3_xml",
                             .also = "qwen3_coder",
                             .begin = "<function=",
                             .end = "</function>",
                             .open = "<tool_call>",
                             .close = "</tool_call>",
                             .body = NB_BODY_QWEN,
                             .told_by = "<function=" },
    [NB_TOOLS_DEEPSEEK_V3] = { .name = "deepseek_v3",
                               .begin = DS("call" LOW "begin"),
                               .end = DS("call" LOW "end"),
                               .open = DS("calls" LOW "begin"),
                               .close = DS("calls" LOW "end"),
                               .body = NB_BODY_DEEPSEEK,
                               .told_by = DS("call" LOW "begin") },
    [NB_TOOLS_DEEPSEEK_V31] = { .name = "deepseek_v31",
                                .also = "deepseek_v3.1",
                                .begin = DS("call" LOW "begin"),
                                .end = DS("call" LOW "end"),
                                .open = DS("calls" LOW "begin"),
                                .close = DS("calls" LOW "end"),
                                .body = NB_BODY_DEEPSEEK31 },
    [NB_TOOLS_KIMI_K2] = { .name = "kimi_k2",
                           .begin = "<|tool_call_begin|>",
                           .end = "<|tool_call_end|>",
                           .open = "<|tool_calls_section_begin|>",
                           .close = "<|tool_calls_section_end|>",
                           .body = NB_BODY_KIMI,
                           .told_by = "<|tool_calls_section_begin|>" },
    [NB_TOOLS_GLM47] = { .name = "glm47",
                         .also = "glm45",
                         .begin = "<tool_call>",
                         .end = "</tool_call>",
                         .body = NB_BODY_GLM,
                         .told_by = "<arg_key>" },
    [NB_TOOLS_MINIMAX_M2] = { .name = "minimax_m2",
                              .begin = "<invoke name=\"",
                              .end = "</invoke>",
                              .open = "<minimax:tool_call>",
                              .close = "</minimax:tool_call>",
                              .body = NB_BODY_MINIMAX,
                              .told_by = "<minimax:tool_call>" },
    [NB_TOOLS_PYTHONIC] = { .name = "pythonic",
                            .begin = "<|python_start|>",
                            .close = "<|python_end|>",
                            .body = NB_BODY_PYTHON,
                            .whole = true,
                            .first = '[',
                            .told_by = "<|python_start|>" },
    [NB_TOOLS_GRANITE] = { .name = "granite", .begin = "<|tool_call|>", .body = NB_BODY_LIST, .told_by = "<|tool_call|>" },
    [NB_TOOLS_PHI4MINI] = { .name = "phi4mini",
                            .also = "phi4_mini_json",
                            .begin = "functools",
                            .body = NB_BODY_LIST,
                            .told_by = "<|tool|>" },
    [NB_TOOLS_GPT_OSS] = { .name = "gpt_oss", .also = "openai", .told_by = "<|channel|>" },
};

nb_call *nb_calls_add(nb_calls *c)
{
    if (c->n == c->cap) {
        const size_t cap = c->cap ? c->cap * 2 : 4;
        nb_call *v = nb_realloc(c->v, cap * sizeof *v);
        if (!v)
            return NULL;
        c->v = v;
        c->cap = cap;
    }
    memset(&c->v[c->n], 0, sizeof *c->v);
    return &c->v[c->n++];
}

void nb_calls_clear(nb_calls *c)
{
    for (size_t i = 0; i < c->n; i++) {
        nb_buf_clear(&c->v[i].name);
        nb_buf_clear(&c->v[i].args);
        nb_buf_clear(&c->v[i].id);
    }
    nb_free(c->v);
    memset(c, 0, sizeof *c);
}

static const char *find(const char *s, size_t n, const char *what)
{
    const size_t k = strlen(what);

    for (size_t i = 0; i + k <= n; i++) {
        if (s[i] == what[0] && memcmp(s + i, what, k) == 0)
            return s + i;
    }
    return NULL;
}

bool nb_is_call_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = s[i], low = c | 0x20;
        if (!((low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.'))
            return false;
    }
    return n > 0 && n <= 256;
}

/* A call by name with the JSON text of its arguments (n 0: none). An object, or a text that holds one. */
static bool add_call(nb_calls *out, const char *name, size_t n_name, const char *args, size_t n, bool *failed)
{
    nb_json *v = NULL;
    nb_call *c;
    bool ok = nb_is_call_name(name, n_name);

    if (ok && n) {
        ok = nb_json_parse(args, n, "call", 0, &v, NULL) == NB_OK && (nb_json_typeof(v) == NB_JOBJ || nb_json_typeof(v) == NB_JSTR);
        if (ok && nb_json_typeof(v) == NB_JSTR) {
            nb_json *inner = NULL;
            ok =
                nb_json_parse(nb_json_str(v, ""), nb_json_str_len(v), "call", 0, &inner, NULL) == NB_OK && nb_json_typeof(inner) == NB_JOBJ;
            nb_json_free(inner);
        }
    }
    if (ok && !(c = nb_calls_add(out))) {
        *failed = true;
        ok = false;
    } else if (ok) {
        nb_buf_put(&c->name, name, n_name);
        if (nb_json_typeof(v) == NB_JSTR)
            nb_buf_put(&c->args, nb_json_str(v, ""), nb_json_str_len(v));
        else
            nb_buf_put(&c->args, n ? args : "{}", n ? n : 2);
        *failed = *failed || c->name.failed || c->args.failed;
    }
    nb_json_free(v);
    return ok && !*failed;
}

/* {name, arguments | parameters, id} */
static bool read_object(const char *s, size_t n, const nb_json *known, nb_calls *out, bool *failed)
{
    const char *args = "";
    size_t k = 0;
    nb_json *v = NULL;
    bool ok;

    nb_trim(&s, &n);
    ok = nb_json_parse(s, n, "call", 0, &v, NULL) == NB_OK && nb_json_typeof(v) == NB_JOBJ &&
         nb_json_typeof(nb_json_get(v, "name")) == NB_JSTR;
    if (ok && !nb_member_text(s, n, "arguments", &args, &k) && !nb_member_text(s, n, "parameters", &args, &k))
        k = 0;
    if (ok && k == 4 && memcmp(args, "null", 4) == 0)
        k = 0;
    if (ok && nb_json_len(known)) /* a reply that happens to be JSON is no call */
        ok = k > 0 && nb_find_tool(known, nb_json_str(nb_json_get(v, "name"), ""), nb_json_str_len(nb_json_get(v, "name")));
    ok = ok && add_call(out, nb_json_str(nb_json_get(v, "name"), ""), nb_json_str_len(nb_json_get(v, "name")), args, k, failed);
    if (ok && nb_json_typeof(nb_json_get(v, "id")) == NB_JSTR)
        nb_buf_puts(&out->v[out->n - 1].id, nb_json_str(nb_json_get(v, "id"), ""));
    nb_json_free(v);
    return ok;
}

/* A list of such objects. */
static bool read_list(const char *s, size_t n, nb_calls *out, bool *failed)
{
    bool ok = true;
    nb_json *v = NULL;

    nb_trim(&s, &n);
    if (n && *s == '{')
        return read_object(s, n, NULL, out, failed);
    if (nb_json_parse(s, n, "call", 0, &v, NULL) != NB_OK || nb_json_typeof(v) != NB_JARR || nb_json_len(v) == 0)
        ok = false;
    for (size_t i = 1, left = nb_json_len(v); ok && left > 0; left--) {
        nb_jend e = { 0 };
        while (i < n && s[i] != '{' && s[i] != ']') /* commas and blanks; else no object */
            i++;
        if (i >= n || s[i] == ']' || !nb_jend_go(&e, s + i, n - i, false))
            ok = false;
        ok = ok && read_object(s + i, e.at, NULL, out, failed);
        i += e.at;
    }
    nb_json_free(v);
    return ok;
}

/* NAME [CALL_ID] id [ARGS] {...}, or NAME {...} */
static bool read_mistral(const char *s, size_t n, nb_calls *out, bool *failed)
{
    const char *brace, *args, *id;
    size_t n_name;

    nb_trim(&s, &n);
    if (n && (*s == '[' || *s == '{'))
        return read_list(s, n, out, failed);
    brace = memchr(s, '{', n);
    if (!brace)
        return false;
    n_name = (size_t)(brace - s);
    args = find(s, n_name, "[ARGS]");
    n_name = args ? (size_t)(args - s) : n_name;
    id = find(s, n_name, "[CALL_ID]");
    const size_t before = id ? (size_t)(id - s) : n_name;
    const char *name = s;
    size_t k = before;
    nb_trim(&name, &k);
    if (!add_call(out, name, k, brace, n - (size_t)(brace - s), failed))
        return false;
    if (id)
        nb_buf_put(&out->v[out->n - 1].id, id + 9, n_name - before - 9);
    return true;
}

/* Marks around the keys and values of a call. */
typedef struct marks {
    const char *key, *key_end, *value, *value_end; /* value NULL: behind key_end at once */
} marks;

static const marks *marks_of(const nb_call_format *f)
{
    static const marks qwen = { "<parameter=", ">", NULL, "</parameter>" }, minimax = { "<parameter name=\"", "\">", NULL, "</parameter>" },
                       glm = { "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>" };

    return f->body == NB_BODY_QWEN ? &qwen : f->body == NB_BODY_MINIMAX ? &minimax : &glm;
}

size_t nb_pairs_next(const nb_call_format *f, const char *s, size_t n, bool first, const char *name, size_t n_name, const nb_json *tools,
                     nb_buf *out)
{
    const marks *m = marks_of(f);
    const char *end = s + n, *key = s, *key_end, *v, *v_end;
    size_t k, n_key;

    while (key < end && nb_is_blank(*key))
        key++;
    if (!nb_starts(key, (size_t)(end - key), m->key))
        return 0;
    key += strlen(m->key);
    key_end = find(key, (size_t)(end - key), m->key_end);
    v = key_end && m->value ? find(key_end, (size_t)(end - key_end), m->value) : key_end;
    v = v ? v + strlen(m->value ? m->value : m->key_end) : NULL;
    v_end = v ? find(v, (size_t)(end - v), m->value_end) : NULL;
    if (!v_end)
        return 0;
    k = (size_t)(v_end - v);
    n_key = (size_t)(key_end - key);
    nb_trim(&key, &n_key);
    if (k && *v == '\n') {
        v++;
        k--;
    }
    if (k && v[k - 1] == '\n')
        k--;
    nb_buf_puts(out, first ? "{" : ", ");
    nb_json_put_str(out, key, n_key);
    nb_buf_puts(out, ": ");
    nb_put_argument(out, tools, name, n_name, key, n_key, v, k);
    return (size_t)(v_end - s) + strlen(m->value_end);
}

/* Keys and values between marks, with the value's text as it stands but for one newline at each end. */
static bool read_pairs(const nb_call_format *f, const char *name, size_t n_name, const char *s, size_t n, const nb_json *tools,
                       nb_calls *out, bool *failed)
{
    nb_buf args = { 0 };
    size_t k;
    bool ok;

    while ((k = nb_pairs_next(f, s, n, args.n == 0, name, n_name, tools, &args))) {
        s += k;
        n -= k;
    }
    nb_trim(&s, &n); /* nothing but blanks between and behind pairs */
    nb_buf_puts(&args, args.n ? "}" : "{}");
    *failed = *failed || args.failed;
    ok = n == 0 && !*failed && add_call(out, name, n_name, args.p, args.n, failed);
    nb_buf_clear(&args);
    return ok;
}

/* The name up to a mark, and the rest behind it. */
static bool cut_name(const char **s, size_t *n, const char *mark, const char **name, size_t *k)
{
    const char *at = find(*s, *n, mark);

    if (!at)
        return false;
    *name = *s;
    *k = (size_t)(at - *s);
    *n -= *k + strlen(mark);
    *s = at + strlen(mark);
    nb_trim(name, k);
    return true;
}

bool nb_pairs_name(const nb_call_format *f, const char *s, size_t n, const char **name, size_t *k, size_t *args)
{
    const char *mark = f->body == NB_BODY_QWEN ? ">" : f->body == NB_BODY_MINIMAX ? "\">" : "<arg_key>", *at = find(s, n, mark);

    if (f->body != NB_BODY_QWEN && f->body != NB_BODY_MINIMAX && f->body != NB_BODY_GLM)
        return false;
    if (!at)
        return false;
    *name = s;
    *k = (size_t)(at - s);
    *args = *k + (f->body == NB_BODY_GLM ? 0 : strlen(mark));
    nb_trim(name, k);
    return true;
}

static bool read_marked(const nb_call_format *f, const char *s, size_t n, const nb_json *tools, nb_calls *out, bool *failed)
{
    const char *name = s;
    size_t k = n, args = n;

    if (!nb_pairs_name(f, s, n, &name, &k, &args)) {
        if (f->body != NB_BODY_GLM) /* whose name may stand alone */
            return false;
        nb_trim(&name, &k);
    }
    return read_pairs(f, name, k, s + args, n - args, tools, out, failed);
}

static bool read_deepseek(const char *s, size_t n, bool v31, nb_calls *out, bool *failed)
{
    const char *name, *brace;
    size_t k;

    if (!cut_name(&s, &n, DS("sep"), &name, &k))
        return false;
    if (!v31) { /* what stood before was the type; the name's line ends before the fence */
        brace = find(s, n, "```");
        name = s;
        k = brace ? (size_t)(brace - s) : 0;
        nb_trim(&name, &k);
        brace = memchr(s, '{', n);
        if (!brace)
            return false;
        n -= (size_t)(brace - s);
        s = brace;
        nb_trim(&s, &n);
        if (n >= 3 && memcmp(s + n - 3, "```", 3) == 0)
            n -= 3;
    }
    nb_trim(&s, &n);
    return add_call(out, name, k, s, n, failed);
}

/* functions.NAME:INDEX is the id. */
static bool read_kimi(const char *s, size_t n, nb_calls *out, bool *failed)
{
    const char *head, *name, *colon;
    size_t k, n_name;

    if (!cut_name(&s, &n, "<|tool_call_argument_begin|>", &head, &k))
        return false;
    name = head;
    n_name = k;
    if (n_name > 10 && memcmp(name, "functions.", 10) == 0) {
        name += 10;
        n_name -= 10;
    }
    colon = memchr(name, ':', n_name);
    nb_trim(&s, &n);
    if (!add_call(out, name, colon ? (size_t)(colon - name) : n_name, s, n, failed))
        return false;
    if (colon)
        nb_buf_put(&out->v[out->n - 1].id, head, k);
    return true;
}

/* [f(a=1, b='x'), g()] */
static bool read_python(const char *s, size_t n, const nb_json *tools, nb_calls *out, bool *failed)
{
    size_t i = 1, k;
    bool ok = true;

    nb_trim(&s, &n);
    if (n < 2 || *s != '[')
        return false;
    while (ok) {
        const char *name = s + i;
        nb_buf args = { 0 };
        while (i < n && strchr(" \t\r\n", s[i]) && s[i])
            name = s + ++i;
        while (i < n && s[i] != '(')
            i++;
        const size_t n_name = (size_t)(s + i - name);
        ok = i < n && nb_is_call_name(name, n_name) && (!nb_json_len(tools) || nb_find_tool(tools, name, n_name));
        nb_buf_putc(&args, '{');
        for (bool first = true; ok; first = false) {
            i++; /* the parenthesis or a comma */
            while (i < n && strchr(" \t\r\n", s[i]) && s[i])
                i++;
            if (i < n && s[i] == ')')
                break;
            const char *key = s + i;
            while (i < n && s[i] != '=' && s[i] != ')')
                i++;
            size_t n_key = (size_t)(s + i - key);
            nb_trim(&key, &n_key);
            ok = i < n && s[i] == '=' && nb_is_call_name(key, n_key);
            if (!ok)
                break;
            nb_buf_puts(&args, first ? "" : ", ");
            nb_json_put_str(&args, key, n_key);
            nb_buf_puts(&args, ": ");
            for (i++; i < n && s[i] == ' '; i++)
                ;
            k = nb_put_python(&args, s + i, n - i, 0);
            for (i += k; i < n && strchr(" \t\r\n", s[i]) && s[i]; i++)
                ;
            ok = k && i < n && (s[i] == ',' || s[i] == ')');
            if (ok && s[i] == ')')
                break;
        }
        nb_buf_putc(&args, '}');
        *failed = *failed || args.failed;
        ok = ok && !*failed && add_call(out, name, n_name, args.p, args.n, failed);
        nb_buf_clear(&args);
        for (i++; i < n && strchr(" \t\r\n", s[i]) && s[i]; i++)
            ;
        if (!ok || i >= n)
            return false;
        if (s[i] == ']')
            return i + 1 == n;
        ok = s[i++] == ',';
    }
    return false;
}

bool nb_calls_read(const nb_call_format *f, const char *s, size_t n, const nb_json *tools, nb_calls *out, bool *failed)
{
    bool ok = false;

    switch (f->body) {
    case NB_BODY_JSON:
        ok = read_object(s, n, f->whole ? tools : NULL, out, failed);
        break;
    case NB_BODY_LIST:
        ok = read_list(s, n, out, failed);
        break;
    case NB_BODY_MISTRAL:
        ok = read_mistral(s, n, out, failed);
        break;
    case NB_BODY_QWEN:
    case NB_BODY_MINIMAX:
    case NB_BODY_GLM:
        ok = read_marked(f, s, n, tools, out, failed);
        break;
    case NB_BODY_DEEPSEEK:
    case NB_BODY_DEEPSEEK31:
        ok = read_deepseek(s, n, f->body == NB_BODY_DEEPSEEK31, out, failed);
        break;
    case NB_BODY_KIMI:
        ok = read_kimi(s, n, out, failed);
        break;
    case NB_BODY_PYTHON:
        ok = read_python(s, n, tools, out, failed);
        break;
    default:
        break;
    }
    return ok && !*failed;
}
