/* eval_run.c - windows through the models and the reference, a score for every position. */
#include "job/eval_run.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { PIECE = 256, LOGIT_FLOATS = 16 << 20 };

/* ---- sides ---- */

static nb_status open_side(nb_eval_work *w, nb_eval_side *s, bool distances, nb_err *err)
{
    const nb_exec_opts xo = {
        .pool = w->o->pool, .max_m = w->piece, .n_pages = w->n_pages, .kv_dtype = NB_DT_F32, .exact_fp32 = w->o->exact_fp32, .a8 = w->o->a8
    };
    const size_t n = w->set->positions;

    s->nll = nb_calloc(n, sizeof *s->nll);
    s->kl = distances ? nb_calloc(n, sizeof *s->kl) : NULL;
    s->rank = distances ? nb_calloc(n, 1) : NULL;
    if (!s->nll || (distances && (!s->kl || !s->rank)))
        return nb_enomem(err, "the scores");
    return s->model ? nb_exec_cpu_open(s->model, &xo, &s->exec, err) : NB_OK;
}

static nb_status check_vocab(const nb_eval_work *w, size_t vocab, nb_err *err)
{
    if (vocab == w->vocab)
        return NB_OK;
    return nb_fail(err, NB_EARG, "eval.vocab", "", "the model has %zu tokens, the other %zu; they cannot be compared", w->vocab, vocab);
}

static nb_status check_ids(const nb_eval_work *w, nb_err *err)
{
    for (size_t i = 0; i < w->set->n_win; i++)
        for (size_t j = 0; j < w->set->win[i].n; j++)
            if (w->set->win[i].ids[j] < 0 || (size_t)w->set->win[i].ids[j] >= w->vocab)
                return nb_fail(err, NB_EFORMAT, "ids.token", "", "id %d in window %zu, the model has %zu tokens", w->set->win[i].ids[j], i,
                               w->vocab);
    return NB_OK;
}

nb_status nb_eval_work_open(nb_eval_work *w, const nb_eval_opts *o, nb_model *const *m, size_t n, nb_model *ref, const nb_topk *topk,
                            nb_err *err)
{
    nb_status rc;

    memset(w, 0, sizeof *w);
    w->o = o;
    w->set = o->set;
    w->topk = topk;
    w->n_models = n;
    w->ref.model = ref;
    w->vocab = nb_model_config(n ? m[0] : ref)->vocab;
    rc = check_ids(w, err);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        w->model[i].model = m[i];
        rc = check_vocab(w, nb_model_config(m[i])->vocab, err);
    }
    if (rc == NB_OK && ref)
        rc = check_vocab(w, nb_model_config(ref)->vocab, err);
    if (rc == NB_OK && topk)
        rc = check_vocab(w, topk->head.vocab, err);
    if (rc == NB_OK && topk && (topk->head.ids != w->set->print || topk->head.positions != w->set->positions))
        rc = nb_fail(err, NB_EMISMATCH, "eval.topk", "", "the saved reference is of other ids (%s, %zu positions; here %s, %zu)",
                     topk->head.protocol, topk->head.positions, w->set->protocol, w->set->positions);
    if (rc != NB_OK)
        return rc;
    w->piece = LOGIT_FLOATS / w->vocab;
    w->piece = w->piece < 1 ? 1 : w->piece > PIECE ? PIECE : w->piece;
    w->piece = w->piece > w->set->max_len ? w->set->max_len : w->piece;
    w->n_pages = (w->set->max_len + NB_PAGE - 1) / NB_PAGE;
    w->pages = nb_alloc_array(w->n_pages, sizeof *w->pages);
    w->pos = nb_alloc_array(w->piece, sizeof *w->pos);
    w->seq = nb_calloc(w->piece, sizeof *w->seq);
    w->want = nb_alloc_array(w->piece, 1);
    w->logits = nb_alloc_array(w->piece * w->vocab, sizeof *w->logits);
    w->ref_logits = ref ? nb_alloc_array(w->piece * w->vocab, sizeof *w->ref_logits) : NULL;
    if (!w->pages || !w->pos || !w->seq || !w->want || !w->logits || (ref && !w->ref_logits))
        return nb_enomem(err, "the logits");
    for (size_t i = 0; i < w->n_pages; i++)
        w->pages[i] = (uint32_t)i;
    for (size_t i = 0; rc == NB_OK && i < n; i++)
        rc = open_side(w, &w->model[i], ref || topk, err);
    if (rc == NB_OK && (ref || topk))
        rc = open_side(w, &w->ref, false, err);
    return rc;
}

static void close_side(nb_eval_side *s)
{
    nb_exec_close(s->exec);
    nb_free(s->nll);
    nb_free(s->kl);
    nb_free(s->rank);
}

