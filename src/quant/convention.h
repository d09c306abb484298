/* convention.h - what stored zero points themselves say about how they were stored (formats 8.1). */
#ifndef NB_QUANT_CONVENTION_H
#define NB_QUANT_CONVENTION_H

#include "quant/quant.h"

/* What zero points of GPTQ linears say. */
typedef struct nb_zero_verdict {
    int reading;  /* NB_ZEROS_TRUE, NB_ZEROS_FIELD, NB_ZEROS_LEGACY3; -1: they do not tell */
    char why[96]; /* "stored 7 everywhere", "mean offset +0.98"                            */
} nb_zero_verdict;

/* Look at a few of the linears of the rows gptq and gptq_v2. Constant words decide symmetric models, the mean offset the others.
 * Reads a few stripes. NB_ENOMEM, or what unpack() says. */
nb_status nb_zero_convention(const nb_linear *linears, size_t n, nb_zero_verdict *out, nb_err *err);

/* Stored fields of a v1 linear that are all ones: zero points of 0 from which 1 was subtracted; and of these the ones whose higher
 * fields in the word are all ones too, which is how AutoGPTQ overwrote them (formats 3.10, 8.5). 0 for other linears. */
void nb_zero_wraps(const nb_linear *lin, uint64_t *n_wrapped, uint64_t *n_over);

#endif
