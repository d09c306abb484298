/* logits.h - logits after each of some token ids, into memory (dump.h: into a file). */
#ifndef NB_JOB_LOGITS_H
#define NB_JOB_LOGITS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "model/model.h"

/* out[n][vocab] for ids[n], one sequence from position 0. The cache is kv_dtype (F16 or F32): with the engine's own the
 * rows are bit for bit what it samples from. Errors: NB_EARG "request.empty", "request.token"; NB_ENOMEM; NB_ECANCELED. */
nb_status nb_logits_run(nb_model *m, nb_pool *pool, nb_dtype kv_dtype, const nb_host *host, const int32_t *ids, size_t n, float *out,
                        nb_err *err);

#endif
