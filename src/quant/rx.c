/* rx.c - see rx.h: a recursive-descent compiler to relative jumps, and a simulation of all threads in step. */
#include "quant/rx.h"

#include <string.h>

#include "base/mem.h"

enum { MAX_STEPS = 4096, MAX_DEPTH = 200, MAX_REPEAT = 1000 };

typedef enum op { OP_SET, OP_SPLIT, OP_JMP, OP_BEGIN, OP_END, OP_EDGE, OP_NOEDGE, OP_MATCH } op;

/* a and b are distances from the step itself; a is the set of OP_SET. */
typedef struct step {
    op op;
    int32_t a, b;
} step;

typedef struct byte_set {
    uint32_t w[8];
} byte_set;

struct nb_rx {
    step *prog;
    byte_set *sets;
    size_t n, n_sets, cap, cap_sets;
    uint32_t *mark;              /* [n] pass in which a step was added */
    uint32_t *now, *next, *todo; /* [n] threads, and a stack           */
    uint32_t pass;
};

/* ---- compiler ------------------------------------------------------------------------------------------------- */

typedef struct parser {
    nb_rx *rx;
    const unsigned char *p, *begin, *end;
    int depth;
    nb_err *err;
    nb_status rc; /* of the first failure */
} parser;

static bool bad(parser *c, nb_status code, const char *what)
{
    if (c->rc == NB_OK)
        c->rc = nb_fail(c->err, code,
                        code == NB_EFORMAT  ? "cfg.quant_rule"
                        : code == NB_ELIMIT ? "limit.quant_rules"
                                            : "cfg.unsupported",
                        "CFG-016", "%s at byte %zu", what, (size_t)(c->p - c->begin));
    return false;
}

static bool no_memory(parser *c)
{
    if (c->rc == NB_OK)
        c->rc = nb_enomem(c->err, "a pattern");
    return false;
}

/* Room for `more` steps. */
static bool reserve(parser *c, size_t more)
{
    nb_rx *rx = c->rx;

    if (more > MAX_STEPS || rx->n + more > MAX_STEPS)
        return bad(c, NB_ELIMIT, "a pattern of more than 4096 steps");
    if (rx->n + more > rx->cap) {
        const size_t cap = rx->n + more + 64;
        step *p = nb_realloc(rx->prog, cap * sizeof *p);
        if (!p)
            return no_memory(c);
        rx->prog = p;
        rx->cap = cap;
    }
    return true;
}

static bool insert(parser *c, size_t at, step s)
{
    nb_rx *rx = c->rx;

    if (!reserve(c, 1))
        return false;
    memmove(rx->prog + at + 1, rx->prog + at, (rx->n - at) * sizeof *rx->prog);
    rx->prog[at] = s;
    rx->n++;
    return true;
}

static bool emit(parser *c, op o, int32_t a, int32_t b)
{
    return insert(c, c->rx->n, (step){ o, a, b });
}

static void set_add(byte_set *s, unsigned lo, unsigned hi)
{
    for (unsigned i = lo; i <= hi; i++)
        s->w[i / 32] |= 1u << i % 32;
}

static bool set_has(const byte_set *s, unsigned char b)
{
    return s->w[b / 32] >> b % 32 & 1;
}

/* One character of the set: a byte, and for an inverted set, which takes all beyond ASCII, the bytes that follow it. */
static bool emit_set(parser *c, const byte_set *s)
{
    nb_rx *rx = c->rx;
    byte_set tail = { { 0 } };
    const bool wide = (s->w[7] >> 16 & 1) && (s->w[6] >> 3 & 1); /* 0xf0 and 0xc3: an inverted set */

    if (rx->n_sets + 2 > rx->cap_sets) {
        const size_t cap = rx->cap_sets * 2 + 16;
        byte_set *p = nb_realloc(rx->sets, cap * sizeof *p);
        if (!p)
            return no_memory(c);
        rx->sets = p;
        rx->cap_sets = cap;
    }
    rx->sets[rx->n_sets++] = *s;
    if (!emit(c, OP_SET, (int32_t)rx->n_sets - 1, 0))
        return false;
    if (!wide)
        return true;
    set_add(&tail, 0x80, 0xbf);
    rx->sets[rx->n_sets++] = tail;
    return emit(c, OP_SPLIT, 1, 3) && emit(c, OP_SET, (int32_t)rx->n_sets - 1, 0) && emit(c, OP_JMP, -2, 0);
}

