/* awq.h - what the AWQ layouts share: widths, checks of parts, scales, the config object. Private to the floor. */
#ifndef NB_QUANT_AWQ_H
#define NB_QUANT_AWQ_H

#include "quant/quant.h"

/* Words of zero points per output in the GEMV layouts (formats 3.4); their scales are padded to 8 times as many groups.
 * 0: no such layout exists for this group size. */
uint64_t nb_awq_zeros_width(uint64_t k, uint64_t g);

bool nb_awq_is_word(nb_dtype t); /* I32, or U32 with a warning */

/* SHP-004: k is a multiple of the group size. *g gets the resolved group size. */
nb_status nb_awq_check_group(const nb_linear *lin, uint64_t k, uint64_t *g, nb_err *err);
/* CFG-004: the layouts but GEMM hold 4 bits only. */
nb_status nb_awq_check_bits(const nb_linear *lin, nb_err *err);
/* Rows [n0, n0 + q->n) of lin: are they a stripe, and is q of its shape? NB_EARG otherwise. */
nb_status nb_awq_check_stripe(const nb_linear *lin, size_t n0, const nb_qlin *q, nb_err *err);
/* Can this stripe of n outputs go into an AWQ layout of `bits` at all? CNV-010 for act-order, CNV-060 for other bits. */
nb_status nb_awq_check_pack(const nb_qlin *q, size_t n0, size_t n, unsigned bits, nb_err *err);

/* Where the value of (output, group) stands in a tensor, in elements: output * out + group * group. */
typedef struct nb_awq_at {
    size_t out, group;
} nb_awq_at;

/* Scales (or offsets) of outputs [n0, n0 + n) into values[n][gn]. */
void nb_awq_read_floats(const nb_tensor *t, nb_awq_at at, size_t n0, size_t n, size_t gn, float *values);
/* The mirror, into a tensor of type `to`. CNV-030 when a value is not exact there; NB_EARG for another type. */
nb_status nb_awq_write_floats(const float *values, nb_awq_at at, size_t n0, size_t n, size_t gn, nb_dtype to, unsigned char *out,
                              nb_err *err);

/* The config object with this version (formats 6.8); `int16` adds pack_dtype as GPTQModel does. NULL: no memory. */
nb_json *nb_awq_config(const nb_qspec *spec, const char *version, bool int16, const char *const *skip, size_t n_skip);

#endif
