#include "text/decoder.h"

#include <string.h>

#include "base/mem.h"
#include "text/norm.h"

#define BUDGET(n, tokens) (18 * (n) + 4096 * (tokens)) /* bytes that may come of n bytes in so many tokens */
#define MAX_STRIP         1000                         /* copies a Strip decoder may take */

typedef enum kind { BYTE_LEVEL, REPLACE, BYTE_FALLBACK, FUSE, STRIP, METASPACE, WORDPIECE, BPE_SUFFIX } kind;

typedef struct step {
    kind kind;
    nb_pattern *pattern; /* REPLACE */
    char *text;          /* REPLACE: content; STRIP: character; METASPACE: mark; WORDPIECE: prefix; BPE_SUFFIX: suffix */
    size_t n_text;
    size_t start, stop; /* STRIP */
    bool flag;          /* METASPACE: marks of the first token go; WORDPIECE: clean up */
} step;

/* How far a stream must look: nothing, the last token, a run of byte tokens, or the whole text. */
typedef enum shape { SHAPE_BYTES, SHAPE_TOKENS, SHAPE_RUNS, SHAPE_WHOLE } shape;

struct nb_decoder {
    step *v;
    size_t n, cap;
    size_t local; /* steps at the beginning that look at one token at a time */
    bool none;    /* no decoder: tokens are joined by blanks */
    shape shape;
};

/* ---- open ---- */

static nb_status add(nb_decoder *d, kind k, step **out, nb_err *err)
{
    if (d->n >= 256)
        return nb_fail(err, NB_ELIMIT, "limit.steps", "", "more than 256 decoder steps");
    if (d->n == d->cap) {
        const size_t cap = d->cap ? d->cap * 2 : 8;
        step *v = nb_realloc(d->v, cap * sizeof *v);
        if (!v)
            return nb_enomem(err, "the decoder");
        d->v = v;
        d->cap = cap;
    }
    *out = &d->v[d->n++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = k;
    return NB_OK;
}

static nb_status set_text(step *s, const nb_json *v, const char *dflt, nb_err *err)
{
    s->n_text = nb_json_typeof(v) == NB_JSTR ? nb_json_str_len(v) : strlen(dflt);
    s->text = nb_strndup(nb_json_str(v, dflt), s->n_text);
    return s->text ? NB_OK : nb_enomem(err, "the decoder");
}

static nb_status open_plain(nb_decoder *d, kind k, const nb_json *v, nb_err *err)
{
    const char *scheme = nb_json_str(nb_json_get(v, "prepend_scheme"), NULL);
    step *s = NULL;
    nb_status rc = add(d, k, &s, err);

    if (rc != NB_OK)
        return rc;
    switch (k) {
    case REPLACE:
        rc = set_text(s, nb_json_get(v, "content"), "", err);
        if (rc == NB_OK)
            rc = nb_pattern_open(nb_json_get(v, "pattern"), &s->pattern, err);
        if (rc == NB_OK && nb_pattern_is_empty(s->pattern))
            rc = nb_fail(err, NB_EFORMAT, "tok.regex", "", "a Replace decoder with an empty pattern; name the text to replace");
        return rc;
    case STRIP:
        s->start = (size_t)nb_json_int(nb_json_get(v, "start"), 0);
        s->stop = (size_t)nb_json_int(nb_json_get(v, "stop"), 0);
        if (s->start > MAX_STRIP || s->stop > MAX_STRIP)
            return nb_fail(err, NB_EFORMAT, "tok.type", "", "a Strip decoder counts 0 to %d characters", MAX_STRIP);
        return set_text(s, nb_json_get(v, "content"), " ", err);
    case METASPACE:
        s->flag = scheme ? strcmp(scheme, "never") != 0 : nb_json_bool(nb_json_get(v, "add_prefix_space"), true);
        return set_text(s, nb_json_get(v, "replacement"), "\xe2\x96\x81", err);
    case WORDPIECE:
        s->flag = nb_json_bool(nb_json_get(v, "cleanup"), true);
        return set_text(s, nb_json_get(v, "prefix"), "##", err);
    case BPE_SUFFIX:
        return set_text(s, nb_json_get(v, "suffix"), "</w>", err);
    case BYTE_LEVEL:
    case BYTE_FALLBACK:
    case FUSE:
        break;
    }
    return NB_OK;
}

static nb_status open_one(nb_decoder *d, const nb_json *v, nb_err *err)
{
    static const struct {
        const char *type;
        kind kind;
    } types[] = {
        { "ByteLevel", BYTE_LEVEL }, { "Replace", REPLACE },     { "ByteFallback", BYTE_FALLBACK }, { "Fuse", FUSE },
        { "Strip", STRIP },          { "Metaspace", METASPACE }, { "WordPiece", WORDPIECE },        { "BPEDecoder", BPE_SUFFIX },
    };
    const char *type = nb_json_str(nb_json_get(v, "type"), "");
    char esc[NB_ESC_CAP];
    nb_status rc = NB_OK;

    if (strcmp(type, "Sequence") == 0) {
        const nb_json *list = nb_json_get(v, "decoders");
        for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++)
            rc = open_one(d, nb_json_at(list, i), err);
        return rc;
    }
    for (size_t i = 0; i < NB_LEN(types); i++) {
        if (strcmp(types[i].type, type) == 0)
            return open_plain(d, types[i].kind, v, err);
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "decoder type \"%s\" is not supported",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

static bool is_local(kind k)
{
    return k == REPLACE || k == STRIP || k == METASPACE || k == WORDPIECE || k == BPE_SUFFIX;
}

/* [local steps] [ByteFallback] [Fuse [Strip from the left]] can be streamed; anything else waits for the end. */
static void find_shape(nb_decoder *d)
{
    size_t i = 0;
    bool runs = false;

    if (d->n == 1 && d->v[0].kind == BYTE_LEVEL) {
        d->shape = SHAPE_BYTES;
        return;
    }
    while (i < d->n && is_local(d->v[i].kind))
        i++;
    d->local = i;
    if (i < d->n && d->v[i].kind == BYTE_FALLBACK) {
        runs = true;
        i++;
    }
    if (i < d->n && d->v[i].kind == FUSE) {
        i++;
        if (i < d->n && d->v[i].kind == STRIP && d->v[i].stop == 0)
            i++;
    }
    d->shape = i < d->n ? SHAPE_WHOLE : runs ? SHAPE_RUNS : SHAPE_TOKENS;
    for (size_t k = 0; k < d->local; k++) {
        if (d->v[k].kind == BPE_SUFFIX && d->shape == SHAPE_RUNS)
            d->shape = SHAPE_WHOLE; /* looks at the last token and holds runs: too rare to stream */
    }
}

nb_status nb_decoder_open(const nb_json *spec, nb_decoder **out, nb_err *err)
{
    nb_decoder *d = nb_calloc(1, sizeof *d);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!d)
        return nb_enomem(err, "the decoder");
    d->none = nb_json_is_null(spec);
    if (!d->none)
        rc = open_one(d, spec, err);
    if (rc == NB_OK) {
        find_shape(d);
        *out = d;
        d = NULL;
    }
    nb_decoder_close(d);
    return rc;
}

void nb_decoder_close(nb_decoder *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++) {
        nb_pattern_close(d->v[i].pattern);
        nb_free(d->v[i].text);
    }
    nb_free(d->v);
    nb_free(d);
}

