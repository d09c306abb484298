/* answer.c - the loop from prompt ids to streamed text. */
#include "job/answer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/stop.h"

/* ---- defaults of the model ---- */

static void add_stop_id(nb_answer_defaults *d, int64_t id)
{
    for (size_t i = 0; i < d->n_stop_ids; i++)
        if (d->stop_ids[i] == id)
            return;
    if (id >= 0 && id <= INT32_MAX && d->n_stop_ids < NB_LEN(d->stop_ids))
        d->stop_ids[d->n_stop_ids++] = (int32_t)id;
}

/* A number of the file, or dflt when it is absent or out of range; then it is listed in d->ignored. */
static double in_range(nb_answer_defaults *d, const nb_json *gen, const char *key, double dflt, double low, double high)
{
    const nb_json *v = nb_json_get(gen, key);
    const double x = nb_json_num(v, NAN);
    const size_t n = strlen(d->ignored);

    if (nb_json_is_null(v))
        return dflt;
    if (x >= low && x <= high)
        return x;
    if (nb_json_typeof(v) == NB_JINT || nb_json_typeof(v) == NB_JREAL)
        snprintf(d->ignored + n, sizeof d->ignored - n, "%s%s %g", n ? ", " : "", key, x);
    else
        snprintf(d->ignored + n, sizeof d->ignored - n, "%s%s, not a number", n ? ", " : "", key);
    return dflt;
}

nb_status nb_answer_defaults_read(nb_hfdir *dir, const nb_config *c, nb_answer_defaults *out, nb_err *err)
{
    static const char name[] = "generation_config.json";
    nb_sampling *s = &out->sampling;
    const char *text;
    size_t n;
    nb_json *gen = NULL;
    const nb_json *eos;
    nb_status rc = nb_hfdir_file(dir, name, &text, &n, err);

    memset(out, 0, sizeof *out);
    if (rc == NB_OK && text)
        rc = nb_json_parse_config(text, n, "cfg", &gen, NULL, err);
    if (rc != NB_OK) {
        nb_err_at(err, name, NULL);
        return rc;
    }
    s->temperature = (float)in_range(out, gen, "temperature", 1, 0, FLT_MAX);
    if (!nb_json_bool(nb_json_get(gen, "do_sample"), true))
        s->temperature = 0;
    s->top_k = (int)in_range(out, gen, "top_k", 0, -1, INT32_MAX);
    s->top_p = (float)in_range(out, gen, "top_p", 1, FLT_MIN, 1);
    s->min_p = (float)in_range(out, gen, "min_p", 0, 0, 1);
    s->repetition_penalty = (float)in_range(out, gen, "repetition_penalty", 1, FLT_MIN, FLT_MAX);
    for (size_t i = 0; i < c->n_eos; i++)
        add_stop_id(out, c->eos_id[i]);
    eos = nb_json_get(gen, "eos_token_id");
    add_stop_id(out, nb_json_int(eos, -1));
    for (size_t i = 0; i < nb_json_len(eos); i++)
        add_stop_id(out, nb_json_int(nb_json_at(eos, i), -1));
    nb_json_free(gen);
    return NB_OK;
}

/* ---- text out, with stop strings held back ---- */

typedef struct stream {
    const nb_answer_opts *o;
    nb_stops *stops; /* NULL: none */
    nb_stopper stopper;
    nb_buf piece, *text;
    bool stopped; /* a stop string was found, or the caller asked to stop */
    bool asked;   /* the latter                                           */
} stream;

static nb_status open_stops(const nb_answer_opts *o, nb_stops **out, nb_err *err)
{
    size_t *len;
    nb_status rc;

    *out = NULL;
    if (o->n_stop == 0)
        return NB_OK;
    len = nb_alloc_array(o->n_stop, sizeof *len);
    if (!len)
        return nb_enomem(err, "the stop strings");
    for (size_t i = 0; i < o->n_stop; i++)
        len[i] = strlen(o->stop[i]);
    rc = nb_stops_open(o->stop, len, o->n_stop, out, err);
    nb_free(len);
    return rc;
}

