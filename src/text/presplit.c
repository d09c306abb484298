#include "text/presplit.h"

#include <string.h>

#include "text/norm.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char nb_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char nb_llama3_pattern[] = CONTRACTION "\\p{N}{1,3}" TAIL;
const char nb_qwen2_pattern[] = CONTRACTION "\\p{N}" TAIL;

/* ---- steps ---- */

typedef enum behavior { REMOVED, ISOLATED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS } behavior;
typedef enum kind { PATTERN, CLASS, WORDS, CHUNK, PREFIX_SPACE, BYTES, META } kind;
typedef enum scheme { ALWAYS, FIRST, NEVER } scheme;

typedef struct step {
    kind kind;
    behavior behavior;
    bool invert;
    nb_pattern *pattern;
    bool (*in_class)(uint32_t cp);
    size_t length; /* CHUNK */
    char mark[4];  /* META: the replacement character */
    size_t n_mark;
    scheme scheme;
} step;

struct nb_presplit {
    step *v;
    size_t n, cap;
};

static step *add_step(nb_presplit *p, kind k)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 8;
        step *v = nb_realloc(p->v, cap * sizeof *v);
        if (!v)
            return NULL;
        p->v = v;
        p->cap = cap;
    }
    memset(&p->v[p->n], 0, sizeof *p->v);
    p->v[p->n].kind = k;
    p->v[p->n].behavior = ISOLATED;
    return &p->v[p->n++];
}

static nb_status no_memory(nb_err *err)
{
    return nb_enomem(err, "the pre-tokenizer");
}

static nb_status add_class(nb_presplit *p, bool (*in)(uint32_t), behavior b, nb_err *err)
{
    step *s = add_step(p, CLASS);

    if (!s)
        return no_memory(err);
    s->in_class = in;
    s->behavior = b;
    return NB_OK;
}

static nb_status read_behavior(const nb_json *v, behavior dflt, behavior *out, nb_err *err)
{
    static const char *const names[] = { [REMOVED] = "Removed",
                                         [ISOLATED] = "Isolated",
                                         [MERGED_PREVIOUS] = "MergedWithPrevious",
                                         [MERGED_NEXT] = "MergedWithNext",
                                         [CONTIGUOUS] = "Contiguous" };
    char esc[NB_ESC_CAP];
    const char *s = nb_json_str(v, "");

    *out = dflt;
    if (!v)
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(names); i++) {
        if (strcmp(names[i], s) == 0) {
            *out = (behavior)i;
            return NB_OK;
        }
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "split behavior \"%s\" is not known",
                   nb_esc(esc, sizeof esc, s, strlen(s)));
}

static nb_status open_bytelevel(nb_presplit *p, const nb_json *v, nb_err *err)
{
    step *s;

    if (nb_json_bool(nb_json_get(v, "add_prefix_space"), true) && !add_step(p, PREFIX_SPACE))
        return no_memory(err);
    if (nb_json_bool(nb_json_get(v, "use_regex"), true)) {
        s = add_step(p, PATTERN);
        if (!s)
            return no_memory(err);
        nb_status rc = nb_pattern_regex(nb_gpt2_pattern, strlen(nb_gpt2_pattern), &s->pattern, err);
        if (rc != NB_OK)
            return rc;
    }
    return add_step(p, BYTES) ? NB_OK : no_memory(err);
}

static nb_status open_split(nb_presplit *p, const nb_json *v, nb_err *err)
{
    step *s = add_step(p, PATTERN);
    nb_status rc;

    if (!s)
        return no_memory(err);
    rc = nb_pattern_open(nb_json_get(v, "pattern"), &s->pattern, err);
    if (rc == NB_OK)
        rc = read_behavior(nb_json_get(v, "behavior"), ISOLATED, &s->behavior, err);
    s->invert = nb_json_bool(nb_json_get(v, "invert"), false);
    return rc;
}

static nb_status literal_step(nb_presplit *p, const char *c, size_t n, behavior b, nb_err *err)
{
    step *s = add_step(p, PATTERN);

    if (!s)
        return no_memory(err);
    s->behavior = b;
    return nb_pattern_literal(c, n, &s->pattern, err);
}

