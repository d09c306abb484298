/* convert.h - `nibble convert`: a checkpoint in another form, to 16 or 32-bit floats (the dequantizer and the GGUF import) or
 * from one layout of quantized linears to another without changing a code. The result is a complete Hugging Face directory that
 * appears only when everything in it is written, and in layouts read back. */
#ifndef NB_JOB_CONVERT_H
#define NB_JOB_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "quant/quant.h"
#include "tensor/dtype.h"

/* Faults that the tests of formats 8 prove and that a copy can be rid of. */
typedef enum nb_repair { NB_REPAIR_NONE, NB_REPAIR_ZEROS, NB_REPAIR_ORDER } nb_repair;

typedef struct nb_convert_opts {
    const nb_format *format; /* layout to write; NULL: floats of `dtype`, or with repair the layout it has       */
    bool gguf;               /* write one GGUF file in place of a directory */
    bool best_gptq;          /* format is gptq: v2 instead where zero points are stored (formats 6.8)            */
    nb_repair repair;
    bool lossy;           /* scales may be rounded to scale_dtype                                        */
    bool no_verify;       /* do not read the result back                                                 */
    bool bits_check;      /* also compare every number of input and result, one by one (nb_diff_run)     */
    nb_dtype scale_dtype; /* of layouts; NB_DT_NONE: as stored, float16 where the layout knows nothing else */
    unsigned bits;        /* what the caller expects of every linear; 0: anything. Others are CNV-060    */
    int64_t group_size;   /* the same; 0: anything                                                       */
    nb_dtype dtype;       /* F16, BF16 or F32: type of every float tensor of the result, without format  */
    bool force;           /* replace an existing output                                                  */
    uint64_t shard_bytes; /* 0: 5 GB                                                                     */
    nb_pool *pool;        /* NULL: one thread                                                            */
    const nb_host *host;  /* progress, warnings, cancel                                                  */
} nb_convert_opts;

typedef struct nb_convert_sum {
    size_t n_tensors, n_linears, n_copied; /* written; of them dequantized, and copied byte for byte */
    uint64_t n_values, n_inexact;          /* values converted; of them not held exactly by the new type */
    const nb_format *from, *format;        /* layouts; NULL: floats                          */
    uint64_t n_scales, n_rounded;          /* scales written; of them rounded by `lossy`    */
    size_t n_repaired;                     /* linears                                        */
    bool verified, bits_checked;
    size_t n_blocks[3];       /* gguf: linears stored as Q4_0, Q4_1, Q8_0                                       */
    double max_abs, max_step; /* gguf: largest change of a value, and in steps of its scale                    */
    double max_rel;           /* largest |new - old| / |old| of a value that is not below the normal range */
    uint64_t n_bytes;
    double seconds;
} nb_convert_sum;

/* What --to takes: "bf16", a layout ("awq-gemm"), or a short name of one ("awq", "gptq", "gptq-v2", "ct"). Sets format and best_gptq, gguf,
 * or dtype. NB_EARG with the list. */
nb_status nb_convert_target(const char *name, nb_convert_opts *o, nb_err *err);

/* Convert the model at `in` (directory, index, .safetensors or .gguf file) into the directory `out`.
 *
 * To a layout: codes, zero points and scales are the same numbers afterwards, or the call fails with the rule that forbids it:
 * CNV-010 (g_idx), CNV-020 (zero 0 in v1), CNV-030 (scale type), CNV-040 (no zero points), CNV-050 (sizes), CNV-060 (bits, groups).
 * Tensors that are not quantized, and all small files but the configurations, are copied byte for byte. The staged result is opened
 * again and compared linear by linear unless no_verify, by sums, and with bits_check number by number: NB_EVERIFY when it differs.
 *
 * To GGUF (out is a file): linears as Q4_0 or Q8_0, exact, or Q4_1, whose minimum -scale * zero is rounded to float16 (counted in
 * max_abs, max_step); other tensors keep their type, vectors become F32. CNV-030 for scales that float16 does not hold.
 *
 * To floats:
 * Quantized linears become "<prefix>.weight" [n][k], (code - zero) * scale rounded once; float tensors are rounded to
 * nearest even; other tensors and all small files are copied byte for byte; config.json states the new dtype and loses its
 * quantization_config. A finite value that the new type would turn into an infinity is NB_ENUMERIC "num.overflow"; a block
 * scale that is not finite "num.scale_nonfinite". Nothing of `out` exists after a failure. */
nb_status nb_convert(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err);

#endif