/* s->piece is new text, the last when it says so: what no stop string can take back goes to the answer and to the caller. */
static void hand_out(stream *s, bool last)
{
    const size_t from = s->text->n;

    if (nb_stop_feed(s->stops, &s->stopper, s->piece.p ? s->piece.p : "", s->piece.n, false, s->text))
        s->stopped = true;
    else if (last)
        nb_stop_flush(s->stops, &s->stopper, s->text);
    s->text->failed = s->text->failed || s->piece.failed;
    s->piece.n = 0;
    if (s->text->n > from && !s->text->failed && s->o->piece && s->o->piece(s->o->user, s->text->p + from, s->text->n - from) != 0)
        s->stopped = s->asked = true;
}

/* ---- the loop ---- */

/* One step of the engine; tokens go through detok to the stream. */
static nb_status step(nb_engine *e, nb_detok *detok, stream *s, nb_answer *out, double t0, bool *lost, nb_err *err)
{
    const nb_event *ev;
    size_t n;
    nb_status rc = nb_engine_step(e, &ev, &n, err);

    *lost = rc != NB_OK;
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        if (out->prompt_s == 0)
            out->prompt_s = nb_now() - t0;
        if (ev[i].kind == NB_EV_DONE && ev[i].finish == NB_FINISH_ERROR) {
            if (err)
                *err = *ev[i].err;
            return ev[i].err->code;
        }
        if (ev[i].kind == NB_EV_DONE) {
            out->finish = !s->stopped ? ev[i].finish : s->asked ? NB_FINISH_CANCEL : NB_FINISH_STOP;
            continue;
        }
        out->n_tokens++;
        if (s->stopped)
            continue;
        rc = nb_detok_add(detok, ev[i].id, &s->piece, err);
        if (rc == NB_OK)
            hand_out(s, false);
    }
    return rc;
}

nb_status nb_answer_run(nb_engine *e, const nb_tokenizer *t, const nb_answer_opts *o, nb_answer *out, bool *engine_lost, nb_err *err)
{
    const nb_request q = { .ids = o->ids,
                           .n_ids = o->n_ids,
                           .max_tokens = o->max_tokens,
                           .sampling = o->sampling,
                           .stop_ids = o->stop_ids,
                           .n_stop_ids = o->n_stop_ids };
    stream s = { .o = o, .text = &out->text };
    const double t0 = nb_now();
    nb_detok *detok = NULL;
    bool lost = false, cancelled = false;
    uint64_t id;
    nb_status rc;

    memset(out, 0, sizeof *out);
    rc = open_stops(o, &s.stops, err);
    if (rc == NB_OK)
        rc = nb_detok_open(t, true, &detok, err);
    if (rc == NB_OK)
        rc = nb_engine_add(e, &q, &id, err);
    while (rc == NB_OK && !nb_engine_idle(e)) {
        cancelled = cancelled || nb_cancelled(o->host);
        if (cancelled || s.stopped)
            nb_engine_cancel(e, id);
        rc = step(e, detok, &s, out, t0, &lost, err);
    }
    if (rc == NB_OK && !s.stopped) {
        rc = nb_detok_flush(detok, &s.piece, err);
        if (rc == NB_OK)
            hand_out(&s, true);
    }
    out->answer_s = nb_now() - t0 - out->prompt_s;
    nb_detok_close(detok);
    nb_stops_close(s.stops);
    nb_buf_clear(&s.piece);
    if (engine_lost)
        *engine_lost = lost || !nb_engine_idle(e);
    if (rc == NB_OK && out->text.failed)
        rc = nb_enomem(err, "the answer");
    if (rc == NB_OK && cancelled && out->finish == NB_FINISH_CANCEL)
        rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped after %zu tokens", out->n_tokens);
    return rc;
}
