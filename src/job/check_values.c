/* check_values.c - every byte of every tensor: scales, codes, zero points, plain values (formats 7.5, CFG-012, CFG-013).
 *
 * Work is cut into pieces that fill one result each; results are judged in store order afterwards, so findings do not
 * depend on the number of threads. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "job/check_priv.h"
#include "job/check_scan.h"
#include "quant/convention.h"
#include "quant/words.h"

enum {
    PIECE_BYTES = 4 << 20,  /* of a plain or packed tensor */
    PIECE_VALUES = 1 << 20, /* of a tensor of GGUF blocks  */
    BATCH = 16              /* pieces between two progress reports */
};

static bool is_hub(const nb_piece *p)
{
    return p->kind == NB_PIECE_HUB || p->kind == NB_PIECE_GRID;
}

/* Give the pages of a piece back; those of a linear's outputs, which lie in all pages of it, after a batch. */
static void let_go(const nb_piece *p)
{
    const size_t item = nb_dtype_info(p->t->dtype)->bits / 8;
    nb_tensor part = *p->t;

    if (p->kind == NB_PIECE_BLOCKS || is_hub(p))
        return;
    part.data += p->begin * item;
    part.n_bytes = (p->end - p->begin) * item;
    nb_store_drop(p->s, &part);
}

static void run_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    nb_piece *p = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        nb_piece_scan(&p[i]);
        let_go(&p[i]);
    }
}

typedef struct pieces {
    nb_store *s;
    nb_piece *p;
    size_t n, cap;
    nb_err *err;
} pieces;

static nb_status add_piece(pieces *v, nb_piece_kind kind, const nb_tensor *t, const nb_linear *lin, uint64_t begin, uint64_t end)
{
    if (v->n == v->cap) {
        const size_t cap = v->cap ? 2 * v->cap : 256;
        nb_piece *p = cap > SIZE_MAX / sizeof *p ? NULL : nb_realloc(v->p, cap * sizeof *p);
        if (!p)
            return nb_enomem(v->err, "the pieces to check");
        v->p = p;
        v->cap = cap;
    }
    v->p[v->n++] = (nb_piece){ .kind = kind, .s = v->s, .t = t, .lin = lin, .begin = begin, .end = end };
    return NB_OK;
}

static nb_status cut(pieces *v, nb_piece_kind kind, const nb_tensor *t, const nb_linear *lin, bool whole)
{
    const uint64_t item = nb_dtype_info(t->dtype)->bits / 8, n = t->n_bytes / item, step = PIECE_BYTES / item;
    nb_status rc = NB_OK;

    if (whole)
        return n ? add_piece(v, kind, t, lin, 0, n) : NB_OK;
    for (uint64_t at = 0; rc == NB_OK && at < n; at += step)
        rc = add_piece(v, kind, t, lin, at, n - at < step ? n : at + step);
    return rc;
}

/* Whole stripes of about PIECE_BYTES codes, or zero points and scales. */
static nb_status cut_hub(pieces *v, const nb_linear *lin)
{
    const bool words = nb_words_fit(lin); /* codes can be seen where they lie; zero points and scales are few */
    const size_t unit = lin->format->stripe, step = (PIECE_BYTES / (words ? 8 * lin->k / lin->g + 1 : lin->k) / unit + 1) * unit;
    nb_status rc = words ? cut(v, NB_PIECE_CODES, lin->parts[0], lin, false) : NB_OK;

    for (size_t n0 = 0; rc == NB_OK && n0 < lin->n; n0 += step)
        rc = add_piece(v, words ? NB_PIECE_GRID : NB_PIECE_HUB, lin->parts[0], lin, n0, lin->n - n0 < step ? lin->n : n0 + step);
    return rc;
}

static nb_status cut_blocks(pieces *v, const nb_tensor *t)
{
    nb_status rc = NB_OK;
    uint64_t n;

    if (!nb_shape_count(t->shape, t->rank, &n))
        return NB_OK;
    for (uint64_t at = 0; rc == NB_OK && at < n; at += PIECE_VALUES)
        rc = add_piece(v, NB_PIECE_BLOCKS, t, NULL, at, n - at < PIECE_VALUES ? n : at + PIECE_VALUES);
    return rc;
}