bool nb_decoder_is_bytes(const nb_decoder *d)
{
    return d->shape == SHAPE_BYTES;
}

/* ---- steps on one text ---- */

static bool starts(const char *s, size_t n, const char *with, size_t k)
{
    return n >= k && memcmp(s, with, k) == 0;
}

static void replace_all(const char *s, size_t n, const char *what, size_t k, const char *by, nb_buf *out)
{
    size_t i = 0;

    while (i < n) {
        if (k > 0 && starts(s + i, n - i, what, k)) {
            nb_buf_puts(out, by);
            i += k;
        } else {
            nb_buf_putc(out, s[i++]);
        }
    }
}

/* The replacements of clean_up_tokenization, one after the other. */
static void clean_up(nb_buf *b)
{
    static const char *const pairs[][2] = { { " .", "." },     { " ?", "?" },   { " !", "!" },   { " ,", "," },     { " ' ", "'" },
                                            { " n't", "n't" }, { " 'm", "'m" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } };

    for (size_t i = 0; i < NB_LEN(pairs); i++) {
        nb_buf t = { 0 };
        replace_all(b->p ? b->p : "", b->n, pairs[i][0], strlen(pairs[i][0]), pairs[i][1], &t);
        b->n = 0;
        nb_buf_put(b, t.p ? t.p : "", t.n);
        b->failed = b->failed || t.failed;
        nb_buf_clear(&t);
    }
}

