/* jinja_lex.c - template source to tokens, one at a time. Spec chat-templates 3.
 *
 * The source has LF newlines only and has lost its last one (nb_template_open does that). Whitespace control happens
 * here: "-" eats all whitespace on its side, a newline right after a statement or comment is dropped, and blanks between
 * the start of a line and a statement or comment too. */
#include "text/jinja.h"

#include <string.h>

#include "text/utf8.h"

enum { OUTSIDE, IN_OUT, IN_STMT };

void nb_j_lex_init(jlex *x, const char *src, size_t n)
{
    memset(x, 0, sizeof *x);
    x->src = src;
    x->n = n;
    x->line = 1;
    x->line_starting = true;
}

static bool at(const jlex *x, size_t i, const char *s)
{
    const size_t n = strlen(s);

    return x->n - i >= n && memcmp(x->src + i, s, n) == 0;
}

/* Offset behind the whitespace that starts at i. */
static size_t skip_space(const jlex *x, size_t i)
{
    while (i < x->n) {
        uint32_t cp;
        const int k = nb_u8_next(x->src + i, x->n - i, &cp, NULL);
        if (k <= 0 || !nb_j_space(cp))
            break;
        i += (size_t)k;
    }
    return i;
}

/* Offset where the whitespace that ends at `to` begins, not before `from`. */
static size_t space_before(const jlex *x, size_t from, size_t to)
{
    while (to > from) {
        uint32_t cp;
        const size_t k = nb_u8_prev(x->src, to, &cp);
        if (k > to - from || !nb_j_space(cp))
            break;
        to -= k;
    }
    return to;
}

static void advance(jlex *x, size_t to)
{
    for (const char *nl; x->at < to && (nl = memchr(x->src + x->at, '\n', to - x->at)) != NULL;) {
        x->line++;
        x->line_at = x->at = (size_t)(nl - x->src) + 1;
    }
    x->at = to;
}

static jtoken token(const jlex *x, jtoken_kind kind, size_t from, size_t to)
{
    return (jtoken){ .kind = (uint8_t)kind, .line = x->line, .col = (uint32_t)(from - x->line_at + 1), .s = x->src + from, .n = to - from };
}

/* End of the text from..tag after the whitespace rules; sign is the character after the tag's two. */
static size_t text_end(const jlex *x, size_t from, size_t tag, bool output)
{
    const char sign = tag + 2 < x->n ? x->src[tag + 2] : '\0';
    size_t line = tag;

    if (sign == '-')
        return space_before(x, from, tag);
    if (sign == '+' || output)
        return tag;
    while (line > from && x->src[line - 1] != '\n')
        line--;
    if (line == from && !x->line_starting)
        return tag;
    return space_before(x, line, tag) == line ? line : tag;
}

/* Behind a closing delimiter at i ("-%}", "+%}" or "%}"): with "-" all whitespace, else one newline. 0: none is there. */
static size_t close_tag(const jlex *x, size_t i, const char *end, bool plus, bool newline)
{
    if (x->n - i >= 1 && x->src[i] == '-' && at(x, i + 1, end))
        return skip_space(x, i + 3);
    if (plus && x->n - i >= 1 && x->src[i] == '+' && at(x, i + 1, end))
        return i + 3;
    if (!at(x, i, end))
        return 0;
    i += 2;
    return newline && i < x->n && x->src[i] == '\n' ? i + 1 : i;
}

static void pass(jlex *x, size_t to)
{
    if (to > x->at)
        x->line_starting = x->src[to - 1] == '\n';
    advance(x, to);
}

/* Behind "{%" [-+] ws word ws at i, or 0. */
static size_t tag_word(const jlex *x, size_t i, const char *word)
{
    i += 2;
    if (i < x->n && (x->src[i] == '-' || x->src[i] == '+'))
        i++;
    i = skip_space(x, i);
    if (!at(x, i, word))
        return 0;
    return skip_space(x, i + strlen(word));
}

/* {% raw %} ... {% endraw %}: begin is behind the opening tag. */
static jtoken raw_text(jparse *p, size_t begin)
{
    jlex *x = &p->lex;
    jtoken t;

    pass(x, begin);
    for (size_t i = begin; i + 1 < x->n; i++) {
        size_t word, end;
        if (x->src[i] != '{' || x->src[i + 1] != '%' || !(word = tag_word(x, i, "endraw")) || !(end = close_tag(x, word, "%}", true, true)))
            continue;
        t = token(x, T_TEXT, begin, text_end(x, begin, i, false));
        pass(x, end);
        return t;
    }
    t = token(x, T_TEXT, begin, begin);
    nb_j_syntax(p, &t, "{%% raw %%} without {%% endraw %%}");
}

static void skip_comment(jparse *p, size_t open)
{
    jlex *x = &p->lex;
    jtoken t;

    for (size_t i = open + 2; i < x->n; i++) {
        const char *hit = memchr(x->src + i, '#', x->n - i);
        if (!hit)
            break;
        i = (size_t)(hit - x->src);
        if (!at(x, i, "#}"))
            continue;
        if (i > open + 2 && (x->src[i - 1] == '-' || x->src[i - 1] == '+'))
            i--;
        pass(x, close_tag(x, i, "#}", true, true));
        return;
    }
    t = token(x, T_TEXT, open, open);
    nb_j_syntax(p, &t, "a comment that does not end");
}

