/* marlin.h - the tiles of serialized Marlin files, GPTQ and AWQ (formats 2.5). Reading only. */
#ifndef NB_QUANT_MARLIN_H
#define NB_QUANT_MARLIN_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/qlin.h"
#include "tensor/tensor.h"

/* Codes of outputs [n0, n0 + n) into out[n][k]. src: I32 [k/16, 2 * n_total], 4 bit; k % 16 == 0, n_total % 64 == 0. */
void nb_marlin_unpack(const unsigned char *src, size_t n_total, size_t k, size_t n0, size_t n, uint8_t *out);
/* Scales of outputs [n0, n0 + q->n) into q->scales. t: [n_groups, n_total], permuted in 64s (groups) or 32s (one group). */
void nb_marlin_scales(const nb_tensor *t, size_t n0, nb_qlin *q);

#endif
