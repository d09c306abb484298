/* inspect.h - `nibble inspect`: what a checkpoint is, from headers and configuration alone; no tensor byte is read. */
#ifndef NB_JOB_INSPECT_H
#define NB_JOB_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "quant/quant.h"

enum { NB_INSPECT_TYPES = 48, NB_INSPECT_NOTES = 16 };

/* Stored element type: a dtype, or a GGUF block type. */
typedef struct nb_inspect_type {
    char name[16];
    size_t n_tensors;
    uint64_t n_bytes;
} nb_inspect_type;

typedef struct nb_inspect {
    char container[16]; /* "safetensors", "gguf"                                      */
    size_t n_files, n_tensors;
    uint64_t n_bytes;  /* tensor bytes as stored                                     */
    uint64_t n_params; /* weights of the model: a quantized linear counts n x k; 0 unknown */
    nb_inspect_type types[NB_INSPECT_TYPES];
    size_t n_types;

    bool has_config;
    char model_type[64], class_name[96];
    bool known; /* an architecture of our table; the sizes below are set then */
    size_t layers, hidden, ff, heads, kv_heads, head_dim, vocab, max_context;
    bool tied;

    char method[32]; /* quantization method, "" when nothing is quantized          */
    char layout[32]; /* "awq-gemm", "Q4_1" (the GGUF type of most weights), or ""  */
    unsigned bits;
    int64_t group_size; /* -1 per channel, 0 unknown                                  */
    bool sym, desc_act;
    size_t n_linears;

    size_t context;                        /* tokens the memory figures are for                          */
    uint64_t weights, kv, scratch, memory; /* bytes in use when it runs; memory is the sum, 0 unknown */
    uint64_t machine;                      /* physical memory                                            */
    bool runs;
    char why[512]; /* when not: the reason                                       */

    char notes[NB_INSPECT_NOTES][320]; /* warnings found while opening                */
    size_t n_notes;
} nb_inspect;

/* Look at `path` (directory, index, .safetensors or .gguf file). context 0: the model's own, 8192 at most.
 * Fails only when the container cannot be opened or a configuration file is not JSON; what is merely not supported is an
 * answer: `runs` false and the reason in `why`. */
nb_status nb_inspect_path(const char *path, size_t context, nb_inspect *out, nb_err *err);
/* The same; hint (or NULL) says how packed tensors without a quantization config are read. NB_EARG when there is one. */
nb_status nb_inspect_as(const char *path, size_t context, const nb_qhint *hint, nb_inspect *out, nb_err *err);
/* All of it as an object. NULL: no memory. */
nb_json *nb_inspect_json(const nb_inspect *in);

#endif