/* Everything but the set, as whole characters. */
static void set_invert(byte_set *s)
{
    for (int i = 0; i < 4; i++)
        s->w[i] = ~s->w[i];
    s->w[4] = s->w[5] = 0; /* 0x80 .. 0xbf begin no character */
    s->w[6] = s->w[7] = ~0u;
}

/* \d \w \s and their opposites; false: another letter. */
static bool class_escape(byte_set *s, unsigned char e)
{
    byte_set t = { { 0 } };

    switch (e | 32) {
    case 'd':
        set_add(&t, '0', '9');
        break;
    case 'w':
        set_add(&t, '0', '9');
        set_add(&t, 'A', 'Z');
        set_add(&t, 'a', 'z');
        set_add(&t, '_', '_');
        break;
    case 's':
        set_add(&t, '\t', '\r');
        set_add(&t, ' ', ' ');
        break;
    default:
        return false;
    }
    if (!(e & 32))
        set_invert(&t);
    for (int i = 0; i < 8; i++)
        s->w[i] |= t.w[i];
    return true;
}

static int hex(unsigned char ch)
{
    return ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
}

/* A character behind a backslash that stands for one byte; c->p is behind it afterwards. */
static bool byte_escape(parser *c, unsigned char *out)
{
    static const char from[] = "nrtfva", to[] = "\n\r\t\f\v\a";
    const unsigned char e = *c->p;
    const char *at = e ? strchr(from, e) : NULL;

    if (at) {
        *out = (unsigned char)to[at - from];
    } else if (e == 'x' && c->end - c->p > 2 && hex(c->p[1]) >= 0 && hex(c->p[1]) < 8 && hex(c->p[2]) >= 0) {
        *out = (unsigned char)(hex(c->p[1]) * 16 + hex(c->p[2]));
        c->p += 2;
    } else if (e >= '1' && e <= '9') {
        return bad(c, NB_EUNSUPPORTED, "a back reference");
    } else if (e < 0x80 && !((e | 32) >= 'a' && (e | 32) <= 'z') && e != '0') {
        *out = e;
    } else {
        return bad(c, NB_EFORMAT, "an unknown escape");
    }
    c->p++;
    return true;
}

/* [...], c->p behind the bracket. */
static bool parse_class(parser *c)
{
    byte_set s = { { 0 } };
    bool invert = false, first = true;

    if (c->p < c->end && *c->p == '^') {
        invert = true;
        c->p++;
    }
    for (;; first = false) {
        unsigned char lo, hi;
        if (c->p >= c->end)
            return bad(c, NB_EFORMAT, "a class that does not end");
        lo = *c->p++;
        if (lo == ']' && !first)
            break;
        if (lo >= 0x80)
            return bad(c, NB_EUNSUPPORTED, "a class with characters beyond ASCII");
        if (lo == '\\') {
            if (c->p >= c->end)
                return bad(c, NB_EFORMAT, "a class that does not end");
            if (class_escape(&s, *c->p)) {
                c->p++;
                continue;
            }
            if (!byte_escape(c, &lo))
                return false;
        }
        hi = lo;
        if (c->end - c->p >= 2 && *c->p == '-' && c->p[1] != ']') {
            hi = c->p[1];
            c->p += 2;
            if (hi >= 0x80)
                return bad(c, NB_EUNSUPPORTED, "a class with characters beyond ASCII");
            if (hi == '\\' && (c->p >= c->end || !byte_escape(c, &hi)))
                return bad(c, NB_EFORMAT, "a range that does not end");
            if (hi < lo)
                return bad(c, NB_EFORMAT, "a range that runs backwards");
        }
        set_add(&s, lo, hi);
    }
    if (invert)
        set_invert(&s);
    return emit_set(c, &s);
}

