/* reply_values.c - arguments of tool calls: where a JSON value ends, plain text by its declared type, literals of Python. */
#include <string.h>

#include "text/reply_priv.h"
#include "text/utf8.h"

bool nb_jend_go(nb_jend *e, const char *s, size_t n, bool python)
{
    for (; !e->done && e->at < n; e->at++) {
        const char c = s[e->at];
        if (e->in_string) {
            if (e->escaped)
                e->escaped = false;
            else if (c == '\\')
                e->escaped = true;
            else if (c == e->quote)
                e->in_string = false;
        } else if (c == '"' || (python && c == '\'')) {
            e->in_string = true;
            e->quote = c;
        } else if (c == '{' || c == '[' || (python && c == '(')) {
            e->begun = true;
            e->depth++;
        } else if (c == '}' || c == ']' || (python && c == ')')) {
            e->done = --e->depth <= 0;
        }
    }
    return e->done;
}

void nb_trim(const char **s, size_t *n)
{
    while (*n && strchr(" \t\r\n", **s) && **s) {
        ++*s;
        --*n;
    }
    while (*n && strchr(" \t\r\n", (*s)[*n - 1]) && (*s)[*n - 1])
        --*n;
}

/* Length of the value that begins at s: a bracketed one, a string, or up to a comma or bracket. */
static size_t value_length(const char *s, size_t n)
{
    nb_jend e = { 0 };
    size_t i = 0;

    if (n && (*s == '{' || *s == '[')) {
        nb_jend_go(&e, s, n, false);
        return e.at;
    }
    if (n && *s == '"') {
        for (i = 1; i < n && s[i] != '"'; i++)
            i += s[i] == '\\';
        return i < n ? i + 1 : n;
    }
    while (i < n && !strchr(",}] \t\r\n", s[i]))
        i++;
    return i;
}

static size_t blanks(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\r' || s[i] == '\n'))
        i++;
    return i;
}

bool nb_member_text(const char *s, size_t n, const char *name, const char **v, size_t *k)
{
    size_t i = blanks(s, n) + 1; /* behind the brace */

    while (i < n) {
        i += blanks(s + i, n - i);
        const char *key = s + i;
        const size_t n_key = value_length(key, n - i);
        if (n_key < 2 || *key != '"')
            return false;
        i += n_key;
        i += blanks(s + i, n - i);
        if (i >= n || s[i] != ':')
            return false;
        i++;
        i += blanks(s + i, n - i);
        *v = s + i;
        *k = value_length(s + i, n - i);
        if (n_key == strlen(name) + 2 && memcmp(key + 1, name, n_key - 2) == 0)
            return *k > 0;
        i += *k;
        i += blanks(s + i, n - i);
        if (i >= n || s[i] != ',')
            return false;
        i++;
    }
    return false;
}

/* ---- plain text by type ---- */

const nb_json *nb_find_tool(const nb_json *tools, const char *name, size_t n)
{
    for (size_t i = 0; i < nb_json_len(tools); i++) {
        const nb_json *t = nb_json_at(tools, i), *f = nb_json_get(t, "function");
        f = f ? f : t;
        const nb_json *x = nb_json_get(f, "name");
        if (nb_json_str_len(x) == n && n && memcmp(nb_json_str(x, ""), name, n) == 0)
            return f;
    }
    return NULL;
}

static bool same(const nb_json *type, const char *name)
{
    return strcmp(nb_json_str(type, ""), name) == 0;
}

/* Does the parameter take texts only? Unknown ones do; those of other or several types are read as JSON where they are JSON. */
static bool takes_text(const nb_json *param)
{
    const nb_json *type = nb_json_get(param, "type");

    if (nb_json_typeof(type) == NB_JSTR)
        return same(type, "string");
    if (nb_json_get(param, "anyOf") || nb_json_get(param, "oneOf") || nb_json_typeof(type) == NB_JARR)
        return false;
    for (size_t i = 0; i < nb_json_len(nb_json_get(param, "enum")); i++) {
        if (nb_json_typeof(nb_json_at(nb_json_get(param, "enum"), i)) != NB_JSTR)
            return false;
    }
    return true;
}

static bool may_be_text(const nb_json *param)
{
    const nb_json *lists[] = { nb_json_get(param, "anyOf"), nb_json_get(param, "oneOf"), nb_json_get(param, "type") };

    for (size_t k = 0; k < NB_LEN(lists); k++) {
        for (size_t i = 0; i < nb_json_len(lists[k]); i++) {
            const nb_json *x = nb_json_at(lists[k], i);
            if (same(k < 2 ? nb_json_get(x, "type") : x, "string"))
                return true;
        }
    }
    return false;
}

/* Words of Python for values of JSON. */
static const char *python_word(const char *s, size_t n)
{
    static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };

    for (size_t i = 0; i < NB_LEN(words); i++) {
        if (strlen(words[i][0]) == n && memcmp(words[i][0], s, n) == 0)
            return words[i][1];
    }
    return NULL;
}

