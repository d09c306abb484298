/* topk.h - the most likely tokens of a reference model at every position of an evaluation, in a file: so that a comparison needs
 * no second model, and no gigabytes of logits.
 *
 *   "NBTOPK1\n"  u64 length of a JSON object, the object, zeros up to a multiple of 64
 *   then one record a position, in order: f32 negative log likelihood of the id that follows (NaN: none),
 *   f32 log of the probability of all other tokens together, k x i32 ids and k x f32 log-probabilities, likeliest first
 * All little endian. The object: "version" 1, "vocab", "k", "positions", "protocol", "ids" (fingerprint in hex), "model".
 * While it is written the file is called PATH.partial and holds whole windows only. */
#ifndef NB_JOB_TOPK_H
#define NB_JOB_TOPK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/map.h"

enum { NB_TOPK_DEFAULT = 128, NB_TOPK_MAX = 4096 };

typedef struct nb_topk_head {
    size_t vocab, k, positions;
    uint64_t ids;
    char protocol[48], model[128];
} nb_topk_head;

typedef struct nb_topk { /* open for reading */
    nb_topk_head head;
    nb_map map;
    size_t data, record; /* offset of the first record, bytes of one */
} nb_topk;

typedef struct nb_topk_row {
    float nll, rest;                 /* of the next id; log of the mass of all others */
    const unsigned char *ids, *logp; /* [k] i32, f32, little endian */
    size_t k;
} nb_topk_row;

/* NB_EFORMAT "topk.header", "topk.size", "topk.id" (every id is checked). Caller closes. */
nb_status nb_topk_open(nb_topk *t, const char *path, nb_err *err);
void nb_topk_close(nb_topk *t);
nb_topk_row nb_topk_at(const nb_topk *t, size_t position);

/* Bytes of a record for k tokens. */
size_t nb_topk_bytes(size_t k);
/* One record into out[nb_topk_bytes(k)] from logits x[v]; next: the id that follows, SIZE_MAX: none. scratch: k indices. */
void nb_topk_pack(unsigned char *out, const float *x, size_t v, size_t k, size_t next, uint32_t *scratch);

/* Writing. *done: positions that an earlier run left, whole windows only as `window_end` (ascending [n_windows]) says. Opens or
 * creates path.partial; NB_EEXISTS when path is there and !force, NB_EMISMATCH "eval.topk" when the partial file is of another job. */
typedef struct nb_topk_writer nb_topk_writer;
nb_status nb_topk_writer_open(nb_topk_writer **out, const char *path, bool force, const nb_topk_head *h, const size_t *window_end,
                              size_t n_windows, size_t *done, nb_err *err);
/* Records of whole windows, in order. With `check`, these bytes must be what the file has at position `at` (NB_EMISMATCH). */
nb_status nb_topk_writer_put(nb_topk_writer *w, size_t at, const unsigned char *records, size_t n, bool check, nb_err *err);
nb_status nb_topk_writer_finish(nb_topk_writer *w, nb_err *err); /* syncs, renames, frees */
void nb_topk_writer_close(nb_topk_writer *w);                    /* keeps what is written; NULL is fine */

#endif