/* A local step on token s[n]; first, last: its place in the list. */
static nb_status local_step(const step *s, nb_finder *f, const char *t, size_t n, bool first, bool last, nb_buf *out, nb_err *err)
{
    size_t b = 0, e = n;

    switch (s->kind) {
    case REPLACE:
        return nb_replace(s->pattern, f, t, n, s->text, s->n_text, SIZE_MAX, out, err);
    case STRIP:
        for (size_t i = 0; i < s->start && s->n_text > 0 && starts(t + b, e - b, s->text, s->n_text); i++)
            b += s->n_text;
        for (size_t i = 0; i < s->stop && s->n_text > 0 && e - b >= s->n_text && starts(t + e - s->n_text, s->n_text, s->text, s->n_text);
             i++)
            e -= s->n_text;
        nb_buf_put(out, t + b, e - b);
        break;
    case METASPACE:
        for (size_t i = 0; i < n;) {
            if (starts(t + i, n - i, s->text, s->n_text) && s->n_text > 0) {
                if (!(first && s->flag)) /* in the first token every mark goes */
                    nb_buf_putc(out, ' ');
                i += s->n_text;
            } else {
                nb_buf_putc(out, t[i++]);
            }
        }
        break;
    case WORDPIECE: {
        nb_buf one = { 0 };
        if (!first && starts(t, n, s->text, s->n_text)) {
            nb_buf_put(&one, t + s->n_text, n - s->n_text);
        } else {
            if (!first)
                nb_buf_putc(&one, ' ');
            nb_buf_put(&one, t, n);
        }
        if (s->flag)
            clean_up(&one);
        nb_buf_put(out, one.p ? one.p : "", one.n);
        out->failed = out->failed || one.failed;
        nb_buf_clear(&one);
        break;
    }
    case BPE_SUFFIX:
        replace_all(t, n, s->text, s->n_text, last ? "" : " ", out);
        break;
    case BYTE_LEVEL:
    case BYTE_FALLBACK:
    case FUSE:
        break; /* not local */
    }
    return out->failed ? nb_enomem(err, "decoding") : NB_OK;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Byte that a token <0xHH> means, -1 for any other text: exactly two digits, no sign, no blank (hardening TK-11). */
static int byte_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0)
        return -1;
    return hex(s[3]) * 16 + hex(s[4]);
}

