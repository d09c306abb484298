/* gguf_meta.h - typed access to the key-values of a GGUF store, and the architectures we know by their names in it. */
#ifndef NB_IO_GGUF_META_H
#define NB_IO_GGUF_META_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/store.h"

typedef struct nb_gguf_arch {
    const char *name;       /* general.architecture                                                   */
    const char *model_type; /* config.json                                                            */
    const char *cls;
    bool interleaved; /* rows of q and k are stored for rotation of neighbours, not of halves   */
    bool qkv_bias;
    bool qk_norm;
} nb_gguf_arch;

/* The row of a config.json "model_type", or NULL. */
const nb_gguf_arch *nb_gguf_arch_named(const char *model_type);

/* How the rows of a tensor are ordered: as they are, or per query or key head for rotation of neighbours. */
typedef enum nb_gguf_order { NB_GGUF_PLAIN, NB_GGUF_ROPE_Q, NB_GGUF_ROPE_K } nb_gguf_order;
/* GGUF name of a Hugging Face tensor name, written to out[cap]; false when this architecture has no such tensor. */
bool nb_gguf_name_of(const nb_gguf_arch *arch, const char *hf, char *out, size_t cap, nb_gguf_order *order);

/* How a tokenizer.ggml.pre name splits text (gguf_pre.c). */
typedef struct nb_gguf_pre {
    const char *names;    /* blank-separated                              */
    const char *split[3]; /* regular expressions; none: the GPT-2 pattern */
    bool digits;          /* every digit alone, first                     */
    bool nfc, ignore_merges;
    bool bos; /* llama.cpp adds BOS unless told otherwise     */
} nb_gguf_pre;
const nb_gguf_pre *nb_gguf_pre_named(const char *name); /* NULL when unknown */
/* The name for what a tokenizer.json does; false when there is none. */
bool nb_gguf_pre_name(const nb_json *tokenizer, char *out, size_t cap);

/* The row of this store's general.architecture. NB_EUNSUPPORTED "gguf.arch" when there is none. */
nb_status nb_gguf_arch_of(const nb_store *s, const nb_gguf_arch **out, nb_err *err);

/* The one typed getter (GG-18): *out is the value of `key`, or NULL when it is absent and not needed. "%s" in key stands
 * for the architecture. A value of another type is "gguf.meta_type". */
nb_status nb_gguf_get(const nb_store *s, const char *key, nb_json_type type, bool needed, const nb_json **out, nb_err *err);
/* An integer in min .. max; dflt when absent (dflt below min: the key is needed). */
nb_status nb_gguf_int(const nb_store *s, const char *key, int64_t dflt, int64_t min, int64_t max, int64_t *out, nb_err *err);

#endif
