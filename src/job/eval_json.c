/* eval_json.c - see eval_json.h. */
#include "job/eval_json.h"

#include <math.h>
#include <string.h>

static nb_json *text(const char *s)
{
    char esc[NB_ESC_CAP];
    nb_json *v = nb_json_new_str(s);

    return v ? v : nb_json_new_str(nb_esc(esc, sizeof esc, s, strlen(s)));
}

static bool put_mean(nb_json *o, const char *name, nb_mean m)
{
    nb_json *v = nb_json_new_obj();
    const bool ok = nb_json_set(v, "mean", nb_json_new_real(m.mean)) && nb_json_set(v, "lo", nb_json_new_real(m.lo)) &&
                    nb_json_set(v, "hi", nb_json_new_real(m.hi)) && nb_json_set(v, "ci95", nb_json_new_real(m.ci95));

    if (!ok) {
        nb_json_free(v);
        return false;
    }
    return nb_json_set(o, name, v);
}

/* A value with its interval beside it: "ppl", "ppl_lo", "ppl_hi". */
static bool put_plain(nb_json *o, const char *name, const char *lo, const char *hi, nb_mean m)
{
    return nb_json_set(o, name, nb_json_new_real(m.mean)) && nb_json_set(o, lo, nb_json_new_real(m.lo)) &&
           nb_json_set(o, hi, nb_json_new_real(m.hi));
}

static bool put_score(nb_json *o, const nb_eval_score *s, bool distances)
{
    bool ok = nb_json_set(o, "scored", nb_json_new_int((int64_t)s->scored)) && put_mean(o, "nll", s->nll) &&
              put_plain(o, "ppl", "ppl_lo", "ppl_hi", s->ppl);

    if (s->word_ppl > 0)
        ok = ok && nb_json_set(o, "word_ppl", nb_json_new_real(s->word_ppl));
    if (s->byte_bits > 0)
        ok = ok && nb_json_set(o, "bits_per_byte", nb_json_new_real(s->byte_bits));
    if (!ok || !distances)
        return ok;
    return nb_json_set(o, "positions", nb_json_new_int((int64_t)s->positions)) &&
           put_plain(o, "ppl_ratio", "ppl_ratio_lo", "ppl_ratio_hi", s->ppl_ratio) && put_mean(o, "kl", s->kl) &&
           nb_json_set(o, "kl_sem", nb_json_new_real(s->kl_sem)) &&
           put_plain(o, "kl_median", "kl_median_lo", "kl_median_hi", s->kl_median) &&
           put_plain(o, "kl_99", "kl_99_lo", "kl_99_hi", s->kl_99) && put_plain(o, "kl_999", "kl_999_lo", "kl_999_hi", s->kl_999) &&
           nb_json_set(o, "kl_max", nb_json_new_real(s->kl_max)) && put_mean(o, "top1", s->top1) && put_mean(o, "top5", s->top5);
}

static nb_json *numbers(const double *v, size_t n)
{
    nb_json *a = nb_json_new_arr();

    for (size_t i = 0; a && i < n; i++)
        if (!nb_json_push(a, nb_json_new_real(v[i]))) {
            nb_json_free(a);
            return NULL;
        }
    return a;
}

static nb_json *parts(const nb_eval_all *a, const nb_eval_model *m, bool distances)
{
    nb_json *list = nb_json_new_arr();
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < a->set->n_parts; i++) {
        nb_json *o = nb_json_new_obj();
        if (nb_json_set(o, "data", text(a->set->parts[i])) && put_score(o, &m->part[i], distances)) {
            ok = nb_json_push(list, o);
        } else {
            nb_json_free(o);
            ok = false;
        }
    }
    if (ok)
        return list;
    nb_json_free(list);
    return NULL;
}

static bool put_choice(nb_json *o, const nb_choice_score *c)
{
    nb_json *v = nb_json_new_obj();
    bool ok = nb_json_set(v, "questions", nb_json_new_int((int64_t)c->n)) && put_mean(v, "acc", c->acc) &&
              nb_json_set(v, "acc_stderr", nb_json_new_real(c->se)) && put_mean(v, "acc_norm", c->acc_norm) &&
              nb_json_set(v, "acc_norm_stderr", nb_json_new_real(c->se_norm)) && nb_json_set(v, "guessing", nb_json_new_real(c->guess));

    if (ok && c->same >= 0)
        ok = nb_json_set(v, "same_as_ref", nb_json_new_real(c->same));
    if (!ok) {
        nb_json_free(v);
        return false;
    }
    return nb_json_set(o, "choices", v);
}

