/* gguf_write.h - writing a GGUF file: key-values from a Hugging Face directory, tensors in Hugging Face terms.
 *
 * The sink is used like nb_sink: declare every tensor, begin, write any bytes of any tensor from any thread, finish.
 * Names, shapes and row order are Hugging Face's; the file gets GGUF names, and for the llama family the rows of q and k
 * in the order of neighbouring pairs (gguf_map.c is the way back). Format: docs/formats/gguf.md. */
#ifndef NB_IO_GGUF_WRITE_H
#define NB_IO_GGUF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/io.h"
#include "tensor/qlin.h"

/* Element types that are written; the numbers of the format. */
enum { NB_GGUF_F32 = 0, NB_GGUF_F16 = 1, NB_GGUF_Q4_0 = 2, NB_GGUF_Q4_1 = 3, NB_GGUF_Q8_0 = 8, NB_GGUF_BF16 = 30 };

/* Bytes of one row of k values; 0 when the type is not written or k does not fill its blocks. */
uint64_t nb_gguf_row_bytes(unsigned type, uint64_t k);

typedef struct nb_gguf_sink nb_gguf_sink;

/* A sink into the file `path`, which appears at finish. `dir` is read while opening only.
 *   force  replace an existing file
 * Errors: "gguf.arch" NB_EUNSUPPORTED for a model_type without a GGUF form here, or one of its options; "gguf.tokenizer"
 * when tokenizer.json has no name in GGUF; "cfg.*"; NB_EEXISTS. A directory without tokenizer.json gives a file without a
 * vocabulary. */
nb_status nb_gguf_sink_open(nb_gguf_sink **out, const char *path, bool force, nb_hfdir *dir, nb_err *err);
/* Can the file hold a tensor of this name? (Rotary tables and the like are not stored.) */
bool nb_gguf_sink_takes(const nb_gguf_sink *s, const char *name);
/* Announce a tensor. shape is [n][k] or [n]; one-dimensional tensors must be F32, which is what readers of GGUF expect of
 * norms and biases. "gguf.tensor" NB_EUNSUPPORTED for a name the architecture does not have, "gguf.block" for a row that
 * does not fill blocks, "gguf.duplicate_tensor". */
nb_status nb_gguf_sink_declare(nb_gguf_sink *s, const char *name, unsigned type, unsigned rank, const uint64_t *shape, nb_err *err);
/* Lay the file out and write its head. */
nb_status nb_gguf_sink_begin(nb_gguf_sink *s, nb_err *err);
/* Bytes [off, off + n) of a tensor, counted in its own type with rows in Hugging Face order. Thread safe. */
nb_status nb_gguf_sink_write(nb_gguf_sink *s, const char *name, uint64_t off, const void *p, uint64_t n, nb_err *err);
/* All bytes are there: the file gets its name. */
nb_status nb_gguf_sink_finish(nb_gguf_sink *s, nb_err *err);
void nb_gguf_sink_close(nb_gguf_sink *s); /* after finish or instead of it; NULL is fine */

/* What packing did to the values. Zeroed by the caller; packing adds to it. */
typedef struct nb_gguf_loss {
    uint64_t n_values;  /* packed                                                             */
    uint64_t n_inexact; /* of them changed                                                    */
    double max_abs;     /* largest change                                                     */
    double max_step;    /* largest change in units of the group's scale (0.5 is half a step)  */
} nb_gguf_loss;
void nb_gguf_loss_add(nb_gguf_loss *to, const nb_gguf_loss *part);

/* The smallest type that takes the codes of these rows as they are: Q4_0 when every code minus its zero is in -8 .. 7 (so
 * for symmetric 4-bit) and every scale is a f16; else Q4_1 for codes of at most 4 bits; else Q8_0 when code minus zero is in
 * -128 .. 127. Blocks of 32 inputs must lie inside one group. Type numbers rise in that order, so the type of a whole
 * tensor is the largest over its stripes. false (and why in err): none of them. */
bool nb_gguf_type_for(const nb_qlin *q, unsigned *type, nb_err *err);

/* Pack the rows of q into out[q->n][nb_gguf_row_bytes(type, q->k)].
 *   Q4_0, Q8_0  exact when scales are f16 values
 *   Q4_1        codes exact; the stored minimum is f16(-scale * zero): a change of at most 2^-11 of it, equal for the whole
 *               block and so at most 15 * 2^-11 = 0.0073 steps for a 4-bit zero
 * Scales that are not f16 values (BF16, F32) are rounded to f16. All of it is counted in *loss. A scale or minimum beyond the
 * range of f16 is NB_ENUMERIC "num.overflow"; what nb_gguf_type_for() refuses is NB_EUNSUPPORTED "gguf.block". */
nb_status nb_gguf_pack_q4_0(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err);
nb_status nb_gguf_pack_q4_1(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err);
nb_status nb_gguf_pack_q8_0(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err);

/* Round n values (a multiple of 32) to Q8_0, for callers whose user accepts the loss: scale max|x| / 127, codes rounded
 * half away from zero, as the reference package `gguf` does. NB_ENUMERIC "num.overflow" or "num.nonfinite". */
nb_status nb_gguf_round_q8_0(const float *v, size_t n, unsigned char *out, nb_gguf_loss *loss, nb_err *err);

#endif