static nb_status one_char(const nb_json *v, const char *dflt, const char *key, const char **s, size_t *n, nb_err *err)
{
    uint32_t cp;

    *s = nb_json_str(v, dflt);
    *n = v ? nb_json_str_len(v) : strlen(dflt);
    if (*n == 0 || nb_u8_next(*s, *n, &cp, NULL) != (int)*n)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "\"%s\" of the pre-tokenizer must be one character", key);
    return NB_OK;
}

static nb_status open_metaspace(nb_presplit *p, const nb_json *v, nb_err *err)
{
    const char *scheme_name = nb_json_str(nb_json_get(v, "prepend_scheme"), NULL);
    const bool prefix = nb_json_bool(nb_json_get(v, "add_prefix_space"), true);
    char esc[NB_ESC_CAP];
    const char *c;
    size_t n;
    step *s;
    nb_status rc = one_char(nb_json_get(v, "replacement"), "\xe2\x96\x81", "replacement", &c, &n, err);

    if (rc != NB_OK)
        return rc;
    s = add_step(p, META);
    if (!s)
        return no_memory(err);
    memcpy(s->mark, c, n);
    s->n_mark = n;
    if (!scheme_name)
        s->scheme = prefix ? ALWAYS : NEVER;
    else if (strcmp(scheme_name, "always") == 0)
        s->scheme = ALWAYS;
    else if (strcmp(scheme_name, "first") == 0)
        s->scheme = FIRST;
    else if (strcmp(scheme_name, "never") == 0)
        s->scheme = NEVER;
    else
        return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "Metaspace prepend_scheme \"%s\" is not known",
                       nb_esc(esc, sizeof esc, scheme_name, strlen(scheme_name)));
    if (nb_json_bool(nb_json_get(v, "split"), true))
        return literal_step(p, c, n, MERGED_NEXT, err);
    return NB_OK;
}

static nb_status open_digits(nb_presplit *p, const nb_json *v, nb_err *err)
{
    return add_class(p, nb_uc_number, nb_json_bool(nb_json_get(v, "individual_digits"), false) ? ISOLATED : CONTIGUOUS, err);
}

static nb_status open_punctuation(nb_presplit *p, const nb_json *v, nb_err *err)
{
    behavior b;
    nb_status rc = read_behavior(nb_json_get(v, "behavior"), ISOLATED, &b, err);

    return rc == NB_OK ? add_class(p, nb_uc_punct, b, err) : rc;
}

static nb_status open_whitespace(nb_presplit *p, const nb_json *v, nb_err *err)
{
    step *s = add_step(p, WORDS);

    (void)v;
    if (!s)
        return no_memory(err);
    s->behavior = REMOVED;
    s->invert = true;
    return NB_OK;
}

static nb_status open_whitespace_split(nb_presplit *p, const nb_json *v, nb_err *err)
{
    (void)v;
    return add_class(p, nb_uc_space, REMOVED, err);
}

static nb_status open_bert(nb_presplit *p, const nb_json *v, nb_err *err)
{
    nb_status rc = open_whitespace_split(p, v, err);

    return rc == NB_OK ? add_class(p, nb_uc_punct, ISOLATED, err) : rc;
}

static nb_status open_delimiter(nb_presplit *p, const nb_json *v, nb_err *err)
{
    const char *c;
    size_t n;
    nb_status rc = one_char(nb_json_get(v, "delimiter"), "", "delimiter", &c, &n, err);

    return rc == NB_OK ? literal_step(p, c, n, REMOVED, err) : rc;
}

static nb_status open_fixed(nb_presplit *p, const nb_json *v, nb_err *err)
{
    const int64_t length = nb_json_int(nb_json_get(v, "length"), 5);
    step *s;

    if (length < 1)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "FixedLength pre-tokenizer with length %lld, at least 1 is needed",
                       (long long)length);
    s = add_step(p, CHUNK);
    if (!s)
        return no_memory(err);
    s->length = (size_t)length;
    return NB_OK;
}

static nb_status open_one(nb_presplit *p, const nb_json *v, nb_err *err);

static nb_status open_sequence(nb_presplit *p, const nb_json *v, nb_err *err)
{
    const nb_json *list = nb_json_get(v, "pretokenizers");
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++)
        rc = open_one(p, nb_json_at(list, i), err);
    return rc;
}