/* A part of a linear, not its bias. */
static bool is_part(const nb_linear *lin, const nb_tensor *t)
{
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        if (lin->parts[p] == t)
            return true;
    return false;
}

static bool is_float(nb_dtype t)
{
    return t == NB_DT_F16 || t == NB_DT_BF16 || t == NB_DT_F32 || t == NB_DT_F64;
}

/* All pieces, in store order; parts of linears are told from plain tensors by their module. */
static nb_status cut_all(const nb_checker *c, pieces *v)
{
    nb_status rc = NB_OK;
    nb_buf name = { 0 };

    for (size_t i = 0; rc == NB_OK && i < c->store->n_tensors; i++) {
        const nb_tensor *t = &c->store->tensors[i];
        const char *dot = strrchr(t->name, '.');
        const nb_linear *lin = NULL;
        if (!t->data && t->n_bytes && strcmp(c->store->kind, "gguf") == 0)
            rc = cut_blocks(v, t);
        if (!t->data || t->n_bytes == 0)
            continue;
        if (dot) {
            name.n = 0;
            nb_buf_put(&name, t->name, (size_t)(dot - t->name));
            if (name.failed)
                rc = nb_enomem(v->err, "a module name");
            else
                lin = nb_scan_find(&c->scan, name.p);
        }
        if (rc != NB_OK)
            break;
        if (lin && (strcmp(lin->format->name, "awq-gemm") != 0 || lin->spec.bits != 4) && is_part(lin, t))
            rc = t == lin->parts[0] ? cut_hub(v, lin) : NB_OK;
        else if (lin && t == lin->parts[0])
            rc = cut(v, NB_PIECE_CODES, t, lin, false);
        else if (lin && t == lin->parts[1])
            rc = cut(v, NB_PIECE_ZEROS, t, lin, false);
        else if (lin && t == lin->parts[2])
            rc = cut(v, NB_PIECE_SCALES, t, lin, true);
        else if (is_float(t->dtype))
            rc = cut(v, NB_PIECE_PLAIN, t, lin, false);
    }
    nb_buf_clear(&name);
    return rc;
}

/* Add up the pieces of one tensor, [*i, ...) in v; *i moves behind them. */
static nb_piece sum_tensor(const pieces *v, size_t *i)
{
    nb_piece s = v->p[(*i)++];

    for (; *i < v->n && v->p[*i].t == s.t && v->p[*i].kind == s.kind; ++*i) {
        const nb_piece *p = &v->p[*i];
        if (!s.n_bad && p->n_bad)
            s.first_bad = p->first_bad;
        s.n_bad += p->n_bad;
        s.n_zero += p->n_zero;
        s.n_neg += p->n_neg;
        s.n_sub += p->n_sub;
        s.n_big += p->n_big;
        s.row_zero = s.row_zero || p->row_zero;
        s.lo = p->lo < s.lo ? p->lo : s.lo;
        s.hi = p->hi > s.hi ? p->hi : s.hi;
        if (s.err.code == NB_OK)
            s.err = p->err;
        s.n_off += p->n_off;
        s.seen |= p->seen;
        s.same = s.same && p->same && p->word == s.word;
        s.end = p->end;
    }
    return s;
}

/* |w| > 65504: count exactly; called only when a scale is large enough. */
static nb_status count_big(const nb_linear *lin, uint64_t *n_big, nb_err *err)
{
    const size_t stripe = 64;
    nb_qlin q = { 0 };
    nb_status rc = NB_OK;

    *n_big = 0;
    for (size_t n0 = 0; rc == NB_OK && n0 < lin->n; n0 += stripe) {
        const size_t n = lin->n - n0 < stripe ? lin->n - n0 : stripe;
        nb_qlin_clear(&q);
        if ((rc = nb_qlin_init(&q, n, lin->k, lin->g, lin->spec.bits, err)) != NB_OK ||
            (rc = lin->format->unpack(lin, n0, &q, err)) != NB_OK)
            break;
        for (size_t o = 0; o < n; o++)
            for (size_t k = 0; k < lin->k; k++) {
                const size_t g = o * q.n_groups + (q.g_idx ? q.g_idx[k] : k / lin->g);
                *n_big += fabsf((float)(q.codes[o * lin->k + k] - q.zeros[g]) * q.scales[g]) > 65504;
            }
    }
    nb_qlin_clear(&q);
    return rc;
}

