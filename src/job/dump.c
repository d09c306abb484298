/* dump.c - `nibble eval --dump`: run given ids and write everything down. */
#include "job/dump.h"

#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "io/io.h"
#include "job/ids.h"
#include "model/exec.h"

enum { PIECE = 256 }; /* tokens of one step */

typedef struct dump {
    nb_model *m;
    const nb_config *c;
    const nb_dump_opts *o;
    bool flat; /* ids were [T] */
    size_t R, T;
    int32_t *ids; /* [R][T + greedy] */
    nb_exec *exec;
    nb_sink *sink;
    uint32_t *pages, *pos, *zero; /* [n_pages], [PIECE], [PIECE] */
    uint8_t *want;                /* [PIECE] all 1, then one at the end: want + PIECE - 1 */
    size_t n_pages, piece;
    float *logits;    /* [piece][V] */
    size_t row, pos0; /* of the step that runs, for the tap */
    nb_status tap_rc;
    nb_err *err;
} dump;

/* ---- ids ------------------------------------------------------------------------------------------------------ */

/* Rows with room for the greedy ids behind each. */
static nb_status open_ids(dump *d, nb_err *err)
{
    nb_idrows rows;
    nb_status rc = nb_idrows_read(&rows, d->o->ids, d->c->vocab, err);
    size_t width;

    if (rc != NB_OK)
        return rc;
    d->flat = rows.flat;
    d->R = rows.rows;
    d->T = rows.len;
    d->ids = nb_add_size(d->T, d->o->greedy, &width) ? nb_calloc(d->R, width * sizeof *d->ids) : NULL;
    for (size_t r = 0; d->ids && r < d->R; r++)
        memcpy(d->ids + r * width, rows.ids + r * d->T, d->T * sizeof *d->ids);
    nb_idrows_clear(&rows);
    return d->ids ? NB_OK : nb_enomem(err, "the ids");
}

/* ---- output --------------------------------------------------------------------------------------------------- */

static const char *layer_name(char out[64], size_t l)
{
    snprintf(out, 64, "hidden.layer%zu", l);
    return out;
}

static nb_status declare(dump *d, const char *name, nb_dtype t, size_t rows, size_t width, nb_err *err)
{
    const uint64_t shape[3] = { d->R, rows, width };
    const unsigned rank = width ? 3 : 2;

    return nb_sink_declare(d->sink, name, t, rank - d->flat, shape + d->flat, err);
}

static nb_status declare_all(dump *d, nb_err *err)
{
    char name[64];
    nb_status rc = declare(d, "logits", NB_DT_F32, d->T, d->c->vocab, err);

    if (rc == NB_OK && d->o->greedy)
        rc = declare(d, "greedy", NB_DT_I64, d->o->greedy, 0, err);
    if (rc == NB_OK && d->o->hidden)
        rc = declare(d, "hidden.embed", NB_DT_F32, d->T, d->c->d_model, err);
    for (size_t l = 0; rc == NB_OK && d->o->hidden && l < d->c->n_layers; l++)
        rc = declare(d, layer_name(name, l), NB_DT_F32, d->T, d->c->d_model, err);
    if (rc == NB_OK && d->o->hidden)
        rc = declare(d, "hidden.final", NB_DT_F32, d->T, d->c->d_model, err);
    return rc == NB_OK ? nb_sink_begin(d->sink, err) : rc;
}

static void write_rows(void *user, const nb_tap *t)
{
    dump *d = user;
    char name[64];
    const char *to = t->kind == NB_TAP_EMBED   ? "hidden.embed"
                     : t->kind == NB_TAP_FINAL ? "hidden.final"
                     : t->kind == NB_TAP_LAYER ? layer_name(name, t->layer)
                                               : NULL;

    for (size_t i = 0; to && i < t->m && d->tap_rc == NB_OK; i++)
        d->tap_rc = nb_sink_write(d->sink, to, (uint64_t)(d->row * d->T + d->pos0 + t->row0 + i) * t->width * sizeof(float),
                                  t->x + i * t->ld, t->width * sizeof(float), d->err);
}

/* ---- running -------------------------------------------------------------------------------------------------- */

/* Positions [pos, pos + n) of a sequence of `total` tokens. want_all: logits of all, else of the last. */
static nb_status step(dump *d, const int32_t *ids, size_t pos, size_t n, size_t total, bool want_all, nb_err *err)
{
    const nb_seq_view view = { .pages = d->pages, .n_pages = d->n_pages, .total = total };
    const nb_batch b = { .m = n,
                         .token = ids + pos,
                         .pos = d->pos,
                         .seq = d->zero,
                         .seqs = &view,
                         .n_seqs = 1,
                         .want = want_all ? d->want : d->want + 2 * PIECE - n };

    for (size_t i = 0; i < n; i++)
        d->pos[i] = (uint32_t)(pos + i);
    d->pos0 = pos;
    if (nb_cancelled(d->o->host))
        return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at token %zu of %zu", d->row * d->T + pos, d->R * d->T);
    return nb_exec_run(d->exec, &b, d->logits, err);
}

