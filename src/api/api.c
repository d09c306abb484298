/* api.c - models, text and answers under their public names; errors and callbacks between the two sides. */
#include <string.h>

#include "api/api_priv.h"
#include "base/mem.h"
#include "job/answer.h"
#include "job/load.h"
#include "job/logits.h"

/* ---- errors ---- */

_Static_assert((int)NIBBLE_OK == NB_OK && (int)NIBBLE_NO == NB_NO && (int)NIBBLE_ARGUMENT == NB_EARG && (int)NIBBLE_OPEN == NB_EOPEN &&
                   (int)NIBBLE_MALFORMED == NB_EFORMAT && (int)NIBBLE_UNSUPPORTED == NB_EUNSUPPORTED && (int)NIBBLE_LIMIT == NB_ELIMIT &&
                   (int)NIBBLE_READ == NB_EREAD && (int)NIBBLE_WRITE == NB_EWRITE && (int)NIBBLE_MEMORY == NB_ENOMEM &&
                   (int)NIBBLE_NUMERIC == NB_ENUMERIC && (int)NIBBLE_MISMATCH == NB_EMISMATCH && (int)NIBBLE_EXISTS == NB_EEXISTS &&
                   (int)NIBBLE_BUSY == NB_EBUSY && (int)NIBBLE_VERIFY == NB_EVERIFY && (int)NIBBLE_INTERNAL == NB_EINTERNAL &&
                   (int)NIBBLE_CANCELED == NB_ECANCELED,
               "public statuses are ours");

static void copy_text(char *to, const char *from, size_t cap)
{
    const size_t n = strlen(from);
    const size_t m = n < cap ? n : cap - 1;

    memcpy(to, from, m);
    to[m] = 0;
}

int nb_api_end(nb_status rc, const nb_err *err, nibble_error *e)
{
    if (!e)
        return (int)rc;
    memset(e, 0, sizeof *e);
    e->status = (int)rc;
    if (rc == NB_OK || err->code == NB_OK)
        return (int)rc;
    copy_text(e->cls, err->cls, sizeof e->cls);
    copy_text(e->rule, err->rule, sizeof e->rule);
    copy_text(e->file, err->file, sizeof e->file);
    copy_text(e->subject, err->subject, sizeof e->subject);
    copy_text(e->message, err->what, sizeof e->message);
    return (int)rc;
}

int nb_api_leave(const nb_fp *fp, nb_status rc, const nb_err *err, nibble_error *e)
{
    nb_fp_leave(fp);
    return nb_api_end(rc, err, e);
}

nb_status nb_api_null(nb_err *err, const char *name)
{
    return nb_fail(err, NB_EARG, "arg.null", "", "the argument \"%s\" is NULL", name);
}

const char *nibble_version(void)
{
    return NB_VERSION;
}

void nibble_free(void *p)
{
    nb_free(p);
}

/* ---- callbacks ---- */

static void on_log(void *user, nb_level level, const char *line)
{
    const nibble_host *h = user;

    h->log(h->user, (int)level, line);
}

static void on_progress(void *user, const nb_progress *p)
{
    const nibble_host *h = user;

    h->progress(h->user, p->what, p->item, p->done, p->total);
}

static bool on_cancelled(void *user)
{
    const nibble_host *h = user;

    return h->cancelled(h->user) != 0;
}

const nb_host *nb_api_bridge(nb_api_host *to, const nibble_host *h)
{
    memset(to, 0, sizeof *to);
    if (h)
        to->theirs = *h;
    to->ours.log = to->theirs.log ? on_log : NULL;
    to->ours.progress = to->theirs.progress ? on_progress : NULL;
    to->ours.cancelled = to->theirs.cancelled ? on_cancelled : NULL;
    to->ours.user = &to->theirs;
    return &to->ours;
}

/* ---- models ---- */

struct nibble_model {
    nb_loaded l;
    nb_api_host host;
    nb_pool *pool;
    nb_engine *engine; /* NULL after an error lost it: the next answer opens a new one */
    nb_engine_opts engine_opts;
    nb_answer_defaults answer;
    nb_err text_err; /* why there is no tokenizer or no template; told when one is asked for */
};

/* A model without usable text still gives logits. */
static nb_status load_text(nibble_model *m, const char *path, nb_err *err)
{
    nb_status rc = nb_load_text(&m->l, path, &m->text_err);

    if (rc == NB_OK || rc == NB_EOPEN || rc == NB_EUNSUPPORTED)
        return NB_OK;
    *err = m->text_err;
    return rc;
}