static nb_status judge_scales(nb_checker *c, const nb_piece *p, nb_err *err)
{
    const char *file = p->t->file, *name = is_hub(p) ? p->lin->prefix : p->t->name;
    const uint64_t total = is_hub(p) ? p->end * (p->lin->k / p->lin->g + (p->lin->k % p->lin->g != 0)) : p->end;
    const double percent = total ? 100.0 * (double)p->n_zero / (double)total : 0;
    uint64_t n_big;
    nb_status rc = NB_OK;

    if (p->no_memory)
        return nb_enomem(err, "the check of a scales tensor");
    if (p->n_bad)
        rc = nb_rule_hit(c->report, err, "VAL-001", file, name,
                         "%" PRIu64 " scales are not finite (first at group %" PRIu64 ", output %" PRIu64 ").", p->n_bad,
                         p->first_bad / p->lin->n, p->first_bad % p->lin->n);
    if (rc == NB_OK && p->n_zero && p->row_zero)
        rc = nb_rule_hit(c->report, err, "VAL-002", file, name, "%" PRIu64 " scales are zero, which erases %.3g%% of the layer.%s",
                         p->n_zero, percent, p->n_zero == total ? " The tensor was never filled." : "");
    else if (rc == NB_OK && p->n_zero)
        rc = nb_rule_warn(c->report, "VAL-002", file, name, "%" PRIu64 " scales are zero, which erases %.3g%% of the layer.", p->n_zero,
                          percent);
    if (rc == NB_OK && p->n_neg)
        rc = nb_rule_hit(c->report, err, "VAL-003", file, name,
                         "%" PRIu64 " scales are negative. Valid arithmetic, but only AutoRound writes such files.", p->n_neg);
    if (rc == NB_OK && p->n_sub)
        rc = nb_rule_hit(c->report, err, "VAL-004", file, name,
                         "%" PRIu64 " scales are subnormal in float16; some GPUs flush them to zero.", p->n_sub);
    if (rc == NB_OK && p->n_big && !p->n_bad && (rc = count_big(p->lin, &n_big, err)) == NB_OK && n_big)
        rc = nb_rule_hit(c->report, err, "VAL-009", file, name, "%" PRIu64 " weights exceed the float16 range.", n_big);
    return rc;
}

static nb_status judge_codes(nb_checker *c, const nb_piece *p, nb_err *err)
{
    unsigned lo = 0, hi = 15, bits = 1;

    if (p->same && p->end > 1)
        return nb_rule_hit(c->report, err, "VAL-008", p->t->file, p->t->name,
                           "%s is constant (%08" PRIX32 "); the layer carries no weights.", p->lin->format->parts[0].suffix, p->word);
    while (!(p->seen >> lo & 1))
        lo++;
    while (!(p->seen >> hi & 1))
        hi--;
    if (p->end < 64 || (hi > 7 && lo < 8)) /* too few words say nothing */
        return NB_OK;
    while ((hi - lo) >> bits)
        bits++;
    return nb_rule_hit(c->report, err, "VAL-015", p->t->file, p->t->name,
                       "Only codes %u..%u occur in %s; it may hold %u-bit data or signed codes.", lo, hi, p->lin->format->parts[0].suffix,
                       bits);
}

