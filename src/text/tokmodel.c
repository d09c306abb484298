#include "text/tokmodel.h"

#include <string.h>

#include "base/mem.h"

static const struct {
    const char *type;
    const nb_tokmodel_ops *ops;
} kinds[] = {
    { "BPE", &nb_bpe_ops },
    { "Unigram", &nb_unigram_ops },
    { "WordPiece", &nb_wordpiece_ops },
    { "WordLevel", &nb_wordlevel_ops },
};

void nb_tokwork_clear(nb_tokwork *w)
{
    if (w->close)
        w->close(w->p);
    memset(w, 0, sizeof *w);
}

static const char *kind_of(const nb_json *spec)
{
    const char *type = nb_json_str(nb_json_get(spec, "type"), NULL);

    if (type)
        return type;
    if (nb_json_get(spec, "merges"))
        return "BPE";
    if (nb_json_typeof(nb_json_get(spec, "vocab")) == NB_JARR)
        return "Unigram";
    return nb_json_get(spec, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

bool nb_tokmodel_takes_raw(const nb_json *spec)
{
    return strcmp(kind_of(spec), "BPE") == 0 && nb_json_str_len(nb_json_get(spec, "continuing_subword_prefix")) == 0 &&
           nb_json_str_len(nb_json_get(spec, "end_of_word_suffix")) == 0 && !nb_json_bool(nb_json_get(spec, "byte_fallback"), false);
}

nb_status nb_tokmodel_check(const nb_json *spec, const nb_tokmodel_ops **ops, nb_err *err)
{
    const char *type;
    char esc[NB_ESC_CAP];

    if (nb_json_typeof(spec) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "the tokenizer has no object \"model\"");
    type = kind_of(spec);
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        if (strcmp(kinds[i].type, type) == 0) {
            *ops = kinds[i].ops;
            return NB_OK;
        }
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "tokenizer model type \"%s\" is not known",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

nb_status nb_tokmodel_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err)
{
    const nb_tokmodel_ops *ops = NULL;
    nb_status rc = nb_tokmodel_check(spec, &ops, err);

    *out = NULL;
    return rc == NB_OK ? ops->open(spec, j, raw, out, err) : rc;
}

void nb_tokmodel_close(nb_tokmodel *m)
{
    if (m)
        m->ops->close(m);
}

static nb_status read_entry(nb_vocab *v, nb_tokreader *r, nb_err *err)
{
    const char *s;
    size_t n;
    int64_t id = -1;
    bool whole = false, had;
    char esc[NB_ESC_CAP];
    nb_status rc = nb_tokreader_text(r, &s, &n);

    if (rc == NB_OK)
        rc = nb_tokreader_take(r, ':');
    if (rc == NB_OK && nb_tokreader_peek(r) != '-' && !(nb_tokreader_peek(r) >= '0' && nb_tokreader_peek(r) <= '9'))
        return nb_fail(err, NB_EFORMAT, "tok.id", "", "token \"%s\" has no number as id", nb_esc(esc, sizeof esc, s, n));
    if (rc == NB_OK)
        rc = nb_tokreader_number(r, &id, &whole);
    if (rc == NB_OK && !whole)
        return nb_fail(err, NB_EFORMAT, "tok.id", "", "token \"%s\" has no whole number as id", nb_esc(esc, sizeof esc, s, n));
    if (rc == NB_OK)
        rc = nb_vocab_add(v, s, n, id, &had, err);
    if (rc != NB_OK)
        return rc;
    if (had)
        return nb_fail(err, NB_EFORMAT, "tok.duplicate_key", "", "token \"%s\" is twice in the vocabulary", nb_esc(esc, sizeof esc, s, n));
    if (v->by_id[id] != v->n)
        return nb_fail(err, NB_EFORMAT, "tok.duplicate_id", "", "token \"%s\" has id %lld, which another token has too",
                       nb_esc(esc, sizeof esc, s, n), (long long)id);
    return NB_OK;
}

nb_status nb_vocab_read(nb_vocab *v, const nb_tokjson *j, nb_err *err)
{
    bool first = true, more = true;
    nb_tokreader r;
    nb_status rc;

    if (!j->vocab || j->vocab[0] != '{')
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "\"vocab\" of the tokenizer model is not an object");
    nb_tokreader_init(&r, j, j->vocab, j->n_vocab, err);
    rc = nb_vocab_init(v, j->n_vocab / 16, err); /* an entry takes some 16 bytes */
    if (rc == NB_OK)
        rc = nb_tokreader_take(&r, '{');
    while (rc == NB_OK && (rc = nb_tokreader_more(&r, '}', &first, &more)) == NB_OK && more)
        rc = read_entry(v, &r, err);
    if (rc == NB_OK)
        rc = nb_tokreader_end(&r);
    nb_tokreader_clear(&r);
    return rc;
}
