#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>
#include <time.h>

#include "text/onig.h"

struct nb_pattern {
    bool literal, empty;
    nb_needle needle;
    pcre2_code *code;
};

static void *pcre_alloc(PCRE2_SIZE n, void *user)
{
    (void)user;
    return nb_alloc(n);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    nb_free(p);
}

static nb_status compile(nb_pattern *p, const char *re, size_t n, nb_err *err)
{
    pcre2_general_context *gc = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *cc = gc ? pcre2_compile_context_create(gc) : NULL;
    nb_buf tr = { 0 };
    char esc[NB_ESC_CAP];
    PCRE2_UCHAR msg[160];
    PCRE2_SIZE at;
    int code;
    nb_status rc;

    rc = cc ? nb_onig_translate(re, n, &tr, err) : nb_enomem(err, "a regular expression");
    if (rc == NB_OK) {
        pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        pcre2_set_max_pattern_length(cc, 1u << 20);
        pcre2_set_parens_nest_limit(cc, 64);
        p->code = pcre2_compile((PCRE2_SPTR)(tr.p ? tr.p : ""), tr.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                &code, &at, cc);
        if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) {
            rc = nb_enomem(err, "a regular expression");
        } else if (!p->code) {
            pcre2_get_error_message(code, msg, sizeof msg);
            rc = nb_fail(err, NB_EUNSUPPORTED, "tok.regex", "", "regular expression \"%s\": %s (offset %zu of its translated form)",
                         nb_esc(esc, sizeof esc, re, n), (const char *)msg, (size_t)at);
        } else {
            (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
        }
    }
    nb_buf_clear(&tr);
    pcre2_compile_context_free(cc);
    pcre2_general_context_free(gc);
    return rc;
}

nb_status nb_pattern_regex(const char *re, size_t n, nb_pattern **out, nb_err *err)
{
    nb_pattern *p = nb_calloc(1, sizeof *p);
    nb_status rc;

    *out = NULL;
    if (!p)
        return nb_enomem(err, "a pattern");
    p->empty = n == 0;
    rc = compile(p, re, n, err);
    if (rc == NB_OK) {
        *out = p;
        p = NULL;
    }
    nb_pattern_close(p);
    return rc;
}

nb_status nb_pattern_literal(const char *s, size_t n, nb_pattern **out, nb_err *err)
{
    nb_pattern *p = nb_calloc(1, sizeof *p);
    nb_status rc;

    *out = NULL;
    if (!p)
        return nb_enomem(err, "a pattern");
    p->literal = true;
    rc = nb_needle_init(&p->needle, s, n, err);
    if (rc == NB_OK) {
        *out = p;
        p = NULL;
    }
    nb_pattern_close(p);
    return rc;
}

nb_status nb_pattern_open(const nb_json *spec, nb_pattern **out, nb_err *err)
{
    const nb_json *s = nb_json_get(spec, "String");
    const nb_json *r = nb_json_get(spec, "Regex");

    *out = NULL;
    if (nb_json_typeof(s) == NB_JSTR && nb_json_str_len(s) == 0)
        return nb_pattern_regex("", 0, out, err); /* matches between any two characters */
    if (nb_json_typeof(s) == NB_JSTR)
        return nb_pattern_literal(nb_json_str(s, ""), nb_json_str_len(s), out, err);
    if (nb_json_typeof(r) == NB_JSTR)
        return nb_pattern_regex(nb_json_str(r, ""), nb_json_str_len(r), out, err);
    return nb_fail(err, NB_EFORMAT, "tok.type", "", "a pattern is an object with the key \"String\" or \"Regex\" and a text");
}

void nb_pattern_close(nb_pattern *p)
{
    if (!p)
        return;
    nb_needle_clear(&p->needle);
    pcre2_code_free(p->code);
    nb_free(p);
}

bool nb_pattern_is_empty(const nb_pattern *p)
{
    return p->empty;
}

/* ---- finder ---- */

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nb_finder_begin(nb_finder *f, const nb_pattern *p, const char *text, size_t n)
{
    if (f->budget_s == 0) {
        f->budget_s = 5;
        f->since = cpu_seconds();
    }
    f->budget_s += 2e-6 * (double)n; /* a pattern that reads each character once needs a hundredth of it */
    f->p = p;
    f->text = text;
    f->n = n;
    f->at = f->last = 0;
    f->any = false;
}

void nb_finder_clear(nb_finder *f)
{
    pcre2_match_data_free(f->match);
    pcre2_match_context_free(f->context);
    memset(f, 0, sizeof *f);
}

static nb_status prepare(nb_finder *f, nb_err *err)
{
    pcre2_general_context *gc;

    if (!f->match) {
        gc = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
        if (gc) {
            f->match = pcre2_match_data_create(1, gc);
            f->context = pcre2_match_context_create(gc);
        }
        pcre2_general_context_free(gc);
        if (!f->match || !f->context)
            return nb_enomem(err, "matching a regular expression");
    }
    pcre2_set_match_limit(f->context, (uint32_t)(f->n < 100000000 ? 4000000 + 32 * f->n : 0xFFFFFFFFu));
    pcre2_set_heap_limit(f->context, 512u * 1024); /* KiB */
    return NB_OK;
}

/* One search of a regular expression from f->at. */
static nb_status search(nb_finder *f, bool *found, size_t *b, size_t *e, nb_err *err)
{
    const PCRE2_SPTR s = (PCRE2_SPTR)f->text;
    PCRE2_SIZE *ov;
    int rc;

    if ((++f->calls & 255) == 0 && cpu_seconds() - f->since > f->budget_s)
        return nb_fail(err, NB_ELIMIT, "limit.regex", "", "a pattern of the tokenizer took over %.0f s for this text", f->budget_s);
    rc = pcre2_match(f->p->code, s, f->n, f->at, PCRE2_NO_UTF_CHECK, f->match, f->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(f->p->code, s, f->n, f->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, f->match, f->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return nb_enomem(err, "matching a regular expression");
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return nb_fail(err, NB_ELIMIT, "limit.regex", "", "a pattern of the tokenizer backtracks too much on this text (code %d)", rc);
    if (*found) {
        ov = pcre2_get_ovector_pointer(f->match);
        *b = ov[0];
        *e = ov[1] > ov[0] ? ov[1] : ov[0];
    }
    return NB_OK;
}

nb_status nb_finder_next(nb_finder *f, bool *found, size_t *b, size_t *e, nb_err *err)
{
    nb_status rc;

    *found = false;
    if (f->p->literal) {
        *b = nb_needle_find(&f->p->needle, f->text, f->n, f->at);
        *found = *b < f->n;
        *e = *b + f->p->needle.n;
        f->at = *e;
        return NB_OK;
    }
    if (f->at == 0 && !f->any && (rc = prepare(f, err)) != NB_OK)
        return rc;
    while (f->at <= f->n) {
        rc = search(f, found, b, e, err);
        if (rc != NB_OK || !*found)
            return rc;
        if (*b == *e && f->any && *e == f->last) { /* empty, right behind the one before: look further on */
            uint32_t cp;
            *found = false;
            if (f->at >= f->n)
                return NB_OK;
            f->at += (size_t)nb_u8_next(f->text + f->at, f->n - f->at, &cp, NULL);
            continue;
        }
        f->any = true;
        f->at = f->last = *e;
        return NB_OK;
    }
    return NB_OK;
}