/* Text up to the next tag, or the begin of that tag. Empty texts are skipped. */
static jtoken outside(jparse *p)
{
    jlex *x = &p->lex;

    while (x->at < x->n) {
        const size_t from = x->at;
        size_t tag = from, end, word;
        jtoken t;
        char kind;

        for (;; tag++) {
            const char *hit = memchr(x->src + tag, '{', x->n - tag);
            tag = hit ? (size_t)(hit - x->src) : x->n;
            if (tag + 1 >= x->n || x->src[tag + 1] == '{' || x->src[tag + 1] == '%' || x->src[tag + 1] == '#')
                break;
        }
        if (tag + 1 >= x->n) {
            t = token(x, T_TEXT, from, x->n);
            pass(x, x->n);
            return t;
        }
        kind = x->src[tag + 1];
        end = text_end(x, from, tag, kind == '{');
        t = token(x, T_TEXT, from, end);
        pass(x, tag);
        if (end > from)
            return t; /* the tag itself comes with the next call, which finds no text before it */
        if (kind == '#') {
            skip_comment(p, tag);
            continue;
        }
        if (kind == '%' && (word = tag_word(x, tag, "raw")) && (end = close_tag(x, word, "%}", false, false))) {
            t = raw_text(p, end);
            if (t.n)
                return t;
            continue;
        }
        end = tag + 2;
        if (end < x->n && (x->src[end] == '-' || x->src[end] == '+'))
            end++;
        t = token(x, kind == '{' ? T_OUT_BEGIN : T_STMT_BEGIN, tag, end);
        x->mode = kind == '{' ? IN_OUT : IN_STMT;
        x->n_open = 0;
        pass(x, end);
        return t;
    }
    return token(x, T_END, x->n, x->n);
}

