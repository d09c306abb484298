/* calib_self.c - calibration tokens that the model writes itself, for those who have no text: temperature 1, a fixed seed per row. */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "job/calib.h"
#include "job/load.h"

enum { SELF_ROWS = 32, SELF_LEN = 256, BATCH = 16, SELF_SEED = 42 };

/* What each row begins with: what the tokenizer puts before a text, else a token drawn at random. */
static nb_status first_ids(const nb_tokenizer *tok, nb_ids *bos, nb_err *err)
{
    nb_status rc = tok ? nb_tokenizer_encode(tok, "", 0, true, false, bos, err) : NB_OK;

    if (rc == NB_OK && bos->n > 1)
        bos->n = 1;
    return rc;
}

static nb_status add_rows(nb_engine *e, const nb_calib *c, const nb_ids *bos, size_t vocab, uint64_t *id, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t r = 0; rc == NB_OK && r < c->rows; r++) {
        int32_t *row = c->ids + r * c->len;
        nb_request q = { .ids = row, .n_ids = 1, .max_tokens = c->len - 1, .no_cache = true };

        row[0] = bos->n ? bos->p[0] : (int32_t)(nb_rng_uniform(SELF_SEED, 1, r) * (double)vocab);
        q.sampling = (nb_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = SELF_SEED + r };
        rc = nb_engine_add(e, &q, &id[r], err);
    }
    return rc;
}

static nb_status take(const nb_calib *c, const uint64_t *id, const nb_event *ev, size_t *done, nb_err *err)
{
    size_t r = 0;

    while (r < c->rows && id[r] != ev->request)
        r++;
    if (r == c->rows)
        return NB_OK;
    if (ev->kind == NB_EV_TOKEN && ev->index + 1 < c->len) {
        c->ids[r * c->len + ev->index + 1] = ev->id;
        *done += 1;
    }
    if (ev->kind == NB_EV_DONE && ev->finish == NB_FINISH_ERROR)
        return nb_fail(err, NB_ENUMERIC, "calib.self", "", "the model cannot write calibration text: %s", ev->err ? ev->err->what : "");
    return NB_OK;
}

static nb_status write_rows(nb_engine *e, nb_calib *c, const nb_ids *bos, size_t vocab, const nb_host *host, nb_err *err)
{
    uint64_t *id = nb_calloc(c->rows, sizeof *id);
    size_t done = 0;
    nb_status rc = id ? add_rows(e, c, bos, vocab, id, err) : nb_enomem(err, "calibration rows");

    while (rc == NB_OK && !nb_engine_idle(e)) {
        const nb_progress p = { .what = "calibration text", .unit = "tokens", .done = done, .total = c->rows * (c->len - 1) };
        const nb_event *ev;
        size_t n = 0;

        nb_report_progress(host, &p);
        rc = nb_cancelled(host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request") : nb_engine_step(e, &ev, &n, err);
        for (size_t i = 0; rc == NB_OK && i < n; i++)
            rc = take(c, id, &ev[i], &done, err);
    }
    if (rc == NB_OK && done != c->rows * (c->len - 1))
        rc = nb_fail(err, NB_EINTERNAL, "calib.self", "", "%zu of %zu calibration tokens were written", done, c->rows * (c->len - 1));
    nb_free(id);
    return rc;
}

nb_status nb_calib_self(nb_calib *c, const char *model, size_t rows, size_t len, uint64_t cap, const nb_kern *kern, nb_pool *pool,
                        const nb_host *host, nb_err *err)
{
    const nb_model_opts mo = { .kern = kern, .pool = pool };
    nb_engine_opts eo = { .pool = pool, .max_seqs = BATCH, .no_prefix_cache = true };
    nb_loaded l = { 0 };
    nb_engine *e = NULL;
    nb_ids bos = { 0 };
    nb_status rc = nb_load_store(&l, model, NULL, err);

    memset(c, 0, sizeof *c);
    c->rows = rows ? rows : SELF_ROWS;
    c->len = len ? len : SELF_LEN;
    if (rc == NB_OK && c->len < 2)
        rc = nb_fail(err, NB_EARG, "arg.value", "", "rows of calibration text need at least two tokens");
    if (rc == NB_OK && cap && l.store->total_bytes + l.store->total_bytes / 4 + (64u << 20) > cap)
        rc = nb_fail(
            err, NB_ENOMEM, "mem.budget", "",
            "to write its own calibration text the model has to be in memory, %llu MB, above the cap; give a text with --calib FILE",
            (unsigned long long)(l.store->total_bytes / 1000000));
    if (rc == NB_OK && nb_load_tokenizer(l.dir, &l.tok, NULL) != NB_OK)
        l.tok = NULL;
    if (rc == NB_OK)
        rc = first_ids(l.tok, &bos, err);
    if (rc == NB_OK)
        rc = nb_load_model(&l, &mo, err);
    eo.context = c->len;
    if (rc == NB_OK)
        rc = nb_engine_open(l.model, &eo, &e, err);
    if (rc == NB_OK && !(c->ids = nb_alloc_array(c->rows, c->len * sizeof *c->ids)))
        rc = nb_enomem(err, "calibration rows");
    if (rc == NB_OK)
        rc = write_rows(e, c, &bos, nb_model_config(l.model)->vocab, host, err);
    if (rc == NB_OK)
        nb_calib_judge(c, nb_model_config(l.model)->vocab);
    nb_engine_close(e);
    nb_ids_clear(&bos);
    nb_load_close(&l);
    if (rc != NB_OK)
        nb_calib_clear(c);
    return rc;
}