static nb_status judge_hub(nb_checker *c, const nb_piece *p, nb_err *err)
{
    const nb_linear *lin = p->lin;
    const unsigned half = 1u << (lin->spec.bits - 1);
    uint64_t n_pad;
    unsigned bits = 1;
    nb_status rc;

    if (p->err.code == NB_ENOMEM || p->err.code == NB_ECANCELED)
        return nb_enomem(err, "the check of a linear");
    if (p->err.code != NB_OK)
        return nb_rule_report_err(c->report, &p->err);
    if ((rc = judge_scales(c, p, err)) != NB_OK)
        return rc;
    if (p->kind == NB_PIECE_HUB && p->lo == p->hi && lin->n * lin->k > 8)
        return nb_rule_hit(c->report, err, "VAL-008", p->t->file, p->t->name, "%s is constant (%u); the layer carries no weights.",
                           lin->format->parts[0].suffix, p->lo);
    if (p->kind == NB_PIECE_HUB && lin->n * lin->k >= 512 && (p->hi < half || p->lo >= half)) {
        while ((p->hi - p->lo) >> bits)
            bits++;
        rc = nb_rule_hit(c->report, err, "VAL-015", p->t->file, p->t->name,
                         "Only codes %u..%u occur in %s; it may hold %u-bit data or signed codes.", p->lo, p->hi,
                         lin->format->parts[0].suffix, bits);
    }
    if (rc == NB_OK && lin->format->padding && (n_pad = lin->format->padding(lin)) != 0) {
        if (lin->format->pads_bits)
            rc = nb_rule_hit(c->report, err, "VAL-013", p->t->file, p->t->name, "%s has non-zero padding bits.",
                             lin->format->parts[0].suffix);
        else
            rc = nb_rule_hit(c->report, err, "VAL-005", p->t->file, lin->prefix, "padding groups are not zero; %" PRIu64 " values ignored.",
                             n_pad);
    }
    return rc;
}

static nb_status judge_blocks(nb_checker *c, const nb_piece *p, nb_err *err)
{
    char name[NB_ESC_CAP];

    if (p->err.code == NB_EUNSUPPORTED) /* a type that is only listed */
        return NB_OK;
    if (p->err.code != NB_OK) {
        *err = p->err;
        return p->err.code;
    }
    if (!p->n_bad)
        return NB_OK;
    nb_esc(name, sizeof name, p->t->name, p->t->name_len);
    return nb_rule_hit(c->report, err, "VAL-001", p->t->file, name,
                       "%" PRIu64 " values are NaN or infinite, the first at %" PRIu64 ": a block scale is.", p->n_bad, p->first_bad);
}

static nb_status judge_plain(nb_checker *c, const nb_piece *p, nb_err *err)
{
    char name[NB_ESC_CAP];

    if (!p->n_bad)
        return NB_OK;
    nb_esc(name, sizeof name, p->t->name, p->t->name_len);
    return nb_rule_hit(c->report, err, "VAL-010", p->t->file, name, "%s contains %" PRIu64 " non-finite values.", name, p->n_bad);
}

/* Declared symmetry against all stored zero points of the model. */
static nb_status judge_zeros(nb_checker *c, uint64_t n_off, uint64_t total, nb_err *err)
{
    const unsigned half = c->has_qcfg && c->qcfg.spec.bits >= 2 ? 1u << (c->qcfg.spec.bits - 1) : 8;

    if (!total || !c->has_qcfg)
        return NB_OK;
    if (c->qcfg.spec.sym && n_off)
        return nb_rule_hit(c->report, err, "CFG-012", c->qsource, "zero_point",
                           "Config says symmetric, but %.3g%% of zero points differ from %u. The stored zero points are used.",
                           100.0 * (double)n_off / (double)total, half);
    if (!c->qcfg.spec.sym && !n_off)
        return nb_rule_hit(c->report, err, "CFG-013", c->qsource, "zero_point",
                           "Config says asymmetric, but every zero point is %u; this checkpoint is symmetric.", half);
    return NB_OK;
}

/* Zero points of asymmetric v1 models that wrapped when they were saved, over the whole model. */
static nb_status judge_wraps(nb_checker *c, nb_err *err)
{
    const nb_linear *first = NULL;
    uint64_t n = 0, over = 0;

    for (size_t i = 0; i < c->scan.n_linears; i++) {
        uint64_t a, b;
        if (c->scan.linears[i].spec.sym)
            continue;
        nb_zero_wraps(&c->scan.linears[i], &a, &b);
        first = a && !first ? &c->scan.linears[i] : first;
        n += a;
        over += b;
    }
    if (!n)
        return NB_OK;
    return nb_rule_hit(c->report, err, "VAL-012", first->parts[0]->file, first->prefix,
                       "%" PRIu64 " zero points wrapped when saved (the saver subtracted 1 from 0); %" PRIu64
                       " of them also overwrote their neighbours. The affected outputs cannot be recovered. \xe2\x86\x92 "
                       "Re-quantize, or use a v2 export.",
                       n, over);
}

