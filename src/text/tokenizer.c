#include "text/tokenizer.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokparts.h"

#define JSON_DEPTH 128

nb_status nb_ids_push(nb_ids *v, int32_t id, nb_err *err)
{
    if (v->n == v->cap) {
        const size_t cap = v->cap ? v->cap * 2 : 64;
        size_t bytes;
        int32_t *p;
        if (!nb_mul_size(cap, sizeof *p, &bytes) || !(p = nb_realloc(v->p, bytes)))
            return nb_enomem(err, "token ids");
        v->p = p;
        v->cap = cap;
    }
    v->p[v->n++] = id;
    return NB_OK;
}

void nb_ids_clear(nb_ids *v)
{
    nb_free(v->p);
    memset(v, 0, sizeof *v);
}

/* ---- open ---- */

static nb_status check_version(const nb_json *doc, nb_err *err)
{
    const nb_json *v = nb_json_get(doc, "version");
    const char *s = nb_json_str(v, "");
    char esc[NB_ESC_CAP];

    if (nb_json_typeof(doc) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "a tokenizer is a JSON object");
    if (nb_json_is_null(v) || strcmp(s, "1.0") == 0)
        return NB_OK;
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "tokenizer version \"%s\", only \"1.0\" is known",
                   nb_esc(esc, sizeof esc, s, nb_json_str_len(v)));
}

static nb_status open_parts(nb_tokenizer *t, const nb_tokjson *j, const nb_json *config, nb_err *err)
{
    const nb_json *doc = j->doc;
    const nb_json *model = nb_json_get(doc, "model");
    bool raw = nb_tokmodel_takes_raw(model);
    const nb_tokmodel_ops *ops;
    nb_status rc = check_version(doc, err);

    if (rc == NB_OK)
        rc = nb_tokmodel_check(model, &ops, err); /* first: of all that may be unknown it says most */
    if (rc == NB_OK)
        rc = nb_norm_open(nb_json_get(doc, "normalizer"), &t->norm, err);
    if (rc == NB_OK)
        rc = nb_presplit_open(nb_json_get(doc, "pre_tokenizer"), &raw, &t->presplit, err);
    if (rc == NB_OK)
        rc = nb_decoder_open(nb_json_get(doc, "decoder"), &t->decoder, err);
    if (rc == NB_OK)
        rc = nb_tokmodel_open(model, j, raw, &t->model, err);
    if (rc == NB_OK)
        rc = nb_added_open(nb_json_get(doc, "added_tokens"), nb_json_get(config, "added_tokens_decoder"), &t->model->vocab, t->norm,
                           &t->added, err);
    return rc == NB_OK ? nb_post_init(&t->post, nb_json_get(doc, "post_processor"), config, t, err) : rc;
}

nb_status nb_tokenizer_open(const char *json, size_t n_json, const char *config, size_t n_config, nb_tokenizer **out, nb_err *err)
{
    nb_tokenizer *t = nb_calloc(1, sizeof *t);
    nb_tokjson doc = { 0 };
    nb_json *cfg = NULL;
    nb_status rc;

    *out = NULL;
    if (!t)
        return nb_enomem(err, "the tokenizer");
    if (!json) {
        rc = nb_fail(err, NB_EOPEN, "tok.missing", "", "there is no tokenizer.json");
        goto done;
    }
    rc = nb_tokjson_open(json, n_json, &doc, err);
    if (rc != NB_OK) {
        nb_err_at(err, "tokenizer.json", NULL);
        goto done;
    }
    if (config) {
        rc = nb_json_parse(config, n_config, "tok", JSON_DEPTH, &cfg, err);
        if (rc != NB_OK) {
            nb_err_at(err, "tokenizer_config.json", NULL);
            goto done;
        }
    }
    rc = open_parts(t, &doc, cfg, err);
    if (rc != NB_OK) {
        nb_err_at(err, "tokenizer.json", NULL);
        goto done;
    }
    *out = t;
    t = NULL;
done:
    nb_tokjson_clear(&doc);
    nb_json_free(cfg);
    nb_tokenizer_close(t);
    return rc;
}

void nb_tokenizer_close(nb_tokenizer *t)
{
    if (!t)
        return;
    nb_norm_close(t->norm);
    nb_presplit_close(t->presplit);
    nb_tokmodel_close(t->model);
    nb_added_close(t->added);
    nb_decoder_close(t->decoder);
    nb_post_clear(&t->post);
    nb_free(t);
}

/* ---- pieces and ids ---- */

size_t nb_tokenizer_size(const nb_tokenizer *t)
{
    const size_t a = nb_added_ids(t->added), m = t->model->vocab.n_ids;

    return a > m ? a : m;
}

const char *nb_tokenizer_piece(const nb_tokenizer *t, int32_t id, size_t *n)
{
    const char *s = nb_added_content(t->added, id, n);

    return s ? s : nb_vocab_piece(&t->model->vocab, id, n);
}

int32_t nb_tokenizer_id(const nb_tokenizer *t, const char *piece, size_t n)
{
    const int32_t id = nb_added_find(t->added, piece, n);

    return id >= 0 ? id : nb_vocab_find(&t->model->vocab, piece, n);
}

bool nb_tokenizer_is_special(const nb_tokenizer *t, int32_t id)
{
    const nb_added_token *a = nb_added_by_id(t->added, id);

    return a && a->special;
}

const char *nb_token_shown(const nb_tokenizer *t, int32_t id, bool skip_special, size_t *n)
{
    const nb_added_token *a = nb_added_by_id(t->added, id);

    if (!a)
        return nb_vocab_piece(&t->model->vocab, id, n);
    if (skip_special && a->skipped)
        return NULL;
    *n = a->n_shown;
    return a->shown;
}