/* ---- inside tags ---- */

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex(char c)
{
    return digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Behind digits with single underscores between them; i itself when there is none. */
static size_t digits(const jlex *x, size_t i)
{
    if (i >= x->n || !digit(x->src[i]))
        return i;
    for (i++; i < x->n; i++)
        if (!digit(x->src[i]) && !(x->src[i] == '_' && i + 1 < x->n && digit(x->src[i + 1])))
            break;
    return i;
}

static size_t based_digits(const jlex *x, size_t i, int base)
{
    const size_t from = i;

    for (;;) {
        const size_t j = i < x->n && x->src[i] == '_' ? i + 1 : i;
        const int d = j < x->n ? hex(x->src[j]) : -1;
        if (d < 0 || d >= base)
            break;
        i = j + 1;
    }
    return i > from ? i : 0;
}

static jtoken number(jparse *p)
{
    jlex *x = &p->lex;
    const size_t from = x->at;
    const bool after_dot = from > 0 && x->src[from - 1] == '.';
    size_t i = digits(x, from), j = i, k;
    jtoken t;

    if (!after_dot) {
        if (j < x->n && x->src[j] == '.' && (k = digits(x, j + 1)) > j + 1)
            j = k;
        if (j < x->n && (x->src[j] == 'e' || x->src[j] == 'E')) {
            k = j + 1;
            if (k < x->n && (x->src[k] == '+' || x->src[k] == '-'))
                k++;
            if (digits(x, k) > k)
                j = digits(x, k);
        }
        if (j > i) {
            t = token(x, T_FLOAT, from, j);
            advance(x, j);
            return t;
        }
    }
    if (x->src[from] == '0') {
        const char c = from + 1 < x->n ? (char)(x->src[from + 1] | 0x20) : '\0';
        const int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        const size_t end = base ? based_digits(x, from + 2, base) : 0;
        if (end) {
            i = end;
        } else { /* a decimal that starts with 0 is only zeros */
            for (i = from + 1; i < x->n && (x->src[i] == '0' || (x->src[i] == '_' && i + 1 < x->n && x->src[i + 1] == '0')); i++) {
            }
        }
    }
    t = token(x, T_INT, from, i);
    advance(x, i);
    return t;
}

/* One escape of a string at s[*i] (behind the backslash); appends to b. False: bad digits. */
static bool escape(const char *s, size_t n, size_t *i, nb_buf *b)
{
    static const char from[] = "ntrbfva\\'\"", to[] = "\n\t\r\b\f\v\a\\'\"";
    const char c = s[(*i)++];
    const char *hit = c ? strchr(from, c) : NULL;
    uint32_t cp = 0, low = 0;
    int want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;

    if (hit) {
        nb_buf_putc(b, to[hit - from]);
        return true;
    }
    if (c == '\n')
        return true;
    if (c >= '0' && c <= '7') {
        cp = (uint32_t)(c - '0');
        for (int k = 1; k < 3 && *i < n && s[*i] >= '0' && s[*i] <= '7'; k++)
            cp = cp * 8 + (uint32_t)(s[(*i)++] - '0');
        nb_u8_append(b, cp);
        return true;
    }
    if (!want) {
        nb_buf_putc(b, '\\');
        nb_buf_putc(b, c);
        return c != 'N';
    }
    for (int k = 0; k < want; k++) {
        if (*i >= n || hex(s[*i]) < 0)
            return false;
        cp = cp << 4 | (uint32_t)hex(s[(*i)++]);
    }
    if (cp >= 0xD800 && cp <= 0xDBFF && n - *i >= 6 && s[*i] == '\\' && s[*i + 1] == 'u') { /* a pair is one character */
        for (int k = 2; k < 6; k++)
            low = low << 4 | (uint32_t)(hex(s[*i + (size_t)k]) < 0 ? 0xF0000 : hex(s[*i + (size_t)k]));
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *i += 6;
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    if (cp > 0x10FFFF)
        return false;
    nb_u8_append(b, cp >= 0xD800 && cp <= 0xDFFF ? 0xFFFD : cp);
    return true;
}

static jtoken string(jparse *p)
{
    jlex *x = &p->lex;
    const char quote = x->src[x->at];
    const size_t from = x->at + 1;
    size_t i = from;
    bool plain = true;
    jtoken t = token(x, T_STR, x->at, x->at + 1);

    for (; i < x->n && x->src[i] != quote; i++)
        if (x->src[i] == '\\') {
            plain = false;
            i++;
        }
    if (i >= x->n)
        nb_j_syntax(p, &t, "a string that does not end");
    t.s = x->src + from;
    t.n = i - from;
    advance(x, i + 1);
    if (!plain) {
        nb_buf b = { 0 };
        const char *s = t.s;
        bool ok = true;
        for (size_t k = 0; k < t.n && ok;) {
            const char *back = memchr(s + k, '\\', t.n - k);
            const size_t run = back ? (size_t)(back - s) - k : t.n - k;
            nb_buf_put(&b, s + k, run);
            k += run;
            if (back) {
                k++;
                ok = escape(s, t.n, &k, &b);
            }
        }
        const bool failed = b.failed;
        char *keep = ok && !failed ? nb_arena_strndup(&p->t->arena, b.p ? b.p : "", b.n) : NULL;
        t.n = b.n;
        nb_buf_clear(&b);
        if (!ok)
            nb_j_syntax(p, &t, "a string with a broken escape");
        if (!keep) {
            nb_enomem(p->err, "the template");
            nb_j_parse_stop(p);
        }
        t.s = keep;
    }
    return t;
}

static size_t name_end(const jlex *x, size_t i)
{
    while (i < x->n) {
        uint32_t cp;
        const int k = nb_u8_next(x->src + i, x->n - i, &cp, NULL);
        if (k <= 0 || !(cp < 128 ? (cp == '_' || digit((char)cp) || ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z'))
                                 : nb_j_str_is(&(jstr){ x->src + i, (size_t)k, 1 }, "word")))
            break;
        i += (size_t)k;
    }
    return i;
}

static jtoken operator_token(jparse *p)
{
    static const char *const two[] = { "//", "**", "==", "!=", ">=", "<=" };
    jlex *x = &p->lex;
    const char c = x->src[x->at];
    jtoken t = token(x, T_OP, x->at, x->at + 1);

    t.op = (unsigned char)c;
    for (size_t i = 0; i < NB_LEN(two); i++)
        if (at(x, x->at, two[i])) {
            t.op = J_OP2(two[i][0], two[i][1]);
            t.n = 2;
        }
    if (t.n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c)))
        nb_j_syntax(p, &t, "unexpected character");
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open >= J_NEST_MOST) {
            nb_fail(p->err, NB_ELIMIT, "tmpl.depth", "JT-07", "line %u, column %u: more than %d brackets inside each other", t.line, t.col,
                    J_NEST_MOST);
            nb_j_parse_stop(p);
        }
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!x->n_open || x->open[x->n_open - 1] != c)
            nb_j_syntax(p, &t, "unexpected \"%c\"", c);
        x->n_open--;
    }
    advance(x, x->at + t.n);
    return t;
}

jtoken nb_j_lex_next(jparse *p)
{
    jlex *x = &p->lex;
    const bool output = x->mode == IN_OUT;
    size_t end;
    jtoken t;
    char c;

    if (x->mode == OUTSIDE)
        return outside(p);
    advance(x, skip_space(x, x->at));
    if (x->at >= x->n) {
        t = token(x, T_END, x->n, x->n);
        nb_j_syntax(p, &t, "the template ends inside a tag");
    }
    if (!x->n_open && (end = close_tag(x, x->at, output ? "}}" : "%}", !output, !output)) != 0) {
        t = token(x, output ? T_OUT_END : T_STMT_END, x->at, end);
        x->mode = OUTSIDE;
        pass(x, end);
        return t;
    }
    c = x->src[x->at];
    if (digit(c))
        return number(p);
    if (c == '"' || c == '\'')
        return string(p);
    end = name_end(x, x->at);
    if (end > x->at) {
        t = token(x, T_NAME, x->at, end);
        advance(x, end);
        return t;
    }
    return operator_token(p);
}
