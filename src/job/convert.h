/* convert.h - `nibble convert`: a checkpoint in another form. Here: to 16 or 32-bit floats (the dequantizer and the GGUF
 * import). The result is a complete Hugging Face directory that appears only when everything in it is written. */
#ifndef NB_JOB_CONVERT_H
#define NB_JOB_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "tensor/dtype.h"

typedef struct nb_convert_opts {
    nb_dtype dtype;       /* F16, BF16 or F32: type of every float tensor of the result                  */
    bool force;           /* replace an existing output                                                  */
    uint64_t shard_bytes; /* 0: 5 GB                                                                     */
    nb_pool *pool;        /* NULL: one thread                                                            */
    const nb_host *host;  /* progress, warnings, cancel                                                  */
} nb_convert_opts;

typedef struct nb_convert_sum {
    size_t n_tensors, n_linears, n_copied; /* written; of them dequantized, and copied byte for byte */
    uint64_t n_values, n_inexact;          /* values converted; of them not held exactly by the new type */
    double max_rel;                        /* largest |new - old| / |old| of a value that is not below the normal range */
    uint64_t n_bytes;
    double seconds;
} nb_convert_sum;

/* Convert the model at `in` (directory, index, .safetensors or .gguf file) into the directory `out`.
 * Quantized linears become "<prefix>.weight" [n][k], (code - zero) * scale rounded once; float tensors are rounded to
 * nearest even; other tensors and all small files are copied byte for byte; config.json states the new dtype and loses its
 * quantization_config. A finite value that the new type would turn into an infinity is NB_ENUMERIC "num.overflow"; a block
 * scale that is not finite "num.scale_nonfinite". Nothing of `out` exists after a failure. */
nb_status nb_convert(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err);

#endif
