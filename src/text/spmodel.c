/* spmodel.c - tokenizer.model of SentencePiece: a protobuf message ModelProto. Source: spec tokenizers 13;
 * sentencepiece_model.proto. */
#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "base/spm.h"
#include "text/toksource.h"
#include "text/utf8.h"
#include "text/vocab.h"

/* ---- protobuf ---- */

typedef struct reader {
    const unsigned char *all, *p, *end;
    nb_err *err;
} reader;

typedef struct field {
    uint64_t tag; /* number of the field */
    int wire;     /* 0 varint, 1 eight bytes, 2 bytes with a length, 5 four bytes */
    uint64_t v;
    const unsigned char *p; /* wire 2: v bytes */
} field;

static nb_status broken(const reader *r, const char *what)
{
    return nb_fail(r->err, NB_EFORMAT, "tok.protobuf", "", "tokenizer.model is broken at byte %zu: %s", (size_t)(r->p - r->all), what);
}

static nb_status read_varint(reader *r, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; shift < 64 && r->p < r->end; shift += 7) {
        const unsigned char b = *r->p++;
        *v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80)
            return NB_OK;
    }
    return broken(r, r->p < r->end ? "a number of more than 64 bits" : "it ends inside a number");
}

/* The next field; *more false at the end. */
static nb_status next_field(reader *r, field *f, bool *more)
{
    uint64_t key;
    nb_status rc;

    *more = r->p < r->end;
    if (!*more)
        return NB_OK;
    rc = read_varint(r, &key);
    if (rc != NB_OK)
        return rc;
    f->tag = key >> 3;
    f->wire = (int)(key & 7);
    f->p = NULL;
    if (f->tag == 0)
        return broken(r, "field number 0");
    if (f->wire == 0)
        return read_varint(r, &f->v);
    if (f->wire == 2 && (rc = read_varint(r, &f->v)) != NB_OK)
        return rc;
    if (f->wire == 1 || f->wire == 5)
        f->v = f->wire == 1 ? 8 : 4;
    else if (f->wire != 2)
        return broken(r, "a field of a kind that is not used here");
    if (f->v > (uint64_t)(r->end - r->p))
        return broken(r, "a field reaches past the end");
    f->p = r->p;
    r->p += f->v;
    return NB_OK;
}

static reader inside(const reader *r, const field *f)
{
    return (reader){ .all = r->all, .p = f->p, .end = f->p + f->v, .err = r->err };
}

/* ---- the message ---- */

typedef struct model {
    nb_scored *piece;
    unsigned char *type;
    size_t n, cap;
    uint64_t kind; /* 1 Unigram, 2 byte pairs */
    int32_t unk, bos, eos, pad;
    bool byte_fallback, suffix, dummy_prefix, collapse, escape;
    const unsigned char *charsmap;
    size_t n_charsmap;
} model;

static nb_status add_piece(model *m, reader *r)
{
    nb_scored s = { .s = "" };
    uint64_t type = NB_SPM_NORMAL;
    field f;
    bool more;
    nb_status rc;

    while ((rc = next_field(r, &f, &more)) == NB_OK && more) {
        if (f.tag == 1 && f.wire == 2) {
            s.s = (const char *)f.p;
            s.n = (size_t)f.v;
        } else if (f.tag == 2 && f.wire == 5) {
            const uint32_t bits = nb_le32(f.p);
            float x;
            memcpy(&x, &bits, sizeof x);
            s.score = (double)x;
        } else if (f.tag == 3 && f.wire == 0) {
            type = f.v;
        } else if (f.tag <= 3) {
            return broken(r, "a piece, score or type of another kind");
        }
    }
    if (rc != NB_OK)
        return rc;
    if (type < NB_SPM_NORMAL || type > NB_SPM_BYTE)
        return broken(r, "a piece of an unknown type");
    if (nb_u8_check(s.s, s.n) < s.n)
        return broken(r, "a piece is not valid UTF-8");
    if (s.n > NB_PIECE_MAX)
        return nb_fail(r->err, NB_ELIMIT, "limit.token", "", "token %zu has %zu bytes of text, at most %u are read", m->n, s.n,
                       NB_PIECE_MAX);
    if (!isfinite(s.score))
        return nb_fail(r->err, NB_EFORMAT, "tok.score", "", "the score of token %zu is not finite", m->n);
    if (m->n == NB_VOCAB_MAX)
        return nb_fail(r->err, NB_ELIMIT, "limit.vocab", "", "more than %u tokens", NB_VOCAB_MAX);
    if (m->n == m->cap) {
        const size_t cap = m->cap ? m->cap * 2 : 1024;
        void *p = nb_realloc(m->piece, cap * sizeof *m->piece);
        if (!p)
            return nb_enomem(r->err, "the vocabulary");
        m->piece = p;
        if (!(p = nb_realloc(m->type, cap)))
            return nb_enomem(r->err, "the vocabulary");
        m->type = p;
        m->cap = cap;
    }
    m->piece[m->n] = s;
    m->type[m->n++] = (unsigned char)type;
    return NB_OK;
}

