/* qlin.h - the hub: one quantized linear, or a stripe of its outputs, in the one plain form every layout maps to.
 *
 *   w[n][k] = (codes[n][k] - zeros[n][group(k)]) * scales[n][group(k)]       group(k) = g_idx ? g_idx[k] : k / g
 *
 * zeros are always the value subtracted. scales are the stored values widened exactly to f32; scale_dtype remembers
 * how they were stored, so that writing back is exact. Source: spec formats 1, equation (R).
 *
 * Layouts that store the offset -scale * zero as a float have rounded it. offsets keeps the stored value and zeros the
 * integer behind it; the stored matrix is then w[n][k] = codes[n][k] * scale + offset (formats 3.5). */
#ifndef NB_TENSOR_QLIN_H
#define NB_TENSOR_QLIN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"

typedef struct nb_qlin {
    size_t n, k, g;       /* outputs in this stripe, inputs, group size (g = k for per channel; always resolved) */
    size_t n_groups;      /* ceil(k / g)                                                       */
    unsigned bits;        /* 2..8                                                              */
    nb_dtype scale_dtype; /* F16, BF16 or F32                                                  */
    uint8_t *codes;       /* [n][k]                                                            */
    uint8_t *zeros;       /* [n][n_groups]                                                     */
    float *scales;        /* [n][n_groups]                                                     */
    float *offsets;       /* [n][n_groups] as stored, or NULL                                  */
    uint32_t *g_idx;      /* [k] group of each input, or NULL for k / g                        */
    size_t cap_n;         /* rows the buffers hold                                             */
} nb_qlin;

/* Allocate buffers for n rows of k inputs. The struct is the caller's and zeroed. g_idx and offsets are not allocated. */
nb_status nb_qlin_init(nb_qlin *q, size_t n, size_t k, size_t g, unsigned bits, nb_err *err);
/* The same without codes (NULL): zero points and scales alone. */
nb_status nb_qlin_init_grid(nb_qlin *q, size_t n, size_t k, size_t g, unsigned bits, nb_err *err);
/* Allocate g_idx[k] (zeroed). */
nb_status nb_qlin_init_gidx(nb_qlin *q, nb_err *err);
void nb_qlin_clear(nb_qlin *q); /* a zeroed one is fine */
/* Allocate offsets for the rows of q; does nothing where it has them. */
nb_status nb_qlin_init_offsets(nb_qlin *q, nb_err *err);
/* out[n][k] = dequantized rows: exact products in f32, with offsets one rounding of an exact sum. */
void nb_qlin_dequant(const nb_qlin *q, float *out);

#endif