static nb_status open_one(nb_presplit *p, const nb_json *v, nb_err *err)
{
    static const struct {
        const char *type;
        nb_status (*open)(nb_presplit *, const nb_json *, nb_err *);
    } types[] = {
        { "Sequence", open_sequence },     { "ByteLevel", open_bytelevel },
        { "Split", open_split },           { "Digits", open_digits },
        { "Metaspace", open_metaspace },   { "Punctuation", open_punctuation },
        { "Whitespace", open_whitespace }, { "WhitespaceSplit", open_whitespace_split },
        { "BertPreTokenizer", open_bert }, { "CharDelimiterSplit", open_delimiter },
        { "FixedLength", open_fixed },
    };
    const char *type = nb_json_str(nb_json_get(v, "type"), "");
    char esc[NB_ESC_CAP];

    if (p->n > 256)
        return nb_fail(err, NB_ELIMIT, "limit.steps", "", "more than 256 pre-tokenizer steps");
    for (size_t i = 0; i < NB_LEN(types); i++) {
        if (strcmp(types[i].type, type) == 0)
            return types[i].open(p, v, err);
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "pre-tokenizer type \"%s\" is not supported",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

nb_status nb_presplit_open(const nb_json *spec, bool *raw_bytes, nb_presplit **out, nb_err *err)
{
    nb_presplit *p = nb_calloc(1, sizeof *p);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!p)
        return no_memory(err);
    if (!nb_json_is_null(spec))
        rc = open_one(p, spec, err);
    if (rc == NB_OK) {
        *raw_bytes = *raw_bytes && p->n > 0 && p->v[p->n - 1].kind == BYTES;
        if (*raw_bytes)
            p->n--;
        *out = p;
        p = NULL;
    }
    nb_presplit_close(p);
    return rc;
}

void nb_presplit_close(nb_presplit *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        nb_pattern_close(p->v[i].pattern);
    nb_free(p->v);
    nb_free(p);
}

/* ---- running ---- */

void nb_pieces_clear(nb_pieces *p)
{
    nb_spans_clear(&p->list);
    nb_spans_clear(&p->other);
    nb_flip_clear(&p->own);
    nb_finder_clear(&p->finder);
    memset(p, 0, sizeof *p);
}

/* Turns matches and gaps into pieces; an element joins the open piece or closes it. */
typedef struct cutter {
    behavior behavior;
    bool invert, open, prev;
    size_t base, b, e;
    nb_spans *out;
} cutter;

static nb_status cut_close(cutter *c, nb_err *err)
{
    const bool some = c->open && c->e > c->b;

    c->open = false;
    return some ? nb_spans_push(c->out, c->base + c->b, c->e - c->b, err) : NB_OK;
}

static nb_status cut_element(cutter *c, size_t b, size_t e, bool match, nb_err *err)
{
    const bool flag = match != c->invert;
    bool join = false;
    nb_status rc = NB_OK;

    switch (c->behavior) {
    case REMOVED:
        if (flag)
            return NB_OK;
        break;
    case ISOLATED:
        break;
    case CONTIGUOUS:
        join = flag == c->prev;
        break;
    case MERGED_PREVIOUS:
        join = flag && !c->prev;
        break;
    case MERGED_NEXT:
        join = !flag && c->prev;
        break;
    }
    c->prev = flag;
    if (join && c->open) {
        c->e = e;
        return NB_OK;
    }
    rc = cut_close(c, err);
    c->open = true;
    c->b = b;
    c->e = e;
    return rc;
}

static bool word_kind(uint32_t cp, int *k)
{
    *k = nb_uc_word(cp) ? 1 : nb_uc_space(cp) ? 0 : 2;
    return *k != 0;
}

/* The next match of a step that is no pattern, from `at`. */
static bool class_next(const step *s, const char *t, size_t n, size_t at, size_t *b, size_t *e)
{
    uint32_t cp;
    int k, k2;

    if (s->kind == CHUNK) {
        *b = *e = at;
        for (size_t i = 0; i < s->length && *e < n; i++)
            *e += (size_t)nb_u8_next(t + *e, n - *e, &cp, NULL);
        return *e > *b;
    }
    for (; at < n; at = *e) {
        *b = at;
        *e = at + (size_t)nb_u8_next(t + at, n - at, &cp, NULL);
        if (s->kind == CLASS && s->in_class(cp))
            return true;
        if (s->kind == WORDS && word_kind(cp, &k)) {
            while (*e < n) {
                const size_t len = (size_t)nb_u8_next(t + *e, n - *e, &cp, NULL);
                if (!word_kind(cp, &k2) || k2 != k)
                    break;
                *e += len;
            }
            return true;
        }
    }
    return false;
}

static nb_status split_piece(const step *s, nb_pieces *p, nb_span sp, nb_err *err)
{
    const char *t = p->text + sp.off;
    cutter c = { .behavior = s->behavior, .invert = s->invert, .base = sp.off, .out = &p->other };
    size_t at = 0, b = 0, e = 0;
    bool found = true;
    nb_status rc = NB_OK;

    if (s->kind == PATTERN)
        nb_finder_begin(&p->finder, s->pattern, t, sp.n);
    while (rc == NB_OK) {
        if (s->kind == PATTERN)
            rc = nb_finder_next(&p->finder, &found, &b, &e, err);
        else
            found = class_next(s, t, sp.n, at, &b, &e);
        if (rc != NB_OK || !found)
            break;
        if (b > at)
            rc = cut_element(&c, at, b, false, err);
        if (rc == NB_OK)
            rc = cut_element(&c, b, e, true, err);
        at = e;
    }
    if (rc == NB_OK && at < sp.n)
        rc = cut_element(&c, at, sp.n, false, err);
    return rc == NB_OK ? cut_close(&c, err) : rc;
}

static void rewrite_piece(const step *s, const char *t, size_t n, bool first, nb_buf *out)
{
    if (s->kind == PREFIX_SPACE) {
        if (t[0] != ' ')
            nb_buf_putc(out, ' ');
        nb_buf_put(out, t, n);
    } else if (s->kind == BYTES) {
        for (size_t i = 0; i < n; i++)
            nb_u8_append(out, nb_byte_char((unsigned char)t[i]));
    } else {
        const bool marked = t[0] == ' ' || (n >= s->n_mark && memcmp(t, s->mark, s->n_mark) == 0);
        if (!marked && (s->scheme == ALWAYS || (s->scheme == FIRST && first)))
            nb_buf_put(out, s->mark, s->n_mark);
        for (size_t i = 0; i < n; i++) {
            if (t[i] == ' ')
                nb_buf_put(out, s->mark, s->n_mark);
            else
                nb_buf_putc(out, t[i]);
        }
    }
}

static nb_status rewrite(const step *s, nb_pieces *p, nb_err *err)
{
    nb_buf *out = nb_flip_next(&p->own);

    for (size_t i = 0; i < p->list.n && out->n <= p->most; i++) {
        nb_span *sp = &p->list.v[i];
        const size_t off = out->n;
        rewrite_piece(s, p->text + sp->off, sp->n, p->at_zero && i == 0, out);
        sp->off = off;
        sp->n = out->n - off;
    }
    if (out->failed)
        return no_memory(err);
    if (out->n > p->most)
        return nb_fail(err, NB_ELIMIT, "limit.normalize", "", "the pre-tokenizer makes the text more than 18 times as long (and 64 KiB)");
    p->text = out->p;
    p->n_text = out->n;
    return NB_OK;
}

nb_status nb_presplit_run(const nb_presplit *ps, const char *text, size_t n, bool at_zero, nb_pieces *p, nb_err *err)
{
    nb_status rc = NB_OK;

    p->text = text;
    p->n_text = n;
    p->list.n = 0;
    p->at_zero = at_zero;
    p->most = NB_NORM_BUDGET(n);
    if (n > 0)
        rc = nb_spans_push(&p->list, 0, n, err);
    for (size_t i = 0; rc == NB_OK && i < ps->n; i++) {
        const step *s = &ps->v[i];
        nb_spans swap;

        if (s->kind >= PREFIX_SPACE) {
            rc = rewrite(s, p, err);
            continue;
        }
        p->other.n = 0;
        for (size_t k = 0; rc == NB_OK && k < p->list.n; k++)
            rc = split_piece(s, p, p->list.v[k], err);
        p->at_zero = p->at_zero && p->list.n > 0 && p->other.n > 0 && p->other.v[0].off == p->list.v[0].off;
        swap = p->list;
        p->list = p->other;
        p->other = swap;
    }
    return rc;
}
