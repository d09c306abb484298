#include "text/tokmodel.h"

#include <string.h>

#include "base/mem.h"

static const struct {
    const char *type;
    const nb_tokmodel_ops *ops; /* NULL: known, not built in */
} kinds[] = {
    { "BPE", &nb_bpe_ops },
    { "Unigram", NULL },
    { "WordPiece", NULL },
    { "WordLevel", NULL },
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

nb_status nb_tokmodel_open(const nb_json *spec, bool raw, nb_tokmodel **out, nb_err *err)
{
    const char *type;
    char esc[NB_ESC_CAP];

    *out = NULL;
    if (nb_json_typeof(spec) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "the tokenizer has no object \"model\"");
    type = kind_of(spec);
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        if (strcmp(kinds[i].type, type) == 0 && kinds[i].ops)
            return kinds[i].ops->open(spec, raw, out, err);
        if (strcmp(kinds[i].type, type) == 0)
            return nb_fail(err, NB_EUNSUPPORTED, "tok.model", "", "tokenizer model %s is not supported yet, only BPE is", type);
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "tokenizer model type \"%s\" is not known",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

void nb_tokmodel_close(nb_tokmodel *m)
{
    if (m)
        m->ops->close(m);
}

nb_status nb_vocab_read(nb_vocab *v, const nb_json *obj, nb_err *err)
{
    const size_t n = nb_json_len(obj);
    nb_status rc;

    if (nb_json_typeof(obj) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "\"vocab\" of the tokenizer model is not an object");
    rc = nb_vocab_init(v, n, err);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        const char *key = NULL;
        const nb_json *id = nb_json_member(obj, i, &key);
        char esc[NB_ESC_CAP];
        bool had;

        if (nb_json_typeof(id) != NB_JINT)
            return nb_fail(err, NB_EFORMAT, "tok.id", "", "token \"%s\" has no whole number as id",
                           nb_esc(esc, sizeof esc, key, strlen(key)));
        rc = nb_vocab_add(v, key, strlen(key), nb_json_int(id, -1), &had, err);
        if (rc == NB_OK && v->by_id[v->entry[v->n - 1].id] != v->n)
            rc = nb_fail(err, NB_EFORMAT, "tok.duplicate_id", "", "token \"%s\" has id %d, which another token has too",
                         nb_esc(esc, sizeof esc, key, strlen(key)), (int)v->entry[v->n - 1].id);
    }
    return rc;
}