void nb_put_argument(nb_buf *out, const nb_json *tools, const char *name, size_t n_name, const char *key, size_t n_key, const char *v,
                     size_t n_v)
{
    const nb_json *props = nb_json_get(nb_json_get(nb_find_tool(tools, name, n_name), "parameters"), "properties");
    const char *s = v, *word;
    char *copy = nb_strndup(key, n_key);
    const nb_json *param = copy ? nb_json_get(props, copy) : NULL;
    size_t n = n_v;
    nb_json *parsed = NULL;

    nb_free(copy);
    if (!copy) {
        out->failed = true;
        return;
    }
    nb_trim(&s, &n);
    if (!takes_text(param)) {
        word = python_word(s, n);
        if (word) {
            nb_buf_puts(out, word);
            return;
        }
        if (n && nb_json_parse(s, n, "call", 0, &parsed, NULL) == NB_OK && !(*s == '"' && may_be_text(param))) {
            nb_buf_put(out, s, n);
            nb_json_free(parsed);
            return;
        }
        nb_json_free(parsed);
    }
    nb_json_put_str(out, v, n_v);
}

/* ---- Python ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* A text in quotes; its length, 0 when it does not end. */
static size_t put_text(nb_buf *out, const char *s, size_t n)
{
    static const char *const from = "nrtbfv0\\'\"", *const to = "\n\r\t\b\f\v\0\\'\"";
    nb_buf text = { 0 };
    size_t i = 1;

    for (; i < n && s[i] != s[0]; i++) {
        if (s[i] != '\\' || i + 1 >= n) {
            nb_buf_putc(&text, s[i]);
            continue;
        }
        const char *p = s[++i] ? strchr(from, s[i]) : NULL;
        const size_t digits = s[i] == 'x' ? 2 : s[i] == 'u' ? 4 : s[i] == 'U' ? 8 : 0;
        uint32_t cp = 0;
        size_t k = 0;
        while (k < digits && i + 1 + k < n && hex(s[i + 1 + k]) >= 0)
            cp = cp * 16 + (uint32_t)hex(s[i + 1 + k++]);
        if (p) {
            nb_buf_putc(&text, to[p - from]);
        } else if (digits && k == digits && cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF)) {
            nb_u8_append(&text, cp);
            i += digits;
        } else if (s[i] != '\n') { /* as it stands */
            nb_buf_putc(&text, '\\');
            nb_buf_putc(&text, s[i]);
        }
    }
    if (i < n)
        nb_json_put_str(out, text.p ? text.p : "", text.n);
    out->failed = out->failed || text.failed;
    nb_buf_clear(&text);
    return i < n ? i + 1 : 0;
}

/* Elements up to the closing bracket. */
static size_t put_list(nb_buf *out, const char *s, size_t n, int depth)
{
    const bool dict = *s == '{';
    const char close = dict ? '}' : *s == '(' ? ')' : ']';
    size_t i = 1, k;

    nb_buf_putc(out, dict ? '{' : '[');
    for (bool first = true;; first = false) {
        i += blanks(s + i, n - i);
        if (i < n && s[i] == close)
            break;
        if (!first)
            nb_buf_puts(out, ", ");
        if (i >= n || (dict && s[i] != '"' && s[i] != '\'') || !(k = nb_put_python(out, s + i, n - i, depth + 1)))
            return 0;
        i += k;
        i += blanks(s + i, n - i);
        if (dict) {
            if (i >= n || s[i] != ':')
                return 0;
            i++;
            i += blanks(s + i, n - i);
            nb_buf_puts(out, ": ");
            if (i >= n || !(k = nb_put_python(out, s + i, n - i, depth + 1)))
                return 0;
            i += k;
            i += blanks(s + i, n - i);
        }
        if (i < n && s[i] == ',')
            i++;
        else if (i >= n || s[i] != close)
            return 0;
    }
    nb_buf_putc(out, dict ? '}' : ']');
    return i + 1;
}

size_t nb_put_python(nb_buf *out, const char *s, size_t n, int depth)
{
    size_t k = 0;
    const char *word;
    nb_json *v = NULL;

    if (n == 0 || depth > NB_CALL_DEPTH)
        return 0;
    if (*s == '"' || *s == '\'')
        return put_text(out, s, n);
    if (*s == '[' || *s == '(' || *s == '{')
        return put_list(out, s, n, depth);
    while (k < n && !strchr(",)]}: \t\r\n", s[k]))
        k++;
    word = python_word(s, k);
    if (word) {
        nb_buf_puts(out, word);
        return k;
    }
    if (k == 0 || nb_json_parse(s, k, "call", 0, &v, NULL) != NB_OK)
        return 0;
    nb_json_free(v);
    nb_buf_put(out, s, k);
    return k;
}
