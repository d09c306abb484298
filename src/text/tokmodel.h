/* tokmodel.h - model kinds of tokenizer.json: from one pre-tokenized piece to ids.
 *
 * A kind is a row of ops in tokmodel.c. A model is immutable after open; what a call changes is in its nb_tokwork. */
#ifndef NB_TEXT_TOKMODEL_H
#define NB_TEXT_TOKMODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/tokjson.h"
#include "text/vocab.h"

/* Scratch of one call, made by the model when first needed. Zero it first. */
typedef struct nb_tokwork {
    void *p;
    void (*close)(void *p);
} nb_tokwork;
void nb_tokwork_clear(nb_tokwork *w);

typedef struct nb_tokmodel nb_tokmodel;
typedef struct nb_tokmodel_ops {
    const char *type; /* "BPE" */
    /* spec: the "model" object, its vocabulary and merges in j. raw: pieces arrive as bytes instead of their stand-in
     * characters. */
    nb_status (*open)(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err);
    void (*close)(nb_tokmodel *m);
    /* Append the ids of piece s[n] (never empty; valid UTF-8 unless raw). Thread safe with distinct w. */
    nb_status (*encode)(const nb_tokmodel *m, nb_tokwork *w, const char *s, size_t n, nb_ids *out, nb_err *err);
} nb_tokmodel_ops;

/* First member of every kind's struct. */
struct nb_tokmodel {
    const nb_tokmodel_ops *ops;
    nb_vocab vocab; /* pieces as written in the file */
};

/* Can the model take raw bytes (no prefix, suffix or byte fallback, which speak of characters)? */
bool nb_tokmodel_takes_raw(const nb_json *spec);
/* The kind by spec's type (guessed from its keys when absent). Errors: NB_EUNSUPPORTED
 * "tok.unsupported" naming an unknown one; NB_EFORMAT "tok.type" when spec is no object. */
nb_status nb_tokmodel_check(const nb_json *spec, const nb_tokmodel_ops **ops, nb_err *err);
/* Open the model of a tokenizer. Errors: those of nb_tokmodel_check and of the kind. */
nb_status nb_tokmodel_open(const nb_json *spec, const nb_tokjson *j, bool raw, nb_tokmodel **out, nb_err *err);
void nb_tokmodel_close(nb_tokmodel *m); /* NULL is fine */

extern const nb_tokmodel_ops nb_bpe_ops;       /* bpe.c */
extern const nb_tokmodel_ops nb_unigram_ops;   /* unigram.c */
extern const nb_tokmodel_ops nb_wordpiece_ops; /* wordpiece.c */
extern const nb_tokmodel_ops nb_wordlevel_ops;

/* Fill v from the vocabulary of j, an object piece -> id. Errors: "tok.type", "tok.json", "tok.id", "tok.duplicate_id",
 * "tok.duplicate_key", "limit.vocab", "limit.token". */
nb_status nb_vocab_read(nb_vocab *v, const nb_tokjson *j, nb_err *err);

#endif