/* Ids are int32; negative ones say that there is no such token. */
static int32_t as_id(uint64_t v)
{
    const int64_t x = (int64_t)v;

    return x < 0 || x > INT32_MAX ? -1 : (int32_t)x;
}

static nb_status read_trainer(model *m, reader *r)
{
    field f;
    bool more;
    nb_status rc;

    while ((rc = next_field(r, &f, &more)) == NB_OK && more) {
        if (f.wire != 0)
            continue;
        switch (f.tag) {
        case 3:
            m->kind = f.v;
            break;
        case 24:
            m->suffix = f.v != 0;
            break;
        case 35:
            m->byte_fallback = f.v != 0;
            break;
        case 40:
            m->unk = as_id(f.v);
            break;
        case 41:
            m->bos = as_id(f.v);
            break;
        case 42:
            m->eos = as_id(f.v);
            break;
        case 43:
            m->pad = as_id(f.v);
            break;
        default:
            break;
        }
    }
    return rc;
}

static nb_status read_normalizer(model *m, reader *r)
{
    field f;
    bool more;
    nb_status rc;

    while ((rc = next_field(r, &f, &more)) == NB_OK && more) {
        if (f.tag == 2 && f.wire == 2) {
            m->charsmap = f.p;
            m->n_charsmap = (size_t)f.v;
        } else if (f.tag == 3 && f.wire == 0) {
            m->dummy_prefix = f.v != 0;
        } else if (f.tag == 4 && f.wire == 0) {
            m->collapse = f.v != 0;
        } else if (f.tag == 5 && f.wire == 0) {
            m->escape = f.v != 0;
        }
    }
    return rc;
}

static nb_status read_model(model *m, reader *r)
{
    field f;
    bool more;
    nb_status rc;

    while ((rc = next_field(r, &f, &more)) == NB_OK && more) {
        reader in = { 0 };
        if (f.wire == 2)
            in = inside(r, &f);
        else if (f.tag <= 3)
            return broken(r, "a part of another kind");
        if (f.tag == 1)
            rc = add_piece(m, &in);
        else if (f.tag == 2)
            rc = read_trainer(m, &in);
        else if (f.tag == 3)
            rc = read_normalizer(m, &in);
        if (rc != NB_OK)
            return rc;
    }
    if (rc == NB_OK && m->n == 0)
        rc = nb_fail(r->err, NB_EFORMAT, "tok.protobuf", "", "tokenizer.model has no pieces");
    return rc;
}

static nb_status check_kind(const model *m, nb_err *err)
{
    if (m->kind != 1 && m->kind != 2)
        return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "",
                       "SentencePiece model type %llu; Unigram (1) and byte pairs (2) are read", (unsigned long long)m->kind);
    if (m->suffix || !m->escape)
        return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "a SentencePiece model with %s is not read",
                       m->suffix ? "blanks as suffixes" : "blanks that are not escaped");
    if ((m->unk >= 0 && (size_t)m->unk >= m->n) || (m->bos >= 0 && (size_t)m->bos >= m->n) || (m->eos >= 0 && (size_t)m->eos >= m->n))
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "ids of unk, BOS and EOS are %d, %d and %d of %zu tokens", m->unk, m->bos,
                       m->eos, m->n);
    return NB_OK;
}