static bool put_layers(nb_json *o, const nb_layer_errors *e)
{
    nb_json *v = nb_json_new_obj();

    if (!nb_json_set(v, "tokens", nb_json_new_int((int64_t)e->tokens)) || !nb_json_set(v, "alone", numbers(e->alone, e->n)) ||
        !nb_json_set(v, "drift", numbers(e->drift, e->n))) {
        nb_json_free(v);
        return false;
    }
    return nb_json_set(o, "layers", v);
}

/* Everything of one model but its name. */
static bool put_model(nb_json *o, const nb_eval_all *a, size_t i)
{
    bool ok = true;

    if (a->eval) {
        const nb_eval_model *m = &a->eval->model[i];
        ok = put_score(o, &m->all, a->eval->has_ref);
        if (ok && m->part)
            ok = nb_json_set(o, "parts", parts(a, m, a->eval->has_ref));
        if (ok && a->eval->has_ref)
            ok = nb_json_set(o, "kl_by_position", numbers(m->kl_at, a->eval->n_bins));
    }
    if (ok && a->choice)
        ok = put_choice(o, &a->choice[i]);
    if (ok && a->layers && a->layers[i].n)
        ok = put_layers(o, &a->layers[i]);
    return ok;
}

static bool put_head(nb_json *o, const nb_eval_all *a)
{
    const nb_eval *e = a->eval;
    bool ok = nb_json_set(o, "data", text(a->data));

    if (ok && e)
        ok = nb_json_set(o, "protocol", nb_json_new_str(a->set->protocol)) &&
             nb_json_set(o, "protocol_is", nb_json_new_str(a->set->about)) &&
             nb_json_set(o, "windows", nb_json_new_int((int64_t)a->set->n_win)) &&
             nb_json_set(o, "rows", nb_json_new_int((int64_t)a->set->n_win)) &&
             nb_json_set(o, "row_tokens", nb_json_new_int((int64_t)a->set->max_len)) &&
             nb_json_set(o, "interval", nb_json_new_str("95 %, bootstrap")) && nb_json_set(o, "drawn", nb_json_new_str(e->drawn)) &&
             nb_json_set(o, "resamples", nb_json_new_int((int64_t)e->resamples)) &&
             nb_json_set(o, "seed", nb_json_new_int((int64_t)e->seed));
    if (ok && a->ref)
        ok = nb_json_set(o, "ref", text(a->ref));
    if (ok && e && e->has_ref)
        ok = nb_json_set(o, "ref_ppl", nb_json_new_real(e->ref.all.ppl.mean)) &&
             nb_json_set(o, "kl_is", nb_json_new_str(e->lower_bound ? "lower bound from saved top tokens" : "exact"));
    if (ok && a->choice)
        ok = nb_json_set(o, "questions_file", text(a->choice_file));
    if (ok && a->choice && a->choice[a->n_models].n) {
        nb_json *r = nb_json_new_obj();
        ok = put_choice(r, &a->choice[a->n_models]) ? nb_json_set(o, "ref_choices", nb_json_copy(nb_json_get(r, "choices"))) : false;
        nb_json_free(r);
    }
    return ok;
}

nb_json *nb_eval_json(const nb_eval_all *a)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr(), *hints = nb_json_new_arr();
    bool ok = o && list && hints;

    if (ok && a->n_models == 1)
        ok = nb_json_set(o, "model", text(a->models[0])) && put_head(o, a) && put_model(o, a, 0);
    else if (ok)
        ok = put_head(o, a);
    for (size_t i = 0; ok && a->n_models > 1 && i < a->n_models; i++) {
        nb_json *m = nb_json_new_obj();
        if (nb_json_set(m, "model", text(a->models[i])) && put_model(m, a, i)) {
            ok = nb_json_push(list, m);
        } else {
            nb_json_free(m);
            ok = false;
        }
    }
    for (size_t i = 0; ok && i < a->n_hints; i++)
        ok = nb_json_push(hints, text(a->hints[i]));
    if (ok && a->n_models > 1) {
        ok = nb_json_set(o, "models", list);
        list = NULL;
    }
    if (ok && a->n_hints) {
        ok = nb_json_set(o, "hints", hints);
        hints = NULL;
    }
    nb_json_free(list);
    nb_json_free(hints);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}