/* Have the bytes of these pieces read while others are looked at. */
static void want_pieces(const nb_piece *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t item = nb_dtype_info(p[i].t->dtype)->bits / 8;
        if (is_hub(&p[i]) && p[i].begin == 0)
            for (size_t k = p[i].kind == NB_PIECE_GRID; k < NB_MAX_PARTS; k++) {
                const nb_tensor *t = p[i].lin->parts[k];
                if (t)
                    nb_map_want(t->data, (size_t)t->n_bytes);
            }
        else if (!is_hub(&p[i]) && p[i].kind != NB_PIECE_BLOCKS)
            nb_map_want(p[i].t->data + p[i].begin * item, (size_t)(p[i].end - p[i].begin) * item);
    }
}

/* A batch was looked at up to this piece: pages that were kept so far are given back. Returns the bytes that are done with it;
 * `last`: of its tensor. */
static uint64_t finish(const nb_piece *p, bool last)
{
    if (p->kind == NB_PIECE_BLOCKS) {
        if (last)
            nb_store_drop(p->s, p->t);
        return last ? p->t->n_bytes : 0;
    }
    if (!is_hub(p))
        return (p->end - p->begin) * (nb_dtype_info(p->t->dtype)->bits / 8);
    for (size_t k = 0; k < NB_MAX_PARTS; k++)
        if (p->lin->parts[k])
            nb_store_drop(p->s, p->lin->parts[k]);
    return last && p->kind == NB_PIECE_HUB ? p->t->n_bytes : 0;
}

static nb_status run_all(nb_checker *c, pieces *v, nb_err *err)
{
    uint64_t done = 0;

    for (size_t i = 0; i < v->n; i += BATCH) {
        const size_t n = v->n - i < BATCH ? v->n - i : BATCH;
        if (nb_cancelled(c->o->host))
            return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
        if (i == 0)
            want_pieces(v->p, n);
        if (v->n - i > BATCH)
            want_pieces(v->p + i + BATCH, v->n - i - BATCH < BATCH ? v->n - i - BATCH : BATCH);
        nb_parallel_for(c->o->pool, n, 1, run_pieces, v->p + i);
        for (size_t x = i; x < i + n; x++)
            done += finish(&v->p[x], x + 1 == v->n || v->p[x + 1].t != v->p[x].t);
        nb_report_progress(
            c->o->host,
            &(nb_progress){
                .what = "check", .item = v->p[i + n - 1].t->name, .unit = "bytes", .done = done, .total = c->store->total_bytes });
    }
    return nb_store_still(c->store, err);
}

nb_status nb_check_values(nb_checker *c, nb_err *err)
{
    pieces v = { .s = c->store, .err = err };
    uint64_t n_off = 0, n_zeros = 0;
    nb_status rc = cut_all(c, &v);

    if (rc == NB_OK)
        rc = run_all(c, &v, err);
    for (size_t i = 0; rc == NB_OK && i < v.n;) {
        const nb_piece s = sum_tensor(&v, &i);
        switch (s.kind) {
        case NB_PIECE_PLAIN:
            rc = judge_plain(c, &s, err);
            break;
        case NB_PIECE_SCALES:
            rc = judge_scales(c, &s, err);
            break;
        case NB_PIECE_CODES:
            rc = judge_codes(c, &s, err);
            break;
        case NB_PIECE_ZEROS:
            n_off += s.n_off;
            n_zeros += s.end * 8;
            break;
        case NB_PIECE_BLOCKS:
            rc = judge_blocks(c, &s, err);
            break;
        case NB_PIECE_HUB:
        case NB_PIECE_GRID:
            rc = judge_hub(c, &s, err);
            n_off += s.n_off;
            n_zeros += s.end * (s.lin->k / s.lin->g + (s.lin->k % s.lin->g != 0));
            break;
        }
    }
    if (rc == NB_OK)
        rc = judge_zeros(c, n_off, n_zeros, err);
    if (rc == NB_OK)
        rc = judge_wraps(c, err);
    nb_free(v.p);
    return rc;
}
