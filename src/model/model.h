/* model.h - a bound model: config, plan, packed weights. Immutable after open (but for the set calls below), shared by threads.
 *
 * bind.c: plan + store -> packed weights. Peak memory is the packed size plus a stripe per thread (kernels 9). */
#ifndef NB_MODEL_MODEL_H
#define NB_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "model/mod.h"
#include "model/plan.h"
#include "quant/quant.h"

typedef struct nb_model nb_model;

typedef struct nb_model_opts {
    const nb_kern *kern; /* NULL: best for this machine */
    nb_pool *pool;       /* first touch and packing; NULL: inline */
    bool lazy;           /* bind no decoder layer yet (quantize: block by block) */
    bool f32;            /* pack unquantized linears as f32 whatever is stored (calibration) */
    bool headless;       /* with lazy: no head, layers alone are run */
    size_t codes;        /* with lazy and f32: linears of layers as 8-bit codes in groups that divide this; 0: not */
    const nb_host *host;
} nb_model_opts;

/* store and scan must outlive a lazy model; otherwise they may be closed after open. cfg_json: config.json. */
nb_status nb_model_open(nb_store *store, const nb_json *cfg_json, const nb_scan *scan, const nb_model_opts *o, nb_model **out, nb_err *err);
void nb_model_close(nb_model *m);
const nb_config *nb_model_config(const nb_model *m);
const nb_plan *nb_model_plan(const nb_model *m);
const nb_kern *nb_model_kern(const nb_model *m);
uint64_t nb_model_bytes(const nb_model *m);      /* packed weights held now                    */
uint64_t nb_model_step_bytes(const nb_model *m); /* weight bytes read by one decode step (head included, embedding row not) */

/* Block by block (lazy models). Layers are packed on bind and released on unbind. */
nb_status nb_model_bind_layer(nb_model *m, size_t layer, nb_err *err);
void nb_model_unbind_layer(nb_model *m, size_t layer);
/* Layers bound from now on are held as opts.codes says, now g; 0: f32. Returns what it was. */
size_t nb_model_hold_codes(nb_model *m, size_t g);
/* Replace one linear of a bound layer by f32 values w[n][k] (the fused matrix it belongs to must be f32: opts.f32). */
nb_status nb_model_set_linear(nb_model *m, size_t layer, nb_mod mod, const float *w, nb_err *err);
/* The same by the codes it was quantized to: exactly, but for a model of codes whose groups do not fit into q's. scratch [n][k]. */
nb_status nb_model_set_codes(nb_model *m, size_t layer, nb_mod mod, const nb_qlin *q, float *scratch, nb_err *err);
/* Its bias b[n]. */
nb_status nb_model_set_bias(nb_model *m, size_t layer, nb_mod mod, const float *b, nb_err *err);
/* Replace a norm vector of a bound layer. */
nb_status nb_model_set_vec(nb_model *m, size_t layer, nb_vec vec, const float *w, nb_err *err);
/* The norm vector as bound, f32. NULL when the layer has none. */
const float *nb_model_vec(const nb_model *m, size_t layer, nb_vec vec, size_t *n);

/* Memory estimate before allocating (fit.c): packed weights, KV bytes for `tokens` cached tokens, bytes of state per sequence
 * (recurrent and convolution layers), scratch for `m` tokens. Without a store (and scan) the weights are left out. */
typedef struct nb_fit {
    uint64_t weights, kv, scratch, state;
} nb_fit;
nb_status nb_model_fit(const nb_config *cfg, const nb_plan *plan, const nb_scan *scan, const nb_store *s, size_t tokens, size_t m,
                       nb_dtype kv, nb_fit *out, nb_err *err);

#endif
