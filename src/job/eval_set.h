/* eval_set.h - what an evaluation reads: windows of token ids, cut by a named protocol.
 *
 *   rows-T              rows of a safetensors file, each from position 0; all but the first id scored
 *   windows-N           the token stream in disjoint windows of N with the tokenizer's BOS in front of each, if it has one
 *   gptq-N              as in the GPTQ and AWQ papers: one BOS in front of the whole text, disjoint windows of N, all but the
 *                       first id of each scored, the rest of the text dropped (documents joined by an empty line)
 *   llama.cpp-N         as llama-perplexity: disjoint windows whose first id is replaced by BOS, only the second half scored
 *   strided-N-S         windows of N that begin every S ids; an id is scored once, with the longest context it has
 *   documents-N         as lm-eval's rolling likelihood: every document alone behind a BOS (or EOS), all its ids scored,
 *                       windows of N with one id of context (the last: as many as fit); also perplexity per word, bits per byte
 *
 * Documents are the lines of a .jsonl file (member "text" or "content"), or whole files. Files are also the parts of which
 * results are reported apart. Sources: IST-DASLab/gptq datautils.py, llama.cpp
 * tools/perplexity, EleutherAI lm-evaluation-harness get_rolling_token_windows, the Transformers page on fixed-length models. */
#ifndef NB_JOB_EVAL_SET_H
#define NB_JOB_EVAL_SET_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "job/ids.h"
#include "text/tokenizer.h"

typedef struct nb_window {
    const int32_t *ids; /* [n], in the set's memory                                              */
    size_t n, feed;     /* the model runs ids[0 .. feed): all, or all but a last one that is only scored */
    size_t first;       /* ids [first, n) are scored; distances at positions [first - 1, feed)   */
    size_t doc, part;
} nb_window;

typedef struct nb_evalset {
    char protocol[48]; /* "gptq-2048" */
    char about[320];   /* what that means, one sentence */
    nb_window *win;    /* [n_win] */
    size_t n_win, n_docs, n_parts;
    char **parts;          /* [n_parts] file names, escaped */
    const char *doc_is;    /* "row", "window" or "document": what is drawn for intervals */
    size_t max_len;        /* largest feed          */
    size_t positions;      /* of which distances are taken */
    size_t scored;         /* ids                   */
    uint64_t words, bytes; /* of the text whose every token is scored; 0: not known */
    uint64_t print;        /* fingerprint of ids and geometry */
    int32_t **blocks;      /* id memory of the set  */
    size_t n_blocks;
} nb_evalset;

typedef struct nb_evalset_text {
    const char *const *files;
    size_t n_files;
    const char *protocol;  /* name, with or without numbers: "gptq", "strided-1024-512"; NULL: "windows" */
    size_t window, stride; /* 0: of the name, else its default */
    size_t context;        /* of the model, caps the default of window; 0: unknown */
    int32_t bos, eos;      /* of the configuration, for "documents" where the tokenizer adds none; -1: none */
    size_t limit;          /* windows at most; 0: all */
} nb_evalset_text;

/* Every row of r (borrowed: it must outlive the set); NB_EARG "eval.rows" for rows shorter than 2. limit 0: all rows. */
nb_status nb_evalset_rows(nb_evalset *s, const nb_idrows *r, const char *name, size_t limit, nb_err *err);
/* Read, tokenize and cut. NB_EARG "eval.protocol" (lists them), "eval.window"; NB_EFORMAT "ids.empty" when nothing can be scored,
 * "json.*" for broken lines. The caller clears in any case. */
nb_status nb_evalset_read(nb_evalset *s, const nb_tokenizer *t, const nb_evalset_text *o, nb_err *err);
void nb_evalset_clear(nb_evalset *s);

#endif