static bool parse_alt(parser *c);

/* (...), c->p behind the parenthesis. */
static bool parse_group(parser *c)
{
    if (c->p < c->end && *c->p == '?') {
        c->p++;
        if (c->p < c->end && *c->p == ':') {
            c->p++;
        } else if (c->end - c->p > 2 && c->p[0] == 'P' && c->p[1] == '<') {
            while (c->p < c->end && *c->p != '>')
                c->p++;
            if (c->p >= c->end)
                return bad(c, NB_EFORMAT, "a group name that does not end");
            c->p++;
        } else if (c->p < c->end && strchr("=!<", *c->p)) {
            return bad(c, NB_EUNSUPPORTED, "a look-around");
        } else {
            return bad(c, NB_EUNSUPPORTED, "a group of a special kind");
        }
    }
    if (!parse_alt(c))
        return false;
    if (c->p >= c->end || *c->p != ')')
        return bad(c, NB_EFORMAT, "a group that does not end");
    c->p++;
    return true;
}

static bool parse_escape(parser *c, bool *edge)
{
    byte_set s = { { 0 } };
    unsigned char b = 0;

    if (c->p >= c->end)
        return bad(c, NB_EFORMAT, "a backslash without a character");
    *edge = strchr("bBAZ", *c->p) && *c->p;
    switch (*c->p) {
    case 'b':
        c->p++;
        return emit(c, OP_EDGE, 0, 0);
    case 'B':
        c->p++;
        return emit(c, OP_NOEDGE, 0, 0);
    case 'A':
        c->p++;
        return emit(c, OP_BEGIN, 0, 0);
    case 'Z':
        c->p++;
        return emit(c, OP_END, 0, 0);
    default:
        break;
    }
    if (class_escape(&s, *c->p)) {
        c->p++;
        return emit_set(c, &s);
    }
    if (!byte_escape(c, &b))
        return false;
    set_add(&s, b, b);
    return emit_set(c, &s);
}

/* A literal character: all bytes of one beyond ASCII belong to the same atom. */
static bool parse_literal(parser *c)
{
    do {
        byte_set s = { { 0 } };
        set_add(&s, *c->p, *c->p);
        if (!emit_set(c, &s))
            return false;
        c->p++;
    } while (c->p[-1] >= 0x80 && c->p < c->end && (*c->p & 0xc0) == 0x80);
    return true;
}

/* {m}, {m,}, {,n}, {m,n}; anything else is a literal brace. max -1: no end. */
static bool braces(const unsigned char *p, const unsigned char *end, int *min, int *max, const unsigned char **behind)
{
    int v[2] = { 0, -1 };
    bool any = false, comma = false;

    for (p++; p < end && *p != '}'; p++) {
        if (*p == ',' && !comma) {
            comma = true;
        } else if (*p >= '0' && *p <= '9') {
            int *x = &v[comma];
            any = true;
            *x = (*x < 0 ? 0 : *x) * 10 + (*p - '0');
            if (*x > MAX_REPEAT)
                *x = MAX_REPEAT + 1;
        } else {
            return false;
        }
    }
    if (p >= end || (!any && !comma))
        return false;
    *min = v[0];
    *max = comma ? v[1] : v[0];
    *behind = p + 1;
    return true;
}

/* Copy steps [s, s + len) to the end. */
static bool copy_steps(parser *c, size_t s, size_t len)
{
    if (!reserve(c, len))
        return false;
    memcpy(c->rx->prog + c->rx->n, c->rx->prog + s, len * sizeof *c->rx->prog);
    c->rx->n += len;
    return true;
}

