/* config_read.h - inside of config.c and its parts: reading keys of config.json with their limits. Not for other files. */
#ifndef NB_MODEL_CONFIG_READ_H
#define NB_MODEL_CONFIG_READ_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/config.h"

enum {
    NB_CFG_MAX_DIM = 1 << 24, /* hardening 4: hidden, intermediate, vocabulary, and products of heads */
    NB_CFG_MAX_COUNT = 4096   /* layers, heads */
};

/* The model's own object and the one around it (the same when nothing is nested). */
typedef struct nb_cfg_reader {
    const nb_json *in, *outer;
    nb_err *err;
} nb_cfg_reader;

/* First of `keys` (ended by NULL) that is present and not null; *key names it, or the first one when none is. */
const nb_json *nb_cfg_find(const nb_cfg_reader *r, const char *const *keys, const char **key);
/* A key that multimodal files keep outside text_config. */
const nb_json *nb_cfg_outer(const nb_cfg_reader *r, const char *key);
/* A value as text for a message. */
const char *nb_cfg_show(char out[NB_ESC_CAP], const nb_json *v);
nb_status nb_cfg_bad(const nb_cfg_reader *r, const char *key, const nb_json *v, const char *want);          /* cfg.value       */
nb_status nb_cfg_unsupported(const nb_cfg_reader *r, const char *key, const nb_json *v, const char *known); /* cfg.unsupported */
/* A count in 1..hi. dflt 0: the key is required. */
nb_status nb_cfg_size(const nb_cfg_reader *r, const char *const *keys, int64_t hi, size_t dflt, size_t *out);
/* A finite number in (lo, hi], or [lo, hi] when `closed`. Absent or null leaves *out. */
nb_status nb_cfg_num(const nb_cfg_reader *r, const nb_json *obj, const char *key, double lo, double hi, bool closed, double *out);
/* true or false; absent or null leaves *out. */
nb_status nb_cfg_bool(const nb_cfg_reader *r, const char *key, const nb_json *v, bool *out);
/* A key of true or false with a value when absent. */
nb_status nb_cfg_flag(const nb_cfg_reader *r, const char *key, bool dflt, bool *out);

/* config_family.c. Sizes of latent attention; n_heads is known. */
nb_status nb_cfg_mla(const nb_cfg_reader *r, nb_config *c);
/* What decides the shape of a layer, before the sizes; then multipliers, caps, positions, experts. */
nb_status nb_cfg_block(const nb_cfg_reader *r, nb_config *c);
nb_status nb_cfg_family(const nb_cfg_reader *r, nb_config *c);
/* config_rope.c. The records of section 8.2; and which layers use which: first what windows follow from, then the rest. */
nb_status nb_cfg_rope(const nb_cfg_reader *r, nb_config *c);
nb_status nb_cfg_rope_layers(const nb_cfg_reader *r, nb_config *c, bool before);

#endif