/* A run of byte tokens, n of them: its text when valid, else one U+FFFD for each. */
static void close_run(const char *bytes, size_t n, nb_buf *out)
{
    if (nb_u8_check(bytes, n) == n) {
        nb_buf_put(out, bytes, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        nb_buf_puts(out, NB_FFFD);
}

static void token_bytes(const char *s, size_t n, nb_buf *out)
{
    if (!nb_standin_bytes(out, s, n))
        nb_buf_put(out, s, n);
}

static nb_status check_budget(size_t n, size_t most, nb_err *err)
{
    if (n <= most)
        return NB_OK;
    return nb_fail(err, NB_ELIMIT, "limit.decode", "", "the decoder makes more than 18 times as much text as the tokens have");
}

/* ---- the whole list ---- */

static nb_status fallback_list(const char *text, nb_spans *list, nb_buf *out, nb_err *err)
{
    nb_buf run = { 0 };
    size_t k = 0;

    for (size_t i = 0; i <= list->n; i++) {
        const int b = i < list->n ? byte_token(text + list->v[i].off, list->v[i].n) : -1;
        if (b >= 0) {
            nb_buf_putc(&run, (char)b);
            continue;
        }
        if (run.n > 0) {
            const size_t off = out->n;
            close_run(run.p, run.n, out);
            list->v[k++] = (nb_span){ off, out->n - off };
            run.n = 0;
        }
        if (i < list->n) {
            const nb_span sp = list->v[i];
            const size_t off = out->n;
            nb_buf_put(out, text + sp.off, sp.n);
            list->v[k++] = (nb_span){ off, sp.n };
        }
    }
    list->n = k;
    out->failed = out->failed || run.failed;
    nb_buf_clear(&run);
    return out->failed ? nb_enomem(err, "decoding") : NB_OK;
}

static nb_status run_step(const step *s, nb_finder *f, const char *text, nb_spans *list, nb_buf *out, nb_err *err)
{
    nb_status rc = NB_OK;

    if (s->kind == BYTE_FALLBACK)
        return fallback_list(text, list, out, err);
    if (s->kind == FUSE || s->kind == BYTE_LEVEL) {
        nb_buf raw = { 0 };
        for (size_t i = 0; i < list->n; i++) {
            if (s->kind == FUSE)
                nb_buf_put(out, text + list->v[i].off, list->v[i].n);
            else
                token_bytes(text + list->v[i].off, list->v[i].n, &raw);
        }
        nb_u8_repair(out, raw.p ? raw.p : "", raw.n);
        out->failed = out->failed || raw.failed;
        nb_buf_clear(&raw);
        list->n = 0;
        rc = nb_spans_push(list, 0, out->n, err);
        return rc == NB_OK && out->failed ? nb_enomem(err, "decoding") : rc;
    }
    for (size_t i = 0; rc == NB_OK && i < list->n; i++) {
        nb_span *sp = &list->v[i];
        const size_t off = out->n;
        rc = local_step(s, f, text + sp->off, sp->n, i == 0, i + 1 == list->n, out, err);
        *sp = (nb_span){ off, out->n - off };
    }
    return rc;
}

nb_status nb_decoder_run(const nb_decoder *d, const char *text, const nb_span *v, size_t n, nb_buf *out, nb_err *err)
{
    nb_flip flip = { 0 };
    nb_finder finder = { 0 };
    nb_spans list = { 0 };
    size_t total = 0;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        rc = nb_spans_push(&list, v[i].off, v[i].n, err);
        total += v[i].n;
    }
    for (size_t i = 0; rc == NB_OK && i < d->n; i++) {
        nb_buf *to = nb_flip_next(&flip);
        rc = run_step(&d->v[i], &finder, text, &list, to, err);
        if (rc == NB_OK)
            rc = check_budget(to->n, BUDGET(total, n), err);
        text = to->p ? to->p : "";
    }
    for (size_t i = 0; rc == NB_OK && i < list.n; i++) {
        if (d->none && i > 0)
            nb_buf_putc(out, ' ');
        nb_buf_put(out, text + list.v[i].off, list.v[i].n);
    }
    if (rc == NB_OK && out->failed)
        rc = nb_enomem(err, "decoding");
    nb_spans_clear(&list);
    nb_flip_clear(&flip);
    nb_finder_clear(&finder);
    return rc;
}

/* ---- one token ---- */

/* As the second token behind a letter, so that rules about the beginning do not act. */
static nb_status behind_a_letter(const nb_decoder *d, const char *s, size_t n, nb_buf *out, nb_err *err)
{
    nb_buf text = { 0 }, got = { 0 };
    const nb_span v[] = { { 0, 1 }, { 1, n } };
    nb_status rc = NB_OK;

    nb_buf_putc(&text, 'a');
    nb_buf_put(&text, s, n);
    if (!text.failed)
        rc = nb_decoder_run(d, text.p, v, 2, &got, err);
    if (rc == NB_OK && got.n > 0 && got.p[0] == 'a')
        nb_buf_put(out, got.p + 1, got.n - 1);
    else if (rc == NB_OK)
        nb_buf_put(out, s, n);
    out->failed = out->failed || text.failed || got.failed;
    nb_buf_clear(&text);
    nb_buf_clear(&got);
    return rc == NB_OK && out->failed ? nb_enomem(err, "decoding") : rc;
}

static bool falls_back(const nb_decoder *d)
{
    for (size_t i = 0; i < d->n; i++) {
        if (d->v[i].kind == BYTE_FALLBACK)
            return true;
    }
    return false;
}

nb_status nb_decoder_middle(const nb_decoder *d, const char *s, size_t n, nb_buf *out, nb_err *err)
{
    nb_flip flip = { 0 };
    nb_finder finder = { 0 };
    nb_status rc = NB_OK;

    if (d->shape == SHAPE_BYTES) {
        token_bytes(s, n, out);
    } else if (byte_token(s, n) >= 0 && falls_back(d)) {
        nb_buf_putc(out, (char)byte_token(s, n));
    } else if (d->none || d->shape == SHAPE_WHOLE) {
        return behind_a_letter(d, s, n, out, err);
    } else { /* what follows the local steps leaves such a token as it is */
        for (size_t i = 0; rc == NB_OK && i < d->local; i++) {
            nb_buf *to = i + 1 < d->local ? nb_flip_next(&flip) : out;
            const size_t from = to->n;
            rc = local_step(&d->v[i], &finder, s, n, false, false, to, err);
            s = to->p ? to->p + from : "";
            n = to->n - from;
        }
        if (d->local == 0)
            nb_buf_put(out, s, n);
        nb_flip_clear(&flip);
        nb_finder_clear(&finder);
    }
    return rc == NB_OK && out->failed ? nb_enomem(err, "decoding") : rc;
}

/* ---- the stream ---- */

void nb_decoder_stream_clear(nb_decoder_stream *st)
{
    nb_buf_clear(&st->held);
    nb_spans_clear(&st->tokens);
    nb_finder_clear(&st->finder);
    memset(st, 0, sizeof *st);
}

/* Text that is final but for a Strip behind Fuse, which takes characters from the beginning of the whole. */
static void emit(const nb_decoder *d, nb_decoder_stream *st, const char *s, size_t n, nb_buf *out)
{
    const step *last = d->n > d->local ? &d->v[d->n - 1] : NULL;

    if (last && last->kind == STRIP && !st->begun) {
        while (st->strip < last->start && last->n_text > 0 && starts(s, n, last->text, last->n_text)) {
            s += last->n_text;
            n -= last->n_text;
            st->strip++;
        }
        st->begun = n > 0;
    }
    nb_buf_put(out, s, n);
}

/* The local steps of one token, then byte runs. */
static nb_status feed_token(const nb_decoder *d, nb_decoder_stream *st, const char *s, size_t n, bool last, nb_buf *out, nb_err *err)
{
    const bool first = st->seen++ == 0;
    const size_t most = BUDGET(n, 1);
    nb_flip flip = { 0 };
    nb_status rc = NB_OK;
    int b;

    for (size_t i = 0; rc == NB_OK && i < d->local; i++) {
        nb_buf *to = nb_flip_next(&flip);
        rc = local_step(&d->v[i], &st->finder, s, n, first, last, to, err);
        if (rc == NB_OK)
            rc = check_budget(to->n, most, err);
        s = to->p ? to->p : "";
        n = to->n;
    }
    b = d->shape == SHAPE_RUNS ? byte_token(s, n) : -1;
    if (rc == NB_OK && b >= 0) {
        nb_buf_putc(&st->held, (char)b);
    } else if (rc == NB_OK) {
        if (d->shape == SHAPE_RUNS && st->held.n > 0) {
            nb_buf run = { 0 };
            close_run(st->held.p, st->held.n, &run);
            emit(d, st, run.p ? run.p : "", run.n, out);
            out->failed = out->failed || run.failed;
            nb_buf_clear(&run);
            st->held.n = 0;
        }
        if (d->none && !first)
            nb_buf_putc(out, ' ');
        emit(d, st, s, n, out);
    }
    nb_flip_clear(&flip);
    if (rc == NB_OK && (out->failed || st->held.failed))
        rc = nb_enomem(err, "decoding");
    return rc;
}

static bool looks_at_last(const nb_decoder *d)
{
    for (size_t i = 0; i < d->local; i++) {
        if (d->v[i].kind == BPE_SUFFIX)
            return true;
    }
    return false;
}

nb_status nb_decoder_feed(const nb_decoder *d, nb_decoder_stream *st, const char *s, size_t n, nb_buf *out, nb_err *err)
{
    nb_status rc = NB_OK;

    if (d->shape == SHAPE_BYTES) {
        nb_buf raw = { 0 };
        token_bytes(s, n, &raw);
        nb_u8_feed(&st->u8, raw.p ? raw.p : "", raw.n, out);
        rc = raw.failed || out->failed ? nb_enomem(err, "decoding") : NB_OK;
        nb_buf_clear(&raw);
        return rc;
    }
    if (d->shape == SHAPE_TOKENS && !looks_at_last(d))
        return feed_token(d, st, s, n, false, out, err);
    if (d->shape == SHAPE_RUNS)
        return feed_token(d, st, s, n, false, out, err);
    if (d->shape == SHAPE_TOKENS && st->tokens.n > 0) { /* the one that was held is not the last */
        rc = feed_token(d, st, st->held.p ? st->held.p : "", st->held.n, false, out, err);
        st->held.n = 0;
        st->tokens.n = 0;
    }
    if (rc == NB_OK)
        rc = nb_spans_push(&st->tokens, st->held.n, n, err);
    nb_buf_put(&st->held, s, n);
    return rc == NB_OK && st->held.failed ? nb_enomem(err, "decoding") : rc;
}

nb_status nb_decoder_flush(const nb_decoder *d, nb_decoder_stream *st, nb_buf *out, nb_err *err)
{
    nb_status rc = NB_OK;
    nb_buf run = { 0 };

    if (d->shape == SHAPE_BYTES) {
        nb_u8_flush(&st->u8, out);
    } else if (d->shape == SHAPE_RUNS) {
        close_run(st->held.p ? st->held.p : "", st->held.n, &run);
        emit(d, st, run.p ? run.p : "", run.n, out);
    } else if (d->shape == SHAPE_TOKENS && st->tokens.n > 0) {
        rc = feed_token(d, st, st->held.p ? st->held.p : "", st->held.n, true, out, err);
    } else if (d->shape == SHAPE_WHOLE) {
        rc = nb_decoder_run(d, st->held.p ? st->held.p : "", st->tokens.v, st->tokens.n, out, err);
    }
    if (rc == NB_OK && (out->failed || run.failed))
        rc = nb_enomem(err, "decoding");
    nb_buf_clear(&run);
    nb_decoder_stream_clear(st);
    return rc;
}