/* Steps [s, end) min to max times. */
static bool repeat(parser *c, size_t s, int min, int max)
{
    nb_rx *rx = c->rx;
    const size_t len = rx->n - s;

    if (min > MAX_REPEAT || max > MAX_REPEAT)
        return bad(c, NB_ELIMIT, "a repetition of more than 1000");
    if (max >= 0 && max < min)
        return bad(c, NB_EFORMAT, "a repetition whose end is below its beginning");
    if (max == 0 || len == 0) {
        rx->n = max == 0 ? s : rx->n;
        return true;
    }
    if (max < 0 && min == 0) /* x*: split, x, jump back */
        return insert(c, s, (step){ OP_SPLIT, 1, (int32_t)len + 2 }) && emit(c, OP_JMP, -(int32_t)len - 1, 0);
    for (int i = 1; i < min; i++)
        if (!copy_steps(c, s, len))
            return false;
    if (max < 0) /* the last copy again and again */
        return emit(c, OP_SPLIT, -(int32_t)len, 1);
    if (min == 0) {
        if (!insert(c, s, (step){ OP_SPLIT, 1, (int32_t)((len + 1) * (size_t)max) }))
            return false;
        s++;
        min = 1;
    }
    for (int i = min; i < max; i++) /* each optional copy may leave for the end */
        if (!emit(c, OP_SPLIT, 1, (int32_t)((len + 1) * (size_t)(max - i))) || !copy_steps(c, s, len))
            return false;
    return true;
}

/* An atom with its quantifier. */
static bool parse_item(parser *c)
{
    const size_t s = c->rx->n;
    const unsigned char ch = *c->p, *behind;
    byte_set any = { { 0 } };
    bool ok, edge = false;
    int min, max;

    switch (ch) {
    case '(':
        c->p++;
        ok = parse_group(c);
        break;
    case '[':
        c->p++;
        ok = parse_class(c);
        break;
    case '\\':
        c->p++;
        ok = parse_escape(c, &edge);
        break;
    case '.':
        c->p++;
        set_add(&any, '\n', '\n');
        set_invert(&any);
        ok = emit_set(c, &any);
        break;
    case '^':
    case '$':
        c->p++;
        edge = true;
        ok = emit(c, ch == '^' ? OP_BEGIN : OP_END, 0, 0);
        break;
    case '*':
    case '+':
    case '?':
        return bad(c, NB_EFORMAT, "nothing to repeat");
    default:
        ok = parse_literal(c);
    }
    if (!ok || c->p >= c->end)
        return ok;
    if (*c->p == '*' || *c->p == '+' || *c->p == '?') {
        min = *c->p == '+';
        max = *c->p == '?' ? 1 : -1;
        c->p++;
    } else if (*c->p != '{' || !braces(c->p, c->end, &min, &max, &behind)) {
        return true;
    } else {
        c->p = behind;
    }
    if (edge)
        return bad(c, NB_EUNSUPPORTED, "a repeated anchor");
    if (c->p < c->end && *c->p == '?')
        c->p++; /* lazy */
    else if (c->p < c->end && *c->p == '+')
        return bad(c, NB_EUNSUPPORTED, "a possessive quantifier");
    if (c->p < c->end && (*c->p == '*' || *c->p == '+' || *c->p == '?'))
        return bad(c, NB_EFORMAT, "a repeated quantifier");
    return repeat(c, s, min, max);
}

static bool parse_alt(parser *c)
{
    const size_t s = c->rx->n;
    size_t jump;

    if (++c->depth > MAX_DEPTH)
        return bad(c, NB_ELIMIT, "more than 200 nested groups or alternatives");
    while (c->p < c->end && *c->p != '|' && *c->p != ')')
        if (!parse_item(c))
            return false;
    if (c->p < c->end && *c->p == '|') {
        c->p++;
        if (!insert(c, s, (step){ OP_SPLIT, 1, 0 }))
            return false;
        jump = c->rx->n;
        if (!emit(c, OP_JMP, 0, 0))
            return false;
        c->rx->prog[s].b = (int32_t)(c->rx->n - s);
        if (!parse_alt(c))
            return false;
        c->rx->prog[jump].a = (int32_t)(c->rx->n - jump);
    }
    c->depth--;
    return true;
}

