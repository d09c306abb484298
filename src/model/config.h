/* config.h - config.json in one normal form: every size checked, every default resolved.
 *
 * Source: spec models 2, 3, 8. Rules CF of hardening 5.5. */
#ifndef NB_MODEL_CONFIG_H
#define NB_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/dtype.h"

typedef enum nb_rope_kind { NB_ROPE_DEFAULT, NB_ROPE_LINEAR, NB_ROPE_DYNAMIC, NB_ROPE_LLAMA3, NB_ROPE_YARN, NB_ROPE_LONGROPE } nb_rope_kind;

typedef struct nb_rope {
    nb_rope_kind kind;
    double theta, partial, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim;
    bool truncate, has_attention_factor;
    uint64_t orig_context;
    const double *long_factor, *short_factor; /* in the config's arena */
} nb_rope;

struct nb_arch;
typedef struct nb_config {
    const struct nb_arch *arch;
    char model_type[64], class_name[96];
    size_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab, context;
    double norm_eps;
    bool attn_bias, o_bias, mlp_bias, tie_embeddings;
    size_t sliding_window; /* 0: none */
    nb_rope rope;
    nb_dtype dtype;        /* as declared; NONE when absent */
    int64_t bos_id, eos_id[16], pad_id; /* -1: none */
    size_t n_eos;
    void *mem;             /* arena of factor lists */
} nb_config;

/* Parse and check. Unknown architecture: NB_EUNSUPPORTED "model.arch" by name. Caller clears with nb_config_clear. */
nb_status nb_config_parse(const nb_json *root, nb_config *out, nb_err *err);
void nb_config_clear(nb_config *c);
/* cos, sin for positions [pos, pos + n): cs[n][r/2], sn[n][r/2], r = rotary size. Computed in double, rounded once.
 * total: running length for kinds that depend on it. Returns r. */
size_t nb_rope_dims(const nb_config *c);
void nb_rope_table(const nb_config *c, size_t pos, size_t n, float *cs, float *sn);

#endif
