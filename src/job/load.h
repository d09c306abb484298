/* load.h - everything a verb needs of one model, opened in the right order: small files, store, layout, packed weights,
 * tokenizer, chat template. The pieces stay public; the struct owns them. Not thread safe while opening. */
#ifndef NB_JOB_LOAD_H
#define NB_JOB_LOAD_H

#include "base/log.h"
#include "base/pool.h"
#include "io/io.h"
#include "kern/kern.h"
#include "model/model.h"
#include "quant/quant.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct nb_loaded {
    nb_hfdir *dir;
    nb_store *store;
    const nb_json *config; /* owned by dir */
    nb_scan scan;
    nb_json *inferred; /* the quantization config that the scan views, when the directory has none */
    nb_model *model;   /* NULL without opts   */
    nb_tokenizer *tok; /* NULL when absent    */
    nb_chat *chat;     /* NULL when absent    */
} nb_loaded;

/* Small files, store and scan of `path` (the caller zeroed *l). Packed tensors without a quantization config are read as their
 * shapes say where these leave one reading. Warnings found on the way go to the host's log. */
nb_status nb_load_store(nb_loaded *l, const char *path, const nb_host *host, nb_err *err);
/* After nb_load_store: bind the model; NB_EFORMAT "cfg.vocab_mismatch" when a tokenizer was loaded that has tokens without a
 * row of the embedding. Unless opts->lazy the stored bytes are dropped and the store closed. */
nb_status nb_load_model(nb_loaded *l, const nb_model_opts *opts, nb_err *err);
/* Tokenizer and chat template of `path` (any directory or file with a tokenizer); needs no weights. NB_EOPEN
 * "tok.missing" when there is no tokenizer. Opens l->dir when it is not open yet. */
nb_status nb_load_text(nb_loaded *l, const char *path, nb_err *err);
/* The tokenizer alone. Its vocabulary is tokenizer.json, or what else the directory has (text/toksource.h). */
nb_status nb_load_tokenizer(nb_hfdir *d, nb_tokenizer **out, nb_err *err);
/* Kernels for this machine: the best up to `cap` ("scalar", "avx2" ...; NULL: the best). NB_EARG when the build has no such
 * name, NB_EUNSUPPORTED when the processor cannot run them. */
nb_status nb_load_kern(const char *cap, const nb_kern **out, nb_err *err);
void nb_load_close(nb_loaded *l); /* a zeroed one is fine */

#endif
