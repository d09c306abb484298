/* calib.h - calibration tokens, and what the searches need to know about the inputs of one block.
 *
 * Every row is an independent sequence from position 0; there is no padding. Statistics are sums in a fixed order. */
#ifndef NB_JOB_CALIB_H
#define NB_JOB_CALIB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/exec.h"
#include "job/moments.h"
#include "job/spill.h"
#include "solve/linalg.h"

/* ---- tokens ---- */

typedef struct nb_calib {
    size_t rows, len;
    int32_t *ids;             /* [rows][len] */
    const char *spill;        /* directory for activations, NULL: they stay in memory; the values are the same. Of the caller */
    size_t docs, used, empty; /* documents of the file, those that gave tokens, those without any; 0 for ids */
    size_t kinds;             /* different tokens */
    double distinct;          /* share of runs of 8 tokens that occur once or for the first time */
    char warning[320];        /* too few tokens, or too uniform, with numbers; or "" */
    bool resumed;             /* the caller puts the inputs of a later layer into the block: it does not run the embedding */
} nb_calib;

/* Read `path`: token ids in a safetensors file (as nb_idrows_read takes them; without what an attention_mask leaves out); UTF-8 text
 * that is tokenized with the tokenizer of `model`; or JSON Lines, each a record {"text": ...} or {"messages": [...]}, the latter
 * through the chat template of `model`.
 *   rows, len  limits; 0: all rows (text: 128), whole rows (text: 512)
 *   vocab      ids must be below it
 * Text is cut into rows of `len` tokens; more than `rows` windows are sampled with a fixed seed. Records are put one after another
 * in a seeded order, so that short ones share a row; nothing is padded. Less than one window becomes one shorter row.
 * Errors: NB_EOPEN, NB_EFORMAT "ids.tensor", "ids.shape", "ids.token", "tok.utf8", "calib.token", "calib.empty", "calib.short", "calib.json",
 * "calib.record" with the line; NB_EUNSUPPORTED "calib.parquet", "calib.packed"; those of the template. Caller clears. */
nb_status nb_calib_open(nb_calib *c, const char *path, const char *model, size_t rows, size_t len, size_t vocab, nb_err *err);
/* Rows that the model samples by itself, the same for any number of threads (rows, len 0: 32 of 256). Needs the whole model in memory:
 * NB_ENOMEM "mem.budget" when `cap` (0: none) is too small for that. NB_ENUMERIC "calib.self". Caller clears. */
nb_status nb_calib_self(nb_calib *c, const char *model, size_t rows, size_t len, uint64_t cap, const nb_kern *kern, nb_pool *pool,
                        const nb_host *host, nb_err *err);
/* Fill kinds, distinct and warning from the ids. */
void nb_calib_judge(nb_calib *c, size_t vocab);
void nb_calib_clear(nb_calib *c);

/* ---- batches of whole rows ---- */

/* All rows of a chunk as one nb_batch; pages are numbered from 0, so a chunk reuses those of the one before. */
typedef struct nb_rows {
    size_t len, max_rows, n_pages;
    uint32_t *pos, *seq, *pages;
    nb_seq_view *views;
} nb_rows;
nb_status nb_rows_init(nb_rows *r, size_t len, size_t max_rows, nb_err *err);
void nb_rows_clear(nb_rows *r);
/* The batch of `rows` rows of ids; views into r. */
nb_batch nb_rows_batch(const nb_rows *r, const int32_t *ids, size_t rows);

/* ---- captured inputs of one block ---- */

typedef struct nb_input {
    size_t op, k;  /* LINEAR, MOE or ABSORB op, its inputs                             */
    size_t tokens; /* seen: none where the layer does not run the op           */
    size_t n_sample;
    double *xsum;  /* [k] sum of |x|                                           */
    float *sample; /* [n_sample][k] every stride-th token (spec quantizers 3.6) */
    float *full;   /* [tokens][k] when the group inspects a span, else NULL    */
    nb_spill full_mem;
    nb_gram gram;     /* when the linear is inspected alone (gram.k > 0)          */
    float *chunk;     /* [chunk tokens][k] of the chunk being run                 */
    size_t in_chunk;  /* rows of it that were tapped                              */
    uint32_t *chosen; /* MOE: [tokens][n_chosen] experts of each token            */
    size_t n_chosen;
} nb_input;

typedef struct nb_capture {
    const char *spill; /* as in nb_calib */
    size_t tokens, stride, n_sample, done, chunk_tokens;
    size_t only; /* op that is kept, SIZE_MAX (as init sets it): all */
    nb_input in[NB_ROLE_COUNT];
    size_t n_in;
    const nb_kern *codes; /* its products of 8-bit codes sum up moments; NULL: float32 */
    nb_turned turned;     /* with codes: of one input after another */
} nb_capture;

/* What to keep of each op of the plan that has weights: full[op], gram[op] as flags by op index. codes: NULL, or the kernels of 8-bit
 * products (moments.h), which take nb_turned_bytes more. */
nb_status nb_capture_init(nb_capture *c, const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram,
                          const char *spill, const nb_kern *codes, nb_pool *pool, nb_err *err);
/* Touched pages of arrays in files go back to the system (spill.h). */
void nb_capture_settle(const nb_capture *c);
void nb_capture_clear(nb_capture *c);
/* Forget the previous block; the next is layer `layer`. */
void nb_capture_reset(nb_capture *c, const nb_plan *p, size_t layer);
void nb_capture_tap(void *capture, const nb_tap *t); /* an nb_tap_fn */
/* The chunk of m tokens has run: add its inputs to the statistics. */
nb_status nb_capture_add(nb_capture *c, nb_pool *pool, size_t m, nb_err *err);
const nb_input *nb_capture_of(const nb_capture *c, size_t op);
nb_input *nb_capture_at(nb_capture *c, size_t op); /* the same, to be changed */
/* Bytes that init will take, and of these the ones that can be in files. */
uint64_t nb_capture_bytes(const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram, uint64_t *spill);

#endif