/* Classes whose ids are not those of the pieces (all of them shifted by one or so). */
static nb_status check_class(const char *cls, nb_err *err)
{
    static const char *const shifted[] = { "XLMRoberta", "Camembert", "MBart", "Nllb", "Pegasus", "XGLM", "M2M100", "Barthez", "PLBart" };
    char esc[NB_ESC_CAP];

    for (size_t i = 0; i < NB_LEN(shifted); i++) {
        if (strncmp(cls, shifted[i], strlen(shifted[i])) == 0)
            return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "tokenizer class \"%s\" numbers its tokens its own way",
                           nb_esc(esc, sizeof esc, cls, strlen(cls)));
    }
    return NB_OK;
}

/* The token of `id`, unless the configuration names one already. */
static bool default_token(const model *m, nb_json *config, const char *key, int32_t id)
{
    return id < 0 || (size_t)id >= m->n || nb_tok_default(config, key, m->piece[id].s, m->piece[id].n);
}

/* Id of the piece that the configuration names: it may be another one than the model says. */
static int64_t named_id(const model *m, const nb_json *config, const char *key, int32_t dflt)
{
    size_t n;
    const char *s = nb_tok_named(config, key, &n);

    for (size_t i = 0; s && i < m->n; i++) {
        if (m->piece[i].n == n && memcmp(m->piece[i].s, s, n) == 0)
            return (int64_t)i;
    }
    return s ? -1 : dflt;
}

/* Pieces that nb_spm_json lists as added tokens. */
static bool is_listed(const void *ctx, const char *s, size_t n)
{
    const model *m = ctx;

    for (size_t i = 0; i < m->n; i++) {
        if (m->type[i] >= NB_SPM_UNKNOWN && m->type[i] <= NB_SPM_USER && m->piece[i].n == n && memcmp(m->piece[i].s, s, n) == 0)
            return true;
    }
    return false;
}

static nb_status put(const model *m, nb_json *config, nb_buf *out, nb_err *err)
{
    const char *cls = nb_json_str(nb_json_get(config, "tokenizer_class"), "");
    const bool t5 = strncmp(cls, "T5", 2) == 0 || strncmp(cls, "MT5", 3) == 0 || strncmp(cls, "UMT5", 4) == 0;
    nb_buf more = { 0 };
    nb_spm v = {
        .piece = m->piece,
        .type = m->type,
        .n = m->n,
        .unigram = m->kind == 1,
        .byte_fallback = m->byte_fallback,
        .dummy_prefix = m->dummy_prefix,
        .collapse = m->collapse,
        .charsmap = (const char *)m->charsmap,
        .n_charsmap = m->n_charsmap,
        .unk = m->unk,
        .add_bos = nb_json_bool(nb_json_get(config, "add_bos_token"), !t5),
        .add_eos = nb_json_bool(nb_json_get(config, "add_eos_token"), t5),
    };
    nb_status rc = check_class(cls, err);

    if (rc == NB_OK && !(default_token(m, config, "unk_token", m->unk) && default_token(m, config, "bos_token", m->bos) &&
                         default_token(m, config, "eos_token", m->eos) && default_token(m, config, "pad_token", m->pad)))
        rc = nb_enomem(err, "tokenizer_config.json");
    v.bos = named_id(m, config, "bos_token", m->bos);
    v.eos = named_id(m, config, "eos_token", m->eos);
    if (rc == NB_OK)
        rc = nb_tok_put_configured(config, is_listed, m, &more, err);
    v.more = more.p;
    if (rc == NB_OK)
        rc = nb_spm_json(&v, out, err);
    nb_buf_clear(&more);
    return rc;
}

nb_status nb_spmodel_json(const char *p, size_t n, nb_json *config, nb_buf *out, nb_err *err)
{
    const unsigned char *u = (const unsigned char *)p;
    reader r = { .all = u, .p = u, .end = u + n, .err = err };
    model m = { .kind = 1, .unk = 0, .bos = 1, .eos = 2, .pad = -1, .dummy_prefix = true, .collapse = true, .escape = true };
    nb_status rc = read_model(&m, &r);

    if (rc == NB_OK)
        rc = check_kind(&m, err);
    if (rc == NB_OK)
        rc = put(&m, config, out, err);
    nb_free(m.piece);
    nb_free(m.type);
    return rc;
}