int nibble_open(const char *path, const nibble_model_options *o, nibble_model **out, nibble_error *e)
{
    nb_model_opts mo = { 0 };
    nb_err err = { 0 };
    nb_fp fp;
    nibble_model *m;
    nb_status rc = NB_OK;

    if (!path || !out)
        return nb_api_end(nb_api_null(&err, path ? "out" : "path"), &err, e);
    nb_fp_enter(&fp);
    *out = NULL;
    m = nb_calloc(1, sizeof *m);
    if (!m)
        return nb_api_leave(&fp, nb_enomem(&err, "the model"), &err, e);
    mo.host = nb_api_bridge(&m->host, o ? o->host : NULL);
    rc = nb_load_kern(o ? o->cpu : NULL, &mo.kern, &err);
    if (rc == NB_OK)
        rc = nb_pool_open(&m->pool, o ? o->threads : 0, &err);
    if (rc == NB_OK)
        rc = nb_load_store(&m->l, path, mo.host, &err);
    if (rc == NB_OK)
        rc = load_text(m, path, &err);
    mo.pool = m->pool;
    if (rc == NB_OK)
        rc = nb_load_model(&m->l, &mo, &err);
    if (rc == NB_OK)
        rc = nb_answer_defaults_read(m->l.dir, nb_model_config(m->l.model), &m->answer, &err);
    m->engine_opts =
        (nb_engine_opts){ .pool = m->pool, .tune = !o || o->threads == 0, .context = o ? o->context : 0, .kv_dtype = NB_DT_F16 };
    if (rc == NB_OK)
        rc = nb_engine_open(m->l.model, &m->engine_opts, &m->engine, &err);
    if (rc == NB_OK) {
        m->engine_opts.context = nb_engine_context(m->engine);
        *out = m;
        m = NULL;
    }
    nibble_close(m);
    return nb_api_leave(&fp, rc, &err, e);
}

void nibble_close(nibble_model *m)
{
    if (!m)
        return;
    nb_engine_close(m->engine);
    nb_load_close(&m->l);
    nb_pool_close(m->pool);
    nb_free(m);
}

size_t nibble_vocab(const nibble_model *m)
{
    return nb_model_config(m->l.model)->vocab;
}

size_t nibble_context(const nibble_model *m)
{
    return m->engine_opts.context;
}

const char *nibble_kernel(const nibble_model *m)
{
    return nb_model_kern(m->l.model)->name;
}

/* ---- text ---- */

static nb_status no_text(const nibble_model *m, nb_err *err)
{
    *err = m->text_err;
    return m->text_err.code;
}

/* The buffer's block for the caller. */
static nb_status give_text(nb_buf *b, char **text, size_t *n, nb_err *err)
{
    nb_buf_put(b, "", 0); /* a terminated block even when there is no text */
    if (b->failed)
        return nb_enomem(err, "the text");
    *text = b->p;
    if (n)
        *n = b->n;
    memset(b, 0, sizeof *b);
    return NB_OK;
}

int nibble_tokenize(nibble_model *m, const char *text, size_t n, int add_special, int parse_special, int32_t **ids, size_t *n_ids,
                    nibble_error *e)
{
    nb_err err = { 0 };
    nb_fp fp;
    nb_ids v = { 0 };
    nb_status rc;

    if (!m || (!text && n) || !ids || !n_ids)
        return nb_api_end(nb_api_null(&err, !m ? "m" : !text && n ? "text" : !ids ? "ids" : "n_ids"), &err, e);
    nb_fp_enter(&fp);
    *ids = NULL;
    *n_ids = 0;
    rc = m->l.tok ? nb_tokenizer_encode(m->l.tok, text ? text : "", n, add_special != 0, parse_special != 0, &v, &err) : no_text(m, &err);
    if (rc == NB_OK && !v.p && !(v.p = nb_alloc(sizeof *v.p)))
        rc = nb_enomem(&err, "the ids");
    if (rc == NB_OK) {
        *ids = v.p;
        *n_ids = v.n;
    } else {
        nb_ids_clear(&v);
    }
    return nb_api_leave(&fp, rc, &err, e);
}