void nb_eval_work_close(nb_eval_work *w)
{
    for (size_t i = 0; i < w->n_models; i++)
        close_side(&w->model[i]);
    close_side(&w->ref);
    nb_free(w->logits);
    nb_free(w->ref_logits);
    nb_free(w->pages);
    nb_free(w->pos);
    nb_free(w->seq);
    nb_free(w->want);
    memset(w, 0, sizeof *w);
}

/* ---- a piece ---- */

/* The rows with logits of the piece begin at this position of the window. */
static size_t piece_first(const nb_eval_piece *p)
{
    return p->base > p->win->first - 1 ? p->base : p->win->first - 1;
}

size_t nb_eval_piece_rows(const nb_eval_piece *p)
{
    const size_t end = p->base + p->m, first = piece_first(p);

    return end > first ? end - first : 0;
}

size_t nb_eval_piece_at(const nb_eval_piece *p)
{
    return p->row0 + (piece_first(p) - (p->win->first - 1));
}

size_t nb_eval_piece_next(const nb_eval_piece *p, size_t row)
{
    const size_t next = piece_first(p) + row + 1;

    return next < p->win->n ? (size_t)p->win->ids[next] : SIZE_MAX;
}

nb_status nb_eval_piece_run(nb_eval_work *w, const nb_eval_piece *p, nb_exec *x, float *logits, nb_err *err)
{
    const nb_seq_view view = { .pages = w->pages, .n_pages = w->n_pages, .total = p->win->feed };
    const nb_batch b = {
        .m = p->m, .token = p->win->ids + p->base, .pos = w->pos, .seq = w->seq, .want = w->want, .seqs = &view, .n_seqs = 1
    };

    for (size_t i = 0; i < p->m; i++) {
        w->pos[i] = (uint32_t)(p->base + i);
        w->want[i] = p->base + i >= p->win->first - 1;
    }
    return nb_exec_run(x, &b, nb_eval_piece_rows(p) ? logits : NULL, err);
}

typedef struct scoring {
    nb_eval_work *w;
    nb_eval_side *side;
    const nb_eval_piece *piece;
} scoring;

static void score(void *ctx, size_t begin, size_t end, int thread)
{
    const scoring *s = ctx;
    nb_eval_work *w = s->w;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t at = nb_eval_piece_at(s->piece) + i, next = nb_eval_piece_next(s->piece, i);
        const float *q = w->logits + i * w->vocab;
        nb_position r;
        if (w->topk) {
            const nb_topk_row row = nb_topk_at(w->topk, at);
            r = nb_position_topk(&row, q, w->vocab, next);
        } else {
            r = nb_position_of(w->ref.model ? w->ref_logits + i * w->vocab : NULL, q, w->vocab, next);
        }
        s->side->nll[at] = r.nll;
        if (s->side->kl) {
            w->ref.nll[at] = r.ref_nll;
            s->side->kl[at] = r.kl;
            s->side->rank[at] = (uint8_t)(r.rank < 255 ? r.rank : 255);
        }
    }
}

static nb_status run_piece(void *user, nb_eval_work *w, const nb_eval_piece *p, nb_err *err)
{
    nb_status rc = w->ref.exec ? nb_eval_piece_run(w, p, w->ref.exec, w->ref_logits, err) : NB_OK;

    (void)user;
    for (size_t i = 0; rc == NB_OK && i < w->n_models; i++) {
        scoring s = { .w = w, .side = &w->model[i], .piece = p };
        rc = nb_eval_piece_run(w, p, s.side->exec, w->logits, err);
        if (rc == NB_OK)
            nb_parallel_for(w->o->pool, nb_eval_piece_rows(p), 4, score, &s);
    }
    return rc;
}