static nb_status prompt(dump *d, const int32_t *ids, nb_err *err)
{
    const uint64_t row_bytes = (uint64_t)d->c->vocab * sizeof(float);
    nb_status rc = NB_OK;

    if (d->o->hidden)
        nb_exec_set_tap(d->exec, write_rows, d);
    for (size_t p = 0; p < d->T && rc == NB_OK; p += d->piece) {
        const nb_progress at = { .what = "eval", .unit = "tokens", .done = d->row * d->T + p, .total = d->R * d->T };
        const size_t n = d->T - p < d->piece ? d->T - p : d->piece;

        nb_report_progress(d->o->host, &at);
        rc = step(d, ids, p, n, d->T, true, err);
        if (rc == NB_OK)
            rc = d->tap_rc;
        if (rc == NB_OK)
            rc = nb_sink_write(d->sink, "logits", (d->row * d->T + p) * row_bytes, d->logits, n * row_bytes, err);
        if (rc == NB_OK && p + n == d->T) /* greedy goes on from the last row */
            memmove(d->logits, d->logits + (n - 1) * d->c->vocab, row_bytes);
    }
    nb_exec_set_tap(d->exec, NULL, NULL);
    return rc;
}

static nb_status greedy(dump *d, int32_t *ids, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < d->o->greedy && rc == NB_OK; i++) {
        const size_t total = d->T + i + 1;
        unsigned char id[8];

        ids[d->T + i] = nb_argmax(d->logits, d->c->vocab);
        nb_put_le64(id, (uint64_t)ids[d->T + i]);
        rc = nb_sink_write(d->sink, "greedy", (d->row * d->o->greedy + i) * 8, id, 8, err);
        if (rc != NB_OK || i + 1 == d->o->greedy)
            break;
        if (nb_rope_key(d->c, total) == nb_rope_key(d->c, total - 1)) {
            rc = step(d, ids, total - 1, 1, total, false, err);
            continue;
        }
        for (size_t p = 0; p < total && rc == NB_OK; p += d->piece)
            rc = step(d, ids, p, total - p < d->piece ? total - p : d->piece, total, false, err);
    }
    return rc;
}

static nb_status open_exec(dump *d, nb_err *err)
{
    nb_exec_opts xo = { .pool = d->o->pool, .kv_dtype = NB_DT_F32, .exact_fp32 = d->o->exact_fp32, .a8 = d->o->a8 };

    d->piece = ((size_t)16 << 20) / d->c->vocab; /* 64 MB of logits */
    d->piece = d->piece < 1 ? 1 : d->piece > PIECE ? PIECE : d->piece;
    d->n_pages = (d->T + d->o->greedy + NB_PAGE - 1) / NB_PAGE;
    xo.max_m = d->piece;
    xo.n_pages = d->n_pages;
    d->pages = nb_alloc_array(d->n_pages, sizeof *d->pages);
    d->pos = nb_calloc(PIECE, sizeof *d->pos);
    d->zero = nb_calloc(PIECE, sizeof *d->zero);
    d->want = nb_calloc(2, PIECE);
    d->logits = nb_alloc_array(d->piece * d->c->vocab, sizeof *d->logits);
    if (!d->pages || !d->pos || !d->zero || !d->want || !d->logits)
        return nb_enomem(err, "the batch");
    memset(d->want, 1, PIECE);
    d->want[2 * PIECE - 1] = 1;
    for (size_t i = 0; i < d->n_pages; i++)
        d->pages[i] = (uint32_t)i;
    return nb_exec_cpu_open(d->m, &xo, &d->exec, err);
}

nb_status nb_dump_run(nb_model *m, const nb_dump_opts *o, nb_dump_info *info, nb_err *err)
{
    dump d = { .m = m, .c = nb_model_config(m), .o = o, .err = err };
    nb_status rc = open_ids(&d, err);

    if (rc == NB_OK)
        rc = open_exec(&d, err);
    if (rc == NB_OK)
        rc = nb_st_sink_file(&d.sink, o->out, o->force, err);
    if (rc == NB_OK)
        rc = declare_all(&d, err);
    for (d.row = 0; d.row < d.R && rc == NB_OK; d.row++) {
        int32_t *ids = d.ids + d.row * (d.T + o->greedy);
        rc = prompt(&d, ids, err);
        if (rc == NB_OK)
            rc = greedy(&d, ids, err);
    }
    if (rc == NB_OK)
        rc = nb_sink_finish(d.sink, err);
    *info = (nb_dump_info){ .rows = d.R, .tokens = d.T, .vocab = d.c->vocab };
    nb_sink_close(d.sink);
    nb_exec_close(d.exec);
    nb_free(d.ids);
    nb_free(d.pages);
    nb_free(d.pos);
    nb_free(d.zero);
    nb_free(d.want);
    nb_free(d.logits);
    return rc;
}
