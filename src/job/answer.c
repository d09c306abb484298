/* answer.c - the loop from prompt ids to streamed text. */
#include "job/answer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

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
    nb_buf *text;
    size_t shown; /* bytes already handed out                              */
    bool stopped; /* a stop string was found, or the caller asked to stop  */
    bool asked;   /* the latter                                            */
} stream;

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const stream *s)
{
    size_t hold = 0;

    for (size_t i = 0; i < s->o->n_stop; i++) {
        const char *stop = s->o->stop[i];
        for (size_t k = strlen(stop) - 1; k > hold; k--)
            if (k <= s->text->n && memcmp(s->text->p + s->text->n - k, stop, k) == 0) {
                hold = k;
                break;
            }
    }
    return hold;
}

/* Cut the text before the stop string that is complete first (DET-3). from: where the new text begins. */
static void find_stop(stream *s, size_t from)
{
    size_t best_end = SIZE_MAX, best_at = 0;

    for (size_t i = 0; i < s->o->n_stop; i++) {
        const size_t len = strlen(s->o->stop[i]);
        for (size_t at = from > len ? from - len : 0; at + len <= s->text->n; at++)
            if (memcmp(s->text->p + at, s->o->stop[i], len) == 0) {
                if (at + len < best_end) {
                    best_end = at + len;
                    best_at = at;
                }
                break;
            }
    }
    if (best_end == SIZE_MAX)
        return;
    s->text->n = best_at;
    s->text->p[best_at] = 0;
    s->stopped = true;
}

static void hand_out(stream *s, size_t from, bool last)
{
    size_t end;

    if (!s->text->p || s->text->failed)
        return;
    find_stop(s, from);
    end = s->stopped || last ? s->text->n : s->text->n - held_back(s);
    if (end <= s->shown)
        return;
    if (s->o->piece && s->o->piece(s->o->user, s->text->p + s->shown, end - s->shown) != 0)
        s->stopped = s->asked = true;
    s->shown = end;
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
        const size_t from = out->text.n;
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
        rc = nb_detok_add(detok, ev[i].id, &out->text, err);
        if (rc == NB_OK)
            hand_out(s, from, false);
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
        const size_t from = out->text.n;
        rc = nb_detok_flush(detok, &out->text, err);
        if (rc == NB_OK)
            hand_out(&s, from, true);
    }
    out->answer_s = nb_now() - t0 - out->prompt_s;
    nb_detok_close(detok);
    if (engine_lost)
        *engine_lost = lost || !nb_engine_idle(e);
    if (rc == NB_OK && out->text.failed)
        rc = nb_enomem(err, "the answer");
    if (rc == NB_OK && cancelled && out->finish == NB_FINISH_CANCEL)
        rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped after %zu tokens", out->n_tokens);
    return rc;
}