nb_status nb_rx_new(const char *pattern, size_t n, nb_rx **out, nb_err *err)
{
    const unsigned char *p = (const unsigned char *)pattern;
    nb_rx *rx = nb_calloc(1, sizeof *rx);
    parser c = { .rx = rx, .p = p, .begin = p, .end = p + n, .err = err };

    *out = NULL;
    if (!rx)
        return nb_enomem(err, "a pattern");
    if (parse_alt(&c) && c.p < c.end)
        bad(&c, NB_EFORMAT, "a group that was not opened");
    if (c.rc == NB_OK && emit(&c, OP_MATCH, 0, 0)) {
        rx->mark = nb_calloc(rx->n, sizeof *rx->mark);
        rx->now = nb_alloc_array(rx->n, sizeof *rx->now);
        rx->next = nb_alloc_array(rx->n, sizeof *rx->next);
        rx->todo = nb_alloc_array(2 * rx->n + 2, sizeof *rx->todo);
        if (!rx->mark || !rx->now || !rx->next || !rx->todo)
            no_memory(&c);
    }
    if (c.rc != NB_OK) {
        nb_rx_free(rx);
        return c.rc;
    }
    *out = rx;
    return NB_OK;
}

void nb_rx_free(nb_rx *rx)
{
    if (!rx)
        return;
    nb_free(rx->prog);
    nb_free(rx->sets);
    nb_free(rx->mark);
    nb_free(rx->now);
    nb_free(rx->next);
    nb_free(rx->todo);
    nb_free(rx);
}

/* ---- simulation ----------------------------------------------------------------------------------------------- */

static bool is_word(unsigned char b)
{
    return (b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z') || b == '_' || b >= 0x80;
}

static bool holds(op o, const unsigned char *t, size_t at, size_t n)
{
    const bool edge = (at > 0 && is_word(t[at - 1])) != (at < n && is_word(t[at]));

    switch (o) {
    case OP_BEGIN:
        return at == 0;
    case OP_END:
        return at == n || (at + 1 == n && t[at] == '\n');
    case OP_EDGE:
        return edge;
    default:
        return !edge;
    }
}

/* Add step s and all it leads to without reading; true when the pattern is complete. */
static bool add(nb_rx *rx, uint32_t *list, size_t *n_list, uint32_t s, const unsigned char *t, size_t at, size_t n, uint64_t *work)
{
    size_t top = 0;

    rx->todo[top++] = s;
    while (top) {
        const uint32_t x = rx->todo[--top];
        const step *i = &rx->prog[x];
        if (rx->mark[x] == rx->pass)
            continue;
        rx->mark[x] = rx->pass;
        ++*work;
        switch (i->op) {
        case OP_MATCH:
            return true;
        case OP_SET:
            list[(*n_list)++] = x;
            break;
        case OP_SPLIT:
            rx->todo[top++] = (uint32_t)((int32_t)x + i->b);
            rx->todo[top++] = (uint32_t)((int32_t)x + i->a);
            break;
        case OP_JMP:
            rx->todo[top++] = (uint32_t)((int32_t)x + i->a);
            break;
        default:
            if (holds(i->op, t, at, n))
                rx->todo[top++] = x + 1;
        }
    }
    return false;
}

bool nb_rx_match(nb_rx *rx, const char *text, size_t n, bool anywhere, uint64_t *work)
{
    const unsigned char *t = (const unsigned char *)text;
    size_t n_now = 0, n_next = 0;

    if (rx->pass > UINT32_MAX - n - 2) {
        memset(rx->mark, 0, rx->n * sizeof *rx->mark);
        rx->pass = 0;
    }
    rx->pass++;
    if (add(rx, rx->now, &n_now, 0, t, 0, n, work))
        return true;
    for (size_t at = 0; at < n && (n_now || anywhere); at++) {
        uint32_t *swap = rx->now;
        rx->pass++;
        n_next = 0;
        *work += n_now;
        for (size_t i = 0; i < n_now; i++)
            if (set_has(&rx->sets[rx->prog[rx->now[i]].a], t[at]) && add(rx, rx->next, &n_next, rx->now[i] + 1, t, at + 1, n, work))
                return true;
        if (anywhere && add(rx, rx->next, &n_next, 0, t, at + 1, n, work))
            return true;
        rx->now = rx->next;
        rx->next = swap;
        n_now = n_next;
    }
    return false;
}
