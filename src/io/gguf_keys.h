/* gguf_keys.h - the key-values of a GGUF file from the small files of a Hugging Face directory (gguf_keys.c). */
#ifndef NB_IO_GGUF_KEYS_H
#define NB_IO_GGUF_KEYS_H

#include "base/mem.h"
#include "io/gguf_meta.h"
#include "io/io.h"

typedef struct nb_gguf_keys {
    const nb_gguf_arch *arch;
    int64_t heads[3]; /* by nb_gguf_order; [0] unused                           */
    nb_buf kv;        /* encoded key-values                                     */
    uint64_t n;       /* how many                                               */
    float *rope;      /* [n_rope] divisors of frequencies, when config has them */
    size_t n_rope;
} nb_gguf_keys;

/* Read config.json, tokenizer.json, tokenizer_config.json, generation_config.json of `dir`. The struct is the caller's,
 * zeroed, cleared with nb_gguf_keys_clear in any case. Errors as in nb_gguf_sink_open. */
nb_status nb_gguf_keys_read(nb_gguf_keys *k, nb_hfdir *dir, nb_err *err);
void nb_gguf_keys_clear(nb_gguf_keys *k);
/* One more key: an unsigned 32-bit number. */
void nb_gguf_keys_u32(nb_gguf_keys *k, const char *key, uint32_t v);

#endif
