/* qout.h - the directory that quantize writes: quantized linears in place of weights, folded norms, everything else as it was.
 *
 * Tensors keep the order of the input. Small files are copied byte for byte; config.json gains quantization_config and
 * the dtype of the scales, quantize_config.json holds the same object (formats 6.8). Nothing has its final name before
 * commit; the staging directory belongs to the journal. One owner. */
#ifndef NB_JOB_QOUT_H
#define NB_JOB_QOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "job/load.h"
#include "job/qmods.h"
#include "model/plan.h"
#include "quant/quant.h"

typedef struct nb_qout nb_qout;

/* Lay out the files; nothing is written yet.
 *   mods        linears of the layers; the quantized ones must all be written. Those that share a tensor come out one by one
 *   writes      what else is written anew, in the type of nb_qwrite_type() with that of nb_qout_norm_dtype(); all of it must be
 * src, plan, mods and fmt must outlive the handle. */
nb_status nb_qout_open(nb_qout **out, nb_loaded *src, const nb_plan *plan, const nb_qmods *mods, const nb_format *fmt, const nb_qspec *spec,
                       const nb_qwrites *writes, nb_pool *pool, const nb_host *host, nb_err *err);
uint64_t nb_qout_bytes(const nb_qout *o); /* tensor bytes of the result */
/* Begin, or go on with what an earlier process left in `staging`, a directory beside `path`; again after that was emptied.
 * recipe: text for the metadata of the files. */
nb_status nb_qout_begin(nb_qout *o, const char *path, const char *staging, bool force, const char *recipe, nb_err *err);
/* Type in which folded norms are stored: that of the scales, unless a norm of the model does not fit its range; then the stored one. */
nb_status nb_qout_norm_dtype(const nb_store *s, const nb_plan *plan, nb_dtype scales, nb_dtype *out, nb_err *err);
/* One more value for the quantization config, "damp_percent" say. Takes v; NB_ENOMEM also when v is NULL. */
nb_status nb_qout_note(nb_qout *o, const char *key, nb_json *v, nb_err *err);
/* All rows of one linear, packed by the format. */
nb_status nb_qout_linear(nb_qout *o, const nb_qmod *m, const nb_qlin *q, nb_err *err);
/* The same stripe by stripe: begin, nb_qout_pack of NB_QOUT_STRIPE outputs (fewer at the end) from several threads at once, end. Stripes
 * have the sizes of `whole`, whose n is that of the linear; its arrays are not looked at. One linear at a time. */
enum { NB_QOUT_STRIPE = 64 };
nb_status nb_qout_linear_begin(nb_qout *o, const nb_qmod *m, const nb_qlin *whole, nb_err *err);
nb_status nb_qout_pack(nb_qout *o, const nb_qlin *q, size_t n0, size_t n, nb_err *err);
nb_status nb_qout_linear_end(nb_qout *o, const nb_qmod *m, nb_err *err);
/* A linear that is not quantized, but lies in a tensor that is taken apart and is none of `writes`: its own tensor. Others: nothing. */
nb_status nb_qout_keep(nb_qout *o, const nb_qmod *m, nb_err *err);
/* One of `writes`: v[n], or v[n][k] of a linear, as its type can hold them. */
nb_status nb_qout_write(nb_qout *o, const nb_qwrite *w, const float *v, nb_err *err);

/* For the journal: names of the tensors written since the last call (an array, the caller's; NULL when out of memory); bytes to
 * the disk; SHA-256 in hex over such tensors as they are in the files; an earlier process wrote them. */
nb_json *nb_qout_taken(nb_qout *o);
nb_status nb_qout_sync(nb_qout *o, nb_err *err);
nb_status nb_qout_sum(nb_qout *o, const nb_json *names, char sum[65], nb_err *err);
nb_status nb_qout_have(nb_qout *o, const nb_json *names, nb_err *err);

/* Copy every other tensor: the files of tensors are complete. Then the small files, config.json last (DU-02); all is read back, and all
 * is there then but the name. */
nb_status nb_qout_tensors(nb_qout *o, nb_err *err);
nb_status nb_qout_complete(nb_qout *o, nb_err *err);
nb_status nb_qout_put(nb_qout *o, const char *name, const char *text, nb_err *err); /* one more small file */
nb_status nb_qout_commit(nb_qout *o, nb_err *err);                                  /* the final name. Frees o in any case */
void nb_qout_abort(nb_qout *o);                                                     /* what was staged stays; NULL is fine */

#endif