/* ---- encode ---- */

typedef struct encoder {
    const nb_tokenizer *t;
    bool parse_special;
    const nb_guard *guard; /* NULL: none */
    nb_parts raw, normal;
    nb_norm_work norm;
    nb_pieces pieces;
    nb_tokwork model;
    nb_ids *out;
    nb_err *err;
} encoder;

static nb_status encode_text(encoder *e, const char *s, size_t n, bool at_zero)
{
    nb_status rc = nb_presplit_run(e->t->presplit, s, n, at_zero, &e->pieces, e->err);

    for (size_t i = 0; rc == NB_OK && i < e->pieces.list.n; i++) {
        const nb_span sp = e->pieces.list.v[i];
        rc = e->t->model->ops->encode(e->t->model, &e->model, e->pieces.text + sp.off, sp.n, e->out, e->err);
    }
    return rc;
}

/* Text between added tokens of the raw text: normalize, find the normalized added tokens, encode the rest. */
static nb_status encode_segment(encoder *e, const char *s, size_t n, bool at_zero, bool guarded)
{
    nb_status rc = nb_norm_run(e->t->norm, &e->norm, &s, &n, e->err);

    if (rc == NB_OK)
        rc = nb_added_split(e->t->added, true, s, n, !e->parse_special || guarded, NULL, &e->normal, e->err);
    for (size_t i = 0; rc == NB_OK && i < e->normal.n; i++) {
        const nb_part p = e->normal.v[i];
        rc = p.token ? nb_ids_push(e->out, p.token->id, e->err) : encode_text(e, s + p.off, p.n, at_zero && p.off == 0);
    }
    return rc;
}

/* Has the part [off, off + n) a guarded place? at: the first one that may be; parts come in order. */
static bool has_guard(const nb_guard *g, size_t *at, size_t off, size_t n)
{
    while (g && *at < g->n && g->v[*at] < off)
        ++*at;
    return g && *at < g->n && g->v[*at] < off + n;
}

static nb_status encode_all(encoder *e, const char *s, size_t n)
{
    size_t at = 0;
    nb_status rc = nb_added_split(e->t->added, false, s, n, !e->parse_special, e->guard, &e->raw, e->err);

    e->norm.left = NB_NORM_BUDGET(n);
    for (size_t i = 0; rc == NB_OK && i < e->raw.n; i++) {
        const nb_part p = e->raw.v[i];
        rc = p.token ? nb_ids_push(e->out, p.token->id, e->err)
                     : encode_segment(e, s + p.off, p.n, p.off == 0, has_guard(e->guard, &at, p.off, p.n));
    }
    return rc;
}

static nb_status push_all(nb_ids *out, const nb_ids *from, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < from->n; i++)
        rc = nb_ids_push(out, from->p[i], err);
    return rc;
}

static nb_status encode(const nb_tokenizer *t, const char *text, size_t n, bool add_special, bool parse_special, const nb_guard *guard,
                        nb_ids *out, nb_err *err)
{
    encoder e = { .t = t, .parse_special = parse_special, .guard = guard, .out = out, .err = err };
    const size_t start = out->n;
    nb_buf fixed = { 0 };
    nb_status rc = NB_OK;

    if (nb_u8_check(text, n) < n) {
        nb_u8_repair(&fixed, text, n);
        if (fixed.failed)
            rc = nb_enomem(err, "a text");
        text = fixed.p;
        n = fixed.n;
        e.parse_special = parse_special && !guard; /* the places are off now */
        e.guard = NULL;
    }
    if (rc == NB_OK && add_special)
        rc = push_all(out, &t->post.before, err);
    if (rc == NB_OK)
        rc = encode_all(&e, text, n);
    if (rc == NB_OK && add_special && t->post.not_twice && t->post.before.n == 1 && out->n > start + 1 &&
        out->p[start + 1] == out->p[start]) {
        memmove(out->p + start, out->p + start + 1, (out->n - start - 1) * sizeof *out->p);
        out->n--;
    }
    if (rc == NB_OK && add_special)
        rc = push_all(out, &t->post.after, err);
    if (rc != NB_OK)
        out->n = start;
    nb_buf_clear(&fixed);
    nb_parts_clear(&e.raw);
    nb_parts_clear(&e.normal);
    nb_norm_work_clear(&e.norm);
    nb_pieces_clear(&e.pieces);
    nb_tokwork_clear(&e.model);
    return rc;
}

nb_status nb_tokenizer_encode(const nb_tokenizer *t, const char *text, size_t n, bool add_special, bool parse_special, nb_ids *out,
                              nb_err *err)
{
    return encode(t, text, n, add_special, parse_special, NULL, out, err);
}

nb_status nb_tokenizer_encode_guarded(const nb_tokenizer *t, const char *text, size_t n, bool add_special, const nb_guard *guard,
                                      nb_ids *out, nb_err *err)
{
    return encode(t, text, n, add_special, true, guard, out, err);
}

/* ---- decode ---- */

nb_status nb_tokenizer_decode(const nb_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, nb_buf *out, nb_err *err)
{
    nb_buf text = { 0 };
    nb_spans list = { 0 };
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        size_t k;
        const char *s = nb_token_shown(t, ids[i], skip_special, &k);
        if (!s)
            continue;
        rc = nb_spans_push(&list, text.n, k, err);
        nb_buf_put(&text, s, k);
    }
    if (rc == NB_OK && text.failed)
        rc = nb_enomem(err, "decoding");
    if (rc == NB_OK)
        rc = nb_decoder_run(t->decoder, text.p ? text.p : "", list.v, list.n, out, err);
    nb_buf_clear(&text);
    nb_spans_clear(&list);
    return rc;
}