nb_status nb_eval_windows(nb_eval_work *w, size_t first, size_t end, nb_eval_piece_fn *fn, void *user, nb_err *err)
{
    nb_progress at = { .what = "eval", .unit = "tokens" };
    size_t row0 = 0;
    nb_status rc = NB_OK;

    for (size_t i = 0; i < w->set->n_win; i++)
        at.total += i >= first && i < end ? w->set->win[i].feed : 0;
    for (size_t i = 0; rc == NB_OK && i < end; i++) {
        const nb_window *win = &w->set->win[i];
        nb_eval_piece p = { .win = win, .window = i, .row0 = row0 };
        row0 += win->feed - (win->first - 1);
        for (; i >= first && rc == NB_OK && p.base < win->feed; p.base += w->piece) {
            p.m = win->feed - p.base < w->piece ? win->feed - p.base : w->piece;
            nb_report_progress(w->o->host, &at);
            rc = nb_cancelled(w->o->host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at window %zu of %zu", i, w->set->n_win)
                                          : fn(user, w, &p, err);
            at.done += p.m;
        }
    }
    return rc;
}

nb_status nb_eval_run(nb_model *const *m, size_t n, nb_model *ref, const nb_topk *ref_topk, const nb_eval_opts *o, nb_eval *out,
                      nb_err *err)
{
    nb_eval_work w;
    nb_status rc;

    memset(out, 0, sizeof *out);
    if (n < 1 || n > NB_EVAL_MODELS)
        return nb_fail(err, NB_EARG, "eval.models", "", "%zu models; one to %d at once", n, NB_EVAL_MODELS);
    rc = nb_eval_work_open(&w, o, m, n, ref, ref_topk, err);
    if (rc == NB_OK)
        rc = nb_eval_windows(&w, 0, o->set->n_win, run_piece, NULL, err);
    if (rc == NB_OK)
        rc = nb_eval_summarize(&w, out, err);
    nb_eval_work_close(&w);
    return rc;
}

/* ---- saving the reference ---- */

typedef struct saving {
    nb_eval_work *w;
    nb_topk_writer *out;
    const nb_eval_piece *piece;
    size_t k, window0, done;
    unsigned char *records; /* of one window      */
    uint32_t *scratch;      /* [threads][k]       */
} saving;

static void pack(void *ctx, size_t begin, size_t end, int thread)
{
    const saving *s = ctx;
    const size_t row0 = nb_eval_piece_at(s->piece) - s->piece->row0;

    for (size_t i = begin; i < end; i++)
        nb_topk_pack(s->records + (row0 + i) * nb_topk_bytes(s->k), s->w->ref_logits + i * s->w->vocab, s->w->vocab, s->k,
                     nb_eval_piece_next(s->piece, i), s->scratch + (size_t)thread * s->k);
}

static nb_status save_piece(void *user, nb_eval_work *w, const nb_eval_piece *p, nb_err *err)
{
    saving *s = user;
    nb_status rc = nb_eval_piece_run(w, p, w->ref.exec, w->ref_logits, err);

    s->piece = p;
    if (rc != NB_OK)
        return rc;
    nb_parallel_for(w->o->pool, nb_eval_piece_rows(p), 4, pack, s);
    return p->base + p->m < p->win->feed
               ? NB_OK
               : nb_topk_writer_put(s->out, p->row0, s->records, p->win->feed - (p->win->first - 1), p->row0 < s->done, err);
}

/* Where the windows end, counted in positions. */
static size_t *window_ends(const nb_evalset *set)
{
    size_t *end = nb_alloc_array(set->n_win, sizeof *end);

    for (size_t i = 0, at = 0; end && i < set->n_win; i++)
        end[i] = at += set->win[i].feed - (set->win[i].first - 1);
    return end;
}

nb_status nb_eval_save(nb_model *ref, const char *path, size_t k, bool force, const nb_eval_opts *o, nb_err *err)
{
    nb_eval_work w;
    saving s = { .w = &w };
    nb_topk_head h = { .positions = o->set->positions, .ids = o->set->print };
    size_t *end = window_ends(o->set), first = 0;
    nb_status rc = nb_eval_work_open(&w, o, NULL, 0, ref, NULL, err);

    if (rc == NB_OK) {
        s.k = k && k < w.vocab ? k : k ? w.vocab : NB_TOPK_DEFAULT < w.vocab ? NB_TOPK_DEFAULT : w.vocab;
        h.k = s.k;
        h.vocab = w.vocab;
        snprintf(h.protocol, sizeof h.protocol, "%s", o->set->protocol);
        snprintf(h.model, sizeof h.model, "%s, %zu layers of %zu, %llu bytes", nb_model_config(ref)->model_type,
                 nb_model_config(ref)->n_layers, nb_model_config(ref)->d_model, (unsigned long long)nb_model_bytes(ref));
        s.records = nb_alloc_array(o->set->max_len, nb_topk_bytes(s.k));
        s.scratch = nb_alloc_array((size_t)nb_pool_threads(o->pool) * s.k, sizeof *s.scratch);
        if (!end || !s.records || !s.scratch)
            rc = nb_enomem(err, "the records");
    }
    if (rc == NB_OK)
        rc = nb_topk_writer_open(&s.out, path, force, &h, end, o->set->n_win, &s.done, err);
    while (rc == NB_OK && first < o->set->n_win && end[first] <= s.done)
        first++;
    if (rc == NB_OK && first > 0) { /* the same bits again, or it was another model */
        nb_log(o->host, NB_LOG_INFO, "%zu of %zu windows are there already", first, o->set->n_win);
        rc = nb_eval_windows(&w, 0, 1, save_piece, &s, err);
    }
    if (rc == NB_OK)
        rc = nb_eval_windows(&w, first, o->set->n_win, save_piece, &s, err);
    if (rc == NB_OK) {
        rc = nb_topk_writer_finish(s.out, err);
        s.out = NULL;
    }
    nb_topk_writer_close(s.out);
    nb_eval_work_close(&w);
    nb_free(s.records);
    nb_free(s.scratch);
    nb_free(end);
    return rc;
}