int nibble_detokenize(nibble_model *m, const int32_t *ids, size_t n_ids, int skip_special, char **text, size_t *n, nibble_error *e)
{
    nb_err err = { 0 };
    nb_buf b = { 0 };
    nb_status rc;

    if (!m || (!ids && n_ids) || !text)
        return nb_api_end(nb_api_null(&err, !m ? "m" : !text ? "text" : "ids"), &err, e);
    *text = NULL;
    rc = m->l.tok ? nb_tokenizer_decode(m->l.tok, ids, n_ids, skip_special != 0, &b, &err) : no_text(m, &err);
    if (rc == NB_OK)
        rc = give_text(&b, text, n, &err);
    nb_buf_clear(&b);
    return nb_api_end(rc, &err, e);
}

int nibble_chat_prompt(nibble_model *m, const char *json, char **text, size_t *n, nibble_error *e)
{
    nb_err err = { 0 };
    nb_fp fp;
    nb_buf b = { 0 };
    nb_json *request = NULL;
    nb_status rc;

    if (!m || !json || !text)
        return nb_api_end(nb_api_null(&err, !m ? "m" : !text ? "text" : "json"), &err, e);
    nb_fp_enter(&fp);
    *text = NULL;
    rc = m->l.chat || m->text_err.code == NB_OK ? NB_OK : no_text(m, &err);
    if (rc == NB_OK && (!m->l.chat || !nb_chat_has_template(m->l.chat)))
        rc = nb_fail(&err, NB_EUNSUPPORTED, "tmpl.missing", "", "the model has no chat template; give it plain text to continue");
    if (rc == NB_OK)
        rc = nb_json_parse(json, strlen(json), "json", 0, &request, &err);
    if (rc == NB_OK)
        rc = nb_chat_render(m->l.chat, request, true, NULL, &b, &err);
    if (rc == NB_OK)
        rc = give_text(&b, text, n, &err);
    nb_json_free(request);
    nb_buf_clear(&b);
    return nb_api_leave(&fp, rc, &err, e);
}

/* ---- answers ---- */

nibble_sampling nibble_greedy(void)
{
    return (nibble_sampling){ .top_p = 1, .repetition_penalty = 1 };
}

int nibble_generate(nibble_model *m, const int32_t *ids, size_t n_ids, const nibble_sampling *s, nibble_piece_fn *piece, void *user,
                    size_t *n_answer, nibble_error *e)
{
    const nibble_sampling how = s ? *s : nibble_greedy();
    nb_answer_opts o = { .ids = ids, .n_ids = n_ids, .max_tokens = how.max_tokens, .piece = piece, .user = user };
    nb_answer answer = { 0 };
    nb_err err = { 0 };
    nb_fp fp;
    bool lost = false;
    nb_status rc = NB_OK;

    if (n_answer)
        *n_answer = 0;
    if (!m || (!ids && n_ids))
        return nb_api_end(nb_api_null(&err, m ? "ids" : "m"), &err, e);
    nb_fp_enter(&fp);
    o.sampling = (nb_sampling){ .temperature = how.temperature,
                                .top_k = how.top_k,
                                .top_p = how.top_p,
                                .min_p = how.min_p,
                                .repetition_penalty = how.repetition_penalty,
                                .seed = how.seed };
    o.stop_ids = m->answer.stop_ids;
    o.n_stop_ids = m->answer.n_stop_ids;
    o.host = &m->host.ours;
    if (!m->l.tok)
        rc = no_text(m, &err);
    if (rc == NB_OK && !m->engine)
        rc = nb_engine_open(m->l.model, &m->engine_opts, &m->engine, &err);
    if (rc == NB_OK) {
        rc = nb_answer_run(m->engine, m->l.tok, &o, &answer, &lost, &err);
        if (n_answer)
            *n_answer = answer.n_tokens;
    }
    if (lost) {
        nb_engine_close(m->engine);
        m->engine = NULL;
    }
    nb_buf_clear(&answer.text);
    return nb_api_leave(&fp, rc, &err, e);
}

int nibble_logits(nibble_model *m, const int32_t *ids, size_t n_ids, float *out, nibble_error *e)
{
    nb_err err = { 0 };
    nb_fp fp;
    nb_status rc;

    if (!m || (!ids && n_ids) || (!out && n_ids))
        return nb_api_end(nb_api_null(&err, !m ? "m" : !ids ? "ids" : "out"), &err, e);
    nb_fp_enter(&fp);
    rc = n_ids > m->engine_opts.context
             ? nb_fail(&err, NB_ELIMIT, "limit.context", "", "%zu tokens, the context holds %zu", n_ids, m->engine_opts.context)
             : nb_logits_run(m->l.model, m->pool, m->engine_opts.kv_dtype, &m->host.ours, ids, n_ids, out, &err);
    return nb_api_leave(&fp, rc, &err, e);
}
