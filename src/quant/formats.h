/* formats.h - the rows of the format table, each defined in its own fmt_*.c. */
#ifndef NB_QUANT_FORMATS_H
#define NB_QUANT_FORMATS_H

#include "quant/quant.h"

extern const nb_format nb_fmt_awq_gemm; /* fmt_awq_gemm.c, docs/formats/awq-gemm.md */

#endif
